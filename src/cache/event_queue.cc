#include "cache/event_queue.h"

#include <algorithm>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {
namespace {

// Of larger blocks not every event can bring all its tokens: few do.
constexpr std::int64_t kMostTokensPerEvent = 64;

}  // namespace

void EventBatch::add(const EventRecord& record, std::span<const TokenId> block_tokens,
                     TokenDigests& digests) {
  EventRecord& added = records.emplace_back(record);
  num_events += record.is_of_page() ? 1 : 0;
  if (block_tokens.empty()) return;
  if (!has_tokens_of(record, block_tokens.size())) {
    if (!SLACKWATER_MUTANT(event_lets_digests_go)) digests.retain(block_tokens);
    tokens.insert(tokens.end(), block_tokens.begin(), block_tokens.end());
    shared_ = record.prefix;
    num_shared_ = block_tokens.size();
  }
  added.first_token = tokens.size() - num_shared_;
  added.num_tokens = static_cast<std::uint32_t>(block_tokens.size());
}

void EventBatch::clear() {
  records.clear();
  tokens.clear();
  num_events = 0;
  num_shared_ = 0;
}

EventQueue::EventQueue(std::int32_t max_events, std::int32_t tokens_per_block,
                       TokenDigests& digests)
    : max_events_(max_events), digests_(digests) {
  const std::int64_t tokens =
      max_events * std::min<std::int64_t>(tokens_per_block, kMostTokensPerEvent);
  max_tokens_ = static_cast<std::size_t>(std::max<std::int64_t>(tokens, tokens_per_block));
  batch_.records.reserve(kRecordsPerEvent * static_cast<std::size_t>(max_events));
  batch_.tokens.reserve(max_tokens_);
}

void EventQueue::add(const EventRecord& record, std::span<const TokenId> block_tokens) {
  const std::int64_t more = record.is_of_page() ? 1 : 0;
  if (has_overflown_) {
    num_lost_ += more;
    return;
  }
  const bool brings_tokens = !batch_.has_tokens_of(record, block_tokens.size());
  const bool has_room =
      batch_.num_events + more <= max_events_ &&
      batch_.records.size() < kRecordsPerEvent * static_cast<std::size_t>(max_events_) &&
      (!brings_tokens || batch_.tokens.size() + block_tokens.size() <= max_tokens_);
  if (has_room) {
    batch_.add(record, block_tokens, digests_);
    return;
  }
  overflow();
  num_lost_ += more;
}

void EventQueue::overflow() {
  has_overflown_ = true;
  num_lost_ += batch_.num_events;
  digests_.release(batch_.tokens);
  batch_.clear();
}

EventQueue::Taken EventQueue::take() {
  Taken taken;
  taken.has_overflown =
      std::exchange(has_overflown_, false) && !SLACKWATER_MUTANT(overflow_is_not_told);
  taken.num_lost = std::exchange(num_lost_, 0);
  taken.batch = batch_;  // a copy: the room stays
  batch_.clear();
  return taken;
}

void EventQueue::check_invariants() const {
  const std::size_t most = kRecordsPerEvent * static_cast<std::size_t>(max_events_);
  SLACKWATER_CHECK(batch_.num_events <= max_events_ && batch_.records.size() <= most &&
                       batch_.tokens.size() <= max_tokens_,
                   "I1: {} events of {}, {} records, {} tokens", batch_.num_events, max_events_,
                   batch_.records.size(), batch_.tokens.size());
  SLACKWATER_CHECK(!has_overflown_ || batch_.records.empty(), "I2: {} records after an overflow",
                   batch_.records.size());
}

void EventReader::begin_anew(const std::array<std::int64_t, storage::kNumTiers>& num_slots,
                             std::vector<CacheEvent>& events) {
  keys_.clear();
  CacheEvent& event = events.emplace_back();
  event.id = next_id_++;
  event.kind = CacheEventKind::kCreated;
  event.num_slots = num_slots;
}

void EventReader::add_block(const EventRecord& record, std::span<const TokenId> tokens,
                            const TokenDigests& digests) {
  BlockKeys made;
  if (record.kind == EventRecord::Kind::kFirstBlockAdded) {
    ReuseScope scope;
    if ((record.scope_mask & 1) != 0) scope.adapter = record.parent.low;
    if ((record.scope_mask & 2) != 0) scope.salt = record.parent.high;
    made.parent = root_key(scope);
  } else {
    const auto before = keys_.find(record.parent);
    SLACKWATER_CHECK(before != keys_.end(), "I1: block {} comes after none", to_hex(record.prefix));
    made.parent = before->second.key;
  }
  made.key = next_block_key(made.parent, tokens, digests);
  const bool is_new = keys_.emplace(record.prefix, made).second;
  SLACKWATER_CHECK(is_new, "I1: block {} comes again", to_hex(record.prefix));
}

CacheEvent EventReader::page_event(const EventRecord& record) const {
  const auto at = keys_.find(record.prefix);
  SLACKWATER_CHECK(at != keys_.end(), "I1: a page of block {}, which is not there",
                   to_hex(record.prefix));
  CacheEvent event;
  event.page = {at->second.key, LayerGroupId(record.group), record.end, record.tier,
                record.priority};
  if (record.kind == EventRecord::Kind::kStored) {
    event.kind = CacheEventKind::kStored;
    event.parent = at->second.parent;
  } else if (record.kind == EventRecord::Kind::kRemoved) {
    event.kind = CacheEventKind::kRemoved;
    event.cause = record.cause;
  } else {
    event.kind = CacheEventKind::kUpdated;
    event.previous_tier = record.previous_tier;
  }
  return event;
}

void EventReader::read(const EventBatch& batch, const TokenDigests& digests,
                       std::vector<CacheEvent>& events) {
  events.reserve(events.size() + static_cast<std::size_t>(batch.num_events));
  for (const EventRecord& record : batch.records) {
    const auto tokens =
        std::span<const TokenId>(batch.tokens).subspan(record.first_token, record.num_tokens);
    if (record.kind == EventRecord::Kind::kBlockRemoved) {
      const std::size_t count = keys_.erase(record.prefix);
      SLACKWATER_CHECK(count == 1, "I1: block {} goes, and is not there", to_hex(record.prefix));
      continue;
    }
    if (!record.is_of_page()) {
      add_block(record, tokens, digests);
      continue;
    }
    CacheEvent& event = events.emplace_back(page_event(record));
    event.id = next_id_++;
    event.tokens.assign(tokens.begin(), tokens.end());
    for (const TokenId token : tokens) {
      if (is_digest_token(token)) event.digests.push_back(digests.digest(token));
    }
  }
}

}  // namespace slackwater::cache
