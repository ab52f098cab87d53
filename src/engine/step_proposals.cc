// Drafts of the multi-token-prediction block, for the next round of a step's rows.

#include <algorithm>
#include <utility>

#include "engine/live_request.h"
#include "engine/step_runner.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {

// The rows that are certain now: token t at position p goes with the hidden state of p - 1. A chunk
// begins with its own first token, whose row needs the state of the token before it; a round begins
// behind its golden token, whose row was made when that was sampled. Both end with the token that
// comes next, where that is known.
void StepRunner::add_mtp_rows(Step& step) {
  const std::int64_t hidden_size = target_.config().hidden_size;
  std::swap(rows_, target_rows_);
  std::swap(token_ids_, target_tokens_);
  token_ids_.clear();
  rows_.clear();
  logit_tokens_.clear();
  mtp_hidden_.clear();
  proposals_.clear();
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const StepRow& row = step.rows[i];
    const RowOutcome& outcome = step.outcomes[i];
    if (outcome.num_kept == 0 || row.num_mtp_blocks == 0) continue;
    const std::int64_t first = outcome.first_position;
    const std::int64_t end = first + outcome.num_kept;
    const std::int64_t begin = row.is_context ? std::max<std::int64_t>(first, 1) : first + 1;
    const TokenId* const tokens = target_tokens_.data() + target_rows_[i].first_token;
    const float* const hidden = target_.hidden() + target_rows_[i].first_token * hidden_size;
    std::optional<TokenId> next = row.next;
    if (!outcome.sampled.empty()) next = outcome.sampled.back().token;
    if (row.is_context && !row.is_last_chunk) next.reset();
    const std::int64_t last = next.has_value() ? end : end - 1;
    if (last < begin) continue;
    kernels::SequenceRow out;
    out.first_token = static_cast<std::int32_t>(token_ids_.size());
    out.num_tokens = static_cast<std::int32_t>(last - begin + 1);
    out.first_position = begin;
    out.block_table = std::span(step.blocks).subspan(row.first_mtp_block, row.num_mtp_blocks);
    for (std::int64_t p = begin; p <= last; ++p) {
      token_ids_.push_back(p == end ? *next : tokens[p - first]);
      mtp_hidden_.push_back(p == first ? target_.first_hidden() +
                                             static_cast<std::int64_t>(i) * hidden_size
                                       : hidden + (p - 1 - first) * hidden_size);
    }
    rows_.push_back(out);
    const bool proposes =
        next.has_value() && row.num_to_propose > 0 && !outcome.has_ended && !outcome.error;
    if (!proposes) continue;
    logit_tokens_.push_back(static_cast<std::int32_t>(token_ids_.size()) - 1);
    proposals_.push_back({i, end, nullptr});
  }
}

// Runs the rows, and samples a draft for each that proposes.
void StepRunner::run_mtp_rows(Step& step) {
  model::MtpBatch batch;
  batch.token_ids = token_ids_;
  batch.hidden = mtp_hidden_;
  batch.rows = rows_;
  batch.latent_pages = mtp_pages_;
  batch.logit_tokens = logit_tokens_;
  const std::int64_t vocabulary = target_.config().vocab_size;
  target_.run_mtp(batch, draft_logits_.span().first(logit_tokens_.size() *
                                                    static_cast<std::size_t>(vocabulary)));
  samples_.clear();
  num_counts_ = 0;
  for (std::size_t i = 0; i < proposals_.size(); ++i) {
    Proposal& proposal = proposals_[i];
    const RowOutcome& outcome = step.outcomes[proposal.row];
    since_.clear();
    for (const kernels::SampleResult& sampled : outcome.sampled) since_.push_back(sampled.token);
    since_.insert(since_.end(), outcome.drafts.begin(), outcome.drafts.end());
    sample_draft(*step.rows[proposal.row].request, since_, proposal.position + 1,
                 draft_logits_.data() + static_cast<std::int64_t>(i) * vocabulary);
    proposal.hidden =
        target_.mtp_hidden() + std::int64_t{logit_tokens_[i]} * target_.config().hidden_size;
  }
  const auto results = run_samples(target_.config().vocab_size);
  for (std::size_t i = 0; i < proposals_.size(); ++i) {
    // One that has nothing to say ends its drafts.
    if (!results[i].has_value()) {
      proposals_[i].hidden = nullptr;
      continue;
    }
    step.outcomes[proposals_[i].row].drafts.push_back(results[i]->token);
    ++proposals_[i].position;
  }
}

void StepRunner::propose(Step& step) {
  add_mtp_rows(step);
  while (!token_ids_.empty()) {
    run_mtp_rows(step);
    // Those that have drafts to come go on from the block's own output. Their rows are provisional:
    // the next round writes them again.
    token_ids_.clear();
    rows_.clear();
    logit_tokens_.clear();
    mtp_hidden_.clear();
    std::erase_if(proposals_, [&](const Proposal& proposal) {
      const StepRow& row = step.rows[proposal.row];
      return proposal.hidden == nullptr ||
             std::ssize(step.outcomes[proposal.row].drafts) >= row.num_to_propose;
    });
    for (const Proposal& proposal : proposals_) {
      const StepRow& row = step.rows[proposal.row];
      kernels::SequenceRow out;
      out.first_token = static_cast<std::int32_t>(token_ids_.size());
      out.num_tokens = 1;
      out.first_position = proposal.position;
      out.block_table = std::span(step.blocks).subspan(row.first_mtp_block, row.num_mtp_blocks);
      logit_tokens_.push_back(out.first_token);
      token_ids_.push_back(step.outcomes[proposal.row].drafts.back());
      mtp_hidden_.push_back(proposal.hidden);
      rows_.push_back(out);
    }
  }
}

}  // namespace slackwater::engine
