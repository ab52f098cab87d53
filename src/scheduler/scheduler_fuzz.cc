// Random lists of requests over random pools, from barely enough for one to plenty: after every
// pass the invariants of Scheduler hold, and every request finishes within a bound.
//
//   SLACKWATER_SEED=7 SLACKWATER_OPERATIONS=1000000 slackwater_scheduler_test
//       --gtest_filter='SchedulerModel*'
//
// While a request is the oldest, a pass in which it is not scheduled is one in which it is in
// flight or the other half has its turn, or the one before nothing is in flight any more. So of
// three passes one is its own, and it is the oldest for at most
//
//   3 * (chunks + rounds + lives)
//
// passes, where chunks and rounds are counted anew for each of its lives: a failed step, a lost
// page or a batch that is not queued begins another. Without overlap it is 1 instead of 3.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler_test_support.h"
#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::scheduler {
namespace {

// One request, as an engine knows it.
struct Job {
  RequestId id;
  std::int64_t prompt = 0;
  std::int64_t outputs = 0;
  std::int32_t max_drafts = 0;
  std::int64_t generated = 0;
  bool is_generating = false;
  bool is_started = false;
  bool is_in_flight = false;

  // Its last token is certain and never part of a context that is computed again.
  std::int64_t context_end() const { return prompt + std::max<std::int64_t>(generated - 1, 0); }
};

struct Totals {
  std::int64_t passes = 0, suspended = 0, recomputed = 0, lost = 0, failed = 0, dropped = 0;
  std::int64_t finished = 0, fewer_drafts = 0, waited_for_flight = 0, released = 0;
};

class SchedulerModel {
 public:
  explicit SchedulerModel(std::uint64_t seed, Totals& totals)
      : totals_(totals), random_(seed), weights_(random_), residency_(draw_pools()) {
    is_overlapped_ = below(2) == 0;
    takes_turns_ = is_overlapped_ && below(2) == 0;
    residency_.set_recording(true);
    scheduler_ = Scheduler(draw_config());
    num_to_come_ = 1 + between(0, 24);
  }

  // To the end of all of its requests.
  void run() {
    while ((num_to_come_ > 0 || !jobs_.empty()) && !testing::Test::HasFailure()) {
      SCOPED_TRACE(testing::Message() << "after " << totals_.passes << " operations\n" << view());
      disturb();
      step();
      ++totals_.passes;
    }
    if (testing::Test::HasFailure()) return;
    for (std::uint64_t id = 1; id < next_id_; ++id) {
      EXPECT_FALSE(residency_.at(RequestId(id)).is_resident) << id;
    }
  }

 private:
  enum Event : std::size_t {
    kNothing,
    kArrival,
    kLoss,
    kFailure,
    kDrop,
    kCancel,
    kEverybodySleeps,
    kNumEvents
  };
  struct Share {
    RequestId id;
    std::int64_t num_tokens = 0;  // of its context; 0: a round
    std::int32_t num_drafts = 0;
    bool is_last = false;
  };

  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(most - least + 1)));
  }

  // The longest request fits alone without drafts; everything beyond that is luck.
  FakePools draw_pools() {
    longest_ = between(2, 60);
    FakePools pools;
    pools.tokens_per_page = between(1, 8);
    const std::int64_t alone = (longest_ + pools.tokens_per_page - 1) / pools.tokens_per_page;
    pools.pages = alone + (below(4) == 0 ? 0 : between(0, 3 * alone));
    pools.slots = between(1, 8);
    if (below(3) != 0) {
      pools.host_pages = below(3) == 0 ? between(0, 20 * alone) : between(0, 3 * alone);
      pools.host_slots = between(1, 20);
      pools.saves = between(1, 20);
    }
    return pools;
  }
  SchedulerConfig draw_config() {
    SchedulerConfig config;
    config.enable_chunked_prefill = below(4) != 0;
    config.chunk_unit = static_cast<std::int32_t>(between(1, 8));
    config.max_context_length = between(config.chunk_unit, 40);
    config.max_num_tokens = config.enable_chunked_prefill ? between(config.chunk_unit, 80)
                                                          : between(longest_, longest_ + 60);
    config.max_batch_size = static_cast<std::int32_t>(between(1, 8));
    config.max_idle_passes = 30;  // losses in a row are not progress either
    return config;
  }

  // What happens between two passes.
  void disturb() {
    if (jobs_.empty() || below(2) == 0) arrive();
    // Where every fourth step fails, nobody finishes; so it stops some time.
    const bool happens = ++num_disturbed_ < 2000 && below(4) == 0;
    const std::size_t event = happens ? weights_.draw(random_) : kNothing;
    Job& job = jobs_[below(jobs_.size())];
    drops_ = event == kDrop;
    fails_ = event == kFailure;
    if (event == kArrival) arrive();
    if (event == kLoss) {
      constexpr FakeCall::Kind kReading[] = {FakeCall::Kind::kPrepare, FakeCall::Kind::kResize};
      residency_.refuse_next(job.id,
                             job.is_generating ? FakeCall::Kind::kAllocate : kReading[below(2)],
                             ErrorCode::kDataLoss);
    }
    if (event == kCancel && below(4) == 0) {
      finish(static_cast<std::size_t>(&job - jobs_.data()));
      if (jobs_.empty()) arrive();
    }
    if (event == kEverybodySleeps && under_way_.empty()) everybody_sleeps();
  }

  void arrive() {
    if (num_to_come_ == 0) return;
    --num_to_come_;
    Job job;
    job.id = RequestId(next_id_++);
    job.prompt = between(1, longest_ - 1);
    job.outputs = between(1, longest_ - job.prompt);
    job.max_drafts = static_cast<std::int32_t>(between(0, 4));
    residency_.at(job.id).matched = below(2) == 0 ? 0 : between(0, job.prompt - 1);
    jobs_.push_back(job);
  }

  // As before the shares of the pools change.
  void everybody_sleeps() {
    for (const Job& job : jobs_) {
      if (!residency_.is_active(job.id)) continue;
      if (!job.is_started) {
        residency_.release_context(job.id);
      } else if (residency_.can_evict()) {
        residency_.suspend(job.id);
      }
    }
  }

  void step() {
    if (jobs_.empty()) return;
    list_candidates();
    note_oldest();
    (void)residency_.take_calls();
    const Result<void> done =
        scheduler_.schedule(candidates_, residency_, !under_way_.empty(), decided_);
    ASSERT_TRUE(done.has_value()) << done.error().text();
    check_victims();
    check_scheduled();
    check_oldest();
    take_over();
    ++turn_;
    if (is_overlapped_) {
      resolve(std::exchange(under_way_, queue()));
    } else {
      resolve(queue());
    }
  }

  void list_candidates() {
    candidates_.clear();
    // With nothing under way it is the turn of the oldest's half.
    if (under_way_.empty() && !jobs_.empty()) turn_ = jobs_[0].id.value() % 2;
    for (const Job& job : jobs_) {
      Candidate candidate{.request = job.id, .context_end = job.context_end()};
      candidate.is_in_flight = job.is_in_flight;
      candidate.is_started = job.is_started;
      candidate.is_held_back = takes_turns_ && !job.is_in_flight && job.id.value() % 2 != turn_ % 2;
      if (job.is_generating) candidate.phase = RequestPhase::kGeneration;
      const bool ends_now = job.is_generating && job.generated + 1 >= job.outputs;
      if (ends_now && job.is_in_flight) {
        candidate.phase = RequestPhase::kToComplete;
        candidate.is_in_flight = below(2) == 0;
      }
      // No more drafts than there are tokens to come.
      const std::int64_t rest = std::max<std::int64_t>(job.outputs - job.generated - 1, 0);
      candidate.num_drafts =
          static_cast<std::int32_t>(std::min<std::int64_t>(rest, between(0, job.max_drafts)));
      candidates_.push_back(candidate);
    }
  }

  // How long whoever is the oldest may take from here.
  void note_oldest() {
    if (oldest_ != jobs_[0].id) {
      oldest_ = jobs_[0].id;
      passes_of_oldest_ = passes_allowed_ = 0;
      allow_another_life(jobs_[0]);
    }
    ++passes_of_oldest_;
    EXPECT_LE(passes_of_oldest_, passes_allowed_)
        << "request " << oldest_.value() << " is the oldest and does not get on";
  }
  void allow_another_life(const Job& job) {
    const SchedulerConfig& config = scheduler_.config();
    const std::int64_t unit = config.enable_chunked_prefill ? config.chunk_unit : longest_;
    const std::int64_t chunks = (job.context_end() + unit - 1) / unit;
    passes_allowed_ += (is_overlapped_ ? 3 : 1) * (chunks + job.outputs - job.generated + 1);
  }

  std::size_t index_of(RequestId id) const {
    const auto same = [id](const Candidate& candidate) { return candidate.request == id; };
    return static_cast<std::size_t>(std::ranges::find_if(candidates_, same) - candidates_.begin());
  }

  // I2: who is taken from is younger than who asked, or asked himself.
  void check_victims() {
    std::size_t asked = candidates_.size();
    for (const FakeCall& call : residency_.calls()) {
      const std::size_t at = index_of(call.request);
      switch (call.kind) {
        case FakeCall::Kind::kPrepare:
        case FakeCall::Kind::kResize:
        case FakeCall::Kind::kAllocate:
          asked = at;
          EXPECT_FALSE(candidates_[at].is_in_flight || candidates_[at].is_held_back) << at;
          break;
        case FakeCall::Kind::kRecompute:
          EXPECT_GT(at, asked) << "I2";
          EXPECT_FALSE(candidates_[at].is_in_flight) << at;
          EXPECT_NE(candidates_[at].phase, RequestPhase::kToComplete);
          break;
        case FakeCall::Kind::kRelease:
          if (at != asked) ++totals_.released;
          [[fallthrough]];
        case FakeCall::Kind::kSuspend: EXPECT_GE(at, asked) << "I2"; break;
      }
    }
    for (const RequestId id : decided_.suspended) EXPECT_FALSE(residency_.is_active(id));
    for (const RequestId id : decided_.recomputed) EXPECT_FALSE(residency_.at(id).is_resident);
  }

  // I1 and I3, and the shape of chunks.
  void check_scheduled() {
    const SchedulerConfig& config = scheduler_.config();
    std::vector<RequestId> once = decided_.suspended;
    once.insert(once.end(), decided_.recomputed.begin(), decided_.recomputed.end());
    once.insert(once.end(), decided_.lost.begin(), decided_.lost.end());
    std::int64_t num_tokens = 0;
    for (const ScheduledContext& chunk : decided_.contexts) {
      const Candidate& candidate = candidates_[index_of(chunk.request)];
      const FakeResidency::Entry& entry = residency_.at(chunk.request);
      const std::int64_t end = chunk.first_position + chunk.num_tokens;
      EXPECT_EQ(candidate.phase, RequestPhase::kContext);
      EXPECT_EQ(chunk.first_position, entry.computed);
      EXPECT_EQ(chunk.is_last, end == candidate.context_end);
      EXPECT_GT(chunk.num_tokens, 0);
      EXPECT_LE(end, candidate.context_end);
      if (!chunk.is_last) {
        EXPECT_EQ(chunk.num_tokens % config.chunk_unit, 0);
      }
      if (config.enable_chunked_prefill) {
        EXPECT_LE(chunk.num_tokens, config.max_context_length);
      }
      EXPECT_TRUE(entry.is_active && entry.capacity >= end) << "I3";
      EXPECT_FALSE(candidate.is_in_flight);
      num_tokens += chunk.num_tokens;
      once.push_back(chunk.request);
    }
    for (const ScheduledGeneration& round : decided_.generations) {
      const Candidate& candidate = candidates_[index_of(round.request)];
      const FakeResidency::Entry& entry = residency_.at(round.request);
      EXPECT_EQ(candidate.phase, RequestPhase::kGeneration);
      EXPECT_LE(round.num_drafts, candidate.num_drafts);
      if (round.num_drafts < candidate.num_drafts) ++totals_.fewer_drafts;
      EXPECT_TRUE(entry.is_active && entry.capacity >= entry.computed + 1 + round.num_drafts)
          << "I3";
      EXPECT_FALSE(candidate.is_in_flight);
      num_tokens += 1 + round.num_drafts;
      once.push_back(round.request);
    }
    EXPECT_LE(num_tokens, decided_.num_tokens) << "I1";
    EXPECT_LE(decided_.num_tokens, config.max_num_tokens) << "I1";
    EXPECT_LE(std::ssize(decided_.contexts) + std::ssize(decided_.generations),
              config.max_batch_size)
        << "I1";
    std::ranges::sort(once);
    EXPECT_EQ(std::ranges::adjacent_find(once), once.end()) << "I1";
  }

  // I4.
  void check_oldest() {
    const Candidate& oldest = candidates_[0];
    if (oldest.is_in_flight || oldest.is_held_back) return;
    if (oldest.phase == RequestPhase::kToComplete) return;
    const auto is_oldest = [&](const auto& share) { return share.request == oldest.request; };
    if (std::ranges::any_of(decided_.contexts, is_oldest)) return;
    if (std::ranges::any_of(decided_.generations, is_oldest)) return;
    if (std::ranges::count(decided_.lost, oldest.request) > 0) return;
    ++totals_.waited_for_flight;
    EXPECT_TRUE(decided_.is_empty()) << "I4";
    const auto is_under_way = [](const Job& job) { return job.is_in_flight; };
    EXPECT_TRUE(std::ranges::any_of(jobs_, is_under_way)) << "I4";
  }

  // The engine hears who has to begin again.
  void take_over() {
    totals_.suspended += std::ssize(decided_.suspended);
    totals_.recomputed += std::ssize(decided_.recomputed);
    totals_.lost += std::ssize(decided_.lost);
    for (const RequestId id : decided_.recomputed) begin_again(id);
    for (const RequestId id : decided_.lost) begin_again(id);
  }
  void begin_again(RequestId id) {
    Job& job = jobs_[index_of(id)];
    residency_.free(id);
    job.is_generating = job.is_started = false;
    if (id == oldest_) allow_another_life(job);
  }

  // The batch, on its way; or not queued after all.
  std::vector<Share> queue() {
    std::vector<Share> batch;
    if (drops_) {
      ++totals_.dropped;
      passes_allowed_ += is_overlapped_ ? 3 : 1;
      return batch;
    }
    for (const ScheduledContext& chunk : decided_.contexts) {
      batch.push_back({chunk.request, chunk.num_tokens, 0, chunk.is_last});
    }
    for (const ScheduledGeneration& round : decided_.generations) {
      batch.push_back({round.request, 0, round.num_drafts, false});
    }
    for (const Share& share : batch) jobs_[index_of(share.id)].is_in_flight = true;
    return batch;
  }

  void resolve(const std::vector<Share>& batch) {
    if (fails_) ++totals_.failed;
    for (const Share& share : batch) {
      const auto at = std::ranges::find(jobs_, share.id, &Job::id);
      if (at == jobs_.end()) continue;  // cancelled meanwhile
      Job& job = *at;
      job.is_in_flight = false;
      if (fails_) {
        list_candidates();
        begin_again(job.id);
        continue;
      }
      job.is_started = true;
      if (share.num_tokens > 0) {
        residency_.advance(job.id, share.num_tokens);
        if (share.is_last) job.is_generating = true;
        if (share.is_last && job.generated == 0) job.generated = 1;
      } else {
        const std::int64_t said = 1 + between(0, share.num_drafts);
        residency_.advance(job.id, said);
        job.generated += said;
      }
      if (job.is_generating && job.generated >= job.outputs) {
        ++totals_.finished;
        finish(static_cast<std::size_t>(at - jobs_.begin()));
      }
    }
  }
  void finish(std::size_t i) {
    residency_.free(jobs_[i].id);
    residency_.at(jobs_[i].id).has_script = false;
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::string view() {
    const FakePools& pools = residency_.pools();
    std::string text = fmt::format("pages {} of {} tokens, slots {}, host {} and {}, saves {}\n",
                                   pools.pages, pools.tokens_per_page, pools.slots,
                                   pools.host_pages, pools.host_slots, pools.saves);
    for (const Job& job : jobs_) {
      const FakeResidency::Entry& entry = residency_.at(job.id);
      text += fmt::format("{}: {}+{}/{} computed {} capacity {}{}{}{}{}\n", job.id.value(),
                          job.prompt, job.generated, job.outputs, entry.computed, entry.capacity,
                          entry.is_active ? " active" : "", entry.is_resident ? " resident" : "",
                          job.is_started ? " started" : "", job.is_in_flight ? " in flight" : "");
    }
    return text;
  }

  Totals& totals_;
  std::mt19937_64 random_;
  OperationWeights<kNumEvents> weights_;
  std::int64_t longest_ = 0;  // tokens of a request, outputs included
  FakeResidency residency_;
  Scheduler scheduler_{SchedulerConfig{}};
  Schedule decided_;
  bool is_overlapped_ = false;
  std::int64_t num_disturbed_ = 0;
  bool takes_turns_ = false;  // two half-batches
  std::uint64_t turn_ = 0;
  bool drops_ = false;  // the next batch is not queued
  bool fails_ = false;  // the next step that ends has failed
  std::int64_t num_to_come_ = 0;
  std::uint64_t next_id_ = 1;
  std::vector<Job> jobs_;  // in the order of arrival
  std::vector<Candidate> candidates_;
  std::vector<Share> under_way_;
  RequestId oldest_;
  std::int64_t passes_of_oldest_ = 0;
  std::int64_t passes_allowed_ = 0;
};

TEST(SchedulerModel, EverybodyFinishesAndNobodyYoungerIsPreferred) {
  const std::uint64_t seed = test_seed();
  const std::int64_t operations = test_operations(100000);
  Totals totals;
  for (std::uint64_t world = 0; totals.passes < operations; ++world) {
    SCOPED_TRACE(testing::Message() << "world " << world);
    SchedulerModel model(seed + world, totals);
    model.run();
    ASSERT_FALSE(HasFailure());
  }
  fmt::print(stderr,
             "{} passes: {} finished, {} suspended, {} recomputed, {} lost, {} failed steps, {} "
             "batches not queued, {} with fewer drafts, {} waited for what is in flight, {} "
             "released\n",
             totals.passes, totals.finished, totals.suspended, totals.recomputed, totals.lost,
             totals.failed, totals.dropped, totals.fewer_drafts, totals.waited_for_flight,
             totals.released);
  if (operations < 10000) return;
  for (const std::int64_t number :
       {totals.finished, totals.suspended, totals.recomputed, totals.lost, totals.failed,
        totals.dropped, totals.fewer_drafts, totals.waited_for_flight, totals.released}) {
    EXPECT_GT(number, 0);
  }
}

}  // namespace
}  // namespace slackwater::scheduler
