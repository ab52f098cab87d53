#include "cache/kinds/group_kind.h"

#include <algorithm>

#include "slackwater/base/numeric.h"

namespace slackwater::cache {

std::unique_ptr<GroupKind> make_group_kind(const LayerKind& kind, std::int64_t tokens_per_block) {
  if (const auto* window = std::get_if<SlidingWindow>(&kind)) {
    return make_sliding_window(*window, tokens_per_block);
  }
  if (std::holds_alternative<Recurrent>(kind)) return make_recurrent(tokens_per_block);
  return make_full_attention(tokens_per_block);
}

std::int64_t batch_blocks(const GroupKind& kind, const BatchDesc& batch) {
  const BlockRange system = {0, batch.system_prompt_length / kind.tokens_per_block()};
  BlockRange stale_for_all = system;
  std::int64_t own = 0;
  for (const SequenceDesc& sequence : batch.sequences) {
    const BlockRange stale = kind.stale_blocks(sequence.history);
    const BlockRange stale_system = intersect(stale, system);
    stale_for_all = intersect(stale_for_all, stale_system);
    const std::int64_t blocks = ceil_div(sequence.capacity, kind.tokens_per_block()) - stale.size();
    own += std::max<std::int64_t>(0, blocks - (system.size() - stale_system.size()));
  }
  return system.size() - stale_for_all.size() + own;
}

}  // namespace slackwater::cache
