#include "kernels/moe/moe_simd.h"

#include <numeric>

#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/mutant.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/moe_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SLACKWATER_SIMD_PASS
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {
namespace {

// Values that one worker should have before a second one is woken.
inline constexpr std::int64_t kGrainValues = 4096;

// One token: scores in lanes, then a partial sort of the ids.
HWY_INLINE void route_token(const MoeRouteArgs& args, std::int64_t token, float* score,
                            float* selection, std::int32_t* order) {
  const float* logits = args.logits + token * args.logits_stride;
  map(logits, logits, score, args.experts, [](V x, V) HWY_ATTR { return sigmoid<Ops>(x); });
  map(score, args.bias, selection, args.experts,
      [](V s, V bias) HWY_ATTR { return hn::Add(s, bias); });
  std::iota(order, order + args.experts, 0);
  std::int32_t* ids = args.expert_ids + token * args.chosen;
  std::partial_sort_copy(
      order, order + args.experts, ids, ids + args.chosen, [&](std::int32_t a, std::int32_t b) {
        if (selection[b] < selection[a]) return true;
        const bool is_lower = SLACKWATER_MUTANT(moe_ties_to_highest) ? b < a : a < b;
        return !(selection[a] < selection[b]) && is_lower;
      });
  std::sort(ids, ids + args.chosen);
  float sum = 0.0f;
  for (std::int32_t choice = 0; choice < args.chosen; ++choice) sum += score[ids[choice]];
  float* weights = args.weights + token * args.chosen;
  for (std::int32_t choice = 0; choice < args.chosen; ++choice) {
    const float* from = SLACKWATER_MUTANT(moe_biased_weights) ? selection : score;
    const float s = from[ids[choice]];
    weights[choice] = (args.renormalize ? s / (sum + 1e-20f) : s) * args.scale;
  }
}

HWY_INLINE void combine_token(const MoeCombineArgs& args, std::int64_t token) {
  float* h = args.h + token * args.h_stride;
  const std::int64_t first = token * args.chosen;
  for (std::int64_t i = 0; i < args.width; i += kLanes) {
    const std::int64_t lanes = std::min<std::int64_t>(kLanes, args.width - i);
    alignas(64) float padded[16];
    const auto read = [&](const float* x) HWY_ATTR {
      if (lanes == kLanes) return load(x + i);
      pad_sixteen(x + i, lanes, padded);
      return load(padded);
    };
    V r = broadcast(0.0f);
    for (std::int32_t choice = 0; choice < args.chosen; ++choice) {
      const float* y = args.expert_y + args.pair_of_choice[first + choice] * args.expert_y_stride;
      r = hn::MulAdd(broadcast(args.weights[first + choice]), read(y), r);
    }
    if (args.shared_y != nullptr) {
      r = hn::Add(read(args.shared_y + token * args.shared_y_stride), r);
    }
    const V sum = hn::Add(read(h), r);
    if (lanes == kLanes) {
      store(sum, h + i);
    } else {
      store(sum, padded);
      std::copy(padded, padded + lanes, h + i);
    }
  }
}

}  // namespace

void glu(ExecutionContext& context, std::span<const GluArgs> jobs) {
  for (const GluArgs& job : jobs) {
    const std::int64_t grain = std::max<std::int64_t>(1, kGrainValues / job.width);
    context.parallel_for(job.rows, grain, [&](ItemRange rows, int) HWY_ATTR {
      for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        const float* gate = job.gate_up + row * job.gate_up_stride;
        map(gate, gate + job.width, job.y + row * job.y_stride, job.width,
            [](V g, V up) HWY_ATTR { return hn::Mul(silu<Ops>(g), up); });
      }
    });
  }
}

void moe_route(ExecutionContext& context, const MoeRouteArgs& args) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainValues / args.experts);
  const std::int64_t width = round_up(args.experts, 16);
  context.parallel_for(args.tokens, grain, [&](ItemRange tokens, int worker) HWY_ATTR {
    float* score = reinterpret_cast<float*>(context.scratch(worker).data());
    float* selection = score + width;
    std::int32_t* order = reinterpret_cast<std::int32_t*>(selection + width);
    for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
      route_token(args, token, score, selection, order);
    }
  });
}

void moe_combine(ExecutionContext& context, const MoeCombineArgs& args) {
  const std::int64_t per_token = std::int64_t{args.width} * (args.chosen + 2);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainValues / per_token);
  context.parallel_for(args.tokens, grain, [&](ItemRange tokens, int) HWY_ATTR {
    for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
      combine_token(args, token);
    }
  });
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // SLACKWATER_SIMD_PASS

#if HWY_ONCE
namespace slackwater::kernels {

GluFunction* glu_simd(Target target) { return SLACKWATER_SIMD_FUNCTION(target, glu); }

MoeRouteFunction* moe_route_simd(Target target) {
  return SLACKWATER_SIMD_FUNCTION(target, moe_route);
}

MoeCombineFunction* moe_combine_simd(Target target) {
  return SLACKWATER_SIMD_FUNCTION(target, moe_combine);
}

}  // namespace slackwater::kernels
#endif  // HWY_ONCE
