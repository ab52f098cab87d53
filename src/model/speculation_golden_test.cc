// What the prediction block and the draft model propose, against golden values, and with the same
// bits however the sequence was run.

#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/speculation_test_support.h"
#include "testing/seed.h"

namespace slackwater::model {
namespace {

constexpr std::int32_t kMaxRecords = 4;
constexpr std::size_t kChained = 2;  // drafts of a chain after the first

// A model of the repository, loaded once for all tests of this file.
struct Loaded {
  explicit Loaded(const std::string& directory, kernels::Target target = kernels::best_target())
      : pool(1), context(pool, target), model(load_model(source_path(directory), context)) {}

  static Loaded& demo() {
    static Loaded loaded("models/demo");
    return loaded;
  }
  static Loaded& draft() {
    static Loaded loaded("models/demo-draft");
    return loaded;
  }

  ThreadPool pool;
  kernels::ExecutionContext context;
  Model model;
};

// A prompt, and the demo model's answer.
struct Case {
  std::string name;
  std::int64_t prompt_length = 0;
  std::vector<TokenId> tokens;  // prompt, then answer
  nlohmann::json golden;
};

std::vector<Case> golden_cases(const std::string& file = "demo.json") {
  std::ifstream answers(source_path("tests/golden/demo.json"));
  std::ifstream values(source_path("tests/golden/" + file));
  const nlohmann::json demo = nlohmann::json::parse(answers)["cases"];
  const nlohmann::json golden = nlohmann::json::parse(values)["cases"];
  std::vector<Case> cases;
  for (std::size_t i = 0; i < demo.size(); ++i) {
    Case& made = cases.emplace_back();
    made.name = golden[i]["name"].get<std::string>();
    EXPECT_EQ(made.name, demo[i]["name"].get<std::string>());
    made.tokens = demo[i]["prompt_tokens"].get<std::vector<TokenId>>();
    made.prompt_length = std::ssize(made.tokens);
    const auto answer = demo[i]["tokens"].get<std::vector<TokenId>>();
    made.tokens.insert(made.tokens.end(), answer.begin(), answer.end());
    made.golden = golden[i];
  }
  return cases;
}

// What the block guesses for a sequence, by the position of its rows.
struct Guesses {
  std::vector<std::vector<float>> logits;               // [positions]; none at 0
  std::vector<std::vector<std::vector<float>>> chains;  // [positions][kChained], where asked for
};

// How far a step of a sequence goes: its row, and how many leading tokens are its own.
struct Part {
  StepRow row;
  std::int64_t num_right = 0;
  bool runs_next = false;  // whether the block's rows include that of the next token
};

// Runs sequences, and the prediction block after each step.
class MtpWalk {
 public:
  MtpWalk(Loaded& loaded, std::vector<std::vector<TokenId>> sequences, std::uint64_t seed)
      : random_(seed),
        sequences_(std::move(sequences)),
        progress_(sequences_.size()),
        pages_(loaded.model.config(),
               {.sequences = static_cast<std::int32_t>(sequences_.size()),
                .length = longest(sequences_) + kMaxRecords,
                .tokens_per_block = 8,
                .seed = seed},
               kMaxRecords),
        runner_(loaded.model, loaded.context, pages_) {
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      progress_[s].guesses.logits.resize(sequences_[s].size());
      progress_[s].guesses.chains.resize(sequences_[s].size());
    }
  }

  // Everything in chunks of `count` tokens.
  void run_chunks(std::int64_t count) {
    while (!is_done()) {
      std::vector<Part> parts;
      for (std::size_t s = 0; s < sequences_.size(); ++s) {
        const std::int64_t left = std::ssize(sequences_[s]) - progress_[s].next();
        if (left > 0) parts.push_back(chunk(s, std::min(left, count)));
      }
      run(parts);
    }
  }

  // Chunks, verify rounds of all lengths, and commits.
  void run_rounds() {
    while (!is_done()) {
      std::vector<Part> parts;
      for (std::size_t s = 0; s < sequences_.size(); ++s) {
        const std::int64_t left = std::ssize(sequences_[s]) - progress_[s].next();
        if (left == 0 || below(5) == 0) continue;
        const std::int64_t kind = below(6);
        parts.push_back(kind == 0   ? chunk(s, 1 + below(std::min<std::int64_t>(left, 9)))
                        : kind == 1 ? commit(s)
                                    : round(s, left));
        parts.back().runs_next = below(2) == 0;
      }
      std::ranges::shuffle(parts, random_);
      run(parts);
    }
  }

  const Guesses& guesses(std::size_t s) const { return progress_[s].guesses; }

 private:
  struct Progress {
    std::int64_t page_position = 0;
    std::int32_t pending = 0;
    std::int64_t next_guess = 1;  // position of the block's next row
    Guesses guesses;

    std::int64_t next() const { return page_position + pending; }
  };

  static std::int64_t longest(const std::vector<std::vector<TokenId>>& sequences) {
    std::int64_t length = 0;
    for (const auto& tokens : sequences) length = std::max(length, std::ssize(tokens));
    return length;
  }
  bool is_done() const {
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      if (progress_[s].next() < std::ssize(sequences_[s])) return false;
    }
    return true;
  }
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }
  SlotId page(std::size_t s) const { return pages_.state_page(static_cast<std::int32_t>(s)); }

  Part begin(std::size_t s, std::int64_t num_right) const {
    Part part;
    part.row.sequence = static_cast<std::int32_t>(s);
    part.row.first_position = progress_[s].next();
    part.row.num_pending = progress_[s].pending;
    const auto own = sequences_[s].begin() + part.row.first_position;
    part.row.tokens.assign(own, own + num_right);
    part.num_right = num_right;
    return part;
  }
  Part chunk(std::size_t s, std::int64_t count) const {
    Part part = begin(s, count);
    part.row.writes = {{static_cast<std::int32_t>(count), page(s)}};
    part.runs_next = true;
    return part;
  }
  Part commit(std::size_t s) const {
    Part part = begin(s, 0);
    part.row.writes = {{0, page(s)}};
    return part;
  }
  Part round(std::size_t s, std::int64_t left) {
    const std::int64_t drafts = below(kMaxRecords + 1);
    Part part = begin(s, 1 + std::min(below(drafts + 1), left - 1));
    while (std::ssize(part.row.tokens) < 1 + drafts) part.row.tokens.push_back(3);
    part.row.writes = {{1, page(s)}};
    return part;
  }

  void run(const std::vector<Part>& parts) {
    std::vector<StepRow> rows;
    for (const Part& part : parts) rows.push_back(part.row);
    runner_.run(rows);
    guess(parts);
    for (const Part& part : parts) {
      Progress& progress = progress_[static_cast<std::size_t>(part.row.sequence)];
      const std::int32_t count = part.row.writes.back().count;
      progress.page_position = part.row.first_position + count;
      progress.pending = static_cast<std::int32_t>(part.num_right - count);
    }
  }

  // The block's rows up to the last token that is certain, each from the hidden state of the token
  // before it, wherever that lies; then a chain from its own output.
  void guess(const std::vector<Part>& parts) {
    std::vector<MtpRow> rows;
    std::int64_t first_token = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const StepRow& step = parts[i].row;
      MtpRow row = guess_row(parts[i], static_cast<std::int64_t>(i), first_token);
      first_token += std::ssize(step.tokens);
      if (!row.tokens.empty()) rows.push_back(std::move(row));
    }
    if (rows.empty()) return;
    const std::vector<std::vector<float>> outputs = runner_.run_mtp(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Progress& progress = progress_[static_cast<std::size_t>(rows[i].sequence)];
      for (std::int64_t t = 0; t < std::ssize(rows[i].tokens); ++t) {
        const std::span<const float> logits = row_of(outputs[i], t, runner_.vocabulary());
        progress.guesses.logits[static_cast<std::size_t>(rows[i].first_position + t)] = {
            logits.begin(), logits.end()};
      }
      progress.next_guess = rows[i].first_position + std::ssize(rows[i].tokens);
    }
    chain(rows, outputs);
  }

  MtpRow guess_row(const Part& part, std::int64_t index, std::int64_t first_token) {
    const StepRow& step = part.row;
    const auto s = static_cast<std::size_t>(step.sequence);
    const std::int64_t length = std::ssize(sequences_[s]);
    const std::int64_t end =
        std::min(step.first_position + part.num_right + (part.runs_next ? 1 : 0), length);
    MtpRow row;
    row.sequence = step.sequence;
    row.first_position = progress_[s].next_guess;
    for (std::int64_t p = row.first_position; p < end; ++p) {
      row.tokens.push_back(sequences_[s][static_cast<std::size_t>(p)]);
      const std::int64_t t = p - 1 - step.first_position;
      row.hidden.push_back(t < 0 ? runner_.forward().first_hidden() + index * runner_.hidden_size()
                                 : runner_.forward().hidden() +
                                       (first_token + t) * runner_.hidden_size());
    }
    return row;
  }

  // Further drafts of every row, all sequences at once: the block's output and its own draft take
  // the places of hidden state and token.
  void chain(std::vector<MtpRow> rows, std::vector<std::vector<float>> outputs) {
    for (std::size_t n = 0; n < kChained; ++n) {
      std::int64_t first_token = 0;
      std::vector<MtpRow> next;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::int64_t count = std::ssize(rows[i].tokens);
        first_token += count;
        MtpRow& row = next.emplace_back();
        row.sequence = rows[i].sequence;
        row.first_position = rows[i].first_position + count;
        row.tokens = {best_token(row_of(outputs[i], count - 1, runner_.vocabulary()))};
        row.hidden = {runner_.forward().mtp_hidden() + (first_token - 1) * runner_.hidden_size()};
      }
      rows = std::move(next);
      outputs = runner_.run_mtp(rows);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto at = static_cast<std::size_t>(rows[i].first_position) - 1 - n;
        auto& chains = progress_[static_cast<std::size_t>(rows[i].sequence)].guesses.chains[at];
        if (n == 0) chains.clear();
        chains.push_back(outputs[i]);
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<std::vector<TokenId>> sequences_;
  std::vector<Progress> progress_;
  SpeculationPages pages_;
  StepRunner runner_;
};

Guesses token_by_token(Loaded& loaded, const std::vector<TokenId>& tokens) {
  MtpWalk walk(loaded, {tokens}, 5);
  walk.run_chunks(1);
  return walk.guesses(0);
}

// The demo model's cases, each alone and token by token; the same for all tests.
const std::vector<Guesses>& alone_guesses() {
  static const std::vector<Guesses> guesses = [] {
    std::vector<Guesses> made;
    for (const Case& c : golden_cases()) made.push_back(token_by_token(Loaded::demo(), c.tokens));
    return made;
  }();
  return guesses;
}

// Whatever `got` has is what `want` has; returns how many chains were compared.
std::int64_t expect_same_guesses(const Guesses& got, const Guesses& want) {
  std::int64_t num_chains = 0;
  for (std::size_t p = 1; p < want.logits.size(); ++p) {
    EXPECT_TRUE(same_bits(got.logits[p], want.logits[p])) << "position " << p;
    for (std::size_t n = 0; n < got.chains[p].size(); ++n) {
      EXPECT_TRUE(same_bits(got.chains[p][n], want.chains[p][n]))
          << "draft " << n + 2 << " after position " << p;
      ++num_chains;
    }
  }
  return num_chains;
}

TEST(MtpGoldenSlow, DraftsAreTheGoldenOnes) {
  const std::vector<Case> cases = golden_cases();
  std::int64_t num_compared = 0;
  for (std::size_t n = 0; n < cases.size(); ++n) {
    const Case& c = cases[n];
    SCOPED_TRACE(c.name);
    const Guesses& guesses = alone_guesses()[n];
    std::int64_t hits = 0;
    const nlohmann::json& drafts = c.golden["mtp_drafts"];
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      // The row at position p guesses the token at p + 1.
      const std::size_t p = static_cast<std::size_t>(c.prompt_length) + i - 1;
      EXPECT_EQ(drafts[i].is_null(), p == 0) << "draft " << i;
      if (drafts[i].is_null()) continue;
      const TokenId guess = best_token(guesses.logits[p]);
      EXPECT_EQ(guess, drafts[i].get<TokenId>()) << "draft " << i;
      hits += guess == c.tokens[p + 1] ? 1 : 0;
      ++num_compared;
    }
    EXPECT_EQ(hits, c.golden["mtp_hits"].get<std::int64_t>());
  }
  EXPECT_EQ(num_compared, 423);
}

TEST(MtpGoldenSlow, DraftsAndChainsHaveTheSameBitsHoweverTheSequenceWasRun) {
  std::vector<std::vector<TokenId>> sequences;
  for (const Case& c : golden_cases()) sequences.push_back(c.tokens);
  const std::uint64_t seed = test_seed();
  std::int64_t num_chains = 0;
  for (int n = 0; n < 5; ++n) {
    SCOPED_TRACE(::testing::Message() << "walk " << n);
    MtpWalk walk(Loaded::demo(), sequences, seed + static_cast<std::uint64_t>(n));
    if (n < 2) {
      walk.run_chunks(n == 0 ? 12 : 7);
    } else {
      walk.run_rounds();
    }
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      SCOPED_TRACE(::testing::Message() << "sequence " << s);
      num_chains += expect_same_guesses(walk.guesses(s), alone_guesses()[s]);
    }
  }
  EXPECT_GT(num_chains, 1000);
}

TEST(MtpGoldenSlow, EveryTargetHasTheBitsOfTheReference) {
  const std::vector<TokenId> tokens = golden_cases()[3].tokens;
  Loaded reference("models/demo", kernels::Target::kReference);
  const Guesses want = token_by_token(reference, tokens);
  for (const kernels::Target target : kernels::runnable_targets()) {
    if (target == kernels::Target::kReference) continue;
    SCOPED_TRACE(kernels::to_string(target));
    Loaded fast("models/demo", target);
    MtpWalk walk(fast, {tokens}, 3);
    walk.run_rounds();
    expect_same_guesses(walk.guesses(0), want);
  }
}

// No golden values exist for second drafts: they must at least be right far more often than chance.
TEST(MtpGoldenSlow, SecondDraftsAreOftenRight) {
  std::int64_t hits = 0;
  std::int64_t total = 0;
  const std::vector<Case> cases = golden_cases();
  for (std::size_t n = 0; n < cases.size(); ++n) {
    const Case& c = cases[n];
    const Guesses& guesses = alone_guesses()[n];
    const auto length = static_cast<std::int64_t>(c.tokens.size());
    for (std::int64_t p = std::max<std::int64_t>(c.prompt_length - 1, 1); p + 2 < length; ++p) {
      const auto at = static_cast<std::size_t>(p);
      hits += best_token(guesses.chains[at][0]) == c.tokens[at + 2] ? 1 : 0;
      ++total;
    }
  }
  EXPECT_EQ(total, 413);
  EXPECT_GT(hits, 150);  // 177 when this was written
}

// A prompt of the demo model, whose first token has been run.
class MtpBlockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StepRow row = {.tokens = {2048, 77, 78}};
    row.writes = {{3, pages_.state_page(0)}};
    runner_.run({row});
  }
  MtpRow row_at(std::int64_t position) {
    const float* hidden = runner_.forward().hidden();
    return {.first_position = position,
            .tokens = {77, 78},
            .hidden = {hidden, hidden + runner_.hidden_size()}};
  }

  Loaded& loaded_ = Loaded::demo();
  SpeculationPages pages_{loaded_.model.config(), {.length = 16}, kMaxRecords};
  StepRunner runner_{loaded_.model, loaded_.context, pages_};
};

TEST_F(MtpBlockTest, LeavesTheHiddenStatesOfTheLayersAlone) {
  const float* hidden = runner_.forward().hidden();
  const std::vector<float> before(hidden, hidden + 3 * runner_.hidden_size());
  const std::vector<float> logits = runner_.run_mtp({row_at(1)})[0];
  EXPECT_TRUE(same_bits({runner_.forward().hidden(), before.size()}, before));
  EXPECT_TRUE(same_bits(runner_.run_mtp({row_at(1)})[0], logits)) << "again";
}

TEST_F(MtpBlockTest, GivesNothingForABatchWithoutTokens) {
  EXPECT_TRUE(runner_.run_mtp({}).empty());
  EXPECT_TRUE(runner_.run_mtp({{.first_position = 0, .tokens = {}, .hidden = {}}})[0].empty());
}

using MtpBlockDeathTest = MtpBlockTest;

TEST_F(MtpBlockDeathTest, RefusesRowsThatItCannotHave) {
  EXPECT_DEATH(runner_.run_mtp({row_at(0)}), "prediction block at position 0; its first is 1");
  MtpRow row = row_at(1);
  row.hidden.pop_back();
  EXPECT_DEATH(runner_.run_mtp({row}), "1 hidden states for 2 tokens");
  row.hidden.push_back(nullptr);
  EXPECT_DEATH(runner_.run_mtp({row}), "no hidden state for token 1");
}

// The rounds of a draft model that follows the demo model's answer.
class DraftRounds {
 public:
  static constexpr std::int64_t kDrafts = 4;

  DraftRounds(Loaded& loaded, const Case& c)
      : case_(c),
        decoded_(Decoded::of(loaded.model, loaded.context, c.tokens)),
        pages_(loaded.model.config(),
               {.length = std::ssize(c.tokens) + kDrafts, .tokens_per_block = 8}, kDrafts),
        runner_(loaded.model, loaded.context, pages_) {
    const StepRow prompt = {.tokens = {c.tokens.begin(), c.tokens.begin() + c.prompt_length},
                            .writes = {{static_cast<std::int32_t>(c.prompt_length), page()}}};
    runner_.run({prompt});
    page_position_ = c.prompt_length;
  }

  // Runs what was accepted last and the golden token at `position`, then a chain of drafts, of
  // which at most `most` are accepted. Returns the drafts.
  std::vector<TokenId> run(std::int64_t position, std::int64_t most) {
    const std::int64_t first = page_position_ + pending_;
    StepRow golden = {.first_position = first, .num_pending = pending_};
    golden.tokens.assign(case_.tokens.begin() + first, case_.tokens.begin() + position + 1);
    golden.writes = {{static_cast<std::int32_t>(golden.tokens.size()), page()}};
    EXPECT_LE(golden.tokens.size(), 2u) << "a whole chain was accepted, or not";
    std::vector<float> logits = runner_.run({golden})[0].logits;
    EXPECT_TRUE(same_bits(row_of(logits, position - first, runner_.vocabulary()), at(position)));
    EXPECT_TRUE(same_bits(pages_.slot(page()), decoded_.state[static_cast<std::size_t>(position)]));
    page_position_ = position + 1;
    pending_ = 0;

    std::vector<TokenId> drafts = {
        best_token(row_of(logits, position - first, runner_.vocabulary()))};
    bool is_right = true;  // all drafts so far
    for (std::int32_t n = 0; n + 1 < kDrafts; ++n) {
      const std::int64_t p = page_position_ + n;
      is_right = is_right && p < std::ssize(case_.tokens) && drafts.back() == token(p);
      const StepRow row = {.first_position = p, .tokens = {drafts.back()}, .num_pending = n};
      logits = runner_.run({row})[0].logits;
      if (is_right) {
        EXPECT_TRUE(same_bits(logits, at(p))) << "draft " << n;
      }
      drafts.push_back(best_token(logits));
    }
    accepted_ = 0;
    while (accepted_ < kDrafts && page_position_ + accepted_ < std::ssize(case_.tokens) &&
           drafts[static_cast<std::size_t>(accepted_)] == token(page_position_ + accepted_)) {
      ++accepted_;
    }
    const std::int64_t kept = std::min(accepted_, most);
    pending_ = static_cast<std::int32_t>(std::min(kept, kDrafts - 1));
    next_golden_ = page_position_ + kept;
    return drafts;
  }

  std::int64_t accepted() const { return accepted_; }        // drafts that were right
  std::int64_t next_golden() const { return next_golden_; }  // where the next round begins

 private:
  SlotId page() const { return pages_.state_page(0); }
  TokenId token(std::int64_t p) const { return case_.tokens[static_cast<std::size_t>(p)]; }
  const std::vector<float>& at(std::int64_t p) const {
    return decoded_.logits[static_cast<std::size_t>(p)];
  }

  const Case& case_;
  Decoded decoded_;
  SpeculationPages pages_;
  StepRunner runner_;
  std::int64_t page_position_ = 0;
  std::int32_t pending_ = 0;
  std::int64_t accepted_ = 0;
  std::int64_t next_golden_ = 0;
};

TEST(DraftGolden, ChainsOnReplayRecordsAreTheGoldenOnes) {
  std::int64_t num_chains = 0;
  std::int64_t num_whole = 0;
  for (const Case& c : golden_cases("demo_draft.json")) {
    SCOPED_TRACE(c.name);
    DraftRounds rounds(Loaded::draft(), c);
    std::int64_t position = c.prompt_length;
    for (const nlohmann::json& chain : c.golden["draft_chains"]) {
      const std::int64_t after = c.prompt_length + chain["after"].get<std::int64_t>();
      while (position < after) {
        rounds.run(position, after - position - 1);
        num_whole += rounds.next_golden() - position > DraftRounds::kDrafts ? 1 : 0;
        position = rounds.next_golden();
      }
      ASSERT_EQ(position, after);
      EXPECT_EQ(rounds.run(position, DraftRounds::kDrafts),
                chain["drafts"].get<std::vector<TokenId>>())
          << "after " << chain["after"];
      EXPECT_EQ(rounds.accepted(), chain["accepted"].get<std::int64_t>());
      num_whole += rounds.next_golden() - position > DraftRounds::kDrafts ? 1 : 0;
      position = rounds.next_golden();
      ++num_chains;
    }
  }
  EXPECT_EQ(num_chains, 53);
  EXPECT_GT(num_whole, 5) << "hardly a chain was accepted as a whole";
}

}  // namespace
}  // namespace slackwater::model
