#ifndef SLACKWATER_CLI_STANDARD_OUTPUT_H_
#define SLACKWATER_CLI_STANDARD_OUTPUT_H_

#include <string_view>

#include "slackwater/base/error.h"

namespace slackwater::cli {

// Writes all of `text` to standard output, unbuffered, so that text streams as it is made and a
// full disk or a closed pipe is noticed where it happens.
//
// Errors: kUnavailable with the system's reason; part of the text may have been written.
Result<void> write_standard_output(std::string_view text);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_STANDARD_OUTPUT_H_
