// SPDX-License-Identifier: Apache-2.0
//
// Witnesses (design D6): golden values of another implementation, every bit of
// every row seen, and errors that cannot hide behind a NaN.

#include "replay/witness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/replay/golden.h"
#include "tests/replay/layout_builder.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using torpor::testing::HasCode;

constexpr uint32_t kRowBytes = 4;

// Layer 0: a window of 8. Layer 1: full. Layer 2: a window of 3. K, then V.
ModelLayout SmallLayout(const std::string& format = "bf16") {
  ModelLayout layout;
  layout.family = "witness";
  layout.n_layers = 3;
  layout.vocab_size = 16;
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (const char* part : {"k", "v"}) {
      Slot slot = layer == 1
                      ? FullSlot(layer, kRowBytes)
                      : SlidingSlot(layer, layer == 0 ? 8 : 3, kRowBytes);
      slot.name += part;
      slot.format = format;
      layout.slots.push_back(slot);
    }
  }
  return layout;
}

// The rows that a session at `cut` holds; their bytes by the formula that
// generate.py has too.
WindowState WindowAt(const ModelLayout& layout, uint64_t cut) {
  WindowState window;
  window.resume_at = cut;
  for (uint32_t s = 0; s < layout.slots.size(); ++s) {
    const Slot& slot = layout.slots[s];
    if (!slot.is_window()) continue;
    SlotRows rows;
    rows.slot = s;
    rows.end = cut;
    rows.first = slot.kind == SlotKind::kChunked
                     ? cut / slot.chunk * slot.chunk
                     : cut - std::min<uint64_t>(cut, slot.window - 1);
    for (uint64_t pos = rows.first; pos < cut; ++pos) {
      for (uint32_t i = 0; i < slot.row_bytes; ++i) {
        rows.bytes.push_back(
            static_cast<uint8_t>(s * 97 + pos * 31 + i * 7 + 1));
      }
    }
    window.slots.push_back(rows);
  }
  return window;
}

std::vector<uint64_t> Positions(const LayerWitness& layer) {
  std::vector<uint64_t> positions;
  for (const WitnessRow& row : layer.rows) positions.push_back(row.position);
  return positions;
}

void ExpectGolden(const LayerWitness& layer, const std::string& name) {
  EXPECT_EQ(Hex(layer.digest), Golden(name + "_digest"));
  for (const WitnessRow& row : layer.rows) {
    EXPECT_EQ(Hex(row.bytes),
              Golden(name + "_row_" + std::to_string(row.position)))
        << row.position;
  }
}

TEST(WitnessTest, IsThatOfAnotherImplementation) {
  const ModelLayout layout = SmallLayout();
  const Witness witness = MakeWitness(layout, "cpu/1", WindowAt(layout, 20));
  EXPECT_EQ(witness.numerics_id, "cpu/1");
  EXPECT_EQ(witness.resume_at, 20);
  ASSERT_EQ(witness.layers.size(), 2);
  EXPECT_EQ(witness.layers[0].layer, 0);
  EXPECT_EQ(witness.layers[1].layer, 2);
  EXPECT_EQ(Positions(witness.layers[0]),
            (std::vector<uint64_t>{13, 14, 16, 18, 19}));
  EXPECT_EQ(Positions(witness.layers[1]), (std::vector<uint64_t>{18, 19}));
  ExpectGolden(witness.layers[0], "layer0");
  ExpectGolden(witness.layers[1], "layer2");
}

TEST(WitnessTest, OfASessionBelowItsWindowHasTheRowsThereAre) {
  const ModelLayout layout = SmallLayout();
  const Witness witness = MakeWitness(layout, "", WindowAt(layout, 3));
  ASSERT_EQ(witness.layers.size(), 2);
  EXPECT_EQ(Positions(witness.layers[0]), (std::vector<uint64_t>{1, 2}));
  ExpectGolden(witness.layers[0], "short0");
}

TEST(WitnessTest, SampleRowsStandAtFractionsOfTheWindow) {
  ModelLayout layout = SmallLayout();
  for (uint32_t slot : {0, 1}) layout.slots[slot].window = 128;
  const Witness witness = MakeWitness(layout, "", WindowAt(layout, 1000));
  EXPECT_EQ(Positions(witness.layers[0]),
            (std::vector<uint64_t>{1000 - 127, 1000 - 96, 1000 - 64, 1000 - 32,
                                   1000 - 1}));
}

TEST(WitnessTest, AnEqualWindowIsExact) {
  const ModelLayout layout = SmallLayout();
  for (const uint64_t cut : {1, 2, 3, 7, 8, 9, 20}) {
    const WindowState window = WindowAt(layout, cut);
    ASSERT_OK_AND_ASSIGN(
        const WitnessReport report,
        CompareWithWitness(layout, window, MakeWitness(layout, "", window)));
    EXPECT_EQ(report.verdict, Verdict::kExact);
    EXPECT_EQ(report.max_error(), 0);
    ASSERT_EQ(report.layers.size(), 2);
    EXPECT_TRUE(report.layers[0].digest_equal);
    EXPECT_TRUE(report.layers[1].digest_equal);
    EXPECT_EQ(report.layers[1].layer, 2);
  }
}

TEST(WitnessTest, EachFlippedBitIsSeenInItsLayerAlone) {
  const ModelLayout layout = SmallLayout();
  const WindowState clean = WindowAt(layout, 20);
  const Witness wanted = MakeWitness(layout, "", clean);
  for (size_t s = 0; s < clean.slots.size(); ++s) {
    for (size_t bit = 0; bit < clean.slots[s].bytes.size() * 8; ++bit) {
      WindowState window = clean;
      window.slots[s].bytes[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
      const Witness got = MakeWitness(layout, "", window);
      const size_t layer = s / 2;
      EXPECT_NE(got.layers[layer].digest, wanted.layers[layer].digest);
      EXPECT_EQ(got.layers[1 - layer], wanted.layers[1 - layer]);
      ASSERT_OK_AND_ASSIGN(const WitnessReport report,
                           CompareWithWitness(layout, window, wanted));
      EXPECT_EQ(report.verdict, Verdict::kMeasured);
      EXPECT_FALSE(report.layers[layer].digest_equal);
      EXPECT_TRUE(report.layers[1 - layer].digest_equal);
      ASSERT_OK_AND_ASSIGN(const WitnessReport of_witness,
                           CompareWitnesses(layout, got, wanted));
      EXPECT_EQ(of_witness.verdict, report.verdict);
      for (size_t l = 0; l < 2; ++l) {
        const LayerError& a = of_witness.layers[l];
        const LayerError& b = report.layers[l];
        EXPECT_EQ(a.digest_equal, b.digest_equal);
        EXPECT_EQ(a.max_relative, b.max_relative);
        EXPECT_EQ(a.mean_relative, b.mean_relative);
      }
    }
  }
}

TEST(WitnessTest, WitnessesOfOtherWindowsDoNotCompare) {
  const ModelLayout layout = SmallLayout();
  const Witness wanted = MakeWitness(layout, "", WindowAt(layout, 20));
  const auto refused = [&](const char* text, auto change) {
    Witness got = wanted;
    change(&got);
    EXPECT_THAT(CompareWitnesses(layout, got, wanted),
                testing::HasStatus(absl::StatusCode::kInvalidArgument, text));
  };
  refused("cut at 20", [](Witness* w) { w->resume_at = 21; });
  refused("no window", [](Witness* w) { w->layers.pop_back(); });
  refused("outside", [](Witness* w) { w->layers[0].rows.clear(); });
  refused("bytes", [](Witness* w) { w->layers[0].rows[0].bytes.pop_back(); });
}

TEST(WitnessTest, SwappedRowsOrPartsAreSeen) {
  const ModelLayout layout = SmallLayout();
  const WindowState clean = WindowAt(layout, 20);
  const Digest128 wanted = MakeWitness(layout, "", clean).layers[0].digest;
  WindowState window = clean;
  std::swap_ranges(window.slots[0].bytes.begin(),
                   window.slots[0].bytes.begin() + kRowBytes,
                   window.slots[0].bytes.begin() + kRowBytes);
  EXPECT_NE(MakeWitness(layout, "", window).layers[0].digest, wanted);
  window = clean;
  std::swap(window.slots[0].bytes, window.slots[1].bytes);
  EXPECT_NE(MakeWitness(layout, "", window).layers[0].digest, wanted);
}

// Two f32 a row in K and in V: row 19 of layer 2, whose window is rows 18, 19.
class WitnessErrorTest : public ::testing::Test {
 protected:
  WitnessErrorTest() : layout_(SmallLayout("f32")) {
    for (Slot& slot : layout_.slots) slot.row_bytes = 8;
    window_ = WindowAt(layout_, 20);
    for (SlotRows& rows : window_.slots) {
      for (size_t i = 0; i < rows.bytes.size() / 4; ++i) {
        const float value = 1;
        std::memcpy(rows.bytes.data() + 4 * i, &value, 4);
      }
    }
  }
  static void Set(WindowState* window, size_t slot, size_t i, float value) {
    std::memcpy(window->slots[slot].bytes.data() + 4 * i, &value, 4);
  }
  // Of layer 2, the second that has a window.
  LayerError Compare(const WindowState& got, const WindowState& wanted) {
    const auto report =
        CompareWithWitness(layout_, got, MakeWitness(layout_, "", wanted));
    EXPECT_OK(report);
    max_error_ = report->max_error();
    return report->layers[1];
  }

  ModelLayout layout_;
  WindowState window_;
  double max_error_ = -1;
};

TEST_F(WitnessErrorTest, IsRelativeToTheLargestValueOfTheWitness) {
  // Eight values: rows 18 and 19 of K and V. The largest is -4; the errors are
  // 1 and 0.5.
  WindowState wanted = window_;
  Set(&wanted, 2, 0, -4);
  WindowState got = wanted;
  Set(&got, 2, 0, -3);
  Set(&got, 3, 3, 1.5);
  const LayerError error = Compare(got, wanted);
  EXPECT_FALSE(error.digest_equal);
  EXPECT_DOUBLE_EQ(error.max_relative, 1.0 / 4);
  EXPECT_DOUBLE_EQ(error.mean_relative, 1.5 / 8 / 4);
  EXPECT_DOUBLE_EQ(max_error_, 1.0 / 4);
}

TEST_F(WitnessErrorTest, ReadsBf16) {
  for (Slot& slot : layout_.slots) slot.format = "bf16";
  // 0x3f80 is 1, 0x3fc0 is 1.5, 0x4000 is 2.
  WindowState wanted = window_;
  for (SlotRows& rows : wanted.slots) {
    for (size_t i = 0; i < rows.bytes.size(); i += 2) {
      rows.bytes[i] = 0x00;
      rows.bytes[i + 1] = 0x40;
    }
  }
  WindowState got = wanted;
  got.slots[3].bytes[2] = 0xc0;
  got.slots[3].bytes[3] = 0x3f;
  const LayerError error = Compare(got, wanted);
  EXPECT_DOUBLE_EQ(error.max_relative, 0.25);
  EXPECT_DOUBLE_EQ(error.mean_relative, 0.25 / 16);
}

TEST_F(WitnessErrorTest, ANewNanOrInfinityIsTheLargestError) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t i : {0, 3}) {
      WindowState got = window_;
      Set(&got, 2, i, bad);
      const LayerError error = Compare(got, window_);
      EXPECT_EQ(error.max_relative, INFINITY) << bad;
      EXPECT_EQ(error.mean_relative, INFINITY) << bad;
      EXPECT_EQ(max_error_, INFINITY) << bad;
    }
  }
}

TEST_F(WitnessErrorTest, AVanishedNanOrInfinityIsTheLargestErrorToo) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    WindowState wanted = window_;
    Set(&wanted, 2, 0, bad);
    EXPECT_EQ(Compare(window_, wanted).max_relative, INFINITY) << bad;
    EXPECT_EQ(max_error_, INFINITY) << bad;
  }
}

TEST_F(WitnessErrorTest, ANonFiniteValueDoesNotHideOtherErrors) {
  WindowState wanted = window_;
  Set(&wanted, 2, 0, INFINITY);
  WindowState got = wanted;
  Set(&got, 2, 1, 1.5);
  EXPECT_DOUBLE_EQ(Compare(got, wanted).max_relative, 0.5);
}

TEST_F(WitnessErrorTest, ANanThatTheWitnessHasIsNoError) {
  for (const float same : {std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
    WindowState window = window_;
    Set(&window, 2, 0, same);
    const LayerError error = Compare(window, window);
    EXPECT_TRUE(error.digest_equal);
    EXPECT_EQ(error.max_relative, 0) << same;
    EXPECT_EQ(error.mean_relative, 0) << same;
  }
}

TEST_F(WitnessErrorTest, AnythingAgainstZerosIsTheLargestError) {
  WindowState zeros = window_;
  for (SlotRows& rows : zeros.slots) {
    std::fill(rows.bytes.begin(), rows.bytes.end(), uint8_t{0});
  }
  WindowState got = zeros;
  Set(&got, 2, 0, 1e-30F);
  EXPECT_EQ(Compare(got, zeros).max_relative, INFINITY);
  EXPECT_EQ(Compare(zeros, zeros).max_relative, 0);
}

TEST(WitnessTest, OfAnotherCutOrOtherLayersIsRefused) {
  const ModelLayout layout = SmallLayout();
  const WindowState window = WindowAt(layout, 20);
  const Witness witness = MakeWitness(layout, "", window);
  const auto refused = [&](const Witness& other) {
    EXPECT_THAT(CompareWithWitness(layout, window, other),
                HasCode(absl::StatusCode::kInvalidArgument));
  };
  Witness other = witness;
  other.resume_at = 21;
  refused(other);
  other = witness;
  other.layers.pop_back();
  refused(other);
  other = witness;
  other.layers[1].layer = 1;
  refused(other);
  // One layer twice: the other would never be compared.
  other = witness;
  other.layers[1] = other.layers[0];
  refused(other);
  other = witness;
  other.layers.clear();
  refused(other);
  // Rows outside the window, of another size.
  for (const uint64_t position :
       {uint64_t{12}, uint64_t{20}, ~uint64_t{0}, uint64_t{0}}) {
    other = witness;
    other.layers[0].rows[0].position = position;
    refused(other);
  }
  other = witness;
  other.layers[0].rows[2].bytes.pop_back();
  refused(other);
  other.layers[0].rows[2].bytes.clear();
  refused(other);
}

TEST(WitnessTest, AChunkedLayerHasTheRowsOfItsChunk) {
  ModelLayout layout;
  layout.n_layers = 1;
  layout.slots = {ChunkedSlot(0, 8, kRowBytes)};
  const WindowState inside = WindowAt(layout, 21);
  const Witness witness = MakeWitness(layout, "", inside);
  ASSERT_EQ(witness.layers.size(), 1);
  // Rows 16 to 20; H-6 and H-7 lie in the chunk before.
  EXPECT_EQ(Positions(witness.layers[0]), (std::vector<uint64_t>{17, 19, 20}));
  WindowState changed = inside;
  changed.slots[0].bytes[1] ^= 1;
  EXPECT_NE(MakeWitness(layout, "", changed).layers[0].digest,
            witness.layers[0].digest);
  // At a chunk's edge there are none.
  const WindowState edge = WindowAt(layout, 24);
  const Witness empty = MakeWitness(layout, "", edge);
  ASSERT_EQ(empty.layers.size(), 1);
  EXPECT_TRUE(empty.layers[0].rows.empty());
  ASSERT_OK_AND_ASSIGN(const WitnessReport report,
                       CompareWithWitness(layout, edge, empty));
  EXPECT_EQ(report.verdict, Verdict::kExact);
}

// A layer may own two windows of different lengths (a cache and the keys of an
// index): rows that only one of them has are witnessed as well.
TEST(WitnessTest, WindowsOfDifferentLengthsInOneLayerAreAllSeen) {
  for (const bool longer_first : {true, false}) {
    ModelLayout layout;
    layout.n_layers = 1;
    layout.slots = {SlidingSlot(0, longer_first ? 8 : 3, kRowBytes),
                    SlidingSlot(0, longer_first ? 3 : 8, kRowBytes)};
    layout.slots[1].name += "2";
    ASSERT_OK(layout.Validate());
    const WindowState clean = WindowAt(layout, 20);
    const Witness wanted = MakeWitness(layout, "", clean);
    ASSERT_EQ(wanted.layers.size(), 1);
    EXPECT_EQ(Positions(wanted.layers[0]).front(), 13);
    for (size_t s = 0; s < 2; ++s) {
      for (size_t i = 0; i < clean.slots[s].bytes.size(); ++i) {
        WindowState window = clean;
        window.slots[s].bytes[i] ^= 0x10;
        EXPECT_NE(MakeWitness(layout, "", window).layers[0].digest,
                  wanted.layers[0].digest)
            << "slot " << s << " byte " << i;
      }
    }
    ASSERT_OK_AND_ASSIGN(const WitnessReport report,
                         CompareWithWitness(layout, clean, wanted));
    EXPECT_EQ(report.verdict, Verdict::kExact);
  }
}

TEST(WitnessTest, AModelWithoutWindowsHasNothingToWitness) {
  ModelLayout layout;
  layout.n_layers = 1;
  layout.slots = {FullSlot(0, kRowBytes)};
  WindowState window;
  window.resume_at = 9;
  const Witness witness = MakeWitness(layout, "id", window);
  EXPECT_TRUE(witness.layers.empty());
  EXPECT_EQ(witness.resume_at, 9);
}

}  // namespace
}  // namespace torpor::replay
