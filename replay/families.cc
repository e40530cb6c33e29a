// SPDX-License-Identifier: Apache-2.0

#include "replay/families.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "replay/config_json.h"
#include "replay/deepseek_v41/model.h"
#include "replay/gemma3/config.h"
#include "replay/gemma3/model.h"
#include "replay/gpt_oss/model.h"
#include "replay/layouts/attention_stack.h"
#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"
#include "replay/layouts/refusals.h"

namespace torpor::replay {
namespace {

using nlohmann::json;

// A config and where its text model is described.
struct TextConfig {
  const json& outer;
  const json& text;
};

struct Family {
  // model_type of the config ...
  const char* model_type;
  // ... and of its text_config, where it has one; also the layout's family.
  const char* text_type;
  absl::StatusOr<PlannedLayout> (*layout)(const TextConfig& config,
                                          const std::string& family,
                                          const LayoutOptions& options);
  // Null when layouts alone are known: plan-only.
  absl::StatusOr<std::unique_ptr<Model>> (*load)(const std::string& directory,
                                                 std::string_view config_json,
                                                 const ModelOptions& options);
};

void NoteDraftLayers(int64_t n_layers, PlannedLayout* planned) {
  if (n_layers == 0) return;
  planned->notes.push_back(absl::StrFormat(
      "%d draft (MTP) layer%s not in the layout: KV of drafts follows from the "
      "last layer's output and changes no token, so an engine fills it as it "
      "goes on",
      n_layers, n_layers == 1 ? " is" : "s are"));
}

// Checkpoints may say how engines should store their KV; the figures are of
// rows of the dtype.
absl::Status NoteKvCacheScheme(const TextConfig& config,
                               const std::string& format,
                               PlannedLayout* planned) {
  for (const json* object : {&config.text, &config.outer}) {
    const auto quantised = object->find("quantization_config");
    if (quantised == object->end() || !quantised->is_object()) continue;
    const auto scheme = quantised->find("kv_cache_scheme");
    if (scheme == quantised->end() || !scheme->is_object()) continue;
    ConfigReader reader(*scheme);
    const int64_t bits = reader.Int("num_bits", 8, 1, 64);
    TORPOR_RETURN_IF_ERROR(reader.status());
    planned->notes.push_back(absl::StrFormat(
        "quantization_config asks for KV of %d bits; these are rows of %s",
        bits, format));
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::StatusOr<PlannedLayout> FinishStack(const TextConfig& config,
                                          const layouts::AttentionStack& stack,
                                          const std::string& family,
                                          const LayoutOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const std::string dtype,
                          layouts::DtypeName(config.outer, config.text));
  TORPOR_ASSIGN_OR_RETURN(const layouts::KvFormat format,
                          layouts::KvFormatOf(options.kv_dtype, dtype));
  TORPOR_RETURN_IF_ERROR(layouts::CheckStack(stack, format));
  PlannedLayout planned;
  planned.layout = layouts::BuildLayout(stack, family, format);
  NoteDraftLayers(stack.n_draft_layers, &planned);
  TORPOR_RETURN_IF_ERROR(NoteKvCacheScheme(config, format.name, &planned));
  return planned;
}

// A family whose cache is an attention stack.
template <layouts::AttentionStack (*Describe)(ConfigReader*)>
absl::StatusOr<PlannedLayout> FromStack(const TextConfig& config,
                                        const std::string& family,
                                        const LayoutOptions& options) {
  ConfigReader reader(config.text);
  layouts::AttentionStack stack = Describe(&reader);
  layouts::ApplyPerLayerConfig(&reader, &stack);
  TORPOR_RETURN_IF_ERROR(reader.status());
  return FinishStack(config, stack, family, options);
}

absl::StatusOr<PlannedLayout> Gemma3Layout(const TextConfig& config,
                                           const std::string& family,
                                           const LayoutOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const gemma3::Config parsed,
                          gemma3::ParseConfig(config.outer));
  return FinishStack(config, gemma3::StackOf(parsed), family, options);
}

// A family with records and slots of its own.
template <absl::StatusOr<ModelLayout> (*Describe)(ConfigReader*,
                                                  const std::string&)>
absl::StatusOr<PlannedLayout> FromRecords(const TextConfig& config,
                                          const std::string& family,
                                          const LayoutOptions& options) {
  // Read for its faults alone: the records do not follow the dtype.
  TORPOR_RETURN_IF_ERROR(
      layouts::DtypeName(config.outer, config.text).status());
  ConfigReader reader(config.text);
  PlannedLayout planned;
  TORPOR_ASSIGN_OR_RETURN(planned.layout, Describe(&reader, options.kv_dtype));
  planned.layout.family = family;
  const bool has_drafts =
      std::any_of(planned.layout.slots.begin(), planned.layout.slots.end(),
                  [](const Slot& slot) { return slot.is_draft(); });
  if (!has_drafts) NoteDraftLayers(layouts::ReadDraftLayers(&reader), &planned);
  TORPOR_RETURN_IF_ERROR(reader.status());
  return planned;
}

constexpr std::array kFamilies = {
    Family{"gemma3_text", "gemma3_text", &Gemma3Layout, &gemma3::Load},
    Family{"gemma3", "gemma3_text", &Gemma3Layout, &gemma3::Load},
    Family{"gemma2", "gemma2", &FromStack<&layouts::Gemma2>, nullptr},
    Family{"gemma3n", "gemma3n_text", &FromStack<&layouts::Gemma3n>, nullptr},
    Family{"gemma3n_text", "gemma3n_text", &FromStack<&layouts::Gemma3n>,
           nullptr},
    Family{"gemma4", "gemma4_text", &FromStack<&layouts::Gemma4>, nullptr},
    Family{"gemma4_text", "gemma4_text", &FromStack<&layouts::Gemma4>, nullptr},
    Family{"gpt_oss", "gpt_oss", &FromStack<&layouts::GptOss>, &gpt_oss::Load},
    Family{"mistral", "mistral", &FromStack<&layouts::Mistral>, nullptr},
    Family{"mixtral", "mixtral", &FromStack<&layouts::Mixtral>, nullptr},
    Family{"ministral", "ministral", &FromStack<&layouts::Ministral>, nullptr},
    Family{"ministral3", "ministral3", &FromStack<&layouts::Ministral3>,
           nullptr},
    Family{"phi3", "phi3", &FromStack<&layouts::Phi3>, nullptr},
    Family{"cohere2", "cohere2", &FromStack<&layouts::Cohere2>, nullptr},
    Family{"olmo3", "olmo3", &FromStack<&layouts::Olmo3>, nullptr},
    Family{"llama", "llama", &FromStack<&layouts::Llama>, nullptr},
    Family{"llama4", "llama4_text", &FromStack<&layouts::Llama4>, nullptr},
    Family{"llama4_text", "llama4_text", &FromStack<&layouts::Llama4>, nullptr},
    Family{"qwen2", "qwen2", &FromStack<&layouts::Qwen2>, nullptr},
    Family{"qwen3", "qwen3", &FromStack<&layouts::Qwen3>, nullptr},
    Family{"qwen3_moe", "qwen3_moe", &FromStack<&layouts::Qwen3Moe>, nullptr},
    Family{"qwen2_5_vl", "qwen2_5_vl_text", &FromStack<&layouts::Qwen25Vl>,
           nullptr},
    Family{"qwen2_5_vl_text", "qwen2_5_vl_text", &FromStack<&layouts::Qwen25Vl>,
           nullptr},
    Family{"exaone4", "exaone4", &FromStack<&layouts::Exaone4>, nullptr},
    Family{"smollm3", "smollm3", &FromStack<&layouts::SmolLm3>, nullptr},
    Family{"starcoder2", "starcoder2", &FromStack<&layouts::Starcoder2>,
           nullptr},
    Family{"mimo_v2_flash", "mimo_v2_flash", &FromStack<&layouts::MiMoV2Flash>,
           nullptr},
    Family{"step3p5", "step3p5", &FromStack<&layouts::Step3p5>, nullptr},
    Family{"deepseek_v2", "deepseek_v2", &FromStack<&layouts::DeepSeekV2>,
           nullptr},
    Family{"deepseek_v3", "deepseek_v3", &FromStack<&layouts::DeepSeekV3>,
           nullptr},
    Family{"deepseek_v4", "deepseek_v4", &FromRecords<&layouts::DeepSeekV4>,
           nullptr},
    Family{"deepseek_v41", "deepseek_v41_text",
           &FromRecords<&layouts::DeepSeekV41>, &deepseek_v41::Load},
    Family{"deepseek_v41_text", "deepseek_v41_text",
           &FromRecords<&layouts::DeepSeekV41>, &deepseek_v41::Load},
};

// Image or audio models around a text model that text_config names; all their
// KV is that model's.
struct Wrapper {
  const char* model_type;
  // Of a text_config that names none.
  const char* text_type;
};
constexpr std::array<Wrapper, 4> kWrappers = {{{"mistral3", "mistral"},
                                               {"llava", "llama"},
                                               {"cohere2_vision", "cohere2"},
                                               {"aya_vision", "cohere2"}}};

absl::StatusOr<std::string> ModelType(const json& config, const char* key) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("config key '%s': absent or no string, wanted a "
                        "string",
                        key));
  }
  return type->get<std::string>();
}

absl::StatusOr<const Family*> FamilyNamed(const std::string& name,
                                          const char* key) {
  const auto it =
      std::find_if(kFamilies.begin(), kFamilies.end(),
                   [&](const Family& f) { return f.model_type == name; });
  if (it == kFamilies.end()) {
    return absl::UnimplementedError(absl::StrFormat(
        "config key '%s': got '%s', this build knows %s%s", key, name,
        absl::StrJoin(KnownFamilies(), ", "), layouts::ReasonOfName(name)));
  }
  return &*it;
}

struct Found {
  const Family* family;
  const json* text;
};

// The text config, and the family whose keys it has.
absl::StatusOr<Found> FindFamily(const json& config) {
  TORPOR_ASSIGN_OR_RETURN(const std::string name,
                          ModelType(config, "model_type"));
  TORPOR_RETURN_IF_ERROR(layouts::CheckRebuildable(config));
  const auto nested = config.find("text_config");
  const bool is_nested = nested != config.end() && !nested->is_null();
  if (is_nested && !nested->is_object()) {
    return absl::InvalidArgumentError(
        "config key 'text_config': wanted an object");
  }
  const json& text = is_nested ? *nested : config;
  constexpr const char* kInner = "text_config.model_type";
  const auto wrapper =
      std::find_if(kWrappers.begin(), kWrappers.end(),
                   [&](const Wrapper& w) { return w.model_type == name; });
  if (is_nested && wrapper != kWrappers.end()) {
    std::string inner = wrapper->text_type;
    if (text.contains("model_type")) {
      TORPOR_ASSIGN_OR_RETURN(inner, ModelType(text, kInner));
    }
    TORPOR_ASSIGN_OR_RETURN(const Family* family, FamilyNamed(inner, kInner));
    return Found{family, &text};
  }
  TORPOR_ASSIGN_OR_RETURN(const Family* family,
                          FamilyNamed(name, "model_type"));
  if (is_nested && text.contains("model_type")) {
    TORPOR_ASSIGN_OR_RETURN(const std::string inner, ModelType(text, kInner));
    if (inner != family->text_type && inner != family->model_type) {
      return absl::UnimplementedError(
          absl::StrFormat("config key '%s': got '%s', wanted %s", kInner, inner,
                          family->text_type));
    }
  }
  return Found{family, &text};
}

}  // namespace

std::vector<std::string> KnownFamilies() {
  std::vector<std::string> names;
  names.reserve(kFamilies.size());
  for (const Family& family : kFamilies) names.push_back(family.model_type);
  return names;
}

std::vector<std::string> RunnableFamilies() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (family.load != nullptr) names.push_back(family.model_type);
  }
  return names;
}

absl::StatusOr<PlannedLayout> PlanConfig(std::string_view config_json,
                                         const LayoutOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const json config,
                          ParseConfigJson(config_json, "config.json"));
  TORPOR_ASSIGN_OR_RETURN(const Found found, FindFamily(config));
  TORPOR_ASSIGN_OR_RETURN(
      PlannedLayout planned,
      found.family->layout({config, *found.text}, found.family->text_type,
                           options));
  planned.plan_only = found.family->load == nullptr;
  TORPOR_RETURN_IF_ERROR(planned.layout.Validate());
  return planned;
}

absl::StatusOr<ModelLayout> LayoutFromConfig(std::string_view config_json,
                                             const LayoutOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(PlannedLayout planned,
                          PlanConfig(config_json, options));
  return std::move(planned.layout);
}

absl::StatusOr<bool> HasForward(std::string_view config_json) {
  TORPOR_ASSIGN_OR_RETURN(const json config,
                          ParseConfigJson(config_json, "config.json"));
  TORPOR_ASSIGN_OR_RETURN(const Found found, FindFamily(config));
  return found.family->load != nullptr;
}

absl::StatusOr<std::string> ReadModelConfig(const std::string& directory) {
  return ReadTextFile(directory + "/config.json");
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory,
                                                 const ModelOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const std::string text, ReadModelConfig(directory));
  TORPOR_ASSIGN_OR_RETURN(const json config,
                          ParseConfigJson(text, directory + "/config.json"));
  TORPOR_ASSIGN_OR_RETURN(const Found found, FindFamily(config));
  if (found.family->load == nullptr) {
    return absl::UnimplementedError(absl::StrFormat(
        "model type '%s' is plan-only: its layout is known, its forward is not",
        found.family->model_type));
  }
  return found.family->load(directory, text, options);
}

}  // namespace torpor::replay
