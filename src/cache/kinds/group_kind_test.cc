#include "cache/kinds/group_kind.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater::cache {
namespace {

// What a group has, written down block by block.
class FakeOffer final : public GroupOffer {
 public:
  explicit FakeOffer(std::int64_t tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  std::int32_t coverage(std::int64_t block) const override {
    const auto at = pages.find(block);
    return at == pages.end() ? 0 : at->second;
  }
  std::int64_t unbroken(std::int64_t limit) const override {
    std::int64_t position = 0;
    for (std::int64_t block = 0; position < limit; ++block) {
      const std::int64_t there = coverage(block);
      position = block * tokens_per_block_ + there;
      if (there < tokens_per_block_) break;
    }
    return std::min(position, limit);
  }
  std::int64_t snapshot_at_most(std::int64_t limit) const override {
    std::int64_t best = 0;
    for (const std::int64_t position : snapshots) {
      if (position <= limit) best = std::max(best, position);
    }
    return best;
  }

  std::map<std::int64_t, std::int32_t> pages;
  std::vector<std::int64_t> snapshots;

 private:
  const std::int64_t tokens_per_block_;
};

TEST(GroupKind, FullAttentionLetsNothingGo) {
  const auto kind = make_full_attention(32);
  for (const std::int64_t history : {0, 1, 31, 32, 1000}) {
    EXPECT_EQ(kind->stale_blocks(history).size(), 0);
  }
  EXPECT_EQ(kind->describe(), "full attention");
}

// The next token counts: a window of W needs W - 1 tokens of history.
TEST(GroupKind, AWindowLetsGoOfBlocksThatTheNextTokenDoesNotSee) {
  const auto kind = make_sliding_window({128, 0}, 32);
  EXPECT_EQ(kind->stale_blocks(0), (BlockRange{0, 0}));
  EXPECT_EQ(kind->stale_blocks(127), (BlockRange{0, 0}));
  EXPECT_EQ(kind->stale_blocks(158), (BlockRange{0, 0}));
  EXPECT_EQ(kind->stale_blocks(159), (BlockRange{0, 1}));
  // kvcm_v2.md 3.1: capacity 1024 with scratch pages has the range [0, 28).
  EXPECT_EQ(kind->stale_blocks(1024), (BlockRange{0, 28}));
  EXPECT_EQ(make_sliding_window({64, 0}, 32)->stale_blocks(256), (BlockRange{0, 6}));
  EXPECT_EQ(make_sliding_window({64, 0}, 32)->stale_blocks(352).end, 9);
}

TEST(GroupKind, AWindowOfOneLetsAllOfAnExactBoundaryGo) {
  const auto kind = make_sliding_window({1, 0}, 32);
  EXPECT_EQ(kind->stale_blocks(96), (BlockRange{0, 3}));
  EXPECT_EQ(kind->stale_blocks(95), (BlockRange{0, 2}));
}

TEST(GroupKind, SinksStay) {
  // 48 sink tokens fill two blocks of 32.
  const auto kind = make_sliding_window({128, 48}, 32);
  EXPECT_EQ(kind->stale_blocks(0), (BlockRange{0, 0}));
  EXPECT_EQ(kind->stale_blocks(20), (BlockRange{1, 1})) << "the numerator is negative";
  EXPECT_EQ(kind->stale_blocks(200), (BlockRange{2, 2}));
  EXPECT_EQ(kind->stale_blocks(512), (BlockRange{2, 12}));
  EXPECT_EQ(kind->describe(), "sliding window of 128 after 48 sink tokens");
}

TEST(GroupKind, StaleBlocksOnlyGrow) {
  for (const std::int64_t window : {1, 2, 31, 32, 33, 100}) {
    for (const std::int64_t sinks : {0, 1, 40}) {
      const auto kind = make_sliding_window({window, sinks}, 32);
      BlockRange before;
      for (std::int64_t history = 0; history < 400; ++history) {
        const BlockRange stale = kind->stale_blocks(history);
        EXPECT_LE(before.begin, stale.begin);
        EXPECT_LE(before.end, stale.end);
        EXPECT_LE(stale.end, history / 32 + 2);
        before = stale;
      }
    }
  }
}

TEST(GroupKind, FullAttentionGoesAsFarAsItIsUnbroken) {
  FakeOffer offer(8);
  offer.pages = {{0, 8}, {1, 8}, {2, 5}, {3, 8}};
  const auto kind = make_full_attention(8);
  EXPECT_EQ(kind->longest_usable(offer, 32), 21);
  EXPECT_EQ(kind->longest_usable(offer, 20), 20);
  EXPECT_EQ(kind->longest_usable(offer, 16), 16);
}

TEST(GroupKind, AWindowNeedsWhatTheNextTokenSees) {
  FakeOffer offer(8);
  const auto kind = make_sliding_window({16, 0}, 8);
  offer.pages = {{3, 8}, {4, 8}, {5, 8}};
  EXPECT_EQ(kind->longest_usable(offer, 48), 48) << "blocks 4 and 5, and one token of 4";
  // At 39 the next token sees positions 24 to 38: blocks 3 and 4.
  EXPECT_EQ(kind->longest_usable(offer, 39), 39);
  // At 38 it sees position 23, of block 2, which is not there; and so on down to nothing.
  EXPECT_EQ(kind->longest_usable(offer, 38), 0);
}

// Trimming to what a block covers moves the window: blocks before it are needed then.
TEST(GroupKind, AShortBlockMovesTheWindow) {
  FakeOffer offer(8);
  const auto kind = make_sliding_window({9, 0}, 8);
  offer.pages = {{2, 8}, {3, 3}};
  // The end of block 3 needs all of it; 27 needs the last 8 tokens: 19 to 26.
  EXPECT_EQ(kind->longest_usable(offer, 32), 27);
  offer.pages = {{3, 3}};
  EXPECT_EQ(kind->longest_usable(offer, 32), 0);
}

TEST(GroupKind, ASinkThatIsGoneEndsTheMatch) {
  FakeOffer offer(8);
  const auto kind = make_sliding_window({9, 8}, 8);
  offer.pages = {{0, 8}, {4, 8}, {5, 8}};
  EXPECT_EQ(kind->longest_usable(offer, 48), 48);
  offer.pages = {{0, 4}, {4, 8}, {5, 8}};
  EXPECT_EQ(kind->longest_usable(offer, 48), 4);
}

TEST(GroupKind, ASnapshotIsAPoint) {
  FakeOffer offer(16);
  offer.snapshots = {10, 20, 25};
  const auto kind = make_recurrent(16);
  EXPECT_EQ(kind->longest_usable(offer, 9), 0);
  EXPECT_EQ(kind->longest_usable(offer, 19), 10);
  EXPECT_EQ(kind->longest_usable(offer, 25), 25);
  EXPECT_EQ(kind->longest_usable(offer, 400), 25);
  EXPECT_FALSE(kind->has_block_pages());
}

TEST(GroupKind, SlotsOfABatch) {
  const auto full = make_full_attention(32);
  const auto window = make_sliding_window({64, 0}, 32);
  const auto state = make_recurrent(32);
  // No common prompt: each pays for its own.
  const BatchDesc apart = {{{100, 0}, {65, 64}}, 0};
  EXPECT_EQ(full->batch_slots(apart), 4 + 3);
  EXPECT_EQ(window->batch_slots(apart), 4 + 3);
  EXPECT_EQ(state->batch_slots(apart), 2);
  // Two blocks in common, counted once.
  const BatchDesc shared = {{{100, 70}, {129, 70}}, 70};
  EXPECT_EQ(full->batch_slots(shared), 2 + 2 + 3);
  // A window that has left the prompt behind in all sequences does not pay for it.
  const BatchDesc gone = {{{256, 255}, {256, 255}}, 64};
  EXPECT_EQ(window->batch_slots(gone), 2 * (8 - 6));
  EXPECT_EQ(state->batch_slots({{{0, 0}}, 0}), 1) << "a sequence without tokens has a state";
}

TEST(GroupKind, Floors) {
  EXPECT_EQ(make_sliding_window({128, 48}, 32)->own_floor(), 2 + (128 + 30) / 32 + 1);
  EXPECT_EQ(make_sliding_window({1, 0}, 1)->own_floor(), 1);
  EXPECT_EQ(make_full_attention(32)->own_floor(), 1);
  EXPECT_EQ(make_full_attention(32)->floor_beside(7), 7);
  EXPECT_EQ(make_recurrent(32)->floor_beside(7), 1);
}

}  // namespace
}  // namespace slackwater::cache
