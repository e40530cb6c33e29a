// SPDX-License-Identifier: Apache-2.0
//
// kill -9 at 200 points of a child that suspends, continues, forks, rewinds
// and deletes from four threads while the reaper runs. It dies after a random
// time, or before or inside the n-th write or flush of data.mdb; after each
// death the store is opened again and compared with what was acknowledged.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "tests/store/crash_model.h"
#include "tests/store/lmdb_fixture.h"
#include "tests/testing/child_process.h"
#include "tests/testing/random.h"
#include "tests/testing/shim.h"

namespace torpor::store {
namespace {

using testing::ChildProcess;
using testing::Random;
using testing::Report;
using testing::Shim;
using Kind = CrashVerb::Kind;

constexpr int kThreads = 4;
constexpr int kSessionsPerThread = 3;
constexpr uint64_t kTokensMax = 150;

// "3.1": session 1 of thread 3. Threads share no sessions, so each knows what
// its own are.
std::string IdOf(int thread, uint64_t n) {
  return std::to_string(thread) + "." + std::to_string(n);
}

LmdbStoreOptions Options(const std::string& directory, bool staged) {
  LmdbStoreOptions options = SmallStore(directory);
  // Payload commits of their own, or all in the publishing one.
  options.publish_bytes = staged ? 1 : 1 << 20;
  return options;
}

// ---- the child ------------------------------------------------------------

CrashVerb NextVerb(int thread, uint32_t writer, SessionStore* store,
                   Random* random) {
  CrashVerb verb;
  const auto pick = [&] {
    return IdOf(thread, random->Between(0, kSessionsPerThread - 1));
  };
  verb.id = pick();
  const auto now = store->Describe(Key(verb.id));
  verb.expected = now.ok() ? now->version : 0;
  verb.writer = writer;
  if (random->OneIn(4)) {
    verb.source = pick();
    const auto source = store->Describe(Key(verb.source));
    if (source.ok() && verb.source != verb.id) {
      verb.kind = Kind::kFork;
      verb.kept = random->OneIn(3) ? source->n_tokens
                                   : random->Between(0, source->n_tokens);
      return verb;
    }
  }
  if (now.ok() && random->OneIn(4)) {
    verb.kind = random->OneIn(2) ? Kind::kErase : Kind::kRewind;
    verb.kept = random->Between(0, now->n_tokens);
    return verb;
  }
  const uint64_t n = now.ok() ? now->n_tokens : 0;
  // Mostly a delta, now and then one that cuts back as it continues.
  verb.kept =
      n > kTokensMax || random->OneIn(4) ? random->Between(0, n / 2) : n;
  verb.n_new = random->Between(1, 60);
  return verb;
}

absl::StatusOr<uint64_t> Run(const CrashVerb& verb, SessionStore* store) {
  const std::string op = "op" + std::to_string(verb.writer);
  switch (verb.kind) {
    case Kind::kSuspend: {
      SuspendSpec spec =
          Spec(verb.id, verb.expected, verb.kept, verb.n_new, op);
      spec.new_tokens = Tokens(verb.kept, verb.n_new, verb.writer);
      TORPOR_ASSIGN_OR_RETURN(
          const SuspendReceipt receipt,
          Suspend(store, spec, verb.writer,
                  {Bytes(AttachmentKind::kWitness, WitnessOf(verb.writer))}));
      return receipt.version;
    }
    case Kind::kFork: {
      TORPOR_ASSIGN_OR_RETURN(const SessionInfo info,
                              store->Fork({Key(verb.source),
                                           0,
                                           {Key(verb.id), verb.expected, op},
                                           verb.kept}));
      return info.version;
    }
    case Kind::kRewind: {
      TORPOR_ASSIGN_OR_RETURN(
          const SessionInfo info,
          store->Rewind({Key(verb.id), verb.expected, op}, verb.kept));
      return info.version;
    }
    case Kind::kErase:
      return store->Erase({Key(verb.id), verb.expected, op});
  }
  return absl::InternalError("no such verb");
}

// Reports "begin <thread> <verb>", then "done <thread> <version>", for ever.
void RunThread(int thread, uint32_t first_writer, SessionStore* store) {
  Random random(first_writer);
  for (uint32_t writer = first_writer;; ++writer) {
    const CrashVerb verb = NextVerb(thread, writer, store, &random);
    const std::string who = std::to_string(thread) + " ";
    Report("begin " + who + verb.ToLine());
    const absl::StatusOr<uint64_t> version = Run(verb, store);
    Report(version.ok() ? "done " + who + std::to_string(*version)
                        : "fail " + who + version.status().ToString());
  }
}

// Arguments: directory, staged, first writer, call to die at (0 = none), torn.
int RunChild(const std::vector<std::string>& args) {
  if (const uint64_t at = std::stoull(args[3]); at != 0) {
    Shim::KillAt(testing::Watch::kAll, at, args[4] == "1");
  }
  auto store = LmdbSessionStore::Open(Options(args[0], args[1] == "1"));
  if (!store.ok()) {
    Report("fail 0 " + store.status().ToString());
    return 1;
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      RunThread(t, static_cast<uint32_t>(std::stoul(args[2]) + t * 10'000),
                store->get());
    });
  }
  for (;;) {
    const auto more = (*store)->Maintain();
    if (!more.ok()) Report("fail 0 " + more.status().ToString());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// ---- the parent -----------------------------------------------------------

class CrashTest : public ::testing::Test {
 protected:
  // Runs a child until it is dead; brings the model up to what it reported.
  void RunUntilDead(const std::string& directory, bool staged, uint64_t call,
                    bool torn, std::chrono::milliseconds life) {
    in_flight_.clear();
    ChildProcess child({"--child", directory, staged ? "1" : "0",
                        std::to_string(1 + 100'000 * round_),
                        std::to_string(call), torn ? "1" : "0"});
    const auto end = std::chrono::steady_clock::now() + life;
    bool killed = false;
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      const std::string line =
          child.ReadLine(killed ? std::chrono::seconds(60)
                                : std::max(left, std::chrono::milliseconds(0)));
      if (!line.empty()) {
        Take(line);
      } else if (!killed) {
        // Its time is over, or it is dead already.
        child.Kill();
        killed = true;
      } else {
        break;
      }
    }
    const int status = child.Wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "wait status " << status;
  }

  void Take(const std::string& line) {
    std::istringstream in(line);
    std::string what;
    int thread = 0;
    in >> what >> thread;
    if (what == "begin") {
      in_flight_[thread] = CrashVerb::FromLine(in);
      return;
    }
    ASSERT_EQ(what, "done") << line;
    uint64_t version = 0;
    in >> version;
    ++acknowledged_;
    const CrashVerb verb = in_flight_[thread];
    in_flight_.erase(thread);
    std::optional<CrashSession> after = After(model_, verb);
    if (!after.has_value()) {
      model_.erase(verb.id);
    } else {
      after->version = version;
      model_[verb.id] = *after;
    }
  }

  // The session is what was acknowledged or, if a verb on it was under way,
  // what that verb makes of it. The model follows what is found.
  void CheckSession(SessionStore* store, const std::string& id) {
    SCOPED_TRACE("session " + id);
    std::vector<std::optional<CrashSession>> allowed;
    const auto known = model_.find(id);
    allowed.push_back(known == model_.end()
                          ? std::nullopt
                          : std::optional<CrashSession>(known->second));
    for (const auto& [thread, verb] : in_flight_) {
      if (verb.id == id) allowed.push_back(After(model_, verb));
    }
    const auto info = store->Describe(Key(id));
    if (!info.ok()) {
      EXPECT_EQ(info.status().code(), absl::StatusCode::kNotFound)
          << info.status();
      EXPECT_TRUE(std::find(allowed.begin(), allowed.end(), std::nullopt) !=
                  allowed.end())
          << "an acknowledged session is gone";
      next_model_.erase(id);
      return;
    }
    ASSERT_OK_AND_ASSIGN(const Content content,
                         ReadAll(store, Key(id), SmallLayout()));
    bool found = false;
    for (size_t i = 0; i < allowed.size() && !found; ++i) {
      if (!allowed[i].has_value() || !(ContentOf(*allowed[i]) == content)) {
        continue;
      }
      // What was acknowledged keeps its version; what was under way has a
      // later one.
      const uint64_t before = allowed[0].has_value() ? allowed[0]->version : 0;
      found = i == 0 ? info->version == before : info->version > before;
      if (!found) continue;
      in_flight_done_ += i;
      next_model_[id] = *allowed[i];
      next_model_[id].version = info->version;
    }
    EXPECT_TRUE(found) << "version " << info->version << " of "
                       << info->n_tokens << " tokens is none of the "
                       << allowed.size() << " it may be";
  }

  void CheckStore(const std::string& directory, bool staged) {
    ASSERT_OK_AND_ASSIGN(const auto store,
                         LmdbSessionStore::Open(Options(directory, staged)));
    EXPECT_EQ(store->Stats().staged_records, 0);
    next_model_ = model_;
    for (int thread = 0; thread < kThreads; ++thread) {
      for (uint64_t n = 0; n < kSessionsPerThread; ++n) {
        CheckSession(store.get(), IdOf(thread, n));
      }
    }
    model_ = next_model_;
    EXPECT_EQ(store->Stats().sessions, model_.size());
    ExpectSound(store.get());
    if (round_ % kRoundsPerStore == kRoundsPerStore - 1) {
      ExpectNothingLeaks(store.get());
      model_.clear();
    }
  }

  static constexpr uint64_t kRoundsPerStore = 20;

  uint64_t round_ = 0;
  CrashModel model_;
  CrashModel next_model_;
  // By thread: the verb that was begun and not answered.
  std::map<int, CrashVerb> in_flight_;
  uint64_t acknowledged_ = 0;
  // Verbs that were published before their child could say so.
  uint64_t in_flight_done_ = 0;
};

TEST_F(CrashTest, WhatWasAcknowledgedSurvivesWholeAndNothingElseChanges) {
  constexpr uint64_t kRounds = 200;
  Random random;
  std::unique_ptr<testing::TempDir> dir;
  for (round_ = 0; round_ < kRounds; ++round_) {
    if (round_ % kRoundsPerStore == 0) {
      dir = std::make_unique<testing::TempDir>();
    }
    const bool staged = random.OneIn(2);
    const bool torn = random.OneIn(2);
    const bool by_call = random.OneIn(2);
    const uint64_t call = by_call ? random.Between(1, 250) : 0;
    // Starting takes a while; most deaths come during the verbs.
    const std::chrono::milliseconds life(by_call ? 60'000
                                                 : random.Between(10, 120));
    SCOPED_TRACE("round " + std::to_string(round_) + ": dies " +
                 (by_call ? "at call " + std::to_string(call)
                          : "after " + std::to_string(life.count()) + " ms") +
                 (torn ? ", torn" : "") + (staged ? ", staged" : ""));
    ASSERT_NO_FATAL_FAILURE(
        RunUntilDead(dir->path(), staged, call, torn, life));
    ASSERT_NO_FATAL_FAILURE(CheckStore(dir->path(), staged));
    if (HasFailure()) break;
  }
  // The test saw what it is about.
  EXPECT_GT(acknowledged_, 5 * kRounds);
  EXPECT_GT(in_flight_done_, 0);
  std::printf("%llu verbs acknowledged, %llu more found done\n",
              static_cast<unsigned long long>(acknowledged_),
              static_cast<unsigned long long>(in_flight_done_));
}

}  // namespace
}  // namespace torpor::store

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv, argv + argc);
  if (args.size() == 7 && args[1] == "--child") {
    return torpor::store::RunChild({args.begin() + 2, args.end()});
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
