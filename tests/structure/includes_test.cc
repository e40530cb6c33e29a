// SPDX-License-Identifier: Apache-2.0
//
// The folder map of docs/ARCHITECTURE.md as a test: every include of a folder
// must be on that folder's list. The table here is the map; change both
// together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace torpor {
namespace {

using ::testing::IsEmpty;

struct Rule {
  // First path components of quoted includes, and prefixes of angled ones
  // beyond the standard library and POSIX.
  std::set<std::string> own;
  std::set<std::string> libraries;
};

const std::map<std::string, Rule>& Map() {
  static const auto* const map = new std::map<std::string, Rule>{
      {"base", {{"base", "absl"}, {"xxhash.h"}}},
      {"kernels",
       {{"base", "kernels", "absl"}, {"immintrin.h", "cpuid.h", "cuda"}}},
      {"store", {{"base", "store", "absl"}, {"lmdb.h", "sodium.h"}}},
      {"replay",
       {{"base", "kernels", "replay", "absl"},
        {"nlohmann/json.hpp", "nlohmann/json_fwd.hpp", "sodium.h"}}},
      {"service",
       {{"base", "kernels", "store", "replay", "service", "torpor", "absl",
         "grpcpp", "google"},
        {"grpc", "google/", "grpcpp/", "nlohmann/", "CLI/", "spdlog/",
         "prometheus/", "toml++/", "sodium.h"}}},
      {"bench",
       {{"base", "kernels", "store", "replay", "service", "bench", "torpor",
         "absl"},
        {"nlohmann/", "CLI/", "sodium.h", "lmdb.h"}}},
  };
  return *map;
}

// Headers that only some files of a folder may see.
struct Narrow {
  std::string header;
  std::regex allowed;
};
const std::vector<Narrow>& Narrows() {
  static const auto* const narrows = new std::vector<Narrow>{
      // A benchmark looks for the file ranges that pread is to read.
      {"lmdb.h", std::regex("store/(env|txn)\\.cc|bench/raw_io\\.cc")},
      {"sodium.h",
       std::regex("store/(block_id|store_core|lmdb_session_store)"
                  "\\.cc|replay/fingerprint\\.cc|(service|bench)/.*")},
      {"immintrin.h", std::regex("kernels/simd_.*\\.h")},
      {"cpuid.h", std::regex("kernels/isa\\.cc")},
      {"cuda",
       std::regex("kernels/(cuda_simt\\.h|runtime_cuda\\.h|.*_cuda\\.cc)")},
  };
  return *narrows;
}

bool IsStandard(const std::string& header) {
  // <vector>, <sys/mman.h>, <unistd.h>: no slash, or a POSIX folder.
  static const std::regex standard(
      "[a-z_0-9]+|(dlfcn|link|ucontext|fcntl|unistd|dirent|stdlib|signal|poll|"
      "errno|pthread|grp|"
      "sched|"
      "sys/[a-z_]+|netinet/[a-z]+|linux/[a-z]+|arpa/"
      "inet|malloc|spawn|termios)\\.h");
  return std::regex_match(header, standard);
}

std::vector<std::string> Violations(const std::filesystem::path& root,
                                    const std::string& folder,
                                    const Rule& rule) {
  static const std::regex include("^\\s*#\\s*include\\s+([<\"])([^>\"]+)[>\"]");
  std::vector<std::string> out;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(root / folder)) {
    const std::string extension = file.path().extension();
    if (extension != ".h" && extension != ".cc" && extension != ".cu" &&
        extension != ".inc") {
      continue;
    }
    const std::string name =
        std::filesystem::relative(file.path(), root).string();
    std::ifstream in(file.path());
    std::string line;
    while (std::getline(in, line)) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      const std::string header = match[2];
      bool ok = false;
      if (match[1] == "\"") {
        ok = rule.own.contains(header.substr(0, header.find('/')));
      } else {
        ok = IsStandard(header);
        for (const std::string& prefix : rule.libraries) {
          ok = ok || header.starts_with(prefix);
        }
      }
      for (const Narrow& narrow : Narrows()) {
        if (header.starts_with(narrow.header) &&
            !std::regex_match(name, narrow.allowed)) {
          ok = false;
        }
      }
      if (!ok) out.push_back(name + " includes " + header);
    }
  }
  return out;
}

TEST(IncludesTest, EveryFolderIncludesOnlyWhatItsRowAllows) {
  for (const auto& [folder, rule] : Map()) {
    EXPECT_THAT(Violations(TORPOR_SOURCE_DIR, folder, rule), IsEmpty())
        << "folder " << folder;
  }
}

// The check itself must be able to fail.
TEST(IncludesTest, AForbiddenIncludeIsSeen) {
  const std::filesystem::path root =
      std::filesystem::path(::testing::TempDir()) / "torpor-includes-test";
  std::filesystem::create_directories(root / "store");
  std::ofstream(root / "store/bad.cc")
      << "#include \"replay/planner.h\"\n#include <lmdb.h>\n"
      << "#include <grpcpp/grpcpp.h>\n#include <vector>\n"
      << "#include \"store/types.h\"\n";
  EXPECT_THAT(
      Violations(root, "store", Map().at("store")),
      ::testing::UnorderedElementsAre("store/bad.cc includes replay/planner.h",
                                      "store/bad.cc includes lmdb.h",
                                      "store/bad.cc includes grpcpp/grpcpp.h"));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace torpor
