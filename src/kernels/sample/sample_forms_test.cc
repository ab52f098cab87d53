// The fast forms against the reference, bit for bit, and rows against batches.

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include <sys/mman.h>
#include <unistd.h>

#include "kernels/sample/sample_test_support.h"
#include "slackwater/base/numeric.h"

namespace slackwater::kernels::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int32_t kVocabularies[] = {1, 3, 7, 15, 16, 17, 63, 64, 65, 500, 2064};

// Shapes of a row of logits. Each stresses other branches: ties, long and short prefixes, tokens
// far out of reach, magnitudes at which noise or temperature round away, or at which the last bit
// of a quotient decides.
enum class Shape {
  kNormal,
  kPeaked,
  kFlat,
  kTies,
  kWide,
  kHuge,
  kHugeNeighbours,
  kNeighbours,
  kTiny,
  kAscending
};
constexpr int kNumShapes = 10;

float draw_logit(Shape shape, Random& random, std::int32_t token) {
  switch (shape) {
    case Shape::kNormal: return random.value() + random.value();
    case Shape::kPeaked: return random.below(20) == 0 ? 9 + random.value() : random.value();
    case Shape::kFlat: return 0.5f;
    case Shape::kTies: return static_cast<float>(random.below(5)) * 0.5f - 1;
    case Shape::kWide: return 30 * random.value();
    case Shape::kHuge: return 1e9f * random.value();
    case Shape::kHugeNeighbours: return 1e9f + 64 * static_cast<float>(random.below(30));
    case Shape::kNeighbours: return 40.0f + 0x1p-18f * static_cast<float>(random.below(30));
    case Shape::kTiny: return 1e-38f * random.value();
    case Shape::kAscending: return 0.01f * static_cast<float>(token);
  }
  return 0;
}

template <class T>
T pick(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.below(static_cast<std::int32_t>(values.size()))];
}

SamplingParameters draw_parameters(Random& random, std::int32_t vocabulary) {
  SamplingParameters parameters;
  parameters.temperature =
      pick(random, {0.0f, 1.0f, 1.0f, 0.7f, 0.1f, 3.0f, 1e30f, kSmallestTemperature});
  parameters.top_k = pick(random, {0, 0, 1, 2, 5, 20, 700, vocabulary - 1, vocabulary, 100'000});
  parameters.top_p = pick(random, {1.0f, 1.0f, 0.9f, 0.5f, 0.999f, 1e-20f, 0.99999994f});
  parameters.min_p = pick(random, {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-9f});
  parameters.frequency_penalty = pick(random, {0.0f, 0.3f, -0.2f, 2.0f});
  parameters.presence_penalty = pick(random, {0.0f, 0.4f, -0.1f, 2.0f});
  parameters.seed = random.bits();
  return parameters;
}

// Distinct tokens, in no order.
std::vector<TokenId> draw_tokens(Random& random, std::int32_t vocabulary) {
  std::vector<TokenId> tokens = random.permutation(vocabulary);
  tokens.resize(static_cast<std::size_t>(random.below(std::min(vocabulary, 40) + 1)));
  return tokens;
}

Request draw_request(Random& random, std::int32_t vocabulary) {
  Request request = {.parameters = draw_parameters(random, vocabulary),
                     .position = static_cast<std::int64_t>(random.bits() >> random.below(60) >> 1),
                     .stream = random.below(4) == 0 ? 5u : kSamplingStream};
  const auto shape = static_cast<Shape>(random.below(kNumShapes));
  for (std::int32_t token = 0; token < vocabulary; ++token) {
    request.logits.push_back(draw_logit(shape, random, token));
  }
  if (random.below(3) == 0) {
    for (const TokenId token : draw_tokens(random, vocabulary)) {
      request.counts.push_back({.token = token, .count = 1 + random.below(9)});
    }
  }
  if (random.below(3) == 0) {
    for (const TokenId token : draw_tokens(random, vocabulary)) {
      const bool forbids = random.below(4) == 0;
      request.bias.push_back({.token = token, .bias = forbids ? -kInfinity : random.value()});
    }
  }
  if (random.below(3) == 0) {
    request.allowed.resize(static_cast<std::size_t>(ceil_div(vocabulary, 64)));
    const bool is_sparse = random.below(2) == 0;
    for (std::uint64_t& word : request.allowed) {
      word = is_sparse && random.below(3) != 0 ? 0 : random.bits();
      if (is_sparse) word &= random.bits() & random.bits();
    }
  }
  if (random.below(3) == 0) {
    request.num_top_logprobs =
        static_cast<std::size_t>(std::min(vocabulary, pick(random, {1, 5, 20, 600, vocabulary})));
  }
  request.wants_logprob = random.below(3) == 0;
  // Now and then a row that is refused.
  if (random.below(50) == 0) {
    request.logits[static_cast<std::size_t>(random.below(vocabulary))] =
        pick(random, {poison(), kInfinity, -kInfinity});
  }
  return request;
}

// Samples `num_requests` random rows of each vocabulary with every form.
void expect_forms_agree(Random& random, std::int32_t vocabulary, int num_requests) {
  Runner reference(Target::kReference);
  for (int i = 0; i < num_requests; ++i) {
    const Request request = draw_request(random, vocabulary);
    const Answer expected = sample_one(reference.context, request);
    for (const Target target : fast_targets()) {
      Runner runner(target);
      ASSERT_TRUE(equal_answers(sample_one(runner.context, request), expected))
          << to_string(target) << ", vocabulary " << vocabulary << ", after " << i
          << " operations: temperature " << request.parameters.temperature << ", top_k "
          << request.parameters.top_k << ", top_p " << request.parameters.top_p << ", min_p "
          << request.parameters.min_p;
    }
  }
}

TEST(SampleForms, EveryTargetEqualsTheReference) {
  Random random(80);
  for (const std::int32_t vocabulary : kVocabularies) {
    expect_forms_agree(random, vocabulary, vocabulary < 100 ? 200 : 60);
  }
}

// Every combination, not only those that chance picks.
TEST(SampleForms, EveryCombinationOfFiltersEqualsTheReference) {
  Random random(81);
  Runner reference(Target::kReference);
  for (const std::int32_t vocabulary : {17, 500}) {
    for (int combination = 0; combination < kNumShapes * 3 * 4 * 3 * 3; ++combination) {
      int rest = combination;
      const auto digit = [&](int base) {
        const int value = rest % base;
        rest /= base;
        return static_cast<std::size_t>(value);
      };
      const auto shape = static_cast<Shape>(digit(kNumShapes));
      const float temperatures[] = {1.0f, 0.3f, 2.0f};
      const std::int32_t top_ks[] = {0, 1, 13, 300};
      const float top_ps[] = {1.0f, 0.3f, 0.95f};
      const float min_ps[] = {0.0f, 0.02f, 0.7f};
      Request request = {.parameters = {.temperature = temperatures[digit(3)],
                                        .top_k = top_ks[digit(4)],
                                        .top_p = top_ps[digit(3)],
                                        .min_p = min_ps[digit(3)],
                                        .seed = random.bits()},
                         .position = combination};
      for (std::int32_t token = 0; token < vocabulary; ++token) {
        request.logits.push_back(draw_logit(shape, random, token));
      }
      const Answer expected = sample_one(reference.context, request);
      for (const Target target : fast_targets()) {
        Runner runner(target);
        ASSERT_TRUE(equal_answers(sample_one(runner.context, request), expected))
            << to_string(target) << ", combination " << combination << " of " << vocabulary;
      }
    }
  }
}

// Around 3e8 noise is less than half an ulp: the first of the highest quotients wins. Two logits
// whose quotients are one float often have different products with 1 / T, and the other way round.
TEST(SampleForms, TheTemperatureDivides) {
  Random random(88);
  int told_apart = 0;
  for (int i = 0; i < 200; ++i) {
    const float temperature = random.uniform(2.6f, 3.0f);
    Request request = {.parameters = {.temperature = temperature}, .position = i};
    std::vector<float> quotients;
    std::vector<float> products;
    for (int token = 0; token < 40; ++token) {
      request.logits.push_back(1e9f + 64 * static_cast<float>(random.below(30)));
      quotients.push_back(request.logits.back() / temperature);
      products.push_back(request.logits.back() * (1 / temperature));
    }
    const auto expected = std::max_element(quotients.begin(), quotients.end()) - quotients.begin();
    told_apart += expected != std::max_element(products.begin(), products.end()) - products.begin();
    for (const Target target : runnable_targets()) {
      Runner runner(target);
      Request filtered = request;
      filtered.parameters.top_k = 39;
      ASSERT_EQ(sample_one(runner.context, request).token(), expected) << to_string(target);
      ASSERT_EQ(sample_one(runner.context, filtered).token(), expected) << to_string(target);
    }
  }
  EXPECT_GT(told_apart, 5);
}

// Readable memory that ends exactly after `size` floats, and then none.
class RowBeforeUnmappedMemory {
 public:
  explicit RowBeforeUnmappedMemory(std::size_t size) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    bytes_ = round_up(size * sizeof(float), page) + page;
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    base_ = static_cast<std::byte*>(memory);
    EXPECT_EQ(::mprotect(base_ + bytes_ - page, page, PROT_NONE), 0);
    row_ = reinterpret_cast<float*>(base_ + bytes_ - page) - size;
  }
  ~RowBeforeUnmappedMemory() { ::munmap(base_, bytes_); }
  RowBeforeUnmappedMemory(const RowBeforeUnmappedMemory&) = delete;
  RowBeforeUnmappedMemory& operator=(const RowBeforeUnmappedMemory&) = delete;

  float* row() { return row_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  float* row_ = nullptr;
};

Result<SampleResult> sample_at(ExecutionContext& context, const Request& request,
                               const float* logits) {
  std::vector<TokenLogprob> room;
  SampleRow row = row_of(request, room);
  row.logits = logits;
  Result<SampleResult> result;
  sample(context, {.vocabulary = static_cast<std::int32_t>(request.logits.size()),
                   .rows = std::span(&row, 1),
                   .results = std::span(&result, 1)});
  return result;
}

TEST(SampleForms, ReadsNothingPastARowAndTakesAnyAlignment) {
  Random random(82);
  for (const std::int32_t vocabulary : kVocabularies) {
    RowBeforeUnmappedMemory guarded(static_cast<std::size_t>(vocabulary));
    for (int i = 0; i < 40; ++i) {
      Request request = draw_request(random, vocabulary);
      for (const Target target : runnable_targets()) {
        Runner runner(target);
        const Answer expected = sample_one(runner.context, request);
        std::copy(request.logits.begin(), request.logits.end(), guarded.row());
        const Answer at_the_end = {.result = sample_at(runner.context, request, guarded.row())};
        ASSERT_TRUE(equal_answers({.result = expected.result}, at_the_end));
        for (std::int64_t offset = 0; offset < 4; ++offset) {
          Floats padded(1, vocabulary, {.offset = offset, .tail = 64});
          std::copy(request.logits.begin(), request.logits.end(), padded.row(0));
          const Answer misaligned = {.result = sample_at(runner.context, request, padded.row(0))};
          ASSERT_TRUE(equal_answers({.result = expected.result}, misaligned));
          ASSERT_TRUE(padded.padding_is_intact());
        }
      }
    }
  }
}

TEST(SampleForms, LeftoversInTheScratchDoNotMatter) {
  Random random(83);
  for (const Target target : fast_targets()) {
    Runner runner(target);
    for (int i = 0; i < 200; ++i) {
      const Request request = draw_request(random, pick(random, {5, 64, 300}));
      Runner fresh(target);
      const Answer expected = sample_one(fresh.context, request);
      const std::span<std::byte> scratch = runner.context.scratch(0);
      if (!scratch.empty()) std::memset(scratch.data(), kPoisonByte, scratch.size());
      ASSERT_TRUE(equal_answers(sample_one(runner.context, request), expected));
    }
  }
}

TEST(SampleForms, HostileFloatingPointModeChangesNothingAndIsGivenBack) {
  Random random(84);
  for (const Target target : runnable_targets()) {
    for (const int num_threads : {1, 2}) {
      Runner runner(target, num_threads);
      std::vector<Request> requests;
      for (int i = 0; i < 150; ++i) requests.push_back(draw_request(random, 200));
      const std::vector<Answer> expected = sample_all(runner.context, requests);
      std::vector<Answer> answers;
      EXPECT_TRUE(run_in_hostile_mode([&] { answers = sample_all(runner.context, requests); }));
      for (std::size_t i = 0; i < requests.size(); ++i) {
        ASSERT_TRUE(equal_answers(answers[i], expected[i])) << to_string(target);
      }
    }
  }
}

// One batch in any order, on any number of threads: each row gives what it gives alone.
TEST(SampleThreads, ARowInABatchEqualsTheRowAlone) {
  Random random(85);
  for (const Target target : runnable_targets()) {
    std::vector<Request> requests;
    for (int i = 0; i < 60; ++i) requests.push_back(draw_request(random, 700));
    std::vector<Answer> alone;
    Runner single(target);
    for (const Request& request : requests) alone.push_back(sample_one(single.context, request));
    for (const int num_threads : {1, 2, 3}) {
      Runner runner(target, num_threads);
      for (int shuffle = 0; shuffle < 4; ++shuffle) {
        const std::vector<std::int32_t> order = random.permutation(60);
        std::vector<Request> batch;
        for (const std::int32_t i : order) batch.push_back(requests[static_cast<std::size_t>(i)]);
        const std::vector<Answer> answers = sample_all(runner.context, batch);
        for (std::size_t i = 0; i < order.size(); ++i) {
          ASSERT_TRUE(equal_answers(answers[i], alone[static_cast<std::size_t>(order[i])]))
              << to_string(target) << " with " << num_threads << " threads";
        }
      }
    }
  }
}

TEST(SampleSlow, EveryTargetEqualsTheReferenceOnManyRows) {
  Random random(86);
  for (int round = 0; round < 1700; ++round) {
    const std::int32_t vocabulary = 1 + random.below(round % 4 == 0 ? 2064 : 150);
    ASSERT_NO_FATAL_FAILURE(expect_forms_agree(random, vocabulary, 60)) << "round " << round;
  }
}

// A vocabulary of the size that models have: several bands, selections and whole-word masks.
TEST(SampleSlow, EveryTargetEqualsTheReferenceOnALargeVocabulary) {
  Random random(87);
  expect_forms_agree(random, 163'840, 40);
}

}  // namespace
}  // namespace slackwater::kernels::test
