// The seven tests of the change request this began with, under the names they have there; each is
// a ctest of its own (docs/lineage.md). On the cpu device and on the simulated one.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"

namespace slackwater::hybrid {
namespace {

using device::Device;
using device::SimDevice;
using storage::Tier;

// Both devices, both placements.
void everywhere(const WorldOptions& options, const std::function<void(Puppets&)>& test) {
  for (const auto placement : {ReplayPlacement::kBesidePool, ReplayPlacement::kInPool}) {
    for (const bool is_simulated : {false, true}) {
      SCOPED_TRACE(testing::Message() << "records " << to_string(placement) << ", "
                                      << (is_simulated ? "simulated" : "cpu"));
      WorldOptions wanted = options;
      wanted.placement = placement;
      std::unique_ptr<Device> device;
      if (is_simulated) device = std::make_unique<SimDevice>(device::SimOptions{.seed = 7});
      Puppets world(wanted, std::move(device));
      test(world);
      world.manager->audit();
    }
  }
}

WorldOptions two_slots() { return {.num_slots = 2, .host_bytes = 2 << 20}; }

void expect_follows(Puppets& world, bool in_new_slot) {
  world.enter(1);
  world.round(1, 2, 1);
  const SlotId before = world.slot_of(1);
  const std::vector<std::byte> own = world.contents(1);
  world.enter(2);
  world.suspend(1);
  EXPECT_EQ(world.manager->state_index(RequestId(1)), std::nullopt);
  world.enter(3);
  world.round(3, 3, 3);
  ASSERT_EQ(world.slot_of(3), before);
  const std::vector<std::byte> others = world.contents(3);
  world.manager->free_resources(RequestId(in_new_slot ? 2 : 3));
  world.wake(1);
  EXPECT_EQ(world.slot_of(1) != before, in_new_slot);
  EXPECT_EQ(world.contents(1), own);
  EXPECT_EQ(world.device_pending(1), 2);
  if (in_new_slot) {
    EXPECT_EQ(world.contents(3), others);
  }
  EXPECT_EQ(world.manager->counters().relocations, 0);
}

TEST(kda_replay, state_follows_a_suspended_request_new_slot) {
  everywhere(two_slots(), [](Puppets& world) { expect_follows(world, true); });
}

TEST(kda_replay, state_follows_a_suspended_request_old_slot) {
  everywhere(two_slots(), [](Puppets& world) { expect_follows(world, false); });
}

TEST(kda_replay, late_acceptance_follows_a_suspended_request) {
  everywhere(two_slots(), [](Puppets& world) {
    world.enter(1);
    world.round(1, 3, 1);
    const SlotId before = world.slot_of(1);
    world.verify(1);
    world.enter(2);
    world.suspend(1);
    world.enter(3);
    world.round(3, 1, 3);
    ASSERT_EQ(world.slot_of(3), before);
    world.accept(1, 2);
    EXPECT_EQ(world.device_pending(3), 1);
    EXPECT_EQ(world.manager->view().requests[0].slots[0].accepted_override, 2);
    world.manager->free_resources(RequestId(2));
    const BatchSetup setup = world.wake(1);
    EXPECT_EQ(setup.rows[0].num_pending, 2);
    EXPECT_EQ(world.device_pending(1), 2);
    EXPECT_EQ(world.device_pending(3), 1);
  });
}

TEST(kda_replay, state_follows_a_suspended_request_on_the_runtime) {
  WorldOptions wanted{.num_slots = 5, .host_bytes = std::int64_t{80} << 20, .num_saves = 6};
  wanted.num_kda_layers = 69;
  wanted.shape = {.num_heads = 6, .head_dim = 128, .conv_dtype = DType::kBf16};
  everywhere(wanted, [](Puppets& world) {
    const LayerGroupId states = world.state().layer_group();
    const auto num_on_host = [&] {
      const cache::TierRoom room = world.manager->kv_cache().room(Tier::kHost, states);
      return room.total - room.free;
    };
    ASSERT_EQ(world.state().num_slots(), 5);
    world.enter(1);
    world.round(1, 2, 1);
    const SlotId before = world.slot_of(1);
    const std::vector<std::byte> own = world.contents(1);
    world.suspend(1);
    for (const std::uint64_t id : {2, 3, 4, 5}) world.enter(id);
    EXPECT_EQ(num_on_host(), 0);
    world.enter(6);
    ASSERT_EQ(world.slot_of(6), before);
    EXPECT_EQ(num_on_host(), 1);
    world.round(6, 3, 6);
    world.suspend(2);
    world.wake(1);
    EXPECT_NE(world.slot_of(1), before);
    EXPECT_TRUE(world.contents(1) == own) << "records, states and windows";
    EXPECT_EQ(world.device_pending(1), 2);
  });
}

TEST(kda_replay, host_drafter_records_active_requests) {
  WorldOptions wanted{.num_slots = 4, .num_dummies = 1, .host_bytes = 2 << 20};
  everywhere(wanted, [](Puppets& world) {
    for (const std::uint64_t id : {1, 2, 3}) world.enter(id);
    BatchSetup setup =
        world.set_up({world.next_row(1), world.next_row(2, 1), world.next_row(3, 0)});
    ASSERT_TRUE(world.manager->pad_to(4, setup).has_value());
    world.manager->step_queued(setup);
    // One call for the batch: the drafts that were kept, none for the row that had none.
    std::vector<Acceptance> acceptances;
    for (const std::uint64_t id : {1, 2, 3}) {
      const RowSetup& row = setup.rows[id - 1];
      acceptances.push_back({row.row.request, row.epoch, row.round, id == 3 ? 0 : 1});
    }
    ASSERT_TRUE(world.manager->update_resources(acceptances).has_value());
    EXPECT_EQ(world.device_pending(1), 1);
    EXPECT_EQ(world.device_pending(2), 1);
    EXPECT_EQ(world.device_pending(3), 0);
    EXPECT_EQ(*world.state().pending(setup.rows[3].slot), 0) << "nobody accepts for a dummy";
    EXPECT_EQ(world.manager->counters().ignored_acceptances, 0);
    EXPECT_EQ(world.manager->counters().late_acceptances, 0);
  });
}

Result<void> build_with_rebalance(bool has_replay) {
  WorldOptions wanted = two_slots();
  wanted.placement = ReplayPlacement::kBesidePool;
  wanted.max_drafts = has_replay ? 3 : 0;
  wanted.change = [](HybridConfig& config) {
    config.enable_rebalance = true;
    config.enable_block_reuse = false;
  };
  const auto device = device::make_cpu_device();
  const auto stream = *device->make_stream("steps");
  const auto made = HybridCacheManager::create(*device, *stream, nullptr, world_config(wanted));
  if (!made.has_value()) return tl::unexpected<Error>(made.error());
  return {};
}

TEST(kda_replay, refuses_kv_pool_rebalance_kda_replay) {
  const Result<void> built = build_with_rebalance(true);
  ASSERT_FALSE(built.has_value());
  EXPECT_EQ(built.error().code(), ErrorCode::kInvalidArgument);
}

TEST(kda_replay, refuses_kv_pool_rebalance_no_replay) {
  const Result<void> built = build_with_rebalance(false);
  EXPECT_TRUE(built.has_value()) << built.error().text();
}

}  // namespace
}  // namespace slackwater::hybrid
