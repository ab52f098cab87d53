#include "slackwater/engine/byte_codec.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slackwater::engine {
namespace {

using testing::HasSubstr;

TEST(ByteCodec, ReadsWhatWasWritten) {
  ByteWriter to;
  to.u8(200);
  to.u32(0xFEDCBA98u);
  to.u64(0x0123456789ABCDEFu);
  to.i32(-7);
  to.i64(std::numeric_limits<std::int64_t>::min());
  to.boolean(true);
  to.f32(-0.0f);
  to.f64(std::numeric_limits<double>::infinity());
  to.digest({1, 2});
  to.text("slack water");
  to.text("");
  const std::vector<std::byte> blob = {std::byte{5}, std::byte{0}, std::byte{255}};
  to.blob(blob);
  to.count(3);
  to.bytes(blob);
  const std::vector<std::byte> bytes = to.take();
  ByteReader from(bytes);
  EXPECT_EQ(from.u8(), 200);
  EXPECT_EQ(from.u32(), 0xFEDCBA98u);
  EXPECT_EQ(from.u64(), 0x0123456789ABCDEFu);
  EXPECT_EQ(from.i32(), -7);
  EXPECT_EQ(from.i64(), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(from.boolean());
  EXPECT_TRUE(std::signbit(from.f32()));
  EXPECT_EQ(from.f64(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(from.digest(), (Digest128{1, 2}));
  EXPECT_EQ(from.text(), "slack water");
  EXPECT_EQ(from.text(), "");
  EXPECT_EQ(from.blob(), blob);
  EXPECT_EQ(from.count(1), 3u);
  EXPECT_FALSE(from.end().has_value()) << "three bytes are left over";
  EXPECT_EQ(from.bytes(3).size(), 3u);
  EXPECT_TRUE(from.end().has_value());
}

TEST(ByteCodec, IntegersAreLittleEndian) {
  ByteWriter to;
  to.u32(0x04030201u);
  to.digest({0x11, 0x22});
  ASSERT_EQ(to.size(), 20u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(std::to_integer<int>(to.view()[i]), i + 1);
  EXPECT_EQ(std::to_integer<int>(to.view()[4]), 0x11);
  EXPECT_EQ(std::to_integer<int>(to.view()[12]), 0x22);
}

TEST(ByteCodec, NothingIsReadPastTheEnd) {
  ByteWriter to;
  to.u32(1);
  for (std::size_t cut = 0; cut < 4; ++cut) {
    ByteReader from(to.view().first(cut));
    EXPECT_EQ(from.u32(), 0u);
    const Result<void> status = from.status();
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code(), ErrorCode::kDataLoss);
    EXPECT_THAT(status.error().text(),
                HasSubstr(fmt::format("offset 0: 4 bytes are wanted, {} are left", cut)));
    EXPECT_EQ(from.u8(), 0) << "a fault stays";
    EXPECT_EQ(from.offset(), 0u);
  }
}

TEST(ByteCodec, NoNumberIsBelievedThatCannotBe) {
  ByteWriter to;
  to.u64(std::numeric_limits<std::uint64_t>::max());
  to.u64(0);
  ByteReader counts(to.view());
  EXPECT_EQ(counts.count(2), 0u);
  EXPECT_THAT(counts.status().error().text(), HasSubstr("items of 2 bytes or more"));
  ByteReader texts(to.view());
  EXPECT_EQ(texts.text(), "");
  EXPECT_TRUE(texts.has_failed());
  ByteReader blobs(to.view());
  EXPECT_TRUE(blobs.blob().empty());
  EXPECT_TRUE(blobs.has_failed());
  ByteWriter two;
  two.u8(2);
  ByteReader booleans(two.view());
  EXPECT_FALSE(booleans.boolean() && !booleans.has_failed());
  EXPECT_THAT(booleans.status().error().text(), HasSubstr("2 where 0 or 1 is expected"));
  booleans.fail("another");
  EXPECT_THAT(booleans.status().error().text(), testing::Not(HasSubstr("another")));
}

}  // namespace
}  // namespace slackwater::engine
