#include "slackwater/engine/bundle.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/bundle_format.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifestName = "manifest.slk";
constexpr const char* kPartialName = "manifest.slk.partial";
constexpr const char* kRequestsName = "requests.slk";

// Closes the descriptor with the scope.
class Descriptor {
 public:
  explicit Descriptor(int opened) : fd_(opened) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

tl::unexpected<Error> system_error(const char* verb, const fs::path& path, int code) {
  const bool is_absent = code == ENOENT || code == ENOTDIR;
  return make_error(is_absent ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                    "cannot {} '{}': {}; check its name, permissions and the room on its disk",
                    verb, path.string(), std::generic_category().message(code));
}

Result<Descriptor> open_file(const fs::path& path, int flags) {
  Descriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file.is_open()) return system_error("open", path, errno);
  return file;
}

Result<void> write_all(const Descriptor& file, std::span<const std::byte> bytes,
                       const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.fd(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

// A file that has become shorter meanwhile is as damaged as any other.
Result<void> read_all(const Descriptor& file, std::uint64_t offset, std::span<std::byte> bytes,
                      const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("read", path, errno);
    if (count == 0) {
      return make_error(ErrorCode::kDataLoss, "'{}' ends at {}, {} bytes early; save it again",
                        path.string(), offset, bytes.size());
    }
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Result<void> flush(const Descriptor& file, const fs::path& path) {
  if (::fsync(file.fd()) == 0) return {};
  return system_error("flush", path, errno);
}

Result<void> flush_directory(const fs::path& path) {
  SLACKWATER_ASSIGN_OR_RETURN(const Descriptor directory, open_file(path, O_RDONLY | O_DIRECTORY));
  return flush(directory, path);
}

Result<std::uint64_t> size_of(const Descriptor& file, const fs::path& path) {
  struct stat status = {};
  if (::fstat(file.fd(), &status) != 0) return system_error("read the size of", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return make_error(ErrorCode::kDataLoss, "'{}' is no regular file; name a bundle's directory",
                      path.string());
  }
  return static_cast<std::uint64_t>(status.st_size);
}

// The same error, with the file and what to do.
tl::unexpected<Error> in_file(const fs::path& path, std::string_view part, const Error& error) {
  const std::string_view remedy =
      error.code() == ErrorCode::kInvalidArgument
          ? "load it with the program and the model that saved it"
          : "it is not what was saved: save it again, or start without it";
  return make_error(error.code(), "'{}': {}{}; {}", path.string(), part, error.text(), remedy);
}

Result<void> check_part(std::span<const std::byte> bytes, const Digest128& expected,
                        std::string_view name, std::uint64_t offset) {
  const Digest128 found = xxh3_128(bytes);
  if (found == expected || SLACKWATER_MUTANT(bundle_ignores_checksum)) return {};
  return make_error(ErrorCode::kDataLoss,
                    "its {} at offset {}, {} bytes: checksum {}, {} is expected", name, offset,
                    bytes.size(), to_hex(found), to_hex(expected));
}

}  // namespace

// --- Writing.

struct BundleWriter::State {
  explicit State(fs::path path) : directory(std::move(path)) {}
  ~State() {
    if (is_finished || !requests.is_open()) return;
    ::unlink(manifest_partial().c_str());
    ::unlink(requests_path().c_str());
    if (is_own_directory) ::rmdir(directory.c_str());
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  fs::path requests_path() const { return directory / kRequestsName; }
  fs::path manifest_partial() const { return directory / kPartialName; }
  fs::path manifest_path() const { return directory / kManifestName; }

  const fs::path directory;
  bool is_own_directory = false;
  Descriptor requests{-1};  // locked
  Digest128 layout;
  BundleManifest manifest;
  bool has_failed = false;
  bool is_finished = false;
};

namespace {

// Takes the directory for the writer alone, and only if there is no bundle: a manifest that is
// there once the lock is held was finished by somebody else, whose requests stay as they are.
Result<Descriptor> lock_requests(const fs::path& requests, const fs::path& manifest) {
  SLACKWATER_ASSIGN_OR_RETURN(Descriptor file, open_file(requests, O_RDWR | O_CREAT));
  if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "somebody else writes a bundle to '{}'; name another directory",
                      requests.parent_path().string());
  }
  if (::access(manifest.c_str(), F_OK) == 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "there is a bundle in '{}' already; load it, take it away, or name another "
                      "directory",
                      requests.parent_path().string());
  }
  if (::ftruncate(file.fd(), 0) != 0) return system_error("empty", requests, errno);
  return file;
}

}  // namespace

BundleWriter::BundleWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
BundleWriter::BundleWriter(BundleWriter&&) noexcept = default;
BundleWriter& BundleWriter::operator=(BundleWriter&&) noexcept = default;
BundleWriter::~BundleWriter() = default;

Result<BundleWriter> BundleWriter::create(const fs::path& directory, BundleHeader header) {
  auto state = std::make_unique<State>(directory);
  if (::access(state->manifest_path().c_str(), F_OK) == 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "there is a bundle in '{}' already; load it, take it away, or name another "
                      "directory",
                      directory.string());
  }
  std::error_code failed;
  state->is_own_directory = fs::create_directories(directory, failed);
  if (failed) return system_error("make", directory, failed.value());
  SLACKWATER_ASSIGN_OR_RETURN(state->requests,
                              lock_requests(state->requests_path(), state->manifest_path()));
  state->layout = header.layout.digest();
  state->manifest.header = std::move(header);
  const std::vector<std::byte> begin = encode_requests_header(state->manifest.header.process_epoch);
  SLACKWATER_RETURN_IF_ERROR(write_all(state->requests, begin, state->requests_path()));
  state->manifest.requests_bytes = begin.size();
  return BundleWriter(std::move(state));
}

Result<void> BundleWriter::add(const BundleRequest& request) {
  if (state_->is_finished || state_->has_failed) {
    return make_error(ErrorCode::kFailedPrecondition, "a request for the bundle in '{}', which {}",
                      state_->directory.string(),
                      state_->is_finished ? "is finished" : "could not be written");
  }
  if (request.image.layout.digest() != state_->layout) {
    const auto differs = hybrid::difference(request.image.layout, state_->manifest.header.layout);
    return make_error(ErrorCode::kInvalidArgument,
                      "an image of another layout than that of the bundle in '{}': {}",
                      state_->directory.string(), differs.value_or("another order"));
  }
  const std::vector<std::byte> image = encode_image(request.image);
  BundleManifest& manifest = state_->manifest;
  const BundleEntry entry = {.offset = manifest.requests_bytes,
                             .record_bytes = request.record.size(),
                             .image_bytes = image.size(),
                             .record_checksum = xxh3_128(request.record),
                             .image_checksum = xxh3_128(image)};
  for (const std::span<const std::byte> part : {std::span(request.record), std::span(image)}) {
    const Result<void> written = write_all(state_->requests, part, state_->requests_path());
    state_->has_failed |= !written.has_value();
    if (!written.has_value()) return written;
  }
  manifest.requests_bytes += entry.record_bytes + entry.image_bytes;
  manifest.entries.push_back(entry);
  return {};
}

Result<void> BundleWriter::finish() {
  if (state_->is_finished || state_->has_failed) {
    return make_error(ErrorCode::kFailedPrecondition, "the end of the bundle in '{}', which {}",
                      state_->directory.string(),
                      state_->is_finished ? "is finished" : "could not be written");
  }
  state_->has_failed = true;  // until all is done
  const fs::path partial = state_->manifest_partial();
  const std::vector<std::byte> bytes = encode_manifest(state_->manifest);
  if (bytes.size() > kMostManifestBytes) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "a manifest of {} bytes for {} requests; {} is the most: save fewer at a time",
        bytes.size(), state_->manifest.entries.size(), kMostManifestBytes);
  }
  SLACKWATER_RETURN_IF_ERROR(flush(state_->requests, state_->requests_path()));
  SLACKWATER_ASSIGN_OR_RETURN(const Descriptor manifest,
                              open_file(partial, O_WRONLY | O_CREAT | O_TRUNC));
  SLACKWATER_RETURN_IF_ERROR(write_all(manifest, bytes, partial));
  SLACKWATER_RETURN_IF_ERROR(flush(manifest, partial));
  if (::rename(partial.c_str(), state_->manifest_path().c_str()) != 0) {
    return system_error("rename", partial, errno);
  }
  // There from now on, for whoever looks; a failed flush says that a crash may still undo it.
  state_->is_finished = true;
  SLACKWATER_RETURN_IF_ERROR(flush_directory(state_->directory));
  const fs::path parent = fs::absolute(state_->directory).parent_path();
  return state_->is_own_directory ? flush_directory(parent) : Result<void>();
}

// --- Reading.

struct BundleReader::State {
  BundleManifest manifest;
  fs::path requests_path;
  Descriptor requests{-1};
};

namespace {

Result<BundleManifest> read_manifest(const fs::path& path) {
  Result<Descriptor> file = open_file(path, O_RDONLY);
  if (!file.has_value() && file.error().code() == ErrorCode::kNotFound) {
    return make_error(ErrorCode::kNotFound,
                      "no bundle in '{}': it has no {}; name a directory that was saved to the end",
                      path.parent_path().string(), kManifestName);
  }
  if (!file.has_value()) return tl::unexpected<Error>(file.error());
  SLACKWATER_ASSIGN_OR_RETURN(const std::uint64_t size, size_of(*file, path));
  if (size > kMostManifestBytes) {
    return make_error(ErrorCode::kDataLoss, "'{}' has {} bytes, {} is the most; save it again",
                      path.string(), size, kMostManifestBytes);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  SLACKWATER_RETURN_IF_ERROR(read_all(*file, 0, bytes, path));
  Result<BundleManifest> manifest = decode_manifest(bytes);
  if (!manifest.has_value()) return in_file(path, "", manifest.error());
  return manifest;
}

}  // namespace

BundleReader::BundleReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
BundleReader::BundleReader(BundleReader&&) noexcept = default;
BundleReader& BundleReader::operator=(BundleReader&&) noexcept = default;
BundleReader::~BundleReader() = default;

Result<BundleReader> BundleReader::open(const fs::path& directory,
                                        const hybrid::ImageLayout& layout) {
  auto state = std::make_unique<State>();
  const fs::path manifest_path = directory / kManifestName;
  SLACKWATER_ASSIGN_OR_RETURN(state->manifest, read_manifest(manifest_path));
  if (const auto differs = hybrid::difference(state->manifest.header.layout, layout);
      differs.has_value() && !SLACKWATER_MUTANT(bundle_of_any_layout)) {
    return in_file(manifest_path, "another layout: ", Error(ErrorCode::kInvalidArgument, *differs));
  }
  const fs::path path = directory / kRequestsName;
  state->requests_path = path;
  Result<Descriptor> file = open_file(path, O_RDONLY);
  if (!file.has_value()) return tl::unexpected<Error>(file.error());
  state->requests = *std::move(file);
  SLACKWATER_ASSIGN_OR_RETURN(const std::uint64_t size, size_of(state->requests, path));
  if (size != state->manifest.requests_bytes) {
    return in_file(path, "",
                   Error(ErrorCode::kDataLoss, fmt::format("{} bytes, its manifest says {}", size,
                                                           state->manifest.requests_bytes)));
  }
  std::vector<std::byte> begin(kRequestsHeaderBytes);
  SLACKWATER_RETURN_IF_ERROR(read_all(state->requests, 0, begin, path));
  const Result<void> checked = check_requests_header(begin, state->manifest.header.process_epoch);
  if (!checked.has_value()) return in_file(path, "", checked.error());
  return BundleReader(std::move(state));
}

const BundleHeader& BundleReader::header() const { return state_->manifest.header; }

std::size_t BundleReader::num_requests() const { return state_->manifest.entries.size(); }

Result<BundleRequest> BundleReader::read(std::size_t index) const {
  if (index >= num_requests()) {
    return make_error(ErrorCode::kOutOfRange, "request {} of a bundle of {}", index,
                      num_requests());
  }
  const BundleEntry& entry = state_->manifest.entries[index];
  const fs::path& path = state_->requests_path;
  const std::string part = fmt::format("request {}: ", index);
  BundleRequest request;
  request.record.resize(static_cast<std::size_t>(entry.record_bytes));
  SLACKWATER_RETURN_IF_ERROR(read_all(state_->requests, entry.offset, request.record, path));
  Result<void> checked = check_part(request.record, entry.record_checksum, "record", entry.offset);
  if (!checked.has_value()) return in_file(path, part, checked.error());
  const std::uint64_t image_at = entry.offset + entry.record_bytes;
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.image_bytes));
  SLACKWATER_RETURN_IF_ERROR(read_all(state_->requests, image_at, bytes, path));
  checked = check_part(bytes, entry.image_checksum, "image", image_at);
  if (!checked.has_value()) return in_file(path, part, checked.error());
  Result<hybrid::RequestImage> image = decode_image(bytes, header().layout);
  if (!image.has_value()) {
    return in_file(path, fmt::format("{}in its image at offset {}: ", part, image_at),
                   image.error());
  }
  request.image = *std::move(image);
  return request;
}

}  // namespace slackwater::engine
