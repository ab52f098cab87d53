#ifndef SLACKWATER_MODEL_WEIGHT_LOADER_H_
#define SLACKWATER_MODEL_WEIGHT_LOADER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "model/weights.h"
#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/model/checkpoint.h"

namespace slackwater::model {

// One tensor's share of a packed matrix: all its rows become outputs.
struct MatrixPart {
  std::string name;
  std::int64_t rows = 0;
};

// Takes named tensors out of a checkpoint: checks shape, dtype and values, and packs them.
//
// The first failure sticks: later calls return null and do nothing, so that the code that names
// a few hundred tensors reads as a list. error() says what went wrong.
//
// Invariants:
//   I1  once error() is set, nothing more is read or packed.
//   I2  a tensor counts as taken once it was looked for under its name.
// Ownership: borrows everything; what it packs belongs to the arena.
// Threads: one caller; packing is split over the context's workers.
// Errors: kNotFound for a missing tensor; kInvalidArgument for a wrong shape or dtype;
//   kDataLoss for a value that is not finite. The text names the tensor.
// Cost: reads each tensor twice (once for the check of values and the digest), writes it once.
class WeightLoader {
 public:
  using Progress = std::function<void(std::size_t done_bytes, std::size_t total_bytes)>;

  WeightLoader(const Checkpoint& checkpoint, WeightArena& arena, kernels::ExecutionContext& context,
               Progress progress);

  const std::optional<Error>& error() const { return error_; }

  // A vector of `n` values, as f32. A longer 1-D tensor is cut where `may_be_longer`; leading and
  // trailing dimensions of 1 do not count.
  enum class Length { kExact, kAtLeast };
  float* vector(const std::string& name, std::int64_t n, Length length = Length::kExact);

  // Convolution filters [channels, 1, 4] or [channels, 4], transposed to [4, channels] f32.
  const float* filters(const std::string& name, std::int64_t channels);

  // The outputs of `parts` one after another, each a tensor [rows, num_inputs].
  kernels::PackedWeights matrix(std::span<const MatrixPart> parts, std::int64_t num_inputs);
  kernels::PackedWeights matrix(const std::string& name, std::int64_t rows,
                                std::int64_t num_inputs);

  // The two-dimensional tensor [rows, columns], checked, for slice().
  std::optional<TensorView> tensor(const std::string& name, std::int64_t rows,
                                   std::int64_t columns);

  // Rows [first_row, first_row + rows) of a tensor with `columns` columns, as they are
  // (outputs are rows) or transposed (outputs are columns).
  struct Slice {
    std::int64_t first_row = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    bool is_transposed = false;
  };
  kernels::PackedWeights slice(const TensorView& tensor, const Slice& slice);

  // A row-major table [rows, columns], bf16 or f32.
  const std::byte* table(const std::string& name, std::int64_t rows, std::int64_t columns,
                         DType* dtype);

  // Of names, types, shapes and bytes of the tensors looked for so far, in that order.
  Digest128 digest() const { return digest_.digest(); }

  // Fails where the checkpoint holds a tensor that nobody took.
  void expect_all_taken();

 private:
  // The tensor, its shape and values checked; nothing after a failure.
  std::optional<TensorView> take(const std::string& name, std::span<const std::int64_t> shape);
  std::optional<TensorView> find(const std::string& name);
  // Whether all values are finite; adds them to the digest while they are at hand.
  bool check_values(const TensorView& tensor);
  void add_to_digest(const TensorView& tensor);
  void fail(Error error);
  void report(const TensorView& tensor);
  kernels::PackedWeights allocate(std::int64_t outputs, std::int64_t inputs, DType dtype);
  void pack(const kernels::PackArgs& args);

  const Checkpoint& checkpoint_;
  WeightArena& arena_;
  kernels::ExecutionContext& context_;
  Progress progress_;
  std::size_t done_bytes_ = 0;
  std::optional<Error> error_;
  StreamingXxh3 digest_;
  std::vector<Digest128> piece_digests_;  // of the tensor in hand
  std::unordered_set<std::string> taken_;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_WEIGHT_LOADER_H_
