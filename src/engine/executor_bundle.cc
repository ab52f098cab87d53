// All requests to disk, and back in another process.

#include <algorithm>
#include <utility>

#include "engine/executor.h"
#include "slackwater/base/certificate.h"
#include "slackwater/base/check.h"
#include "slackwater/engine/bundle.h"
#include "slackwater/engine/byte_codec.h"

namespace slackwater::engine {
namespace {

SavedRequest saved_of(const LiveRequest& request) {
  SavedRequest saved;
  saved.id = request.id;
  saved.choice = request.choice;
  saved.asked = request.asked;
  saved.tokens = request.tokens;
  saved.drafts = request.drafts;
  saved.has_state = request.has_state;
  saved.num_matched = request.num_matched;
  saved.cursor = request.cursor;
  saved.context_end = request.context_end;
  saved.has_run_before = request.has_run_before;
  saved.num_reused = request.num_reused;
  saved.num_suspends = request.num_suspends;
  saved.num_recomputes = request.num_recomputes;
  saved.drafts_proposed = request.drafts_proposed;
  saved.drafts_accepted = request.drafts_accepted;
  return saved;
}

}  // namespace

// Suspended, or waiting where it has computed nothing yet or where nobody can be suspended.
Result<void> Executor::put_to_bed(LiveRequest& request) {
  if (!request.has_state) return {};
  if (request.is_context() && request.cursor == request.num_matched) {
    release_context(request.id);
    return {};
  }
  if (!is_active(request.id)) return {};
  if (can_evict()) {
    send_away(request);
  } else {
    give_up(request);
  }
  return {};
}

Result<void> Executor::save_bundle(const std::filesystem::path& directory) {
  take_submissions();
  take_orders();
  SLACKWATER_RETURN_IF_ERROR(drain());
  sweep();
  note_statistics();
  const hybrid::ImageLayout layout = state_->image_layout();
  ByteWriter record;
  record.u32(kSavedRequestVersion);
  {
    const std::lock_guard lock(mutex_);
    record.u64(next_id_);
  }
  SLACKWATER_ASSIGN_OR_RETURN(
      BundleWriter writer,
      BundleWriter::create(directory, {layout, process_epoch(), record.take()}));
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    SLACKWATER_RETURN_IF_ERROR(put_to_bed(*request));
  }
  for (const std::unique_ptr<LiveRequest>& request : requests_) {
    BundleRequest out;
    if (request->has_state) {
      Result<hybrid::RequestImage> image = state_->export_request(request->id, request->tokens);
      if (!image.has_value() && image.error().code() == ErrorCode::kDataLoss) {
        lose(*request);
      } else if (!image.has_value()) {
        return tl::unexpected<Error>(image.error().with_context(
            fmt::format("request {} for a bundle", request->id.value())));
      } else {
        out.image = *std::move(image);
      }
    }
    if (!request->has_state) {
      begin_life(*request);
      out.image.layout = layout;
      out.image.tokens = request->tokens;
      out.image.seal = hybrid::seal_of(out.image);
    }
    out.record = encode(saved_of(*request));
    SLACKWATER_RETURN_IF_ERROR(writer.add(out));
  }
  return writer.finish();
}

// What a file says is looked at as what a caller says.
Result<void> Executor::check_loaded(const SavedRequest& saved) const {
  SLACKWATER_RETURN_IF_ERROR(
      validate(saved.asked, model_, /*has_tokenizer=*/parts_.tokenizer != nullptr));
  const std::int64_t num_prompt = std::ssize(saved.asked.prompt_tokens);
  const std::int64_t limit =
      std::min<std::int64_t>(num_prompt + saved.asked.max_tokens, std::int64_t{model_.max_length});
  const std::int64_t num_tokens = std::ssize(saved.tokens);
  if (limit > max_sequence_length_) {
    return make_error(ErrorCode::kOutOfRange,
                      "request {} needs room for {} tokens; the pools hold {} of one request: give "
                      "as many blocks as the engine had that wrote the bundle",
                      saved.id.value(), limit, max_sequence_length_);
  }
  const auto is_token = [&](TokenId token) { return 0 <= token && token < model_.vocab_size; };
  const bool has_tokens = std::all_of(saved.tokens.begin(), saved.tokens.end(), is_token) &&
                          std::all_of(saved.drafts.begin(), saved.drafts.end(), is_token);
  const std::int64_t context_end = num_tokens > num_prompt ? num_tokens - 1 : num_prompt;
  const bool is_whole = has_tokens && num_tokens < limit && 0 <= saved.choice &&
                        saved.choice < saved.asked.num_choices && saved.num_matched >= 0 &&
                        saved.num_matched <= saved.cursor && saved.cursor <= saved.context_end &&
                        saved.context_end <= context_end && std::ssize(saved.drafts) <= max_drafts_;
  if (!is_whole) {
    return make_error(ErrorCode::kDataLoss,
                      "the record of request {} says {} tokens of at most {}, {} of {} run as "
                      "context: it is not one that an engine wrote",
                      saved.id.value(), num_tokens, limit, saved.cursor, saved.context_end);
  }
  if (find(saved.id) != nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request {} of the bundle is there already; load it into an engine without "
                      "requests",
                      saved.id.value());
  }
  return {};
}

// What the request had is there again. False where these pools have no room for it: shares may
// have been others when the bundle was written. Then it is computed again.
Result<bool> Executor::take_up_state(const SavedRequest& saved, const hybrid::RequestImage& image,
                                     LiveRequest& request) {
  hybrid::RequestOptions options;
  options.request = saved.id;
  options.tokens = request.tokens;
  options.scope = saved.asked.scope;
  options.priority = priority_of(request);
  options.expected_prompt_length = request.num_prompt;
  const Result<void> imported = state_->import_request(options, image);
  if (!imported.has_value()) {
    if (imported.error().code() == ErrorCode::kResourceExhausted) return false;
    return tl::unexpected<Error>(imported.error());
  }
  const Result<hybrid::RequestPosition> position = state_->position(saved.id);
  SLACKWATER_CHECK(position.has_value(), "{}", position.error().text());
  const std::int64_t run =
      saved.cursor < saved.context_end ? saved.cursor : std::ssize(request.tokens) - 1;
  if (position->kept != run) {
    state_->free_resources(saved.id);
    return make_error(ErrorCode::kDataLoss,
                      "the record of request {} says that {} tokens are run, its state {}",
                      saved.id.value(), run, position->kept);
  }
  request.life = position->epoch;
  request.has_state = request.is_suspended = true;
  request.num_matched = saved.num_matched;
  request.cursor = saved.cursor;
  request.context_end = saved.context_end;
  request.drafts = saved.drafts;
  request.num_proposed = static_cast<std::int32_t>(saved.drafts.size());
  if (request.is_context()) {
    SLACKWATER_ASSIGN_OR_RETURN(request.snapshot_points,
                                state_->snapshot_points(saved.id, request.context_end));
  }
  return true;
}

Result<void> Executor::take_up(const SavedRequest& saved, const hybrid::RequestImage& image,
                               const std::function<void(const RequestOutput&)>& on_output) {
  SLACKWATER_RETURN_IF_ERROR(check_loaded(saved));
  std::unique_ptr<LiveRequest> made = make_request(saved.asked, saved.id, saved.choice);
  LiveRequest& request = *made;
  request.asked.on_output = on_output;
  for (std::size_t i = saved.asked.prompt_tokens.size(); i < saved.tokens.size(); ++i) {
    const TokenId token = saved.tokens[i];
    request.tokens.push_back(token);
    request.sampling.add(token);
    if (request.text.push(token).finished) {
      return make_error(ErrorCode::kDataLoss,
                        "the record of request {} goes on behind the end of its answer",
                        saved.id.value());
    }
  }
  if (request.has_drafts && config_.speculation.drafter == DrafterKind::kNgram) {
    request.ngrams.append(
        std::span<const TokenId>(request.tokens).subspan(saved.asked.prompt_tokens.size()));
  }
  request.has_run_before = saved.has_run_before;
  request.num_reused = saved.num_reused;
  request.num_suspends = saved.num_suspends;
  request.num_recomputes = saved.num_recomputes;
  request.drafts_proposed = saved.drafts_proposed;
  request.drafts_accepted = saved.drafts_accepted;
  bool has_state = saved.has_state;
  if (has_state) {
    SLACKWATER_ASSIGN_OR_RETURN(has_state, take_up_state(saved, image, request));
    if (!has_state) {
      ++request.num_recomputes;
      ++statistics_.recomputes;
    }
  }
  if (!has_state) begin_life(request);
  add(std::move(made));
  return {};
}

Result<std::vector<ResumedRequest>> Executor::load_bundle(
    const std::filesystem::path& directory, std::function<void(const RequestOutput&)> on_output) {
  SLACKWATER_ASSIGN_OR_RETURN(const BundleReader reader,
                              BundleReader::open(directory, state_->image_layout()));
  ByteReader header(reader.header().record);
  const std::uint32_t version = header.u32();
  const std::uint64_t next_id = header.u64();
  SLACKWATER_RETURN_IF_ERROR(header.end());
  if (version != kSavedRequestVersion) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: an engine's record of version {}; this one reads {}: load the bundle "
                      "with the engine that wrote it",
                      directory.string(), version, kSavedRequestVersion);
  }
  std::vector<ResumedRequest> resumed;
  const std::size_t num_before = requests_.size();
  // As a whole or not at all.
  const auto take_back = [&](const Error& error) {
    for (std::size_t i = num_before; i < requests_.size(); ++i) {
      state_->free_resources(requests_[i]->id);
      remove(*requests_[i]);
    }
    requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(num_before), requests_.end());
    return tl::unexpected<Error>(error.with_context(directory.string()));
  };
  for (std::size_t i = 0; i < reader.num_requests(); ++i) {
    const Result<BundleRequest> request = reader.read(i);
    if (!request.has_value()) return take_back(request.error());
    Result<SavedRequest> saved = decode_request(request->record);
    if (!saved.has_value()) return take_back(saved.error());
    const Result<void> taken = take_up(*saved, request->image, on_output);
    if (!taken.has_value()) return take_back(taken.error());
    ResumedRequest& out = resumed.emplace_back();
    out.id = saved->id;
    out.choice = saved->choice;
    out.answer.assign(saved->tokens.begin() + std::ssize(saved->asked.prompt_tokens),
                      saved->tokens.end());
    TextOutput text = make_text(saved->asked);
    for (const TokenId token : out.answer) out.text += text.push(token).text;
    out.request = std::move(saved->asked);
  }
  for (std::size_t i = num_before; i < requests_.size(); ++i) {
    requests_[i]->half = admissions_++ % 2;
    ++statistics_.submitted;
  }
  const std::lock_guard lock(mutex_);
  num_live_ += std::ssize(resumed);
  for (const ResumedRequest& request : resumed) {
    next_id_ = std::max(next_id_, request.id.value() + 1);
  }
  next_id_ = std::max(next_id_, next_id);
  return resumed;
}

}  // namespace slackwater::engine
