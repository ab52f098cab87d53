// A kernel that ran once with the same shapes allocates nothing: the step path is free of the heap.

#include <vector>

#include "kernels/kda/kda_problem.h"
#include "kernels/kda/kda_replay_problem.h"
#include "kernels/test_support.h"
#include "slackwater/kernels/kda.h"
#include "slackwater/kernels/matmul.h"
#include "slackwater/kernels/mla.h"
#include "slackwater/kernels/moe.h"
#include "slackwater/kernels/norm.h"
#include "testing/allocation_counter.h"

namespace slackwater::kernels::test {
namespace {

// Allocations of the second of two equal calls, on the fastest target.
template <class Kernel>
std::int64_t allocations_when_warm(const Kernel& kernel) {
  Runner runner(best_target(), 2);
  kernel(runner.context);
  const std::int64_t before = num_heap_allocations();
  kernel(runner.context);
  return num_heap_allocations() - before;
}

TEST(AllocationCounterThreads, SeesPlainAndAlignedAllocations) {
  const std::int64_t before = num_heap_allocations();
  const std::vector<float> plain(10);
  const AlignedBuffer<float> aligned(10);
  // Without a use a compiler may leave out both.
  [[maybe_unused]] const float* volatile used = plain.data();
  used = aligned.data();
  EXPECT_EQ(num_heap_allocations() - before, 2);
}

// The reference is the oracle, not a step path, and allocates as it likes.
class AllocationThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (best_target() == Target::kReference) GTEST_SKIP() << "the reference allocates";
  }
};

TEST_F(AllocationThreads, AWarmKdaStepAllocatesNothing) {
  Random random(140);
  KdaProblem problem({.num_heads = 3, .num_tokens = 40, .num_slots = 2}, random);
  problem.fill_page(1, random);
  const KdaRow row = {.num_tokens = 40,
                      .first_position = 3,
                      .page = 1,
                      .writes = {write_at(5, 0), write_at(40, 1)}};
  const std::vector<SequenceRow> rows = {row.view()};
  const KdaStepArgs args = problem.args(rows);
  EXPECT_EQ(allocations_when_warm([&](ExecutionContext& context) { kda_step(context, args); }), 0);
}

TEST_F(AllocationThreads, AWarmVerifyRoundAllocatesNothing) {
  Random random(146);
  ReplayProblem problem({.num_slots = 1}, random);
  Runner reference(Target::kReference);
  problem.run(reference,
              {{.tokens = {1, 2, 3, 4}, .page = 0, .writes = {write_at(1, 0)}, .num_pending = 0}});
  const StateWrite write = write_at(1, 0);
  const std::vector<SequenceRow> rows = {{.first_token = 0,
                                          .num_tokens = 4,
                                          .first_position = 4,
                                          .block_table = {},
                                          .state_page = SlotId(0),
                                          .writes = std::span(&write, 1),
                                          .num_pending = 3}};
  KdaStepArgs args = problem.source().args(rows);
  problem.point(args);
  EXPECT_EQ(allocations_when_warm([&](ExecutionContext& context) { kda_step(context, args); }), 0);
}

TEST_F(AllocationThreads, AWarmAttentionAllocatesNothing) {
  constexpr std::int32_t kTokens = 40, kWidth = 24, kRank = 16, kHeads = 2;
  Random random(141);
  Floats kv(kTokens, kWidth), q(kTokens, kHeads * kWidth), weight(1, kRank);
  Floats latent(kTokens, kHeads * kRank, kPackedOutput);
  for (Floats* values : {&kv, &q, &weight}) values->fill(random);
  const std::vector<SlotId> table = {SlotId(1), SlotId(0)};
  const std::vector<SequenceRow> rows = {{.first_token = 0,
                                          .num_tokens = kTokens,
                                          .first_position = 0,
                                          .block_table = table,
                                          .state_page = {},
                                          .writes = {}}};
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const std::int64_t row_bytes = kWidth * dtype_bytes(dtype);
    PoisonedPages pages(2, 32 * row_bytes, 0);
    const LatentPages view = {.base = pages.base(),
                              .slot_stride = 32 * row_bytes,
                              .token_stride = row_bytes,
                              .num_slots = 2,
                              .tokens_per_block = 32,
                              .width = kWidth,
                              .dtype = dtype};
    const auto step = [&](ExecutionContext& context) {
      mla_write(context, {.kv = kv.data(),
                          .kv_stride = kv.stride(),
                          .norm_weight = weight.data(),
                          .rank = kRank,
                          .eps = 1e-6f,
                          .pages = view,
                          .rows = rows});
      mla_attention(context, {.q = q.data(),
                              .q_stride = q.stride(),
                              .latent = latent.data(),
                              .latent_stride = latent.stride(),
                              .heads = kHeads,
                              .rank = kRank,
                              .scale = 1.0f,
                              .pages = view,
                              .rows = rows});
    };
    EXPECT_EQ(allocations_when_warm(step), 0) << to_string(dtype);
  }
}

TEST_F(AllocationThreads, WarmProductsNormsAndExpertsAllocateNothing) {
  constexpr std::int32_t kTokens = 9, kExperts = 20, kChosen = 3, kWidth = 500;
  Random random(142);
  Floats x(kTokens, kWidth), weight(1, kWidth), logits(kTokens, kExperts), bias(1, kExperts);
  for (Floats* values : {&x, &weight, &logits, &bias}) values->fill(random);
  Floats y(kTokens, kWidth, kPackedOutput), h(kTokens, kWidth / 2, kPackedOutput);
  AlignedBuffer<std::byte> panels(packed_bytes(kWidth, kWidth, DType::kBf16));
  std::vector<std::int32_t> ids(kTokens * kChosen), pairs(ids), choices(ids);
  std::vector<std::int32_t> offsets(kExperts + 1);
  std::vector<float> weights(ids.size());
  h.fill(random);
  Floats expert_y(kTokens * kChosen, kWidth / 2);
  expert_y.fill(random);
  const auto step = [&](ExecutionContext& context) {
    rms_norm(context, {.x = x.data(),
                       .x_stride = x.stride(),
                       .weight = weight.data(),
                       .y = y.data(),
                       .y_stride = y.stride(),
                       .rows = kTokens,
                       .n = kWidth,
                       .eps = 1e-5f});
    gated_head_norm(context, {.x = x.data(),
                              .x_stride = x.stride(),
                              .gate = x.data(),
                              .gate_stride = x.stride(),
                              .weight = weight.data(),
                              .y = y.data(),
                              .y_stride = y.stride(),
                              .rows = kTokens,
                              .heads = 5,
                              .head_dim = 100,
                              .eps = 1e-5f});
    matmul(context, MatmulArgs{.weights = {panels.data(), DType::kBf16, kWidth, kWidth},
                               .x = x.data(),
                               .x_stride = x.stride(),
                               .y = y.data(),
                               .y_stride = y.stride(),
                               .rows = kTokens});
    glu(context, GluArgs{.gate_up = x.data(),
                         .gate_up_stride = x.stride(),
                         .y = h.data(),
                         .y_stride = h.stride(),
                         .rows = kTokens,
                         .width = kWidth / 2});
    moe_route(context, {.logits = logits.data(),
                        .logits_stride = logits.stride(),
                        .bias = bias.data(),
                        .tokens = kTokens,
                        .experts = kExperts,
                        .chosen = kChosen,
                        .expert_ids = ids.data(),
                        .weights = weights.data()});
    moe_group(context, {.expert_ids = ids.data(),
                        .tokens = kTokens,
                        .experts = kExperts,
                        .chosen = kChosen,
                        .offsets = offsets.data(),
                        .pair_tokens = pairs.data(),
                        .pair_of_choice = choices.data()});
    moe_combine(context, {.expert_y = expert_y.data(),
                          .expert_y_stride = expert_y.stride(),
                          .weights = weights.data(),
                          .pair_of_choice = choices.data(),
                          .tokens = kTokens,
                          .chosen = kChosen,
                          .width = kWidth / 2,
                          .h = h.data(),
                          .h_stride = h.stride()});
  };
  EXPECT_EQ(allocations_when_warm(step), 0);
}

}  // namespace
}  // namespace slackwater::kernels::test
