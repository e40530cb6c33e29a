// SPDX-License-Identifier: Apache-2.0
//
// Sessions of every kind leave one store as a container and arrive in another
// as what they were; whatever is wrong with the bytes is refused with its
// place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/memory_session_store.h"
#include "tests/store/container_fixture.h"
#include "tests/store/raw_env.h"

namespace torpor::store {
namespace {

using testing::HasCode;
using testing::HasStatus;
using ::testing::HasSubstr;

// Sessions with a history: suspends, cuts back, forks, floors, spans, pending
// tokens, witness, state, snapshot.
class RandomSessions {
 public:
  RandomSessions(testing::Random* random, SessionStore* store)
      : random_(*random), store_(store), layout_(AnyLayout()) {}

  const RecordLayout& layout() const { return layout_; }
  const std::vector<SessionKey>& keys() const { return keys_; }

  void Make() {
    keys_ = {Key("s")};
    for (uint64_t turns = random_.Between(1, 4); turns > 0; --turns) {
      ASSERT_NO_FATAL_FAILURE(Turn(keys_.back()));
      ASSERT_OK_AND_ASSIGN(const SessionInfo info,
                           store_->Describe(keys_.back()));
      const uint64_t at = random_.Between(1, info.n_tokens);
      if (random_.OneIn(3)) {
        const auto cut = store_->Rewind({info.key, info.version, Op()}, at);
        // A cut inside a two-way span is none.
        if (!cut.ok()) {
          EXPECT_THAT(cut, HasCode(kInvalid));
        }
      } else if (random_.OneIn(3)) {
        const SessionKey fork = Key("f" + std::to_string(keys_.size()));
        const auto made = store_->Fork({keys_.back(), 0, {fork, 0, Op()}, at});
        if (made.ok()) keys_.push_back(fork);
      }
    }
  }

 private:
  static constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

  RecordLayout AnyLayout() {
    RecordLayout layout;
    layout.fingerprint.fill(static_cast<uint8_t>(random_.Between(1, 255)));
    layout.block_size = static_cast<uint32_t>(4 * random_.Between(4, 12));
    // A model of windows alone keeps tokens and nothing else.
    for (uint64_t n = random_.Between(0, 4); n > 0; --n) {
      layout.slots.push_back({static_cast<uint32_t>(random_.Between(1, 60)),
                              uint32_t{1} << random_.Between(0, 2)});
    }
    return layout;
  }
  std::string Op() { return "op" + std::to_string(next_op_++); }

  void Turn(const SessionKey& key) {
    const auto info = store_->Describe(key);
    const uint64_t kept = info.ok() ? info->n_tokens : 0;
    const uint64_t rows_kept = info.ok() ? info->kv_len : 0;
    const uint64_t n_new = random_.Between(1, 130);
    SuspendSpec spec =
        Spec(key.id, info.ok() ? info->version : 0, kept, n_new, Op());
    spec.layout = layout_;
    // Never below what was kept: no cut inside an older span.
    spec.kv_len -= random_.Between(0, std::min<uint64_t>(3, n_new));
    const uint64_t end = kept + spec.new_tokens.ids.size();
    if (kept + 4 < spec.kv_len && random_.OneIn(2)) {
      const bool two_way = random_.OneIn(2);
      spec.new_tokens.spans = {
          {kept + 1, two_way ? kept + 4 : end, "key", two_way}};
    }
    const uint64_t mid = (rows_kept + spec.kv_len) / 2;
    spec.provenance = {{rows_kept, mid, Provenance::kApproximate},
                       {mid, spec.kv_len, Provenance::kExact}};
    if (rows_kept > 0 && rows_kept < spec.kv_len && random_.OneIn(2)) {
      spec.floors = {{rows_kept, rows_kept / 2, 1}};
    }
    spec.labels = {{"turn", std::to_string(next_op_)}};
    if (random_.OneIn(3)) spec.session_class = SessionClass::kCache;
    if (random_.OneIn(3)) spec.ttl_seconds = 100'000;
    if (spec.kv_len > 0 && random_.OneIn(3)) {
      spec.snapshot = {{3, 50, {spec.kv_len - 1, spec.kv_len}},
                       {9, 70'000, {0, random_.Between(1, 40)}}};
    }
    std::vector<Attachment> attachments;
    if (random_.OneIn(2)) {
      attachments.push_back({AttachmentKind::kWitness, {{0, {1, 2}}, {5, {}}}});
    }
    if (random_.OneIn(2)) {
      attachments.push_back(Bytes(AttachmentKind::kClientState, "state"));
    }
    ASSERT_OK(Suspend(store_, spec, next_op_, std::move(attachments)));
  }

  testing::Random& random_;
  SessionStore* const store_;
  const RecordLayout layout_;
  std::vector<SessionKey> keys_;
  uint64_t next_op_ = 0;
};

class ContainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(from_, OpenStore(from_dir_.path()));
    ASSERT_OK_AND_ASSIGN(to_, OpenStore(to_dir_.path()));
  }
  // A session of three blocks and a tail, with everything there is.
  void Small() {
    SuspendSpec spec = Spec("small", 0, 0, 40, "create");
    spec.new_tokens.spans = {{2, 12, "adapter", false},
                             {13, 19, "image", true}};
    spec.labels = {{"team", "red"}};
    spec.snapshot = {{2, 50, {38, 40}}};
    ASSERT_OK(Suspend(from_.get(), spec, 1,
                      {Bytes(AttachmentKind::kWitness, "witness"),
                       Bytes(AttachmentKind::kClientState, "state")}));
    spec = Spec("small", 1, 40, 12, "more");
    spec.kv_len = 51;
    spec.provenance = {{40, 51, Provenance::kApproximate}};
    spec.floors = {{40, 20, 1}};
    ASSERT_OK(Suspend(from_.get(), spec, 2,
                      {Bytes(AttachmentKind::kWitness, "witness"),
                       Bytes(AttachmentKind::kClientState, "state")}));
    ASSERT_OK_AND_ASSIGN(small_, Export(from_.get(), Key("small")));
  }

  const testing::TempDir from_dir_;
  const testing::TempDir to_dir_;
  std::unique_ptr<SessionStore> from_;
  std::unique_ptr<SessionStore> to_;
  ContainerBytes small_;
};

TEST_F(ContainerTest, RandomSessionsArriveAsTheyWere) {
  testing::Random random;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE("seed " + std::to_string(testing::TestSeed()) + " round " +
                 std::to_string(round));
    const testing::TempDir dirs[2];
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SessionStore> from,
                         OpenStore(dirs[0].path()));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SessionStore> to,
                         OpenStore(dirs[1].path()));
    const auto memory = MakeMemorySessionStore();
    RandomSessions sessions(&random, from.get());
    ASSERT_NO_FATAL_FAILURE(sessions.Make());
    // The other store may cut blocks otherwise.
    const uint32_t block_size =
        random.OneIn(2) ? 0 : static_cast<uint32_t>(4 * random.Between(4, 12));
    for (const SessionKey& key : sessions.keys()) {
      ASSERT_OK_AND_ASSIGN(const ContainerBytes bytes, Export(from.get(), key));
      EXPECT_OK(CheckContainer(bytes));
      const size_t step = random.OneIn(2) ? SIZE_MAX : random.Between(1, 5000);
      for (SessionStore* store :
           std::vector<SessionStore*>{to.get(), memory.get()}) {
        ASSERT_OK_AND_ASSIGN(
            const SuspendReceipt receipt,
            Import(store, bytes, {.block_size = block_size}, step));
        ASSERT_NO_FATAL_FAILURE(ExpectMoved(from.get(), key, store, key));
        ASSERT_OK_AND_ASSIGN(const SessionInfo info, store->Describe(key));
        EXPECT_EQ(receipt.version, info.version);
      }
      // What it remembers came along, and the import stands behind it.
      ASSERT_OK_AND_ASSIGN(const auto a, from->Open(key));
      ASSERT_OK_AND_ASSIGN(const auto b, to->Open(key));
      std::vector<Operation> operations = b->operations();
      EXPECT_EQ(operations.back().verb, Verb::kImport);
      operations.pop_back();
      EXPECT_EQ(operations, a->operations());
    }
    ExpectSound(from.get());
    ExpectSound(to.get());
    ExpectNothingLeaks(to.get());
  }
}

TEST_F(ContainerTest, EveryFlippedByteIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Small());
  ASSERT_OK(CheckContainer(small_));
  for (size_t i = 0; i < small_.size(); ++i) {
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      ContainerBytes bytes = small_;
      bytes[i] ^= flip;
      EXPECT_THAT(CheckContainer(bytes),
                  HasStatus(absl::StatusCode::kDataLoss, "container"))
          << "byte " << i;
    }
  }
}

TEST_F(ContainerTest, EveryTruncationAndWhatIsTooMuchIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Small());
  for (size_t n = 0; n < small_.size(); ++n) {
    EXPECT_THAT(CheckContainer(std::span(small_).first(n)),
                HasStatus(absl::StatusCode::kDataLoss,
                          "ends after byte " + std::to_string(n)));
  }
  ContainerBytes longer = small_;
  longer.push_back(0);
  EXPECT_THAT(CheckContainer(longer),
              HasStatus(absl::StatusCode::kDataLoss,
                        "byte " + std::to_string(small_.size()) +
                            ": got 1 bytes behind its end"));
}

// Changes one field of every piece in turn, with right checksums.
TEST_F(ContainerTest, PiecesThatAreWellMadeButWrongAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Small());
  const std::vector<std::function<void(PieceHeader*)>> changes = {
      [](auto* p) { p->kind = static_cast<PieceKind>(9); },
      [](auto* p) { ++p->block; },
      [](auto* p) { ++p->id; },
      [](auto* p) { ++p->first; },
      [](auto* p) { ++p->n_rows; },
      [](auto* p) { ++p->row_bytes; },
      [](auto* p) { ++p->bytes; },
      [](auto* p) { p->bytes = UINT64_MAX; },
      [](auto* p) { ++p->checksum; }};
  for (size_t at = 0; at < small_.size();) {
    const auto head = std::span(small_).subspan(at, kPieceHeaderBytes);
    ASSERT_OK_AND_ASSIGN(const PieceHeader piece, DecodePieceHeader(head));
    for (size_t i = 0; i < changes.size(); ++i) {
      PieceHeader changed = piece;
      changes[i](&changed);
      ContainerBytes bytes = small_;
      const std::string text = EncodePieceHeader(changed);
      std::copy(text.begin(), text.end(), bytes.begin() + at);
      EXPECT_THAT(CheckContainer(bytes), HasCode(absl::StatusCode::kDataLoss))
          << PieceName(piece) << " change " << i;
    }
    at += kPieceHeaderBytes + piece.bytes;
  }
}

TEST_F(ContainerTest, AnotherFormatVersionIsNamed) {
  ASSERT_NO_FATAL_FAILURE(Small());
  ContainerBytes bytes = small_;
  bytes[4] = 2;
  const uint64_t sum = Xxh3(std::span(bytes).first(48));
  for (int i = 0; i < 8; ++i)
    bytes[48 + i] = static_cast<uint8_t>(sum >> 8 * i);
  EXPECT_THAT(CheckContainer(bytes),
              HasStatus(absl::StatusCode::kFailedPrecondition,
                        "container byte 0 (header): got container format "
                        "version 2, this build reads 1"));
}

// A rows piece of another session in place of one: only the chain sees it.
TEST_F(ContainerTest, PiecesOfAnotherSessionAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Small());
  ASSERT_OK(Suspend(from_.get(), Spec("twin", 0, 0, 51, "create"), 3));
  ASSERT_OK_AND_ASSIGN(const ContainerBytes twin,
                       Export(from_.get(), Key("twin")));
  const std::vector<uint64_t> a = BoundariesOf(small_);
  const std::vector<uint64_t> b = BoundariesOf(twin);
  ContainerBytes mixed = small_;
  std::copy(twin.begin() + b[1], twin.begin() + b[2], mixed.begin() + a[1]);
  EXPECT_THAT(CheckContainer(mixed), HasStatus(absl::StatusCode::kDataLoss,
                                               "the digest over all bytes"));
}

TEST_F(ContainerTest, GoesOnAtEveryBlockWithTheSameBytes) {
  ASSERT_NO_FATAL_FAILURE(Small());
  const std::vector<uint64_t> boundaries = BoundariesOf(small_);
  ASSERT_EQ(boundaries.size(), 5);  // four blocks and the tail
  for (uint64_t block = 1; block < boundaries.size(); ++block) {
    const ContainerBytes rest(small_.begin() + boundaries[block], small_.end());
    ContainerOptions options{.from_block = block,
                             .model_layout = "layout of the model"};
    ASSERT_OK_AND_ASSIGN(ContainerBytes bytes,
                         Export(from_.get(), Key("small"), options));
    EXPECT_EQ(bytes, rest);
    options.chain = ChainAt(small_, boundaries[block]);
    ASSERT_OK_AND_ASSIGN(bytes, Export(from_.get(), Key("small"), options));
    EXPECT_EQ(bytes, rest);
    // A chain of something else gives an end that fits nowhere.
    (*options.chain)[0] ^= 1;
    ASSERT_OK_AND_ASSIGN(bytes, Export(from_.get(), Key("small"), options));
    EXPECT_NE(bytes, rest);
  }
  EXPECT_THAT(Export(from_.get(), Key("small"), {.from_block = 5}),
              HasStatus(absl::StatusCode::kOutOfRange, "from block 5"));
}

TEST_F(ContainerTest, ABrokenImportGoesOnBehindItsWholeBlocks) {
  ASSERT_NO_FATAL_FAILURE(Small());
  for (size_t broken = 0; broken <= small_.size(); broken += 131) {
    SCOPED_TRACE(broken);
    auto import = NewImport(to_.get());
    ASSERT_OK(FeedAll(import.get(), std::span(small_).first(broken)));
    std::span<const uint8_t> rest = small_;
    if (import->n_blocks() > 0 && !import->receipt().has_value()) {
      rest = rest.subspan(BoundariesOf(small_)[import->n_blocks()]);
      EXPECT_EQ(import->chain(), ChainAt(small_, small_.size() - rest.size()));
      import->BackToBoundary();
    } else if (!import->receipt().has_value()) {
      import = NewImport(to_.get());
    } else {
      rest = {};
    }
    ASSERT_OK(FeedAll(import.get(), rest));
    ASSERT_OK(import->Finish());
    import.reset();
    ASSERT_NO_FATAL_FAILURE(
        ExpectMoved(from_.get(), Key("small"), to_.get(), Key("small")));
    ASSERT_OK(to_->Erase({Key("small"), 2, "rm" + std::to_string(broken)}));
    ASSERT_NO_FATAL_FAILURE(ExpectNothingLeaks(to_.get()));
  }
}

TEST_F(ContainerTest, ABlockThatComesAgainMustBeTheSame) {
  ASSERT_NO_FATAL_FAILURE(Small());
  // The same outline, other rows.
  ASSERT_OK(from_->Erase({Key("small"), 2, "rm"}));
  const std::vector<uint64_t> boundaries = BoundariesOf(small_);
  const auto import = NewImport(to_.get());
  // One whole piece of block 1 has come.
  const size_t broken = boundaries[1] + kPieceHeaderBytes + 16 * 24;
  ASSERT_OK(FeedAll(import.get(), std::span(small_).first(broken)));
  import->BackToBoundary();
  ContainerBytes other = small_;
  uint8_t* const head = other.data() + boundaries[1];
  head[kPieceHeaderBytes] ^= 1;
  ASSERT_OK_AND_ASSIGN(
      PieceHeader piece,
      DecodePieceHeader(std::span(other).subspan(boundaries[1], 56)));
  piece.checksum = Xxh3({head + kPieceHeaderBytes, piece.bytes});
  const std::string text = EncodePieceHeader(piece);
  std::copy(text.begin(), text.end(), head);
  EXPECT_THAT(FeedAll(import.get(), std::span(other).subspan(boundaries[1])),
              HasStatus(absl::StatusCode::kDataLoss,
                        "rows of slot 0 in block 1: came again with checksum"));
}

TEST_F(ContainerTest, ASuspendMeanwhileChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(Small());
  for (const char* what : {"suspend", "rewind", "erase"}) {
    SCOPED_TRACE(what);
    ASSERT_OK_AND_ASSIGN(const ContainerBytes before,
                         Export(from_.get(), Key("small")));
    ASSERT_OK_AND_ASSIGN(const auto lease, from_->Open(Key("small")));
    const uint64_t version = lease->info().version;
    const uint64_t n = lease->info().n_tokens;
    ContainerBytes bytes;
    int calls = 0;
    ASSERT_OK(WriteContainer(
        lease.get(), {.model_layout = "layout of the model"},
        [&](std::span<const uint8_t> part) {
          bytes.insert(bytes.end(), part.begin(), part.end());
          if (++calls != 9) return true;
          const MutateSpec spec{Key("small"), version, what};
          if (what == std::string("suspend")) {
            EXPECT_OK(
                Suspend(from_.get(), Spec("small", version, n, 20, what), 4));
          } else if (what == std::string("rewind")) {
            EXPECT_OK(from_->Rewind(spec, 1));
          } else {
            EXPECT_OK(from_->Erase(spec));
          }
          EXPECT_OK(Settle(from_.get()));
          return true;
        }));
    EXPECT_EQ(bytes, before);
    EXPECT_GT(calls, 9);
  }
}

TEST_F(ContainerTest, ExportStopsWhenNobodyReads) {
  ASSERT_NO_FATAL_FAILURE(Small());
  for (const uint64_t from_block : {0, 3}) {
    ASSERT_OK_AND_ASSIGN(const auto lease, from_->Open(Key("small")));
    int calls = 0;
    EXPECT_THAT(
        WriteContainer(lease.get(), {.from_block = from_block},
                       [&](std::span<const uint8_t>) { return ++calls < 3; }),
        HasCode(absl::StatusCode::kCancelled));
    EXPECT_EQ(calls, 3);
  }
}

TEST_F(ContainerTest, DamageIsFoundBeforeItsBytesLeave) {
  ASSERT_NO_FATAL_FAILURE(Small());
  const std::vector<uint64_t> boundaries = BoundariesOf(small_);
  from_.reset();
  {
    RawEnv raw(from_dir_.path());
    const std::vector<RecordNumber> chain =
        raw.Chain(raw.Manifest(Key("small")).tip);
    raw.FlipRecordBit(
        chain[1], raw.Header(chain[1]).Find(SectionKind::kRows, 2)->offset, 3);
  }
  ASSERT_OK_AND_ASSIGN(from_, OpenStore(from_dir_.path()));
  ContainerBytes bytes;
  const auto write = [&]() -> absl::Status {
    TORPOR_ASSIGN_OR_RETURN(const auto lease, from_->Open(Key("small")));
    bytes.clear();
    return WriteContainer(lease.get(), {.model_layout = "layout of the model"},
                          [&](std::span<const uint8_t> part) {
                            bytes.insert(bytes.end(), part.begin(), part.end());
                            return true;
                          });
  };
  EXPECT_THAT(write(), HasStatus(absl::StatusCode::kDataLoss, "record"));
  EXPECT_GE(bytes.size(), boundaries[1]);
  EXPECT_LT(bytes.size(), boundaries[2]);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), small_.begin()));
  // Known from now on: no byte leaves.
  EXPECT_THAT(write(), HasStatus(absl::StatusCode::kDataLoss,
                                 "tokens from 16 on are damaged"));
  EXPECT_EQ(bytes.size(), 0);
}

}  // namespace
}  // namespace torpor::store
