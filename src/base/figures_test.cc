#include "slackwater/base/figures.h"

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(Figures, BytesAreInTheLargestUnitThatFits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(36 << 10), "36 KiB");
  EXPECT_EQ(bytes_text(3 << 19), "1.5 MiB");
  EXPECT_EQ(bytes_text(std::int64_t{1} << 62), "4096 PiB");
}

TEST(Figures, LittleIsNotNoneAndNearlyAllIsNotAll) {
  EXPECT_EQ(share_text(0, 1000), "0 %");
  EXPECT_EQ(share_text(1, 1000), "<1 %");
  EXPECT_EQ(share_text(370, 1000), "37 %");
  EXPECT_EQ(share_text(999, 1000), ">99 %");
  EXPECT_EQ(share_text(1000, 1000), "100 %");
  EXPECT_EQ(share_text(0, 0), "-");
}

TEST(Figures, OneIsSingular) {
  EXPECT_EQ(count_text(0, "page"), "0 pages");
  EXPECT_EQ(count_text(1, "page"), "1 page");
}

}  // namespace
}  // namespace slackwater
