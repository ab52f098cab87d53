#ifndef SLACKWATER_CACHE_REMOVAL_SCOPE_H_
#define SLACKWATER_CACHE_REMOVAL_SCOPE_H_

#include <utility>

#include "slackwater/cache/cache_event.h"

namespace slackwater::cache {

// As long as it lives, pages leave the tree for this reason, unless whoever is called knows better.
// `current` is kReplaced where nobody has said anything.
//
// Invariants: none of its own.
// Threads: those of `current`.
// Errors: none.
class RemovalScope {
 public:
  RemovalScope(RemovalCause& current, RemovalCause cause)
      : current_(current), before_(std::exchange(current, cause)) {}
  RemovalScope(const RemovalScope&) = delete;
  RemovalScope& operator=(const RemovalScope&) = delete;
  ~RemovalScope() { current_ = before_; }

 private:
  RemovalCause& current_;
  const RemovalCause before_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_REMOVAL_SCOPE_H_
