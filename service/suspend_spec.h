// SPDX-License-Identifier: Apache-2.0
//
// The header of a suspend, or the outline of an import, checked against the
// model and turned into what the store begins with.

#ifndef TORPOR_SERVICE_SUSPEND_SPEC_H_
#define TORPOR_SERVICE_SUSPEND_SPEC_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "service/model_registry.h"
#include "store/container_reader.h"
#include "store/session_store.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {

// Without tokens, which are appended as they come. kInvalidArgument, or
// kFailedPrecondition when the fingerprint is another model's.
absl::StatusOr<store::SuspendSpec> SpecOf(const v1::BeginSuspendHeader& header,
                                          uint32_t tenant,
                                          const RegisteredModel& model);

// The model of this daemon whose fingerprint an exported session has.
// kFailedPrecondition names the first field in which the nearest one differs.
absl::StatusOr<std::shared_ptr<const RegisteredModel>> ModelOf(
    const ModelRegistry& models, const store::ContainerHeader& header);

// `spec` is what the outline asks for. Everything that a suspend's header is
// checked for is checked of it too. kFailedPrecondition also for a session
// whose time is over.
absl::StatusOr<store::SuspendSpec> ArrivalSpec(
    const store::ContainerOutline& outline, store::SuspendSpec spec,
    const v1::ImportHeader& header, uint32_t tenant,
    const RegisteredModel& model);

// kInvalidArgument for a witness that could not be compared with the window of
// `kv_len` tokens, a client state that is too long, or a kind that no suspend
// here stores.
absl::Status CheckArrived(const store::Attachment& attachment,
                          const RegisteredModel& model, uint64_t kv_len);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SUSPEND_SPEC_H_
