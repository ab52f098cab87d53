#ifndef SLACKWATER_CACHE_TOKEN_DIGESTS_H_
#define SLACKWATER_CACHE_TOKEN_DIGESTS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"

namespace slackwater::cache {

// A token with the high bit set stands for 32 bytes that are not text: the digest of an image, say.
constexpr bool is_digest_token(TokenId token) { return token < 0; }

// Digests that tokens stand for. Equal digests have equal tokens, so tokens are compared as
// integers; keys hash the digest, so they do not depend on who came first.
//
// Source: the digest pool of TensorRT-LLM's KV cache manager V2, kvcm_v2.md 1.1.
// Invariants (check_invariants):
//   I1  a token lives as long as somebody holds a reference to it; no two living tokens have equal
//       digests.
// Ownership: references are counted: acquire and retain take one, release gives one back.
// Threads: any; a mutex. Tokens that are text never take it.
// Errors: acquire() gives kResourceExhausted past 2^31 digests. CHECK: a token that is used lives.
// Cost: a hash table; 80 bytes a digest.
class TokenDigests {
 public:
  // With `is_text_only`, no token stands for a digest: acquire() is kFailedPrecondition.
  explicit TokenDigests(bool is_text_only = false) : is_text_only_(is_text_only) {}

  // The token of a digest, with one reference for the caller.
  Result<TokenId> acquire(const Sha256Digest& digest);
  // One reference more, or less, per occurrence of a digest token; text is skipped.
  void retain(std::span<const TokenId> tokens);
  void release(std::span<const TokenId> tokens);

  // Tells `listener` of every token that is acquired from now on. Before there are any.
  using Listener = std::function<void(TokenId, const Sha256Digest&)>;
  void tell(Listener listener) { listener_ = std::move(listener); }
  // The token that a digest had in another process, with a reference: so that what that one did
  // can be done again. One that stands for another digest still did not there any more, and stands
  // for this one now. CHECK: it is a digest token.
  void recall(TokenId token, const Sha256Digest& digest);

  // Whether it stands for a digest now.
  bool is_alive(TokenId token) const;
  Sha256Digest digest(TokenId token) const;
  std::size_t size() const;
  void check_invariants() const;

 private:
  struct Entry {
    Sha256Digest digest;
    std::uint64_t references = 0;
  };
  struct Hash {
    std::size_t operator()(const Sha256Digest& digest) const;
  };

  Entry& entry(TokenId token);
  const Entry& entry(TokenId token) const;

  Result<TokenId> find_or_add(const Sha256Digest& digest);

  const bool is_text_only_;
  Listener listener_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;       // [tokens ever], by the low 31 bits
  std::vector<std::uint32_t> free_;  // entries without references
  std::unordered_map<Sha256Digest, std::uint32_t, Hash> index_of_;
};

// The tokens of an item that takes `num_tokens` >= 1 positions: the token of its digest, then
// `first_id` + 1, + 2, ... for the others, so that every position has a key of its own.
std::vector<TokenId> item_tokens(TokenId digest_token, TokenId first_id, std::int64_t num_tokens);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_TOKEN_DIGESTS_H_
