// SPDX-License-Identifier: Apache-2.0
//
// Replays on a device, and on the CPU those that find no room there.

#ifndef TORPOR_REPLAY_FALLBACK_REPLAYER_H_
#define TORPOR_REPLAY_FALLBACK_REPLAYER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "replay/model.h"
#include "replay/replayer.h"

namespace torpor::replay {

// The same model on the CPU; called once, when it is first needed.
using CpuModelLoader = std::function<absl::StatusOr<std::unique_ptr<Model>>()>;

// Jobs that `device` refuses with kResourceExhausted, alone, run on the CPU;
// their results carry the reason and the CPU's numerics id. A job that would
// take more than `cpu_memory_bytes` there keeps the device's error, as any
// other error is the device's. Not thread-safe, as `device`.
std::unique_ptr<Replayer> MakeFallbackReplayer(std::unique_ptr<Replayer> device,
                                               CpuModelLoader load_cpu,
                                               uint64_t cpu_memory_bytes);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_FALLBACK_REPLAYER_H_
