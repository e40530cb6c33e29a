// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of gemm.h: against the reference, and a
// row's bits against those it has in any other company.

#include "kernels/gemm_cuda.h"

#include <numeric>

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

// dtypes of a and b, and what multiplies them.
struct Types {
  DType a;
  DType b;
  GemmPath path = GemmPath::kSimt;
};
constexpr Types kTypes[] = {{DType::kF32, DType::kF32},
                            {DType::kF32, DType::kBf16},
                            {DType::kBf16, DType::kBf16}};
constexpr Types kTensor{DType::kBf16, DType::kBf16, GemmPath::kTensorCores};
constexpr Types kEveryPath[] = {kTypes[0], kTypes[1], kTypes[2], kTensor};

// Values of either dtype in device memory, `skip` elements into their buffer.
class Values {
 public:
  Values(std::span<const float> v, DType dtype, std::string name,
         size_t skip = 0)
      : skip_(skip * DTypeBytes(dtype)),
        bytes_(v.size() * DTypeBytes(dtype) + skip_, std::move(name)) {
    const auto half = ToBf16s(v);
    const auto* from = dtype == DType::kBf16
                           ? reinterpret_cast<const uint8_t*>(half.data())
                           : reinterpret_cast<const uint8_t*>(v.data());
    bytes_.Upload({from, v.size() * DTypeBytes(dtype)}, skip_);
  }
  [[nodiscard]] const void* data() const { return bytes_.data() + skip_; }

 private:
  size_t skip_;
  DeviceBuffer<uint8_t> bytes_;
};

// b as a device has it.
class Packed {
 public:
  Packed(std::span<const float> b, int64_t n, int64_t k, DType dtype)
      : matrix_{nullptr, n, k, dtype}, bytes_(matrix_.bytes(), "packed b") {
    matrix_.data = bytes_.data();
    const Values source(b, dtype, "b");
    EXPECT_EQ(PackMatrixCuda({.source = source.data(),
                              .source_dtype = dtype,
                              .source_stride = k,
                              .n_columns = n,
                              .matrix = matrix_,
                              .packed = bytes_.data()},
                             nullptr),
              0);
  }
  [[nodiscard]] const DeviceMatrix& matrix() const { return matrix_; }
  [[nodiscard]] std::vector<uint8_t> bytes() const { return bytes_.Download(); }

 private:
  DeviceMatrix matrix_;
  DeviceBuffer<uint8_t> bytes_;
};

class GemmCudaTest : public CudaTest {
 protected:
  // Rows [first, first + m) of a.
  static std::vector<float> Run(std::span<const float> a, int64_t first,
                                int64_t m, const Types& types, const Packed& b,
                                std::span<const float> bias = {},
                                size_t skip = 0) {
    const DeviceMatrix& matrix = b.matrix();
    const Values rows(a.subspan(first * matrix.k, m * matrix.k), types.a, "a",
                      skip);
    const Values added(bias, DType::kF32, "bias");
    const DeviceBuffer<float> c(m * matrix.n, "c");
    EXPECT_EQ(GemmCuda({.a = rows.data(),
                        .a_dtype = types.a,
                        .n_rows = m,
                        .b = matrix,
                        .bias = bias.empty()
                                    ? nullptr
                                    : static_cast<const float*>(added.data()),
                        .c = c.data(),
                        .path = types.path},
                       nullptr),
              0);
    return c.Download();
  }

  // In double, over the values as the device has them.
  static std::vector<float> Reference(std::span<const float> a, int64_t m,
                                      std::span<const float> b, int64_t n,
                                      int64_t k, const Types& types,
                                      std::span<const float> bias) {
    const auto value = [](float v, DType dtype) -> double {
      return dtype == DType::kBf16 ? RoundToBf16(v) : v;
    };
    std::vector<float> c;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = bias.empty() ? 0 : bias[j];
        for (int64_t at = 0; at < k; ++at) {
          sum += value(a[i * k + at], types.a) * value(b[j * k + at], types.b);
        }
        c.push_back(static_cast<float>(sum));
      }
    }
    return c;
  }

  testing::Random random_;
};

TEST_F(GemmCudaTest, AMatrixIsPackedAsItsIndexSays) {
  for (const DType source_dtype : {DType::kF32, DType::kBf16}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      constexpr int64_t kN = 45;
      constexpr int64_t kK = 30;
      constexpr int64_t kStride = 33;
      auto b = RandomFloats(random_, kN * kStride);
      if (source_dtype == DType::kBf16) {
        for (float& v : b) v = RoundToBf16(v);
      }
      DeviceMatrix m{nullptr, kN, kK, dtype};
      const Values source(b, source_dtype, "b");
      const DeviceBuffer<uint8_t> packed(m.bytes(), "packed");
      // In two goes, as when several matrices become one.
      for (const auto& [first, n] :
           std::vector<std::pair<int64_t, int64_t>>{{7, kN - 7}, {0, 7}}) {
        EXPECT_EQ(
            PackMatrixCuda(
                {.source = static_cast<const uint8_t*>(source.data()) +
                           first * kStride *
                               static_cast<int64_t>(DTypeBytes(source_dtype)),
                 .source_dtype = source_dtype,
                 .source_stride = kStride,
                 .first = first,
                 .n_columns = n,
                 .matrix = m,
                 .packed = packed.data()},
                nullptr),
            0);
      }
      const std::vector<uint8_t> bytes = packed.Download();
      std::vector<float> wanted(m.bytes() / DTypeBytes(dtype));
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t k = 0; k < kK; ++k)
          wanted[m.Index(n, k)] = b[n * kStride + k];
      }
      if (dtype == DType::kBf16) {
        const auto* got = reinterpret_cast<const Bf16*>(bytes.data());
        EXPECT_EQ(std::vector<Bf16>(got, got + wanted.size()), ToBf16s(wanted));
      } else {
        const auto* got = reinterpret_cast<const float*>(bytes.data());
        EXPECT_TRUE(SameBits(std::span(got, wanted.size()), wanted));
      }
    }
  }
}

TEST_F(GemmCudaTest, AgreesWithTheReferenceUnderEverySchedule) {
  for (const Types& types : kTypes) {
    for (const auto& [m, n, k] :
         std::vector<std::array<int64_t, 3>>{{1, 1, 2},
                                             {2, 33, 30},
                                             {5, 40, 300},
                                             {13, 130, 20},
                                             {70, 9, 34}}) {
      SCOPED_TRACE(std::to_string(m) + "x" + std::to_string(n) + "x" +
                   std::to_string(k));
      const auto a = RandomFloats(random_, m * k);
      const auto b = RandomFloats(random_, n * k);
      const auto bias = RandomFloats(random_, n);
      const Packed packed(b, n, k, types.b);
      const auto wanted = Reference(a, m, b, n, k, types, bias);
      std::vector<float> bits;
      ForEachSchedule([&] {
        const auto got = Run(a, 0, m, types, packed, bias);
        EXPECT_TRUE(Near(got, wanted, 1e-6, SumSize(k)));
        if (bits.empty()) bits = got;
        EXPECT_TRUE(SameBits(got, bits));
      });
      EXPECT_TRUE(SameBits(Run(a, 0, m, types, packed, bias, 1), bits))
          << "unaligned";
    }
  }
}

// Design D9: a row's bits ignore the rows beside it and their number, which
// decides between the shapes of the kernels.
TEST_F(GemmCudaTest, RowsIgnoreTheirCompany) {
  for (const Types& types : kTypes) {
    constexpr int64_t kRows = 67;
    constexpr int64_t kN = 20;
    // Three splits, the last one ragged.
    constexpr int64_t kK = 2 * kGemmSplit + 28;
    const auto a = RandomFloats(random_, kRows * kK);
    const Packed b(RandomFloats(random_, kN * kK), kN, kK, types.b);
    const auto all = Run(a, 0, kRows, types, b);
    for (const int64_t m : {1, 2, 3, 4, 5, 8, 12, 13}) {
      for (const int64_t first : {int64_t{0}, int64_t{5}, kRows - m}) {
        EXPECT_TRUE(SameBits(Run(a, first, m, types, b),
                             std::span(all).subspan(first * kN, m * kN)))
            << m << " rows from " << first;
      }
    }
  }
}

TEST_F(GemmCudaTest, ARowOfNanStaysAlone) {
  constexpr int64_t kN = 40;
  constexpr int64_t kK = 32;
  for (const Types& types : kEveryPath) {
    for (const int64_t m : {9, 16}) {
      auto a = RandomFloats(random_, m * kK);
      std::fill_n(a.begin() + 4 * kK, kK, kNan);
      const Packed b(RandomFloats(random_, kN * kK), kN, kK, types.b);
      const auto c = Run(a, 0, m, types, b);
      for (int64_t i = 0; i < m * kN; ++i) {
        EXPECT_EQ(std::isnan(c[i]), i / kN == 4) << i;
      }
    }
  }
}

// Experts with no, one and many rows, gathered; each equal to its own product.
TEST_F(GemmCudaTest, GroupsEqualEachProductAlone) {
  constexpr int64_t kN = 36;
  constexpr int64_t kK = 272;
  constexpr int64_t kTokens = 11;
  for (const Types& types : kEveryPath) {
    // Few rows a group, then enough for tiles.
    for (const std::vector<int32_t>& begin : std::vector<std::vector<int32_t>>{
             {0, 0, 1, 6, 6, 8}, {0, 70, 70, 71}}) {
      const auto n_groups = static_cast<int64_t>(begin.size()) - 1;
      const int64_t n_entries = begin.back();
      const auto a = RandomFloats(random_, kTokens * kK);
      std::vector<int32_t> index;
      std::vector<float> gathered;
      for (int64_t i = 0; i < n_entries; ++i) {
        index.push_back(static_cast<int32_t>(random_.Between(0, kTokens - 1)));
        const float* row = a.data() + index.back() * kK;
        gathered.insert(gathered.end(), row, row + kK);
      }
      std::vector<std::unique_ptr<Packed>> packed;
      std::vector<const void*> matrices;
      for (int64_t g = 0; g < n_groups; ++g) {
        packed.push_back(std::make_unique<Packed>(
            RandomFloats(random_, kN * kK), kN, kK, types.b));
        matrices.push_back(packed.back()->matrix().data);
        // A group without entries needs no matrix.
        if (begin[g] == begin[g + 1]) matrices.back() = nullptr;
      }
      std::vector<float> wanted;
      for (int64_t g = 0; g < n_groups; ++g) {
        const auto c =
            Run(gathered, begin[g], begin[g + 1] - begin[g], types, *packed[g]);
        wanted.insert(wanted.end(), c.begin(), c.end());
      }
      const Values rows(a, types.a, "a");
      const DeviceBuffer<int32_t> row_index(index, "row_index");
      const DeviceBuffer<int32_t> group_begin(begin, "group_begin");
      const DeviceBuffer<const void*> pointers(matrices, "matrices");
      ForEachSchedule([&] {
        // The host may know no more than a bound.
        const DeviceBuffer<float> c((n_entries + 3) * kN, "c");
        ASSERT_EQ(GroupedGemmCuda({.a = rows.data(),
                                   .a_dtype = types.a,
                                   .row_index = row_index.data(),
                                   .group_begin = group_begin.data(),
                                   .n_groups = n_groups,
                                   .n_entries = n_entries + 3,
                                   .b = packed[0]->matrix(),
                                   .matrices = pointers.data(),
                                   .c = c.data(),
                                   .path = types.path},
                                  nullptr),
                  0);
        const auto got = c.Download();
        EXPECT_TRUE(SameBits(std::span(got).first(wanted.size()), wanted));
        for (size_t i = wanted.size(); i < got.size(); ++i) {
          EXPECT_TRUE(std::isnan(got[i])) << "written beyond the last group";
        }
      });
    }
  }
}

// Operands' places are the kernel's; the emulator's instruction is its own.
TEST_F(GemmCudaTest, TensorCoresAgreeAndRowsIgnoreTheirCompany) {
  for (const auto& [n, k] :
       std::vector<std::pair<int64_t, int64_t>>{{70, 48}, {9, 64}, {64, 16}}) {
    constexpr int64_t kRows = 67;
    const auto a = RandomFloats(random_, kRows * k);
    const auto b = RandomFloats(random_, n * k);
    const auto bias = RandomFloats(random_, n);
    const Packed packed(b, n, k, DType::kBf16);
    const auto run = [&](int64_t first, int64_t m) {
      return Run(a, first, m, kTensor, packed, bias);
    };
    const auto wanted = Reference(a, kRows, b, n, k, kTensor, bias);
    // PTX does not say that sums are rounded: a GPU may cut one off every eight
    // products, by 2^-23 of it, and it may be twice the largest result.
    const double tolerance = static_cast<double>(k) / 8 * 0x1p-22;
    std::vector<float> all;
    ForEachSchedule([&] {
      const auto got = run(0, kRows);
      EXPECT_TRUE(Near(got, wanted, tolerance)) << n << " x " << k;
      if (all.empty()) all = got;
      EXPECT_TRUE(SameBits(got, all));
    });
    EXPECT_TRUE(SameBits(Run(a, 0, kRows, kTensor, packed, bias, 1), all))
        << "unaligned";
    for (const int64_t m : {1, 3, 17}) {
      for (const int64_t first : {int64_t{0}, int64_t{11}, kRows - m}) {
        EXPECT_TRUE(
            SameBits(run(first, m), std::span(all).subspan(first * n, m * n)))
            << m << " rows from " << first;
      }
    }
  }
}

TEST_F(GemmCudaTest, WhatIsNotSupportedIsRefused) {
  const GemmCudaParams p{
      .a_dtype = DType::kBf16, .n_rows = 1, .b = {nullptr, 1, 16, DType::kF32}};
  EXPECT_EQ(GemmCuda(p, nullptr), 1);
  const GemmCudaParams f32{.n_rows = 1,
                           .b = {nullptr, 1, 16, DType::kF32},
                           .path = GemmPath::kTensorCores};
  EXPECT_EQ(GemmCuda(f32, nullptr), 1);
  const GemmCudaParams ragged{.a_dtype = DType::kBf16,
                              .n_rows = 1,
                              .b = {nullptr, 1, 24, DType::kBf16},
                              .path = GemmPath::kTensorCores};
  EXPECT_EQ(GemmCuda(ragged, nullptr), 1);
  EXPECT_EQ(GemmCuda({.b = {nullptr, 1, 16, DType::kF32}}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
