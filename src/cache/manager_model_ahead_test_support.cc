// What is said ahead of time: pages that will be needed, and pages that will not.

#include <algorithm>
#include <utility>

#include "cache/manager_model_test_support.h"

namespace slackwater::cache {

using storage::Tier;
using Tokens = std::vector<TokenId>;

// Whoever is refused moves nothing: no tier has fewer free slots than before. Some may have more,
// because a look at the tree finds out what was lost, and what is of no use any more.
void KvCacheManagerModel::check_prefetched(const Result<void>& brought,
                                           std::span<const std::int32_t> room) {
  if (brought.has_value()) {
    const std::vector<std::int32_t> now = all_room(*manager_);
    tally_.prefetched += !std::equal(now.begin(), now.end(), room.begin());
    return;
  }
  ++tally_.prefetch_refused;
  ASSERT_TRUE(brought.error().code() == ErrorCode::kResourceExhausted || num_faults_ > 0)
      << brought.error().text();
  if (num_faults_ > 0) return;
  const std::vector<std::int32_t> after = all_room(*manager_);
  for (std::size_t i = 0; i < after.size(); i += 3) {
    ASSERT_EQ(after[i], room[i]) << brought.error().text();
    ASSERT_GE(after[i + 1], room[i + 1]) << brought.error().text();
  }
}

void KvCacheManagerModel::prefetch() {
  const Tier tier = static_cast<Tier>(below(3));
  if (below(3) == 0) return prefetch_prompt(tier);
  Model* const model = random_sequence();
  if (model == nullptr) return;
  const bool is_refused =
      model->sequence.status() == SequenceStatus::kActive || manager_->quota(tier) == 0;
  const Before before = look_at(*model);
  const std::vector<std::int32_t> room = all_room(*manager_);
  const auto brought = model->sequence.prefetch(tier);
  Before now = look_at(*model);
  if (!is_refused) ignore_moves(now, before);
  ASSERT_EQ(now, before);
  if (is_refused) {
    ASSERT_EQ(brought.error().code(), ErrorCode::kFailedPrecondition) << brought.error().text();
    return;
  }
  check_prefetched(brought, room);
  if (!brought.has_value() && brought.error().code() == ErrorCode::kDataLoss) drop(*model);
}

void KvCacheManagerModel::prefetch_prompt(Tier tier) {
  const Tokens tokens = random_tokens(60);
  const std::vector<std::int32_t> room = all_room(*manager_);
  const auto found = manager_->prefetch({}, tokens, tier);
  if (manager_->quota(tier) == 0) {
    ASSERT_EQ(found.error().code(), ErrorCode::kFailedPrecondition) << found.error().text();
    return;
  }
  if (!found.has_value()) {
    return check_prefetched(tl::unexpected<Error>(found.error()), room);
  }
  check_match({}, tokens, *found);
  check_prefetched({}, room);
}

// Plans are kept for a while; those who made them go on, or end.
void KvCacheManagerModel::plan_drop() {
  Model* const model = random_sequence();
  if (plans_.size() >= 4 || below(3) == 0 || model == nullptr) return drop_plan();
  plan_drop_of(*model);
  if (model->is_stopped && below(2) == 0) drop(*model);
}

void KvCacheManagerModel::plan_drop_of(Model& model) {
  auto planned = model.sequence.plan_drop();
  if (!model.is_stopped) {
    ASSERT_EQ(planned.error().code(), ErrorCode::kFailedPrecondition) << planned.error().text();
    return;
  }
  ASSERT_TRUE(planned.has_value()) << planned.error().text();
  if (!planned->has_value()) return;
  ++tally_.plans;
  plans_.push_back(**std::move(planned));
}

// By the call or by the end of the handle, in any order.
void KvCacheManagerModel::drop_plan() {
  if (plans_.empty()) return;
  const auto at = plans_.begin() + static_cast<std::ptrdiff_t>(below(plans_.size()));
  const std::int64_t before = manager_->counters().pages_dropped;
  if (below(2) == 0) {
    ASSERT_TRUE(at->drop().has_value());
    ASSERT_EQ(at->drop().error().code(), ErrorCode::kFailedPrecondition);
  }
  plans_.erase(at);
  tally_.plans_dropped += manager_->counters().pages_dropped > before;
}

}  // namespace slackwater::cache
