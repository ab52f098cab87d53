#include "cache/residency.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {
namespace {

constexpr std::array<Tier, kNumTiers> kTiers = {Tier::kDevice, Tier::kHost, Tier::kDisk};

void raise_end(PageRun& run, Tier tier, std::size_t index) {
  std::uint32_t& end = run.end_on[index_of(tier)];
  end = std::max(end, static_cast<std::uint32_t>(index + 1));
}

std::int32_t is_pinned(const Pins& pins) { return pins == Pins() ? 0 : 1; }

}  // namespace

// What is wanted may be more than there can be slots at all.
void Residency::add_slots(std::int32_t& sum, std::int32_t more) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  sum = static_cast<std::int32_t>(std::min(kMost, std::int64_t{sum} + more));
}

Residency::Residency(storage::TieredStore& store, std::size_t num_groups, RunOwners& owners,
                     bool guarantees_suspend)
    : store_(store),
      owners_(owners),
      guarantees_suspend_(guarantees_suspend && store.has_tier(Tier::kHost)) {
  for (const Tier tier : kTiers) {
    if (store.has_tier(tier)) last_tier_ = tier;
    const std::size_t pools = store.num_pool_groups(tier);
    queues_[index_of(tier)].resize(pools);
    evictable_[index_of(tier)].resize(pools);
    for (std::size_t g = 0; g < num_groups; ++g) {
      pool_of_[index_of(tier)].push_back(
          store.pool_group(tier, LayerGroupId(static_cast<std::int32_t>(g))));
    }
  }
  num_pinned_.resize(store.num_pool_groups(Tier::kHost));
  swap_slots_.resize(num_pinned_.size());
  disk_swap_slots_.resize(store.num_pool_groups(Tier::kDisk));
  tier_has_changed();
}

void Residency::count_disk_swap_slots() {
  for (std::size_t g = 0; g < pool_of_[0].size(); ++g) {
    const LayerGroupId group(static_cast<std::int32_t>(g));
    disk_swap_slots_[pool_of(Tier::kDisk, group)] =
        std::min(kSwapSlots, store_.pool_stats(Tier::kDisk, group).num_slots / 2);
  }
}

// As many as there were, or as there is room for: half of a small pool at most.
void Residency::reserve_swap_slots() {
  for (std::size_t g = pool_of_[0].size(); g-- > 0;) {
    const LayerGroupId group(static_cast<std::int32_t>(g));
    auto& slots = swap_slots_[pool_of(Tier::kHost, group)];
    const std::int32_t wanted =
        std::min(kSwapSlots, store_.pool_stats(Tier::kHost, group).num_slots / 2);
    if (slots.num_pages() >= wanted) continue;
    const std::int32_t free =
        slots.num_pages() + store_.num_usable(Tier::kHost, pool_of(Tier::kHost, group));
    slots.cancel();
    auto again = store_.reserve_host(group, std::min(wanted, free));
    SLACKWATER_CHECK(again.has_value(), "free slots that cannot be reserved: {}",
                     again.error().text());
    slots = *std::move(again);
  }
}

// Slots of a tier that whoever leaves another one may take.
std::int32_t Residency::room_on(Tier tier, std::size_t pool) const {
  const std::int32_t free = store_.num_usable(tier, pool);
  return tier == Tier::kDisk ? std::max(0, free - disk_swap_slots_[pool]) : free;
}

void Residency::change_pinned(const PageRun& run, std::int32_t change) {
  num_pinned_[pool_of(Tier::kHost, run.group)] += change;
}

bool Residency::fits_host() const { return check_guarantee({}).has_value(); }

Result<void> Residency::check_guarantee(std::span<const std::int32_t> more) const {
  if (!guarantees_suspend_ || SLACKWATER_MUTANT(guarantee_forgets_the_host)) return {};
  for (std::size_t g = 0; g < pool_of_[0].size(); ++g) {
    const LayerGroupId group(static_cast<std::int32_t>(g));
    const std::size_t pool = pool_of(Tier::kHost, group);
    const std::int32_t room =
        store_.pool_stats(Tier::kHost, group).num_slots - swap_slots_[pool].num_pages();
    std::int32_t pinned = num_pinned_[pool];
    for (std::size_t other = 0; other < more.size(); ++other) {
      if (pool_of_[index_of(Tier::kHost)][other] == pool) add_slots(pinned, more[other]);
    }
    if (pinned <= room) continue;
    return make_error(
        ErrorCode::kResourceExhausted,
        "{} pages in use would not fit the {} slots of pool group {} of the host when "
        "all are suspended; give the host more",
        pinned, room, pool);
  }
  return {};
}

// By pool group; valid until the next call.
std::span<std::int32_t> Residency::device_slots(std::span<const std::int32_t> needed) {
  std::vector<std::int32_t>& slots = device_slots_;
  slots.assign(queues_[index_of(Tier::kDevice)].size(), 0);
  for (std::size_t g = 0; g < needed.size(); ++g) {
    add_slots(slots[pool_of_[index_of(Tier::kDevice)][g]], needed[g]);
  }
  return slots;
}

std::optional<Tier> Residency::colder(Tier tier) const {
  for (std::size_t t = index_of(tier) + 1; t < kNumTiers; ++t) {
    if (store_.has_tier(kTiers[t])) return kTiers[t];
  }
  return std::nullopt;
}

void Residency::change_evictable(const RunKey& key, PageRun& run, Tier tier, std::int32_t change) {
  if (change == 0) return;
  const std::size_t t = index_of(tier);
  const std::size_t pool = pool_of(tier, run.group);
  evictable_[t][pool] += change;
  run.num_evictable[t] += change;
  if (run.num_evictable[t] == 0 && is_attempt_) {
    queues_[t][pool].hide(run.places[t]);
    hidden_.push_back({tier, pool, run.places[t]});
  } else if (run.num_evictable[t] == 0) {
    queues_[t][pool].remove(run.places[t]);
    run.places[t] = {};
  } else if (run.places[t].is_null()) {
    run.places[t] = queues_[t][pool].push(key.packed(), run.priority);
  }
}

void Residency::end_attempt() {
  if (!is_attempt_) return;
  is_attempt_ = false;
  for (auto hidden = hidden_.rbegin(); hidden != hidden_.rend(); ++hidden) {
    queues_[index_of(hidden->tier)][hidden->pool].restore(hidden->place);
  }
  hidden_.clear();
}

void Residency::attempt_stands() {
  is_attempt_ = false;
  for (const Hidden& hidden : hidden_) {
    EvictionQueue& queue = queues_[index_of(hidden.tier)][hidden.pool];
    PageRun& run = *owners_.find_run(RunKey::unpack(queue.subject(hidden.place)));
    queue.remove_hidden(hidden.place);
    run.places[index_of(hidden.tier)] = {};
  }
  hidden_.clear();
}

void Residency::page_added(const RunKey& key, PageRun& run, std::size_t index) {
  const Tier tier = store_.tier(run.pages[index]);
  ++run.num_on[index_of(tier)];
  raise_end(run, tier, index);
  if (may_leave(run.pins_of(index), tier)) change_evictable(key, run, tier, 1);
  change_pinned(run, is_pinned(run.pins_of(index)));
  if (!store_.ready(run.pages[index]).is_null()) run.may_be_lost = true;
  if (is_told_of(key)) owners_.page_stored(key, index);
}

void Residency::pages_allocated(PageRun& run, std::int32_t count) {
  if (count > 0) raise_end(run, Tier::kDevice, run.pages.size() - 1);
  run.num_on[index_of(Tier::kDevice)] += count;
  change_pinned(run, count);
}

void Residency::release_tail(PageRun& run, std::size_t num_left) {
  SLACKWATER_CHECK(run.whole.locks > 0, "the end of a run that is not locked");
  const bool is_in_use = !run.last_use.is_done();
  moving_.clear();
  for (std::size_t i = run.pages.size(); i-- > num_left;) {
    if (is_null(run.pages[i])) continue;
    moving_.push_back(run.pages[i]);
    if (is_in_use) store_.note_read(run.pages[i], run.last_use);
  }
  const auto count = static_cast<std::int32_t>(moving_.size());
  run.num_on[index_of(Tier::kDevice)] -= count;
  change_pinned(run, -count);
  store_.release(moving_);
  run.pages.resize(num_left);
}

PageId Residency::take_page(const RunKey& key, PageRun& run, std::size_t index) {
  if (is_told_of(key)) owners_.page_removed(key, index);
  const PageId page = std::exchange(run.pages[index], PageId());
  const Tier tier = store_.tier(page);
  --run.num_on[index_of(tier)];
  if (may_leave(run.pins_of(index), tier)) change_evictable(key, run, tier, -1);
  change_pinned(run, -is_pinned(run.pins_of(index)));
  if (tier != Tier::kDisk && !run.last_use.is_done()) store_.note_read(page, run.last_use);
  return page;
}

void Residency::pin_page(const RunKey& key, PageRun& run, std::size_t index, Pins change) {
  Pins& pins = run.pins[index];
  const Pins before = pins;
  pins.locks += change.locks;
  pins.holds += change.holds;
  SLACKWATER_CHECK(pins.locks >= 0 && pins.holds >= 0, "{} locks and {} holds of a page",
                   pins.locks, pins.holds);
  if (is_null(run.pages[index])) return;
  const Tier tier = store_.tier(run.pages[index]);
  const int was = may_leave(before, tier) ? 1 : 0;
  const int is = may_leave(pins, tier) ? 1 : 0;
  change_evictable(key, run, tier, is - was);
  change_pinned(run, is_pinned(pins) - is_pinned(before));
}

void Residency::pin_whole(const RunKey& key, PageRun& run, Pins change) {
  const Pins before = run.whole;
  run.whole.locks += change.locks;
  run.whole.holds += change.holds;
  SLACKWATER_CHECK(run.whole.locks >= 0 && run.whole.holds >= 0, "{} locks and {} holds of a run",
                   run.whole.locks, run.whole.holds);
  for (const Tier tier : kTiers) {
    const bool was = may_leave(before, tier);
    const bool is = may_leave(run.whole, tier);
    const std::int32_t pages = run.num_on[index_of(tier)];
    if (was != is) change_evictable(key, run, tier, is ? pages : -pages);
    change_pinned(run, pages * (is_pinned(run.whole) - is_pinned(before)));
  }
  // Whoever is let go by its last user has been used just now; in an attempt that is refused nobody
  // has.
  const bool is_let_go = run.whole == Pins() && before != Pins() && !is_attempt_;
  for (std::size_t t = 0; t < kNumTiers && is_let_go; ++t) {
    if (run.places[t].is_null()) continue;
    EvictionQueue& queue = queues_[t][pool_of_[t][index_of(run.group)]];
    queue.remove(run.places[t]);
    run.places[t] = queue.push(key.packed(), run.priority);
  }
}

void Residency::run_was_split(const RunKey& front_key, PageRun& front, PageRun& rest) {
  for (std::size_t i = 0; i < front.pages.size(); ++i) {
    if (is_null(front.pages[i])) continue;
    const Tier tier = store_.tier(front.pages[i]);
    const std::size_t t = index_of(tier);
    ++front.num_on[t];
    raise_end(front, tier, i);
    --rest.num_on[t];
    if (!may_leave(front.pins_of(i), tier)) continue;
    ++front.num_evictable[t];
    --rest.num_evictable[t];
  }
  for (std::size_t t = 0; t < kNumTiers; ++t) {
    if (rest.places[t].is_null()) continue;
    EvictionQueue& queue = queues_[t][pool_of_[t][index_of(rest.group)]];
    if (front.num_evictable[t] > 0) {
      front.places[t] = queue.push_after(rest.places[t], front_key.packed());
    }
    if (rest.num_evictable[t] > 0) continue;
    queue.remove(rest.places[t]);
    rest.places[t] = {};
  }
}

void Residency::forget_run(PageRun& run) {
  SLACKWATER_CHECK(run.num_pages() == 0, "a run with {} pages is forgotten", run.num_pages());
  for (const QueuePlace& place : run.places) {
    SLACKWATER_CHECK(place.is_null(), "I2: an empty run stands in a queue");
  }
}

// Adds up to `wanted` pages of a run that may leave the tier to the plan, in the order in which
// they leave.
std::int32_t Residency::pick_of_run(Tier tier, const RunKey& key, const PageRun& run,
                                    std::int32_t wanted) {
  const std::int32_t goal = std::min(wanted, run.num_evictable[index_of(tier)]);
  std::int32_t found = 0;
  // Pages at the end that lie elsewhere are not looked at again.
  std::uint32_t& end = run.end_on[index_of(tier)];
  end = std::min(end, static_cast<std::uint32_t>(run.pages.size()));
  while (!run.is_by_position && end > 0 &&
         (is_null(run.pages[end - 1]) || store_.tier(run.pages[end - 1]) != tier)) {
    --end;
  }
  const std::size_t count = run.is_by_position ? run.pages.size() : end;
  for (std::size_t step = 0; step < count && found < goal; ++step) {
    const std::size_t i = run.is_by_position ? step : count - 1 - step;
    const PageId page = run.pages[i];
    if (is_null(page) || store_.tier(page) != tier || !may_leave(run.pins_of(i), tier)) continue;
    victims_[index_of(tier)].push_back({key, static_cast<std::uint32_t>(i), page, run.priority,
                                        run.pins_of(i).holds > 0, std::nullopt});
    ++found;
    // The next one to leave will be asked for soon, and lies far away: a miss costs more than all
    // else that is done for it.
    if (!run.is_by_position && i > 1) {
      store_.prefetch_slot(run.pages[i - 1]);
      store_.prefetch(run.pages[i - 2]);
    }
  }
  SLACKWATER_CHECK(found == goal, "I1: {} of {} pages that may leave the {}", found, goal,
                   storage::to_string(tier));
  return found;
}

// Adds up to `wanted` pages of a pool to the plan, the first to leave first.
std::int32_t Residency::pick(Tier tier, std::size_t pool, std::int32_t wanted) {
  const EvictionQueue& queue = queues_[index_of(tier)][pool];
  std::int32_t found = 0;
  for (QueuePlace place = queue.first(); !place.is_null() && found < wanted;
       place = queue.next(place)) {
    const RunKey key = RunKey::unpack(queue.subject(place));
    const PageRun* run = owners_.find_run(key);
    SLACKWATER_CHECK(run != nullptr, "I2: a run that is gone stands in a queue");
    found += pick_of_run(tier, key, *run, wanted - found);
  }
  return found;
}

Result<void> Residency::plan(std::span<const std::int32_t> needed,
                             std::span<const std::int32_t> leaving_host,
                             std::span<const std::int32_t> leaving_disk) {
  for (auto& victims : victims_) victims.clear();
  for (std::size_t pool = 0; pool < needed.size(); ++pool) {
    const std::int32_t free = store_.num_usable(Tier::kDevice, pool);
    const std::int32_t missing = needed[pool] - free;
    if (missing <= 0) continue;
    const std::int32_t evictable = evictable_[index_of(Tier::kDevice)][pool];
    if (evictable < missing) {
      return make_error(ErrorCode::kResourceExhausted,
                        "need {} slots of pool group {} of the device, {} free + {} evictable",
                        needed[pool], pool, free, evictable);
    }
    pick(Tier::kDevice, pool, missing);
  }
  return plan_below(Tier::kDevice, leaving_host, leaving_disk);
}

// Where the victims of a tier go, and for whom.
Result<void> Residency::plan_below(Tier from, std::span<const std::int32_t> leaving_host,
                                   std::span<const std::int32_t> leaving_disk) {
  if (victims_[index_of(from)].empty() || last_tier_ == from) return {};
  std::vector<Victim*> arriving;
  for (Victim& victim : victims_[index_of(from)]) arriving.push_back(&victim);
  for (std::optional<Tier> tier = colder(from); tier.has_value(); tier = colder(*tier)) {
    SLACKWATER_RETURN_IF_ERROR(
        plan_tier(*tier, arriving, *tier == Tier::kHost ? leaving_host : leaving_disk));
  }
  return {};
}

// Places what arrives at a tier, or lets it go on to the next: afterwards `arriving` is what
// arrives there. What is left at the end is dropped.
Result<void> Residency::plan_tier(Tier tier, std::vector<Victim*>& arriving,
                                  std::span<const std::int32_t> leaving) {
  const std::size_t t = index_of(tier);
  std::vector<std::int32_t> room(queues_[t].size());
  for (std::size_t pool = 0; pool < room.size(); ++pool) {
    room[pool] = room_on(tier, pool) + (leaving.empty() ? 0 : leaving[pool]);
    const std::int32_t count = num_arriving(tier, pool, arriving);
    if (count > room[pool]) room[pool] += pick(tier, pool, count - room[pool]);
  }
  return place_arriving(tier, arriving, room);
}

std::int32_t Residency::num_arriving(Tier tier, std::size_t pool,
                                     std::span<Victim* const> arriving) const {
  return static_cast<std::int32_t>(
      std::count_if(arriving.begin(), arriving.end(), [&](const Victim* victim) {
        return pool_of(tier, LayerGroupId(victim->key.group)) == pool;
      }));
}

// In slots for which there is room, or which others leave that are in the plan already.
Result<void> Residency::place_arriving(Tier tier, std::vector<Victim*>& arriving,
                                       std::vector<std::int32_t>& room) {
  // Held ones first, then by priority; of equals those that came from a warmer tier first.
  for (std::size_t i = 0; i < arriving.size(); ++i) {
    arriving[i]->arrival = static_cast<std::uint32_t>(i);
  }
  std::sort(arriving.begin(), arriving.end(), [](const Victim* a, const Victim* b) {
    return std::tuple(b->is_held, b->priority, a->arrival) <
           std::tuple(a->is_held, a->priority, b->arrival);
  });
  std::vector<Victim*> going_on;
  for (Victim* victim : arriving) {
    std::int32_t& left = room[pool_of(tier, LayerGroupId(victim->key.group))];
    if (left > 0) {
      --left;
      victim->to = tier;
    } else if (victim->is_held && tier == last_tier_) {
      return make_error(ErrorCode::kResourceExhausted,
                        "a page that is held has to leave the device, and pool group {} of the {} "
                        "is full of pages that stay",
                        pool_of(tier, LayerGroupId(victim->key.group)), storage::to_string(tier));
    } else {
      going_on.push_back(victim);
    }
  }
  for (Victim& victim : victims_[index_of(tier)]) going_on.push_back(&victim);
  arriving = std::move(going_on);
  return {};
}

// Coldest tier first, so that what arrives finds room.
Result<void> Residency::apply() {
  for (const Tier tier : {Tier::kDisk, Tier::kHost, Tier::kDevice}) {
    SLACKWATER_RETURN_IF_ERROR(leave(tier));
  }
  return {};
}

Result<void> Residency::leave(Tier tier) {
  if (victims_[index_of(tier)].empty()) return {};
  drop_victims(tier);
  if (tier == last_tier_) return {};
  SLACKWATER_RETURN_IF_ERROR(move_victims(tier, Tier::kDisk));
  return move_victims(tier, Tier::kHost);
}

// Where a page of the plan stands now: snapshots of a run move up when one of them leaves.
std::size_t Residency::find_page(const PageRun& run, PageId page, std::size_t guess) {
  if (guess < run.pages.size() && run.pages[guess] == page) return guess;
  const auto at = std::find(run.pages.begin(), run.pages.end(), page);
  SLACKWATER_CHECK(at != run.pages.end(), "a page of the plan is not in its run");
  return static_cast<std::size_t>(at - run.pages.begin());
}

void Residency::drop_victims(Tier tier) {
  for (Victim& victim : victims_[index_of(tier)]) {
    // Dropping one page takes those with it that are of no use any more.
    victim.is_done = !store_.is_alive(victim.page);
    if (victim.is_done) continue;
    note_last_use(victim.key, *owners_.find_run(victim.key), victim.page);
    const bool is_lost = store_.ready(victim.page).status() == device::EventStatus::kFailed;
    if (victim.to.has_value() && !is_lost) continue;
    victim.is_done = true;
    give_up(victim);
  }
}

void Residency::give_up(const Victim& victim) {
  const std::size_t index = find_page(*owners_.find_run(victim.key), victim.page, victim.index);
  if (victim.is_held) {
    owners_.lose_page(victim.key, index);
  } else {
    note_dropped(LayerGroupId(victim.key.group), store_.tier(victim.page));
    owners_.drop_page(victim.key, index);
  }
}

void Residency::note_dropped(LayerGroupId group, Tier from) {
  ++num_dropped_;
  if (book_ != nullptr) book_->page_dropped(group, from);
}

// The copy waits for whoever used the page last: a sequence may have written to a page of its own,
// and only read what is in the tree.
void Residency::note_last_use(const RunKey& key, const PageRun& run, PageId page) {
  if (run.last_use.is_done() && run.last_use.status() != device::EventStatus::kFailed) return;
  if (store_.tier(page) == Tier::kDisk) return;
  if (key.owner == RunKey::Owner::kSequence && !SLACKWATER_MUTANT(move_before_the_step_ends)) {
    store_.note_write(page, run.last_use);
  } else {
    store_.note_read(page, run.last_use);
  }
}

// Moves the victims of a list; over the swap slots of a pool group of the host, if one is named.
// Those that turn out to be lost give up their slots instead.
Result<void> Residency::migrate(std::vector<Victim> victims, Tier from, Tier to,
                                std::size_t swap_pool) {
  while (!victims.empty()) {
    moving_.clear();
    for (const Victim& victim : victims) {
      const PageRun& run = *owners_.find_run(victim.key);
      note_last_use(victim.key, run, victim.page);
      if (to == Tier::kDisk && store_.certificate(victim.page) == Digest128()) {
        const std::size_t index = find_page(run, victim.page, victim.index);
        store_.certify(victim.page, owners_.certificate(victim.key, index));
      }
      moving_.push_back(victim.page);
    }
    const Result<void> migrated = swap_pool == kNoSwap
                                      ? store_.migrate(moving_, to)
                                      : store_.migrate(moving_, swap_slots_[swap_pool]);
    if (migrated.has_value()) break;
    if (migrated.error().code() != ErrorCode::kDataLoss) return migrated;
    for (const Victim& victim : victims) {
      if (!store_.is_alive(victim.page)) continue;
      if (store_.ready(victim.page).status() == device::EventStatus::kFailed) give_up(victim);
    }
    std::erase_if(victims, [&](const Victim& victim) { return !store_.is_alive(victim.page); });
  }
  for (const Victim& victim : victims) {
    PageRun& run = *owners_.find_run(victim.key);
    moved(victim.key, run, find_page(run, victim.page, victim.index), from, to);
  }
  return {};
}

Result<void> Residency::move_victims(Tier from, Tier to) {
  std::vector<Victim> moving;
  for (Victim& victim : victims_[index_of(from)]) {
    if (victim.is_done || victim.to != to || !store_.is_alive(victim.page)) continue;
    victim.is_done = true;
    moving.push_back(victim);
  }
  return migrate(std::move(moving), from, to, kNoSwap);
}

void Residency::moved(const RunKey& key, PageRun& run, std::size_t index, Tier from, Tier to) {
  const Pins& pins = run.pins_of(index);
  raise_end(run, to, index);
  --run.num_on[index_of(from)];
  ++run.num_on[index_of(to)];
  if (may_leave(pins, from)) change_evictable(key, run, from, -1);
  if (may_leave(pins, to)) change_evictable(key, run, to, 1);
  run.may_be_lost = true;
  if (is_told_of(key)) owners_.page_moved(key, index, from);
  if (book_ != nullptr) book_->page_moved(run.group, from, to);
}

Result<void> Residency::make_room(std::span<const std::int32_t> needed) {
  SLACKWATER_RETURN_IF_ERROR(check_guarantee(needed));
  const std::span<std::int32_t> slots = device_slots(needed);
  bool has_room = true;
  for (std::size_t pool = 0; pool < slots.size(); ++pool) {
    has_room &= slots[pool] <= store_.num_usable(Tier::kDevice, pool);
  }
  if (has_room) return {};
  SLACKWATER_RETURN_IF_ERROR(plan(slots, {}, {}));
  return apply();
}

void Residency::audit_run(const RunKey& key, const PageRun& run) const {
  std::array<std::int32_t, kNumTiers> on = {};
  std::array<std::int32_t, kNumTiers> evictable = {};
  for (std::size_t i = 0; i < run.pages.size(); ++i) {
    if (is_null(run.pages[i])) continue;
    SLACKWATER_CHECK(store_.is_alive(run.pages[i]), "I1: page {} of a run is gone",
                     run.pages[i].index);
    const Tier tier = store_.tier(run.pages[i]);
    ++on[index_of(tier)];
    SLACKWATER_CHECK(run.is_by_position || i < run.end_on[index_of(tier)],
                     "I1: page {} on the {} is past the end {}", i, storage::to_string(tier),
                     run.end_on[index_of(tier)]);
    SLACKWATER_CHECK(run.pins_of(i).locks == 0 || tier == Tier::kDevice,
                     "I1: a locked page lies on the {}", storage::to_string(tier));
    if (may_leave(run.pins_of(i), tier)) ++evictable[index_of(tier)];
  }
  for (const Tier tier : kTiers) {
    const std::size_t t = index_of(tier);
    SLACKWATER_CHECK(on[t] == run.num_on[t] && evictable[t] == run.num_evictable[t],
                     "I1: {} of {} pages on the {} may leave, {} of {} counted", evictable[t],
                     on[t], storage::to_string(tier), run.num_evictable[t], run.num_on[t]);
    SLACKWATER_CHECK((evictable[t] > 0) == !run.places[t].is_null(),
                     "I2: {} pages may leave the {} and the place is {}", evictable[t],
                     storage::to_string(tier), run.places[t].index);
    if (run.places[t].is_null()) continue;
    const EvictionQueue& queue = queues_[t][pool_of_[t][index_of(run.group)]];
    SLACKWATER_CHECK(queue.subject(run.places[t]) == key.packed(), "I2: the place of another run");
  }
}

void Residency::check_invariants(std::span<const std::int32_t> num_pinned) const {
  std::vector<std::int32_t> pinned(num_pinned_.size());
  for (std::size_t g = 0; g < num_pinned.size(); ++g) {
    pinned[pool_of_[index_of(Tier::kHost)][g]] += num_pinned[g];
  }
  for (std::size_t pool = 0; pool < pinned.size(); ++pool) {
    SLACKWATER_CHECK(pinned[pool] == num_pinned_[pool], "I3: {} pinned pages, {} counted",
                     pinned[pool], num_pinned_[pool]);
  }
  for (const Tier tier : kTiers) {
    for (std::size_t pool = 0; pool < queues_[index_of(tier)].size(); ++pool) {
      const EvictionQueue& queue = queues_[index_of(tier)][pool];
      queue.check_invariants();
      std::int32_t sum = 0;
      for (QueuePlace place = queue.first(); !place.is_null(); place = queue.next(place)) {
        const PageRun* run = owners_.find_run(RunKey::unpack(queue.subject(place)));
        SLACKWATER_CHECK(run != nullptr && run->places[index_of(tier)] == place,
                         "I2: a queue of the {} names a run that does not stand in it",
                         storage::to_string(tier));
        sum += run->num_evictable[index_of(tier)];
      }
      SLACKWATER_CHECK(sum == evictable_[index_of(tier)][pool],
                       "I3: {} evictable pages, {} counted", sum, evictable_[index_of(tier)][pool]);
    }
  }
}

}  // namespace slackwater::cache
