// SPDX-License-Identifier: Apache-2.0

#include "kernels/hyper_connection.h"

#include <gtest/gtest.h>

#include "kernels/cpu_ops.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

// Sums of a few thousand squares, of 16 streams, and some tens of divisions in
// f32, each off by 1e-7 or less; the iterations pull errors together.
constexpr double kTolerance = 5e-6;

class HyperConnectionTest : public ::testing::TestWithParam<Isa> {
 protected:
  testing::Random random_;
};

INSTANTIATE_TEST_SUITE_P(Paths, HyperConnectionTest,
                         ::testing::ValuesIn(AvailableIsas()), IsaParamName);

struct Shape {
  int64_t n_rows;
  int64_t n_streams;
  int64_t dim;
};

const std::vector<Shape>& Shapes() {
  static const auto* const shapes = new std::vector<Shape>{
      {1, 4, 64},  {1, 1, 1},    {3, 2, 15},  {16, 4, 16},
      {17, 4, 33}, {40, 4, 100}, {2, 16, 48}, {5, 7, 37}};
  return *shapes;
}

size_t Count(int64_t a, int64_t b, int64_t c = 1) {
  return static_cast<size_t>(a * b * c);
}

struct Mixes {
  std::vector<float> pre, post, comb;
};

struct MixCase {
  MixCase(testing::Random& random, const Shape& s, int64_t iterations)
      : shape(s),
        n_iterations(iterations),
        x(RandomFloats(random, Count(s.n_rows, s.n_streams, s.dim), 3.0f)),
        projection(RandomFloats(random, Count(s.n_rows, width()), 20.0f)),
        base(RandomFloats(random, Count(1, width()))),
        scale(RandomFloats(random, 3)) {}

  [[nodiscard]] int64_t width() const {
    return shape.n_streams * (2 + shape.n_streams);
  }

  [[nodiscard]] Mixes Run(CpuOps* ops, int64_t first, int64_t n) const {
    const int64_t s = shape.n_streams;
    Mixes out{std::vector<float>(Count(n, s), kNan),
              std::vector<float>(Count(n, s), kNan),
              std::vector<float>(Count(n, s, s), kNan)};
    const HyperMixParams p{.x = x.data() + first * s * shape.dim,
                           .n_rows = n,
                           .n_streams = s,
                           .dim = shape.dim,
                           .projection = projection.data() + first * width(),
                           .base = base.data(),
                           .scale = scale.data(),
                           .norm_eps = 1e-20f,
                           .eps = 1e-6f,
                           .n_iterations = n_iterations,
                           .pre = out.pre.data(),
                           .post = out.post.data(),
                           .comb = out.comb.data()};
    ops != nullptr ? ops->HyperMix(p) : HyperMixRef(p);
    return out;
  }

  Shape shape;
  int64_t n_iterations;
  std::vector<float> x, projection, base, scale;
};

TEST_P(HyperConnectionTest, MixesAgreeWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const Shape& s : Shapes()) {
    for (const int64_t iterations : {1, 2, 20}) {
      const MixCase c(random_, s, iterations);
      const Mixes got = c.Run(&ops, 0, s.n_rows);
      const Mixes wanted = c.Run(nullptr, 0, s.n_rows);
      const std::string name =
          ::testing::PrintToString(s.n_rows) + " rows, " +
          ::testing::PrintToString(s.n_streams) + " streams, " +
          ::testing::PrintToString(iterations) + " iterations";
      EXPECT_TRUE(Near(got.pre, wanted.pre, kTolerance)) << name;
      EXPECT_TRUE(NearGates(got.post, wanted.post, kTolerance)) << name;
      EXPECT_TRUE(Near(got.comb, wanted.comb, kTolerance)) << name;
    }
  }
}

TEST_P(HyperConnectionTest, RowsAndColumnsOfACombSumToOne) {
  CpuOps ops(GetParam(), 1);
  MixCase c(random_, {20, 4, 64}, 20);
  // Moderate mixes converge in the release's twenty iterations.
  c.scale = {1.0f, 1.0f, 0.02f};
  const Mixes got = c.Run(&ops, 0, 20);
  for (size_t r = 0; r < 20; ++r) {
    for (size_t j = 0; j < 4; ++j) {
      float row = 0;
      float column = 0;
      for (size_t k = 0; k < 4; ++k) {
        row += got.comb[r * 16 + j * 4 + k];
        column += got.comb[r * 16 + k * 4 + j];
      }
      EXPECT_NEAR(row, 1.0f, 1e-3f) << r;
      EXPECT_NEAR(column, 1.0f, 1e-5f) << r;
    }
  }
}

// Design D9: a row's bits ignore the rows beside it, their number, threads.
TEST_P(HyperConnectionTest, MixesIgnoreTheirCompany) {
  const MixCase c(random_, {40, 4, 2000}, 20);
  CpuOps one(GetParam(), 1);
  const Mixes all = c.Run(&one, 0, 40);
  for (const int threads : {1, 3}) {
    CpuOps ops(GetParam(), threads);
    for (const int64_t n : {1, 2, 15, 16, 17, 33}) {
      for (const int64_t first : {0, 1, 7}) {
        const Mixes some = c.Run(&ops, first, n);
        const auto of = [&](const std::vector<float>& v, int64_t width) {
          return std::span(v).subspan(Count(first, width), Count(n, width));
        };
        ASSERT_TRUE(SameBits(some.pre, of(all.pre, 4)));
        ASSERT_TRUE(SameBits(some.post, of(all.post, 4)));
        ASSERT_TRUE(SameBits(some.comb, of(all.comb, 16)));
      }
    }
  }
}

TEST_P(HyperConnectionTest, ANanRowStaysAlone) {
  CpuOps ops(GetParam(), 1);
  MixCase c(random_, {20, 4, 30}, 20);
  c.x[Count(5, 4, 30) + 119] = kNan;
  c.projection[Count(7, 24) + 23] = kNan;
  const Mixes got = c.Run(&ops, 0, 20);
  for (size_t r = 0; r < 20; ++r) {
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::isnan(got.pre[r * 4 + i]), r == 5) << r;
      EXPECT_EQ(std::isnan(got.post[r * 4 + i]), r == 5) << r;
    }
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(std::isnan(got.comb[r * 16 + i]), r == 5 || r == 7) << r;
    }
  }
}

struct StreamCase {
  StreamCase(testing::Random& random, const Shape& s)
      : shape(s),
        x(RandomFloats(random, Count(s.n_rows, s.n_streams, s.dim))),
        y(RandomFloats(random, Count(s.n_rows, s.dim))),
        mix(RandomFloats(random, Count(s.n_rows, s.n_streams))),
        comb(RandomFloats(random, Count(s.n_rows, s.n_streams, s.n_streams))) {}

  [[nodiscard]] std::vector<float> Collapse(CpuOps* ops, int64_t first,
                                            int64_t n) const {
    std::vector<float> out(Count(n, shape.dim), kNan);
    const HyperCollapseParams p{
        .x = x.data() + first * shape.n_streams * shape.dim,
        .n_rows = n,
        .n_streams = shape.n_streams,
        .dim = shape.dim,
        .mix = mix.data() + first * shape.n_streams,
        .out = out.data()};
    ops != nullptr ? ops->HyperCollapse(p) : HyperCollapseRef(p);
    return out;
  }

  [[nodiscard]] std::vector<float> Expand(CpuOps* ops, int64_t first,
                                          int64_t n) const {
    const int64_t s = shape.n_streams;
    const auto from = x.begin() + first * s * shape.dim;
    std::vector<float> out(from, from + n * s * shape.dim);
    const HyperExpandParams p{.x = out.data(),
                              .n_rows = n,
                              .n_streams = s,
                              .dim = shape.dim,
                              .y = y.data() + first * shape.dim,
                              .post = mix.data() + first * s,
                              .comb = comb.data() + first * s * s};
    ops != nullptr ? ops->HyperExpand(p) : HyperExpandRef(p);
    return out;
  }

  Shape shape;
  std::vector<float> x, y, mix, comb;
};

TEST_P(HyperConnectionTest, StreamsAgreeWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const Shape& s : Shapes()) {
    const StreamCase c(random_, s);
    EXPECT_TRUE(Near(c.Collapse(&ops, 0, s.n_rows),
                     c.Collapse(nullptr, 0, s.n_rows), 1e-6,
                     SumSize(s.n_streams)))
        << s.n_streams << " x " << s.dim;
    EXPECT_TRUE(Near(c.Expand(&ops, 0, s.n_rows),
                     c.Expand(nullptr, 0, s.n_rows), 1e-6,
                     SumSize(s.n_streams + 1)))
        << s.n_streams << " x " << s.dim;
  }
}

TEST_P(HyperConnectionTest, StreamsIgnoreTheirCompany) {
  const StreamCase c(random_, {60, 4, 1001});
  CpuOps one(GetParam(), 1);
  const auto collapsed = c.Collapse(&one, 0, 60);
  const auto expanded = c.Expand(&one, 0, 60);
  for (const int threads : {1, 3}) {
    CpuOps ops(GetParam(), threads);
    for (const int64_t n : {1, 2, 17, 50}) {
      for (const int64_t first : {0, 1, 9}) {
        ASSERT_TRUE(SameBits(
            c.Collapse(&ops, first, n),
            std::span(collapsed).subspan(Count(first, 1001), Count(n, 1001))));
        ASSERT_TRUE(SameBits(c.Expand(&ops, first, n),
                             std::span(expanded).subspan(Count(first, 4 * 1001),
                                                         Count(n, 4 * 1001))));
      }
    }
  }
}

TEST_P(HyperConnectionTest, AUnitMixIsThatStream) {
  CpuOps ops(GetParam(), 1);
  StreamCase c(random_, {3, 4, 35});
  for (size_t i = 0; i < c.mix.size(); ++i) c.mix[i] = i % 4 == 0 ? 1.0f : 0.0f;
  const auto got = c.Collapse(&ops, 0, 3);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], c.x[i / 35 * 4 * 35 + i % 35]) << i;
  }
}

}  // namespace
}  // namespace torpor::kernels
