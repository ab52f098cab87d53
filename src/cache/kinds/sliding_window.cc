#include <algorithm>

#include <fmt/format.h>

#include "cache/kinds/group_kind.h"
#include "slackwater/base/numeric.h"

namespace slackwater::cache {
namespace {

class SlidingWindowKind final : public GroupKind {
 public:
  SlidingWindowKind(const SlidingWindow& window, std::int64_t tokens_per_block)
      : GroupKind(tokens_per_block, true, false),
        window_(window),
        sink_blocks_(ceil_div(window.num_sink_tokens, tokens_per_block)) {}

  std::string describe() const override {
    if (window_.num_sink_tokens == 0) return fmt::format("sliding window of {}", window_.window);
    return fmt::format("sliding window of {} after {} sink tokens", window_.window,
                       window_.num_sink_tokens);
  }

  // The block of the oldest token that the next one still sees is the first that is needed after
  // the sinks.
  BlockRange stale_blocks(std::int64_t history) const override {
    const std::int64_t begin = std::min(ceil_div(history, tokens_per_block()), sink_blocks_);
    const std::int64_t unseen = std::max<std::int64_t>(0, history + 1 - window_.window);
    return {begin, std::max(begin, unseen / tokens_per_block())};
  }

  std::int64_t longest_usable(const GroupOffer& offer, std::int64_t limit) const override {
    std::int64_t position = limit;
    while (position > 0) {
      const std::int64_t usable = covered(offer, position);
      if (usable == position) break;
      position = usable;
    }
    return position;
  }

  std::int64_t batch_slots(const BatchDesc& batch) const override {
    return batch_blocks(*this, batch);
  }
  std::int64_t own_floor() const override {
    return sink_blocks_ + (window_.window + tokens_per_block() - 2) / tokens_per_block() + 1;
  }
  std::int64_t floor_beside(std::int64_t) const override { return own_floor(); }
  bool can_grow() const override { return true; }

 private:
  // `position`, if every block that is needed there is covered; else how far the first one found
  // that is not lets a sequence come.
  std::int64_t covered(const GroupOffer& offer, std::int64_t position) const {
    const BlockRange stale = stale_blocks(position);
    for (std::int64_t block = ceil_div(position, tokens_per_block()) - 1; block >= 0; --block) {
      if (stale.contains(block)) {
        // Straight to the sinks.
        block = stale.begin;
        continue;
      }
      const std::int64_t first = block * tokens_per_block();
      const std::int64_t needed = std::min(tokens_per_block(), position - first);
      const std::int64_t there = offer.coverage(block);
      if (there < needed) return first + there;
    }
    return position;
  }

  const SlidingWindow window_;
  const std::int64_t sink_blocks_;
};

}  // namespace

std::unique_ptr<GroupKind> make_sliding_window(const SlidingWindow& window,
                                               std::int64_t tokens_per_block) {
  return std::make_unique<SlidingWindowKind>(window, tokens_per_block);
}

}  // namespace slackwater::cache
