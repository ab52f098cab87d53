#ifndef SLACKWATER_HYBRID_REQUEST_IMAGE_TEST_SUPPORT_H_
#define SLACKWATER_HYBRID_REQUEST_IMAGE_TEST_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"
#include "hybrid/speaker_test_support.h"
#include "slackwater/hybrid/request_image.h"

namespace slackwater::hybrid {

inline Tokens first_of(const Tokens& tokens, std::int64_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

inline RequestImage export_of(World& world, std::uint64_t id, const Tokens& tokens) {
  Result<RequestImage> image = world.manager->export_request(RequestId(id), tokens);
  EXPECT_TRUE(image.has_value()) << image.error().text();
  return image.has_value() ? *std::move(image) : RequestImage();
}

inline RequestOptions options_of(std::uint64_t id) {
  RequestOptions options;
  options.request = RequestId(id);
  return options;
}

inline void import_into(World& world, std::uint64_t id, const RequestImage& image) {
  const Result<void> done = world.manager->import_request(options_of(id), image);
  ASSERT_TRUE(done.has_value()) << done.error().text();
  EXPECT_EQ(world.manager->sequence(RequestId(id)).status(), cache::SequenceStatus::kSuspended);
}

// The bytes of a role in every block of an active request, [blocks].
inline std::vector<std::span<std::byte>> blocks_of(World& world, std::uint64_t id,
                                                   std::int32_t layer, std::string_view role) {
  const cache::KvCacheManager& cache = world.manager->kv_cache();
  const cache::BufferLocation* const buffer = cache.layer_groups().find(layer, role);
  const PageTable table = *cache.page_table(layer, role);
  std::vector<std::span<std::byte>> blocks;
  for (const SlotId slot : world.manager->sequence(RequestId(id)).slots(buffer->layer_group)) {
    if (slot == cache::kNoSlot) {
      blocks.emplace_back();
    } else {
      blocks.emplace_back(layer_address(table, slot), static_cast<std::size_t>(buffer->bytes));
    }
  }
  return blocks;
}

// What nobody else writes, other bytes in every block.
inline void write_blocks(World& world, std::uint64_t id, std::int32_t layer, std::uint32_t salt) {
  world.manager->synchronize();
  std::uint32_t number = salt * 2654435761u;
  for (const std::span<std::byte> block : blocks_of(world, id, layer, "kv_latent")) {
    for (std::byte& byte : block) {
      number = number * 1664525u + 1013904223u;
      byte = static_cast<std::byte>(number >> 24);
    }
  }
}
inline std::vector<std::vector<std::byte>> read_blocks(World& world, std::uint64_t id,
                                                       std::int32_t layer) {
  world.manager->synchronize();
  std::vector<std::vector<std::byte>> blocks;
  for (const std::span<std::byte> block : blocks_of(world, id, layer, "kv_latent")) {
    blocks.emplace_back(block.begin(), block.end());
  }
  return blocks;
}

// All but the epoch, which is a new one.
inline void expect_same_position(const RequestPosition& now, const RequestPosition& before) {
  EXPECT_EQ(now.kept, before.kept);
  EXPECT_EQ(now.page_position, before.page_position);
  EXPECT_EQ(now.num_pending, before.num_pending);
  EXPECT_EQ(now.round, before.round);
  EXPECT_EQ(now.epoch, before.epoch + 1);
  EXPECT_FALSE(now.is_acceptance_pending);
  EXPECT_FALSE(now.is_on_device);
}

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_REQUEST_IMAGE_TEST_SUPPORT_H_
