// Vector helpers shared by the fast paths, once per Highway target. Include after
// foreach_target.h and highway.h, outside of HWY_ONCE.

// clang-format off
#if defined(SLACKWATER_KERNELS_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLACKWATER_KERNELS_SIMD_H_
#undef SLACKWATER_KERNELS_SIMD_H_
#else
#define SLACKWATER_KERNELS_SIMD_H_
#endif
// clang-format on

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include <hwy/highway.h>

#include "kernels/vector_math.h"
#include "slackwater/base/dtype.h"
#include "slackwater/base/mutant.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that one, two or four vectors make the 16 partials of docs/numerics.md.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using Ops = VectorOps<D>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
inline constexpr int kSixteen = 16 / kLanes;  // vectors per 16 floats

HWY_INLINE V load(const float* x) { return hn::LoadU(D(), x); }
HWY_INLINE void store(V v, float* x) { hn::StoreU(v, D(), x); }
HWY_INLINE V broadcast(float x) { return hn::Set(D(), x); }

// kLanes bf16 values, widened exactly.
HWY_INLINE V load(const Bf16* x) {
  const hn::Rebind<std::uint16_t, D> half;
  const hn::RebindToUnsigned<D> full;
  const auto bits = hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(x));
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(full, bits)));
}

// The 16 partials of a sum.
struct Partials {
  // Written out, empty: g++ makes an implicit one without the target's instructions.
  HWY_INLINE Partials() {}
  V v[kSixteen];
};

HWY_INLINE Partials zero_partials() {
  Partials partials;
  for (int i = 0; i < kSixteen; ++i) partials.v[i] = broadcast(0.0f);
  return partials;
}

// Adds 16 products; x and y have 16 readable elements.
HWY_INLINE void add_products(const float* x, const float* y, Partials& partials) {
  for (int i = 0; i < kSixteen; ++i) {
    partials.v[i] = hn::MulAdd(load(x + i * kLanes), load(y + i * kLanes), partials.v[i]);
  }
}

// p[j] += p[j+8], then +4, +2, +1.
HWY_INLINE float reduce(const Partials& p) {
#if HWY_TARGET == HWY_NEON
  const auto quad = hn::Add(hn::Add(p.v[0], p.v[2]), hn::Add(p.v[1], p.v[3]));
#else
  const hn::Half<D> half;
#if HWY_TARGET == HWY_AVX3
  const auto eight = hn::Add(hn::LowerHalf(half, p.v[0]), hn::UpperHalf(half, p.v[0]));
  const hn::Half<decltype(half)> quarter;
  const auto quad = hn::Add(hn::LowerHalf(quarter, eight), hn::UpperHalf(quarter, eight));
#else
  const auto eight = hn::Add(p.v[0], p.v[1]);
  const auto quad = hn::Add(hn::LowerHalf(half, eight), hn::UpperHalf(half, eight));
#endif
#endif
  const auto pair = hn::Add(quad, hn::Shuffle1032(quad));
  return hn::GetLane(hn::Add(pair, hn::Shuffle2301(pair)));
}

// Fills 16 floats from `n` < 16 of `x`; the rest is +0. Nothing past x[n) is read.
HWY_INLINE void pad_sixteen(const float* x, std::int64_t n, float* padded) {
  for (int i = 0; i < 16; ++i) padded[i] = i < n ? x[i] : 0.0f;
}

// The 16-way sum of x * y over n elements.
HWY_INLINE float sum_of_products(const float* x, const float* y, std::int64_t n) {
  Partials partials = zero_partials();
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) add_products(x + i, y + i, partials);
  if (SLACKWATER_MUTANT(sum_tail_apart)) {
    return std::inner_product(x + i, x + n, y + i, reduce(partials));
  }
  if (i < n) {
    alignas(64) float a[16];
    alignas(64) float b[16];
    pad_sixteen(x + i, n - i, a);
    pad_sixteen(y + i, n - i, b);
    add_products(a, b, partials);
  }
  return reduce(partials);
}

// y[i] = function(x[0][i], x[1][i], x[2][i]) over vectors; the tail is padded to a full vector, so
// that one formula serves all elements. y may be any of the inputs.
template <class Function>
HWY_INLINE void map(const std::array<const float*, 3>& x, float* y, std::int64_t n,
                    const Function& function) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(function(load(x[0] + i), load(x[1] + i), load(x[2] + i)), y + i);
  }
  if (i == n || SLACKWATER_MUTANT(map_skips_tail)) return;
  alignas(64) float padded[4][16];
  for (int input = 0; input < 3; ++input) pad_sixteen(x[input] + i, n - i, padded[input]);
  store(function(load(padded[0]), load(padded[1]), load(padded[2])), padded[3]);
  std::copy(padded[3], padded[3] + (n - i), y + i);
}

// The same for two inputs.
template <class Function>
HWY_INLINE void map(const float* x0, const float* x1, float* y, std::int64_t n,
                    const Function& function) {
  map({x0, x1, x1}, y, n, [&](V a, V b, V) HWY_ATTR { return function(a, b); });
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SLACKWATER_KERNELS_SIMD_H_
