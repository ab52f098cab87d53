#include "slackwater/kernels/sample.h"

#include <array>
#include <cstddef>

#include "kernels/reference/reference.h"
#include "kernels/sample/sample_checks.h"
#include "kernels/sample/sample_simd.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/check.h"
#include "slackwater/base/digest.h"
#include "slackwater/base/fp_mode.h"

namespace slackwater::kernels {
namespace {

// Rows whose lists one worker should have before a second one is woken.
constexpr std::int64_t kGrainRows = 8;

// Largest vocabulary: token ids of a padded row still fit 32 bits.
constexpr std::int32_t kMaxVocabulary = 1 << 30;

void check_shapes(const SampleArgs& args) {
  SLACKWATER_CHECK(0 < args.vocabulary && args.vocabulary <= kMaxVocabulary, "{} tokens",
                   args.vocabulary);
  SLACKWATER_CHECK(args.rows.size() == args.results.size(), "{} results for {} rows",
                   args.results.size(), args.rows.size());
  for (const SampleRow& row : args.rows) {
    SLACKWATER_CHECK(row.logits != nullptr && row.position >= 0, "logits {} at position {}",
                     static_cast<const void*>(row.logits), row.position);
  }
}

// Gives each row its error, or a result that the kernel fills in.
void check_rows(ExecutionContext& context, const SampleArgs& args) {
  context.parallel_for(std::ssize(args.rows), kGrainRows, [&](ItemRange rows, int worker) {
    const std::span<std::uint64_t> seen(
        reinterpret_cast<std::uint64_t*>(context.scratch(worker).data()),
        seen_words(args.vocabulary));
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      Result<SampleResult>& result = args.results[static_cast<std::size_t>(i)];
      if (Result<void> checked =
              check_row(args.rows[static_cast<std::size_t>(i)], args.vocabulary, seen);
          checked.has_value()) {
        result = SampleResult{};
      } else {
        result = tl::unexpected<Error>(std::move(checked).error());
      }
    }
  });
}

}  // namespace

Result<void> validate(const SamplingParameters& parameters) {
  // Of a caller that reads denormals as zeros a tiny temperature would pass for 0.
  const FpModeGuard fp_mode;
  return check_parameters(parameters);
}

std::uint64_t choice_seed(std::uint64_t seed, std::uint32_t choice) {
  if (choice == 0) return seed;
  std::array<std::byte, 4> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(choice >> (8 * i));
  }
  return xxh3_128(bytes, seed).high;
}

void sample(ExecutionContext& context, const SampleArgs& args) {
  check_shapes(args);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  context.reserve_scratch(sample_scratch_bytes(args.vocabulary));
  check_rows(context, args);
  choose_kernel(target, reference::sample, sample_simd(target))(context, args);
}

}  // namespace slackwater::kernels
