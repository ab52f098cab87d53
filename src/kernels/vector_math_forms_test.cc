#include "kernels/vector_math_forms.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector_math_forms_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SLACKWATER_SIMD_PASS
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {

void apply_math(test::MathFunction function, const float* x, float* y, std::int64_t n) {
  using test::MathFunction;
  const auto run = [&](const auto& one) HWY_ATTR { map(x, x, y, n, one); };
  switch (function) {
    case MathFunction::kExp: return run([](V v, V) HWY_ATTR { return exp<Ops>(v); });
    case MathFunction::kSigmoid: return run([](V v, V) HWY_ATTR { return sigmoid<Ops>(v); });
    case MathFunction::kSilu: return run([](V v, V) HWY_ATTR { return silu<Ops>(v); });
    case MathFunction::kLog: return run([](V v, V) HWY_ATTR { return log<Ops>(v); });
    case MathFunction::kLog1p: return run([](V v, V) HWY_ATTR { return log1p_unit<Ops>(v); });
    case MathFunction::kSoftplus: return run([](V v, V) HWY_ATTR { return softplus<Ops>(v); });
    case MathFunction::kGumbel: return run([](V v, V) HWY_ATTR { return gumbel<Ops>(v); });
  }
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // SLACKWATER_SIMD_PASS

#if HWY_ONCE
namespace slackwater::kernels::test {
namespace reference {
// Only its type is used.
void apply_math(MathFunction function, const float* x, float* y, std::int64_t n);
}  // namespace reference

void apply_vector_form(Target target, MathFunction function, const float* x, float* y,
                       std::int64_t n) {
  const auto form = SLACKWATER_SIMD_FUNCTION(target, apply_math);
  SLACKWATER_CHECK(form != nullptr, "target {} has no vector form", to_string(target));
  form(function, x, y, n);
}

}  // namespace slackwater::kernels::test
#endif  // HWY_ONCE
