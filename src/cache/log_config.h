#ifndef SLACKWATER_CACHE_LOG_CONFIG_H_
#define SLACKWATER_CACHE_LOG_CONFIG_H_

#include <string>
#include <string_view>

#include "slackwater/base/error.h"
#include "slackwater/cache/config.h"

namespace slackwater::cache {

// What a manager is made from, as the JSON in front of its operation log: all that decides what it
// does, and nothing of where its disk lies.
std::string log_config(const KvCacheConfig& config);
// The same again, over a disk without files and a codec that knows the sizes only. kDataLoss for
// text that is no such configuration.
Result<KvCacheConfig> read_log_config(std::string_view text);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_LOG_CONFIG_H_
