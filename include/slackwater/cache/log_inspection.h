#ifndef SLACKWATER_CACHE_LOG_INSPECTION_H_
#define SLACKWATER_CACHE_LOG_INSPECTION_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/prefix_digest.h"

namespace slackwater::cache {

struct LogInspectionOptions {
  std::optional<std::int64_t> at;  // calls to make; nothing: all
  bool is_json = false;
  // A prompt whose match is to be explained, and its scope.
  std::optional<std::vector<TokenId>> prompt;
  ReuseScope scope;
  // Calls between two audits of every invariant; 0: none but at the end.
  std::int64_t audit_every = 0;
  std::function<void(std::int64_t num_calls)> progress;  // told now and then; empty: nobody
};

// Does again what an operation log holds, and says what the cache is like then: pools and tiers,
// sequences, tree, what may leave; or why the match of a prompt ends where it ends. Lines for
// people, or one JSON object.
//
// Errors: as LogReplay; kOutOfRange for more calls than there are. CHECK: an invariant that did not
// hold then does not hold now; the text names the first call after which an audit found it.
Result<std::string> inspect_log(const std::filesystem::path& path,
                                const LogInspectionOptions& options);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_LOG_INSPECTION_H_
