#ifndef SLACKWATER_MODEL_JSON_EVENTS_H_
#define SLACKWATER_MODEL_JSON_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "slackwater/base/error.h"

namespace slackwater::model {

// `text` in quotes, fit for one line of an error: everything outside printable ASCII becomes
// \xNN, and what is longer than 120 bytes is cut with an ellipsis. For text from files.
std::string in_quotes(std::string_view text);

// A JSON value that has no parts.
struct JsonScalar {
  enum class Kind { kNull, kBool, kUnsigned, kNegative, kReal, kString };

  Kind kind = Kind::kNull;
  std::uint64_t number = 0;  // kUnsigned: the value
  std::string_view text;     // kString: the content; otherwise the value as written or nearly so

  // "the string 'abc'", "the number -3": what an error says was found.
  std::string describe() const;
};

// Receives the parts of a JSON text in order; the base of the readers of this room.
//
// A front of nlohmann's streaming interface that adds what every reader of outside files needs:
// a nesting limit, one first error, and text positions. Nothing is kept of what has been read,
// so a header of 100 MB costs no memory beyond what the reader itself stores.
//
// Invariants:
//   I1  depth() is the number of containers that are open and never exceeds max_depth.
//   I2  after the first false from an event no further event comes.
// Ownership: nothing; string views are valid during the call that hands them over.
// Threads: one thread at a time.
// Errors: a reader refuses by `return fail(code, text)`.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonEvents(int max_depth) : max_depth_(max_depth) {}

  // Feeds `text`, one whole JSON value between optional spaces, to `events`. Damaged text is
  // kDataLoss and names the byte, counted from 0.
  friend Result<void> read_json(std::string_view text, JsonEvents& events);

 protected:
  virtual bool on_scalar(const JsonScalar& scalar) = 0;
  virtual bool on_key(std::string_view name) = 0;
  virtual bool on_object_start() = 0;
  virtual bool on_object_end() = 0;
  virtual bool on_array_start() = 0;
  virtual bool on_array_end() = 0;

  // Containers open now; inside on_object_start and on_array_start the new one is counted.
  int depth() const { return depth_; }
  // Records the error and returns false.
  bool fail(ErrorCode code, std::string text);

 private:
  bool enter();

  bool null() final { return on_scalar({JsonScalar::Kind::kNull, 0, "null"}); }
  bool boolean(bool value) final;
  bool number_integer(number_integer_t value) final;
  bool number_unsigned(number_unsigned_t value) final;
  bool number_float(number_float_t value, const string_t& text) final;
  bool string(string_t& value) final;
  bool binary(binary_t& value) final;
  bool start_object(std::size_t) final { return enter() && on_object_start(); }
  bool key(string_t& name) final { return on_key(name); }
  bool end_object() final;
  bool start_array(std::size_t) final { return enter() && on_array_start(); }
  bool end_array() final;
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) final;

  const int max_depth_;
  int depth_ = 0;
  std::optional<Error> error_;
};

Result<void> read_json(std::string_view text, JsonEvents& events);

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_JSON_EVENTS_H_
