// From a schedule to work on the device.

#include <algorithm>
#include <array>
#include <utility>

#include "engine/executor.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"

namespace slackwater::engine {

using hybrid::RowKind;

// Its memory was last used by a step that has ended, and whose outcomes nobody reads any more.
Step& Executor::next_step() {
  Step& step = steps_[static_cast<std::size_t>(num_steps_) % steps_.size()];
  // One whose rows were all lost may have left calls of the draft model behind.
  step.done.wait();
  step.number = num_steps_++;
  step.rows.clear();
  step.tokens.clear();
  step.blocks.clear();
  step.num_draft_calls = 0;
  step.draft_context.num_rows = 0;
  step.done = {};
  step.fails = config_.fail_step && config_.fail_step(step.number);
  return step;
}

void Executor::add_table(std::vector<SlotId>& blocks, const LiveRequest& request,
                         LayerGroupId group, std::size_t& first, std::size_t& count) {
  const std::span<const SlotId> slots = state_->sequence(request.id).slots(group);
  first = blocks.size();
  count = slots.size();
  blocks.insert(blocks.end(), slots.begin(), slots.end());
}

// Copies: what the cache keeps may change while the step runs.
void Executor::add_tables(Step& step, StepRow& row) {
  if (has_target_group_) {
    add_table(step.blocks, *row.request, target_group_, row.first_block, row.num_blocks);
  }
  if (config_.speculation.drafter != DrafterKind::kMtp) return;
  add_table(step.blocks, *row.request, mtp_group_, row.first_mtp_block, row.num_mtp_blocks);
}

void Executor::add_context_row(Step& step, const scheduler::ScheduledContext& scheduled) {
  LiveRequest& request = *find(scheduled.request);
  StepRow row;
  row.request = &request;
  row.life = request.life;
  row.is_context = true;
  row.is_last_chunk = scheduled.is_last;
  row.samples = scheduled.is_last && !request.is_golden_known();
  row.first_position = scheduled.first_position;
  row.num_tokens = static_cast<std::int32_t>(scheduled.num_tokens);
  row.first_token = step.tokens.size();
  row.num_known = static_cast<std::size_t>(scheduled.num_tokens);
  row.limit = request.limit;
  const auto begin = request.tokens.begin() + scheduled.first_position;
  step.tokens.insert(step.tokens.end(), begin, begin + scheduled.num_tokens);
  if (scheduled.is_last && request.is_golden_known()) {
    row.next = request.tokens[static_cast<std::size_t>(request.context_end)];
  }
  if (scheduled.is_last && config_.speculation.drafter == DrafterKind::kMtp) {
    row.num_to_propose = std::min(draft_room(request), request.draft_length.next());
  }
  reserve_snapshots(request, scheduled.first_position, scheduled.num_tokens);
  add_tables(step, row);
  step.rows.push_back(row);
}

void Executor::add_round(Step& step, const scheduler::ScheduledGeneration& scheduled) {
  LiveRequest& request = *find(scheduled.request);
  StepRow row;
  row.request = &request;
  row.life = request.life;
  row.samples = true;
  row.num_drafts = scheduled.num_drafts;
  row.num_tokens = 1 + scheduled.num_drafts;
  row.limit = request.limit;
  row.before = request.in_flight > 0 ? request.before : nullptr;
  const Result<hybrid::RequestPosition> position = state_->position(request.id);
  SLACKWATER_CHECK(position.has_value(), "{}", position.error().text());
  if (!position->is_on_device) row.first_position = position->kept;
  row.first_token = step.tokens.size();
  // Golden tokens that are sampled by a step under way are the device's to know.
  if (request.tokens_to_come == 0) {
    step.tokens.push_back(request.tokens.back());
    const bool has_host_drafts =
        request.in_flight == 0 && config_.speculation.drafter != DrafterKind::kDraftModel;
    if (has_host_drafts) {
      step.tokens.insert(step.tokens.end(), request.drafts.begin(),
                         request.drafts.begin() + scheduled.num_drafts);
    }
    SLACKWATER_CHECK(request.in_flight > 0 || *row.first_position == std::ssize(request.tokens) - 1,
                     "request {} goes on at {} and has {} tokens", request.id.value(),
                     *row.first_position, request.tokens.size());
  }
  row.num_known = step.tokens.size() - row.first_token;
  if (config_.speculation.drafter == DrafterKind::kMtp) {
    // What may come after this round, whatever it accepts.
    const std::int64_t left = draft_room(request) - 1;
    row.num_to_propose =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(left, 0, request.draft_length.next()));
  }
  add_tables(step, row);
  step.rows.push_back(row);
}

void Executor::reserve_snapshots(LiveRequest& request, std::int64_t first,
                                 std::int64_t num_tokens) {
  for (const std::int64_t point : request.snapshot_points) {
    if (point <= first || point > first + num_tokens) continue;
    // Without room there is no snapshot: nobody waits for one.
    static_cast<void>(state_->reserve_snapshot(request.id, point));
  }
}

// Rows whose state was lost on its way: they come back as context. What is queued of the step looks
// at their requests, which may be gone before it has run.
void Executor::drop_rows(Step& step, std::span<const RequestId> lost) {
  if (!lost.empty()) step.done.wait();
  // Draft calls that are queued already look at these requests.
  if (!lost.empty() && step.num_draft_calls > 0) step.done.wait();
  for (const RequestId id : lost) {
    std::erase_if(step.rows, [&](const StepRow& row) { return row.request->id == id; });
    lose(*find(id));
  }
}

Result<bool> Executor::prepare(Step& step) {
  for (const scheduler::ScheduledContext& scheduled : schedule_.contexts) {
    add_context_row(step, scheduled);
  }
  for (const scheduler::ScheduledGeneration& scheduled : schedule_.generations) {
    add_round(step, scheduled);
  }
  if (config_.speculation.drafter == DrafterKind::kDraftModel) {
    SLACKWATER_RETURN_IF_ERROR(queue_drafts(step));
  }
  SLACKWATER_RETURN_IF_ERROR(queue_target(step));
  if (step.rows.empty()) return false;
  if (config_.speculation.drafter == DrafterKind::kDraftModel) {
    SLACKWATER_RETURN_IF_ERROR(queue_draft_context(step));
  }
  note_queued(step);
  if (config_.speculation.drafter == DrafterKind::kDraftModel) {
    // Their rows of the target are queued already, and nobody will look at them.
    for (const RequestId id : step.draft_context.setup.lost) lose(*find(id));
    step.draft_context.setup.lost.clear();
  }
  publish_contexts(step);
  pipeline_.push_back(&step);
  last_half_ = half_;
  ++statistics_.steps;
  return true;
}

// Queues one part of a step; the step is done when its parts are.
void Executor::run_item(Step& step, std::function<bool(kernels::ExecutionContext&)> part) {
  parts_.context->enqueue(*stream_, std::move(part));
  const std::array<device::Event, 2> both = {step.done, stream_->record()};
  step.done = device::merge(both);
}

Result<void> Executor::queue_target(Step& step) {
  batch_rows_.clear();
  for (const StepRow& row : step.rows) {
    batch_rows_.push_back({.request = row.request->id,
                           .kind = row.is_context ? RowKind::kContext : RowKind::kGeneration,
                           .first_position = row.first_position,
                           .num_tokens = row.num_tokens,
                           .num_written = row.is_context ? row.num_tokens : 1});
  }
  SLACKWATER_RETURN_IF_ERROR(state_->setup_state_indices(batch_rows_, step.setup));
  drop_rows(step, step.setup.lost);
  if (step.rows.empty()) return {};
  if (step.outcomes.size() < step.rows.size()) step.outcomes.resize(step.rows.size());
  if (step.num_accepted.size() < step.rows.size()) step.num_accepted.resize(step.rows.size());
  run_item(step, [this, &step](kernels::ExecutionContext&) { return runner_->run_target(step); });
  state_->step_queued(step.setup);
  if (config_.speculation.drafter == DrafterKind::kMtp) {
    state_->record_acceptance(step.setup, step.num_accepted.data());
  }
  return {};
}

// --- The draft model.

// Golden tokens, and what the draft model has missed, then draft after draft.
Result<void> Executor::queue_drafts(Step& step) {
  std::int32_t most = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    StepRow& row = step.rows[i];
    row.drafts_at = i * static_cast<std::size_t>(max_drafts_);
    most = std::max(most, row.num_drafts);
  }
  step.drafts.resize(step.rows.size() * static_cast<std::size_t>(max_drafts_));
  if (step.draft_calls.size() < static_cast<std::size_t>(max_drafts_)) {
    step.draft_calls.resize(static_cast<std::size_t>(max_drafts_));
  }
  for (std::int32_t draft = 0; draft < most; ++draft) {
    DraftCall& call = step.draft_calls[static_cast<std::size_t>(draft)];
    add_draft_rows(step, draft, call);
    if (call.num_rows == 0) break;
    SLACKWATER_RETURN_IF_ERROR(set_up_drafts(step, call));
    if (call.num_rows == 0) break;
    const auto number = static_cast<std::size_t>(draft);
    run_item(step, [this, &step, number](kernels::ExecutionContext&) {
      return runner_->run_draft_call(step, number);
    });
    state_->step_queued(call.setup);
    ++step.num_draft_calls;
  }
  return {};
}

// The rows of the call that makes draft number `draft`.
void Executor::add_draft_rows(Step& step, std::int32_t draft, DraftCall& call) {
  call.num_rows = 0;
  call.tokens.clear();
  call.blocks.clear();
  batch_rows_.clear();
  for (StepRow& row : step.rows) {
    if (row.is_context || row.num_drafts <= draft) continue;
    LiveRequest& request = *row.request;
    const std::int64_t golden = std::ssize(request.tokens) - 1;
    DraftRow out;
    out.request = &request;
    out.drafts_at = row.drafts_at;
    out.draft = draft;
    out.num_tokens = 1;
    out.first_position = golden + draft;
    if (draft == 0) {
      const auto position = state_->position(request.id, "draft");
      SLACKWATER_CHECK(position.has_value(), "{}", position.error().text());
      out.first_position = position->page_position + position->num_pending;
      const std::int64_t missing = golden + 1 - out.first_position;
      out.num_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(missing, kMostMadeUp));
      // It is too far behind to speak up in this round.
      if (out.num_tokens < missing) {
        out.draft = -1;
        row.num_drafts = 0;
        row.num_tokens = 1;
      }
      out.first_token = call.tokens.size();
      const auto begin = request.tokens.begin() + out.first_position;
      call.tokens.insert(call.tokens.end(), begin, begin + out.num_tokens);
    }
    if (has_draft_group_) {
      add_table(call.blocks, request, draft_group_, out.first_block, out.num_blocks);
    }
    batch_rows_.push_back({.request = request.id,
                           .kind = draft == 0 ? RowKind::kGeneration : RowKind::kDraft,
                           .first_position = out.first_position,
                           .num_tokens = out.num_tokens,
                           .num_written = draft == 0 ? out.num_tokens : 0});
    if (call.rows.size() == call.num_rows) call.rows.emplace_back();
    call.rows[call.num_rows++] = out;
  }
}

Result<void> Executor::set_up_drafts(Step& step, DraftCall& call) {
  SLACKWATER_RETURN_IF_ERROR(state_->setup_state_indices(batch_rows_, "draft", call.setup));
  if (call.setup.lost.empty()) return {};
  for (const RequestId id : call.setup.lost) {
    const auto end = call.rows.begin() + static_cast<std::ptrdiff_t>(call.num_rows);
    const auto kept = std::remove_if(call.rows.begin(), end,
                                     [&](const DraftRow& row) { return row.request->id == id; });
    call.num_rows = static_cast<std::size_t>(kept - call.rows.begin());
  }
  drop_rows(step, call.setup.lost);
  return {};
}

// Its share of the chunks.
Result<void> Executor::queue_draft_context(Step& step) {
  DraftCall& call = step.draft_context;
  call.num_rows = 0;
  call.tokens.clear();
  call.blocks.clear();
  batch_rows_.clear();
  for (const StepRow& row : step.rows) {
    if (!row.is_context) continue;
    DraftRow out;
    out.request = row.request;
    out.first_position = *row.first_position;
    out.num_tokens = row.num_tokens;
    out.first_token = call.tokens.size();
    const auto begin = step.tokens.begin() + static_cast<std::ptrdiff_t>(row.first_token);
    call.tokens.insert(call.tokens.end(), begin, begin + row.num_tokens);
    if (has_draft_group_) {
      add_table(call.blocks, *row.request, draft_group_, out.first_block, out.num_blocks);
    }
    batch_rows_.push_back({.request = row.request->id,
                           .kind = RowKind::kContext,
                           .first_position = out.first_position,
                           .num_tokens = out.num_tokens,
                           .num_written = out.num_tokens});
    if (call.rows.size() == call.num_rows) call.rows.emplace_back();
    call.rows[call.num_rows++] = out;
  }
  if (call.num_rows == 0) return {};
  SLACKWATER_RETURN_IF_ERROR(state_->setup_state_indices(batch_rows_, "draft", call.setup));
  for (const RequestId id : call.setup.lost) {
    const auto end = call.rows.begin() + static_cast<std::ptrdiff_t>(call.num_rows);
    const auto kept = std::remove_if(call.rows.begin(), end,
                                     [&](const DraftRow& row) { return row.request->id == id; });
    call.num_rows = static_cast<std::size_t>(kept - call.rows.begin());
  }
  if (call.num_rows == 0) return {};
  run_item(step,
           [this, &step](kernels::ExecutionContext&) { return runner_->run_draft_context(step); });
  state_->step_queued(call.setup);
  return {};
}

// --- Once it is queued.

void Executor::note_queued(Step& step) {
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const StepRow& row = step.rows[i];
    LiveRequest& request = *row.request;
    request.half = half_;
    ++request.in_flight;
    ++request.rows_queued;
    request.before = &step.outcomes[i];
    request.num_proposed = row.num_to_propose;
    request.are_drafts_known = false;
    request.tokens_to_come += row.samples ? 1 : 0;
    if (row.is_context) {
      request.cursor = *row.first_position + row.num_tokens;
      request.most_run = request.cursor;
      auto& counted =
          request.has_run_before ? statistics_.recomputed_tokens : statistics_.prompt_tokens;
      counted += row.num_tokens;
      if (request.num_reused < 0) request.num_reused = request.num_matched;
    } else {
      request.most_run = row.first_position.value_or(request.most_run) + row.num_tokens;
      ++statistics_.rounds;
    }
  }
}

// Others find what a chunk has computed, and its snapshots, once its step has succeeded.
void Executor::publish_contexts(Step& step) {
  for (const StepRow& row : step.rows) {
    if (!row.is_context || row.life != row.request->life) continue;
    LiveRequest& request = *row.request;
    const std::int64_t committed = state_->sequence(request.id).num_committed();
    const std::int64_t end = *row.first_position + row.num_tokens;
    if (end <= committed) continue;
    const auto tokens = std::span<const TokenId>(request.tokens)
                            .subspan(static_cast<std::size_t>(committed),
                                     static_cast<std::size_t>(end - committed));
    const Result<void> published = state_->publish(request.id, tokens, {.written = step.done});
    if (!published.has_value() && published.error().code() == ErrorCode::kDataLoss) lose(request);
  }
}

}  // namespace slackwater::engine
