// Faults that users of other engines have met, replayed on our cache with other numbers each time:
// who may touch a slot, and when it comes back. Each comment names the public reports.

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/device/sim_device.h"
#include "tests/cases/cache_cases_support.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;
using storage::Tier;

// C02, late reads and writes after release: a slot is free only when no copy and no step can touch
// it. Sixteen slots: fifteen blocks and a state are all of them.
constexpr std::int64_t kAll = 15 * 64;

KvCacheConfig sixteen() { return Crowd::config({kFull, kState}, 64, 16, 64); }

// A sequence that is just writing its last token: it is committed already, or not yet.
Sequence writing(Crowd& crowd, const Tokens& tokens, bool commits, device::EventSource& gate) {
  TestCache& cache = crowd.cache;
  Sequence sequence = cache.create(tokens);
  cache.resume(sequence);
  cache.compute(sequence, Tokens(tokens.begin(), tokens.end() - 1));
  EXPECT_TRUE(sequence.resize(std::ssize(tokens)).has_value());
  gate = crowd.stall(cache.engine);
  const device::Event written = cache.engine.step(sequence, tokens, sequence.history());
  if (commits) {
    EXPECT_TRUE(sequence.commit(std::span(tokens).last(1), {written, false}).has_value());
  } else {
    EXPECT_TRUE(sequence.resize(std::nullopt, std::ssize(tokens)).has_value());
  }
  return sequence;
}

// KB-C02-05 (LMCache 4955, 5248): pages are still on their way out when somebody else wants the
// slots.
TEST(C02LateReadsAndWrites, PagesOnTheirWayOutAreNotOverwritten) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto blocks = 1 + static_cast<std::int32_t>(seed % 7);
    Crowd crowd(sixteen(), seed);
    TestCache& cache = crowd.cache;
    Tokens tokens = numbers(0, blocks * 64 - 3);
    device::EventSource step;
    Sequence a = writing(crowd, tokens, seed % 2 == 0, step);
    ASSERT_TRUE(a.suspend().has_value());
    const std::int32_t before = num_taken(cache, Tier::kHost);
    Sequence b = crowd.written(crowd.other, 7000, kAll);
    EXPECT_EQ(num_taken(cache, Tier::kHost), before + blocks + 1) << "all of A has to leave";
    crowd.other.step(b, numbers(7000, kAll), kAll);
    step.complete(EventStatus::kSucceeded);
    b.close();
    cache.resume(a);
    tokens.push_back(42);
    cache.compute(a, tokens);
    crowd.expect_right();
  }
}

// KB-C02-02 (SGLang 18803): the step before last ends a request that the last one reads.
TEST(C02LateReadsAndWrites, TheLastStepOfWhoeverEndsReadsItsOwn) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd(sixteen(), seed);
    Sequence b = crowd.written(crowd.other, 7000, kAll);
    device::EventSource step = crowd.stall(crowd.other);
    crowd.other.step(b, numbers(7000, kAll), kAll);
    b.close();
    Sequence c = crowd.written(crowd.cache.engine, 9000, kAll);
    crowd.cache.engine.step(c, numbers(9000, kAll), kAll);
    step.complete(EventStatus::kSucceeded);
    crowd.expect_right();
  }
}

// KB-C02-01 (vLLM 32255): a request is cancelled while its pages are on their way back.
TEST(C02LateReadsAndWrites, PagesOnTheirWayBackHitNobody) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd(sixteen(), seed);
    TestCache& cache = crowd.cache;
    const Tokens tokens = numbers(0, (1 + static_cast<std::int64_t>(seed % 7)) * 64 - 3);
    device::EventSource step;
    Sequence a = writing(crowd, tokens, seed % 2 == 0, step);
    step.complete(EventStatus::kSucceeded);
    ASSERT_TRUE(a.suspend().has_value());
    Sequence b = crowd.written(crowd.other, 7000, kAll);
    // The way back is into slots that the last step of B still reads.
    step = crowd.stall(crowd.other);
    crowd.other.step(b, numbers(7000, kAll), kAll);
    b.close();
    const auto arrived = a.resume(cache.engine.stream());
    ASSERT_TRUE(arrived.has_value()) << arrived.error().text();
    EXPECT_EQ(arrived->status(), EventStatus::kPending);
    a.close();
    Sequence c = crowd.written(cache.engine, 9000, kAll);
    cache.engine.step(c, numbers(9000, kAll), kAll);
    step.complete(EventStatus::kSucceeded);
    crowd.expect_right();
  }
}

// KB-C02-06 (TensorRT-LLM 12542): a transfer whose source is evicted. Whoever sends holds what he
// sends, as a sequence of his own, from the moment he finds it: it cannot be evicted. One that
// comes too late is told so at once, and nobody waits for it.
enum class Sender { kQueued, kSending, kLate };

void send_while_squeezed(Sender when, std::uint64_t seed) {
  Crowd crowd(Crowd::config({kFull}, 64, 16, 0), seed);
  TestCache& cache = crowd.cache;
  cache.run(numbers(0, 5 * 64));
  const Tokens prompt = numbers(0, 5 * 64 + 1);
  const auto send = [&](Sequence& sender) {
    cache.resume(sender);
    cache.engine.step(sender, numbers(0, 5 * 64), 5 * 64);
  };
  Sequence sender;
  device::EventSource transfer;
  if (when != Sender::kLate) {
    sender = cache.create(prompt);
    EXPECT_EQ(sender.num_committed(), 5 * 64);
  }
  if (when == Sender::kSending) {
    transfer = crowd.stall(cache.engine);
    send(sender);
  }
  // Everything that can be squeezed out.
  Sequence squeeze = crowd.written(crowd.other, 7000, num_free(cache) * 64);
  EXPECT_EQ(num_free(cache), 0);
  EXPECT_EQ(squeeze.num_blocks(), when == Sender::kLate ? 16 : 11);
  EXPECT_EQ(squeeze.resize(17 * 64).error().code(), ErrorCode::kResourceExhausted);
  if (when == Sender::kLate) {
    EXPECT_EQ(cache.create(prompt).num_committed(), 0);
  } else if (when == Sender::kSending) {
    transfer.complete(EventStatus::kSucceeded);
  } else {
    send(sender);
  }
  crowd.expect_right();
}

TEST(C02LateReadsAndWrites, WhatIsBeingSentIsNotEvicted) {
  for (const Sender when : {Sender::kQueued, Sender::kSending, Sender::kLate}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << "sender " << static_cast<int>(when) << " seed " << seed);
      send_while_squeezed(when, seed);
    }
  }
}

// C06, reference and ownership: each slot is in one place, and is given back once.
// KB-C06-01 (SGLang 12693): a lookup that is aborted before it is admitted. KB-C06-03 (vLLM 42571),
// KB-C06-10 (TensorRT-LLM 12816): released twice. KB-C06-05 (12834): counters of the wrong tier.
// KB-C06-07 (16037, 16019): an ownership chain without end. KB-C06-08 (LMCache 3130): a batch that
// evicts past the references. KB-C06-11 (Dynamo 4171, 3730): completions after the end.
TEST(C06References, EverySlotIsGivenBackOnce) {
  KvCacheConfig config = test_config({kFull, kState}, 16, 32 << 10);
  config.host_bytes = 16 << 10;
  TestCache cache(std::move(config));
  Sequence base = cache.create(numbers(0, 64));
  cache.resume(base);
  ASSERT_TRUE(base.resize(64).has_value());
  ASSERT_TRUE(base.reserve_snapshot(48).has_value());
  cache.compute(base, numbers(0, 64));
  base.close();
  base.close();
  const std::int32_t blocks = num_free(cache, 0);
  const std::int32_t states = num_free(cache, 1);
  for (int i = 0; i < 10; ++i) {
    Sequence aborted = cache.create(numbers(0, 60));
    EXPECT_EQ(aborted.num_committed(), 48);
    cache.manager->audit();
  }
  EXPECT_EQ(num_free(cache, 0), blocks);
  EXPECT_EQ(num_free(cache, 1), states);
  for (int i = 0; i < 10'000; ++i) {
    Sequence next = cache.create({});
    cache.resume(next);
    ASSERT_TRUE(next.resize(8 * 16).has_value());
    const Tokens tokens = numbers(100'000 + i % 50 * 1000, 8 * 16);
    ASSERT_TRUE(next.commit(tokens).has_value());
    if (i % 1000 == 0) cache.manager->audit();
  }
  EXPECT_EQ(num_free(cache, 0), blocks);
  EXPECT_EQ(num_free(cache, 1), states);
  ASSERT_TRUE(cache.manager->shutdown().has_value());
}

// KB-C06-12 (Dynamo 11019): 3 slots free, 5 wanted of which some match: no entry, no reference, no
// page moves.
TEST(C06References, ARefusedCallLeavesEverythingAsItWas) {
  for (std::int64_t wanted = 1; wanted <= 20; ++wanted) {
    KvCacheConfig config = test_config({kFull, SlidingWindow{100, 0}}, 64, 16 * 512);
    TestCache cache(std::move(config));
    cache.run(numbers(0, 128));
    Sequence a = cache.create({});
    cache.resume(a);
    ASSERT_TRUE(a.resize(3 * 64).has_value());
    const TierRoom before = cache.manager->room(Tier::kDevice, kGroup);
    const Tokens prompt = numbers(0, 129);
    Sequence b = cache.create(prompt);
    cache.resume(b);
    const std::vector<SlotId> slots(b.slots(kGroup).begin(), b.slots(kGroup).end());
    const auto grown = b.resize(128 + wanted * 64);
    cache.manager->audit();
    if (grown.has_value()) continue;
    EXPECT_EQ(grown.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(b.capacity(), 128);
    EXPECT_THAT(b.slots(kGroup), testing::ElementsAreArray(slots));
    b.close();
    const TierRoom after = cache.manager->room(Tier::kDevice, kGroup);
    EXPECT_EQ(after.free, before.free);
    EXPECT_EQ(after.evictable, before.evictable);
    EXPECT_EQ(cache.reusable(numbers(0, 128)), 128);
  }
}

// KB-C06-03 with a window: the same slot comes back into a request's life, also by way of the host.
TEST(C06References, ASlotThatComesBackIntoAWindowIsGivenBackOnce) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd(Crowd::config({SlidingWindow{10, 0}}, 4, 8, 32), seed);
    TestCache& cache = crowd.cache;
    const std::int32_t device = num_free(cache);
    const std::int32_t host = num_free(cache, 0, Tier::kHost);
    std::set<std::int32_t> seen;
    int num_again = 0;
    Sequence a = cache.create({});
    cache.resume(a);
    for (std::int64_t length = 1; length < 100; ++length) {
      cache.compute(a, numbers(0, length));
      if (length % 4 == 1) {
        num_again += seen.insert(a.slots(kGroup).back().value()).second ? 0 : 1;
      }
      if (length % 17 != 0) continue;
      ASSERT_TRUE(a.suspend().has_value());
      crowd.written(crowd.other, 7000, 8 * 4).close();
      cache.resume(a);
    }
    EXPECT_GT(num_again, 5);
    a.close();
    a.close();
    cache.manager->audit();
    EXPECT_EQ(num_free(cache), device);
    EXPECT_EQ(num_free(cache, 0, Tier::kHost), host);
    // Nobody has a slot that somebody else has.
    Sequence all = crowd.written(crowd.other, 9000, device * 4);
    std::set<std::int32_t> slots;
    for (const SlotId slot : all.slots(kGroup)) {
      if (slot != kNoSlot) slots.insert(slot.value());
    }
    EXPECT_EQ(std::ssize(slots), num_taken(cache, Tier::kDevice));
    crowd.expect_right();
  }
}

// KB-C06-05 (TensorRT-LLM 12834): counters of the wrong tier. Both tiers are full, and each page
// more pushes one to the host and one out of it.
TEST(C06References, EachOfTwentyDemotionsIsCountedWhereItHappens) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd(Crowd::config({kFull}, 4, 24, 32), seed);
    TestCache& cache = crowd.cache;
    Sequence a = cache.create({});
    cache.resume(a);
    for (int i = 0; i < 20; ++i) cache.run(numbers(1000 * (i + 1), 20));
    const auto room = [&](Tier tier) { return cache.manager->room(tier, kGroup); };
    ASSERT_TRUE(a.resize(4 * room(Tier::kDevice).free).has_value());
    const std::int64_t before = cache.manager->counters().pages_dropped;
    EXPECT_GT(before, 0) << "the host is full";
    const TierRoom device = room(Tier::kDevice);
    const TierRoom host = room(Tier::kHost);
    ASSERT_EQ(device.free, 0);
    ASSERT_GE(device.evictable, 20);
    for (std::int32_t n = 1; n <= 20; ++n) {
      ASSERT_TRUE(a.resize(a.capacity() + 4).has_value());
      cache.manager->audit();
      EXPECT_EQ(cache.manager->counters().pages_dropped, before + n);
      EXPECT_EQ(room(Tier::kDevice).free, 0);
      EXPECT_EQ(room(Tier::kDevice).evictable, device.evictable - n);
      EXPECT_EQ(room(Tier::kHost).free, host.free);
      EXPECT_EQ(room(Tier::kHost).evictable, host.evictable);
      EXPECT_EQ(room(Tier::kHost).unavailable, host.unavailable);
    }
    crowd.expect_right();
  }
}

// KB-C06-08 (LMCache 3130): a batch that evicts past the references. Of five pages of a window the
// third is being read while one call wants everything.
TEST(C06References, ABatchLeavesThePageThatIsRead) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd(Crowd::config({SlidingWindow{16, 0}}, 16, 8, 0), seed);
    TestCache& cache = crowd.cache;
    const Tokens prefix = numbers(0, 5 * 16);
    cache.run(prefix);
    Tokens prompt(prefix.begin(), prefix.begin() + 3 * 16);
    prompt.push_back(777);
    Sequence reader = cache.create(prompt);
    EXPECT_EQ(reader.num_committed(), 3 * 16);
    cache.resume(reader);
    EXPECT_EQ(reader.slots(kGroup)[1], kNoSlot);
    const SlotId third = reader.slots(kGroup)[2];
    device::EventSource step = crowd.stall(cache.engine);
    cache.engine.step(reader, Tokens(prompt.begin(), prompt.end() - 1), 3 * 16);
    Sequence batch = cache.create({});
    ASSERT_TRUE(batch.resume(crowd.other.stream()).has_value());
    EXPECT_EQ(batch.resize(8 * 16).error().code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(cache.manager->counters().pages_dropped, 0);
    ASSERT_TRUE(batch.resize(7 * 16).has_value());
    EXPECT_EQ(cache.manager->counters().pages_dropped, 4);
    EXPECT_THAT(batch.slots(kGroup), testing::Not(testing::Contains(third)));
    crowd.other.step(batch, numbers(7000, 7 * 16), 0);
    EXPECT_EQ(reader.slots(kGroup)[2], third);
    step.complete(EventStatus::kSucceeded);
    crowd.expect_right();
    reader.close();
    EXPECT_TRUE(batch.resize(8 * 16).has_value()) << "now it can leave";
    EXPECT_EQ(cache.manager->counters().pages_dropped, 5);
  }
}

// KB-C06-11 (Dynamo 4171, 3730): three pages are on their way to the host when their request ends.
TEST(C06References, CompletionsAfterTheEndGiveEverythingBack) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd(Crowd::config({kFull}, 64, 16, 32), seed);
    TestCache& cache = crowd.cache;
    const std::int32_t device = num_free(cache);
    const std::int32_t host = num_free(cache, 0, Tier::kHost);
    const std::int32_t taken = num_taken(cache, Tier::kHost);
    const Tokens tokens = numbers(0, 3 * 64);
    Sequence a = cache.create(tokens);
    cache.resume(a);
    device::EventSource step = crowd.stall(cache.engine);
    ASSERT_TRUE(a.resize(3 * 64).has_value());
    cache.engine.step(a, tokens, 0);
    ASSERT_TRUE(a.commit(tokens, {cache.engine.stream().record(), false}).has_value());
    ASSERT_TRUE(a.suspend().has_value());
    Sequence b = crowd.written(crowd.other, 7000, 16 * 64);
    EXPECT_EQ(num_taken(cache, Tier::kHost), taken + 3);
    a.close();
    cache.manager->audit();
    step.complete(EventStatus::kSucceeded);
    crowd.expect_right();
    b.close();
    EXPECT_EQ(num_free(cache), device);
    EXPECT_EQ(num_free(cache, 0, Tier::kHost), host);
    EXPECT_EQ(cache.reusable(tokens), 3 * 64) << "it was written after all";
    Sequence again = cache.create(numbers(0, 3 * 64 + 1));
    cache.resume(again);
    cache.compute(again, numbers(0, 3 * 64 + 1));
    again.close();
    crowd.expect_right();
    ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
    EXPECT_EQ(num_taken(cache, Tier::kDevice), 0);
    EXPECT_EQ(num_taken(cache, Tier::kHost), taken);
  }
}

// C16, abort in the middle: at every point, everything comes back once. KB-C16-01 (vLLM 32255): the
// end of a way back that is heard of before or after the abort. KB-C16-03 (vllm-ascend 16662): or
// after others have come and gone. KB-C16-05 (SGLang 38981, 38982): in mid-prompt, not at a block's
// end: at 10 of 30 tokens, with 8 in the tree. KB-C16-06 (vLLM 49118): before it ever ran.
enum class Order { kDoneFirst, kAbortFirst, kOthersBetween };

class Abort {
 public:
  Abort(int point, Order order, std::uint64_t seed)
      : point_(point),
        order_(order),
        crowd_(Crowd::config({kFull, SlidingWindow{10, 0}, kState}, 4, 20, 64), seed) {}

  void run() {
    cache().run(numbers(0, 8));
    ASSERT_EQ(cache().reusable(numbers(0, 8)), 8);
    const std::vector<std::int32_t> before = all_free();
    const std::int32_t host = num_taken(cache(), Tier::kHost);
    a_ = cache().create(numbers(0, 30));
    EXPECT_EQ(a_.num_committed(), 8);
    compute();
    if (reached(6)) {
      ASSERT_TRUE(a_.suspend().has_value());
    }
    if (reached(7)) {
      Sequence b = crowd_.written(crowd_.other, 7000, 6 * 4);
      EXPECT_GT(num_taken(cache(), Tier::kHost), host + 3) << "pages of A have to leave";
      step_ = crowd_.stall(crowd_.other);
      crowd_.other.step(b, numbers(7000, 6 * 4), 6 * 4);
      if (!reached(8)) a_.close();
    }
    if (reached(8)) come_back();
    a_.close();
    cache().manager->audit();
    if (step_.has_value() && !is_let_) step_->complete(EventStatus::kSucceeded);
    crowd_.expect_right();
    EXPECT_EQ(all_free(), before);
    expect_all_usable();
  }

 private:
  TestCache& cache() { return crowd_.cache; }
  bool reached(int point) const { return point_ >= point; }

  std::vector<std::int32_t> all_free() {
    std::vector<std::int32_t> free;
    for (std::int32_t g = 0; g < 3; ++g) {
      for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
        free.push_back(num_free(cache(), g, tier));
      }
    }
    return free;
  }

  void compute() {
    if (reached(1)) cache().resume(a_);
    if (reached(2)) {
      ASSERT_TRUE(a_.resize(30).has_value());
    }
    if (reached(3)) {
      ASSERT_TRUE(a_.reserve_snapshot(9).has_value());
    }
    if (reached(4)) cache().engine.step(a_, numbers(0, 10), 8);
    if (reached(5)) {
      ASSERT_TRUE(a_.commit(numbers(8, 2), {cache().engine.stream().record(), false}).has_value());
    }
  }

  // The way back is into slots that a step of another stream still reads.
  void come_back() {
    const auto arrived = a_.resume(cache().engine.stream());
    ASSERT_TRUE(arrived.has_value()) << arrived.error().text();
    EXPECT_EQ(arrived->status(), EventStatus::kPending);
    if (order_ == Order::kDoneFirst) {
      step_->complete(EventStatus::kSucceeded);
      is_let_ = true;
      EXPECT_EQ(arrived->wait(), EventStatus::kSucceeded);
      cache().engine.step(a_, numbers(0, 10), 10);
    }
    a_.close();
    if (order_ == Order::kOthersBetween) {
      for (int i = 0; i < 3; ++i) crowd_.written(cache().engine, 9000 + 100 * i, 8 * 4).close();
    }
  }

  // Twenty slots for one: none is lost, and none is there twice.
  void expect_all_usable() {
    Sequence next = crowd_.written(crowd_.other, 20'000, 0);
    while (next.resize(next.capacity() + 4).has_value()) {
    }
    std::set<std::int32_t> slots;
    std::int64_t count = 0;
    for (std::int32_t g = 0; g < 3; ++g) {
      for (const SlotId slot : next.slots(LayerGroupId(g))) {
        count += slot == kNoSlot ? 0 : 1;
        if (slot != kNoSlot) slots.insert(slot.value());
      }
    }
    EXPECT_GE(count, 19) << "an odd one may be left";
    EXPECT_EQ(std::ssize(slots), count);
    next.close();
    ASSERT_TRUE(cache().manager->shutdown().has_value());
    EXPECT_EQ(num_taken(cache(), Tier::kDevice), 0);
  }

  const int point_;
  const Order order_;
  Crowd crowd_;
  Sequence a_;
  std::optional<device::EventSource> step_;
  bool is_let_ = false;
};

TEST(C16Abort, EverythingComesBackWhereverItStops) {
  for (int point = 0; point <= 8; ++point) {
    for (const Order order : {Order::kDoneFirst, Order::kAbortFirst, Order::kOthersBetween}) {
      if (point < 8 && order != Order::kDoneFirst) continue;
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        SCOPED_TRACE(testing::Message() << "point " << point << " order " << static_cast<int>(order)
                                        << " seed " << seed);
        Abort(point, order, seed).run();
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// A state is written in place: when its request is cancelled in the middle of a step, or the step
// fails, it is nobody's state any more, and its slot waits for the step.
TEST(C16Abort, AStateInTheMiddleOfAStepIsNobodys) {
  for (const bool fails : {false, true}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      TestCache cache(test_config({kFull, kState}, 16), sim(seed));
      Sequence a = cache.create(numbers(0, 20));
      cache.resume(a);
      cache.compute(a, numbers(0, 20));
      ASSERT_TRUE(a.resize(25).has_value());
      cache.engine.step(a, numbers(0, 25), 20);
      if (fails) {
        device::EventSource step = cache.device->make_event("the step");
        step.complete(EventStatus::kFailed);
        EXPECT_EQ(a.commit(numbers(20, 5), {step.event(), false}).error().code(),
                  ErrorCode::kDataLoss);
      }
      a.close();
      Sequence b = cache.create({});
      cache.resume(b);
      ASSERT_TRUE(b.resize(8).has_value());
      cache.engine.step(b, numbers(7000, 8), 0);
      ASSERT_TRUE(b.resize(std::nullopt, 8).has_value());
      cache.engine.step(b, numbers(7000, 8), 8);
      EXPECT_EQ(cache.reusable(numbers(0, 20)), 0);
      EXPECT_EQ(cache.engine.stream().synchronize(), EventStatus::kSucceeded);
      EXPECT_EQ(cache.engine.mismatches(), 0);
      cache.manager->audit();
    }
  }
}

// After the end a sequence may still be suspended, and come back.
TEST(C16Abort, AnEndIsNoLoss) {
  for (const std::int64_t length : {20, 32}) {
    TestCache cache(test_config({kFull, kState}, 16));
    Sequence a = cache.create(numbers(0, length));
    cache.resume(a);
    ASSERT_TRUE(a.resize(length + 7).has_value());
    cache.compute(a, numbers(0, length), true);
    ASSERT_TRUE(a.suspend().has_value());
    cache.resume(a);
    cache.manager->audit();
    a.close();
    EXPECT_EQ(cache.reusable(numbers(0, length)), length);
  }
}

// KB-C16-07 (SGLang 38319, 38355): the first chunks are in the tree when the request is cancelled.
TEST(C16Abort, WhatAnAbortedPromptHasPublishedIsRightOrGone) {
  for (int chunks = 1; chunks <= 3; ++chunks) {
    TestCache cache(test_config({kFull, SlidingWindow{12, 0}}, 8, 16 << 10));
    Sequence a = cache.create(numbers(0, 96));
    cache.resume(a);
    for (int chunk = 1; chunk <= chunks; ++chunk) cache.compute(a, numbers(0, chunk * 30));
    a.close();
    for (int i = 0; i < 5; ++i) cache.run(numbers(10'000 * (i + 1), 200));
    Sequence d = cache.create(numbers(0, 96));
    cache.resume(d);
    cache.compute(d, numbers(0, 96));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

}  // namespace
}  // namespace slackwater::cache
