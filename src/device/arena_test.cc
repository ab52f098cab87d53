#include "slackwater/device/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

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

// What the last grains of one arena held is found in another one: no copy, and nothing cleared.
TEST_F(ArenaTest, MemoryGoesFromOneArenaToAnother) {
  const auto loser = reserve(8 * kGrain);
  const auto gainer = reserve(8 * kGrain);
  ASSERT_TRUE(loser->resize(8 * kGrain).has_value());
  ASSERT_TRUE(gainer->resize(2 * kGrain).has_value());
  std::memset(loser->base(), 7, 8 * kGrain);
  std::memset(gainer->base(), 8, 2 * kGrain);
  auto handover = device_->make_handover(MemoryKind::kDevice);
  ASSERT_TRUE(loser->resize(3 * kGrain, handover.get()).has_value());
  EXPECT_EQ(handover->kept_bytes(), 5 * kGrain);
  EXPECT_EQ(committed(), 10 * kGrain) << "what is kept is not free";
  ASSERT_TRUE(gainer->resize(6 * kGrain, handover.get()).has_value());
  EXPECT_EQ(handover->kept_bytes(), kGrain);
  EXPECT_EQ(committed(), 10 * kGrain);
  EXPECT_EQ(gainer->committed_bytes(), 6 * kGrain);
  EXPECT_TRUE(all_are(loser->base(), 3 * kGrain, 7));
  EXPECT_TRUE(all_are(gainer->base(), 2 * kGrain, 8));
  EXPECT_TRUE(all_are(gainer->base() + 2 * kGrain, 4 * kGrain, 7)) << "left over, not cleared";
  handover.reset();
  EXPECT_EQ(committed(), 9 * kGrain) << "what nobody took";
  ASSERT_TRUE(loser->resize(4 * kGrain).has_value());
  EXPECT_TRUE(all_are(loser->base() + 3 * kGrain, kGrain, 0)) << "without a handover it is fresh";
}

// Grains of several origins are areas of their own for the system, which moves one at a time.
TEST_F(ArenaTest, HandsOnWhatItWasHanded) {
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int i = 0; i < 3; ++i) arenas.push_back(reserve(16 * kGrain));
  std::vector<int> contents[3];  // [arenas][grains]
  int next = 1;
  const auto resize = [&](std::size_t a, std::size_t grains, Handover* handover) {
    ASSERT_TRUE(arenas[a]->resize(grains * kGrain, handover).has_value());
    for (std::size_t g = 0; g < std::min(grains, contents[a].size()); ++g) {
      ASSERT_TRUE(all_are(arenas[a]->base() + g * kGrain, kGrain, contents[a][g])) << a << ' ' << g;
    }
    for (std::size_t g = contents[a].size(); g < grains; ++g) {
      std::memset(arenas[a]->base() + g * kGrain, next, kGrain);
      contents[a].push_back(next++);
    }
    contents[a].resize(grains);
    next %= 200;
  };
  for (std::size_t a = 0; a < 3; ++a) resize(a, 5, nullptr);
  for (std::size_t round = 0; round < 100; ++round) {
    const auto handover = device_->make_handover(MemoryKind::kDevice);
    const std::size_t loser = round % 3;
    const std::size_t gainer = (round + 1 + round / 3 % 2) % 3;
    const std::size_t left = contents[loser].size() * (round % 5) / 7;
    const std::size_t moved = contents[loser].size() - left;
    resize(loser, left, handover.get());
    ASSERT_EQ(handover->kept_bytes(), moved * kGrain) << "round " << round;
    resize(gainer, contents[gainer].size() + moved, handover.get());
    ASSERT_EQ(handover->kept_bytes(), 0u);
    ASSERT_EQ(committed(), 15 * kGrain);
  }
}

TEST_F(ArenaTest, AGainerTakesWhatIsKeptAndTheRestFromTheSystem) {
  const auto loser = reserve(16 * kGrain);
  const auto gainer = reserve(16 * kGrain);
  ASSERT_TRUE(loser->resize(12 * kGrain).has_value());
  std::memset(loser->base(), 7, 12 * kGrain);
  const auto handover = device_->make_handover(MemoryKind::kDevice);
  ASSERT_TRUE(loser->resize(10 * kGrain, handover.get()).has_value());
  ASSERT_TRUE(gainer->resize(6 * kGrain, handover.get()).has_value()) << "16 of 16 grains";
  EXPECT_TRUE(all_are(gainer->base(), 2 * kGrain, 7));
  EXPECT_TRUE(all_are(gainer->base() + 2 * kGrain, 4 * kGrain, 0));
  EXPECT_EQ(committed(), 16 * kGrain);
}

TEST_F(ArenaTest, ARefusedGrowthLeavesWhatWasKept) {
  const auto loser = reserve(16 * kGrain);
  const auto gainer = reserve(16 * kGrain);
  ASSERT_TRUE(loser->resize(12 * kGrain).has_value());
  ASSERT_TRUE(gainer->resize(kGrain).has_value());
  std::memset(loser->base(), 7, 12 * kGrain);
  std::memset(gainer->base(), 8, kGrain);
  const auto handover = device_->make_handover(MemoryKind::kDevice);
  ASSERT_TRUE(loser->resize(8 * kGrain, handover.get()).has_value());
  const auto refused = gainer->resize(9 * kGrain, handover.get());
  ASSERT_FALSE(refused.has_value()) << "8 grains, 4 are kept, 3 of the budget are left";
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(gainer->committed_bytes(), kGrain);
  EXPECT_EQ(handover->kept_bytes(), 4 * kGrain);
  EXPECT_EQ(committed(), 13 * kGrain);
  EXPECT_TRUE(all_are(loser->base(), 8 * kGrain, 7));
  EXPECT_TRUE(all_are(gainer->base(), kGrain, 8));
  ASSERT_TRUE(loser->resize(12 * kGrain, handover.get()).has_value()) << "back where it was";
  EXPECT_EQ(handover->kept_bytes(), 0u);
  EXPECT_TRUE(all_are(loser->base(), 12 * kGrain, 7));
}

TEST_F(ArenaTest, AnArenaMayGoBeforeWhatItLeft) {
  const auto handover = device_->make_handover(MemoryKind::kDevice);
  {
    const auto loser = reserve(4 * kGrain);
    ASSERT_TRUE(loser->resize(4 * kGrain).has_value());
    std::memset(loser->base(), 7, 4 * kGrain);
    ASSERT_TRUE(loser->resize(kGrain, handover.get()).has_value());
  }
  EXPECT_EQ(committed(), 3 * kGrain);
  const auto gainer = reserve(4 * kGrain);
  ASSERT_TRUE(gainer->resize(3 * kGrain, handover.get()).has_value());
  EXPECT_TRUE(all_are(gainer->base(), 3 * kGrain, 7));
}

#if defined(__linux__)

// From now on this thread is not let move mappings. False where that cannot be arranged.
bool refuse_mremap() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mremap, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(ArenaTest, WhatCannotBeKeptGoesBackAtOnce) {
  const auto loser = reserve(8 * kGrain);
  ASSERT_TRUE(loser->resize(4 * kGrain).has_value());
  std::memset(loser->base(), 7, 4 * kGrain);
  const auto handover = device_->make_handover(MemoryKind::kDevice);
  bool is_refused = false;
  std::thread([&] {
    is_refused = refuse_mremap();
    if (is_refused) static_cast<void>(loser->resize(kGrain, handover.get()));
  }).join();
  if (!is_refused) GTEST_SKIP() << "system calls cannot be filtered here";
  EXPECT_EQ(handover->kept_bytes(), 0u);
  EXPECT_EQ(loser->committed_bytes(), kGrain);
  EXPECT_EQ(committed(), kGrain);
  ASSERT_TRUE(loser->resize(4 * kGrain, handover.get()).has_value());
  EXPECT_TRUE(all_are(loser->base(), kGrain, 7));
  EXPECT_TRUE(all_are(loser->base() + kGrain, 3 * kGrain, 0));
}

TEST_F(ArenaTest, WhatCannotBeTakenComesFromTheSystem) {
  const auto loser = reserve(8 * kGrain);
  const auto gainer = reserve(16 * kGrain);
  ASSERT_TRUE(loser->resize(8 * kGrain).has_value());
  std::memset(loser->base(), 7, 8 * kGrain);
  const auto handover = device_->make_handover(MemoryKind::kDevice);
  ASSERT_TRUE(loser->resize(kGrain, handover.get()).has_value());
  bool is_refused = false;
  bool is_granted = false;
  std::thread([&] {
    is_refused = refuse_mremap();
    is_granted = is_refused && gainer->resize(15 * kGrain, handover.get()).has_value();
  }).join();
  if (!is_refused) GTEST_SKIP() << "system calls cannot be filtered here";
  ASSERT_TRUE(is_granted) << "what was kept no longer counts: 16 of 16 grains";
  EXPECT_EQ(handover->kept_bytes(), 0u);
  EXPECT_EQ(committed(), 16 * kGrain);
  EXPECT_TRUE(all_are(gainer->base(), 15 * kGrain, 0));
}

#endif

using ArenaDeathTest = ArenaTest;

TEST_F(ArenaDeathTest, BytesPastTheCommittedPartCannotBeTouched) {
  const auto arena = reserve(4 * kGrain);
  ASSERT_TRUE(arena->resize(2 * kGrain).has_value());
  std::byte* const gone = arena->base() + kGrain;
  *gone = std::byte{1};
  ASSERT_TRUE(arena->resize(kGrain).has_value());
  EXPECT_DEATH(*static_cast<volatile std::byte*>(gone) = std::byte{2}, "");
}

TEST_F(ArenaDeathTest, BytesThatWereHandedOverCannotBeTouchedWhereTheyWere) {
  const auto loser = reserve(4 * kGrain);
  const auto gainer = reserve(4 * kGrain);
  ASSERT_TRUE(loser->resize(4 * kGrain).has_value());
  std::byte* const gone = loser->base() + 2 * kGrain;
  *gone = std::byte{1};
  const auto handover = device_->make_handover(MemoryKind::kDevice);
  ASSERT_TRUE(loser->resize(2 * kGrain, handover.get()).has_value());
  EXPECT_DEATH(*static_cast<volatile std::byte*>(gone) = std::byte{2}, "") << "while it is kept";
  ASSERT_TRUE(gainer->resize(2 * kGrain, handover.get()).has_value());
  EXPECT_DEATH(*static_cast<volatile std::byte*>(gone) = std::byte{2}, "");
  EXPECT_EQ(*gainer->base(), std::byte{1});
}

TEST_F(ArenaDeathTest, AHandoverIsOfOneDeviceAndKind) {
  const auto arena = reserve(4 * kGrain);
  const auto host = device_->make_handover(MemoryKind::kPinnedHost);
  EXPECT_DEATH(static_cast<void>(arena->resize(kGrain, host.get())), "of another kind or device");
  const auto other = make_cpu_device();
  const auto stranger = other->make_handover(MemoryKind::kDevice);
  EXPECT_DEATH(static_cast<void>(arena->resize(kGrain, stranger.get())),
               "of another kind or device");
}

}  // namespace
}  // namespace slackwater::device
