#include <cmath>

#include "kernels/reference/reference.h"
#include "slackwater/base/numeric.h"

namespace slackwater::kernels::reference {

float sum_of_products(const float* x, const float* y, std::int32_t n) {
  std::array<float, 16> partial = {};
  for (std::int32_t i = 0; i < round_up(n, 16); ++i) {
    const float a = i < n ? x[i] : 0.0f;
    const float b = i < n ? y[i] : 0.0f;
    float& p = partial[static_cast<std::size_t>(i % 16)];
    p = std::fma(a, b, p);
  }
  for (std::size_t half = 8; half >= 1; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) partial[j] += partial[j + half];
  }
  return partial[0];
}

}  // namespace slackwater::kernels::reference
