#include "slackwater/kernels/mla.h"

#include "kernels/mla/mla_simd.h"
#include "kernels/reference/reference.h"
#include "kernels/row_checks.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/check.h"
#include "slackwater/base/fp_mode.h"

namespace slackwater::kernels {
namespace {

// Every token has a key, its own.
void check_first_key(const MlaAttentionArgs& args) {
  SLACKWATER_CHECK(args.first_key >= 0, "the first key is at position {}", args.first_key);
  for (const SequenceRow& row : args.rows) {
    SLACKWATER_CHECK(row.num_tokens == 0 || row.first_position >= args.first_key,
                     "a token at position {} has no key, the first one is at {}",
                     row.first_position, args.first_key);
  }
}

}  // namespace

void mla_write(ExecutionContext& context, const MlaWriteArgs& args) {
  SLACKWATER_CHECK(
      0 < args.rank && args.rank <= args.pages.width && args.kv_stride >= args.pages.width,
      "rank {}, width {}, stride {}", args.rank, args.pages.width, args.kv_stride);
  check_latent_rows(args.pages, args.rows);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  context.reserve_scratch(mla_scratch_bytes(1, args.rank, args.pages.width));
  choose_kernel(target, reference::mla_write, mla_write_simd(target))(context, args);
}

void mla_attention(ExecutionContext& context, const MlaAttentionArgs& args) {
  SLACKWATER_CHECK(args.heads > 0 && 0 < args.rank && args.rank <= args.pages.width,
                   "{} heads, rank {}, width {}", args.heads, args.rank, args.pages.width);
  SLACKWATER_CHECK(args.q_stride >= std::int64_t{args.heads} * args.pages.width &&
                       args.latent_stride >= std::int64_t{args.heads} * args.rank,
                   "strides {} and {} of {} heads", args.q_stride, args.latent_stride, args.heads);
  check_latent_rows(args.pages, args.rows);
  check_first_key(args);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  context.reserve_scratch(mla_scratch_bytes(args.heads, args.rank, args.pages.width));
  choose_kernel(target, reference::mla_attention, mla_attention_simd(target))(context, args);
}

}  // namespace slackwater::kernels
