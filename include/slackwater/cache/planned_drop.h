#ifndef SLACKWATER_CACHE_PLANNED_DROP_H_
#define SLACKWATER_CACHE_PLANNED_DROP_H_

#include <cstdint>

#include "slackwater/base/error.h"

namespace slackwater::cache {

class CacheCore;

// Pages of the end of a sequence that will not be needed again, said ahead of time: when it is
// known that nobody goes on from there, or from where somebody does. Several sequences may name the
// same page; it leaves with the last plan that does.
//
// A plan keeps nothing: pages that it names may move, leave, or be replaced before it is dropped,
// and then it names fewer.
//
// Source: planned drops of TensorRT-LLM's KV cache manager V2, kvcm_v2.md 3.17.
// Invariants (KvCacheManager::audit):
//   I1  a page that is named lives in the tree, and counts the plans that name it.
// Ownership: a claim on its KvCacheManager, which outlives it, as a sequence is; the sequence need
// not. Move-only; the destructor drops.
// Threads: one at a time; as the calls of sequences, drop() waits for its turn.
// Errors: kFailedPrecondition when it has been dropped or moved away.
// Cost: O(pages named). Nothing where no plan is.
class PlannedDrop {
 public:
  PlannedDrop(PlannedDrop&& other) noexcept;
  PlannedDrop& operator=(PlannedDrop&& other) noexcept;
  ~PlannedDrop();

  // Pages that no other plan names and nobody holds leave at once, whatever tier they lie on; those
  // that somebody holds stay as if nobody had named them.
  Result<void> drop();

 private:
  friend class Sequence;
  friend class LogReplay;
  PlannedDrop(CacheCore* core, std::uint64_t plan) : core_(core), plan_(plan) {}

  CacheCore* core_ = nullptr;  // null once it is dropped
  std::uint64_t plan_ = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_PLANNED_DROP_H_
