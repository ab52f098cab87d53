// How the pages of a TieredStore move between its tiers.

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/device/witness.h"
#include "slackwater/storage/tiered_store.h"
#include "storage/disk_page.h"
#include "storage/staging.h"
#include "storage/transient_bytes.h"

namespace slackwater::storage {

using device::Event;
using device::EventSource;
using device::EventStatus;

namespace {

// So many of every pool's bytes of one slot to another.
void copy_slot(device::Stream& stream, const PoolGroup& pools, const SlotSizes& bytes, SlotId from,
               SlotId to) {
  for (std::size_t pool = 0; pool < bytes.size(); ++pool) {
    if (bytes[pool] == 0) continue;
    device::CopyBatch copy;
    copy.piece_bytes = static_cast<std::size_t>(bytes[pool]);
    copy.pieces.push_back({pools.address(pool, to), pools.address(pool, from)});
    stream.copy(std::move(copy));
  }
}

}  // namespace

// Pages of one layer group on one tier. In memory they also share the event that makes them
// ready, because a batch is copied as one.
struct TieredStore::Batch {
  std::size_t layer_group = 0;
  Tier from = Tier::kDevice;
  Event ready;  // null once it has come
  std::vector<std::uint32_t> pages;
  const SlotSizes* durable = nullptr;  // as in ColdPair
};

// Frames that are on their way to the disk or from it, by one part of the staging memory. Shared
// by the store, which makes it, and the work that is queued.
struct TieredStore::DiskJob {
  std::size_t cold_group = 0;
  std::vector<FrameTransfer> frames;
  std::vector<EventSource> results;  // [frames], what the pages wait for
  std::vector<Event> sources;        // [frames], what must have succeeded before
  std::shared_ptr<StagingMemory> memory;

  bool may_touch_memory() const { return !memory->is_given_up; }

  // Runs `transfer` over the frames whose sources are good; the others fail.
  template <class Transfer>
  void run(Transfer transfer) {
    std::vector<FrameTransfer> good;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      frames[i].is_done = false;
      if (sources[i].status() != EventStatus::kSucceeded || !may_touch_memory()) continue;
      good.push_back(frames[i]);
      places.push_back(i);
    }
    if (good.empty()) return;
    if (!transfer(std::span(good)) && !SLACKWATER_MUTANT(staging_not_given_up)) {
      memory->is_given_up = true;
    }
    for (std::size_t i = 0; i < good.size(); ++i) frames[places[i]].is_done = good[i].is_done;
  }

  // Tells the pages. `rest` is the fate of what came after the transfer.
  void complete(EventStatus rest) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const bool is_good = frames[i].is_done && rest == EventStatus::kSucceeded;
      results[i].complete(is_good || SLACKWATER_MUTANT(lost_page_counts_as_read)
                              ? EventStatus::kSucceeded
                              : EventStatus::kFailed);
    }
  }
};

Result<void> TieredStore::migrate(std::span<const PageId> pages, Tier to) {
  SLACKWATER_ASSIGN_OR_RETURN(std::vector<std::uint32_t> plan, plan_migration(pages, to, nullptr));
  apply_migration(std::move(plan), to);
  return {};
}

Result<void> TieredStore::migrate(std::span<const PageId> pages, HostReservation& reservation) {
  SLACKWATER_CHECK(reservation.store_ == this, "a reservation of another store, or of none");
  SLACKWATER_ASSIGN_OR_RETURN(std::vector<std::uint32_t> plan,
                              plan_migration(pages, Tier::kHost, &reservation));
  const auto used = static_cast<std::int32_t>(plan.size());
  reservation.num_pages_ -= used;
  reserved_[reservation.cold_group_] -= used;
  apply_migration(std::move(plan), Tier::kHost);
  return {};
}

// What has to move, once it is known that all of it can.
Result<std::vector<std::uint32_t>> TieredStore::plan_migration(std::span<const PageId> pages,
                                                               Tier to,
                                                               const HostReservation* reservation) {
  if (!has_tier(to)) {
    return make_error(ErrorCode::kFailedPrecondition, "there is no {} tier to move {} pages to",
                      to_string(to), pages.size());
  }
  std::vector<std::uint32_t> plan;
  bool needs_staging = false;
  for (const PageId id : pages) {
    if (!is_alive(id)) {
      return make_error(ErrorCode::kNotFound, "page {} of life {} is gone", id.index, id.life);
    }
    const Page& page = pages_[id.index];
    if (page.ready.status() == EventStatus::kFailed) {
      return make_error(ErrorCode::kDataLoss, "the bytes of page {} on the {} are lost", id.index,
                        to_string(page.tier));
    }
    if (page.tier == to) continue;
    if (to == Tier::kDisk && page.certificate == Digest128()) {
      return make_error(
          ErrorCode::kFailedPrecondition,
          "page {} goes to disk without a certificate; certify it after it is written", id.index);
    }
    needs_staging |= to == Tier::kDisk || page.tier == Tier::kDisk;
    plan.push_back(id.index);
  }
  std::sort(plan.begin(), plan.end());
  plan.erase(std::unique(plan.begin(), plan.end()), plan.end());

  std::vector<std::int32_t> needed(num_pool_groups(to));
  for (const std::uint32_t index : plan) ++needed[pool_group_of(to, pages_[index])];
  for (std::size_t g = 0; g < needed.size(); ++g) {
    const bool is_reserved = reservation != nullptr && reservation->cold_group_ == g;
    const std::int32_t room = reservation == nullptr ? num_usable(to, g)
                              : is_reserved          ? reservation->num_pages_
                                                     : 0;
    if (needed[g] > room) {
      return make_error(ErrorCode::kResourceExhausted,
                        "need {} slots of pool group {} of the {} tier, {} of {} are {}", needed[g],
                        g, to_string(to), room, num_slots(to, g),
                        reservation == nullptr ? "free" : "in the reservation");
    }
  }
  if (needs_staging) SLACKWATER_RETURN_IF_ERROR(staging_->prepare());
  return plan;
}

void TieredStore::apply_migration(std::vector<std::uint32_t> pages, Tier to) {
  for (const Batch& batch : make_batches(std::move(pages))) move_batch(batch, to);
}

std::vector<TieredStore::Batch> TieredStore::make_batches(std::vector<std::uint32_t> pages) const {
  // Copies are ordered by where they read: by slot, which is by address.
  std::sort(pages.begin(), pages.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(pages_[a].layer_group, pages_[a].slot) <
           std::pair(pages_[b].layer_group, pages_[b].slot);
  });
  std::vector<Batch> batches;
  std::map<std::tuple<std::size_t, Tier, bool, const void*>, std::size_t> batch_of;
  for (const std::uint32_t index : pages) {
    const Page& page = pages_[index];
    // Frames of a disk job have fates of their own; elsewhere a batch has one. An event that has
    // failed since the plan was made stays: the copy of a lost page is lost.
    const bool is_settled = page.tier == Tier::kDisk ||
                            page.ready.status() == EventStatus::kSucceeded ||
                            SLACKWATER_MUTANT(failure_after_the_plan);
    Event ready = is_settled ? Event() : page.ready;
    const std::size_t which = device::witnessed([&] {
      return batch_of
          .try_emplace({page.layer_group, page.tier, page.is_durable_only, ready.id()},
                       batches.size())
          .first->second;
    });
    if (which == batches.size()) {
      batches.push_back({page.layer_group, page.tier, std::move(ready), {}, durable_of(page)});
    }
    batches[which].pages.push_back(index);
  }
  return batches;
}

void TieredStore::move_batch(const Batch& batch, Tier to) {
  std::vector<SlotGrant> grants;
  for (const std::uint32_t index : batch.pages) {
    grants.push_back(take_slot(to, pool_group_of(to, pages_[index])));
  }
  if (to == Tier::kDisk) {
    move_to_disk(batch, grants);
  } else if (batch.from == Tier::kDisk) {
    move_from_disk(batch, grants, to);
  } else {
    move_in_memory(batch, grants, to);
  }
}

// The page leaves its slot, which its next owner may touch after `last_use`, for another.
void TieredStore::finish_move(std::uint32_t index, const Event& last_use, Tier to, SlotId to_slot,
                              const Event& ready) {
  Page& page = pages_[index];
  const Tier from = page.tier;
  const SlotId from_slot = page.slot;
  --num_pages_[static_cast<std::size_t>(from)];
  place(index, to, to_slot);
  page.ready = ready;
  give_slot(from, pool_group_of(from, page), from_slot,
            SLACKWATER_MUTANT(release_before_the_copy_ends) ? Event() : last_use);
  ++pages_moved_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  bytes_moved_ += layer_groups_[page.layer_group].cold_bytes;
}

// What a stream does for pages that go from one kind of memory to another: `blob` is what is off
// the device. Between host and staging, `slot` is one of the host's.
CopyEngine::Queue TieredStore::copy_of(std::size_t layer_group, Tier from, Tier to) const {
  const LayerGroup& layers = layer_groups_[layer_group];
  const LayerGroupId id(static_cast<std::int32_t>(layer_group));
  const PoolGroup* hot = tiers_[static_cast<std::size_t>(Tier::kDevice)].pools[layers.hot].get();
  if (from == Tier::kDevice) {
    return [this, id, hot](device::Stream& stream, std::span<const ColdPair> pages) {
      codec_->encode(stream, id, *hot, pages);
    };
  }
  if (to == Tier::kDevice) {
    return [this, id, hot](device::Stream& stream, std::span<const ColdPair> pages) {
      codec_->decode(stream, id, *hot, pages);
      poison_transient(stream, *hot, pages);
    };
  }
  const PoolGroup* host = tiers_[static_cast<std::size_t>(Tier::kHost)].pools[layers.cold].get();
  const bool to_blob = from == Tier::kHost;
  return [host, to_blob](device::Stream& stream, std::span<const ColdPair> pages) {
    device::CopyBatch copy;
    copy.piece_bytes = static_cast<std::size_t>(host->slot_bytes()[0]);
    for (const ColdPair& page : pages) {
      std::byte* const slot = host->address(0, page.slot);
      copy.pieces.push_back(to_blob ? device::CopyPiece{page.blob, slot}
                                    : device::CopyPiece{slot, page.blob});
    }
    stream.copy(std::move(copy));
  };
}

void TieredStore::move_in_memory(const Batch& batch, std::span<const SlotGrant> grants, Tier to) {
  const std::size_t cold = layer_groups_[batch.layer_group].cold;
  const PoolGroup& host = *tiers_[static_cast<std::size_t>(Tier::kHost)].pools[cold];
  std::vector<Event> before;
  std::vector<ColdPair> pairs;
  for (std::size_t i = 0; i < grants.size(); ++i) {
    const SlotId from = pages_[batch.pages[i]].slot;
    if (!grants[i].ready.is_done()) before.push_back(grants[i].ready);
    pairs.push_back(to == Tier::kHost
                        ? ColdPair{from, host.address(0, grants[i].slot), batch.durable}
                        : ColdPair{grants[i].slot, host.address(0, from), batch.durable});
  }
  if (SLACKWATER_MUTANT(migrate_swaps_pages)) std::swap(pairs.front().blob, pairs.back().blob);
  const std::array<Event, 1> sources = {batch.ready};
  const Event copied =
      copies_->submit(before, sources, pairs, copy_of(batch.layer_group, batch.from, to));
  for (std::size_t i = 0; i < grants.size(); ++i) {
    finish_move(batch.pages[i], copied, to, grants[i].slot, copied);
  }
}

Result<void> TieredStore::copy(PageId from, PageId to) {
  const Page& source = live(from);
  const Page& target = live(to);
  SLACKWATER_CHECK(source.layer_group == target.layer_group && target.tier == Tier::kDevice,
                   "a copy from layer group {} to {} on the {}", source.layer_group,
                   target.layer_group, to_string(target.tier));
  if (source.tier == Tier::kDisk) {
    return make_error(ErrorCode::kFailedPrecondition, "page {} is on disk; migrate it first",
                      from.index);
  }
  if (source.ready.status() == EventStatus::kFailed) {
    return make_error(ErrorCode::kDataLoss, "the bytes of page {} on the {} are lost", from.index,
                      to_string(source.tier));
  }
  const LayerGroup& layers = layer_groups_[source.layer_group];
  const PoolGroup* hot = tiers_[static_cast<std::size_t>(Tier::kDevice)].pools[layers.hot].get();
  const std::array<Event, 1> before = {target.ready};
  const std::array<Event, 1> sources = {source.ready};
  const SlotSizes* durable = durable_of(source.is_durable_only ? source : target);
  if (SLACKWATER_MUTANT(transient_is_copied_for_snapshot)) durable = nullptr;
  Event copied;
  if (source.tier == Tier::kHost) {
    const PoolGroup& host = *tiers_[static_cast<std::size_t>(Tier::kHost)].pools[layers.cold];
    const std::array<ColdPair, 1> pair = {
        ColdPair{target.slot, host.address(0, source.slot), durable}};
    copied = copies_->submit(before, sources, pair,
                             copy_of(source.layer_group, Tier::kHost, Tier::kDevice));
  } else {
    const std::array<ColdPair, 1> pair = {ColdPair{target.slot, nullptr, durable}};
    const SlotId slot = source.slot;
    copied = copies_->submit(
        before, sources, pair,
        [hot, slot, durable](device::Stream& stream, std::span<const ColdPair> pages) {
          const SlotSizes& bytes = durable != nullptr ? *durable : hot->slot_bytes();
          copy_slot(stream, *hot, bytes, slot, pages.front().slot);
          poison_transient(stream, *hot, pages);
        });
  }
  note_read(from, copied);
  note_write(to, copied);
  return {};
}

std::size_t TieredStore::frames_per_part(std::size_t cold_group) const {
  return staging_->part_bytes() / static_cast<std::size_t>(disk_->frame_size(cold_group));
}

// A job for some pages of a batch, whose frames lie one after another in a part.
std::shared_ptr<TieredStore::DiskJob> TieredStore::make_disk_job(
    const Batch& batch, std::size_t first, std::size_t count,
    std::shared_ptr<StagingMemory> memory) const {
  auto job = std::make_shared<DiskJob>();
  job->cold_group = layer_groups_[batch.layer_group].cold;
  job->memory = std::move(memory);
  const auto frame = static_cast<std::size_t>(disk_->frame_size(job->cold_group));
  for (std::size_t i = 0; i < count; ++i) {
    const Page& page = pages_[batch.pages[first + i]];
    FrameTransfer transfer;
    transfer.slot = page.slot;
    transfer.page = {page.certificate, page.position, page.generation, page.layer_group};
    transfer.frame = job->memory->bytes().subspan(i * frame, frame);
    job->frames.push_back(transfer);
    job->results.push_back(device_.make_event("the disk"));
    job->sources.push_back(page.ready);
  }
  return job;
}

void TieredStore::move_to_disk(const Batch& batch, std::span<const SlotGrant> grants) {
  const CopyEngine::Queue copy = copy_of(batch.layer_group, batch.from, Tier::kDisk);
  const std::size_t step = frames_per_part(layer_groups_[batch.layer_group].cold);
  for (std::size_t first = 0; first < grants.size(); first += step) {
    const std::size_t count = std::min(step, grants.size() - first);
    Staging::Part part = staging_->take();
    const auto job = make_disk_job(batch, first, count, part.memory());
    std::vector<ColdPair> pairs;
    for (std::size_t i = 0; i < count; ++i) {
      pairs.push_back(
          {job->frames[i].slot, job->frames[i].frame.data() + kFrameHeaderBytes, batch.durable});
      job->frames[i].slot = grants[first + i].slot;
    }
    const std::array<Event, 1> before = {part.ready()};
    const std::array<Event, 1> sources = {batch.ready};
    const Event encoded = staging_copies_->submit(before, sources, pairs, copy);
    std::fill(job->sources.begin(), job->sources.end(), encoded);
    // Sealed beside the copies, so that the disk's thread has nothing to do but transfers.
    device::Stream& sealer = staging_copies_->first_stream();
    sealer.wait(encoded);
    sealer.run([disk = disk_.get(), job] {
      if (job->may_touch_memory()) disk->seal(job->cold_group, job->frames);
      return true;
    });
    disk_stream_->wait(sealer.record());
    for (std::size_t i = 0; i < count; ++i) disk_stream_->wait(grants[first + i].ready);
    disk_stream_->run([disk = disk_.get(), job] {
      job->run([&](std::span<FrameTransfer> frames) {
        return disk->write(job->cold_group, frames, job->memory);
      });
      job->complete(EventStatus::kSucceeded);
      return true;
    });
    part.done(disk_stream_->record());
    for (std::size_t i = 0; i < count; ++i) {
      finish_move(batch.pages[first + i], encoded, Tier::kDisk, grants[first + i].slot,
                  job->results[i].event());
    }
  }
}

void TieredStore::move_from_disk(const Batch& batch, std::span<const SlotGrant> grants, Tier to) {
  const CopyEngine::Queue copy = copy_of(batch.layer_group, Tier::kDisk, to);
  const std::size_t step = frames_per_part(layer_groups_[batch.layer_group].cold);
  for (std::size_t first = 0; first < grants.size(); first += step) {
    const std::size_t count = std::min(step, grants.size() - first);
    Staging::Part part = staging_->take();
    const auto job = make_disk_job(batch, first, count, part.memory());
    disk_stream_->wait(part.ready());
    // A write that is still queued comes first: one stream does both.
    disk_stream_->run([disk = disk_.get(), job] {
      job->run([&](std::span<FrameTransfer> frames) {
        return disk->read(job->cold_group, frames, job->memory);
      });
      return true;
    });
    const Event read = disk_stream_->record();
    device::Stream& checker = staging_copies_->first_stream();
    checker.wait(read);
    checker.run([disk = disk_.get(), job] {
      if (job->may_touch_memory()) {
        disk->check(job->cold_group, job->frames);
      } else {
        for (FrameTransfer& frame : job->frames) frame.is_done = false;
        disk->note_missed(job->frames.size());
      }
      return true;
    });

    const Event checked = checker.record();
    std::vector<Event> before = {checked};
    std::vector<ColdPair> pairs;
    for (std::size_t i = 0; i < count; ++i) {
      const SlotGrant& grant = grants[first + i];
      if (!grant.ready.is_done()) before.push_back(grant.ready);
      pairs.push_back({grant.slot, job->frames[i].frame.data() + kFrameHeaderBytes, batch.durable});
    }
    const Event copied = staging_copies_->submit(before, {}, pairs, copy);
    device::Stream& stream = staging_copies_->first_stream();
    stream.wait(copied);
    stream.run([job, copied] {
      job->complete(copied.status());
      return true;
    });
    part.done(stream.record());
    for (std::size_t i = 0; i < count; ++i) {
      finish_move(batch.pages[first + i], checked, to, grants[first + i].slot,
                  job->results[i].event());
    }
  }
}

// Copies a frame to another slot of the disk, for a shrink: the page stays where it is.
void TieredStore::move_frame(std::size_t group, SlotId from, const SlotGrant& to) {
  const auto index = static_cast<std::uint32_t>(disk_->slots(group).tag(from));
  Staging::Part part = staging_->take();
  Batch batch;
  batch.layer_group = pages_[index].layer_group;
  batch.from = Tier::kDisk;
  batch.pages = {index};
  const auto job = make_disk_job(batch, 0, 1, part.memory());
  disk_stream_->wait(part.ready());
  disk_stream_->wait(to.ready);
  disk_stream_->run([disk = disk_.get(), job, slot = to.slot] {
    job->run([&](std::span<FrameTransfer> frames) {
      return disk->read(job->cold_group, frames, job->memory);
    });
    disk->check(job->cold_group, job->frames);
    if (job->frames[0].is_done) {
      job->frames[0].slot = slot;
      disk->seal(job->cold_group, job->frames);
      job->run([&](std::span<FrameTransfer> frames) {
        return disk->write(job->cold_group, frames, job->memory);
      });
    }
    job->complete(EventStatus::kSucceeded);
    return true;
  });
  part.done(disk_stream_->record());
  const std::string& name = layer_groups_[batch.layer_group].spec.name;
  if (SLACKWATER_MUTANT(adjust_forgets_states) && name.ends_with("recurrent")) return;
  --num_pages_[static_cast<std::size_t>(Tier::kDisk)];
  place(index, Tier::kDisk, to.slot);
  pages_[index].ready = job->results[0].event();
  pages_[index].ready.wait();
}

}  // namespace slackwater::storage
