#ifndef SLACKWATER_TESTS_SIM_SIMULATION_H_
#define SLACKWATER_TESTS_SIM_SIMULATION_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "hybrid/hybrid_test_support.h"
#include "lone_request.h"
#include "slackwater/device/sim_device.h"
#include "testing/operations.h"

namespace slackwater::hybrid {

// What happened over some seeds. All of it must happen, or the simulation shows nothing.
struct SimulationTally {
  std::int64_t steps = 0;
  std::int64_t rounds = 0;  // verify rounds of one request each
  std::int64_t drafts_accepted = 0;
  std::int64_t on_device = 0;  // rounds whose acceptance the device knew first
  std::int64_t unqueued = 0;   // batches that were set up and given up
  std::int64_t reused = 0;     // tokens
  std::int64_t restarts = 0;
  std::int64_t rewinds = 0;  // returns as context from the page's own position
  std::int64_t refusals = 0;
  std::int64_t rebalances = 0;
  std::int64_t hand_overs = 0;  // states that became snapshots, and went on elsewhere
  std::int64_t publishes = 0;
  std::int64_t snapshots = 0;
  std::int64_t dummies = 0;
  std::int64_t faults = 0;
  std::int64_t failed_steps = 0;
  std::int64_t lost = 0;
  std::int64_t states_compared = 0;
  std::int64_t pending_at_rebalance = 0;     // requests with pending drafts
  std::int64_t unaccepted_at_rebalance = 0;  // and with an acceptance still to come
  HybridCounters counters;

  void add(const SimulationTally& other);
  std::string describe() const;
};

// What is chosen for a simulation; the rest is drawn.
struct SimulationOptions {
  std::uint64_t seed = 0;
  std::optional<ReplayPlacement> placement;
  bool has_faults = true;
  std::int32_t rebalance_every = 0;  // operations; 0: as drawn
};

// What an attention layer keeps of each token, and a prediction block of its hidden state: made of
// all tokens up to it.
std::vector<std::uint64_t> attention_words(std::span<const TokenId> tokens);
void fill_hidden(std::uint64_t word, std::span<float> hidden);

// Random calls on a HybridCacheManager over the sim device, few slots for many requests, and every
// request run alone beside it: simulation.cc (the schedule), simulation_steps.cc (batches),
// simulation_judge.cc (what is compared).
//
// A fault may cost a recompute. It never costs a bit: state, window, hidden state, count and
// records of every request that has a slot, and every token said, are those of the request alone.
class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation();

  void run(std::int64_t num_operations, std::int64_t done_before);
  const SimulationTally& tally() const { return tally_; }

 private:
  enum Operation : std::size_t {
    kAdd,
    kContext,
    kVerify,
    kDecode,
    kDraft,
    kRewind,
    kAccept,
    kSuspend,
    kResume,
    kCommit,
    kPublish,
    kFree,
    kRestart,
    kRebalance,
    kRunDevice,
    kMisuse,
    kNumOperations
  };

  // A round of the target whose acceptance the host has not been told.
  struct OpenRound {
    std::uint64_t round = 0;
    std::int32_t num_written = 0;
    std::int32_t num_drafts = 0;
    std::int32_t num_accepted = 0;
    bool is_on_device = false;
  };

  struct Request {
    Request(RequestId with_id, Tokens prompt, const KdaModel& model)
        : id(with_id), tokens(prompt), foresight(model, std::move(prompt)) {}

    RequestId id;
    Tokens tokens;              // the prompt, and what it has said
    std::int64_t computed = 0;  // tokens that are kept, accepted by somebody or not yet
    Foresight foresight;
    std::vector<LoneRequest> alone;  // [tags]
    std::deque<OpenRound> rounds;
    Tokens plan;             // drafts of the next round, where a draft model has begun on them
    device::Event written;   // after it, all of its steps have ended
    device::Event arrivals;  // of what its steps began with
    // A step of it is to fail: nothing is judged until it comes back as context.
    std::shared_ptr<bool> is_suspect = std::make_shared<bool>(false);
    bool is_lost = false;  // so the manager has said
    // In a batch of others, by a copy that may have failed: its own next setup tells.
    bool has_moved_aside = false;
    bool has_ended = false;

    // Tokens that are known and not computed; after a step to the end of them one is.
    std::int64_t num_known() const { return std::ssize(tokens) - computed; }
    bool awaits_host() const { return !rounds.empty() && !rounds.back().is_on_device; }
    std::span<const TokenId> known(std::int64_t first, std::int64_t count) const {
      return std::span(tokens).subspan(static_cast<std::size_t>(first),
                                       static_cast<std::size_t>(count));
    }
  };

  // A row that is to be run.
  struct Planned {
    Request* request = nullptr;
    BatchRow row;
    Tokens tokens;
    std::int64_t first = 0;
  };

  // What a step said, until it is looked at.
  struct StepResult {
    std::vector<Tokens> next;  // [rows][tokens]
    std::vector<std::int32_t> num_accepted_tokens;
    std::vector<std::int32_t> mismatches;  // [rows] words of attention that are not its own
  };
  struct Expected {
    RequestId id;
    Tokens next;
    device::Event ready;
    std::shared_ptr<bool> is_suspect;
  };
  struct QueuedStep {
    std::shared_ptr<StepResult> result;
    std::vector<Expected> expected;  // [rows without dummies]
    device::Event done;
    device::Event read;  // the acceptance has been read
    bool is_to_fail = false;
    BatchSetup setup;  // of one that is to fail
  };
  struct Work;

  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(last - first + 1)));
  }
  HybridCacheManager& manager() { return *world_->manager; }
  std::size_t num_tags() const { return has_draft_model_ ? 2 : 1; }
  const KdaModel& model(std::size_t tag) const { return tag == 0 ? world_->model : draft_model_; }
  static std::string_view name(std::size_t tag) { return tag == 0 ? "target" : "draft"; }
  cache::SequenceStatus status(const Request& request) {
    return manager().sequence(request.id).status();
  }

  // simulation.cc
  WorldOptions draw_world();
  void draw_cache(HybridConfig& config);
  void operate();
  void add();
  Tokens draw_prompt();
  void begin_alone(Request& request);
  Request* draw_request();
  bool activate(Request& request);
  bool make_room(Request& request, std::int64_t capacity);
  bool may_be(const Error& error, Request& request);
  void accept();
  void accept(Request& request);
  void suspend();
  void suspend(Request& request);
  void resume();
  bool resume(Request& request);
  void commit();
  void publish();
  void publish(Request& request);
  void publish(Request& request, std::int64_t end, const PublishOptions& options);
  void wake_others(const Request& moved);
  void follow(Request& request);
  void end_one();
  void finish_one(Request& request);
  void restart(Request& request);
  void forget(Request& request);
  void rebalance();
  void misuse();
  void finish();

  // simulation_steps.cc
  void run_rows(Operation operation);
  std::optional<Planned> plan_context(Request& request);
  std::optional<Planned> plan_verify(Request& request, bool with_drafts);
  std::optional<Planned> plan_rewind(Request& request);
  void reserve_snapshots(Request& request, std::int64_t first, std::int64_t end);
  void run_draft_model();
  Tokens draw_drafts(Request& request, std::int64_t count);
  void run_batch(std::vector<Planned> rows, std::size_t tag);
  bool set_up(const std::vector<Planned>& rows, std::size_t tag, BatchSetup& setup);
  void queue(const std::vector<Planned>& rows, std::size_t tag, const BatchSetup& setup);
  Work make_work(const std::vector<Planned>& rows, std::size_t tag, const BatchSetup& setup);
  Tokens run_alone(const Planned& row, std::size_t tag);
  void note_said(const Planned& row, const RowSetup& setup, const Tokens& next);
  void accept_on_device(QueuedStep& step, const std::vector<Planned>& rows,
                        const BatchSetup& setup);

  // simulation_judge.cc
  void judge();
  void look_at_steps();
  void look_at_step(const QueuedStep& step);
  void compare(Request& request, std::size_t tag);
  void compare_records(Request& request, std::size_t tag, SlotId slot);
  void compare_hidden(Request& request, SlotId page, SlotId slot);
  Request* find(RequestId id);

  std::mt19937_64 random_;
  const SimulationOptions options_;
  OperationWeights<kNumOperations> weights_;
  std::uint64_t copy_fault_permille_ = 0;
  std::uint64_t step_fault_permille_ = 0;
  std::int64_t judge_every_ = 1;
  std::int64_t audit_every_ = 1;
  std::uint64_t unqueued_percent_ = 0;
  std::uint64_t on_device_percent_ = 0;
  std::size_t max_requests_ = 0;
  std::int64_t max_length_ = 0;
  std::int32_t max_drafts_ = 0;
  bool has_draft_model_ = false;
  bool can_suspend_ = true;
  std::int64_t least_quota_ = 0;
  std::int64_t most_quota_ = 0;
  Nanoseconds now_ = {};

  std::unique_ptr<World> world_;
  device::SimDevice* device_ = nullptr;  // the world's
  KdaModel draft_model_;
  std::list<Request> requests_;
  std::vector<Tokens> old_prompts_;
  std::list<QueuedStep> steps_;
  BatchSetup setup_;
  std::uint64_t next_id_ = 1;
  SimulationTally tally_;
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_TESTS_SIM_SIMULATION_H_
