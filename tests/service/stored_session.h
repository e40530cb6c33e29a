// SPDX-License-Identifier: Apache-2.0
//
// One session in a store, beside what its engine remembers of it: tokens, which
// version computed each row, floors. A row's bytes follow from (session, slot,
// row, version), so that a row of another place or time is seen. No gRPC, no
// weights.

#ifndef TORPOR_TESTS_SERVICE_STORED_SESSION_H_
#define TORPOR_TESTS_SERVICE_STORED_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "replay/planner.h"
#include "service/model_registry.h"
#include "store/session_store.h"

namespace torpor::service {

// Registered under `name`, which tells its fingerprint apart.
absl::StatusOr<std::shared_ptr<const RegisteredModel>> RegisterLayout(
    ModelRegistry* models, const std::string& name,
    const replay::ModelLayout& layout, uint32_t block_size);

class StoredSession {
 public:
  // `salt` tells the tokens and rows of sessions apart.
  StoredSession(store::SessionStore* store,
                std::shared_ptr<const RegisteredModel> model, uint32_t salt);

  struct Step {
    uint64_t tokens_kept = 0;
    uint64_t n_new = 0;
    uint64_t kv_len = 0;
    // Two-way and one-way spans among the new tokens, none cut by kv_len.
    std::vector<store::ExtraKeySpan> spans;
    // Of the wake at tokens_kept.
    std::optional<replay::Floor> floor;
    // Rows in one piece a slot instead of one a block.
    bool whole_pieces = false;
  };
  // kInternal when the store wants other rows than those that are new.
  absl::StatusOr<store::SuspendReceipt> Suspend(const Step& step);
  absl::Status Rewind(uint64_t at);
  absl::Status Erase();

  [[nodiscard]] const RegisteredModel& model() const { return *model_; }
  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const store::TokenRun& tokens() const { return tokens_; }
  [[nodiscard]] uint64_t n_tokens() const { return tokens_.ids.size(); }
  [[nodiscard]] uint64_t kv_len() const { return kv_len_; }
  [[nodiscard]] uint64_t version() const { return version_; }
  [[nodiscard]] const std::vector<replay::Floor>& floors() const {
    return floors_;
  }
  [[nodiscard]] std::string String() const;

  // Bytes of rows [begin, end) of a compact slot (store's index).
  [[nodiscard]] std::vector<uint8_t> Rows(uint32_t slot, uint64_t begin,
                                          uint64_t end) const;

 private:
  // Forgets tokens from `n_tokens` and rows from token `rows` on.
  void Cut(uint64_t n_tokens, uint64_t rows);
  absl::Status PutWanted(store::SuspendTicket* ticket, uint64_t rows_kept,
                         bool whole_pieces) const;

  store::SessionStore* const store_;
  const std::shared_ptr<const RegisteredModel> model_;
  const store::RecordLayout layout_;
  const uint32_t salt_;
  const std::string id_;
  store::TokenRun tokens_;
  uint64_t kv_len_ = 0;
  // Of the store; and how many there were, whatever their numbers.
  uint64_t version_ = 0;
  uint8_t n_versions_ = 0;
  // By compact slot, then by row.
  std::vector<std::vector<uint8_t>> computed_by_;
  std::vector<replay::Floor> floors_;
  std::string history_;
};

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_STORED_SESSION_H_
