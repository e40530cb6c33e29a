// SPDX-License-Identifier: Apache-2.0

#include "service/container_client.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "service/status.h"
#include "store/block_id.h"
#include "store/container_reader.h"

namespace torpor::service {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
// Of a 256-bit digest, as hex; an operation id has at most 64 bytes.
constexpr size_t kOperationHex = 48;

std::span<const uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Joins an export and an import: the outline first, which says what operation
// it is, then either the rest or, behind kept blocks, another export.
class Puller {
 public:
  Puller(Client* from, Client* to, std::string name,
         const std::function<void(uint64_t, uint64_t)>& progress)
      : from_(from), to_(to), name_(std::move(name)), progress_(progress) {}

  absl::StatusOr<Pulled> Run(const std::string& session) {
    v1::ExportRequest request;
    request.set_session(session);
    absl::Status status = Export(request);
    if (status.ok() && into_ != nullptr && pulled_.from_block > 0) {
      // The first stream was ended at its outline.
      request.set_version(reader_.header().version);
      request.set_from_block(pulled_.from_block);
      request.set_chain(into_->first().chain());
      status = Export(request);
    }
    // What the importer refuses counts more than that the exporter was left.
    if (into_ == nullptr) {
      TORPOR_RETURN_IF_ERROR(status);
      return reader_.Finish();
    }
    if (!status.ok() && !absl::IsCancelled(status)) return status;
    TORPOR_ASSIGN_OR_RETURN(pulled_.answer, into_->Finish());
    return std::move(pulled_);
  }

 private:
  absl::Status Export(const v1::ExportRequest& request) {
    const absl::Status status =
        ExportContainer(from_, request, [&](std::string_view bytes) {
          return into_ == nullptr ? TakeOutline(bytes) : Send(bytes);
        });
    return std::exchange(left_, false) ? absl::OkStatus() : status;
  }

  absl::Status TakeOutline(std::string_view bytes) {
    outline_ += bytes;
    TORPOR_RETURN_IF_ERROR(reader_.Feed(BytesOf(bytes)));
    if (!reader_.outline_chain().has_value()) return absl::OkStatus();
    v1::ImportHeader header;
    header.set_session(name_);
    header.set_operation_id(ImportOperation(*reader_.outline_chain(), name_));
    TORPOR_ASSIGN_OR_RETURN(into_, ImportStream::Open(to_, header));
    pulled_.from_block = into_->first().from_block();
    if (pulled_.from_block == 0) return Send(std::exchange(outline_, ""));
    left_ = true;
    return absl::CancelledError("behind kept blocks");
  }

  absl::Status Send(std::string_view bytes) {
    pulled_.bytes += bytes.size();
    if (progress_) progress_(pulled_.bytes, reader_.total_bytes());
    return into_->Write(bytes);
  }

  Client* const from_;
  Client* const to_;
  const std::string name_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  // Reads the outline; the importer judges the rest.
  store::ContainerReader reader_{nullptr};
  std::string outline_;
  std::unique_ptr<ImportStream> into_;
  // The export was ended by us.
  bool left_ = false;
  Pulled pulled_;
};

}  // namespace

absl::Status ExportContainer(Client* client, const v1::ExportRequest& request,
                             const ContainerBytes& take) {
  const auto context = client->Context();
  const auto reader = client->sessions().Export(context.get(), request);
  v1::TransferChunk chunk;
  absl::Status taken;
  while (taken.ok() && reader->Read(&chunk)) taken = take(chunk.data());
  if (!taken.ok()) context->TryCancel();
  const grpc::Status status = reader->Finish();
  return taken.ok() ? FromGrpcStatus(status) : taken;
}

absl::StatusOr<std::unique_ptr<ImportStream>> ImportStream::Open(
    Client* client, const v1::ImportHeader& header) {
  std::unique_ptr<ImportStream> stream(new ImportStream);
  stream->context_ = client->Context();
  stream->stream_ = client->sessions().Import(stream->context_.get());
  v1::ImportRequest message;
  *message.mutable_header() = header;
  if (!stream->stream_->Write(message) ||
      !stream->stream_->Read(&stream->first_)) {
    stream->finished_ = true;
    const absl::Status status = FromGrpcStatus(stream->stream_->Finish());
    return status.ok() ? absl::InternalError("import: ended without an answer")
                       : status;
  }
  return stream;
}

ImportStream::~ImportStream() {
  if (finished_) return;
  context_->TryCancel();
  (void)stream_->Finish();
}

absl::Status ImportStream::Write(std::string_view bytes) {
  v1::ImportRequest message;
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, kChunkBytes);
    bytes.remove_prefix(part.size());
    message.mutable_chunk()->set_data(part.data(), part.size());
    if (!stream_->Write(message)) {
      return absl::CancelledError("import: the daemon takes no more");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ImportResponse> ImportStream::Finish() {
  stream_->WritesDone();
  v1::ImportResponse last;
  const bool answered = stream_->Read(&last);
  finished_ = true;
  const absl::Status status = FromGrpcStatus(stream_->Finish());
  if (!status.ok()) return status;
  if (!answered) return absl::InternalError("import: ended without a receipt");
  return last;
}

std::string ImportOperation(const store::Hash256& outline_chain,
                            const std::string& name) {
  std::string text(outline_chain.begin(), outline_chain.end());
  const store::Hash256 digest = store::Blake2b(BytesOf(text + name));
  const std::string hex = absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest.data()), digest.size()));
  return "import-" + hex.substr(0, kOperationHex);
}

absl::StatusOr<Pulled> PullContainer(
    Client* from, Client* to, const std::string& session,
    const std::string& name,
    const std::function<void(uint64_t, uint64_t)>& progress) {
  return Puller(from, to, name, progress).Run(session);
}

}  // namespace torpor::service
