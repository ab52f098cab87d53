#include "slackwater/cache/prefix_digest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <vector>

namespace slackwater::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie");

enum Seed : std::uint64_t { kScope = 1, kText = 2, kMixed = 3, kBlock = 4 };

Digest128 hash_words(std::span<const std::uint64_t> words, Seed seed) {
  return xxh3_128(std::as_bytes(words), seed);
}

Digest128 hash_mixed(std::span<const TokenId> tokens, const TokenDigests& digests) {
  std::vector<std::byte> bytes;
  for (const TokenId token : tokens) {
    bytes.push_back(std::byte{is_digest_token(token)});
    if (is_digest_token(token)) {
      const Sha256Digest digest = digests.digest(token);
      bytes.insert(bytes.end(), digest.begin(), digest.end());
    } else {
      std::array<std::byte, sizeof(token)> text;
      std::memcpy(text.data(), &token, sizeof(token));
      bytes.insert(bytes.end(), text.begin(), text.end());
    }
  }
  return xxh3_128(bytes, kMixed);
}

}  // namespace

Digest128 root_prefix(const ReuseScope& scope) {
  const std::uint64_t flags =
      std::uint64_t{scope.adapter.has_value()} | std::uint64_t{scope.salt.has_value()} << 1;
  return hash_words(std::array{flags, scope.adapter.value_or(0), scope.salt.value_or(0)}, kScope);
}

Digest128 next_prefix(const Digest128& parent, std::span<const TokenId> tokens,
                      const TokenDigests& digests) {
  const bool is_text = std::none_of(tokens.begin(), tokens.end(), is_digest_token);
  const Digest128 block =
      is_text ? xxh3_128(std::as_bytes(tokens), kText) : hash_mixed(tokens, digests);
  return hash_words(
      std::array<std::uint64_t, 5>{parent.low, parent.high, block.low, block.high, tokens.size()},
      kBlock);
}

}  // namespace slackwater::cache
