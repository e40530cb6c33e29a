// SPDX-License-Identifier: Apache-2.0
//
// How the built-in engine computes: the options of every command that runs a
// model itself.

#ifndef TORPOR_SERVICE_CLI_ENGINE_OPTIONS_H_
#define TORPOR_SERVICE_CLI_ENGINE_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "kernels/isa.h"
#include "replay/model.h"
#include "service/device.h"

namespace torpor::service::cli {

struct EngineOptions {
  std::string isa = "auto";
  int n_threads = 0;
  std::string dtype = "native";
  DeviceOptions device;

  void AddTo(CLI::App* command) {
    command
        ->add_option("--isa", isa,
                     "CPU path: auto, portable, avx2, avx512bf16 or amx")
        ->capture_default_str();
    command->add_option("--threads", n_threads,
                        "Threads (default: one a processor)");
    command
        ->add_option("--device", device.name,
                     "Where it runs: cpu, cuda:N or auto")
        ->capture_default_str();
    command
        ->add_option("--device-gemm", device.gemm,
                     "What multiplies on a device: simt, or tensor: its tensor "
                     "cores, in bf16")
        ->capture_default_str();
    command
        ->add_option("--dtype", dtype,
                     "native, or f32 or bf16 for weights and KV alike")
        ->capture_default_str();
  }

  absl::StatusOr<replay::ModelOptions> ModelOptionsOf() const {
    TORPOR_ASSIGN_OR_RETURN(const kernels::Isa parsed, kernels::ParseIsa(isa));
    const int threads =
        n_threads > 0 ? n_threads
                      : static_cast<int>(std::thread::hardware_concurrency());
    replay::ModelOptions options{.isa = parsed,
                                 .n_threads = threads,
                                 .compute_dtype = dtype,
                                 .kv_dtype = dtype};
    TORPOR_ASSIGN_OR_RETURN(const Device chosen, ChooseDevice(device));
    if (chosen.open) {
      TORPOR_ASSIGN_OR_RETURN(options.ops, chosen.open());
    }
    return options;
  }
};

}  // namespace torpor::service::cli

#endif  // TORPOR_SERVICE_CLI_ENGINE_OPTIONS_H_
