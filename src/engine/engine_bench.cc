// What an engine costs beside its model, and what its loops, its drafters and its way to make room
// are worth. Ratios are medians of pairs that are taken in turns, within one run.
//
//   bookkeeping   host time of a step: planning, slots, queueing, outcomes; the model does nothing
//   share         host time over all time of 32 requests of the demo model; instructions are
//                 counted with callgrind: Executor::step over everything
//   overlap       tokens a second of the overlapped loop over those of the plain one
//   speculation   tokens a second with a drafter over those without, and the acceptance
//   pressure      lost time: of a run in which device memory holds a quarter of the requests, which
//                 take turns, over one in which it holds all; ours gives up states, and theirs what
//                 it has computed.
//
// With SLACKWATER_FULL set, seven pairs and all of `pressure`; else one pair and short prompts.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "slackwater/base/thread_pool.h"
#include "slackwater/device/cpu_device.h"
#include "slackwater/engine/engine.h"
#include "slackwater/model/generate.h"

namespace slackwater::engine {
namespace {

struct OverlapWorkload {
  const char* name;
  DrafterKind drafter;
  int num_threads;
  double host_load;  // of somebody else's work on the host, in steps
};
constexpr OverlapWorkload kOverlapWorkloads[] = {
    {"none", DrafterKind::kNone, 2, 0},
    {"mtp", DrafterKind::kMtp, 2, 0},
    {"none/host_load", DrafterKind::kNone, 1, .5},
    {"mtp/host_load", DrafterKind::kMtp, 1, .5},
};

constexpr DrafterKind kShareWorkloads[] = {DrafterKind::kNone, DrafterKind::kMtp};

struct SpeculationWorkload {
  const char* name;
  DrafterKind drafter;
  bool is_repetitive;  // the prompts
};
constexpr SpeculationWorkload kSpeculationWorkloads[] = {
    {"mtp", DrafterKind::kMtp, false},
    {"ngram/repetitive", DrafterKind::kNgram, true},
    {"model", DrafterKind::kDraftModel, false},
};

struct BookkeepingWorkload {
  const char* name;
  std::int32_t num_requests, max_batch_size;
  LoopKind loop;
  DrafterKind drafter;
};
constexpr BookkeepingWorkload kBookkeepingWorkloads[] = {
    {"1000/plain", 1000, 1000, LoopKind::kPlain, DrafterKind::kNone},
    {"1000/ngram", 1000, 1000, LoopKind::kPlain, DrafterKind::kNgram},
    {"1000_batch_of_64/plain", 1000, 64, LoopKind::kPlain, DrafterKind::kNone},
    {"1000/overlap", 1000, 1000, LoopKind::kOverlap, DrafterKind::kNone},
};

struct PressureWorkload {
  std::int32_t num_requests = 64;
  std::int32_t num_resident = 16;
  std::int32_t prompt_tokens = 4096;
  std::int32_t answer_tokens = 128;
  std::int32_t turn_tokens = 32;
};

const bool kIsFull = std::getenv("SLACKWATER_FULL") != nullptr;
const int kPairs = kIsFull ? 7 : 1;
constexpr std::int32_t kRequests = 32;
constexpr std::int32_t kAnswer = 48;

template <class T>
T must(Result<T> made) {
  if (made.has_value()) return *std::move(made);
  std::fprintf(stderr, "%s\n", made.error().text().c_str());
  std::exit(1);
}
void must(const Result<void>& done) {
  if (done.has_value()) return;
  std::fprintf(stderr, "%s\n", done.error().text().c_str());
  std::exit(1);
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void report(benchmark::State& state, const std::string& name, const std::vector<double>& values) {
  state.counters[name] = median(values);
  state.counters[name + "_least"] = *std::min_element(values.begin(), values.end());
  state.counters[name + "_most"] = *std::max_element(values.begin(), values.end());
}

// The demo models on a number of threads.
struct Models {
  explicit Models(int num_threads)
      : pool(num_threads),
        context(pool),
        target(must(model::Model::load("models/demo", context, {}))),
        draft(must(model::Model::load("models/demo-draft", context, {}))),
        tokenizer(must(model::Tokenizer::load("models/demo", target.config().vocab_size))) {}

  std::vector<TokenId> encode(const std::string& text) const {
    return must(model::encode_prompt(target.config(), tokenizer, text));
  }

  ThreadPool pool;
  kernels::ExecutionContext context;
  model::Model target;
  model::Model draft;
  model::Tokenizer tokenizer;
};

// A model of which only the shapes are real.
class NothingModel final : public LanguageModel {
 public:
  NothingModel() {
    config_.vocab_size = 64;
    config_.hidden_size = 32;
    config_.num_layers = 2;
    config_.layer_kinds = {model::LayerKind::kKda, model::LayerKind::kMla};
    config_.num_heads = 1;
    config_.kv_lora_rank = 8;
    config_.kda_num_heads = 1;
    config_.kda_head_dim = 32;
    config_.conv_kernel_size = model::kConvKernelSize;
    config_.max_length = 1 << 20;
    config_.eos_ids = {63};
  }

  const model::ModelConfig& config() const override { return config_; }
  Digest128 digest() const override { return {}; }
  void reserve(model::ForwardPass::Limits) override {}
  void run(const model::ForwardBatch&, std::span<float> logits) override {
    std::fill(logits.begin(), logits.end(), 0.0F);
    for (std::size_t i = 7; i < logits.size(); i += 64) logits[i] = 1;
  }
  const float* hidden() const override { return nullptr; }
  const float* first_hidden() const override { return nullptr; }
  void run_mtp(const model::MtpBatch&, std::span<float>) override {}
  const float* mtp_hidden() const override { return nullptr; }

 private:
  model::ModelConfig config_;
};

// An engine over the demo models.
struct DemoEngine {
  DemoEngine(Models& models, EngineConfig config)
      : device(device::make_cpu_device()),
        target(make_language_model(models.target, models.context)),
        draft(make_language_model(models.draft, models.context)),
        engine(must(Engine::create(
            {device.get(), &models.context, target.get(), draft.get(), &models.tokenizer},
            std::move(config)))) {}

  std::unique_ptr<device::Device> device;
  std::unique_ptr<LanguageModel> target;
  std::unique_ptr<LanguageModel> draft;
  std::unique_ptr<Engine> engine;
};

EngineConfig roomy(LoopKind loop, DrafterKind drafter) {
  EngineConfig config;
  config.loop = loop;
  config.speculation.drafter = drafter;
  config.scheduler.max_batch_size = kRequests;
  config.pools.num_slots = 3 * kRequests;
  config.pools.num_blocks = 8 * kRequests;
  config.pools.host_bytes = 64 << 20;
  config.enable_block_reuse = false;
  return config;
}

constexpr const char* kPrompts[] = {
    "lighthouse (noun):", "And it came to pass in those days, that",
    "wander (verb):", "oak, oak tree (noun): a deciduous tree\nelm, elm tree (noun):"};
constexpr const char* kRepetitive[] = {
    "the sea and the shore, the sea and the shore, the sea and the shore, the sea and",
    "And the LORD said unto Moses, Thus saith the LORD, And the LORD said unto Moses, Thus saith"};

void ask(Models& models, Engine& engine, bool is_repetitive) {
  for (std::int32_t i = 0; i < kRequests; ++i) {
    GenerationRequest request;
    const auto number = static_cast<std::size_t>(i);
    request.prompt_tokens =
        models.encode(is_repetitive ? kRepetitive[number % 2] : kPrompts[number % 4]);
    request.max_tokens = kAnswer;
    request.ignore_eos = true;
    request.sampling.seed = number;
    request.sampling.temperature = is_repetitive ? 0.0F : 0.5F;
    must(engine.submit(std::move(request)));
  }
}

// Tokens a second, and what the engine counted.
double tokens_per_second(Models& models, const EngineConfig& config, bool is_repetitive,
                         EngineStatistics* statistics) {
  DemoEngine demo(models, config);
  ask(models, *demo.engine, is_repetitive);
  const double seconds = seconds_of([&] { must(demo.engine->run()); });
  const EngineStatistics counted = demo.engine->statistics();
  if (statistics != nullptr) *statistics = counted;
  return static_cast<double>(counted.generated_tokens) / seconds;
}

void overlap(benchmark::State& state, const OverlapWorkload& workload) {
  Models models(workload.num_threads);
  EngineConfig plain = roomy(LoopKind::kPlain, workload.drafter);
  EngineConfig overlapped = roomy(LoopKind::kOverlap, workload.drafter);
  EngineStatistics counted;
  EngineStatistics overlap_counted;
  tokens_per_second(models, plain, false, &counted);
  if (workload.host_load > 0) {
    const double step =
        static_cast<double>(counted.wait_time.count()) * 1e-9 / static_cast<double>(counted.steps);
    const auto load = [seconds = step * workload.host_load] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
      while (std::chrono::steady_clock::now() < end) {
      }
    };
    plain.host_load = overlapped.host_load = load;
  }
  std::vector<double> ratios;
  for (auto _ : state) {
    for (int i = 0; i < kPairs; ++i) {
      const bool is_first = i % 2 == 0;
      const double before = is_first ? tokens_per_second(models, plain, false, nullptr) : 0;
      const double ours = tokens_per_second(models, overlapped, false, &overlap_counted);
      ratios.push_back(ours /
                       (is_first ? before : tokens_per_second(models, plain, false, nullptr)));
    }
  }
  report(state, "overlap_over_plain", ratios);
  // Rounds behind the last token of an answer, and drafts of lengths that are chosen one round
  // later.
  state.counters["rounds_over_plain"] =
      static_cast<double>(overlap_counted.rounds) / static_cast<double>(counted.rounds);
  state.counters["drafts_over_plain"] =
      static_cast<double>(overlap_counted.drafts_proposed) /
      static_cast<double>(std::max<std::int64_t>(1, counted.drafts_proposed));
}

void speculation(benchmark::State& state, const SpeculationWorkload& workload) {
  Models models(2);
  const EngineConfig none = roomy(LoopKind::kPlain, DrafterKind::kNone);
  const EngineConfig with = roomy(LoopKind::kPlain, workload.drafter);
  EngineStatistics counted;
  std::vector<double> ratios;
  for (auto _ : state) {
    for (int i = 0; i < kPairs; ++i) {
      const bool is_first = i % 2 == 0;
      const double before =
          is_first ? tokens_per_second(models, none, workload.is_repetitive, nullptr) : 0;
      const double ours = tokens_per_second(models, with, workload.is_repetitive, &counted);
      ratios.push_back(
          ours /
          (is_first ? before : tokens_per_second(models, none, workload.is_repetitive, nullptr)));
    }
  }
  report(state, "speculation_over_none", ratios);
  state.counters["acceptance"] =
      static_cast<double>(counted.drafts_accepted) /
      static_cast<double>(std::max<std::int64_t>(1, counted.drafts_proposed));
  state.counters["tokens_per_round"] =
      static_cast<double>(counted.generated_tokens) /
      static_cast<double>(std::max<std::int64_t>(1, counted.rounds));
}

double host_seconds(const EngineStatistics& counted) {
  return static_cast<double>(
             (counted.schedule_time + counted.prepare_time + counted.outcome_time).count()) *
         1e-9;
}

void share(benchmark::State& state, DrafterKind drafter) {
  Models models(1);
  EngineStatistics counted;
  for (auto _ : state) {
    tokens_per_second(models, roomy(LoopKind::kPlain, drafter), false, &counted);
  }
  const double host = host_seconds(counted);
  state.counters["host_share"] =
      host / (host + static_cast<double>(counted.wait_time.count()) * 1e-9);
}

void bookkeeping(benchmark::State& state, const BookkeepingWorkload& workload) {
  ThreadPool pool(1);
  kernels::ExecutionContext context(pool);
  NothingModel nothing;
  const auto device = device::make_cpu_device();
  EngineConfig config;
  config.loop = workload.loop;
  config.speculation.drafter = workload.drafter;
  config.scheduler.max_batch_size = workload.max_batch_size;
  config.scheduler.max_num_tokens = 1 << 14;
  config.pools.num_slots = 2 * workload.num_requests;
  config.pools.num_blocks = 64 * workload.num_requests;
  config.pools.host_bytes = 64 << 20;
  config.enable_block_reuse = false;
  const auto engine =
      must(Engine::create({device.get(), &context, &nothing, nullptr, nullptr}, config));
  for (std::int32_t i = 0; i < workload.num_requests; ++i) {
    GenerationRequest request;
    request.prompt_tokens = {1, 2, 3, i % 50};
    request.max_tokens = 1000;
    must(engine->submit(std::move(request)));
  }
  for (int i = 0; i < 40; ++i) must(engine->step());
  const EngineStatistics before = engine->statistics();
  for (auto _ : state) must(engine->step());
  const EngineStatistics after = engine->statistics();
  const auto steps = static_cast<double>(after.steps - before.steps);
  state.counters["host_ms_per_step"] = (host_seconds(after) - host_seconds(before)) * 1e3 / steps;
  state.counters["schedule_ms"] =
      static_cast<double>((after.schedule_time - before.schedule_time).count()) * 1e-6 / steps;
  state.counters["prepare_ms"] =
      static_cast<double>((after.prepare_time - before.prepare_time).count()) * 1e-6 / steps;
  state.counters["outcome_ms"] =
      static_cast<double>((after.outcome_time - before.outcome_time).count()) * 1e-6 / steps;
}

// Turns of a part of the requests, each until all of it have written so many tokens more.
class Turns {
 public:
  Turns(Models& models, const PressureWorkload& workload, const EngineConfig& config,
        HoldPolicy policy)
      : workload_(workload), policy_(policy), demo_(models, config) {
    std::uint64_t random = 20261130;
    for (std::int32_t i = 0; i < workload.num_requests; ++i) {
      GenerationRequest request;
      for (std::int32_t t = 0; t < workload.prompt_tokens; ++t) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        request.prompt_tokens.push_back(static_cast<TokenId>((random >> 33) % 2000));
      }
      request.max_tokens = workload.answer_tokens;
      request.ignore_eos = true;
      request.on_output = [this, i](const RequestOutput& output) {
        written_[static_cast<std::size_t>(i)] += std::ssize(output.tokens);
      };
      written_.push_back(0);
      ids_.push_back(must(demo_.engine->submit(std::move(request))));
      demo_.engine->hold(ids_.back(), policy);
    }
  }

  double run() {
    return seconds_of([&] {
      for (std::int32_t goal = workload_.turn_tokens; goal <= workload_.answer_tokens;
           goal += workload_.turn_tokens) {
        for (std::int32_t first = 0; first < workload_.num_requests;
             first += workload_.num_resident) {
          take_turn(first, goal);
        }
      }
    });
  }
  EngineStatistics statistics() const { return demo_.engine->statistics(); }

 private:
  void take_turn(std::int32_t first, std::int32_t goal) {
    const auto each = [&](const std::function<void(std::size_t)>& visit) {
      for (std::int32_t i = first; i < first + workload_.num_resident; ++i) {
        visit(static_cast<std::size_t>(i));
      }
    };
    each([&](std::size_t i) { demo_.engine->release(ids_[i]); });
    bool is_over = false;
    while (!is_over) {
      must(demo_.engine->step());
      is_over = true;
      each([&](std::size_t i) { is_over = is_over && written_[i] >= goal; });
    }
    each([&](std::size_t i) { demo_.engine->hold(ids_[i], policy_); });
  }

  const PressureWorkload workload_;
  const HoldPolicy policy_;
  std::vector<RequestId> ids_;
  std::vector<std::int64_t> written_;
  DemoEngine demo_;
};

void pressure(benchmark::State& state) {
  PressureWorkload workload;
  if (!kIsFull) {
    workload.num_requests = 16;
    workload.num_resident = 4;
    workload.prompt_tokens = 512;
  }
  Models models(2);
  const std::int32_t blocks = (workload.prompt_tokens + workload.answer_tokens) / 32 + 3;
  const auto config_of = [&](std::int32_t num_resident, std::int64_t host_bytes) {
    EngineConfig config;
    config.scheduler.max_batch_size = workload.num_resident;
    config.scheduler.max_num_tokens = 1024;
    config.pools.num_slots = num_resident + num_resident / 8 + 2;
    config.pools.num_blocks = num_resident * blocks + blocks;
    config.pools.host_bytes = host_bytes;
    return config;
  };
  constexpr std::int64_t kHost = std::int64_t{4} << 30;
  double unlimited = 0;
  double suspended = 0;
  double recomputed = 0;
  for (auto _ : state) {
    unlimited =
        Turns(models, workload, config_of(workload.num_requests, kHost), HoldPolicy::kSuspend)
            .run();
    Turns suspends(models, workload, config_of(workload.num_resident, kHost), HoldPolicy::kSuspend);
    suspended = suspends.run();
    state.counters["suspends"] = static_cast<double>(suspends.statistics().suspends);
    state.counters["computed_again_by_suspend"] =
        static_cast<double>(suspends.statistics().recomputed_tokens);
    Turns recomputes(models, workload, config_of(workload.num_resident, 0), HoldPolicy::kRecompute);
    recomputed = recomputes.run();
    state.counters["computed_again_by_recompute"] =
        static_cast<double>(recomputes.statistics().recomputed_tokens);
  }
  state.counters["unlimited_s"] = unlimited;
  state.counters["suspend_lost_s"] = suspended - unlimited;
  state.counters["recompute_lost_s"] = recomputed - unlimited;
  state.counters["lost_share"] = (suspended - unlimited) / (recomputed - unlimited);
}

int register_all() {
  for (const BookkeepingWorkload& workload : kBookkeepingWorkloads) {
    benchmark::RegisterBenchmark((std::string("bookkeeping/") + workload.name).c_str(), bookkeeping,
                                 workload)
        ->Iterations(200)
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime();
  }
  for (const DrafterKind drafter : kShareWorkloads) {
    benchmark::RegisterBenchmark(("share/" + std::string(to_string(drafter))).c_str(), share,
                                 drafter)
        ->Iterations(1)
        ->Unit(benchmark::kSecond)
        ->UseRealTime();
  }
  for (const OverlapWorkload& workload : kOverlapWorkloads) {
    benchmark::RegisterBenchmark((std::string("overlap/") + workload.name).c_str(), overlap,
                                 workload)
        ->Iterations(1)
        ->Unit(benchmark::kSecond)
        ->UseRealTime();
  }
  for (const SpeculationWorkload& workload : kSpeculationWorkloads) {
    benchmark::RegisterBenchmark((std::string("speculation/") + workload.name).c_str(), speculation,
                                 workload)
        ->Iterations(1)
        ->Unit(benchmark::kSecond)
        ->UseRealTime();
  }
  benchmark::RegisterBenchmark("pressure", pressure)
      ->Iterations(1)
      ->Unit(benchmark::kSecond)
      ->UseRealTime();
  return 0;
}

const int kRegistered = register_all();

}  // namespace
}  // namespace slackwater::engine
