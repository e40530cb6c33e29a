// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_SERVICE_GRPC_LIFETIME_H_
#define TORPOR_SERVICE_GRPC_LIFETIME_H_

namespace torpor::service {

// Keeps gRPC up until the process ends. Else it goes down with the last server
// and waits up to 10 s for a connection that is just going away.
void KeepGrpcUp();

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_GRPC_LIFETIME_H_
