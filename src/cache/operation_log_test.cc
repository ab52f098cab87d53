// What is written down can be done again, and what is not as it was written is refused.

#include "slackwater/cache/operation_log.h"

#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/log_format.h"
#include "cache/manager_test_support.h"
#include "slackwater/cache/log_replay.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::AllOf;
using testing::HasSubstr;

class OperationLog : public testing::Test {
 protected:
  KvCacheConfig config() const {
    KvCacheConfig config = test_config({FullAttention(), Recurrent()}, 4, 64 << 10);
    config.host_bytes = 64 << 10;
    config.operation_log.path = path();
    return config;
  }
  std::filesystem::path path() const { return directory_.path() / "calls"; }

  // A few sequences that share a front, with every kind of call.
  static void work(TestCache& cache) {
    Sha256Digest digest = {};
    const TokenId image = *cache.manager->token_digests().acquire(digest);
    Tokens tokens = numbers(0, 30);
    tokens[7] = image;
    SequenceOptions options;
    options.tokens = tokens;
    options.request = RequestId(77);
    options.scope.salt = 5;
    options.priority = [](BlockOrdinal block, LayerGroupId) {
      return static_cast<Priority>(block.value());
    };
    Sequence first = *cache.manager->create_sequence(options);
    cache.resume(first);
    ASSERT_TRUE(first.resize(40).has_value());
    ASSERT_TRUE(first.reserve_snapshot(12).has_value());
    ASSERT_TRUE(first.reserve_snapshot(13).has_value());
    first.cancel_snapshot(13);
    cache.compute(first, tokens);
    ASSERT_TRUE(first.commit({}, {{}, false, true}).has_value());
    ASSERT_TRUE(first.suspend().has_value());
    ASSERT_TRUE(first.trim(36).has_value());
    ASSERT_FALSE(first.trim(37).has_value());
    std::vector<SlotId> table(20);
    ASSERT_TRUE(first.set_index_table(LayerGroupId(0), table).has_value());
    ASSERT_FALSE(first.set_index_table(LayerGroupId(0), std::span(table).first(1)).has_value());
    ASSERT_FALSE(first.resize(50).has_value());
    ASSERT_TRUE(cache.manager->set_quota(Tier::kHost, 32 << 10).has_value());
    cache.resume(first);
    ASSERT_TRUE(first.stop_committing().has_value());
    first.close();
    cache.run(numbers(500, 9));
    cache.manager->token_digests().release(std::span(&image, 1));
    ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
    cache.run(numbers(900, 9));
    ASSERT_TRUE(cache.manager->shutdown().has_value());
  }

  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }

  // Everything up to the end, or why not.
  Result<std::int64_t> replay() const {
    SLACKWATER_ASSIGN_OR_RETURN(const auto replay, LogReplay::open(path()));
    while (true) {
      SLACKWATER_ASSIGN_OR_RETURN(const bool is_made, replay->step());
      if (!is_made) return replay->num_calls();
    }
  }
  void expect_error(ErrorCode code, const std::string& text) const {
    const auto made = replay();
    ASSERT_FALSE(made.has_value()) << "expected: " << text;
    EXPECT_EQ(made.error().code(), code) << made.error().text();
    EXPECT_THAT(made.error().text(), AllOf(HasSubstr(text), HasSubstr("calls")));
    EXPECT_THAT(made.error().text(), testing::Not(HasSubstr("\n")));
  }

  TemporaryDirectory directory_;
};

TEST_F(OperationLog, HasEveryCallInOrder) {
  {
    TestCache cache(config());
    work(cache);
  }
  const auto log = LogReader::open(path());
  ASSERT_TRUE(log.has_value()) << log.error().text();
  std::string kinds;
  for (auto call = (*log)->next(); call.has_value() && call->has_value(); call = (*log)->next()) {
    kinds += fmt::format("{}{} ", to_string((*call)->kind), (*call)->refusal ? "!" : "");
  }
  EXPECT_EQ(kinds,
            "opening token digest create resume resize reserve_snapshot reserve_snapshot "
            "cancel_snapshot resize commit commit suspend trim trim! set_index_table "
            "set_index_table! resize! "
            "set_quota resume stop_committing close create resume resize commit close "
            "clear_reusable_blocks create resume resize commit close shutdown ");
  EXPECT_EQ((*replay()), 32);
}

TEST_F(OperationLog, IsReadableAtEveryMoment) {
  TestCache cache(config());
  work(cache);
  EXPECT_EQ(*replay(), cache.manager->num_logged_calls()) << "while it is open";
}

// The process is killed inside a call: the log names it, and everything before it can be done
// again.
TEST_F(OperationLog, ACrashLeavesALogThatNamesTheCall) {
  const pid_t child = ::fork();
  if (child == 0) {
    TestCache cache(config());
    SequenceOptions options;
    const Tokens tokens = numbers(0, 9);
    options.tokens = tokens;
    options.priority = [](BlockOrdinal, LayerGroupId) -> Priority {
      ::kill(::getpid(), SIGKILL);
      return 0;
    };
    Sequence sequence = *cache.manager->create_sequence(options);
    cache.resume(sequence);
    cache.compute(sequence, tokens);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  auto replay = LogReplay::open(path());
  ASSERT_TRUE(replay.has_value()) << replay.error().text();
  while (*(*replay)->step()) {
  }
  EXPECT_EQ((*replay)->num_calls(), 3) << "create, resume, resize";
  ASSERT_TRUE((*replay)->interrupted_call().has_value());
  EXPECT_THAT((*replay)->interrupted_call()->describe(),
              HasSubstr("call 4, commit of sequence 0 at offset"));
  EXPECT_EQ((*replay)->sequences()[0].capacity(), 9);
  (*replay)->manager().audit();
}

TEST_F(OperationLog, WhatIsCutSaysWhere) {
  {
    TestCache cache(config());
    work(cache);
  }
  const std::string whole = bytes();
  for (const std::size_t size : {std::size_t{0}, std::size_t{20}, std::size_t{47}}) {
    write(whole.substr(0, size));
    expect_error(ErrorCode::kDataLoss, fmt::format("of {} bytes is no operation log", size));
  }
  write(whole.substr(0, 100));
  expect_error(ErrorCode::kDataLoss, "is cut at offset 48");
  for (std::size_t cut = 1; cut < 600; cut += 7) {
    write(whole.substr(0, whole.size() - cut));
    expect_error(ErrorCode::kDataLoss, fmt::format("and ends at offset {}", whole.size() - cut));
  }
}

// One bit anywhere: no call is made from it unnoticed, and the offset is that of the call.
TEST_F(OperationLog, WhatIsEditedSaysWhere) {
  {
    TestCache cache(config());
    work(cache);
  }
  const std::string whole = bytes();
  LogHeader header;
  std::memcpy(&header, whole.data(), sizeof header);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    // Nothing follows from padding, and little from the state of the file.
    if (at < 48 || at % (at < header.first_record ? 29 : 3) == 0) {
      std::string edited = whole;
      edited[at] = static_cast<char>(edited[at] ^ (1 << (at % 8)));
      write(edited);
      const auto made = replay();
      const bool is_padding = at >= 48 + header.config_bytes && at < header.first_record;
      const bool is_state = at >= 12 && at < 16;
      if (is_padding || is_state) continue;
      ASSERT_FALSE(made.has_value()) << "byte " << at << " of " << whole.size();
      EXPECT_NE(made.error().code(), ErrorCode::kInvalidArgument) << made.error().text();
    }
  }
  // An end where a call begins is not the end.
  LogHeader shorter = header;
  shorter.end = header.first_record;
  std::string moved = whole;
  std::memcpy(moved.data(), &shorter, sizeof shorter);
  write(moved);
  expect_error(ErrorCode::kDataLoss,
               fmt::format("past the end that is written down, at offset {}", header.first_record));
  std::string edited = whole;
  edited[header.first_record + 1] ^= 8;
  write(edited);
  expect_error(ErrorCode::kDataLoss,
               fmt::format("has been edited at offset {}", header.first_record));
}

TEST_F(OperationLog, AnotherVersionIsNamed) {
  { TestCache cache(config()); }
  std::string other = bytes();
  other[8] = 9;
  write(other);
  expect_error(ErrorCode::kUnimplemented, "has version 9 at offset 8; this program reads 2");
  other[0] = 'X';
  write(other);
  expect_error(ErrorCode::kDataLoss, "at offset 0 it says 'XLKWLOG1'");
}

TEST_F(OperationLog, NoFileAndAFileThatIsThere) {
  expect_error(ErrorCode::kNotFound, "cannot open the operation log");
  write("precious");
  const auto device = device::make_cpu_device();
  const auto made = KvCacheManager::create(*device, config());
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(made.error().text(), HasSubstr("is there already; move it away"));
  EXPECT_EQ(bytes(), "precious");
  KvCacheConfig elsewhere = config();
  elsewhere.operation_log.path = directory_.path() / "no" / "calls";
  EXPECT_EQ(KvCacheManager::create(*device, std::move(elsewhere)).error().code(),
            ErrorCode::kUnavailable);
}

TEST_F(OperationLog, HasALeastSize) {
  KvCacheConfig wanted = config();
  wanted.operation_log.max_bytes = -1;
  const Result<void> valid = validate(wanted);
  ASSERT_FALSE(valid.has_value());
  EXPECT_EQ(valid.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(valid.error().text(), HasSubstr("at most -1 bytes; give it 1048576 or more"));
}

// A manager that cannot be made leaves no log behind.
TEST_F(OperationLog, GoesWithAManagerThatCouldNotBeMade) {
  device::CpuDeviceOptions small;
  small.device_bytes = 4096;
  const auto device = device::make_cpu_device(small);
  ASSERT_FALSE(KvCacheManager::create(*device, config()).has_value());
  EXPECT_FALSE(std::filesystem::exists(path()));
}

// The manager outlives its log: what is in it is whole.
TEST_F(OperationLog, EndsWhereItIsFull) {
  std::vector<std::string> warnings;
  {
    KvCacheConfig wanted = config();
    wanted.operation_log.max_bytes = 1 << 20;
    wanted.operation_log.warn = [&](std::string_view text) { warnings.emplace_back(text); };
    TestCache cache(std::move(wanted));
    for (int i = 0; i < 60; ++i) {
      const Tokens tokens = numbers(0, 10'000);
      EXPECT_EQ(cache.create(tokens).num_committed(), 0);
    }
  }
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("has its 1048576 bytes; calls from here on are not in it"));
  const auto replay = LogReplay::open(path());
  ASSERT_TRUE(replay.has_value()) << replay.error().text();
  EXPECT_TRUE((*replay)->is_log_full());
  while (*(*replay)->step()) {
  }
  EXPECT_EQ((*replay)->num_calls(), 52) << "26 of 40,040 bytes each, made and closed";
}

// The smallest records go up to the last word that there is room for, and no further.
TEST_F(OperationLog, EndsAtItsLastWord) {
  for (const int shift : {0, 1, 2, 3}) {
    std::filesystem::remove(path());
    int num_warnings = 0;
    {
      KvCacheConfig wanted = config();
      wanted.operation_log.max_bytes = 1 << 20;
      wanted.operation_log.warn = [&](std::string_view) { ++num_warnings; };
      TestCache cache(std::move(wanted));
      Sequence sequence = cache.create(numbers(0, 2 * shift + 1));
      cache.resume(sequence);
      ASSERT_TRUE(sequence.resize(1).has_value());
      for (int i = 0; i < 70'000; ++i) {
        ASSERT_TRUE(sequence.resize(1 + i % 3).has_value());
        if (i % 1000 == 0) {
          ASSERT_TRUE(sequence.suspend().has_value());
          cache.resume(sequence);
        }
      }
      ASSERT_TRUE(sequence.resize(1).has_value());
      ASSERT_TRUE(sequence.commit(numbers(0, 1)).has_value());
    }
    EXPECT_EQ(num_warnings, 1);
    EXPECT_GT(std::filesystem::file_size(path()), (1u << 20) - 64);
    const auto made = replay();
    EXPECT_TRUE(made.has_value()) << made.error().text();
  }
}

// Which event a commit was given, and of how many it is merged, is among what the log knows.
TEST_F(OperationLog, EventsMayBeMergedSharedAndMany) {
  {
    KvCacheConfig wanted = config();
    wanted.device_bytes = 256 << 10;
    TestCache cache(std::move(wanted));
    std::vector<Sequence> all;
    std::vector<device::EventSource> steps;
    for (int i = 0; i < 12; ++i) {
      all.push_back(cache.create({}));
      cache.resume(all.back());
      ASSERT_TRUE(all.back().resize(20).has_value());
      steps.push_back(cache.device->make_event("a step"));
    }
    const std::vector<device::Event> two = {steps[0].event(), steps[1].event()};
    const device::Event both = device::merge(two);
    for (const int round : {0, 1}) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const Tokens tokens = numbers(static_cast<TokenId>(100 * i) + 5 * round, 5);
        const device::Event& written = i % 3 == 2 ? both : steps[i].event();
        ASSERT_TRUE(all[i].commit(tokens, {written, false}).has_value());
      }
    }
    for (Sequence& sequence : all) ASSERT_TRUE(sequence.suspend().has_value());
    for (device::EventSource& step : steps) step.complete(device::EventStatus::kSucceeded);
    for (Sequence& sequence : all) cache.resume(sequence);
  }
  const auto made = replay();
  EXPECT_TRUE(made.has_value()) << made.error().text();
}

// The same digest gets another token once nobody needs the first; the log has no word of that.
TEST_F(OperationLog, TokensOfDigestsChangeHands) {
  {
    TestCache cache(config());
    TokenDigests& digests = cache.manager->token_digests();
    Sha256Digest one = {};
    Sha256Digest two = {};
    two[0] = std::byte{2};
    for (int i = 0; i < 3; ++i) {
      const TokenId first = *digests.acquire(one);
      const TokenId second = *digests.acquire(two);
      Tokens tokens = numbers(100 * i, 9);
      tokens[2] = first;
      tokens[3] = second;
      cache.run(tokens);
      ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
      digests.release(std::span(&first, 1));
      digests.release(std::span(&second, 1));
      static_cast<void>(cache.manager->take_statistics());
    }
  }
  const auto replay = LogReplay::open(path());
  while (*(*replay)->step()) {
  }
  (*replay)->manager().audit();
  (*replay)->manager().token_digests().check_invariants();
}

// A log of other code, as a call with another ending would be: the call is named.
TEST_F(OperationLog, ACallThatEndsOtherwiseIsNamed) {
  {
    TestCache cache(config());
    const Sequence sequence = cache.create(numbers(0, 9));
  }
  std::string other = bytes();
  LogHeader header;
  std::memcpy(&header, other.data(), sizeof header);
  // The close becomes a refused one, and the check agrees.
  std::size_t at = header.first_record;
  LogCheck check;
  while (at < other.size()) {
    LogRecord record;
    std::memcpy(&record, other.data() + at, sizeof record);
    if (record.kind == static_cast<std::uint8_t>(LoggedKind::kClose)) record.outcome = 4;
    const std::size_t rest =
        8 * ((record.counts >> kWordsShift) + ((record.counts & kMostAnswers) + 7) / 8);
    record.check = check.add(LogCheck::first_word(record), LogCheck::word(&record, 8),
                             std::as_bytes(std::span(other).subspan(at + sizeof record, rest)));
    std::memcpy(other.data() + at, &record, sizeof record);
    at += sizeof record + rest;
  }
  write(other);
  const auto made = replay();
  ASSERT_FALSE(made.has_value());
  EXPECT_THAT(made.error().text(), HasSubstr("call 2, close of sequence 0 at offset"));
  EXPECT_THAT(made.error().text(),
              HasSubstr("was refused as ResourceExhausted and now succeeded; the log was made by "
                        "another program, or edited"));
}

}  // namespace
}  // namespace slackwater::cache
