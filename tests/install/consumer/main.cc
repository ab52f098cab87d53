#include <cstdio>

#include "slackwater/base/digest.h"

int main() {
  const auto digest = slackwater::to_hex(slackwater::xxh3_128({}));
  std::printf("XXH3-128 of nothing: %s\n", digest.c_str());
}
