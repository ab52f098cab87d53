#include "kernels/norm/norm_simd.h"

#include <cmath>

#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/mutant.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/norm_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SLACKWATER_SIMD_PASS
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {
namespace {

// Values that one worker should have before a second one is woken.
inline constexpr std::int64_t kGrainValues = 4096;

HWY_INLINE float inverse_rms(const float* x, std::int64_t n, float eps) {
  const float mean = sum_of_products(x, x, n) / static_cast<float>(n);
  return 1.0f / std::sqrt(mean + eps);
}

HWY_INLINE void gate_head(const GatedHeadNormArgs& args, std::int64_t row, std::int64_t head) {
  const std::int64_t first = head * args.head_dim;
  const float* x = args.x + row * args.x_stride + first;
  const float* gate = args.gate + row * args.gate_stride + first;
  float* y = args.y + row * args.y_stride + first;
  const V inv = broadcast(inverse_rms(x, args.head_dim, args.eps));
  map({x, args.weight, gate}, y, args.head_dim, [&](V value, V weight, V g) HWY_ATTR {
    const V opening = SLACKWATER_MUTANT(norm_gate_silu) ? silu<Ops>(g) : sigmoid<Ops>(g);
    return hn::Mul(hn::Mul(hn::Mul(value, inv), weight), opening);
  });
}

}  // namespace

void rms_norm(ExecutionContext& context, const RmsNormArgs& args) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainValues / args.n);
  context.parallel_for(args.rows, grain, [&](ItemRange rows, int) HWY_ATTR {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      const float* x = args.x + row * args.x_stride;
      const V inv = broadcast(inverse_rms(x, args.n, args.eps));
      map(x, args.weight, args.y + row * args.y_stride, args.n, [&](V value, V weight) HWY_ATTR {
        return SLACKWATER_MUTANT(norm_weight_first) ? hn::Mul(value, hn::Mul(inv, weight))
                                                    : hn::Mul(hn::Mul(value, inv), weight);
      });
    }
  });
}

void gated_head_norm(ExecutionContext& context, const GatedHeadNormArgs& args) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainValues / args.head_dim);
  context.parallel_for(std::int64_t{args.rows} * args.heads, grain,
                       [&](ItemRange items, int) HWY_ATTR {
                         for (std::int64_t item = items.begin; item < items.end; ++item) {
                           gate_head(args, item / args.heads, item % args.heads);
                         }
                       });
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // SLACKWATER_SIMD_PASS

#if HWY_ONCE
namespace slackwater::kernels {

RmsNormFunction* rms_norm_simd(Target target) { return SLACKWATER_SIMD_FUNCTION(target, rms_norm); }

GatedHeadNormFunction* gated_head_norm_simd(Target target) {
  return SLACKWATER_SIMD_FUNCTION(target, gated_head_norm);
}

}  // namespace slackwater::kernels
#endif  // HWY_ONCE
