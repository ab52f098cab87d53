#include "cache/kinds/group_kind.h"

namespace slackwater::cache {
namespace {

class RecurrentKind final : public GroupKind {
 public:
  explicit RecurrentKind(std::int64_t tokens_per_block)
      : GroupKind(tokens_per_block, false, false) {}

  std::string describe() const override { return "recurrent"; }
  BlockRange stale_blocks(std::int64_t history) const override {
    return {0, history / tokens_per_block()};
  }

  // A snapshot is a point: it cannot be trimmed to a position before its own.
  std::int64_t longest_usable(const GroupOffer& offer, std::int64_t limit) const override {
    return offer.snapshot_at_most(limit);
  }

  std::int64_t batch_slots(const BatchDesc& batch) const override {
    return std::ssize(batch.sequences);
  }
  std::int64_t own_floor() const override { return 1; }
  std::int64_t floor_beside(std::int64_t) const override { return 1; }
  bool can_grow() const override { return false; }
};

}  // namespace

std::unique_ptr<GroupKind> make_recurrent(std::int64_t tokens_per_block) {
  return std::make_unique<RecurrentKind>(tokens_per_block);
}

}  // namespace slackwater::cache
