#include "cli/model_directory.h"

#include <array>
#include <system_error>

namespace slackwater::cli {

std::filesystem::path default_model_directory() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::array<fs::path, 3> candidates = {
      fs::path("models/demo"),
      program / "../../models/demo",  // build/PRESET/slackwater
      program / "../share/slackwater/models/demo",
  };
  for (const fs::path& candidate : candidates) {
    if (fs::exists(candidate / "config.json", ignored)) return candidate.lexically_normal();
  }
  return candidates.front();
}

}  // namespace slackwater::cli
