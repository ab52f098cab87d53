#ifndef SLACKWATER_ENGINE_BUNDLE_H_
#define SLACKWATER_ENGINE_BUNDLE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/hybrid/request_image.h"

namespace slackwater::engine {

// What a bundle says of itself.
struct BundleHeader {
  hybrid::ImageLayout layout;       // of all its images
  std::uint64_t process_epoch = 0;  // of whoever wrote it; for people
  std::vector<std::byte> record;    // the engine's own, of no request: opaque here
};

struct BundleRequest {
  std::vector<std::byte> record;  // the engine's own, of this request: opaque here
  hybrid::RequestImage image;
};

// Writes suspended requests to a directory, for a process that comes later.
//
// Two files, docs/formats/bundle.md: the requests one after another, and a manifest that says where
// they are and vouches for every byte. The manifest gets its name last, once all else is on the
// disk: a crash before that leaves no bundle, and whoever writes the next one there overwrites what
// is left.
//
// Source: written to another name, flushed and renamed, as LevelDB does with its CURRENT file.
// Invariants:
//   I1  a directory has a manifest under its name only when all it speaks of is on the disk.
//   I2  a bundle that is there is never written to.
// Ownership: owns the files until finish(); move-only. The destructor takes away what was not
// finished. While it lives nobody else writes to the directory.
// Threads: one.
// Errors: kFailedPrecondition where there is a bundle or somebody who writes one, or after
// finish(); kInvalidArgument for an image of another layout; kUnavailable where the file system
// refuses, and then nothing more is written.
// Cost: one request's bytes of memory; finish() waits for the disk.
class BundleWriter {
 public:
  // Makes the directory where there is none.
  static Result<BundleWriter> create(const std::filesystem::path& directory, BundleHeader header);
  BundleWriter(BundleWriter&&) noexcept;
  BundleWriter& operator=(BundleWriter&&) noexcept;
  ~BundleWriter();

  Result<void> add(const BundleRequest& request);
  // Once, after all requests: only then there is a bundle.
  Result<void> finish();

 private:
  struct State;
  explicit BundleWriter(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Reads a bundle, one request at a time.
//
// Source: docs/formats/bundle.md.
// Invariants:
//   I1  what is read was written as it is: every byte of both files is vouched for.
//   I2  no allocation is larger than the file that it is for.
// Ownership: owns an open file; move-only. The directory stays as it is.
// Threads: one.
// Errors: kNotFound where there is no bundle; kInvalidArgument for another version or another
// layout, with what differs; kDataLoss for a file that is not as it was written, with file, offset
// and what was found: of one request that says nothing of the others. kUnavailable where the file
// system refuses.
// Cost: one request's bytes of memory, twice while it is read.
class BundleReader {
 public:
  // `layout` is what its images are for.
  static Result<BundleReader> open(const std::filesystem::path& directory,
                                   const hybrid::ImageLayout& layout);
  BundleReader(BundleReader&&) noexcept;
  BundleReader& operator=(BundleReader&&) noexcept;
  ~BundleReader();

  const BundleHeader& header() const;
  std::size_t num_requests() const;
  // kOutOfRange past num_requests().
  Result<BundleRequest> read(std::size_t index) const;

 private:
  struct State;
  explicit BundleReader(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_BUNDLE_H_
