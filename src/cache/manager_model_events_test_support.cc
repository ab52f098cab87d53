// Whoever is told of what the cache keeps, and knows nothing else.

#include "cache/manager_model_test_support.h"

namespace slackwater::cache {

// None, so few that they overflow, or enough.
std::int32_t KvCacheManagerModel::random_max_events(std::uint64_t ticket) {
  if (ticket < 8) return 0;
  return ticket < 24 ? static_cast<std::int32_t>(ticket) - 7 : 1 << 14;
}

// Afterwards the mirror is what is in the tree.
void KvCacheManagerModel::drain() {
  const DrainedEvents drained = manager_->drain_events();
  tally_.events += std::ssize(drained.events);
  tally_.overflows += drained.num_lost > 0 ? 1 : 0;
  mirror_.apply(drained.events);
  if (!has_events_) return;
  const auto difference = mirror_.difference(manager_->cached_pages());
  ASSERT_FALSE(difference.has_value()) << *difference;
}

}  // namespace slackwater::cache
