#include "slackwater/cache/cache_history.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cache/kinds/group_kind.h"
#include "slackwater/base/check.h"

namespace slackwater::cache {
namespace {

std::size_t index_of(LayerGroupId group) { return static_cast<std::size_t>(group.value()); }

}  // namespace

// What a group offers of a prompt: of the pages that are there, or of all that ever were.
class CacheHistory::Offer final : public GroupOffer {
 public:
  Offer(const CacheHistory& history, const ReuseScope& scope, std::span<const TokenId> prompt,
        std::size_t group, bool has_all)
      : history_(history),
        prompt_(prompt),
        size_(static_cast<std::size_t>(history.manager_.tokens_per_block())),
        group_(static_cast<std::int32_t>(group)),
        has_all_(has_all) {
    keys_ = {root_key(scope)};
    for (std::size_t at = 0; at + size_ <= prompt.size(); at += size_) {
      keys_.push_back(next_block_key(keys_.back(), prompt.subspan(at, size_),
                                     history.manager_.token_digests()));
    }
  }

  std::int32_t coverage(std::int64_t block) const override {
    std::size_t most = 0;
    for_each(block, [&](const Page& page, std::size_t agreed) {
      const bool is_whole = agreed == page.tokens.size();
      if (is_there(page) && (is_whole || history_.reuse_.enable_partial_reuse)) {
        most = std::max(most, agreed);
      }
    });
    return static_cast<std::int32_t>(most);
  }

  std::int64_t unbroken(std::int64_t limit) const override {
    std::int64_t position = 0;
    for (std::int64_t block = 0; position < limit; ++block) {
      const std::int64_t there = coverage(block);
      position = block * static_cast<std::int64_t>(size_) + there;
      if (std::cmp_less(there, size_)) break;
    }
    return std::min(limit, position);
  }

  std::int64_t snapshot_at_most(std::int64_t limit) const override {
    for (std::int64_t block = (limit - 1) / static_cast<std::int64_t>(size_);
         limit > 0 && block >= 0; --block) {
      std::int64_t last = 0;
      for_each(block, [&](const Page& page, std::size_t agreed) {
        if (is_there(page) && agreed == page.tokens.size() && page.end <= limit) {
          last = std::max(last, page.end);
        }
      });
      if (last > 0) return last;
    }
    return 0;
  }

  // Pages of a block, with how many of their tokens the prompt begins the block.
  template <class Visit>
  void for_each(std::int64_t block, const Visit& visit) const {
    const auto index = static_cast<std::size_t>(block);
    if (index >= keys_.size()) return;
    const auto at = history_.pages_.find(keys_[index]);
    if (at == history_.pages_.end()) return;
    const auto rest = prompt_.subspan(index * size_);
    for (const Page& page : at->second) {
      if (page.group != group_) continue;
      const auto [ours, theirs] =
          std::mismatch(page.tokens.begin(), page.tokens.end(), rest.begin(), rest.end());
      visit(page, static_cast<std::size_t>(ours - page.tokens.begin()));
    }
  }

 private:
  bool is_there(const Page& page) const { return has_all_ || !page.removal.has_value(); }

  const CacheHistory& history_;
  const std::span<const TokenId> prompt_;
  const std::size_t size_;
  const LayerGroupId group_;
  const bool has_all_;
  std::vector<Sha256Digest> keys_;  // before each block
};

CacheHistory::CacheHistory(KvCacheManager& manager, const ReuseOptions& reuse)
    : manager_(manager), reuse_(reuse) {
  for (const LayerGroupDesc& group : manager.layer_groups().groups()) {
    kinds_.push_back(make_group_kind(group.kind, manager.tokens_per_block()));
  }
  pools_.resize(kinds_.size());
  // By the first of the groups that share a pool group of the coldest tier.
  for (const PoolView& pool : manager.view().pools) {
    for (const LayerGroupId group : pool.groups) {
      pools_[index_of(group)] = {index_of(pool.groups.front()), pool.slot_bytes};
    }
  }
  num_dropped_.resize(kinds_.size());
  note_call("its making");
}

CacheHistory::~CacheHistory() = default;

CacheHistory::Page* CacheHistory::find(const CachedPage& page) {
  const auto parent = parents_.find(page.key);
  if (parent == parents_.end()) return nullptr;
  for (Page& known : pages_[parent->second]) {
    if (known.group == page.group && known.end == page.end && known.key == page.key) return &known;
  }
  return nullptr;
}

void CacheHistory::note_call(std::string_view call) {
  const DrainedEvents drained = manager_.drain_events();
  if (drained.events.empty()) return;
  calls_.emplace_back(call);
  roots_.clear();
  for (const CacheEvent& event : drained.events) note(event);
  for (const CacheEvent& event : drained.events) {
    if (event.kind == CacheEventKind::kRemoved && event.cause == RemovalCause::kOrphaned) {
      find_root(event.page);
    }
  }
}

// What is of no use without a page that has gone, went for the reason for which that one did.
void CacheHistory::find_root(const CachedPage& page) {
  Page* const orphan = find(page);
  if (orphan == nullptr || !orphan->removal.has_value()) return;
  for (Sha256Digest key = page.key;;) {
    const auto root = roots_.find(key);
    if (root != roots_.end()) {
      orphan->removal->pool = root->second.pool;
      orphan->removal->num_before = root->second.num_before;
      orphan->removal->is_for_room = root->second.is_for_room;
      return;
    }
    const auto parent = parents_.find(key);
    if (parent == parents_.end()) return;
    key = parent->second;
  }
}

void CacheHistory::note(const CacheEvent& event) {
  switch (event.kind) {
    case CacheEventKind::kCreated:
      // Whatever is not told again has gone, and nobody says why.
      for (auto& [parent, pages] : pages_) {
        for (Page& page : pages) {
          if (page.removal.has_value()) continue;
          page.removal = Removal{calls_.size() - 1, RemovalCause::kCleared, page.tier};
        }
      }
      return;
    case CacheEventKind::kStored: {
      parents_[event.page.key] = event.parent;
      Page* page = find(event.page);
      if (page == nullptr) {
        page = &pages_[event.parent].emplace_back();
        page->key = event.page.key;
        page->group = event.page.group;
        page->end = event.page.end;
        page->tokens = event.tokens;
      }
      page->tier = event.page.tier;
      page->removal.reset();
      return;
    }
    case CacheEventKind::kUpdated:
    case CacheEventKind::kRemoved: break;
  }
  Page* const page = find(event.page);
  SLACKWATER_CHECK(page != nullptr, "event {} is about a page that was never stored", event.id);
  page->tier = event.page.tier;
  if (event.kind == CacheEventKind::kUpdated) return;
  Removal removal{calls_.size() - 1, event.cause, event.page.tier};
  removal.pool = pools_[index_of(event.page.group)].first_group;
  removal.num_before = num_dropped_[removal.pool];
  removal.is_for_room = event.cause == RemovalCause::kEvicted;
  if (removal.is_for_room) ++num_dropped_[removal.pool];
  if (event.cause != RemovalCause::kOrphaned) roots_[event.page.key] = removal;
  page->removal = removal;
}

// Slots that would have kept it: with n more of them everything leaves n pages later.
std::int64_t CacheHistory::slots_to_keep(const Removal& removal) const {
  return removal.is_for_room ? num_dropped_[removal.pool] - removal.num_before : 0;
}

PageRemoval CacheHistory::describe_removal(const Removal& removal) const {
  PageRemoval told;
  told.call = calls_[removal.call];
  told.cause = removal.cause;
  told.tier = removal.tier;
  told.pool = LayerGroupId(static_cast<std::int32_t>(removal.pool));
  told.slots_to_keep = slots_to_keep(removal);
  told.bytes_to_keep = told.slots_to_keep * pools_[removal.pool].slot_bytes;
  return told;
}

GroupExplanation CacheHistory::explain_group(std::size_t group, const ReuseScope& scope,
                                             std::span<const TokenId> prompt) const {
  const std::int64_t limit =
      std::max<std::int64_t>(0, std::ssize(prompt) - 1 - reuse_.reuse_match_backoff);
  const std::int64_t size = manager_.tokens_per_block();
  const GroupKind& kind = *kinds_[group];
  const Offer now(*this, scope, prompt, group, false);
  const Offer once(*this, scope, prompt, group, true);
  GroupExplanation told;
  told.group = LayerGroupId(static_cast<std::int32_t>(group));
  told.name = manager_.layer_groups().group(told.group).name;
  told.served = kind.longest_usable(now, limit);
  told.served_once = kind.longest_usable(once, limit);
  if (told.served == limit) return told;
  told.missing_end = limit;
  if (told.served_once == told.served) return told;
  // The pages that are wanted to go on from there, first one first.
  const BlockRange stale = kind.stale_blocks(told.served_once);
  const Removal* first = nullptr;
  const Removal* worst = nullptr;
  const auto consider = [&](const Page& page) {
    if (!page.removal.has_value()) return;
    const Removal& removal = *page.removal;
    if (first == nullptr) {
      first = &removal;
      told.missing_end = page.end;
    }
    if (worst == nullptr || slots_to_keep(removal) > slots_to_keep(*worst)) worst = &removal;
  };
  if (!kind.has_block_pages()) {
    once.for_each((told.served_once - 1) / size, [&](const Page& page, std::size_t agreed) {
      if (page.end == told.served_once && agreed == page.tokens.size()) consider(page);
    });
  }
  for (std::int64_t block = 0; kind.has_block_pages() && block * size < told.served_once; ++block) {
    const std::int64_t wanted = std::min(size, told.served_once - block * size);
    if (stale.contains(block) || now.coverage(block) >= wanted) continue;
    once.for_each(block, [&](const Page& page, std::size_t agreed) {
      if (std::cmp_greater_equal(agreed, wanted)) consider(page);
    });
  }
  if (first != nullptr) told.missing = describe_removal(*first);
  if (worst != nullptr) told.worst = describe_removal(*worst);
  return told;
}

MatchExplanation CacheHistory::explain(const ReuseScope& scope,
                                       std::span<const TokenId> tokens) const {
  MatchExplanation told;
  told.match = manager_.probe_reuse(scope, tokens);
  for (std::size_t g = 0; g < kinds_.size(); ++g) {
    told.groups.push_back(explain_group(g, scope, tokens));
  }
  return told;
}

namespace {

std::string describe(const PageRemoval& removal) {
  std::string text = fmt::format("{} from the {} by {}", to_string(removal.cause),
                                 storage::to_string(removal.tier), removal.call);
  if (removal.slots_to_keep > 0) {
    text +=
        fmt::format("; {} more slots of its pool on the last tier ({} bytes) would have kept it",
                    removal.slots_to_keep, removal.bytes_to_keep);
  }
  return text;
}

std::string describe(const GroupExplanation& group) {
  std::string text = fmt::format("  {}: can serve {} tokens by itself", group.name, group.served);
  if (!group.missing_end.has_value()) return text + "\n";
  if (!group.missing.has_value()) {
    return text + "; nothing further was ever kept\n";
  }
  text += fmt::format(", and could once serve {}\n    the page up to token {} is missing: {}\n",
                      group.served_once, *group.missing_end, describe(*group.missing));
  if (group.worst.has_value() && group.worst->slots_to_keep > group.missing->slots_to_keep) {
    text += fmt::format("    for all {} tokens: {} more slots ({} bytes)\n", group.served_once,
                        group.worst->slots_to_keep, group.worst->bytes_to_keep);
  }
  return text;
}

// The group at which the match ends: the one that can serve least.
std::string verdict(const MatchExplanation& told) {
  const MatchDepths& match = told.match;
  if (match.reused == match.lookup)
    return "All of it is found; the last token is left to compute.\n";
  const auto least = std::min_element(
      told.groups.begin(), told.groups.end(),
      [](const GroupExplanation& a, const GroupExplanation& b) { return a.served < b.served; });
  if (least->missing.has_value()) {
    return fmt::format("It ends at {} because of '{}': the page up to token {} was {}.\n",
                       match.reused, least->name, *least->missing_end, describe(*least->missing));
  }
  if (least->served > match.reused) {
    return fmt::format(
        "It ends at {} because no position past it is served by all groups at once.\n",
        match.reused);
  }
  return fmt::format("It ends at {} because nobody has kept anything past it for '{}'.\n",
                     match.reused, least->name);
}

}  // namespace

std::string describe(const MatchExplanation& told) {
  std::string text = fmt::format(
      "A match of {} tokens: {} known, {} of them served by all pages of blocks, {} reused.\n",
      told.match.lookup + 1, told.match.content, told.match.attention, told.match.reused);
  text += verdict(told);
  for (const GroupExplanation& group : told.groups) text += describe(group);
  return text;
}

}  // namespace slackwater::cache
