// A request that was exported and imported goes on as if it had never left.

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hybrid/request_image_test_support.h"

namespace slackwater::hybrid {
namespace {

using cache::SequenceStatus;

class RequestImageTest : public Requirements {};

void resume_with_room(World& world, std::uint64_t id) {
  world.resume(id);
  ASSERT_TRUE(world.manager->resize(RequestId(id), 60).has_value());
}

// Rounds, a suspend in between, and a publication of all that is kept.
void expect_to_go_on(World& world, Speaker& speaker) {
  resume_with_room(world, 1);
  speaker.round(3, 2);
  speaker.round(2, 0);
  world.suspend(1);
  resume_with_room(world, 1);
  speaker.round(3, 3);
  const std::int64_t committed = world.manager->sequence(RequestId(1)).num_committed();
  const std::int64_t kept = world.manager->position(RequestId(1))->kept;
  const Tokens more(speaker.tokens().begin() + committed, speaker.tokens().begin() + kept);
  const Result<void> done =
      world.manager->publish(RequestId(1), more, {.written = {}, .with_snapshot = true});
  ASSERT_TRUE(done.has_value()) << done.error().text();
  speaker.round(3, 1);
  speaker.expect_says_what_it_says_alone();
  world.manager->audit();
  EXPECT_EQ(world.manager->kv_cache().probe_reuse({}, speaker.tokens()).reused, kept);
  EXPECT_EQ(world.manager->counters().certificate_failures, 0);
}

// P = 0, some, M, in whatever order the device works.
TEST_P(RequestImageTest, SaysWhatItSaysAloneWhereverItGoesOn) {
  std::uint64_t seed = 0;
  for (const std::int32_t right : {0, 2, 3}) {
    for (int order = 0; order < 3; ++order) {
      SCOPED_TRACE(testing::Message() << right << " pending, seed " << ++seed);
      const device::SimOptions sim = {.seed = seed};
      World old(options(), std::make_unique<device::SimDevice>(sim));
      Speaker speaker(old, 1, numbers(3, 6));
      speaker.read_prompt();
      speaker.round(3, 1);
      speaker.round(3, right);
      old.suspend(1);
      const RequestImage image = export_of(old, 1, speaker.tokens());
      EXPECT_EQ(old.manager->sequence(RequestId(1)).status(), SequenceStatus::kSuspended);
      const RequestPosition before = *old.manager->position(RequestId(1));
      ASSERT_EQ(before.num_pending, right);
      old.manager->audit();

      World fresh(options(), std::make_unique<device::SimDevice>(sim));
      import_into(fresh, 1, image);
      fresh.manager->audit();
      expect_same_position(*fresh.manager->position(RequestId(1)), before);
      const cache::Sequence& was = old.manager->sequence(RequestId(1));
      const cache::Sequence& is = fresh.manager->sequence(RequestId(1));
      EXPECT_EQ(is.capacity(), was.capacity());
      EXPECT_EQ(is.history(), was.history());
      EXPECT_EQ(is.num_committed(), 0);
      Speaker again(fresh, speaker);
      expect_to_go_on(fresh, again);
      // Who was exported has lost nothing.
      expect_to_go_on(old, speaker);
      EXPECT_EQ(again.tokens(), speaker.tokens());
    }
  }
}

// Byte for byte: pages, and what lies beside them.
TEST_P(RequestImageTest, BringsEveryByteToItsPlace) {
  WorldOptions wanted = options();
  wanted.has_draft_model = true;
  wanted.mtp_hidden_size = 16;
  wanted.slot_entries = {{.name = "seed",
                          .bytes_per_layer = 24,
                          .num_layers = 1,
                          .reset = nullptr,
                          .is_record = false,
                          .group_tag = "target"}};
  Puppets old(wanted);
  old.enter(1, 9);
  BatchSetup setup;
  const std::vector<BatchRow> prompt = {World::context_row(1, 0, 9)};
  ASSERT_TRUE(old.manager->setup_state_indices(prompt, "draft", setup).has_value());
  old.manager->step_queued(setup);
  const std::vector<BatchRow> row = {World::verify_row(1, 9, 2)};
  ASSERT_TRUE(old.manager->setup_state_indices(row, "draft", setup).has_value());
  old.manager->step_queued(setup);
  old.round(1, 2, 77);
  old.manager->synchronize();
  write_slot(old.state("draft"), old.slot_of(1, "draft"), 78, 2);
  write_blocks(old, 1, 0, 79);
  const auto hidden = [](ReplayState& state, SlotId slot) {
    std::vector<float> all(state.mtp_hidden(slot), state.mtp_hidden(slot) + 16);
    all.insert(all.end(), state.mtp_hidden_cache(slot), state.mtp_hidden_cache(slot) + 48);
    return all;
  };
  std::fill_n(old.state().mtp_hidden(old.slot_of(1)), 16, 1.5f);
  std::fill_n(old.state().mtp_hidden_cache(old.slot_of(1)), 48, 2.5f);
  const auto target = old.contents(1);
  const auto draft = read_slot(old.state("draft"), old.slot_of(1, "draft"));
  const auto blocks = read_blocks(old, 1, 0);
  const auto hidden_before = hidden(old.state(), old.slot_of(1));
  old.suspend(1);
  const RequestImage image = export_of(old, 1, numbers(3, 12));

  // Somebody else is there, so that slots are others.
  Puppets fresh(wanted);
  fresh.enter(5);
  import_into(fresh, 1, image);
  resume_with_room(fresh, 1);
  ASSERT_TRUE(fresh.manager->setup_state_indices(row, "draft", setup).error().code() ==
              ErrorCode::kInvalidArgument)
      << "its draft model is at 10";
  const std::vector<BatchRow> next = {World::verify_row(1, 12, 1)};
  const Result<void> done = fresh.manager->setup_state_indices(next, "draft", setup);
  ASSERT_TRUE(done.has_value()) << done.error().text();
  fresh.set_up({fresh.next_row(1)});
  EXPECT_NE(fresh.slot_of(1), old.manager->state_index(RequestId(1)).value_or(SlotId(0)));
  EXPECT_EQ(fresh.contents(1), target);
  EXPECT_EQ(read_slot(fresh.state("draft"), fresh.slot_of(1, "draft")), draft);
  EXPECT_EQ(hidden(fresh.state(), fresh.slot_of(1)), hidden_before);
  EXPECT_EQ(read_blocks(fresh, 1, 0), blocks);
  fresh.manager->audit();
}

// The count comes later than the suspend; in the image there is one only.
TEST_P(RequestImageTest, LateAcceptanceIsInTheImage) {
  World old(options());
  Speaker speaker(old, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.round(3, 1);
  speaker.verify(3, 3);
  old.suspend(1);
  speaker.accept();
  ASSERT_EQ(old.manager->counters().late_acceptances, 1);
  const RequestImage image = export_of(old, 1, speaker.tokens());
  World fresh(options());
  import_into(fresh, 1, image);
  EXPECT_EQ(fresh.manager->position(RequestId(1))->num_pending, 3);
  Speaker again(fresh, speaker);
  expect_to_go_on(fresh, again);
  expect_to_go_on(old, speaker);
}

TEST_P(RequestImageTest, BeforeItsFirstResumeItHasItsTokensOnly) {
  World old(options());
  const Tokens prompt = numbers(3, 6);
  RequestOptions wanted = options_of(1);
  wanted.tokens = prompt;
  ASSERT_TRUE(old.manager->add_request(wanted).has_value());
  const RequestImage image = export_of(old, 1, prompt);
  EXPECT_FALSE(image.has_pages);
  EXPECT_EQ(image.bytes(), 0);
  // Where the prompt is known it finds what is there, as whoever is new does.
  World fresh(options());
  Speaker first(fresh, 2, numbers(3, 5));
  first.read_prompt();
  ASSERT_TRUE(fresh.manager->publish(RequestId(2), numbers(3, 5), {.written = {}, .is_end = true}));
  fresh.manager->free_resources(RequestId(2));
  fresh.manager->synchronize();
  import_into(fresh, 1, image);
  EXPECT_EQ(fresh.manager->position(RequestId(1))->kept, 5);
  EXPECT_EQ(fresh.manager->position(RequestId(1))->epoch, 1u);
  World lone(options());
  import_into(lone, 1, image);
  EXPECT_EQ(lone.manager->position(RequestId(1))->kept, 0);
  EXPECT_EQ(lone.manager->replay_state().registry().num_reserved(), 0);
  resume_with_room(lone, 1);
  lone.step(lone.set_up({World::context_row(1, 0, 6)}), {prompt});
  lone.manager->audit();
}

// It has pages, and nothing beside them: the next setup begins with the page alone.
TEST_P(RequestImageTest, WhoWasNeverSetUpBeginsWithItsPage) {
  World old(options());
  Speaker first(old, 2, numbers(3, 8));
  first.read_prompt();
  const Tokens prompt = numbers(3, 8);
  ASSERT_TRUE(old.manager->publish(RequestId(2), prompt,
                                   {.written = {}, .with_snapshot = true, .is_end = true}));
  old.manager->free_resources(RequestId(2));
  old.manager->synchronize();
  RequestOptions wanted = options_of(1);
  Tokens longer = prompt;
  longer.push_back(first.tokens().back());
  wanted.tokens = longer;
  ASSERT_TRUE(old.manager->add_request(wanted).has_value());
  old.resume(1);
  ASSERT_EQ(old.manager->position(RequestId(1))->kept, 8);
  old.suspend(1);
  const RequestImage image = export_of(old, 1, longer);
  ASSERT_EQ(image.tags.size(), 1u);
  EXPECT_FALSE(image.tags[0].is_saved);
  World fresh(options());
  import_into(fresh, 1, image);
  resume_with_room(fresh, 1);
  const std::int64_t last = std::ssize(longer) - 1;
  const World::Step here =
      fresh.step(fresh.set_up({World::context_row(1, last, 1)}), {{longer.back()}});
  resume_with_room(old, 1);
  const World::Step there =
      old.step(old.set_up({World::context_row(1, last, 1)}), {{longer.back()}});
  here.done.wait();
  there.done.wait();
  EXPECT_EQ(*here.next, *there.next);
  fresh.manager->audit();
}

TEST_P(RequestImageTest, ARestartIsALifeLikeAnyOther) {
  World old(options());
  Speaker speaker(old, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.round(3, 2);
  const Tokens all = first_of(speaker.tokens(), speaker.num_tokens() - 1);
  ASSERT_TRUE(old.manager->restart_request(RequestId(1), all).has_value());
  // In between it has nothing.
  EXPECT_FALSE(export_of(old, 1, all).has_pages);
  resume_with_room(old, 1);
  old.step(old.set_up({World::context_row(1, 0, static_cast<std::int32_t>(all.size()))}), {all});
  speaker.round(3, 3);
  old.suspend(1);
  World fresh(options());
  import_into(fresh, 1, export_of(old, 1, speaker.tokens()));
  EXPECT_EQ(fresh.manager->position(RequestId(1))->epoch, 2u);
  Speaker again(fresh, speaker);
  expect_to_go_on(fresh, again);
  // A restart after it is one too.
  const Tokens more = first_of(again.tokens(), again.num_tokens() - 1);
  ASSERT_TRUE(fresh.manager->restart_request(RequestId(1), more).has_value());
  EXPECT_EQ(fresh.manager->position(RequestId(1))->epoch, 3u);
}

// What others see too goes along, and is its own where it arrives.
TEST_P(RequestImageTest, SharedPagesGoAlongAndAreItsOwnThen) {
  World old(options());
  Speaker speaker(old, 1, numbers(3, 10));
  speaker.read_prompt();
  speaker.round(3, 2);
  write_blocks(old, 1, 0, 5);
  const auto blocks = read_blocks(old, 1, 0);
  const Tokens kept = first_of(speaker.tokens(), 12);
  ASSERT_TRUE(old.manager->publish(RequestId(1), kept, {}).has_value());
  ASSERT_EQ(old.manager->sequence(RequestId(1)).num_committed(), 12);
  old.suspend(1);
  const RequestImage image = export_of(old, 1, speaker.tokens());
  // Where the tree knows its tokens already, from somebody else.
  World fresh(options());
  Speaker other(fresh, 2, numbers(3, 10));
  other.read_prompt();
  ASSERT_TRUE(fresh.manager->publish(RequestId(2), numbers(3, 10), {}).has_value());
  import_into(fresh, 1, image);
  resume_with_room(fresh, 1);
  EXPECT_EQ(fresh.manager->sequence(RequestId(1)).num_committed(), 0);
  EXPECT_EQ(read_blocks(fresh, 1, 0), blocks);
  fresh.suspend(1);
  Speaker again(fresh, speaker);
  expect_to_go_on(fresh, again);
}

// Blocks that a window has left behind have no page, there or here.
TEST_P(RequestImageTest, BlocksThatAWindowHasLeftStayAway) {
  WorldOptions wanted = options();
  const auto add_window = [](HybridConfig& config) {
    config.cache.layers.push_back({.layer = 9,
                                   .kind = cache::SlidingWindow{.window = 6},
                                   .buffers = {{"kv_latent", 32}},
                                   .group_tag = "target"});
    config.cache.device_bytes *= 2;
  };
  wanted.change = add_window;
  World old(wanted);
  Speaker speaker(old, 1, numbers(3, 18));
  speaker.read_prompt();
  write_blocks(old, 1, 0, 5);
  write_blocks(old, 1, 9, 6);
  ASSERT_TRUE(old.manager->publish(RequestId(1), numbers(3, 18), {}).has_value());
  const auto blocks = read_blocks(old, 1, 9);
  ASSERT_TRUE(blocks.front().empty()) << "the window has left it";
  ASSERT_FALSE(blocks.back().empty());
  old.suspend(1);
  World fresh(wanted);
  import_into(fresh, 1, export_of(old, 1, speaker.tokens()));
  resume_with_room(fresh, 1);
  EXPECT_EQ(read_blocks(fresh, 1, 9), blocks);
  const Result<void> done = fresh.manager->publish(RequestId(1), numbers(3, 18), {});
  ASSERT_TRUE(done.has_value()) << done.error().text();
  fresh.manager->audit();
  fresh.suspend(1);
  Speaker again(fresh, speaker);
  expect_to_go_on(fresh, again);
}

// A save without records: the window is copied to them once it is back.
TEST_P(RequestImageTest, ASaveWithoutRecordsIsOne) {
  WorldOptions wanted = options();
  wanted.suspend_policy = SuspendPolicy::kCommitIfKnown;
  World old(wanted);
  Speaker speaker(old, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.round(3, 2);
  old.suspend(1);
  ASSERT_EQ(old.manager->position(RequestId(1))->num_pending, 0);
  World fresh(wanted);
  import_into(fresh, 1, export_of(old, 1, speaker.tokens()));
  Speaker again(fresh, speaker);
  expect_to_go_on(fresh, again);
}

// Pages wait wherever there is room, and come to the device one request at a time.
TEST_P(RequestImageTest, ManyGoThroughADeviceForFew) {
  WorldOptions wanted = options(2);
  World old(wanted);
  World fresh(wanted);
  std::vector<Speaker> speakers;
  for (std::uint64_t id = 1; id <= 5; ++id) {
    speakers.emplace_back(old, id, numbers(static_cast<TokenId>(7 * id), 6));
    speakers.back().read_prompt();
    speakers.back().round(3, static_cast<std::int32_t>(id % 4));
    old.suspend(id);
  }
  for (std::uint64_t id = 1; id <= 5; ++id) {
    import_into(fresh, id, export_of(old, id, speakers[id - 1].tokens()));
    old.manager->free_resources(RequestId(id));
  }
  EXPECT_EQ(fresh.manager->replay_state().registry().num_saved(), 5);
  for (std::uint64_t id = 5; id >= 1; --id) {
    Speaker again(fresh, speakers[id - 1]);
    resume_with_room(fresh, id);
    again.round(3, 3);
    again.round(2, 1);
    again.expect_says_what_it_says_alone();
    fresh.suspend(id);
  }
  fresh.manager->audit();
  old.manager->audit();
}

INSTANTIATE_TEST_SUITE_P(Placements, RequestImageTest,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
