#ifndef SLACKWATER_KERNELS_NUMERICS_H_
#define SLACKWATER_KERNELS_NUMERICS_H_

namespace slackwater::kernels {

// Version of the orders of operations in docs/numerics.md. Bumped by any change that may change a
// bit of any result, so that state which was computed under another version is never mixed in.
inline constexpr int kNumericsVersion = 1;

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_NUMERICS_H_
