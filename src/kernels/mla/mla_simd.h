#ifndef SLACKWATER_KERNELS_MLA_MLA_SIMD_H_
#define SLACKWATER_KERNELS_MLA_MLA_SIMD_H_

#include <cstddef>

#include "slackwater/kernels/mla.h"

namespace slackwater::kernels {

// Bytes of scratch per worker, see AttentionScratch in mla_simd.cc.
constexpr std::size_t mla_scratch_bytes(std::int64_t heads, std::int64_t rank, std::int64_t width) {
  return static_cast<std::size_t>(heads * (round_up<std::int64_t>(rank, 16) + 2) +
                                  kKeyTile * round_up<std::int64_t>(width, 16) + 16) *
         sizeof(float);
}

// The fast forms for `target`, or null where they are not compiled.
using MlaWriteFunction = void(ExecutionContext&, const MlaWriteArgs&);
MlaWriteFunction* mla_write_simd(Target target);

using MlaAttentionFunction = void(ExecutionContext&, const MlaAttentionArgs&);
MlaAttentionFunction* mla_attention_simd(Target target);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_MLA_MLA_SIMD_H_
