// SPDX-License-Identifier: Apache-2.0
//
// A unix socket that passes every byte on to another one, until it is cut: what
// a server sees of a client whose process or cable is gone.

#ifndef TORPOR_TESTS_SERVICE_SOCKET_PROXY_H_
#define TORPOR_TESTS_SERVICE_SOCKET_PROXY_H_

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

 private:
  void Accept();

  const std::string target_;
  int listener_ = -1;
  Mutex mu_;
  std::vector<int> sockets_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> pumps_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_SOCKET_PROXY_H_
