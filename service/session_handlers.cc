// SPDX-License-Identifier: Apache-2.0
//
// Fork, Rewind, Describe, List, Delete, Touch, LookupPrefix.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/convert.h"
#include "service/session_service.h"

namespace torpor::service {
namespace {

constexpr uint32_t kDefaultPage = 100;
constexpr uint32_t kMaxPage = 1000;
// A page ends here, so that a client's limit of 4 MiB a message holds it.
constexpr size_t kPageBytes = size_t{2} << 20;

// A page token is the hex of the last id: ids are bytes, tokens are text.
absl::StatusOr<std::string> FromPageToken(const std::string& token) {
  const bool is_hex =
      token.size() % 2 == 0 &&
      std::all_of(token.begin(), token.end(), absl::ascii_isxdigit);
  if (!is_hex) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "page_token: got '%s', wanted one that List returned", token));
  }
  return absl::HexStringToBytes(token);
}

// What the store knows of a session, and who holds it.
v1::SessionState StateOf(Backend& backend, uint32_t tenant,
                         const store::SessionInfo& info) {
  v1::SessionState state = ToProto(info);
  state.set_open_tickets(static_cast<uint32_t>(backend.tickets().CountIf(
      tenant,
      [&](const Ticket& ticket) { return ticket.session == info.key.id; })));
  state.set_open_leases(static_cast<uint32_t>(
      backend.leases().CountIf(tenant, [&](const Lease& lease) {
        return lease.header().session() == info.key.id;
      })));
  return state;
}

}  // namespace

grpc::ServerUnaryReactor* SessionServiceImpl::Fork(
    grpc::CallbackServerContext* context, const v1::ForkRequest* request,
    v1::SessionState* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("Fork", call, [&](uint32_t tenant) -> absl::Status {
      store::ForkSpec spec;
      spec.source = {tenant, request->source()};
      spec.source_version = request->source_version();
      spec.target = {{tenant, request->target()},
                     request->expected_version(),
                     request->operation_id()};
      if (request->has_at()) spec.at = request->at();
      TORPOR_ASSIGN_OR_RETURN(const store::SessionInfo info,
                              backend_.store().Fork(spec));
      backend_.prefetcher().Cancel(info.key);
      *response = StateOf(backend_, tenant, info);
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* SessionServiceImpl::Rewind(
    grpc::CallbackServerContext* context, const v1::RewindRequest* request,
    v1::SessionState* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("Rewind", call, [&](uint32_t tenant) -> absl::Status {
      TORPOR_ASSIGN_OR_RETURN(
          const store::SessionInfo info,
          backend_.store().Rewind({{tenant, request->session()},
                                   request->expected_version(),
                                   request->operation_id()},
                                  request->at()));
      backend_.prefetcher().Cancel(info.key);
      *response = StateOf(backend_, tenant, info);
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* SessionServiceImpl::Describe(
    grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
    v1::SessionState* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve(
        "Describe", call, [&](uint32_t tenant) -> absl::Status {
          TORPOR_ASSIGN_OR_RETURN(
              const std::unique_ptr<store::SessionLease> lease,
              backend_.store().Open({tenant, request->session()}, 0));
          *response = StateOf(backend_, tenant, lease->info());
          TORPOR_ASSIGN_OR_RETURN(const std::vector<store::Floor> floors,
                                  lease->Floors(0, lease->info().kv_len));
          for (const replay::Floor& floor : ToReplay(floors)) {
            *response->add_floors() = ToProto(floor);
          }
          return absl::OkStatus();
        });
  });
}

grpc::ServerUnaryReactor* SessionServiceImpl::List(
    grpc::CallbackServerContext* context, const v1::ListRequest* request,
    v1::ListResponse* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("List", call, [&](uint32_t tenant) -> absl::Status {
      const uint32_t page =
          request->page_size() == 0 ? kDefaultPage : request->page_size();
      if (page > kMaxPage) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "page_size: got %d, wanted 1 to %d", page, kMaxPage));
      }
      TORPOR_ASSIGN_OR_RETURN(const std::string after,
                              FromPageToken(request->page_token()));
      TORPOR_ASSIGN_OR_RETURN(
          const store::ListResult result,
          backend_.store().List(tenant, request->prefix(), after, page));
      std::string next = result.next;
      size_t bytes = 0;
      for (const store::SessionInfo& info : result.sessions) {
        if (bytes > kPageBytes) {
          next = response->sessions().rbegin()->session();
          break;
        }
        *response->add_sessions() = StateOf(backend_, tenant, info);
        bytes += response->sessions().rbegin()->ByteSizeLong();
      }
      response->set_next_page_token(absl::BytesToHexString(next));
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* SessionServiceImpl::Delete(
    grpc::CallbackServerContext* context, const v1::DeleteRequest* request,
    v1::DeleteResponse* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("Delete", call, [&](uint32_t tenant) -> absl::Status {
      TORPOR_ASSIGN_OR_RETURN(
          const uint64_t version,
          backend_.store().Erase({{tenant, request->session()},
                                  request->expected_version(),
                                  request->operation_id()}));
      backend_.prefetcher().Cancel({tenant, request->session()});
      response->set_version(version);
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* SessionServiceImpl::Touch(
    grpc::CallbackServerContext* context, const v1::TouchRequest* request,
    v1::SessionState* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("Touch", call, [&](uint32_t tenant) -> absl::Status {
      store::TouchSpec spec;
      spec.session = {tenant, request->session()};
      TORPOR_ASSIGN_OR_RETURN(spec.session_class,
                              FromProto(request->session_class()));
      TORPOR_ASSIGN_OR_RETURN(
          spec.ttl_seconds,
          SecondsFromProto("ttl_seconds", request->ttl_seconds()));
      TORPOR_ASSIGN_OR_RETURN(
          spec.pin_seconds,
          SecondsFromProto("pin_seconds", request->pin_seconds()));
      for (const auto& [key, value] : request->labels()) {
        if (key.empty() || key.size() > store::kMaxLabelBytes ||
            value.size() > store::kMaxLabelBytes) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "label: got a key of %d and a value of %d bytes, wanted 1 to %d "
              "and at most %d",
              key.size(), value.size(), store::kMaxLabelBytes,
              store::kMaxLabelBytes));
        }
        spec.labels.emplace(key, value);
      }
      TORPOR_ASSIGN_OR_RETURN(const store::SessionInfo info,
                              backend_.store().Touch(spec));
      *response = StateOf(backend_, tenant, info);
      return absl::OkStatus();
    });
  });
}

grpc::ServerReadReactor<v1::LookupPrefixRequest>*
SessionServiceImpl::LookupPrefix(grpc::CallbackServerContext* context,
                                 v1::LookupPrefixResponse* response) {
  return RunReader<v1::LookupPrefixRequest>(
      context, &backend_.workers(), [=, this](Call& call, auto read) {
        return backend_.Serve(
            "LookupPrefix", call, [&](uint32_t tenant) -> absl::Status {
              v1::LookupPrefixRequest message;
              if (!read(&message) || !message.has_header()) {
                return absl::InvalidArgumentError(
                    "lookup: the first message is no header");
              }
              TORPOR_ASSIGN_OR_RETURN(
                  const auto model,
                  backend_.models().Get(message.header().model()));
              if (const auto difference = FirstContradiction(
                      message.header().fingerprint(), model->fingerprint)) {
                return absl::FailedPreconditionError(*difference);
              }
              store::TokenRun tokens;
              while (read(&message)) {
                if (message.has_header()) return SecondHeader("lookup");
                TORPOR_RETURN_IF_ERROR(
                    AppendTokens(message.tokens(), tokens.ids.size(),
                                 model->layout.vocab_size, &tokens));
              }
              if (call.cancelled()) return absl::CancelledError("lookup");
              TORPOR_RETURN_IF_ERROR(CheckSpansEnd(tokens));
              TORPOR_ASSIGN_OR_RETURN(
                  const store::PrefixHit hit,
                  backend_.store().Lookup(tenant, model->record_layout(),
                                          tokens));
              response->set_hit_len(hit.hit_len);
              response->set_compared(tokens.ids.size());
              return absl::OkStatus();
            });
      });
}

}  // namespace torpor::service
