#ifndef SLACKWATER_KERNELS_LATENT_ROWS_H_
#define SLACKWATER_KERNELS_LATENT_ROWS_H_

#include "slackwater/kernels/views.h"

namespace slackwater::kernels {

// The bytes of the latent row of `position`.
inline std::byte* latent_row(const LatentPages& pages, BlockTable block_table,
                             std::int64_t position) {
  const std::int64_t block = position / pages.tokens_per_block;
  const std::int64_t offset = position % pages.tokens_per_block;
  return pages.base + block_table[static_cast<std::size_t>(block)].value() * pages.slot_stride +
         offset * pages.token_stride;
}

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_LATENT_ROWS_H_
