#ifndef SLACKWATER_MODEL_MEASURE_H_
#define SLACKWATER_MODEL_MEASURE_H_

#include <cstddef>
#include <cstdint>

#include "slackwater/base/error.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/model/model.h"

namespace slackwater::model {

// What to measure: prompts of several sequences, then greedy decoding of all of them as one batch.
struct MeasureOptions {
  std::int32_t prompt_tokens = 128;  // of each sequence, >= 1
  std::int32_t max_tokens = 128;     // generated for each sequence, >= 2
  std::int32_t sequences = 1;
  std::int32_t repetitions = 5;  // after one warm-up
  std::int32_t chunk = 512;      // tokens of one forward pass over prompts
};

// Over the repetitions.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

struct SpeedReport {
  Spread prompt_rate;            // tokens/s, summed over the sequences
  Spread generated_rate;         // tokens/s, summed over the sequences
  std::size_t active_bytes = 0;  // weights that one token reads
  double read_ceiling = 0;       // bytes/s at that footprint, in this run
  double share_of_ceiling = 0;   // that one step reaches, were active_bytes all it reads
};

// Runs the workload and measures it, beside the read bandwidth that bounds one-token steps.
//
// The work is the same for every engine: prompt token j of sequence s is
// (((8191 * s + j) * 2654435761) mod 2^32) * num_ranks >> 32.
// Errors: kOutOfRange where the sequences are longer than the model's; kDataLoss where logits are
// not finite.
Result<SpeedReport> measure_speed(const Model& model, std::int32_t num_ranks,
                                  kernels::ExecutionContext& context,
                                  const MeasureOptions& options);

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_MEASURE_H_
