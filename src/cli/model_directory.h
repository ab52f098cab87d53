#ifndef SLACKWATER_CLI_MODEL_DIRECTORY_H_
#define SLACKWATER_CLI_MODEL_DIRECTORY_H_

#include <filesystem>

namespace slackwater::cli {

// Where the demo model lies: `models/demo` in the working directory, in the source tree that the
// program was built in, or `share/slackwater/models/demo` of the prefix it is installed under.
// The first where there is a config.json; the first of all where there is none, so that the
// error names a path that a reader can make sense of.
std::filesystem::path default_model_directory();

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_MODEL_DIRECTORY_H_
