// Elementary functions of docs/numerics.md "Elementwise": one text, compiled for plain floats and
// for each vector target, so that scalar and vector forms cannot differ.
//
// Included once as an ordinary header (namespace scalar, type float) and once per Highway target
// (that target's namespace, its f32 vector). `Ops` supplies the arithmetic; every function below
// is a fixed sequence of exactly rounded operations and fused multiply-adds.
//
// NaN in, NaN out: limits are compare and select. Largest errors over all floats, in ulp: exp
// 0.894 where the result is at least 2^-60, log 0.827, log1p 1.255, softplus 2.055, sigmoid 2.481.

// clang-format off
#if defined(SLACKWATER_KERNELS_VECTOR_MATH_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLACKWATER_KERNELS_VECTOR_MATH_H_
#undef SLACKWATER_KERNELS_VECTOR_MATH_H_
#else
#define SLACKWATER_KERNELS_VECTOR_MATH_H_
#endif
// clang-format on

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(HWY_NAMESPACE)
#define SLACKWATER_MATH_NAMESPACE HWY_NAMESPACE
#define SLACKWATER_MATH_INLINE HWY_INLINE
#include <hwy/highway.h>
HWY_BEFORE_NAMESPACE();
#else
#define SLACKWATER_MATH_NAMESPACE scalar
#define SLACKWATER_MATH_INLINE inline
#endif

namespace slackwater::kernels::SLACKWATER_MATH_NAMESPACE {

#if defined(HWY_NAMESPACE)

// Arithmetic on one vector of f32. `hn::MulAdd` equals std::fma on every compiled target.
template <class D>
struct VectorOps {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  using DI = hwy::HWY_NAMESPACE::RebindToUnsigned<D>;
  using I = hwy::HWY_NAMESPACE::Vec<DI>;
  using M = hwy::HWY_NAMESPACE::Mask<D>;

  static HWY_INLINE V set(float x) { return hwy::HWY_NAMESPACE::Set(D(), x); }
  static HWY_INLINE V add(V a, V b) { return hwy::HWY_NAMESPACE::Add(a, b); }
  static HWY_INLINE V sub(V a, V b) { return hwy::HWY_NAMESPACE::Sub(a, b); }
  static HWY_INLINE V mul(V a, V b) { return hwy::HWY_NAMESPACE::Mul(a, b); }
  static HWY_INLINE V div(V a, V b) { return hwy::HWY_NAMESPACE::Div(a, b); }
  static HWY_INLINE V fma(V a, V b, V c) { return hwy::HWY_NAMESPACE::MulAdd(a, b, c); }
  // c - a * b, rounded once.
  static HWY_INLINE V fnma(V a, V b, V c) { return hwy::HWY_NAMESPACE::NegMulAdd(a, b, c); }
  static HWY_INLINE V neg(V a) { return hwy::HWY_NAMESPACE::Neg(a); }
  static HWY_INLINE V abs(V a) { return hwy::HWY_NAMESPACE::Abs(a); }
  static HWY_INLINE M less(V a, V b) { return hwy::HWY_NAMESPACE::Lt(a, b); }
  static HWY_INLINE M is_nan(V a) { return hwy::HWY_NAMESPACE::IsNaN(a); }
  static HWY_INLINE V select(M m, V yes, V no) {
    return hwy::HWY_NAMESPACE::IfThenElse(m, yes, no);
  }
  static HWY_INLINE I bits(V a) { return hwy::HWY_NAMESPACE::BitCast(DI(), a); }
  static HWY_INLINE V from_bits(I a) { return hwy::HWY_NAMESPACE::BitCast(D(), a); }
  static HWY_INLINE I set_bits(std::uint32_t x) { return hwy::HWY_NAMESPACE::Set(DI(), x); }
  static HWY_INLINE I add_bits(I a, I b) { return hwy::HWY_NAMESPACE::Add(a, b); }
  static HWY_INLINE I sub_bits(I a, I b) { return hwy::HWY_NAMESPACE::Sub(a, b); }
  static HWY_INLINE I and_bits(I a, I b) { return hwy::HWY_NAMESPACE::And(a, b); }
  static HWY_INLINE I or_bits(I a, I b) { return hwy::HWY_NAMESPACE::Or(a, b); }
  static HWY_INLINE I shift_left_23(I a) { return hwy::HWY_NAMESPACE::ShiftLeft<23>(a); }
  static HWY_INLINE I shift_right_23(I a) { return hwy::HWY_NAMESPACE::ShiftRight<23>(a); }
};

#else

// The same arithmetic on one float.
struct FloatOps {
  using V = float;
  using I = std::uint32_t;
  using M = bool;

  static V set(float x) { return x; }
  static V add(V a, V b) { return a + b; }
  static V sub(V a, V b) { return a - b; }
  static V mul(V a, V b) { return a * b; }
  static V div(V a, V b) { return a / b; }
  static V fma(V a, V b, V c) { return std::fma(a, b, c); }
  static V fnma(V a, V b, V c) { return std::fma(-a, b, c); }
  static V neg(V a) { return -a; }
  static V abs(V a) { return from_bits(bits(a) & 0x7FFFFFFFu); }
  static M less(V a, V b) { return a < b; }
  static M is_nan(V a) { return a != a; }
  static V select(M m, V yes, V no) { return m ? yes : no; }
  static I bits(V a) { return std::bit_cast<std::uint32_t>(a); }
  static V from_bits(I a) { return std::bit_cast<float>(a); }
  static I set_bits(std::uint32_t x) { return x; }
  static I add_bits(I a, I b) { return a + b; }
  static I sub_bits(I a, I b) { return a - b; }
  static I and_bits(I a, I b) { return a & b; }
  static I or_bits(I a, I b) { return a | b; }
  static I shift_left_23(I a) { return a << 23; }
  static I shift_right_23(I a) { return a >> 23; }
};

#endif

// e^x. Exactly 1 at 0; +0 where e^x < 2^-60; +infinity above the largest finite result.
//
// n = round(x / ln 2) by adding and taking away 1.5 * 2^23, r = x - n ln2 in two fused steps,
// e^r by a polynomial of degree 7 on |r| <= 0.35 (Horner, Cephes' coefficients for the tail),
// 2^n by adding n to the exponent bits.
template <class Ops>
SLACKWATER_MATH_INLINE typename Ops::V exp(typename Ops::V x) {
  const auto shift = Ops::set(0x1.8p23f);
  const auto shifted = Ops::fma(x, Ops::set(0x1.715476p0f), shift);
  const auto n = Ops::sub(shifted, shift);
  auto r = Ops::fnma(n, Ops::set(0x1.62e4p-1f), x);
  r = Ops::fnma(n, Ops::set(0x1.7f7d1cp-20f), r);

  auto y = Ops::set(1.9875691500e-4f);
  y = Ops::fma(y, r, Ops::set(1.3981999507e-3f));
  y = Ops::fma(y, r, Ops::set(8.3334519073e-3f));
  y = Ops::fma(y, r, Ops::set(4.1665795894e-2f));
  y = Ops::fma(y, r, Ops::set(1.6666665459e-1f));
  y = Ops::fma(y, r, Ops::set(5.0000001201e-1f));
  y = Ops::fma(y, r, Ops::set(1.0f));
  y = Ops::fma(y, r, Ops::set(1.0f));

  // The low bits of `shifted` hold n; the shift drops the bits of 1.5 * 2^23.
  y = Ops::from_bits(Ops::add_bits(Ops::bits(y), Ops::shift_left_23(Ops::bits(shifted))));
  // -41.588829 is the last float whose exponential is at least 2^-60; 88.722832 the last whose
  // exponential is finite.
  y = Ops::select(Ops::less(x, Ops::set(-0x1.4cb5ecp5f)), Ops::set(0.0f), y);
  y = Ops::select(Ops::less(Ops::set(0x1.62e42ep6f), x), Ops::set(HUGE_VALF), y);
  return Ops::select(Ops::is_nan(x), x, y);
}

// 1 / (1 + e^-x).
template <class Ops>
SLACKWATER_MATH_INLINE typename Ops::V sigmoid(typename Ops::V x) {
  const auto one = Ops::set(1.0f);
  return Ops::div(one, Ops::add(one, exp<Ops>(Ops::neg(x))));
}

// x * sigmoid(x).
template <class Ops>
SLACKWATER_MATH_INLINE typename Ops::V silu(typename Ops::V x) {
  return Ops::mul(x, sigmoid<Ops>(x));
}

// ln x for normal x > 0; other inputs give unspecified numbers, except NaN, which stays.
//
// x = 2^e m with m in [sqrt(1/2), sqrt(2)), z = m - 1 (exact), ln m = z - z^2/2 + z^3 P(z) with
// Cephes' polynomial of degree 8, then e ln2 in two parts.
template <class Ops>
SLACKWATER_MATH_INLINE typename Ops::V log(typename Ops::V x) {
  // 0x3F3504F3 is sqrt(1/2): subtracting it puts the exponent of [sqrt(1/2), sqrt(2)) at 0.
  const auto offset = Ops::set_bits(0x3F3504F3u);
  const auto moved = Ops::sub_bits(Ops::bits(x), offset);
  // e + 128 as an unsigned number, then as a float by the bits of 2^23 + value.
  const auto biased = Ops::shift_right_23(Ops::add_bits(moved, Ops::set_bits(0x40000000u)));
  const auto e = Ops::sub(Ops::from_bits(Ops::or_bits(biased, Ops::set_bits(0x4B000000u))),
                          Ops::set(0x1p23f + 128.0f));
  const auto m =
      Ops::from_bits(Ops::add_bits(Ops::and_bits(moved, Ops::set_bits(0x007FFFFFu)), offset));
  const auto z = Ops::sub(m, Ops::set(1.0f));
  const auto z2 = Ops::mul(z, z);

  auto y = Ops::set(7.0376836292e-2f);
  y = Ops::fma(y, z, Ops::set(-1.1514610310e-1f));
  y = Ops::fma(y, z, Ops::set(1.1676998740e-1f));
  y = Ops::fma(y, z, Ops::set(-1.2420140846e-1f));
  y = Ops::fma(y, z, Ops::set(1.4249322787e-1f));
  y = Ops::fma(y, z, Ops::set(-1.6668057665e-1f));
  y = Ops::fma(y, z, Ops::set(2.0000714765e-1f));
  y = Ops::fma(y, z, Ops::set(-2.4999993993e-1f));
  y = Ops::fma(y, z, Ops::set(3.3333331174e-1f));
  y = Ops::mul(Ops::mul(y, z), z2);
  y = Ops::fma(e, Ops::set(-2.12194440e-4f), y);
  y = Ops::fnma(Ops::set(0.5f), z2, y);
  y = Ops::add(z, y);
  y = Ops::fma(e, Ops::set(0.693359375f), y);
  return Ops::select(Ops::is_nan(x), x, y);
}

// ln(1 + z) for z in [0, 1]: the logarithm of the rounded sum, and the first-order term of what
// the rounding lost. Exactly 0 at 0.
template <class Ops>
SLACKWATER_MATH_INLINE typename Ops::V log1p_unit(typename Ops::V z) {
  const auto one = Ops::set(1.0f);
  const auto sum = Ops::add(one, z);
  const auto lost = Ops::sub(z, Ops::sub(sum, one));
  return Ops::add(log<Ops>(sum), Ops::div(lost, sum));
}

// max(x, 0) + ln(1 + e) where e = e^-|x| is known already.
template <class Ops>
SLACKWATER_MATH_INLINE typename Ops::V softplus_of(typename Ops::V x, typename Ops::V e) {
  const auto zero = Ops::set(0.0f);
  const auto positive = Ops::select(Ops::less(x, zero), zero, x);
  return Ops::add(positive, log1p_unit<Ops>(e));
}

// max(x, 0) + ln(1 + e^-|x|).
template <class Ops>
SLACKWATER_MATH_INLINE typename Ops::V softplus(typename Ops::V x) {
  return softplus_of<Ops>(x, exp<Ops>(Ops::neg(Ops::abs(x))));
}

// Gumbel noise of a random word: -ln(-ln u), u = (2 * (word >> 9) + 1) * 2^-24. `odd` is
// 2 * (word >> 9) + 1 as a float, exact.
template <class Ops>
SLACKWATER_MATH_INLINE typename Ops::V gumbel(typename Ops::V odd) {
  const auto u = Ops::mul(odd, Ops::set(0x1p-24f));
  return Ops::neg(log<Ops>(Ops::neg(log<Ops>(u))));
}

}  // namespace slackwater::kernels::SLACKWATER_MATH_NAMESPACE

#if defined(HWY_NAMESPACE)
HWY_AFTER_NAMESPACE();
#endif
#undef SLACKWATER_MATH_NAMESPACE
#undef SLACKWATER_MATH_INLINE

#endif  // SLACKWATER_KERNELS_VECTOR_MATH_H_
