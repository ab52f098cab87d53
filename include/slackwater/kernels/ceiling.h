#ifndef SLACKWATER_KERNELS_CEILING_H_
#define SLACKWATER_KERNELS_CEILING_H_

#include <cstddef>

#include "slackwater/kernels/execution_context.h"

namespace slackwater::kernels {

// Bytes per second that this machine reads from a buffer of `footprint_bytes`, over and over, with
// all threads of the context: the best of 1, 2, 4 and 8 streams of vector loads per thread, each
// the best of many timings of 16 MiB (several passes over a smaller footprint, one piece after the
// other of a larger one). An upper bound of what is sustained, and so of what a step reaches that
// reads that many bytes of weights.
//
// A footprint that fits a cache measures the cache: that is the point. Takes about a second, and
// allocates the buffer.
double read_ceiling_bytes_per_second(ExecutionContext& context, std::size_t footprint_bytes);

// Floating-point operations per second of fused multiply-adds on registers, two per lane and
// instruction, with all threads of the context. Takes about a quarter of a second.
double fma_ceiling_flops(ExecutionContext& context);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_CEILING_H_
