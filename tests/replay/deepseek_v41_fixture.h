// SPDX-License-Identifier: Apache-2.0
//
// Numbers of tests/oracles/deepseek_v41, made by a float64 implementation that
// shares no code with this one, and a tap that compares a forward with them.

#ifndef TORPOR_TESTS_REPLAY_DEEPSEEK_V41_FIXTURE_H_
#define TORPOR_TESTS_REPLAY_DEEPSEEK_V41_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/deepseek_v41/model.h"
#include "replay/families.h"
#include "replay/safetensors.h"
#include "tests/replay/model_testing.h"

namespace torpor::replay::deepseek_v41 {

inline std::string CaseDirectory(const std::string& name) {
  return std::string(TORPOR_ORACLES_DIR) + "/deepseek_v41/" + name;
}

class Numbers {
 public:
  explicit Numbers(const std::string& path) {
    auto file = SafetensorsFile::Open(path);
    EXPECT_OK(file.status());
    if (file.ok()) file_ = *std::move(file);
  }

  [[nodiscard]] bool Has(const std::string& name) const {
    return file_->tensors().contains(name);
  }
  template <typename T>
  [[nodiscard]] std::vector<T> Get(const std::string& name) const {
    const TensorView& view = file_->tensors().at(name);
    std::vector<T> out(view.bytes.size() / sizeof(T));
    std::memcpy(out.data(), view.bytes.data(), view.bytes.size());
    return out;
  }
  // One row of a tensor.
  template <typename T>
  [[nodiscard]] std::vector<T> Row(const std::string& name,
                                   uint64_t row) const {
    const std::vector<T> all = Get<T>(name);
    const auto rows = static_cast<size_t>(file_->tensors().at(name).shape[0]);
    const size_t n = all.size() / rows;
    return {all.begin() + static_cast<ptrdiff_t>(row * n),
            all.begin() + static_cast<ptrdiff_t>((row + 1) * n)};
  }

 private:
  std::unique_ptr<SafetensorsFile> file_;
};

inline std::unique_ptr<DeepSeekV41> LoadCase(const std::string& name,
                                             kernels::Isa isa) {
  const std::string directory = CaseDirectory(name);
  const auto text = ReadModelConfig(directory);
  EXPECT_OK(text.status());
  auto model =
      LoadDeepSeekV41(directory, *text, {.isa = isa, .compute_dtype = "f32"});
  EXPECT_OK(model.status());
  return model.ok() ? *std::move(model) : nullptr;
}

// Largest |got - wanted| over the largest |wanted|.
inline double RelativeError(std::span<const float> got,
                            std::span<const float> wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  double error = 0;
  double largest = 0;
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - wanted[i]);
    // Written so that a NaN counts.
    if (!(d <= error)) error = d;
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
  }
  return largest == 0 ? error : error / largest;
}

// Compares everything that a cold run computes; when it forces, every row goes
// on with the oracle's codes and choices, so that no error travels.
class ComparingTap final : public Tap {
 public:
  ComparingTap(const Numbers* numbers, const ModelLayout* layout, bool forces)
      : numbers_(*numbers), layout_(*layout), forces_(forces) {}

  void OnRows(std::string_view name, uint32_t layer,
              std::span<const RowRun> runs, std::span<float> rows) override {
    const bool pooled = name == "latent" || name == "main" || name == "index";
    const std::string tensor = TensorOf(name, layer);
    if (!numbers_.Has(tensor)) return;
    const std::vector<float> all = numbers_.Get<float>(tensor);
    const size_t dim = rows.size() / CountRows(runs);
    size_t at = 0;
    for (const RowRun& run : runs) {
      for (uint64_t i = 0; i < run.n; ++i, at += dim) {
        const uint64_t row =
            pooled ? (run.position + 1) / GroupOf(layer) - 1 : run.position + i;
        const std::span<const float> wanted =
            std::span(all).subspan(row * dim, dim);
        double& worst = errors_[std::string(name)];
        worst = std::max(worst, RelativeError(rows.subspan(at, dim), wanted));
        if (forces_) std::copy(wanted.begin(), wanted.end(), &rows[at]);
        ++n_rows_;
      }
    }
  }

  void OnRecord(uint32_t slot, uint64_t row,
                std::span<uint8_t> bytes) override {
    const Slot& s = layout_.slots[slot];
    const std::vector<uint8_t> wanted =
        numbers_.Row<uint8_t>(s.name + "_bytes", row);
    ASSERT_EQ(wanted.size(), bytes.size()) << s.name;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != wanted[i]) ++code_flips_;
    }
    n_codes_ += bytes.size();
    if (forces_) std::copy(wanted.begin(), wanted.end(), bytes.begin());
  }

  void OnChoice(std::string_view name, uint32_t layer, uint64_t position,
                std::vector<int32_t>* ids) override {
    const std::string tensor =
        "layer." + std::to_string(layer) + "." + std::string(name);
    // The oracle makes no blocks that no layer uses.
    if (!numbers_.Has(tensor)) return;
    std::vector<int32_t> wanted = numbers_.Row<int32_t>(tensor, position);
    std::erase(wanted, -1);
    ++n_choices_;
    if (*ids != wanted) ++choice_flips_;
    if (forces_) *ids = wanted;
  }

  [[nodiscard]] const std::map<std::string, double>& errors() const {
    return errors_;
  }
  [[nodiscard]] uint64_t code_flips() const { return code_flips_; }
  [[nodiscard]] uint64_t choice_flips() const { return choice_flips_; }
  [[nodiscard]] uint64_t n_rows() const { return n_rows_; }
  [[nodiscard]] uint64_t n_codes() const { return n_codes_; }
  [[nodiscard]] uint64_t n_choices() const { return n_choices_; }

 private:
  static std::string TensorOf(std::string_view name, uint32_t layer) {
    const bool raw = name == "window" || name == "main" || name == "index";
    return "layer." + std::to_string(layer) + "." + std::string(name) +
           (raw ? "_raw" : "");
  }
  [[nodiscard]] uint64_t GroupOf(uint32_t layer) const {
    for (const Slot& slot : layout_.slots) {
      if (slot.owner_layer == layer && slot.kind == SlotKind::kPooled) {
        return slot.tokens_per_row;
      }
    }
    return 1;
  }

  const Numbers& numbers_;
  const ModelLayout& layout_;
  const bool forces_;
  std::map<std::string, double> errors_;
  uint64_t code_flips_ = 0;
  uint64_t choice_flips_ = 0;
  uint64_t n_rows_ = 0;
  uint64_t n_codes_ = 0;
  uint64_t n_choices_ = 0;
};

inline std::vector<uint32_t> IdsOf(const Numbers& numbers) {
  return numbers.Get<uint32_t>("ids");
}

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_TESTS_REPLAY_DEEPSEEK_V41_FIXTURE_H_
