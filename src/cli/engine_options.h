#ifndef SLACKWATER_CLI_ENGINE_OPTIONS_H_
#define SLACKWATER_CLI_ENGINE_OPTIONS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/loaded_model.h"
#include "slackwater/base/error.h"
#include "slackwater/device/cpu_device.h"
#include "slackwater/engine/engine.h"
#include "slackwater/model/model.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater::cli {

// What every command that runs an engine asks for.
struct EngineOptions {
  std::string drafter = {};  // empty: mtp where the model has a prediction block, else none
  std::string loop = "overlap";
  std::int32_t max_drafts = 3;
  std::int32_t num_slots = 16;
  std::int32_t num_blocks = 256;
  std::int64_t host_bytes = 64 << 20;
  std::int32_t max_batch_size = 16;
  // Default: beside the model, MODEL-draft.
  std::optional<std::filesystem::path> draft_directory = std::nullopt;
};

// Refuses what can never work with any model. Errors: kInvalidArgument.
Result<void> check(const EngineOptions& options);

// An engine with all that it borrows, loaded and made in the order in which they need each other.
//
// Ownership: owns everything.
// Threads: as the engine.
// Errors: those of loading and of Engine::create().
class EngineHost {
 public:
  // `config` has what the options do not say; they say the rest.
  static Result<std::unique_ptr<EngineHost>> create(const ModelOptions& model_options,
                                                    const EngineOptions& options,
                                                    engine::EngineConfig config);

  engine::Engine& engine() { return *engine_; }
  const model::Model& model() const { return *model_; }
  const model::Tokenizer& tokenizer() const { return *tokenizer_; }
  // For what is computed beside the engine.
  kernels::ExecutionContext& solo_context() { return *solo_context_; }

 private:
  EngineHost() = default;

  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<kernels::ExecutionContext> context_;
  std::unique_ptr<ThreadPool> solo_pool_;
  std::unique_ptr<kernels::ExecutionContext> solo_context_;
  std::optional<model::Tokenizer> tokenizer_;
  std::optional<model::Model> model_;
  std::optional<model::Model> draft_;
  std::unique_ptr<engine::LanguageModel> target_;
  std::unique_ptr<engine::LanguageModel> drafter_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_ENGINE_OPTIONS_H_
