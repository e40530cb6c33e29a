// SPDX-License-Identifier: Apache-2.0

#include "replay/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "replay/config_json.h"
#include "replay/fingerprint.h"

namespace torpor::replay {
namespace {

// safetensors' own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Bits of an element, as safetensors has them; 0 for an unknown dtype.
uint64_t ElementBits(std::string_view dtype) {
  static const auto* const sizes = new std::map<std::string_view, uint64_t>{
      {"F64", 64},    {"I64", 64},    {"U64", 64},    {"F32", 32}, {"I32", 32},
      {"U32", 32},    {"F16", 16},    {"BF16", 16},   {"I16", 16}, {"U16", 16},
      {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I8", 8},   {"U8", 8},
      {"BOOL", 8},    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
  const auto it = sizes->find(dtype);
  return it == sizes->end() ? 0 : it->second;
}

std::string_view AsText(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status Lying(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrFormat("%s: %s", path, what));
}

absl::StatusOr<TensorView> ReadTensor(const std::string& path,
                                      const std::string& name,
                                      const nlohmann::json& entry,
                                      std::span<const uint8_t> data) {
  const auto lying = [&](const std::string& what) {
    return Lying(path, absl::StrFormat("tensor '%s': %s", name, what));
  };
  if (!entry.is_object() || !entry.contains("dtype") ||
      !entry["dtype"].is_string() || !entry.contains("shape") ||
      !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    return lying("wanted dtype, shape and two data_offsets");
  }
  TensorView view;
  view.dtype = entry["dtype"].get<std::string>();
  uint64_t bits = ElementBits(view.dtype);
  if (bits == 0) return lying("unknown dtype " + view.dtype);
  for (const nlohmann::json& n : entry["shape"]) {
    if (!n.is_number_unsigned() || n.get<uint64_t>() > INT64_MAX) {
      return lying("a negative or odd dimension");
    }
    view.shape.push_back(n.get<int64_t>());
    if (view.shape.back() == 0) bits = 0;
  }
  for (const int64_t dimension : view.shape) {
    if (bits == 0) break;
    if (bits > data.size() * 8 / static_cast<uint64_t>(dimension)) {
      return lying("its shape is larger than the file");
    }
    bits *= static_cast<uint64_t>(dimension);
  }
  if (bits % 8 != 0) return lying("it ends inside a byte");
  const uint64_t bytes = bits / 8;
  const nlohmann::json& offsets = entry["data_offsets"];
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return lying("odd data_offsets");
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (begin > end || end > data.size() || end - begin != bytes) {
    return lying(absl::StrFormat(
        "data_offsets [%d, %d) of %d data bytes, its shape takes %d", begin,
        end, data.size(), bytes));
  }
  view.bytes = data.subspan(begin, bytes);
  return view;
}

// A shard is a file of its directory, nothing else.
bool IsFileName(const nlohmann::json& value) {
  if (!value.is_string()) return false;
  const auto name = value.get<std::string>();
  constexpr std::string_view kNever("/\0", 2);
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(kNever) == std::string::npos;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(
        absl::StrFormat("open %s: %s", path, std::strerror(errno)));
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  // Without O_NONBLOCK the open of a pipe waits for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::NotFoundError(
        absl::StrFormat("open %s: %s", path, std::strerror(errno)));
  }
  struct stat st;
  const bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  if (!regular || st.st_size < 8) {
    close(fd);
    return Lying(path, regular ? "shorter than a safetensors header"
                               : "no regular file");
  }
  const auto size = static_cast<size_t>(st.st_size);
  void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (map == MAP_FAILED) {
    return absl::InternalError(
        absl::StrFormat("map %s: %s", path, std::strerror(errno)));
  }
  std::unique_ptr<SafetensorsFile> file(
      new SafetensorsFile({static_cast<const uint8_t*>(map), size}));
  TORPOR_RETURN_IF_ERROR(file->ReadHeader(path));
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

absl::Status SafetensorsFile::ReadHeader(const std::string& path) {
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < 8; ++i) {
    header_bytes |= static_cast<uint64_t>(bytes_[i]) << (8 * i);
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes_.size() - 8) {
    return Lying(path, absl::StrFormat("a header of %d bytes in a file of %d",
                                       header_bytes, bytes_.size()));
  }
  const auto parsed = ParseJsonObject(AsText(bytes_.subspan(8, header_bytes)),
                                      path + ": its header");
  if (!parsed.ok()) return absl::DataLossError(parsed.status().message());
  const std::span<const uint8_t> data = bytes_.subspan(8 + header_bytes);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : parsed->items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) return Lying(path, "metadata is no object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return Lying(path, "metadata is not text");
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    TORPOR_ASSIGN_OR_RETURN(TensorView view,
                            ReadTensor(path, name, entry, data));
    const auto begin = static_cast<uint64_t>(view.bytes.data() - data.data());
    ranges.emplace_back(begin, begin + view.bytes.size());
    tensors_.emplace(name, std::move(view));
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin < at) {
      return Lying(path,
                   absl::StrFormat("tensors overlap at data byte %d", begin));
    }
    if (begin > at) break;
    at = end;
  }
  if (at != data.size()) {
    return Lying(path,
                 absl::StrFormat("data byte %d of %d belongs to no tensor", at,
                                 data.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelTensors> ModelTensors::Open(const std::string& directory) {
  ModelTensors model;
  const std::string index_path = directory + "/model.safetensors.index.json";
  std::set<std::string> shards;
  std::map<std::string, std::string> wanted;
  const absl::StatusOr<std::string> index = ReadFile(index_path);
  if (index.ok()) {
    TORPOR_ASSIGN_OR_RETURN(const nlohmann::json parsed,
                            ParseJsonObject(*index, index_path));
    if (!parsed.contains("weight_map") || !parsed["weight_map"].is_object()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: has no weight_map", index_path));
    }
    for (const auto& [name, shard] : parsed["weight_map"].items()) {
      if (!IsFileName(shard)) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: tensor '%s' stands in %s, wanted a file name",
                            index_path, name, shard.dump()));
      }
      wanted[name] = shard.get<std::string>();
      shards.insert(wanted[name]);
    }
    if (wanted.empty()) {
      return absl::NotFoundError(
          absl::StrFormat("%s: names no tensors", index_path));
    }
  } else {
    shards.insert("model.safetensors");
  }
  for (const std::string& shard : shards) {
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file,
                            SafetensorsFile::Open(directory + "/" + shard));
    for (const auto& [name, view] : file->tensors()) {
      if (!wanted.empty()) {
        const auto it = wanted.find(name);
        if (it == wanted.end() || it->second != shard) continue;
      }
      model.tensors_.emplace(name, view);
    }
    model.files_.push_back(std::move(file));
  }
  for (const auto& [name, shard] : wanted) {
    if (!model.tensors_.contains(name)) {
      return absl::NotFoundError(absl::StrFormat("%s: tensor '%s' is not in %s",
                                                 index_path, name, shard));
    }
  }
  return model;
}

absl::StatusOr<TensorView> ModelTensors::Get(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(
        absl::StrFormat("tensor '%s': not among the weights", name));
  }
  return it->second;
}

std::string DigestTensors(const std::map<std::string, TensorView>& tensors) {
  WeightsDigest digest;
  for (const auto& [name, view] : tensors) {
    digest.Update(absl::StrFormat("%d:%s %s [%s] ", name.size(), name,
                                  view.dtype, absl::StrJoin(view.shape, ",")));
    digest.Update(AsText(view.bytes));
  }
  return digest.Finish();
}

absl::Status WriteSafetensors(
    const std::string& path, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) {
      header["__metadata__"][key] = value;
    }
  }
  uint64_t at = 0;
  for (const TensorToWrite& t : tensors) {
    header[t.name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string prefix;
  for (size_t i = 0; i < 8; ++i) {
    prefix.push_back(static_cast<char>(text.size() >> (8 * i)));
  }
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << prefix << text;
    for (const TensorToWrite& t : tensors) out << AsText(t.bytes);
    out.flush();
    if (!out) {
      const int error = errno;
      std::remove(temporary.c_str());
      return absl::ResourceExhaustedError(
          absl::StrFormat("write %s: %s", temporary, std::strerror(error)));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(temporary.c_str());
    return absl::InternalError(
        absl::StrFormat("rename to %s: %s", path, std::strerror(error)));
  }
  return absl::OkStatus();
}

}  // namespace torpor::replay
