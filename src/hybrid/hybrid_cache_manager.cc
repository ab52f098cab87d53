// Making a manager, and the life of its requests.

#include "slackwater/hybrid/hybrid_cache_manager.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "hybrid/hybrid_request.h"
#include "slackwater/base/certificate.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::hybrid {

using cache::SequenceStatus;
using device::Event;

Digest128 HybridRequest::certificate(LayerGroupId group, std::int64_t save) const {
  return Certificate{.owner = RequestOwner{process_epoch(), id, epoch},
                     .position = save,
                     .layer_group = group,
                     .generation = 0}
      .digest();
}

HybridCacheManager::HybridCacheManager(device::Device& device, device::Stream& stream,
                                       kernels::ExecutionContext* context, HybridConfig config)
    : device_(device), stream_(stream), context_(context), config_(std::move(config)) {}

HybridCacheManager::~HybridCacheManager() {
  // What is queued writes to what goes with it.
  stream_.synchronize();
  // Their sequences are claims on the cache.
  requests_.clear();
  dummies_.clear();
}

Result<std::unique_ptr<HybridCacheManager>> HybridCacheManager::create(
    device::Device& device, device::Stream& stream, kernels::ExecutionContext* context,
    HybridConfig config) {
  SLACKWATER_RETURN_IF_ERROR(validate(config));
  std::unique_ptr<HybridCacheManager> manager(
      new HybridCacheManager(device, stream, context, std::move(config)));
  cache::KvCacheConfig cache_config = make_cache_config(manager->config_);
  SLACKWATER_ASSIGN_OR_RETURN(manager->kv_cache_,
                              cache::KvCacheManager::create(device, std::move(cache_config)));
  SLACKWATER_RETURN_IF_ERROR(manager->make_groups());
  SLACKWATER_RETURN_IF_ERROR(manager->add_dummies());
  return manager;
}

// One registry per recurrent layer group that has layers here.
Result<void> HybridCacheManager::make_groups() {
  std::vector<const cache::LayerGroupDesc*> recurrent;
  std::int64_t one_save = 0;
  for (const cache::LayerGroupDesc& group : kv_cache_->layer_groups().groups()) {
    const auto is_of_group = [&](const KdaLayer& layer) {
      return std::find(group.local_layers.begin(), group.local_layers.end(), layer.layer) !=
             group.local_layers.end();
    };
    if (std::none_of(config_.kda_layers.begin(), config_.kda_layers.end(), is_of_group)) continue;
    recurrent.push_back(&group);
    one_save += save_bytes_of(slot_entries(config_, group.group_tag, LayerScope::kAll));
  }
  const std::int64_t num_saves = one_save == 0 ? 0 : config_.save_bytes / one_save;
  for (const cache::LayerGroupDesc* group : recurrent) {
    const std::int32_t num_slots = kv_cache_->room(storage::Tier::kDevice, group->id).total;
    SlotRegistryOptions options;
    options.name = group->group_tag + " state";
    options.entries = slot_entries(config_, group->group_tag);
    options.num_slots = num_slots;
    const bool is_fixed =
        config_.placement == ReplayPlacement::kBesidePool && config_.replay.has_value();
    options.max_slots =
        is_fixed ? num_slots : static_cast<std::int32_t>(kv_cache_->max_device_slots(group->id));
    options.save_bytes = num_saves * save_bytes_of(options.entries);
    SLACKWATER_ASSIGN_OR_RETURN(auto registry, SlotRegistry::create(device_, std::move(options)));
    tags_.push_back(
        std::make_unique<ReplayState>(config_, group->group_tag, group->id, std::move(registry)));
    tags_.back()->bind(*kv_cache_);
  }
  return {};
}

// Padding lies in slots of its own, which no request ever gets.
Result<void> HybridCacheManager::add_dummies() {
  constexpr TokenId kNoMatter[] = {0, 0};
  for (std::int32_t i = 0; i < config_.num_dummies; ++i) {
    auto dummy = std::make_unique<HybridRequest>();
    dummy->id =
        RequestId(std::numeric_limits<std::uint64_t>::max() - static_cast<std::uint64_t>(i));
    dummy->is_dummy = true;
    SLACKWATER_RETURN_IF_ERROR(open(*dummy, kNoMatter));
    SLACKWATER_ASSIGN_OR_RETURN(dummy->ready, dummy->sequence.resume(stream_));
    SLACKWATER_RETURN_IF_ERROR(dummy->sequence.resize(1));
    dummies_.push_back(std::move(dummy));
  }
  return {};
}

// A sequence of its own, suspended; whatever the request had is gone.
Result<void> HybridCacheManager::open(HybridRequest& request, std::span<const TokenId> tokens) {
  cache::SequenceOptions options;
  options.scope = request.scope;
  options.tokens = tokens;
  options.request = request.id;
  options.priority = request.priority;
  options.is_dummy = request.is_dummy;
  options.is_recompute = request.epoch > 0;
  options.expected_prompt_length = request.expected_prompt_length;
  SLACKWATER_ASSIGN_OR_RETURN(request.sequence, kv_cache_->create_sequence(options));
  request.cursors.assign(tags_.size(), {});
  request.open_rounds.clear();
  request.settled_ahead.clear();
  request.snapshots.clear();
  request.setup_end = 0;
  request.is_lost = false;
  request.was_resumed = false;
  request.ready = {};
  request.kept = request.sequence.num_committed();
  for (StateCursor& cursor : request.cursors) cursor.page_position = request.kept;
  return {};
}

Result<HybridRequest*> HybridCacheManager::find(RequestId request) {
  const auto at = index_.find(request.value());
  if (at != index_.end()) return at->second;
  return make_error(ErrorCode::kNotFound, "request {} is not one of the {} there are",
                    request.value(), requests_.size());
}

Result<const HybridRequest*> HybridCacheManager::find(RequestId request) const {
  return const_cast<HybridCacheManager*>(this)->find(request);
}

Result<std::size_t> HybridCacheManager::find_tag(std::string_view group_tag) const {
  for (std::size_t i = 0; i < tags_.size(); ++i) {
    if (tags_[i]->group_tag() == group_tag) return i;
  }
  return make_error(ErrorCode::kNotFound, "no recurrent layers of tag '{}' here", group_tag);
}

Result<void> HybridCacheManager::check_new(RequestId request) const {
  if (is_shut_down_) {
    return make_error(ErrorCode::kFailedPrecondition, "request {} after the shutdown",
                      request.value());
  }
  if (requests_.contains(request)) {
    return make_error(ErrorCode::kInvalidArgument, "request {} is there already; free it first",
                      request.value());
  }
  return {};
}

Result<void> HybridCacheManager::add_request(const RequestOptions& options) {
  SLACKWATER_RETURN_IF_ERROR(check_new(options.request));
  auto request = std::make_unique<HybridRequest>();
  request->id = options.request;
  request->scope = options.scope;
  request->priority = options.priority;
  request->expected_prompt_length = options.expected_prompt_length;
  request->epoch = options.epoch;
  SLACKWATER_RETURN_IF_ERROR(open(*request, options.tokens));
  keep(std::move(request));
  return {};
}

void HybridCacheManager::keep(std::unique_ptr<HybridRequest> request) {
  index_.emplace(request->id.value(), request.get());
  const RequestId id = request->id;
  requests_.emplace(id, std::move(request));
}

// All registries, or none.
Result<void> HybridCacheManager::start(HybridRequest& request) {
  // Without host memory for it nobody is ever suspended.
  if (request.has_started || config_.save_bytes == 0) return {};
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    const Result<void> reserved = tags_[t]->registry().reserve_save();
    if (reserved.has_value()) continue;
    while (t-- > 0) tags_[t]->registry().release_save();
    return tl::unexpected<Error>(
        reserved.error().with_context(fmt::format("request {}", request.id.value())));
  }
  request.has_started = true;
  return {};
}

void HybridCacheManager::release_saves(HybridRequest& request) {
  if (!request.has_started) return;
  for (const auto& tag : tags_) tag->registry().release_save();
  request.has_started = false;
}

Result<Event> HybridCacheManager::resume_request(RequestId id) {
  SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(id));
  if (request->is_lost) {
    return make_error(ErrorCode::kDataLoss, "the state of request {} is lost; restart it",
                      id.value());
  }
  const bool had_started = request->has_started;
  SLACKWATER_RETURN_IF_ERROR(start(*request));
  Result<Event> arrived = request->sequence.resume(stream_);
  if (!arrived.has_value()) {
    if (!had_started) release_saves(*request);
    if (arrived.error().code() == ErrorCode::kDataLoss) {
      request->is_lost = true;
      ++counters_.lost_requests;
    }
    return arrived;
  }
  // What was under way before it slept may still fail: the save holds no more than arrived then.
  const std::array<Event, 2> both = {request->ready, *arrived};
  request->ready = device::merge(both);
  request->was_resumed = true;
  for (StateCursor& cursor : request->cursors) ++cursor.changes;
  if (SLACKWATER_MUTANT(hybrid_drop_saved_on_resume)) forget(*request);
  ++counters_.resumes;
  return arrived;
}

Result<void> HybridCacheManager::suspend_request(RequestId id) {
  SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(id));
  if (request->sequence.status() != SequenceStatus::kActive) {
    return make_error(ErrorCode::kFailedPrecondition, "suspend of request {}, which is {}",
                      id.value(), to_string(request->sequence.status()));
  }
  const bool has_entries = std::any_of(tags_.begin(), tags_.end(), [](const auto& tag) {
    return !tag->registry().entries().empty();
  });
  if (has_entries && config_.save_bytes == 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "suspend of request {} without host memory for what it has beside its pages; "
                      "give save_bytes, or restart it",
                      id.value());
  }
  // What cannot be folded, because its count is not known or it is not set up, is saved as it is.
  const bool is_folded = config_.suspend_policy == SuspendPolicy::kCommitIfKnown &&
                         request->open_rounds.empty() && context_ != nullptr &&
                         commit_pending(id).has_value();
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    StateCursor& cursor = request->cursors[t];
    // One that is not set up since it resumed still has what was saved before.
    if (!cursor.slot.has_value()) continue;
    const bool has_records = !is_folded || cursor.num_records > 0;
    cursor.saved = tags_[t]->registry().save(
        *cursor.slot, request->certificate(tags_[t]->layer_group(), ++cursor.num_saves),
        has_records, stream_);
    // What has not arrived in the slot is not there to be saved either.
    const std::array<Event, 2> both = {request->ready, cursor.saved->copied};
    cursor.saved->copied = device::merge(both);
    cursor.slot_before = cursor.slot;
    if (!SLACKWATER_MUTANT(hybrid_keep_slot)) cursor.slot.reset();
  }
  for (StateCursor& cursor : request->cursors) ++cursor.changes;
  request->setup_end = 0;
  std::erase(moved_, request);
  // Reserved pages that are not published are given up with the device.
  request->snapshots.clear();
  SLACKWATER_RETURN_IF_ERROR(request->sequence.suspend());
  ++counters_.suspends;
  return {};
}

void HybridCacheManager::drop_saved(HybridRequest& request, std::size_t tag) {
  StateCursor& cursor = request.cursors[tag];
  cursor.accepted_override.reset();
  if (!cursor.saved.has_value()) return;
  tags_[tag]->registry().drop(*cursor.saved);
  cursor.saved.reset();
}

// Nothing of it is left anywhere but in its sequence.
void HybridCacheManager::forget(HybridRequest& request) {
  for (std::size_t t = 0; t < request.cursors.size(); ++t) {
    if (!SLACKWATER_MUTANT(hybrid_free_keeps_saved)) drop_saved(request, t);
    request.cursors[t].slot.reset();
  }
  std::erase(moved_, &request);
}

Result<void> HybridCacheManager::restart_request(RequestId id, std::span<const TokenId> tokens) {
  SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(id));
  forget(*request);
  // What it leaves in the tree is there to be found again.
  request->sequence.close();
  ++request->epoch;
  return open(*request, tokens);
}

void HybridCacheManager::free_resources(RequestId id) {
  const auto at = requests_.find(id);
  if (at == requests_.end()) return;
  forget(*at->second);
  release_saves(*at->second);
  at->second->sequence.close();
  index_.erase(id.value());
  requests_.erase(at);
}

Result<void> HybridCacheManager::shutdown() {
  if (is_shut_down_) return {};
  while (!requests_.empty()) free_resources(requests_.begin()->first);
  for (const auto& dummy : dummies_) dummy->sequence.close();
  dummies_.clear();
  synchronize();
  SLACKWATER_RETURN_IF_ERROR(kv_cache_->shutdown());
  is_shut_down_ = true;
  return {};
}

Result<void> HybridCacheManager::resize(RequestId id, std::int64_t capacity,
                                        std::optional<std::int64_t> history) {
  SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(id));
  if (history.has_value() && *history > request->kept && find_tag("target").has_value()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a history of {} tokens of request {}, of which {} are computed and kept",
                      *history, id.value(), request->kept);
  }
  return request->sequence.resize(capacity, history);
}

void HybridCacheManager::suspend_dummies() {
  for (const auto& dummy : dummies_) {
    if (dummy->sequence.status() != SequenceStatus::kActive) continue;
    const Result<void> suspended = dummy->sequence.suspend();
    SLACKWATER_CHECK(suspended.has_value(), "{}", suspended.error().text());
  }
}

void HybridCacheManager::resume_dummies() {
  for (const auto& dummy : dummies_) {
    if (dummy->sequence.status() != SequenceStatus::kSuspended) continue;
    const Result<Event> resumed = dummy->sequence.resume(stream_);
    if (resumed.has_value()) dummy->ready = *resumed;
  }
}

// Records beside the pool are as many as they were made; all else keeps up with it.
bool HybridCacheManager::can_resize(const ReplayState& tag) const {
  return config_.placement == ReplayPlacement::kInPool || !tag.has_replay();
}

// The registries keep up with pools that may have other numbers of slots now.
void HybridCacheManager::resize_registries() {
  // What is queued looks at the tables of before.
  stream_.synchronize();
  for (const auto& tag : tags_) {
    const std::int32_t wanted = kv_cache_->room(storage::Tier::kDevice, tag->layer_group()).total;
    SlotRegistry& registry = tag->registry();
    if (can_resize(*tag) && wanted < registry.num_slots()) {
      const Result<void> shrunk = registry.resize(wanted);
      SLACKWATER_CHECK(shrunk.has_value(), "a smaller registry: {}", shrunk.error().text());
    }
    tag->bind(*kv_cache_);
  }
}

// Room for the most slots the pools could get comes first: so a refusal changes nothing, and no
// slot is ever without its entry.
Result<void> HybridCacheManager::grow_registries() {
  for (const auto& tag : tags_) {
    // Not only what today's quota allows: this may be the call that raises it.
    const std::int32_t most = tag->registry().max_slots();
    if (!can_resize(*tag) || most <= tag->registry().num_slots()) continue;
    const Result<void> grown = tag->registry().resize(most);
    if (grown.has_value()) continue;
    resize_registries();
    return grown;
  }
  return {};
}

bool HybridCacheManager::is_anybody_active() const {
  const auto is_active = [](const HybridRequest& request) {
    return request.sequence.status() == SequenceStatus::kActive;
  };
  return std::any_of(requests_.begin(), requests_.end(),
                     [&](const auto& entry) { return is_active(*entry.second); }) ||
         std::any_of(dummies_.begin(), dummies_.end(),
                     [&](const auto& dummy) { return is_active(*dummy); });
}

Result<void> HybridCacheManager::check_rebalance(std::string_view what) const {
  const bool is_beside =
      config_.placement == ReplayPlacement::kBesidePool &&
      std::any_of(tags_.begin(), tags_.end(), [](const auto& tag) { return tag->has_replay(); });
  if (!is_beside) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "{} with replay records {}, of which there are as many as there were slots; "
                    "use ReplayPlacement::kInPool",
                    what, to_string(config_.placement));
}

Result<void> HybridCacheManager::adjust(Nanoseconds now) {
  SLACKWATER_RETURN_IF_ERROR(check_rebalance("adjust"));
  if (!kv_cache_->need_adjustment(now)) return {};
  // Who is active makes it refuse, and nothing is to change then.
  if (!is_anybody_active()) SLACKWATER_RETURN_IF_ERROR(grow_registries());
  const Result<void> adjusted = kv_cache_->adjust(now);
  resize_registries();
  return adjusted;
}

Result<void> HybridCacheManager::set_quota(storage::Tier tier, std::int64_t bytes) {
  const bool is_device = tier == storage::Tier::kDevice;
  if (is_device) SLACKWATER_RETURN_IF_ERROR(check_rebalance("set_quota"));
  if (is_device && !is_anybody_active()) SLACKWATER_RETURN_IF_ERROR(grow_registries());
  const Result<void> set = kv_cache_->set_quota(tier, bytes);
  resize_registries();
  return set;
}

bool HybridCacheManager::has_request(RequestId request) const {
  return index_.contains(request.value());
}

std::optional<SlotId> HybridCacheManager::state_index(RequestId id,
                                                      std::string_view group_tag) const {
  const Result<const HybridRequest*> request = find(id);
  const Result<std::size_t> tag = find_tag(group_tag);
  if (!request.has_value() || !tag.has_value()) return std::nullopt;
  return (*request)->cursors[*tag].slot;
}

const cache::Sequence& HybridCacheManager::sequence(RequestId id) const {
  const Result<const HybridRequest*> request = find(id);
  SLACKWATER_CHECK(request.has_value(), "{}", request.error().text());
  return (*request)->sequence;
}

ReplayState& HybridCacheManager::replay_state(std::string_view group_tag) {
  const Result<std::size_t> tag = find_tag(group_tag);
  SLACKWATER_CHECK(tag.has_value(), "{}", tag.error().text());
  return *tags_[*tag];
}

void HybridCacheManager::synchronize() {
  stream_.synchronize();
  for (const auto& tag : tags_) tag->registry().synchronize();
  kv_cache_->synchronize();
}

}  // namespace slackwater::hybrid
