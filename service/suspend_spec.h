// SPDX-License-Identifier: Apache-2.0
//
// The header of a suspend, checked against the model and turned into what the
// store begins with.

#ifndef TORPOR_SERVICE_SUSPEND_SPEC_H_
#define TORPOR_SERVICE_SUSPEND_SPEC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "service/model_registry.h"
#include "store/session_store.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {

// Without tokens, which are appended as they come. kInvalidArgument, or
// kFailedPrecondition when the fingerprint is another model's.
absl::StatusOr<store::SuspendSpec> SpecOf(const v1::BeginSuspendHeader& header,
                                          uint32_t tenant,
                                          const RegisteredModel& model);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SUSPEND_SPEC_H_
