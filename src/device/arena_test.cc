#include "slackwater/device/arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "slackwater/device/cpu_device.h"

namespace slackwater::device {
namespace {

constexpr std::size_t kGrain = std::size_t{64} << 10;

class ArenaTest : public testing::Test {
 protected:
  std::unique_ptr<Arena> reserve(std::size_t bytes, std::size_t grain = kGrain) {
    auto arena = device_->reserve_arena(MemoryKind::kDevice, bytes, grain);
    EXPECT_TRUE(arena.has_value()) << arena.error().text();
    return *std::move(arena);
  }
  std::size_t committed() const { return device_->usage(MemoryKind::kDevice).committed_bytes; }

  std::unique_ptr<Device> device_ = make_cpu_device({.device_bytes = 16 * kGrain});
};

bool all_are(const std::byte* first, std::size_t bytes, int value) {
  return std::all_of(first, first + bytes, [=](std::byte b) { return b == std::byte(value); });
}

TEST_F(ArenaTest, GrowsByGrainsAndNeverMoves) {
  const auto arena = reserve(10 * kGrain + 1);
  EXPECT_EQ(arena->reserved_bytes(), 11 * kGrain);
  EXPECT_EQ(arena->committed_bytes(), 0u);
  std::byte* const base = arena->base();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(base) % kGrain, 0u);
  for (const std::size_t bytes : {std::size_t{1}, kGrain, kGrain + 1, 11 * kGrain}) {
    ASSERT_TRUE(arena->resize(bytes).has_value());
    EXPECT_EQ(arena->committed_bytes(), (bytes + kGrain - 1) / kGrain * kGrain);
    EXPECT_EQ(arena->base(), base);
    EXPECT_EQ(committed(), arena->committed_bytes());
  }
}

TEST_F(ArenaTest, KeepsWhatStaysAndForgetsWhatGoes) {
  const auto arena = reserve(4 * kGrain);
  ASSERT_TRUE(arena->resize(4 * kGrain).has_value());
  EXPECT_TRUE(all_are(arena->base(), 4 * kGrain, 0)) << "fresh bytes are zero";
  std::memset(arena->base(), 7, 4 * kGrain);
  ASSERT_TRUE(arena->resize(2 * kGrain).has_value());
  ASSERT_TRUE(arena->resize(3 * kGrain).has_value());
  EXPECT_TRUE(all_are(arena->base(), 2 * kGrain, 7));
  EXPECT_TRUE(all_are(arena->base() + 2 * kGrain, kGrain, 0)) << "nothing of before comes back";
}

TEST_F(ArenaTest, RefusesBeyondTheBudgetAndChangesNothing) {
  const auto first = reserve(100 * kGrain);
  const auto second = reserve(100 * kGrain);
  ASSERT_TRUE(first->resize(10 * kGrain).has_value());
  const auto refused = second->resize(7 * kGrain);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.error().text(),
            "need 458752 bytes of device memory, 655360 of a budget of 1048576 are committed");
  EXPECT_EQ(second->committed_bytes(), 0u);
  EXPECT_EQ(committed(), 10 * kGrain);
  EXPECT_TRUE(second->resize(6 * kGrain).has_value());
}

TEST_F(ArenaTest, ALoweredBudgetRefusesGrowthUntilEnoughIsGivenBack) {
  const auto arena = reserve(16 * kGrain);
  ASSERT_TRUE(arena->resize(8 * kGrain).has_value());
  device_->set_budget(MemoryKind::kDevice, 4 * kGrain);
  EXPECT_EQ(arena->committed_bytes(), 8 * kGrain) << "what is committed stays";
  EXPECT_FALSE(arena->resize(9 * kGrain).has_value());
  ASSERT_TRUE(arena->resize(3 * kGrain).has_value());
  EXPECT_FALSE(arena->resize(5 * kGrain).has_value());
  EXPECT_TRUE(arena->resize(4 * kGrain).has_value());
}

TEST_F(ArenaTest, GivesEverythingBack) {
  {
    const auto arena = reserve(4 * kGrain);
    ASSERT_TRUE(arena->resize(4 * kGrain).has_value());
  }
  EXPECT_EQ(committed(), 0u);
}

TEST_F(ArenaTest, RefusesImpossibleSizes) {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  const auto code_of = [&](std::size_t bytes, std::size_t grain) {
    const auto arena = device_->reserve_arena(MemoryKind::kDevice, bytes, grain);
    return arena.has_value() ? "granted" : std::string(to_string(arena.error().code()));
  };
  EXPECT_EQ(code_of(0, kGrain), "InvalidArgument");
  EXPECT_EQ(code_of(kGrain, kGrain + 4096), "InvalidArgument");
  EXPECT_EQ(code_of(kGrain, 64), "InvalidArgument");
  EXPECT_EQ(code_of(kMax, kGrain), "InvalidArgument");
  EXPECT_EQ(code_of(kMax / 2, kGrain), "ResourceExhausted");
  const auto arena = reserve(kGrain);
  EXPECT_EQ(arena->resize(kGrain + 1).error().code(), ErrorCode::kOutOfRange);
}

TEST_F(ArenaTest, KindsHaveBudgetsOfTheirOwn) {
  device_->set_budget(MemoryKind::kPinnedHost, kGrain);
  auto host = device_->reserve_arena(MemoryKind::kPinnedHost, 4 * kGrain, kGrain);
  ASSERT_TRUE(host.has_value());
  const auto hot = reserve(16 * kGrain);
  ASSERT_TRUE(hot->resize(16 * kGrain).has_value());
  EXPECT_TRUE((*host)->resize(kGrain).has_value());
  EXPECT_FALSE((*host)->resize(2 * kGrain).has_value());
  EXPECT_EQ(device_->usage(MemoryKind::kPinnedHost).committed_bytes, kGrain);
  EXPECT_EQ(device_->usage(MemoryKind::kPinnedHost).budget_bytes, kGrain);
}

using ArenaDeathTest = ArenaTest;

TEST_F(ArenaDeathTest, BytesPastTheCommittedPartCannotBeTouched) {
  const auto arena = reserve(4 * kGrain);
  ASSERT_TRUE(arena->resize(2 * kGrain).has_value());
  std::byte* const gone = arena->base() + kGrain;
  *gone = std::byte{1};
  ASSERT_TRUE(arena->resize(kGrain).has_value());
  EXPECT_DEATH(*static_cast<volatile std::byte*>(gone) = std::byte{2}, "");
}

}  // namespace
}  // namespace slackwater::device
