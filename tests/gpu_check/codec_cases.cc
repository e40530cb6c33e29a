// SPDX-License-Identifier: Apache-2.0
//
// Row and weight codecs in DeepSeek V4.1's and V4's shapes.

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/row_codec_cuda.h"
#include "kernels/weight_codec_cuda.h"
#include "tests/gpu_check/kernel_cases.h"

namespace torpor::gpu_check {
namespace {

using kernels::DType;
using kernels::RowFormat;
using kernels::WeightFormat;

struct Format {
  const char* name;
  RowFormat format;
  int64_t dim;
  int64_t rope_dim;
};
constexpr Format kFormats[] = {
    {"main FP4", RowFormat::kMainFp4, 512, 0},
    {"index FP4", RowFormat::kIndexFp4, 128, 0},
    {"window FP8", RowFormat::kWindowFp8, 512, 0},
    {"V4 record", RowFormat::kV4Record, 512, 64},
};

// f32 rows, and what they are encoded.
struct Coded {
  Coded(const Format& format, bool tiny)
      : f(format),
        n_rows(tiny ? 3 : (int64_t{1} << 23) / f.dim),
        bytes(kernels::RowBytes(f.format, f.dim, f.rope_dim)),
        x(Normals(n_rows * f.dim, 41)),
        rows(static_cast<size_t>(n_rows * bytes)) {
    kernels::EncodeRowsRef(Encode(x.data(), rows.data()));
  }
  [[nodiscard]] kernels::EncodeRowsParams Encode(const float* from,
                                                 uint8_t* to) const {
    return {.format = f.format,
            .x = from,
            .n_rows = n_rows,
            .dim = f.dim,
            .rope_dim = f.rope_dim,
            .x_stride = f.dim,
            .out = to,
            .out_stride = bytes};
  }
  [[nodiscard]] kernels::DecodeRowsParams Decode(const uint8_t* from,
                                                 float* to) const {
    return {.format = f.format,
            .in = from,
            .n_rows = n_rows,
            .dim = f.dim,
            .rope_dim = f.rope_dim,
            .in_stride = bytes,
            .out = to,
            .out_stride = f.dim};
  }
  [[nodiscard]] std::string shape() const {
    return absl::StrFormat("%s %dx%d", f.name, n_rows, f.dim);
  }
  [[nodiscard]] Floor floor() const {
    return {.bytes = static_cast<double>(n_rows * (4 * f.dim + bytes))};
  }

  const Format f;
  const int64_t n_rows;
  const int64_t bytes;
  const std::vector<float> x;
  std::vector<uint8_t> rows;
};

KernelCase EncodeRows(const Format& format, bool tiny) {
  const auto c = std::make_shared<const Coded>(format, tiny);
  const auto in = OnDevice(c->x);
  const auto out = OnDevice<uint8_t>(c->n_rows * c->bytes);
  return {.shape = c->shape(),
          .floor = c->floor(),
          .launch =
              [=] {
                return kernels::EncodeRowsCuda(
                    c->Encode(in->data(), out->data()), nullptr);
              },
          .fault = [=] { return Differ(out->Download(), c->rows); }};
}

KernelCase DecodeRows(const Format& format, bool tiny) {
  const auto c = std::make_shared<const Coded>(format, tiny);
  const auto in = OnDevice(c->rows);
  const auto out = OnDevice<float>(c->n_rows * c->f.dim);
  return {
      .shape = c->shape(),
      .floor = c->floor(),
      .launch =
          [=] {
            return kernels::DecodeRowsCuda(c->Decode(in->data(), out->data()),
                                           nullptr);
          },
      .fault =
          [=] {
            std::vector<float> wanted(c->x.size());
            kernels::DecodeRowsRef(c->Decode(c->rows.data(), wanted.data()));
            return Differ(out->Download(), wanted);
          }};
}

// Codes of any byte that is no NaN, scales around 1.
KernelCase DecodeWeights(const char* name, WeightFormat format, bool tiny) {
  const int64_t n_rows = tiny ? 3 : 8192;
  const int64_t dim = tiny ? 64 : 4096;
  const int64_t n_codes =
      n_rows * (format == WeightFormat::kFp8 ? dim : dim / 2);
  std::mt19937_64 engine(42);
  std::vector<uint8_t> codes(static_cast<size_t>(n_codes));
  for (uint8_t& code : codes) code = static_cast<uint8_t>(engine() & 0x77);
  std::vector<uint8_t> scales(static_cast<size_t>(n_rows * dim / 32));
  for (uint8_t& scale : scales) {
    scale = static_cast<uint8_t>(120 + engine() % 16);
  }
  const auto params = [=](const uint8_t* c, const uint8_t* s, float* out) {
    return kernels::DecodeWeightsParams{.format = format,
                                        .codes = c,
                                        .codes_stride = n_codes / n_rows,
                                        .scales = s,
                                        .scales_stride = dim / 32,
                                        .n_rows = n_rows,
                                        .dim = dim,
                                        .out = out,
                                        .out_stride = dim};
  };
  const auto device_codes = OnDevice(codes);
  const auto device_scales = OnDevice(scales);
  const auto out = OnDevice<float>(n_rows * dim);
  return {.shape = absl::StrFormat("%s %dx%d", name, n_rows, dim),
          .floor = {.bytes = static_cast<double>(
                        n_codes + static_cast<int64_t>(scales.size()) +
                        4 * n_rows * dim)},
          .launch =
              [=] {
                return kernels::DecodeWeightsCuda(
                    params(device_codes->data(), device_scales->data(),
                           out->data()),
                    nullptr);
              },
          .fault =
              [=] {
                std::vector<float> wanted(static_cast<size_t>(n_rows * dim));
                kernels::DecodeWeightsRef(
                    params(codes.data(), scales.data(), wanted.data()));
                return Differ(out->Download(), wanted);
              }};
}

KernelCase FakeQuantFp8(bool tiny) {
  const int64_t n_rows = tiny ? 3 : 4096;
  const int64_t dim = tiny ? 64 : 4096;
  const auto x = Normals(n_rows * dim, 43);
  const auto device_x = OnDevice(x);
  return {.shape = absl::StrFormat("%dx%d", n_rows, dim),
          .floor = {.bytes = 8.0 * static_cast<double>(n_rows * dim)},
          .launch =
              [=] {
                return kernels::FakeQuantFp8Cuda(
                    {device_x->data(), n_rows, dim, dim}, nullptr);
              },
          .fault =
              [=] {
                auto wanted = x;
                kernels::FakeQuantFp8Ref({wanted.data(), n_rows, dim, dim});
                return Differ(device_x->Download(), wanted);
              }};
}

}  // namespace

std::vector<NamedCase> CodecCases() {
  std::vector<NamedCase> cases;
  for (const Format& f : kFormats) {
    cases.push_back(
        {"EncodeRows", [&f](bool tiny) { return EncodeRows(f, tiny); }});
    cases.push_back(
        {"DecodeRows", [&f](bool tiny) { return DecodeRows(f, tiny); }});
  }
  cases.push_back({"DecodeWeights", [](bool tiny) {
                     return DecodeWeights("FP8", WeightFormat::kFp8, tiny);
                   }});
  cases.push_back({"DecodeWeights", [](bool tiny) {
                     return DecodeWeights("FP4", WeightFormat::kFp4, tiny);
                   }});
  cases.push_back({"FakeQuantFp8", FakeQuantFp8});
  return cases;
}

}  // namespace torpor::gpu_check
