// Making an executor, the life of its requests, and the loop.

#include "engine/executor.h"

#include <algorithm>
#include <utility>

#include "engine/pools.h"
#include "engine/timed.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {

Executor::Executor(const EngineParts& parts, EngineConfig config)
    : parts_(parts),
      config_(std::move(config)),
      model_(parts.model->config()),
      scheduler_(config_.scheduler) {
  if (config_.speculation.drafter != DrafterKind::kNone) {
    max_drafts_ = config_.speculation.max_drafts;
  }
}

Executor::~Executor() {
  // What is queued writes to steps and state.
  if (stream_ != nullptr) stream_->synchronize();
}

Result<std::unique_ptr<Executor>> Executor::create(const EngineParts& parts, EngineConfig config) {
  SLACKWATER_RETURN_IF_ERROR(validate(parts, config));
  std::unique_ptr<Executor> executor(new Executor(parts, std::move(config)));
  SLACKWATER_RETURN_IF_ERROR(executor->make_state());
  return executor;
}

Result<void> Executor::make_state() {
  SLACKWATER_ASSIGN_OR_RETURN(stream_, parts_.device->make_stream("steps"));
  SLACKWATER_ASSIGN_OR_RETURN(hybrid::HybridConfig made, make_hybrid_config(parts_, config_));
  SLACKWATER_ASSIGN_OR_RETURN(
      state_, hybrid::HybridCacheManager::create(*parts_.device, *stream_, parts_.context,
                                                 std::move(made)));
  for (const cache::LayerGroupDesc& group : state_->kv_cache().layer_groups().groups()) {
    if (!std::holds_alternative<cache::FullAttention>(group.kind)) continue;
    if (group.group_tag == "target") {
      target_group_ = group.id;
      has_target_group_ = true;
    } else if (group.group_tag == "mtp") {
      mtp_group_ = group.id;
    } else {
      draft_group_ = group.id;
      has_draft_group_ = true;
    }
  }
  StepRunner::Options options;
  options.max_tokens = static_cast<std::int32_t>(config_.scheduler.max_num_tokens);
  options.max_rows = config_.scheduler.max_batch_size;
  options.drafter = config_.speculation.drafter;
  options.max_drafts = max_drafts_;
  options.max_draft_tokens = config_.scheduler.max_batch_size * kMostMadeUp;
  runner_ =
      std::make_unique<StepRunner>(*parts_.context, *parts_.model, parts_.draft_model, options);
  runner_->bind(*state_);
  const std::int64_t past_end = positions_past_end(config_);
  SLACKWATER_ASSIGN_OR_RETURN(const std::int64_t most, tokens_for_one(parts_, config_));
  std::int64_t longest = state_->kv_cache().clamp_max_seq_len(1, most);
  // A prompt that is not cut is run in one step, as is all that is computed again.
  if (!config_.scheduler.enable_chunked_prefill) {
    longest = std::min(longest, config_.scheduler.max_num_tokens + past_end);
  }
  max_sequence_length_ =
      std::clamp<std::int64_t>(longest - past_end, 0, std::int64_t{model_.max_length});
  return {};
}

// --- Requests.

LiveRequest* Executor::find(RequestId request) {
  const auto at = index_.find(request.value());
  return at == index_.end() ? nullptr : at->second;
}

const LiveRequest* Executor::find(RequestId request) const {
  return const_cast<Executor*>(this)->find(request);
}

TextOutput Executor::make_text(const GenerationRequest& asked) const {
  return TextOutput(parts_.tokenizer, asked.stop, model_.eos_ids, asked.stop_token_ids,
                    asked.ignore_eos);
}

void Executor::add(std::unique_ptr<LiveRequest> request) {
  const bool is_new = index_.emplace(request->id.value(), request.get()).second;
  SLACKWATER_CHECK(is_new, "two requests have the id {}", request->id.value());
  requests_.push_back(std::move(request));
}

void Executor::remove(LiveRequest& request) { index_.erase(request.id.value()); }

std::unique_ptr<LiveRequest> Executor::make_request(const GenerationRequest& asked, RequestId id,
                                                    std::int32_t choice) {
  auto request =
      std::make_unique<LiveRequest>(id, choice, asked, config_.speculation,
                                    TextOutput(parts_.tokenizer, asked.stop, model_.eos_ids,
                                               asked.stop_token_ids, asked.ignore_eos));
  if (!asked.ignore_eos) request->stop_ids = model_.eos_ids;
  request->stop_ids.insert(request->stop_ids.end(), asked.stop_token_ids.begin(),
                           asked.stop_token_ids.end());
  request->tokens = asked.prompt_tokens;
  request->num_prompt = std::ssize(asked.prompt_tokens);
  request->limit = std::min<std::int64_t>(request->num_prompt + asked.max_tokens,
                                          std::int64_t{model_.max_length});
  request->tokens.reserve(static_cast<std::size_t>(request->limit));
  request->context_end = request->num_prompt;
  request->has_drafts = max_drafts_ > 0 && asked.enable_speculation;
  if (request->has_drafts && config_.speculation.drafter == DrafterKind::kNgram) {
    request->ngrams.append(request->tokens);
  }
  return request;
}

Result<RequestId> Executor::submit(GenerationRequest asked) {
  SLACKWATER_RETURN_IF_ERROR(
      validate(asked, model_, /*has_tokenizer=*/parts_.tokenizer != nullptr));
  const std::int64_t limit = std::min<std::int64_t>(
      std::ssize(asked.prompt_tokens) + asked.max_tokens, std::int64_t{model_.max_length});
  if (limit > max_sequence_length_) {
    return make_error(
        ErrorCode::kOutOfRange,
        "a prompt of {} tokens and an answer of up to {} need room for {}; {} hold {} "
        "of one request: shorten the prompt, lower max_tokens, or give more blocks",
        asked.prompt_tokens.size(), asked.max_tokens, limit,
        config_.scheduler.enable_chunked_prefill
            ? "the pools"
            : "the pools, and a step that takes a prompt whole,",
        max_sequence_length_);
  }
  const std::lock_guard lock(mutex_);
  const RequestId first(next_id_);
  for (std::int32_t choice = 0; choice < asked.num_choices; ++choice) {
    submitted_.push_back(make_request(asked, RequestId(next_id_++), choice));
    ++num_live_;
  }
  return first;
}

void Executor::cancel(RequestId request) {
  const std::lock_guard lock(mutex_);
  orders_.push_back({OrderKind::kCancel, request});
}

void Executor::hold(RequestId request, HoldPolicy policy) {
  const std::lock_guard lock(mutex_);
  const bool is_kept = policy == HoldPolicy::kSuspend;
  orders_.push_back({is_kept ? OrderKind::kHold : OrderKind::kHoldRecomputed, request});
}

void Executor::release(RequestId request) {
  const std::lock_guard lock(mutex_);
  orders_.push_back({OrderKind::kRelease, request});
}

void Executor::suspend_now(RequestId request) {
  const std::lock_guard lock(mutex_);
  orders_.push_back({OrderKind::kSuspend, request});
}

// What was submitted and what was asked since, as of one moment: an order follows its request.
void Executor::take() {
  std::vector<std::unique_ptr<LiveRequest>> taken;
  std::vector<Order> orders;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(submitted_);
    orders.swap(orders_);
  }
  const std::size_t num_before = requests_.size();
  for (std::unique_ptr<LiveRequest>& request : taken) {
    ++statistics_.submitted;
    request->half = admissions_++ % 2;
    add(std::move(request));
  }
  const std::size_t num_now = requests_.size();
  for (std::size_t i = num_before; i < num_now; ++i) {
    LiveRequest& request = *requests_[i];
    // Nothing to write: it ends as the solo loop does.
    if (request.limit <= request.num_prompt) close(request, FinishReason::kLength, std::nullopt);
  }
  obey(orders);
}

// Of a request that has choices, all of them.
void Executor::obey(std::span<const Order> orders) {
  for (const Order& order : orders) {
    // The first one may be gone already.
    for (const std::unique_ptr<LiveRequest>& request : requests_) {
      const std::uint64_t first = request->id.value() - static_cast<std::uint64_t>(request->choice);
      const bool is_choice = !SLACKWATER_MUTANT(engine_orders_reach_one_choice);
      const bool is_meant =
          request->id == order.request || (is_choice && RequestId(first) == order.request);
      if (is_meant && !request->is_closing) obey(order, *request);
    }
  }
}

bool Executor::has_news() const {
  const std::lock_guard lock(mutex_);
  return !submitted_.empty() || !orders_.empty();
}

void Executor::obey(const Order& order, LiveRequest& request) {
  switch (order.kind) {
    case OrderKind::kCancel: close(request, FinishReason::kCancelled, std::nullopt); return;
    case OrderKind::kRelease: request.hold = Hold::kNone; return;
    case OrderKind::kSuspend:
      if (request.has_state && is_active(request.id) && can_evict()) send_away(request);
      return;
    case OrderKind::kHold:
    case OrderKind::kHoldRecomputed: break;
  }
  const bool gives_up = order.kind == OrderKind::kHoldRecomputed || !can_evict();
  request.hold = gives_up ? Hold::kRecomputed : Hold::kSuspended;
  if (!request.has_state) return;
  if (!gives_up) {
    if (is_active(request.id)) send_away(request);
  } else if (request.in_flight == 0) {
    give_up(request);
  }
}

// Whatever it had is gone: a step of this life that is under way is not looked at.
void Executor::end_life(LiveRequest& request) {
  if (request.has_state) state_->free_resources(request.id);
  request.has_state = false;
  ++request.life;
  request.is_suspended = false;
  request.in_flight = request.tokens_to_come = 0;
  request.before = nullptr;
  request.cursor = request.num_matched = 0;
  request.drafts.clear();
  request.num_proposed = 0;
  request.are_drafts_known = false;
  request.has_run_before = true;
  request.snapshot_points.clear();
}

// What it needs as context: its prompt, or all of its tokens but the last, which is golden: nothing
// is sampled again.
void Executor::begin_life(LiveRequest& request) {
  request.context_end =
      request.num_generated() > 0 ? std::ssize(request.tokens) - 1 : request.num_prompt;
}

void Executor::close(LiveRequest& request, FinishReason reason, std::optional<Error> error) {
  RequestOutput& output = output_;
  output.request = request.id;
  output.choice = request.choice;
  output.finish_reason = reason;
  if (reason == FinishReason::kCancelled) {
    output.text += request.text.finish().text;
  }
  output.error = std::move(error);
  output.num_prompt_tokens = request.num_prompt;
  output.num_reused_tokens = std::max<std::int64_t>(request.num_reused, 0);
  output.num_generated_tokens = request.num_generated();
  request.is_closing = true;
  switch (reason) {
    case FinishReason::kCancelled: ++statistics_.cancelled; break;
    case FinishReason::kError: ++statistics_.failed; break;
    default: ++statistics_.finished; break;
  }
  tell(request);
  // Who gave up his answer needs nothing of it; the steps under way do not look at it again.
  if (reason == FinishReason::kCancelled || reason == FinishReason::kError) end_life(request);
}

void Executor::tell(LiveRequest& request) {
  if (request.asked.on_output) request.asked.on_output(output_);
  // Its memory is the next one's.
  output_.tokens.clear();
  output_.text.clear();
  output_.finish_reason.reset();
  output_.error.reset();
  output_.num_prompt_tokens = output_.num_reused_tokens = output_.num_generated_tokens = 0;
}

// What it leaves for others: all tokens that were run and stay. Only while it is resident.
void Executor::publish_end(LiveRequest& request) {
  if (!request.has_state || !is_active(request.id) || !config_.enable_block_reuse) return;
  if (SLACKWATER_MUTANT(engine_ends_are_not_published)) return;
  const std::int64_t committed = state_->sequence(request.id).num_committed();
  const std::int64_t end = std::ssize(request.tokens) - 1;
  if (end < committed) return;
  const Result<device::Event> written = catch_up(request, end);
  if (!written.has_value()) return;
  const auto tokens =
      std::span<const TokenId>(request.tokens)
          .subspan(static_cast<std::size_t>(committed), static_cast<std::size_t>(end - committed));
  // Where the page is past its end, because a stop text was found late, it is refused and counted.
  const Result<void> published = state_->publish(
      request.id, tokens, {.written = *written, .with_snapshot = true, .is_end = true});
  static_cast<void>(published);
}

// Requests that are done leave once none of their rows is under way.
void Executor::sweep() {
  const auto is_done = [](const std::unique_ptr<LiveRequest>& request) {
    return request->is_closing && request->rows_queued == 0;
  };
  if (std::none_of(requests_.begin(), requests_.end(), is_done)) return;
  std::int64_t gone = 0;
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    if (!is_done(request)) continue;
    publish_end(*request);
    state_->free_resources(request->id);
    remove(*request);
    ++gone;
  }
  std::erase_if(requests_, is_done);
  const std::lock_guard lock(mutex_);
  num_live_ -= gone;
}

// --- The loop.

bool Executor::has_work() const {
  const std::lock_guard lock(mutex_);
  return num_live_ > 0;
}

Result<void> Executor::drain() {
  while (!pipeline_.empty()) SLACKWATER_RETURN_IF_ERROR(finish_oldest());
  return {};
}

Result<bool> Executor::step() {
  take();
  SLACKWATER_RETURN_IF_ERROR(check_rebalance());
  if (is_idle_) take_from_held();
  const bool was_empty = pipeline_.empty();
  {
    const Timed timed(clock_, statistics_.schedule_time);
    list_candidates();
    SLACKWATER_RETURN_IF_ERROR(
        scheduler_.schedule(candidates_, *this, !pipeline_.empty(), schedule_));
  }
  bool is_queued = false;
  if (!schedule_.is_empty()) {
    const Timed timed(clock_, statistics_.prepare_time);
    SLACKWATER_ASSIGN_OR_RETURN(is_queued, prepare(next_step()));
  }
  const std::size_t under_way = config_.loop == LoopKind::kOverlap && is_queued ? 1 : 0;
  while (pipeline_.size() > under_way) {
    SLACKWATER_RETURN_IF_ERROR(finish_oldest());
    // One at a time where nothing was queued: the next pass may have candidates again.
    if (!is_queued) break;
  }
  sweep();
  is_idle_ = was_empty && schedule_.is_empty() && !candidates_.empty();
  note_statistics();
  return has_work();
}

Result<void> Executor::check_rebalance() {
  if (!config_.enable_rebalance || num_steps_ == 0 ||
      num_steps_ % config_.rebalance_check_interval != 0) {
    return {};
  }
  const Nanoseconds now = clock_.now();
  if (!state_->need_adjustment(now)) return {};
  return rebalance(now);
}

Result<void> Executor::rebalance_now() {
  const Result<void> done = rebalance(clock_.now());
  note_statistics();
  return done;
}

// Everybody sleeps, in the middle of a round too, while the pools change.
Result<void> Executor::rebalance(Nanoseconds now) {
  if (config_.placement == hybrid::ReplayPlacement::kBesidePool && max_drafts_ > 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a rebalance with replay records {}, of which there are as many as there "
                      "were slots; use ReplayPlacement::kInPool",
                      to_string(config_.placement));
  }
  const Timed timed(clock_, statistics_.rebalance_time);
  SLACKWATER_RETURN_IF_ERROR(drain());
  sweep();
  std::vector<LiveRequest*> slept;
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    if (!request->has_state || !is_active(request->id)) continue;
    if (!can_evict()) {
      give_up(*request);
      continue;
    }
    send_away(*request);
    slept.push_back(request.get());
  }
  state_->suspend_dummies();
  const bool is_off = state_->need_adjustment(now);
  const Result<void> adjusted = state_->adjust(now);
  state_->resume_dummies();
  // What is still queued looks at the tables of before.
  stream_->synchronize();
  runner_->bind(*state_);
  if (adjusted.has_value()) {
    statistics_.rebalances += is_off ? 1 : 0;
  } else if (adjusted.error().code() != ErrorCode::kResourceExhausted) {
    return adjusted;
  }
  // Who finds no room now is tried again when his turn comes.
  for (LiveRequest* const request : slept) {
    if (request->hold == Hold::kNone) static_cast<void>(bring_back(*request));
  }
  return {};
}

std::vector<RequestView> Executor::view() const {
  std::vector<RequestView> views;
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    if (request->is_closing) continue;
    RequestView& view = views.emplace_back();
    view.request = request->id;
    view.choice = request->choice;
    view.num_prompt_tokens = request->num_prompt;
    view.num_tokens = std::ssize(request->tokens);
    view.num_suspends = request->num_suspends;
    view.num_recomputes = request->num_recomputes;
    view.drafts_proposed = request->drafts_proposed;
    view.drafts_accepted = request->drafts_accepted;
    view.draft_length = request->has_drafts ? request->draft_length.next() : 0;
    view.is_in_flight = request->in_flight > 0;
    view.is_held = request->hold != Hold::kNone;
    if (!request->has_state) continue;
    const bool is_resident = is_active(request->id);
    view.state = !is_resident            ? RequestState::kSuspended
                 : request->is_context() ? RequestState::kContext
                                         : RequestState::kRunning;
    view.slot = state_->state_index(request->id);
    if (const auto position = state_->position(request->id); position.has_value()) {
      view.num_computed = position->kept;
      view.num_pending = position->num_pending;
    }
  }
  return views;
}

EngineStatistics Executor::statistics() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void Executor::note_statistics() {
  statistics_.requests_by_state = {};
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    RequestState now = RequestState::kWaiting;
    if (request->has_state) {
      now = !is_active(request->id) ? RequestState::kSuspended
            : request->is_context() ? RequestState::kContext
                                    : RequestState::kRunning;
    }
    ++statistics_.requests_by_state[static_cast<std::size_t>(now)];
  }
  statistics_.requests_by_state[static_cast<std::size_t>(RequestState::kFinished)] =
      statistics_.finished + statistics_.cancelled + statistics_.failed;
  statistics_.hybrid = state_->counters();
  statistics_.cache = state_->kv_cache().counters();
  statistics_.cache_statistics = state_->kv_cache().statistics();
  const std::lock_guard lock(mutex_);
  published_ = statistics_;
}

void Executor::audit() {
  state_->audit();
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    SLACKWATER_CHECK(!request->has_state || state_->has_request(request->id),
                     "request {} has no state", request->id.value());
    SLACKWATER_CHECK(request->in_flight <= request->rows_queued && request->in_flight >= 0,
                     "I2: request {} has {} rows under way of {}", request->id.value(),
                     request->in_flight, request->rows_queued);
  }
}

}  // namespace slackwater::engine
