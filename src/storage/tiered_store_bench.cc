// What pages cost, each beside what bounds it: memcpy of the same pieces between the same places in
// the same run, and plain sequential transfers on the same disk.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/device/cpu_device.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::storage {
namespace {

constexpr LayerGroupId kPages{0};
constexpr std::int64_t kMiB = 1 << 20;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A store with one layer group, whose pages have one size.
struct BenchStore {
  BenchStore(std::int64_t page_bytes, std::int64_t num_pages, int copy_threads,
             std::int64_t disk_pages = 0) {
    TieredStoreOptions options;
    LayerGroupSpec group;
    group.name = "pages";
    const std::vector<BufferSpec> buffers = {{"bytes", page_bytes, 1}};
    group.layout = *lay_out_slots(buffers, PoolPolicy::kOnePool);
    options.layer_groups = {group};
    options.device_bytes = options.host_bytes = num_pages * page_bytes + 64 * kMiB;
    options.device_grain_bytes = options.host_grain_bytes = 2 * kMiB;
    options.copy_threads = copy_threads;
    options.disk_bytes = disk_pages * (page_bytes + 8192);
    if (disk_pages > 0) {
      const char* const chosen = std::getenv("SLACKWATER_BENCH_DIRECTORY");
      directory =
          std::filesystem::path(chosen == nullptr ? "." : chosen) / "slackwater-bench-pages";
      options.disk.directory = directory;
      options.disk.segment_bytes = 256 * kMiB;
    }
    auto made = TieredStore::create(*device, std::move(options));
    if (!made.has_value()) {
      std::fprintf(stderr, "%s\n", made.error().text().c_str());
      std::exit(1);
    }
    store = *std::move(made);
    pages.resize(static_cast<std::size_t>(num_pages));
    static_cast<void>(store->allocate(kPages, pages));
    for (const PageId page : pages)
      store->certify(page, {PrefixOwner{{page.index, 1}}, 0, kPages, 0});
  }
  ~BenchStore() {
    store.reset();
    if (!directory.empty()) std::filesystem::remove_all(directory);
  }

  void move(std::span<const PageId> moved, Tier to) const {
    if (!store->migrate(moved, to).has_value()) std::abort();
    store->synchronize();
  }

  std::unique_ptr<device::Device> device = device::make_cpu_device();
  std::filesystem::path directory;
  std::unique_ptr<TieredStore> store;
  std::vector<PageId> pages;
};

void allocate_and_release_a_page(benchmark::State& state) {
  BenchStore bench(4096, 1, 1);
  for (auto _ : state) bench.store->release(*bench.store->allocate(kPages));
}

void allocate_and_release_pages_in_batches(benchmark::State& state) {
  constexpr std::size_t kBatch = 1000;
  BenchStore bench(4096, 1, 1);
  std::vector<PageId> pages(kBatch);
  for (auto _ : state) {
    if (!bench.store->allocate(kPages, pages).has_value()) std::abort();
    for (const PageId page : pages) bench.store->release(page);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

// Copies the pieces as the store will: from the same slots, to slots mapped alike.
void copy_by_memcpy(const std::vector<std::span<std::byte>>& from,
                    const std::vector<std::byte*>& to, int num_threads) {
  const auto share = [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) std::memcpy(to[i], from[i].data(), from[i].size());
  };
  const std::size_t half = num_threads == 2 ? from.size() / 2 : from.size();
  std::thread other([&] { share(half, from.size()); });
  share(0, half);
  other.join();
}

// Arguments: bytes of a page, pages of a batch, threads; 0: device to host, 1: back.
void copy_between_device_and_host(benchmark::State& state) {
  constexpr std::int64_t kWorkingSet = 1200 * kMiB;
  const std::int64_t page_bytes = state.range(0);
  const auto batch = static_cast<std::size_t>(state.range(1));
  const auto num_threads = static_cast<int>(state.range(2));
  const bool to_host = state.range(3) == 0;
  const auto num_batches = static_cast<std::size_t>(
      std::max<std::int64_t>(2, kWorkingSet / (page_bytes * state.range(1))));
  BenchStore bench(page_bytes, static_cast<std::int64_t>(batch * num_batches), num_threads);
  // Scattered: neighbours in a batch are not neighbours in memory.
  std::vector<PageId> shuffled(bench.pages.size());
  for (std::size_t i = 0; i < shuffled.size(); ++i) {
    shuffled[i] = bench.pages[i * 7919 % bench.pages.size()];
  }
  for (const PageId page : bench.pages) {
    std::memset(bench.store->bytes(page).data(), 1, bench.store->bytes(page).size());
  }
  const auto target = bench.device->reserve_arena(
      device::MemoryKind::kPinnedHost, static_cast<std::size_t>(page_bytes) * bench.pages.size(),
      2 * kMiB);
  if (!(*target)->resize((*target)->reserved_bytes()).has_value()) std::abort();

  std::vector<double> ratios;
  std::size_t next = 0;
  for (auto _ : state) {
    const auto pages = std::span<const PageId>(shuffled).subspan(next * batch, batch);
    std::vector<std::span<std::byte>> from;
    std::vector<std::byte*> to;
    if (!to_host) bench.move(pages, Tier::kHost);
    for (std::size_t i = 0; i < batch; ++i) {
      from.push_back(bench.store->bytes(pages[i]));
      to.push_back((*target)->base() + (next * batch + i) * static_cast<std::size_t>(page_bytes));
    }
    const double ceiling = seconds_of([&] { copy_by_memcpy(from, to, num_threads); });
    const double ours =
        seconds_of([&] { bench.move(pages, to_host ? Tier::kHost : Tier::kDevice); });
    if (to_host) bench.move(pages, Tier::kDevice);
    state.SetIterationTime(ours);
    ratios.push_back(ceiling / ours);
    next = (next + 1) % num_batches;
  }
  state.SetBytesProcessed(state.iterations() * state.range(1) * page_bytes);
  state.counters["share_of_memcpy"] = median(ratios);
  state.counters["least"] = *std::min_element(ratios.begin(), ratios.end());
  state.counters["most"] = *std::max_element(ratios.begin(), ratios.end());
}

// Plain sequential transfers of 8 MiB, past the page cache where that works, from and to huge
// pages.
class RawFile {
 public:
  RawFile(const std::filesystem::path& directory, std::int64_t bytes)
      : path_(directory / "raw"), bytes_(bytes) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (file_ < 0) file_ = ::open(path_.c_str(), O_RDWR | O_CREAT, 0600);
    if (file_ < 0 || ::posix_fallocate(file_, 0, bytes) != 0) std::abort();
    block_ = static_cast<std::byte*>(std::aligned_alloc(2 * kMiB, kBlock));
    advise_huge_pages(block_, kBlock);
    std::memset(block_, 1, kBlock);
  }
  ~RawFile() {
    ::close(file_);
    ::unlink(path_.c_str());
    std::free(block_);
  }
  void transfer(bool writes) const {
    for (std::int64_t at = 0; at < bytes_; at += static_cast<std::int64_t>(kBlock)) {
      const ssize_t count =
          writes ? ::pwrite(file_, block_, kBlock, at) : ::pread(file_, block_, kBlock, at);
      if (count != static_cast<ssize_t>(kBlock)) std::abort();
    }
  }

 private:
  static constexpr std::size_t kBlock = 8 << 20;
  const std::filesystem::path path_;
  const std::int64_t bytes_;
  int file_ = -1;
  std::byte* block_ = nullptr;
};

// Arguments: bytes of a page, pages of a batch; 0: device to disk, 1: back.
void copy_between_device_and_disk(benchmark::State& state) {
  const std::int64_t page_bytes = state.range(0);
  const std::int64_t batch = state.range(1);
  const bool to_disk = state.range(2) == 0;
  BenchStore bench(page_bytes, batch, 1, batch);
  for (const PageId page : bench.pages) {
    std::memset(bench.store->bytes(page).data(), 1, bench.store->bytes(page).size());
  }
  const RawFile raw(bench.directory, page_bytes * batch / (8 * kMiB) * (8 * kMiB));
  raw.transfer(true);
  std::vector<double> ratios;
  for (auto _ : state) {
    if (!to_disk) bench.move(bench.pages, Tier::kDisk);
    const double ceiling = seconds_of([&] { raw.transfer(to_disk); });
    const double ours =
        seconds_of([&] { bench.move(bench.pages, to_disk ? Tier::kDisk : Tier::kDevice); });
    if (to_disk) bench.move(bench.pages, Tier::kDevice);
    state.SetIterationTime(ours);
    ratios.push_back(ceiling / ours);
  }
  state.SetBytesProcessed(state.iterations() * batch * page_bytes);
  state.counters["share_of_sequential"] = median(ratios);
  state.counters["least"] = *std::min_element(ratios.begin(), ratios.end());
  state.counters["most"] = *std::max_element(ratios.begin(), ratios.end());
}

void register_benchmarks() {
  constexpr std::int64_t kStateBytes = 40 * kMiB;
  constexpr std::int64_t kPageBytes = 36 << 10;
  benchmark::RegisterBenchmark("allocate_and_release_a_page", allocate_and_release_a_page);
  benchmark::RegisterBenchmark("allocate_and_release_pages_in_batches",
                               allocate_and_release_pages_in_batches);
  auto* const memory =
      benchmark::RegisterBenchmark("copy_between_device_and_host", copy_between_device_and_host)
          ->ArgNames({"page_bytes", "pages", "threads", "back"})
          ->Iterations(9)
          ->UseManualTime();
  for (const std::int64_t threads : {1, 2}) {
    for (const std::int64_t back : {0, 1}) {
      memory->Args({kStateBytes, 4, threads, back});
      memory->Args({kPageBytes, 4096, threads, back});
    }
  }
  auto* const disk =
      benchmark::RegisterBenchmark("copy_between_device_and_disk", copy_between_device_and_disk)
          ->ArgNames({"page_bytes", "pages", "back"})
          ->Iterations(5)
          ->UseManualTime();
  for (const std::int64_t back : {0, 1}) {
    disk->Args({kStateBytes, 12, back});
    disk->Args({kPageBytes, 12'000, back});
  }
}

[[maybe_unused]] const bool is_registered = (register_benchmarks(), true);

}  // namespace
}  // namespace slackwater::storage
