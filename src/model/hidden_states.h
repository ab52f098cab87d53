#ifndef SLACKWATER_MODEL_HIDDEN_STATES_H_
#define SLACKWATER_MODEL_HIDDEN_STATES_H_

#include <cstddef>
#include <cstdint>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/model/forward.h"

namespace slackwater::model {

// Moves hidden states between a step's tokens and what lies beside the recurrent states
// (HiddenPages), by the rules that kda_step has for the states themselves.
//
// Source: kda_replay.md 1.3 to 1.6; docs/numerics.md "Multi-token prediction".
// Invariants:
//   I1  what belongs to the tokens before the rows' first ones is copied before anything changes.
// Ownership: owns that copy; pages and records are the batch's.
// Threads: one caller.
// Errors: none; places that cannot be are CHECKs. Slots are those that kda_step has checked.
// Cost: one copy of [hidden] per row, write and record.
class HiddenStates {
 public:
  HiddenStates(std::int64_t hidden_size, std::int32_t max_tokens)
      : hidden_size_(hidden_size), max_tokens_(max_tokens) {}

  // Aborts where the places and the rows do not fit together. Changes nothing.
  void check(const ForwardBatch& batch) const;

  // Fills first(), then writes pages and records. `hidden` is [T, hidden_size] of the batch's
  // tokens, after the layers.
  void exchange(const ForwardBatch& batch, const float* hidden);

  // [rows of the last batch, hidden_size]: what belongs to the token before each row's first one.
  // Rows at position 0 have none: unspecified.
  const float* first() const { return first_.data(); }

 private:
  void reserve(std::size_t rows);
  float* first_of(std::size_t row) {
    return first_.data() + row * static_cast<std::size_t>(hidden_size_);
  }
  void copy(const float* from, float* to) const;
  void keep_first(const ForwardBatch& batch);
  void write_rows(const ForwardBatch& batch, const float* hidden);
  void write_pages(const HiddenPages& pages, const ForwardBatch& batch, std::size_t row,
                   const float* tokens);
  void write_records(const HiddenPages& pages, const kernels::SequenceRow& row,
                     const float* tokens) const;

  std::int64_t hidden_size_;
  std::int32_t max_tokens_;
  AlignedBuffer<float> first_;  // [rows, hidden_size]
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_HIDDEN_STATES_H_
