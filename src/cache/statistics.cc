// What requests do, counted; and what of it is published.

#include <algorithm>
#include <utility>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {
namespace {

LayerGroupId id_of(std::size_t group) { return LayerGroupId(static_cast<std::int32_t>(group)); }

}  // namespace

void CacheCore::open_book() {
  if (!config_.enable_statistics) return;
  std::vector<std::int64_t> page_bytes;
  for (const LayerGroupDesc& group : groups_.groups()) page_bytes.push_back(group.page_bytes);
  book_ = std::make_unique<StatisticsBook>(*store_, page_bytes);
  residency_->set_book(book_.get());
}

// The page of a node from which a sequence makes one of its own, where it is resumed for the first
// time.
PageId CacheCore::source_page(const SequenceState& sequence, std::size_t group) const {
  const std::int64_t end = sequence.num_committed;
  const TreeNode& node =
      tree_->node(path_node(sequence.leaf, (end - 1) / config_.tokens_per_block));
  const PageRun& run = node.runs[group];
  if (kind(group).has_block_pages()) return run.pages.back();
  const auto at = std::lower_bound(run.positions.begin(), run.positions.end(), end);
  SLACKWATER_CHECK(at != run.positions.end() && *at == end, "no snapshot at {}", end);
  return run.pages[static_cast<std::size_t>(at - run.positions.begin())];
}

// Shares out the tokens of a node as far as they are reused. Pages that all lie on one tier are not
// looked at.
void CacheCore::add_cached_tokens(NodeIndex index, std::int64_t reused, TierCounts& tokens) const {
  const TreeNode& node = tree_->node(index);
  const std::int64_t first = tree_->first_token(node);
  const std::int64_t end = std::min(reused, tree_->end_token(node));
  for (std::size_t t = 0; t < kNumTiers; ++t) {
    const bool is_all = std::all_of(node.runs.begin(), node.runs.end(), [&](const PageRun& run) {
      return run.is_by_position || run.num_on[t] == node.num_blocks();
    });
    if (!is_all) continue;
    tokens[t] += end - first;
    return;
  }
  for (std::int64_t at = first; at < end; at += config_.tokens_per_block) {
    const std::int64_t count = std::min<std::int64_t>(config_.tokens_per_block, end - at);
    const auto block = static_cast<std::size_t>((at - first) / config_.tokens_per_block);
    TierCounts pages = {};
    std::int64_t num_pages = 0;
    for (const PageRun& run : node.runs) {
      if (run.is_by_position || is_null(run.pages[block])) continue;
      ++pages[index_of(store_->tier(run.pages[block]))];
      ++num_pages;
    }
    const std::int64_t share = num_pages == 0 ? 0 : count / num_pages;
    for (std::size_t t = 0; t < kNumTiers; ++t) tokens[t] += share * pages[t];
    tokens[index_of(Tier::kDevice)] += count - share * num_pages;
  }
}

// Where the tokens that a new sequence has found lie.
CacheCore::TierCounts CacheCore::cached_tokens(const SequenceState& sequence) const {
  TierCounts tokens = {};
  const std::int64_t reused = sequence.num_committed;
  if (reused == 0) return tokens;
  std::optional<Tier> of_state;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).has_block_pages()) continue;
    const Tier tier = store_->tier(source_page(sequence, g));
    of_state = std::max(tier, of_state.value_or(tier));
  }
  if (of_state.has_value()) {
    tokens[index_of(*of_state)] = reused;
    return tokens;
  }
  for (NodeIndex node = sequence.leaf; !tree_->node(node).is_root();
       node = tree_->node(node).parent) {
    add_cached_tokens(node, reused, tokens);
  }
  return tokens;
}

void CacheCore::note_device_slots(std::size_t group) {
  if (book_ != nullptr) book_->note_slots(id_of(group), Tier::kDevice);
}

// What a new sequence has asked for, and found.
void CacheCore::count_create(SequenceState& sequence, const SequenceOptions& options) {
  sequence.is_counted =
      book_ != nullptr && (!options.is_dummy || SLACKWATER_MUTANT(dummy_is_counted));
  if (!sequence.is_counted) return;
  sequence.is_recompute = options.is_recompute;
  sequence.expected_prompt_length = options.expected_prompt_length;
  sequence.cached_tokens = cached_tokens(sequence);
  const std::int64_t queried = std::ssize(options.tokens);
  const std::int64_t reused = sequence.num_committed;
  TokenUse& tokens = sequence.pending;
  if (sequence.is_recompute && !SLACKWATER_MUTANT(recompute_is_a_hit)) {
    tokens.recompute_queried = queried;
    tokens.recompute_reused = reused;
    return;
  }
  tokens.queried = queried;
  tokens.reused = reused;
  std::int64_t missing = queried;
  for (std::size_t t = 0; t < kNumTiers; ++t) {
    tokens.tiers[t] = {missing, sequence.cached_tokens[t]};
    missing -= SLACKWATER_MUTANT(host_is_asked_for_all) ? 0 : sequence.cached_tokens[t];
  }
  for (std::size_t g = 0; g < num_groups() && queried > 0; ++g) {
    count_match(sequence, g, queried);
  }
}

void CacheCore::count_match(SequenceState& sequence, std::size_t group, std::int64_t queried) {
  SequenceGroup& own = sequence.groups[group];
  const std::int64_t reused = sequence.num_committed;
  const std::int64_t blocks = reused / config_.tokens_per_block;
  const bool has_tail = reused % config_.tokens_per_block != 0;
  if (kind(group).has_block_pages()) {
    own.pending.pages_reused_full = blocks - intersect(own.stale, BlockRange{0, blocks}).size();
    own.pending.pages_reused_partial = has_tail && !own.stale.contains(blocks) ? 1 : 0;
    return;
  }
  SnapshotStatistics& snapshots = own.pending.snapshots;
  snapshots.lookups = 1;
  ++(reused > 0 ? snapshots.hits : snapshots.misses);
  if (reused > 0) ++(has_tail ? snapshots.hits_inside_block : snapshots.hits_at_boundary);
  snapshots.tokens_reused = reused;
  snapshots.tokens_not_reused = queried - reused;
}

// A state of its own per recurrent group, and copies of the block that is matched in part. What
// they were copied from is still where it was.
void CacheCore::count_first_resume(SequenceState& sequence) {
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (sequence.groups[g].run.pages.empty()) continue;
    ++sequence.groups[g].pending.pages_allocated;
    book_->note_slots(id_of(g), Tier::kDevice);
    if (sequence.num_committed > 0) count_copy(sequence, g, source_page(sequence, g));
  }
}

void CacheCore::count_copy(SequenceState& sequence, std::size_t group, PageId source) {
  const Tier from = store_->tier(source);
  GroupUse& use = sequence.groups[group].pending;
  PageFlow& copied = from == Tier::kDevice ? use.copied : use.copied_from_host;
  ++copied.pages;
  copied.bytes += book_->page_bytes(id_of(group), from);
  book_->note_slots(id_of(group), Tier::kDevice);
}

// Blocks [first, end) have got pages, but for those that are stale, at a history of so many tokens.
void CacheCore::count_growth(SequenceState& sequence, const BlockRange& added,
                             std::int64_t history) {
  if (added.size() == 0) return;
  const bool is_past_prompt =
      sequence.expected_prompt_length > 0 && history >= sequence.expected_prompt_length;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) continue;
    SequenceGroup& own = sequence.groups[g];
    const std::int64_t pages = added.size() - intersect(own.stale, added).size();
    own.pending.pages_allocated += pages;
    (is_past_prompt          ? own.pending.pages_generated
     : sequence.is_recompute ? own.pending.pages_recomputed
                             : own.pending.pages_missed) += pages;
    if (pages > 0) book_->note_slots(id_of(g), Tier::kDevice);
  }
}

// Pages at the end have been given back. Those that are pending were the last to come, and what is
// generated came after the prompt.
void CacheCore::count_return(SequenceGroup& own, std::int64_t pages) {
  if (SLACKWATER_MUTANT(shrink_keeps_pending)) return;
  for (std::int64_t* const pending :
       {&own.pending.pages_generated, &own.pending.pages_recomputed, &own.pending.pages_missed}) {
    const std::int64_t taken_back = std::min(pages, *pending);
    *pending -= taken_back;
    own.pending.pages_allocated -= taken_back;
    pages -= taken_back;
  }
}

void CacheCore::commit_statistics(SequenceState& sequence) {
  if (!sequence.is_counted) return;
  const WriteLock lock(mutex_);
  book_->add(sequence.pending);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    book_->add(id_of(g), sequence.groups[g].pending);
  }
  discard_statistics(sequence);
}

void CacheCore::discard_statistics(SequenceState& sequence) {
  sequence.pending = {};
  for (SequenceGroup& group : sequence.groups) group.pending = {};
}

RequestStatistics CacheCore::pending_statistics(const SequenceState& sequence) const {
  RequestStatistics pending;
  pending.tokens = sequence.pending;
  for (const SequenceGroup& group : sequence.groups) pending.groups.push_back(group.pending);
  return pending;
}

CacheStatistics CacheCore::statistics() const {
  const ReadLock lock(mutex_);
  return total_statistics();
}

CacheStatistics CacheCore::total_statistics() const {
  if (book_ != nullptr) return book_->total();
  CacheStatistics none;
  none.groups.resize(num_groups());
  return none;
}

CacheStatistics CacheCore::take_statistics() {
  const WriteLock lock(mutex_);
  return book_ == nullptr ? total_statistics() : book_->take();
}

}  // namespace slackwater::cache
