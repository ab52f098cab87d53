#ifndef SLACKWATER_TESTS_SIM_LONE_REQUEST_H_
#define SLACKWATER_TESTS_SIM_LONE_REQUEST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slackwater/kernels/execution_context.h"
#include "testing/kda_model.h"

namespace slackwater::hybrid {

using Tokens = std::vector<TokenId>;

// The layers of one tag for one request that is alone in the world: the same rows, run at once in
// memory of its own. Nobody suspends it, moves it or shares its slots.
class LoneRequest {
 public:
  LoneRequest(const KdaModel& model, std::int32_t max_records) : state_(model, max_records) {}

  std::int64_t page_position() const { return page_; }
  std::int32_t num_records() const { return records_; }
  std::int32_t num_pending() const { return pending_; }
  // Tokens that its page and its pending records stand for.
  std::int64_t position() const { return page_ + pending_; }
  SoloKda& state() { return state_; }

  // All tokens end in the page; what was pending is gone.
  Tokens context(kernels::ExecutionContext& on, std::span<const TokenId> tokens) {
    pending_ = records_ = 0;
    return generation(on, tokens, static_cast<std::int32_t>(tokens.size()));
  }
  // Replays what is pending, writes the first `num_written` tokens, keeps the others as records.
  Tokens generation(kernels::ExecutionContext& on, std::span<const TokenId> tokens,
                    std::int32_t num_written) {
    const Tokens next = run(on, tokens, pending_, {{num_written, SlotId(0)}});
    page_ += pending_ + num_written;
    records_ = static_cast<std::int32_t>(tokens.size()) - num_written;
    pending_ = 0;
    return next;
  }
  // Appends to the records, accepted or not.
  Tokens draft(kernels::ExecutionContext& on, std::span<const TokenId> tokens) {
    const Tokens next = run(on, tokens, records_, {});
    records_ += static_cast<std::int32_t>(tokens.size());
    return next;
  }
  // Of the round whose golden tokens end at `page` so many drafts are kept; the others are dead,
  // and so are those that no round has verified.
  void accept(std::int64_t page, std::int64_t num_accepted) {
    if (page == page_) {
      pending_ = static_cast<std::int32_t>(std::min<std::int64_t>(num_accepted, records_));
    }
    records_ = pending_;
  }
  // Folds the first `count` pending records into the page, and gives up the others.
  void fold(kernels::ExecutionContext& on, std::int32_t count) {
    if (count > 0) run(on, {}, count, {{0, SlotId(0)}});
    page_ += count;
    records_ = pending_ = 0;
  }

 private:
  Tokens run(kernels::ExecutionContext& on, std::span<const TokenId> tokens, std::int32_t pending,
             std::vector<kernels::StateWrite> writes) {
    return state_.run(on, {.tokens = {tokens.begin(), tokens.end()},
                           .first_position = page_ + pending,
                           .slot = SlotId(0),
                           .num_pending = pending,
                           .writes = std::move(writes)});
  }

  SoloKda state_;
  std::int64_t page_ = 0;
  std::int32_t records_ = 0;
  std::int32_t pending_ = 0;
};

// What a request will say, found out alone and ahead of time.
class Foresight {
 public:
  Foresight(const KdaModel& model, Tokens prompt)
      : said_(std::move(prompt)), prompt_length_(std::ssize(said_)), ahead_(model, 0) {}

  TokenId at(kernels::ExecutionContext& on, std::int64_t position) {
    while (std::ssize(said_) <= position) {
      const auto done = static_cast<std::size_t>(ahead_.page_position());
      const Tokens next = ahead_.context(on, std::span<const TokenId>(said_).subspan(done));
      said_.push_back(next.back());
    }
    return said_[static_cast<std::size_t>(position)];
  }
  std::int64_t prompt_length() const { return prompt_length_; }

 private:
  Tokens said_;
  std::int64_t prompt_length_;
  LoneRequest ahead_;
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_TESTS_SIM_LONE_REQUEST_H_
