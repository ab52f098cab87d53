#ifndef SLACKWATER_KERNELS_SAMPLE_RANK_KEYS_H_
#define SLACKWATER_KERNELS_SAMPLE_RANK_KEYS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <utility>

#include "slackwater/base/ids.h"

namespace slackwater::kernels {

// The order (value down, id up) as one integer comparison: of two keys the higher comes first.
// Upper half: the value's bits, made to ascend with the value; lower half: the id's complement.
using RankKey = std::uint64_t;

// `value` is not NaN. Adding +0 makes one of the two zeros, which compare equal as floats.
inline RankKey rank_key(float value, TokenId token) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0f);
  const std::uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return (RankKey{ascending} << 32) | ~static_cast<std::uint32_t>(token);
}

inline float value_of(RankKey key) {
  const auto ascending = static_cast<std::uint32_t>(key >> 32);
  return std::bit_cast<float>((ascending >> 31) != 0 ? ascending & 0x7FFFFFFFu : ~ascending);
}

inline TokenId token_of(RankKey key) {
  return static_cast<TokenId>(~static_cast<std::uint32_t>(key));
}

// Brings the `wanted` first of keys[0, count) to the front, the last of them to wanted - 1, and
// returns how many stay: min(wanted, count). 0 < wanted.
inline std::int64_t keep_first(RankKey* keys, std::int64_t count, std::int64_t wanted) {
  if (count < wanted) return count;
  std::nth_element(keys, keys + (wanted - 1), keys + count, std::greater<>());
  return wanted;
}

// Sorts keys[0, count), whose tokens ascend, first to last; returns where they are then: `keys`
// or `spare`, which has room for as many.
//
// A radix sort of the values, three digits of 11 bits, stable so that tokens keep ascending among
// equals. A heap, popped until the sum is reached, took 23 ms where this takes 1.6 (100 000 of
// 163 840 normal logits, which is top-p 0.9 at temperature 1; Zen 3).
inline const RankKey* sort_by_value(RankKey* keys, RankKey* spare, std::int64_t count) {
  constexpr std::int64_t kFewKeys = 512;
  if (count < kFewKeys) {
    std::sort(keys, keys + count, std::greater<>());
    return keys;
  }
  constexpr int kDigitBits = 11;
  constexpr std::uint64_t kDigits = 1 << kDigitBits;
  for (int shift = 32; shift < 64; shift += kDigitBits) {
    // The highest digit comes first.
    const auto bucket_of = [&](RankKey key) { return ~(key >> shift) & (kDigits - 1); };
    std::array<std::int64_t, kDigits> next{};
    for (std::int64_t i = 0; i < count; ++i) ++next[bucket_of(keys[i])];
    std::int64_t first = 0;
    for (std::int64_t& bucket : next) first += std::exchange(bucket, first);
    for (std::int64_t i = 0; i < count; ++i) spare[next[bucket_of(keys[i])]++] = keys[i];
    std::swap(keys, spare);
  }
  return keys;
}

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_SAMPLE_RANK_KEYS_H_
