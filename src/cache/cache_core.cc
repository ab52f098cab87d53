#include "cache/cache_core.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "cache/log_config.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;

// Of what the layout digest stands for; raised when the meaning of bytes on disk changes.
constexpr std::int64_t kFormatVersion = 1;

Digest128 layout_digest(const KvCacheConfig& config, const LayerGroups& groups) {
  LayoutDigest digest;
  digest.add("format", kFormatVersion)
      .add("model", config.model)
      .add("tokens_per_block", config.tokens_per_block);
  for (const LayerGroupDesc& group : groups.groups()) {
    digest.add("group", group.name);
    for (const storage::BufferSpec& buffer : group.buffers) {
      digest.add("role", buffer.role)
          .add("bytes", buffer.bytes_per_layer)
          .add("layers", buffer.num_layers);
      if (buffer.is_transient) digest.add("transient", 1);
    }
    for (const std::int32_t layer : group.local_layers) digest.add("layer", layer);
    for (const std::int64_t bytes : group.layout.pool_slot_bytes) digest.add("slot", bytes);
  }
  return digest.digest();
}

// Which parts of a scope there are.
std::uint32_t parts_of(const ReuseScope& scope) {
  return std::uint32_t{scope.adapter.has_value()} | std::uint32_t{scope.salt.has_value()} << 1;
}

}  // namespace

CacheCore::CacheCore(KvCacheConfig config)
    : config_(std::move(config)),
      block_shift_(std::countr_zero(static_cast<std::uint32_t>(config_.tokens_per_block))),
      digests_(config_.text_only),
      tuner_(config_.rebalance) {}

CacheCore::~CacheCore() {
  SLACKWATER_CHECK(num_open_ == 0, "{} sequences are still open", num_open_);
  SLACKWATER_CHECK(plans_.num_plans() == 0, "{} planned drops outlive the cache",
                   plans_.num_plans());
  if (store_ != nullptr) store_->synchronize();
}

Result<std::unique_ptr<CacheCore>> CacheCore::create(device::Device& device, KvCacheConfig config) {
  SLACKWATER_RETURN_IF_ERROR(validate(config));
  std::unique_ptr<CacheCore> core(new CacheCore(std::move(config)));
  SLACKWATER_RETURN_IF_ERROR(core->open_log());
  const Result<void> opened =
      core->logged([](LogWriter& log) { log.start(LoggedKind::kOpen, 0, 0); },
                   [&] { return core->open(device); });
  if (opened.has_value()) return core;
  if (core->log_ != nullptr) core->log_->discard();
  return tl::unexpected<Error>(opened.error());
}

Result<void> CacheCore::open_log() {
  if (config_.operation_log.path.empty()) return {};
  SLACKWATER_ASSIGN_OR_RETURN(log_, LogWriter::create(config_.operation_log, log_config(config_)));
  digests_.tell([this](TokenId token, const Sha256Digest& digest) {
    std::array<std::uint64_t, 4> words = {};
    std::memcpy(words.data(), digest.data(), digest.size());
    log_->record(
        [&](LogWriter& log) {
          log.start(LoggedKind::kTokenDigest, 0, static_cast<std::uint32_t>(token), words[0],
                    words[1], words[2], words[3]);
        },
        [] {});
  });
  return {};
}

void CacheCore::start_create(LogWriter& log, const SequenceOptions& options) const {
  const ReuseScope& scope = options.scope;
  log.start_with(
      options.tokens, LoggedKind::kCreate, next_number_,
      parts_of(scope) | std::uint32_t{options.priority != nullptr} << 2 |
          std::uint32_t{options.is_dummy} << 3 | std::uint32_t{options.is_recompute} << 4,
      options.tokens.size(), scope.adapter.value_or(0), scope.salt.value_or(0),
      options.request.value(), static_cast<std::uint64_t>(options.expected_prompt_length));
}

void CacheCore::start_prefetch(LogWriter& log, const ReuseScope& scope,
                               std::span<const TokenId> prompt, Tier tier) {
  log.start_with(prompt, LoggedKind::kPrefetchPrompt, 0, parts_of(scope), prompt.size(),
                 scope.adapter.value_or(0), scope.salt.value_or(0), index_of(tier));
}

void CacheCore::start_resize(LogWriter& log, const SequenceState& sequence,
                             std::optional<std::int64_t> capacity,
                             std::optional<std::int64_t> history) {
  log.start(LoggedKind::kResize, sequence.number, 0,
            static_cast<std::uint64_t>(capacity.value_or(sequence.capacity)),
            static_cast<std::uint64_t>(history.value_or(sequence.history)));
}

Result<void> CacheCore::open(device::Device& device) {
  SLACKWATER_ASSIGN_OR_RETURN(groups_, LayerGroups::build(config_));
  const GroupRoom room = plan_room(config_, groups_);
  storage::TieredStoreOptions options;
  std::vector<PageRun> templates;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const LayerGroupDesc& group = groups_.groups()[g];
    storage::LayerGroupSpec spec{group.name, group.layout, room.ratios[g], room.min_slots[g]};
    spec.min_host_slots = room.min_host_slots[g];
    options.layer_groups.push_back(std::move(spec));
    kinds_.push_back(make_group_kind(group.kind, config_.tokens_per_block));
    PageRun run;
    run.group = group.id;
    run.is_by_position = !kinds_[g]->has_block_pages();
    run.is_pinned_by_page = !kinds_[g]->needs_every_block();
    templates.push_back(run);
  }
  options.layout = layout_digest(config_, groups_);
  options.device_bytes = config_.device_bytes;
  options.host_bytes = config_.host_bytes;
  options.disk_bytes = config_.disk_bytes;
  options.max_device_bytes = config_.max_device_bytes;
  options.max_host_bytes = config_.max_host_bytes;
  options.device_grain_bytes = config_.grain_bytes;
  options.host_grain_bytes = config_.grain_bytes;
  options.disk_grain_bytes = config_.grain_bytes;
  options.codec = config_.codec;
  options.disk = config_.disk;
  options.disk_io = std::move(config_.disk_io);
  options.copy_threads = config_.copy_threads;
  SLACKWATER_ASSIGN_OR_RETURN(store_, storage::TieredStore::create(device, std::move(options)));
  tree_ = std::make_unique<BlockTree>(config_.tokens_per_block, templates, digests_);
  residency_ =
      std::make_unique<Residency>(*store_, groups_.size(), *this, config_.guarantee_suspend);
  if (config_.max_events > 0) {
    events_ = std::make_unique<EventQueue>(config_.max_events, config_.tokens_per_block, digests_);
    residency_->tell_of_pages();
  }
  open_book();
  first_recurrent_ = static_cast<std::size_t>(
      std::find_if(kinds_.begin(), kinds_.end(),
                   [](const auto& kind) { return !kind->has_block_pages(); }) -
      kinds_.begin());
  matcher_ = std::make_unique<PrefixMatcher>(
      *tree_, *store_, kinds_, states_,
      PrefixMatcher::Options{config_.enable_partial_reuse, config_.reuse_match_backoff});
  return {};
}

RunKey CacheCore::node_key(NodeIndex node, std::size_t group) const {
  return {RunKey::Owner::kNode, static_cast<std::uint16_t>(group), node.value()};
}

RunKey CacheCore::sequence_key(const SequenceState& sequence, std::size_t group) const {
  return {RunKey::Owner::kSequence, static_cast<std::uint16_t>(group), sequence.index};
}

PageRun& CacheCore::node_run(NodeIndex node, std::size_t group) {
  return tree_->node(node).runs[group];
}

// Null where there is none.
PageId CacheCore::own_page(const SequenceState& sequence, std::size_t group,
                           std::int64_t block) const {
  const SequenceGroup& own = sequence.groups[group];
  const auto index = static_cast<std::size_t>(block - own.first_block);
  return index < own.run.pages.size() ? own.run.pages[index] : PageId();
}

PageRun* CacheCore::find_run(const RunKey& key) {
  if (key.owner == RunKey::Owner::kNode) {
    TreeNode& node = tree_->node(NodeIndex(key.index));
    return node.is_used ? &node.runs[key.group] : nullptr;
  }
  SequenceState& sequence = sequences_[key.index];
  return sequence.status == SequenceStatus::kClosed ? nullptr : &sequence.groups[key.group].run;
}

// What the tree loses.

// Where states_ has a snapshot: nothing for one that is not inside the first block of its node, or
// not of the group that stands for all.
std::optional<std::uint64_t> CacheCore::branch_key(NodeIndex index, std::size_t group,
                                                   std::int64_t position) const {
  const TreeNode& node = tree_->node(index);
  const std::int64_t tokens = position - tree_->first_token(node);
  if (group != first_recurrent_ || tokens >= config_.tokens_per_block) return std::nullopt;
  return BranchStates::key(
      node.parent, std::span<const TokenId>(node.tokens).first(static_cast<std::size_t>(tokens)));
}

// Enters the snapshots of a node, or takes them out.
void CacheCore::index_states(NodeIndex node, bool is_added) {
  if (first_recurrent_ == num_groups()) return;
  for (const std::int64_t position : node_run(node, first_recurrent_).positions) {
    const auto key = branch_key(node, first_recurrent_, position);
    if (!key.has_value()) break;
    if (is_added) {
      states_.add(*key, node);
    } else {
      states_.remove(*key, node);
    }
  }
}

NodeIndex CacheCore::split(NodeIndex node, std::int32_t at) {
  index_states(node, false);
  const NodeIndex front = tree_->split(node, at);
  index_states(front, true);
  index_states(node, true);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    residency_->run_was_split(node_key(front, g), node_run(front, g), node_run(node, g));
  }
  if (!plans_.empty()) note_moved(front);
  return front;
}

void CacheCore::release_page(const RunKey& key, std::size_t index) {
  PageRun& run = *find_run(key);
  if (is_null(run.pages[index])) return;
  if (!plans_.empty()) plans_.forget(run.pages[index]);
  store_->release(residency_->take_page(key, run, index));
}

void CacheCore::remove_snapshot(NodeIndex node, std::size_t group, std::size_t index) {
  release_page(node_key(node, group), index);
  PageRun& run = node_run(node, group);
  const auto key = branch_key(node, group, run.positions[index]);
  if (key.has_value()) states_.remove(*key, node);
  const auto at = static_cast<std::ptrdiff_t>(index);
  run.pages.erase(run.pages.begin() + at);
  run.pins.erase(run.pins.begin() + at);
  run.positions.erase(run.positions.begin() + at);
  run.certificates.erase(run.certificates.begin() + at);
  run.written.erase(run.written.begin() + at);
}

// Releases what lies in and past block `num_left` of a node.
void CacheCore::release_blocks(NodeIndex node, std::int32_t num_left) {
  const std::int64_t end =
      tree_->first_token(tree_->node(node)) + std::int64_t{num_left} * config_.tokens_per_block;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).has_block_pages()) {
      const std::size_t count = node_run(node, g).pages.size();
      for (std::size_t i = count; i-- > static_cast<std::size_t>(num_left);) {
        release_page(node_key(node, g), i);
      }
      continue;
    }
    for (std::size_t i = node_run(node, g).pages.size(); i-- > 0;) {
      if (num_left == 0 || node_run(node, g).positions[i] > end) remove_snapshot(node, g, i);
    }
  }
}

void CacheCore::erase_node(NodeIndex node) {
  release_blocks(node, 0);
  for (std::size_t g = 0; g < num_groups(); ++g) residency_->forget_run(node_run(node, g));
  to_tidy_.push_back(tree_->node(node).parent);
  if (events_ != nullptr) note_blocks_removed(node, 0);
  tree_->erase(node);
}

// Everything below a node, deepest first.
void CacheCore::cut_descendants(NodeIndex node) {
  std::vector<NodeIndex> order = tree_->children(node);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<NodeIndex> below = tree_->children(order[i]);
    order.insert(order.end(), below.begin(), below.end());
  }
  while (!order.empty()) {
    erase_node(order.back());
    order.pop_back();
  }
}

// Leaves `num_left` blocks of a node that nobody uses, and nothing below it.
void CacheCore::cut(NodeIndex node, std::int32_t num_left) {
  SLACKWATER_CHECK(tree_->node(node).users == Pins(), "node {} is cut and has users", node.value());
  if (tree_->node(node).num_children > 0) {
    const RemovalScope scope(removal_cause_, RemovalCause::kOrphaned);
    cut_descendants(node);
  }
  if (num_left == 0) {
    erase_node(node);
    return;
  }
  release_blocks(node, num_left);
  if (events_ != nullptr) note_blocks_removed(node, num_left);
  tree_->truncate(node, num_left);
}

void CacheCore::drop_page(const RunKey& key, std::size_t index) {
  SLACKWATER_CHECK(key.owner == RunKey::Owner::kNode, "a page of sequence {} is dropped",
                   key.index);
  const NodeIndex node(key.index);
  const bool is_said_why = removal_cause_ != RemovalCause::kReplaced;
  const RemovalScope scope(removal_cause_, is_said_why ? removal_cause_ : RemovalCause::kEvicted);
  if (kind(key.group).needs_every_block()) {
    victim_ = node_run(node, key.group).pages[index];
    cut(node, static_cast<std::int32_t>(index));
    victim_ = {};
  } else if (kind(key.group).has_block_pages()) {
    release_page(key, index);
    to_tidy_.push_back(node);
  } else {
    remove_snapshot(node, key.group, index);
    to_tidy_.push_back(node);
  }
}

void CacheCore::lose_page(const RunKey& key, std::size_t index) {
  const RemovalScope scope(removal_cause_, RemovalCause::kLost);
  release_page(key, index);
  if (key.owner == RunKey::Owner::kSequence) {
    sequences_[key.index].is_damaged = true;
    return;
  }
  if (!kind(key.group).needs_every_block()) return;
  break_node(NodeIndex(key.index), static_cast<std::int32_t>(index));
}

Certificate CacheCore::certificate(const RunKey& key, std::size_t index) {
  const LayerGroupId group(key.group);
  if (key.owner == RunKey::Owner::kSequence) {
    const SequenceState& sequence = sequences_[key.index];
    return {RequestOwner{process_epoch(), sequence.request, sequence.round}, sequence.history,
            group,
            static_cast<std::uint32_t>(sequence.groups[key.group].first_block +
                                       static_cast<std::int64_t>(index))};
  }
  const TreeNode& node = tree_->node(NodeIndex(key.index));
  const PageRun& run = node.runs[key.group];
  std::int32_t block = static_cast<std::int32_t>(index);
  std::int64_t end = 0;
  if (run.is_by_position) {
    end = run.positions[index];
    block = static_cast<std::int32_t>((end - 1) / config_.tokens_per_block) - node.first_block;
  }
  const std::int64_t first = (std::int64_t{node.first_block} + block) * config_.tokens_per_block;
  if (!run.is_by_position) end = first + tree_->coverage(node, group, block);
  const auto tokens = tree_->block_tokens(node, block).first(static_cast<std::size_t>(end - first));
  Digest128 prefix = node.prefixes[static_cast<std::size_t>(block)];
  if (tokens.size() < tree_->block_tokens(node, block).size()) {
    const TreeNode& above = tree_->node(node.parent);
    const Digest128 before = block > 0         ? node.prefixes[static_cast<std::size_t>(block - 1)]
                             : above.is_root() ? root_prefix(above.scope)
                                               : above.prefixes.back();
    prefix = next_prefix(before, tokens, digests_);
  }
  return {PrefixOwner{prefix}, end, group, 0};
}

void CacheCore::certify_page(NodeIndex node, std::size_t group, std::size_t index) {
  PageRun& run = node_run(node, group);
  const Certificate owner = certificate(node_key(node, group), index);
  store_->certify(run.pages[index], owner);
  run.certificates.resize(run.pages.size());
  run.certificates[index] = store_->certificate(run.pages[index]);
}

// The blocks at and past `num_left` have lost their bytes: nobody finds them any more, and they go
// when nobody uses them.
void CacheCore::break_node(NodeIndex index, std::int32_t num_left) {
  TreeNode& node = tree_->node(index);
  node.num_written = std::min(node.num_written, num_left);
  node.writes.clear();
  node.is_broken = true;
  to_tidy_.push_back(index);
}

// Looks which writes and moves have ended since. True when something was found lost.
bool CacheCore::settle(NodeIndex index) {
  TreeNode& node = tree_->node(index);
  const RemovalScope scope(removal_cause_, RemovalCause::kLost);
  bool is_any_lost = false;
  while (!node.writes.empty() && node.writes.front().written.is_done()) {
    if (node.writes.front().written.status() == EventStatus::kFailed) {
      break_node(index, node.num_written);
      is_any_lost = true;
      break;
    }
    const bool is_first = node.num_written == 0;
    node.num_written = node.writes.front().end_block;
    node.writes.erase(node.writes.begin());
    if (is_first) tidy_shorter(index);
  }
  std::erase_if(node.late_pages, [&](const TreeNode::LatePage& late) {
    if (late.written.status() != EventStatus::kFailed) return late.written.is_done();
    is_any_lost = true;
    release_page(node_key(index, index_of(late.group)), static_cast<std::size_t>(late.block));
    return true;
  });
  for (std::size_t g = 0; g < num_groups(); ++g) {
    PageRun& run = node.runs[g];
    if (!run.may_be_lost) continue;
    bool is_open = false;
    for (std::size_t i = run.pages.size(); i-- > 0;) {
      if (is_null(run.pages[i])) continue;
      const EventStatus status = store_->ready(run.pages[i]).status();
      is_open |= status != EventStatus::kSucceeded;
      if (status != EventStatus::kFailed) continue;
      is_any_lost = true;
      if (kind(g).needs_every_block()) {
        break_node(index, static_cast<std::int32_t>(i));
      } else if (run.pins[i] == Pins() && run.is_by_position) {
        remove_snapshot(index, g, i);
      } else if (run.pins[i] == Pins()) {
        release_page(node_key(index, g), i);
      }
    }
    run.may_be_lost = is_open;
  }
  return is_any_lost;
}

// A node without users goes as far as it is broken, when a sibling begins as it does, or when
// nothing is left of it.
void CacheCore::tidy_node(NodeIndex index) {
  TreeNode& node = tree_->node(index);
  if (!node.is_used) return;
  if (node.is_root()) {
    if (node.num_children == 0) tree_->note_unused_root(index);
    return;
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const PageRun& run = node.runs[g];
    for (std::size_t i = run.pages.size(); run.is_by_position && i-- > 0;) {
      if (is_null(run.pages[i]) && run.pins[i] == Pins()) remove_snapshot(index, g, i);
    }
  }
  if (node.users != Pins()) return;
  if (node.is_broken) {
    const RemovalScope scope(removal_cause_, RemovalCause::kLost);
    cut(index, node.num_written);
    if (!node.is_used) return;
    node.is_broken = false;
  }
  if (tree_->is_partial(node)) {
    const NodeIndex longer =
        tree_->find_longer_child(node.parent, node.tokens, [&](NodeIndex other) {
          settle(other);
          return tree_->node(other).num_written > 0;
        });
    if (longer != kNoNode) {
      absorb_shorter(longer, index);
      return;
    }
  }
  std::int32_t pages = 0;
  for (const PageRun& run : node.runs) pages += run.num_pages();
  if (pages == 0 && node.num_children == 0) erase_node(index);
}

void CacheCore::clean_up() {
  while (!to_tidy_.empty()) {
    const NodeIndex node = to_tidy_.back();
    to_tidy_.pop_back();
    tidy_node(node);
  }
  tree_->erase_empty_roots();
}

// Queries and the whole.

Result<void> CacheCore::check_closed(const char* call) const {
  if (num_open_ == 0) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "{}: {} sequence(s) still open; close them first", call, num_open_);
}

Result<void> CacheCore::clear_reusable_blocks() {
  const WriteLock lock(mutex_);
  SLACKWATER_RETURN_IF_ERROR(check_closed("clear_reusable_blocks"));
  std::vector<NodeIndex> roots;
  tree_->for_each_node([&](NodeIndex node) {
    if (tree_->node(node).is_root()) roots.push_back(node);
  });
  const RemovalScope scope(removal_cause_, RemovalCause::kCleared);
  for (const NodeIndex root : roots) cut_descendants(root);
  clean_up();
  return {};
}

Result<void> CacheCore::shutdown() {
  SLACKWATER_RETURN_IF_ERROR([&] {
    const ReadLock lock(mutex_);
    return check_closed("shutdown");
  }());
  SLACKWATER_RETURN_IF_ERROR(clear_reusable_blocks());
  synchronize();
  return {};
}

MatchDepths CacheCore::probe_reuse(const ReuseScope& scope, std::span<const TokenId> tokens) const {
  const ReadLock lock(mutex_);
  return matcher_->find(scope, tokens).depths;
}

std::optional<Digest128> CacheCore::probe_first_new_block(const ReuseScope& scope,
                                                          std::span<const TokenId> tokens) const {
  std::int64_t block = 0;
  {
    const ReadLock lock(mutex_);
    block = matcher_->find(scope, tokens).depths.reused / config_.tokens_per_block;
  }
  const auto size = static_cast<std::size_t>(config_.tokens_per_block);
  if (static_cast<std::size_t>(block + 1) * size > tokens.size()) return std::nullopt;
  Digest128 prefix = root_prefix(scope);
  for (std::size_t i = 0; i <= static_cast<std::size_t>(block); ++i) {
    prefix = next_prefix(prefix, tokens.subspan(i * size, size), digests_);
  }
  return prefix;
}

std::vector<std::int64_t> CacheCore::snapshot_points(const MatchDepths& match,
                                                     std::int64_t prompt_length) const {
  const bool has_states = std::any_of(kinds_.begin(), kinds_.end(),
                                      [](const auto& kind) { return !kind->has_block_pages(); });
  if (!has_states) return {};
  // What is taken off every match is taken off where a snapshot can be found, too.
  const std::int64_t last = prompt_length - 1 - config_.reuse_match_backoff;
  std::vector<std::int64_t> points = {match.content - config_.reuse_match_backoff,
                                      last / config_.tokens_per_block * config_.tokens_per_block,
                                      last};
  const std::int64_t interval = config_.snapshot_interval;
  for (std::int64_t at = interval; interval > 0 && at < last; at += interval) points.push_back(at);
  std::erase_if(points, [&](std::int64_t at) { return at <= match.reused || at > last; });
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return points;
}

Result<PageTable> CacheCore::page_table(std::int32_t layer, std::string_view role) const {
  const BufferLocation* location = groups_.find(layer, role);
  if (location == nullptr) {
    return make_error(ErrorCode::kNotFound, "layer {} has no buffer '{}' here", layer, role);
  }
  const ReadLock lock(mutex_);
  const bool has_blocks = kinds_[index_of(location->layer_group)]->has_block_pages();
  PageTable table =
      store_->view(location->layer_group, location->buffer,
                   has_blocks ? config_.tokens_per_block / location->num_subblocks : 0);
  table.base += location->layer_index * table.layer_stride;
  return table;
}

TierRoom CacheCore::room(Tier tier, LayerGroupId group) const {
  const ReadLock lock(mutex_);
  return room_of(tier, group);
}

std::int64_t CacheCore::max_device_slots(LayerGroupId group) const {
  const ReadLock lock(mutex_);
  return store_->max_device_slots(group);
}

TierRoom CacheCore::room_of(Tier tier, LayerGroupId group) const {
  TierRoom room;
  if (!store_->has_tier(tier)) return room;
  room.total = store_->pool_stats(tier, group).num_slots;
  room.free = store_->pool_stats(tier, group).num_free;
  room.evictable = residency_->num_evictable(tier, store_->pool_group(tier, group));
  room.unavailable = room.total - room.free - room.evictable;
  return room;
}

CacheCounters CacheCore::counters() const {
  const ReadLock lock(mutex_);
  return total_counters();
}

CacheCounters CacheCore::total_counters() const {
  CacheCounters counters = counters_;
  counters.pages_dropped = residency_->num_dropped();
  counters.certificate_mismatches += store_->stats().certificate_mismatches;
  return counters;
}

std::size_t CacheCore::num_open() const {
  const ReadLock lock(mutex_);
  return num_open_;
}

std::int64_t CacheCore::clamp_max_seq_len(std::int64_t batch_size, std::int64_t upper_bound) const {
  const ReadLock lock(mutex_);
  std::vector<std::int64_t> slots;
  for (const LayerGroupDesc& group : groups_.groups()) {
    slots.push_back(store_->pool_stats(Tier::kDevice, group.id).num_slots);
  }
  return clamp_sequence_length(config_, groups_, slots, batch_size, upper_bound);
}

void CacheCore::synchronize() {
  const WriteLock lock(mutex_);
  store_->synchronize();
}

}  // namespace slackwater::cache
