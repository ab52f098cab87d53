// What there is to see of a manager, and whether it is right.

#include "slackwater/hybrid/hybrid_view.h"

#include <map>
#include <string>
#include <utility>

#include "hybrid/hybrid_request.h"
#include "slackwater/base/check.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"

namespace slackwater::hybrid {

using cache::SequenceStatus;

namespace {

// `target` is the place of the target's cursor, where it has recurrent layers here.
RequestPosition position_of(const HybridRequest& request, const Result<std::size_t>& target) {
  RequestPosition position;
  position.kept = request.kept;
  position.page_position = request.kept;
  if (target.has_value()) {
    position.page_position = request.cursors[*target].page_position;
    position.num_pending = request.cursors[*target].num_pending;
  }
  position.epoch = request.epoch;
  position.round = request.round;
  position.is_acceptance_pending = request.awaits_host();
  position.is_on_device = !request.open_rounds.empty() && !request.awaits_host();
  return position;
}

}  // namespace

Result<RequestPosition> HybridCacheManager::position(RequestId id,
                                                     std::string_view group_tag) const {
  SLACKWATER_ASSIGN_OR_RETURN(const HybridRequest* const request, find(id));
  const Result<std::size_t> tag = find_tag(group_tag);
  if (!tag.has_value() && group_tag != "target") return tl::unexpected<Error>(tag.error());
  return position_of(*request, tag);
}

HybridCounters HybridCacheManager::counters() const {
  HybridCounters all = counters_;
  for (const auto& tag : tags_) {
    const SlotRegistryCounters& counters = tag->registry().counters();
    all.saves += counters.saves;
    all.restores += counters.restores;
    all.relocations += counters.relocations;
    all.resets += counters.resets;
    all.drops += counters.drops;
    all.bytes_saved += counters.bytes_saved;
    all.bytes_restored += counters.bytes_restored;
  }
  return all;
}

HybridView HybridCacheManager::view() const {
  HybridView view;
  for (const auto& [id, request] : requests_) {
    RequestView& seen = view.requests.emplace_back();
    seen.request = id;
    seen.status = request->sequence.status();
    seen.position = position_of(*request, find_tag("target"));
    for (std::size_t t = 0; t < tags_.size(); ++t) {
      const StateCursor& cursor = request->cursors[t];
      seen.slots.push_back({tags_[t]->group_tag(), cursor.slot, cursor.saved.has_value(),
                            cursor.accepted_override, cursor.page_position, cursor.num_pending});
    }
  }
  for (const auto& tag : tags_) {
    const SlotRegistry& registry = tag->registry();
    view.registries.push_back(
        {.group_tag = tag->group_tag(),
         .num_slots = registry.num_slots(),
         .num_pool_slots = kv_cache_->room(storage::Tier::kDevice, tag->layer_group()).total,
         .bytes_per_slot = registry.bytes_per_slot(),
         .bytes = registry.bytes(),
         .num_reserved = registry.num_reserved(),
         .max_saves = registry.max_saves(),
         .num_saved = registry.num_saved()});
  }
  view.counters = counters();
  return view;
}

std::string HybridCacheManager::describe() const {
  const HybridView seen = view();
  std::string text =
      fmt::format("{} requests, records {}\n", seen.requests.size(), to_string(config_.placement));
  for (const RegistryView& registry : seen.registries) {
    text += fmt::format(
        "  {}: {} slots of {} in the pool, {} bytes a slot beside it; {} of {} "
        "saves reserved, {} used\n",
        registry.group_tag, registry.num_slots, registry.num_pool_slots, registry.bytes_per_slot,
        registry.num_reserved, registry.max_saves, registry.num_saved);
  }
  for (const RequestView& request : seen.requests) {
    text += fmt::format("  request {}: {}, {} kept, page at {} with {} pending, round {}{}\n",
                        request.request.value(), to_string(request.status), request.position.kept,
                        request.position.page_position, request.position.num_pending,
                        request.position.round,
                        request.position.is_acceptance_pending ? ", acceptance awaited" : "");
    for (const SlotView& slot : request.slots) {
      text += fmt::format("    {}: {}{}\n", slot.group_tag,
                          slot.slot.has_value() ? fmt::format("slot {}", slot.slot->value())
                          : slot.is_saved       ? "saved on the host"
                                                : "no slot",
                          slot.accepted_override.has_value()
                              ? fmt::format(", {} accepted since", *slot.accepted_override)
                              : "");
    }
  }
  const HybridCounters& counters = seen.counters;
  text += fmt::format(
      "  {} suspends, {} resumes ({} in the old slot, {} in another), {} saves, {} restores, {} "
      "relocations, {} resets, {} bytes saved\n",
      counters.suspends, counters.resumes, counters.resumes_in_old_slot,
      counters.resumes_in_new_slot, counters.saves, counters.restores, counters.relocations,
      counters.resets, counters.bytes_saved);
  return text;
}

// P is what the host knows of it, within bounds, and no slot has two owners.
void HybridCacheManager::audit_tag(std::size_t tag) const {
  const ReplayState& state = *tags_[tag];
  std::map<SlotId, RequestId> owners;
  std::int64_t num_saved = 0;
  const auto claim = [&](const HybridRequest& request) {
    const std::span<const SlotId> slots = request.sequence.slots(state.layer_group());
    if (slots.empty() || slots[0] == cache::kNoSlot) return;
    const auto [owner, is_new] = owners.emplace(slots[0], request.id);
    SLACKWATER_CHECK(is_new, "I4: slot {} is of requests {} and {}", slots[0].value(),
                     owner->second.value(), request.id.value());
  };
  for (const auto& dummy : dummies_) claim(*dummy);
  for (const auto& [id, request] : requests_) {
    claim(*request);
    const StateCursor& cursor = request->cursors[tag];
    num_saved += cursor.saved.has_value() ? 1 : 0;
    SLACKWATER_CHECK(!cursor.saved.has_value() || !cursor.slot.has_value(),
                     "I5: request {} is saved and in slot {}", id.value(), cursor.slot->value());
    if (!cursor.slot.has_value()) continue;
    SLACKWATER_CHECK(request->sequence.status() == SequenceStatus::kActive,
                     "I2: request {} is {} and has slot {}", id.value(),
                     to_string(request->sequence.status()), cursor.slot->value());
    SLACKWATER_CHECK(cursor.slot->value() < state.num_slots(), "I3: slot {} of {}",
                     cursor.slot->value(), state.num_slots());
    // What did not arrive is anything, until the request comes back as context.
    if (!state.has_replay() || request->is_lost ||
        request->ready.status() == device::EventStatus::kFailed) {
      continue;
    }
    const std::int32_t pending = *state.pending(*cursor.slot);
    SLACKWATER_CHECK(0 <= pending && pending <= state.max_records(),
                     "I1: {} pending in slot {} of request {}, {} records", pending,
                     cursor.slot->value(), id.value(), state.max_records());
    const bool is_known = request->open_rounds.empty();
    SLACKWATER_CHECK(!is_known || pending == cursor.num_pending,
                     "I2: {} pending in slot {}, request {} has {}", pending, cursor.slot->value(),
                     id.value(), cursor.num_pending);
  }
  SLACKWATER_CHECK(num_saved == state.registry().num_saved() || state.registry().entries().empty(),
                   "I5: {} requests are saved, {} slots", num_saved, state.registry().num_saved());
  state.registry().check_invariants();
}

void HybridCacheManager::audit() {
  synchronize();
  for (std::size_t tag = 0; tag < tags_.size(); ++tag) audit_tag(tag);
  kv_cache_->audit();
}

}  // namespace slackwater::hybrid
