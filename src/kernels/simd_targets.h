#ifndef SLACKWATER_KERNELS_SIMD_TARGETS_H_
#define SLACKWATER_KERNELS_SIMD_TARGETS_H_

// Which Highway targets exist here. Include before any Highway header.
//
// Only targets that fuse multiply-add in hardware are compiled (docs/numerics.md "Compiling").
// Highway always adds its static target, EMU128 on x86-64, which does not fuse: kernel files leave
// their body out for it, and choose_kernel() never selects it.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include <hwy/detect_targets.h>

#include "slackwater/base/check.h"
#include "slackwater/kernels/target.h"

// True in the passes of foreach_target.h that have a body.
#define SLACKWATER_SIMD_PASS \
  (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON)

// `return SLACKWATER_SIMD_FUNCTION(target, matmul)`: the function of that name compiled for
// `target`, or null where it is not compiled. After HWY_ONCE, in the namespace of the kernels.
#define SLACKWATER_SIMD_FUNCTION(target, name)                       \
  (SLACKWATER_IF_AVX2(target, name) SLACKWATER_IF_AVX3(target, name) \
       SLACKWATER_IF_NEON(target, name) static_cast<decltype(&reference::name)>(nullptr))

#define SLACKWATER_IF_AVX2(target, name)
#define SLACKWATER_IF_AVX3(target, name)
#define SLACKWATER_IF_NEON(target, name)

// HWY_TARGETS, of Highway's own header, holds what is compiled: with a baseline of AVX-512, say,
// AVX2 is left out.
#if HWY_TARGETS & HWY_AVX2
#undef SLACKWATER_IF_AVX2
#define SLACKWATER_IF_AVX2(target, name) \
  (target) == ::slackwater::kernels::Target::kAvx2 ? &N_AVX2::name:
#endif
#if HWY_TARGETS & HWY_AVX3
#undef SLACKWATER_IF_AVX3
#define SLACKWATER_IF_AVX3(target, name) \
  (target) == ::slackwater::kernels::Target::kAvx512 ? &N_AVX3::name:
#endif
#if HWY_TARGETS & HWY_NEON
#undef SLACKWATER_IF_NEON
#define SLACKWATER_IF_NEON(target, name) \
  (target) == ::slackwater::kernels::Target::kNeon ? &N_NEON::name:
#endif

namespace slackwater::kernels {

// The one place where a form of a kernel is chosen. `simd` is what SLACKWATER_SIMD_FUNCTION
// gave for `target`.
template <class Function>
Function* choose_kernel(Target target, Function* reference, Function* simd) {
  if (target == Target::kReference) return reference;
  SLACKWATER_CHECK(simd != nullptr, "target {} is not compiled in", to_string(target));
  return simd;
}

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_SIMD_TARGETS_H_
