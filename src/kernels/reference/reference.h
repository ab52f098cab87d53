#ifndef SLACKWATER_KERNELS_REFERENCE_REFERENCE_H_
#define SLACKWATER_KERNELS_REFERENCE_REFERENCE_H_

#include <array>
#include <cstdint>
#include <span>

#include "slackwater/kernels/kda.h"
#include "slackwater/kernels/matmul.h"
#include "slackwater/kernels/mla.h"
#include "slackwater/kernels/moe.h"
#include "slackwater/kernels/norm.h"
#include "slackwater/kernels/sample.h"

// Every operation as plain loops in the order of docs/numerics.md, one thread, no vectors. The
// oracle of each fast path, bit for bit, and what runs on a machine without fused vectors.
// Arguments are checked by the public entries; these functions trust them.
namespace slackwater::kernels::reference {

void matmul(ExecutionContext& context, std::span<const MatmulArgs> jobs);
void rms_norm(ExecutionContext& context, const RmsNormArgs& args);
void gated_head_norm(ExecutionContext& context, const GatedHeadNormArgs& args);
void kda_step(ExecutionContext& context, const KdaStepArgs& args);
void mla_write(ExecutionContext& context, const MlaWriteArgs& args);
void mla_attention(ExecutionContext& context, const MlaAttentionArgs& args);
void glu(ExecutionContext& context, std::span<const GluArgs> jobs);
void moe_route(ExecutionContext& context, const MoeRouteArgs& args);
void moe_combine(ExecutionContext& context, const MoeCombineArgs& args);
void sample(ExecutionContext& context, const SampleArgs& args);

// The 16-way sum of docs/numerics.md: element i goes to partial i mod 16, partials start at +0,
// terms join by p = fma(x, y, p), elements past n are +0; then p[j] += p[j+8], [j+4], [j+2],
// [j+1].
float sum_of_products(const float* x, const float* y, std::int32_t n);

}  // namespace slackwater::kernels::reference

#endif  // SLACKWATER_KERNELS_REFERENCE_REFERENCE_H_
