#ifndef SLACKWATER_CACHE_MANAGER_TEST_SUPPORT_H_
#define SLACKWATER_CACHE_MANAGER_TEST_SUPPORT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/device/cpu_device.h"
#include "testing/fake_engine.h"

namespace slackwater::cache {

using Tokens = std::vector<TokenId>;

inline Tokens numbers(TokenId first, std::int64_t count) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<TokenId>(i));
  return tokens;
}

inline LayerConfig test_layer(std::int32_t number, LayerKind kind, std::int64_t tokens_per_block) {
  LayerConfig layer;
  layer.layer = number;
  layer.kind = kind;
  const bool has_blocks = !std::holds_alternative<Recurrent>(kind);
  layer.buffers = {{"digest", has_blocks ? 8 * tokens_per_block : 8}};
  return layer;
}

// `kinds` become layers 0, 1, ...; slots are `device_pages` of the largest layer's page or more.
inline KvCacheConfig test_config(std::vector<LayerKind> kinds, std::int32_t tokens_per_block,
                                 std::int64_t device_bytes = 1 << 20) {
  KvCacheConfig config;
  config.tokens_per_block = tokens_per_block;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    config.layers.push_back(test_layer(static_cast<std::int32_t>(i), kinds[i], tokens_per_block));
  }
  config.device_bytes = device_bytes;
  config.grain_bytes = 4096;
  config.max_util_for_resume = 1;
  return config;
}

// A manager on the CPU, or another device, and an engine that knows what every byte must be.
struct TestCache {
  explicit TestCache(KvCacheConfig config)
      : TestCache(std::move(config), device::make_cpu_device()) {}
  TestCache(KvCacheConfig config, std::unique_ptr<device::Device> on)
      : device(std::move(on)),
        manager(make(*device, std::move(config))),
        engine(*manager, *device) {}

  static std::unique_ptr<KvCacheManager> make(device::Device& device, KvCacheConfig config) {
    auto made = KvCacheManager::create(device, std::move(config));
    EXPECT_TRUE(made.has_value()) << made.error().text();
    return *std::move(made);
  }

  Sequence create(std::span<const TokenId> tokens, const ReuseScope& scope = {}) {
    SequenceOptions options;
    options.scope = scope;
    options.tokens = tokens;
    options.request = RequestId(next_request++);
    auto made = manager->create_sequence(options);
    EXPECT_TRUE(made.has_value()) << made.error().text();
    return *std::move(made);
  }

  void resume(Sequence& sequence) {
    const auto resumed = sequence.resume(engine.stream());
    ASSERT_TRUE(resumed.has_value()) << resumed.error().text();
  }

  // Computes `tokens` from the history on, and commits them.
  void compute(Sequence& sequence, const Tokens& tokens, bool is_end = false) {
    const std::int64_t from = sequence.history();
    const auto resized =
        sequence.resize(std::max<std::int64_t>(sequence.capacity(), std::ssize(tokens)), from);
    ASSERT_TRUE(resized.has_value()) << resized.error().text();
    const device::Event written = engine.step(sequence, tokens, from);
    const auto committed = sequence.commit(
        std::span(tokens).subspan(static_cast<std::size_t>(sequence.num_committed())),
        {written, is_end});
    ASSERT_TRUE(committed.has_value()) << committed.error().text();
    EXPECT_EQ(written.wait(), device::EventStatus::kSucceeded);
    manager->audit();
  }

  // A sequence that computes all of `tokens`, and ends.
  void run(const Tokens& tokens, const ReuseScope& scope = {}) {
    Sequence sequence = create(tokens, scope);
    resume(sequence);
    compute(sequence, tokens);
    sequence.close();
    manager->audit();
  }

  // How much of a prompt is known, all of it: a token is added that is left to compute.
  std::int64_t reusable(Tokens tokens, const ReuseScope& scope = {}) const {
    tokens.push_back(1'000'000);
    return manager->probe_reuse(scope, tokens).reused;
  }

  std::unique_ptr<device::Device> device;
  std::unique_ptr<KvCacheManager> manager;
  FakeEngine engine;
  std::uint64_t next_request = 1;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_MANAGER_TEST_SUPPORT_H_
