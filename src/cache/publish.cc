// How blocks of a sequence become nodes of the tree.

#include <algorithm>
#include <array>

#include "cache/cache_core.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {

using device::Event;
using device::EventStatus;

Priority CacheCore::priority_of(const SequenceState& sequence, std::int64_t block,
                                std::size_t group) const {
  if (!sequence.priority) return kDefaultPriority;
  const Priority priority = device::witnessed([&] {
    return sequence.priority(BlockOrdinal(static_cast<std::int32_t>(block)),
                             LayerGroupId(static_cast<std::int32_t>(group)));
  });
  return std::min(priority, kMaxPriority);
}

// Whether a block can go on in the node where the path ends: nobody else is there, nothing follows,
// and its pages are to stay as long.
bool CacheCore::can_append(const SequenceState& sequence, std::int64_t block) const {
  const TreeNode& leaf = tree_->node(sequence.leaf);
  if (leaf.is_root() || leaf.num_children > 0 || leaf.num_blocks() == kMaxNodeBlocks ||
      leaf.users.locks + leaf.users.holds != 1 || tree_->is_partial(leaf)) {
    return false;
  }
  if (!sequence.priority) {
    return std::all_of(leaf.runs.begin(), leaf.runs.end(),
                       [](const PageRun& run) { return run.priority == kDefaultPriority; });
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (leaf.runs[g].priority != priority_of(sequence, block, g)) return false;
  }
  return true;
}

// A page of its own becomes the last one of a node.
void CacheCore::put_page(SequenceState& sequence, std::size_t group, NodeIndex node) {
  SequenceGroup& own = sequence.groups[group];
  PageRun& run = node_run(node, group);
  const std::int64_t block = sequence.num_path_blocks;
  const auto from = static_cast<std::size_t>(block - own.first_block);
  PageId page;
  if (from < own.run.pages.size() && !is_null(own.run.pages[from])) {
    page = residency_->take_page(sequence_key(sequence, group), own.run, from);
  }
  run.pages.push_back(page);
  if (run.is_pinned_by_page) {
    const bool is_needed = !own.stale.contains(block);
    run.pins.push_back(is_needed ? user_pins(sequence) : Pins());
  }
  if (is_null(page)) return;
  const std::size_t i = run.pages.size() - 1;
  certify_page(node, group, i);
  residency_->page_added(node_key(node, group), run, i);
}

// Others see the last block of a node once it is written.
void CacheCore::note_block(NodeIndex index, const Event& written) {
  TreeNode& node = tree_->node(index);
  if (node.is_broken) return;
  const bool is_written =
      written.status() == EventStatus::kSucceeded || SLACKWATER_MUTANT(publish_before_written);
  if (is_written && node.writes.empty()) {
    node.num_written = node.num_blocks();
    if (node.num_blocks() == 1) tidy_shorter(index);
  } else {
    node.writes.push_back({node.num_blocks(), written});
  }
}

// What ends in the middle of a block that others see now is of no use beside it.
void CacheCore::tidy_shorter(NodeIndex index) {
  const NodeIndex parent = tree_->node(index).parent;
  for (NodeIndex shorter = index; shorter != kNoNode;) {
    shorter = tree_->find_shorter_child(parent, tree_->first_block(tree_->node(shorter)));
    if (shorter != kNoNode) to_tidy_.push_back(shorter);
  }
}

// The next block becomes a node, or the end of one.
void CacheCore::publish_new(SequenceState& sequence, std::int32_t num_done) {
  const std::int64_t block = sequence.num_path_blocks;
  const auto size = static_cast<std::size_t>(config_.tokens_per_block);
  const auto rest = std::span<const TokenId>(sequence.unpublished)
                        .subspan(static_cast<std::size_t>(num_done) * size);
  const auto tokens = rest.first(std::min(rest.size(), size));
  const bool appends = tokens.size() == size && can_append(sequence, block);
  if (appends) {
    tree_->append(sequence.leaf, tokens);
  } else {
    const NodeIndex made = tree_->add(sequence.leaf, tokens);
    TreeNode& node = tree_->node(made);
    node.users = user_pins(sequence);
    for (std::size_t g = 0; g < num_groups(); ++g) {
      node.runs[g].priority = priority_of(sequence, block, g);
      if (kind(g).needs_every_block()) node.runs[g].whole = user_pins(sequence);
    }
    sequence.leaf = made;
  }
  if (events_ != nullptr) note_block_added(sequence.leaf);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).has_block_pages()) put_page(sequence, g, sequence.leaf);
  }
  note_block(sequence.leaf, sequence.written);
  ++sequence.num_path_blocks;
}

// How many blocks of a child are the next ones of the sequence, written, and can be shared.
std::int32_t CacheCore::num_known(const SequenceState& sequence, NodeIndex child,
                                  std::int32_t num_done) {
  settle(child);
  const TreeNode& node = tree_->node(child);
  const auto size = static_cast<std::size_t>(config_.tokens_per_block);
  const auto rest = std::span<const TokenId>(sequence.unpublished)
                        .subspan(static_cast<std::size_t>(num_done) * size);
  const std::int32_t most =
      std::min(node.num_written, static_cast<std::int32_t>(rest.size() / size));
  std::int32_t known = 0;
  while (known < most) {
    const auto tokens = rest.subspan(static_cast<std::size_t>(known) * size, size);
    if (!std::ranges::equal(tokens, tree_->block_tokens(node, known))) break;
    if (!can_take_over(sequence, child, known)) break;
    ++known;
  }
  return known;
}

// Whether the page of a known block is as good as ours would be.
bool CacheCore::is_here(NodeIndex index, std::size_t group, std::int32_t block) const {
  const TreeNode& node = tree_->node(index);
  const LayerGroupId id(static_cast<std::int32_t>(group));
  if (matcher_->usable_coverage(node, id, block) < config_.tokens_per_block) return false;
  const PageId page = node.runs[group].pages[static_cast<std::size_t>(block)];
  return store_->tier(page) == Tier::kDevice &&
         store_->ready(page).status() == EventStatus::kSucceeded;
}

// Whether theirs is as good as ours would be: while active, ours is at hand.
bool CacheCore::keeps_theirs(const SequenceState& sequence, std::size_t group, NodeIndex index,
                             std::int32_t block) const {
  if (sequence.status == SequenceStatus::kActive) return is_here(index, group, block);
  const LayerGroupId id(static_cast<std::int32_t>(group));
  return matcher_->usable_coverage(tree_->node(index), id, block) == config_.tokens_per_block;
}

// Whether a block that is known can be shared: each page of theirs is there, or nobody uses it now,
// and ours is there to take its place. Where they have none, ours may also come late, if its group
// can do without it.
bool CacheCore::can_take_over(const SequenceState& sequence, NodeIndex index,
                              std::int32_t block) const {
  const TreeNode& node = tree_->node(index);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages() || keeps_theirs(sequence, g, index, block)) continue;
    const PageId ours = own_page(sequence, g, std::int64_t{node.first_block} + block);
    if (is_null(ours)) continue;
    const PageRun& run = node.runs[g];
    const auto i = static_cast<std::size_t>(block);
    if (run.pins_of(i).locks > 0 && !SLACKWATER_MUTANT(locked_page_is_replaced)) return false;
    const bool is_ready = store_->ready(ours).status() == EventStatus::kSucceeded ||
                          SLACKWATER_MUTANT(unwritten_page_takes_over);
    const bool may_come_late = is_null(run.pages[i]) && run.is_pinned_by_page;
    if (!is_ready && !may_come_late) return false;
  }
  return true;
}

// Ours takes the place of theirs, which is worse or far away.
void CacheCore::replace_page(SequenceState& sequence, std::size_t group, NodeIndex index,
                             std::int32_t block) {
  SequenceGroup& own = sequence.groups[group];
  PageRun& run = node_run(index, group);
  const auto i = static_cast<std::size_t>(block);
  const std::int64_t own_index = tree_->node(index).first_block + block - own.first_block;
  release_page(node_key(index, group), i);
  run.pages[i] = residency_->take_page(sequence_key(sequence, group), own.run,
                                       static_cast<std::size_t>(own_index));
  tree_->set_coverage(tree_->node(index), run.group, block, config_.tokens_per_block);
  const Event& ready = store_->ready(run.pages[i]);
  set_late(tree_->node(index), run.group, block,
           ready.status() == EventStatus::kSucceeded ? Event() : ready);
  certify_page(index, group, i);
  residency_->page_added(node_key(index, group), run, i);
}

// One page of a block that is known: theirs if it is as good, else ours. The other one is given up.
void CacheCore::take_over(SequenceState& sequence, std::size_t group, NodeIndex index,
                          std::int32_t block) {
  SequenceGroup& own = sequence.groups[group];
  const std::int64_t ordinal = std::int64_t{tree_->node(index).first_block} + block;
  if (is_null(own_page(sequence, group, ordinal))) return;
  if (!keeps_theirs(sequence, group, index, block)) {
    replace_page(sequence, group, index, block);
    return;
  }
  const Event last_use = record(sequence);
  if (!last_use.is_null()) own.run.last_use = last_use;
  release_page(sequence_key(sequence, group), static_cast<std::size_t>(ordinal - own.first_block));
  if (sequence.status != SequenceStatus::kActive) return;
  if (SLACKWATER_MUTANT(rebase_keeps_old_slot)) return;
  const PageId theirs = node_run(index, group).pages[static_cast<std::size_t>(block)];
  set_slot(own, ordinal, store_->slot(theirs));
}

// Goes on in a child that has the next blocks; 0 when it cannot be shared now.
std::int32_t CacheCore::publish_known(SequenceState& sequence, NodeIndex child,
                                      std::int32_t num_done) {
  const std::int32_t known = num_known(sequence, child, num_done);
  if (known == 0) return 0;
  NodeIndex node = child;
  if (known < tree_->node(child).num_blocks()) node = split(child, known);
  const Pins pins = user_pins(sequence);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) continue;
    const SequenceGroup& own = sequence.groups[g];
    for (std::int32_t i = 0; i < known; ++i) {
      take_over(sequence, g, node, i);
      if (!node_run(node, g).is_pinned_by_page) continue;
      if (own.stale.contains(tree_->node(node).first_block + i)) continue;
      residency_->pin_page(node_key(node, g), node_run(node, g), static_cast<std::size_t>(i), pins);
    }
    if (kind(g).needs_every_block()) {
      residency_->pin_whole(node_key(node, g), node_run(node, g), pins);
    }
  }
  tree_->node(node).users.locks += pins.locks;
  tree_->node(node).users.holds += pins.holds;
  sequence.leaf = node;
  sequence.num_path_blocks += known;
  return known;
}

// Takes published blocks out of what is the sequence's own. Their places stay empty until they are
// half of all: so it costs nothing that much is allocated ahead.
void CacheCore::drop_published(SequenceState& sequence, std::int32_t num_done) {
  if (num_done == 0) return;
  const auto tokens =
      std::min(sequence.unpublished.size(), static_cast<std::size_t>(num_done) *
                                                static_cast<std::size_t>(config_.tokens_per_block));
  digests_.release(std::span(sequence.unpublished).first(tokens));
  sequence.unpublished.erase(sequence.unpublished.begin(),
                             sequence.unpublished.begin() + static_cast<std::ptrdiff_t>(tokens));
  Event last_use;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (!kind(g).has_block_pages()) continue;
    SequenceGroup& own = sequence.groups[g];
    const std::int64_t num_left_behind =
        std::min(sequence.num_path_blocks - own.first_block, std::ssize(own.run.pages));
    if (2 * num_left_behind >= std::ssize(own.run.pages)) {
      own.run.pages.erase(own.run.pages.begin(), own.run.pages.begin() + num_left_behind);
      own.first_block = sequence.num_path_blocks;
    }
    let_go(sequence, g, kept_stale(sequence, g, sequence.history), last_use);
  }
}

// Every full block that is committed and not in the tree yet.
void CacheCore::publish(SequenceState& sequence) {
  const std::int64_t size = config_.tokens_per_block;
  std::int32_t num_done = 0;
  while (std::ssize(sequence.unpublished) - num_done * size >= size) {
    const auto tokens =
        std::span<const TokenId>(sequence.unpublished)
            .subspan(static_cast<std::size_t>(num_done * size), static_cast<std::size_t>(size));
    const NodeIndex child = tree_->find_child(sequence.leaf, tokens);
    if (child == kNoNode) {
      publish_new(sequence, num_done);
      ++num_done;
      continue;
    }
    const std::int32_t known = publish_known(sequence, child, num_done);
    num_done += known;
    if (known > 0) continue;
    // What nobody uses any more, and is broken, is in the way of what is not.
    const TreeNode& node = tree_->node(child);
    if (!node.is_broken || node.num_written > 0 || node.users != Pins()) break;
    const RemovalScope scope(removal_cause_, RemovalCause::kLost);
    cut(child, 0);
  }
  drop_published(sequence, num_done);
}

// Notes when a page that was put into a block is written; null: it is.
void CacheCore::set_late(TreeNode& node, LayerGroupId group, std::int32_t block,
                         const Event& written) {
  std::erase_if(node.late_pages,
                [&](const auto& late) { return late.block == block && late.group == group; });
  if (!written.is_null()) node.late_pages.push_back({block, group, written});
}

// A longer block has come: what the shorter one has and it has not goes over, with its coverage.
void CacheCore::absorb_shorter(NodeIndex longer, NodeIndex shorter) {
  TreeNode& from = tree_->node(shorter);
  TreeNode& to = tree_->node(longer);
  const RemovalScope scope(removal_cause_, RemovalCause::kReplaced);
  settle(shorter);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    PageRun& source = from.runs[g];
    PageRun& target = to.runs[g];
    if (!kind(g).has_block_pages()) {
      if (g == first_recurrent_) index_states(shorter, false);
      while (!source.pages.empty()) {
        const std::int64_t position = source.positions.back();
        const Event written = source.written.back();
        const bool is_lost = is_null(source.pages.back());
        const PageId page =
            is_lost ? PageId()
                    : residency_->take_page(node_key(shorter, g), source, source.pages.size() - 1);
        source.pages.pop_back();
        source.pins.pop_back();
        source.positions.pop_back();
        source.certificates.pop_back();
        source.written.pop_back();
        if (is_lost) continue;
        if (put_snapshot(longer, g, position, page, {written, {}})) continue;
        if (!plans_.empty()) plans_.forget(page);
        store_->release(page);
      }
      continue;
    }
    const LayerGroupId group(static_cast<std::int32_t>(g));
    const std::int32_t covered = tree_->coverage(from, group, 0);
    const bool is_dead = from.is_broken || (from.num_written == 0 && from.writes.empty());
    // What somebody holds there and has lost is not replaced by less.
    if (covered == 0 || is_dead || !is_null(target.pages[0]) || target.pins_of(0) != Pins()) {
      continue;
    }
    target.pages[0] = residency_->take_page(node_key(shorter, g), source, 0);
    tree_->set_coverage(to, group, 0, covered);
    set_late(to, group, 0, from.num_written > 0 ? Event() : from.writes.front().written);
    target.certificates.resize(target.pages.size());
    target.certificates[0] = source.certificates[0];
    residency_->page_added(node_key(longer, g), target, 0);
  }
  if (!plans_.empty()) note_moved(longer);
  erase_node(shorter);
}

// A state that is exactly that of the end becomes a snapshot.
void CacheCore::publish_state(SequenceState& sequence) {
  const std::int64_t end = sequence.num_committed;
  const NodeIndex node = node_of_position(sequence, end);
  // A step for which there is, or was, room may be under way, and the state is written in place.
  const bool seems_of_end =
      sequence.history == end && (!sequence.may_be_ahead || sequence.is_finished);
  const bool is_said_aloud =
      config_.explicit_states && !SLACKWATER_MUTANT(explicit_state_published_by_close);
  const bool is_of_end = sequence.ends_with_state || (seems_of_end && !is_said_aloud);
  if (!is_of_end || sequence.is_state_unknown || node == kNoNode) return;
  const Event last_use = record(sequence);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    SequenceGroup& own = sequence.groups[g];
    if (kind(g).has_block_pages() || own.run.pages.empty() || is_null(own.run.pages[0])) continue;
    if (has_snapshot(node, g, end)) continue;
    const PageId page = residency_->take_page(sequence_key(sequence, g), own.run, 0);
    own.run.pages.clear();
    store_->note_read(page, last_use);
    const bool is_active = sequence.status == SequenceStatus::kActive;
    put_snapshot(node, g, end, page, {sequence.written, is_active ? last_use : own.run.last_use});
    if (is_active) set_slot(own, 0, kNoSlot);
  }
}

// The end: a partial block and the state go into the tree as they are.
void CacheCore::publish_tail(SequenceState& sequence) {
  const std::int64_t size = config_.tokens_per_block;
  if (std::ssize(sequence.unpublished) >= size) return;
  if (!sequence.unpublished.empty() &&
      branch_with(sequence.leaf, sequence.unpublished) == kNoNode &&
      tree_->find_child(sequence.leaf, sequence.unpublished) == kNoNode) {
    publish_new(sequence, 0);
    drop_published(sequence, 1);
  }
  publish_state(sequence);
}

void CacheCore::pin_node(NodeIndex index, Pins change) {
  TreeNode& node = tree_->node(index);
  node.users.locks += change.locks;
  node.users.holds += change.holds;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).needs_every_block()) {
      residency_->pin_whole(node_key(index, g), node.runs[g], change);
    }
  }
  if (node.users == Pins()) to_tidy_.push_back(index);
}

// The node that has, or gets, a copy of the partial block at the end; the leaf where there is none.
// Nothing where the same block is on its way, by somebody else.
NodeIndex CacheCore::endpoint_node(SequenceState& sequence, bool& is_new) {
  const std::span<const TokenId> tail = sequence.unpublished;
  is_new = false;
  if (tail.empty()) return sequence.leaf;
  NodeIndex node = branch_with(sequence.leaf, tail);
  if (node != kNoNode) return node;
  if (tree_->find_child(sequence.leaf, tail) != kNoNode) return kNoNode;
  is_new = true;
  node = tree_->add(sequence.leaf, tail);
  if (events_ != nullptr) note_block_added(node);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    PageRun& run = node_run(node, g);
    run.priority = priority_of(sequence, sequence.num_path_blocks, g);
    if (!kind(g).has_block_pages()) continue;
    run.pages.emplace_back();
    if (run.is_pinned_by_page) run.pins.emplace_back();
  }
  return node;
}

// Copies the pages of the partial block where the node has none that covers as much. False where
// there is no room for one.
bool CacheCore::copy_tail(SequenceState& sequence, NodeIndex index, bool is_new) {
  const auto tail = static_cast<std::int32_t>(sequence.unpublished.size());
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const LayerGroupId group(static_cast<std::int32_t>(g));
    const PageId source = own_page(sequence, g, sequence.num_path_blocks);
    if (!kind(g).has_block_pages() || is_null(source)) continue;
    if (matcher_->usable_coverage(tree_->node(index), group, 0) >= tail) continue;
    PageRun& run = node_run(index, g);
    // Others see the node already: what they cannot do without is there, and stays.
    if (!is_new && !run.is_pinned_by_page) return false;
    const bool is_late = !is_new && sequence.written.status() != EventStatus::kSucceeded;
    if (run.is_pinned_by_page && run.pins[0] != Pins()) return false;
    const std::optional<PageId> copy = try_allocate(g);
    if (!copy.has_value()) return false;
    if (!store_->copy(source, *copy).has_value()) {
      store_->release(*copy);
      return false;
    }
    sequence.stream->wait(store_->ready(*copy));
    if (sequence.is_counted) count_copy(sequence, g, source);
    release_page(node_key(index, g), 0);
    run.pages[0] = *copy;
    tree_->set_coverage(tree_->node(index), group, 0, tail);
    set_late(tree_->node(index), group, 0, is_late ? sequence.written : Event());
    certify_page(index, g, 0);
    residency_->page_added(node_key(index, g), run, 0);
  }
  if (is_new) note_block(index, sequence.written);
  return true;
}

// Copies of the states of the end become snapshots. False where there is no room for one.
bool CacheCore::copy_states(SequenceState& sequence, NodeIndex node) {
  const std::int64_t end = sequence.num_committed;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (kind(g).has_block_pages()) continue;
    if (has_snapshot(node, g, end)) continue;
    const std::optional<PageId> copy = try_allocate(g);
    if (!copy.has_value()) return false;
    store_->drop_transient(*copy, {});
    const PageId state = sequence.groups[g].run.pages[0];
    if (!store_->copy(state, *copy).has_value()) {
      store_->release(*copy);
      return false;
    }
    sequence.stream->wait(store_->ready(*copy));
    if (sequence.is_counted) count_copy(sequence, g, state);
    put_snapshot(node, g, end, *copy, {sequence.written, {}});
  }
  return true;
}

// What is needed to go on from here stays behind, as far as there is room: of a partial block a
// copy, and of states as well, where they may be taken to be of the end. Where the caller says that
// they are, they are handed over.
void CacheCore::copy_endpoint(SequenceState& sequence, bool publishes_state) {
  if (std::ssize(sequence.unpublished) >= config_.tokens_per_block) {
    if (publishes_state) ++counters_.snapshots_skipped;
    return;
  }
  bool is_new = false;
  const NodeIndex node = endpoint_node(sequence, is_new);
  if (node == kNoNode) ++counters_.snapshots_skipped;
  if (node == kNoNode || tree_->node(node).is_root()) return;
  pin_node(node, {0, 1});
  bool has_room = sequence.unpublished.empty() || copy_tail(sequence, node, is_new);
  if (publishes_state) {
    has_room = has_room && hand_over_states(sequence, node);
  } else if (!config_.explicit_states) {
    has_room = has_room && copy_states(sequence, node);
  }
  if (!has_room) {
    ++counters_.snapshots_skipped;
    // Half a copy is none.
    if (is_new && tree_->node(node).num_written == 0 && tree_->node(node).writes.empty()) {
      break_node(node, 0);
    }
  }
  pin_node(node, {0, -1});
}

}  // namespace slackwater::cache
