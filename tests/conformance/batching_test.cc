// Many sequences at a time, more than there is room for (TestBatching): the last to have started
// is suspended first, and all of them finish.

#include <deque>

#include <gtest/gtest.h>

#include "cache/manager_test_support.h"

namespace slackwater::cache {
namespace {

struct Load {
  int num_requests;
  std::int64_t mean_length;
  std::int64_t device_bytes;
  bool runs_steps;  // every byte is written and checked
  std::int64_t commit_interval;
  std::int32_t tokens_per_block;
};

class InflightBatchingSlow : public testing::TestWithParam<Load> {
 protected:
  struct Request {
    Sequence sequence;
    Tokens tokens;
    std::int64_t length = 0;
  };

  // Grows a request by up to `count` tokens. False when there is no room.
  bool advance(TestCache& cache, Request& request, std::int64_t count) {
    Sequence& s = request.sequence;
    const std::int64_t from = s.history();
    const std::int64_t to = std::min(request.length, from + count);
    if (!s.resize(std::max(to, s.capacity()), from).has_value()) return false;
    const auto tokens = std::span<const TokenId>(request.tokens);
    if (GetParam().runs_steps) {
      cache.engine.step(s, tokens.first(static_cast<std::size_t>(to)), from).wait();
    }
    EXPECT_TRUE(s.resize(std::nullopt, to).has_value());
    if (to - s.num_committed() >= GetParam().commit_interval || to == request.length) {
      const auto first = static_cast<std::size_t>(s.num_committed());
      EXPECT_TRUE(
          s.commit(tokens.subspan(first, static_cast<std::size_t>(to) - first)).has_value());
    }
    return true;
  }
};

TEST_P(InflightBatchingSlow, EverybodyFinishes) {
  const Load load = GetParam();
  KvCacheConfig config = test_config({FullAttention(), SlidingWindow{128, 48}},
                                     load.tokens_per_block, load.device_bytes);
  config.host_bytes = 4 * load.device_bytes;
  config.max_util_for_resume = 0.97;
  TestCache cache(std::move(config));
  std::deque<Request> waiting;
  for (int i = 0; i < load.num_requests; ++i) {
    Request request;
    request.length = load.mean_length / 2 + (i * 7919) % load.mean_length;
    // A third share a front.
    request.tokens = numbers(i % 3 == 0 ? 0 : i * 10'000, request.length);
    waiting.push_back(std::move(request));
  }
  std::vector<Request> running;
  int finished = 0;
  int idle_passes = 0;
  std::int64_t suspends = 0;
  std::int32_t most_on_host = 0;
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && running.size() < 64) {
      Request& next = waiting.front();
      if (next.sequence.status() == SequenceStatus::kClosed) {
        next.sequence = cache.create(next.tokens);
      }
      if (!next.sequence.resume(cache.engine.stream()).has_value()) break;
      running.push_back(std::move(next));
      waiting.pop_front();
    }
    bool has_advanced = false;
    for (std::size_t i = 0; i < running.size(); ++i) {
      const std::int64_t count = running[i].sequence.history() < running[i].length / 2 ? 256 : 16;
      bool has_room = advance(cache, running[i], count);
      while (!has_room && i + 1 < running.size()) {
        ASSERT_TRUE(running.back().sequence.suspend().has_value());
        ++suspends;
        waiting.push_front(std::move(running.back()));
        running.pop_back();
        has_room = advance(cache, running[i], count);
      }
      has_advanced |= has_room;
    }
    // What cannot be dropped on the host are pages of those who are suspended.
    const TierRoom host = cache.manager->room(storage::Tier::kHost, LayerGroupId(0));
    most_on_host = std::max(most_on_host, host.unavailable);
    finished += static_cast<int>(std::erase_if(
        running, [](Request& request) { return request.sequence.history() == request.length; }));
    idle_passes = has_advanced ? 0 : idle_passes + 1;
    ASSERT_LT(idle_passes, 3) << "nobody can run";
    // An engine reads what it has sampled before it goes on.
    EXPECT_EQ(cache.engine.stream().synchronize(), device::EventStatus::kSucceeded);
  }
  EXPECT_EQ(finished, load.num_requests);
  EXPECT_GT(suspends, 0);
  EXPECT_GT(most_on_host, 0);
  EXPECT_EQ(cache.engine.mismatches(), 0);
  cache.manager->audit();
}

// There 1,000 and 10,000 requests on 1 GiB of 36 layers, and a host of four times that; here two
// layers, and a device that holds about a third of what 64 requests want. There the first three
// write nothing; here only the third.
INSTANTIATE_TEST_SUITE_P(Loads, InflightBatchingSlow,
                         testing::Values(Load{1000, 1000, 192 << 10, true, 32, 32},
                                         Load{1000, 1000, 192 << 10, true, 1, 32},
                                         Load{10'000, 1000, 192 << 10, false, 32, 32},
                                         Load{100, 100, 64 << 10, true, 1, 128},
                                         Load{100, 100, 48 << 10, true, 4, 64}));

}  // namespace
}  // namespace slackwater::cache
