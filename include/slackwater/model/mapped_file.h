#ifndef SLACKWATER_MODEL_MAPPED_FILE_H_
#define SLACKWATER_MODEL_MAPPED_FILE_H_

#include <cstddef>
#include <filesystem>
#include <span>

#include "slackwater/base/error.h"

namespace slackwater::model {

// The bytes of one regular file, mapped read-only.
//
// Invariants:
//   I1  bytes() is the whole file as it was when it was opened, and never empty; a moved-from
//       object has no bytes.
// Ownership: owns the mapping, not the file descriptor; move-only. Spans of bytes() stay valid
//   when the object is moved, and end with it.
// Threads: bytes() may be read from any thread.
// Errors: open() says kNotFound for a path that does not exist, kInvalidArgument for a directory
//   or a device, kDataLoss for an empty file, kUnavailable where the system refuses. A file that
//   somebody cuts short while it is mapped ends the process with SIGBUS on the next read of the
//   lost part: replace model files by rename, do not write into them.
// Cost: three system calls to open; a byte costs disk time when it is first read.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

  // Tells the kernel that the bytes will be read once, front to back. Advice only.
  void advise_sequential() const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_MAPPED_FILE_H_
