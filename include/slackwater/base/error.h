#ifndef SLACKWATER_BASE_ERROR_H_
#define SLACKWATER_BASE_ERROR_H_

#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <tl/expected.hpp>

namespace slackwater {

// Why a call was refused. Each code names the reaction a caller can take.
enum class ErrorCode {
  kInvalidArgument,     // can never work as asked: fix the call
  kOutOfRange,          // an index or size beyond what exists: reject the request
  kResourceExhausted,   // no room now: suspend someone, or wait
  kFailedPrecondition,  // wrong lifecycle state: fix the order
  kNotFound,            // absent id, key or file: the miss path
  kDataLoss,            // checksum, magic or structure is wrong: drop that copy
  kUnavailable,         // a device, tier or file failed now: go on without it
  kUnimplemented,       // valid, but not built: choose another
};

// The enumerator's name without its `k`, as shown to people: "InvalidArgument".
std::string_view to_string(ErrorCode code);

// An expected refusal, or damage from outside, as a value.
//
// The text says what was asked, what there was and which limit, and, where a person can do
// something about it, the remedy: `need 12 blocks, 3 free + 4 evictable of 256`.
//
// Invariants:
//   I1  `text` is one line, is not empty and does not repeat the code.
// Threads: a value; no sharing.
// Errors: none.
class [[nodiscard]] Error {
 public:
  Error(ErrorCode code, std::string text) : code_(code), text_(std::move(text)) {}

  ErrorCode code() const { return code_; }
  const std::string& text() const { return text_; }

  // The same error with `where` in front, for callers that know the file or the field.
  Error with_context(std::string_view where) const;

 private:
  ErrorCode code_;
  std::string text_;
};

// A value, or the reason why there is none. Becomes std::expected one day.
template <class T>
using Result = tl::expected<T, Error>;

// `return make_error(ErrorCode::kOutOfRange, "slot {} of {}", slot, num_slots);`
template <class... Args>
tl::unexpected<Error> make_error(ErrorCode code, fmt::format_string<Args...> format,
                                 Args&&... args) {
  return tl::unexpected<Error>(Error(code, fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace slackwater

#define SLACKWATER_CONCAT_INNER(a, b) a##b
#define SLACKWATER_CONCAT(a, b) SLACKWATER_CONCAT_INNER(a, b)

// Evaluates a Result expression; returns its error from the enclosing function, or goes on.
#define SLACKWATER_RETURN_IF_ERROR(expression)                                   \
  do {                                                                           \
    if (auto slackwater_result = (expression); !slackwater_result.has_value()) { \
      return ::tl::unexpected<::slackwater::Error>(slackwater_result.error());   \
    }                                                                            \
  } while (false)

// `SLACKWATER_ASSIGN_OR_RETURN(auto file, open(path));`
#define SLACKWATER_ASSIGN_OR_RETURN(declaration, expression)                                     \
  SLACKWATER_ASSIGN_OR_RETURN_IMPL(SLACKWATER_CONCAT(slackwater_result_, __LINE__), declaration, \
                                   expression)
#define SLACKWATER_ASSIGN_OR_RETURN_IMPL(result, declaration, expression)    \
  auto result = (expression);                                                \
  if (!result.has_value()) {                                                 \
    return ::tl::unexpected<::slackwater::Error>(std::move(result).error()); \
  }                                                                          \
  declaration = *std::move(result)

#endif  // SLACKWATER_BASE_ERROR_H_
