#ifndef SLACKWATER_BASE_IDS_H_
#define SLACKWATER_BASE_IDS_H_

#include <cstdint>

#include "slackwater/base/strong_int.h"

namespace slackwater {

// A place in a pool group that can hold one page.
using SlotId = StrongInt<struct SlotIdTag, std::int32_t>;

// Number of a block within its sequence: token position / tokens_per_block.
using BlockOrdinal = StrongInt<struct BlockOrdinalTag, std::int32_t>;

// One request, for the life of the process.
using RequestId = StrongInt<struct RequestIdTag, std::uint64_t>;

// Layers whose pages live and die together.
using LayerGroupId = StrongInt<struct LayerGroupIdTag, std::int32_t>;

// A vocabulary entry. 32 bits everywhere; a plain integer, because tokens are data, not places.
using TokenId = std::int32_t;

}  // namespace slackwater

#endif  // SLACKWATER_BASE_IDS_H_
