// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/replay_bench.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/ops_cuda.h"
#include "tests/gpu_check/child_run.h"
#include "tests/gpu_check/made_up_model.h"
#include "tests/replay/model_testing.h"
#include "tests/testing/temp_dir.h"

namespace torpor::gpu_check {
namespace {

using nlohmann::json;
using replay::ReplayMode;

constexpr int kSessions[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr int kSessionsTiny[] = {1, 3};
// More than an exact replay of Gemma 3 270M's layout runs (7,665).
constexpr uint64_t kTokens = 8192;
constexpr uint64_t kTokensTiny = 40;

// What multiplies, and CudaOpsOptions::tensor_cores for it.
constexpr std::pair<const char*, bool> kGemms[] = {{"simt", false},
                                                   {"tensor cores", true}};

// The compact rows of one session, read for many. Thread-safe.
class SharedRows final : public replay::CompactKvReader {
 public:
  explicit SharedRows(replay::MemoryRows rows) : rows_(std::move(rows)) {}
  absl::Status ReadRows(uint32_t slot, replay::Rows rows,
                        std::span<uint8_t> out) override {
    const std::vector<uint8_t>& bytes = rows_.slots.at(slot);
    const size_t row_bytes = out.size() / rows.size();
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(rows.begin * row_bytes),
                out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  const replay::MemoryRows rows_;
};

// One way to wake, and what its windows are.
struct Mode {
  std::string name;
  replay::ReplayPlan plan;
  // As the first replay gave it, or as the session held it.
  std::vector<replay::SlotRows> window;
  // Of the last batch.
  double seconds = 0;
  bool left_out = false;
};

// The model with one way to multiply.
class Variant {
 public:
  Variant(const BenchOptions& options, Clock::time_point begin,
          std::string gemm)
      : options_(options), begin_(begin), gemm_(std::move(gemm)) {}

  absl::Status Load(const std::string& directory, bool tensor_cores) {
    TORPOR_ASSIGN_OR_RETURN(
        std::unique_ptr<kernels::Ops> ops,
        kernels::MakeCudaOps(
            {.name = "cuda/gpu-check", .tensor_cores = tensor_cores}));
    TORPOR_ASSIGN_OR_RETURN(
        model_, replay::LoadModel(directory, {.ops = std::move(ops)}));
    return absl::OkStatus();
  }

  // A session that never slept: its rows, its window, its time.
  absl::Status Prefill(uint64_t window) {
    testing::Random random;
    ids_ = replay::RandomIds(random, options_.tiny ? kTokensTiny : kTokens,
                             model_->vocab_size());
    replay::TestSession session(model_.get());
    const Clock::time_point begin = Clock::now();
    TORPOR_RETURN_IF_ERROR(session.Run(ids_, 0).status());
    const double seconds = SecondsSince(begin);
    Tell("replay",
         Line("cold (prefill)", 1, seconds,
              static_cast<double>(ids_.size() * model_->layout().n_layers)));
    TORPOR_ASSIGN_OR_RETURN(replay::MemoryRows rows, session.Compact());
    rows_ = std::make_unique<SharedRows>(std::move(rows));
    TORPOR_ASSIGN_OR_RETURN(const replay::WindowState held, session.Window());
    for (const auto& [name, mode, n] :
         {std::tuple{"bounded", ReplayMode::kBounded, window},
          std::tuple{"exact", ReplayMode::kExact, uint64_t{0}}}) {
      TORPOR_ASSIGN_OR_RETURN(replay::ReplayPlan plan,
                              replay::Plan(*model_, ids_.size(), mode, n));
      modes_.push_back(
          {absl::StrFormat("%s, %d tokens", name, plan.replay_tokens()),
           std::move(plan)});
      if (modes_.back().plan.exact) modes_.back().window = held.slots;
    }
    return absl::OkStatus();
  }

  // Wakes n sessions at once, in each mode.
  absl::StatusOr<bool> Wake(int n) {
    bool right = true;
    for (Mode& mode : modes_) {
      TORPOR_ASSIGN_OR_RETURN(const bool batch_right, Batch(n, &mode));
      right = right && batch_right;
    }
    return right;
  }

 private:
  [[nodiscard]] double SecondsSince(Clock::time_point begin) const {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  [[nodiscard]] json Line(const std::string& mode, int sessions, double seconds,
                          double token_layers) const {
    return {
        {"name", absl::StrFormat("%s, %s, %d sessions", gemm_, mode, sessions)},
        {"gemm", gemm_},
        {"numerics_id", model_->numerics_id()},
        {"mode", mode},
        {"sessions", sessions},
        {"us", 1e6 * seconds},
        {"us_per_session", 1e6 * seconds / sessions},
        {"token_layers_per_s", token_layers / seconds}};
  }

  // Whether a batch as this one ends in time, by the time of the last; says so
  // when not.
  bool HasTimeFor(int n, Mode* mode) const {
    const double left = options_.budget_s - SecondsSince(begin_);
    // Twice the sessions, three runs.
    const double needed = 6 * mode->seconds;
    if (mode->left_out) return false;
    if (needed < left) return true;
    mode->left_out = true;
    Tell(
        "left_out",
        absl::StrFormat("%s, %s, %d sessions and more: about %.0f s, %.0f left",
                        gemm_, mode->name, n, needed, left));
    return false;
  }

  absl::StatusOr<bool> Batch(int n, Mode* mode) {
    if (!HasTimeFor(n, mode)) return true;
    const std::vector<replay::ReplayJob> jobs(
        static_cast<size_t>(n),
        {.plan = &mode->plan, .ids = ids_, .reader = rows_.get()});
    const auto replayer = replay::MakeReplayer(model_.get());
    std::vector<double> seconds;
    std::string fault;
    // The first run is the one that is verified; the others are timed.
    for (int run = 0; run < 3; ++run) {
      const Clock::time_point begin = Clock::now();
      TORPOR_ASSIGN_OR_RETURN(const std::vector<replay::ReplayResult> results,
                              replayer->Rebuild(jobs, nullptr));
      if (run > 0) seconds.push_back(SecondsSince(begin));
      if (run == 0) fault = Fault(results, mode);
    }
    mode->seconds = *std::min_element(seconds.begin(), seconds.end());
    json line = Line(mode->name, n, mode->seconds,
                     static_cast<double>(mode->plan.token_layers) * n);
    if (!fault.empty()) line["fault"] = fault;
    Tell("replay", line);
    return fault.empty();
  }

  // Exact windows are those that the session held; others are alike in every
  // batch (design D9).
  std::string Fault(const std::vector<replay::ReplayResult>& results,
                    Mode* mode) const {
    if (mode->window.empty()) mode->window = results[0].window.slots;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].window.slots != mode->window) {
        return absl::StrFormat(
            "the window of session %d is not the one that %s", i,
            mode->plan.exact ? "it held" : "the first replay gave");
      }
    }
    return "";
  }

  const BenchOptions& options_;
  // Of the whole benchmark.
  const Clock::time_point begin_;
  const std::string gemm_;
  std::unique_ptr<replay::Model> model_;
  std::vector<uint32_t> ids_;
  std::unique_ptr<SharedRows> rows_;
  std::vector<Mode> modes_;
};

absl::StatusOr<bool> Run(const BenchOptions& options) {
  const Clock::time_point begin = Clock::now();
  const MadeUpShape shape = options.tiny ? TinyGemma() : Gemma270M();
  const testing::TempDir dir;
  TORPOR_RETURN_IF_ERROR(WriteMadeUpModel(shape, dir.path()));
  std::vector<std::unique_ptr<Variant>> variants;
  for (const auto& [gemm, tensor_cores] : kGemms) {
    Variant& variant =
        *variants.emplace_back(std::make_unique<Variant>(options, begin, gemm));
    TORPOR_RETURN_IF_ERROR(variant.Load(dir.path(), tensor_cores));
    TORPOR_RETURN_IF_ERROR(
        variant.Prefill(static_cast<uint64_t>(shape.window)));
  }
  const std::vector<int> batches =
      options.tiny
          ? std::vector<int>(std::begin(kSessionsTiny), std::end(kSessionsTiny))
          : std::vector<int>(std::begin(kSessions), std::end(kSessions));
  bool right = true;
  // In turns, so that what the budget leaves out is the same of each.
  for (const int n : batches) {
    for (const auto& variant : variants) {
      TORPOR_ASSIGN_OR_RETURN(const bool variant_right, variant->Wake(n));
      right = right && variant_right;
    }
  }
  return right;
}

}  // namespace

bool BenchReplays(const BenchOptions& options) {
  const absl::StatusOr<bool> right = Run(options);
  if (!right.ok()) {
    std::fprintf(stderr, "replays: %s\n", right.status().ToString().c_str());
    return false;
  }
  return *right;
}

}  // namespace torpor::gpu_check
