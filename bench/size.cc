// SPDX-License-Identifier: Apache-2.0

#include "bench/size.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "bench/raw_io.h"
#include "bench/synthetic.h"
#include "bench/table.h"
#include "replay/witness.h"
#include "service/convert.h"
#include "store/lmdb_session_store.h"

namespace torpor::bench {
namespace {

using replay::ComeBack;
using replay::ModelLayout;
using replay::Slot;

// design.md, "Numbers that must hold".
constexpr double kOverheadMust = 0.02;
// Rows that are verified at a time.
constexpr uint64_t kRowsPerRead = 4096;

uint64_t KeyOf(uint64_t seed, uint32_t slot) { return seed * 4096 + slot; }

// The layout of an engine's cache that can resume at any token: windows stay.
ModelLayout WithEveryWindow(ModelLayout layout) {
  for (Slot& slot : layout.slots) {
    if (slot.is_window() && !slot.is_draft()) {
      slot.come_back = ComeBack::kPersist;
    }
  }
  return layout;
}

std::vector<uint8_t> SyntheticWitness(const ModelLayout& layout, uint64_t cut,
                                      uint64_t seed) {
  replay::WindowState window;
  window.resume_at = cut;
  window.slots = replay::WindowRowsAt(layout, cut);
  for (replay::SlotRows& rows : window.slots) {
    const uint32_t row_bytes = layout.slots[rows.slot].row_bytes;
    rows.bytes.resize((rows.end - rows.first) * row_bytes);
    FillRows(KeyOf(seed, rows.slot), row_bytes, rows.first, rows.bytes);
  }
  const std::string text =
      service::ToProto(replay::MakeWitness(layout, "bench", window))
          .SerializeAsString();
  return {text.begin(), text.end()};
}

// One session of a layout in a store of its own.
class SleepingSession {
 public:
  SleepingSession(const SizeOptions& options, const ModelLayout& layout)
      : options_(options),
        layout_(layout),
        slots_(layout.CompactSlots()),
        block_size_(replay::ChooseBlockSize(layout)) {}

  absl::StatusOr<StoredSize> Measure(const std::string& directory) {
    StoredSize out;
    out.n_slots = static_cast<uint32_t>(slots_.size());
    out.block_size = block_size_;
    out.row_bytes = RowBytes();
    TORPOR_RETURN_IF_ERROR(OpenStore(directory));
    TORPOR_RETURN_IF_ERROR(Suspend());
    TORPOR_RETURN_IF_ERROR(Verify());
    TORPOR_ASSIGN_OR_RETURN(store::SessionInfo info, store_->Describe(Key()));
    out.n_blocks = info.n_blocks;
    out.accounted_bytes = info.stored_bytes;
    out.token_bytes = info.token_bytes;
    store_.reset();
    TORPOR_ASSIGN_OR_RETURN(out.page_bytes, ReachablePageBytes(directory));
    if (layout_.LargestWindow() == 0) return out;
    TORPOR_RETURN_IF_ERROR(OpenStore(directory));
    TORPOR_RETURN_IF_ERROR(AddWitness());
    TORPOR_ASSIGN_OR_RETURN(info, store_->Describe(Key()));
    out.witness_bytes = info.witness_bytes;
    store_.reset();
    TORPOR_ASSIGN_OR_RETURN(const uint64_t with, ReachablePageBytes(directory));
    out.witness_page_bytes = with - std::min(with, out.page_bytes);
    return out;
  }

 private:
  static store::SessionKey Key() { return {0, "bench"}; }

  absl::Status OpenStore(const std::string& directory) {
    store::LmdbStoreOptions options;
    options.data_dir = directory;
    TORPOR_ASSIGN_OR_RETURN(store_, store::LmdbSessionStore::Open(options));
    return absl::OkStatus();
  }

  [[nodiscard]] uint64_t RowsOf(uint32_t slot, uint64_t n_tokens) const {
    return n_tokens / layout_.slots[slot].tokens_per_row;
  }

  [[nodiscard]] uint64_t RowBytes() const {
    uint64_t bytes = 0;
    for (const uint32_t slot : slots_) {
      bytes += RowsOf(slot, options_.n_tokens) * layout_.slots[slot].row_bytes;
    }
    return bytes;
  }

  [[nodiscard]] store::SuspendSpec Spec(uint64_t version) const {
    store::SuspendSpec spec;
    spec.session = Key();
    spec.expected_version = version;
    spec.operation_id = absl::StrFormat("bench/%d", version);
    spec.model = "bench";
    spec.numerics_id = "bench";
    spec.layout.fingerprint.fill(0x5e);
    spec.layout.block_size = block_size_;
    for (const uint32_t slot : slots_) {
      spec.layout.slots.push_back(
          {layout_.slots[slot].row_bytes, layout_.slots[slot].tokens_per_row});
    }
    spec.kv_len = options_.n_tokens;
    return spec;
  }

  // Block by block, as an engine sends them; no more than a block is held.
  absl::Status Suspend() {
    const uint64_t n = options_.n_tokens;
    store::SuspendSpec spec = Spec(0);
    for (uint64_t pos = 0; pos < n; ++pos) {
      spec.new_tokens.ids.push_back(
          static_cast<uint32_t>(pos % std::max(layout_.vocab_size, 1U)));
    }
    spec.provenance = {{0, n, store::Provenance::kUnknown}};
    TORPOR_ASSIGN_OR_RETURN(const store::BeginResult begin,
                            store_->Begin(std::move(spec)));
    std::vector<uint8_t> rows;
    for (uint64_t at = 0; at < n; at += block_size_) {
      const uint64_t end = std::min<uint64_t>(n, at + block_size_);
      for (uint32_t i = 0; i < slots_.size(); ++i) {
        const uint64_t first = RowsOf(slots_[i], at);
        const uint64_t n_rows = RowsOf(slots_[i], end) - first;
        if (n_rows == 0) continue;
        const uint32_t row_bytes = layout_.slots[slots_[i]].row_bytes;
        rows.resize(n_rows * row_bytes);
        FillRows(KeyOf(options_.seed, slots_[i]), row_bytes, first, rows);
        if (slots_[i] == options_.wrong_slot && at == 0) rows.back() ^= 1;
        TORPOR_RETURN_IF_ERROR(
            begin.ticket->Put({.slot = i,
                               .row_begin = first,
                               .n_rows = static_cast<uint32_t>(n_rows),
                               .checksum = Xxh3(rows)},
                              rows));
      }
    }
    return begin.ticket->Commit({}).status();
  }

  // A suspend of no new token brings it, so that its pages show alone.
  absl::Status AddWitness() {
    store::SuspendSpec spec = Spec(1);
    spec.tokens_kept = options_.n_tokens;
    TORPOR_ASSIGN_OR_RETURN(const store::BeginResult begin,
                            store_->Begin(std::move(spec)));
    store::Attachment witness;
    witness.sections = {
        {0, SyntheticWitness(layout_, options_.n_tokens, options_.seed)}};
    return begin.ticket->Commit({std::move(witness)}).status();
  }

  absl::Status Verify() {
    TORPOR_ASSIGN_OR_RETURN(const auto lease, store_->Open(Key(), 0));
    std::vector<uint8_t> rows;
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = layout_.slots[slots_[i]];
      const uint64_t n_rows = RowsOf(slots_[i], options_.n_tokens);
      for (uint64_t at = 0; at < n_rows; at += kRowsPerRead) {
        const uint64_t end = std::min(n_rows, at + kRowsPerRead);
        rows.resize((end - at) * slot.row_bytes);
        TORPOR_RETURN_IF_ERROR(lease->ReadRows(i, {at, end}, rows));
        const absl::Status status = CheckRows(KeyOf(options_.seed, slots_[i]),
                                              slot.row_bytes, at, rows);
        if (status.ok()) continue;
        return absl::DataLossError(absl::StrFormat(
            "slot %s: %s", slot.name, std::string(status.message())));
      }
    }
    return absl::OkStatus();
  }

  const SizeOptions& options_;
  const ModelLayout& layout_;
  const std::vector<uint32_t> slots_;
  const uint32_t block_size_;
  std::unique_ptr<store::SessionStore> store_;
};

absl::Status CheckLayout(const SizeOptions& options,
                         const ModelLayout& layout) {
  if (layout.CompactSlots().empty() || layout.LargestWindow() == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: wanted a layout with rows that persist and windows that do not",
        options.config));
  }
  return absl::OkStatus();
}

nlohmann::json ToJson(const StoredSize& s, double per_token, double stated) {
  return {{"bytes_per_token", per_token},
          {"stated_bytes_per_token", stated},
          {"row_bytes", s.row_bytes},
          {"page_bytes", s.page_bytes},
          {"accounted_bytes", s.accounted_bytes},
          {"overhead", s.overhead()},
          {"token_id_bytes", s.token_bytes},
          {"witness_bytes", s.witness_bytes},
          {"witness_page_bytes", s.witness_page_bytes},
          {"slots", s.n_slots},
          {"block_tokens", s.block_size},
          {"blocks", s.n_blocks}};
}

std::vector<std::string> TableRow(const char* name, const StoredSize& s,
                                  double per_token, double stated) {
  return {name,
          absl::StrFormat("%d", s.n_slots),
          absl::StrFormat("%d", s.block_size),
          absl::StrFormat("%d", s.row_bytes),
          absl::StrFormat("%d", s.page_bytes - s.token_bytes),
          absl::StrFormat("%.2f", stated),
          absl::StrFormat("%.2f", per_token),
          absl::StrFormat("%.2f %%", 100 * s.overhead())};
}

double PerToken(const StoredSize& s, uint64_t n_tokens) {
  return static_cast<double>(s.page_bytes - s.token_bytes) /
         static_cast<double>(n_tokens);
}

// Rows of whole groups, so a last open one may be missing.
bool AsStated(const StoredSize& s, double stated, uint64_t n_tokens,
              double slack) {
  const double rows =
      static_cast<double>(s.row_bytes) / static_cast<double>(n_tokens);
  return std::abs(rows - stated) * static_cast<double>(n_tokens) <= slack;
}

}  // namespace

double SizeResult::CompactPerToken() const {
  return PerToken(compact, n_tokens);
}
double SizeResult::AllPerToken() const { return PerToken(all, n_tokens); }

bool SizeResult::Holds() const {
  double slack = 0.5;
  for (const Slot& slot : layout.slots) {
    if (slot.tokens_per_row > 1) slack += slot.row_bytes;
  }
  return compact.overhead() <= kOverheadMust &&
         all.overhead() <= kOverheadMust &&
         AsStated(compact, stated_compact, n_tokens, slack) &&
         AsStated(all, stated_all, n_tokens, slack);
}

absl::StatusOr<SizeResult> MeasureSize(const SizeOptions& options,
                                       const Common& common) {
  SizeResult out;
  TORPOR_ASSIGN_OR_RETURN(out.layout,
                          LayoutOf(options.config, options.kv_dtype));
  TORPOR_RETURN_IF_ERROR(CheckLayout(options, out.layout));
  out.n_tokens = options.n_tokens;
  const replay::LayoutFigures figures =
      replay::FiguresOf(out.layout, options.n_tokens);
  out.stated_compact = figures.compact_bytes_per_token;
  out.stated_all = figures.all_window_bytes_per_token;
  {
    TORPOR_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(common.dir));
    TORPOR_ASSIGN_OR_RETURN(
        out.compact,
        SleepingSession(options, out.layout).Measure(scratch.path() + "/data"));
    common.Say(absl::StrFormat("a session of %d tokens sleeps and was read",
                               options.n_tokens));
  }
  TORPOR_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(common.dir));
  const ModelLayout all = WithEveryWindow(out.layout);
  TORPOR_ASSIGN_OR_RETURN(
      out.all, SleepingSession(options, all).Measure(scratch.path() + "/data"));
  common.Say("the same with every window row kept");
  return out;
}

Result ReportOf(const SizeOptions& options, const SizeResult& r) {
  Result out;
  const double ratio = r.AllPerToken() / r.CompactPerToken();
  out.holds = r.Holds();
  out.json = {
      {"config", options.config},
      {"family", r.layout.family},
      {"kv_dtype", options.kv_dtype},
      {"layers", r.layout.n_layers},
      {"n_tokens", r.n_tokens},
      {"overhead_must_be_at_most", kOverheadMust},
      {"compact", ToJson(r.compact, r.CompactPerToken(), r.stated_compact)},
      {"every_window_row", ToJson(r.all, r.AllPerToken(), r.stated_all)},
      {"ratio", ratio}};
  out.text = absl::StrFormat(
      "%s, %d layers, %d tokens of synthetic rows; pages x 4 KiB, token ids "
      "apart\n\n",
      r.layout.family, r.layout.n_layers, r.n_tokens);
  out.text += AlignedTable(
      {{"", "slots", "block", "rows, B", "pages, B", "stated B/token",
        "on disk B/token", "overhead"},
       TableRow("stored", r.compact, r.CompactPerToken(), r.stated_compact),
       TableRow("every window row kept", r.all, r.AllPerToken(),
                r.stated_all)});
  out.text += absl::StrFormat(
      "\n  %.2fx; beside it token ids %d B (4 B/token), witness %d B in %d B "
      "of pages\n  overhead must be at most %.0f %%: %s\n",
      ratio, r.compact.token_bytes, r.compact.witness_bytes,
      r.compact.witness_page_bytes, 100 * kOverheadMust,
      out.holds ? "holds" : "DOES NOT HOLD");
  out.page = SvgPage(
      absl::StrFormat("%d tokens on disk, %s", r.n_tokens, r.layout.family));
  BarPlot plot{"Bytes a token", {"rows", "pages"}, {}};
  for (const auto& [name, per_token, stated] :
       {std::tuple{"stored", r.CompactPerToken(), r.stated_compact},
        std::tuple{"every window row kept", r.AllPerToken(), r.stated_all}}) {
    plot.groups.push_back({name,
                           {{stated, absl::StrFormat("%.2f", stated)},
                            {per_token, absl::StrFormat("%.2f", per_token)}}});
  }
  out.page.Add(plot);
  return out;
}

RunBenchmark AddSizeCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<SizeOptions>();
  app->add_option("--config", options->config,
                  "A model's config.json; its layout")
      ->capture_default_str();
  app->add_option("--kv-dtype", options->kv_dtype,
                  "native, or bf16, f16 or f32 for plain elements")
      ->capture_default_str();
  app->add_option("--tokens", options->n_tokens, "Of the session")
      ->check(CLI::Range(uint64_t{1}, uint64_t{100'000'000}))
      ->capture_default_str();
  return [options, common]() -> absl::StatusOr<Result> {
    options->seed = common->seed;
    TORPOR_ASSIGN_OR_RETURN(const SizeResult result,
                            MeasureSize(*options, *common));
    return ReportOf(*options, result);
  };
}

}  // namespace torpor::bench
