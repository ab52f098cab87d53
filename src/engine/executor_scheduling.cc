// What the scheduler is told of the requests, and what it does with their state.

#include <algorithm>
#include <array>

#include "engine/executor.h"
#include "engine/timed.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {

bool Executor::can_evict() const { return config_.pools.host_bytes > 0; }

bool Executor::is_active(RequestId id) const {
  const LiveRequest* const request = find(id);
  return request != nullptr && request->has_state &&
         state_->sequence(id).status() == cache::SequenceStatus::kActive;
}

// Whether the device alone knows what the next round begins with, and may.
bool Executor::is_on_device_loop() const {
  return config_.loop == LoopKind::kOverlap && (config_.speculation.drafter == DrafterKind::kNone ||
                                                config_.speculation.drafter == DrafterKind::kMtp);
}

bool Executor::can_be_scheduled(const LiveRequest& request) {
  if (request.in_flight == 0) {
    if (!takes_turns() || is_idle_) return true;
    return request.has_state ? request.half == half_ : joiners_-- > 0;
  }
  // A row that was suspended begins with what the host knows, as does one whose sampling needs
  // what was sampled before.
  return is_on_device_loop() && request.in_flight < 2 && is_active(request.id) &&
         request.before != nullptr &&
         (!request.sampling.needs_history() || SLACKWATER_MUTANT(engine_counts_ahead));
}

// Drafts that can still become tokens.
std::int32_t Executor::draft_room(const LiveRequest& request) const {
  if (!request.has_drafts) return 0;
  if (SLACKWATER_MUTANT(engine_drafts_past_the_limit)) return max_drafts_;
  const std::int64_t golden = std::ssize(request.tokens) - 1 + request.tokens_to_come;
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(request.limit - 2 - golden, 0, max_drafts_));
}

std::int32_t Executor::drafts_wanted(LiveRequest& request) {
  const std::int32_t room = draft_room(request);
  if (room == 0) return 0;
  switch (config_.speculation.drafter) {
    case DrafterKind::kNone: return 0;
    case DrafterKind::kDraftModel: return std::min(room, request.draft_length.next());
    case DrafterKind::kMtp:
      return std::min(room, request.in_flight > 0
                                ? request.num_proposed
                                : static_cast<std::int32_t>(request.drafts.size()));
    case DrafterKind::kNgram: break;
  }
  if (request.in_flight > 0) return 0;
  if (!request.are_drafts_known) {
    request.drafts.resize(static_cast<std::size_t>(max_drafts_));
    const std::int32_t most = std::min(room, request.draft_length.next());
    const std::int32_t found = request.ngrams.propose(most, request.drafts);
    request.drafts.resize(static_cast<std::size_t>(found));
    request.are_drafts_known = true;
  }
  return std::min(room, static_cast<std::int32_t>(request.drafts.size()));
}

scheduler::Candidate Executor::candidate_of(LiveRequest& request) {
  scheduler::Candidate candidate;
  candidate.request = request.id;
  if (!request.has_state) begin_life(request);
  const bool is_schedulable = can_be_scheduled(request);
  candidate.is_in_flight = !is_schedulable && request.in_flight > 0;
  candidate.is_held_back = !is_schedulable && request.in_flight == 0;
  candidate.is_running = is_schedulable && request.in_flight > 0;
  if (request.is_context()) {
    candidate.phase = scheduler::RequestPhase::kContext;
    candidate.context_end = request.context_end;
    candidate.is_started = request.has_state && request.cursor > request.num_matched;
    return candidate;
  }
  candidate.is_started = true;
  const bool is_complete = std::ssize(request.tokens) + request.tokens_to_come >= request.limit;
  candidate.phase =
      is_complete ? scheduler::RequestPhase::kToComplete : scheduler::RequestPhase::kGeneration;
  candidate.num_drafts = drafts_wanted(request);
  return candidate;
}

// Choices share a prompt: the others find what the first one has computed of it, once that is
// there.
bool Executor::waits_for_first_choice(const LiveRequest& request) const {
  if (request.choice == 0 || request.has_state || !config_.enable_block_reuse) return false;
  if (SLACKWATER_MUTANT(engine_choices_compute_the_prompt)) return false;
  const LiveRequest* const first =
      find(RequestId(request.id.value() - static_cast<std::uint64_t>(request.choice)));
  return first != nullptr && !first->is_closing && first->hold == Hold::kNone &&
         first->num_generated() == 0;
}

bool Executor::is_in_turn(const LiveRequest& request) const {
  return !request.is_closing && request.hold == Hold::kNone && !waits_for_first_choice(request);
}

// With drafts of the host two half-batches take turns, so that one runs while the other's drafts
// are looked at.
bool Executor::takes_turns() const {
  return config_.loop == LoopKind::kOverlap && !is_on_device_loop();
}

// Whose turn it is, and how many may join that half: until it has half of all. Whoever waits joins
// the half whose turn it is, so that nobody passes an elder who waits for the other one. When
// nothing is under way it is the turn of the oldest.
void Executor::choose_half() {
  std::array<std::int64_t, 2> members = {};
  std::int64_t num_listed = 0;
  const LiveRequest* oldest = nullptr;
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    if (!is_in_turn(*request)) continue;
    if (oldest == nullptr) oldest = request.get();
    ++num_listed;
    if (request->has_state) ++members[request->half];
  }
  if (!pipeline_.empty()) {
    half_ = 1 - last_half_;
  } else if (oldest != nullptr) {
    half_ = oldest->has_state ? oldest->half : (members[0] <= members[1] ? 0 : 1);
  }
  joiners_ = (num_listed + 1) / 2 - members[half_];
}

void Executor::list_candidates() {
  candidates_.clear();
  if (takes_turns()) choose_half();
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    if (is_in_turn(*request)) candidates_.push_back(candidate_of(*request));
  }
}

// --- The calls of the scheduler.

cache::PriorityCallback Executor::priority_of(const LiveRequest& request) const {
  const auto priority = static_cast<cache::Priority>(request.asked.page_priority);
  if (priority == cache::kDefaultPriority) return {};
  return [priority](BlockOrdinal, LayerGroupId) { return priority; };
}

Result<std::int64_t> Executor::prepare_context(RequestId id) {
  LiveRequest& request = *find(id);
  const bool is_new = !request.has_state;
  if (is_new) {
    hybrid::RequestOptions options;
    options.request = id;
    // Of what is computed again the last token is golden, and at least one before it is run.
    options.tokens = std::span<const TokenId>(request.tokens)
                         .first(static_cast<std::size_t>(request.context_end));
    options.scope = request.asked.scope;
    options.priority = priority_of(request);
    options.expected_prompt_length = request.num_prompt;
    options.epoch = request.life;
    SLACKWATER_RETURN_IF_ERROR(state_->add_request(options));
    request.has_state = true;
    request.num_matched = request.cursor = state_->sequence(id).num_committed();
    request.most_run = request.cursor;
    SLACKWATER_ASSIGN_OR_RETURN(request.snapshot_points,
                                state_->snapshot_points(id, request.context_end));
  }
  const Result<void> resident = bring_back(request);
  if (!resident.has_value()) {
    // What it matched is held by nobody then.
    if (is_new && request.has_state && !SLACKWATER_MUTANT(engine_refused_context_holds)) {
      release_context(id);
    }
    return tl::unexpected<Error>(resident.error());
  }
  return request.cursor;
}

Result<void> Executor::resize_context(RequestId id, std::int64_t num_tokens,
                                      std::int32_t num_drafts) {
  LiveRequest& request = *find(id);
  const std::int64_t end = request.cursor + num_tokens;
  const bool writes_ahead =
      end == request.context_end && config_.speculation.drafter == DrafterKind::kMtp;
  return make_room(request, end + num_drafts + (writes_ahead ? 1 + max_drafts_ : 0));
}

void Executor::release_context(RequestId id) {
  LiveRequest& request = *find(id);
  state_->free_resources(id);
  request.has_state = false;
  request.is_suspended = false;
  request.cursor = request.num_matched = 0;
  request.snapshot_points.clear();
}

Result<void> Executor::allocate_generation(RequestId id, std::int32_t num_drafts) {
  LiveRequest& request = *find(id);
  const bool was_active = is_active(id);
  const bool was_suspended = request.is_suspended;
  SLACKWATER_RETURN_IF_ERROR(bring_back(request));
  const std::int64_t first =
      request.in_flight > 0 ? request.most_run : std::ssize(request.tokens) - 1;
  const std::int64_t ahead =
      config_.speculation.drafter == DrafterKind::kMtp ? max_drafts_ : std::int64_t{0};
  const Result<void> sized = make_room(request, first + 1 + num_drafts + ahead);
  if (sized.has_value() || was_active || !request.has_state) return sized;
  // Refused as a whole: it sleeps as before.
  const Result<void> back = state_->suspend_request(id);
  SLACKWATER_CHECK(back.has_value(), "{}", back.error().text());
  if (was_suspended) --statistics_.resumes;
  request.is_suspended = was_suspended;
  return sized;
}

void Executor::suspend(RequestId id) { send_away(*find(id)); }

void Executor::recompute(RequestId id) { give_up(*find(id)); }

Result<void> Executor::bring_back(LiveRequest& request) {
  if (is_active(request.id)) return {};
  const Timed timed(clock_, statistics_.pressure_time);
  const Result<device::Event> resumed = state_->resume_request(request.id);
  if (!resumed.has_value()) {
    const bool is_lost = resumed.error().code() == ErrorCode::kDataLoss;
    Error error = resumed.error();
    if (is_lost) lose(request);
    return tl::unexpected<Error>(std::move(error));
  }
  if (request.is_suspended) ++statistics_.resumes;
  request.is_suspended = false;
  return {};
}

// Room for the positions before `end`; what a rejected draft has left is given back elsewhere.
Result<void> Executor::make_room(LiveRequest& request, std::int64_t end) {
  const cache::Sequence& sequence = state_->sequence(request.id);
  if (end <= sequence.capacity()) return {};
  const Result<void> sized = state_->resize(request.id, end);
  if (!sized.has_value() && sized.error().code() == ErrorCode::kDataLoss) lose(request);
  return sized;
}

void Executor::send_away(LiveRequest& request) {
  const Timed timed(clock_, statistics_.pressure_time);
  const Result<void> suspended = state_->suspend_request(request.id);
  SLACKWATER_CHECK(suspended.has_value(), "{}", suspended.error().text());
  request.is_suspended = true;
  ++request.num_suspends;
  ++statistics_.suspends;
  if (request.in_flight > 0) ++statistics_.suspends_in_flight;
}

void Executor::give_up(LiveRequest& request) {
  const Timed timed(clock_, statistics_.pressure_time);
  SLACKWATER_CHECK(request.in_flight == 0, "request {} gives up {} rows under way",
                   request.id.value(), request.in_flight);
  ++request.num_recomputes;
  ++statistics_.recomputes;
  end_life(request);
}

// Nothing could be scheduled twice in a row, and nothing is under way: whoever is held holds what
// the others need. The youngest of them gives it up.
void Executor::take_from_held() {
  if (candidates_.empty() || SLACKWATER_MUTANT(engine_held_keeps_what_it_has)) return;
  for (auto at = requests_.rbegin(); at != requests_.rend(); ++at) {
    LiveRequest& request = **at;
    if (request.hold == Hold::kNone || request.is_closing || !request.has_state) continue;
    give_up(request);
    return;
  }
}

// A step or a copy has failed.
void Executor::lose(LiveRequest& request) {
  ++statistics_.losses;
  end_life(request);
}

}  // namespace slackwater::engine
