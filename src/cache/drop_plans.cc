#include "cache/drop_plans.h"

#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

std::uint64_t DropPlans::add(std::span<const Place> places) {
  std::vector<PageId>& pages = plans_[next_plan_];
  for (const Place& place : places) {
    Named& named = named_[key(place.page)];
    named.place = place;
    if (named.num_plans == 0 || !SLACKWATER_MUTANT(plan_counts_once)) ++named.num_plans;
    pages.push_back(place.page);
  }
  return next_plan_++;
}

std::vector<DropPlans::Place> DropPlans::take(std::uint64_t plan) {
  const auto at = plans_.find(plan);
  SLACKWATER_CHECK(at != plans_.end(), "plan {} is not there", plan);
  std::vector<Place> last;
  for (const PageId page : at->second) {
    const auto named = named_.find(key(page));
    if (named == named_.end() || --named->second.num_plans > 0) continue;
    last.push_back(named->second.place);
    named_.erase(named);
  }
  plans_.erase(at);
  return last;
}

void DropPlans::note_moved(PageId page, NodeIndex node) {
  const auto named = named_.find(key(page));
  if (named != named_.end()) named->second.place.node = node;
}

void DropPlans::check_invariants() const {
  std::unordered_map<std::uint64_t, std::int32_t> counted;
  for (const auto& [plan, pages] : plans_) {
    for (const PageId page : pages) {
      if (named_.contains(key(page))) ++counted[key(page)];
    }
  }
  for (const auto& [page, named] : named_) {
    SLACKWATER_CHECK(named.num_plans > 0 && named.num_plans == counted[page],
                     "I1: page {} is named by {} plans, {} counted", named.place.page.index,
                     counted[page], named.num_plans);
  }
}

}  // namespace slackwater::cache
