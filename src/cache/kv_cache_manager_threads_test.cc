// Queries from many threads beside one that changes everything, and sequences of their own on
// several threads: for the thread sanitizer.

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/cache/log_replay.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

TEST(KvCacheManagerThreads, EightThreadsProbeWhileOneChangesEverything) {
  KvCacheConfig config =
      test_config({FullAttention(), SlidingWindow{9, 3}, Recurrent()}, 8, 128 << 10);
  config.host_bytes = 64 << 10;
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(config));
  std::atomic<bool> is_over = false;
  std::atomic<std::int64_t> num_probes = 0;
  std::vector<std::thread> probers;
  for (int t = 0; t < 8; ++t) {
    probers.emplace_back([&, t] {
      for (int i = 0; i < 500 || !is_over; ++i) {
        const Tokens tokens = numbers((t + i) % 7 * 1000, 20 + i % 40);
        const MatchDepths match = cache.manager->probe_reuse({}, tokens);
        EXPECT_LE(match.reused, match.content);
        EXPECT_LT(match.content, std::ssize(tokens));
        static_cast<void>(cache.manager->probe_first_new_block({}, tokens));
        static_cast<void>(cache.manager->room(storage::Tier::kDevice, LayerGroupId(0)));
        static_cast<void>(cache.manager->counters());
        ++num_probes;
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    const Tokens tokens = numbers(i % 7 * 1000, 16 + i % 48);
    Sequence sequence = cache.create(tokens);
    cache.resume(sequence);
    cache.compute(sequence, tokens);
    EXPECT_TRUE(sequence.suspend().has_value());
    cache.resume(sequence);
    sequence.close();
    if (i % 50 == 49) {
      EXPECT_TRUE(cache.manager->clear_reusable_blocks().has_value());
    }
  }
  is_over = true;
  for (std::thread& prober : probers) prober.join();
  EXPECT_GE(num_probes, 8 * 500);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

KvCacheConfig two_tiers() {
  KvCacheConfig config = test_config({FullAttention(), Recurrent()}, 8, 256 << 10);
  config.host_bytes = 256 << 10;
  return config;
}

// Four threads with sequences of their own, that share fronts.
void run_threads(TestCache& cache) {
  std::atomic<std::int64_t> mismatches = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      FakeEngine engine(*cache.manager, *cache.device);
      for (int i = 0; i < 30; ++i) {
        const Tokens tokens = numbers((t + i) % 5 * 1000, 30 + i);
        SequenceOptions options;
        options.tokens = tokens;
        options.request = RequestId(static_cast<std::uint64_t>(t * 1000 + i));
        Sequence sequence = *cache.manager->create_sequence(options);
        ASSERT_TRUE(sequence.resume(engine.stream()).has_value());
        const std::int64_t from = sequence.history();
        ASSERT_TRUE(sequence.resize(std::ssize(tokens), from).has_value());
        const device::Event written = engine.step(sequence, tokens, from);
        const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(from));
        ASSERT_TRUE(sequence.commit(rest, {written, false}).has_value());
        for (int step = 1; step < 12; ++step) {
          ASSERT_TRUE(sequence.resize(std::ssize(tokens) + step).has_value());
        }
        if (i % 3 == 0) {
          ASSERT_TRUE(sequence.suspend().has_value());
        }
      }
      engine.stream().synchronize();
      mismatches += engine.mismatches();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mismatches, 0);
  cache.manager->audit();
}

TEST(KvCacheManagerThreads, SequencesBelongToTheirThreads) {
  TestCache cache(two_tiers());
  run_threads(cache);
}

// Whatever the streams' threads did meanwhile: the log knows what the calls saw of it.
TEST(KvCacheManagerThreads, OneLogOfFourThreadsCanBeDoneAgain) {
  const TemporaryDirectory directory;
  KvCacheConfig config = two_tiers();
  config.operation_log.path = directory.path() / "calls";
  TestCache cache(std::move(config));
  run_threads(cache);
  auto replay = LogReplay::open(directory.path() / "calls");
  ASSERT_TRUE(replay.has_value()) << replay.error().text();
  while (true) {
    const auto made = (*replay)->step();
    ASSERT_TRUE(made.has_value()) << made.error().text();
    if (!*made) break;
  }
  EXPECT_EQ((*replay)->num_calls(), cache.manager->num_logged_calls());
  EXPECT_GT((*replay)->num_calls(), 4 * 30 * 15);
  EXPECT_EQ((*replay)->manager().view(), cache.manager->view());
}

}  // namespace
}  // namespace slackwater::cache
