// What happens to the requests of the simulation.

#include "simulation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "slackwater/base/check.h"

namespace slackwater::hybrid {

using cache::SequenceStatus;
using device::Event;
using device::EventStatus;
using storage::Tier;

void SimulationTally::add(const SimulationTally& other) {
  constexpr std::int64_t SimulationTally::*kCounts[] = {&SimulationTally::steps,
                                                        &SimulationTally::rounds,
                                                        &SimulationTally::drafts_accepted,
                                                        &SimulationTally::on_device,
                                                        &SimulationTally::unqueued,
                                                        &SimulationTally::reused,
                                                        &SimulationTally::restarts,
                                                        &SimulationTally::rewinds,
                                                        &SimulationTally::refusals,
                                                        &SimulationTally::rebalances,
                                                        &SimulationTally::hand_overs,
                                                        &SimulationTally::publishes,
                                                        &SimulationTally::snapshots,
                                                        &SimulationTally::dummies,
                                                        &SimulationTally::faults,
                                                        &SimulationTally::failed_steps,
                                                        &SimulationTally::lost,
                                                        &SimulationTally::states_compared,
                                                        &SimulationTally::pending_at_rebalance,
                                                        &SimulationTally::unaccepted_at_rebalance};
  for (const auto count : kCounts) this->*count += other.*count;
  constexpr std::int64_t HybridCounters::*kCounters[] = {&HybridCounters::suspends,
                                                         &HybridCounters::resumes,
                                                         &HybridCounters::resumes_in_old_slot,
                                                         &HybridCounters::resumes_in_new_slot,
                                                         &HybridCounters::saves,
                                                         &HybridCounters::restores,
                                                         &HybridCounters::relocations,
                                                         &HybridCounters::resets,
                                                         &HybridCounters::drops,
                                                         &HybridCounters::commits,
                                                         &HybridCounters::late_acceptances,
                                                         &HybridCounters::ignored_acceptances,
                                                         &HybridCounters::lost_requests,
                                                         &HybridCounters::certificate_failures,
                                                         &HybridCounters::publishes_refused,
                                                         &HybridCounters::snapshots_skipped};
  for (const auto count : kCounters) counters.*count += other.counters.*count;
}

std::string SimulationTally::describe() const {
  return fmt::format(
      "{} steps, {} rounds, {} drafts accepted, {} rounds accepted on the device, {} batches given "
      "up; {} suspends, {} resumes in the old slot and {} in another, {} late acceptances, {} "
      "saves, "
      "{} restores, {} relocations, {} resets; {} commits, {} rewinds, {} restarts, {} refusals; "
      "{} publishes, {} hand-overs, {} snapshots reserved, {} tokens reused; {} rebalances, with "
      "{} "
      "requests that had drafts pending and {} whose acceptance was to come; {} faults, {} steps "
      "failed, {} requests lost; {} dummies; {} states compared\n",
      steps, rounds, drafts_accepted, on_device, unqueued, counters.suspends,
      counters.resumes_in_old_slot, counters.resumes_in_new_slot, counters.late_acceptances,
      counters.saves, counters.restores, counters.relocations, counters.resets, counters.commits,
      rewinds, restarts, refusals, publishes, hand_overs, snapshots, reused, rebalances,
      pending_at_rebalance, unaccepted_at_rebalance, faults, failed_steps, counters.lost_requests,
      dummies, states_compared);
}

Simulation::Simulation(const SimulationOptions& options)
    : random_(options.seed),
      options_(options),
      weights_(random_, {kAdd, kContext, kVerify, kAccept, kResume}),
      draft_model_({1, 1, 32}) {
  const WorldOptions drawn = draw_world();
  draft_model_ = KdaModel({1, drawn.shape.num_heads, drawn.shape.head_dim});
  device::SimOptions sim;
  sim.seed = options.seed;
  sim.copy_fault = [this](std::int64_t) {
    if (below(1000) >= copy_fault_permille_) return device::CopyFault::kNone;
    const auto fault = static_cast<device::CopyFault>(1 + below(3));
    if (fault != device::CopyFault::kDelay) ++tally_.faults;
    return fault;
  };
  auto device = std::make_unique<device::SimDevice>(sim);
  device_ = device.get();
  world_ = std::make_unique<World>(drawn, std::move(device));
}

Simulation::~Simulation() = default;

WorldOptions Simulation::draw_world() {
  constexpr std::int32_t kDrafts[] = {1, 3, 7};
  WorldOptions world;
  world.placement = below(2) == 0 ? ReplayPlacement::kInPool : ReplayPlacement::kBesidePool;
  if (options_.placement.has_value()) world.placement = *options_.placement;
  world.suspend_policy = below(3) == 0 ? SuspendPolicy::kCommitIfKnown : SuspendPolicy::kSave;
  world.shape = {.num_heads = 1 + static_cast<std::int32_t>(below(8) == 0),
                 .head_dim = below(8) == 0 ? 64 : 32};
  world.num_kda_layers = 2 + static_cast<std::int32_t>(below(4) == 0);
  world.max_drafts = max_drafts_ = kDrafts[below(3)];
  world.has_draft_model = has_draft_model_ = below(4) == 0;
  world.num_dummies = below(3) == 0 ? 1 + static_cast<std::int32_t>(below(2)) : 0;
  world.num_slots = world.num_dummies + 2 + static_cast<std::int32_t>(below(3));
  world.tokens_per_block = 1 << (1 + below(3));
  world.tokens_per_request = max_length_ = 32 + between(0, 1) * 24;
  world.host_bytes = below(5) == 0 && options_.rebalance_every == 0 ? 0 : 1 << 20 << below(3);
  world.num_saves = 3 + static_cast<std::int32_t>(below(6));
  world.mtp_hidden_size = below(4) == 0 ? 8 : 0;
  max_requests_ = static_cast<std::size_t>(world.num_saves) + below(2);
  judge_every_ = below(3) == 0 ? between(3, 30) : 1;
  audit_every_ = judge_every_ * 8;
  unqueued_percent_ = below(3) * 8;
  on_device_percent_ = below(3) * 40;
  if (options_.has_faults && below(3) == 0) copy_fault_permille_ = 20;
  if (options_.has_faults && below(4) == 0) step_fault_permille_ = 10;
  can_suspend_ = below(16) != 0 || options_.rebalance_every > 0;
  world.change = [this](HybridConfig& config) { draw_cache(config); };
  return world;
}

// Room beyond the least, by which quotas may change later; where snapshots are taken.
void Simulation::draw_cache(HybridConfig& config) {
  least_quota_ = config.cache.device_bytes;
  most_quota_ = least_quota_ * 3;
  config.cache.max_device_bytes = most_quota_;
  config.cache.device_bytes += between(0, 2) * least_quota_ / 2;
  config.cache.rebalance = {.min_samples = between(0, 5),
                            .update_interval = between(1, 3),
                            .cooldown = Nanoseconds(between(0, 1) * 50),
                            .threshold = 1.05,
                            .decay = 0.5};
  config.enable_rebalance = config.placement == ReplayPlacement::kInPool;
  config.snapshots.periodic_snapshot_interval = between(0, 2) * 3;
  if (below(3) == 0) config.snapshots.additional_snapshot_offsets_from_start = {between(1, 9)};
  if (below(3) == 0) config.snapshots.additional_snapshot_offsets_from_end = {between(0, 3)};
  config.snapshots.enable_branch_snapshot = below(3) != 0;
  config.enable_block_reuse = below(12) != 0;
  if (!can_suspend_) config.save_bytes = 0;
}

void Simulation::run(std::int64_t num_operations, std::int64_t done_before) {
  CheckNote note("the simulation begins");
  for (std::int64_t i = 0; i < num_operations && !testing::Test::HasFailure(); ++i) {
    const std::string where = fmt::format("operation {} of seed {}, after {} operations", i,
                                          options_.seed, done_before + i);
    note.set(where);
    SCOPED_TRACE(where);
    if (options_.rebalance_every > 0 && i % options_.rebalance_every == 0) {
      rebalance();
    } else {
      operate();
    }
    if (i % judge_every_ == 0) {
      judge();
    } else {
      look_at_steps();
    }
    if (i % audit_every_ == 0) manager().audit();
  }
  if (!testing::Test::HasFailure()) finish();
}

void Simulation::operate() {
  if (requests_.size() * 2 < max_requests_ && below(2) == 0) return add();
  // Most operations are steps: requests live long enough to meet.
  if (has_draft_model_ && below(4) == 0) return run_draft_model();
  if (below(3) != 0) return run_rows(kVerify);
  switch (static_cast<Operation>(weights_.draw(random_))) {
    case kAdd: return add();
    case kContext: return run_rows(kContext);
    case kVerify: return run_rows(kVerify);
    case kDecode: return run_rows(kDecode);
    case kRewind: return run_rows(kRewind);
    case kDraft: return run_draft_model();
    case kAccept: return accept();
    case kSuspend: return suspend();
    case kResume: return resume();
    case kCommit: return commit();
    case kPublish: return publish();
    case kFree: return end_one();
    case kRestart: {
      Request* const request = draw_request();
      if (request != nullptr && below(4) == 0) restart(*request);
      return;
    }
    case kRebalance: return below(8) == 0 ? rebalance() : publish();
    case kRunDevice: return device_->run_all();
    case kMisuse: return misuse();
    case kNumOperations: return;
  }
}

// --- Requests come and go.

// Some ask what another one asked, or go on from what it was told.
Tokens Simulation::draw_prompt() {
  Tokens prompt;
  if (!old_prompts_.empty() && below(2) == 0) {
    prompt = old_prompts_[below(old_prompts_.size())];
    const auto most = static_cast<std::size_t>(max_length_ / 2);
    if (prompt.size() > most || below(3) == 0)
      prompt.resize(between(1, std::min(most, prompt.size())));
    if (below(2) == 0) return prompt;
  }
  for (std::int64_t count = between(1, 8); count > 0; --count) {
    prompt.push_back(static_cast<TokenId>(below(KdaModel::kVocabulary)));
  }
  return prompt;
}

void Simulation::add() {
  if (requests_.size() >= max_requests_) return end_one();
  Tokens prompt = draw_prompt();
  Request& request = requests_.emplace_back(RequestId(next_id_++), prompt, world_->model);
  RequestOptions options;
  options.request = request.id;
  options.tokens = request.tokens;
  const auto added = manager().add_request(options);
  ASSERT_TRUE(added.has_value()) << added.error().text();
  begin_alone(request);
  if (old_prompts_.size() < 16) {
    old_prompts_.push_back(std::move(prompt));
  } else {
    old_prompts_[below(old_prompts_.size())] = std::move(prompt);
  }
}

// Where it stands after it came, or came back: what is found of its tokens, it has computed too.
void Simulation::begin_alone(Request& request) {
  request.computed = manager().position(request.id)->kept;
  ASSERT_LT(request.computed, std::ssize(request.tokens));
  tally_.reused += request.computed;
  request.alone.clear();
  for (std::size_t tag = 0; tag < num_tags(); ++tag) {
    LoneRequest& alone = request.alone.emplace_back(model(tag), max_drafts_);
    if (request.computed > 0) {
      alone.context(world_->context, request.known(0, request.computed));
    }
  }
  request.rounds.clear();
  request.plan.clear();
  request.written = request.arrivals = {};
  request.is_suspect = std::make_shared<bool>(false);
  request.is_lost = request.has_ended = false;
}

Simulation::Request* Simulation::draw_request() {
  if (requests_.empty()) return nullptr;
  return &*std::next(requests_.begin(), static_cast<std::ptrdiff_t>(below(requests_.size())));
}

void Simulation::end_one() {
  Request* const request = draw_request();
  if (request == nullptr) return;
  if (std::ssize(request->tokens) <= max_length_ / 2 && below(2) == 0) {
    old_prompts_.push_back(request->tokens);  // a second turn may come
  }
  forget(*request);
}

// One that has said all it may: its end is there for others, or not.
void Simulation::finish_one(Request& request) {
  if (status(request) == SequenceStatus::kActive && below(2) == 0) {
    publish(request, request.computed, {request.written, below(2) == 0, true});
  }
  forget(request);
}

void Simulation::forget(Request& request) {
  manager().free_resources(request.id);
  ASSERT_FALSE(manager().has_request(request.id));
  requests_.remove_if([&](const Request& other) { return &other == &request; });
}

void Simulation::restart(Request& request) {
  if (std::ssize(request.tokens) + max_drafts_ + 2 > max_length_) return forget(request);
  const auto restarted = manager().restart_request(request.id, request.tokens);
  ASSERT_TRUE(restarted.has_value()) << restarted.error().text();
  ++tally_.restarts;
  begin_alone(request);
}

// Whether a call may be refused so: for want of room, or because a fault has cost what it had.
bool Simulation::may_be(const Error& error, Request& request) {
  if (error.code() == ErrorCode::kResourceExhausted) {
    ++tally_.refusals;
    return true;
  }
  if (error.code() != ErrorCode::kDataLoss || tally_.faults == 0) return false;
  request.is_lost = true;
  return true;
}

// Where there is no room, another may have to sleep.
bool Simulation::activate(Request& request) {
  if (status(request) == SequenceStatus::kActive || resume(request)) return true;
  Request* const other = draw_request();
  if (!request.is_lost && other != &request && below(2) == 0) suspend(*other);
  return false;
}

bool Simulation::resume(Request& request) {
  const auto resumed = manager().resume_request(request.id);
  if (resumed.has_value()) {
    const std::array<Event, 2> both = {request.arrivals, *resumed};
    request.arrivals = device::merge(both);
    return true;
  }
  EXPECT_TRUE(may_be(resumed.error(), request)) << resumed.error().text();
  return false;
}

bool Simulation::make_room(Request& request, std::int64_t capacity) {
  if (capacity <= manager().sequence(request.id).capacity()) return true;
  if (capacity > max_length_ + 2 * max_drafts_ + 8) return false;
  const auto resized = manager().resize(request.id, capacity);
  if (resized.has_value()) return true;
  EXPECT_TRUE(may_be(resized.error(), request)) << resized.error().text();
  return false;
}

// --- Sleep.

void Simulation::suspend() {
  Request* const request = draw_request();
  if (request != nullptr) suspend(*request);
}

void Simulation::suspend(Request& request) {
  const bool is_active = status(request) == SequenceStatus::kActive;
  const HybridCounters before = manager().counters();
  const auto suspended = manager().suspend_request(request.id);
  if (!is_active || !can_suspend_) {
    ASSERT_FALSE(suspended.has_value());
    EXPECT_EQ(suspended.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(manager().counters().saves, before.saves) << "a second sleep saves nothing";
    return;
  }
  ASSERT_TRUE(suspended.has_value()) << suspended.error().text();
  ASSERT_FALSE(manager().state_index(request.id).has_value());
  follow(request);
}

void Simulation::resume() {
  Request* const request = draw_request();
  if (request == nullptr) return;
  if (request->is_lost || request->has_ended || below(16) == 0) {
    const bool is_end = request->has_ended && below(2) == 0;
    return is_end ? forget(*request) : restart(*request);
  }
  if (std::ssize(request->tokens) + max_drafts_ + 2 > max_length_) return forget(*request);
  activate(*request);
}

// --- What is kept.

// The host tells what it knows, in order; now and then what was another round's.
void Simulation::accept() {
  for (Request& request : requests_) {
    if (!request.rounds.empty() && below(2) == 0) accept(request);
  }
}

void Simulation::accept(Request& request) {
  const std::uint64_t epoch = manager().position(request.id)->epoch;
  std::vector<Acceptance> told;
  if (below(8) == 0) told.push_back({request.id, epoch + 1, request.rounds.front().round, 0});
  const std::size_t count = 1 + below(request.rounds.size());
  for (std::size_t i = 0; i < count; ++i) {
    const OpenRound& round = request.rounds[i];
    told.push_back({request.id, epoch, round.round, round.num_accepted});
  }
  if (below(8) == 0 && !request.is_lost) {
    const OpenRound& round = request.rounds.front();
    const Acceptance wrong = {request.id, epoch, round.round, round.num_drafts + 1};
    const auto refused = manager().update_resources(std::span(&wrong, 1));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  }
  const auto done = manager().update_resources(told);
  ASSERT_TRUE(done.has_value()) << done.error().text();
  for (std::size_t i = 0; i < count; ++i) request.rounds.pop_front();
  // Rounds without drafts behind them have nothing to be told.
  while (!request.rounds.empty() && request.rounds.front().num_drafts == 0) {
    request.rounds.pop_front();
  }
  if (!request.rounds.empty()) return;
  const std::int64_t page = request.alone[0].page_position();
  for (LoneRequest& alone : request.alone) alone.accept(page, request.computed - page);
  if (request.is_lost || *request.is_suspect) return;
  EXPECT_EQ(manager().position(request.id)->kept, request.computed);
}

// What the manager has folded in or given up, the lone request does too.
void Simulation::follow(Request& request) {
  if (!request.rounds.empty() || request.is_lost) return;  // the host is behind
  const HybridView view = manager().view();
  const auto seen =
      std::find_if(view.requests.begin(), view.requests.end(),
                   [&](const RequestView& other) { return other.request == request.id; });
  bool has_committed = false;
  for (std::size_t tag = 0; tag < num_tags(); ++tag) {
    has_committed |= request.alone[tag].position() != request.alone[tag].page_position() &&
                     seen->slots[tag].num_pending == 0;
  }
  if (!has_committed) return;
  for (std::size_t tag = 0; tag < num_tags(); ++tag) {
    LoneRequest& alone = request.alone[tag];
    // What a draft model has proposed, and no round has verified, stays.
    if (alone.num_pending() == 0) continue;
    const std::int64_t folded = seen->slots[tag].page_position - alone.page_position();
    ASSERT_TRUE(0 <= folded && folded <= alone.num_pending()) << folded;
    alone.fold(world_->context, static_cast<std::int32_t>(folded));
  }
  request.computed = seen->position.kept;
}

void Simulation::commit() {
  Request* const request = draw_request();
  if (request == nullptr || request->is_lost || request->has_ended) return;
  const LoneRequest& alone = request->alone[0];
  const std::int64_t pending = alone.num_pending();
  const bool is_settled = status(*request) == SequenceStatus::kActive && request->rounds.empty();
  std::optional<std::int32_t> count;
  const std::int64_t published = manager().sequence(request->id).num_committed();
  if (below(3) == 0) {
    const std::int64_t least = std::max<std::int64_t>(0, published - alone.page_position());
    count = static_cast<std::int32_t>(between(std::min(least, pending), pending));
  }
  const std::int64_t end =
      alone.page_position() + count.value_or(static_cast<std::int32_t>(pending));
  const auto done = manager().commit_pending(request->id, count);
  if (!done.has_value()) {
    const bool is_lost = done.error().code() == ErrorCode::kDataLoss;
    if (is_lost) {
      ASSERT_TRUE(may_be(done.error(), *request)) << done.error().text();
      return;
    }
    bool is_set_up = true;
    for (std::size_t tag = 0; tag < num_tags(); ++tag) {
      is_set_up = is_set_up && manager().state_index(request->id, name(tag)).has_value();
    }
    // Tokens that a draft model has folded in are not given up.
    const bool is_behind = has_draft_model_ && request->alone[1].page_position() > end;
    EXPECT_TRUE(!is_settled || !is_set_up || is_behind) << done.error().text();
    EXPECT_EQ(done.error().code(), ErrorCode::kFailedPrecondition) << done.error().text();
    return;
  }
  EXPECT_TRUE(is_settled);
  follow(*request);
  if (pending == 0) return;
  EXPECT_EQ(request->alone[0].page_position(), end);
  EXPECT_EQ(request->computed, end);
}

void Simulation::publish() {
  Request* const request = draw_request();
  if (request != nullptr) publish(*request);
}

// Mostly what is kept; now and then what is not.
void Simulation::publish(Request& request) {
  if (request.is_lost || request.has_ended) return;
  const std::int64_t published = manager().sequence(request.id).num_committed();
  const std::int64_t first = std::max(published, request.alone[0].page_position());
  std::int64_t end = below(2) == 0 ? request.computed : first;
  if (first < request.computed && below(2) == 0) end = between(first, request.computed);
  if (below(6) == 0) end = between(published, std::ssize(request.tokens));
  if (end < published) return;
  publish(request, end,
          {.written = request.written, .with_snapshot = below(2) == 0, .is_end = below(24) == 0});
}

void Simulation::publish(Request& request, std::int64_t end, const PublishOptions& options) {
  const cache::Sequence& sequence = manager().sequence(request.id);
  const std::int64_t published = sequence.num_committed();
  const bool is_settled = status(request) == SequenceStatus::kActive && request.rounds.empty();
  bool is_kept = request.alone[0].page_position() <= end && end <= request.computed;
  // A draft model that lags behind holds it back.
  for (const LoneRequest& alone : request.alone) is_kept = is_kept && end <= alone.position();
  const LayerGroupId group = manager().replay_state().layer_group();
  const SlotId before =
      status(request) == SequenceStatus::kActive ? sequence.slots(group)[0] : cache::kNoSlot;
  const auto done =
      manager().publish(request.id, request.known(published, end - published), options);
  if (!done.has_value()) {
    if (done.error().code() == ErrorCode::kFailedPrecondition) {
      EXPECT_TRUE(!is_settled || !is_kept) << done.error().text();
    } else {
      EXPECT_TRUE(may_be(done.error(), request)) << done.error().text();
    }
    EXPECT_EQ(sequence.num_committed(), published);
    return follow(request);
  }
  EXPECT_TRUE(is_settled && is_kept) << "up to " << end << ", " << request.computed << " computed";
  ++tally_.publishes;
  follow(request);
  if (!manager().config().enable_block_reuse) return;
  request.has_ended = options.is_end;
  const SlotId now = sequence.slots(group)[0];
  if (now == before || now == cache::kNoSlot) return;
  ++tally_.hand_overs;
  // It goes on in a copy, which may fail.
  const std::array<Event, 2> both = {request.arrivals, sequence.arrived()};
  request.arrivals = device::merge(both);
  if (below(2) == 0) wake_others(request);
}

// Those who slept go on before `moved` does, and one of them may get the slot that it has left.
void Simulation::wake_others(const Request& moved) {
  std::vector<Request*> sleepers;
  for (Request& request : requests_) {
    const bool is_asleep = status(request) == SequenceStatus::kSuspended;
    if (&request != &moved && is_asleep && !request.has_ended && !request.is_lost) {
      sleepers.push_back(&request);
    }
  }
  std::vector<Planned> rows;
  for (Request* const sleeper : sleepers) {
    if (sleeper->awaits_host()) accept(*sleeper);
    if (!resume(*sleeper)) break;
    std::optional<Planned> row = plan_verify(*sleeper, true);
    if (row.has_value()) rows.push_back(*std::move(row));
  }
  if (!rows.empty()) run_batch(std::move(rows), 0);
}

// --- Everybody.

void Simulation::rebalance() {
  if (!can_suspend_) return;
  now_ += Nanoseconds(100);
  for (Request& request : requests_) {
    if (status(request) == SequenceStatus::kActive) suspend(request);
    tally_.pending_at_rebalance += request.alone[0].num_pending() > 0 ? 1 : 0;
    tally_.unaccepted_at_rebalance += request.rounds.empty() ? 0 : 1;
  }
  manager().suspend_dummies();
  const bool is_quota = below(3) != 0 || options_.rebalance_every > 0;
  const auto done = is_quota
                        ? manager().set_quota(Tier::kDevice, between(least_quota_, most_quota_))
                        : manager().adjust(now_);
  manager().resume_dummies();
  if (manager().config().placement == ReplayPlacement::kBesidePool) {
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code(), ErrorCode::kFailedPrecondition) << done.error().text();
    return;
  }
  if (done.has_value()) {
    ++tally_.rebalances;
    return;
  }
  EXPECT_TRUE(done.error().code() == ErrorCode::kResourceExhausted ||
              (done.error().code() == ErrorCode::kUnavailable && tally_.faults > 0))
      << done.error().text();
  ++tally_.refusals;
}

// Rows that do not agree with what is kept are refused, and nothing has changed.
void Simulation::misuse() {
  Request* const request = draw_request();
  if (request == nullptr || request->is_lost || request->has_ended) return;
  const std::string before = manager().describe();
  std::vector<BatchRow> rows = {World::verify_row(request->id.value(), request->computed + 1, 0)};
  switch (below(4)) {
    case 0: rows[0].kind = RowKind::kContext; break;
    case 1:
      rows[0].first_position = request->computed;
      rows[0].num_tokens = max_drafts_ + 2;
      break;
    case 2: rows[0].request = RequestId(next_id_); break;
    default: break;
  }
  BatchSetup setup;
  const auto done = manager().setup_state_indices(rows, setup);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(manager().describe(), before) << done.error().text();
}

// Everybody goes, and nothing is left.
void Simulation::finish() {
  judge();
  while (!requests_.empty()) forget(requests_.front());
  manager().audit();
  look_at_steps();
  ASSERT_TRUE(steps_.empty());
  for (const RegistryView& registry : manager().view().registries) {
    EXPECT_EQ(registry.num_saved, 0);
    EXPECT_EQ(registry.num_reserved, 0);
  }
  tally_.counters = manager().counters();
  EXPECT_TRUE(tally_.counters.certificate_failures == 0);
  const auto shut = manager().shutdown();
  EXPECT_TRUE(shut.has_value()) << shut.error().text();
}

}  // namespace slackwater::hybrid
