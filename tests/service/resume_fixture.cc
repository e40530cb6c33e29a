// SPDX-License-Identifier: Apache-2.0

#include "tests/service/resume_fixture.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/testing/status_matchers.h"

namespace torpor::service {
namespace {

using replay::ModelLayout;
using replay::ReplayMode;
using replay::Slot;
using ::testing::ElementsAreArray;
using testing::HasCode;

ReplayMode ModeOf(const v1::BeginResumeHeader& header) {
  return static_cast<ReplayMode>(header.mode());
}

// The cut, before any replay is thought of.
Expected ExpectCut(const StoredSession& session, const Asked& asked) {
  Expected out;
  const uint64_t n_tokens = session.n_tokens();
  const bool by_prefix = asked.header.session().empty();
  out.prompt_tokens = n_tokens;
  out.cut = session.kv_len();
  if (asked.prompt.has_value()) {
    out.prompt_tokens = asked.prompt->ids.size();
    out.cut = LegalCut(
        session.tokens(),
        std::min(out.cut, ExpectCommon(session.tokens(), *asked.prompt)));
  }
  if (by_prefix && out.cut == 0) {
    out.code = absl::StatusCode::kFailedPrecondition;
    return out;
  }
  const uint64_t at = asked.header.cut();
  if (at > (by_prefix ? out.cut : n_tokens)) {
    out.code = absl::StatusCode::kOutOfRange;
    return out;
  }
  if (at != 0) out.cut = std::min(out.cut, at);
  if (out.cut == 0 && ModeOf(asked.header) != ReplayMode::kCold) {
    out.code = absl::StatusCode::kFailedPrecondition;
  } else if (LegalCut(session.tokens(), out.cut) != out.cut) {
    out.code = absl::StatusCode::kInvalidArgument;
  }
  return out;
}

Expected Expect(const StoredSession& session, const Asked& asked) {
  Expected out = ExpectCut(session, asked);
  if (out.code != absl::StatusCode::kOk) return out;
  const v1::ResumeLimits& limits = asked.header.limits();
  out.mode = ModeOf(asked.header);
  if (out.mode == ReplayMode::kCold) return out;
  replay::PlanRequest request{.resume_at = out.cut,
                              .mode = ReplayMode::kBounded,
                              .replay_tokens = limits.replay_tokens(),
                              .floors = session.floors(),
                              .want_logits = asked.header.want_logits()};
  for (const store::ExtraKeySpan& span : session.tokens().spans) {
    if (span.bidirectional) request.spans.push_back({span.begin, span.end});
  }
  const ExpectedPlan bounded = ExpectPlan(session.model().layout, request);
  request.mode = ReplayMode::kExact;
  const ExpectedPlan exact = ExpectPlan(session.model().layout, request);
  if (out.mode == ReplayMode::kAuto) {
    const auto allowed = [&](const ExpectedPlan& plan) {
      return (limits.max_replay_tokens() == 0 ||
              out.cut - plan.replay_start <= limits.max_replay_tokens()) &&
             (plan.exact || limits.max_error() == 0);
    };
    // Bounded never costs more than exact, nor either more than cold.
    if (allowed(bounded)) {
      out.mode = ReplayMode::kBounded;
    } else if (allowed(exact)) {
      out.mode = ReplayMode::kExact;
    } else if (limits.allow_cold()) {
      out.mode = ReplayMode::kCold;
    } else {
      out.code = absl::StatusCode::kFailedPrecondition;
    }
  }
  out.plan = out.mode == ReplayMode::kBounded ? bounded : exact;
  return out;
}

// Replayed tokens where every window layer reads its own rows through one and
// the same window, and nothing else is owed (design D4); nullopt elsewhere.
std::optional<uint64_t> UniformReplay(const StoredSession& session,
                                      const Asked& asked, ReplayMode mode,
                                      uint64_t cut) {
  const ModelLayout& layout = session.model().layout;
  uint64_t sum = 0;
  for (const Slot& slot : layout.slots) {
    if (slot.kind == replay::SlotKind::kFull) continue;
    if (slot.kind != replay::SlotKind::kSliding ||
        slot.come_back != replay::ComeBack::kReplay ||
        slot.reader_layers != std::vector<uint32_t>{slot.owner_layer}) {
      return std::nullopt;
    }
    sum += slot.window - 1;
  }
  for (const store::ExtraKeySpan& span : session.tokens().spans) {
    if (span.bidirectional) return std::nullopt;
  }
  if (!session.floors().empty()) return std::nullopt;
  if (asked.header.want_logits()) ++sum;
  if (mode == ReplayMode::kExact) return std::min(sum, cut);
  uint64_t bound = asked.header.limits().replay_tokens();
  if (bound == 0) bound = layout.LargestWindow();
  if (asked.header.want_logits()) bound = std::max<uint64_t>(bound, 1);
  return std::min({bound, sum, cut});
}

}  // namespace

void ResumeTest::SetUp() {
  ASSERT_OK_AND_ASSIGN(store_,
                       store::LmdbSessionStore::Open(
                           {.data_dir = dir_.path(),
                            .max_bytes = uint64_t{1} << 30,
                            .map_bytes = uint64_t{2} << 30,
                            .seal_threads = 1,
                            .no_sync_for_test = true,
                            .clock = [this] { return now_us_.load(); }}));
  models_ =
      std::make_unique<ModelRegistry>(store_.get(), ModelRegistryOptions());
}

std::shared_ptr<const RegisteredModel> ResumeTest::Register(
    const ModelLayout& layout, uint32_t block_size) {
  auto model =
      RegisterLayout(models_.get(), absl::StrFormat("model %d", n_models_++),
                     layout, block_size);
  EXPECT_OK(model);
  return model.ok() ? *model : nullptr;
}

void ResumeTest::JudgePlan(const StoredSession& session, const Asked& asked,
                           const Expected& want,
                           const replay::ReplayPlan& plan) {
  EXPECT_EQ(plan.mode, want.mode);
  if (want.mode == ReplayMode::kCold) {
    EXPECT_EQ(plan.resume_at, 0);
    EXPECT_EQ(plan.replay_tokens(), 0);
    return;
  }
  ASSERT_EQ(plan.resume_at, want.cut);
  EXPECT_EQ(plan.replay_start, want.plan.replay_start);
  EXPECT_EQ(plan.exact, want.plan.exact);
  EXPECT_THAT(plan.layers, ElementsAreArray(want.plan.layers));
  EXPECT_EQ(plan.token_layers, want.plan.token_layers);
  if (const auto n = UniformReplay(session, asked, want.mode, want.cut)) {
    EXPECT_EQ(plan.replay_tokens(), *n);
    ++n_uniform_;
  }
  if (!plan.exact) ++n_inexact_;
  if (plan.exact && !plan.floors.empty()) ++n_floored_;
}

void ResumeTest::JudgeRows(const StoredSession& session, uint64_t cut,
                           Lease* lease) {
  const RegisteredModel& model = session.model();
  uint64_t n_bytes = 0;
  for (uint32_t i = 0; i < model.compact_slots.size(); ++i) {
    const Slot& slot = model.layout.slots[model.compact_slots[i]];
    const uint64_t n_rows = cut / slot.tokens_per_row;
    const std::vector<uint8_t> want = session.Rows(i, 0, n_rows);
    std::vector<uint8_t> got(want.size());
    ASSERT_OK(lease->ReadRows(model.compact_slots[i], {0, n_rows}, got));
    const auto differs = std::mismatch(want.begin(), want.end(), got.begin());
    ASSERT_TRUE(differs.first == want.end())
        << slot.name << ": row "
        << (differs.first - want.begin()) / slot.row_bytes << " differs";
    n_bytes += got.size();
  }
  EXPECT_EQ(lease->Receipt().bytes_read(), n_bytes);
}

void ResumeTest::JudgeReceipt(const Expected& want, Lease* lease) {
  const v1::ResumeReceipt receipt = lease->Receipt();
  const bool cold = want.mode == ReplayMode::kCold;
  const uint64_t reused = cold ? 0 : want.cut;
  EXPECT_EQ(receipt.prompt_tokens(), want.prompt_tokens);
  EXPECT_EQ(receipt.loaded_tokens(), cold ? 0 : want.plan.replay_start);
  EXPECT_EQ(receipt.loaded_tokens() + receipt.replayed_tokens(), reused);
  EXPECT_EQ(receipt.recomputed_tokens(), want.prompt_tokens - reused);
  EXPECT_EQ(receipt.exact(), !cold && want.plan.exact);
  uint64_t explained = 0;
  for (const v1::TokenReason& reason : receipt.reasons()) {
    EXPECT_GT(reason.tokens(), 0) << reason.reason();
    explained += reason.tokens();
  }
  EXPECT_EQ(explained, receipt.recomputed_tokens()) << receipt.DebugString();
}

std::optional<replay::ReplayPlan> ResumeTest::Resume(
    const StoredSession& session, const Asked& asked) {
  ++n_resumes_;
  const Expected want = Expect(session, asked);
  auto lease =
      Lease::Begin(store_.get(), *models_, 0, asked.header,
                   asked.prompt.has_value() ? &*asked.prompt : nullptr);
  if (want.code != absl::StatusCode::kOk) {
    ++n_refused_;
    EXPECT_THAT(lease, HasCode(want.code));
    return std::nullopt;
  }
  EXPECT_OK(lease);
  if (!lease.ok()) return std::nullopt;
  const replay::ReplayPlan plan = (*lease)->plan();
  JudgePlan(session, asked, want, plan);
  JudgeRows(session, plan.resume_at, lease->get());
  JudgeReceipt(want, lease->get());
  auto response = (*lease)->Response();
  EXPECT_OK(response);
  if (response.ok()) {
    EXPECT_EQ(response->recompute_from(), plan.resume_at);
    EXPECT_EQ(response->plan().replay_start(), plan.replay_start);
  }
  if (plan.mode == ReplayMode::kCold) return std::nullopt;
  return plan;
}

}  // namespace torpor::service
