// SPDX-License-Identifier: Apache-2.0
//
// gRPC's callback reactors as plain calls: a handler runs on a worker thread
// and reads and writes its streams in a straight line, one message in flight,
// while gRPC's threads only hand messages over. Cancellation and deadlines
// raise one flag, which long work polls and streams obey at once.

#ifndef TORPOR_SERVICE_RPC_H_
#define TORPOR_SERVICE_RPC_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/worker_pool.h"
#include "service/status.h"

namespace torpor::service {

// Who calls, and whether they still want it.
class Call {
 public:
  explicit Call(grpc::CallbackServerContext* context) : context_(context) {}

  [[nodiscard]] bool cancelled() const { return cancelled_.load(); }
  // For work that polls.
  [[nodiscard]] std::function<bool()> cancelled_fn() const {
    return [this] { return cancelled(); };
  }
  grpc::CallbackServerContext* context() const { return context_; }

  // Runs once when the call is cancelled (or at once if it was).
  void OnCancel(std::function<void()> fn) {
    {
      MutexLock lock(&mu_);
      if (!cancelled_.load()) {
        on_cancel_ = std::move(fn);
        return;
      }
    }
    fn();
  }
  // From here on the function of OnCancel may be gone.
  void ForgetOnCancel() {
    MutexLock lock(&mu_);
    on_cancel_ = nullptr;
  }

  void Cancel() {
    MutexLock lock(&mu_);
    cancelled_.store(true);
    if (on_cancel_) on_cancel_();
  }

 private:
  grpc::CallbackServerContext* const context_;
  std::atomic<bool> cancelled_{false};
  Mutex mu_;
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mu_);
};

// One operation of a stream that a worker waits for.
class StreamStep {
 public:
  void Done(bool ok) {
    MutexLock lock(&mu_);
    done_ = true;
    ok_ = ok;
    cv_.NotifyAll();
  }
  bool Wait() {
    MutexLock lock(&mu_);
    while (!done_) cv_.Wait(&mu_);
    done_ = false;
    return ok_;
  }

 private:
  Mutex mu_;
  CondVar cv_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  bool ok_ ABSL_GUARDED_BY(mu_) = false;
};

// One message of a stream on its way out, while the worker fills the next.
// Only for messages that share their bytes when copied.
template <typename Out>
class OneBehind {
 public:
  // Starts `start(message)` when the message before is out; false when one
  // failed. The message is copied.
  template <typename Start>
  bool Write(const Out& message, const Start& start) {
    if (!Wait()) return false;
    message_ = message;
    under_way_ = true;
    start(&message_);
    return true;
  }
  // Until nothing is under way.
  bool Wait() {
    if (std::exchange(under_way_, false) && !step_.Wait()) failed_ = true;
    return !failed_;
  }
  void Done(bool ok) { step_.Done(ok); }

 private:
  StreamStep step_;
  Out message_;
  bool under_way_ = false;
  bool failed_ = false;
};

// A unary call. `handler(call)` fills the response and returns its status.
template <typename Handler>
grpc::ServerUnaryReactor* RunUnary(grpc::CallbackServerContext* context,
                                   WorkerPool* workers, Handler handler) {
  class Reactor final : public grpc::ServerUnaryReactor {
   public:
    explicit Reactor(grpc::CallbackServerContext* c) : call(c) {}
    void OnCancel() override { call.Cancel(); }
    void OnDone() override { delete this; }
    Call call;
  };
  auto* reactor = new Reactor(context);
  workers->Post([reactor, handler = std::move(handler)]() mutable {
    const absl::Status status = handler(reactor->call);
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

// Client-streaming: `handler(call, read)`, where read(&message) is false at the
// end of the stream or when the call is cancelled.
template <typename In, typename Handler>
grpc::ServerReadReactor<In>* RunReader(grpc::CallbackServerContext* context,
                                       WorkerPool* workers, Handler handler) {
  class Reactor final : public grpc::ServerReadReactor<In> {
   public:
    explicit Reactor(grpc::CallbackServerContext* c) : call(c) {}
    bool Read(In* message) {
      this->StartRead(message);
      return step.Wait() && !call.cancelled();
    }
    void OnReadDone(bool ok) override { step.Done(ok); }
    void OnCancel() override { call.Cancel(); }
    void OnDone() override { delete this; }
    Call call;
    StreamStep step;
  };
  auto* reactor = new Reactor(context);
  workers->Post([reactor, handler = std::move(handler)]() mutable {
    const absl::Status status =
        handler(reactor->call, [&](In* m) { return reactor->Read(m); });
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

// Server-streaming: `handler(call, write)`, where write(message) is false when
// nobody listens any more: known of one message when the next is written. A
// protobuf message is out when write returns, a ByteBuffer is copied (it shares
// its slices) and leaves meanwhile.
template <typename Out, typename Handler>
grpc::ServerWriteReactor<Out>* RunWriter(grpc::CallbackServerContext* context,
                                         WorkerPool* workers, Handler handler) {
  class Reactor final : public grpc::ServerWriteReactor<Out> {
   public:
    explicit Reactor(grpc::CallbackServerContext* c) : call(c) {}
    bool Write(const Out& message) {
      if constexpr (std::is_same_v<Out, grpc::ByteBuffer>) {
        return ahead.Write(message, [&](Out* m) { this->StartWrite(m); }) &&
               !call.cancelled();
      } else {
        this->StartWrite(&message);
        return step.Wait() && !call.cancelled();
      }
    }
    void OnWriteDone(bool ok) override {
      if constexpr (std::is_same_v<Out, grpc::ByteBuffer>) {
        ahead.Done(ok);
      } else {
        step.Done(ok);
      }
    }
    void OnCancel() override { call.Cancel(); }
    void OnDone() override { delete this; }
    Call call;
    StreamStep step;
    OneBehind<grpc::ByteBuffer> ahead;
  };
  auto* reactor = new Reactor(context);
  workers->Post([reactor, handler = std::move(handler)]() mutable {
    const absl::Status status =
        handler(reactor->call, [&](const Out& m) { return reactor->Write(m); });
    reactor->ahead.Wait();
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

// Both directions, ByteBuffers out.
template <typename In, typename Out, typename Handler>
grpc::ServerBidiReactor<In, Out>* RunBidi(grpc::CallbackServerContext* context,
                                          WorkerPool* workers,
                                          Handler handler) {
  class Reactor final : public grpc::ServerBidiReactor<In, Out> {
   public:
    explicit Reactor(grpc::CallbackServerContext* c) : call(c) {}
    bool Read(In* message) {
      this->StartRead(message);
      return read_step.Wait() && !call.cancelled();
    }
    bool Write(const Out& message) {
      return ahead.Write(message, [&](Out* m) { this->StartWrite(m); }) &&
             !call.cancelled();
    }
    void OnReadDone(bool ok) override { read_step.Done(ok); }
    void OnWriteDone(bool ok) override { ahead.Done(ok); }
    void OnCancel() override { call.Cancel(); }
    void OnDone() override { delete this; }
    Call call;
    StreamStep read_step;
    OneBehind<Out> ahead;
  };
  auto* reactor = new Reactor(context);
  workers->Post([reactor, handler = std::move(handler)]() mutable {
    const absl::Status status = handler(
        reactor->call, [&](In* m) { return reactor->Read(m); },
        [&](const Out& m) { return reactor->Write(m); });
    reactor->ahead.Wait();
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_RPC_H_
