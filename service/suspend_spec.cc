// SPDX-License-Identifier: Apache-2.0

#include "service/suspend_spec.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/convert.h"

namespace torpor::service {
namespace {

// A witness or client state came in one message of gRPC's default limit.
constexpr uint64_t kMaxArrivedSectionBytes = uint64_t{4} << 20;

absl::Status CheckFloors(const std::vector<store::Floor>& floors,
                         uint64_t kv_len, const replay::ModelLayout& layout) {
  for (const store::Floor& floor : floors) {
    // A decoder tail's entry names the token before its end.
    const uint64_t length =
        floor.resume_at - floor.replay_start + (floor.layer_begin > 0 ? 1 : 0);
    if (floor.replay_start >= floor.resume_at || floor.resume_at > kv_len ||
        floor.layer_begin >= layout.n_layers ||
        (floor.replay_start != 0 && length < layout.LargestWindow())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "floor at %d: got replay start %d and layer %d, wanted a replay of "
          "at least the largest window, %d, up to kv_len, %d, at most, and a "
          "layer below %d",
          floor.resume_at, floor.replay_start, floor.layer_begin,
          layout.LargestWindow(), kv_len, layout.n_layers));
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

// Window rows and states that a snapshot of `kv_len` tokens holds.
std::vector<store::SnapshotSlot> SnapshotOf(const replay::ModelLayout& layout,
                                            uint64_t kv_len) {
  std::vector<store::SnapshotSlot> snapshot;
  for (const replay::SlotRows& rows : replay::WindowRowsAt(layout, kv_len)) {
    snapshot.push_back(
        {rows.slot, layout.slots[rows.slot].row_bytes, {rows.first, rows.end}});
  }
  return snapshot;
}

absl::Status CheckSnapshot(const std::vector<store::SnapshotSlot>& got,
                           const replay::ModelLayout& layout, uint64_t kv_len) {
  if (got.empty()) return absl::OkStatus();
  std::vector<store::SnapshotSlot> wanted = SnapshotOf(layout, kv_len);
  std::erase_if(wanted, [](const auto& slot) { return slot.rows.size() == 0; });
  if (got == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "snapshot: its %d slots are not those that the model's windows need at "
      "token %d, %d slots",
      got.size(), kv_len, wanted.size()));
}

absl::Status CheckVocabulary(const std::vector<uint32_t>& ids,
                             uint32_t vocab_size) {
  if (vocab_size == 0) return absl::OkStatus();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "token %d: got id %d, wanted one below %d", i, ids[i], vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTime(const store::Arrival& arrival) {
  const int64_t now = store::SystemClock()();
  if (arrival.expires_at_us == 0 || arrival.expires_at_us > now) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "import: the session's time was over at Unix second %d, it is %d",
      arrival.expires_at_us / 1'000'000, now / 1'000'000));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RegisteredModel>> ModelOf(
    const ModelRegistry& models, const store::ContainerHeader& header) {
  if (auto model = models.GetByFingerprint(header.layout.fingerprint);
      model.ok()) {
    return model;
  }
  v1::Fingerprint fields;
  if (!fields.ParseFromString(header.fingerprint_fields)) {
    return absl::InvalidArgumentError("import: the fingerprint does not parse");
  }
  // The one of its name, else any: only that it differs, and where, counts.
  std::shared_ptr<const RegisteredModel> nearest;
  for (const auto& model : models.List()) {
    if (nearest == nullptr || model->name == header.model) nearest = model;
  }
  if (nearest == nullptr) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "import: no model is registered here; the session's is '%s', weights "
        "'%s'",
        header.model, fields.weights()));
  }
  const auto difference =
      replay::FirstDifference(FromProto(fields), nearest->fingerprint);
  return absl::FailedPreconditionError(absl::StrFormat(
      "import: no registered model is that of the session, '%s'; against '%s': "
      "%s",
      header.model, nearest->name,
      difference.value_or("its fields agree, its digest does not")));
}

absl::StatusOr<store::SuspendSpec> ArrivalSpec(
    const store::ContainerOutline& outline, store::SuspendSpec spec,
    const v1::ImportHeader& header, uint32_t tenant,
    const RegisteredModel& model) {
  spec.session.tenant = tenant;
  if (!header.session().empty() && header.session() != spec.session.id) {
    spec.session.id = header.session();
    // As of a fork: they were of the other name.
    spec.arrival->operations.clear();
  }
  spec.operation_id = header.operation_id();
  spec.model = model.name;
  spec.fingerprint_fields = ToProto(model.fingerprint).SerializeAsString();
  spec.layout = model.record_layout();
  TORPOR_RETURN_IF_ERROR(CheckTime(*spec.arrival));
  TORPOR_RETURN_IF_ERROR(CheckFloors(spec.floors, spec.kv_len, model.layout));
  TORPOR_RETURN_IF_ERROR(
      CheckSnapshot(spec.snapshot, model.layout, spec.kv_len));
  TORPOR_RETURN_IF_ERROR(
      CheckVocabulary(spec.new_tokens.ids, model.layout.vocab_size));
  for (const store::AttachmentOutline& section : outline.manifest.sections) {
    if (section.bytes > kMaxArrivedSectionBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "attachment %d: got a section of %d bytes, wanted at most %d",
          static_cast<int>(section.kind), section.bytes,
          kMaxArrivedSectionBytes));
    }
  }
  return spec;
}

absl::Status CheckArrived(const store::Attachment& attachment,
                          const RegisteredModel& model, uint64_t kv_len) {
  const std::vector<store::AttachmentSection>& sections = attachment.sections;
  const bool single = sections.size() == 1 && sections[0].id == 0;
  if (attachment.kind == store::AttachmentKind::kClientState && single &&
      sections[0].bytes.size() <= store::kMaxClientStateBytes) {
    return absl::OkStatus();
  }
  v1::Witness witness;
  if (attachment.kind == store::AttachmentKind::kWitness && single &&
      witness.ParseFromArray(sections[0].bytes.data(),
                             static_cast<int>(sections[0].bytes.size()))) {
    return CheckWitness(witness, model.layout, kv_len);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "attachment %d of %d sections: no witness, and no client state of at "
      "most %d bytes",
      static_cast<int>(attachment.kind), sections.size(),
      store::kMaxClientStateBytes));
}

absl::StatusOr<store::SuspendSpec> SpecOf(const v1::BeginSuspendHeader& header,
                                          uint32_t tenant,
                                          const RegisteredModel& model) {
  if (const auto difference =
          FirstContradiction(header.fingerprint(), model.fingerprint)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("model '%s': %s", model.name, *difference));
  }
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
  TORPOR_RETURN_IF_ERROR(
      CheckFloors(spec.floors, header.kv_len(), model.layout));
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
    spec.snapshot = SnapshotOf(model.layout, header.kv_len());
  }
  return spec;
}

}  // namespace torpor::service
