#ifndef SLACKWATER_CLI_DEMO_COMMAND_H_
#define SLACKWATER_CLI_DEMO_COMMAND_H_

#include <cstdint>
#include <filesystem>
#include <optional>

#include "cli/demo_run.h"
#include "cli/engine_options.h"
#include "cli/loaded_model.h"
#include "slackwater/base/error.h"

namespace slackwater::cli {

// `slackwater demo`: many speculative requests over pools that are far too small for them, while
// steps fail and requests are suspended in the middle of rounds; then the same requests one by one
// with the solo loop, and how many answers differ.
struct DemoCommand {
  ModelOptions model;
  EngineOptions engine = {.num_slots = 6, .num_blocks = 24, .host_bytes = 8 << 20};
  DemoOptions demo;
  std::optional<std::int32_t> pace_ms;  // pause after a step; default: 40 on a terminal, else 0
  std::optional<std::filesystem::path> save_bundle;
  std::int64_t at_step = 0;
  std::optional<std::filesystem::path> load_bundle;
  bool is_json = false;
};

// Refuses options that can never work. Errors: kInvalidArgument.
Result<void> check(const DemoCommand& command);

// Draws the table on standard error; the last line, or one object, goes to standard output.
// kDataLoss where an answer differs, with how many; what differs is told on standard error.
Result<void> run(const DemoCommand& command);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_DEMO_COMMAND_H_
