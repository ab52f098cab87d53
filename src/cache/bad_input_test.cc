// Calls that are refused: each names its error and the numbers of it, and afterwards everything is
// as it was before.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/device/sim_device.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::Each;
using testing::HasSubstr;

const LayerKind kFull = FullAttention();
const LayerKind kState = Recurrent();
constexpr LayerGroupId kGroup{0};

// What a caller can see of a sequence and of the cache.
std::vector<std::int64_t> everything(const TestCache& cache, const Sequence& sequence) {
  std::vector<std::int64_t> seen = {static_cast<std::int64_t>(sequence.status()),
                                    sequence.num_committed(), sequence.history(),
                                    sequence.capacity(), sequence.num_blocks()};
  const CacheCounters counters = cache.manager->counters();
  seen.insert(seen.end(), {counters.pages_dropped, counters.snapshots_published,
                           counters.certificate_mismatches,
                           static_cast<std::int64_t>(cache.manager->num_open_sequences())});
  for (const LayerGroupDesc& group : cache.manager->layer_groups().groups()) {
    const std::span<const SlotId> slots = sequence.slots(group.id);
    seen.push_back(std::ssize(slots));
    for (const SlotId slot : slots) seen.push_back(slot.value());
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      const TierRoom room = cache.manager->room(tier, group.id);
      seen.insert(seen.end(), {room.total, room.free, room.evictable, room.unavailable});
    }
  }
  return seen;
}

// Calls that are refused with `code`, with `text` in what is said, and without a trace.
template <class Call>
void expect_refused(const TestCache& cache, const Sequence& sequence, const Call& call,
                    ErrorCode code, const std::string& text) {
  SCOPED_TRACE(text);
  const std::vector<std::int64_t> before = everything(cache, sequence);
  const auto result = call();
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), code);
  EXPECT_THAT(result.error().text(), HasSubstr(text));
  EXPECT_EQ(everything(cache, sequence), before);
  cache.manager->audit();
}

// Full attention, a window, a state; a prompt of 40 tokens of which all are computed.
struct Running {
  Running() : cache(config()), sequence(cache.create(numbers(0, 40))) {
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, 40));
  }

  static KvCacheConfig config() {
    KvCacheConfig config = test_config({kFull, SlidingWindow{20, 0}, kState}, 16);
    config.host_bytes = 64 << 10;
    return config;
  }

  // It is as good as before.
  ~Running() {
    cache.compute(sequence, numbers(0, 70));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }

  TestCache cache;
  Sequence sequence;
};

TEST(BadInput, LengthsThatCannotBe) {
  Running running;
  Sequence& sequence = running.sequence;
  constexpr std::int64_t kMany = std::int64_t{1} << 28;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  struct Lengths {
    std::optional<std::int64_t> capacity;
    std::optional<std::int64_t> history;
    std::string text;
  };
  const Lengths cases[] = {
      {kMany * 16, {}, "a capacity of 4294967296 tokens; a sequence has fewer than 268435456"},
      {kMany * 16 + 1, {}, "a capacity of 4294967297 tokens"},
      {kMost, {}, "a capacity of 9223372036854775807 tokens"},
      {kMost, kMost, "a capacity of 9223372036854775807 tokens"},
      {{}, 39, "a history of 39 tokens after one of 40"},
      {{}, -1, "a history of -1 tokens after one of 40"},
      {39, {}, "a history of 40 tokens in a capacity of 39"},
      {-1, {}, "a history of 40 tokens in a capacity of -1"},
      {{}, 41, "a history of 41 tokens in a capacity of 40"},
      {60, 61, "a history of 61 tokens in a capacity of 60"},
  };
  for (const Lengths& wrong : cases) {
    expect_refused(
        running.cache, sequence, [&] { return sequence.resize(wrong.capacity, wrong.history); },
        ErrorCode::kInvalidArgument, wrong.text);
  }
  // What could be, and has no room here: of both groups with pages per block.
  expect_refused(
      running.cache, sequence, [&] { return sequence.resize((kMany - 1) * 16); },
      ErrorCode::kResourceExhausted, "need 536870904 slots of pool group 0 of the device");
}

TEST(BadInput, ACommitOfWhatIsNotThere) {
  Running running;
  Sequence& sequence = running.sequence;
  expect_refused(
      running.cache, sequence, [&] { return sequence.commit(numbers(40, 1)); },
      ErrorCode::kInvalidArgument, "41 committed tokens in a capacity of 40; resize first");
  EXPECT_EQ(sequence.committed_tokens(), numbers(0, 40));
}

TEST(BadInput, ACommitThatEndsWhereNothingIsKept) {
  KvCacheConfig config = test_config({kFull, kState}, 16);
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 20));
  ASSERT_TRUE(sequence.resize(48, 30).has_value());
  expect_refused(
      cache, sequence, [&] { return sequence.commit(numbers(20, 20)); },
      ErrorCode::kInvalidArgument,
      "a commit up to 40 with a history of 30: only the end of a commit is kept, so the history "
      "must be 20 or 40");
  EXPECT_TRUE(sequence.commit(numbers(20, 10)).has_value()) << "that is where it is";
}

TEST(BadInput, WhatIsSuspendedOrActiveAlready) {
  Running running;
  TestCache& cache = running.cache;
  Sequence& sequence = running.sequence;
  constexpr ErrorCode kWrong = ErrorCode::kFailedPrecondition;
  expect_refused(
      cache, sequence, [&] { return sequence.resume(cache.engine.stream()); }, kWrong,
      "resume of a sequence that is active");
  ASSERT_TRUE(sequence.suspend().has_value());
  expect_refused(
      cache, sequence, [&] { return sequence.suspend(); }, kWrong,
      "suspend of a sequence that is suspended");
  expect_refused(
      cache, sequence, [&] { return sequence.resize(64); }, kWrong,
      "resize of a sequence that is suspended; resume it");
  expect_refused(
      cache, sequence, [&] { return sequence.commit(numbers(40, 1)); }, kWrong,
      "commit of a sequence that is suspended; resume it");
  expect_refused(
      cache, sequence, [&] { return sequence.reserve_snapshot(41); }, kWrong,
      "a snapshot of a sequence that is suspended");
  cache.resume(sequence);
}

TEST(BadInput, NothingIsWrittenAfterTheEnd) {
  for (const std::int64_t length : {20, 32}) {
    TestCache cache(test_config({kFull, kState}, 16));
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    ASSERT_TRUE(sequence.resize(40).has_value());
    cache.compute(sequence, numbers(0, length), true);
    constexpr ErrorCode kWrong = ErrorCode::kFailedPrecondition;
    for (const std::int64_t capacity : {std::int64_t{39}, std::int64_t{41}, length}) {
      expect_refused(
          cache, sequence, [&] { return sequence.resize(capacity); }, kWrong,
          "resize of a sequence whose end is committed");
    }
    expect_refused(
        cache, sequence, [&] { return sequence.resize({}, length + 1); }, kWrong,
        "resize of a sequence whose end is committed");
    expect_refused(
        cache, sequence, [&] { return sequence.commit(numbers(50, 1)); }, kWrong,
        "commit after the end; " + std::to_string(length) + " tokens are committed");
    expect_refused(
        cache, sequence, [&] { return sequence.reserve_snapshot(36); }, kWrong,
        "a snapshot at 36 of a sequence that commits nothing more");
    EXPECT_TRUE(sequence.resize(40).has_value()) << "nothing changes";
    EXPECT_EQ(cache.reusable(numbers(0, length)), length);
  }
}

TEST(BadInput, NoSnapshotOfWhoeverStopped) {
  TestCache cache(test_config({kFull, kState}, 16));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 20));
  ASSERT_TRUE(sequence.resize(40).has_value());
  ASSERT_TRUE(sequence.stop_committing().has_value());
  expect_refused(
      cache, sequence, [&] { return sequence.reserve_snapshot(32); },
      ErrorCode::kFailedPrecondition, "a snapshot at 32 of a sequence that commits nothing more");
  EXPECT_FALSE(sequence.snapshot_slot(LayerGroupId(1), 32).has_value());
  EXPECT_EQ(cache.manager->counters().snapshots_skipped, 0);
}

TEST(BadInput, ASnapshotOutOfReach) {
  Running running;
  Sequence& sequence = running.sequence;
  ASSERT_TRUE(sequence.resize(60).has_value());
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t position :
       {kMost, std::int64_t{61}, std::int64_t{40}, std::int64_t{0}, std::int64_t{-5}}) {
    expect_refused(
        running.cache, sequence, [&] { return sequence.reserve_snapshot(position); },
        ErrorCode::kInvalidArgument,
        "a snapshot at " + std::to_string(position) +
            "; a step can write those from 41 to the capacity 60");
    EXPECT_FALSE(sequence.snapshot_slot(LayerGroupId(2), position).has_value());
    sequence.cancel_snapshot(position);
  }
  EXPECT_EQ(running.cache.manager->counters().snapshots_skipped, 0);
}

TEST(BadInput, PagesThatAreNotHere) {
  const TestCache cache(Running::config());
  const std::pair<std::int32_t, const char*> wrong[] = {
      {9, "digest"}, {-1, "digest"}, {0, "state"}, {0, ""}};
  for (const auto& [layer, role] : wrong) {
    const auto table = cache.manager->page_table(layer, role);
    ASSERT_FALSE(table.has_value());
    EXPECT_EQ(table.error().code(), ErrorCode::kNotFound);
    EXPECT_EQ(table.error().text(),
              "layer " + std::to_string(layer) + " has no buffer '" + role + "' here");
  }
}

// A snapshot never makes a sequence wait: it is counted instead.
TEST(BadInput, ASnapshotWithoutRoomIsCounted) {
  TestCache cache(test_config({kFull, kState}, 16));
  constexpr LayerGroupId kStates{1};
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(64).has_value());
  ASSERT_TRUE(sequence.reserve_snapshot(16).has_value());
  std::vector<Sequence> others;
  while (cache.manager->room(Tier::kDevice, kStates).free > 0) {
    others.push_back(cache.create({}));
    cache.resume(others.back());
  }
  for (std::int64_t skipped = 1; skipped <= 2; ++skipped) {
    expect_refused(
        cache, sequence, [&] { return sequence.reserve_snapshot(32); },
        ErrorCode::kResourceExhausted,
        "need 1 slots of pool group 1 of the device, 0 free + 0 evictable");
    EXPECT_EQ(cache.manager->counters().snapshots_skipped, skipped);
    EXPECT_FALSE(sequence.snapshot_slot(kStates, 32).has_value());
    EXPECT_TRUE(sequence.snapshot_slot(kStates, 16).has_value());
  }
  others.pop_back();
  ASSERT_TRUE(sequence.reserve_snapshot(32).has_value());
  cache.compute(sequence, numbers(0, 64));
  EXPECT_EQ(cache.reusable(numbers(0, 64)), 32);
  EXPECT_EQ(cache.manager->counters().snapshots_skipped, 2);
}

TEST(BadInput, WhatIsClosedCanDoNothing) {
  Running running;
  TestCache& cache = running.cache;
  Sequence closed = cache.create(numbers(0, 40));
  cache.resume(closed);
  closed.close();
  Sequence moved = cache.create({});
  const Sequence taken = std::move(moved);
  Sequence never;
  for (Sequence* sequence : {&closed, &moved, &never}) {
    std::vector<SlotId> table(8, SlotId(77));
    const auto refused = [&](const auto& call, const std::string& name) {
      // The one that runs sees nothing of it either.
      expect_refused(cache, running.sequence, call, ErrorCode::kFailedPrecondition,
                     name + " of a sequence that is closed");
    };
    refused([&] { return sequence->resume(cache.engine.stream()); }, "resume");
    refused([&] { return sequence->suspend(); }, "suspend");
    refused([&] { return sequence->resize(16); }, "resize");
    refused([&] { return sequence->commit(numbers(0, 1)); }, "commit");
    refused([&] { return sequence->commit({}, {{}, true}); }, "commit");
    refused([&] { return sequence->stop_committing(); }, "stop_committing");
    refused([&] { return sequence->reserve_snapshot(8); }, "reserve_snapshot");
    refused([&] { return sequence->set_index_table(kGroup, table); }, "set_index_table");
    EXPECT_THAT(table, Each(SlotId(77)));
    sequence->cancel_snapshot(8);
    EXPECT_FALSE(sequence->snapshot_slot(LayerGroupId(2), 8).has_value());
    sequence->close();
    EXPECT_EQ(sequence->status(), SequenceStatus::kClosed);
    EXPECT_EQ(sequence->capacity(), 0);
    EXPECT_TRUE(sequence->slots(kGroup).empty());
    EXPECT_TRUE(sequence->committed_tokens().empty());
  }
  EXPECT_EQ(cache.manager->num_open_sequences(), 2u);
}

TEST(BadInput, ATableThatIsRefusedChangesNothing) {
  std::vector<SlotId> table(5);
  Running running;
  TestCache& cache = running.cache;
  Sequence& sequence = running.sequence;
  ASSERT_TRUE(sequence.set_index_table(kGroup, table).has_value());
  std::vector<SlotId> short_one(2, SlotId(77));
  expect_refused(
      cache, sequence, [&] { return sequence.set_index_table(kGroup, short_one); },
      ErrorCode::kInvalidArgument, "an index table of 2 entries for 3 blocks; make it larger");
  for (const std::int32_t group : {-1, 3, 1000}) {
    expect_refused(
        cache, sequence, [&] { return sequence.set_index_table(LayerGroupId(group), short_one); },
        ErrorCode::kOutOfRange, "layer group " + std::to_string(group) + " of 3");
  }
  EXPECT_THAT(short_one, Each(SlotId(77)));
  // The table of before is still kept up to date.
  const auto expect_table = [&] {
    const std::span<const SlotId> slots = sequence.slots(kGroup);
    EXPECT_TRUE(std::equal(slots.begin(), slots.end(), table.begin()));
    EXPECT_TRUE(std::all_of(table.begin() + std::ssize(slots), table.end(),
                            [](SlotId slot) { return slot == kNoSlot; }));
  };
  expect_table();
  ASSERT_TRUE(sequence.resize(64).has_value());
  ASSERT_EQ(sequence.slots(kGroup).size(), 4u);
  expect_table();
  // Longer than the table: neither of them changes.
  for (const std::int64_t capacity : {81, 96, 1'000'000}) {
    const std::int64_t blocks = (capacity + 15) / 16;
    expect_refused(
        cache, sequence, [&] { return sequence.resize(capacity, 64); }, ErrorCode::kInvalidArgument,
        std::to_string(blocks) + " blocks for " + std::to_string(capacity) +
            " tokens do not fit an index table of 5");
    expect_table();
  }
  ASSERT_TRUE(sequence.resize(80).has_value());
  expect_table();
}

// Too much is locked for one more: those that are not used leave in the order of before.
TEST(BadInput, AResumeThatTheGateRefusesChangesNothing) {
  std::vector<SlotId> table(4);
  KvCacheConfig config = test_config({kFull}, 64, 32 * 512);
  config.max_util_for_resume = 0.5;
  TestCache cache(std::move(config));
  ASSERT_EQ(cache.manager->room(Tier::kDevice, kGroup).total, 32);
  cache.run(numbers(0, 2 * 64));
  cache.run(numbers(5000, 2 * 64));
  cache.run(numbers(9000, 2 * 64));
  Sequence first = cache.create({});
  cache.resume(first);
  ASSERT_TRUE(first.resize(17 * 64).has_value());
  Sequence second = cache.create(numbers(9000, 3 * 64));
  EXPECT_EQ(second.num_committed(), 2 * 64);
  ASSERT_TRUE(second.set_index_table(kGroup, table).has_value());
  for (int i = 0; i < 3; ++i) {
    expect_refused(
        cache, second, [&] { return second.resume(cache.engine.stream()); },
        ErrorCode::kResourceExhausted,
        "19 of 32 device slots of layer group 'target: full attention' are locked, more than the "
        "share 0.5");
    EXPECT_THAT(table, Each(kNoSlot));
  }
  // Nine are free.
  ASSERT_TRUE(first.resize((17 + 9 + 1) * 64).has_value());
  EXPECT_EQ(cache.reusable(numbers(0, 2 * 64)), 64) << "the oldest leaves first, from its end";
  EXPECT_EQ(cache.reusable(numbers(5000, 2 * 64)), 2 * 64);
  ASSERT_TRUE(first.resize(0).has_value());
  cache.resume(second);
  cache.compute(second, numbers(9000, 3 * 64));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

TEST(BadInput, AShutdownThatIsRefusedChangesNothing) {
  Running running;
  TestCache& cache = running.cache;
  const Tokens known = numbers(7000, 50);
  {
    Sequence other = cache.create(known);
    cache.resume(other);
    cache.compute(other, known, true);
  }
  const Sequence waiting = cache.create(known);
  for (int i = 0; i < 2; ++i) {
    expect_refused(
        cache, running.sequence, [&] { return cache.manager->shutdown(); },
        ErrorCode::kFailedPrecondition, "shutdown: 2 sequence(s) still open");
    expect_refused(
        cache, waiting, [&] { return cache.manager->clear_reusable_blocks(); },
        ErrorCode::kFailedPrecondition, "clear_reusable_blocks: 2 sequence(s) still open");
    EXPECT_EQ(cache.reusable(known), 50);
  }
}

struct Impossible {
  std::function<void(KvCacheConfig&)> spoil;
  std::string text;
};

TEST(BadInput, SettingsThatCannotBe) {
  const std::int64_t frames = [] {
    KvCacheConfig config = Running::config();
    config.disk_bytes = 1 << 20;
    return min_quotas(config)->disk_bytes;
  }();
  ASSERT_GT(frames, 0);
  const Impossible cases[] = {
      {[](auto& c) { c.tokens_per_block = 1 << 17; },
       "131072 tokens per block; use a power of two, at most 65536"},
      {[](auto& c) { c.tokens_per_block = -16; }, "-16 tokens per block; use a power of two"},
      {[](auto& c) { c.tokens_per_block = std::numeric_limits<std::int32_t>::min(); },
       "-2147483648 tokens per block; use a power of two"},
      {[](auto& c) { c.layers[1].buffers[0].tokens_per_block = -4; },
       "'digest' of layer 1 has blocks of -4 tokens, which do not divide the 16 of a block"},
      {[](auto& c) { c.layers[0].buffers[0].tokens_per_block = 32; },
       "'digest' of layer 0 has blocks of 32 tokens, which do not divide the 16 of a block"},
      {[](auto& c) { c.layers[2].buffers[0].bytes = -8; }, "'digest' of layer 2 has -8 bytes"},
      {[](auto& c) { c.device_bytes = -1; }, "a device tier of -1 bytes"},
      {[](auto& c) { c.disk_bytes = -1; }, "a host tier of 65536 bytes and a disk tier of -1"},
      {[frames](auto& c) { c.disk_bytes = frames - 1; },
       "a disk tier of " + std::to_string(frames - 1) +
           " bytes is below what its floors need; use " + std::to_string(frames)},
      {[](auto& c) { c.rebalance.update_interval = 0; }, "looked at every 0 ends"},
      {[](auto& c) { c.rebalance.min_samples = -1; }, "after -1 samples"},
      {[](auto& c) { c.rebalance.threshold = 1; }, "a rebalance threshold of 1"},
      {[](auto& c) { c.rebalance.decay = 1; }, "a rebalance decay of 1"},
      {[](auto& c) { c.rebalance.decay = std::numeric_limits<double>::quiet_NaN(); },
       "a rebalance decay of nan"},
      {[](auto& c) {
         c.guarantee_suspend = true;
         c.host_bytes = 0;
       },
       "guarantee_suspend without a host tier"},
  };
  const TemporaryDirectory directory;
  const auto device = device::make_cpu_device();
  for (const Impossible& wrong : cases) {
    SCOPED_TRACE(wrong.text);
    KvCacheConfig config = Running::config();
    config.disk.directory = directory.path();
    wrong.spoil(config);
    const auto made = KvCacheManager::create(*device, std::move(config));
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(made.error().text(), HasSubstr(wrong.text));
    EXPECT_EQ(device->usage(device::MemoryKind::kDevice).committed_bytes, 0u);
    EXPECT_EQ(device->usage(device::MemoryKind::kPinnedHost).committed_bytes, 0u);
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  }
  // The least that the text names is enough.
  KvCacheConfig config = Running::config();
  config.disk.directory = directory.path();
  config.disk_bytes = frames;
  EXPECT_TRUE(KvCacheManager::create(*device, std::move(config)).has_value());
}

// Whichever piece of memory is refused, what was taken before it goes back.
// Numbers that no machine has are refused, and not calculated with.
TEST(BadInput, NumbersThatOverflow) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const auto refused = [](const std::function<void(KvCacheConfig&)>& change,
                          const std::string& text) {
    KvCacheConfig config = test_config({kFull, SlidingWindow{20, 0}}, 16);
    change(config);
    const auto result = validate(config);
    ASSERT_FALSE(result.has_value()) << text;
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error().text(), HasSubstr(text));
  };
  refused([](auto& c) { c.layers[1].kind = SlidingWindow{kHuge, 0}; }, "9223372036854775807");
  refused([](auto& c) { c.layers[1].kind = SlidingWindow{20, kHuge}; }, "sink tokens");
  refused([](auto& c) { c.layers[0].buffers[0].bytes = (std::int64_t{1} << 62) + 8; },
          "use 1 to 68719476736");
  refused([](auto& c) { c.device_bytes = kHuge; }, "is the most");
  refused([](auto& c) { c.host_bytes = kHuge; }, "is the most");
  refused([](auto& c) { c.typical_step = BatchDesc{{{kHuge, kHuge}}, 0}; }, "a typical step");
  refused([](auto& c) { c.constraints = {BatchDesc{{}, kHuge}}; }, "a system prompt of");
  refused([](auto& c) { c.reuse_match_backoff = kHuge; }, "use 0 for none, 1099511627776 at most");
  refused([](auto& c) { c.snapshot_interval = kHuge; }, "use 0 for none, 1099511627776 at most");
  refused([](auto& c) { c.layers[0].layer = -3; }, "a layer of number -3");
  refused([](auto& c) { c.local_layers = {0, 1, 1}; }, "local layer 1 is named twice");

  std::vector<LayerKind> kinds;
  for (std::int64_t i = 0; i < 9; ++i) kinds.emplace_back(SlidingWindow{20 + 16 * i, 0});
  TestCache cache(test_config(kinds, 16));
  EXPECT_EQ(cache.manager->clamp_max_seq_len(std::int64_t{1} << 62, 1000), 0);
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  const std::int64_t most = ((std::int64_t{1} << 28) - 1) * 16;
  expect_refused(
      cache, sequence, [&] { return sequence.resize(most); }, ErrorCode::kResourceExhausted,
      "need 2147483647 slots");
  expect_refused(
      cache, sequence, [&] { return sequence.resize(most + 1); }, ErrorCode::kInvalidArgument,
      "fewer than 268435456 blocks");
  expect_refused(
      cache, sequence, [&] { return sequence.resize(kHuge); }, ErrorCode::kInvalidArgument,
      "fewer than 268435456 blocks");
}

TEST(BadInput, ADeviceThatRefusesMemory) {
  const TemporaryDirectory directory;
  std::int64_t refused = -1;
  std::int64_t asked = 0;
  device::SimOptions options;
  options.refuse_commit = [&](std::int64_t) { return asked++ == refused; };
  device::SimDevice device(options);
  const auto config = [&] {
    KvCacheConfig made = Running::config();
    made.disk_bytes = 1 << 20;
    made.disk.directory = directory.path();
    return made;
  };
  ASSERT_TRUE(KvCacheManager::create(device, config()).has_value());
  const std::int64_t count = asked;
  ASSERT_GE(count, 2) << "the device and the host";
  for (refused = 0; refused < count; ++refused) {
    SCOPED_TRACE(testing::Message() << "number " << refused << " of " << count);
    asked = 0;
    const auto made = KvCacheManager::create(device, config());
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code(), ErrorCode::kResourceExhausted) << made.error().text();
    for (const auto kind : {device::MemoryKind::kDevice, device::MemoryKind::kPinnedHost,
                            device::MemoryKind::kPageableHost}) {
      EXPECT_EQ(device.usage(kind).committed_bytes, 0u) << device::to_string(kind);
    }
  }
  refused = -1;
  EXPECT_TRUE(KvCacheManager::create(device, config()).has_value());
}

// Nobody can write there, whoever he is.
TEST(BadInput, ADirectoryThatCannotBeWrittenTo) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "a file";
  std::ofstream(file) << "not a directory";
  const auto device = device::make_cpu_device();
  for (const std::filesystem::path& path : {file, file / "below", std::filesystem::path("/proc")}) {
    SCOPED_TRACE(path);
    KvCacheConfig config = Running::config();
    config.disk_bytes = 1 << 20;
    config.disk.directory = path;
    const auto made = KvCacheManager::create(*device, std::move(config));
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code(), ErrorCode::kUnavailable) << made.error().text();
    EXPECT_THAT(made.error().text(), HasSubstr(path.string()));
    EXPECT_EQ(device->usage(device::MemoryKind::kDevice).committed_bytes, 0u);
    EXPECT_EQ(device->usage(device::MemoryKind::kPinnedHost).committed_bytes, 0u);
  }
  EXPECT_EQ(std::filesystem::file_size(file), 15u);
}

}  // namespace
}  // namespace slackwater::cache
