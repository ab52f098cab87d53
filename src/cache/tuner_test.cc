#include "cache/tuner.h"

#include <chrono>

#include <gtest/gtest.h>

namespace slackwater::cache {
namespace {

using std::chrono::seconds;

RebalanceOptions quick() {
  RebalanceOptions options;
  options.min_samples = 4;
  options.update_interval = 2;
  options.cooldown = seconds(120);
  return options;
}

TEST(Tuner, SaysNothingBeforeTheFirstUpdate) {
  Tuner tuner(quick());
  tuner.note_begin(10);
  tuner.note_end(100, 50);
  EXPECT_FALSE(tuner.shape().has_value());
  EXPECT_FALSE(tuner.may_rebalance(seconds(1000)));
  tuner.note_end(100, 50);
  EXPECT_EQ(tuner.shape(), (Tuner::Shape{100, 50, 10}));
}

// A sequence of 300 tokens holds three times as much as one of 100, three times as long.
TEST(Tuner, LongSequencesCountByWhatTheyHold) {
  RebalanceOptions options = quick();
  options.decay = 1 - 1e-12;  // plain averages
  Tuner tuner(options);
  tuner.note_end(100, 0);
  tuner.note_end(300, 200);
  // The roots of (100^2 + 300^2) / 2 and of 200^2 / 2.
  EXPECT_EQ(tuner.shape()->capacity, 224);
  EXPECT_EQ(tuner.shape()->history, 141);
}

TEST(Tuner, WhatIsLongAgoCountsLess) {
  RebalanceOptions options = quick();
  options.decay = 0.5;
  Tuner tuner(options);
  for (int i = 0; i < 20; ++i) tuner.note_end(1000, 1000);
  for (int i = 0; i < 20; ++i) tuner.note_end(10, 10);
  EXPECT_EQ(tuner.shape()->capacity, 10);
  tuner.note_begin(100);
  tuner.note_begin(40);
  tuner.note_end(10, 10);
  tuner.note_end(10, 10);
  // The second counts twice as much: (100 / 2 + 40) / 1.5.
  EXPECT_EQ(tuner.shape()->reused, 60);
}

TEST(Tuner, RestsAfterARebalance) {
  Tuner tuner(quick());
  for (int i = 0; i < 3; ++i) tuner.note_end(1, 1);
  EXPECT_FALSE(tuner.may_rebalance(seconds(10))) << "three samples of four";
  tuner.note_end(1, 1);
  EXPECT_TRUE(tuner.may_rebalance(seconds(10)));
  tuner.note_rebalance(seconds(10));
  EXPECT_FALSE(tuner.may_rebalance(seconds(129)));
  EXPECT_TRUE(tuner.may_rebalance(seconds(130)));
}

// By the ratio, in both directions.
TEST(Tuner, ASmallDifferenceIsNone) {
  const Tuner tuner{RebalanceOptions()};
  EXPECT_FALSE(tuner.is_off(0.4, 0.4));
  EXPECT_FALSE(tuner.is_off(0.4, 0.5));
  EXPECT_TRUE(tuner.is_off(0.4, 0.51));
  EXPECT_FALSE(tuner.is_off(0.5, 0.4));
  EXPECT_TRUE(tuner.is_off(0.5, 0.39));
}

}  // namespace
}  // namespace slackwater::cache
