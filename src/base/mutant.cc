#include "slackwater/base/mutant.h"

#if defined(SLACKWATER_MUTATION_BUILD)

#include <cstdlib>
#include <string_view>

namespace slackwater {

bool mutant_chosen(const char* name) {
  const char* chosen = std::getenv("SLACKWATER_MUTANT");
  return chosen != nullptr && std::string_view(chosen) == name;
}

}  // namespace slackwater

#endif
