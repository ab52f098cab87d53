#include "engine/step_runner.h"

#include <algorithm>
#include <string_view>

#include "engine/live_request.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {
namespace {

constexpr std::string_view kLatentRole = "kv_latent";

kernels::LatentPages latent_pages(const PageTable& table, std::int32_t width) {
  kernels::LatentPages pages;
  pages.base = table.base;
  pages.slot_stride = table.slot_stride;
  pages.token_stride = std::int64_t{width} * static_cast<std::int64_t>(sizeof(float));
  pages.num_slots = table.num_slots;
  pages.tokens_per_block = table.tokens_per_block;
  pages.width = width;
  return pages;
}

PageTable latent_table(const hybrid::HybridCacheManager& state, std::int32_t layer) {
  Result<PageTable> table =
      const_cast<hybrid::HybridCacheManager&>(state).kv_cache().page_table(layer, kLatentRole);
  SLACKWATER_CHECK(table.has_value(), "{}", table.error().text());
  return *std::move(table);
}

}  // namespace

std::int32_t mtp_layer_id(const model::ModelConfig& target) { return target.num_layers; }
std::int32_t draft_layer_id(const model::ModelConfig& target, std::int32_t layer) {
  return target.num_layers + 1 + layer;
}

void RowOutcome::clear() {
  first_position = 0;
  num_tokens = num_kept = 0;
  has_ended = false;
  sampled.clear();
  top_logprobs.clear();
  drafts.clear();
  error.reset();
}

StepRunner::StepRunner(kernels::ExecutionContext& context, LanguageModel& target,
                       LanguageModel* draft_model, const Options& options)
    : context_(context),
      target_(target),
      draft_model_(options.drafter == DrafterKind::kDraftModel ? draft_model : nullptr),
      options_(options) {
  const std::int32_t logits = options.max_rows * (1 + options.max_drafts);
  // The prediction block runs a row of its own for the token after each chunk.
  target.reserve({.max_tokens = options.max_tokens + options.max_rows, .max_logits = logits});
  logits_ = AlignedBuffer<float>(static_cast<std::size_t>(logits) *
                                 static_cast<std::size_t>(target.config().vocab_size));
  if (options.drafter != DrafterKind::kMtp && options.drafter != DrafterKind::kDraftModel) return;
  draft_logits_ = AlignedBuffer<float>(static_cast<std::size_t>(options.max_rows) *
                                       static_cast<std::size_t>(target.config().vocab_size));
  if (draft_model_ == nullptr) return;
  draft_model_->reserve({.max_tokens = std::max(options.max_tokens, options.max_draft_tokens),
                         .max_logits = options.max_rows});
}

StepRunner::Views StepRunner::views_of(hybrid::HybridCacheManager& state,
                                       const model::ModelConfig& config, std::int32_t first_layer,
                                       const char* tag) const {
  Views views;
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.layer_kinds[static_cast<std::size_t>(layer)] != model::LayerKind::kMla) continue;
    views.latent.push_back(
        latent_pages(latent_table(state, first_layer + layer), config.mla_row_width()));
  }
  if (config.num_kda_layers() == 0) return views;
  hybrid::ReplayState& replay = state.replay_state(tag);
  views.state = &replay;
  for (std::size_t i = 0; i < replay.layers().size(); ++i) {
    views.recurrent.push_back(replay.pages(i));
    if (replay.has_replay()) views.records.push_back(replay.records(i));
  }
  const float* const first = replay.mtp_hidden(SlotId(0));
  if (first == nullptr) return views;
  const bool has_two = replay.num_slots() > 1;
  views.hidden.page_base = replay.mtp_hidden(SlotId(0));
  views.hidden.page_stride = has_two ? replay.mtp_hidden(SlotId(1)) - first : config.hidden_size;
  if (!replay.has_replay()) return views;
  views.hidden.record_base = replay.mtp_hidden_cache(SlotId(0));
  views.hidden.record_stride =
      has_two ? replay.mtp_hidden_cache(SlotId(1)) - views.hidden.record_base : 0;
  return views;
}

void StepRunner::bind(hybrid::HybridCacheManager& state) {
  target_views_ = views_of(state, target_.config(), 0, "target");
  if (options_.drafter == DrafterKind::kMtp) {
    mtp_pages_ = latent_pages(latent_table(state, mtp_layer_id(target_.config())),
                              target_.config().mla_row_width());
  }
  if (draft_model_ != nullptr) {
    draft_views_ =
        views_of(state, draft_model_->config(), draft_layer_id(target_.config(), 0), "draft");
  }
}

void StepRunner::begin_batch() {
  token_ids_.clear();
  rows_.clear();
  writes_.clear();
  first_write_.clear();
  logit_tokens_.clear();
}

// Tokens are in token_ids_ already, behind those of the rows before.
void StepRunner::add_row(const hybrid::RowSetup& setup, std::int64_t first_position,
                         std::int32_t num_tokens, std::span<const SlotId> blocks,
                         const Views& views) {
  kernels::SequenceRow row;
  row.first_token = static_cast<std::int32_t>(token_ids_.size()) - num_tokens;
  row.num_tokens = num_tokens;
  row.first_position = first_position;
  row.block_table = blocks;
  first_write_.push_back(writes_.size());
  if (views.state != nullptr) {
    row.state_page = setup.slot;
    if (setup.num_pending.has_value()) {
      row.num_pending = *setup.num_pending;
    } else {
      // Where the row did not arrive it is anything.
      row.num_pending =
          std::clamp(*views.state->pending(setup.slot), 0, views.state->max_records());
    }
    for (const kernels::StateWrite& write : setup.writes) {
      // Past a stop there is nothing to run: what is pending is folded in.
      writes_.push_back({std::min(write.count, num_tokens), write.page});
    }
  }
  rows_.push_back(row);
}

model::ForwardBatch StepRunner::batch(const Views& views) const {
  model::ForwardBatch batch;
  batch.token_ids = token_ids_;
  batch.rows = rows_;
  batch.latent_pages = views.latent;
  batch.recurrent_pages = views.recurrent;
  batch.records = views.records;
  batch.hidden_pages = views.hidden;
  batch.logit_tokens = logit_tokens_;
  return batch;
}

std::span<const Result<kernels::SampleResult>> StepRunner::run_samples(std::int32_t vocabulary) {
  if (results_.size() < samples_.size()) results_.resize(samples_.size());
  kernels::SampleArgs args;
  args.vocabulary = vocabulary;
  args.rows = samples_;
  args.results = std::span(results_).first(samples_.size());
  kernels::sample(context_, args);
  return args.results;
}

// A draft is what would be sampled at its position: it shares the noise.
void StepRunner::sample_draft(const LiveRequest& request, std::span<const TokenId> since,
                              std::int64_t position, const float* logits) {
  kernels::SampleRow row = request.sampling.row_for(logits, position);
  row.wants_logprob = false;
  if (request.sampling.has_penalties()) {
    if (counts_.size() == num_counts_) counts_.emplace_back();
    request.sampling.fill_counts(since, counts_[num_counts_]);
    row.counts = counts_[num_counts_++];
  }
  samples_.push_back(row);
}

// --- The draft model.

void StepRunner::run_draft_rows(Step& step, DraftCall& call) {
  begin_batch();
  for (std::size_t i = 0; i < call.num_rows; ++i) {
    const DraftRow& row = call.rows[i];
    const TokenId* const tokens =
        row.draft > 0 ? &step.drafts[row.drafts_at + static_cast<std::size_t>(row.draft - 1)]
                      : &call.tokens[row.first_token];
    token_ids_.insert(token_ids_.end(), tokens, tokens + row.num_tokens);
    add_row(call.setup.rows[i], row.first_position, row.num_tokens,
            std::span(call.blocks).subspan(row.first_block, row.num_blocks), draft_views_);
    if (row.draft >= 0) logit_tokens_.push_back(static_cast<std::int32_t>(token_ids_.size()) - 1);
  }
  for (std::size_t i = 0; i < rows_.size() && draft_views_.state != nullptr; ++i) {
    const std::size_t end = i + 1 < rows_.size() ? first_write_[i + 1] : writes_.size();
    rows_[i].writes = std::span(writes_).subspan(first_write_[i], end - first_write_[i]);
  }
  const std::size_t logits =
      logit_tokens_.size() * static_cast<std::size_t>(draft_model_->config().vocab_size);
  draft_model_->run(batch(draft_views_), draft_logits_.span().first(logits));
}

bool StepRunner::run_draft_call(Step& step, std::size_t number) {
  DraftCall& call = step.draft_calls[number];
  run_draft_rows(step, call);
  samples_.clear();
  num_counts_ = 0;
  for (std::size_t i = 0; i < call.num_rows; ++i) {
    const DraftRow& row = call.rows[i];
    if (row.draft < 0) continue;
    const auto since = std::span<const TokenId>(step.drafts)
                           .subspan(row.drafts_at, static_cast<std::size_t>(row.draft));
    const float* const logits = draft_logits_.data() + static_cast<std::int64_t>(samples_.size()) *
                                                           draft_model_->config().vocab_size;
    sample_draft(*row.request, since, row.first_position + row.num_tokens, logits);
  }
  const auto results = run_samples(draft_model_->config().vocab_size);
  std::size_t next = 0;
  for (std::size_t i = 0; i < call.num_rows; ++i) {
    const DraftRow& row = call.rows[i];
    if (row.draft < 0) continue;
    const Result<kernels::SampleResult>& result = results[next++];
    // Where it has nothing to say anything will do: the target decides.
    step.drafts[row.drafts_at + static_cast<std::size_t>(row.draft)] =
        result.has_value() ? result->token : TokenId{0};
  }
  return true;
}

bool StepRunner::run_draft_context(Step& step) {
  run_draft_rows(step, step.draft_context);
  return true;
}

// --- The target.

void StepRunner::add_target_row(Step& step, std::size_t index) {
  const StepRow& row = step.rows[index];
  RowOutcome& outcome = step.outcomes[index];
  const RowOutcome* const before = row.before;
  outcome.clear();
  std::int32_t count = row.num_tokens;
  const bool has_ended = before != nullptr && (before->has_ended || before->error.has_value());
  if (has_ended && !SLACKWATER_MUTANT(engine_runs_past_a_stop)) {
    count = 0;
    outcome.has_ended = true;
  }
  outcome.first_position = row.first_position.has_value()
                               ? *row.first_position
                               : before->first_position + before->num_kept;
  const auto known = std::span<const TokenId>(step.tokens).subspan(row.first_token, row.num_known);
  if (count > 0 && row.is_context) {
    token_ids_.insert(token_ids_.end(), known.begin(), known.end());
  } else if (count > 0) {
    token_ids_.push_back(known.empty() ? before->sampled.back().token : known[0]);
    std::span<const TokenId> drafts = known.empty() ? known : known.subspan(1);
    if (drafts.empty() && options_.drafter == DrafterKind::kDraftModel) {
      drafts = std::span<const TokenId>(step.drafts).subspan(row.drafts_at);
    } else if (drafts.empty() && before != nullptr) {
      drafts = before->drafts;
    }
    // Fewer may have been proposed than the host has made room for.
    drafts = drafts.first(std::min(drafts.size(), static_cast<std::size_t>(row.num_drafts)));
    count = 1 + static_cast<std::int32_t>(drafts.size());
    token_ids_.insert(token_ids_.end(), drafts.begin(), drafts.end());
  }
  outcome.num_tokens = count;
  add_row(step.setup.rows[index], outcome.first_position, count,
          std::span(step.blocks).subspan(row.first_block, row.num_blocks), target_views_);
  first_logit_.push_back(logit_tokens_.size());
  if (!row.samples || count == 0) return;
  const std::int32_t wanted = row.is_context ? 1 : count;
  for (std::int32_t t = static_cast<std::int32_t>(token_ids_.size()) - wanted;
       t < static_cast<std::int32_t>(token_ids_.size()); ++t) {
    logit_tokens_.push_back(t);
  }
}

void StepRunner::add_samples(Step& step, std::size_t index) {
  const StepRow& row = step.rows[index];
  const LiveRequest& request = *row.request;
  RowOutcome& outcome = step.outcomes[index];
  if (!row.samples || outcome.num_tokens == 0) return;
  const auto count = static_cast<std::size_t>(row.is_context ? 1 : outcome.num_tokens);
  const auto num_top = static_cast<std::size_t>(request.asked.num_top_logprobs);
  outcome.top_logprobs.resize(count * num_top);
  // The drafts before a token count for its penalties.
  const TokenId* const drafts =
      token_ids_.data() + rows_[index].first_token + (row.is_context ? 0 : 1);
  for (std::size_t i = 0; i < count; ++i) {
    const float* const logits =
        logits_.data() +
        static_cast<std::int64_t>(first_logit_[index] + i) * target_.config().vocab_size;
    const std::int64_t position = row.is_context
                                      ? outcome.first_position + outcome.num_tokens
                                      : outcome.first_position + 1 + static_cast<std::int64_t>(i);
    kernels::SampleRow sample = request.sampling.row_for(logits, position);
    if (i > 0 && request.sampling.has_penalties()) {
      if (counts_.size() == num_counts_) counts_.emplace_back();
      request.sampling.fill_counts({drafts, i}, counts_[num_counts_]);
      sample.counts = counts_[num_counts_++];
    }
    sample.top_logprobs = std::span(outcome.top_logprobs).subspan(i * num_top, num_top);
    samples_.push_back(sample);
  }
}

// Token by token, as if each had been run alone: what follows a token that was not proposed, or a
// stop, is never seen.
void StepRunner::accept(Step& step, std::size_t index) {
  const StepRow& row = step.rows[index];
  RowOutcome& outcome = step.outcomes[index];
  step.num_accepted[index] = 0;
  if (row.is_context) outcome.num_kept = outcome.num_tokens;
  if (!row.samples || outcome.num_tokens == 0) return;
  const auto results =
      std::span<const Result<kernels::SampleResult>>(results_).subspan(first_logit_[index]);
  const TokenId* const tokens = token_ids_.data() + rows_[index].first_token;
  const std::int64_t first_sampled =
      row.is_context ? outcome.first_position + outcome.num_tokens : outcome.first_position + 1;
  const std::int32_t count = row.is_context ? 1 : outcome.num_tokens;
  for (std::int32_t i = 0; i < count; ++i) {
    const Result<kernels::SampleResult>& result = results[static_cast<std::size_t>(i)];
    if (!result.has_value()) {
      outcome.error = result.error();
      break;
    }
    outcome.sampled.push_back(*result);
    if (!row.is_context) outcome.num_kept = i + 1;
    const std::vector<TokenId>& stops = row.request->stop_ids;
    const std::int64_t limit = row.limit + (SLACKWATER_MUTANT(engine_limit_found_late) ? 1 : 0);
    outcome.has_ended = std::find(stops.begin(), stops.end(), result->token) != stops.end() ||
                        first_sampled + i + 1 >= limit;
    const bool is_next = i + 1 < count && tokens[i + 1] == result->token;
    if (outcome.has_ended && !SLACKWATER_MUTANT(engine_accepts_past_a_stop)) break;
    if (!is_next && !SLACKWATER_MUTANT(engine_accepts_every_draft)) break;
  }
  if (!row.is_context) step.num_accepted[index] = outcome.num_kept;
}

void StepRunner::sample_target(Step& step) {
  samples_.clear();
  num_counts_ = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) add_samples(step, i);
  run_samples(target_.config().vocab_size);
  for (std::size_t i = 0; i < step.rows.size(); ++i) accept(step, i);
}

bool StepRunner::run_target(Step& step) {
  begin_batch();
  first_logit_.clear();
  for (std::size_t i = 0; i < step.rows.size(); ++i) add_target_row(step, i);
  for (std::size_t i = 0; i < rows_.size() && target_views_.state != nullptr; ++i) {
    const std::size_t end = i + 1 < rows_.size() ? first_write_[i + 1] : writes_.size();
    rows_[i].writes = std::span(writes_).subspan(first_write_[i], end - first_write_[i]);
  }
  const std::size_t logits =
      logit_tokens_.size() * static_cast<std::size_t>(target_.config().vocab_size);
  target_.run(batch(target_views_), logits_.span().first(logits));
  sample_target(step);
  if (options_.drafter == DrafterKind::kMtp) propose(step);
  return !step.fails;
}

}  // namespace slackwater::engine
