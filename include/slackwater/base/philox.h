#ifndef SLACKWATER_BASE_PHILOX_H_
#define SLACKWATER_BASE_PHILOX_H_

#include <array>
#include <cstdint>

namespace slackwater {

// Philox-4x32 with 10 rounds: a keyed bijection of 128-bit counters, used as a random number
// generator without state. Equal (key, counter) give equal words on every machine.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// Errors: none. Threads: pure.
using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Multipliers and key increments of the paper, for vector forms of the same function.
inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxKeyStep0 = 0x9E3779B9u;
inline constexpr std::uint32_t kPhiloxKeyStep1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

constexpr PhiloxCounter philox_4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + kPhiloxKeyStep0, key[1] + kPhiloxKeyStep1};
  }
  return counter;
}

}  // namespace slackwater

#endif  // SLACKWATER_BASE_PHILOX_H_
