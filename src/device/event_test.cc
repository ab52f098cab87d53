#include "slackwater/device/event.h"

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater::device {
namespace {

EventSource make_source(std::string waker = "the test") {
  return EventSource(Event(new EventState(std::move(waker))));
}

TEST(Event, ANullEventHasSucceeded) {
  const Event event;
  EXPECT_TRUE(event.is_null());
  EXPECT_EQ(event.status(), EventStatus::kSucceeded);
  EXPECT_EQ(event.wait(), EventStatus::kSucceeded);
  EXPECT_EQ(event.waker(), "");
}

TEST(Event, CopiesStandForTheSamePoint) {
  EventSource source = make_source();
  const Event first = source.event();
  const Event second = first;
  EXPECT_EQ(first, second);
  EXPECT_EQ(second.status(), EventStatus::kPending);
  source.complete(EventStatus::kFailed);
  EXPECT_EQ(source.event(), first) << "a completed source still knows its event";
  EXPECT_EQ(first.status(), EventStatus::kFailed);
  EXPECT_EQ(second.wait(), EventStatus::kFailed);
}

TEST(Event, AnAbandonedSourceCompletesItsEventAsFailed) {
  Event event;
  {
    const EventSource source = make_source();
    event = source.event();
    EXPECT_FALSE(event.is_done());
  }
  EXPECT_EQ(event.status(), EventStatus::kFailed);
}

TEST(Event, AMovedSourceCompletesOnce) {
  EventSource first = make_source();
  const Event event = first.event();
  EventSource second = std::move(first);
  EXPECT_FALSE(event.is_done());
  second.complete(EventStatus::kSucceeded);
  EXPECT_EQ(event.status(), EventStatus::kSucceeded);
  // Assigning over a source abandons what it had.
  EventSource third = make_source();
  const Event lost = third.event();
  third = make_source();
  EXPECT_EQ(lost.status(), EventStatus::kFailed);
}

TEST(Event, KnowsWhoCompletesIt) {
  const EventSource source = make_source("disk write 7");
  EXPECT_EQ(source.event().waker(), "disk write 7");
}

TEST(Event, AWaitWithATimeoutGivesUp) {
  const EventSource source = make_source();
  EXPECT_EQ(source.event().wait_for(std::chrono::milliseconds(2)), EventStatus::kPending);
}

TEST(Event, MergingNothingIsNull) {
  EXPECT_TRUE(merge({}).is_null());
  const std::vector<Event> finished(3);
  EXPECT_TRUE(merge(finished).is_null());
}

TEST(Event, MergingOneOpenEventGivesThatEvent) {
  const EventSource source = make_source();
  const std::vector<Event> events = {Event(), source.event(), source.event()};
  EXPECT_EQ(merge(events), source.event());
}

TEST(Event, AMergedEventIsDoneWhenAllAreAndFailedWhenOneIs) {
  for (const EventStatus last : {EventStatus::kSucceeded, EventStatus::kFailed}) {
    EventSource first = make_source();
    EventSource second = make_source();
    const std::vector<Event> events = {first.event(), second.event()};
    const Event all = merge(events);
    EXPECT_EQ(all.status(), EventStatus::kPending);
    second.complete(last);
    EXPECT_EQ(all.status(), EventStatus::kPending);
    EXPECT_EQ(all.wait_for(std::chrono::milliseconds(1)), EventStatus::kPending);
    first.complete(EventStatus::kSucceeded);
    EXPECT_EQ(all.status(), last);
    EXPECT_EQ(all.wait(), last);
    EXPECT_EQ(all.wait_for(std::chrono::milliseconds(1)), last);
  }
}

TEST(Event, MergingKeepsAFailureThatIsDoneAlready) {
  EventSource failed = make_source();
  const Event failure = failed.event();
  failed.complete(EventStatus::kFailed);
  EventSource open = make_source();
  const std::vector<Event> events = {failure, open.event()};
  const Event all = merge(events);
  open.complete(EventStatus::kSucceeded);
  EXPECT_EQ(all.status(), EventStatus::kFailed);
}

TEST(Event, MergingOnAndOnStaysAsSmallAsTheWorkUnderWay) {
  EventSource failed = make_source();
  Event all = failed.event();
  EventSource last;
  for (int i = 0; i < 1000; ++i) {
    EventSource next = make_source();
    const std::vector<Event> both = {all, next.event()};
    all = merge(both);
    if (i > 0) last.complete(EventStatus::kSucceeded);
    last = std::move(next);
    if (i == 500) failed.complete(EventStatus::kFailed);
  }
  EXPECT_EQ(all.status(), EventStatus::kPending);
  last.complete(EventStatus::kSucceeded);
  EXPECT_EQ(all.status(), EventStatus::kFailed) << "a failure on the way is not forgotten";
  const std::vector<Event> again = {all};
  EXPECT_TRUE(merge(again).is_done());
}

TEST(Event, ASettledEventForgetsTheFateOfTheOther) {
  EventSource source = make_source("the other");
  const Event end = settled(source.event());
  EXPECT_EQ(end.status(), EventStatus::kPending);
  EXPECT_EQ(end.wait_for(std::chrono::milliseconds(1)), EventStatus::kPending);
  EXPECT_EQ(end.waker(), "the other");
  EXPECT_EQ(settled(end), end) << "one layer, however often";
  const Event other = source.event();
  source.complete(EventStatus::kFailed);
  EXPECT_EQ(end.status(), EventStatus::kSucceeded);
  EXPECT_EQ(end.wait(), EventStatus::kSucceeded);
  EXPECT_TRUE(settled(other).is_null());
}

// Each level follows twice from the one before: nobody walks down to the leaves more than once.
TEST(Event, WhatFollowsFromWhatFollowsIsAskedOnce) {
  EventSource first(Event(new EventState("first")));
  EventSource second(Event(new EventState("second")));
  Event a = first.event();
  Event b = second.event();
  for (int level = 0; level < 60; ++level) {
    const Event next_a = settled(merge(std::array{a, b}));
    const Event next_b = settled(merge(std::array{b, a}));
    a = next_a;
    b = next_b;
  }
  EXPECT_FALSE(a.is_done());
  first.complete(EventStatus::kSucceeded);
  EXPECT_FALSE(a.is_done());
  second.complete(EventStatus::kFailed);
  EXPECT_EQ(a.status(), EventStatus::kSucceeded);
  EXPECT_EQ(b.wait(), EventStatus::kSucceeded);
}

TEST(EventDeathTest, CompletingTwiceIsRefused) {
  EXPECT_DEATH(
      {
        EventSource source = make_source("the writer");
        source.complete(EventStatus::kSucceeded);
        source.complete(EventStatus::kSucceeded);
      },
      "no event to complete");
  EXPECT_DEATH(make_source("the writer").complete(EventStatus::kPending),
               "completed as pending by the writer");
}

// What was written before the event is there after it, in every copy and on every thread.
TEST(EventThreads, AWaiterSeesWhatWasWrittenBefore) {
  for (int round = 0; round < 300; ++round) {
    EventSource source = make_source();
    int value = 0;
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
      waiters.emplace_back([event = source.event(), &value, round] {
        EXPECT_EQ(event.wait(), EventStatus::kSucceeded);
        EXPECT_EQ(value, round);
      });
    }
    value = round;
    source.complete(EventStatus::kSucceeded);
    for (std::thread& waiter : waiters) waiter.join();
  }
}

}  // namespace
}  // namespace slackwater::device
