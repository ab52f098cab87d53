#include "slackwater/cache/kv_cache_manager.h"

#include <array>
#include <utility>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"

namespace slackwater::cache {

std::string_view to_string(SequenceStatus status) {
  switch (status) {
    case SequenceStatus::kSuspended: return "suspended";
    case SequenceStatus::kActive: return "active";
    case SequenceStatus::kClosed: return "closed";
  }
  return "unknown";
}

namespace {

std::uint64_t log_word(std::int64_t number) { return static_cast<std::uint64_t>(number); }

// Writes down which call of a sequence is made.
template <class... Words>
auto starting(LoggedKind kind, const SequenceState& sequence, Words... words) {
  return [=, &sequence](LogWriter& log) { log.start(kind, sequence.number, 0, words...); };
}

auto starting(LoggedKind kind) {
  return [=](LogWriter& log) { log.start(kind, 0, 0); };
}

}  // namespace

KvCacheManager::KvCacheManager(std::unique_ptr<CacheCore> core) : core_(std::move(core)) {}
KvCacheManager::~KvCacheManager() = default;

Result<std::unique_ptr<KvCacheManager>> KvCacheManager::create(device::Device& device,
                                                               KvCacheConfig config) {
  SLACKWATER_ASSIGN_OR_RETURN(auto core, CacheCore::create(device, std::move(config)));
  return std::unique_ptr<KvCacheManager>(new KvCacheManager(std::move(core)));
}

Result<void> KvCacheManager::clear_reusable_blocks() {
  return core_->logged(starting(LoggedKind::kClear),
                       [&] { return core_->clear_reusable_blocks(); });
}

Result<void> KvCacheManager::shutdown() {
  return core_->logged(starting(LoggedKind::kShutdown), [&] { return core_->shutdown(); });
}

Result<void> KvCacheManager::set_quota(storage::Tier tier, std::int64_t bytes) {
  return core_->logged(
      [&](LogWriter& log) {
        log.start(LoggedKind::kSetQuota, 0, 0, index_of(tier), log_word(bytes));
      },
      [&] { return core_->set_quota(tier, bytes); });
}
std::int64_t KvCacheManager::quota(storage::Tier tier) const { return core_->quota(tier); }
bool KvCacheManager::need_adjustment(Nanoseconds now) const { return core_->need_adjustment(now); }
Result<void> KvCacheManager::adjust(Nanoseconds now) {
  return core_->logged(
      [&](LogWriter& log) { log.start(LoggedKind::kAdjust, 0, 0, log_word(now.count())); },
      [&] { return core_->adjust(now); });
}

Result<Sequence> KvCacheManager::create_sequence(const SequenceOptions& options) {
  SLACKWATER_ASSIGN_OR_RETURN(
      SequenceState* const state,
      core_->logged([&](LogWriter& log) { core_->start_create(log, options); },
                    [&] { return core_->create_sequence(options); }));
  return Sequence(core_.get(), state);
}

MatchDepths KvCacheManager::probe_reuse(const ReuseScope& scope,
                                        std::span<const TokenId> tokens) const {
  return core_->probe_reuse(scope, tokens);
}

Result<MatchDepths> KvCacheManager::prefetch(const ReuseScope& scope,
                                             std::span<const TokenId> prompt, storage::Tier tier) {
  return core_->logged([&](LogWriter& log) { core_->start_prefetch(log, scope, prompt, tier); },
                       [&] { return core_->prefetch(scope, prompt, tier); });
}

std::optional<Digest128> KvCacheManager::probe_first_new_block(
    const ReuseScope& scope, std::span<const TokenId> tokens) const {
  return core_->probe_first_new_block(scope, tokens);
}

std::vector<std::int64_t> KvCacheManager::snapshot_points(const Sequence& sequence,
                                                          std::int64_t prompt_length) const {
  return core_->snapshot_points(sequence.match(), prompt_length);
}

TokenDigests& KvCacheManager::token_digests() { return core_->digests(); }
const LayerGroups& KvCacheManager::layer_groups() const { return core_->groups(); }
std::int32_t KvCacheManager::tokens_per_block() const { return core_->config().tokens_per_block; }

Result<PageTable> KvCacheManager::page_table(std::int32_t layer, std::string_view role) const {
  return core_->page_table(layer, role);
}

TierRoom KvCacheManager::room(storage::Tier tier, LayerGroupId group) const {
  return core_->room(tier, group);
}

std::int64_t KvCacheManager::max_device_slots(LayerGroupId group) const {
  return core_->max_device_slots(group);
}

CacheCounters KvCacheManager::counters() const { return core_->counters(); }
CacheStatistics KvCacheManager::statistics() const { return core_->statistics(); }
CacheStatistics KvCacheManager::take_statistics() {
  CacheStatistics taken;
  core_->logged(starting(LoggedKind::kTakeStatistics), [&] { taken = core_->take_statistics(); });
  return taken;
}
CacheView KvCacheManager::view() const { return core_->view(); }
std::string KvCacheManager::describe() const {
  return cache::describe(core_->view()) + core_->describe_rooms();
}
std::size_t KvCacheManager::num_open_sequences() const { return core_->num_open(); }
std::int64_t KvCacheManager::num_logged_calls() const { return core_->num_logged_calls(); }

std::int64_t KvCacheManager::clamp_max_seq_len(std::int64_t batch_size,
                                               std::int64_t upper_bound) const {
  return core_->clamp_max_seq_len(batch_size, upper_bound);
}

void KvCacheManager::synchronize() { core_->synchronize(); }
void KvCacheManager::audit() const { core_->audit(); }
DrainedEvents KvCacheManager::drain_events() { return core_->drain_events(); }
std::vector<CachedPage> KvCacheManager::cached_pages() const { return core_->cached_pages(); }

Sequence::Sequence(Sequence&& other) noexcept
    : core_(std::exchange(other.core_, nullptr)), state_(std::exchange(other.state_, nullptr)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this == &other) return *this;
  close();
  core_ = std::exchange(other.core_, nullptr);
  state_ = std::exchange(other.state_, nullptr);
  return *this;
}

namespace {

// What a closed sequence is asked.
const SequenceState& closed_state() {
  static const auto* const state = new SequenceState();
  return *state;
}

tl::unexpected<Error> closed(std::string_view call) {
  return make_error(ErrorCode::kFailedPrecondition, "{} of a sequence that is closed", call);
}

}  // namespace

void Sequence::close() {
  if (state_ == nullptr) return;
  core_->logged(starting(LoggedKind::kClose, *state_), [&] { core_->close(*state_); });
  core_ = nullptr;
  state_ = nullptr;
}

Result<device::Event> Sequence::resume(device::Stream& stream) {
  if (state_ == nullptr) return closed("resume");
  return core_->logged(starting(LoggedKind::kResume, *state_),
                       [&] { return core_->resume(*state_, stream); });
}

Result<void> Sequence::suspend() {
  if (state_ == nullptr) return closed("suspend");
  return core_->logged(starting(LoggedKind::kSuspend, *state_),
                       [&] { return core_->suspend(*state_); });
}

Result<void> Sequence::prefetch(storage::Tier tier) {
  if (state_ == nullptr) return closed("prefetch");
  return core_->logged(starting(LoggedKind::kPrefetch, *state_, index_of(tier)),
                       [&] { return core_->prefetch(*state_, tier); });
}

Result<std::optional<PlannedDrop>> Sequence::plan_drop() {
  if (state_ == nullptr) return closed("plan_drop");
  SLACKWATER_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> plan,
                              core_->logged(starting(LoggedKind::kPlanDrop, *state_),
                                            [&] { return core_->plan_drop(*state_); }));
  if (!plan.has_value()) return std::optional<PlannedDrop>();
  return PlannedDrop(core_, *plan);
}

Result<void> Sequence::resize(std::optional<std::int64_t> capacity,
                              std::optional<std::int64_t> history) {
  if (state_ == nullptr) return closed("resize");
  if (core_->resize_within_blocks(*state_, capacity.value_or(state_->capacity),
                                  history.value_or(state_->history))) {
    return {};
  }
  return core_->logged(
      [&](LogWriter& log) { core_->start_resize(log, *state_, capacity, history); },
      [&] { return core_->resize(*state_, capacity, history); });
}

Result<void> Sequence::trim(std::int64_t capacity) {
  if (state_ == nullptr) return closed("trim");
  return core_->logged(starting(LoggedKind::kTrim, *state_, log_word(capacity)),
                       [&] { return core_->trim(*state_, capacity); });
}

Result<void> Sequence::commit(std::span<const TokenId> tokens, const CommitOptions& options) {
  if (state_ == nullptr) return closed("commit");
  return core_->logged([&](LogWriter& log) { log.start_commit(state_->number, tokens, options); },
                       [&] { return core_->commit(*state_, tokens, options); });
}

Result<void> Sequence::stop_committing() {
  if (state_ == nullptr) return closed("stop_committing");
  return core_->logged(starting(LoggedKind::kStopCommitting, *state_),
                       [&] { return core_->stop_committing(*state_); });
}

Result<void> Sequence::reserve_snapshot(std::int64_t position) {
  if (state_ == nullptr) return closed("reserve_snapshot");
  return core_->logged(starting(LoggedKind::kReserveSnapshot, *state_, log_word(position)),
                       [&] { return core_->reserve_snapshot(*state_, position); });
}

std::optional<SlotId> Sequence::snapshot_slot(LayerGroupId group, std::int64_t position) const {
  if (state_ == nullptr) return std::nullopt;
  core_->groups().group(group);
  return core_->snapshot_slot(*state_, group, position);
}

void Sequence::cancel_snapshot(std::int64_t position) {
  if (state_ == nullptr) return;
  core_->logged(starting(LoggedKind::kCancelSnapshot, *state_, log_word(position)),
                [&] { core_->cancel_snapshot(*state_, position); });
}

std::span<const SlotId> Sequence::slots(LayerGroupId group) const {
  if (state_ == nullptr) return {};
  core_->groups().group(group);  // CHECKs that there is one
  return state_->groups[index_of(group)].slots;
}

Result<void> Sequence::set_index_table(LayerGroupId group, std::span<SlotId> table) {
  if (state_ == nullptr) return closed("set_index_table");
  return core_->logged(
      starting(LoggedKind::kSetIndexTable, *state_, log_word(group.value()), table.size()),
      [&] { return core_->set_index_table(*state_, group, table); });
}

void Sequence::commit_statistics() {
  if (state_ == nullptr) return;
  core_->logged(starting(LoggedKind::kCommitStatistics, *state_),
                [&] { core_->commit_statistics(*state_); });
}
void Sequence::discard_statistics() {
  if (state_ == nullptr) return;
  core_->logged(starting(LoggedKind::kDiscardStatistics, *state_),
                [&] { CacheCore::discard_statistics(*state_); });
}
RequestStatistics Sequence::pending_statistics() const {
  return state_ == nullptr ? RequestStatistics() : core_->pending_statistics(*state_);
}
std::int64_t Sequence::cached_tokens(storage::Tier tier) const {
  return (state_ == nullptr ? closed_state() : *state_).cached_tokens[index_of(tier)];
}

std::vector<TokenId> Sequence::committed_tokens() const {
  return state_ == nullptr ? std::vector<TokenId>() : core_->committed_tokens(*state_);
}

SequenceStatus Sequence::status() const {
  return state_ == nullptr ? SequenceStatus::kClosed : state_->status;
}
std::int64_t Sequence::num_committed() const {
  return (state_ == nullptr ? closed_state() : *state_).num_committed;
}
std::int64_t Sequence::history() const {
  return (state_ == nullptr ? closed_state() : *state_).history;
}
std::int64_t Sequence::capacity() const {
  return (state_ == nullptr ? closed_state() : *state_).capacity;
}
std::int64_t Sequence::num_blocks() const {
  if (state_ == nullptr) return 0;
  const std::int64_t size = core_->config().tokens_per_block;
  return (state_->capacity + size - 1) / size;
}
device::Event Sequence::arrived() const {
  return (state_ == nullptr ? closed_state() : *state_).arrived;
}
RequestId Sequence::request() const {
  return (state_ == nullptr ? closed_state() : *state_).request;
}
const ReuseScope& Sequence::scope() const {
  return (state_ == nullptr ? closed_state() : *state_).scope;
}
const MatchDepths& Sequence::match() const {
  return (state_ == nullptr ? closed_state() : *state_).match;
}

}  // namespace slackwater::cache
