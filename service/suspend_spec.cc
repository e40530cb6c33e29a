// SPDX-License-Identifier: Apache-2.0

#include "service/suspend_spec.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/convert.h"

namespace torpor::service {
namespace {

absl::Status CheckFloors(const v1::BeginSuspendHeader& header,
                         const replay::ModelLayout& layout) {
  for (const v1::Floor& floor : header.floors()) {
    // A decoder tail's entry names the token before its end.
    const uint64_t length = floor.resume_at() - floor.replay_start() +
                            (floor.layer_begin() > 0 ? 1 : 0);
    if (floor.replay_start() >= floor.resume_at() ||
        floor.resume_at() > header.kv_len() ||
        floor.layer_begin() >= layout.n_layers ||
        (floor.replay_start() != 0 && length < layout.LargestWindow())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "floor at %d: got replay start %d and layer %d, wanted a replay of "
          "at least the largest window, %d, up to kv_len, %d, at most, and a "
          "layer below %d",
          floor.resume_at(), floor.replay_start(), floor.layer_begin(),
          layout.LargestWindow(), header.kv_len(), layout.n_layers));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShards(uint32_t n_shards, const replay::ModelLayout& layout) {
  if (n_shards <= 1) return absl::OkStatus();
  for (const replay::Slot& slot : layout.slots) {
    if (slot.shard_axis == replay::ShardAxis::kHeads &&
        slot.n_heads % n_shards != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "n_ranks: got %d, which does not divide the %d heads of slot '%s'",
          n_shards, slot.n_heads, slot.name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<store::SuspendSpec> SpecOf(const v1::BeginSuspendHeader& header,
                                          uint32_t tenant,
                                          const RegisteredModel& model) {
  if (const auto difference =
          FirstContradiction(header.fingerprint(), model.fingerprint)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("model '%s': %s", model.name, *difference));
  }
  TORPOR_RETURN_IF_ERROR(CheckFloors(header, model.layout));
  TORPOR_RETURN_IF_ERROR(CheckShards(header.n_ranks(), model.layout));
  store::SuspendSpec spec;
  spec.session = {tenant, header.session()};
  spec.expected_version = header.expected_version();
  spec.operation_id = header.operation_id();
  spec.model = model.name;
  spec.fingerprint_fields = ToProto(model.fingerprint).SerializeAsString();
  spec.numerics_id = header.numerics_id();
  spec.holder = header.holder();
  spec.layout = model.record_layout();
  spec.tokens_kept = header.tokens_kept();
  spec.kv_len = header.kv_len();
  spec.n_shards = std::max(1U, header.n_ranks());
  for (const v1::Floor& floor : header.floors()) {
    spec.floors.push_back(
        {floor.resume_at(), floor.replay_start(), floor.layer_begin()});
  }
  for (const v1::ProvenanceRange& range : header.provenance()) {
    if (range.provenance() > v1::PROVENANCE_UNKNOWN) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "provenance of [%d, %d): got %d, wanted one of the "
          "known kinds",
          range.begin(), range.end(), static_cast<int>(range.provenance())));
    }
    spec.provenance.push_back(
        {range.begin(), range.end(),
         range.provenance() == v1::PROVENANCE_UNSPECIFIED
             ? store::Provenance::kUnknown
             : static_cast<store::Provenance>(range.provenance())});
  }
  TORPOR_ASSIGN_OR_RETURN(spec.session_class,
                          FromProto(header.session_class()));
  TORPOR_ASSIGN_OR_RETURN(
      spec.ttl_seconds, SecondsFromProto("ttl_seconds", header.ttl_seconds()));
  spec.labels.insert(header.labels().begin(), header.labels().end());
  if (header.with_snapshot()) {
    for (const replay::SlotRows& rows :
         replay::WindowRowsAt(model.layout, header.kv_len())) {
      spec.snapshot.push_back({rows.slot,
                               model.layout.slots[rows.slot].row_bytes,
                               {rows.first, rows.end}});
    }
  }
  return spec;
}

}  // namespace torpor::service
