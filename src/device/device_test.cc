// What every backend promises, asked of each.

#include "slackwater/device/device.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/device/cpu_device.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::device {
namespace {

struct Backend {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
};

void PrintTo(const Backend& backend, std::ostream* os) { *os << backend.name; }

std::vector<Backend> backends() {
  std::vector<Backend> all = {{"cpu", [] { return make_cpu_device(); }}};
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    all.push_back({"sim" + std::to_string(seed),
                   [seed] { return std::make_unique<SimDevice>(SimOptions{.seed = seed}); }});
  }
  return all;
}

class DeviceThreads : public testing::TestWithParam<Backend> {
 protected:
  std::unique_ptr<Stream> make_stream(std::string name) {
    return *device_->make_stream(std::move(name));
  }

  std::unique_ptr<Device> device_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(Backends, DeviceThreads, testing::ValuesIn(backends()),
                         [](const auto& backend) { return backend.param.name; });

TEST_P(DeviceThreads, AStreamKeepsItsOrder) {
  const auto stream = make_stream("work");
  std::vector<int> order;
  for (int i = 0; i < 200; ++i) {
    stream->run([&order, i] {
      order.push_back(i);
      return true;
    });
  }
  EXPECT_EQ(stream->synchronize(), EventStatus::kSucceeded);
  std::vector<int> want(200);
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(order, want);
}

TEST_P(DeviceThreads, ARecordedEventIsDoneOnceTheEarlierWorkIs) {
  const auto stream = make_stream("work");
  int value = 0;
  stream->run([&] { return value = 1, true; });
  const Event first = stream->record();
  stream->run([] { return true; });
  EXPECT_EQ(first.wait(), EventStatus::kSucceeded);
  EXPECT_EQ(value, 1);
  if (!first.is_null()) {
    EXPECT_EQ(first.waker(), "work stream");
  }
}

// A chain over three streams: each adds one to what the one before left.
TEST_P(DeviceThreads, AWaitOrdersWorkAcrossStreams) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (const char* name : {"a", "b", "c"}) streams.push_back(make_stream(name));
  std::int64_t value = 0;
  std::int64_t wrong = 0;
  Event before;
  for (std::int64_t i = 0; i < 300; ++i) {
    Stream& stream = *streams[static_cast<std::size_t>(i * 7 % 3)];
    stream.wait(before);
    stream.run([&value, &wrong, i] {
      if (value++ != i) ++wrong;
      return true;
    });
    before = stream.record();
  }
  EXPECT_EQ(before.wait(), EventStatus::kSucceeded);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(value, 300);
}

TEST_P(DeviceThreads, CopiesEveryPiece) {
  const auto stream = make_stream("copy");
  constexpr std::size_t kPieces = 37;
  constexpr std::size_t kBytes = 333;
  std::vector<std::byte> source(kPieces * kBytes);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 % 251);
  std::vector<std::byte> target(source.size() + 1, std::byte{9});
  CopyBatch batch;
  batch.piece_bytes = kBytes;
  for (std::size_t i = 0; i < kPieces; ++i) {
    const std::size_t mirrored = kPieces - 1 - i;
    batch.pieces.push_back({target.data() + mirrored * kBytes, source.data() + i * kBytes});
  }
  stream->copy(batch);
  EXPECT_EQ(stream->synchronize(), EventStatus::kSucceeded);
  for (const CopyPiece& piece : batch.pieces) {
    EXPECT_TRUE(std::equal(piece.source, piece.source + kBytes, piece.target));
  }
  EXPECT_EQ(target.back(), std::byte{9});
}

TEST_P(DeviceThreads, AnEmptyCopyIsNoWork) {
  const auto stream = make_stream("copy");
  stream->copy({});
  stream->copy({16, {}});
  EXPECT_EQ(stream->synchronize(), EventStatus::kSucceeded);
}

TEST_P(DeviceThreads, AFailedItemFailsTheNextEventAndNoOther) {
  const auto stream = make_stream("work");
  const Event before = stream->record();
  bool ran_after = false;
  stream->run([] { return false; });
  stream->run([&] { return ran_after = true; });
  const Event failed = stream->record();
  const Event after = stream->record();
  EXPECT_EQ(after.wait(), EventStatus::kSucceeded);
  EXPECT_EQ(before.status(), EventStatus::kSucceeded);
  EXPECT_EQ(failed.status(), EventStatus::kFailed);
  EXPECT_TRUE(ran_after) << "work after a failure goes on";
}

// Somebody else's mark takes no failure away from whoever queued the items.
TEST_P(DeviceThreads, AMarkLeavesTheFailureToTheNextRecord) {
  const auto stream = make_stream("work");
  stream->run([] { return false; });
  const Event mark = stream->mark();
  stream->run([] { return true; });
  const Event failed = stream->record();
  const Event after = stream->mark();
  EXPECT_EQ(after.wait(), EventStatus::kSucceeded);
  EXPECT_EQ(mark.status(), EventStatus::kFailed);
  EXPECT_EQ(failed.status(), EventStatus::kFailed);
}

TEST_P(DeviceThreads, WorkThatWaitsForAFailedEventRunsAllTheSame) {
  const auto first = make_stream("first");
  const auto second = make_stream("second");
  first->run([] { return false; });
  bool ran = false;
  second->wait(first->record());
  second->run([&] { return ran = true; });
  EXPECT_EQ(second->synchronize(), EventStatus::kSucceeded);
  EXPECT_TRUE(ran);
}

TEST_P(DeviceThreads, AStreamWaitsForAnEventCompletedByHand) {
  const auto stream = make_stream("work");
  EventSource source = device_->make_event("the test");
  bool ran = false;
  stream->wait(source.event());
  stream->run([&] { return ran = true; });
  const Event end = stream->record();
  EXPECT_EQ(end.status(), EventStatus::kPending);
  source.complete(EventStatus::kSucceeded);
  EXPECT_EQ(end.wait(), EventStatus::kSucceeded);
  EXPECT_TRUE(ran);
}

TEST_P(DeviceThreads, AStreamEndsWithItsWorkDone) {
  int done = 0;
  {
    const auto stream = make_stream("work");
    for (int i = 0; i < 50; ++i) {
      stream->run([&] { return ++done, true; });
    }
  }
  EXPECT_EQ(done, 50);
}

TEST_P(DeviceThreads, MergedEventsOrderLikeTheirParts) {
  const auto first = make_stream("first");
  const auto second = make_stream("second");
  const auto third = make_stream("third");
  for (int round = 0; round < 40; ++round) {
    int a = 0;
    int b = 0;
    int sum = 0;
    first->run([&] { return a = 1, true; });
    second->run([&] { return b = 2, true; });
    const std::vector<Event> parts = {first->record(), second->record()};
    third->wait(merge(parts));
    third->run([&] { return sum = a + b, true; });
    EXPECT_EQ(third->synchronize(), EventStatus::kSucceeded);
    ASSERT_EQ(sum, 3);
  }
}

}  // namespace
}  // namespace slackwater::device
