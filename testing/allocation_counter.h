#ifndef SLACKWATER_TESTING_ALLOCATION_COUNTER_H_
#define SLACKWATER_TESTING_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace slackwater {

// Heap allocations of the whole process so far. A test binary that links allocation_counter.cc
// replaces the global operator new; products never do.
std::int64_t num_heap_allocations();

}  // namespace slackwater

#endif  // SLACKWATER_TESTING_ALLOCATION_COUNTER_H_
