// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernel of latent_keys_cuda.h on the emulator.

#include "kernels/latent_keys_cuda.h"

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

constexpr int64_t kPageRows = 4;
constexpr int64_t kWindowBytes = 48;
constexpr int64_t kEntryBytes = 20;
constexpr int64_t kPicks = 6;

// A sequence's pages. They are named and never read: their bytes are unwritten.
class Sequence {
 public:
  Sequence(int64_t window_rows, int64_t ring_rows, int64_t n_entries)
      : ring_rows_(ring_rows) {
    for (int64_t at = 0; at < window_rows; at += kPageRows) {
      windows_.push_back(NewPage(kWindowBytes));
    }
    for (int64_t at = 0; at < n_entries; at += kPageRows) {
      entries_.push_back(NewPage(kEntryBytes));
    }
    window_pages_ = std::make_unique<DeviceBuffer<const uint8_t*>>(
        windows_, "pages of windows");
    entry_pages_ = std::make_unique<DeviceBuffer<const uint8_t*>>(
        entries_, "pages of entries");
  }

  [[nodiscard]] LatentPages pages() const {
    return {.window = window_pages_->data(),
            .ring_rows = ring_rows_,
            .entries = entry_pages_->data()};
  }
  [[nodiscard]] const uint8_t* Window(int64_t position) const {
    const int64_t row = ring_rows_ == 0 ? position : position % ring_rows_;
    return windows_[static_cast<size_t>(row / kPageRows)] +
           row % kPageRows * kWindowBytes;
  }
  [[nodiscard]] const uint8_t* Entry(int64_t pick) const {
    return entries_[static_cast<size_t>(pick / kPageRows)] +
           pick % kPageRows * kEntryBytes;
  }

 private:
  const uint8_t* NewPage(int64_t row_bytes) {
    memory_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(
        static_cast<size_t>(kPageRows * row_bytes), "page"));
    return memory_.back()->data();
  }

  int64_t ring_rows_;
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> memory_;
  std::vector<const uint8_t*> windows_;
  std::vector<const uint8_t*> entries_;
  std::unique_ptr<DeviceBuffer<const uint8_t*>> window_pages_;
  std::unique_ptr<DeviceBuffer<const uint8_t*>> entry_pages_;
};

class LatentKeysCudaTest : public CudaTest {
 protected:
  LatentKeysCudaTest() {
    // A ring, and one that keeps every row.
    sequences_.push_back(std::make_unique<Sequence>(10, 10, 19));
    sequences_.push_back(std::make_unique<Sequence>(40, 0, 3));
  }

  static std::vector<int32_t> SequenceOf() { return {0, 1, 0, 1, 0}; }
  static std::vector<KeyRange> Windows() {
    return {{7, 15}, {38, 39}, {25, 25}, {0, 40}, {9, 10}};
  }
  static std::vector<int32_t> NPicks() { return {4, 0, 6, 1, 2}; }
  static std::vector<int32_t> Picks() {
    return {0,  3,  4,  18, -1, -1,  //
            -1, -1, -1, -1, -1, -1,  //
            1,  2,  5,  8,  9,  17,  //
            2,  -1, -1, -1, -1, -1,  //
            7,  11, -1, -1, -1, -1};
  }

  std::vector<const uint8_t*> Wanted(size_t row, bool has_picks) const {
    const Sequence& of = *sequences_[static_cast<size_t>(SequenceOf()[row])];
    std::vector<const uint8_t*> out;
    for (int64_t p = Windows()[row].begin; p < Windows()[row].end; ++p) {
      out.push_back(of.Window(p));
    }
    for (int32_t i = 0; has_picks && i < NPicks()[row]; ++i) {
      out.push_back(of.Entry(Picks()[row * kPicks + static_cast<size_t>(i)]));
    }
    return out;
  }

  // What the kernel names, beside what it should.
  void ExpectNames(int64_t n_keys_max, bool has_picks) const {
    std::vector<LatentPages> pages;
    for (const auto& sequence : sequences_) pages.push_back(sequence->pages());
    const DeviceBuffer<LatentPages> sequences(pages, "sequences");
    const DeviceBuffer<int32_t> sequence_of(SequenceOf(), "sequence_of");
    const DeviceBuffer<KeyRange> windows(Windows(), "windows");
    const DeviceBuffer<int32_t> picks(Picks(), "picks");
    const DeviceBuffer<int32_t> n_picks(NPicks(), "n_picks");
    const size_t n_rows = SequenceOf().size();
    const std::vector<const uint8_t*> nothing(
        n_rows * static_cast<size_t>(n_keys_max), nullptr);
    const DeviceBuffer<const uint8_t*> lists(nothing, "lists");
    const DeviceBuffer<LatentKeys> keys(n_rows, "keys");
    ASSERT_EQ(NameLatentKeysCuda({.n_rows = static_cast<int64_t>(n_rows),
                                  .sequences = sequences.data(),
                                  .sequence_of = sequence_of.data(),
                                  .page_rows = kPageRows,
                                  .window_bytes = kWindowBytes,
                                  .entry_bytes = kEntryBytes,
                                  .windows = windows.data(),
                                  .picks = has_picks ? picks.data() : nullptr,
                                  .picks_stride = kPicks,
                                  .n_picks = n_picks.data(),
                                  .lists = lists.data(),
                                  .n_keys_max = n_keys_max,
                                  .keys = keys.data()},
                                 nullptr),
              0)
        << Reports();
    const auto got = lists.Download();
    const auto got_keys = keys.Download();
    for (size_t row = 0; row < n_rows; ++row) {
      const size_t at = row * static_cast<size_t>(n_keys_max);
      std::vector<const uint8_t*> wanted = Wanted(row, has_picks);
      const auto n = static_cast<int64_t>(wanted.size());
      EXPECT_EQ(got_keys[row].n_window,
                Windows()[row].end - Windows()[row].begin);
      EXPECT_EQ(got_keys[row].n_window + got_keys[row].n_entries, n);
      EXPECT_EQ(got_keys[row].window, lists.data() + at);
      EXPECT_EQ(got_keys[row].entries,
                lists.data() + at + got_keys[row].n_window);
      if (n > n_keys_max) wanted.clear();
      wanted.resize(static_cast<size_t>(n_keys_max), nullptr);
      EXPECT_EQ(std::vector<const uint8_t*>(
                    got.begin() + static_cast<ptrdiff_t>(at),
                    got.begin() + static_cast<ptrdiff_t>(at) + n_keys_max),
                wanted)
          << "row " << row;
    }
  }

  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(LatentKeysCudaTest, WindowsAndPicksAreNamedInOrder) {
  ForEachSchedule([&] { ExpectNames(41, /*has_picks=*/true); });
}

TEST_F(LatentKeysCudaTest, LayersWithoutEntriesHaveWindowsAlone) {
  ForEachSchedule([&] { ExpectNames(40, /*has_picks=*/false); });
}

TEST_F(LatentKeysCudaTest, ARowOfMoreKeysThanThereIsRoomForIsLeftOut) {
  ExpectNames(12, /*has_picks=*/true);
}

TEST_F(LatentKeysCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(NameLatentKeysCuda({.page_rows = 4}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
