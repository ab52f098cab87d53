// Any text is refused with one line of text, or gives a config that keeps its invariants.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "slackwater/base/check.h"
#include "slackwater/model/config.h"

namespace slackwater::model {
namespace {

void check_config(const ModelConfig& c) {
  SLACKWATER_CHECK(c.layer_kinds.size() == static_cast<std::size_t>(c.num_layers), "I1");
  for (const std::int64_t size :
       {c.vocab_size, c.hidden_size, c.num_layers, c.intermediate_size, c.max_length}) {
    SLACKWATER_CHECK(size >= 1 && size <= kMaxModelSize, "I2: size {}", size);
  }
  SLACKWATER_CHECK(std::int64_t{c.kda_num_heads} * c.kda_head_dim <= kMaxModelSize, "I2");
  SLACKWATER_CHECK(std::int64_t{c.num_heads} *
                           (c.qk_nope_head_dim + std::max(c.qk_rope_head_dim, c.v_head_dim)) <=
                       kMaxModelSize,
                   "I2");
  SLACKWATER_CHECK(c.mla_row_width() <= kMaxModelSize, "I2");
  SLACKWATER_CHECK((c.num_kda_layers() > 0) == (c.kda_width() > 0), "KDA sizes");
  SLACKWATER_CHECK(c.kda_head_dim % kKdaHeadMultiple == 0 && c.kda_head_dim <= kKdaMaxHeadDim,
                   "KDA head size {}", c.kda_head_dim);
  SLACKWATER_CHECK((c.num_mla_layers() + c.num_mtp_layers > 0) == (c.mla_row_width() > 0),
                   "MLA sizes");
  SLACKWATER_CHECK(c.num_experts_per_token <= c.num_experts, "I3");
  SLACKWATER_CHECK((c.num_experts == 0) == (c.num_experts_per_token == 0), "I3");
  SLACKWATER_CHECK(c.bos_id >= 0 && c.bos_id < c.vocab_size && !c.eos_ids.empty(), "I4");
  for (const TokenId id : c.eos_ids) SLACKWATER_CHECK(id >= 0 && id < c.vocab_size, "I4");
  SLACKWATER_CHECK(c.rms_norm_eps > 0.0f && std::isfinite(c.rms_norm_eps), "I5");
  SLACKWATER_CHECK(c.routed_scaling_factor > 0.0f && std::isfinite(c.routed_scaling_factor), "I5");
  const float bound = c.gate_lower_bound.value_or(-1.0f);
  SLACKWATER_CHECK(bound < 0.0f && std::isfinite(bound), "I5");
  for (std::int32_t layer = 0; layer < std::min(c.num_layers, 64); ++layer) {
    SLACKWATER_CHECK(!c.is_moe_layer(layer) || c.moe_intermediate_size > 0, "layer {}", layer);
  }
}

}  // namespace
}  // namespace slackwater::model

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config =
      slackwater::model::parse_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (config.has_value()) {
    slackwater::model::check_config(*config);
  } else {
    const std::string& text = config.error().text();
    SLACKWATER_CHECK(!text.empty() && text.size() < 2'000, "{} bytes of text", text.size());
    for (const char c : text) SLACKWATER_CHECK(c >= 0x20 && c < 0x7F, "an unprintable error");
  }
  return 0;
}
