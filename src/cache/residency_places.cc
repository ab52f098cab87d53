// Pages that change places with others, and tiers that change.

#include <algorithm>
#include <array>
#include <utility>

#include "cache/residency.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

// As many of the victims as there is room for now.
Result<std::int32_t> Residency::move_some_victims(Tier from, Tier to, bool uses_swap_slots) {
  std::int32_t count = 0;
  for (std::size_t pool = 0; pool < queues_[index_of(to)].size(); ++pool) {
    std::int32_t room = room_on(to, pool);
    if (uses_swap_slots) {
      room = to == Tier::kHost ? swap_slots_[pool].num_pages() : store_.num_usable(to, pool);
    }
    std::vector<Victim> moving;
    for (Victim& victim : victims_[index_of(from)]) {
      if (room == 0) break;
      if (victim.is_done || victim.to != to || !store_.is_alive(victim.page)) continue;
      if (pool_of(to, LayerGroupId(victim.key.group)) != pool) continue;
      victim.is_done = true;
      moving.push_back(victim);
      --room;
    }
    count += static_cast<std::int32_t>(moving.size());
    SLACKWATER_RETURN_IF_ERROR(migrate(std::move(moving), from, to,
                                       uses_swap_slots && to == Tier::kHost ? pool : kNoSwap));
  }
  return count;
}

// As many of the pages as a tier has room for now; they leave the list.
Result<std::int32_t> Residency::bring_some(std::vector<PageRef>& pages, Tier to) {
  std::vector<std::int32_t> room;
  for (std::size_t pool = 0; pool < queues_[index_of(to)].size(); ++pool) {
    room.push_back(store_.num_usable(to, pool));
  }
  std::vector<PageRef> later;
  std::vector<PageRef> now;
  for (const PageRef& ref : pages) {
    std::int32_t& left = room[pool_of(to, LayerGroupId(ref.key.group))];
    (left > 0 ? now : later).push_back(ref);
    if (left > 0) --left;
  }
  moving_.clear();
  std::vector<Tier> from;
  for (const PageRef& ref : now) {
    moving_.push_back(ref.page);
    from.push_back(store_.tier(moving_.back()));
  }
  SLACKWATER_RETURN_IF_ERROR(store_.migrate(moving_, to));
  for (std::size_t i = 0; i < now.size(); ++i) {
    PageRun& run = *owners_.find_run(now[i].key);
    moved(now[i].key, run, find_page(run, now[i].page, now[i].index), from[i], to);
  }
  pages = std::move(later);
  return static_cast<std::int32_t>(now.size());
}

// The slots over which pages change places are kept for the next one, however this one ends.
Result<void> Residency::change_places(std::vector<PageRef> pages) {
  const Result<void> changed = change_some_places(std::move(pages));
  if (store_.has_tier(Tier::kHost)) reserve_swap_slots();
  return changed;
}

// The disk is full until a page leaves it: who is to take its place there waits on the host, in a
// slot that is kept for that.
Result<std::int32_t> Residency::park_some_victims() {
  std::int32_t count = 0;
  for (std::size_t pool = 0; pool < swap_slots_.size(); ++pool) {
    std::vector<Victim> parking;
    for (Victim& victim : victims_[index_of(Tier::kDevice)]) {
      if (std::ssize(parking) == swap_slots_[pool].num_pages()) break;
      if (victim.is_done || victim.to != Tier::kDisk || !store_.is_alive(victim.page)) continue;
      if (pool_of(Tier::kHost, LayerGroupId(victim.key.group)) != pool) continue;
      parking.push_back(victim);
      victim.is_done = true;
    }
    count += static_cast<std::int32_t>(parking.size());
    SLACKWATER_RETURN_IF_ERROR(migrate(parking, Tier::kDevice, Tier::kHost, pool));
    auto& waiting = victims_[index_of(Tier::kHost)];
    waiting.insert(waiting.end(), parking.begin(), parking.end());
  }
  return count;
}

bool Residency::has_victims_left() const {
  return std::any_of(victims_.begin(), victims_.end(), [&](const auto& victims) {
    return std::any_of(victims.begin(), victims.end(), [&](const Victim& victim) {
      return !victim.is_done && store_.is_alive(victim.page);
    });
  });
}

// Pages and victims change places, a few at a time. Each turn empties slots that the next fills.
Result<void> Residency::change_some_places(std::vector<PageRef> pages) {
  const Tier below = store_.has_tier(Tier::kHost) ? Tier::kHost : Tier::kDisk;
  for (const Tier tier : {Tier::kDisk, Tier::kHost, Tier::kDevice}) drop_victims(tier);
  while (!pages.empty() || has_victims_left()) {
    std::int32_t count = 0;
    constexpr std::array<std::pair<Tier, Tier>, 3> kWays = {std::pair{Tier::kHost, Tier::kDisk},
                                                            std::pair{Tier::kDevice, Tier::kDisk},
                                                            std::pair{Tier::kDevice, Tier::kHost}};
    for (const auto& [from, to] : kWays) {
      SLACKWATER_ASSIGN_OR_RETURN(const std::int32_t moved_now, move_some_victims(from, to, false));
      count += moved_now;
    }
    SLACKWATER_ASSIGN_OR_RETURN(const std::int32_t swapped,
                                move_some_victims(Tier::kDevice, below, true));
    SLACKWATER_ASSIGN_OR_RETURN(const std::int32_t brought, bring_some(pages, Tier::kDevice));
    if (below == Tier::kHost) reserve_swap_slots();
    if (count + swapped + brought > 0) continue;
    SLACKWATER_ASSIGN_OR_RETURN(const std::int32_t parked, park_some_victims());
    if (parked == 0) {
      return make_error(ErrorCode::kResourceExhausted,
                        "{} pages cannot change places with what lies on the device", pages.size());
    }
  }
  return {};
}

Result<void> Residency::recall(std::span<const PageRef> pages,
                               std::span<const std::int32_t> needed) {
  SLACKWATER_RETURN_IF_ERROR(check_guarantee(needed));
  const std::span<std::int32_t> slots = device_slots(needed);
  std::vector<std::int32_t> leaving_host(queues_[index_of(Tier::kHost)].size());
  std::vector<std::int32_t> leaving_disk(queues_[index_of(Tier::kDisk)].size());
  for (const PageRef& ref : pages) {
    const LayerGroupId group(ref.key.group);
    add_slots(slots[pool_of(Tier::kDevice, group)], 1);
    const Tier tier = store_.tier(ref.page);
    ++(tier == Tier::kHost ? leaving_host : leaving_disk)[pool_of(tier, group)];
  }
  std::vector<PageRef> coming(pages.begin(), pages.end());
  const Result<void> plain = plan(slots, {}, {});
  if (!plain.has_value() && SLACKWATER_MUTANT(resume_cannot_change_places)) return plain;
  if (!plain.has_value()) SLACKWATER_RETURN_IF_ERROR(plan(slots, leaving_host, leaving_disk));
  attempt_stands();
  if (plain.has_value()) {
    SLACKWATER_RETURN_IF_ERROR(apply());
    SLACKWATER_ASSIGN_OR_RETURN(const std::int32_t brought, bring_some(coming, Tier::kDevice));
    SLACKWATER_CHECK(coming.empty(), "{} of {} pages found room", brought, pages.size());
    return {};
  }
  return change_places(std::move(coming));
}

// Warmest tier first: what leaves one arrives at the next, which may lose slots itself.
Result<void> Residency::plan_tiers(const TierSlots& slots) {
  for (auto& victims : victims_) victims.clear();
  std::vector<Victim*> arriving;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!store_.has_tier(tier)) continue;
    if (slots[index_of(tier)].empty() || SLACKWATER_MUTANT(plans_with_the_old_slots)) {
      SLACKWATER_RETURN_IF_ERROR(plan_tier(tier, arriving, {}));
    } else {
      SLACKWATER_RETURN_IF_ERROR(plan_change(tier, arriving, slots[index_of(tier)]));
    }
  }
  return {};
}

// As plan_tier(), where the tier will have other slots, and those beyond them have to be left.
Result<void> Residency::plan_change(Tier tier, std::vector<Victim*>& arriving,
                                    std::span<const std::int64_t> num_slots) {
  const Tier swaps = store_.has_tier(Tier::kHost) ? Tier::kHost : Tier::kDisk;
  std::vector<std::int32_t> room(num_slots.size());
  for (std::size_t pool = 0; pool < num_slots.size(); ++pool) {
    const std::int64_t left = num_slots[pool] - num_occupied(tier, pool);
    const std::int64_t leaving = std::max<std::int64_t>(0, -left);
    const std::int32_t evictable = evictable_[index_of(tier)][pool];
    if (evictable < leaving) {
      return make_error(ErrorCode::kResourceExhausted,
                        "{} pages of pool group {} have to leave the {}, whose slots would be {}, "
                        "and {} may; close some sequences first",
                        leaving, pool, storage::to_string(tier), num_slots[pool], evictable);
    }
    const std::int64_t kept_free =
        tier == swaps ? std::min<std::int64_t>(kSwapSlots, num_slots[pool] / 2) : 0;
    room[pool] = static_cast<std::int32_t>(std::max<std::int64_t>(0, left - kept_free));
    const std::int64_t wanted =
        leaving + std::max(0, num_arriving(tier, pool, arriving) - room[pool]);
    if (wanted == 0) continue;
    room[pool] +=
        pick(tier, pool, static_cast<std::int32_t>(wanted)) - static_cast<std::int32_t>(leaving);
  }
  return place_arriving(tier, arriving, room);
}

Result<void> Residency::check_fits(Tier tier, std::span<const std::int64_t> num_slots) const {
  if (tier != Tier::kHost || !guarantees_suspend_) return {};
  for (std::size_t pool = 0; pool < num_slots.size(); ++pool) {
    const std::int64_t room =
        num_slots[pool] - std::min<std::int64_t>(kSwapSlots, num_slots[pool] / 2);
    if (num_pinned_[pool] <= room) continue;
    return make_error(ErrorCode::kResourceExhausted,
                      "{} pages are in use, and {} of the {} slots that pool group {} of the host "
                      "would have can take them; close some sequences first",
                      num_pinned_[pool], room, num_slots[pool], pool);
  }
  return {};
}

// Slots that pages lie in; those kept free for pages that change places do not count.
std::int64_t Residency::num_occupied(Tier tier, std::size_t pool) const {
  for (std::size_t g = 0; g < pool_of_[index_of(tier)].size(); ++g) {
    if (pool_of_[index_of(tier)][g] != pool) continue;
    const storage::PoolStats stats =
        store_.pool_stats(tier, LayerGroupId(static_cast<std::int32_t>(g)));
    return stats.num_slots - stats.num_free;
  }
  return 0;
}

void Residency::tier_will_change(Tier tier) {
  if (tier != Tier::kHost) return;
  for (storage::TieredStore::HostReservation& slots : swap_slots_) slots.cancel();
}

void Residency::tier_has_changed() {
  if (book_ != nullptr) book_->slots_have_changed();
  if (store_.has_tier(Tier::kHost)) {
    reserve_swap_slots();
  } else if (store_.has_tier(Tier::kDisk)) {
    count_disk_swap_slots();
  }
}

}  // namespace slackwater::cache
