#include "slackwater/storage/disk_tier.h"

#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/disk_page.h"
#include "testing/fault_disk_io.h"
#include "testing/page_oracle.h"
#include "testing/temporary_directory.h"

namespace slackwater::storage {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::int64_t kPayload = 1000;
constexpr Digest128 kLayout = {11, 12};

// Frames in memory at a multiple of a block.
class Frames {
 public:
  explicit Frames(std::size_t count) : count_(count) {
    void* const blocks = std::aligned_alloc(kSectorBytes, count * frame_bytes(kPayload));
    memory_ = std::shared_ptr<void>(blocks, std::free);
    std::memset(blocks, 0, count * frame_bytes(kPayload));
  }
  std::span<std::byte> frame(std::size_t i) const {
    return {static_cast<std::byte*>(memory_.get()) + i * frame_bytes(kPayload),
            frame_bytes(kPayload)};
  }
  std::span<std::byte> payload(std::size_t i) const {
    return frame(i).subspan(kFrameHeaderBytes, kPayload);
  }
  const std::shared_ptr<void>& memory() const { return memory_; }
  std::size_t size() const { return count_; }

 private:
  std::size_t count_;
  std::shared_ptr<void> memory_;
};

class DiskTierTest : public testing::Test {
 protected:
  DiskTierOptions options() {
    DiskTierOptions options;
    options.directory = directory_.path() / "pages";
    options.segment_bytes =
        static_cast<std::int64_t>(kSegmentHeaderBytes + 3 * frame_bytes(kPayload));
    options.direct = false;
    options.pause_after_timeout = pause_;
    options.warn = [this](std::string_view text) { warnings_.emplace_back(text); };
    return options;
  }

  Result<std::unique_ptr<DiskTier>> try_open(const Digest128& layout = kLayout) {
    const std::vector<std::int64_t> payloads = {kPayload};
    return DiskTier::open(options(), layout, payloads,
                          std::make_unique<FaultDiskIo>(
                              make_blocking_disk_io(), [this](std::int64_t, const IoRequest& r) {
                                return fault_ ? fault_(r) : DiskFault::kNone;
                              }));
  }
  std::unique_ptr<DiskTier> open(std::int32_t num_slots = 6, const Digest128& layout = kLayout) {
    auto tier = try_open(layout);
    EXPECT_TRUE(tier.has_value()) << tier.error().text();
    EXPECT_EQ((*tier)->grow(0, num_slots), std::max(num_slots, (*tier)->slots(0).capacity()));
    return *std::move(tier);
  }

  // One page with the contents of `key`, into a slot of its own.
  SlotId write(DiskTier& tier, std::uint64_t key, bool expect_done = true) {
    const SlotId slot = tier.allocate(0)->slot;
    write_to(tier, slot, key, expect_done);
    return slot;
  }
  void write_to(DiskTier& tier, SlotId slot, std::uint64_t key, bool expect_done = true) {
    const Frames frames(1);
    oracle_fill(frames.payload(0), key);
    FrameTransfer transfer{slot, {{key, 0}, 64, 0, 0}, frames.frame(0)};
    tier.seal(0, std::span(&transfer, 1));
    tier.write(0, std::span(&transfer, 1), frames.memory());
    EXPECT_EQ(transfer.is_done, expect_done);
  }
  // Whether the page of `key` is served from `slot`; if so its bytes are right.
  bool read(DiskTier& tier, SlotId slot, std::uint64_t key) {
    const Frames frames(1);
    FrameTransfer transfer{slot, {{key, 0}, 64, 0, 0}, frames.frame(0)};
    tier.read(0, std::span(&transfer, 1), frames.memory());
    tier.check(0, std::span(&transfer, 1));
    if (transfer.is_done) {
      EXPECT_TRUE(oracle_matches(frames.payload(0), key));
    }
    return transfer.is_done;
  }
  std::filesystem::path segment(int number) const {
    return directory_.path() / "pages" / ("pages-0-1000-0000" + std::to_string(number) + ".slk");
  }
  // Flips a bit of the page in a slot of the first segment.
  void damage(SlotId slot, std::size_t at) const {
    std::fstream file(segment(0), std::ios::in | std::ios::out | std::ios::binary);
    const auto place = static_cast<std::streamoff>(kSegmentHeaderBytes) +
                       slot.value() * static_cast<std::streamoff>(frame_bytes(kPayload)) +
                       static_cast<std::streamoff>(at);
    file.seekg(place);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(place);
    file.put(byte);
  }

  TemporaryDirectory directory_;
  std::function<DiskFault(const IoRequest&)> fault_;
  Nanoseconds pause_{0};
  std::vector<std::string> warnings_;
};

// Direct requests need whole sectors, and every frame has a header.
TEST(DiskFrameBytes, AreWholeSectorsWithRoomForTheHeader) {
  for (const std::int64_t payload : {1, 100, 4095, 4096, 36864, 1 << 20}) {
    const std::int64_t bytes = disk_frame_bytes(payload);
    EXPECT_EQ(bytes % 512, 0) << payload;
    EXPECT_GT(bytes, payload);
    EXPECT_LE(bytes, payload + 2 * 512) << payload;
  }
}

TEST_F(DiskTierTest, ServesWhatWasWritten) {
  const auto tier = open();
  std::vector<SlotId> slots;
  for (std::uint64_t key = 1; key <= 6; ++key) slots.push_back(write(*tier, key));
  EXPECT_FALSE(tier->allocate(0).has_value());
  for (std::uint64_t key = 1; key <= 6; ++key) EXPECT_TRUE(read(*tier, slots[key - 1], key));
  EXPECT_EQ(tier->stats().frames_written, 6);
  EXPECT_EQ(tier->stats().frames_read, 6);
  EXPECT_TRUE(std::filesystem::exists(segment(1))) << "three frames a segment";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(DiskTierTest, AnotherProcessFindsThePages) {
  {
    const auto tier = open();
    for (std::uint64_t key = 1; key <= 4; ++key) write(*tier, key);
  }
  const auto tier = open();
  EXPECT_EQ(tier->stats().frames_found, 4);
  EXPECT_EQ(tier->num_free(0), 6) << "found pages make room";
  for (std::uint64_t key = 1; key <= 4; ++key) {
    const auto slot = tier->adopt(0, {key, 0});
    ASSERT_TRUE(slot.has_value());
    EXPECT_TRUE(read(*tier, *slot, key));
    EXPECT_FALSE(tier->adopt(0, Digest128{key, 0}).has_value()) << "once";
  }
  EXPECT_FALSE(tier->adopt(0, Digest128{9, 0}).has_value());
  EXPECT_EQ(tier->num_free(0), 2);
  tier->check_invariants();
}

TEST_F(DiskTierTest, TheNewestOfSeveralFramesOfAPageIsFound) {
  SlotId newest;
  {
    const auto tier = open();
    const SlotId old = write(*tier, 7);
    newest = write(*tier, 7);
    tier->release(0, old);
  }
  const auto tier = open();
  EXPECT_EQ(tier->stats().frames_found, 1);
  EXPECT_EQ(tier->adopt(0, Digest128{7, 0}), newest);
}

TEST_F(DiskTierTest, WhatNobodyAsksForIsGivenUpOldestFirst) {
  {
    const auto tier = open();
    for (std::uint64_t key = 1; key <= 6; ++key) write(*tier, key);
  }
  const auto tier = open();
  EXPECT_EQ(tier->num_free(0), 6);
  write(*tier, 21);
  write(*tier, 22);
  EXPECT_FALSE(tier->adopt(0, Digest128{1, 0}).has_value());
  EXPECT_FALSE(tier->adopt(0, Digest128{2, 0}).has_value());
  EXPECT_TRUE(tier->adopt(0, Digest128{3, 0}).has_value());
  tier->check_invariants();
}

TEST_F(DiskTierTest, DamageIsAMissAndIsErased) {
  SlotId slot;
  {
    const auto tier = open();
    slot = write(*tier, 1);
    write(*tier, 2);
    damage(slot, kFrameHeaderBytes + 500);
    EXPECT_FALSE(read(*tier, slot, 1));
    EXPECT_EQ(tier->stats().read_mismatches, 1);
    EXPECT_FALSE(read(*tier, slot, 1)) << "it stays a miss";
  }
  ASSERT_THAT(warnings_, SizeIs(1)) << "one warning for one kind of trouble";
  EXPECT_THAT(warnings_[0], HasSubstr("damaged"));
  const auto tier = open();
  EXPECT_EQ(tier->stats().frames_found, 1) << "the damaged one is not found again";
}

TEST_F(DiskTierTest, AForeignPageIsAMiss) {
  const auto tier = open();
  const SlotId slot = write(*tier, 1);
  EXPECT_FALSE(read(*tier, slot, 2)) << "right checksum, wrong owner";
  EXPECT_EQ(tier->stats().read_mismatches, 1);
}

TEST_F(DiskTierTest, ATransientErrorIsAMissThatDeletesNothing) {
  const auto tier = open();
  const SlotId slot = write(*tier, 1);
  for (const DiskFault fault : {DiskFault::kError, DiskFault::kStall}) {
    fault_ = [&](const IoRequest&) { return fault; };
    EXPECT_FALSE(read(*tier, slot, 1));
    fault_ = nullptr;
    EXPECT_TRUE(read(*tier, slot, 1));
  }
  EXPECT_EQ(tier->stats().read_failures, 2);
  EXPECT_EQ(tier->stats().timeouts, 1);
  EXPECT_THAT(warnings_, SizeIs(2));
}

TEST_F(DiskTierTest, ADiskThatDoesNotAnswerIsLeftAloneForAWhile) {
  pause_ = std::chrono::hours(1);
  const auto tier = open();
  const SlotId slot = write(*tier, 1);
  int num_requests = 0;
  fault_ = [&](const IoRequest&) { return ++num_requests, DiskFault::kStall; };
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(read(*tier, slot, 1));
  EXPECT_EQ(num_requests, 1) << "the others do not wait for it";
  EXPECT_EQ(tier->stats().timeouts, 1);
  EXPECT_EQ(tier->stats().read_failures, 5);
}

TEST_F(DiskTierTest, FramesOfEqualSequenceAreTwoPages) {
  // A segment of a sister directory, with the same layout and sequences of its own.
  {
    const auto tier = open();
    for (std::uint64_t key = 1; key <= 3; ++key) write(*tier, key);
  }
  const std::filesystem::path kept = directory_.path() / "kept";
  std::filesystem::copy_file(segment(0), kept);
  std::filesystem::remove_all(directory_.path() / "pages");
  {
    const auto tier = open();
    for (std::uint64_t key = 11; key <= 16; ++key) write(*tier, key);
  }
  std::filesystem::copy_file(kept, segment(1), std::filesystem::copy_options::overwrite_existing);
  const auto tier = open();
  EXPECT_EQ(tier->stats().frames_found, 6);
  tier->check_invariants();
  for (std::uint64_t key = 21; key <= 26; ++key) write(*tier, key);
  EXPECT_FALSE(tier->allocate(0).has_value());
  tier->check_invariants();
}

TEST_F(DiskTierTest, ASlotGivenBackBeforeItsWriteFailedIsNotHandedOut) {
  const auto tier = open(1);
  fault_ = [](const IoRequest&) { return DiskFault::kError; };
  const SlotId slot = tier->allocate(0)->slot;
  tier->release(0, slot);
  write_to(*tier, slot, 1, false);
  EXPECT_EQ(tier->num_free(0), 0) << "it is not promised";
  EXPECT_FALSE(tier->allocate(0).has_value());
  EXPECT_EQ(tier->stats().retired_frames, 1);
  EXPECT_EQ(tier->take_retired(0).slot, slot) << "nor refused to whom it was promised before";
  tier->check_invariants();
}

TEST_F(DiskTierTest, AFrameOfAnotherGenerationIsAMiss) {
  const auto tier = open();
  const SlotId slot = write(*tier, 1);
  const Frames frames(1);
  FrameTransfer transfer{slot, {{1, 0}, 64, 1, 0}, frames.frame(0)};
  tier->read(0, std::span(&transfer, 1), frames.memory());
  EXPECT_TRUE(transfer.is_done) << "the bytes are there";
  tier->check(0, std::span(&transfer, 1));
  EXPECT_FALSE(transfer.is_done);
}

// A large frame goes in pieces: a time-out of one is a time-out of all of it, whatever the others
// say, because the memory is not ours yet.
TEST_F(DiskTierTest, ATimeoutOfOnePieceIsTheLastWord) {
  constexpr std::int64_t kLarge = 5 << 20;
  const std::vector<std::int64_t> payloads = {kLarge};
  DiskTierOptions large = options();
  large.segment_bytes = 16 << 20;
  int request = 0;
  int stalled = -1;
  auto tier = DiskTier::open(
      large, kLayout, payloads,
      std::make_unique<FaultDiskIo>(make_blocking_disk_io(), [&](std::int64_t, const IoRequest&) {
        const int number = request++;
        return number == stalled ? DiskFault::kStall
               : stalled >= 0    ? DiskFault::kError
                                 : DiskFault::kNone;
      }));
  ASSERT_TRUE(tier.has_value());
  ASSERT_EQ((*tier)->grow(0, 1), 1);
  const SlotId slot = (*tier)->allocate(0)->slot;
  const auto bytes = static_cast<std::size_t>((*tier)->frame_size(0));
  const std::shared_ptr<void> memory(std::aligned_alloc(512, bytes), std::free);
  FrameTransfer frame{slot, {{1, 0}, 0, 0, 0}, {static_cast<std::byte*>(memory.get()), bytes}};
  request = 0;
  EXPECT_TRUE((*tier)->read(0, std::span(&frame, 1), memory));
  const int num_pieces = request;
  ASSERT_GT(num_pieces, 2);
  for (int piece = 0; piece < num_pieces; ++piece) {
    request = 0;
    stalled = piece;
    EXPECT_FALSE((*tier)->read(0, std::span(&frame, 1), memory)) << "piece " << piece;
    EXPECT_FALSE(frame.is_done);
  }
}

TEST_F(DiskTierTest, PagesOfAnotherLayoutOrSizeAreRemoved) {
  {
    const auto tier = open();
    write(*tier, 1);
  }
  {
    const auto tier = open(6, {99, 99});
    EXPECT_EQ(tier->stats().frames_found, 0);
  }
  const auto tier = open();
  EXPECT_EQ(tier->stats().frames_found, 0);
}

TEST_F(DiskTierTest, AFileCutShortCostsItsPagesOnly) {
  {
    const auto tier = open();
    for (std::uint64_t key = 1; key <= 6; ++key) write(*tier, key);
  }
  std::filesystem::resize_file(segment(1), kSegmentHeaderBytes + frame_bytes(kPayload) + 700);
  const auto tier = open();
  for (std::uint64_t key = 1; key <= 6; ++key) {
    const auto slot = tier->adopt(0, {key, 0});
    EXPECT_EQ(slot.has_value() && read(*tier, *slot, key), key <= 4) << key;
  }
}

TEST_F(DiskTierTest, OneProcessAtATime) {
  const auto tier = open();
  const auto second = try_open();
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(second.error().text(), HasSubstr("another process uses the directory"));
}

TEST_F(DiskTierTest, ADirectoryThatCannotBeUsedIsNamed) {
  std::ofstream(directory_.path() / "pages") << "a file";
  const auto tier = try_open();
  ASSERT_FALSE(tier.has_value());
  EXPECT_EQ(tier.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(tier.error().text(), HasSubstr((directory_.path() / "pages").string()));
}

TEST_F(DiskTierTest, ASlotThatTheDiskRefusesGoesOutOfService) {
  const auto tier = open();
  fault_ = [](const IoRequest& r) {
    return r.kind == IoRequest::Kind::kWrite ? DiskFault::kNoSpace : DiskFault::kNone;
  };
  const SlotId refused = write(*tier, 1, false);
  tier->release(0, refused);
  fault_ = nullptr;
  EXPECT_EQ(tier->stats().retired_frames, 1);
  EXPECT_EQ(tier->num_free(0), 5) << "a smaller tier, and no error";
  for (std::uint64_t key = 2; key <= 6; ++key) EXPECT_NE(write(*tier, key), refused);
  EXPECT_FALSE(tier->allocate(0).has_value());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("No space left"));
}

TEST_F(DiskTierTest, AFullDiskMakesASmallerTierAndOneWarning) {
  // A limit on the size of a file stands for a disk that is full.
  std::signal(SIGXFSZ, SIG_IGN);
  auto tier = try_open();
  ASSERT_TRUE(tier.has_value());
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight = {8192, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &tight);
  EXPECT_EQ((*tier)->grow(0, 6), 0);
  EXPECT_EQ((*tier)->grow(0, 6), 0);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE((*tier)->allocate(0).has_value());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("no room"));
  EXPECT_EQ((*tier)->grow(0, 6), 6) << "it can grow once there is room";
}

TEST_F(DiskTierTest, AShrinkMovesPagesAndRemovesFiles) {
  const auto tier = open();
  std::vector<SlotId> slots;
  for (std::uint64_t key = 1; key <= 6; ++key) slots.push_back(write(*tier, key));
  for (const int i : {0, 1, 2, 5}) tier->release(0, slots[static_cast<std::size_t>(i)]);
  std::vector<SlotId> moved;
  ASSERT_TRUE(tier->shrink(0, 2,
                           [&](SlotId from, const SlotGrant& to) {
                             EXPECT_TRUE(read(*tier, from, from == slots[3] ? 4u : 5u));
                             write_to(*tier, to.slot, from == slots[3] ? 4u : 5u);
                             moved.push_back(to.slot);
                           })
                  .has_value());
  ASSERT_THAT(moved, SizeIs(2));
  EXPECT_TRUE(read(*tier, moved[0], 4));
  EXPECT_TRUE(read(*tier, moved[1], 5));
  EXPECT_FALSE(std::filesystem::exists(segment(1)));
  EXPECT_EQ(tier->slots(0).capacity(), 2);
  const auto refused = tier->shrink(0, 1, [](SlotId, const SlotGrant&) {});
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  tier->check_invariants();
}

TEST_F(DiskTierTest, AShrinkGivesUpWhatWasFoundBeforeItRefuses) {
  {
    const auto tier = open();
    for (std::uint64_t key = 1; key <= 6; ++key) write(*tier, key);
  }
  const auto tier = open();
  const auto kept = tier->adopt(0, {2, 0});
  ASSERT_TRUE(kept.has_value());
  ASSERT_TRUE(
      tier->shrink(0, 2,
                   [](SlotId, const SlotGrant&) { ADD_FAILURE() << "the page lies below the end"; })
          .has_value());
  EXPECT_TRUE(read(*tier, *kept, 2));
  tier->check_invariants();
}

}  // namespace
}  // namespace slackwater::storage
