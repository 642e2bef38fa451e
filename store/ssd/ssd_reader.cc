#include "store/ssd/ssd_reader_impl.h"

#include <algorithm>
#include <cstring>
#include <optional>
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

struct SsdFindContext {
  std::unique_ptr<IoQueue> queue;
  BudgetedBuffer<std::byte> memory;
  std::byte* arena = nullptr;
  int64_t arena_bytes = 0;
  std::vector<RowKey> keys;
  std::vector<SsdLocation> locations;
  struct Wanted {
    SsdLocation location;
    uint32_t i;
    friend bool operator<(const Wanted& a, const Wanted& b) { return a.location < b.location; }
  };
  std::vector<Wanted> wanted;
  std::vector<IoRequest> requests;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // of wanted, for each request
};

// --- SsdFindContexts -----------------------------------------------------------------------------

SsdFindContexts::SsdFindContexts() = default;
SsdFindContexts::~SsdFindContexts() = default;

absl::StatusOr<std::unique_ptr<SsdFindContexts>> SsdFindContexts::Create(Env& env,
                                                                         const IoQueueOptions& io,
                                                                         const SsdTables& tables,
                                                                         MemoryBudget& budget) {
  // The longest read, and room for a good number of short ones.
  const int64_t longest =
      RoundUp(kMergedReadBytes + SsdLogBytes(tables.row_bytes_longest()) + 2 * kBlockBytesMax,
              kBlockBytesMax);
  const int64_t arena =
      RoundUp(std::max(std::min(kFindArenaBytes, budget.budget() / 16), longest), kBlockBytesMax);
  std::unique_ptr<SsdFindContexts> contexts(new SsdFindContexts());
  for (int i = 0; i < kFindContexts; ++i) {
    auto context = std::make_unique<SsdFindContext>();
    HOTROW_ASSIGN_OR_RETURN(context->queue, env.NewIoQueue(io));
    HOTROW_ASSIGN_OR_RETURN(context->memory,
                            BudgetedBuffer<std::byte>::Create(arena + kBlockBytesMax, budget));
    context->arena = reinterpret_cast<std::byte*>(
        RoundUp(reinterpret_cast<int64_t>(context->memory.data()), kBlockBytesMax));
    context->arena_bytes = arena;
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
  return free_.empty() ? "busy" : std::string(free_.front()->queue->name());
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
  using Wanted = SsdFindContext::Wanted;
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
inline size_t SsdReader::RangeOfOneRead(const SsdFindContext& context, size_t first, int64_t* begin,
                                        int64_t* end) {
  const auto& wanted = context.wanted;
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
    const int64_t record = SsdRowRecordBytes(tables_.row_bytes(context.keys[wanted[last].i].table));
    const int64_t record_end =
        std::min(RoundUp(offset + kSsdUnitBytes - kSsdRecordAlignment + record, block), chunk_end);
    if (last > first && std::max(*end, record_end) - *begin > kMergedReadBytes) break;
    *end = std::max(*end, record_end);
  }
  return last;
}

// Makes requests for as many wanted rows from *next on as the arena has room for.
void SsdReader::PlanReads(SsdFindContext& context, size_t* next) {
  context.requests.clear();
  context.ranges.clear();
  int64_t used = 0;
  while (*next < context.wanted.size()) {
    int64_t begin = 0;
    int64_t end = 0;
    const size_t last = RangeOfOneRead(context, *next, &begin, &end);
    if (used + (end - begin) > context.arena_bytes) break;
    const uint32_t slot = log_.SlotOf(context.wanted[*next].location);
    context.requests.push_back({.file = log_.segment(slot).file.get(),
                                .write = false,
                                .offset = begin,
                                .data = context.arena + used,
                                .bytes = end - begin,
                                .user_data = context.ranges.size(),
                                .done = 0,
                                .status = absl::OkStatus()});
    context.ranges.emplace_back(static_cast<uint32_t>(*next), static_cast<uint32_t>(last));
    used += end - begin;
    *next = last;
  }
  HOTROW_CHECK(!context.requests.empty());
  counts_.reads.Add(static_cast<int64_t>(context.requests.size()));
  counts_.bytes_read.Add(used);
}

// Copies the rows that a finished request has read.
absl::Status SsdReader::TakeRead(SsdFindContext& context, const IoRequest& request,
                                 std::span<std::byte* const> rows) {
  const auto& wanted = context.wanted;
  const auto [first, last] = context.ranges[request.user_data];
  if (!request.status.ok()) {
    const RowKey key = tables_.ToStoreKey(context.keys[wanted[first].i]);
    return absl::Status(request.status.code(),
                        absl::StrCat("the row of key ", key.key, " of table ", key.table, ": ",
                                     std::string(request.status.message())));
  }
  counts_.merged_reads.Add(last - first - 1);
  absl::Status status;
  for (uint32_t w = first; w < last; ++w) {
    const RowKey& key = context.keys[wanted[w].i];
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

absl::Status SsdReader::ReadWanted(SsdFindContext& context, std::span<std::byte* const> rows) {
  absl::Status status;
  size_t next = 0;
  while (next < context.wanted.size() && status.ok()) {
    PlanReads(context, &next);
    context.queue->Run(context.requests, [&](IoRequest& request) {
      status.Update(TakeRead(context, request, rows));
    });
  }
  return status;
}

}  // namespace hotrow::internal
