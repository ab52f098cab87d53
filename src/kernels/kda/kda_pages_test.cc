// Where kda_step reads and writes pages: chunks, snapshots, and what must stay as it was.

#include "kernels/kda/kda_problem.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::kernels::test {
namespace {

// Page numbers of these tests: the sequence's own, and snapshots.
constexpr std::int32_t kOwn = 2;
constexpr std::int32_t kFirstSnapshot = 3;
constexpr std::int32_t kNumSlots = 9;

// The numbers of tokens around one and two times the tokens prepared at once.
constexpr std::int32_t kTokenCounts[] = {1, 2, 31, 32, 33, 63, 64, 65, 100};

// One sequence of `num_tokens` tokens whose page holds a state at position 40.
KdaProblem make_problem(std::int32_t num_tokens, Random& random) {
  KdaProblem problem({.num_heads = 2,
                      .head_dim = 32,
                      .num_tokens = num_tokens,
                      .num_slots = kNumSlots,
                      .is_bounded = num_tokens % 2 == 0},
                     random);
  problem.fill_page(kOwn, random);
  return problem;
}

// Tokens [first, first + count) of the sequence; the writes count from `first`.
KdaRow part(std::int32_t first, std::int32_t count, std::vector<StateWrite> writes,
            std::int64_t first_position = 40) {
  return {.first_token = first,
          .num_tokens = count,
          .first_position = first_position + first,
          .page = kOwn,
          .writes = std::move(writes)};
}

// Runs the sequence in chunks of these sizes, each from the page that the last one left.
KdaOutcome run_in_chunks(KdaProblem& problem, Runner& runner,
                         const std::vector<std::int32_t>& chunks, std::int64_t first_position) {
  const std::vector<std::byte> before = problem.pages.contents();
  KdaOutcome all{.o = {}, .pages = {}};
  std::int32_t first = 0;
  for (const std::int32_t count : chunks) {
    const KdaOutcome outcome =
        problem.advance(runner, {part(first, count, {write_at(count, kOwn)}, first_position)});
    const std::vector<float> o = problem.tokens_of(outcome, first, count);
    all.o.insert(all.o.end(), o.begin(), o.end());
    first += count;
  }
  all.pages = problem.pages.contents();
  problem.pages.assign(before);
  return all;
}

// Cuts `total` into chunks: single tokens, in two near the ends and around 32, and at random.
std::vector<std::vector<std::int32_t>> cuts_of(std::int32_t total, Random& random) {
  std::vector<std::vector<std::int32_t>> cuts;
  cuts.emplace_back(static_cast<std::size_t>(total), 1);
  for (const std::int32_t first : {1, 3, 31, 32, 33, total - 1}) {
    if (0 < first && first < total) cuts.push_back({first, total - first});
  }
  for (int i = 0; i < 2; ++i) {
    std::vector<std::int32_t>& cut = cuts.emplace_back();
    for (std::int32_t left = total; left > 0; left -= cut.back()) {
      cut.push_back(1 + random.below(std::min(left, 40)));
    }
  }
  return cuts;
}

void expect_chunks_equal_one_pass(std::int64_t first_position, Random& random) {
  for (const std::int32_t num_tokens : kTokenCounts) {
    KdaProblem problem = make_problem(num_tokens, random);
    for (const Target target : runnable_targets()) {
      Runner runner(target);
      const KdaOutcome once = run_in_chunks(problem, runner, {num_tokens}, first_position);
      for (const std::vector<std::int32_t>& cut : cuts_of(num_tokens, random)) {
        ASSERT_TRUE(equal_outcomes(run_in_chunks(problem, runner, cut, first_position), once))
            << to_string(target) << ": " << testing::PrintToString(cut);
      }
    }
  }
}

TEST(KdaPages, AnySplitIntoChunksEqualsOnePass) {
  Random random(70);
  expect_chunks_equal_one_pass(40, random);
}

TEST(KdaPages, AnySplitOfAWholeSequenceEqualsOnePass) {
  Random random(71);
  expect_chunks_equal_one_pass(0, random);
}

// Pages as they were, with these filled from elsewhere.
std::vector<std::byte> with_pages(KdaProblem& problem,
                                  const std::vector<std::pair<std::int32_t, KdaOutcome>>& from) {
  std::vector<std::byte> expected = problem.pages.contents();
  const std::int64_t slot_bytes = problem.pages.slot_bytes();
  for (const auto& [page, outcome] : from) {
    // State and window, not the poison behind them, which nobody writes.
    std::copy_n(outcome.pages.begin() + kOwn * slot_bytes, slot_bytes,
                expected.begin() + page * slot_bytes);
  }
  return expected;
}

// A run with these writes leaves, in each page, what a run leaves that stopped there; the outputs
// are those without any write, and no other page changes.
void expect_writes_equal_stops(KdaProblem& problem, std::int64_t first_position,
                               const std::vector<StateWrite>& writes) {
  const std::int32_t num_tokens = problem.shape.num_tokens;
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    const KdaOutcome without = problem.run(runner, {part(0, num_tokens, {}, first_position)});
    std::vector<std::pair<std::int32_t, KdaOutcome>> stops;
    for (const StateWrite& write : writes) {
      stops.emplace_back(write.page.value(),
                         problem.run(runner, {part(0, write.count, {write_at(write.count, kOwn)},
                                                   first_position)}));
    }
    const KdaOutcome outcome = problem.run(runner, {part(0, num_tokens, writes, first_position)});
    ASSERT_TRUE(equal_outcomes(outcome, {without.o, with_pages(problem, stops)}))
        << to_string(target) << ", " << num_tokens << " tokens, " << writes.size()
        << " writes, the first after " << writes.front().count;
  }
}

TEST(KdaPages, AWriteHoldsWhatARunThatStopsThereLeaves) {
  Random random(72);
  for (const std::int64_t first_position : {0, 40}) {
    for (const std::int32_t num_tokens : {1, 2, 32, 65}) {
      KdaProblem problem = make_problem(num_tokens, random);
      for (const std::int32_t count : {0, 1, 2, 3, 31, 32, 33, 64, 65}) {
        if (count > num_tokens) continue;
        expect_writes_equal_stops(problem, first_position, {write_at(count, kFirstSnapshot)});
        expect_writes_equal_stops(problem, first_position, {write_at(count, kOwn)});
      }
    }
  }
}

TEST(KdaPages, SeveralWritesOfOneRowHoldTheirOwnStates) {
  Random random(73);
  KdaProblem problem = make_problem(70, random);
  for (const std::int64_t first_position : {0, 40}) {
    for (const std::vector<std::int32_t>& counts :
         std::vector<std::vector<std::int32_t>>{{1, 2, 3, 4},
                                                {0, 31, 32, 33},
                                                {32, 64, 70},
                                                {0, 0, 70},
                                                {32, 32, 32},
                                                {5, 5, 6, 70, 70},
                                                {70, 70}}) {
      std::vector<StateWrite> writes;
      for (const std::int32_t count : counts) {
        writes.push_back(
            write_at(count, kFirstSnapshot + static_cast<std::int32_t>(writes.size())));
      }
      expect_writes_equal_stops(problem, first_position, writes);
      // The row's own page, where it is written, comes last.
      writes.back().page = SlotId(kOwn);
      expect_writes_equal_stops(problem, first_position, writes);
    }
  }
}

TEST(KdaPages, AWriteBeforeTheFirstTokenCopiesThePage) {
  Random random(74);
  KdaProblem problem = make_problem(3, random);
  for (const Target target : runnable_targets()) {
    for (const std::int32_t num_tokens : {0, 3}) {
      const KdaOutcome copied =
          problem.run(target, {part(0, num_tokens, {write_at(0, kFirstSnapshot)})});
      EXPECT_TRUE(equal_bits(problem.page_of(copied, kFirstSnapshot), problem.page_now(kOwn)))
          << to_string(target);
      EXPECT_TRUE(equal_bits(problem.page_of(copied, kOwn), problem.page_now(kOwn)));
      // At position 0 there is nothing to copy but zeros.
      const KdaOutcome zeros =
          problem.run(target, {part(0, num_tokens, {write_at(0, kFirstSnapshot)}, 0)});
      const std::vector<float> page = problem.page_of(zeros, kFirstSnapshot);
      EXPECT_TRUE(equal_bits(page, std::vector<float>(page.size(), 0.0f))) << to_string(target);
    }
  }
}

TEST(KdaPages, WithoutWritesNoPageChanges) {
  Random random(75);
  for (const std::int32_t num_tokens : {1, 33}) {
    KdaProblem problem = make_problem(num_tokens, random);
    for (const Target target : runnable_targets()) {
      const KdaOutcome outcome = problem.run(target, {part(0, num_tokens, {})});
      EXPECT_TRUE(problem.pages.equal_bytes(outcome.pages)) << to_string(target);
      const KdaOutcome written =
          problem.run(target, {part(0, num_tokens, {write_at(num_tokens, kOwn)})});
      EXPECT_TRUE(equal_bits(outcome.o, written.o)) << to_string(target);
    }
  }
}

// A verify round: the page takes the golden token, the drafts after it are only looked at.
TEST(KdaPages, AVerifyRowAdvancesItsPageByTheGoldenTokenOnly) {
  Random random(76);
  KdaProblem problem = make_problem(4, random);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    const KdaOutcome verified = problem.run(runner, {part(0, 4, {write_at(1, kOwn)})});
    const KdaOutcome golden = problem.run(runner, {part(0, 1, {write_at(1, kOwn)})});
    EXPECT_TRUE(verified.pages == golden.pages) << to_string(target);
    const KdaOutcome plain = run_in_chunks(problem, runner, {1, 1, 1, 1}, 40);
    EXPECT_TRUE(equal_bits(verified.o, plain.o)) << to_string(target);
  }
}

TEST(KdaPages, ARunFromASnapshotContinuesAsIfNeverInterrupted) {
  Random random(77);
  KdaProblem problem = make_problem(65, random);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    for (const std::int64_t first_position : {0, 40}) {
      for (const std::int32_t count : {1, 2, 3, 32, 33, 64}) {
        const std::vector<std::byte> before = problem.pages.contents();
        const KdaOutcome whole = problem.advance(
            runner,
            {part(0, 65, {write_at(count, kFirstSnapshot), write_at(65, kOwn)}, first_position)});
        KdaRow rest =
            part(count, 65 - count, {write_at(65 - count, kFirstSnapshot)}, first_position);
        rest.page = kFirstSnapshot;
        const KdaOutcome continued = problem.advance(runner, {rest});
        EXPECT_TRUE(
            equal_bits(problem.page_of(continued, kFirstSnapshot), problem.page_of(whole, kOwn)))
            << to_string(target) << " from " << count;
        EXPECT_TRUE(equal_bits(problem.tokens_of(continued, count, 65 - count),
                               problem.tokens_of(whole, count, 65 - count)))
            << to_string(target) << " from " << count;
        problem.pages.assign(before);
      }
    }
  }
}

TEST(KdaPages, ARowAtPositionZeroStartsFromZerosWithoutReadingItsPage) {
  Random random(78);
  for (const std::int32_t num_tokens : {1, 2, 3, 5, 33}) {
    KdaProblem problem = make_problem(num_tokens, random);
    const KdaRow at_zero = {
        .num_tokens = num_tokens, .page = kOwn, .writes = {write_at(num_tokens, kOwn)}};
    KdaRow later = at_zero;
    later.first_position = 1;
    for (const Target target : runnable_targets()) {
      problem.zero_page(kOwn);
      const KdaOutcome from_zeros = problem.run(target, {later});
      std::ranges::fill(problem.pages.slot(SlotId(kOwn)), std::byte{kPoisonByte});
      const KdaOutcome from_poison = problem.run(target, {at_zero});
      EXPECT_TRUE(equal_bits(from_poison.o, from_zeros.o)) << to_string(target);
      EXPECT_TRUE(equal_bits(problem.page_of(from_poison, kOwn), problem.page_of(from_zeros, kOwn)))
          << to_string(target);
    }
  }
}

TEST(KdaPages, TheWindowHoldsTheLastThreeRawProjectionsOldestFirst) {
  Random random(81);
  KdaProblem problem = make_problem(6, random);
  const std::int64_t width = problem.width();
  for (const Target target : runnable_targets()) {
    for (std::int32_t count = 0; count <= 6; ++count) {
      const KdaOutcome outcome = problem.run(target, {part(0, 6, {write_at(count, kOwn)})});
      const std::vector<float> page = problem.page_of(outcome, kOwn);
      const float* window = page.data() + problem.state_floats();
      for (std::size_t section = 0; section < 3; ++section) {
        for (std::int32_t row = 0; row < kWindowRows; ++row, window += width) {
          const std::int32_t t = count - kWindowRows + row;
          const float* old = problem.window(kOwn) + (3 * section + kWindowRows) * width + t * width;
          const float* expected = t >= 0 ? problem.qkv[section].row(t) : old;
          ASSERT_TRUE(std::equal(window, window + width, expected))
              << to_string(target) << ": section " << section << ", row " << row << " after "
              << count;
        }
      }
    }
  }
}

// A batch of every kind of row: outcomes as alone, and slots of nobody stay poison.
TEST(KdaPages, RowsOfEveryKindShareABatchAndTouchOnlyTheirPages) {
  Random random(79);
  KdaProblem problem({.num_heads = 2, .num_tokens = 47, .num_slots = 12}, random);
  const std::vector<KdaRow> rows = {
      {.first_token = 0,
       .num_tokens = 1,
       .first_position = 5,
       .page = 7,
       .writes = {write_at(1, 7)}},
      {.first_token = 1,
       .num_tokens = 4,
       .first_position = 9,
       .page = 1,
       .writes = {write_at(1, 1)}},
      {.first_token = 5,
       .num_tokens = 35,
       .first_position = 0,
       .page = 10,
       .writes = {write_at(32, 4), write_at(35, 10)}},
      {.first_token = 40,
       .num_tokens = 0,
       .first_position = 8,
       .page = 0,
       .writes = {write_at(0, 3)}},
      {.first_token = 40, .num_tokens = 0, .first_position = 3, .page = 6},
      {.first_token = 40, .num_tokens = 7, .first_position = 3, .page = 5},
  };
  for (const std::int32_t page : {7, 1, 0, 6, 5}) problem.fill_page(page, random);
  for (const Target target : runnable_targets()) {
    SCOPED_TRACE(to_string(target));
    Runner runner(target);
    const KdaOutcome batch = problem.run(runner, rows);
    const std::vector<std::byte> before = problem.pages.contents();
    for (const KdaRow& row : rows) {
      const KdaOutcome alone = problem.advance(runner, {row});
      EXPECT_TRUE(equal_bits(problem.tokens_of(batch, row.first_token, row.num_tokens),
                             problem.tokens_of(alone, row.first_token, row.num_tokens)));
    }
    EXPECT_TRUE(problem.pages.equal_bytes(batch.pages));
    for (const std::int32_t page : {2, 8, 9, 11}) {
      EXPECT_TRUE(is_poison(problem.pages.slot(SlotId(page)))) << "slot " << page;
    }
    problem.pages.assign(before);
  }
  expect_targets_agree(problem, rows);
}

TEST(KdaPages, AnEmptyBatchDoesNothing) {
  Random random(80);
  KdaProblem problem = make_problem(1, random);
  for (const Target target : runnable_targets()) {
    const KdaOutcome outcome = problem.run(target, {});
    EXPECT_TRUE(problem.pages.equal_bytes(outcome.pages)) << to_string(target);
  }
}

}  // namespace
}  // namespace slackwater::kernels::test
