#include "slackwater/cache/cache_event.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

namespace slackwater::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie");

template <class T>
void add_bytes(std::vector<std::byte>& bytes, const T& value) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(value));
}

}  // namespace

Sha256Digest root_key(const ReuseScope& scope) {
  std::vector<std::byte> bytes;
  bytes.push_back(static_cast<std::byte>((scope.adapter.has_value() ? 1 : 0) |
                                         (scope.salt.has_value() ? 2 : 0)));
  if (scope.adapter.has_value()) add_bytes(bytes, *scope.adapter);
  if (scope.salt.has_value()) add_bytes(bytes, *scope.salt);
  return sha256(bytes);
}

Sha256Digest next_block_key(const Sha256Digest& parent, std::span<const TokenId> tokens,
                            const TokenDigests& digests) {
  // Kept: keys are made by the thousand.
  thread_local std::vector<std::byte> bytes;
  bytes.assign(parent.begin(), parent.end());
  for (const TokenId token : tokens) {
    if (is_digest_token(token)) {
      add_bytes(bytes, digests.digest(token));
    } else {
      add_bytes(bytes, token);
    }
  }
  return sha256(bytes);
}

std::vector<Sha256Digest> block_keys(const ReuseScope& scope, std::span<const TokenId> tokens,
                                     std::int32_t tokens_per_block, const TokenDigests& digests) {
  const auto size = static_cast<std::size_t>(tokens_per_block);
  std::vector<Sha256Digest> keys;
  Sha256Digest key = root_key(scope);
  for (std::size_t begin = 0; begin < tokens.size(); begin += size) {
    key =
        next_block_key(key, tokens.subspan(begin, std::min(size, tokens.size() - begin)), digests);
    keys.push_back(key);
  }
  return keys;
}

std::string_view to_string(CacheEventKind kind) {
  switch (kind) {
    case CacheEventKind::kCreated: return "created";
    case CacheEventKind::kStored: return "stored";
    case CacheEventKind::kRemoved: return "removed";
    case CacheEventKind::kUpdated: return "updated";
  }
  return "unknown";
}

std::string_view to_string(RemovalCause cause) {
  switch (cause) {
    case RemovalCause::kEvicted: return "evicted";
    case RemovalCause::kQuota: return "quota";
    case RemovalCause::kPlannedDrop: return "planned drop";
    case RemovalCause::kReplaced: return "replaced";
    case RemovalCause::kOrphaned: return "orphaned";
    case RemovalCause::kLost: return "lost";
    case RemovalCause::kCleared: return "cleared";
  }
  return "unknown";
}

}  // namespace slackwater::cache
