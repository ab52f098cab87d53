// Random operations on a three-tier store over a simulated device and a bad disk. Whatever is
// delayed, torn, refused or lost, no page is ever served with bytes that are not its own.
//
//   SLACKWATER_SEED=7 SLACKWATER_OPERATIONS=2000000 slackwater_storage_test
//       --gtest_filter='TieredStoreModel*'

#include <map>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/device/sim_device.h"
#include "slackwater/storage/tiered_store.h"
#include "testing/fault_disk_io.h"
#include "testing/operations.h"
#include "testing/page_oracle.h"
#include "testing/seed.h"
#include "testing/temporary_directory.h"

namespace slackwater::storage {
namespace {

using device::CopyFault;
using device::Event;
using device::EventStatus;
using device::SimDevice;

constexpr std::int32_t kNumGroups = 3;
constexpr std::int64_t kKiB = 1024;

// One seed's store, and what each of its pages must hold.
class TieredStoreModel {
 public:
  explicit TieredStoreModel(std::uint64_t seed, const std::filesystem::path& directory)
      : random_(seed), weights_(random_, {kAllocate, kMigrate}), directory_(directory) {
    copy_fault_permille_ = choose({0, 5, 50, 200});
    disk_fault_permille_ = choose({0, 5, 50, 200});
    commit_fault_permille_ = choose({0, 0, 200});
    has_host_ = below(8) != 0;
    has_disk_ = below(8) != 0;
    start();
  }

  ~TieredStoreModel() { stop(); }

  // `done_before` is only for the message of a failure.
  void run(std::int64_t num_operations, std::int64_t done_before) {
    for (std::int64_t i = 0; i < num_operations; ++i) {
      SCOPED_TRACE(testing::Message() << "after " << done_before + i << " operations");
      step();
      compare();
      if (testing::Test::HasFailure()) return;
    }
    SCOPED_TRACE(testing::Message() << "after " << done_before + num_operations << " operations");
    check_everything();
  }

 private:
  enum Operation {
    kAllocate,
    kWrite,
    kRead,
    kRelease,
    kMigrate,
    kReserve,
    kUseReservation,
    kSetQuota,
    kSetRatios,
    kVerify,
    kStale,
    kSynchronize,
    kRestart,
    kDropTransient,
    kCount
  };

  // What the model knows of a page.
  struct Model {
    PageId id;
    std::int32_t group = 0;
    std::uint64_t key = 0;  // 0: never written
    Certificate certificate;
    bool is_certified = false;
    bool is_durable_only = false;
  };

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  bool chance(int permille) { return static_cast<int>(random_() % 1000) < permille; }
  int choose(std::initializer_list<int> values) { return values.begin()[below(values.size())]; }
  Model& any_page() { return pages_[below(pages_.size())]; }

  void start() {
    device::SimOptions sim;
    sim.seed = random_();
    sim.copy_fault = [this](std::int64_t) {
      if (!faults_on_ || !chance(copy_fault_permille_)) return CopyFault::kNone;
      const CopyFault fault =
          std::vector{CopyFault::kDelay, CopyFault::kRefuse, CopyFault::kTear}[below(3)];
      if (fault != CopyFault::kDelay) ++num_faults_;
      return fault;
    };
    sim.refuse_commit = [this](std::int64_t) {
      return faults_on_ && chance(commit_fault_permille_);
    };
    device_ = std::make_unique<SimDevice>(sim);
    compute_ = *device_->make_stream("compute");
    auto made = TieredStore::create(*device_, options());
    ASSERT_TRUE(made.has_value()) << made.error().text();
    store_ = *std::move(made);
    faults_on_ = true;
  }

  void stop() {
    reservations_.clear();
    compute_.reset();
    store_.reset();
    device_.reset();
    pages_.clear();
    faults_on_ = false;
  }

  TieredStoreOptions options() {
    TieredStoreOptions options;
    layouts_.clear();
    const auto add = [&](const char* name, std::vector<BufferSpec> buffers, PoolPolicy policy) {
      LayerGroupSpec group;
      group.name = name;
      group.layout = *lay_out_slots(buffers, policy);
      group.ratio = 1 + static_cast<double>(options.layer_groups.size());
      layouts_.push_back(group.layout);
      options.layer_groups.push_back(group);
    };
    add("attention", {{"latent", 256, 2}}, PoolPolicy::kOnePool);
    add("window", {{"key", 128, 2}, {"value", 64, 4}}, PoolPolicy::kOnePool);
    add("recurrent", {{"record", 64, 1, true}, {"state", 320, 3}, {"window", 64, 2}},
        PoolPolicy::kOnePerSize);
    options.device_bytes = 48 * kKiB;
    options.host_bytes = has_host_ ? 64 * kKiB : 0;
    options.disk_bytes = has_disk_ ? 96 * kKiB : 0;
    options.max_device_bytes = 96 * kKiB;
    options.max_host_bytes = 128 * kKiB;
    options.device_grain_bytes = 4096;
    options.host_grain_bytes = 4096;
    options.disk_grain_bytes = 4096;
    options.staging_bytes = 4096;  // a frame or two a part
    options.copy_threads = 1 + static_cast<int>(below(2));
    options.disk.directory = directory_;
    options.disk.segment_bytes = 20 * kKiB;
    options.disk.direct = false;
    options.disk.pause_after_timeout = {};
    options.disk.warn = [](std::string_view) {};
    options.disk_io = std::make_unique<FaultDiskIo>(
        make_blocking_disk_io(), [this](std::int64_t, const IoRequest&) {
          if (!faults_on_ || !chance(disk_fault_permille_)) return DiskFault::kNone;
          ++num_faults_;
          return static_cast<DiskFault>(1 + below(kNumDiskFaults - 1));
        });
    return options;
  }

  void step() {
    switch (static_cast<Operation>(weights_.draw(random_))) {
      case kAllocate: return allocate();
      case kWrite: return write();
      case kRead: return read();
      case kRelease: return release();
      case kMigrate: return migrate();
      case kReserve: return reserve();
      case kUseReservation: return use_reservation();
      case kSetQuota: return set_quota();
      case kSetRatios: return set_ratios();
      case kVerify: return verify();
      case kStale: return look_at_stale_pages();
      case kSynchronize: return store_->synchronize();
      case kRestart: return restart();
      case kDropTransient: return drop_transient();
      case kCount: break;
    }
  }

  std::int64_t free_slots(Tier tier, std::int32_t group) const {
    const PoolStats stats = store_->pool_stats(tier, LayerGroupId(group));
    return stats.num_free - stats.num_reserved;
  }

  void allocate() {
    const auto group = static_cast<std::int32_t>(below(kNumGroups));
    std::vector<PageId> ids(1 + below(6));
    const bool has_room = std::ssize(ids) <= free_slots(Tier::kDevice, group);
    const auto allocated = store_->allocate(LayerGroupId(group), ids);
    ASSERT_EQ(allocated.has_value(), has_room);
    if (!has_room) return;
    for (const PageId id : ids) {
      pages_.push_back({id, group, 0, {}, false, false});
      if (below(4) != 0) write_page(pages_.back());
    }
  }

  // All pools of a page as the oracle sees them: words go on from one pool to the next. Of a page
  // without transient bytes all others.
  template <class Visit>
  void for_each_pool(const Model& page, Visit visit) const {
    visit_pools(page, [&](std::span<std::byte> bytes, std::size_t durable, std::uint64_t word) {
      const std::size_t size = page.is_durable_only ? durable : bytes.size();
      if (size > 0) visit(bytes.first(size), word);
    });
  }

  // The slots of a page, or what they are in its blob: (bytes, how many of them last, words
  // before).
  template <class Visit>
  void visit_pools(const Model& page, Visit visit) const {
    const SlotLayout& layout = layouts_[static_cast<std::size_t>(page.group)];
    const bool is_blob = store_->info(page.id).tier != Tier::kDevice;
    std::size_t offset = 0;
    for (std::size_t pool = 0; pool < layout.pool_slot_bytes.size(); ++pool) {
      const auto size = static_cast<std::size_t>(layout.pool_slot_bytes[pool]);
      const std::span<std::byte> bytes =
          is_blob ? store_->bytes(page.id).subspan(offset, size) : store_->bytes(page.id, pool);
      visit(bytes, static_cast<std::size_t>(layout.durable_bytes[pool]), offset / 8);
      offset += size;
    }
  }

  // Its transient bytes are nobody's from now on.
  void drop_transient() {
    if (pages_.empty()) return;
    Model& page = any_page();
    if (page.group != 2) return;
    store_->drop_transient(page.id, uses_[page.id.index]);
    page.is_durable_only = true;
    ASSERT_FALSE(store_->has_transient(page.id));
  }

  void write_page(Model& page) {
    if (store_->info(page.id).tier == Tier::kDisk) return;
    if (store_->info(page.id).ready.status() == EventStatus::kFailed) {
      replace_lost_page(page);
      return;
    }
    page.key = ++last_key_;
    // The new owner of a slot waits for whoever had it; a writer, for those who read before.
    compute_->wait(store_->info(page.id).ready);
    compute_->wait(uses_[page.id.index]);
    for_each_pool(page, [&](std::span<std::byte> bytes, std::uint64_t word) {
      compute_->run([bytes, word, key = page.key] { return oracle_fill(bytes, key, word), true; });
    });
    const Event written = compute_->record();
    store_->note_write(page.id, written);
    // Nothing but the prefix tells one certificate from another.
    page.certificate = {PrefixOwner{{page.key, 77}}, 64, LayerGroupId(page.group), 0};
    store_->certify(page.id, page.certificate);
    page.is_certified = true;
    keys_[page.certificate.digest()] = page.key;
  }

  // What a caller does with a lost page: gives it up.
  void replace_lost_page(Model& page) {
    store_->release(page.id);
    stale_.push_back(page.id);
    page = pages_.back();
    pages_.pop_back();
  }

  void write() {
    if (!pages_.empty()) write_page(any_page());
  }

  void read() {
    if (pages_.empty()) return;
    const Model& page = any_page();
    const PageInfo info = store_->info(page.id);
    if (info.tier == Tier::kDisk || page.key == 0) return;
    compute_->wait(info.ready);
    for_each_pool(page, [&](std::span<std::byte> bytes, std::uint64_t word) {
      compute_->run([this, bytes, word, key = page.key, ready = info.ready] {
        if (ready.status() == EventStatus::kFailed) return true;
        ++num_reads_;
        if (!oracle_matches(bytes, key, word)) ++num_mismatches_;
        return true;
      });
    });
    const Event read = compute_->record();
    store_->note_read(page.id, read);
    uses_[page.id.index] = read;
  }

  void release() {
    // Rather when there are many.
    if (pages_.empty() || below(60) > pages_.size()) return;
    replace_lost_page(any_page());
  }

  void migrate() {
    if (pages_.empty()) return;
    const Tier to = static_cast<Tier>(below(kNumTiers));
    std::vector<PageId> ids;
    std::map<std::int64_t, std::int64_t> needed;  // by free slots of the pool group
    bool has_lost = false;
    bool has_uncertified = false;
    std::array<std::int64_t, 3> need = {};
    // Often the same pages again, while they are still on their way.
    const std::size_t first = below(2) == 0 ? last_moved_ % pages_.size() : below(pages_.size());
    last_moved_ = first;
    for (std::size_t i = 1 + below(6); i > 0; --i) {
      const Model& page = i % 2 == 0 ? any_page() : pages_[(first + i) % pages_.size()];
      if (std::find(ids.begin(), ids.end(), page.id) != ids.end()) continue;
      if (!page.is_certified && to == Tier::kDisk && below(16) != 0) continue;
      ids.push_back(page.id);
      const PageInfo info = store_->info(page.id);
      has_lost |= info.ready.status() == EventStatus::kFailed;
      has_uncertified |= !page.is_certified && to == Tier::kDisk;
      if (info.tier != to) ++need[static_cast<std::size_t>(pool_of(page.group, to))];
    }
    const bool has_tier = store_->quota(to) > 0;
    bool has_room = has_tier;
    for (std::int32_t group = 0; has_tier && group < kNumGroups; ++group) {
      if (pool_of(group, to) == group) {
        has_room &= need[static_cast<std::size_t>(group)] <= free_slots(to, group);
      }
    }
    const auto moved = store_->migrate(ids, to);
    if (moved.has_value()) {
      ASSERT_TRUE(has_room && !has_lost && !has_uncertified);
      return;
    }
    // Growth of the staging memory may be refused as well, and an event may have failed since.
    const ErrorCode code = moved.error().code();
    if (has_uncertified && code == ErrorCode::kFailedPrecondition) return;
    ASSERT_TRUE(!has_tier   ? code == ErrorCode::kFailedPrecondition
                : !has_room ? code == ErrorCode::kResourceExhausted || code == ErrorCode::kDataLoss
                            : code == ErrorCode::kDataLoss ||
                                  (code == ErrorCode::kResourceExhausted && num_faults_ > 0))
        << moved.error().text();
  }

  // The first layer group that shares the pool group of `group` on a tier. Groups 0 and 1 have
  // slots of 512 bytes.
  static std::int32_t pool_of(std::int32_t group, Tier) { return group == 1 ? 0 : group; }

  void reserve() {
    if (!has_host_) return;
    if (reservations_.size() > 3 || (below(3) == 0 && !reservations_.empty())) {
      reservations_.erase(reservations_.begin() +
                          static_cast<std::ptrdiff_t>(below(reservations_.size())));
      return;
    }
    const auto group = static_cast<std::int32_t>(below(kNumGroups));
    const auto count = static_cast<std::int32_t>(below(8));
    const bool has_room = count <= free_slots(Tier::kHost, group);
    auto reserved = store_->reserve_host(LayerGroupId(group), count);
    ASSERT_EQ(reserved.has_value(), has_room);
    if (has_room) reservations_.push_back(*std::move(reserved));
  }

  // With room reserved, a page that is not lost can always be moved to the host.
  void use_reservation() {
    if (reservations_.empty() || pages_.empty()) return;
    TieredStore::HostReservation& reservation = reservations_[below(reservations_.size())];
    const Model& page = any_page();
    if (pool_of(page.group, Tier::kHost) !=
        pool_of(reservation.layer_group().value(), Tier::kHost)) {
      return;
    }
    const PageInfo before = store_->info(page.id);
    const std::int32_t reserved = reservation.num_pages();
    const auto moved = store_->migrate(std::span(&page.id, 1), reservation);
    if (before.tier == Tier::kHost) return;
    if (moved.has_value()) {
      ASSERT_EQ(reservation.num_pages(), reserved - 1);
    } else {
      ASSERT_TRUE(reserved == 0 || moved.error().code() == ErrorCode::kDataLoss ||
                  before.tier == Tier::kDisk)
          << moved.error().text();
    }
  }

  void set_quota() {
    const Tier tier = static_cast<Tier>(below(kNumTiers));
    const auto bytes = static_cast<std::int64_t>(8 + below(88)) * kKiB;
    const std::int64_t before = store_->quota(tier);
    const auto changed = store_->set_quota(tier, bytes);
    if (changed.has_value()) return;
    if (changed.error().code() == ErrorCode::kFailedPrecondition) {
      ASSERT_EQ(before, 0);
    } else {
      ASSERT_EQ(changed.error().code(), ErrorCode::kResourceExhausted) << changed.error().text();
    }
  }

  void set_ratios() {
    const Tier tier = static_cast<Tier>(below(kNumTiers));
    std::vector<double> ratios(kNumGroups);
    for (double& ratio : ratios) ratio = static_cast<double>(1 + below(9));
    const auto planned = store_->plan_ratios(tier, ratios);
    const auto changed = store_->set_ratios(tier, ratios);
    if (!changed.has_value()) {
      ASSERT_TRUE(changed.error().code() == ErrorCode::kResourceExhausted ||
                  !store_->has_tier(tier))
          << changed.error().text();
      return;
    }
    ASSERT_EQ(*store_->plan_quota(tier, store_->quota(tier)), *planned);
  }

  void verify() {
    if (pages_.empty()) return;
    const Model& page = any_page();
    if (!page.is_certified) return;
    Certificate other = page.certificate;
    other.generation ^= 1;
    const auto mine = store_->verify(page.id, page.certificate);
    ASSERT_TRUE(mine.has_value() || mine.error().code() == ErrorCode::kUnavailable);
    ASSERT_FALSE(store_->verify(page.id, other).has_value());
  }

  void look_at_stale_pages() {
    for (const PageId id : stale_) {
      ASSERT_FALSE(store_->is_alive(id));
      ASSERT_EQ(store_->migrate(std::span(&id, 1), Tier::kDevice).error().code(),
                ErrorCode::kNotFound);
    }
    stale_.clear();
  }

  // A new process on the directory: what it finds there is right, or is not found.
  void restart() {
    if (below(60) != 0) return;
    std::vector<Model> before = pages_;
    stop();
    stale_.clear();
    uses_.clear();
    start();
    for (Model& page : before) {
      if (!page.is_certified || below(2) == 0) continue;
      const auto found = store_->adopt(page.certificate);
      if (!found.has_value()) continue;
      ASSERT_EQ(store_->info(*found).tier, Tier::kDisk);
      page.id = *found;
      page.is_durable_only = page.group == 2;
      pages_.push_back(page);
    }
  }

  void compare() {
    store_->audit();
    ASSERT_EQ(num_mismatches_, 0);
    std::array<std::int64_t, kNumTiers> counts = {};
    for (const Model& page : pages_) {
      ASSERT_TRUE(store_->is_alive(page.id));
      const PageInfo info = store_->info(page.id);
      ++counts[static_cast<std::size_t>(info.tier)];
      ASSERT_EQ(info.layer_group, LayerGroupId(page.group));
      if (page.is_certified) {
        ASSERT_EQ(info.certificate, page.certificate.digest());
      }
    }
    ASSERT_EQ(store_->stats().pages, counts);
  }

  // At the end: every page that is not lost holds what was written last.
  void check_everything() {
    faults_on_ = false;
    store_->synchronize();
    compute_->synchronize();
    ASSERT_EQ(num_mismatches_, 0);
    for (const Model& page : pages_) {
      if (page.key == 0) continue;
      if (store_->info(page.id).tier == Tier::kDisk) {
        static_cast<void>(store_->migrate(std::span(&page.id, 1), Tier::kDevice));
        store_->synchronize();
      }
      const PageInfo info = store_->info(page.id);
      if (info.ready.status() == EventStatus::kFailed) {
        ASSERT_GT(num_faults_, 0) << "a page was lost without a fault";
        continue;
      }
      if (info.tier == Tier::kDisk) continue;
      for_each_pool(page, [&](std::span<std::byte> bytes, std::uint64_t word) {
        ASSERT_TRUE(oracle_matches(bytes, page.key, word)) << "page " << page.id.index;
      });
      if (page.is_durable_only && info.tier == Tier::kDevice) expect_poison(page);
    }
    store_->audit();
  }

  // What was somebody's records is gone from the device.
  void expect_poison([[maybe_unused]] const Model& page) const {
#if defined(SLACKWATER_DCHECKS)
    visit_pools(page, [&](std::span<std::byte> bytes, std::size_t durable, std::uint64_t) {
      ASSERT_TRUE(oracle_matches(bytes.subspan(durable), 0)) << "page " << page.id.index;
    });
#endif
  }

  std::vector<SlotLayout> layouts_;  // [layer groups]
  std::mt19937_64 random_;
  OperationWeights<kCount> weights_;
  const std::filesystem::path directory_;
  int copy_fault_permille_ = 0;
  int disk_fault_permille_ = 0;
  int commit_fault_permille_ = 0;
  bool has_host_ = true;
  bool has_disk_ = true;
  bool faults_on_ = false;
  std::int64_t num_faults_ = 0;

  std::unique_ptr<SimDevice> device_;
  std::unique_ptr<TieredStore> store_;
  std::unique_ptr<device::Stream> compute_;
  std::vector<Model> pages_;
  std::vector<PageId> stale_;
  std::vector<TieredStore::HostReservation> reservations_;
  std::map<std::uint32_t, Event> uses_;  // by page index: the last read queued
  std::map<Digest128, std::uint64_t> keys_;
  std::uint64_t last_key_ = 0;
  std::size_t last_moved_ = 0;
  std::int64_t num_reads_ = 0;
  std::int64_t num_mismatches_ = 0;
};

TEST(TieredStoreModel, ServesNoBytesThatAreNotThePagesOwn) {
  const std::uint64_t seed = test_seed();
  const std::int64_t num_operations = test_operations(100'000);
  const std::int64_t per_seed = 2000;
  for (std::int64_t done = 0, round = 0; done < num_operations; done += per_seed, ++round) {
    const std::uint64_t this_seed = seed + static_cast<std::uint64_t>(round);
    SCOPED_TRACE(testing::Message() << "seed " << this_seed);
    const TemporaryDirectory directory;
    TieredStoreModel(this_seed, directory.path()).run(per_seed, done);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace slackwater::storage
