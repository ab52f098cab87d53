#include <algorithm>

#include "cache/kinds/group_kind.h"

namespace slackwater::cache {
namespace {

class FullAttentionKind final : public GroupKind {
 public:
  explicit FullAttentionKind(std::int64_t tokens_per_block)
      : GroupKind(tokens_per_block, true, true) {}

  std::string describe() const override { return "full attention"; }
  BlockRange stale_blocks(std::int64_t) const override { return {}; }

  std::int64_t longest_usable(const GroupOffer& offer, std::int64_t limit) const override {
    return offer.unbroken(limit);
  }

  std::int64_t batch_slots(const BatchDesc& batch) const override {
    return batch_blocks(*this, batch);
  }
  std::int64_t own_floor() const override { return 1; }
  // As many blocks as the widest window beside it: less would leave that window's slots idle.
  std::int64_t floor_beside(std::int64_t largest_floor) const override {
    return std::max(own_floor(), largest_floor);
  }
  bool can_grow() const override { return true; }
};

}  // namespace

std::unique_ptr<GroupKind> make_full_attention(std::int64_t tokens_per_block) {
  return std::make_unique<FullAttentionKind>(tokens_per_block);
}

}  // namespace slackwater::cache
