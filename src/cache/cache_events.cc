// What the cache tells of its tree: notes while things happen, events when somebody asks.

#include <algorithm>
#include <array>
#include <utility>

#include "cache/cache_core.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

// Where a page of a node lies in its sequence.
CacheCore::PagePlace CacheCore::page_place(const TreeNode& node, std::size_t group,
                                           std::size_t index) const {
  const PageRun& run = node.runs[group];
  if (run.is_by_position) {
    const std::int64_t end = run.positions[index];
    return {static_cast<std::int32_t>((end - 1) >> block_shift_) - node.first_block, end};
  }
  const auto block = static_cast<std::int32_t>(index);
  const std::int64_t first = (std::int64_t{node.first_block} + block) << block_shift_;
  if (SLACKWATER_MUTANT(event_covers_the_block)) {
    return {block, first + std::ssize(tree_->block_tokens(node, block))};
  }
  return {block, first + tree_->coverage(node, run.group, block)};
}

EventRecord CacheCore::page_record(EventRecord::Kind kind, NodeIndex index, std::size_t group,
                                   std::size_t page) const {
  const TreeNode& node = tree_->node(index);
  const PagePlace place = page_place(node, group, page);
  EventRecord record;
  record.kind = kind;
  record.prefix = node.prefixes[static_cast<std::size_t>(place.block)];
  record.end = place.end;
  record.group = static_cast<std::uint16_t>(group);
  record.tier = store_->tier(node.runs[group].pages[page]);
  record.priority = node.runs[group].priority;
  record.cause = removal_cause_;
  return record;
}

// The tokens that a page covers of its block.
std::span<const TokenId> CacheCore::covered_tokens(const TreeNode& node, std::size_t group,
                                                   std::size_t page) const {
  const PagePlace place = page_place(node, group, page);
  const std::int64_t first = (std::int64_t{node.first_block} + place.block) << block_shift_;
  return tree_->block_tokens(node, place.block).first(static_cast<std::size_t>(place.end - first));
}

EventRecord CacheCore::block_record(NodeIndex index, std::int32_t block) const {
  const TreeNode& node = tree_->node(index);
  const TreeNode& above = tree_->node(node.parent);
  const auto i = static_cast<std::size_t>(block);
  EventRecord record;
  record.kind = EventRecord::Kind::kBlockAdded;
  record.prefix = node.prefixes[i];
  if (block > 0 || !above.is_root()) {
    record.parent = block > 0 ? node.prefixes[i - 1] : above.prefixes.back();
    return record;
  }
  record.kind = EventRecord::Kind::kFirstBlockAdded;
  record.parent = {above.scope.adapter.value_or(0), above.scope.salt.value_or(0)};
  record.scope_mask = static_cast<std::uint8_t>((above.scope.adapter.has_value() ? 1 : 0) |
                                                (above.scope.salt.has_value() ? 2 : 0));
  return record;
}

void CacheCore::page_stored(const RunKey& key, std::size_t index) {
  const NodeIndex node(key.index);
  events_->add(page_record(EventRecord::Kind::kStored, node, key.group, index),
               covered_tokens(tree_->node(node), key.group, index));
}

void CacheCore::page_removed(const RunKey& key, std::size_t index) {
  EventRecord record =
      page_record(EventRecord::Kind::kRemoved, NodeIndex(key.index), key.group, index);
  const bool is_victim = node_run(NodeIndex(key.index), key.group).pages[index] == victim_;
  if (!is_null(victim_) && !is_victim && !SLACKWATER_MUTANT(event_orphan_is_evicted)) {
    record.cause = RemovalCause::kOrphaned;
  }
  events_->add(record);
  if (SLACKWATER_MUTANT(event_removed_twice)) events_->add(record);
}

void CacheCore::page_moved(const RunKey& key, std::size_t index, Tier from) {
  if (SLACKWATER_MUTANT(event_forgets_a_move)) return;
  EventRecord record =
      page_record(EventRecord::Kind::kUpdated, NodeIndex(key.index), key.group, index);
  record.previous_tier = from;
  events_->add(record);
}

// The last block of a node is new.
void CacheCore::note_block_added(NodeIndex index) {
  const TreeNode& node = tree_->node(index);
  const std::int32_t block = node.num_blocks() - 1;
  events_->add(block_record(index, block), tree_->block_tokens(node, block));
}

// Blocks at and past `num_left` are about to go; their pages have.
void CacheCore::note_blocks_removed(NodeIndex index, std::int32_t num_left) {
  if (SLACKWATER_MUTANT(event_forgets_a_cut) && num_left > 0) return;
  EventRecord record;
  record.kind = EventRecord::Kind::kBlockRemoved;
  const TreeNode& node = tree_->node(index);
  for (auto i = static_cast<std::size_t>(node.num_blocks());
       i-- > static_cast<std::size_t>(num_left);) {
    record.prefix = node.prefixes[i];
    events_->add(record);
  }
}

// All that others may build on before what is built on it, roots left out.
std::vector<NodeIndex> CacheCore::nodes_parents_first() const {
  std::vector<NodeIndex> order;
  tree_->for_each_node([&](NodeIndex node) {
    if (!tree_->node(node).is_root()) return;
    const std::vector<NodeIndex> children = tree_->children(node);
    order.insert(order.end(), children.begin(), children.end());
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<NodeIndex> children = tree_->children(order[i]);
    order.insert(order.end(), children.begin(), children.end());
  }
  return order;
}

// Calls visit(group, index) for the pages of a block.
template <class Visit>
void CacheCore::for_each_page(const TreeNode& node, std::int32_t block, const Visit& visit) const {
  const std::int64_t first = (std::int64_t{node.first_block} + block) << block_shift_;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const PageRun& run = node.runs[g];
    std::size_t i = static_cast<std::size_t>(block);
    std::size_t end = i + 1;
    if (run.is_by_position) {
      const auto begin = run.positions.begin();
      i = static_cast<std::size_t>(std::upper_bound(begin, run.positions.end(), first) - begin);
      end = static_cast<std::size_t>(
          std::upper_bound(begin, run.positions.end(), first + config_.tokens_per_block) - begin);
    }
    for (; i < std::min(end, run.pages.size()); ++i) {
      if (!is_null(run.pages[i])) visit(g, i);
    }
  }
}

// All that is there, as if it came now.
void CacheCore::add_tree(EventBatch& batch) {
  for (const NodeIndex index : nodes_parents_first()) {
    const TreeNode& node = tree_->node(index);
    for (std::int32_t block = 0; block < node.num_blocks(); ++block) {
      batch.add(block_record(index, block), tree_->block_tokens(node, block), digests_);
      for_each_page(node, block, [&](std::size_t group, std::size_t page) {
        batch.add(page_record(EventRecord::Kind::kStored, index, group, page),
                  covered_tokens(node, group, page), digests_);
      });
    }
  }
}

std::array<std::int64_t, storage::kNumTiers> CacheCore::num_slots() const {
  std::array<std::int64_t, storage::kNumTiers> slots = {};
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!store_->has_tier(tier)) continue;
    std::vector<std::int64_t> of_pool(store_->num_pool_groups(tier));
    for (const LayerGroupDesc& group : groups_.groups()) {
      of_pool[store_->pool_group(tier, group.id)] = store_->pool_stats(tier, group.id).num_slots;
    }
    for (const std::int64_t count : of_pool) slots[index_of(tier)] += count;
  }
  return slots;
}

// Keys are hashed without the lock: others go on meanwhile.
DrainedEvents CacheCore::drain_events() {
  DrainedEvents drained;
  if (events_ == nullptr) return drained;
  const std::scoped_lock turn(drain_mutex_);
  EventQueue::Taken taken;
  std::array<std::int64_t, storage::kNumTiers> slots = {};
  {
    const WriteLock lock(mutex_);
    taken = events_->take();
    slots = num_slots();
    if (taken.has_overflown) add_tree(taken.batch);
  }
  drained.num_lost = taken.num_lost;
  if (taken.has_overflown || !event_reader_.has_begun()) {
    event_reader_.begin_anew(slots, drained.events);
  }
  event_reader_.read(taken.batch, digests_, drained.events);
  digests_.release(taken.batch.tokens);
  return drained;
}

// By what the tree says, not by what was noted of it: this is what a mirror is compared with.
std::vector<CachedPage> CacheCore::cached_pages() const {
  const ReadLock lock(mutex_);
  std::vector<CachedPage> pages;
  std::map<NodeIndex, Sha256Digest> end_keys;
  for (const NodeIndex index : nodes_parents_first()) {
    const TreeNode& node = tree_->node(index);
    const TreeNode& above = tree_->node(node.parent);
    Sha256Digest key = above.is_root() ? root_key(above.scope) : end_keys[node.parent];
    for (std::int32_t block = 0; block < node.num_blocks(); ++block) {
      key = next_block_key(key, tree_->block_tokens(node, block), digests_);
      for_each_page(node, block, [&](std::size_t group, std::size_t page) {
        const PageRun& run = node.runs[group];
        const std::int64_t end = run.is_by_position
                                     ? run.positions[page]
                                     : tree_->first_token(node) + block * config_.tokens_per_block +
                                           tree_->coverage(node, run.group, block);
        pages.push_back({key, run.group, end, store_->tier(run.pages[page]), run.priority});
      });
    }
    end_keys[index] = key;
  }
  return pages;
}

}  // namespace slackwater::cache
