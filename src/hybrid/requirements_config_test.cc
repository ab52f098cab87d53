// R16 to R19: what is refused at configuration, what stops a slot past the records, real shapes,
// and requests that say what they say alone.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"
#include "hybrid/speaker_test_support.h"
#include "testing/seed.h"

namespace slackwater::hybrid {
namespace {

using device::MemoryKind;
using storage::Tier;
using testing::HasSubstr;

// Creates a manager; the text of the refusal, before anything is taken from the device, or nothing.
std::optional<std::string> refusal_of(HybridConfig config) {
  const auto device = device::make_cpu_device();
  const auto stream = *device->make_stream("steps");
  const auto made = HybridCacheManager::create(*device, *stream, nullptr, std::move(config));
  if (made.has_value()) return std::nullopt;
  EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument) << made.error().text();
  for (const MemoryKind kind :
       {MemoryKind::kDevice, MemoryKind::kPinnedHost, MemoryKind::kPageableHost}) {
    EXPECT_EQ(device->usage(kind).committed_bytes, 0u) << made.error().text();
  }
  return made.error().text();
}

TEST_P(Requirements, R16RebalanceIsRefusedWhereThePoolCouldOutgrowTheRecords) {
  for (const bool has_replay : {false, true}) {
    for (const bool has_reuse : {false, true}) {
      for (const bool has_rebalance : {false, true}) {
        // Also where none of the KDA layers lies here: all ranks decide alike.
        for (const bool is_elsewhere : {false, true}) {
          WorldOptions wanted = options(2);
          wanted.max_drafts = has_replay ? 3 : 0;
          wanted.change = [&](HybridConfig& config) {
            config.enable_block_reuse = has_reuse;
            config.enable_rebalance = has_rebalance;
            if (is_elsewhere) config.cache.local_layers = {0};
          };
          const HybridConfig config = world_config(wanted);
          const bool is_refused = !is_in_pool() && has_rebalance && (has_replay || has_reuse);
          const Result<void> valid = validate(config);
          EXPECT_EQ(valid.has_value(), !is_refused)
              << "replay " << has_replay << ", block reuse " << has_reuse << ", rebalance "
              << has_rebalance << ", elsewhere " << is_elsewhere;
          if (!is_refused) continue;
          const auto text = refusal_of(world_config(wanted));
          ASSERT_TRUE(text.has_value());
          EXPECT_THAT(*text, HasSubstr(has_replay ? "rebalance with replay records"
                                                  : "rebalance with block reuse"));
          EXPECT_THAT(*text, HasSubstr("use ReplayPlacement::kInPool"));
        }
      }
    }
  }
}

// tidy: allow(function-length): a table of configurations, one entry a refusal
TEST_P(Requirements, R16WhatCannotWorkIsRefusedBeforeAnythingIsTaken) {
  struct Case {
    std::function<void(HybridConfig&)> change;
    const char* text;
  };
  const std::vector<Case> cases = {
      {[](HybridConfig& config) {
         config.enable_rebalance = true;
         config.kv_dtype = "fp8_ds_mla";
       },
       "rebalance with attention pages of 'fp8_ds_mla'"},
      {[](HybridConfig& config) { config.speculation.reset(); },
       "replay of drafts without speculation; give max_drafts, or leave replay out"},
      {[](HybridConfig& config) { config.replay->num_records = 2; },
       "2 replay records a slot for rounds of up to 3 drafts"},
      {[](HybridConfig& config) { config.has_mamba2_replay = true; },
       "replay on KDA layers and Mamba-2 replay at once"},
      {[](HybridConfig& config) {
         for (KdaLayer& layer : config.kda_layers) {
           layer.shape.conv_layout = ConvLayout::kInterleaved;
         }
       },
       "replay with an interleaved window in KDA layer 1"},
      {[](HybridConfig& config) { config.save_bytes = 3; },
       "3 bytes of host memory for saves, one save has "},
      {[](HybridConfig& config) { config.save_bytes = -1; }, "-1 bytes for saves"},
      {[](HybridConfig& config) { config.kda_layers[1].shape.num_heads = 2; },
       "KDA layers 2 and 1 of tag 'target' differ in shape"},
      {[](HybridConfig& config) { config.kda_layers[0].shape.conv_taps = 3; },
       "KDA layer 1 has a convolution over 3 tokens; kernels take 4"},
      {[](HybridConfig& config) { config.kda_layers[0].shape.head_dim = 33; },
       "KDA layer 1 has 1 heads of 33"},
      {[](HybridConfig& config) { config.kda_layers[0].shape.conv_dtype = DType::kF16; },
       "the window of KDA layer 1 is "},
      {[](HybridConfig& config) { config.cache.pool_policy = storage::PoolPolicy::kOnePerSize; },
       "recurrent layers with a pool per size of buffers"},
      {[](HybridConfig& config) { config.mtp_hidden_size = -4; }, "a hidden state of -4 floats"},
      {[](HybridConfig& config) { config.max_batch_size = 0; }, "batches of 0 requests"},
      {[](HybridConfig& config) { config.pipeline_size = 0; }, "0 of them at a time"},
      {[](HybridConfig& config) { config.num_dummies = -1; }, "-1 dummies"},
      {[](HybridConfig& config) { config.speculation->max_drafts = 0; },
       "speculation with 0 drafts"},
      {[](HybridConfig& config) { config.snapshots.periodic_snapshot_interval = -1; },
       "snapshots every -1 tokens"},
      {[](HybridConfig& config) {
         config.snapshots.additional_snapshot_offsets_from_end = {4, -2};
       },
       "a snapshot -2 tokens from an end"},
      {[](HybridConfig& config) {
         config.slot_entries = {{.name = "seed", .bytes_per_layer = 8, .group_tag = "mtp"}};
       },
       "slot entry 'seed' of tag 'mtp', which no recurrent layer has"},
      {[](HybridConfig& config) {
         config.slot_entries = {{.name = "seed", .bytes_per_layer = 8},
                                {.name = "seed", .bytes_per_layer = 4}};
       },
       "two entries 'seed' of target state"},
      {[](HybridConfig& config) { config.slot_entries = {{.name = "seed"}}; },
       "entry 'seed' of target state with 1 layers of 0 bytes"},
      {[](HybridConfig& config) {
         for (KdaLayer& layer : config.kda_layers) layer.group_tag = "draft";
       },
       "replay on 2 KDA layers, none of them of tag 'target'"},
      {[](HybridConfig& config) {
         // What this rank saves would fit, and what one with all layers saves would not.
         config.save_bytes = save_bytes_of(slot_entries(config, "target", LayerScope::kAll)) - 1;
         config.cache.local_layers = {0, 1};
       },
       "one save has "},
  };
  for (const Case& of : cases) {
    WorldOptions wanted = options(2);
    wanted.change = of.change;
    const auto text = refusal_of(world_config(wanted));
    ASSERT_TRUE(text.has_value()) << of.text;
    EXPECT_THAT(*text, HasSubstr(of.text));
  }
}

// The rebalance of the change request: the tuner's target grows the recurrent pool from 10 to 11
// slots.
struct GrowingWorld : Puppets {
  static WorldOptions grown(WorldOptions options) {
    options.num_slots = 10;
    options.tokens_per_request = 4;
    const bool is_in_pool = options.placement == ReplayPlacement::kInPool;
    options.change = [is_in_pool](HybridConfig& config) {
      config.cache.rebalance = {
          .min_samples = 4, .update_interval = 1, .cooldown = {}, .threshold = 1.01, .decay = 0.5};
      // Room for one more state, which the attention has at first.
      config.cache.device_bytes += is_in_pool ? 20 << 10 : 12 << 10;
      config.cache.initial_pool_ratio = {0.999, 0.001};
    };
    return options;
  }
  explicit GrowingWorld(WorldOptions options) : Puppets(grown(std::move(options))) {}

  std::int32_t num_pool_slots() const { return manager->view().registries[0].num_pool_slots; }
  // Short requests, of which the state is all but all.
  void feed() {
    for (std::uint64_t id = 100; id < 120; ++id) {
      start(id, numbers(1, 2), 2);
      manager->free_resources(RequestId(id));
    }
  }
};

TEST_P(Requirements, R17ASlotPastTheRecordsIsRefusedWithSlotAndBound) {
  GrowingWorld world(options());
  ASSERT_EQ(world.num_pool_slots(), 10);
  world.feed();
  ASSERT_TRUE(world.manager->kv_cache().need_adjustment({}));
  // The refusal.
  const Result<void> adjusted = world.manager->adjust({});
  const Result<void> set =
      world.manager->set_quota(Tier::kDevice, world.manager->kv_cache().quota(Tier::kDevice));
  EXPECT_EQ(set.has_value(), is_in_pool());
  if (is_in_pool()) {
    ASSERT_TRUE(adjusted.has_value()) << adjusted.error().text();
    EXPECT_EQ(world.num_pool_slots(), 11);
    EXPECT_EQ(world.state().num_slots(), 11);
  } else {
    ASSERT_FALSE(adjusted.has_value());
    EXPECT_EQ(adjusted.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(set.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(adjusted.error().text(), HasSubstr("use ReplayPlacement::kInPool"));
    EXPECT_EQ(world.num_pool_slots(), 10);
    // Somebody does it all the same, and only the bound check is left.
    const Result<void> beneath = world.manager->kv_cache().adjust({});
    ASSERT_TRUE(beneath.has_value()) << beneath.error().text();
    EXPECT_EQ(world.num_pool_slots(), 11);
    EXPECT_EQ(world.state().registry().num_slots(), 10);
  }
  int num_refused = 0;
  for (std::uint64_t id = 1; id <= 11; ++id) {
    world.start(id, numbers(static_cast<TokenId>(id), 2), 4);
    BatchSetup setup;
    const HybridCounters before = world.manager->counters();
    const std::vector<BatchRow> rows = {World::context_row(id, 0, 2)};
    const Result<void> done = world.manager->setup_state_indices(rows, setup);
    if (done.has_value()) continue;
    ++num_refused;
    EXPECT_EQ(done.error().code(), ErrorCode::kOutOfRange);
    EXPECT_THAT(done.error().text(), HasSubstr("is in slot 10 of the recurrent pool, past the 10"));
    EXPECT_EQ(world.manager->counters().resets, before.resets);
    EXPECT_EQ(world.manager->state_index(RequestId(id)), std::nullopt);
  }
  EXPECT_EQ(num_refused, is_in_pool() ? 0 : 1);
  if (is_in_pool()) world.manager->audit();
}

TEST_P(Requirements, R18KimiK3PerRankShapesFollowTheirRequestThroughTheHostTier) {
  WorldOptions wanted = options(5);
  wanted.num_kda_layers = 69;
  wanted.shape = {.num_heads = 6, .head_dim = 128, .conv_dtype = DType::kBf16};
  wanted.num_saves = 6;
  wanted.host_bytes = std::int64_t{80} << 20;
  Puppets world(wanted);
  EXPECT_EQ(wanted.shape.record_bytes(3) * 69, 6'365'664);
  world.enter(1);
  world.round(1, 2, 181);
  const SlotId before = world.slot_of(1);
  const std::vector<std::byte> own = world.contents(1);
  world.suspend(1);
  // Four newcomers fill the pool; the fifth gets the slot, and the page goes to the host.
  const cache::KvCacheManager& cache = world.manager->kv_cache();
  const LayerGroupId states = world.state().layer_group();
  for (const std::uint64_t id : {2, 3, 4, 5}) {
    world.enter(id);
    ASSERT_NE(world.slot_of(id), before);
  }
  EXPECT_EQ(cache.room(Tier::kHost, states).total, cache.room(Tier::kHost, states).free);
  world.enter(6);
  ASSERT_EQ(world.slot_of(6), before);
  EXPECT_EQ(cache.room(Tier::kHost, states).total, cache.room(Tier::kHost, states).free + 1);
  world.round(6, 3, 182);
  world.manager->free_resources(RequestId(4));
  const BatchSetup setup = world.wake(1);
  EXPECT_NE(world.slot_of(1), before);
  EXPECT_EQ(setup.rows[0].num_pending, 2);
  EXPECT_EQ(world.device_pending(1), 2);
  // Records and P, and every byte of states and windows.
  EXPECT_TRUE(world.contents(1) == own);
  world.manager->audit();
}

// Requests over fewer slots, suspended at any moment, acceptance late or not.
class Schedule {
 public:
  Schedule(World& world, std::uint64_t seed) : world_(world), random_(seed) {}

  void run(int num_steps) {
    for (int i = 0; i < num_steps && !testing::Test::HasFailure(); ++i) step();
    for (const Actor& actor : actors_) actor.speaker.expect_says_what_it_says_alone();
  }

 private:
  struct Actor {
    Speaker speaker;
    std::uint64_t id = 0;
    bool is_asleep = false;
    bool is_waiting = false;  // for its acceptance
  };

  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool has_room() const {
    return std::count_if(actors_.begin(), actors_.end(),
                         [](const Actor& actor) { return !actor.is_asleep; }) < 3;
  }
  void add() {
    const std::uint64_t id = next_id_++;
    actors_.push_back(
        {Speaker(world_, id, numbers(static_cast<TokenId>(7 * id), 4 + pick(5))), id});
    actors_.back().speaker.read_prompt();
  }
  void step() {
    if (actors_.size() < 6 && has_room()) return add();
    const auto at = std::next(actors_.begin(), pick(static_cast<int>(actors_.size())));
    Actor& actor = *at;
    if (actor.speaker.num_tokens() > 50 && !actor.is_waiting) {
      actor.speaker.expect_says_what_it_says_alone();
      world_.manager->free_resources(RequestId(actor.id));
      actors_.erase(at);
    } else if (actor.is_waiting && pick(2) == 0) {
      actor.speaker.accept();
      actor.is_waiting = false;
    } else if (actor.is_asleep) {
      if (!has_room()) return;
      world_.resume(actor.id);
      actor.is_asleep = false;
    } else if (pick(4) == 0) {
      world_.suspend(actor.id);
      actor.is_asleep = true;
    } else if (!actor.is_waiting) {
      ASSERT_TRUE(world_.manager->resize(RequestId(actor.id), 60).has_value());
      const int drafts = pick(4);
      actor.speaker.verify(drafts, pick(drafts + 1));
      actor.is_waiting = drafts > 0;
    }
  }

  World& world_;
  std::mt19937_64 random_;
  std::list<Actor> actors_;
  std::uint64_t next_id_ = 1;
};

TEST_P(Requirements, R19WhatRequestsSayDoesNotDependOnTheSchedule) {
  const std::uint64_t seed = test_seed();
  for (const SuspendPolicy policy : {SuspendPolicy::kSave, SuspendPolicy::kCommitIfKnown}) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      SCOPED_TRACE(testing::Message() << "schedule " << i);
      WorldOptions wanted = options(3);
      wanted.suspend_policy = policy;
      World world(wanted,
                  std::make_unique<device::SimDevice>(device::SimOptions{.seed = seed + i}));
      Schedule(world, seed + i).run(400);
      world.manager->audit();
      const HybridCounters counters = world.manager->counters();
      EXPECT_GT(counters.resumes_in_new_slot, 5);
      EXPECT_GT(counters.resumes_in_old_slot, 0);
      EXPECT_GT(counters.late_acceptances, 0);
      EXPECT_EQ(counters.lost_requests, 0);
      EXPECT_EQ(counters.commits > 0, policy == SuspendPolicy::kCommitIfKnown);
    }
  }
}

}  // namespace
}  // namespace slackwater::hybrid
