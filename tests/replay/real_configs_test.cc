// SPDX-License-Identifier: Apache-2.0
//
// The config.json files of published models in tests/oracles/configs, and the
// figures of their KV, which were worked out by hand from the models'
// descriptions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "replay/families.h"
#include "replay/layout_report.h"
#include "replay/planner.h"
#include "tests/replay/known_layouts.h"
#include "tests/replay/raw_safetensors.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using ::testing::HasSubstr;
using torpor::testing::HasStatus;

std::string ConfigFile(const std::string& name) {
  return ReadBack(TORPOR_ORACLES_DIR "/configs/" + name + ".json");
}

struct Figures {
  const char* name;
  // Layers that own rows: of all tokens, and of a window.
  size_t n_full;
  size_t n_sliding;
  uint64_t window;
  // bf16; over full layers, and over all with every row kept.
  double compact_bytes;
  double all_bytes;
  uint64_t bounded_tokens;
  uint64_t exact_tokens;
};

constexpr Figures kFigures[] = {
    {"c4ai-command-r7b-12-2024", 8, 24, 4096, 32768, 131072, 4096, 98280},
    {"DeepSeek-V3", 61, 0, 0, 70272, 70272, 0, 0},
    {"DeepSeek-V4-Flash", 41, 43, 128, 6880, 50912, 128, 5461},
    {"DeepSeek-V4.1-Flash", 4, 40, 128, 3200, 44160, 128, 5080},
    {"Devstral-2-123B-Instruct-2512", 88, 0, 0, 360448, 360448, 0, 0},
    {"EXAONE-4.0-32B", 16, 48, 4096, 65536, 262144, 4096, 196560},
    {"gemma-2-27b", 23, 23, 4096, 188416, 376832, 4096, 94185},
    {"gemma-2-2b", 13, 13, 4096, 53248, 106496, 4096, 53235},
    {"gemma-3-12b-it-ltx2-text-encoder", 8, 40, 1024, 65536, 393216, 1024,
     40920},
    {"gemma-3-270m", 3, 15, 512, 3072, 18432, 512, 7665},
    {"gemma-3-4b-it", 5, 29, 1024, 20480, 139264, 1024, 29667},
    {"gemma-3n-E4B", 4, 16, 512, 8192, 40960, 512, 8176},
    {"Gemma-4-31B-IT-NVFP4", 10, 50, 1024, 81920, 901120, 1024, 51150},
    {"gemma-4-31B", 10, 50, 1024, 81920, 901120, 1024, 51150},
    {"gemma-4-E2B", 3, 12, 512, 6144, 18432, 512, 6132},
    {"gpt-oss-20b", 12, 12, 128, 24576, 49152, 128, 1524},
    {"Llama-3.3-70B-Instruct", 80, 0, 0, 327680, 327680, 0, 0},
    {"Llama-4-Scout-17B-16E", 12, 36, 8192, 49152, 196608, 8192, 8191},
    {"MiMo-V2-Flash", 9, 39, 128, 23040, 222720, 128, 4953},
    {"Ministral-3-3B-2512", 26, 0, 0, 106496, 106496, 0, 0},
    {"Ministral-8B-Instruct-2410", 36, 0, 0, 147456, 147456, 0, 0},
    {"Mistral-7B-mlc-preset", 0, 32, 4096, 0, 131072, 4096, 131040},
    {"Mistral-7B-v0.1", 0, 32, 4096, 0, 131072, 4096, 131040},
    {"Mistral-7B-v0.3", 32, 0, 0, 131072, 131072, 0, 0},
    {"Olmo-3-7B-layer-types-absent", 8, 24, 4096, 131072, 524288, 4096, 98280},
    {"Olmo-3-7B", 8, 24, 4096, 131072, 524288, 4096, 98280},
    {"Phi-3-mini-128k", 32, 0, 0, 393216, 393216, 0, 0},
    {"Phi-3-mini-4k-instruct", 0, 32, 2047, 0, 393216, 2047, 65472},
    {"Phi-3.5-mini-instruct", 32, 0, 0, 393216, 393216, 0, 0},
    {"Qwen2.5-7B-Instruct", 28, 0, 0, 57344, 57344, 0, 0},
    {"Qwen2.5-7B", 28, 0, 0, 57344, 57344, 0, 0},
    {"Qwen2.5-VL-7B-Instruct", 28, 0, 0, 57344, 57344, 0, 0},
    {"Qwen3-8B", 36, 0, 0, 147456, 147456, 0, 0},
    {"SmolLM3-3B", 36, 0, 0, 73728, 73728, 0, 0},
    {"starcoder2-3b", 0, 30, 4096, 0, 30720, 4096, 122850},
    {"Step-3.5-Flash", 12, 33, 512, 49152, 184320, 512, 16863},
};

struct Refusal {
  const char* name;
  absl::StatusCode code;
  // The key, and the layer type where that is the reason.
  const char* key;
  const char* type;
};

constexpr Refusal kRefusals[] = {
    {"embeddinggemma-300m", absl::StatusCode::kFailedPrecondition,
     "'use_bidirectional_attention'", "true"},
    {"Falcon-H1-0.5B", absl::StatusCode::kFailedPrecondition, "'mamba_d_state'",
     "recurrent"},
    {"granitemoehybrid-tiny", absl::StatusCode::kFailedPrecondition,
     "'layer_types'", "'mamba'"},
    {"LFM2.5-VL-1.6B", absl::StatusCode::kFailedPrecondition, "'layer_types'",
     "'conv'"},
    {"Llama-3_3-Nemotron-Super-49B", absl::StatusCode::kUnimplemented,
     "'block_configs'", ""},
    {"Phi-3-small", absl::StatusCode::kUnimplemented,
     "'dense_attention_every_n_layers'", ""},
    {"Qwen3-Next-80B-A3B-Thinking", absl::StatusCode::kFailedPrecondition,
     "'full_attention_interval'", "recurrent"},
};

size_t OwnersOf(const ModelLayout& layout, ComeBack come_back) {
  std::set<uint32_t> owners;
  for (const Slot& slot : layout.slots) {
    if (slot.come_back == come_back && slot.kind != SlotKind::kOpenGroup &&
        !slot.is_draft()) {
      owners.insert(slot.owner_layer);
    }
  }
  return owners.size();
}

TEST(RealConfigsTest, EachHasItsFigures) {
  for (const Figures& wanted : kFigures) {
    SCOPED_TRACE(wanted.name);
    ASSERT_OK_AND_ASSIGN(
        const ModelLayout layout,
        LayoutFromConfig(ConfigFile(wanted.name), {.kv_dtype = "bf16"}));
    EXPECT_EQ(OwnersOf(layout, ComeBack::kPersist), wanted.n_full);
    EXPECT_EQ(OwnersOf(layout, ComeBack::kReplay), wanted.n_sliding);
    EXPECT_EQ(layout.LargestWindow(), wanted.window);
    const LayoutFigures got = FiguresOf(layout, 32'768);
    EXPECT_EQ(got.compact_bytes_per_token, wanted.compact_bytes);
    EXPECT_EQ(got.all_window_bytes_per_token, wanted.all_bytes);
    EXPECT_EQ(got.bounded_tokens, wanted.bounded_tokens);
    EXPECT_EQ(got.exact_tokens, wanted.exact_tokens);
    // f16 rows are as wide, f32 rows twice that.
    ASSERT_OK_AND_ASSIGN(
        const ModelLayout f16,
        LayoutFromConfig(ConfigFile(wanted.name), {.kv_dtype = "f16"}));
    EXPECT_EQ(FiguresOf(f16, 1).all_window_bytes_per_token, wanted.all_bytes);
    ASSERT_OK_AND_ASSIGN(
        const ModelLayout f32,
        LayoutFromConfig(ConfigFile(wanted.name), {.kv_dtype = "f32"}));
    EXPECT_EQ(FiguresOf(f32, 1).all_window_bytes_per_token,
              2 * wanted.all_bytes);
  }
}

TEST(RealConfigsTest, WhatCannotBeRebuiltIsRefusedWithItsKey) {
  for (const Refusal& wanted : kRefusals) {
    SCOPED_TRACE(wanted.name);
    const absl::Status got =
        LayoutFromConfig(ConfigFile(wanted.name), {}).status();
    EXPECT_THAT(got, HasStatus(wanted.code, wanted.key));
    EXPECT_THAT(std::string(got.message()), HasSubstr(wanted.type));
  }
}

TEST(RealConfigsTest, EveryFileIsOneOfThem) {
  size_t n = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TORPOR_ORACLES_DIR "/configs")) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() != ".json") continue;
    ++n;
    EXPECT_TRUE(std::any_of(std::begin(kFigures), std::end(kFigures),
                            [&](const Figures& f) { return f.name == name; }) ||
                std::any_of(std::begin(kRefusals), std::end(kRefusals),
                            [&](const Refusal& r) { return r.name == name; }))
        << name;
  }
  EXPECT_EQ(n, std::size(kFigures) + std::size(kRefusals));
}

// V4.1's own records: 288 + 68 bytes for each of three sources of two tokens a
// row and one of one; 528 for each window row.
TEST(RealConfigsTest, DeepSeekV41HasItsNativeFigures) {
  ASSERT_OK_AND_ASSIGN(const PlannedLayout planned,
                       PlanConfig(ConfigFile("DeepSeek-V4.1-Flash"), {}));
  const ModelLayout& layout = planned.layout;
  const LayoutFigures got = FiguresOf(layout, 32'768);
  EXPECT_EQ(got.compact_bytes_per_token, 890);
  EXPECT_EQ(got.all_window_bytes_per_token, 22'010);
  EXPECT_EQ(got.draft_bytes_per_token, 3 * 528);
  EXPECT_EQ(got.snapshot_bytes, 40 * 127 * 528);
  EXPECT_EQ(got.bounded_tokens, 128);
  EXPECT_EQ(got.exact_tokens, 5080);
  EXPECT_EQ(got.exact_token_layers, 127 * 40 * 39 / 2);
  for (const bool logits : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         PlanReplay(layout, {.resume_at = 100'000,
                                             .mode = ReplayMode::kExact,
                                             .want_logits = logits}));
    EXPECT_EQ(plan.replay_tokens(), logits ? 5081 : 5080);
  }
  EXPECT_FALSE(planned.plan_only);
  EXPECT_TRUE(planned.notes.empty());
}

TEST(RealConfigsTest, DeepSeekV41HasEveryBuffer) {
  ASSERT_OK_AND_ASSIGN(ModelLayout layout,
                       LayoutFromConfig(ConfigFile("DeepSeek-V4.1-Flash"), {}));
  const auto find = [&](const std::string& name) {
    const auto it =
        std::find_if(layout.slots.begin(), layout.slots.end(),
                     [&](const Slot& slot) { return slot.name == name; });
    return it == layout.slots.end() ? Slot() : *it;
  };
  EXPECT_EQ(layout.slots.size(), 40 + 4 + 4 + 3 + 3);
  EXPECT_EQ(find("layer.20.main").tokens_per_row, 1);
  EXPECT_EQ(find("layer.8.main").tokens_per_row, 2);
  EXPECT_EQ(find("layer.8.main").reader_layers,
            (std::vector<uint32_t>{8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(find("layer.8.index").reader_layers, std::vector<uint32_t>{8});
  EXPECT_EQ(find("layer.20.index").reader_layers,
            (std::vector<uint32_t>{20, 24, 28, 32, 36}));
  // A pair's value and gate, in f32.
  EXPECT_EQ(find("layer.14.open").row_bytes, 4096);
  EXPECT_EQ(find("layer.14.open").come_back, ComeBack::kReplay);
  EXPECT_EQ(find("layer.20.open").name, "");
  for (const char* name : {"draft.0.window", "draft.2.window"}) {
    EXPECT_TRUE(find(name).is_draft());
    EXPECT_EQ(find(name).owner_layer, 39);
    EXPECT_EQ(find(name).window, 128);
  }
}

TEST(RealConfigsTest, DeepSeekV4HasItsNativeFigures) {
  ASSERT_OK_AND_ASSIGN(const PlannedLayout planned,
                       PlanConfig(ConfigFile("DeepSeek-V4-Flash"), {}));
  const LayoutFigures got = FiguresOf(planned.layout, 32'768);
  EXPECT_EQ(got.compact_bytes_per_token, 3514.25);
  EXPECT_EQ(got.all_window_bytes_per_token, 28'626.25);
  EXPECT_EQ(got.bounded_tokens, 128);
  EXPECT_EQ(got.exact_tokens, 43 * 127);
  size_t n_open = 0;
  for (const Slot& slot : planned.layout.slots) {
    n_open += slot.kind == SlotKind::kOpenGroup ? 1 : 0;
  }
  // 21 sparse layers pool entries and keys, 20 heavy ones entries.
  EXPECT_EQ(n_open, 2 * 21 + 20);
  // Its draft layer follows the last layer and is left out, which is said.
  ASSERT_EQ(planned.notes.size(), 1);
  EXPECT_THAT(planned.notes[0], HasSubstr("1 draft (MTP) layer is"));
}

// The layouts that the planner's tests spell out by hand agree where both hold
// the same buffers.
TEST(RealConfigsTest, HandWrittenLayoutsPlanTheSame) {
  const std::pair<const char*, ModelLayout> both[] = {
      {"gpt-oss-20b", GptOssWith20B()},
      {"Llama-4-Scout-17B-16E", Llama4Scout()},
      {"gemma-3n-E4B", Gemma3nE4B()},
      {"DeepSeek-V4.1-Flash", DeepSeekV41Flash(kV41Native)}};
  for (const auto& [name, by_hand] : both) {
    ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                         LayoutFromConfig(ConfigFile(name), {}));
    for (const uint64_t cut : {1'000, 20'000, 99'998}) {
      for (const ReplayMode mode : {ReplayMode::kExact, ReplayMode::kBounded}) {
        const PlanRequest request = {.resume_at = cut, .mode = mode};
        ASSERT_OK_AND_ASSIGN(const ReplayPlan got, PlanReplay(layout, request));
        ASSERT_OK_AND_ASSIGN(const ReplayPlan wanted,
                             PlanReplay(by_hand, request));
        EXPECT_EQ(got.replay_start, wanted.replay_start) << name << cut;
        EXPECT_EQ(got.token_layers, wanted.token_layers) << name << cut;
      }
    }
  }
}

TEST(RealConfigsTest, WindowsOfAllPositionsAreNamed) {
  ASSERT_OK_AND_ASSIGN(
      const ModelLayout ministral,
      LayoutFromConfig(ConfigFile("Ministral-8B-Instruct-2410"), {}));
  const std::vector<PersistedWindow> windows = PersistedWindows(ministral);
  ASSERT_EQ(windows.size(), 1);
  EXPECT_EQ(windows[0].reach, 32'768);
  EXPECT_EQ(windows[0].layers.size(), 36);
  ASSERT_OK_AND_ASSIGN(const ModelLayout qwen,
                       LayoutFromConfig(ConfigFile("Qwen2.5-7B"), {}));
  EXPECT_TRUE(PersistedWindows(qwen).empty());
}

}  // namespace
}  // namespace torpor::replay
