// Bytes of shapes that are in use: those of the table in kda_replay.md 7.

#include "slackwater/hybrid/kda_shape.h"

#include <array>
#include <cstdint>

#include <gtest/gtest.h>

#include "slackwater/hybrid/replay_state.h"

namespace slackwater::hybrid {
namespace {

constexpr std::int32_t kK3Layers = 69;
constexpr std::int32_t kKimiLinearLayers = 20;

struct TableRow {
  const char* name;
  std::int32_t num_heads;  // on this rank
  std::int32_t num_layers;
  std::int32_t num_drafts;
  std::int64_t page_bytes_per_layer;
  std::int64_t page_bytes;
  std::int64_t record_bytes_per_layer;
  std::int64_t record_bytes;
  std::int64_t per_token_state_bytes;
};

// [rows of the table]
constexpr std::array kTable = {
    TableRow{"K3 TP8 M=2", 12, kK3Layers, 2, 814'080, 56'171'520, 141'408, 9'757'152, 108'527'616},
    TableRow{"K3 TP8 M=3", 12, kK3Layers, 3, 814'080, 56'171'520, 184'464, 12'728'016, 162'791'424},
    TableRow{"K3 TP8 M=7", 12, kK3Layers, 7, 814'080, 56'171'520, 356'688, 24'611'472, 379'846'656},
    TableRow{"K3 TP12 M=7", 8, kK3Layers, 7, 542'720, 37'447'680, 237'792, 16'407'648, 253'231'104},
    TableRow{"K3 TP16 M=3", 6, kK3Layers, 3, 407'040, 28'085'760, 92'256, 6'365'664, 81'395'712},
    TableRow{"K3 TP16 M=7", 6, kK3Layers, 7, 407'040, 28'085'760, 178'400, 12'309'600, 189'923'328},
    TableRow{"K3 TP1 M=3", 96, kK3Layers, 3, 6'512'640, 449'372'160, 1'475'712, 101'824'128,
             1'302'331'392},
    TableRow{"K3 TP1 M=7", 96, kK3Layers, 7, 6'512'640, 449'372'160, 2'853'504, 196'891'776,
             3'038'773'248},
    TableRow{"KL TP1 M=2", 32, kKimiLinearLayers, 2, 2'170'880, 43'417'600, 377'088, 7'541'760,
             83'886'080},
    TableRow{"KL TP1 M=3", 32, kKimiLinearLayers, 3, 2'170'880, 43'417'600, 491'904, 9'838'080,
             125'829'120},
    TableRow{"KL TP1 M=7", 32, kKimiLinearLayers, 7, 2'170'880, 43'417'600, 951'168, 19'023'360,
             293'601'280},
    TableRow{"KL TP4 M=3", 8, kKimiLinearLayers, 3, 542'720, 10'854'400, 122'976, 2'459'520,
             31'457'280},
};

TEST(KdaShape, TakesTheBytesOfTheTable) {
  for (const TableRow& row : kTable) {
    SCOPED_TRACE(row.name);
    const KdaShape shape{.num_heads = row.num_heads, .conv_dtype = DType::kBf16};
    const std::int64_t page = shape.state_bytes() + shape.window_bytes();
    EXPECT_EQ(page, row.page_bytes_per_layer);
    EXPECT_EQ(page * row.num_layers, row.page_bytes);
    EXPECT_EQ(shape.record_bytes(row.num_drafts), row.record_bytes_per_layer);
    EXPECT_EQ(shape.record_bytes(row.num_drafts) * row.num_layers, row.record_bytes);
    EXPECT_EQ(shape.state_bytes() * row.num_drafts * row.num_layers, row.per_token_state_bytes);
  }
}

TEST(KdaShape, SplitsRecordsAsTheTableDoes) {
  const KdaShape shape{.num_heads = 12, .conv_dtype = DType::kBf16};
  EXPECT_EQ(3 * shape.conv_record_bytes(7), 184'320);
  EXPECT_EQ(shape.qkg_record_bytes(7), 129'024);
  EXPECT_EQ(shape.v_record_bytes(7), 43'008);
  EXPECT_EQ(shape.beta_record_bytes(7), 336);
  // Rows of betas begin at multiples of 16 bytes: 6 heads take as much as 8.
  const KdaShape narrow{.num_heads = 6};
  EXPECT_EQ(narrow.beta_width(), 8);
  EXPECT_EQ(narrow.beta_record_bytes(3), 96);
}

// What a slot really takes: entries of the registry, or buffers of the page.
TEST(KdaShape, IsWhatEntriesAndBuffersAreMadeFrom) {
  for (const TableRow& row : kTable) {
    SCOPED_TRACE(row.name);
    HybridConfig config;
    const KdaShape shape{.num_heads = row.num_heads, .conv_dtype = DType::kBf16};
    for (std::int32_t layer = 0; layer < row.num_layers; ++layer) {
      config.kda_layers.push_back({layer, shape, "target"});
    }
    config.speculation = {row.num_drafts};
    config.replay = {row.num_drafts};
    config.placement = ReplayPlacement::kBesidePool;
    std::int64_t beside = 0;
    for (const SlotEntry& entry : slot_entries(config, "target")) {
      beside += entry.bytes_per_layer * entry.num_layers;
    }
    EXPECT_EQ(beside, row.record_bytes + 4);  // and P
    std::int64_t page = 0;
    for (const auto& buffer : page_buffers(config, config.kda_layers[0], true))
      page += buffer.bytes;
    EXPECT_EQ(page, row.page_bytes_per_layer);
    config.placement = ReplayPlacement::kInPool;
    for (const auto& buffer : page_buffers(config, config.kda_layers[0], true))
      page += buffer.bytes;
    EXPECT_EQ(page, 2 * row.page_bytes_per_layer + row.record_bytes_per_layer);
    EXPECT_EQ(save_bytes_of(slot_entries(config, "target")) > 0, true);
    EXPECT_EQ(slot_entries(config, "target").size(), 1u) << "P alone stays beside the pool";
  }
}

}  // namespace
}  // namespace slackwater::hybrid
