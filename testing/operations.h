#ifndef SLACKWATER_TESTING_OPERATIONS_H_
#define SLACKWATER_TESTING_OPERATIONS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>

namespace slackwater {

// How many operations a model test runs: $SLACKWATER_OPERATIONS, or what fits the gate.
inline std::int64_t test_operations(std::int64_t in_the_gate) {
  const char* const chosen = std::getenv("SLACKWATER_OPERATIONS");
  return chosen == nullptr ? in_the_gate : std::stoll(chosen);
}

// How often each of `kCount` operations of a model test comes. Every seed has weights of its own,
// and about a quarter of them are 0: some faults show only while something never happens.
template <std::size_t kCount>
class OperationWeights {
 public:
  // Those `needed` for anything else to happen have no weight of 0.
  explicit OperationWeights(std::mt19937_64& random,
                            std::initializer_list<std::size_t> needed = {}) {
    for (std::size_t i = 0; i < kCount; ++i) {
      constexpr int kWeights[] = {0, 1, 4, 16};
      const int weight = kWeights[random() % std::size(kWeights)];
      const bool is_needed = std::find(needed.begin(), needed.end(), i) != needed.end();
      total_ += static_cast<std::uint64_t>(is_needed ? std::max(4, weight) : weight);
      end_[i] = total_;
    }
    if (total_ == 0) end_[0] = total_ = 1;
  }

  // The number of an operation, one that does not have weight 0.
  std::size_t draw(std::mt19937_64& random) const {
    const std::uint64_t ticket = random() % total_;
    std::size_t i = 0;
    while (end_[i] <= ticket) ++i;
    return i;
  }

 private:
  std::array<std::uint64_t, kCount> end_ = {};
  std::uint64_t total_ = 0;
};

}  // namespace slackwater

#endif  // SLACKWATER_TESTING_OPERATIONS_H_
