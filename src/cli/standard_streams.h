#ifndef SLACKWATER_CLI_STANDARD_STREAMS_H_
#define SLACKWATER_CLI_STANDARD_STREAMS_H_

#include <string>
#include <string_view>

#include "slackwater/base/error.h"

namespace slackwater::cli {

// Writes all of `text` to standard output, unbuffered, so that text streams as it is made and a
// full disk or a closed pipe is noticed where it happens.
//
// Errors: kUnavailable with the system's reason; part of the text may have been written.
Result<void> write_standard_output(std::string_view text);

// Writes `text` to standard error as far as that is possible: what cannot be shown there cannot
// be told anywhere, and the exit code says enough.
void write_standard_error(std::string_view text);

// Control characters as \xNN: names and values from outside may hold any bytes.
std::string in_one_line(std::string_view text);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_STANDARD_STREAMS_H_
