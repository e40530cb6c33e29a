// SPDX-License-Identifier: Apache-2.0
//
// A model whose numbers are hashes: a row's value depends on every row it
// attends to, so one row read wrongly changes everything after it. It runs a
// session as an engine does (prefill, decode, wakes) and runs replay plans to
// the letter; a read of a row that is not there is an error, never a zero.

#ifndef TORPOR_TESTS_REPLAY_SESSION_SIMULATOR_H_
#define TORPOR_TESTS_REPLAY_SESSION_SIMULATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "replay/model_layout.h"
#include "replay/planner.h"

namespace torpor::replay {

using Value = uint64_t;
// By slot, then by row (of pooled slots: by group).
using KvRows = std::vector<std::vector<std::optional<Value>>>;

// Tokens and two-way spans of a session.
struct Timeline {
  std::vector<Value> tokens;
  std::vector<TwoWaySpan> spans;
};

// What a cut owes: the window and open-group rows that later tokens read, and
// the last row's output.
struct Held {
  KvRows rows;
  std::optional<Value> logits;
};

struct Rebuilt {
  KvRows rows;
  std::optional<Value> logits;
  // Reads of rows that were not there.
  std::vector<std::string> errors;
};

// The rows of `kv` that persist at `cut`, and those of its open groups if the
// engine stores them.
KvRows StoredRows(const ModelLayout& layout, const KvRows& kv, uint64_t cut,
                  bool with_open_groups);

// Runs the rows of the plan and no others, on stored rows.
Rebuilt RunPlan(const ModelLayout& layout, const Timeline& timeline,
                const ReplayPlan& plan, KvRows stored);

// The same by an engine that knows no plan: all rows [start, cut) through all
// layers; windows begin empty, so that reads stop at `start` by themselves.
// `log`: older floors that it repeats.
Rebuilt RunRectangle(const ModelLayout& layout, const Timeline& timeline,
                     uint64_t start, uint64_t cut,
                     const std::vector<Floor>& log, KvRows stored);

// Why the owed rows and logits differ; empty when they do not.
std::string Difference(const ModelLayout& layout, const Held& want,
                       const Rebuilt& got);

// The owed rows of `rebuilt` at `cut`, those of open groups if asked.
Held HeldOf(const ModelLayout& layout, const Timeline& timeline, uint64_t cut,
            const Rebuilt& rebuilt, bool open_groups);

// One session as its engine sees it.
class SimulatedSession {
 public:
  SimulatedSession(const ModelLayout& layout, std::vector<TwoWaySpan> spans);

  [[nodiscard]] uint64_t n_tokens() const { return timeline_.tokens.size(); }
  [[nodiscard]] const Timeline& timeline() const { return timeline_; }
  [[nodiscard]] const KvRows& kv() const { return kv_; }
  [[nodiscard]] const std::vector<std::string>& errors() const {
    return errors_;
  }
  // What the session held when it first had `cut` tokens, or null when it never
  // stood there.
  [[nodiscard]] const Held* HeldAt(uint64_t cut) const;

  // Runs new tokens as one batch.
  void Append(const std::vector<Value>& tokens);
  // The same, but layers >= `layer_begin` run only the last `n_tail` of them,
  // with window reads cut there (the decoder tail of DeepSeek-V4.1).
  void AppendWithTail(const std::vector<Value>& tokens, uint64_t n_tail,
                      uint32_t layer_begin);
  // Forgets tokens from `cut` on.
  void Rewind(uint64_t cut);
  // Sleeps and wakes: window and open-group rows are now these.
  void Wake(const Rebuilt& rebuilt);

 private:
  void Record(uint64_t begin, uint64_t end);

  const ModelLayout& layout_;
  Timeline timeline_;
  KvRows kv_;
  // The output of each row, if the last layer ran it.
  std::vector<std::optional<Value>> outputs_;
  std::map<uint64_t, Held> held_;
  std::vector<std::string> errors_;
};

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_SESSION_SIMULATOR_H_
