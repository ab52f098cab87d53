#ifndef SLACKWATER_CACHE_PRIORITY_H_
#define SLACKWATER_CACHE_PRIORITY_H_

#include <cstdint>
#include <functional>

#include "slackwater/base/ids.h"

namespace slackwater::cache {

// How long a page that nobody uses stays: the lowest leave first.
using Priority = std::uint8_t;
inline constexpr Priority kMaxPriority = 100;
inline constexpr Priority kDefaultPriority = 35;

// The priority of the page of a block in a layer group, asked when the page is committed, any
// number of times, with equal answers. Values past kMaxPriority count as that. It is called under
// the cache's lock, and calls nothing of the cache.
using PriorityCallback = std::function<Priority(BlockOrdinal block, LayerGroupId group)>;

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_PRIORITY_H_
