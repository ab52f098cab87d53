#ifndef SLACKWATER_CLI_DEMO_PROMPTS_H_
#define SLACKWATER_CLI_DEMO_PROMPTS_H_

#include <cstddef>
#include <string>

namespace slackwater::cli {

// Prompt number `number` of the demonstration: beginnings of dictionary entries and of verses, as
// the demo model has learned them; short and long ones, some with a long beginning in common, some
// that repeat themselves. There is no last one.
std::string demo_prompt(std::size_t number);

// What a second turn says after the first answer.
std::string demo_follow_up(std::size_t number);

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_DEMO_PROMPTS_H_
