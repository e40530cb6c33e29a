// SPDX-License-Identifier: Apache-2.0

#include "bench/command.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_format.h"

namespace torpor::bench {

absl::StatusOr<Scratch> Scratch::Make(const std::string& parent) {
  Scratch scratch;
  std::string path = parent + "/torpor-bench-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return absl::NotFoundError(absl::StrFormat("make a directory in %s: %s",
                                               parent, std::strerror(errno)));
  }
  scratch.path_ = path;
  return scratch;
}

Scratch::~Scratch() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace torpor::bench
