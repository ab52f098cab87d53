#include "cli/demo_prompts.h"

#include <array>
#include <string_view>

namespace slackwater::cli {
namespace {

constexpr std::array<std::string_view, 12> kNouns = {"lighthouse", "river",  "harbour", "anchor",
                                                     "island",     "meadow", "lantern", "storm",
                                                     "vessel",     "shore",  "valley",  "garden"};
constexpr std::array<std::string_view, 8> kVerbs = {"wander", "gather", "measure", "carry",
                                                    "follow", "divide", "answer",  "build"};
constexpr std::array<std::string_view, 8> kVerses = {
    "And it came to pass in those days, that",
    "And the LORD spake unto Moses, saying,",
    "Now these are the names of the children of",
    "Then answered the king and said unto them,",
    "In the morning the people went up to the mountain, and",
    "And he took the bread, and gave it to",
    "Blessed is the man that",
    "And they journeyed from the river, and"};
constexpr std::array<std::string_view, 4> kRepetitions = {
    "the sea and the shore, the sea and the shore, the sea and the shore, the sea and",
    "of the tribe of Judah, twelve thousand; of the tribe of Reuben, twelve thousand; of the tribe "
    "of Gad, twelve thousand; of the tribe of",
    "a kind of tree; a kind of bird; a kind of stone; a kind of tree; a kind of bird; a kind of",
    "and the wind blew, and the rain fell, and the wind blew, and the rain fell, and the wind"};

constexpr std::string_view kTrees =
    "oak, oak tree (noun): a deciduous tree that bears acorns\n"
    "elm, elm tree (noun): any of various trees with winged fruit\n"
    "ash, ash tree (noun): a tree with compound leaves\n";
constexpr std::string_view kWaters =
    "lake (noun): a body of fresh water surrounded by land\n"
    "brook (noun): a natural stream of water smaller than a river\n"
    "tide (noun): the periodic rise and fall of the sea level\n";
constexpr std::string_view kGenesis =
    "In the beginning God created the heaven and the earth. And the earth was without form, and "
    "void; and darkness was upon the face of the deep. ";

}  // namespace

std::string demo_prompt(std::size_t number) {
  const std::size_t turn = number / 8;
  const auto noun = [&](std::size_t skip) {
    return std::string(kNouns[(turn + skip) % kNouns.size()]) + " (noun):";
  };
  const std::string_view verse = kVerses[(turn + number) % kVerses.size()];
  switch (number % 8) {
    case 0: return noun(0);
    case 1: return std::string(kTrees) + noun(3);
    case 2: return std::string(verse);
    case 3: return std::string(kVerbs[turn % kVerbs.size()]) + " (verb):";
    case 4: return std::string(kWaters) + noun(6);
    case 5: return std::string(kGenesis) + std::string(verse);
    case 6: return std::string(kRepetitions[turn % kRepetitions.size()]);
    default: return std::string(kTrees) + std::string(kWaters) + noun(9);
  }
}

std::string demo_follow_up(std::size_t number) {
  return "\n" + std::string(kNouns[(number / 4 + 5) % kNouns.size()]) + " (noun):";
}

}  // namespace slackwater::cli
