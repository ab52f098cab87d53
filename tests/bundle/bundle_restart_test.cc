// Requests go through a bundle from one manager to the next, and say what they say alone.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hybrid/request_image_test_support.h"
#include "slackwater/base/certificate.h"
#include "slackwater/engine/bundle.h"
#include "slackwater/engine/byte_codec.h"
#include "testing/temporary_directory.h"

namespace slackwater::hybrid {
namespace {

using engine::BundleReader;
using engine::BundleRequest;
using engine::BundleWriter;
using testing::HasSubstr;

class BundleRestart : public Requirements {
 protected:
  // An engine's record of a request, as far as this test needs one.
  static std::vector<std::byte> record_of(std::uint64_t id, const Tokens& tokens) {
    engine::ByteWriter to;
    to.u64(id);
    to.count(tokens.size());
    for (const TokenId token : tokens) to.i32(token);
    return to.take();
  }
  static std::uint64_t read_record(std::span<const std::byte> record, Tokens& tokens) {
    engine::ByteReader from(record);
    const std::uint64_t id = from.u64();
    tokens.resize(from.count(sizeof(TokenId)));
    for (TokenId& token : tokens) token = from.i32();
    const Result<void> end = from.end();
    EXPECT_TRUE(end.has_value()) << end.error().text();
    return id;
  }

  void save(World& world, const std::vector<Speaker>& speakers) {
    auto writer = BundleWriter::create(
        directory_.path(),
        {.layout = world.manager->image_layout(), .process_epoch = process_epoch(), .record = {}});
    ASSERT_TRUE(writer.has_value()) << writer.error().text();
    for (std::uint64_t id = 1; id <= speakers.size(); ++id) {
      BundleRequest request;
      request.record = record_of(id, speakers[id - 1].tokens());
      request.image = export_of(world, id, speakers[id - 1].tokens());
      const Result<void> added = writer->add(request);
      ASSERT_TRUE(added.has_value()) << added.error().text();
    }
    const Result<void> finished = writer->finish();
    ASSERT_TRUE(finished.has_value()) << finished.error().text();
  }
  void load(World& world, std::size_t num_requests) {
    const auto reader = BundleReader::open(directory_.path(), world.manager->image_layout());
    ASSERT_TRUE(reader.has_value()) << reader.error().text();
    ASSERT_EQ(reader->num_requests(), num_requests);
    for (std::size_t i = 0; i < num_requests; ++i) {
      const Result<BundleRequest> request = reader->read(i);
      ASSERT_TRUE(request.has_value()) << request.error().text();
      Tokens tokens;
      RequestOptions options = options_of(read_record(request->record, tokens));
      options.tokens = tokens;
      const Result<void> imported = world.manager->import_request(options, request->image);
      ASSERT_TRUE(imported.has_value()) << imported.error().text();
    }
    world.manager->audit();
  }

  TemporaryDirectory directory_;
};

// More requests than there are slots, in mid-speculation, each with another count of pending
// drafts.
TEST_P(BundleRestart, EverybodySaysWhatItSaysAlone) {
  constexpr std::uint64_t kRequests = 6;
  auto old = std::make_unique<World>(options(2));
  std::vector<Speaker> speakers;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    speakers.emplace_back(*old, id, numbers(static_cast<TokenId>(9 * id), 5));
    Speaker& speaker = speakers.back();
    speaker.read_prompt();
    speaker.round(3, 2);
    speaker.verify(3, static_cast<std::int32_t>(id % 4));
    if (id % 2 == 0) speaker.accept();
    old->suspend(id);
    if (id % 2 == 1) speaker.accept();  // late
  }
  save(*old, speakers);
  World fresh(options(2));
  load(fresh, kRequests);
  old->manager.reset();
  for (std::uint64_t id = kRequests; id >= 1; --id) {
    SCOPED_TRACE(id);
    EXPECT_EQ(fresh.manager->position(RequestId(id))->num_pending, static_cast<int>(id % 4));
    Speaker again(fresh, speakers[id - 1]);
    fresh.resume(id);
    ASSERT_TRUE(fresh.manager->resize(RequestId(id), 60).has_value());
    again.round(3, 1);
    again.round(3, 3);
    again.expect_says_what_it_says_alone();
    fresh.suspend(id);
  }
  fresh.manager->audit();
}

// Bytes that pass both checksums of a bundle, and are those of another request.
TEST_P(BundleRestart, AnImageOfSomebodyElseIsRefused) {
  World world(options());
  std::vector<Speaker> speakers;
  for (const std::uint64_t id : {1, 2}) {
    speakers.emplace_back(world, id, numbers(static_cast<TokenId>(9 * id), 5));
    speakers.back().read_prompt();
    world.suspend(id);
  }
  save(world, speakers);
  const auto reader = BundleReader::open(directory_.path(), world.manager->image_layout());
  ASSERT_TRUE(reader.has_value());
  World fresh(options());
  const Tokens own = speakers[0].tokens();
  RequestOptions options = options_of(1);
  options.tokens = own;
  const Result<void> swapped = fresh.manager->import_request(options, reader->read(1)->image);
  ASSERT_FALSE(swapped.has_value());
  EXPECT_EQ(swapped.error().code(), ErrorCode::kInvalidArgument);
  RequestImage mixed = reader->read(0)->image;
  mixed.groups = reader->read(1)->image.groups;
  mixed.seal = seal_of(mixed);
  const Result<void> refused = fresh.manager->import_request(options, mixed);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(refused.error().text(), HasSubstr("tokens and scope"));
  EXPECT_TRUE(fresh.manager->import_request(options, reader->read(0)->image).has_value());
}

// Another model, by its digest: nothing is read of its requests.
TEST_P(BundleRestart, AnotherModelIsRefusedByName) {
  World world(options());
  save(world, {});
  WorldOptions wanted = options();
  wanted.change = [](HybridConfig& config) { config.cache.model = {0xAB, 0}; };
  World other(wanted);
  const auto reader = BundleReader::open(directory_.path(), other.manager->image_layout());
  ASSERT_FALSE(reader.has_value());
  EXPECT_EQ(reader.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(reader.error().text(), HasSubstr("000000ab here"));
}

INSTANTIATE_TEST_SUITE_P(Placements, BundleRestart,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
