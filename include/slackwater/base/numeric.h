#ifndef SLACKWATER_BASE_NUMERIC_H_
#define SLACKWATER_BASE_NUMERIC_H_

#include <concepts>
#include <cstdint>
#include <optional>

namespace slackwater {

// Smallest q with q * divisor >= value. `divisor` > 0, `value` >= 0.
template <std::integral T>
constexpr T ceil_div(T value, T divisor) {
  return static_cast<T>(value / divisor + (value % divisor != 0));
}

// Smallest multiple of `multiple` that is >= value, which must fit T. Both as in ceil_div.
template <std::integral T>
constexpr T round_up(T value, T multiple) {
  return static_cast<T>(ceil_div(value, multiple) * multiple);
}

// The product, or nullopt where it does not fit 64 bits.
constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The sum, or nullopt where it does not fit 64 bits.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

}  // namespace slackwater

#endif  // SLACKWATER_BASE_NUMERIC_H_
