#ifndef SLACKWATER_KERNELS_MOE_MOE_SIMD_H_
#define SLACKWATER_KERNELS_MOE_MOE_SIMD_H_

#include <span>

#include "slackwater/kernels/moe.h"

namespace slackwater::kernels {

// The fast forms for `target`, or null where they are not compiled.
using GluFunction = void(ExecutionContext&, std::span<const GluArgs>);
GluFunction* glu_simd(Target target);

using MoeRouteFunction = void(ExecutionContext&, const MoeRouteArgs&);
MoeRouteFunction* moe_route_simd(Target target);

using MoeCombineFunction = void(ExecutionContext&, const MoeCombineArgs&);
MoeCombineFunction* moe_combine_simd(Target target);

// Bytes of scratch per worker that moe_route needs for `experts`.
constexpr std::size_t moe_route_scratch_bytes(std::int32_t experts) {
  return static_cast<std::size_t>(round_up(experts, 16)) * 3 * sizeof(float);
}

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_MOE_MOE_SIMD_H_
