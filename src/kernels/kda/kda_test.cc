#include "slackwater/kernels/kda.h"

#include <cmath>

#include "kernels/kda/kda_problem.h"
#include "kernels/vector_math.h"

namespace slackwater::kernels::test {
namespace {

// A sequence at position 7 whose page is written after its last token.
KdaRow whole_row(const KdaProblem& problem, std::int32_t page) {
  const std::int32_t num_tokens = problem.shape.num_tokens;
  return {.num_tokens = num_tokens,
          .first_position = 7,
          .page = page,
          .writes = {write_at(num_tokens, page)}};
}

TEST(Kda, EveryTargetEqualsTheReference) {
  Random random(50);
  for (const std::int32_t head_dim : {32, 64, 96, 128}) {
    for (const bool is_bounded : {false, true}) {
      for (const std::int32_t num_tokens : {1, 2, 5}) {
        KdaProblem problem({.num_heads = head_dim == 128 ? 1 : 3,
                            .head_dim = head_dim,
                            .num_tokens = num_tokens,
                            .num_slots = 3,
                            .is_bounded = is_bounded},
                           random);
        problem.fill_page(1, random);
        expect_targets_agree(problem, {whole_row(problem, 1)});
      }
    }
  }
}

TEST(Kda, EveryTargetEqualsTheReferenceAcrossPreparedTokens) {
  Random random(51);
  for (const std::int32_t num_tokens : {31, 32, 33, 65}) {
    KdaProblem problem({.num_heads = 2, .num_tokens = num_tokens, .num_slots = 2}, random);
    problem.fill_page(0, random);
    expect_targets_agree(problem, {whole_row(problem, 0)});
  }
}

TEST(KdaSlow, EveryTargetEqualsTheReferenceOnTheWholeGrid) {
  Random random(52);
  for (const std::int32_t head_dim : {32, 64, 96, 128, 160, 256}) {
    for (const std::int32_t num_heads : {1, 2, 5}) {
      for (const std::int32_t num_tokens : {1, 3, 7, 32, 33, 63, 100}) {
        if (head_dim * head_dim * num_heads * num_tokens > 3'000'000) continue;
        KdaProblem problem({.num_heads = num_heads,
                            .head_dim = head_dim,
                            .num_tokens = num_tokens,
                            .num_slots = 2,
                            .is_bounded = num_tokens % 2 == 0},
                           random);
        problem.fill_page(1, random);
        expect_targets_agree(problem, {whole_row(problem, 1)});
      }
    }
  }
}

// Sequences of one batch, at different positions, in slots that do not follow their order.
std::vector<KdaRow> ragged_rows(KdaProblem& problem, Random& random) {
  const std::vector<std::int32_t> slots = random.permutation(problem.shape.num_slots);
  std::vector<KdaRow> rows;
  std::int32_t first_token = 0;
  for (std::int32_t i = 0; first_token < problem.shape.num_tokens; ++i) {
    const std::int32_t num_tokens =
        std::min(1 + random.below(5), problem.shape.num_tokens - first_token);
    const std::int32_t page = slots[static_cast<std::size_t>(i)];
    rows.push_back({.first_token = first_token,
                    .num_tokens = num_tokens,
                    .first_position = i % 3 == 0 ? 0 : 1 + random.below(100),
                    .page = page,
                    .writes = {write_at(i % 2 == 0 ? num_tokens : 1, page)}});
    if (rows.back().first_position > 0) problem.fill_page(page, random);
    first_token += num_tokens;
  }
  return rows;
}

TEST(Kda, RowsOfABatchEqualEachAloneInAnyOrderAndAnySlots) {
  Random random(53);
  KdaProblem problem({.num_heads = 2, .num_tokens = 20, .num_slots = 25}, random);
  std::vector<KdaRow> rows = ragged_rows(problem, random);
  for (const Target target : runnable_targets()) {
    SCOPED_TRACE(to_string(target));
    Runner runner(target);
    const KdaOutcome batch = problem.run(runner, rows);
    const std::vector<std::byte> before = problem.pages.contents();
    std::vector<float> alone(batch.o.size());
    for (const KdaRow& row : rows) {
      const KdaOutcome outcome = problem.advance(runner, {row});
      const std::vector<float> o = problem.tokens_of(outcome, row.first_token, row.num_tokens);
      std::ranges::copy(o, alone.begin() + row.first_token * problem.width());
    }
    EXPECT_TRUE(equal_outcomes(batch, {alone, problem.pages.contents()}));
    problem.pages.assign(before);
    for (int shuffle = 0; shuffle < 3; ++shuffle) {
      std::vector<KdaRow> shuffled;
      for (const std::int32_t i : random.permutation(static_cast<std::int32_t>(rows.size()))) {
        shuffled.push_back(rows[static_cast<std::size_t>(i)]);
      }
      EXPECT_TRUE(equal_outcomes(problem.run(runner, shuffled), batch));
    }
  }
}

TEST(KdaThreads, TheNumberOfThreadsDoesNotChangeABit) {
  Random random(54);
  KdaProblem problem({.num_heads = 3, .num_tokens = 40, .num_slots = 41}, random);
  expect_targets_agree(problem, ragged_rows(problem, random), {1, 2, 3});
}

// One sequence of one head in float64: kda_math's recurrence, with the output taken from the new
// state.
struct ExactHead {
  explicit ExactHead(std::int32_t head_dim)
      : dim(static_cast<std::size_t>(head_dim)), state(dim * dim, 0.0) {}

  // Convolution and SiLU of one channel of a section, +0 before the sequence.
  static double convolve(const KdaProblem& problem, std::size_t section, std::int64_t t,
                         std::int64_t channel) {
    double c = 0;
    for (int tap = 0; tap < kConvTaps; ++tap) {
      const std::int64_t source = t - kWindowRows + tap;
      if (source < 0) continue;
      c += double{problem.conv_weight[section].row(tap)[channel]} *
           problem.qkv[section].row(source)[channel];
    }
    return c / (1 + std::exp(-c));
  }

  static void normalise(std::vector<double>& x, double scale) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (double& value : x) value *= scale / std::sqrt(squares + 1e-6);
  }

  static double log_decay(const KdaProblem& problem, std::int64_t t, std::int64_t head,
                          std::int64_t channel) {
    const double rate = problem.decay_rate.row(0)[head];
    const double r = double{problem.decay.row(t)[channel]} + problem.dt_bias.row(0)[channel];
    if (problem.shape.is_bounded) return -5 / (1 + std::exp(-rate * r));
    return -rate * (std::max(r, 0.0) + std::log1p(std::exp(-std::fabs(r))));
  }

  // Outputs of token t.
  std::vector<double> step(const KdaProblem& problem, std::int64_t t, std::int64_t head) {
    std::vector<double> q(dim), k(dim), v(dim), o(dim, 0.0);
    const std::int64_t first = head * problem.shape.head_dim;
    for (std::size_t i = 0; i < dim; ++i) {
      const std::int64_t channel = first + static_cast<std::int64_t>(i);
      q[i] = convolve(problem, 0, t, channel);
      k[i] = convolve(problem, 1, t, channel);
      v[i] = convolve(problem, 2, t, channel);
    }
    normalise(q, 1 / std::sqrt(static_cast<double>(dim)));
    normalise(k, 1);
    const double beta = 1 / (1 + std::exp(-double{problem.beta.row(t)[head]}));
    for (std::size_t i = 0; i < dim; ++i) {
      const double a = std::exp(log_decay(problem, t, head, first + static_cast<std::int64_t>(i)));
      for (std::size_t j = 0; j < dim; ++j) state[i * dim + j] *= a;
    }
    for (std::size_t j = 0; j < dim; ++j) {
      double p = 0;
      for (std::size_t i = 0; i < dim; ++i) p += k[i] * state[i * dim + j];
      const double u = beta * (v[j] - p);
      for (std::size_t i = 0; i < dim; ++i) {
        state[i * dim + j] += k[i] * u;
        o[j] += q[i] * state[i * dim + j];
      }
    }
    return o;
  }

  std::size_t dim;
  std::vector<double> state;  // [D, D]: key, value column
};

double largest(std::span<const double> values) {
  double magnitude = 0;
  for (const double value : values) magnitude = std::max(magnitude, std::fabs(value));
  return magnitude;
}

// Each output sums D products of the state with a query of length 1 / sqrt(D); each state carries
// the roundings of the tokens it still remembers. Both errors are relative to the largest value
// of the state: an output itself may be small because its terms cancel.
void expect_close_to_exact(KdaProblem& problem) {
  constexpr double kC = 4;
  const std::int32_t dim = problem.shape.head_dim;
  const KdaOutcome outcome =
      problem.run(Target::kReference, {{.num_tokens = problem.shape.num_tokens,
                                        .writes = {write_at(problem.shape.num_tokens, 0)}}});
  const std::vector<float> page = problem.page_of(outcome, 0);
  for (std::int64_t head = 0; head < problem.shape.num_heads; ++head) {
    ExactHead exact(dim);
    for (std::int64_t t = 0; t < problem.shape.num_tokens; ++t) {
      const double before = largest(exact.state);
      const std::vector<double> o = exact.step(problem, t, head);
      const double bound = kC * kEps * std::sqrt(dim) * std::max(before, largest(exact.state));
      for (std::int64_t j = 0; j < dim; ++j) {
        const auto at = static_cast<std::size_t>(t * problem.width() + head * dim + j);
        ASSERT_TRUE(is_close(outcome.o[at], o[static_cast<std::size_t>(j)], bound))
            << "token " << t << ", head " << head << ", column " << j;
      }
    }
    const double bound = kC * kEps * std::sqrt(dim) * largest(exact.state);
    for (std::int64_t i = 0; i < dim; ++i) {
      for (std::int64_t j = 0; j < dim; ++j) {
        const std::int64_t tile = head * dim / kValueTile + j / kValueTile;
        const auto at = static_cast<std::size_t>((tile * dim + i) * kValueTile + j % kValueTile);
        ASSERT_TRUE(is_close(page[at], exact.state[static_cast<std::size_t>(i * dim + j)], bound))
            << "state of head " << head << ", key " << i << ", column " << j;
      }
    }
  }
}

TEST(Kda, ReferenceIsWithinTheErrorOfTheExactRecurrence) {
  Random random(55);
  for (const std::int32_t head_dim : {32, 64, 128}) {
    for (const bool is_bounded : {false, true}) {
      KdaProblem problem({.num_heads = head_dim == 128 ? 1 : 2,
                          .head_dim = head_dim,
                          .num_tokens = 20,
                          .num_slots = 1,
                          .is_bounded = is_bounded},
                         random);
      expect_close_to_exact(problem);
    }
  }
}

// A gate that forgets nothing (a = 1) and an update that adds nothing (beta = 0): one token
// changes a state only by what is stored as +0.
void freeze(KdaProblem& problem) {
  problem.decay.fill([] { return -200.0f; });
  problem.beta.fill([] { return -200.0f; });
}

TEST(Kda, ValuesBelowTwoToTheMinusSixtyFourAreStoredAsPlusZeroAndNoOthers) {
  const float below = std::nextafter(0x1p-64f, 0.0f);
  const float above = std::nextafter(0x1p-64f, 1.0f);
  const std::vector<std::pair<float, float>> cases = {
      {0x1p-64f, 0x1p-64f}, {-0x1p-64f, -0x1p-64f}, {above, above}, {-above, -above},
      {below, 0.0f},        {-below, 0.0f},         {1e-25f, 0.0f}, {-1e-40f, 0.0f},
      {0.0f, 0.0f},         {-0.0f, 0.0f},          {0.5f, 0.5f},   {-1e30f, -1e30f}};
  Random random(56);
  KdaProblem problem({.num_heads = 2, .num_tokens = 1, .num_slots = 1}, random);
  problem.fill_page(0, random);
  freeze(problem);
  const auto num_cases = static_cast<std::int64_t>(cases.size());
  for (std::int64_t i = 0; i < problem.state_floats(); ++i) {
    problem.state(0)[i] = cases[static_cast<std::size_t>(i % num_cases)].first;
  }
  for (const Target target : runnable_targets()) {
    const KdaOutcome outcome = problem.run(target, {whole_row(problem, 0)});
    const std::vector<float> page = problem.page_of(outcome, 0);
    for (std::int64_t i = 0; i < problem.state_floats(); ++i) {
      const auto& [from, expected] = cases[static_cast<std::size_t>(i % num_cases)];
      ASSERT_EQ(bits_of(page[static_cast<std::size_t>(i)]), bits_of(expected))
          << describe(from) << " on " << to_string(target);
    }
  }
}

TEST(Kda, TinyStatesEqualTheReference) {
  Random random(57);
  for (const float size : {0x1p-62f, 0x1p-64f, 0x1p-66f, 1e-25f, 1e-38f, 1e-42f}) {
    KdaProblem problem({.num_heads = 2, .head_dim = 64, .num_tokens = 6, .num_slots = 1}, random);
    problem.fill_page(0, random);
    for (std::int64_t i = 0; i < problem.state_floats(); ++i) {
      problem.state(0)[i] = size * random.uniform(-2.0f, 2.0f);
    }
    // The first tokens decay slowly and write little, the last as usual.
    for (std::int64_t t = 0; t < 4; ++t) {
      std::fill_n(problem.decay.row(t), problem.width(), -6.0f);
      std::fill_n(problem.beta.row(t), 2, -45.0f);
    }
    SCOPED_TRACE(describe(size));
    expect_targets_agree(problem, {whole_row(problem, 0)});
  }
}

TEST(Kda, ANaNInAStateStaysInItsColumn) {
  Random random(58);
  KdaProblem problem({.num_tokens = 2, .num_slots = 1}, random);
  problem.fill_page(0, random);
  problem.state(0)[5 * kValueTile + 17] = poison();
  for (const Target target : runnable_targets()) {
    const KdaOutcome outcome = problem.run(target, {whole_row(problem, 0)});
    const std::vector<float> page = problem.page_of(outcome, 0);
    for (std::size_t i = 0; i < static_cast<std::size_t>(problem.state_floats()); ++i) {
      ASSERT_EQ(std::isnan(page[i]), i % kValueTile == 17) << i << " on " << to_string(target);
    }
    for (std::size_t i = 0; i < outcome.o.size(); ++i) {
      ASSERT_EQ(std::isnan(outcome.o[i]), i % kValueTile == 17) << i << to_string(target);
    }
  }
}

// Values so small that outputs are denormal.
void fill_with_denormal_values(KdaProblem& problem, Random& random) {
  problem.qkv[2].fill([&] { return 1e-38f * random.uniform(-0.9f, 0.9f); });
}

TEST(Kda, DenormalValuesEqualTheReference) {
  Random random(59);
  KdaProblem problem({.num_heads = 2, .num_tokens = 5, .num_slots = 1}, random);
  fill_with_denormal_values(problem, random);
  const KdaRow row = {.num_tokens = 5, .writes = {write_at(5, 0)}};
  const KdaOutcome outcome = problem.run(Target::kReference, {row});
  EXPECT_GT(
      std::ranges::count_if(outcome.o, [](float o) { return o != 0 && std::fabs(o) < 0x1p-126f; }),
      10)
      << "no output is denormal";
  expect_targets_agree(problem, {row});
  // Denormal queries, keys and decays as well.
  problem.qkv[0].fill([&] { return 1e-39f * random.value(); });
  problem.qkv[1].fill([&] { return 1e-39f * random.value(); });
  problem.decay.fill([&] { return 1e-40f * random.value(); });
  expect_targets_agree(problem, {row});
}

TEST(Kda, HostileFloatingPointModeChangesNothingAndIsGivenBack) {
  Random random(60);
  KdaProblem problem({.num_heads = 2, .num_tokens = 5, .num_slots = 1}, random);
  fill_with_denormal_values(problem, random);
  const KdaRow row = {.num_tokens = 5, .writes = {write_at(5, 0)}};
  const std::vector<SequenceRow> views = {row.view()};
  const KdaOutcome expected = problem.run(Target::kReference, {row});
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    const KdaStepArgs args = problem.args(views);
    EXPECT_TRUE(run_in_hostile_mode([&] { kda_step(runner.context, args); }));
    EXPECT_TRUE(equal_outcomes(problem.collect(), expected)) << to_string(target);
  }
}

TEST(KdaDecayRate, IsTheExponentialOfTheKernelsInEveryMode) {
  for (const float a_log : {-3.0f, 0.0f, 0.3f, 1.7f, 4.1431f}) {
    const float expected = scalar::exp<scalar::FloatOps>(a_log);
    float rate = poison();
    EXPECT_TRUE(run_in_hostile_mode([&] { rate = kda_decay_rate(a_log); }));
    EXPECT_EQ(bits_of(rate), bits_of(expected)) << a_log;
  }
}

class KdaDeathTest : public testing::Test {
 protected:
  // Runs `row` and one beside it that reads page 3.
  void run(const KdaRow& row) {
    problem_.run(Target::kReference,
                 {row, {.first_token = 4, .num_tokens = 1, .first_position = 9, .page = 3}});
  }

  Random random_{61};
  KdaProblem problem_{{.num_tokens = 5, .num_slots = 4}, random_};
};

TEST_F(KdaDeathTest, RefusesHeadSizesThatAreNoMultipleOfATile) {
  Runner runner(Target::kReference);
  KdaStepArgs args = problem_.args({});
  args.head_dim = 48;
  EXPECT_DEATH(kda_step(runner.context, args), "1 heads of 48: the head size is a multiple of 32");
}

TEST_F(KdaDeathTest, RefusesPagesThatDoNotExist) {
  EXPECT_DEATH(run({.num_tokens = 1, .first_position = 1, .page = 4}), "slot 4 of 4");
  EXPECT_DEATH(run({.num_tokens = 1, .writes = {write_at(1, -1)}}), "slot -1 of 4");
}

TEST_F(KdaDeathTest, RefusesWritesOutOfOrderOrPastTheRow) {
  EXPECT_DEATH(run({.num_tokens = 4, .writes = {write_at(3, 1), write_at(2, 0)}}),
               "write after 2 of 4 tokens follows one after 3");
  EXPECT_DEATH(run({.num_tokens = 4, .writes = {write_at(5, 0)}}), "write after 5 of 4 tokens");
  EXPECT_DEATH(run({.num_tokens = 4,
                    .first_position = 1,
                    .page = 1,
                    .writes = {write_at(2, 1), write_at(4, 2)}}),
               "own page 1 is not its last write");
}

#if defined(SLACKWATER_DCHECKS)
TEST_F(KdaDeathTest, RefusesPagesOfOtherRowsAndDoubleWrites) {
  EXPECT_DEATH(run({.num_tokens = 4, .writes = {write_at(4, 3)}}),
               "slot 3 is written by one row and read by another");
  EXPECT_DEATH(run({.num_tokens = 4, .writes = {write_at(2, 1), write_at(4, 1)}}),
               "slot 1 is written twice");
}
#endif

}  // namespace
}  // namespace slackwater::kernels::test
