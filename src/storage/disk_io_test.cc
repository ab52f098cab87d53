// What every way to the disk promises, asked of each.

#include "slackwater/storage/disk_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/page_oracle.h"
#include "testing/temporary_directory.h"

namespace slackwater::storage {
namespace {

struct Way {
  std::string name;
  std::function<std::unique_ptr<DiskIo>()> make;  // null where this machine has it not
};

void PrintTo(const Way& way, std::ostream* os) { *os << way.name; }

std::vector<Way> ways() {
  return {{"blocking", make_blocking_disk_io},
          {"threads", [] { return make_threaded_disk_io(3); }},
          {"uring", [] {
             auto io = make_uring_disk_io(4);
             return io.has_value() ? *std::move(io) : nullptr;
           }}};
}

// An open file. Requests that outlive their deadline own it together with their memory.
struct OpenFile {
  explicit OpenFile(int opened) : descriptor(opened) {}
  ~OpenFile() { ::close(descriptor); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const int descriptor;
};
struct OwnedMemory {
  std::vector<std::byte> bytes;
  std::shared_ptr<OpenFile> file;
};

class DiskIoThreads : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    io_ = GetParam().make();
    if (io_ == nullptr) GTEST_SKIP() << "this kernel or sandbox has no io_uring";
    file_ = ::open((directory_.path() / "file").c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_GE(file_, 0);
    owner_ = std::make_shared<OpenFile>(file_);
  }

  IoRequest request(IoRequest::Kind kind, std::uint64_t offset, std::span<std::byte> buffer) const {
    IoRequest request;
    request.kind = kind;
    request.file = file_;
    request.offset = offset;
    request.buffer = buffer;
    return request;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<DiskIo> io_;
  int file_ = -1;
  std::shared_ptr<OpenFile> owner_;
};

INSTANTIATE_TEST_SUITE_P(Ways, DiskIoThreads, testing::ValuesIn(ways()),
                         [](const auto& way) { return way.param.name; });

constexpr auto kLong = std::chrono::seconds(60);

TEST_P(DiskIoThreads, ReadsWhatItWrote) {
  constexpr std::size_t kBytes = 12'345 * 8;
  constexpr std::size_t kCount = 21;  // more than are in flight at once
  auto memory = std::make_shared<std::vector<std::byte>>(kBytes * kCount);
  std::vector<IoRequest> requests;
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto part = std::span(*memory).subspan(i * kBytes, kBytes);
    oracle_fill(part, 100 + i);
    requests.push_back(request(IoRequest::Kind::kWrite, (kCount - 1 - i) * kBytes, part));
  }
  io_->transfer(requests, memory, kLong);
  for (const IoRequest& done : requests) EXPECT_EQ(done.status, IoStatus::kDone);
  std::memset(memory->data(), 0, memory->size());
  for (IoRequest& again : requests) again.kind = IoRequest::Kind::kRead;
  io_->transfer(requests, memory, kLong);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(requests[i].status, IoStatus::kDone);
    EXPECT_TRUE(oracle_matches(requests[i].buffer, 100 + i)) << i;
  }
}

TEST_P(DiskIoThreads, AReadPastTheEndIsShort) {
  auto memory = std::make_shared<std::vector<std::byte>>(8192, std::byte{1});
  ASSERT_EQ(::ftruncate(file_, 5000), 0);
  std::vector<IoRequest> requests = {
      request(IoRequest::Kind::kRead, 0, std::span(*memory).first(4096)),
      request(IoRequest::Kind::kRead, 4096, std::span(*memory).last(4096))};
  io_->transfer(requests, memory, kLong);
  EXPECT_EQ(requests[0].status, IoStatus::kDone);
  EXPECT_EQ(requests[1].status, IoStatus::kShort);
}

TEST_P(DiskIoThreads, AnErrorIsTheRequestsOwn) {
  auto memory = std::make_shared<std::vector<std::byte>>(8192);
  std::vector<IoRequest> requests = {
      request(IoRequest::Kind::kWrite, 0, std::span(*memory).first(4096)),
      request(IoRequest::Kind::kWrite, 0, std::span(*memory).last(4096))};
  requests[1].file = -1;
  io_->transfer(requests, memory, kLong);
  EXPECT_EQ(requests[0].status, IoStatus::kDone);
  EXPECT_EQ(requests[1].status, IoStatus::kFailed);
  EXPECT_EQ(requests[1].error_number, EBADF);
}

TEST_P(DiskIoThreads, NothingToDoIsDone) {
  io_->transfer({}, nullptr, kLong);
  auto memory = std::make_shared<std::vector<std::byte>>(1);
  std::vector<IoRequest> requests = {
      request(IoRequest::Kind::kRead, 0, std::span(*memory).first(0))};
  if (GetParam().name == "blocking") {
    io_->transfer(requests, memory, kLong);
    EXPECT_EQ(requests[0].status, IoStatus::kDone);
  }
}

// However short the time is, every request says whether it was done in it, the memory of those
// that were not stays until they are, and the next transfer is not confused by them.
TEST_P(DiskIoThreads, ADeadlineIsKeptAndLateAnswersHurtNobody) {
  constexpr std::size_t kBytes = 1 << 20;
  for (int round = 0; round < 20; ++round) {
    auto memory =
        std::make_shared<OwnedMemory>(OwnedMemory{std::vector<std::byte>(4 * kBytes), owner_});
    std::vector<IoRequest> requests;
    for (std::size_t i = 0; i < 4; ++i) {
      requests.push_back(request(IoRequest::Kind::kWrite, i * kBytes,
                                 std::span(memory->bytes).subspan(i * kBytes, kBytes)));
    }
    io_->transfer(requests, memory, std::chrono::nanoseconds(round * 20'000));
    for (const IoRequest& done : requests) {
      EXPECT_TRUE(done.status == IoStatus::kDone || done.status == IoStatus::kTimedOut);
    }
  }
  auto memory = std::make_shared<std::vector<std::byte>>(4096);
  oracle_fill(*memory, 5);
  std::vector<IoRequest> last = {request(IoRequest::Kind::kWrite, 8 * kBytes, std::span(*memory))};
  io_->transfer(last, memory, kLong);
  EXPECT_EQ(last[0].status, IoStatus::kDone);
}

TEST(DiskIoThreadsUring, ARequestWithoutAnAnswerTimesOutAndItsMemoryStays) {
  auto made = make_uring_disk_io(2);
  if (!made.has_value()) GTEST_SKIP() << made.error().text();
  std::unique_ptr<DiskIo> io = *std::move(made);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  auto memory = std::make_shared<std::vector<std::byte>>(64);
  const std::weak_ptr<std::vector<std::byte>> watched = memory;
  IoRequest request;
  request.file = ends[0];  // nobody writes to it
  request.buffer = *memory;
  io->transfer(std::span(&request, 1), memory, std::chrono::milliseconds(20));
  EXPECT_EQ(request.status, IoStatus::kTimedOut);
  memory.reset();
  EXPECT_FALSE(watched.expired()) << "the kernel may still write to it";
  io.reset();  // returns
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(DiskIoThreadsBest, IsOneOfTheTwo) {
  const std::string name(make_best_disk_io()->name());
  EXPECT_TRUE(name == "io_uring" || name == "threads") << name;
}

}  // namespace
}  // namespace slackwater::storage
