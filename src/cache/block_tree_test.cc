#include "cache/block_tree.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::cache {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::int32_t kBlock = 4;

struct Fixture {
  Fixture() : tree(kBlock, std::vector<PageRun>(1), digests) {}

  // Adds a chain of blocks below a node, one node if `is_one`; returns the last node.
  NodeIndex add(NodeIndex parent, const Tokens& tokens) {
    NodeIndex node = kNoNode;
    for (std::size_t at = 0; at < tokens.size(); at += kBlock) {
      const auto block =
          std::span(tokens).subspan(at, std::min<std::size_t>(kBlock, tokens.size() - at));
      if (node == kNoNode) {
        node = tree.add(parent, block);
      } else {
        tree.append(node, block);
      }
    }
    return node;
  }

  TokenDigests digests;
  BlockTree tree;
};

Tokens numbers(TokenId first, std::size_t count) {
  Tokens tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<TokenId>(i));
  return tokens;
}

TEST(BlockTree, AChildIsFoundByItsFirstBlock) {
  Fixture f;
  const NodeIndex root = f.tree.find_or_add_root({});
  const NodeIndex node = f.add(root, numbers(0, 12));
  EXPECT_EQ(f.tree.find_child(root, numbers(0, 4)), node);
  EXPECT_EQ(f.tree.find_child(root, numbers(1, 4)), kNoNode);
  EXPECT_EQ(f.tree.find_child(root, numbers(0, 3)), kNoNode);
  EXPECT_EQ(f.tree.find_child(node, numbers(0, 4)), kNoNode);
  EXPECT_EQ(f.tree.node(node).num_blocks(), 3);
  f.tree.check_invariants();
}

TEST(BlockTree, ScopesHaveRootsOfTheirOwn) {
  Fixture f;
  const NodeIndex root = f.tree.find_or_add_root({7, {}});
  f.add(root, numbers(0, 4));
  EXPECT_FALSE(f.tree.find_root({}).has_value());
  EXPECT_EQ(f.tree.find_root({7, {}}), root);
  f.tree.erase_empty_roots();
  EXPECT_EQ(f.tree.num_roots(), 1u);
  f.tree.erase(f.tree.children(root)[0]);
  f.tree.erase_empty_roots();
  EXPECT_EQ(f.tree.num_roots(), 0u);
  f.tree.check_invariants();
}

// The number of the node stays with its end: with its children, and with those who came so far.
TEST(BlockTree, ASplitKeepsTheNumberOfTheEnd) {
  Fixture f;
  const NodeIndex root = f.tree.find_or_add_root({});
  const NodeIndex node = f.add(root, numbers(0, 16));
  const NodeIndex child = f.add(node, numbers(100, 8));
  f.tree.node(node).users.locks = 2;
  f.tree.node(node).num_written = 3;
  const NodeIndex front = f.tree.split(node, 1);
  EXPECT_EQ(f.tree.find_child(root, numbers(0, 4)), front);
  EXPECT_EQ(f.tree.find_child(front, numbers(4, 4)), node);
  EXPECT_EQ(f.tree.node(child).parent, node);
  EXPECT_EQ(f.tree.node(front).users.locks, 2);
  EXPECT_EQ(f.tree.node(front).num_written, 1);
  EXPECT_EQ(f.tree.node(node).num_written, 2);
  EXPECT_EQ(f.tree.node(node).first_block, 1);
  f.tree.check_invariants();
}

// A front waits only for what is written to it.
TEST(BlockTree, ASplitSharesOutPendingWrites) {
  device::EventSource first(device::Event(new device::EventState("first")));
  device::EventSource second(device::Event(new device::EventState("second")));
  const auto split_at = [&](std::int32_t at, std::int32_t num_written) {
    Fixture f;
    const NodeIndex node = f.add(f.tree.find_or_add_root({}), numbers(0, 24));
    f.tree.node(node).num_written = num_written;
    f.tree.node(node).writes = {{4, first.event()}, {6, second.event()}};
    const NodeIndex front = f.tree.split(node, at);
    return std::pair(f.tree.node(front).writes.size(), f.tree.node(node).writes.size());
  };
  EXPECT_EQ(split_at(2, 2), std::pair(std::size_t{0}, std::size_t{2}));
  EXPECT_EQ(split_at(3, 2), std::pair(std::size_t{1}, std::size_t{2}));
  EXPECT_EQ(split_at(4, 2), std::pair(std::size_t{1}, std::size_t{1}));
  EXPECT_EQ(split_at(5, 2), std::pair(std::size_t{2}, std::size_t{1}));
}

// A node waits only for what is left of it.
TEST(BlockTree, ACutForgetsWritesPastIt) {
  device::EventSource first(device::Event(new device::EventState("first")));
  device::EventSource second(device::Event(new device::EventState("second")));
  const auto ends_after_cut = [&](std::int32_t num_left, std::int32_t num_written) {
    Fixture f;
    const NodeIndex node = f.add(f.tree.find_or_add_root({}), numbers(0, 24));
    f.tree.node(node).num_written = num_written;
    f.tree.node(node).writes = {{4, first.event()}, {6, second.event()}};
    f.tree.truncate(node, num_left);
    std::vector<std::int32_t> ends;
    for (const PendingWrite& write : f.tree.node(node).writes) ends.push_back(write.end_block);
    return ends;
  };
  EXPECT_THAT(ends_after_cut(5, 2), testing::ElementsAre(4, 5));
  EXPECT_THAT(ends_after_cut(4, 2), testing::ElementsAre(4));
  EXPECT_THAT(ends_after_cut(3, 2), testing::ElementsAre(3));
  EXPECT_THAT(ends_after_cut(2, 2), testing::IsEmpty());
  EXPECT_THAT(ends_after_cut(1, 2), testing::IsEmpty());
}

TEST(BlockTree, SnapshotsGoWhereTheirPositionIs) {
  Fixture f;
  PageRun snapshots;
  snapshots.is_by_position = snapshots.is_pinned_by_page = true;
  BlockTree tree(kBlock, std::vector<PageRun>{snapshots}, f.digests);
  const NodeIndex root = tree.find_or_add_root({});
  const NodeIndex node = tree.add(root, numbers(0, 4));
  tree.append(node, numbers(4, 4));
  PageRun& run = tree.node(node).runs[0];
  run.pages = {{1, 1}, {2, 1}, {3, 1}};
  run.pins.resize(3);
  run.positions = {3, 4, 5};
  const NodeIndex front = tree.split(node, 1);
  EXPECT_THAT(tree.node(front).runs[0].positions, testing::ElementsAre(3, 4))
      << "a state at the end of a block is that block's";
  EXPECT_THAT(tree.node(node).runs[0].positions, testing::ElementsAre(5));
}

TEST(BlockTree, ChildrenAreFoundByWhatTheyShare) {
  Fixture f;
  const NodeIndex root = f.tree.find_or_add_root({});
  const NodeIndex a = f.add(root, {1, 2, 3, 4});
  const NodeIndex b = f.add(root, {1, 2, 9, 9});
  const NodeIndex c = f.add(root, {1, 5, 5, 5});
  f.add(root, {2, 2, 3, 4});
  const auto found = f.tree.overlapping_children(root, Tokens{1, 2, 3, 8, 8}, 10);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].child, a);
  EXPECT_EQ(found[0].num_tokens, 3);
  EXPECT_EQ(found[1].child, b);
  EXPECT_EQ(found[2].child, c);
  EXPECT_EQ(f.tree.overlapping_children(root, Tokens{1, 2, 3, 8, 8}, 1).size(), 1u);
  EXPECT_TRUE(f.tree.overlapping_children(root, Tokens{7}, 4).empty());
}

TEST(BlockTree, PartialBlocksAreFoundFromBothSides) {
  Fixture f;
  const NodeIndex root = f.tree.find_or_add_root({});
  const NodeIndex partial = f.add(root, {1, 2});
  f.add(root, {1, 1, 1, 1});
  EXPECT_EQ(f.tree.find_shorter_child(root, Tokens{1, 2, 3, 4}), partial);
  EXPECT_EQ(f.tree.find_shorter_child(root, Tokens{1, 2, 3}), partial);
  EXPECT_EQ(f.tree.find_shorter_child(root, Tokens{1, 3, 3, 3}), kNoNode);
  EXPECT_EQ(f.tree.find_longer_child(root, Tokens{1}), f.tree.children(root)[0]);
  EXPECT_EQ(f.tree.find_longer_child(root, Tokens{1, 2}), kNoNode);
}

TEST(BlockTree, CoverageIsKeptWhereItIsShort) {
  Fixture f;
  const NodeIndex node = f.add(f.tree.find_or_add_root({}), numbers(0, 8));
  TreeNode& n = f.tree.node(node);
  EXPECT_EQ(f.tree.coverage(n, LayerGroupId(0), 0), 0) << "no page";
  n.runs[0].pages = {{1, 1}, {2, 1}};
  EXPECT_EQ(f.tree.coverage(n, LayerGroupId(0), 0), 4);
  f.tree.set_coverage(n, LayerGroupId(0), 1, 3);
  EXPECT_EQ(f.tree.coverage(n, LayerGroupId(0), 1), 3);
  f.tree.set_coverage(n, LayerGroupId(0), 1, 4);
  EXPECT_TRUE(n.short_pages.empty());
}

TEST(BlockTree, DigestsLiveAsLongAsTheirNodes) {
  Fixture f;
  Sha256Digest image = {};
  const TokenId token = *f.digests.acquire(image);
  const NodeIndex root = f.tree.find_or_add_root({});
  const NodeIndex node = f.add(root, {1, token, 2, 3, 4, token, 6, 7});
  f.digests.release(Tokens{token});
  EXPECT_EQ(f.digests.size(), 1u);
  f.tree.truncate(node, 1);
  EXPECT_EQ(f.digests.size(), 1u);
  f.tree.erase(node);
  EXPECT_EQ(f.digests.size(), 0u);
}

// Against a plain list of the sequences that are in the tree.
class BlockTreeModel {
 public:
  explicit BlockTreeModel(std::uint64_t seed) : random_(seed) {}

  void step() {
    root_ = fixture_.tree.find_or_add_root({});
    const Tokens tokens = random_tokens();
    if (random_() % 3 != 0) {
      insert(tokens);
    } else {
      remove(tokens);
    }
    fixture_.tree.erase_empty_roots();
    compare(tokens);
    for (int i = 0; i < 3; ++i) compare(random_tokens());
  }

  void check() const { fixture_.tree.check_invariants(); }

 private:
  Tokens random_tokens() {
    Tokens tokens;
    const std::size_t blocks = 1 + random_() % 4;
    for (std::size_t i = 0; i < blocks * kBlock; ++i) {
      tokens.push_back(static_cast<TokenId>(random_() % 2));
    }
    return tokens;
  }

  // How many blocks of `tokens` are in the tree, and the node and block where they end.
  struct End {
    std::size_t blocks = 0;
    NodeIndex node;
    std::int32_t within = 0;
  };
  End walk(const Tokens& tokens) const {
    End end{0, root_, 0};
    const BlockTree& tree = fixture_.tree;
    while (end.blocks * kBlock < tokens.size()) {
      const auto block = std::span(tokens).subspan(end.blocks * kBlock, kBlock);
      const TreeNode& node = tree.node(end.node);
      if (end.within < node.num_blocks()) {
        if (!std::ranges::equal(tree.block_tokens(node, end.within), block)) break;
        ++end.within;
      } else {
        const NodeIndex child = tree.find_child(end.node, block);
        if (child == kNoNode) break;
        end.node = child;
        end.within = 1;
      }
      ++end.blocks;
    }
    return end;
  }

  void insert(const Tokens& tokens) {
    End end = walk(tokens);
    BlockTree& tree = fixture_.tree;
    if (end.blocks * kBlock < tokens.size() && end.within < tree.node(end.node).num_blocks()) {
      end.node = tree.split(end.node, end.within);
    }
    for (std::size_t at = end.blocks * kBlock; at < tokens.size(); at += kBlock) {
      const auto block = std::span(tokens).subspan(at, kBlock);
      if (end.node != root_ && tree.node(end.node).num_children == 0 && random_() % 2 == 0) {
        tree.append(end.node, block);
      } else {
        end.node = tree.add(end.node, block);
      }
    }
    for (std::size_t n = kBlock; n <= tokens.size(); n += kBlock) {
      present_[Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n))] = true;
    }
  }

  // Removes what follows the first block of `tokens` that ends a branch.
  void remove(const Tokens& tokens) {
    const End end = walk(tokens);
    BlockTree& tree = fixture_.tree;
    if (end.blocks == 0 || tree.node(end.node).num_children > 0 ||
        end.within < tree.node(end.node).num_blocks()) {
      return;
    }
    if (end.within > 1) {
      tree.truncate(end.node, end.within - 1);
    } else {
      tree.erase(end.node);
    }
    present_.erase(
        Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end.blocks * kBlock)));
  }

  void compare(const Tokens& tokens) {
    root_ = fixture_.tree.find_or_add_root({});
    std::size_t blocks = 0;
    while (blocks * kBlock < tokens.size() &&
           present_.contains(Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(
                                                                         (blocks + 1) * kBlock)))) {
      ++blocks;
    }
    EXPECT_EQ(walk(tokens).blocks, blocks);
    fixture_.tree.erase_empty_roots();
  }

  std::mt19937_64 random_;
  Fixture fixture_;
  NodeIndex root_;
  std::map<Tokens, bool> present_;
};

TEST(BlockTreeModel, AgreesWithAListOfPrefixes) {
  BlockTreeModel model(test_seed());
  const std::int64_t operations = test_operations(20'000);
  for (std::int64_t i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "after " << i << " operations");
    model.step();
    if (i % 16 == 0) model.check();
  }
}

}  // namespace
}  // namespace slackwater::cache
