// SPDX-License-Identifier: Apache-2.0
//
// Rows that move: embeddings, strided copies, K and V and records into pages
// and back, on every backend. The expectations are written out here, element by
// element.

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/cpu_ops.h"
#include "tests/kernels/cuda_ops_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

// Pages of one layer, as a cache holds them.
class Pages {
 public:
  Pages(Ops* ops, const KvShape& shape, int64_t n) : ops_(*ops), shape_(shape) {
    for (int64_t i = 0; i < n; ++i) pages_.push_back(ops_.NewPage(shape));
  }
  ~Pages() {
    for (uint8_t* page : pages_) ops_.Free(page);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  [[nodiscard]] KvRowBytes Rows(int64_t position, int64_t n, bool is_k) const {
    return {.shape = shape_,
            .pages = pages_.data(),
            .n_pages = static_cast<int64_t>(pages_.size()),
            .position = position,
            .n_rows = n,
            .is_k = is_k};
  }
  void Put(int64_t position, int64_t n, std::span<const float> k,
           std::span<const float> v, int64_t stride) {
    const Buffer<float> device_k(&ops_, k);
    const Buffer<float> device_v(&ops_, v);
    ops_.PutKv({.shape = shape_,
                .pages = pages_.data(),
                .n_pages = static_cast<int64_t>(pages_.size()),
                .position = position,
                .n_rows = n,
                .k = device_k.data(),
                .k_stride = stride,
                .v = device_v.data(),
                .v_stride = stride});
    ASSERT_TRUE(ops_.Finish().ok());
  }
  [[nodiscard]] std::vector<uint8_t> Get(int64_t position, int64_t n,
                                         bool is_k) const {
    std::vector<uint8_t> out(static_cast<size_t>(n) * shape_.row_bytes());
    EXPECT_TRUE(ops_.ExportKv(Rows(position, n, is_k), out).ok());
    return out;
  }

 private:
  Ops& ops_;
  const KvShape shape_;
  std::vector<uint8_t*> pages_;
};

std::vector<uint8_t> Bytes(std::span<const float> rows, const KvShape& shape,
                           int64_t stride) {
  std::vector<uint8_t> out;
  const int64_t n = shape.row_elements();
  for (size_t row = 0; row < rows.size() / static_cast<size_t>(stride); ++row) {
    for (int64_t i = 0; i < n; ++i) {
      const float value = rows[row * static_cast<size_t>(stride) + i];
      const Bf16 rounded = ToBf16(value);
      const auto* from = shape.dtype == DType::kBf16
                             ? reinterpret_cast<const uint8_t*>(&rounded)
                             : reinterpret_cast<const uint8_t*>(&value);
      out.insert(out.end(), from, from + DTypeBytes(shape.dtype));
    }
  }
  return out;
}

struct RowsCase {
  const char* backend;
  DType dtype;
};

class RowsTest : public ::testing::TestWithParam<RowsCase> {
 protected:
  [[nodiscard]] DType dtype() const { return GetParam().dtype; }

  testing::Random random_;
  std::optional<TestDevice> device_;
  std::unique_ptr<Ops> own_ops_ = MakeOps();
  Ops& ops_ = *own_ops_;

 private:
  std::unique_ptr<Ops> MakeOps() {
    const std::string_view backend = GetParam().backend;
    if (backend == "cpu") return std::make_unique<CpuOps>(Isa::kPortable, 2);
    device_.emplace(TestDevice::Options{.late = backend == "cuda_late"});
    return TestDevice::NewOps();
  }
};

TEST_P(RowsTest, EmbeddingsAreTheTablesRowsTimesTheScale) {
  const int64_t dim = 37;
  const auto values = RandomFloats(random_, 11 * dim);
  const auto halves = ToBf16s(values);
  const bool narrow = dtype() == DType::kBf16;
  // At an odd address, as in a file.
  std::vector<uint8_t> table(1 + values.size() * DTypeBytes(dtype()));
  std::memcpy(table.data() + 1,
              narrow ? static_cast<const void*>(halves.data()) : values.data(),
              table.size() - 1);
  const std::vector<uint32_t> ids = {10, 0, 3, 3};
  Buffer<float> out(&ops_);
  out.Resize(ids.size() * dim);
  const auto placed = ops_.Place(std::span<const uint8_t>(table).subspan(1));
  ops_.EmbedRows({.table = placed.get(),
                  .dtype = dtype(),
                  .ids = ids.data(),
                  .n_rows = static_cast<int64_t>(ids.size()),
                  .dim = dim,
                  .scale = 3.5f,
                  .out = out.data()});
  std::vector<float> got(out.size());
  ops_.Download(got.data(), out.data(), got.size() * sizeof(float));
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t at = ids[i / dim] * dim + i % dim;
    const float wanted = narrow ? ToFloat(halves[at]) : values[at];
    EXPECT_EQ(got[i], wanted * 3.5f) << i;
  }
}

TEST_P(RowsTest, CopiesTouchNothingBetweenRows) {
  const auto x = RandomFloats(random_, 5 * 9);
  std::vector<float> wanted(5 * 7, -1.0f);
  Buffer<float> from(&ops_, x);
  Buffer<float> to(&ops_, wanted);
  ops_.CopyRows({from.data(), 9, 5, 6, to.data(), 7});
  for (size_t i = 0; i < 30; ++i)
    wanted[i / 6 * 7 + i % 6] = x[i / 6 * 9 + i % 6];
  std::vector<float> got(wanted.size());
  ops_.Download(got.data(), to.data(), got.size() * sizeof(float));
  EXPECT_EQ(got, wanted);
}

TEST_P(RowsTest, KeysAndValuesComeBackAsTheyWerePut) {
  const KvShape shape{dtype(), 3, 32};
  const int64_t stride = shape.row_elements() + 5;
  for (const int64_t n : {1, 2, 63, 64, 65, 130}) {
    // A ring of four pages: these positions wrap around it.
    for (const int64_t position : {0, 1, 63, 190, 255, 1000}) {
      Pages pages(&ops_, shape, 4);
      const auto k = RandomFloats(random_, static_cast<size_t>(n * stride));
      const auto v = RandomFloats(random_, static_cast<size_t>(n * stride));
      pages.Put(position, n, k, v, stride);
      EXPECT_EQ(pages.Get(position, n, true), Bytes(k, shape, stride));
      EXPECT_EQ(pages.Get(position, n, false), Bytes(v, shape, stride));
    }
  }
}

TEST_P(RowsTest, ImportedRowsTouchNoOthers) {
  const KvShape shape{dtype(), 2, 16};
  Pages pages(&ops_, shape, 3);
  const int64_t stride = shape.row_elements();
  const auto k = RandomFloats(random_, static_cast<size_t>(192 * stride));
  const auto v = RandomFloats(random_, k.size());
  pages.Put(0, 192, k, v, stride);
  auto wanted_k = Bytes(k, shape, stride);
  const auto wanted_v = Bytes(v, shape, stride);
  const auto other = RandomFloats(random_, static_cast<size_t>(70 * stride));
  const auto bytes = Bytes(other, shape, stride);
  ASSERT_TRUE(ops_.ImportKv(pages.Rows(50, 70, true), bytes).ok());
  std::copy(bytes.begin(), bytes.end(),
            wanted_k.begin() + 50 * static_cast<int64_t>(shape.row_bytes()));
  EXPECT_EQ(pages.Get(0, 192, true), wanted_k);
  EXPECT_EQ(pages.Get(0, 192, false), wanted_v);
}

// ---- rows to places of their own -------------------------------------------

// Bytes in a backend's memory, and places in them that lie apart.
class Places {
 public:
  Places(Ops* ops, size_t n, size_t room, size_t skip)
      : ops_(*ops),
        bytes_(ops, std::vector<uint8_t>(skip + n * room, kUntouched)) {
    for (size_t i = 0; i < n; ++i) {
      places_.push_back(bytes_.data() + skip + i * 7 % n * room);
    }
  }

  [[nodiscard]] uint8_t* const* data() const { return places_.data(); }
  // What each place has, and all that lies between.
  [[nodiscard]] std::vector<uint8_t> Read() const {
    std::vector<uint8_t> out(bytes_.size());
    ops_.Download(out.data(), bytes_.data(), out.size());
    return out;
  }
  // The same when row i, of row_bytes, went to place i.
  [[nodiscard]] std::vector<uint8_t> Wanted(const uint8_t* rows, size_t stride,
                                            size_t row_bytes) const {
    std::vector<uint8_t> out(bytes_.size(), kUntouched);
    for (size_t i = 0; i < places_.size(); ++i) {
      std::copy_n(rows + i * stride, row_bytes,
                  out.begin() + (places_[i] - bytes_.data()));
    }
    return out;
  }

 private:
  static constexpr uint8_t kUntouched = 0xab;

  Ops& ops_;
  Buffer<uint8_t> bytes_;
  std::vector<uint8_t*> places_;
};

TEST_P(RowsTest, ScatteredRowsGoWhereTheirPointersSay) {
  const auto x = RandomFloats(random_, 5 * 9);
  const Buffer<float> from(&ops_, x);
  // At aligned addresses, and at odd ones.
  for (const size_t skip : {0, 1}) {
    const Places places(&ops_, 5, 40, skip);
    ops_.ScatterRows({from.data(), 9, 5, 7, places.data()});
    EXPECT_EQ(
        places.Read(),
        places.Wanted(reinterpret_cast<const uint8_t*>(x.data()), 36, 28));
  }
}

TEST_P(RowsTest, EncodedRowsGoWhereTheirPointersSay) {
  constexpr int64_t kDim = 64;
  constexpr int64_t kRows = 300;
  const auto x = RandomFloats(random_, kRows * kDim);
  const Buffer<float> from(&ops_, x);
  for (const RowFormat format :
       {RowFormat::kMainFp4, RowFormat::kIndexFp4, RowFormat::kWindowFp8}) {
    const auto row_bytes = static_cast<size_t>(RowBytes(format, kDim, 0));
    std::vector<uint8_t> beside(kRows * row_bytes);
    EncodeRowsParams p{.format = format,
                       .x = x.data(),
                       .n_rows = kRows,
                       .dim = kDim,
                       .x_stride = kDim,
                       .out = beside.data(),
                       .out_stride = static_cast<int64_t>(row_bytes)};
    EncodeRowsRef(p);
    const Places places(&ops_, kRows, row_bytes + 3, 1);
    p.x = from.data();
    p.out = nullptr;
    p.rows = places.data();
    ops_.EncodeRows(p);
    EXPECT_EQ(places.Read(),
              places.Wanted(beside.data(), row_bytes, row_bytes));
  }
}

// Against rows kept in a map by their place.
TEST_P(RowsTest, RecordsComeBackFromPagesAndRings) {
  constexpr int64_t kRowBytes = 5;
  for (const int64_t ring : {0, 10}) {
    std::vector<uint8_t*> pages;
    for (int i = 0; i < 8; ++i) pages.push_back(ops_.NewPage(4 * kRowBytes));
    const RecordPages of{pages.data(), 8, 4, ring, kRowBytes};
    std::vector<std::vector<uint8_t>> kept(32,
                                           std::vector<uint8_t>(kRowBytes, 0));
    const auto place = [&](int64_t row) -> std::vector<uint8_t>& {
      return kept[static_cast<size_t>(ring == 0 ? row : row % ring)];
    };
    for (int64_t row = 0; row < (ring == 0 ? 32 : ring); ++row) {
      ASSERT_TRUE(ops_.ImportRecords({of, row, 1}, place(row)).ok());
    }
    for (int step = 0; step < 200; ++step) {
      const auto n = static_cast<int64_t>(random_.Between(0, 10));
      const auto row = static_cast<int64_t>(random_.Between(0, 22));
      std::vector<uint8_t> bytes(static_cast<size_t>(n * kRowBytes));
      if (random_.OneIn(2)) {
        random_.Fill(bytes);
        ASSERT_TRUE(ops_.ImportRecords({of, row, n}, bytes).ok());
        for (int64_t i = 0; i < n; ++i) {
          place(row + i).assign(bytes.begin() + i * kRowBytes,
                                bytes.begin() + (i + 1) * kRowBytes);
        }
        continue;
      }
      std::vector<uint8_t> wanted;
      for (int64_t i = 0; i < n; ++i) {
        wanted.insert(wanted.end(), place(row + i).begin(),
                      place(row + i).end());
      }
      ASSERT_TRUE(ops_.ExportRecords({of, row, n}, bytes).ok());
      EXPECT_EQ(bytes, wanted) << "row " << row << " of ring " << ring;
    }
    for (uint8_t* page : pages) ops_.Free(page);
  }
}

TEST(RecordRowsTest, EveryCpuPathEncodesRowsToTheirPlaces) {
  testing::Random random;
  constexpr int64_t kDim = 64;
  constexpr int64_t kRows = 300;
  const auto row_bytes =
      static_cast<size_t>(RowBytes(RowFormat::kMainFp4, kDim, 0));
  const auto x = RandomFloats(random, kRows * kDim);
  EncodeRowsParams p{
      .x = x.data(), .n_rows = kRows, .dim = kDim, .x_stride = kDim};
  for (const Isa isa : AvailableIsas()) {
    CpuOps ops(isa, 2);
    const Places wanted(&ops, kRows, row_bytes + 3, 0);
    p.rows = wanted.data();
    EncodeRowsRef(p);
    const Places got(&ops, kRows, row_bytes + 3, 0);
    p.rows = got.data();
    ops.EncodeRows(p);
    EXPECT_EQ(got.Read(), wanted.Read()) << IsaName(isa);
  }
}

std::vector<RowsCase> RowsCases() {
  std::vector<RowsCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    cases.push_back({"cpu", dtype});
    cases.push_back({"cuda", dtype});
#ifdef TORPOR_CUDA_EMULATED
    cases.push_back({"cuda_late", dtype});
#endif
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Backends, RowsTest, ::testing::ValuesIn(RowsCases()),
                         [](const ::testing::TestParamInfo<RowsCase>& info) {
                           return std::string(info.param.backend) +
                                  (info.param.dtype == DType::kF32 ? "_f32"
                                                                   : "_bf16");
                         });

}  // namespace
}  // namespace torpor::kernels
