#ifndef SLACKWATER_KERNELS_MATMUL_MATMUL_SIMD_H_
#define SLACKWATER_KERNELS_MATMUL_MATMUL_SIMD_H_

#include <span>

#include "slackwater/kernels/matmul.h"

namespace slackwater::kernels {

// The fast form of matmul for `target`, or null where it is not compiled.
using MatmulFunction = void(ExecutionContext&, std::span<const MatmulArgs>);
MatmulFunction* matmul_simd(Target target);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_MATMUL_MATMUL_SIMD_H_
