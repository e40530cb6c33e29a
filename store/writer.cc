// SPDX-License-Identifier: Apache-2.0

#include "store/writer.h"

#include <string>
#include <utility>

#include "base/status.h"
#include "store/codec.h"
#include "store/keys.h"

namespace torpor::store {
namespace {

// A group ends when it has this many bytes. One or two MiB a commit came
// nearest to raw write + fdatasync on the development machine; more per
// transaction was slower (bench/store_commit_bench.cc).
constexpr uint64_t kGroupBytes = uint64_t{2} << 20;

// Kept behind the used pages for operations that make room.
constexpr uint64_t kReserveBytes = uint64_t{128} << 10;

// Pages of the trees and of the list of free pages that a commit rewrites.
constexpr uint64_t kTreeBytes = uint64_t{64} << 10;

}  // namespace

Writer::Writer(Env* env) : env_(env), thread_([this] { Loop(); }) {}

Writer::~Writer() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void Writer::Submit(uint64_t bytes, WriteFn fn, DoneFn done, Room room) {
  {
    MutexLock lock(&mu_);
    queue_.push_back({bytes, std::move(fn), std::move(done), room, {}});
  }
  wake_.NotifyOne();
}

absl::Status Writer::Run(uint64_t bytes, WriteFn fn, Room room,
                         const std::function<void()>& committed) {
  Mutex mu;
  CondVar cv;
  bool finished = false;
  absl::Status result;
  Submit(
      bytes, std::move(fn),
      [&](const absl::Status& status) {
        if (status.ok() && committed) committed();
        MutexLock lock(&mu);
        result = status;
        finished = true;
        cv.NotifyAll();
      },
      room);
  MutexLock lock(&mu);
  while (!finished) cv.Wait(&mu);
  return result;
}

void Writer::Loop() {
  for (;;) {
    std::vector<Op> group = TakeGroup();
    if (group.empty()) return;
    CommitGroup(&group);
    for (Op& op : group) op.done(op.status);
  }
}

std::vector<Writer::Op> Writer::TakeGroup() {
  MutexLock lock(&mu_);
  while (queue_.empty() && !stopping_) wake_.Wait(&mu_);
  std::vector<Op> group;
  uint64_t bytes = 0;
  while (!queue_.empty() && bytes < kGroupBytes) {
    bytes += queue_.front().bytes;
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return group;
}

void Writer::CommitGroup(std::vector<Op>* group) {
  uint64_t bytes = 0;
  for (const Op& op : *group) bytes += op.bytes;
  if (group->size() == 1 || !CheckRoom(bytes).ok()) {
    for (Op& op : *group) op.status = CommitAlone(&op);
    return;
  }
  absl::StatusOr<std::unique_ptr<WriteTxn>> txn = env_->BeginWrite();
  bool wrote = false;
  if (txn.ok()) {
    for (Op& op : *group) {
      absl::StatusOr<std::unique_ptr<WriteTxn>> child = (*txn)->Child();
      op.status = child.status();
      if (!child.ok()) continue;
      op.status = op.fn(**child);
      if (op.status.ok()) op.status = (*child)->Commit();
      wrote = wrote || op.status.ok();
    }
  }
  if (!txn.ok() || (wrote && !(*txn)->Commit().ok())) {
    // One oversized or ill-fated neighbour must not fail the others.
    txn = absl::UnknownError("over");
    for (Op& op : *group) {
      if (op.status.ok()) op.status = CommitAlone(&op);
    }
    return;
  }
  if (wrote) commits_.fetch_add(1);
}

absl::Status Writer::CommitAlone(Op* op) {
  if (op->room == Room::kTakes) {
    TORPOR_RETURN_IF_ERROR(CheckRoom(op->bytes));
    return CommitOnce(op);
  }
  const absl::Status status = CommitOnce(op);
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  if (!ReleaseFreedPages().ok()) return status;
  return CommitOnce(op);
}

absl::Status Writer::CheckRoom(uint64_t bytes) {
  const uint64_t wanted = bytes + bytes / 4 + kTreeBytes;
  const absl::Status status = env_->EnsureRoom(wanted + kReserveBytes);
  if (status.ok()) return status;
  // The disk is full, but pages of the file may be free.
  TORPOR_ASSIGN_OR_RETURN(const uint64_t reusable, env_->ReusableBytes());
  return reusable >= wanted + kReserveBytes ? absl::OkStatus() : status;
}

absl::Status Writer::ReleaseFreedPages() {
  for (int i = 0; i < 2; ++i) {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn,
                            env_->BeginWrite());
    const std::string tick = std::to_string(commits_.load());
    TORPOR_RETURN_IF_ERROR(txn->Put(Table::kMeta, kMetaTick, AsBytes(tick)));
    TORPOR_RETURN_IF_ERROR(txn->Commit());
    commits_.fetch_add(1);
  }
  return absl::OkStatus();
}

absl::Status Writer::CommitOnce(Op* op) {
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<WriteTxn> txn, env_->BeginWrite());
  TORPOR_RETURN_IF_ERROR(op->fn(*txn));
  TORPOR_RETURN_IF_ERROR(txn->Commit());
  commits_.fetch_add(1);
  return absl::OkStatus();
}

}  // namespace torpor::store
