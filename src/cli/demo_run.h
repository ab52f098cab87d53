#ifndef SLACKWATER_CLI_DEMO_RUN_H_
#define SLACKWATER_CLI_DEMO_RUN_H_

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cli/engine_options.h"
#include "slackwater/base/error.h"
#include "slackwater/engine/engine.h"

namespace slackwater::cli {

// What the demonstration asks of the engine, and what it does to it.
struct DemoOptions {
  std::int32_t num_requests = 24;
  std::int32_t max_tokens = 48;  // of an answer on average
  float temperature = 0.7F;
  std::uint64_t seed = 1;          // of prompts' lengths, of sampling, and of all that goes wrong
  std::int32_t suspend_every = 4;  // steps; a request under way is suspended then; 0: never
  std::int32_t fault_every = 40;   // steps, on average; the device fails one; 0: never
};

// One request of the demonstration, and its answer so far.
struct DemoRequest {
  RequestId id;
  std::int32_t choice = 0;
  engine::GenerationRequest asked;
  std::vector<TokenId> tokens;  // of the answer
  std::string text;
  std::optional<engine::FinishReason> finish_reason;
  std::optional<Error> error;
  std::int64_t num_reused = 0;
};

// Requests over an engine that is disturbed all the time: the prompts, the second turns, suspends
// in the middle of rounds, and the answers.
//
// Invariants:
//   I1  the same options and engine options give the same requests, and the same disturbances as
//       far as the engine takes the same steps.
// Ownership: borrows the host.
// Threads: one.
// Errors: those of the engine.
class DemoRun {
 public:
  DemoRun(EngineHost& host, const DemoOptions& options);

  // All requests; with second turns some of them come when the one before has its answer.
  Result<void> submit_all(bool with_second_turns);
  // Those of a bundle.
  Result<void> load(const std::filesystem::path& directory);
  // One step, after what disturbs it. False: all answers are there.
  Result<bool> step();
  // Somebody has drafts that are accepted and not folded in, or under way. Without a drafter: yes.
  bool is_mid_speculation() const;

  // In the order in which they were submitted.
  const std::deque<DemoRequest>& requests() const { return requests_; }
  const DemoRequest* find(RequestId id) const;
  std::int32_t num_requests() const { return num_requests_; }
  std::int64_t num_finished() const;

 private:
  Result<std::vector<TokenId>> first_turn(std::size_t number) const;
  Result<void> submit(std::size_t number, std::vector<TokenId> prompt);
  Result<void> submit_second_turns();
  void note(const engine::RequestOutput& output);
  void disturb();
  bool is_due(std::int32_t every);

  EngineHost& host_;
  const DemoOptions options_;
  std::mt19937_64 random_;
  std::deque<DemoRequest> requests_;
  std::map<RequestId, DemoRequest*> by_id_;
  // Of second turns: the number of the request, and the first turn, which is not done.
  std::vector<std::pair<std::size_t, RequestId>> second_turns_;
  std::int32_t num_requests_ = 0;  // to come, too
};

// For EngineConfig::fail_step: the seed says which steps fail.
std::function<bool(std::int64_t)> make_faults(const DemoOptions& options);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_DEMO_RUN_H_
