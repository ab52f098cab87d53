#include "cli/loaded_model.h"

#include <algorithm>
#include <thread>

#include "cli/load_progress.h"

namespace slackwater::cli {

std::int32_t num_threads(const ModelOptions& options) {
  if (options.num_threads > 0) return options.num_threads;
  const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  return std::clamp(cores, 1, kMostThreads);
}

Result<kernels::Target> target(const ModelOptions& options) {
  if (options.target.empty()) return kernels::default_target();
  return kernels::parse_target(options.target);
}

Result<model::Model> load_model(const ModelOptions& options, kernels::ExecutionContext& context) {
  LoadProgress progress(options.directory.string());
  model::Model::LoadOptions load_options;
  load_options.progress = [&progress](std::size_t done, std::size_t total) {
    progress.report(done, total);
  };
  return model::Model::load(options.directory, context, load_options);
}

}  // namespace slackwater::cli
