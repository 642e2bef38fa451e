#include "store/ssd/ssd_reader_impl.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "store/ssd/ssd_format_impl.h"

namespace hotrow::internal {
namespace {

// A read that serves several rows is at most this long: on the disks we know 16 KiB take 1.6 times
// as long as 4 KiB (and two reads take twice as long).
constexpr int64_t kMergedReadBytes = int64_t{16} << 10;
constexpr size_t kFindKeys = 16'384;  // of a batch at once
constexpr int kFindContexts = 2;
constexpr int64_t kFindArenaBytes = int64_t{8} << 20;
constexpr int64_t kBlockBytesMax = 4096;  // of direct transfers

}  // namespace

struct SsdFindLane {
  struct Wanted {
    SsdLocation location;
    uint32_t i;
    friend bool operator<(const Wanted& a, const Wanted& b) { return a.location < b.location; }
  };

  ~SsdFindLane();
  absl::Status StartThread();
  // Has the thread do it; Wait returns when it is done. What `job` refers to lives until then.
  void Begin(std::function<absl::Status()> job);
  absl::Status Wait();

  std::unique_ptr<IoQueue> queue;
  std::byte* arena = nullptr;
  int64_t arena_bytes = 0;
  std::vector<Wanted> wanted;
  std::vector<IoRequest> requests;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // of wanted, for each request

 private:
  void Loop();

  std::thread thread_;
  std::mutex mutex_;  // guards what follows; no other lock is taken under it
  std::condition_variable changed_;
  std::function<absl::Status()> job_;  // null: there is none, or it is done
  absl::Status status_;                // of the last one
  bool stop_ = false;
};

struct SsdFindContext {
  BudgetedBuffer<std::byte> memory;
  std::vector<RowKey> keys;
  std::vector<SsdLocation> locations;
  std::vector<SsdFindLane::Wanted> wanted;
  std::deque<SsdFindLane> lanes;  // by directory
  bool threads = false;           // each lane but the first has one
};

SsdFindLane::~SsdFindLane() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status SsdFindLane::StartThread() {
  HOTROW_ASSIGN_OR_RETURN(
      thread_, hotrow::StartThread("reading a directory of an ssd store", [this] { Loop(); }));
  return absl::OkStatus();
}

void SsdFindLane::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || job_ != nullptr; });
    if (stop_) return;
    lock.unlock();
    absl::Status status = Caught("reading rows", job_);
    lock.lock();
    status_ = std::move(status);
    job_ = nullptr;
    changed_.notify_all();
  }
}

void SsdFindLane::Begin(std::function<absl::Status()> job) {
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
  }
  changed_.notify_all();
}

absl::Status SsdFindLane::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return job_ == nullptr; });
  return std::exchange(status_, absl::OkStatus());  // not a copy: others are still to be waited for
}

// --- SsdFindContexts -----------------------------------------------------------------------------

SsdFindContexts::SsdFindContexts() = default;
SsdFindContexts::~SsdFindContexts() = default;

absl::StatusOr<std::unique_ptr<SsdFindContexts>> SsdFindContexts::Create(
    Env& env, const IoQueueOptions& io, uint32_t directories, bool threads, const SsdTables& tables,
    MemoryBudget& budget) {
  // The longest read, and room for a good number of short ones.
  const int64_t longest =
      RoundUp(kMergedReadBytes + SsdLogBytes(tables.row_bytes_longest()) + 2 * kBlockBytesMax,
              kBlockBytesMax);
  const int64_t arena = std::min(kFindArenaBytes, budget.budget() / 16) / directories;
  const int64_t lane_bytes = RoundUp(std::max(arena, longest), kBlockBytesMax);
  std::unique_ptr<SsdFindContexts> contexts(new SsdFindContexts());
  for (int i = 0; i < kFindContexts; ++i) {
    auto context = std::make_unique<SsdFindContext>();
    HOTROW_ASSIGN_OR_RETURN(
        context->memory,
        BudgetedBuffer<std::byte>::Create(directories * lane_bytes + kBlockBytesMax, budget));
    auto* next = reinterpret_cast<std::byte*>(
        RoundUp(reinterpret_cast<int64_t>(context->memory.data()), kBlockBytesMax));
    context->threads = threads && directories > 1;
    for (uint32_t d = 0; d < directories; ++d) {
      SsdFindLane& lane = context->lanes.emplace_back();
      HOTROW_ASSIGN_OR_RETURN(lane.queue, env.NewIoQueue(io));
      lane.arena = std::exchange(next, next + lane_bytes);
      lane.arena_bytes = lane_bytes;
      if (context->threads && d > 0) HOTROW_RETURN_IF_ERROR(lane.StartThread());
    }
    contexts->free_.push_back(std::move(context));
  }
  return contexts;
}

std::unique_ptr<SsdFindContext> SsdFindContexts::Take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !free_.empty(); });
  std::unique_ptr<SsdFindContext> context = std::move(free_.back());
  free_.pop_back();
  return context;
}

void SsdFindContexts::Return(std::unique_ptr<SsdFindContext> context) {
  {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(context));
  }
  changed_.notify_one();
}

std::string SsdFindContexts::queue_name() const {
  std::lock_guard lock(mutex_);
  return free_.empty() ? "busy" : std::string(free_.front()->lanes.front().queue->name());
}

// --- SsdReader -----------------------------------------------------------------------------------

SsdReader::SsdReader(const SsdTables& tables, SsdLog& log, const SsdIndex& index,
                     std::unique_ptr<SsdFindContexts> contexts)
    : tables_(tables), log_(log), index_(index), contexts_(std::move(contexts)) {}

absl::Status SsdReader::Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                             std::span<uint8_t> found) {
  std::unique_ptr<SsdFindContext> context = contexts_->Take();
  absl::Status status;
  for (size_t at = 0; at < keys.size() && status.ok(); at += kFindKeys) {
    const size_t n = std::min(kFindKeys, keys.size() - at);
    // Others wait for the context.
    status = Caught("SSD store", [&] {
      return FindSome(*context, keys.subspan(at, n), rows.subspan(at, n), found.subspan(at, n));
    });
  }
  contexts_->Return(std::move(context));
  return status;
}

absl::Status SsdReader::FindSome(SsdFindContext& context, std::span<const RowKey> keys,
                                 std::span<std::byte* const> rows, std::span<uint8_t> found) {
  HOTROW_RETURN_IF_ERROR(tables_.ToIndexKeys(keys, &context.keys));
  context.locations.resize(keys.size());
  // What the index names stays readable until the ticket is given back.
  const SsdReaderTicket ticket(log_.gate());
  index_.Find(context.keys, context.locations);
  const std::vector<std::shared_ptr<SsdChunk>> pending = log_.PendingChunks();

  context.wanted.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    found[i] = context.locations[i] != kNoLocation ? 1 : 0;
    if (found[i] != 0) context.wanted.push_back({context.locations[i], static_cast<uint32_t>(i)});
  }
  counts_.finds.Add(static_cast<int64_t>(keys.size()));
  counts_.hits.Add(static_cast<int64_t>(context.wanted.size()));
  std::sort(context.wanted.begin(), context.wanted.end());
  HOTROW_RETURN_IF_ERROR(TakePending(context, pending, rows));
  return ReadWanted(context, rows);
}

// Copies the rows that are in chunks not yet written, and leaves the others in `wanted`.
absl::Status SsdReader::TakePending(SsdFindContext& context,
                                    std::span<const std::shared_ptr<SsdChunk>> pending,
                                    std::span<std::byte* const> rows) {
  using Wanted = SsdFindLane::Wanted;
  const int64_t chunk_bytes = log_.options().chunk_bytes;
  auto& wanted = context.wanted;
  for (const std::shared_ptr<SsdChunk>& chunk : pending) {
    const SsdLocation begin = log_.Location(chunk->slot, chunk->offset);
    const SsdLocation end = log_.Location(chunk->slot, chunk->offset + chunk_bytes);
    const auto first = std::lower_bound(wanted.begin(), wanted.end(), Wanted{begin, 0});
    auto last = first;
    if (first == wanted.end() || first->location >= end) continue;
    {
      std::lock_guard lock(chunk->mutex);
      for (; last != wanted.end() && last->location < end; ++last) {
        const RowKey& key = context.keys[last->i];
        const int64_t offset = log_.OffsetOf(last->location);
        const std::span<const std::byte> bytes(chunk->data + (offset - chunk->offset),
                                               chunk->data + chunk_bytes);
        const std::optional<SsdRecord> record = FindSsdRowInUnit(
            bytes, {chunk->epoch, offset}, key.table, key.key, tables_.row_bytes(key.table));
        if (!record.has_value()) {
          return tables_.Unreadable(log_.SegmentPath(chunk->slot), offset, key);
        }
        std::memcpy(rows[last->i], record->row.data(), record->row.size());
      }
    }
    wanted.erase(first, last);
  }
  return absl::OkStatus();
}

// Which of the wanted rows from `first` on one read serves: returns the end of that range, and
// which bytes of the segment to read.
inline size_t SsdReader::RangeOfOneRead(std::span<const RowKey> keys, const SsdFindLane& lane,
                                        size_t first, int64_t* begin, int64_t* end) {
  const auto& wanted = lane.wanted;
  const int64_t block = log_.block_bytes();
  const int64_t chunk_bytes = log_.options().chunk_bytes;
  const uint32_t slot = log_.SlotOf(wanted[first].location);
  const int64_t first_offset = log_.OffsetOf(wanted[first].location);
  *begin = first_offset / block * block;
  *end = *begin;
  // Records do not cross chunks.
  const int64_t chunk_end = (first_offset / chunk_bytes + 1) * chunk_bytes;
  size_t last = first;
  for (; last < wanted.size() && log_.SlotOf(wanted[last].location) == slot; ++last) {
    const int64_t offset = log_.OffsetOf(wanted[last].location);
    if (offset >= chunk_end) break;
    const int64_t record = SsdRowRecordBytes(tables_.row_bytes(keys[wanted[last].i].table));
    const int64_t record_end =
        std::min(RoundUp(offset + kSsdUnitBytes - kSsdRecordAlignment + record, block), chunk_end);
    if (last > first && std::max(*end, record_end) - *begin > kMergedReadBytes) break;
    *end = std::max(*end, record_end);
  }
  return last;
}

// Makes requests for as many wanted rows from *next on as the arena has room for.
void SsdReader::PlanReads(std::span<const RowKey> keys, SsdFindLane& lane, size_t* next) {
  lane.requests.clear();
  lane.ranges.clear();
  int64_t used = 0;
  while (*next < lane.wanted.size()) {
    int64_t begin = 0;
    int64_t end = 0;
    const size_t last = RangeOfOneRead(keys, lane, *next, &begin, &end);
    if (used + (end - begin) > lane.arena_bytes) break;
    const uint32_t slot = log_.SlotOf(lane.wanted[*next].location);
    lane.requests.push_back({.file = log_.segment(slot).file.get(),
                             .write = false,
                             .offset = begin,
                             .data = lane.arena + used,
                             .bytes = end - begin,
                             .user_data = lane.ranges.size(),
                             .done = 0,
                             .status = absl::OkStatus()});
    lane.ranges.emplace_back(static_cast<uint32_t>(*next), static_cast<uint32_t>(last));
    used += end - begin;
    *next = last;
  }
  HOTROW_CHECK(!lane.requests.empty());
  counts_.reads.Add(static_cast<int64_t>(lane.requests.size()));
  counts_.bytes_read.Add(used);
}

// Copies the rows that a finished request has read.
absl::Status SsdReader::TakeRead(std::span<const RowKey> keys, const SsdFindLane& lane,
                                 const IoRequest& request, std::span<std::byte* const> rows) {
  const auto& wanted = lane.wanted;
  const auto [first, last] = lane.ranges[request.user_data];
  if (!request.status.ok()) {
    const RowKey key = tables_.ToStoreKey(keys[wanted[first].i]);
    return absl::Status(request.status.code(),
                        absl::StrCat("the row of key ", key.key, " of table ", key.table, ": ",
                                     std::string(request.status.message())));
  }
  counts_.merged_reads.Add(last - first - 1);
  absl::Status status;
  for (uint32_t w = first; w < last; ++w) {
    const RowKey& key = keys[wanted[w].i];
    const uint32_t slot = log_.SlotOf(wanted[w].location);
    const int64_t offset = log_.OffsetOf(wanted[w].location);
    const std::span<const std::byte> bytes(request.data + (offset - request.offset),
                                           request.data + request.bytes);
    const std::optional<SsdRecord> record =
        FindSsdRowInUnit(bytes, {log_.segment(slot).epoch, offset}, key.table, key.key,
                         tables_.row_bytes(key.table));
    if (!record.has_value()) {
      if (status.ok()) status = tables_.Unreadable(log_.SegmentPath(slot), offset, key);
      continue;
    }
    std::memcpy(rows[wanted[w].i], record->row.data(), record->row.size());
  }
  return status;
}

absl::Status SsdReader::ReadLane(std::span<const RowKey> keys, SsdFindLane& lane,
                                 std::span<std::byte* const> rows) {
  absl::Status status;
  size_t next = 0;
  while (next < lane.wanted.size() && status.ok()) {
    PlanReads(keys, lane, &next);
    lane.queue->Run(lane.requests, [&](IoRequest& request) {
      status.Update(TakeRead(keys, lane, request, rows));
    });
  }
  return status;
}

absl::Status SsdReader::ReadWanted(SsdFindContext& context, std::span<std::byte* const> rows) {
  const std::span<const RowKey> keys = context.keys;
  SsdFindLane& first = context.lanes.front();
  if (context.lanes.size() == 1) {
    first.wanted.swap(context.wanted);
    return ReadLane(keys, first, rows);
  }
  for (SsdFindLane& lane : context.lanes) lane.wanted.clear();
  for (const SsdFindLane::Wanted& wanted : context.wanted) {
    const uint32_t directory = log_.segment(log_.SlotOf(wanted.location)).directory;
    context.lanes[directory].wanted.push_back(wanted);
  }
  // A ring costs least where it is always used by one thread: the first lane's by that of the find.
  const auto has_job = [&](const SsdFindLane& lane) {
    return context.threads && &lane != &first && !lane.wanted.empty();
  };
  // All jobs are waited for, since they use what the caller has.
  absl::Status status = Caught("reading rows", [&]() -> absl::Status {
    for (SsdFindLane& lane : context.lanes) {
      if (!has_job(lane)) continue;
      lane.Begin([this, keys, &lane, rows] { return ReadLane(keys, lane, rows); });
    }
    for (SsdFindLane& lane : context.lanes) {
      if (!has_job(lane)) HOTROW_RETURN_IF_ERROR(ReadLane(keys, lane, rows));
    }
    return absl::OkStatus();
  });
  for (SsdFindLane& lane : context.lanes) {
    if (has_job(lane)) status.Update(lane.Wait());
  }
  return status;
}

}  // namespace hotrow::internal
