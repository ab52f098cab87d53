// What becomes of a step once the device is done with it.

#include <algorithm>

#include "engine/executor.h"
#include "engine/timed.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {

using device::EventStatus;

Result<void> Executor::finish_oldest() {
  Step& step = *pipeline_.front();
  EventStatus status = EventStatus::kPending;
  {
    const Timed timed(clock_, statistics_.wait_time);
    status = step.done.wait();
  }
  pipeline_.pop_front();
  const Timed timed(clock_, statistics_.outcome_time);
  if (config_.host_load) config_.host_load();
  Result<void> told;
  if (status != EventStatus::kSucceeded) {
    ++statistics_.failed_steps;
    fail(step);
  } else {
    drop_unsound(step);
    told = tell_acceptances(step);
    for (std::size_t i = 0; i < step.rows.size(); ++i) tell_row(step.rows[i], step.outcomes[i]);
  }
  for (const StepRow& row : step.rows) --row.request->rows_queued;
  return told;
}

// Nothing that it computed is used: its rows come back as context, and whoever is closing leaves
// nothing to others.
void Executor::fail(Step& step) {
  for (const StepRow& row : step.rows) {
    LiveRequest& request = *row.request;
    if (row.life != request.life || !request.has_state) continue;
    if (!request.is_closing) {
      lose(request);
    } else if (!SLACKWATER_MUTANT(engine_publishes_failed_steps)) {
      end_life(request);
    }
  }
}

// Rows that began with bytes which did not arrive.
void Executor::drop_unsound(Step& step) {
  const auto look = [&](const hybrid::BatchSetup& setup) {
    for (const hybrid::RowSetup& row : setup.rows) {
      LiveRequest* const request = find(row.row.request);
      if (request == nullptr || !request->has_state || row.epoch != request->life) continue;
      if (row.ready.wait() == EventStatus::kSucceeded) continue;
      if (SLACKWATER_MUTANT(engine_uses_what_did_not_arrive)) continue;
      if (request->is_closing) {
        end_life(*request);
      } else {
        lose(*request);
      }
    }
  };
  look(step.setup);
  for (std::size_t i = 0; i < step.num_draft_calls; ++i) look(step.draft_calls[i].setup);
  if (step.draft_context.num_rows > 0) look(step.draft_context.setup);
}

// Of all rounds, suspended ones too; those past a stop ran nothing.
Result<void> Executor::tell_acceptances(Step& step) {
  acceptances_.clear();
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const StepRow& row = step.rows[i];
    const RowOutcome& outcome = step.outcomes[i];
    if (row.life != row.request->life || !row.request->has_state) continue;
    if (row.is_context) {
      // A round that was queued behind the last chunk found that the first token is a stop.
      if (!outcome.has_ended || row.request->in_flight < 2) continue;
      const hybrid::RowSetup& last = step.setup.rows[i];
      acceptances_.push_back({.request = row.request->id,
                              .epoch = last.epoch,
                              .round = last.round - 1,
                              .num_accepted = 0,
                              .has_ended = true});
      continue;
    }
    if (outcome.num_tokens == 0) continue;
    if (SLACKWATER_MUTANT(engine_forgets_the_suspended) && !is_active(row.request->id)) continue;
    const hybrid::RowSetup& setup = step.setup.rows[i];
    acceptances_.push_back({.request = row.request->id,
                            .epoch = setup.epoch,
                            .round = setup.round,
                            .num_accepted = std::max(outcome.num_kept - 1, 0),
                            .has_ended = outcome.has_ended});
  }
  return state_->update_resources(acceptances_);
}

// Returns whether the answer ends with it.
bool Executor::add_token(LiveRequest& request, const RowOutcome& outcome, std::size_t index) {
  const kernels::SampleResult& sampled = outcome.sampled[index];
  request.tokens.push_back(sampled.token);
  request.sampling.add(sampled.token);
  if (request.has_drafts && config_.speculation.drafter == DrafterKind::kNgram) {
    request.ngrams.append(std::span(&request.tokens.back(), 1));
  }
  OutputToken token{.token = sampled.token, .logprob = sampled.logprob, .top_logprobs = {}};
  const auto num_top = static_cast<std::size_t>(request.asked.num_top_logprobs);
  const auto top = outcome.top_logprobs.begin() + static_cast<std::ptrdiff_t>(index * num_top);
  token.top_logprobs.assign(top, top + static_cast<std::ptrdiff_t>(num_top));
  output_.tokens.push_back(std::move(token));
  ++statistics_.generated_tokens;
  const TextOutput::Step step = request.text.push(sampled.token);
  output_.text += step.text;
  return step.finished;
}

void Executor::tell_row(const StepRow& row, const RowOutcome& outcome) {
  LiveRequest& request = *row.request;
  if (row.life != request.life && !SLACKWATER_MUTANT(engine_looks_at_earlier_lives)) return;
  --request.in_flight;
  request.tokens_to_come -= row.samples ? 1 : 0;
  if (request.in_flight == 0) request.before = nullptr;
  if (request.is_closing) return;
  output_.request = request.id;
  output_.choice = request.choice;
  std::optional<FinishReason> reason;
  for (std::size_t i = 0; i < outcome.sampled.size() && !reason.has_value(); ++i) {
    if (add_token(request, outcome, i)) {
      reason = FinishReason::kStop;
    } else if (std::ssize(request.tokens) >= request.limit) {
      // What is held back may turn out to be a stop text at the very end.
      TextOutput::Step rest = request.text.finish();
      output_.text += rest.text;
      reason = rest.finished ? FinishReason::kStop : FinishReason::kLength;
    }
  }
  if (!row.is_context && outcome.num_tokens > 1) {
    const std::int32_t proposed = outcome.num_tokens - 1;
    const std::int32_t accepted = std::max(outcome.num_kept - 1, 0);
    request.drafts_proposed += proposed;
    request.drafts_accepted += accepted;
    statistics_.drafts_proposed += proposed;
    statistics_.drafts_accepted += accepted;
    request.draft_length.record(proposed, accepted);
  } else if (!row.is_context) {
    request.draft_length.record(0, 0);
  }
  if (request.in_flight == 0) {
    request.are_drafts_known = false;
    if (config_.speculation.drafter == DrafterKind::kMtp) request.drafts = outcome.drafts;
  }
  if (outcome.error.has_value() && !reason.has_value()) {
    close(request, FinishReason::kError, outcome.error);
  } else if (reason.has_value()) {
    close(request, *reason, std::nullopt);
  } else if (!output_.tokens.empty()) {
    tell(request);
  }
  if (request.hold == Hold::kRecomputed && request.has_state && request.in_flight == 0 &&
      !request.is_closing) {
    give_up(request);
  }
}

}  // namespace slackwater::engine
