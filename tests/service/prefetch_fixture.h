// SPDX-License-Identifier: Apache-2.0
//
// Prefetches of a daemon with two real (tiny, seeded) models, what it counts of
// them, and resumes in both forms.

#ifndef TORPOR_TESTS_SERVICE_PREFETCH_FIXTURE_H_
#define TORPOR_TESTS_SERVICE_PREFETCH_FIXTURE_H_

#include <map>
#include <string>
#include <thread>

#include "tests/service/metric_value.h"
#include "tests/service/model_fixture.h"

namespace torpor::service {

// Asks for the window of the resume that `header` begins.
inline v1::PrefetchRequest ReplayOf(const v1::BeginResumeHeader& header) {
  v1::PrefetchRequest request;
  request.set_session(header.session());
  request.set_version(header.version());
  request.set_cut(header.cut());
  request.set_mode(header.mode());
  *request.mutable_limits() = header.limits();
  request.set_want_logits(header.want_logits());
  request.set_replay(true);
  return request;
}

inline v1::BeginResumeHeader ExactOf(const std::string& session) {
  v1::BeginResumeHeader header;
  header.set_session(session);
  header.set_mode(v1::REPLAY_MODE_EXACT);
  return header;
}

class PrefetchTest : public ModelReplayTest {
 protected:
  absl::StatusOr<v1::PrefetchResponse> Prefetch(
      const v1::PrefetchRequest& request) {
    return Ask(sessions(), &v1::SessionService::Stub::Prefetch, request);
  }
  // A window of the session at its tip is held when it returns.
  void Hold(const std::string& session) {
    const uint64_t before = Count("held");
    ASSERT_OK_AND_ASSIGN(const auto answer,
                         Prefetch(ReplayOf(ExactOf(session))));
    ASSERT_TRUE(answer.replaying()) << answer.reason();
    AwaitCount("held", before + 1);
  }
  uint64_t Count(const std::string& event) {
    return PrefetchCount(server().backend().metrics().Text(), event);
  }
  void AwaitCount(const std::string& event, uint64_t n) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (Count(event) < n) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline)
          << event << ": " << Count(event) << " of " << n;
      std::this_thread::yield();
    }
  }
  uint64_t HeldBytes() {
    return server().backend().prefetcher().stats().held_bytes;
  }
  // In one call, or in parts.
  absl::StatusOr<Woken> ResumeBy(const v1::BeginResumeHeader& header,
                                 bool in_parts) {
    if (!in_parts) return Resume(header);
    absl::StatusOr<v1::BeginResumeResponse> begun = BeginResume(header);
    if (!begun.ok()) return begun.status();
    v1::ReadRowsRequest read;
    read.set_lease(begun->lease());
    absl::StatusOr<Woken> rows = ReadRows(read);
    if (!rows.ok()) return rows.status();
    v1::WindowRequest window;
    window.set_lease(begun->lease());
    absl::StatusOr<Woken> woken = Window(window);
    if (!woken.ok()) return woken.status();
    woken->begin = *begun;
    woken->compact = rows->compact;
    absl::StatusOr<v1::ResumeReceipt> receipt = Release(begun->lease());
    if (!receipt.ok()) return receipt.status();
    woken->receipt = *receipt;
    return woken;
  }
  static void ExpectSameRows(const std::map<uint32_t, Woken::Run>& got,
                             const std::map<uint32_t, Woken::Run>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [slot, run] : want) {
      ASSERT_TRUE(got.contains(slot)) << slot;
      EXPECT_EQ(got.at(slot).begin, run.begin) << slot;
      EXPECT_EQ(got.at(slot).end, run.end) << slot;
      EXPECT_TRUE(got.at(slot).bytes == run.bytes) << "slot " << slot;
    }
  }
  // Equal but for what says who ran the tokens, and how long it took.
  static void ExpectSameReceipt(v1::ResumeReceipt got, v1::ResumeReceipt want) {
    EXPECT_TRUE(got.prefetched());
    EXPECT_FALSE(want.prefetched());
    EXPECT_EQ(got.times().replay_us(), 0);
    EXPECT_LE(got.bytes_read(), want.bytes_read());
    for (v1::ResumeReceipt* r : {&got, &want}) {
      r->clear_prefetched();
      r->clear_times();
      r->clear_bytes_read();
    }
    EXPECT_EQ(got.DebugString(), want.DebugString());
  }
};

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_PREFETCH_FIXTURE_H_
