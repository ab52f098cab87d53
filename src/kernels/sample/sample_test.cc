#include "slackwater/kernels/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <set>

#include <gmock/gmock.h>

#include "kernels/sample/sample_test_support.h"
#include "kernels/vector_math.h"
#include "slackwater/base/philox.h"
// After test_support.h, which means googletest by `testing`.
#include "testing/allocation_counter.h"

namespace slackwater::kernels::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

// Each example holds for every form of the kernel, the reference included.
class Sample : public ::testing::TestWithParam<Target> {
 protected:
  Answer one(const Request& request) { return sample_one(runner_.context, request); }

  // How often each token is sampled at positions 0 .. num_positions - 1.
  std::map<TokenId, int> frequencies(Request request, int num_positions) {
    std::map<TokenId, int> counts;
    for (request.position = 0; request.position < num_positions; ++request.position) {
      ++counts[one(request).token()];
    }
    return counts;
  }

  // The tokens that are sampled at all.
  std::vector<TokenId> support(const Request& request, int num_positions = 400) {
    std::vector<TokenId> tokens;
    for (const auto& [token, count] : frequencies(request, num_positions)) tokens.push_back(token);
    return tokens;
  }

  void expect_error(const Request& request, ErrorCode code, const std::string& words) {
    const Answer answer = one(request);
    ASSERT_FALSE(answer.result.has_value()) << words;
    EXPECT_EQ(answer.result.error().code(), code) << answer.result.error().text();
    EXPECT_THAT(answer.result.error().text(), HasSubstr(words));
  }

  Runner runner_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, Sample,
                         ::testing::ValuesIn(runnable_targets().begin(), runnable_targets().end()),
                         [](const auto& target) { return std::string(to_string(target.param)); });

// Noise by the definition, in double, with the library's logarithm.
double exact_noise(const Request& request, TokenId token) {
  const auto position = static_cast<std::uint64_t>(request.position);
  const std::uint64_t seed = request.parameters.seed;
  const PhiloxCounter words =
      philox_4x32_10({static_cast<std::uint32_t>(token / 4), static_cast<std::uint32_t>(position),
                      static_cast<std::uint32_t>(position >> 32), request.stream},
                     {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint32_t word = words[static_cast<std::size_t>(token % 4)];
  return -std::log(-std::log((2.0 * (word >> 9) + 1) / 16777216.0));
}

TEST_P(Sample, GreedyTakesTheHighestLogitAndTheLowestTokenOnTies) {
  for (const std::size_t vocabulary : {1, 2, 7, 8, 9, 64, 65, 131}) {
    for (std::size_t first = 0; first < vocabulary; ++first) {
      for (std::size_t second = first; second < vocabulary; second += 1 + second / 5) {
        Request request = {.logits = std::vector<float>(vocabulary, -3.0f)};
        request.logits[first] = request.logits[second] = 2.5f;
        ASSERT_EQ(one(request).token(), first) << second << " of " << vocabulary;
      }
    }
  }
  // The two zeros are a tie.
  EXPECT_EQ(one({.logits = {-1.0f, -0.0f, 0.0f, -0.0f}}).token(), 1);
  EXPECT_EQ(one({.logits = {-1.0f, 0.0f, -0.0f}}).token(), 1);
  EXPECT_EQ(one({.logits = {-kMax, -kMax}}).token(), 0);
}

// From a program that shares no code with this one: Philox and the logarithms in Python. Each
// winner leads by at least 0.1.
TEST_P(Sample, KnownSeedsPositionsAndStreamsGiveKnownTokens) {
  struct Known {
    std::int32_t vocabulary;
    std::uint64_t seed;
    std::int64_t position;
    std::uint32_t stream;
    float temperature;
    TokenId token;
  };
  constexpr Known kKnown[] = {
      {500, 0x0, 0x0, 0, 1.0f, 237},
      {500, 0x1, 0x0, 0, 1.0f, 34},
      {500, 0x100000000, 0x0, 0, 1.0f, 346},
      {500, 0x0, 0x1, 0, 1.0f, 191},
      {500, 0x0, 0x100000000, 0, 1.0f, 180},
      {500, 0x0, 0x0, 1, 1.0f, 52},
      {500, 0x0123456789ABCDEF, 0x10000000005, 3, 2.0f, 274},
      {2064, 0xFEDCBA9876543210, 77, 0, 0.5f, 1171},
      {7, 42, 12, 0, 1.0f, 2},
      {7, 42, 13, 0, 1.0f, 2},
  };
  for (const Known& known : kKnown) {
    Request request = {.parameters = {.temperature = known.temperature, .seed = known.seed},
                       .position = known.position,
                       .stream = known.stream};
    for (std::int32_t token = 0; token < known.vocabulary; ++token) {
      request.logits.push_back(static_cast<float>(token * 37 % 101) / 32);
    }
    EXPECT_EQ(one(request).token(), known.token)
        << "seed " << known.seed << ", position " << known.position;
  }
}

TEST_P(Sample, TheHighestLogitPlusExactNoiseWins) {
  Random random(70);
  int decided = 0;
  for (int i = 0; i < 300; ++i) {
    Request request = {.parameters = {.temperature = 0.8f, .seed = random.bits()},
                       .position = static_cast<std::int64_t>(random.bits() >> 1),
                       .stream = static_cast<std::uint32_t>(random.bits())};
    for (int token = 0; token < 77; ++token) request.logits.push_back(random.value());
    std::vector<std::pair<double, TokenId>> scores;
    for (TokenId token = 0; token < 77; ++token) {
      const double z = request.logits[static_cast<std::size_t>(token)] / double{0.8f};
      scores.push_back({z + exact_noise(request, token), token});
    }
    std::sort(scores.rbegin(), scores.rend());
    // Closer than the rounding of two logarithms and a sum nothing is said.
    if (scores[0].first - scores[1].first < 1e-5) continue;
    ++decided;
    EXPECT_EQ(one(request).token(), scores[0].second) << request.position;
  }
  EXPECT_GT(decided, 290);
}

TEST(SampleNoise, LiesInTheRangeThatTheFastFormsRelyOn) {
  const auto gumbel = scalar::gumbel<scalar::FloatOps>;
  EXPECT_NEAR(gumbel(1.0f), -2.8115, 1e-4);            // every bit of the word 0
  EXPECT_NEAR(gumbel(0x1p24f - 1.0f), 16.6355, 1e-4);  // every bit 1
}

// At these positions the noise of one token is the highest there is, and that of another, far
// away in the row, so low that 18.7 in z do not make up for it.
TEST_P(Sample, ATokenFarBelowTheBestStillWinsWhereTheNoiseSaysSo) {
  struct Extreme {
    std::int64_t position;
    std::size_t winner;
    std::size_t loser;
    float gap;  // of their noise is between this and 0.2 more
  };
  constexpr Extreme kExtremes[] = {
      {15514861, 2, 279, 18.9f}, {10262465, 3, 711, 18.75f}, {340472, 1, 1852, 18.7f}};
  for (const Extreme& extreme : kExtremes) {
    for (const float level : {0.0f, 65.0f, -900.0f, 8000.0f, 65530.0f, 1e5f}) {
      Request request = {.logits = std::vector<float>(2064, level - 1000.0f),
                         .parameters = {.temperature = 1, .seed = 7},
                         .position = extreme.position};
      request.logits[extreme.loser] = level;
      request.logits[extreme.winner] = level - extreme.gap;
      EXPECT_EQ(one(request).token(), extreme.winner) << level;
      request.logits[extreme.winner] = level - (extreme.gap + 0.2f);
      EXPECT_EQ(one(request).token(), extreme.loser) << level;
    }
  }
}

TEST_P(Sample, NoiseThatRoundsAwayLeavesTheLowestTokenOfTheBest) {
  const Request request = {.logits = {-5e9f, 1e10f, 1e10f, 1e10f, 9.9e9f},
                           .parameters = {.temperature = 1}};
  EXPECT_THAT(support(request), ElementsAre(1));
}

// 20 000 positions, 11 degrees of freedom: a fair sampler exceeds 31.3 once in a thousand seeds.
TEST_P(Sample, FrequenciesApproachTheSoftmax) {
  Request request = {.parameters = {.temperature = 0.7f, .seed = 20}};
  for (int token = 0; token < 12; ++token) {
    request.logits.push_back(0.15f * static_cast<float>(token * 5 % 12) - 1);
  }
  double sum = 0;
  for (const float logit : request.logits) sum += std::exp(double{logit} / 0.7);
  const std::map<TokenId, int> frequency = frequencies(request, 20'000);
  double chi_square = 0;
  for (TokenId token = 0; token < 12; ++token) {
    const double logit = request.logits[static_cast<std::size_t>(token)];
    const double expected = 20'000 * std::exp(logit / 0.7) / sum;
    const double excess = (frequency.count(token) ? frequency.at(token) : 0) - expected;
    chi_square += excess * excess / expected;
  }
  EXPECT_LT(chi_square, 31.3);
  EXPECT_GT(chi_square, 1.5) << "closer than chance: the noise of positions depends on each other";
}

// Weights 8, 4, 2, 1, 1: what top-p leaves keeps its proportions. 2 degrees of freedom.
TEST_P(Sample, FrequenciesWithinTheNucleusKeepTheirProportions) {
  Request request = {.parameters = {.temperature = 1, .top_p = 0.85f, .seed = 21}};
  for (const int exponent : {0, 3, 1, 2, 0}) {
    request.logits.push_back(static_cast<float>(exponent * std::numbers::ln2));
  }
  const std::map<TokenId, int> frequency = frequencies(request, 14'000);
  EXPECT_THAT(support(request), ElementsAre(1, 2, 3));
  double chi_square = 0;
  for (const auto& [token, expected] : {std::pair{1, 8000.0}, {3, 4000.0}, {2, 2000.0}}) {
    const double excess = frequency.at(token) - expected;
    chi_square += excess * excess / expected;
  }
  EXPECT_LT(chi_square, 13.8);
}

TEST_P(Sample, NeutralFiltersChangeNothing) {
  Random random(71);
  for (int i = 0; i < 200; ++i) {
    Request plain = {.parameters = {.temperature = 1, .seed = random.bits()}, .position = i};
    for (int token = 0; token < 33; ++token) plain.logits.push_back(random.value());
    Request filtered = plain;
    filtered.parameters.top_k = 33;
    filtered.parameters.min_p = 1e-30f;
    ASSERT_EQ(one(filtered).token(), one(plain).token());
    filtered.parameters.top_k = std::numeric_limits<std::int32_t>::max();
    ASSERT_EQ(one(filtered).token(), one(plain).token());
  }
}

TEST_P(Sample, TopKBreaksTiesByTheLowestToken) {
  Request request = {.logits = std::vector<float>(40, 1.0f),
                     .parameters = {.temperature = 1, .top_k = 3}};
  EXPECT_THAT(support(request), ElementsAre(0, 1, 2));
  request.logits[39] = 1.5f;
  EXPECT_THAT(support(request), ElementsAre(0, 1, 39));
  // The two zeros are a tie here too.
  request.logits = {-0.0f, 0.0f, -0.0f, 0.0f, -8.0f};
  EXPECT_THAT(support(request), ElementsAre(0, 1, 2));
}

TEST_P(Sample, TopPKeepsTheShortestPrefixThatReachesItsShare) {
  Request request = {.logits = std::vector<float>(4, 3.0f),
                     .parameters = {.temperature = 1, .top_p = 0.5f}};
  EXPECT_THAT(support(request), ElementsAre(0, 1)) << "exactly 0.5 is reached by two of four";
  request.parameters.top_p = std::nextafter(0.5f, 1.0f);
  EXPECT_THAT(support(request), ElementsAre(0, 1, 2));
  request.parameters.top_p = std::nextafter(0.5f, 0.0f);
  EXPECT_THAT(support(request), ElementsAre(0, 1));
  request.parameters.top_p = std::nextafter(1.0f, 0.0f);
  EXPECT_THAT(support(request), ElementsAre(0, 1, 2, 3));
  request.parameters.top_p = std::numeric_limits<float>::denorm_min();
  EXPECT_THAT(support(request), ElementsAre(0)) << "at least one";
  request.logits = {1.0f, 0.9f, 3.0f, 3.0f};
  request.parameters.top_p = 0.6f;
  EXPECT_THAT(support(request), ElementsAre(2, 3)) << "the order is that of z, not of ids";
}

// One token weighs 1, 148 tokens far below it weigh 0.00674 each: 0.7 of the total is reached by
// the one and 60 of the many.
TEST_P(Sample, TopPGoesDownAsFarAsItMust) {
  Request request = {.logits = std::vector<float>(149, -5.0f),
                     .parameters = {.temperature = 1, .top_p = 0.7f}};
  request.logits[148] = 0;
  std::vector<TokenId> expected(60);
  std::iota(expected.begin(), expected.end(), 0);
  expected.push_back(148);
  EXPECT_EQ(support(request, 3000), expected);
}

// The total is a f64 sum: in f32 the 1936 small weights behind the 128 large ones would vanish,
// and half of the total would be reached one token earlier.
TEST_P(Sample, TopPAddsUpInDouble) {
  Request request = {.logits = std::vector<float>(2064, 0.0f),
                     .parameters = {.temperature = 1, .top_p = 0.5f}};
  std::fill(request.logits.begin() + 128, request.logits.end(), -12.0f);
  const std::vector<TokenId> tokens = support(request, 700);
  EXPECT_EQ(tokens.size(), 65);
  EXPECT_EQ(tokens.back(), 64);
}

// Each weight of the first 2000 is less than half an ulp of 1. Added up before the two ones they
// count, and half of the total is more than 1; after them they would round away.
TEST_P(Sample, TopPAddsUpInAscendingTokenOrder) {
  Request request = {.logits = std::vector<float>(2002, -37.5f),
                     .parameters = {.temperature = 1, .top_p = 0.5f}};
  request.logits[2000] = request.logits[2001] = 0;
  EXPECT_THAT(support(request, 100), ElementsAre(2000, 2001));
  std::swap(request.logits[2000], request.logits[0]);
  std::swap(request.logits[2001], request.logits[1]);
  EXPECT_THAT(support(request, 100), ElementsAre(0));
}

TEST_P(Sample, MinPKeepsWhatWeighsExactlyAsMuch) {
  const float weight = scalar::exp<scalar::FloatOps>(-1.0f);
  Request request = {.logits = {1.0f, 2.0f, -1.0f},
                     .parameters = {.temperature = 1, .min_p = weight}};
  EXPECT_THAT(support(request), ElementsAre(0, 1));
  request.parameters.min_p = std::nextafter(weight, 1.0f);
  EXPECT_THAT(support(request), ElementsAre(1));
  request.logits = {1.0f, 2.0f, 2.0f, 1.999f, 2.0f};
  request.parameters.min_p = 1;
  EXPECT_THAT(support(request), ElementsAre(1, 2, 4)) << "every tie of the best stays";
}

TEST_P(Sample, TopKComesBeforeTopP) {
  const Request request = {.logits = std::vector<float>(4, 0.0f),
                           .parameters = {.temperature = 1, .top_k = 2, .top_p = 0.5f}};
  EXPECT_THAT(support(request), ElementsAre(0));
}

TEST_P(Sample, MinPComesBeforeTopP) {
  Request request = {.logits = std::vector<float>(22, -3.0f),
                     .parameters = {.temperature = 1, .top_p = 0.66f, .min_p = 0.1f}};
  request.logits[0] = 0.0f;
  request.logits[1] = -0.7f;
  EXPECT_THAT(support(request, 2000), ElementsAre(0));
}

TEST_P(Sample, TemperatureComesAfterPenaltiesAndBeforeFilters) {
  Request request = {.logits = {1.0f, 0.0f},
                     .parameters = {.temperature = 0.25f, .top_k = 1, .presence_penalty = 1.5f},
                     .counts = {{.token = 0, .count = 1}}};
  EXPECT_THAT(support(request), ElementsAre(1));
  // min-p is a statement about z: at this temperature exp(-0.5) becomes exp(-2).
  request = {.logits = {1.0f, 0.5f}, .parameters = {.temperature = 0.25f, .min_p = 0.2f}};
  EXPECT_THAT(support(request), ElementsAre(0));
  request.parameters.temperature = 1;
  EXPECT_THAT(support(request), ElementsAre(0, 1));
}

// Beside a logit of 0, whose exponential is all of the sum, a logprob below -17 is the logit.
TEST_P(Sample, PenaltiesAndBiasRoundInTheOrderWritten) {
  const auto adjusted = [&](float logit, const SamplingParameters& parameters, int count,
                            float bias) {
    Request request = {.logits = {logit, 0.0f}, .parameters = parameters, .num_top_logprobs = 2};
    if (count > 0) request.counts = {{.token = 0, .count = count}};
    if (bias != 0) request.bias = {{.token = 0, .bias = bias}};
    return one(request).top_logprobs.at(1).logprob;
  };
  int differently_rounded = 0;
  for (int i = 0; i < 50; ++i) {
    const float logit = -20.0f - 0.37f * static_cast<float>(i);
    const float fused = std::fma(-3.1f, 7.0f, logit);
    EXPECT_EQ(adjusted(logit, {.frequency_penalty = 3.1f}, 7, 0), fused);
    differently_rounded += fused != logit - 3.1f * 7.0f;
  }
  EXPECT_GT(differently_rounded, 0) << "the values do not tell fused from separate";
  // 2^24 + 1 is not a float: whoever adds the bias first keeps the 1.
  EXPECT_EQ(adjusted(-0x1p24f, {.presence_penalty = 1}, 2, 0x1p24f - 32), -32.0f);
  EXPECT_EQ(adjusted(-0x1p24f, {.presence_penalty = 3}, 1, 0x1p24f - 32), -36.0f);
  // frequency before presence, and presence once, however high the count.
  EXPECT_EQ(adjusted(-0x1p24f, {.frequency_penalty = -0x1p22f, .presence_penalty = 1}, 4, -32),
            -33.0f);
  EXPECT_EQ(adjusted(-20, {.presence_penalty = 1}, 1000, 0), -21.0f);
  EXPECT_EQ(adjusted(-20, {.presence_penalty = 1}, 0, -0.5f), -20.5f) << "not without a count";
}

TEST_P(Sample, LogprobsAreTakenAfterBiasAndBeforeMaskAndTemperature) {
  Request request = {.logits = {1.0f, 3.0f, 2.0f, 2.0f, -1.0f},
                     .parameters = {.temperature = 7, .top_k = 1},
                     .bias = {{.token = 4, .bias = 1.5f}, {.token = 0, .bias = -kInfinity}},
                     .allowed = mask_of(5, {0, 2, 3}),
                     .num_top_logprobs = 5};
  const Answer answer = one(request);
  const double sum = std::exp(3.0) + 2 * std::exp(2.0) + std::exp(0.5);
  const double expected[] = {3 - std::log(sum), 2 - std::log(sum), 2 - std::log(sum),
                             0.5 - std::log(sum)};
  std::vector<TokenId> tokens;
  for (const TokenLogprob& top : answer.top_logprobs) tokens.push_back(top.token);
  EXPECT_THAT(tokens, ElementsAre(1, 2, 3, 4, 0));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(answer.top_logprobs[i].logprob, expected[i], 4 * kEps * 3);
  }
  EXPECT_EQ(answer.top_logprobs[4].logprob, -kInfinity);
  EXPECT_EQ(answer.token(), 2);
  EXPECT_EQ(answer.logprob(), answer.top_logprobs[1].logprob);

  request.num_top_logprobs = 0;
  EXPECT_EQ(one(request).logprob(), 0.0f) << "not asked for";
  request.wants_logprob = true;
  EXPECT_EQ(one(request).logprob(), answer.logprob());
}

// The sum is off by at most 2 ulps of an exponential and one rounding, the logarithm by 2 ulps.
TEST_P(Sample, LogprobsAreWithinTheErrorOfExactOnes) {
  Random random(72);
  for (const std::size_t vocabulary : {1, 3, 17, 500, 2064}) {
    Request request = {.num_top_logprobs = vocabulary};
    for (std::size_t i = 0; i < vocabulary; ++i) {
      request.logits.push_back(3 * random.value());
    }
    double sum = 0;
    for (const float logit : request.logits) sum += std::exp(double{logit});
    for (const TokenLogprob& top : one(request).top_logprobs) {
      const double exact = request.logits[static_cast<std::size_t>(top.token)] - std::log(sum);
      ASSERT_TRUE(is_close(top.logprob, exact, 4 * kEps * (1 + std::fabs(exact) + 12)));
    }
  }
}

TEST_P(Sample, TheMaskDecidesAndItsBitsPastTheVocabularyDoNot) {
  for (const std::size_t vocabulary : {1, 5, 63, 64, 65, 130}) {
    for (std::size_t token = 0; token < vocabulary; ++token) {
      Request request = {.logits = std::vector<float>(vocabulary, 9.0f),
                         .allowed = mask_of(vocabulary, {static_cast<TokenId>(token)})};
      request.logits[token] = -9.0f;
      if (vocabulary % 64 != 0) request.allowed.back() |= ~std::uint64_t{0} << (vocabulary % 64);
      ASSERT_EQ(one(request).token(), token) << vocabulary;
      request.parameters = {.temperature = 1, .top_k = 5, .top_p = 0.9f, .min_p = 0.01f};
      ASSERT_EQ(one(request).token(), token) << vocabulary;
    }
  }
}

TEST_P(Sample, ForbiddenTokensAreNeverSampled) {
  Request request = {.logits = std::vector<float>(70, 0.0f),
                     .parameters = {.temperature = 1},
                     .allowed = mask_of(70, {3, 7, 66, 69})};
  for (TokenId token = 0; token < 66; ++token) {
    if (token != 3) request.bias.push_back({.token = token, .bias = -kInfinity});
  }
  for (const auto& [top_k, top_p] : {std::pair{0, 1.0f}, {50, 1.0f}, {0, 0.999f}, {50, 0.999f}}) {
    request.parameters.top_k = top_k;
    request.parameters.top_p = top_p;
    EXPECT_THAT(support(request), ElementsAre(3, 66, 69));
  }
}

TEST_P(Sample, ExtremeTemperaturesGiveATokenOrARefusal) {
  Request request = {.logits = {-3e38f, 1.0f, 1.5f, -1.0f},
                     .parameters = {.temperature = kMax, .top_p = 0.9f}};
  EXPECT_THAT(support(request), ElementsAre(0, 1, 2, 3)) << "all are equally likely";
  request.parameters.temperature = kSmallestTemperature;
  EXPECT_THAT(support(request), ElementsAre(2)) << "z of token 0 is -infinity, and no more";
  request.logits[3] = 1e33f;
  expect_error(request, ErrorCode::kInvalidArgument,
               "the highest logit, 1e+33 of token 3, over temperature 1e-06 is not finite");
  request.parameters.temperature = 0;
  EXPECT_EQ(one(request).token(), 3);
  request = {.logits = {-3e38f, -3e38f}, .parameters = {.temperature = 0.5f}};
  expect_error(request, ErrorCode::kInvalidArgument, "-3e+38 of token 0, over temperature 0.5");
}

// A row of a verify round counts the drafts before it: it samples what one token at a time would.
TEST_P(Sample, RowsOfAVerifyRoundEqualOneTokenAtATime) {
  Random random(73);
  std::vector<float> logits;
  for (int token = 0; token < 20; ++token) logits.push_back(random.value());
  const SamplingParameters parameters = {
      .temperature = 0.9f, .frequency_penalty = 0.7f, .presence_penalty = 0.4f, .seed = 3};
  std::map<TokenId, std::int32_t> generated;
  const auto request_at = [&](std::int64_t position) {
    Request request = {.logits = logits, .parameters = parameters, .position = position};
    for (const auto& [token, count] : generated) request.counts.push_back({token, count});
    return request;
  };
  std::vector<Request> round;
  std::vector<TokenId> tokens;
  for (std::int64_t position = 40; position < 60; ++position) {
    round.push_back(request_at(position));
    tokens.push_back(one(round.back()).token());
    ++generated[tokens.back()];
  }
  EXPECT_GT(std::set<TokenId>(tokens.begin(), tokens.end()).size(), 4) << "counts must matter";
  const std::vector<Answer> answers = sample_all(runner_.context, round);
  for (std::size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(answers[i].token(), tokens[i]);
}

TEST_P(Sample, RefusesALogitThatIsNotFiniteWhereverItIs) {
  for (const std::size_t vocabulary : {1, 7, 8, 9, 32, 67}) {
    for (std::size_t token = 0; token < vocabulary; ++token) {
      for (const auto& [value, name] :
           {std::pair{kNan, "nan"}, {kInfinity, "inf"}, {-kInfinity, "-inf"}}) {
        Request request = {.logits = std::vector<float>(vocabulary, 1.0f)};
        request.logits[token] = value;
        request.logits.back() = token + 1 < vocabulary ? kNan : value;
        const std::string words = fmt::format("the logit of token {} is {}", token, name);
        expect_error(request, ErrorCode::kDataLoss, words);
        // Neither noise nor a mask or a bias hides it.
        request.parameters.temperature = 1;
        expect_error(request, ErrorCode::kDataLoss, words);
        request.bias = {{.token = static_cast<TokenId>(token), .bias = -kInfinity}};
        if (vocabulary > 1) request.allowed = mask_of(vocabulary, {token == 0 ? 1 : 0});
        expect_error(request, ErrorCode::kDataLoss, words);
      }
    }
  }
}

TEST_P(Sample, RefusesCountsAndBiasOutsideTheirRange) {
  const auto with_counts = [](std::vector<TokenCount> counts) {
    return Request{.logits = std::vector<float>(10, 0.0f), .counts = std::move(counts)};
  };
  const auto with_bias = [](std::vector<TokenBias> bias) {
    return Request{.logits = std::vector<float>(10, 0.0f), .bias = std::move(bias)};
  };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  expect_error(with_counts({{10, 1}}), kInvalid, "token 10 has a count, but the vocabulary has 10");
  expect_error(with_counts({{3, 1}, {-1, 1}}), kInvalid, "token -1 has a count");
  expect_error(with_counts({{3, 0}}), kInvalid, "count 0 of token 3");
  expect_error(with_counts({{3, 2}, {4, -7}}), kInvalid, "count -7 of token 4");
  expect_error(with_counts({{3, 2}, {9, 1}, {3, 2}}), kInvalid, "token 3 has two counts");
  expect_error(with_bias({{10, 1}}), kInvalid, "token 10 has a bias, but the vocabulary has 10");
  expect_error(with_bias({{-5, 1}}), kInvalid, "token -5 has a bias");
  expect_error(with_bias({{2, kNan}}), kInvalid, "bias nan of token 2");
  expect_error(with_bias({{2, kInfinity}}), kInvalid, "bias inf of token 2");
  expect_error(with_bias({{2, 1}, {2, 1}}), kInvalid, "token 2 has two biases");
  // A token may have both a count and a bias.
  Request both = with_counts({{3, 1}});
  both.bias = {{.token = 3, .bias = 1}};
  EXPECT_EQ(one(both).token(), 3);
}

TEST_P(Sample, RefusesAdjustmentsThatOverflow) {
  Request request = {.logits = {1e38f, 0.0f, -3e38f},
                     .parameters = {.frequency_penalty = -1e38f},
                     .counts = {{.token = 0, .count = 3}}};
  expect_error(request, ErrorCode::kInvalidArgument,
               "the penalties take the logit of token 0 from 1e+38 to inf");
  request.parameters.frequency_penalty = 1e38f;
  request.counts = {{.token = 2, .count = 3}};
  expect_error(request, ErrorCode::kInvalidArgument,
               "the penalties take the logit of token 2 from -3e+38 to -inf");
  request.counts = {};
  request.bias = {{.token = 0, .bias = 3e38f}};
  expect_error(request, ErrorCode::kInvalidArgument,
               "bias 3e+38 takes the logit of token 0 from 1e+38 to infinity");
}

TEST_P(Sample, RefusesMasksAndRoomThatDoNotFit) {
  Request request = {.logits = std::vector<float>(65, 0.0f), .allowed = {~std::uint64_t{0}}};
  expect_error(request, ErrorCode::kInvalidArgument,
               "a mask of 1 words; a vocabulary of 65 tokens has 2");
  request.allowed = {};
  request.num_top_logprobs = 66;
  expect_error(request, ErrorCode::kInvalidArgument,
               "66 best logprobs asked of a vocabulary of 65 tokens");
}

TEST_P(Sample, RefusesARowWithoutATokenLeft) {
  Request request = {.logits = {1.0f, 2.0f, 3.0f}, .allowed = {~std::uint64_t{7}}};
  for (const float temperature : {0.0f, 1.0f}) {
    request.parameters.temperature = temperature;
    request.wants_logprob = true;
    request.allowed = {~std::uint64_t{7}};
    request.bias = {};
    expect_error(request, ErrorCode::kInvalidArgument, "leave no token");
    request.allowed = {4};
    request.bias = {{.token = 2, .bias = -kInfinity}};
    expect_error(request, ErrorCode::kInvalidArgument, "leave no token");
    request.bias.push_back({.token = 0, .bias = -kInfinity});
    request.bias.push_back({.token = 1, .bias = -kInfinity});
    request.allowed = {};
    expect_error(request, ErrorCode::kInvalidArgument, "leave no token");
  }
}

TEST_P(Sample, AWrongRowLeavesTheOthersAlone) {
  const Request good = {.logits = {1.0f, 2.0f, 3.0f}, .wants_logprob = true};
  const Answer alone = one(good);
  Request nan = good;
  nan.logits[1] = kNan;
  Request twice = good;
  twice.counts = {{1, 1}, {1, 1}};
  Request parameters = good;
  parameters.parameters.top_p = 0;
  const std::vector<Answer> answers =
      sample_all(runner_.context, {good, nan, good, twice, parameters, good});
  for (const std::size_t i : {0, 2, 5}) EXPECT_TRUE(equal_answers(answers[i], alone)) << i;
  EXPECT_EQ(answers[1].result.error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(answers[3].result.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(answers[4].result.error().text(), HasSubstr("top_p 0 is outside (0, 1]"));
}

TEST_P(Sample, WritesNothingButItsAnswer) {
  Random random(74);
  Request request = {.parameters = {.temperature = 1, .top_k = 9, .top_p = 0.8f, .min_p = 0.01f},
                     .counts = {{3, 4}},
                     .bias = {{5, 1.0f}},
                     .allowed = mask_of(50, {1, 3, 5, 7, 30, 45}),
                     .num_top_logprobs = 5};
  for (int token = 0; token < 50; ++token) request.logits.push_back(random.value());
  const std::vector<float> before = request.logits;
  ASSERT_TRUE(one(request).result.has_value());
  EXPECT_TRUE(equal_bits(request.logits, before));
}

TEST_P(Sample, AllocatesNothingOnceItsScratchExists) {
  if (GetParam() == Target::kReference) GTEST_SKIP() << "the reference allocates";
  std::vector<Request> requests;
  for (int i = 0; i < 16; ++i) {
    Request request = {.logits = std::vector<float>(2064, 0.0f), .position = i};
    request.logits[static_cast<std::size_t>(i)] = 1.0f;
    request.parameters.temperature = (i & 1) != 0 ? 1.0f : 0.0f;
    request.parameters.top_k = (i & 2) != 0 ? 600 : 0;
    request.parameters.top_p = (i & 4) != 0 ? 0.9f : 1.0f;
    if ((i & 8) != 0) request.counts = {{4, 2}, {1, 1}};
    request.num_top_logprobs = (i & 8) != 0 ? 20 : 0;
    requests.push_back(std::move(request));
  }
  std::vector<SampleRow> rows;
  std::vector<std::vector<TokenLogprob>> room(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) rows.push_back(row_of(requests[i], room[i]));
  std::vector<Result<SampleResult>> results(rows.size());
  for (const int num_threads : {1, 2}) {
    Runner runner(GetParam(), num_threads);
    const SampleArgs args = {.vocabulary = 2064, .rows = rows, .results = results};
    sample(runner.context, args);
    const std::int64_t before = num_heap_allocations();
    for (int step = 0; step < 10; ++step) sample(runner.context, args);
    EXPECT_EQ(num_heap_allocations() - before, 0);
  }
}

TEST(SampleDeathTest, AbortsOnShapesThatAreOurOwnMistake) {
  Runner runner(Target::kReference);
  const std::vector<float> logits = {1, 2};
  const SampleRow row = {.logits = logits.data()};
  std::vector<Result<SampleResult>> two(2);
  SampleArgs args = {.vocabulary = 2, .rows = std::span(&row, 1), .results = two};
  EXPECT_DEATH(sample(runner.context, args), "2 results for 1 rows");
  args.results = std::span(two).first(1);
  args.vocabulary = 0;
  EXPECT_DEATH(sample(runner.context, args), "0 tokens");
  SampleRow before = row;
  before.position = -1;
  args.vocabulary = 2;
  args.rows = std::span(&before, 1);
  EXPECT_DEATH(sample(runner.context, args), "at position -1");
}

TEST(SampleParameters, AreRefusedByName) {
  const auto words = [](const SamplingParameters& parameters) {
    const Result<void> result = validate(parameters);
    if (result.has_value()) return std::string("valid");
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
    return result.error().text();
  };
  for (const float temperature : {0.0f, -0.0f, kSmallestTemperature, 1.0f, kMax}) {
    EXPECT_EQ(words({.temperature = temperature}), "valid") << temperature;
  }
  for (const float temperature : {-1.0f, 1e-30f, 1e-42f, 0.99e-6f, kInfinity, kNan}) {
    EXPECT_THAT(words({.temperature = temperature}), HasSubstr("temperature")) << temperature;
  }
  EXPECT_THAT(words({.temperature = 1e-30f}), HasSubstr("1e-30 is neither 0 nor a finite number "
                                                        ">= 1e-06"));
  EXPECT_THAT(words({.top_k = -1}), HasSubstr("top_k -1 is negative"));
  for (const float top_p : {0.0f, -0.5f, 1.0001f, kInfinity, kNan}) {
    EXPECT_THAT(words({.top_p = top_p}), HasSubstr("is outside (0, 1]")) << top_p;
  }
  for (const float min_p : {-0.1f, 1.0001f, kInfinity, kNan}) {
    EXPECT_THAT(words({.min_p = min_p}), HasSubstr("is outside [0, 1]")) << min_p;
  }
  EXPECT_EQ(words({.top_p = 1, .min_p = 1}), "valid");
  for (const float penalty : {kInfinity, -kInfinity, kNan}) {
    EXPECT_THAT(words({.frequency_penalty = penalty}), HasSubstr("frequency_penalty"));
    EXPECT_THAT(words({.presence_penalty = penalty}), HasSubstr("presence_penalty"));
  }
  // Read as zero, a denormal temperature would pass.
  bool was_refused = false;
  EXPECT_TRUE(
      run_in_hostile_mode([&] { was_refused = !validate({.temperature = 1e-42f}).has_value(); }));
  EXPECT_TRUE(was_refused);
}

// From Python's xxhash: xxh3_128(i.to_bytes(4, "little"), seed).digest()[:8], big-endian.
TEST(ChoiceSeed, IsTheSeedThenTheFirstHalfOfTheHash) {
  EXPECT_EQ(choice_seed(0x0123456789ABCDEF, 0), 0x0123456789ABCDEF);
  EXPECT_EQ(choice_seed(0, 0), 0);
  EXPECT_EQ(choice_seed(0, 1), 0x45CDD2E492A8BBFC);
  EXPECT_EQ(choice_seed(0, 2), 0x0C3864A6C15091BA);
  EXPECT_EQ(choice_seed(1, 1), 0x4467813D600B5589);
  EXPECT_EQ(choice_seed(0x0123456789ABCDEF, 1), 0x67DFC6DE53F45D00);
  EXPECT_EQ(choice_seed(0x0123456789ABCDEF, 7), 0x14B5F67D7AB1A532);
  EXPECT_EQ(choice_seed(0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF), 0xD55551A39B3057B4);
}

}  // namespace
}  // namespace slackwater::kernels::test
