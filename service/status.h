// SPDX-License-Identifier: Apache-2.0
//
// absl::Status to gRPC and back: the codes have the same numbers.

#ifndef TORPOR_SERVICE_STATUS_H_
#define TORPOR_SERVICE_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace torpor::service {

// Of a message beyond 2 KiB its two ends.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_STATUS_H_
