#include "engine/draft_length.h"

#include <cstdlib>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater::engine {
namespace {

// Rounds of a drafter each of whose drafts is right with some chance, when those before it are.
class Rounds {
 public:
  Rounds(std::int32_t max_drafts, std::uint64_t seed) : length(max_drafts, true), random_(seed) {}

  // Returns the mean of the lengths that were asked for.
  double run(int num_rounds, double chance) {
    std::int64_t sum = 0;
    for (int round = 0; round < num_rounds; ++round) {
      const std::int32_t proposed = length.next();
      num_changes += proposed != before_ ? 1 : 0;
      before_ = proposed;
      sum += proposed;
      std::int32_t accepted = 0;
      while (accepted < proposed && std::uniform_real_distribution<>()(random_) < chance) {
        ++accepted;
      }
      length.record(proposed, accepted);
    }
    return static_cast<double>(sum) / num_rounds;
  }

  DraftLength length;
  int num_changes = 0;

 private:
  std::mt19937_64 random_;
  std::int32_t before_ = 0;
};

TEST(DraftLength, IsTheLongestWhereAllDraftsAreRight) {
  for (std::int32_t max_drafts = 1; max_drafts <= DraftLength::kMaxDrafts; ++max_drafts) {
    Rounds rounds(max_drafts, 1);
    rounds.run(100, 1.0);
    EXPECT_EQ(rounds.length.next(), max_drafts);
    EXPECT_GT(rounds.length.acceptance(), 0.99);
  }
}

TEST(DraftLength, BeginsWithMostOfWhatItMayHave) {
  EXPECT_EQ(DraftLength(0, true).next(), 0);
  EXPECT_EQ(DraftLength(3, true).next(), 3);
  EXPECT_GE(DraftLength(15, true).next(), 3);
}

TEST(DraftLength, IsNothingButProbesWhereNoDraftIsRight) {
  Rounds rounds(5, 1);
  EXPECT_GT(rounds.length.next(), 0);
  // It has understood after a few rounds.
  rounds.run(4, 0.0);
  int since_probe = 1;
  int num_probes = 0;
  for (int round = 0; round < 160; ++round, ++since_probe) {
    const std::int32_t proposed = rounds.length.next();
    ASSERT_LE(proposed, 1);
    if (proposed == 1) {
      EXPECT_TRUE(num_probes == 0 || since_probe == DraftLength::kProbeInterval) << since_probe;
      since_probe = 0;
      ++num_probes;
    }
    rounds.length.record(proposed, 0);
  }
  EXPECT_EQ(num_probes, 10);
  EXPECT_LT(rounds.length.acceptance(), 0.1);
}

TEST(DraftLength, RecoversWhenDraftsBecomeRightAgain) {
  Rounds rounds(3, 1);
  rounds.run(200, 0.0);
  rounds.run(8 * DraftLength::kProbeInterval, 1.0);
  EXPECT_EQ(rounds.length.next(), 3);
  rounds.run(200, 0.0);
  EXPECT_LE(rounds.length.next(), 1);
}

TEST(DraftLength, NoticesThatLaterDraftsBecameRight) {
  DraftLength length(4, true);
  // The second draft is never right.
  for (int round = 0; round < 200; ++round) {
    const std::int32_t proposed = length.next();
    length.record(proposed, std::min(proposed, 1));
  }
  EXPECT_LE(length.next(), 2);
  for (int round = 0; round < 600; ++round) length.record(length.next(), length.next());
  EXPECT_EQ(length.next(), 4);
}

// For independent drafts the best length is known: at 0.5, (1 + .5) / 1.2 = 1.25 with one draft and
// as much with two, 1.17 with three.
TEST(DraftLength, IsTheOneThatIsWorthMostInBetween) {
  Rounds half(8, 1);
  half.run(200, 0.5);
  const double mean_at_half = half.run(4000, 0.5);
  EXPECT_GT(mean_at_half, 0.9);
  EXPECT_LT(mean_at_half, 2.6);
  // 0.8: 4 drafts, by a little.
  Rounds good(8, 1);
  good.run(200, 0.8);
  const double mean_at_good = good.run(4000, 0.8);
  EXPECT_GT(mean_at_good, 3.0);
  EXPECT_LT(mean_at_good, 5.5);
  EXPECT_NEAR(good.length.acceptance(), 0.6, 0.3);
}

TEST(DraftLength, NoiseSeldomMovesIt) {
  for (const double chance : {0.3, 0.5, 0.7, 0.9}) {
    Rounds rounds(8, 7);
    rounds.run(200, chance);
    rounds.num_changes = 0;
    rounds.run(16000, chance);
    // Every probe is two: there and back.
    EXPECT_LT(rounds.num_changes, 2 * 16000 / DraftLength::kProbeInterval + 400) << chance;
  }
}

TEST(DraftLength, AProbeIsDueUntilTheDrafterHasSomething) {
  DraftLength length(3, true);
  for (int round = 0; round < 8; ++round) length.record(length.next(), 0);
  for (int round = 0; round < DraftLength::kProbeInterval; ++round) length.record(0, 0);
  for (int round = 0; round < 40; ++round) {
    EXPECT_EQ(length.next(), 1);
    length.record(0, 0);
  }
  length.record(1, 0);
  EXPECT_EQ(length.next(), 0);
}

TEST(DraftLength, CheapDraftsAreWorthwhileWhereDearOnesAreNot) {
  DraftLength cheap(4, true, 0.01);
  DraftLength dear(4, true, 0.9);
  for (int round = 0; round < 64; ++round) {
    const std::int32_t accepted = round % 2 == 0 ? 4 : 0;
    cheap.record(4, accepted);
    dear.record(4, accepted);
  }
  EXPECT_EQ(cheap.next(), 4);
  EXPECT_EQ(dear.next(), 0);
}

TEST(DraftLength, IsTheLongestAlwaysWhereItDoesNotAdapt) {
  DraftLength length(7, false);
  for (int round = 0; round < 100; ++round) {
    ASSERT_EQ(length.next(), 7);
    length.record(7, 0);
  }
  EXPECT_LT(length.acceptance(), 0.01);
}

TEST(DraftLengthDeathTest, NumbersOutOfRangeAreABug) {
  EXPECT_DEATH(DraftLength(16, true), "16 drafts, limit 15");
  EXPECT_DEATH(DraftLength(3, true).record(2, 3), "3 of 2 drafts accepted, limit 3");
  EXPECT_DEATH(DraftLength(3, true).record(4, 3), "3 of 4 drafts accepted, limit 3");
}

}  // namespace
}  // namespace slackwater::engine
