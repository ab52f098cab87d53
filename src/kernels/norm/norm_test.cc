#include "slackwater/kernels/norm.h"

#include <cmath>

#include "kernels/reference/reference.h"
#include "kernels/test_support.h"

namespace slackwater::kernels::test {
namespace {

constexpr std::int32_t kSizes[] = {1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 500};

// One root-mean-square norm with its arrays.
struct RmsProblem {
  RmsProblem(std::int32_t rows, std::int32_t n, Random& random)
      : x(rows, n), weight(1, n), y(rows, n, kAwkwardOutput) {
    x.fill(random);
    weight.fill(random);
  }

  RmsNormArgs args() {
    return {.x = x.data(),
            .x_stride = x.stride(),
            .weight = weight.data(),
            .y = y.data(),
            .y_stride = y.stride(),
            .rows = static_cast<std::int32_t>(x.rows()),
            .n = static_cast<std::int32_t>(x.columns()),
            .eps = 1e-5f};
  }

  Floats x, weight, y;
};

// One output norm of a KDA layer with its arrays.
struct GatedProblem {
  GatedProblem(std::int32_t rows, std::int32_t num_heads, std::int32_t head_size, Random& random)
      : heads(num_heads),
        head_dim(head_size),
        x(rows, heads * head_dim),
        gate(rows, heads * head_dim, {.offset = 2, .gap = 3}),
        weight(1, head_dim),
        y(rows, heads * head_dim, kAwkwardOutput) {
    x.fill(random);
    gate.fill([&] { return random.uniform(-60.0f, 60.0f) * random.uniform(0.0f, 1.0f); });
    weight.fill(random);
  }

  GatedHeadNormArgs args() {
    return {.x = x.data(),
            .x_stride = x.stride(),
            .gate = gate.data(),
            .gate_stride = gate.stride(),
            .weight = weight.data(),
            .y = y.data(),
            .y_stride = y.stride(),
            .rows = static_cast<std::int32_t>(x.rows()),
            .heads = heads,
            .head_dim = head_dim,
            .eps = 1e-5f};
  }

  std::int32_t heads, head_dim;
  Floats x, gate, weight, y;
};

// Either norm, so that what holds for both is written once.
void run(ExecutionContext& context, RmsProblem& problem) { rms_norm(context, problem.args()); }
void run(ExecutionContext& context, GatedProblem& problem) {
  gated_head_norm(context, problem.args());
}

template <class Problem>
Floats reference_result(Problem& problem) {
  Runner reference(Target::kReference);
  problem.y.clear();
  run(reference.context, problem);
  Floats expected(problem.y.rows(), problem.y.columns());
  expected.copy_from(problem.y);
  return expected;
}

template <class Problem>
void expect_targets_agree(Problem& problem, std::initializer_list<int> threads) {
  const Floats expected = reference_result(problem);
  ASSERT_TRUE(problem.y.padding_is_intact());
  for (const Target target : fast_targets()) {
    for (const int num_threads : threads) {
      Runner runner(target, num_threads);
      problem.y.clear();
      run(runner.context, problem);
      ASSERT_TRUE(equal_bits(problem.y, expected)) << to_string(target) << " with " << num_threads
                                                   << " threads, rows of " << problem.x.columns();
    }
  }
}

TEST(SumOfProducts, ElementIGoesToPartialIModSixteenAndPartialsJoinByHalves) {
  // Each fits a float only in the order that docs/numerics.md writes.
  std::vector<float> ones(40, 1.0f);
  std::vector<float> x(40, 0.0f);
  x[0] = 0x1p24f;
  x[16] = 1.0f;     // joins partial 0 at once and is lost
  x[8] = -0x1p24f;  // meets partial 0 at the first halving
  x[4] = 1.0f;      // meets them afterwards and stays
  EXPECT_EQ(reference::sum_of_products(x.data(), ones.data(), 40), 1.0f);
  x[16] = 0.0f;
  x[24] = 1.0f;  // joins partial 8, which is exact
  EXPECT_EQ(reference::sum_of_products(x.data(), ones.data(), 40), 2.0f);
}

TEST(RmsNorm, EveryTargetEqualsTheReference) {
  Random random(30);
  for (const std::int32_t n : kSizes) {
    for (const std::int32_t rows : {1, 3, 7}) {
      RmsProblem problem(rows, n, random);
      expect_targets_agree(problem, {1});
    }
  }
}

TEST(GatedHeadNorm, EveryTargetEqualsTheReference) {
  Random random(31);
  for (const std::int32_t head_dim : kSizes) {
    for (const std::int32_t heads : {1, 3}) {
      GatedProblem problem(3, heads, head_dim, random);
      expect_targets_agree(problem, {1});
    }
  }
}

TEST(NormThreads, TheNumberOfThreadsDoesNotChangeABit) {
  Random random(32);
  for (const std::int32_t n : {33, 1000}) {
    RmsProblem rms(500, n, random);
    expect_targets_agree(rms, {1, 2, 3});
    GatedProblem gated(101, 5, n, random);
    expect_targets_agree(gated, {1, 2, 3});
  }
}

TEST(RmsNorm, ARowAloneEqualsTheRowInABatch) {
  Random random(33);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    for (std::int32_t rows = 1; rows <= 13; ++rows) {
      RmsProblem problem(rows, 77, random);
      run(runner.context, problem);
      for (std::int32_t r = 0; r < rows; ++r) {
        RmsNormArgs alone = problem.args();
        std::vector<float> y(77, poison());
        alone.x = problem.x.row(r);
        alone.y = y.data();
        alone.rows = 1;
        rms_norm(runner.context, alone);
        ASSERT_TRUE(equal_bits<float>(y, problem.y.row_span(r))) << to_string(target);
      }
    }
  }
}

TEST(RmsNorm, WorksInPlace) {
  Random random(34);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    for (const std::int32_t n : {5, 16, 61}) {
      RmsProblem problem(3, n, random);
      run(runner.context, problem);
      RmsNormArgs in_place = problem.args();
      in_place.y = problem.x.data();
      in_place.y_stride = problem.x.stride();
      rms_norm(runner.context, in_place);
      EXPECT_TRUE(equal_bits(problem.x, problem.y)) << to_string(target);
    }
  }
}

TEST(GatedHeadNorm, WorksInPlace) {
  Random random(35);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    for (const std::int32_t head_dim : {5, 16, 61}) {
      GatedProblem problem(3, 2, head_dim, random);
      run(runner.context, problem);
      GatedHeadNormArgs in_place = problem.args();
      in_place.y = problem.x.data();
      in_place.y_stride = problem.x.stride();
      gated_head_norm(runner.context, in_place);
      EXPECT_TRUE(equal_bits(problem.x, problem.y)) << to_string(target);
    }
  }
}

// 1 / sqrt(mean(x^2) + eps) in double.
double exact_inverse(std::span<const float> x, double eps) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  return 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
}

// Sixteen partials of n / 16 terms of one sign each, then seven roundings of single operations.
TEST(RmsNorm, ReferenceIsWithinTheErrorOfTheExactNorm) {
  constexpr double kC = 2;
  Random random(36);
  for (const std::int32_t n : kSizes) {
    RmsProblem problem(7, n, random);
    const Floats y = reference_result(problem);
    for (std::int64_t r = 0; r < 7; ++r) {
      const double inv = exact_inverse(problem.x.row_span(r), problem.args().eps);
      for (std::int32_t i = 0; i < n; ++i) {
        const double exact = problem.x.row(r)[i] * inv * problem.weight.row(0)[i];
        const double bound = kC * kEps * (3 + std::sqrt(n / 16.0)) * std::fabs(exact);
        ASSERT_TRUE(is_close(y.row(r)[i], exact, bound)) << "row of " << n;
      }
    }
  }
}

TEST(GatedHeadNorm, ReferenceIsWithinTheErrorOfTheExactNorm) {
  constexpr double kC = 2;
  Random random(37);
  for (const std::int32_t head_dim : kSizes) {
    GatedProblem problem(3, 2, head_dim, random);
    const Floats y = reference_result(problem);
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int32_t head = 0; head < 2; ++head) {
        const std::span<const float> x = problem.x.row_span(r).subspan(
            static_cast<std::size_t>(head * head_dim), static_cast<std::size_t>(head_dim));
        const double inv = exact_inverse(x, problem.args().eps);
        for (std::int32_t i = 0; i < head_dim; ++i) {
          const double gate = problem.gate.row(r)[head * head_dim + i];
          const double exact = x[static_cast<std::size_t>(i)] * inv * problem.weight.row(0)[i] /
                               (1 + std::exp(-gate));
          // The sigmoid adds 2.5 ulps of its own; where e^-gate < 2^-60 it is +0.
          const double bound = kC * kEps * (6 + std::sqrt(head_dim / 16.0)) * std::fabs(exact);
          ASSERT_TRUE(is_close(y.row(r)[head * head_dim + i], exact, bound));
        }
      }
    }
  }
}

// The weight comes after x * inv: (3 * inv) * w and 3 * (inv * w) differ in many elements.
TEST(RmsNorm, MultipliesByTheInverseBeforeTheWeight) {
  Random random(38);
  RmsProblem problem(1, 200, random);
  const Floats y = reference_result(problem);
  const float mean = reference::sum_of_products(problem.x.data(), problem.x.data(), 200) / 200.0f;
  const float inv = 1.0f / std::sqrt(mean + problem.args().eps);
  int otherwise_different = 0;
  for (std::int32_t i = 0; i < 200; ++i) {
    const float x = problem.x.data()[i];
    const float w = problem.weight.data()[i];
    EXPECT_EQ(bits_of(y.data()[i]), bits_of((x * inv) * w));
    otherwise_different += y.data()[i] != x * (inv * w);
  }
  EXPECT_GT(otherwise_different, 10) << "the values do not tell the two orders apart";
}

TEST(Norm, HostileFloatingPointModeChangesNothingAndIsGivenBack) {
  Random random(39);
  RmsProblem rms(3, 45, random);
  // The mean of these squares is a denormal sum that the hostile mode would flush.
  for (std::int32_t i = 0; i < 45; ++i) rms.x.row(1)[i] = 0x1.8p-70f;
  GatedProblem gated(3, 2, 45, random);
  const Floats expected_rms = reference_result(rms);
  const Floats expected_gated = reference_result(gated);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    rms.y.clear();
    gated.y.clear();
    EXPECT_TRUE(run_in_hostile_mode([&] { run(runner.context, rms); }));
    EXPECT_TRUE(run_in_hostile_mode([&] { run(runner.context, gated); }));
    EXPECT_TRUE(equal_bits(rms.y, expected_rms)) << to_string(target);
    EXPECT_TRUE(equal_bits(gated.y, expected_gated)) << to_string(target);
  }
}

TEST(NormDeathTest, RefusesStridesShorterThanARow) {
  Random random(40);
  Runner runner(Target::kReference);
  RmsProblem rms(2, 20, random);
  RmsNormArgs args = rms.args();
  args.x_stride = 19;
  EXPECT_DEATH(rms_norm(runner.context, args), "strides 19 and 27 of rows of 20");
  GatedProblem gated(2, 2, 20, random);
  GatedHeadNormArgs gated_args = gated.args();
  gated_args.gate_stride = 39;
  EXPECT_DEATH(gated_head_norm(runner.context, gated_args), "strides 45, 39 and 47 of rows of 40");
}

}  // namespace
}  // namespace slackwater::kernels::test
