// SPDX-License-Identifier: Apache-2.0

#include "store/container_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/codec.h"

namespace torpor::store {
namespace {

// Header, manifest, tokens and index say their own size; buffers grow with what
// arrives, not with what is said.
constexpr uint64_t kMaxOutlinePieceBytes = uint64_t{256} << 20;

}  // namespace

absl::Status ContainerReader::Feed(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    if (stage_ == Stage::kDone) {
      return absl::DataLossError(
          absl::StrFormat("container byte %d: got %d bytes behind its end",
                          offset_, bytes.size()));
    }
    if (!piece_.has_value()) {
      if (head_.empty()) piece_offset_ = offset_;
      const size_t n = std::min(kPieceHeaderBytes - head_.size(), bytes.size());
      head_.insert(head_.end(), bytes.begin(), bytes.begin() + n);
      offset_ += n;
      bytes = bytes.subspan(n);
      if (head_.size() < kPieceHeaderBytes) return absl::OkStatus();
      TORPOR_RETURN_IF_ERROR(TakeHeader());
      if (piece_->bytes == 0) TORPOR_RETURN_IF_ERROR(TakePayload({}));
      continue;
    }
    const size_t n =
        std::min<uint64_t>(piece_->bytes - payload_.size(), bytes.size());
    const std::span<const uint8_t> part = bytes.first(n);
    offset_ += n;
    bytes = bytes.subspan(n);
    // Before the visitor hears that all is well.
    if (stage_ == Stage::kEnd && payload_.size() + n == piece_->bytes &&
        !bytes.empty()) {
      return BehindEnd(bytes.size());
    }
    // A payload that came in one run needs no copy.
    if (n == piece_->bytes) {
      TORPOR_RETURN_IF_ERROR(TakePayload(part));
      continue;
    }
    payload_.insert(payload_.end(), part.begin(), part.end());
    if (payload_.size() == piece_->bytes) {
      TORPOR_RETURN_IF_ERROR(TakePayload(payload_));
    }
  }
  return absl::OkStatus();
}

absl::Status ContainerReader::BehindEnd(size_t n) const {
  return absl::DataLossError(absl::StrFormat(
      "container byte %d: got %d bytes behind its end", offset_, n));
}

absl::Status ContainerReader::Finish() const {
  if (done()) return absl::OkStatus();
  const PieceHeader wanted = piece_.has_value() ? *piece_ : Expected();
  return absl::DataLossError(absl::StrFormat(
      "container ends after byte %d, inside or before its %s; truncated",
      offset_, PieceName(wanted)));
}

absl::Status ContainerReader::At(const absl::Status& status) const {
  return absl::Status(
      status.code(),
      absl::StrFormat("container byte %d (%s): %s", piece_offset_,
                      PieceName(Expected()), ToStd(status.message())));
}

PieceHeader ContainerReader::Expected() const {
  switch (stage_) {
    case Stage::kHeader:
      return {.kind = PieceKind::kHeader};
    case Stage::kManifest:
      return {.kind = PieceKind::kManifest};
    case Stage::kTokens:
      return {.kind = PieceKind::kTokens,
              .first = n_tokens_,
              .n_rows = static_cast<uint32_t>(
                  std::min(kTokensPerPiece, header_.n_tokens - n_tokens_))};
    case Stage::kIndex:
      return {.kind = PieceKind::kIndex,
              .bytes = sizeof(uint64_t) * (header_.n_blocks() + 1)};
    case Stage::kBlocks:
    case Stage::kTail:
      return pieces_[next_piece_];
    case Stage::kEnd:
    case Stage::kDone:
      break;
  }
  return {.kind = PieceKind::kEnd, .bytes = sizeof(Hash256)};
}

absl::Status ContainerReader::CheckExpected(const PieceHeader& expected) const {
  PieceHeader got = *piece_;
  got.checksum = 0;
  const bool any_size = stage_ <= Stage::kTokens;
  if (any_size && got.bytes <= kMaxOutlinePieceBytes) got.bytes = 0;
  if (got == expected) return absl::OkStatus();
  return At(absl::DataLossError(absl::StrFormat(
      "got %s: rows [%d, +%d) of %d bytes, %d bytes in all; wanted rows [%d, "
      "+%d) of %d bytes, %d in all",
      PieceName(got), got.first, got.n_rows, got.row_bytes, piece_->bytes,
      expected.first, expected.n_rows, expected.row_bytes, expected.bytes)));
}

absl::Status ContainerReader::TakeHeader() {
  const absl::StatusOr<PieceHeader> piece = DecodePieceHeader(head_);
  if (!piece.ok()) return At(piece.status());
  piece_ = *piece;
  return CheckExpected(Expected());
}

absl::Status ContainerReader::TakePayload(std::span<const uint8_t> payload) {
  if (const uint64_t got = Xxh3(payload); got != piece_->checksum) {
    return At(absl::DataLossError(absl::StrFormat(
        "has checksum %016x, wanted %016x", got, piece_->checksum)));
  }
  if (stage_ == Stage::kEnd) return CheckEnd(payload);
  chain_.Update(head_);
  chain_.Update(payload);
  if (stage_ < Stage::kBlocks) {
    TORPOR_RETURN_IF_ERROR(TakeOutlinePiece(payload));
  } else {
    if (visitor_ != nullptr) {
      TORPOR_RETURN_IF_ERROR(visitor_->OnPiece(*piece_, payload));
    }
    ++next_piece_;
  }
  head_.clear();
  payload_.clear();
  piece_.reset();
  return CloseBlocks();
}

absl::Status ContainerReader::TakeOutlinePiece(
    std::span<const uint8_t> payload) {
  if (stage_ == Stage::kHeader) {
    absl::StatusOr<ContainerHeader> header = DecodeContainerHeader(payload);
    if (!header.ok()) return At(header.status());
    header_ = *std::move(header);
    stage_ = Stage::kManifest;
    return absl::OkStatus();
  }
  if (stage_ == Stage::kManifest) {
    absl::StatusOr<ContainerManifest> manifest =
        DecodeContainerManifest(payload);
    if (!manifest.ok()) return At(manifest.status());
    manifest_ = *std::move(manifest);
    stage_ = header_.n_tokens > 0 ? Stage::kTokens : Stage::kIndex;
    return absl::OkStatus();
  }
  if (stage_ == Stage::kTokens) {
    if (absl::Status s = DecodeTokenPiece(payload, piece_->n_rows, &tokens_);
        !s.ok()) {
      return At(s);
    }
    n_tokens_ += piece_->n_rows;
    if (n_tokens_ == header_.n_tokens) stage_ = Stage::kIndex;
    return absl::OkStatus();
  }
  if (AsString(payload) != EncodeIndex(header_)) {
    return At(absl::DataLossError("says other places than its header"));
  }
  return OutlineWhole();
}

absl::Status ContainerReader::OutlineWhole() {
  outline_chain_ = chain_.Close();
  boundary_ = {0, *outline_chain_, offset_};
  total_bytes_ = offset_ + PieceBytes(TailPieces(manifest_)) +
                 kPieceHeaderBytes + sizeof(Hash256);
  for (uint64_t block = 0; block < header_.n_blocks(); ++block) {
    total_bytes_ += PieceBytes(BlockPieces(header_, block));
  }
  EnterBlock();
  if (visitor_ == nullptr) {
    tokens_ = {};
    return absl::OkStatus();
  }
  return visitor_->OnOutline({header_, manifest_, std::move(tokens_)});
}

void ContainerReader::EnterBlock() {
  next_piece_ = 0;
  if (boundary_.n_blocks < header_.n_blocks()) {
    stage_ = Stage::kBlocks;
    pieces_ = BlockPieces(header_, boundary_.n_blocks);
  } else {
    stage_ = Stage::kTail;
    pieces_ = TailPieces(manifest_);
  }
}

absl::Status ContainerReader::CloseBlocks() {
  while (stage_ == Stage::kBlocks && next_piece_ == pieces_.size()) {
    boundary_ = {boundary_.n_blocks + 1, chain_.Close(), offset_};
    if (visitor_ != nullptr) {
      TORPOR_RETURN_IF_ERROR(visitor_->OnBlock(boundary_.n_blocks - 1));
    }
    EnterBlock();
  }
  if (stage_ == Stage::kTail && next_piece_ == pieces_.size()) {
    end_digest_ = chain_.Close();
    stage_ = Stage::kEnd;
  }
  return absl::OkStatus();
}

absl::Status ContainerReader::CheckEnd(std::span<const uint8_t> payload) {
  if (AsString(payload) != AsString(end_digest_)) {
    return At(absl::DataLossError(
        "the digest over all bytes differs: pieces of other containers?"));
  }
  head_.clear();
  payload_.clear();
  piece_.reset();
  stage_ = Stage::kDone;
  return visitor_ != nullptr ? visitor_->OnEnd() : absl::OkStatus();
}

void ContainerReader::BackToBoundary() {
  offset_ = boundary_.offset;
  chain_ = ContainerChain(boundary_.chain);
  head_.clear();
  payload_.clear();
  piece_.reset();
  EnterBlock();
  // Behind a boundary stands a piece, or the end.
  (void)CloseBlocks();
}

}  // namespace torpor::store
