#include "slackwater/base/dtype.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

constexpr std::uint32_t kLowHalves[] = {0x0000, 0x0001, 0x3FFF, 0x4000, 0x7FFE, 0x7FFF,
                                        0x8000, 0x8001, 0xC000, 0xFFFE, 0xFFFF};

// The magnitude bf16 bits stand for, as an exact binary64; one step past the largest finite
// number is 2^128, as for a format without a largest exponent, which is how IEEE 754 rounds.
double bf16_magnitude(std::uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 7) & 0xFF);
  const double mantissa = bits & 0x7F;
  if (exponent == 0) return std::ldexp(mantissa, -133);
  return std::ldexp(128 + mantissa, exponent - 134);
}

// The nearest of the two bf16 magnitudes around a finite `value` >= 0, ties to the even bits.
// Found by distance in binary64, where every term is exact.
std::uint32_t nearest_bf16(float value, std::uint32_t bits_below) {
  const double below = value - bf16_magnitude(bits_below);
  const double above = bf16_magnitude(bits_below + 1) - value;
  if (below != above) return below < above ? bits_below : bits_below + 1;
  return bits_below % 2 == 0 ? bits_below : bits_below + 1;
}

TEST(Bf16, RoundsEveryNumberToTheNearestAndTiesToEven) {
  for (std::uint32_t upper = 0; upper < 0x7F80; ++upper) {
    for (const std::uint32_t lower : kLowHalves) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      const std::uint32_t expected = nearest_bf16(value, upper);
      ASSERT_EQ(f32_to_bf16(value).bits, expected) << std::hex << upper << " " << lower;
      ASSERT_EQ(f32_to_bf16(-value).bits, expected | 0x8000u) << std::hex << upper << " " << lower;
    }
  }
}

TEST(Bf16, OverflowsToInfinityHalfAStepPastTheLargest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_bf16(0x1.FEFFFEp127f), Bf16{0x7F7F});
  EXPECT_EQ(f32_to_bf16(0x1.FFp127f), Bf16{0x7F80});
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), Bf16{0x7F80});
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::lowest()), Bf16{0xFF80});
  EXPECT_EQ(f32_to_bf16(kInfinity), Bf16{0x7F80});
  EXPECT_EQ(f32_to_bf16(-kInfinity), Bf16{0xFF80});
  EXPECT_EQ(bf16_to_f32(Bf16{0x7F80}), kInfinity);
}

TEST(Bf16, KeepsEveryNanANanOfItsSign) {
  for (std::uint32_t upper = 0x7F80; upper <= 0x7FFF; ++upper) {
    for (const std::uint32_t lower : kLowHalves) {
      if (upper == 0x7F80 && lower == 0) continue;  // Infinity.
      for (const std::uint32_t sign : {0x0000u, 0x8000u}) {
        const auto nan = std::bit_cast<float>((upper | sign) << 16 | lower);
        const std::uint32_t bits = f32_to_bf16(nan).bits;
        // Quiet, and the payload is the upper part of the old one.
        ASSERT_EQ(bits, upper | sign | 0x0040u) << std::hex << upper << " " << lower;
        ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan))));
      }
    }
  }
}

TEST(Bf16, WidensExactlyAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    const float wide = bf16_to_f32(value);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide), bits << 16);
    if (std::isnan(wide)) continue;  // Comes back quiet, see above.
    ASSERT_EQ(f32_to_bf16(wide), value) << std::hex << bits;
    if (std::isfinite(wide)) {
      ASSERT_EQ(std::fabs(static_cast<double>(wide)), bf16_magnitude(bits & 0x7FFF)) << bits;
    }
  }
}

TEST(Bf16, IsAConstantExpressionOfTwoBytes) {
  static_assert(f32_to_bf16(1.0f).bits == 0x3F80 && bf16_to_f32(Bf16{0xC000}) == -2.0f);
  static_assert(sizeof(Bf16) == 2 && alignof(Bf16) == alignof(std::uint16_t));
}

// IEEE 754-2008 3.4: exponent bias 15, 10 bits of mantissa, spelled with ldexp in binary64.
double f16_value(std::uint32_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = static_cast<int>((bits >> 10) & 0x1F);
  const double mantissa = bits & 0x3FF;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(F16, WidensAllBitPatternsExactly) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float wide = f16_to_f32(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << std::hex << bits;
    if ((bits & 0x7C00) != 0x7C00) {
      ASSERT_EQ(static_cast<double>(wide), f16_value(bits)) << std::hex << bits;
    } else if ((bits & 0x03FF) == 0) {
      ASSERT_TRUE(std::isinf(wide)) << std::hex << bits;
    } else {
      ASSERT_TRUE(std::isnan(wide)) << std::hex << bits;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide) & 0x7FFFFFu, (bits & 0x3FFu) << 13);
    }
  }
}

TEST(DType, HasItsSizeAndItsSafetensorsName) {
  struct Row {
    DType dtype;
    int bytes;
    std::string_view name;
  };
  constexpr Row kRows[] = {{DType::kF32, 4, "F32"},   {DType::kF16, 2, "F16"},
                           {DType::kBf16, 2, "BF16"}, {DType::kU8, 1, "U8"},
                           {DType::kI32, 4, "I32"},   {DType::kI64, 8, "I64"}};
  for (const Row& row : kRows) {
    EXPECT_EQ(dtype_bytes(row.dtype), row.bytes) << row.name;
    EXPECT_EQ(to_string(row.dtype), row.name);
  }
}

}  // namespace
}  // namespace slackwater
