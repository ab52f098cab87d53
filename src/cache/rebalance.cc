// Quotas and shares that change while sequences sleep.

#include <algorithm>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

std::int64_t CacheCore::quota(Tier tier) const {
  const ReadLock lock(mutex_);
  return store_->quota(tier);
}

Result<void> CacheCore::check_suspended(const char* call) const {
  const auto active =
      std::count_if(sequences_.begin(), sequences_.end(),
                    [](const SequenceState& s) { return s.status == SequenceStatus::kActive; });
  if (active == 0) return {};
  return make_error(ErrorCode::kFailedPrecondition, "{}: {} sequence(s) active; suspend them first",
                    call, active);
}

// Whoever used a page last has ended: pages may move within their tier, and whoever finds them
// later looks whether they have arrived.
void CacheCore::wait_for_last_uses() {
  const auto wait = [](PageRun& run) {
    if (!SLACKWATER_MUTANT(quota_skips_wait)) run.last_use.wait();
    run.may_be_lost |= run.num_pages() > 0;
  };
  for (SequenceState& sequence : sequences_) {
    for (SequenceGroup& group : sequence.groups) wait(group.run);
  }
  tree_->for_each_node([&](NodeIndex node) {
    for (PageRun& run : tree_->node(node).runs) wait(run);
  });
}

Result<void> CacheCore::check_quota(Tier tier, std::int64_t bytes) const {
  SLACKWATER_ASSIGN_OR_RETURN(const MinQuotas least, min_quotas(config_));
  const std::int64_t floor = tier == Tier::kDevice ? least.device_bytes
                             : tier == Tier::kHost ? least.host_bytes
                                                   : least.disk_bytes;
  if (!store_->has_tier(tier) || bytes >= floor) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "a quota of {} bytes for the {} is below what its floors need; use {} or more",
                    bytes, storage::to_string(tier), floor);
}

Result<void> CacheCore::set_quota(Tier tier, std::int64_t bytes) {
  const WriteLock lock(mutex_);
  SLACKWATER_RETURN_IF_ERROR(check_suspended("set_quota"));
  SLACKWATER_RETURN_IF_ERROR(check_quota(tier, bytes));
  Residency::TierSlots slots;
  SLACKWATER_ASSIGN_OR_RETURN(slots[index_of(tier)], store_->plan_quota(tier, bytes));
  SLACKWATER_RETURN_IF_ERROR(plan_tiers(slots));
  return change_tiers(slots, [&](Tier) { return store_->set_quota(tier, bytes); });
}

Result<void> CacheCore::plan_tiers(const Residency::TierSlots& slots) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (slots[index_of(tier)].empty()) continue;
    SLACKWATER_RETURN_IF_ERROR(residency_->check_fits(tier, slots[index_of(tier)]));
  }
  return residency_->plan_tiers(slots);
}

// As planned: coldest tier first, so that what leaves a warmer one finds the slots that are meant
// for it.
Result<void> CacheCore::change_tiers(const Residency::TierSlots& slots,
                                     const std::function<Result<void>(Tier)>& change) {
  wait_for_last_uses();
  const RemovalScope scope(removal_cause_, RemovalCause::kQuota);
  Result<void> changed;
  for (const Tier tier : {Tier::kDisk, Tier::kHost, Tier::kDevice}) {
    if (!store_->has_tier(tier)) continue;
    changed = residency_->leave(tier);
    if (!changed.has_value()) break;
    if (slots[index_of(tier)].empty()) continue;
    residency_->tier_will_change(tier);
    changed = change(tier);
    if (!changed.has_value()) break;
  }
  residency_->tier_has_changed();
  clean_up();
  return changed;
}

// What sequences of these days hold of each layer group, in bytes of the device: while they run;
// on colder tiers, what is kept of them.
std::vector<double> CacheCore::wanted_ratios(Tier tier) const {
  const Tuner::Shape shape = *tuner_.shape();
  const SequenceDesc sequence = tier == Tier::kDevice ? SequenceDesc{shape.capacity, shape.history}
                                                      : SequenceDesc{shape.reused, shape.reused};
  std::vector<double> ratios;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const std::int64_t pages = std::max<std::int64_t>(1, kind(g).batch_slots({{sequence}, 0}));
    ratios.push_back(static_cast<double>(pages) *
                     static_cast<double>(groups_.groups()[g].page_bytes));
  }
  return ratios;
}

// The slots of each tier that is off. What is compared is what the solver makes of the shares, with
// floors and whole grains: so a tier that has just been adjusted is not off.
Residency::TierSlots CacheCore::wanted_slots() const {
  Residency::TierSlots all;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!store_->has_tier(tier)) continue;
    const auto wanted = store_->plan_ratios(tier, wanted_ratios(tier));
    SLACKWATER_CHECK(wanted.has_value(), "shares of what the {} has: {}", storage::to_string(tier),
                     wanted.error().text());
    bool is_off = false;
    for (const LayerGroupDesc& group : groups_.groups()) {
      const auto present = store_->pool_stats(tier, group.id).num_slots;
      is_off |= tuner_.is_off(static_cast<double>(present),
                              static_cast<double>((*wanted)[store_->pool_group(tier, group.id)]));
    }
    if (is_off) all[index_of(tier)] = *wanted;
  }
  return all;
}

bool CacheCore::need_adjustment(Nanoseconds now) const {
  const ReadLock lock(mutex_);
  return tuner_.may_rebalance(now) && wanted_slots() != Residency::TierSlots();
}

Result<void> CacheCore::adjust(Nanoseconds now) {
  const WriteLock lock(mutex_);
  SLACKWATER_RETURN_IF_ERROR(check_suspended("adjust"));
  if (!tuner_.may_rebalance(now)) return {};
  const Residency::TierSlots slots = wanted_slots();
  if (slots == Residency::TierSlots()) return {};
  SLACKWATER_RETURN_IF_ERROR(plan_tiers(slots));
  tuner_.note_rebalance(now);
  return change_tiers(slots,
                      [&](Tier tier) { return store_->set_ratios(tier, wanted_ratios(tier)); });
}

}  // namespace slackwater::cache
