// SPDX-License-Identifier: Apache-2.0
//
// The one writer thread of an environment, with group commit: operations that
// wait together share a transaction and its flush. Each runs in a nested
// transaction of its own, so a failed one leaves nothing behind and its
// neighbours commit.

#ifndef TORPOR_STORE_WRITER_H_
#define TORPOR_STORE_WRITER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "store/env.h"

namespace torpor::store {

// Runs on the writer thread, possibly twice when a shared commit failed: it
// must depend on the transaction alone and keep its side effects for `done`.
using WriteFn = std::function<absl::Status(WriteTxn&)>;
// Runs on the writer thread after the flush; OK means durable.
using DoneFn = std::function<void(const absl::Status&)>;

// Whether an operation takes room or makes some. One that makes room goes on
// when the disk is full: a little of the file is kept for it.
enum class Room : uint8_t { kTakes, kMakes };

class Writer {
 public:
  // `env` outlives the writer.
  explicit Writer(Env* env);
  // Finishes what is queued.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Queues an operation that writes about `bytes` bytes.
  void Submit(uint64_t bytes, WriteFn fn, DoneFn done,
              Room room = Room::kTakes);

  // Submit, then wait. Not from the writer thread. Once durable, `committed`
  // runs on the writer thread: what is kept in memory of the environment
  // follows the order of its commits there, and not in the callers' threads.
  absl::Status Run(uint64_t bytes, WriteFn fn, Room room = Room::kTakes,
                   const std::function<void()>& committed = nullptr);

  // Transactions committed since the start.
  [[nodiscard]] uint64_t commits() const { return commits_.load(); }

 private:
  struct Op {
    uint64_t bytes;
    WriteFn fn;
    DoneFn done;
    Room room;
    absl::Status status;
  };

  void Loop();
  std::vector<Op> TakeGroup();
  void CommitGroup(std::vector<Op>* group);
  // Runs and commits one operation by itself.
  absl::Status CommitAlone(Op* op);
  absl::Status CommitOnce(Op* op);
  // OK when `bytes` bytes and what belongs to them can be written, and the
  // reserve stays.
  absl::Status CheckRoom(uint64_t bytes);
  // Two commits of next to nothing: LMDB hands pages out again in the second
  // transaction after the one that freed them.
  absl::Status ReleaseFreedPages();

  Env* const env_;
  std::atomic<uint64_t> commits_{0};
  Mutex mu_;
  CondVar wake_;
  std::deque<Op> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_WRITER_H_
