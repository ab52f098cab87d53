// Quotas that change while sequences sleep.

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
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<std::int64_t> slots,
                              store_->plan_quota(tier, bytes));
  SLACKWATER_RETURN_IF_ERROR(residency_->check_fits(tier, slots));
  wait_for_last_uses();
  residency_->tier_will_change(tier);
  const RemovalScope scope(removal_cause_, RemovalCause::kQuota);
  Result<void> changed = residency_->vacate(tier, slots);
  if (changed.has_value()) changed = store_->set_quota(tier, bytes);
  residency_->tier_has_changed();
  clean_up();
  return changed;
}

}  // namespace slackwater::cache
