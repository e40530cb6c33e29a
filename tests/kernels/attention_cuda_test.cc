// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of attention.h: against the reference, and a
// row's bits against those it has in any other company.

#include "kernels/attention_cuda.h"

#include <algorithm>
#include <memory>

#include "kernels/kv_page_cuda.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

// K and V of one sequence's layer, twice: pages of the host and of a device.
// Slots without a token are NaN on the host and unwritten on the device.
class Cache {
 public:
  Cache(const KvShape& shape, int64_t n_pages) : shape_(shape) {
    for (int64_t i = 0; i < n_pages; ++i) {
      host_.emplace_back(shape.page_bytes(), 0xff);
      host_pages_.push_back(host_.back().data());
      device_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(
          shape.page_bytes(), "page " + std::to_string(i)));
      device_pages_.push_back(device_.back()->data());
    }
    table_ = std::make_unique<DeviceBuffer<const uint8_t*>>(device_pages_,
                                                            "page table");
  }

  void Put(int64_t pos, std::span<const float> k, std::span<const float> v) {
    const auto page = static_cast<size_t>(pos / kPageTokens) % host_.size();
    const int64_t token = pos % kPageTokens;
    if (shape_.dtype == DType::kBf16) {
      Put(page, token, ToBf16s(k), ToBf16s(v));
    } else {
      Put(page, token, std::vector<float>(k.begin(), k.end()),
          std::vector<float>(v.begin(), v.end()));
    }
  }

  [[nodiscard]] KvView host() const {
    return {host_pages_.data(), static_cast<int64_t>(host_pages_.size())};
  }
  [[nodiscard]] KvView device() const {
    return {table_->data(), static_cast<int64_t>(device_pages_.size())};
  }

 private:
  template <typename T>
  void Put(size_t page, int64_t token, const std::vector<T>& k,
           const std::vector<T>& v) {
    PutKRow(shape_, host_[page].data(), token, k.data());
    PutVRow(shape_, host_[page].data(), token, v.data());
    for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
      for (const bool is_v : {false, true}) {
        const T* row = (is_v ? v : k).data() + head * shape_.head_dim;
        device_[page]->Upload(
            {reinterpret_cast<const uint8_t*>(row),
             static_cast<size_t>(shape_.head_dim) * sizeof(T)},
            static_cast<size_t>(DeviceKvIndex(shape_, is_v, head, token)) *
                sizeof(T));
      }
    }
  }

  KvShape shape_;
  std::vector<std::vector<uint8_t>> host_;
  std::vector<const uint8_t*> host_pages_;
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> device_;
  std::vector<const uint8_t*> device_pages_;
  std::unique_ptr<DeviceBuffer<const uint8_t*>> table_;
};

// Keys of a causal row, floored at `floor`.
KeyRange CausalKeys(int64_t pos, int64_t window, int64_t floor = 0) {
  const int64_t begin =
      window == 0 ? 0 : std::max<int64_t>(0, pos - window + 1);
  return {std::max(begin, floor), pos + 1};
}

// Rows of one sequence.
struct Rows {
  const Cache* cache = nullptr;
  std::vector<KeyRange> keys;
};

struct Batch {
  KvShape shape;
  int64_t n_heads = 1;
  float softcap = 0.0f;
  // [n_heads], or empty.
  std::vector<float> sinks;
  std::vector<Rows> segments;
  // [rows, n_heads, head_dim].
  std::vector<float> q;

  [[nodiscard]] AttentionParams params() const {
    return {.shape = shape,
            .n_heads = n_heads,
            .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
            .softcap = softcap};
  }
};

std::vector<float> Reference(const Batch& batch) {
  std::vector<AttentionSegment> segments;
  int64_t rows = 0;
  for (const Rows& s : batch.segments) {
    const auto n = static_cast<int64_t>(s.keys.size());
    segments.push_back({rows, n, s.keys.data(), s.cache->host()});
    rows += n;
  }
  std::vector<float> out(batch.q.size(), kNan);
  AttentionParams p = batch.params();
  if (!batch.sinks.empty()) p.sinks = batch.sinks.data();
  p.q = batch.q.data();
  p.out = out.data();
  p.segments = segments.data();
  p.n_segments = static_cast<int64_t>(segments.size());
  AttentionRef(p);
  return out;
}

// `turns` above 1 gives a workspace for about one tile in so many.
template <typename T = float>
std::vector<T> Emulated(const Batch& batch, size_t turns = 1) {
  std::vector<AttentionSegment> segments;
  std::vector<std::unique_ptr<DeviceBuffer<KeyRange>>> keys;
  AttentionCudaParams params;
  for (const Rows& s : batch.segments) {
    const auto n = static_cast<int64_t>(s.keys.size());
    keys.push_back(std::make_unique<DeviceBuffer<KeyRange>>(s.keys, "keys"));
    segments.push_back(
        {params.n_rows, n, keys.back()->data(), s.cache->device()});
    params.n_rows += n;
    for (const KeyRange& range : s.keys) {
      params.max_splits =
          std::max(params.max_splits, (range.end - 1) / kSplitTokens -
                                          range.begin / kSplitTokens + 1);
    }
  }
  const DeviceBuffer<AttentionSegment> table(segments, "segments");
  const DeviceBuffer<float> sinks(batch.sinks, "sinks");
  const DeviceBuffer<float> q(batch.q, "q");
  const DeviceBuffer<T> out(batch.q.size(), "out");
  params.attention = batch.params();
  if (!batch.sinks.empty()) params.attention.sinks = sinks.data();
  params.attention.q = q.data();
  params.attention.out = out.data();
  params.attention.out_dtype = sizeof(T) == 2 ? DType::kBf16 : DType::kF32;
  params.attention.segments = table.data();
  params.attention.n_segments = static_cast<int64_t>(segments.size());
  const AttentionWorkspace workspace = AttentionWorkspaceOf(params);
  params.workspace_bytes =
      std::max(workspace.bytes_min, workspace.bytes_max / turns);
  const DeviceBuffer<uint8_t> space(params.workspace_bytes, "workspace");
  params.workspace = space.data();
  EXPECT_EQ(AttentionCuda(params, nullptr), 0);
  return out.Download();
}

class AttentionCudaTest : public CudaTest {
 protected:
  std::unique_ptr<Cache> Filled(const KvShape& shape, int64_t n_tokens) {
    auto cache = std::make_unique<Cache>(
        shape, (n_tokens + kPageTokens - 1) / kPageTokens);
    for (int64_t pos = 0; pos < n_tokens; ++pos) {
      cache->Put(pos, RandomFloats(random_, shape.row_elements()),
                 RandomFloats(random_, shape.row_elements()));
    }
    return cache;
  }

  // Rows [first, first + n) of a causal sequence; q of any random values.
  Batch Causal(const KvShape& shape, int64_t n_heads, const Cache& cache,
               int64_t first, int64_t n, int64_t window, int64_t floor = 0) {
    Batch batch{.shape = shape, .n_heads = n_heads, .segments = {{&cache, {}}}};
    for (int64_t i = 0; i < n; ++i) {
      batch.segments[0].keys.push_back(CausalKeys(first + i, window, floor));
    }
    batch.q = RandomFloats(random_, n * n_heads * shape.head_dim);
    return batch;
  }

  // Rows [first, first + n) of a batch of one segment.
  static Batch Some(const Batch& all, int64_t first, int64_t n) {
    Batch batch = all;
    const auto& keys = all.segments[0].keys;
    batch.segments[0].keys.assign(keys.begin() + first,
                                  keys.begin() + first + n);
    const int64_t row = all.n_heads * all.shape.head_dim;
    batch.q.assign(all.q.begin() + first * row,
                   all.q.begin() + (first + n) * row);
    return batch;
  }

  // In bf16 the numerators are rounded to 8 bits before their products.
  static double Tolerance(DType dtype) {
    return dtype == DType::kBf16 ? 8e-3 : 3e-6;
  }

  testing::Random random_;
};

struct Case {
  int64_t n_heads;
  int64_t n_kv_heads;
  int64_t head_dim;
  int64_t n_tokens;
  int64_t n_rows;
  int64_t window;  // 0 = full
  float softcap = 0.0f;
};

TEST_F(AttentionCudaTest, AgreesWithTheReferenceUnderEverySchedule) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const Case& c : {Case{1, 1, 16, 1, 1, 0},
                          {4, 2, 32, 65, 20, 0, 2.0f},
                          {4, 1, 48, 200, 9, 8},
                          {3, 3, 64, 130, 3, 7},
                          {40, 1, 80, 70, 2, 0},
                          {4, 1, 128, 90, 10, 64, 3.0f},
                          {2, 1, 256, 70, 1, 0},
                          {2, 2, 272, 66, 9, 20},
                          {1, 1, 512, 65, 2, 0}}) {
      SCOPED_TRACE("heads " + std::to_string(c.n_heads) + "/" +
                   std::to_string(c.n_kv_heads) + " x " +
                   std::to_string(c.head_dim) + ", dtype " +
                   std::to_string(static_cast<int>(dtype)));
      const KvShape shape{dtype, c.n_kv_heads, c.head_dim};
      const auto cache = Filled(shape, c.n_tokens);
      Batch batch = Causal(shape, c.n_heads, *cache, c.n_tokens - c.n_rows,
                           c.n_rows, c.window);
      batch.softcap = c.softcap;
      const auto wanted = Reference(batch);
      std::vector<float> bits;
      ForEachSchedule([&] {
        const auto got = Emulated(batch);
        EXPECT_TRUE(Near(got, wanted, Tolerance(dtype)));
        if (bits.empty()) bits = got;
        EXPECT_TRUE(SameBits(got, bits));
      });
      EXPECT_EQ(Emulated<Bf16>(batch), ToBf16s(bits));
    }
  }
}

TEST_F(AttentionCudaTest, ManySplitsAgreeWithTheReference) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const KvShape shape{dtype, 1, 16};
    const auto cache = Filled(shape, 2 * kSplitTokens + 70);
    Batch batch{.shape = shape, .n_heads = 2, .segments = {{cache.get(), {}}}};
    for (const int64_t end : {kSplitTokens - 1, kSplitTokens, kSplitTokens + 1,
                              2 * kSplitTokens + 1, 2 * kSplitTokens + 70}) {
      batch.segments[0].keys.push_back({0, end});
      batch.segments[0].keys.push_back({std::max<int64_t>(0, end - 600), end});
    }
    batch.q = RandomFloats(random_, batch.segments[0].keys.size() * 2 * 16);
    EXPECT_TRUE(Near(Emulated(batch), Reference(batch), Tolerance(dtype)));
  }
}

// Design D9: a row's bits ignore the rows beside it, tiles, and turns.
TEST_F(AttentionCudaTest, SinksJoinTheSoftmaxOfTheirHead) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int64_t n_tokens : {70, 1100}) {
      const KvShape shape{dtype, 3, 32};
      const auto cache = Filled(shape, n_tokens);
      Batch batch = Causal(shape, 6, *cache, n_tokens - 3, 3, 0);
      batch.sinks = {-inf, -1.5f, 0.5f, 3.0f, 90.0f, 0.0f};
      const auto wanted = Reference(batch);
      ForEachSchedule([&] {
        EXPECT_TRUE(Near(Emulated(batch), wanted, Tolerance(dtype)))
            << n_tokens;
      });
    }
  }
}

TEST_F(AttentionCudaTest, RowsIgnoreTilesBatchAndWorkspace) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int64_t window : {0, 70}) {
      const KvShape shape{dtype, 2, 32};
      const auto cache = Filled(shape, 1100);
      constexpr int64_t kFirst = 1000;
      constexpr int64_t kRows = 60;
      const Batch batch = Causal(shape, 6, *cache, kFirst, kRows, window);
      const auto all = Emulated(batch);
      EXPECT_TRUE(SameBits(Emulated(batch, 3), all)) << "in turns";
      const int64_t row = 6 * 32;
      for (const auto& [first, n] : std::vector<std::pair<int64_t, int64_t>>{
               {0, 1}, {23, 1}, {24, 1}, {59, 1}, {5, 2}, {22, 13}}) {
        EXPECT_TRUE(SameBits(Emulated(Some(batch, first, n)),
                             std::span(all).subspan(first * row, n * row)))
            << n << " rows from " << first << ", window " << window;
      }
    }
  }
}

// Poison everywhere a row may not look, unwritten memory beyond.
TEST_F(AttentionCudaTest, KeysOutsideTheRangeReachNothing) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const KvShape shape{dtype, 2, 32};
    for (const int64_t floor : {100, 127, 128, 129}) {
      auto cache = Filled(shape, 200);
      const Batch batch = Causal(shape, 4, *cache, floor, 30, 9, floor);
      const auto expected = Emulated(batch);
      const std::vector<float> nan(shape.row_elements(), kNan);
      for (int64_t pos = 0; pos < 200; ++pos) {
        if (pos < floor || pos >= floor + 30) cache->Put(pos, nan, nan);
      }
      EXPECT_TRUE(SameBits(Emulated(batch), expected)) << floor;
    }
    // Rows of one tile see different keys: a NaN of the later ones' stays
    // theirs.
    auto cache = Filled(shape, 70);
    const std::vector<float> nan(shape.row_elements(), kNan);
    cache->Put(66, nan, nan);
    const Batch batch = Causal(shape, 4, *cache, 60, 8, 5);
    const auto got = Emulated(batch);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), i / (4 * 32) >= 6) << i;
    }
  }
}

TEST_F(AttentionCudaTest, ANanKeyInsideTheRangeReachesTheRow) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const KvShape shape{dtype, 1, 16};
    for (const int64_t at : {0, 15, 63, 64, 99}) {
      for (const bool in_k : {true, false}) {
        auto cache = Filled(shape, 100);
        const std::vector<float> nan(16, kNan);
        const std::vector<float> one(16, 1.0f);
        cache->Put(at, in_k ? nan : one, in_k ? one : nan);
        for (const float v : Emulated(Causal(shape, 2, *cache, 99, 1, 0))) {
          EXPECT_TRUE(std::isnan(v)) << at << (in_k ? " K" : " V");
        }
      }
    }
  }
}

TEST_F(AttentionCudaTest, ARingOfPagesServesAWindow) {
  const KvShape shape{DType::kBf16, 1, 32};
  constexpr int64_t kWindow = 100;
  Cache ring(shape, 3);
  Cache all(shape, 20);
  for (int64_t pos = 0; pos < 1100; ++pos) {
    const auto k = RandomFloats(random_, 32);
    const auto v = RandomFloats(random_, 32);
    ring.Put(pos, k, v);
    all.Put(pos, k, v);
    if (pos % 157 != 0 && pos != 1024 && pos != 1099) continue;
    Batch batch = Causal(shape, 2, ring, pos, 1, kWindow);
    const auto from_ring = Emulated(batch);
    batch.segments[0].cache = &all;
    ASSERT_TRUE(SameBits(from_ring, Emulated(batch))) << pos;
  }
}

TEST_F(AttentionCudaTest, RaggedSegmentsEqualEachAlone) {
  const KvShape shape{DType::kF32, 2, 16};
  std::vector<std::unique_ptr<Cache>> caches;
  Batch batch{.shape = shape, .n_heads = 4};
  std::vector<float> alone;
  for (const int64_t n : {1, 0, 40, 3, 69}) {
    caches.push_back(Filled(shape, 200));
    const Batch one = Causal(shape, 4, *caches.back(), 200 - n, n, 33);
    if (n > 0) {
      const auto out = Emulated(one);
      alone.insert(alone.end(), out.begin(), out.end());
    }
    batch.segments.push_back(one.segments[0]);
    batch.q.insert(batch.q.end(), one.q.begin(), one.q.end());
  }
  ForEachSchedule([&] {
    EXPECT_TRUE(SameBits(Emulated(batch), alone));
    EXPECT_TRUE(SameBits(Emulated(batch, 100), alone)) << "in turns";
  });
}

TEST_F(AttentionCudaTest, WhatIsNotSupportedIsRefused) {
  AttentionCudaParams p;
  p.attention.shape = {DType::kF32, 1, 16};
  p.attention.n_heads = 1;
  p.attention.n_segments = 1;
  EXPECT_EQ(AttentionCuda(p, nullptr), 0) << "no rows";
  p.n_rows = 1;
  p.max_splits = 1;
  p.workspace_bytes = AttentionWorkspaceOf(p).bytes_min - 1;
  EXPECT_EQ(AttentionCuda(p, nullptr), 1) << "a workspace too small";
  p.workspace_bytes = AttentionWorkspaceOf(p).bytes_min;
  p.max_splits = 0;
  EXPECT_EQ(AttentionCuda(p, nullptr), 1) << "no split";
  p.max_splits = 1;
  p.attention.n_heads = 3;
  p.attention.shape.n_kv_heads = 2;
  EXPECT_EQ(AttentionCuda(p, nullptr), 1) << "heads that do not divide";
  p.attention.shape.n_kv_heads = 1;
  for (const int64_t head_dim : {24, 528}) {
    p.attention.shape.head_dim = head_dim;
    p.workspace_bytes = AttentionWorkspaceOf(p).bytes_min;
    EXPECT_EQ(AttentionCuda(p, nullptr), 1) << head_dim;
  }
}

}  // namespace
}  // namespace torpor::kernels
