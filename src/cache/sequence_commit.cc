// What a sequence makes reusable, and when.

#include <algorithm>
#include <array>
#include <utility>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

using device::Event;
using device::EventStatus;

Result<void> CacheCore::check_commit(const SequenceState& sequence, std::int64_t committed) const {
  if (sequence.status != SequenceStatus::kActive) {
    return make_error(ErrorCode::kFailedPrecondition, "commit of a sequence that is {}; resume it",
                      to_string(sequence.status));
  }
  if (!sequence.is_committing) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "commit after the end; {} tokens are committed", sequence.num_committed);
  }
  if (committed > sequence.capacity) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} committed tokens in a capacity of {}; resize first", committed,
                      sequence.capacity);
  }
  if (config_.commit_policy == CommitPolicy::kEndpointsOnly &&
      sequence.history != sequence.num_committed && sequence.history != committed) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "a commit up to {} with a history of {}: only the end of a commit is kept, so "
        "the history must be {} or {}",
        committed, sequence.history, sequence.num_committed, committed);
  }
  if (sequence.is_damaged) {
    return make_error(ErrorCode::kDataLoss,
                      "pages of request {} are lost; close it and compute it again",
                      sequence.request.value());
  }
  if (sequence.is_state_unknown) {
    return make_error(
        ErrorCode::kDataLoss,
        "a step of request {} has failed, and nobody knows its recurrent state; close "
        "it and compute it again",
        sequence.request.value());
  }
  if (sequence.arrived.status() == EventStatus::kFailed) {
    return make_error(ErrorCode::kDataLoss,
                      "pages of request {} did not arrive; close it and compute it again",
                      sequence.request.value());
  }
  return {};
}

// What was written is there after `written`.
void CacheCore::note_written(SequenceState& sequence, std::int64_t from, const Event& written) {
  for (ReservedSnapshot& snapshot : sequence.snapshots) {
    if (snapshot.is_committed || snapshot.position > sequence.num_committed) continue;
    snapshot.is_committed = true;
    snapshot.written = written;
    for (const PageId page : snapshot.pages) {
      if (!is_null(page) && !written.is_null()) store_->note_write(page, written);
    }
  }
  if (written.is_null()) return;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    SequenceGroup& own = sequence.groups[g];
    std::int64_t begin = 0;
    auto end = static_cast<std::int64_t>(own.run.pages.size());
    if (kind(g).has_block_pages()) {
      begin = std::max<std::int64_t>(0, from / config_.tokens_per_block - own.first_block);
      end = std::min(end, num_blocks(sequence.num_committed) - own.first_block);
    }
    for (auto i = static_cast<std::size_t>(begin); std::cmp_less(i, end); ++i) {
      if (!is_null(own.run.pages[i])) store_->note_write(own.run.pages[i], written);
    }
    own.run.may_be_lost = true;
  }
}

Result<void> CacheCore::commit(SequenceState& sequence, std::span<const TokenId> tokens,
                               const CommitOptions& options) {
  const std::int64_t from = sequence.num_committed;
  const std::int64_t committed = from + std::ssize(tokens);
  SLACKWATER_RETURN_IF_ERROR(check_commit(sequence, committed));
  if (options.written.status() == EventStatus::kFailed) {
    sequence.is_state_unknown = std::any_of(
        kinds_.begin(), kinds_.end(), [](const auto& kind) { return !kind->has_block_pages(); });
    return make_error(ErrorCode::kDataLoss, "the step that wrote tokens {} to {} has failed", from,
                      committed);
  }
  const WriteLock lock(mutex_);
  if (committed > sequence.history) {
    if (!is_within_blocks(sequence, sequence.capacity, committed)) {
      SLACKWATER_RETURN_IF_ERROR(grow(sequence, sequence.capacity, committed));
    }
    sequence.history = committed;
  }
  Event written = options.written;
  if (!sequence.arrived.is_done()) {
    const std::array<Event, 2> both = {written, sequence.arrived};
    written = device::merge(both);
  }
  digests_.retain(tokens);
  sequence.unpublished.insert(sequence.unpublished.end(), tokens.begin(), tokens.end());
  sequence.num_committed = committed;
  sequence.may_be_ahead = sequence.capacity > committed;
  note_written(sequence, from, written);
  if (!written.is_null() || !sequence.written.is_null()) {
    const std::array<Event, 2> all = {sequence.written, written};
    sequence.written = device::merge(all);
  }
  publish(sequence);
  const bool publishes_state = options.publishes_state && first_recurrent_ < num_groups();
  if (options.is_end) {
    sequence.is_finished = true;
    sequence.ends_with_state = publishes_state;
    publish_tail(sequence);
    sequence.is_committing = false;
  } else if (publishes_state) {
    copy_endpoint(sequence, true);
  } else if (config_.commit_policy == CommitPolicy::kEndpointsOnly && !tokens.empty()) {
    copy_endpoint(sequence, false);
  }
  if (!sequence.snapshots.empty()) publish_snapshots(sequence);
  clean_up();
  return {};
}

Result<void> CacheCore::stop_committing(SequenceState& sequence) {
  const WriteLock lock(mutex_);
  if (sequence.status == SequenceStatus::kClosed) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "stop_committing of a sequence that is closed");
  }
  if (!sequence.is_committing) return {};
  if (sequence.status == SequenceStatus::kActive) publish(sequence);
  sequence.is_committing = false;
  release_snapshots(sequence, record(sequence));
  Event last_use;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) continue;
    let_go(sequence, g, kept_stale(sequence, g, sequence.history), last_use);
  }
  clean_up();
  return {};
}

Result<void> CacheCore::reserve_snapshot(SequenceState& sequence, std::int64_t position) {
  if (sequence.status != SequenceStatus::kActive) {
    return make_error(ErrorCode::kFailedPrecondition, "a snapshot of a sequence that is {}",
                      to_string(sequence.status));
  }
  if (!sequence.is_committing) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a snapshot at {} of a sequence that commits nothing more", position);
  }
  if (position <= sequence.history || position > sequence.capacity) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a snapshot at {}; a step can write those from {} to the capacity {}",
                      position, sequence.history + 1, sequence.capacity);
  }
  for (const ReservedSnapshot& snapshot : sequence.snapshots) {
    if (snapshot.position == position) return {};
  }
  const WriteLock lock(mutex_);
  std::vector<std::int32_t> needed(num_groups());
  for (std::size_t g = 0; g < num_groups(); ++g) needed[g] = kind(g).has_block_pages() ? 0 : 1;
  const Result<void> room = residency_->make_room(needed);
  if (!room.has_value()) {
    ++counters_.snapshots_skipped;
    return room;
  }
  ReservedSnapshot snapshot;
  snapshot.position = position;
  snapshot.pages.resize(num_groups());
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).has_block_pages()) continue;
    const Result<PageId> page = store_->allocate(LayerGroupId(static_cast<std::int32_t>(g)));
    SLACKWATER_CHECK(page.has_value(), "a page that there was room for: {}", page.error().text());
    snapshot.pages[g] = *page;
    note_device_slots(g);
    sequence.stream->wait(store_->ready(*page));
  }
  const auto at = std::lower_bound(
      sequence.snapshots.begin(), sequence.snapshots.end(), position,
      [](const ReservedSnapshot& other, std::int64_t wanted) { return other.position < wanted; });
  sequence.snapshots.insert(at, std::move(snapshot));
  clean_up();
  return {};
}

std::optional<SlotId> CacheCore::snapshot_slot(const SequenceState& sequence, LayerGroupId group,
                                               std::int64_t position) const {
  const ReadLock lock(mutex_);
  for (const ReservedSnapshot& snapshot : sequence.snapshots) {
    if (snapshot.position != position || is_null(snapshot.pages[index_of(group)])) continue;
    return store_->slot(snapshot.pages[index_of(group)]);
  }
  return std::nullopt;
}

// Nobody will see those that are not in the tree.
void CacheCore::release_snapshots(SequenceState& sequence, const Event& last_use) {
  for (const ReservedSnapshot& snapshot : sequence.snapshots) {
    for (const PageId page : snapshot.pages) {
      if (is_null(page)) continue;
      store_->note_read(page, last_use);
      store_->release(page);
    }
  }
  sequence.snapshots.clear();
}

void CacheCore::cancel_snapshot(SequenceState& sequence, std::int64_t position) {
  const WriteLock lock(mutex_);
  const auto at = std::find_if(sequence.snapshots.begin(), sequence.snapshots.end(),
                               [&](const auto& snapshot) { return snapshot.position == position; });
  if (at == sequence.snapshots.end()) return;
  const Event last_use = record(sequence);
  for (const PageId page : at->pages) {
    if (is_null(page)) continue;
    store_->note_read(page, last_use);
    store_->release(page);
  }
  sequence.snapshots.erase(at);
}

// The node of the path that holds a position; of one in the block at the end, whichever branch
// begins with that. None where that block is not in the tree.
NodeIndex CacheCore::node_of_position(const SequenceState& sequence, std::int64_t position) {
  if (position <= 0) return kNoNode;
  const std::int64_t block = (position - 1) / config_.tokens_per_block;
  if (block < sequence.num_path_blocks) {
    const NodeIndex node = path_node(sequence.leaf, block);
    return position <= tree_->end_token(tree_->node(node)) ? node : kNoNode;
  }
  const std::span<const TokenId> tail = sequence.unpublished;
  if (std::ssize(tail) >= config_.tokens_per_block) return kNoNode;
  return branch_with(sequence.leaf, tail);
}

// A child that others see and that begins with some tokens, if there are any.
NodeIndex CacheCore::branch_with(NodeIndex parent, std::span<const TokenId> tokens) {
  if (tokens.empty()) return kNoNode;
  const auto is_seen = [&](NodeIndex child) {
    settle(child);
    return tree_->node(child).num_written > 0;
  };
  const NodeIndex same = tree_->find_child(parent, tokens);
  if (same != kNoNode && is_seen(same)) return same;
  return tree_->find_longer_child(parent, tokens, is_seen);
}

bool CacheCore::is_lost_snapshot(const PageRun& run, std::size_t index) const {
  return is_null(run.pages[index]) || run.written[index].status() == EventStatus::kFailed ||
         store_->ready(run.pages[index]).status() == EventStatus::kFailed;
}

// Whether a position has one already, or one that is lost and somebody waits for.
bool CacheCore::has_snapshot(NodeIndex node, std::size_t group, std::int64_t position) const {
  const PageRun& run = tree_->node(node).runs[group];
  const auto at = std::lower_bound(run.positions.begin(), run.positions.end(), position);
  if (at == run.positions.end() || *at != position) return false;
  const auto i = static_cast<std::size_t>(at - run.positions.begin());
  return !is_lost_snapshot(run, i) || run.pins[i] != Pins();
}

// False where there is one already; one that is lost gives way.
bool CacheCore::put_snapshot(NodeIndex node, std::size_t group, std::int64_t position, PageId page,
                             const Publication& publication) {
  if (has_snapshot(node, group, position)) return false;
  PageRun& run = node_run(node, group);
  auto at = std::lower_bound(run.positions.begin(), run.positions.end(), position);
  const auto index = at - run.positions.begin();
  if (at != run.positions.end() && *at == position) {
    remove_snapshot(node, group, static_cast<std::size_t>(index));
    at = run.positions.begin() + index;
  }
  run.positions.insert(at, position);
  const auto key = branch_key(node, group, position);
  if (key.has_value()) states_.add(*key, node);
  run.pages.insert(run.pages.begin() + index, page);
  run.pins.insert(run.pins.begin() + index, Pins());
  run.written.insert(run.written.begin() + index, publication.written);
  const auto i = static_cast<std::size_t>(index);
  run.certificates.insert(run.certificates.begin() + index, Digest128());
  if (store_->tier(page) == Tier::kDisk) {
    run.certificates[i] = store_->certificate(page);  // of the same prefix
  } else {
    certify_page(node, group, i);
  }
  store_->drop_transient(page, publication.last_use);
  residency_->page_added(node_key(node, group), run, i);
  ++counters_.snapshots_published;
  return true;
}

// Snapshots whose block is in the tree by now.
void CacheCore::publish_snapshots(SequenceState& sequence) {
  std::erase_if(sequence.snapshots, [&](const ReservedSnapshot& snapshot) {
    if (!snapshot.is_committed) return false;
    const NodeIndex node = node_of_position(sequence, snapshot.position);
    if (node == kNoNode) return false;
    for (std::size_t g = 0; g < num_groups(); ++g) {
      const PageId page = snapshot.pages[g];
      if (is_null(page)) continue;
      const Event last_use = store_->has_transient(page) ? record(sequence) : Event();
      const bool is_put =
          put_snapshot(node, g, snapshot.position, page, {snapshot.written, last_use});
      if (!is_put) store_->release(page);
    }
    return true;
  });
}

std::optional<PageId> CacheCore::try_allocate(std::size_t group) {
  const LayerGroupId id(static_cast<std::int32_t>(group));
  std::vector<std::int32_t> needed(num_groups());
  needed[group] = 1;
  if (!residency_->make_room(needed).has_value()) return std::nullopt;
  const Result<PageId> page = store_->allocate(id);
  SLACKWATER_CHECK(page.has_value(), "a page that there was room for: {}", page.error().text());
  return *page;
}

}  // namespace slackwater::cache
