// SPDX-License-Identifier: Apache-2.0
//
// BeginSuspend, PutRows, Commit, AbandonSuspend, and Suspend, which is the
// same in one stream.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/convert.h"
#include "service/row_codec.h"
#include "service/session_service.h"

namespace torpor::service {
namespace {

absl::Status CheckFloors(const v1::BeginSuspendHeader& header,
                         const replay::ModelLayout& layout) {
  for (const v1::Floor& floor : header.floors()) {
    const uint64_t length = floor.resume_at() - floor.replay_start();
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

// The header as the store's spec; tokens are appended as they come.
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
    for (const uint32_t index : model.layout.SnapshotSlots()) {
      const replay::Slot& slot = model.layout.slots[index];
      const uint64_t first = replay::FirstRowOwed(slot, header.kv_len());
      // A recurrent state is one row a session.
      const store::RowRange rows =
          slot.kind == replay::SlotKind::kRecurrent
              ? store::RowRange{0, 1}
              : store::RowRange{first, header.kv_len()};
      spec.snapshot.push_back({index, slot.row_bytes, rows});
    }
  }
  return spec;
}

// A ticket, or the receipt of an operation that was committed before.
struct Begun {
  std::shared_ptr<Ticket> ticket;
  std::optional<v1::SuspendReceipt> receipt;
  std::vector<store::SnapshotSlot> snapshot;
};

// kFailedPrecondition, with the field, when the session is another model's. The
// store compares digests and cannot name it.
absl::Status CheckFingerprint(store::SessionStore& store,
                              const store::SessionKey& session,
                              const RegisteredModel& model) {
  TORPOR_ASSIGN_OR_RETURN(const store::SessionInfo info,
                          store.Describe(session));
  v1::Fingerprint stored;
  stored.ParseFromString(info.fingerprint_fields);
  if (const auto difference =
          replay::FirstDifference(model.fingerprint, FromProto(stored))) {
    return absl::FailedPreconditionError(
        absl::StrFormat("session '%s': %s", session.id, *difference));
  }
  return absl::OkStatus();
}

absl::StatusOr<Begun> BeginTicket(store::SessionStore& store,
                                  std::shared_ptr<const RegisteredModel> model,
                                  store::SuspendSpec spec) {
  Begun begun;
  begun.snapshot = spec.snapshot;
  auto ticket = std::make_shared<Ticket>();
  ticket->session = spec.session.id;
  ticket->model = std::move(model);
  ticket->kv_len = spec.kv_len;
  ticket->n_shards = spec.n_shards;
  ticket->begun = std::chrono::steady_clock::now();
  const store::SessionKey session = spec.session;
  absl::StatusOr<store::BeginResult> result = store.Begin(std::move(spec));
  if (absl::IsFailedPrecondition(result.status())) {
    TORPOR_RETURN_IF_ERROR(CheckFingerprint(store, session, *ticket->model));
  }
  TORPOR_RETURN_IF_ERROR(result.status());
  if (result->receipt.has_value()) {
    begun.receipt = ToProto(ticket->session, *result->receipt);
    return begun;
  }
  ticket->stored = std::move(result->ticket);
  begun.ticket = std::move(ticket);
  return begun;
}

void FillWanted(const Begun& begun, v1::BeginSuspendResponse* response) {
  const RegisteredModel& model = *begun.ticket->model;
  const auto add = [&](uint32_t slot, const store::RowRange& rows) {
    if (rows.size() == 0) return;
    v1::SlotRows* wanted = response->add_wanted();
    wanted->set_slot(slot);
    wanted->set_row_begin(rows.begin);
    wanted->set_row_end(rows.end);
  };
  for (uint32_t i = 0; i < model.compact_slots.size(); ++i) {
    add(model.compact_slots[i], begun.ticket->stored->wanted(i));
  }
  for (const store::SnapshotSlot& slot : begun.snapshot) {
    add(slot.id, slot.rows);
  }
  response->set_block_size(model.block_size);
  response->mutable_plane()->set_plane(v1::DATA_PLANE_GRPC);
}

// One message's pieces into the ticket; returns their bytes.
absl::StatusOr<uint64_t> PutPieces(Call& call, Ticket& ticket,
                                   const RowMessage& message) {
  if (message.data.size() > kMaxRowBytesPerMessage) {
    return absl::InvalidArgumentError(
        absl::StrFormat("row message: got %d bytes of rows, wanted at most %d",
                        message.data.size(), kMaxRowBytesPerMessage));
  }
  std::span<const uint8_t> rest = message.data;
  for (const v1::RowPiece& p : message.pieces) {
    const replay::ModelLayout& layout = ticket.model->layout;
    if (p.slot() >= layout.slots.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rows of slot %d: the layout has %d slots", p.slot(),
                          layout.slots.size()));
    }
    const replay::Slot& slot = layout.slots[p.slot()];
    store::RowPiece piece;
    const auto compact = ticket.model->compact_index.find(p.slot());
    piece.snapshot = compact == ticket.model->compact_index.end();
    piece.slot = piece.snapshot ? p.slot() : compact->second;
    piece.shard = p.shard();
    piece.n_shards =
        slot.shard_axis == replay::ShardAxis::kHeads ? ticket.n_shards : 1;
    piece.row_begin = p.row_begin();
    piece.n_rows = p.n_rows();
    piece.checksum = p.checksum();
    const uint32_t row_bytes = slot.row_bytes / piece.n_shards;
    if (p.row_bytes() != row_bytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rows of slot '%s': got %d bytes a row, wanted %d",
                          slot.name, p.row_bytes(), row_bytes));
    }
    const uint64_t bytes = uint64_t{p.n_rows()} * row_bytes;
    if (bytes > rest.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rows [%d, +%d) of slot '%s': %d bytes of the message are left, "
          "wanted %d",
          p.row_begin(), p.n_rows(), slot.name, rest.size(), bytes));
    }
    TORPOR_RETURN_IF_ERROR(
        ticket.stored->Put(piece, rest.first(bytes), call.cancelled_fn()));
    rest = rest.subspan(bytes);
  }
  if (!rest.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "row message: %d bytes that no piece describes", rest.size()));
  }
  return message.data.size();
}

absl::StatusOr<v1::SuspendReceipt> CommitTicket(Backend& backend,
                                                Ticket& ticket,
                                                const v1::CommitRequest& c) {
  if (c.client_state().size() > store::kMaxClientStateBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("client_state: got %d bytes, wanted at most %d",
                        c.client_state().size(), store::kMaxClientStateBytes));
  }
  std::vector<store::Attachment> attachments;
  const auto attach = [&](store::AttachmentKind kind, const std::string& text) {
    attachments.push_back({kind, {{0, {text.begin(), text.end()}}}});
  };
  if (c.witness().layers_size() > 0) {
    TORPOR_RETURN_IF_ERROR(
        CheckWitness(c.witness(), ticket.model->layout, ticket.kv_len));
    attach(store::AttachmentKind::kWitness, c.witness().SerializeAsString());
  }
  if (!c.client_state().empty()) {
    attach(store::AttachmentKind::kClientState, c.client_state());
  }
  TORPOR_ASSIGN_OR_RETURN(const store::SuspendReceipt receipt,
                          ticket.stored->Commit(std::move(attachments)));
  v1::SuspendReceipt out = ToProto(ticket.session, receipt);
  const auto since = std::chrono::steady_clock::now() - ticket.begun;
  const auto total = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(since).count());
  out.mutable_times()->set_transfer_us(
      total - std::min<uint64_t>(total, receipt.commit_us));
  backend.Account(out);
  return out;
}

// Gives the ticket up when its call is cancelled.
class CancelWithCall {
 public:
  CancelWithCall(Call& call, std::shared_ptr<Ticket> ticket)
      : call_(call), ticket_(std::move(ticket)) {
    call_.OnCancel([t = ticket_] { t->stored->Cancel(); });
  }
  ~CancelWithCall() { call_.ForgetOnCancel(); }

 private:
  Call& call_;
  const std::shared_ptr<Ticket> ticket_;
};

}  // namespace

grpc::ServerReadReactor<v1::BeginSuspendRequest>*
SessionServiceImpl::BeginSuspend(grpc::CallbackServerContext* context,
                                 v1::BeginSuspendResponse* response) {
  return RunReader<v1::BeginSuspendRequest>(
      context, &backend_.workers(), [=, this](Call& call, auto read) {
        return backend_.Serve(
            "BeginSuspend", call, [&](uint32_t tenant) -> absl::Status {
              v1::BeginSuspendRequest message;
              if (!read(&message) || !message.has_header()) {
                return absl::InvalidArgumentError(
                    "suspend: the first message is no header");
              }
              TORPOR_ASSIGN_OR_RETURN(
                  const auto model,
                  backend_.models().Get(message.header().model()));
              TORPOR_ASSIGN_OR_RETURN(store::SuspendSpec spec,
                                      SpecOf(message.header(), tenant, *model));
              while (read(&message)) {
                if (message.has_header()) return SecondHeader("suspend");
                TORPOR_RETURN_IF_ERROR(
                    AppendTokens(message.tokens(),
                                 spec.tokens_kept + spec.new_tokens.ids.size(),
                                 model->layout.vocab_size, &spec.new_tokens));
              }
              // A cancelled stream may have lost tokens.
              if (call.cancelled()) return absl::CancelledError("suspend");
              TORPOR_ASSIGN_OR_RETURN(
                  const Begun begun,
                  BeginTicket(backend_.store(), model, std::move(spec)));
              if (begun.receipt.has_value()) {
                *response->mutable_receipt() = *begun.receipt;
                return absl::OkStatus();
              }
              FillWanted(begun, response);
              TORPOR_ASSIGN_OR_RETURN(
                  const std::string id,
                  backend_.tickets().Add(tenant, begun.ticket));
              response->set_ticket(id);
              // Nobody learns of it: a lost connection looks like the end of
              // the tokens until the cancellation arrives.
              call.OnCancel([&backend = backend_, tenant, id] {
                backend.workers().Post([&backend, tenant, id] {
                  const auto ticket = backend.tickets().Remove(tenant, id);
                  if (ticket != nullptr) ticket->stored->Cancel();
                });
              });
              return absl::OkStatus();
            });
      });
}

RawReader* SessionServiceImpl::PutRows(grpc::CallbackServerContext* context,
                                       grpc::ByteBuffer* response) {
  return RunReader<grpc::ByteBuffer>(
      context, &backend_.workers(), [=, this](Call& call, auto read) {
        return backend_.Serve(
            "PutRows", call, [&](uint32_t tenant) -> absl::Status {
              std::shared_ptr<Ticket> ticket;
              std::string name;
              grpc::ByteBuffer buffer;
              v1::PutRowsResponse answer;
              while (read(&buffer)) {
                TORPOR_ASSIGN_OR_RETURN(const RowMessage message,
                                        DecodeRowMessage(buffer));
                v1::PutRowsRequest rest;
                if (!rest.ParseFromString(message.rest)) {
                  return absl::InvalidArgumentError(
                      "put rows: a message does not parse");
                }
                if (ticket == nullptr) {
                  if (rest.ticket().empty()) break;
                  name = rest.ticket();
                  TORPOR_ASSIGN_OR_RETURN(ticket,
                                          backend_.tickets().Get(tenant, name));
                } else if (!rest.ticket().empty() && rest.ticket() != name) {
                  return absl::InvalidArgumentError(absl::StrFormat(
                      "put rows: got ticket '%s' on a stream of ticket '%s'",
                      rest.ticket(), name));
                }
                TORPOR_ASSIGN_OR_RETURN(const uint64_t bytes,
                                        PutPieces(call, *ticket, message));
                answer.set_bytes_received(answer.bytes_received() + bytes);
                buffer.Clear();
              }
              if (call.cancelled()) return absl::CancelledError("put rows");
              if (ticket == nullptr) {
                return absl::InvalidArgumentError(
                    "put rows: the first message names no ticket");
              }
              *response = EncodeMessage(answer);
              return absl::OkStatus();
            });
      });
}

grpc::ServerUnaryReactor* SessionServiceImpl::Commit(
    grpc::CallbackServerContext* context, const v1::CommitRequest* request,
    v1::SuspendReceipt* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("Commit", call, [&](uint32_t tenant) -> absl::Status {
      TORPOR_ASSIGN_OR_RETURN(
          const std::shared_ptr<Ticket> ticket,
          backend_.tickets().Get(tenant, request->ticket()));
      absl::StatusOr<v1::SuspendReceipt> receipt =
          CommitTicket(backend_, *ticket, *request);
      // Missing rows may still come; any other end spends the ticket.
      if (receipt.status().code() != absl::StatusCode::kFailedPrecondition &&
          receipt.status().code() != absl::StatusCode::kInvalidArgument) {
        backend_.tickets().Remove(tenant, request->ticket());
      }
      TORPOR_RETURN_IF_ERROR(receipt.status());
      *response = *std::move(receipt);
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* SessionServiceImpl::AbandonSuspend(
    grpc::CallbackServerContext* context,
    const v1::AbandonSuspendRequest* request, v1::AbandonSuspendResponse*) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("AbandonSuspend", call, [&](uint32_t tenant) {
      const auto ticket = backend_.tickets().Remove(tenant, request->ticket());
      if (ticket != nullptr) ticket->stored->Cancel();
      return absl::OkStatus();
    });
  });
}

RawReader* SessionServiceImpl::Suspend(grpc::CallbackServerContext* context,
                                       grpc::ByteBuffer* response) {
  return RunReader<grpc::ByteBuffer>(
      context, &backend_.workers(), [=, this](Call& call, auto read) {
        return backend_.Serve(
            "Suspend", call, [&](uint32_t tenant) -> absl::Status {
              std::shared_ptr<const RegisteredModel> model;
              std::optional<store::SuspendSpec> spec;
              std::shared_ptr<Ticket> ticket;
              std::unique_ptr<CancelWithCall> cancel;
              grpc::ByteBuffer buffer;
              // Begins with the first message that needs a ticket.
              const auto begin = [&]() -> absl::Status {
                TORPOR_ASSIGN_OR_RETURN(
                    const Begun begun,
                    BeginTicket(backend_.store(), model, *std::move(spec)));
                if (begun.receipt.has_value()) {
                  *response = EncodeMessage(*begun.receipt);
                  return absl::OkStatus();
                }
                ticket = begun.ticket;
                cancel = std::make_unique<CancelWithCall>(call, ticket);
                return absl::OkStatus();
              };
              while (read(&buffer)) {
                TORPOR_ASSIGN_OR_RETURN(const RowMessage rows,
                                        DecodeRowMessage(buffer));
                buffer.Clear();
                v1::SuspendRequest rest;
                if (!rest.ParseFromString(rows.rest)) {
                  return absl::InvalidArgumentError(
                      "suspend: a message does not parse");
                }
                if (rest.has_header() && spec.has_value()) {
                  return SecondHeader("suspend");
                }
                if (!rest.has_header() && !spec.has_value()) {
                  return absl::InvalidArgumentError(
                      "suspend: the first message is no header");
                }
                if (rest.has_header()) {
                  TORPOR_ASSIGN_OR_RETURN(
                      model, backend_.models().Get(rest.header().model()));
                  TORPOR_ASSIGN_OR_RETURN(
                      spec, SpecOf(rest.header(), tenant, *model));
                }
                if (rest.has_tokens()) {
                  if (ticket != nullptr) {
                    return absl::InvalidArgumentError(
                        "suspend: tokens after rows, wanted them before");
                  }
                  TORPOR_RETURN_IF_ERROR(AppendTokens(
                      rest.tokens(),
                      spec->tokens_kept + spec->new_tokens.ids.size(),
                      model->layout.vocab_size, &spec->new_tokens));
                }
                if (!rows.pieces.empty() || !rows.data.empty() ||
                    rest.has_commit()) {
                  if (ticket == nullptr) {
                    TORPOR_RETURN_IF_ERROR(begin());
                    // Committed before: its receipt is the answer.
                    if (ticket == nullptr) return absl::OkStatus();
                  }
                  TORPOR_RETURN_IF_ERROR(
                      PutPieces(call, *ticket, rows).status());
                }
                if (rest.has_commit()) {
                  TORPOR_ASSIGN_OR_RETURN(
                      const v1::SuspendReceipt receipt,
                      CommitTicket(backend_, *ticket, rest.commit()));
                  *response = EncodeMessage(receipt);
                  return absl::OkStatus();
                }
              }
              if (call.cancelled()) return absl::CancelledError("suspend");
              return absl::InvalidArgumentError(
                  "suspend: the stream ended without a commit");
            });
      });
}

}  // namespace torpor::service
