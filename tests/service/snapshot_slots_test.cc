// SPDX-License-Identifier: Apache-2.0
//
// Slots that nothing but a snapshot brings back, of every kind: they come back
// byte-equal with each wake that is not cold, or the wake is refused.

#include <map>

#include "base/hash.h"
#include "service/convert.h"
#include "tests/replay/layout_builder.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using replay::ComeBack;
using replay::SlotKind;
using ::testing::IsEmpty;
using Range = std::pair<uint64_t, uint64_t>;

constexpr uint64_t kCut = 50;
constexpr uint32_t kKvBytes = 24;
constexpr v1::ReplayMode kWarmModes[] = {
    v1::REPLAY_MODE_SNAPSHOT, v1::REPLAY_MODE_EXACT, v1::REPLAY_MODE_BOUNDED,
    v1::REPLAY_MODE_AUTO};

struct Held {
  replay::Slot slot;
  // Its rows in a session of kCut tokens.
  Range rows;
};

replay::Slot SnapshotSlot(const std::string& name, SlotKind kind,
                          uint32_t row_bytes) {
  return replay::MakeSlot(name, kind, 1, row_bytes, ComeBack::kSnapshot);
}

// One of each kind.
std::vector<Held> HeldSlots() {
  std::vector<Held> held = {
      {SnapshotSlot("state", SlotKind::kRecurrent, 96), {0, 1}},
      {SnapshotSlot("full", SlotKind::kFull, 20), {0, 50}},
      {SnapshotSlot("sliding", SlotKind::kSliding, 16), {43, 50}},
      {SnapshotSlot("chunked", SlotKind::kChunked, 12), {48, 50}},
      {SnapshotSlot("pooled", SlotKind::kPooled, 28), {0, 12}},
      {SnapshotSlot("open", SlotKind::kOpenGroup, 36), {46, 50}}};
  held[2].slot.window = 8;
  held[3].slot.chunk = 16;
  held[4].slot.tokens_per_row = 4;
  held[5].slot.tokens_per_row = 4;
  held[5].slot.overlap_tokens = 2;
  return held;
}

// Slot 0 persists, `held` stand behind it.
replay::ModelLayout LayoutWith(const std::vector<Held>& held) {
  replay::ModelLayout layout;
  layout.family = "held";
  layout.n_layers = 2;
  layout.vocab_size = kToyVocab;
  layout.slots.push_back(replay::FullSlot(0, kKvBytes));
  for (const Held& one : held) layout.slots.push_back(one.slot);
  return layout;
}

std::string RowsFor(const replay::ModelLayout& layout, uint32_t slot,
                    const Range& rows) {
  const uint32_t row_bytes = layout.slots[slot].row_bytes;
  std::string out;
  for (uint64_t i = rows.first * row_bytes; i < rows.second * row_bytes; ++i) {
    out.push_back(
        static_cast<char>((i * 31 + slot + 1) * 0x9e3779b97f4a7c15 >> 56));
  }
  return out;
}

class SnapshotSlotsTest : public ServiceTest {
 protected:
  // Each layout is a model of its name.
  void Register(const std::string& name, const replay::ModelLayout& layout) {
    v1::RegisterRequest request;
    request.set_name(name);
    request.set_block_size(kToyBlock);
    request.mutable_fingerprint()->set_weights(name);
    request.mutable_fingerprint()->set_kv_dtype("bf16");
    request.mutable_fingerprint()->set_rope("plain");
    *request.mutable_layout() = ToProto(layout);
    ASSERT_OK(Ask(models(), &v1::ModelService::Stub::Register, request));
  }

  // A session of kCut tokens named like its model. Every row that the daemon
  // wants is sent but those of `left_out`; the receipt is the commit's.
  absl::StatusOr<v1::SuspendReceipt> Sleep(const std::string& model,
                                           const replay::ModelLayout& layout,
                                           bool with_snapshot,
                                           uint32_t left_out = UINT32_MAX) {
    v1::BeginSuspendHeader header;
    header.set_session(model);
    header.set_model(model);
    header.set_operation_id("op");
    header.set_kv_len(kCut);
    header.set_with_snapshot(with_snapshot);
    const auto begun = BeginSuspend(header, ToyIds(1, kCut));
    if (!begun.ok()) return begun.status();
    wanted_.clear();
    v1::PutRowsRequest message;
    message.set_ticket(begun->ticket());
    for (const v1::SlotRows& rows : begun->wanted()) {
      const Range range{rows.row_begin(), rows.row_end()};
      wanted_[rows.slot()] = range;
      if (rows.slot() == left_out) continue;
      const std::string bytes = RowsFor(layout, rows.slot(), range);
      v1::RowPiece* piece = message.add_pieces();
      piece->set_slot(rows.slot());
      piece->set_row_begin(range.first);
      piece->set_n_rows(static_cast<uint32_t>(range.second - range.first));
      piece->set_row_bytes(layout.slots[rows.slot()].row_bytes);
      piece->set_checksum(
          Xxh3({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
      message.mutable_data()->append(bytes);
    }
    EXPECT_OK(PutRows({message}));
    v1::CommitRequest commit;
    commit.set_ticket(begun->ticket());
    return Commit(commit);
  }

  static v1::BeginResumeHeader Wake(const std::string& session,
                                    v1::ReplayMode mode) {
    v1::BeginResumeHeader header;
    header.set_session(session);
    header.set_mode(mode);
    return header;
  }

  static void ExpectRows(const replay::ModelLayout& layout,
                         const std::map<uint32_t, Woken::Run>& got,
                         const std::map<uint32_t, Range>& wanted) {
    std::map<uint32_t, Range> ranges;
    for (const auto& [slot, run] : got) ranges[slot] = {run.begin, run.end};
    EXPECT_EQ(ranges, wanted);
    for (const auto& [slot, range] : wanted) {
      const auto it = got.find(slot);
      if (it == got.end()) continue;
      EXPECT_TRUE(it->second.bytes == RowsFor(layout, slot, range))
          << layout.slots[slot].name;
    }
  }

  // Sleeps with a snapshot and wakes in every mode that is not cold.
  void ExpectComesBack(const std::string& model, const std::vector<Held>& held,
                       std::span<const v1::ReplayMode> modes) {
    SCOPED_TRACE(model);
    const replay::ModelLayout layout = LayoutWith(held);
    ASSERT_NO_FATAL_FAILURE(Register(model, layout));
    std::map<uint32_t, Range> window;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < held.size(); ++i) {
      const Range& rows = held[i].rows;
      window[i + 1] = rows;
      bytes += (rows.second - rows.first) * held[i].slot.row_bytes;
    }
    ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt slept,
                         Sleep(model, layout, true));
    std::map<uint32_t, Range> all = window;
    all[0] = {0, kCut};
    EXPECT_EQ(wanted_, all);
    EXPECT_EQ(slept.snapshot_bytes(), bytes);
    for (const v1::ReplayMode mode : modes) {
      SCOPED_TRACE(v1::ReplayMode_Name(mode));
      ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(Wake(model, mode)));
      ExpectRows(layout, woken.compact, {{0, {0, kCut}}});
      ExpectRows(layout, woken.window, window);
      EXPECT_EQ(woken.receipt->mode_used(),
                mode == v1::REPLAY_MODE_AUTO ? v1::REPLAY_MODE_SNAPSHOT : mode);
      EXPECT_EQ(woken.receipt->bytes_read(), kCut * kKvBytes + bytes);
      EXPECT_EQ(woken.receipt->bytes_sent(), kCut * kKvBytes + bytes);
      ExpectAddsUp(*woken.receipt);
    }
  }

  // Rows that the last Sleep was asked for, by slot.
  std::map<uint32_t, Range> wanted_;
};

TEST_F(SnapshotSlotsTest, EachKindComesBackInEveryMode) {
  for (const Held& held : HeldSlots()) {
    ExpectComesBack(held.slot.name, {held}, kWarmModes);
  }
  ExpectComesBack("all", HeldSlots(), kWarmModes);
  ExpectIdle();
}

// In parts as well, and in shards.
TEST_F(SnapshotSlotsTest, AStateComesBackThroughTheWindowCall) {
  std::vector<Held> held = {HeldSlots()[0]};
  held[0].slot.shard_axis = replay::ShardAxis::kHeads;
  held[0].slot.n_heads = 2;
  const replay::ModelLayout layout = LayoutWith(held);
  ASSERT_NO_FATAL_FAILURE(Register("m", layout));
  ASSERT_OK(Sleep("m", layout, true));
  ASSERT_OK_AND_ASSIGN(const v1::BeginResumeResponse begun,
                       BeginResume(Wake("m", v1::REPLAY_MODE_EXACT)));
  const std::string state = RowsFor(layout, 1, {0, 1});
  for (uint32_t shard = 0; shard < 2; ++shard) {
    v1::WindowRequest request;
    request.set_lease(begun.lease());
    request.set_shard(shard);
    request.set_n_shards(2);
    ASSERT_OK_AND_ASSIGN(Woken woken, Window(request));
    EXPECT_TRUE(woken.window[1].bytes ==
                state.substr(shard * state.size() / 2, state.size() / 2));
  }
  ASSERT_OK(Release(begun.lease()));
}

// A window below the state is replayed by engines; a snapshot has both.
TEST_F(SnapshotSlotsTest, ASnapshotHoldsReplayedWindowsToo) {
  std::vector<Held> held = {{replay::SlidingSlot(0, 8, 16), {43, 50}},
                            HeldSlots()[0]};
  const v1::ReplayMode modes[] = {v1::REPLAY_MODE_SNAPSHOT,
                                  v1::REPLAY_MODE_AUTO};
  ExpectComesBack("both", held, modes);
}

TEST_F(SnapshotSlotsTest, ACommitWantsTheRows) {
  const std::vector<Held> held = HeldSlots();
  for (uint32_t i = 0; i < held.size(); ++i) {
    const replay::ModelLayout layout = LayoutWith({held[i]});
    ASSERT_NO_FATAL_FAILURE(Register(held[i].slot.name, layout));
    EXPECT_THAT(Sleep(held[i].slot.name, layout, true, /*left_out=*/1),
                HasStatus(StatusCode::kFailedPrecondition, "snapshot slot 1"));
  }
}

TEST_F(SnapshotSlotsTest, WithoutItsRowsAWakeIsRefused) {
  for (const Held& held : HeldSlots()) {
    const std::string& name = held.slot.name;
    SCOPED_TRACE(name);
    const replay::ModelLayout layout = LayoutWith({held});
    ASSERT_NO_FATAL_FAILURE(Register(name, layout));
    ASSERT_OK(Sleep(name, layout, false));
    for (const v1::ReplayMode mode : kWarmModes) {
      EXPECT_THAT(
          Resume(Wake(name, mode)),
          HasStatus(StatusCode::kFailedPrecondition,
                    mode == v1::REPLAY_MODE_SNAPSHOT ? "has none at token 50"
                                                     : "slot '" + name + "'"));
    }
    v1::BeginResumeHeader cold = Wake(name, v1::REPLAY_MODE_AUTO);
    cold.mutable_limits()->set_allow_cold(true);
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(cold));
    EXPECT_EQ(woken.receipt->mode_used(), v1::REPLAY_MODE_COLD);
    EXPECT_THAT(woken.window, IsEmpty());
  }
}

// Not where the snapshot was taken, by tokens alone, or by an engine that asks
// for no window.
TEST_F(SnapshotSlotsTest, AWakeThatCannotBringItsRowsIsRefused) {
  for (const Held& held : HeldSlots()) {
    const std::string& name = held.slot.name;
    SCOPED_TRACE(name);
    const replay::ModelLayout layout = LayoutWith({held});
    ASSERT_NO_FATAL_FAILURE(Register(name, layout));
    ASSERT_OK(Sleep(name, layout, true));
    const auto refused =
        HasStatus(StatusCode::kFailedPrecondition, "slot '" + name + "'");
    for (const v1::ReplayMode mode :
         {v1::REPLAY_MODE_EXACT, v1::REPLAY_MODE_BOUNDED,
          v1::REPLAY_MODE_AUTO}) {
      v1::BeginResumeHeader cut = Wake(name, mode);
      cut.set_cut(kCut - 1);
      EXPECT_THAT(Resume(cut), refused);
      v1::BeginResumeHeader engine = Wake(name, mode);
      engine.set_engine_replays(true);
      EXPECT_THAT(Resume(engine), refused);
      v1::BeginResumeHeader tokens = Wake("", mode);
      tokens.set_model(name);
      EXPECT_THAT(Resume(tokens, ToyIds(1, kCut)), refused);
    }
  }
}

// A cut between two groups leaves nothing open, between two chunks no window.
TEST_F(SnapshotSlotsTest, ACutThatOwesNoRowsNeedsNoSnapshot) {
  std::vector<Held> held = {HeldSlots()[3], HeldSlots()[5]};
  held[1].slot.overlap_tokens = 0;
  const replay::ModelLayout layout = LayoutWith(held);
  ASSERT_NO_FATAL_FAILURE(Register("m", layout));
  ASSERT_OK(Sleep("m", layout, false));
  for (const auto& [mode, reason] :
       {std::pair{v1::REPLAY_MODE_EXACT, "slot 'chunked'"},
        {v1::REPLAY_MODE_SNAPSHOT, "has none at token 49"}}) {
    v1::BeginResumeHeader header = Wake("m", mode);
    header.set_cut(48);
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(header));
    ExpectRows(layout, woken.compact, {{0, {0, 48}}});
    EXPECT_THAT(woken.window, IsEmpty());
    EXPECT_EQ(woken.receipt->mode_used(), mode);
    header.set_cut(49);
    EXPECT_THAT(Resume(header),
                HasStatus(StatusCode::kFailedPrecondition, reason));
  }
}

// Asked for at suspend or not, at the tip, at a cut and by tokens alone.
TEST_F(SnapshotSlotsTest, ASnapshotOfALayoutWithoutWindowsIsAllThatPersists) {
  const replay::ModelLayout layout = LayoutWith({});
  for (const bool with_snapshot : {false, true}) {
    const std::string model = with_snapshot ? "asked" : "not";
    ASSERT_NO_FATAL_FAILURE(Register(model, layout));
    ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt slept,
                         Sleep(model, layout, with_snapshot));
    EXPECT_EQ(slept.snapshot_bytes(), 0);
    v1::BeginResumeHeader cut = Wake(model, v1::REPLAY_MODE_SNAPSHOT);
    cut.set_cut(kCut - 1);
    v1::BeginResumeHeader tokens = Wake("", v1::REPLAY_MODE_SNAPSHOT);
    tokens.set_model(model);
    for (const auto& [woken, n] :
         {std::pair{Resume(Wake(model, v1::REPLAY_MODE_SNAPSHOT)), kCut},
          {Resume(cut), kCut - 1},
          {Resume(tokens, ToyIds(1, kCut)), kCut}}) {
      ASSERT_OK(woken.status());
      ExpectRows(layout, woken->compact, {{0, {0, n}}});
      EXPECT_THAT(woken->window, IsEmpty());
      const v1::ResumeReceipt& receipt = *woken->receipt;
      EXPECT_EQ(receipt.mode_used(), v1::REPLAY_MODE_SNAPSHOT);
      EXPECT_TRUE(receipt.exact());
      EXPECT_EQ(receipt.loaded_tokens(), n);
      EXPECT_EQ(receipt.replayed_tokens(), 0);
      EXPECT_EQ(receipt.bytes_read(), n * kKvBytes);
      ExpectAddsUp(receipt);
    }
  }
}

}  // namespace
}  // namespace torpor::service
