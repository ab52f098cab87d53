#ifndef SLACKWATER_CLI_GENERATE_COMMAND_H_
#define SLACKWATER_CLI_GENERATE_COMMAND_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/loaded_model.h"
#include "slackwater/base/error.h"
#include "slackwater/model/generate.h"

namespace slackwater::cli {

// `slackwater generate`: one answer to one prompt, by the solo loop.
struct GenerateCommand {
  ModelOptions model;
  std::optional<std::string> prompt;  // exactly one of the two
  std::optional<std::filesystem::path> prompt_file;
  model::GenerateOptions options;
  std::optional<std::uint64_t> seed;  // drawn and reported where it is not given
  bool is_json = false;
};

// Refuses options that can never work. Errors: kInvalidArgument, kUnimplemented.
Result<void> check(const GenerateCommand& command);

// Streams the text to standard output and the speed to standard error; with is_json prints one
// object instead. Errors: those of loading, generating and writing.
Result<void> run(const GenerateCommand& command);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_GENERATE_COMMAND_H_
