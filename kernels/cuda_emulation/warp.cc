// SPDX-License-Identifier: Apache-2.0
//
// Operations of a warp: the last lane to come finishes them for all.

#include <algorithm>
#include <string>

#include "kernels/cuda_emulation/block.h"

namespace torpor::kernels::emulation {

uint64_t BlockRunner::WaitInWarp(Thread& thread, WarpOp op, uint32_t mask,
                                 uint64_t value, int operand, Place place) {
  thread.place = place;
  thread.op = op;
  thread.mask = mask;
  thread.value = value;
  thread.operand = operand;
  thread.state = Thread::State::kInWarpOp;
  const uint32_t warp = thread.who.warp;
  bool all_came = (mask >> thread.who.lane & 1u) != 0;
  for (uint32_t lanes = mask; all_came && lanes != 0; lanes &= lanes - 1) {
    const uint32_t other =
        warp * kWarpLanes + static_cast<uint32_t>(__builtin_ctz(lanes));
    all_came = other < n_threads_ &&
               threads_[other]->state == Thread::State::kInWarpOp &&
               threads_[other]->mask == mask && threads_[other]->op == op;
  }
  if (all_came) {
    FinishWarpOp(warp, mask);
  } else {
    thread.fiber.Suspend();
  }
  return thread.result;
}

void BlockRunner::FinishWarpOp(uint32_t warp, uint32_t mask) {
  if (threads_[warp * kWarpLanes + static_cast<uint32_t>(__builtin_ctz(mask))]
          ->op == WarpOp::kSync) {
    Synchronise(warp, mask);
  }
  for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    Thread& thread = *threads_[warp * kWarpLanes +
                               static_cast<uint32_t>(__builtin_ctz(lanes))];
    thread.result = ResultOf(thread);
  }
  for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    threads_[warp * kWarpLanes + static_cast<uint32_t>(__builtin_ctz(lanes))]
        ->state = Thread::State::kReady;
  }
}

// Each lane of the mask has then seen what any of them had.
void BlockRunner::Synchronise(uint32_t warp, uint32_t mask) {
  auto& seen = seen_[warp];
  Lanes all{};
  for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(lanes));
    Who& who = threads_[warp * kWarpLanes + lane]->who;
    seen[lane][lane] = ++who.clock;
    for (uint32_t i = 0; i < kWarpLanes; ++i) {
      all[i] = std::max(all[i], seen[lane][i]);
    }
  }
  for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    seen[static_cast<uint32_t>(__builtin_ctz(lanes))] = all;
  }
}

uint64_t BlockRunner::ResultOf(const Thread& thread) const {
  const auto lane = static_cast<int>(thread.who.lane);
  int from = lane;
  switch (thread.op) {
    case WarpOp::kSync:
      return 0;
    case WarpOp::kBallot: {
      uint64_t ballot = 0;
      for (uint32_t lanes = thread.mask; lanes != 0; lanes &= lanes - 1) {
        const auto other = static_cast<uint32_t>(__builtin_ctz(lanes));
        ballot |= threads_[thread.who.warp * kWarpLanes + other]->value
                  << other;
      }
      return ballot;
    }
    case WarpOp::kShuffle:
      from = thread.operand & 31;
      break;
    case WarpOp::kShuffleXor:
      from = (lane ^ thread.operand) & 31;
      break;
    case WarpOp::kShuffleUp:
      from = lane - thread.operand;
      if (from < 0) from = lane;
      break;
    case WarpOp::kShuffleDown:
      from = lane + thread.operand;
      if (from > 31) from = lane;
      break;
  }
  return threads_[thread.who.warp * kWarpLanes + static_cast<uint32_t>(from)]
      ->value;
}

uint64_t WarpCollective(WarpOp op, uint32_t mask, uint64_t value, int operand,
                        Place place) {
  return running->runner->WaitInWarp(*running, op, mask, value, operand, place);
}

}  // namespace torpor::kernels::emulation
