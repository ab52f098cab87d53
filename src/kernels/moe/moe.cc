#include "slackwater/kernels/moe.h"

#include "kernels/moe/moe_simd.h"
#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/check.h"
#include "slackwater/base/fp_mode.h"

namespace slackwater::kernels {

void glu(ExecutionContext& context, std::span<const GluArgs> jobs) {
  for (const GluArgs& job : jobs) {
    SLACKWATER_CHECK(job.width > 0 && job.rows >= 0, "{} rows of {}", job.rows, job.width);
    SLACKWATER_CHECK(job.rows <= 1 || (job.gate_up_stride >= 2 * std::int64_t{job.width} &&
                                       job.y_stride >= job.width),
                     "strides {} and {} of width {}", job.gate_up_stride, job.y_stride, job.width);
  }
  const FpModeGuard fp_mode;
  const Target target = context.target();
  choose_kernel(target, reference::glu, glu_simd(target))(context, jobs);
}

void moe_route(ExecutionContext& context, const MoeRouteArgs& args) {
  SLACKWATER_CHECK(0 < args.chosen && args.chosen <= args.experts, "{} of {} experts", args.chosen,
                   args.experts);
  SLACKWATER_CHECK(args.tokens >= 0, "{} tokens", args.tokens);
  SLACKWATER_CHECK(args.tokens <= 1 || args.logits_stride >= args.experts,
                   "stride {} of {} experts", args.logits_stride, args.experts);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  context.reserve_scratch(moe_route_scratch_bytes(args.experts));
  choose_kernel(target, reference::moe_route, moe_route_simd(target))(context, args);
}

// Integers only: a counting sort, the same for every target.
void moe_group(ExecutionContext&, const MoeGroupArgs& args) {
  const std::int64_t pairs = std::int64_t{args.tokens} * args.chosen;
  std::fill(args.offsets, args.offsets + args.experts + 1, 0);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int32_t expert = args.expert_ids[i];
    SLACKWATER_DCHECK(0 <= expert && expert < args.experts, "expert {} of {}", expert,
                      args.experts);
    ++args.offsets[expert + 1];
  }
  for (std::int32_t e = 0; e < args.experts; ++e) args.offsets[e + 1] += args.offsets[e];
  // Filling moves each offset to its expert's end; shifting them back restores the starts.
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int32_t pair = args.offsets[args.expert_ids[i]]++;
    args.pair_tokens[pair] = static_cast<std::int32_t>(i / args.chosen);
    args.pair_of_choice[i] = pair;
  }
  for (std::int32_t e = args.experts; e > 0; --e) args.offsets[e] = args.offsets[e - 1];
  args.offsets[0] = 0;
}

void moe_combine(ExecutionContext& context, const MoeCombineArgs& args) {
  SLACKWATER_CHECK(args.width > 0 && args.tokens >= 0 && args.chosen >= 0,
                   "{} tokens of {}, {} chosen", args.tokens, args.width, args.chosen);
  SLACKWATER_CHECK(args.tokens <= 1 || args.h_stride >= args.width, "stride {} of width {}",
                   args.h_stride, args.width);
  const bool has_one_pair = std::int64_t{args.tokens} * args.chosen <= 1;
  SLACKWATER_CHECK(has_one_pair || args.expert_y_stride >= args.width,
                   "expert stride {} of width {}", args.expert_y_stride, args.width);
  SLACKWATER_CHECK(
      args.shared_y == nullptr || args.tokens <= 1 || args.shared_y_stride >= args.width,
      "shared stride {} of width {}", args.shared_y_stride, args.width);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  choose_kernel(target, reference::moe_combine, moe_combine_simd(target))(context, args);
}

}  // namespace slackwater::kernels
