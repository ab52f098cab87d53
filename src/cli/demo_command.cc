#include "cli/demo_command.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/demo_report.h"
#include "cli/demo_screen.h"
#include "cli/standard_streams.h"
#include "cli/terminal.h"

namespace slackwater::cli {
namespace {

constexpr Nanoseconds kLogInterval = std::chrono::seconds(2);
constexpr std::int32_t kTerminalPaceMs = 40;

// What is the demonstration's own: prompts in small chunks, and shares that follow the load soon.
engine::EngineConfig demo_config(const DemoCommand& command) {
  engine::EngineConfig config;
  config.scheduler.max_num_tokens = 128;
  config.scheduler.max_context_length = 64;
  config.pools.tokens_per_block = 16;
  config.scheduler.chunk_unit = 16;
  config.enable_rebalance = true;
  config.rebalance.min_samples = 4;
  config.rebalance.update_interval = 2;
  config.rebalance.cooldown = Nanoseconds{0};
  config.rebalance.decay = 0.9;
  config.fail_step = make_faults(command.demo);
  return config;
}

// One demonstration, from the loaded engine to the last line.
class Demonstration {
 public:
  Demonstration(const DemoCommand& command, EngineHost& host)
      : command_(command), host_(host), run_(host, command.demo) {
    const engine::EngineConfig& config = host.engine().config();
    title_ = fmt::format("{} slots, {} blocks, drafter {}, loop {}", config.pools.num_slots,
                         config.pools.num_blocks, to_string(config.speculation.drafter),
                         to_string(config.loop));
    pace_ = std::chrono::milliseconds(
        command.pace_ms.value_or(screen_.is_terminal() && !command.is_json ? kTerminalPaceMs : 0));
  }

  Result<void> run();

 private:
  Result<void> begin();
  Result<bool> step();
  Result<void> save();
  Result<void> finish(Nanoseconds engine_time);
  void show(bool is_last);
  void show_comparison(std::size_t done);

  const DemoCommand& command_;
  EngineHost& host_;
  DemoRun run_;
  LiveScreen screen_;
  RealClock clock_;
  std::string title_;
  Nanoseconds pace_{0};
  const Nanoseconds started_ = clock_.now();
  Nanoseconds last_log_ = started_;
};

Result<void> Demonstration::run() {
  SLACKWATER_RETURN_IF_ERROR(begin());
  bool goes_on = true;
  while (goes_on) {
    SLACKWATER_ASSIGN_OR_RETURN(goes_on, run_.step());
    show(/*is_last=*/!goes_on);
    const bool is_there = command_.save_bundle.has_value() && goes_on &&
                          host_.engine().statistics().steps >= command_.at_step;
    if (is_there && run_.is_mid_speculation()) return save();
    if (pace_ > Nanoseconds{0}) clock_.sleep_for(pace_);
  }
  if (command_.save_bundle.has_value()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "all requests had their answers after {} steps, before one was in the middle "
                      "of a round at step {}; give a smaller --at-step",
                      host_.engine().statistics().steps, command_.at_step);
  }
  return finish(clock_.now() - started_);
}

Result<void> Demonstration::begin() {
  if (command_.load_bundle.has_value()) return run_.load(*command_.load_bundle);
  return run_.submit_all(/*with_second_turns=*/!command_.save_bundle.has_value());
}

void Demonstration::show(bool is_last) {
  if (command_.is_json) return;
  const Nanoseconds now = clock_.now();
  if (screen_.is_terminal()) {
    if (!is_last && !screen_.is_due()) return;
    const DemoPicture picture = picture_of(host_, run_, title_, now - started_);
    screen_.draw(table_of(picture, screen_.width(), screen_.height(), screen_.has_color()));
    return;
  }
  if (!is_last && now - last_log_ < kLogInterval) return;
  last_log_ = now;
  write_standard_error(progress_line(picture_of(host_, run_, title_, now - started_)));
}

void Demonstration::show_comparison(std::size_t done) {
  if (command_.is_json) return;
  const std::size_t total = run_.requests().size();
  const Nanoseconds now = clock_.now();
  if (screen_.is_terminal()) {
    if (!screen_.is_due() && done < total) return;
    ScreenLine line(screen_.width(), screen_.has_color());
    line.add(" the same alone  ")
        .add_bar(24, static_cast<std::int64_t>(done), 0, static_cast<std::int64_t>(total));
    screen_.draw({line.add(fmt::format("  {} of {}", done, total))});
    return;
  }
  if (done < total && now - last_log_ < kLogInterval) return;
  last_log_ = now;
  write_standard_error(fmt::format("the same alone: {} of {}\n", done, total));
}

Result<void> Demonstration::save() {
  const std::int64_t step = host_.engine().statistics().steps;
  SLACKWATER_RETURN_IF_ERROR(host_.engine().save_bundle(*command_.save_bundle));
  const std::int64_t count = run_.num_requests() - run_.num_finished();
  if (command_.is_json) {
    const nlohmann::ordered_json object = {{"saved_requests", count},
                                           {"finished_requests", run_.num_finished()},
                                           {"step", step},
                                           {"directory", command_.save_bundle->string()}};
    return write_standard_output(
        object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  return write_standard_output(fmt::format(
      "saved {} of {} requests at step {} in '{}'; slackwater demo --load-bundle goes on "
      "with them\n",
      count, run_.num_requests(), step, command_.save_bundle->string()));
}

Result<void> Demonstration::finish(Nanoseconds engine_time) {
  host_.engine().audit();
  DemoFigures figures;
  const engine::EngineConfig& config = host_.engine().config();
  figures.drafter = to_string(config.speculation.drafter);
  figures.loop = to_string(config.loop);
  figures.seed = command_.demo.seed;
  figures.num_requests = std::ssize(run_.requests());
  figures.engine_time = engine_time;
  figures.statistics = host_.engine().statistics();
  figures.num_tokens = figures.statistics.generated_tokens;
  for (const DemoRequest& request : run_.requests()) figures.num_reused += request.num_reused;
  const Nanoseconds began = clock_.now();
  screen_.keep();
  SLACKWATER_ASSIGN_OR_RETURN(
      const DemoComparison comparison,
      compare_with_solo(host_, run_, [this](std::size_t done) { show_comparison(done); }));
  show_comparison(run_.requests().size());
  figures.solo_time = clock_.now() - began;
  figures.num_differences = std::ssize(comparison.differences);
  for (const std::string& line : comparison.differences) {
    write_standard_error(in_one_line(line) + "\n");
  }
  SLACKWATER_RETURN_IF_ERROR(
      write_standard_output(command_.is_json ? summary_json(figures) : summary_line(figures)));
  if (comparison.differences.empty()) return {};
  return make_error(ErrorCode::kDataLoss, "{} of {} requests have other tokens than alone",
                    figures.num_differences, figures.num_requests);
}

}  // namespace

Result<void> check(const DemoCommand& command) {
  SLACKWATER_RETURN_IF_ERROR(target(command.model));
  SLACKWATER_RETURN_IF_ERROR(check(command.engine));
  if (command.save_bundle.has_value() && command.load_bundle.has_value()) {
    return make_error(ErrorCode::kInvalidArgument, "give either --save-bundle or --load-bundle");
  }
  if (command.at_step > 0 && !command.save_bundle.has_value()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--at-step says when to save; give --save-bundle, too");
  }
  kernels::SamplingParameters sampling;
  sampling.temperature = command.demo.temperature;
  return kernels::validate(sampling);
}

Result<void> run(const DemoCommand& command) {
  SLACKWATER_ASSIGN_OR_RETURN(
      const std::unique_ptr<EngineHost> host,
      EngineHost::create(command.model, command.engine, demo_config(command)));
  return Demonstration(command, *host).run();
}

}  // namespace slackwater::cli
