#include "kernels/ceiling/ceiling_simd.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ceiling/ceiling_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SLACKWATER_SIMD_PASS
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {
namespace {

// One pass over n floats in kStreams runs; two vectors of each run per turn.
template <int kStreams>
HWY_INLINE float read_streams(const float* values, std::int64_t n) {
  const std::int64_t run = n / kStreams / 16 * 16;
  V seen[kStreams];
  for (V& v : seen) v = broadcast(0.0f);
  for (std::int64_t i = 0; i < run; i += 16) {
    for (int s = 0; s < kStreams; ++s) {
      for (int v = 0; v < kSixteen; ++v) {
        // Or instead of a sum: the shortest chain there is.
        seen[s] = hn::Or(seen[s], load(values + s * run + i + v * kLanes));
      }
    }
  }
  for (int s = 1; s < kStreams; ++s) seen[0] = hn::Or(seen[0], seen[s]);
  return hn::GetLane(seen[0]);
}

}  // namespace

float read_pass(const float* values, std::int64_t n, int streams) {
  switch (streams) {
    case 1: return read_streams<1>(values, n);
    case 2: return read_streams<2>(values, n);
    case 4: return read_streams<4>(values, n);
    default: return read_streams<8>(values, n);
  }
}

float fma_pass(std::int64_t rounds) {
  V sums[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) sums[i] = broadcast(static_cast<float>(i));
  const V factor = broadcast(0.999f);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (V& sum : sums) sum = hn::MulAdd(sum, factor, factor);
  }
  for (int i = 1; i < kFmaChains; ++i) sums[0] = hn::Add(sums[0], sums[i]);
  return hn::GetLane(sums[0]);
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // SLACKWATER_SIMD_PASS

#if HWY_ONCE
namespace slackwater::kernels {

ReadPassFunction* read_pass_simd(Target target) {
  return SLACKWATER_SIMD_FUNCTION(target, read_pass);
}

FmaPassFunction* fma_pass_simd(Target target) { return SLACKWATER_SIMD_FUNCTION(target, fma_pass); }

}  // namespace slackwater::kernels
#endif  // HWY_ONCE
