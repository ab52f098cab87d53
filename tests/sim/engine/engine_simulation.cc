// What happens to an engine, and what its answers are compared with.

#include "engine_simulation.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "slackwater/base/check.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"
#include "testing/digest_model.h"

namespace slackwater::engine {

namespace {

using device::CopyFault;

constexpr std::int64_t kDigestLength = 160;

Tokens token_ids(std::span<const OutputToken> tokens) {
  Tokens ids;
  for (const OutputToken& token : tokens) ids.push_back(token.token);
  return ids;
}

}  // namespace

SimulatedModels make_digest_models(kernels::ExecutionContext&, kernels::ExecutionContext&) {
  DigestModelOptions options = {.has_mtp = true, .max_length = kDigestLength};
  DigestModelOptions draft = {
      .weights = 2, .num_kda_layers = 1, .num_mla_layers = 1, .max_length = kDigestLength};
  SimulatedModels models;
  auto target = std::make_unique<DigestModel>(options);
  auto proposer = std::make_unique<DigestModel>(draft);
  models.num_wrong = [target = target.get()] { return target->num_wrong(); };
  models.num_wrong_drafts = [target = target.get(), proposer = proposer.get()] {
    return target->num_wrong_mtp() + proposer->num_wrong();
  };
  models.first_wrong = [target = target.get(), proposer = proposer.get()] {
    return fmt::format("target: '{}', draft model: '{}', {} of the prediction block",
                       target->first_wrong(), proposer->first_wrong(), target->num_wrong_mtp());
  };
  models.target = std::move(target);
  models.draft = std::move(proposer);
  models.alone = std::make_unique<DigestModel>(options);
  return models;
}

// --- The tally.

void EngineTally::add(const EngineTally& other) {
  constexpr std::int64_t EngineTally::*kCounts[] = {
      &EngineTally::seeds,   &EngineTally::requests,     &EngineTally::answers,
      &EngineTally::tokens,  &EngineTally::reused,       &EngineTally::cancels,
      &EngineTally::holds,   &EngineTally::second_turns, &EngineTally::several_choices,
      &EngineTally::stopped, &EngineTally::errors,       &EngineTally::refusals,
      &EngineTally::faults,  &EngineTally::left_behind,  &EngineTally::wrong_reads,
      &EngineTally::bundles, &EngineTally::restarts};
  for (const auto count : kCounts) this->*count += other.*count;
  worst_drain = std::max(worst_drain, other.worst_drain);
  constexpr std::int64_t EngineStatistics::*kOfEngine[] = {&EngineStatistics::submitted,
                                                           &EngineStatistics::finished,
                                                           &EngineStatistics::cancelled,
                                                           &EngineStatistics::failed,
                                                           &EngineStatistics::steps,
                                                           &EngineStatistics::failed_steps,
                                                           &EngineStatistics::prompt_tokens,
                                                           &EngineStatistics::recomputed_tokens,
                                                           &EngineStatistics::generated_tokens,
                                                           &EngineStatistics::rounds,
                                                           &EngineStatistics::drafts_proposed,
                                                           &EngineStatistics::drafts_accepted,
                                                           &EngineStatistics::suspends,
                                                           &EngineStatistics::suspends_in_flight,
                                                           &EngineStatistics::resumes,
                                                           &EngineStatistics::recomputes,
                                                           &EngineStatistics::losses,
                                                           &EngineStatistics::rebalances};
  for (const auto count : kOfEngine) engine.*count += other.engine.*count;
  constexpr std::int64_t hybrid::HybridCounters::*kOfState[] = {
      &hybrid::HybridCounters::resumes_in_old_slot,
      &hybrid::HybridCounters::resumes_in_new_slot,
      &hybrid::HybridCounters::saves,
      &hybrid::HybridCounters::restores,
      &hybrid::HybridCounters::relocations,
      &hybrid::HybridCounters::commits,
      &hybrid::HybridCounters::late_acceptances,
      &hybrid::HybridCounters::ignored_acceptances,
      &hybrid::HybridCounters::lost_requests,
      &hybrid::HybridCounters::certificate_failures,
      &hybrid::HybridCounters::publishes_refused};
  for (const auto count : kOfState) engine.hybrid.*count += other.engine.hybrid.*count;
  engine.cache.snapshots_published += other.engine.cache.snapshots_published;
}

std::string EngineTally::describe() const {
  const hybrid::HybridCounters& state = engine.hybrid;
  return fmt::format(
      "{} seeds, {} steps, {} requests, {} answers and {} tokens compared; {} suspends, {} of them "
      "in flight, {} resumes, {} in the old slot and {} in another, {} late acceptances, {} "
      "recomputes, {} losses, {} rebalances; {} rounds, {} of {} drafts accepted; {} saves, {} "
      "restores, {} relocations, {} commits, {} snapshots, {} tokens reused, {} computed again; {} "
      "cancels, {} holds, {} second turns, {} with several choices, {} stopped, {} errors, {} "
      "refusals, {} left behind; {} bundles, {} restarts; {} faults, {} steps failed, {} requests "
      "lost, {} ignored "
      "acceptances, {} wrong reads; at most {} steps to drain\n",
      seeds, engine.steps, requests, answers, tokens, engine.suspends, engine.suspends_in_flight,
      engine.resumes, state.resumes_in_old_slot, state.resumes_in_new_slot, state.late_acceptances,
      engine.recomputes, engine.losses, engine.rebalances, engine.rounds, engine.drafts_accepted,
      engine.drafts_proposed, state.saves, state.restores, state.relocations, state.commits,
      engine.cache.snapshots_published, reused, engine.recomputed_tokens, cancels, holds,
      second_turns, several_choices, stopped, errors, refusals, left_behind, bundles, restarts,
      faults, engine.failed_steps, state.lost_requests, state.ignored_acceptances, wrong_reads,
      worst_drain);
}

// --- Steps.

EngineSimulation::EngineSimulation(const EngineSimulationOptions& options)
    : options_(options),
      random_(options.seed),
      weights_(random_, {kSubmit}),
      models_(options.make_models(context_, alone_context_)) {
  oracle_ = std::make_unique<SoloOracle>(*models_.alone, alone_context_, models_.tokenizer);
  draw_config();
  make_engine();
  is_running_ = true;
  tally_.seeds = 1;
}

EngineSimulation::~EngineSimulation() = default;

void EngineSimulation::run(std::int64_t num_steps) {
  CheckNote note("an engine is simulated");
  const std::string what = describe();
  SCOPED_TRACE(what);
  for (std::int64_t i = 0; i < num_steps && !testing::Test::HasFailure(); ++i) {
    note.set(fmt::format("step {}; {}", i, what));
    operate();
    step();
  }
  if (testing::Test::HasFailure()) return;
  // Now and then an engine ends before its requests.
  if (once_in(16)) {
    tally_.left_behind += std::ssize(asked_);
    return judge();
  }
  note.set("draining; " + what);
  drain();
}

void EngineSimulation::run_requests(std::int64_t num_requests) {
  CheckNote note("an engine is simulated");
  const std::string what = describe();
  SCOPED_TRACE(what);
  while (tally_.requests < num_requests && !testing::Test::HasFailure()) {
    while (asked_.size() < max_live_ && tally_.requests < num_requests) submit(draw_request());
    operate();
    note.set(fmt::format("step {}; {}", steps_, what));
    step();
  }
  if (!testing::Test::HasFailure()) drain();
}

void EngineSimulation::step() {
  ++steps_;
  is_in_step_ = true;
  const Result<bool> stepped = engine_->step();
  is_in_step_ = false;
  ASSERT_TRUE(stepped.has_value()) << "step " << steps_ << ": " << stepped.error().text() << "\n"
                                   << engine_->state().describe() << "\n"
                                   << engine_->state().kv_cache().describe();
  EXPECT_EQ(*stepped, engine_->has_work());
  for (const auto& [id, asked] : asked_) {
    EXPECT_FALSE(asked.is_cancelled && asked.cancelled_at < steps_)
        << "request " << id.value() << " goes on: " << describe(asked);
  }
  // What callbacks asked for outside a step.
  std::vector<GenerationRequest> follow_ups;
  follow_ups.swap(to_submit_);
  for (GenerationRequest& request : follow_ups) submit(std::move(request));
  if (options_.has_faults || models_.num_wrong() + models_.num_wrong_drafts() == 0) return;
  ADD_FAILURE() << "step " << steps_ << " has read what is not right: " << models_.first_wrong();
}

// All that was asked for comes to an end: those that are held, too, once they are let go, which may
// be after all others have ended.
void EngineSimulation::drain() {
  const std::int64_t first = steps_;
  const auto is_free = [](const auto& entry) { return !entry.second.is_held; };
  if (once_in(2)) {
    go_on_while([&] { return std::any_of(asked_.begin(), asked_.end(), is_free); });
  }
  for (auto& [id, asked] : asked_) {
    if (std::exchange(asked.is_held, false)) engine_->release(id);
  }
  go_on_while([&] { return engine_->has_work(); });
  if (testing::Test::HasFailure()) return;
  tally_.worst_drain = steps_ - first;
  EXPECT_EQ(asked_.size(), 0u);
  judge();
}

void EngineSimulation::go_on_while(const std::function<bool()>& has_more) {
  const std::int64_t first = steps_;
  while (has_more() && !testing::Test::HasFailure()) {
    step();
    if (steps_ - first <= steps_owed_) continue;
    for (const auto& [id, asked] : asked_) {
      ADD_FAILURE() << "no end after " << steps_ - first << " steps of the request " << id.value()
                    << ": " << describe(asked);
    }
    for (const RequestView& view : engine_->view()) {
      ADD_FAILURE() << fmt::format(
          "request {}: {}, {} tokens, {} computed, {} pending, {} suspends, {} recomputes, {}in "
          "flight, {}held",
          view.request.value(), to_string(view.state), view.num_tokens, view.num_computed,
          view.num_pending, view.num_suspends, view.num_recomputes, view.is_in_flight ? "" : "not ",
          view.is_held ? "" : "not ");
    }
    ADD_FAILURE() << engine_->statistics().steps << " of the engine's steps\n"
                  << engine_->state().describe() << "\n"
                  << engine_->state().kv_cache().describe();
  }
}

void EngineSimulation::operate() {
  for (int i = 0; i < 8 && options_.is_under_pressure; ++i) {
    // As if somebody were always in need of room.
    RequestId victim;
    if (draw_live(victim) != nullptr) engine_->suspend(victim);
  }
  const auto wants_one = [&] { return asked_.size() < max_live_; };
  if (asked_.size() * 2 < max_live_ && once_in(2)) return submit(draw_request());
  if (!once_in(2)) return;
  RequestId id;
  const Operation operation = static_cast<Operation>(weights_.draw(random_));
  Asked* const asked = draw_live(id);
  switch (operation) {
    case kSubmit:
      if (wants_one()) submit(draw_request());
      if (once_in(8)) misuse();
      return;
    case kCancel:
      if (asked != nullptr && once_in(8)) cancel(id);
      return;
    case kHold:
      if (asked == nullptr || !once_in(4)) return;
      ++tally_.holds;
      for_choices(id, [](Asked& choice) { choice.is_held = true; });
      return engine_->hold(id, once_in(3) ? HoldPolicy::kRecompute : HoldPolicy::kSuspend);
    case kRelease:
      for (auto& [held, other] : asked_) {
        if (!other.is_held || once_in(2)) continue;
        other.is_held = false;
        engine_->release(held);
      }
      return;
    case kSuspend:
      if (asked != nullptr) engine_->suspend(id);
      return;
    case kRebalance:
      if (config_.enable_rebalance && once_in(4)) {
        const Result<void> done = engine_->rebalance_now();
        EXPECT_TRUE(done.has_value()) << done.error().text();
      }
      return;
    case kBundle:
      if (once_in(16)) bundle();
      return;
    case kAudit:
      if (once_in(4)) engine_->audit();
      return;
    case kLook: {
      const std::vector<RequestView> views = engine_->view();
      EXPECT_LE(views.size(), asked_.size());
      return;
    }
    case kRunDevice: return device_->run_all();
    case kNumOperations: return;
  }
}

// An order to the first choice is one to all of them.
void EngineSimulation::for_choices(RequestId id, const std::function<void(Asked&)>& visit) {
  const Asked& asked = asked_.at(id);
  for (auto& [other, choice] : asked_) {
    const bool is_of_it = choice.first == asked.first && asked.choice == 0;
    if (other == id || is_of_it) visit(choice);
  }
}

// All choices, the first of which may have ended; they have when the next step has.
void EngineSimulation::cancel(RequestId id) {
  const RequestId first = asked_.at(id).first;
  for (auto& [other, choice] : asked_) {
    if (choice.first != first || std::exchange(choice.is_cancelled, true)) continue;
    choice.cancelled_at = steps_;
  }
  engine_->cancel(first);
}

// All requests are written down; this engine goes on, or another one takes them up.
void EngineSimulation::bundle() {
  const TemporaryDirectory parent;
  const std::filesystem::path directory = parent.path() / "bundle";
  const Result<void> saved = engine_->save_bundle(directory);
  if (!saved.has_value()) {
    EXPECT_TRUE(options_.has_faults) << saved.error().text();
    return;
  }
  ++tally_.bundles;
  if (once_in(2)) return;
  count_engine();
  engine_.reset();
  is_running_ = false;
  make_engine();
  const auto loaded =
      engine_->load_bundle(directory, [this](const RequestOutput& output) { note(output); });
  is_running_ = true;  // faults begin again
  ASSERT_TRUE(loaded.has_value()) << loaded.error().text();
  ++tally_.restarts;
  EXPECT_EQ(loaded->size(), asked_.size());
  for (const ResumedRequest& resumed : *loaded) {
    ASSERT_TRUE(asked_.contains(resumed.id)) << resumed.id.value();
    EXPECT_EQ(resumed.answer, token_ids(asked_.at(resumed.id).tokens));
  }
  // Orders that came while it was written are not part of it.
  for (auto& [id, asked] : asked_) {
    if (!asked.is_cancelled) continue;
    asked.cancelled_at = steps_;
    engine_->cancel(asked.first);
  }
}

EngineSimulation::Asked* EngineSimulation::draw_live(RequestId& id) {
  if (asked_.empty()) return nullptr;
  const auto at = std::next(asked_.begin(), static_cast<std::ptrdiff_t>(below(asked_.size())));
  id = at->first;
  return &at->second;
}

void EngineSimulation::submit(GenerationRequest request) {
  request.on_output = [this](const RequestOutput& output) { note(output); };
  const Result<RequestId> id = engine_->submit(request);
  ASSERT_TRUE(id.has_value()) << id.error().text();
  for (std::int32_t choice = 0; choice < request.num_choices; ++choice) {
    Asked asked;
    asked.request = request;
    asked.choice = choice;
    asked.first = *id;
    asked_.emplace(RequestId(id->value() + static_cast<std::uint64_t>(choice)), std::move(asked));
    ++tally_.requests;
    // A step that fails may cost all that was computed, again and again.
    steps_owed_ += 200 + 20 * (std::ssize(request.prompt_tokens) + request.max_tokens);
  }
  tally_.several_choices += request.num_choices > 1 ? 1 : 0;
}

// What can never fit is refused at once, and nothing has changed.
void EngineSimulation::misuse() {
  GenerationRequest request = draw_request();
  const std::int64_t longest = engine_->max_sequence_length();
  if (once_in(2)) {
    request.prompt_tokens = draw_tokens(longest + between(0, 3));
    request.max_tokens = static_cast<std::int32_t>(between(1, 9));
  } else {
    request.prompt_tokens.push_back(models_.target->config().vocab_size);
  }
  const Result<RequestId> refused = engine_->submit(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kOutOfRange) << refused.error().text();
  ++tally_.refusals;
}

// --- What is compared.

std::string EngineSimulation::describe(const Asked& asked) const {
  const GenerationRequest& request = asked.request;
  return fmt::format(
      "prompt of {}, max_tokens {}, choice {} of {}, temperature {}, seed {}, {} tokens so far{}{}",
      request.prompt_tokens.size(), request.max_tokens, asked.choice, request.num_choices,
      request.sampling.temperature, request.sampling.seed, asked.tokens.size(),
      asked.is_held ? ", held" : "", asked.is_cancelled ? ", cancelled" : "");
}

void EngineSimulation::note(const RequestOutput& output) {
  const auto at = asked_.find(output.request);
  ASSERT_NE(at, asked_.end()) << "request " << output.request.value() << " has ended, or never was";
  Asked& asked = at->second;
  EXPECT_EQ(output.choice, asked.choice);
  asked.tokens.insert(asked.tokens.end(), output.tokens.begin(), output.tokens.end());
  asked.text += output.text;
  if (!output.finish_reason.has_value()) {
    EXPECT_FALSE(output.error.has_value());
    EXPECT_FALSE(output.tokens.empty()) << "an output that says nothing";
    return;
  }
  compare_end(asked, output);
  if (once_in(64) && asked_.size() > 1) {
    // Within a callback, as users do.
    RequestId other;
    const Asked& drawn = *draw_live(other);
    if (other != output.request && drawn.first != asked.first) cancel(other);
  }
  asked_.erase(output.request);
}

void EngineSimulation::compare_tokens(const Asked& asked, const LoneAnswer& alone) {
  const Tokens said = token_ids(asked.tokens);
  Tokens expected = token_ids(alone.tokens);
  if (asked.is_cancelled && said.size() < expected.size()) expected.resize(said.size());
  ASSERT_EQ(said, expected) << describe(asked) << "; steps " << steps_ << "; "
                            << models_.first_wrong();
  tally_.tokens += std::ssize(said);
  for (std::size_t i = 0; i < said.size(); ++i) {
    const OutputToken& there = asked.tokens[i];
    if (!asked.request.wants_logprobs && asked.request.num_top_logprobs == 0) break;
    ASSERT_EQ(there.logprob, alone.tokens[i].logprob)
        << "of token " << i << ": " << describe(asked);
    ASSERT_EQ(there.top_logprobs.size(), alone.tokens[i].top_logprobs.size());
    for (std::size_t k = 0; k < there.top_logprobs.size(); ++k) {
      ASSERT_EQ(there.top_logprobs[k].token, alone.tokens[i].top_logprobs[k].token);
      ASSERT_EQ(there.top_logprobs[k].logprob, alone.tokens[i].top_logprobs[k].logprob);
    }
  }
}

void EngineSimulation::compare_end(Asked& asked, const RequestOutput& output) {
  const FinishReason reason = *output.finish_reason;
  EXPECT_EQ(output.num_prompt_tokens, std::ssize(asked.request.prompt_tokens));
  EXPECT_EQ(output.num_generated_tokens, std::ssize(asked.tokens));
  EXPECT_LT(output.num_reused_tokens, output.num_prompt_tokens);
  tally_.reused += output.num_reused_tokens;
  const LoneAnswer& alone = oracle_->answer(asked.request, asked.choice);
  compare_tokens(asked, alone);
  if (reason == FinishReason::kCancelled) {
    EXPECT_TRUE(asked.is_cancelled);
    ++tally_.cancels;
    return;
  }
  ASSERT_EQ(reason, alone.finish_reason) << describe(asked);
  EXPECT_EQ(asked.text, alone.text) << describe(asked);
  ASSERT_EQ(output.error.has_value(), alone.error.has_value()) << describe(asked);
  if (reason == FinishReason::kError) {
    EXPECT_EQ(output.error->code(), alone.error->code());
    ++tally_.errors;
    return;
  }
  ++tally_.answers;
  tally_.stopped += reason == FinishReason::kStop ? 1 : 0;
  // A second turn, or the same prompt once more.
  Tokens turn = asked.request.prompt_tokens;
  for (const OutputToken& token : asked.tokens) turn.push_back(token.token);
  if (once_in(8) && std::ssize(turn) + 4 < max_prompt_ && to_submit_.size() < 2) {
    GenerationRequest next = draw_request();
    next.prompt_tokens = turn;
    for (const TokenId token : draw_tokens(between(1, 3))) next.prompt_tokens.push_back(token);
    next.scope = asked.request.scope;
    next.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(
        next.max_tokens, engine_->max_sequence_length() - std::ssize(next.prompt_tokens)));
    ++tally_.second_turns;
    // While a bundle is written it would not be part of it.
    if (!is_in_step_) return to_submit_.push_back(std::move(next));
    submit(std::move(next));
  } else if (std::ssize(turn) < max_prompt_) {
    if (prompts_.size() >= 8) prompts_.erase(prompts_.begin());
    prompts_.push_back(std::move(turn));
  }
}

void EngineSimulation::count_engine() {
  engine_->audit();
  EngineTally own;
  own.engine = engine_->statistics();
  EXPECT_EQ(own.engine.hybrid.certificate_failures, 0);
  EXPECT_EQ(own.engine.cache.certificate_mismatches, 0);
  tally_.add(own);
}

// Everything that the engine counts must add up with what it was seen to do.
void EngineSimulation::judge() {
  count_engine();
  tally_.wrong_reads = models_.num_wrong() + models_.num_wrong_drafts();
  if (tally_.left_behind > 0) return;
  EXPECT_EQ(tally_.engine.finished, tally_.answers);
  EXPECT_EQ(tally_.engine.finished + tally_.engine.cancelled + tally_.engine.failed,
            tally_.requests);
  if (tally_.restarts > 0) return;
  EXPECT_EQ(tally_.engine.submitted, tally_.requests);
}

}  // namespace slackwater::engine
