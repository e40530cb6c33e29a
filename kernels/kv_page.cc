// SPDX-License-Identifier: Apache-2.0

#include "kernels/kv_page.h"

#include <cstring>

namespace torpor::kernels {
namespace {

// Elements of one head of K: the same walk for reading and writing.
template <typename T, typename Move>
void WalkK(const KvShape& shape, int64_t token, Move move) {
  const int64_t group = token / 16;
  const int64_t lane = token % 16;
  constexpr int64_t kPerStep = sizeof(T) == 2 ? 2 : 1;
  const int64_t steps = shape.head_dim / kPerStep;
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const auto base =
        static_cast<int64_t>(2 * shape.head_bytes() / sizeof(T)) * head;
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t at = base + ((group * steps + s) * 16 + lane) * kPerStep;
      for (int64_t i = 0; i < kPerStep; ++i) {
        move(at + i, head * shape.head_dim + s * kPerStep + i);
      }
    }
  }
}

template <typename T, typename Move>
void WalkV(const KvShape& shape, int64_t token, Move move) {
  constexpr int64_t kPerStep = sizeof(T) == 2 ? 2 : 1;
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const auto base =
        static_cast<int64_t>(shape.head_bytes() / sizeof(T)) * (2 * head + 1) +
        (token / kPerStep) * shape.head_dim * kPerStep + token % kPerStep;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      move(base + d * kPerStep, head * shape.head_dim + d);
    }
  }
}

template <typename T>
void Put(const KvShape& shape, uint8_t* page, int64_t token, const void* row,
         bool is_k) {
  // A row may stand anywhere, as in a message; a page is aligned.
  auto* out = reinterpret_cast<T*>(page);
  const auto* in = static_cast<const uint8_t*>(row);
  const auto move = [&](int64_t at, int64_t from) {
    std::memcpy(&out[at], in + static_cast<size_t>(from) * sizeof(T),
                sizeof(T));
  };
  is_k ? WalkK<T>(shape, token, move) : WalkV<T>(shape, token, move);
}

template <typename T>
void Get(const KvShape& shape, const uint8_t* page, int64_t token, void* row,
         bool is_k) {
  const auto* in = reinterpret_cast<const T*>(page);
  auto* out = static_cast<uint8_t*>(row);
  const auto move = [&](int64_t at, int64_t to) {
    std::memcpy(out + static_cast<size_t>(to) * sizeof(T), &in[at], sizeof(T));
  };
  is_k ? WalkK<T>(shape, token, move) : WalkV<T>(shape, token, move);
}

}  // namespace

void PutKRow(const KvShape& shape, uint8_t* page, int64_t token,
             const void* row) {
  shape.dtype == DType::kBf16 ? Put<uint16_t>(shape, page, token, row, true)
                              : Put<uint32_t>(shape, page, token, row, true);
}

void PutVRow(const KvShape& shape, uint8_t* page, int64_t token,
             const void* row) {
  shape.dtype == DType::kBf16 ? Put<uint16_t>(shape, page, token, row, false)
                              : Put<uint32_t>(shape, page, token, row, false);
}

void GetKRow(const KvShape& shape, const uint8_t* page, int64_t token,
             void* row) {
  shape.dtype == DType::kBf16 ? Get<uint16_t>(shape, page, token, row, true)
                              : Get<uint32_t>(shape, page, token, row, true);
}

void GetVRow(const KvShape& shape, const uint8_t* page, int64_t token,
             void* row) {
  shape.dtype == DType::kBf16 ? Get<uint16_t>(shape, page, token, row, false)
                              : Get<uint32_t>(shape, page, token, row, false);
}

}  // namespace torpor::kernels
