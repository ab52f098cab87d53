#include "model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include <fmt/ranges.h>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"

namespace slackwater::model {
namespace {

using kernels::kPanelColumns;
using kernels::PackArgs;
using kernels::PackedWeights;

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
}

// Panels hold bf16 where that is exact, else f32.
DType panel_dtype(DType source) { return source == DType::kBf16 ? DType::kBf16 : DType::kF32; }

float read_value(const std::byte* source, DType dtype) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, source, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, source, sizeof bits);
  return dtype == DType::kBf16 ? bf16_to_f32(Bf16{bits}) : f16_to_f32(bits);
}

float value_at(const TensorView& tensor, std::int64_t index) {
  return read_value(tensor.bytes.data() + index * dtype_bytes(tensor.dtype), tensor.dtype);
}

// An infinity or a NaN has all exponent bits set.
template <class Bits>
bool all_finite(const std::byte* bytes, std::int64_t count, Bits exponent) {
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    finite &= (bits & exponent) != exponent;
  }
  return finite;
}

bool range_is_finite(const TensorView& tensor, ItemRange range) {
  const std::byte* bytes = tensor.bytes.data() + range.begin * dtype_bytes(tensor.dtype);
  const std::int64_t count = range.end - range.begin;
  switch (tensor.dtype) {
    case DType::kF32: return all_finite<std::uint32_t>(bytes, count, 0x7F800000u);
    case DType::kF16: return all_finite<std::uint16_t>(bytes, count, 0x7C00u);
    default: return all_finite<std::uint16_t>(bytes, count, 0x7F80u);
  }
}

std::span<const std::byte> bytes_of(const TensorView& tensor, ItemRange range) {
  const std::int64_t bytes = dtype_bytes(tensor.dtype);
  return tensor.bytes.subspan(static_cast<std::size_t>(range.begin * bytes),
                              static_cast<std::size_t>((range.end - range.begin) * bytes));
}

std::int64_t first_not_finite(const TensorView& tensor) {
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (!range_is_finite(tensor, {i, i + 1})) return i;
  }
  return 0;
}

// The shape without dimensions of 1, so that [1, 1, n, 1] and [n] are the same vector.
std::vector<std::int64_t> squeezed(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> kept;
  std::ranges::copy_if(shape, std::back_inserter(kept), [](std::int64_t d) { return d != 1; });
  return kept;
}

// Elements that one worker should check or pack before a second one is woken.
constexpr std::int64_t kGrainElements = 64 << 10;

}  // namespace

std::byte* WeightArena::allocate(std::size_t bytes) {
  const std::size_t rounded = round_up(bytes, kBufferAlignment);
  if (buffers_.empty() || buffers_.back().size() - used_ < rounded) {
    constexpr std::size_t kLargestBuffer = std::size_t{256} << 20;
    buffers_.emplace_back(std::max(rounded, std::min(expected_bytes_, kLargestBuffer)));
    used_ = 0;
  }
  std::byte* allocated = buffers_.back().data() + used_;
  used_ += rounded;
  allocated_bytes_ += rounded;
  return allocated;
}

WeightLoader::WeightLoader(const Checkpoint& checkpoint, WeightArena& arena,
                           kernels::ExecutionContext& context, Progress progress)
    : checkpoint_(checkpoint), arena_(arena), context_(context), progress_(std::move(progress)) {}

void WeightLoader::fail(Error error) {
  if (!error_.has_value()) error_ = std::move(error);
}

void WeightLoader::report(const TensorView& tensor) {
  done_bytes_ += tensor.bytes.size();
  if (progress_) progress_(done_bytes_, checkpoint_.total_bytes());
}

std::optional<TensorView> WeightLoader::find(const std::string& name) {
  if (error_.has_value()) return std::nullopt;
  taken_.insert(name);
  Result<TensorView> tensor = checkpoint_.find(name);
  if (!tensor.has_value()) {
    fail(std::move(tensor).error());
    return std::nullopt;
  }
  if (!is_weight_dtype(tensor->dtype)) {
    fail(Error(ErrorCode::kInvalidArgument,
               fmt::format("tensor {} is {}; weights are BF16, F16 or F32", name,
                           to_string(tensor->dtype))));
    return std::nullopt;
  }
  if (!check_values(*tensor)) return std::nullopt;
  report(*tensor);
  return *tensor;
}

std::optional<TensorView> WeightLoader::take(const std::string& name,
                                             std::span<const std::int64_t> shape) {
  std::optional<TensorView> tensor = find(name);
  if (!tensor.has_value()) return std::nullopt;
  if (squeezed(tensor->shape) != squeezed(shape)) {
    fail(Error(ErrorCode::kInvalidArgument,
               fmt::format("tensor {} is [{}]; config.json asks for [{}]", name,
                           fmt::join(tensor->shape, ", "), fmt::join(shape, ", "))));
    return std::nullopt;
  }
  return tensor;
}

bool WeightLoader::check_values(const TensorView& tensor) {
  std::atomic<bool> finite = true;
  // Pieces of one size, so that the digest does not depend on the number of workers.
  const std::int64_t count = tensor.num_elements();
  piece_digests_.resize(static_cast<std::size_t>(ceil_div(count, kGrainElements)));
  context_.parallel_for(std::ssize(piece_digests_), 1, [&](ItemRange pieces, int) {
    for (std::int64_t piece = pieces.begin; piece < pieces.end; ++piece) {
      const ItemRange range = {piece * kGrainElements,
                               std::min(count, (piece + 1) * kGrainElements)};
      if (!range_is_finite(tensor, range)) finite.store(false, std::memory_order_relaxed);
      piece_digests_[static_cast<std::size_t>(piece)] = xxh3_128(bytes_of(tensor, range));
    }
  });
  if (SLACKWATER_MUTANT(model_digest_of_first_piece)) piece_digests_.resize(1);
  add_to_digest(tensor);
  if (finite.load(std::memory_order_relaxed)) return true;
  const std::int64_t index = first_not_finite(tensor);
  fail(Error(ErrorCode::kDataLoss,
             fmt::format("tensor {} holds {} at element {} of {}; weights must be finite: get the "
                         "checkpoint again",
                         tensor.name, value_at(tensor, index), index, tensor.num_elements())));
  return false;
}

void WeightLoader::add_to_digest(const TensorView& tensor) {
  const std::string head = fmt::format("{}:{} {} [{}]", tensor.name.size(), tensor.name,
                                       to_string(tensor.dtype), fmt::join(tensor.shape, ","));
  digest_.update(std::as_bytes(std::span(head)));
  digest_.update(std::as_bytes(std::span(piece_digests_)));
}

PackedWeights WeightLoader::allocate(std::int64_t outputs, std::int64_t inputs, DType dtype) {
  PackedWeights packed;
  packed.panels = arena_.allocate(kernels::packed_bytes(outputs, inputs, dtype));
  packed.dtype = dtype;
  packed.num_outputs = static_cast<std::int32_t>(outputs);
  packed.num_inputs = static_cast<std::int32_t>(inputs);
  return packed;
}

void WeightLoader::pack(const PackArgs& args) {
  // Workers take whole panels, so that no two write the same cache line.
  const std::int64_t first_panel = args.first_output / kPanelColumns;
  const std::int64_t end_panel =
      ceil_div<std::int64_t>(args.first_output + args.rows, kPanelColumns);
  const std::int64_t grain =
      std::max<std::int64_t>(1, kGrainElements / (args.num_inputs * kPanelColumns));
  context_.parallel_for(end_panel - first_panel, grain, [&](ItemRange panels, int) {
    const std::int64_t begin =
        std::max<std::int64_t>(args.first_output, (first_panel + panels.begin) * kPanelColumns);
    const std::int64_t end = std::min<std::int64_t>(args.first_output + args.rows,
                                                    (first_panel + panels.end) * kPanelColumns);
    if (begin >= end) return;
    PackArgs part = args;
    part.source += (begin - args.first_output) * args.row_stride * dtype_bytes(args.source_dtype);
    part.first_output = static_cast<std::int32_t>(begin);
    part.rows = static_cast<std::int32_t>(end - begin);
    kernels::pack_weights(part);
  });
}

float* WeightLoader::vector(const std::string& name, std::int64_t n, Length length) {
  std::optional<TensorView> tensor = find(name);
  if (!tensor.has_value()) return nullptr;
  const std::int64_t count = tensor->num_elements();
  const bool is_flat = squeezed(tensor->shape).size() <= 1;
  if (!is_flat || (length == Length::kExact ? count != n : count < n)) {
    fail(Error(ErrorCode::kInvalidArgument,
               fmt::format("tensor {} is [{}]; config.json asks for {}{} values", name,
                           fmt::join(tensor->shape, ", "),
                           length == Length::kAtLeast ? "at least " : "", n)));
    return nullptr;
  }
  float* values =
      reinterpret_cast<float*>(arena_.allocate(static_cast<std::size_t>(n) * sizeof(float)));
  for (std::int64_t i = 0; i < n; ++i) values[i] = value_at(*tensor, i);
  return values;
}

const float* WeightLoader::filters(const std::string& name, std::int64_t channels) {
  constexpr std::int64_t kTaps = 4;
  const std::int64_t shape[] = {channels, 1, kTaps};
  const std::optional<TensorView> tensor = take(name, shape);
  if (!tensor.has_value()) return nullptr;
  float* values = reinterpret_cast<float*>(
      arena_.allocate(static_cast<std::size_t>(kTaps * channels) * sizeof(float)));
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t tap = 0; tap < kTaps; ++tap) {
      values[tap * channels + channel] = value_at(*tensor, channel * kTaps + tap);
    }
  }
  return values;
}

PackedWeights WeightLoader::matrix(std::span<const MatrixPart> parts, std::int64_t num_inputs) {
  std::vector<TensorView> tensors;
  std::int64_t outputs = 0;
  DType dtype = DType::kBf16;
  for (const MatrixPart& part : parts) {
    const std::int64_t shape[] = {part.rows, num_inputs};
    const std::optional<TensorView> tensor = take(part.name, shape);
    if (!tensor.has_value()) return {};
    tensors.push_back(*tensor);
    outputs += part.rows;
    if (panel_dtype(tensor->dtype) == DType::kF32) dtype = DType::kF32;
  }
  const PackedWeights packed = allocate(outputs, num_inputs, dtype);
  PackArgs args;
  args.row_stride = num_inputs;
  args.num_inputs = packed.num_inputs;
  args.dtype = dtype;
  args.panels = const_cast<std::byte*>(packed.panels);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    args.source = tensors[i].bytes.data();
    args.source_dtype = tensors[i].dtype;
    args.rows = static_cast<std::int32_t>(parts[i].rows);
    pack(args);
    args.first_output += args.rows;
  }
  return packed;
}

PackedWeights WeightLoader::matrix(const std::string& name, std::int64_t rows,
                                   std::int64_t num_inputs) {
  const MatrixPart part{name, rows};
  return matrix(std::span<const MatrixPart>(&part, 1), num_inputs);
}

PackedWeights WeightLoader::slice(const TensorView& tensor, const Slice& slice) {
  const DType dtype = panel_dtype(tensor.dtype);
  const std::int64_t outputs = slice.is_transposed ? slice.columns : slice.rows;
  const std::int64_t inputs = slice.is_transposed ? slice.rows : slice.columns;
  const PackedWeights packed = allocate(outputs, inputs, dtype);
  PackArgs args;
  args.source = tensor.bytes.data() + slice.first_row * slice.columns * dtype_bytes(tensor.dtype);
  args.source_dtype = tensor.dtype;
  args.row_stride = slice.is_transposed ? 1 : slice.columns;
  args.input_stride = slice.is_transposed ? slice.columns : 1;
  args.rows = packed.num_outputs;
  args.num_inputs = packed.num_inputs;
  args.dtype = dtype;
  args.panels = const_cast<std::byte*>(packed.panels);
  pack(args);
  return packed;
}

std::optional<TensorView> WeightLoader::tensor(const std::string& name, std::int64_t rows,
                                               std::int64_t columns) {
  const std::int64_t shape[] = {rows, columns};
  return take(name, shape);
}

const std::byte* WeightLoader::table(const std::string& name, std::int64_t rows,
                                     std::int64_t columns, DType* dtype) {
  const std::optional<TensorView> source = tensor(name, rows, columns);
  if (!source.has_value()) return nullptr;
  *dtype = panel_dtype(source->dtype);
  const std::int64_t count = rows * columns;
  std::byte* values = arena_.allocate(static_cast<std::size_t>(count * dtype_bytes(*dtype)));
  if (source->dtype == *dtype) {
    std::memcpy(values, source->bytes.data(), source->bytes.size());
    return values;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    reinterpret_cast<float*>(values)[i] = value_at(*source, i);
  }
  return values;
}

void WeightLoader::expect_all_taken() {
  if (error_.has_value()) return;
  for (const TensorView& tensor : checkpoint_.tensors()) {
    if (taken_.contains(std::string(tensor.name))) continue;
    fail(Error(ErrorCode::kInvalidArgument,
               fmt::format("tensor {} is not part of the model that config.json describes; check "
                           "num_hidden_layers, num_nextn_predict_layers and the layer lists",
                           tensor.name)));
    return;
  }
}

}  // namespace slackwater::model
