#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference.h"
#include "kernels/vector_math.h"

namespace slackwater::kernels::reference {

void glu(ExecutionContext&, std::span<const GluArgs> jobs) {
  for (const GluArgs& job : jobs) {
    for (std::int64_t row = 0; row < job.rows; ++row) {
      const float* gate = job.gate_up + row * job.gate_up_stride;
      const float* up = gate + job.width;
      float* y = job.y + row * job.y_stride;
      for (std::int32_t i = 0; i < job.width; ++i) {
        y[i] = scalar::silu<scalar::FloatOps>(gate[i]) * up[i];
      }
    }
  }
}

void moe_route(ExecutionContext&, const MoeRouteArgs& args) {
  std::vector<float> score(static_cast<std::size_t>(args.experts));
  std::vector<bool> taken(score.size());
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    const float* logits = args.logits + token * args.logits_stride;
    for (std::size_t e = 0; e < score.size(); ++e) {
      score[e] = scalar::sigmoid<scalar::FloatOps>(logits[e]);
    }
    std::fill(taken.begin(), taken.end(), false);
    for (std::int32_t choice = 0; choice < args.chosen; ++choice) {
      std::size_t best = score.size();
      for (std::size_t e = 0; e < score.size(); ++e) {
        if (taken[e]) continue;
        if (best == score.size() || score[best] + args.bias[best] < score[e] + args.bias[e]) {
          best = e;
        }
      }
      taken[best] = true;
    }
    std::int32_t* ids = args.expert_ids + token * args.chosen;
    float* weights = args.weights + token * args.chosen;
    float sum = 0.0f;
    for (std::size_t e = 0; e < score.size(); ++e) {
      if (!taken[e]) continue;
      *ids++ = static_cast<std::int32_t>(e);
      sum += score[e];
    }
    for (std::int32_t choice = 0; choice < args.chosen; ++choice) {
      const float s =
          score[static_cast<std::size_t>(args.expert_ids[token * args.chosen + choice])];
      weights[choice] = (args.renormalize ? s / (sum + 1e-20f) : s) * args.scale;
    }
  }
}

void moe_combine(ExecutionContext&, const MoeCombineArgs& args) {
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    float* h = args.h + token * args.h_stride;
    for (std::int32_t i = 0; i < args.width; ++i) {
      float r = 0.0f;
      for (std::int32_t choice = 0; choice < args.chosen; ++choice) {
        const std::int64_t index = token * args.chosen + choice;
        const float* y = args.expert_y + args.pair_of_choice[index] * args.expert_y_stride;
        r = std::fma(args.weights[index], y[i], r);
      }
      const float y =
          args.shared_y != nullptr ? args.shared_y[token * args.shared_y_stride + i] + r : r;
      h[i] = h[i] + y;
    }
  }
}

}  // namespace slackwater::kernels::reference
