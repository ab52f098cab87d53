#include "cli/prompt_file.h"

#include <cerrno>
#include <charconv>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "slackwater/model/tokenizer.h"

namespace slackwater::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMostLineBytes = std::size_t{1} << 28;

Result<void> wrong(std::string_view field, const json& value, std::string_view legal) {
  std::string shown = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr std::size_t kShown = 40;
  if (shown.size() > kShown) shown = shown.substr(0, kShown) + "...";
  return make_error(ErrorCode::kInvalidArgument, "{} is {}; use {}", field, shown, legal);
}

template <class Integer>
Result<void> read_integer(std::string_view field, const json& value, Integer least, Integer most,
                          Integer& out) {
  const std::string legal =
      fmt::format("an integer from {} to {}", std::int64_t{least}, std::int64_t{most});
  if (!value.is_number_integer()) return wrong(field, value, legal);
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return wrong(field, value, legal);
  }
  const auto number = value.get<std::int64_t>();
  if (number < std::int64_t{least} || number > std::int64_t{most}) {
    return wrong(field, value, legal);
  }
  out = static_cast<Integer>(number);
  return {};
}

Result<void> read_number(std::string_view field, const json& value, float& out) {
  if (!value.is_number()) return wrong(field, value, "a number");
  out = value.get<float>();
  return {};
}

Result<void> read_flag(std::string_view field, const json& value, bool& out) {
  if (!value.is_boolean()) return wrong(field, value, "true or false");
  out = value.get<bool>();
  return {};
}

Result<void> read_seed(const json& value, std::uint64_t& out) {
  if (!value.is_number_integer() ||
      (!value.is_number_unsigned() && value.get<std::int64_t>() < 0)) {
    return wrong("seed", value, "an integer from 0 to 2^64 - 1");
  }
  out = value.get<std::uint64_t>();
  return {};
}

Result<void> read_tokens(std::string_view field, const json& value, std::vector<TokenId>& out) {
  if (!value.is_array()) return wrong(field, value, "a list of tokens");
  for (const json& item : value) {
    SLACKWATER_RETURN_IF_ERROR(read_integer<TokenId>(
        field, item, 0, std::numeric_limits<TokenId>::max(), out.emplace_back()));
  }
  return {};
}

// One text, or a list of them.
Result<void> read_stop(const json& value, std::vector<std::string>& out) {
  const json list = value.is_array() ? value : json::array({value});
  for (const json& item : list) {
    if (!item.is_string()) return wrong("stop", value, "a text or a list of texts");
    out.push_back(item.get<std::string>());
  }
  return {};
}

// An object: {"17": -2.5}.
Result<void> read_bias(const json& value, std::vector<kernels::TokenBias>& out) {
  if (!value.is_object()) return wrong("logit_bias", value, "an object of token: number");
  for (const auto& [name, bias] : value.items()) {
    kernels::TokenBias& added = out.emplace_back();
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data(), end, added.token);
    if (error != std::errc() || stop != end) {
      return wrong("logit_bias", json(name), "tokens, in decimal, as names");
    }
    SLACKWATER_RETURN_IF_ERROR(read_number("logit_bias", bias, added.bias));
  }
  return {};
}

// true, or how many of the best are wanted, too.
Result<void> read_logprobs(const json& value, engine::GenerationRequest& request) {
  if (value.is_boolean()) {
    request.wants_logprobs = value.get<bool>();
    return {};
  }
  request.wants_logprobs = true;
  return read_integer<std::int32_t>("logprobs", value, 0, 20, request.num_top_logprobs);
}

Result<void> read_sampling(const std::string& field, const json& value,
                           kernels::SamplingParameters& sampling, bool& is_known) {
  is_known = true;
  if (field == "temperature") return read_number(field, value, sampling.temperature);
  if (field == "top_p") return read_number(field, value, sampling.top_p);
  if (field == "min_p") return read_number(field, value, sampling.min_p);
  if (field == "frequency_penalty") return read_number(field, value, sampling.frequency_penalty);
  if (field == "presence_penalty") return read_number(field, value, sampling.presence_penalty);
  if (field == "seed") return read_seed(value, sampling.seed);
  if (field == "top_k") {
    return read_integer<std::int32_t>(field, value, 0, std::numeric_limits<std::int32_t>::max(),
                                      sampling.top_k);
  }
  is_known = false;
  return {};
}

Result<void> read_field(const std::string& field, const json& value, PromptLine& line) {
  engine::GenerationRequest& request = line.request;
  bool is_known = false;
  SLACKWATER_RETURN_IF_ERROR(read_sampling(field, value, request.sampling, is_known));
  if (is_known || field == "id") return {};
  if (field == "prompt") {
    if (!value.is_string()) return wrong(field, value, "a text");
    line.prompt = value.get<std::string>();
    return {};
  }
  if (field == "prompt_tokens") return read_tokens(field, value, line.prompt.emplace<1>());
  if (field == "max_tokens") {
    return read_integer<std::int32_t>(field, value, 0, std::numeric_limits<std::int32_t>::max(),
                                      request.max_tokens);
  }
  if (field == "stop") return read_stop(value, request.stop);
  if (field == "stop_token_ids") return read_tokens(field, value, request.stop_token_ids);
  if (field == "ignore_eos") return read_flag(field, value, request.ignore_eos);
  if (field == "n") return read_integer<std::int32_t>(field, value, 1, 128, request.num_choices);
  if (field == "logit_bias") return read_bias(value, request.logit_bias);
  if (field == "logprobs") return read_logprobs(value, request);
  if (field == "speculation") return read_flag(field, value, request.enable_speculation);
  if (field == "priority") {
    return read_integer<std::int32_t>(field, value, 0, 100, request.page_priority);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "the field '{}' is not known; see slackwater run --help", field);
}

Result<std::string> read_id(const json& object, std::int64_t number) {
  const auto at = object.find("id");
  if (at == object.end()) return std::to_string(number);
  if (!at->is_string() && !at->is_number_integer()) {
    return make_error(ErrorCode::kInvalidArgument, "id is {}; use a text or an integer",
                      at->dump(-1, ' ', false, json::error_handler_t::replace));
  }
  return at->dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<void> read_fields(const json& object, PromptLine& line) {
  if (object.contains("prompt") == object.contains("prompt_tokens")) {
    return make_error(ErrorCode::kInvalidArgument, "give either prompt or prompt_tokens");
  }
  for (const auto& [field, value] : object.items()) {
    SLACKWATER_RETURN_IF_ERROR(read_field(field, value, line));
  }
  return {};
}

}  // namespace

tl::expected<PromptLine, PromptFault> parse_prompt_line(std::string_view text, std::int64_t number,
                                                        std::uint64_t default_seed) {
  const auto fault = [&](std::optional<std::string> id, Error error) {
    return tl::unexpected<PromptFault>({number, std::move(id), std::move(error)});
  };
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) {
    return fault(std::nullopt,
                 Error(ErrorCode::kInvalidArgument, "the line is not JSON; it needs one object"));
  }
  if (!object.is_object()) {
    return fault(std::nullopt, Error(ErrorCode::kInvalidArgument,
                                     fmt::format("the line is a JSON {}; it needs one object",
                                                 object.type_name())));
  }
  PromptLine line;
  line.number = number;
  line.request.sampling.seed = default_seed + static_cast<std::uint64_t>(number);
  Result<std::string> id = read_id(object, number);
  if (!id.has_value()) return fault(std::nullopt, std::move(id).error());
  line.id = *std::move(id);
  if (const Result<void> read = read_fields(object, line); !read.has_value()) {
    return fault(line.id, read.error());
  }
  return line;
}

Result<LineReader> LineReader::open(const std::filesystem::path& path) {
  File file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) {
    return make_error(ErrorCode::kUnavailable, "cannot read the prompts '{}': {}; check the name",
                      path.string(), std::generic_category().message(errno));
  }
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(path, unknown);
  return LineReader(path, std::move(file), unknown ? 0 : static_cast<std::int64_t>(bytes));
}

Result<std::optional<std::string>> LineReader::next() {
  std::string line;
  int byte = 0;
  while ((byte = std::getc(file_.get())) != EOF && byte != '\n') {
    if (line.size() == kMostLineBytes) {
      return make_error(ErrorCode::kOutOfRange, "{}:{}: the line has more than {} bytes; cut it",
                        path_.string(), num_lines_ + 1, kMostLineBytes);
    }
    line += static_cast<char>(byte);
    ++num_bytes_;
  }
  if (std::ferror(file_.get()) != 0) {
    return make_error(ErrorCode::kUnavailable, "cannot read '{}' past line {}: {}", path_.string(),
                      num_lines_, std::generic_category().message(errno));
  }
  if (byte == EOF && line.empty()) return std::optional<std::string>();
  if (byte == '\n') ++num_bytes_;
  ++num_lines_;
  return line;
}

}  // namespace slackwater::cli
