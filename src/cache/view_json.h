#ifndef SLACKWATER_CACHE_VIEW_JSON_H_
#define SLACKWATER_CACHE_VIEW_JSON_H_

#include <nlohmann/json.hpp>

#include "slackwater/cache/cache_history.h"
#include "slackwater/cache/cache_view.h"

namespace slackwater::cache {

// The same fields as the structures have, by the same names; tiers and causes by their words.
nlohmann::json to_json(const CacheView& view);
nlohmann::json to_json(const MatchExplanation& explanation);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_VIEW_JSON_H_
