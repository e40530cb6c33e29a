// SPDX-License-Identifier: Apache-2.0

#include "service/notify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "service/unique_fd.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::torpor::testing::HasStatus;

// A service manager's end; `name` as in sockaddr_un.
UniqueFd Listen(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM, 0));
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                 offsetof(sockaddr_un, sun_path) + name.size()),
            0);
  return fd;
}

std::string Received(const UniqueFd& fd) {
  std::array<char, 64> text{};
  const ssize_t n = recv(fd.get(), text.data(), text.size(), MSG_DONTWAIT);
  return std::string(text.data(), n > 0 ? static_cast<size_t>(n) : 0);
}

TEST(NotifyTest, SendsToAPath) {
  const testing::TempDir dir;
  const UniqueFd manager = Listen(dir.File("notify"));
  EXPECT_OK(Notify(dir.File("notify"), "READY=1"));
  EXPECT_EQ(Received(manager), "READY=1");
}

TEST(NotifyTest, SendsToAnAbstractName) {
  const std::string name = "torpor-notify-" + std::to_string(getpid());
  const UniqueFd manager = Listen('\0' + name);
  EXPECT_OK(Notify("@" + name, "STOPPING=1"));
  EXPECT_EQ(Received(manager), "STOPPING=1");
}

TEST(NotifyTest, NobodyToTell) { EXPECT_OK(Notify("", "READY=1")); }

TEST(NotifyTest, SocketsThatCannotBe) {
  EXPECT_THAT(Notify("/no/such/socket", "READY=1"),
              HasStatus(StatusCode::kUnavailable, "/no/such/socket"));
  EXPECT_THAT(Notify("vsock:2:1234", "READY=1"),
              HasStatus(StatusCode::kInvalidArgument, "vsock"));
  EXPECT_THAT(Notify("/" + std::string(107, 'x'), "READY=1"),
              HasStatus(StatusCode::kInvalidArgument, "107"));
}

}  // namespace
}  // namespace torpor::service
