#include "slackwater/storage/tiered_store.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/device/cpu_device.h"
#include "slackwater/device/sim_device.h"
#include "storage/tiered_store_test_support.h"
#include "testing/padding_codec.h"

namespace slackwater::storage {
namespace {

using device::EventStatus;
using ::testing::HasSubstr;

class TieredStoreTest : public testing::Test {
 protected:
  TestStore make(TestStoreOptions options = {}) { return TestStore(directory_.path(), options); }

  TemporaryDirectory directory_;
};

TEST_F(TieredStoreTest, PagesKeepTheirBytesThroughAllTiers) {
  TestStore t = make();
  const std::vector<PageId> pages = t.written_pages(kState, 6);
  for (const Tier tier : {Tier::kHost, Tier::kDevice, Tier::kDisk, Tier::kDevice, Tier::kHost,
                          Tier::kDisk, Tier::kHost, Tier::kDevice}) {
    ASSERT_TRUE(t.store->migrate(pages, tier).has_value());
    t.store->audit();
    for (const PageId page : pages) EXPECT_EQ(t.store->info(page).tier, tier);
  }
  t.store->synchronize();
  for (const PageId page : pages) EXPECT_TRUE(t.holds_its_bytes(page));
  EXPECT_EQ(t.store->stats().pages_moved, 48);
}

TEST_F(TieredStoreTest, AMigrationReturnsBeforeItIsDone) {
  TestStore t = make({.seed = 0, .lazy = true});
  const std::vector<PageId> pages = t.written_pages(kAttention, 3);
  ASSERT_TRUE(t.store->migrate(pages, Tier::kHost).has_value());
  const PageInfo info = t.store->info(pages[0]);
  EXPECT_EQ(info.tier, Tier::kHost) << "it counts as there, and its event says when";
  EXPECT_EQ(info.ready.wait(), EventStatus::kSucceeded);
  EXPECT_TRUE(t.holds_its_bytes(pages[0]));
}

TEST_F(TieredStoreTest, LayerGroupsWithEqualSlotsShareThem) {
  TestStore t = make();
  const std::int32_t before = t.store->pool_stats(Tier::kDevice, kWindow).num_free;
  t.written_pages(kAttention, 2);
  EXPECT_EQ(t.store->pool_stats(Tier::kDevice, kWindow).num_free, before - 2);
  EXPECT_EQ(t.store->cold_page_bytes(kState), 1024 + 128) << "both pools, one after the other";
}

// On every seed of the adversary: the copy waits for the source, and the source's slot for the
// copy.
TEST_F(TieredStoreTest, ACopyIsAPageOfItsOwn) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    TestStore t = make({.seed = seed});
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const PageId source = t.written_pages(kState, 1)[0];
      ASSERT_TRUE(t.store->migrate(std::span(&source, 1), tier).has_value());
      const PageId copy = *t.store->allocate(kState);
      ASSERT_TRUE(t.store->copy(source, copy).has_value());
      EXPECT_EQ(t.store->certificate(copy), Digest128()) << "nobody vouches for it yet";
      t.know(copy, t.certificate_of(source));
      t.store->certify(copy, t.certificate_of(source));
      // Whoever gets the slot of the source next writes to it only after the copy.
      t.store->release(source);
      t.written_pages(kState, 1);
      EXPECT_TRUE(t.holds_its_bytes(copy)) << "from the " << to_string(tier);
      t.store->audit();
    }
  }
}

TEST_F(TieredStoreTest, ACopyOfWhatIsNotThereIsRefused) {
  TestStore t = make();
  const PageId source = t.written_pages(kState, 1)[0];
  const PageId copy = *t.store->allocate(kState);
  ASSERT_TRUE(t.store->migrate(std::span(&source, 1), Tier::kDisk).has_value());
  EXPECT_EQ(t.store->copy(source, copy).error().code(), ErrorCode::kFailedPrecondition);
  const PageId lost = t.written_pages(kState, 1)[0];
  t.fail_copy(t.num_copies());
  ASSERT_TRUE(t.store->migrate(std::span(&lost, 1), Tier::kHost).has_value());
  ASSERT_EQ(t.store->ready(lost).wait(), EventStatus::kFailed);
  const auto refused = t.store->copy(lost, copy);
  EXPECT_EQ(refused.error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(refused.error().text(), HasSubstr("are lost"));
  t.store->audit();
}

// A copy whose source is lost before it is read is lost too, and so is one that fails itself.
TEST_F(TieredStoreTest, ACopyIsLostWithItsSource) {
  TestStore t = make({.seed = 0, .lazy = true});
  const PageId source = t.written_pages(kState, 1)[0];
  t.fail_copy(t.num_copies());
  ASSERT_TRUE(t.store->migrate(std::span(&source, 1), Tier::kHost).has_value());
  const PageId copy = *t.store->allocate(kState);
  ASSERT_TRUE(t.store->copy(source, copy).has_value());
  EXPECT_EQ(t.store->ready(copy).wait(), EventStatus::kFailed);

  const PageId other = t.written_pages(kState, 1)[0];
  t.fail_copy(t.num_copies());
  ASSERT_TRUE(t.store->copy(other, copy).has_value());
  EXPECT_EQ(t.store->ready(copy).wait(), EventStatus::kFailed);
  EXPECT_TRUE(t.survives(other));
  t.store->audit();
}

// kvcm_v2 7.1, cold_codec_merges_lifecycles_from_different_hot_pool_groups and
// cold_codec_splits_lifecycles_from_one_hot_pool_group.
TEST_F(TieredStoreTest, HotAndColdGroupingMayDiffer) {
  for (const std::vector<std::int64_t>& blobs :
       {std::vector<std::int64_t>{1152, 640, 1152}, std::vector<std::int64_t>{512, 1536, 1536}}) {
    const TemporaryDirectory directory;
    TestStoreOptions options;
    options.codec = std::make_shared<PaddingCodec>(blobs);
    TestStore t(directory.path(), options);
    for (const LayerGroupId group : {kAttention, kWindow, kState}) {
      EXPECT_EQ(t.store->cold_page_bytes(group), blobs[static_cast<std::size_t>(group.value())]);
    }
    // Groups 0 and 1 share slots on the device, and no longer elsewhere; one of them now shares
    // blobs with group 2.
    const LayerGroupId partner = blobs[0] == blobs[2] ? kAttention : kWindow;
    const LayerGroupId loner = partner == kAttention ? kWindow : kAttention;
    const auto free_on_host = [&](LayerGroupId group) {
      return t.store->pool_stats(Tier::kHost, group).num_free;
    };
    const std::int32_t before = free_on_host(kState);
    const std::int32_t before_loner = free_on_host(loner);
    std::vector<PageId> pages;
    for (const LayerGroupId group : {kAttention, kWindow, kState}) {
      for (const PageId page : t.written_pages(group, 2)) pages.push_back(page);
    }
    ASSERT_TRUE(t.store->migrate(pages, Tier::kHost).has_value());
    EXPECT_EQ(free_on_host(kState), before - 4);
    EXPECT_EQ(free_on_host(partner), before - 4);
    EXPECT_EQ(free_on_host(loner), before_loner - 2);
    for (const Tier tier : {Tier::kDisk, Tier::kDevice}) {
      ASSERT_TRUE(t.store->migrate(pages, tier).has_value());
      t.store->audit();
    }
    for (const PageId page : pages) EXPECT_TRUE(t.holds_its_bytes(page));
  }
}

TEST_F(TieredStoreTest, AllocatesAllPagesOrNone) {
  TestStore t = make();
  const PoolStats stats = t.store->pool_stats(Tier::kDevice, kState);
  std::vector<PageId> pages(static_cast<std::size_t>(stats.num_free) + 1);
  const auto refused = t.store->allocate(kState, pages);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(t.store->pool_stats(Tier::kDevice, kState).num_free, stats.num_free);
  pages.pop_back();
  EXPECT_TRUE(t.store->allocate(kState, pages).has_value());
  t.store->audit();
}

TEST_F(TieredStoreTest, AMigrationWithoutRoomMovesNothing) {
  TestStore t = make({.host_bytes = 4096});
  const std::int32_t room = t.store->pool_stats(Tier::kHost, kState).num_free;
  const std::vector<PageId> pages = t.written_pages(kState, room + 1);
  const auto refused = t.store->migrate(pages, Tier::kHost);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  for (const PageId page : pages) EXPECT_EQ(t.store->info(page).tier, Tier::kDevice);
  t.store->audit();
  EXPECT_TRUE(t.store->migrate(std::span(pages).first(1), Tier::kHost).has_value());
}

TEST_F(TieredStoreTest, ReservedSlotsAreForTheirHolder) {
  TestStore t = make({.host_bytes = 8192});
  const std::int32_t room = t.store->pool_stats(Tier::kHost, kState).num_free;
  auto reservation = *t.store->reserve_host(kState, room);
  const std::vector<PageId> pages = t.written_pages(kState, 2);
  EXPECT_FALSE(t.store->migrate(pages, Tier::kHost).has_value());
  EXPECT_FALSE(t.store->reserve_host(kState, 1).has_value());
  EXPECT_TRUE(t.store->migrate(pages, reservation).has_value());
  EXPECT_EQ(reservation.num_pages(), room - 2);
  t.store->audit();
  reservation.cancel();
  EXPECT_EQ(t.store->pool_stats(Tier::kHost, kState).num_reserved, 0);
  const auto too_many = t.store->reserve_host(kState, room);
  EXPECT_THAT(too_many.error().text(), HasSubstr("free and not reserved"));
}

TEST_F(TieredStoreTest, AReservationCannotBeShrunkAway) {
  TestStore t = make({.host_bytes = 64 << 10});
  const std::int32_t room = t.store->pool_stats(Tier::kHost, kState).num_free;
  const auto reservation = *t.store->reserve_host(kState, room);
  const auto refused = t.store->set_quota(Tier::kHost, 8192);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(t.store->quota(Tier::kHost), 64 << 10) << "nothing has changed";
  t.store->audit();
}

TEST_F(TieredStoreTest, AStalePageIsRecognised) {
  TestStore t = make();
  const PageId page = t.written_pages(kAttention, 1)[0];
  t.store->release(page);
  EXPECT_FALSE(t.store->is_alive(page));
  EXPECT_EQ(t.store->migrate(std::span(&page, 1), Tier::kHost).error().code(),
            ErrorCode::kNotFound);
  const PageId next = t.written_pages(kAttention, 1)[0];
  EXPECT_EQ(next.index, page.index) << "the record is used again";
  EXPECT_FALSE(t.store->is_alive(page));
  EXPECT_FALSE(t.store->is_alive(PageId{}));
  EXPECT_FALSE(t.store->is_alive(PageId{77, 1}));
}

TEST_F(TieredStoreTest, ACertificateOfSomebodyElseFailsClosed) {
  TestStore t = make();
  const PageId page = t.written_pages(kState, 1)[0];
  const Certificate mine = t.certificate_of(page);
  EXPECT_TRUE(t.store->verify(page, mine).has_value());
  Certificate other = mine;
  other.position += 1;
  const auto refused = t.store->verify(page, other);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(t.store->stats().certificate_mismatches, 1);
}

TEST_F(TieredStoreTest, APageThatIsWrittenAgainIsCertifiedAgain) {
  TestStore t = make();
  const PageId page = t.written_pages(kState, 1)[0];
  const Certificate before = t.certificate_of(page);
  t.store->note_write(page, {});
  EXPECT_FALSE(t.store->verify(page, before).has_value());
  const auto refused = t.store->migrate(std::span(&page, 1), Tier::kDisk);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().text(), HasSubstr("without a certificate"));
  EXPECT_TRUE(t.store->migrate(std::span(&page, 1), Tier::kHost).has_value());
  t.store->certify(page, before);
  EXPECT_TRUE(t.store->migrate(std::span(&page, 1), Tier::kDisk).has_value());
}

TEST_F(TieredStoreTest, PagesOnDiskOutliveTheProcess) {
  Certificate certificate;
  {
    TestStore t = make();
    const std::vector<PageId> pages = t.written_pages(kState, 3);
    certificate = t.certificate_of(pages[1]);
    ASSERT_TRUE(t.store->migrate(pages, Tier::kDisk).has_value());
  }
  TestStore t = make();
  Certificate other = certificate;
  other.position = 12345;
  EXPECT_FALSE(t.store->adopt(other).has_value());
  const auto page = t.store->adopt(certificate);
  ASSERT_TRUE(page.has_value());
  ASSERT_TRUE(t.store->migrate(std::span(&*page, 1), Tier::kDevice).has_value());
  t.store->synchronize();
  t.know(*page, certificate);
  EXPECT_TRUE(t.holds_its_bytes(*page));
  EXPECT_TRUE(t.store->verify(*page, certificate).has_value());
}

TEST_F(TieredStoreTest, QuotasChangeWhilePagesAreThere) {
  TestStore t = make();
  const std::vector<PageId> on_device = t.written_pages(kAttention, 5);
  const std::vector<PageId> on_host = t.written_pages(kState, 5);
  const std::vector<PageId> on_disk = t.written_pages(kState, 5);
  ASSERT_TRUE(t.store->migrate(on_host, Tier::kHost).has_value());
  ASSERT_TRUE(t.store->migrate(on_disk, Tier::kDisk).has_value());
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    for (const std::int64_t bytes : {72 << 10, 96 << 10, 64 << 10}) {
      ASSERT_TRUE(t.store->set_quota(tier, bytes).has_value()) << to_string(tier) << bytes;
      EXPECT_EQ(t.store->quota(tier), bytes);
      t.store->audit();
    }
  }
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    ASSERT_TRUE(t.store->set_ratios(tier, std::vector<double>{1, 1, 8}).has_value());
    t.store->audit();
  }
  t.store->synchronize();
  for (const auto& pages : {on_device, on_host}) {
    for (const PageId page : pages) EXPECT_TRUE(t.holds_its_bytes(page));
  }
  ASSERT_TRUE(t.store->migrate(on_disk, Tier::kDevice).has_value());
  t.store->synchronize();
  for (const PageId page : on_disk) EXPECT_TRUE(t.holds_its_bytes(page));
}

#if defined(SLACKWATER_DCHECKS)
// Fresh memory is zero, and what was handed over is poisoned.
TEST_F(TieredStoreTest, PoolsThatGainGetTheMemoryOfThoseThatLose) {
  TestStore t = make();
  const std::int32_t before = t.store->pool_stats(Tier::kDevice, kAttention).num_slots;
  ASSERT_TRUE(t.store->set_ratios(Tier::kDevice, std::vector<double>{4, 4, 8}).has_value());
  const std::int32_t after = t.store->pool_stats(Tier::kDevice, kAttention).num_slots;
  ASSERT_GT(after, before);
  std::vector<PageId> pages(static_cast<std::size_t>(after));
  ASSERT_TRUE(t.store->allocate(kAttention, pages).has_value());
  for (const PageId page : pages) {
    const bool is_new = t.store->slot(page).value() >= before;
    EXPECT_EQ(t.store->bytes(page)[0], std::byte(is_new ? 0xDD : 0)) << page.index;
  }
}
#endif

TEST_F(TieredStoreTest, AQuotaIsRaisedToItsFloors) {
  TestStore t = make();
  ASSERT_TRUE(t.store->set_quota(Tier::kDevice, 1).has_value());
  EXPECT_GE(t.store->pool_stats(Tier::kDevice, kState).num_slots, 1);
  EXPECT_GE(t.store->pool_stats(Tier::kDevice, kAttention).num_slots, 2) << "two groups, one each";
  t.store->audit();
}

TEST_F(TieredStoreTest, WhatIsNotThereIsSaid) {
  TestStore t = make({.host_bytes = 0, .disk_bytes = 0});
  const PageId page = t.written_pages(kState, 1)[0];
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    const auto refused = t.store->migrate(std::span(&page, 1), tier);
    EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(t.store->set_quota(tier, 4096).error().code(), ErrorCode::kFailedPrecondition);
  }
  EXPECT_EQ(t.store->reserve_host(kState, 1).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(t.store->adopt(t.certificate_of(page)).has_value());
  EXPECT_EQ(t.store->set_quota(Tier::kDevice, 1 << 30).error().code(), ErrorCode::kOutOfRange);
}

TEST_F(TieredStoreTest, ALostPageIsNeverServedAndTakesItsCopiesWithIt) {
  TestStore t = make({.lazy = true});
  const std::vector<PageId> pages = t.written_pages(kState, 2);
  for (const PageId page : pages) t.store->info(page).ready.wait();
  t.fail_copy(t.num_copies());
  ASSERT_TRUE(t.store->migrate(pages, Tier::kHost).has_value());
  // Still on its way, it is sent on.
  ASSERT_TRUE(t.store->migrate(std::span(pages).first(1), Tier::kDisk).has_value());
  t.store->synchronize();
  for (const PageId page : pages) {
    EXPECT_EQ(t.store->info(page).ready.status(), EventStatus::kFailed);
    EXPECT_EQ(t.store->verify(page, t.certificate_of(page)).error().code(),
              ErrorCode::kUnavailable);
    EXPECT_EQ(t.store->migrate(std::span(&page, 1), Tier::kDevice).error().code(),
              ErrorCode::kDataLoss);
    t.store->release(page);
  }
  EXPECT_EQ(t.store->stats().disk.frames_written, 0) << "nobody vouches for those bytes";
  t.store->audit();
}

// The n-th copy, growth or disk request fails, for n = 0, 1, 2, ... until an operation meets no
// more of them. Whatever fails, every page holds its bytes or is known to be lost, the slots add
// up, and the store goes on.
struct MultiStep {
  std::string name;
  std::function<void(TestStore&, std::span<const PageId>)> run;
};

void PrintTo(const MultiStep& operation, std::ostream* os) { *os << operation.name; }

class TieredStoreFailureLoop : public TieredStoreTest,
                               public testing::WithParamInterface<MultiStep> {};

void go_through(TestStore& t, std::span<const PageId> pages, std::initializer_list<Tier> tiers) {
  for (const Tier tier : tiers) static_cast<void>(t.store->migrate(pages, tier));
}

std::vector<MultiStep> multi_step_operations() {
  return {
      {"ToTheHost", [](TestStore& t, auto p) { go_through(t, p, {Tier::kHost}); }},
      {"ToTheHostAndBack",
       [](TestStore& t, auto p) {
         go_through(t, p, {Tier::kHost, Tier::kDevice});
       }},
      {"ToTheDisk", [](TestStore& t, auto p) { go_through(t, p, {Tier::kDisk}); }},
      {"ToTheDiskAndBack",
       [](TestStore& t, auto p) {
         go_through(t, p, {Tier::kDisk, Tier::kDevice});
       }},
      {"OverTheHostToTheDiskAndBack",
       [](TestStore& t, auto p) {
         go_through(t, p, {Tier::kHost, Tier::kDisk, Tier::kHost, Tier::kDevice});
       }},
      {"Quotas",
       [](TestStore& t, auto p) {
         go_through(t, p.first(2), {Tier::kHost});
         go_through(t, p.last(2), {Tier::kDisk});
         for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
           for (const std::int64_t bytes : {16 << 10, 96 << 10, 24 << 10}) {
             static_cast<void>(t.store->set_quota(tier, bytes));
           }
         }
       }},
      {"Ratios",
       [](TestStore& t, auto p) {
         go_through(t, p.first(2), {Tier::kDisk});
         for (const auto& ratios : {std::vector<double>{8, 1, 1}, std::vector<double>{1, 1, 8}}) {
           for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
             static_cast<void>(t.store->set_ratios(tier, ratios));
           }
         }
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(Operations, TieredStoreFailureLoop,
                         testing::ValuesIn(multi_step_operations()),
                         [](const auto& operation) { return operation.param.name; });

enum class FaultKind { kCopy, kCommit, kDisk };

class FailureCase {
 public:
  FailureCase(TieredStoreFailureLoop& test, const std::filesystem::path& directory)
      : operation_(test.GetParam()), directory_(directory) {}

  // Whether the n-th step was met, and so failed.
  bool run(FaultKind kind, DiskFault disk_fault, std::int64_t n, std::uint64_t seed) {
    TestStore t(directory_, {.seed = seed});
    const std::vector<PageId> pages = t.written_pages(kState, 5);
    t.store->synchronize();
    const std::int64_t before = count(t, kind);
    switch (kind) {
      case FaultKind::kCopy: t.fail_copy(before + n); break;
      case FaultKind::kCommit: t.fail_commit(before + n); break;
      case FaultKind::kDisk: t.fail_disk(before + n, disk_fault); break;
    }
    operation_.run(t, pages);
    t.store->audit();
    t.store->synchronize();
    t.store->audit();
    const bool was_met = count(t, kind) > before + n;
    t.fail_nothing();
    EXPECT_TRUE(t.store->set_quota(Tier::kDevice, 128 << 10).has_value());
    int num_lost = 0;
    for (const PageId page : pages) {
      if (!t.survives(page)) ++num_lost;
    }
    if (!was_met || kind == FaultKind::kCommit) {
      EXPECT_EQ(num_lost, 0);
    }
    // The store goes on.
    const std::vector<PageId> more = t.written_pages(kAttention, 2);
    EXPECT_TRUE(t.store->migrate(more, Tier::kHost).has_value());
    t.store->synchronize();
    for (const PageId page : more) EXPECT_TRUE(t.holds_its_bytes(page));
    for (const PageId page : pages) t.store->release(page);
    t.store->audit();
    return was_met;
  }

 private:
  static std::int64_t count(TestStore& t, FaultKind kind) {
    return kind == FaultKind::kCopy     ? t.num_copies()
           : kind == FaultKind::kCommit ? t.num_commits()
                                        : t.num_disk_requests();
  }

  const MultiStep& operation_;
  const std::filesystem::path directory_;
};

void run_until_nothing_fails(FailureCase& failures, FaultKind kind, DiskFault disk_fault) {
  constexpr std::int64_t kEndless = 500;
  for (std::int64_t n = 0; n < kEndless; ++n) {
    SCOPED_TRACE(testing::Message()
                 << "step " << n << " fails, disk fault " << static_cast<int>(disk_fault));
    if (!failures.run(kind, disk_fault, n, static_cast<std::uint64_t>(n))) return;
    if (testing::Test::HasFailure()) return;
  }
  FAIL() << "more than " << kEndless << " steps";
}

TEST_P(TieredStoreFailureLoop, SurvivesAnyCopyThatFails) {
  FailureCase failures(*this, directory_.path());
  run_until_nothing_fails(failures, FaultKind::kCopy, DiskFault::kNone);
}

TEST_P(TieredStoreFailureLoop, SurvivesAnyGrowthThatIsRefused) {
  FailureCase failures(*this, directory_.path());
  run_until_nothing_fails(failures, FaultKind::kCommit, DiskFault::kNone);
}

TEST_P(TieredStoreFailureLoop, SurvivesAnyDiskRequestThatGoesWrong) {
  FailureCase failures(*this, directory_.path());
  for (std::size_t fault = 1; fault < kNumDiskFaults; ++fault) {
    run_until_nothing_fails(failures, FaultKind::kDisk, static_cast<DiskFault>(fault));
  }
}

// The same store on real threads and a real disk.
TEST(TieredStoreThreads, PagesKeepTheirBytesOnTheCpu) {
  for (const int copy_threads : {1, 2}) {
    const TemporaryDirectory directory;
    const auto device = device::make_cpu_device();
    TestStore t(directory.path(), {.copy_threads = copy_threads}, *device);
    std::vector<PageId> pages = t.written_pages(kState, 8);
    for (int round = 0; round < 30; ++round) {
      for (const Tier tier : {Tier::kHost, Tier::kDisk, Tier::kDevice}) {
        ASSERT_TRUE(t.store->migrate(std::span(pages).subspan(round % 3, 4), tier).has_value());
      }
      t.store->release(pages.back());
      pages.back() = t.written_pages(kState, 1)[0];
    }
    t.store->audit();
    t.store->synchronize();
    for (const PageId page : pages) EXPECT_TRUE(t.holds_its_bytes(page));
  }
}

}  // namespace
}  // namespace slackwater::storage
