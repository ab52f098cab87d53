#include "slackwater/storage/pool_group.h"

#include <cstring>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"
#include "slackwater/device/witness.h"

namespace slackwater::storage {

Result<std::unique_ptr<PoolGroup>> PoolGroup::create(device::Device& device,
                                                     const PoolGroupOptions& options) {
  if (options.slot_bytes.empty() || options.max_slots <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "pool group '{}' with {} pools of at most {} slots", options.name,
                      options.slot_bytes.size(), options.max_slots);
  }
  std::unique_ptr<PoolGroup> group(new PoolGroup(options));
  for (const std::int64_t bytes : options.slot_bytes) {
    if (bytes <= 0) {
      return make_error(ErrorCode::kInvalidArgument, "pool group '{}' with slots of {} bytes",
                        options.name, bytes);
    }
    const auto reserved = checked_multiply(static_cast<std::uint64_t>(bytes),
                                           static_cast<std::uint64_t>(options.max_slots));
    if (!reserved.has_value()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "pool group '{}': {} slots of {} bytes do not fit 64 bits", options.name,
                        options.max_slots, bytes);
    }
    SLACKWATER_ASSIGN_OR_RETURN(
        auto arena, device.reserve_arena(options.kind, *reserved,
                                         static_cast<std::size_t>(options.grain_bytes)));
    group->arenas_.push_back(std::move(arena));
  }
  return group;
}

std::size_t PoolGroup::pool_bytes(std::size_t pool, std::int32_t num_slots) const {
  return static_cast<std::size_t>(options_.slot_bytes[pool]) * static_cast<std::size_t>(num_slots);
}

std::int64_t PoolGroup::committed_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& arena : arenas_) bytes += static_cast<std::int64_t>(arena->committed_bytes());
  return bytes;
}

std::byte* PoolGroup::address(std::size_t pool, SlotId slot) const {
  SLACKWATER_DCHECK(pool < arenas_.size() && 0 <= slot.value() && slot.value() < num_slots(),
                    "slot {} of {} in pool {} of {}", slot.value(), num_slots(), pool,
                    arenas_.size());
  return arenas_[pool]->base() + pool_bytes(pool, slot.value());
}

PageTable PoolGroup::view(const BufferPlacement& buffer, std::int32_t tokens_per_block) const {
  const auto pool = static_cast<std::size_t>(buffer.pool);
  PageTable table;
  table.base = arenas_[pool]->base() + buffer.offset;
  table.slot_stride = options_.slot_bytes[pool];
  table.layer_stride = buffer.layer_stride;
  table.num_slots = num_slots();
  table.tokens_per_block = tokens_per_block;
  return table;
}

void PoolGroup::poison([[maybe_unused]] SlotId slot) const {
#if defined(SLACKWATER_DCHECKS)
  for (std::size_t pool = 0; pool < arenas_.size(); ++pool) {
    std::memset(address(pool, slot), 0xDD, static_cast<std::size_t>(options_.slot_bytes[pool]));
  }
#endif
}

Result<void> PoolGroup::resize_arenas(std::int32_t num_slots, device::Handover* handover) {
  for (std::size_t pool = 0; pool < arenas_.size(); ++pool) {
    Result<void> resized = arenas_[pool]->resize(pool_bytes(pool, num_slots), handover);
    if (device::witnessed([&] { return resized.has_value(); })) continue;
    if (resized.has_value()) {
      resized = make_error(ErrorCode::kResourceExhausted, "no memory when this was recorded");
    }
    // Those before it go back to what they were; giving memory back cannot fail.
    for (std::size_t before = 0; before <= pool; ++before) {
      const auto undone = arenas_[before]->resize(pool_bytes(before, slots_.capacity()), handover);
      SLACKWATER_CHECK(undone.has_value(), "{}", undone.error().text());
    }
    return tl::unexpected<Error>(resized.error().with_context("pool group '" + name() + "'"));
  }
  return {};
}

Result<void> PoolGroup::grow(std::int32_t num_slots, device::Handover* handover) {
  SLACKWATER_CHECK(num_slots >= this->num_slots(), "growth from {} to {} slots", this->num_slots(),
                   num_slots);
  if (num_slots > options_.max_slots) {
    return make_error(ErrorCode::kOutOfRange, "pool group '{}': {} slots of at most {}", name(),
                      num_slots, options_.max_slots);
  }
  const std::int32_t before = this->num_slots();
  const bool is_clean = handover == nullptr || handover->kept_bytes() == 0;
  SLACKWATER_RETURN_IF_ERROR(resize_arenas(num_slots, handover));
  slots_.grow(num_slots);
  if (!is_clean) {
    for (std::int32_t slot = before; slot < num_slots; ++slot) poison(SlotId(slot));
  }
  return {};
}

Result<void> PoolGroup::shrink(std::int32_t num_slots, const MoveSlots& move,
                               device::Handover* handover) {
  SLACKWATER_CHECK(0 <= num_slots && num_slots <= this->num_slots(), "shrink from {} to {} slots",
                   this->num_slots(), num_slots);
  if (slots_.num_occupied() > num_slots) {
    return make_error(
        ErrorCode::kResourceExhausted,
        "pool group '{}': {} slots are occupied, {} would be left of {}; evict {} first", name(),
        slots_.num_occupied(), num_slots, this->num_slots(), slots_.num_occupied() - num_slots);
  }
  slots_.begin_shrink(num_slots);
  std::vector<SlotMove> moves;
  for (const SlotId from : slots_.slots_to_vacate()) {
    auto to = slots_.allocate();
    SLACKWATER_CHECK(to.has_value(), "pool group '{}': no slot below {} for slot {}", name(),
                     num_slots, from.value());
    moves.push_back({from, *std::move(to), {}});
  }
  if (!moves.empty()) move(moves);
  for (const SlotMove& done : moves) slots_.release(done.from, done.moved);
  for (const device::Event& last_use : slots_.finish_shrink()) {
    if (!SLACKWATER_MUTANT(shrink_without_waiting)) last_use.wait();
  }
  const auto resized = resize_arenas(num_slots, handover);
  SLACKWATER_CHECK(resized.has_value(), "{}", resized.error().text());
  return {};
}

void PoolGroup::check_invariants() const {
  slots_.check_invariants();
  for (std::size_t pool = 0; pool < arenas_.size(); ++pool) {
    const std::size_t bytes =
        round_up(pool_bytes(pool, num_slots()), static_cast<std::size_t>(options_.grain_bytes));
    SLACKWATER_CHECK(arenas_[pool]->committed_bytes() == bytes,
                     "I2: pool {} of '{}' has {} bytes for {} slots, which need {}", pool, name(),
                     arenas_[pool]->committed_bytes(), num_slots(), bytes);
  }
}

}  // namespace slackwater::storage
