// SPDX-License-Identifier: Apache-2.0

#include "bench/synthetic.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/families.h"
#include "replay/fingerprint.h"
#include "service/cli/context.h"
#include "service/convert.h"

namespace torpor::bench {
namespace {

using replay::ComeBack;
using replay::Slot;
using replay::SlotKind;

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
// Keys of rows take slots below it.
constexpr uint32_t kTokenSlot = UINT32_MAX;

// SplitMix64's output function (Steele et al. 2014): any change of the input
// changes every bit with probability one half.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t WordOf(uint64_t row_key, uint64_t word) {
  return Mix(row_key + word * kGolden);
}

uint64_t RowKey(uint64_t key, uint64_t row) { return Mix(key + row * kGolden); }

Slot PersistSlot(const std::string& name, uint32_t owner, uint32_t last,
                 uint32_t ratio, uint32_t row_bytes) {
  Slot slot;
  slot.name = name;
  slot.kind = ratio == 1 ? SlotKind::kFull : SlotKind::kPooled;
  slot.owner_layer = owner;
  for (uint32_t layer = owner; layer <= last; ++layer) {
    slot.reader_layers.push_back(layer);
  }
  slot.tokens_per_row = ratio;
  slot.row_bytes = row_bytes;
  slot.format = "opaque";
  return slot;
}

Slot WindowSlot(uint32_t layer, uint32_t window, uint32_t row_bytes) {
  Slot slot;
  slot.name = absl::StrFormat("layer%d.window", layer);
  slot.kind = SlotKind::kSliding;
  slot.owner_layer = layer;
  slot.reader_layers = {layer};
  slot.window = window;
  slot.row_bytes = row_bytes;
  slot.format = "opaque";
  slot.come_back = ComeBack::kReplay;
  return slot;
}

}  // namespace

replay::ModelLayout PooledLayout() {
  replay::ModelLayout layout;
  layout.family = "pooled_890";
  layout.n_layers = 40;
  layout.vocab_size = 129'280;
  for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
    layout.slots.push_back(WindowSlot(layer, 128, 528));
  }
  for (const uint32_t source : {2U, 8U, 14U, 20U}) {
    const uint32_t ratio = source == 20 ? 1 : 2;
    const uint32_t last = source == 20 ? 39 : source + 5;
    for (const auto& [what, row_bytes] :
         {std::pair<const char*, uint32_t>{"main", 288}, {"index", 68}}) {
      layout.slots.push_back(
          PersistSlot(absl::StrFormat("layer%d.%s", source, what), source, last,
                      ratio, row_bytes));
    }
  }
  return layout;
}

replay::ModelLayout TinyLayout() {
  replay::ModelLayout layout;
  layout.family = "tiny_64";
  layout.n_layers = 2;
  layout.vocab_size = 65'536;
  layout.slots = {PersistSlot("layer0.kv", 0, 0, 1, 64), WindowSlot(1, 16, 64)};
  return layout;
}

absl::StatusOr<replay::ModelLayout> LayoutOf(const std::string& config,
                                             const std::string& kv_dtype) {
  if (config.empty()) return PooledLayout();
  const std::string path =
      std::filesystem::is_directory(config) ? config + "/config.json" : config;
  TORPOR_ASSIGN_OR_RETURN(const std::string text, service::cli::ReadFile(path));
  return replay::LayoutFromConfig(text, {kv_dtype});
}

void FillRows(uint64_t key, uint32_t row_bytes, uint64_t begin,
              std::span<uint8_t> out) {
  for (size_t at = 0; at < out.size(); at += row_bytes) {
    const uint64_t row_key = RowKey(key, begin + at / row_bytes);
    uint8_t* row = &out[at];
    for (uint32_t i = 0; i < row_bytes; i += sizeof(uint64_t)) {
      const uint64_t word = WordOf(row_key, i);
      std::memcpy(row + i, &word,
                  std::min<size_t>(sizeof(word), row_bytes - i));
    }
  }
}

absl::Status CheckRows(uint64_t key, uint32_t row_bytes, uint64_t begin,
                       std::span<const uint8_t> bytes) {
  for (size_t at = 0; at < bytes.size(); at += row_bytes) {
    const uint64_t row_key = RowKey(key, begin + at / row_bytes);
    uint64_t difference = 0;
    for (uint32_t i = 0; i < row_bytes; i += sizeof(uint64_t)) {
      const size_t n = std::min<size_t>(sizeof(uint64_t), row_bytes - i);
      uint64_t wanted = 0;
      uint64_t got = 0;
      const uint64_t word = WordOf(row_key, i);
      std::memcpy(&wanted, &word, n);
      std::memcpy(&got, &bytes[at + i], n);
      difference |= wanted ^ got;
    }
    if (difference != 0) {
      return absl::DataLossError(
          absl::StrFormat("row %d came back with other bytes than it had",
                          begin + at / row_bytes));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Synthetic> Synthetic::Register(service::Client* client,
                                              const SyntheticOptions& options) {
  Synthetic model(options);
  v1::RegisterRequest request;
  *request.mutable_layout() = service::ToProto(options.layout);
  request.set_block_size(options.block_size);
  request.mutable_fingerprint()->set_weights("bench");
  request.set_name(absl::StrFormat(
      "bench-%s-%d", replay::LayoutDigest(options.layout).substr(0, 12),
      options.block_size));
  TORPOR_ASSIGN_OR_RETURN(
      const v1::ModelState state,
      client->Unary(client->models(), &v1::ModelService::Stub::Register,
                    request));
  model.name_ = state.name();
  model.fingerprint_ = state.fingerprint();
  model.block_size_ = state.block_size();
  return model;
}

uint64_t Synthetic::CompactBytes(uint64_t n_tokens) const {
  uint64_t bytes = 0;
  for (const uint32_t index : options_.layout.CompactSlots()) {
    const Slot& slot = options_.layout.slots[index];
    bytes += n_tokens / slot.tokens_per_row * slot.row_bytes;
  }
  return bytes;
}

std::string Synthetic::Id(uint64_t session) {
  return absl::StrFormat("bench/%08d", session);
}

uint64_t Synthetic::KeyOf(uint64_t session, uint32_t slot) const {
  return Mix(Mix(Mix(options_.seed) + session) + slot);
}

std::vector<uint32_t> Synthetic::Tokens(uint64_t session, uint64_t begin,
                                        uint64_t end) const {
  const uint64_t key = KeyOf(session, kTokenSlot);
  std::vector<uint32_t> ids;
  ids.reserve(end - begin);
  for (uint64_t pos = begin; pos < end; ++pos) {
    ids.push_back(
        static_cast<uint32_t>(RowKey(key, pos) % options_.layout.vocab_size));
  }
  return ids;
}

absl::StatusOr<v1::SuspendReceipt> Synthetic::Suspend(service::Client* client,
                                                      uint64_t session,
                                                      uint64_t version,
                                                      uint64_t kept,
                                                      uint64_t n) const {
  service::SuspendCall call;
  v1::BeginSuspendHeader& header = call.header;
  header.set_session(Id(session));
  header.set_expected_version(version);
  header.set_operation_id(service::NewOperationId());
  header.set_model(name_);
  *header.mutable_fingerprint() = fingerprint_;
  header.set_numerics_id("bench");
  header.set_tokens_kept(kept);
  header.set_kv_len(n);
  header.set_ttl_seconds(options_.ttl_seconds);
  const std::vector<uint32_t> ids = Tokens(session, kept, n);
  call.ids = ids;
  call.block_size = block_size_;
  const replay::ModelLayout& layout = options_.layout;
  for (const uint32_t index : layout.CompactSlots()) {
    const Slot& slot = layout.slots[index];
    call.slots.push_back({index, slot.row_bytes, slot.tokens_per_row,
                          kept / slot.tokens_per_row, n / slot.tokens_per_row});
  }
  bool plant = options_.wrong_session == session;
  call.rows = [&](uint32_t slot, uint64_t begin, uint64_t,
                  std::span<uint8_t> out) {
    FillRows(KeyOf(session, slot), layout.slots[slot].row_bytes, begin, out);
    if (std::exchange(plant, false)) out[out.size() / 2] ^= 0x10;
    return absl::OkStatus();
  };
  return client->Suspend(call);
}

std::vector<uint64_t> Synthetic::Offsets(uint64_t n) const {
  std::vector<uint64_t> offsets = {0};
  for (const Slot& slot : options_.layout.slots) {
    const uint64_t rows =
        slot.come_back == ComeBack::kPersist ? n / slot.tokens_per_row : 0;
    offsets.push_back(offsets.back() + rows * slot.row_bytes);
  }
  return offsets;
}

absl::Status Synthetic::Verify(uint64_t session, uint64_t n,
                               std::span<const uint8_t> buffer) const {
  const std::vector<uint64_t> offsets = Offsets(n);
  for (const uint32_t slot : options_.layout.CompactSlots()) {
    const absl::Status status = CheckRows(
        KeyOf(session, slot), options_.layout.slots[slot].row_bytes, 0,
        buffer.subspan(offsets[slot], offsets[slot + 1] - offsets[slot]));
    if (status.ok()) continue;
    return absl::DataLossError(absl::StrFormat("session %s, slot %d: %s",
                                               Id(session), slot,
                                               std::string(status.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<SyntheticWake> Synthetic::Resume(
    service::Client* client, uint64_t session, uint64_t n,
    std::vector<uint8_t>* buffer) const {
  const std::vector<uint64_t> offsets = Offsets(n);
  buffer->resize(offsets.back());
  service::ResumeCall call;
  v1::BeginResumeHeader& header = call.header;
  header.set_session(Id(session));
  header.set_model(name_);
  *header.mutable_fingerprint() = fingerprint_;
  header.set_mode(v1::REPLAY_MODE_EXACT);
  header.set_engine_replays(true);
  header.set_send_tokens(true);
  // Where the next rows of each slot go.
  std::vector<uint64_t> ends(offsets.begin(), offsets.end() - 1);
  call.compact = [&](uint32_t slot, uint64_t begin,
                     std::span<const uint8_t> bytes) -> absl::Status {
    const bool in_order =
        slot < ends.size() &&
        offsets[slot] + begin * options_.layout.slots[slot].row_bytes ==
            ends[slot] &&
        ends[slot] + bytes.size() <= offsets[slot + 1];
    if (!in_order) {
      return absl::DataLossError(absl::StrFormat(
          "session %s: %d bytes from row %d on of slot %d came out of order",
          Id(session), bytes.size(), begin, slot));
    }
    std::memcpy(buffer->data() + ends[slot], bytes.data(), bytes.size());
    ends[slot] += bytes.size();
    return absl::OkStatus();
  };
  SyntheticWake wake;
  const auto begin = std::chrono::steady_clock::now();
  TORPOR_ASSIGN_OR_RETURN(const service::ResumeAnswer answer,
                          client->Resume(call));
  wake.ms = std::chrono::duration<double, std::milli>(
                std::chrono::steady_clock::now() - begin)
                .count();
  wake.receipt = answer.receipt;
  if (answer.ids != Tokens(session, 0, n)) {
    return absl::DataLossError(
        absl::StrFormat("session %s: got %d tokens, wanted its own %d",
                        Id(session), answer.ids.size(), n));
  }
  for (size_t slot = 0; slot < ends.size(); ++slot) {
    if (ends[slot] == offsets[slot + 1]) continue;
    return absl::DataLossError(absl::StrFormat(
        "session %s: got %d bytes of slot %d, wanted %d", Id(session),
        ends[slot] - offsets[slot], slot, offsets[slot + 1] - offsets[slot]));
  }
  TORPOR_RETURN_IF_ERROR(Verify(session, n, *buffer));
  return wake;
}

absl::StatusOr<uint64_t> Synthetic::LookupPrefix(
    service::Client* client, std::span<const uint32_t> ids) const {
  return client->LookupPrefix(name_, fingerprint_, ids);
}

}  // namespace torpor::bench
