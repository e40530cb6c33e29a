// SPDX-License-Identifier: Apache-2.0
//
// A file descriptor that is closed with its owner.

#ifndef TORPOR_SERVICE_UNIQUE_FD_H_
#define TORPOR_SERVICE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace torpor::service {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_UNIQUE_FD_H_
