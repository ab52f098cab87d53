#include "slackwater/engine/engine.h"

#include <utility>

#include "engine/executor.h"

namespace slackwater::engine {

Engine::Engine(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineParts& parts, EngineConfig config) {
  SLACKWATER_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                              Executor::create(parts, std::move(config)));
  return std::unique_ptr<Engine>(new Engine(std::move(executor)));
}

Result<RequestId> Engine::submit(GenerationRequest request) {
  return executor_->submit(std::move(request));
}
void Engine::cancel(RequestId request) { executor_->cancel(request); }
Result<bool> Engine::step() { return executor_->step(); }
bool Engine::has_work() const { return executor_->has_work(); }

Result<void> Engine::run() {
  bool goes_on = true;
  while (goes_on) {
    SLACKWATER_ASSIGN_OR_RETURN(goes_on, executor_->step());
  }
  return {};
}

void Engine::hold(RequestId request, HoldPolicy policy) { executor_->hold(request, policy); }
void Engine::release(RequestId request) { executor_->release(request); }
void Engine::suspend(RequestId request) { executor_->suspend_now(request); }

Result<void> Engine::save_bundle(const std::filesystem::path& directory) {
  return executor_->save_bundle(directory);
}
Result<std::vector<ResumedRequest>> Engine::load_bundle(
    const std::filesystem::path& directory, std::function<void(const RequestOutput&)> on_output) {
  return executor_->load_bundle(directory, std::move(on_output));
}

Result<void> Engine::rebalance_now() { return executor_->rebalance_now(); }
EngineStatistics Engine::statistics() const { return executor_->statistics(); }
std::vector<RequestView> Engine::view() const { return executor_->view(); }
const EngineConfig& Engine::config() const { return executor_->config(); }
std::int64_t Engine::max_sequence_length() const { return executor_->max_sequence_length(); }
hybrid::HybridCacheManager& Engine::state() { return executor_->state(); }
void Engine::audit() { executor_->audit(); }

}  // namespace slackwater::engine
