// States that become snapshots while their sequence goes on.

#include <array>
#include <vector>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

using device::Event;

// New pages with what the states of some groups hold once `written` has succeeded; all or none.
bool CacheCore::copy_to_new_states(SequenceState& sequence, std::span<const std::size_t> groups,
                                   std::vector<PageId>& copies) {
  std::vector<std::int32_t> needed(num_groups());
  for (const std::size_t g : groups) needed[g] = 1;
  if (!residency_->make_room(needed).has_value()) return false;
  for (const std::size_t g : groups) {
    const Result<PageId> copy = store_->allocate(LayerGroupId(static_cast<std::int32_t>(g)));
    SLACKWATER_CHECK(copy.has_value(), "a page that there was room for: {}", copy.error().text());
    copies.push_back(*copy);
    if (store_->copy(sequence.groups[g].run.pages[0], *copy).has_value()) continue;
    // The states have been lost meanwhile: that is for others to find out.
    for (const PageId page : copies) store_->release(page);
    return false;
  }
  return true;
}

// The states of the sequence, which are of the end, become snapshots of a node, and the sequence
// goes on in copies of them. The page that was written is the one that others read: should the
// copy fail, only the sequence has lost something. False where there is no room, or nothing to do.
bool CacheCore::hand_over_states(SequenceState& sequence, NodeIndex node) {
  const std::int64_t end = sequence.num_committed;
  std::vector<std::size_t> groups;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages() && !has_snapshot(node, g, end)) groups.push_back(g);
  }
  std::vector<PageId> copies;
  if (groups.empty() || !copy_to_new_states(sequence, groups, copies)) return false;
  const Event last_use = record(sequence);
  std::vector<Event> arriving = {sequence.arrived};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    SequenceGroup& own = sequence.groups[groups[i]];
    const RunKey key = sequence_key(sequence, groups[i]);
    if (sequence.is_counted) count_copy(sequence, groups[i], own.run.pages[0]);
    const PageId state = residency_->take_page(key, own.run, 0);
    own.run.pages[0] = copies[i];
    residency_->page_added(key, own.run, 0);
    if (!SLACKWATER_MUTANT(handed_over_state_keeps_slot)) {
      set_slot(own, 0, store_->slot(copies[i]));
    }
    const Event copied = store_->ready(copies[i]);
    if (!SLACKWATER_MUTANT(handed_over_state_is_not_awaited)) sequence.stream->wait(copied);
    arriving.push_back(copied);
    store_->note_read(state, last_use);
    const std::array<Event, 2> uses = {last_use, copied};
    put_snapshot(node, groups[i], end, state, {sequence.written, device::merge(uses)});
  }
  sequence.arrived = device::merge(arriving);
  return true;
}

}  // namespace slackwater::cache
