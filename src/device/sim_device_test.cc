#include "slackwater/device/sim_device.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/device/cpu_device.h"

namespace slackwater::device {
namespace {

constexpr std::size_t kBytes = 4096;

// Fills a buffer on one stream and reads it on another; says whether the reader saw the new bytes.
// With `waits` false the reader has forgotten to wait for the writer.
bool reader_sees_the_copy(Device& device, bool waits) {
  const auto writer = *device.make_stream("writer");
  const auto reader = *device.make_stream("reader");
  const std::vector<std::byte> source(kBytes, std::byte{1});
  std::vector<std::byte> buffer(kBytes, std::byte{0});
  writer->copy({kBytes, {{buffer.data(), source.data()}}});
  const Event written = writer->record();
  if (waits) reader->wait(written);
  // Time in which a real device has long finished the copy.
  if (!waits && device.name() == "cpu") std::this_thread::sleep_for(std::chrono::milliseconds(50));
  bool is_whole = false;
  reader->run([&] {
    is_whole =
        std::all_of(buffer.begin(), buffer.end(), [](std::byte b) { return b != std::byte{0}; });
    return true;
  });
  reader->synchronize();
  writer->synchronize();
  return is_whole;
}

// Not in the suites that TSan runs: the missing wait is a data race, which is the point.
TEST(SimDevice, AMissingWaitPassesOnTheCpuByLuckAndFailsHere) {
  EXPECT_TRUE(reader_sees_the_copy(*make_cpu_device(), false));
  int seen_whole = 0;
  int seen_stale = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimDevice device({.seed = seed});
    reader_sees_the_copy(device, false) ? ++seen_whole : ++seen_stale;
  }
  EXPECT_GT(seen_stale, 0) << "no seed shows the fault";
  EXPECT_GT(seen_whole, 0) << "the adversary knows one order only";
}

TEST(SimDevice, TheWaitMakesEverySeedPass) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SimDevice device({.seed = seed});
    ASSERT_TRUE(reader_sees_the_copy(device, true)) << "seed " << seed;
  }
}

TEST(SimDevice, ACopyIsSeenTornWithoutAWait) {
  int torn = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SimDevice device({.seed = seed});
    const std::vector<std::byte> source(kBytes, std::byte{1});
    std::vector<std::byte> buffer(kBytes, std::byte{0});
    const auto writer = *device.make_stream("writer");
    const auto reader = *device.make_stream("reader");
    writer->copy({kBytes, {{buffer.data(), source.data()}}});
    reader->run([&] {
      const auto ones = std::count(buffer.begin(), buffer.end(), std::byte{1});
      if (0 < ones && ones < static_cast<std::ptrdiff_t>(kBytes)) ++torn;
      return true;
    });
    reader->synchronize();
  }
  EXPECT_GT(torn, 0);
}

// The order in which ten independent streams end.
std::vector<int> finishing_order(std::uint64_t seed) {
  SimDevice device({.seed = seed});
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) {
    streams.push_back(*device.make_stream("stream " + std::to_string(i)));
    streams.back()->run([&order, i] { return order.push_back(i), true; });
  }
  device.run_all();
  return order;
}

TEST(SimDevice, TheSameSeedGivesTheSameRunAndOthersGiveOthers) {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<int> order = finishing_order(seed);
    EXPECT_EQ(order.size(), 10u);
    EXPECT_EQ(finishing_order(seed), order);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 30u);
}

TEST(SimDevice, NothingRunsUnaskedForAPatientSeed) {
  int lazy_seeds = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimDevice device({.seed = seed});
    const auto stream = *device.make_stream("work");
    int done = 0;
    for (int i = 0; i < 20; ++i) stream->run([&] { return ++done, true; });
    if (done == 0) ++lazy_seeds;
    device.run_all();
    EXPECT_EQ(done, 20);
    EXPECT_FALSE(device.run_one());
  }
  EXPECT_GT(lazy_seeds, 0);
  EXPECT_LT(lazy_seeds, 40);
}

struct FaultCase {
  CopyFault fault;
  EventStatus status;
};

TEST(SimDevice, FaultsHitTheCopyTheyAreMeantFor) {
  for (const FaultCase& c : {FaultCase{CopyFault::kRefuse, EventStatus::kFailed},
                             FaultCase{CopyFault::kTear, EventStatus::kFailed},
                             FaultCase{CopyFault::kDelay, EventStatus::kSucceeded}}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto second_fails = [&](std::int64_t index) {
        return index == 1 ? c.fault : CopyFault::kNone;
      };
      SimDevice device({.seed = seed, .copy_fault = second_fails});
      const auto stream = *device.make_stream("copy");
      const std::vector<std::byte> source(kBytes, std::byte{1});
      std::vector<std::vector<std::byte>> targets(3, std::vector<std::byte>(kBytes));
      std::vector<EventStatus> statuses;
      for (auto& target : targets) {
        stream->copy({kBytes, {{target.data(), source.data()}}});
        statuses.push_back(stream->synchronize());
      }
      EXPECT_EQ(statuses, (std::vector<EventStatus>{EventStatus::kSucceeded, c.status,
                                                    EventStatus::kSucceeded}));
      EXPECT_EQ(targets[0], source);
      EXPECT_EQ(targets[2], source);
      EXPECT_EQ(targets[1] == source, c.status == EventStatus::kSucceeded);
      if (c.fault == CopyFault::kRefuse) {
        EXPECT_EQ(targets[1], std::vector<std::byte>(kBytes));
      }
      EXPECT_EQ(device.num_copies(), 3);
    }
  }
}

TEST(SimDevice, ADelayedCopyLetsOtherWorkPass) {
  int overtaken = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimDevice device({.seed = seed, .copy_fault = [](std::int64_t) { return CopyFault::kDelay; }});
    const auto copies = *device.make_stream("copies");
    const auto work = *device.make_stream("work");
    std::byte source{1};
    std::byte target{0};
    copies->copy({1, {{&target, &source}}});
    const Event copied = copies->record();
    for (int i = 0; i < 30; ++i) {
      work->run([] { return true; });
    }
    work->synchronize();
    if (target == std::byte{0}) ++overtaken;
    EXPECT_EQ(copied.wait(), EventStatus::kSucceeded);
    EXPECT_EQ(target, source);
  }
  EXPECT_GT(overtaken, 30);
}

TEST(SimDevice, RefusesTheGrowthOfAnArenaOnDemand) {
  SimDevice device({.refuse_commit = [](std::int64_t index) { return index == 1; }});
  const auto arena = *device.reserve_arena(MemoryKind::kDevice, 16 * kBytes, kBytes);
  EXPECT_TRUE(arena->resize(kBytes).has_value());
  const auto refused = arena->resize(3 * kBytes);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(arena->committed_bytes(), kBytes);
  EXPECT_EQ(device.usage(MemoryKind::kDevice).committed_bytes, kBytes);
  EXPECT_TRUE(arena->resize(0).has_value()) << "shrinking asks nobody";
  EXPECT_TRUE(arena->resize(3 * kBytes).has_value());
  EXPECT_EQ(device.num_commits(), 3);
}

TEST(SimDevice, ARefusedGrowthTakesNothingOfWhatIsKept) {
  bool refuses = false;
  SimDevice device({.refuse_commit = [&](std::int64_t) { return refuses; }});
  const auto loser = *device.reserve_arena(MemoryKind::kDevice, 16 * kBytes, kBytes);
  const auto gainer = *device.reserve_arena(MemoryKind::kDevice, 16 * kBytes, kBytes);
  ASSERT_TRUE(loser->resize(4 * kBytes).has_value());
  const auto handover = device.make_handover(MemoryKind::kDevice);
  ASSERT_TRUE(loser->resize(kBytes, handover.get()).has_value());
  refuses = true;
  EXPECT_FALSE(gainer->resize(2 * kBytes, handover.get()).has_value());
  EXPECT_EQ(gainer->committed_bytes(), 0u);
  EXPECT_EQ(handover->kept_bytes(), 3 * kBytes);
  refuses = false;
  EXPECT_TRUE(gainer->resize(2 * kBytes, handover.get()).has_value());
  EXPECT_EQ(handover->kept_bytes(), kBytes);
  EXPECT_EQ(device.usage(MemoryKind::kDevice).committed_bytes, 4 * kBytes);
}

TEST(SimDevice, ATimedWaitRunsWhatCanRunAndGivesUp) {
  SimDevice device({.seed = 3});
  const EventSource never = device.make_event("nobody");
  const auto stream = *device.make_stream("work");
  bool ran = false;
  stream->run([&] { return ran = true; });
  EXPECT_EQ(never.event().wait_for(std::chrono::seconds(1)), EventStatus::kPending);
  EXPECT_TRUE(ran);
}

TEST(SimDeviceDeathTest, AWaitThatNobodyEndsNamesItsWaker) {
  SimDevice device({.seed = 3});
  const EventSource never = device.make_event("disk write 12");
  EXPECT_DEATH(never.event().wait(), "nothing left to run, and disk write 12 has not come");
}

TEST(SimDeviceDeathTest, AnItemMayNotWaitForItsOwnDevice) {
  EXPECT_DEATH(
      {
        SimDevice device({.seed = 3});
        const EventSource never = device.make_event("disk write 12");
        const auto stream = *device.make_stream("work");
        stream->run([&] { return never.event().wait() == EventStatus::kSucceeded; });
        stream->synchronize();
      },
      "an item waits for disk write 12");
}

}  // namespace
}  // namespace slackwater::device
