// SPDX-License-Identifier: Apache-2.0

#include "service/client.h"

#include <grpcpp/grpcpp.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "service/row_codec.h"
#include "service/status.h"

namespace torpor::service {
namespace {

constexpr size_t kIdsPerMessage = 65'536;
constexpr char kSuspendMethod[] = "/torpor.v1.SessionService/Suspend";
constexpr char kResumeMethod[] = "/torpor.v1.SessionService/Resume";

using RawReaderWriter =
    grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

v1::TokenChunk ChunkOf(std::span<const uint32_t> ids) {
  v1::TokenChunk chunk;
  chunk.mutable_ids()->Add(ids.begin(), ids.end());
  return chunk;
}

// Sends rows block by block, every slot of a block before the next.
class RowUploader {
 public:
  RowUploader(const SuspendCall& call,
              grpc::ClientWriter<grpc::ByteBuffer>* writer)
      : call_(call), writer_(writer) {}

  absl::Status Run() {
    uint64_t begin = UINT64_MAX;
    uint64_t end = 0;
    for (const OutgoingSlot& slot : call_.slots) {
      if (slot.row_begin == slot.row_end) continue;
      begin = std::min(begin, slot.row_begin * slot.tokens_per_row);
      end = std::max(end, slot.row_end * slot.tokens_per_row);
    }
    const uint64_t step = call_.block_size;
    for (uint64_t at = begin == UINT64_MAX ? end : begin / step * step;
         at < end; at += step) {
      for (const OutgoingSlot& slot : call_.slots) {
        const uint64_t from =
            std::max(at / slot.tokens_per_row, slot.row_begin);
        const uint64_t to =
            std::min((at + step) / slot.tokens_per_row, slot.row_end);
        TORPOR_RETURN_IF_ERROR(SendSlot(slot, from, to));
      }
    }
    return Flush();
  }

 private:
  absl::Status SendSlot(const OutgoingSlot& slot, uint64_t begin,
                        uint64_t end) {
    const uint64_t most =
        std::max<uint64_t>(1, kMaxRowBytesPerMessage / slot.row_bytes);
    for (uint64_t row = begin; row < end;) {
      const uint64_t stop = std::min(end, row + most);
      const uint64_t bytes = (stop - row) * slot.row_bytes;
      if (builder_.data_bytes() + bytes > kMaxRowBytesPerMessage) {
        TORPOR_RETURN_IF_ERROR(Flush());
      }
      const std::span<uint8_t> out = builder_.Append(bytes);
      TORPOR_RETURN_IF_ERROR(call_.rows(slot.slot, row, stop, out));
      v1::RowPiece piece;
      piece.set_slot(slot.slot);
      piece.set_row_begin(row);
      piece.set_n_rows(static_cast<uint32_t>(stop - row));
      piece.set_checksum(Xxh3(out));
      piece.set_row_bytes(slot.row_bytes);
      builder_.Describe(piece);
      row = stop;
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (builder_.empty()) return absl::OkStatus();
    // A failed write ends the call: its status tells why.
    return writer_->Write(builder_.Finish(nullptr))
               ? absl::OkStatus()
               : absl::AbortedError("write");
  }

  const SuspendCall& call_;
  grpc::ClientWriter<grpc::ByteBuffer>* const writer_;
  RowMessageBuilder builder_;
};

// Pieces of a message to where they belong, verified.
absl::Status TakeRows(const RowMessage& message, const RowSink& sink) {
  std::span<const uint8_t> rest = message.data;
  for (const v1::RowPiece& piece : message.pieces) {
    const uint64_t bytes = uint64_t{piece.n_rows()} * piece.row_bytes();
    if (bytes > rest.size()) {
      return absl::DataLossError(absl::StrFormat(
          "rows [%d, +%d) of slot %d: %d bytes of the message are left, wanted "
          "%d",
          piece.row_begin(), piece.n_rows(), piece.slot(), rest.size(), bytes));
    }
    const std::span<const uint8_t> part = rest.first(bytes);
    if (Xxh3(part) != piece.checksum()) {
      return absl::DataLossError(
          absl::StrFormat("rows [%d, +%d) of slot %d: damaged on the way",
                          piece.row_begin(), piece.n_rows(), piece.slot()));
    }
    TORPOR_RETURN_IF_ERROR(sink(piece.slot(), piece.row_begin(), part));
    rest = rest.subspan(bytes);
  }
  return absl::OkStatus();
}

}  // namespace

std::string NewOperationId() {
  std::array<char, 16> raw;
  randombytes_buf(raw.data(), raw.size());
  return absl::BytesToHexString(absl::string_view(raw.data(), raw.size()));
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ClientOptions& options) {
  std::unique_ptr<Client> client(new Client(options));
  std::shared_ptr<grpc::ChannelCredentials> credentials =
      grpc::InsecureChannelCredentials();
  if (!options.tls_ca.empty()) {
    std::ifstream in(options.tls_ca, std::ios::binary);
    if (!in) {
      return absl::NotFoundError(
          absl::StrFormat("TLS CA file %s: cannot be read", options.tls_ca));
    }
    std::ostringstream text;
    text << in.rdbuf();
    credentials = grpc::SslCredentials({.pem_root_certs = text.str()});
  }
  grpc::ChannelArguments arguments;
  if (options.own_connection) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  }
  client->channel_ =
      grpc::CreateCustomChannel(options.address, credentials, arguments);
  const auto deadline =
      std::chrono::system_clock::now() + std::chrono::seconds(5);
  if (!client->channel_->WaitForConnected(deadline)) {
    return absl::UnavailableError(absl::StrFormat(
        "connect to %s: nobody answers; is torpord running there?",
        options.address));
  }
  client->sessions_ = v1::SessionService::NewStub(client->channel_);
  client->models_ = v1::ModelService::NewStub(client->channel_);
  client->admin_ = v1::AdminService::NewStub(client->channel_);
  return client;
}

absl::Status Client::Status(const grpc::Status& status) {
  return FromGrpcStatus(status);
}

std::unique_ptr<grpc::ClientContext> Client::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + options_.timeout);
  if (!options_.token.empty()) {
    context->AddMetadata("authorization", "Bearer " + options_.token);
  }
  return context;
}

absl::StatusOr<v1::SuspendReceipt> Client::Suspend(const SuspendCall& call) {
  const auto context = Context();
  grpc::ByteBuffer response;
  const std::unique_ptr<grpc::ClientWriter<grpc::ByteBuffer>> writer(
      grpc::internal::ClientWriterFactory<grpc::ByteBuffer>::Create(
          channel_.get(),
          grpc::internal::RpcMethod(
              kSuspendMethod, grpc::internal::RpcMethod::CLIENT_STREAMING),
          context.get(), &response));
  // Writes that fail mean that the call is over; Finish says how.
  const absl::Status sent = [&]() -> absl::Status {
    const auto write = [&](const v1::SuspendRequest& message) {
      return writer->Write(EncodeMessage(message))
                 ? absl::OkStatus()
                 : absl::AbortedError("write");
    };
    v1::SuspendRequest message;
    *message.mutable_header() = call.header;
    TORPOR_RETURN_IF_ERROR(write(message));
    for (size_t at = 0; at < call.ids.size(); at += kIdsPerMessage) {
      v1::SuspendRequest tokens;
      *tokens.mutable_tokens() = ChunkOf(
          call.ids.subspan(at, std::min(kIdsPerMessage, call.ids.size() - at)));
      TORPOR_RETURN_IF_ERROR(write(tokens));
    }
    TORPOR_RETURN_IF_ERROR(RowUploader(call, writer.get()).Run());
    v1::SuspendRequest commit;
    *commit.mutable_commit()->mutable_witness() = call.witness;
    commit.mutable_commit()->set_client_state(call.client_state);
    return write(commit);
  }();
  if (!sent.ok() && sent.code() != absl::StatusCode::kAborted) {
    context->TryCancel();
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!sent.ok() && sent.code() != absl::StatusCode::kAborted) return sent;
  if (!status.ok()) return FromGrpcStatus(status);
  v1::SuspendReceipt receipt;
  TORPOR_RETURN_IF_ERROR(DecodeMessage(response, &receipt));
  return receipt;
}

absl::StatusOr<ResumeAnswer> Client::Resume(const ResumeCall& call) {
  const auto context = Context();
  const std::unique_ptr<RawReaderWriter> stream(
      grpc::internal::
          ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
              channel_.get(),
              grpc::internal::RpcMethod(
                  kResumeMethod, grpc::internal::RpcMethod::BIDI_STREAMING),
              context.get()));
  v1::BeginResumeRequest message;
  *message.mutable_header() = call.header;
  bool writing = stream->Write(EncodeMessage(message));
  for (size_t at = 0; writing && at < call.ids.size(); at += kIdsPerMessage) {
    v1::BeginResumeRequest tokens;
    *tokens.mutable_tokens() = ChunkOf(
        call.ids.subspan(at, std::min(kIdsPerMessage, call.ids.size() - at)));
    writing = stream->Write(EncodeMessage(tokens));
  }
  stream->WritesDone();

  ResumeAnswer answer;
  bool in_window = false;
  const auto take = [&](const grpc::ByteBuffer& buffer) -> absl::Status {
    TORPOR_ASSIGN_OR_RETURN(const RowMessage rows, DecodeRowMessage(buffer));
    v1::ResumeChunk chunk;
    if (!chunk.ParseFromString(rows.rest)) {
      return absl::DataLossError("resume: an answer does not parse");
    }
    if (chunk.has_begin()) {
      answer.begin = chunk.begin();
      if (call.on_begin) TORPOR_RETURN_IF_ERROR(call.on_begin(answer.begin));
    }
    if (chunk.has_tokens()) {
      answer.ids.insert(answer.ids.end(), chunk.tokens().ids().begin(),
                        chunk.tokens().ids().end());
    }
    if (chunk.has_window()) {
      answer.window = chunk.window();
      in_window = true;
    }
    if (chunk.has_receipt()) answer.receipt = chunk.receipt();
    return TakeRows(rows, in_window ? call.window : call.compact);
  };
  absl::Status taken;
  grpc::ByteBuffer buffer;
  while (taken.ok() && stream->Read(&buffer)) {
    taken = take(buffer);
    buffer.Clear();
  }
  if (!taken.ok()) context->TryCancel();
  const grpc::Status status = stream->Finish();
  if (!taken.ok()) return taken;
  if (!status.ok()) return FromGrpcStatus(status);
  return answer;
}

absl::StatusOr<uint64_t> Client::LookupPrefix(
    const std::string& model, const v1::Fingerprint& fingerprint,
    std::span<const uint32_t> ids) {
  const auto context = Context();
  v1::LookupPrefixResponse response;
  const auto writer = sessions_->LookupPrefix(context.get(), &response);
  v1::LookupPrefixRequest message;
  message.mutable_header()->set_model(model);
  *message.mutable_header()->mutable_fingerprint() = fingerprint;
  // A failed write ends the call: its status tells why.
  bool writing = writer->Write(message);
  for (size_t at = 0; writing && at < ids.size(); at += kIdsPerMessage) {
    *message.mutable_tokens() =
        ChunkOf(ids.subspan(at, std::min(kIdsPerMessage, ids.size() - at)));
    writing = writer->Write(message);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return response.hit_len();
}

}  // namespace torpor::service
