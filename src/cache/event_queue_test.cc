#include "cache/event_queue.h"

#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/cache_mirror.h"

namespace slackwater::cache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = EventRecord::Kind;

// The values of these were made with Python's hashlib and struct:
//   root   sha256(bytes([mask]) + pack('<Q', adapter) + pack('<Q', salt)), those that are there
//   block  sha256(parent + b''.join(pack('<i', token) or the digest's 32 bytes))
TEST(BlockKeys, AreTheSameEverywhere) {
  EXPECT_EQ(to_hex(root_key({})),
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d");
  EXPECT_EQ(to_hex(root_key({7, {}})),
            "bf20e9c9b8addef74f91d399e9ebb5bc7778de38c127e968d34d1ba3dea17cb2");
  EXPECT_EQ(to_hex(root_key({{}, 123})),
            "18027f2ef4cd39023cc5922cea2d0efe3f026bac9f19b3d3f27c561f37f4279b");
  EXPECT_EQ(to_hex(root_key({7, 123})),
            "60f39d6a8a81269476f89adbb4021dbbc4ba41a978acd88cfc60bfcbfb9c84c0");
  const TokenDigests digests;
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  const auto keys = block_keys({}, tokens, 4, digests);
  ASSERT_THAT(keys, SizeIs(2));
  EXPECT_EQ(to_hex(keys[0]), "e432228522a304ab556d66e6e40979ad05575f28b19b554264dd3c6277aaf073");
  EXPECT_EQ(to_hex(keys[1]), "7fabfb79be197b116ecec3a823a33b6cf1597e2d2a662f43165da8d2c118116d");
  const auto salted = block_keys({{}, 123}, tokens, 4, digests);
  EXPECT_EQ(to_hex(salted[0]), "937fe4b3be3255ef678804615952c55a3912a483d031e796a7faaea4d36db9ec");
  EXPECT_EQ(to_hex(salted[1]), "8034a44865445bc6b9ccc1e7d28ff79db3f7f2d0a678ffee07fc95c5b347c893");
}

TEST(BlockKeys, CountAnImageByItsDigest) {
  constexpr std::string_view kImage = "image";
  TokenDigests digests;
  static_cast<void>(*digests.acquire({}));
  const TokenId image = *digests.acquire(sha256(std::as_bytes(std::span(kImage))));
  const std::vector<TokenId> tokens = {1, image, 3, 4};
  EXPECT_EQ(to_hex(block_keys({}, tokens, 4, digests)[0]),
            "e9ee102d208f71ac340bf779580cfb40f10dfcd4ea1001eb8cc64aec532c9366");
}

TEST(BlockKeys, OfNothingAreNone) { EXPECT_THAT(block_keys({}, {}, 4, TokenDigests()), IsEmpty()); }

// Blocks of four tokens, each a first one.
class EventQueueTest : public testing::Test {
 protected:
  static EventRecord record(Kind kind, std::uint64_t block) {
    EventRecord record;
    record.kind = kind;
    record.prefix = {block, 0};
    record.end = 4;
    return record;
  }
  std::vector<TokenId> tokens(TokenId first) { return {first, first + 1, first + 2, first + 3}; }
  // A block with one page.
  void store(EventQueue& queue, std::uint64_t block) {
    const std::vector<TokenId> all = tokens(static_cast<TokenId>(10 * block));
    queue.add(record(Kind::kFirstBlockAdded, block), all);
    queue.add(record(Kind::kStored, block), all);
    queue.check_invariants();
  }
  void remove(EventQueue& queue, std::uint64_t block) {
    queue.add(record(Kind::kRemoved, block));
    queue.add(record(Kind::kBlockRemoved, block));
    queue.check_invariants();
  }

  TokenDigests digests_;
};

TEST_F(EventQueueTest, TokensOfABlockAreThereOnce) {
  EventQueue queue(4, 4, digests_);
  store(queue, 1);
  const EventQueue::Taken taken = queue.take();
  EXPECT_EQ(taken.batch.tokens, tokens(10));
  EXPECT_EQ(taken.batch.records[1].num_tokens, 4u);
  EXPECT_EQ(taken.batch.records[1].first_token, 0u);
}

TEST_F(EventQueueTest, APageThatComesToAnOldBlockBringsItsTokens) {
  EventQueue queue(4, 4, digests_);
  store(queue, 1);
  store(queue, 2);
  queue.add(record(Kind::kStored, 1), std::vector<TokenId>{10, 11});
  const EventQueue::Taken taken = queue.take();
  const EventRecord& last = taken.batch.records.back();
  EXPECT_EQ(last.num_tokens, 2u);
  EXPECT_THAT(std::span(taken.batch.tokens).subspan(last.first_token), ElementsAre(10, 11));
}

TEST_F(EventQueueTest, TakesAsManyEventsAsItShould) {
  EventQueue queue(3, 4, digests_);
  for (std::uint64_t block = 1; block <= 3; ++block) store(queue, block);
  const EventQueue::Taken all = queue.take();
  EXPECT_FALSE(all.has_overflown);
  EXPECT_EQ(all.num_lost, 0);
  EXPECT_EQ(all.batch.num_events, 3);
  for (std::uint64_t block = 4; block <= 7; ++block) store(queue, block);
  const EventQueue::Taken none = queue.take();
  EXPECT_TRUE(none.has_overflown);
  EXPECT_EQ(none.num_lost, 4);
  EXPECT_THAT(none.batch.records, IsEmpty());
  store(queue, 8);
  EXPECT_FALSE(queue.take().has_overflown) << "whoever has looked begins anew";
}

// Blocks may come and go without any page, and take room too.
TEST_F(EventQueueTest, BlocksWithoutPagesOverflowIt) {
  EventQueue queue(2, 4, digests_);
  for (std::uint64_t block = 1; block <= 7; ++block) {
    queue.add(record(Kind::kFirstBlockAdded, block), {});
  }
  const EventQueue::Taken taken = queue.take();
  EXPECT_TRUE(taken.has_overflown);
  EXPECT_EQ(taken.num_lost, 0) << "no event was among them";
}

// Of large blocks the tokens may be what there is no room for.
TEST_F(EventQueueTest, TokensOfLargeBlocksOverflowIt) {
  EventQueue queue(2, 256, digests_);
  const std::vector<TokenId> block(256, 7);
  queue.add(record(Kind::kFirstBlockAdded, 1), block);
  queue.add(record(Kind::kStored, 1), block);
  queue.check_invariants();
  queue.add(record(Kind::kFirstBlockAdded, 2), block);
  queue.check_invariants();
  EXPECT_EQ(queue.take().num_lost, 1);
}

TEST_F(EventQueueTest, DigestsLiveUntilTheyAreTold) {
  EventQueue queue(4, 4, digests_);
  const TokenId image = *digests_.acquire({});
  const std::vector<TokenId> block = {image, 1, 2, 3};
  queue.add(record(Kind::kFirstBlockAdded, 1), block);
  queue.add(record(Kind::kStored, 1), block);
  digests_.release(std::span(&image, 1));
  EXPECT_EQ(digests_.size(), 1u);
  const EventQueue::Taken taken = queue.take();
  EXPECT_EQ(digests_.size(), 1u) << "whoever has taken it holds it";
  digests_.release(taken.batch.tokens);
  EXPECT_EQ(digests_.size(), 0u);
}

TEST_F(EventQueueTest, DigestsOfWhatIsLostAreLetGo) {
  EventQueue queue(1, 4, digests_);
  const TokenId image = *digests_.acquire({});
  const std::vector<TokenId> block = {image, 1, 2, 3};
  queue.add(record(Kind::kFirstBlockAdded, 1), block);
  queue.add(record(Kind::kStored, 1), block);
  digests_.release(std::span(&image, 1));
  store(queue, 2);
  EXPECT_EQ(digests_.size(), 0u);
}

TEST_F(EventQueueTest, ABlockMayComeAgain) {
  EventQueue queue(8, 4, digests_);
  store(queue, 1);
  remove(queue, 1);
  store(queue, 1);
  EventReader reader;
  std::vector<CacheEvent> events;
  reader.begin_anew({5, 0, 0}, events);
  reader.read(queue.take().batch, digests_, events);
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[0].kind, CacheEventKind::kCreated);
  EXPECT_EQ(events[0].num_slots[0], 5);
  EXPECT_EQ(events[1].page, events[3].page);
  EXPECT_EQ(events[1].page.key, next_block_key(root_key({}), tokens(10), digests_));
  CacheMirror mirror;
  mirror.apply(events);
  EXPECT_EQ(mirror.num_pages(), 1u);
}

using EventQueueDeathTest = EventQueueTest;

TEST_F(EventQueueDeathTest, APageOfNoBlockIsAFault) {
  EventQueue queue(8, 4, digests_);
  queue.add(record(Kind::kRemoved, 1));
  EventReader reader;
  std::vector<CacheEvent> events;
  const EventQueue::Taken taken = queue.take();
  EXPECT_DEATH(reader.read(taken.batch, digests_, events), "I1: a page of block");
}

TEST_F(EventQueueDeathTest, AMirrorNoticesARemovalWithoutAStore) {
  EventQueue queue(8, 4, digests_);
  store(queue, 1);
  queue.add(record(Kind::kRemoved, 1));
  queue.add(record(Kind::kRemoved, 1));
  EventReader reader;
  std::vector<CacheEvent> events;
  reader.read(queue.take().batch, digests_, events);
  CacheMirror mirror;
  EXPECT_DEATH(mirror.apply(events), "removed, and was not there");
}

}  // namespace
}  // namespace slackwater::cache
