#ifndef SLACKWATER_CLI_DEMO_SCREEN_H_
#define SLACKWATER_CLI_DEMO_SCREEN_H_

#include <string>
#include <vector>

#include "cli/demo_run.h"
#include "cli/terminal.h"
#include "slackwater/base/clock.h"
#include "slackwater/engine/engine.h"
#include "slackwater/engine/residency_view.h"

namespace slackwater::cli {

// One request of the table.
struct DemoRow {
  engine::RequestView view;
  std::string place;       // of its pages, where it sleeps: "device", "host", "disk", "both"
  std::int64_t limit = 0;  // tokens that there can be at most
  std::string text;        // what was said so far, the prompt first
};

// What the table of the demonstration shows at one moment.
struct DemoPicture {
  std::string title;  // what runs over what
  Nanoseconds elapsed{0};
  std::int64_t num_requests = 0;
  std::int64_t num_finished = 0;
  std::int64_t num_tokens = 0;
  std::vector<DemoRow> rows;  // of requests that the engine has, in their order
  std::vector<engine::PoolUse> pools;
  engine::EngineStatistics statistics;
};

// The picture between two steps.
DemoPicture picture_of(EngineHost& host, const DemoRun& run, std::string title,
                       Nanoseconds elapsed);

// As a table: who is in which slot, who sleeps where, who waits, how full the pools are, and what
// has happened. At most `height` lines.
std::vector<ScreenLine> table_of(const DemoPicture& picture, std::size_t width, std::size_t height,
                                 bool has_color);

// The same in one line, for logs.
std::string progress_line(const DemoPicture& picture);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_DEMO_SCREEN_H_
