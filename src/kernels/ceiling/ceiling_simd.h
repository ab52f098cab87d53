#ifndef SLACKWATER_KERNELS_CEILING_CEILING_SIMD_H_
#define SLACKWATER_KERNELS_CEILING_CEILING_SIMD_H_

#include <cstdint>

#include "slackwater/kernels/target.h"

namespace slackwater::kernels {

// Reads `n` floats once in `streams` contiguous runs (1, 2, 4 or 8); the result keeps the loads.
using ReadPassFunction = float(const float* values, std::int64_t n, int streams);
ReadPassFunction* read_pass_simd(Target target);

// Runs `rounds` rounds of kFmaChains independent multiply-adds per lane. As many chains as there
// are units times cycles of latency, two times four on x86-64 and up to four times four on
// AArch64, and some to spare; the registers hold them and one operand.
#if defined(__aarch64__)
inline constexpr int kFmaChains = 20;
#else
inline constexpr int kFmaChains = 12;
#endif
using FmaPassFunction = float(std::int64_t rounds);
FmaPassFunction* fma_pass_simd(Target target);

namespace reference {
float read_pass(const float* values, std::int64_t n, int streams);
float fma_pass(std::int64_t rounds);
}  // namespace reference

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_CEILING_CEILING_SIMD_H_
