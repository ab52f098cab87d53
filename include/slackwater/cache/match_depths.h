#ifndef SLACKWATER_CACHE_MATCH_DEPTHS_H_
#define SLACKWATER_CACHE_MATCH_DEPTHS_H_

#include <cstdint>

namespace slackwater::cache {

// How far a query came, in tokens: each is at most the one before.
struct MatchDepths {
  std::int64_t lookup = 0;     // asked for: all but the last token, which is left to compute
  std::int64_t content = 0;    // equal to what is known
  std::int64_t attention = 0;  // what the groups with pages per block can serve
  std::int64_t reused = 0;     // what all groups can serve
  friend bool operator==(const MatchDepths&, const MatchDepths&) = default;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_MATCH_DEPTHS_H_
