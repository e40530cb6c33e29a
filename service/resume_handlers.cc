// SPDX-License-Identifier: Apache-2.0
//
// BeginResume, ReadTokens, ReadRows, Window, Release, and Resume, which is the
// same in one stream.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/convert.h"
#include "service/data_plane.h"
#include "service/row_codec.h"
#include "service/row_sender.h"
#include "service/session_service.h"

namespace torpor::service {
namespace {

constexpr size_t kTokensPerMessage = 65'536;

absl::StatusOr<std::vector<uint32_t>> SlotsOf(
    const v1::ReadRowsRequest& request, const RegisteredModel& model) {
  if (request.slots().empty()) return model.compact_slots;
  std::vector<uint32_t> slots(request.slots().begin(), request.slots().end());
  for (const uint32_t slot : slots) {
    if (!model.compact_index.contains(slot)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "read rows: slot %d is not one whose rows are stored", slot));
    }
  }
  return slots;
}

// Header, then tokens, of a stream of BeginResumeRequest.
struct ResumeInput {
  v1::BeginResumeHeader header;
  store::TokenRun prompt;
};

absl::Status TakeResumeMessage(const ModelRegistry& models,
                               const v1::BeginResumeRequest& message,
                               bool first, ResumeInput* input) {
  if (first) {
    if (!message.has_header()) {
      return absl::InvalidArgumentError(
          "resume: the first message is no header");
    }
    input->header = message.header();
    return absl::OkStatus();
  }
  if (message.has_header()) return SecondHeader("resume");
  uint32_t vocab = 0;
  if (!input->header.model().empty()) {
    TORPOR_ASSIGN_OR_RETURN(const auto model,
                            models.Get(input->header.model()));
    vocab = model->layout.vocab_size;
  }
  return AppendTokens(message.tokens(), input->prompt.ids.size(), vocab,
                      &input->prompt);
}

absl::StatusOr<std::shared_ptr<Lease>> BeginLease(Backend& backend,
                                                  uint32_t tenant,
                                                  const ResumeInput& input) {
  TORPOR_RETURN_IF_ERROR(CheckSpansEnd(input.prompt));
  absl::StatusOr<std::unique_ptr<Lease>> lease =
      Lease::Begin(&backend.store(), backend.models(), tenant, input.header,
                   input.prompt.ids.empty() ? nullptr : &input.prompt);
  const absl::Status status =
      lease.ok() ? (*lease)->CheckReplayable() : lease.status();
  if (!status.ok()) {
    if (status.code() == absl::StatusCode::kFailedPrecondition ||
        status.code() == absl::StatusCode::kDataLoss) {
      backend.metrics().CountFullRecompute(
          absl::StatusCodeToString(status.code()));
    }
    return status;
  }
  return std::shared_ptr<Lease>(*std::move(lease));
}

PlaneAnswer PlaneFor(Backend& backend, Call& call, Lease& lease,
                     const v1::DataPlaneOffer& offer,
                     std::function<void(ServerSegment&)> on_lost) {
  PlaneAnswer answer = ChoosePlane(
      &backend.segments(), {.offer = &offer,
                            .peer = call.context()->peer(),
                            .bytes = CompactBytes(lease) + WindowBytes(lease),
                            .flow = Flow::kToClient,
                            .on_lost = std::move(on_lost)});
  if (answer.segment != nullptr) lease.planes().Add(answer.segment);
  return answer;
}

// How a stream of a lease sends rows: into the segment that it names, or in
// its messages.
class LeaseOutlet {
 public:
  LeaseOutlet(Backend& backend, Call& call, RowOutlet::Write write)
      : backend_(backend), call_(call), write_(std::move(write)) {}
  ~LeaseOutlet() {
    if (outlet_ != nullptr) {
      backend_.metrics().CountRowBytes(
          "out", use_ == nullptr ? "grpc" : use_->segment().memory().plane(),
          outlet_->bytes());
    }
  }

  absl::StatusOr<RowOutlet*> Open(Lease& lease, const std::string& segment) {
    if (segment.empty()) {
      outlet_ = std::make_unique<MessageOutlet>(std::move(write_));
      return outlet_.get();
    }
    TORPOR_ASSIGN_OR_RETURN(use_, lease.planes().Use(segment));
    ServerSegment& s = use_->segment();
    outlet_ = std::make_unique<SharedOutlet>(
        &s.memory(),
        SharedOutlet::Limits{
            s.stall_limit(),
            [this, &s] { return call_.cancelled() || s.lost(); }},
        std::move(write_));
    return outlet_.get();
  }

 private:
  Backend& backend_;
  Call& call_;
  RowOutlet::Write write_;
  // The outlet goes before what it writes into.
  std::unique_ptr<SegmentUse> use_;
  std::unique_ptr<RowOutlet> outlet_;
};

}  // namespace

grpc::ServerReadReactor<v1::BeginResumeRequest>*
SessionServiceImpl::BeginResume(grpc::CallbackServerContext* context,
                                v1::BeginResumeResponse* response) {
  return RunReader<v1::BeginResumeRequest>(
      context, &backend_.workers(), [=, this](Call& call, auto read) {
        return backend_.Serve(
            "BeginResume", call, [&](uint32_t tenant) -> absl::Status {
              ResumeInput input;
              v1::BeginResumeRequest message;
              bool first = true;
              while (read(&message)) {
                TORPOR_RETURN_IF_ERROR(TakeResumeMessage(
                    backend_.models(), message, first, &input));
                first = false;
              }
              if (call.cancelled()) return absl::CancelledError("resume");
              if (first) {
                return absl::InvalidArgumentError("resume: got no header");
              }
              TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Lease> lease,
                                      BeginLease(backend_, tenant, input));
              TORPOR_ASSIGN_OR_RETURN(*response, lease->Response());
              TORPOR_ASSIGN_OR_RETURN(const std::string id,
                                      backend_.leases().Add(tenant, lease));
              response->set_lease(id);
              const auto drop = [&backend = backend_, tenant, id] {
                backend.workers().Post([&backend, tenant, id] {
                  backend.leases().Remove(tenant, id);
                });
              };
              *response->mutable_plane() =
                  PlaneFor(backend_, call, *lease, input.header.planes(),
                           [drop](ServerSegment&) { drop(); })
                      .choice;
              // Nobody learns of it.
              call.OnCancel(drop);
              return absl::OkStatus();
            });
      });
}

grpc::ServerWriteReactor<v1::TokenChunk>* SessionServiceImpl::ReadTokens(
    grpc::CallbackServerContext* context,
    const v1::ReadTokensRequest* request) {
  return RunWriter<v1::TokenChunk>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.Serve(
            "ReadTokens", call, [&](uint32_t tenant) -> absl::Status {
              TORPOR_ASSIGN_OR_RETURN(
                  const std::shared_ptr<Lease> lease,
                  backend_.leases().Get(tenant, request->lease()));
              const uint64_t end = request->end() == 0
                                       ? lease->stored().info().n_tokens
                                       : request->end();
              TORPOR_ASSIGN_OR_RETURN(
                  const store::TokenRun tokens,
                  lease->stored().ReadTokens(request->begin(), end));
              for (size_t at = 0; at < tokens.ids.size();
                   at += kTokensPerMessage) {
                const size_t stop =
                    std::min(tokens.ids.size(), at + kTokensPerMessage);
                if (!write(ToProto(tokens, at, stop, request->begin()))) {
                  return absl::CancelledError("tokens: nobody reads them");
                }
              }
              return absl::OkStatus();
            });
      });
}

RawWriter* SessionServiceImpl::ReadRows(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request) {
  return RunWriter<grpc::ByteBuffer>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.Serve(
            "ReadRows", call, [&](uint32_t tenant) -> absl::Status {
              v1::ReadRowsRequest asked;
              TORPOR_RETURN_IF_ERROR(DecodeMessage(*request, &asked));
              TORPOR_ASSIGN_OR_RETURN(
                  const std::shared_ptr<Lease> lease,
                  backend_.leases().Get(tenant, asked.lease()));
              const RegisteredModel& model = *lease->model();
              TORPOR_ASSIGN_OR_RETURN(const std::vector<uint32_t> slots,
                                      SlotsOf(asked, model));
              TORPOR_ASSIGN_OR_RETURN(
                  const Shard shard,
                  CheckShard(asked.shard(), asked.n_shards(), model.layout));
              const uint64_t cut = lease->plan().resume_at;
              const uint64_t end = asked.end() == 0 ? cut : asked.end();
              if (asked.begin() > end || end > cut) {
                return absl::OutOfRangeError(absl::StrFormat(
                    "read rows: got tokens [%d, %d), the lease has [0, %d)",
                    asked.begin(), end, cut));
              }
              LeaseOutlet out(backend_, call, write);
              TORPOR_ASSIGN_OR_RETURN(RowOutlet* const outlet,
                                      out.Open(*lease, asked.segment()));
              return SendCompact(*lease, slots, asked.begin(), end, shard,
                                 outlet);
            });
      });
}

RawWriter* SessionServiceImpl::Window(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request) {
  return RunWriter<grpc::ByteBuffer>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.Serve(
            "Window", call, [&](uint32_t tenant) -> absl::Status {
              v1::WindowRequest asked;
              TORPOR_RETURN_IF_ERROR(DecodeMessage(*request, &asked));
              TORPOR_ASSIGN_OR_RETURN(
                  const std::shared_ptr<Lease> lease,
                  backend_.leases().Get(tenant, asked.lease()));
              TORPOR_ASSIGN_OR_RETURN(
                  const Shard shard, CheckShard(asked.shard(), asked.n_shards(),
                                                lease->model()->layout));
              LeaseOutlet out(backend_, call, write);
              TORPOR_ASSIGN_OR_RETURN(RowOutlet* const outlet,
                                      out.Open(*lease, asked.segment()));
              TORPOR_ASSIGN_OR_RETURN(
                  const replay::WindowState* window,
                  lease->Window(&backend_.replay(), &backend_.prefetcher(),
                                call.cancelled_fn()));
              v1::WindowChunk head;
              *head.mutable_header() = lease->WindowHeader();
              if (!write(EncodeMessage(head))) {
                return absl::CancelledError("window: nobody reads it");
              }
              return SendWindow(*lease, *window, shard, outlet);
            });
      });
}

grpc::ServerUnaryReactor* SessionServiceImpl::Release(
    grpc::CallbackServerContext* context, const v1::ReleaseRequest* request,
    v1::ResumeReceipt* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve(
        "Release", call, [&](uint32_t tenant) -> absl::Status {
          TORPOR_ASSIGN_OR_RETURN(
              const std::shared_ptr<Lease> lease,
              backend_.leases().Get(tenant, request->lease()));
          if (request->has_replay()) {
            TORPOR_RETURN_IF_ERROR(lease->AddEngineReplay(request->replay()));
          }
          backend_.leases().Remove(tenant, request->lease());
          *response = lease->Receipt();
          backend_.Account(*response);
          return absl::OkStatus();
        });
  });
}

RawBidi* SessionServiceImpl::Resume(grpc::CallbackServerContext* context) {
  return RunBidi<grpc::ByteBuffer, grpc::ByteBuffer>(
      context, &backend_.workers(),
      [=, this](Call& call, auto read, auto write) {
        return backend_.Serve(
            "Resume", call, [&](uint32_t tenant) -> absl::Status {
              ResumeInput input;
              grpc::ByteBuffer buffer;
              bool first = true;
              while (read(&buffer)) {
                v1::BeginResumeRequest message;
                TORPOR_RETURN_IF_ERROR(DecodeMessage(buffer, &message));
                TORPOR_RETURN_IF_ERROR(TakeResumeMessage(
                    backend_.models(), message, first, &input));
                first = false;
                buffer.Clear();
              }
              if (call.cancelled()) return absl::CancelledError("resume");
              if (first) {
                return absl::InvalidArgumentError("resume: got no header");
              }
              TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Lease> lease,
                                      BeginLease(backend_, tenant, input));
              const auto send = [&](const v1::ResumeChunk& chunk) {
                return write(EncodeMessage(chunk))
                           ? absl::OkStatus()
                           : absl::CancelledError("resume: nobody reads it");
              };
              v1::ResumeChunk chunk;
              TORPOR_ASSIGN_OR_RETURN(*chunk.mutable_begin(),
                                      lease->Response());
              // Its stream sees that the segment is lost.
              *chunk.mutable_begin()->mutable_plane() =
                  PlaneFor(backend_, call, *lease, input.header.planes(),
                           nullptr)
                      .choice;
              LeaseOutlet out(backend_, call, write);
              TORPOR_ASSIGN_OR_RETURN(
                  RowOutlet* const outlet,
                  out.Open(*lease, chunk.begin().plane().segment()));
              TORPOR_RETURN_IF_ERROR(send(chunk));

              // The window is rebuilt while tokens and compact rows travel.
              StreamStep rebuilt;
              const bool with_window = !input.header.engine_replays();
              absl::StatusOr<const replay::WindowState*> window =
                  absl::UnknownError("not rebuilt");
              if (with_window) {
                backend_.workers().Post([&] {
                  window =
                      lease->Window(&backend_.replay(), &backend_.prefetcher(),
                                    call.cancelled_fn());
                  rebuilt.Done(true);
                });
              }
              const absl::Status sent = [&]() -> absl::Status {
                if (input.header.send_tokens()) {
                  TORPOR_ASSIGN_OR_RETURN(
                      const store::TokenRun tokens,
                      lease->stored().ReadTokens(
                          0, lease->stored().info().n_tokens));
                  for (size_t at = 0; at < tokens.ids.size();
                       at += kTokensPerMessage) {
                    v1::ResumeChunk part;
                    *part.mutable_tokens() = ToProto(
                        tokens, at,
                        std::min(tokens.ids.size(), at + kTokensPerMessage), 0);
                    TORPOR_RETURN_IF_ERROR(send(part));
                  }
                }
                return SendCompact(*lease, lease->model()->compact_slots, 0,
                                   lease->plan().resume_at, {}, outlet);
              }();
              if (with_window) rebuilt.Wait();
              TORPOR_RETURN_IF_ERROR(sent);
              if (with_window) {
                TORPOR_RETURN_IF_ERROR(window.status());
                v1::ResumeChunk head;
                *head.mutable_window() = lease->WindowHeader();
                TORPOR_RETURN_IF_ERROR(send(head));
                TORPOR_RETURN_IF_ERROR(
                    SendWindow(*lease, **window, {}, outlet));
              }
              // The segment ends with this call, or serves another.
              TORPOR_RETURN_IF_ERROR(outlet->Drain());
              v1::ResumeChunk last;
              *last.mutable_receipt() = lease->Receipt();
              backend_.Account(last.receipt());
              return send(last);
            });
      });
}

}  // namespace torpor::service
