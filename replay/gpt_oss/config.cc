// SPDX-License-Identifier: Apache-2.0

#include "replay/gpt_oss/config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/config_json.h"
#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"

namespace torpor::replay::gpt_oss {
namespace {

using layouts::kMany;
using nlohmann::json;

// A key that repeats another says the same as that one.
void Same(ConfigReader* reader, const char* repeats, const char* key,
          int64_t value) {
  const int64_t other = reader->Int(repeats, value, 0, layouts::kMaxPositions);
  if (other == value) return;
  reader->Fail(absl::InvalidArgumentError(
      absl::StrFormat("config keys '%s' and '%s': got %d and %d, wanted one "
                      "number",
                      repeats, key, other, value)));
}

// A key whose other values have no forward here.
void OnlyString(ConfigReader* reader, const char* key, const char* wanted) {
  const std::string value = reader->String(key, wanted);
  if (value == wanted) return;
  reader->Fail(absl::UnimplementedError(absl::StrFormat(
      "config key '%s': got '%s', wanted %s", key, value, wanted)));
}

double MScale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double AttentionFactor(ConfigReader* reader, double factor) {
  double scale = MScale(factor, 1.0);
  const double mscale = reader->Number("mscale", 0.0);
  const double all_dim = reader->Number("mscale_all_dim", 0.0);
  if (mscale != 0 && all_dim != 0) {
    scale = MScale(factor, mscale) / MScale(factor, all_dim);
  }
  if (reader->Has("attention_factor")) {
    scale = reader->Positive("attention_factor", 1.0);
  }
  if (!(scale > 0) || std::isinf(scale)) {
    reader->Fail(absl::InvalidArgumentError(absl::StrFormat(
        "config keys 'mscale' and 'mscale_all_dim': got %g and %g, wanted a "
        "scale above 0",
        mscale, all_dim)));
  }
  return scale;
}

void ReadYarn(ConfigReader* reader, int64_t original_positions, Rope* rope) {
  kernels::YarnParams yarn;
  yarn.original_positions = original_positions;
  // The one key that YaRN does not do without.
  if (!reader->Has("factor")) {
    reader->Fail(absl::InvalidArgumentError(
        "config key 'factor': absent or null, wanted a number above 0, since "
        "'rope_type' is yarn"));
  }
  yarn.factor = reader->Positive("factor", 1.0);
  yarn.beta_fast = reader->Positive("beta_fast", 32.0);
  yarn.beta_slow = reader->Positive("beta_slow", 1.0);
  yarn.truncate = reader->Bool("truncate", true);
  rope->attention_factor = AttentionFactor(reader, yarn.factor);
  rope->yarn = yarn;
}

json DefaultRope() {
  return {{"rope_type", "yarn"}, {"factor", 32.0},
          {"beta_fast", 32.0},   {"beta_slow", 1.0},
          {"truncate", false},   {"original_max_position_embeddings", 4096}};
}

// Which of the two keys counts: rope_scaling, unless it is empty.
absl::StatusOr<json> RopeObject(const ConfigReader& reader) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.Has(key)) continue;
    const json& object = reader.at(key);
    if (!object.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("config key '%s': wanted an object", key));
    }
    if (object.empty()) continue;
    for (const char* kind : {"full_attention", "sliding_attention"}) {
      if (!object.contains(kind)) continue;
      return absl::UnimplementedError(absl::StrFormat(
          "config key '%s.%s': wanted one rope for every layer", key, kind));
    }
    return object;
  }
  // An empty rope_parameters is not an absent one.
  return reader.Has("rope_parameters") ? json::object() : DefaultRope();
}

absl::Status ReadRope(ConfigReader* outer, int64_t max_positions, Rope* rope) {
  TORPOR_ASSIGN_OR_RETURN(const json object, RopeObject(*outer));
  ConfigReader reader(object);
  rope->theta = reader.Has("rope_theta")
                    ? reader.Positive("rope_theta", 0)
                    : outer->Positive("rope_theta", 150'000.0);
  for (const ConfigReader* const at : {&reader, outer}) {
    ConfigReader partial(at->object());
    const double factor = partial.Number("partial_rotary_factor", 1.0);
    TORPOR_RETURN_IF_ERROR(partial.status());
    if (factor == 1.0) continue;
    return absl::UnimplementedError(absl::StrFormat(
        "config key 'partial_rotary_factor': got %g, wanted 1", factor));
  }
  const std::string type =
      reader.String("rope_type", reader.String("type", "default"));
  if (type == "yarn") {
    constexpr const char* kOriginal = "original_max_position_embeddings";
    // The outer key counts more than the one beside the factor.
    ConfigReader* const at = outer->Has(kOriginal) ? outer : &reader;
    ReadYarn(&reader,
             at->Int(kOriginal, max_positions, 1, layouts::kMaxPositions),
             rope);
    Same(outer, "initial_context_length", kOriginal,
         rope->yarn->original_positions);
  } else if (type != "default") {
    reader.Fail(absl::UnimplementedError(absl::StrFormat(
        "config key 'rope_type': got '%s', wanted yarn or default", type)));
  }
  TORPOR_RETURN_IF_ERROR(reader.status());
  TORPOR_RETURN_IF_ERROR(outer->status());
  if (rope->yarn && rope->theta == 1.0) {
    return absl::InvalidArgumentError(
        "config key 'rope_theta': got 1, wanted another, since 'rope_type' is "
        "yarn");
  }
  return absl::OkStatus();
}

absl::Status CheckQuantisation(const ConfigReader& reader) {
  constexpr const char* kKey = "quantization_config";
  if (!reader.Has(kKey)) return absl::OkStatus();
  if (!reader.at(kKey).is_object()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("config key '%s': wanted an object", kKey));
  }
  ConfigReader quantised(reader.at(kKey));
  OnlyString(&quantised, "quant_method", "mxfp4");
  return quantised.status();
}

absl::Status CheckShapes(const Config& c) {
  // Attention works on 16 channels at a time.
  if (c.head_dim() % 16 != 0) {
    return absl::UnimplementedError(absl::StrFormat(
        "config key 'head_dim': got %d, the forward wants a multiple of 16",
        c.head_dim()));
  }
  if (c.hidden_size % 2 != 0 || c.intermediate_size % 2 != 0) {
    return absl::UnimplementedError(
        absl::StrFormat("config keys 'hidden_size' and 'intermediate_size': "
                        "got %d and %d, the forward wants even numbers",
                        c.hidden_size, c.intermediate_size));
  }
  if (c.n_active > c.n_experts) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config keys 'num_experts_per_tok' and 'num_local_experts': got %d "
        "and %d, wanted at most as many",
        c.n_active, c.n_experts));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Config> ParseConfig(const json& config) {
  Config c;
  ConfigReader r(config);
  c.stack = layouts::GptOss(&r);
  c.hidden_size = r.Int("hidden_size", 2880, 1, kMany);
  c.intermediate_size = r.Int("intermediate_size", 2880, 1, kMany);
  c.n_heads = r.Int("num_attention_heads", 64, 1, layouts::kMaxHeads);
  c.n_experts = r.Int("num_local_experts", r.Int("num_experts", 128, 1, 65'536),
                      1, 65'536);
  c.n_active = r.Int("num_experts_per_tok", 4, 1, 65'536);
  Same(&r, "num_experts", "num_local_experts", c.n_experts);
  Same(&r, "experts_per_token", "num_experts_per_tok", c.n_active);
  c.rms_norm_eps = r.Number("rms_norm_eps", 1e-5);
  if (c.rms_norm_eps < 0) {
    r.Fail(absl::InvalidArgumentError(absl::StrFormat(
        "config key 'rms_norm_eps': got %g, wanted a number of at least 0",
        c.rms_norm_eps)));
  }
  c.swiglu_alpha = r.Positive("swiglu_alpha", 1.702);
  c.swiglu_limit = r.Positive("swiglu_limit", 7.0);
  c.attention_bias = r.Bool("attention_bias", true);
  c.tied_embeddings = r.Bool("tie_word_embeddings", false);
  OnlyString(&r, "hidden_act", "silu");
  if (r.Has("per_layer_config")) {
    r.Fail(absl::UnimplementedError(
        "config key 'per_layer_config': the forward wants layers alike"));
  }
  TORPOR_RETURN_IF_ERROR(r.status());
  TORPOR_RETURN_IF_ERROR(CheckQuantisation(r));
  TORPOR_RETURN_IF_ERROR(ReadRope(&r, c.stack.max_positions, &c.rope));
  TORPOR_ASSIGN_OR_RETURN(c.dtype, layouts::DtypeName(config, config));
  TORPOR_RETURN_IF_ERROR(CheckShapes(c));
  return c;
}

absl::StatusOr<ModelLayout> LayoutOf(const Config& c, kernels::DType kv_dtype) {
  const layouts::KvFormat format = {
      kv_dtype == kernels::DType::kBf16 ? "bf16" : "f32",
      static_cast<int64_t>(kernels::DTypeBytes(kv_dtype))};
  TORPOR_RETURN_IF_ERROR(layouts::CheckStack(c.stack, format));
  return layouts::BuildLayout(c.stack, "gpt_oss", format);
}

std::string RopeName(const Config& c) {
  // Every digit, since the fingerprint tells models apart by it.
  std::string name = absl::StrFormat("split-half theta %.17g", c.rope.theta);
  if (c.rope.yarn) {
    const kernels::YarnParams& yarn = *c.rope.yarn;
    absl::StrAppendFormat(
        &name, " yarn %.17g of %d beta %.17g/%.17g%s scale %.17g", yarn.factor,
        yarn.original_positions, yarn.beta_fast, yarn.beta_slow,
        yarn.truncate ? " truncated" : "", c.rope.attention_factor);
  }
  return name;
}

}  // namespace torpor::replay::gpt_oss
