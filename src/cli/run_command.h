#ifndef SLACKWATER_CLI_RUN_COMMAND_H_
#define SLACKWATER_CLI_RUN_COMMAND_H_

#include <cstdint>
#include <filesystem>
#include <optional>

#include "cli/engine_options.h"
#include "cli/loaded_model.h"
#include "slackwater/base/error.h"

namespace slackwater::cli {

// `slackwater run`: many prompts in, an answer a line out, in the order in which they end. A run
// that was killed goes on where it was: with the same output, answers that are there are not asked
// for again.
struct RunCommand {
  ModelOptions model;
  EngineOptions engine;
  std::filesystem::path prompts;
  std::optional<std::filesystem::path> output;  // nothing: standard output, and no going on
  std::uint64_t seed = 0;                       // plus its number: of a line without one
  std::int32_t num_in_flight = 64;              // lines that the engine has at once
  bool has_tokens = false;                      // answers with their tokens
};

// Refuses options that can never work. Errors: kInvalidArgument.
Result<void> check(const RunCommand& command);

// A line that cannot be read or never fit is told on standard error with its number, and has an
// object with `line` and `error` in the output; the rest goes on. kInvalidArgument at the end then.
Result<void> run(const RunCommand& command);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_RUN_COMMAND_H_
