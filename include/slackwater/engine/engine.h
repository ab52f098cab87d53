#ifndef SLACKWATER_ENGINE_ENGINE_H_
#define SLACKWATER_ENGINE_ENGINE_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/device/device.h"
#include "slackwater/engine/config.h"
#include "slackwater/engine/language_model.h"
#include "slackwater/engine/request.h"
#include "slackwater/engine/statistics.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater::hybrid {
class HybridCacheManager;
}

namespace slackwater::engine {

class Executor;

// What an engine borrows; all of it outlives the engine.
struct EngineParts {
  device::Device* device = nullptr;
  kernels::ExecutionContext* context = nullptr;
  LanguageModel* model = nullptr;
  LanguageModel* draft_model = nullptr;         // with DrafterKind::kDraftModel
  const model::Tokenizer* tokenizer = nullptr;  // null: no text comes out, and no stop texts
};

// What hold() does with what a request has.
enum class HoldPolicy : std::uint8_t {
  kSuspend,    // keeps it; where there is no host tier, as kRecompute
  kRecompute,  // gives it up
};

// A request that was taken up from a bundle.
struct ResumedRequest {
  RequestId id;
  std::int32_t choice = 0;
  GenerationRequest request;    // without on_output
  std::vector<TokenId> answer;  // what was told of it before
  std::string text;
};

// Many requests over pools that may be far too small for them.
//
// A request runs in steps with others: chunks of its prompt, then rounds of a golden token and
// drafts. When there is no room the youngest is suspended, as a whole and losslessly, and resumes
// later, in whatever slot is free; or it is computed again. Its tokens are those of
// model::generate_solo, whatever happens to it.
//
// Source: the executor loops of TensorRT-LLM, kda_replay.md 4 to 6; docs/engine.md.
// Invariants:
//   I1  the tokens of a request depend on the model, its prompt, its sampling parameters and its
//       seed only.
//   I2  every request that was accepted gets exactly one output with a finish reason, its last.
//   I3  the oldest request that is not held always gets on, so every request finishes.
// Ownership: owns the state of all requests; borrows its parts.
// Threads: submit(), cancel(), hold(), release() and statistics() from any thread; step() and
// everything else from one at a time. Callbacks run within step(), and may submit and cancel.
// Errors: submit() refuses what can never work; step() says what stops the engine as a whole. What
// goes wrong with one request is told by its output.
// Cost: a step costs what its model costs, and about a microsecond per request beside it.
class Engine {
 public:
  // kInvalidArgument names what cannot work: no slots, host bytes that hold no save, a drafter
  // without its model or with another vocabulary.
  static Result<std::unique_ptr<Engine>> create(const EngineParts& parts, EngineConfig config);
  ~Engine();

  // Returns at once. kInvalidArgument for what the fields allow never, kOutOfRange for a request
  // that can never fit, with the numbers. Of several choices the id is that of the first; choice i
  // has the id + i.
  Result<RequestId> submit(GenerationRequest request);
  // All choices of it; they end with kCancelled. Unknown or finished: nothing.
  void cancel(RequestId request);

  // One pass: takes what was submitted and cancelled, plans a step, queues it, and tells what has
  // become certain. Returns false when there is nothing left to do.
  Result<bool> step();
  // Until there is nothing left to do.
  Result<void> run();
  bool has_work() const;

  // Takes a request out of the turn until release(), as if it had to make room; in the middle of a
  // round too. Unknown: nothing.
  void hold(RequestId request, HoldPolicy policy);
  void release(RequestId request);
  // Suspends it now as a victim would be; it comes back by itself. Unknown or not resident:
  // nothing.
  void suspend(RequestId request);

  // Writes all requests that are not finished to a new directory; they are suspended first, and go
  // on afterwards. kUnavailable or kInvalidArgument leaves nothing there.
  Result<void> save_bundle(const std::filesystem::path& directory);
  // Takes up the requests of a bundle, with the ids they had, in the order of their arrival; what
  // they go on to say goes to `on_output`. Refused as a whole: nothing has changed then. Ids of
  // later requests come after them.
  Result<std::vector<ResumedRequest>> load_bundle(
      const std::filesystem::path& directory, std::function<void(const RequestOutput&)> on_output);

  // Changes what the device's pools have, while everybody is suspended.
  Result<void> rebalance_now();

  EngineStatistics statistics() const;
  std::vector<RequestView> view() const;
  const EngineConfig& config() const;
  // The longest sequence that one request can have: prompt and answer.
  std::int64_t max_sequence_length() const;
  hybrid::HybridCacheManager& state();
  // Aborts with the invariant's number where one does not hold; waits for what is queued.
  void audit();

 private:
  explicit Engine(std::unique_ptr<Executor> executor);

  std::unique_ptr<Executor> executor_;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_ENGINE_H_
