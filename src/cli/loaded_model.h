#ifndef SLACKWATER_CLI_LOADED_MODEL_H_
#define SLACKWATER_CLI_LOADED_MODEL_H_

#include <filesystem>
#include <string>

#include "slackwater/base/thread_pool.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/model/model.h"

namespace slackwater::cli {

// What every command that runs a model asks for.
struct ModelOptions {
  std::filesystem::path directory;
  std::int32_t num_threads = 0;  // 0: one per core, at most kMostThreads
  std::string target;            // empty: the fastest
};

inline constexpr std::int32_t kMostThreads = 256;

// The threads that `options` mean on this machine.
std::int32_t num_threads(const ModelOptions& options);

// The target that `options` mean. Errors: those of kernels::parse_target.
Result<kernels::Target> target(const ModelOptions& options);

// Loads the model, with progress on standard error.
Result<model::Model> load_model(const ModelOptions& options, kernels::ExecutionContext& context);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_LOADED_MODEL_H_
