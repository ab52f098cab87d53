#include "model/byte_pair.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "model/tokenizer_test_support.h"

namespace slackwater::model {
namespace {

using Ranks = std::map<std::string, TokenId, std::less<>>;

Ranks ranks_of(const std::vector<std::string>& tokens) {
  Ranks ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i) ranks[tokens[i]] = static_cast<TokenId>(i);
  return ranks;
}

// The definition, word for word: all pairs are looked at before each merge.
std::vector<TokenId> merge_naively(const Ranks& ranks, std::string_view piece) {
  std::vector<std::string> parts;
  if (ranks.contains(piece)) {
    parts.emplace_back(piece);
  } else {
    for (const char byte : piece) parts.emplace_back(1, byte);
  }
  for (;;) {
    auto best = ranks.end();
    std::size_t where = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto pair = ranks.find(parts[i] + parts[i + 1]);
      if (pair == ranks.end() || (best != ranks.end() && pair->second >= best->second)) continue;
      best = pair;
      where = i;
    }
    if (best == ranks.end()) break;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
  std::vector<TokenId> tokens;
  for (const std::string& part : parts) tokens.push_back(ranks.find(part)->second);
  return tokens;
}

std::vector<TokenId> merge(const RankTable& table, std::string_view piece) {
  std::vector<TokenId> tokens;
  append_merged(table, piece, tokens);
  return tokens;
}

std::string spelled(const RankTable& table, const std::vector<TokenId>& tokens) {
  std::string bytes;
  for (const TokenId token : tokens) bytes += table.bytes(token);
  return bytes;
}

RankTable table_of(const std::vector<std::string>& tokens) {
  return value_of(RankTable::parse(rank_file(tokens)));
}

TEST(BytePair, MergesTheLowestRankFirst) {
  const RankTable table = table_of(byte_tokens({"bc", "ab", "abc"}));  // 256, 257, 258
  EXPECT_EQ(merge(table, "abcd"), (std::vector<TokenId>{258, 'd'}));
  EXPECT_EQ(merge(table, "abd"), (std::vector<TokenId>{257, 'd'}));
  const RankTable other = table_of(byte_tokens({"bc", "ab"}));
  EXPECT_EQ(merge(other, "abc"), (std::vector<TokenId>{'a', 256}));
}

TEST(BytePair, MergesTheLeftmostOfEqualPairs) {
  const RankTable table = table_of(byte_tokens({"aa"}));
  EXPECT_EQ(merge(table, "aaa"), (std::vector<TokenId>{256, 'a'}));
  EXPECT_EQ(merge(table, "aaaab"), (std::vector<TokenId>{256, 256, 'b'}));
  std::vector<TokenId> want(50, 256);
  want.push_back('a');
  EXPECT_EQ(merge(table, std::string(101, 'a')), want);
}

TEST(BytePair, APieceThatIsATokenNeedsNoMerges) {
  // No pair of parts ever spells "abc": "ab" and "bc" are no tokens.
  const RankTable table = table_of(byte_tokens({"abc"}));
  EXPECT_EQ(merge(table, "abc"), (std::vector<TokenId>{256}));
  EXPECT_EQ(merge(table, "abcd"), (std::vector<TokenId>{'a', 'b', 'c', 'd'}));
  const std::string long_token(300, 'x');
  EXPECT_EQ(merge(table_of(byte_tokens({long_token})), long_token), (std::vector<TokenId>{256}));
}

TEST(BytePair, AppendsToWhatIsThere) {
  std::vector<TokenId> tokens = {7};
  append_merged(table_of(byte_tokens()), "a", tokens);
  EXPECT_EQ(tokens, (std::vector<TokenId>{7, 'a'}));
}

TEST(BytePair, EqualsTheNaiveMergeWithTheDemoVocabulary) {
  std::mt19937_64 random(test_seed());
  const RankTable table =
      value_of(RankTable::parse(read_file(repository_path("models/demo/tiktoken.model"))));
  std::vector<std::string> tokens;
  for (TokenId token = 0; token < table.size(); ++token) tokens.emplace_back(table.bytes(token));
  const Ranks ranks = ranks_of(tokens);
  for (int round = 0; round < 3000; ++round) {
    // Tokens of the vocabulary in random order have more to merge than random letters.
    std::string piece;
    const std::size_t size = 1 + random() % 150;
    while (piece.size() < size) piece += tokens[random() % tokens.size()];
    if (round % 3 == 0) piece = random_string(random, "etaoinshr", size);
    ASSERT_EQ(merge(table, piece), merge_naively(ranks, piece))
        << "round " << round << ": " << ::testing::PrintToString(piece);
  }
}

// Small alphabets and random tokens: many ties, tokens that no merge reaches, merges that open
// pairs of lower rank than their own.
TEST(BytePair, EqualsTheNaiveMergeWithRandomVocabularies) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 150; ++round) {
    std::set<std::string> longer;
    const std::size_t num_longer = 1 + random() % 60;
    const std::string alphabet = std::string("abcd").substr(0, 1 + random() % 4);
    while (longer.size() < num_longer) {
      longer.insert(random_string(random, alphabet, 2 + random() % (alphabet == "a" ? 80 : 6)));
    }
    std::vector<std::string> tokens = byte_tokens({longer.begin(), longer.end()});
    std::ranges::shuffle(tokens, random);
    const RankTable table = table_of(tokens);
    const Ranks ranks = ranks_of(tokens);
    for (std::size_t size : {1, 2, 3, 7, 63, 64, 65, 66, 200}) {
      const std::string piece = random_string(random, alphabet, size);
      ASSERT_EQ(merge(table, piece), merge_naively(ranks, piece))
          << "round " << round << ": " << piece;
    }
  }
}

TEST(BytePair, AMegabyteIsOnePieceLikeAnyOther) {
  constexpr std::size_t kSize = std::size_t{1} << 20;
  std::mt19937_64 random(test_seed());
  const RankTable table = table_of(byte_tokens({"aa", "aaaa", "aaaaaaaa", "ab", "ba"}));
  EXPECT_EQ(merge(table, std::string(kSize, 'a')), std::vector<TokenId>(kSize / 8, 258));
  const std::string piece = random_string(random, "ab", kSize);
  const std::vector<TokenId> tokens = merge(table, piece);
  EXPECT_EQ(spelled(table, tokens), piece);
  // Any two neighbours would have been merged if they spelled a token.
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    ASSERT_EQ(table.find(spelled(table, {tokens[i], tokens[i + 1]})), std::nullopt) << i;
  }
}

}  // namespace
}  // namespace slackwater::model
