#include "slackwater/cache/token_digests.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "slackwater/base/check.h"

namespace slackwater::cache {
namespace {

constexpr std::uint32_t kDigestBit = std::uint32_t{1} << 31;

bool has_digests(std::span<const TokenId> tokens) {
  return std::any_of(tokens.begin(), tokens.end(), is_digest_token);
}

}  // namespace

std::size_t TokenDigests::Hash::operator()(const Sha256Digest& digest) const {
  std::size_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof(hash));
  return hash;
}

Result<TokenId> TokenDigests::acquire(const Sha256Digest& digest) {
  if (is_text_only_) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a token for a digest in a cache of text; turn text_only off");
  }
  const Result<TokenId> token = find_or_add(digest);
  if (listener_ && token.has_value()) listener_(*token, digest);
  return token;
}

Result<TokenId> TokenDigests::find_or_add(const Sha256Digest& digest) {
  const std::scoped_lock lock(mutex_);
  const auto at = index_of_.find(digest);
  std::uint32_t index = 0;
  if (at != index_of_.end()) {
    index = at->second;
  } else if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (entries_.size() < kDigestBit) {
    index = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    return make_error(ErrorCode::kResourceExhausted, "{} digests are in use, the most there can be",
                      entries_.size());
  }
  if (at == index_of_.end()) {
    entries_[index].digest = digest;
    index_of_.emplace(digest, index);
  }
  ++entries_[index].references;
  return static_cast<TokenId>(index | kDigestBit);
}

void TokenDigests::recall(TokenId token, const Sha256Digest& digest) {
  SLACKWATER_CHECK(is_digest_token(token), "token {} stands for no digest", token);
  const std::scoped_lock lock(mutex_);
  const std::uint32_t index = static_cast<std::uint32_t>(token) & ~kDigestBit;
  while (entries_.size() <= index) {
    free_.push_back(static_cast<std::uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  // What the other process has released since is not known here.
  const auto other = index_of_.find(digest);
  if (other != index_of_.end() && other->second != index) {
    entries_[other->second].references = 0;
    free_.push_back(other->second);
    index_of_.erase(other);
  }
  Entry& recalled = entries_[index];
  if (recalled.references == 0) std::erase(free_, index);
  if (recalled.references > 0 && recalled.digest != digest) index_of_.erase(recalled.digest);
  recalled.digest = digest;
  ++recalled.references;
  index_of_[digest] = index;
}

TokenDigests::Entry& TokenDigests::entry(TokenId token) {
  const std::uint32_t index = static_cast<std::uint32_t>(token) & ~kDigestBit;
  SLACKWATER_CHECK(
      is_digest_token(token) && index < entries_.size() && entries_[index].references > 0,
      "token {} stands for no digest", token);
  return entries_[index];
}

const TokenDigests::Entry& TokenDigests::entry(TokenId token) const {
  return const_cast<TokenDigests*>(this)->entry(token);
}

void TokenDigests::retain(std::span<const TokenId> tokens) {
  if (is_text_only_ || !has_digests(tokens)) return;
  const std::scoped_lock lock(mutex_);
  for (const TokenId token : tokens) {
    if (is_digest_token(token)) ++entry(token).references;
  }
}

void TokenDigests::release(std::span<const TokenId> tokens) {
  if (is_text_only_ || !has_digests(tokens)) return;
  const std::scoped_lock lock(mutex_);
  for (const TokenId token : tokens) {
    if (!is_digest_token(token)) continue;
    Entry& released = entry(token);
    if (--released.references > 0) continue;
    index_of_.erase(released.digest);
    free_.push_back(static_cast<std::uint32_t>(token) & ~kDigestBit);
  }
}

bool TokenDigests::is_alive(TokenId token) const {
  const std::uint32_t index = static_cast<std::uint32_t>(token) & ~kDigestBit;
  const std::scoped_lock lock(mutex_);
  return is_digest_token(token) && index < entries_.size() && entries_[index].references > 0;
}

Sha256Digest TokenDigests::digest(TokenId token) const {
  const std::scoped_lock lock(mutex_);
  return entry(token).digest;
}

std::size_t TokenDigests::size() const {
  const std::scoped_lock lock(mutex_);
  return index_of_.size();
}

void TokenDigests::check_invariants() const {
  const std::scoped_lock lock(mutex_);
  std::size_t num_living = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].references == 0) continue;
    ++num_living;
    const auto at = index_of_.find(entries_[i].digest);
    SLACKWATER_CHECK(at != index_of_.end() && at->second == i,
                     "I1: digest {} is not found by its bytes", i);
  }
  SLACKWATER_CHECK(num_living == index_of_.size() && num_living + free_.size() == entries_.size(),
                   "I1: {} living, {} found, {} free of {}", num_living, index_of_.size(),
                   free_.size(), entries_.size());
}

std::vector<TokenId> item_tokens(TokenId digest_token, TokenId first_id, std::int64_t num_tokens) {
  SLACKWATER_CHECK(is_digest_token(digest_token) && num_tokens >= 1, "{} tokens of item {}",
                   num_tokens, digest_token);
  SLACKWATER_CHECK(first_id >= 0 && num_tokens <= std::numeric_limits<TokenId>::max() - first_id,
                   "{} tokens from id {}", num_tokens, first_id);
  std::vector<TokenId> tokens = {digest_token};
  for (TokenId i = 1; i < num_tokens; ++i) tokens.push_back(first_id + i);
  return tokens;
}

}  // namespace slackwater::cache
