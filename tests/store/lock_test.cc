// SPDX-License-Identifier: Apache-2.0
//
// One daemon per data directory: the lock keeps a second one out, in this
// process and in another, and goes with its holder, however that ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "tests/store/lmdb_fixture.h"
#include "tests/testing/child_process.h"

namespace torpor::store {
namespace {

using testing::ChildProcess;
using testing::HasCode;
using testing::HasStatus;
using testing::Report;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
constexpr std::chrono::seconds kLongEnough(60);

// Opens the store, says how that went, and holds it until it is killed or, if
// asked, leaves.
int RunChild(const std::string& directory, bool leave) {
  const auto store = OpenStore(directory);
  Report(store.status().ToString());
  if (leave || !store.ok()) return 0;
  for (;;) pause();
}

std::string HostName() {
  std::array<char, 256> name{};
  EXPECT_EQ(gethostname(name.data(), name.size() - 1), 0);
  return name.data();
}

class LockTest : public ::testing::Test {
 protected:
  ChildProcess StartChild(bool leave) {
    return ChildProcess({"--child", dir_.path(), leave ? "leave" : "hold"});
  }
  testing::TempDir dir_;
};

TEST_F(LockTest, ASecondOpenInThisProcessIsRefused) {
  {
    ASSERT_OK_AND_ASSIGN(const auto first, OpenStore(dir_.path()));
    EXPECT_THAT(OpenStore(dir_.path()),
                HasStatus(kRefused, "pid " + std::to_string(getpid())));
    EXPECT_THAT(OpenStore(dir_.path()), HasStatus(kRefused, HostName()));
    // By another name it is the same directory.
    EXPECT_THAT(OpenStore(dir_.path() + "/."), HasCode(kRefused));
    const std::string link = dir_.File("link");
    ASSERT_EQ(symlink(dir_.path().c_str(), link.c_str()), 0);
    EXPECT_THAT(OpenStore(link), HasCode(kRefused));
    // The one that was refused took nothing from the one that holds it.
    ASSERT_OK(Suspend(first.get(), Spec("a", 0, 0, 40, "op"), 1));
    EXPECT_THAT(OpenStore(dir_.path()), HasCode(kRefused));
  }
  ASSERT_OK_AND_ASSIGN(const auto second, OpenStore(dir_.path()));
  EXPECT_OK(ReadAll(second.get(), Key("a"), SmallLayout()));
}

TEST_F(LockTest, ASecondOpenInAnotherProcessIsRefused) {
  {
    ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(dir_.path()));
    ChildProcess child = StartChild(/*leave=*/true);
    EXPECT_THAT(child.ReadLine(kLongEnough),
                ::testing::AllOf(
                    ::testing::StartsWith("FAILED_PRECONDITION"),
                    ::testing::HasSubstr("pid " + std::to_string(getpid())),
                    ::testing::HasSubstr(HostName())));
    EXPECT_EQ(child.Wait(), 0);
    ASSERT_OK(Suspend(store.get(), Spec("a", 0, 0, 40, "op"), 1));
  }
  ChildProcess child = StartChild(/*leave=*/true);
  EXPECT_EQ(child.ReadLine(kLongEnough), "OK");
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_OK(OpenStore(dir_.path()));
}

TEST_F(LockTest, TheLockGoesWithAKilledProcess) {
  ChildProcess child = StartChild(/*leave=*/false);
  ASSERT_EQ(child.ReadLine(kLongEnough), "OK");
  EXPECT_THAT(OpenStore(dir_.path()),
              HasStatus(kRefused, "pid " + std::to_string(child.pid())));
  child.Kill();
  EXPECT_TRUE(WIFSIGNALED(child.Wait()));
  EXPECT_OK(OpenStore(dir_.path()));
}

// The text explains; it does not lock.
TEST_F(LockTest, AStaleTextInTheLockFileIsNoLock) {
  ASSERT_OK(OpenStore(dir_.path()));
  std::ofstream(dir_.File("torpor.lock")) << "pid 1 on host elsewhere\n";
  EXPECT_OK(OpenStore(dir_.path()));
}

TEST_F(LockTest, ADirectoryThatOthersMayEnterIsRefused) {
  for (const mode_t mode : {0755, 0750, 0710, 0701, 0777}) {
    ASSERT_EQ(chmod(dir_.path().c_str(), mode), 0);
    EXPECT_THAT(OpenStore(dir_.path()), HasStatus(kRefused, "0700"))
        << std::oct << mode;
  }
  ASSERT_EQ(chmod(dir_.path().c_str(), 0700), 0);
  EXPECT_OK(OpenStore(dir_.path()));
}

TEST_F(LockTest, ANewDirectoryAndItsFilesArePrivate) {
  const mode_t before = umask(0);
  const std::string path = dir_.File("new");
  EXPECT_OK(OpenStore(path));
  umask(before);
  struct stat st;
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700);
  for (const char* name : {"data.mdb", "lock.mdb", "torpor.lock"}) {
    ASSERT_EQ(stat((path + "/" + name).c_str(), &st), 0) << name;
    EXPECT_EQ(st.st_mode & 07777, 0600) << name;
  }
}

TEST_F(LockTest, APathThatIsNoDirectoryIsRefused) {
  std::ofstream(dir_.File("file")) << "x";
  EXPECT_THAT(OpenStore(dir_.File("file")), HasCode(kRefused));
  EXPECT_THAT(OpenStore(dir_.File("absent/below")), HasCode(kRefused));
}

}  // namespace
}  // namespace torpor::store

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv, argv + argc);
  if (args.size() == 4 && args[1] == "--child") {
    return torpor::store::RunChild(args[2], args[3] == "leave");
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
