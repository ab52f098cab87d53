// What must hold whenever no call is under way.

#include <algorithm>
#include <map>
#include <set>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"

namespace slackwater::cache {

void CacheCore::audit_node(NodeIndex index) const {
  const TreeNode& node = tree_->node(index);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const PageRun& run = node.runs[g];
    residency_->audit_run(node_key(index, g), run);
    if (kind(g).has_block_pages()) {
      SLACKWATER_CHECK(std::ssize(run.pages) == node.num_blocks(), "node {}: {} pages of {} blocks",
                       index.value(), run.pages.size(), node.num_blocks());
    }
    SLACKWATER_CHECK(!run.is_pinned_by_page || run.pins.size() == run.pages.size(),
                     "node {}: {} pins of {} pages", index.value(), run.pins.size(),
                     run.pages.size());
    if (kind(g).needs_every_block()) {
      SLACKWATER_CHECK(run.whole == node.users, "node {}: {} locks of {} users", index.value(),
                       run.whole.locks, node.users.locks);
      SLACKWATER_CHECK(run.num_pages() == node.num_blocks() || node.is_broken,
                       "node {}: {} pages of {} blocks in a group that needs all", index.value(),
                       run.num_pages(), node.num_blocks());
    }
    SLACKWATER_CHECK(std::is_sorted(run.positions.begin(), run.positions.end()),
                     "node {}: snapshots out of order", index.value());
    for (const std::int64_t position : run.positions) {
      SLACKWATER_CHECK(tree_->first_token(node) < position && position <= tree_->end_token(node),
                       "node {}: a snapshot at {} outside of it", index.value(), position);
    }
  }
  SLACKWATER_CHECK(0 <= node.num_written && node.num_written <= node.num_blocks(),
                   "node {}: {} blocks of {} written", index.value(), node.num_written,
                   node.num_blocks());
}

// Snapshots of a node that lie inside its first block; each is found by its tokens.
std::size_t CacheCore::audit_states(NodeIndex index) const {
  if (first_recurrent_ == num_groups()) return 0;
  std::size_t count = 0;
  for (const std::int64_t position : tree_->node(index).runs[first_recurrent_].positions) {
    const auto key = branch_key(index, first_recurrent_, position);
    if (!key.has_value()) continue;
    SLACKWATER_CHECK(states_.contains(*key, index), "node {}: nobody finds the snapshot at {}",
                     index.value(), position);
    ++count;
  }
  return count;
}

void CacheCore::audit_sequence(const SequenceState& sequence) const {
  SLACKWATER_CHECK(0 <= sequence.num_committed && sequence.num_committed <= sequence.history &&
                       sequence.history <= sequence.capacity,
                   "I1: {} committed, {} history, {} capacity", sequence.num_committed,
                   sequence.history, sequence.capacity);
  const bool is_active = sequence.status == SequenceStatus::kActive;
  const TreeNode& leaf = tree_->node(sequence.leaf);
  SLACKWATER_CHECK(leaf.is_used && leaf.first_block + leaf.num_blocks() == sequence.num_path_blocks,
                   "I2: the path ends at block {}, not at {}", leaf.first_block + leaf.num_blocks(),
                   sequence.num_path_blocks);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const SequenceGroup& own = sequence.groups[g];
    residency_->audit_run(sequence_key(sequence, g), own.run);
    SLACKWATER_CHECK(own.run.whole == user_pins(sequence), "I2: {} locks and {} holds of its own",
                     own.run.whole.locks, own.run.whole.holds);
    audit_own_pages(sequence, g);
    if (!is_active) {
      SLACKWATER_CHECK(own.slots.empty(), "I1: an index table of {} while suspended",
                       own.slots.size());
      continue;
    }
    if (!kind(g).has_block_pages()) continue;
    SLACKWATER_CHECK(std::ssize(own.slots) == num_blocks(sequence.capacity),
                     "I1: {} entries for {} tokens", own.slots.size(), sequence.capacity);
    for (std::int64_t block = 0; block < std::ssize(own.slots); ++block) {
      PageId page;
      if (block < sequence.num_path_blocks) {
        const NodeIndex node = path_node(sequence.leaf, block);
        page = tree_->node(node)
                   .runs[g]
                   .pages[static_cast<std::size_t>(block - tree_->node(node).first_block)];
      } else {
        page = own.run.pages[static_cast<std::size_t>(block - own.first_block)];
      }
      const SlotId expected =
          own.stale.contains(block) || is_null(page) ? kNoSlot : store_->slot(page);
      SLACKWATER_CHECK(own.slots[static_cast<std::size_t>(block)] == expected,
                       "I1: the entry of block {} is {}, its page is in {}", block,
                       own.slots[static_cast<std::size_t>(block)].value(), expected.value());
      SLACKWATER_CHECK(own.stale.contains(block) || !is_null(page) || own.run.group.value() < 0,
                       "I2: block {} of group {} has no page", block, g);
    }
  }
}

// Every block past the path that it needs has a page, and so has its state.
void CacheCore::audit_own_pages(const SequenceState& sequence, std::size_t group) const {
  const SequenceGroup& own = sequence.groups[group];
  if (sequence.is_damaged || !sequence.was_resumed) return;
  if (!kind(group).has_block_pages()) {
    const bool has_state = !own.run.pages.empty() && !is_null(own.run.pages[0]);
    SLACKWATER_CHECK(has_state || sequence.is_finished,
                     "I2: a sequence without a state in group {}", group);
    if (sequence.status != SequenceStatus::kActive) return;
    const SlotId expected = has_state ? store_->slot(own.run.pages[0]) : kNoSlot;
    SLACKWATER_CHECK(own.slots.size() == 1 && own.slots[0] == expected,
                     "I1: {} entries for the state in {}", own.slots.size(), expected.value());
    return;
  }
  SLACKWATER_CHECK(own.first_block + std::ssize(own.run.pages) <=
                       std::max(own.first_block, num_blocks(sequence.capacity)),
                   "I2: {} pages from block {} on for a capacity of {}", own.run.pages.size(),
                   own.first_block, sequence.capacity);
  for (std::int64_t block = sequence.num_path_blocks; block < num_blocks(sequence.capacity);
       ++block) {
    SLACKWATER_CHECK(own.stale.contains(block) || !is_null(own_page(sequence, group, block)),
                     "I2: block {} of group {} has no page", block, group);
  }
}

// Adds the pins of a sequence to those of pages that are pinned one by one.
void CacheCore::count_page_pins(const SequenceState& sequence, PagePins& pins) const {
  const Pins more = user_pins(sequence);
  const auto add = [&](NodeIndex node, std::size_t group, std::size_t index) {
    std::vector<Pins>& of_run = pins[{node.value(), group}];
    of_run.resize(std::max(of_run.size(), index + 1));
    of_run[index].locks += more.locks;
    of_run[index].holds += more.holds;
  };
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).needs_every_block()) continue;
    if (!kind(g).has_block_pages()) {
      if (sequence.was_resumed || sequence.num_committed == 0) continue;
      const NodeIndex node =
          path_node(sequence.leaf, (sequence.num_committed - 1) / config_.tokens_per_block);
      const auto& positions = tree_->node(node).runs[g].positions;
      const auto at = std::lower_bound(positions.begin(), positions.end(), sequence.num_committed);
      add(node, g, static_cast<std::size_t>(at - positions.begin()));
      continue;
    }
    for (std::int64_t block = 0; block < sequence.num_path_blocks; ++block) {
      if (sequence.groups[g].stale.contains(block)) continue;
      const NodeIndex node = path_node(sequence.leaf, block);
      add(node, g, static_cast<std::size_t>(block - tree_->node(node).first_block));
    }
  }
}

// Who pins a page one by one is a sequence that needs it.
void CacheCore::audit_page_pins(NodeIndex index, const PagePins& pins) const {
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const PageRun& run = tree_->node(index).runs[g];
    if (!run.is_pinned_by_page) continue;
    const auto at = pins.find({index.value(), g});
    for (std::size_t i = 0; i < run.pins.size(); ++i) {
      const bool has_any = at != pins.end() && i < at->second.size();
      const Pins expected = has_any ? at->second[i] : Pins();
      SLACKWATER_CHECK(run.pins[i] == expected,
                       "node {}: page {} of group {} counts {} + {} pins, not {} + {}",
                       index.value(), i, g, run.pins[i].locks, run.pins[i].holds, expected.locks,
                       expected.holds);
    }
  }
}

// What is pending is never negative, and the totals are those of the store.
void CacheCore::audit_statistics() const {
  if (book_ == nullptr) return;
  book_->check_invariants(residency_->num_dropped());
  std::int64_t mismatches = 0;
  const CacheStatistics total = book_->total();
  for (const GroupStatistics& group : total.groups) {
    mismatches += group.certificate_failures;
  }
  SLACKWATER_CHECK(mismatches == total_counters().certificate_mismatches,
                   "{} certificate failures counted of {}", mismatches,
                   total_counters().certificate_mismatches);
  for (const SequenceState& sequence : sequences_) {
    for (const SequenceGroup& group : sequence.groups) {
      const GroupUse& use = group.pending;
      SLACKWATER_CHECK(
          use.pages_missed >= 0 && use.pages_recomputed >= 0 && use.pages_generated >= 0 &&
              use.pages_allocated >= use.pages_missed + use.pages_recomputed + use.pages_generated,
          "{} pages allocated: {} missed, {} recomputed, {} generated", use.pages_allocated,
          use.pages_missed, use.pages_recomputed, use.pages_generated);
    }
  }
}

void CacheCore::audit() const {
  const WriteLock lock(mutex_);
  tree_->check_invariants();
  std::map<std::uint32_t, Pins> users;
  std::int64_t num_pages = 0;
  std::vector<std::int32_t> num_pinned(num_groups());
  const auto count = [&](const PageRun& run) {
    num_pages += run.num_pages();
    for (std::size_t i = 0; i < run.pages.size(); ++i) {
      if (is_null(run.pages[i])) continue;
      if (run.pins_of(i) != Pins()) ++num_pinned[index_of(run.group)];
    }
  };
  PagePins page_pins;
  std::size_t num_open = 0;
  std::size_t num_branch_states = 0;
  for (const SequenceState& sequence : sequences_) {
    if (sequence.status == SequenceStatus::kClosed) continue;
    ++num_open;
    audit_sequence(sequence);
    count_page_pins(sequence, page_pins);
    const Pins pins = user_pins(sequence);
    for (NodeIndex node = sequence.leaf; node != kNoNode; node = tree_->node(node).parent) {
      users[node.value()].locks += pins.locks;
      users[node.value()].holds += pins.holds;
    }
    for (const SequenceGroup& group : sequence.groups) count(group.run);
    for (const ReservedSnapshot& snapshot : sequence.snapshots) {
      num_pages += std::count_if(snapshot.pages.begin(), snapshot.pages.end(),
                                 [](PageId page) { return !is_null(page); });
    }
  }
  tree_->for_each_node([&](NodeIndex node) {
    SLACKWATER_CHECK(tree_->node(node).users == users[node.value()], "node {} counts {} + {} users",
                     node.value(), tree_->node(node).users.locks, tree_->node(node).users.holds);
    if (tree_->node(node).is_root()) return;
    audit_node(node);
    audit_page_pins(node, page_pins);
    num_branch_states += audit_states(node);
    for (const PageRun& run : tree_->node(node).runs) count(run);
  });
  SLACKWATER_CHECK(num_branch_states == states_.size(), "{} snapshots within blocks, {} are found",
                   num_branch_states, states_.size());
  SLACKWATER_CHECK(num_open == num_open_, "{} sequences are open, {} counted", num_open, num_open_);
  audit_plans();
  residency_->check_invariants(num_pinned);
  if (events_ != nullptr) events_->check_invariants();
  store_->audit();
  audit_statistics();
  digests_.check_invariants();
  std::int64_t living = 0;
  for (const std::int64_t pages : store_->stats().pages) living += pages;
  SLACKWATER_CHECK(living == num_pages, "{} pages live, {} are somebody's", living, num_pages);
}

}  // namespace slackwater::cache
