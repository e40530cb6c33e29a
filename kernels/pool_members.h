// SPDX-License-Identifier: Apache-2.0
//
// Tokens of a group pooled into one latent (DeepSeek V4.1 section 2.6): per
// channel a softmax over the members' gates weighs their values.
//   out_i = sum_t e_t value_t / sum_t e_t,  e_t = exp(gate_t - max gate)
// in f32, both sums over ascending members; the exponential in double, rounded
// once. Floor: each member read once, each latent written once.

#ifndef TORPOR_KERNELS_POOL_MEMBERS_H_
#define TORPOR_KERNELS_POOL_MEMBERS_H_

#include <cstdint>

namespace torpor::kernels {

struct PoolMembersParams {
  // [n_groups, n_members], the host's: a member is [values | gates], dim f32
  // each; on the CPU of any alignment.
  const uint8_t* const* members = nullptr;
  int64_t n_groups = 0;
  // REQUIRES: at least 1.
  int64_t n_members = 0;
  int64_t dim = 0;
  float* out = nullptr;  // [n_groups, dim] f32
};

void PoolMembersRef(const PoolMembersParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_POOL_MEMBERS_H_
