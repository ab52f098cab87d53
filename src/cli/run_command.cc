#include "cli/run_command.h"

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/answer_file.h"
#include "cli/prompt_file.h"
#include "cli/standard_streams.h"
#include "cli/terminal.h"
#include "slackwater/model/generate.h"

namespace slackwater::cli {
namespace {

using nlohmann::ordered_json;

constexpr Nanoseconds kLogInterval = std::chrono::seconds(2);

ordered_json json_of(const Error& error) {
  return {{"code", to_string(error.code())}, {"message", error.text()}};
}

// Whatever bytes a name or a message has.
std::string dump(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json json_of(const engine::OutputToken& token) {
  ordered_json top = ordered_json::array();
  for (const kernels::TokenLogprob& other : token.top_logprobs) {
    top.push_back({{"token", other.token}, {"logprob", other.logprob}});
  }
  return {{"token", token.token}, {"logprob", token.logprob}, {"top", std::move(top)}};
}

// One choice that is under way.
struct OpenAnswer {
  std::string id;
  bool has_logprobs = false;
  bool is_known = false;  // its answer is in the output already
  std::string text;
  std::vector<TokenId> tokens;
  ordered_json logprobs = ordered_json::array();
};

class Batch {
 public:
  Batch(const RunCommand& command, EngineHost& host, LineReader lines, AnswerFile answers)
      : command_(command),
        host_(host),
        lines_(std::move(lines)),
        answers_(std::move(answers)),
        num_before_(answers_.num_answers()) {}

  Result<void> run();

 private:
  Result<void> refill();
  Result<void> take(std::string_view text);
  Result<void> submit(PromptLine line);
  Result<void> refuse(const PromptFault& fault);
  void note(const engine::RequestOutput& output);
  void finish(const engine::RequestOutput& output, OpenAnswer& answer);
  void show();

  const RunCommand& command_;
  EngineHost& host_;
  LineReader lines_;
  AnswerFile answers_;
  const std::int64_t num_before_;
  bool is_at_end_ = false;
  std::map<RequestId, OpenAnswer> open_;
  std::unordered_map<Digest128, std::int64_t, DigestHash> line_of_id_;
  std::int64_t num_failed_ = 0;  // answers that are an error
  std::int64_t num_tokens_ = 0;
  Result<void> written_;  // what became of the answers of a step
  LiveScreen screen_;
  RealClock clock_;
  const Nanoseconds started_ = clock_.now();
  Nanoseconds last_log_ = started_;
};

Result<void> Batch::run() {
  while (true) {
    SLACKWATER_RETURN_IF_ERROR(refill());
    if (open_.empty()) break;
    SLACKWATER_RETURN_IF_ERROR(host_.engine().step());
    SLACKWATER_RETURN_IF_ERROR(written_);
    show();
  }
  screen_.draw({});
  const double seconds = std::chrono::duration<double>(clock_.now() - started_).count();
  write_standard_error(
      fmt::format("[{} lines: {} answers, {} of them there before; {} tokens, {:.0f} tokens/s]\n",
                  lines_.num_lines(), answers_.num_answers(), num_before_, num_tokens_,
                  static_cast<double>(num_tokens_) / seconds));
  const std::int64_t without = answers_.num_faults() + num_failed_;
  if (without == 0) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "{} of {} lines have no answer; the output says why, and all others are there",
                    without, lines_.num_lines());
}

// As many lines as the engine may have; the rest of the file stays where it is.
Result<void> Batch::refill() {
  while (!is_at_end_ && std::ssize(open_) < command_.num_in_flight) {
    SLACKWATER_ASSIGN_OR_RETURN(const std::optional<std::string> text, lines_.next());
    is_at_end_ = !text.has_value();
    if (text.has_value()) SLACKWATER_RETURN_IF_ERROR(take(*text));
  }
  return {};
}

Result<void> Batch::take(std::string_view text) {
  if (text.find_first_not_of(" \t\r") == std::string_view::npos) return {};
  const std::int64_t number = lines_.num_lines();
  if (answers_.has_fault(number)) return {};
  tl::expected<PromptLine, PromptFault> line = parse_prompt_line(text, number, command_.seed);
  if (!line.has_value()) return refuse(line.error());
  const auto [first, is_new] =
      line_of_id_.emplace(xxh3_128(std::as_bytes(std::span(line->id))), number);
  if (!is_new) {
    return refuse({number, line->id,
                   Error(ErrorCode::kInvalidArgument,
                         fmt::format("the id {} is that of line {}, too; ids are there once",
                                     line->id, first->second))});
  }
  return submit(*std::move(line));
}

Result<void> Batch::submit(PromptLine line) {
  std::vector<bool> is_known;
  bool is_done = true;
  for (std::int32_t choice = 0; choice < line.request.num_choices; ++choice) {
    is_known.push_back(answers_.has_answer(line.id, choice));
    is_done = is_done && is_known.back();
  }
  if (is_done) return {};
  if (const auto* const tokens = std::get_if<1>(&line.prompt); tokens != nullptr) {
    line.request.prompt_tokens = *tokens;
  } else {
    Result<std::vector<TokenId>> encoded = model::encode_prompt(
        host_.model().config(), host_.tokenizer(), std::get<std::string>(line.prompt));
    if (!encoded.has_value()) return refuse({line.number, line.id, encoded.error()});
    line.request.prompt_tokens = *std::move(encoded);
  }
  const bool has_logprobs = line.request.wants_logprobs;
  line.request.on_output = [this](const engine::RequestOutput& output) { note(output); };
  const Result<RequestId> id = host_.engine().submit(std::move(line.request));
  if (!id.has_value()) return refuse({line.number, line.id, id.error()});
  for (std::size_t choice = 0; choice < is_known.size(); ++choice) {
    OpenAnswer& answer = open_[RequestId(id->value() + choice)];
    answer.id = line.id;
    answer.has_logprobs = has_logprobs;
    answer.is_known = is_known[choice];
  }
  return {};
}

// Told on standard error and in the output; the next line is as good as ever.
Result<void> Batch::refuse(const PromptFault& fault) {
  screen_.draw({});
  write_standard_error(fmt::format("slackwater: {}\n",
                                   in_one_line(fmt::format("{}:{}: {}", command_.prompts.string(),
                                                           fault.number, fault.error.text()))));
  ordered_json object = {{"line", fault.number}};
  if (fault.id.has_value()) object["id"] = ordered_json::parse(*fault.id);
  object["error"] = json_of(fault.error);
  return answers_.append_fault(fault.number, dump(object));
}

void Batch::note(const engine::RequestOutput& output) {
  const auto at = open_.find(output.request);
  if (at == open_.end()) return;
  OpenAnswer& answer = at->second;
  answer.text += output.text;
  num_tokens_ += std::ssize(output.tokens);
  for (const engine::OutputToken& token : output.tokens) {
    answer.tokens.push_back(token.token);
    if (answer.has_logprobs) answer.logprobs.push_back(json_of(token));
  }
  if (!output.finish_reason.has_value()) return;
  if (!answer.is_known) finish(output, answer);
  open_.erase(at);
}

void Batch::finish(const engine::RequestOutput& output, OpenAnswer& answer) {
  if (!written_.has_value()) return;
  ordered_json object = {{"id", ordered_json::parse(answer.id)},
                         {"choice", output.choice},
                         {"text", std::move(answer.text)},
                         {"finish_reason", to_string(*output.finish_reason)}};
  if (command_.has_tokens) object["tokens"] = std::move(answer.tokens);
  if (answer.has_logprobs) object["logprobs"] = std::move(answer.logprobs);
  object["usage"] = {{"prompt_tokens", output.num_prompt_tokens},
                     {"completion_tokens", output.num_generated_tokens},
                     {"reused_tokens", output.num_reused_tokens}};
  if (output.error.has_value()) {
    object["error"] = json_of(*output.error);
    ++num_failed_;
  }
  written_ = answers_.append_answer(answer.id, output.choice, dump(object));
}

void Batch::show() {
  const Nanoseconds now = clock_.now();
  if (!screen_.is_due() && (screen_.is_terminal() || now - last_log_ < kLogInterval)) return;
  last_log_ = now;
  const std::string said = fmt::format(
      "{} answers, {} under way, {} faults, {:.0f} tokens/s", answers_.num_answers(), open_.size(),
      answers_.num_faults() + num_failed_,
      static_cast<double>(num_tokens_) / std::chrono::duration<double>(now - started_).count());
  if (!screen_.is_terminal()) {
    write_standard_error(said + "\n");
    return;
  }
  ScreenLine line(screen_.width(), screen_.has_color());
  if (lines_.total_bytes() > 0) line.add_bar(24, lines_.num_bytes(), 0, lines_.total_bytes());
  screen_.draw({line.add("  " + said)});
}

}  // namespace

Result<void> check(const RunCommand& command) {
  SLACKWATER_RETURN_IF_ERROR(target(command.model));
  return check(command.engine);
}

Result<void> run(const RunCommand& command) {
  // What is quick to refuse comes before the weights.
  SLACKWATER_ASSIGN_OR_RETURN(LineReader lines, LineReader::open(command.prompts));
  SLACKWATER_ASSIGN_OR_RETURN(AnswerFile answers, AnswerFile::open(command.output));
  SLACKWATER_ASSIGN_OR_RETURN(const std::unique_ptr<EngineHost> host,
                              EngineHost::create(command.model, command.engine, {}));
  return Batch(command, *host, std::move(lines), std::move(answers)).run();
}

}  // namespace slackwater::cli
