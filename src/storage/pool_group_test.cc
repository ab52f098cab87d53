#include "slackwater/storage/pool_group.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/device/sim_device.h"

namespace slackwater::storage {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kGrain = 4096;

class PoolGroupTest : public testing::Test {
 protected:
  std::unique_ptr<PoolGroup> make(SlotSizes slot_bytes, std::int32_t max_slots = 1000) {
    PoolGroupOptions options;
    options.name = "test";
    options.slot_bytes = std::move(slot_bytes);
    options.grain_bytes = kGrain;
    options.max_slots = max_slots;
    auto group = PoolGroup::create(device_, options);
    EXPECT_TRUE(group.has_value()) << group.error().text();
    return *std::move(group);
  }
  std::size_t committed() const {
    return device_.usage(device::MemoryKind::kDevice).committed_bytes;
  }

  bool refuse_ = false;
  device::SimDevice device_{{.seed = 1,
                             .device_bytes = 64 * kGrain,
                             .refuse_commit = [this](std::int64_t) { return refuse_; }}};
};

// A move that copies by hand, at once.
PoolGroup::MoveSlots copy_within(PoolGroup& group) {
  return [&group](std::span<SlotMove> moves) {
    for (const SlotMove& move : moves) {
      move.to.ready.wait();
      for (std::size_t pool = 0; pool < group.slot_bytes().size(); ++pool) {
        std::memcpy(group.address(pool, move.to.slot), group.address(pool, move.from),
                    static_cast<std::size_t>(group.slot_bytes()[pool]));
      }
    }
  };
}

TEST_F(PoolGroupTest, PoolsShareSlotIdsAndGrowTogether) {
  const auto group = make({640, 128});
  ASSERT_TRUE(group->grow(10).has_value());
  EXPECT_EQ(group->num_slots(), 10);
  EXPECT_EQ(group->address(0, SlotId(3)), group->address(0, SlotId(0)) + 3 * 640);
  EXPECT_EQ(group->address(1, SlotId(3)), group->address(1, SlotId(0)) + 3 * 128);
  EXPECT_EQ(group->committed_bytes(), 3 * kGrain) << "6400 and 1280 bytes, in grains";
  EXPECT_EQ(committed(), static_cast<std::size_t>(3 * kGrain));
  group->check_invariants();
}

TEST_F(PoolGroupTest, BasesNeverMove) {
  const auto group = make({640, 128});
  ASSERT_TRUE(group->grow(2).has_value());
  std::byte* const first = group->address(0, SlotId(1));
  std::byte* const second = group->address(1, SlotId(1));
  ASSERT_TRUE(group->grow(60).has_value());
  ASSERT_TRUE(group->shrink(4, copy_within(*group)).has_value());
  EXPECT_EQ(group->address(0, SlotId(1)), first);
  EXPECT_EQ(group->address(1, SlotId(1)), second);
}

TEST_F(PoolGroupTest, AViewFindsEachLayerOfEachSlot) {
  const std::vector<BufferSpec> buffers = {{"state", 320, 2}, {"window", 64, 2}};
  const SlotLayout layout = *lay_out_slots(buffers, PoolPolicy::kOnePool);
  const auto group = make(layout.pool_slot_bytes);
  ASSERT_TRUE(group->grow(5).has_value());
  const PageTable table = group->view(layout.buffers[1], 32);
  EXPECT_EQ(table.base, group->address(0, SlotId(0)) + 640);
  EXPECT_EQ(table.slot_stride, 768);
  EXPECT_EQ(table.layer_stride, 64);
  EXPECT_EQ(table.num_slots, 5);
  EXPECT_EQ(table.tokens_per_block, 32);
}

TEST_F(PoolGroupTest, AShrinkMovesWhatLiesPastTheEnd) {
  const auto group = make({64});
  ASSERT_TRUE(group->grow(8).has_value());
  std::vector<SlotId> slots;
  for (int i = 0; i < 8; ++i) {
    slots.push_back(group->allocate()->slot);
    std::memset(group->address(0, slots.back()), i, 64);
  }
  for (const int i : {0, 2, 3, 6}) group->release(slots[static_cast<std::size_t>(i)]);
  std::vector<std::pair<SlotId, SlotId>> moves;
  const auto copy = copy_within(*group);
  ASSERT_TRUE(group
                  ->shrink(4,
                           [&](std::span<SlotMove> all) {
                             for (const SlotMove& move : all) {
                               moves.emplace_back(move.from, move.to.slot);
                             }
                             copy(all);
                           })
                  .has_value());
  EXPECT_EQ(moves, (std::vector<std::pair<SlotId, SlotId>>{
                       {SlotId(4), SlotId(0)}, {SlotId(5), SlotId(2)}, {SlotId(7), SlotId(3)}}));
  EXPECT_EQ(*group->address(0, SlotId(3)), std::byte{7});
  EXPECT_EQ(group->num_slots(), 4);
  EXPECT_EQ(group->num_free(), 0);
  group->check_invariants();
}

TEST_F(PoolGroupTest, AShrinkThatDoesNotFitMovesNothing) {
  const auto group = make({64});
  ASSERT_TRUE(group->grow(8).has_value());
  for (int i = 0; i < 5; ++i) static_cast<void>(group->allocate());
  const auto refused =
      group->shrink(4, [](std::span<SlotMove>) { ADD_FAILURE() << "a slot was moved"; });
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().text(), HasSubstr("5 slots are occupied, 4 would be left of 8"));
  EXPECT_EQ(group->num_slots(), 8);
  EXPECT_EQ(group->num_free(), 3);
}

TEST_F(PoolGroupTest, AShrinkWaitsForTheLastUseOfWhatItTakesAway) {
  const auto group = make({4096});
  ASSERT_TRUE(group->grow(2).has_value());
  const auto stream = *device_.make_stream("reader");
  const SlotId keeper = group->allocate()->slot;
  const SlotId goes = group->allocate()->slot;
  EXPECT_EQ(keeper, SlotId(0));
  std::byte seen{1};
  stream->run([&, bytes = group->address(0, goes)] { return seen = *bytes, true; });
  group->release(goes, stream->record());
  // Had the memory gone first, the read would be a fault.
  ASSERT_TRUE(group->shrink(1, copy_within(*group)).has_value());
  EXPECT_EQ(seen, std::byte{0});
}

TEST_F(PoolGroupTest, AGrowthThatOnePoolCannotHaveChangesNone) {
  const auto group = make({4096, 4096});
  ASSERT_TRUE(group->grow(4).has_value());
  const auto refused = group->grow(60);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().text(), HasSubstr("pool group 'test'"));
  EXPECT_EQ(group->num_slots(), 4);
  group->check_invariants();
  EXPECT_EQ(committed(), static_cast<std::size_t>(8 * kGrain));
  refuse_ = true;
  EXPECT_FALSE(group->grow(5).has_value());
  group->check_invariants();
}

TEST_F(PoolGroupTest, MemoryGoesFromALoserToAGainer) {
  const auto loser = make({4096, 8192});
  const auto gainer = make({4096});
  ASSERT_TRUE(loser->grow(20).has_value());
  const SlotId keeper = loser->allocate()->slot;
  std::memset(loser->address(1, keeper), 5, 8192);
  device_.set_budget(device::MemoryKind::kDevice, committed());
  const auto handover = device_.make_handover(device::MemoryKind::kDevice);
  ASSERT_TRUE(loser->shrink(8, copy_within(*loser), handover.get()).has_value());
  EXPECT_EQ(handover->kept_bytes(), static_cast<std::size_t>(36 * kGrain));
  ASSERT_TRUE(gainer->grow(36, handover.get()).has_value());
  EXPECT_EQ(handover->kept_bytes(), 0u);
  EXPECT_EQ(committed(), static_cast<std::size_t>(60 * kGrain));
  EXPECT_EQ(*loser->address(1, keeper), std::byte{5});
  *gainer->address(0, SlotId(35)) = std::byte{1};
  loser->check_invariants();
  gainer->check_invariants();
}

// A pool of the gainer has its memory already when the next one is refused.
TEST_F(PoolGroupTest, AGrowthThatIsRefusedGivesBackWhatItWasHanded) {
  const auto loser = make({4096});
  const auto gainer = make({4096, 4096});
  ASSERT_TRUE(loser->grow(10).has_value());
  device_.set_budget(device::MemoryKind::kDevice, committed());
  const auto handover = device_.make_handover(device::MemoryKind::kDevice);
  ASSERT_TRUE(loser->shrink(4, copy_within(*loser), handover.get()).has_value());
  const auto refused = gainer->grow(4, handover.get());
  ASSERT_FALSE(refused.has_value()) << "8 grains of 6";
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(handover->kept_bytes(), static_cast<std::size_t>(6 * kGrain));
  EXPECT_EQ(gainer->num_slots(), 0);
  gainer->check_invariants();
  loser->check_invariants();
  ASSERT_TRUE(gainer->grow(3, handover.get()).has_value());
  gainer->check_invariants();
}

#if defined(SLACKWATER_DCHECKS)
TEST_F(PoolGroupTest, SlotsOfMemoryThatWasHandedOverArePoisoned) {
  const auto loser = make({4096});
  const auto gainer = make({64});
  ASSERT_TRUE(loser->grow(2).has_value());
  const auto handover = device_.make_handover(device::MemoryKind::kDevice);
  ASSERT_TRUE(loser->shrink(1, copy_within(*loser), handover.get()).has_value());
  ASSERT_TRUE(gainer->grow(3, handover.get()).has_value());
  EXPECT_EQ(*gainer->address(0, SlotId(2)), std::byte{0xDD});
}

TEST_F(PoolGroupTest, AReleasedSlotIsPoisoned) {
  const auto group = make({64, 128});
  ASSERT_TRUE(group->grow(2).has_value());
  const SlotId slot = group->allocate()->slot;
  std::memset(group->address(1, slot), 1, 128);
  group->release(slot);
  for (const std::size_t pool : {0u, 1u}) {
    EXPECT_EQ(*group->address(pool, slot), std::byte{0xDD});
  }
}
#endif

TEST_F(PoolGroupTest, RefusesImpossibleGroups) {
  const auto text_of = [&](SlotSizes sizes, std::int32_t max_slots) {
    PoolGroupOptions options;
    options.name = "test";
    options.slot_bytes = std::move(sizes);
    options.grain_bytes = kGrain;
    options.max_slots = max_slots;
    const auto group = PoolGroup::create(device_, options);
    return group.has_value() ? "made" : group.error().text();
  };
  EXPECT_THAT(text_of({}, 5), HasSubstr("0 pools"));
  EXPECT_THAT(text_of({64}, 0), HasSubstr("at most 0 slots"));
  EXPECT_THAT(text_of({-64}, 5), HasSubstr("slots of -64 bytes"));
  EXPECT_THAT(text_of({std::int64_t{1} << 62}, 2'000'000'000), HasSubstr("do not fit 64 bits"));
  const auto group = make({64}, 10);
  EXPECT_EQ(group->grow(11).error().code(), ErrorCode::kOutOfRange);
}

}  // namespace
}  // namespace slackwater::storage
