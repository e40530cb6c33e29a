// SPDX-License-Identifier: Apache-2.0
//
// Export and Import: a session as a container, out of this node and into it.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/convert.h"
#include "service/log.h"
#include "service/session_service.h"
#include "service/suspend_spec.h"
#include "store/container_writer.h"

namespace torpor::service {
namespace {

// Half a block or so: a transfer that breaks loses little.
constexpr size_t kChunkBytes = size_t{256} << 10;

absl::StatusOr<std::optional<store::Hash256>> ChainOf(
    const std::string& bytes) {
  if (bytes.empty()) return std::nullopt;
  store::Hash256 chain;
  if (bytes.size() != chain.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "chain: got %d bytes, wanted %d or none", bytes.size(), chain.size()));
  }
  std::copy(bytes.begin(), bytes.end(), chain.begin());
  return chain;
}

// Bytes of any lengths into messages.
class Chunker {
 public:
  using Write = std::function<bool(const v1::TransferChunk&)>;
  Chunker(const Call& call, Write write)
      : call_(call), write_(std::move(write)) {}

  bool Add(std::span<const uint8_t> bytes) {
    std::string& data = *chunk_.mutable_data();
    while (!bytes.empty()) {
      const size_t n = std::min(kChunkBytes - data.size(), bytes.size());
      data.append(reinterpret_cast<const char*>(bytes.data()), n);
      bytes = bytes.subspan(n);
      if (data.size() == kChunkBytes && !Flush()) return false;
    }
    return !call_.cancelled();
  }
  bool Flush() {
    if (chunk_.data().empty()) return true;
    const bool written = write_(chunk_);
    chunk_.mutable_data()->clear();
    return written;
  }

 private:
  const Call& call_;
  const Write write_;
  v1::TransferChunk chunk_;
};

std::string LayoutOf(const ModelRegistry& models,
                     const store::SessionInfo& info) {
  const auto model = models.GetByFingerprint(info.fingerprint);
  return model.ok() ? ToProto((*model)->layout).SerializeAsString()
                    : std::string();
}

// One call of an import, and what it leaves behind when it ends.
class ImportCall {
 public:
  ImportCall(Backend& backend, Call& call, uint32_t tenant,
             const v1::ImportHeader& header)
      : backend_(backend), call_(call), tenant_(tenant), header_(header) {}

  // Takes the operation's ticket; says where to go on.
  absl::StatusOr<v1::ImportResponse> Begin() {
    TORPOR_ASSIGN_OR_RETURN(
        turn_, backend_.imports().Take(tenant_, header_.operation_id()));
    ImportTicket& ticket = *turn_.ticket;
    MutexLock lock(&ticket.mu);
    v1::ImportResponse answer;
    // An earlier call may have committed just now: the store knows its receipt.
    if (ticket.import == nullptr || ticket.import->n_blocks() == 0 ||
        ticket.import->receipt().has_value()) {
      ticket.import = NewImport();
      return answer;
    }
    ticket.import->BackToBoundary();
    answer.set_from_block(ticket.import->n_blocks());
    const store::Hash256& chain = ticket.import->chain();
    answer.set_chain(chain.data(), chain.size());
    return answer;
  }

  // True when the receipt is there.
  absl::StatusOr<bool> Feed(const std::string& data) {
    ImportTicket& ticket = *turn_.ticket;
    MutexLock lock(&ticket.mu);
    TORPOR_RETURN_IF_ERROR(CheckTurn());
    const absl::Status status = ticket.import->Feed(
        {reinterpret_cast<const uint8_t*>(data.data()), data.size()},
        [this] { return call_.cancelled() || !turn_.current(); });
    if (absl::IsCancelled(status)) TORPOR_RETURN_IF_ERROR(CheckTurn());
    TORPOR_RETURN_IF_ERROR(status);
    return ticket.import->receipt().has_value();
  }

  absl::StatusOr<v1::ImportResponse> Receipt() {
    v1::ImportResponse answer;
    store::SessionKey session;
    {
      MutexLock lock(&turn_.ticket->mu);
      const store::SessionImport& import = *turn_.ticket->import;
      session = import.session();
      *answer.mutable_receipt() = ToProto(session.id, *import.receipt());
      answer.set_repeated(import.repeated());
    }
    TORPOR_ASSIGN_OR_RETURN(const store::SessionInfo info,
                            backend_.store().Describe(session));
    // It may come in under a number that was in use before.
    backend_.prefetcher().Cancel(session);
    *answer.mutable_state() = ToProto(info);
    return answer;
  }

  // What a call that ended in `status` leaves: whole blocks when its stream
  // broke off, else nothing.
  absl::Status End(const absl::Status& status) {
    bool keep = false;
    absl::Status result = status;
    if (turn_.current()) {
      MutexLock lock(&turn_.ticket->mu);
      const uint64_t kept = turn_.ticket->import->n_blocks();
      const bool broken = absl::IsCancelled(status) || status.ok();
      keep = broken && kept > 0 && !turn_.ticket->import->receipt();
      if (status.ok()) result = turn_.ticket->import->Finish();
      if (keep) {
        result =
            absl::Status(result.code(),
                         absl::StrFormat("%s; %d whole blocks are kept",
                                         std::string(result.message()), kept));
      }
    } else {
      keep = true;  // another call's
    }
    if (!keep) {
      backend_.imports().Drop(tenant_, header_.operation_id(),
                              turn_.ticket.get());
    }
    return result;
  }

 private:
  [[nodiscard]] absl::Status CheckTurn() const {
    if (turn_.current()) return absl::OkStatus();
    return absl::AbortedError(absl::StrFormat(
        "import: a later call of operation '%s' took the transfer over",
        header_.operation_id()));
  }

  std::unique_ptr<store::SessionImport> NewImport() const {
    // They outlive the call: a later one may go on.
    auto model = std::make_shared<std::shared_ptr<const RegisteredModel>>();
    auto kv_len = std::make_shared<uint64_t>(0);
    return std::make_unique<store::SessionImport>(
        &backend_.store(),
        [=, &models = backend_.models(), header = header_, tenant = tenant_](
            const store::ContainerOutline& outline,
            store::SuspendSpec spec) -> absl::StatusOr<store::SuspendSpec> {
          TORPOR_ASSIGN_OR_RETURN(*model, ModelOf(models, outline.header));
          *kv_len = outline.header.kv_len;
          return ArrivalSpec(outline, std::move(spec), header, tenant, **model);
        },
        [=](const store::Attachment& attachment) {
          return CheckArrived(attachment, **model, *kv_len);
        });
  }

  Backend& backend_;
  Call& call_;
  const uint32_t tenant_;
  const v1::ImportHeader header_;
  ImportTurn turn_;
};

void LogTransfer(std::string_view event, const store::SessionInfo& info,
                 uint64_t bytes) {
  LogEvent(spdlog::level::info, event,
           {{"session", info.key.id},
            {"version", std::to_string(info.version)},
            {"tokens", std::to_string(info.n_tokens)},
            {"bytes", std::to_string(bytes)}});
}

// Runs the stream behind its header.
template <typename Read, typename Write>
absl::Status RunImport(Backend& backend, ImportCall* import, const Read& read,
                       const Write& write) {
  TORPOR_ASSIGN_OR_RETURN(const v1::ImportResponse first, import->Begin());
  const absl::Status status = [&]() -> absl::Status {
    if (!write(first)) return absl::CancelledError("import: nobody listens");
    v1::ImportRequest message;
    uint64_t bytes = 0;
    while (read(&message)) {
      if (message.has_header()) return SecondHeader("import");
      bytes += message.chunk().data().size();
      TORPOR_ASSIGN_OR_RETURN(const bool done,
                              import->Feed(message.chunk().data()));
      if (!done) continue;
      TORPOR_ASSIGN_OR_RETURN(const v1::ImportResponse last, import->Receipt());
      LogEvent(
          spdlog::level::info, "import",
          {{"session", last.state().session()},
           {"version", std::to_string(last.receipt().version())},
           {"tokens", std::to_string(last.receipt().n_tokens())},
           {"bytes", std::to_string(bytes)},
           {"blocks_shared", std::to_string(last.receipt().blocks_shared())}});
      backend.metrics().CountRowBytes("in", "grpc", bytes);
      return write(last) ? absl::OkStatus()
                         : absl::CancelledError("import: nobody listens");
    }
    return absl::OkStatus();
  }();
  return import->End(status);
}

}  // namespace

grpc::ServerWriteReactor<v1::TransferChunk>* SessionServiceImpl::Export(
    grpc::CallbackServerContext* context, const v1::ExportRequest* request) {
  return RunWriter<v1::TransferChunk>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.Serve(
            "Export", call, [&](uint32_t tenant) -> absl::Status {
              store::ContainerOptions options;
              options.from_block = request->from_block();
              TORPOR_ASSIGN_OR_RETURN(options.chain, ChainOf(request->chain()));
              TORPOR_ASSIGN_OR_RETURN(
                  const std::unique_ptr<store::SessionLease> lease,
                  backend_.store().Open({tenant, request->session()},
                                        request->version()));
              options.model_layout = LayoutOf(backend_.models(), lease->info());
              Chunker chunks(call, write);
              uint64_t bytes = 0;
              TORPOR_RETURN_IF_ERROR(store::WriteContainer(
                  lease.get(), options, [&](std::span<const uint8_t> part) {
                    bytes += part.size();
                    return chunks.Add(part);
                  }));
              if (!chunks.Flush()) {
                return absl::CancelledError("export: nobody reads it");
              }
              LogTransfer("export", lease->info(), bytes);
              backend_.metrics().CountRowBytes("out", "grpc", bytes);
              return absl::OkStatus();
            });
      });
}

grpc::ServerBidiReactor<v1::ImportRequest, v1::ImportResponse>*
SessionServiceImpl::Import(grpc::CallbackServerContext* context) {
  return RunBidi<v1::ImportRequest, v1::ImportResponse>(
      context, &backend_.workers(),
      [=, this](Call& call, auto read, auto write) {
        return backend_.Serve(
            "Import", call, [&](uint32_t tenant) -> absl::Status {
              v1::ImportRequest message;
              if (!read(&message) || !message.has_header()) {
                return absl::InvalidArgumentError(
                    "import: the first message is no header");
              }
              const v1::ImportHeader header = message.header();
              TORPOR_RETURN_IF_ERROR(store::ValidateMutation(
                  {.session = {tenant, header.session().empty()
                                           ? "as exported"
                                           : header.session()},
                   .operation_id = header.operation_id()}));
              if (header.abandon()) {
                backend_.imports().Abandon(tenant, header.operation_id());
                return absl::OkStatus();
              }
              ImportCall import(backend_, call, tenant, header);
              return RunImport(backend_, &import, read, write);
            });
      });
}

}  // namespace torpor::service
