// SPDX-License-Identifier: Apache-2.0
//
// Reads a container as it arrives, in runs of any length: every byte is judged
// before it is passed on, and what cannot be is refused with its place. Holds
// one piece at a time beside the outline. Not thread-safe.

#ifndef TORPOR_STORE_CONTAINER_READER_H_
#define TORPOR_STORE_CONTAINER_READER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "store/container.h"
#include "store/types.h"

namespace torpor::store {

struct ContainerOutline {
  ContainerHeader header;
  ContainerManifest manifest;
  TokenRun tokens;
};

// Who takes the contents. An error ends the reading and is returned as it is.
class ContainerVisitor {
 public:
  virtual ~ContainerVisitor() = default;
  // Once, before any row.
  virtual absl::Status OnOutline(ContainerOutline outline) = 0;
  // Payload of a kRows, kAttachment or kSnapshotRows piece, verified.
  virtual absl::Status OnPiece(const PieceHeader& piece,
                               std::span<const uint8_t> payload) = 0;
  // Every piece of the block has come.
  virtual absl::Status OnBlock(uint64_t block) = 0;
  // All of it has come, and its digest is right.
  virtual absl::Status OnEnd() = 0;
};

class ContainerReader {
 public:
  // `visitor` outlives the reader; null only checks.
  explicit ContainerReader(ContainerVisitor* visitor) : visitor_(visitor) {}

  // kDataLoss for damage, a gap, a wrong order or bytes behind the end;
  // kFailedPrecondition for a newer format version. Errors name the byte.
  absl::Status Feed(std::span<const uint8_t> bytes);
  // kDataLoss when the end is not there yet.
  [[nodiscard]] absl::Status Finish() const;
  [[nodiscard]] bool done() const { return stage_ == Stage::kDone; }

  // Whole blocks so far; 0 also while the outline is not whole.
  [[nodiscard]] uint64_t n_blocks() const { return boundary_.n_blocks; }
  // The chain's value behind the outline, once that is whole; and behind the
  // whole blocks.
  [[nodiscard]] const std::optional<Hash256>& outline_chain() const {
    return outline_chain_;
  }
  [[nodiscard]] const Hash256& chain() const { return boundary_.chain; }
  // Bytes read, and those up to the end of the whole blocks.
  [[nodiscard]] uint64_t offset() const { return offset_; }
  [[nodiscard]] uint64_t boundary_offset() const { return boundary_.offset; }
  // Of the container, once the outline is whole; else 0.
  [[nodiscard]] uint64_t total_bytes() const { return total_bytes_; }
  // Valid once the header has come.
  [[nodiscard]] const ContainerHeader& header() const { return header_; }

  // Forgets what came behind the whole blocks: the next bytes are those from
  // boundary_offset() on. REQUIRES: n_blocks() > 0.
  void BackToBoundary();

 private:
  enum class Stage {
    kHeader,
    kManifest,
    kTokens,
    kIndex,
    kBlocks,
    kTail,
    kEnd,
    kDone
  };
  struct Boundary {
    uint64_t n_blocks = 0;
    Hash256 chain{};
    uint64_t offset = 0;
  };

  // What the next piece must be; 0 bytes = of any size.
  [[nodiscard]] PieceHeader Expected() const;
  absl::Status CheckExpected(const PieceHeader& expected) const;
  absl::Status TakeHeader();
  absl::Status TakePayload(std::span<const uint8_t> payload);
  absl::Status TakeOutlinePiece(std::span<const uint8_t> payload);
  absl::Status OutlineWhole();
  // The pieces behind the boundary: of the next block, or of the tail.
  void EnterBlock();
  // Past what is whole, blocks without pieces too, to the next piece or the
  // end.
  absl::Status CloseBlocks();
  absl::Status CheckEnd(std::span<const uint8_t> payload);
  [[nodiscard]] absl::Status BehindEnd(size_t n) const;
  // A complaint about the piece under way.
  [[nodiscard]] absl::Status At(const absl::Status& status) const;

  ContainerVisitor* const visitor_;
  Stage stage_ = Stage::kHeader;
  ContainerHeader header_;
  ContainerManifest manifest_;
  TokenRun tokens_;
  uint64_t n_tokens_ = 0;
  // Pieces of the current block or of the tail, and which comes next.
  std::vector<PieceHeader> pieces_;
  size_t next_piece_ = 0;

  std::vector<uint8_t> head_;
  // Set while a payload is under way.
  std::optional<PieceHeader> piece_;
  std::vector<uint8_t> payload_;

  ContainerChain chain_;
  std::optional<Hash256> outline_chain_;
  Boundary boundary_;
  Hash256 end_digest_{};
  uint64_t offset_ = 0;
  // Where the piece under way begins.
  uint64_t piece_offset_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_CONTAINER_READER_H_
