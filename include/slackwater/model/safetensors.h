#ifndef SLACKWATER_MODEL_SAFETENSORS_H_
#define SLACKWATER_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/dtype.h"
#include "slackwater/base/error.h"
#include "slackwater/model/mapped_file.h"

namespace slackwater::model {

// The format has no limit of its own; nothing we load has more than 4 dimensions.
inline constexpr std::size_t kMaxTensorRank = 8;

// The limit of the published format.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// One tensor of a file: who it is and where its bytes lie.
//
// `bytes` is row-major and little-endian, and may start at any address: readers copy elements
// out (memcpy) instead of casting the pointer.
struct TensorView {
  std::string_view name;
  DType dtype = DType::kF32;
  std::span<const std::int64_t> shape;  // outermost first; empty for a scalar
  std::span<const std::byte> bytes;     // num_elements() * dtype_bytes(dtype)

  // Product of the shape: 1 for a scalar, 0 where a dimension is 0.
  std::int64_t num_elements() const;
};

// One safetensors file: an index of its tensors over bytes that stay where they are.
//
// Source: the published format (github.com/huggingface/safetensors, README, section Format), with
// the byte table and every check in docs/formats/safetensors.md.
// Invariants:
//   I1  every view lies inside the file; together they cover the data section without overlap
//       and without holes.
//   I2  names are unique, not empty, and valid UTF-8.
//   I3  bytes.size() == num_elements() * dtype_bytes(dtype) for every tensor.
// Ownership: open() owns the mapping; parse() borrows its bytes, which must outlive the object.
//   Views stay valid when the object is moved, and end with it. Move-only.
// Threads: immutable once made; any thread may read.
// Errors: kDataLoss for a file that breaks the format, kUnimplemented for a rank or an element
//   type that is legal but not supported, and those of MappedFile::open. The text names the file,
//   the tensor, the field and the limit.
// Cost: one pass over the header and two sorts; about 130 bytes a tensor, in a few flat arrays.
//   Tensor bytes are not touched.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  // `file_bytes` is a whole file; `name` stands for it in errors.
  static Result<SafetensorsFile> parse(std::span<const std::byte> file_bytes, std::string name);

  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept = default;

  // Null where the file has no such tensor. O(log n).
  const TensorView* find(std::string_view name) const;

  // All tensors in the order of their bytes in the file.
  std::span<const TensorView> tensors() const { return tensors_; }

  // The path or name the file was opened with.
  const std::string& name() const { return name_; }

 private:
  SafetensorsFile() = default;

  MappedFile file_;  // empty after parse()
  std::string name_;
  std::vector<char> names_;               // all tensor names, one after another
  std::vector<std::int64_t> dimensions_;  // all shapes, one after another
  std::vector<TensorView> tensors_;       // views into the two above and the file
  std::vector<std::uint32_t> by_name_;    // indices of tensors_ in ascending order of name
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_SAFETENSORS_H_
