#ifndef SLACKWATER_CACHE_PREFIX_MATCH_H_
#define SLACKWATER_CACHE_PREFIX_MATCH_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/block_tree.h"
#include "cache/branch_states.h"
#include "cache/kinds/group_kind.h"
#include "slackwater/cache/match_depths.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

// A part of the path that a query has in common with the tree.
struct MatchStep {
  NodeIndex node = kNoNode;
  std::int32_t num_blocks = 0;  // the last one may be matched in part
};

struct PrefixMatch {
  NodeIndex root = kNoNode;
  std::vector<MatchStep> steps;
  MatchDepths depths;
};

// Finds how much of a query every layer group can serve.
//
// First the tokens are compared along the tree, as far as blocks are visible and known to be
// written. Then the tail that is to be computed again is taken off, once, and the result is
// lowered to the largest position that all groups can serve, each asked until none lowers it.
// Where the path leaves other branches in the middle of a block, whatever they serve of what they
// have in common counts too: the longest common front is found by order, and snapshots within it by
// an index, however many branches there are. Only a window that has lost pages asks branch by
// branch, sixteen at most, those with most in common first.
//
// Source: kvcm_v2.md 3.2; choosing by usable length is ours.
// Invariants:
//   I1  reused <= attention <= content <= lookup.
// Threads: reads the tree only; any number at a time.
// Errors: none.
// Cost: comparing tokens at memory speed, one hash of a block per node; where less is served than
// is known, also one look-up per token of a block for each node of the path.
class PrefixMatcher {
 public:
  struct Options {
    bool partial = true;
    std::int64_t backoff = 0;
  };

  PrefixMatcher(const BlockTree& tree, const storage::TieredStore& store,
                std::span<const std::unique_ptr<GroupKind>> kinds, const BranchStates& states,
                const Options& options);

  PrefixMatch find(const ReuseScope& scope, std::span<const TokenId> tokens) const;

  // How many leading blocks of a node are known to be written, with every page that its group
  // cannot do without.
  std::int32_t visible_blocks(const TreeNode& node) const;
  // For how many tokens of a block the page of a group can be used.
  std::int32_t usable_coverage(const TreeNode& node, LayerGroupId group, std::int32_t block) const;
  bool is_usable_snapshot(const PageRun& run, std::size_t index) const;

 private:
  struct Walk {
    std::vector<MatchStep> steps;
    std::int64_t num_tokens = 0;
    bool ends_with_block = false;  // the last block is matched to its end
  };
  class Offer;

  Walk walk(NodeIndex root, std::span<const TokenId> tokens) const;
  void lower(const Walk& walk, MatchDepths& depths) const;
  std::int64_t lower_to(const Walk& walk, std::int64_t limit, bool asks_snapshots) const;
  // Where branches part: after the first steps of a path, `first` tokens into the query.
  struct Level {
    NodeIndex above = kNoNode;
    std::size_t num_steps = 0;
    std::int64_t first = 0;
    std::span<const TokenId> rest;  // of the query
  };
  struct Branch {
    NodeIndex node = kNoNode;
    std::size_t num_steps = 0;    // of the path, before it
    std::int32_t num_tokens = 0;  // of its first block, in common with the query
  };
  void try_branch(const Branch& branch, const Walk& path, MatchDepths& depths, Walk& best) const;
  void try_overlaps(const Level& level, const Walk& path, MatchDepths& depths, Walk& best) const;
  void try_states(const Level& level, const Walk& path, MatchDepths& depths, Walk& best) const;
  void try_branches(std::span<const TokenId> query, PrefixMatch& match, Walk& best) const;
  std::int64_t trim(const Walk& walk, std::int64_t position) const;

  const BlockTree& tree_;
  const storage::TieredStore& store_;
  const std::span<const std::unique_ptr<GroupKind>> kinds_;
  const BranchStates& states_;
  const Options options_;
  const bool has_windows_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_PREFIX_MATCH_H_
