// SPDX-License-Identifier: Apache-2.0
//
// A unix socket that passes every byte on to another one, until it is cut: what
// a server sees of a client whose process or cable is gone.

#ifndef TORPOR_TESTS_SERVICE_SOCKET_PROXY_H_
#define TORPOR_TESTS_SERVICE_SOCKET_PROXY_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace torpor::service {

class SocketProxy {
 public:
  // Listens at `path`; each connection is one to `target`.
  SocketProxy(const std::string& path, std::string target);
  ~SocketProxy();
  SocketProxy(const SocketProxy&) = delete;
  SocketProxy& operator=(const SocketProxy&) = delete;

  // Ends every connection at once, on both sides.
  void Cut();
  // Passes so many more bytes of the server's, then no more until it is cut.
  void HoldAfter(uint64_t server_bytes) { left_.store(server_bytes); }
  [[nodiscard]] bool held() const { return held_.load(); }

 private:
  void Accept();
  // Until either side ends, or is cut; then neither goes on.
  void Pump(int from, int to, bool from_server);

  const std::string target_;
  int listener_ = -1;
  std::atomic<uint64_t> left_{UINT64_MAX};
  std::atomic<bool> held_{false};
  std::atomic<bool> cut_{false};
  Mutex mu_;
  std::vector<int> sockets_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> pumps_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_SOCKET_PROXY_H_
