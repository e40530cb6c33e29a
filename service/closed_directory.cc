// SPDX-License-Identifier: Apache-2.0

#include "service/closed_directory.h"

#include <sys/stat.h>

#include <filesystem>

namespace torpor::service {

std::string DirectoryClosedTo(gid_t group, const std::string& path) {
  std::filesystem::path directory;
  for (const auto& name : std::filesystem::path(path).parent_path()) {
    directory /= name;
    struct stat st;
    if (stat(directory.c_str(), &st) != 0) return "";
    const mode_t wanted = st.st_gid == group ? S_IXGRP : S_IXOTH;
    if ((st.st_mode & wanted) == 0) return directory;
  }
  return "";
}

}  // namespace torpor::service
