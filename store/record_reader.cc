// SPDX-License-Identifier: Apache-2.0

#include "store/record_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/keys.h"

namespace torpor::store {

absl::Status CopyRecordBytes(const ReadView& view, RecordNumber number,
                             uint64_t offset, std::span<uint8_t> out) {
  while (!out.empty()) {
    const auto part = static_cast<uint32_t>(offset / kPartBytes);
    const size_t inside = offset % kPartBytes;
    const size_t n = std::min(out.size(), kPartBytes - inside);
    TORPOR_ASSIGN_OR_RETURN(const std::optional<std::span<const uint8_t>> value,
                            view.Get(Table::kParts, PartKey(number, part)));
    if (!value.has_value() || value->size() < inside + n) {
      return absl::DataLossError(absl::StrFormat(
          "record %d part %d: got %d bytes, wanted at least %d", number, part,
          value.has_value() ? value->size() : 0, inside + n));
    }
    std::memcpy(out.data(), value->data() + inside, n);
    out = out.subspan(n);
    offset += n;
  }
  return absl::OkStatus();
}

absl::StatusOr<RecordHeader> RecordReader::ReadHeader(
    RecordNumber number) const {
  std::vector<uint8_t> prefix(kRecordHeaderBytes);
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            env_->BeginRead());
    TORPOR_RETURN_IF_ERROR(CopyRecordBytes(*txn, number, 0, prefix));
    TORPOR_ASSIGN_OR_RETURN(const size_t n, RecordPrefixBytes(prefix));
    prefix.resize(n);
    TORPOR_RETURN_IF_ERROR(
        CopyRecordBytes(*txn, number, kRecordHeaderBytes,
                        std::span(prefix).subspan(kRecordHeaderBytes)));
  }
  TORPOR_ASSIGN_OR_RETURN(RecordHeader header, DecodeRecordPrefix(prefix));
  if (header.number != number) {
    return absl::DataLossError(absl::StrFormat(
        "record %d: its header says record %d", number, header.number));
  }
  return header;
}

absl::Status RecordReader::ReadSection(const RecordHeader& header,
                                       const SectionEntry& section,
                                       std::span<uint8_t> out) const {
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            env_->BeginRead());
    TORPOR_RETURN_IF_ERROR(
        CopyRecordBytes(*txn, header.number, section.offset, out));
  }
  if (const uint64_t got = Xxh3(out); got != section.checksum) {
    return absl::DataLossError(absl::StrFormat(
        "record %d section kind %d id %d: has checksum %016x, wanted %016x",
        header.number, static_cast<int>(section.kind), section.id, got,
        section.checksum));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint8_t>> RecordReader::ReadSection(
    const RecordHeader& header, const SectionEntry& section) const {
  std::vector<uint8_t> bytes(section.bytes);
  TORPOR_RETURN_IF_ERROR(ReadSection(header, section, bytes));
  return bytes;
}

bool RecordReader::ForEachPart(
    RecordNumber number, uint64_t begin, uint64_t end,
    const std::function<bool(std::span<const uint8_t>)>& take) const {
  const absl::StatusOr<std::unique_ptr<ReadTxn>> txn = env_->BeginRead();
  if (!txn.ok()) return false;
  for (uint64_t at = begin; at < end;) {
    const auto part = static_cast<uint32_t>(at / kPartBytes);
    const size_t inside = at % kPartBytes;
    const uint64_t n = std::min<uint64_t>(end - at, kPartBytes - inside);
    const auto value = (*txn)->Get(Table::kParts, PartKey(number, part));
    if (!value.ok() || !value->has_value() || (*value)->size() < inside + n ||
        !take((*value)->subspan(inside, n))) {
      return false;
    }
    at += n;
  }
  return true;
}

void RecordReader::WillNeed(RecordNumber number, uint64_t begin,
                            uint64_t end) const {
  ForEachPart(number, begin, end, [](std::span<const uint8_t> part) {
    Env::WillNeed(part);
    return true;
  });
}

bool RecordReader::Resident(RecordNumber number, uint64_t record_bytes) const {
  return ForEachPart(number, 0, record_bytes, Env::Resident);
}

}  // namespace torpor::store
