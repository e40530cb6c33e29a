// SPDX-License-Identifier: Apache-2.0
//
// Invariants 1, 2, 3, 11, 14 and 15 of the fact sheet (section 10, as section
// 12 corrects it): what is stored, when, and in which bytes.

#include "tests/replay/deepseek_v41_invariants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/cpu_ops.h"
#include "kernels/row_codec.h"
#include "kernels/small_float.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::RowFormat;
using torpor::testing::HasCode;

uint64_t StoredBytes(const ModelLayout& layout, uint64_t n_tokens) {
  uint64_t bytes = 0;
  for (const uint32_t index : layout.CompactSlots()) {
    const Slot& slot = layout.slots[index];
    bytes += n_tokens / slot.tokens_per_row * slot.row_bytes;
  }
  return bytes;
}

// ---- 1: bytes of T tokens --------------------------------------------------

TEST_F(DeepSeekV41Invariants, Invariant01StoredBytes) {
  const ModelLayout release = ReleaseLayout();
  ASSERT_EQ(release.CompactSlots().size(), 8);
  std::vector<uint64_t> lengths = {1'000'000, 1'048'575, 1'048'576};
  for (uint64_t n = 0; n <= 1024; ++n) lengths.push_back(n);
  for (const uint64_t n : lengths) {
    // Of an odd T, layer 20 alone holds the last token.
    const uint64_t wanted = n % 2 == 0 ? 890 * n : 890 * (n - 1) + 356;
    ASSERT_EQ(StoredBytes(release, n), wanted) << n;
  }
  EXPECT_EQ(StoredBytes(release, 127), 890 * 127 - 534);
  EXPECT_EQ(StoredBytes(release, 128), 113'920);
  EXPECT_EQ(StoredBytes(release, 256), 227'840);

  // Records that a run wrote: 36 bytes and 17, of two sources of pairs and one
  // of single tokens.
  TestSession session(model_.get());
  for (uint64_t n = 1; n <= 40; ++n) {
    ASSERT_OK(session.Run(std::span(ids_).subspan(n - 1, 1), 0).status());
    ASSERT_OK_AND_ASSIGN(const MemoryRows rows, session.Compact());
    uint64_t bytes = 0;
    for (const auto& [slot, held] : rows.slots) bytes += held.size();
    ASSERT_EQ(bytes, n % 2 == 0 ? 106 * n : 106 * (n - 1) + 53) << n;
  }
}

// ---- 2: when an entry is there ---------------------------------------------

TEST_F(DeepSeekV41Invariants, Invariant02EntriesCloseWithTheirGroup) {
  const auto ratio_of = [](uint32_t layer) {
    return layer == kLastSource ? 1 : 2;
  };
  for (const uint64_t chunk : {1, 3}) {
    TestSession session(model_.get());
    for (uint64_t n = chunk; n <= 42; n += chunk) {
      ASSERT_OK(
          session.Run(std::span(ids_).subspan(n - chunk, chunk), 0).status());
      for (const uint32_t index : layout().CompactSlots()) {
        const Slot& slot = layout().slots[index];
        std::vector<uint8_t> row(slot.row_bytes);
        for (uint64_t g = 0; g <= n; ++g) {
          const bool closed =
              ratio_of(slot.owner_layer) == 2 ? n >= 2 * g + 2 : n >= g + 1;
          const absl::Status got =
              session.sequence()->ExportRows(index, {g, g + 1}, row);
          ASSERT_THAT(got, HasCode(closed ? absl::StatusCode::kOk
                                          : absl::StatusCode::kOutOfRange))
              << slot.name << ", entry " << g << " of " << n << " tokens";
        }
      }
    }
  }
  // The released sources close likewise.
  std::map<uint32_t, uint32_t> ratios;
  const ModelLayout release = ReleaseLayout();
  for (const uint32_t index : release.CompactSlots()) {
    const Slot& slot = release.slots[index];
    ratios[slot.owner_layer] = slot.tokens_per_row;
  }
  EXPECT_EQ(ratios,
            (std::map<uint32_t, uint32_t>{{2, 2}, {8, 2}, {14, 2}, {20, 1}}));
}

// ---- 3: replays leave stored rows alone ------------------------------------

TEST_F(DeepSeekV41Invariants, Invariant03ReplaysLeaveStoredBytesAlone) {
  for (const uint64_t cut : {uint64_t{64}, uint64_t{67}, kTokens}) {
    MemoryRows rows = CompactAt(cut);
    const std::unique_ptr<Sequence> sequence = Loaded(cut, &rows);
    for (int round = 0; round < 3; ++round) {
      for (const uint64_t chunk : {0, 1, 5}) {
        for (const ReplayPlan& plan : {Bounded(cut), Exact(cut, true)}) {
          Replay(model_.get(), plan, ids_, sequence.get(), cut, chunk);
          ASSERT_OK_AND_ASSIGN(const MemoryRows after,
                               CompactRowsOf(layout(), *sequence, cut));
          ASSERT_EQ(after.slots, rows.slots)
              << "cut " << cut << ", round " << round << ", "
              << ReplayModeName(plan.mode);
        }
      }
    }
  }
}

// ---- 11: an odd cut --------------------------------------------------------

// Counts what is written to stored slots.
class CountingTap final : public Tap {
 public:
  explicit CountingTap(const ModelLayout* layout) : layout_(*layout) {}

  void OnRows(std::string_view, uint32_t, std::span<const RowRun>,
              std::span<float>) override {}
  void OnRecord(uint32_t slot, uint64_t row, std::span<uint8_t>) override {
    if (layout_.slots[slot].kind == SlotKind::kPooled) ++written_[{slot, row}];
  }
  void OnChoice(std::string_view, uint32_t, uint64_t,
                std::vector<int32_t>*) override {}

  // Times that each row of a slot was written.
  std::map<std::pair<uint32_t, uint64_t>, int> written_;

 private:
  const ModelLayout& layout_;
};

TEST_F(DeepSeekV41Invariants, Invariant11AnOddCutWritesItsPairOnce) {
  for (const uint64_t cut : {uint64_t{57}, uint64_t{67}, uint64_t{79}}) {
    ASSERT_OK_AND_ASSIGN(const MemoryRows truth, Prefilled(kTokens).Compact());
    for (const bool exact : {true, false}) {
      SCOPED_TRACE(cut);
      MemoryRows rows = CompactAt(cut);
      CountingTap tap(&layout());
      model_->set_tap(&tap);
      const ReplayPlan plan = exact ? Exact(cut) : Bounded(cut);
      ASSERT_EQ(plan.exact, exact);
      ASSERT_OK_AND_ASSIGN(TestSession woken,
                           TestSession::Wake(model_.get(), ids_, plan, &rows));
      // The replay ran row cut - 1 and wrote no entry.
      EXPECT_TRUE(tap.written_.empty());
      ASSERT_OK(woken.Run(std::span(ids_).subspan(cut, kTokens - cut), 0, 1)
                    .status());
      model_->set_tap(nullptr);
      for (const uint32_t index : layout().CompactSlots()) {
        const Slot& slot = layout().slots[index];
        // Entries of the straddling pair and above, each once; none below.
        const uint64_t first = cut / slot.tokens_per_row;
        for (uint64_t g = 0; g < kTokens / slot.tokens_per_row; ++g) {
          const auto it = tap.written_.find({index, g});
          const int times = it == tap.written_.end() ? 0 : it->second;
          EXPECT_EQ(times, g < first ? 0 : 1) << slot.name << " " << g;
        }
      }
      ASSERT_OK_AND_ASSIGN(const MemoryRows got, woken.Compact());
      // Exactly, they are those of the session that never slept.
      EXPECT_EQ(got.slots == truth.slots, exact);
    }
  }
}

// ---- 14 and 15: the codecs -------------------------------------------------

std::vector<uint8_t> Encode(RowFormat format, const std::vector<float>& x) {
  const auto dim = static_cast<int64_t>(x.size());
  const int64_t bytes = kernels::RowBytes(format, dim, 0);
  const kernels::EncodeRowsParams params = {.format = format,
                                            .x = x.data(),
                                            .n_rows = 1,
                                            .dim = dim,
                                            .x_stride = dim,
                                            .out_stride = bytes};
  std::vector<uint8_t> row(static_cast<size_t>(bytes));
  kernels::EncodeRowsParams to_ref = params;
  to_ref.out = row.data();
  kernels::EncodeRowsRef(to_ref);
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    std::vector<uint8_t> fast(row.size());
    kernels::EncodeRowsParams to_fast = params;
    to_fast.out = fast.data();
    kernels::CpuOps(isa, 1).EncodeRows(to_fast);
    EXPECT_EQ(fast, row) << IsaName(isa);
  }
  return row;
}

std::vector<float> Decode(RowFormat format, const std::vector<uint8_t>& row,
                          size_t dim) {
  std::vector<float> out(dim);
  kernels::DecodeRowsRef({.format = format,
                          .in = row.data(),
                          .n_rows = 1,
                          .dim = static_cast<int64_t>(dim),
                          .in_stride = static_cast<int64_t>(row.size()),
                          .out = out.data(),
                          .out_stride = static_cast<int64_t>(dim)});
  return out;
}

// One block of `n` channels whose largest magnitude is `amax`.
std::vector<float> BlockOf(size_t n, float amax, testing::Random& random) {
  std::vector<float> x(n);
  for (float& v : x) {
    v = amax * (static_cast<float>(random.Between(0, 2000)) / 1000.0f - 1.0f);
  }
  x[random.Between(0, n - 1)] = random.OneIn(2) ? amax : -amax;
  return x;
}

float LargestOf(const std::vector<float>& x) {
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  return amax;
}

TEST(DeepSeekV41CodecInvariants, Invariant14EncodingAgain) {
  testing::Random random(14);
  // Main entries: under a normal scale the largest code is 7 and nothing moves.
  for (int i = 0; i < 4000; ++i) {
    const float amax = std::ldexp(
        1.0f + static_cast<float>(random.Between(0, 1 << 20)) / (1 << 20),
        static_cast<int>(random.Between(0, 14)) - 3);
    if (amax > 6 * 448) continue;
    const std::vector<float> x = BlockOf(16, amax, random);
    const std::vector<uint8_t> row = Encode(RowFormat::kMainFp4, x);
    const float scale = kernels::E4m3ToFloat(row[8]);
    ASSERT_GE(scale, 0x1p-6f) << "normal";
    ASSERT_GE(amax / scale, 5.6f);
    ASSERT_LE(amax / scale, 6.4f);
    const std::vector<float> once = Decode(RowFormat::kMainFp4, row, 16);
    ASSERT_EQ(LargestOf(once), 6 * scale);
    ASSERT_EQ(Encode(RowFormat::kMainFp4, once), row) << amax;
  }
  // Under a subnormal one bytes and values move: 9 becomes 8, then 6, 2^-9.
  std::vector<float> x(16);
  x[0] = 9 * 0x1p-9f;
  const std::vector<uint8_t> row = Encode(RowFormat::kMainFp4, x);
  EXPECT_EQ(row[8], 0x02);
  EXPECT_EQ(row[0], 6);
  const std::vector<float> once = Decode(RowFormat::kMainFp4, row, 16);
  EXPECT_EQ(once[0], 8 * 0x1p-9f);
  const std::vector<uint8_t> again = Encode(RowFormat::kMainFp4, once);
  EXPECT_EQ(again[8], 0x01);
  EXPECT_EQ(again[0], 7);
  EXPECT_EQ(Decode(RowFormat::kMainFp4, again, 16)[0], 6 * 0x1p-9f);

  // Index keys keep their values; a largest value of 3 becomes a 6 of half the
  // scale.
  int moved = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::vector<float> key = BlockOf(
        32,
        std::ldexp(1.0f + static_cast<float>(random.Between(0, 999)) / 1000.0f,
                   static_cast<int>(random.Between(0, 60)) - 30),
        random);
    const std::vector<uint8_t> first = Encode(RowFormat::kIndexFp4, key);
    const std::vector<float> values = Decode(RowFormat::kIndexFp4, first, 32);
    const std::vector<uint8_t> second = Encode(RowFormat::kIndexFp4, values);
    ASSERT_TRUE(
        kernels::SameBits(Decode(RowFormat::kIndexFp4, second, 32), values));
    const float scale = kernels::Ue8m0ToFloat(first[16]);
    const bool at_three = LargestOf(values) == 3 * scale;
    ASSERT_EQ(second[16], at_three ? first[16] - 1 : first[16]);
    moved += at_three ? 1 : 0;
  }
  EXPECT_GT(moved, 0);
}

// Scale bytes of a row of one format hold what the sheet says.
void ExpectScales(RowFormat format, std::span<const uint8_t> row, int64_t dim) {
  const kernels::RowShape shape = kernels::ShapeOf(format, dim, 0);
  for (int64_t b = 0; b < shape.n_scales; ++b) {
    const uint8_t byte = row[static_cast<size_t>(shape.scales_at + b)];
    if (format == RowFormat::kMainFp4) {
      ASSERT_GE(byte, 0x01);
      ASSERT_EQ(byte & 0x80, 0);
      // Nor NaN.
      ASSERT_LE(byte, kernels::kE4m3MaxCode);
    } else {
      ASSERT_GE(byte, format == RowFormat::kIndexFp4 ? 1 : 105);
      ASSERT_LE(byte, kernels::kUe8m0MaxCode);
    }
  }
}

constexpr RowFormat kFormats[] = {RowFormat::kMainFp4, RowFormat::kIndexFp4,
                                  RowFormat::kWindowFp8};

TEST(DeepSeekV41CodecInvariants, Invariant15ScaleBytes) {
  static_assert(127 - 22 == 105);
  EXPECT_EQ(std::ceil(std::log2(1e-4 / 448)), -22);
  testing::Random random(15);
  const float most = std::numeric_limits<float>::max();
  for (const float amax : {0.0f, -0.0f, 1e-45f, 1e-38f, 6 * 0x1p-126f, 1e-4f,
                           0x1p-9f, 1.0f, 448.0f, 2688.0f, 1e30f, most}) {
    for (const RowFormat format : kFormats) {
      ExpectScales(format, Encode(format, std::vector<float>(64, amax)), 64);
    }
  }
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> x(64);
    for (float& v : x) {
      do {
        v = std::bit_cast<float>(static_cast<uint32_t>(random.engine()()));
      } while (!std::isfinite(v));
    }
    for (const RowFormat format : kFormats) {
      ExpectScales(format, Encode(format, x), 64);
    }
  }
}

// And of what a model writes.
TEST_F(DeepSeekV41Invariants, Invariant15ScaleBytesOfARun) {
  TestSession session = Prefilled(kTokens);
  int64_t n_records = 0;
  for (uint32_t i = 0; i < layout().slots.size(); ++i) {
    const Slot& slot = layout().slots[i];
    if (slot.kind == SlotKind::kOpenGroup) continue;
    const RowFormat format = slot.is_window() ? RowFormat::kWindowFp8
                             : slot.name.ends_with(".index")
                                 ? RowFormat::kIndexFp4
                                 : RowFormat::kMainFp4;
    const int64_t dim = format == RowFormat::kIndexFp4 ? 32 : 64;
    ASSERT_EQ(kernels::RowBytes(format, dim, 0), slot.row_bytes);
    for (uint64_t row = 0; row < kTokens / slot.tokens_per_row; ++row) {
      ExpectScales(format, RowsOf(*session.sequence(), i, {row, row + 1}), dim);
      ++n_records;
    }
  }
  EXPECT_EQ(n_records, 11 * 96 + 2 * (48 + 48 + 96));
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
