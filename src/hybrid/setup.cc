// How the rows of a batch find their slots, and what they held.

#include <algorithm>
#include <array>
#include <utility>

#include "hybrid/hybrid_request.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"

namespace slackwater::hybrid {

using cache::SequenceStatus;
using device::Event;
using device::EventStatus;

namespace {

std::int32_t written_of(const BatchRow& row) {
  switch (row.kind) {
    case RowKind::kContext: return row.num_tokens;
    case RowKind::kGeneration: return row.num_written;
    case RowKind::kDraft: return 0;
  }
  return 0;
}

// Where its state lies now. CHECK: it is active.
SlotId slot_of(const HybridRequest& request, LayerGroupId group) {
  const std::span<const SlotId> slots = request.sequence.slots(group);
  return slots.empty() ? cache::kNoSlot : slots[0];
}

// The most tokens that rounds whose acceptance nobody has read may have kept.
std::int64_t most_kept(const HybridRequest& request) {
  std::int64_t most = request.kept;
  for (const OpenRound& round : request.open_rounds) most += round.num_written + round.num_drafts;
  return most;
}

// Kernels go by the slot alone.
Result<void> check_slot(RequestId request, SlotId slot, const ReplayState& state) {
  const bool is_within = 0 <= slot.value() && slot.value() < state.num_slots();
  if (is_within || SLACKWATER_MUTANT(hybrid_unbound)) return {};
  return make_error(ErrorCode::kOutOfRange,
                    "request {} is in slot {} of the recurrent pool, past the {} for which there "
                    "are replay records; the pool has grown beside them",
                    request.value(), slot.value(), state.num_slots());
}

}  // namespace

// A row begins where its page and its pending drafts end.
Result<void> HybridCacheManager::check_position(const BatchRow& row, std::size_t tag,
                                                const HybridRequest& request) const {
  const StateCursor& cursor = request.cursors[tag];
  if (!row.first_position.has_value()) {
    // How many tokens a draft model has to make up for depends on the acceptance.
    const bool is_target = tags_[tag]->group_tag() == "target";
    if (is_target && row.kind == RowKind::kGeneration && !request.open_rounds.empty()) return {};
    return make_error(ErrorCode::kInvalidArgument,
                      "a row of request {} for layers of '{}' without a position; only the target "
                      "goes on from a round whose acceptance is known on the device alone",
                      request.id.value(), tags_[tag]->group_tag());
  }
  if (!request.open_rounds.empty()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a row of request {} at position {}, and the acceptance of {} rounds has not "
                      "been read; leave the position out, or call update_resources first",
                      request.id.value(), *row.first_position, request.open_rounds.size());
  }
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    const StateCursor& other = request.cursors[t];
    const bool gives_up = row.kind == RowKind::kContext && cursor.num_pending > 0 && t != tag;
    if (!gives_up || other.page_position + other.num_pending <= *row.first_position) continue;
    return make_error(
        ErrorCode::kFailedPrecondition,
        "a row of request {} that goes back to position {}, and the model of tag '{}' "
        "has run to {}; restart it",
        request.id.value(), *row.first_position, tags_[t]->group_tag(),
        other.page_position + other.num_pending);
  }
  std::int64_t expected = cursor.page_position;
  if (row.kind == RowKind::kGeneration) expected += cursor.num_pending;
  if (row.kind == RowKind::kDraft) expected += cursor.num_records;
  if (*row.first_position == expected || SLACKWATER_MUTANT(hybrid_any_position)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "a row of request {} at position {}: its page is at {}, with {} of {} drafts "
                    "pending, so it goes on at {}; restart it to begin elsewhere",
                    request.id.value(), *row.first_position, cursor.page_position,
                    cursor.num_pending, cursor.num_records, expected);
}

Result<void> HybridCacheManager::check_row(const BatchRow& row, std::size_t tag,
                                           HybridRequest& request) const {
  const ReplayState& state = *tags_[tag];
  if (request.setup == setups_) {
    return make_error(ErrorCode::kInvalidArgument, "two rows of request {} in a batch",
                      request.id.value());
  }
  if (request.sequence.status() != SequenceStatus::kActive) {
    return make_error(ErrorCode::kFailedPrecondition, "a row of request {}, which is {}; resume it",
                      request.id.value(), to_string(request.sequence.status()));
  }
  if (request.awaits_host() && !SLACKWATER_MUTANT(hybrid_setup_while_pending)) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a row of request {}, of whose round {} the acceptance is not recorded; call "
                      "update_resources first",
                      request.id.value(), request.open_rounds.back().round);
  }
  const std::int32_t left = row.num_tokens - written_of(row);
  if (row.num_tokens < 1 || left < 0 || written_of(row) < 0 ||
      (row.kind == RowKind::kGeneration && row.num_written < 1)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a row of request {} with {} tokens, {} of them for its page",
                      request.id.value(), row.num_tokens, written_of(row));
  }
  const std::int64_t before = row.kind == RowKind::kDraft ? request.cursors[tag].num_records : 0;
  if (left > 0 && before + left > state.max_records()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a row of request {} that leaves {} records; {} are kept per slot",
                      request.id.value(), before + left, state.max_records());
  }
  SLACKWATER_RETURN_IF_ERROR(check_position(row, tag, request));
  if (row.first_position.value_or(request.kept) < request.sequence.num_committed()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a row of request {} at position {}, and others see its pages up to {}; "
                      "restart it, so that nobody writes to them",
                      request.id.value(), *row.first_position, request.sequence.num_committed());
  }
  const std::int64_t end = row.first_position.value_or(most_kept(request)) + row.num_tokens;
  if (end > request.sequence.capacity()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a row of request {} up to position {} in a capacity of {}; resize first",
                      request.id.value(), end, request.sequence.capacity());
  }
  const SlotId slot = slot_of(request, state.layer_group());
  if (slot == cache::kNoSlot) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "request {} has no page for its state: its end is published",
                      request.id.value());
  }
  return check_slot(request.id, slot, state);
}

// Whether what it would begin with is not what it had.
bool HybridCacheManager::is_lost(HybridRequest& request, std::size_t tag) {
  if (request.is_lost) return true;
  const StateCursor& cursor = request.cursors[tag];
  if (SLACKWATER_MUTANT(hybrid_ignore_failed_copies)) return false;
  bool has_lost = request.ready.status() == EventStatus::kFailed;
  if (cursor.saved.has_value()) {
    has_lost |= cursor.saved->copied.status() == EventStatus::kFailed;
    if (cursor.saved->owner != request.certificate(tags_[tag]->layer_group(), cursor.num_saves)) {
      ++counters_.certificate_failures;
      has_lost = true;
    }
  }
  if (!has_lost) return false;
  request.is_lost = true;
  ++counters_.lost_requests;
  return true;
}

// What becomes of its slot. One that returns as context, or had none, begins anew; what it had
// saved stays until that step is queued.
void HybridCacheManager::plan_row(const BatchRow& row, std::size_t tag, HybridRequest& request) {
  StateCursor& cursor = request.cursors[tag];
  const SlotId now = slot_of(request, tags_[tag]->layer_group());
  const bool is_given_up = cursor.saved.has_value() && row.kind == RowKind::kContext &&
                           !SLACKWATER_MUTANT(hybrid_restore_into_context);
  if (cursor.slot.has_value()) {
    if (*cursor.slot != now) changes_.relocations.push_back({*cursor.slot, now});
    if (SLACKWATER_MUTANT(hybrid_reset_each_time)) changes_.resets.push_back(now);
  } else if (cursor.saved.has_value() && !is_given_up) {
    if (SLACKWATER_MUTANT(hybrid_relocate_on_restore) && cursor.slot_before != now) {
      changes_.relocations.push_back({*cursor.slot_before, now});
      drop_saved(request, tag);
    } else {
      changes_.restores.push_back({*cursor.saved, now});
      restoring_.push_back(&request);
    }
    if (SLACKWATER_MUTANT(hybrid_reset_on_restore)) changes_.resets.push_back(now);
  } else {
    changes_.resets.push_back(now);
  }
  const bool is_new = !cursor.slot.has_value();
  if (!is_given_up) settle_in(cursor, now);
  // Somebody new goes on from a snapshot.
  const bool is_restored = !restoring_.empty() && restoring_.back() == &request;
  if (is_new && !is_restored && cursor.page_position > 0) reseed(tag, now);
}

// It is in a slot from now on.
void HybridCacheManager::settle_in(StateCursor& cursor, SlotId now) {
  if (cursor.slot_before.has_value()) {
    ++(cursor.slot_before == now ? counters_.resumes_in_old_slot : counters_.resumes_in_new_slot);
    cursor.slot_before.reset();
  }
  cursor.slot = now;
}

// Whoever is not in the batch and has moved since: before anybody gets the slot that was left.
void HybridCacheManager::plan_moves(std::size_t tag) {
  for (HybridRequest* const request : moved_) {
    StateCursor& cursor = request->cursors[tag];
    if (request->setup == setups_ || !cursor.slot.has_value()) continue;
    const SlotId now = slot_of(*request, tags_[tag]->layer_group());
    if (*cursor.slot == now) continue;
    changes_.relocations.push_back({*cursor.slot, now});
    cursor.slot = now;
  }
}

// The page came without its records: they begin with a copy of its window.
void HybridCacheManager::reseed(std::size_t tag, SlotId slot) {
  if (!tags_[tag]->has_replay()) return;
  stream_.run([state = tags_[tag].get(), slot] {
    state->reseed(slot);
    return true;
  });
}

void HybridCacheManager::apply_changes(std::size_t tag) {
  if (changes_.is_empty()) return;
  tags_[tag]->registry().apply(changes_, stream_, applied_);
  for (std::size_t i = 0; i < restoring_.size(); ++i) {
    HybridRequest& request = *restoring_[i];
    StateCursor& cursor = request.cursors[tag];
    const std::array<Event, 2> both = {request.ready, applied_.restored[i]};
    request.ready = device::merge(both);
    if (cursor.accepted_override.has_value() && !SLACKWATER_MUTANT(hybrid_stale_count)) {
      set_pending(tag, *cursor.slot, *cursor.accepted_override);
    }
    cursor.accepted_override.reset();
    const bool has_records = cursor.saved->bytes == tags_[tag]->registry().slot_stride();
    if (!has_records) reseed(tag, *cursor.slot);
    cursor.saved.reset();
  }
  if (applied_.moved.is_null()) return;
  for (const auto& [id, request] : requests_) {
    const auto is_its = [&](const SlotRelocation& move) {
      return request->cursors[tag].slot == move.to;
    };
    if (std::none_of(changes_.relocations.begin(), changes_.relocations.end(), is_its)) continue;
    const std::array<Event, 2> both = {request->ready, applied_.moved};
    request->ready = device::merge(both);
  }
}

void HybridCacheManager::fill_row(const BatchRow& row, std::size_t tag, HybridRequest& request,
                                  RowSetup& out) {
  StateCursor& cursor = request.cursors[tag];
  out.row = row;
  out.epoch = request.epoch;
  out.changes = cursor.changes;
  request.setup_end =
      row.first_position.value_or(most_kept(request)) + std::int64_t{row.num_tokens};
  out.round = request.round + 1;
  out.slot = slot_of(request, tags_[tag]->layer_group());
  out.ready = request.ready;
  out.is_dummy = false;
  out.writes.clear();
  out.num_pending = cursor.num_pending;
  if (row.kind == RowKind::kDraft) {
    out.num_pending = cursor.num_records;
    return;
  }
  if (row.kind == RowKind::kContext) {
    out.num_pending = 0;
    for (const SnapshotPlace& place : request.snapshots) {
      const std::int64_t count = place.position - *row.first_position;
      if (count < 1 || count > row.num_tokens) continue;
      const auto page = request.sequence.snapshot_slot(tags_[tag]->layer_group(), place.position);
      if (page.has_value()) out.writes.push_back({static_cast<std::int32_t>(count), *page});
    }
  } else if (!request.open_rounds.empty()) {
    out.num_pending.reset();
  }
  out.writes.push_back({written_of(row), out.slot});
}

Result<void> HybridCacheManager::setup_state_indices(std::span<const BatchRow> rows,
                                                     std::string_view group_tag,
                                                     BatchSetup& setup) {
  SLACKWATER_ASSIGN_OR_RETURN(const std::size_t tag, find_tag(group_tag));
  ++setups_;
  rows_.clear();
  for (const BatchRow& row : rows) {
    SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(row.request));
    SLACKWATER_RETURN_IF_ERROR(check_row(row, tag, *request));
    request->setup = setups_;
    rows_.push_back(request);
  }
  setup.group_tag = group_tag;
  setup.lost.clear();
  changes_.clear();
  restoring_.clear();
  if (!moved_.empty()) plan_moves(tag);
  std::size_t count = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (is_lost(*rows_[i], tag)) {
      setup.lost.push_back(rows[i].request);
      continue;
    }
    plan_row(rows[i], tag, *rows_[i]);
    if (setup.rows.size() == count) setup.rows.emplace_back();
    setup.rows[count].row = rows[i];
    rows_[count++] = rows_[i];
  }
  setup.rows.resize(count);
  apply_changes(tag);
  std::erase_if(moved_, [&](const HybridRequest* request) {
    for (std::size_t t = 0; t < tags_.size(); ++t) {
      const auto& slot = request->cursors[t].slot;
      if (slot.has_value() && *slot != slot_of(*request, tags_[t]->layer_group())) return false;
    }
    return true;
  });
  for (std::size_t i = 0; i < count; ++i) {
    fill_row(BatchRow(setup.rows[i].row), tag, *rows_[i], setup.rows[i]);
  }
  queue_pending();
  return {};
}

Result<void> HybridCacheManager::pad_to(std::size_t num_rows, BatchSetup& setup) {
  if (setup.rows.size() >= num_rows) return {};
  SLACKWATER_ASSIGN_OR_RETURN(const std::size_t tag, find_tag(setup.group_tag));
  const std::size_t missing = num_rows - setup.rows.size();
  if (missing > dummies_.size()) {
    return make_error(ErrorCode::kOutOfRange,
                      "{} rows padded to {} with {} dummies; give num_dummies = {}",
                      setup.rows.size(), num_rows, dummies_.size(), missing);
  }
  for (std::size_t i = 0; i < missing; ++i) {
    HybridRequest& dummy = *dummies_[i];
    if (dummy.sequence.status() != SequenceStatus::kActive) {
      return make_error(ErrorCode::kResourceExhausted,
                        "dummy {} found no room when it was to come back; run the batch as it is",
                        i);
    }
    SLACKWATER_RETURN_IF_ERROR(
        check_slot(dummy.id, slot_of(dummy, tags_[tag]->layer_group()), *tags_[tag]));
  }
  for (std::size_t i = 0; i < missing; ++i) {
    HybridRequest& dummy = *dummies_[i];
    RowSetup& out = setup.rows.emplace_back();
    // Looked up anew each time: slots change with every suspend and adjustment.
    out.slot = slot_of(dummy, tags_[tag]->layer_group());
    out.row = {.request = dummy.id,
               .kind = RowKind::kContext,
               .first_position = 0,
               .num_tokens = 1,
               .num_written = 1};
    out.num_pending = 0;
    out.writes.push_back({1, out.slot});
    out.ready = dummy.ready;
    out.is_dummy = true;
  }
  return {};
}

}  // namespace slackwater::hybrid
