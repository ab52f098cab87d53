#include "engine/draft_length.h"

#include <algorithm>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {
namespace {

// Before anything is known. It counts as one round: three rounds without a hit outweigh it.
constexpr double kAssumedAcceptance = 0.8;
// The weight of the latest round, once as many are known. Less would be calmer and slower: a
// request is often over after some hundred rounds.
constexpr double kWeight = 1.0 / 16;
// What a new length must be better by.
constexpr double kHysteresis = 0.01;

}  // namespace

void DraftLength::Average::add(double told) {
  ++num_told;
  value += std::max(kWeight, 1.0 / (num_told + 1)) * (told - value);
}

DraftLength::DraftLength(std::int32_t max_drafts, bool is_adaptive, double draft_cost)
    : max_drafts_(max_drafts),
      is_adaptive_(is_adaptive),
      draft_cost_(draft_cost),
      share_{kAssumedAcceptance} {
  SLACKWATER_CHECK(0 <= max_drafts && max_drafts <= kMaxDrafts, "{} drafts, limit {}", max_drafts,
                   kMaxDrafts);
  SLACKWATER_CHECK(draft_cost > 0, "a draft that costs {}", draft_cost);
  choose();
}

std::int32_t DraftLength::next() const {
  if (!is_adaptive_) return max_drafts_;
  if (SLACKWATER_MUTANT(engine_draft_length_never_probes)) return length_;
  const bool is_probe = rounds_since_probe_ + 1 >= kProbeInterval;
  return is_probe ? std::min(length_ + 1, max_drafts_) : length_;
}

void DraftLength::record(std::int32_t num_proposed, std::int32_t num_accepted) {
  SLACKWATER_CHECK(0 <= num_accepted && num_accepted <= num_proposed && num_proposed <= max_drafts_,
                   "{} of {} drafts accepted, limit {}", num_accepted, num_proposed, max_drafts_);
  // A probe is due until there was one: a drafter may have had nothing to propose.
  rounds_since_probe_ = num_proposed > length_ ? 0 : rounds_since_probe_ + 1;
  if (num_proposed == 0) return;
  share_.add(static_cast<double>(num_accepted) / num_proposed);
  // Drafts past the first wrong one say nothing of their own.
  const std::int32_t num_judged = std::min(num_accepted + 1, num_proposed);
  double assumed = kAssumedAcceptance;
  for (std::int32_t i = 0; i < num_judged; ++i) {
    Average& accepted = accepted_[static_cast<std::size_t>(i)];
    if (accepted.num_told == 0) accepted.value = assumed;
    accepted.add(i < num_accepted ? 1 : 0);
    assumed = accepted.value;
  }
  choose();
}

double DraftLength::worth(std::int32_t num_drafts) const {
  double tokens = 1;
  double reached = 1;
  double acceptance = kAssumedAcceptance;
  for (std::int32_t i = 0; i < num_drafts; ++i) {
    const Average& accepted = accepted_[static_cast<std::size_t>(i)];
    if (accepted.num_told > 0) acceptance = accepted.value;
    reached *= acceptance;
    tokens += reached;
  }
  return tokens / (1 + draft_cost_ * num_drafts);
}

void DraftLength::choose() {
  std::int32_t best = 0;
  double best_worth = worth(0);
  for (std::int32_t k = 1; k <= max_drafts_; ++k) {
    const double worth_of_k = worth(k);
    if (worth_of_k > best_worth) {
      best = k;
      best_worth = worth_of_k;
    }
  }
  if (best_worth > worth(length_) * (1 + kHysteresis)) length_ = best;
}

}  // namespace slackwater::engine
