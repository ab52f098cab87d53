#include "cache/eviction_queue.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::cache {
namespace {

using testing::ElementsAre;

std::vector<std::uint64_t> order_of(const EvictionQueue& queue) {
  std::vector<std::uint64_t> order;
  for (QueuePlace place = queue.first(); !place.is_null(); place = queue.next(place)) {
    order.push_back(queue.subject(place));
  }
  return order;
}

TEST(EvictionQueue, TheLowestPriorityLeavesFirstThenWhoCameFirst) {
  EvictionQueue queue;
  EXPECT_TRUE(queue.first().is_null());
  queue.push(1, 35);
  queue.push(2, 0);
  queue.push(3, 100);
  queue.push(4, 35);
  const QueuePlace five = queue.push(5, 64);
  EXPECT_THAT(order_of(queue), ElementsAre(2, 1, 4, 5, 3));
  queue.remove(five);
  EXPECT_THAT(order_of(queue), ElementsAre(2, 1, 4, 3));
  queue.check_invariants();
}

TEST(EvictionQueue, PutsBackWhatWasHidden) {
  EvictionQueue queue;
  std::vector<QueuePlace> places;
  for (std::uint64_t i = 0; i < 6; ++i) places.push_back(queue.push(i, i < 4 ? 1 : 2));
  // Neighbours, a first one, and all of a priority.
  const std::vector<std::size_t> hidden = {1, 2, 0, 5, 4};
  for (const std::size_t i : hidden) queue.hide(places[i]);
  EXPECT_THAT(order_of(queue), ElementsAre(3));
  EXPECT_TRUE(queue.is_hidden(places[0]));
  for (auto i = hidden.rbegin(); i != hidden.rend(); ++i) queue.restore(places[*i]);
  EXPECT_THAT(order_of(queue), ElementsAre(0, 1, 2, 3, 4, 5));
  queue.check_invariants();
  for (const std::size_t i : hidden) {
    queue.hide(places[i]);
    queue.remove_hidden(places[i]);
  }
  EXPECT_THAT(order_of(queue), ElementsAre(3));
  queue.check_invariants();
}

TEST(EvictionQueue, ASplitRunStaysWhereItWas) {
  EvictionQueue queue;
  queue.push(1, 35);
  const QueuePlace two = queue.push(2, 35);
  queue.push(3, 35);
  queue.push_after(two, 20);
  EXPECT_THAT(order_of(queue), ElementsAre(1, 2, 20, 3));
  queue.check_invariants();
}

TEST(EvictionQueueDeathTest, APlaceThatWasGivenBackIsNotUsed) {
  EvictionQueue queue;
  const QueuePlace place = queue.push(1, 35);
  queue.remove(place);
  EXPECT_DEATH(queue.remove(place), "is not taken");
}

TEST(EvictionQueueModel, AgreesWithASortedList) {
  std::mt19937_64 random(test_seed());
  EvictionQueue queue;
  std::map<std::pair<int, std::int64_t>, std::pair<std::uint64_t, QueuePlace>> model;
  const std::int64_t operations = test_operations(20'000);
  for (std::int64_t i = 0; i < operations; ++i) {
    if (model.size() < 3 || random() % 5 < (model.size() < 100 ? 3u : 2u)) {
      const auto priority = static_cast<Priority>(random() % 4 * 33);
      model[{priority, i}] = {static_cast<std::uint64_t>(i),
                              queue.push(static_cast<std::uint64_t>(i), priority)};
    } else {
      auto at = model.begin();
      std::advance(at,
                   static_cast<std::ptrdiff_t>(random() % std::min<std::size_t>(20, model.size())));
      queue.remove(at->second.second);
      model.erase(at);
    }
    ASSERT_EQ(queue.size(), model.size());
    ASSERT_EQ(queue.subject(queue.first()), model.begin()->second.first) << "operation " << i;
    if (i % 64 == 0) {
      queue.check_invariants();
      std::vector<std::uint64_t> expected;
      for (const auto& [key, value] : model) expected.push_back(value.first);
      ASSERT_EQ(order_of(queue), expected) << "operation " << i;
    }
  }
}

}  // namespace
}  // namespace slackwater::cache
