#ifndef SLACKWATER_STORAGE_LOG_H_
#define SLACKWATER_STORAGE_LOG_H_

#include <string_view>

namespace slackwater::storage {

// What has no caller to be returned to. The logger is spdlog's "slackwater", on standard error; it
// shows warnings unless the program sets it to show more. Any thread.
void log_info(std::string_view text);
void log_warning(std::string_view text);

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_LOG_H_
