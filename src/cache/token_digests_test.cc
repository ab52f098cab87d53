#include "slackwater/cache/token_digests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slackwater::cache {
namespace {

Sha256Digest digest_of(int number) {
  Sha256Digest digest = {};
  digest[0] = static_cast<std::byte>(number);
  digest[31] = std::byte{7};
  return digest;
}

TEST(TokenDigests, EqualDigestsHaveEqualTokens) {
  TokenDigests digests;
  const TokenId first = *digests.acquire(digest_of(1));
  const TokenId other = *digests.acquire(digest_of(2));
  EXPECT_TRUE(is_digest_token(first));
  EXPECT_NE(first, other);
  EXPECT_EQ(*digests.acquire(digest_of(1)), first);
  EXPECT_EQ(digests.digest(first), digest_of(1));
  digests.check_invariants();
}

TEST(TokenDigests, ADigestLivesAsLongAsSomebodyHoldsIt) {
  TokenDigests digests;
  const TokenId token = *digests.acquire(digest_of(1));
  const std::vector<TokenId> tokens = {5, token, 6, token};
  digests.retain(tokens);
  digests.release(std::vector<TokenId>{token});
  EXPECT_EQ(digests.size(), 1u);
  digests.check_invariants();
  digests.release(tokens);
  EXPECT_EQ(digests.size(), 0u);
  digests.check_invariants();
  // Its number is used again.
  EXPECT_EQ(*digests.acquire(digest_of(3)), token);
  EXPECT_EQ(digests.digest(token), digest_of(3));
}

TEST(TokenDigests, AnItemHasAKeyForEveryPosition) {
  TokenDigests digests;
  const TokenId token = *digests.acquire(digest_of(1));
  EXPECT_THAT(item_tokens(token, 1000, 4), testing::ElementsAre(token, 1001, 1002, 1003));
  EXPECT_THAT(item_tokens(token, 1000, 1), testing::ElementsAre(token));
}

TEST(TokenDigestsDeathTest, ATokenThatIsGoneIsNotFollowed) {
  TokenDigests digests;
  const std::vector<TokenId> tokens = {*digests.acquire(digest_of(1))};
  digests.release(tokens);
  EXPECT_DEATH(digests.release(tokens), "stands for no digest");
  EXPECT_DEATH(static_cast<void>(digests.digest(-1)), "stands for no digest");
}

}  // namespace
}  // namespace slackwater::cache
