// SPDX-License-Identifier: Apache-2.0

#include "service/status.h"

#include <string>

#include "absl/strings/str_format.h"

namespace torpor::service {
namespace {

// gRPC sends the text as metadata, of which a client takes 8 KiB, every byte
// that is not ASCII as three; beyond, the code is lost with the text.
constexpr size_t kEndBytes = 1024;

std::string Shortened(std::string text) {
  if (text.size() <= 2 * kEndBytes) return text;
  // Not inside a character of UTF-8.
  const auto inside = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  size_t begin = kEndBytes;
  while (begin > 0 && inside(begin)) --begin;
  size_t end = text.size() - kEndBytes;
  while (end < text.size() && inside(end)) ++end;
  return absl::StrFormat("%s ... (%d bytes) ... %s", text.substr(0, begin),
                         end - begin, text.substr(end));
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Shortened(std::string(status.message())));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

}  // namespace torpor::service
