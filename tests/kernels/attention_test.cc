// SPDX-License-Identifier: Apache-2.0

#include "kernels/attention.h"

#include <gtest/gtest.h>

#include "kernels/cpu_ops.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

// One layer's K and V of some tokens, in pages whose other slots are NaN.
class Cache {
 public:
  Cache(const KvShape& shape, int64_t n_pages) : shape_(shape) {
    for (int64_t i = 0; i < n_pages; ++i) {
      storage_.emplace_back(shape.page_bytes());
      Poison(&storage_.back());
    }
  }

  void Put(int64_t pos, std::span<const float> k, std::span<const float> v) {
    uint8_t* page = storage_[(pos / kPageTokens) % storage_.size()].data();
    if (shape_.dtype == DType::kBf16) {
      PutKRow(shape_, page, pos % kPageTokens, ToBf16s(k).data());
      PutVRow(shape_, page, pos % kPageTokens, ToBf16s(v).data());
    } else {
      PutKRow(shape_, page, pos % kPageTokens, k.data());
      PutVRow(shape_, page, pos % kPageTokens, v.data());
    }
  }

  // Valid until the next call; of this object's own pages, copied or not.
  [[nodiscard]] KvView view() const {
    pages_.clear();
    for (const auto& page : storage_) pages_.push_back(page.data());
    return {pages_.data(), static_cast<int64_t>(pages_.size())};
  }

 private:
  void Poison(std::vector<uint8_t>* bytes) const {
    // 0xff.. is a NaN in either dtype.
    std::fill(bytes->begin(), bytes->end(), 0xff);
  }

  KvShape shape_;
  std::vector<std::vector<uint8_t>> storage_;
  mutable std::vector<const uint8_t*> pages_;
};

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  testing::Random random_;
};

INSTANTIATE_TEST_SUITE_P(Paths, AttentionTest,
                         ::testing::ValuesIn(AvailableIsas()), IsaParamName);

struct Case {
  DType dtype;
  int64_t n_heads;
  int64_t n_kv_heads;
  int64_t head_dim;
  int64_t n_tokens;
  int64_t window;  // 0 = full
};

// Keys of a causal row, floored at `floor`.
KeyRange CausalKeys(int64_t pos, int64_t window, int64_t floor = 0) {
  const int64_t begin =
      window == 0 ? 0 : std::max<int64_t>(0, pos - window + 1);
  return {std::max(begin, floor), pos + 1};
}

class Fixture {
 public:
  Fixture(testing::Random& random, const Case& c)
      : case_(c),
        shape_{c.dtype, c.n_kv_heads, c.head_dim},
        cache_(shape_, (c.n_tokens + kPageTokens - 1) / kPageTokens) {
    for (int64_t pos = 0; pos < c.n_tokens; ++pos) {
      cache_.Put(pos, RandomFloats(random, shape_.row_elements()),
                 RandomFloats(random, shape_.row_elements()));
    }
    q_ = RandomFloats(random, c.n_tokens * c.n_heads * c.head_dim);
  }

  // Rows [first, first + n) as one segment on `ops`, or by the reference.
  std::vector<float> Run(CpuOps* ops, int64_t first, int64_t n,
                         float softcap = 0.0f, int64_t floor = 0,
                         const float* sinks = nullptr) const {
    std::vector<KeyRange> keys;
    for (int64_t i = 0; i < n; ++i) {
      keys.push_back(CausalKeys(first + i, case_.window, floor));
    }
    const AttentionSegment segment{0, n, keys.data(), cache_.view()};
    const int64_t row = case_.n_heads * case_.head_dim;
    std::vector<float> out(n * row, kNan);
    const AttentionParams p{
        .shape = shape_,
        .n_heads = case_.n_heads,
        .scale = 1.0f / std::sqrt(static_cast<float>(case_.head_dim)),
        .softcap = softcap,
        .sinks = sinks,
        .q = q_.data() + first * row,
        .out = out.data(),
        .segments = &segment,
        .n_segments = 1};
    ops != nullptr ? ops->Attention(p) : AttentionRef(p);
    return out;
  }

  Cache& cache() { return cache_; }
  const KvShape& shape() const { return shape_; }
  const std::vector<float>& q() const { return q_; }

 private:
  const Case case_;
  const KvShape shape_;
  Cache cache_;
  std::vector<float> q_;
};

TEST_P(AttentionTest, AgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const Case& c : {Case{dtype, 1, 1, 16, 1, 0},
                          {dtype, 4, 2, 32, 65, 0},
                          {dtype, 4, 1, 48, 200, 8},
                          {dtype, 3, 3, 16, 130, 7},
                          {dtype, 40, 1, 80, 70, 0},
                          {dtype, 4, 1, 256, 90, 64}}) {
      Fixture fixture(random_, c);
      for (const float cap : {0.0f, 2.0f}) {
        // In bf16 the numerators are rounded to 8 bits before their products.
        EXPECT_TRUE(Near(fixture.Run(&ops, 0, c.n_tokens, cap),
                         fixture.Run(nullptr, 0, c.n_tokens, cap),
                         dtype == DType::kBf16 ? 8e-3 : 3e-6))
            << "heads " << c.n_heads << "/" << c.n_kv_heads << " x "
            << c.head_dim << ", " << c.n_tokens << " tokens, window "
            << c.window << ", cap " << cap;
      }
    }
  }
}

TEST_P(AttentionTest, ManySplitsAgreeWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const Case c{dtype, 2, 1, 16, 2 * kSplitTokens + 70, 0};
    Fixture fixture(random_, c);
    for (const int64_t pos :
         {kSplitTokens - 1, kSplitTokens, kSplitTokens + 1,
          2 * kSplitTokens - 1, 2 * kSplitTokens, 2 * kSplitTokens + 69}) {
      EXPECT_TRUE(Near(fixture.Run(&ops, pos, 1), fixture.Run(nullptr, pos, 1),
                       dtype == DType::kBf16 ? 8e-3 : 3e-6))
          << pos;
    }
  }
}

// Far below the keys' scores, beside them, and so far above that nothing of the
// values is left.
TEST_P(AttentionTest, SinksJoinTheSoftmaxOfTheirHead) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> sinks = {-inf, -1.5f, 0.5f, 3.0f, 90.0f, 0.0f};
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int64_t n_kv_heads : {1, 3}) {
      for (const int64_t n_tokens : {70, 1100}) {
        const Case c{dtype, 6, n_kv_heads, 32, n_tokens, 0};
        Fixture fixture(random_, c);
        // Few rows on more threads: split by split.
        for (const int threads : {1, 8}) {
          CpuOps ops(GetParam(), threads);
          const auto got =
              fixture.Run(&ops, n_tokens - 3, 3, 0, 0, sinks.data());
          EXPECT_TRUE(Near(
              got, fixture.Run(nullptr, n_tokens - 3, 3, 0, 0, sinks.data()),
              dtype == DType::kBf16 ? 8e-3 : 3e-6))
              << n_kv_heads << " KV heads, " << n_tokens << " tokens";
          const auto without = fixture.Run(&ops, n_tokens - 3, 3);
          for (size_t i = 0; i < got.size(); ++i) {
            const size_t head = i / 32 % 6;
            if (head == 0) {
              EXPECT_EQ(got[i], without[i]) << i;
            } else if (head == 4) {
              EXPECT_LT(std::abs(got[i]), 1e-20f) << i;
            } else {
              EXPECT_LT(std::abs(got[i]), std::abs(without[i])) << i;
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, RowsIgnoreTilesThreadsAndBatch) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int64_t window : {0, 7, 64, 1100}) {
      const Case c{dtype, 4, 2, 32, 1300, window};
      Fixture fixture(random_, c);
      CpuOps one(GetParam(), 1);
      const int64_t row = c.n_heads * c.head_dim;
      const auto all = fixture.Run(&one, 0, c.n_tokens);
      for (const int threads : {1, 3}) {
        CpuOps ops(GetParam(), threads);
        for (const int64_t n : {1, 2, 5, 16, 17, 300}) {
          for (const int64_t first : {0, 3, 63, 64, 65, 500, 1000}) {
            const auto some = fixture.Run(&ops, first, n);
            ASSERT_TRUE(
                SameBits(some, std::span(all).subspan(first * row, n * row)))
                << n << " rows from " << first << ", window " << window;
          }
        }
      }
    }
  }
}

// Poison everywhere a row may not look.
TEST_P(AttentionTest, KeysOutsideTheRangeReachNothing) {
  CpuOps ops(GetParam(), 2);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const Case c{dtype, 4, 2, 32, 300, 9};
    Fixture clean(random_, c);
    for (const int64_t floor : {100, 101, 127, 128, 129}) {
      Fixture poisoned = clean;
      const std::vector<float> nan(clean.shape().row_elements(), kNan);
      for (int64_t pos = 0; pos < floor; ++pos) {
        poisoned.cache().Put(pos, nan, nan);
      }
      // Rows that a copied cache must not share pages with.
      const auto expected = clean.Run(&ops, floor, 30, 0.0f, floor);
      for (int64_t pos = floor + 30; pos < 300; ++pos) {
        poisoned.cache().Put(pos, nan, nan);
      }
      EXPECT_TRUE(
          SameBits(poisoned.Run(&ops, floor, 30, 0.0f, floor), expected))
          << floor;
    }
  }
}

TEST_P(AttentionTest, ANanKeyInsideTheRangeReachesTheRow) {
  CpuOps ops(GetParam(), 1);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const Case c{dtype, 2, 1, 16, 100, 0};
    for (const int64_t at : {0, 1, 15, 16, 63, 64, 99}) {
      for (const bool in_k : {true, false}) {
        Fixture fixture(random_, c);
        const std::vector<float> nan(16, kNan);
        const std::vector<float> one(16, 1.0f);
        fixture.cache().Put(at, in_k ? nan : one, in_k ? one : nan);
        for (const float v : fixture.Run(&ops, 99, 1)) {
          EXPECT_TRUE(std::isnan(v)) << at << (in_k ? " K" : " V");
        }
        if (at > 0) {
          for (const float v : fixture.Run(&ops, at - 1, 1)) {
            EXPECT_FALSE(std::isnan(v)) << at;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, ARingOfPagesServesAWindow) {
  CpuOps ops(GetParam(), 1);
  const KvShape shape{DType::kBf16, 1, 32};
  constexpr int64_t kWindow = 100;
  Cache ring(shape, 3);
  Cache all(shape, 20);
  std::vector<float> q;
  for (int64_t pos = 0; pos < 1200; ++pos) {
    const auto k = RandomFloats(random_, 32);
    const auto v = RandomFloats(random_, 32);
    ring.Put(pos, k, v);
    all.Put(pos, k, v);
    q = RandomFloats(random_, 2 * 32);
    const KeyRange keys = CausalKeys(pos, kWindow);
    std::vector<float> out[2];
    for (int i = 0; i < 2; ++i) {
      const AttentionSegment segment{0, 1, &keys,
                                     i == 0 ? ring.view() : all.view()};
      out[i].resize(64);
      ops.Attention({.shape = shape,
                     .n_heads = 2,
                     .scale = 0.2f,
                     .q = q.data(),
                     .out = out[i].data(),
                     .segments = &segment,
                     .n_segments = 1});
    }
    ASSERT_TRUE(SameBits(out[0], out[1])) << pos;
  }
}

TEST_P(AttentionTest, RaggedSegmentsEqualEachAlone) {
  CpuOps ops(GetParam(), 2);
  const KvShape shape{DType::kF32, 2, 16};
  std::vector<Cache> caches;
  std::vector<std::vector<KeyRange>> keys;
  std::vector<AttentionSegment> segments;
  int64_t rows = 0;
  for (const int64_t n : {1, 40, 3, 129}) {
    caches.emplace_back(shape, 4);
    for (int64_t pos = 0; pos < 200; ++pos) {
      caches.back().Put(pos, RandomFloats(random_, 32),
                        RandomFloats(random_, 32));
    }
    keys.emplace_back();
    for (int64_t i = 0; i < n; ++i) {
      keys.back().push_back(CausalKeys(200 - n + i, 33));
    }
    rows += n;
  }
  int64_t at = 0;
  for (size_t i = 0; i < caches.size(); ++i) {
    segments.push_back({at, static_cast<int64_t>(keys[i].size()),
                        keys[i].data(), caches[i].view()});
    at += segments.back().n_rows;
  }
  const auto q = RandomFloats(random_, rows * 4 * 16);
  std::vector<float> together(q.size(), kNan);
  AttentionParams p{.shape = shape,
                    .n_heads = 4,
                    .scale = 0.25f,
                    .q = q.data(),
                    .out = together.data(),
                    .segments = segments.data(),
                    .n_segments = static_cast<int64_t>(segments.size())};
  ops.Attention(p);
  std::vector<float> alone(q.size(), kNan);
  p.out = alone.data();
  p.n_segments = 1;
  for (const AttentionSegment& segment : segments) {
    p.segments = &segment;
    ops.Attention(p);
  }
  EXPECT_TRUE(SameBits(together, alone));
}

TEST(KvPageTest, RowsComeBackBitForBit) {
  testing::Random random;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const KvShape shape{dtype, 3, 48};
    std::vector<uint8_t> page(shape.page_bytes());
    std::vector<std::vector<uint8_t>> k;
    std::vector<std::vector<uint8_t>> v;
    // Rows stand at odd addresses, as those of a message may.
    for (int64_t t = 0; t < kPageTokens; ++t) {
      k.emplace_back(1 + shape.row_bytes());
      v.emplace_back(1 + shape.row_bytes());
      random.Fill(k.back());
      random.Fill(v.back());
      PutKRow(shape, page.data(), t, k.back().data() + 1);
      PutVRow(shape, page.data(), t, v.back().data() + 1);
    }
    for (int64_t t = 0; t < kPageTokens; ++t) {
      std::vector<uint8_t> row = k[t];
      std::fill(row.begin() + 1, row.end(), 0);
      GetKRow(shape, page.data(), t, row.data() + 1);
      EXPECT_EQ(row, k[t]);
      row[0] = v[t][0];
      GetVRow(shape, page.data(), t, row.data() + 1);
      EXPECT_EQ(row, v[t]);
    }
  }
}

}  // namespace
}  // namespace torpor::kernels
