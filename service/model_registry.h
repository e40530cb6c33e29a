// SPDX-License-Identifier: Apache-2.0
//
// The models a daemon knows: their layout, fingerprint and block size, and,
// where weights lie on this host, the model itself. Registrations are kept in
// the store and reloaded at start. Thread-safe.

#ifndef TORPOR_SERVICE_MODEL_REGISTRY_H_
#define TORPOR_SERVICE_MODEL_REGISTRY_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/isa.h"
#include "kernels/ops.h"
#include "replay/fingerprint.h"
#include "replay/model.h"
#include "replay/model_layout.h"
#include "replay/replayer.h"
#include "store/session_store.h"
#include "torpor/v1/model_service.pb.h"

namespace torpor::service {

// Immutable once registered.
struct RegisteredModel {
  std::string name;
  replay::ModelLayout layout;
  replay::Fingerprint fingerprint;
  std::array<uint8_t, 32> fingerprint_hash{};
  uint32_t block_size = 0;
  // Layout index of each compact slot, in the store's order, and back.
  std::vector<uint32_t> compact_slots;
  std::map<uint32_t, uint32_t> compact_index;
  std::string model_dir;
  std::string kv_dtype;
  // Null when the daemon cannot run it; then the reason says why.
  std::shared_ptr<replay::Model> model;
  std::unique_ptr<replay::Replayer> replayer;
  // Its sequences stand in a device's memory, which refuses what it cannot
  // hold.
  bool on_device = false;
  std::string no_replay_reason;
  // Why it runs on the CPU although there is a device.
  std::string device_reason;

  [[nodiscard]] store::RecordLayout record_layout() const;
  [[nodiscard]] v1::ModelState ToProto() const;
};

struct ModelRegistryOptions {
  kernels::Isa isa = kernels::Isa::kPortable;
  int n_threads = 1;
  // What a replay may take on the CPU that found no room on the device.
  uint64_t cpu_replay_bytes = uint64_t{2} << 30;
  // A backend for one more model on the daemon's device; null = the CPU.
  std::function<absl::StatusOr<std::shared_ptr<kernels::Ops>>()> open_device;
};

class ModelRegistry {
 public:
  // `store` outlives the registry.
  ModelRegistry(store::SessionStore* store, ModelRegistryOptions options)
      : store_(store), options_(std::move(options)) {}

  // Registers again what the store remembers. A model whose weights are gone
  // stays known, without an executor and with the reason.
  absl::Status Reload();

  // kInvalidArgument or kFailedPrecondition for an impossible layout,
  // kAlreadyExists for another model under a taken name.
  absl::StatusOr<std::shared_ptr<const RegisteredModel>> Register(
      const v1::RegisterRequest& request);

  // kNotFound names the models there are.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const RegisteredModel>> Get(
      const std::string& name) const;
  // The model whose sessions carry that fingerprint; kNotFound.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const RegisteredModel>>
  GetByFingerprint(const std::array<uint8_t, 32>& hash) const;
  [[nodiscard]] std::vector<std::shared_ptr<const RegisteredModel>> List()
      const;

 private:
  absl::StatusOr<std::shared_ptr<RegisteredModel>> Build(
      const v1::RegisterRequest& request) const;
  // Fill layout, fingerprint and executor: of a directory, which for a
  // plan-only family needs config.json alone; of a config.json or an inventory.
  absl::Status FromDirectory(const v1::RegisterRequest& request,
                             RegisteredModel* out) const;
  // The model, and what replays it: on the device where it runs and fits there.
  absl::Status LoadForward(const v1::RegisterRequest& request,
                           RegisteredModel* out) const;
  static absl::Status FromDescription(const v1::RegisterRequest& request,
                                      RegisteredModel* out);

  store::SessionStore* const store_;
  const ModelRegistryOptions options_;
  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<const RegisteredModel>> models_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_MODEL_REGISTRY_H_
