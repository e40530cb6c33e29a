// SPDX-License-Identifier: Apache-2.0

#include "tests/service/stored_session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "service/convert.h"

namespace torpor::service {
namespace {

constexpr uint32_t kTenant = 0;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15;
  return x ^ (x >> 29);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RegisteredModel>> RegisterLayout(
    ModelRegistry* models, const std::string& name,
    const replay::ModelLayout& layout, uint32_t block_size) {
  v1::RegisterRequest request;
  request.set_name(name);
  request.set_block_size(block_size);
  request.mutable_fingerprint()->set_weights(name);
  *request.mutable_layout() = ToProto(layout);
  return models->Register(request);
}

StoredSession::StoredSession(store::SessionStore* store,
                             std::shared_ptr<const RegisteredModel> model,
                             uint32_t salt)
    : store_(store),
      model_(std::move(model)),
      layout_(model_->record_layout()),
      salt_(salt),
      id_("session " + std::to_string(salt)),
      computed_by_(layout_.slots.size()) {}

void StoredSession::Cut(uint64_t n_tokens, uint64_t rows) {
  tokens_.ids.resize(n_tokens);
  std::erase_if(tokens_.spans, [&](const store::ExtraKeySpan& span) {
    return span.begin >= n_tokens;
  });
  for (store::ExtraKeySpan& span : tokens_.spans) {
    span.end = std::min(span.end, n_tokens);
  }
  for (size_t slot = 0; slot < layout_.slots.size(); ++slot) {
    computed_by_[slot].resize(std::min<uint64_t>(
        computed_by_[slot].size(), rows / layout_.slots[slot].tokens_per_row));
  }
  // A floor binds the rows after its wake.
  std::erase_if(floors_, [&](const replay::Floor& floor) {
    return floor.resume_at >= rows;
  });
}

absl::StatusOr<store::SuspendReceipt> StoredSession::Suspend(const Step& step) {
  history_ += absl::StrFormat(
      "suspend: %d tokens kept, %d new, kv_len %d, %d spans%s\n",
      step.tokens_kept, step.n_new, step.kv_len, step.spans.size(),
      step.floor.has_value()
          ? absl::StrFormat(", woken from %d on", step.floor->replay_start)
          : "");
  ++n_versions_;
  store::SuspendSpec spec;
  spec.session = {kTenant, id_};
  spec.expected_version = version_;
  spec.operation_id = "operation " + std::to_string(version_);
  spec.model = model_->name;
  spec.fingerprint_fields = ToProto(model_->fingerprint).SerializeAsString();
  spec.layout = layout_;
  spec.tokens_kept = step.tokens_kept;
  spec.kv_len = step.kv_len;
  for (uint64_t i = 0; i < step.n_new; ++i) {
    spec.new_tokens.ids.push_back(static_cast<uint32_t>(
        Mix((uint64_t{salt_} << 32) + (uint64_t{n_versions_} << 24) +
            step.tokens_kept + i)));
  }
  spec.new_tokens.spans = step.spans;
  if (step.floor.has_value()) {
    spec.floors.push_back({step.floor->resume_at, step.floor->replay_start,
                           step.floor->layer_begin});
  }
  // What the engine holds from now on.
  const uint64_t rows_kept = std::min({step.tokens_kept, kv_len_, step.kv_len});
  Cut(step.tokens_kept, rows_kept);
  tokens_.ids.insert(tokens_.ids.end(), spec.new_tokens.ids.begin(),
                     spec.new_tokens.ids.end());
  tokens_.spans.insert(tokens_.spans.end(), step.spans.begin(),
                       step.spans.end());
  kv_len_ = step.kv_len;
  for (size_t slot = 0; slot < layout_.slots.size(); ++slot) {
    computed_by_[slot].resize(kv_len_ / layout_.slots[slot].tokens_per_row,
                              n_versions_);
  }
  if (step.floor.has_value() && step.floor->resume_at < kv_len_) {
    floors_.push_back(*step.floor);
  }

  TORPOR_ASSIGN_OR_RETURN(const store::BeginResult begun,
                          store_->Begin(std::move(spec)));
  TORPOR_RETURN_IF_ERROR(
      PutWanted(begun.ticket.get(), rows_kept, step.whole_pieces));
  TORPOR_ASSIGN_OR_RETURN(const store::SuspendReceipt receipt,
                          begun.ticket->Commit({}));
  version_ = receipt.version;
  return receipt;
}

absl::Status StoredSession::PutWanted(store::SuspendTicket* ticket,
                                      uint64_t rows_kept,
                                      bool whole_pieces) const {
  for (uint32_t slot = 0; slot < layout_.slots.size(); ++slot) {
    const uint64_t per_row = layout_.slots[slot].tokens_per_row;
    const store::RowRange wanted = ticket->wanted(slot);
    if (wanted.begin != rows_kept / per_row ||
        wanted.end != computed_by_[slot].size()) {
      return absl::InternalError(
          absl::StrFormat("slot %d: rows [%d, %d) are wanted, [%d, %d) are new",
                          slot, wanted.begin, wanted.end, rows_kept / per_row,
                          computed_by_[slot].size()));
    }
  }
  const uint64_t step = whole_pieces ? UINT64_MAX / 2 : layout_.block_size;
  for (uint64_t at = rows_kept / step * step; at < kv_len_; at += step) {
    for (uint32_t slot = 0; slot < layout_.slots.size(); ++slot) {
      const uint64_t per_row = layout_.slots[slot].tokens_per_row;
      const uint64_t begin = std::max(at, rows_kept) / per_row;
      const uint64_t end = std::min(at + step, kv_len_) / per_row;
      if (begin == end) continue;
      const std::vector<uint8_t> bytes = Rows(slot, begin, end);
      TORPOR_RETURN_IF_ERROR(
          ticket->Put({.slot = slot,
                       .row_begin = begin,
                       .n_rows = static_cast<uint32_t>(end - begin),
                       .checksum = Xxh3(bytes)},
                      bytes));
    }
  }
  return absl::OkStatus();
}

std::vector<uint8_t> StoredSession::Rows(uint32_t slot, uint64_t begin,
                                         uint64_t end) const {
  const uint32_t row_bytes = layout_.slots[slot].row_bytes;
  std::vector<uint8_t> out((end - begin) * row_bytes);
  for (uint64_t row = begin; row < end; ++row) {
    uint64_t value =
        Mix((uint64_t{salt_} << 32) + (uint64_t{slot} << 24) + row);
    value = Mix(value + computed_by_[slot][row]);
    uint8_t* const bytes = out.data() + (row - begin) * row_bytes;
    for (uint32_t i = 0; i < row_bytes; i += sizeof(value)) {
      std::memcpy(bytes + i, &value,
                  std::min<size_t>(sizeof(value), row_bytes - i));
      value = Mix(value + 1);
    }
  }
  return out;
}

absl::Status StoredSession::Rewind(uint64_t at) {
  history_ += absl::StrFormat("rewind to %d\n", at);
  TORPOR_ASSIGN_OR_RETURN(
      const store::SessionInfo info,
      store_->Rewind(
          {{kTenant, id_}, version_, "operation " + std::to_string(version_)},
          at));
  version_ = info.version;
  kv_len_ = std::min(kv_len_, at);
  Cut(at, kv_len_);
  return absl::OkStatus();
}

absl::Status StoredSession::Erase() {
  return store_->Erase({{kTenant, id_}, version_, "erase"}).status();
}

std::string StoredSession::String() const {
  return absl::StrFormat("%s, blocks of %d\n%sn_tokens %d, kv_len %d\n", id_,
                         model_->block_size, history_, n_tokens(), kv_len_);
}

}  // namespace torpor::service
