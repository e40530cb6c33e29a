// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/family_conformance.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/isa.h"

namespace torpor::replay {

RowUse UsualRowUse(const Slot& slot) {
  return slot.kind == SlotKind::kPooled ? RowUse::kPicked : RowUse::kEvery;
}

void PrintTo(const FamilyCase& family_case, std::ostream* out) {
  *out << family_case.name;
}

FamilyCase OracleCase(const std::string& name, const std::string& directory,
                      const std::string& kv_dtype) {
  FamilyCase family_case;
  family_case.name = name;
  family_case.directory = [directory](const std::string&) {
    return std::string(TORPOR_ORACLES_DIR) + "/" + directory;
  };
  family_case.options.kv_dtype = kv_dtype;
  return family_case;
}

FamilyCase V41Case(const std::string& name, const std::string& directory,
                   const std::string& compute_dtype) {
  FamilyCase family_case = OracleCase(name, "deepseek_v41/" + directory);
  family_case.options.compute_dtype = compute_dtype;
  family_case.traits.id_lookback = 3;
  return family_case;
}

namespace {

std::vector<FamilyCase> OnIsas(const std::vector<FamilyCase>& cases,
                               std::span<const kernels::Isa> isas) {
  std::vector<FamilyCase> out;
  for (const FamilyCase& family_case : cases) {
    for (const kernels::Isa isa : isas) {
      FamilyCase& on_isa = out.emplace_back(family_case);
      on_isa.name += "_" + std::string(kernels::IsaName(isa));
      on_isa.options.isa = isa;
    }
  }
  return out;
}

}  // namespace

std::vector<FamilyCase> OnEveryIsa(std::vector<FamilyCase> cases) {
  return OnIsas(cases, kernels::AvailableIsas());
}

std::vector<FamilyCase> OnFastestIsa(std::vector<FamilyCase> cases) {
  const std::vector<kernels::Isa> isas = kernels::AvailableIsas();
  return OnIsas(cases, std::span(isas).last(1));
}

std::string FamilyCaseName(const ::testing::TestParamInfo<FamilyCase>& info) {
  return info.param.name;
}

void FamilyConformance::SetUp() {
  directory_ = GetParam().directory(temp_dir_.path());
  model_ = Load(1);
  ASSERT_NE(model_, nullptr);
  ASSERT_OK(layout().Validate());
  ASSERT_GT(model_->max_rows(), 0);
  uint64_t far = 1;
  for (const Slot& slot : layout().slots) {
    period_ = std::lcm(period_, uint64_t{slot.tokens_per_row});
    if (slot.chunk != 0) period_ = std::lcm(period_, uint64_t{slot.chunk});
    far += slot.reach() + slot.overlap_tokens + slot.tokens_per_row;
  }
  window_ = layout().LargestWindow();
  for (uint64_t cut = far; cut < far + period_; ++cut) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact));
    exact_ = std::max(exact_, plan.replay_tokens());
  }
}

std::unique_ptr<Model> FamilyConformance::Load(int n_threads) const {
  ModelOptions options = GetParam().options;
  options.n_threads = n_threads;
  absl::StatusOr<std::unique_ptr<Model>> model =
      GetParam().load(directory_, options);
  EXPECT_OK(model.status());
  return model.ok() ? *std::move(model) : nullptr;
}

std::vector<uint64_t> FamilyConformance::Cuts(uint64_t first, uint64_t last) {
  std::vector<uint64_t> cuts(last - first + 1);
  std::iota(cuts.begin(), cuts.end(), first);
  return cuts;
}

std::vector<uint64_t> FamilyConformance::FarCuts() const {
  const uint64_t first = 2 * exact_ + window_ + 1;
  return Cuts(first, first + period_ - 1);
}

absl::StatusOr<ReplayResult> FamilyConformance::Rebuild(
    Model* model, const ReplayPlan& plan, std::span<const uint32_t> ids,
    MemoryRows* rows, bool want_logits) {
  const ReplayJob job{.plan = &plan,
                      .ids = ids.first(plan.resume_at),
                      .reader = rows,
                      .want_logits = want_logits};
  TORPOR_ASSIGN_OR_RETURN(
      std::vector<ReplayResult> results,
      MakeReplayer(model)->Rebuild(std::span(&job, 1), nullptr));
  return std::move(results[0]);
}

void FamilyConformance::ExpectGoesOn(NeverSlept* truth, const ReplayPlan& plan,
                                     uint64_t n_more) {
  const uint64_t cut = plan.resume_at;
  ASSERT_OK_AND_ASSIGN(
      TestSession woken,
      TestSession::Wake(model_.get(), truth->ids(), plan, truth->rows()));
  ASSERT_OK_AND_ASSIGN(const WindowState window, woken.Window());
  ASSERT_EQ(window.slots, truth->window(cut).slots) << "cut " << cut;
  const uint64_t end = std::min<uint64_t>(cut + n_more, truth->ids().size());
  if (end == cut) return;
  ASSERT_OK_AND_ASSIGN(
      const std::vector<float> logits,
      woken.Run(std::span(truth->ids()).subspan(cut, end - cut), end - cut));
  ASSERT_TRUE(kernels::SameBits(logits, truth->logits(cut, end)))
      << "cut " << cut;
  ASSERT_OK_AND_ASSIGN(const WindowState later, woken.Window());
  ASSERT_EQ(later.slots, truth->window(end).slots) << "cut " << cut;
  ASSERT_OK_AND_ASSIGN(const MemoryRows rows, woken.Compact());
  for (const auto& [slot, bytes] : rows.slots) {
    const std::vector<uint8_t>& wanted = truth->rows()->slots.at(slot);
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), wanted.begin()))
        << layout().slots[slot].name << ", cut " << cut;
  }
}

bool FamilyConformance::IsRead(const Slot& slot, const ReplayPlan& plan) {
  return std::any_of(slot.reader_layers.begin(), slot.reader_layers.end(),
                     [&](uint32_t reader) {
                       return plan.layers[reader].run_begin < plan.resume_at;
                     });
}

}  // namespace torpor::replay
