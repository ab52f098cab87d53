#ifndef SLACKWATER_HYBRID_HYBRID_CACHE_MANAGER_H_
#define SLACKWATER_HYBRID_HYBRID_CACHE_MANAGER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "slackwater/base/clock.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/device/device.h"
#include "slackwater/hybrid/batch.h"
#include "slackwater/hybrid/config.h"
#include "slackwater/hybrid/hybrid_view.h"
#include "slackwater/hybrid/replay_state.h"
#include "slackwater/kernels/execution_context.h"

namespace slackwater::hybrid {

struct HybridRequest;
struct ImageLayout;
struct RequestImage;
struct StateCursor;

struct RequestOptions {
  RequestId request;
  std::span<const TokenId> tokens;  // the prompt; its last token is always left to compute
  cache::ReuseScope scope;
  cache::PriorityCallback priority;  // empty: the default
  std::int64_t expected_prompt_length = 0;
  // Lives of it that were given up before: acceptances of theirs are ignored, and what it finds
  // is no hit.
  std::uint64_t epoch = 0;
};

struct PublishOptions {
  device::Event written;       // after it, the pages hold what is published
  bool with_snapshot = false;  // of the recurrent states too, where they are of exactly the end
  bool is_end = false;         // nothing is written any more
};

// All state of all requests of a hybrid model: attention pages, recurrent states and snapshots of
// them in the cache, and what lies beside its pools for every recurrent slot: replay records, their
// count, and whatever else is registered. A slot is a place; everything follows the request.
//
//   add_request    -> suspended; what is known of its prompt is held
//   resume_request -> its pages are on the device; the first time, room for a save is reserved
//   setup_state_indices -> finds the slot of every row; restores what was saved, moves what moved
//   step_queued    -> the step is on the stream; positions advance
//   update_resources or record_acceptance -> how many drafts were kept
//   publish        -> what is kept becomes reusable
//   suspend_request -> what lies beside its pages is saved, and the slot forgotten
//   restart_request -> it comes back as context; free_resources: it is gone
//
// Source: MambaHybridCacheManagerV2 of TensorRT-LLM, kda_replay.md 1 to 3; required behaviours R1
// to R22 and their tests are listed in docs/replay.md.
// Invariants (audit):
//   I1  0 <= P <= M for every slot.
//   I2  a slot's entries belong to the request that owns the slot now, or P = 0.
//   I3  every slot that is handed out is below the number of the registry's entries.
//   I4  no two requests, and no request and a dummy, share a slot.
//   I5  a saved entry belongs to a suspended request, or to one that is not set up since it
//       resumed; there are as many as the registries hold.
// Ownership: owns the cache, the registries and the requests; the device, the stream of the steps
// and the context outlive it. The destructor waits for what is queued there.
// Threads: one thread.
// Errors: kNotFound for a request that is not there, kFailedPrecondition for the wrong state of it,
// kInvalidArgument for positions that do not agree, kOutOfRange for a slot past the registry,
// kResourceExhausted where there is no room, kDataLoss where bytes are lost: restart it. Nothing
// has changed then.
// Cost: nothing beyond the cache's for a request that is never suspended: no copy, no allocation,
// no wait. A suspend and the setup after it copy the slot's entries once each.
class HybridCacheManager {
 public:
  // `stream` is where steps are queued. `context` runs commits of pending drafts; null: there are
  // none.
  static Result<std::unique_ptr<HybridCacheManager>> create(device::Device& device,
                                                            device::Stream& stream,
                                                            kernels::ExecutionContext* context,
                                                            HybridConfig config);
  ~HybridCacheManager();

  // --- A request's life.

  // kInvalidArgument for an id that is there already.
  Result<void> add_request(const RequestOptions& options);
  // Brings its pages to the device, and reserves one save the first time. What was saved stays so
  // until it is set up. Returns when its pages have arrived.
  Result<device::Event> resume_request(RequestId request);
  // Saves what lies beside its pages, behind the last step, forgets its slot, and lets its pages
  // go. What is not set up since it resumed is not saved again: that slot holds nothing of its own.
  // A request that is not active is left as it is (kFailedPrecondition). Never refused for want of
  // room.
  Result<void> suspend_request(RequestId request);
  // It comes back as context, from what is known of these tokens: whatever it had is given up, and
  // acceptances still under way are ignored. It is suspended then.
  Result<void> restart_request(RequestId request, std::span<const TokenId> tokens);
  // Gives everything back, in any state. Unknown: nothing.
  void free_resources(RequestId request);
  // All of it. Again: nothing.
  Result<void> shutdown();

  // New lengths, in tokens, as Sequence::resize(). kInvalidArgument for a history past what is
  // kept: it may not be computed.
  Result<void> resize(RequestId request, std::int64_t capacity,
                      std::optional<std::int64_t> history = std::nullopt);

  // --- Steps.

  // Finds the slots of a batch for the recurrent layers of one tag, and makes them what the rows
  // begin with: what was saved is restored, what moved is relocated, who is new is reset, as one
  // permutation. Checks, before anything is queued, that every row begins where page and pending
  // drafts end, that its slot is within bounds, and that there is room for its tokens. A batch that
  // is then not queued has lost nothing. Between the two nothing else is done with its requests: a
  // commit, a publication or a suspend makes the setup stale.
  Result<void> setup_state_indices(std::span<const BatchRow> rows, std::string_view group_tag,
                                   BatchSetup& setup);
  Result<void> setup_state_indices(std::span<const BatchRow> rows, BatchSetup& setup) {
    return setup_state_indices(rows, "target", setup);
  }
  // Adds rows of dummies until there are `num_rows`, one token each at position 0. kOutOfRange with
  // fewer dummies than that, kResourceExhausted where one of them cannot be resumed.
  Result<void> pad_to(std::size_t num_rows, BatchSetup& setup);

  // Whether its rows still begin where it says; to be asked before the step is queued.
  bool is_current(const BatchSetup& setup) const;
  // The step is on the stream. Rows with drafts await their acceptance; the others have none.
  // CHECK: the setup is current.
  void step_queued(const BatchSetup& setup);
  // The acceptance of the rows of a step, known on the device once the stream gets there:
  // `num_accepted_tokens` [rows] counts golden tokens, is 0 for rows past a stop, and is read then.
  // Dummies are skipped; records of a draft model count once the host has told, too.
  void record_acceptance(const BatchSetup& setup, const std::int32_t* num_accepted_tokens);
  // The acceptance of rounds, known to the host. Goes to the slot of an active request, and to what
  // was saved of a suspended one; room for drafts that were not kept is given back, so resize() for
  // the next step comes after it. Other epochs and rounds, and requests that are gone, are ignored
  // and counted. Rounds behind one that has ended ran no token: what was counted of them is taken
  // back. kInvalidArgument for more than there were drafts: nothing has changed then.
  Result<void> update_resources(std::span<const Acceptance> acceptances);
  // The step has failed, or its results are not to be used: its rows come back as context.
  void fail_step(const BatchSetup& setup);

  // --- What others may reuse.

  // Folds the first `count` pending drafts into the pages, and gives up the others; nothing: all.
  Result<void> commit_pending(RequestId request, std::optional<std::int32_t> count = std::nullopt);
  // Commits kept tokens, from num_committed() on. Only where the page is not past them and the
  // pending drafts reach them: page position <= end <= page position + P; and no further than what
  // a draft model has computed, whose pages they are too. Else nothing is published, which is
  // counted (kFailedPrecondition). With a snapshot or at the end, pending drafts up to the end are
  // committed first, and the request may go on in another slot.
  Result<void> publish(RequestId request, std::span<const TokenId> tokens,
                       const PublishOptions& options);
  // Where snapshots of its prompt are worth taking, ascending.
  Result<std::vector<std::int64_t>> snapshot_points(RequestId request,
                                                    std::int64_t prompt_length) const;
  // A page for the state at a position of the prompt, written by the context row that covers it.
  // kResourceExhausted where there is no room: it is skipped.
  Result<void> reserve_snapshot(RequestId request, std::int64_t position);

  // --- A suspended request as bytes (request_image.h).

  // All that it has. It is suspended before and after; its pages come to the device for as long as
  // it takes, and the steps it was in have ended by then, those that failed are known (fail_step).
  // `tokens` are its own from the first one on, at least those that its pages stand for
  // (kInvalidArgument). kFailedPrecondition while an acceptance is pending, or where its end is
  // published; kResourceExhausted where its pages find no room now; kUnimplemented for tokens that
  // stand for digests, which are of this process only.
  Result<RequestImage> export_request(RequestId request, std::span<const TokenId> tokens);
  // It is there afterwards, suspended, where it was: position() is the same but for a new epoch.
  // All pages are its own, nothing is committed yet. Tokens and scope must be those of the image;
  // options.tokens may be empty. One without pages is added as any other. kInvalidArgument for
  // another layout, with what differs; kDataLoss for bytes that are not what was exported;
  // kResourceExhausted where there is no room for it.
  //
  // With CommitPolicy::kEndpointsOnly, where a commit begins or ends at the history, its first
  // publication is of exactly the history it came with, unless that is 0.
  Result<void> import_request(const RequestOptions& options, const RequestImage& image);
  // What an image must have been made with.
  ImageLayout image_layout() const;

  // --- Dummies, and shares of the pools.

  // Suspends or resumes all dummies. Those that find no room stay suspended.
  void suspend_dummies();
  void resume_dummies();

  bool need_adjustment(Nanoseconds now) const { return kv_cache_->need_adjustment(now); }
  // Changes the shares of the pools while everybody is suspended. kFailedPrecondition where replay
  // records lie beside the pool.
  Result<void> adjust(Nanoseconds now);
  Result<void> set_quota(storage::Tier tier, std::int64_t bytes);

  // --- Looking.

  bool has_request(RequestId request) const;
  // kept and the rounds are the request's; page and pending drafts those of a tag.
  Result<RequestPosition> position(RequestId request, std::string_view group_tag = "target") const;
  // The slot known for it; nothing while it is suspended or not set up.
  std::optional<SlotId> state_index(RequestId request, std::string_view group_tag = "target") const;
  // Its share of the cache. CHECK: it is there.
  const cache::Sequence& sequence(RequestId request) const;
  ReplayState& replay_state(std::string_view group_tag = "target");
  cache::KvCacheManager& kv_cache() { return *kv_cache_; }
  const HybridConfig& config() const { return config_; }
  HybridCounters counters() const;
  HybridView view() const;
  std::string describe() const;
  void synchronize();
  // Aborts with the invariant's number where one does not hold; waits for what is queued.
  void audit();

 private:
  HybridCacheManager(device::Device& device, device::Stream& stream,
                     kernels::ExecutionContext* context, HybridConfig config);
  Result<void> make_groups();
  Result<void> add_dummies();
  void keep(std::unique_ptr<HybridRequest> request);
  Result<HybridRequest*> find(RequestId request);
  Result<const HybridRequest*> find(RequestId request) const;
  Result<std::size_t> find_tag(std::string_view group_tag) const;

  // Setup of a batch.
  Result<void> check_row(const BatchRow& row, std::size_t tag, HybridRequest& request) const;
  Result<void> check_position(const BatchRow& row, std::size_t tag,
                              const HybridRequest& request) const;
  bool is_lost(HybridRequest& request, std::size_t tag);
  void plan_row(const BatchRow& row, std::size_t tag, HybridRequest& request);
  void settle_in(StateCursor& cursor, SlotId now);
  void plan_moves(std::size_t tag);
  void apply_changes(std::size_t tag);
  void fill_row(const BatchRow& row, std::size_t tag, HybridRequest& request, RowSetup& out);

  void set_pending(std::size_t tag, SlotId slot, std::int32_t pending);
  void queue_pending();
  void note_snapshots(const RowSetup& row, std::size_t tag, HybridRequest& request);
  void advance(const RowSetup& row, std::size_t tag, HybridRequest& request);
  void resolve_round(HybridRequest& request, std::int32_t num_accepted);
  bool is_of_round(std::size_t tag, const StateCursor& cursor, std::int64_t page) const;
  void tell_slots(HybridRequest& request, std::optional<std::size_t> knows);
  void end_rounds(HybridRequest& request);
  Result<void> check_end(const HybridRequest& request, const Acceptance& acceptance) const;
  void take_back(HybridRequest& request, const Acceptance& acceptance);
  bool is_settled_round(const Acceptance& acceptance) const;
  void give_back_room(HybridRequest& request);
  Result<void> check_settled(const HybridRequest& request, std::string_view what) const;
  Result<void> check_kept(const HybridRequest& request, std::int64_t end);
  void queue_commit(HybridRequest& request, std::size_t tag, std::int32_t count);
  Result<bool> settle_states(HybridRequest& request, std::int64_t end,
                             const PublishOptions& options);
  void cancel_unwritten(HybridRequest& request, std::int64_t end);
  void note_slot_changes(HybridRequest& request);
  void audit_tag(std::size_t tag) const;

  // Images of requests.
  Result<void> check_new(RequestId request) const;
  Result<void> check_export(const HybridRequest& request, std::span<const TokenId> tokens) const;
  Result<void> read_saves(HybridRequest& request, RequestImage& image);
  Result<void> read_pages(HybridRequest& request, RequestImage& image);
  Result<void> copy_out(HybridRequest& request, RequestImage& image);
  Result<void> check_image(const RequestOptions& options, const RequestImage& image) const;
  Result<void> check_parts(const RequestImage& image) const;
  Result<void> check_tag(const RequestImage& image, std::size_t tag) const;
  Result<void> check_stamps(const RequestOptions& options, const RequestImage& image);
  Result<void> place_image(HybridRequest& request, const RequestImage& image);
  Result<void> copy_in(HybridRequest& request, const RequestImage& image);
  Result<void> make_image_stream();

  Result<void> open(HybridRequest& request, std::span<const TokenId> tokens);
  Result<void> start(HybridRequest& request);
  void release_saves(HybridRequest& request);
  void drop_saved(HybridRequest& request, std::size_t tag);
  void forget(HybridRequest& request);
  void resize_registries();
  Result<void> grow_registries();
  bool is_anybody_active() const;
  void reseed(std::size_t tag, SlotId slot);
  Result<void> check_rebalance(std::string_view what) const;
  bool can_resize(const ReplayState& tag) const;

  device::Device& device_;
  device::Stream& stream_;
  kernels::ExecutionContext* const context_;
  HybridConfig config_;
  std::unique_ptr<cache::KvCacheManager> kv_cache_;
  std::vector<std::unique_ptr<ReplayState>> tags_;  // one per recurrent layer group
  std::map<RequestId, std::unique_ptr<HybridRequest>> requests_;
  // The same, for every call that names one.
  std::unordered_map<std::uint64_t, HybridRequest*> index_;
  std::vector<std::unique_ptr<HybridRequest>> dummies_;
  std::vector<HybridRequest*> moved_;  // whose slots have changed since they were set up
  // Of a setup; kept for their memory.
  SlotChanges changes_;
  SlotRegistry::Applied applied_;
  std::vector<HybridRequest*> rows_;       // [rows]
  std::vector<HybridRequest*> restoring_;  // [changes_.restores]
  struct PendingWrite {
    std::int32_t* place;
    std::int32_t pending;
  };
  // Counts that one call queues together, and whether the stream is done with them.
  struct PendingBatch {
    std::vector<PendingWrite> writes;
    std::atomic<bool> is_done{true};
  };
  std::vector<PendingWrite> pending_writes_;  // of the call under way
  std::vector<std::unique_ptr<PendingBatch>> pending_batches_;
  // Slots that the device tells how many drafts were accepted.
  struct AcceptancePlace {
    std::int32_t* pending;
    std::int32_t max_pending;
    std::size_t row;
  };
  struct AcceptanceBatch {
    std::vector<AcceptancePlace> places;
    const std::int32_t* counts = nullptr;
    std::atomic<bool> is_done{true};
  };
  std::vector<std::unique_ptr<AcceptanceBatch>> acceptance_batches_;
  // Copies of images, apart, so that one that fails is not taken for a step; made for the first.
  std::unique_ptr<device::Stream> image_stream_;
  std::uint64_t setups_ = 0;
  HybridCounters counters_;
  bool is_shut_down_ = false;
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_HYBRID_CACHE_MANAGER_H_
