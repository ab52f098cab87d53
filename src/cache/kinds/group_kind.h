#ifndef SLACKWATER_CACHE_KINDS_GROUP_KIND_H_
#define SLACKWATER_CACHE_KINDS_GROUP_KIND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "slackwater/base/ids.h"
#include "slackwater/cache/config.h"
#include "slackwater/cache/layer_kind.h"

namespace slackwater::cache {

// What a path through the tree offers to one layer group. Positions and blocks are those of the
// whole sequence.
//
// Threads: reads the tree; under the lock of whoever reads.
class GroupOffer {
 public:
  virtual ~GroupOffer() = default;

  // For how many leading tokens of `block` there is a page; 0 for none.
  virtual std::int32_t coverage(std::int64_t block) const = 0;
  // The most leading tokens, up to `limit`, of which every block has a page that covers them.
  virtual std::int64_t unbroken(std::int64_t limit) const = 0;
  // The largest position <= `limit` of which there is a snapshot; 0 for none.
  virtual std::int64_t snapshot_at_most(std::int64_t limit) const = 0;
};

// What tells full attention, sliding windows and recurrent layers apart, all of it. One object per
// layer group.
//
// Source: kvcm_v2.md 3.1, 3.2 and 3.9.
// Invariants:
//   I1  stale_blocks(h) grows with h, at both ends.
//   I2  longest_usable(offer, limit) <= limit, and it is usable itself.
// Threads: immutable.
// Errors: none.
class GroupKind {
 public:
  GroupKind(std::int64_t tokens_per_block, bool has_block_pages, bool needs_every_block)
      : tokens_per_block_(tokens_per_block),
        has_block_pages_(has_block_pages),
        needs_every_block_(needs_every_block) {}
  virtual ~GroupKind() = default;

  // "full attention", "sliding window of 128 after 48 sink tokens", "recurrent".
  virtual std::string describe() const = 0;

  // Whether there is a page per block. Otherwise there is one for the whole sequence.
  bool has_block_pages() const { return has_block_pages_; }
  // Whether a block is of no use without all blocks before it.
  bool needs_every_block() const { return needs_every_block_; }

  // Blocks whose pages are not needed any more once `history` tokens are computed.
  virtual BlockRange stale_blocks(std::int64_t history) const = 0;

  // The largest position, at most `limit`, from which a sequence can go on with what is offered.
  virtual std::int64_t longest_usable(const GroupOffer& offer, std::int64_t limit) const = 0;

  // Slots on the device that a batch needs at the same time.
  virtual std::int64_t batch_slots(const BatchDesc& batch) const = 0;
  // Slots on the device without which one sequence cannot run, whatever the others need.
  virtual std::int64_t own_floor() const = 0;
  // The same where the layer groups beside this one have floors up to `largest_floor`.
  virtual std::int64_t floor_beside(std::int64_t largest_floor) const = 0;
  // Whether a sequence that runs takes more slots as it goes on.
  virtual bool can_grow() const = 0;

  std::int64_t tokens_per_block() const { return tokens_per_block_; }

 private:
  const std::int64_t tokens_per_block_;
  const bool has_block_pages_;
  const bool needs_every_block_;
};

std::unique_ptr<GroupKind> make_group_kind(const LayerKind& kind, std::int64_t tokens_per_block);

std::unique_ptr<GroupKind> make_full_attention(std::int64_t tokens_per_block);
std::unique_ptr<GroupKind> make_sliding_window(const SlidingWindow& window,
                                               std::int64_t tokens_per_block);
std::unique_ptr<GroupKind> make_recurrent(std::int64_t tokens_per_block);

// batch_slots of groups with block pages: blocks of a common prompt count once.
std::int64_t batch_blocks(const GroupKind& kind, const BatchDesc& batch);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_KINDS_GROUP_KIND_H_
