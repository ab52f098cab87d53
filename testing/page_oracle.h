#ifndef SLACKWATER_TESTING_PAGE_ORACLE_H_
#define SLACKWATER_TESTING_PAGE_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace slackwater {

// What a page with a key holds: any byte anywhere can be checked without a model. Key 0 is poison.
inline std::uint64_t oracle_word(std::uint64_t key, std::uint64_t word) {
  if (key == 0) return 0xDDDDDDDDDDDDDDDDu;
  // SplitMix64 (Steele, Lea, Flood, 2014).
  std::uint64_t z = key * 0x9E3779B97F4A7C15u + word * 0xD1B54A32D192ED03u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// `bytes` is a whole number of words; `first_word` is how many of the page lie before it.
inline void oracle_fill(std::span<std::byte> bytes, std::uint64_t key,
                        std::uint64_t first_word = 0) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = oracle_word(key, first_word + at / 8);
    std::memcpy(bytes.data() + at, &word, 8);
  }
}

inline bool oracle_matches(std::span<const std::byte> bytes, std::uint64_t key,
                           std::uint64_t first_word = 0) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    if (word != oracle_word(key, first_word + at / 8)) return false;
  }
  return true;
}

}  // namespace slackwater

#endif  // SLACKWATER_TESTING_PAGE_ORACLE_H_
