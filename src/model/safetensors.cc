#include "slackwater/model/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "model/json_events.h"
#include "slackwater/base/check.h"
#include "slackwater/base/numeric.h"

namespace slackwater::model {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

// A piece of one of the flat arrays. Offsets, because the arrays grow while they are read.
struct Piece {
  std::size_t begin = 0;
  std::size_t size = 0;
};

struct Entry {
  Piece name;   // of Header::names
  Piece shape;  // of Header::dimensions
  DType dtype = DType::kF32;
  std::uint64_t begin = 0;  // [begin, end) of the data section
  std::uint64_t end = 0;
};

struct Header {
  std::vector<char> names;
  std::vector<std::int64_t> dimensions;
  std::vector<Entry> entries;

  std::string_view name(const Entry& entry) const {
    return {names.data() + entry.name.begin, entry.name.size};
  }
  std::span<const std::int64_t> shape(const Entry& entry) const {
    return std::span(dimensions).subspan(entry.shape.begin, entry.shape.size);
  }
};

constexpr std::array kSupported = {DType::kF32, DType::kF16, DType::kBf16,
                                   DType::kU8,  DType::kI32, DType::kI64};

// Element types of the format that we have no use for. A name in neither list is damage.
constexpr std::array<std::string_view, 16> kUnsupported = {
    "BOOL",    "I8",      "I16", "U16",     "U32",     "U64",     "F64",         "C64",
    "F6_E2M3", "F6_E3M2", "F4",  "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};

std::optional<DType> supported_dtype(std::string_view text) {
  const auto* const found = std::find_if(kSupported.begin(), kSupported.end(),
                                         [&](DType dtype) { return to_string(dtype) == text; });
  if (found == kSupported.end()) return std::nullopt;
  return *found;
}

std::string supported_list() {
  std::string out;
  for (const DType dtype : kSupported) {
    if (!out.empty()) out.push_back(' ');
    out += to_string(dtype);
  }
  return out;
}

// The fields of an entry, as bits of a set.
enum Field : unsigned { kNoField = 0, kDtype = 1, kShapeField = 2, kOffsetsField = 4 };
constexpr std::array kFields = {kDtype, kShapeField, kOffsetsField};

std::string_view field_name(Field field) {
  switch (field) {
    case kDtype: return "dtype";
    case kShapeField: return "shape";
    case kOffsetsField: return "data_offsets";
    case kNoField: break;
  }
  return "";
}

// Turns the header's events into entries. Checks what can be seen of one entry alone; extents
// are checked afterwards, against each other and the file.
class HeaderReader final : public JsonEvents {
 public:
  HeaderReader() : JsonEvents(kMaxDepth) {}

  Header take() && { return std::move(header_); }
  // The keys of the metadata map, for the search for duplicates; they look like tensor names.
  const Header& metadata() const { return metadata_; }

 private:
  // The header, an entry, and a list in it.
  static constexpr int kMaxDepth = 3;
  static constexpr std::size_t kNumOffsets = 2;

  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };

  bool on_key(std::string_view name) override;
  bool on_scalar(const JsonScalar& scalar) override;
  bool on_object_start() override;
  bool on_object_end() override;
  bool on_array_start() override;
  bool on_array_end() override;

  bool on_top_key(std::string_view name);
  bool on_tensor_key(std::string_view name);
  bool on_dtype(const JsonScalar& scalar);
  bool on_dimension(const JsonScalar& scalar);
  bool on_offset(const JsonScalar& scalar);

  // "tensor 'x', field 'shape'", as far as it is known.
  std::string where() const;
  bool refuse(std::string_view text, ErrorCode code = ErrorCode::kDataLoss) {
    return fail(code, fmt::format("{}: {}", where(), text));
  }
  bool refuse_kind(std::string_view expected, std::string_view found) {
    return refuse(fmt::format("expected {}, found {}", expected, found));
  }

  Header header_;
  Header metadata_;
  Place place_ = Place::kOutside;
  Entry entry_;                   // the tensor being read
  unsigned seen_ = 0;             // Fields of it
  Field field_ = kNoField;        // the one being read
  std::size_t num_offsets_ = 0;   // of the list being read
  bool in_metadata_key_ = false;  // the last top-level key was "__metadata__"
  bool has_metadata_ = false;
};

Entry append_name(Header& header, std::string_view name) {
  Entry entry;
  entry.name = {header.names.size(), name.size()};
  entry.shape = {header.dimensions.size(), 0};
  header.names.insert(header.names.end(), name.begin(), name.end());
  return entry;
}

std::string HeaderReader::where() const {
  if (in_metadata_key_ || place_ == Place::kMetadata) return std::string(kMetadataKey);
  std::string out = "tensor " + in_quotes(header_.name(entry_));
  if (field_ != kNoField) out += fmt::format(", field '{}'", field_name(field_));
  return out;
}

bool HeaderReader::on_key(std::string_view name) {
  switch (place_) {
    case Place::kTop: return on_top_key(name);
    case Place::kMetadata: metadata_.entries.push_back(append_name(metadata_, name)); return true;
    case Place::kTensor: return on_tensor_key(name);
    case Place::kOutside:
    case Place::kShape:
    case Place::kOffsets: break;
  }
  SLACKWATER_CHECK(false, "key {} at place {}", in_quotes(name), static_cast<int>(place_));
}

bool HeaderReader::on_top_key(std::string_view name) {
  in_metadata_key_ = name == kMetadataKey;
  if (in_metadata_key_) {
    if (has_metadata_) return refuse("appears twice");
    has_metadata_ = true;
    return true;
  }
  if (name.empty()) {
    return fail(ErrorCode::kDataLoss,
                fmt::format("tensor number {} has an empty name", header_.entries.size()));
  }
  entry_ = append_name(header_, name);
  seen_ = 0;
  field_ = kNoField;
  return true;
}

bool HeaderReader::on_tensor_key(std::string_view name) {
  field_ = kNoField;
  for (const Field field : kFields) {
    if (field_name(field) == name) field_ = field;
  }
  if (field_ == kNoField) {
    return refuse(
        fmt::format("unknown field {}; known: dtype shape data_offsets", in_quotes(name)));
  }
  if ((seen_ & field_) != 0) return refuse("appears twice");
  seen_ |= field_;
  return true;
}

bool HeaderReader::on_scalar(const JsonScalar& scalar) {
  switch (place_) {
    case Place::kTop: return refuse_kind("an object", scalar.describe());
    case Place::kMetadata:
      if (scalar.kind == JsonScalar::Kind::kString) return true;
      return refuse_kind("only strings as values", scalar.describe());
    case Place::kTensor:
      if (field_ == kDtype) return on_dtype(scalar);
      return refuse_kind("a list of numbers", scalar.describe());
    case Place::kShape: return on_dimension(scalar);
    case Place::kOffsets: return on_offset(scalar);
    case Place::kOutside: break;
  }
  SLACKWATER_CHECK(false, "{} outside the header object", scalar.describe());
}

bool HeaderReader::on_dtype(const JsonScalar& scalar) {
  if (scalar.kind != JsonScalar::Kind::kString) return refuse_kind("a string", scalar.describe());
  if (const std::optional<DType> dtype = supported_dtype(scalar.text)) {
    entry_.dtype = *dtype;
    return true;
  }
  if (std::find(kUnsupported.begin(), kUnsupported.end(), scalar.text) != kUnsupported.end()) {
    return refuse(fmt::format("{} is not supported; supported: {}", scalar.text, supported_list()),
                  ErrorCode::kUnimplemented);
  }
  return refuse(fmt::format("unknown element type {}; supported: {}", in_quotes(scalar.text),
                            supported_list()));
}

bool HeaderReader::on_dimension(const JsonScalar& scalar) {
  if (scalar.kind != JsonScalar::Kind::kUnsigned || !std::in_range<std::int64_t>(scalar.number)) {
    return refuse_kind("whole numbers from 0 to 2^63-1", scalar.describe());
  }
  if (entry_.shape.size == kMaxTensorRank) {
    return refuse(fmt::format("more than {} dimensions are not supported", kMaxTensorRank),
                  ErrorCode::kUnimplemented);
  }
  header_.dimensions.push_back(static_cast<std::int64_t>(scalar.number));
  ++entry_.shape.size;
  return true;
}

bool HeaderReader::on_offset(const JsonScalar& scalar) {
  if (scalar.kind != JsonScalar::Kind::kUnsigned) {
    return refuse_kind("whole numbers from 0 to 2^64-1", scalar.describe());
  }
  if (num_offsets_ == kNumOffsets) return refuse("more than 2 numbers");
  (num_offsets_ == 0 ? entry_.begin : entry_.end) = scalar.number;
  ++num_offsets_;
  return true;
}

bool HeaderReader::on_object_start() {
  switch (place_) {
    case Place::kOutside: place_ = Place::kTop; return true;
    case Place::kTop: place_ = in_metadata_key_ ? Place::kMetadata : Place::kTensor; return true;
    case Place::kMetadata: return refuse_kind("only strings as values", "an object");
    case Place::kTensor:
      return refuse_kind(field_ == kDtype ? "a string" : "a list of numbers", "an object");
    case Place::kShape:
    case Place::kOffsets: break;
  }
  SLACKWATER_CHECK(false, "an object inside a list passed the limit of depth {}", kMaxDepth);
}

bool HeaderReader::on_object_end() {
  if (place_ == Place::kTop) {
    place_ = Place::kOutside;
    return true;
  }
  if (place_ == Place::kTensor) {
    field_ = kNoField;
    for (const Field field : kFields) {
      if ((seen_ & field) == 0) {
        return refuse(fmt::format("field '{}' is missing", field_name(field)));
      }
    }
    header_.entries.push_back(entry_);
  }
  in_metadata_key_ = false;
  place_ = Place::kTop;
  return true;
}

bool HeaderReader::on_array_start() {
  if (place_ == Place::kTop) return refuse_kind("an object", "a list");
  if (place_ == Place::kMetadata) return refuse_kind("only strings as values", "a list");
  SLACKWATER_CHECK(place_ == Place::kTensor, "a list at place {}", static_cast<int>(place_));
  if (field_ == kDtype) return refuse_kind("a string", "a list");
  place_ = field_ == kShapeField ? Place::kShape : Place::kOffsets;
  num_offsets_ = 0;
  return true;
}

bool HeaderReader::on_array_end() {
  if (place_ == Place::kOffsets && num_offsets_ != kNumOffsets) {
    return refuse(fmt::format("expected 2 numbers, found {}", num_offsets_));
  }
  place_ = Place::kTensor;
  return true;
}

// The JSON text between the length and the data section.
Result<std::string_view> header_text(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return make_error(ErrorCode::kDataLoss, "{} bytes are too few for the header length ({} bytes)",
                      file.size(), kLengthBytes);
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    return make_error(ErrorCode::kDataLoss, "header length {} exceeds the limit of {} bytes",
                      length, kMaxHeaderBytes);
  }
  if (length > file.size() - kLengthBytes) {
    return make_error(ErrorCode::kDataLoss, "header length {} exceeds the {} bytes that follow it",
                      length, file.size() - kLengthBytes);
  }
  const auto* const text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  if (length == 0 || *text != '{') {
    return make_error(ErrorCode::kDataLoss, "the header does not start with '{{'");
  }
  return std::string_view(text, static_cast<std::size_t>(length));
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// One entry against its own shape and the data section.
Result<void> check_extent(const Header& header, const Entry& entry, std::uint64_t data_bytes) {
  const auto refuse = [&](std::string_view text) {
    return make_error(ErrorCode::kDataLoss, "tensor {}: data_offsets [{}, {}] {}",
                      in_quotes(header.name(entry)), entry.begin, entry.end, text);
  };
  if (entry.begin > entry.end) return refuse("run backwards");
  if (entry.end > data_bytes) {
    return refuse(fmt::format("reach beyond the {} bytes of tensor data in the file", data_bytes));
  }
  const auto shape = header.shape(entry);
  std::optional<std::uint64_t> bytes = static_cast<std::uint64_t>(dtype_bytes(entry.dtype));
  for (const std::int64_t dimension : shape) {
    if (bytes) bytes = checked_multiply(*bytes, static_cast<std::uint64_t>(dimension));
  }
  if (!bytes) {
    return refuse(
        fmt::format("cannot hold the shape {}: its size exceeds 64 bits", shape_text(shape)));
  }
  if (*bytes != entry.end - entry.begin) {
    return refuse(fmt::format("hold {} bytes, but {} of shape {} takes {}", entry.end - entry.begin,
                              to_string(entry.dtype), shape_text(shape), *bytes));
  }
  return {};
}

// Entries in the order of their bytes must meet end to end and fill the data section.
Result<void> check_tiling(const Header& header, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  const Entry* previous = nullptr;
  for (const Entry& entry : header.entries) {
    if (entry.begin < covered) {
      return make_error(ErrorCode::kDataLoss, "tensors {} and {} overlap at data byte {}",
                        in_quotes(header.name(*previous)), in_quotes(header.name(entry)),
                        entry.begin);
    }
    if (entry.begin > covered) {
      return make_error(ErrorCode::kDataLoss,
                        "data bytes [{}, {}) before tensor {} belong to no "
                        "tensor; the format allows no holes",
                        covered, entry.begin, in_quotes(header.name(entry)));
    }
    covered = entry.end;
    previous = &entry;
  }
  if (covered != data_bytes) {
    return make_error(ErrorCode::kDataLoss,
                      "the last {} bytes belong to no tensor; the format "
                      "allows no trailing bytes",
                      data_bytes - covered);
  }
  return {};
}

// Entry numbers in ascending order of name, or the name that is there twice.
Result<std::vector<std::uint32_t>> order_by_name(const Header& header, std::string_view what) {
  std::vector<std::uint32_t> order(header.entries.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
  const auto name = [&](std::uint32_t i) { return header.name(header.entries[i]); };
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name(a) < name(b); });
  const auto twice =
      std::adjacent_find(order.begin(), order.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return name(a) == name(b); });
  if (twice != order.end()) {
    return make_error(ErrorCode::kDataLoss, "{} {} appears twice", what, in_quotes(name(*twice)));
  }
  return order;
}

struct ParsedHeader {
  Header header;  // entries in the order of their bytes
  std::vector<std::uint32_t> by_name;
  std::span<const std::byte> data;
};

Result<ParsedHeader> parse_header(std::span<const std::byte> file) {
  SLACKWATER_ASSIGN_OR_RETURN(const std::string_view text, header_text(file));
  HeaderReader reader;
  SLACKWATER_RETURN_IF_ERROR(read_json(text, reader).map_error([](const Error& error) {
    return error.with_context("header");
  }));
  SLACKWATER_RETURN_IF_ERROR(order_by_name(reader.metadata(), "__metadata__ key"));

  ParsedHeader parsed;
  parsed.header = std::move(reader).take();
  parsed.data = file.subspan(kLengthBytes + text.size());
  Header& header = parsed.header;
  for (const Entry& entry : header.entries) {
    SLACKWATER_RETURN_IF_ERROR(check_extent(header, entry, parsed.data.size()));
  }
  // Before the tiling, where a duplicate would show as an overlap.
  SLACKWATER_RETURN_IF_ERROR(order_by_name(header, "tensor"));
  // Empty tensors share an offset with a neighbour; by (begin, end) they come before it.
  std::sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name.begin) < std::tie(b.begin, b.end, b.name.begin);
  });
  SLACKWATER_RETURN_IF_ERROR(check_tiling(header, parsed.data.size()));
  SLACKWATER_ASSIGN_OR_RETURN(parsed.by_name, order_by_name(header, "tensor"));
  return parsed;
}

// The same error as a sentence about a file, with what a person can do.
Error about_file(const Error& error, std::string_view name) {
  const Error located = error.with_context(fmt::format("'{}'", name));
  if (error.code() != ErrorCode::kDataLoss) return located;
  return Error(located.code(),
               located.text() + "; the file is damaged or incomplete, fetch it again");
}

}  // namespace

std::int64_t TensorView::num_elements() const {
  // By the bytes: a product over the shape may overflow before it meets a 0.
  return static_cast<std::int64_t>(bytes.size()) / dtype_bytes(dtype);
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  SLACKWATER_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  mapped.advise_sequential();
  SLACKWATER_ASSIGN_OR_RETURN(SafetensorsFile file, parse(mapped.bytes(), path.string()));
  file.file_ = std::move(mapped);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> file_bytes,
                                               std::string name) {
  auto parsed = parse_header(file_bytes);
  if (!parsed) return tl::unexpected<Error>(about_file(parsed.error(), name));

  SafetensorsFile file;
  file.name_ = std::move(name);
  file.tensors_.reserve(parsed->header.entries.size());
  // The views look into the arrays, which keep their memory when they are moved.
  for (const Entry& entry : parsed->header.entries) {
    file.tensors_.push_back(
        {parsed->header.name(entry), entry.dtype, parsed->header.shape(entry),
         parsed->data.subspan(static_cast<std::size_t>(entry.begin),
                              static_cast<std::size_t>(entry.end - entry.begin))});
  }
  file.names_ = std::move(parsed->header.names);
  file.dimensions_ = std::move(parsed->header.dimensions);
  file.by_name_ = std::move(parsed->by_name);
  return file;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](std::uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  if (at == by_name_.end() || tensors_[*at].name != name) return nullptr;
  return &tensors_[*at];
}

}  // namespace slackwater::model
