// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_emulation/block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/cuda_emulation/report_log.h"

namespace torpor::kernels::emulation {

thread_local Thread* running = nullptr;

namespace {

// At the top of each fiber's stack, where a kernel reads them freely.
struct Indices {
  uint3 thread;
  uint3 block;
  dim3 block_size;
  dim3 grid_size;
};
static_assert(sizeof(Indices) <= Fiber::kTopBytes);

const Indices& Current() {
  return *static_cast<const Indices*>(running->fiber.top());
}

uint3 Split(uint32_t number, const dim3& size) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

std::string ToString(const Place& place) {
  const char* slash = std::strrchr(place.file, '/');
  return std::string(slash == nullptr ? place.file : slash + 1) + ":" +
         std::to_string(place.line);
}

const char* OpName(WarpOp op) {
  switch (op) {
    case WarpOp::kSync:
      return "__syncwarp";
    case WarpOp::kShuffle:
      return "__shfl_sync";
    case WarpOp::kShuffleXor:
      return "__shfl_xor_sync";
    case WarpOp::kShuffleUp:
      return "__shfl_up_sync";
    case WarpOp::kShuffleDown:
      return "__shfl_down_sync";
    case WarpOp::kBallot:
      return "__ballot_sync";
  }
  return "?";
}

}  // namespace

void BlockRunner::Enter(void* thread) {
  auto* self = static_cast<Thread*>(thread);
  const KernelCall& call = self->runner->launch_->call;
  call.invoke(call.call);
  self->state = Thread::State::kExited;
}

void BlockRunner::Run(LaunchState& launch, uint32_t block) {
  launch_ = &launch;
  block_ = block;
  is_dropped_ = false;
  random_.seed(launch.schedule.seed * 0x9e3779b97f4a7c15u + block);
  shared_.BeginBlock(launch.grid.dynamic_shared_bytes);
  StartThreads();
  do {
    BeginEpoch();
    RunReady();
  } while (!is_dropped_ && AllAtBarrier());
  if (is_dropped_) launch.is_over = true;
}

void BlockRunner::StartThreads() {
  const Grid& grid = launch_->grid;
  n_threads_ = grid.block.x * grid.block.y * grid.block.z;
  block_index_ = Split(block_, grid.size);
  while (threads_.size() < n_threads_) {
    threads_.push_back(std::make_unique<Thread>());
  }
  seen_.resize((kBlockThreadsMax + kWarpLanes - 1) / kWarpLanes);
  for (uint32_t i = 0; i < n_threads_; ++i) {
    Thread& thread = *threads_[i];
    thread.runner = this;
    thread.number = i;
    new (thread.fiber.top())
        Indices{Index(i), block_index_, grid.block, grid.size};
    thread.fiber.Start(&BlockRunner::Enter, &thread);
  }
  order_.resize(n_threads_);
  std::iota(order_.begin(), order_.end(), 0u);
  if (launch_->schedule.order == Order::kReverse) {
    std::reverse(order_.begin(), order_.end());
  }
}

void BlockRunner::BeginEpoch() {
  const uint32_t epoch = NextEpoch();
  for (uint32_t i = 0; i < n_threads_; ++i) {
    Thread& thread = *threads_[i];
    thread.state = Thread::State::kReady;
    const uint32_t warp = i / kWarpLanes;
    const uint32_t lane = i % kWarpLanes;
    seen_[warp][lane].fill(0);
    thread.who = {.epoch = epoch,
                  .launch_epoch = launch_->first_epoch,
                  .block = block_,
                  .warp = warp,
                  .lane = lane,
                  .clock = 0,
                  .seen = seen_[warp][lane].data()};
  }
  if (launch_->schedule.order == Order::kRandom) {
    std::shuffle(order_.begin(), order_.end(), random_);
  }
}

void BlockRunner::RunReady() {
  bool any = true;
  while (any) {
    any = false;
    for (const uint32_t i : order_) {
      Thread& thread = *threads_[i];
      if (thread.state != Thread::State::kReady) continue;
      any = true;
      running = &thread;
      thread.fiber.Resume();
      running = nullptr;
      if (is_dropped_) return;
    }
  }
}

bool BlockRunner::AllAtBarrier() {
  const Thread* at_barrier = nullptr;
  const Thread* exited = nullptr;
  for (uint32_t i = 0; i < n_threads_; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state == Thread::State::kInWarpOp) {
      ReportMissingLane(thread);
      is_dropped_ = true;
      return false;
    }
    if (thread.state == Thread::State::kExited) {
      if (exited == nullptr) exited = &thread;
    } else if (at_barrier == nullptr) {
      at_barrier = &thread;
    }
  }
  if (at_barrier == nullptr) return false;
  const Thread* other = exited;
  for (uint32_t i = 0; other == nullptr && i < n_threads_; ++i) {
    if (!(threads_[i]->place == at_barrier->place)) other = threads_[i].get();
  }
  if (other == nullptr) return true;
  Report(Fault::kDivergentBarrier, *at_barrier,
         Whereabouts(*at_barrier) + " while " + Name(other->number) + " " +
             Whereabouts(*other));
  is_dropped_ = true;
  return false;
}

std::string BlockRunner::Whereabouts(const Thread& thread) const {
  switch (thread.state) {
    case Thread::State::kReady:
      return "runs";
    case Thread::State::kAtBarrier:
      return "waits in __syncthreads at " + ToString(thread.place);
    case Thread::State::kInWarpOp: {
      char mask[16];
      std::snprintf(mask, sizeof(mask), "%#x", thread.mask);
      return std::string("waits in ") + OpName(thread.op) + " with mask " +
             mask + " at " + ToString(thread.place);
    }
    case Thread::State::kExited:
      return "has returned";
  }
  return "";
}

void BlockRunner::ReportMissingLane(const Thread& waiting) {
  const uint32_t first = waiting.who.warp * kWarpLanes;
  for (uint32_t lanes = waiting.mask; lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(lanes));
    std::string missing;
    if (first + lane >= n_threads_) {
      missing = "lane " + std::to_string(lane) + " is past the block's end";
    } else {
      const Thread& other = *threads_[first + lane];
      if (other.state == Thread::State::kInWarpOp && other.op == waiting.op &&
          other.mask == waiting.mask) {
        continue;
      }
      missing = Name(first + lane) + ", lane " + std::to_string(lane) + ", " +
                Whereabouts(other);
    }
    Report(Fault::kMissingLane, waiting,
           Whereabouts(waiting) + " while " + missing);
    return;
  }
}

void BlockRunner::WaitAtBarrier(Thread& thread, Place place) {
  thread.state = Thread::State::kAtBarrier;
  thread.place = place;
  thread.fiber.Suspend();
}

void BlockRunner::Report(Fault fault, const Thread& thread, std::string text,
                         const void* pc) {
  ReportLog::Get().Add({.fault = fault,
                        .kernel = launch_->grid.kernel_name,
                        .block = block_index_,
                        .thread = Index(thread.number),
                        .text = std::move(text),
                        .where = ""},
                       pc);
}

void BlockRunner::Drop(Thread& thread) {
  is_dropped_ = true;
  for (;;) thread.fiber.Suspend();
}

uint3 BlockRunner::Index(uint32_t number) const {
  return Split(number, launch_->grid.block);
}

std::string BlockRunner::Name(uint32_t number) const {
  const uint3 index = Index(number);
  return "thread (" + std::to_string(index.x) + ", " + std::to_string(index.y) +
         ", " + std::to_string(index.z) + ")";
}

const uint3& ThreadIndex() { return Current().thread; }
const uint3& BlockIndex() { return Current().block; }
const dim3& BlockSize() { return Current().block_size; }
const dim3& GridSize() { return Current().grid_size; }

void BlockBarrier(Place place) {
  running->runner->WaitAtBarrier(*running, place);
}

}  // namespace torpor::kernels::emulation
