// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend as a whole: copies that must not overtake each other, and on
// the emulator memory that runs out and a device that is lost.

#include "kernels/ops_cuda.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kernels/cpu_ops.h"
#include "kernels/latent_attention_cuda.h"
#include "tests/kernels/cuda_ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace torpor::kernels {
namespace {

using testing::HasStatus;

std::vector<float> Downloaded(Ops* ops, const Buffer<float>& buffer) {
  std::vector<float> out(buffer.size());
  ops->Download(out.data(), buffer.data(), out.size() * sizeof(float));
  return out;
}

// x, scaled by its own row's norm, doubled `n` times by adding it to itself.
std::vector<float> NormAndDouble(Ops* ops, std::span<const float> x, int n) {
  const auto dim = static_cast<int64_t>(x.size());
  const std::vector<float> ones(x.size(), 1.0f);
  const Buffer<float> weight(ops, ones);
  Buffer<float> y(ops, x);
  for (int i = 0; i < n; ++i) {
    const Buffer<float> in(ops, x);
    ops->RmsNorm({.x = in.data(),
                  .n_rows = 1,
                  .dim = dim,
                  .x_stride = dim,
                  .weight = weight.data(),
                  .out = y.data(),
                  .out_stride = dim,
                  .sink = RowSink::kAddF32});
  }
  return Downloaded(ops, y);
}

// Rows of k of one dtype in a backend's memory.
Buffer<uint8_t> RowsOf(Ops* ops, std::span<const float> values, DType dtype) {
  const auto half = ToBf16s(values);
  Buffer<uint8_t> rows(ops);
  rows.Resize(values.size() * DTypeBytes(dtype));
  ops->Upload(rows.data(),
              dtype == DType::kF32 ? static_cast<const void*>(values.data())
                                   : half.data(),
              rows.size());
  return rows;
}

// a [m, k] times b [n, k], both of `dtype`; `grouped`: the first row as one
// expert's, the others as another's.
std::vector<float> Product(Ops* ops, DType dtype, std::span<const float> a,
                           std::span<const float> b, int64_t k,
                           bool grouped = false) {
  const int64_t m = static_cast<int64_t>(a.size()) / k;
  const int64_t n = static_cast<int64_t>(b.size()) / k;
  const PackedMatrix matrix =
      ops->Place(PackedMatrix::Pack(b.data(), n, k, dtype));
  const Buffer<uint8_t> rows = RowsOf(ops, a, dtype);
  Buffer<float> c(ops);
  c.Resize(static_cast<size_t>(m * n));
  if (grouped) {
    const Buffer<int32_t> begin(
        ops, std::vector<int32_t>{0, 1, static_cast<int32_t>(m)});
    const PackedMatrix* const matrices[] = {&matrix, &matrix};
    ops->GroupedGemm({.a = rows.data(),
                      .group_begin = begin.data(),
                      .n_groups = 2,
                      .n_entries = m,
                      .b = matrices,
                      .c = c.data()});
  } else {
    ops->Gemm({.a = rows.data(), .n_rows = m, .b = &matrix, .c = c.data()});
  }
  return Downloaded(ops, c);
}

class OpsCudaTest : public ::testing::TestWithParam<bool> {
 protected:
  testing::Random random_;
  TestDevice device_{{.late = GetParam()}};
};

TEST_P(OpsCudaTest, UploadsOutrunNothing) {
  // Far more than the pinned memory holds, from one buffer that changes right
  // after each call: a piece that is filled again too early would show.
  const auto ops = TestDevice::NewOps();
  std::vector<std::vector<float>> values;
  std::vector<Buffer<float>> there;
  std::vector<float> reused(3001);
  for (int i = 0; i < 12; ++i) {
    values.push_back(RandomFloats(random_, reused.size()));
    std::copy(values.back().begin(), values.back().end(), reused.begin());
    there.emplace_back(ops.get(), std::span<const float>(reused));
  }
  std::fill(reused.begin(), reused.end(), -1.0f);
  for (size_t i = 0; i < there.size(); ++i) {
    EXPECT_EQ(Downloaded(ops.get(), there[i]), values[i]) << i;
  }
  EXPECT_TRUE(ops->Finish().ok());
}

TEST_P(OpsCudaTest, GemmAgreesWithTheCpuOnPlacedWeights) {
  const auto ops = TestDevice::NewOps();
  CpuOps cpu(Isa::kPortable, 1);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const auto a = RandomFloats(random_, 3 * 48);
    const auto b = RandomFloats(random_, 70 * 48);
    EXPECT_TRUE(Near(Product(ops.get(), dtype, a, b, 48),
                     Product(&cpu, dtype, a, b, 48), 1e-5));
  }
  EXPECT_TRUE(ops->Finish().ok());
}

// Matrices decide by themselves: those that fit the tensor cores come out with
// other bits, the same for every number of rows, the others with SIMT's.
TEST_P(OpsCudaTest, TensorCoresTakeTheMatricesThatFitThem) {
  const auto simt = TestDevice::NewOps();
  const auto tensor = TestDevice::NewOps(/*tensor_cores=*/true);
  EXPECT_EQ(tensor->name(), simt->name() + "/tensor");
  CpuOps cpu(Isa::kPortable, 1);
  struct Shape {
    DType dtype;
    int64_t k;
    bool fits;
  };
  for (const Shape& shape :
       {Shape{DType::kBf16, 272, true}, Shape{DType::kBf16, 264, false},
        Shape{DType::kF32, 272, false}}) {
    const auto [dtype, k, fits] = shape;
    SCOPED_TRACE(std::to_string(k) + (dtype == DType::kF32 ? " f32" : " bf16"));
    const auto a = RandomFloats(random_, static_cast<size_t>(20 * k));
    const auto b = RandomFloats(random_, static_cast<size_t>(70 * k));
    const auto got = Product(tensor.get(), dtype, a, b, k);
    EXPECT_TRUE(Near(got, Product(&cpu, dtype, a, b, k), 1e-5));
    EXPECT_NE(SameBits(got, Product(simt.get(), dtype, a, b, k)), fits);
    EXPECT_TRUE(SameBits(Product(tensor.get(), dtype, a, b, k, true), got));
    const auto alone = Product(tensor.get(), dtype,
                               std::span(a).last(static_cast<size_t>(k)), b, k);
    EXPECT_TRUE(SameBits(alone, std::span(got).last(70)));
  }
  EXPECT_TRUE(simt->Finish().ok());
  EXPECT_TRUE(tensor->Finish().ok());
}

TEST_P(OpsCudaTest, RowsAreImportedBesideWorkOnOthers) {
  const auto ops = TestDevice::NewOps();
  const KvShape shape{DType::kF32, 1, 16};
  std::vector<uint8_t*> pages;
  for (int i = 0; i < 3; ++i) pages.push_back(ops->NewPage(shape));
  const auto rows = RandomFloats(random_, 192 * 16);
  const std::span<const uint8_t> bytes(
      reinterpret_cast<const uint8_t*>(rows.data()), rows.size() * 4);
  const KvRowBytes place{shape, pages.data(), 3, 0, 192, true};
  const auto x = RandomFloats(random_, 512);
  const std::vector<float> alone = NormAndDouble(ops.get(), x, 5);

  std::atomic<bool> imported{false};
  std::thread loader([&] {
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(ops->ImportKv(place, bytes).ok());
    }
    imported.store(true);
  });
  do {
    EXPECT_EQ(NormAndDouble(ops.get(), x, 5), alone);
  } while (!imported.load());
  loader.join();
  std::vector<uint8_t> back(bytes.size());
  ASSERT_TRUE(ops->ExportKv(place, back).ok());
  EXPECT_TRUE(std::equal(back.begin(), back.end(), bytes.begin()));
  for (uint8_t* page : pages) ops->Free(page);
  EXPECT_TRUE(ops->Finish().ok());
}

// More than stand on the device between stored form and pages at a time.
TEST_P(OpsCudaTest, RowsThatTravelInPiecesComeBack) {
  const auto ops = TestDevice::NewOps();
  const KvShape shape{DType::kF32, 64, 256};
  const int64_t n_rows = 70;
  const auto row_bytes = static_cast<int64_t>(shape.row_bytes());
  std::vector<uint8_t> bytes(static_cast<size_t>(n_rows * row_bytes));
  random_.Fill(bytes);
  std::vector<uint8_t*> pages;
  for (int i = 0; i < 2; ++i) pages.push_back(ops->NewPage(shape));
  const KvRowBytes kv{shape, pages.data(), 2, 3, n_rows, true};
  std::vector<uint8_t> back(bytes.size());
  ASSERT_TRUE(ops->ImportKv(kv, bytes).ok());
  ASSERT_TRUE(ops->ExportKv(kv, back).ok());
  EXPECT_EQ(back, bytes);

  // Pages have room for K and V: twice as many records.
  const RecordRange records{
      {pages.data(), 2, 128, 250, row_bytes}, 200, n_rows};
  std::fill(back.begin(), back.end(), uint8_t{0});
  ASSERT_TRUE(ops->ImportRecords(records, bytes).ok());
  ASSERT_TRUE(ops->ExportRecords(records, back).ok());
  EXPECT_EQ(back, bytes);
  // Around the end of the ring.
  std::vector<uint8_t> row(static_cast<size_t>(row_bytes));
  ASSERT_TRUE(ops->ExportRecords({records.of, 0, 1}, row).ok());
  EXPECT_TRUE(
      std::equal(row.begin(), row.end(), bytes.begin() + 50 * row_bytes));
  for (uint8_t* page : pages) ops->Free(page);
  EXPECT_TRUE(ops->Finish().ok());
}

TEST_P(OpsCudaTest, AnExportWaitsForTheRowsThatAreComputed) {
  const auto ops = TestDevice::NewOps();
  const KvShape shape{DType::kF32, 1, 16};
  uint8_t* page = ops->NewPage(shape);
  const auto k = RandomFloats(random_, 16);
  const auto v = RandomFloats(random_, 16);
  {
    const Buffer<float> device_k(ops.get(), k);
    const Buffer<float> device_v(ops.get(), v);
    ops->PutKv(
        {shape, &page, 1, 5, 1, device_k.data(), 16, device_v.data(), 16});
  }
  std::vector<float> got(16);
  ASSERT_TRUE(
      ops->ExportKv({shape, &page, 1, 5, 1, false},
                    std::span(reinterpret_cast<uint8_t*>(got.data()), 64))
          .ok());
  EXPECT_EQ(got, v);
  ops->Free(page);
  EXPECT_TRUE(ops->Finish().ok());
}

TEST_P(OpsCudaTest, AnExportOfRecordsWaitsForTheRowsThatAreComputed) {
  const auto ops = TestDevice::NewOps();
  uint8_t* page = ops->NewPage(2 * 64);
  const RecordPages of{&page, 1, 2, 0, 64};
  const auto x = RandomFloats(random_, 16);
  {
    const Buffer<float> rows(ops.get(), x);
    uint8_t* const place = of.Row(1);
    ops->ScatterRows({rows.data(), 16, 1, 16, &place});
  }
  std::vector<float> got(16);
  ASSERT_TRUE(
      ops->ExportRecords({of, 1, 1},
                         std::span(reinterpret_cast<uint8_t*>(got.data()), 64))
          .ok());
  EXPECT_EQ(got, x);
  ops->Free(page);
  EXPECT_TRUE(ops->Finish().ok());
}

// More keys or experts than the shared memory of a multiprocessor holds.
TEST_P(OpsCudaTest, ShapesBeyondSharedMemoryAreRefused) {
  const auto ops = TestDevice::NewOps();
  const KeyRange window{0, kLatentKeysMax + 1};
  const LatentSegment segment{.n_rows = 1, .window_keys = &window};
  ops->LatentAttention({.attention = {.n_rows = 1, .head_dim = 64},
                        .segments = &segment,
                        .n_segments = 1});
  EXPECT_THAT(ops->Finish(), HasStatus(absl::StatusCode::kResourceExhausted,
                                       "got 1537 keys of 64 channels"));
  ops->ChooseExperts({.n_rows = 1, .n_experts = 1025, .k = 1});
  EXPECT_THAT(ops->Finish(), HasStatus(absl::StatusCode::kResourceExhausted,
                                       "got 1025 experts"));
}

TEST_P(OpsCudaTest, ALaunchThatIsRefusedIsNoLostDevice) {
  const auto ops = TestDevice::NewOps();
  const auto x = RandomFloats(random_, 512);
  const std::vector<float> wanted = NormAndDouble(ops.get(), x, 2);
  ASSERT_TRUE(ops->Finish().ok());
  ops->RmsNorm({.n_rows = 1, .dim = 4, .sink = static_cast<RowSink>(9)});
  EXPECT_THAT(ops->Finish(),
              HasStatus(absl::StatusCode::kResourceExhausted, "norm"));
  EXPECT_EQ(NormAndDouble(ops.get(), x, 2), wanted);
  EXPECT_TRUE(ops->Finish().ok());
}

#ifdef TORPOR_CUDA_EMULATED
TEST_P(OpsCudaTest, NoRoomIsToldOnceAndThenForgotten) {
  const auto ops = TestDevice::NewOps();
  const auto x = RandomFloats(random_, 512);
  const std::vector<float> wanted = NormAndDouble(ops.get(), x, 2);
  ASSERT_TRUE(ops->Finish().ok());
  device_.control().SetMemoryBytes(device_.control().bytes_allocated() + 3000);
  NormAndDouble(ops.get(), x, 2);
  EXPECT_THAT(ops->Finish(), HasStatus(absl::StatusCode::kResourceExhausted,
                                       "2048 bytes of device memory"));
  device_.control().SetMemoryBytes(UINT64_MAX);
  EXPECT_EQ(NormAndDouble(ops.get(), x, 2), wanted);
  EXPECT_TRUE(ops->Finish().ok());
}

TEST_P(OpsCudaTest, APageWithoutRoomFailsTheImport) {
  const auto ops = TestDevice::NewOps();
  const KvShape shape{DType::kF32, 1, 16};
  device_.control().SetMemoryBytes(0);
  uint8_t* page = ops->NewPage(shape);
  EXPECT_EQ(page, nullptr);
  const std::vector<uint8_t> row(64);
  EXPECT_THAT(ops->ImportKv({shape, &page, 1, 0, 1, true}, row),
              HasStatus(absl::StatusCode::kResourceExhausted, "no room"));
  EXPECT_THAT(ops->Finish(),
              HasStatus(absl::StatusCode::kResourceExhausted, "no room"));
}

TEST_P(OpsCudaTest, APageOfRecordsWithoutRoomFailsTheImport) {
  const auto ops = TestDevice::NewOps();
  device_.control().SetMemoryBytes(0);
  uint8_t* page = ops->NewPage(64);
  EXPECT_EQ(page, nullptr);
  // The page's error has been told: the import's is its own.
  EXPECT_THAT(ops->Finish(),
              HasStatus(absl::StatusCode::kResourceExhausted, "no room"));
  const std::vector<uint8_t> row(64);
  EXPECT_THAT(ops->ImportRecords({{&page, 1, 1, 0, 64}, 0, 1}, row),
              HasStatus(absl::StatusCode::kResourceExhausted,
                        "a page of the sequence"));
}

TEST_P(OpsCudaTest, ALostDeviceStaysLost) {
  const auto ops = TestDevice::NewOps();
  const auto x = RandomFloats(random_, 512);
  device_.control().LoseDevice();
  NormAndDouble(ops.get(), x, 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ops->Finish(), HasStatus(absl::StatusCode::kUnavailable,
                                         "illegal memory access"));
  }
}

constexpr bool kStreams[] = {false, true};
#else
constexpr bool kStreams[] = {false};
#endif

INSTANTIATE_TEST_SUITE_P(Streams, OpsCudaTest, ::testing::ValuesIn(kStreams),
                         [](const auto& info) {
                           return info.param ? "late" : "at_once";
                         });

TEST(MakeCudaOpsTest, ADeviceThatIsNotThereIsRefused) {
  [[maybe_unused]] const TestDevice device;
  const auto ops = MakeCudaOps({.device = 1000});
  EXPECT_THAT(ops.status(),
              HasStatus(absl::StatusCode::kUnavailable, "device"));
}

}  // namespace
}  // namespace torpor::kernels
