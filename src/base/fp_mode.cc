#include "slackwater/base/fp_mode.h"

#include "slackwater/base/mutant.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace slackwater {
namespace {

#if defined(__x86_64__)
// MXCSR: all six exceptions masked, round to nearest, FTZ (bit 15) and DAZ (bit 6) off.
constexpr std::uint64_t kFixedMode = 0x1F80;

std::uint64_t read_mode() { return _mm_getcsr(); }
void write_mode(std::uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
// FPCR in the lower half: round to nearest, FZ off, no traps. FPSR, the status, in the upper.
constexpr std::uint64_t kFixedMode = 0;

std::uint64_t read_mode() {
  std::uint64_t control = 0;
  std::uint64_t status = 0;
  asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(status));
  return control | status << 32;
}
void write_mode(std::uint64_t mode) {
  asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(mode & 0xFFFFFFFFu), "r"(mode >> 32));
}
#else
#error "Slackwater sets the floating-point mode on x86-64 and AArch64 only."
#endif

}  // namespace

FpModeGuard::FpModeGuard() : saved_(read_mode()) {
  if (saved_ != kFixedMode && !SLACKWATER_MUTANT(fp_mode_of_caller)) write_mode(kFixedMode);
}

FpModeGuard::~FpModeGuard() {
  if (!SLACKWATER_MUTANT(fp_mode_kept)) write_mode(saved_);
}

}  // namespace slackwater
