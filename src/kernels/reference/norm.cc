#include <cmath>

#include "kernels/reference/reference.h"
#include "kernels/vector_math.h"

namespace slackwater::kernels::reference {
namespace {

// 1 / sqrt(mean of squares + eps); a division by n, as docs/numerics.md writes it.
float inverse_rms(const float* x, std::int32_t n, float eps) {
  const float mean = sum_of_products(x, x, n) / static_cast<float>(n);
  return 1.0f / std::sqrt(mean + eps);
}

}  // namespace

void rms_norm(ExecutionContext&, const RmsNormArgs& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* y = args.y + row * args.y_stride;
    const float inv = inverse_rms(x, args.n, args.eps);
    for (std::int32_t i = 0; i < args.n; ++i) y[i] = (x[i] * inv) * args.weight[i];
  }
}

void gated_head_norm(ExecutionContext&, const GatedHeadNormArgs& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    for (std::int64_t head = 0; head < args.heads; ++head) {
      const float* x = args.x + row * args.x_stride + head * args.head_dim;
      const float* gate = args.gate + row * args.gate_stride + head * args.head_dim;
      float* y = args.y + row * args.y_stride + head * args.head_dim;
      const float inv = inverse_rms(x, args.head_dim, args.eps);
      for (std::int32_t i = 0; i < args.head_dim; ++i) {
        y[i] = ((x[i] * inv) * args.weight[i]) * scalar::sigmoid<scalar::FloatOps>(gate[i]);
      }
    }
  }
}

}  // namespace slackwater::kernels::reference
