#include "slackwater/base/error.h"

#include "slackwater/base/check.h"

namespace slackwater {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "InvalidArgument";
    case ErrorCode::kOutOfRange: return "OutOfRange";
    case ErrorCode::kResourceExhausted: return "ResourceExhausted";
    case ErrorCode::kFailedPrecondition: return "FailedPrecondition";
    case ErrorCode::kNotFound: return "NotFound";
    case ErrorCode::kDataLoss: return "DataLoss";
    case ErrorCode::kUnavailable: return "Unavailable";
    case ErrorCode::kUnimplemented: return "Unimplemented";
  }
  SLACKWATER_CHECK(false, "error code {}", static_cast<int>(code));
}

Error Error::with_context(std::string_view where) const {
  return Error(code_, fmt::format("{}: {}", where, text_));
}

}  // namespace slackwater
