#include "kernels/sample/rank_keys.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/test_support.h"

namespace slackwater::kernels::test {
namespace {

TEST(SampleRankKeys, OrderValuesDownAndTokensUp) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
  const std::vector<float> descending = {
      kInfinity, 3e38f,  1.0f,      std::nextafter(1.0f, 0.0f), kDenormal, 0.0f, -kDenormal,
      -1.0f,     -3e38f, -kInfinity};
  constexpr TokenId kTokens[] = {0, 1, 255, 65'536, (1 << 30) - 1};
  for (std::size_t i = 0; i < descending.size(); ++i) {
    for (const TokenId token : kTokens) {
      const RankKey key = rank_key(descending[i], token);
      EXPECT_EQ(value_of(key), descending[i]);
      EXPECT_EQ(token_of(key), token);
      EXPECT_GT(key, rank_key(descending[i], token + 1));
      if (i > 0) {
        EXPECT_LT(key, rank_key(descending[i - 1], std::numeric_limits<TokenId>::max()));
      }
    }
  }
  EXPECT_EQ(rank_key(-0.0f, 7), rank_key(0.0f, 7)) << "the two zeros are a tie";
}

TEST(SampleRankKeys, SortByValueEqualsASortByKey) {
  Random random(75);
  for (const std::int32_t count : {0, 1, 2, 511, 512, 513, 3000}) {
    // Far apart, in one binade, with many ties, and a few last bits apart.
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<RankKey> keys;
      for (TokenId token = 0; token < count; ++token) {
        const float values[] = {
            std::bit_cast<float>(static_cast<std::uint32_t>(random.bits() >> 33) % 0x7F800000u) *
                (random.below(2) == 0 ? 1.0f : -1.0f),
            random.uniform(1.0f, 2.0f), static_cast<float>(random.below(5) - 2),
            1.0f + 0x1p-23f * static_cast<float>(random.below(3000))};
        keys.push_back(rank_key(values[kind], 3 * token));
      }
      std::vector<RankKey> expected = keys;
      std::sort(expected.begin(), expected.end(), std::greater<>());
      std::vector<RankKey> spare(keys.size());
      const RankKey* sorted = sort_by_value(keys.data(), spare.data(), count);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), sorted))
          << count << " keys of kind " << kind;
    }
  }
}

TEST(SampleRankKeys, KeepFirstPutsTheLastOfThemAtTheirEnd) {
  Random random(76);
  for (const std::int64_t count : {1, 2, 50}) {
    for (const std::int64_t wanted : {1, 2, 7, 49, 50, 51}) {
      std::vector<RankKey> keys;
      for (TokenId token = 0; token < count; ++token) {
        keys.push_back(rank_key(static_cast<float>(random.below(9)), token));
      }
      std::vector<RankKey> expected = keys;
      std::sort(expected.begin(), expected.end(), std::greater<>());
      const std::int64_t kept = keep_first(keys.data(), count, wanted);
      ASSERT_EQ(kept, std::min(count, wanted));
      if (wanted <= count) {
        EXPECT_EQ(keys[static_cast<std::size_t>(wanted - 1)],
                  expected[static_cast<std::size_t>(wanted - 1)]);
      }
      std::sort(keys.begin(), keys.begin() + kept, std::greater<>());
      EXPECT_TRUE(std::equal(keys.begin(), keys.begin() + kept, expected.begin()));
    }
  }
}

}  // namespace
}  // namespace slackwater::kernels::test
