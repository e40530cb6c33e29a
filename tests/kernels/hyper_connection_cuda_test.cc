// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of hyper_connection.h against its reference.

#include "kernels/hyper_connection_cuda.h"

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

// As tests/kernels/hyper_connection_test.cc has it, and why.
constexpr double kTolerance = 5e-6;

class HyperConnectionCudaTest : public CudaTest {
 protected:
  testing::Random random_;
};

struct Shape {
  int64_t n_rows;
  int64_t n_streams;
  int64_t dim;
};
constexpr Shape kShapes[] = {{1, 4, 64},  {1, 1, 1},     {3, 2, 15},
                             {5, 4, 516}, {2, 4, 1030},  {2, 16, 48},
                             {3, 7, 37},  {2, 16, 1029}, {2, 3, 1024}};

size_t Count(int64_t a, int64_t b, int64_t c = 1) {
  return static_cast<size_t>(a * b * c);
}

// Rows [first, first + n) of `width` values each.
std::vector<float> Part(const std::vector<float>& of, int64_t first, int64_t n,
                        int64_t width) {
  return {of.begin() + first * width, of.begin() + (first + n) * width};
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

  [[nodiscard]] Mixes Emulated() const { return Emulated(0, shape.n_rows); }
  [[nodiscard]] Mixes Emulated(int64_t first, int64_t n) const {
    const int64_t s = shape.n_streams;
    const DeviceBuffer<float> streams(Part(x, first, n, s * shape.dim), "x");
    const DeviceBuffer<float> products(Part(projection, first, n, width()),
                                       "projection");
    const DeviceBuffer<float> bases(base, "base");
    const DeviceBuffer<float> scales(scale, "scale");
    const DeviceBuffer<float> pre(Count(n, s), "pre");
    const DeviceBuffer<float> post(Count(n, s), "post");
    const DeviceBuffer<float> comb(Count(n, s, s), "comb");
    HyperMixParams p = Params(n);
    p.x = streams.data();
    p.projection = products.data();
    p.base = bases.data();
    p.scale = scales.data();
    p.pre = pre.data();
    p.post = post.data();
    p.comb = comb.data();
    EXPECT_EQ(HyperMixCuda(p, nullptr), 0) << Reports();
    return {pre.Download(), post.Download(), comb.Download()};
  }

  [[nodiscard]] Mixes Reference() const {
    const int64_t s = shape.n_streams;
    Mixes out{std::vector<float>(Count(shape.n_rows, s)),
              std::vector<float>(Count(shape.n_rows, s)),
              std::vector<float>(Count(shape.n_rows, s, s))};
    HyperMixParams p = Params(shape.n_rows);
    p.x = x.data();
    p.projection = projection.data();
    p.base = base.data();
    p.scale = scale.data();
    p.pre = out.pre.data();
    p.post = out.post.data();
    p.comb = out.comb.data();
    HyperMixRef(p);
    return out;
  }

  [[nodiscard]] HyperMixParams Params(int64_t n) const {
    return {.n_rows = n,
            .n_streams = shape.n_streams,
            .dim = shape.dim,
            .norm_eps = 1e-20f,
            .eps = 1e-6f,
            .n_iterations = n_iterations};
  }

  Shape shape;
  int64_t n_iterations;
  std::vector<float> x, projection, base, scale;
};

TEST_F(HyperConnectionCudaTest, MixesAgreeWithTheReference) {
  for (const Shape& s : kShapes) {
    for (const int64_t iterations : {1, 2, 20}) {
      SCOPED_TRACE(std::to_string(s.n_streams) + " x " + std::to_string(s.dim) +
                   ", " + std::to_string(iterations) + " iterations");
      const MixCase c(random_, s, iterations);
      const Mixes got = c.Emulated();
      const Mixes wanted = c.Reference();
      EXPECT_TRUE(Near(got.pre, wanted.pre, kTolerance));
      EXPECT_TRUE(NearGates(got.post, wanted.post, kTolerance));
      EXPECT_TRUE(Near(got.comb, wanted.comb, kTolerance));
    }
  }
}

// Design D9.
TEST_F(HyperConnectionCudaTest, MixesIgnoreTheirCompanyAndSchedules) {
  const MixCase c(random_, {4, 4, 1030}, 20);
  const Mixes all = c.Emulated();
  for (int64_t r = 0; r < 4; ++r) {
    const Mixes one = c.Emulated(r, 1);
    EXPECT_TRUE(SameBits(one.pre, Part(all.pre, r, 1, 4)));
    EXPECT_TRUE(SameBits(one.post, Part(all.post, r, 1, 4)));
    EXPECT_TRUE(SameBits(one.comb, Part(all.comb, r, 1, 16)));
  }
  ForEachSchedule([&] {
    const Mixes again = c.Emulated();
    EXPECT_TRUE(SameBits(again.pre, all.pre));
    EXPECT_TRUE(SameBits(again.post, all.post));
    EXPECT_TRUE(SameBits(again.comb, all.comb));
  });
}

TEST_F(HyperConnectionCudaTest, ANanRowStaysAlone) {
  MixCase c(random_, {9, 4, 30}, 20);
  c.x[Count(5, 4, 30) + 119] = kNan;
  c.projection[Count(7, 24) + 23] = kNan;
  const Mixes got = c.Emulated();
  for (size_t r = 0; r < 9; ++r) {
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

  [[nodiscard]] std::vector<float> Collapsed(int64_t first, int64_t n) const {
    const int64_t s = shape.n_streams;
    const DeviceBuffer<float> streams(Part(x, first, n, s * shape.dim), "x");
    const DeviceBuffer<float> mixes(Part(mix, first, n, s), "mix");
    const DeviceBuffer<float> out(Count(n, shape.dim), "out");
    EXPECT_EQ(HyperCollapseCuda({.x = streams.data(),
                                 .n_rows = n,
                                 .n_streams = s,
                                 .dim = shape.dim,
                                 .mix = mixes.data(),
                                 .out = out.data()},
                                nullptr),
              0)
        << Reports();
    return out.Download();
  }
  [[nodiscard]] std::vector<float> CollapsedByReference() const {
    std::vector<float> out(Count(shape.n_rows, shape.dim));
    HyperCollapseRef({.x = x.data(),
                      .n_rows = shape.n_rows,
                      .n_streams = shape.n_streams,
                      .dim = shape.dim,
                      .mix = mix.data(),
                      .out = out.data()});
    return out;
  }

  [[nodiscard]] std::vector<float> Expanded(int64_t first, int64_t n) const {
    const int64_t s = shape.n_streams;
    const DeviceBuffer<float> streams(Part(x, first, n, s * shape.dim), "x");
    const DeviceBuffer<float> ys(Part(y, first, n, shape.dim), "y");
    const DeviceBuffer<float> posts(Part(mix, first, n, s), "post");
    const DeviceBuffer<float> combs(Part(comb, first, n, s * s), "comb");
    EXPECT_EQ(HyperExpandCuda({.x = streams.data(),
                               .n_rows = n,
                               .n_streams = s,
                               .dim = shape.dim,
                               .y = ys.data(),
                               .post = posts.data(),
                               .comb = combs.data()},
                              nullptr),
              0)
        << Reports();
    return streams.Download();
  }
  [[nodiscard]] std::vector<float> ExpandedByReference() const {
    std::vector<float> out = x;
    HyperExpandRef({.x = out.data(),
                    .n_rows = shape.n_rows,
                    .n_streams = shape.n_streams,
                    .dim = shape.dim,
                    .y = y.data(),
                    .post = mix.data(),
                    .comb = comb.data()});
    return out;
  }

  Shape shape;
  std::vector<float> x, y, mix, comb;
};

TEST_F(HyperConnectionCudaTest, StreamsAgreeWithTheReference) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(std::to_string(s.n_streams) + " x " + std::to_string(s.dim));
    const StreamCase c(random_, s);
    EXPECT_TRUE(Near(c.Collapsed(0, s.n_rows), c.CollapsedByReference(),
                     kTolerance, SumSize(s.n_streams)));
    EXPECT_TRUE(Near(c.Expanded(0, s.n_rows), c.ExpandedByReference(),
                     kTolerance, SumSize(s.n_streams + 1)));
  }
}

// Design D9. A row of odd length stands elsewhere alone than among others.
TEST_F(HyperConnectionCudaTest, StreamsIgnoreTheirCompanyAndSchedules) {
  for (const Shape& s : {Shape{4, 4, 1031}, Shape{3, 9, 70}}) {
    const StreamCase c(random_, s);
    const auto collapsed = c.Collapsed(0, s.n_rows);
    const auto expanded = c.Expanded(0, s.n_rows);
    for (int64_t r = 0; r < s.n_rows; ++r) {
      EXPECT_TRUE(SameBits(c.Collapsed(r, 1), Part(collapsed, r, 1, s.dim)));
      EXPECT_TRUE(SameBits(c.Expanded(r, 1),
                           Part(expanded, r, 1, s.n_streams * s.dim)));
    }
    ForEachSchedule([&] {
      EXPECT_TRUE(SameBits(c.Collapsed(0, s.n_rows), collapsed));
      EXPECT_TRUE(SameBits(c.Expanded(0, s.n_rows), expanded));
    });
  }
}

TEST_F(HyperConnectionCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(HyperMixCuda({.n_streams = 4, .dim = 8}, nullptr), 0);
  EXPECT_EQ(HyperCollapseCuda({.n_streams = 4, .dim = 8}, nullptr), 0);
  EXPECT_EQ(HyperExpandCuda({.n_streams = 4, .dim = 8}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
