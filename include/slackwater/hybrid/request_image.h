#ifndef SLACKWATER_HYBRID_REQUEST_IMAGE_H_
#define SLACKWATER_HYBRID_REQUEST_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/base/ids.h"

namespace slackwater::hybrid {

// Raised when the same fields may lie differently in an image.
inline constexpr std::int64_t kRequestImageVersion = 1;

// One thing that decides how the bytes of an image are to be read.
struct ImageField {
  std::string name;   // "tokens_per_block"
  std::string value;  // "32"
  friend bool operator==(const ImageField&, const ImageField&) = default;
};

// All of them: versions of image and numerics, the model, placement of records, M, layer groups,
// roles with their bytes and shapes, entries of the registries. An image goes only to where all of
// it is the same.
struct ImageLayout {
  std::vector<ImageField> fields;

  Digest128 digest() const;
  friend bool operator==(const ImageLayout&, const ImageLayout&) = default;
};

// "tokens_per_block is 32 there and 16 here" of the first field that differs; nothing where none
// does.
std::optional<std::string> difference(const ImageLayout& there, const ImageLayout& here);

// What a request has in one layer group.
struct GroupImage {
  // Ascending ordinals of the blocks that have a page; of a recurrent group 0, for its state.
  std::vector<std::int64_t> blocks;  // [pages]
  // Of a page all buffers of the group that lie here, in the order of the layer groups, transient
  // ones too.
  std::vector<std::byte> bytes;   // [pages][bytes of a page]
  std::vector<Digest128> stamps;  // [pages] of bytes, prefix, position and place
};

// What a request has beside its pages for one recurrent tag.
struct TagImage {
  std::int64_t page_position = 0;
  std::int32_t num_records = 0;
  std::int32_t num_pending = 0;  // P, with what was accepted since the suspend
  // Whether something was saved; else the next setup begins with the page alone.
  bool is_saved = false;
  std::vector<std::byte> saved;  // the registry's entries, one after another
  Digest128 stamp;               // of `saved`, prefix, position and P
};

// A suspended request as plain bytes: all that it takes to go on somewhere else, to the bit.
//
// Every page and every saved entry has a stamp: a digest of its bytes and of the certificate of
// what it is supposed to hold, the prefix of tokens in its scope, position, layer group and block.
// The seal is a digest of all else, stamps included. What is changed, swapped or taken from another
// request is noticed when it is imported.
//
// Source: kda_replay.md 1.3 and 3.3, what a suspend has to keep; the certificates are those of
// base/certificate.h.
struct RequestImage {
  ImageLayout layout;
  std::uint64_t epoch = 0;  // of its life that has ended here
  std::uint64_t round = 0;
  std::int64_t kept = 0;
  std::int64_t history = 0;
  std::int64_t capacity = 0;
  // Not before its first resume: then it has nothing but its tokens.
  bool has_pages = false;
  std::vector<TokenId> tokens;     // all that its pages stand for, and what else is known
  std::vector<GroupImage> groups;  // [layer groups]; empty without pages
  std::vector<TagImage> tags;      // [recurrent layer groups], likewise
  Digest128 seal;

  std::int64_t bytes() const;  // of pages and saved entries
};

// What `seal` must be.
Digest128 seal_of(const RequestImage& image);

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_REQUEST_IMAGE_H_
