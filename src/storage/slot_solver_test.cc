#include "slackwater/storage/slot_solver.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/seed.h"

namespace slackwater::storage {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::int64_t total_grains(std::span<const GroupDemand> groups, std::span<const std::int64_t> slots,
                          std::int64_t grain) {
  std::int64_t grains = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    grains += grains_for(groups[g].slot_bytes, slots[g], grain);
  }
  return grains;
}

std::vector<std::int64_t> solve(std::span<const GroupDemand> groups, std::int64_t quota,
                                std::int64_t grain) {
  const auto slots = solve_slots(groups, quota, grain);
  EXPECT_TRUE(slots.has_value()) << slots.error().text();
  return slots.value_or(std::vector<std::int64_t>());
}

TEST(SlotSolver, GrainsAreRoundedUpPerPool) {
  EXPECT_EQ(grains_for(std::vector<std::int64_t>{100}, 0, 64), 0);
  EXPECT_EQ(grains_for(std::vector<std::int64_t>{100}, 1, 64), 2);
  EXPECT_EQ(grains_for(std::vector<std::int64_t>{100, 10}, 1, 64), 3);
  EXPECT_EQ(grains_for(std::vector<std::int64_t>{64, 32}, 2, 64), 3);
}

TEST(SlotSolver, SlotsOfGrainsComeBackWhole) {
  // kvcm_v2 7.1, grains_to_slots_refines_proportional_lower_bound.
  const std::vector<std::int64_t> sizes = {16252928, 4063232};
  const std::int64_t grain = 16 * kMiB;
  EXPECT_EQ(slots_for(sizes, grains_for(sizes, 157, grain), grain), 157);
}

TEST(SlotSolver, SlotsForIsTheLargestNumberThatFits) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::int64_t> sizes(1 + random() % 3);
    for (std::int64_t& bytes : sizes) bytes = static_cast<std::int64_t>(1 + random() % 300);
    const auto grain = static_cast<std::int64_t>(1 + random() % 128);
    const auto grains = static_cast<std::int64_t>(random() % 200);
    std::int64_t want = 0;
    while (grains_for(sizes, want + 1, grain) <= grains) ++want;
    ASSERT_EQ(slots_for(sizes, grains, grain), want) << "round " << round;
  }
}

// kvcm_v2 3.9 and 7.1, ratio_slot_count_rounding_matches_python.
TEST(SlotSolver, TheRestOfTheGrainsGoesToTheLastGroup) {
  const std::vector<GroupDemand> groups = {{{2 * kMiB - 1}, 0.5, 2}, {{2 * kMiB}, 0.5, 2}};
  EXPECT_THAT(solve(groups, 5 * 2 * kMiB, 2 * kMiB), ElementsAre(2, 3));
}

// kvcm_v2 3.9 and 7.1, ratio_to_slot_count_list_preserves_min_slots.
TEST(SlotSolver, ExactlyTheFloorsStillGivesTheSlotsThatCostNothing) {
  const std::int64_t grain = 16 * kMiB;
  const std::vector<GroupDemand> groups = {{{16252928, 4063232}, 0.2, 157},
                                           {{491520, 126720, 15872}, 0.5, 3907},
                                           {{31457280, 7864320}, 0.3, 157}};
  const std::int64_t quota = min_quota_bytes(groups, grain);
  EXPECT_THAT(solve(groups, quota, grain), ElementsAre(157, 3925, 157));
  const auto refused = solve_slots(groups, quota - 1, grain);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().text(), HasSubstr(std::to_string(quota)));
}

// kvcm_v2 7.1, constraint_floor_overrides_infeasible_initial_pool_ratio.
TEST(SlotSolver, AFloorHoldsOverTheRatio) {
  const std::vector<GroupDemand> groups = {{{kMiB}, 0.8, 1}, {{kMiB}, 0.2, 60}};
  EXPECT_THAT(solve(groups, 100 * kMiB, kMiB), ElementsAre(40, 60));
}

TEST(SlotSolver, ACeilingLeavesTheRestToTheOthers) {
  const std::vector<GroupDemand> groups = {{{kMiB}, 0.9, 1, 8}, {{kMiB}, 0.1, 3}};
  EXPECT_THAT(solve(groups, 100 * kMiB, kMiB), ElementsAre(8, 92));
  // A floor counts more than a ceiling's share: 10 grains, 3 of them owed to the second group.
  EXPECT_THAT(solve(groups, 10 * kMiB, kMiB), ElementsAre(7, 3));
}

TEST(SlotSolver, RatiosAreOfAnyScale) {
  const std::vector<GroupDemand> small = {{{kMiB}, 0.25}, {{kMiB}, 0.75}};
  const std::vector<GroupDemand> large = {{{kMiB}, 25}, {{kMiB}, 75}};
  EXPECT_THAT(solve(small, 100 * kMiB, kMiB), ElementsAre(25, 75));
  EXPECT_EQ(solve(large, 100 * kMiB, kMiB), solve(small, 100 * kMiB, kMiB));
}

// kvcm_v2 4.4 and 7.1, complex_model_1: a quota that once looped for ever.
TEST(SlotSolver, AnAwkwardQuotaEnds) {
  const std::vector<GroupDemand> groups = {
      {{2359296}, 0.013, 5}, {{524288, 131072}, 0.9, 12}, {{65536}, 0.087, 40}};
  const std::int64_t quota = 212'549'334;
  const std::vector<std::int64_t> slots = solve(groups, quota, 2 * kMiB);
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_LE(total_grains(groups, slots, 2 * kMiB) * 2 * kMiB, quota);
}

TEST(SlotSolver, RefusesWhatNoQuotaCouldServe) {
  const auto text_of = [](const std::vector<GroupDemand>& groups, std::int64_t grain = kMiB) {
    const auto slots = solve_slots(groups, kGiB, grain);
    return slots.has_value() ? std::string("solved") : slots.error().text();
  };
  EXPECT_THAT(text_of({}), HasSubstr("no pool group"));
  EXPECT_THAT(text_of({{{}, 1}}), HasSubstr("pool group 0 has no pool"));
  EXPECT_THAT(text_of({{{kMiB}, 1}, {{0}, 1}}), HasSubstr("pool group 1: slots of 0 bytes"));
  EXPECT_THAT(text_of({{{kMiB}, 0}}), HasSubstr("ratio 0"));
  EXPECT_THAT(text_of({{{kMiB}, -1}}), HasSubstr("ratio -1"));
  EXPECT_THAT(text_of({{{kMiB}, std::numeric_limits<double>::infinity()}}), HasSubstr("ratio inf"));
  EXPECT_THAT(text_of({{{kMiB}, 1, 9, 8}}), HasSubstr("at least 9 and at most 8"));
  EXPECT_THAT(text_of({{{kMiB}, 1}}, 0), HasSubstr("a grain of 0 bytes"));
}

TEST(SlotSolver, SizesBeyond32BitsAndBeyond64BitsStayRight) {
  const std::vector<std::int64_t> huge = {std::int64_t{1} << 40};
  EXPECT_EQ(grains_for(huge, 1 << 20, kMiB), std::int64_t{1} << 40);
  EXPECT_EQ(grains_for(std::vector<std::int64_t>{kMax, kMax}, kMax, 1), kMax) << "saturates";
  EXPECT_EQ(slots_for(huge, kMax, kMiB), kMax >> 20);
  const std::vector<GroupDemand> groups = {{{kMax}, 1, kMax}};
  EXPECT_EQ(solve_slots(groups, kMax, kMiB).error().code(), ErrorCode::kResourceExhausted);
}

TEST(SlotSolver, GrainsOfADeviceGrowWithItsQuota) {
  // kvcm_v2 3.9: 2 MiB << min(4, floor(log2(quota / 1 GiB))).
  EXPECT_EQ(device_grain_bytes(0), 2 * kMiB);
  EXPECT_EQ(device_grain_bytes(kGiB - 1), 2 * kMiB);
  EXPECT_EQ(device_grain_bytes(2 * kGiB - 1), 2 * kMiB);
  EXPECT_EQ(device_grain_bytes(2 * kGiB), 4 * kMiB);
  EXPECT_EQ(device_grain_bytes(15 * kGiB), 16 * kMiB);
  EXPECT_EQ(device_grain_bytes(16 * kGiB), 32 * kMiB);
  EXPECT_EQ(device_grain_bytes(640 * kGiB), 32 * kMiB);
}

// kvcm_v2 7.1, initial_ratio_is_per_layer_group_when_hot_group_is_shared.
TEST(SlotSolver, AGroupGetsTheSumOfItsLayerGroups) {
  const std::vector<double> ratios = {0.25, 0.75};
  EXPECT_THAT(sum_ratios(ratios, std::vector<std::int32_t>{0, 0}, 1), ElementsAre(1.0));
  EXPECT_THAT(sum_ratios(ratios, std::vector<std::int32_t>{1, 0}, 3), ElementsAre(0.75, 0.25, 0.0));
}

TEST(SlotSolver, ColdRatiosKeepTheProportionsOfSlotCounts) {
  // Half the bytes hot; cold pages of the second group are half as large.
  const std::vector<double> cold =
      cold_ratios(std::vector<double>{0.5, 0.5}, std::vector<std::int64_t>{100, 100},
                  std::vector<std::int64_t>{100, 50});
  EXPECT_THAT(cold, Pointwise(DoubleNear(1e-12), {2.0 / 3, 1.0 / 3}));
}

// kvcm_v2 7.1, constraint_reserves_resume_headroom.
TEST(SlotSolver, HeadroomKeepsABatchBelowTheGate) {
  EXPECT_EQ(slots_with_headroom(32, 0.95), 34);
  EXPECT_EQ(slots_with_headroom(0, 0.5), 0);
  EXPECT_EQ(slots_with_headroom(97, 0.97), 100);
  EXPECT_EQ(slots_with_headroom(7, 1.0), 7);
  for (std::int64_t n = 0; n < 3000; ++n) {
    for (const double limit : {0.5, 0.9, 0.95, 0.97, 1.0}) {
      const std::int64_t slots = slots_with_headroom(n, limit);
      ASSERT_LE(static_cast<double>(n), static_cast<double>(slots) * limit);
      ASSERT_TRUE(slots == n || static_cast<double>(n) > static_cast<double>(slots - 1) * limit);
    }
  }
}

// What every answer must be, on small cases where all slot counts can be tried.
class SmallCase {
 public:
  explicit SmallCase(std::mt19937_64& random) {
    groups.resize(1 + random() % 3);
    for (GroupDemand& group : groups) {
      group.slot_bytes.resize(1 + random() % 2);
      for (std::int64_t& bytes : group.slot_bytes)
        bytes = 1 + static_cast<std::int64_t>(random() % 40);
      group.ratio = static_cast<double>(1 + random() % 9);
      group.min_slots = static_cast<std::int64_t>(random() % 6);
      if (random() % 3 == 0) {
        group.max_slots = group.min_slots + static_cast<std::int64_t>(random() % 6);
      }
    }
    grain = static_cast<std::int64_t>(1 + random() % 24);
    quota = static_cast<std::int64_t>(random() % 1200);
  }

  // Whether some slot counts within all bounds fit: the floors do, or nothing does.
  bool is_feasible() const {
    std::vector<std::int64_t> floors;
    for (const GroupDemand& group : groups) floors.push_back(group.min_slots);
    return total_grains(groups, floors, grain) <= quota / grain;
  }

  friend void PrintTo(const SmallCase& small, std::ostream* os) {
    *os << "quota " << small.quota << ", grain " << small.grain;
    for (const GroupDemand& group : small.groups) {
      *os << "; slots of " << testing::PrintToString(group.slot_bytes) << ", ratio " << group.ratio
          << ", " << group.min_slots << " to " << group.max_slots;
    }
  }

  // The most slots of group `g` when the others keep theirs.
  std::int64_t most_slots(std::size_t g, const std::vector<std::int64_t>& slots) const {
    const std::int64_t others =
        total_grains(groups, slots, grain) - grains_for(groups[g].slot_bytes, slots[g], grain);
    std::int64_t most = 0;
    while (most < groups[g].max_slots &&
           others + grains_for(groups[g].slot_bytes, most + 1, grain) <= quota / grain) {
      ++most;
    }
    return most;
  }

  std::vector<GroupDemand> groups;
  std::int64_t grain = 1;
  std::int64_t quota = 0;
};

TEST(SlotSolver, AgreesWithTryingEverythingOnSmallCases) {
  std::mt19937_64 random(test_seed());
  int num_solved = 0;
  for (int round = 0; round < 20'000; ++round) {
    const SmallCase small(random);
    SCOPED_TRACE(testing::PrintToString(small));
    const auto solved = solve_slots(small.groups, small.quota, small.grain);
    ASSERT_EQ(solved.has_value(), small.is_feasible());
    if (!solved.has_value()) continue;
    ++num_solved;
    const std::vector<std::int64_t>& slots = *solved;
    ASSERT_LE(total_grains(small.groups, slots, small.grain), small.quota / small.grain);
    const std::int64_t left =
        small.quota / small.grain - total_grains(small.groups, slots, small.grain);
    bool all_at_ceiling = true;
    bool rest_is_too_small = false;
    for (std::size_t g = 0; g < slots.size(); ++g) {
      const GroupDemand& group = small.groups[g];
      ASSERT_GE(slots[g], group.min_slots);
      ASSERT_LE(slots[g], group.max_slots);
      if (slots[g] == group.max_slots) continue;
      all_at_ceiling = false;
      const std::int64_t cost = grains_for(group.slot_bytes, slots[g] + 1, small.grain) -
                                grains_for(group.slot_bytes, slots[g], small.grain);
      ASSERT_GT(cost, 0) << "a slot that costs nothing is left";
      rest_is_too_small |= cost > left;
    }
    ASSERT_TRUE(all_at_ceiling || rest_is_too_small) << testing::PrintToString(slots);
    if (slots.size() == 1) {
      ASSERT_EQ(slots[0], small.most_slots(0, slots)) << "round " << round;
    }
  }
  EXPECT_GT(num_solved, 5'000);
}

}  // namespace
}  // namespace slackwater::storage
