#ifndef SLACKWATER_MODEL_TOKENIZER_H_
#define SLACKWATER_MODEL_TOKENIZER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"

namespace slackwater::model {

// The longest text that can be encoded: positions within it fit 31 bits.
inline constexpr std::size_t kMaxTextBytes = 0x7FFFFFFF;

// Turns bytes into tokens and back: a byte-pair vocabulary with special tokens after it.
//
// Ids [0, num_ranks()) stand for bytes and are ordered by rank; ids [num_ranks(), vocab_size())
// are special, stand for no text and have a name. Text is cut into pieces by the split pattern
// of Kimi's tokenizer, and each piece is merged on its own, lowest rank first, leftmost of equals.
//
// A text is split and merged as a whole, whatever its length. (Kimi's Python wrapper first cuts
// it every 400,000 characters and within runs of more than 25,000; longer texts may differ there.)
// No begin-of-sequence token is added: that is the caller's decision.
//
// Source: tiktoken (merging, rank files); tokenization_kimi.py (split pattern, reserved names).
// Invariants:
//   I1  every byte string x has decode(encode(x)) == x, well-formed UTF-8 or not, as text.
//   I2  every id in [0, vocab_size()) is either a rank with bytes or special with a name.
//   I3  no text becomes a special token unless SpecialText::kAsTokens asks for it.
// Ownership: owns everything; move-only.
// Threads: immutable once made; all members may be called from several threads at once.
// Errors: those of each function; nothing is made or changed then. Ids outside [0, vocab_size())
//   are a bug of the caller (CHECK) where a function does not return a Result.
// Cost: about 0.1 us a byte of ordinary text to encode; never worse than O(n log n).
class Tokenizer {
 public:
  // What a special token's name within the text becomes.
  enum class SpecialText {
    kAsText,    // ordinary tokens that spell it: the only safe choice for text of users
    kAsTokens,  // the special token; of several that match, the leftmost, then the longest
  };

  // Reads `tiktoken.model` and `tokenizer_config.json` in `model_dir`. `vocab_size` is that of
  // config.json; ids that neither file names are `<|reserved_token_ID|>`.
  //
  // Errors: those of MappedFile::open; kDataLoss for a file that is not what it should be;
  // kInvalidArgument where the vocabulary sizes contradict each other. The text names the file,
  // and the line or the byte within it.
  static Result<Tokenizer> load(const std::filesystem::path& model_dir, std::int32_t vocab_size);

  // The same from the contents of the two files.
  static Result<Tokenizer> from_bytes(std::string_view rank_file, std::string_view config_json,
                                      std::int32_t vocab_size);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The tokens of `bytes`. kOutOfRange for 2^31 bytes and more; kResourceExhausted where the
  // regular expression library gives up.
  Result<std::vector<TokenId>> encode(std::string_view bytes,
                                      SpecialText special_text = SpecialText::kAsText) const;

  // The bytes of all tokens in order; special tokens add none. kOutOfRange for an id outside
  // [0, vocab_size()), with its place. The result need not be UTF-8: see TextStream.
  Result<std::string> decode(std::span<const TokenId> tokens) const;

  std::int32_t num_ranks() const;
  std::int32_t vocab_size() const;

  // The bytes that `token` stands for; empty for special tokens only.
  std::string_view token_bytes(TokenId token) const;

  bool is_special(TokenId token) const;

  // The name of `token`; empty for ordinary tokens only.
  std::string_view special_name(TokenId token) const;

  // The special token of that name.
  std::optional<TokenId> special_id(std::string_view name) const;

 private:
  struct Parts;
  struct File;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  static Result<Tokenizer> assemble(const File& ranks, const File& config, std::int32_t vocab_size);
  Result<void> append_text(std::string_view text, std::vector<TokenId>& tokens) const;

  std::unique_ptr<const Parts> parts_;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_TOKENIZER_H_
