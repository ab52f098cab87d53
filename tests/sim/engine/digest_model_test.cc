#include "testing/digest_model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "digest_pages.h"
#include "slackwater/base/thread_pool.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/kernels/kda.h"

namespace slackwater {
namespace {

using Logits = std::vector<float>;

constexpr DigestModelOptions kOptions = {.has_mtp = true};

TokenId best(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

Tokens some_tokens(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Tokens tokens;
  while (std::ssize(tokens) < count) {
    tokens.push_back(static_cast<TokenId>(random() % DigestModel::kVocabulary));
  }
  return tokens;
}

Tokens part(const Tokens& tokens, std::int64_t first, std::int64_t count) {
  return {tokens.begin() + first, tokens.begin() + first + count};
}

// A model with pages of its own.
struct Digests {
  explicit Digests(const DigestModelOptions& options = kOptions, std::int32_t sequences = 1)
      : model(options), pages(model.config(), sequences) {
    model.reserve({.max_tokens = 96, .max_logits = 96});
  }
  // Tokens [first, first + count) into the page, as context.
  std::vector<Logits> context(const Tokens& tokens, std::int64_t first, std::int64_t count,
                              std::int32_t pending = 0) {
    return run_rows(model, pages,
                    {{0,
                      first,
                      part(tokens, first, count),
                      pending,
                      {{static_cast<std::int32_t>(count), SlotId(0)}}}});
  }
  // A golden token into the page, the others as records.
  std::vector<Logits> round(const Tokens& tokens, std::int64_t first, std::int64_t count,
                            std::int32_t pending) {
    return run_rows(model, pages,
                    {{0, first, part(tokens, first, count), pending, {{1, SlotId(0)}}}});
  }
  DigestModel model;
  DigestPages pages;
};

TEST(DigestModel, SaysTheSameHoweverAPromptIsCut) {
  const Tokens tokens = some_tokens(60, 1);
  Digests whole;
  const std::vector<Logits> expected = whole.context(tokens, 0, 60);
  for (const std::int64_t chunk : {1, 2, 7, 31, 33}) {
    Digests cut;
    for (std::int64_t done = 0; done < 60; done += chunk) {
      const std::int64_t count = std::min<std::int64_t>(chunk, 60 - done);
      const std::vector<Logits> said = cut.context(tokens, done, count);
      for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(said[i], expected[done + i]);
    }
    EXPECT_EQ(cut.pages.page(SlotId(0)), whole.pages.page(SlotId(0)));
    EXPECT_EQ(cut.pages.latent().size(), whole.pages.latent().size());
    EXPECT_EQ(std::memcmp(cut.pages.latent().data(), whole.pages.latent().data(),
                          whole.pages.latent().size() * 4),
              0);
    EXPECT_EQ(cut.model.num_wrong(), 0) << cut.model.first_wrong();
  }
}

// Of every round some drafts are kept, and the next one begins after them.
TEST(DigestModel, SaysInRoundsWhatItSaysTokenByToken) {
  const Tokens tokens = some_tokens(80, 2);
  Digests whole;
  const std::vector<Logits> expected = whole.context(tokens, 0, 80);
  Digests rounds;
  std::int64_t done = 5;
  rounds.context(tokens, 0, done);
  std::mt19937_64 random(3);
  std::int32_t pending = 0;
  while (done < 70) {
    const auto drafts = static_cast<std::int64_t>(random() % 4);
    Tokens run = part(tokens, done, 1 + drafts);
    const auto kept = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(drafts + 1));
    for (std::int64_t wrong = 1 + kept; wrong <= drafts; ++wrong) run[wrong] = 63 - run[wrong];
    const std::vector<Logits> said =
        run_rows(rounds.model, rounds.pages, {{0, done, run, pending, {{1, SlotId(0)}}}});
    for (std::int64_t i = 0; i <= kept; ++i) EXPECT_EQ(said[i], expected[done + i]);
    pending = static_cast<std::int32_t>(kept);
    done += 1 + kept;
  }
  EXPECT_EQ(rounds.model.num_wrong(), 0) << rounds.model.first_wrong();
}

// A draft model leaves its page alone, and goes on from the records.
TEST(DigestModel, GoesOnFromRecordsWithoutAWrite) {
  const Tokens tokens = some_tokens(40, 4);
  Digests whole;
  const std::vector<Logits> expected = whole.context(tokens, 0, 40);
  Digests drafts;
  drafts.context(tokens, 0, 20);
  drafts.round(tokens, 20, 1, 0);
  for (std::int32_t i = 0; i < 3; ++i) {
    const std::vector<Logits> said =
        run_rows(drafts.model, drafts.pages, {{0, 21 + i, {tokens[21 + i]}, i, {}}});
    EXPECT_EQ(said[0], expected[21 + i]);
  }
  EXPECT_EQ(drafts.round(tokens, 23, 2, 2)[1], expected[24]);
  EXPECT_EQ(drafts.model.num_wrong(), 0) << drafts.model.first_wrong();
}

// The page that the kernel makes of the records is the one that a row without tokens makes.
TEST(DigestModel, LeavesRecordsThatTheKernelFoldsIn) {
  ThreadPool pool(1);
  kernels::ExecutionContext context(pool);
  for (const std::int64_t first : {1, 2, 20, 31, 32, 50}) {
    const Tokens tokens = some_tokens(60, 5);
    Digests own;
    Digests folded;
    for (Digests* digests : {&own, &folded}) {
      digests->context(tokens, 0, first);
      digests->round(tokens, first, 4, 0);
    }
    const std::int32_t kept = 1 + static_cast<std::int32_t>(first % 3);
    const std::int64_t end = first + 1 + kept;
    run_rows(own.model, own.pages, {{0, end, {}, kept, {{0, SlotId(0)}}}});
    const kernels::StateWrite write = {0, SlotId(0)};
    kernels::SequenceRow row;
    row.first_position = end;
    row.num_pending = kept;
    row.state_page = SlotId(0);
    row.writes = std::span(&write, 1);
    for (std::size_t layer = 0; layer < folded.pages.records().size(); ++layer) {
      kernels::KdaStepArgs args;
      args.num_heads = 1;
      args.head_dim = 32;
      args.qkv_stride = args.decay_stride = args.o_stride = 32;
      args.beta_stride = 1;
      args.pages = folded.pages.recurrent_pages()[layer];
      args.records = folded.pages.records()[layer];
      args.rows = std::span(&row, 1);
      kernels::kda_step(context, args);
    }
    EXPECT_EQ(folded.pages.page(SlotId(0)), own.pages.page(SlotId(0))) << first;
    EXPECT_EQ(folded.round(tokens, end, 2, 0), own.round(tokens, end, 2, 0));
    EXPECT_EQ(folded.model.num_wrong(), 0) << folded.model.first_wrong();
  }
}

TEST(DigestModel, WritesASnapshotThatAnotherGoesOnFrom) {
  const Tokens tokens = some_tokens(50, 6);
  Digests first({.has_mtp = true}, 2);
  run_rows(first.model, first.pages,
           {{0, 0, part(tokens, 0, 40), 0, {{17, SlotId(1)}, {40, SlotId(0)}}}});
  Digests second;
  second.context(tokens, 0, 17);
  EXPECT_EQ(first.pages.page(SlotId(1)), second.pages.page(SlotId(0)));
}

// Flips each byte of what a round reads, and of all the rest: the first changes what is said, the
// second does not.
class FlippedBytes {
 public:
  FlippedBytes() {
    digests_.context(tokens_, 0, 40);
    digests_.round(tokens_, 40, 4, 0);
    latent_ = digests_.pages.latent();
    recurrent_ = digests_.pages.recurrent();
    hidden_ = digests_.pages.hidden();
    expected_ = run();
  }
  // Whether a flip of this byte of a buffer is noticed; with all bits of it.
  bool changes(std::vector<float>& values, std::size_t byte) {
    restore();
    reinterpret_cast<std::uint8_t*>(values.data())[byte] ^= 0x10;
    return run() != expected_;
  }
  DigestPages& pages() { return digests_.pages; }
  Digests& digests() { return digests_; }
  // Two of three records are pending, and a golden token and a draft follow.
  std::vector<Logits> run() { return digests_.round(tokens_, 43, 2, 2); }
  void restore() {
    digests_.pages.latent() = latent_;
    digests_.pages.recurrent() = recurrent_;
    digests_.pages.hidden() = hidden_;
  }

 private:
  Tokens tokens_ = some_tokens(50, 7);
  Digests digests_;
  std::vector<float> latent_, recurrent_, hidden_;
  std::vector<Logits> expected_;
};

TEST(DigestModel, NoticesEveryByteOfStateWindowAndPendingRecords) {
  FlippedBytes flipped;
  const std::vector<kernels::ReplayRecords> records(flipped.pages().records().begin(),
                                                    flipped.pages().records().end());
  const float* const base = flipped.pages().recurrent().data();
  const auto is_read = [&](std::size_t byte) {
    const auto at = static_cast<std::int64_t>(byte / 4);
    if (at >= records[0].slot_stride) return false;  // the slot for snapshots
    for (std::size_t layer = 0; layer < records.size(); ++layer) {
      const auto within = [at, base](const float* first, std::int64_t floats) {
        return first - base <= at && at < first - base + floats;
      };
      const kernels::RecurrentPages& page = flipped.pages().recurrent_pages()[layer];
      if (within(page.state_base, 32 * 32) || within(page.window_base, 9 * 32)) return true;
      for (const float* conv : records[layer].conv_base) {
        if (within(conv, (3 + 2) * 32)) return true;
      }
      if (within(records[layer].qkg_base, 2 * 3 * 32)) return true;
      if (within(records[layer].v_base, 2 * 32)) return true;
      for (const std::int64_t r : {0, 1}) {
        if (within(records[layer].beta_base + r * 4, 1)) return true;
      }
    }
    return false;
  };
  std::int64_t num_read = 0;
  for (std::size_t byte = 0; byte < flipped.pages().recurrent().size() * 4; ++byte) {
    ASSERT_EQ(flipped.changes(flipped.pages().recurrent(), byte), is_read(byte)) << byte;
    num_read += is_read(byte) ? 1 : 0;
  }
  EXPECT_EQ(num_read, 2 * 4 * (32 * 32 + 9 * 32 + 3 * 5 * 32 + 2 * 3 * 32 + 2 * 32 + 2));
}

TEST(DigestModel, NoticesEveryByteOfTheLatentRowsBeforeAToken) {
  FlippedBytes flipped;
  std::int64_t noticed = 0;
  for (std::size_t byte = 0; byte < flipped.pages().latent().size() * 4; ++byte) {
    noticed += flipped.changes(flipped.pages().latent(), byte) ? 1 : 0;
  }
  // 43 tokens before the round, two layers of 32 bytes a token.
  EXPECT_EQ(noticed, 43 * 2 * 32);
}

TEST(DigestModel, SaysNoiseForeverOnceSomethingWasWrong) {
  const Tokens tokens = some_tokens(60, 8);
  Digests right;
  Digests wrong;
  right.context(tokens, 0, 30);
  wrong.context(tokens, 0, 30);
  wrong.pages.recurrent()[5] += 1;
  std::int64_t same = 0;
  for (std::int64_t at = 30; at < 60; ++at) {
    const Logits expected = right.context(tokens, at, 1)[0];
    const Logits said = wrong.context(tokens, at, 1)[0];
    same += best(expected) == best(said) ? 1 : 0;
  }
  EXPECT_LE(same, 4);
  // Counted once: what follows is known to be spoiled.
  EXPECT_EQ(wrong.model.num_wrong(), 1);
  EXPECT_EQ(wrong.model.first_wrong(),
            "the state at position 0 of a row of 1 tokens from 30, 0 pending, slot 0");
  // Computed again it is as good as new.
  wrong.context(tokens, 0, 50);
  EXPECT_EQ(wrong.context(tokens, 50, 1)[0], right.context(tokens, 0, 51)[50]);
}

TEST(DigestModel, ReadsAHiddenStateBeforeItIsOverwritten) {
  const Tokens tokens = some_tokens(60, 9);
  Digests digests;
  digests.context(tokens, 0, 30);
  const auto row = [&](const float* hidden) {
    return std::vector<float>(hidden, hidden + DigestModel::kHiddenSize);
  };
  const std::vector<float> last = row(digests.model.hidden() + 29 * DigestModel::kHiddenSize);
  digests.round(tokens, 30, 4, 0);
  EXPECT_EQ(std::memcmp(digests.model.first_hidden(), last.data(), last.size() * 4), 0);
  const std::vector<float> second = row(digests.model.hidden() + 2 * DigestModel::kHiddenSize);
  digests.round(tokens, 33, 2, 2);
  EXPECT_EQ(std::memcmp(digests.model.first_hidden(), second.data(), second.size() * 4), 0);
}

// What the prediction block guesses after each token of `tokens` from `first` on.
std::vector<Logits> guesses(Digests& digests, const Tokens& tokens, std::int64_t first,
                            const std::vector<const float*>& hidden) {
  kernels::SequenceRow row;
  row.num_tokens = static_cast<std::int32_t>(hidden.size());
  row.first_position = first;
  row.block_table = digests.pages.blocks(0);
  const Tokens run = part(tokens, first, row.num_tokens);
  std::vector<std::int32_t> wanted(run.size());
  std::iota(wanted.begin(), wanted.end(), 0);
  model::MtpBatch batch;
  batch.token_ids = run;
  batch.hidden = hidden;
  batch.rows = std::span(&row, 1);
  batch.latent_pages = digests.pages.mtp_pages();
  batch.logit_tokens = wanted;
  std::vector<float> logits(run.size() * DigestModel::kVocabulary);
  digests.model.run_mtp(batch, logits);
  std::vector<Logits> all;
  for (std::size_t i = 0; i < run.size(); ++i) {
    const auto at = logits.begin() + static_cast<std::ptrdiff_t>(i * DigestModel::kVocabulary);
    all.emplace_back(at, at + DigestModel::kVocabulary);
  }
  return all;
}

// The text that a model writes after a prompt.
Tokens written(Digests& digests, Tokens tokens, std::int64_t length) {
  TokenId next = best(digests.context(tokens, 0, std::ssize(tokens)).back());
  while (std::ssize(tokens) < length) {
    tokens.push_back(next);
    next = best(digests.context(tokens, std::ssize(tokens) - 1, 1)[0]);
  }
  return tokens;
}

TEST(DigestModel, GuessesMostOfWhatItsLayersSay) {
  std::int64_t right = 0;
  std::int64_t second_right = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Digests digests;
    const Tokens tokens = written(digests, some_tokens(4, seed), 60);
    digests.context(tokens, 0, 60);
    std::vector<const float*> hidden;
    for (std::int64_t at = 0; at < 57; ++at) {
      hidden.push_back(digests.model.hidden() + at * DigestModel::kHiddenSize);
    }
    const std::vector<Logits> all = guesses(digests, tokens, 1, hidden);
    for (std::int64_t at = 1; at < 58; ++at) right += best(all[at - 1]) == tokens[at + 1] ? 1 : 0;
    // A second draft, from the block's own output.
    const Logits second = guesses(digests, tokens, 58,
                                  {digests.model.mtp_hidden() + 56 * DigestModel::kHiddenSize})[0];
    second_right += best(second) == tokens[59] ? 1 : 0;
    EXPECT_EQ(digests.model.num_wrong_mtp(), 0);
    // Now as the layers have it: the row of the draft is written again.
    guesses(digests, tokens, 58, {digests.model.hidden() + 57 * DigestModel::kHiddenSize});
    guesses(digests, tokens, 59, {digests.model.hidden() + 58 * DigestModel::kHiddenSize});
    EXPECT_EQ(digests.model.num_wrong_mtp(), 0);
  }
  EXPECT_GE(right, 570 * 6 / 10);
  EXPECT_LE(right, 570 * 9 / 10);
  EXPECT_GE(second_right, 4);
}

TEST(DigestModel, GuessesWorseFromARowThatIsWrongOrStale) {
  const Tokens tokens = some_tokens(60, 11);
  for (const int what : {0, 1, 2}) {
    Digests right;
    Digests wrong;
    std::vector<std::vector<Logits>> said;
    for (Digests* digests : {&right, &wrong}) {
      digests->context(tokens, 0, 40);
      std::vector<const float*> hidden;
      for (std::int64_t at = 0; at < 38; ++at) {
        hidden.push_back(digests->model.hidden() + at * DigestModel::kHiddenSize);
      }
      guesses(*digests, tokens, 1, hidden);
      if (digests == &wrong && what == 0) {
        // A row of the block that nobody wrote.
        const kernels::LatentPages& pages = digests->pages.mtp_pages();
        std::memset(pages.base + digests->pages.blocks(0)[1].value() * pages.slot_stride, 0xFF, 4);
      }
      if (digests == &wrong && what == 1) {
        // One that a draft left.
        guesses(*digests, tokens, 38,
                {digests->model.mtp_hidden() + 36 * DigestModel::kHiddenSize});
        guesses(*digests, tokens, 39, {digests->model.hidden() + 38 * DigestModel::kHiddenSize});
      }
      std::vector<float> last(digests->model.hidden() + 38 * DigestModel::kHiddenSize,
                              digests->model.hidden() + 39 * DigestModel::kHiddenSize);
      if (digests == &wrong && what == 2) last[7] = 3;
      if (what != 1) {
        guesses(*digests, tokens, 38, {digests->model.hidden() + 37 * DigestModel::kHiddenSize});
      }
      said.push_back(guesses(*digests, tokens, 39, {last.data()}));
      // The layers do not care.
      said.push_back(digests->context(tokens, 40, 1));
    }
    EXPECT_EQ(right.model.num_wrong_mtp(), 0);
    EXPECT_GT(wrong.model.num_wrong_mtp(), 0) << what;
    EXPECT_NE(said[0], said[2]) << what;
    EXPECT_EQ(said[1], said[3]) << what;
    EXPECT_EQ(wrong.model.num_wrong(), 0);
  }
}

TEST(DigestModel, WritesTextThatADraftModelAndALookBackCanGuess) {
  std::int64_t draft_right = 0;
  std::int64_t back_right = 0;
  std::int64_t guessed = 0;
  std::int64_t ended = 0;
  std::int64_t asked = 0;
  const auto is_end = [](TokenId token) {
    return token == DigestModel::kEos || token == DigestModel::kSecondEos;
  };
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Digests target;
    Digests draft({.weights = 2, .num_kda_layers = 1, .num_mla_layers = 1});
    const Tokens tokens = written(target, some_tokens(6, seed), 90);
    const std::vector<Logits> drafts = draft.context(tokens, 0, 90);
    for (std::int64_t at = 6; at < 90; ++at) {
      ++asked;
      draft_right += best(drafts[at - 1]) == tokens[at] ? 1 : 0;
      for (std::int64_t back = at - 3; back > 0; --back) {
        if (tokens[back - 1] != tokens[at - 2] || tokens[back] != tokens[at - 1]) continue;
        ++guessed;
        back_right += tokens[back + 1] == tokens[at] ? 1 : 0;
        break;
      }
    }
    ended += std::any_of(tokens.begin() + 6, tokens.end(), is_end) ? 1 : 0;
  }
  EXPECT_GE(draft_right, asked * 6 / 10);
  EXPECT_LE(draft_right, asked * 9 / 10);
  EXPECT_GE(guessed, asked / 4);
  EXPECT_GE(back_right, guessed / 2);
  EXPECT_GE(ended, 5);
  EXPECT_LE(ended, 35);
}

TEST(DigestModel, IsToldFromAnotherByItsDigest) {
  const Digest128 own = DigestModel(kOptions).digest();
  EXPECT_EQ(DigestModel(kOptions).digest(), own);
  EXPECT_NE(DigestModel({.weights = 2, .has_mtp = true}).digest(), own);
  EXPECT_NE(DigestModel({.language = 2, .has_mtp = true}).digest(), own);
}

}  // namespace
}  // namespace slackwater
