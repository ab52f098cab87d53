#ifndef SLACKWATER_CACHE_TUNER_H_
#define SLACKWATER_CACHE_TUNER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "slackwater/base/clock.h"
#include "slackwater/cache/config.h"

namespace slackwater::cache {

// How long a sequence is while it runs: a sample per resize, so that averages can be told.
struct LengthSums {
  double num_samples = 0;
  double capacity = 0;
  double history = 0;

  void add(std::int64_t capacity_now, std::int64_t history_now) {
    num_samples += 1;
    capacity += static_cast<double>(capacity_now);
    history += static_cast<double>(history_now);
  }
};

// What sequences are like these days: moving averages of what was reused, and of how long sequences
// are while they run. So the shares of layer groups can follow the load.
//
// A sequence that ends counts by the squares of its average capacity and history: a long one holds
// more, for longer. Dummies are not told of.
//
// Source: the auto-tuner of TensorRT-LLM's KV cache manager V2, kvcm_v2.md 3.10.
// Invariants:
//   I1  shape() changes once per update_interval ends, and not before the first.
// Threads: one at a time.
// Errors: none.
// Cost: O(1), no heap allocation.
class Tuner {
 public:
  explicit Tuner(const RebalanceOptions& options) : options_(options) {}

  // A sequence began with so many tokens that it need not compute.
  void note_begin(std::int64_t reused);
  // One that had room ended; both are averages over its life, in tokens.
  void note_end(double capacity, double history);
  // The same, where it had any room at all.
  void note_end(const LengthSums& lengths) {
    if (lengths.capacity == 0) return;
    note_end(lengths.capacity / lengths.num_samples, lengths.history / lengths.num_samples);
  }

  // The sequence that stands for all of them, in tokens; nothing before the first update.
  struct Shape {
    std::int64_t capacity = 0;
    std::int64_t history = 0;
    std::int64_t reused = 0;  // of the colder tiers: what is kept of it
    friend bool operator==(const Shape&, const Shape&) = default;
  };
  std::optional<Shape> shape() const { return shape_; }
  std::int64_t num_samples() const { return num_samples_; }

  // Whether shares may change now: enough ends, and long enough after the last time.
  bool may_rebalance(Nanoseconds now) const;
  void note_rebalance(Nanoseconds now);
  // Whether a share is too far from what it should be.
  bool is_off(double share, double target) const;
  std::string describe() const;  // a line for people

 private:
  // v moves an average by 1 / w, where w goes on as 1 + decay * w.
  class MovingAverage {
   public:
    void add(double value, double decay) {
      weight_ = 1 + decay * weight_;
      average_ += (value - average_) / weight_;
    }
    double value() const { return average_; }

   private:
    double weight_ = 0;
    double average_ = 0;
  };

  const RebalanceOptions options_;
  MovingAverage reused_;
  MovingAverage squared_capacity_;
  MovingAverage squared_history_;
  std::int64_t num_samples_ = 0;
  std::optional<Shape> shape_;
  std::optional<Nanoseconds> last_rebalance_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_TUNER_H_
