#ifndef SLACKWATER_CACHE_CACHE_CORE_H_
#define SLACKWATER_CACHE_CACHE_CORE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <vector>

#include "cache/block_tree.h"
#include "cache/drop_plans.h"
#include "cache/event_queue.h"
#include "cache/kinds/group_kind.h"
#include "cache/log_writer.h"
#include "cache/prefix_match.h"
#include "cache/removal_scope.h"
#include "cache/residency.h"
#include "cache/sequence_state.h"
#include "cache/statistics_book.h"
#include "cache/tuner.h"
#include "cache/write_first_mutex.h"
#include "slackwater/cache/kv_cache_manager.h"

namespace slackwater::cache {

// What a KvCacheManager and its sequences do. Public calls take the lock, but for the first of
// resize(), which looks whether anything changes that others see; private ones are made under it.
//
// Files: cache_core.cc (making, queries, what the tree loses), sequence_open.cc (create, close,
// pins of the path), sequence_resume.cc, sequence_resize.cc, sequence_trim.cc, sequence_commit.cc,
// publish.cc (how blocks become nodes), state_handover.cc, rebalance.cc, sequence_prefetch.cc,
// planned_drop.cc, cache_events.cc (what is told of the tree), statistics.cc, view.cc, audit.cc.
class CacheCore final : public RunOwners {
 public:
  static Result<std::unique_ptr<CacheCore>> create(device::Device& device, KvCacheConfig config);
  ~CacheCore() override;

  // As in KvCacheManager.
  Result<void> clear_reusable_blocks();
  Result<void> shutdown();
  Result<void> set_quota(Tier tier, std::int64_t bytes);
  std::int64_t quota(Tier tier) const;
  bool need_adjustment(Nanoseconds now) const;
  Result<void> adjust(Nanoseconds now);
  Result<SequenceState*> create_sequence(const SequenceOptions& options);
  Result<MatchDepths> prefetch(const ReuseScope& scope, std::span<const TokenId> prompt, Tier tier);
  MatchDepths probe_reuse(const ReuseScope& scope, std::span<const TokenId> tokens) const;
  std::vector<std::int64_t> snapshot_points(const MatchDepths& match,
                                            std::int64_t prompt_length) const;
  std::optional<Digest128> probe_first_new_block(const ReuseScope& scope,
                                                 std::span<const TokenId> tokens) const;
  Result<PageTable> page_table(std::int32_t layer, std::string_view role) const;
  TierRoom room(Tier tier, LayerGroupId group) const;
  std::int64_t max_device_slots(LayerGroupId group) const;
  CacheCounters counters() const;
  CacheStatistics statistics() const;
  CacheStatistics take_statistics();
  CacheView view() const;
  std::string describe_rooms() const;
  std::size_t num_open() const;
  std::int64_t clamp_max_seq_len(std::int64_t batch_size, std::int64_t upper_bound) const;
  void synchronize();
  void audit() const;
  DrainedEvents drain_events();
  std::vector<CachedPage> cached_pages() const;

  TokenDigests& digests() { return digests_; }
  const LayerGroups& groups() const { return groups_; }
  const KvCacheConfig& config() const { return config_; }
  std::uint32_t next_number() const { return next_number_; }
  std::int64_t num_logged_calls() const {
    return log_ == nullptr ? 0 : std::max<std::int64_t>(0, log_->num_calls() - 1);
  }
  storage::TieredStore& store() { return *store_; }  // for tests

  // As in Sequence.
  Result<device::Event> resume(SequenceState& sequence, device::Stream& stream);
  Result<void> suspend(SequenceState& sequence);
  void close(SequenceState& sequence);
  // True when it changes nothing that others see: then it is done. Takes no lock.
  bool resize_within_blocks(SequenceState& sequence, std::int64_t capacity, std::int64_t history);
  Result<void> resize(SequenceState& sequence, std::optional<std::int64_t> capacity,
                      std::optional<std::int64_t> history);
  Result<void> trim(SequenceState& sequence, std::int64_t capacity);
  Result<void> commit(SequenceState& sequence, std::span<const TokenId> tokens,
                      const CommitOptions& options);
  Result<void> stop_committing(SequenceState& sequence);
  Result<void> prefetch(SequenceState& sequence, Tier tier);
  // The number of a plan; nothing where a page that it would name is not there.
  Result<std::optional<std::uint64_t>> plan_drop(SequenceState& sequence);
  // As in PlannedDrop.
  void drop(std::uint64_t plan);
  void apply_drop(std::uint64_t plan);
  Result<void> reserve_snapshot(SequenceState& sequence, std::int64_t position);
  std::optional<SlotId> snapshot_slot(const SequenceState& sequence, LayerGroupId group,
                                      std::int64_t position) const;
  void cancel_snapshot(SequenceState& sequence, std::int64_t position);
  Result<void> set_index_table(SequenceState& sequence, LayerGroupId group,
                               std::span<SlotId> table);
  std::vector<TokenId> committed_tokens(const SequenceState& sequence) const;
  void commit_statistics(SequenceState& sequence);
  static void discard_statistics(SequenceState& sequence);
  RequestStatistics pending_statistics(const SequenceState& sequence) const;

  // Makes a call that changes something, and writes it down where there is a log: `start` says
  // which one it is. The others say that of calls with more to say.
  template <class Start, class Call>
  auto logged(const Start& start, const Call& call) -> decltype(call()) {
    if (log_ == nullptr) return call();
    return log_->record(start, call);
  }
  void start_create(LogWriter& log, const SequenceOptions& options) const;
  static void start_prefetch(LogWriter& log, const ReuseScope& scope,
                             std::span<const TokenId> prompt, Tier tier);
  static void start_resize(LogWriter& log, const SequenceState& sequence,
                           std::optional<std::int64_t> capacity,
                           std::optional<std::int64_t> history);

  // RunOwners, called by residency_ under the lock.
  PageRun* find_run(const RunKey& key) override;
  void drop_page(const RunKey& key, std::size_t index) override;
  void lose_page(const RunKey& key, std::size_t index) override;
  Certificate certificate(const RunKey& key, std::size_t index) override;
  void page_stored(const RunKey& key, std::size_t index) override;
  void page_removed(const RunKey& key, std::size_t index) override;
  void page_moved(const RunKey& key, std::size_t index, Tier from) override;
  // Says to whom a page of a node belongs from now on. Not while it is on disk.
  void certify_page(NodeIndex node, std::size_t group, std::size_t index);

 private:
  using ReadLock = std::shared_lock<WriteFirstMutex>;
  using WriteLock = std::unique_lock<WriteFirstMutex>;

  explicit CacheCore(KvCacheConfig config);
  Result<void> open_log();
  Result<void> open(device::Device& device);
  Result<void> check_closed(const char* call) const;
  Result<void> check_suspended(const char* call) const;
  Result<void> check_quota(Tier tier, std::int64_t bytes) const;
  void wait_for_last_uses();
  std::vector<double> wanted_ratios(Tier tier) const;
  Residency::TierSlots wanted_slots() const;
  Result<void> plan_tiers(const Residency::TierSlots& slots);
  Result<void> change_tiers(const Residency::TierSlots& slots,
                            const std::function<Result<void>(Tier)>& change);

  // Layer groups.
  std::size_t num_groups() const { return kinds_.size(); }
  const GroupKind& kind(std::size_t group) const { return *kinds_[group]; }
  std::int64_t num_blocks(std::int64_t tokens) const {
    return (tokens + config_.tokens_per_block - 1) >> block_shift_;
  }

  // The tree.
  RunKey node_key(NodeIndex node, std::size_t group) const;
  RunKey sequence_key(const SequenceState& sequence, std::size_t group) const;
  PageRun& node_run(NodeIndex node, std::size_t group);
  NodeIndex split(NodeIndex node, std::int32_t at);
  void release_page(const RunKey& key, std::size_t index);
  void remove_snapshot(NodeIndex node, std::size_t group, std::size_t index);
  std::optional<std::uint64_t> branch_key(NodeIndex node, std::size_t group,
                                          std::int64_t position) const;
  void index_states(NodeIndex node, bool is_added);
  void cut(NodeIndex node, std::int32_t num_left);
  void cut_descendants(NodeIndex node);
  void release_blocks(NodeIndex node, std::int32_t num_left);
  void erase_node(NodeIndex node);
  void tidy_node(NodeIndex node);
  void clean_up();
  bool settle(NodeIndex node);
  void break_node(NodeIndex node, std::int32_t num_left);

  // Paths.
  NodeIndex path_node(NodeIndex leaf, std::int64_t block) const;
  void pin_path(NodeIndex leaf, Pins change, const device::Event& last_use);
  void pin_block(NodeIndex leaf, std::size_t group, std::int64_t block, Pins change,
                 const device::Event& last_use);
  void pin_blocks(SequenceState& sequence, std::size_t group, std::int64_t num_blocks, Pins change,
                  const device::Event& last_use);
  void pin_snapshot(NodeIndex leaf, std::size_t group, std::int64_t position, Pins change,
                    const device::Event& last_use);
  NodeIndex realize(const PrefixMatch& match, std::int64_t num_tokens);
  void forget_match(SequenceState& sequence);
  bool has_partial_source(const SequenceState& sequence) const;

  // Resume.
  Result<void> check_gate() const;
  Result<void> bring_back(SequenceState& sequence);
  bool has_lost_pages(SequenceState& sequence);
  bool is_lost(const PageRun& run, std::size_t index) const;
  void pin_all(SequenceState& sequence, Pins change, const device::Event& last_use);
  Result<void> verify_page(const RunKey& key, const PageRun& run, std::size_t index);
  void gather_cold(SequenceState& sequence, std::vector<Residency::PageRef>& cold);
  void gather_run(const RunKey& key, const PageRun& run, std::vector<Residency::PageRef>& cold);
  std::vector<std::int32_t> first_resume_needs(const SequenceState& sequence);
  Result<void> copy_sources(SequenceState& sequence);
  Result<PageId> copy_of(const RunKey& key, std::size_t index);
  void pin_sources(SequenceState& sequence, Pins change);
  void leave_sources(SequenceState& sequence);
  Result<void> verify(SequenceState& sequence);
  Result<void> verify_snapshots(SequenceState& sequence);
  void build_tables(SequenceState& sequence, std::vector<device::Event>& arriving);

  // Prefetch.
  Result<void> check_prefetch_tier(Tier tier) const;
  Result<void> bring_up(SequenceState& sequence, Tier tier, Pins pins);
  void gather_colder(SequenceState& sequence, Tier tier, std::vector<Residency::PageRef>& colder);
  void gather_path(SequenceState& sequence, Tier tier, std::vector<Residency::PageRef>& colder);

  // Planned drop.
  bool collect_window(const SequenceState& sequence, std::size_t group,
                      std::vector<DropPlans::Place>& places);
  bool collect_state(const SequenceState& sequence, std::size_t group,
                     std::vector<DropPlans::Place>& places);
  NodeIndex committed_node(const SequenceState& sequence, std::int64_t block);
  void note_moved(NodeIndex node);

  // Index tables.
  void set_slot(SequenceGroup& group, std::int64_t block, SlotId slot);
  void trim_table(SequenceGroup& group, std::int64_t num_blocks);

  // Resize.
  Result<void> check_lengths(const SequenceState& sequence, std::int64_t capacity,
                             std::int64_t history) const;
  bool is_within_blocks(const SequenceState& sequence, std::int64_t capacity,
                        std::int64_t history) const;
  Result<void> grow(SequenceState& sequence, std::int64_t capacity, std::int64_t history);
  Result<void> make_room_beside(SequenceState& sequence, std::span<const std::int32_t> needed,
                                std::span<const BlockRange> stale);
  bool has_stale_pages(const SequenceState& sequence, std::span<const BlockRange> stale);
  void shrink(SequenceState& sequence, std::int64_t capacity);
  static Result<void> check_trim(const SequenceState& sequence, std::int64_t capacity);
  void shrink_suspended(SequenceState& sequence, std::int64_t capacity);
  void let_go(SequenceState& sequence, std::size_t group, const BlockRange& stale,
              device::Event& last_use);
  std::int32_t num_releasable(const SequenceState& sequence, std::size_t group,
                              const BlockRange& stale) const;
  BlockRange kept_stale(const SequenceState& sequence, std::size_t group,
                        std::int64_t history) const;
  void allocate_blocks(SequenceState& sequence, std::size_t group, std::int64_t first,
                       std::int64_t end);

  // Commit.
  Result<void> check_commit(const SequenceState& sequence, std::int64_t committed) const;
  void note_written(SequenceState& sequence, std::int64_t from, const device::Event& written);
  void publish(SequenceState& sequence);
  std::int32_t publish_known(SequenceState& sequence, NodeIndex child, std::int32_t num_done);
  std::int32_t num_known(const SequenceState& sequence, NodeIndex child, std::int32_t num_done);
  bool can_append(const SequenceState& sequence, std::int64_t block) const;
  void publish_new(SequenceState& sequence, std::int32_t num_done);
  void put_page(SequenceState& sequence, std::size_t group, NodeIndex node);
  PageId own_page(const SequenceState& sequence, std::size_t group, std::int64_t block) const;
  void note_block(NodeIndex node, const device::Event& written);
  void tidy_shorter(NodeIndex node);
  bool is_here(NodeIndex node, std::size_t group, std::int32_t block) const;
  bool keeps_theirs(const SequenceState& sequence, std::size_t group, NodeIndex node,
                    std::int32_t block) const;
  bool can_take_over(const SequenceState& sequence, NodeIndex node, std::int32_t block) const;
  void take_over(SequenceState& sequence, std::size_t group, NodeIndex node, std::int32_t block);
  void replace_page(SequenceState& sequence, std::size_t group, NodeIndex node, std::int32_t block);
  void drop_published(SequenceState& sequence, std::int32_t num_done);
  static void set_late(TreeNode& node, LayerGroupId group, std::int32_t block,
                       const device::Event& written);
  void absorb_shorter(NodeIndex node, NodeIndex shorter);
  void publish_state(SequenceState& sequence);
  void publish_tail(SequenceState& sequence);
  void publish_snapshots(SequenceState& sequence);
  void release_snapshots(SequenceState& sequence, const device::Event& last_use);
  NodeIndex node_of_position(const SequenceState& sequence, std::int64_t position);
  NodeIndex branch_with(NodeIndex parent, std::span<const TokenId> tokens);
  bool has_snapshot(NodeIndex node, std::size_t group, std::int64_t position) const;
  bool is_lost_snapshot(const PageRun& run, std::size_t index) const;
  struct Publication {
    device::Event written;   // others see it once this has succeeded
    device::Event last_use;  // of whoever has used the page as a sequence's own
  };
  bool put_snapshot(NodeIndex node, std::size_t group, std::int64_t position, PageId page,
                    const Publication& publication);
  void copy_endpoint(SequenceState& sequence, bool publishes_state);
  bool copy_states(SequenceState& sequence, NodeIndex node);
  bool hand_over_states(SequenceState& sequence, NodeIndex node);
  bool copy_to_new_states(SequenceState& sequence, std::span<const std::size_t> groups,
                          std::vector<PageId>& copies);
  bool copy_tail(SequenceState& sequence, NodeIndex node, bool is_new);
  void pin_node(NodeIndex node, Pins change);
  NodeIndex endpoint_node(SequenceState& sequence, bool& is_new);
  std::optional<PageId> try_allocate(std::size_t group);
  Priority priority_of(const SequenceState& sequence, std::int64_t block, std::size_t group) const;
  // After it, nothing that is queued on the stream uses the pages of now; null when suspended.
  device::Event record(SequenceState& sequence) const;
  static Pins user_pins(const SequenceState& sequence) {
    return sequence.status == SequenceStatus::kActive ? Pins{1, 0} : Pins{0, 1};
  }

  // Events.
  struct PagePlace {
    std::int32_t block = 0;  // within the node
    std::int64_t end = 0;    // in tokens from the start of the sequence
  };
  PagePlace page_place(const TreeNode& node, std::size_t group, std::size_t index) const;
  std::span<const TokenId> covered_tokens(const TreeNode& node, std::size_t group,
                                          std::size_t page) const;
  EventRecord page_record(EventRecord::Kind kind, NodeIndex node, std::size_t group,
                          std::size_t page) const;
  EventRecord block_record(NodeIndex node, std::int32_t block) const;
  void note_block_added(NodeIndex node);
  void note_blocks_removed(NodeIndex node, std::int32_t num_left);
  std::vector<NodeIndex> nodes_parents_first() const;
  template <class Visit>
  void for_each_page(const TreeNode& node, std::int32_t block, const Visit& visit) const;
  void add_tree(EventBatch& batch);
  std::array<std::int64_t, storage::kNumTiers> num_slots() const;
  // Statistics. What counts a request is called only where it is counted.
  using TierCounts = std::array<std::int64_t, kNumTiers>;
  void open_book();
  PageId source_page(const SequenceState& sequence, std::size_t group) const;
  void add_cached_tokens(NodeIndex node, std::int64_t reused, TierCounts& tokens) const;
  TierCounts cached_tokens(const SequenceState& sequence) const;
  void note_device_slots(std::size_t group);
  void count_create(SequenceState& sequence, const SequenceOptions& options);
  void count_match(SequenceState& sequence, std::size_t group, std::int64_t queried);
  void count_first_resume(SequenceState& sequence);
  void count_copy(SequenceState& sequence, std::size_t group, PageId source);
  void count_growth(SequenceState& sequence, const BlockRange& added, std::int64_t history);
  static void count_return(SequenceGroup& own, std::int64_t pages);
  CacheStatistics total_statistics() const;
  void audit_statistics() const;

  // What there is to see.
  std::vector<PoolView> view_pools() const;
  std::int32_t num_locked_pages(std::size_t group) const;
  TierRoom room_of(Tier tier, LayerGroupId group) const;
  std::vector<SequenceGroupView> view_groups(const SequenceState& sequence) const;
  SequenceView view_sequence(const SequenceState& sequence) const;
  NodeView view_node(NodeIndex node) const;
  TreeView view_tree() const;
  CacheCounters total_counters() const;

  void audit_node(NodeIndex node) const;
  void audit_plans() const;
  std::size_t audit_states(NodeIndex node) const;
  using PagePins = std::map<std::pair<std::uint32_t, std::size_t>, std::vector<Pins>>;
  void count_page_pins(const SequenceState& sequence, PagePins& pins) const;
  void audit_page_pins(NodeIndex node, const PagePins& pins) const;
  void audit_own_pages(const SequenceState& sequence, std::size_t group) const;
  void audit_sequence(const SequenceState& sequence) const;

  mutable WriteFirstMutex mutex_;
  KvCacheConfig config_;
  std::unique_ptr<LogWriter> log_;  // null: none
  int block_shift_ = 0;             // tokens_per_block is a power of two
  LayerGroups groups_;
  std::vector<std::unique_ptr<GroupKind>> kinds_;
  TokenDigests digests_;
  std::unique_ptr<storage::TieredStore> store_;
  std::unique_ptr<BlockTree> tree_;
  std::unique_ptr<Residency> residency_;
  BranchStates states_;
  std::size_t first_recurrent_ = 0;  // num_groups() where there is none
  std::unique_ptr<PrefixMatcher> matcher_;
  std::deque<SequenceState> sequences_;
  std::vector<std::uint32_t> free_sequences_;
  std::size_t num_open_ = 0;
  std::uint32_t next_number_ = 0;
  // Nodes that may have nothing left to be there for; looked at when an operation ends.
  std::vector<NodeIndex> to_tidy_;
  CacheCounters counters_;
  Tuner tuner_;
  std::unique_ptr<EventQueue> events_;                    // null where nobody wants any
  RemovalCause removal_cause_ = RemovalCause::kReplaced;  // see RemovalScope
  PageId victim_;             // of the drop under way: what goes with it is an orphan
  std::mutex drain_mutex_;    // taken before mutex_
  EventReader event_reader_;  // under drain_mutex_
  DropPlans plans_;
  std::unique_ptr<StatisticsBook> book_;  // null: nothing is counted
  // Used by one operation at a time, kept so that steps allocate nothing.
  std::vector<std::int32_t> needed_;
  std::vector<BlockRange> stale_;
  std::vector<PageId> new_pages_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_CACHE_CORE_H_
