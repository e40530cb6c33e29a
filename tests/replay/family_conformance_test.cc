// SPDX-License-Identifier: Apache-2.0
//
// The families that run here, each a line: tiny models of several shapes, on
// every CPU path.

#include "tests/replay/family_conformance.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/replay/guarded_ops.h"
#include "tests/replay/layout_builder.h"
#include "tests/replay/layout_model.h"

namespace torpor::replay {
namespace {

// Three sliding layers around two full ones with windows of 8, 7 and 5, and two
// below each of two full ones; K and V rows as bf16 and as f32.
std::vector<FamilyCase> Gemma3Cases() {
  return {OracleCase("w8", "gemma3/w8"),
          OracleCase("w7", "gemma3/w7"),
          OracleCase("w5", "gemma3/w5"),
          OracleCase("w5_bf16", "gemma3/w5", "bf16"),
          OracleCase("pattern", "gemma3/pattern"),
          OracleCase("pattern_f32", "gemma3/pattern", "f32")};
}

// On a backend whose memory is closed to the host.
FamilyCase Guarded(FamilyCase family_case) {
  family_case.name += "_guarded";
  family_case.load = [](const std::string& directory,
                        const ModelOptions& options) {
    ModelOptions guarded = options;
    guarded.ops =
        std::make_shared<kernels::GuardedOps>(options.isa, options.n_threads);
    return LoadModel(directory, guarded);
  };
  return family_case;
}

INSTANTIATE_TEST_SUITE_P(Gemma3, FamilyConformance,
                         ::testing::ValuesIn(OnEveryIsa(Gemma3Cases())),
                         FamilyCaseName);

// ---- models made of layouts, for what no family has yet --------------------

FamilyCase LayoutCase(const std::string& name,
                      const LayoutModelOptions& options) {
  FamilyCase family_case;
  family_case.name = name;
  family_case.directory = [](const std::string& temp_dir) { return temp_dir; };
  family_case.load = [options](const std::string&, const ModelOptions&) {
    return MakeLayoutModel(options);
  };
  family_case.traits.id_lookback = options.id_lookback;
  family_case.traits.row_use = [](const Slot& slot) {
    return slot.name.rfind("index", 0) == 0 ? RowUse::kPicked : RowUse::kEvery;
  };
  return family_case;
}

Slot WithReaders(Slot slot, std::vector<uint32_t> readers) {
  slot.reader_layers = std::move(readers);
  slot.format = "f32";
  return slot;
}

Slot DraftSlot(uint32_t owner, uint32_t window, uint32_t row_bytes) {
  Slot slot = WithReaders(SlidingSlot(owner, window, row_bytes), {});
  slot.name = "draft.window";
  return slot;
}

ModelLayout Described(uint32_t n_layers, std::vector<Slot> slots) {
  ModelLayout layout;
  layout.family = "test";
  layout.vocab_size = 40;
  layout.n_layers = n_layers;
  layout.slots = std::move(slots);
  for (Slot& slot : layout.slots) slot.format = "f32";
  return layout;
}

// "plain" without its Engram tables: no lookback at all.
FamilyCase V41WithoutEngram() {
  FamilyCase family_case = V41Case("no_engram", "plain", "f32");
  family_case.traits.id_lookback = 0;
  family_case.directory = [](const std::string& temp_dir) {
    const std::string from =
        std::string(TORPOR_ORACLES_DIR) + "/deepseek_v41/plain/";
    std::ifstream in(from + "config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    config["text_config"]["engram_layer_ids"] = nlohmann::json::array();
    config["text_config"]["engram_num_embeddings"] = nlohmann::json::array();
    std::ofstream(temp_dir + "/config.json") << config;
    std::filesystem::copy_file(from + "model.safetensors",
                               temp_dir + "/model.safetensors");
    return temp_dir;
  };
  return family_case;
}

// Windows in every layer, entries of two and of one, Engram tables before two
// layers. A window row under a NaN is NaN; a byte of an entry is not, so the
// suite changes whole slots of those.
INSTANTIATE_TEST_SUITE_P(
    DeepSeekV41, FamilyConformance,
    ::testing::ValuesIn(OnEveryIsa({V41Case("plain", "plain", "f32")})),
    FamilyCaseName);
INSTANTIATE_TEST_SUITE_P(
    DeepSeekV41Formats, FamilyConformance,
    ::testing::ValuesIn(OnFastestIsa({V41Case("plain_bf16", "plain", "bf16"),
                                      V41Case("release", "release", "native"),
                                      V41Case("ratio1", "ratio1", "f32"),
                                      V41WithoutEngram()})),
    FamilyCaseName);
INSTANTIATE_TEST_SUITE_P(
    GuardedBackend, FamilyConformance,
    ::testing::ValuesIn(
        OnFastestIsa({Guarded(OracleCase("w5", "gemma3/w5", "bf16")),
                      Guarded(V41Case("ratio1", "ratio1", "f32")),
                      Guarded(V41Case("release", "release", "native"))})),
    FamilyCaseName);

// A slot of each kind, windows of several lengths, one that two layers read.
ModelLayout EveryKind() {
  return Described(
      6, {SlidingSlot(0, 5, 16), SlidingSlot(1, 4, 12), FullSlot(1, 8),
          ChunkedSlot(2, 6, 16),
          WithReaders(PooledSlot("main.2", 2, 2, 16), {2, 3, 5}),
          WithReaders(PooledSlot("index.2", 2, 2, 8), {2, 5}),
          OpenGroupSlot("open.2", 2, 2, 0, 24), SlidingSlot(3, 5, 16),
          WithReaders(PooledSlot("main.3", 3, 1, 16), {3, 4}),
          WithReaders(SlidingSlot(4, 3, 16), {4, 5}),
          PooledSlot("main.4", 4, 4, 16), OpenGroupSlot("open.4", 4, 4, 4, 24),
          DraftSlot(5, 5, 8)});
}

// A short window in every layer of many, groups of two and of one, drafts.
ModelLayout DeepAndNarrow() {
  std::vector<Slot> slots;
  for (uint32_t l = 0; l < 10; ++l) slots.push_back(SlidingSlot(l, 4, 16));
  for (const auto& [source, ratio, readers, index_readers] :
       {std::tuple{2u, 2u, std::vector<uint32_t>{2, 3}, std::vector{2u}},
        std::tuple{4u, 2u, std::vector<uint32_t>{4, 5}, std::vector{4u}},
        std::tuple{6u, 1u, std::vector<uint32_t>{6, 7, 8, 9},
                   std::vector{6u, 8u}}}) {
    const std::string of = "." + std::to_string(source);
    slots.push_back(
        WithReaders(PooledSlot("main" + of, source, ratio, 16), readers));
    slots.push_back(
        WithReaders(PooledSlot("index" + of, source, ratio, 8), index_readers));
    if (ratio > 1) {
      slots.push_back(OpenGroupSlot("open" + of, source, ratio, 0, 16));
    }
  }
  slots.push_back(DraftSlot(9, 4, 8));
  return Described(10, std::move(slots));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, FamilyConformance,
    ::testing::Values(LayoutCase("EveryKind",
                                 {.layout = EveryKind(), .id_lookback = 3}),
                      LayoutCase("DeepAndNarrow", {.layout = DeepAndNarrow(),
                                                   .id_lookback = 3})),
    FamilyCaseName);

}  // namespace
}  // namespace torpor::replay
