// SPDX-License-Identifier: Apache-2.0

#include "bench/kernel_speed.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/attention_speed.h"
#include "bench/table.h"
#include "kernels/bf16.h"
#include "kernels/cpu_ops.h"
#include "kernels/row_codec.h"

namespace torpor::bench {
namespace {

using kernels::CpuOps;
using kernels::DType;
using kernels::Isa;
using kernels::RowFormat;

// Rows as DeepSeek has them.
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

class CodecBatch {
 public:
  CodecBatch(const Format& format, const KernelSpeedOptions& options)
      : format_(format),
        bytes_(RowBytes(format.format, format.dim, format.rope_dim)),
        n_rows_(
            std::max<int64_t>(1, options.batch_kib * 1024 / (4 * format.dim))),
        rows_(static_cast<size_t>(n_rows_ * bytes_)),
        f32_(x_count()),
        bf16_(x_count()) {
    std::mt19937_64 engine(options.seed);
    std::normal_distribution<float> normal;
    x_.resize(x_count());
    for (float& v : x_) v = normal(engine);
  }

  void Encode(CpuOps* ops) {
    const kernels::EncodeRowsParams p{.format = format_.format,
                                      .x = x_.data(),
                                      .n_rows = n_rows_,
                                      .dim = format_.dim,
                                      .rope_dim = format_.rope_dim,
                                      .x_stride = format_.dim,
                                      .out = rows_.data(),
                                      .out_stride = bytes_};
    ops == nullptr ? EncodeRowsRef(p) : ops->EncodeRows(p);
  }
  void Decode(CpuOps* ops, DType dtype) {
    const kernels::DecodeRowsParams p{
        .format = format_.format,
        .in = rows_.data(),
        .n_rows = n_rows_,
        .dim = format_.dim,
        .rope_dim = format_.rope_dim,
        .in_stride = bytes_,
        .out = dtype == DType::kF32 ? static_cast<void*>(f32_.data())
                                    : bf16_.data(),
        .out_stride = format_.dim,
        .out_dtype = dtype};
    ops == nullptr ? DecodeRowsRef(p) : ops->DecodeRows(p);
  }

  // That a path gives the reference's bytes.
  absl::Status Verify(CpuOps* ops) {
    Clear();
    Encode(nullptr);
    Decode(nullptr, DType::kF32);
    Decode(nullptr, DType::kBf16);
    const auto rows = rows_;
    const auto f32 = f32_;
    const auto bf16 = bf16_;
    Clear();
    Encode(ops);
    Decode(ops, DType::kF32);
    Decode(ops, DType::kBf16);
    if (rows == rows_ && bf16 == bf16_ &&
        std::memcmp(f32.data(), f32_.data(), unpacked(DType::kF32)) == 0) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrFormat("%s on %s: bytes differ from the reference's",
                        format_.name, std::string(IsaName(ops->isa()))));
  }

  // A copy of the unpacked rows.
  void Copy(DType dtype) {
    if (dtype == DType::kF32) {
      std::memcpy(f32_.data(), x_.data(), unpacked(dtype));
    } else {
      std::memcpy(static_cast<void*>(bf16_.data()), x_.data(), unpacked(dtype));
    }
  }

  [[nodiscard]] size_t unpacked(DType dtype) const {
    return x_count() * DTypeBytes(dtype);
  }
  [[nodiscard]] const char* name() const { return format_.name; }

 private:
  [[nodiscard]] size_t x_count() const {
    return static_cast<size_t>(n_rows_ * format_.dim);
  }
  void Clear() {
    std::fill(rows_.begin(), rows_.end(), uint8_t{0xa5});
    std::fill(f32_.begin(), f32_.end(), 1.0f);
    std::fill(bf16_.begin(), bf16_.end(), kernels::Bf16{1});
  }

  const Format format_;
  const int64_t bytes_;
  const int64_t n_rows_;
  std::vector<float> x_;
  std::vector<uint8_t> rows_;
  std::vector<float> f32_;
  std::vector<kernels::Bf16> bf16_;
};

// GB/s of `bytes` a call.
double Speed(double bytes, const std::function<void()>& call) {
  // Long enough for the clock, short enough that most rounds of a shared
  // machine are undisturbed.
  constexpr double kBytesOfRound = 4e6;
  const int calls = std::max(1, static_cast<int>(kBytesOfRound / bytes));
  call();
  const double seconds = SecondsOf([&] {
    for (int i = 0; i < calls; ++i) call();
  });
  return bytes * calls / seconds / 1e9;
}

LimitRow Against(const std::string& what, DType dtype, int rounds,
                 CodecBatch* batch, const std::function<void()>& call) {
  std::vector<double> measured;
  std::vector<double> copied;
  const auto bytes = static_cast<double>(batch->unpacked(dtype));
  for (int round = 0; round < rounds; ++round) {
    copied.push_back(Speed(bytes, [&] { batch->Copy(dtype); }));
    measured.push_back(Speed(bytes, call));
  }
  LimitRow row;
  row.what = what;
  row.measured = Median(measured);
  row.limit = Median(copied);
  row.unit = "GB/s";
  row.limit_name = dtype == DType::kF32 ? "memcpy of the f32 rows"
                                        : "memcpy of the bf16 rows";
  return row;
}

}  // namespace

absl::StatusOr<std::vector<LimitRow>> MeasureCodecs(
    const KernelSpeedOptions& options) {
  std::vector<LimitRow> rows;
  for (const Isa isa : kernels::AvailableIsas()) {
    // Tiles do nothing for these: it is the path before.
    if (isa == Isa::kAmx) continue;
    CpuOps ops(isa, 1);
    for (const Format& format : kFormats) {
      CodecBatch batch(format, options);
      TORPOR_RETURN_IF_ERROR(batch.Verify(&ops));
      const std::string name =
          absl::StrFormat("%s, %s, ", std::string(IsaName(isa)), format.name);
      rows.push_back(Against(name + "encode", DType::kF32, options.rounds,
                             &batch, [&] { batch.Encode(&ops); }));
      rows.push_back(Against(name + "decode to f32", DType::kF32,
                             options.rounds, &batch,
                             [&] { batch.Decode(&ops, DType::kF32); }));
      rows.push_back(Against(name + "decode to bf16", DType::kBf16,
                             options.rounds, &batch,
                             [&] { batch.Decode(&ops, DType::kBf16); }));
    }
  }
  return rows;
}

namespace {

// Rows of queries a second and layer beside the rates.
std::string TokensTable(const std::vector<AttentionSpeed>& speeds) {
  std::vector<std::vector<std::string>> table = {{"", "tokens/s of a layer"}};
  for (const AttentionSpeed& speed : speeds) {
    table.push_back(
        {speed.row.what, absl::StrFormat("%.0f", speed.tokens_per_second)});
  }
  return AlignedTable(table);
}

}  // namespace

RunBenchmark AddKernelsCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<KernelSpeedOptions>();
  app->add_option("--rounds", options->rounds, "Interleaved rounds")
      ->check(CLI::Range(1, 1001))
      ->capture_default_str();
  app->add_option("--attention-rounds", options->attention_rounds,
                  "The same of attention and index scores")
      ->check(CLI::Range(1, 1001))
      ->capture_default_str();
  app->add_option("--batch-kib", options->batch_kib, "Of the f32 rows, KiB")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  return [options, common]() -> absl::StatusOr<Result> {
    options->seed = common->seed;
    TORPOR_ASSIGN_OR_RETURN(std::vector<LimitRow> rows,
                            MeasureCodecs(*options));
    TORPOR_ASSIGN_OR_RETURN(
        const std::vector<AttentionSpeed> attention,
        MeasureAttention(
            {.rounds = options->attention_rounds, .seed = options->seed}));
    Result result;
    for (const AttentionSpeed& speed : attention) {
      rows.push_back(speed.row);
      result.json["tokens_per_second"][speed.row.what] =
          speed.tokens_per_second;
    }
    result.json["rows"] = LimitsJson(rows);
    result.json["batch_kib"] = options->batch_kib;
    result.text = LimitTable(rows) + "\n" + TokensTable(attention);
    result.page = SvgPage("Row codecs and attention");
    result.page.Add(LimitsPlot(rows));
    result.holds = AllHold(rows);
    return result;
  };
}

}  // namespace torpor::bench
