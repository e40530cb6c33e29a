// SPDX-License-Identifier: Apache-2.0
//
// No cliff: at every length around one that windows and blocks divide, a resume
// reuses one token more than at the length before, and the store takes the
// bytes of one token more.

#include <gtest/gtest.h>

#include <optional>
#include <ostream>

#include "absl/strings/str_format.h"
#include "tests/replay/layout_builder.h"
#include "tests/service/resume_fixture.h"
#include "tests/store/store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace torpor::service {
namespace {

using replay::ModelLayout;

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

constexpr uint64_t kPage = 4096;
constexpr uint64_t kFirstLength = 4096 - 300;
constexpr uint64_t kLastLength = 4096 + 300;

struct CliffCase {
  uint32_t window;
  uint32_t block;
  // Tokens of a pooled group beside the windows; 0 = none.
  uint32_t ratio;
};

std::ostream& operator<<(std::ostream& out, const CliffCase& c) {
  return out << "window " << c.window << ", blocks of " << c.block
             << ", groups of " << c.ratio;
}

// Two layers of windows, exact by 2 x (window - 1) rows, around a full one.
ModelLayout CliffLayout(const CliffCase& c) {
  ModelLayout layout = replay::LayoutOf("sfs", c.window, 2, 4);
  if (c.ratio > 0) {
    layout.slots.push_back(replay::PooledSlot("pooled", 1, c.ratio, 8));
    layout.slots.push_back(replay::OpenGroupSlot("open", 1, c.ratio, 0, 2));
  }
  return layout;
}

class NoCliffTest : public ResumeTest,
                    public ::testing::WithParamInterface<CliffCase> {
 protected:
  // What one length came to.
  struct Point {
    uint64_t loaded_exact = 0;
    uint64_t loaded_bounded = 0;
    store::SessionInfo info;
  };

  Point Measure(const StoredSession& session);
  void ExpectSmooth(const StoredSession& session, const Point& point);

  std::optional<Point> before_;
};

NoCliffTest::Point NoCliffTest::Measure(const StoredSession& session) {
  Point point;
  const auto loaded = [&](v1::ReplayMode mode, bool by_prefix) -> uint64_t {
    Asked asked;
    asked.header.set_mode(mode);
    asked.header.set_engine_replays(true);
    if (by_prefix) {
      asked.header.set_model(session.model().name);
      asked.prompt = session.tokens();
      asked.prompt->ids.push_back(1);
    } else {
      asked.header.set_session(session.id());
    }
    const auto plan = Resume(session, asked);
    EXPECT_TRUE(plan.has_value());
    if (!plan.has_value()) return 0;
    EXPECT_EQ(plan->resume_at, session.kv_len());
    return plan->replay_start;
  };
  point.loaded_exact = loaded(v1::REPLAY_MODE_EXACT, /*by_prefix=*/false);
  point.loaded_bounded = loaded(v1::REPLAY_MODE_BOUNDED, /*by_prefix=*/true);
  auto info = store_->Describe({0, session.id()});
  EXPECT_OK(info);
  if (info.ok()) point.info = *std::move(info);
  return point;
}

// One token more is one token more: of reuse, once it exceeds what is replayed,
// and of bytes, but for the rounding to pages.
void NoCliffTest::ExpectSmooth(const StoredSession& session,
                               const Point& point) {
  const uint64_t length = session.kv_len();
  const uint64_t window = GetParam().window;
  EXPECT_EQ(point.info.kv_len, length);
  EXPECT_EQ(point.loaded_exact, Minus(length, 2 * (window - 1)));
  EXPECT_EQ(point.loaded_bounded, Minus(length, window));
  const uint64_t ratio = GetParam().ratio;
  EXPECT_EQ(point.info.compact_bytes,
            4 * length + (ratio > 0 ? length / ratio * 8 : 0));
  // Header, directory, index entries and the rounding of each block.
  EXPECT_LE(point.info.stored_bytes, point.info.compact_bytes +
                                         point.info.token_bytes +
                                         point.info.n_blocks * 2 * kPage);
  if (!before_.has_value()) return;
  const store::SessionInfo& before = before_->info;
  EXPECT_EQ(before.kv_len + 1, length);
  EXPECT_LE(point.loaded_exact - before_->loaded_exact, 1);
  EXPECT_LE(point.loaded_bounded - before_->loaded_bounded, 1);
  EXPECT_GE(point.info.n_blocks, before.n_blocks);
  EXPECT_LE(point.info.n_blocks, before.n_blocks + 1);
  const uint64_t n_new = point.info.n_blocks - before.n_blocks;
  EXPECT_GE(point.info.stored_bytes, before.stored_bytes);
  EXPECT_LE(point.info.stored_bytes, before.stored_bytes + (1 + n_new) * kPage);
}

TEST_P(NoCliffTest, SuspendedWholeAtEveryLength) {
  const auto model = Register(CliffLayout(GetParam()), GetParam().block);
  ASSERT_NE(model, nullptr);
  for (uint64_t length = kFirstLength; length <= kLastLength; ++length) {
    StoredSession session(store_.get(), model, static_cast<uint32_t>(length));
    ASSERT_OK(session.Suspend(
        {.n_new = length, .kv_len = length, .whole_pieces = true}));
    const Point point = Measure(session);
    ExpectSmooth(session, point);
    ASSERT_FALSE(HasFailure()) << GetParam() << ", " << session.String();
    before_ = point;
    ASSERT_OK(session.Erase());
    ASSERT_OK(store::Settle(store_.get()));
    now_us_ += kTwoDaysUs;
  }
}

// Three sampled tokens always wait for their rows.
TEST_P(NoCliffTest, GrownByOneTokenASuspend) {
  constexpr uint64_t kPending = 3;
  const auto model = Register(CliffLayout(GetParam()), GetParam().block);
  ASSERT_NE(model, nullptr);
  StoredSession session(store_.get(), model, 1);
  ASSERT_OK(session.Suspend(
      {.n_new = kFirstLength - 1 + kPending, .kv_len = kFirstLength - 1}));
  for (uint64_t length = kFirstLength; length <= kLastLength; ++length) {
    auto receipt = session.Suspend(
        {.tokens_kept = session.n_tokens(), .n_new = 1, .kv_len = length});
    ASSERT_OK(receipt);
    // At most one block closes, and a tail is opened.
    EXPECT_LE(receipt->blocks_written, 2);
    EXPECT_LE(receipt->row_bytes_received, 4 + 8);
    ASSERT_OK(store::Settle(store_.get()));
    const Point point = Measure(session);
    ExpectSmooth(session, point);
    ASSERT_FALSE(HasFailure()) << GetParam() << ", length " << length;
    before_ = point;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Windows, NoCliffTest,
    ::testing::Values(CliffCase{128, 64, 0}, CliffCase{512, 512, 0},
                      CliffCase{512, 60, 4}, CliffCase{1024, 1024, 128},
                      CliffCase{4096, 250, 0}, CliffCase{4096, 4096, 2}),
    [](const auto& info) {
      return absl::StrFormat("W%dBlock%dRatio%d", info.param.window,
                             info.param.block, info.param.ratio);
    });

}  // namespace
}  // namespace torpor::service
