// SPDX-License-Identifier: Apache-2.0
//
// Products: Gemma 3 270M's gate and up (4,096 columns of k 640), for one row,
// sixteen and thousands, on both paths; and experts.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/gemm_cuda.h"
#include "tests/gpu_check/kernel_cases.h"

namespace torpor::gpu_check {
namespace {

using kernels::Bf16;
using kernels::DType;
using kernels::GemmPath;

std::vector<uint8_t> BytesOf(const std::vector<float>& values, DType dtype) {
  const auto half = kernels::ToBf16s(values);
  const auto* from = dtype == DType::kBf16
                         ? reinterpret_cast<const uint8_t*>(half.data())
                         : reinterpret_cast<const uint8_t*>(values.data());
  return {from, from + values.size() * kernels::DTypeBytes(dtype)};
}

// Matrices of [n, k] on the device, packed, one after the other.
class Matrices {
 public:
  Matrices(int64_t count, int64_t n, int64_t k, DType dtype)
      : values_(Normals(n * k, 21)),
        shape_{nullptr, n, k, dtype},
        source_(OnDevice(BytesOf(values_, dtype))),
        packed_(OnDevice<uint8_t>(count * bytes())) {
    for (int64_t i = 0; i < count; ++i) error_ = std::max(error_, Pack(i));
  }

  // All are alike.
  int Pack(int64_t i) const {
    return kernels::PackMatrixCuda({.source = source_->data(),
                                    .source_dtype = shape_.dtype,
                                    .source_stride = shape_.k,
                                    .n_columns = shape_.n,
                                    .matrix = matrix(i),
                                    .packed = packed_->data() + i * bytes()},
                                   nullptr);
  }
  [[nodiscard]] kernels::DeviceMatrix matrix(int64_t i) const {
    kernels::DeviceMatrix m = shape_;
    m.data = packed_->data() + i * bytes();
    return m;
  }
  // Of packing.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] int64_t bytes() const {
    return static_cast<int64_t>(shape_.bytes());
  }

  // Row `a` of k values times the matrix, in double.
  [[nodiscard]] std::vector<float> Times(std::span<const float> a) const {
    const auto value = [&](float v) -> double {
      return shape_.dtype == DType::kBf16 ? kernels::RoundToBf16(v) : v;
    };
    std::vector<float> out;
    for (int64_t n = 0; n < shape_.n; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < shape_.k; ++k) {
        sum += value(a[static_cast<size_t>(k)]) *
               value(values_[static_cast<size_t>(n * shape_.k + k)]);
      }
      out.push_back(static_cast<float>(sum));
    }
    return out;
  }

  // That every element of the matrix stands where its index says, and zeros
  // elsewhere.
  [[nodiscard]] std::string PackFault() const {
    std::vector<float> wanted(shape_.bytes() /
                              kernels::DTypeBytes(shape_.dtype));
    for (int64_t n = 0; n < shape_.n; ++n) {
      for (int64_t k = 0; k < shape_.k; ++k) {
        wanted[static_cast<size_t>(shape_.Index(n, k))] =
            values_[static_cast<size_t>(n * shape_.k + k)];
      }
    }
    return Differ(packed_->Download(), BytesOf(wanted, shape_.dtype));
  }

 private:
  const std::vector<float> values_;
  const kernels::DeviceMatrix shape_;
  const Device<uint8_t> source_;
  const Device<uint8_t> packed_;
  int error_ = 0;
};

// PTX does not say that tensor cores round their sums: they may cut one off
// every eight products, by 2^-23 of it, and it may be twice the largest result.
double ToleranceOf(int64_t k, GemmPath path) {
  return path == GemmPath::kTensorCores ? static_cast<double>(k) / 8 * 0x1p-22
                                        : 1e-6;
}

// The first, the last and one between of `n` rows of c against their products.
std::string RowsFault(const std::vector<float>& c, const std::vector<float>& a,
                      int64_t k, const Matrices& b, GemmPath path) {
  const auto n_rows = static_cast<int64_t>(a.size()) / k;
  const size_t n = c.size() / static_cast<size_t>(n_rows);
  for (const int64_t row : {int64_t{0}, n_rows / 2, n_rows - 1}) {
    const std::string fault =
        Differ(std::span(c).subspan(static_cast<size_t>(row) * n, n),
               b.Times(std::span(a).subspan(static_cast<size_t>(row * k),
                                            static_cast<size_t>(k))),
               ToleranceOf(k, path));
    if (!fault.empty()) return absl::StrFormat("row %d: %s", row, fault);
  }
  return "";
}

const char* Name(DType dtype, GemmPath path) {
  if (path == GemmPath::kTensorCores) return "bf16, tensor cores";
  return dtype == DType::kBf16 ? "bf16" : "f32";
}

// The header's floor.
Floor FloorOf(double rows, double n, double k, double matrices, DType dtype,
              GemmPath path) {
  const auto element = static_cast<double>(kernels::DTypeBytes(dtype));
  return {
      .bytes = matrices * n * k * element + rows * k * element + rows * n * 4,
      .operations = 2 * rows * n * k,
      .tensor_cores = path == GemmPath::kTensorCores};
}

KernelCase Gemm(int64_t rows, int64_t n, int64_t k, DType dtype,
                GemmPath path) {
  const auto b = std::make_shared<Matrices>(1, n, k, dtype);
  const auto a = Normals(rows * k, 22);
  const auto device_a = OnDevice(BytesOf(a, dtype));
  const auto c = OnDevice<float>(rows * n);
  return {
      .shape = absl::StrFormat("%dx%dx%d %s", rows, n, k, Name(dtype, path)),
      .floor = FloorOf(static_cast<double>(rows), static_cast<double>(n),
                       static_cast<double>(k), 1, dtype, path),
      .launch =
          [=] {
            if (b->error() != 0) return b->error();
            return kernels::GemmCuda({.a = device_a->data(),
                                      .a_dtype = dtype,
                                      .n_rows = rows,
                                      .b = b->matrix(0),
                                      .c = c->data(),
                                      .path = path},
                                     nullptr);
          },
      .fault = [=] { return RowsFault(c->Download(), a, k, *b, path); }};
}

KernelCase GroupedGemm(int64_t n_groups, int64_t rows_of_group, int64_t n,
                       int64_t k, GemmPath path) {
  const int64_t rows = n_groups * rows_of_group;
  const auto b = std::make_shared<Matrices>(n_groups, n, k, DType::kBf16);
  const auto a = Normals(rows * k, 23);
  const auto device_a = OnDevice(BytesOf(a, DType::kBf16));
  const auto c = OnDevice<float>(rows * n);
  std::vector<int32_t> begin;
  std::vector<const void*> matrices;
  for (int64_t g = 0; g <= n_groups; ++g) {
    begin.push_back(static_cast<int32_t>(g * rows_of_group));
    if (g < n_groups) matrices.push_back(b->matrix(g).data);
  }
  const auto device_begin = OnDevice(begin);
  const auto device_matrices = OnDevice(matrices);
  return {.shape = absl::StrFormat("%d x %dx%dx%d %s", n_groups, rows_of_group,
                                   n, k, Name(DType::kBf16, path)),
          .floor = FloorOf(static_cast<double>(rows), static_cast<double>(n),
                           static_cast<double>(k),
                           static_cast<double>(n_groups), DType::kBf16, path),
          .launch =
              [=] {
                if (b->error() != 0) return b->error();
                return kernels::GroupedGemmCuda(
                    {.a = device_a->data(),
                     .a_dtype = DType::kBf16,
                     .group_begin = device_begin->data(),
                     .n_groups = n_groups,
                     .n_entries = rows,
                     .b = b->matrix(0),
                     .matrices = device_matrices->data(),
                     .c = c->data(),
                     .path = path},
                    nullptr);
              },
          .fault = [=] { return RowsFault(c->Download(), a, k, *b, path); }};
}

KernelCase PackMatrix(bool tiny) {
  const int64_t n = tiny ? 40 : 16'384;
  const int64_t k = tiny ? 32 : 2048;
  const auto b = std::make_shared<Matrices>(1, n, k, DType::kBf16);
  return {.shape = absl::StrFormat("%dx%d bf16", n, k),
          .floor = {.bytes = 4.0 * static_cast<double>(n * k)},
          .launch = [=] { return b->Pack(0); },
          .fault = [=] { return b->PackFault(); }};
}

struct Case {
  int64_t rows, n, k;
  DType dtype;
  GemmPath path;
};
constexpr Case kGemms[] = {
    {1, 4096, 640, DType::kBf16, GemmPath::kSimt},
    {16, 4096, 640, DType::kBf16, GemmPath::kSimt},
    {4096, 4096, 640, DType::kBf16, GemmPath::kSimt},
    {4096, 4096, 640, DType::kF32, GemmPath::kSimt},
    {1, 4096, 640, DType::kBf16, GemmPath::kTensorCores},
    {16, 4096, 640, DType::kBf16, GemmPath::kTensorCores},
    {4096, 4096, 640, DType::kBf16, GemmPath::kTensorCores},
    {4096, 4096, 4096, DType::kBf16, GemmPath::kSimt},
    {4096, 4096, 4096, DType::kBf16, GemmPath::kTensorCores},
};

}  // namespace

std::vector<NamedCase> GemmCases() {
  std::vector<NamedCase> cases = {{"PackMatrix", PackMatrix}};
  for (const Case& c : kGemms) {
    cases.push_back({"Gemm", [&c](bool tiny) {
                       return tiny ? Gemm(std::min<int64_t>(c.rows, 17), 40, 32,
                                          c.dtype, c.path)
                                   : Gemm(c.rows, c.n, c.k, c.dtype, c.path);
                     }});
  }
  for (const GemmPath path : {GemmPath::kSimt, GemmPath::kTensorCores}) {
    cases.push_back({"GroupedGemm", [path](bool tiny) {
                       return tiny ? GroupedGemm(3, 5, 40, 32, path)
                                   : GroupedGemm(64, 64, 2048, 2048, path);
                     }});
  }
  return cases;
}

}  // namespace torpor::gpu_check
