// Bytes that only one request reads stay with it, and go with nobody else.

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/device/sim_device.h"
#include "slackwater/storage/tiered_store.h"
#include "testing/page_oracle.h"
#include "testing/temporary_directory.h"

namespace slackwater::storage {
namespace {

using device::Event;
using device::EventStatus;

constexpr LayerGroupId kPlain{0};
constexpr LayerGroupId kState{1};

#if defined(SLACKWATER_DCHECKS)
constexpr bool kPoisons = true;
#else
constexpr bool kPoisons = false;
#endif

// A store with a layer group that has records beside its states, and one of equal slots that has
// none, over a device that runs nothing unasked.
class TransientBytes : public testing::TestWithParam<PoolPolicy> {
 protected:
  void SetUp() override { open(); }
  void TearDown() override { compute_->synchronize(); }

  void open() {
    store_.reset();
    compute_.reset();
    device_ = std::make_unique<device::SimDevice>(device::SimOptions{.seed = 5});
    compute_ = *device_->make_stream("compute");
    layout_ = *lay_out_slots(
        std::vector<BufferSpec>{
            {"record", 192, 1, true}, {"state", 320, 3}, {"window", 64, 2}, {"count", 64, 1, true}},
        GetParam());
    SlotLayout plain = layout_;
    plain.durable_bytes = plain.pool_slot_bytes;
    TieredStoreOptions options;
    options.layer_groups = {{"plain", plain}, {"state", layout_}};
    options.layer_groups[0].ratio = options.layer_groups[1].ratio = 1;
    options.device_bytes = options.host_bytes = 64 << 10;
    options.max_device_bytes = 128 << 10;
    options.disk_bytes = 64 << 10;
    options.device_grain_bytes = options.host_grain_bytes = options.disk_grain_bytes = 4096;
    options.disk.directory = directory_.path() / "pages";
    options.disk.segment_bytes = 20 << 10;
    options.disk.direct = false;
    options.disk.warn = [](std::string_view) {};
    auto made = TieredStore::create(*device_, std::move(options));
    ASSERT_TRUE(made.has_value()) << made.error().text();
    store_ = *std::move(made);
  }

  static Certificate certificate_of(std::uint64_t key) {
    return {PrefixOwner{{key, 0}}, 64, kState, 0};
  }

  // Calls visit(bytes, whether they last, words before them) for the two parts of every slot, on
  // the device or in the blob.
  template <class Visit>
  void for_each_part(PageId page, Visit visit) const {
    const bool is_blob = store_->tier(page) != Tier::kDevice;
    std::size_t offset = 0;
    for (std::size_t pool = 0; pool < layout_.pool_slot_bytes.size(); ++pool) {
      const auto size = static_cast<std::size_t>(layout_.pool_slot_bytes[pool]);
      const auto durable = static_cast<std::size_t>(layout_.durable_bytes[pool]);
      const std::span<std::byte> bytes =
          is_blob ? store_->bytes(page).subspan(offset, size) : store_->bytes(page, pool);
      visit(bytes.first(durable), true, offset / 8);
      visit(bytes.subspan(durable), false, (offset + durable) / 8);
      offset += size;
    }
  }

  PageId written_page(std::uint64_t key, LayerGroupId group = kState) {
    const PageId page = *store_->allocate(group);
    compute_->wait(store_->ready(page));
    for_each_part(page, [&](std::span<std::byte> bytes, bool, std::uint64_t word) {
      compute_->run([=] { return oracle_fill(bytes, key, word), true; });
    });
    store_->note_write(page, compute_->record());
    Certificate certificate = certificate_of(key);
    certificate.layer_group = group;
    store_->certify(page, certificate);
    return page;
  }

  // Whether the bytes that last, or those that do not, are those of a key; 0 is poison.
  bool holds(PageId page, bool is_durable, std::uint64_t key) const {
    bool matches = true;
    for_each_part(page, [&](std::span<std::byte> bytes, bool lasts, std::uint64_t word) {
      if (lasts == is_durable) matches &= oracle_matches(bytes, key, word);
    });
    return matches;
  }
  void move(std::vector<PageId> pages, Tier to) {
    ASSERT_TRUE(store_->migrate(pages, to).has_value());
    for (const PageId page : pages) {
      ASSERT_EQ(store_->ready(page).wait(), EventStatus::kSucceeded);
    }
    store_->synchronize();
  }

  TemporaryDirectory directory_;
  SlotLayout layout_;
  std::unique_ptr<device::SimDevice> device_;
  std::unique_ptr<device::Stream> compute_;
  std::unique_ptr<TieredStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Policies, TransientBytes,
                         testing::Values(PoolPolicy::kOnePool, PoolPolicy::kOnePerSize));

constexpr Tier kWalk[] = {Tier::kHost, Tier::kDevice, Tier::kDisk, Tier::kHost,
                          Tier::kDisk, Tier::kDevice, Tier::kHost, Tier::kDevice};

TEST_P(TransientBytes, GoWithALivePageThroughAllTiers) {
  const PageId page = written_page(7);
  ASSERT_TRUE(store_->has_transient(page));
  for (const Tier tier : kWalk) move({page}, tier);
  EXPECT_TRUE(holds(page, true, 7));
  EXPECT_TRUE(holds(page, false, 7));
}

// On the way they are nobody's business, and on the device they are poison.
TEST_P(TransientBytes, StayBehindOnceTheyAreDropped) {
  const PageId page = written_page(7);
  const PageId beside = written_page(8);
  store_->drop_transient(page, {});
  EXPECT_FALSE(store_->has_transient(page));
  store_->synchronize();
  for (const Tier tier : kWalk) {
    EXPECT_TRUE(!kPoisons || store_->tier(page) != Tier::kDevice || holds(page, false, 0));
    move({page, beside}, tier);
    store_->audit();
  }
  EXPECT_TRUE(holds(page, true, 7));
  EXPECT_TRUE(!kPoisons || holds(page, false, 0));
  EXPECT_TRUE(holds(beside, true, 8)) << "a live page of the same batch keeps all it has";
  EXPECT_TRUE(holds(beside, false, 8));
}

// Whoever still reads them comes first, and whoever reads the page comes after.
TEST_P(TransientBytes, ArePoisonedOnceNobodyReadsThem) {
  if (!kPoisons) GTEST_SKIP() << "without DCHECKs nothing is poisoned";
  const PageId page = written_page(7);
  device::EventSource reader = device_->make_event("a reader");
  store_->drop_transient(page, reader.event());
  device_->run_all();
  EXPECT_TRUE(holds(page, false, 7)) << "while it is read";
  EXPECT_EQ(store_->ready(page).status(), EventStatus::kPending);
  reader.complete(EventStatus::kFailed);
  EXPECT_EQ(store_->ready(page).wait(), EventStatus::kSucceeded) << "a reader loses nothing";
  EXPECT_TRUE(holds(page, false, 0));
  EXPECT_TRUE(holds(page, true, 7));
}

// A slot that is given back at once is its next owner's when the poison is in.
TEST_P(TransientBytes, AreWaitedForByTheNextOwnerOfTheSlot) {
  const PageId page = written_page(7);
  const SlotId slot = store_->slot(page);
  device::EventSource reader = device_->make_event("a reader");
  store_->drop_transient(page, reader.event());
  store_->release(page);
  store_->audit();
  std::vector<PageId> pages;
  while (pages.empty() || store_->slot(pages.back()) != slot) {
    pages.push_back(*store_->allocate(kState));
  }
  EXPECT_EQ(store_->ready(pages.back()).status(), EventStatus::kPending);
  EXPECT_TRUE(store_->has_transient(pages.back())) << "a new page has all its bytes";
  reader.complete(EventStatus::kSucceeded);
  EXPECT_EQ(store_->ready(pages.back()).wait(), EventStatus::kSucceeded);
  store_->release(pages);
}

// A request that goes on from a snapshot finds nothing of whoever wrote it, from either tier.
TEST_P(TransientBytes, AreNotCopiedFromAPageWithoutThem) {
  for (const bool is_on_host : {false, true}) {
    const PageId snapshot = written_page(7);
    // On the host they are still in the blob.
    if (is_on_host) move({snapshot}, Tier::kHost);
    store_->drop_transient(snapshot, {});
    const PageId live = written_page(9);
    ASSERT_TRUE(store_->copy(snapshot, live).has_value());
    EXPECT_EQ(store_->ready(live).wait(), EventStatus::kSucceeded);
    EXPECT_TRUE(holds(live, true, 7));
    EXPECT_FALSE(holds(live, false, 7)) << "from the " << (is_on_host ? "host" : "device");
    EXPECT_TRUE(!kPoisons || holds(live, false, 0));
    EXPECT_TRUE(store_->has_transient(live)) << "undefined, and its own from now on";
  }
}

TEST_P(TransientBytes, AreCopiedWhereBothHaveThem) {
  const PageId from = written_page(7);
  const PageId to = *store_->allocate(kState);
  ASSERT_TRUE(store_->copy(from, to).has_value());
  store_->drop_transient(from, store_->ready(to));
  EXPECT_EQ(store_->ready(to).wait(), EventStatus::kSucceeded);
  store_->synchronize();
  EXPECT_TRUE(holds(to, true, 7));
  EXPECT_TRUE(holds(to, false, 7)) << "before they are dropped";
  EXPECT_TRUE(!kPoisons || holds(from, false, 0));
}

TEST_P(TransientBytes, ACopyToAPageWithoutThemHasNone) {
  const PageId from = written_page(7);
  const PageId to = written_page(9);
  store_->drop_transient(to, {});
  ASSERT_TRUE(store_->copy(from, to).has_value());
  EXPECT_EQ(store_->ready(to).wait(), EventStatus::kSucceeded);
  store_->synchronize();
  EXPECT_TRUE(holds(to, true, 7));
  EXPECT_FALSE(holds(to, false, 7));
  EXPECT_TRUE(holds(from, false, 7)) << "its owner goes on";
}

// Groups that share slots need not agree on what lasts.
TEST_P(TransientBytes, AGroupWithoutThemKeepsEverything) {
  const PageId page = written_page(7, kPlain);
  ASSERT_EQ(store_->pool_group(Tier::kDevice, kPlain), store_->pool_group(Tier::kDevice, kState));
  EXPECT_FALSE(store_->has_transient(page));
  store_->drop_transient(page, {});
  for (const Tier tier : kWalk) move({page}, tier);
  EXPECT_TRUE(holds(page, true, 7));
  EXPECT_TRUE(holds(page, false, 7));
}

// Slots that go away: the page moves to another with all that is left of it.
TEST_P(TransientBytes, AShrinkMovesPagesWithoutThem) {
  std::vector<PageId> pages;
  while (true) {
    const auto page = store_->allocate(kState);
    if (!page.has_value()) break;
    pages.push_back(*page);
  }
  const PageId last = pages.back();
  pages.pop_back();
  store_->release(last);
  const PageId page = written_page(7);
  store_->release(pages);
  device::EventSource reader = device_->make_event("a reader");
  store_->drop_transient(page, reader.event());
  reader.complete(EventStatus::kSucceeded);
  ASSERT_TRUE(store_->set_quota(Tier::kDevice, 16 << 10).has_value());
  store_->audit();
  EXPECT_TRUE(holds(page, true, 7));
  EXPECT_TRUE(!kPoisons || holds(page, false, 0));
}

// What an earlier process has left is somebody's prefix, never his records.
TEST_P(TransientBytes, APageThatIsFoundHasNone) {
  const PageId page = written_page(7);
  move({page}, Tier::kDisk);
  compute_->synchronize();
  open();
  const auto found = store_->adopt(certificate_of(7));
  ASSERT_TRUE(found.has_value());
  EXPECT_FALSE(store_->has_transient(*found));
  move({*found}, Tier::kDevice);
  EXPECT_TRUE(holds(*found, true, 7));
  EXPECT_FALSE(holds(*found, false, 7));
}

// Whatever the shares and the quota become, no pool group gets more slots than that.
TEST_P(TransientBytes, ThereIsAMostOfSlots) {
  const std::int64_t most = store_->max_device_slots(kState);
  ASSERT_TRUE(store_->set_quota(Tier::kDevice, 128 << 10).has_value());
  EXPECT_EQ(store_->pool_stats(Tier::kDevice, kState).num_slots, most);
  EXPECT_EQ(store_->max_device_slots(kState), most);
}

TEST(MaxDeviceSlots, BoundsEveryShareAndIsReached) {
  for (const std::int64_t max_bytes : {64 << 10, 100'000, 256 << 10}) {
    device::SimDevice device({.seed = 1});
    TieredStoreOptions options;
    const std::vector<std::vector<BufferSpec>> groups = {
        {{"latent", 256, 2}}, {{"state", 1000, 3}, {"window", 128, 2}}, {{"hidden", 4000, 1}}};
    for (const auto& buffers : groups) {
      LayerGroupSpec group;
      group.name = buffers[0].role;
      group.layout = *lay_out_slots(buffers, PoolPolicy::kOnePerSize);
      group.min_slots = 2;
      options.layer_groups.push_back(std::move(group));
    }
    options.device_bytes = 64 << 10;
    options.max_device_bytes = max_bytes;
    options.device_grain_bytes = 4096;
    auto store = *TieredStore::create(device, std::move(options));
    std::vector<std::int64_t> largest(3);
    ASSERT_TRUE(store->set_quota(Tier::kDevice, max_bytes).has_value());
    for (std::size_t favourite = 0; favourite < 3; ++favourite) {
      for (const double share : {1.0, 3.0, 1e6}) {
        std::vector<double> ratios(3, 1.0);
        ratios[favourite] = share;
        ASSERT_TRUE(store->set_ratios(Tier::kDevice, ratios).has_value());
        for (std::size_t g = 0; g < 3; ++g) {
          const LayerGroupId group(static_cast<std::int32_t>(g));
          const std::int64_t slots = store->pool_stats(Tier::kDevice, group).num_slots;
          largest[g] = std::max(largest[g], slots);
          EXPECT_LE(slots, store->max_device_slots(group)) << "group " << g << " of " << max_bytes;
        }
      }
    }
    for (std::size_t g = 0; g < 3; ++g) {
      EXPECT_EQ(largest[g], store->max_device_slots(LayerGroupId(static_cast<std::int32_t>(g))));
    }
  }
}

}  // namespace
}  // namespace slackwater::storage
