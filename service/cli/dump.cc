// SPDX-License-Identifier: Apache-2.0
//
// torpor dump: runs token ids through the built-in engine without a daemon and
// writes what it computed, to compare with any other implementation. With
// --resume-at, the run sleeps once: only compact KV is kept, windows are
// rebuilt.

#include <algorithm>
#include <charconv>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/families.h"
#include "replay/replayer.h"
#include "replay/row_values.h"
#include "replay/safetensors.h"
#include "service/cli/context.h"
#include "service/cli/engine_options.h"

namespace torpor::service::cli {
namespace {

struct Options {
  std::string model_dir;
  std::string token_file;
  std::string out;
  std::string rows;
  std::string mode = "exact";
  std::optional<uint64_t> resume_at;
  uint64_t replay_tokens = 0;
  bool hidden = false;
  EngineOptions engine;
};

// Rows of a sequence that stays in memory, as a store would give them.
class HeldRows final : public replay::CompactKvReader {
 public:
  HeldRows(const replay::ModelLayout& layout, const replay::Sequence& sequence,
           uint64_t n_tokens, absl::Status* status) {
    for (const uint32_t slot : layout.CompactSlots()) {
      const replay::Slot& s = layout.slots[slot];
      auto& bytes = rows_[slot];
      const uint64_t n = replay::RowsOf(s, 0, n_tokens).size();
      bytes.resize(n * s.row_bytes);
      if (absl::Status e = sequence.ExportRows(slot, {0, n}, bytes); !e.ok()) {
        *status = e;
      }
    }
  }

  absl::Status ReadRows(uint32_t slot, replay::Rows rows,
                        std::span<uint8_t> out) override {
    const std::vector<uint8_t>& bytes = rows_.at(slot);
    const size_t row_bytes = out.size() / std::max<uint64_t>(1, rows.size());
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(rows.begin * row_bytes),
                out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  std::map<uint32_t, std::vector<uint8_t>> rows_;
};

// Elements of stored rows as f32.
absl::StatusOr<std::vector<float>> Decode(const replay::Slot& slot,
                                          std::span<const uint8_t> bytes) {
  auto values = replay::RowValues(slot.format, slot.row_bytes, bytes);
  if (values) return *std::move(values);
  return absl::UnimplementedError(
      absl::StrFormat("slot '%s': rows of format '%s' are not decoded",
                      slot.name, slot.format));
}

// Gathers tensors that own their bytes.
class TensorFile {
 public:
  void Add(const std::string& name, const std::string& dtype,
           std::vector<int64_t> shape, std::vector<uint8_t> bytes) {
    owned_.push_back(std::move(bytes));
    tensors_.push_back({name, dtype, std::move(shape), owned_.back()});
  }
  void Add(const std::string& name, std::vector<int64_t> shape,
           std::span<const float> values) {
    const auto* raw = reinterpret_cast<const uint8_t*>(values.data());
    Add(name, "F32", std::move(shape),
        std::vector<uint8_t>(raw, raw + values.size() * sizeof(float)));
  }
  void Say(const std::string& key, const std::string& value) {
    metadata_[key] = value;
  }
  absl::Status Write(const std::string& path) const {
    return replay::WriteSafetensors(path, tensors_, metadata_);
  }

 private:
  std::list<std::vector<uint8_t>> owned_;
  std::vector<replay::TensorToWrite> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct RowLimits {
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
};

absl::StatusOr<RowLimits> ParseRows(const std::string& text) {
  RowLimits limits;
  if (text.empty()) return limits;
  const size_t colon = text.find(':');
  const auto parse = [](std::string_view part, uint64_t* out) {
    if (part.empty()) return true;
    const auto result =
        std::from_chars(part.data(), part.data() + part.size(), *out);
    return result.ec == std::errc() && result.ptr == part.data() + part.size();
  };
  if (colon == std::string::npos ||
      !parse(std::string_view(text).substr(0, colon), &limits.begin) ||
      !parse(std::string_view(text).substr(colon + 1), &limits.end) ||
      limits.begin > limits.end) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--rows: got '%s', wanted A:B", text));
  }
  return limits;
}

absl::StatusOr<replay::ReplayMode> ParseMode(const std::string& name) {
  for (const replay::ReplayMode mode :
       {replay::ReplayMode::kBounded, replay::ReplayMode::kExact,
        replay::ReplayMode::kSnapshot, replay::ReplayMode::kCold}) {
    if (ReplayModeName(mode) == name) return mode;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--mode: got '%s', wanted bounded, exact, snapshot or cold", name));
}

// Runs [0, cut), sleeps, wakes by the mode. `logits` receives those of row
// cut - 1 when nothing follows it.
absl::StatusOr<std::unique_ptr<replay::Sequence>> SleepAndWake(
    replay::Model* model, std::span<const uint32_t> ids, const Options& options,
    bool want_logits, std::vector<float>* logits) {
  const uint64_t cut = *options.resume_at;
  TORPOR_ASSIGN_OR_RETURN(const replay::ReplayMode mode,
                          ParseMode(options.mode));
  std::unique_ptr<replay::Sequence> first = model->NewSequence();
  TORPOR_RETURN_IF_ERROR(
      replay::RunTokens(model, replay::SegmentOf(first.get(), ids, 0, cut), 0,
                        {})
          .status());
  if (mode == replay::ReplayMode::kCold) {
    // Nothing is kept: the caller runs every token.
    return std::unique_ptr<replay::Sequence>();
  }
  TORPOR_ASSIGN_OR_RETURN(
      const replay::ReplayPlan plan,
      replay::PlanReplay(model->layout(),
                         {.resume_at = cut,
                          .mode = mode,
                          .replay_tokens = options.replay_tokens,
                          .want_logits = want_logits}));
  replay::WindowState window;
  if (mode == replay::ReplayMode::kSnapshot) {
    TORPOR_ASSIGN_OR_RETURN(window,
                            replay::ExportWindow(model->layout(), *first, cut));
  }
  absl::Status held;
  HeldRows rows(model->layout(), *first, cut, &held);
  TORPOR_RETURN_IF_ERROR(held);
  first.reset();  // asleep: the windows are gone
  if (mode != replay::ReplayMode::kSnapshot) {
    const replay::ReplayJob job{.plan = &plan,
                                .ids = ids.first(cut),
                                .reader = &rows,
                                .want_logits = want_logits};
    TORPOR_ASSIGN_OR_RETURN(auto results, replay::MakeReplayer(model)->Rebuild(
                                              std::span(&job, 1), nullptr));
    window = std::move(results[0].window);
    *logits = std::move(window.logits);
  }
  std::unique_ptr<replay::Sequence> woken = model->NewSequence();
  TORPOR_RETURN_IF_ERROR(
      replay::LoadCompactRows(model->layout(), cut, &rows, woken.get(), nullptr)
          .status());
  TORPOR_RETURN_IF_ERROR(replay::ImportWindow(window, woken.get()));
  return woken;
}

absl::Status AddRows(const replay::Model& model,
                     const replay::Sequence& sequence, uint64_t n_tokens,
                     TensorFile* file) {
  const replay::ModelLayout& layout = model.layout();
  for (uint32_t index = 0; index < layout.slots.size(); ++index) {
    const replay::Slot& slot = layout.slots[index];
    const bool stored = slot.come_back == replay::ComeBack::kPersist;
    const auto [first, end] = replay::RowsHeldAt(slot, n_tokens);
    std::vector<uint8_t> bytes((end - first) * slot.row_bytes);
    TORPOR_RETURN_IF_ERROR(sequence.ExportRows(index, {first, end}, bytes));
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> values,
                            Decode(slot, bytes));
    const auto rows = static_cast<int64_t>(end - first);
    const auto per_head = static_cast<int64_t>(
        rows == 0 ? 0
                  : values.size() / static_cast<size_t>(rows) / slot.n_heads);
    const std::vector<int64_t> shape = {rows, slot.n_heads, per_head};
    if (stored) {
      file->Add("slot." + slot.name, "U8", {rows, slot.row_bytes}, bytes);
      file->Add("slot_value." + slot.name, shape, values);
      continue;
    }
    // "layer.3.k" is window.3.k here; a slot that is K and V at once has no
    // last part.
    const size_t dot = slot.name.rfind('.');
    const std::string part =
        slot.name.find('.') == dot || slot.name.ends_with(".window")
            ? ""
            : slot.name.substr(dot);
    const std::string name =
        absl::StrFormat("window.%d%s", slot.owner_layer, part);
    file->Add(name, shape, values);
    file->Say(absl::StrFormat("window.%d.first", slot.owner_layer),
              std::to_string(first));
  }
  return absl::OkStatus();
}

absl::Status RunDump(const Options& options) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                          ReadTokenFile(options.token_file));
  const uint64_t n = ids.size();
  if (n == 0) return absl::InvalidArgumentError("tokens: got none");
  if (options.resume_at.value_or(0) > n) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--resume-at: got %d, there are %d tokens", *options.resume_at, n));
  }
  TORPOR_ASSIGN_OR_RETURN(const RowLimits limits, ParseRows(options.rows));
  TORPOR_ASSIGN_OR_RETURN(const replay::ModelOptions model_options,
                          options.engine.ModelOptionsOf());
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<replay::Model> model,
                          replay::LoadModel(options.model_dir, model_options));

  uint64_t begin = 0;
  std::unique_ptr<replay::Sequence> sequence;
  std::vector<float> last_logits;
  if (options.resume_at.value_or(0) > 0) {
    const bool to_the_end = *options.resume_at == n;
    TORPOR_ASSIGN_OR_RETURN(
        sequence,
        SleepAndWake(model.get(), ids, options,
                     to_the_end && options.mode != "snapshot", &last_logits));
    if (sequence != nullptr) begin = *options.resume_at;
  }
  if (sequence == nullptr) sequence = model->NewSequence();

  TensorFile file;
  std::vector<std::vector<float>> inputs(model->layout().n_layers);
  std::vector<uint64_t> input_first(model->layout().n_layers, n);
  replay::ForwardOptions forward;
  if (options.hidden) {
    forward.on_layer_input = [&](uint32_t layer, size_t, uint64_t row,
                                 std::span<const float> rows) {
      input_first[layer] = std::min(input_first[layer], row);
      inputs[layer].insert(inputs[layer].end(), rows.begin(), rows.end());
    };
  }
  const uint64_t first_row = std::clamp(limits.begin, begin, n);
  std::vector<float> logits;
  if (begin < n) {
    replay::Segment segment = replay::SegmentOf(sequence.get(), ids, begin, n);
    segment.logits_begin = first_row;
    TORPOR_ASSIGN_OR_RETURN(
        logits, replay::RunTokens(model.get(), segment, 0, forward));
  } else {
    logits = last_logits;
  }
  const uint64_t vocab = model->vocab_size();
  const uint64_t logits_first =
      begin < n ? first_row : n - logits.size() / vocab;
  const uint64_t logits_end = std::clamp(limits.end, logits_first, n);
  logits.resize((logits_end - logits_first) * vocab);
  file.Add("logits",
           {static_cast<int64_t>(logits_end - logits_first),
            static_cast<int64_t>(vocab)},
           logits);
  file.Say("first_row", std::to_string(logits_first));
  TORPOR_RETURN_IF_ERROR(AddRows(*model, *sequence, n, &file));
  for (uint32_t l = 0; options.hidden && l < inputs.size(); ++l) {
    const auto hidden = static_cast<int64_t>(model->stream_size());
    file.Add(absl::StrFormat("layer_in.%d", l),
             {static_cast<int64_t>(inputs[l].size()) / hidden, hidden},
             inputs[l]);
    file.Say(absl::StrFormat("layer_in.%d.first", l),
             std::to_string(input_first[l]));
  }
  file.Say("numerics_id", model->numerics_id());
  file.Say("n_tokens", std::to_string(n));
  return file.Write(options.out);
}

}  // namespace

void AddDumpCommand(CLI::App* app, Context*, Run* run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app->add_subcommand(
      "dump",
      "Run token ids through the built-in engine and write what it computed");
  command
      ->add_option("--model", options->model_dir,
                   "Directory with config.json and safetensors")
      ->required();
  command
      ->add_option("--tokens", options->token_file,
                   "JSON file: a list of token ids")
      ->required();
  command->add_option("--out", options->out, "safetensors file to write")
      ->required();
  command->add_option("--resume-at", options->resume_at,
                      "Sleep and wake at this token");
  command
      ->add_option("--mode", options->mode, "bounded, exact, snapshot or cold")
      ->capture_default_str();
  command->add_option("--replay-tokens", options->replay_tokens,
                      "Length of a bounded replay (default: the window)");
  command->add_option("--rows", options->rows,
                      "Logits of rows A to B - 1 only, as A:B");
  command->add_flag("--hidden", options->hidden, "Also every layer's inputs");
  options->engine.AddTo(command);
  command->callback([=] { *run = [=] { return RunDump(*options); }; });
}

}  // namespace torpor::service::cli
