#ifndef SLACKWATER_KERNELS_MOE_H_
#define SLACKWATER_KERNELS_MOE_H_

#include <cstdint>
#include <span>

#include "slackwater/kernels/execution_context.h"

namespace slackwater::kernels {

// Gated linear unit of a feed-forward part: y = silu(gate) * up, elementwise.
struct GluArgs {
  const float* gate_up = nullptr;  // [rows, 2 * width] f32: gate, then up
  std::int64_t gate_up_stride = 0;
  float* y = nullptr;  // [rows, width] f32
  std::int64_t y_stride = 0;
  std::int32_t rows = 0;
  std::int32_t width = 0;
};
void glu(ExecutionContext& context, std::span<const GluArgs> jobs);

inline void glu(ExecutionContext& context, const GluArgs& job) {
  glu(context, std::span<const GluArgs>(&job, 1));
}

// Chooses experts for each token.
//
// Source: DeepSeek-V3's auxiliary-loss-free routing, arXiv 2412.19437; docs/numerics.md "Mixture of
// experts": s = sigmoid(logits); selection by s + bias, ties to the lowest id; weights from the
// *unbiased* s: w_e = (s_e / (sum + 1e-20)) * scale with the sum over the chosen in ascending id
// (without renormalisation w_e = s_e * scale).
struct MoeRouteArgs {
  const float* logits = nullptr;  // [tokens, experts] f32
  std::int64_t logits_stride = 0;
  const float* bias = nullptr;  // [experts] f32, for the selection only
  std::int32_t tokens = 0;
  std::int32_t experts = 0;  // E
  std::int32_t chosen = 0;   // experts per token, <= E
  bool renormalize = true;
  float scale = 1;

  std::int32_t* expert_ids = nullptr;  // [tokens, chosen], ascending per token
  float* weights = nullptr;            // [tokens, chosen] f32
};
void moe_route(ExecutionContext& context, const MoeRouteArgs& args);

// Sorts the (token, choice) pairs of a routing by expert, so that each expert's tokens are one
// product. Pair p of expert e, p in [offsets[e], offsets[e + 1]), is token pair_tokens[p];
// pair_of_choice says where the choices of a token went. Within an expert tokens ascend.
struct MoeGroupArgs {
  const std::int32_t* expert_ids = nullptr;  // [tokens, chosen]
  std::int32_t tokens = 0;
  std::int32_t experts = 0;
  std::int32_t chosen = 0;

  std::int32_t* offsets = nullptr;         // [experts + 1]
  std::int32_t* pair_tokens = nullptr;     // [tokens * chosen]
  std::int32_t* pair_of_choice = nullptr;  // [tokens, chosen]
};
void moe_group(ExecutionContext& context, const MoeGroupArgs& args);

// h = h + (shared + r), r = fma(w_e, y_e, r) from +0 in ascending expert id. Without a shared
// expert the inner sum is r itself.
struct MoeCombineArgs {
  const float* expert_y = nullptr;  // [tokens * chosen, width] f32, in pair order
  std::int64_t expert_y_stride = 0;
  const float* shared_y = nullptr;  // [tokens, width] f32, or null
  std::int64_t shared_y_stride = 0;
  const float* weights = nullptr;                // [tokens, chosen] f32
  const std::int32_t* pair_of_choice = nullptr;  // [tokens, chosen]
  std::int32_t tokens = 0;
  std::int32_t chosen = 0;
  std::int32_t width = 0;
  float* h = nullptr;  // [tokens, width] f32
  std::int64_t h_stride = 0;
};
void moe_combine(ExecutionContext& context, const MoeCombineArgs& args);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_MOE_H_
