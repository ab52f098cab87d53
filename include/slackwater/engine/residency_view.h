#ifndef SLACKWATER_ENGINE_RESIDENCY_VIEW_H_
#define SLACKWATER_ENGINE_RESIDENCY_VIEW_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "slackwater/base/ids.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::hybrid {
class HybridCacheManager;
}

namespace slackwater::engine {

// Slots of one pool: num_slots = in use + evictable + free.
struct PoolUse {
  storage::Tier tier = storage::Tier::kDevice;
  std::string name;                // of the layer groups that share it, "target: full attention"
  bool holds_blocks = false;       // pages of blocks; else recurrent states and snapshots
  std::int32_t num_slots = 0;      // now
  std::int32_t num_in_use = 0;     // by requests that may not be deprived of them
  std::int32_t num_evictable = 0;  // kept for whoever may ask for them again
};

// Where the pages that one request holds lie, shared ones included: [tiers] pages.
struct RequestPages {
  RequestId request;
  std::array<std::int32_t, storage::kNumTiers> pages = {};
};

// What lies where, as plain data to show to people.
struct ResidencyView {
  std::vector<PoolUse> pools;          // by tier
  std::vector<RequestPages> requests;  // those that hold something, by id
};

// Between two steps, by whoever calls Engine::step(). O(everything that is kept).
ResidencyView residency_of(hybrid::HybridCacheManager& state);

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_RESIDENCY_VIEW_H_
