// The life of one sequence: lengths, index tables, room. Behaviour of TensorRT-LLM's KV cache
// manager V2; docs/conformance.md maps its cases to ours.

#include <cstring>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::Each;
using testing::HasSubstr;

const LayerKind kFull = FullAttention();
constexpr LayerGroupId kGroup{0};

// shrink_capacity, with the sequence's own table and with the caller's.
TEST(Shrink, OneTokenAtATimeDownToWhatIsComputed) {
  for (const bool is_external : {false, true}) {
    TestCache cache(test_config({kFull, SlidingWindow{64, 0}}, 32));
    std::vector<SlotId> table(16);
    Sequence sequence = cache.create(numbers(0, 10));
    if (is_external) {
      ASSERT_TRUE(sequence.set_index_table(kGroup, table).has_value());
    }
    cache.resume(sequence);
    ASSERT_TRUE(sequence.resize(320, 32).has_value());
    for (std::int64_t capacity = 320; capacity >= 32; --capacity) {
      ASSERT_TRUE(sequence.resize(capacity).has_value());
      const std::int64_t blocks = (capacity + 31) / 32;
      EXPECT_EQ(sequence.num_blocks(), blocks);
      EXPECT_EQ(std::ssize(sequence.slots(kGroup)), blocks);
      cache.manager->audit();
      if (!is_external) continue;
      const auto rest = std::span(table).subspan(static_cast<std::size_t>(blocks));
      EXPECT_THAT(rest, Each(kNoSlot));
      EXPECT_EQ(table[static_cast<std::size_t>(blocks - 1)], sequence.slots(kGroup).back());
    }
    EXPECT_EQ(sequence.resize(31).error().code(), ErrorCode::kInvalidArgument);
  }
}

// shrink_capacity_truncates_base_page_indices.
TEST(Shrink, TruncatesTheIndexTable) {
  TestCache cache(test_config({kFull}, 4));
  Sequence sequence = cache.create(numbers(0, 3));
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(8).has_value());
  EXPECT_EQ(sequence.slots(kGroup).size(), 2u);
  ASSERT_TRUE(sequence.resize(4).has_value());
  EXPECT_EQ(sequence.slots(kGroup).size(), 1u);
}

// base_page_index_external_buffer_validation.
TEST(IndexTable, ATableOfTheCallersIsFilledAndKeptUpToDate) {
  TestCache cache(test_config({kFull}, 4));
  Sequence sequence = cache.create(numbers(0, 3));
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(12).has_value());
  std::vector<SlotId> small(2);
  const auto refused = sequence.set_index_table(kGroup, small);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().text(), HasSubstr("2 entries for 3 blocks"));
  std::vector<SlotId> table(5, SlotId(77));
  ASSERT_TRUE(sequence.set_index_table(kGroup, table).has_value());
  EXPECT_THAT(std::span(table).first(3), testing::ElementsAreArray(sequence.slots(kGroup)));
  EXPECT_THAT(std::span(table).subspan(3), Each(kNoSlot));
  ASSERT_TRUE(sequence.resize(20).has_value());
  EXPECT_THAT(table, testing::ElementsAreArray(sequence.slots(kGroup)));
  const auto too_long = sequence.resize(21);
  ASSERT_FALSE(too_long.has_value());
  EXPECT_THAT(too_long.error().text(), HasSubstr("6 blocks for 21 tokens do not fit"));
  EXPECT_EQ(sequence.capacity(), 20);
  ASSERT_TRUE(sequence.suspend().has_value());
  EXPECT_THAT(table, Each(kNoSlot));
  cache.resume(sequence);
  EXPECT_THAT(table, testing::ElementsAreArray(sequence.slots(kGroup)));
  ASSERT_TRUE(sequence.set_index_table(kGroup, {}).has_value());
  EXPECT_TRUE(sequence.resize(21).has_value());
  EXPECT_EQ(sequence.set_index_table(LayerGroupId(1), {}).error().code(), ErrorCode::kOutOfRange);
}

// sol_mem_utilization: who is suspended uses nothing of the device that another one wants; a
// sequence of 704 tokens fits exactly, with one token more it does not. Goes through the disk.
TEST(Memory, ASuspendedSequenceUsesNothingOfTheDevice) {
  const TemporaryDirectory directory;
  // 11 blocks of 64 tokens on the device, 6 on the host, the rest on disk.
  KvCacheConfig config = test_config({kFull}, 64, 11 * 4096);
  config.layers[0].buffers[0].bytes = 4096;
  config.host_bytes = 6 * 4096;
  config.disk_bytes = 64 * 4096;
  config.disk.directory = directory.path();
  config.disk.segment_bytes = 16 * 4096;
  TestCache cache(std::move(config));
  Sequence first = cache.create(numbers(0, 704));
  cache.resume(first);
  cache.compute(first, numbers(0, 704));
  EXPECT_EQ(first.resize(705).error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(first.capacity(), 704);
  ASSERT_TRUE(first.suspend().has_value());
  Sequence second = cache.create(numbers(5000, 704));
  cache.resume(second);
  cache.compute(second, numbers(5000, 704));
  EXPECT_EQ(cache.manager->counters().pages_dropped, 0);
  EXPECT_GT(cache.manager->statistics().groups[0].moved[0][2].pages +
                cache.manager->statistics().groups[0].moved[1][2].pages,
            0)
      << "some of it is on the disk";
  ASSERT_TRUE(second.suspend().has_value());
  cache.resume(first);
  cache.compute(first, numbers(0, 704));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// resume_rejects_if_any_pool_group_exceeds_threshold: the fullest pool group decides, however
// little of the bytes it has.
TEST(Gate, TheFullestPoolGroupDecides) {
  KvCacheConfig config = test_config({kFull, Recurrent()}, 64, 80 * 512);
  // The state is larger than a block, so the two do not share slots.
  config.layers[1].buffers = {{"state", 1024}};
  config.max_util_for_resume = 0.5;
  config.initial_pool_ratio = {0.8, 0.2};
  TestCache cache(std::move(config));
  const TierRoom states = cache.manager->room(Tier::kDevice, LayerGroupId(1));
  ASSERT_EQ(states.total, 8);
  std::vector<Sequence> running;
  for (int i = 0; i < 5; ++i) {
    running.push_back(cache.create({}));
    cache.resume(running.back());
  }
  Sequence next = cache.create({});
  const auto refused = next.resume(cache.engine.stream());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().text(), HasSubstr("5 of 8 device slots"));
  EXPECT_EQ(next.status(), SequenceStatus::kSuspended);
  running.pop_back();
  cache.resume(next);
}

// create_kv_cache_custom_priority_callback_gets_lifecycle: who has the lowest priority leaves
// first, whenever he came.
TEST(Priority, TheLowestLeavesFirst) {
  KvCacheConfig config = test_config({kFull}, 64, 16 * 512);
  TestCache cache(std::move(config));
  std::vector<std::pair<BlockOrdinal, LayerGroupId>> asked;
  const auto run = [&](TokenId first, Priority priority) {
    const Tokens tokens = numbers(first, 6 * 64);
    SequenceOptions options;
    options.tokens = tokens;
    options.priority = [&asked, priority](BlockOrdinal block, LayerGroupId group) {
      asked.emplace_back(block, group);
      return priority;
    };
    Sequence sequence = *cache.manager->create_sequence(options);
    cache.resume(sequence);
    cache.compute(sequence, tokens);
  };
  run(0, 80);
  run(10'000, 10);
  EXPECT_THAT(asked, testing::Contains(std::pair(BlockOrdinal(5), kGroup)));
  run(20'000, 35);
  EXPECT_EQ(cache.reusable(numbers(0, 6 * 64)), 6 * 64) << "the oldest, of the highest priority";
  EXPECT_EQ(cache.reusable(numbers(10'000, 6 * 64)), 4 * 64);
  EXPECT_EQ(cache.reusable(numbers(20'000, 6 * 64)), 6 * 64);
}

// What falls from the device to the host takes its priority with it: of all that is there the
// lowest goes, however long the others have been there.
TEST(Priority, GoesWithAPageThatFallsToTheHost) {
  KvCacheConfig config = test_config({kFull}, 64, 16 * 512);
  config.host_bytes = 16 * 512;
  TestCache cache(std::move(config));
  const auto run = [&](TokenId first, Priority priority) {
    const Tokens tokens = numbers(first, 6 * 64);
    SequenceOptions options;
    options.tokens = tokens;
    options.priority = [priority](BlockOrdinal, LayerGroupId) { return priority; };
    Sequence sequence = *cache.manager->create_sequence(options);
    cache.resume(sequence);
    cache.compute(sequence, tokens);
  };
  const auto known = [&](TokenId first) { return cache.reusable(numbers(first, 6 * 64)) / 64; };
  // 16 slots on the device, and 12 of the host: four are kept for pages that change places.
  run(0, 40);
  run(10'000, 10);
  for (TokenId i = 2; i < 5; ++i) run(i * 10'000, 30);
  EXPECT_EQ(cache.manager->room(Tier::kHost, kGroup).evictable, 12);
  EXPECT_EQ(known(0), 6);
  EXPECT_EQ(known(10'000), 4) << "two of thirty have to go";
  for (TokenId i = 2; i < 5; ++i) EXPECT_EQ(known(i * 10'000), 6) << i;
  run(50'000, 30);
  EXPECT_EQ(known(0), 6) << "the oldest of all";
  EXPECT_EQ(known(10'000), 0);
  EXPECT_EQ(known(20'000), 4) << "the oldest of the next priority";
  for (TokenId i = 6; i < 9; ++i) run(i * 10'000, 30);
  EXPECT_EQ(known(0), 6);
}

// TestLivingKvCacheGuard.
TEST(Guard, OnlyOpenSequencesCount) {
  TestCache cache(test_config({kFull}, 8));
  cache.run(numbers(0, 16));
  Sequence a = cache.create(numbers(0, 4));
  Sequence b = cache.create(numbers(0, 4));
  EXPECT_EQ(cache.manager->num_open_sequences(), 2u);
  EXPECT_THAT(cache.manager->clear_reusable_blocks().error().text(), HasSubstr("2 sequence(s)"));
  EXPECT_EQ(cache.reusable(numbers(0, 16)), 16) << "nothing has changed";
  a.close();
  EXPECT_THAT(cache.manager->shutdown().error().text(), HasSubstr("1 sequence(s)"));
  b.close();
  b.close();
  EXPECT_EQ(cache.manager->num_open_sequences(), 0u);
  EXPECT_TRUE(cache.manager->clear_reusable_blocks().has_value());
  EXPECT_EQ(cache.reusable(numbers(0, 16)), 0);
  // The handle still exists, and says what it is.
  EXPECT_EQ(a.status(), SequenceStatus::kClosed);
  EXPECT_EQ(a.resume(cache.engine.stream()).error().code(), ErrorCode::kFailedPrecondition);
}

// test_block_radix_tree clear: chains, branches, scopes; again and again, and usable afterwards.
TEST(Clear, EveryShapeOfTreeGoes) {
  TestCache cache(test_config({kFull, SlidingWindow{8, 0}}, 4));
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(cache.manager->clear_reusable_blocks().has_value()) << "empty";
    cache.create(numbers(0, 9)).close();
    EXPECT_TRUE(cache.manager->clear_reusable_blocks().has_value()) << "a root without children";
    for (TokenId fork = 0; fork < 5; ++fork) {
      Tokens tokens = numbers(0, 10 + 3 * fork);
      tokens.push_back(1000 + fork);
      for (const TokenId token : numbers(2000, 9)) tokens.push_back(token);
      cache.run(tokens, {{}, static_cast<std::uint64_t>(fork % 2)});
    }
    EXPECT_TRUE(cache.manager->clear_reusable_blocks().has_value());
    cache.manager->audit();
    const TierRoom room = cache.manager->room(Tier::kDevice, kGroup);
    EXPECT_EQ(room.free, room.total);
  }
}

// disagg: room for a prompt that comes from elsewhere; blocks out of the window get no pages.
TEST(Disaggregated, BlocksOutOfTheWindowGetNoPages) {
  TestCache cache(test_config({SlidingWindow{64, 0}, kFull}, 32));
  Sequence sequence = cache.create(numbers(0, 512));
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(512, 512).has_value());
  const auto slots = sequence.slots(kGroup);
  EXPECT_THAT(slots.first(14), Each(kNoSlot));
  EXPECT_THAT(slots.subspan(14), Each(testing::Ne(kNoSlot)));
  EXPECT_TRUE(sequence.commit(numbers(0, 512)).has_value());
  cache.manager->audit();
}

// naive: every byte of 36 layers checked at every step, with the caller's table, two sizes of
// buffers, and commits that come late.
class Naive : public testing::TestWithParam<std::tuple<bool, bool, int>> {};

TEST_P(Naive, EveryByteIsRightAtEveryStep) {
  const auto [is_external, has_scales, commit_every] = GetParam();
  std::vector<LayerKind> kinds;
  for (int i = 0; i < 36; ++i)
    kinds.push_back(i % 2 == 0 ? LayerKind(SlidingWindow{128, 48}) : kFull);
  KvCacheConfig config = test_config(kinds, 32, 8 << 20);
  for (LayerConfig& layer : config.layers) {
    if (has_scales) layer.buffers.push_back({"scale", 8 * 32 * 2});
  }
  TestCache cache(std::move(config));
  std::vector<SlotId> table(17);
  Sequence sequence = cache.create(numbers(0, 200));
  if (is_external) {
    ASSERT_TRUE(sequence.set_index_table(kGroup, table).has_value());
  }
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 200));
  for (std::int64_t end = 201; end <= 512; ++end) {
    const Tokens tokens = numbers(0, end);
    if (end % commit_every == 0) {
      cache.compute(sequence, tokens);
      continue;
    }
    ASSERT_TRUE(sequence.resize(end).has_value());
    cache.engine.step(sequence, tokens, end - 1);
    ASSERT_TRUE(sequence.resize(std::nullopt, end).has_value());
  }
  EXPECT_EQ(cache.engine.stream().synchronize(), device::EventStatus::kSucceeded);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Naive,
                         testing::Combine(testing::Bool(), testing::Bool(),
                                          testing::Values(1, 7, 100)));

// hetero_tokens_per_block: blocks of 128 tokens of which one buffer makes two of 64, with room to
// spare behind each. What a kernel writes through the table of the smaller ones is found there by a
// later sequence.
class SmallerBlocks : public testing::Test {
 protected:
  static constexpr std::int64_t kBytes = 8 * 64 + 40;  // of a smaller block

  static KvCacheConfig config() {
    KvCacheConfig config = test_config({kFull}, 128);
    config.layers[0].buffers = {{"digest", kBytes, 64}, {"whole", 8 * 128}};
    return config;
  }
  // Where the kernel of a buffer finds a token, by what its table says.
  static std::byte* place(const PageTable& table, std::span<const SlotId> slots,
                          std::int64_t token) {
    const std::int64_t in_page = token % 128;
    return layer_address(table, slots[static_cast<std::size_t>(token / 128)]) +
           in_page / table.tokens_per_block * kBytes + in_page % table.tokens_per_block * 8;
  }
  // Calls `look(place, word)` for tokens [begin, end) of both buffers, as a step of the stream.
  device::Event step(const Sequence& sequence, std::int64_t begin, std::int64_t end,
                     std::function<void(std::byte*, std::int64_t)> look) {
    for (const char* role : {"digest", "whole"}) {
      const PageTable table = *cache.manager->page_table(0, role);
      const auto slots = sequence.slots(kGroup);
      const std::int64_t salt = role[0] * 1000;
      cache.engine.stream().run([=, own = std::vector<SlotId>(slots.begin(), slots.end())] {
        for (std::int64_t token = begin; token < end; ++token) {
          look(place(table, own, token), salt + token);
        }
        return true;
      });
    }
    return cache.engine.stream().record();
  }
  static void write(std::byte* at, std::int64_t word) { std::memcpy(at, &word, sizeof(word)); }
  static bool holds(const std::byte* at, std::int64_t word) {
    return std::memcmp(at, &word, sizeof(word)) == 0;
  }

  TestCache cache{config()};
};

TEST_F(SmallerBlocks, ATableSaysHowLargeItsBlocksAre) {
  EXPECT_EQ(cache.manager->page_table(0, "digest")->tokens_per_block, 64);
  EXPECT_EQ(cache.manager->page_table(0, "whole")->tokens_per_block, 128);
  EXPECT_EQ(cache.manager->layer_groups().find(0, "digest")->num_subblocks, 2);
  EXPECT_EQ(cache.manager->layer_groups().find(0, "digest")->bytes, 2 * kBytes);
  EXPECT_EQ(cache.manager->page_table(0, "other").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(cache.manager->page_table(9, "digest").error().code(), ErrorCode::kNotFound);
}

TEST_F(SmallerBlocks, AKernelFindsThemByTheirStride) {
  const Tokens tokens = numbers(0, 260);
  Sequence first = cache.create(tokens);
  cache.resume(first);
  for (const auto& [from, to] : {std::pair(0, 163), std::pair(163, 163 + 97)}) {
    ASSERT_TRUE(first.resize(to, from).has_value());
    const device::Event written = step(first, from, to, write);
    ASSERT_TRUE(first
                    .commit(std::span(tokens)
                                .first(static_cast<std::size_t>(to))
                                .subspan(static_cast<std::size_t>(from)),
                            {written})
                    .has_value());
    written.wait();
  }
  first.close();
  cache.manager->audit();

  Sequence second = cache.create(numbers(0, 261));
  ASSERT_EQ(second.num_committed(), 260);
  cache.resume(second);
  const auto right = std::make_shared<std::int64_t>(0);
  step(second, 0, 260, [right](const std::byte* at, std::int64_t word) {
    *right += holds(at, word) ? 1 : 0;
  }).wait();
  EXPECT_EQ(*right, 2 * 260);
}

// disaggregated_serving: what one rank has computed can be handed over, layer by layer, to ranks
// that are cut otherwise.
class HandOver : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(HandOver, PagesMoveBetweenDifferentCuts) {
  const auto [num_from, num_to] = GetParam();
  constexpr std::int64_t kTokens = 185;
  const std::vector<LayerKind> kinds(4, kFull);
  const auto ranks = [&](int count) {
    std::vector<std::unique_ptr<TestCache>> made;
    for (int rank = 0; rank < count; ++rank) {
      KvCacheConfig config = test_config(kinds, 32);
      for (int layer = rank * 4 / count; layer < (rank + 1) * 4 / count; ++layer) {
        config.local_layers.push_back(layer);
      }
      made.push_back(std::make_unique<TestCache>(std::move(config)));
    }
    return made;
  };
  const auto senders = ranks(num_from);
  const auto receivers = ranks(num_to);
  std::vector<Sequence> sent;
  std::vector<Sequence> received;
  for (const auto& cache : senders) {
    sent.push_back(cache->create({}));
    cache->resume(sent.back());
    cache->compute(sent.back(), numbers(0, kTokens));
  }
  for (const auto& cache : receivers) {
    received.push_back(cache->create({}));
    cache->resume(received.back());
    ASSERT_TRUE(received.back().resize(kTokens, kTokens).has_value());
  }
  for (std::size_t to = 0; to < receivers.size(); ++to) {
    for (const BufferLocation& buffer : receivers[to]->manager->layer_groups().buffers()) {
      for (std::size_t from = 0; from < senders.size(); ++from) {
        const auto source = senders[from]->manager->page_table(buffer.layer, buffer.role);
        if (!source.has_value()) continue;
        const PageTable target = *receivers[to]->manager->page_table(buffer.layer, buffer.role);
        for (std::size_t block = 0; block < sent[from].slots(kGroup).size(); ++block) {
          std::memcpy(layer_address(target, received[to].slots(kGroup)[block]),
                      layer_address(*source, sent[from].slots(kGroup)[block]),
                      static_cast<std::size_t>(buffer.bytes));
        }
      }
    }
    ASSERT_TRUE(received[to].commit(numbers(0, kTokens)).has_value());
    receivers[to]->compute(received[to], numbers(0, kTokens + 20));
    EXPECT_EQ(receivers[to]->engine.mismatches(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, HandOver,
                         testing::Values(std::pair(1, 1), std::pair(1, 2), std::pair(2, 1),
                                         std::pair(2, 4), std::pair(4, 1)));

// Errors name the value and change nothing.
TEST(Errors, ImpossibleLengthsAreRefused) {
  TestCache cache(test_config({kFull}, 8));
  Sequence sequence = cache.create(numbers(0, 30));
  EXPECT_EQ(sequence.resize(8).error().code(), ErrorCode::kFailedPrecondition) << "suspended";
  EXPECT_EQ(sequence.suspend().error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(sequence.commit({}).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(sequence.reserve_snapshot(1).error().code(), ErrorCode::kFailedPrecondition);
  cache.resume(sequence);
  EXPECT_EQ(sequence.resume(cache.engine.stream()).error().code(), ErrorCode::kFailedPrecondition);
  cache.compute(sequence, numbers(0, 20));
  const auto refused = [&](std::optional<std::int64_t> capacity,
                           std::optional<std::int64_t> history, const char* text) {
    const auto result = sequence.resize(capacity, history);
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error().text(), HasSubstr(text));
    EXPECT_EQ(sequence.capacity(), 20);
    EXPECT_EQ(sequence.history(), 20);
    cache.manager->audit();
  };
  refused(std::nullopt, 19, "a history of 19 tokens after one of 20");
  refused(std::nullopt, 21, "a history of 21 tokens in a capacity of 20");
  refused(19, std::nullopt, "a history of 20 tokens in a capacity of 19");
  const auto beyond = sequence.commit(numbers(20, 1));
  EXPECT_EQ(beyond.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(beyond.error().text(), HasSubstr("21 committed tokens in a capacity of 20"));
  EXPECT_EQ(sequence.num_committed(), 20);
  EXPECT_EQ(sequence.reserve_snapshot(20).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sequence.reserve_snapshot(21).error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(sequence.stop_committing().has_value());
  ASSERT_TRUE(sequence.stop_committing().has_value());
  EXPECT_THAT(sequence.commit(numbers(20, 1)).error().text(), HasSubstr("commit after the end"));
  EXPECT_TRUE(sequence.resize(40, 30).has_value()) << "it may go on without";
}

}  // namespace
}  // namespace slackwater::cache
