#ifndef SLACKWATER_CACHE_BLOCK_TREE_H_
#define SLACKWATER_CACHE_BLOCK_TREE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory_resource>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <tsl/robin_map.h>

#include "cache/page_run.h"
#include "cache/recycling_memory.h"
#include "slackwater/base/digest.h"
#include "slackwater/base/strong_int.h"
#include "slackwater/cache/prefix_digest.h"
#include "slackwater/cache/token_digests.h"

namespace slackwater::cache {

// A node of a BlockTree, until it is erased.
using NodeIndex = StrongInt<struct NodeIndexTag, std::uint32_t>;
inline constexpr NodeIndex kNoNode{0xFFFFFFFF};

// A node holds at most so many blocks, so that no operation on one depends on the length of a
// sequence.
inline constexpr std::int32_t kMaxNodeBlocks = 256;

// Blocks whose bytes a step is still writing: [.., end_block) are there once `written` is done.
struct PendingWrite {
  std::int32_t end_block = 0;
  device::Event written;
};

// Consecutive blocks with one continuation: tokens, digests and pages lie one after another.
struct TreeNode {
  explicit TreeNode(std::pmr::memory_resource* memory)
      : tokens(memory),
        prefixes(memory),
        runs(memory),
        short_pages(memory),
        writes(memory),
        late_pages(memory) {}

  NodeIndex parent = kNoNode;  // of a root none
  std::int32_t first_block = 0;
  std::int32_t num_children = 0;
  std::pmr::vector<TokenId> tokens;  // a multiple of a block's, or the tokens of one partial block
  std::pmr::vector<Digest128> prefixes;  // [blocks] after each block
  std::pmr::vector<PageRun> runs;        // [layer groups]
  // Coverage of pages that cover fewer tokens than their block has.
  struct ShortPage {
    std::int32_t block = 0;  // within the node
    LayerGroupId group;
    std::int32_t tokens = 0;
  };
  std::pmr::vector<ShortPage> short_pages;

  Pins users;                             // sequences whose path goes through here
  std::int32_t num_written = 0;           // leading blocks that others may see
  std::pmr::vector<PendingWrite> writes;  // of the blocks after those, ascending
  // Pages that came to a block which others see already, and are there once `written` is done.
  struct LatePage {
    std::int32_t block = 0;  // within the node
    LayerGroupId group;
    device::Event written;
  };
  std::pmr::vector<LatePage> late_pages;
  bool is_broken = false;    // a block after those has lost its bytes
  bool has_digests = false;  // some of the tokens may stand for digests

  NodeIndex next_of_key = kNoNode;  // others with the same hash
  ReuseScope scope;                 // of a root
  bool is_used = false;

  std::int32_t num_blocks() const { return static_cast<std::int32_t>(prefixes.size()); }
  bool is_root() const { return prefixes.empty(); }
};

// Prefixes of sequences that are known, path-compressed: a node is a run of blocks, and branches
// where sequences part. Tokens are compared, never trusted to a hash.
//
// Structure only: which pages a node has, who uses it and where its pages lie is said by others in
// its public fields.
//
// Source: the radix tree of TensorRT-LLM's KV cache manager V2 for the rules of blocks, kvcm_v2.md
// 3.2 to 3.6; RadixAttention of SGLang (Zheng et al., 2023) for the compressed path.
// Invariants (check_invariants, O(tokens)):
//   I1  a node is found among the children of its parent by its first block, and nowhere else.
//   I2  first_block is that of the parent plus the parent's blocks; prefixes are chained from it.
//   I3  a partial block is alone in its node, which has no children. It is gone once a sibling that
//       begins with it is written and nobody uses it.
//   I4  1 to kMaxNodeBlocks blocks; a root has none, and children.
//   I5  digest tokens of all nodes are retained.
// Ownership: owns nodes and tokens; pages are the store's. A NodeIndex is valid until erase().
// Threads: one that changes it, or any number that read.
// Errors: none.
// Cost: find_child O(tokens of a block); add and erase O(log nodes); split O(kMaxNodeBlocks).
class BlockTree {
 public:
  BlockTree(std::int32_t tokens_per_block, std::span<const PageRun> run_templates,
            TokenDigests& digests);
  BlockTree(const BlockTree&) = delete;
  BlockTree& operator=(const BlockTree&) = delete;

  const TreeNode& node(NodeIndex index) const { return nodes_[index.value()]; }
  TreeNode& node(NodeIndex index) { return nodes_[index.value()]; }
  std::int32_t tokens_per_block() const { return tokens_per_block_; }
  std::size_t num_nodes() const { return num_nodes_; }  // without roots
  std::size_t num_roots() const { return roots_.size(); }

  std::optional<NodeIndex> find_root(const ReuseScope& scope) const;
  NodeIndex find_or_add_root(const ReuseScope& scope);

  // The child whose first block is exactly `block`.
  NodeIndex find_child(NodeIndex parent, std::span<const TokenId> block) const;
  // A child whose first block begins with `block` and is longer, and for which `fits` is true.
  template <class Fits>
  NodeIndex find_longer_child(NodeIndex parent, std::span<const TokenId> block,
                              const Fits& fits) const {
    for (auto at = ordered_.upper_bound(ChildKey{parent, block}); at != ordered_.end(); ++at) {
      if (node(*at).parent != parent || !begins_with(first_block(node(*at)), block)) break;
      if (fits(*at)) return *at;
    }
    return kNoNode;
  }
  NodeIndex find_longer_child(NodeIndex parent, std::span<const TokenId> block) const {
    return find_longer_child(parent, block, [](NodeIndex) { return true; });
  }
  // The longest child with which `block` begins, and that is shorter.
  NodeIndex find_shorter_child(NodeIndex parent, std::span<const TokenId> block) const;
  // Children whose first block shares at least one token with the front of `tokens`, longest
  // common front first, at most `limit`.
  struct Overlap {
    NodeIndex child = kNoNode;
    std::int32_t num_tokens = 0;
  };
  std::vector<Overlap> overlapping_children(NodeIndex parent, std::span<const TokenId> tokens,
                                            std::size_t limit) const;
  std::vector<NodeIndex> children(NodeIndex parent) const;

  // A new child of one block. CHECK: no child is in its way, the parent's blocks are full.
  NodeIndex add(NodeIndex parent, std::span<const TokenId> block);
  // One more block at the end. CHECK: no children, full blocks, room.
  void append(NodeIndex node, std::span<const TokenId> block);
  // Cuts a node before its block `at`: the front becomes a new node, which is returned, and the
  // rest keeps its number, its children and its users.
  NodeIndex split(NodeIndex node, std::int32_t at);
  // Takes the blocks at and past `num_left` away. CHECK: no children, no pages there.
  void truncate(NodeIndex node, std::int32_t num_left);
  // CHECK: no children, no pages, no users.
  void erase(NodeIndex node);
  // Roots that have lost their last child. Not before the operation ends that may still use them.
  void erase_empty_roots();
  void note_unused_root(NodeIndex root) { emptied_roots_.push_back(root); }

  std::int64_t first_token(const TreeNode& node) const {
    return std::int64_t{node.first_block} * tokens_per_block_;
  }
  std::int64_t end_token(const TreeNode& node) const {
    return first_token(node) + std::ssize(node.tokens);
  }
  std::span<const TokenId> block_tokens(const TreeNode& node, std::int32_t block) const;
  std::span<const TokenId> first_block(const TreeNode& node) const;
  bool is_partial(const TreeNode& node) const {
    return std::ssize(node.tokens) % tokens_per_block_ != 0;
  }
  // For how many leading tokens of a block the page of a group is valid; 0 where there is none.
  std::int32_t coverage(const TreeNode& node, LayerGroupId group, std::int32_t block) const;
  void set_coverage(TreeNode& node, LayerGroupId group, std::int32_t block, std::int32_t tokens);

  // What steps grow in: what is given back to it is there for the next one.
  std::pmr::memory_resource* memory() { return &memory_; }

  // In no particular order, roots too.
  void for_each_node(const std::function<void(NodeIndex)>& visit) const;
  std::string describe() const;  // a line for people
  void check_invariants() const;

 private:
  // Orders children by parent, then by the tokens of their first block.
  struct ChildKey {
    NodeIndex parent;
    std::span<const TokenId> block;
  };
  struct ChildOrder {
    using is_transparent = void;
    const BlockTree* tree;
    bool operator()(NodeIndex a, NodeIndex b) const;
    bool operator()(NodeIndex a, const ChildKey& b) const;
    bool operator()(const ChildKey& a, NodeIndex b) const;
    ChildKey key(NodeIndex node) const;
    static bool less(const ChildKey& a, const ChildKey& b);
  };
  struct DigestHash {
    std::size_t operator()(const Digest128& digest) const {
      return static_cast<std::size_t>(digest.low);
    }
  };

  static bool begins_with(std::span<const TokenId> tokens, std::span<const TokenId> front);
  std::uint64_t hash_of(NodeIndex parent, std::span<const TokenId> block) const;
  NodeIndex new_node();
  void free_node(NodeIndex index);
  void link(NodeIndex index);
  void unlink(NodeIndex index);
  const Digest128& end_prefix(const TreeNode& node) const;
  void check_node(NodeIndex index) const;

  const std::int32_t tokens_per_block_;
  const std::vector<PageRun> run_templates_;
  TokenDigests& digests_;
  RecyclingMemory memory_;  // before all that lives in it
  std::deque<TreeNode> nodes_;
  std::vector<NodeIndex> free_;
  std::size_t num_nodes_ = 0;
  tsl::robin_map<std::uint64_t, NodeIndex> by_block_;  // hash of parent and first block
  std::pmr::set<NodeIndex, ChildOrder> ordered_;
  std::unordered_map<Digest128, NodeIndex, DigestHash> roots_;
  std::vector<NodeIndex> emptied_roots_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_BLOCK_TREE_H_
