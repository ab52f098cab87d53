#ifndef SLACKWATER_CLI_DEMO_REPORT_H_
#define SLACKWATER_CLI_DEMO_REPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/demo_run.h"
#include "cli/engine_options.h"
#include "slackwater/base/clock.h"
#include "slackwater/engine/engine.h"

namespace slackwater::cli {

// What is different from the solo loop, a line each.
struct DemoComparison {
  std::vector<std::string> differences;  // one line per request at most
};

// Runs every request alone, with the solo loop, and compares tokens and text. Calls `progress`
// before each. Errors: those of model::generate_solo().
Result<DemoComparison> compare_with_solo(EngineHost& host, const DemoRun& run,
                                         const std::function<void(std::size_t done)>& progress);

// Bytes that went from one tier to another: pages, and what lies beside them.
std::int64_t bytes_moved(const engine::EngineStatistics& statistics);

// The figures of a run.
struct DemoFigures {
  std::string drafter;
  std::string loop;
  std::uint64_t seed = 0;
  std::int64_t num_requests = 0;
  std::int64_t num_tokens = 0;  // of all answers, as far as this process wrote them
  std::int64_t num_reused = 0;
  std::int64_t num_differences = 0;
  Nanoseconds engine_time{0};
  Nanoseconds solo_time{0};
  engine::EngineStatistics statistics;
};

// The last line, for people, and one object, for programs.
std::string summary_line(const DemoFigures& figures);
std::string summary_json(const DemoFigures& figures);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_DEMO_REPORT_H_
