// Faults that users of other engines have met, as classes: what went wrong there, replayed on our
// store with other numbers each time. Each comment names the public reports.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/base/page_table.h"
#include "slackwater/storage/slot_solver.h"
#include "storage/disk_page.h"
#include "storage/tiered_store_test_support.h"

namespace slackwater::storage {
namespace {

using device::Event;
using device::EventStatus;
using ::testing::HasSubstr;

// C11, cold tier full or absent: room in the target tier comes before any change at the source;
// where there is none, the page stays whole where it is, and nobody waits for what cannot come.
// KB-C11-01 (TensorRT-LLM PR 15931): a suspend that finds the host full of other suspended
// sequences, with a step in flight. KB-C11-03 (LMCache 2942): a loader that waits for ever.
TEST(C11ColdTierFullOrAbsent, WithoutRoomThePagesStayWholeAndOthersAreUntouched) {
  for (std::int32_t held = 0; held < 6; ++held) {
    for (std::int32_t needed = 1; needed <= 6; ++needed) {
      SCOPED_TRACE(testing::Message() << held << " held, " << needed << " needed");
      const TemporaryDirectory directory;
      TestStore t(directory.path(),
                  {.seed = static_cast<std::uint64_t>(held * 7 + needed), .host_bytes = 12 << 10});
      const std::int32_t room = t.store->pool_stats(Tier::kHost, kState).num_free;
      const std::vector<PageId> suspended = t.written_pages(kState, std::min(held, room));
      ASSERT_TRUE(t.store->migrate(suspended, Tier::kHost).has_value());
      // Not waited for: the step that writes these pages is in flight.
      const std::vector<PageId> mine = t.written_pages(kState, needed);
      const auto moved = t.store->migrate(mine, Tier::kHost);
      const bool has_room = std::ssize(suspended) + needed <= room;
      ASSERT_EQ(moved.has_value(), has_room);
      t.store->audit();
      for (const PageId page : mine) {
        EXPECT_EQ(t.store->info(page).tier, has_room ? Tier::kHost : Tier::kDevice);
        EXPECT_TRUE(t.holds_its_bytes(page));
      }
      for (const PageId page : suspended) EXPECT_TRUE(t.holds_its_bytes(page));
    }
  }
}

// KB-C11-02 (TensorRT-LLM PR 12306, 13597): no host tier, or one whose creation fails at start.
TEST(C11ColdTierFullOrAbsent, WithoutAHostTierTheDeviceGoesOnByItself) {
  const TemporaryDirectory directory;
  TestStore t(directory.path(), {.host_bytes = 0, .disk_bytes = 0});
  const std::int32_t room = t.store->pool_stats(Tier::kDevice, kState).num_free;
  std::vector<PageId> pages = t.written_pages(kState, room);
  std::vector<PageId> more(1);
  EXPECT_EQ(t.store->allocate(kState, more).error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(t.store->migrate(pages, Tier::kHost).error().code(), ErrorCode::kFailedPrecondition);
  // The caller's way on: give one up, compute it again.
  t.store->release(pages.back());
  EXPECT_TRUE(t.store->allocate(kState, more).has_value());
  pages.pop_back();
  for (const PageId page : pages) EXPECT_TRUE(t.holds_its_bytes(page));
}

TEST(C11ColdTierFullOrAbsent, AHostThatCannotBeHadIsAnErrorAtTheStart) {
  // The device's pools are committed first, then the host's; refuse each growth in turn.
  for (std::int64_t refused = 0; refused < 6; ++refused) {
    device::SimDevice device(
        {.refuse_commit = [&](std::int64_t index) { return index == refused; }});
    TieredStoreOptions options;
    LayerGroupSpec group;
    group.name = "pages";
    const std::vector<BufferSpec> buffers = {{"bytes", 512, 1}};
    group.layout = *lay_out_slots(buffers, PoolPolicy::kOnePool);
    options.layer_groups = {group};
    options.device_bytes = 16 << 10;
    options.host_bytes = 16 << 10;
    const auto store = TieredStore::create(device, std::move(options));
    EXPECT_EQ(store.has_value(), refused >= 2) << refused;
    if (store.has_value()) continue;
    EXPECT_EQ(store.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(store.error().text(), HasSubstr(refused == 0 ? "device" : "host"));
    for (const auto kind : {device::MemoryKind::kDevice, device::MemoryKind::kPinnedHost}) {
      EXPECT_EQ(device.usage(kind).committed_bytes, 0u) << "nothing stays behind";
    }
  }
}

// C12, disk and restore failures: a failed, short, torn or foreign read is a miss, for the page it
// belongs to and for no other; a transient one deletes nothing, and shutdown returns.
// KB-C12-01 (vLLM PR 49328), KB-C12-03 (Dynamo 15079), KB-C12-04 (vLLM 54363).
TEST(C12DiskAndRestoreFailures, ABadReadIsAMissOfThatPageOnly) {
  for (std::size_t fault = 1; fault < kNumDiskFaults; ++fault) {
    for (std::int64_t victim = 0; victim < 5; ++victim) {
      SCOPED_TRACE(testing::Message() << "fault " << fault << " for page " << victim);
      const TemporaryDirectory directory;
      TestStore t(directory.path(), {.seed = static_cast<std::uint64_t>(victim)});
      const std::vector<PageId> pages = t.written_pages(kState, 5);
      ASSERT_TRUE(t.store->migrate(pages, Tier::kDisk).has_value());
      t.store->synchronize();
      // Within the victim's frame: the first segment holds all five.
      const std::uint64_t frame = frame_bytes(1024 + 128);
      t.fail_disk_at(kSegmentHeaderBytes + static_cast<std::uint64_t>(victim) * frame,
                     static_cast<DiskFault>(fault));
      ASSERT_TRUE(t.store->migrate(pages, Tier::kDevice).has_value());
      t.store->synchronize();
      int num_lost = 0;
      for (const PageId page : pages) {
        const EventStatus status = t.store->info(page).ready.status();
        ASSERT_NE(status, EventStatus::kPending);
        if (status == EventStatus::kFailed) {
          ++num_lost;
          // Remembered as a miss: nobody is told again that it is there.
          EXPECT_FALSE(t.store->verify(page, t.certificate_of(page)).has_value());
        } else {
          EXPECT_TRUE(t.holds_its_bytes(page));
        }
      }
      // Pages share a request, and no answer is no answer for all of it. A wrong bit hits one page
      // or, in the padding, none.
      switch (static_cast<DiskFault>(fault)) {
        case DiskFault::kStall:
        case DiskFault::kLate: EXPECT_GE(num_lost, 1); break;
        case DiskFault::kFlip: EXPECT_LE(num_lost, 1); break;
        default: EXPECT_EQ(num_lost, 1);
      }
      t.store->audit();
    }
  }
}

// KB-C12-08 and KB-C12-09 (vLLM 47812, PR 50388, PR 54733): groups number their slots each for
// itself; a failure in one is not one in the other, equal numbers or not.
TEST(C12DiskAndRestoreFailures, EqualSlotNumbersOfTwoGroupsAreTwoPages) {
  for (std::int64_t victim = 0; victim < 4; ++victim) {
    const TemporaryDirectory directory;
    TestStore t(directory.path(), {.seed = static_cast<std::uint64_t>(victim)});
    const std::vector<PageId> first = t.written_pages(kAttention, 2);
    const std::vector<PageId> second = t.written_pages(kState, 2);
    for (const auto& pages : {first, second}) {
      ASSERT_TRUE(t.store->migrate(pages, Tier::kDisk).has_value());
    }
    EXPECT_EQ(t.store->info(first[0]).slot, t.store->info(second[0]).slot);
    t.store->synchronize();
    // Both groups' files have a frame there: that of page `victim` of each.
    const std::uint64_t frame = frame_bytes(victim < 2 ? 512 : 1024 + 128);
    const std::uint64_t other = frame_bytes(victim < 2 ? 1024 + 128 : 512);
    const std::uint64_t offset =
        kSegmentHeaderBytes + static_cast<std::uint64_t>(victim % 2) * frame;
    t.fail_disk_at(offset, DiskFault::kError);
    const std::uint64_t hits_other_too = (offset - kSegmentHeaderBytes) / other;
    const std::vector<PageId> all = {first[0], first[1], second[0], second[1]};
    ASSERT_TRUE(t.store->migrate(all, Tier::kDevice).has_value());
    t.store->synchronize();
    int num_lost = 0;
    for (const PageId page : all) {
      if (t.store->info(page).ready.status() == EventStatus::kFailed) {
        ++num_lost;
      } else {
        EXPECT_TRUE(t.holds_its_bytes(page));
      }
    }
    EXPECT_EQ(num_lost, hits_other_too < 2 ? 2 : 1);
  }
}

// KB-C12-04: a disk that never answers. Its pages are misses by the deadline, and the end comes.
TEST(C12DiskAndRestoreFailures, AStalledDiskEndsInMissesAndTheStoreEnds) {
  const TemporaryDirectory directory;
  {
    TestStore t(directory.path(), {});
    std::vector<PageId> pages = t.written_pages(kState, 3);
    ASSERT_TRUE(t.store->migrate(pages, Tier::kDisk).has_value());
    t.store->synchronize();
    for (std::size_t i = 0; i < pages.size(); ++i) {
      t.fail_disk(t.num_disk_requests(), i == 1 ? DiskFault::kLate : DiskFault::kStall);
      ASSERT_TRUE(t.store->migrate(std::span(&pages[i], 1), Tier::kHost).has_value());
      EXPECT_EQ(t.store->info(pages[i]).ready.wait(), EventStatus::kFailed);
    }
    EXPECT_EQ(t.store->stats().disk.timeouts, 3);
    // What comes after does not use memory that a late answer may still write to.
    t.fail_nothing();
    const std::vector<PageId> more = t.written_pages(kState, 1);
    ASSERT_TRUE(t.store->migrate(more, Tier::kDisk).has_value());
    ASSERT_TRUE(t.store->migrate(more, Tier::kDevice).has_value());
    EXPECT_TRUE(t.holds_its_bytes(more[0]));
    t.fail_disk(t.num_disk_requests(), DiskFault::kStall);
    ASSERT_TRUE(t.store->migrate(more, Tier::kDisk).has_value());
  }  // with a request that is never answered
}

// KB-C12-04 again: the answer comes after all, when the memory it was to go to could have been
// taken for another page. Four parts of staging memory are used in turn; the late bytes come when
// the first is in use again, while a page lies in it.
TEST(C12DiskAndRestoreFailures, ALateAnswerTouchesNobodysPage) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const TemporaryDirectory directory;
    TestStore t(directory.path(), {.seed = seed});
    const std::vector<PageId> pages = t.written_pages(kState, 6);
    ASSERT_TRUE(t.store->migrate(pages, Tier::kDisk).has_value());
    t.store->synchronize();
    // Moving them took parts of its own; the next one is the late page's.
    t.set_late_delay(4);
    t.fail_disk(t.num_disk_requests(), DiskFault::kLate);
    for (std::size_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(t.store->migrate(std::span(&pages[i], 1), Tier::kHost).has_value());
      t.store->synchronize();
    }
    EXPECT_EQ(t.store->info(pages[0]).ready.status(), EventStatus::kFailed);
    for (std::size_t i = 4; i < 6; ++i) {
      ASSERT_TRUE(t.store->migrate(std::span(&pages[i], 1), Tier::kDevice).has_value());
    }
    for (std::size_t i = 1; i < 6; ++i) ASSERT_TRUE(t.holds_its_bytes(pages[i])) << "page " << i;
  }
}

// KB-C12-07 (llama.cpp 22756): what is stored names its owner, not the slot it came from.
TEST(C12DiskAndRestoreFailures, APageComesBackIntoAnySlot) {
  const TemporaryDirectory directory;
  TestStore t(directory.path(), {});
  const std::vector<PageId> pages = t.written_pages(kState, 3);
  const SlotId before = t.store->info(pages[0]).slot;
  ASSERT_TRUE(t.store->migrate(std::span(pages).first(1), Tier::kDisk).has_value());
  const std::vector<PageId> other = t.written_pages(kState, 1);
  EXPECT_EQ(t.store->info(other[0]).slot, before) << "its old slot is busy";
  ASSERT_TRUE(t.store->migrate(std::span(pages).first(1), Tier::kDevice).has_value());
  EXPECT_NE(t.store->info(pages[0]).slot, before);
  EXPECT_TRUE(t.holds_its_bytes(pages[0]));
  EXPECT_TRUE(t.holds_its_bytes(other[0]));
}

// C13, copy ordering and races: copies are ordered by the memory they touch, against each other
// and against the step; the staging memory is busy until its event.
// KB-C13-01 (TensorRT-LLM PR 9056), KB-C13-05 (PR 7510): two copies whose only common thing is a
// slot of the host.
TEST(C13CopyOrdering, CopiesThroughOneHostSlotFollowEachOther) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const TemporaryDirectory directory;
    TestStore t(directory.path(),
                {.seed = seed, .host_bytes = 4096, .copy_threads = 1 + static_cast<int>(seed % 2)});
    // Fill the host but for one slot.
    const std::int32_t room = t.store->pool_stats(Tier::kHost, kState).num_free;
    const std::vector<PageId> rest = t.written_pages(kState, room - 1);
    ASSERT_TRUE(t.store->migrate(rest, Tier::kHost).has_value());
    const std::vector<PageId> pages = t.written_pages(kState, 4);
    for (const PageId page : pages) {
      // Each goes through that slot while the copies before may still be on their way.
      ASSERT_TRUE(t.store->migrate(std::span(&page, 1), Tier::kHost).has_value());
      ASSERT_TRUE(t.store->migrate(std::span(&page, 1), Tier::kDevice).has_value());
    }
    const std::vector<PageId> last = t.written_pages(kState, 1);
    ASSERT_TRUE(t.store->migrate(last, Tier::kHost).has_value());
    for (const PageId page : pages) EXPECT_TRUE(t.holds_its_bytes(page));
    EXPECT_TRUE(t.holds_its_bytes(last[0]));
  }
}

// KB-C13-04 (vLLM 45704): a store that does not wait for the step that writes the page; KB-C02-01
// (vLLM PR 32255): a slot that is given away while a load still writes to it.
TEST(C13CopyOrdering, APageIsReadAfterItsStepAndItsSlotGivenAwayAfterItsLoad) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const TemporaryDirectory directory;
    TestStore t(directory.path(), {.seed = seed});
    const std::int32_t room = t.store->pool_stats(Tier::kDevice, kState).num_free;
    const std::vector<PageId> all = t.written_pages(kState, room);
    const std::vector<PageId> some(all.begin(), all.begin() + 3);
    ASSERT_TRUE(t.store->migrate(some, Tier::kDisk).has_value());
    ASSERT_TRUE(t.store->migrate(some, Tier::kDevice).has_value());
    // Given up while the load is under way; the next owners get those very slots.
    t.store->release(some[0]);
    t.store->release(some[1]);
    const std::vector<PageId> next = t.written_pages(kState, 2);
    for (const PageId page : next) EXPECT_TRUE(t.holds_its_bytes(page));
    EXPECT_TRUE(t.holds_its_bytes(some[2]));
    t.store->audit();
  }
}

// KB-C13-02 (TensorRT-LLM PR 15546, 16088): one staging buffer, overwritten while it is read.
TEST(C13CopyOrdering, StagingMemoryIsBusyUntilItsEvent) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const TemporaryDirectory directory;
    TestStore t(directory.path(), {.seed = seed, .disk_bytes = 256 << 10});
    // More pages than all parts of the staging memory hold at once.
    const std::vector<PageId> pages = t.written_pages(kState, 24);
    ASSERT_TRUE(t.store->migrate(pages, Tier::kDisk).has_value());
    ASSERT_TRUE(t.store->migrate(pages, Tier::kDevice).has_value());
    for (const PageId page : pages) EXPECT_TRUE(t.holds_its_bytes(page));
  }
}

// C17, integer width: sizes and offsets are 64 bits from end to end, and what does not fit is
// refused. KB-C17-01 (vLLM 50427, 52109), whose two products are the first rows.
TEST(C17IntegerWidth, OffsetsAre64BitsWide) {
  struct Row {
    std::int32_t slot;
    std::int64_t slot_stride;
    std::int32_t layer;
    std::int64_t layer_stride;
    std::int64_t offset;
  };
  for (const Row& row :
       {Row{2143, 1'002'240, 0, 0, 2'147'800'320}, Row{8'400'000, 256, 0, 0, 2'150'400'000},
        Row{2'147'483'647, 41'943'040, 0, 0, 90'071'992'505'466'880},
        Row{3, 8'589'934'592, 2, 4'294'967'296, 34'359'738'368},
        Row{65'536, 65'536, 47, 65'536, 4'298'047'488}}) {
    PageTable table;
    table.slot_stride = row.slot_stride;
    table.layer_stride = row.layer_stride;
    const std::byte* const address = layer_address(table, SlotId(row.slot), row.layer);
    EXPECT_EQ(reinterpret_cast<std::intptr_t>(address), row.offset);
  }
}

TEST(C17IntegerWidth, APoolBeyondFourGibibytesFindsItsSlots) {
  device::SimDevice device({});
  PoolGroupOptions options;
  options.name = "large";
  options.slot_bytes = {std::int64_t{1} << 20};
  options.grain_bytes = 2 << 20;
  options.max_slots = 1 << 20;  // a tebibyte of addresses
  const auto pool = *PoolGroup::create(device, options);
  ASSERT_TRUE(pool->grow(2).has_value());
  const PageTable table = pool->view({0, 0, 4096}, 32);
  EXPECT_EQ(layer_address(table, SlotId(1'000'000), 3) - table.base,
            std::int64_t{1'000'000} * (1 << 20) + 3 * 4096);
  EXPECT_EQ(pool->address(0, SlotId(1)) - table.base, 1 << 20);
}

TEST(C17IntegerWidth, ImpossibleSizesAreRefusedWithTheNumber) {
  const std::vector<BufferSpec> huge = {{"state", std::int64_t{1} << 47, 4}};
  const auto layout = lay_out_slots(huge, PoolPolicy::kOnePool);
  ASSERT_FALSE(layout.has_value());
  EXPECT_THAT(layout.error().text(), HasSubstr("140737488355328 bytes in each of 4 layers"));
  const std::vector<GroupDemand> groups = {{{std::int64_t{1} << 40}, 1, 1 << 30}};
  const auto slots = solve_slots(groups, std::int64_t{1} << 62, 2 << 20);
  ASSERT_FALSE(slots.has_value());
  EXPECT_EQ(slots.error().code(), ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace slackwater::storage
