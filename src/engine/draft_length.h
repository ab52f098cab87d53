#ifndef SLACKWATER_ENGINE_DRAFT_LENGTH_H_
#define SLACKWATER_ENGINE_DRAFT_LENGTH_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace slackwater::engine {

// What one more token in a verify round costs, as a share of a round of the golden token alone.
inline constexpr double kDraftCost = 0.2;

// How many drafts the next round of one request should have, by how many of its earlier ones were
// right.
//
// A round with k drafts gives 1 + a1 + a1 a2 + ... + a1..ak tokens, where ai is how often draft i
// is right when those before it are, and costs 1 + k * draft_cost. The k with the most tokens for
// its cost is chosen. Each ai is a moving average; a draft that was never tried is taken for as
// good as the one before it. A new k must be better by a hundredth, so that noise does not move it;
// and every 16th round tries one draft more than is chosen, one where none is: so what got better
// is noticed.
//
// Source: the tokens and the cost of a round are those of Leviathan et al., "Fast Inference from
// Transformers via Speculative Decoding", 2023, section 3.3; to choose the length anew from what
// was accepted is the idea of SpecDec++ (Huang et al., 2024), which learns a predictor where this
// keeps averages. Neither has the hysteresis or the probes. Invariants:
//   I1  0 <= next() <= max_drafts.
//   I2  next() is a function of what was recorded, and of nothing else.
// Ownership: a value.
// Threads: one at a time.
// Errors: none; numbers out of their range are a bug (CHECK).
// Cost: O(max_drafts) for a round; nothing is allocated.
class DraftLength {
 public:
  static constexpr std::int32_t kMaxDrafts = 15;
  static constexpr std::int32_t kProbeInterval = 16;

  // Not adaptive: next() is always max_drafts. CHECK: 0 <= max_drafts <= kMaxDrafts; 0 <
  // draft_cost.
  DraftLength(std::int32_t max_drafts, bool is_adaptive, double draft_cost = kDraftCost);

  // Drafts that the next round should have.
  std::int32_t next() const;

  // A round has ended that had `num_proposed` drafts, however many next() said, of which the first
  // `num_accepted` were right. CHECK: 0 <= num_accepted <= num_proposed <= max_drafts.
  void record(std::int32_t num_proposed, std::int32_t num_accepted);

  // The share of drafts that are right, as a moving average over rounds; before the first, what is
  // assumed then.
  double acceptance() const { return share_.value; }

 private:
  // A moving average that forgets what it began with sooner than what it was told.
  struct Average {
    double value = 0;
    std::int32_t num_told = 0;

    void add(double told);
  };

  // Tokens for the cost of a round without drafts.
  double worth(std::int32_t num_drafts) const;
  void choose();

  std::int32_t max_drafts_;
  bool is_adaptive_;
  double draft_cost_;
  std::array<Average, kMaxDrafts> accepted_;  // [draft] when those before it were
  Average share_;
  std::int32_t length_ = 0;  // what is chosen
  std::int32_t rounds_since_probe_ = 0;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_DRAFT_LENGTH_H_
