#ifndef SLACKWATER_CACHE_BRANCH_STATES_H_
#define SLACKWATER_CACHE_BRANCH_STATES_H_

#include <cstdint>
#include <span>
#include <unordered_map>

#include "cache/block_tree.h"

namespace slackwater::cache {

// Which branches have a snapshot in the middle of their first block, by the tokens up to it. So a
// query that parts from all of them inside that block finds the longest state they have in common,
// however many they are.
//
// Structure only: whether a snapshot can be used is for the caller to see.
//
// Invariants (kept by whoever adds and removes):
//   I1  an entry for every snapshot of the first recurrent group that lies inside the first block
//   of
//       its node.
// Ownership: numbers.
// Threads: one that changes it, or any number that read.
// Errors: none. CHECK: what is removed is there.
// Cost: a hash table; O(tokens before the snapshot).
class BranchStates {
 public:
  // A hash of a parent and tokens after it: grows token by token.
  static std::uint64_t key(NodeIndex parent) { return mix(parent.value() + 1); }
  static std::uint64_t next_key(std::uint64_t key, TokenId token) {
    return mix(key ^ (static_cast<std::uint32_t>(token) + 0x9E3779B97F4A7C15u));
  }
  static std::uint64_t key(NodeIndex parent, std::span<const TokenId> tokens) {
    std::uint64_t result = key(parent);
    for (const TokenId token : tokens) result = next_key(result, token);
    return result;
  }

  void add(std::uint64_t key, NodeIndex node) { nodes_.emplace(key, node); }
  void remove(std::uint64_t key, NodeIndex node);
  bool empty() const { return nodes_.empty(); }
  std::size_t size() const { return nodes_.size(); }

  // Nodes with a snapshot after tokens of this key, or, rarely, of another one with the same hash.
  template <class Visit>
  void for_each(std::uint64_t key, const Visit& visit) const {
    const auto [first, last] = nodes_.equal_range(key);
    for (auto at = first; at != last; ++at) visit(at->second);
  }
  bool contains(std::uint64_t key, NodeIndex node) const;

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
  }

  std::unordered_multimap<std::uint64_t, NodeIndex> nodes_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_BRANCH_STATES_H_
