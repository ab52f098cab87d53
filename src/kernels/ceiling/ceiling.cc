#include "slackwater/kernels/ceiling.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/ceiling/ceiling_simd.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/clock.h"

namespace slackwater::kernels {

namespace reference {

// Words of 64 bits, the widest loads without vectors; one run is as good as several.
float read_pass(const float* values, std::int64_t n, int) {
  std::uint64_t seen[8] = {};
  for (std::int64_t i = 0; i + 16 <= n; i += 16) {
    for (int word = 0; word < 8; ++word) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, values + i + 2 * word, sizeof bits);
      seen[word] |= bits;
    }
  }
  for (int word = 1; word < 8; ++word) seen[0] |= seen[word];
  return static_cast<float>(seen[0]);
}

float fma_pass(std::int64_t rounds) {
  float sums[kFmaChains] = {};
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (float& sum : sums) sum = std::fma(sum, 0.999f, 0.999f);
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

}  // namespace reference

namespace {

// Results of the passes go here, so that none is left out.
std::atomic<float> sink = 0;

double seconds_of(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

// Calls `pass` until `budget` has passed, at least three times; the shortest one in seconds.
template <class Pass>
double shortest_pass(Nanoseconds budget, Pass&& pass) {
  const RealClock clock;
  const Nanoseconds started = clock.now();
  double shortest = HUGE_VAL;
  for (int round = 0; round < 3 || clock.now() - started < budget; ++round) {
    const Nanoseconds begin = clock.now();
    pass();
    shortest = std::min(shortest, seconds_of(clock.now() - begin));
  }
  return shortest;
}

}  // namespace

double read_ceiling_bytes_per_second(ExecutionContext& context, std::size_t footprint_bytes) {
  constexpr std::size_t kLeastFloats = 16 << 10;
  // Read between two looks at the clock: many passes over a small footprint, so that the start of
  // a region does not count, and one piece after the other of a large one, so that there are
  // pieces during which nobody else used the machine.
  constexpr std::int64_t kFloatsTimed = 4 << 20;
  const AlignedBuffer<float> buffer(std::max(kLeastFloats, footprint_bytes / sizeof(float)));
  const auto n = static_cast<std::int64_t>(buffer.size());
  const std::int64_t passes = ceil_div(kFloatsTimed, n);
  const std::int64_t piece = std::min(kFloatsTimed, n);
  const int num_threads = context.num_threads();
  ReadPassFunction* read =
      choose_kernel(context.target(), reference::read_pass, read_pass_simd(context.target()));
  const ThreadPool::Step step(context.pool());
  double best = 0;
  std::int64_t first = 0;
  for (const int streams : {1, 2, 4, 8}) {
    const double seconds = shortest_pass(std::chrono::milliseconds(200), [&] {
      context.parallel_for(num_threads, 1, [&](ItemRange workers, int) {
        const std::int64_t begin =
            split_items(piece, static_cast<int>(workers.begin), num_threads).begin;
        const std::int64_t end =
            split_items(piece, static_cast<int>(workers.end) - 1, num_threads).end;
        for (std::int64_t pass = 0; pass < passes; ++pass) {
          sink.store(read(buffer.data() + first + begin, end - begin, streams),
                     std::memory_order_relaxed);
        }
      });
      first = first + 2 * piece <= n ? first + piece : 0;
    });
    best = std::max(best, static_cast<double>(piece * passes) * sizeof(float) / seconds);
  }
  return best;
}

double fma_ceiling_flops(ExecutionContext& context) {
  constexpr std::int64_t kRounds = 1 << 18;
  FmaPassFunction* fma =
      choose_kernel(context.target(), reference::fma_pass, fma_pass_simd(context.target()));
  const ThreadPool::Step step(context.pool());
  const double seconds = shortest_pass(std::chrono::milliseconds(200), [&] {
    context.parallel_for(context.num_threads(), 1, [&](ItemRange, int) {
      sink.store(fma(kRounds), std::memory_order_relaxed);
    });
  });
  const double per_thread =
      2.0 * kFmaChains * static_cast<double>(kRounds) * vector_lanes(context.target());
  return per_thread * context.num_threads() / seconds;
}

}  // namespace slackwater::kernels
