// The tree, node by node.

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "slackwater/cache/cache_view.h"

namespace slackwater::cache {
namespace {

using storage::Tier;

constexpr std::size_t kMostShown = 6;  // tokens of a node, from its front

char letter_of(const std::optional<Tier>& tier, bool may_leave) {
  if (!tier.has_value()) return '-';
  const char letter = *tier == Tier::kDevice ? 'd' : *tier == Tier::kHost ? 'h' : 'k';
  return may_leave ? letter : static_cast<char>(letter - 'a' + 'A');
}

std::string describe_tokens(const std::vector<TokenId>& tokens) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kMostShown, tokens.size()); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : " ", tokens[i]);
  }
  return tokens.size() > kMostShown ? text + " ..." : text;
}

// Pages of a run leave together where they are pinned together, else each counts by itself: what
// may leave is known by tier.
std::string describe_group(std::size_t group, const NodeGroupView& view) {
  const auto may_leave = [&](const std::optional<Tier>& tier) {
    return tier.has_value() && view.evictable[static_cast<std::size_t>(*tier)] > 0;
  };
  std::string text = fmt::format("  [{}] ", group);
  for (const auto& tier : view.blocks) text += letter_of(tier, may_leave(tier));
  for (const SnapshotView& snapshot : view.snapshots) {
    text +=
        fmt::format("{}{} ", letter_of(snapshot.tier, snapshot.num_locks + snapshot.num_holds == 0),
                    snapshot.position);
  }
  return text;
}

std::string describe_node(const NodeView& node, std::size_t depth) {
  std::string text = std::string(2 * depth, ' ');
  if (!node.parent.has_value()) {
    text += fmt::format("root {}", node.index);
    if (node.scope.adapter.has_value()) text += fmt::format(", adapter {}", *node.scope.adapter);
    if (node.scope.salt.has_value()) text += fmt::format(", salt {}", *node.scope.salt);
  } else {
    text += fmt::format("node {}: blocks {} to {}, tokens {}", node.index, node.first_block,
                        node.first_block + node.num_blocks - 1, describe_tokens(node.tokens));
  }
  if (node.num_locks > 0) text += fmt::format("; {} active", node.num_locks);
  if (node.num_holds > 0) text += fmt::format("; {} suspended", node.num_holds);
  if (node.num_written < node.num_blocks) text += fmt::format("; {} written", node.num_written);
  if (node.is_broken) text += "; broken";
  for (std::size_t g = 0; g < node.groups.size(); ++g) text += describe_group(g, node.groups[g]);
  while (text.ends_with(' ')) text.pop_back();
  return text + "\n";
}

}  // namespace

std::string describe_tree(const TreeView& tree) {
  std::map<std::uint32_t, std::vector<const NodeView*>> children;
  struct Waiting {
    const NodeView* node;
    std::size_t depth;
  };
  std::vector<Waiting> waiting;
  for (auto node = tree.nodes.rbegin(); node != tree.nodes.rend(); ++node) {
    if (node->parent.has_value()) {
      children[*node->parent].push_back(&*node);
    } else {
      waiting.push_back({&*node, 0});
    }
  }
  std::string text;
  while (!waiting.empty()) {
    const Waiting next = waiting.back();
    waiting.pop_back();
    text += describe_node(*next.node, next.depth);
    for (const NodeView* const child : children[next.node->index]) {
      waiting.push_back({child, next.depth + 1});
    }
  }
  return text;
}

}  // namespace slackwater::cache
