#include "slackwater/base/numeric.h"

#include <limits>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

constexpr std::uint64_t kMax64 = std::numeric_limits<std::uint64_t>::max();

TEST(Numeric, CeilDivIsTheSmallestQuotientThatCovers) {
  for (int value = 0; value <= 130; ++value) {
    for (int divisor = 1; divisor <= 65; ++divisor) {
      const int quotient = ceil_div(value, divisor);
      ASSERT_GE(quotient * divisor, value) << value << " / " << divisor;
      ASSERT_LT((quotient - 1) * divisor, value) << value << " / " << divisor;
    }
  }
}

TEST(Numeric, CeilDivDoesNotOverflowAtTheEndOfItsType) {
  EXPECT_EQ(ceil_div(kMax64, std::uint64_t{1}), kMax64);
  EXPECT_EQ(ceil_div(kMax64, std::uint64_t{2}), std::uint64_t{1} << 63);
  EXPECT_EQ(ceil_div(kMax64, kMax64), 1u);
  constexpr std::int32_t kMax32 = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(ceil_div(kMax32, kMax32 - 1), 2);
  EXPECT_EQ(ceil_div(kMax32, 2), 1 << 30);
  EXPECT_EQ(ceil_div(std::uint8_t{255}, std::uint8_t{2}), std::uint8_t{128});
}

TEST(Numeric, RoundUpIsTheSmallestMultipleThatCovers) {
  for (int value = 0; value <= 130; ++value) {
    for (int multiple = 1; multiple <= 65; ++multiple) {
      const int rounded = round_up(value, multiple);
      ASSERT_EQ(rounded % multiple, 0) << value << " to " << multiple;
      ASSERT_GE(rounded, value) << value << " to " << multiple;
      ASSERT_LT(rounded - multiple, value) << value << " to " << multiple;
    }
  }
}

TEST(Numeric, RoundUpReachesTheLastMultipleOfItsType) {
  EXPECT_EQ(round_up(kMax64 - 63, std::uint64_t{64}), kMax64 - 63);
  EXPECT_EQ(round_up(kMax64 - 126, std::uint64_t{64}), kMax64 - 63);
}

TEST(Numeric, CheckedMultiplyRefusesExactlyWhatDoesNotFit) {
  EXPECT_EQ(checked_multiply(0, kMax64), 0u);
  EXPECT_EQ(checked_multiply(1, kMax64), kMax64);
  EXPECT_EQ(checked_multiply(0xFFFFFFFFu, 0xFFFFFFFFu), 0xFFFFFFFE00000001u);
  EXPECT_EQ(checked_multiply(3, kMax64 / 3), kMax64);
  EXPECT_EQ(checked_multiply(3, kMax64 / 3 + 1), std::nullopt);
  EXPECT_EQ(checked_multiply(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_multiply(kMax64, kMax64), std::nullopt);
}

TEST(Numeric, CheckedAddRefusesExactlyWhatDoesNotFit) {
  EXPECT_EQ(checked_add(0, kMax64), kMax64);
  EXPECT_EQ(checked_add(kMax64 - 7, 7), kMax64);
  EXPECT_EQ(checked_add(kMax64 - 7, 8), std::nullopt);
  EXPECT_EQ(checked_add(1, kMax64), std::nullopt);
  EXPECT_EQ(checked_add(kMax64, kMax64), std::nullopt);
}

}  // namespace
}  // namespace slackwater
