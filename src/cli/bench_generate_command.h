#ifndef SLACKWATER_CLI_BENCH_GENERATE_COMMAND_H_
#define SLACKWATER_CLI_BENCH_GENERATE_COMMAND_H_

#include "cli/loaded_model.h"
#include "slackwater/base/error.h"
#include "slackwater/model/measure.h"

namespace slackwater::cli {

// `slackwater bench generate`: speed of prompts and of greedy decoding, see model/measure.h.
struct BenchGenerateCommand {
  ModelOptions model;
  model::MeasureOptions options;
  bool is_json = false;
};

// Errors: kInvalidArgument, kUnimplemented.
Result<void> check(const BenchGenerateCommand& command);

// Prints one JSON line, or a few lines for people.
Result<void> run(const BenchGenerateCommand& command);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_BENCH_GENERATE_COMMAND_H_
