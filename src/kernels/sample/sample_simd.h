#ifndef SLACKWATER_KERNELS_SAMPLE_SAMPLE_SIMD_H_
#define SLACKWATER_KERNELS_SAMPLE_SAMPLE_SIMD_H_

#include <cstddef>

#include "slackwater/kernels/sample.h"

namespace slackwater::kernels {

// The fast form for `target`, or null where it is not compiled. Rows whose result already is an
// error are passed over.
using SampleFunction = void(ExecutionContext&, const SampleArgs&);
SampleFunction* sample_simd(Target target);

// Scratch that the fast form needs of each worker.
std::size_t sample_scratch_bytes(std::int32_t vocabulary);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_SAMPLE_SAMPLE_SIMD_H_
