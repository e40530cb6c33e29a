// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json names, memory-mapped. A header is believed only
// after every number in it was checked against the file.

#ifndef TORPOR_REPLAY_SAFETENSORS_H_
#define TORPOR_REPLAY_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace torpor::replay {

// A tensor in a mapped file; valid as long as its file.
struct TensorView {
  // safetensors' own name: "F32", "BF16", ...
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
};

class SafetensorsFile {
 public:
  // kNotFound when absent; kDataLoss when it is no regular file, its header is
  // longer than the file, is no JSON, has a name twice, or names a tensor whose
  // dtype, shape and offsets disagree, overlap another or leave the file, and
  // when bytes belong to no tensor.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(
      const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const {
    return tensors_;
  }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }
  [[nodiscard]] std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  explicit SafetensorsFile(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  absl::Status ReadHeader(const std::string& path);

  const std::span<const uint8_t> bytes_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

class ModelTensors {
 public:
  // Every shard of a directory. kNotFound when there is none, or the index
  // names a file or tensor that is not there; kInvalidArgument when the index
  // is no map from tensors to files of the directory; kDataLoss when a shard
  // lies.
  static absl::StatusOr<ModelTensors> Open(const std::string& directory);

  // kNotFound names the tensor.
  [[nodiscard]] absl::StatusOr<TensorView> Get(const std::string& name) const;
  [[nodiscard]] bool Has(const std::string& name) const {
    return tensors_.contains(name);
  }
  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const {
    return tensors_;
  }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorView> tensors_;
};

// Hex BLAKE2b-256 over names, dtypes, shapes and bytes in order of names: the
// same however the tensors are sharded.
std::string DigestTensors(const std::map<std::string, TensorView>& tensors);

// One tensor to be written.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
};

// Writes a file that SafetensorsFile reads: 8-byte aligned header, tensors in
// the order given. Through a temporary file and a rename.
absl::Status WriteSafetensors(
    const std::string& path, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_SAFETENSORS_H_
