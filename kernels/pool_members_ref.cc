// SPDX-License-Identifier: Apache-2.0

#include "kernels/pool_members.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace torpor::kernels {
namespace {

void PoolGroup(const uint8_t* const* members, int64_t n, int64_t dim,
               float* out) {
  const auto value = [&](int64_t t, int64_t i) {
    float v = 0;
    std::memcpy(&v, members[t] + i * static_cast<int64_t>(sizeof(v)),
                sizeof(v));
    return v;
  };
  for (int64_t i = 0; i < dim; ++i) {
    float max = value(0, dim + i);
    for (int64_t t = 1; t < n; ++t) max = std::max(max, value(t, dim + i));
    float sum = 0;
    float acc = 0;
    for (int64_t t = 0; t < n; ++t) {
      // In double, rounded once: the library's float exp differs between
      // processors.
      const auto e = static_cast<float>(
          std::exp(static_cast<double>(value(t, dim + i) - max)));
      sum += e;
      acc += e * value(t, i);
    }
    out[i] = acc / sum;
  }
}

}  // namespace

void PoolMembersRef(const PoolMembersParams& p) {
  for (int64_t g = 0; g < p.n_groups; ++g) {
    PoolGroup(p.members + g * p.n_members, p.n_members, p.dim,
              p.out + g * p.dim);
  }
}

}  // namespace torpor::kernels
