// What becomes of a step: where its rows stand, and how many of their drafts were kept.

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "hybrid/hybrid_request.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"

namespace slackwater::hybrid {

using cache::SequenceStatus;
using device::Event;

namespace {

// The tag whose verification decides what is kept.
constexpr std::string_view kTarget = "target";

// Rounds that a host queues ahead of what it reads are few.
constexpr std::size_t kMostSettledAhead = 4;

// One that the stream is done with, taken; so that steps take nothing from the heap.
template <class Batch>
Batch& free_batch(std::vector<std::unique_ptr<Batch>>& batches) {
  const auto is_done = [](const auto& batch) {
    return batch->is_done.load(std::memory_order_acquire);
  };
  auto at = std::find_if(batches.begin(), batches.end(), is_done);
  if (at == batches.end()) at = batches.insert(at, std::make_unique<Batch>());
  (*at)->is_done.store(false, std::memory_order_relaxed);
  return **at;
}

}  // namespace

// P of a slot, behind the steps that are queued, once the call queues it.
void HybridCacheManager::set_pending(std::size_t tag, SlotId slot, std::int32_t pending) {
  if (tags_[tag]->has_replay()) pending_writes_.push_back({tags_[tag]->pending(slot), pending});
}

void HybridCacheManager::queue_pending() {
  if (pending_writes_.empty()) return;
  PendingBatch& batch = free_batch(pending_batches_);
  batch.writes.swap(pending_writes_);
  pending_writes_.clear();
  stream_.run([&batch] {
    for (const PendingWrite& write : batch.writes) *write.place = write.pending;
    batch.is_done.store(true, std::memory_order_release);
    return true;
  });
}

// Of the places that wait for a state those that the row writes: one that lies before it, or whose
// page was not to be had, stays without.
void HybridCacheManager::note_snapshots(const RowSetup& row, std::size_t tag,
                                        HybridRequest& request) {
  for (SnapshotPlace& place : request.snapshots) {
    const auto is_its = [&](const kernels::StateWrite& write) {
      return write.page != row.slot && *row.row.first_position + write.count == place.position;
    };
    if (std::none_of(row.writes.begin(), row.writes.end(), is_its) &&
        !SLACKWATER_MUTANT(hybrid_unwritten_snapshot)) {
      continue;
    }
    place.written |= std::uint64_t{1} << tag;
  }
}

void HybridCacheManager::advance(const RowSetup& row, std::size_t tag, HybridRequest& request) {
  StateCursor& cursor = request.cursors[tag];
  ++cursor.changes;
  request.setup_end = 0;
  const std::int32_t written = row.writes.empty() ? 0 : row.writes.back().count;
  const std::int32_t left = row.row.num_tokens - written;
  if (row.row.kind == RowKind::kDraft) {
    cursor.num_records += left;
    return;
  }
  const bool is_target = tags_[tag]->group_tag() == kTarget;
  if (row.row.kind == RowKind::kContext) {
    // Drafts that were pending are gone, saved ones too.
    if (!cursor.slot.has_value()) {
      drop_saved(request, tag);
      settle_in(cursor, row.slot);
    } else if (cursor.num_pending > 0) {
      set_pending(tag, row.slot, 0);
    }
    cursor.page_position = *row.row.first_position + written;
    cursor.num_records = cursor.num_pending = 0;
    note_snapshots(row, tag, request);
    if (is_target) request.kept = cursor.page_position;
    return;
  }
  if (!is_target) {
    // How many of its records count is for the target's round to say.
    if (cursor.num_pending > 0) set_pending(tag, row.slot, 0);
    cursor.page_position += cursor.num_pending + written;
    cursor.num_records = left;
    cursor.num_pending = 0;
    return;
  }
  ++request.round;
  request.open_rounds.push_back({request.round, written, left, false});
  cursor.num_records = left;
  if (left > 0) return;
  // Nothing to accept, and nothing left to replay.
  if ((!row.num_pending.has_value() || *row.num_pending > 0) &&
      !SLACKWATER_MUTANT(hybrid_folded_drafts_stay_pending)) {
    set_pending(tag, row.slot, 0);
  }
  if (request.open_rounds.size() == 1) {
    std::vector<OpenRound>& settled = request.settled_ahead;
    if (settled.size() == kMostSettledAhead) settled.erase(settled.begin());
    settled.push_back(request.open_rounds.back());
    resolve_round(request, 0);
  } else {
    request.open_rounds.back().is_on_device = true;
  }
}

bool HybridCacheManager::is_current(const BatchSetup& setup) const {
  const Result<std::size_t> tag = find_tag(setup.group_tag);
  return tag.has_value() &&
         std::all_of(setup.rows.begin(), setup.rows.end(), [&](const RowSetup& row) {
           if (row.is_dummy) return true;
           const Result<const HybridRequest*> request = find(row.row.request);
           return request.has_value() && (*request)->epoch == row.epoch &&
                  (*request)->cursors[*tag].changes == row.changes;
         });
}

void HybridCacheManager::step_queued(const BatchSetup& setup) {
  const Result<std::size_t> tag = find_tag(setup.group_tag);
  SLACKWATER_CHECK(tag.has_value(), "{}", tag.error().text());
  SLACKWATER_CHECK(is_current(setup),
                   "a step of {} rows was queued after something else was done with its requests",
                   setup.rows.size());
  for (const RowSetup& row : setup.rows) {
    if (!row.is_dummy) advance(row, *tag, **find(row.row.request));
  }
  queue_pending();
}

// The oldest open round is settled: pages and pending drafts of all tags follow from what is kept.
void HybridCacheManager::resolve_round(HybridRequest& request, std::int32_t num_accepted) {
  const OpenRound round = request.open_rounds.front();
  request.open_rounds.erase(request.open_rounds.begin());
  const std::int64_t page = request.kept + round.num_written;
  request.kept = page + num_accepted;
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    StateCursor& cursor = request.cursors[t];
    if (tags_[t]->group_tag() == kTarget) cursor.page_position = page;
    if (is_of_round(t, cursor, page)) {
      cursor.num_pending =
          static_cast<std::int32_t>(std::min<std::int64_t>(num_accepted, cursor.num_records));
      // The target's rows may be set up ahead, with a count that only the device knows.
      if (tags_[t]->group_tag() != kTarget) ++cursor.changes;
    }
    // The others were rejected: a later round must not count them.
    if (request.open_rounds.empty()) cursor.num_records = cursor.num_pending;
  }
}

// Whether the records of a tag are those of the round whose golden tokens end at `page`. A draft
// model that sat it out has none of it: what was pending there stays, and drafts that no round has
// verified are never counted.
bool HybridCacheManager::is_of_round(std::size_t tag, const StateCursor& cursor,
                                     std::int64_t page) const {
  return tags_[tag]->group_tag() == kTarget || cursor.page_position == page;
}

void HybridCacheManager::record_acceptance(const BatchSetup& setup,
                                           const std::int32_t* num_accepted_tokens) {
  const Result<std::size_t> target = find_tag(kTarget);
  if (!target.has_value() || !tags_[*target]->has_replay()) return;
  AcceptanceBatch& batch = free_batch(acceptance_batches_);
  batch.places.clear();
  batch.counts = num_accepted_tokens;
  for (std::size_t i = 0; i < setup.rows.size(); ++i) {
    const RowSetup& row = setup.rows[i];
    if (row.is_dummy || row.row.kind != RowKind::kGeneration) continue;
    const Result<HybridRequest*> request = find(row.row.request);
    if (!request.has_value() || (*request)->epoch != row.epoch || (*request)->open_rounds.empty() ||
        (*request)->open_rounds.back().round != row.round ||
        (*request)->open_rounds.back().num_drafts == 0) {
      continue;
    }
    // What was saved meanwhile has the P of before: the host has to tell.
    const auto is_saved = [](const StateCursor& cursor) { return cursor.saved.has_value(); };
    if (std::any_of((*request)->cursors.begin(), (*request)->cursors.end(), is_saved)) continue;
    (*request)->open_rounds.back().is_on_device = true;
    const StateCursor& cursor = (*request)->cursors[*target];
    if (!cursor.slot.has_value()) continue;
    batch.places.push_back({tags_[*target]->pending(*cursor.slot), cursor.num_records, i});
  }
  stream_.run([&batch] {
    for (const AcceptancePlace& place : batch.places) {
      // The golden token is one of them.
      const std::int32_t accepted = std::max(batch.counts[place.row] - 1, 0);
      *place.pending = std::min(accepted, place.max_pending);
    }
    batch.is_done.store(true, std::memory_order_release);
    return true;
  });
}

// Room for drafts that were not kept. A suspended request gives it back too.
void HybridCacheManager::give_back_room(HybridRequest& request) {
  // A row that is set up has its room for good.
  const std::int64_t wanted =
      std::max({request.kept + config_.lookahead, request.sequence.history(),
                request.sequence.num_committed(), request.setup_end});
  if (!request.open_rounds.empty() || request.sequence.capacity() <= wanted ||
      SLACKWATER_MUTANT(hybrid_keep_draft_room)) {
    return;
  }
  const Result<void> trimmed = request.sequence.trim(wanted);
  // One whose pages are lost keeps the room until it is restarted.
  if (trimmed.has_value()) return;
  request.is_lost = true;
  ++counters_.lost_requests;
}

Result<void> HybridCacheManager::update_resources(std::span<const Acceptance> acceptances) {
  const auto request_of = [&](const Acceptance& acceptance) -> HybridRequest* {
    const Result<HybridRequest*> request = find(acceptance.request);
    return request.has_value() && (*request)->epoch == acceptance.epoch ? *request : nullptr;
  };
  for (const Acceptance& acceptance : acceptances) {
    std::int32_t most = acceptance.num_accepted;
    if (const HybridRequest* const request = request_of(acceptance); request != nullptr) {
      // Any open round: those before it may be settled by this very call.
      for (const OpenRound& round : request->open_rounds) {
        if (round.round == acceptance.round) most = round.num_drafts;
      }
      SLACKWATER_RETURN_IF_ERROR(check_end(*request, acceptance));
    }
    if (0 <= acceptance.num_accepted && acceptance.num_accepted <= most) continue;
    return make_error(
        ErrorCode::kInvalidArgument,
        "{} drafts accepted in round {} of request {}, which had {}; the golden token "
        "is not counted",
        acceptance.num_accepted, acceptance.round, acceptance.request.value(), most);
  }
  for (const Acceptance& acceptance : acceptances) {
    HybridRequest* const request = request_of(acceptance);
    if (request != nullptr) take_back(*request, acceptance);
    if (request == nullptr || request->open_rounds.empty() ||
        request->open_rounds.front().round != acceptance.round) {
      counters_.ignored_acceptances += is_settled_round(acceptance) ? 0 : 1;
      continue;
    }
    const bool is_on_device = request->open_rounds.front().is_on_device;
    resolve_round(*request, acceptance.num_accepted);
    if (acceptance.has_ended) end_rounds(*request);
    // Rounds without drafts that were queued ahead have nothing to be told.
    while (!request->open_rounds.empty() && request->open_rounds.front().num_drafts == 0) {
      resolve_round(*request, 0);
    }
    const Result<std::size_t> target = find_tag(kTarget);
    tell_slots(*request, is_on_device ? std::optional(*target) : std::nullopt);
    give_back_room(*request);
  }
  queue_pending();
  return {};
}

// Rounds that were queued behind the one in which a stop was found ran no token: their step folded
// in what was pending.
void HybridCacheManager::end_rounds(HybridRequest& request) {
  while (!request.open_rounds.empty()) {
    request.open_rounds.front().num_written = 0;
    for (std::size_t t = 0; t < tags_.size(); ++t) {
      if (tags_[t]->group_tag() == kTarget) request.cursors[t].num_records = 0;
    }
    resolve_round(request, 0);
  }
}

// Whether all rounds behind one in which a stop was found are still known. A round that settled
// when it was queued can be taken back only while it is.
Result<void> HybridCacheManager::check_end(const HybridRequest& request,
                                           const Acceptance& acceptance) const {
  if (!acceptance.has_ended || acceptance.round > request.round) return {};
  const auto is_behind = [&](const OpenRound& round) { return round.round > acceptance.round; };
  const std::int64_t known = std::ranges::count_if(request.open_rounds, is_behind) +
                             std::ranges::count_if(request.settled_ahead, is_behind);
  const auto behind = static_cast<std::int64_t>(request.round - acceptance.round);
  if (known == behind) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "round {} of request {} is said to be its last, and {} were queued behind it, "
                    "of which {} are known; tell of each round before more than {} are behind it",
                    acceptance.round, request.id.value(), behind, known, kMostSettledAhead);
}

// What the host knows now of rounds without drafts. Those behind one in which a stop was found ran
// no token, though they were counted when they were queued.
void HybridCacheManager::take_back(HybridRequest& request, const Acceptance& acceptance) {
  std::vector<OpenRound>& settled = request.settled_ahead;
  const bool has_settled =
      request.open_rounds.empty() || request.open_rounds.front().round > acceptance.round;
  if (acceptance.has_ended && has_settled && !SLACKWATER_MUTANT(hybrid_end_takes_nothing_back)) {
    for (const OpenRound& round : settled) {
      if (round.round <= acceptance.round) continue;
      request.kept -= round.num_written;
      for (std::size_t t = 0; t < tags_.size(); ++t) {
        if (tags_[t]->group_tag() != kTarget) continue;
        request.cursors[t].page_position -= round.num_written;
        ++request.cursors[t].changes;
      }
    }
    settled.clear();
    end_rounds(request);
    give_back_room(request);
  }
  std::erase_if(settled, [&](const OpenRound& round) { return round.round <= acceptance.round; });
}

// A round without drafts has none to accept: that the host says so too is no news.
bool HybridCacheManager::is_settled_round(const Acceptance& acceptance) const {
  const Result<const HybridRequest*> request = find(acceptance.request);
  if (!request.has_value() || (*request)->epoch != acceptance.epoch) return false;
  const std::vector<OpenRound>& open = (*request)->open_rounds;
  const std::uint64_t settled = open.empty() ? (*request)->round : open.front().round - 1;
  return acceptance.round <= settled && acceptance.num_accepted == 0;
}

// What the host has learned goes to where the request is: its slots, or what was saved of them. The
// device has told the slot of the tag that `knows`.
void HybridCacheManager::tell_slots(HybridRequest& request, std::optional<std::size_t> knows) {
  bool is_late = false;
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    if (knows == t) continue;
    StateCursor& cursor = request.cursors[t];
    if (SLACKWATER_MUTANT(hybrid_acceptance_to_old_slot) && cursor.slot_before.has_value()) {
      set_pending(t, *cursor.slot_before, cursor.num_pending);
    } else if (cursor.slot.has_value()) {
      set_pending(t, *cursor.slot, cursor.num_pending);
    } else if (cursor.saved.has_value()) {
      cursor.accepted_override = cursor.num_pending;
      is_late = true;
    }
  }
  if (is_late && !knows.has_value()) ++counters_.late_acceptances;
}

void HybridCacheManager::fail_step(const BatchSetup& setup) {
  for (const RowSetup& row : setup.rows) {
    if (row.is_dummy) continue;
    const Result<HybridRequest*> request = find(row.row.request);
    if (!request.has_value() || (*request)->epoch != row.epoch || (*request)->is_lost) continue;
    (*request)->is_lost = true;
    (*request)->open_rounds.clear();
    ++counters_.lost_requests;
  }
}

}  // namespace slackwater::hybrid
