// SPDX-License-Identifier: Apache-2.0
//
// The driver's refusals, on the fake driver of tests/fake_cuda.

#include "kernels/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "kernels/cuda_shared_memory.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/testing/status_matchers.h"

namespace torpor::kernels {
namespace {

using absl::StatusCode;
using ::torpor::testing::HasCode;
using ::torpor::testing::HasStatus;

constexpr uint64_t kBytes = CudaSharedMemory::kUnit;

class CudaDriverTest : public ::testing::Test {
 protected:
  void SetUp() override { fake_cuda::Behave(""); }
  void TearDown() override {
    context_.reset();
    EXPECT_EQ(fake_cuda::LiveBytes(), 0);
    fake_cuda::Behave("");
  }
  void Open() {
    ASSERT_OK_AND_ASSIGN(const CudaDriver driver, CudaDriver::Load());
    ASSERT_OK_AND_ASSIGN(context_,
                         CudaContext::Open(driver, fake_cuda::Uuid(1)));
  }
  absl::StatusOr<std::unique_ptr<CudaSharedMemory>> Create(
      CudaHandleKind kind, uint64_t bytes = kBytes) {
    return CudaSharedMemory::Create(context_, kind, bytes);
  }

  std::shared_ptr<const CudaContext> context_;
};

constexpr CudaHandleKind kKinds[] = {CudaHandleKind::kFd,
                                     CudaHandleKind::kLegacy};

TEST_F(CudaDriverTest, AMissingDriverIsNamed) {
  EXPECT_THAT(CudaDriver::Load("/nowhere/libcuda.so.1").status(),
              HasStatus(StatusCode::kUnavailable, "/nowhere/libcuda.so.1"));
  // Some library that is none.
  EXPECT_THAT(CudaDriver::Load("libc.so.6").status(),
              HasStatus(StatusCode::kUnavailable, "has no cuInit"));
}

TEST_F(CudaDriverTest, ADriverWithoutAGpuSaysSo) {
  fake_cuda::Behave("no_device");
  EXPECT_THAT(CudaDriver::Load().status(),
              HasStatus(StatusCode::kUnavailable, "CUDA_ERROR_NO_DEVICE"));
}

TEST_F(CudaDriverTest, AnUnknownGpuIsNamedBesideThoseThatThereAre) {
  ASSERT_OK_AND_ASSIGN(const CudaDriver driver, CudaDriver::Load());
  CudaUuid other;
  for (uint8_t i = 0; i < 16; ++i) other.bytes[i] = i;
  const absl::Status status = CudaContext::Open(driver, other).status();
  for (const char* gpu : {"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
                          "GPU-f0f0f0f0-f0f0-f0f0-f0f0-f0f0f0f0f0f0",
                          "GPU-f1f1f1f1-f1f1-f1f1-f1f1-f1f1f1f1f1f1"}) {
    EXPECT_THAT(status, HasStatus(StatusCode::kUnavailable, gpu));
  }
}

TEST_F(CudaDriverTest, ErrorsHaveTheDriversNamesAndTheirCodes) {
  ASSERT_OK_AND_ASSIGN(const CudaDriver driver, CudaDriver::Load());
  EXPECT_OK(driver.Check(0, "cuMemCreate"));
  EXPECT_THAT(driver.Check(2, "cuMemCreate"),
              HasStatus(StatusCode::kResourceExhausted,
                        "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_THAT(driver.Check(801, "cuMemCreate"),
              HasStatus(StatusCode::kFailedPrecondition, "(801)"));
  EXPECT_THAT(driver.Check(719, "cuMemCreate"),
              HasStatus(StatusCode::kUnavailable, "(719)"));
  EXPECT_THAT(driver.Check(12'345, "cuMemCreate"),
              HasStatus(StatusCode::kUnavailable, "unknown error (12345)"));
}

TEST_F(CudaDriverTest, NoRoomIsTold) {
  ASSERT_NO_FATAL_FAILURE(Open());
  fake_cuda::Behave("out_of_memory");
  for (const CudaHandleKind kind : kKinds) {
    EXPECT_THAT(Create(kind).status(),
                HasStatus(StatusCode::kResourceExhausted, "OUT_OF_MEMORY"));
  }
}

TEST_F(CudaDriverTest, AGpuWithoutDescriptorsIsTold) {
  ASSERT_NO_FATAL_FAILURE(Open());
  fake_cuda::Behave("no_fd");
  EXPECT_THAT(Create(CudaHandleKind::kFd).status(),
              HasStatus(StatusCode::kFailedPrecondition, "by file descriptor"));
  EXPECT_OK(Create(CudaHandleKind::kLegacy));
}

// A handle would show the client what else is in the block.
TEST_F(CudaDriverTest, NoHandleOfABlockWithOtherMemory) {
  ASSERT_NO_FATAL_FAILURE(Open());
  fake_cuda::Behave("shared_block");
  EXPECT_THAT(Create(CudaHandleKind::kLegacy).status(),
              HasStatus(StatusCode::kFailedPrecondition, "one of its own"));
}

TEST_F(CudaDriverTest, OtherMemoryThanPromisedIsNotOpened) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_OK_AND_ASSIGN(const auto fd, Create(CudaHandleKind::kFd));
  ASSERT_OK_AND_ASSIGN(const auto legacy, Create(CudaHandleKind::kLegacy));
  const auto open = [&](uint64_t bytes) {
    EXPECT_EQ(
        CudaSharedMemory::OpenFd(context_, fd->fd(), bytes).ok(),
        CudaSharedMemory::OpenLegacy(context_, legacy->handle(), bytes).ok());
    return CudaSharedMemory::OpenLegacy(context_, legacy->handle(), bytes)
        .status();
  };
  EXPECT_OK(open(kBytes));
  EXPECT_THAT(open(2 * kBytes), HasStatus(StatusCode::kDataLoss, "2097152"));
  EXPECT_THAT(CudaSharedMemory::OpenLegacy(context_, {}, kBytes).status(),
              HasStatus(StatusCode::kUnavailable, "cuIpcOpenMemHandle"));
  EXPECT_THAT(CudaSharedMemory::OpenFd(context_, 0, kBytes).status(),
              HasStatus(StatusCode::kUnavailable, "cuMemImport"));
  fake_cuda::Behave("open_fails");
  EXPECT_THAT(open(kBytes), HasCode(StatusCode::kUnavailable));
}

TEST_F(CudaDriverTest, ALostGpuIsUnavailableUntilItsContextIsLetGo) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_OK_AND_ASSIGN(auto memory, Create(CudaHandleKind::kFd));
  fake_cuda::Behave("lost_after=1");
  EXPECT_OK(memory->ToDevice(0, 100));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(memory->ToHost(0, 100),
                HasStatus(StatusCode::kUnavailable, "LAUNCH_FAILED"));
  }
  fake_cuda::Behave("");
  EXPECT_THAT(Create(CudaHandleKind::kLegacy).status(),
              HasCode(StatusCode::kUnavailable));
  memory.reset();
  context_.reset();
  ASSERT_NO_FATAL_FAILURE(Open());
  EXPECT_OK(Create(CudaHandleKind::kLegacy));
}

}  // namespace
}  // namespace torpor::kernels
