#ifndef SLACKWATER_CACHE_DROP_PLANS_H_
#define SLACKWATER_CACHE_DROP_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/block_tree.h"
#include "cache/page_run.h"

namespace slackwater::cache {

// Which pages of the tree are planned to be dropped, by how many plans, and where they are. Beside
// the tree, so that whoever plans nothing pays for nothing.
//
// Source: kvcm_v2.md 3.17.
// Invariants (check_invariants, O(pages named); that they live is for the cache to see):
//   I1  a page counts the plans that name it, one at least.
// Ownership: numbers. Whoever moves a page to another node, or releases it, says so.
// Threads: one at a time.
// Errors: none. CHECK: a plan that is taken is there.
// Cost: a hash table; O(1) a page.
class DropPlans {
 public:
  // A page of a layer group, in the run of a node.
  struct Place {
    PageId page;
    NodeIndex node = kNoNode;
    std::size_t group = 0;
  };

  // Whether no page is named.
  bool empty() const { return named_.empty(); }
  std::size_t num_plans() const { return plans_.size(); }

  // A plan that names some pages, each once. Returns its number.
  std::uint64_t add(std::span<const Place> places);
  // Ends a plan. Returns those of its pages that no plan names any more, in the order in which they
  // were named.
  std::vector<Place> take(std::uint64_t plan);

  // A page has gone over to another node; it may be one that nobody has named.
  void note_moved(PageId page, NodeIndex node);
  // A page is no more; likewise.
  void forget(PageId page) { named_.erase(key(page)); }

  // In no particular order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& entry : named_) visit(entry.second.place);
  }
  void check_invariants() const;

 private:
  struct Named {
    Place place;
    std::int32_t num_plans = 0;
  };

  static std::uint64_t key(PageId page) { return std::uint64_t{page.life} << 32 | page.index; }

  std::unordered_map<std::uint64_t, Named> named_;  // by page
  std::map<std::uint64_t, std::vector<PageId>> plans_;
  std::uint64_t next_plan_ = 1;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_DROP_PLANS_H_
