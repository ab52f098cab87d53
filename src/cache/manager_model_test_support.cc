// What sequences do.

#include <algorithm>
#include <memory>
#include <utility>

#include "cache/manager_model_test_support.h"
#include "testing/fault_disk_io.h"

namespace slackwater::cache {

using device::Event;
using device::EventStatus;
namespace {

constexpr std::int64_t kPageBytes = 1024;

}  // namespace

using Tokens = std::vector<TokenId>;

void KvCacheManagerModel::start(std::uint64_t seed) {
  device::SimOptions sim;
  sim.seed = seed;
  copy_fault_permille_ = below(3) == 0 ? 50 : 0;
  disk_fault_permille_ = below(3) == 0 ? 100 : 0;
  sim.copy_fault = [this](std::int64_t) {
    if (below(1000) >= copy_fault_permille_) return device::CopyFault::kNone;
    ++num_faults_;
    return static_cast<device::CopyFault>(1 + below(3));
  };
  device_ = std::make_unique<device::SimDevice>(sim);
  KvCacheConfig config;
  config.tokens_per_block = 1 << below(4);
  choose_layers(config);
  config.grain_bytes = 4096;
  config.device_bytes = 1;
  config.device_bytes =
      min_quotas(config)->device_bytes + static_cast<std::int64_t>(below(32) << 13);
  if (below(4) != 0) config.host_bytes = 1 << 14 << below(4);
  if (below(3) == 0) config.disk_bytes = 1 << 16;
  config.max_device_bytes = config.device_bytes + (1 << 16);
  config.max_host_bytes = config.host_bytes + (1 << 16);
  config.disk.directory = directory_;
  config.disk.segment_bytes = 1 << 15;
  config.disk_io = std::make_unique<storage::FaultDiskIo>(
      storage::make_blocking_disk_io(), [this](std::int64_t, const storage::IoRequest&) {
        if (below(1000) >= disk_fault_permille_) return storage::DiskFault::kNone;
        ++num_faults_;
        constexpr storage::DiskFault kFaults[] = {
            storage::DiskFault::kError, storage::DiskFault::kShort, storage::DiskFault::kFlip,
            storage::DiskFault::kTorn, storage::DiskFault::kLost};
        return kFaults[below(std::size(kFaults))];
      });
  config.disk.warn = [](std::string_view) {};
  if (below(3) == 0) config.commit_policy = CommitPolicy::kEndpointsOnly;
  config.explicit_states = has_explicit_states_ = below(3) == 0;
  config.enable_partial_reuse = below(4) != 0;
  if (below(4) == 0) config.reuse_match_backoff = static_cast<std::int64_t>(below(5));
  config.max_util_for_resume = below(3) == 0 ? 0.8 : 1;
  if (config.host_bytes > 0 && below(3) == 0) {
    config.guarantee_suspend = guarantees_suspend_ = true;
    config.host_bytes = std::max(config.host_bytes, min_quotas(config)->host_bytes);
  }
  has_priorities_ = below(3) == 0;
  policy_ = config.commit_policy;
  choose_insight(config);
  const bool counts = config.enable_statistics;
  auto made = KvCacheManager::create(*device_, std::move(config));
  ASSERT_TRUE(made.has_value()) << made.error().text();
  manager_ = *std::move(made);
  recount_.open(*manager_, counts);
  engine_ = std::make_unique<FakeEngine>(*manager_, *device_);
  for (std::size_t i = 0; i < std::size(images_); ++i) {
    Sha256Digest digest = {};
    digest[0] = static_cast<std::byte>(i);
    images_[i] = *manager_->token_digests().acquire(digest);
  }
}

void KvCacheManagerModel::choose_layers(KvCacheConfig& config) {
  const std::size_t num_layers = 1 + below(4);
  const bool has_records = below(2) == 0;
  if (below(3) == 0) config.pool_policy = storage::PoolPolicy::kOnePerSize;
  for (std::size_t i = 0; i < num_layers; ++i) {
    LayerConfig layer;
    layer.layer = static_cast<std::int32_t>(i);
    layer.kind = i == 0 && below(4) != 0 ? LayerKind(FullAttention()) : random_kind(random_);
    layer.buffers = {{"digest", kPageBytes << below(2)}};
    if (has_records && std::holds_alternative<Recurrent>(layer.kind)) {
      layer.buffers.push_back({"record", kPageBytes << below(2), 0, true});
    }
    if (below(4) == 0) layer.group_tag = "draft";
    config.layers.push_back(std::move(layer));
  }
}

// When shares follow the load, and who is told what happens.
void KvCacheManagerModel::choose_insight(KvCacheConfig& config) {
  config.rebalance = {.min_samples = static_cast<std::int64_t>(below(6)),
                      .update_interval = 1 + static_cast<std::int64_t>(below(3)),
                      .cooldown = Nanoseconds(below(2) * 50),
                      .threshold = 1.05,
                      .decay = 0.5};
  const char* const kept_log = std::getenv("SLACKWATER_LOG");
  is_logged_ = below(4) == 0 || kept_log != nullptr;
  log_path_ = kept_log != nullptr ? std::filesystem::path(kept_log) : directory_ / "calls";
  std::filesystem::remove(log_path_);
  if (is_logged_) config.operation_log.path = log_path_;
  config.max_events = random_max_events(below(64));
  has_events_ = config.max_events > 0;
  config.enable_statistics = below(8) != 0;
}

void KvCacheManagerModel::step() {
  // Every other operation is a step: sequences live long enough to meet.
  switch (below(2) == 0 ? kStep : weights_.draw(random_)) {
    case kCreate: return create();
    case kResume: return resume();
    case kSuspend: return suspend();
    case kStep: return compute();
    case kGrow: return grow();
    case kShrink: return shrink();
    case kStop: return stop();
    case kEnd: return end();
    case kClose: return close();
    case kReserve: return reserve();
    case kCancel: return cancel();
    case kProbe: return probe();
    case kRunDevice: return run_device();
    case kClear: return clear();
    case kTable: return table();
    case kTakeTurns: return take_turns();
    case kQuota: return change_quota();
    case kAdjust: return adjust();
    case kDrain: return drain();
    case kPrefetch: return prefetch();
    case kPlanDrop: return plan_drop();
    case kTrim: return trim();
    default: return;
  }
}

// Prompts share fronts, and part at any token.
Tokens KvCacheManagerModel::random_tokens(std::uint64_t most) {
  Tokens tokens;
  const std::uint64_t length = 1 + below(most);
  std::uint64_t stem = below(4);
  for (std::uint64_t i = 0; i < length; ++i) {
    if (below(12) == 0) stem = below(4);
    const bool is_image = stem == 3 && i % 5 == 2 && i < std::size(images_);
    tokens.push_back(is_image ? images_[i] : static_cast<TokenId>(stem * 1000 + i));
  }
  return tokens;
}

KvCacheManagerModel::Model* KvCacheManagerModel::random_sequence(
    std::optional<SequenceStatus> status) {
  std::vector<Model*> found;
  for (Model& model : models_) {
    if (!status.has_value() || model.sequence.status() == *status) found.push_back(&model);
  }
  return found.empty() ? nullptr : found[below(found.size())];
}

void KvCacheManagerModel::create() {
  if (models_.size() >= 8) return close();
  Model model;
  if (below(5) == 0) model.scope.salt = below(2);
  if (below(5) == 0) model.scope.adapter = below(2);
  model.tokens = random_tokens(40);
  SequenceOptions options;
  options.scope = model.scope;
  options.tokens = model.tokens;
  options.request = RequestId(next_request_++);
  options.is_dummy = below(8) == 0;
  if (has_priorities_) {
    options.priority = [salt = random_()](BlockOrdinal block, LayerGroupId group) {
      return static_cast<Priority>((salt >> ((block.value() / 3 + group.value()) % 8)) % 3 * 40);
    };
  }
  choose_counting(options);
  const MatchDepths probed = manager_->probe_reuse(model.scope, model.tokens);
  auto made = manager_->create_sequence(options);
  ASSERT_TRUE(made.has_value()) << made.error().text();
  model.sequence = *std::move(made);
  recount_.created(model.counted, model.sequence, options);
  check_match(model.scope, model.tokens, model.sequence.match());
  tally_.tokens_reused += model.sequence.num_committed();
  tally_.partial_matches += model.sequence.num_committed() % manager_->tokens_per_block() != 0;
  // Looking at an event lets the device go on: more may be written, or lost, than before.
  if (steps_.empty() && num_faults_ == 0 && !guarantees_suspend_) {
    ASSERT_EQ(model.sequence.num_committed(), probed.reused);
  }
  ASSERT_EQ(model.sequence.committed_tokens(),
            Tokens(model.tokens.begin(), model.tokens.begin() + model.sequence.num_committed()));
  check_state_is_said(model);
  models_.push_back(std::move(model));
}

void KvCacheManagerModel::check_match(const ReuseScope& scope, std::span<const TokenId> tokens,
                                      const MatchDepths& match) {
  ASSERT_EQ(match.lookup, std::ssize(tokens) - 1);
  ASSERT_LE(match.content, std::min(match.lookup, naive_.content(scope, tokens)));
  ASSERT_LE(match.attention, match.content);
  ASSERT_LE(match.reused, match.attention);
}

KvCacheManagerModel::Before KvCacheManagerModel::look_at(const Model& model) const {
  const Sequence& s = model.sequence;
  Before before{s.num_committed(), s.history(), s.capacity(), s.status(), {}, {}, {}};
  before.pending = s.pending_statistics();
  before.statistics = manager_->statistics();
  for (const LayerGroupDesc& group : manager_->layer_groups().groups()) {
    const auto slots = s.slots(group.id);
    before.slots.emplace_back(slots.begin(), slots.end());
  }
  return before;
}

void KvCacheManagerModel::ignore_moves(Before& now, const Before& before) {
  for (std::size_t g = 0; g < now.statistics.groups.size(); ++g) {
    const GroupUse use = now.statistics.groups[g].use;
    now.statistics.groups[g] = before.statistics.groups[g];
    now.statistics.groups[g].use = use;
  }
}

void KvCacheManagerModel::expect_refused(const Error& error, const Model& model,
                                         const Before& before) {
  ASSERT_TRUE(error.code() == ErrorCode::kResourceExhausted ||
              (num_faults_ > 0 && error.code() == ErrorCode::kDataLoss) ||
              (num_faults_ > 0 && error.code() == ErrorCode::kUnavailable))
      << error.text();
  Before now = look_at(model);
  // A resume that changed places as far as it could has moved what nobody uses, and so has what
  // came before a fault.
  if (num_faults_ > 0 || before.status == SequenceStatus::kSuspended) ignore_moves(now, before);
  ASSERT_EQ(now, before) << error.text();
  ++(error.code() == ErrorCode::kResourceExhausted ? tally_.refused : tally_.lost);
}

void KvCacheManagerModel::resume() {
  Model* const model = random_sequence(SequenceStatus::kSuspended);
  if (model == nullptr) return;
  const Before before = look_at(*model);
  const auto resumed = model->sequence.resume(engine_->stream());
  if (resumed.has_value()) {
    ++tally_.resumed;
    model->arrived = *resumed;
    model->was_resumed = true;
    recount_.resumed(model->counted, model->sequence, *manager_);
    return;
  }
  expect_refused(resumed.error(), *model, before);
  if (resumed.error().code() != ErrorCode::kResourceExhausted) return drop(*model);
  relieve(*model);
}

void KvCacheManagerModel::suspend() {
  Model* const model = random_sequence(SequenceStatus::kActive);
  if (model == nullptr) return;
  ASSERT_TRUE(model->sequence.suspend().has_value());
  for (const SlotId slot : model->table) ASSERT_EQ(slot, kNoSlot);
}

// Computes some more tokens, and commits as far as that is allowed.
void KvCacheManagerModel::compute() {
  Model* const model = random_sequence(SequenceStatus::kActive);
  if (model == nullptr) return models_.empty() ? create() : resume();
  Sequence& s = model->sequence;
  const std::int64_t from = s.history();
  const std::int64_t to = from + 1 + static_cast<std::int64_t>(below(below(4) == 0 ? 20 : 3));
  if (to > 90) return drop(*model);
  while (std::ssize(model->tokens) < to) {
    model->tokens.push_back(static_cast<TokenId>(below(3) * 1000) +
                            static_cast<TokenId>(model->tokens.size()));
  }
  fit_table(*model, to);
  const Before before = look_at(*model);
  const auto resized = s.resize(std::max(s.capacity(), to), from);
  if (!resized.has_value()) {
    expect_refused(resized.error(), *model, before);
    return relieve(*model);
  }
  recount_.resized(model->counted, s, *manager_);
  if (below(8) == 0) settle_statistics(*model);
  const auto tokens = std::span<const TokenId>(model->tokens).first(static_cast<std::size_t>(to));
  check_table(*model);
  if (below(24) == 0) return fail_later(*model, tokens);
  Step step;
  step.mismatches = std::make_shared<std::atomic<std::int64_t>>(0);
  step.arrived = model->arrived;
  step.done = engine_->step(s, tokens, from, step.mismatches);
  steps_.push_back(step);
  // Cancelled in the middle of a step, or the step fails.
  if (below(24) == 0) return drop(*model);
  if (below(24) == 0) {
    device::EventSource step_event = device_->make_event("a step that fails");
    step_event.complete(EventStatus::kFailed);
    const auto failed = s.commit(tokens.subspan(static_cast<std::size_t>(s.num_committed())),
                                 {step_event.event(), false});
    ASSERT_FALSE(failed.has_value());
    return drop(*model);
  }
  if (model->is_stopped || below(8) == 0) {
    if (policy_ == CommitPolicy::kEndpointsOnly && !model->is_stopped) {
      commit(*model, tokens, step.done);
    } else {
      ASSERT_TRUE(s.resize(std::nullopt, to).has_value());
    }
    return;
  }
  commit(*model, tokens, step.done);
}

// A step that writes nothing and is known to have failed only after it was committed: nobody may
// ever find what it should have computed.
void KvCacheManagerModel::fail_later(Model& model, std::span<const TokenId> tokens) {
  Sequence& s = model.sequence;
  if (model.is_stopped || s.history() != s.num_committed()) return;
  failing_.push_back(device_->make_event("a step that fails later"));
  const auto committed = s.commit(tokens.subspan(static_cast<std::size_t>(s.num_committed())),
                                  {failing_.back().event(), below(4) == 0, below(4) == 0});
  if (!committed.has_value()) {
    ASSERT_EQ(committed.error().code(), ErrorCode::kDataLoss) << committed.error().text();
  }
  drop(model);
}

void KvCacheManagerModel::commit(Model& model, std::span<const TokenId> tokens, const Event& done) {
  Sequence& s = model.sequence;
  CommitOptions options;
  options.written = done;
  if (below(2) == 0) {
    // It may wait for a slot that a failing step had.
    while (!failing_.empty()) learn_of_failures();
    done.wait();
  }
  options.publishes_state = below(3) == 0;
  const std::int64_t before = s.num_committed();
  const std::optional<SlotId> slot = state_slot(model);
  const auto committed = s.commit(tokens.subspan(static_cast<std::size_t>(before)), options);
  if (!committed.has_value()) {
    ASSERT_EQ(committed.error().code(), ErrorCode::kDataLoss) << committed.error().text();
    ASSERT_GT(num_faults_, 0) << committed.error().text();
    return drop(model);
  }
  naive_.add(model.scope, Tokens(tokens.begin(), tokens.end()));
  know_states(model, before, options.publishes_state);
  const bool is_moved = state_slot(model) != slot;
  ASSERT_TRUE(!is_moved || options.publishes_state);
  tally_.states_handed_over += is_moved;
  // Steps from here on depend on the copies.
  if (is_moved) model.arrived = s.arrived();
}

// Of the first recurrent group.
std::optional<SlotId> KvCacheManagerModel::state_slot(const Model& model) const {
  for (const LayerGroupDesc& group : manager_->layer_groups().groups()) {
    if (!std::holds_alternative<Recurrent>(group.kind)) continue;
    return model.sequence.slots(group.id)[0];
  }
  return std::nullopt;
}

// After a commit: the snapshots that somebody may find.
void KvCacheManagerModel::know_states(Model& model, std::int64_t before, bool publishes_state) {
  const std::int64_t end = model.sequence.num_committed();
  std::vector<std::int64_t> positions;
  for (const std::int64_t position : model.reserved) {
    if (before < position && position <= end) positions.push_back(position);
  }
  if (publishes_state) positions.push_back(end);
  for (const std::int64_t position : positions) {
    naive_.add_state(model.scope, Tokens(model.tokens.begin(), model.tokens.begin() + position));
  }
}

// Where states have to be said, a match ends with one that was.
void KvCacheManagerModel::check_state_is_said(const Model& model) const {
  const std::int64_t reused = model.sequence.num_committed();
  const auto groups = manager_->layer_groups().groups();
  const bool has_states = std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return std::holds_alternative<Recurrent>(group.kind);
  });
  if (!has_explicit_states_ || !has_states || reused == 0) return;
  ASSERT_TRUE(
      naive_.has_state(model.scope, Tokens(model.tokens.begin(), model.tokens.begin() + reused)))
      << "at " << reused;
}

void KvCacheManagerModel::grow() {
  Model* const model = random_sequence(SequenceStatus::kActive);
  if (model == nullptr) return;
  const std::int64_t capacity = model->sequence.capacity() + static_cast<std::int64_t>(below(30));
  fit_table(*model, capacity);
  const Before before = look_at(*model);
  const auto resized = model->sequence.resize(capacity);
  if (!resized.has_value()) return expect_refused(resized.error(), *model, before);
  recount_.resized(model->counted, model->sequence, *manager_);
}

void KvCacheManagerModel::shrink() {
  Model* const model = random_sequence(SequenceStatus::kActive);
  if (model == nullptr) return;
  const Sequence& s = model->sequence;
  const auto spare = static_cast<std::uint64_t>(s.capacity() - s.history());
  ASSERT_TRUE(model->sequence.resize(s.history() + static_cast<std::int64_t>(below(spare + 1)))
                  .has_value());
  recount_.resized(model->counted, s, *manager_);
}

// Room for drafts is taken, and then the sequence has to sleep.
void KvCacheManagerModel::sleep_with_room(Model& model) {
  const std::int64_t capacity = model.sequence.capacity() + static_cast<std::int64_t>(below(30));
  fit_table(model, capacity);
  const Before before = look_at(model);
  const auto resized = model.sequence.resize(capacity);
  if (!resized.has_value()) return expect_refused(resized.error(), model, before);
  recount_.resized(model.counted, model.sequence, *manager_);
  ASSERT_TRUE(model.sequence.suspend().has_value());
}

// In any state; what is refused changes nothing.
void KvCacheManagerModel::trim() {
  Model* const model = random_sequence();
  if (model == nullptr) return;
  if (model->sequence.status() == SequenceStatus::kActive && below(3) != 0) {
    sleep_with_room(*model);
    if (below(2) == 0) return;
  }
  Sequence& s = model->sequence;
  const Before before = look_at(*model);
  for (const std::int64_t wrong : {s.capacity() + 1, s.history() - 1}) {
    ASSERT_EQ(s.trim(wrong).error().code(), ErrorCode::kInvalidArgument);
  }
  ASSERT_EQ(look_at(*model), before);
  const std::int64_t blocks = s.num_blocks();
  const auto spare = static_cast<std::uint64_t>(s.capacity() - s.history());
  ASSERT_TRUE(s.trim(s.history() + static_cast<std::int64_t>(below(spare + 1))).has_value());
  recount_.resized(model->counted, s, *manager_);
  const bool is_asleep = s.status() == SequenceStatus::kSuspended;
  tally_.trims_of_sleepers += is_asleep && s.num_blocks() < blocks;
}

void KvCacheManagerModel::stop() {
  Model* const model = random_sequence();
  if (model == nullptr || below(4) != 0) return;
  ASSERT_TRUE(model->sequence.stop_committing().has_value());
  model->is_stopped = true;
}

void KvCacheManagerModel::end() {
  Model* const model = random_sequence(SequenceStatus::kActive);
  if (model == nullptr || model->is_stopped) return;
  Sequence& s = model->sequence;
  if (s.history() != s.num_committed()) return;
  const bool publishes_state = below(2) == 0;
  const auto ended = s.commit({}, {{}, true, publishes_state});
  if (!ended.has_value()) {
    ASSERT_EQ(ended.error().code(), ErrorCode::kDataLoss) << ended.error().text();
  }
  manager_->audit();
  if (ended.has_value()) {
    ASSERT_EQ(s.resize(s.capacity(), s.history() + 1).has_value(), false);
    ASSERT_EQ(s.commit({}).error().code(), ErrorCode::kFailedPrecondition);
    know_states(*model, s.num_committed(), publishes_state);
  }
  model->is_stopped = ended.has_value();
  if (below(2) == 0) plan_drop_of(*model);
  drop(*model);
}

void KvCacheManagerModel::close() {
  Model* const model = random_sequence();
  if (model != nullptr) drop(*model);
}

void KvCacheManagerModel::drop(Model& model) {
  const auto at = std::find_if(models_.begin(), models_.end(),
                               [&](const Model& other) { return &other == &model; });
  if (below(2) == 0) settle_statistics(model);
  model.sequence.close();
  for (const SlotId slot : model.table) ASSERT_EQ(slot, kNoSlot);
  models_.erase(at);
}

void KvCacheManagerModel::reserve() {
  Model* const model = random_sequence(SequenceStatus::kActive);
  if (model == nullptr) return;
  const Sequence& s = model->sequence;
  const auto most = static_cast<std::uint64_t>(s.capacity() - s.num_committed());
  // What is computed already cannot be written any more.
  if (most == 0 || s.history() != s.num_committed() || model->is_stopped) return;
  const std::int64_t position = s.num_committed() + 1 + static_cast<std::int64_t>(below(most));
  const auto reserved = model->sequence.reserve_snapshot(position);
  if (!reserved.has_value()) {
    ASSERT_EQ(reserved.error().code(), ErrorCode::kResourceExhausted) << reserved.error().text();
    return;
  }
  model->reserved.push_back(position);
}

void KvCacheManagerModel::cancel() {
  Model* const model = random_sequence(SequenceStatus::kActive);
  if (model == nullptr) return;
  for (std::int64_t p = model->sequence.num_committed() + 1; p <= model->sequence.capacity(); ++p) {
    if (below(4) == 0) model->sequence.cancel_snapshot(p);
  }
}

void KvCacheManagerModel::table() {
  Model* const model = random_sequence();
  if (model == nullptr) return;
  if (!model->table.empty() && below(2) == 0) {
    ASSERT_TRUE(model->sequence.set_index_table(LayerGroupId(0), {}).has_value());
    model->table.clear();
    return;
  }
  std::vector<SlotId> larger(static_cast<std::size_t>(model->sequence.num_blocks()) + below(20) +
                             1);
  ASSERT_TRUE(model->sequence.set_index_table(LayerGroupId(0), larger).has_value());
  model->table = std::move(larger);
  check_table(*model);
}

void KvCacheManagerModel::fit_table(Model& model, std::int64_t capacity) {
  const std::int64_t size = manager_->tokens_per_block();
  const auto& kind = manager_->layer_groups().groups()[0].kind;
  if (std::holds_alternative<Recurrent>(kind)) return;
  if (model.table.empty() || (capacity + size - 1) / size <= std::ssize(model.table)) return;
  ASSERT_EQ(model.sequence.resize(capacity).error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(model.sequence.set_index_table(LayerGroupId(0), {}).has_value());
  model.table.clear();
}

void KvCacheManagerModel::check_table(const Model& model) const {
  if (model.table.empty()) return;
  const auto slots = model.sequence.slots(LayerGroupId(0));
  for (std::size_t i = 0; i < model.table.size(); ++i) {
    ASSERT_EQ(model.table[i], i < slots.size() ? slots[i] : kNoSlot) << "entry " << i;
  }
}

}  // namespace slackwater::cache
