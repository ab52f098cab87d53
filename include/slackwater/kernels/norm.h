#ifndef SLACKWATER_KERNELS_NORM_H_
#define SLACKWATER_KERNELS_NORM_H_

#include <cstdint>

#include "slackwater/kernels/execution_context.h"

namespace slackwater::kernels {

// y = (x * inv) * w with inv = 1 / sqrt(sum(x^2) / n + eps), per row.
//
// The sum is the 16-way sum of docs/numerics.md. y may be x.
struct RmsNormArgs {
  const float* x = nullptr;  // [rows, n] f32
  std::int64_t x_stride = 0;
  const float* weight = nullptr;  // [n] f32
  float* y = nullptr;             // [rows, n] f32
  std::int64_t y_stride = 0;
  std::int32_t rows = 0;
  std::int32_t n = 0;
  float eps = 0;
};
void rms_norm(ExecutionContext& context, const RmsNormArgs& args);

// y = ((x * inv) * w) * sigmoid(gate), per (row, head) over head_dim values; w is shared by all
// heads. The output norm of a KDA layer. y may be x.
struct GatedHeadNormArgs {
  const float* x = nullptr;  // [rows, heads, head_dim] f32
  std::int64_t x_stride = 0;
  const float* gate = nullptr;  // [rows, heads, head_dim] f32, before the sigmoid
  std::int64_t gate_stride = 0;
  const float* weight = nullptr;  // [head_dim] f32
  float* y = nullptr;             // [rows, heads, head_dim] f32
  std::int64_t y_stride = 0;
  std::int32_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  float eps = 0;
};
void gated_head_norm(ExecutionContext& context, const GatedHeadNormArgs& args);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_NORM_H_
