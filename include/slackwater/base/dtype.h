#ifndef SLACKWATER_BASE_DTYPE_H_
#define SLACKWATER_BASE_DTYPE_H_

#include <bit>
#include <cstdint>
#include <string_view>

namespace slackwater {

// Element types of tensors and buffers.
enum class DType { kF32, kF16, kBf16, kU8, kI32, kI64 };

// Bytes of one element.
int dtype_bytes(DType dtype);

// The spelling of safetensors headers: "F32", "F16", "BF16", "U8", "I32", "I64".
std::string_view to_string(DType dtype);

// The upper half of a binary32: sign, 8 bits of exponent, 7 of mantissa.
//
// A type of its own, so that bits are not mistaken for a number. Same layout as uint16_t.
struct Bf16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(Bf16, Bf16) = default;
};

// Exact.
constexpr float bf16_to_f32(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even; overflows to infinity; a NaN stays a NaN (quiet, payload cut).
constexpr Bf16 f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  }
  return Bf16{static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

// IEEE binary16 bits to binary32; exact, subnormals included.
float f16_to_f32(std::uint16_t bits);

}  // namespace slackwater

#endif  // SLACKWATER_BASE_DTYPE_H_
