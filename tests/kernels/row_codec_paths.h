// SPDX-License-Identifier: Apache-2.0
//
// The row codecs' reference and all paths under one name, for tests that want
// the same of each.

#ifndef TORPOR_TESTS_KERNELS_ROW_CODEC_PATHS_H_
#define TORPOR_TESTS_KERNELS_ROW_CODEC_PATHS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu_ops.h"
#include "kernels/isa.h"
#include "kernels/row_codec.h"

namespace torpor::kernels {

inline constexpr RowFormat kRowFormats[] = {
    RowFormat::kMainFp4, RowFormat::kIndexFp4, RowFormat::kWindowFp8,
    RowFormat::kV4Record};

inline bool IsFp4(RowFormat format) {
  return format == RowFormat::kMainFp4 || format == RowFormat::kIndexFp4;
}

// As tests/oracles/row_codecs has them.
inline const char* FormatName(RowFormat format) {
  switch (format) {
    case RowFormat::kMainFp4:
      return "main";
    case RowFormat::kIndexFp4:
      return "index";
    case RowFormat::kWindowFp8:
      return "window";
    case RowFormat::kV4Record:
      return "v4";
  }
  return "unknown";
}

inline RowFormat FormatOf(const std::string& name) {
  for (const RowFormat format : kRowFormats) {
    if (name == FormatName(format)) return format;
  }
  ADD_FAILURE() << "no format " << name;
  return RowFormat::kMainFp4;
}

// A path, or the reference where there is none.
struct CodecPath {
  std::optional<Isa> isa;

  void Encode(const EncodeRowsParams& p) const {
    isa ? CpuOps(*isa, 1).EncodeRows(p) : EncodeRowsRef(p);
  }
  void Decode(const DecodeRowsParams& p) const {
    isa ? CpuOps(*isa, 1).DecodeRows(p) : DecodeRowsRef(p);
  }
};

inline std::vector<CodecPath> CodecPaths() {
  std::vector<CodecPath> paths = {{std::nullopt}};
  for (const Isa isa : AvailableIsas()) paths.push_back({isa});
  return paths;
}

inline std::string CodecPathName(
    const ::testing::TestParamInfo<CodecPath>& info) {
  return info.param.isa ? std::string(IsaName(*info.param.isa)) : "reference";
}

// Says where and how they differ first.
template <typename T>
::testing::AssertionResult SameValues(const std::vector<T>& got,
                                      const std::vector<T>& wanted) {
  if (got == wanted) return ::testing::AssertionSuccess();
  for (size_t i = 0; i < wanted.size() && i < got.size(); ++i) {
    if (got[i] == wanted[i]) continue;
    return ::testing::AssertionFailure()
           << std::hex << "at 0x" << i << " of 0x" << wanted.size()
           << ": got 0x" << +got[i] << ", wanted 0x" << +wanted[i];
  }
  return ::testing::AssertionFailure()
         << got.size() << " against " << wanted.size() << " values";
}

// One row of x's channels.
inline std::vector<uint8_t> EncodeOne(const CodecPath& path, RowFormat format,
                                      const std::vector<float>& x,
                                      int64_t rope_dim) {
  const auto dim = static_cast<int64_t>(x.size());
  const int64_t bytes = RowBytes(format, dim, rope_dim);
  std::vector<uint8_t> row(static_cast<size_t>(bytes), 0xa5);
  path.Encode({.format = format,
               .x = x.data(),
               .n_rows = 1,
               .dim = dim,
               .rope_dim = rope_dim,
               .x_stride = dim,
               .out = row.data(),
               .out_stride = bytes});
  return row;
}

template <typename T>
std::vector<T> DecodeOneTo(const CodecPath& path, DType dtype, RowFormat format,
                           const std::vector<uint8_t>& row, int64_t dim,
                           int64_t rope_dim) {
  std::vector<T> out(static_cast<size_t>(dim), T{0x55});
  path.Decode({.format = format,
               .in = row.data(),
               .n_rows = 1,
               .dim = dim,
               .rope_dim = rope_dim,
               .in_stride = static_cast<int64_t>(row.size()),
               .out = out.data(),
               .out_stride = dim,
               .out_dtype = dtype});
  return out;
}

inline std::vector<float> DecodeOne(const CodecPath& path, RowFormat format,
                                    const std::vector<uint8_t>& row,
                                    int64_t dim, int64_t rope_dim) {
  return DecodeOneTo<float>(path, DType::kF32, format, row, dim, rope_dim);
}

inline std::vector<uint16_t> DecodeOneToBf16(const CodecPath& path,
                                             RowFormat format,
                                             const std::vector<uint8_t>& row,
                                             int64_t dim, int64_t rope_dim) {
  return DecodeOneTo<uint16_t>(path, DType::kBf16, format, row, dim, rope_dim);
}

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_ROW_CODEC_PATHS_H_
