#include "cache/prefix_match.h"

#include <algorithm>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;

// Branches that share the front of a block are tried up to this number, those with most of it
// first. Only windows that have lost pages ask for more than one.
constexpr std::size_t kMostBranches = 16;

}  // namespace

// What the steps of a walk offer to one group.
class PrefixMatcher::Offer final : public GroupOffer {
 public:
  Offer(const PrefixMatcher& matcher, const Walk& walk, LayerGroupId group)
      : matcher_(matcher), walk_(walk), group_(group) {}

  std::int32_t coverage(std::int64_t block) const override {
    // Windows ask near the end of the path.
    for (auto step = walk_.steps.rbegin(); step != walk_.steps.rend(); ++step) {
      const TreeNode& node = matcher_.tree_.node(step->node);
      if (block < node.first_block) continue;
      return matcher_.usable_coverage(node, group_,
                                      static_cast<std::int32_t>(block - node.first_block));
    }
    return 0;
  }

  std::int64_t unbroken(std::int64_t limit) const override {
    std::int64_t position = 0;
    for (const MatchStep& step : walk_.steps) {
      const TreeNode& node = matcher_.tree_.node(step.node);
      const PageRun& run = node.runs[index_of(group_)];
      const std::int64_t first = matcher_.tree_.first_token(node);
      const std::int64_t end =
          std::min(matcher_.tree_.end_token(node),
                   first + std::int64_t{step.num_blocks} * matcher_.tree_.tokens_per_block());
      if (run.num_pages() == node.num_blocks() && node.short_pages.empty() && !run.may_be_lost) {
        position = end;
        continue;
      }
      for (std::int32_t block = 0; block < step.num_blocks; ++block) {
        const std::int32_t there = matcher_.usable_coverage(node, group_, block);
        const std::int64_t begin = first + std::int64_t{block} * matcher_.tree_.tokens_per_block();
        if (there < std::ssize(matcher_.tree_.block_tokens(node, block))) {
          return std::min(limit, begin + there);
        }
      }
      position = end;
    }
    return std::min(limit, position);
  }

  std::int64_t snapshot_at_most(std::int64_t limit) const override {
    for (auto step = walk_.steps.rbegin(); step != walk_.steps.rend(); ++step) {
      const PageRun& run = matcher_.tree_.node(step->node).runs[index_of(group_)];
      const auto past = std::upper_bound(run.positions.begin(), run.positions.end(), limit);
      for (auto i = past - run.positions.begin() - 1; i >= 0; --i) {
        const auto at = static_cast<std::size_t>(i);
        if (!matcher_.is_usable_snapshot(run, at)) continue;
        return SLACKWATER_MUTANT(snapshot_is_a_range) ? std::min(limit, run.positions[at] + 1)
                                                      : run.positions[at];
      }
    }
    return 0;
  }

 private:
  const PrefixMatcher& matcher_;
  const Walk& walk_;
  const LayerGroupId group_;
};

PrefixMatcher::PrefixMatcher(const BlockTree& tree, const storage::TieredStore& store,
                             std::span<const std::unique_ptr<GroupKind>> kinds,
                             const BranchStates& states, const Options& options)
    : tree_(tree),
      store_(store),
      kinds_(kinds),
      states_(states),
      options_(options),
      has_windows_(std::any_of(kinds.begin(), kinds.end(), [](const auto& kind) {
        return kind->has_block_pages() && !kind->needs_every_block();
      })) {}

bool PrefixMatcher::is_usable_snapshot(const PageRun& run, std::size_t index) const {
  return !is_null(run.pages[index]) && run.written[index].status() == EventStatus::kSucceeded &&
         store_.ready(run.pages[index]).status() != EventStatus::kFailed;
}

std::int32_t PrefixMatcher::usable_coverage(const TreeNode& node, LayerGroupId group,
                                            std::int32_t block) const {
  const std::int32_t covered = tree_.coverage(node, group, block);
  const PageRun& run = node.runs[index_of(group)];
  for (const TreeNode::LatePage& late : node.late_pages) {
    if (late.block != block || late.group != group) continue;
    if (late.written.status() != EventStatus::kSucceeded && !SLACKWATER_MUTANT(late_page_is_seen)) {
      return 0;
    }
  }
  if (covered == 0 || !run.may_be_lost) return covered;
  const PageId page = run.pages[static_cast<std::size_t>(block)];
  return store_.ready(page).status() == EventStatus::kFailed ? 0 : covered;
}

std::int32_t PrefixMatcher::visible_blocks(const TreeNode& node) const {
  std::int32_t visible = node.num_written;
  for (const PendingWrite& write : node.writes) {
    if (write.written.status() != EventStatus::kSucceeded &&
        !SLACKWATER_MUTANT(unwritten_block_is_seen)) {
      break;
    }
    visible = write.end_block;
  }
  return visible;
}

// Compares the query with the tree as far as they agree.
PrefixMatcher::Walk PrefixMatcher::walk(NodeIndex root, std::span<const TokenId> tokens) const {
  const auto block = static_cast<std::size_t>(tree_.tokens_per_block());
  Walk walk;
  walk.ends_with_block = true;
  NodeIndex above = root;
  while (static_cast<std::size_t>(walk.num_tokens) < tokens.size()) {
    const auto rest = tokens.subspan(static_cast<std::size_t>(walk.num_tokens));
    // The last block of a query may be partial, and meet an equal one.
    const NodeIndex child = tree_.find_child(above, rest.first(std::min(rest.size(), block)));
    if (child == kNoNode) break;
    const TreeNode& node = tree_.node(child);
    const auto visible =
        std::min(node.tokens.size(), static_cast<std::size_t>(visible_blocks(node)) * block);
    const auto most = std::min(visible, rest.size());
    const auto agreed = static_cast<std::size_t>(
        std::mismatch(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(most),
                      node.tokens.begin())
            .first -
        rest.begin());
    if (agreed == 0) break;
    walk.steps.push_back({child, static_cast<std::int32_t>((agreed + block - 1) / block)});
    walk.num_tokens += static_cast<std::int64_t>(agreed);
    walk.ends_with_block = agreed % block == 0 || agreed == node.tokens.size();
    if (agreed < node.tokens.size() || agreed % block != 0) return walk;
    above = child;
  }
  return walk;
}

// Rounds down where blocks are only to be used whole.
std::int64_t PrefixMatcher::trim(const Walk& walk, std::int64_t position) const {
  if (options_.partial) return position;
  if (walk.ends_with_block && position == walk.num_tokens) return position;
  return position - position % tree_.tokens_per_block();
}

// Asks all groups until none of them lowers the position.
std::int64_t PrefixMatcher::lower_to(const Walk& walk, std::int64_t limit,
                                     bool asks_snapshots) const {
  std::int64_t position = trim(walk, limit);
  while (position > 0) {
    const std::int64_t before = position;
    for (std::size_t g = 0; g < kinds_.size(); ++g) {
      if (!asks_snapshots && !kinds_[g]->has_block_pages()) continue;
      const Offer offer(*this, walk, LayerGroupId(static_cast<std::int32_t>(g)));
      position = trim(walk, kinds_[g]->longest_usable(offer, position));
    }
    if (position == before) break;
  }
  return position;
}

// The margin is taken off what is known of the query, by whichever branch.
void PrefixMatcher::lower(const Walk& walk, MatchDepths& depths) const {
  depths.content = std::max(depths.content, walk.num_tokens);
  const std::int64_t limit = std::max<std::int64_t>(0, depths.content - options_.backoff);
  depths.attention = lower_to(walk, std::min(limit, walk.num_tokens), false);
  depths.reused = lower_to(walk, depths.attention, true);
}

// Whether a branch that goes on after the first steps of a path serves more than what was found.
void PrefixMatcher::try_branch(const Branch& branch, const Walk& path, MatchDepths& depths,
                               Walk& best) const {
  const TreeNode& node = tree_.node(branch.node);
  if (visible_blocks(node) == 0) return;
  Walk other = path;
  other.steps.resize(branch.num_steps);
  other.steps.push_back({branch.node, 1});
  other.num_tokens = tree_.first_token(node) + branch.num_tokens;
  other.ends_with_block = branch.num_tokens == std::ssize(tree_.block_tokens(node, 0));
  MatchDepths of_other = depths;
  lower(other, of_other);
  const bool is_longer = of_other.content > depths.content;
  depths.content = std::max(depths.content, of_other.content);
  depths.attention = std::max(depths.attention, of_other.attention);
  if (of_other.reused > depths.reused || (is_longer && of_other.reused == depths.reused)) {
    depths.reused = of_other.reused;
    best = std::move(other);
  }
}

// Branches by how much they have in common with the rest of a query. The longest of them is all
// that attention asks for; a window may have lost its page there.
void PrefixMatcher::try_overlaps(const Level& level, const Walk& path, MatchDepths& depths,
                                 Walk& best) const {
  for (const BlockTree::Overlap& overlap :
       tree_.overlapping_children(level.above, level.rest, kMostBranches)) {
    if (visible_blocks(tree_.node(overlap.child)) == 0) continue;
    try_branch({overlap.child, level.num_steps, overlap.num_tokens}, path, depths, best);
    // Those with less in common cannot serve more than that.
    if (!has_windows_ || depths.reused >= level.first + overlap.num_tokens) return;
  }
}

// Snapshots in the middle of the block in which branches part, whosever they are: the longest that
// the query has in common with one.
void PrefixMatcher::try_states(const Level& level, const Walk& path, MatchDepths& depths,
                               Walk& best) const {
  if (states_.empty()) return;
  const auto most = std::min<std::size_t>(level.rest.size(),
                                          static_cast<std::size_t>(tree_.tokens_per_block()) - 1);
  std::vector<std::uint64_t> keys = {BranchStates::key(level.above)};
  for (std::size_t i = 0; i < most; ++i) {
    keys.push_back(BranchStates::next_key(keys.back(), level.rest[i]));
  }
  for (std::size_t n = most; n > 0 && level.first + static_cast<std::int64_t>(n) > depths.reused;
       --n) {
    states_.for_each(keys[n], [&](NodeIndex node) {
      const auto tokens = tree_.block_tokens(tree_.node(node), 0);
      const bool is_same = tree_.node(node).parent == level.above && tokens.size() >= n &&
                           std::ranges::equal(tokens.first(n), level.rest.first(n));
      if (is_same) {
        try_branch({node, level.num_steps, static_cast<std::int32_t>(n)}, path, depths, best);
      }
    });
  }
}

// Where the path leaves other branches in the middle of a block, one of them may go on for longer,
// or serve more of what they have in common: a snapshot, say, that the path has not. From the end
// of the path upwards, as long as more is to be had.
void PrefixMatcher::try_branches(std::span<const TokenId> query, PrefixMatch& match,
                                 Walk& best) const {
  const Walk path = best;
  for (std::size_t kept = path.steps.size() + 1; kept-- > 0;) {
    const bool is_end = kept == path.steps.size();
    const NodeIndex above = kept == 0 ? match.root : path.steps[kept - 1].node;
    // A path that ends within a node leaves nobody there.
    if (kept > 0 && path.steps[kept - 1].num_blocks < tree_.node(above).num_blocks()) continue;
    if (is_end && path.num_tokens % tree_.tokens_per_block() != 0) continue;
    const std::int64_t first = tree_.end_token(tree_.node(above));
    const Level level = {above, kept, first, query.subspan(static_cast<std::size_t>(first))};
    const std::int64_t most =
        std::min<std::int64_t>(tree_.tokens_per_block(), std::ssize(level.rest));
    if (first + most <= match.depths.reused) break;
    if (is_end || has_windows_) try_overlaps(level, path, match.depths, best);
    try_states(level, path, match.depths, best);
  }
}

PrefixMatch PrefixMatcher::find(const ReuseScope& scope, std::span<const TokenId> tokens) const {
  PrefixMatch match;
  const std::size_t left_out = SLACKWATER_MUTANT(match_whole_prompt) ? 0 : 1;
  const auto query = tokens.first(tokens.empty() ? 0 : tokens.size() - left_out);
  match.depths.lookup = std::ssize(query);
  const auto root = tree_.find_root(scope);
  if (!root.has_value()) return match;
  match.root = *root;
  Walk best = walk(*root, query);
  lower(best, match.depths);
  if (options_.partial) try_branches(query, match, best);
  // Steps past the result are of no use.
  std::int64_t blocks =
      (match.depths.reused + tree_.tokens_per_block() - 1) / tree_.tokens_per_block();
  for (const MatchStep& step : best.steps) {
    if (blocks == 0) break;
    const auto used = static_cast<std::int32_t>(std::min<std::int64_t>(blocks, step.num_blocks));
    match.steps.push_back({step.node, used});
    blocks -= used;
  }
  return match;
}

}  // namespace slackwater::cache
