#include "slackwater/cache/prefix_digest.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace slackwater::cache {
namespace {

std::vector<TokenId> text(std::size_t count) {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(i * 7 + 1));
  return tokens;
}

// Files and other processes keep digests: they must never change. The values are those of this
// implementation at format version 1.
TEST(PrefixDigest, IsTheSameEverywhere) {
  const TokenDigests digests;
  EXPECT_EQ(to_hex(root_prefix({})), to_hex(root_prefix({std::nullopt, std::nullopt})));
  const Digest128 root = root_prefix({7, 11});
  const Digest128 block = next_prefix(root, text(32), digests);
  EXPECT_EQ(to_hex(root), "24cf50f4c56234f23a2f2054c6330099");
  EXPECT_EQ(to_hex(block), "fd2d544b0400bea06332c2be88bdf805");
}

TEST(PrefixDigest, ScopesAreApart) {
  const ReuseScope scopes[] = {{},      {7, 11}, {7, 12}, {8, 11}, {7, {}}, {{}, 11},
                               {0, {}}, {{}, 0}, {0, 0},  {11, 7}, {{}, 7}};
  std::set<std::string> roots;
  for (const ReuseScope& scope : scopes) roots.insert(to_hex(root_prefix(scope)));
  EXPECT_EQ(roots.size(), std::size(scopes));
}

// Of blocks of any length: how tokens are cut into blocks is part of the digest.
TEST(PrefixDigest, LengthsAndCutsAreApart) {
  const TokenDigests digests;
  const Digest128 root = root_prefix({});
  std::set<std::string> seen = {to_hex(root)};
  for (const std::size_t length : {0u, 1u, 7u, 32u, 33u, 257u}) {
    EXPECT_TRUE(seen.insert(to_hex(next_prefix(root, text(length), digests))).second) << length;
  }
  const auto tokens = text(32);
  const Digest128 halves = next_prefix(next_prefix(root, std::span(tokens).first(16), digests),
                                       std::span(tokens).subspan(16), digests);
  EXPECT_TRUE(seen.insert(to_hex(halves)).second);
}

// The number of a digest token is this process's own; its digest is everybody's.
TEST(PrefixDigest, ADigestTokenCountsByItsDigest) {
  TokenDigests here;
  TokenDigests there;
  Sha256Digest image = {};
  image[3] = std::byte{9};
  static_cast<void>(*there.acquire({}));
  const TokenId token_here = *here.acquire(image);
  const TokenId token_there = *there.acquire(image);
  ASSERT_NE(token_here, token_there);
  const Digest128 root = root_prefix({});
  const std::vector<TokenId> tokens_here = {1, token_here, 3};
  const std::vector<TokenId> tokens_there = {1, token_there, 3};
  EXPECT_EQ(next_prefix(root, tokens_here, here), next_prefix(root, tokens_there, there));
  const std::vector<TokenId> as_text = {1, 0, 3};
  EXPECT_NE(next_prefix(root, tokens_here, here), next_prefix(root, as_text, here));
}

}  // namespace
}  // namespace slackwater::cache
