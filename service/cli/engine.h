// SPDX-License-Identifier: Apache-2.0
//
// The built-in engine: one session in memory, run by a model of this process,
// put to sleep in the daemon and woken from it. The last token is pending as a
// rule: it has no KV until the next one is wanted.

#ifndef TORPOR_SERVICE_CLI_ENGINE_H_
#define TORPOR_SERVICE_CLI_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/model.h"
#include "replay/replayer.h"
#include "service/cli/sampler.h"
#include "service/client.h"

namespace torpor::service::cli {

struct WakeOptions {
  v1::ReplayMode mode = v1::REPLAY_MODE_AUTO;
  v1::ResumeLimits limits;
  uint64_t cut = 0;
  // Of the last token, for a session in which none pends.
  bool want_logits = false;
  // For a session that has no sampler: a fork, or one that was cut back.
  SamplerOptions sampler;
};

struct WakeReport {
  v1::ResumeReceipt receipt;
  // What cold must do again: [resume_at, n) run here.
  uint64_t prefilled_tokens = 0;
  // Whole resume, seen from here; of it, prefill in this process.
  uint64_t resume_us = 0;
  uint64_t prefill_us = 0;
};

class Engine {
 public:
  // `model` (of this process) is the model registered under `model_name`.
  Engine(replay::Model* model, std::string model_name)
      : model_(model), model_name_(std::move(model_name)) {}

  // Prefills run the layers above the last one that persists for their last
  // window of rows alone (replay::PlanTailPrefill), where a model has such.
  void set_decoder_tail(bool on) { decoder_tail_ = on; }

  [[nodiscard]] const std::vector<uint32_t>& ids() const { return ids_; }
  [[nodiscard]] uint64_t kv_len() const { return kv_len_; }
  [[nodiscard]] uint64_t version() const { return version_; }
  Sampler& sampler() { return *sampler_; }

  // A session without tokens.
  void Start(const SamplerOptions& options);

  // Appends tokens without running them.
  void Append(std::span<const uint32_t> ids);

  // Runs what is pending and draws the next token, which is then pending. With
  // nothing pending it is drawn from the logits that a wake asked for.
  absl::StatusOr<uint32_t> Next();
  // Logits of every token of `ids`, which are appended and run.
  absl::StatusOr<std::vector<float>> Feed(std::span<const uint32_t> ids);

  // Wakes a session. Tokens, sampler and version come from the daemon.
  absl::StatusOr<WakeReport> Wake(Client* client, const std::string& session,
                                  const WakeOptions& options);
  // Runs pending tokens but the last, then suspends what is new.
  absl::StatusOr<v1::SuspendReceipt> Sleep(Client* client,
                                           const std::string& session,
                                           uint32_t block_size,
                                           bool with_snapshot);

 private:
  absl::Status RunPending(uint64_t keep, std::vector<float>* logits);

  replay::Model* const model_;
  const std::string model_name_;
  std::unique_ptr<replay::Sequence> sequence_;
  std::vector<uint32_t> ids_;
  // Tokens that have run.
  uint64_t kv_len_ = 0;
  // Of the last token, when a wake brought them; empty once it is not the last.
  std::vector<float> logits_;
  bool decoder_tail_ = false;
  std::optional<Sampler> sampler_;

  // What the daemon has: version, its tokens and KV, and wakes since.
  uint64_t version_ = 0;
  uint64_t stored_tokens_ = 0;
  uint64_t stored_kv_len_ = 0;
  std::vector<v1::Floor> floors_;
  // Rows computed from here on are exact; false once a bounded wake served.
  bool exact_ = true;
};

}  // namespace torpor::service::cli

#endif  // TORPOR_SERVICE_CLI_ENGINE_H_
