#include "storage/disk_page.h"

#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/page_oracle.h"
#include "testing/seed.h"

namespace slackwater::storage {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPayload = 5000;

FrameHeader header() { return {{1, 2}, {3, 4}, -64, 5, 6, 7}; }

std::vector<std::byte> sealed_frame() {
  std::vector<std::byte> frame(frame_bytes(kPayload), std::byte{0xAA});
  for (std::size_t i = 0; i < kPayload; ++i) {
    frame[kFrameHeaderBytes + i] = static_cast<std::byte>(oracle_word(9, i));
  }
  seal_frame(header(), kPayload, frame);
  return frame;
}

TEST(DiskPage, FramesAreWholeSectors) {
  EXPECT_EQ(frame_bytes(1), 1024u);
  EXPECT_EQ(frame_bytes(512), 1024u);
  EXPECT_EQ(frame_bytes(513), 1536u);
  EXPECT_EQ(frame_bytes(36'864), 37'376u);
}

TEST(DiskPage, AFrameSaysWhatWasSealedIntoIt) {
  const std::vector<std::byte> frame = sealed_frame();
  for (const auto& read : {check_frame(frame, kPayload), read_frame_header(frame, kPayload)}) {
    ASSERT_TRUE(read.has_value()) << read.error().text();
    EXPECT_EQ(read->layout, header().layout);
    EXPECT_EQ(read->certificate, header().certificate);
    EXPECT_EQ(read->position, -64);
    EXPECT_EQ(read->generation, 5u);
    EXPECT_EQ(read->layer_group, 6u);
    EXPECT_EQ(read->sequence, 7u);
  }
}

// The bytes of docs/formats/disk_page.md, spelt out.
TEST(DiskPage, TheFormatIsTheOneThatIsWrittenDown) {
  const std::vector<std::byte> frame = sealed_frame();
  const auto text = [&](std::size_t at, std::size_t size) {
    return std::string(reinterpret_cast<const char*>(frame.data() + at), size);
  };
  EXPECT_EQ(text(0, 8), "SLKWPAG1");
  EXPECT_EQ(text(8, 2), std::string("\x01\0", 2));
  EXPECT_EQ(text(24, 1), "\x03");
  EXPECT_EQ(text(40, 8), "\xC0\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
  EXPECT_EQ(text(48, 1), "\x05");
  EXPECT_EQ(text(52, 1), "\x06");
  EXPECT_EQ(text(56, 1), "\x07");
  EXPECT_EQ(text(64, 2), "\x88\x13");
  EXPECT_EQ(text(104, 4), std::string(4, '\0'));
  std::vector<std::byte> block(kSegmentHeaderBytes, std::byte{0xAA});
  write_segment_header({5000, 12, {1, 2}}, block);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(block.data()), 10), "SLKWSEG1\x88\x13");
}

TEST(DiskPage, EveryFlippedBitOfHeaderOrPayloadIsNoticed) {
  std::vector<std::byte> frame = sealed_frame();
  std::mt19937_64 random(test_seed());
  const auto flips = [&](std::size_t byte) {
    frame[byte] ^= std::byte(1u << (random() % 8));
    const bool is_noticed = !check_frame(frame, kPayload).has_value();
    frame = sealed_frame();
    return is_noticed;
  };
  for (std::size_t byte = 0; byte < 104; ++byte) ASSERT_TRUE(flips(byte)) << "header byte " << byte;
  for (int i = 0; i < 200; ++i) {
    const std::size_t byte = kFrameHeaderBytes + random() % kPayload;
    ASSERT_TRUE(flips(byte)) << "payload byte " << byte - kFrameHeaderBytes;
  }
}

TEST(DiskPage, ATornFrameIsNoticedWhereverItIsTorn) {
  const std::vector<std::byte> before = sealed_frame();
  std::vector<std::byte> after(before.size(), std::byte{0x55});
  FrameHeader other = header();
  other.certificate = {30, 40};
  seal_frame(other, kPayload, after);
  for (std::size_t cut = 1; cut < kFrameHeaderBytes + kPayload; cut += 97) {
    std::vector<std::byte> torn = before;
    std::copy(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(cut), torn.begin());
    const auto read = check_frame(torn, kPayload);
    // Cut behind all that differs, the frame is one or the other.
    if (read.has_value()) {
      ASSERT_TRUE(read->certificate == header().certificate ? torn == before : torn == after);
    }
  }
}

TEST(DiskPage, TellsWhatIsWrong) {
  std::vector<std::byte> frame = sealed_frame();
  EXPECT_THAT(read_frame_header(frame, kPayload + 1).error().text(),
              HasSubstr("has 5000 bytes, 5001 are expected"));
  frame[kFrameHeaderBytes] ^= std::byte{1};
  EXPECT_THAT(check_frame(frame, kPayload).error().text(),
              HasSubstr("checksum of the page's 5000 bytes"));
  frame[30] ^= std::byte{1};
  EXPECT_THAT(check_frame(frame, kPayload).error().text(),
              HasSubstr("checksum of the page's header"));
  frame[0] = std::byte{0};
  EXPECT_THAT(check_frame(frame, kPayload).error().text(),
              HasSubstr("does not begin with SLKWPAG1"));
  std::vector<std::byte> block(kSegmentHeaderBytes);
  EXPECT_THAT(read_segment_header(block).error().text(), HasSubstr("SLKWSEG1"));
  write_segment_header({5000, 12, {1, 2}}, block);
  EXPECT_TRUE(read_segment_header(block).has_value());
  block[16] ^= std::byte{1};
  EXPECT_THAT(read_segment_header(block).error().text(), HasSubstr("checksum"));
  EXPECT_THAT(read_segment_header(std::span(block).first(100)).error().text(),
              HasSubstr("100 bytes"));
}

}  // namespace
}  // namespace slackwater::storage
