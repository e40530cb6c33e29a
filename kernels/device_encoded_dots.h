// SPDX-License-Identifier: Apache-2.0
//
// Dot products of 32 queries and 128 encoded keys by a block of 256 threads,
// for kernels whose keys are rows of kernels/row_codec.h. Each thread has 4
// queries x 4 keys in registers; 32 channels at a time of both stand in shared
// memory, channels outermost, so that a channel costs a thread two 16-byte
// loads for 16 products.
// Channels ascend in every sum, one fused multiply-add each: a product's bits
// depend on its query and its key alone (design D9).

#ifndef TORPOR_KERNELS_DEVICE_ENCODED_DOTS_H_
#define TORPOR_KERNELS_DEVICE_ENCODED_DOTS_H_

#include <cstdint>

#include "kernels/cuda_simt.h"
#include "kernels/device_row_codec.h"

namespace torpor::kernels::device {

inline constexpr int kDotThreads = 256;
inline constexpr int kDotQueries = 32;
inline constexpr int kDotKeys = 128;
inline constexpr int kDotChannels = 32;
// Floats between channels of queries: more than there are, so that writes of
// one query's channels spread over the banks.
inline constexpr int kDotQueryStride = kDotQueries + 4;
inline constexpr int kDotFloats = kDotChannels * (kDotKeys + kDotQueryStride);

// A key's codes and where its scales begin. No row: its values are zeros.
struct EncodedKey {
  const uint8_t* row = nullptr;
  RowFormat format = RowFormat::kMainFp4;
  int scales_at = 0;
};

// Which of the block's products a thread has: queries and keys, four of each.
TORPOR_DEVICE_ONLY inline int DotQuery() {
  return 4 * static_cast<int>(threadIdx.x % 8);
}
TORPOR_DEVICE_ONLY inline int DotKey() {
  return 4 * static_cast<int>(threadIdx.x / 8);
}

// Channels [at, at + n) of the keys, n 16 or 32. Two threads share a key.
template <class KeyAt>
TORPOR_DEVICE_ONLY inline void LoadDotKeys(const KeyAt& key_at, int at, int n,
                                           float* keys) {
  const auto key = static_cast<int>(threadIdx.x % kDotKeys);
  const int first = 16 * static_cast<int>(threadIdx.x / kDotKeys);
  if (first >= n) return;
  const EncodedKey encoded = key_at(key);
  for (int i = first; i < first + 16; i += 8) {
    float values[8] = {};
    if (encoded.row != nullptr) {
      DecodeChannels(encoded.format, encoded.row, encoded.scales_at, at + i,
                     values);
    }
    for (int j = 0; j < 8; ++j) keys[(i + j) * kDotKeys + key] = values[j];
  }
}

// The same of n_queries <= 32 rows of f32, `dim` apart; zeros in place of the
// others. `q` is aligned to 16 bytes.
TORPOR_DEVICE_ONLY inline void LoadDotQueries(const float* q, int dim,
                                              int n_queries, int at, int n,
                                              float* queries) {
  const auto query = static_cast<int>(threadIdx.x / 8);
  const int channel = 4 * static_cast<int>(threadIdx.x % 8);
  if (channel >= n) return;
  const float4 v =
      query < n_queries
          ? *reinterpret_cast<const float4*>(q + query * dim + at + channel)
          : make_float4(0, 0, 0, 0);
  const float values[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; ++i) {
    queries[(channel + i) * kDotQueryStride + query] = values[i];
  }
}

// acc[i][j] = <query DotQuery() + i, key DotKey() + j>. key_at(k) gives the
// k-th key of 128; `shared` holds kDotFloats and may be used before and after.
// REQUIRES: dim a multiple of 16; called by the whole block.
template <class KeyAt>
TORPOR_DEVICE_ONLY inline void EncodedDots(const KeyAt& key_at, const float* q,
                                           int dim, int n_queries,
                                           float* shared, float (&acc)[4][4]) {
  float* const keys = shared;
  float* const queries = shared + kDotChannels * kDotKeys;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) acc[i][j] = 0.0f;
  }
  for (int at = 0; at < dim; at += kDotChannels) {
    const int n = dim - at < kDotChannels ? dim - at : kDotChannels;
    __syncthreads();
    LoadDotKeys(key_at, at, n, keys);
    LoadDotQueries(q, dim, n_queries, at, n, queries);
    __syncthreads();
    for (int c = 0; c < n; ++c) {
      const float4 a = *reinterpret_cast<const float4*>(
          queries + c * kDotQueryStride + DotQuery());
      const float4 b =
          *reinterpret_cast<const float4*>(keys + c * kDotKeys + DotKey());
      const float from_queries[4] = {a.x, a.y, a.z, a.w};
      const float from_keys[4] = {b.x, b.y, b.z, b.w};
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          acc[i][j] = fmaf(from_queries[i], from_keys[j], acc[i][j]);
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_ENCODED_DOTS_H_
