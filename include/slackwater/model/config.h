#ifndef SLACKWATER_MODEL_CONFIG_H_
#define SLACKWATER_MODEL_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"

namespace slackwater::model {

// Every size of a model, and every width that is a product of sizes, is at most this. So a matrix
// has at most 2^48 elements and no product over shapes overflows 64 bits.
inline constexpr std::int32_t kMaxModelSize = std::int32_t{1} << 24;

// The only length of the short convolution that is built.
inline constexpr std::int32_t kConvKernelSize = 4;

// Head sizes of KDA are multiples of this, the width of a state tile.
inline constexpr std::int32_t kKdaHeadMultiple = 32;
inline constexpr std::int32_t kKdaMaxHeadDim = 1024;

// What mixes tokens in a layer.
enum class LayerKind { kKda, kMla };

// What config.json says about a Kimi-Linear model, read and checked.
//
// Fields that matter to none of the layers of a model (MLA sizes where no layer is MLA, expert
// sizes where there are no experts, ...) may be absent in the file and are 0 then.
//
// Source: the published config.json and configuration_kimi.py of Kimi-Linear-48B-A3B, whose
// defaults hold for absent fields.
// Invariants, of what parse_config returns:
//   I1  layer_kinds has num_layers entries.
//   I2  sizes are in [1, kMaxModelSize], as are all widths: kda_width(), mla_row_width(),
//       num_heads * (qk_nope_head_dim + max(qk_rope_head_dim, v_head_dim)), and
//       num_shared_experts * moe_intermediate_size.
//   I3  num_experts == 0, or 1 <= num_experts_per_token <= num_experts.
//   I4  token ids are in [0, vocab_size), and eos_ids is not empty.
//   I5  gate_lower_bound < 0 where present; rms_norm_eps > 0; routed_scaling_factor > 0; all
//       three finite.
struct ModelConfig {
  std::int32_t vocab_size = 0;
  std::int32_t hidden_size = 0;
  std::int32_t num_layers = 0;         // without the multi-token-prediction block
  std::int32_t intermediate_size = 0;  // of dense feed-forward parts
  float rms_norm_eps = 0.0f;
  std::int32_t max_length = 0;         // tokens of a sequence
  std::vector<LayerKind> layer_kinds;  // 0-based; the lists in the file count from 1

  // MLA, without rotary embedding.
  std::int32_t num_heads = 0;
  std::int32_t kv_lora_rank = 0;
  std::int32_t qk_nope_head_dim = 0;
  std::int32_t qk_rope_head_dim = 0;  // never rotated, in spite of its name
  std::int32_t v_head_dim = 0;

  // KDA.
  std::int32_t kda_num_heads = 0;
  std::int32_t kda_head_dim = 0;
  std::int32_t conv_kernel_size = 0;
  std::optional<float> gate_lower_bound;  // absent: softplus gate; present: lower-bound gate
  bool full_rank_output_gate = false;     // g_proj instead of g_a_proj and g_b_proj

  // Mixture of experts.
  std::int32_t num_experts = 0;  // 0: every layer is dense
  std::int32_t num_experts_per_token = 0;
  std::int32_t num_shared_experts = 0;
  std::int32_t moe_intermediate_size = 0;
  std::int32_t first_k_dense_replace = 0;
  std::int32_t moe_layer_freq = 1;
  bool renormalize_routing = true;
  float routed_scaling_factor = 1.0f;

  std::int32_t num_mtp_layers = 0;  // 0 or 1; its block is an MLA layer, number num_layers

  TokenId bos_id = 0;
  std::vector<TokenId> eos_ids;
  std::optional<TokenId> pad_id;

  // Whether the feed-forward part of layer `layer` (0-based, the prediction block included) is a
  // mixture of experts.
  bool is_moe_layer(std::int32_t layer) const;
  std::int32_t num_kda_layers() const;
  std::int32_t num_mla_layers() const;
  // Values of one token in the cache of one MLA layer: the latent and the shared key part.
  std::int32_t mla_row_width() const { return kv_lora_rank + qk_rope_head_dim; }
  // Channels of q, of k and of v in a KDA layer.
  std::int32_t kda_width() const { return kda_num_heads * kda_head_dim; }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Reads a config.json. `where` stands in front of errors, for example the path of the file.
//
// Errors: kDataLoss for text that is not JSON (with the byte position), nests deeper than 16 or
// names a member twice; kInvalidArgument for a field that is missing, of a wrong type, out of its
// range or in contradiction to another; kUnimplemented for a valid model that is not built. The
// text names the field, its value and what is allowed.
Result<ModelConfig> parse_config(std::string_view json, std::string_view where);

// Reads `directory`/config.json. Errors: those of parse_config and of MappedFile::open.
Result<ModelConfig> load_config(const std::filesystem::path& directory);

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_CONFIG_H_
