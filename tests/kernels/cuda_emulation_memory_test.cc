// SPDX-License-Identifier: Apache-2.0
//
// The emulator's checks of memory: each kind of fault is planted, caught and
// named, and the same kernel without it passes under every schedule.

#include "tests/kernels/cuda_emulation_kernels.h"
#include "tests/kernels/cuda_emulation_testing.h"

namespace torpor::kernels {
namespace {

using emulation::Fault;
using ::testing::Each;
using ::testing::ElementsAre;

TEST_F(CudaAccessTest, AWritePastABufferIsOutOfBounds) {
  for (const size_t n : {64u, 100u, 127u}) {
    SCOPED_TRACE(n);
    const DeviceBuffer<float> x(Count(n), "x");
    const DeviceBuffer<float> y(n, "y");
    const int size = static_cast<int>(n);
    ExpectFault(
        Fault::kOutOfBounds,
        "DoubleKernel, block \\(1, 0, 0\\).*writes 4 bytes at 'y'\\+" +
            std::to_string(4 * n) + ", which has " + std::to_string(4 * n) +
            " bytes at cuda_emulation_memory_kernels.cu:[0-9]",
        [&] {
          return n == 127 ? planted::Double(x.data(), y.data(), 127, true)
                          : planted::Double(x.data(), y.data(), size, true);
        });
  }
}

TEST_F(CudaEmulationTest, ABlocksLastThreadsMayHaveNothingToDo) {
  const DeviceBuffer<float> x(Count(100));
  ForEachSchedule([&] {
    const DeviceBuffer<float> y(100);
    EXPECT_EQ(planted::Double(x.data(), y.data(), 100, false), 0);
    std::vector<float> wanted = Count(100);
    for (float& v : wanted) v *= 2;
    EXPECT_EQ(y.Download(), wanted);
  });
}

TEST_F(CudaAccessTest, AReadBeforeABufferIsOutOfBounds) {
  const DeviceBuffer<float> x(Count(50), "x");
  const DeviceBuffer<float> y(50);
  ExpectFault(
      Fault::kOutOfBounds,
      "thread \\(3, 0, 0\\): reads 4 bytes at 'x'-4, which has 200",
      [&] { return planted::Difference(x.data(), y.data(), 50, true); });
  ForEachSchedule([&] {
    EXPECT_EQ(planted::Difference(x.data(), y.data(), 50, false), 0);
  });
}

TEST_F(CudaAccessTest, AFreedBufferIsUsedAfterFree) {
  const DeviceBuffer<float> y(50);
  const float* gone = DeviceBuffer<float>(Count(50), "gone").data();
  ExpectFault(Fault::kUseAfterFree,
              "reads 4 bytes at 'gone'\\+[0-9]*, which was",
              [&] { return planted::Difference(gone, y.data(), 50, false); });
}

TEST_F(CudaAccessTest, HostMemoryIsOutOfBounds) {
  const std::vector<float> host = Count(50);
  const DeviceBuffer<float> y(50);
  ExpectFault(Fault::kOutOfBounds, "reads 4 bytes outside device buffers", [&] {
    return planted::Difference(host.data(), y.data(), 50, false);
  });
  ExpectFault(Fault::kOutOfBounds, "reads 4 bytes outside", [&] {
    return planted::Difference(nullptr, y.data(), 50, false);
  });
}

TEST_F(CudaAccessTest, AnIndexPastASharedArrayIsOutOfBounds) {
  const DeviceBuffer<float> x(Count(96));
  const DeviceBuffer<float> y(96);
  ExpectFault(Fault::kOutOfBounds,
              "thread \\(95, 0, 0\\): writes 4 bytes at shared 'tile'\\+384",
              [&] { return planted::ReverseShared(x.data(), y.data(), true); });
  ForEachSchedule([&] {
    EXPECT_EQ(planted::ReverseShared(x.data(), y.data(), false), 0);
    EXPECT_EQ(y.Download(), Reversed(Count(96)));
  });
}

TEST_F(CudaAccessTest, TooLittleDynamicSharedMemoryIsOutOfBounds) {
  const DeviceBuffer<float> x(Count(96));
  const DeviceBuffer<float> y(96);
  ExpectFault(Fault::kOutOfBounds,
              "at dynamic shared memory\\+380, which has 380",
              [&] { return planted::ReverseDynamic(x.data(), y.data(), 380); });
  ForEachSchedule([&] {
    EXPECT_EQ(planted::ReverseDynamic(x.data(), y.data(), 384), 0);
    EXPECT_EQ(y.Download(), Reversed(Count(96)));
  });
}

TEST_F(CudaAccessTest, CallsOfTheCLibraryAreOutOfBoundsToo) {
  const DeviceBuffer<uint8_t> x(std::vector<uint8_t>(50, 7), "x");
  const DeviceBuffer<uint8_t> y(100, "y");
  const auto copy = [&](int n) {
    return [&, n] { return planted::CopyBytes(x.data(), y.data(), n); };
  };
  ExpectFault(Fault::kOutOfBounds, "reads 51 bytes at 'x'\\+0, which has 50",
              copy(51));
  ExpectFault(Fault::kOutOfBounds, "writes 40 bytes at 'z'\\+40, which has 79",
              [&] {
                const DeviceBuffer<uint8_t> z(79, "z");
                return planted::CopyBytes(x.data(), z.data(), 40);
              });
  ForEachSchedule([&] { EXPECT_EQ(copy(50)(), 0); });
  EXPECT_EQ(y.Download()[49], 7);
  EXPECT_EQ(y.Download()[99], 0);
}

TEST_F(CudaAccessTest, AnotherThreadsStackIsOutOfBounds) {
  const DeviceBuffer<float> y(32);
  ExpectFault(Fault::kOutOfBounds, "reads 4 bytes outside device buffers",
              [&] { return planted::OwnStack(y.data(), true); });
  ForEachSchedule([&] { EXPECT_EQ(planted::OwnStack(y.data(), false), 0); });
}

TEST_F(CudaAccessTest, ConstantsAreReadOnly) {
  const DeviceBuffer<int> y(4);
  ExpectFault(Fault::kReadOnly, "writes 4 bytes of constants",
              [&] { return planted::Constant(y.data(), true); });
  ForEachSchedule([&] { EXPECT_EQ(planted::Constant(y.data(), false), 0); });
  EXPECT_THAT(y.Download(), ElementsAre(3, 1, 4, 1));
}

TEST_F(CudaAccessTest, AReadOfSharedMemoryThatNobodyWroteIsUninitialised) {
  const DeviceBuffer<float> y(64);
  ExpectFault(Fault::kUninitialised,
              "reads 4 bytes at shared 'tile'\\+20, which",
              [&] { return planted::SumOfWritten(y.data(), true); });
  ForEachSchedule([&] {
    EXPECT_EQ(planted::SumOfWritten(y.data(), false), 0);
    EXPECT_THAT(y.Download(), Each(64.0f));
  });
}

TEST_F(CudaAccessTest, AReadOfAFreshBufferIsUninitialised) {
  const DeviceBuffer<float> y(50, "y");
  ExpectFault(Fault::kUninitialised, "reads 4 bytes at 'y'\\+[0-9]*, which",
              [&] {
                y.Poison();
                return planted::Increment(y.data(), 50, true);
              });
  ForEachSchedule([&] {
    y.Poison();
    EXPECT_EQ(planted::Increment(y.data(), 50, false), 0);
    EXPECT_EQ(planted::Increment(y.data(), 50, true), 0);
    EXPECT_THAT(y.Download(), Each(2.0f));
  });
  // One element short of an upload is seen too.
  const DeviceBuffer<float> z(50, "z");
  z.Upload(Count(49));
  ExpectFault(Fault::kUninitialised, "at 'z'\\+196", [&] {
    z.Poison();
    z.Upload(Count(49));
    return planted::Increment(z.data(), 50, true);
  });
}

TEST_F(CudaAccessTest, AVectorAtAnUnevenAddressIsMisaligned) {
  const DeviceBuffer<uint32_t> x(std::vector<uint32_t>(67, 7u), "x");
  const DeviceBuffer<uint32_t> y(65, "y");
  const auto copy = [&](int from, int to, int lanes) {
    return [&, from, to, lanes] {
      return planted::CopyVectors(x.data() + from, y.data() + to, 64, lanes);
    };
  };
  for (const int from : {1, 2, 3}) {
    ExpectFault(Fault::kMisaligned,
                "reads 16 bytes at an address that is " +
                    std::to_string(4 * from) + " past a multiple of 16",
                copy(from, 0, 4));
  }
  ExpectFault(Fault::kMisaligned,
              "writes 16 bytes at an address that is 4 past", copy(0, 1, 4));
  ExpectFault(Fault::kMisaligned, "reads 8 bytes at an address that is 4 past",
              copy(1, 0, 2));
  ForEachSchedule([&] {
    EXPECT_EQ(copy(0, 0, 4)(), 0);
    EXPECT_EQ(copy(0, 0, 2)(), 0);
    EXPECT_EQ(copy(1, 1, 1)(), 0);
  });
}

// The compiler must not take a vector apart whose lanes are used one by one.
TEST_F(CudaAccessTest, AVectorUsedByItsLanesIsMisalignedToo) {
  const DeviceBuffer<float> x(Count(68), "x");
  const DeviceBuffer<float> y(std::vector<float>(68, 0), "y");
  ExpectFault(Fault::kMisaligned, "reads 16 bytes",
              [&] { return planted::AddLanes(x.data() + 2, y.data()); });
  ExpectFault(Fault::kMisaligned, "writes 16 bytes",
              [&] { return planted::AddLanes(x.data(), y.data() + 1); });
  ForEachSchedule([&] { EXPECT_EQ(planted::AddLanes(x.data(), y.data()), 0); });
  EXPECT_EQ(y.Download()[5], 6 + 5 + 8);
}

TEST_F(CudaAccessTest, AScalarAtAnUnevenAddressIsMisaligned) {
  const DeviceBuffer<uint8_t> x(std::vector<uint8_t>(64, 0));
  const DeviceBuffer<float> y(1);
  ExpectFault(Fault::kMisaligned, "reads 4 bytes at an address that is 2 past",
              [&] { return planted::ReadFloatAt(x.data(), y.data(), 6); });
  EXPECT_EQ(planted::ReadFloatAt(x.data(), y.data(), 8), 0);
}

}  // namespace
}  // namespace torpor::kernels
