// What concerns all sequences: rooms, time, the end.

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "cache/manager_model_test_support.h"
#include "slackwater/cache/log_replay.h"

namespace slackwater::cache {

using device::Event;
using device::EventStatus;
using storage::Tier;
using Tokens = std::vector<TokenId>;

void KvCacheManagerModel::suspend_all() {
  for (Model& model : models_) {
    if (model.sequence.status() != SequenceStatus::kActive) continue;
    ASSERT_TRUE(model.sequence.suspend().has_value());
  }
}

// A tier gets more or fewer bytes; what is refused changes nothing.
void KvCacheManagerModel::change_quota() {
  if (below(3) != 0) return;
  const Tier tier = static_cast<Tier>(below(3));
  const std::int64_t before = manager_->quota(tier);
  const std::int64_t bytes = before / 2 + static_cast<std::int64_t>(below(1 << 16));
  const bool is_active = random_sequence(SequenceStatus::kActive) != nullptr;
  if (is_active && before > 0) {
    ASSERT_EQ(manager_->set_quota(tier, before).error().code(), ErrorCode::kFailedPrecondition);
  }
  suspend_all();
  while (!failing_.empty()) learn_of_failures();
  const std::vector<std::int32_t> room = all_room(*manager_);
  const auto changed = manager_->set_quota(tier, bytes);
  if (changed.has_value()) {
    ++tally_.quotas;
    ASSERT_GE(manager_->quota(tier), bytes);
    // It may be too small now for whoever has run.
    for (Model& model : models_) model.was_resumed = false;
    return;
  }
  ASSERT_TRUE(changed.error().code() != ErrorCode::kUnavailable || num_faults_ > 0)
      << changed.error().text();
  if (num_faults_ > 0) return;
  ASSERT_EQ(manager_->quota(tier), before);
  ASSERT_EQ(all_room(*manager_), room) << changed.error().text();
}

// Shares follow the sequences that have ended; what is refused, or not needed, changes nothing.
void KvCacheManagerModel::adjust() {
  if (below(2) != 0) return;
  now_ += Nanoseconds(below(100));
  if (random_sequence(SequenceStatus::kActive) != nullptr) {
    ASSERT_EQ(manager_->adjust(now_).error().code(), ErrorCode::kFailedPrecondition);
  }
  suspend_all();
  while (!failing_.empty()) learn_of_failures();
  const bool is_needed = manager_->need_adjustment(now_);
  const std::vector<std::int32_t> room = all_room(*manager_);
  const auto adjusted = manager_->adjust(now_);
  if (adjusted.has_value() && is_needed) {
    ++tally_.adjusts;
    // It may be too small now for whoever has run.
    for (Model& model : models_) model.was_resumed = false;
    ASSERT_FALSE(manager_->need_adjustment(now_ + std::chrono::hours(1)));
    return;
  }
  if (!adjusted.has_value()) {
    ASSERT_TRUE(adjusted.error().code() == ErrorCode::kResourceExhausted || num_faults_ > 0)
        << adjusted.error().text();
    ASSERT_TRUE(is_needed);
    if (num_faults_ > 0) return;
  }
  ASSERT_EQ(all_room(*manager_), room);
}

// Whoever has run once can run again, whatever the others hold: first in, first out.
void KvCacheManagerModel::take_turns() {
  if (!guarantees_suspend_ || below(4) != 0) return;
  suspend_all();
  for (Model& model : models_) {
    if (!model.was_resumed) continue;
    const auto resumed = model.sequence.resume(engine_->stream());
    if (!resumed.has_value()) {
      // Slots of a bad disk go out of service between the plan and the move.
      ASSERT_TRUE(resumed.error().code() != ErrorCode::kResourceExhausted ||
                  (num_faults_ > 0 && disk_fault_permille_ > 0))
          << resumed.error().text();
      continue;
    }
    model.arrived = *resumed;
    ASSERT_TRUE(model.sequence.suspend().has_value());
    ++tally_.turns;
  }
}

// What a scheduler does when there is no room.
void KvCacheManagerModel::relieve(Model& refused) {
  switch (below(4)) {
    case 0: return drop(refused);
    case 1: return close();
    case 2: return suspend();
    default: return;
  }
}

void KvCacheManagerModel::learn_of_failures() {
  while (!failing_.empty() && below(3) != 0) {
    failing_.back().complete(EventStatus::kFailed);
    failing_.pop_back();
  }
}

void KvCacheManagerModel::probe() {
  const Tokens tokens = random_tokens(60);
  const MatchDepths match = manager_->probe_reuse({}, tokens);
  check_match({}, tokens, match);
  const auto first = manager_->probe_first_new_block({}, tokens);
  const std::int64_t size = manager_->tokens_per_block();
  // More may be written by the second look.
  if (!steps_.empty()) return;
  ASSERT_EQ(first.has_value(), match.reused / size * size + size <= std::ssize(tokens));
}

void KvCacheManagerModel::run_device() {
  const std::uint64_t count = below(4) == 0 ? 1000 : below(20);
  for (std::uint64_t i = 0; i < count && device_->run_one(); ++i) ++num_runs_;
  learn_of_failures();
}

void KvCacheManagerModel::clear() {
  if (below(20) != 0) return;
  if (!models_.empty()) {
    ASSERT_EQ(manager_->clear_reusable_blocks().error().code(), ErrorCode::kFailedPrecondition);
    return;
  }
  ASSERT_TRUE(manager_->clear_reusable_blocks().has_value());
  naive_.clear();
  expect_empty();
}

void KvCacheManagerModel::expect_empty() {
  for (const LayerGroupDesc& group : manager_->layer_groups().groups()) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      const TierRoom room = manager_->room(tier, group.id);
      // On a bad disk slots are retired.
      if (tier == Tier::kDisk && num_faults_ > 0) continue;
      ASSERT_EQ(room.free + room.evictable, room.total) << "slots are left over";
      ASSERT_EQ(room.evictable, 0);
    }
  }
}

// A step whose pages have arrived read what it should.
void KvCacheManagerModel::check_steps(bool all) {
  std::erase_if(steps_, [&](const Step& step) {
    if (all) {
      step.done.wait();
      step.arrived.wait();
    }
    if (!step.done.is_done() || !step.arrived.is_done()) return false;
    const bool is_judged = step.arrived.status() == EventStatus::kSucceeded;
    ++(is_judged ? tally_.steps_judged : tally_.steps_suspect);
    if (is_judged) {
      EXPECT_EQ(*step.mismatches, 0);
    }
    return true;
  });
}

KvCacheManagerModel::LogPoint KvCacheManagerModel::log_point() const {
  LogPoint point;
  point.num_calls = manager_->num_logged_calls();
  point.view = manager_->view();
  for (const Model& model : models_) {
    for (const LayerGroupDesc& group : manager_->layer_groups().groups()) {
      const auto slots = model.sequence.slots(group.id);
      point.slots.emplace_back(slots.begin(), slots.end());
    }
  }
  return point;
}

void KvCacheManagerModel::expect_same(LogPoint again, LogPoint point) const {
  for (LogPoint* const one : {&again, &point}) {
    // What a bad disk has refused is known to nobody until somebody asks.
    for (PoolView& pool : one->view.pools) {
      if (pool.tier == Tier::kDisk && num_faults_ > 0) pool.room = {};
    }
    for (TierView& tier : one->view.tiers) {
      if (tier.tier == Tier::kDisk && num_faults_ > 0) tier.used_bytes = 0;
    }
  }
  ASSERT_EQ(again.view, point.view)
      << "after " << point.num_calls << " calls: " << describe(again.view) << describe(point.view);
  ASSERT_EQ(again.slots, point.slots) << "after " << point.num_calls << " calls";
}

// The log, done again without device and disk, comes through every state.
void KvCacheManagerModel::check_replay() {
  log_points_.push_back(log_point());
  auto replay = LogReplay::open(log_path_);
  ASSERT_TRUE(replay.has_value()) << replay.error().text();
  for (const LogPoint& point : log_points_) {
    while ((*replay)->num_calls() < point.num_calls) {
      const auto stepped = (*replay)->step();
      ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
      ASSERT_TRUE(*stepped) << (*replay)->num_calls() << " of " << point.num_calls << " calls";
    }
    LogPoint again;
    again.num_calls = point.num_calls;
    again.view = (*replay)->manager().view();
    for (const Sequence& sequence : (*replay)->sequences()) {
      if (sequence.status() == SequenceStatus::kClosed) continue;
      for (const LayerGroupDesc& group : manager_->layer_groups().groups()) {
        const auto slots = sequence.slots(group.id);
        again.slots.emplace_back(slots.begin(), slots.end());
      }
    }
    expect_same(std::move(again), point);
    (*replay)->manager().audit();
  }
  tally_.calls_replayed += (*replay)->num_calls();
}

void KvCacheManagerModel::finish() {
  while (!failing_.empty()) learn_of_failures();
  check_steps(true);
  manager_->audit();
  drain();
  while (!models_.empty()) drop(models_.back());
  plans_.clear();
  manager_->audit();
  const Result<void> shut = manager_->shutdown();
  ASSERT_TRUE(shut.has_value());
  expect_empty();
  drain();
  ASSERT_EQ(mirror_.num_pages(), 0u);
  tally_.pages_dropped = manager_->counters().pages_dropped;
  tally_.snapshots = manager_->counters().snapshots_published;
  tally_.faults = num_faults_;
  if (is_logged_) check_replay();
  tally_.pages_counted = recount_.num_pages();
  manager_->token_digests().release(images_);
  ASSERT_EQ(manager_->token_digests().size(), 0u);
  manager_->audit();
}

// Some are dummies, some come back, some say where their prompt ends.
void KvCacheManagerModel::choose_counting(SequenceOptions& options) {
  options.is_dummy = below(8) == 0;
  options.is_recompute = below(4) == 0;
  if (below(2) == 0) options.expected_prompt_length = std::ssize(options.tokens);
}

// What a sequence has done is published, or forgotten.
void KvCacheManagerModel::settle_statistics(Model& model) {
  recount_.check_pending(model.counted, model.sequence);
  const bool commits = below(3) != 0;
  if (commits) {
    model.sequence.commit_statistics();
  } else {
    model.sequence.discard_statistics();
  }
  recount_.settled(model.counted, commits);
  recount_.check_pending(model.counted, model.sequence);
}

std::vector<std::int32_t> KvCacheManagerModel::all_room(const KvCacheManager& manager) {
  std::vector<std::int32_t> all;
  for (const LayerGroupDesc& group : manager.layer_groups().groups()) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      const TierRoom room = manager.room(tier, group.id);
      all.insert(all.end(), {room.total, room.free, room.evictable});
    }
  }
  return all;
}

}  // namespace slackwater::cache
