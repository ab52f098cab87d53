// What storage says of itself.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/tiered_store_test_support.h"

namespace slackwater::storage {
namespace {

using ::testing::HasSubstr;

TEST(Describe, SlotsTellHowManyAreOccupied) {
  SlotAllocator slots(8);
  const SlotGrant first = *slots.allocate();
  EXPECT_TRUE(slots.allocate().has_value());
  slots.release(first.slot);
  EXPECT_EQ(slots.describe(), "1 of 8 slots occupied (12 %), 7 free, 2 at most so far");
  slots.begin_shrink(1);
  EXPECT_THAT(slots.describe(), HasSubstr("; shrinking to 1, 1 to vacate"));
}

TEST(Describe, AStoreTellsWhereItsPagesAreAndWhatHasMoved) {
  const TemporaryDirectory directory;
  TestStore t(directory.path(), {});
  const std::vector<PageId> pages = t.written_pages(kState, 3);
  const std::vector<PageId> others = t.written_pages(kAttention, 2);
  ASSERT_TRUE(t.store->migrate(pages, Tier::kHost).has_value());
  ASSERT_TRUE(t.store->migrate(std::span(others).first(1), Tier::kDisk).has_value());
  t.store->synchronize();
  const std::string text = t.store->describe();
  EXPECT_THAT(text, HasSubstr("host:   quota 64 KiB, 3 pages\n"));
  EXPECT_THAT(text, HasSubstr("moved:  4 pages,"));
  EXPECT_THAT(text, HasSubstr("  device to host   3 pages\n"));
  EXPECT_THAT(text, HasSubstr("  device to disk   1 page\n"));
  EXPECT_THAT(text, HasSubstr("certificates that did not match: 0\n"));
}

}  // namespace
}  // namespace slackwater::storage
