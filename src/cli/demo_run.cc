#include "cli/demo_run.h"

#include <algorithm>
#include <utility>

#include "cli/demo_prompts.h"
#include "slackwater/model/generate.h"

namespace slackwater::cli {

DemoRun::DemoRun(EngineHost& host, const DemoOptions& options)
    : host_(host), options_(options), random_(options.seed) {}

Result<void> DemoRun::submit(std::size_t number, std::vector<TokenId> prompt) {
  engine::GenerationRequest request;
  request.prompt_tokens = std::move(prompt);
  // Answers of half to one and a half times the length, so that nobody ends together.
  const auto half = static_cast<std::uint64_t>(options_.max_tokens / 2);
  const auto wanted =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(half + random_() % (2 * half + 1)));
  // So little memory that less fits is part of the show; where nothing does, it is refused.
  const std::int64_t room =
      host_.engine().max_sequence_length() - std::ssize(request.prompt_tokens);
  request.max_tokens = static_cast<std::int32_t>(std::clamp<std::int64_t>(room, 1, wanted));
  request.sampling.temperature = options_.temperature;
  request.sampling.seed = options_.seed * 1000 + number;
  request.on_output = [this](const engine::RequestOutput& output) { note(output); };
  SLACKWATER_ASSIGN_OR_RETURN(const RequestId id, host_.engine().submit(request));
  DemoRequest& added = requests_.emplace_back();
  added.id = id;
  added.asked = std::move(request);
  by_id_.emplace(id, &added);
  return {};
}

Result<std::vector<TokenId>> DemoRun::first_turn(std::size_t number) const {
  return model::encode_prompt(host_.model().config(), host_.tokenizer(), demo_prompt(number));
}

Result<void> DemoRun::submit_all(bool with_second_turns) {
  num_requests_ = options_.num_requests;
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_requests_); ++i) {
    if (with_second_turns && i % 4 == 3) {
      second_turns_.emplace_back(i, requests_.back().id);
      continue;
    }
    SLACKWATER_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, first_turn(i));
    SLACKWATER_RETURN_IF_ERROR(submit(i, std::move(prompt)));
  }
  return {};
}

// The first prompt, its answer, and something new; where that is longer than anybody may be, a
// first turn of its own.
Result<void> DemoRun::submit_second_turns() {
  for (auto at = second_turns_.begin(); at != second_turns_.end();) {
    const auto [number, first_id] = *at;
    const DemoRequest& first = *by_id_.at(first_id);
    if (!first.finish_reason.has_value()) {
      ++at;
      continue;
    }
    std::vector<TokenId> prompt = first.asked.prompt_tokens;
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    SLACKWATER_ASSIGN_OR_RETURN(const std::vector<TokenId> turn,
                                host_.tokenizer().encode(demo_follow_up(number)));
    prompt.insert(prompt.end(), turn.begin(), turn.end());
    if (std::ssize(prompt) >= host_.engine().max_sequence_length()) {
      SLACKWATER_ASSIGN_OR_RETURN(prompt, first_turn(number));
    }
    at = second_turns_.erase(at);
    SLACKWATER_RETURN_IF_ERROR(submit(number, std::move(prompt)));
  }
  return {};
}

Result<void> DemoRun::load(const std::filesystem::path& directory) {
  SLACKWATER_ASSIGN_OR_RETURN(
      std::vector<engine::ResumedRequest> resumed,
      host_.engine().load_bundle(directory,
                                 [this](const engine::RequestOutput& output) { note(output); }));
  for (engine::ResumedRequest& request : resumed) {
    DemoRequest& added = requests_.emplace_back();
    added.id = request.id;
    added.choice = request.choice;
    added.asked = std::move(request.request);
    added.tokens = std::move(request.answer);
    added.text = std::move(request.text);
    by_id_.emplace(added.id, &added);
  }
  num_requests_ = static_cast<std::int32_t>(requests_.size());
  return {};
}

void DemoRun::note(const engine::RequestOutput& output) {
  const auto at = by_id_.find(output.request);
  if (at == by_id_.end()) return;
  DemoRequest& request = *at->second;
  for (const engine::OutputToken& token : output.tokens) request.tokens.push_back(token.token);
  request.text += output.text;
  if (!output.finish_reason.has_value()) return;
  request.finish_reason = output.finish_reason;
  request.error = output.error;
  request.num_reused = output.num_reused_tokens;
}

bool DemoRun::is_due(std::int32_t every) {
  return every > 0 && random_() % static_cast<std::uint64_t>(every) == 0;
}

// A victim without need, preferably in the middle of a round.
void DemoRun::disturb() {
  if (!is_due(options_.suspend_every)) return;
  std::vector<RequestId> under_way;
  for (const engine::RequestView& view : host_.engine().view()) {
    if (view.is_in_flight || view.num_pending > 0) under_way.push_back(view.request);
  }
  if (!under_way.empty()) host_.engine().suspend(under_way[random_() % under_way.size()]);
}

Result<bool> DemoRun::step() {
  disturb();
  SLACKWATER_RETURN_IF_ERROR(submit_second_turns());
  SLACKWATER_ASSIGN_OR_RETURN(const bool goes_on, host_.engine().step());
  return goes_on || !second_turns_.empty();
}

bool DemoRun::is_mid_speculation() const {
  if (host_.engine().config().speculation.drafter == engine::DrafterKind::kNone) return true;
  const std::vector<engine::RequestView> views = host_.engine().view();
  return std::any_of(views.begin(), views.end(), [](const engine::RequestView& view) {
    return view.num_pending > 0 || (view.is_in_flight && view.draft_length > 0);
  });
}

const DemoRequest* DemoRun::find(RequestId id) const {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : at->second;
}

std::int64_t DemoRun::num_finished() const {
  return std::count_if(requests_.begin(), requests_.end(), [](const DemoRequest& request) {
    return request.finish_reason.has_value();
  });
}

std::function<bool(std::int64_t)> make_faults(const DemoOptions& options) {
  if (options.fault_every == 0) return nullptr;
  return [random = std::mt19937_64(options.seed + 1),
          every = static_cast<std::uint64_t>(options.fault_every)](std::int64_t) mutable {
    return random() % every == 0;
  };
}

}  // namespace slackwater::cli
