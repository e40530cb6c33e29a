// SPDX-License-Identifier: Apache-2.0

#include "tests/service/socket_proxy.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <utility>

namespace torpor::service {
namespace {

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  EXPECT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

}  // namespace

void SocketProxy::Pump(int from, int to, bool from_server) {
  std::array<char, 16'384> bytes{};
  for (;;) {
    const ssize_t n = read(from, bytes.data(), bytes.size());
    if (n <= 0) break;
    if (from_server && left_.load() < static_cast<uint64_t>(n)) {
      held_.store(true);
      while (!cut_.load()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      break;
    }
    if (from_server) left_.fetch_sub(static_cast<uint64_t>(n));
    ssize_t written = 0;
    while (written < n) {
      const ssize_t m = send(to, bytes.data() + written,
                             static_cast<size_t>(n - written), MSG_NOSIGNAL);
      if (m <= 0) break;
      written += m;
    }
    if (written < n) break;
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

SocketProxy::SocketProxy(const std::string& path, std::string target)
    : target_(std::move(target)),
      listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_un address = AddressOf(path);
  EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address),
                 sizeof(address)),
            0);
  EXPECT_EQ(listen(listener_, 64), 0);
  acceptor_ = std::thread([this] { Accept(); });
}

SocketProxy::~SocketProxy() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  Cut();
  close(listener_);
}

void SocketProxy::Accept() {
  for (;;) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = AddressOf(target_);
    if (connect(server, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0) {
      close(client);
      close(server);
      continue;
    }
    MutexLock lock(&mu_);
    sockets_.push_back(client);
    sockets_.push_back(server);
    pumps_.emplace_back([=, this] { Pump(client, server, false); });
    pumps_.emplace_back([=, this] { Pump(server, client, true); });
  }
}

void SocketProxy::Cut() {
  std::vector<int> sockets;
  std::vector<std::thread> pumps;
  {
    MutexLock lock(&mu_);
    sockets.swap(sockets_);
    pumps.swap(pumps_);
  }
  cut_.store(true);
  for (const int fd : sockets) shutdown(fd, SHUT_RDWR);
  for (std::thread& pump : pumps) pump.join();
  cut_.store(false);
  held_.store(false);
  left_.store(UINT64_MAX);
  for (const int fd : sockets) close(fd);
}

}  // namespace torpor::service
