// What the cache says of itself, in lines for people.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "cache/block_tree.h"
#include "cache/residency.h"
#include "cache/tuner.h"
#include "slackwater/base/figures.h"
#include "slackwater/cache/cache_view.h"

namespace slackwater::cache {
namespace {

constexpr std::array<Tier, kNumTiers> kTiers = {Tier::kDevice, Tier::kHost, Tier::kDisk};

// So many sequences have a line each.
constexpr std::size_t kMostSequences = 16;

// "3 device, 1 host": where pages lie.
std::string where_text(const PagesByTier& pages) {
  std::string text;
  for (const Tier tier : kTiers) {
    if (pages[index_of(tier)] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", pages[index_of(tier)],
                        storage::to_string(tier));
  }
  return text.empty() ? "none" : text;
}

std::string flow_text(const PageFlow& flow) {
  return fmt::format("{}, {}", count_text(flow.pages, "page"), bytes_text(flow.bytes));
}

// The longest name of a layer group, so that what follows them is aligned.
int name_width(const CacheView& view) {
  std::size_t width = 0;
  for (const GroupView& group : view.groups) width = std::max(width, group.name.size());
  return static_cast<int>(width);
}

void describe_groups(const CacheView& view, std::string& text) {
  text += fmt::format("cache: {}, {} tokens a block\n",
                      count_text(std::ssize(view.groups), "layer group"), view.tokens_per_block);
  for (std::size_t g = 0; g < view.groups.size(); ++g) {
    const GroupView& group = view.groups[g];
    text +=
        fmt::format("  group {}  {:<{}}  {} a page, {} off the device\n", g, group.name,
                    name_width(view), bytes_text(group.page_bytes), bytes_text(group.blob_bytes));
  }
}

void describe_pool(const PoolView& pool, std::string& text) {
  std::string members;
  for (const LayerGroupId group : pool.groups) {
    members += fmt::format("{}{}", members.empty() ? "" : ", ", group.value());
  }
  const TierRoom& room = pool.room;
  text += fmt::format("  pool {}: {:>6} slots of {}, of group{} {}\n", pool.pool, room.total,
                      bytes_text(pool.slot_bytes), pool.groups.size() == 1 ? "" : "s", members);
  const auto line = [&](std::string_view what, std::int32_t slots, std::string_view more) {
    text += fmt::format("          {:>6} {} ({}){}\n", slots, what, share_text(slots, room.total),
                        more);
  };
  line("free", room.free,
       pool.num_reserved == 0
           ? ""
           : fmt::format(", {} of them reserved for pages that change places", pool.num_reserved));
  line("evictable", room.evictable, "");
  if (pool.tier == Tier::kDevice) line("locked", pool.num_locked, "");
  const std::int32_t stays = room.unavailable - pool.num_locked;
  if (stays > 0) {
    line(pool.tier == Tier::kDisk ? "held, or nobody's" : "held", stays,
         ", and cannot leave for a colder tier");
  }
}

void describe_tiers(const CacheView& view, std::string& text) {
  for (const TierView& tier : view.tiers) {
    text += fmt::format("{}: {} of {} in use ({})\n", storage::to_string(tier.tier),
                        bytes_text(tier.used_bytes), bytes_text(tier.quota_bytes),
                        share_text(tier.used_bytes, tier.quota_bytes));
    for (const PoolView& pool : view.pools) {
      if (pool.tier == tier.tier) describe_pool(pool, text);
    }
  }
}

void describe_tree(const CacheView& view, std::string& text) {
  text += fmt::format("tree: {}, {}, {}, {}\n", count_text(view.tree.num_roots, "root"),
                      count_text(std::ssize(view.tree.nodes) - view.tree.num_roots, "node"),
                      count_text(view.tree.num_blocks, "block"),
                      count_text(view.tree.num_tokens, "token"));
  for (std::size_t g = 0; g < view.groups.size(); ++g) {
    PagesByTier pages = {};
    PagesByTier evictable = {};
    std::int64_t snapshots = 0;
    for (const NodeView& node : view.tree.nodes) {
      if (node.groups.empty()) continue;
      snapshots += std::ssize(node.groups[g].snapshots);
      for (std::size_t t = 0; t < kNumTiers; ++t) {
        pages[t] += node.groups[g].pages[t];
        evictable[t] += node.groups[g].evictable[t];
      }
    }
    text += fmt::format("  group {}: pages on {}; may leave: {}", g, where_text(pages),
                        where_text(evictable));
    if (!view.groups[g].has_block_pages) {
      text += fmt::format("; {}", count_text(snapshots, "snapshot"));
    }
    text += '\n';
  }
}

void describe_sequence(const CacheView& view, const SequenceView& sequence, std::string& text) {
  text += fmt::format(
      "  request {}: {}, {} committed, {} history, {} capacity{}{}\n", sequence.request.value(),
      to_string(sequence.status), sequence.num_committed, sequence.history, sequence.capacity,
      sequence.was_resumed ? "" : ", never resumed", sequence.is_damaged ? ", has lost pages" : "");
  const std::string_view verb = sequence.status == SequenceStatus::kActive ? "locks" : "holds";
  for (std::size_t g = 0; g < view.groups.size(); ++g) {
    text += fmt::format("    group {}: own {}; {} of the tree: {}\n", g,
                        where_text(sequence.groups[g].own), verb,
                        where_text(sequence.groups[g].shared));
  }
  std::string positions;
  for (const std::int64_t position : sequence.reserved_snapshots) {
    positions += fmt::format("{} {}", positions.empty() ? "" : ",", position);
  }
  if (!positions.empty()) text += fmt::format("    snapshots reserved at{}\n", positions);
}

void describe_sequences(const CacheView& view, std::string& text) {
  const auto active = std::count_if(
      view.sequences.begin(), view.sequences.end(),
      [](const SequenceView& sequence) { return sequence.status == SequenceStatus::kActive; });
  text += fmt::format("sequences: {} open, {} active, {} suspended\n", view.sequences.size(),
                      active, std::ssize(view.sequences) - active);
  const std::size_t shown = std::min(view.sequences.size(), kMostSequences);
  for (std::size_t i = 0; i < shown; ++i) describe_sequence(view, view.sequences[i], text);
  if (shown < view.sequences.size()) {
    text += fmt::format("  and {} more\n", view.sequences.size() - shown);
  }
}

void describe_counters(const CacheView& view, std::string& text) {
  const CacheCounters& counters = view.counters;
  text += "since the start:\n";
  text += fmt::format("  pages dropped:           {}\n", counters.pages_dropped);
  text += fmt::format("  snapshots published:     {}\n", counters.snapshots_published);
  text += fmt::format("  snapshots skipped:       {}\n", counters.snapshots_skipped);
  text += fmt::format("  certificate mismatches:  {}\n", counters.certificate_mismatches);
}

void describe_tokens(const TokenUse& tokens, std::string& text) {
  text += fmt::format("  tokens of prompts:       {}, {} reused ({})\n", tokens.queried,
                      tokens.reused, share_text(tokens.reused, tokens.queried));
  for (const Tier tier : kTiers) {
    const TierTokens& of_tier = tokens.tiers[index_of(tier)];
    if (of_tier.found == 0) continue;
    text += fmt::format("    {:<22} {}, {} found ({})\n",
                        fmt::format("asked of the {}:", storage::to_string(tier)), of_tier.queried,
                        of_tier.found, share_text(of_tier.found, of_tier.queried));
  }
  if (tokens.recompute_queried == 0) return;
  text += fmt::format("  of those that came back: {}, {} reused ({})\n", tokens.recompute_queried,
                      tokens.recompute_reused,
                      share_text(tokens.recompute_reused, tokens.recompute_queried));
}

void describe_use(const GroupUse& use, bool has_block_pages, std::string& text) {
  if (has_block_pages) {
    text += fmt::format(
        "    pages allocated:       {}: {} missed, {} computed again, {} generated\n",
        use.pages_allocated, use.pages_missed, use.pages_recomputed, use.pages_generated);
    text += fmt::format("    pages reused:          {} in full, {} in part\n",
                        use.pages_reused_full, use.pages_reused_partial);
  } else {
    text += fmt::format("    states allocated:      {}\n", use.pages_allocated);
  }
  if (use.copied.pages > 0) {
    text += fmt::format("    copied on the device:  {}\n", flow_text(use.copied));
  }
  if (use.copied_from_host.pages > 0) {
    text += fmt::format("    copied from the host:  {}\n", flow_text(use.copied_from_host));
  }
  const SnapshotStatistics& snapshots = use.snapshots;
  if (snapshots.lookups == 0) return;
  text += fmt::format("    snapshots looked up:   {}, {} found ({}), {} of them inside a block\n",
                      snapshots.lookups, snapshots.hits,
                      share_text(snapshots.hits, snapshots.lookups), snapshots.hits_inside_block);
  const std::int64_t all = snapshots.tokens_reused + snapshots.tokens_not_reused;
  text += fmt::format("    tokens they saved:     {} of {} ({})\n", snapshots.tokens_reused, all,
                      share_text(snapshots.tokens_reused, all));
}

void describe_group(const CacheView& view, std::size_t g, std::string& text) {
  const GroupStatistics& group = view.statistics.groups[g];
  text += fmt::format("  group {}:\n", g);
  describe_use(group.use, view.groups[g].has_block_pages, text);
  for (const Tier from : kTiers) {
    for (const Tier to : kTiers) {
      const PageFlow& flow = group.moved[index_of(from)][index_of(to)];
      if (flow.pages == 0) continue;
      text +=
          fmt::format("    {:<22} {}\n",
                      fmt::format("{} to {}:", storage::to_string(from), storage::to_string(to)),
                      flow_text(flow));
    }
  }
  if (group.dropped.pages > 0) {
    text += fmt::format("    dropped:               {}\n", flow_text(group.dropped));
  }
  if (group.certificate_failures > 0) {
    text += fmt::format("    certificate failures:  {}\n", group.certificate_failures);
  }
  std::string peaks;
  for (const TierView& tier : view.tiers) {
    peaks += fmt::format("{}{} on the {}", peaks.empty() ? "" : ", ",
                         group.peak_slots[index_of(tier.tier)], storage::to_string(tier.tier));
  }
  text += fmt::format("    most slots at once:    {}\n", peaks);
}

}  // namespace

std::string describe(const CacheView& view) {
  std::string text;
  describe_groups(view, text);
  describe_tiers(view, text);
  describe_tree(view, text);
  describe_sequences(view, text);
  describe_counters(view, text);
  if (!view.has_statistics) return text + "statistics: off\n";
  text += "statistics:\n";
  describe_tokens(view.statistics.tokens, text);
  for (std::size_t g = 0; g < view.groups.size(); ++g) describe_group(view, g, text);
  return text;
}

std::string BlockTree::describe() const {
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;
  for_each_node([&](NodeIndex index) {
    blocks += node(index).num_blocks();
    tokens += std::ssize(node(index).tokens);
  });
  return fmt::format("{}, {}, {}, {}", count_text(static_cast<std::int64_t>(num_roots()), "root"),
                     count_text(static_cast<std::int64_t>(num_nodes()), "node"),
                     count_text(blocks, "block"), count_text(tokens, "token"));
}

std::string Residency::describe() const {
  std::string text;
  for (const Tier tier : kTiers) {
    if (!store_.has_tier(tier)) continue;
    for (std::size_t pool = 0; pool < queues_[index_of(tier)].size(); ++pool) {
      text += fmt::format(
          "{:<6} pool {}: {} evictable, of {} that wait{}\n", storage::to_string(tier), pool,
          count_text(evictable_[index_of(tier)][pool], "page"),
          count_text(static_cast<std::int64_t>(queues_[index_of(tier)][pool].size()), "run"),
          room_text(tier, pool));
    }
  }
  for (std::size_t pool = 0; pool < num_pinned_.size(); ++pool) {
    text += fmt::format("in use, on any tier, of the host's pool {}: {}{}\n", pool,
                        count_text(num_pinned_[pool], "page"),
                        guarantees_suspend_ ? ", which the host can take" : "");
  }
  text += fmt::format("dropped so far: {}\n", count_text(num_dropped_, "page"));
  return text;
}

// What is kept free for pages that change places.
std::string Residency::room_text(Tier tier, std::size_t pool) const {
  std::int32_t slots = 0;
  if (tier == Tier::kHost) slots = swap_slots_[pool].num_pages();
  if (tier == Tier::kDisk) slots = disk_swap_slots_[pool];
  return slots == 0 ? ""
                    : fmt::format("; {} kept free for pages that change places",
                                  count_text(slots, "slot"));
}

std::string Tuner::describe() const {
  std::string text = fmt::format("{} of at least {}", count_text(num_samples_, "ended sequence"),
                                 options_.min_samples);
  if (!shape_.has_value()) return text + "; nothing is known of them yet";
  return text + fmt::format("; capacity {}, history {}, reused {} tokens", shape_->capacity,
                            shape_->history, shape_->reused);
}

}  // namespace slackwater::cache
