#include "cache/block_tree.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {
namespace {

std::int32_t common_front(std::span<const TokenId> a, std::span<const TokenId> b) {
  const std::size_t most = std::min(a.size(), b.size());
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(most);
  return static_cast<std::int32_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

template <class List>
List cut_front(List& list, std::size_t count) {
  count = std::min(count, list.size());
  const auto end = list.begin() + static_cast<std::ptrdiff_t>(count);
  List front(std::make_move_iterator(list.begin()), std::make_move_iterator(end),
             list.get_allocator());
  list.erase(list.begin(), end);
  return front;
}

}  // namespace

BlockTree::ChildKey BlockTree::ChildOrder::key(NodeIndex node) const {
  const TreeNode& found = tree->node(node);
  return {found.parent, tree->first_block(found)};
}

bool BlockTree::ChildOrder::less(const ChildKey& a, const ChildKey& b) {
  if (a.parent != b.parent) return a.parent < b.parent;
  return std::lexicographical_compare(a.block.begin(), a.block.end(), b.block.begin(),
                                      b.block.end());
}

bool BlockTree::ChildOrder::operator()(NodeIndex a, NodeIndex b) const {
  return less(key(a), key(b));
}

bool BlockTree::ChildOrder::operator()(NodeIndex a, const ChildKey& b) const {
  return less(key(a), b);
}

bool BlockTree::ChildOrder::operator()(const ChildKey& a, NodeIndex b) const {
  return less(a, key(b));
}

BlockTree::BlockTree(std::int32_t tokens_per_block, std::span<const PageRun> run_templates,
                     TokenDigests& digests)
    : tokens_per_block_(tokens_per_block),
      run_templates_(run_templates.begin(), run_templates.end()),
      digests_(digests),
      ordered_(ChildOrder{this}, &memory_) {}

std::span<const TokenId> BlockTree::first_block(const TreeNode& node) const {
  return std::span(node.tokens)
      .first(std::min(node.tokens.size(), static_cast<std::size_t>(tokens_per_block_)));
}

std::span<const TokenId> BlockTree::block_tokens(const TreeNode& node, std::int32_t block) const {
  const auto first = static_cast<std::size_t>(block) * static_cast<std::size_t>(tokens_per_block_);
  const auto rest = std::span(node.tokens).subspan(first);
  return rest.first(std::min(rest.size(), static_cast<std::size_t>(tokens_per_block_)));
}

std::uint64_t BlockTree::hash_of(NodeIndex parent, std::span<const TokenId> block) const {
  return xxh3_128(std::as_bytes(block), parent.value()).low;
}

const Digest128& BlockTree::end_prefix(const TreeNode& node) const { return node.prefixes.back(); }

NodeIndex BlockTree::new_node() {
  NodeIndex index(static_cast<std::uint32_t>(nodes_.size()));
  if (free_.empty()) {
    nodes_.emplace_back(&memory_);
  } else {
    index = free_.back();
    free_.pop_back();
  }
  TreeNode& made = node(index);
  made.is_used = true;
  made.runs.reserve(run_templates_.size());
  for (const PageRun& other : run_templates_) {
    PageRun& run = made.runs.emplace_back(&memory_);
    run.group = other.group;
    run.is_by_position = other.is_by_position;
    run.is_pinned_by_page = other.is_pinned_by_page;
  }
  return index;
}

void BlockTree::free_node(NodeIndex index) {
  node(index) = TreeNode(&memory_);
  free_.push_back(index);
}

// Makes a node one of its parent's children.
void BlockTree::link(NodeIndex index) {
  TreeNode& linked = node(index);
  const auto [at, is_new] =
      by_block_.try_emplace(hash_of(linked.parent, first_block(linked)), index);
  if (!is_new) {
    linked.next_of_key = at->second;
    at.value() = index;
  }
  const bool is_alone = ordered_.insert(index).second;
  SLACKWATER_CHECK(is_alone, "I1: node {} has a twin", index.value());
}

void BlockTree::unlink(NodeIndex index) {
  TreeNode& linked = node(index);
  const auto at = by_block_.find(hash_of(linked.parent, first_block(linked)));
  SLACKWATER_CHECK(at != by_block_.end(), "I1: node {} is not found", index.value());
  if (at->second == index && linked.next_of_key == kNoNode) {
    by_block_.erase(at);
  } else if (at->second == index) {
    at.value() = linked.next_of_key;
  } else {
    NodeIndex before = at->second;
    while (node(before).next_of_key != index) before = node(before).next_of_key;
    node(before).next_of_key = linked.next_of_key;
  }
  linked.next_of_key = kNoNode;
  ordered_.erase(index);
}

std::optional<NodeIndex> BlockTree::find_root(const ReuseScope& scope) const {
  const auto at = roots_.find(root_prefix(scope));
  if (SLACKWATER_MUTANT(scopes_share_a_root) && !roots_.empty()) return roots_.begin()->second;
  if (at == roots_.end() || node(at->second).scope != scope) return std::nullopt;
  return at->second;
}

NodeIndex BlockTree::find_or_add_root(const ReuseScope& scope) {
  if (const auto found = find_root(scope)) return *found;
  const NodeIndex index = new_node();
  node(index).scope = scope;
  roots_[root_prefix(scope)] = index;
  emptied_roots_.push_back(index);  // gone at the end of the operation unless it gets a child
  return index;
}

NodeIndex BlockTree::find_child(NodeIndex parent, std::span<const TokenId> block) const {
  const auto at = by_block_.find(hash_of(parent, block));
  if (at == by_block_.end()) return kNoNode;
  for (NodeIndex index = at->second; index != kNoNode; index = node(index).next_of_key) {
    const auto tokens = first_block(node(index));
    if (node(index).parent == parent && std::ranges::equal(tokens, block)) return index;
  }
  return kNoNode;
}

bool BlockTree::begins_with(std::span<const TokenId> tokens, std::span<const TokenId> front) {
  return common_front(tokens, front) == std::ssize(front);
}

// What comes before a string in the order is a front of it, or shares a shorter one with it: then
// that is looked for.
NodeIndex BlockTree::find_shorter_child(NodeIndex parent, std::span<const TokenId> block) const {
  auto front = block.first(block.empty() ? 0 : block.size() - 1);
  while (!front.empty()) {
    auto at = ordered_.upper_bound(ChildKey{parent, front});
    if (at == ordered_.begin()) break;
    --at;
    if (node(*at).parent != parent) break;
    const auto tokens = first_block(node(*at));
    if (begins_with(front, tokens)) return *at;
    front = front.first(static_cast<std::size_t>(common_front(tokens, front)));
  }
  return kNoNode;
}

// The common front gets shorter with the distance from where `tokens` would stand, on both sides.
std::vector<BlockTree::Overlap> BlockTree::overlapping_children(NodeIndex parent,
                                                                std::span<const TokenId> tokens,
                                                                std::size_t limit) const {
  const auto block =
      tokens.first(std::min(tokens.size(), static_cast<std::size_t>(tokens_per_block_)));
  const auto overlap_of = [&](NodeIndex index) {
    return common_front(first_block(node(index)), block);
  };
  std::vector<Overlap> found;
  auto after = ordered_.lower_bound(ChildKey{parent, block});
  auto before = after;
  while (found.size() < limit) {
    std::int32_t ahead = 0;
    std::int32_t behind = 0;
    if (after != ordered_.end() && node(*after).parent == parent) ahead = overlap_of(*after);
    if (before != ordered_.begin() && node(*std::prev(before)).parent == parent) {
      behind = overlap_of(*std::prev(before));
    }
    if (ahead == 0 && behind == 0) break;
    if (ahead >= behind) {
      found.push_back({*after++, ahead});
    } else {
      found.push_back({*--before, behind});
    }
  }
  return found;
}

std::vector<NodeIndex> BlockTree::children(NodeIndex parent) const {
  std::vector<NodeIndex> found;
  if (node(parent).num_children == 0) return found;
  for (auto at = ordered_.lower_bound(ChildKey{parent, {}});
       at != ordered_.end() && node(*at).parent == parent; ++at) {
    found.push_back(*at);
  }
  return found;
}

NodeIndex BlockTree::add(NodeIndex parent, std::span<const TokenId> block) {
  SLACKWATER_CHECK(node(parent).is_root() || !is_partial(node(parent)),
                   "I3: node {} ends in a partial block", parent.value());
  SLACKWATER_CHECK(!block.empty() && std::ssize(block) <= tokens_per_block_, "a block of {} tokens",
                   block.size());
  const NodeIndex index = new_node();
  TreeNode& made = node(index);
  TreeNode& above = node(parent);
  made.parent = parent;
  made.first_block = above.first_block + above.num_blocks();
  const Digest128 before = above.is_root() ? root_prefix(above.scope) : end_prefix(above);
  made.tokens.assign(block.begin(), block.end());
  made.has_digests = std::any_of(block.begin(), block.end(), is_digest_token);
  made.prefixes.push_back(next_prefix(before, block, digests_));
  digests_.retain(block);
  link(index);
  ++above.num_children;
  ++num_nodes_;
  return index;
}

void BlockTree::append(NodeIndex index, std::span<const TokenId> block) {
  TreeNode& grown = node(index);
  SLACKWATER_CHECK(grown.num_children == 0 && !is_partial(grown) &&
                       grown.num_blocks() < kMaxNodeBlocks &&
                       std::ssize(block) == tokens_per_block_,
                   "node {} with {} children and {} blocks cannot grow by {} tokens", index.value(),
                   grown.num_children, grown.num_blocks(), block.size());
  grown.prefixes.push_back(next_prefix(end_prefix(grown), block, digests_));
  grown.tokens.insert(grown.tokens.end(), block.begin(), block.end());
  grown.has_digests |= std::any_of(block.begin(), block.end(), is_digest_token);
  digests_.retain(block);
}

NodeIndex BlockTree::split(NodeIndex index, std::int32_t at) {
  SLACKWATER_CHECK(0 < at && at < node(index).num_blocks(), "a split of node {} at block {} of {}",
                   index.value(), at, node(index).num_blocks());
  unlink(index);
  const NodeIndex front_index = new_node();
  TreeNode& rest = node(index);
  TreeNode& front = node(front_index);
  const auto count = static_cast<std::size_t>(at);
  front.parent = rest.parent;
  front.first_block = rest.first_block;
  front.num_children = 1;
  front.has_digests = rest.has_digests;
  front.users = SLACKWATER_MUTANT(split_forgets_users) ? Pins() : rest.users;
  front.tokens = cut_front(rest.tokens, count * static_cast<std::size_t>(tokens_per_block_));
  front.prefixes = cut_front(rest.prefixes, count);
  const std::int64_t end = end_token(front);
  for (std::size_t g = 0; g < rest.runs.size(); ++g) {
    PageRun& from = rest.runs[g];
    std::size_t pages = count;
    if (from.is_by_position) {
      pages = static_cast<std::size_t>(
          std::upper_bound(from.positions.begin(), from.positions.end(), end) -
          from.positions.begin());
    }
    front.runs[g].priority = from.priority;
    front.runs[g].whole = from.whole;
    front.runs[g].last_use = from.last_use;
    front.runs[g].may_be_lost = from.may_be_lost;
    from.certificates.resize(from.pages.size());
    front.runs[g].certificates = cut_front(from.certificates, pages);
    front.runs[g].pages = cut_front(from.pages, pages);
    front.runs[g].pins = cut_front(from.pins, pages);
    front.runs[g].positions = cut_front(from.positions, pages);
    front.runs[g].written = cut_front(from.written, pages);
  }
  for (const TreeNode::ShortPage& page : rest.short_pages) {
    if (page.block < at) front.short_pages.push_back(page);
  }
  std::erase_if(rest.short_pages, [&](const auto& page) { return page.block < at; });
  for (TreeNode::ShortPage& page : rest.short_pages) page.block -= at;
  for (const TreeNode::LatePage& page : rest.late_pages) {
    if (page.block < at) front.late_pages.push_back(page);
  }
  std::erase_if(rest.late_pages, [&](const auto& page) { return page.block < at; });
  for (TreeNode::LatePage& page : rest.late_pages) page.block -= at;
  front.num_written = std::min(rest.num_written, at);
  front.is_broken = rest.is_broken && rest.num_written < at;
  rest.num_written -= front.num_written;
  std::int32_t covered = front.num_written;
  for (PendingWrite& write : rest.writes) {
    if (covered < at) {
      covered = std::min(write.end_block, at);
      front.writes.push_back({covered, write.written});
    }
    write.end_block -= at;
  }
  std::erase_if(rest.writes, [](const PendingWrite& write) { return write.end_block <= 0; });
  rest.first_block += at;
  rest.parent = front_index;
  link(front_index);
  link(index);
  ++num_nodes_;
  return front_index;
}

void BlockTree::truncate(NodeIndex index, std::int32_t num_left) {
  TreeNode& cut = node(index);
  SLACKWATER_CHECK(cut.num_children == 0 && 0 < num_left && num_left <= cut.num_blocks(),
                   "node {} with {} children and {} blocks cannot be cut to {}", index.value(),
                   cut.num_children, cut.num_blocks(), num_left);
  const std::size_t tokens =
      static_cast<std::size_t>(num_left) * static_cast<std::size_t>(tokens_per_block_);
  if (tokens < cut.tokens.size()) {
    if (cut.has_digests) digests_.release(std::span(cut.tokens).subspan(tokens));
    cut.tokens.resize(tokens);
  }
  cut.prefixes.resize(static_cast<std::size_t>(num_left));
  for (PageRun& run : cut.runs) {
    if (run.is_by_position) continue;
    for (std::size_t i = static_cast<std::size_t>(num_left); i < run.pages.size(); ++i) {
      SLACKWATER_CHECK(is_null(run.pages[i]), "node {} is cut before a page", index.value());
    }
    run.pages.resize(std::min(run.pages.size(), static_cast<std::size_t>(num_left)));
    run.pins.resize(std::min(run.pins.size(), static_cast<std::size_t>(num_left)));
    run.certificates.resize(run.pages.size());
  }
  std::erase_if(cut.short_pages, [&](const auto& page) { return page.block >= num_left; });
  std::erase_if(cut.late_pages, [&](const auto& page) { return page.block >= num_left; });
  cut.num_written = std::min(cut.num_written, num_left);
  // Writes past what is left are nobody's business any more.
  std::size_t kept = 0;
  for (std::int32_t end = cut.num_written; end < num_left && kept < cut.writes.size(); ++kept) {
    end = cut.writes[kept].end_block = std::min(cut.writes[kept].end_block, num_left);
  }
  cut.writes.resize(SLACKWATER_MUTANT(cut_node_waits_on) ? cut.writes.size() : kept);
}

void BlockTree::erase(NodeIndex index) {
  TreeNode& erased = node(index);
  SLACKWATER_CHECK(erased.num_children == 0 && erased.users == Pins(),
                   "node {} with {} children and {} + {} users is erased", index.value(),
                   erased.num_children, erased.users.locks, erased.users.holds);
  for (const PageRun& run : erased.runs) {
    SLACKWATER_CHECK(run.num_pages() == 0, "node {} is erased with {} pages", index.value(),
                     run.num_pages());
  }
  unlink(index);
  if (erased.has_digests) digests_.release(erased.tokens);
  TreeNode& above = node(erased.parent);
  if (--above.num_children == 0 && above.is_root()) emptied_roots_.push_back(erased.parent);
  free_node(index);
  --num_nodes_;
}

void BlockTree::erase_empty_roots() {
  for (const NodeIndex root : emptied_roots_) {
    if (!node(root).is_used || !node(root).is_root() || node(root).num_children > 0 ||
        node(root).users != Pins()) {
      continue;
    }
    roots_.erase(root_prefix(node(root).scope));
    free_node(root);
  }
  emptied_roots_.clear();
}

std::int32_t BlockTree::coverage(const TreeNode& node, LayerGroupId group,
                                 std::int32_t block) const {
  const PageRun& run = node.runs[index_of(group)];
  const auto at = static_cast<std::size_t>(block);
  if (at >= run.pages.size() || is_null(run.pages[at])) return 0;
  for (const TreeNode::ShortPage& page : node.short_pages) {
    if (SLACKWATER_MUTANT(coverage_is_full)) break;
    if (page.block == block && page.group == group) return page.tokens;
  }
  return static_cast<std::int32_t>(block_tokens(node, block).size());
}

void BlockTree::set_coverage(TreeNode& node, LayerGroupId group, std::int32_t block,
                             std::int32_t tokens) {
  std::erase_if(node.short_pages,
                [&](const auto& page) { return page.block == block && page.group == group; });
  if (tokens < std::ssize(block_tokens(node, block))) {
    node.short_pages.push_back({block, group, tokens});
  }
}

void BlockTree::for_each_node(const std::function<void(NodeIndex)>& visit) const {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].is_used) visit(NodeIndex(i));
  }
}

void BlockTree::check_node(NodeIndex index) const {
  const TreeNode& checked = node(index);
  const TreeNode& above = node(checked.parent);
  SLACKWATER_CHECK(find_child(checked.parent, first_block(checked)) == index,
                   "I1: node {} is not found by its first block", index.value());
  SLACKWATER_CHECK(above.is_used && checked.first_block == above.first_block + above.num_blocks(),
                   "I2: node {} begins at block {}", index.value(), checked.first_block);
  SLACKWATER_CHECK(checked.num_blocks() >= 1 && checked.num_blocks() <= kMaxNodeBlocks,
                   "I4: node {} has {} blocks", index.value(), checked.num_blocks());
  SLACKWATER_CHECK(!is_partial(checked) || (checked.num_blocks() == 1 && checked.num_children == 0),
                   "I3: partial node {} with {} blocks and {} children", index.value(),
                   checked.num_blocks(), checked.num_children);
  SLACKWATER_CHECK(above.is_root() || !is_partial(above), "I3: node {} follows a partial block",
                   index.value());
  SLACKWATER_CHECK(
      checked.users != Pins() || find_longer_child(checked.parent, first_block(checked),
                                                   [&](NodeIndex longer) {
                                                     return node(longer).num_written > 0;
                                                   }) == kNoNode,
      "I3: a sibling begins as node {} does", index.value());
  Digest128 prefix = above.is_root() ? root_prefix(above.scope) : end_prefix(above);
  for (std::int32_t block = 0; block < checked.num_blocks(); ++block) {
    prefix = next_prefix(prefix, block_tokens(checked, block), digests_);
    SLACKWATER_CHECK(prefix == checked.prefixes[static_cast<std::size_t>(block)],
                     "I2: the prefix of block {} of node {}", block, index.value());
  }
}

void BlockTree::check_invariants() const {
  std::size_t num_used = 0;
  std::size_t num_roots = 0;
  std::vector<std::int32_t> num_children(nodes_.size());
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].is_used) continue;
    if (nodes_[i].is_root()) {
      ++num_roots;
      SLACKWATER_CHECK(find_root(nodes_[i].scope) == NodeIndex(i), "I1: root {} is not found", i);
      continue;
    }
    ++num_used;
    ++num_children[nodes_[i].parent.value()];
    check_node(NodeIndex(i));
  }
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    SLACKWATER_CHECK(nodes_[i].num_children == num_children[i], "I1: node {} counts {} of {}", i,
                     nodes_[i].num_children, num_children[i]);
  }
  SLACKWATER_CHECK(
      num_used == num_nodes_ && num_used == ordered_.size() && num_roots == roots_.size(),
      "I1: {} nodes, {} counted, {} in order; {} roots of {}", num_used, num_nodes_,
      ordered_.size(), num_roots, roots_.size());
}

}  // namespace slackwater::cache
