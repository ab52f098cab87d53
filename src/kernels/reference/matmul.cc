#include <cmath>

#include "kernels/reference/reference.h"

namespace slackwater::kernels::reference {
namespace {

float weight_at(const PackedWeights& weights, std::int64_t output, std::int64_t input) {
  const std::int64_t panel = output / kPanelColumns;
  const std::int64_t index =
      (panel * weights.num_inputs + input) * kPanelColumns + output % kPanelColumns;
  if (weights.dtype == DType::kF32) {
    return reinterpret_cast<const float*>(weights.panels)[index];
  }
  return bf16_to_f32(reinterpret_cast<const Bf16*>(weights.panels)[index]);
}

}  // namespace

void matmul(ExecutionContext&, std::span<const MatmulArgs> jobs) {
  for (const MatmulArgs& job : jobs) {
    for (std::int64_t row = 0; row < job.rows; ++row) {
      const float* x = job.x + (job.x_rows != nullptr ? job.x_rows[row] : row) * job.x_stride;
      for (std::int64_t n = 0; n < job.weights.num_outputs; ++n) {
        float sum = 0.0f;
        for (std::int64_t k = 0; k < job.weights.num_inputs; ++k) {
          sum = std::fma(weight_at(job.weights, n, k), x[k], sum);
        }
        float& y = job.y[row * job.y_stride + n];
        y = job.epilogue == Epilogue::kAdd ? y + sum : sum;
      }
    }
  }
}

}  // namespace slackwater::kernels::reference
