// Pages that come to a warmer tier ahead of a resume or a match.

#include <algorithm>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

using device::EventStatus;

Result<void> CacheCore::check_prefetch_tier(Tier tier) const {
  if (store_->has_tier(tier)) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "prefetch to the {}, which has no bytes; name a tier that is configured",
                    storage::to_string(tier));
}

// Pages of the path that the sequence needs and that lie colder than a tier; the block that is
// matched in part among them.
void CacheCore::gather_path(SequenceState& sequence, Tier tier,
                            std::vector<Residency::PageRef>& colder) {
  for (NodeIndex index = sequence.leaf; !tree_->node(index).is_root();
       index = tree_->node(index).parent) {
    const TreeNode& node = tree_->node(index);
    for (std::size_t g = 0; g < num_groups(); ++g) {
      if (!kind(g).has_block_pages()) continue;
      const PageRun& run = node.runs[g];
      for (std::size_t i = 0; i < run.pages.size(); ++i) {
        const std::int64_t block = node.first_block + static_cast<std::int64_t>(i);
        if (is_null(run.pages[i]) || store_->tier(run.pages[i]) <= tier) continue;
        if (!sequence.groups[g].stale.contains(block)) {
          colder.push_back({node_key(index, g), run.pages[i], i});
        }
      }
    }
  }
}

// All that the next resume needs and that lies colder than a tier: the path, what is its own, and
// the snapshots that its states begin with.
void CacheCore::gather_colder(SequenceState& sequence, Tier tier,
                              std::vector<Residency::PageRef>& colder) {
  gather_path(sequence, tier, colder);
  const std::int64_t end = sequence.num_committed;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const PageRun& own = sequence.groups[g].run;
    for (std::size_t i = 0; i < own.pages.size(); ++i) {
      if (is_null(own.pages[i]) || store_->tier(own.pages[i]) <= tier) continue;
      colder.push_back({sequence_key(sequence, g), own.pages[i], i});
    }
    if (kind(g).has_block_pages() || sequence.was_resumed || end == 0) continue;
    if (SLACKWATER_MUTANT(prefetch_forgets_the_state)) continue;
    const NodeIndex node = path_node(sequence.leaf, (end - 1) / config_.tokens_per_block);
    const PageRun& run = node_run(node, g);
    const auto at = std::lower_bound(run.positions.begin(), run.positions.end(), end);
    const auto i = static_cast<std::size_t>(at - run.positions.begin());
    if (store_->tier(run.pages[i]) > tier) colder.push_back({node_key(node, g), run.pages[i], i});
  }
}

// All of it comes up, or nothing has changed. Locked meanwhile, so that what is there already does
// not leave for what comes.
Result<void> CacheCore::bring_up(SequenceState& sequence, Tier tier, Pins pins) {
  const Pins lock = SLACKWATER_MUTANT(prefetch_evicts_its_own) ? Pins() : pins;
  const Pins unlock = {-lock.locks, -lock.holds};
  if (!SLACKWATER_MUTANT(refused_prefetch_is_a_use)) residency_->begin_attempt();
  pin_all(sequence, lock, {});
  pin_sources(sequence, lock);
  std::vector<Residency::PageRef> colder;
  gather_colder(sequence, tier, colder);
  const Result<void> brought = residency_->prefetch(colder, tier);
  pin_all(sequence, unlock, {});
  pin_sources(sequence, unlock);
  residency_->end_attempt();
  clean_up();
  return brought;
}

Result<void> CacheCore::prefetch(SequenceState& sequence, Tier tier) {
  const WriteLock lock(mutex_);
  if (sequence.status != SequenceStatus::kSuspended) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "prefetch of a sequence that is {}; its pages are where it needs them",
                      to_string(sequence.status));
  }
  SLACKWATER_RETURN_IF_ERROR(check_prefetch_tier(tier));
  if (sequence.arrived.status() == EventStatus::kFailed) sequence.is_damaged = true;
  const bool has_lost = has_lost_pages(sequence);
  clean_up();
  if (has_lost) {
    return make_error(ErrorCode::kDataLoss,
                      "pages of request {} are lost; close it and compute it again",
                      sequence.request.value());
  }
  return bring_up(sequence, tier, {1, -1});
}

// For a sequence that nobody else ever sees: it holds nothing, and has no pages of its own.
Result<MatchDepths> CacheCore::prefetch(const ReuseScope& scope, std::span<const TokenId> prompt,
                                        Tier tier) {
  const WriteLock lock(mutex_);
  SLACKWATER_RETURN_IF_ERROR(check_prefetch_tier(tier));
  PrefixMatch match = matcher_->find(scope, prompt);
  bool is_any_lost = false;
  for (const MatchStep& step : match.steps) is_any_lost |= settle(step.node);
  if (is_any_lost) match = matcher_->find(scope, prompt);
  const std::int64_t reused = match.depths.reused;
  if (reused == 0) {
    clean_up();
    return match.depths;
  }
  SequenceState visitor;
  visitor.scope = scope;
  visitor.leaf = realize(match, reused);
  visitor.num_path_blocks = num_blocks(reused);
  visitor.num_committed = visitor.history = visitor.capacity = reused;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    SequenceGroup& group = visitor.groups.emplace_back(tree_->memory());
    group.run.group = LayerGroupId(static_cast<std::int32_t>(g));
    group.first_block = reused / config_.tokens_per_block;
    group.stale = kind(g).stale_blocks(reused);
  }
  SLACKWATER_RETURN_IF_ERROR(bring_up(visitor, tier, {1, 0}));
  return match.depths;
}

}  // namespace slackwater::cache
