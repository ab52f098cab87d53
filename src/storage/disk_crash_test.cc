// A process that is killed in the middle of disk writes leaves a directory from which nothing with
// wrong bytes is ever served.
//
//   SLACKWATER_KILLS=200 slackwater_storage_test --gtest_filter='DiskCrash*'

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/device/cpu_device.h"
#include "slackwater/storage/tiered_store.h"
#include "testing/page_oracle.h"
#include "testing/seed.h"
#include "testing/temporary_directory.h"

extern char** environ;

namespace slackwater::storage {
namespace {

constexpr const char* kDirectoryVariable = "SLACKWATER_CRASH_DIRECTORY";
constexpr LayerGroupId kGroup{0};
constexpr std::int64_t kPages = 64;

std::unique_ptr<TieredStore> open_store(device::Device& device, const std::string& directory) {
  TieredStoreOptions options;
  LayerGroupSpec group;
  group.name = "pages";
  const std::vector<BufferSpec> buffers = {{"bytes", 20'480, 2}};
  group.layout = *lay_out_slots(buffers, PoolPolicy::kOnePool);
  options.layer_groups = {group};
  options.device_bytes = kPages * 40'960;
  options.disk_bytes = kPages * 45'056;
  options.disk.directory = directory;
  options.disk.segment_bytes = 1 << 20;
  options.disk.warn = [](std::string_view) {};
  auto store = TieredStore::create(device, std::move(options));
  EXPECT_TRUE(store.has_value()) << store.error().text();
  return *std::move(store);
}

Certificate certificate_of(std::uint64_t key) { return {PrefixOwner{{key, 0}}, 0, kGroup, 0}; }

// Writes pages over and over, each with the bytes of its key, until it is killed. Run by the test
// below in a process of its own.
TEST(DiskCrashWriter, DISABLED_WritesForEver) {
  const char* const directory = std::getenv(kDirectoryVariable);
  ASSERT_NE(directory, nullptr);
  const auto device = device::make_cpu_device();
  const auto store = open_store(*device, directory);
  std::mt19937_64 random(static_cast<std::uint64_t>(::getpid()));
  std::vector<PageId> on_disk;
  while (true) {
    std::vector<PageId> pages(1 + random() % 8);
    ASSERT_TRUE(store->allocate(kGroup, pages).has_value());
    for (const PageId page : pages) {
      const std::uint64_t key = 1 + random() % 1000;
      store->info(page).ready.wait();
      oracle_fill(store->bytes(page), key);
      store->certify(page, certificate_of(key));
    }
    while (!store->migrate(pages, Tier::kDisk).has_value()) {
      ASSERT_FALSE(on_disk.empty());
      store->release(on_disk.front());
      on_disk.erase(on_disk.begin());
    }
    on_disk.insert(on_disk.end(), pages.begin(), pages.end());
  }
}

// Starts the writer and kills it `after` some time.
void write_and_be_killed(const std::string& directory, std::chrono::microseconds after) {
  ::setenv(kDirectoryVariable, directory.c_str(), 1);
  std::string program = "/proc/self/exe";
  std::string filter = "--gtest_filter=DiskCrashWriter.*";
  std::string disabled = "--gtest_also_run_disabled_tests";
  std::string brief = "--gtest_brief=1";
  char* const arguments[] = {program.data(), filter.data(), disabled.data(), brief.data(), nullptr};
  pid_t writer = 0;
  ASSERT_EQ(::posix_spawn(&writer, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  std::this_thread::sleep_for(after);
  ASSERT_EQ(::kill(writer, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
}

struct Survey {
  std::int64_t served = 0;
  std::int64_t misses = 0;
  std::int64_t wrong = 0;
};

// What a new process gets from the directory for every key there can be.
Survey read_everything(const std::string& directory) {
  const auto device = device::make_cpu_device();
  const auto store = open_store(*device, directory);
  Survey survey;
  for (std::uint64_t key = 1; key <= 1000; ++key) {
    const auto page = store->adopt(certificate_of(key));
    if (!page.has_value()) continue;
    EXPECT_TRUE(store->migrate(std::span(&*page, 1), Tier::kDevice).has_value());
    if (store->info(*page).ready.wait() != device::EventStatus::kSucceeded) {
      ++survey.misses;
    } else {
      ++survey.served;
      if (!oracle_matches(store->bytes(*page), key)) ++survey.wrong;
    }
    store->release(*page);
  }
  store->audit();
  return survey;
}

TEST(DiskCrash, NothingWithWrongBytesIsServedAfterAKill) {
  std::mt19937_64 random(test_seed());
  const char* const chosen = std::getenv("SLACKWATER_KILLS");
  const int num_kills = chosen == nullptr ? 8 : std::atoi(chosen);
  const TemporaryDirectory directory;
  Survey total;
  for (int i = 0; i < num_kills; ++i) {
    const auto after = std::chrono::microseconds(20'000 + random() % 120'000);
    write_and_be_killed(directory.path() / "pages", after);
    if (testing::Test::HasFailure()) return;
    const Survey survey = read_everything(directory.path() / "pages");
    ASSERT_EQ(survey.wrong, 0) << "after kill " << i;
    total.served += survey.served;
    total.misses += survey.misses;
  }
  fmt::print(stderr, "{} kills: {} pages served, all right; {} misses\n", num_kills, total.served,
             total.misses);
  EXPECT_GT(total.served, 0);
}

}  // namespace
}  // namespace slackwater::storage
