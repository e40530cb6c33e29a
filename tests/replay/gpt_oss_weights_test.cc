// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss' tensors under either prefix, packed and not, and what is refused of
// them: the tiny models of tests/oracles with some tensors changed.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "replay/safetensors.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/replay/model_testing.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay::gpt_oss {
namespace {

using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};
using Tensors = std::map<std::string, Tensor>;
using Edit = std::function<void(Tensors* tensors)>;

// E2M1: sign, two bits of exponent, one of mantissa.
constexpr float kE2m1[] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                           -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

// The [experts, columns, rows] BF16 tensor of which blocks and scales are.
Tensor Unpacked(const Tensor& blocks, const Tensor& scales) {
  const int64_t experts = blocks.shape[0];
  const int64_t rows = blocks.shape[1];
  const int64_t columns = blocks.shape[2] * 32;
  Tensor out{.dtype = "BF16", .shape = {experts, columns, rows}};
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (e * rows + r) * columns + c;
        const uint8_t pair = blocks.bytes[static_cast<size_t>(at / 2)];
        const int code = c % 2 == 0 ? pair & 15 : pair >> 4;
        const int exponent = scales.bytes[static_cast<size_t>(at / 32)] - 127;
        const kernels::Bf16 value =
            kernels::ToBf16(std::ldexp(kE2m1[code], exponent));
        const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
        out.bytes.insert(out.bytes.end(), bytes, bytes + 2);
      }
    }
  }
  return out;
}

class GptOssWeightsTest : public ::testing::Test {
 protected:
  // The tiny model of that name with `edit` done to its tensors.
  absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& name,
                                              const Edit& edit) {
    const std::string from =
        std::string(TORPOR_ORACLES_DIR) + "/gpt_oss/" + name;
    const std::string to = temp_.File(std::to_string(n_loaded_++));
    std::filesystem::create_directory(to);
    std::filesystem::copy_file(from + "/config.json", to + "/config.json");
    Tensors tensors;
    {
      TORPOR_ASSIGN_OR_RETURN(const ModelTensors stored,
                              ModelTensors::Open(from));
      for (const auto& [key, view] : stored.tensors()) {
        tensors[key] = {
            view.dtype, view.shape, {view.bytes.begin(), view.bytes.end()}};
      }
    }
    edit(&tensors);
    std::vector<TensorToWrite> list;
    for (const auto& [key, tensor] : tensors) {
      list.push_back({key, tensor.dtype, tensor.shape, tensor.bytes});
    }
    TORPOR_RETURN_IF_ERROR(
        WriteSafetensors(to + "/model.safetensors", list, {}));
    return LoadModel(to, {.isa = kernels::AvailableIsas().back(),
                          .compute_dtype = "f32",
                          .kv_dtype = "f32"});
  }

  static std::vector<float> Logits(Model* model) {
    TestSession session(model);
    const std::vector<uint32_t> ids = {1, 2, 3, 30, 5, 6, 1};
    auto logits = session.Run(ids, ids.size());
    EXPECT_OK(logits.status());
    return logits.ok() ? *std::move(logits) : std::vector<float>();
  }

 private:
  testing::TempDir temp_;
  int n_loaded_ = 0;
};

TEST_F(GptOssWeightsTest, PackedExpertsAreTheirValues) {
  ASSERT_OK_AND_ASSIGN(const auto packed, Load("mxfp4", [](Tensors*) {}));
  ASSERT_OK_AND_ASSIGN(const auto plain, Load("mxfp4", [](Tensors* tensors) {
                         const Tensors all = *tensors;
                         for (const auto& [name, tensor] : all) {
                           const size_t at = name.rfind("_blocks");
                           if (at == std::string::npos) continue;
                           const std::string base = name.substr(0, at);
                           (*tensors)[base] =
                               Unpacked(tensor, all.at(base + "_scales"));
                           tensors->erase(name);
                           tensors->erase(base + "_scales");
                         }
                       }));
  EXPECT_TRUE(kernels::SameBits(Logits(packed.get()), Logits(plain.get())));
  EXPECT_NE(packed->fingerprint().weights, plain->fingerprint().weights);
}

TEST_F(GptOssWeightsTest, NamesMayStandAtTheRoot) {
  ASSERT_OK_AND_ASSIGN(const auto model, Load("yarn", [](Tensors*) {}));
  ASSERT_OK_AND_ASSIGN(const auto at_root, Load("yarn", [](Tensors* tensors) {
                         Tensors renamed;
                         for (auto& [name, tensor] : *tensors) {
                           const bool inside = name.starts_with("model.");
                           renamed[inside ? name.substr(6) : name] =
                               std::move(tensor);
                         }
                         *tensors = std::move(renamed);
                       }));
  EXPECT_EQ(model->fingerprint(), at_root->fingerprint());
  EXPECT_TRUE(kernels::SameBits(Logits(model.get()), Logits(at_root.get())));
}

TEST_F(GptOssWeightsTest, AMissingTensorIsNamed) {
  for (const char* name :
       {"lm_head.weight", "model.norm.weight", "model.embed_tokens.weight",
        "model.layers.3.self_attn.sinks",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.self_attn.v_proj.bias",
        "model.layers.1.self_attn.o_proj.bias",
        "model.layers.2.mlp.router.weight", "model.layers.2.mlp.router.bias",
        "model.layers.0.mlp.experts.gate_up_proj_bias",
        "model.layers.3.mlp.experts.down_proj_bias",
        "model.layers.1.post_attention_layernorm.weight"}) {
    EXPECT_THAT(
        Load("mxfp4", [&](Tensors* tensors) { tensors->erase(name); }),
        HasStatus(absl::StatusCode::kNotFound,
                  std::string(name).substr(std::string(name).rfind('.') + 1)))
        << name;
  }
  const std::string gate_up = "model.layers.1.mlp.experts.gate_up_proj";
  EXPECT_THAT(
      Load("mxfp4", [&](Tensors* t) { t->erase(gate_up + "_scales"); }),
      HasStatus(absl::StatusCode::kNotFound, "'" + gate_up + "_scales'"));
  EXPECT_THAT(Load("mxfp4", [&](Tensors* t) { t->erase(gate_up + "_blocks"); }),
              HasStatus(absl::StatusCode::kNotFound, "'" + gate_up + "'"));
}

TEST_F(GptOssWeightsTest, OtherShapesAndDtypesAreRefusedByName) {
  const auto refused = [&](const std::string& model, const std::string& name,
                           const std::function<void(Tensor*)>& change) {
    EXPECT_THAT(Load(model,
                     [&](Tensors* tensors) {
                       ASSERT_TRUE(tensors->contains(name)) << name;
                       change(&tensors->at(name));
                     }),
                HasStatus(kInvalid, "'" + name + "'"));
  };
  // The same bytes as another shape, or another type of as many bytes.
  const auto flat = [](Tensor* t) {
    int64_t n = 1;
    for (const int64_t d : t->shape) n *= d;
    t->shape = {n};
  };
  const auto swapped = [](Tensor* t) {
    ASSERT_NE(t->shape[1], t->shape[2]);
    std::swap(t->shape[1], t->shape[2]);
  };
  for (const std::string part : {"gate_up_proj", "down_proj"}) {
    const std::string name = "model.layers.2.mlp.experts." + part;
    refused("mxfp4", name + "_blocks", flat);
    refused("mxfp4", name + "_blocks", swapped);
    refused("mxfp4", name + "_scales", swapped);
    refused("mxfp4", name + "_blocks", [](Tensor* t) { t->dtype = "I8"; });
    refused("mxfp4", name + "_scales", [](Tensor* t) { t->dtype = "F8_E8M0"; });
    refused("mxfp4", name + "_bias", flat);
    refused("yarn", name, swapped);
    refused("yarn", name, [](Tensor* t) { t->dtype = "F16"; });
  }
  refused("yarn", "model.layers.0.self_attn.sinks", [](Tensor* t) {
    t->shape = {2, 2};
  });
  refused("yarn", "lm_head.weight", flat);
  refused("yarn", "model.layers.3.mlp.router.weight", flat);
}

// MXFP4 has whole groups of 32 columns; the matrix has 20.
TEST_F(GptOssWeightsTest, PackedColumnsAreAMultipleOf32) {
  EXPECT_THAT(Load("yarn",
                   [](Tensors* tensors) {
                     const std::string name =
                         "model.layers.0.mlp.experts.down_proj";
                     (*tensors)[name + "_blocks"] = {
                         .dtype = "U8", .shape = {0}, .bytes = {}};
                   }),
              HasStatus(kInvalid, "down_proj_blocks': 20 columns"));
}

}  // namespace
}  // namespace torpor::replay::gpt_oss
