#ifndef SLACKWATER_KERNELS_ROW_CHECKS_H_
#define SLACKWATER_KERNELS_ROW_CHECKS_H_

#include <span>

#include "slackwater/kernels/views.h"

namespace slackwater::kernels {

// Aborts where a row's token range is negative, or its block table is too short or names a slot
// that the pages do not have.
void check_latent_rows(const LatentPages& pages, std::span<const SequenceRow> rows);

// Aborts where a row's page, or a write, names a slot that the pages do not have, counts are not
// ascending within [0, num_tokens], or (with DCHECK) a page is written twice or belongs to
// another row.
void check_recurrent_rows(const RecurrentPages& pages, std::span<const SequenceRow> rows);

// Aborts where a row has more pending records than there is room for or tokens before it, its
// records lie in a slot that does not exist or would be more than fit, it writes pages but not its
// own, or (with DCHECK) two rows have their records in one slot.
void check_replay_rows(const ReplayRecords& records, std::span<const SequenceRow> rows);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_ROW_CHECKS_H_
