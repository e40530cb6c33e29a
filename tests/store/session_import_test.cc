// SPDX-License-Identifier: Apache-2.0
//
// What a store does with a container that is sound: admission, versions,
// sharing, repetition, and nothing left of what did not arrive.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/store/container_fixture.h"

namespace torpor::store {
namespace {

using testing::HasCode;
using testing::HasStatus;

class SessionImportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(from_, OpenStore(from_dir_.path()));
    ASSERT_OK_AND_ASSIGN(to_, OpenStore(to_dir_.path()));
    ASSERT_OK(Suspend(from_.get(), Spec("s", 0, 0, 200, "create"), 1,
                      {Bytes(AttachmentKind::kWitness, "witness")}));
    ASSERT_OK(Suspend(from_.get(), Spec("s", 1, 200, 10, "more"), 1));
    ASSERT_OK_AND_ASSIGN(bytes_, Export(from_.get(), Key("s")));
  }

  const testing::TempDir from_dir_;
  const testing::TempDir to_dir_;
  std::unique_ptr<SessionStore> from_;
  std::unique_ptr<SessionStore> to_;
  ContainerBytes bytes_;
};

TEST_F(SessionImportTest, KeepsItsVersionAndGoesOnFromThere) {
  ASSERT_OK(Import(to_.get(), bytes_));
  // A client that follows the session suspends as if nothing had happened.
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt next,
                       Suspend(to_.get(), Spec("s", 2, 210, 7, "next"), 1));
  EXPECT_EQ(next.version, 3);
  // Its last suspend there is known here.
  ASSERT_OK_AND_ASSIGN(const BeginResult repeated,
                       to_->Begin(Spec("s", 1, 200, 10, "more")));
  ASSERT_TRUE(repeated.receipt.has_value());
  EXPECT_EQ(repeated.receipt->version, 2);
  ExpectSound(to_.get());
}

TEST_F(SessionImportTest, VersionsOfDeletedSessionsDoNotLiftIt) {
  for (uint64_t version = 0; version < 5; ++version) {
    ASSERT_OK(Suspend(
        to_.get(), Spec("other", version, 0, 20, std::to_string(version)), 1));
  }
  ASSERT_OK(to_->Erase({Key("other"), 5, "rm"}));
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt receipt, Import(to_.get(), bytes_));
  EXPECT_EQ(receipt.version, 2);
}

// A container is not signed, and its version lifts that of every session to
// come, of any tenant, once the import is deleted.
TEST_F(SessionImportTest, AVersionAtTheEndOfNumbersIsRefused) {
  const auto import = [&](uint64_t version) {
    SessionImport import(
        to_.get(),
        [=](const ContainerOutline&,
            SuspendSpec spec) -> absl::StatusOr<SuspendSpec> {
          spec.operation_id = "import";
          spec.arrival->version = version;
          return spec;
        },
        [](const Attachment&) { return absl::OkStatus(); });
    return FeedAll(&import, bytes_);
  };
  for (const uint64_t version : {UINT64_MAX, kMaxGivenVersion + 1}) {
    EXPECT_THAT(import(version), HasStatus(absl::StatusCode::kInvalidArgument,
                                           "import: got version"));
  }
  ASSERT_OK(import(kMaxGivenVersion));
  ASSERT_OK(to_->Erase({Key("s"), kMaxGivenVersion, "rm"}));
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt receipt,
                       Suspend(to_.get(), Spec("s", 0, 0, 20, "create"), 1));
  EXPECT_EQ(receipt.version, kMaxFloorLift + 1);
  EXPECT_OK(Suspend(to_.get(), Spec("s", receipt.version, 20, 1, "more"), 1));
  // That one can be moved.
  ASSERT_OK_AND_ASSIGN(const ContainerBytes moved, Export(to_.get(), Key("s")));
  ASSERT_OK(from_->Erase({Key("s"), 2, "make room"}));
  EXPECT_OK(Import(from_.get(), moved));
}

TEST_F(SessionImportTest, BringsASessionThatWasRewoundToNothing) {
  ASSERT_OK(from_->Rewind({Key("s"), 2, "rewind"}, 0));
  ASSERT_OK_AND_ASSIGN(const ContainerBytes bytes,
                       Export(from_.get(), Key("s")));
  ASSERT_OK(Import(to_.get(), bytes));
  ASSERT_OK_AND_ASSIGN(const SessionInfo info, to_->Describe(Key("s")));
  EXPECT_EQ(info.version, 3);
  EXPECT_EQ(info.n_tokens, 0);
  EXPECT_OK(Suspend(to_.get(), Spec("s", 3, 0, 20, "again"), 1));
  ExpectNothingLeaks(to_.get());
}

TEST_F(SessionImportTest, TakesNobodysPlace) {
  ASSERT_OK(Suspend(to_.get(), Spec("s", 0, 0, 20, "mine"), 1));
  const auto import = NewImport(to_.get());
  EXPECT_THAT(FeedAll(import.get(), bytes_),
              HasStatus(absl::StatusCode::kAborted,
                        "expected version 0, it is at version 1, held by "
                        "'holder of mine'"));
  // Before the first row.
  EXPECT_EQ(import->n_blocks(), 0);
  EXPECT_OK(Import(to_.get(), bytes_, {.name = "another"}));
}

TEST_F(SessionImportTest, LosesARaceForItsName) {
  const auto import = NewImport(to_.get());
  const std::span<const uint8_t> all = bytes_;
  ASSERT_OK(FeedAll(import.get(), all.first(all.size() - 1)));
  ASSERT_OK(Suspend(to_.get(), Spec("s", 0, 0, 20, "mine"), 1));
  EXPECT_THAT(FeedAll(import.get(), all.last(1)),
              HasCode(absl::StatusCode::kAborted));
  ASSERT_OK_AND_ASSIGN(const SessionInfo info, to_->Describe(Key("s")));
  EXPECT_EQ(info.n_tokens, 20);
}

TEST_F(SessionImportTest, RepeatedItReturnsItsReceipt) {
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt first, Import(to_.get(), bytes_));
  const auto import = NewImport(to_.get());
  ASSERT_OK(FeedAll(import.get(), bytes_));
  ASSERT_OK(import->Finish());
  EXPECT_TRUE(import->repeated());
  // commit_us is not kept.
  SuspendReceipt again = *import->receipt();
  again.commit_us = first.commit_us;
  EXPECT_EQ(again, first);
  EXPECT_THAT(Import(to_.get(), bytes_, {.operation_id = "twice"}),
              HasCode(absl::StatusCode::kAborted));
  // A suspend under the same operation id is another operation.
  SuspendSpec spec = Spec("s", 0, 0, 20, "import");
  EXPECT_THAT(to_->Begin(spec).status(), HasCode(absl::StatusCode::kAborted));
}

TEST_F(SessionImportTest, SharesBlocksThatAreThere) {
  ASSERT_OK(Import(to_.get(), bytes_));
  const uint64_t records = to_->Stats().records;
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt receipt,
                       Import(to_.get(), bytes_, {.name = "again"}));
  EXPECT_EQ(receipt.blocks_shared, 13);
  EXPECT_EQ(receipt.blocks_written, 1);
  EXPECT_EQ(to_->Stats().records, records + 1);
  // Another tenant shares nothing.
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt theirs,
                       Import(to_.get(), bytes_, {.tenant = 1}));
  EXPECT_EQ(theirs.blocks_shared, 0);
  // Back in the store it came from.
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt home,
                       Import(from_.get(), bytes_, {.name = "home"}));
  EXPECT_EQ(home.blocks_shared, 13);
  ExpectSound(to_.get());
  ExpectSound(from_.get());
}

TEST_F(SessionImportTest, IsRefusedBeforeItsFirstRowWhenItDoesNotFit) {
  to_.reset();
  LmdbStoreOptions options = SmallStore(to_dir_.path());
  options.max_bytes = 80 * 1024;
  ASSERT_OK_AND_ASSIGN(to_, LmdbSessionStore::Open(options));
  const auto import = NewImport(to_.get());
  const std::span<const uint8_t> outline =
      std::span(bytes_).first(BoundariesOf(bytes_)[0]);
  EXPECT_THAT(FeedAll(import.get(), outline),
              HasCode(absl::StatusCode::kResourceExhausted));
  ExpectSound(to_.get());
}

TEST_F(SessionImportTest, WhatDidNotArriveLeavesNothing) {
  for (const size_t n : {bytes_.size() / 2, bytes_.size() - 1}) {
    auto import = NewImport(to_.get());
    ASSERT_OK(FeedAll(import.get(), std::span(bytes_).first(n)));
    EXPECT_THAT(import->Finish(),
                HasStatus(absl::StatusCode::kDataLoss, "ends after byte"));
    EXPECT_GE(import->n_blocks(), 5);
    EXPECT_THAT(to_->Describe(Key("s")), HasCode(absl::StatusCode::kNotFound));
    import.reset();
    ExpectSound(to_.get());
    EXPECT_EQ(to_->Stats().sessions, 0);
    EXPECT_EQ(to_->Stats().records, 0);
  }
}

TEST_F(SessionImportTest, BytesBehindTheEndPublishNothing) {
  ContainerBytes longer = bytes_;
  longer.push_back(0);
  EXPECT_THAT(Import(to_.get(), longer),
              HasStatus(absl::StatusCode::kDataLoss, "1 bytes behind its end"));
  EXPECT_THAT(to_->Describe(Key("s")), HasCode(absl::StatusCode::kNotFound));
}

TEST_F(SessionImportTest, OtherSlotsThanTheModelsAreRefused) {
  SessionImport import(
      to_.get(),
      [](const ContainerOutline&,
         SuspendSpec spec) -> absl::StatusOr<SuspendSpec> {
        spec.operation_id = "import";
        spec.layout.slots[0].row_bytes = 8;
        return spec;
      },
      [](const Attachment&) { return absl::OkStatus(); });
  EXPECT_THAT(FeedAll(&import, bytes_),
              HasStatus(absl::StatusCode::kInvalidArgument, "slots"));
}

TEST_F(SessionImportTest, AnAttachmentThatIsRefusedPublishesNothing) {
  auto import = std::make_unique<SessionImport>(
      to_.get(),
      [](const ContainerOutline&,
         SuspendSpec spec) -> absl::StatusOr<SuspendSpec> {
        spec.operation_id = "import";
        return spec;
      },
      [](const Attachment& a) {
        return a.kind == AttachmentKind::kWitness
                   ? absl::InvalidArgumentError("witness: not one")
                   : absl::OkStatus();
      });
  // Version 2 has no witness; fork the first cut, which has.
  EXPECT_OK(FeedAll(import.get(), bytes_));
  ASSERT_OK(Suspend(from_.get(), Spec("w", 0, 0, 20, "create"), 1,
                    {Bytes(AttachmentKind::kWitness, "witness")}));
  ASSERT_OK_AND_ASSIGN(const ContainerBytes with_witness,
                       Export(from_.get(), Key("w")));
  import = std::make_unique<SessionImport>(
      to_.get(),
      [](const ContainerOutline&,
         SuspendSpec spec) -> absl::StatusOr<SuspendSpec> {
        spec.operation_id = "import";
  return spec;
},
      [](const Attachment&) {
  return absl::InvalidArgumentError("witness: not one");
      });
EXPECT_THAT(FeedAll(import.get(), with_witness),
            HasStatus(absl::StatusCode::kInvalidArgument, "not one"));
EXPECT_THAT(to_->Describe(Key("w")), HasCode(absl::StatusCode::kNotFound));
}  // namespace

}  // namespace torpor::store
}  // namespace torpor::store
