#include "cache/tuner.h"

#include <cmath>

namespace slackwater::cache {

void Tuner::note_begin(std::int64_t reused) {
  reused_.add(static_cast<double>(reused), options_.decay);
}

void Tuner::note_end(double capacity, double history) {
  squared_capacity_.add(capacity * capacity, options_.decay);
  squared_history_.add(history * history, options_.decay);
  if (++num_samples_ % options_.update_interval != 0) return;
  const auto root = [](double square) { return std::llround(std::sqrt(square)); };
  shape_ = Shape{root(squared_capacity_.value()), root(squared_history_.value()),
                 std::llround(reused_.value())};
}

bool Tuner::may_rebalance(Nanoseconds now) const {
  const bool is_rested =
      !last_rebalance_.has_value() || now - *last_rebalance_ >= options_.cooldown;
  return shape_.has_value() && num_samples_ >= options_.min_samples && is_rested;
}

void Tuner::note_rebalance(Nanoseconds now) { last_rebalance_ = now; }

bool Tuner::is_off(double share, double target) const {
  return target > share * options_.threshold || target * options_.threshold < share;
}

}  // namespace slackwater::cache
