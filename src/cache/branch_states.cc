#include "cache/branch_states.h"

#include <algorithm>

#include "slackwater/base/check.h"

namespace slackwater::cache {

void BranchStates::remove(std::uint64_t key, NodeIndex node) {
  const auto [first, last] = nodes_.equal_range(key);
  const auto at =
      std::find_if(first, last, [&](const auto& entry) { return entry.second == node; });
  SLACKWATER_CHECK(at != last, "I1: node {} is not found by a snapshot of its", node.value());
  nodes_.erase(at);
}

bool BranchStates::contains(std::uint64_t key, NodeIndex node) const {
  const auto [first, last] = nodes_.equal_range(key);
  return std::any_of(first, last, [&](const auto& entry) { return entry.second == node; });
}

}  // namespace slackwater::cache
