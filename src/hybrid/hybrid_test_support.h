#ifndef SLACKWATER_HYBRID_HYBRID_TEST_SUPPORT_H_
#define SLACKWATER_HYBRID_HYBRID_TEST_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/base/thread_pool.h"
#include "slackwater/cache/layer_groups.h"
#include "slackwater/device/cpu_device.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"
#include "testing/kda_model.h"

namespace slackwater::hybrid {

using Tokens = std::vector<TokenId>;

inline Tokens numbers(TokenId first, std::int64_t count) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back((first + static_cast<TokenId>(i)) % KdaModel::kVocabulary);
  }
  return tokens;
}

// A small model: one layer of attention, some of KDA, with exactly so many slots for states.
struct WorldOptions {
  ReplayPlacement placement = ReplayPlacement::kBesidePool;
  SuspendPolicy suspend_policy = SuspendPolicy::kSave;
  KdaShape shape = {.num_heads = 1, .head_dim = 32};
  std::int32_t num_kda_layers = 2;
  std::int32_t max_drafts = 3;   // 0: no speculation
  bool has_draft_model = false;  // one KDA layer of tag "draft"
  std::int32_t num_slots = 5;    // of each recurrent pool, dummies included
  std::int32_t num_dummies = 0;
  std::int32_t tokens_per_block = 4;
  std::int64_t tokens_per_request = 64;  // room for attention pages
  std::int64_t host_bytes = 64 << 20;    // 0: no host tier
  std::int32_t num_saves = 16;
  std::int32_t mtp_hidden_size = 0;
  std::vector<SlotEntry> slot_entries;
  // The last word on the configuration, quotas included.
  std::function<void(HybridConfig&)> change;
};

inline HybridConfig world_config_without_quota(const WorldOptions& options) {
  HybridConfig config;
  config.cache.tokens_per_block = options.tokens_per_block;
  config.cache.grain_bytes = 4096;
  config.cache.max_util_for_resume = 1;
  config.cache.host_bytes = options.host_bytes;
  config.cache.layers.push_back(
      {.layer = 0,
       .kind = cache::FullAttention(),
       .buffers = {{"kv_latent", std::int64_t{8} * options.tokens_per_block}},
       .group_tag = "target"});
  for (std::int32_t i = 0; i < options.num_kda_layers; ++i) {
    config.kda_layers.push_back({1 + i, options.shape, "target"});
  }
  if (options.has_draft_model) {
    config.kda_layers.push_back({1 + options.num_kda_layers, options.shape, "draft"});
  }
  if (options.max_drafts > 0) {
    config.speculation = {options.max_drafts};
    config.replay = {options.max_drafts};
  }
  config.placement = options.placement;
  config.suspend_policy = options.suspend_policy;
  config.mtp_hidden_size = options.mtp_hidden_size;
  config.max_batch_size = options.num_slots - options.num_dummies;
  config.num_dummies = options.num_dummies;
  config.slot_entries = options.slot_entries;
  config.cache.constraints.push_back(
      {std::vector<cache::SequenceDesc>(static_cast<std::size_t>(config.max_batch_size),
                                        {options.tokens_per_request, 0}),
       0});
  std::int64_t one_save = save_bytes_of(slot_entries(config, "target"));
  if (options.has_draft_model) one_save += save_bytes_of(slot_entries(config, "draft"));
  config.save_bytes = one_save * options.num_saves;
  return config;
}

// With the least quota, so that there are as many slots as were asked for.
inline HybridConfig world_config(const WorldOptions& options) {
  HybridConfig probe = world_config_without_quota(options);
  const Result<cache::MinQuotas> least = cache::min_quotas(make_cache_config(probe));
  EXPECT_TRUE(least.has_value()) << least.error().text();
  HybridConfig config = world_config_without_quota(options);
  config.cache.device_bytes = least->device_bytes;
  if (options.change) options.change(config);
  return config;
}

// A manager with the stream and the threads of an engine.
struct World {
  explicit World(const WorldOptions& options, std::unique_ptr<device::Device> on = nullptr)
      : device(on != nullptr ? std::move(on) : device::make_cpu_device()),
        pool(1),
        context(pool),
        model({options.num_kda_layers, options.shape.num_heads, options.shape.head_dim}),
        stream(*device->make_stream("steps")) {
    auto made = HybridCacheManager::create(*device, *stream, &context, world_config(options));
    EXPECT_TRUE(made.has_value()) << made.error().text();
    manager = *std::move(made);
  }

  // A request that is active, with room for `capacity` tokens.
  void start(std::uint64_t id, const Tokens& prompt, std::int64_t capacity) {
    RequestOptions options;
    options.request = RequestId(id);
    options.tokens = prompt;
    const auto added = manager->add_request(options);
    ASSERT_TRUE(added.has_value()) << added.error().text();
    resume(id);
    const auto resized = manager->resize(RequestId(id), capacity);
    ASSERT_TRUE(resized.has_value()) << resized.error().text();
  }
  void resume(std::uint64_t id) {
    const auto resumed = manager->resume_request(RequestId(id));
    ASSERT_TRUE(resumed.has_value()) << resumed.error().text();
  }
  void suspend(std::uint64_t id) {
    const auto suspended = manager->suspend_request(RequestId(id));
    ASSERT_TRUE(suspended.has_value()) << suspended.error().text();
  }

  // Sets up a batch of these rows; queues nothing.
  BatchSetup set_up(const std::vector<BatchRow>& rows) {
    BatchSetup setup;
    const auto done = manager->setup_state_indices(rows, setup);
    EXPECT_TRUE(done.has_value()) << done.error().text();
    return setup;
  }
  static BatchRow context_row(std::uint64_t id, std::int64_t first, std::int32_t count) {
    return {.request = RequestId(id),
            .kind = RowKind::kContext,
            .first_position = first,
            .num_tokens = count,
            .num_written = count};
  }
  static BatchRow verify_row(std::uint64_t id, std::int64_t first, std::int32_t num_drafts) {
    return {.request = RequestId(id),
            .kind = RowKind::kGeneration,
            .first_position = first,
            .num_tokens = 1 + num_drafts,
            .num_written = 1};
  }

  // Queues the step of a batch through the model; `tokens` [rows]. What it says is in `next`
  // [rows][tokens] once the event is done.
  struct Step {
    std::shared_ptr<std::vector<Tokens>> next;
    device::Event done;
  };
  Step step(const BatchSetup& setup, std::vector<Tokens> tokens) {
    Step made{std::make_shared<std::vector<Tokens>>(), {}};
    ReplayState& state = manager->replay_state(setup.group_tag);
    std::vector<kernels::RecurrentPages> pages;
    std::vector<kernels::ReplayRecords> records;
    for (std::size_t layer = 0; layer < state.layers().size(); ++layer) {
      pages.push_back(state.pages(layer));
      records.push_back(state.records(layer));
    }
    std::vector<KdaModel::Row> rows;
    std::vector<const std::int32_t*> pending;  // read when the step runs
    for (std::size_t i = 0; i < setup.rows.size(); ++i) {
      const RowSetup& row = setup.rows[i];
      rows.push_back({.tokens = std::move(tokens[i]),
                      // Where it is not known, any that all pending drafts lie before.
                      .first_position = row.row.first_position.value_or(1 + state.max_records()),
                      .slot = row.slot,
                      .num_pending = row.num_pending.value_or(0),
                      .writes = row.writes});
      pending.push_back(row.num_pending.has_value() ? nullptr : state.pending(row.slot));
    }
    context.enqueue(*stream, [this, pages, records, rows, pending,
                              next = made.next](kernels::ExecutionContext& on) mutable {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (pending[i] != nullptr) rows[i].num_pending = *pending[i];
      }
      *next = model.run(on, pages, records, rows);
      return true;
    });
    made.done = stream->record();
    manager->step_queued(setup);
    return made;
  }

  // All bytes that belong to a request's slot: page and what lies beside it, behind what is queued.
  std::vector<std::byte> bytes_beside(SlotId slot, std::string_view tag = "target") {
    manager->synchronize();
    const std::span<std::byte> bytes = manager->replay_state(tag).registry().slot(slot);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> bytes_of_page(SlotId slot, std::string_view tag = "target") {
    manager->synchronize();
    ReplayState& state = manager->replay_state(tag);
    std::vector<std::byte> all;
    for (std::size_t layer = 0; layer < state.layers().size(); ++layer) {
      for (const std::string_view role : {kSsmState, kConvState}) {
        const std::byte* const from = layer_address(state.table(layer, role), slot);
        const std::int64_t count =
            role == kSsmState ? state.shape().state_bytes() : state.shape().window_bytes();
        all.insert(all.end(), from, from + count);
      }
    }
    return all;
  }
  SlotId slot_of(std::uint64_t id, std::string_view tag = "target") const {
    const auto slot = manager->state_index(RequestId(id), tag);
    EXPECT_TRUE(slot.has_value()) << "request " << id << " has no slot";
    return slot.value_or(SlotId(0));
  }
  void accept(std::uint64_t id, std::int32_t num_accepted) {
    const RequestPosition position = *manager->position(RequestId(id));
    const Acceptance acceptance{RequestId(id), position.epoch, position.round, num_accepted};
    const auto told = manager->update_resources(std::span(&acceptance, 1));
    EXPECT_TRUE(told.has_value()) << told.error().text();
  }

  std::unique_ptr<device::Device> device;
  ThreadPool pool;
  kernels::ExecutionContext context;
  KdaModel model;
  std::unique_ptr<device::Stream> stream;  // its steps use what is above
  std::unique_ptr<HybridCacheManager> manager;
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_HYBRID_TEST_SUPPORT_H_
