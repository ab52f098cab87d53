#include "cli/answer_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/prompt_file.h"
#include "slackwater/base/check.h"

namespace slackwater::cli {
namespace {

using nlohmann::json;

Digest128 digest_of(const std::string& key) { return xxh3_128(std::as_bytes(std::span(key))); }
Digest128 answer_key(std::string_view id, std::int32_t choice) {
  return digest_of(fmt::format("answer {} {}", choice, id));
}
Digest128 fault_key(std::int64_t line_number) {
  return digest_of(fmt::format("fault {}", line_number));
}

tl::unexpected<Error> system_error(std::string_view what, const std::filesystem::path& path) {
  return make_error(ErrorCode::kUnavailable, "cannot {} '{}': {}; check the name and the disk",
                    what, path.string(), std::generic_category().message(errno));
}

}  // namespace

AnswerFile::AnswerFile(AnswerFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      is_owned_(std::exchange(other.is_owned_, false)),
      keys_(std::move(other.keys_)),
      num_answers_(other.num_answers_),
      num_faults_(other.num_faults_) {}

AnswerFile::~AnswerFile() {
  if (is_owned_) ::close(descriptor_);
}

Result<AnswerFile> AnswerFile::open(const std::optional<std::filesystem::path>& path) {
  if (!path.has_value()) return AnswerFile(STDOUT_FILENO, /*is_owned=*/false);
  const int descriptor = ::open(path->c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return system_error("open the output", *path);
  AnswerFile file(descriptor, /*is_owned=*/true);
  SLACKWATER_RETURN_IF_ERROR(file.read_back(*path));
  return file;
}

// What is whole stays; a torn last line goes. A file that cannot be cut, a pipe, has none.
Result<void> AnswerFile::read_back(const std::filesystem::path& path) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return {};
  SLACKWATER_ASSIGN_OR_RETURN(LineReader reader, LineReader::open(path));
  std::int64_t whole = 0;
  while (true) {
    SLACKWATER_ASSIGN_OR_RETURN(const std::optional<std::string> line, reader.next());
    if (!line.has_value()) break;
    const bool is_torn = reader.num_bytes() == whole + std::ssize(*line);
    if (is_torn) break;
    SLACKWATER_RETURN_IF_ERROR(note(path, reader.num_lines(), *line));
    whole = reader.num_bytes();
  }
  if (whole == reader.num_bytes()) return {};
  if (::ftruncate(descriptor_, whole) != 0) return system_error("cut the torn end of", path);
  return {};
}

Result<void> AnswerFile::note(const std::filesystem::path& path, std::int64_t number,
                              std::string_view line) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto has = [&](const char* name, auto is_right) {
    return object.is_object() && object.contains(name) && is_right(object.at(name));
  };
  const auto is_integer = [](const json& value) { return value.is_number_integer(); };
  if (has("id", [](const json&) { return true; }) && has("choice", is_integer)) {
    keys_.insert(answer_key(object.at("id").dump(-1, ' ', false, json::error_handler_t::replace),
                            object.at("choice").get<std::int32_t>()));
    ++num_answers_;
  } else if (has("line", is_integer) && object.contains("error")) {
    keys_.insert(fault_key(object.at("line").get<std::int64_t>()));
    ++num_faults_;
  } else {
    return make_error(ErrorCode::kDataLoss,
                      "{}:{}: no answer of slackwater run; give another --output, or take the line "
                      "away",
                      path.string(), number);
  }
  return {};
}

bool AnswerFile::has_answer(std::string_view id, std::int32_t choice) const {
  return keys_.contains(answer_key(id, choice));
}
bool AnswerFile::has_fault(std::int64_t line_number) const {
  return keys_.contains(fault_key(line_number));
}

Result<void> AnswerFile::append_answer(std::string_view id, std::int32_t choice, std::string line) {
  const bool is_new = keys_.insert(answer_key(id, choice)).second;
  SLACKWATER_CHECK(is_new, "I1: choice {} of {} is there already", choice, id);
  ++num_answers_;
  return append(std::move(line));
}

Result<void> AnswerFile::append_fault(std::int64_t line_number, std::string line) {
  const bool is_new = keys_.insert(fault_key(line_number)).second;
  SLACKWATER_CHECK(is_new, "I1: the fault of line {} is there already", line_number);
  ++num_faults_;
  return append(std::move(line));
}

Result<void> AnswerFile::append(std::string line) {
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return make_error(ErrorCode::kUnavailable,
                        "cannot write an answer: {}; make room and start again, what is there "
                        "stays",
                        std::generic_category().message(errno));
    }
  }
  return {};
}

}  // namespace slackwater::cli
