// Faults that users of other engines have met, replayed on our cache with other numbers each time:
// what a prefix is known by. Each comment names the public reports.

#include <vector>

#include <gtest/gtest.h>

#include "tests/cases/cache_cases_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;

// C20, prefix key identity: whatever influences the content is part of the key, tagged by its kind,
// and the key is the same on all tiers.
// KB-C20-01 (vLLM 44701, 44706): an adapter and a salt of the same name are the same key. Every
// pair of scopes of two numbers, on the device and on the host.
TEST(C20Identity, AnAdapterIsNotASaltOfTheSameNumber) {
  const std::uint64_t names[] = {0, 7};
  std::vector<ReuseScope> scopes = {{}};
  for (const std::uint64_t x : names) {
    scopes.push_back({x, std::nullopt});
    scopes.push_back({std::nullopt, x});
    for (const std::uint64_t y : names) scopes.push_back({x, y});
  }
  const Tokens prompt = numbers(0, 33);
  for (std::size_t i = 0; i < scopes.size(); ++i) {
    Crowd crowd(Crowd::config({kFull, kState}, 16, 8, 16), i);
    TestCache& cache = crowd.cache;
    cache.run(numbers(0, 32), scopes[i]);
    for (const bool is_on_host : {false, true}) {
      SCOPED_TRACE(testing::Message() << "scope " << i << (is_on_host ? " on the host" : ""));
      if (is_on_host) crowd.written(crowd.other, 7000, 7 * 16).close();
      EXPECT_EQ(num_taken(cache, Tier::kHost) > 0, is_on_host);
      for (std::size_t k = 0; k < scopes.size(); ++k) {
        const std::int64_t expected = i == k ? 32 : 0;
        EXPECT_EQ(cache.manager->probe_reuse(scopes[k], prompt).reused, expected);
        EXPECT_EQ(cache.create(prompt, scopes[k]).num_committed(), expected);
        EXPECT_EQ(cache.manager->prefetch(scopes[k], prompt, Tier::kHost)->reused, expected);
        EXPECT_EQ(cache.manager->probe_first_new_block(scopes[k], numbers(0, 64)) ==
                      cache.manager->probe_first_new_block(scopes[i], numbers(0, 64)),
                  i == k);
      }
    }
    Sequence again = cache.create(prompt, scopes[i]);
    cache.resume(again);
    cache.compute(again, prompt);
    crowd.expect_right();
  }
}

// KB-C20-02 (TensorRT-LLM 12306): two images behind the same placeholders. The image stands at any
// place of two blocks, its second half of the block too, with states or without.
TEST(C20Identity, AnImageIsKnownByItsContentFromItsPlaceOn) {
  constexpr std::int64_t kBlock = 8;
  for (const bool has_state : {false, true}) {
    for (std::int64_t place = 0; place < 2 * kBlock; ++place) {
      SCOPED_TRACE(testing::Message() << "place " << place << (has_state ? ", states" : ""));
      std::vector<LayerKind> kinds = {kFull, SlidingWindow{6, 0}};
      if (has_state) kinds.push_back(kState);
      KvCacheConfig config = Crowd::config(kinds, kBlock, 256, 0);
      if (has_state) config.commit_policy = CommitPolicy::kEndpointsOnly;
      Crowd crowd(std::move(config), static_cast<std::uint64_t>(place));
      TestCache& cache = crowd.cache;
      Tokens prompts[2] = {numbers(0, 3 * kBlock), numbers(0, 3 * kBlock)};
      std::vector<TokenId> images;
      for (int i = 0; i < 2; ++i) {
        Sha256Digest digest = {};
        digest[31] = static_cast<std::byte>(i);  // they differ at the very end
        images.push_back(*cache.manager->token_digests().acquire(digest));
        prompts[i][static_cast<std::size_t>(place)] = images.back();
      }
      Sequence first = cache.create(prompts[0]);
      cache.resume(first);
      // A state wherever they could still be the same, and past it.
      for (std::int64_t end = 1; end <= 3 * kBlock; ++end) {
        cache.compute(first, Tokens(prompts[0].begin(), prompts[0].begin() + end));
      }
      first.close();
      EXPECT_EQ(cache.reusable(prompts[0]), 3 * kBlock);
      EXPECT_EQ(cache.reusable(prompts[1]), place) << "up to the image, and not further";
      Sequence second = cache.create(prompts[1]);
      EXPECT_EQ(second.num_committed(), place);
      cache.resume(second);
      cache.compute(second, prompts[1]);
      second.close();
      EXPECT_EQ(cache.reusable(prompts[0]), 3 * kBlock);
      EXPECT_EQ(cache.reusable(prompts[1]), 3 * kBlock);
      crowd.expect_right();
      cache.manager->token_digests().release(images);
    }
  }
}

}  // namespace
}  // namespace slackwater::cache
