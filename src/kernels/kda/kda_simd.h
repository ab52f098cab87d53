#ifndef SLACKWATER_KERNELS_KDA_KDA_SIMD_H_
#define SLACKWATER_KERNELS_KDA_KDA_SIMD_H_

#include <cstddef>

#include "slackwater/kernels/kda.h"

namespace slackwater::kernels {

// Steps, replayed records and tokens, whose activations are prepared before the state passes over
// them: long enough to amortise loading a state tile, short enough that keys, queries and decays
// stay in the L2 cache.
inline constexpr std::int32_t kPreparedTokens = 32;

// Bytes of scratch per worker, see KdaScratch in kda_simd.cc.
constexpr std::size_t kda_scratch_bytes(std::int64_t head_dim) {
  const std::int64_t activations = 5 * kPreparedTokens * head_dim;
  return static_cast<std::size_t>(activations + head_dim * head_dim + head_dim * kValueTile) *
         sizeof(float);
}

// The fast form of kda_step for `target`, or null where it is not compiled.
using KdaStepFunction = void(ExecutionContext&, const KdaStepArgs&);
KdaStepFunction* kda_step_simd(Target target);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_KDA_KDA_SIMD_H_
