// SPDX-License-Identifier: Apache-2.0

#include "service/convert.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/replayer.h"

namespace torpor::service {
namespace {

constexpr int kMaxIdsPerMessage = 65'536;
// In microseconds since 1970 it stays far below 2^63.
constexpr int64_t kMaxSeconds = int64_t{100} * 366 * 86'400;

}  // namespace

// ---- models ---------------------------------------------------------------

v1::ModelLayout ToProto(const replay::ModelLayout& layout) {
  v1::ModelLayout out;
  out.set_family(layout.family);
  out.set_n_layers(layout.n_layers);
  out.set_vocab_size(layout.vocab_size);
  for (const replay::Slot& slot : layout.slots) {
    v1::Slot* s = out.add_slots();
    s->set_name(slot.name);
    s->set_kind(static_cast<v1::SlotKind>(slot.kind));
    s->set_owner_layer(slot.owner_layer);
    for (const uint32_t reader : slot.reader_layers) {
      s->add_reader_layers(reader);
    }
    s->set_window(slot.window);
    s->set_chunk(slot.chunk);
    s->set_tokens_per_row(slot.tokens_per_row);
    s->set_overlap_tokens(slot.overlap_tokens);
    s->set_row_bytes(slot.row_bytes);
    s->set_format(slot.format);
    s->set_shard_axis(static_cast<v1::ShardAxis>(slot.shard_axis));
    s->set_n_heads(slot.n_heads);
    s->set_come_back(static_cast<v1::ComeBack>(slot.come_back));
  }
  return out;
}

absl::StatusOr<replay::ModelLayout> FromProto(const v1::ModelLayout& layout) {
  replay::ModelLayout out;
  out.family = layout.family();
  out.n_layers = layout.n_layers();
  out.vocab_size = layout.vocab_size();
  for (const v1::Slot& s : layout.slots()) {
    const auto missing = [&](const char* field) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "slot '%s': %s is not one this daemon knows", s.name(), field));
    };
    if (s.kind() < v1::SLOT_KIND_FULL || s.kind() > v1::SLOT_KIND_RECURRENT) {
      return missing("kind");
    }
    if (s.come_back() < v1::COME_BACK_PERSIST ||
        s.come_back() > v1::COME_BACK_SNAPSHOT) {
      return missing("come_back");
    }
    if (s.shard_axis() > v1::SHARD_AXIS_LAYERS) return missing("shard_axis");
    replay::Slot slot;
    slot.name = s.name();
    slot.kind = static_cast<replay::SlotKind>(s.kind());
    slot.owner_layer = s.owner_layer();
    slot.reader_layers.assign(s.reader_layers().begin(),
                              s.reader_layers().end());
    slot.window = s.window();
    slot.chunk = s.chunk();
    slot.tokens_per_row = std::max(1U, s.tokens_per_row());
    slot.overlap_tokens = s.overlap_tokens();
    slot.row_bytes = s.row_bytes();
    slot.format = s.format();
    slot.shard_axis = s.shard_axis() == v1::SHARD_AXIS_UNSPECIFIED
                          ? replay::ShardAxis::kReplicated
                          : static_cast<replay::ShardAxis>(s.shard_axis());
    slot.n_heads = std::max(1U, s.n_heads());
    slot.come_back = static_cast<replay::ComeBack>(s.come_back());
    out.slots.push_back(std::move(slot));
  }
  TORPOR_RETURN_IF_ERROR(out.Validate());
  return out;
}

v1::Fingerprint ToProto(const replay::Fingerprint& f) {
  v1::Fingerprint out;
  out.set_weights(f.weights);
  out.set_adapter(f.adapter);
  out.set_layout(f.layout);
  out.set_kv_dtype(f.kv_dtype);
  out.set_rope(f.rope);
  out.set_quantiser(f.quantiser);
  out.set_format_version(f.format_version);
  return out;
}

replay::Fingerprint FromProto(const v1::Fingerprint& f) {
  return {.weights = f.weights(),
          .adapter = f.adapter(),
          .layout = f.layout(),
          .kv_dtype = f.kv_dtype(),
          .rope = f.rope(),
          .quantiser = f.quantiser(),
          .format_version = f.format_version()};
}

std::optional<std::string> FirstContradiction(const v1::Fingerprint& asked,
                                              const replay::Fingerprint& held) {
  replay::Fingerprint filled = FromProto(asked);
  const auto fill = [](std::string* field, const std::string& value) {
    if (field->empty()) *field = value;
  };
  fill(&filled.weights, held.weights);
  fill(&filled.adapter, held.adapter);
  fill(&filled.layout, held.layout);
  fill(&filled.kv_dtype, held.kv_dtype);
  fill(&filled.rope, held.rope);
  fill(&filled.quantiser, held.quantiser);
  if (filled.format_version == 0) filled.format_version = held.format_version;
  return replay::FirstDifference(filled, held);
}

// ---- plans ----------------------------------------------------------------

v1::ReplayPlan ToProto(const replay::ReplayPlan& plan) {
  v1::ReplayPlan out;
  out.set_mode(ToProto(plan.mode));
  out.set_resume_at(plan.resume_at);
  out.set_replay_start(plan.replay_start);
  out.set_exact(plan.exact);
  out.set_token_layers(plan.token_layers);
  for (uint32_t l = 0; l < plan.layers.size(); ++l) {
    v1::LayerPlan* layer = out.add_layers();
    layer->set_layer(l);
    layer->set_kv_begin(plan.layers[l].input_begin);
    layer->set_run_begin(plan.layers[l].run_begin);
  }
  for (const replay::FloorRange& floor : plan.floors) {
    v1::FloorRange* f = out.add_floors();
    f->set_row_begin(floor.row_begin);
    f->set_row_end(floor.row_end);
    f->set_floor(floor.floor);
    f->set_layer_begin(floor.layer_begin);
  }
  return out;
}

absl::StatusOr<replay::ReplayMode> FromProto(v1::ReplayMode mode) {
  if (mode == v1::REPLAY_MODE_UNSPECIFIED) return replay::ReplayMode::kAuto;
  if (mode < v1::REPLAY_MODE_BOUNDED || mode > v1::REPLAY_MODE_AUTO) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "mode: got %d, wanted bounded, exact, snapshot, cold or auto",
        static_cast<int>(mode)));
  }
  return static_cast<replay::ReplayMode>(mode);
}

v1::ReplayMode ToProto(replay::ReplayMode mode) {
  return static_cast<v1::ReplayMode>(mode);
}

// ---- tokens ---------------------------------------------------------------

absl::Status SecondHeader(std::string_view verb) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: a second header, wanted it on the first message alone", verb));
}

absl::Status AppendTokens(const v1::TokenChunk& chunk, uint64_t position,
                          uint32_t vocab_size, store::TokenRun* run) {
  if (chunk.ids_size() > kMaxIdsPerMessage) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tokens: got %d ids in a message, wanted at most %d",
                        chunk.ids_size(), kMaxIdsPerMessage));
  }
  for (int i = 0; i < chunk.ids_size(); ++i) {
    if (vocab_size != 0 && chunk.ids(i) >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "token at position %d: got id %d, the vocabulary has %d",
          position + static_cast<uint64_t>(i), chunk.ids(i), vocab_size));
    }
  }
  run->ids.insert(run->ids.end(), chunk.ids().begin(), chunk.ids().end());
  const uint64_t end = position + static_cast<uint64_t>(chunk.ids_size());
  for (const v1::ExtraKeySpan& span : chunk.extra_keys()) {
    const uint64_t least = run->spans.empty() ? 0 : run->spans.back().end;
    if (span.begin() < std::max(position, least) || span.begin() >= end ||
        span.end() <= span.begin() || span.key().empty() ||
        span.key().size() > store::kMaxExtraKeyBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "extra key of tokens [%d, %d): got %d bytes, wanted a key of 1 to %d "
          "bytes on a span that begins in [%d, %d), behind the one before it",
          span.begin(), span.end(), span.key().size(), store::kMaxExtraKeyBytes,
          std::max(position, least), end));
    }
    run->spans.push_back(
        {span.begin(), span.end(), span.key(), span.bidirectional()});
  }
  return absl::OkStatus();
}

absl::Status CheckSpansEnd(const store::TokenRun& run) {
  if (run.spans.empty() || run.spans.back().end <= run.ids.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "extra key of tokens [%d, %d): the prompt has %d tokens",
      run.spans.back().begin, run.spans.back().end, run.ids.size()));
}

v1::TokenChunk ToProto(const store::TokenRun& run, size_t begin, size_t end,
                       uint64_t position) {
  v1::TokenChunk chunk;
  chunk.mutable_ids()->Add(run.ids.begin() + static_cast<ptrdiff_t>(begin),
                           run.ids.begin() + static_cast<ptrdiff_t>(end));
  for (const store::ExtraKeySpan& span : run.spans) {
    if (span.begin < position + begin || span.begin >= position + end) continue;
    v1::ExtraKeySpan* out = chunk.add_extra_keys();
    out->set_begin(span.begin);
    out->set_end(span.end);
    out->set_key(span.key);
    out->set_bidirectional(span.bidirectional);
  }
  return chunk;
}

std::vector<replay::TwoWaySpan> TwoWaySpans(
    const std::vector<store::ExtraKeySpan>& spans) {
  std::vector<replay::TwoWaySpan> out;
  for (const store::ExtraKeySpan& span : spans) {
    if (span.bidirectional) out.push_back({span.begin, span.end});
  }
  return out;
}

std::vector<replay::Floor> ToReplay(const std::vector<store::Floor>& floors) {
  std::vector<replay::Floor> out;
  for (const store::Floor& f : floors) {
    out.push_back({f.resume_at, f.replay_start, f.layer_begin});
  }
  return out;
}

v1::Floor ToProto(const replay::Floor& floor) {
  v1::Floor out;
  out.set_resume_at(floor.resume_at);
  out.set_replay_start(floor.replay_start);
  out.set_layer_begin(floor.layer_begin);
  return out;
}

// ---- witness --------------------------------------------------------------

v1::Witness ToProto(const replay::Witness& witness) {
  v1::Witness out;
  out.set_numerics_id(witness.numerics_id);
  for (const replay::LayerWitness& layer : witness.layers) {
    v1::LayerWitness* l = out.add_layers();
    l->set_layer(layer.layer);
    l->set_digest(layer.digest.data(), layer.digest.size());
    for (const replay::WitnessRow& row : layer.rows) {
      v1::WitnessRow* r = l->add_rows();
      r->set_position(row.position);
      r->set_row(row.bytes.data(), row.bytes.size());
    }
  }
  return out;
}

absl::StatusOr<replay::Witness> FromProto(const v1::Witness& witness,
                                          uint64_t resume_at) {
  replay::Witness out;
  out.numerics_id = witness.numerics_id();
  out.resume_at = resume_at;
  for (const v1::LayerWitness& l : witness.layers()) {
    replay::LayerWitness layer;
    layer.layer = l.layer();
    if (l.digest().size() != layer.digest.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "witness of layer %d: got a digest of %d bytes, wanted %d", l.layer(),
          l.digest().size(), layer.digest.size()));
    }
    std::copy(l.digest().begin(), l.digest().end(), layer.digest.begin());
    for (const v1::WitnessRow& r : l.rows()) {
      layer.rows.push_back({r.position(), {r.row().begin(), r.row().end()}});
    }
    out.layers.push_back(std::move(layer));
  }
  return out;
}

absl::Status CheckWitness(const v1::Witness& witness,
                          const replay::ModelLayout& layout,
                          uint64_t resume_at) {
  TORPOR_RETURN_IF_ERROR(FromProto(witness, resume_at).status());
  struct Window {
    uint64_t first = 0;
    uint64_t row_bytes = 0;
  };
  std::map<uint32_t, Window> windows;
  for (const replay::SlotRows& rows : replay::WindowRowsAt(layout, resume_at)) {
    const replay::Slot& slot = layout.slots[rows.slot];
    if (!slot.is_window()) continue;
    Window& window = windows[slot.owner_layer];
    window.first = rows.first;
    window.row_bytes += slot.row_bytes;
  }
  std::set<uint32_t> seen;
  for (const v1::LayerWitness& l : witness.layers()) {
    const auto window = windows.find(l.layer());
    if (window == windows.end() || !seen.insert(l.layer()).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "witness of layer %d: wanted each layer that has a window, once",
          l.layer()));
    }
    for (const v1::WitnessRow& r : l.rows()) {
      if (r.position() < window->second.first || r.position() >= resume_at ||
          r.row().size() != window->second.row_bytes) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "witness of layer %d: got a row of %d bytes at %d, wanted rows of "
            "%d bytes in [%d, %d)",
            l.layer(), r.row().size(), r.position(), window->second.row_bytes,
            window->second.first, resume_at));
      }
    }
  }
  if (seen.size() != windows.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "witness: got %d layers, wanted the %d that have a window", seen.size(),
        windows.size()));
  }
  return absl::OkStatus();
}

// ---- sessions -------------------------------------------------------------

absl::StatusOr<std::optional<int64_t>> SecondsFromProto(std::string_view field,
                                                        int64_t seconds) {
  if (seconds < -1 || seconds > kMaxSeconds) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: got %d, wanted -1 (clear), 0 (keep) or 1 to %d",
                        field, seconds, kMaxSeconds));
  }
  if (seconds == 0) return std::nullopt;
  return seconds == -1 ? 0 : seconds;
}

v1::SuspendReceipt ToProto(const std::string& session,
                           const store::SuspendReceipt& r) {
  v1::SuspendReceipt out;
  out.set_session(session);
  out.set_version(r.version);
  out.set_n_tokens(r.n_tokens);
  out.set_kv_len(r.kv_len);
  out.set_tokens_kept(r.tokens_kept);
  out.set_row_bytes_received(r.row_bytes_received);
  out.set_row_bytes_copied(r.row_bytes_copied);
  out.set_token_bytes(r.token_bytes);
  out.set_witness_bytes(r.witness_bytes);
  out.set_client_state_bytes(r.client_state_bytes);
  out.set_snapshot_bytes(r.snapshot_bytes);
  out.set_blocks_shared(r.blocks_shared);
  out.set_blocks_written(r.blocks_written);
  out.set_stored_bytes(r.stored_bytes);
  out.mutable_times()->set_commit_us(r.commit_us);
  return out;
}

v1::SessionState ToProto(const store::SessionInfo& info) {
  v1::SessionState out;
  out.set_session(info.key.id);
  out.set_version(info.version);
  out.set_n_tokens(info.n_tokens);
  out.set_kv_len(info.kv_len);
  out.set_model(info.model);
  out.mutable_fingerprint()->ParseFromString(info.fingerprint_fields);
  out.set_numerics_id(info.numerics_id);
  out.set_session_class(static_cast<v1::SessionClass>(info.session_class));
  out.set_expires_at(info.expires_at_us / 1'000'000);
  out.set_pinned_until(info.pinned_until_us / 1'000'000);
  out.mutable_labels()->insert(info.labels.begin(), info.labels.end());
  for (const store::ProvenanceRange& range : info.provenance) {
    v1::ProvenanceRange* p = out.add_provenance();
    p->set_begin(range.begin);
    p->set_end(range.end);
    p->set_provenance(static_cast<v1::Provenance>(range.provenance));
  }
  out.set_has_witness(info.has_witness());
  out.set_has_snapshot(info.has_snapshot());
  v1::SessionBytes* bytes = out.mutable_bytes();
  bytes->set_compact(info.compact_bytes);
  bytes->set_stored(info.stored_bytes);
  bytes->set_tokens(info.token_bytes);
  bytes->set_witness(info.witness_bytes);
  bytes->set_client_state(info.client_state_bytes);
  bytes->set_snapshot(info.snapshot_bytes);
  out.set_created_at(info.created_at_us / 1'000'000);
  out.set_updated_at(info.updated_at_us / 1'000'000);
  out.set_holder(info.holder);
  out.set_usable_len(info.usable_len);
  out.set_n_blocks(info.n_blocks);
  return out;
}

absl::StatusOr<std::optional<store::SessionClass>> FromProto(
    v1::SessionClass session_class) {
  switch (session_class) {
    case v1::SESSION_CLASS_UNSPECIFIED:
      return std::nullopt;
    case v1::SESSION_CLASS_DURABLE:
      return store::SessionClass::kDurable;
    case v1::SESSION_CLASS_CACHE:
      return store::SessionClass::kCache;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("session_class: got %d, wanted durable or cache",
                          static_cast<int>(session_class)));
  }
}

}  // namespace torpor::service
