// SPDX-License-Identifier: Apache-2.0
//
// The emulator's checks of order: races, barriers, warps, launches. Each kind
// of fault is planted, caught and named, and the same kernel without it passes
// under every schedule.

#include "tests/kernels/cuda_emulation_kernels.h"
#include "tests/kernels/cuda_emulation_testing.h"

namespace torpor::kernels {
namespace {

using emulation::Fault;
using emulation::Report;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(CudaAccessTest, AMissingBarrierIsARace) {
  const DeviceBuffer<float> x(Count(96));
  const DeviceBuffer<float> y(96);
  // In some orders the reader comes before the write: then nothing is there
  // yet.
  ForEachSchedule([&] {
    EXPECT_EQ(planted::ReverseBlock(x.data(), y.data(), true), 719);
    bool raced = false;
    for (const Report& report : emulation::TakeReports()) {
      EXPECT_THAT(report.fault, AnyOf(Fault::kRace, Fault::kUninitialised));
      raced = raced || report.fault == Fault::kRace;
    }
    EXPECT_TRUE(raced);
  });
  ForEachSchedule([&] {
    EXPECT_EQ(planted::ReverseBlock(x.data(), y.data(), false), 0);
    EXPECT_EQ(y.Download(), Reversed(Count(96)));
  });
}

TEST_F(CudaAccessTest, TheOtherThreadOfARaceIsNamed) {
  const DeviceBuffer<float> x(Count(96));
  const DeviceBuffer<float> y(96);
  EXPECT_EQ(planted::ReverseWarps(x.data(), y.data(), true), 719);
  const std::string reports = Reports();
  // Thread 16 is the first in order that reads what a lane before it wrote.
  EXPECT_THAT(reports, ContainsRegex(
                           "race between threads in ReverseWarpsKernel, block "
                           "\\(0, 0, 0\\) thread \\(16, 0, 0\\): reads 4 bytes "
                           "at shared 'tile'\\+60, which thread \\(15, 0, 0\\) "
                           "wrote since the barrier at"));
  EXPECT_THAT(reports, ContainsRegex("writes 4 bytes at shared 'tile'.*read"));
}

TEST_F(CudaAccessTest, ASyncwarpOrdersTheLanesOfAWarp) {
  const DeviceBuffer<float> x(Count(96));
  ForEachSchedule([&] {
    const DeviceBuffer<float> y(96);
    EXPECT_EQ(planted::ReverseWarps(x.data(), y.data(), true), 719);
    EXPECT_THAT(Reports(), HasSubstr("race between threads"));
    EXPECT_EQ(planted::ReverseWarps(x.data(), y.data(), false), 0);
    const std::vector<float> got = y.Download();
    EXPECT_EQ(got[0], 32.0f);
    EXPECT_EQ(got[95], 65.0f);
  });
}

TEST_F(CudaAccessTest, ARefilledTileIsARace) {
  const DeviceBuffer<float> x(Count(96 * 5));
  const DeviceBuffer<float> y(96);
  ExpectFault(Fault::kRace,
              "(writes 4 bytes at shared 'tile'.*(read|wrote)|reads 4 bytes at "
              "shared 'tile'.*wrote)",
              [&] { return planted::TileSums(x.data(), y.data(), 5, true); });
  ForEachSchedule([&] {
    EXPECT_EQ(planted::TileSums(x.data(), y.data(), 5, false), 0);
    const std::vector<float> got = y.Download();
    for (size_t i = 0; i < 96; ++i) {
      EXPECT_EQ(got[i], 5 * static_cast<float>(i + 1) + 96 * 10);
    }
  });
}

TEST_F(CudaAccessTest, NeighbouringBytesDoNotRace) {
  using planted::Bytes;
  const DeviceBuffer<uint8_t> y(64, "y");
  ExpectFault(
      Fault::kRace,
      "thread \\([89], 0, 0\\): writes 1 bytes at 'y'\\+8, which thread "
      "\\([89], 0, 0\\) wrote since",
      [&] { return planted::WriteBytes(y.data(), Bytes::kOneByte); });
  ExpectFault(Fault::kRace, "writes 1 bytes at 'y'\\+[0-9]+, which thread",
              [&] { return planted::WriteBytes(y.data(), Bytes::kSameLanes); });
  ForEachSchedule(
      [&] { EXPECT_EQ(planted::WriteBytes(y.data(), Bytes::kSound), 0); });
}

TEST_F(CudaAccessTest, AByteRacesWithTheWordThatHoldsIt) {
  ForEachSchedule([&] {
    const DeviceBuffer<uint8_t> y(32);
    EXPECT_EQ(planted::ReadBytesOfWords(y.data(), true), 719);
    EXPECT_THAT(Reports(), HasSubstr("race between threads"));
    EXPECT_EQ(planted::ReadBytesOfWords(y.data(), false), 0);
    EXPECT_EQ(y.Download()[31], 31);
  });
}

// Also when the last to read is the one who writes.
TEST_F(CudaAccessTest, AWriteRacesWithEachEarlierRead) {
  const DeviceBuffer<float> y(96);
  for (const int writer : {0, 31, 32, 95}) {
    SCOPED_TRACE(writer);
    ExpectFault(Fault::kRace,
                "at shared 'one'\\+0, which (thread|several threads)",
                [&] { return planted::ReadThenWrite(y.data(), writer, true); });
    ForEachSchedule([&] {
      EXPECT_EQ(planted::ReadThenWrite(y.data(), writer, false), 0);
      EXPECT_THAT(y.Download(), Each(1.0f));
    });
  }
  const DeviceBuffer<int> x(std::vector<int>{1}, "x");
  const DeviceBuffer<int> z(5);
  ExpectFault(Fault::kBlockRace,
              "(writes 4 bytes at 'x'.* read|reads 4 bytes at 'x'.* wrote)",
              [&] { return planted::ReadFirst(x.data(), z.data(), 5, true); });
  ForEachSchedule(
      [&] { EXPECT_EQ(planted::ReadFirst(x.data(), z.data(), 5, false), 0); });
}

TEST_F(CudaAccessTest, BlocksThatWriteOnePlaceRace) {
  const DeviceBuffer<int> y(20, "y");
  ExpectFault(Fault::kBlockRace,
              "writes 4 bytes at 'y'\\+0, which block [0-9]+ wrote in this",
              [&] { return planted::OnePerBlock(y.data(), 20, true); });
  ForEachSchedule(
      [&] { EXPECT_EQ(planted::OnePerBlock(y.data(), 20, false), 0); });
}

TEST_F(CudaAccessTest, ABlockThatReadsAnothersResultRaces) {
  const DeviceBuffer<int> x(std::vector<int>(21, 5));
  const DeviceBuffer<int> y(std::vector<int>(21, 0), "y");
  ExpectFault(
      Fault::kBlockRace,
      "(reads 4 bytes at 'y'.*wrote|writes 4 bytes at 'y'.*read) in this",
      [&] { return planted::Chain(x.data(), y.data(), 20, true); });
  ForEachSchedule([&] {
    EXPECT_EQ(planted::Chain(x.data(), y.data(), 20, false), 0);
    // A launch lies behind the next.
    EXPECT_EQ(planted::Chain(y.data(), y.data() + 1, 1, false), 0);
  });
}

TEST_F(CudaAccessTest, AtomicsRaceWithPlainReadsAlone) {
  const DeviceBuffer<int> x(std::vector<int>(96 * 8, 3));
  const DeviceBuffer<int> y(2, "y");
  ForEachSchedule([&] {
    y.Upload(std::vector<int>{0, 0});
    EXPECT_EQ(planted::AtomicSum(x.data(), y.data(), 8, true), 719);
    EXPECT_THAT(Reports(),
                ContainsRegex("race between (threads|blocks).*4 bytes "
                              "at 'y'\\+0.*updated atomically"));
    y.Upload(std::vector<int>{0, 0});
    EXPECT_EQ(planted::AtomicSum(x.data(), y.data(), 8, false), 0);
    EXPECT_EQ(y.Download()[0], 96 * 8 * 3);
  });
}

TEST_F(CudaEmulationTest, AtomicsLoseNothing) {
  std::vector<float> values = Count(96 * 8);
  const DeviceBuffer<float> x(values);
  ForEachSchedule([&] {
    const DeviceBuffer<float> sum(std::vector<float>{0});
    const DeviceBuffer<int> extremes(std::vector<int>{50, 50});
    const DeviceBuffer<unsigned> count(std::vector<unsigned>{0});
    EXPECT_EQ(planted::AtomicFloats(x.data(), sum.data(), extremes.data(), 8),
              0);
    // Below 2^24, so each order of additions is exact.
    EXPECT_EQ(sum.Download()[0], 768.0f * 769 / 2);
    EXPECT_THAT(extremes.Download(), ElementsAre(768, 1));
    EXPECT_EQ(planted::CompareAndSwap(count.data(), 8), 0);
    EXPECT_EQ(count.Download()[0], 768u);
  });
}

TEST_F(CudaEmulationTest, ABarrierThatSomeThreadsPassByIsDivergent) {
  const DeviceBuffer<float> y(64);
  ExpectFault(
      Fault::kDivergentBarrier,
      "thread \\(0, 0, 0\\): waits in __syncthreads at cuda_emulation_sync"
      "_kernels.cu:[0-9]+ while thread \\(32, 0, 0\\) has returned",
      [&] { return planted::Barriers(y.data(), planted::Barrier::kSomeExit); });
  ExpectFault(
      Fault::kDivergentBarrier,
      "waits in __syncthreads at .* while thread \\(32, 0, 0\\) waits in "
      "__syncthreads at",
      [&] {
        return planted::Barriers(y.data(), planted::Barrier::kTwoPlaces);
      });
  ForEachSchedule([&] {
    EXPECT_EQ(planted::Barriers(y.data(), planted::Barrier::kSound), 0);
    EXPECT_THAT(y.Download(), Each(1.0f));
  });
}

TEST_F(CudaEmulationTest, AWarpOperationNeedsEachLaneOfItsMask) {
  using planted::Warp;
  const DeviceBuffer<int> y(40);
  const auto expect = [&](Warp kind, const std::string& text) {
    ExpectFault(Fault::kMissingLane, text,
                [&, kind] { return planted::Warps(y.data(), kind); });
  };
  const std::string wait = "waits in __shfl_xor_sync with mask 0x";
  expect(Warp::kExited,
         wait +
             "ffffffff at .*:[0-9]+ while thread \\(16, 0, 0\\), "
             "lane 16, has returned");
  expect(Warp::kLaterExit, wait + "ffffffff at .* lane 16, has returned");
  expect(Warp::kAtBarrier,
         wait +
             "ffffffff at .* while thread \\(16, 0, 0\\), lane "
             "16, waits in __syncthreads at");
  expect(Warp::kOtherMask,
         wait +
             "ffffffff at .* while thread \\(16, 0, 0\\), lane "
             "16, " +
             wait + "ffff0001");
  expect(Warp::kNotInMask, wait + "ffff at");
  expect(Warp::kPastBlockEnd,
         wait + "ffffffff at .* lane 8 is past the block's");
  ForEachSchedule(
      [&] { EXPECT_EQ(planted::Warps(y.data(), Warp::kSound), 0); });
  EXPECT_EQ(y.Download()[1], 2);
  EXPECT_EQ(y.Download()[16], 19);
}

TEST_F(CudaEmulationTest, WarpOperationsGiveWhatCudaSays) {
  ForEachSchedule([&] {
    const DeviceBuffer<int> y(64 * 8);
    ASSERT_EQ(planted::WarpResults(y.data()), 0);
    const std::vector<int> got = y.Download();
    for (int t = 0; t < 64; ++t) {
      SCOPED_TRACE(t);
      const int lane = t % 32;
      const int first = t - lane;
      unsigned ballot = 0;
      for (int i = 0; i < 32; ++i) {
        if ((first + i) % 3 == 0) ballot |= 1u << i;
      }
      const int* out = got.data() + static_cast<ptrdiff_t>(8) * t;
      EXPECT_EQ(out[0], first + 7);
      EXPECT_EQ(out[1], first + (lane ^ 5));
      EXPECT_EQ(out[2], lane < 3 ? t : t - 3);
      EXPECT_EQ(out[3], lane > 28 ? t : t + 3);
      EXPECT_EQ(out[4], static_cast<int>(ballot));
      EXPECT_EQ(out[5], first == 32 ? 1 : 0);
      EXPECT_EQ(out[6], first == 0 ? 1 : 0);
      EXPECT_EQ(out[7], lane == 31 ? t : t + 1);
    }
  });
}

TEST_F(CudaEmulationTest, LaunchesBeyondCudasLimitsAreRefused) {
  const DeviceBuffer<int> y(100);
  ExpectRefused("a block of 64 threads, its kernel is bound to 96",
                planted::Launch96(y.data(), 64));
  ExpectRefused("a block of 2048 x 1 x 1 threads, wanted 1 to 1024",
                planted::Launch96(y.data(), 2048));
  ExpectRefused("a block of 0 x 1 x 1 threads", planted::Launch96(y.data(), 0));
  EXPECT_EQ(planted::Launch96(y.data(), 96), 0);

  ExpectRefused("a grid of 1 x 0 x 1", planted::LaunchSized(y.data(), 0, 1, 0));
  ExpectRefused("a grid of 1 x 65536 x 1",
                planted::LaunchSized(y.data(), 65536, 1, 0));
  ExpectRefused("232449 bytes of dynamic shared memory, wanted at most 232448",
                planted::LaunchSized(y.data(), 1, 1, 227 * 1024 + 1));
  EXPECT_EQ(planted::LaunchSized(y.data(), 100, 8, 227 * 1024), 0);
  EXPECT_THAT(y.Download(), Each(1));

  ExpectRefused("bytes of arguments, wanted at most 4096",
                planted::TooManyArguments(y.data()));
  EXPECT_EQ(planted::ManyArguments(y.data()), 0);
  EXPECT_EQ(y.Download()[15], 15);
}

TEST_F(CudaEmulationTest, SharedArraysOfTemplatesAreTheirOwn) {
  std::vector<uint8_t> bytes(96);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  std::vector<double> doubles(40);
  std::iota(doubles.begin(), doubles.end(), 0.0);
  const DeviceBuffer<uint8_t> x(bytes);
  const DeviceBuffer<double> v(doubles);
  ForEachSchedule([&] {
    const DeviceBuffer<uint8_t> y(96);
    const DeviceBuffer<double> w(40);
    ASSERT_EQ(planted::TransposeBytes(x.data(), y.data()), 0);
    ASSERT_EQ(planted::TransposeDoubles(v.data(), w.data()), 0);
    const std::vector<uint8_t> got = y.Download();
    for (size_t i = 0; i < 96; ++i) EXPECT_EQ(got[i], i % 12 * 8 + i / 12);
    const std::vector<double> wide = w.Download();
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(wide[i], static_cast<double>(i % 5 * 8 + i / 5));
    }
  });
}

// Without different orders, "under every schedule" would say nothing.
TEST_F(CudaEmulationTest, SchedulesOrderThreadsAndBlocksDifferently) {
  const auto order = [](const emulation::Schedule& schedule) {
    emulation::SetSchedule(schedule);
    const DeviceBuffer<int> out(96 * 5);
    const DeviceBuffer<int> next(std::vector<int>{0});
    EXPECT_EQ(planted::RecordOrder(out.data(), next.data(), 5), 0);
    return out.Download();
  };
  using emulation::Order;
  std::vector<int> forward(96 * 5);
  std::iota(forward.begin(), forward.end(), 0);
  EXPECT_EQ(order({}), forward);
  const std::vector<int> reverse(forward.rbegin(), forward.rend());
  EXPECT_EQ(order({.order = Order::kReverse}), reverse);
  const std::vector<int> random = order({.order = Order::kRandom, .seed = 1});
  EXPECT_THAT(random, ::testing::UnorderedElementsAreArray(forward));
  EXPECT_NE(random, forward);
  EXPECT_EQ(random, order({.order = Order::kRandom, .seed = 1}));
  EXPECT_NE(random, order({.order = Order::kRandom, .seed = 2}));
  const std::vector<int> parallel =
      order({.order = Order::kRandom, .seed = 1, .n_host_threads = 2});
  EXPECT_THAT(parallel, ::testing::UnorderedElementsAreArray(forward));
}

}  // namespace
}  // namespace torpor::kernels
