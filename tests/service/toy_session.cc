// SPDX-License-Identifier: Apache-2.0

#include "tests/service/toy_session.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"

namespace torpor::service {
namespace {

std::span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

v1::Slot* AddSlot(v1::ModelLayout* layout, const char* name, v1::SlotKind kind,
                  uint32_t index) {
  v1::Slot* slot = layout->add_slots();
  slot->set_name(name);
  slot->set_kind(kind);
  slot->set_owner_layer(index);
  slot->add_reader_layers(index);
  slot->set_tokens_per_row(1);
  slot->set_row_bytes(kToyRowBytes[index]);
  slot->set_format("bf16");
  slot->set_shard_axis(v1::SHARD_AXIS_REPLICATED);
  slot->set_n_heads(1);
  slot->set_come_back(v1::COME_BACK_PERSIST);
  return slot;
}

}  // namespace

v1::RegisterRequest ToyModel(const std::string& name,
                             const std::string& weights) {
  v1::RegisterRequest request;
  request.set_name(name);
  request.set_block_size(kToyBlock);
  request.mutable_fingerprint()->set_weights(weights);
  request.mutable_fingerprint()->set_kv_dtype("bf16");
  request.mutable_fingerprint()->set_rope("plain");
  v1::ModelLayout* layout = request.mutable_layout();
  layout->set_family("toy");
  layout->set_n_layers(3);
  layout->set_vocab_size(kToyVocab);
  v1::Slot* heads = AddSlot(layout, "heads", v1::SLOT_KIND_FULL, kHeads);
  heads->set_shard_axis(v1::SHARD_AXIS_HEADS);
  heads->set_n_heads(kToyHeads);
  AddSlot(layout, "plain", v1::SLOT_KIND_FULL, kPlain);
  v1::Slot* window = AddSlot(layout, "window", v1::SLOT_KIND_SLIDING, kWindow);
  window->set_window(kToyWindow);
  window->set_come_back(v1::COME_BACK_REPLAY);
  return request;
}

std::string ToyShard(uint32_t salt, uint32_t slot, uint64_t begin, uint64_t end,
                     uint32_t shard, uint32_t n_shards) {
  const uint32_t row_bytes = kToyRowBytes[slot];
  const uint32_t part = row_bytes / n_shards;
  std::string out;
  for (uint64_t row = begin; row < end; ++row) {
    for (uint32_t i = shard * part; i < (shard + 1) * part; ++i) {
      const uint64_t mixed =
          (((uint64_t{salt} * 8 + slot) * 1'000'003 + row) * 64 + i) *
          0x9e3779b97f4a7c15;
      out.push_back(static_cast<char>(mixed >> 56));
    }
  }
  return out;
}

std::string ToyRows(uint32_t salt, uint32_t slot, uint64_t begin,
                    uint64_t end) {
  return ToyShard(salt, slot, begin, end, 0, 1);
}

std::vector<uint32_t> ToyIds(uint32_t salt, size_t n) {
  std::vector<uint32_t> ids(n);
  for (size_t i = 0; i < n; ++i) {
    ids[i] = static_cast<uint32_t>((i * 7919 + salt * 104'729) % kToyVocab);
  }
  return ids;
}

v1::RowPiece PieceOf(uint32_t slot, uint64_t row_begin, uint32_t n_rows,
                     const std::string& bytes) {
  v1::RowPiece piece;
  piece.set_slot(slot);
  piece.set_row_begin(row_begin);
  piece.set_n_rows(n_rows);
  piece.set_checksum(Xxh3(BytesOf(bytes)));
  piece.set_row_bytes(kToyRowBytes[slot]);
  return piece;
}

v1::BeginSuspendHeader ToySuspend::Header() const {
  v1::BeginSuspendHeader header;
  header.set_session(session);
  header.set_expected_version(expected_version);
  header.set_operation_id(operation_id);
  header.set_model(model);
  header.set_tokens_kept(tokens_kept);
  header.set_kv_len(rows_to());
  header.set_with_snapshot(snapshot);
  header.set_numerics_id("toy numerics");
  header.set_holder("toy engine");
  return header;
}

v1::CommitRequest ToySuspend::Commit() const {
  v1::CommitRequest commit;
  commit.set_client_state(client_state);
  *commit.mutable_witness() = witness;
  return commit;
}

std::vector<v1::PutRowsRequest> RowMessages(const ToySuspend& s) {
  std::vector<v1::PutRowsRequest> out;
  for (uint64_t at = s.rows_from; at < s.rows_to();) {
    const uint64_t end = std::min(
        s.rows_to(), (at / kToyBlock + s.blocks_per_message) * kToyBlock);
    v1::PutRowsRequest message;
    // Block-major: a block's slots before the next block.
    while (at < end) {
      const uint64_t stop = std::min(end, (at / kToyBlock + 1) * kToyBlock);
      for (const uint32_t slot : {kHeads, kPlain}) {
        const std::string bytes = ToyRows(s.salt, slot, at, stop);
        *message.add_pieces() =
            PieceOf(slot, at, static_cast<uint32_t>(stop - at), bytes);
        message.mutable_data()->append(bytes);
      }
      at = stop;
    }
    out.push_back(std::move(message));
  }
  if (s.snapshot) {
    const uint64_t first =
        s.rows_to() - std::min<uint64_t>(s.rows_to(), kToyWindow - 1);
    v1::PutRowsRequest message;
    const std::string bytes = ToyRows(s.salt, kWindow, first, s.rows_to());
    *message.add_pieces() = PieceOf(
        kWindow, first, static_cast<uint32_t>(s.rows_to() - first), bytes);
    message.set_data(bytes);
    out.push_back(std::move(message));
  }
  return out;
}

std::vector<v1::SuspendRequest> Messages(const ToySuspend& s) {
  std::vector<v1::SuspendRequest> out(1);
  *out.back().mutable_header() = s.Header();
  const size_t step = 20 * s.blocks_per_message;
  for (size_t at = s.tokens_kept; at < s.ids.size(); at += step) {
    const size_t end = std::min(s.ids.size(), at + step);
    out.emplace_back().mutable_tokens()->mutable_ids()->Add(
        s.ids.begin() + static_cast<ptrdiff_t>(at),
        s.ids.begin() + static_cast<ptrdiff_t>(end));
  }
  for (v1::PutRowsRequest& rows : RowMessages(s)) {
    v1::SuspendRequest& message = out.emplace_back();
    message.mutable_pieces()->Swap(rows.mutable_pieces());
    message.mutable_data()->swap(*rows.mutable_data());
  }
  *out.emplace_back().mutable_commit() = s.Commit();
  return out;
}

absl::Status Woken::AddRows(
    const google::protobuf::RepeatedPtrField<v1::RowPiece>& pieces,
    const std::string& data, bool in_window) {
  size_t at = 0;
  if (data.size() > size_t{1} << 20) {
    return absl::InternalError(
        absl::StrFormat("a message of %d bytes of rows", data.size()));
  }
  for (const v1::RowPiece& piece : pieces) {
    const size_t n = size_t{piece.n_rows()} * piece.row_bytes();
    if (n == 0 || at + n > data.size()) {
      return absl::InternalError("a piece and its data disagree");
    }
    const std::string bytes = data.substr(at, n);
    at += n;
    if (Xxh3(BytesOf(bytes)) != piece.checksum()) {
      return absl::InternalError("a piece's checksum is wrong");
    }
    auto& runs = in_window ? window : compact;
    const auto [it, fresh] = runs.try_emplace(piece.slot());
    Run& run = it->second;
    if (fresh) run.begin = run.end = piece.row_begin();
    if (piece.row_begin() != run.end) {
      return absl::InternalError(
          absl::StrFormat("slot %d: rows from %d behind row %d", piece.slot(),
                          piece.row_begin(), run.end));
    }
    run.end += piece.n_rows();
    run.bytes += bytes;
  }
  if (at != data.size()) return absl::InternalError("rows without a piece");
  return absl::OkStatus();
}

absl::Status Woken::Add(const v1::ResumeChunk& chunk) {
  if (receipt.has_value()) return absl::InternalError("after the receipt");
  if (chunk.has_begin() != (n_messages == 0)) {
    return absl::InternalError("the first message, and it alone, has the plan");
  }
  ++n_messages;
  if (chunk.has_begin()) begin = chunk.begin();
  if (chunk.has_tokens()) {
    if (!compact.empty() || header.has_value()) {
      return absl::InternalError("tokens after rows");
    }
    ids.insert(ids.end(), chunk.tokens().ids().begin(),
               chunk.tokens().ids().end());
  }
  if (chunk.has_window()) header = chunk.window();
  TORPOR_RETURN_IF_ERROR(
      AddRows(chunk.pieces(), chunk.data(), header.has_value()));
  if (chunk.has_receipt()) receipt = chunk.receipt();
  return absl::OkStatus();
}

}  // namespace torpor::service
