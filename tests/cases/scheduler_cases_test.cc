// Faults that users of other engines have met, replayed on the scheduler with other numbers each
// time, over the real cache on a device that runs late where room is what it is about. Each comment
// names the public reports.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler_test_support.h"
#include "tests/cases/cache_cases_support.h"

namespace slackwater::scheduler {
namespace {

using cache::Crowd;
using cache::Sequence;
using testing::HasSubstr;

// Requests whose pages are those of a cache: nothing beside them, and no drafts.
class Line final : public RequestResidency {
 public:
  Line(Crowd& crowd, const SchedulerConfig& config, bool has_host = false)
      : crowd_(crowd), scheduler_(config), has_host_(has_host) {}

  void add(std::uint64_t id, std::int64_t prompt, std::int64_t total) {
    Live& live = lives_[RequestId(id)];
    live.tokens = cache::numbers(static_cast<TokenId>(id * 10000), total);
    live.prompt = prompt;
  }
  // One pass and its step, which nobody waits for. Returns the pass in one line.
  std::string pass() {
    std::vector<Candidate> candidates;
    for (const auto& [id, live] : lives_) {
      candidates.push_back(
          {.request = id,
           .phase = is_reading(live) ? RequestPhase::kContext : RequestPhase::kGeneration,
           .context_end = live.prompt,
           .is_started = live.computed > 0});
    }
    const Result<void> done = scheduler_.schedule(candidates, *this, false, decided);
    if (!done.has_value()) return "error: " + done.error().text();
    std::string line = describe(decided);
    for (const ScheduledContext& chunk : decided.contexts) run(chunk.request, chunk.num_tokens);
    for (const ScheduledGeneration& round : decided.generations) run(round.request, 1);
    return line;
  }
  // Passes until nobody is left; fewer than `limit`.
  int finish(int limit) {
    int passes = 0;
    for (; !lives_.empty() && passes < limit; ++passes) (void)pass();
    EXPECT_TRUE(lives_.empty()) << lives_.size() << " requests are left after " << limit;
    crowd_.expect_right();
    return passes;
  }
  void remove(std::uint64_t id) { lives_.erase(RequestId(id)); }
  std::int64_t computed(std::uint64_t id) { return lives_[RequestId(id)].computed; }
  const std::vector<RequestId>& finished() const { return finished_; }

  Result<std::int64_t> prepare_context(RequestId id) override {
    Live& live = lives_[id];
    if (!live.sequence.has_value()) live.sequence = crowd_.cache.create({});
    SLACKWATER_RETURN_IF_ERROR(wake(live));
    return live.computed;
  }
  Result<void> resize_context(RequestId id, std::int64_t num_tokens, std::int32_t) override {
    Live& live = lives_[id];
    return live.sequence->resize(live.computed + num_tokens);
  }
  void release_context(RequestId id) override { lives_[id].sequence.reset(); }
  Result<void> allocate_generation(RequestId id, std::int32_t) override {
    Live& live = lives_[id];
    const bool was_active = is_active(id);
    SLACKWATER_RETURN_IF_ERROR(wake(live));
    const Result<void> room = live.sequence->resize(live.computed + 1);
    if (!room.has_value() && !was_active) suspend(id);
    return room;
  }
  void suspend(RequestId id) override {
    EXPECT_TRUE(lives_[id].sequence->suspend().has_value()) << id.value();
  }
  void recompute(RequestId id) override {
    lives_[id].sequence.reset();
    lives_[id].computed = 0;
  }
  bool is_active(RequestId id) const override {
    const Live& live = lives_.at(id);
    return live.sequence.has_value() && live.sequence->status() == cache::SequenceStatus::kActive;
  }
  bool can_evict() const override { return has_host_; }

  Schedule decided;

 private:
  struct Live {
    cache::Tokens tokens;
    std::int64_t prompt = 0;
    std::int64_t computed = 0;
    std::optional<Sequence> sequence;
  };

  static bool is_reading(const Live& live) { return live.computed < live.prompt; }
  Result<void> wake(Live& live) {
    if (live.sequence->status() == cache::SequenceStatus::kActive) return {};
    SLACKWATER_RETURN_IF_ERROR(live.sequence->resume(crowd_.cache.engine.stream()));
    return {};
  }
  void run(RequestId id, std::int64_t count) {
    Live& live = lives_[id];
    const std::int64_t end = live.computed + count;
    const cache::Tokens front(live.tokens.begin(), live.tokens.begin() + end);
    crowd_.cache.engine.step(*live.sequence, front, live.computed);
    live.computed = end;
    EXPECT_TRUE(live.sequence->resize(std::nullopt, end).has_value());
    if (end < std::ssize(live.tokens)) return;
    finished_.push_back(id);
    lives_.erase(id);
  }

  Crowd& crowd_;
  Scheduler scheduler_;
  const bool has_host_;
  std::map<RequestId, Live> lives_;  // numbers are in the order of arrival
  std::vector<RequestId> finished_;
};

Crowd crowd_of(std::int64_t device_slots, std::int64_t host_slots, std::uint64_t seed) {
  return Crowd(Crowd::config({cache::kFull}, 4, device_slots, host_slots), seed);
}

// C10, deadlock, livelock, starvation: a round makes progress, waits for what will come, or is
// refused with a reason.
// KB-C10-01 (TensorRT-LLM 15401): the floor of a windowed pool comes from one sequence, and a
// second one can never run. Windows shorter than a block, for as many as a step may have: all of
// them run in every pass, across blocks.
TEST(C10Scheduler, AWindowShorterThanABlockLetsAWholeBatchRun) {
  for (const std::int32_t batch : {2, 5, 8}) {
    for (const std::int32_t window : {1, 2, 7}) {
      SCOPED_TRACE(testing::Message() << batch << " " << window);
      cache::KvCacheConfig config =
          Crowd::config({cache::kFull, cache::SlidingWindow{window, 0}}, 8, 20 * batch, 0);
      config.constraints.push_back(
          {std::vector<cache::SequenceDesc>(static_cast<std::size_t>(batch), {48, 0}), 0});
      Crowd crowd(std::move(config), 1);
      Line line(crowd, {.max_batch_size = batch, .chunk_unit = 8});
      for (std::int32_t i = 1; i <= batch; ++i) line.add(static_cast<std::uint64_t>(i), 5, 40);
      (void)line.pass();
      for (int i = 0; i < 30; ++i) {
        (void)line.pass();
        ASSERT_EQ(std::ssize(line.decided.generations), batch) << "pass " << i;
      }
      line.finish(10);
    }
  }
}

// KB-C10-03 (vLLM 45388): two requests each have what was loaded for them, neither gets the rest,
// and neither gives anything back. Both are longer than half of the pool, and are read in turn.
TEST(C10Scheduler, TwoThatNeedMoreThanThereIsFinishOneAfterTheOther) {
  for (const std::int64_t host_slots : {0, 4, 40}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message() << host_slots << " " << seed);
      Crowd crowd = crowd_of(20, host_slots, seed);
      Line line(crowd, {.max_num_tokens = 16, .chunk_unit = 4, .max_idle_passes = 2},
                host_slots > 0);
      line.add(1, 56, 64);  // 16 of 20 blocks
      line.add(2, 44, 60);
      line.add(3, 60, 72);
      line.finish(200);
      EXPECT_EQ(line.finished(), (std::vector{RequestId(1), RequestId(2), RequestId(3)}));
    }
  }
}

// KB-C10-04 (vLLM 39734): one that can never fit waits silently at the head. Whoever admits should
// have refused it; where that fails, the scheduler says who and what to do, and goes on without.
TEST(C10Scheduler, OneThatNeverFitsIsNamedAndTheRestGoesOnWithoutIt) {
  Crowd crowd = crowd_of(6, 4, 1);
  Line line(crowd, {.max_num_tokens = 64, .chunk_unit = 4, .max_idle_passes = 4}, true);
  line.add(1, 50, 60);
  line.add(2, 10, 12);
  std::string said;
  int passes = 0;
  for (; !said.starts_with("error") && passes < 30; ++passes) said = line.pass();
  EXPECT_THAT(said, HasSubstr("stuck"));
  EXPECT_THAT(said, HasSubstr("request 1 waits longest"));
  line.remove(1);
  line.finish(10);
}

// KB-C10-05 (local-inference-lab/vllm 394): read to 99 %, dropped, read again, without end. The
// pool holds the prompt to the token and not the room for drafts after it: progress only grows.
TEST(C10Scheduler, WhatFitsToTheLastTokenIsReadOnceAndFinishes) {
  for (const std::int64_t prompt : {31, 32, 40}) {
    World world({.max_num_tokens = 16, .chunk_unit = 8, .max_idle_passes = 1},
                {.pages = prompt + 1, .host_pages = 3, .host_slots = 1});
    world.add_prompt(1, prompt).num_drafts = 5;
    std::int64_t computed = 0;
    while (computed < prompt) {
      ASSERT_TRUE(world.schedule().has_value());
      ASSERT_EQ(world.decided.contexts.size(), 1u) << computed;
      EXPECT_EQ(world.decided.contexts[0].first_position, computed);
      computed += world.decided.contexts[0].num_tokens;
      world.residency.advance(RequestId(1), world.decided.contexts[0].num_tokens);
      world.candidates[0].is_started = true;
    }
    world.candidates[0].phase = RequestPhase::kGeneration;
    EXPECT_EQ(world.pass(), "g1+0");
  }
}

// KB-C10-06 (vllm-ascend 16315): the slots of whoever was preempted come back when the step ends,
// so the next one is preempted, down to the last. The step stands still here: room counts at once,
// because whoever gets it waits for the step, and no more are suspended than are needed.
TEST(C10Scheduler, WhileAStepRunsNoMoreAreSuspendedThanAreNeeded) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Crowd crowd = crowd_of(12, 30, seed);
    Line line(crowd, {.max_num_tokens = 64, .chunk_unit = 4}, true);
    for (std::uint64_t id = 1; id <= 6; ++id) line.add(id, 8, 20);  // 2 blocks each
    EXPECT_EQ(line.pass(), "c1@0+8. c2@0+8. c3@0+8. c4@0+8. c5@0+8. c6@0+8.");
    device::EventSource gate = crowd.stall(crowd.cache.engine);
    // 1 to 4 want a block each; two victims have two each.
    EXPECT_EQ(line.pass(), "g1+0 g2+0 g3+0 g4+0 s6 s5");
    EXPECT_EQ(line.pass(), "g1+0 g2+0 g3+0 g4+0") << "and nobody is any worse off while it stands";
    gate.complete(device::EventStatus::kSucceeded);
    line.finish(40);
  }
}

// KB-C10-07 (SGLang 32700): a prompt that does not fit right now is admitted piecewise into the
// room that decoders need, and half of them are retracted. Decoders run in every pass here,
// whatever comes behind them.
TEST(C10Scheduler, APromptThatDoesNotFitNowCostsTheElderNothing) {
  for (const std::int64_t host_slots : {0, 60}) {
    Crowd crowd = crowd_of(25, host_slots, 1);
    Line line(crowd, {.max_num_tokens = 64, .chunk_unit = 4}, host_slots > 0);
    for (std::uint64_t id = 1; id <= 4; ++id) line.add(id, 16, 24 + static_cast<std::int64_t>(id));
    EXPECT_EQ(line.pass(), "c1@0+16. c2@0+16. c3@0+16. c4@0+16.");
    line.add(5, 40, 48);
    line.add(6, 90, 96);
    for (int i = 0; i < 9; ++i) {
      (void)line.pass();
      ASSERT_EQ(line.decided.generations.size(), 4u) << "pass " << i;
      for (const RequestId id : line.decided.suspended) EXPECT_GT(id, RequestId(4));
      for (const RequestId id : line.decided.recomputed) EXPECT_GT(id, RequestId(4));
    }
    line.finish(80);
    EXPECT_EQ(line.finished().back(), RequestId(6));
  }
}

// C15, chunks. KB-C15-05 (vLLM 28787): tokens are lost when a request is preempted between chunks
// that it reads again. Suspended and recomputed between chunks, it begins where it has to.
TEST(C15Scheduler, AChunkBeginsWhereTheRequestIsWhateverHappenedBetween) {
  World world({.max_num_tokens = 16, .chunk_unit = 8}, {.host_pages = 90, .host_slots = 9});
  world.add_talking(9, 4);
  world.add_prompt(1, 30);
  const auto read = [&world] {
    const ScheduledContext chunk = world.decided.contexts.at(0);
    world.residency.advance(chunk.request, chunk.num_tokens);
    world.candidates[1].is_started = true;
  };
  EXPECT_EQ(world.pass(), "c1@0+8 g9+0");
  read();
  world.residency.suspend(RequestId(1));
  EXPECT_EQ(world.pass(), "c1@8+8 g9+0");
  read();
  world.residency.recompute(RequestId(1));
  world.candidates[1].is_started = false;
  for (const char* expected : {"c1@0+8 g9+0", "c1@8+8 g9+0", "c1@16+14. g9+0"}) {
    EXPECT_EQ(world.pass(), expected);
    read();
  }
}

}  // namespace
}  // namespace slackwater::scheduler
