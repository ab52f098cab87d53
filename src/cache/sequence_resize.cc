// Growing and shrinking, and letting go of blocks that are left behind.

#include <algorithm>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

using device::Event;
using device::EventStatus;

namespace {

// Far beyond any pool, and far from the ends of 32 bits.
constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 28;
constexpr std::int64_t kMaxCapacity = kMaxBlocks << 16;  // whatever the blocks

}  // namespace

Result<void> CacheCore::check_lengths(const SequenceState& sequence, std::int64_t capacity,
                                      std::int64_t history) const {
  if (sequence.status != SequenceStatus::kActive) {
    return make_error(ErrorCode::kFailedPrecondition, "resize of a sequence that is {}; resume it",
                      to_string(sequence.status));
  }
  if (capacity > (kMaxBlocks - 1) * config_.tokens_per_block) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a capacity of {} tokens; a sequence has fewer than {} blocks of {}",
                      capacity, kMaxBlocks, config_.tokens_per_block);
  }
  if (sequence.is_damaged) {
    return make_error(ErrorCode::kDataLoss,
                      "pages of request {} are lost; close it and compute it again",
                      sequence.request.value());
  }
  if (history < sequence.history) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a history of {} tokens after one of {}; what is computed stays computed",
                      history, sequence.history);
  }
  if (history > capacity) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "a history of {} tokens in a capacity of {}; give both, or the capacity first", history,
        capacity);
  }
  if (sequence.is_finished && (capacity != sequence.capacity || history != sequence.history)) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "resize of a sequence whose end is committed; nothing may be written any "
                      "more");
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const auto& table = sequence.groups[g].table;
    if (table.empty() || !kind(g).has_block_pages()) continue;
    if (num_blocks(capacity) > std::ssize(table)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{} blocks for {} tokens do not fit an index table of {}",
                        num_blocks(capacity), capacity, table.size());
    }
  }
  return {};
}

// Blocks that a sequence lets go at a history: not those that are still to be committed.
BlockRange CacheCore::kept_stale(const SequenceState& sequence, std::size_t group,
                                 std::int64_t history) const {
  BlockRange stale = kind(group).stale_blocks(history);
  if (SLACKWATER_MUTANT(window_lets_go_early) && stale.size() > 0) ++stale.end;
  // A block that never had a page has nothing to commit.
  const SequenceGroup& own = sequence.groups[group];
  const bool has_uncommitted =
      own.first_block + std::ssize(own.run.pages) > sequence.num_path_blocks;
  if (has_uncommitted && sequence.is_committing &&
      config_.commit_policy == CommitPolicy::kEveryBlock) {
    stale.end = std::min(stale.end, std::max(stale.begin, sequence.num_path_blocks));
  }
  stale.end = std::max(stale.end, sequence.groups[group].stale.end);
  return stale;
}

bool CacheCore::is_within_blocks(const SequenceState& sequence, std::int64_t capacity,
                                 std::int64_t history) const {
  if (num_blocks(capacity) != num_blocks(sequence.capacity)) return false;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages() || kind(g).needs_every_block()) continue;
    if (kept_stale(sequence, g, history) != sequence.groups[g].stale) return false;
  }
  return true;
}

// Pages of its own that a group lets go when `stale` is what it does not need.
std::int32_t CacheCore::num_releasable(const SequenceState& sequence, std::size_t group,
                                       const BlockRange& stale) const {
  const SequenceGroup& own = sequence.groups[group];
  std::int32_t count = 0;
  for (std::int64_t block = std::max({own.stale.end, stale.begin, own.first_block});
       block < stale.end; ++block) {
    if (!is_null(own_page(sequence, group, block))) ++count;
  }
  return count;
}

// Gives up what has become stale.
void CacheCore::let_go(SequenceState& sequence, std::size_t group, const BlockRange& stale,
                       Event& last_use) {
  SequenceGroup& own = sequence.groups[group];
  const BlockRange newly = {std::max(own.stale.end, stale.begin), stale.end};
  own.stale = stale;
  if (newly.size() == 0) return;
  if (last_use.is_null()) last_use = record(sequence);
  for (std::int64_t block = newly.begin; block < newly.end; ++block) {
    if (block < sequence.num_path_blocks) {
      const Pins pins = user_pins(sequence);
      pin_block(sequence.leaf, group, block, {-pins.locks, -pins.holds}, last_use);
    } else {
      const auto index = static_cast<std::size_t>(block - own.first_block);
      if (index >= own.run.pages.size()) continue;
      // While suspended, what was noted then still stands.
      if (!last_use.is_null()) own.run.last_use = last_use;
      release_page(sequence_key(sequence, group), index);
    }
    if (static_cast<std::size_t>(block) < own.slots.size()) set_slot(own, block, kNoSlot);
  }
}

// Pages for blocks [first, end) of a group that it needs. There is room for them.
void CacheCore::allocate_blocks(SequenceState& sequence, std::size_t group, std::int64_t first,
                                std::int64_t end) {
  if (first == end) return;
  SequenceGroup& own = sequence.groups[group];
  const auto count =
      static_cast<std::size_t>(end - first - intersect(own.stale, BlockRange{first, end}).size());
  new_pages_.resize(count);
  const Result<void> allocated =
      store_->allocate(LayerGroupId(static_cast<std::int32_t>(group)), new_pages_);
  SLACKWATER_CHECK(allocated.has_value(), "pages that there was room for: {}",
                   allocated.error().text());
  std::size_t next = 0;
  for (std::int64_t block = first; block < end; ++block) {
    if (own.stale.contains(block)) {
      own.run.pages.emplace_back();
      set_slot(own, block, kNoSlot);
      continue;
    }
    const PageId page = new_pages_[next++];
    own.run.pages.push_back(page);
    set_slot(own, block, store_->slot(page));
    const Event& ready = store_->ready(page);
    if (ready.is_null()) continue;
    own.run.may_be_lost = true;
    if (!ready.is_done() && !SLACKWATER_MUTANT(new_page_skips_wait)) sequence.stream->wait(ready);
  }
  residency_->pages_allocated(own.run, static_cast<std::int32_t>(count));
}

// Whether what is about to be let go is still where it was.
bool CacheCore::has_stale_pages(const SequenceState& sequence, std::span<const BlockRange> stale) {
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) continue;
    const std::int64_t begin = std::max(sequence.groups[g].stale.end, stale[g].begin);
    const std::int64_t end = std::min(stale[g].end, sequence.num_path_blocks);
    for (std::int64_t block = begin; block < end; ++block) {
      const NodeIndex node = path_node(sequence.leaf, block);
      const PageId page =
          node_run(node, g).pages[static_cast<std::size_t>(block - tree_->node(node).first_block)];
      if (is_null(page) || store_->tier(page) != Tier::kDevice) return false;
    }
  }
  return true;
}

// Shared pages that are about to be let go may make room for the new ones.
Result<void> CacheCore::make_room_beside(SequenceState& sequence,
                                         std::span<const std::int32_t> needed,
                                         std::span<const BlockRange> stale) {
  const Result<void> room = residency_->make_room(needed);
  if (room.has_value()) return room;
  const Event last_use = record(sequence);
  const auto pin_stale = [&](Pins change) {
    for (std::size_t g = 0; g < num_groups(); ++g) {
      if (!kind(g).has_block_pages()) continue;
      const BlockRange newly = {std::max(sequence.groups[g].stale.end, stale[g].begin),
                                std::min(stale[g].end, sequence.num_path_blocks)};
      for (std::int64_t block = newly.begin; block < newly.end; ++block) {
        pin_block(sequence.leaf, g, block, change, last_use);
      }
    }
  };
  pin_stale({-1, 0});
  const Result<void> again = residency_->make_room(needed);
  if (again.has_value() || has_stale_pages(sequence, stale)) {
    pin_stale({1, 0});
    return again;
  }
  // What was about to be let go has left, and then something else failed.
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) continue;
    BlockRange gone = stale[g];
    gone.end = std::max(sequence.groups[g].stale.end, std::min(gone.end, sequence.num_path_blocks));
    sequence.groups[g].stale = gone;
    for (std::int64_t block = gone.begin; block < gone.end; ++block) {
      if (block < std::ssize(sequence.groups[g].slots)) {
        set_slot(sequence.groups[g], block, kNoSlot);
      }
    }
  }
  sequence.is_damaged = true;
  return make_error(
      ErrorCode::kDataLoss,
      "pages of request {} have left the device, and others did not come: {}; close it "
      "and compute it again",
      sequence.request.value(), again.error().text());
}

Result<void> CacheCore::grow(SequenceState& sequence, std::int64_t capacity, std::int64_t history) {
  const std::int64_t first = num_blocks(sequence.capacity);
  const std::int64_t end = std::max(first, num_blocks(capacity));
  std::vector<std::int32_t>& needed = needed_;
  std::vector<BlockRange>& stale = stale_;
  needed.assign(num_groups(), 0);
  stale.assign(num_groups(), {});
  bool needs_any = false;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) continue;
    stale[g] = kept_stale(sequence, g, history);
    const auto added =
        static_cast<std::int32_t>(end - first - intersect(stale[g], BlockRange{first, end}).size());
    needed[g] = added - num_releasable(sequence, g, stale[g]);
    needs_any |= added > 0;
  }
  if (SLACKWATER_MUTANT(grow_before_room)) sequence.capacity = capacity;
  const bool counts_early = sequence.is_counted && SLACKWATER_MUTANT(refused_call_counts);
  if (counts_early) count_growth(sequence, {first, end}, history);
  if (needs_any) SLACKWATER_RETURN_IF_ERROR(make_room_beside(sequence, needed, stale));
  Event last_use;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).has_block_pages()) let_go(sequence, g, stale[g], last_use);
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).has_block_pages()) allocate_blocks(sequence, g, first, end);
  }
  if (sequence.is_counted) count_growth(sequence, {first, end}, history);
  return {};
}

void CacheCore::shrink(SequenceState& sequence, std::int64_t capacity) {
  const std::int64_t end = num_blocks(capacity);
  if (end >= num_blocks(sequence.capacity)) return;
  const Event last_use = record(sequence);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) continue;
    SequenceGroup& own = sequence.groups[g];
    own.run.last_use = last_use;
    const auto left = static_cast<std::size_t>(std::max<std::int64_t>(0, end - own.first_block));
    const std::int32_t before = own.run.num_pages();
    if (left < own.run.pages.size()) residency_->release_tail(own.run, left);
    if (sequence.is_counted) count_return(own, before - own.run.num_pages());
    trim_table(own, end);
  }
}

bool CacheCore::resize_within_blocks(SequenceState& sequence, std::int64_t capacity,
                                     std::int64_t history) {
  // What is not even possible is for resize() to refuse; tables have an entry per block already.
  if (sequence.status != SequenceStatus::kActive || sequence.is_damaged || sequence.is_finished ||
      history < sequence.history || history > capacity || capacity > kMaxCapacity ||
      !is_within_blocks(sequence, capacity, history)) {
    return false;
  }
  if (log_ != nullptr) {
    // Large steps are written down as every other call.
    const std::int64_t more = capacity - sequence.capacity;
    const std::int64_t done = history - sequence.history;
    if (static_cast<std::int16_t>(more) != more || static_cast<std::uint16_t>(done) != done) {
      return false;
    }
    log_->note_resize(sequence.number, static_cast<std::int16_t>(more),
                      static_cast<std::uint16_t>(done));
  }
  sequence.may_be_ahead |= capacity > sequence.num_committed;
  sequence.capacity = capacity;
  sequence.history = history;
  sequence.lengths.add(capacity, history);
  return true;
}

Result<void> CacheCore::resize(SequenceState& sequence, std::optional<std::int64_t> new_capacity,
                               std::optional<std::int64_t> new_history) {
  const std::int64_t capacity = new_capacity.value_or(sequence.capacity);
  const std::int64_t history = new_history.value_or(sequence.history);
  SLACKWATER_RETURN_IF_ERROR(check_lengths(sequence, capacity, history));
  const WriteLock lock(mutex_);
  const bool is_shrinking =
      history == sequence.history && num_blocks(capacity) <= num_blocks(sequence.capacity);
  if (!is_shrinking) {
    const Result<void> grown = grow(sequence, capacity, history);
    if (!grown.has_value()) {
      clean_up();
      return grown;
    }
  }
  shrink(sequence, capacity);
  sequence.may_be_ahead |= capacity > sequence.num_committed;
  sequence.capacity = capacity;
  sequence.history = history;
  sequence.lengths.add(capacity, history);
  clean_up();
  return {};
}

Result<void> CacheCore::set_index_table(SequenceState& sequence, LayerGroupId group,
                                        std::span<SlotId> table) {
  if (group.value() < 0 || group.value() >= std::ssize(sequence.groups)) {
    return make_error(ErrorCode::kOutOfRange, "layer group {} of {}", group.value(),
                      sequence.groups.size());
  }
  SequenceGroup& own = sequence.groups[index_of(group)];
  const std::int64_t blocks =
      kind(index_of(group)).has_block_pages() ? num_blocks(sequence.capacity) : 1;
  if (!table.empty() && std::ssize(table) < blocks) {
    return make_error(ErrorCode::kInvalidArgument,
                      "an index table of {} entries for {} blocks; make it larger", table.size(),
                      blocks);
  }
  own.table = table;
  std::fill(table.begin(), table.end(), kNoSlot);
  if (!table.empty()) std::copy(own.slots.begin(), own.slots.end(), table.begin());
  return {};
}

}  // namespace slackwater::cache
