// SPDX-License-Identifier: Apache-2.0
//
// K and V of 64 consecutive tokens of one layer in device memory:
//   [2: K, V][n_kv_heads][64 tokens][head_dim] of the KV dtype, row-major
// Pages are aligned to absolute positions as those of kernels/kv_page.h are,
// have their size (KvShape::page_bytes), and stand at multiples of 16 bytes.

#ifndef TORPOR_KERNELS_KV_PAGE_CUDA_H_
#define TORPOR_KERNELS_KV_PAGE_CUDA_H_

#include <cstdint>

#include "kernels/device_function.h"
#include "kernels/kv_page.h"

namespace torpor::kernels {

// Elements before the row of `token` of one head's K (or V) in a page.
TORPOR_DEVICE inline int64_t DeviceKvIndex(const KvShape& shape, bool is_v,
                                           int64_t head, int64_t token) {
  const int64_t plane = is_v ? shape.n_kv_heads + head : head;
  return (plane * kPageTokens + token) * shape.head_dim;
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_KV_PAGE_CUDA_H_
