// Pages that come up to a tier before anybody locks them there.

#include <algorithm>
#include <utility>

#include "cache/residency.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

// Who leaves the host so that pages find room there, and where they go.
Result<void> Residency::plan_host(std::span<const std::int32_t> coming,
                                  std::span<const std::int32_t> leaving_disk) {
  for (auto& victims : victims_) victims.clear();
  for (std::size_t pool = 0; pool < coming.size(); ++pool) {
    const std::int32_t free = room_on(Tier::kHost, pool);
    const std::int32_t missing = coming[pool] - free;
    if (missing <= 0) continue;
    const std::int32_t evictable = evictable_[index_of(Tier::kHost)][pool];
    if (evictable < missing) {
      return make_error(ErrorCode::kResourceExhausted,
                        "need {} slots of pool group {} of the host, {} free + {} evictable; close "
                        "some sequences, or prefetch less",
                        coming[pool], pool, free, evictable);
    }
    pick(Tier::kHost, pool, missing);
  }
  return plan_below(Tier::kHost, {}, leaving_disk);
}

// Pages change places within a pool group over whatever slot is free on either tier, those kept for
// that among them: one is enough, because every move frees another one.
Result<void> Residency::check_can_exchange(std::span<const std::int32_t> coming) const {
  for (std::size_t pool = 0; pool < coming.size(); ++pool) {
    const std::int32_t free = store_.num_usable(Tier::kHost, pool) + swap_slots_[pool].num_pages() +
                              store_.num_usable(Tier::kDisk, pool);
    if (coming[pool] == 0 || free > 0) continue;
    return make_error(ErrorCode::kResourceExhausted,
                      "{} pages of pool group {} cannot change places with what lies on the host: "
                      "no slot of the host or the disk is free",
                      coming[pool], pool);
  }
  return {};
}

// As many pages as there is room for come up, as many victims as there is room for go down, until
// all have.
Result<void> Residency::exchange_with_disk(std::vector<PageRef> pages) {
  for (const Tier tier : {Tier::kDisk, Tier::kHost}) drop_victims(tier);
  while (!pages.empty() || has_victims_left()) {
    SLACKWATER_ASSIGN_OR_RETURN(const std::int32_t brought, bring_some(pages, Tier::kHost));
    SLACKWATER_ASSIGN_OR_RETURN(const std::int32_t moved_now,
                                move_some_victims(Tier::kHost, Tier::kDisk, false));
    if (brought + moved_now > 0) continue;
    return make_error(ErrorCode::kResourceExhausted,
                      "{} pages cannot change places with what lies on the host", pages.size());
  }
  return {};
}

Result<void> Residency::prefetch(std::span<const PageRef> pages, Tier tier) {
  if (tier == Tier::kDevice) return recall(pages, {});
  std::vector<std::int32_t> coming(queues_[index_of(Tier::kHost)].size());
  for (const PageRef& ref : pages) ++coming[pool_of(tier, LayerGroupId(ref.key.group))];
  // Off the device all tiers have the same pool groups.
  const Result<void> plain = plan_host(coming, {});
  if (!plain.has_value()) {
    SLACKWATER_RETURN_IF_ERROR(plan_host(coming, coming));
    SLACKWATER_RETURN_IF_ERROR(check_can_exchange(coming));
  }
  attempt_stands();
  std::vector<PageRef> left(pages.begin(), pages.end());
  if (plain.has_value()) {
    SLACKWATER_RETURN_IF_ERROR(apply());
    SLACKWATER_ASSIGN_OR_RETURN(const std::int32_t brought, bring_some(left, tier));
    SLACKWATER_CHECK(left.empty(), "{} of {} pages found room", brought, pages.size());
    return {};
  }
  // The slots that are kept for pages that change places are used, and kept again afterwards.
  tier_will_change(Tier::kHost);
  const Result<void> exchanged = exchange_with_disk(std::move(left));
  tier_has_changed();
  return exchanged;
}

}  // namespace slackwater::cache
