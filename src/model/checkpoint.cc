#include "slackwater/model/checkpoint.h"

#include <algorithm>
#include <functional>
#include <map>
#include <system_error>
#include <utility>

#include "model/json_events.h"

namespace slackwater::model {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::string_view kTextPrefix = "language_model.";
constexpr std::string_view kIgnoredPrefixes[] = {"vision_tower.", "mm_projector."};

// Kimi K3, with half a million tensors, has an index of about 65 MB.
constexpr std::size_t kMaxIndexBytes = std::size_t{256} << 20;
// NAME_MAX of every file system we know.
constexpr std::size_t kMaxFileNameBytes = 255;

// The weight_map of an index: which tensor lies in which file. Flat, because it can have half a
// million rows.
struct WeightMap {
  struct Row {
    std::size_t name_begin = 0;
    std::size_t name_size = 0;
    std::size_t file = 0;  // of `files`
  };

  std::string names;
  std::vector<Row> rows;  // ascending by name once sorted
  std::vector<std::string> files;

  std::string_view name(const Row& row) const {
    return std::string_view(names).substr(row.name_begin, row.name_size);
  }
  // Null where the index does not name the tensor.
  const Row* find(std::string_view wanted) const {
    const auto at =
        std::lower_bound(rows.begin(), rows.end(), wanted,
                         [&](const Row& row, std::string_view w) { return name(row) < w; });
    return at == rows.end() || name(*at) != wanted ? nullptr : &*at;
  }
};

// A shard's name must not lead out of the directory.
bool is_plain_file_name(std::string_view name) {
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  return !has_control && name.size() > kShardSuffix.size() && name.size() <= kMaxFileNameBytes &&
         name.ends_with(kShardSuffix) && name.find_first_of("/\\") == std::string_view::npos &&
         name.find("..") == std::string_view::npos;
}

// Reads {"metadata": anything, "weight_map": {tensor: file, ...}}; skips other members.
class IndexReader final : public JsonEvents {
 public:
  IndexReader() : JsonEvents(kMaxDepth) {}

  bool has_weight_map() const { return has_weight_map_; }
  WeightMap take() && { return std::move(map_); }

 private:
  static constexpr int kMaxDepth = 16;

  bool on_key(std::string_view name) override;
  bool on_scalar(const JsonScalar& scalar) override;
  bool on_object_start() override;
  bool on_object_end() override { return true; }
  bool on_array_start() override;
  bool on_array_end() override { return true; }

  bool refuse(std::string_view expected, std::string_view found) {
    return fail(ErrorCode::kDataLoss,
                depth() <= 1 && !in_weight_map_
                    ? fmt::format("expected an object with 'weight_map', found {}", found)
                    : fmt::format("weight_map: expected {}, found {}", expected, found));
  }

  WeightMap map_;
  std::map<std::string, std::size_t, std::less<>> file_numbers_;
  bool in_weight_map_ = false;
  bool has_weight_map_ = false;
};

bool IndexReader::on_key(std::string_view name) {
  if (depth() == 1) {
    in_weight_map_ = name == "weight_map";
    if (in_weight_map_ && std::exchange(has_weight_map_, true)) {
      return fail(ErrorCode::kDataLoss, "weight_map appears twice");
    }
  } else if (in_weight_map_) {
    map_.rows.push_back({map_.names.size(), name.size(), 0});
    map_.names += name;
  }
  return true;
}

bool IndexReader::on_scalar(const JsonScalar& scalar) {
  if (depth() == 0) return refuse("an object", scalar.describe());
  if (!in_weight_map_) return true;
  if (depth() == 1) return refuse("an object", scalar.describe());
  const std::string tensor = in_quotes(map_.name(map_.rows.back()));
  if (scalar.kind != JsonScalar::Kind::kString) {
    return refuse(fmt::format("a file name for tensor {}", tensor), scalar.describe());
  }
  if (!is_plain_file_name(scalar.text)) {
    return refuse(fmt::format("a plain file name ending in {} (no '/', '\\' or '..', at most {} "
                              "bytes) for tensor {}",
                              kShardSuffix, kMaxFileNameBytes, tensor),
                  scalar.describe());
  }
  auto number = file_numbers_.find(scalar.text);
  if (number == file_numbers_.end()) {
    number = file_numbers_.emplace(scalar.text, map_.files.size()).first;
    map_.files.emplace_back(scalar.text);
  }
  map_.rows.back().file = number->second;
  return true;
}

bool IndexReader::on_object_start() {
  if (in_weight_map_ && depth() > 2) return refuse("file names as values", "an object");
  return true;
}

bool IndexReader::on_array_start() {
  if (depth() == 1 || in_weight_map_) return refuse("an object of file names", "a list");
  return true;
}

Result<WeightMap> parse_index(std::string_view text) {
  IndexReader reader;
  SLACKWATER_RETURN_IF_ERROR(read_json(text, reader));
  if (!reader.has_weight_map()) {
    return make_error(ErrorCode::kDataLoss, "field 'weight_map' is missing");
  }
  WeightMap map = std::move(reader).take();
  if (map.rows.empty()) return make_error(ErrorCode::kDataLoss, "weight_map names no tensor");
  std::sort(map.rows.begin(), map.rows.end(),
            [&](const auto& a, const auto& b) { return map.name(a) < map.name(b); });
  const auto twice =
      std::adjacent_find(map.rows.begin(), map.rows.end(),
                         [&](const auto& a, const auto& b) { return map.name(a) == map.name(b); });
  if (twice != map.rows.end()) {
    return make_error(ErrorCode::kDataLoss, "weight_map names tensor {} twice",
                      in_quotes(map.name(*twice)));
  }
  return map;
}

Result<WeightMap> load_index(const std::filesystem::path& path) {
  SLACKWATER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxIndexBytes) {
    return make_error(ErrorCode::kDataLoss, "'{}' has {} bytes, the limit is {}", path.string(),
                      bytes.size(), kMaxIndexBytes);
  }
  return parse_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()})
      .map_error([&](const Error& error) {
        return error.with_context(fmt::format("'{}'", path.string()));
      });
}

// I2, for the shard that is file number `number` of the map.
Result<void> check_shard(const WeightMap& map, std::size_t number, const SafetensorsFile& shard) {
  constexpr std::string_view kRemedy = "index and shards are of two versions, fetch both again";
  for (const TensorView& tensor : shard.tensors()) {
    const WeightMap::Row* const row = map.find(tensor.name);
    if (row == nullptr) {
      return make_error(ErrorCode::kDataLoss,
                        "'{}' holds tensor {}, which the index does not name; "
                        "{}",
                        shard.name(), in_quotes(tensor.name), kRemedy);
    }
    if (row->file != number) {
      return make_error(ErrorCode::kDataLoss,
                        "'{}' holds tensor {}, which the index places in "
                        "'{}'; {}",
                        shard.name(), in_quotes(tensor.name), map.files[row->file], kRemedy);
    }
  }
  return {};
}

Result<void> check_all_found(const WeightMap& map, std::span<const SafetensorsFile> shards) {
  for (const WeightMap::Row& row : map.rows) {
    if (shards[row.file].find(map.name(row)) != nullptr) continue;
    return make_error(ErrorCode::kDataLoss,
                      "'{}' lacks tensor {}, which the index places there; "
                      "fetch index and shards again",
                      shards[row.file].name(), in_quotes(map.name(row)));
  }
  return {};
}

Result<std::vector<SafetensorsFile>> open_shards(const std::filesystem::path& directory) {
  SLACKWATER_ASSIGN_OR_RETURN(const WeightMap map, load_index(directory / kIndexFile));
  std::vector<SafetensorsFile> shards;
  shards.reserve(map.files.size());
  for (std::size_t i = 0; i < map.files.size(); ++i) {
    SLACKWATER_ASSIGN_OR_RETURN(SafetensorsFile shard,
                                SafetensorsFile::open(directory / map.files[i]));
    SLACKWATER_RETURN_IF_ERROR(check_shard(map, i, shard));
    shards.push_back(std::move(shard));
  }
  SLACKWATER_RETURN_IF_ERROR(check_all_found(map, shards));
  return shards;
}

// Whether `path` exists; an error where that cannot be told.
Result<bool> path_exists(const std::filesystem::path& path) {
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(path, code);
  if (status.type() == std::filesystem::file_type::not_found) return false;
  if (status.type() == std::filesystem::file_type::none) {
    return make_error(ErrorCode::kUnavailable, "cannot look at '{}': {}", path.string(),
                      code.message());
  }
  return true;
}

Result<std::vector<SafetensorsFile>> open_files(const std::filesystem::path& directory) {
  SLACKWATER_RETURN_IF_ERROR(check_model_directory(directory));
  SLACKWATER_ASSIGN_OR_RETURN(const bool has_single, path_exists(directory / kSingleFile));
  SLACKWATER_ASSIGN_OR_RETURN(const bool has_index, path_exists(directory / kIndexFile));
  if (has_single && has_index) {
    return make_error(ErrorCode::kInvalidArgument,
                      "'{}' holds both {} and {}; remove the one that "
                      "is not meant",
                      directory.string(), kSingleFile, kIndexFile);
  }
  if (has_index) return open_shards(directory);
  if (!has_single) {
    return make_error(ErrorCode::kNotFound,
                      "'{}' holds neither {} nor {}; fetch the weights into it", directory.string(),
                      kSingleFile, kIndexFile);
  }
  std::vector<SafetensorsFile> files;
  SLACKWATER_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(directory / kSingleFile));
  files.push_back(std::move(file));
  return files;
}

bool is_ignored(std::string_view name) {
  return std::any_of(std::begin(kIgnoredPrefixes), std::end(kIgnoredPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// Drops kTextPrefix where all names have it. Names with and without it cannot be of one model.
Result<void> drop_text_prefix(std::vector<TensorView>& tensors) {
  const auto has_prefix = [](const TensorView& tensor) {
    return tensor.name.starts_with(kTextPrefix);
  };
  const auto bare = std::partition(tensors.begin(), tensors.end(), has_prefix);
  if (bare == tensors.begin()) return {};
  if (bare != tensors.end()) {
    return make_error(ErrorCode::kDataLoss,
                      "tensor {} has the prefix '{}' and tensor {} has not; "
                      "the files are of two models",
                      in_quotes(tensors.front().name), kTextPrefix, in_quotes(bare->name));
  }
  for (TensorView& tensor : tensors) tensor.name.remove_prefix(kTextPrefix.size());
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory.string();
  SLACKWATER_ASSIGN_OR_RETURN(checkpoint.shards_, open_files(directory));
  SLACKWATER_RETURN_IF_ERROR(checkpoint.index_tensors());
  return checkpoint;
}

Result<void> Checkpoint::index_tensors() {
  for (const SafetensorsFile& shard : shards_) {
    for (const TensorView& tensor : shard.tensors()) {
      if (is_ignored(tensor.name)) {
        ++num_ignored_;
        continue;
      }
      tensors_.push_back(tensor);
      total_bytes_ += tensor.bytes.size();
    }
  }
  SLACKWATER_RETURN_IF_ERROR(drop_text_prefix(tensors_).map_error(
      [&](const Error& error) { return error.with_context(fmt::format("'{}'", directory_)); }));
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return {};
}

Result<void> check_model_directory(const std::filesystem::path& directory) {
  SLACKWATER_ASSIGN_OR_RETURN(const bool present, path_exists(directory));
  if (!present) {
    return make_error(ErrorCode::kNotFound,
                      "model directory '{}' does not exist; name one that holds config.json",
                      directory.string());
  }
  if (std::error_code code; !std::filesystem::is_directory(directory, code)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "'{}' is not a directory; name the directory of the model",
                      directory.string());
  }
  return {};
}

Result<TensorView> Checkpoint::find(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorView& tensor, std::string_view wanted) { return tensor.name < wanted; });
  if (at == tensors_.end() || at->name != name) {
    return make_error(ErrorCode::kNotFound,
                      "tensor {} is not among the {} tensors; the checkpoint is incomplete or does "
                      "not belong to its config.json",
                      in_quotes(name), tensors_.size());
  }
  return *at;
}

}  // namespace slackwater::model
