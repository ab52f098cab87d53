#ifndef SLACKWATER_TESTING_SEED_H_
#define SLACKWATER_TESTING_SEED_H_

#include <cstdint>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

namespace slackwater {

// The seed of a randomised test: $SLACKWATER_SEED, or a fixed one. Printed, so that a failure can
// be repeated.
inline std::uint64_t test_seed() {
  const char* const chosen = std::getenv("SLACKWATER_SEED");
  const std::uint64_t seed = chosen == nullptr ? 20261129 : std::stoull(chosen);
  fmt::print(stderr, "SLACKWATER_SEED={}\n", seed);
  return seed;
}

}  // namespace slackwater

#endif  // SLACKWATER_TESTING_SEED_H_
