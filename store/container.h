// SPDX-License-Identifier: Apache-2.0
//
// A session as one run of bytes, to move it from store to store: its outline
// (header, manifest, tokens, index), its rows block by block from the root, and
// its tail (attachments, snapshot rows, end). Every piece has a checksum; a
// chain of digests runs through all bytes, and its value behind a block is all
// that is needed to go on there. docs/FORMAT.md gives the bytes. All functions
// are pure.
//
// The digests are plain BLAKE2b-256: the reader is another store, which has no
// key of this one's, and a tenant's secret never leaves its node. They find
// damage and mixed-up transfers; who needs to know where bytes come from moves
// them over something that says so.

#ifndef TORPOR_STORE_CONTAINER_H_
#define TORPOR_STORE_CONTAINER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/block_id.h"
#include "store/session_store.h"
#include "store/types.h"

namespace torpor::store {

inline constexpr uint16_t kContainerFormatVersion = 1;
inline constexpr uint32_t kPieceMagic = 0x58525054;  // "TPRX"
inline constexpr size_t kPieceHeaderBytes = 56;
// Token ids of a piece, so that neither side holds more of a long session.
inline constexpr uint64_t kTokensPerPiece = 65'536;
// Larger ones are refused: a writer never makes them.
inline constexpr uint64_t kMaxPieceBytes = uint64_t{1} << 30;
// Snapshot rows are cut into pieces of about this.
inline constexpr uint64_t kSnapshotPieceBytes = uint64_t{1} << 20;

// Numbers are frozen.
enum class PieceKind : uint8_t {
  kHeader = 1,
  kManifest = 2,
  // Ids and extra-key spans of tokens [first, first + n_rows).
  kTokens = 3,
  kIndex = 4,
  // Rows [first, first + n_rows) of compact slot `id` in block `block`.
  kRows = 5,
  // A section, named `id`, of the attachment of kind `block`.
  kAttachment = 6,
  // Rows of snapshot slot `id`.
  kSnapshotRows = 7,
  kEnd = 8,
};

struct PieceHeader {
  PieceKind kind = PieceKind::kHeader;
  uint32_t block = 0;
  uint32_t id = 0;
  uint64_t first = 0;
  uint32_t n_rows = 0;
  uint32_t row_bytes = 0;
  // Of the payload, which follows the header, and its XXH3-64.
  uint64_t bytes = 0;
  uint64_t checksum = 0;

  friend bool operator==(const PieceHeader&, const PieceHeader&) = default;
};

std::string EncodePieceHeader(const PieceHeader& piece);
// kDataLoss when magic or checksum are wrong; kFailedPrecondition when a
// newer version. REQUIRES: bytes.size() == kPieceHeaderBytes.
absl::StatusOr<PieceHeader> DecodePieceHeader(std::span<const uint8_t> bytes);
// "rows of slot 2 in block 7", for errors.
std::string PieceName(const PieceHeader& piece);

// What the session is; enough to judge whether it may come in.
struct ContainerHeader {
  std::string session;
  uint64_t version = 0;
  std::string model;
  // The service's own: the fingerprint's fields, the model's layout in full.
  std::string fingerprint_fields;
  std::string model_layout;
  RecordLayout layout;
  uint64_t n_tokens = 0;
  uint64_t kv_len = 0;

  // Blocks with rows.
  [[nodiscard]] uint64_t n_blocks() const {
    return kv_len / layout.block_size +
           (kv_len % layout.block_size != 0 ? 1 : 0);
  }
};

struct AttachmentOutline {
  AttachmentKind kind = AttachmentKind::kWitness;
  uint32_t id = 0;
  uint64_t bytes = 0;

  friend bool operator==(const AttachmentOutline&,
                         const AttachmentOutline&) = default;
};

// The rest of what its manifest says. Pins stay behind: they are promises of
// the store that gave them.
struct ContainerManifest {
  SessionClass session_class = SessionClass::kDurable;
  int64_t created_at_us = 0;
  int64_t updated_at_us = 0;
  int64_t expires_at_us = 0;
  std::string numerics_id;
  std::string holder;
  Labels labels;
  std::vector<ProvenanceRange> provenance;
  std::vector<Floor> floors;
  std::vector<Operation> operations;
  // In the order of their pieces.
  std::vector<AttachmentOutline> sections;
  std::vector<SnapshotSlot> snapshot;
};

std::string EncodeContainerHeader(const ContainerHeader& header);
// kDataLoss when malformed or impossible.
absl::StatusOr<ContainerHeader> DecodeContainerHeader(
    std::span<const uint8_t> bytes);
std::string EncodeContainerManifest(const ContainerManifest& manifest);
absl::StatusOr<ContainerManifest> DecodeContainerManifest(
    std::span<const uint8_t> bytes);
std::string EncodeTokenPiece(const TokenRun& run);
// Appends the `n` tokens of a piece. kDataLoss when malformed.
absl::Status DecodeTokenPiece(std::span<const uint8_t> bytes, uint64_t n,
                              TokenRun* run);

// The pieces of a block and of the tail without its end, in order: all of a
// header but the checksum.
std::vector<PieceHeader> BlockPieces(const ContainerHeader& header,
                                     uint64_t block);
std::vector<PieceHeader> TailPieces(const ContainerManifest& manifest);

// Where each block begins, and then the tail, counted from the first block.
std::string EncodeIndex(const ContainerHeader& header);
// Bytes of the pieces, headers included.
uint64_t PieceBytes(std::span<const PieceHeader> pieces);

// The digest of everything so far. Not thread-safe.
class ContainerChain {
 public:
  ContainerChain() : hash_(KeyedHash::Unkeyed()) {}
  // Goes on from the value behind a block.
  explicit ContainerChain(const Hash256& value) : ContainerChain() {
    hash_.Update(value);
  }

  void Update(std::span<const uint8_t> bytes) { hash_.Update(bytes); }
  // Closes a link (the outline, a block, the tail) and returns its value.
  Hash256 Close() {
    const Hash256 value = hash_.Finish();
    *this = ContainerChain(value);
    return value;
  }

 private:
  KeyedHash hash_;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_CONTAINER_H_
