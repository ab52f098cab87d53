#include "slackwater/scheduler/scheduler.h"

#include <gtest/gtest.h>

namespace slackwater::scheduler {
namespace {

TEST(SchedulerConfig, RefusesBeams) {
  SchedulerConfig config;
  config.beam_width = 2;
  EXPECT_EQ(validate(config).error().code(), ErrorCode::kUnimplemented);
}

}  // namespace
}  // namespace slackwater::scheduler
