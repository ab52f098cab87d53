#ifndef SLACKWATER_KERNELS_VECTOR_MATH_FORMS_H_
#define SLACKWATER_KERNELS_VECTOR_MATH_FORMS_H_

#include <cstdint>

#include "slackwater/kernels/target.h"

// Every function of vector_math.h in its vector forms, for the test that compares them with the
// scalar form. Apart from the test, because a file is compiled either once or once per target.
namespace slackwater::kernels::test {

enum class MathFunction { kExp, kSigmoid, kSilu, kLog, kLog1p, kSoftplus, kGumbel };

// y[i] = function(x[i]) for n values in the vector form of `target`, which is runnable and not
// the reference.
void apply_vector_form(Target target, MathFunction function, const float* x, float* y,
                       std::int64_t n);

}  // namespace slackwater::kernels::test

#endif  // SLACKWATER_KERNELS_VECTOR_MATH_FORMS_H_
