// SPDX-License-Identifier: Apache-2.0

#include "service/grpc_lifetime.h"

#include <grpc/grpc.h>

namespace torpor::service {

// A reference that nobody gives back.
void KeepGrpcUp() { grpc_init(); }

}  // namespace torpor::service
