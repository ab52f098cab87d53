// Replay records: whatever a schedule of calls does with them, state, window and outputs are those
// of decoding the accepted tokens one by one.

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kda/kda_problem.h"
#include "kernels/kda/kda_replay_problem.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::kernels::test {
namespace {

Tokens random_tokens(std::int64_t count, Random& random) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(random.below(ReplayProblem::kNumTokens));
  }
  return tokens;
}

// Requests that run side by side through random rows. After each call the outputs and every byte
// of every slot are compared with what the oracle says, poison included.
class Schedule {
 public:
  static constexpr std::int32_t kNumRequests = 3;
  static constexpr std::int32_t kNumSnapshots = 4;
  static constexpr std::int32_t kNumSlots = kNumRequests + kNumSnapshots + 2;  // 2 are nobody's

  struct Options {
    ReplayShape shape;
    Target target = Target::kReference;
    int num_threads = 1;
    std::int32_t longest_chunk = 40;
    std::uint64_t stream = 0;
  };

  explicit Schedule(const Options& options)
      : options_(options),
        random_(options.stream),
        problem_(with_slots(options.shape), random_),
        runner_(options.target, options.num_threads),
        oracle_(options.target),
        slots_(random_.permutation(kNumSlots)) {
    for (std::int32_t i = 0; i < kNumRequests; ++i) {
      requests_.push_back({.page = slots_[static_cast<std::size_t>(i)],
                           .tokens = {},
                           .num_pending = 0,
                           .at_page = problem_.at_zero()});
    }
  }

  void run(int num_rounds) {
    for (int round = 0; round < num_rounds; ++round) {
      run_round();
      if (testing::Test::HasFatalFailure() || testing::Test::HasNonfatalFailure()) {
        ADD_FAILURE() << to_string(options_.target) << ", " << options_.shape.num_heads
                      << " heads of " << options_.shape.head_dim << ", room for " << max_records()
                      << ": after " << round + 1 << " rounds";
        return;
      }
    }
  }

 private:
  struct Request {
    std::int32_t page = 0;
    Tokens tokens;  // accepted ones; the last num_pending are records
    std::int32_t num_pending = 0;
    OracleState at_page;
  };

  static ReplayShape with_slots(ReplayShape shape) {
    shape.num_slots = kNumSlots;
    return shape;
  }
  std::int32_t max_records() const { return options_.shape.max_records; }

  void run_round() {
    std::vector<ReplayRow> rows;
    std::vector<Request*> owners;
    std::int32_t next_snapshot = 0;
    for (const std::int32_t i : random_.permutation(kNumRequests)) {
      owners.push_back(&requests_[static_cast<std::size_t>(i)]);
      rows.push_back(draw_row(*owners.back(), next_snapshot));
    }
    const std::vector<std::byte> before = problem_.pages().contents();
    const std::vector<float> o = problem_.run(runner_, rows);
    const std::vector<std::byte> after = problem_.pages().contents();
    problem_.pages().assign(before);
    std::vector<float> expected_o;
    for (std::size_t i = 0; i < rows.size(); ++i) follow(rows[i], *owners[i], expected_o);
    const std::vector<std::byte> expected = problem_.pages().contents();
    problem_.pages().assign(after);
    ASSERT_TRUE(equal_bits(o, expected_o)) << describe(rows);
    ASSERT_TRUE(problem_.pages().equal_bytes(expected)) << describe(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) accept(rows[i], *owners[i]);
  }

  // Decode, prefill in chunks, verify, commit, and rows of a draft model.
  ReplayRow draw_row(const Request& request, std::int32_t& next_snapshot) {
    ReplayRow row = {.first_position = std::ssize(request.tokens),
                     .page = request.page,
                     .num_pending = request.num_pending};
    const std::int32_t kind = random_.below(8);
    if (kind == 0) return row;
    if (kind <= 2) {
      row.tokens = random_tokens(random_.below(max_records() - request.num_pending + 1), random_);
      return row;
    }
    const std::array<std::int32_t, 5> counts = {0, 1, 1, 2,
                                                1 + random_.below(options_.longest_chunk)};
    const std::int32_t count = counts[static_cast<std::size_t>(kind - 3)];
    const std::int32_t drafts =
        kind == 3 && random_.below(2) == 0 ? 0 : random_.below(max_records() + 1);
    row.tokens = random_tokens(count + drafts, random_);
    while (next_snapshot < kNumSnapshots && random_.below(3) == 0) {
      row.writes.push_back(write_at(random_.below(count + 1), snapshot_slot(next_snapshot++)));
    }
    std::ranges::sort(row.writes, {}, &StateWrite::count);
    row.writes.push_back(write_at(count, request.page));
    return row;
  }
  std::int32_t snapshot_slot(std::int32_t index) const {
    return slots_[static_cast<std::size_t>(kNumRequests + index)];
  }

  // Does to the slots what the row should have done, and appends its outputs.
  void follow(const ReplayRow& row, Request& request, std::vector<float>& o) {
    OracleState held = request.at_page;
    std::vector<float> ignored;
    const std::int64_t page_position = row.first_position - row.num_pending;
    for (std::int64_t t = page_position; t < row.first_position; ++t) {
      problem_.decode(oracle_, request.tokens[static_cast<std::size_t>(t)], t, held, ignored);
    }
    auto write = row.writes.begin();
    for (std::int32_t done = 0;; ++done) {
      for (; write != row.writes.end() && write->count == done; ++write) {
        problem_.put(write->page.value(), held);
        if (write->page.value() == request.page) request.at_page = held;
      }
      if (done == std::ssize(row.tokens)) break;
      problem_.decode(oracle_, row.tokens[static_cast<std::size_t>(done)],
                      row.first_position + done, held, o);
    }
    request.tokens.insert(request.tokens.end(), row.tokens.begin(), row.tokens.end());
    put_records(row, request);
  }

  void put_records(const ReplayRow& row, Request& request) {
    std::int32_t count = 0;
    std::int32_t record = row.num_pending;
    if (!row.writes.empty()) {
      count = row.writes.back().count;
      record = 0;
      problem_.put_window_copy(row.page, request.at_page);
    }
    const std::span<const std::int32_t> all = request.tokens;
    for (; count < std::ssize(row.tokens); ++count, ++record) {
      problem_.put(row.page, record,
                   all.first(static_cast<std::size_t>(row.first_position + count + 1)));
    }
    request.num_pending = record;
  }

  // Some of the records are accepted, often all; the others go.
  void accept(const ReplayRow& row, Request& request) {
    const std::int32_t rejected = random_.below(2) * random_.below(request.num_pending + 1);
    request.num_pending -= rejected;
    request.tokens.resize(request.tokens.size() - static_cast<std::size_t>(rejected));
    problem_.poison_rest(row.page, request.num_pending);
  }

  static std::string describe(const std::vector<ReplayRow>& rows) {
    std::string text;
    for (const ReplayRow& row : rows) {
      text += fmt::format("[page {}, position {}, {} pending, {} tokens, writes", row.page,
                          row.first_position, row.num_pending, row.tokens.size());
      for (const StateWrite& write : row.writes) {
        text += fmt::format(" {}:{}", write.count, write.page.value());
      }
      text += "] ";
    }
    return text;
  }

  Options options_;
  Random random_;
  ReplayProblem problem_;
  Runner runner_;
  Runner oracle_;
  std::vector<std::int32_t> slots_;
  std::vector<Request> requests_;
};

TEST(KdaReplay, AnyScheduleEqualsTokenByTokenDecoding) {
  for (const Target target : runnable_targets()) {
    for (const std::int32_t max_records : {1, 3, 7}) {
      for (const bool is_bounded : {false, true}) {
        const ReplayShape shape = {.num_heads = is_bounded ? 3 : 2,
                                   .head_dim = is_bounded ? 32 : 64,
                                   .max_records = max_records,
                                   .is_bounded = is_bounded};
        Schedule({.shape = shape, .target = target, .stream = 90}).run(60);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(KdaReplay, AnyScheduleEqualsTokenByTokenDecodingAcrossPreparedTokens) {
  for (const Target target : runnable_targets()) {
    for (const std::int32_t max_records : {31, 40, 70}) {
      const ReplayShape shape = {.num_heads = 1, .head_dim = 64, .max_records = max_records};
      Schedule({.shape = shape, .target = target, .longest_chunk = 70, .stream = 91}).run(20);
      if (HasFailure()) return;
    }
  }
}

TEST(KdaReplaySlow, LongSchedulesOfLargeHeadsEqualTokenByTokenDecoding) {
  for (const Target target : runnable_targets()) {
    for (const std::int32_t head_dim : {32, 96, 128}) {
      for (const std::int32_t max_records : {1, 3, 7}) {
        const ReplayShape shape = {.num_heads = head_dim == 32 ? 5 : 1,
                                   .head_dim = head_dim,
                                   .max_records = max_records,
                                   .is_bounded = max_records == 7};
        Schedule({.shape = shape, .target = target, .longest_chunk = 8, .stream = 92}).run(200);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(KdaReplayThreads, TheNumberOfThreadsDoesNotChangeABit) {
  for (const int num_threads : {1, 2, 3}) {
    const ReplayShape shape = {.num_heads = 3, .head_dim = 64, .max_records = 3};
    const Schedule::Options options = {.shape = shape,
                                       .target = best_target(),
                                       .num_threads = num_threads,
                                       .longest_chunk = 6,
                                       .stream = 93};
    Schedule(options).run(40);
    if (HasFailure()) return;
  }
}

// Fills a slot's page, and records [0, count) of it, with values of no sequence.
void fill_slot(ReplayProblem& problem, std::int32_t slot, std::int32_t count, Random& random) {
  const auto fill = [&](float* from, std::int64_t floats) {
    std::generate_n(from, floats, [&] { return 0.5f * random.value(); });
  };
  const std::int64_t width = problem.width();
  fill(problem.state(slot), problem.source().state_floats());
  fill(problem.window(slot), problem.source().window_floats());
  for (std::int32_t r = 0; r < count; ++r) {
    for (int section = 0; section < 3; ++section) {
      fill(problem.conv_row(slot, section, kWindowRows + r), width);
    }
    for (int which = 0; which < 2; ++which) fill(problem.qkg(slot, r, which), width);
    std::generate_n(problem.qkg(slot, r, 2), width, [&] { return random.uniform(-9.0f, 0.0f); });
    fill(problem.v(slot, r), width);
    std::generate_n(problem.beta(slot, r), problem.shape().num_heads,
                    [&] { return random.uniform(0.0f, 1.0f); });
  }
}

// A row for each number of pending records, drafts and first tokens, with a snapshot now and then.
std::vector<ReplayRow> rows_of_all_kinds(ReplayProblem& problem, Random& random) {
  const std::int32_t max_records = problem.shape().max_records;
  std::vector<ReplayRow> rows;
  std::int32_t next_slot = 0;
  for (std::int32_t pending = 0; pending <= max_records; ++pending) {
    for (const std::int32_t count : {-1, 0, 1, 2, 5}) {
      const std::int32_t room = count < 0 ? max_records - pending : max_records;
      ReplayRow row = {.tokens = random_tokens(std::max(count, 0) + random.below(room + 1), random),
                       .first_position = 20,
                       .page = next_slot++,
                       .num_pending = pending};
      fill_slot(problem, row.page, pending, random);
      if (count == 2) row.writes.push_back(write_at(random.below(3), next_slot++));
      if (count >= 0) row.writes.push_back(write_at(count, row.page));
      rows.push_back(row);
    }
  }
  return rows;
}

TEST(KdaReplay, EveryTargetEqualsTheReferenceOnAwkwardShapes) {
  Random random(94);
  for (const std::int32_t head_dim : {32, 64, 96, 128, 160}) {
    for (const std::int32_t num_heads : {1, 3, 5}) {
      if (head_dim > 96 && num_heads > 1) continue;
      ReplayProblem problem({.num_heads = num_heads,
                             .head_dim = head_dim,
                             .max_records = num_heads == 5 ? 1 : 3,
                             .num_slots = 25,
                             .is_bounded = head_dim == 96},
                            random);
      const std::vector<ReplayRow> rows = rows_of_all_kinds(problem, random);
      const std::vector<std::byte> before = problem.pages().contents();
      Runner reference(Target::kReference);
      const std::vector<float> o = problem.run(reference, rows);
      const std::vector<std::byte> pages = problem.pages().contents();
      for (const Target target : fast_targets()) {
        SCOPED_TRACE(fmt::format("{}: {} heads of {}", to_string(target), num_heads, head_dim));
        Runner runner(target);
        problem.pages().assign(before);
        ASSERT_TRUE(equal_bits(problem.run(runner, rows), o));
        ASSERT_TRUE(problem.pages().equal_bytes(pages));
      }
    }
  }
}

// One request by hand: its page, and how many records count.
struct Follower {
  ReplayProblem& problem;
  Runner& runner;
  std::int32_t page;
  std::int64_t position = 0;
  std::int32_t num_pending = 0;

  // Runs tokens; the page is written after `count` of them, where there is one.
  std::vector<float> run(const Tokens& tokens, std::optional<std::int32_t> count) {
    ReplayRow row = {
        .tokens = tokens, .first_position = position, .page = page, .num_pending = num_pending};
    const auto num_tokens = static_cast<std::int32_t>(tokens.size());
    if (count.has_value()) row.writes.push_back(write_at(*count, page));
    const std::vector<float> o = problem.run(runner, {row});
    position += num_tokens;
    num_pending = count.has_value() ? num_tokens - *count : num_pending + num_tokens;
    return o;
  }
  // The last `rejected` records do not count.
  void reject(std::int32_t rejected) {
    position -= rejected;
    num_pending -= rejected;
  }
};

// Outputs of decoding these tokens from position 0, one by one.
std::vector<float> decoded(ReplayProblem& problem, Runner& runner, const Tokens& tokens) {
  OracleState held = problem.at_zero();
  std::vector<float> o;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    problem.decode(runner, tokens[t], static_cast<std::int64_t>(t), held, o);
  }
  return o;
}

// Of m drafts the model itself has run m - 1: its own page takes the golden token, each draft is
// left as a record, and where all m are accepted the next call begins with the last of them.
TEST(KdaReplay, ADraftModelFollowsTheAcceptanceOfItsTarget) {
  constexpr std::int32_t kDrafts = 3;
  for (const Target target : runnable_targets()) {
    Random random(95);
    Runner runner(target);
    ReplayProblem problem({.max_records = kDrafts, .num_slots = 2}, random);
    Follower draft_model{problem, runner, 1};
    Tokens accepted = random_tokens(6, random);
    draft_model.run(accepted, 6);
    Tokens next = random_tokens(1, random);
    for (int round = 0; round < 30; ++round) {
      std::vector<float> o = draft_model.run(next, static_cast<std::int32_t>(next.size()));
      accepted.insert(accepted.end(), next.begin(), next.end());
      Tokens drafts;
      for (std::int32_t i = 0; i < kDrafts; ++i) {
        drafts.push_back(random_tokens(1, random).front());
        if (i + 1 == kDrafts) break;
        o = draft_model.run({drafts.back()}, std::nullopt);
      }
      Tokens ran = accepted;
      ran.insert(ran.end(), drafts.begin(), drafts.end() - 1);
      const std::vector<float> expected = decoded(problem, runner, ran);
      ASSERT_TRUE(equal_bits(o, {expected.end() - problem.width(), expected.end()}))
          << to_string(target) << " in round " << round;
      const std::int32_t num_accepted = random.below(kDrafts + 1);
      const std::int32_t num_kept = std::min(num_accepted, kDrafts - 1);
      draft_model.reject(kDrafts - 1 - num_kept);
      accepted.insert(accepted.end(), drafts.begin(), drafts.begin() + num_kept);
      next = random_tokens(1, random);
      if (num_accepted == kDrafts) next.insert(next.begin(), drafts.back());
    }
  }
}

TEST(KdaReplay, ACommitIsWhereTheNextRoundWouldHaveStarted) {
  for (const Target target : runnable_targets()) {
    for (std::int32_t pending = 0; pending <= 7; ++pending) {
      Random random(96);
      Runner runner(target);
      ReplayProblem problem({.max_records = 7, .num_slots = 1}, random);
      Follower request{problem, runner, 0};
      request.run(random_tokens(9, random), 9);
      request.run(random_tokens(8, random), 1);
      request.reject(7 - pending);
      const Tokens next = random_tokens(4, random);
      const std::vector<std::byte> before = problem.pages().contents();
      Follower uninterrupted = request;
      const std::vector<float> expected = uninterrupted.run(next, 1);
      const std::vector<std::byte> pages = problem.pages().contents();

      problem.pages().assign(before);
      request.run({}, 0);
      EXPECT_EQ(request.num_pending, 0);
      problem.poison_rest(0, 0);
      const std::vector<float> o = request.run(next, 1);
      ASSERT_TRUE(equal_bits(o, expected)) << to_string(target) << ", " << pending << " pending";
      // Records past the drafts of this round are poison here, and old ones there.
      problem.poison_rest(0, 3);
      const std::vector<std::byte> committed = problem.pages().contents();
      problem.pages().assign(pages);
      problem.poison_rest(0, 3);
      ASSERT_TRUE(problem.pages().equal_bytes(committed)) << to_string(target);
    }
  }
}

// The page of a row at position 0 may hold anything, also while records go on from there.
TEST(KdaReplay, RecordsOfAPageAtPositionZeroGoOnFromZeros) {
  for (const Target target : runnable_targets()) {
    Random random(97);
    Runner runner(target);
    ReplayProblem problem({.max_records = 7, .num_slots = 1}, random);
    const Tokens tokens = random_tokens(7, random);
    Follower request{problem, runner, 0};
    std::vector<float> o = request.run({tokens.begin(), tokens.begin() + 2}, std::nullopt);
    for (const std::vector<float>& more :
         {request.run({tokens.begin() + 2, tokens.begin() + 5}, std::nullopt),
          request.run({tokens.begin() + 5, tokens.end()}, 1)}) {
      o.insert(o.end(), more.begin(), more.end());
    }
    EXPECT_TRUE(equal_bits(o, decoded(problem, runner, tokens))) << to_string(target);
  }
}

// What moves with its page, and what lies beside the pool, differ in base and stride only.
TEST(KdaReplay, RecordsBesideThePoolEqualThoseWithinIt) {
  constexpr std::int32_t kSlots = 25;
  Random random(98);
  ReplayProblem problem({.num_slots = kSlots}, random);
  const std::vector<ReplayRow> rows = rows_of_all_kinds(problem, random);
  const std::vector<std::byte> before = problem.pages().contents();
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    problem.pages().assign(before);
    // Slots of the same layout elsewhere, of which only the records are used.
    PoisonedPages beside(kSlots, problem.pages().slot_bytes() + 64, 8);
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      std::ranges::copy(problem.pages().slot(SlotId(slot)), beside.slot(SlotId(slot)).begin());
    }
    const std::vector<float> o = problem.run(runner, rows);
    const std::vector<std::byte> within = problem.pages().contents();

    problem.pages().assign(before);
    const ReplayRecords records = problem.records_in(beside);
    EXPECT_TRUE(equal_bits(problem.run(runner, rows, &records), o)) << to_string(target);
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      const std::int64_t page_bytes = problem.offset_of(2) * 4;
      std::ranges::copy(beside.slot(SlotId(slot))
                            .subspan(page_bytes)
                            .first(problem.pages().slot_bytes() - page_bytes),
                        problem.pages().slot(SlotId(slot)).begin() + page_bytes);
    }
    EXPECT_TRUE(problem.pages().equal_bytes(within)) << to_string(target);
  }
}

class KdaReplayDeathTest : public testing::Test {
 protected:
  static constexpr std::int32_t kOwn = 2;

  void run(const ReplayRow& row) {
    Runner runner(Target::kReference);
    problem_.run(runner, {row});
  }
  void run(const ReplayRecords& records) {
    Runner runner(Target::kReference);
    problem_.run(runner, {verify(1, 0)}, &records);
  }
  // A verify round.
  static ReplayRow verify(std::int32_t num_tokens, std::int32_t num_pending) {
    return {.tokens = Tokens(static_cast<std::size_t>(num_tokens)),
            .first_position = 10,
            .page = kOwn,
            .writes = {write_at(1, kOwn)},
            .num_pending = num_pending};
  }

  Random random_{99};
  ReplayProblem problem_{{.max_records = 3, .num_slots = 4}, random_};
};

TEST_F(KdaReplayDeathTest, RefusesMoreRecordsThanThereIsRoomFor) {
  EXPECT_DEATH(run(verify(5, 0)), "4 records left by a row of 5 tokens and 0 pending, .* for 3");
  ReplayRow append = verify(2, 2);
  append.writes.clear();
  EXPECT_DEATH(run(append), "4 records left by a row of 2 tokens and 2 pending, .* for 3");
}

TEST_F(KdaReplayDeathTest, RefusesPendingRecordsThatCannotBe) {
  EXPECT_DEATH(run(verify(1, 4)), "4 pending records at position 10, slots have room for 3");
  EXPECT_DEATH(run(verify(1, -1)), "-1 pending records");
  ReplayRow at_zero = verify(1, 1);
  at_zero.first_position = 0;
  EXPECT_DEATH(run(at_zero), "1 pending records at position 0");
  Runner runner(Target::kReference);
  const ReplayRecords none;
  EXPECT_DEATH(problem_.run(runner, {verify(1, 1)}, &none), "slots have room for 0");
}

TEST_F(KdaReplayDeathTest, RefusesSlotsPastTheRecords) {
  ReplayRecords records = problem_.records();
  records.num_slots = 2;  // the pool has grown past them
  EXPECT_DEATH(run(records), "records of slot 2 of 2");
}

TEST_F(KdaReplayDeathTest, RefusesRecordsWithoutAPlaceOrTooClose) {
  ReplayRecords records = problem_.records();
  records.slot_stride = 100;
  EXPECT_DEATH(run(records), "records 100 floats apart");
  records = problem_.records();
  records.beta_base = nullptr;
  EXPECT_DEATH(run(records), "room for 3 records without a place for them");
}

TEST_F(KdaReplayDeathTest, RefusesWritesThatLeaveTheOwnPageOut) {
  ReplayRow row = verify(1, 0);
  row.writes = {write_at(1, 0)};
  EXPECT_DEATH(run(row), "the last write of a row with records is of page 0, not of its own, 2");
}

#if defined(SLACKWATER_DCHECKS)
TEST_F(KdaReplayDeathTest, RefusesTwoRowsWithTheRecordsOfOneSlot) {
  Runner runner(Target::kReference);
  ReplayRow append = verify(1, 0);
  append.writes.clear();
  EXPECT_DEATH(problem_.run(runner, {append, append}), "slot 2 has the records of two rows");
  // At position 0 the page is not read, but its records are written.
  append.first_position = 0;
  ReplayRow other = verify(1, 0);
  other.page = 1;
  other.writes = {write_at(0, kOwn), write_at(1, 1)};
  EXPECT_DEATH(problem_.run(runner, {append, other}),
               "slot 2 has the records of one row and is written by another");
}
#endif

}  // namespace
}  // namespace slackwater::kernels::test
