#ifndef SLACKWATER_BASE_MUTANT_H_
#define SLACKWATER_BASE_MUTANT_H_

// A planted mutation: one line at the place it breaks.
//
//   if (SLACKWATER_MUTANT(skip_save)) return;
//
// False at compile time except in the preset `mutants`, where the environment variable
// SLACKWATER_MUTANT chooses one by name. One binary holds them all; `make mutants` runs the
// suites against each and fails when a suite does not notice.
#if defined(SLACKWATER_MUTATION_BUILD)

namespace slackwater {
// True when $SLACKWATER_MUTANT is `name`. Reads the environment once per process.
bool mutant_chosen(const char* name);
}  // namespace slackwater

#define SLACKWATER_MUTANT(name)                                    \
  ([]() -> bool {                                                  \
    static const bool chosen = ::slackwater::mutant_chosen(#name); \
    return chosen;                                                 \
  }())

#else

#define SLACKWATER_MUTANT(name) false

#endif

#endif  // SLACKWATER_BASE_MUTANT_H_
