#include "engine/text_output.h"

#include <algorithm>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {

TextOutput::TextOutput(const model::Tokenizer* tokenizer, std::vector<std::string> stop,
                       std::span<const TokenId> eos_ids, std::span<const TokenId> stop_token_ids,
                       bool ignore_eos)
    : ends_(stop_token_ids.begin(), stop_token_ids.end()) {
  SLACKWATER_CHECK(tokenizer != nullptr || stop.empty(), "{} stop texts without a tokenizer",
                   stop.size());
  if (tokenizer != nullptr) stream_.emplace(*tokenizer, std::move(stop));
  if (!ignore_eos) ends_.insert(ends_.end(), eos_ids.begin(), eos_ids.end());
}

TextOutput::Step TextOutput::push(TokenId token) {
  SLACKWATER_CHECK(!is_finished_ && !is_closed_, "token {} after the end", token);
  if (std::ranges::count(ends_, token) > 0) {
    Step step = finish();
    step.finished = is_finished_ = true;
    if (SLACKWATER_MUTANT(engine_end_drops_held_text)) step.text.clear();
    return step;
  }
  if (!stream_.has_value()) return {};
  model::TextStream::Piece piece = stream_->push(token);
  is_finished_ = piece.stopped;
  return {std::move(piece.text), piece.stopped};
}

TextOutput::Step TextOutput::finish() {
  if (is_finished_ || is_closed_) return {"", is_finished_};
  is_closed_ = true;
  if (!stream_.has_value()) return {};
  model::TextStream::Piece piece = stream_->finish();
  is_finished_ = piece.stopped;
  return {std::move(piece.text), piece.stopped};
}

}  // namespace slackwater::engine
