#include "slackwater/kernels/kda.h"

#include <algorithm>

#include "kernels/kda/kda_simd.h"
#include "kernels/reference/reference.h"
#include "kernels/row_checks.h"
#include "kernels/simd_targets.h"
#include "kernels/vector_math.h"
#include "slackwater/base/check.h"
#include "slackwater/base/fp_mode.h"

namespace slackwater::kernels {
namespace {

void check_records(const ReplayRecords& records, std::int64_t width) {
  SLACKWATER_CHECK(records.max_records >= 0, "room for {} records", records.max_records);
  if (records.max_records == 0) return;
  bool is_complete = records.qkg_base != nullptr && records.v_base != nullptr;
  for (const float* conv : records.conv_base) is_complete = is_complete && conv != nullptr;
  SLACKWATER_CHECK(is_complete && records.beta_base != nullptr,
                   "room for {} records without a place for them", records.max_records);
  const std::int64_t largest = std::max(kda_conv_record_floats(records.max_records, width),
                                        kda_qkg_record_floats(records.max_records, width));
  SLACKWATER_CHECK(records.num_slots <= 1 || records.slot_stride >= largest,
                   "records {} floats apart, those of a slot have {} in one piece",
                   records.slot_stride, largest);
}

void check_shapes(const KdaStepArgs& args) {
  SLACKWATER_CHECK(args.num_heads > 0 && args.head_dim > 0 && args.head_dim % kValueTile == 0 &&
                       args.head_dim <= kMaxKdaHeadDim,
                   "{} heads of {}: the head size is a multiple of {} up to {}", args.num_heads,
                   args.head_dim, kValueTile, kMaxKdaHeadDim);
  const std::int64_t width = std::int64_t{args.num_heads} * args.head_dim;
  SLACKWATER_CHECK(args.qkv_stride >= width && args.decay_stride >= width &&
                       args.o_stride >= width && args.beta_stride >= args.num_heads,
                   "strides {}, {}, {} and {} of {} channels and {} heads", args.qkv_stride,
                   args.decay_stride, args.o_stride, args.beta_stride, width, args.num_heads);
  const std::int64_t page_floats = std::max(kda_state_floats(args.num_heads, args.head_dim),
                                            kda_window_floats(args.num_heads, args.head_dim));
  SLACKWATER_CHECK(args.pages.num_slots <= 1 || args.pages.slot_stride >= page_floats,
                   "pages {} floats apart, a state or a window has {}", args.pages.slot_stride,
                   page_floats);
  check_recurrent_rows(args.pages, args.rows);
  check_records(args.records, width);
  check_replay_rows(args.records, args.rows);
}

float exponential(float x) { return scalar::exp<scalar::FloatOps>(x); }

// Called through a pointer that the compiler cannot see through: a call that it knows to be pure
// may move in front of the guard, noinline or not.
float (*volatile exponential_behind_guard)(float) = exponential;

}  // namespace

void kda_step(ExecutionContext& context, const KdaStepArgs& args) {
  check_shapes(args);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  context.reserve_scratch(kda_scratch_bytes(args.head_dim));
  choose_kernel(target, reference::kda_step, kda_step_simd(target))(context, args);
}

float kda_decay_rate(float a_log) {
  const FpModeGuard fp_mode;
  return exponential_behind_guard(a_log);
}

}  // namespace slackwater::kernels
