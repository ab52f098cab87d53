#ifndef SLACKWATER_BASE_STRONG_INT_H_
#define SLACKWATER_BASE_STRONG_INT_H_

#include <compare>
#include <cstddef>
#include <functional>

namespace slackwater {

// An integer of its own type: a slot cannot be passed where a block ordinal is meant.
//
// Source: the index types of TensorRT-LLM's KV cache manager V2, where mixing them is a
// compile error. Conversions are explicit in both directions; arithmetic is left out, because
// almost every sum of two ids is a mistake.
//
// Invariants:
//   I1  same size and layout as `Int`, so arrays of ids can be handed to kernels.
// Threads: a value.
// Errors: none.
template <class Tag, class Int>
class StrongInt {
 public:
  using ValueType = Int;

  constexpr StrongInt() = default;
  explicit constexpr StrongInt(Int value) : value_(value) {}

  constexpr Int value() const { return value_; }
  explicit constexpr operator Int() const { return value_; }

  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;

  // The next id in order, for counters that issue ids.
  constexpr StrongInt next() const { return StrongInt(static_cast<Int>(value_ + 1)); }

 private:
  Int value_ = 0;
};

}  // namespace slackwater

template <class Tag, class Int>
struct std::hash<slackwater::StrongInt<Tag, Int>> {
  std::size_t operator()(slackwater::StrongInt<Tag, Int> id) const noexcept {
    return std::hash<Int>()(id.value());
  }
};

#endif  // SLACKWATER_BASE_STRONG_INT_H_
