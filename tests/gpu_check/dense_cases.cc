// SPDX-License-Identifier: Apache-2.0
//
// Ops of dense models, in Gemma 3 270M's shapes: 640 channels, four query heads
// and one KV head of 256, 2,048 of the MLP.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "kernels/activation_cuda.h"
#include "kernels/kv_rows_cuda.h"
#include "kernels/rms_norm_cuda.h"
#include "kernels/rope_cuda.h"
#include "kernels/row_hash_cuda.h"
#include "kernels/rows_cuda.h"
#include "tests/gpu_check/kernel_cases.h"

namespace torpor::gpu_check {
namespace {

using kernels::Bf16;
using kernels::DType;

constexpr int64_t kHidden = 640;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 256;
constexpr int64_t kMlp = 2048;

int64_t RowsOf(bool tiny) { return tiny ? 3 : 16'384; }

std::string Text(int64_t rows, int64_t dim) {
  return absl::StrFormat("%dx%d", rows, dim);
}

double Product(int64_t a, int64_t b, double bytes) {
  return static_cast<double>(a) * static_cast<double>(b) * bytes;
}

KernelCase RmsNorm(int64_t rows, int64_t dim) {
  const auto x = Normals(rows * dim, 1);
  const auto weight = Normals(dim, 2);
  kernels::RmsNormParams p{.n_rows = rows,
                           .dim = dim,
                           .x_stride = dim,
                           .offset = 1.0f,
                           .eps = 1e-6f,
                           .out_stride = dim};
  const auto device_x = OnDevice(x);
  const auto device_weight = OnDevice(weight);
  const auto out = OnDevice<float>(rows * dim);
  const auto fault = [=]() mutable {
    std::vector<float> wanted(x.size());
    p.x = x.data();
    p.weight = weight.data();
    p.out = wanted.data();
    kernels::RmsNormRef(p);
    return Differ(out->Download(), wanted, 1e-6);
  };
  p.x = device_x->data();
  p.weight = device_weight->data();
  p.out = out->data();
  return {.shape = Text(rows, dim),
          .floor = {.bytes = Product(rows, dim, 8)},
          .launch =
              [=, keep = std::pair(device_x, device_weight)] {
                return kernels::RmsNormCuda(p, nullptr);
              },
          .fault = fault};
}

// [n_rows, dim] tables of positions 3, 1003, ...
std::vector<float> Tables(int64_t n_rows, int64_t dim) {
  const auto inv_freq = kernels::RopeInvFreq(10000.0f, dim, 1.0f);
  std::vector<float> tables(static_cast<size_t>(n_rows * dim));
  for (int64_t r = 0; r < n_rows; ++r) {
    kernels::RopeTable(inv_freq, static_cast<uint64_t>(1000 * r + 3),
                       tables.data() + r * dim);
  }
  return tables;
}

KernelCase Rope(bool tiny) {
  const int64_t rows = RowsOf(tiny) / 2 + 1;
  const auto x = Normals(rows * kHeads * kHeadDim, 3);
  const auto tables = Tables(rows, kHeadDim);
  const auto device_x = OnDevice(x);
  const auto device_tables = OnDevice(tables);
  return {.shape = absl::StrFormat("%dx%dx%d", rows, kHeads, kHeadDim),
          .floor = {.bytes = Product(rows * kHeads, kHeadDim, 12)},
          .launch =
              [=] {
                return kernels::RopeCuda({device_x->data(), rows, kHeads,
                                          kHeadDim, device_tables->data()},
                                         nullptr);
              },
          .fault =
              [=] {
                auto wanted = x;
                kernels::RopeRef(
                    {wanted.data(), rows, kHeads, kHeadDim, tables.data()});
                return Differ(device_x->Download(), wanted, 1e-6);
              }};
}

// DeepSeek's: the last 64 of 512 channels of a head.
KernelCase RopeTail(bool tiny) {
  const int64_t rows = tiny ? 3 : 1024;
  constexpr int64_t kTailHeads = 64;
  constexpr int64_t kDim = 512;
  constexpr int64_t kRope = 64;
  const auto x = Normals(rows * kTailHeads * kDim, 4);
  const auto tables = Tables(rows, kRope);
  const auto device_x = OnDevice(x);
  const auto device_tables = OnDevice(tables);
  const auto params = [=](float* at, const float* table) {
    return kernels::RopeTailParams{.x = at,
                                   .n_rows = rows,
                                   .n_heads = kTailHeads,
                                   .head_dim = kDim,
                                   .rope_dim = kRope,
                                   .tables = table};
  };
  return {
      .shape = absl::StrFormat("%dx%dx%d of %d", rows, kTailHeads, kRope, kDim),
      .floor = {.bytes = Product(rows * kTailHeads, kRope, 12)},
      .launch =
          [=] {
            return kernels::RopeTailCuda(
                params(device_x->data(), device_tables->data()), nullptr);
          },
      .fault =
          [=] {
            auto wanted = x;
            kernels::RopeTailRef(params(wanted.data(), tables.data()));
            return Differ(device_x->Download(), wanted, 1e-6);
          }};
}

std::vector<float> Widened(const std::vector<Bf16>& values) {
  std::vector<float> out;
  out.reserve(values.size());
  for (const Bf16 v : values) out.push_back(kernels::ToFloat(v));
  return out;
}

template <typename Params>
KernelCase Gated(bool tiny, Params p,
                 int (*launch)(const Params&, kernels::CudaStream),
                 void (*reference)(const Params&)) {
  p.n_rows = RowsOf(tiny) / 2;
  p.dim = kMlp;
  p.out_dtype = DType::kBf16;
  const int64_t n = p.n_rows * p.dim;
  const auto in = Normals(2 * n, 5);
  const auto device_in = OnDevice(in);
  const auto out = OnDevice<Bf16>(n);
  const auto fault = [=]() mutable {
    std::vector<Bf16> wanted(static_cast<size_t>(n));
    p.gate_up = in.data();
    p.out = wanted.data();
    reference(p);
    return Differ(Widened(out->Download()), Widened(wanted), 0x1p-8);
  };
  p.gate_up = device_in->data();
  p.out = out->data();
  return {.shape = Text(p.n_rows, p.dim),
          .floor = {.bytes = Product(p.n_rows, p.dim, 10)},
          .launch = [=, keep = device_in] { return launch(p, nullptr); },
          .fault = fault};
}

KernelCase GatedGelu(bool tiny) {
  return Gated(tiny, kernels::GatedGeluParams{}, kernels::GatedGeluCuda,
               kernels::GatedGeluRef);
}
KernelCase GatedSilu(bool tiny) {
  return Gated(tiny, kernels::GatedSiluParams{.limit = 2.0f},
               kernels::GatedSiluCuda, kernels::GatedSiluRef);
}

// An op in place.
template <typename Params>
KernelCase InPlace(bool tiny, Params p,
                   int (*launch)(const Params&, kernels::CudaStream),
                   void (*reference)(const Params&)) {
  p.n = RowsOf(tiny) * 1024;
  const auto x = Normals(p.n, 6);
  const auto device_x = OnDevice(x);
  return {.shape = absl::StrFormat("%d", p.n),
          .floor = {.bytes = Product(p.n, 1, 8)},
          .launch =
              [=]() mutable {
                p.x = device_x->data();
                return launch(p, nullptr);
              },
          .fault =
              [=]() mutable {
                auto wanted = x;
                p.x = wanted.data();
                reference(p);
                return Differ(device_x->Download(), wanted, 1e-6);
              }};
}

KernelCase Softcap(bool tiny) {
  return InPlace(tiny, kernels::SoftcapParams{.cap = 2.0f},
                 kernels::SoftcapCuda, kernels::SoftcapRef);
}
KernelCase RoundBf16(bool tiny) {
  return InPlace(tiny, kernels::RoundBf16Params{}, kernels::RoundBf16Cuda,
                 kernels::RoundBf16Ref);
}
KernelCase Scale(bool tiny) {
  return InPlace(tiny, kernels::ScaleParams{.factor = 0.75f},
                 kernels::ScaleCuda, kernels::ScaleRef);
}

KernelCase Add(bool tiny) {
  const int64_t n = RowsOf(tiny) * 1024;
  const auto x = Normals(n, 17);
  const auto y = Normals(n, 18);
  const auto device_x = OnDevice(x);
  const auto device_y = OnDevice(y);
  return {.shape = absl::StrFormat("%d", n),
          .floor = {.bytes = Product(n, 1, 12)},
          .launch =
              [=] {
                return kernels::AddCuda(
                    {.x = device_x->data(), .y = device_y->data(), .n = n},
                    nullptr);
              },
          .fault =
              [=] {
                auto wanted = x;
                kernels::AddRef({.x = wanted.data(), .y = y.data(), .n = n});
                return Differ(device_x->Download(), wanted, 1e-6);
              }};
}

KernelCase ToBf16(bool tiny) {
  const int64_t n = RowsOf(tiny) * 1024;
  const auto x = Normals(n, 7);
  const auto device_x = OnDevice(x);
  const auto out = OnDevice<Bf16>(n);
  return {.shape = absl::StrFormat("%d", n),
          .floor = {.bytes = Product(n, 1, 6)},
          .launch =
              [=] {
                return kernels::ToBf16Cuda({device_x->data(), n, out->data()},
                                           nullptr);
              },
          .fault =
              [=] {
                std::vector<Bf16> wanted(x.size());
                kernels::ToBf16Ref({x.data(), n, wanted.data()});
                return Differ(out->Download(), wanted);
              }};
}

// Each of `rows` once, in an order that is not theirs.
std::vector<int32_t> Scattered(int64_t rows) {
  // Prime, so that steps of it meet every row of a number that it does not
  // divide.
  constexpr int64_t kStep = 7919;
  std::vector<int32_t> out;
  for (int64_t i = 0; i < rows; ++i) {
    out.push_back(static_cast<int32_t>(i * kStep % rows));
  }
  return out;
}

KernelCase EmbedRows(bool tiny) {
  const int64_t vocab = tiny ? 11 : 32'768;
  const int64_t rows = RowsOf(tiny);
  const auto table = kernels::ToBf16s(Normals(vocab * kHidden, 8));
  std::vector<uint32_t> ids;
  for (const int32_t id : Scattered(vocab)) {
    if (static_cast<int64_t>(ids.size()) < rows) ids.push_back(id);
  }
  const auto device_table = OnDevice(table);
  const auto device_ids = OnDevice(ids);
  const auto out = OnDevice<float>(rows * kHidden);
  const auto params = [=](const Bf16* t, const uint32_t* i, float* o) {
    return kernels::EmbedRowsParams{
        .table = reinterpret_cast<const uint8_t*>(t),
        .dtype = DType::kBf16,
        .ids = i,
        .n_rows = rows,
        .dim = kHidden,
        .scale = 25.25f,
        .out = o};
  };
  return {
      .shape = Text(rows, kHidden) + " bf16",
      .floor = {.bytes = Product(rows, kHidden, 6)},
      .launch =
          [=] {
            return kernels::EmbedRowsCuda(
                params(device_table->data(), device_ids->data(), out->data()),
                nullptr);
          },
      .fault =
          [=] {
            std::vector<float> wanted(static_cast<size_t>(rows * kHidden));
            kernels::EmbedRowsRef(
                params(table.data(), ids.data(), wanted.data()));
            return Differ(out->Download(), wanted);
          }};
}

// Rows to the places of others.
KernelCase ScatterRows(bool tiny) {
  const int64_t rows = RowsOf(tiny);
  const auto x = Normals(rows * kHidden, 9);
  const auto out = OnDevice<float>(rows * kHidden);
  const auto index = Scattered(rows);
  std::vector<uint8_t*> places;
  for (const int32_t row : index) {
    places.push_back(reinterpret_cast<uint8_t*>(out->data() + row * kHidden));
  }
  const auto device_x = OnDevice(x);
  const auto device_places = OnDevice(places);
  return {.shape = Text(rows, kHidden),
          .floor = {.bytes = Product(rows, kHidden, 8)},
          .launch =
              [=] {
                return kernels::ScatterRowsCuda(
                    {device_x->data(), kHidden, rows, kHidden,
                     device_places->data()},
                    nullptr);
              },
          .fault =
              [=] {
                std::vector<float> wanted(x.size());
                for (int64_t i = 0; i < rows; ++i) {
                  std::copy_n(
                      x.begin() + i * kHidden, kHidden,
                      wanted.begin() + index[static_cast<size_t>(i)] * kHidden);
                }
                return Differ(out->Download(), wanted);
              }};
}

// Rows of one sequence, in pages or to be put there.
class KvCase {
 public:
  explicit KvCase(bool tiny)
      : rows_(tiny ? 70 : 65'536),
        values(kernels::ToBf16s(Normals(2 * rows_ * kHeadDim, 12))) {
    const int64_t n_pages =
        (rows_ + kernels::kPageTokens - 1) / kernels::kPageTokens;
    pages_ =
        OnDevice<uint8_t>(n_pages * static_cast<int64_t>(kShape.page_bytes()));
    std::vector<uint8_t*> table;
    for (int64_t i = 0; i < n_pages; ++i) {
      table.push_back(pages_->data() +
                      i * static_cast<int64_t>(kShape.page_bytes()));
    }
    table_ = OnDevice(table);
    segment_ = OnDevice(std::vector<kernels::KvRowSegment>{
        {.n_rows = rows_, .pages = table_->data(), .n_pages = n_pages}});
    in_ = OnDevice(values);
    out_ = OnDevice<Bf16>(2 * rows_ * kHeadDim);
  }

  // K, then V of a row.
  [[nodiscard]] kernels::KvRowsParams Params(const Device<Bf16>& at) const {
    return {.shape = kShape,
            .k = at->data(),
            .k_stride = 2 * kHeadDim,
            .v = at->data() + kHeadDim,
            .v_stride = 2 * kHeadDim,
            .rows_dtype = DType::kBf16,
            .segments = segment_->data(),
            .n_segments = 1,
            .n_rows = rows_};
  }
  int Put() const { return kernels::PutKvRowsCuda(Params(in_), nullptr); }
  int Get() const { return kernels::GetKvRowsCuda(Params(out_), nullptr); }
  std::string Fault() const { return Differ(out_->Download(), values); }
  // Either way.
  [[nodiscard]] Floor floor() const {
    return {.bytes = Product(rows_, kHeadDim, 8)};
  }
  [[nodiscard]] std::string shape() const {
    return Text(rows_, kHeadDim) + " bf16 K and V";
  }

 private:
  static constexpr kernels::KvShape kShape{DType::kBf16, 1, kHeadDim};
  const int64_t rows_;
  const std::vector<Bf16> values;
  Device<uint8_t> pages_;
  Device<uint8_t*> table_;
  Device<kernels::KvRowSegment> segment_;
  Device<Bf16> in_;
  Device<Bf16> out_;
};

KernelCase PutKvRows(bool tiny) {
  const auto c = std::make_shared<KvCase>(tiny);
  return {.shape = c->shape(),
          .floor = c->floor(),
          .launch = [=] { return c->Put(); },
          .fault = [=] { return c->Get() == 0 ? c->Fault() : "no way back"; }};
}
KernelCase GetKvRows(bool tiny) {
  const auto c = std::make_shared<KvCase>(tiny);
  return {.shape = c->shape(),
          .floor = c->floor(),
          .launch = [=, put = c->Put()] { return put != 0 ? put : c->Get(); },
          .fault = [=] { return c->Fault(); }};
}

KernelCase RowHash(bool tiny) {
  const int64_t rows = tiny ? 3 : 65'536;
  constexpr int64_t kBytes = 4 * kHeadDim;
  const auto values = Normals(rows * kHeadDim, 13);
  const auto in = OnDevice(values);
  const auto out = OnDevice<uint64_t>(rows);
  return {.shape = Text(rows, kBytes) + " B",
          .floor = {.bytes = Product(rows, kBytes + 8, 1)},
          .launch =
              [=] {
                return kernels::RowHashCuda(
                    {.rows = reinterpret_cast<const uint8_t*>(in->data()),
                     .n_rows = rows,
                     .n_bytes = kBytes,
                     .stride = kBytes,
                     .out = out->data()},
                    nullptr);
              },
          .fault =
              [=] {
                std::vector<uint64_t> wanted;
                for (int64_t row = 0; row < rows; ++row) {
                  wanted.push_back(
                      Xxh3(std::span(reinterpret_cast<const uint8_t*>(
                                         values.data() + row * kHeadDim),
                                     static_cast<size_t>(kBytes))));
                }
                return Differ(out->Download(), wanted);
              }};
}

}  // namespace

std::vector<NamedCase> DenseCases() {
  return {{"RmsNorm", [](bool tiny) { return RmsNorm(RowsOf(tiny), kHidden); }},
          {"RmsNorm",
           [](bool tiny) { return RmsNorm(RowsOf(tiny) * kHeads, kHeadDim); }},
          {"Rope", Rope},
          {"RopeTail", RopeTail},
          {"GatedGelu", GatedGelu},
          {"GatedSilu", GatedSilu},
          {"Add", Add},
          {"Softcap", Softcap},
          {"ToBf16", ToBf16},
          {"RoundBf16", RoundBf16},
          {"Scale", Scale},
          {"EmbedRows", EmbedRows},
          {"ScatterRows", ScatterRows},
          {"PutKvRows", PutKvRows},
          {"GetKvRows", GetKvRows},
          {"RowHash", RowHash}};
}

}  // namespace torpor::gpu_check
