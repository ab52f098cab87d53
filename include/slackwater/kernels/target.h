#ifndef SLACKWATER_KERNELS_TARGET_H_
#define SLACKWATER_KERNELS_TARGET_H_

#include <span>
#include <string_view>

#include "slackwater/base/error.h"

namespace slackwater::kernels {

// Which form of every kernel runs. All forms give the same bits (docs/numerics.md); only speed
// differs.
enum class Target {
  kReference,  // plain C++ loops with std::fma, on any machine
  kAvx2,       // AVX2 with FMA
  kAvx512,     // AVX-512 F, BW, DQ, VL, CD
  kNeon,       // AArch64 Advanced SIMD
};

// "reference", "avx2", "avx512", "neon": the values of --target and $SLACKWATER_TARGET.
std::string_view to_string(Target target);

// Errors: kInvalidArgument for an unknown name; kUnimplemented for one that this build lacks or
// this machine cannot run. The text lists what it can.
Result<Target> parse_target(std::string_view name);

// What this build holds and this machine can run, slowest first; kReference is always there.
std::span<const Target> runnable_targets();

// The fastest of runnable_targets(), or $SLACKWATER_TARGET where that is set.
//
// The only place that looks at the processor. Highway's own dispatch is not used: on a machine
// without FMA it falls back to forms that round twice, silently.
// Errors: those of parse_target for the variable; best_target() aborts with their text.
Result<Target> default_target();
Target best_target();

// Lanes of one f32 vector: 1, 8, 16, 4.
int vector_lanes(Target target);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_TARGET_H_
