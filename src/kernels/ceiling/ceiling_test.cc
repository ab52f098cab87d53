#include "slackwater/kernels/ceiling.h"

#include <cmath>

#include "kernels/ceiling/ceiling_simd.h"
#include "kernels/simd_targets.h"
#include "kernels/test_support.h"

namespace slackwater::kernels::test {
namespace {

// A pass that skips part of the buffer would report a ceiling that no machine has: every bit of
// every float reaches the result of a pass over lanes of one value.
TEST(Ceiling, APassReadsTheWholeBuffer) {
  constexpr std::int64_t kFloats = 2048;
  for (const Target target : fast_targets()) {
    ReadPassFunction* const read =
        choose_kernel(target, reference::read_pass, read_pass_simd(target));
    for (const int streams : {1, 2, 4, 8}) {
      const std::int64_t lanes = vector_lanes(target);
      AlignedBuffer<float> buffer(kFloats);
      for (std::int64_t at = 0; at < kFloats; at += lanes) {
        buffer[static_cast<std::size_t>(at)] = 1.0f;
        ASSERT_EQ(read(buffer.data(), kFloats, streams), 1.0f)
            << to_string(target) << ", " << streams << " streams, float " << at;
        buffer[static_cast<std::size_t>(at)] = 0.0f;
      }
      ASSERT_EQ(read(buffer.data(), kFloats, streams), 0.0f);
    }
  }
}

TEST(CeilingSlow, CeilingsArePositiveAndFiniteOnEveryTarget) {
  for (const Target target : runnable_targets()) {
    Runner runner(target, 2);
    const double flops = fma_ceiling_flops(runner.context);
    EXPECT_TRUE(std::isfinite(flops) && flops > 0) << to_string(target) << ": " << flops;
    const double bytes = read_ceiling_bytes_per_second(runner.context, 0);
    EXPECT_TRUE(std::isfinite(bytes) && bytes > 0) << to_string(target) << ": " << bytes;
  }
}

}  // namespace
}  // namespace slackwater::kernels::test
