// SPDX-License-Identifier: Apache-2.0

#include "service/model_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "replay/fallback_replayer.h"
#include "replay/families.h"
#include "service/convert.h"

namespace torpor::service {
namespace {

constexpr size_t kMaxNameBytes = 128;
// Begins a weights digest that is one of config.json alone.
constexpr char kConfigDigest[] = "config:";

absl::Status CheckName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model name: got %d bytes, wanted 1 to %d", name.size(),
                        kMaxNameBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckBlockSize(const replay::ModelLayout& layout,
                            uint32_t block_size) {
  if (block_size < 16 || block_size > 1'048'576) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "block_size: got %d tokens, wanted 16 to 1048576", block_size));
  }
  for (const uint32_t index : layout.CompactSlots()) {
    const replay::Slot& slot = layout.slots[index];
    if (block_size % slot.tokens_per_row != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "block_size: got %d tokens, wanted a multiple of the %d tokens a row "
          "of slot '%s'",
          block_size, slot.tokens_per_row, slot.name));
    }
  }
  return absl::OkStatus();
}

// What the engine says of itself, and what follows from the layout.
void SetFingerprint(const v1::RegisterRequest& request, RegisteredModel* out) {
  out->fingerprint = FromProto(request.fingerprint());
  if (out->fingerprint.layout.empty()) {
    out->fingerprint.layout = replay::LayoutDigest(out->layout);
  }
  if (out->fingerprint.format_version == 0) {
    out->fingerprint.format_version = replay::kRowFormatVersion;
  }
}

}  // namespace

store::RecordLayout RegisteredModel::record_layout() const {
  store::RecordLayout out;
  out.fingerprint = fingerprint_hash;
  out.block_size = block_size;
  for (const uint32_t index : compact_slots) {
    out.slots.push_back(
        {layout.slots[index].row_bytes, layout.slots[index].tokens_per_row});
  }
  return out;
}

v1::ModelState RegisteredModel::ToProto() const {
  v1::ModelState state;
  state.set_name(name);
  *state.mutable_layout() = service::ToProto(layout);
  *state.mutable_fingerprint() = service::ToProto(fingerprint);
  state.set_block_size(block_size);
  if (model != nullptr) {
    state.add_executors("daemon");
    state.set_numerics_id(model->numerics_id());
  }
  state.add_executors("engine");
  state.set_daemon_executor_reason(no_replay_reason);
  state.set_device_reason(device_reason);
  state.set_model_dir(model_dir);
  return state;
}

absl::Status ModelRegistry::FromDirectory(const v1::RegisterRequest& request,
                                          RegisteredModel* out) const {
  TORPOR_ASSIGN_OR_RETURN(const std::string config,
                          replay::ReadModelConfig(request.model_dir()));
  TORPOR_ASSIGN_OR_RETURN(const bool runs, replay::HasForward(config));
  if (runs) {
    TORPOR_RETURN_IF_ERROR(LoadForward(request, out));
    out->layout = out->model->layout();
    out->fingerprint = out->model->fingerprint();
    return absl::OkStatus();
  }
  TORPOR_ASSIGN_OR_RETURN(out->layout,
                          replay::LayoutFromConfig(config, {out->kv_dtype}));
  // What the files say, whatever an earlier registration found in them.
  SetFingerprint(request, out);
  out->fingerprint.layout = replay::LayoutDigest(out->layout);
  if (out->fingerprint.weights.empty() ||
      out->fingerprint.weights.starts_with(kConfigDigest)) {
    // The weights are not read, and may not be there: the config stands in for
    // them, which tells models of one shape apart where their configs differ.
    replay::WeightsDigest digest;
    digest.Update(config);
    out->fingerprint.weights = kConfigDigest + digest.Finish();
  }
  out->no_replay_reason = absl::StrFormat(
      "plan-only: no forward of '%s' is in this build, so only an engine can "
      "replay this model",
      out->layout.family);
  return absl::OkStatus();
}

absl::Status ModelRegistry::LoadForward(const v1::RegisterRequest& request,
                                        RegisteredModel* out) const {
  const replay::ModelOptions on_cpu{.isa = options_.isa,
                                    .n_threads = options_.n_threads,
                                    .kv_dtype = out->kv_dtype};
  const auto load_cpu = [dir = request.model_dir(), on_cpu] {
    return replay::LoadModel(dir, on_cpu);
  };
  if (options_.open_device) {
    replay::ModelOptions on_device = on_cpu;
    TORPOR_ASSIGN_OR_RETURN(on_device.ops, options_.open_device());
    auto model = replay::LoadModel(request.model_dir(), on_device);
    if (model.ok()) {
      out->model = *std::move(model);
      out->replayer =
          replay::MakeFallbackReplayer(replay::MakeReplayer(out->model.get()),
                                       load_cpu, options_.cpu_replay_bytes);
      out->on_device = true;
      return absl::OkStatus();
    }
    if (!absl::IsResourceExhausted(model.status())) return model.status();
    out->device_reason = std::string(model.status().message());
  }
  TORPOR_ASSIGN_OR_RETURN(out->model, load_cpu());
  out->replayer = replay::MakeReplayer(out->model.get());
  return absl::OkStatus();
}

absl::Status ModelRegistry::FromDescription(const v1::RegisterRequest& request,
                                            RegisteredModel* out) {
  out->no_replay_reason =
      "no weights were given: only an engine can replay this model";
  if (request.has_layout()) {
    TORPOR_ASSIGN_OR_RETURN(out->layout, FromProto(request.layout()));
  } else {
    TORPOR_ASSIGN_OR_RETURN(
        replay::PlannedLayout planned,
        replay::PlanConfig(request.config_json(), {out->kv_dtype}));
    out->layout = std::move(planned.layout);
    if (planned.plan_only) {
      out->no_replay_reason = absl::StrFormat(
          "plan-only: no weights were given and no forward of '%s' is in this "
          "build, so only an engine can replay this model",
          out->layout.family);
    }
  }
  SetFingerprint(request, out);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RegisteredModel>> ModelRegistry::Build(
    const v1::RegisterRequest& request) const {
  auto out = std::make_shared<RegisteredModel>();
  out->name = request.name();
  out->model_dir = request.model_dir();
  out->kv_dtype = request.kv_dtype().empty() ? "native" : request.kv_dtype();
  const int sources = (request.model_dir().empty() ? 0 : 1) +
                      (request.config_json().empty() ? 0 : 1) +
                      (request.has_layout() ? 1 : 0);
  if (sources != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "register '%s': got %d of model_dir, config_json and layout, wanted "
        "one",
        request.name(), sources));
  }
  if (!request.model_dir().empty()) {
    TORPOR_RETURN_IF_ERROR(FromDirectory(request, out.get()));
  } else {
    TORPOR_RETURN_IF_ERROR(FromDescription(request, out.get()));
  }
  TORPOR_RETURN_IF_ERROR(out->layout.Validate());
  if (const auto difference =
          FirstContradiction(request.fingerprint(), out->fingerprint)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("register '%s': %s", request.name(), *difference));
  }
  out->block_size = request.block_size() != 0
                        ? request.block_size()
                        : replay::ChooseBlockSize(out->layout);
  TORPOR_RETURN_IF_ERROR(CheckBlockSize(out->layout, out->block_size));
  // The store's layout goes with the fingerprint, so both must go together.
  out->fingerprint_hash = replay::FingerprintHash(out->fingerprint);
  out->compact_slots = out->layout.CompactSlots();
  for (uint32_t i = 0; i < out->compact_slots.size(); ++i) {
    out->compact_index[out->compact_slots[i]] = i;
  }
  return out;
}

absl::StatusOr<std::shared_ptr<const RegisteredModel>> ModelRegistry::Register(
    const v1::RegisterRequest& request) {
  TORPOR_RETURN_IF_ERROR(CheckName(request.name()));
  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<RegisteredModel> built,
                          Build(request));
  {
    MutexLock lock(&mu_);
    const auto it = models_.find(request.name());
    if (it != models_.end()) {
      if (const auto difference = replay::FirstDifference(
              built->fingerprint, it->second->fingerprint)) {
        return absl::AlreadyExistsError(
            absl::StrFormat("register '%s': another model has that name: %s",
                            request.name(), *difference));
      }
      if (built->block_size != it->second->block_size) {
        return absl::AlreadyExistsError(absl::StrFormat(
            "register '%s': registered with blocks of %d tokens, got %d",
            request.name(), it->second->block_size, built->block_size));
      }
    }
  }
  v1::RegisterRequest kept = request;
  kept.set_block_size(built->block_size);
  *kept.mutable_fingerprint() = ToProto(built->fingerprint);
  // The layout itself, should the weights be gone at the next start.
  *kept.mutable_layout() = ToProto(built->layout);
  TORPOR_RETURN_IF_ERROR(
      store_->PutModel(request.name(), kept.SerializeAsString()));
  MutexLock lock(&mu_);
  return models_[request.name()] = std::move(built);
}

absl::Status ModelRegistry::Reload() {
  TORPOR_ASSIGN_OR_RETURN(const auto kept, store_->Models());
  for (const auto& [name, bytes] : kept) {
    v1::RegisterRequest request;
    if (!request.ParseFromString(bytes)) {
      return absl::DataLossError(
          absl::StrFormat("model '%s': its registration is damaged", name));
    }
    v1::RegisterRequest from_source = request;
    if (!request.model_dir().empty() || !request.config_json().empty()) {
      from_source.clear_layout();
    }
    absl::StatusOr<std::shared_ptr<RegisteredModel>> built = Build(from_source);
    if (!built.ok()) {
      // Its sessions stay readable by an engine.
      const std::string reason(built.status().message());
      request.clear_model_dir();
      request.clear_config_json();
      built = Build(request);
      if (!built.ok()) return built.status();
      (*built)->model_dir = from_source.model_dir();
      (*built)->no_replay_reason = reason;
    }
    MutexLock lock(&mu_);
    models_[name] = *std::move(built);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const RegisteredModel>> ModelRegistry::Get(
    const std::string& name) const {
  MutexLock lock(&mu_);
  const auto it = models_.find(name);
  if (it != models_.end()) return it->second;
  std::vector<std::string> names;
  for (const auto& [known, model] : models_) names.push_back(known);
  return absl::NotFoundError(
      absl::StrFormat("model '%s': not registered; registered are: %s", name,
                      names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::shared_ptr<const RegisteredModel>>
ModelRegistry::GetByFingerprint(const std::array<uint8_t, 32>& hash) const {
  MutexLock lock(&mu_);
  for (const auto& [name, model] : models_) {
    if (model->fingerprint_hash == hash) return model;
  }
  return absl::NotFoundError("no registered model has that fingerprint");
}

std::vector<std::shared_ptr<const RegisteredModel>> ModelRegistry::List()
    const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const RegisteredModel>> out;
  for (const auto& [name, model] : models_) out.push_back(model);
  return out;
}

}  // namespace torpor::service
