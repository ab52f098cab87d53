#include "cache/view_json.h"

#include <string>

namespace slackwater::cache {
namespace {

using nlohmann::json;
using storage::Tier;

constexpr Tier kTiers[] = {Tier::kDevice, Tier::kHost, Tier::kDisk};

std::string name_of(Tier tier) { return std::string(storage::to_string(tier)); }

template <class Counts, class Convert>
json by_tier(const Counts& counts, const Convert& convert) {
  json out;
  for (const Tier tier : kTiers)
    out[name_of(tier)] = convert(counts[static_cast<std::size_t>(tier)]);
  return out;
}

template <class Counts>
json by_tier(const Counts& counts) {
  return by_tier(counts, [](const auto& value) { return value; });
}

json of_scope(const ReuseScope& scope) {
  json out = json::object();
  if (scope.adapter.has_value()) out["adapter"] = *scope.adapter;
  if (scope.salt.has_value()) out["salt"] = *scope.salt;
  return out;
}

json of_room(const TierRoom& room) {
  return {{"total", room.total},
          {"free", room.free},
          {"evictable", room.evictable},
          {"unavailable", room.unavailable}};
}

json of_pool(const PoolView& pool) {
  json groups = json::array();
  for (const LayerGroupId group : pool.groups) groups.push_back(group.value());
  return {{"tier", name_of(pool.tier)},
          {"pool", pool.pool},
          {"groups", groups},
          {"room", of_room(pool.room)},
          {"num_locked", pool.num_locked},
          {"num_reserved", pool.num_reserved},
          {"slot_bytes", pool.slot_bytes}};
}

json of_sequence(const SequenceView& sequence) {
  json groups = json::array();
  for (const SequenceGroupView& group : sequence.groups) {
    groups.push_back({{"own", by_tier(group.own)},
                      {"shared", by_tier(group.shared)},
                      {"stale", {group.stale.begin, group.stale.end}},
                      {"first_own_block", group.first_own_block}});
  }
  return {{"request", sequence.request.value()},
          {"status", std::string(to_string(sequence.status))},
          {"scope", of_scope(sequence.scope)},
          {"num_committed", sequence.num_committed},
          {"history", sequence.history},
          {"capacity", sequence.capacity},
          {"leaf", sequence.leaf},
          {"num_path_blocks", sequence.num_path_blocks},
          {"num_unpublished", sequence.num_unpublished},
          {"was_resumed", sequence.was_resumed},
          {"is_committing", sequence.is_committing},
          {"is_damaged", sequence.is_damaged},
          {"groups", groups},
          {"reserved_snapshots", sequence.reserved_snapshots}};
}

json of_optional(const std::optional<Tier>& tier) {
  return tier.has_value() ? json(name_of(*tier)) : json();
}

json of_node_group(const NodeGroupView& group) {
  json blocks = json::array();
  for (const auto& tier : group.blocks) blocks.push_back(of_optional(tier));
  json snapshots = json::array();
  for (const SnapshotView& snapshot : group.snapshots) {
    snapshots.push_back({{"position", snapshot.position},
                         {"tier", of_optional(snapshot.tier)},
                         {"num_locks", snapshot.num_locks},
                         {"num_holds", snapshot.num_holds}});
  }
  return {{"pages", by_tier(group.pages)},
          {"evictable", by_tier(group.evictable)},
          {"priority", group.priority},
          {"blocks", blocks},
          {"snapshots", snapshots}};
}

json of_node(const NodeView& node) {
  json groups = json::array();
  for (const NodeGroupView& group : node.groups) groups.push_back(of_node_group(group));
  return {{"index", node.index},
          {"parent", node.parent.has_value() ? json(*node.parent) : json()},
          {"scope", of_scope(node.scope)},
          {"first_block", node.first_block},
          {"num_blocks", node.num_blocks},
          {"num_written", node.num_written},
          {"num_children", node.num_children},
          {"num_locks", node.num_locks},
          {"num_holds", node.num_holds},
          {"is_broken", node.is_broken},
          {"tokens", node.tokens},
          {"groups", groups}};
}

json of_flow(const PageFlow& flow) { return {{"pages", flow.pages}, {"bytes", flow.bytes}}; }

json of_use(const GroupUse& use) {
  const SnapshotStatistics& snapshots = use.snapshots;
  return {{"pages_allocated", use.pages_allocated},
          {"pages_missed", use.pages_missed},
          {"pages_recomputed", use.pages_recomputed},
          {"pages_generated", use.pages_generated},
          {"pages_reused_full", use.pages_reused_full},
          {"pages_reused_partial", use.pages_reused_partial},
          {"copied", of_flow(use.copied)},
          {"copied_from_host", of_flow(use.copied_from_host)},
          {"snapshots",
           {{"lookups", snapshots.lookups},
            {"hits", snapshots.hits},
            {"misses", snapshots.misses},
            {"tokens_reused", snapshots.tokens_reused},
            {"tokens_not_reused", snapshots.tokens_not_reused},
            {"hits_at_boundary", snapshots.hits_at_boundary},
            {"hits_inside_block", snapshots.hits_inside_block}}}};
}

json of_statistics(const CacheStatistics& statistics) {
  json groups = json::array();
  for (const GroupStatistics& group : statistics.groups) {
    groups.push_back(
        {{"use", of_use(group.use)},
         {"moved", by_tier(group.moved, [](const auto& to) { return by_tier(to, of_flow); })},
         {"dropped", of_flow(group.dropped)},
         {"certificate_failures", group.certificate_failures},
         {"peak_slots", by_tier(group.peak_slots)}});
  }
  const TokenUse& tokens = statistics.tokens;
  return {{"groups", groups},
          {"tokens",
           {{"queried", tokens.queried},
            {"reused", tokens.reused},
            {"recompute_queried", tokens.recompute_queried},
            {"recompute_reused", tokens.recompute_reused},
            {"tiers", by_tier(tokens.tiers, [](const TierTokens& tier) -> json {
               return {{"queried", tier.queried}, {"found", tier.found}};
             })}}}};
}

json of_removal(const std::optional<PageRemoval>& removal) {
  if (!removal.has_value()) return {};
  return {{"call", removal->call},
          {"cause", std::string(to_string(removal->cause))},
          {"tier", name_of(removal->tier)},
          {"pool", removal->pool.value()},
          {"slots_to_keep", removal->slots_to_keep},
          {"bytes_to_keep", removal->bytes_to_keep}};
}

}  // namespace

json to_json(const CacheView& view) {
  json out;
  out["tokens_per_block"] = view.tokens_per_block;
  out["groups"] = json::array();
  for (const GroupView& group : view.groups) {
    out["groups"].push_back({{"name", group.name},
                             {"has_block_pages", group.has_block_pages},
                             {"needs_every_block", group.needs_every_block},
                             {"page_bytes", group.page_bytes},
                             {"blob_bytes", group.blob_bytes}});
  }
  out["tiers"] = json::array();
  for (const TierView& tier : view.tiers) {
    out["tiers"].push_back({{"tier", name_of(tier.tier)},
                            {"quota_bytes", tier.quota_bytes},
                            {"used_bytes", tier.used_bytes}});
  }
  out["pools"] = json::array();
  for (const PoolView& pool : view.pools) out["pools"].push_back(of_pool(pool));
  out["sequences"] = json::array();
  for (const SequenceView& sequence : view.sequences) {
    out["sequences"].push_back(of_sequence(sequence));
  }
  json nodes = json::array();
  for (const NodeView& node : view.tree.nodes) nodes.push_back(of_node(node));
  out["tree"] = {{"num_roots", view.tree.num_roots},
                 {"num_blocks", view.tree.num_blocks},
                 {"num_tokens", view.tree.num_tokens},
                 {"nodes", nodes}};
  out["counters"] = {{"pages_dropped", view.counters.pages_dropped},
                     {"snapshots_published", view.counters.snapshots_published},
                     {"snapshots_skipped", view.counters.snapshots_skipped},
                     {"certificate_mismatches", view.counters.certificate_mismatches}};
  if (view.has_statistics) out["statistics"] = of_statistics(view.statistics);
  return out;
}

json to_json(const MatchExplanation& explanation) {
  json groups = json::array();
  for (const GroupExplanation& group : explanation.groups) {
    groups.push_back(
        {{"group", group.group.value()},
         {"name", group.name},
         {"served", group.served},
         {"served_once", group.served_once},
         {"missing_end", group.missing_end.has_value() ? json(*group.missing_end) : json()},
         {"missing", of_removal(group.missing)},
         {"worst", of_removal(group.worst)}});
  }
  const MatchDepths& match = explanation.match;
  return {{"match",
           {{"lookup", match.lookup},
            {"content", match.content},
            {"attention", match.attention},
            {"reused", match.reused}}},
          {"groups", groups}};
}

}  // namespace slackwater::cache
