#ifndef SLACKWATER_CACHE_RESIDENCY_H_
#define SLACKWATER_CACHE_RESIDENCY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/eviction_queue.h"
#include "cache/page_run.h"
#include "cache/statistics_book.h"
#include "slackwater/base/error.h"
#include "slackwater/base/mutant.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

// Slots on the host over which pages change places, per pool group.
inline constexpr std::int32_t kSwapSlots = 4;

// Whose run it is: that of a layer group of a tree node or of a sequence.
struct RunKey {
  enum class Owner : std::uint16_t { kNode, kSequence };

  Owner owner = Owner::kNode;
  std::uint16_t group = 0;
  std::uint32_t index = 0;

  std::uint64_t packed() const {
    return std::uint64_t{static_cast<std::uint16_t>(owner)} << 48 | std::uint64_t{group} << 32 |
           index;
  }
  static RunKey unpack(std::uint64_t bits) {
    return {static_cast<Owner>(bits >> 48), static_cast<std::uint16_t>(bits >> 32),
            static_cast<std::uint32_t>(bits)};
  }
};

// What Residency asks of those who own runs.
class RunOwners {
 public:
  virtual ~RunOwners() = default;

  // Null when it is gone.
  virtual PageRun* find_run(const RunKey& key) = 0;
  // A page that nobody needs leaves the last tier: the owner forgets it, and whatever is of no use
  // without it. CHECK: it is not there afterwards.
  virtual void drop_page(const RunKey& key, std::size_t index) = 0;
  // A page has lost its bytes, and somebody holds it: its slot is wanted, and it is no more.
  virtual void lose_page(const RunKey& key, std::size_t index) = 0;
  // Whose page it is, before it goes to disk.
  virtual Certificate certificate(const RunKey& key, std::size_t index) = 0;

  // A page of a tree node has come to its run, is about to leave it, or lies on another tier now;
  // told after tell_of_pages().
  virtual void page_stored(const RunKey& /*key*/, std::size_t /*index*/) {}
  virtual void page_removed(const RunKey& /*key*/, std::size_t /*index*/) {}
  virtual void page_moved(const RunKey& /*key*/, std::size_t /*index*/, Tier /*from*/) {}
};

// Which pages lie on which tier, who needs them, and who leaves when room is wanted.
//
// Pages are locked (on the device), held (on any tier) or droppable. What is not locked stands in
// the queue of its pool and tier, unless it is held and there is no colder tier. Whoever leaves the
// device goes to the host as far as there is room, or others there that can make some; from there
// to the disk; and what leaves the last tier is dropped.
//
// Everything that needs room is planned first, over all pools and tiers, and refused before
// anything has changed; then it is applied, coldest tier first.
//
// Source: kvcm_v2.md 1.2 and 3.11.
// Invariants (audit_run, check_invariants):
//   I1  num_on counts a run's pages on each tier; num_evictable those of them that may leave it.
//   I2  a run stands in a tier's queue exactly while some of its pages may leave that tier.
//   I3  the evictable pages of a pool are the sum over its runs, and so are pinned pages.
// Ownership: owns the queues; pages are the store's, runs their owners'.
// Threads: one.
// Errors: kResourceExhausted where even all that may leave is not enough: nothing has changed.
// Cost: pinning O(1); making room O(pages that leave), no heap allocation after warm-up where they
// are dropped.
class Residency {
 public:
  // With `guarantees_suspend`, nothing is pinned beyond what the host can take.
  Residency(storage::TieredStore& store, std::size_t num_groups, RunOwners& owners,
            bool guarantees_suspend);

  storage::TieredStore& store() { return store_; }
  const storage::TieredStore& store() const { return store_; }

  // Runs. A page that is set, moved or taken must have its pins at that time.
  void page_added(const RunKey& key, PageRun& run, std::size_t index);
  // `count` new pages on the device, at the end of a locked run.
  void pages_allocated(PageRun& run, std::int32_t count);
  // Gives up the pages of a locked run at and past `num_left`. CHECK: they are on the device.
  void release_tail(PageRun& run, std::size_t num_left);
  // The page is its owner's again, and null in the run.
  PageId take_page(const RunKey& key, PageRun& run, std::size_t index);
  void pin_page(const RunKey& key, PageRun& run, std::size_t index, Pins change);
  void pin_whole(const RunKey& key, PageRun& run, Pins change);
  // After a split: the front has taken pages of the rest, and leaves after it.
  void run_was_split(const RunKey& front_key, PageRun& front, PageRun& rest);
  // Takes an emptied run out of the books.
  void forget_run(PageRun& run);

  // An attempt: pins that change in it and take runs out of queues can change back, and then the
  // order is as it was before. It stands once recall() has found room, and ends with
  // end_attempt().
  void begin_attempt() { is_attempt_ = true; }
  void end_attempt();

  // Room for `needed` [layer groups] new pages on the device, which will be pinned, or a refusal.
  Result<void> make_room(std::span<const std::int32_t> needed);
  // The pages of locked runs that lie elsewhere come to the device, where there must also be room
  // for `needed` others. When all tiers are full they change places with what may leave the
  // device, a few at a time, by way of slots on the host, or on the disk where there is no host,
  // that are kept free for that.
  struct PageRef {
    RunKey key;
    PageId page;
    std::size_t index = 0;  // in its run
  };
  Result<void> recall(std::span<const PageRef> pages, std::span<const std::int32_t> needed);
  // The same, up to a tier: pages of locked runs that lie colder come there.
  Result<void> prefetch(std::span<const PageRef> pages, Tier tier);

  // Slots that tiers are to have [tiers][pool groups]; empty for a tier that stays as it is.
  using TierSlots = std::array<std::vector<std::int64_t>, kNumTiers>;
  // Who leaves its tier when they have so many, and where it goes; none is locked.
  Result<void> plan_tiers(const TierSlots& slots);
  // Whoever has to leave a tier does. Colder ones have what was planned for them by then.
  Result<void> leave(Tier tier);
  // Whether what is pinned would still fit a host of so many slots, where that is guaranteed.
  Result<void> check_fits(Tier tier, std::span<const std::int64_t> num_slots) const;
  // Slots of a tier come or go in between.
  void tier_will_change(Tier tier);
  void tier_has_changed();

  std::int32_t num_evictable(Tier tier, std::size_t pool) const {
    return evictable_[index_of(tier)][pool];
  }
  Tier last_tier() const { return last_tier_; }
  // Whether everything that is pinned, on whatever tier, fits the host at once: then whoever is
  // suspended can always leave the device, and come back. True without a guarantee.
  bool fits_host() const;
  bool may_leave(const Pins& pins, Tier tier) const {
    if (SLACKWATER_MUTANT(held_page_is_dropped)) return pins.locks == 0;
    return pins.locks == 0 && (pins.holds == 0 || tier != last_tier_);
  }

  // A page that nobody needs is about to go.
  void note_dropped(LayerGroupId group, Tier from);
  std::int64_t num_dropped() const { return num_dropped_; }
  // Told of what moves and is dropped; null: nobody.
  void set_book(StatisticsBook* book) { book_ = book; }

  // From now on owners are told what becomes of the pages of the tree.
  void tell_of_pages() { tells_of_pages_ = true; }

  std::string describe() const;  // lines for people
  void audit_run(const RunKey& key, const PageRun& run) const;
  // `num_pinned` [layer groups]: pages with pins, counted by the owners.
  void check_invariants(std::span<const std::int32_t> num_pinned) const;

 private:
  struct Victim {
    RunKey key;
    std::uint32_t index = 0;
    PageId page;
    Priority priority = 0;
    bool is_held = false;
    std::optional<Tier> to;  // nothing: dropped
    bool is_done = false;
    std::uint32_t arrival = 0;  // at the tier that is planned
  };

  std::size_t pool_of(Tier tier, LayerGroupId group) const {
    return pool_of_[index_of(tier)][index_of(group)];
  }
  std::optional<Tier> colder(Tier tier) const;
  void reserve_swap_slots();
  void change_pinned(const PageRun& run, std::int32_t change);
  Result<void> check_guarantee(std::span<const std::int32_t> more) const;
  std::string room_text(Tier tier, std::size_t pool) const;
  std::span<std::int32_t> device_slots(std::span<const std::int32_t> needed);
  void change_evictable(const RunKey& key, PageRun& run, Tier tier, std::int32_t change);
  void attempt_stands();
  std::int32_t pick(Tier tier, std::size_t pool, std::int32_t wanted);
  std::int32_t pick_of_run(Tier tier, const RunKey& key, const PageRun& run, std::int32_t wanted);
  Result<void> plan(std::span<const std::int32_t> needed,
                    std::span<const std::int32_t> leaving_host,
                    std::span<const std::int32_t> leaving_disk);
  Result<void> plan_below(Tier from, std::span<const std::int32_t> leaving_host,
                          std::span<const std::int32_t> leaving_disk);
  std::int64_t num_occupied(Tier tier, std::size_t pool) const;
  void count_disk_swap_slots();
  Result<void> plan_tier(Tier tier, std::vector<Victim*>& arriving,
                         std::span<const std::int32_t> leaving);
  Result<void> plan_change(Tier tier, std::vector<Victim*>& arriving,
                           std::span<const std::int64_t> num_slots);
  Result<void> place_arriving(Tier tier, std::vector<Victim*>& arriving,
                              std::vector<std::int32_t>& room);
  std::int32_t num_arriving(Tier tier, std::size_t pool, std::span<Victim* const> arriving) const;
  Result<void> apply();
  void drop_victims(Tier tier);
  Result<void> move_victims(Tier from, Tier to);
  Result<std::int32_t> move_some_victims(Tier from, Tier to, bool uses_swap_slots);
  Result<std::int32_t> bring_some(std::vector<PageRef>& pages, Tier to);
  static constexpr std::size_t kNoSwap = static_cast<std::size_t>(-1);

  static void add_slots(std::int32_t& sum, std::int32_t more);
  std::int32_t room_on(Tier tier, std::size_t pool) const;
  Result<void> change_places(std::vector<PageRef> pages);
  Result<void> change_some_places(std::vector<PageRef> pages);
  Result<std::int32_t> park_some_victims();
  bool has_victims_left() const;
  Result<void> plan_host(std::span<const std::int32_t> coming,
                         std::span<const std::int32_t> leaving_disk);
  Result<void> check_can_exchange(std::span<const std::int32_t> coming) const;
  Result<void> exchange_with_disk(std::vector<PageRef> pages);
  void give_up(const Victim& victim);
  Result<void> migrate(std::vector<Victim> victims, Tier from, Tier to, std::size_t swap_pool);
  bool is_told_of(const RunKey& key) const {
    return tells_of_pages_ && key.owner == RunKey::Owner::kNode;
  }
  void note_last_use(const RunKey& key, const PageRun& run, PageId page);
  void moved(const RunKey& key, PageRun& run, std::size_t index, Tier from, Tier to);
  static std::size_t find_page(const PageRun& run, PageId page, std::size_t guess);

  storage::TieredStore& store_;
  RunOwners& owners_;
  Tier last_tier_ = Tier::kDevice;
  std::array<std::vector<std::size_t>, kNumTiers> pool_of_;        // [tiers][layer groups]
  std::array<std::vector<EvictionQueue>, kNumTiers> queues_;       // [tiers][pool groups]
  std::array<std::vector<std::int32_t>, kNumTiers> evictable_;     // likewise
  std::array<std::vector<Victim>, kNumTiers> victims_;             // of the plan, by tier
  std::vector<storage::TieredStore::HostReservation> swap_slots_;  // [pool groups of the host]
  std::vector<std::int32_t> disk_swap_slots_;                      // the same where there is none
  std::vector<std::int32_t> num_pinned_;                           // likewise, of all tiers
  const bool guarantees_suspend_;
  struct Hidden {
    Tier tier = Tier::kDevice;
    std::size_t pool = 0;
    QueuePlace place;
  };
  bool is_attempt_ = false;
  std::vector<Hidden> hidden_;  // by the attempt, in that order
  std::vector<PageId> moving_;
  std::vector<std::int32_t> device_slots_;
  std::int64_t num_dropped_ = 0;
  bool tells_of_pages_ = false;
  StatisticsBook* book_ = nullptr;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_RESIDENCY_H_
