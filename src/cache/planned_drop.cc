// Pages that somebody says will not be needed again.

#include "slackwater/cache/planned_drop.h"

#include <algorithm>
#include <utility>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

PlannedDrop::PlannedDrop(PlannedDrop&& other) noexcept
    : core_(std::exchange(other.core_, nullptr)), plan_(other.plan_) {}

PlannedDrop& PlannedDrop::operator=(PlannedDrop&& other) noexcept {
  if (this == &other) return *this;
  if (core_ != nullptr) core_->drop(plan_);
  core_ = std::exchange(other.core_, nullptr);
  plan_ = other.plan_;
  return *this;
}

PlannedDrop::~PlannedDrop() {
  if (core_ != nullptr) core_->drop(plan_);
}

Result<void> PlannedDrop::drop() {
  if (core_ == nullptr) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a planned drop that has already been dropped, or moved away");
  }
  std::exchange(core_, nullptr)->drop(plan_);
  return {};
}

// The node that holds a committed block: of the one at the end whichever branch begins with it.
NodeIndex CacheCore::committed_node(const SequenceState& sequence, std::int64_t block) {
  const std::int64_t end = (block + 1) * config_.tokens_per_block;
  return node_of_position(sequence, std::min(end, sequence.num_committed));
}

// What a window still needs at the end. False where a page is missing, or too short.
bool CacheCore::collect_window(const SequenceState& sequence, std::size_t group,
                               std::vector<DropPlans::Place>& places) {
  const std::int64_t end = sequence.num_committed;
  for (std::int64_t block = kind(group).stale_blocks(end).end; block < num_blocks(end); ++block) {
    const NodeIndex index = committed_node(sequence, block);
    if (index == kNoNode) return false;
    const TreeNode& node = tree_->node(index);
    const auto i = static_cast<std::int32_t>(block - node.first_block);
    const std::int64_t needed =
        std::min<std::int64_t>(config_.tokens_per_block, end - block * config_.tokens_per_block);
    const LayerGroupId id(static_cast<std::int32_t>(group));
    if (matcher_->usable_coverage(node, id, i) < needed) return false;
    places.push_back({node.runs[group].pages[static_cast<std::size_t>(i)], index, group});
  }
  return true;
}

// The snapshot at the end. False where there is none.
bool CacheCore::collect_state(const SequenceState& sequence, std::size_t group,
                              std::vector<DropPlans::Place>& places) {
  const std::int64_t end = sequence.num_committed;
  const NodeIndex index = node_of_position(sequence, end);
  const PageRun& run = node_run(index, group);
  const auto at = std::lower_bound(run.positions.begin(), run.positions.end(), end);
  if (at == run.positions.end() || *at != end) return false;
  const auto i = static_cast<std::size_t>(at - run.positions.begin());
  if (is_lost_snapshot(run, i)) return false;
  places.push_back({run.pages[i], index, group});
  return true;
}

Result<std::optional<std::uint64_t>> CacheCore::plan_drop(SequenceState& sequence) {
  const WriteLock lock(mutex_);
  if (sequence.is_committing) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "plan_drop of a sequence that may commit more than its {} tokens; stop "
                      "committing first",
                      sequence.num_committed);
  }
  std::vector<DropPlans::Place> places;
  bool is_whole = node_of_position(sequence, sequence.num_committed) != kNoNode;
  for (std::size_t g = 0; g < num_groups() && is_whole; ++g) {
    if (!kind(g).has_block_pages()) {
      is_whole = collect_state(sequence, g, places);
    } else if (!kind(g).needs_every_block()) {
      is_whole = collect_window(sequence, g, places);
    }
  }
  // Looking at the end may have shown that a page is lost.
  is_whole &= std::all_of(places.begin(), places.end(), [&](const DropPlans::Place& place) {
    return store_->is_alive(place.page);
  });
  std::optional<std::uint64_t> plan;
  if (is_whole) plan = plans_.add(places);
  clean_up();
  return plan;
}

void CacheCore::drop(std::uint64_t plan) {
  logged([&](LogWriter& log) { log.start(LoggedKind::kDrop, 0, 0, plan); },
         [&] { apply_drop(plan); });
}

// What nobody holds goes at once; what somebody holds stays.
void CacheCore::apply_drop(std::uint64_t plan) {
  const WriteLock lock(mutex_);
  const RemovalScope scope(removal_cause_, RemovalCause::kPlannedDrop);
  for (const DropPlans::Place& place : plans_.take(plan)) {
    const RunKey key = node_key(place.node, place.group);
    const PageRun& run = node_run(place.node, place.group);
    const auto at = std::find(run.pages.begin(), run.pages.end(), place.page);
    SLACKWATER_CHECK(at != run.pages.end(), "a planned page is not in node {}", place.node.value());
    const auto i = static_cast<std::size_t>(at - run.pages.begin());
    if (run.pins_of(i) != Pins() && !SLACKWATER_MUTANT(plan_drops_held_page)) continue;
    residency_->note_dropped(run.group, store_->tier(place.page));
    drop_page(key, i);
  }
  clean_up();
}

// Pages that were planned may have come to a node.
void CacheCore::note_moved(NodeIndex node) {
  if (SLACKWATER_MUTANT(plan_forgets_a_split)) return;
  for (const PageRun& run : tree_->node(node).runs) {
    for (const PageId page : run.pages) {
      if (!is_null(page)) plans_.note_moved(page, node);
    }
  }
}

// Each page that is named is in the tree, where it is said to be.
void CacheCore::audit_plans() const {
  plans_.check_invariants();
  plans_.for_each([&](const DropPlans::Place& place) {
    const TreeNode& node = tree_->node(place.node);
    SLACKWATER_CHECK(node.is_used && !node.is_root(), "a planned page in node {}, which is gone",
                     place.node.value());
    const auto& pages = node.runs[place.group].pages;
    SLACKWATER_CHECK(std::find(pages.begin(), pages.end(), place.page) != pages.end(),
                     "planned page {} is not in node {}", place.page.index, place.node.value());
    SLACKWATER_CHECK(!kind(place.group).needs_every_block(),
                     "a page of group {} is planned, which needs all", place.group);
  });
}

}  // namespace slackwater::cache
