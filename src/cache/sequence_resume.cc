// Suspend and resume.

#include <algorithm>
#include <array>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

using device::Event;
using device::EventStatus;

// More of some pool in use than a sequence that grows may find: it would come back only to be
// suspended again.
Result<void> CacheCore::check_gate() const {
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const LayerGroupId group(static_cast<std::int32_t>(g));
    const storage::PoolStats pool = store_->pool_stats(Tier::kDevice, group);
    const std::int32_t unavailable =
        pool.num_slots - pool.num_free -
        residency_->num_evictable(Tier::kDevice, store_->pool_group(Tier::kDevice, group));
    const double share = static_cast<double>(unavailable) / std::max(1, pool.num_slots);
    if (share > config_.max_util_for_resume) {
      return make_error(ErrorCode::kResourceExhausted,
                        "{} of {} device slots of layer group '{}' are locked, more than the share "
                        "{} up to which a sequence resumes",
                        unavailable, pool.num_slots, groups_.group(group).name,
                        config_.max_util_for_resume);
    }
  }
  return {};
}

bool CacheCore::is_lost(const PageRun& run, std::size_t index) const {
  return index >= run.pages.size() || is_null(run.pages[index]) ||
         (run.may_be_lost && store_->ready(run.pages[index]).status() == EventStatus::kFailed);
}

// Whether something that the sequence needs is not there any more.
bool CacheCore::has_lost_pages(SequenceState& sequence) {
  if (SLACKWATER_MUTANT(lost_page_is_resumed)) return false;
  if (sequence.is_damaged) return true;
  for (NodeIndex index = sequence.leaf; !tree_->node(index).is_root();
       index = tree_->node(index).parent) {
    settle(index);
    if (tree_->node(index).is_broken) return true;
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const SequenceGroup& group = sequence.groups[g];
    if (!kind(g).has_block_pages()) {
      // At the end the state may have become a snapshot.
      if (sequence.was_resumed && !sequence.is_finished && is_lost(group.run, 0)) return true;
      if (sequence.was_resumed || sequence.num_committed == 0) continue;
      const NodeIndex node =
          path_node(sequence.leaf, (sequence.num_committed - 1) / config_.tokens_per_block);
      const PageRun& run = node_run(node, g);
      const auto at =
          std::lower_bound(run.positions.begin(), run.positions.end(), sequence.num_committed);
      if (is_lost(run, static_cast<std::size_t>(at - run.positions.begin()))) return true;
      continue;
    }
    NodeIndex leaf = sequence.leaf;
    for (std::int64_t block = num_blocks(sequence.capacity) - 1; block >= 0; --block) {
      if (group.stale.contains(block)) {
        block = group.stale.begin;
        continue;
      }
      if (block >= sequence.num_path_blocks) {
        if (is_lost(group.run, static_cast<std::size_t>(block - group.first_block))) return true;
        continue;
      }
      // Full attention is whole where no node of the path is broken.
      if (kind(g).needs_every_block()) break;
      leaf = path_node(leaf, block);
      const auto i = static_cast<std::size_t>(block - tree_->node(leaf).first_block);
      if (is_lost(node_run(leaf, g), i)) return true;
    }
  }
  return false;
}

// Everything the sequence needs but what is only copied at the first resume.
void CacheCore::pin_all(SequenceState& sequence, Pins change, const Event& last_use) {
  const bool has_source = has_partial_source(sequence);
  const std::int64_t blocks = sequence.num_path_blocks - (has_source ? 1 : 0);
  pin_path(has_source ? tree_->node(sequence.leaf).parent : sequence.leaf, change, last_use);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    SequenceGroup& group = sequence.groups[g];
    if (kind(g).has_block_pages() && !kind(g).needs_every_block()) {
      pin_blocks(sequence, g, blocks, change, last_use);
    }
    if (!last_use.is_done()) {
      const std::array<Event, 2> both = {group.run.last_use, last_use};
      group.run.last_use = device::merge(both);
    }
    residency_->pin_whole(sequence_key(sequence, g), group.run, change);
  }
}

void CacheCore::gather_run(const RunKey& key, const PageRun& run,
                           std::vector<Residency::PageRef>& cold) {
  if (run.num_on[index_of(Tier::kDevice)] == run.num_pages()) return;
  for (std::size_t i = 0; i < run.pages.size(); ++i) {
    if (is_null(run.pages[i]) || store_->tier(run.pages[i]) == Tier::kDevice) continue;
    if (run.pins_of(i).locks > 0) cold.push_back({key, run.pages[i], i});
  }
}

// What is locked and not on the device, and what is to be copied from the disk.
void CacheCore::gather_cold(SequenceState& sequence, std::vector<Residency::PageRef>& cold) {
  const bool has_source = has_partial_source(sequence);
  NodeIndex index = has_source ? tree_->node(sequence.leaf).parent : sequence.leaf;
  for (; !tree_->node(index).is_root(); index = tree_->node(index).parent) {
    for (std::size_t g = 0; g < num_groups(); ++g) {
      if (!kind(g).has_block_pages()) continue;
      gather_run(node_key(index, g), node_run(index, g), cold);
    }
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    gather_run(sequence_key(sequence, g), sequence.groups[g].run, cold);
  }
  if (sequence.was_resumed) return;
  const std::int64_t end = sequence.num_committed;
  for (std::size_t g = 0; g < num_groups() && end > 0; ++g) {
    const NodeIndex node = path_node(sequence.leaf, (end - 1) / config_.tokens_per_block);
    const PageRun& run = node_run(node, g);
    std::size_t i = 0;
    if (!kind(g).has_block_pages()) {
      i = static_cast<std::size_t>(
          std::lower_bound(run.positions.begin(), run.positions.end(), end) -
          run.positions.begin());
    } else if (!has_source) {
      continue;
    }
    if (i < run.pages.size() && !is_null(run.pages[i]) &&
        store_->tier(run.pages[i]) == Tier::kDisk) {
      cold.push_back({node_key(node, g), run.pages[i], i});
    }
  }
}

// One state per recurrent group, and one page per group with a page in the block that is matched
// in part.
std::vector<std::int32_t> CacheCore::first_resume_needs(const SequenceState& sequence) {
  std::vector<std::int32_t> needed(num_groups());
  if (sequence.was_resumed) return needed;
  const std::int64_t block = sequence.num_committed / config_.tokens_per_block;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const bool copies_block = has_partial_source(sequence) && kind(g).has_block_pages() &&
                              !sequence.groups[g].stale.contains(block);
    if (kind(g).has_block_pages() && !copies_block) continue;
    ++needed[g];
  }
  return needed;
}

// A page of its own with the bytes of another one. There is room for it.
Result<PageId> CacheCore::copy_of(const RunKey& key, std::size_t index) {
  const PageId source = find_run(key)->pages[index];
  SLACKWATER_ASSIGN_OR_RETURN(const PageId copy, store_->allocate(LayerGroupId(key.group)));
  const Result<void> copied = store_->copy(source, copy);
  if (copied.has_value()) return copy;
  store_->release(copy);
  return tl::unexpected<Error>(copied.error());
}

// The first resume: a state of its own per recurrent group, and a page of its own for the block
// that is matched in part, because it will be written to.
Result<void> CacheCore::copy_sources(SequenceState& sequence) {
  const std::int64_t end = sequence.num_committed;
  const std::int64_t block = end / config_.tokens_per_block;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    SequenceGroup& group = sequence.groups[g];
    const LayerGroupId id(static_cast<std::int32_t>(g));
    std::optional<PageId> own;
    if (!kind(g).has_block_pages()) {
      if (end == 0) {
        SLACKWATER_ASSIGN_OR_RETURN(own, store_->allocate(id));
      } else {
        const NodeIndex node = path_node(sequence.leaf, (end - 1) / config_.tokens_per_block);
        const PageRun& run = node_run(node, g);
        const auto at = std::lower_bound(run.positions.begin(), run.positions.end(), end);
        SLACKWATER_ASSIGN_OR_RETURN(
            own, copy_of(node_key(node, g), static_cast<std::size_t>(at - run.positions.begin())));
      }
    } else if (has_partial_source(sequence) && !group.stale.contains(block)) {
      SLACKWATER_ASSIGN_OR_RETURN(own, copy_of(node_key(sequence.leaf, g), 0));
    }
    if (!own.has_value()) continue;
    group.run.pages.push_back(*own);
    residency_->page_added(sequence_key(sequence, g), group.run, group.run.pages.size() - 1);
  }
  return {};
}

// What is copied from at the first resume: snapshots, and the pages of a block that is matched in
// part. Locked for as long as it takes, so that they stay where they are.
void CacheCore::pin_sources(SequenceState& sequence, Pins change) {
  const std::int64_t end = sequence.num_committed;
  if (sequence.was_resumed || end == 0) return;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) {
      pin_snapshot(sequence.leaf, g, end, change, {});
    } else if (!has_partial_source(sequence)) {
      continue;
    } else if (kind(g).needs_every_block()) {
      residency_->pin_whole(node_key(sequence.leaf, g), node_run(sequence.leaf, g), change);
    } else if (!sequence.groups[g].stale.contains(end / config_.tokens_per_block)) {
      pin_block(sequence.leaf, g, end / config_.tokens_per_block, change, {});
    }
  }
}

// What was copied from is let go; the path ends before the block that is matched in part.
void CacheCore::leave_sources(SequenceState& sequence) {
  pin_sources(sequence, {-1, 0});
  if (!has_partial_source(sequence)) return;
  const NodeIndex source = sequence.leaf;
  --tree_->node(source).users.holds;
  to_tidy_.push_back(source);
  sequence.leaf = tree_->node(source).parent;
  --sequence.num_path_blocks;
}

// Whether a page is the one it should be: the store's word against the owner's.
Result<void> CacheCore::verify_page(const RunKey& key, const PageRun& run, std::size_t index) {
  const PageId page = run.pages[index];
  const bool is_node = key.owner == RunKey::Owner::kNode;
  if (store_->ready(page).status() == EventStatus::kFailed) {
    return make_error(ErrorCode::kDataLoss, "the bytes of {} are lost",
                      certificate(key, index).describe());
  }
  if (SLACKWATER_MUTANT(certificate_is_not_looked_at)) return {};
  if (is_node && run.certificates[index] == store_->certificate(page)) return {};
  const Result<void> checked = store_->verify(page, certificate(key, index));
  // Its bytes may have been lost since: that is no mismatch.
  const bool is_mismatch = !checked.has_value() && checked.error().code() == ErrorCode::kDataLoss;
  if (is_mismatch && book_ != nullptr) book_->certificate_failed(run.group);
  if (checked.has_value() || !is_node) return checked;
  // Nobody finds it again: it is gone at once, unless somebody else reads it.
  if (kind(key.group).needs_every_block()) {
    break_node(NodeIndex(key.index), static_cast<std::int32_t>(index));
  } else if (run.pins_of(index).locks == 1) {
    lose_page(key, index);
  }
  return checked;
}

// Whether every page is the one it should be. Pages of its own have no certificate until they go
// to disk.
Result<void> CacheCore::verify(SequenceState& sequence) {
  for (NodeIndex index = sequence.leaf; !tree_->node(index).is_root();
       index = tree_->node(index).parent) {
    const TreeNode& node = tree_->node(index);
    for (std::size_t g = 0; g < num_groups(); ++g) {
      if (!kind(g).has_block_pages()) continue;
      for (std::size_t i = 0; i < node.runs[g].pages.size(); ++i) {
        if (is_null(node.runs[g].pages[i]) || node.runs[g].pins_of(i).locks == 0) continue;
        SLACKWATER_RETURN_IF_ERROR(verify_page(node_key(index, g), node.runs[g], i));
      }
    }
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const PageRun& run = sequence.groups[g].run;
    for (std::size_t i = 0; i < run.pages.size(); ++i) {
      if (is_null(run.pages[i]) || store_->certificate(run.pages[i]) == Digest128()) continue;
      SLACKWATER_RETURN_IF_ERROR(verify_page(sequence_key(sequence, g), run, i));
      // It will be written to.
      store_->note_write(run.pages[i], {});
    }
  }
  return {};
}

// The states that a sequence begins with.
Result<void> CacheCore::verify_snapshots(SequenceState& sequence) {
  const std::int64_t end = sequence.num_committed;
  for (std::size_t g = 0; g < num_groups() && end > 0; ++g) {
    if (kind(g).has_block_pages()) continue;
    const NodeIndex node = path_node(sequence.leaf, (end - 1) / config_.tokens_per_block);
    const PageRun& run = node_run(node, g);
    const auto at = std::lower_bound(run.positions.begin(), run.positions.end(), end);
    SLACKWATER_RETURN_IF_ERROR(
        verify_page(node_key(node, g), run, static_cast<std::size_t>(at - run.positions.begin())));
  }
  return {};
}

void CacheCore::set_slot(SequenceGroup& group, std::int64_t block, SlotId slot) {
  const auto at = static_cast<std::size_t>(block);
  if (group.slots.size() == at) {
    group.slots.push_back(slot);
  } else {
    if (group.slots.size() < at) group.slots.resize(at + 1, kNoSlot);
    group.slots[at] = slot;
  }
  if (at < group.table.size()) group.table[at] = slot;
}

void CacheCore::trim_table(SequenceGroup& group, std::int64_t num_blocks) {
  const auto size = static_cast<std::size_t>(num_blocks);
  if (!group.table.empty() && group.slots.size() > size) {
    const std::size_t end = std::min(group.table.size(), group.slots.size());
    for (std::size_t i = size; i < end; ++i) group.table[i] = kNoSlot;
  }
  group.slots.resize(size, kNoSlot);
}

// The slots of everything that is locked, and the events that say when it is there.
void CacheCore::build_tables(SequenceState& sequence, std::vector<Event>& arriving) {
  const auto bind = [&](SequenceGroup& group, std::int64_t block, PageId page) {
    set_slot(group, block, store_->slot(page));
    const Event& ready = store_->ready(page);
    if (ready.is_null() || ready.status() == EventStatus::kSucceeded) return;
    const bool is_new =
        arriving.empty() || device::witnessed([&] { return arriving.back() != ready; });
    if (is_new) arriving.push_back(ready);
  };
  for (std::size_t g = 0; g < num_groups(); ++g) {
    SequenceGroup& group = sequence.groups[g];
    const std::int64_t first = kind(g).has_block_pages() ? group.first_block : 0;
    trim_table(group, kind(g).has_block_pages() ? num_blocks(sequence.capacity) : 1);
    for (std::size_t i = 0; i < group.run.pages.size(); ++i) {
      if (is_null(group.run.pages[i])) continue;
      bind(group, first + static_cast<std::int64_t>(i), group.run.pages[i]);
    }
    if (!kind(g).has_block_pages()) continue;
    for (NodeIndex index = sequence.leaf; !tree_->node(index).is_root();
         index = tree_->node(index).parent) {
      const TreeNode& node = tree_->node(index);
      const PageRun& run = node.runs[g];
      for (std::size_t i = 0; i < run.pages.size(); ++i) {
        const std::int64_t block = node.first_block + static_cast<std::int64_t>(i);
        if (is_null(run.pages[i]) || group.stale.contains(block)) continue;
        bind(group, block, run.pages[i]);
      }
    }
  }
}

// Everything on the device, or nothing has changed but where pages lie that nobody uses.
Result<void> CacheCore::bring_back(SequenceState& sequence) {
  std::vector<Residency::PageRef> cold;
  gather_cold(sequence, cold);
  SLACKWATER_RETURN_IF_ERROR(residency_->recall(cold, first_resume_needs(sequence)));
  SLACKWATER_RETURN_IF_ERROR(verify(sequence));
  if (sequence.was_resumed) return {};
  SLACKWATER_RETURN_IF_ERROR(verify_snapshots(sequence));
  const Result<void> copied = copy_sources(sequence);
  if (copied.has_value()) return {};
  for (std::size_t g = 0; g < num_groups(); ++g) {
    PageRun& run = sequence.groups[g].run;
    for (std::size_t i = run.pages.size(); i-- > 0;) release_page(sequence_key(sequence, g), i);
    run.pages.clear();
  }
  return copied;
}

Result<Event> CacheCore::resume(SequenceState& sequence, device::Stream& stream) {
  const WriteLock lock(mutex_);
  if (sequence.status != SequenceStatus::kSuspended) {
    return make_error(ErrorCode::kFailedPrecondition, "resume of a sequence that is {}",
                      to_string(sequence.status));
  }
  if (sequence.arrived.status() == EventStatus::kFailed) sequence.is_damaged = true;
  const bool has_lost = has_lost_pages(sequence);
  clean_up();
  if (has_lost) {
    return make_error(ErrorCode::kDataLoss,
                      "pages of request {} are lost; close it and compute it again",
                      sequence.request.value());
  }
  SLACKWATER_RETURN_IF_ERROR(check_gate());
  residency_->begin_attempt();
  pin_all(sequence, {1, -1}, {});
  pin_sources(sequence, {1, -1});
  const Result<void> back = bring_back(sequence);
  if (!back.has_value()) {
    pin_all(sequence, {-1, 1}, {});
    pin_sources(sequence, {-1, 1});
    residency_->end_attempt();
    clean_up();
    return tl::unexpected<Error>(back.error());
  }
  if (sequence.is_counted && !sequence.was_resumed) count_first_resume(sequence);
  leave_sources(sequence);
  sequence.was_resumed = true;
  sequence.status = SequenceStatus::kActive;
  sequence.stream = &stream;
  stream.wait(sequence.last_use);
  // What was computed since the resume before depends on that one too.
  std::vector<Event> arriving;
  if (!sequence.arrived.is_done()) arriving.push_back(sequence.arrived);
  build_tables(sequence, arriving);
  for (const Event& event : arriving) {
    if (!SLACKWATER_MUTANT(resume_skips_wait)) stream.wait(event);
  }
  sequence.arrived = device::merge(arriving);
  clean_up();
  return sequence.arrived;
}

Result<void> CacheCore::suspend(SequenceState& sequence) {
  const WriteLock lock(mutex_);
  if (sequence.status != SequenceStatus::kActive) {
    return make_error(ErrorCode::kFailedPrecondition, "suspend of a sequence that is {}",
                      to_string(sequence.status));
  }
  const Event last_use = record(sequence);
  if (sequence.arrived.status() == EventStatus::kFailed) sequence.is_damaged = true;
  counters_.snapshots_skipped += std::ssize(sequence.snapshots);
  release_snapshots(sequence, last_use);
  pin_all(sequence, {-1, 1}, last_use);
  sequence.last_use = last_use;
  for (SequenceGroup& group : sequence.groups) {
    trim_table(group, 0);
  }
  ++sequence.round;
  sequence.status = SequenceStatus::kSuspended;
  clean_up();
  return {};
}

}  // namespace slackwater::cache
