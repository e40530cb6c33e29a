// SPDX-License-Identifier: Apache-2.0
//
// What every model family must prove, written once: the tests of the
// conformance_*.cc files run on each FamilyCase that is instantiated
// (family_conformance_test.cc). They know a model by its layout, its sequences
// and the replayer, and compare with ==. A family says in its traits what a
// layout cannot.

#ifndef TORPOR_TESTS_REPLAY_FAMILY_CONFORMANCE_H_
#define TORPOR_TESTS_REPLAY_FAMILY_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/replay/exactness_testing.h"
#include "tests/replay/watched_model.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay {

// How a reader uses the rows of a persisted slot that it can see.
enum class RowUse : uint8_t {
  // Attends to each of them.
  kEvery,
  // Attends to those that it picks, or picks by them.
  kPicked,
  // They decide nothing in this model, as when all rows are picked anyway.
  kNone,
};

// Every row of full slots and some of pooled ones.
RowUse UsualRowUse(const Slot& slot);

struct FamilyTraits {
  // Ids before a row that a layer looks up by itself: a replay from row s reads
  // the ids from s - id_lookback on.
  uint64_t id_lookback = 0;
  // Of persisted slots.
  std::function<RowUse(const Slot&)> row_use = UsualRowUse;
  // What stands in a poisoned input row. A family's windows must not round it
  // away: NaN stays NaN, or at least another row than there was.
  float poison = std::numeric_limits<float>::quiet_NaN();
};

struct FamilyCase {
  // Letters, digits and underscores.
  std::string name;
  // A directory with config.json and weights; may write one into `temp_dir`.
  std::function<std::string(const std::string& temp_dir)> directory;
  std::function<absl::StatusOr<std::unique_ptr<Model>>(
      const std::string& directory, const ModelOptions& options)>
      load = LoadModel;
  // n_threads and isa are set by the suite.
  ModelOptions options;
  FamilyTraits traits;
};

void PrintTo(const FamilyCase& family_case, std::ostream* out);

// A case whose model is a directory of tests/oracles.
FamilyCase OracleCase(const std::string& name, const std::string& directory,
                      const std::string& kv_dtype = "native");

// DeepSeek V4.1's tiny models; layers look at the three ids before a row.
FamilyCase V41Case(const std::string& name, const std::string& directory,
                   const std::string& compute_dtype);

// Each case on every CPU path of this machine, or on the fastest, named after
// it.
std::vector<FamilyCase> OnEveryIsa(std::vector<FamilyCase> cases);
std::vector<FamilyCase> OnFastestIsa(std::vector<FamilyCase> cases);

std::string FamilyCaseName(const ::testing::TestParamInfo<FamilyCase>& info);

class FamilyConformance : public ::testing::TestWithParam<FamilyCase> {
 protected:
  // Loads the model and measures its layout.
  void SetUp() override;

  std::unique_ptr<Model> Load(int n_threads) const;
  std::vector<uint32_t> Ids(size_t n) {
    return RandomIds(random_, n, model_->vocab_size());
  }
  const ModelLayout& layout() const { return model_->layout(); }
  const FamilyTraits& traits() const { return GetParam().traits; }

  // Cuts first, first + 1, ..., last.
  static std::vector<uint64_t> Cuts(uint64_t first, uint64_t last);
  // One of each kind (of open groups and chunks), far enough from the start
  // that an exact replay begins behind it, and longer than twice its length.
  std::vector<uint64_t> FarCuts() const;

  // Rebuilds the window of one session.
  static absl::StatusOr<ReplayResult> Rebuild(Model* model,
                                              const ReplayPlan& plan,
                                              std::span<const uint32_t> ids,
                                              MemoryRows* rows,
                                              bool want_logits = false);
  // Fails unless a session that wakes at the plan's cut goes on as the one that
  // never slept: windows there, then logits, rows and windows of `n_more`.
  void ExpectGoesOn(NeverSlept* truth, const ReplayPlan& plan, uint64_t n_more);

  // Whether a reader of the slot runs a row under the plan.
  static bool IsRead(const Slot& slot, const ReplayPlan& plan);

  testing::TempDir temp_dir_;
  testing::Random random_;
  std::string directory_;
  std::unique_ptr<Model> model_;
  // Tokens of the longest exact replay; the largest window; tokens after which
  // groups and chunks of all slots begin together again.
  uint64_t exact_ = 0;
  uint64_t window_ = 0;
  uint64_t period_ = 1;
};

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_FAMILY_CONFORMANCE_H_
