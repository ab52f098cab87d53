// What others may look up about one request.

#include <algorithm>

#include "engine/executor.h"

namespace slackwater::engine {

// Of all that were accepted, also those that no step has taken up yet, and not those that have
// their last output.
const LiveRequest* Executor::find_open(RequestId id) const {
  const LiveRequest* request = find(id);
  if (request == nullptr) {
    const std::lock_guard lock(mutex_);
    const auto at = std::find_if(submitted_.begin(), submitted_.end(),
                                 [&](const auto& submitted) { return submitted->id == id; });
    if (at != submitted_.end()) request = at->get();
  }
  return request == nullptr || request->is_closing ? nullptr : request;
}

const GenerationRequest* Executor::asked(RequestId id) const {
  const LiveRequest* const request = find_open(id);
  return request == nullptr ? nullptr : &request->asked;
}

std::span<const TokenId> Executor::tokens(RequestId id) const {
  const LiveRequest* const request = find_open(id);
  return request == nullptr ? std::span<const TokenId>() : std::span(request->tokens);
}

}  // namespace slackwater::engine
