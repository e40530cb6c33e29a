// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernel of latent_keys_cuda.h on the emulator, against
// RecordPages::Row.

#include "kernels/latent_keys_cuda.h"

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

constexpr int64_t kPageRows = 4;
constexpr int64_t kWindowBytes = 48;
constexpr int64_t kEntryBytes = 20;
constexpr int64_t kPicks = 6;

// A sequence's pages, listed for host and device. They are named and never
// read: their bytes are unwritten.
class Pages {
 public:
  Pages(int64_t n_rows, int64_t ring_rows, int64_t row_bytes)
      : of_{.page_rows = kPageRows,
            .ring_rows = ring_rows,
            .row_bytes = row_bytes} {
    for (int64_t at = 0; at < n_rows; at += kPageRows) {
      memory_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(
          static_cast<size_t>(kPageRows * row_bytes), "page"));
      pages_.push_back(memory_.back()->data());
    }
    list_ = std::make_unique<DeviceBuffer<uint8_t*>>(pages_, "pages");
    of_.n_pages = static_cast<int64_t>(pages_.size());
  }

  [[nodiscard]] RecordPages OnHost() const {
    RecordPages of = of_;
    of.pages = pages_.data();
    return of;
  }
  [[nodiscard]] RecordPages OnDevice() const {
    RecordPages of = of_;
    of.pages = list_->data();
    return of;
  }

 private:
  RecordPages of_;
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> memory_;
  std::vector<uint8_t*> pages_;
  std::unique_ptr<DeviceBuffer<uint8_t*>> list_;
};

// Rows of two sequences: a ring, and one that keeps every row.
class LatentKeysCudaTest : public CudaTest {
 protected:
  static constexpr size_t kRows = 5;
  // Rows of the first sequence.
  static constexpr size_t kOfRing = 3;

  static std::vector<KeyRange> Windows() {
    return {{7, 15}, {25, 25}, {9, 10}, {38, 39}, {0, 40}};
  }
  static std::vector<int32_t> NPicks() { return {4, 6, 2, 0, 1}; }
  static std::vector<int32_t> Picks() {
    return {0,  3,  4,  18, -1, -1,  //
            1,  2,  5,  8,  9,  17,  //
            7,  11, -1, -1, -1, -1,  //
            -1, -1, -1, -1, -1, -1,  //
            2,  -1, -1, -1, -1, -1};
  }

  std::vector<const uint8_t*> Wanted(size_t row, bool has_picks) const {
    const RecordPages window = (row < kOfRing ? ring_ : all_).OnHost();
    const RecordPages entries =
        (row < kOfRing ? ring_entries_ : all_entries_).OnHost();
    std::vector<const uint8_t*> out;
    for (int64_t p = Windows()[row].begin; p < Windows()[row].end; ++p) {
      out.push_back(window.Row(p));
    }
    for (int32_t i = 0; has_picks && i < NPicks()[row]; ++i) {
      out.push_back(
          entries.Row(Picks()[row * kPicks + static_cast<size_t>(i)]));
    }
    return out;
  }

  // What the kernel names, beside what it should.
  void ExpectNames(int64_t n_keys_max, bool has_picks) const {
    const DeviceBuffer<KeyRange> windows(Windows(), "windows");
    const DeviceBuffer<int32_t> picks(Picks(), "picks");
    const DeviceBuffer<int32_t> n_picks(NPicks(), "n_picks");
    const auto segment = [&](size_t begin, size_t end, const Pages& window,
                             const Pages& entries) {
      return LatentSegment{
          .row_begin = static_cast<int64_t>(begin),
          .n_rows = static_cast<int64_t>(end - begin),
          .window = window.OnDevice(),
          .window_keys = windows.data() + begin,
          .entries = entries.OnDevice(),
          .picks = has_picks ? picks.data() + begin * kPicks : nullptr,
          .n_picks = n_picks.data() + begin,
          .picks_stride = kPicks};
    };
    const DeviceBuffer<LatentSegment> segments(
        std::vector<LatentSegment>{segment(0, kOfRing, ring_, ring_entries_),
                                   segment(kOfRing, kRows, all_, all_entries_)},
        "segments");
    const std::vector<const uint8_t*> nothing(
        kRows * static_cast<size_t>(n_keys_max), nullptr);
    const DeviceBuffer<const uint8_t*> lists(nothing, "lists");
    const DeviceBuffer<LatentKeys> keys(kRows, "keys");
    ASSERT_EQ(NameLatentKeysCuda({.segments = segments.data(),
                                  .n_segments = 2,
                                  .n_rows_max = kOfRing,
                                  .lists = lists.data(),
                                  .n_keys_max = n_keys_max,
                                  .keys = keys.data()},
                                 nullptr),
              0)
        << Reports();
    const auto got = lists.Download();
    const auto got_keys = keys.Download();
    for (size_t row = 0; row < kRows; ++row) {
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

  const Pages ring_{10, 10, kWindowBytes};
  const Pages ring_entries_{19, 0, kEntryBytes};
  const Pages all_{40, 0, kWindowBytes};
  const Pages all_entries_{3, 0, kEntryBytes};
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
  EXPECT_EQ(NameLatentKeysCuda({}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
