#include "slackwater/base/fp_mode.h"

#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <gtest/gtest.h>

#include "slackwater/base/thread_pool.h"

namespace slackwater {
namespace {

#if defined(__x86_64__)
constexpr unsigned kRoundUp = 0x4000;
constexpr unsigned kFlushToZero = 0x8000;
constexpr unsigned kDenormalsAreZero = 0x0040;
constexpr unsigned kMaskAll = 0x1F80;
constexpr unsigned kInexactFlag = 0x0020;
constexpr unsigned kOverflowFlag = 0x0008;
constexpr unsigned kAllFlags = 0x003F;
constexpr std::uint64_t kHostileMode = kMaskAll | kRoundUp | kFlushToZero | kDenormalsAreZero;

std::uint64_t get_mode() { return _mm_getcsr(); }
void set_mode(std::uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
// FPCR: FZ, bit 24, flushes operands and results; RMode 01, bit 22, rounds upward.
constexpr std::uint64_t kHostileMode = 1u << 24 | 1u << 22;

std::uint64_t get_mode() {
  std::uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_mode(std::uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#endif

// What four operations give, one for each thing a host may have changed.
struct Probe {
  float rounded_sum = 0;       // 1 + 2^-30: 1 to nearest, 1 + 2^-23 upward
  float halved_smallest = 0;   // the smallest normal number halved: 0 when results are flushed
  float doubled_denormal = 0;  // a denormal doubled to a normal: 0 when operands are flushed
  float tie = 0;               // 1 + 2^-24: ties to even, 1
  friend bool operator==(const Probe&, const Probe&) = default;
};

constexpr Probe kRightProbe{1.0f, 0x1p-127f, 0x1p-126f, 1.0f};

// Not inlined, and its operands are read at run time: the arithmetic stays where it is called.
[[gnu::noinline]] Probe run_probe() {
  static volatile float one = 1.0f;
  static volatile float tiny = 0x1p-30f;
  static volatile float half_step = 0x1p-24f;
  static volatile float half = 0.5f;
  static volatile float two = 2.0f;
  static volatile float smallest = 0x1p-126f;
  static volatile float denormal = 0x1p-127f;
  return {one + tiny, smallest * half, denormal * two, one + half_step};
}

// Sets a mode and gives the former one back, so that a failing test does not spoil the next.
class ModeForTest {
 public:
  explicit ModeForTest(std::uint64_t mode) : saved_(get_mode()) { set_mode(mode); }
  ~ModeForTest() { set_mode(saved_); }
  ModeForTest(const ModeForTest&) = delete;
  ModeForTest& operator=(const ModeForTest&) = delete;

 private:
  std::uint64_t saved_;
};

TEST(FpModeGuard, MakesArithmeticRightUnderAHostileCaller) {
  Probe hostile;
  Probe guarded;
  Probe afterwards;
  {
    const ModeForTest mode(kHostileMode);
    hostile = run_probe();
    {
      const FpModeGuard guard;
      guarded = run_probe();
    }
    afterwards = run_probe();
  }
  // Each of the four operations shows the hostile mode, or the test would prove nothing.
  EXPECT_EQ(hostile, (Probe{0x1.000002p0f, 0.0f, 0.0f, 0x1.000002p0f}));
  EXPECT_EQ(guarded, kRightProbe);
  EXPECT_EQ(afterwards, hostile);
}

TEST(FpModeGuard, GivesTheCallersModeBack) {
  std::vector<std::uint64_t> modes;
#if defined(__x86_64__)
  // Without masks too: a guard that computed with them open would trap, not fail.
  modes = {kMaskAll,
           kHostileMode,
           kMaskAll | kRoundUp,
           kMaskAll | kFlushToZero,
           kMaskAll | kDenormalsAreZero,
           0x0000,
           kHostileMode | kInexactFlag | kOverflowFlag,
           kMaskAll | kAllFlags};
#else
  modes = {0, kHostileMode};
#endif
  for (const std::uint64_t mode : modes) {
    std::uint64_t after = 0;
    {
      const ModeForTest caller(mode);
      {
        const FpModeGuard guard;
        run_probe();  // Raises the flags inexact and underflow.
      }
      after = get_mode();
    }
    EXPECT_EQ(after, mode) << std::hex << mode;
  }
}

TEST(FpModeGuard, Nests) {
  Probe inner;
  Probe between;
  {
    const ModeForTest mode(kHostileMode);
    const FpModeGuard outer_guard;
    {
      const FpModeGuard inner_guard;
      inner = run_probe();
    }
    between = run_probe();
  }
  EXPECT_EQ(inner, kRightProbe);
  EXPECT_EQ(between, kRightProbe);
}

// A new thread inherits the mode of the thread that starts it.
TEST(FpModeThreads, PoolThreadsStartedByAHostileCallerAreUnaffected) {
  constexpr int kThreads = 4;
  std::vector<Probe> at_first(kThreads);
  std::vector<Probe> later(kThreads);
  {
    const ModeForTest mode(kHostileMode);
    ThreadPool pool(kThreads);
    pool.run([&](int worker) { at_first[static_cast<std::size_t>(worker)] = run_probe(); });
    const ThreadPool::Step step(pool);
    pool.run([&](int worker) { later[static_cast<std::size_t>(worker)] = run_probe(); });
  }
  EXPECT_NE(at_first[0], kRightProbe) << "worker 0 is the caller and keeps its mode";
  for (std::size_t worker = 1; worker < kThreads; ++worker) {
    EXPECT_EQ(at_first[worker], kRightProbe) << "worker " << worker;
    EXPECT_EQ(later[worker], kRightProbe) << "worker " << worker;
  }
}

TEST(FpModeThreads, APoolLeavesItsCallersModeAlone) {
  std::uint64_t after = 0;
  {
    const ModeForTest mode(kHostileMode);
    {
      ThreadPool pool(2);
      const ThreadPool::Step step(pool);
      pool.run([](int) {});
    }
    after = get_mode();
  }
  EXPECT_EQ(after, kHostileMode);
}

}  // namespace
}  // namespace slackwater
