// SPDX-License-Identifier: Apache-2.0
//
// BeginResume, ReadTokens, ReadRows, Window, Release, and Resume, which is the
// same in one stream.

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "service/convert.h"
#include "service/row_codec.h"
#include "service/session_service.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kTokensPerMessage = 65'536;

uint64_t MicrosecondsSince(SteadyClock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(SteadyClock::now() -
                                                            begin)
          .count());
}

// Which part of head-sharded rows a reader wants.
struct Shard {
  uint32_t index = 0;
  uint32_t n = 1;
};

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

// Sends pieces of rows, gathered into messages of up to 1 MiB.
class RowSender {
 public:
  // `write` sends a message; false ends everything. `fields` are added to every
  // message (null: none).
  RowSender(const RegisteredModel& model, Shard shard,
            std::function<bool(const grpc::ByteBuffer&)> write)
      : model_(model), shard_(shard), write_(std::move(write)) {}

  // Rows of a slot, [rows.begin, rows.end). `fill` puts whole rows into a
  // buffer.
  absl::Status Send(
      uint32_t index, replay::Rows rows,
      const std::function<absl::Status(replay::Rows, std::span<uint8_t>)>&
          fill) {
    const replay::Slot& slot = model_.layout.slots[index];
    const bool sharded =
        shard_.n > 1 && slot.shard_axis == replay::ShardAxis::kHeads;
    const uint64_t row_bytes = slot.row_bytes / (sharded ? shard_.n : 1);
    // Whole blocks where they fit: the store verifies by block.
    const uint64_t block_rows =
        std::max<uint64_t>(1, model_.block_size / slot.tokens_per_row);
    const uint64_t most =
        std::max<uint64_t>(1, kMaxRowBytesPerMessage / slot.row_bytes);
    for (uint64_t row = rows.begin; row < rows.end;) {
      const uint64_t end =
          std::min({rows.end, (row / block_rows + 1) * block_rows, row + most});
      const uint64_t bytes = (end - row) * row_bytes;
      if (builder_.data_bytes() + bytes > kMaxRowBytesPerMessage) {
        TORPOR_RETURN_IF_ERROR(Flush());
      }
      const std::span<uint8_t> out = builder_.Append(bytes);
      if (sharded) {
        whole_.resize((end - row) * slot.row_bytes);
        TORPOR_RETURN_IF_ERROR(fill({row, end}, whole_));
        for (uint64_t i = 0; i < end - row; ++i) {
          std::copy_n(
              whole_.begin() + static_cast<ptrdiff_t>(i * slot.row_bytes +
                                                      shard_.index * row_bytes),
              row_bytes, out.begin() + i * row_bytes);
        }
      } else {
        TORPOR_RETURN_IF_ERROR(fill({row, end}, out));
      }
      v1::RowPiece piece;
      piece.set_slot(index);
      piece.set_shard(sharded ? shard_.index : 0);
      piece.set_row_begin(row);
      piece.set_n_rows(static_cast<uint32_t>(end - row));
      piece.set_checksum(Xxh3(out));
      piece.set_row_bytes(static_cast<uint32_t>(row_bytes));
      builder_.Describe(piece);
      row = end;
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (builder_.empty()) return absl::OkStatus();
    const auto begin = SteadyClock::now();
    bytes_ += builder_.data_bytes();
    const bool sent = write_(builder_.Finish(nullptr));
    transfer_us_ += MicrosecondsSince(begin);
    return sent ? absl::OkStatus()
                : absl::CancelledError("rows: nobody reads them");
  }

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] uint64_t transfer_us() const { return transfer_us_; }

 private:
  const RegisteredModel& model_;
  const Shard shard_;
  const std::function<bool(const grpc::ByteBuffer&)> write_;
  RowMessageBuilder builder_;
  std::vector<uint8_t> whole_;
  uint64_t bytes_ = 0;
  uint64_t transfer_us_ = 0;
};

// Compact rows of tokens [begin, end), slot by slot.
absl::Status SendCompact(Lease& lease, std::span<const uint32_t> slots,
                         uint64_t begin, uint64_t end, RowSender* sender) {
  for (const uint32_t index : slots) {
    const replay::Slot& slot = lease.model()->layout.slots[index];
    const uint64_t per_row = slot.tokens_per_row;
    TORPOR_RETURN_IF_ERROR(
        sender->Send(index, {begin / per_row, end / per_row},
                     [&](replay::Rows rows, std::span<uint8_t> out) {
                       return lease.ReadRows(index, rows, out);
                     }));
  }
  TORPOR_RETURN_IF_ERROR(sender->Flush());
  lease.AddSent(sender->bytes(), sender->transfer_us());
  return absl::OkStatus();
}

absl::Status SendWindow(Lease& lease, const replay::WindowState& window,
                        RowSender* sender) {
  for (const replay::SlotRows& rows : window.slots) {
    const uint64_t row_bytes = lease.model()->layout.slots[rows.slot].row_bytes;
    TORPOR_RETURN_IF_ERROR(sender->Send(
        rows.slot, {rows.first, rows.end},
        [&](replay::Rows part, std::span<uint8_t> out) {
          std::copy_n(
              rows.bytes.begin() +
                  static_cast<ptrdiff_t>((part.begin - rows.first) * row_bytes),
              out.size(), out.begin());
          return absl::OkStatus();
        }));
  }
  TORPOR_RETURN_IF_ERROR(sender->Flush());
  lease.AddSent(sender->bytes(), sender->transfer_us());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> SlotsOf(
    const v1::ReadRowsRequest& request, const RegisteredModel& model) {
  if (request.slots().empty()) return model.compact_slots;
  std::vector<uint32_t> slots(request.slots().begin(), request.slots().end());
  for (const uint32_t slot : slots) {
    if (!model.compact_index.contains(slot)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "read rows: slot %d is not one whose rows are stored", slot));
    }
  }
  return slots;
}

// Header, then tokens, of a stream of BeginResumeRequest.
struct ResumeInput {
  v1::BeginResumeHeader header;
  store::TokenRun prompt;
};

absl::Status TakeResumeMessage(const ModelRegistry& models,
                               const v1::BeginResumeRequest& message,
                               bool first, ResumeInput* input) {
  if (first) {
    if (!message.has_header()) {
      return absl::InvalidArgumentError(
          "resume: the first message is no header");
    }
    input->header = message.header();
    return absl::OkStatus();
  }
  if (message.has_header()) return SecondHeader("resume");
  uint32_t vocab = 0;
  if (!input->header.model().empty()) {
    TORPOR_ASSIGN_OR_RETURN(const auto model,
                            models.Get(input->header.model()));
    vocab = model->layout.vocab_size;
  }
  return AppendTokens(message.tokens(), input->prompt.ids.size(), vocab,
                      &input->prompt);
}

absl::StatusOr<std::shared_ptr<Lease>> BeginLease(Backend& backend,
                                                  uint32_t tenant,
                                                  const ResumeInput& input) {
  TORPOR_RETURN_IF_ERROR(CheckSpansEnd(input.prompt));
  absl::StatusOr<std::unique_ptr<Lease>> lease =
      Lease::Begin(&backend.store(), backend.models(), tenant, input.header,
                   input.prompt.ids.empty() ? nullptr : &input.prompt);
  if (!lease.ok()) {
    if (lease.status().code() == absl::StatusCode::kFailedPrecondition ||
        lease.status().code() == absl::StatusCode::kDataLoss) {
      backend.metrics().CountFullRecompute(
          absl::StatusCodeToString(lease.status().code()));
    }
    return lease.status();
  }
  return std::shared_ptr<Lease>(*std::move(lease));
}

}  // namespace

grpc::ServerReadReactor<v1::BeginResumeRequest>*
SessionServiceImpl::BeginResume(grpc::CallbackServerContext* context,
                                v1::BeginResumeResponse* response) {
  return RunReader<v1::BeginResumeRequest>(
      context, &backend_.workers(), [=, this](Call& call, auto read) {
        return backend_.Serve(
            "BeginResume", call, [&](uint32_t tenant) -> absl::Status {
              ResumeInput input;
              v1::BeginResumeRequest message;
              bool first = true;
              while (read(&message)) {
                TORPOR_RETURN_IF_ERROR(TakeResumeMessage(
                    backend_.models(), message, first, &input));
                first = false;
              }
              if (call.cancelled()) return absl::CancelledError("resume");
              if (first) {
                return absl::InvalidArgumentError("resume: got no header");
              }
              TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Lease> lease,
                                      BeginLease(backend_, tenant, input));
              TORPOR_ASSIGN_OR_RETURN(*response, lease->Response());
              response->mutable_plane()->set_plane(v1::DATA_PLANE_GRPC);
              TORPOR_ASSIGN_OR_RETURN(const std::string id,
                                      backend_.leases().Add(tenant, lease));
              response->set_lease(id);
              // Nobody learns of it.
              call.OnCancel([&backend = backend_, tenant, id] {
                backend.workers().Post([&backend, tenant, id] {
                  backend.leases().Remove(tenant, id);
                });
              });
              return absl::OkStatus();
            });
      });
}

grpc::ServerWriteReactor<v1::TokenChunk>* SessionServiceImpl::ReadTokens(
    grpc::CallbackServerContext* context,
    const v1::ReadTokensRequest* request) {
  return RunWriter<v1::TokenChunk>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.Serve(
            "ReadTokens", call, [&](uint32_t tenant) -> absl::Status {
              TORPOR_ASSIGN_OR_RETURN(
                  const std::shared_ptr<Lease> lease,
                  backend_.leases().Get(tenant, request->lease()));
              const uint64_t end = request->end() == 0
                                       ? lease->stored().info().n_tokens
                                       : request->end();
              TORPOR_ASSIGN_OR_RETURN(
                  const store::TokenRun tokens,
                  lease->stored().ReadTokens(request->begin(), end));
              for (size_t at = 0; at < tokens.ids.size();
                   at += kTokensPerMessage) {
                const size_t stop =
                    std::min(tokens.ids.size(), at + kTokensPerMessage);
                if (!write(ToProto(tokens, at, stop, request->begin()))) {
                  return absl::CancelledError("tokens: nobody reads them");
                }
              }
              return absl::OkStatus();
            });
      });
}

RawWriter* SessionServiceImpl::ReadRows(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request) {
  return RunWriter<grpc::ByteBuffer>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.Serve(
            "ReadRows", call, [&](uint32_t tenant) -> absl::Status {
              v1::ReadRowsRequest asked;
              TORPOR_RETURN_IF_ERROR(DecodeMessage(*request, &asked));
              TORPOR_ASSIGN_OR_RETURN(
                  const std::shared_ptr<Lease> lease,
                  backend_.leases().Get(tenant, asked.lease()));
              const RegisteredModel& model = *lease->model();
              TORPOR_ASSIGN_OR_RETURN(const std::vector<uint32_t> slots,
                                      SlotsOf(asked, model));
              TORPOR_ASSIGN_OR_RETURN(
                  const Shard shard,
                  CheckShard(asked.shard(), asked.n_shards(), model.layout));
              const uint64_t cut = lease->plan().resume_at;
              const uint64_t end = asked.end() == 0 ? cut : asked.end();
              if (asked.begin() > end || end > cut) {
                return absl::OutOfRangeError(absl::StrFormat(
                    "read rows: got tokens [%d, %d), the lease has [0, %d)",
                    asked.begin(), end, cut));
              }
              RowSender sender(model, shard, write);
              return SendCompact(*lease, slots, asked.begin(), end, &sender);
            });
      });
}

RawWriter* SessionServiceImpl::Window(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request) {
  return RunWriter<grpc::ByteBuffer>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.Serve(
            "Window", call, [&](uint32_t tenant) -> absl::Status {
              v1::WindowRequest asked;
              TORPOR_RETURN_IF_ERROR(DecodeMessage(*request, &asked));
              TORPOR_ASSIGN_OR_RETURN(
                  const std::shared_ptr<Lease> lease,
                  backend_.leases().Get(tenant, asked.lease()));
              TORPOR_ASSIGN_OR_RETURN(
                  const Shard shard, CheckShard(asked.shard(), asked.n_shards(),
                                                lease->model()->layout));
              TORPOR_ASSIGN_OR_RETURN(
                  const replay::WindowState* window,
                  lease->Window(&backend_.replay(), call.cancelled_fn()));
              v1::WindowChunk head;
              *head.mutable_header() = lease->WindowHeader();
              if (!write(EncodeMessage(head))) {
                return absl::CancelledError("window: nobody reads it");
              }
              RowSender sender(*lease->model(), shard, write);
              return SendWindow(*lease, *window, &sender);
            });
      });
}

grpc::ServerUnaryReactor* SessionServiceImpl::Release(
    grpc::CallbackServerContext* context, const v1::ReleaseRequest* request,
    v1::ResumeReceipt* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve(
        "Release", call, [&](uint32_t tenant) -> absl::Status {
          TORPOR_ASSIGN_OR_RETURN(
              const std::shared_ptr<Lease> lease,
              backend_.leases().Get(tenant, request->lease()));
          backend_.leases().Remove(tenant, request->lease());
          *response = lease->Receipt();
          backend_.Account(*response);
          return absl::OkStatus();
        });
  });
}

RawBidi* SessionServiceImpl::Resume(grpc::CallbackServerContext* context) {
  return RunBidi<grpc::ByteBuffer, grpc::ByteBuffer>(
      context, &backend_.workers(),
      [=, this](Call& call, auto read, auto write) {
        return backend_.Serve(
            "Resume", call, [&](uint32_t tenant) -> absl::Status {
              ResumeInput input;
              grpc::ByteBuffer buffer;
              bool first = true;
              while (read(&buffer)) {
                v1::BeginResumeRequest message;
                TORPOR_RETURN_IF_ERROR(DecodeMessage(buffer, &message));
                TORPOR_RETURN_IF_ERROR(TakeResumeMessage(
                    backend_.models(), message, first, &input));
                first = false;
                buffer.Clear();
              }
              if (call.cancelled()) return absl::CancelledError("resume");
              if (first) {
                return absl::InvalidArgumentError("resume: got no header");
              }
              TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Lease> lease,
                                      BeginLease(backend_, tenant, input));
              const auto send = [&](const v1::ResumeChunk& chunk) {
                return write(EncodeMessage(chunk))
                           ? absl::OkStatus()
                           : absl::CancelledError("resume: nobody reads it");
              };
              v1::ResumeChunk chunk;
              TORPOR_ASSIGN_OR_RETURN(*chunk.mutable_begin(),
                                      lease->Response());
              chunk.mutable_begin()->mutable_plane()->set_plane(
                  v1::DATA_PLANE_GRPC);
              TORPOR_RETURN_IF_ERROR(send(chunk));

              // The window is rebuilt while tokens and compact rows travel.
              StreamStep rebuilt;
              const bool with_window = !input.header.engine_replays();
              absl::StatusOr<const replay::WindowState*> window =
                  absl::UnknownError("not rebuilt");
              if (with_window) {
                backend_.workers().Post([&] {
                  window =
                      lease->Window(&backend_.replay(), call.cancelled_fn());
                  rebuilt.Done(true);
                });
              }
              const absl::Status sent = [&]() -> absl::Status {
                if (input.header.send_tokens()) {
                  TORPOR_ASSIGN_OR_RETURN(
                      const store::TokenRun tokens,
                      lease->stored().ReadTokens(
                          0, lease->stored().info().n_tokens));
                  for (size_t at = 0; at < tokens.ids.size();
                       at += kTokensPerMessage) {
                    v1::ResumeChunk part;
                    *part.mutable_tokens() = ToProto(
                        tokens, at,
                        std::min(tokens.ids.size(), at + kTokensPerMessage), 0);
                    TORPOR_RETURN_IF_ERROR(send(part));
                  }
                }
                RowSender sender(*lease->model(), {}, write);
                return SendCompact(*lease, lease->model()->compact_slots, 0,
                                   lease->plan().resume_at, &sender);
              }();
              if (with_window) rebuilt.Wait();
              TORPOR_RETURN_IF_ERROR(sent);
              if (with_window) {
                TORPOR_RETURN_IF_ERROR(window.status());
                v1::ResumeChunk head;
                *head.mutable_window() = lease->WindowHeader();
                TORPOR_RETURN_IF_ERROR(send(head));
                RowSender sender(*lease->model(), {}, write);
                TORPOR_RETURN_IF_ERROR(SendWindow(*lease, **window, &sender));
              }
              v1::ResumeChunk last;
              *last.mutable_receipt() = lease->Receipt();
              backend_.Account(last.receipt());
              return send(last);
            });
      });
}

}  // namespace torpor::service
