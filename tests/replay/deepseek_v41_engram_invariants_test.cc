// SPDX-License-Identifier: Apache-2.0
//
// Invariant 8 of the fact sheet (section 10, as section 12 corrects it): which
// ids before a replay's start its rows follow from. An id counts by its
// compressed id alone.

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/replay/deepseek_v41_invariants.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay::deepseek_v41 {
namespace {

// "plain" without its Engram tables.
std::unique_ptr<DeepSeekV41> LoadWithoutEngram(const std::string& directory) {
  const std::string from = CaseDirectory("plain");
  auto text = ReadModelConfig(from);
  EXPECT_OK(text.status());
  nlohmann::json config = nlohmann::json::parse(*text);
  config["text_config"]["engram_layer_ids"] = nlohmann::json::array();
  config["text_config"]["engram_num_embeddings"] = nlohmann::json::array();
  std::filesystem::copy_file(from + "/model.safetensors",
                             directory + "/model.safetensors");
  auto model = LoadDeepSeekV41(
      directory, config.dump(),
      {.isa = kernels::AvailableIsas().back(), .compute_dtype = "f32"});
  EXPECT_OK(model.status());
  return *std::move(model);
}

class EngramInvariants : public DeepSeekV41Invariants {
 protected:
  static constexpr uint64_t kCut = 64;
  static constexpr uint64_t kStart = kCut - kWindow;

  EngramInvariants() : rows_(CompactAt(kCut)), plan_(Bounded(kCut)) {
    const auto text = ReadTextFile(CaseDirectory("plain") + "/engram.json");
    EXPECT_OK(text.status());
    const nlohmann::json file = nlohmann::json::parse(*text);
    for (const auto& id : file.at("token_map")) {
      compressed_.push_back(id.get<uint32_t>());
    }
  }

  // The ids with the one at `position` replaced by one of another compressed
  // id.
  std::vector<uint32_t> With(uint64_t position) const {
    std::vector<uint32_t> ids = ids_;
    const uint32_t had = ids[position];
    for (uint32_t id = 0; id < compressed_.size(); ++id) {
      if (compressed_[id] != compressed_[had]) {
        ids[position] = id;
        break;
      }
    }
    return ids;
  }

  std::unique_ptr<Sequence> ReplayedWith(Model* model,
                                         const std::vector<uint32_t>& ids) {
    std::unique_ptr<Sequence> sequence = Loaded(kCut, &rows_);
    Replay(model, plan_, ids, sequence.get(), kCut);
    return sequence;
  }

  MemoryRows rows_;
  const ReplayPlan plan_;
  std::vector<uint32_t> compressed_;
};

TEST_F(EngramInvariants, Invariant08ThreeIdsBeforeTheStartMatter) {
  ASSERT_EQ(plan_.replay_start, kStart);
  EXPECT_EQ(model_->id_lookback(), 3);
  ASSERT_OK_AND_ASSIGN(const Config release, ParseConfig(ReleaseConfig()));
  EXPECT_EQ(release.engram.max_ngram, 4);
  EXPECT_EQ(release.engram_layers, (std::vector<int64_t>{1, 14}));

  const auto clean = ReplayedWith(model_.get(), ids_);
  for (uint64_t back = 1; back <= 3; ++back) {
    SCOPED_TRACE(back);
    const auto got = ReplayedWith(model_.get(), With(kStart - back));
    const auto differing = [&](uint32_t layer, uint64_t begin) {
      return Differing(*got, *clean, WindowSlot(layer), begin, kCut);
    };
    EXPECT_TRUE(differing(0, kStart).empty());
    // Through the table before layer 1 it meets rows of at most three tokens
    // behind it.
    std::vector<uint64_t> met;
    for (uint64_t row = kStart; row <= kStart - back + 3; ++row) {
      met.push_back(row);
    }
    EXPECT_EQ(differing(1, kStart), met);
    for (uint32_t l = 2; l < kLayers; ++l) {
      EXPECT_FALSE(differing(l, kStart + 1).empty()) << "layer " << l;
    }
  }
}

TEST_F(EngramInvariants, Invariant08OtherIdsDoNot) {
  const WindowState clean = WindowOf(*ReplayedWith(model_.get(), ids_), kCut);
  for (uint64_t position = 0; position < kStart - 3; ++position) {
    const auto got = ReplayedWith(model_.get(), With(position));
    EXPECT_EQ(WindowOf(*got, kCut).slots, clean.slots) << position;
  }
  // Nor does another id of the same compressed id.
  constexpr uint32_t kTwins[] = {3, 4};
  ASSERT_EQ(compressed_[kTwins[0]], compressed_[kTwins[1]]);
  for (uint64_t back = 1; back <= 3; ++back) {
    std::vector<WindowState> windows;
    for (const uint32_t id : kTwins) {
      std::vector<uint32_t> ids = ids_;
      ids[kStart - back] = id;
      windows.push_back(WindowOf(*ReplayedWith(model_.get(), ids), kCut));
    }
    EXPECT_EQ(windows[0].slots, windows[1].slots) << back;
    EXPECT_NE(windows[0].slots, clean.slots) << back;
  }
}

TEST_F(EngramInvariants, Invariant08WithoutEngramNoIdBeforeTheStartMatters) {
  const testing::TempDir directory;
  const std::unique_ptr<DeepSeekV41> flat = LoadWithoutEngram(directory.path());
  EXPECT_EQ(flat->id_lookback(), 0);
  ASSERT_EQ(flat->layout(), layout());
  const WindowState clean = WindowOf(*ReplayedWith(flat.get(), ids_), kCut);
  EXPECT_NE(clean.slots,
            WindowOf(*ReplayedWith(model_.get(), ids_), kCut).slots);
  for (uint64_t position = 0; position < kStart; ++position) {
    const auto got = ReplayedWith(flat.get(), With(position));
    EXPECT_EQ(WindowOf(*got, kCut).slots, clean.slots) << position;
  }
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
