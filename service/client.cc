// SPDX-License-Identifier: Apache-2.0

#include "service/client.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "service/row_codec.h"
#include "service/row_intake.h"
#include "service/row_outlet.h"
#include "service/row_uploader.h"
#include "service/status.h"

namespace torpor::service {
namespace {

constexpr size_t kIdsPerMessage = 65'536;
constexpr std::chrono::seconds kConnectLimit{5};
constexpr char kPutRowsMethod[] = "/torpor.v1.SessionService/PutRows";
constexpr char kSuspendMethod[] = "/torpor.v1.SessionService/Suspend";
constexpr char kResumeMethod[] = "/torpor.v1.SessionService/Resume";
constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";
constexpr int kServing = 1;

// Below this a suspend's rows are not worth three calls in place of one: at 1.5
// MiB they gain nothing (torpor bench plane: 0.6 to 1.1 of gRPC).
constexpr uint64_t kWorthSharing = uint64_t{16} << 20;

using RawWriter = grpc::ClientWriter<grpc::ByteBuffer>;
using RawReaderWriter =
    grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

v1::TokenChunk ChunkOf(std::span<const uint32_t> ids) {
  v1::TokenChunk chunk;
  chunk.mutable_ids()->Add(ids.begin(), ids.end());
  return chunk;
}

uint64_t BytesOf(const SuspendCall& call) {
  uint64_t bytes = 0;
  for (const auto* slots : {&call.slots, &call.snapshot}) {
    for (const OutgoingSlot& slot : *slots) {
      bytes += (slot.row_end - slot.row_begin) * slot.row_bytes;
    }
  }
  return bytes;
}

// Whether a stream that waits for room is over: the daemon may have ended the
// call, of which only a write tells. An empty message says nothing else.
class StreamEnd {
 public:
  StreamEnd(const SegmentLink* link, RawWriter* writer)
      : link_(link), writer_(writer) {}

  bool operator()() {
    if (link_->lost()) return true;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    next_ = now + kProbe;
    return !writer_->Write(EncodeMessage(v1::PutRowsRequest()));
  }

 private:
  static constexpr std::chrono::milliseconds kProbe{50};
  const SegmentLink* const link_;
  RawWriter* const writer_;
  std::chrono::steady_clock::time_point next_;
};

// Pieces of a message to where they belong, verified.
absl::Status TakeRows(const RowMessage& message, RowIntake* intake,
                      const RowSink& sink) {
  const auto damaged = [](const absl::Status& status) {
    return absl::DataLossError(status.message());
  };
  if (absl::Status s = intake->Begin(message); !s.ok()) return damaged(s);
  for (const v1::RowPiece& piece : message.pieces) {
    const absl::StatusOr<std::span<const uint8_t>> part = intake->Take(piece);
    if (!part.ok()) return damaged(part.status());
    if (Xxh3(*part) != piece.checksum()) {
      return absl::DataLossError(
          absl::StrFormat("rows [%d, +%d) of slot %d: damaged on the way",
                          piece.row_begin(), piece.n_rows(), piece.slot()));
    }
    TORPOR_RETURN_IF_ERROR(sink(piece.slot(), piece.row_begin(), *part));
  }
  if (absl::Status s = intake->End(); !s.ok()) return damaged(s);
  return absl::OkStatus();
}

// How a call ended whose rows ended in `sent`: a write fails (kCancelled) when
// the call is over, and its own status says why.
absl::Status Blame(const absl::Status& sent, const grpc::Status& status) {
  if (!sent.ok() && !absl::IsCancelled(sent)) return sent;
  return FromGrpcStatus(status);
}

}  // namespace

std::string NewOperationId() {
  std::array<char, 16> raw;
  randombytes_buf(raw.data(), raw.size());
  return absl::BytesToHexString(absl::string_view(raw.data(), raw.size()));
}

Client::Client(ClientOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ClientOptions& options) {
  std::unique_ptr<Client> client(new Client(options));
  TORPOR_ASSIGN_OR_RETURN(client->planes_,
                          ClientPlanes::Make(options.plane, options.address));
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
      std::chrono::system_clock::now() +
      std::min<std::chrono::milliseconds>(options.timeout, kConnectLimit);
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

absl::Status Client::CheckHealth(const std::string& service) {
  // gRPC installs no header of its health messages. HealthCheckRequest has the
  // bytes of a StringValue, HealthCheckResponse those of an Int32Value.
  google::protobuf::StringValue request;
  request.set_value(service);
  google::protobuf::Int32Value response;
  const auto context = Context();
  const grpc::Status status = grpc::internal::BlockingUnaryCall(
      channel_.get(),
      grpc::internal::RpcMethod(kHealthMethod,
                                grpc::internal::RpcMethod::NORMAL_RPC),
      context.get(), request, &response);
  if (!status.ok()) return Status(status);
  if (response.value() == kServing) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "%s: not serving", service.empty() ? options_.address : service));
}

// ---- suspend --------------------------------------------------------------

absl::StatusOr<v1::SuspendReceipt> Client::Suspend(const SuspendCall& call) {
  planes_->Reap();
  const bool worth = BytesOf(call) >= kWorthSharing || planes_->WantsSegment();
  return worth && planes_->OffersSegment() ? SuspendInParts(call)
                                           : SuspendInOne(call);
}

absl::StatusOr<v1::SuspendReceipt> Client::SuspendInOne(
    const SuspendCall& call) {
  const auto context = Context();
  grpc::ByteBuffer response;
  const std::unique_ptr<RawWriter> writer(
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
                 : absl::CancelledError("write");
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
    MessageOutlet outlet(
        [&](const grpc::ByteBuffer& m) { return writer->Write(m); });
    TORPOR_RETURN_IF_ERROR(RowUploader(call, &outlet).Run());
    v1::SuspendRequest commit;
    *commit.mutable_commit()->mutable_witness() = call.witness;
    commit.mutable_commit()->set_client_state(call.client_state);
    return write(commit);
  }();
  if (!sent.ok() && !absl::IsCancelled(sent)) context->TryCancel();
  writer->WritesDone();
  TORPOR_RETURN_IF_ERROR(Blame(sent, writer->Finish()));
  v1::SuspendReceipt receipt;
  TORPOR_RETURN_IF_ERROR(DecodeMessage(response, &receipt));
  return receipt;
}

absl::StatusOr<v1::BeginSuspendResponse> Client::BeginSuspend(
    const SuspendCall& call, const v1::DataPlaneOffer& planes) {
  const auto context = Context();
  v1::BeginSuspendResponse response;
  const auto writer = sessions_->BeginSuspend(context.get(), &response);
  v1::BeginSuspendRequest message;
  *message.mutable_header() = call.header;
  *message.mutable_header()->mutable_planes() = planes;
  bool writing = writer->Write(message);
  for (size_t at = 0; writing && at < call.ids.size(); at += kIdsPerMessage) {
    *message.mutable_tokens() = ChunkOf(
        call.ids.subspan(at, std::min(kIdsPerMessage, call.ids.size() - at)));
    writing = writer->Write(message);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::Status Client::PutRows(const SuspendCall& call,
                             const v1::BeginSuspendResponse& begun,
                             SegmentLink* link) {
  const auto context = Context();
  grpc::ByteBuffer response;
  const std::unique_ptr<RawWriter> writer(
      grpc::internal::ClientWriterFactory<grpc::ByteBuffer>::Create(
          channel_.get(),
          grpc::internal::RpcMethod(
              kPutRowsMethod, grpc::internal::RpcMethod::CLIENT_STREAMING),
          context.get(), &response));
  const auto write = [&](const grpc::ByteBuffer& m) {
    return writer->Write(m);
  };
  std::unique_ptr<RowOutlet> outlet;
  v1::PutRowsRequest first;
  first.set_ticket(begun.ticket());
  if (link == nullptr) {
    outlet = std::make_unique<MessageOutlet>(write);
  } else {
    first.set_segment(begun.plane().segment());
    outlet = std::make_unique<SharedOutlet>(
        &link->memory(),
        SharedOutlet::Limits{options_.timeout, StreamEnd(link, writer.get())},
        write);
  }
  const absl::Status sent = writer->Write(EncodeMessage(first))
                                ? RowUploader(call, outlet.get()).Run()
                                : absl::CancelledError("write");
  if (!sent.ok() && !absl::IsCancelled(sent)) context->TryCancel();
  writer->WritesDone();
  return Blame(sent, writer->Finish());
}

absl::StatusOr<v1::SuspendReceipt> Client::SuspendInParts(
    const SuspendCall& call) {
  ClientPlanes::Offer offer = planes_->MakeOffer(Flow::kToServer);
  TORPOR_ASSIGN_OR_RETURN(const v1::BeginSuspendResponse begun,
                          BeginSuspend(call, offer.message));
  if (begun.has_receipt()) return begun.receipt();
  const auto abandon = [&](const absl::Status& why) {
    v1::AbandonSuspendRequest request;
    request.set_ticket(begun.ticket());
    Unary(*sessions_, &v1::SessionService::Stub::AbandonSuspend, request)
        .IgnoreError();
    return why;
  };
  absl::StatusOr<std::unique_ptr<SegmentLink>> link =
      planes_->Take(begun.plane(), Flow::kToServer, std::move(offer));
  if (!link.ok()) {
    const absl::Status why = abandon(link.status());
    // Nothing was sent.
    if (!planes_->WantsSegment()) return SuspendInOne(call);
    return why;
  }
  if (absl::Status s = PutRows(call, begun, link->get()); !s.ok()) {
    return abandon(s);
  }
  v1::CommitRequest commit;
  commit.set_ticket(begun.ticket());
  *commit.mutable_witness() = call.witness;
  commit.set_client_state(call.client_state);
  auto receipt = Unary(*sessions_, &v1::SessionService::Stub::Commit, commit);
  if (!receipt.ok()) return abandon(receipt.status());
  planes_->Keep(*std::move(link));
  return receipt;
}

// ---- resume ---------------------------------------------------------------

absl::StatusOr<ResumeAnswer> Client::Resume(const ResumeCall& call) {
  planes_->Reap();
  return ResumeOnce(call, planes_->OffersSegment());
}

// One Resume stream as its messages come.
class ResumeReader {
 public:
  using TakeSegment =
      std::function<absl::StatusOr<std::unique_ptr<SegmentLink>>(
          const v1::DataPlaneChoice&)>;

  ResumeReader(const ResumeCall& call, TakeSegment take_segment)
      : call_(call), take_segment_(std::move(take_segment)) {}

  absl::Status Take(const grpc::ByteBuffer& buffer) {
    TORPOR_ASSIGN_OR_RETURN(const RowMessage rows, DecodeRowMessage(buffer));
    v1::ResumeChunk chunk;
    if (!chunk.ParseFromString(rows.rest)) {
      return absl::DataLossError("resume: an answer does not parse");
    }
    if (chunk.has_begin()) {
      answer_.begin = chunk.begin();
      TORPOR_ASSIGN_OR_RETURN(link_, take_segment_(answer_.begin.plane()));
      intake_.emplace(link_ == nullptr ? nullptr : &link_->memory());
      if (call_.on_begin) {
        TORPOR_RETURN_IF_ERROR(call_.on_begin(answer_.begin));
      }
    }
    if (!intake_.has_value()) {
      return absl::DataLossError(
          "resume: got an answer before the one that begins it");
    }
    if (chunk.has_tokens()) {
      answer_.ids.insert(answer_.ids.end(), chunk.tokens().ids().begin(),
                         chunk.tokens().ids().end());
    }
    if (chunk.has_window()) {
      answer_.window = chunk.window();
      in_window_ = true;
    }
    if (chunk.has_receipt()) answer_.receipt = chunk.receipt();
    return TakeRows(rows, &*intake_, in_window_ ? call_.window : call_.compact);
  }

  ResumeAnswer& answer() { return answer_; }
  // When nothing is read any more.
  std::unique_ptr<SegmentLink> TakeLink() { return std::move(link_); }

 private:
  const ResumeCall& call_;
  const TakeSegment take_segment_;
  // The intake goes before what it reads.
  std::unique_ptr<SegmentLink> link_;
  std::optional<RowIntake> intake_;
  bool in_window_ = false;
  ResumeAnswer answer_;
};

absl::StatusOr<ResumeAnswer> Client::ResumeOnce(const ResumeCall& call,
                                                bool offer_segment) {
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
  ClientPlanes::Offer offer;
  if (offer_segment) {
    offer = planes_->MakeOffer(Flow::kToClient);
    *message.mutable_header()->mutable_planes() = offer.message;
  }
  bool writing = stream->Write(EncodeMessage(message));
  for (size_t at = 0; writing && at < call.ids.size(); at += kIdsPerMessage) {
    v1::BeginResumeRequest tokens;
    *tokens.mutable_tokens() = ChunkOf(
        call.ids.subspan(at, std::min(kIdsPerMessage, call.ids.size() - at)));
    writing = stream->Write(EncodeMessage(tokens));
  }
  stream->WritesDone();

  absl::Status segment;
  ResumeReader reader(call, [&](const v1::DataPlaneChoice& choice) {
    auto link = planes_->Take(choice, Flow::kToClient, std::move(offer));
    segment = link.status();
    return link;
  });
  absl::Status taken;
  grpc::ByteBuffer buffer;
  while (taken.ok() && stream->Read(&buffer)) {
    taken = reader.Take(buffer);
    buffer.Clear();
  }
  // A segment that is gone ended with its call, which says why.
  const bool gone = absl::IsNotFound(segment);
  while (gone && stream->Read(&buffer)) buffer.Clear();
  if (!taken.ok() && !gone) context->TryCancel();
  const grpc::Status status = stream->Finish();
  if (!taken.ok() && !gone) {
    // Nothing was handed on before the segment was there.
    const bool again =
        offer_segment && !segment.ok() && !planes_->WantsSegment();
    return again ? ResumeOnce(call, false) : taken;
  }
  if (!status.ok()) return FromGrpcStatus(status);
  if (!taken.ok()) return taken;
  planes_->Keep(reader.TakeLink());
  return std::move(reader.answer());
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
