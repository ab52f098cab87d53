// What is not exported, and what is not imported; nothing has changed then.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hybrid/request_image_test_support.h"

namespace slackwater::hybrid {
namespace {

using testing::HasSubstr;

class RequestImageRefusals : public Requirements {
 protected:
  // All there is to see of it but what has happened.
  static std::string seen(World& world) {
    world.manager->audit();
    const cache::CacheView cache = world.manager->kv_cache().view();
    std::string text;
    const HybridView view = world.manager->view();
    for (const RequestView& request : view.requests) {
      text += fmt::format("{} {} {} {} {};", request.request.value(), to_string(request.status),
                          request.position.kept, request.position.num_pending,
                          request.slots.empty() ? 0 : request.slots[0].is_saved);
    }
    for (const RegistryView& registry : view.registries) {
      text +=
          fmt::format("{} {} {};", registry.num_reserved, registry.num_saved, registry.num_slots);
    }
    for (std::int32_t g = 0; g < 2; ++g) {
      const cache::TierRoom room =
          world.manager->kv_cache().room(storage::Tier::kDevice, LayerGroupId(g));
      text += fmt::format("{} {};", room.total, world.manager->kv_cache().num_open_sequences());
    }
    return text;
  }
  static void expect_refused(World& world, const RequestOptions& options, const RequestImage& image,
                             ErrorCode code, const std::string& why) {
    const std::string before = seen(world);
    const Result<void> done = world.manager->import_request(options, image);
    ASSERT_FALSE(done.has_value()) << why;
    EXPECT_EQ(done.error().code(), code) << done.error().text();
    EXPECT_THAT(done.error().text(), HasSubstr(why));
    EXPECT_THAT(done.error().text(), testing::Not(HasSubstr("\n")));
    EXPECT_EQ(seen(world), before) << why;
  }
  static void expect_kept(World& world, const Tokens& tokens, ErrorCode code,
                          const std::string& why) {
    const std::string before = seen(world);
    const auto done = world.manager->export_request(RequestId(1), tokens);
    ASSERT_FALSE(done.has_value()) << why;
    EXPECT_EQ(done.error().code(), code) << done.error().text();
    EXPECT_THAT(done.error().text(), HasSubstr(why));
    EXPECT_EQ(seen(world), before) << why;
  }
  // A request with three pending drafts.
  static RequestImage image_of(World& world, Speaker& speaker) {
    speaker.read_prompt();
    speaker.round(3, 3);
    world.suspend(1);
    return export_of(world, 1, speaker.tokens());
  }
};

TEST_P(RequestImageRefusals, ARequestThatCannotGoIsNotExported) {
  World world(options());
  EXPECT_EQ(world.manager->export_request(RequestId(9), {}).error().code(), ErrorCode::kNotFound);
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  expect_kept(world, speaker.tokens(), ErrorCode::kFailedPrecondition, "which is active");
  speaker.verify(3, 2);
  world.suspend(1);
  expect_kept(world, speaker.tokens(), ErrorCode::kFailedPrecondition,
              "of whose round 1 the acceptance is not recorded");
  speaker.accept();
  expect_kept(world, first_of(speaker.tokens(), 8), ErrorCode::kInvalidArgument,
              "with 8 of its tokens; its pages stand for 9");
  Tokens image = speaker.tokens();
  image[2] = -5;
  expect_kept(world, image, ErrorCode::kUnimplemented, "token 2 of request 1 stands for a digest");
  EXPECT_TRUE(world.manager->export_request(RequestId(1), first_of(speaker.tokens(), 9)));
}

TEST_P(RequestImageRefusals, AnAcceptanceThatOnlyTheDeviceKnowsIsPending) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.verify_ahead(3, 2);
  world.suspend(1);
  expect_kept(world, speaker.tokens(), ErrorCode::kFailedPrecondition, "update_resources");
  speaker.read_rounds();
  EXPECT_TRUE(world.manager->export_request(RequestId(1), speaker.tokens()).has_value());
}

TEST_P(RequestImageRefusals, WhoseEndIsPublishedOrLostDoesNotGo) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  ASSERT_TRUE(world.manager->publish(RequestId(1), numbers(3, 6), {.written = {}, .is_end = true}));
  world.suspend(1);
  world.manager->synchronize();
  expect_kept(world, speaker.tokens(), ErrorCode::kFailedPrecondition, "its end is published");
  world.manager->free_resources(RequestId(1));
  Speaker second(world, 1, numbers(5, 6));
  const BatchSetup setup = world.set_up({World::context_row(1, 0, 6)});
  world.manager->step_queued(setup);
  world.suspend(1);
  world.manager->fail_step(setup);
  expect_kept(world, numbers(5, 6), ErrorCode::kDataLoss, "whose state is lost; restart it");
}

TEST_P(RequestImageRefusals, AnotherLayoutIsNamed) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  const RequestImage image = image_of(world, speaker);
  const auto expect = [&](const WorldOptions& wanted, const std::string& why) {
    World other(wanted);
    expect_refused(other, options_of(1), image, ErrorCode::kInvalidArgument, why);
  };
  WorldOptions wanted = options();
  wanted.tokens_per_block = 8;
  expect(wanted, "tokens_per_block is 4 there and 8 here");
  wanted = options();
  wanted.placement = is_in_pool() ? ReplayPlacement::kBesidePool : ReplayPlacement::kInPool;
  expect(wanted, "placement of records is ");
  wanted = options();
  wanted.max_drafts = 2;
  expect(wanted, "records a slot is 3 there and 2 here");
  wanted = options();
  wanted.num_kda_layers = 3;
  expect(wanted, "layer 3 ssm_state is not there there");
  wanted = options();
  wanted.shape.num_heads = 2;
  expect(wanted, "bytes");
  wanted = options();
  wanted.mtp_hidden_size = 8;
  expect(wanted, "hidden state is 0 there and 8 here");
  wanted = options();
  wanted.change = [](HybridConfig& config) { config.cache.model = {7, 7}; };
  expect(wanted, "model is ");
  wanted = options();
  wanted.slot_entries = {{.name = "seed",
                          .bytes_per_layer = 8,
                          .num_layers = 1,
                          .reset = nullptr,
                          .is_record = false,
                          .group_tag = "target"}};
  expect(wanted, "entry seed of 'target' is not there there");
}

// Nothing of an image can be changed without being noticed.
TEST_P(RequestImageRefusals, WhatIsNotWhatWasExportedIsNoticed) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  write_blocks(world, 1, 0, 3);
  const RequestImage image = image_of(world, speaker);
  World fresh(options());
  const auto expect = [&](const std::string& why, const auto& change) {
    RequestImage changed = image;
    change(changed);
    expect_refused(fresh, options_of(1), changed, ErrorCode::kDataLoss, why);
  };
  for (std::size_t g = 0; g < image.groups.size(); ++g) {
    const std::size_t bytes = image.groups[g].bytes.size();
    for (const std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1}) {
      expect(fmt::format("of layer group {} has stamp", g),
             [&](RequestImage& changed) { changed.groups[g].bytes[at] ^= std::byte{1}; });
    }
  }
  // Pages of the same request in each other's place, stamps and all.
  expect("has stamp", [](RequestImage& changed) {
    GroupImage& group = changed.groups[0];
    const std::size_t page = group.bytes.size() / group.blocks.size();
    std::swap_ranges(group.bytes.begin(), group.bytes.begin() + static_cast<std::ptrdiff_t>(page),
                     group.bytes.begin() + static_cast<std::ptrdiff_t>(page));
    std::swap(group.stamps[0], group.stamps[1]);
    changed.seal = seal_of(changed);
  });
  expect("save of 'target' has stamp", [](RequestImage& changed) {
    changed.tags[0].saved.back() ^= std::byte{1};
    if (changed.tags[0].saved.size() < 8) changed.tags[0].saved.back() ^= std::byte{3};
  });
  const auto seal = [&](const auto& change) { expect("seal does not match", change); };
  seal([](RequestImage& changed) { changed.tokens[2] ^= 1; });
  seal([](RequestImage& changed) { changed.groups[0].stamps[1].high ^= 1; });
  seal([](RequestImage& changed) { changed.tags[0].num_pending = 0; });
  seal([](RequestImage& changed) { ++changed.tags[0].page_position; });
  seal([](RequestImage& changed) { ++changed.kept; });
  seal([](RequestImage& changed) { ++changed.round; });
  seal([](RequestImage& changed) { ++changed.epoch; });
  seal([](RequestImage& changed) { --changed.history; });
  seal([](RequestImage& changed) { changed.capacity += 4; });
  seal([](RequestImage& changed) { changed.has_pages = false; });
  EXPECT_GT(fresh.manager->counters().certificate_failures, 0);
  import_into(fresh, 1, image);
}

// Sealed by whoever made it up: sizes and numbers are looked at all the same.
TEST_P(RequestImageRefusals, NumbersThatDoNotFitAreRefused) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  const RequestImage image = image_of(world, speaker);
  World fresh(options());
  const auto expect = [&](const std::string& why, const auto& change) {
    RequestImage changed = image;
    change(changed);
    changed.seal = seal_of(changed);
    expect_refused(fresh, options_of(1), changed, ErrorCode::kDataLoss, why);
  };
  expect("kept", [](RequestImage& changed) { changed.kept = 1000; });
  expect("kept", [](RequestImage& changed) { changed.kept = -1; });
  expect("a history of 99", [](RequestImage& changed) { changed.history = 99; });
  expect("layer groups", [](RequestImage& changed) { changed.groups.pop_back(); });
  expect("layer groups", [](RequestImage& changed) { changed.tags.clear(); });
  expect("bytes for", [](RequestImage& changed) { changed.groups[0].bytes.pop_back(); });
  expect("bytes for", [](RequestImage& changed) { changed.groups[1].blocks = {1}; });
  expect("bytes for", [](RequestImage& changed) { changed.groups[0].stamps.pop_back(); });
  expect("bytes for", [](RequestImage& changed) { changed.groups[0].blocks[0] = -1; });
  expect("bytes for", [](RequestImage& changed) { changed.groups[0].blocks[1] = 0; });
  expect("bytes for", [](RequestImage& changed) {
    changed.groups[0].blocks.back() = std::numeric_limits<std::int64_t>::max();
  });
  expect("at -1 of", [](RequestImage& changed) { changed.tags[0].page_position = -1; });
  expect("4 of 3 records", [](RequestImage& changed) { changed.tags[0].num_pending = 4; });
  expect("9 records pending", [](RequestImage& changed) { changed.tags[0].num_records = 9; });
  expect("tokens are kept", [](RequestImage& changed) { changed.tags[0].num_pending = 2; });
  expect("save of 'target'", [](RequestImage& changed) { changed.tags[0].saved.push_back({}); });
  expect("save of 'target'", [](RequestImage& changed) { changed.tags[0].is_saved = false; });
  expect("save of 'target' has 0 pending where the request has 3", [](RequestImage& changed) {
    std::fill(changed.tags[0].saved.begin(), changed.tags[0].saved.end(), std::byte{0});
  });
}

TEST_P(RequestImageRefusals, TokensAndScopeAreThoseOfTheImage) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  const RequestImage image = image_of(world, speaker);
  World fresh(options());
  RequestOptions wanted = options_of(1);
  Tokens others = speaker.tokens();
  others[4] += 1;
  wanted.tokens = others;
  expect_refused(fresh, wanted, image, ErrorCode::kInvalidArgument, "token 4 of request 1 is");
  wanted.tokens = speaker.tokens();
  wanted.scope.salt = 5;
  expect_refused(fresh, wanted, image, ErrorCode::kDataLoss, "tokens and scope");
  wanted.scope = {};
  ASSERT_TRUE(fresh.manager->import_request(wanted, image).has_value());
  expect_refused(fresh, wanted, image, ErrorCode::kInvalidArgument, "is there already");
  ASSERT_TRUE(fresh.manager->shutdown().has_value());
  EXPECT_EQ(fresh.manager->import_request(wanted, image).error().code(),
            ErrorCode::kFailedPrecondition);
}

TEST_P(RequestImageRefusals, WithoutRoomNothingIsTaken) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  const RequestImage image = image_of(world, speaker);
  // No slot for its state.
  Puppets full(options(2));
  full.enter(2);
  full.enter(3);
  expect_refused(full, options_of(1), image, ErrorCode::kResourceExhausted, "");
  full.suspend(2);
  import_into(full, 1, image);
  full.manager->audit();
  // No save left to reserve.
  WorldOptions wanted = options();
  wanted.num_saves = 1;
  Puppets started(wanted);
  started.enter(2);
  expect_refused(started, options_of(1), image, ErrorCode::kResourceExhausted, "reserved");
  // No host memory at all.
  wanted = options();
  wanted.change = [](HybridConfig& config) { config.save_bytes = 0; };
  World none(wanted);
  expect_refused(none, options_of(1), image, ErrorCode::kFailedPrecondition, "save_bytes");
  // The exporter needs room as well.
  Puppets busy(options(2));
  busy.enter(1);
  busy.suspend(1);
  busy.enter(2);
  busy.enter(3);
  expect_kept(busy, numbers(10, 6), ErrorCode::kResourceExhausted, "");
}

// What its numbers ask for is bounded by the pools, not by what they say.
TEST_P(RequestImageRefusals, ACapacityThatNoPoolHasIsRefused) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  RequestImage image = image_of(world, speaker);
  World fresh(options());
  image.capacity = 100'000;
  image.seal = seal_of(image);
  expect_refused(fresh, options_of(1), image, ErrorCode::kResourceExhausted, "");
  image.capacity = std::numeric_limits<std::int64_t>::max();
  image.seal = seal_of(image);
  expect_refused(fresh, options_of(1), image, ErrorCode::kInvalidArgument, "capacity");
}

TEST_P(RequestImageRefusals, ACopyThatFailsCostsAnotherTry) {
  bool refuses_copies = false;
  device::SimOptions sim;
  sim.copy_fault = [&](std::int64_t) {
    return refuses_copies ? device::CopyFault::kRefuse : device::CopyFault::kNone;
  };
  World world(options(), std::make_unique<device::SimDevice>(sim));
  Speaker speaker(world, 1, numbers(3, 6));
  const RequestImage image = image_of(world, speaker);
  World fresh(options(), std::make_unique<device::SimDevice>(sim));
  refuses_copies = true;
  expect_kept(world, speaker.tokens(), ErrorCode::kUnavailable, "a copy of its pages failed");
  expect_refused(fresh, options_of(1), image, ErrorCode::kUnavailable,
                 "a copy of its pages failed");
  refuses_copies = false;
  EXPECT_EQ(export_of(world, 1, speaker.tokens()).seal, image.seal);
  import_into(fresh, 1, image);
  Speaker again(fresh, speaker);
  fresh.resume(1);
  ASSERT_TRUE(fresh.manager->resize(RequestId(1), 60).has_value());
  again.round(3, 2);
  again.expect_says_what_it_says_alone();
}

INSTANTIATE_TEST_SUITE_P(Placements, RequestImageRefusals,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
