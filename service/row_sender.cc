// SPDX-License-Identifier: Apache-2.0

#include "service/row_sender.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"

namespace torpor::service {
namespace {

// Sends what is left and counts what this stream carried.
absl::Status Finish(Lease& lease, RowOutlet* outlet, uint64_t bytes_before,
                    uint64_t us_before) {
  TORPOR_RETURN_IF_ERROR(outlet->Flush());
  const uint64_t bytes = outlet->bytes() - bytes_before;
  lease.AddSent(bytes, outlet->transfer_us() - us_before);
  if (outlet->shared()) lease.planes().AddBytes(bytes);
  return absl::OkStatus();
}

}  // namespace

uint64_t CompactBytes(Lease& lease) {
  const replay::ModelLayout& layout = lease.model()->layout;
  const uint64_t cut = lease.plan().resume_at;
  uint64_t bytes = 0;
  for (const uint32_t index : lease.model()->compact_slots) {
    const replay::Slot& slot = layout.slots[index];
    bytes += replay::RowsOf(slot, 0, cut).size() * slot.row_bytes;
  }
  return bytes;
}

uint64_t WindowBytes(Lease& lease) {
  const replay::ModelLayout& layout = lease.model()->layout;
  const uint64_t cut = lease.plan().resume_at;
  uint64_t bytes = 0;
  for (const replay::SlotRows& rows : replay::WindowRowsAt(layout, cut)) {
    bytes += (rows.end - rows.first) * layout.slots[rows.slot].row_bytes;
  }
  return bytes;
}

absl::StatusOr<Shard> CheckShard(uint32_t shard, uint32_t n_shards,
                                 const replay::ModelLayout& layout) {
  const Shard out{shard, std::max(1U, n_shards)};
  if (out.index >= out.n) {
    return absl::InvalidArgumentError(
        absl::StrFormat("shard: got %d of %d", out.index, out.n));
  }
  for (const replay::Slot& slot : layout.slots) {
    if (out.n > 1 && slot.shard_axis == replay::ShardAxis::kHeads &&
        slot.n_heads % out.n != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "n_shards: got %d, which does not divide the %d heads of slot '%s'",
          out.n, slot.n_heads, slot.name));
    }
  }
  return out;
}

absl::Status RowSender::Send(uint32_t index, replay::Rows rows,
                             const Fill& fill) {
  const replay::Slot& slot = model_.layout.slots[index];
  const bool sharded =
      shard_.n > 1 && slot.shard_axis == replay::ShardAxis::kHeads;
  const uint64_t row_bytes = slot.row_bytes / (sharded ? shard_.n : 1);
  // Whole blocks where they fit: the store verifies by block.
  const uint64_t block_rows =
      std::max<uint64_t>(1, replay::RowsOf(slot, 0, model_.block_size).size());
  const uint64_t most =
      std::max<uint64_t>(1, kMaxRowBytesPerMessage / slot.row_bytes);
  for (uint64_t row = rows.begin; row < rows.end;) {
    const uint64_t end =
        std::min({rows.end, (row / block_rows + 1) * block_rows, row + most});
    TORPOR_ASSIGN_OR_RETURN(const std::span<uint8_t> out,
                            outlet_.Append((end - row) * row_bytes));
    uint64_t checksum = 0;
    if (sharded) {
      whole_.resize((end - row) * slot.row_bytes);
      TORPOR_RETURN_IF_ERROR(fill({row, end}, whole_).status());
      for (uint64_t i = 0; i < end - row; ++i) {
        std::copy_n(
            whole_.begin() + static_cast<ptrdiff_t>(i * slot.row_bytes +
                                                    shard_.index * row_bytes),
            row_bytes, out.begin() + i * row_bytes);
      }
      checksum = Xxh3(out);
    } else {
      TORPOR_ASSIGN_OR_RETURN(checksum, fill({row, end}, out));
    }
    v1::RowPiece piece;
    piece.set_slot(index);
    piece.set_shard(sharded ? shard_.index : 0);
    piece.set_row_begin(row);
    piece.set_n_rows(static_cast<uint32_t>(end - row));
    piece.set_checksum(checksum);
    piece.set_row_bytes(static_cast<uint32_t>(row_bytes));
    outlet_.Describe(std::move(piece));
    row = end;
  }
  return absl::OkStatus();
}

absl::Status SendCompact(Lease& lease, std::span<const uint32_t> slots,
                         uint64_t begin, uint64_t end, Shard shard,
                         RowOutlet* outlet) {
  const uint64_t bytes = outlet->bytes();
  const uint64_t us = outlet->transfer_us();
  RowSender sender(*lease.model(), shard, outlet);
  for (const uint32_t index : slots) {
    const replay::Slot& slot = lease.model()->layout.slots[index];
    TORPOR_RETURN_IF_ERROR(
        sender.Send(index, replay::RowsOf(slot, begin, end),
                    [&](replay::Rows rows, std::span<uint8_t> out) {
                      return lease.ReadRows(index, rows, out);
                    }));
  }
  return Finish(lease, outlet, bytes, us);
}

absl::Status SendWindow(Lease& lease, const replay::WindowState& window,
                        Shard shard, RowOutlet* outlet) {
  const uint64_t bytes = outlet->bytes();
  const uint64_t us = outlet->transfer_us();
  RowSender sender(*lease.model(), shard, outlet);
  for (const replay::SlotRows& rows : window.slots) {
    const uint64_t row_bytes = lease.model()->layout.slots[rows.slot].row_bytes;
    TORPOR_RETURN_IF_ERROR(sender.Send(
        rows.slot, {rows.first, rows.end},
        [&](replay::Rows part, std::span<uint8_t> out) {
          std::copy_n(
              rows.bytes.begin() +
                  static_cast<ptrdiff_t>((part.begin - rows.first) * row_bytes),
              out.size(), out.begin());
          return Xxh3(out);
        }));
  }
  return Finish(lease, outlet, bytes, us);
}

}  // namespace torpor::service
