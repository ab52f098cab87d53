#ifndef SLACKWATER_CACHE_KINDS_LAYER_KIND_JSON_H_
#define SLACKWATER_CACHE_KINDS_LAYER_KIND_JSON_H_

#include <nlohmann/json.hpp>

#include "slackwater/base/error.h"
#include "slackwater/cache/layer_kind.h"

namespace slackwater::cache {

// {"kind": "full attention"}, {"kind": "sliding window", "window": 128, "sinks": 48},
// {"kind": "recurrent"}.
nlohmann::json to_json(const LayerKind& kind);
// kDataLoss for anything else.
Result<LayerKind> layer_kind_from_json(const nlohmann::json& json);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_KINDS_LAYER_KIND_JSON_H_
