#ifndef SLACKWATER_CLI_INSPECT_COMMAND_H_
#define SLACKWATER_CLI_INSPECT_COMMAND_H_

#include <filesystem>
#include <optional>
#include <string>

#include "slackwater/base/error.h"
#include "slackwater/cache/log_inspection.h"

namespace slackwater::cli {

// `slackwater inspect`: what a cache was like, from its operation log.
struct InspectCommand {
  std::filesystem::path log;
  cache::LogInspectionOptions options;
  // Tokens with commas between them, A..B for all from A to B: "1,2,3" or "7,100..131".
  std::optional<std::string> explain;
};

// Refuses options that can never work. Errors: kInvalidArgument.
Result<void> check(const InspectCommand& command);

// Prints what inspect_log() says to standard output. Errors: those, and those of writing.
Result<void> run(const InspectCommand& command);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_INSPECT_COMMAND_H_
