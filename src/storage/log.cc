#include "storage/log.h"

#include <memory>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace slackwater::storage {
namespace {

// The program's own logger of that name, where it has made one.
std::shared_ptr<spdlog::logger> logger() {
  static const std::shared_ptr<spdlog::logger> shared = [] {
    std::shared_ptr<spdlog::logger> found = spdlog::get("slackwater");
    if (found != nullptr) return found;
    found = spdlog::stderr_logger_mt("slackwater");
    found->set_level(spdlog::level::warn);
    return found;
  }();
  return shared;
}

}  // namespace

void log_info(std::string_view text) { logger()->info("{}", text); }

void log_warning(std::string_view text) { logger()->warn("{}", text); }

}  // namespace slackwater::storage
