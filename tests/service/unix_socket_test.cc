// SPDX-License-Identifier: Apache-2.0

#include "service/unix_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "service/closed_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::torpor::testing::HasStatus;

// A socket file, with somebody behind it while the object lives.
class Listener {
 public:
  explicit Listener(const std::string& path)
      : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    EXPECT_EQ(
        bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
        0);
    EXPECT_EQ(listen(fd_, 4), 0);
  }
  ~Listener() { close(fd_); }

 private:
  const int fd_;
};

class UnixSocketTest : public ::testing::Test {
 protected:
  std::string Path() const { return dir_.File("s"); }
  const testing::TempDir dir_;
};

TEST_F(UnixSocketTest, MakesItsDirectory) {
  const std::string path = dir_.File("run/s");
  ASSERT_OK(UnixSocketPath::Take(path));
  struct stat st = {};
  ASSERT_EQ(stat(dir_.File("run").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700);
  // But not the one above it.
  EXPECT_THAT(UnixSocketPath::Take(dir_.File("no/run/s")),
              HasStatus(StatusCode::kFailedPrecondition, "no/run"));
}

TEST_F(UnixSocketTest, AGroupIsLetIn) {
  ASSERT_OK_AND_ASSIGN(const auto taken,
                       UnixSocketPath::Take(dir_.File("run/s"), getegid()));
  struct stat st = {};
  ASSERT_EQ(stat(dir_.File("run").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0750);
  EXPECT_EQ(st.st_gid, getegid());
  const mode_t before = umask(0177);
  const Listener live(taken->path());
  umask(before);
  ASSERT_EQ(stat(taken->path().c_str(), &st), 0);
  ASSERT_EQ(st.st_mode & 0777, 0600);
  EXPECT_OK(taken->Share());
  ASSERT_EQ(stat(taken->path().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0660);
  EXPECT_EQ(st.st_gid, getegid());
}

TEST_F(UnixSocketTest, ADirectoryThatStoodThereKeepsItsModeAndIsNamed) {
  const std::string run = dir_.File("run");
  ASSERT_EQ(chmod(dir_.path().c_str(), 0711), 0);
  ASSERT_EQ(mkdir(run.c_str(), 0700), 0);
  ASSERT_OK(UnixSocketPath::Take(run + "/s", getegid()));
  struct stat st = {};
  ASSERT_EQ(stat(run.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700);

  const gid_t other = getegid() + 1;
  const auto closed = [&](gid_t group) {
    return DirectoryClosedTo(group, run + "/s");
  };
  EXPECT_EQ(closed(getegid()), run);
  ASSERT_EQ(chmod(run.c_str(), 0750), 0);
  EXPECT_EQ(closed(getegid()), "");
  EXPECT_EQ(closed(other), run);
  // Members of the directory's group are not among all others.
  ASSERT_EQ(chmod(run.c_str(), 0701), 0);
  EXPECT_EQ(closed(getegid()), run);
  EXPECT_EQ(closed(other), "");
  // From the root on.
  ASSERT_EQ(chmod(dir_.path().c_str(), 0700), 0);
  EXPECT_EQ(closed(other), dir_.path());
}

TEST_F(UnixSocketTest, WithoutAGroupNothingIsShared) {
  ASSERT_OK_AND_ASSIGN(const auto taken, UnixSocketPath::Take(Path()));
  const mode_t before = umask(0177);
  const Listener live(Path());
  umask(before);
  EXPECT_OK(taken->Share());
  struct stat st = {};
  ASSERT_EQ(stat(Path().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600);
}

TEST_F(UnixSocketTest, GroupsByNameAndNumber) {
  ASSERT_OK_AND_ASSIGN(const gid_t root, GroupNumber("root"));
  EXPECT_EQ(root, 0);
  ASSERT_OK_AND_ASSIGN(const gid_t number, GroupNumber("4321"));
  EXPECT_EQ(number, 4321);
  for (const char* group :
       {"no-such-group", "", "-1", "4294967295", "4294967296"}) {
    EXPECT_THAT(GroupNumber(group),
                HasStatus(StatusCode::kInvalidArgument, "socket_group"))
        << group;
  }
}

TEST_F(UnixSocketTest, OneHolderAtATime) {
  ASSERT_OK_AND_ASSIGN(auto first, UnixSocketPath::Take(Path()));
  EXPECT_EQ(first->path(), Path());
  EXPECT_THAT(UnixSocketPath::Take(Path()),
              HasStatus(StatusCode::kFailedPrecondition, Path()));
  first.reset();
  EXPECT_OK(UnixSocketPath::Take(Path()));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path())) << "left behind";
}

TEST_F(UnixSocketTest, StaleOnesAreRemoved) {
  { const Listener gone(Path()); }
  ASSERT_TRUE(std::filesystem::exists(Path()));
  ASSERT_OK_AND_ASSIGN(const auto taken, UnixSocketPath::Take(Path()));
  EXPECT_FALSE(std::filesystem::exists(Path()));
}

TEST_F(UnixSocketTest, LiveOnesAreLeftAlone) {
  const Listener live(Path());
  EXPECT_THAT(UnixSocketPath::Take(Path()),
              HasStatus(StatusCode::kFailedPrecondition, Path()));
  EXPECT_TRUE(std::filesystem::is_socket(Path()));
}

TEST_F(UnixSocketTest, OtherThingsAreLeftAlone) {
  std::ofstream(Path()) << "notes";
  EXPECT_THAT(UnixSocketPath::Take(Path()),
              HasStatus(StatusCode::kFailedPrecondition, Path()));
  EXPECT_EQ(std::filesystem::file_size(Path()), 5);
  std::filesystem::remove(Path());
  // Not even by way of a link.
  std::ofstream(dir_.File("notes")) << "notes";
  std::filesystem::create_symlink(dir_.File("notes"), Path());
  EXPECT_THAT(UnixSocketPath::Take(Path()),
              HasStatus(StatusCode::kFailedPrecondition, Path()));
  EXPECT_TRUE(std::filesystem::is_symlink(Path()));
}

TEST_F(UnixSocketTest, PathsThatCannotBe) {
  EXPECT_THAT(UnixSocketPath::Take(""),
              HasStatus(StatusCode::kInvalidArgument, "absolute"));
  EXPECT_THAT(UnixSocketPath::Take("relative/s"),
              HasStatus(StatusCode::kInvalidArgument, "relative/s"));
  const std::string longest =
      dir_.path() + "/" + std::string(107 - dir_.path().size() - 1, 'x');
  ASSERT_EQ(longest.size(), 107);
  EXPECT_OK(UnixSocketPath::Take(longest));
  EXPECT_THAT(UnixSocketPath::Take(longest + "x"),
              HasStatus(StatusCode::kInvalidArgument, "108"));
}

TEST_F(UnixSocketTest, DirectoriesOthersMayWrite) {
  const std::string open = dir_.File("open");
  ASSERT_EQ(mkdir(open.c_str(), 0700), 0);
  for (const mode_t mode : {0777, 0770, 0702}) {
    ASSERT_EQ(chmod(open.c_str(), mode), 0);
    EXPECT_THAT(UnixSocketPath::Take(open + "/s"),
                HasStatus(StatusCode::kFailedPrecondition, open))
        << std::oct << mode;
  }
  std::ofstream(dir_.File("file")) << "x";
  EXPECT_THAT(UnixSocketPath::Take(dir_.File("file/s")),
              HasStatus(StatusCode::kFailedPrecondition, "file"));
}

}  // namespace
}  // namespace torpor::service
