// SPDX-License-Identifier: Apache-2.0

#include "replay/tensor_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "kernels/bf16.h"

namespace torpor::replay {
namespace {

using kernels::Bf16;
using kernels::DType;
using kernels::PackedMatrix;

// Row by row through aligned memory: a tensor may stand at an odd offset of
// its file.
template <typename Source>
void CopyRowsOf(const TensorView& view, int64_t at, PackedMatrix* out) {
  std::vector<Source> row(static_cast<size_t>(view.shape[1]));
  const size_t row_bytes = row.size() * sizeof(Source);
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    std::memcpy(row.data(), &view.bytes[static_cast<size_t>(i) * row_bytes],
                row_bytes);
    out->SetRows(at + i, row.data(), 1);
  }
}

}  // namespace

absl::StatusOr<std::string> FindPrefix(const ModelTensors& tensors,
                                       std::span<const char* const> prefixes,
                                       const std::string& name) {
  for (const char* prefix : prefixes) {
    if (tensors.Has(prefix + name)) return std::string(prefix);
  }
  return absl::NotFoundError(absl::StrFormat(
      "tensor '%s': not among the weights under any known prefix", name));
}

absl::StatusOr<TensorView> TensorLoader::Get(
    const std::string& name, const std::vector<int64_t>& shape,
    std::initializer_list<const char*> dtypes) {
  const std::string full = FullName(name);
  TORPOR_ASSIGN_OR_RETURN(TensorView view, tensors_.Get(full));
  if (view.shape != shape) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor '%s': got shape [%s], wanted [%s]", full,
        absl::StrJoin(view.shape, ", "), absl::StrJoin(shape, ", ")));
  }
  if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor '%s': got dtype %s, wanted %s", full,
                        view.dtype, absl::StrJoin(dtypes, " or ")));
  }
  used_[name] = view;
  return view;
}

absl::StatusOr<std::vector<float>> TensorLoader::Vector(const std::string& name,
                                                        int64_t n) {
  TORPOR_ASSIGN_OR_RETURN(const TensorView view, Get(name, {n}));
  std::vector<float> out(static_cast<size_t>(n));
  ReadRow(view, 0, out);
  return out;
}

absl::StatusOr<std::string> TensorLoader::DTypeNamed(
    const std::string& name) const {
  TORPOR_ASSIGN_OR_RETURN(const TensorView view, tensors_.Get(FullName(name)));
  return view.dtype;
}

absl::StatusOr<std::vector<int64_t>> TensorLoader::ShapeNamed(
    const std::string& name) const {
  TORPOR_ASSIGN_OR_RETURN(TensorView view, tensors_.Get(FullName(name)));
  return std::move(view.shape);
}

absl::StatusOr<std::vector<float>> TensorLoader::Table(const std::string& name,
                                                       int64_t n,
                                                       int64_t columns) {
  TORPOR_ASSIGN_OR_RETURN(const TensorView view, Get(name, {n, columns}));
  std::vector<float> out(static_cast<size_t>(n * columns));
  ReadRow(view, 0, out);
  return out;
}

absl::StatusOr<PackedMatrix> TensorLoader::Matrix(
    const std::vector<Part>& parts, int64_t columns, DType dtype) {
  // Every shape is checked before memory is taken for it.
  std::vector<TensorView> views;
  int64_t rows = 0;
  for (const Part& part : parts) {
    TORPOR_ASSIGN_OR_RETURN(TensorView view,
                            Get(part.name + ".weight", {part.rows, columns}));
    views.push_back(std::move(view));
    rows += part.rows;
  }
  PackedMatrix out = PackedMatrix::Empty(rows, columns, dtype);
  int64_t at = 0;
  for (const TensorView& view : views) {
    CopyRows(view, at, &out);
    at += view.shape[0];
  }
  return out;
}

absl::StatusOr<std::vector<float>> TensorLoader::Bias(
    const std::vector<Part>& parts) {
  std::vector<float> out;
  for (const Part& part : parts) {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> one,
                            Vector(part.name + ".bias", part.rows));
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

void CopyRows(const TensorView& view, int64_t at, PackedMatrix* out) {
  if (view.dtype == "F32") {
    CopyRowsOf<float>(view, at, out);
  } else {
    CopyRowsOf<Bf16>(view, at, out);
  }
}

void ReadRow(const TensorView& view, uint64_t row, std::span<float> out) {
  if (view.dtype == "F32") {
    std::memcpy(out.data(), &view.bytes[row * out.size_bytes()],
                out.size_bytes());
    return;
  }
  const uint8_t* from = &view.bytes[row * out.size() * sizeof(Bf16)];
  for (size_t i = 0; i < out.size(); ++i) {
    Bf16 raw;
    std::memcpy(&raw, from + i * sizeof(raw), sizeof(raw));
    out[i] = kernels::ToFloat(raw);
  }
}

absl::StatusOr<DType> DTypeOf(const ModelTensors& tensors,
                              const std::string& embedding) {
  TORPOR_ASSIGN_OR_RETURN(const TensorView view, tensors.Get(embedding));
  return view.dtype == "BF16" ? DType::kBf16 : DType::kF32;
}

absl::StatusOr<DType> PickDType(const std::string& asked, DType native,
                                std::string_view what) {
  if (asked == "native") return native;
  if (asked == "bf16") return DType::kBf16;
  if (asked == "f32") return DType::kF32;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: got '%s', wanted native, bf16 or f32", std::string(what), asked));
}

const char* DTypeName(DType dtype) {
  return dtype == DType::kBf16 ? "bf16" : "f32";
}

}  // namespace torpor::replay
