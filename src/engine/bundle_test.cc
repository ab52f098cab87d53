#include "slackwater/engine/bundle.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/bundle_format.h"
#include "slackwater/engine/byte_codec.h"
#include "testing/seed.h"
#include "testing/temporary_directory.h"

namespace slackwater::engine {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, std::size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

hybrid::ImageLayout layout() {
  return {{{"tokens_per_block", "4"}, {"model", "0123"}, {"layer 0 kv_latent", "32 bytes in 1"}}};
}

BundleHeader header() { return {.layout = layout(), .process_epoch = 77, .record = Bytes(5)}; }

// Of what it speaks does not matter here.
BundleRequest request_of(std::uint64_t seed, std::size_t pages = 2) {
  std::mt19937_64 random(seed);
  BundleRequest request;
  request.record = random_bytes(random, seed % 40);
  hybrid::RequestImage& image = request.image;
  image.layout = layout();
  image.epoch = seed;
  image.round = random();
  image.kept = 7;
  image.history = -3;
  image.capacity = 9;
  image.has_pages = pages > 0;
  image.tokens = {1, 2, static_cast<TokenId>(random())};
  image.seal = {random(), random()};
  for (std::size_t g = 0; g < 2 && pages > 0; ++g) {
    hybrid::GroupImage& group = image.groups.emplace_back();
    for (std::size_t page = 0; page < pages; ++page) {
      group.blocks.push_back(static_cast<std::int64_t>(page));
      group.stamps.push_back({random(), random()});
    }
    group.bytes = random_bytes(random, 16 * pages);
    image.tags.push_back({.page_position = 5,
                          .num_records = 3,
                          .num_pending = 2,
                          .is_saved = g == 0,
                          .saved = random_bytes(random, g == 0 ? 20 : 0),
                          .stamp = {random(), random()}});
  }
  return request;
}

void expect_same(const BundleRequest& a, const BundleRequest& b) {
  EXPECT_EQ(a.record, b.record);
  EXPECT_EQ(a.image.layout, b.image.layout);
  EXPECT_EQ(encode_image(a.image), encode_image(b.image));
}

void save(const fs::path& directory, std::uint64_t num_requests) {
  Result<BundleWriter> writer = BundleWriter::create(directory, header());
  ASSERT_TRUE(writer.has_value()) << writer.error().text();
  for (std::uint64_t i = 0; i < num_requests; ++i) {
    const Result<void> added = writer->add(request_of(i, i % 3));
    ASSERT_TRUE(added.has_value()) << added.error().text();
  }
  const Result<void> finished = writer->finish();
  ASSERT_TRUE(finished.has_value()) << finished.error().text();
}

Bytes contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

// One byte of a file that is there.
void poke(const fs::path& path, std::size_t at, std::byte value) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(value));
}

// The first refusal of whoever reads all of it, and how many requests came.
struct Reading {
  std::optional<Error> error;
  std::size_t num_read = 0;
};
Reading read_all_of(const fs::path& directory) {
  Reading reading;
  const Result<BundleReader> reader = BundleReader::open(directory, layout());
  if (!reader.has_value()) return {reader.error(), 0};
  for (std::size_t i = 0; i < reader->num_requests(); ++i) {
    const Result<BundleRequest> request = reader->read(i);
    if (request.has_value()) {
      ++reading.num_read;
    } else if (!reading.error.has_value()) {
      reading.error = request.error();
    }
  }
  return reading;
}

void expect_one_clear_line(const Error& error, const fs::path& file) {
  EXPECT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kInvalidArgument)
      << error.text();
  EXPECT_THAT(error.text(), HasSubstr(file.string()));
  EXPECT_THAT(error.text(), HasSubstr("save"));
  for (const char c : error.text()) ASSERT_TRUE(c >= 0x20 && c < 0x7F) << error.text();
}

class Bundle : public testing::Test {
 protected:
  fs::path directory() const { return parent_.path() / "bundle"; }
  fs::path manifest() const { return directory() / "manifest.slk"; }
  fs::path requests() const { return directory() / "requests.slk"; }

  TemporaryDirectory parent_;
};

TEST_F(Bundle, GivesBackWhatWasSaved) {
  for (const std::uint64_t count : {0, 1, 9}) {
    save(directory(), count);
    const Result<BundleReader> reader = BundleReader::open(directory(), layout());
    ASSERT_TRUE(reader.has_value()) << reader.error().text();
    EXPECT_EQ(reader->header().layout, layout());
    EXPECT_EQ(reader->header().process_epoch, 77u);
    EXPECT_EQ(reader->header().record, Bytes(5));
    ASSERT_EQ(reader->num_requests(), count);
    for (std::uint64_t i = count; i-- > 0;) {
      const Result<BundleRequest> request = reader->read(i);
      ASSERT_TRUE(request.has_value()) << request.error().text();
      expect_same(*request, request_of(i, i % 3));
    }
    EXPECT_EQ(reader->read(count).error().code(), ErrorCode::kOutOfRange);
    fs::remove_all(directory());
  }
}

// The bytes of docs/formats/bundle.md, spelt out.
TEST_F(Bundle, TheFormatIsTheOneThatIsWrittenDown) {
  save(directory(), 2);
  const Bytes bytes = contents(manifest());
  const auto number = [](const Bytes& of, std::size_t at, std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = count; i-- > 0;) {
      value = value << 8 | std::to_integer<std::uint64_t>(of[at + i]);
    }
    return value;
  };
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 8), "SLKWBUN1");
  EXPECT_EQ(number(bytes, 8, 4), 1u);
  EXPECT_EQ(number(bytes, 12, 4), 2u);
  EXPECT_EQ(number(bytes, 16, 8), 77u);
  EXPECT_EQ(number(bytes, 24, 8), layout().digest().low);
  EXPECT_EQ(number(bytes, 32, 8), layout().digest().high);
  EXPECT_EQ(number(bytes, 40, 8), fs::file_size(requests()));
  EXPECT_EQ(number(bytes, 48, 8), 3u) << "fields of the layout";
  EXPECT_EQ(number(bytes, 56, 8), 16u) << "tokens_per_block";
  const std::size_t record = 56 + 6 * 8 + 16 + 1 + 5 + 4 + 17 + 13;
  EXPECT_EQ(number(bytes, record, 8), 5u);
  const std::size_t first = record + 8 + 5;
  EXPECT_EQ(number(bytes, first, 8), 16u);
  EXPECT_EQ(number(bytes, first + 8, 8), 0u) << "the record of the first request";
  const std::uint64_t image_bytes = number(bytes, first + 16, 8);
  EXPECT_EQ(image_bytes, 5 * 8 + 1 + 16 + 8 + 3 * 4 + 8 + 8) << "without pages";
  EXPECT_EQ(number(bytes, first + 56, 8), 16 + image_bytes);
  EXPECT_EQ(number(bytes, first + 64, 8), 1u) << "the record of the second one";
  EXPECT_EQ(bytes.size(), first + 2 * 56 + 16);
  const Digest128 checksum = xxh3_128(std::span(bytes).first(bytes.size() - 16));
  EXPECT_EQ(number(bytes, bytes.size() - 16, 8), checksum.low);
  EXPECT_EQ(number(bytes, bytes.size() - 8, 8), checksum.high);
  const Bytes all = contents(requests());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(all.data()), 8), "SLKWREQ1");
  EXPECT_EQ(number(all, 8, 8), 77u);
  EXPECT_EQ(number(all, 16, 8), 0u) << "the epoch of the first image";
  EXPECT_EQ(number(all, 16 + 16, 8), 7u) << "what it has kept";
  EXPECT_EQ(number(all, 16 + 40, 1), 0u) << "no pages";
  EXPECT_EQ(number(all, 16 + 57, 8), 3u) << "tokens";
}

// One bit of every byte of both files; the other requests are not touched by it.
TEST_F(Bundle, EveryFlippedBitIsNoticed) {
  constexpr std::uint64_t kRequests = 4;
  save(directory(), kRequests);
  ASSERT_FALSE(read_all_of(directory()).error.has_value());
  std::mt19937_64 random(test_seed());
  for (const fs::path& file : {manifest(), requests()}) {
    const Bytes whole = contents(file);
    for (std::size_t byte = 0; byte < whole.size(); ++byte) {
      poke(file, byte, whole[byte] ^ std::byte(1u << (random() % 8)));
      const Reading reading = read_all_of(directory());
      ASSERT_TRUE(reading.error.has_value()) << file << " byte " << byte;
      expect_one_clear_line(*reading.error, file);
      const bool is_of_one = file == requests() && byte >= 16;
      ASSERT_EQ(reading.num_read, is_of_one ? kRequests - 1 : 0) << file << " byte " << byte;
      poke(file, byte, whole[byte]);
    }
  }
  EXPECT_EQ(read_all_of(directory()).num_read, kRequests);
}

TEST_F(Bundle, AFileThatIsCutOrLongerIsNoticed) {
  save(directory(), 3);
  for (const fs::path& file : {manifest(), requests()}) {
    const Bytes whole = contents(file);
    for (std::size_t size = whole.size(); size-- > 0;) {
      fs::resize_file(file, size);
      const Reading reading = read_all_of(directory());
      ASSERT_TRUE(reading.error.has_value()) << file << " cut to " << size;
      expect_one_clear_line(*reading.error, file);
      ASSERT_EQ(reading.num_read, 0u);
    }
    Bytes longer = whole;
    longer.push_back({});
    write(file, longer);
    const Reading reading = read_all_of(directory());
    ASSERT_TRUE(reading.error.has_value()) << file;
    expect_one_clear_line(*reading.error, file);
    write(file, whole);
  }
  // The requests of another bundle, of the same size.
  const Bytes other = contents(requests());
  fs::remove_all(directory());
  BundleHeader later = header();
  later.process_epoch = 78;
  Result<BundleWriter> writer = BundleWriter::create(directory(), later);
  ASSERT_TRUE(writer.has_value());
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(writer->add(request_of(i, i % 3)).has_value());
  ASSERT_TRUE(writer->finish().has_value());
  write(requests(), other);
  EXPECT_THAT(read_all_of(directory()).error->text(), HasSubstr("of process 000000000000004d"));
  fs::remove(requests());
  EXPECT_THAT(read_all_of(directory()).error->text(), HasSubstr("requests.slk"));
}

TEST_F(Bundle, AnotherLayoutOrVersionIsNamed) {
  save(directory(), 1);
  hybrid::ImageLayout other = layout();
  other.fields[1].value = "4567";
  const Result<BundleReader> reader = BundleReader::open(directory(), other);
  ASSERT_FALSE(reader.has_value());
  EXPECT_EQ(reader.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(reader.error().text(), HasSubstr("model is 0123 there and 4567 here"));
  expect_one_clear_line(reader.error(), manifest());
  Bytes bytes = contents(manifest());
  bytes[8] = std::byte{9};
  write(manifest(), bytes);
  const Error version = *read_all_of(directory()).error;
  EXPECT_EQ(version.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(version.text(), HasSubstr("version 9, this program reads version 1"));
  // An image for another bundle.
  fs::remove_all(directory());
  Result<BundleWriter> writer = BundleWriter::create(directory(), header());
  BundleRequest request = request_of(1);
  request.image.layout = other;
  const Result<void> added = writer->add(request);
  ASSERT_FALSE(added.has_value());
  EXPECT_EQ(added.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(added.error().text(), HasSubstr("model is 4567 there and 0123 here"));
  EXPECT_TRUE(writer->add(request_of(1)).has_value()) << "nothing was written";
}

TEST_F(Bundle, OneThatIsThereStaysAsItIs) {
  save(directory(), 2);
  const Bytes before = contents(requests());
  const Result<BundleWriter> again = BundleWriter::create(directory(), header());
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(again.error().text(), HasSubstr("there is a bundle in"));
  EXPECT_EQ(contents(requests()), before);
  EXPECT_EQ(read_all_of(directory()).num_read, 2u);
}

TEST_F(Bundle, WhatIsNotFinishedIsNone) {
  {
    Result<BundleWriter> writer = BundleWriter::create(directory(), header());
    ASSERT_TRUE(writer.has_value()) << writer.error().text();
    ASSERT_TRUE(writer->add(request_of(3)).has_value());
    EXPECT_EQ(read_all_of(directory()).error->code(), ErrorCode::kNotFound);
    const Result<BundleWriter> other = BundleWriter::create(directory(), header());
    ASSERT_FALSE(other.has_value());
    EXPECT_EQ(other.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(other.error().text(), HasSubstr("somebody else writes"));
    EXPECT_TRUE(writer->add(request_of(4)).has_value());
  }
  EXPECT_FALSE(fs::exists(directory())) << "it was made for the bundle";
  const Error none = *read_all_of(directory()).error;
  EXPECT_EQ(none.code(), ErrorCode::kNotFound);
  EXPECT_THAT(none.text(), HasSubstr("no bundle in"));
  // Finished once, it takes no more.
  Result<BundleWriter> writer = BundleWriter::create(directory(), header());
  ASSERT_TRUE(writer->finish().has_value());
  EXPECT_EQ(writer->finish().error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(writer->add(request_of(3)).error().code(), ErrorCode::kFailedPrecondition);
}

// A process that ends in the middle takes nothing away, and nothing of it is believed.
TEST_F(Bundle, ACrashLeavesNone) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Result<BundleWriter> writer = BundleWriter::create(directory(), header());
    if (!writer.has_value() || !writer->add(request_of(3)).has_value()) ::_exit(1);
    write(directory() / "manifest.slk.partial", Bytes(30));
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(requests()));
  EXPECT_EQ(read_all_of(directory()).error->code(), ErrorCode::kNotFound);
  save(directory(), 3);
  EXPECT_EQ(read_all_of(directory()).num_read, 3u);
  EXPECT_FALSE(fs::exists(directory() / "manifest.slk.partial"));
}

// A file system that is full.
TEST_F(Bundle, WhatCannotBeWrittenIsNoBundle) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t most : {8, 40, 150, 300}) {
    const rlimit limit = {.rlim_cur = most, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    std::optional<Error> error;
    {
      Result<BundleWriter> writer = BundleWriter::create(directory(), header());
      if (!writer.has_value()) error = writer.error();
      for (int i = 0; i < 2 && writer.has_value(); ++i) {
        const Result<void> added = writer->add(request_of(0, 0));
        if (!added.has_value() && !error.has_value()) error = added.error();
      }
      if (writer.has_value()) {
        const Result<void> finished = writer->finish();
        if (!finished.has_value() && !error.has_value()) error = finished.error();
      }
    }
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_TRUE(error.has_value()) << most;
    EXPECT_EQ(error->code(), ErrorCode::kUnavailable) << error->text();
    EXPECT_THAT(error->text(), HasSubstr("cannot write"));
    EXPECT_FALSE(fs::exists(directory())) << most;
  }
  ::signal(SIGXFSZ, handler);
  const Result<BundleWriter> under_a_file =
      (write(parent_.path() / "file", {}), BundleWriter::create(parent_.path() / "file", header()));
  EXPECT_FALSE(under_a_file.has_value());
}

// Whoever knows the checksum may write anything: it is refused, or is a bundle.
TEST_F(Bundle, SealedNonsenseIsRefusedOrRead) {
  std::mt19937_64 random(test_seed());
  BundleManifest good;
  good.header = header();
  good.requests_bytes = kRequestsHeaderBytes + 30;
  good.entries = {{16, 10, 5, {}, {}}, {31, 0, 15, {}, {}}};
  const Bytes manifest = encode_manifest(good);
  const Bytes image = encode_image(request_of(8).image);
  int num_refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const bool is_manifest = i % 2 == 0;
    Bytes bytes = is_manifest ? manifest : image;
    for (std::uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      std::byte& byte = bytes[random() % bytes.size()];
      byte = random() % 2 == 0 ? std::byte{0xFF} : static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    if (is_manifest && bytes.size() > 16) {
      ByteWriter sealed;
      sealed.bytes(std::span(bytes).first(bytes.size() - 16));
      sealed.digest(xxh3_128(sealed.view()));
      bytes = sealed.take();
    }
    std::optional<Error> error;
    if (is_manifest) {
      const Result<BundleManifest> read = decode_manifest(bytes);
      if (!read.has_value()) error = read.error();
      ASSERT_TRUE(!read.has_value() || encode_manifest(*read) == bytes);
    } else {
      const Result<hybrid::RequestImage> read = decode_image(bytes, layout());
      if (!read.has_value()) error = read.error();
      ASSERT_TRUE(!read.has_value() || encode_image(*read) == bytes);
    }
    if (!error.has_value()) continue;
    ++num_refused;
    for (const char c : error->text()) ASSERT_TRUE(c >= 0x20 && c < 0x7F) << error->text();
  }
  EXPECT_GT(num_refused, 1000);
}

TEST_F(Bundle, AManifestWithoutEndIsNotRead) {
  save(directory(), 1);
  fs::resize_file(manifest(), kMostManifestBytes + 1);
  const Reading reading = read_all_of(directory());
  EXPECT_EQ(reading.error->code(), ErrorCode::kDataLoss);
  EXPECT_THAT(reading.error->text(), HasSubstr("268435456 is the most"));
}

}  // namespace
}  // namespace slackwater::engine
