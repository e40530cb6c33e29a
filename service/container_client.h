// SPDX-License-Identifier: Apache-2.0
//
// Containers between a client and daemons: out of one, into one, and from one
// to another. Blocking.

#ifndef TORPOR_SERVICE_CONTAINER_CLIENT_H_
#define TORPOR_SERVICE_CONTAINER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/client.h"
#include "store/types.h"

namespace torpor::service {

// Takes the next bytes; an error ends the transfer and is its result.
using ContainerBytes = std::function<absl::Status(std::string_view bytes)>;

// The bytes of an export, in order.
absl::Status ExportContainer(Client* client, const v1::ExportRequest& request,
                             const ContainerBytes& take);

// An import under way. Not thread-safe.
class ImportStream {
 public:
  // Waits for the first answer.
  static absl::StatusOr<std::unique_ptr<ImportStream>> Open(
      Client* client, const v1::ImportHeader& header);
  // Cancels what has not finished: whole blocks stay with the daemon.
  ~ImportStream();

  // Where to go on.
  [[nodiscard]] const v1::ImportResponse& first() const { return first_; }
  // kCancelled when the daemon takes no more: Finish says why.
  absl::Status Write(std::string_view bytes);
  // The last answer, or why there is none.
  absl::StatusOr<v1::ImportResponse> Finish();

 private:
  ImportStream() = default;

  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::ImportRequest, v1::ImportResponse>>
      stream_;
  v1::ImportResponse first_;
  bool finished_ = false;
};

// The same for the same container under the same name, whoever asks: a transfer
// goes on where it broke, and one that was done is not done again.
std::string ImportOperation(const store::Hash256& outline_chain,
                            const std::string& name);

struct Pulled {
  v1::ImportResponse answer;
  // Where it went on; 0 = it began at the beginning.
  uint64_t from_block = 0;
  // Bytes that travelled.
  uint64_t bytes = 0;
};

// A session of `from` into `to`, as `name` (empty: under its own). `progress`
// is told bytes so far and of the whole container, or 0 while that is unknown.
absl::StatusOr<Pulled> PullContainer(
    Client* from, Client* to, const std::string& session,
    const std::string& name,
    const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_CONTAINER_CLIENT_H_
