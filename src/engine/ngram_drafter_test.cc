#include "engine/ngram_drafter.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/allocation_counter.h"
#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> proposal(const NgramDrafter& drafter, std::int32_t max_drafts) {
  std::vector<TokenId> drafts(static_cast<std::size_t>(max_drafts));
  drafts.resize(static_cast<std::size_t>(drafter.propose(max_drafts, drafts)));
  return drafts;
}

std::vector<TokenId> proposal_after(const std::vector<TokenId>& tokens, std::int32_t max_drafts) {
  NgramDrafter drafter(2, 4);
  drafter.append(tokens);
  drafter.check_invariants();
  return proposal(drafter, max_drafts);
}

// The same by trying every place, from the latest on, for the longest n first.
std::vector<TokenId> naive_proposal(std::vector<TokenId> tokens, std::int32_t ngram_min,
                                    std::int32_t ngram_max, std::int32_t max_drafts) {
  const std::int64_t length = std::ssize(tokens);
  for (std::int64_t n = std::min<std::int64_t>(ngram_max, length - 1); n >= ngram_min; --n) {
    for (std::int64_t end = length - 1; end >= n; --end) {
      if (!std::equal(tokens.end() - n, tokens.end(), tokens.begin() + (end - n))) continue;
      for (std::int32_t i = 0; i < max_drafts; ++i) {
        tokens.push_back(tokens[static_cast<std::size_t>(end + i)]);
      }
      return {tokens.begin() + length, tokens.end()};
    }
  }
  return {};
}

TEST(NgramDrafter, ProposesWhatFollowedTheSameTokens) {
  EXPECT_THAT(proposal_after({7, 1, 2, 3, 4, 5, 9, 1, 2}, 3), ElementsAre(3, 4, 5));
}

TEST(NgramDrafter, ALongerMatchCountsMoreThanALaterOne) {
  EXPECT_THAT(proposal_after({1, 2, 3, 50, 8, 2, 3, 60, 1, 2, 3}, 1), ElementsAre(50));
}

TEST(NgramDrafter, OfSeveralPlacesTheLatestCounts) {
  EXPECT_THAT(proposal_after({1, 2, 50, 1, 2, 60, 1, 2, 70, 1, 2}, 1), ElementsAre(70));
}

TEST(NgramDrafter, AMatchAtTheEndGoesOnWithItself) {
  EXPECT_THAT(proposal_after({1, 2, 3, 1, 2, 3, 1, 2}, 7), ElementsAre(3, 1, 2, 3, 1, 2, 3));
  EXPECT_THAT(proposal_after({5, 5, 5}, 4), ElementsAre(5, 5, 5, 5));
}

TEST(NgramDrafter, ProposesNothingWithoutAMatch) {
  EXPECT_THAT(proposal_after({}, 3), IsEmpty());
  EXPECT_THAT(proposal_after({1}, 3), IsEmpty());
  EXPECT_THAT(proposal_after({1, 2}, 3), IsEmpty());
  EXPECT_THAT(proposal_after({1, 2, 3, 4, 9, 2, 1}, 3), IsEmpty());
  // One equal token is too little.
  EXPECT_THAT(proposal_after({1, 2, 3, 1}, 3), IsEmpty());
  EXPECT_THAT(proposal_after({1, 2, 3, 1, 2}, 0), IsEmpty());
}

TEST(NgramDrafter, HowTokensArriveChangesNothing) {
  const std::vector<TokenId> tokens = {4, 4, 1, 2, 3, 4, 4, 1, 2};
  NgramDrafter whole(2, 3);
  whole.append(tokens);
  NgramDrafter single(2, 3);
  for (const TokenId token : tokens) single.append(std::vector<TokenId>{token});
  single.append({});
  EXPECT_EQ(proposal(single, 5), proposal(whole, 5));
  EXPECT_THAT(proposal(whole, 5), ElementsAre(3, 4, 4, 1, 2));
}

TEST(NgramDrafter, AllocatesNothingWithinWhatWasReserved) {
  NgramDrafter drafter(2, 4);
  drafter.reserve(3000);
  std::mt19937_64 random(1);
  std::vector<TokenId> tokens(3000);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 50);
  std::vector<TokenId> drafts(8);
  const std::int64_t before = num_heap_allocations();
  for (const TokenId& token : tokens) {
    drafter.append(std::span(&token, 1));
    drafter.propose(8, drafts);
  }
  EXPECT_EQ(num_heap_allocations(), before);
}

TEST(NgramDrafterModel, ProposesWhatANaiveSearchFinds) {
  const std::uint64_t seed = test_seed();
  const std::int64_t num_operations = test_operations(20'000);
  std::int64_t done = 0;
  std::int64_t found = 0;
  for (std::uint64_t round = 0; done < num_operations; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + round);
    std::mt19937_64 random(seed + round);
    const auto ngram_min = static_cast<std::int32_t>(1 + random() % 3);
    const auto ngram_max = ngram_min + static_cast<std::int32_t>(random() % 4);
    // Few tokens repeat by chance; many only where a stretch is copied.
    const std::uint64_t vocabulary = random() % 2 == 0 ? 3 : 200;
    NgramDrafter drafter(ngram_min, ngram_max);
    std::vector<TokenId> tokens;
    for (int step = 0; step < 200; ++step, ++done) {
      std::vector<TokenId> more(random() % 4);
      const std::size_t from = tokens.empty() ? 0 : random() % tokens.size();
      const bool is_copy = from + more.size() <= tokens.size() && random() % 2 == 0;
      for (std::size_t i = 0; i < more.size(); ++i) {
        more[i] = is_copy ? tokens[from + i] : static_cast<TokenId>(random() % vocabulary);
      }
      drafter.append(more);
      tokens.insert(tokens.end(), more.begin(), more.end());
      const auto max_drafts = static_cast<std::int32_t>(random() % 9);
      const auto expected = naive_proposal(tokens, ngram_min, ngram_max, max_drafts);
      ASSERT_EQ(proposal(drafter, max_drafts), expected) << "after " << done << " operations";
      found += expected.empty() ? 0 : 1;
    }
    drafter.check_invariants();
  }
  EXPECT_GT(found, num_operations / 4);
}

TEST(NgramDrafterDeathTest, LengthsOutOfRangeAreABug) {
  EXPECT_DEATH(NgramDrafter(0, 4), "n-grams of 0 to 4 tokens");
  EXPECT_DEATH(NgramDrafter(3, 2), "n-grams of 3 to 2 tokens");
  std::vector<TokenId> drafts(2);
  EXPECT_DEATH(NgramDrafter(2, 4).propose(3, drafts), "3 drafts into 2");
}

}  // namespace
}  // namespace slackwater::engine
