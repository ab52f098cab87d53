#ifndef SLACKWATER_ENGINE_EXECUTOR_H_
#define SLACKWATER_ENGINE_EXECUTOR_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/live_request.h"
#include "engine/saved_request.h"
#include "engine/step.h"
#include "engine/step_runner.h"
#include "slackwater/base/clock.h"
#include "slackwater/engine/engine.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"
#include "slackwater/scheduler/scheduler.h"

namespace slackwater::engine {

// The loops. A step goes through
//
//   take       what was submitted, cancelled, held since the last time
//   schedule   who is in it; victims are suspended
//   prepare    slots and states; tokens, drafts of the host, tables
//   queue      the device's work, in one stream
//   outcome    once it has ended: acceptance, tokens, text, what can be reused
//
// The plain loop ends a step before it schedules the next. The overlapped loop has up to two under
// way, and looks at the outcome of the older while the younger runs: a request may be suspended
// while its row is under way, and its acceptance then arrives late.
//
// Source: kda_replay.md 5 and 6; TensorRT-LLM's PyExecutor.
// Invariants:
//   I1  requests_ is in the order of arrival.
//   I2  a request with a row under way is not told anything but by that row, except that it may be
//       suspended, held or cancelled.
//   I3  at most one row of a request is under way where the host has to know its acceptance, at
//       most two otherwise.
// Ownership: owns requests, steps and state.
// Threads: submit(), cancel(), hold(), release(), suspend() and statistics() from any; the rest
// from one at a time.
// Tokens that a draft model makes up for in one round.
inline constexpr std::int32_t kMostMadeUp = 32;

class Executor final : private scheduler::RequestResidency {
 public:
  static Result<std::unique_ptr<Executor>> create(const EngineParts& parts, EngineConfig config);
  ~Executor() override;

  Result<RequestId> submit(GenerationRequest request);
  void cancel(RequestId request);
  void hold(RequestId request, HoldPolicy policy);
  void release(RequestId request);
  void suspend_now(RequestId request);

  Result<bool> step();
  bool has_work() const;
  Result<void> rebalance_now();

  Result<void> save_bundle(const std::filesystem::path& directory);
  Result<std::vector<ResumedRequest>> load_bundle(
      const std::filesystem::path& directory, std::function<void(const RequestOutput&)> on_output);

  EngineStatistics statistics() const;
  std::vector<RequestView> view() const;
  const EngineConfig& config() const { return config_; }
  std::int64_t max_sequence_length() const { return max_sequence_length_; }
  hybrid::HybridCacheManager& state() { return *state_; }
  void audit();

 private:
  // What other threads ask for.
  enum class OrderKind : std::uint8_t { kCancel, kHold, kHoldRecomputed, kRelease, kSuspend };
  struct Order {
    OrderKind kind;
    RequestId request;
  };
  Executor(const EngineParts& parts, EngineConfig config);
  Result<void> make_state();

  // Requests.
  void take();
  bool has_news() const;
  void obey(std::span<const Order> orders);
  void obey(const Order& order, LiveRequest& request);
  LiveRequest* find(RequestId request);
  const LiveRequest* find(RequestId request) const;
  TextOutput make_text(const GenerationRequest& asked) const;
  cache::PriorityCallback priority_of(const LiveRequest& request) const;
  std::unique_ptr<LiveRequest> make_request(const GenerationRequest& asked, RequestId id,
                                            std::int32_t choice);
  void end_life(LiveRequest& request);
  void begin_life(LiveRequest& request);
  void close(LiveRequest& request, FinishReason reason, std::optional<Error> error);
  void publish_end(LiveRequest& request);
  Result<device::Event> catch_up(LiveRequest& request, std::int64_t end);
  Result<void> queue_catch_up(LiveRequest& request, std::int64_t first, std::int64_t end);
  void sweep();
  void add(std::unique_ptr<LiveRequest> request);
  void remove(LiveRequest& request);

  // Scheduling.
  void list_candidates();
  scheduler::Candidate candidate_of(LiveRequest& request);
  std::int32_t draft_room(const LiveRequest& request) const;
  std::int32_t drafts_wanted(LiveRequest& request);
  bool can_be_scheduled(const LiveRequest& request);
  bool is_in_turn(const LiveRequest& request) const;
  bool takes_turns() const;
  void choose_half();
  bool is_on_device_loop() const;
  bool waits_for_first_choice(const LiveRequest& request) const;
  void take_from_held();
  Result<std::int64_t> prepare_context(RequestId request) override;
  Result<void> resize_context(RequestId request, std::int64_t num_tokens,
                              std::int32_t num_drafts) override;
  void release_context(RequestId request) override;
  Result<void> allocate_generation(RequestId request, std::int32_t num_drafts) override;
  void suspend(RequestId request) override;
  void recompute(RequestId request) override;
  bool is_active(RequestId request) const override;
  bool can_evict() const override;
  Result<void> bring_back(LiveRequest& request);
  Result<void> make_room(LiveRequest& request, std::int64_t end);
  void lose(LiveRequest& request);
  void give_up(LiveRequest& request);
  void send_away(LiveRequest& request);

  // A step.
  Step& next_step();
  Result<bool> prepare(Step& step);
  void add_context_row(Step& step, const scheduler::ScheduledContext& scheduled);
  void add_round(Step& step, const scheduler::ScheduledGeneration& scheduled);
  void add_tables(Step& step, StepRow& row);
  void add_table(std::vector<SlotId>& blocks, const LiveRequest& request, LayerGroupId group,
                 std::size_t& first, std::size_t& count);
  Result<void> queue_drafts(Step& step);
  void add_draft_rows(Step& step, std::int32_t draft, DraftCall& call);
  Result<void> set_up_drafts(Step& step, DraftCall& call);
  Result<void> queue_target(Step& step);
  Result<void> queue_draft_context(Step& step);
  void drop_rows(Step& step, std::span<const RequestId> lost);
  void reserve_snapshots(LiveRequest& request, std::int64_t first, std::int64_t num_tokens);
  void note_queued(Step& step);
  void publish_contexts(Step& step);
  void run_item(Step& step, std::function<bool(kernels::ExecutionContext&)> part);

  // Outcomes.
  Result<void> finish_oldest();
  void fail(Step& step);
  void drop_unsound(Step& step);
  Result<void> tell_acceptances(Step& step);
  void tell_row(const StepRow& row, const RowOutcome& outcome);
  bool add_token(LiveRequest& request, const RowOutcome& outcome, std::size_t index);
  void tell(LiveRequest& request);

  Result<void> put_to_bed(LiveRequest& request);
  Result<void> check_loaded(const SavedRequest& saved) const;
  Result<bool> take_up_state(const SavedRequest& saved, const hybrid::RequestImage& image,
                             LiveRequest& request);
  Result<void> take_up(const SavedRequest& saved, const hybrid::RequestImage& image,
                       const std::function<void(const RequestOutput&)>& on_output);

  Result<void> check_rebalance();
  Result<void> rebalance(Nanoseconds now);
  Result<void> drain();
  void note_statistics();

  const EngineParts parts_;
  EngineConfig config_;
  const model::ModelConfig& model_;
  std::int32_t max_drafts_ = 0;  // M; 0 without speculation
  std::int64_t max_sequence_length_ = 0;
  RealClock clock_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<hybrid::HybridCacheManager> state_;
  std::unique_ptr<StepRunner> runner_;
  scheduler::Scheduler scheduler_;
  LayerGroupId target_group_;
  LayerGroupId mtp_group_;
  LayerGroupId draft_group_;
  bool has_target_group_ = false;
  bool has_draft_group_ = false;

  std::vector<std::unique_ptr<LiveRequest>> requests_;
  std::unordered_map<std::uint64_t, LiveRequest*> index_;  // by id
  // The next step's.
  std::vector<scheduler::Candidate> candidates_;
  scheduler::Schedule schedule_;
  std::vector<hybrid::BatchRow> batch_rows_;
  std::vector<hybrid::Acceptance> acceptances_;
  // Under way, oldest first; the memory of a step is used again once the two after it have begun.
  std::deque<Step*> pipeline_;
  std::array<Step, 4> steps_;
  std::int64_t num_steps_ = 0;
  // Of two halves of the requests, where drafts come from the host: whose turn it is, and was.
  std::uint64_t half_ = 0;
  std::uint64_t last_half_ = 0;
  std::int64_t joiners_ = 0;  // of those that wait, who may join the half whose turn it is
  std::uint64_t admissions_ = 0;
  bool is_idle_ = false;  // the last pass found nothing to do for anybody, with nothing under way
  RequestOutput output_;  // of the request that is told next

  // Shared with other threads.
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<LiveRequest>> submitted_;
  std::vector<Order> orders_;
  std::uint64_t next_id_ = 1;
  EngineStatistics published_;
  std::int64_t num_live_ = 0;  // submitted, and not finished

  EngineStatistics statistics_;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_EXECUTOR_H_
