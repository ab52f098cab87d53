#ifndef SLACKWATER_CLI_ANSWER_FILE_H_
#define SLACKWATER_CLI_ANSWER_FILE_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"

namespace slackwater::cli {

// Digests are as good as hashes.
struct DigestHash {
  std::size_t operator()(const Digest128& key) const { return static_cast<std::size_t>(key.low); }
};

// Where the answers of a batch go, a line of JSON each, and what is there from an earlier run that
// was killed. A line counts once its end is there: one that is torn is cut off and asked for again.
//
// Invariants:
//   I1  no (id, choice), and no fault of a line, is there twice.
//   I2  after append() has returned the line outlives the process.
// Ownership: owns the file descriptor.
// Threads: one.
// Errors: kUnavailable where the file system refuses; kDataLoss for a file of something else, which
// is left as it is.
// Cost: 16 bytes and a node of memory for every line.
class AnswerFile {
 public:
  // Nothing: standard output, where nothing can be there before.
  static Result<AnswerFile> open(const std::optional<std::filesystem::path>& path);
  AnswerFile(AnswerFile&& other) noexcept;
  AnswerFile& operator=(AnswerFile&&) = delete;
  ~AnswerFile();

  // `id` as JSON.
  bool has_answer(std::string_view id, std::int32_t choice) const;
  bool has_fault(std::int64_t line_number) const;
  std::int64_t num_answers() const { return num_answers_; }  // those before, too
  std::int64_t num_faults() const { return num_faults_; }

  // `line` is an object without the end of the line. CHECK: it is not there yet.
  Result<void> append_answer(std::string_view id, std::int32_t choice, std::string line);
  Result<void> append_fault(std::int64_t line_number, std::string line);

 private:
  AnswerFile(int descriptor, bool is_owned) : descriptor_(descriptor), is_owned_(is_owned) {}
  Result<void> read_back(const std::filesystem::path& path);
  Result<void> note(const std::filesystem::path& path, std::int64_t number, std::string_view line);
  Result<void> append(std::string line);

  int descriptor_;
  bool is_owned_;
  std::unordered_set<Digest128, DigestHash> keys_;
  std::int64_t num_answers_ = 0;
  std::int64_t num_faults_ = 0;
};

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_ANSWER_FILE_H_
