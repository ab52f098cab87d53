// How a sequence begins and ends: what it matched, and the pins of its path.

#include <algorithm>
#include <array>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

using device::Event;
using device::EventStatus;

namespace {

void add_use(PageRun& run, const Event& last_use) {
  if (last_use.is_done()) return;
  const std::array<Event, 2> both = {run.last_use, last_use};
  run.last_use = device::merge(both);
}

}  // namespace

// The node of a path that holds a block.
NodeIndex CacheCore::path_node(NodeIndex leaf, std::int64_t block) const {
  while (tree_->node(leaf).first_block > block) leaf = tree_->node(leaf).parent;
  return leaf;
}

// Leaf first, so that what follows a block leaves before it.
void CacheCore::pin_path(NodeIndex leaf, Pins change, const Event& last_use) {
  for (NodeIndex index = leaf; index != kNoNode; index = tree_->node(index).parent) {
    TreeNode& node = tree_->node(index);
    node.users.locks += change.locks;
    node.users.holds += change.holds;
    if (node.users == Pins()) to_tidy_.push_back(index);
    if (node.is_root()) continue;
    for (std::size_t g = 0; g < num_groups(); ++g) {
      if (!kind(g).needs_every_block()) continue;
      add_use(node.runs[g], last_use);
      residency_->pin_whole(node_key(index, g), node.runs[g], change);
    }
  }
}

void CacheCore::pin_block(NodeIndex leaf, std::size_t group, std::int64_t block, Pins change,
                          const Event& last_use) {
  const NodeIndex node = path_node(leaf, block);
  PageRun& run = node_run(node, group);
  add_use(run, last_use);
  residency_->pin_page(node_key(node, group), run,
                       static_cast<std::size_t>(block - tree_->node(node).first_block), change);
}

// The first blocks of the path, as far as a group that is pinned by page needs them.
void CacheCore::pin_blocks(SequenceState& sequence, std::size_t group, std::int64_t num_blocks,
                           Pins change, const Event& last_use) {
  const BlockRange stale = sequence.groups[group].stale;
  NodeIndex leaf = sequence.leaf;
  for (std::int64_t block = num_blocks - 1; block >= 0; --block) {
    if (stale.contains(block)) {
      block = stale.begin;
      continue;
    }
    leaf = path_node(leaf, block);
    pin_block(leaf, group, block, change, last_use);
  }
}

void CacheCore::pin_snapshot(NodeIndex leaf, std::size_t group, std::int64_t position, Pins change,
                             const Event& last_use) {
  const NodeIndex node = path_node(leaf, (position - 1) / config_.tokens_per_block);
  PageRun& run = node_run(node, group);
  const auto at = std::lower_bound(run.positions.begin(), run.positions.end(), position);
  SLACKWATER_CHECK(at != run.positions.end() && *at == position, "no snapshot at {}", position);
  add_use(run, last_use);
  residency_->pin_page(node_key(node, group), run,
                       static_cast<std::size_t>(at - run.positions.begin()), change);
}

bool CacheCore::has_partial_source(const SequenceState& sequence) const {
  return !sequence.was_resumed && sequence.num_committed % config_.tokens_per_block != 0;
}

// Cuts the tree so that the path of a match ends with a node, and a block that is matched in part
// is a node of its own.
NodeIndex CacheCore::realize(const PrefixMatch& match, std::int64_t num_tokens) {
  NodeIndex leaf = match.root;
  for (const MatchStep& step : match.steps) {
    leaf = step.node;
    if (step.num_blocks < tree_->node(leaf).num_blocks()) leaf = split(leaf, step.num_blocks);
  }
  const std::int32_t blocks = tree_->node(leaf).num_blocks();
  if (num_tokens % config_.tokens_per_block != 0 && blocks > 1) split(leaf, blocks - 1);
  return leaf;
}

// Gives back what was matched: the host could not take it beside what is in use.
void CacheCore::forget_match(SequenceState& sequence) {
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) {
      pin_snapshot(sequence.leaf, g, sequence.num_committed, {0, -1}, {});
    } else if (!kind(g).needs_every_block()) {
      pin_blocks(sequence, g, sequence.num_path_blocks, {0, -1}, {});
    }
    sequence.groups[g].first_block = 0;
    sequence.groups[g].stale = kind(g).stale_blocks(0);
  }
  pin_path(sequence.leaf, {0, -1}, {});
  digests_.release(sequence.unpublished);
  sequence.unpublished.clear();
  sequence.leaf = tree_->find_or_add_root(sequence.scope);
  ++tree_->node(sequence.leaf).users.holds;
  sequence.num_path_blocks = 0;
  sequence.num_committed = sequence.history = sequence.capacity = 0;
  sequence.match.reused = 0;
}

Result<SequenceState*> CacheCore::create_sequence(const SequenceOptions& options) {
  const WriteLock lock(mutex_);
  PrefixMatch match = matcher_->find(options.scope, options.tokens);
  bool is_any_lost = false;
  for (const MatchStep& step : match.steps) is_any_lost |= settle(step.node);
  if (is_any_lost) match = matcher_->find(options.scope, options.tokens);
  std::uint32_t index = static_cast<std::uint32_t>(sequences_.size());
  if (free_sequences_.empty()) {
    sequences_.emplace_back();
  } else {
    index = free_sequences_.back();
    free_sequences_.pop_back();
  }
  SequenceState& sequence = sequences_[index];
  sequence.index = index;
  sequence.number = next_number_++;
  sequence.status = SequenceStatus::kSuspended;
  sequence.request = options.request;
  sequence.scope = options.scope;
  sequence.priority = options.priority;
  sequence.is_dummy = options.is_dummy && !SLACKWATER_MUTANT(dummies_feed_the_tuner);
  sequence.match = match.depths;
  const std::int64_t reused = match.depths.reused;
  sequence.leaf = reused == 0 ? tree_->find_or_add_root(options.scope) : realize(match, reused);
  sequence.num_path_blocks = num_blocks(reused);
  sequence.num_committed = sequence.history = sequence.capacity = reused;
  const std::int64_t tail = reused % config_.tokens_per_block;
  const auto matched = options.tokens.first(static_cast<std::size_t>(reused));
  sequence.unpublished.assign(matched.end() - tail, matched.end());
  digests_.retain(sequence.unpublished);

  pin_path(sequence.leaf, {0, 1}, {});
  sequence.groups.reserve(num_groups());
  for (std::size_t g = 0; g < num_groups(); ++g) {
    SequenceGroup& group = sequence.groups.emplace_back(tree_->memory());
    group.run.group = LayerGroupId(static_cast<std::int32_t>(g));
    group.run.whole = {0, 1};
    group.first_block = reused / config_.tokens_per_block;
    group.stale = kind(g).stale_blocks(reused);
    if (!kind(g).has_block_pages()) {
      if (reused > 0) pin_snapshot(sequence.leaf, g, reused, {0, 1}, {});
    } else if (!kind(g).needs_every_block()) {
      pin_blocks(sequence, g, sequence.num_path_blocks, {0, 1}, {});
    }
  }
  ++num_open_;
  if (reused > 0 && !residency_->fits_host()) forget_match(sequence);
  if (!sequence.is_dummy) tuner_.note_begin(sequence.match.reused);
  count_create(sequence, options);
  clean_up();
  return &sequence;
}

void CacheCore::close(SequenceState& sequence) {
  const WriteLock lock(mutex_);
  if (sequence.status == SequenceStatus::kClosed) return;
  const bool is_active = sequence.status == SequenceStatus::kActive;
  const Event last_use = record(sequence);
  // A frame on disk names its owner: what was the sequence's own stays that.
  const bool has_own_frames = std::any_of(
      sequence.groups.begin(), sequence.groups.end(),
      [](const SequenceGroup& group) { return group.run.num_on[index_of(Tier::kDisk)] > 0; });
  if (!has_own_frames && sequence.was_resumed && !sequence.is_damaged &&
      sequence.arrived.status() == EventStatus::kSucceeded) {
    publish(sequence);
    publish_tail(sequence);
    publish_snapshots(sequence);
  }
  const Pins change = is_active ? Pins{-1, 0} : Pins{0, -1};
  for (std::size_t g = 0; g < num_groups(); ++g) {
    SequenceGroup& group = sequence.groups[g];
    if (!kind(g).has_block_pages()) {
      if (!sequence.was_resumed && sequence.num_committed > 0) {
        pin_snapshot(sequence.leaf, g, sequence.num_committed, change, last_use);
      }
    } else if (!kind(g).needs_every_block()) {
      pin_blocks(sequence, g, sequence.num_path_blocks, change, last_use);
    }
    add_use(group.run, last_use);
    for (std::size_t i = group.run.pages.size(); i-- > 0;)
      release_page(sequence_key(sequence, g), i);
    residency_->forget_run(group.run);
    if (!group.table.empty()) std::fill(group.table.begin(), group.table.end(), kNoSlot);
  }
  release_snapshots(sequence, last_use);
  pin_path(sequence.leaf, change, last_use);
  digests_.release(sequence.unpublished);
  if (!sequence.is_dummy) tuner_.note_end(sequence.lengths);
  const std::uint32_t index = sequence.index;
  sequence = SequenceState();
  sequence.index = index;
  free_sequences_.push_back(index);
  --num_open_;
  clean_up();
}

Event CacheCore::record(SequenceState& sequence) const {
  if (sequence.status != SequenceStatus::kActive) return {};
  return SLACKWATER_MUTANT(unpin_before_the_step_ends) ? Event() : sequence.stream->mark();
}

std::vector<TokenId> CacheCore::committed_tokens(const SequenceState& sequence) const {
  const ReadLock lock(mutex_);
  std::vector<std::span<const TokenId>> parts;
  NodeIndex node = sequence.leaf;
  // A block that is matched in part is in the tree and among the unpublished tokens.
  if (has_partial_source(sequence)) node = tree_->node(node).parent;
  for (; node != kNoNode; node = tree_->node(node).parent) {
    parts.push_back(tree_->node(node).tokens);
  }
  std::vector<TokenId> tokens;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    tokens.insert(tokens.end(), part->begin(), part->end());
  }
  tokens.insert(tokens.end(), sequence.unpublished.begin(), sequence.unpublished.end());
  return tokens;
}

}  // namespace slackwater::cache
