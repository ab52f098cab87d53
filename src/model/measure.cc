#include "slackwater/model/measure.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "slackwater/base/clock.h"
#include "slackwater/base/numeric.h"
#include "slackwater/base/page_table.h"
#include "slackwater/kernels/ceiling.h"
#include "slackwater/kernels/sample.h"
#include "slackwater/model/forward.h"
#include "slackwater/model/solo_storage.h"

namespace slackwater::model {
namespace {

constexpr std::int32_t kTokensPerBlock = 32;

TokenId prompt_token(std::int64_t sequence, std::int64_t index, std::int32_t num_ranks) {
  const auto mixed = static_cast<std::uint32_t>((8191 * sequence + index) * 2654435761);
  return static_cast<TokenId>(std::uint64_t{mixed} * static_cast<std::uint64_t>(num_ranks) >> 32);
}

// Prompt tokens of a forward pass: never more than there are.
std::int32_t chunk_of(const MeasureOptions& options) {
  const std::int64_t all = std::int64_t{options.sequences} * options.prompt_tokens;
  return static_cast<std::int32_t>(std::min<std::int64_t>(options.chunk, all));
}

// Blocks of all sequences; those are numbered by 32 bits.
std::int64_t num_blocks(const MeasureOptions& options) {
  const std::int64_t length = std::int64_t{options.prompt_tokens} + options.max_tokens;
  return options.sequences * ceil_div<std::int64_t>(length, kTokensPerBlock);
}

// Pages of several sequences: sequence s owns recurrent slot s and a run of latent slots.
class SequencePages {
 public:
  SequencePages(const ModelConfig& config, std::int64_t sequences, std::int64_t length) {
    const std::int64_t blocks = ceil_div<std::int64_t>(length, kTokensPerBlock);
    PageTable latent;
    latent.layer_stride = std::int64_t{kTokensPerBlock} * config.mla_row_width() *
                          static_cast<std::int64_t>(sizeof(float));
    latent.slot_stride = latent.layer_stride * config.num_mla_layers();
    latent.num_slots = static_cast<std::int32_t>(sequences * blocks);
    latent.tokens_per_block = kTokensPerBlock;
    latent_bytes_ =
        AlignedBuffer<std::byte>(static_cast<std::size_t>(latent.num_slots * latent.slot_stride));
    latent.base = latent_bytes_.data();
    latent_views_ = latent_views(config, latent, DType::kF32);

    PageTable recurrent;
    recurrent.layer_stride =
        recurrent_layer_floats(config) * static_cast<std::int64_t>(sizeof(float));
    recurrent.slot_stride = recurrent.layer_stride * config.num_kda_layers();
    recurrent.num_slots = static_cast<std::int32_t>(sequences);
    recurrent_bytes_ =
        AlignedBuffer<std::byte>(static_cast<std::size_t>(sequences * recurrent.slot_stride));
    recurrent.base = recurrent_bytes_.data();
    recurrent_views_ = recurrent_views(config, recurrent);

    for (std::int64_t s = 0; s < sequences; ++s) {
      std::vector<SlotId>& table = tables_.emplace_back();
      for (std::int64_t b = 0; b < blocks; ++b) {
        table.push_back(SlotId(static_cast<std::int32_t>(s * blocks + b)));
      }
    }
  }

  std::span<const kernels::LatentPages> latent() const { return latent_views_; }
  std::span<const kernels::RecurrentPages> recurrent() const { return recurrent_views_; }
  kernels::BlockTable table(std::int64_t sequence) const {
    return tables_[static_cast<std::size_t>(sequence)];
  }

 private:
  AlignedBuffer<std::byte> latent_bytes_;
  AlignedBuffer<std::byte> recurrent_bytes_;
  std::vector<kernels::LatentPages> latent_views_;
  std::vector<kernels::RecurrentPages> recurrent_views_;
  std::vector<std::vector<SlotId>> tables_;
};

// Seconds of one repetition.
struct Times {
  double prompt = 0;
  double generation = 0;
};

// The same sequences again and again, from empty pages.
class Workload {
 public:
  Workload(const MeasureOptions& options, const Model& model, std::int32_t num_ranks,
           kernels::ExecutionContext& context)
      : options_(options),
        config_(model.config()),
        num_ranks_(num_ranks),
        chunk_(chunk_of(options)),
        context_(context),
        pages_(config_, options.sequences,
               std::int64_t{options.prompt_tokens} + options.max_tokens),
        forward_(
            model, context,
            {.max_tokens = std::max(chunk_, options.sequences), .max_logits = options.sequences}),
        logits_(static_cast<std::size_t>(config_.vocab_size) *
                static_cast<std::size_t>(options.sequences)),
        next_(static_cast<std::size_t>(options.sequences)),
        writes_(next_.size()),
        sample_rows_(next_.size()),
        results_(next_.size()) {}

  Result<Times> run() {
    const RealClock clock;
    const Nanoseconds started = clock.now();
    run_prompts();
    SLACKWATER_RETURN_IF_ERROR(sample_last_rows());
    const Nanoseconds prompts_done = clock.now();
    for (std::int32_t i = 1; i < options_.max_tokens; ++i) {
      decode(options_.prompt_tokens + i - 1);
      SLACKWATER_RETURN_IF_ERROR(sample_last_rows());
    }
    const auto seconds = [](Nanoseconds time) {
      return std::chrono::duration<double>(time).count();
    };
    return Times{seconds(prompts_done - started), seconds(clock.now() - prompts_done)};
  }

 private:
  // Prompts in forward passes of at most `chunk` tokens, filled across sequences. The logits of
  // each sequence's last prompt token land in its row.
  void run_prompts() {
    for (std::int32_t sequence = 0, done = 0; sequence < options_.sequences;) {
      start_batch();
      while (sequence < options_.sequences && std::ssize(tokens_) < chunk_) {
        const std::int32_t room = chunk_ - static_cast<std::int32_t>(tokens_.size());
        const std::int32_t count = std::min(room, options_.prompt_tokens - done);
        add_row(sequence, done, count);
        for (std::int32_t j = done; j < done + count; ++j) {
          tokens_.push_back(prompt_token(sequence, j, num_ranks_));
        }
        done += count;
        if (done < options_.prompt_tokens) break;
        logit_tokens_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
        done = 0;
        ++sequence;
      }
      run_batch(sequence - static_cast<std::int32_t>(logit_tokens_.size()));
    }
  }

  void decode(std::int64_t position) {
    start_batch();
    for (std::int32_t sequence = 0; sequence < options_.sequences; ++sequence) {
      add_row(sequence, position, 1);
      tokens_.push_back(next_[static_cast<std::size_t>(sequence)]);
      logit_tokens_.push_back(sequence);
    }
    run_batch(0);
  }

  void start_batch() {
    tokens_.clear();
    rows_.clear();
    logit_tokens_.clear();
  }

  void add_row(std::int32_t sequence, std::int64_t position, std::int32_t count) {
    kernels::StateWrite& write = writes_[static_cast<std::size_t>(sequence)];
    write = {count, SlotId(sequence)};
    kernels::SequenceRow row;
    row.first_token = static_cast<std::int32_t>(tokens_.size());
    row.num_tokens = count;
    row.first_position = position;
    row.block_table = pages_.table(sequence);
    row.state_page = SlotId(sequence);
    row.writes = std::span<const kernels::StateWrite>(&write, 1);
    rows_.push_back(row);
  }

  void run_batch(std::int32_t first_logits_row) {
    ForwardBatch batch;
    batch.token_ids = tokens_;
    batch.rows = rows_;
    batch.latent_pages = pages_.latent();
    batch.recurrent_pages = pages_.recurrent();
    batch.logit_tokens = logit_tokens_;
    const auto vocabulary = static_cast<std::size_t>(config_.vocab_size);
    forward_.run(batch,
                 logits_.span().subspan(static_cast<std::size_t>(first_logits_row) * vocabulary,
                                        logit_tokens_.size() * vocabulary));
  }

  Result<void> sample_last_rows() {
    for (std::size_t s = 0; s < next_.size(); ++s) {
      sample_rows_[s].logits = logits_.data() + s * static_cast<std::size_t>(config_.vocab_size);
    }
    kernels::SampleArgs args;
    args.vocabulary = config_.vocab_size;
    args.rows = sample_rows_;
    args.results = results_;
    kernels::sample(context_, args);
    for (std::size_t s = 0; s < next_.size(); ++s) {
      if (!results_[s].has_value()) return tl::unexpected<Error>(results_[s].error());
      next_[s] = results_[s]->token;
    }
    return {};
  }

  const MeasureOptions& options_;
  const ModelConfig& config_;
  std::int32_t num_ranks_;
  std::int32_t chunk_;
  kernels::ExecutionContext& context_;
  SequencePages pages_;
  ForwardPass forward_;
  AlignedBuffer<float> logits_;              // [sequences, vocabulary]
  std::vector<TokenId> next_;                // [sequences]
  std::vector<kernels::StateWrite> writes_;  // [sequences]
  std::vector<kernels::SampleRow> sample_rows_;
  std::vector<Result<kernels::SampleResult>> results_;
  std::vector<TokenId> tokens_;
  std::vector<kernels::SequenceRow> rows_;
  std::vector<std::int32_t> logit_tokens_;
};

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

Result<void> check_length(const MeasureOptions& options, const ModelConfig& config) {
  const std::int64_t length = std::int64_t{options.prompt_tokens} + options.max_tokens;
  if (length > config.max_length) {
    return make_error(ErrorCode::kOutOfRange,
                      "{} prompt tokens and {} generated ones are more than the model's {}; ask "
                      "for fewer",
                      options.prompt_tokens, options.max_tokens, config.max_length);
  }
  constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();
  if (num_blocks(options) > kMostBlocks) {
    return make_error(ErrorCode::kOutOfRange,
                      "{} sequences of {} tokens are {} blocks, of at most {}; ask for fewer",
                      options.sequences, length, num_blocks(options), kMostBlocks);
  }
  return {};
}

}  // namespace

Result<SpeedReport> measure_speed(const Model& model, std::int32_t num_ranks,
                                  kernels::ExecutionContext& context,
                                  const MeasureOptions& options) {
  SLACKWATER_RETURN_IF_ERROR(check_length(options, model.config()));
  Workload workload(options, model, num_ranks, context);
  SLACKWATER_RETURN_IF_ERROR(workload.run());  // warm-up
  std::vector<double> prompt_rates;
  std::vector<double> generated_rates;
  const double sequences = options.sequences;
  for (std::int32_t repetition = 0; repetition < options.repetitions; ++repetition) {
    SLACKWATER_ASSIGN_OR_RETURN(const Times times, workload.run());
    prompt_rates.push_back(sequences * options.prompt_tokens / times.prompt);
    generated_rates.push_back(sequences * (options.max_tokens - 1) / times.generation);
  }
  SpeedReport report;
  report.prompt_rate = spread_of(prompt_rates);
  report.generated_rate = spread_of(generated_rates);
  report.active_bytes = model.active_weight_bytes();
  report.read_ceiling = kernels::read_ceiling_bytes_per_second(context, report.active_bytes);
  const double steps_per_second = report.generated_rate.median / sequences;
  report.share_of_ceiling =
      steps_per_second * static_cast<double>(report.active_bytes) / report.read_ceiling;
  return report;
}

}  // namespace slackwater::model
