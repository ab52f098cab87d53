#ifndef SLACKWATER_KERNELS_NORM_NORM_SIMD_H_
#define SLACKWATER_KERNELS_NORM_NORM_SIMD_H_

#include "slackwater/kernels/norm.h"

namespace slackwater::kernels {

// The fast forms for `target`, or null where they are not compiled.
using RmsNormFunction = void(ExecutionContext&, const RmsNormArgs&);
RmsNormFunction* rms_norm_simd(Target target);

using GatedHeadNormFunction = void(ExecutionContext&, const GatedHeadNormArgs&);
GatedHeadNormFunction* gated_head_norm_simd(Target target);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_NORM_NORM_SIMD_H_
