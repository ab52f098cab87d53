#include "slackwater/storage/tiered_store.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"
#include "storage/disk_page.h"
#include "storage/log.h"
#include "storage/staging.h"

namespace slackwater::storage {
namespace {

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr std::size_t index_of(LayerGroupId group) {
  return static_cast<std::size_t>(group.value());
}

// Parts of the staging memory: one is filled, one is on its way, and two wait for neither.
constexpr std::size_t kStagingParts = 4;

std::int64_t grain_of(Tier tier, std::int64_t asked, std::int64_t quota) {
  if (asked > 0) return asked;
  if (tier == Tier::kDevice) return device_grain_bytes(quota);
  return tier == Tier::kHost ? kHostGrainBytes : kDiskGrainBytes;
}

}  // namespace

std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::kDevice: return "device";
    case Tier::kHost: return "host";
    case Tier::kDisk: return "disk";
  }
  return "unknown";
}

Result<std::unique_ptr<TieredStore>> TieredStore::create(device::Device& device,
                                                         TieredStoreOptions options) {
  std::unique_ptr<TieredStore> store(new TieredStore(device));
  SLACKWATER_RETURN_IF_ERROR(store->configure(options));
  return store;
}

TieredStore::TieredStore(device::Device& device) : device_(device) {}

TieredStore::~TieredStore() {
  if (disk_stream_ != nullptr) synchronize();
}

Result<void> TieredStore::configure(TieredStoreOptions& options) {
  if (options.layer_groups.empty() || options.device_bytes <= 0 || options.host_bytes < 0 ||
      options.disk_bytes < 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{} layer groups over {} bytes of device, {} of host and {} of disk; at least "
        "one group and a device are needed",
        options.layer_groups.size(), options.device_bytes, options.host_bytes, options.disk_bytes);
  }
  SLACKWATER_RETURN_IF_ERROR(group_layers(options));
  const std::int64_t quotas[] = {options.device_bytes, options.host_bytes, options.disk_bytes};
  const std::int64_t maxima[] = {options.max_device_bytes, options.max_host_bytes, 0};
  const std::int64_t grains[] = {options.device_grain_bytes, options.host_grain_bytes,
                                 options.disk_grain_bytes};
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    TierState& state = tiers_[index_of(tier)];
    state.quota = quotas[index_of(tier)];
    state.max_bytes = std::max(maxima[index_of(tier)], state.quota);
    state.grain = grain_of(tier, grains[index_of(tier)], state.quota);
    for (const LayerGroup& group : layer_groups_) state.ratios.push_back(group.spec.ratio);
    if (state.quota == 0) continue;
    SLACKWATER_RETURN_IF_ERROR(tier == Tier::kDisk ? make_disk(options) : make_pools(tier));
    SLACKWATER_RETURN_IF_ERROR(resize(tier, state.quota, state.ratios));
  }
  SLACKWATER_ASSIGN_OR_RETURN(copies_, CopyEngine::create(device_, "copy", options.copy_threads));
  SLACKWATER_ASSIGN_OR_RETURN(staging_copies_, CopyEngine::create(device_, "staging", 1));
  SLACKWATER_ASSIGN_OR_RETURN(disk_stream_, device_.make_stream("disk"));
  if (std::any_of(layer_groups_.begin(), layer_groups_.end(), [](const LayerGroup& group) {
        return storage::has_transient(group.spec.layout);
      })) {
    SLACKWATER_ASSIGN_OR_RETURN(transient_stream_, device_.make_stream("transient"));
  }
  return {};
}

// Layer groups with equal slots share a pool group on the device, those with equal blobs one off
// it. Groups are numbered in the order in which they first appear.
Result<void> TieredStore::group_layers(TieredStoreOptions& options) {
  codec_ = options.codec != nullptr ? options.codec
                                    : std::shared_ptr<ColdPageCodec>(make_concatenating_codec());
  for (std::size_t l = 0; l < options.layer_groups.size(); ++l) {
    LayerGroup group;
    group.spec = options.layer_groups[l];
    const SlotSizes& sizes = group.spec.layout.pool_slot_bytes;
    if (sizes.empty()) {
      return make_error(ErrorCode::kInvalidArgument, "layer group '{}' has no slots",
                        group.spec.name);
    }
    SLACKWATER_ASSIGN_OR_RETURN(
        group.cold_bytes,
        codec_->cold_page_bytes(LayerGroupId(static_cast<std::int32_t>(l)), sizes));
    const auto place_in = [](auto& list, const auto& value) {
      const auto at = std::find(list.begin(), list.end(), value);
      const auto place = static_cast<std::size_t>(at - list.begin());
      if (at == list.end()) list.push_back(value);
      return place;
    };
    group.hot = place_in(hot_sizes_, sizes);
    group.cold = place_in(cold_bytes_, group.cold_bytes);
    layer_groups_.push_back(std::move(group));
  }
  reserved_.resize(cold_bytes_.size());
  return {};
}

Result<void> TieredStore::make_pools(Tier tier) {
  TierState& state = tiers_[index_of(tier)];
  for (std::size_t g = 0; g < num_pool_groups(tier); ++g) {
    PoolGroupOptions pool;
    pool.name = std::string(to_string(tier)) + " " + std::to_string(g);
    pool.kind =
        tier == Tier::kDevice ? device::MemoryKind::kDevice : device::MemoryKind::kPinnedHost;
    pool.slot_bytes = tier == Tier::kDevice ? hot_sizes_[g] : SlotSizes{cold_bytes_[g]};
    pool.grain_bytes = state.grain;
    const std::int64_t grains = ceil_div(state.max_bytes, state.grain) +
                                grains_for(pool.slot_bytes, min_slots_left(tier, g), state.grain);
    pool.max_slots = static_cast<std::int32_t>(std::min<std::int64_t>(
        slots_for(pool.slot_bytes, grains, state.grain), std::numeric_limits<std::int32_t>::max()));
    SLACKWATER_ASSIGN_OR_RETURN(auto made, PoolGroup::create(device_, pool));
    state.pools.push_back(std::move(made));
  }
  return {};
}

Result<void> TieredStore::make_disk(TieredStoreOptions& options) {
  std::unique_ptr<DiskIo> io =
      options.disk_io != nullptr ? std::move(options.disk_io) : make_best_disk_io();
  LayoutDigest layout;
  layout.add("layout", options.layout).add("codec", codec_->name());
  SLACKWATER_ASSIGN_OR_RETURN(
      disk_, DiskTier::open(options.disk, layout.digest(), cold_bytes_, std::move(io)));
  std::size_t part = options.staging_bytes / kStagingParts;
  for (std::size_t g = 0; g < cold_bytes_.size(); ++g) {
    part = std::max(part, static_cast<std::size_t>(disk_->frame_size(g)));
  }
  SLACKWATER_ASSIGN_OR_RETURN(staging_, Staging::create(device_, kStagingParts, part));
  log_info(fmt::format("disk tier in '{}': {}, by {}", options.disk.directory.string(),
                       options.disk.direct ? "direct where it can be" : "through the page cache",
                       disk_->io_name()));
  return {};
}

std::size_t TieredStore::num_pool_groups(Tier tier) const {
  return tier == Tier::kDevice ? hot_sizes_.size() : cold_bytes_.size();
}

std::size_t TieredStore::pool_group_of(Tier tier, const Page& page) const {
  const LayerGroup& group = layer_groups_[page.layer_group];
  return tier == Tier::kDevice ? group.hot : group.cold;
}

std::size_t TieredStore::pool_group(Tier tier, LayerGroupId group) const {
  const LayerGroup& layers = layers_of(group);
  return tier == Tier::kDevice ? layers.hot : layers.cold;
}

std::int32_t TieredStore::num_slots(Tier tier, std::size_t group) const {
  return tier == Tier::kDisk ? disk_->slots(group).capacity()
                             : tiers_[index_of(tier)].pools[group]->num_slots();
}

std::int32_t TieredStore::num_free(Tier tier, std::size_t group) const {
  return tier == Tier::kDisk ? disk_->num_free(group)
                             : tiers_[index_of(tier)].pools[group]->num_free();
}

std::int32_t TieredStore::num_usable(Tier tier, std::size_t group) const {
  if (!has_tier(tier)) return 0;
  return num_free(tier, group) - (tier == Tier::kHost ? reserved_[group] : 0);
}

// A slot that the plan has counted.
SlotGrant TieredStore::take_slot(Tier tier, std::size_t group) {
  if (tier == Tier::kDisk) {
    const auto grant = disk_->allocate(group);
    return grant.has_value() ? *grant : disk_->take_retired(group);
  }
  const auto grant = tiers_[index_of(tier)].pools[group]->allocate();
  SLACKWATER_CHECK(grant.has_value(), "no slot is left in pool group {} of the {}", group,
                   to_string(tier));
  return *grant;
}

void TieredStore::give_slot(Tier tier, std::size_t group, SlotId slot,
                            const device::Event& last_use) {
  if (tier == Tier::kDisk) {
    disk_->release(group, slot, last_use);
  } else {
    tiers_[index_of(tier)].pools[group]->release(slot, last_use);
  }
}

// Puts a page into a slot, in both directions.
void TieredStore::place(std::uint32_t index, Tier tier, SlotId slot) {
  Page& page = pages_[index];
  page.tier = tier;
  page.slot = slot;
  const auto tag = static_cast<std::int32_t>(index);
  if (tier == Tier::kDisk) {
    disk_->set_tag(pool_group_of(tier, page), slot, tag);
  } else {
    tiers_[index_of(tier)].pools[pool_group_of(tier, page)]->set_tag(slot, tag);
  }
  ++num_pages_[index_of(tier)];
}

// A record for a page that has no slot yet.
std::uint32_t TieredStore::new_record(LayerGroupId group) {
  std::uint32_t index = first_free_;
  if (index == kNoPage) {
    index = static_cast<std::uint32_t>(pages_.size());
    pages_.emplace_back();
  } else {
    first_free_ = static_cast<std::uint32_t>(pages_[index].slot.value());
  }
  Page& page = pages_[index];
  page.certificate = {};
  page.position = 0;
  page.generation = 0;
  page.layer_group = static_cast<std::uint16_t>(group.value());
  page.is_alive = true;
  page.is_durable_only = false;
  return index;
}

Result<void> TieredStore::allocate(LayerGroupId group, std::span<PageId> pages) {
  SLACKWATER_CHECK(0 <= group.value() && group.value() < std::ssize(layer_groups_),
                   "layer group {} of {}", group.value(), layer_groups_.size());
  const LayerGroup& layers = layer_groups_[index_of(group)];
  const std::int32_t free = num_usable(Tier::kDevice, layers.hot);
  if (std::ssize(pages) > free) {
    return make_error(ErrorCode::kResourceExhausted,
                      "need {} pages of layer group '{}', {} of {} device slots are free",
                      pages.size(), layers.spec.name, free, num_slots(Tier::kDevice, layers.hot));
  }
  PoolGroup& pools = *tiers_[index_of(Tier::kDevice)].pools[layers.hot];
  for (PageId& id : pages) {
    SlotGrant grant = *pools.allocate();
    const std::uint32_t index = new_record(group);
    Page& page = pages_[index];
    if (!grant.ready.is_null()) page.ready = device::settled(grant.ready);
    page.tier = Tier::kDevice;
    page.slot = grant.slot;
    pools.set_tag(grant.slot, static_cast<std::int32_t>(index));
    id = {index, page.life};
  }
  num_pages_[index_of(Tier::kDevice)] += std::ssize(pages);
  return {};
}

Result<PageId> TieredStore::allocate(LayerGroupId group) {
  PageId page;
  SLACKWATER_RETURN_IF_ERROR(allocate(group, std::span(&page, 1)));
  return page;
}

void TieredStore::prefetch_slot(PageId id) const {
  if (!is_alive(id)) return;
  const Page& page = pages_[id.index];
  if (page.tier == Tier::kDisk) return;
  tiers_[index_of(page.tier)].pools[pool_group_of(page.tier, page)]->slots().prefetch(page.slot);
}

void TieredStore::release(std::span<const PageId> pages) {
  for (const PageId id : pages) {
    Page& page = live(id);
    --num_pages_[index_of(page.tier)];
    give_slot(page.tier, pool_group_of(page.tier, page), page.slot, page.ready);
    if (!page.ready.is_null()) page.ready = {};
    page.is_alive = false;
    ++page.life;
    page.slot = SlotId(static_cast<std::int32_t>(first_free_));
    first_free_ = id.index;
  }
}

PageInfo TieredStore::info(PageId id) const {
  const Page& page = live(id);
  return {LayerGroupId(page.layer_group),
          page.tier,
          page.slot,
          page.certificate,
          page.position,
          page.generation,
          page.ready};
}

void TieredStore::note_slot_use(const Page& page, const device::Event& event) {
  SLACKWATER_CHECK(page.tier != Tier::kDisk, "use of a page on disk");
  tiers_[index_of(page.tier)].pools[pool_group_of(page.tier, page)]->note_use(page.slot, event);
}

void TieredStore::note_write(PageId id, const device::Event& event) {
  Page& page = live(id);
  note_slot_use(page, event);
  const std::array<device::Event, 2> both = {page.ready, event};
  page.ready = device::merge(both);
  page.certificate = {};
}

void TieredStore::note_read(PageId id, const device::Event& event) {
  note_slot_use(live(id), event);
}

void TieredStore::certify(PageId id, const Certificate& certificate) {
  Page& page = live(id);
  SLACKWATER_CHECK(page.tier != Tier::kDisk, "the frame of a page on disk names its owner");
  SLACKWATER_CHECK(certificate.layer_group == LayerGroupId(page.layer_group),
                   "a certificate of layer group {} for a page of {}",
                   certificate.layer_group.value(), page.layer_group);
  page.certificate = certificate.digest();
  page.position = certificate.position;
  page.generation = certificate.generation;
}

Result<void> TieredStore::verify(PageId id, const Certificate& certificate) {
  const Page& page = live(id);
  if (page.ready.status() == device::EventStatus::kFailed) {
    return make_error(ErrorCode::kUnavailable, "the bytes of {} are lost", certificate.describe());
  }
  const Result<void> checked = certificate.check(page.certificate);
  if (!checked.has_value()) ++certificate_mismatches_;
  return checked;
}

std::optional<PageId> TieredStore::adopt(const Certificate& certificate) {
  if (disk_ == nullptr) return std::nullopt;
  const LayerGroupId group = certificate.layer_group;
  SLACKWATER_CHECK(0 <= group.value() && group.value() < std::ssize(layer_groups_),
                   "layer group {} of {}", group.value(), layer_groups_.size());
  const Digest128 digest = certificate.digest();
  const auto slot = disk_->adopt(layer_groups_[index_of(group)].cold, digest);
  if (!slot.has_value()) return std::nullopt;
  const std::uint32_t index = new_record(group);
  place(index, Tier::kDisk, *slot);
  Page& page = pages_[index];
  page.certificate = digest;
  page.position = certificate.position;
  page.generation = certificate.generation;
  page.is_durable_only = std::holds_alternative<PrefixOwner>(certificate.owner) &&
                         storage::has_transient(layer_groups_[index_of(group)].spec.layout);
  return PageId{index, page.life};
}

const TieredStore::LayerGroup& TieredStore::layers_of(LayerGroupId group) const {
  SLACKWATER_CHECK(0 <= group.value() && group.value() < std::ssize(layer_groups_),
                   "layer group {} of {}", group.value(), layer_groups_.size());
  return layer_groups_[index_of(group)];
}

PageTable TieredStore::view(LayerGroupId group, std::size_t buffer,
                            std::int32_t tokens_per_block) const {
  const LayerGroup& layers = layers_of(group);
  return tiers_[index_of(Tier::kDevice)].pools[layers.hot]->view(layers.spec.layout.buffers[buffer],
                                                                 tokens_per_block);
}

std::span<std::byte> TieredStore::bytes(PageId id, std::size_t pool) const {
  const Page& page = live(id);
  SLACKWATER_CHECK(page.tier != Tier::kDisk, "the bytes of a page on disk");
  const PoolGroup& pools = *tiers_[index_of(page.tier)].pools[pool_group_of(page.tier, page)];
  return {pools.address(pool, page.slot), static_cast<std::size_t>(pools.slot_bytes()[pool])};
}

PoolStats TieredStore::pool_stats(Tier tier, LayerGroupId group) const {
  if (!has_tier(tier)) return {};
  const LayerGroup& layers = layers_of(group);
  const std::size_t g = tier == Tier::kDevice ? layers.hot : layers.cold;
  PoolStats stats;
  stats.num_slots = num_slots(tier, g);
  stats.num_free = num_free(tier, g);
  stats.num_reserved = tier == Tier::kHost ? reserved_[g] : 0;
  if (tier == Tier::kDisk) {
    stats.slot_bytes = disk_->frame_size(g);
  } else {
    for (const std::int64_t bytes : tiers_[index_of(tier)].pools[g]->slot_bytes()) {
      stats.slot_bytes += bytes;
    }
  }
  return stats;
}

TieredStoreStats TieredStore::stats() const {
  TieredStoreStats stats;
  stats.pages = num_pages_;
  stats.pages_by_way = pages_moved_;
  for (const auto& from : pages_moved_) {
    for (const std::int64_t moved : from) stats.pages_moved += moved;
  }
  stats.bytes_moved = bytes_moved_;
  stats.certificate_mismatches = certificate_mismatches_;
  if (disk_ != nullptr) stats.disk = disk_->stats();
  return stats;
}

std::int64_t TieredStore::cold_page_bytes(LayerGroupId group) const {
  return layers_of(group).cold_bytes;
}

void TieredStore::synchronize() {
  copies_->synchronize();
  staging_copies_->synchronize();
  disk_stream_->synchronize();
  if (transient_stream_ != nullptr) transient_stream_->synchronize();
}

Result<TieredStore::HostReservation> TieredStore::reserve_host(LayerGroupId group,
                                                               std::int32_t num_pages) {
  SLACKWATER_CHECK(num_pages >= 0, "a reservation of {} pages", num_pages);
  if (!has_tier(Tier::kHost)) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "there is no host tier to reserve {} pages in", num_pages);
  }
  const LayerGroup& layers = layers_of(group);
  const std::int32_t usable = num_usable(Tier::kHost, layers.cold);
  if (num_pages > usable) {
    return make_error(ErrorCode::kResourceExhausted,
                      "need {} host pages of layer group '{}', {} of {} are free and not reserved",
                      num_pages, layers.spec.name, usable, num_slots(Tier::kHost, layers.cold));
  }
  reserved_[layers.cold] += num_pages;
  HostReservation reservation;
  reservation.store_ = this;
  reservation.layer_group_ = group;
  reservation.cold_group_ = layers.cold;
  reservation.num_pages_ = num_pages;
  return reservation;
}

TieredStore::HostReservation::HostReservation(HostReservation&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      layer_group_(other.layer_group_),
      cold_group_(other.cold_group_),
      num_pages_(std::exchange(other.num_pages_, 0)) {}

TieredStore::HostReservation& TieredStore::HostReservation::operator=(
    HostReservation&& other) noexcept {
  cancel();
  store_ = std::exchange(other.store_, nullptr);
  layer_group_ = other.layer_group_;
  cold_group_ = other.cold_group_;
  num_pages_ = std::exchange(other.num_pages_, 0);
  return *this;
}

void TieredStore::HostReservation::cancel() {
  if (store_ != nullptr) store_->reserved_[cold_group_] -= num_pages_;
  store_ = nullptr;
  num_pages_ = 0;
}

void TieredStore::audit() const {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const TierState& state = tiers_[index_of(tier)];
    std::int64_t committed = 0;
    for (const auto& pool : state.pools) {
      pool->check_invariants();
      committed += pool->committed_bytes();
    }
    SLACKWATER_CHECK(committed <= state.quota, "I4: {} bytes on the {}, the quota is {}", committed,
                     to_string(tier), state.quota);
  }
  if (disk_ != nullptr) disk_->check_invariants();
  audit_pages();
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!has_tier(tier)) continue;
    for (std::size_t g = 0; g < num_pool_groups(tier); ++g) audit_slots(tier, g);
  }
}

void TieredStore::audit_pages() const {
  std::array<std::int64_t, kNumTiers> counted = {};
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const Page& page = pages_[i];
    if (!page.is_alive) continue;
    ++counted[index_of(page.tier)];
    const std::size_t g = pool_group_of(page.tier, page);
    const SlotAllocator& slots =
        page.tier == Tier::kDisk ? disk_->slots(g) : tiers_[index_of(page.tier)].pools[g]->slots();
    SLACKWATER_CHECK(slots.is_occupied(page.slot), "I1: page {} has slot {} of the {}, a free one",
                     i, page.slot.value(), to_string(page.tier));
    SLACKWATER_CHECK(slots.tag(page.slot) == static_cast<std::int32_t>(i),
                     "I1: page {} has slot {} of the {}, which is page {}'s", i, page.slot.value(),
                     to_string(page.tier), slots.tag(page.slot));
  }
  SLACKWATER_CHECK(counted == num_pages_, "I1: {}, {} and {} pages, {}, {} and {} counted",
                   counted[0], counted[1], counted[2], num_pages_[0], num_pages_[1], num_pages_[2]);
}

// Every occupied slot of a group is some page's, or the disk tier knows what it is.
void TieredStore::audit_slots(Tier tier, std::size_t group) const {
  std::int64_t num_pages = 0;
  for (const Page& page : pages_) {
    if (page.is_alive && page.tier == tier && pool_group_of(tier, page) == group) ++num_pages;
  }
  const SlotAllocator& slots =
      tier == Tier::kDisk ? disk_->slots(group) : tiers_[index_of(tier)].pools[group]->slots();
  const std::int32_t ownerless = tier == Tier::kDisk ? disk_->num_ownerless(group) : 0;
  SLACKWATER_CHECK(slots.num_occupied() == num_pages + ownerless,
                   "I1: {} slots of the {} are occupied, {} by pages and {} by nobody",
                   slots.num_occupied(), to_string(tier), num_pages, ownerless);
  if (tier != Tier::kHost) return;
  SLACKWATER_CHECK(0 <= reserved_[group] && reserved_[group] <= slots.num_free(),
                   "I2: {} host slots reserved, {} free", reserved_[group], slots.num_free());
}

}  // namespace slackwater::storage
