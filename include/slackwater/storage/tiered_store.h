#ifndef SLACKWATER_STORAGE_TIERED_STORE_H_
#define SLACKWATER_STORAGE_TIERED_STORE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/base/certificate.h"
#include "slackwater/base/check.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/page_table.h"
#include "slackwater/device/device.h"
#include "slackwater/storage/copy_engine.h"
#include "slackwater/storage/disk_tier.h"
#include "slackwater/storage/pool_group.h"
#include "slackwater/storage/tiered_store_options.h"

namespace slackwater::storage {

class Staging;
struct StagingMemory;

// Kinds of memory a page can lie in, warmest first.
enum class Tier : std::uint8_t { kDevice, kHost, kDisk };
inline constexpr std::size_t kNumTiers = 3;

// "device", "host", "disk".
std::string_view to_string(Tier tier);

// A page for as long as it lives. A stale one is recognised.
struct PageId {
  std::uint32_t index = 0;
  std::uint32_t life = 0;  // 0 is nobody's
  friend bool operator==(const PageId&, const PageId&) = default;
};

// What is known of a page.
struct PageInfo {
  LayerGroupId layer_group;
  Tier tier = Tier::kDevice;
  SlotId slot;  // of its pool group on the device and the host, of the disk tier there
  Digest128 certificate;
  std::int64_t position = 0;
  std::uint32_t generation = 0;
  device::Event ready;  // done when its bytes are there; failed when they are lost
};

// Slots of one tier and pool group.
struct PoolStats {
  std::int32_t num_slots = 0;
  std::int32_t num_free = 0;
  std::int32_t num_reserved = 0;  // of the free ones
  std::int64_t slot_bytes = 0;    // over all pools
};

struct TieredStoreStats {
  std::array<std::int64_t, kNumTiers> pages = {};
  std::int64_t pages_moved = 0;
  std::array<std::array<std::int64_t, kNumTiers>, kNumTiers> pages_by_way = {};  // [from][to]
  std::int64_t bytes_moved = 0;
  std::int64_t certificate_mismatches = 0;
  DiskTierStats disk;
};

// Pages in pools over device, host and disk, and their way between them.
//
// A page is one layer group's share of one block, or of one request's state. It lies in one slot
// of one tier; on the device in the slots of its group's pools, elsewhere as one blob. The store
// knows whose page it is by certificate, and never what is in it. Who leaves, and for whom, is
// decided above.
//
// Everything that moves is queued: a migration returns at once, the page's `ready` tells when and
// whether its bytes are there, and slots carry the events that the next owner has to wait for.
// When a copy, a read or a write fails, `ready` fails and the page is lost: whoever wants it
// computes it again. Work that would have copied a lost page fails with it.
//
// Source: the storage manager of TensorRT-LLM's KV cache manager V2; certificates are ours.
// Invariants (audit):
//   I1  a page has one slot and a slot one page; occupied slots are pages, or on disk frames
//       that were found or retired.
//   I2  reserved slots are free.
//   I3  those of the pool groups and of the disk tier.
//   I4  committed bytes of device and host never exceed their quotas, raised to whole grains and
//       to what the floors cost. The disk's files are whole segments: up to one a group more.
// Ownership: owns pools, files, streams and staging; the device outlives it. The destructor waits
// for all that is queued.
// Threads: one thread. Queued work runs on the device's streams.
// Errors: kResourceExhausted where slots or memory are wanting: nothing has changed then.
// kNotFound for a stale page. kDataLoss for a lost one.
// Cost: 64 bytes a slot, 16 of them the certificate. allocate and release about 100 ns each.
class TieredStore {
 public:
  static Result<std::unique_ptr<TieredStore>> create(device::Device& device,
                                                     TieredStoreOptions options);
  ~TieredStore();

  // Pages on the device, one per element of `pages`: all of them or none. Bytes are left over from
  // whoever had the slots; `ready` is the event of that.
  Result<void> allocate(LayerGroupId group, std::span<PageId> pages);
  Result<PageId> allocate(LayerGroupId group);
  // Their slots are free once the uses noted are done. CHECK: the pages live.
  void release(std::span<const PageId> pages);
  void release(PageId page) { release(std::span(&page, 1)); }

  bool is_alive(PageId page) const {
    return page.index < pages_.size() && pages_[page.index].is_alive &&
           (pages_[page.index].life == page.life || SLACKWATER_MUTANT(stale_page_is_alive));
  }
  PageInfo info(PageId page) const;  // CHECK: the page lives
  // Parts of it, for whoever looks at many pages. CHECK: the page lives.
  Tier tier(PageId page) const { return live(page).tier; }
  SlotId slot(PageId page) const { return live(page).slot; }
  const device::Event& ready(PageId page) const { return live(page).ready; }
  const Digest128& certificate(PageId page) const { return live(page).certificate; }
  // Hints that what is known of a page, or of its slot, will be wanted soon. Any page.
  void prefetch(PageId page) const { __builtin_prefetch(pages_.data() + page.index); }
  void prefetch_slot(PageId page) const;

  // Work that writes the page, or reads it, until `event` is done. What is written is certified
  // anew: the certificate of before is gone.
  void note_write(PageId page, const device::Event& event);
  void note_read(PageId page, const device::Event& event);

  // Says whose page this is from now on. CHECK: it is not on disk.
  void certify(PageId page, const Certificate& certificate);
  // kDataLoss unless that is what the page was certified as, and kUnavailable where its bytes are
  // lost; counted.
  Result<void> verify(PageId page, const Certificate& certificate);

  // From now on the page has no transient bytes (BufferSpec::is_transient): nobody reads them, so
  // nothing copies them, on whatever way; where its layer group has none, nothing. In builds with
  // DCHECKs they are poisoned on the device, once it is written and `last_use` is done: that of
  // whoever may still read them. Such a page stays like that.
  void drop_transient(PageId page, const device::Event& last_use);
  bool has_transient(PageId page) const;

  // Moves pages, which keep their ids; those that are there already stay. All or none. Only
  // certified pages go to disk (kFailedPrecondition): a frame is known by its owner.
  Result<void> migrate(std::span<const PageId> pages, Tier to);
  // The same, into slots reserved before.
  class HostReservation;
  Result<void> migrate(std::span<const PageId> pages, HostReservation& reservation);

  // Queues a copy of a page's bytes to another page of its layer group, on the device, whose
  // certificate is gone. Transient bytes only where both have some: else those of the other page
  // are undefined. kFailedPrecondition from the disk, kDataLoss where the bytes are lost.
  Result<void> copy(PageId from, PageId to);

  // Keeps `num_pages` slots on the host free for whoever holds the reservation.
  Result<HostReservation> reserve_host(LayerGroupId group, std::int32_t num_pages);

  // The page of an earlier process on this directory, if it is there and its header matches; that
  // of a prefix has no transient bytes.
  std::optional<PageId> adopt(const Certificate& certificate);

  // Changes a tier's quota: pools that lose shrink first, then the others grow; occupied slots move
  // out of the way, and are waited for. kResourceExhausted where more are occupied or reserved than
  // would be left; nothing has changed then. Where memory is refused, the tier has what it got.
  Result<void> set_quota(Tier tier, std::int64_t bytes);
  // The slots of each pool group that it would give, whatever is occupied.
  Result<std::vector<std::int64_t>> plan_quota(Tier tier, std::int64_t bytes) const;
  // The same for its shares, as of the device, of the present quota.
  Result<void> set_ratios(Tier tier, std::span<const double> ratios);
  Result<std::vector<std::int64_t>> plan_ratios(Tier tier, std::span<const double> ratios) const;
  std::int64_t quota(Tier tier) const { return tiers_[static_cast<std::size_t>(tier)].quota; }

  // Kernels' view of one buffer of a layer group's pages on the device.
  PageTable view(LayerGroupId group, std::size_t buffer, std::int32_t tokens_per_block) const;
  // The bytes of a page in one pool, on the device or the host.
  std::span<std::byte> bytes(PageId page, std::size_t pool = 0) const;

  PoolStats pool_stats(Tier tier, LayerGroupId group) const;
  // The most slots that the pool group could ever have on the device, whatever quota and shares.
  std::int64_t max_device_slots(LayerGroupId group) const;
  std::size_t num_pool_groups(Tier tier) const;
  std::size_t pool_group(Tier tier, LayerGroupId group) const;  // who competes shares one
  // Free slots of a pool group that are not reserved.
  std::int32_t num_usable(Tier tier, std::size_t pool_group) const;
  bool has_tier(Tier tier) const { return quota(tier) > 0; }
  TieredStoreStats stats() const;
  std::int64_t cold_page_bytes(LayerGroupId group) const;

  std::string describe() const;  // lines for people: tiers, pools, what has moved
  void synchronize();            // blocks until all that is queued has ended
  void audit() const;  // aborts with the invariant's number where one does not hold; O(slots)

 private:
  struct Page {
    Digest128 certificate;
    std::int64_t position = 0;
    device::Event ready;
    SlotId slot;  // of a free record, the next free one
    std::uint32_t generation = 0;
    std::uint32_t life = 1;
    std::uint16_t layer_group = 0;
    Tier tier = Tier::kDevice;
    bool is_alive : 1 = false;
    bool is_durable_only : 1 = false;  // its transient bytes are nobody's
  };
  static_assert(sizeof(Page) == 48);

  struct LayerGroup {
    LayerGroupSpec spec;
    std::int64_t cold_bytes = 0;
    std::size_t hot = 0;   // pool group on the device
    std::size_t cold = 0;  // pool group off the device
  };
  struct TierState {
    std::int64_t quota = 0;
    std::int64_t max_bytes = 0;
    std::int64_t grain = 0;
    std::vector<double> ratios;                     // [layer groups], as of the device
    std::vector<std::unique_ptr<PoolGroup>> pools;  // [pool groups]; empty for the disk
  };
  struct Batch;  // pages that move the same way and share one fate
  struct DiskJob;

  explicit TieredStore(device::Device& device);
  Result<void> configure(TieredStoreOptions& options);
  Result<void> group_layers(TieredStoreOptions& options);
  Result<void> make_pools(Tier tier);
  Result<void> make_disk(TieredStoreOptions& options);
  Result<std::vector<std::int64_t>> solve(Tier tier, std::int64_t quota,
                                          std::span<const double> ratios) const;
  std::vector<GroupDemand> demands(Tier tier, std::span<const double> ratios) const;
  std::int64_t raised_quota(Tier tier, std::int64_t asked, std::span<const double> ratios) const;
  Result<void> resize(Tier tier, std::int64_t quota, std::span<const double> ratios);
  Result<void> resize_group(Tier tier, std::size_t group, std::int32_t num_slots,
                            device::Handover* handover);
  std::int32_t min_slots_left(Tier tier, std::size_t group) const;

  const LayerGroup& layers_of(LayerGroupId group) const;
  std::size_t pool_group_of(Tier tier, const Page& page) const;
  std::int32_t num_slots(Tier tier, std::size_t group) const;
  std::int32_t num_free(Tier tier, std::size_t group) const;
  SlotGrant take_slot(Tier tier, std::size_t group);
  void give_slot(Tier tier, std::size_t group, SlotId slot, const device::Event& last_use);
  void note_slot_use(const Page& page, const device::Event& event);
  std::uint32_t new_record(LayerGroupId group);
  void place(std::uint32_t index, Tier tier, SlotId slot);
  Page& live(PageId page) { return const_cast<Page&>(std::as_const(*this).live(page)); }
  const Page& live(PageId page) const {
    SLACKWATER_CHECK(is_alive(page), "page {} of life {} is stale", page.index, page.life);
    return pages_[page.index];
  }

  Result<std::vector<std::uint32_t>> plan_migration(std::span<const PageId> pages, Tier to,
                                                    const HostReservation* reservation);
  void apply_migration(std::vector<std::uint32_t> pages, Tier to);
  std::vector<Batch> make_batches(std::vector<std::uint32_t> pages) const;
  void move_batch(const Batch& batch, Tier to);
  void move_in_memory(const Batch& batch, std::span<const SlotGrant> grants, Tier to);
  void move_to_disk(const Batch& batch, std::span<const SlotGrant> grants);
  void move_from_disk(const Batch& batch, std::span<const SlotGrant> grants, Tier to);
  CopyEngine::Queue copy_of(std::size_t layer_group, Tier from, Tier to) const;
  const SlotSizes* durable_of(const Page& page) const;
  std::shared_ptr<DiskJob> make_disk_job(const Batch& batch, std::size_t first, std::size_t count,
                                         std::shared_ptr<StagingMemory> staging) const;
  std::size_t frames_per_part(std::size_t cold_group) const;
  void move_slots(Tier tier, std::size_t group, std::span<SlotMove> moves);
  void move_frame(std::size_t group, SlotId from, const SlotGrant& to);
  void finish_move(std::uint32_t index, const device::Event& last_use, Tier to, SlotId to_slot,
                   const device::Event& ready);
  void audit_pages() const;
  void audit_slots(Tier tier, std::size_t group) const;

  device::Device& device_;
  std::vector<LayerGroup> layer_groups_;
  std::shared_ptr<ColdPageCodec> codec_;
  std::vector<std::int64_t> cold_bytes_;  // [pool groups off the device]
  std::vector<SlotSizes> hot_sizes_;      // [pool groups on the device]
  std::array<TierState, kNumTiers> tiers_;
  std::unique_ptr<DiskTier> disk_;
  std::vector<std::int32_t> reserved_;  // [pool groups off the device], slots on the host

  std::vector<Page> pages_;
  static constexpr std::uint32_t kNoPage = 0xFFFFFFFF;
  std::uint32_t first_free_ = kNoPage;
  std::array<std::int64_t, kNumTiers> num_pages_ = {};
  std::array<std::array<std::int64_t, kNumTiers>, kNumTiers> pages_moved_ = {};  // [from][to]
  std::int64_t bytes_moved_ = 0;
  std::int64_t certificate_mismatches_ = 0;

  // Last, so that queued work ends while all it touches is there.
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<CopyEngine> copies_;
  std::unique_ptr<CopyEngine> staging_copies_;  // apart, so that a slow disk delays nobody else
  std::unique_ptr<device::Stream> disk_stream_;
  std::unique_ptr<device::Stream> transient_stream_;  // null where no layer group has such bytes
};

// Slots on the host that nobody else can take, until they are used or the reservation ends.
//
// Invariants:
//   I1  num_pages() slots of the group are free on the host.
// Ownership: a claim on the store, which outlives it; move-only.
// Threads: as the store.
// Errors: none.
class TieredStore::HostReservation {
 public:
  HostReservation() = default;
  HostReservation(HostReservation&& other) noexcept;
  HostReservation& operator=(HostReservation&& other) noexcept;
  ~HostReservation() { cancel(); }

  std::int32_t num_pages() const { return num_pages_; }
  LayerGroupId layer_group() const { return layer_group_; }
  void cancel();

 private:
  friend class TieredStore;

  TieredStore* store_ = nullptr;
  LayerGroupId layer_group_;
  std::size_t cold_group_ = 0;
  std::int32_t num_pages_ = 0;
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_TIERED_STORE_H_
