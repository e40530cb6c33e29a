// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of containers: sessions to move, whole containers as
// bytes, imports of them.

#ifndef TORPOR_TESTS_STORE_CONTAINER_FIXTURE_H_
#define TORPOR_TESTS_STORE_CONTAINER_FIXTURE_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/container_reader.h"
#include "store/container_writer.h"
#include "store/session_import.h"
#include "tests/store/lmdb_fixture.h"

namespace torpor::store {

using ContainerBytes = std::vector<uint8_t>;

inline absl::StatusOr<ContainerBytes> Export(
    SessionStore* store, const SessionKey& key,
    const ContainerOptions& options = {.model_layout = "layout of the model"}) {
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<SessionLease> lease,
                          store->Open(key));
  ContainerBytes bytes;
  TORPOR_RETURN_IF_ERROR(
      WriteContainer(lease.get(), options, [&](std::span<const uint8_t> part) {
        bytes.insert(bytes.end(), part.begin(), part.end());
        return true;
      }));
  return bytes;
}

struct ImportOptions {
  // Empty: the exported name.
  std::string name;
  std::string operation_id = "import";
  uint32_t tenant = 0;
  // Of the store that takes it; 0: as exported.
  uint32_t block_size = 0;
};

inline std::unique_ptr<SessionImport> NewImport(
    SessionStore* store, const ImportOptions& options = {}) {
  return std::make_unique<SessionImport>(
      store,
      [options](const ContainerOutline&,
                SuspendSpec spec) -> absl::StatusOr<SuspendSpec> {
        spec.session.tenant = options.tenant;
        if (!options.name.empty()) spec.session.id = options.name;
        spec.operation_id = options.operation_id;
        if (options.block_size != 0)
          spec.layout.block_size = options.block_size;
        return spec;
      },
      [](const Attachment&) { return absl::OkStatus(); });
}

inline absl::Status FeedAll(SessionImport* import,
                            std::span<const uint8_t> bytes,
                            size_t step = SIZE_MAX) {
  while (!bytes.empty()) {
    const size_t n = std::min(step, bytes.size());
    TORPOR_RETURN_IF_ERROR(import->Feed(bytes.first(n), nullptr));
    bytes = bytes.subspan(n);
  }
  return absl::OkStatus();
}

inline absl::StatusOr<SuspendReceipt> Import(SessionStore* store,
                                             const ContainerBytes& bytes,
                                             const ImportOptions& options = {},
                                             size_t step = SIZE_MAX) {
  const auto import = NewImport(store, options);
  TORPOR_RETURN_IF_ERROR(FeedAll(import.get(), bytes, step));
  TORPOR_RETURN_IF_ERROR(import->Finish());
  return *import->receipt();
}

// A reader without a visitor over all of it.
inline absl::Status CheckContainer(std::span<const uint8_t> bytes) {
  ContainerReader reader(nullptr);
  TORPOR_RETURN_IF_ERROR(reader.Feed(bytes));
  return reader.Finish();
}

// Where blocks begin, and then the tail.
inline std::vector<uint64_t> BoundariesOf(const ContainerBytes& bytes) {
  struct Boundaries final : ContainerVisitor {
    absl::Status OnOutline(ContainerOutline) override { return Add(); }
    absl::Status OnPiece(const PieceHeader&,
                         std::span<const uint8_t>) override {
      return absl::OkStatus();
    }
    absl::Status OnBlock(uint64_t) override { return Add(); }
    absl::Status OnEnd() override { return absl::OkStatus(); }
    absl::Status Add() {
      at.push_back(reader->boundary_offset());
      return absl::OkStatus();
    }
    ContainerReader* reader = nullptr;
    std::vector<uint64_t> at;
  } boundaries;
  ContainerReader reader(&boundaries);
  boundaries.reader = &reader;
  EXPECT_OK(reader.Feed(bytes));
  return boundaries.at;
}

// The chain's value behind `n` blocks.
inline Hash256 ChainAt(const ContainerBytes& bytes, uint64_t offset) {
  ContainerReader reader(nullptr);
  EXPECT_OK(reader.Feed(std::span(bytes).first(offset)));
  EXPECT_EQ(reader.boundary_offset(), offset);
  return reader.chain();
}

// Everything that must have moved is here as it was there.
inline void ExpectMoved(SessionStore* from, const SessionKey& key,
                        SessionStore* to, const SessionKey& name) {
  ASSERT_OK_AND_ASSIGN(const auto a, from->Open(key));
  ASSERT_OK_AND_ASSIGN(const auto b, to->Open(name));
  ASSERT_OK_AND_ASSIGN(const Content was, ReadAll(a.get(), a->layout()));
  ASSERT_OK_AND_ASSIGN(const Content is, ReadAll(b.get(), b->layout()));
  EXPECT_TRUE(was == is);
  const SessionInfo& x = a->info();
  const SessionInfo& y = b->info();
  EXPECT_EQ(x.version, y.version);
  EXPECT_EQ(x.n_tokens, y.n_tokens);
  EXPECT_EQ(x.kv_len, y.kv_len);
  EXPECT_EQ(x.usable_len, y.usable_len);
  EXPECT_EQ(x.numerics_id, y.numerics_id);
  EXPECT_EQ(x.holder, y.holder);
  EXPECT_EQ(x.session_class, y.session_class);
  EXPECT_EQ(x.created_at_us, y.created_at_us);
  EXPECT_EQ(x.updated_at_us, y.updated_at_us);
  EXPECT_EQ(x.expires_at_us, y.expires_at_us);
  EXPECT_EQ(x.labels, y.labels);
  EXPECT_EQ(x.fingerprint, y.fingerprint);
  EXPECT_EQ(x.client_state_bytes, y.client_state_bytes);
  EXPECT_EQ(x.snapshot_bytes, y.snapshot_bytes);
  ASSERT_OK_AND_ASSIGN(const auto slots, a->SnapshotSlots());
  ASSERT_OK_AND_ASSIGN(const auto moved_slots, b->SnapshotSlots());
  EXPECT_EQ(slots, moved_slots);
  for (const SnapshotSlot& slot : slots) {
    std::vector<uint8_t> rows(slot.rows.size() * slot.row_bytes);
    std::vector<uint8_t> moved(rows.size());
    EXPECT_OK(a->ReadSnapshot(slot.id, slot.rows, rows));
    EXPECT_OK(b->ReadSnapshot(slot.id, slot.rows, moved));
    EXPECT_EQ(rows, moved);
  }
}

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_CONTAINER_FIXTURE_H_
