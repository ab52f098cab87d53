#ifndef SLACKWATER_STORAGE_TIERED_STORE_TEST_SUPPORT_H_
#define SLACKWATER_STORAGE_TIERED_STORE_TEST_SUPPORT_H_

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/device/sim_device.h"
#include "slackwater/storage/tiered_store.h"
#include "testing/fault_disk_io.h"
#include "testing/page_oracle.h"
#include "testing/temporary_directory.h"

namespace slackwater::storage {

// The layer groups of a TestStore: the first two share their slots, the third has two pools.
inline constexpr LayerGroupId kAttention{0};
inline constexpr LayerGroupId kWindow{1};
inline constexpr LayerGroupId kState{2};

struct TestStoreOptions {
  std::uint64_t seed = 0;
  bool lazy = false;  // work runs only when it is waited for
  std::int64_t host_bytes = 64 << 10;
  std::int64_t disk_bytes = 96 << 10;
  int copy_threads = 1;
  std::shared_ptr<ColdPageCodec> codec = nullptr;  // concatenation
};

// A small store over a device and a disk that fail on request, and pages whose bytes the oracle
// knows.
class TestStore {
 public:
  TestStore(const std::filesystem::path& directory, const TestStoreOptions& options) {
    device::SimOptions sim;
    sim.seed = options.lazy ? lazy_seed() : options.seed;
    sim.copy_fault = [this](std::int64_t index) {
      return index == failing_copy_ ? device::CopyFault::kTear : device::CopyFault::kNone;
    };
    sim.refuse_commit = [this](std::int64_t index) { return index == failing_commit_; };
    sim_ = std::make_unique<device::SimDevice>(sim);
    open(*sim_, directory, options);
  }
  TestStore(const std::filesystem::path& directory, const TestStoreOptions& options,
            device::Device& device) {
    open(device, directory, options);
  }

  // What the compute stream still writes goes to memory of the store.
  ~TestStore() { compute_->synchronize(); }

  // Pages of a group, written by the compute stream, each with a key and a certificate of its own.
  std::vector<PageId> written_pages(LayerGroupId group, std::int32_t count) {
    std::vector<PageId> pages(static_cast<std::size_t>(count));
    const auto allocated = store->allocate(group, pages);
    EXPECT_TRUE(allocated.has_value()) << allocated.error().text();
    for (const PageId page : pages) {
      const std::uint64_t key = ++last_key_;
      compute_->wait(store->info(page).ready);
      for_each_pool(page, [&](std::span<std::byte> bytes, std::uint64_t word) {
        compute_->run([bytes, key, word] { return oracle_fill(bytes, key, word), true; });
      });
      store->note_write(page, compute_->record());
      const Certificate certificate{PrefixOwner{{key, 0}}, static_cast<std::int64_t>(key), group,
                                    0};
      store->certify(page, certificate);
      know(page, certificate);
    }
    return pages;
  }

  // What a page is expected to hold, where that is known from elsewhere.
  void know(PageId page, const Certificate& certificate) { known_[page.index] = certificate; }
  const Certificate& certificate_of(PageId page) const { return known_.at(page.index); }

  // On the device or the host, with nothing queued.
  bool holds_its_bytes(PageId page) {
    if (store->info(page).ready.wait() != device::EventStatus::kSucceeded) return false;
    const std::uint64_t key = std::get<PrefixOwner>(certificate_of(page).owner).prefix.low;
    bool matches = true;
    for_each_pool(page, [&](std::span<std::byte> bytes, std::uint64_t word) {
      matches &= oracle_matches(bytes, key, word);
    });
    return matches;
  }

  // Whether a page is not lost; then its bytes are right, wherever it is.
  bool survives(PageId page) {
    if (store->info(page).ready.wait() != device::EventStatus::kSucceeded) return false;
    if (store->info(page).tier == Tier::kDisk) {
      const auto moved = store->migrate(std::span(&page, 1), Tier::kDevice);
      EXPECT_TRUE(moved.has_value()) << moved.error().text();
      store->synchronize();
      if (store->info(page).ready.status() != device::EventStatus::kSucceeded) return false;
    }
    EXPECT_TRUE(holds_its_bytes(page)) << "page " << page.index;
    return true;
  }

  void fail_copy(std::int64_t index) { failing_copy_ = index; }
  void fail_commit(std::int64_t index) { failing_commit_ = index; }
  // Requests that touch this offset of the disk's files misbehave: the frame of one page, however
  // requests are joined.
  void fail_disk_at(std::uint64_t offset, DiskFault fault) {
    failing_offset_ = offset;
    disk_fault_ = fault;
  }
  void fail_disk(std::int64_t index, DiskFault fault) {
    failing_disk_ = index;
    disk_fault_ = fault;
  }
  void set_late_delay(int num_transfers) { disk_->set_late_delay(num_transfers); }
  void fail_nothing() {
    failing_copy_ = failing_commit_ = failing_disk_ = -1;
    failing_offset_.reset();
  }
  std::int64_t num_copies() const { return sim_->num_copies(); }
  std::int64_t num_commits() const { return sim_->num_commits(); }
  std::int64_t num_disk_requests() const { return num_disk_requests_; }

 private:
  // A seed whose device runs nothing unasked.
  static std::uint64_t lazy_seed() {
    for (std::uint64_t seed = 0;; ++seed) {
      device::SimDevice device({.seed = seed});
      const auto stream = *device.make_stream("probe");
      bool ran = false;
      for (int i = 0; i < 16; ++i) {
        stream->run([&] { return ran = true; });
      }
      const bool is_lazy = !ran;
      device.run_all();
      if (is_lazy) return seed;
    }
  }

  void open(device::Device& device, const std::filesystem::path& directory,
            const TestStoreOptions& options) {
    TieredStoreOptions store_options;
    const auto add = [&](const char* name, double ratio, const std::vector<BufferSpec>& buffers) {
      LayerGroupSpec group;
      group.name = name;
      group.ratio = ratio;
      group.layout = *lay_out_slots(buffers, PoolPolicy::kOnePerSize);
      store_options.layer_groups.push_back(std::move(group));
    };
    add("attention", 1, {{"latent", 256, 2}});
    add("window", 1, {{"latent", 512, 1}});
    add("state", 12, {{"state", 512, 2}, {"window", 64, 2}});
    store_options.device_bytes = 64 << 10;
    store_options.max_device_bytes = 128 << 10;
    store_options.host_bytes = options.host_bytes;
    store_options.max_host_bytes = 128 << 10;
    store_options.disk_bytes = options.disk_bytes;
    store_options.device_grain_bytes = 4096;
    store_options.host_grain_bytes = 4096;
    store_options.disk_grain_bytes = 4096;
    store_options.staging_bytes = 32 << 10;
    store_options.copy_threads = options.copy_threads;
    store_options.codec = options.codec;
    store_options.disk.directory = directory / "pages";
    store_options.disk.segment_bytes = 20 << 10;
    store_options.disk.direct = false;
    store_options.disk.pause_after_timeout = {};
    store_options.disk.warn = [](std::string_view) {};
    auto disk = std::make_unique<FaultDiskIo>(
        make_blocking_disk_io(), [this](std::int64_t index, const IoRequest& request) {
          num_disk_requests_ = index + 1;
          const bool touches = failing_offset_.has_value() && request.offset <= *failing_offset_ &&
                               *failing_offset_ < request.offset + request.buffer.size();
          return touches || index == failing_disk_ ? disk_fault_ : DiskFault::kNone;
        });
    disk_ = disk.get();
    store_options.disk_io = std::move(disk);
    compute_ = *device.make_stream("compute");
    auto made = TieredStore::create(device, std::move(store_options));
    EXPECT_TRUE(made.has_value()) << made.error().text();
    store = *std::move(made);
  }

  template <class Visit>
  void for_each_pool(PageId page, Visit visit) const {
    const PageInfo info = store->info(page);
    const bool has_two = info.tier == Tier::kDevice && info.layer_group == kState;
    std::uint64_t word = 0;
    for (std::size_t pool = 0; pool < (has_two ? 2u : 1u); ++pool) {
      const std::span<std::byte> bytes = store->bytes(page, pool);
      visit(bytes, word);
      word += bytes.size() / 8;
    }
  }

  std::unique_ptr<device::SimDevice> sim_;
  std::int64_t failing_copy_ = -1;
  std::int64_t failing_commit_ = -1;
  std::int64_t failing_disk_ = -1;
  std::optional<std::uint64_t> failing_offset_;
  DiskFault disk_fault_ = DiskFault::kNone;
  std::int64_t num_disk_requests_ = 0;
  FaultDiskIo* disk_ = nullptr;  // the store's
  std::unique_ptr<device::Stream> compute_;
  std::map<std::uint32_t, Certificate> known_;  // by page index
  std::uint64_t last_key_ = 0;

 public:
  std::unique_ptr<TieredStore> store;  // last: its queued work uses all of the above
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_TIERED_STORE_TEST_SUPPORT_H_
