#include "slackwater/base/philox.h"

#include <set>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

// The three rows `philox4x32 10` of Random123 1.14.0, tests/kat_vectors: counter, key, result.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox_4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}));
  EXPECT_EQ(philox_4x32_10({0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu},
                           {0xFFFFFFFFu, 0xFFFFFFFFu}),
            (PhiloxCounter{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}));
  EXPECT_EQ(philox_4x32_10({0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u},
                           {0xA4093822u, 0x299F31D0u}),
            (PhiloxCounter{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}));
}

TEST(Philox, IsAConstantExpression) {
  static_assert(philox_4x32_10({0, 0, 0, 0}, {0, 0})[0] == 0x6627E8D5u);
}

// Every single bit of counter and key counts, and no two of them are taken for each other.
TEST(Philox, DependsOnEveryBitOfCounterAndKey) {
  std::set<PhiloxCounter> results{philox_4x32_10({0, 0, 0, 0}, {0, 0})};
  for (std::size_t word = 0; word < 6; ++word) {
    for (int bit = 0; bit < 32; ++bit) {
      PhiloxCounter counter{};
      PhiloxKey key{};
      (word < 4 ? counter[word] : key[word - 4]) = std::uint32_t{1} << bit;
      results.insert(philox_4x32_10(counter, key));
    }
  }
  EXPECT_EQ(results.size(), 1u + 6 * 32);
}

}  // namespace
}  // namespace slackwater
