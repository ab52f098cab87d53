#ifndef SLACKWATER_TESTS_SIM_ENGINE_ENGINE_SIMULATION_H_
#define SLACKWATER_TESTS_SIM_ENGINE_ENGINE_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "slackwater/base/thread_pool.h"
#include "slackwater/device/sim_device.h"
#include "slackwater/engine/engine.h"
#include "testing/operations.h"
#include "testing/solo_oracle.h"
#include "testing/temporary_directory.h"

namespace slackwater::engine {

using Tokens = std::vector<TokenId>;

// What happened over some seeds. All of it must happen, or the simulation shows nothing.
struct EngineTally {
  std::int64_t seeds = 0;
  std::int64_t requests = 0;  // choices count each
  std::int64_t answers = 0;   // compared to their end
  std::int64_t tokens = 0;    // compared
  std::int64_t reused = 0;    // tokens of prompts
  std::int64_t cancels = 0;
  std::int64_t holds = 0;
  std::int64_t second_turns = 0;  // that begin with what another was answered
  std::int64_t several_choices = 0;
  std::int64_t stopped = 0;
  std::int64_t errors = 0;       // that the request alone has too
  std::int64_t refusals = 0;     // of requests that can never fit
  std::int64_t faults = 0;       // of copies and of memory
  std::int64_t left_behind = 0;  // requests of engines that ended before them
  std::int64_t bundles = 0;      // written
  std::int64_t restarts = 0;     // engines that went on from a bundle
  std::int64_t wrong_reads = 0;  // by the models, after faults
  std::int64_t worst_drain = 0;  // steps from the last submission to the end
  EngineStatistics engine;

  void add(const EngineTally& other);
  std::string describe() const;
};

// The models of a simulation: of an engine, and one for the oracle. Fresh ones for every engine.
struct SimulatedModels {
  std::unique_ptr<LanguageModel> target;
  std::unique_ptr<LanguageModel> draft;
  std::unique_ptr<LanguageModel> alone;
  const model::Tokenizer* tokenizer = nullptr;
  // Prompts are cut out of it; empty: random tokens.
  Tokens text;
  // What was read and was not right: by the target, and by those who only propose.
  std::function<std::int64_t()> num_wrong;
  std::function<std::int64_t()> num_wrong_drafts;
  std::function<std::string()> first_wrong;
};
using MakeModels = std::function<SimulatedModels(kernels::ExecutionContext& context,
                                                 kernels::ExecutionContext& alone)>;
SimulatedModels make_digest_models(kernels::ExecutionContext& context,
                                   kernels::ExecutionContext& alone);

// What is chosen for a simulation; the rest is drawn.
struct EngineSimulationOptions {
  std::uint64_t seed = 0;
  std::optional<DrafterKind> drafter;
  std::optional<LoopKind> loop;
  bool has_faults = true;
  bool is_under_pressure = false;  // a host tier, few slots, many requests
  std::size_t max_live = 0;        // requests at a time; 0: as drawn
  MakeModels make_models = make_digest_models;
};

// Random requests to an Engine over the sim device: few slots and blocks for many of them, tiers
// from none to all, faults, and everything that its users may do at any moment. Each answer is
// compared with that of the request alone.
//
// A fault may cost a recompute. It never costs a token, and nobody waits forever.
class EngineSimulation {
 public:
  explicit EngineSimulation(const EngineSimulationOptions& options);
  ~EngineSimulation();

  // Submits requests for so many steps, and then goes on until all have ended.
  void run(std::int64_t num_steps);
  // Submits until so many requests were, and goes on until all have ended.
  void run_requests(std::int64_t num_requests);
  const EngineTally& tally() const { return tally_; }
  // What was drawn.
  std::string describe() const;

 private:
  enum Operation : std::size_t {
    kSubmit,
    kCancel,
    kHold,
    kRelease,
    kSuspend,
    kRebalance,
    kBundle,
    kAudit,
    kLook,
    kRunDevice,
    kNumOperations
  };

  // One choice of a request.
  struct Asked {
    GenerationRequest request;
    std::int32_t choice = 0;
    RequestId first;  // choice
    std::vector<OutputToken> tokens;
    std::string text;
    bool is_held = false;
    bool is_cancelled = false;
    std::int64_t cancelled_at = 0;  // steps before
  };

  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool once_in(std::uint64_t times) { return below(times) == 0; }
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(last - first + 1)));
  }
  template <class T>
  T any_of(std::initializer_list<T> values) {
    return *(values.begin() + below(values.size()));
  }

  // What is drawn.
  void draw_config();
  void draw_pools();
  void make_engine();
  GenerationRequest draw_request();
  Tokens draw_prompt();
  Tokens draw_tokens(std::int64_t count);
  void draw_sampling(GenerationRequest& request);

  // What happens.
  void step();
  void operate();
  void submit(GenerationRequest request);
  void misuse();
  Asked* draw_live(RequestId& id);
  void for_choices(RequestId id, const std::function<void(Asked&)>& visit);
  void cancel(RequestId id);
  void bundle();
  void drain();
  void go_on_while(const std::function<bool()>& has_more);

  // What is compared.
  void note(const RequestOutput& output);
  void compare_tokens(const Asked& asked, const LoneAnswer& alone);
  void compare_end(Asked& asked, const RequestOutput& output);
  void judge();
  void count_engine();
  std::string describe(const Asked& asked) const;

  const EngineSimulationOptions options_;
  std::mt19937_64 random_;
  OperationWeights<kNumOperations> weights_;
  std::uint64_t copy_fault_permille_ = 0;
  std::uint64_t step_fault_permille_ = 0;
  std::uint64_t commit_fault_percent_ = 0;
  std::size_t max_live_ = 0;
  std::int64_t max_prompt_ = 0;
  std::int64_t max_answer_ = 0;
  bool is_running_ = false;  // faults begin once it is made
  bool is_in_step_ = false;

  ThreadPool pool_{1};
  kernels::ExecutionContext context_{pool_};
  ThreadPool alone_pool_{1};
  kernels::ExecutionContext alone_context_{alone_pool_};
  SimulatedModels models_;
  std::unique_ptr<SoloOracle> oracle_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<device::SimDevice> device_;
  EngineConfig config_;
  std::unique_ptr<Engine> engine_;

  std::map<RequestId, Asked> asked_;          // that have not ended
  std::vector<Tokens> prompts_;               // that others may begin with
  std::vector<GenerationRequest> to_submit_;  // by callbacks, after the next step
  std::int64_t steps_ = 0;
  std::int64_t steps_owed_ = 0;  // at most, for what was submitted
  EngineTally tally_;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_TESTS_SIM_ENGINE_ENGINE_SIMULATION_H_
