// SPDX-License-Identifier: Apache-2.0

#include "store/session_store.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"

namespace torpor::store {
namespace {

constexpr uint32_t kMinBlockSize = 16;
constexpr size_t kMaxSlots = 16'384;

absl::Status ValidateLayout(const RecordLayout& layout) {
  if (layout.block_size < kMinBlockSize) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layout: got block size %d tokens, wanted at least %d",
                        layout.block_size, kMinBlockSize));
  }
  if (layout.slots.size() > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layout: got %d slots, wanted at most %d",
                        layout.slots.size(), kMaxSlots));
  }
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const SlotSpec& slot = layout.slots[i];
    if (slot.row_bytes == 0 || slot.tokens_per_row == 0 ||
        layout.block_size % slot.tokens_per_row != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "layout slot %d: got %d bytes a row of %d tokens, wanted both above "
          "0 and the block size %d a multiple of the tokens",
          i, slot.row_bytes, slot.tokens_per_row, layout.block_size));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateSpans(std::span<const ExtraKeySpan> spans, uint64_t begin,
                           uint64_t end) {
  uint64_t at = begin;
  for (const ExtraKeySpan& span : spans) {
    if (span.begin < at || span.end <= span.begin || span.end > end) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "extra key span [%d, %d): wanted ascending, not empty, inside the "
          "tokens [%d, %d)",
          span.begin, span.end, begin, end));
    }
    if (span.key.empty() || span.key.size() > kMaxExtraKeyBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "extra key of span [%d, %d): got %d bytes, wanted 1 to %d",
          span.begin, span.end, span.key.size(), kMaxExtraKeyBytes));
    }
    at = span.end;
  }
  return absl::OkStatus();
}

absl::Status ValidateOrigin(const SuspendSpec& spec) {
  for (const Floor& floor : spec.floors) {
    if (floor.replay_start >= floor.resume_at) {
      return absl::InvalidArgumentError(
          absl::StrFormat("floor: got replay start %d, wanted below its "
                          "resume position %d",
                          floor.replay_start, floor.resume_at));
    }
  }
  for (const ProvenanceRange& range : spec.provenance) {
    if (range.begin > range.end || range.end > spec.kv_len) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "provenance range [%d, %d): wanted ascending and at most kv_len %d",
          range.begin, range.end, spec.kv_len));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> SessionLease::ReadRowsAndHash(uint32_t slot,
                                                       RowRange rows,
                                                       std::span<uint8_t> out) {
  TORPOR_RETURN_IF_ERROR(ReadRows(slot, rows, out));
  return Xxh3(out);
}

Clock SystemClock() {
  return [] {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
}

absl::Status ValidateLabels(const Labels& labels) {
  for (const auto& [key, value] : labels) {
    if (key.empty() || key.size() > kMaxLabelBytes ||
        value.size() > kMaxLabelBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "label '%s': wanted a key of 1 to %d bytes and a value of at most "
          "that",
          key, kMaxLabelBytes));
    }
  }
  if (labels.size() > kMaxLabels) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "labels: got %d, wanted at most %d", labels.size(), kMaxLabels));
  }
  return absl::OkStatus();
}

absl::Status MergeLabels(const Labels& changes, Labels* labels) {
  Labels merged = *labels;
  for (const auto& [key, value] : changes) {
    if (value.empty()) {
      merged.erase(key);
    } else {
      merged[key] = value;
    }
  }
  TORPOR_RETURN_IF_ERROR(ValidateLabels(merged));
  *labels = std::move(merged);
  return absl::OkStatus();
}

absl::Status ValidateSession(const SessionKey& session) {
  if (session.id.empty() || session.id.size() > kMaxSessionIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("session id: got %d bytes, wanted 1 to %d",
                        session.id.size(), kMaxSessionIdBytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateMutation(const MutateSpec& spec) {
  TORPOR_RETURN_IF_ERROR(ValidateSession(spec.session));
  if (spec.operation_id.empty() ||
      spec.operation_id.size() > kMaxOperationIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("operation id: got %d bytes, wanted 1 to %d",
                        spec.operation_id.size(), kMaxOperationIdBytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateFork(const ForkSpec& spec) {
  TORPOR_RETURN_IF_ERROR(ValidateMutation(spec.target));
  TORPOR_RETURN_IF_ERROR(ValidateSession(spec.source));
  if (spec.source.tenant != spec.target.session.tenant) {
    return absl::InvalidArgumentError(
        "fork: source and target belong to different tenants");
  }
  return absl::OkStatus();
}

absl::Status ValidateSuspend(const SuspendSpec& spec) {
  TORPOR_RETURN_IF_ERROR(ValidateMutation(
      {spec.session, spec.expected_version, spec.operation_id}));
  if (spec.arrival.has_value() &&
      (spec.expected_version != 0 || spec.arrival->version == 0 ||
       spec.arrival->version > kMaxGivenVersion)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "import: got version %d over version %d, wanted 1 to %d over none",
        spec.arrival->version, spec.expected_version, kMaxGivenVersion));
  }
  TORPOR_RETURN_IF_ERROR(ValidateLayout(spec.layout));
  if (spec.expected_version == 0 && spec.tokens_kept != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tokens kept: got %d of a session that is created, wanted 0",
        spec.tokens_kept));
  }
  const uint64_t n_tokens = spec.tokens_kept + spec.new_tokens.ids.size();
  // A session that was rewound to nothing can be moved.
  if (n_tokens == 0 && !spec.arrival.has_value()) {
    return absl::InvalidArgumentError(
        "tokens: got none, wanted at least one token in a session");
  }
  if (spec.kv_len > n_tokens || n_tokens - spec.kv_len > kMaxPendingTokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "kv_len: got %d of %d tokens, wanted at most all and at most %d "
        "pending",
        spec.kv_len, n_tokens, kMaxPendingTokens));
  }
  TORPOR_RETURN_IF_ERROR(
      ValidateSpans(spec.new_tokens.spans, spec.tokens_kept, n_tokens));
  TORPOR_RETURN_IF_ERROR(ValidateCut(spec.new_tokens.spans, spec.kv_len));
  TORPOR_RETURN_IF_ERROR(ValidateOrigin(spec));
  if (spec.n_shards == 0) {
    return absl::InvalidArgumentError("shards: got 0, wanted at least 1");
  }
  TORPOR_RETURN_IF_ERROR(ValidateLabels(spec.labels));
  for (const auto& [field, name] :
       {std::pair{"holder", &spec.holder},
        std::pair{"numerics_id", &spec.numerics_id}}) {
    if (name->size() > kMaxNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: got %d bytes, wanted at most %d", field,
                          name->size(), kMaxNameBytes));
    }
  }
  for (size_t i = 0; i < spec.snapshot.size(); ++i) {
    const SnapshotSlot& slot = spec.snapshot[i];
    if (slot.row_bytes == 0 || slot.rows.end < slot.rows.begin ||
        (i > 0 && slot.id <= spec.snapshot[i - 1].id)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "snapshot slot %d: got rows [%d, %d) of %d bytes, wanted ascending "
          "ids, a row size and an ordered range",
          slot.id, slot.rows.begin, slot.rows.end, slot.row_bytes));
    }
  }
  return absl::OkStatus();
}

uint64_t CommonLength(const TokenRun& stored, const TokenRun& asked,
                      uint64_t pos) {
  const auto span_at = [](const TokenRun& run, uint64_t at) {
    const auto it = std::partition_point(
        run.spans.begin(), run.spans.end(),
        [&](const ExtraKeySpan& s) { return s.end <= at; });
    return it != run.spans.end() && it->begin <= at ? &*it : nullptr;
  };
  const auto same_key = [](const ExtraKeySpan* a, const ExtraKeySpan* b) {
    if (a == nullptr || b == nullptr) return a == b;
    // What a two-way token means depends on all of its span; where a one-way
    // span ends changes nothing before.
    return a->bidirectional || b->bidirectional ? *a == *b : a->key == b->key;
  };
  uint64_t n = 0;
  while (n < stored.ids.size() && pos + n < asked.ids.size() &&
         stored.ids[n] == asked.ids[pos + n] &&
         same_key(span_at(stored, pos + n), span_at(asked, pos + n))) {
    ++n;
  }
  return n;
}

absl::Status ValidateCut(std::span<const ExtraKeySpan> spans, uint64_t at) {
  for (const ExtraKeySpan& span : spans) {
    if (span.bidirectional && span.begin < at && at < span.end) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "cut at %d: inside the bidirectional span [%d, %d), wanted one of "
          "its ends or outside",
          at, span.begin, span.end));
    }
  }
  return absl::OkStatus();
}

}  // namespace torpor::store
