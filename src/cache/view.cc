// What there is to see of a cache.

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "cache/cache_core.h"

namespace slackwater::cache {
namespace {

LayerGroupId id_of(std::size_t group) { return LayerGroupId(static_cast<std::int32_t>(group)); }

}  // namespace

std::vector<PoolView> CacheCore::view_pools() const {
  std::vector<PoolView> pools;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!store_->has_tier(tier)) continue;
    const std::size_t first = pools.size();
    pools.resize(first + store_->num_pool_groups(tier));
    for (std::size_t g = 0; g < num_groups(); ++g) {
      const std::size_t number = store_->pool_group(tier, id_of(g));
      PoolView& pool = pools[first + number];
      const storage::PoolStats stats = store_->pool_stats(tier, id_of(g));
      pool.tier = tier;
      pool.pool = number;
      pool.groups.push_back(id_of(g));
      pool.room = room_of(tier, id_of(g));
      pool.num_reserved = stats.num_reserved;
      pool.slot_bytes = stats.slot_bytes;
      if (tier == Tier::kDevice) pool.num_locked += num_locked_pages(g);
    }
  }
  return pools;
}

// Pages of a layer group that are in use: of nodes, of sequences, and for snapshots to come.
std::int32_t CacheCore::num_locked_pages(std::size_t group) const {
  std::int32_t count = 0;
  const auto add = [&](const PageRun& run) {
    for (std::size_t i = 0; i < run.pages.size(); ++i) {
      if (!is_null(run.pages[i]) && run.pins_of(i).locks > 0) ++count;
    }
  };
  tree_->for_each_node([&](NodeIndex node) {
    if (!tree_->node(node).is_root()) add(tree_->node(node).runs[group]);
  });
  for (const SequenceState& sequence : sequences_) {
    if (sequence.status == SequenceStatus::kClosed) continue;
    add(sequence.groups[group].run);
    for (const ReservedSnapshot& snapshot : sequence.snapshots) {
      if (!is_null(snapshot.pages[group])) ++count;
    }
  }
  return count;
}

std::vector<SequenceGroupView> CacheCore::view_groups(const SequenceState& sequence) const {
  std::vector<SequenceGroupView> groups(num_groups());
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const SequenceGroup& own = sequence.groups[g];
    groups[g].own = own.run.num_on;
    groups[g].stale = own.stale;
    groups[g].first_own_block = own.first_block;
    groups[g].pending = own.pending;
    if (!kind(g).has_block_pages()) {
      if (sequence.was_resumed || sequence.num_committed == 0) continue;
      const PageId page = source_page(sequence, g);
      if (!is_null(page)) ++groups[g].shared[index_of(store_->tier(page))];
      continue;
    }
    for (NodeIndex index = sequence.leaf; !tree_->node(index).is_root();
         index = tree_->node(index).parent) {
      const TreeNode& node = tree_->node(index);
      for (std::size_t i = 0; i < node.runs[g].pages.size(); ++i) {
        const PageId page = node.runs[g].pages[i];
        const std::int64_t block = node.first_block + static_cast<std::int64_t>(i);
        if (is_null(page) || own.stale.contains(block)) continue;
        ++groups[g].shared[index_of(store_->tier(page))];
      }
    }
  }
  return groups;
}

SequenceView CacheCore::view_sequence(const SequenceState& sequence) const {
  SequenceView view;
  view.request = sequence.request;
  view.status = sequence.status;
  view.scope = sequence.scope;
  view.num_committed = sequence.num_committed;
  view.history = sequence.history;
  view.capacity = sequence.capacity;
  view.leaf = sequence.leaf.value();
  view.num_path_blocks = sequence.num_path_blocks;
  view.num_unpublished = std::ssize(sequence.unpublished);
  view.was_resumed = sequence.was_resumed;
  view.is_committing = sequence.is_committing;
  view.is_damaged = sequence.is_damaged;
  view.pending = sequence.pending;
  view.groups = view_groups(sequence);
  for (const ReservedSnapshot& snapshot : sequence.snapshots) {
    view.reserved_snapshots.push_back(snapshot.position);
  }
  return view;
}

NodeView CacheCore::view_node(NodeIndex index) const {
  const TreeNode& node = tree_->node(index);
  NodeView view;
  view.index = index.value();
  view.num_children = node.num_children;
  view.num_locks = node.users.locks;
  view.num_holds = node.users.holds;
  if (node.is_root()) {
    view.scope = node.scope;
    return view;
  }
  view.parent = node.parent.value();
  view.first_block = node.first_block;
  view.num_blocks = node.num_blocks();
  view.num_written = node.num_written;
  view.is_broken = node.is_broken;
  view.tokens.assign(node.tokens.begin(), node.tokens.end());
  const auto tier_of = [&](PageId page) {
    return is_null(page) ? std::optional<Tier>() : store_->tier(page);
  };
  for (const PageRun& run : node.runs) {
    NodeGroupView& group = view.groups.emplace_back();
    group.pages = run.num_on;
    group.evictable = run.num_evictable;
    group.priority = run.priority;
    for (std::size_t i = 0; i < run.pages.size(); ++i) {
      if (run.is_by_position) {
        group.snapshots.push_back(
            {run.positions[i], tier_of(run.pages[i]), run.pins[i].locks, run.pins[i].holds});
      } else {
        group.blocks.push_back(tier_of(run.pages[i]));
      }
    }
  }
  return view;
}

TreeView CacheCore::view_tree() const {
  TreeView view;
  view.num_roots = static_cast<std::int64_t>(tree_->num_roots());
  tree_->for_each_node([&](NodeIndex node) { view.nodes.push_back(view_node(node)); });
  std::sort(view.nodes.begin(), view.nodes.end(),
            [](const NodeView& a, const NodeView& b) { return a.index < b.index; });
  for (const NodeView& node : view.nodes) {
    view.num_blocks += node.num_blocks;
    view.num_tokens += std::ssize(node.tokens);
  }
  return view;
}

CacheView CacheCore::view() const {
  const ReadLock lock(mutex_);
  CacheView view;
  view.tokens_per_block = config_.tokens_per_block;
  for (const LayerGroupDesc& group : groups_.groups()) {
    const GroupKind& kind = this->kind(index_of(group.id));
    view.groups.push_back({group.name, kind.has_block_pages(), kind.needs_every_block(),
                           group.page_bytes, store_->cold_page_bytes(group.id)});
  }
  view.pools = view_pools();
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!store_->has_tier(tier)) continue;
    TierView of_tier{tier, store_->quota(tier), 0};
    for (const PoolView& pool : view.pools) {
      if (pool.tier != tier) continue;
      of_tier.used_bytes += std::int64_t{pool.room.total - pool.room.free} * pool.slot_bytes;
    }
    view.tiers.push_back(of_tier);
  }
  for (const SequenceState& sequence : sequences_) {
    if (sequence.status == SequenceStatus::kClosed) continue;
    view.sequences.push_back(view_sequence(sequence));
  }
  view.tree = view_tree();
  view.counters = total_counters();
  view.has_statistics = book_ != nullptr;
  view.statistics = total_statistics();
  return view;
}

// Of what a view does not hold: who waits to leave, and what the load is like.
std::string CacheCore::describe_rooms() const {
  const ReadLock lock(mutex_);
  std::string text = "load: " + tuner_.describe() + "\nresidency:\n";
  std::istringstream lines(residency_->describe());
  for (std::string line; std::getline(lines, line);) text += "  " + line + "\n";
  return text;
}

}  // namespace slackwater::cache
