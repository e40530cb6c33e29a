// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/config.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/hyper_connection.h"
#include "replay/config_json.h"
#include "replay/layouts/config_keys.h"
#include "replay/layouts/deepseek_v41.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using layouts::kMany;
using layouts::kMaxDim;
using layouts::kMaxHeads;
using nlohmann::json;

const json& TextOf(const json& config) {
  const auto nested = config.find("text_config");
  return nested != config.end() && nested->is_object() ? *nested : config;
}

// The key's object; null when absent or null.
const json* ObjectAt(ConfigReader* r, const char* key) {
  if (!r->Has(key)) return nullptr;
  if (r->at(key).is_object()) return &r->at(key);
  r->WrongType(key, "an object");
  return nullptr;
}

void Want(ConfigReader* r, const char* key, const std::string& got,
          const std::string& wanted) {
  if (got == wanted) return;
  r->Fail(absl::UnimplementedError(absl::StrFormat(
      "config key '%s': got '%s', wanted %s", key, got, wanted)));
}

// The largest of `sources` that is at most `layer`; -1 when none is.
int64_t SourceAtOrBelow(const std::vector<int64_t>& sources, int64_t layer) {
  const auto above = std::upper_bound(sources.begin(), sources.end(), layer);
  return above == sources.begin() ? -1 : *(above - 1);
}

void ReadLayers(ConfigReader* r, Config* c) {
  const layouts::V41Schedule schedule = layouts::ReadV41Schedule(r);
  if (!r->status().ok()) return;
  c->vocab_size = schedule.shape.vocab_size;
  c->n_layers = schedule.shape.n_layers;
  c->head_dim = schedule.shape.head_dim;
  c->rope_dim = schedule.shape.rope_dim;
  c->index_dim = schedule.shape.index_dim;
  c->window = schedule.shape.window;
  for (int64_t l = 0; l < c->n_layers; ++l) {
    LayerConfig layer;
    layer.ratio = schedule.ratios[static_cast<size_t>(l)];
    layer.kv_source = schedule.kv_source[static_cast<size_t>(l)];
    layer.is_kv_source = layer.kv_source == l;
    if (layer.kv_source >= 0) {
      layer.index_source = SourceAtOrBelow(schedule.index_sources, l);
      layer.is_index_source = layer.index_source == l;
      // Picks of other entries would mean nothing.
      if (layer.index_source < layer.kv_source) {
        r->Fail(absl::InvalidArgumentError(absl::StrFormat(
            "config keys 'kv_source_layer_ids' and 'index_source_layer_ids': "
            "got layer %d, which reads the entries of layer %d and the picks "
            "of layer %d, wanted an index source among the readers of those "
            "entries",
            l, layer.kv_source, layer.index_source)));
      }
    }
    c->layers.push_back(layer);
  }
}

void ReadIndexer(ConfigReader* r, Config* c) {
  c->index_heads = r->Int("index_n_heads", 32, 1, kMaxHeads);
  c->index_topk = r->Int("index_topk", 512, 1, kMany);
  // transformers takes the last KV source where the key is absent or null.
  c->candidate_source =
      r->Int("candidate_source_layer_id", c->LastSource(), -1, c->n_layers - 1);
  if (c->candidate_source < 0) return;
  c->candidate_blocks = r->Int("candidate_topk_blocks", 2048, 1, kMany);
  c->candidate_block_size = r->Int("candidate_block_size", 8, 1, kMaxDim);
  const LayerConfig& source =
      c->layers[static_cast<size_t>(c->candidate_source)];
  if (!source.is_index_source) {
    r->WrongType("candidate_source_layer_id", "an index source");
    return;
  }
  for (int64_t l = c->candidate_source + 1; l < c->n_layers; ++l) {
    LayerConfig& layer = c->layers[static_cast<size_t>(l)];
    layer.uses_candidates =
        layer.is_index_source && layer.kv_source == source.kv_source;
  }
}

void ReadExperts(ConfigReader* r, Config* c) {
  c->n_experts = r->Int("n_routed_experts", 384, 1, kMaxHeads);
  c->n_active = r->Int("num_experts_per_tok", 6, 1, c->n_experts);
  c->n_shared = r->Int("n_shared_experts", 1, 0, 64);
  c->expert_dim = r->Int("moe_intermediate_size", 2304, 1, kMany);
  c->routed_scale = r->Positive("routed_scaling_factor", 1.5);
  c->gate_temperature = r->Positive("gate_temp", 1.0);
  c->swiglu_limit = r->Number("swiglu_limit", 10.0);
  if (c->swiglu_limit != 0) c->swiglu_limit = r->Positive("swiglu_limit", 10.0);
  Want(r, "scoring_func", r->String("scoring_func", "sqrtsoftplus"),
       "sqrtsoftplus");
  Want(r, "topk_method", r->String("topk_method", "noaux_tc"), "noaux_tc");
  Want(r, "hidden_act", r->String("hidden_act", "silu"), "silu");
  if (!r->Bool("norm_topk_prob", true)) {
    r->Fail(absl::UnimplementedError(
        "config key 'norm_topk_prob': got false, wanted true"));
  }
}

// transformers rotates int(head_dim * factor) elements; here qk_rope_head_dim
// alone says how many.
void CheckPartial(const json& object, ConfigReader* r, const Config& c) {
  constexpr const char* kKey = "partial_rotary_factor";
  ConfigReader part(object);
  if (!part.Has(kKey)) return;
  const double rotated = part.Number(kKey, 0) * static_cast<double>(c.head_dim);
  const auto wanted = static_cast<double>(c.rope_dim);
  if (part.status().ok() && !(rotated >= wanted && rotated < wanted + 1)) {
    part.Fail(absl::InvalidArgumentError(absl::StrFormat(
        "config key '%s': got %s, wanted qk_rope_head_dim / head_dim, %d / %d",
        kKey, object.at(kKey).dump(), c.rope_dim, c.head_dim)));
  }
  r->Fail(part.status());
}

void ReadYarn(const json& object, const char* key, ConfigReader* r,
              kernels::YarnParams* yarn) {
  ConfigReader scaling(object);
  const std::string type =
      scaling.String("rope_type", scaling.String("type", "default"));
  if (type == "yarn") {
    yarn->factor = scaling.Positive("factor", 16.0);
    yarn->beta_fast = scaling.Positive("beta_fast", 32.0);
    yarn->beta_slow = scaling.Positive("beta_slow", 1.0);
    yarn->original_positions = scaling.Int("original_max_position_embeddings",
                                           65'536, 1, layouts::kMaxPositions);
  } else if (type != "default") {
    Want(r, key, type, "yarn or default");
  }
  // The model has none, whatever YaRN would make of the factor.
  const double attention = scaling.Number("attention_factor", 1.0);
  if (attention != 1.0) {
    scaling.Fail(absl::UnimplementedError(absl::StrFormat(
        "config key 'attention_factor': got %g, wanted 1", attention)));
  }
  r->Fail(scaling.status());
}

// rope_parameters' "main" and "compress", as transformers writes them.
void ReadBothRopes(const json& both, ConfigReader* r, Config* c) {
  constexpr const char* kKey = "rope_parameters";
  ConfigReader parts(both);
  const json* const main = ObjectAt(&parts, "main");
  const json* const compress = ObjectAt(&parts, "compress");
  r->Fail(parts.status());
  if (main == nullptr || compress == nullptr) {
    r->WrongType(kKey, "'main' and 'compress' in it");
    return;
  }
  ConfigReader of_main(*main);
  ConfigReader of_compress(*compress);
  c->rope_theta = of_main.Positive("rope_theta", c->rope_theta);
  c->compress_theta = of_compress.Positive("rope_theta", c->compress_theta);
  const std::string type =
      of_main.String("rope_type", of_main.String("type", "default"));
  if (type != "default") Want(&of_main, kKey, type, "default of 'main'");
  r->Fail(of_main.status());
  r->Fail(of_compress.status());
  CheckPartial(*main, r, *c);
  CheckPartial(*compress, r, *c);
  ReadYarn(*compress, kKey, r, &c->yarn);
}

// Where rope_parameters has no "main" and "compress", they are the thetas of
// their own keys, and rope_scaling is that of compressed layers: so the
// release has it.
void ReadRopes(ConfigReader* r, Config* c) {
  c->rope_theta = r->Positive("rope_theta", 10'000.0);
  c->compress_theta = r->Positive("compress_rope_theta", 160'000.0);
  const json* const scaling = ObjectAt(r, "rope_scaling");
  const json* const parameters = ObjectAt(r, "rope_parameters");
  CheckPartial(r->object(), r, *c);
  for (const json* const object : {scaling, parameters}) {
    if (object != nullptr) CheckPartial(*object, r, *c);
  }
  if (parameters != nullptr &&
      (parameters->contains("main") || parameters->contains("compress"))) {
    ReadBothRopes(*parameters, r, c);
  } else if (scaling != nullptr) {
    ReadYarn(*scaling, "rope_scaling", r, &c->yarn);
  } else if (parameters != nullptr) {
    ReadYarn(*parameters, "rope_parameters", r, &c->yarn);
  }
}

// A list of integers of [0, most); empty when absent.
std::vector<int64_t> ReadList(ConfigReader* r, const char* key, int64_t most) {
  std::vector<int64_t> out;
  if (!r->Has(key)) return out;
  const json& list = r->at(key);
  bool fits = list.is_array();
  for (size_t i = 0; fits && i < list.size(); ++i) {
    fits = list[i].is_number_unsigned() &&
           list[i].get<uint64_t>() < static_cast<uint64_t>(most);
    if (fits) out.push_back(list[i].get<int64_t>());
  }
  if (!fits) {
    r->WrongType(key, absl::StrFormat("a list of integers of [0, %d)", most));
  }
  return out;
}

void ReadEngram(ConfigReader* r, Config* c) {
  constexpr const char* kLayers = "engram_layer_ids";
  constexpr const char* kRows = "engram_num_embeddings";
  c->engram_layers = ReadList(r, kLayers, c->n_layers);
  c->engram_rows = ReadList(r, kRows, kMany);
  if (!r->status().ok()) return;
  if (std::adjacent_find(c->engram_layers.begin(), c->engram_layers.end(),
                         std::greater_equal<>()) != c->engram_layers.end()) {
    r->WrongType(kLayers, "layers in ascending order");
    return;
  }
  if (c->engram_layers.size() != c->engram_rows.size()) {
    r->Fail(absl::InvalidArgumentError(absl::StrFormat(
        "config keys '%s' and '%s': got %d and %d entries, wanted as many",
        kLayers, kRows, c->engram_layers.size(), c->engram_rows.size())));
    return;
  }
  if (c->engram_layers.empty()) return;
  c->engram = {r->Int("engram_max_ngram_size", 4, 2, 16),
               r->Int("engram_n_heads", 8, 1, kMaxHeads),
               r->Int("engram_head_dim", 256, 1, kMaxDim),
               r->Int("engram_vocab_size", 16'000'000, 1, kMany),
               r->Int("engram_compressed_vocab_size", 0, 1,
                      std::min(c->vocab_size, kMostCompressedIds))};
  c->engram_pad_id = r->Int(
      r->Has("engram_pad_token_id") ? "engram_pad_token_id" : "engram_pad_id",
      2, 0, c->vocab_size - 1);
  for (size_t i = 0; i < c->engram_layers.size(); ++i) {
    c->layers[static_cast<size_t>(c->engram_layers[i])].engram =
        static_cast<int64_t>(i);
  }
}

absl::Status CheckShapes(const Config& c) {
  const auto multiple = [](const char* key, int64_t got, int64_t of) {
    if (got % of == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "config key '%s': got %d, wanted a multiple of %d", key, got, of));
  };
  TORPOR_RETURN_IF_ERROR(multiple("hidden_size", c.hidden_size, 2));
  TORPOR_RETURN_IF_ERROR(multiple("q_lora_rank", c.q_rank, 2));
  TORPOR_RETURN_IF_ERROR(multiple("o_lora_rank", c.o_rank, 2));
  TORPOR_RETURN_IF_ERROR(multiple("moe_intermediate_size", c.expert_dim, 2));
  TORPOR_RETURN_IF_ERROR(multiple("qk_rope_head_dim", c.rope_dim, 2));
  if (c.rope_dim == 0) {
    return absl::InvalidArgumentError(
        "config key 'qk_rope_head_dim': got 0, wanted at least 2: without rope "
        "no layer knows positions");
  }
  TORPOR_RETURN_IF_ERROR(
      multiple("num_attention_heads", c.n_heads, c.o_groups));
  if (c.rope_dim > c.index_dim) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config key 'qk_rope_head_dim': got %d, wanted at most index_head_dim, "
        "%d",
        c.rope_dim, c.index_dim));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Config::LastSource() const {
  for (int64_t l = n_layers; l-- > 0;) {
    if (layers[static_cast<size_t>(l)].is_kv_source) return l;
  }
  return -1;
}

absl::StatusOr<Config> ParseConfig(const json& config) {
  ConfigReader r(TextOf(config));
  Config c;
  ReadLayers(&r, &c);
  TORPOR_RETURN_IF_ERROR(r.status());
  c.hidden_size = r.Int("hidden_size", 5120, 1, kMany / 64);
  c.n_heads = r.Int("num_attention_heads", 64, 1, kMaxHeads);
  c.q_rank = r.Int("q_lora_rank", 1280, 1, kMany / 64);
  c.o_groups = r.Int("o_groups", 8, 1, c.n_heads);
  c.o_rank = r.Int("o_lora_rank", 1024, 1, kMany / 64);
  c.norm_eps = r.Positive("rms_norm_eps", 1e-20);
  c.n_streams = r.Int("hc_mult", 4, 1, kernels::kMaxStreams);
  c.sinkhorn_iterations = r.Int("hc_sinkhorn_iters", 20, 1, 1000);
  c.hc_eps = r.Positive("hc_eps", 1e-6);
  ReadIndexer(&r, &c);
  ReadExperts(&r, &c);
  ReadRopes(&r, &c);
  ReadEngram(&r, &c);
  for (const char* key : {"attention_bias", "tie_word_embeddings"}) {
    if (!r.Bool(key, false)) continue;
    r.Fail(absl::UnimplementedError(
        absl::StrFormat("config key '%s': got true, wanted false", key)));
  }
  TORPOR_RETURN_IF_ERROR(r.status());
  TORPOR_RETURN_IF_ERROR(CheckShapes(c));
  return c;
}

absl::StatusOr<ModelLayout> LayoutOf(const json& config) {
  ConfigReader r(TextOf(config));
  const layouts::V41Schedule schedule = layouts::ReadV41Schedule(&r);
  TORPOR_RETURN_IF_ERROR(r.status());
  TORPOR_ASSIGN_OR_RETURN(ModelLayout layout,
                          layouts::V41LayoutOf(schedule, "native"));
  layout.family = "deepseek_v41_text";
  TORPOR_RETURN_IF_ERROR(layout.Validate());
  return layout;
}

std::string RopeName(const Config& c) {
  return absl::StrFormat(
      "interleaved tail %d theta %.17g/%.17g yarn %.17g %.17g %.17g %d",
      c.rope_dim, c.rope_theta, c.compress_theta, c.yarn.factor,
      c.yarn.beta_fast, c.yarn.beta_slow, c.yarn.original_positions);
}

}  // namespace torpor::replay::deepseek_v41
