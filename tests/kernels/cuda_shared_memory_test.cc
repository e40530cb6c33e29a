// SPDX-License-Identifier: Apache-2.0
//
// Two processes share device memory: on the fake driver of tests/fake_cuda, and
// in torpor-gpu-check on the real one. This process stays without the driver,
// which does not live through a fork; both sides are children.

#include "kernels/cuda_shared_memory.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>

#include "base/status.h"

namespace torpor::kernels {
namespace {

constexpr uint64_t kBytes = 2 * CudaSharedMemory::kUnit;
constexpr uint64_t kHalf = kBytes / 2;
// No multiple of anything.
constexpr uint64_t kOdd = 12'347;

uint8_t ByteAt(uint64_t i, uint8_t salt) {
  return static_cast<uint8_t>(i * 31 + (i >> 8) + salt);
}

void Fill(std::span<uint8_t> bytes, uint8_t salt) {
  for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = ByteAt(i, salt);
}

absl::Status ExpectFilled(std::span<const uint8_t> bytes, uint8_t salt) {
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == ByteAt(i, salt)) continue;
    return absl::DataLossError("byte " + std::to_string(i) + ": got " +
                               std::to_string(bytes[i]) + ", wanted " +
                               std::to_string(ByteAt(i, salt)));
  }
  return absl::OkStatus();
}

// What one side tells the other: a handle, with a descriptor where there is
// one.
absl::Status Send(int socket, const CudaIpcHandle& handle, int fd) {
  iovec part = {const_cast<uint8_t*>(handle.bytes.data()), handle.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = space.data();
    message.msg_controllen = space.size();
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) > 0
             ? absl::OkStatus()
             : absl::UnavailableError("the other side is gone");
}

struct Message {
  CudaIpcHandle handle;
  int fd = -1;
};

absl::StatusOr<Message> Receive(int socket) {
  Message out;
  iovec part = {out.handle.bytes.data(), out.handle.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  if (recvmsg(socket, &message, 0) <= 0) {
    return absl::UnavailableError("the other side is gone");
  }
  if (const cmsghdr* const c = CMSG_FIRSTHDR(&message); c != nullptr) {
    std::memcpy(&out.fd, CMSG_DATA(c), sizeof(int));
  }
  return out;
}

absl::Status RunExporter(int socket, CudaHandleKind kind) {
  TORPOR_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Load());
  TORPOR_ASSIGN_OR_RETURN(const auto context, CudaContext::OpenFirst(driver));
  TORPOR_ASSIGN_OR_RETURN(const auto memory,
                          CudaSharedMemory::Create(context, kind, kBytes));
  Fill(memory->host(), 1);
  TORPOR_RETURN_IF_ERROR(memory->ToHost(0, kBytes));
  for (const uint8_t byte : memory->host()) {
    if (byte != 0) return absl::DataLossError("new memory is not all zero");
  }
  Fill(memory->host(), 2);
  TORPOR_RETURN_IF_ERROR(memory->ToDevice(0, kHalf));
  TORPOR_RETURN_IF_ERROR(Send(socket, memory->handle(), memory->fd()));
  TORPOR_RETURN_IF_ERROR(Receive(socket).status());
  TORPOR_RETURN_IF_ERROR(memory->ToHost(kHalf + kOdd, kHalf - kOdd));
  return ExpectFilled(memory->host().subspan(kHalf + kOdd), 3);
}

absl::Status RunImporter(int socket, CudaHandleKind kind) {
  TORPOR_ASSIGN_OR_RETURN(const Message named, Receive(socket));
  TORPOR_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Load());
  TORPOR_ASSIGN_OR_RETURN(const auto context, CudaContext::OpenFirst(driver));
  TORPOR_ASSIGN_OR_RETURN(
      auto memory,
      kind == CudaHandleKind::kFd
          ? CudaSharedMemory::OpenFd(context, named.fd, kBytes)
          : CudaSharedMemory::OpenLegacy(context, named.handle, kBytes));
  TORPOR_RETURN_IF_ERROR(memory->ToHost(0, kHalf));
  TORPOR_RETURN_IF_ERROR(ExpectFilled(memory->host().first(kHalf), 2));
  Fill(memory->host().subspan(kHalf + kOdd), 3);
  TORPOR_RETURN_IF_ERROR(memory->ToDevice(kHalf + kOdd, kHalf - kOdd));
  // Closed before the exporter frees it.
  memory.reset();
  return Send(socket, {}, -1);
}

pid_t Start(const std::function<absl::Status()>& run) {
  const pid_t child = fork();
  if (child != 0) return child;
  const absl::Status status = run();
  if (!status.ok()) std::cerr << status << std::endl;
  _exit(status.ok() ? 0 : 1);
}

void ExpectShares(CudaHandleKind kind) {
  std::array<int, 2> sockets = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets.data()), 0);
  const auto side = [&](size_t mine, auto run) {
    return Start([=] {
      close(sockets[1 - mine]);
      return run(sockets[mine], kind);
    });
  };
  const pid_t exporter = side(0, RunExporter);
  const pid_t importer = side(1, RunImporter);
  for (const int socket : sockets) close(socket);
  for (const pid_t child : {importer, exporter}) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << (child == exporter ? "exporter" : "importer");
  }
}

TEST(CudaSharedMemoryTest, TwoProcessesShareItByDescriptor) {
  ExpectShares(CudaHandleKind::kFd);
}
TEST(CudaSharedMemoryTest, TwoProcessesShareItByLegacyHandle) {
  ExpectShares(CudaHandleKind::kLegacy);
}

}  // namespace
}  // namespace torpor::kernels
