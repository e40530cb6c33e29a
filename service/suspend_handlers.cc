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
#include "service/data_plane.h"
#include "service/row_codec.h"
#include "service/row_intake.h"
#include "service/session_service.h"
#include "service/suspend_spec.h"

namespace torpor::service {
namespace {

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
}

// Bytes of the rows that a ticket wants.
uint64_t BytesOf(const v1::BeginSuspendResponse& response,
                 const replay::ModelLayout& layout) {
  uint64_t bytes = 0;
  for (const v1::SlotRows& rows : response.wanted()) {
    bytes += (rows.row_end() - rows.row_begin()) *
             layout.slots[rows.slot()].row_bytes;
  }
  return bytes;
}

// A piece as the ticket's store knows it.
absl::StatusOr<store::RowPiece> StorePiece(const Ticket& ticket,
                                           const v1::RowPiece& p) {
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
  return piece;
}

// The rows of one stream on their way into a ticket.
class TicketIntake {
 public:
  TicketIntake(Backend& backend, Call& call) : backend_(backend), call_(call) {}
  ~TicketIntake() {
    backend_.metrics().CountRowBytes("in", "grpc", message_bytes_);
    if (use_ != nullptr) {
      backend_.metrics().CountRowBytes("in", use_->segment().memory().plane(),
                                       shared_bytes_);
    }
  }

  // The segment that the stream names, or none.
  absl::Status Open(std::shared_ptr<Ticket> ticket,
                    const std::string& segment) {
    ticket_ = std::move(ticket);
    if (!segment.empty()) {
      TORPOR_ASSIGN_OR_RETURN(use_, ticket_->planes.Use(segment));
    }
    intake_ = std::make_unique<RowIntake>(
        use_ == nullptr ? nullptr : &use_->segment().memory());
    return absl::OkStatus();
  }

  // One message's pieces; verified by the ticket, behind any copy.
  absl::Status Put(const RowMessage& message) {
    const uint64_t before = intake_->shared_bytes();
    TORPOR_RETURN_IF_ERROR(intake_->Begin(message));
    for (const v1::RowPiece& p : message.pieces) {
      TORPOR_ASSIGN_OR_RETURN(const store::RowPiece piece,
                              StorePiece(*ticket_, p));
      const absl::StatusOr<std::span<const uint8_t>> rows = intake_->Take(p);
      if (!rows.ok()) {
        return absl::Status(
            rows.status().code(),
            absl::StrFormat("slot '%s': %s",
                            ticket_->model->layout.slots[p.slot()].name,
                            std::string(rows.status().message())));
      }
      TORPOR_RETURN_IF_ERROR(
          ticket_->stored->Put(piece, *rows, call_.cancelled_fn()));
    }
    TORPOR_RETURN_IF_ERROR(intake_->End());
    const uint64_t shared = intake_->shared_bytes() - before;
    ticket_->planes.AddBytes(shared);
    shared_bytes_ += shared;
    message_bytes_ += message.data.size();
    return absl::OkStatus();
  }

  [[nodiscard]] uint64_t bytes() const {
    return message_bytes_ + shared_bytes_;
  }

 private:
  Backend& backend_;
  Call& call_;
  std::shared_ptr<Ticket> ticket_;
  // The intake goes before what it reads.
  std::unique_ptr<SegmentUse> use_;
  std::unique_ptr<RowIntake> intake_;
  uint64_t message_bytes_ = 0;
  uint64_t shared_bytes_ = 0;
};

absl::StatusOr<v1::SuspendReceipt> CommitTicket(Backend& backend,
                                                uint32_t tenant, Ticket& ticket,
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
  backend.prefetcher().Cancel({tenant, ticket.session});
  v1::SuspendReceipt out = ToProto(ticket.session, receipt);
  out.set_shared_memory_bytes(ticket.planes.bytes());
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
              const v1::DataPlaneOffer offer = message.header().planes();
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
              begun.ticket->row_bytes = BytesOf(*response, model->layout);
              TORPOR_ASSIGN_OR_RETURN(
                  const std::string id,
                  backend_.tickets().Add(tenant, begun.ticket));
              response->set_ticket(id);
              const auto drop = [&backend = backend_, tenant, id] {
                backend.workers().Post([&backend, tenant, id] {
                  const auto ticket = backend.tickets().Remove(tenant, id);
                  if (ticket != nullptr) ticket->stored->Cancel();
                });
              };
              PlaneAnswer plane =
                  ChoosePlane(&backend_.segments(),
                              {.offer = &offer,
                               .peer = call.context()->peer(),
                               .bytes = begun.ticket->row_bytes,
                               .flow = Flow::kToServer,
                               .on_lost = [drop](ServerSegment&) { drop(); }});
              *response->mutable_plane() = std::move(plane.choice);
              if (plane.segment != nullptr) {
                begun.ticket->planes.Add(std::move(plane.segment));
              }
              // Nobody learns of it: a lost connection looks like the end of
              // the tokens until the cancellation arrives.
              call.OnCancel(drop);
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
              TicketIntake intake(backend_, call);
              std::string name;
              grpc::ByteBuffer buffer;
              while (read(&buffer)) {
                TORPOR_ASSIGN_OR_RETURN(const RowMessage message,
                                        DecodeRowMessage(buffer));
                v1::PutRowsRequest rest;
                if (!rest.ParseFromString(message.rest)) {
                  return absl::InvalidArgumentError(
                      "put rows: a message does not parse");
                }
                if (name.empty()) {
                  if (rest.ticket().empty()) break;
                  name = rest.ticket();
                  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<Ticket> ticket,
                                          backend_.tickets().Get(tenant, name));
                  TORPOR_RETURN_IF_ERROR(
                      intake.Open(std::move(ticket), rest.segment()));
                } else if (!rest.ticket().empty() && rest.ticket() != name) {
                  return absl::InvalidArgumentError(absl::StrFormat(
                      "put rows: got ticket '%s' on a stream of ticket '%s'",
                      rest.ticket(), name));
                }
                TORPOR_RETURN_IF_ERROR(intake.Put(message));
                buffer.Clear();
              }
              if (call.cancelled()) return absl::CancelledError("put rows");
              if (name.empty()) {
                return absl::InvalidArgumentError(
                    "put rows: the first message names no ticket");
              }
              v1::PutRowsResponse answer;
              answer.set_bytes_received(intake.bytes());
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
          CommitTicket(backend_, tenant, *ticket, *request);
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
              TicketIntake intake(backend_, call);
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
                return intake.Open(ticket, "");
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
                  TORPOR_RETURN_IF_ERROR(intake.Put(rows));
                }
                if (rest.has_commit()) {
                  TORPOR_ASSIGN_OR_RETURN(
                      const v1::SuspendReceipt receipt,
                      CommitTicket(backend_, tenant, *ticket, rest.commit()));
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
