#include "slackwater/kernels/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "kernels/test_support.h"
#include "kernels/vector_math.h"

namespace slackwater::kernels::test {
namespace {

constexpr std::int32_t kWidths[] = {1, 3, 7, 8, 15, 16, 17, 31, 63, 64, 65, 500};

Floats copy_of(const Floats& rows) {
  Floats copy(rows.rows(), rows.columns());
  copy.copy_from(rows);
  return copy;
}

// One gated linear unit with its arrays.
struct GluProblem {
  GluProblem(std::int32_t rows, std::int32_t width, Random& random)
      : gate_up(rows, 2 * width), y(rows, width, kAwkwardOutput) {
    gate_up.fill([&] { return 4.0f * random.value(); });
  }

  GluArgs args() {
    return {.gate_up = gate_up.data(),
            .gate_up_stride = gate_up.stride(),
            .y = y.data(),
            .y_stride = y.stride(),
            .rows = static_cast<std::int32_t>(y.rows()),
            .width = static_cast<std::int32_t>(y.columns())};
  }

  Floats gate_up, y;
};

Floats run(GluProblem& problem, Runner& runner) {
  problem.y.clear();
  glu(runner.context, problem.args());
  EXPECT_TRUE(problem.y.padding_is_intact());
  return copy_of(problem.y);
}

TEST(Glu, EveryTargetEqualsTheReference) {
  Random random(110);
  for (const std::int32_t width : kWidths) {
    for (const std::int32_t rows : {1, 3, 7}) {
      GluProblem problem(rows, width, random);
      Runner reference(Target::kReference);
      const Floats expected = run(problem, reference);
      for (const Target target : fast_targets()) {
        Runner runner(target);
        ASSERT_TRUE(equal_bits(run(problem, runner), expected))
            << to_string(target) << ", width " << width;
      }
    }
  }
}

TEST(Glu, JobsSideBySideEqualEachAloneAndRowsEqualThemselvesAlone) {
  Random random(111);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    std::vector<GluProblem> problems;
    for (const std::int32_t rows : {3, 0, 1, 13}) problems.emplace_back(rows, 37, random);
    std::vector<GluArgs> jobs;
    for (GluProblem& problem : problems) jobs.push_back(problem.args());
    glu(runner.context, jobs);
    for (GluProblem& problem : problems) {
      const Floats together = copy_of(problem.y);
      EXPECT_TRUE(equal_bits(run(problem, runner), together)) << to_string(target);
      for (std::int64_t r = 0; r < problem.y.rows(); ++r) {
        std::vector<float> y(37, poison());
        glu(runner.context,
            {.gate_up = problem.gate_up.row(r), .y = y.data(), .rows = 1, .width = 37});
        EXPECT_TRUE(equal_bits<float>(y, together.row_span(r))) << to_string(target);
      }
    }
  }
}

// Three roundings and the 2.5 ulps of a sigmoid; below 2^-60 the sigmoid is +0.
TEST(Glu, ReferenceIsWithinTheErrorOfTheExactFunction) {
  constexpr double kC = 9;
  Random random(112);
  GluProblem problem(5, 100, random);
  Runner reference(Target::kReference);
  const Floats y = run(problem, reference);
  for (std::int64_t r = 0; r < 5; ++r) {
    for (std::int64_t i = 0; i < 100; ++i) {
      const double gate = problem.gate_up.row(r)[i];
      const double exact = gate / (1 + std::exp(-gate)) * problem.gate_up.row(r)[100 + i];
      ASSERT_TRUE(is_close(y.row(r)[i], exact, kC * kEps * std::fabs(exact))) << gate;
    }
  }
}

// One routing with its arrays.
struct RouteProblem {
  struct Shape {
    std::int32_t tokens = 1;
    std::int32_t experts = 8;
    std::int32_t chosen = 2;
    bool renormalize = true;
    float scale = 2.446f;
  };

  RouteProblem(const Shape& problem_shape, Random& random)
      : shape(problem_shape),
        logits(shape.tokens, shape.experts),
        bias(1, shape.experts),
        ids(shape.tokens, shape.chosen, kPackedOutput),
        weights(shape.tokens, shape.chosen, kPackedOutput) {
    logits.fill(random);
    bias.fill([&] { return random.uniform(-0.5f, 0.5f); });
  }

  void run(Runner& runner) {
    ids.clear();
    weights.clear();
    moe_route(runner.context, {.logits = logits.data(),
                               .logits_stride = logits.stride(),
                               .bias = bias.data(),
                               .tokens = shape.tokens,
                               .experts = shape.experts,
                               .chosen = shape.chosen,
                               .renormalize = shape.renormalize,
                               .scale = shape.scale,
                               .expert_ids = ids.data(),
                               .weights = weights.data()});
    EXPECT_TRUE(ids.padding_is_intact());
    EXPECT_TRUE(weights.padding_is_intact());
  }
  void run(Target target) {
    Runner runner(target);
    run(runner);
  }

  std::vector<std::int32_t> ids_of(std::int64_t token) const {
    return {ids.row(token), ids.row(token) + shape.chosen};
  }

  Shape shape;
  Floats logits, bias;
  PaddedRows<std::int32_t> ids;
  Floats weights;
};

void expect_targets_agree(RouteProblem& problem, std::initializer_list<int> threads = {1}) {
  problem.run(Target::kReference);
  const Floats weights = copy_of(problem.weights);
  std::vector<std::vector<std::int32_t>> ids;
  for (std::int64_t t = 0; t < problem.shape.tokens; ++t) ids.push_back(problem.ids_of(t));
  for (const Target target : fast_targets()) {
    for (const int num_threads : threads) {
      Runner runner(target, num_threads);
      problem.run(runner);
      for (std::int64_t t = 0; t < problem.shape.tokens; ++t) {
        ASSERT_EQ(problem.ids_of(t), ids[static_cast<std::size_t>(t)])
            << to_string(target) << ", token " << t;
      }
      ASSERT_TRUE(equal_bits(problem.weights, weights)) << to_string(target);
    }
  }
}

TEST(MoeRoute, EveryTargetEqualsTheReference) {
  Random random(113);
  for (const std::int32_t experts : {1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 256}) {
    for (const std::int32_t chosen : {1, 2, 3, 8, experts}) {
      if (chosen > experts) continue;
      RouteProblem problem(
          {.tokens = 7, .experts = experts, .chosen = chosen, .renormalize = chosen % 2 == 0},
          random);
      expect_targets_agree(problem);
    }
  }
}

// Few different logits, so that most selections are decided by ids.
TEST(MoeRoute, EveryTargetEqualsTheReferenceOnTies) {
  Random random(114);
  for (const std::int32_t experts : {4, 13, 64}) {
    for (std::int32_t chosen = 1; chosen <= 4; ++chosen) {
      RouteProblem problem({.tokens = 20, .experts = experts, .chosen = chosen}, random);
      problem.logits.fill([&] { return static_cast<float>(random.below(2)); });
      problem.bias.fill([] { return 0.25f; });
      expect_targets_agree(problem);
    }
  }
}

TEST(MoeThreads, TheNumberOfThreadsDoesNotChangeARouting) {
  Random random(115);
  RouteProblem problem({.tokens = 301, .experts = 64, .chosen = 6}, random);
  expect_targets_agree(problem, {1, 2, 3});
}

TEST(MoeRoute, TiesGoToTheLowestIds) {
  Random random(116);
  RouteProblem problem({.experts = 9, .chosen = 3}, random);
  problem.bias.fill([] { return 0.0f; });
  const auto routed = [&](Target target, const std::vector<float>& logits) {
    std::ranges::copy(logits, problem.logits.data());
    problem.run(target);
    return problem.ids_of(0);
  };
  using Ids = std::vector<std::int32_t>;
  for (const Target target : runnable_targets()) {
    EXPECT_EQ(routed(target, {1, 1, 1, 1, 1, 1, 1, 1, 1}), (Ids{0, 1, 2}));
    EXPECT_EQ(routed(target, {0, 1, 0, 1, 0, 1, 0, 1, 1}), (Ids{1, 3, 5}));
    EXPECT_EQ(routed(target, {0, 0, 0, 0, 0, 0, 0, 0, 1}), (Ids{0, 1, 8}));
    EXPECT_EQ(routed(target, {0, 1, 1, 2, 1, 0, 0, 2, 0}), (Ids{1, 3, 7}));
  }
}

// The bias decides who is chosen, and nothing else.
TEST(MoeRoute, WeightsAreTheUnbiasedScores) {
  Random random(117);
  RouteProblem problem(
      {.tokens = 5, .experts = 12, .chosen = 3, .renormalize = false, .scale = 1.0f}, random);
  problem.bias.fill([] { return -3.0f; });
  for (const std::int32_t expert : {2, 5, 11}) problem.bias.data()[expert] = 4.0f;
  for (const Target target : runnable_targets()) {
    problem.run(target);
    for (std::int64_t t = 0; t < 5; ++t) {
      EXPECT_EQ(problem.ids_of(t), (std::vector<std::int32_t>{2, 5, 11}));
      for (std::int64_t choice = 0; choice < 3; ++choice) {
        const float logit = problem.logits.row(t)[problem.ids_of(t)[choice]];
        EXPECT_EQ(bits_of(problem.weights.row(t)[choice]),
                  bits_of(scalar::sigmoid<scalar::FloatOps>(logit)))
            << to_string(target);
      }
    }
  }
}

TEST(MoeRoute, RenormalisedWeightsDivideByTheirSumThenScale) {
  Random random(118);
  RouteProblem problem({.tokens = 30, .experts = 20, .chosen = 4, .scale = 2.5f}, random);
  for (const Target target : runnable_targets()) {
    problem.run(target);
    for (std::int64_t t = 0; t < 30; ++t) {
      std::vector<float> s;
      float sum = 0.0f;
      for (const std::int32_t id : problem.ids_of(t)) {
        s.push_back(scalar::sigmoid<scalar::FloatOps>(problem.logits.row(t)[id]));
        sum += s.back();
      }
      for (std::size_t choice = 0; choice < 4; ++choice) {
        const float expected = s[choice] / (sum + 1e-20f) * 2.5f;
        EXPECT_EQ(bits_of(problem.weights.row(t)[choice]), bits_of(expected));
      }
    }
  }
}

// Against scores in float64: nobody outside is better than anybody inside.
TEST(MoeRoute, ReferenceChoosesTheBestAndWeighsThemWithinTheError) {
  // A sigmoid of 2.5 ulps above and below, four sums and two more roundings.
  constexpr double kC = 10;
  Random random(119);
  RouteProblem problem({.tokens = 50, .experts = 30, .chosen = 5}, random);
  problem.run(Target::kReference);
  for (std::int64_t t = 0; t < 50; ++t) {
    const auto score = [&](std::int32_t e) {
      return 1 / (1 + std::exp(-double{problem.logits.row(t)[e]}));
    };
    const auto selection = [&](std::int32_t e) { return score(e) + problem.bias.data()[e]; };
    const std::vector<std::int32_t> ids = problem.ids_of(t);
    ASSERT_TRUE(std::ranges::is_sorted(ids));
    double worst = 10;
    double sum = 0;
    for (const std::int32_t e : ids) {
      worst = std::min(worst, selection(e));
      sum += score(e);
    }
    for (std::int32_t e = 0; e < 30; ++e) {
      if (std::ranges::count(ids, e) == 1) continue;
      EXPECT_LE(selection(e), worst + 8 * kEps) << "expert " << e;
    }
    for (std::size_t choice = 0; choice < 5; ++choice) {
      const double exact = score(ids[choice]) / sum * double{problem.shape.scale};
      EXPECT_TRUE(is_close(problem.weights.row(t)[choice], exact, kC * kEps * exact));
    }
  }
}

TEST(MoeRoute, AllExpertsMayBeChosen) {
  Random random(120);
  for (const std::int32_t experts : {1, 5, 16, 33}) {
    RouteProblem problem({.tokens = 3, .experts = experts, .chosen = experts}, random);
    std::vector<std::int32_t> all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    for (const Target target : runnable_targets()) {
      problem.run(target);
      for (std::int64_t t = 0; t < 3; ++t) EXPECT_EQ(problem.ids_of(t), all);
    }
  }
}

// Damaged activations may give NaN scores; ids stay distinct and within range, so that nothing
// past the arrays is read afterwards.
TEST(MoeRoute, NaNScoresStillGiveDistinctExperts) {
  Random random(121);
  RouteProblem problem({.tokens = 40, .experts = 17, .chosen = 6}, random);
  problem.logits.fill([&] { return random.below(3) == 0 ? poison() : random.value(); });
  for (const Target target : runnable_targets()) {
    problem.run(target);
    for (std::int64_t t = 0; t < 40; ++t) {
      const std::vector<std::int32_t> ids = problem.ids_of(t);
      EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 6u) << to_string(target);
      EXPECT_GE(ids.front(), 0);
      EXPECT_LT(ids.back(), 17);
    }
  }
}

// A grouping with its arrays.
struct Grouping {
  Grouping(std::vector<std::int32_t> expert_ids, std::int32_t num_experts, std::int32_t num_chosen)
      : ids(std::move(expert_ids)),
        experts(num_experts),
        chosen(num_chosen),
        offsets(1, experts + 1, kPackedOutput),
        pair_tokens(1, std::ssize(ids), kPackedOutput),
        pair_of_choice(1, std::ssize(ids), kPackedOutput) {
    Runner runner(Target::kReference);
    moe_group(runner.context, {.expert_ids = ids.data(),
                               .tokens = static_cast<std::int32_t>(std::ssize(ids)) / chosen,
                               .experts = experts,
                               .chosen = chosen,
                               .offsets = offsets.data(),
                               .pair_tokens = pair_tokens.data(),
                               .pair_of_choice = pair_of_choice.data()});
    EXPECT_TRUE(offsets.padding_is_intact());
    EXPECT_TRUE(pair_tokens.padding_is_intact());
    EXPECT_TRUE(pair_of_choice.padding_is_intact());
  }

  std::vector<std::int32_t> ids;
  std::int32_t experts, chosen;
  PaddedRows<std::int32_t> offsets, pair_tokens, pair_of_choice;
};

// Chosen experts of each token: distinct, ascending.
std::vector<std::int32_t> random_ids(std::int32_t tokens, std::int32_t experts, std::int32_t chosen,
                                     Random& random) {
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 0; t < tokens; ++t) {
    std::vector<std::int32_t> order = random.permutation(experts);
    order.resize(static_cast<std::size_t>(chosen));
    std::ranges::sort(order);
    ids.insert(ids.end(), order.begin(), order.end());
  }
  return ids;
}

TEST(MoeGroup, IsAStableSortOfTheChoicesByExpert) {
  Random random(122);
  for (int round = 0; round < 300; ++round) {
    const std::int32_t experts = 1 + random.below(20);
    const std::int32_t chosen = 1 + random.below(experts);
    const Grouping grouping(random_ids(random.below(30), experts, chosen, random), experts, chosen);
    std::vector<std::int32_t> order(grouping.ids.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](std::int32_t i) {
      return std::pair(grouping.ids[static_cast<std::size_t>(i)], i);
    });
    for (std::size_t pair = 0; pair < order.size(); ++pair) {
      ASSERT_EQ(grouping.pair_tokens.data()[pair], order[pair] / chosen) << "round " << round;
      ASSERT_EQ(grouping.pair_of_choice.data()[order[pair]], static_cast<std::int32_t>(pair));
    }
    for (std::int32_t e = 0; e <= experts; ++e) {
      const auto below =
          std::ranges::count_if(grouping.ids, [e](std::int32_t id) { return id < e; });
      ASSERT_EQ(grouping.offsets.data()[e], below) << "round " << round << ", expert " << e;
    }
  }
}

// One combination with its arrays.
struct CombineProblem {
  CombineProblem(std::int32_t num_tokens, std::int32_t num_chosen, std::int32_t row_width,
                 Random& random)
      : tokens(num_tokens),
        chosen(num_chosen),
        width(row_width),
        expert_y(tokens * chosen, width),
        shared_y(tokens, width, {.offset = 2, .gap = 3}),
        weights(1, tokens * chosen),
        before(tokens, width, kAwkwardOutput),
        h(tokens, width, kAwkwardOutput),
        pair_of_choice(random.permutation(tokens * chosen)) {
    for (Floats* values : {&expert_y, &shared_y, &weights, &before}) values->fill(random);
  }

  Floats run(Runner& runner, bool has_shared) {
    h.copy_from(before);
    moe_combine(runner.context, args(has_shared));
    EXPECT_TRUE(h.padding_is_intact());
    return copy_of(h);
  }

  MoeCombineArgs args(bool has_shared) {
    return {.expert_y = expert_y.data(),
            .expert_y_stride = expert_y.stride(),
            .shared_y = has_shared ? shared_y.data() : nullptr,
            .shared_y_stride = shared_y.stride(),
            .weights = weights.data(),
            .pair_of_choice = pair_of_choice.data(),
            .tokens = tokens,
            .chosen = chosen,
            .width = width,
            .h = h.data(),
            .h_stride = h.stride()};
  }

  std::int32_t tokens, chosen, width;
  Floats expert_y, shared_y, weights, before, h;
  std::vector<std::int32_t> pair_of_choice;
};

void expect_targets_agree(CombineProblem& problem, std::initializer_list<int> threads = {1}) {
  for (const bool has_shared : {true, false}) {
    Runner reference(Target::kReference);
    const Floats expected = problem.run(reference, has_shared);
    for (const Target target : fast_targets()) {
      for (const int num_threads : threads) {
        Runner runner(target, num_threads);
        ASSERT_TRUE(equal_bits(problem.run(runner, has_shared), expected))
            << to_string(target) << ", width " << problem.width << ", " << problem.chosen
            << " chosen";
      }
    }
  }
}

TEST(MoeCombine, EveryTargetEqualsTheReference) {
  Random random(123);
  for (const std::int32_t width : kWidths) {
    for (const std::int32_t chosen : {0, 1, 2, 8}) {
      CombineProblem problem(3, chosen, width, random);
      expect_targets_agree(problem);
    }
  }
}

TEST(MoeThreads, TheNumberOfThreadsDoesNotChangeACombination) {
  Random random(124);
  for (const std::int32_t tokens : {1, 2, 41}) {
    CombineProblem problem(tokens, 4, 500, random);
    expect_targets_agree(problem, {1, 2, 3});
  }
}

TEST(MoeThreads, TheNumberOfThreadsDoesNotChangeAGatedUnit) {
  Random random(125);
  GluProblem problem(50, 333, random);
  Runner reference(Target::kReference);
  const Floats expected = run(problem, reference);
  for (const Target target : fast_targets()) {
    for (const int num_threads : {1, 2, 3}) {
      Runner runner(target, num_threads);
      EXPECT_TRUE(equal_bits(run(problem, runner), expected)) << to_string(target);
    }
  }
}

// h + (shared + r), r = fma over the choices from +0 in the order of the ids.
TEST(MoeCombine, AddsExpertsInAscendingOrderThenSharedThenTheResidual) {
  Random random(126);
  CombineProblem problem(40, 3, 20, random);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    for (const bool has_shared : {true, false}) {
      const Floats h = problem.run(runner, has_shared);
      for (std::int64_t t = 0; t < 40; ++t) {
        for (std::int64_t i = 0; i < 20; ++i) {
          float r = 0.0f;
          for (std::int64_t choice = 3 * t; choice < 3 * t + 3; ++choice) {
            const std::int32_t pair = problem.pair_of_choice[static_cast<std::size_t>(choice)];
            r = std::fma(problem.weights.data()[choice], problem.expert_y.row(pair)[i], r);
          }
          const float y = has_shared ? problem.shared_y.row(t)[i] + r : r;
          ASSERT_EQ(bits_of(h.row(t)[i]), bits_of(problem.before.row(t)[i] + y))
              << to_string(target);
        }
      }
    }
  }
}

TEST(MoeCombine, ATokenAloneEqualsTheTokenInABatch) {
  Random random(127);
  CombineProblem problem(13, 3, 45, random);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    const Floats batch = problem.run(runner, true);
    for (std::int32_t t = 0; t < 13; ++t) {
      std::vector<float> h(problem.before.row(t), problem.before.row(t) + 45);
      MoeCombineArgs alone = problem.args(true);
      alone.tokens = 1;
      alone.shared_y = problem.shared_y.row(t);
      alone.weights += 3 * t;
      alone.pair_of_choice += 3 * t;
      alone.h = h.data();
      moe_combine(runner.context, alone);
      EXPECT_TRUE(equal_bits<float>(h, batch.row_span(t))) << to_string(target);
    }
  }
}

TEST(Moe, HostileFloatingPointModeChangesNothingAndIsGivenBack) {
  Random random(128);
  RouteProblem route({.tokens = 3, .experts = 20, .chosen = 4}, random);
  CombineProblem combine(3, 4, 45, random);
  combine.expert_y.fill([&] { return 1e-38f * random.uniform(-0.9f, 0.9f); });
  combine.shared_y.fill([] { return 0.0f; });
  combine.before.fill([] { return 0.0f; });
  GluProblem unit(3, 45, random);
  Runner reference(Target::kReference);
  route.run(reference);
  const Floats weights = copy_of(route.weights);
  const Floats combined = combine.run(reference, true);
  const Floats gated = run(unit, reference);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    EXPECT_TRUE(run_in_hostile_mode([&] { route.run(runner); }));
    EXPECT_TRUE(run_in_hostile_mode([&] { combine.run(runner, true); }));
    EXPECT_TRUE(run_in_hostile_mode([&] { run(unit, runner); }));
    EXPECT_TRUE(equal_bits(route.weights, weights)) << to_string(target);
    EXPECT_TRUE(equal_bits(combine.h, combined)) << to_string(target);
    EXPECT_TRUE(equal_bits(unit.y, gated)) << to_string(target);
  }
}

TEST(MoeDeathTest, RefusesMoreChoicesThanExperts) {
  Random random(129);
  Runner runner(Target::kReference);
  RouteProblem problem({.experts = 4, .chosen = 4}, random);
  problem.shape.experts = 3;
  EXPECT_DEATH(problem.run(runner), "4 of 3 experts");
}

}  // namespace
}  // namespace slackwater::kernels::test
