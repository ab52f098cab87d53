#include "slackwater/kernels/norm.h"

#include "kernels/norm/norm_simd.h"
#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/check.h"
#include "slackwater/base/fp_mode.h"

namespace slackwater::kernels {

void rms_norm(ExecutionContext& context, const RmsNormArgs& args) {
  SLACKWATER_CHECK(args.n > 0 && args.rows >= 0, "{} rows of {}", args.rows, args.n);
  SLACKWATER_CHECK(args.rows <= 1 || (args.x_stride >= args.n && args.y_stride >= args.n),
                   "strides {} and {} of rows of {}", args.x_stride, args.y_stride, args.n);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  choose_kernel(target, reference::rms_norm, rms_norm_simd(target))(context, args);
}

void gated_head_norm(ExecutionContext& context, const GatedHeadNormArgs& args) {
  const std::int64_t width = std::int64_t{args.heads} * args.head_dim;
  SLACKWATER_CHECK(args.heads > 0 && args.head_dim > 0 && args.rows >= 0,
                   "{} rows of {} heads of {}", args.rows, args.heads, args.head_dim);
  SLACKWATER_CHECK(
      args.rows <= 1 ||
          (args.x_stride >= width && args.y_stride >= width && args.gate_stride >= width),
      "strides {}, {} and {} of rows of {}", args.x_stride, args.gate_stride, args.y_stride, width);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  choose_kernel(target, reference::gated_head_norm, gated_head_norm_simd(target))(context, args);
}

}  // namespace slackwater::kernels
