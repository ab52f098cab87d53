#ifndef SLACKWATER_CACHE_PREFIX_DIGEST_H_
#define SLACKWATER_CACHE_PREFIX_DIGEST_H_

#include <cstdint>
#include <optional>
#include <span>

#include "slackwater/base/digest.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/token_digests.h"

namespace slackwater::cache {

// Who may share pages: only requests of equal scopes do.
struct ReuseScope {
  std::optional<std::uint64_t> adapter;  // weights of its own: LoRA and the like
  std::optional<std::uint64_t> salt;     // set by whoever wants to be apart
  friend bool operator==(const ReuseScope&, const ReuseScope&) = default;
};

// Prefix digests stand for a scope and all tokens up to some position. They are chained block by
// block, and every kind of input is tagged: no scope reads as a block, no digest token as text.
//
//   root    = XXH3-128(seed kScope,  flags, adapter, salt)                24 bytes
//   text    = XXH3-128(seed kText,   tokens)                              4 bytes a token
//   mixed   = XXH3-128(seed kMixed,  per token: 0, 4 bytes; or 1, 32)     where there are digests
//   prefix  = XXH3-128(seed kBlock,  parent prefix, text or mixed, count) 40 bytes
//
// Little-endian. XXH3 is no cryptographic hash: whoever finds a page by its digest trusts those
// who may write to its scope; keys that leave the process are SHA-256.
//
// Threads: pure functions, but for the lock of `digests`.

Digest128 root_prefix(const ReuseScope& scope);

// The prefix after `tokens`, which are those of one block: at most a block's.
Digest128 next_prefix(const Digest128& parent, std::span<const TokenId> tokens,
                      const TokenDigests& digests);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_PREFIX_DIGEST_H_
