// What of a request becomes reusable: pending drafts are folded in, kept tokens are committed.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "hybrid/hybrid_request.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::hybrid {

using cache::SequenceStatus;
using device::Event;
using device::EventStatus;

namespace {

// Folds the first `count` records of a slot into its page, in all layers.
struct FoldRecords {
  KdaShape shape;
  std::vector<kernels::RecurrentPages> pages;   // [layers]
  std::vector<kernels::ReplayRecords> records;  // [layers]
  SlotId slot;
  std::int64_t end = 0;  // tokens that the page stands for afterwards
  std::int32_t count = 0;
  std::int32_t* pending = nullptr;
  float* hidden = nullptr;  // [hidden_size]; null without a prediction block
  const float* hidden_records = nullptr;
  std::int64_t hidden_size = 0;

  bool operator()(kernels::ExecutionContext& context) const {
    const kernels::StateWrite write{.count = 0, .page = slot};
    kernels::SequenceRow row;
    row.first_position = end;
    row.state_page = slot;
    row.num_pending = count;
    row.writes = {&write, 1};
    for (std::size_t layer = 0; layer < pages.size(); ++layer) {
      kernels::KdaStepArgs args;
      args.num_heads = shape.num_heads;
      args.head_dim = shape.head_dim;
      args.qkv_stride = args.decay_stride = args.o_stride = shape.width();
      args.beta_stride = shape.num_heads;
      args.pages = pages[layer];
      args.records = records[layer];
      args.rows = {&row, 1};
      kernels::kda_step(context, args);
    }
    if (hidden != nullptr) {
      std::memcpy(hidden, hidden_records + (count - 1) * hidden_size,
                  static_cast<std::size_t>(hidden_size) * sizeof(float));
    }
    *pending = 0;
    return true;
  }
};

}  // namespace

// What cannot be done while somebody else has to say first how much of it counts.
Result<void> HybridCacheManager::check_settled(const HybridRequest& request,
                                               std::string_view what) const {
  if (request.sequence.status() != SequenceStatus::kActive) {
    return make_error(ErrorCode::kFailedPrecondition, "{} of request {}, which is {}", what,
                      request.id.value(), to_string(request.sequence.status()));
  }
  if (!request.open_rounds.empty()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "{} of request {}, of whose round {} the acceptance is not recorded; call "
                      "update_resources first",
                      what, request.id.value(), request.open_rounds.front().round);
  }
  if (request.is_lost || request.ready.status() == EventStatus::kFailed) {
    return make_error(ErrorCode::kDataLoss, "{} of request {}, whose state is lost; restart it",
                      what, request.id.value());
  }
  return {};
}

void HybridCacheManager::queue_commit(HybridRequest& request, std::size_t tag, std::int32_t count) {
  ReplayState& state = *tags_[tag];
  StateCursor& cursor = request.cursors[tag];
  // A draft model between its golden token and the target's round: its records are for that to say.
  if (cursor.num_pending == 0) return;
  ++cursor.changes;
  if (count > 0) {
    FoldRecords fold;
    fold.shape = state.shape();
    for (std::size_t layer = 0; layer < state.layers().size(); ++layer) {
      fold.pages.push_back(state.pages(layer));
      fold.records.push_back(state.records(layer));
    }
    fold.slot = *cursor.slot;
    fold.count = count;
    fold.end = cursor.page_position + count;
    fold.pending = state.pending(*cursor.slot);
    fold.hidden = state.mtp_hidden(*cursor.slot);
    fold.hidden_records = state.mtp_hidden_cache(*cursor.slot);
    fold.hidden_size = tags_[tag]->group_tag() == "target" ? config_.mtp_hidden_size : 0;
    context_->enqueue(stream_, std::move(fold));
    ++counters_.commits;
  } else {
    set_pending(tag, *cursor.slot, 0);
  }
  cursor.page_position += count;
  cursor.num_pending = cursor.num_records = 0;
}

Result<void> HybridCacheManager::commit_pending(RequestId id, std::optional<std::int32_t> count) {
  SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(id));
  SLACKWATER_RETURN_IF_ERROR(check_settled(*request, "commit_pending"));
  const Result<std::size_t> target = find_tag("target");
  const std::int32_t most = target.has_value() ? request->cursors[*target].num_pending : 0;
  const std::int32_t wanted = count.value_or(most);
  if (wanted < 0 || wanted > most) {
    return make_error(ErrorCode::kInvalidArgument,
                      "commit of {} pending drafts of request {}, which has {}", wanted, id.value(),
                      most);
  }
  const std::int64_t committed = request->sequence.num_committed();
  if (target.has_value() && request->cursors[*target].page_position + wanted < committed) {
    return make_error(ErrorCode::kInvalidArgument,
                      "commit of {} pending drafts of request {} from {} on; others see its tokens "
                      "up to {}, so commit {} or more",
                      wanted, id.value(), request->cursors[*target].page_position, committed,
                      committed - request->cursors[*target].page_position);
  }
  for (std::size_t t = 0; t < tags_.size() && wanted < most; ++t) {
    const std::int64_t kept = request->cursors[*target].page_position + wanted;
    if (request->cursors[t].page_position <= kept) continue;
    return make_error(ErrorCode::kFailedPrecondition,
                      "commit of {} of {} pending drafts of request {}, up to {}, and the model of "
                      "tag '{}' has run to {}; commit all, or restart it",
                      wanted, most, id.value(), kept, tags_[t]->group_tag(),
                      request->cursors[t].page_position);
  }
  const auto has_pending = [](const StateCursor& cursor) { return cursor.num_pending > 0; };
  if (std::none_of(request->cursors.begin(), request->cursors.end(), has_pending)) return {};
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    if (!request->cursors[t].slot.has_value()) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "commit_pending of request {}, which is not set up since it resumed",
                        id.value());
    }
    if (tags_[t]->shape().conv_dtype != DType::kF32) {
      return make_error(ErrorCode::kUnimplemented,
                        "commit_pending with windows of {}; kernels take F32",
                        to_string(tags_[t]->shape().conv_dtype));
    }
  }
  if (context_ == nullptr) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "commit_pending of a manager that was made without an execution context");
  }
  const std::int64_t kept =
      target.has_value() ? request->cursors[*target].page_position + wanted : request->kept;
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    const StateCursor& cursor = request->cursors[t];
    const std::int64_t up_to_kept =
        std::clamp<std::int64_t>(kept - cursor.page_position, 0, cursor.num_pending);
    queue_commit(*request, t, static_cast<std::int32_t>(up_to_kept));
  }
  request->kept = kept;
  queue_pending();
  return {};
}

// Whether the page of the target's state is not past `end`, and the pending drafts reach it.
Result<void> HybridCacheManager::check_kept(const HybridRequest& request, std::int64_t end) {
  const Result<std::size_t> target = find_tag("target");
  const std::int64_t page =
      target.has_value() ? request.cursors[*target].page_position : std::int64_t{0};
  std::int64_t kept = target.has_value() ? request.kept : end;
  // A draft model that lags behind has not written its part of the blocks yet.
  for (const StateCursor& cursor : request.cursors) {
    kept = std::min(kept, cursor.page_position + cursor.num_pending);
  }
  if ((page <= end && end <= kept) || SLACKWATER_MUTANT(hybrid_publish_past_kept)) return {};
  ++counters_.publishes_refused;
  return make_error(ErrorCode::kFailedPrecondition,
                    "publish of request {} up to {}: its page is at {}, and {} tokens are kept and "
                    "computed by all its models, so nothing is published",
                    request.id.value(), end, page, kept);
}

// Places that no step has written, or not for all tags, hold nothing.
void HybridCacheManager::cancel_unwritten(HybridRequest& request, std::int64_t end) {
  const std::uint64_t all = (std::uint64_t{1} << tags_.size()) - 1;
  std::erase_if(request.snapshots, [&](const SnapshotPlace& place) {
    if (place.position > end) return false;
    if (place.written != all) request.sequence.cancel_snapshot(place.position);
    return true;
  });
}

// Folds in what is pending up to `end` where a snapshot is wanted; whether all states are of
// exactly that then.
Result<bool> HybridCacheManager::settle_states(HybridRequest& request, std::int64_t end,
                                               const PublishOptions& options) {
  if (tags_.empty() || (!options.with_snapshot && !options.is_end)) return false;
  const auto is_at_end = [&] {
    return std::all_of(request.cursors.begin(), request.cursors.end(), [&](const auto& cursor) {
      return cursor.slot.has_value() && cursor.page_position == end && cursor.num_pending == 0;
    });
  };
  const bool can_fold = context_ != nullptr && (options.is_end || end == request.kept);
  if (!is_at_end() && can_fold) {
    const Result<std::size_t> target = find_tag("target");
    const std::int64_t page = request.cursors[target.value_or(0)].page_position;
    const Result<void> folded = commit_pending(request.id, static_cast<std::int32_t>(end - page));
    if (!folded.has_value() && folded.error().code() != ErrorCode::kFailedPrecondition &&
        folded.error().code() != ErrorCode::kUnimplemented) {
      return tl::unexpected<Error>(folded.error());
    }
  }
  if (is_at_end()) return true;
  ++counters_.snapshots_skipped;
  return false;
}

Result<void> HybridCacheManager::publish(RequestId id, std::span<const TokenId> tokens,
                                         const PublishOptions& options) {
  SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(id));
  SLACKWATER_RETURN_IF_ERROR(check_settled(*request, "publish"));
  const std::int64_t end = request->sequence.num_committed() + std::ssize(tokens);
  SLACKWATER_RETURN_IF_ERROR(check_kept(*request, end));
  if (!config_.enable_block_reuse) return {};
  SLACKWATER_ASSIGN_OR_RETURN(const bool has_states, settle_states(*request, end, options));
  cancel_unwritten(*request, end);
  cache::CommitOptions commit;
  // What the steps began with counts too: who goes on from bytes that never came writes nonsense.
  const std::array<Event, 3> all = {options.written, request->ready,
                                    has_states ? stream_.mark() : Event()};
  commit.written = device::merge(all);
  commit.is_end = options.is_end;
  commit.publishes_state = has_states;
  SLACKWATER_RETURN_IF_ERROR(request->sequence.commit(tokens, commit));
  note_slot_changes(*request);
  return {};
}

// The page may have become the snapshot, and the state goes on in another slot: what lies beside
// the old one moves with the next setup, whoever's that is.
void HybridCacheManager::note_slot_changes(HybridRequest& request) {
  bool has_moved = false;
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    StateCursor& cursor = request.cursors[t];
    const std::span<const SlotId> slots = request.sequence.slots(tags_[t]->layer_group());
    if (slots.empty() || slots[0] == cache::kNoSlot) {
      cursor.slot.reset();
      ++cursor.changes;
    } else if (cursor.slot.has_value() && *cursor.slot != slots[0]) {
      has_moved = true;
      ++cursor.changes;
    }
  }
  // The copy that it goes on in may fail, wherever that lies.
  const std::array<Event, 2> both = {request.ready, request.sequence.arrived()};
  request.ready = device::merge(both);
  if (has_moved && std::find(moved_.begin(), moved_.end(), &request) == moved_.end()) {
    moved_.push_back(&request);
  }
}

Result<std::vector<std::int64_t>> HybridCacheManager::snapshot_points(
    RequestId id, std::int64_t prompt_length) const {
  SLACKWATER_ASSIGN_OR_RETURN(const HybridRequest* const request, find(id));
  if (tags_.empty() || !config_.enable_block_reuse) return std::vector<std::int64_t>();
  std::vector<std::int64_t> points = kv_cache_->snapshot_points(request->sequence, prompt_length);
  const SnapshotOptions& snapshots = config_.snapshots;
  if (!snapshots.enable_branch_snapshot) {
    const std::int64_t last_block =
        (prompt_length - 1) / kv_cache_->tokens_per_block() * kv_cache_->tokens_per_block();
    const std::int64_t interval = snapshots.periodic_snapshot_interval;
    std::erase_if(points, [&](std::int64_t at) {
      const bool is_periodic = interval > 0 && at % interval == 0;
      return at == request->sequence.match().content && at != last_block &&
             at != prompt_length - 1 && !is_periodic;
    });
  }
  for (const std::int64_t offset : snapshots.additional_snapshot_offsets_from_start) {
    points.push_back(offset);
  }
  for (const std::int64_t offset : snapshots.additional_snapshot_offsets_from_end) {
    points.push_back(prompt_length - offset);
  }
  const std::int64_t reused = request->sequence.num_committed();
  std::erase_if(points, [&](std::int64_t at) { return at <= reused || at > prompt_length; });
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return points;
}

Result<void> HybridCacheManager::reserve_snapshot(RequestId id, std::int64_t position) {
  SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(id));
  for (const StateCursor& cursor : request->cursors) {
    if (position > cursor.page_position || SLACKWATER_MUTANT(hybrid_snapshot_behind)) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "a snapshot of request {} at position {}, and its page is at {} already; "
                      "reserve it before the step that runs past it",
                      id.value(), position, cursor.page_position);
  }
  SLACKWATER_RETURN_IF_ERROR(request->sequence.reserve_snapshot(position));
  const auto at = std::lower_bound(
      request->snapshots.begin(), request->snapshots.end(), position,
      [](const SnapshotPlace& place, std::int64_t wanted) { return place.position < wanted; });
  if (at != request->snapshots.end() && at->position == position) return {};
  request->snapshots.insert(at, {position, 0});
  return {};
}

}  // namespace slackwater::hybrid
