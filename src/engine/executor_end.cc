// What a request needs before its end can be of use to others.

#include <algorithm>
#include <array>
#include <memory>

#include "engine/executor.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {

// A draft model that sat out the last rounds, or whose last draft was right, is behind: blocks and
// snapshots are those of all models, so it runs what it has missed. The event says when, and
// whether, that is there; null where nothing was missing.
Result<device::Event> Executor::catch_up(LiveRequest& request, std::int64_t end) {
  if (config_.speculation.drafter != DrafterKind::kDraftModel) return device::Event();
  if (SLACKWATER_MUTANT(engine_draft_model_stays_behind)) return device::Event();
  const auto target = state_->position(request.id);
  const auto draft = state_->position(request.id, "draft");
  if (!target.has_value() || !draft.has_value()) return device::Event();
  // A page past the end is not published at all.
  if (target->page_position > end || draft->page_position > end) return device::Event();
  const std::int64_t first = draft->page_position + draft->num_pending;
  const std::int64_t most = std::int64_t{config_.scheduler.max_batch_size} * kMostMadeUp;
  for (std::int64_t at = first; at < end; at += most) {
    SLACKWATER_RETURN_IF_ERROR(queue_catch_up(request, at, std::min(at + most, end)));
  }
  return first < end ? stream_->record() : device::Event();
}

// One call, with memory of its own: it is the last that anybody hears of the request.
Result<void> Executor::queue_catch_up(LiveRequest& request, std::int64_t first, std::int64_t end) {
  const auto step = std::make_shared<Step>();
  DraftCall& call = step->draft_context;
  DraftRow row;
  row.first_position = first;
  row.num_tokens = static_cast<std::int32_t>(end - first);
  if (has_draft_group_) {
    add_table(call.blocks, request, draft_group_, row.first_block, row.num_blocks);
  }
  call.tokens.assign(request.tokens.begin() + first, request.tokens.begin() + end);
  call.rows.push_back(row);
  call.num_rows = 1;
  const std::array<hybrid::BatchRow, 1> rows = {{{.request = request.id,
                                                  .kind = hybrid::RowKind::kGeneration,
                                                  .first_position = first,
                                                  .num_tokens = row.num_tokens,
                                                  .num_written = row.num_tokens}}};
  SLACKWATER_RETURN_IF_ERROR(state_->setup_state_indices(rows, "draft", call.setup));
  if (!call.setup.lost.empty()) {
    return make_error(ErrorCode::kDataLoss, "the draft model's state of request {} is lost",
                      request.id.value());
  }
  parts_.context->enqueue(*stream_, [this, step](kernels::ExecutionContext&) {
    return runner_->run_draft_context(*step);
  });
  state_->step_queued(call.setup);
  return {};
}

}  // namespace slackwater::engine
