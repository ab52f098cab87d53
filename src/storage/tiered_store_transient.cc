// Bytes of a page that only the request that wrote them reads.

#include <array>
#include <cstring>
#include <vector>

#include "slackwater/base/mutant.h"
#include "slackwater/storage/tiered_store.h"
#include "storage/transient_bytes.h"

namespace slackwater::storage {

using device::Event;

namespace {

// Past the durable bytes of a slot in every pool.
std::vector<std::span<std::byte>> transient_bytes(const PoolGroup& pools, const SlotSizes& durable,
                                                  SlotId slot) {
  std::vector<std::span<std::byte>> bytes;
  for (std::size_t pool = 0; pool < durable.size(); ++pool) {
    const std::int64_t count = pools.slot_bytes()[pool] - durable[pool];
    if (count == 0) continue;
    bytes.emplace_back(pools.address(pool, slot) + durable[pool], static_cast<std::size_t>(count));
  }
  return bytes;
}

void poison([[maybe_unused]] std::span<const std::span<std::byte>> bytes) {
#if defined(SLACKWATER_DCHECKS)
  for (const std::span<std::byte> some : bytes) std::memset(some.data(), 0xDD, some.size());
#endif
}

}  // namespace

void poison_transient([[maybe_unused]] device::Stream& stream,
                      [[maybe_unused]] const PoolGroup& pools,
                      [[maybe_unused]] std::span<const ColdPair> pages) {
#if defined(SLACKWATER_DCHECKS)
  for (const ColdPair& page : pages) {
    if (page.durable == nullptr) continue;
    stream.run([bytes = transient_bytes(pools, *page.durable, page.slot)] {
      poison(bytes);
      return true;
    });
  }
#endif
}

bool TieredStore::has_transient(PageId id) const {
  const Page& page = live(id);
  return !page.is_durable_only &&
         storage::has_transient(layer_groups_[page.layer_group].spec.layout);
}

// As ColdPair::durable.
const SlotSizes* TieredStore::durable_of(const Page& page) const {
  return page.is_durable_only ? &layer_groups_[page.layer_group].spec.layout.durable_bytes
                              : nullptr;
}

void TieredStore::drop_transient(PageId id, const Event& last_use) {
  if (!has_transient(id) || SLACKWATER_MUTANT(snapshot_keeps_transient)) return;
  Page& page = live(id);
  page.is_durable_only = true;
  if (page.tier != Tier::kDevice) return;
  // In every build, so that a log of one can be done again by another: what differs is only what
  // the item does. On a stream of its own, because others shall not wait for a step.
  const LayerGroup& layers = layer_groups_[page.layer_group];
  const PoolGroup& pools = *tiers_[static_cast<std::size_t>(Tier::kDevice)].pools[layers.hot];
  transient_stream_->wait(page.ready);
  transient_stream_->wait(last_use);
  transient_stream_->run([bytes = transient_bytes(pools, *durable_of(page), page.slot)] {
    poison(bytes);
    return true;
  });
  const Event dropped = transient_stream_->record();
  note_slot_use(page, dropped);
  const std::array<Event, 2> both = {page.ready, dropped};
  page.ready = device::merge(both);
}

}  // namespace slackwater::storage
