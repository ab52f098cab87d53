// Giving back room that will not be used, in whatever state.

#include "cache/cache_core.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

Result<void> CacheCore::check_trim(const SequenceState& sequence, std::int64_t capacity) {
  if (capacity > sequence.capacity) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a trim to {} tokens of a capacity of {}; only resize gives more", capacity,
                      sequence.capacity);
  }
  if (capacity < sequence.history) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a trim to {} tokens with a history of {}; what is computed stays computed",
                      capacity, sequence.history);
  }
  return {};
}

// The pages past a capacity of a sequence that is suspended, on whatever tier they lie.
void CacheCore::shrink_suspended(SequenceState& sequence, std::int64_t capacity) {
  const std::int64_t end = num_blocks(capacity);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages() || SLACKWATER_MUTANT(trim_forgets_pages)) continue;
    SequenceGroup& own = sequence.groups[g];
    const auto left = static_cast<std::size_t>(std::max<std::int64_t>(0, end - own.first_block));
    const std::int32_t before = own.run.num_pages();
    for (std::size_t i = own.run.pages.size(); i-- > left;) {
      release_page(sequence_key(sequence, g), i);
    }
    if (left < own.run.pages.size()) own.run.pages.resize(left);
    if (sequence.is_counted) count_return(own, before - own.run.num_pages());
  }
}

Result<void> CacheCore::trim(SequenceState& sequence, std::int64_t capacity) {
  SLACKWATER_RETURN_IF_ERROR(check_trim(sequence, capacity));
  const WriteLock lock(mutex_);
  if (sequence.status == SequenceStatus::kActive) {
    shrink(sequence, capacity);
  } else {
    shrink_suspended(sequence, capacity);
  }
  sequence.capacity = capacity;
  sequence.lengths.add(capacity, sequence.history);
  clean_up();
  return {};
}

}  // namespace slackwater::cache
