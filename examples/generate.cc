// Slackwater from outside: load a model, run a prompt, print what it writes.
//
//   generate MODEL_DIRECTORY [PROMPT]
//
// Everything here is public API. An engine would keep many sequences over its own pages and call
// ForwardPass::run with a ragged batch; the solo loop below is the simplest use of it.

#include <cstdio>
#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "slackwater/base/thread_pool.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/model/generate.h"
#include "slackwater/model/model.h"
#include "slackwater/model/tokenizer.h"

namespace {

// A number of threads changes the speed, never a token.
constexpr int kThreads = 2;

slackwater::Result<void> write_answer(const std::filesystem::path& directory,
                                      const std::string& prompt) {
  slackwater::ThreadPool pool(kThreads);
  slackwater::kernels::ExecutionContext context(pool);
  SLACKWATER_ASSIGN_OR_RETURN(const auto model,
                              slackwater::model::Model::load(directory, context, {}));
  SLACKWATER_ASSIGN_OR_RETURN(const auto tokenizer, slackwater::model::Tokenizer::load(
                                                        directory, model.config().vocab_size));
  SLACKWATER_ASSIGN_OR_RETURN(const auto tokens,
                              slackwater::model::encode_prompt(model.config(), tokenizer, prompt));

  slackwater::model::GenerateOptions options;
  options.max_tokens = 32;
  SLACKWATER_ASSIGN_OR_RETURN(const auto answer, slackwater::model::generate_solo(
                                                     model, tokenizer, context, tokens, options));
  fmt::print("{}{}\n", prompt, answer.text);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: generate MODEL_DIRECTORY [PROMPT]\n");
    return 2;
  }
  const std::string prompt = argc == 3 ? argv[2] : "lighthouse (noun):";
  const slackwater::Result<void> done = write_answer(argv[1], prompt);
  if (done.has_value()) return 0;
  fmt::print(stderr, "generate: {}\n", done.error().text());
  return 1;
}
