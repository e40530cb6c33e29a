// SPDX-License-Identifier: Apache-2.0
//
// Weights of a family by their names: checks shape and dtype, packs linear
// layers for the kernels, remembers what was read for the digest. Not
// thread-safe.

#ifndef TORPOR_REPLAY_TENSOR_LOADER_H_
#define TORPOR_REPLAY_TENSOR_LOADER_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "replay/safetensors.h"

namespace torpor::replay {

// The first of `prefixes` under which `name` stands; kNotFound.
absl::StatusOr<std::string> FindPrefix(const ModelTensors& tensors,
                                       std::span<const char* const> prefixes,
                                       const std::string& name);

// The prefix itself and the names under it.
class TensorLoader {
 public:
  // `tensors` outlives the loader.
  TensorLoader(const ModelTensors& tensors, std::string prefix)
      : tensors_(tensors), prefix_(std::move(prefix)) {}

  // `name` stands in the file as `full`, not under the prefix.
  void Rename(const std::string& name, const std::string& full) {
    places_[name] = full;
  }

  [[nodiscard]] bool Has(const std::string& name) const {
    return tensors_.Has(FullName(name));
  }

  // kNotFound names a missing tensor, kInvalidArgument one of another shape or
  // of none of `dtypes`.
  absl::StatusOr<TensorView> Get(const std::string& name,
                                 const std::vector<int64_t>& shape,
                                 std::initializer_list<const char*> dtypes = {
                                     "BF16", "F32"});

  // kNotFound names a missing tensor.
  [[nodiscard]] absl::StatusOr<std::string> DTypeNamed(
      const std::string& name) const;
  [[nodiscard]] absl::StatusOr<std::vector<int64_t>> ShapeNamed(
      const std::string& name) const;

  // [n] or [n, columns], F32 or BF16, as floats.
  absl::StatusOr<std::vector<float>> Vector(const std::string& name, int64_t n);
  absl::StatusOr<std::vector<float>> Table(const std::string& name, int64_t n,
                                           int64_t columns);

  // One of the linear layers that a matrix is made of: `name`.weight
  // [rows, columns].
  struct Part {
    std::string name;
    int64_t rows;
  };
  // Linear layers of equal input as one matrix, their outputs in order; F32 or
  // BF16, rounded to `dtype`.
  absl::StatusOr<kernels::PackedMatrix> Matrix(const std::vector<Part>& parts,
                                               int64_t columns,
                                               kernels::DType dtype);
  // `name`.bias of each.
  absl::StatusOr<std::vector<float>> Bias(const std::vector<Part>& parts);

  // Hex digest of all that was read.
  [[nodiscard]] std::string Digest() const { return DigestTensors(used_); }

 private:
  [[nodiscard]] std::string FullName(const std::string& name) const {
    const auto place = places_.find(name);
    return place == places_.end() ? prefix_ + name : place->second;
  }

  const ModelTensors& tensors_;
  const std::string prefix_;
  std::map<std::string, std::string> places_;
  std::map<std::string, TensorView> used_;
};

// Puts a [rows, columns] F32 or BF16 tensor into rows [at, ...) of a matrix.
void CopyRows(const TensorView& view, int64_t at, kernels::PackedMatrix* out);

// One row of a [rows, n] F32 or BF16 tensor, as floats.
void ReadRow(const TensorView& view, uint64_t row, std::span<float> out);

// The dtype of a model whose `embedding` names it: bf16, else f32.
absl::StatusOr<kernels::DType> DTypeOf(const ModelTensors& tensors,
                                       const std::string& embedding);

// `asked` of "native", "bf16", "f32"; kInvalidArgument names `what`.
absl::StatusOr<kernels::DType> PickDType(const std::string& asked,
                                         kernels::DType native,
                                         std::string_view what);
// "bf16", "f32".
const char* DTypeName(kernels::DType dtype);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_TENSOR_LOADER_H_
