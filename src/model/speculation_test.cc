// Replay records and hidden states through a whole forward pass: whatever a sequence went through,
// it has the bits of decoding token by token.

#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "model/speculation_test_support.h"
#include "testing/allocation_counter.h"
#include "testing/seed.h"

namespace slackwater::model {
namespace {

constexpr std::int32_t kMaxRecords = 4;

struct Loaded {
  explicit Loaded(const std::string& directory, int threads = 1,
                  kernels::Target target = kernels::best_target())
      : pool(threads), context(pool, target), model(load_model(source_path(directory), context)) {}

  ThreadPool pool;
  kernels::ExecutionContext context;
  Model model;
};

// One sequence on its way, and what it has to be equal to. Its page is at `page_position`, and the
// first `pending` records of its slot count.
struct Speculating {
  std::vector<TokenId> tokens;
  Decoded decoded;
  std::int64_t page_position = 0;
  std::int32_t pending = 0;

  std::int64_t next() const { return page_position + pending; }
  std::int64_t left() const { return std::ssize(tokens) - next(); }
};

// A step of one sequence: `num_right` leading tokens are its own, the others drafts that are wrong.
struct Action {
  StepRow row;
  std::int64_t num_right = 0;
};

// Sequences that take every kind of step there is, in batches, compared after each.
class SpeculationWalk {
 public:
  SpeculationWalk(Loaded& loaded, const std::vector<std::int64_t>& lengths, std::uint64_t seed)
      : random_(seed),
        vocabulary_(loaded.model.config().vocab_size),
        pages_(loaded.model.config(),
               {.sequences = static_cast<std::int32_t>(lengths.size()),
                .length = std::ranges::max(lengths) + kMaxRecords,
                .tokens_per_block = 8,
                .snapshots = static_cast<std::int32_t>(lengths.size()),
                .seed = seed},
               kMaxRecords),
        runner_(loaded.model, loaded.context, pages_) {
    for (const std::int64_t length : lengths) {
      std::vector<TokenId> tokens = random_tokens(loaded.model.config(), length, random_());
      Decoded decoded = Decoded::of(loaded.model, loaded.context, tokens);
      sequences_.push_back({std::move(tokens), std::move(decoded)});
    }
  }

  bool is_done() const {
    return std::ranges::all_of(sequences_, [](const Speculating& s) { return s.left() == 0; });
  }

  // One batch, in any order of rows, some sequences left out.
  void step() {
    std::vector<std::int32_t> order(sequences_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random_);
    std::vector<Action> actions;
    std::vector<StepRow> rows;
    for (const std::int32_t s : order) {
      if (below(4) == 0) continue;
      actions.push_back(choose(s));
      rows.push_back(actions.back().row);
    }
    const std::vector<RowOutput> outputs = runner_.run(rows);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      SCOPED_TRACE(::testing::Message()
                   << "sequence " << rows[i].sequence << " at position " << rows[i].first_position
                   << ", " << rows[i].tokens.size() << " tokens, " << rows[i].num_pending
                   << " pending, " << rows[i].writes.size() << " writes");
      expect_output(actions[i], outputs[i]);
      expect_written(actions[i]);
      advance(actions[i]);
    }
  }

 private:
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }
  Speculating& sequence_of(const StepRow& row) {
    return sequences_[static_cast<std::size_t>(row.sequence)];
  }

  // Appends `num_right` tokens of the sequence and `num_wrong` that are not.
  void add_tokens(Action& action, std::int64_t num_right, std::int64_t num_wrong) {
    const Speculating& sequence = sequence_of(action.row);
    const std::int64_t first = sequence.next() + std::ssize(action.row.tokens);
    const auto own = sequence.tokens.begin() + first;
    action.row.tokens.insert(action.row.tokens.end(), own, own + num_right);
    action.num_right += num_right;
    for (std::int64_t i = 0; i < num_wrong; ++i) {
      const bool has_own = first + num_right + i < std::ssize(sequence.tokens);
      const TokenId right = has_own ? *(own + num_right + i) : 0;
      action.row.tokens.push_back((right + 1) % vocabulary_);
    }
  }

  Action choose(std::int32_t s) {
    Action action;
    action.row.sequence = s;
    const Speculating& sequence = sequence_of(action.row);
    action.row.first_position = sequence.next();
    action.row.num_pending = sequence.pending;
    const std::int64_t kind = sequence.left() == 0 ? 0 : below(4);
    const SlotId page = pages_.state_page(s);
    if (kind == 0) {  // commit
      action.row.writes = {{0, page}};
    } else if (kind == 1) {  // part of a prompt, with a snapshot on the way
      add_tokens(action, 1 + below(std::min<std::int64_t>(sequence.left(), 20)), 0);
      const auto count = static_cast<std::int32_t>(action.num_right);
      const auto snapshot = static_cast<std::int32_t>(below(count + 1));
      action.row.writes = {{snapshot, pages_.snapshot_page(s)}, {count, page}};
    } else if (kind == 2) {  // a verify round
      const std::int64_t drafts = below(kMaxRecords + 1);
      const std::int64_t right = std::min(below(drafts + 1), sequence.left() - 1);
      add_tokens(action, 1 + right, drafts - right);
      action.row.writes = {{1, page}};
    } else {  // what a draft model runs ahead
      const std::int64_t room = kMaxRecords - sequence.pending;
      const std::int64_t drafts = below(room + 1);
      const std::int64_t right = std::min(below(drafts + 1), sequence.left());
      add_tokens(action, right, drafts - right);
    }
    return action;
  }

  void expect_output(const Action& action, const RowOutput& output) {
    const Speculating& sequence = sequence_of(action.row);
    const std::int64_t first = action.row.first_position;
    for (std::int64_t t = 0; t < action.num_right; ++t) {
      const auto p = static_cast<std::size_t>(first + t);
      EXPECT_TRUE(same_bits(row_of(output.logits, t, vocabulary_), sequence.decoded.logits[p]));
      EXPECT_TRUE(
          same_bits(row_of(output.hidden, t, runner_.hidden_size()), sequence.decoded.hidden[p]));
    }
    if (first == 0) return;
    EXPECT_TRUE(same_bits(output.first_hidden,
                          sequence.decoded.hidden[static_cast<std::size_t>(first - 1)]))
        << "hidden state of the token before";
  }

  // Every page that was written is that of its position, and so are the records.
  void expect_written(const Action& action) {
    const StepRow& row = action.row;
    const Decoded& decoded = sequence_of(row).decoded;
    for (const kernels::StateWrite& write : row.writes) {
      const std::int64_t end = row.first_position + write.count;
      if (end == 0) continue;
      const auto last = static_cast<std::size_t>(end - 1);
      EXPECT_TRUE(same_bits(pages_.slot(write.page), decoded.state[last])) << "page at " << end;
      EXPECT_TRUE(same_bits(pages_.hidden_of(write.page), decoded.hidden[last]))
          << "hidden state of the page at " << end;
    }
    const std::int64_t first_recorded = row.writes.empty() ? 0 : row.writes.back().count;
    std::int32_t record = row.writes.empty() ? row.num_pending : 0;
    for (std::int64_t t = first_recorded; t < action.num_right; ++t, ++record) {
      EXPECT_TRUE(same_bits(pages_.hidden_of(pages_.state_page(row.sequence), record),
                            decoded.hidden[static_cast<std::size_t>(row.first_position + t)]))
          << "hidden state of record " << record;
    }
  }

  // Drafts are accepted as far as they are right.
  void advance(const Action& action) {
    Speculating& sequence = sequence_of(action.row);
    if (action.row.writes.empty()) {
      sequence.pending += static_cast<std::int32_t>(action.num_right);
      return;
    }
    const std::int32_t count = action.row.writes.back().count;
    sequence.page_position = action.row.first_position + count;
    sequence.pending = static_cast<std::int32_t>(action.num_right - count);
  }

  std::mt19937_64 random_;
  TokenId vocabulary_;
  SpeculationPages pages_;
  StepRunner runner_;
  std::vector<Speculating> sequences_;
};

TEST(Speculation, AnyMixtureOfRoundsChunksAndCommitsEqualsTokenByTokenDecoding) {
  Loaded loaded("tests/golden/kl");
  const std::uint64_t seed = test_seed();
  for (std::uint64_t n = 0; n < 3; ++n) {
    SCOPED_TRACE(::testing::Message() << "walk " << n);
    SpeculationWalk walk(loaded, {60, 41, 70}, seed + n);
    for (int steps = 0; !walk.is_done(); ++steps) {
      SCOPED_TRACE(::testing::Message() << "after " << steps << " operations");
      ASSERT_LT(steps, 500) << "the walk does not come to an end";
      walk.step();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(SpeculationThreads, ThreadsAndTargetsGiveTheBitsOfTokenByTokenDecoding) {
  for (const kernels::Target target : kernels::runnable_targets()) {
    SCOPED_TRACE(kernels::to_string(target));
    Loaded loaded("tests/golden/kl", 2, target);
    SpeculationWalk walk(loaded, {20, 12}, 9);
    for (int steps = 0; !walk.is_done() && steps < 200; ++steps) walk.step();
    EXPECT_TRUE(walk.is_done());
  }
}

// The oracle of these tests is the pass without records and hidden states.
TEST(Speculation, KeepingHiddenStatesChangesNothing) {
  Loaded loaded("tests/golden/kl");
  const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), 40, 61);
  const Decoded decoded = Decoded::of(loaded.model, loaded.context, tokens);
  PoisonedPages pages(loaded.model.config(), {.length = 40});
  SequenceRunner runner(loaded.model, loaded.context, pages, {tokens});
  runner.run_alone(0, {40});
  for (std::int64_t p = 0; p < 40; ++p) {
    EXPECT_TRUE(same_bits(decoded.logits[static_cast<std::size_t>(p)],
                          row_of(runner.logits(0), p, loaded.model.config().vocab_size)));
  }
  EXPECT_TRUE(same_bits(decoded.state.back(), pages.slot(pages.state_page(0))));
}

TEST(Speculation, ABatchOfCommitsAloneHasNoTokens) {
  Loaded loaded("tests/golden/kl");
  const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), 9, 67);
  const Decoded decoded = Decoded::of(loaded.model, loaded.context, tokens);
  SpeculationPages pages(loaded.model.config(), {.length = 16}, kMaxRecords);
  StepRunner runner(loaded.model, loaded.context, pages);
  const SlotId page = pages.state_page(0);
  StepRow row = {.tokens = {tokens.begin(), tokens.begin() + 5}, .writes = {{5, page}}};
  runner.run({row});
  row = {.first_position = 5, .tokens = {tokens.begin() + 5, tokens.end()}, .writes = {{1, page}}};
  runner.run({row});
  // Two of three drafts count.
  runner.run({{.first_position = 8, .tokens = {}, .num_pending = 2, .writes = {{0, page}}}});
  EXPECT_TRUE(same_bits(pages.slot(page), decoded.state[7]));
  EXPECT_TRUE(same_bits(pages.hidden_of(page), decoded.hidden[7]));
  // Nothing pending: nothing changes.
  runner.run({{.first_position = 8, .tokens = {}, .writes = {{0, page}}}});
  EXPECT_TRUE(same_bits(pages.slot(page), decoded.state[7]));
  EXPECT_TRUE(same_bits(pages.hidden_of(page), decoded.hidden[7]));
}

TEST(Speculation, RowsWithoutTokensMayBeMoreThanTokens) {
  Loaded loaded("tests/golden/kl");
  SpeculationPages pages(loaded.model.config(), {.length = 16}, kMaxRecords);
  StepRunner runner(loaded.model, loaded.context, pages);
  const std::vector<RowOutput> first =
      runner.run({{.tokens = {1, 2}, .writes = {{2, pages.state_page(0)}}}});
  const std::vector<StepRow> idle(200, {.first_position = 2, .tokens = {}});
  const std::vector<RowOutput> outputs = runner.run(idle);
  for (const RowOutput& output : outputs) {
    EXPECT_TRUE(same_bits(output.first_hidden, row_of(first[0].hidden, 1, runner.hidden_size())));
  }
}

TEST(Speculation, RoundsAllocateNothingAfterTheFirstLargestOnes) {
  if (kernels::best_target() == kernels::Target::kReference) {
    GTEST_SKIP() << "the reference allocates; it is read, not run fast";
  }
  Loaded loaded("models/demo", 2);
  const ModelConfig& config = loaded.model.config();
  const std::vector<TokenId> tokens = random_tokens(config, 8, 71);
  SpeculationPages pages(config, {.length = 64}, kMaxRecords);
  ForwardPass forward(loaded.model, loaded.context, {.max_tokens = 8, .max_logits = 1});
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  const SlotId page = pages.state_page(0);
  const auto round = [&](std::int64_t position, std::int32_t count, std::int32_t pending) {
    const kernels::StateWrite write = {pending == 0 && position == 0 ? count : 1, page};
    kernels::SequenceRow row;
    row.num_tokens = count;
    row.first_position = position;
    row.block_table = pages.table(0);
    row.state_page = page;
    row.writes = std::span(&write, 1);
    row.num_pending = pending;
    const std::int32_t last = count - 1;
    ForwardBatch batch;
    batch.token_ids = std::span(tokens).first(static_cast<std::size_t>(count));
    batch.rows = std::span(&row, 1);
    batch.latent_pages = pages.latent();
    batch.recurrent_pages = pages.recurrent();
    batch.logit_tokens = std::span(&last, 1);
    batch.records = pages.records();
    batch.hidden_pages = pages.hidden_pages();
    forward.run(batch, logits);
    std::array<const float*, 8> hidden = {};
    hidden[0] = position > 0 ? forward.first_hidden() : forward.hidden();
    for (std::int32_t t = 1; t < count; ++t) {
      hidden[static_cast<std::size_t>(t)] = forward.hidden() + (t - 1) * config.hidden_size;
    }
    row.first_position = std::max<std::int64_t>(position, 1);
    MtpBatch mtp;
    mtp.token_ids = batch.token_ids;
    mtp.hidden = std::span(hidden).first(static_cast<std::size_t>(count));
    mtp.rows = batch.rows;
    mtp.latent_pages = pages.mtp_latent();
    mtp.logit_tokens = batch.logit_tokens;
    forward.run_mtp(mtp, logits);
  };
  round(0, 8, 0);
  const std::int64_t before = num_heap_allocations();
  round(8, 5, 0);
  round(12, 4, 3);
  round(13, 1, 0);
  EXPECT_EQ(num_heap_allocations(), before);
}

class SpeculationDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    row_.num_tokens = 1;
    row_.first_position = 3;
    row_.block_table = pages_.table(0);
    row_.state_page = pages_.state_page(0);
    batch_.token_ids = tokens_;
    batch_.rows = std::span(&row_, 1);
    batch_.latent_pages = pages_.latent();
    batch_.recurrent_pages = pages_.recurrent();
    batch_.records = pages_.records();
    batch_.hidden_pages = pages_.hidden_pages();
  }

  Loaded loaded_{"tests/golden/kl"};
  SpeculationPages pages_{loaded_.model.config(), {.length = 16}, kMaxRecords};
  ForwardPass forward_{loaded_.model, loaded_.context, {.max_tokens = 8, .max_logits = 1}};
  std::vector<TokenId> tokens_ = {7};
  kernels::SequenceRow row_;
  ForwardBatch batch_;
};

TEST_F(SpeculationDeathTest, RefusesPendingRecordsWithoutTheirHiddenStates) {
  row_.num_pending = 2;
  batch_.hidden_pages.record_base = nullptr;
  EXPECT_DEATH(forward_.run(batch_, {}), "2 pending records at position 3 without their hidden");
  batch_.hidden_pages = pages_.hidden_pages();
  batch_.hidden_pages.page_base = nullptr;
  EXPECT_DEATH(forward_.run(batch_, {}), "no place for those of pages");
}

TEST_F(SpeculationDeathTest, RefusesHiddenStatesThatOverlap) {
  batch_.hidden_pages.page_stride = 127;
  EXPECT_DEATH(forward_.run(batch_, {}), "hidden states 127 floats apart have 128");
  batch_.hidden_pages = pages_.hidden_pages();
  batch_.hidden_pages.record_stride = 511;
  EXPECT_DEATH(forward_.run(batch_, {}), "records 511 floats apart, those of a slot have 512");
}

TEST_F(SpeculationDeathTest, RefusesRecordsOfAnotherNumberOfLayers) {
  batch_.records = batch_.records.first(1);
  EXPECT_DEATH(forward_.run(batch_, {}), "records of 1 layers for a model of");
}

TEST_F(SpeculationDeathTest, RefusesAPredictionBlockThatIsNotThere) {
  MtpBatch batch;
  EXPECT_DEATH(forward_.run_mtp(batch, {}), "has no multi-token-prediction block");
}

}  // namespace
}  // namespace slackwater::model
