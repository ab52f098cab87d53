#include "slackwater/model/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "model/file_test_support.h"

namespace slackwater::model {
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, HasTheBytesOfTheFile) {
  const TempDirectory directory;
  const std::string content(100'000, 'x');
  const auto file = MappedFile::open(directory.write("f", content + "end"));
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_EQ(text_of(*file), content + "end");
  file->advise_sequential();
  EXPECT_EQ(text_of(*file), content + "end");
}

TEST(MappedFile, KeepsItsAddressWhenMovedAndLeavesNothingBehind) {
  const TempDirectory directory;
  auto first = MappedFile::open(directory.write("a", "aaa"));
  auto second = MappedFile::open(directory.write("b", "bb"));
  ASSERT_TRUE(first.has_value() && second.has_value());
  const std::byte* const address = first->bytes().data();

  MappedFile moved = *std::move(first);
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_TRUE(first->bytes().empty());
  *second = std::move(moved);
  EXPECT_EQ(text_of(*second), "aaa");
  EXPECT_TRUE(moved.bytes().empty());
}

TEST(MappedFile, OutlivesTheNameOfTheFile) {
  const TempDirectory directory;
  const auto path = directory.write("f", "still here");
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.has_value());
  ASSERT_TRUE(std::filesystem::remove(path));
  EXPECT_EQ(text_of(*file), "still here");
}

TEST(MappedFile, SaysThatAFileIsNotThere) {
  const TempDirectory directory;
  directory.write("f", "x");
  for (const char* const name : {"absent", "f/below-a-file"}) {
    const auto path = directory.path() / name;
    expect_refused(MappedFile::open(path), ErrorCode::kNotFound,
                   {"cannot open", path.string(),
                    std::strerror(path.filename() == "absent" ? ENOENT : ENOTDIR)});
  }
}

TEST(MappedFile, RefusesADirectory) {
  const TempDirectory directory;
  expect_refused(MappedFile::open(directory.path()), ErrorCode::kInvalidArgument,
                 {directory.path().string(), "is a directory"});
}

TEST(MappedFile, RefusesAPipeWithoutWaitingForAWriter) {
  const TempDirectory directory;
  const auto path = directory.path() / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_refused(MappedFile::open(path), ErrorCode::kInvalidArgument,
                 {path.string(), "not a regular file"});
}

TEST(MappedFile, RefusesAnEmptyFile) {
  const TempDirectory directory;
  const auto path = directory.write("f", "");
  expect_refused(MappedFile::open(path), ErrorCode::kDataLoss, {path.string(), "is empty"});
}

TEST(MappedFile, SaysThatPermissionIsDenied) {
  constexpr uid_t kNobody = 65534;
  const TempDirectory directory;
  const auto path = directory.write("f", "secret");
  ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const bool is_root = ::geteuid() == 0;
  if (is_root && ::seteuid(kNobody) != 0) GTEST_SKIP() << "root that cannot become another user";
  const auto file = MappedFile::open(path);
  ASSERT_EQ(is_root ? ::seteuid(0) : 0, 0);
  expect_refused(file, ErrorCode::kUnavailable,
                 {"cannot open", path.string(), "Permission denied"});
}

}  // namespace
}  // namespace slackwater::model
