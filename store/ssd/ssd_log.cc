#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file_hold.h"
#include "base/math.h"
#include "base/own_status.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "store/ssd/ssd_log_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kBufferAlignmentMax = 4096;  // of direct transfers
constexpr int kWriterDepth = 4;                // chunks written at once
constexpr size_t kSyncsAtOnce = 8;
constexpr int64_t kEntryBytes = sizeof(SsdFooterEntry);
// The most that the numbers of one chunk span: what an entry's 32-bit difference must hold, with
// room to spare for those that are given out while the chunk is filled.
constexpr uint64_t kSequenceSpanMax = uint64_t{1} << 31;

}  // namespace

SsdChunk::~SsdChunk() { log->ReturnBuffer(data); }

// --- Opening and closing -------------------------------------------------------------------------

SsdLog::SsdLog(const SsdLogOptions& options)
    : options_(options), directories_dirty_(options.dirs.count()) {
  for (uint32_t i = 0; i < options.dirs.count(); ++i) {
    directories_.emplace_back(options.dirs.path(i));
  }
  // Rows that are written and rows that are moved begin in different ones.
  streams_[Index(SsdStream::kSurvivors)].next_directory = 1 % options.dirs.count();
}

absl::StatusOr<std::unique_ptr<SsdLog>> SsdLog::Create(const SsdLogOptions& options,
                                                       MemoryBudget& budget) {
  std::unique_ptr<SsdLog> log(new SsdLog(options));
  log->units_per_segment_ = static_cast<uint64_t>(options.segment_bytes / kSsdUnitBytes);
  HOTROW_ASSIGN_OR_RETURN(
      log->buffer_memory_,
      BudgetedBuffer<std::byte>::Create(
          options.num_buffers * options.chunk_bytes + kBufferAlignmentMax, budget));
  auto* const first = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<int64_t>(log->buffer_memory_.data()), kBufferAlignmentMax));
  for (int i = 0; i < options.num_buffers; ++i) {
    log->free_buffers_.push_back(first + i * options.chunk_bytes);
  }
  log->segments_.resize(static_cast<size_t>(options.segments_max));
  HOTROW_ASSIGN_OR_RETURN(log->queue_, options.env->NewIoQueue({.depth = kWriterDepth}));
  if (options.background) {
    HOTROW_ASSIGN_OR_RETURN(log->writer_, StartThread("the writer of an ssd store",
                                                      [log = log.get()] { log->WriterLoop(); }));
  }
  return log;
}

SsdLog::~SsdLog() {
  for (Stream& stream : streams_) stream.chunk.reset();
  if (writer_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    writer_.join();
  }
  // Chunks that are left give their buffers back to members that end after them.
}

absl::Status SsdLog::CheckInPlace() const {
  for (const HeldDirectory& directory : directories_) {
    HOTROW_RETURN_IF_ERROR(directory.CheckInPlace());
  }
  return absl::OkStatus();
}

absl::Status SsdLog::OpenFile(uint32_t slot, OpenMode mode) {
  HOTROW_ASSIGN_OR_RETURN(segments_[slot]->file, options_.env->OpenDirect(SegmentPath(slot), mode));
  const int64_t block_bytes = std::max(kSsdUnitBytes, segments_[slot]->file->block_bytes());
  direct_ = segments_[slot]->file->direct();
  // What suits the largest blocks suits all.
  block_bytes_ = std::max(block_bytes, block_bytes_.load());
  if (block_bytes > kBufferAlignmentMax) {
    return absl::FailedPreconditionError(
        absl::StrCat(SegmentPath(slot), ": the device wants blocks of ", block_bytes,
                     " bytes, this build can do ", kBufferAlignmentMax));
  }
  return absl::OkStatus();
}

absl::Status SsdLog::Adopt(uint32_t slot, uint32_t directory, const SsdSegmentRef* ref) {
  std::lock_guard lock(mutex_);
  HOTROW_CHECK(slot < segments_.size());
  if (segments_[slot] == nullptr) {
    segments_[slot] = std::make_unique<SsdSegment>(slot, directory);
    ++num_files_;
    // One that has records is never made again.
    const absl::Status opened = OpenFile(slot, OpenMode::kReadWrite);
    if (absl::IsNotFound(opened) && ref != nullptr) {
      return absl::DataLossError(
          absl::StrCat(SegmentPath(slot),
                       ": the file is missing, and the manifest says that it has records up to "
                       "offset ",
                       ref->end_offset, "; put it back, or use another copy of the whole store"));
    }
    HOTROW_RETURN_IF_ERROR(opened);
    HOTROW_ASSIGN_OR_RETURN(const int64_t size, segments_[slot]->file->Size());
    // A segment without records, which older builds named too, may have no bytes.
    if (ref != nullptr && size < ref->end_offset && ref->end_offset > kSsdSegmentHeaderBytes) {
      return absl::DataLossError(absl::StrCat(SegmentPath(slot), ": ends at offset ", size,
                                              ", its records at ", ref->end_offset));
    }
    if (size < options_.segment_bytes) {
      HOTROW_RETURN_IF_ERROR(segments_[slot]->file->Allocate(options_.segment_bytes));
    }
  }
  if (ref == nullptr && IsFileHeld(*segments_[slot]->file)) {
    segments_[slot]->state = SsdSegment::State::kHeld;
  }
  if (ref != nullptr) {
    SsdSegment& segment = *segments_[slot];
    segment.state = SsdSegment::State::kSealed;
    segment.epoch = ref->epoch;
    segment.base_sequence = ref->base_sequence;
    segment.end_offset = ref->end_offset;
    segment.live_bytes = ref->live_bytes;
    segment.newest_sequence = ref->base_sequence;
  }
  return absl::OkStatus();
}

absl::Status SsdLog::CreateSegmentIn(uint32_t slot, uint32_t directory) {
  // A file that could not be given its space is no segment.
  segments_[slot] = std::make_unique<SsdSegment>(slot, directory);
  absl::Status status = OpenFile(slot, OpenMode::kCreate);
  if (status.ok()) status = segments_[slot]->file->Allocate(options_.segment_bytes);
  if (!status.ok()) {
    segments_[slot].reset();
    options_.env->Remove(options_.dirs.SegmentPath(directory, slot)).IgnoreError();
    return status;
  }
  ++num_files_;
  directories_dirty_[directory] = true;
  return absl::OkStatus();
}

absl::Status SsdLog::CreateSegment(uint32_t slot, uint32_t directory) {
  HOTROW_RETURN_IF_ERROR(CheckInPlace());
  const uint32_t count = options_.dirs.count();
  absl::Status full;
  for (uint32_t i = 0; i < count; ++i) {
    const absl::Status status = CreateSegmentIn(slot, (directory + i) % count);
    if (!absl::IsResourceExhausted(status)) return status;
    full.Update(status);
  }
  return full;
}

absl::Status SsdLog::RemoveSegment(uint32_t slot) {
  HOTROW_RETURN_IF_ERROR(CheckInPlace());
  const std::string path = SegmentPath(slot);
  segments_[slot].reset();
  --num_files_;
  return options_.env->Remove(path);
}

absl::Status SsdLog::EnsureFree(int64_t count) {
  std::lock_guard lock(mutex_);
  int64_t missing = count - CountFree();
  for (uint32_t slot = 0; slot < segments_.size() && missing > 0; ++slot) {
    if (segments_[slot] != nullptr) continue;
    HOTROW_RETURN_IF_ERROR(CreateSegment(slot, slot % options_.dirs.count()));
    --missing;
  }
  return absl::OkStatus();
}

absl::Status SsdLog::RemoveFree(int64_t bytes) {
  std::lock_guard lock(mutex_);
  ReapRetired();
  for (size_t slot = segments_.size(); slot-- > 0 && bytes > 0;) {
    if (segments_[slot] == nullptr || segments_[slot]->state != SsdSegment::State::kFree) continue;
    HOTROW_RETURN_IF_ERROR(RemoveSegment(static_cast<uint32_t>(slot)));
    bytes -= options_.segment_bytes;
  }
  return absl::OkStatus();
}

// --- Appending -----------------------------------------------------------------------------------

int64_t SsdLog::SegmentCapacity() const {
  const int64_t chunks = options_.segment_bytes / options_.chunk_bytes;
  // A record that does not fit ends its chunk early. Half a percent at least, for pads.
  const int64_t bytes = chunks * ChunkCapacity() - kSsdSegmentHeaderBytes;
  return bytes - std::max(bytes / 200, chunks * (options_.longest_log_bytes - kSsdRecordAlignment));
}

SsdSegment* SsdLog::FirstFree(uint32_t directory) const {
  for (const auto& segment : segments_) {
    if (segment != nullptr && segment->state == SsdSegment::State::kFree &&
        segment->directory == directory) {
      return segment.get();
    }
  }
  return nullptr;
}

absl::StatusOr<SsdSegment*> SsdLog::FreeToMove(uint32_t directory) const {
  std::vector<int64_t> files(options_.dirs.count());
  for (const auto& segment : segments_) {
    if (segment != nullptr) ++files[segment->directory];
  }
  for (uint32_t other = 0; other < options_.dirs.count(); ++other) {
    SsdSegment* const segment = FirstFree(other);
    if (segment == nullptr || files[other] <= files[directory] + 1) continue;
    // Its file goes before the other comes, so that the disk budget holds: there must be room.
    HOTROW_ASSIGN_OR_RETURN(const int64_t room,
                            options_.env->FreeBytes(options_.dirs.path(directory)));
    return room > 2 * options_.segment_bytes ? segment : nullptr;
  }
  return nullptr;
}

int64_t SsdLog::CountFree() const {
  return std::count_if(segments_.begin(), segments_.end(), [](const auto& segment) {
    return segment != nullptr && segment->state == SsdSegment::State::kFree;
  });
}

int64_t SsdLog::CountRetiring() const {
  return std::count_if(segments_.begin(), segments_.end(), [](const auto& segment) {
    return segment != nullptr && segment->state == SsdSegment::State::kRetiring;
  });
}

absl::StatusOr<bool> SsdLog::OpenSegment(SsdStream stream, uint64_t next_sequence) {
  std::lock_guard lock(mutex_);
  ReapRetired();
  const bool fresh = stream == SsdStream::kFresh;
  const int64_t free = CountFree();
  const int64_t to_make = static_cast<int64_t>(segments_.size()) - num_files_;
  if (fresh && free + to_make <= kReservedSegments) return false;
  // A file of the reserve is left, too, where another can be made: the disk may be full by then.
  const bool may_take = !fresh || free > kReservedSegments;
  Stream& s = streams_[Index(stream)];
  const uint32_t directory = s.next_directory;
  SsdSegment* segment = may_take ? FirstFree(directory) : nullptr;
  if (segment == nullptr) {
    auto at = std::find(segments_.begin(), segments_.end(), nullptr);
    // All files are made: where a directory was added, some are moved there.
    if (at == segments_.end() && may_take) {
      HOTROW_ASSIGN_OR_RETURN(const SsdSegment* const other, FreeToMove(directory));
      if (other != nullptr) {
        at = segments_.begin() + static_cast<int64_t>(other->slot);
        HOTROW_RETURN_IF_ERROR(RemoveSegment(other->slot));
      }
    }
    absl::Status full;
    if (at != segments_.end()) {
      full = CreateSegment(static_cast<uint32_t>(at - segments_.begin()), directory);
      if (!full.ok() && !absl::IsResourceExhausted(full)) return full;
      segment = at->get();
    }
    for (uint32_t i = 0; may_take && segment == nullptr && i < options_.dirs.count(); ++i) {
      segment = FirstFree(i);
    }
    if (segment == nullptr) {
      HOTROW_RETURN_IF_ERROR(full);
      return false;
    }
  }
  s.next_directory = (directory + 1) % options_.dirs.count();
  segment->epoch = next_epoch_++;
  segment->base_sequence = next_sequence;
  segment->newest_sequence = next_sequence;
  segment->live_bytes = 0;
  segment->tombstone_bytes = 0;
  segment->state = SsdSegment::State::kOpen;
  segment->end_offset = kSsdSegmentHeaderBytes;
  segment->snapshots = 0;
  segment->damaged = false;
  s.segment = segment;
  s.next_chunk = 0;
  ++s.segments;
  return true;
}

// Buffers of writes that failed come back only when the writes succeed.
absl::Status SsdLog::RetryFailed() {
  {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return OwnStatus(broken_);
    if (failed_.empty()) return absl::OkStatus();
  }
  return WaitWritten();
}

int64_t SsdLog::Room(SsdStream stream) const {
  const SsdChunk* const chunk = streams_[Index(stream)].chunk.get();
  if (chunk == nullptr) return 0;
  return options_.chunk_bytes - chunk->fill - SsdFooterBytes(chunk->num_entries);
}

int64_t SsdLog::StreamBytes(SsdStream stream) const {
  const Stream& s = streams_[Index(stream)];
  int64_t left = Room(stream);
  if (s.segment != nullptr) left += options_.segment_bytes - s.next_chunk;
  return s.segments * options_.segment_bytes - left;
}

absl::StatusOr<bool> SsdLog::MakeRoom(SsdStream stream, int64_t log_bytes, uint64_t next_sequence) {
  Stream& s = streams_[Index(stream)];
  for (;;) {
    HOTROW_RETURN_IF_ERROR(RetryFailed());
    if (s.chunk != nullptr) {
      if (Room(stream) >= log_bytes && next_sequence - s.chunk->base_sequence < kSequenceSpanMax) {
        return true;
      }
      Submit(stream, /*close=*/true);
    }
    if (s.segment != nullptr && s.next_chunk == options_.segment_bytes) Seal(stream);
    if (s.segment == nullptr) {
      HOTROW_ASSIGN_OR_RETURN(const bool opened, OpenSegment(stream, next_sequence));
      if (!opened) return false;
    }
    auto chunk = std::make_shared<SsdChunk>(this);
    chunk->slot = s.segment->slot;
    chunk->epoch = s.segment->epoch;
    chunk->offset = s.next_chunk;
    chunk->base_sequence = next_sequence;
    {
      std::unique_lock lock(mutex_);
      // One is left to the cleaner, so that it never waits for those who wait for it.
      const size_t leave = stream == SsdStream::kFresh ? 1 : 0;
      changed_.wait(
          lock, [&] { return free_buffers_.size() > leave || !failed_.empty() || !broken_.ok(); });
      if (!broken_.ok()) return OwnStatus(broken_);
      if (free_buffers_.size() <= leave) return OwnStatus(write_error_);
      chunk->data = free_buffers_.back();
      free_buffers_.pop_back();
      ++s.segment->chunks_pending;
      pending_.emplace(Location(chunk->slot, chunk->offset), chunk);
    }
    if (chunk->offset == 0) {
      EncodeSsdSegmentHeader(chunk->epoch, options_.segment_bytes, options_.chunk_bytes,
                             {chunk->data, static_cast<size_t>(kSsdSegmentHeaderBytes)});
      chunk->fill = kSsdSegmentHeaderBytes;
    }
    s.chunk = std::move(chunk);
    s.next_chunk += options_.chunk_bytes;
    HOTROW_CHECK(Room(stream) >= log_bytes);
  }
}

void SsdLog::Appended(SsdChunk& chunk, int64_t bytes, uint64_t key, uint64_t sequence,
                      uint32_t kind_table) {
  const bool is_pad = SsdKindOf(kind_table) == static_cast<uint32_t>(SsdRecordKind::kPad);
  const SsdFooterEntry entry = {
      .key = key,
      .sequence_delta = is_pad ? 0 : static_cast<uint32_t>(sequence - chunk.base_sequence),
      .kind_table = kind_table};
  // Entries grow downwards and are turned around when the chunk is closed.
  ++chunk.num_entries;
  const int64_t at = options_.chunk_bytes - SsdFooterBytes(chunk.num_entries);
  std::memcpy(chunk.data + at, &entry, sizeof(entry));
  chunk.fill += bytes;
}

void SsdLog::PadToNextUnit(SsdChunk& chunk) {
  const int64_t bytes = RoundUp(chunk.fill, kSsdUnitBytes) - chunk.fill;
  if (bytes == 0) return;
  EncodeSsdPad(NextPlace(chunk), bytes, chunk.data + chunk.fill);
  Appended(chunk, bytes, 0, 0, SsdKindTable(SsdRecordKind::kPad, static_cast<uint32_t>(bytes / 8)));
}

void SsdLog::Submit(SsdStream stream, bool close) {
  Stream& s = streams_[Index(stream)];
  if (s.chunk == nullptr) return;
  SsdChunk& chunk = *s.chunk;
  if (!close) {
    const int64_t pad = RoundUp(chunk.fill, block_bytes()) - chunk.fill;
    if (pad > 0 && Room(stream) < pad + kEntryBytes) {
      close = true;
    } else if (pad > 0) {
      std::lock_guard lock(chunk.mutex);
      EncodeSsdPad(NextPlace(chunk), pad, chunk.data + chunk.fill);
      Appended(chunk, pad, 0, 0, SsdKindTable(SsdRecordKind::kPad, static_cast<uint32_t>(pad / 8)));
    }
  }
  if (!close) {
    if (chunk.fill > chunk.submitted) HandOver(stream, chunk.fill, false);
    return;
  }
  {
    std::lock_guard lock(chunk.mutex);
    const int64_t footer_at = options_.chunk_bytes - SsdFooterBytes(chunk.num_entries);
    if (footer_at > chunk.fill) {
      EncodeSsdPad(NextPlace(chunk), footer_at - chunk.fill, chunk.data + chunk.fill);
    }
    auto* const entries = reinterpret_cast<SsdFooterEntry*>(chunk.data + footer_at);
    std::reverse(entries, entries + chunk.num_entries);
    const SsdFooterTrailer trailer = MakeSsdFooterTrailer(
        chunk.epoch, chunk.offset, chunk.base_sequence, chunk.offset + chunk.fill,
        {entries, static_cast<size_t>(chunk.num_entries)});
    std::memcpy(chunk.data + options_.chunk_bytes - sizeof(trailer), &trailer, sizeof(trailer));
  }
  HandOver(stream, options_.chunk_bytes, true);
}

void SsdLog::HandOver(SsdStream stream, int64_t to, bool close) {
  Stream& s = streams_[Index(stream)];
  std::shared_ptr<SsdChunk> chunk = s.chunk;
  std::vector<Write> inline_writes;
  {
    std::lock_guard lock(mutex_);
    Write write = {chunk, chunk->submitted, to, next_write_++};
    unwritten_.emplace(write.number, 0);
    chunk->submitted = to;
    chunk->closed = close;
    ++chunk->writes;
    s.segment->end_offset = chunk->offset + chunk->fill;
    if (options_.background) {
      writes_.push_back(std::move(write));
    } else {
      inline_writes.push_back(std::move(write));
    }
  }
  if (close) s.chunk.reset();
  if (options_.background) {
    changed_.notify_all();
  } else {
    RunWrites(inline_writes);
  }
}

void SsdLog::Seal(SsdStream stream) {
  Stream& s = streams_[Index(stream)];
  Submit(stream, /*close=*/true);
  std::lock_guard lock(mutex_);
  if (s.segment != nullptr) s.segment->state = SsdSegment::State::kSealed;
  s.segment = nullptr;
}

// --- Writing -------------------------------------------------------------------------------------

void SsdLog::RunWrites(std::span<Write> writes) {
  std::vector<IoRequest> requests;
  requests.reserve(writes.size());
  for (size_t i = 0; i < writes.size(); ++i) {
    const Write& write = writes[i];
    requests.push_back({.file = segments_[write.chunk->slot]->file.get(),
                        .write = true,
                        .offset = write.chunk->offset + write.from,
                        .data = write.chunk->data + write.from,
                        .bytes = write.to - write.from,
                        .user_data = i,
                        .done = 0,
                        .status = absl::OkStatus()});
  }
  std::vector<absl::Status> statuses(writes.size(), broken());
  if (!writes.empty() && statuses.front().ok()) {
    std::lock_guard queue_lock(queue_mutex_);
    queue_->Run(requests, [&](IoRequest& request) {
      statuses[request.user_data] = request.status;
      if (!request.status.ok()) return;
      bytes_written_.fetch_add(request.bytes, std::memory_order_relaxed);
      ios_.fetch_add(1, std::memory_order_relaxed);
    });
  }
  std::vector<std::shared_ptr<SsdChunk>> finished;
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < writes.size(); ++i) {
      Write& write = writes[i];
      // Bytes that failed may have reached the file all the same, and are to be synced with the
      // rest when they are written again.
      segments_[write.chunk->slot]->dirty = true;
      if (!statuses[i].ok()) {
        // Finds go on looking in the chunk.
        write_error_ = OwnStatus(statuses[i]);
        unwritten_[write.number] = ++failures_;
        failed_.push_back(std::move(write));
        continue;
      }
      unwritten_.erase(write.number);
      SsdChunk& chunk = *write.chunk;
      if (--chunk.writes == 0 && chunk.closed) {
        --segments_[chunk.slot]->chunks_pending;
        const auto at = pending_.find(Location(chunk.slot, chunk.offset));
        finished.push_back(std::move(at->second));
        pending_.erase(at);
      }
    }
  }
  changed_.notify_all();
}

void SsdLog::WriterLoop() {
  std::array<Write, kWriterDepth> batch;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !writes_.empty(); });
    if (writes_.empty()) return;
    size_t n = 0;
    for (; n < batch.size() && !writes_.empty(); ++n) {
      batch[n] = std::move(writes_.front());
      writes_.pop_front();
    }
    lock.unlock();
    const auto write = [&]() -> absl::Status {
      RunWrites(std::span(batch).first(n));
      return absl::OkStatus();
    };
    Caught("", write, [this](const absl::Status& thrown) { Break(thrown); }).IgnoreError();
    batch = {};  // gives buffers back
    lock.lock();
  }
}

void SsdLog::Break(const absl::Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.ok()) return;
    broken_ = Caught("SSD store", [&] {
      return absl::Status(why.code(),
                          absl::StrCat("SSD store: ", std::string(why.message()),
                                       "; nothing more is written until it is opened again"));
    });
  }
  changed_.notify_all();
}

bool SsdLog::AnyToBeTried(const WriteMark& mark) const {
  return std::any_of(unwritten_.begin(), unwritten_.lower_bound(mark.end),
                     [&](const auto& write) { return write.second <= mark.failures; });
}

bool SsdLog::AnyUnwritten(const WriteMark& mark) const {
  return !unwritten_.empty() && unwritten_.begin()->first < mark.end;
}

SsdLog::WriteMark SsdLog::RetryAndMark() {
  std::unique_lock lock(mutex_);
  const WriteMark mark = {.end = next_write_, .failures = failures_};
  std::vector<Write> again = std::exchange(failed_, {});
  if (options_.background) {
    for (Write& write : again) writes_.push_back(std::move(write));
    changed_.notify_all();
  } else if (!again.empty()) {
    lock.unlock();
    RunWrites(again);
  }
  return mark;
}

absl::Status SsdLog::WaitWritten(const WriteMark& mark) {
  std::unique_lock lock(mutex_);
  // That nothing is in failed_ says nothing about the writes before the mark: another call may have
  // taken one out and be trying it now.
  changed_.wait(lock, [&] { return !broken_.ok() || !AnyToBeTried(mark); });
  if (!broken_.ok()) return OwnStatus(broken_);
  return AnyUnwritten(mark) ? OwnStatus(write_error_) : absl::OkStatus();
}

absl::Status SsdLog::Sync() {
  // One at a time: a segment that another call has taken over as clean is not durable before that
  // call has ended.
  std::lock_guard sync_lock(sync_mutex_);
  std::vector<SsdSegment*> dirty;
  std::vector<bool> directories;
  {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return OwnStatus(broken_);
    for (const auto& segment : segments_) {
      if (segment == nullptr || !segment->dirty) continue;
      segment->dirty = false;
      dirty.push_back(segment.get());
    }
    directories = std::exchange(directories_dirty_, std::vector<bool>(options_.dirs.count()));
  }
  absl::Status status;
  if (options_.background && dirty.size() > 1) {
    // Side by side the disk flushes its cache, and the file system its journal, once for several.
    std::vector<absl::Status> statuses(dirty.size());
    std::atomic<size_t> next{0};
    const auto sync_some = [&] {
      for (size_t i = next.fetch_add(1); i < dirty.size(); i = next.fetch_add(1)) {
        statuses[i] = Caught("sync", [&] { return dirty[i]->file->Sync(); });
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(kSyncsAtOnce);
    while (threads.size() + 1 < std::min(kSyncsAtOnce, dirty.size())) {
      absl::StatusOr<std::thread> thread =
          Caught("", [&] { return StartThread("syncing files side by side", sync_some); });
      if (!thread.ok()) break;  // those there are and this one do it all
      threads.push_back(*std::move(thread));
    }
    sync_some();
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& s : statuses) status.Update(s);
  } else {
    for (SsdSegment* segment : dirty) {
      if (status.ok()) status = segment->file->Sync();
    }
  }
  for (uint32_t i = 0; i < options_.dirs.count(); ++i) {
    if (status.ok() && directories[i]) status = options_.env->SyncDir(options_.dirs.path(i));
  }
  if (status.ok()) return status;
  // The kernel has forgotten which pages are dirty: a second sync would say OK and save nothing.
  Break(
      absl::Status(status.code(), absl::StrCat("a sync failed: ", std::string(status.message()))));
  return broken();
}

absl::Status SsdLog::broken() const {
  std::lock_guard lock(mutex_);
  return OwnStatus(broken_);
}

void SsdLog::ReturnBuffer(std::byte* data) {
  if (data == nullptr) return;
  {
    std::lock_guard lock(mutex_);
    free_buffers_.push_back(data);
  }
  changed_.notify_all();
}

// --- Reading, segments ---------------------------------------------------------------------------

std::vector<std::shared_ptr<SsdChunk>> SsdLog::PendingChunks() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<SsdChunk>> out;
  out.reserve(pending_.size());
  for (const auto& [location, chunk] : pending_) out.push_back(chunk);
  return out;
}

std::vector<SsdSegmentRef> SsdLog::LiveSegments() const {
  std::lock_guard lock(mutex_);
  std::vector<SsdSegmentRef> out;
  for (const auto& segment : segments_) {
    if (segment == nullptr) continue;
    if (segment->state != SsdSegment::State::kOpen &&
        segment->state != SsdSegment::State::kSealed) {
      continue;
    }
    // One that was opened just before a write failed has no records, and perhaps no bytes on the
    // disk: named, it would be missed.
    if (segment->end_offset <= kSsdSegmentHeaderBytes) continue;
    out.push_back({.slot = segment->slot,
                   .epoch = segment->epoch,
                   .base_sequence = segment->base_sequence,
                   .end_offset = segment->end_offset,
                   .live_bytes = segment->live_bytes,
                   .directory = segment->directory});
  }
  return out;
}

std::vector<SsdLog::SegmentView> SsdLog::Segments() const {
  std::lock_guard lock(mutex_);
  std::vector<SegmentView> out;
  for (const auto& segment : segments_) {
    if (segment == nullptr) continue;
    out.push_back({.slot = segment->slot,
                   .epoch = segment->epoch,
                   .base_sequence = segment->base_sequence,
                   .newest_sequence = segment->newest_sequence,
                   .end_offset = segment->end_offset,
                   .live_bytes = segment->live_bytes,
                   .tombstone_bytes = segment->tombstone_bytes,
                   .state = segment->state,
                   .snapshots = segment->snapshots,
                   .written = segment->chunks_pending == 0,
                   .damaged = segment->damaged});
  }
  return out;
}

SsdLog::HeldView SsdLog::Held(const std::vector<bool>* snapshot) const {
  std::lock_guard lock(mutex_);
  HeldView out;
  for (const auto& segment : segments_) {
    if (segment == nullptr) continue;
    const bool held = segment->damaged ||
                      (snapshot == nullptr ? segment->snapshots > 0 : (*snapshot)[segment->slot]);
    out.segments += held;
    if (segment->state != SsdSegment::State::kOpen &&
        segment->state != SsdSegment::State::kSealed) {
      continue;
    }
    out.tombstone_bytes += segment->tombstone_bytes;
    if (!held) out.loose_bytes += segment->live_bytes + segment->tombstone_bytes;
  }
  return out;
}

void SsdLog::MarkCleaned(std::span<const uint32_t> slots) {
  std::lock_guard lock(mutex_);
  for (const uint32_t slot : slots) segments_[slot]->state = SsdSegment::State::kCleaned;
}

void SsdLog::MarkDamaged(uint32_t slot) {
  std::lock_guard lock(mutex_);
  segments_[slot]->damaged = true;
}

std::vector<uint32_t> SsdLog::CleanedSegments() const {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> out;
  for (const auto& segment : segments_) {
    if (segment != nullptr && segment->state == SsdSegment::State::kCleaned) {
      out.push_back(segment->slot);
    }
  }
  return out;
}

void SsdLog::Release(std::span<const uint32_t> slots) {
  const uint64_t tag = gate_.Tag();
  {
    std::lock_guard lock(mutex_);
    for (const uint32_t slot : slots) {
      SsdSegment& segment = *segments_[slot];
      segment.retire_tag = tag;
      segment.state =
          segment.snapshots > 0 ? SsdSegment::State::kRetained : SsdSegment::State::kRetiring;
    }
    ReapRetired();
  }
  changed_.notify_all();
}

void SsdLog::AddSnapshotRefs(std::span<const SsdSegmentRef> refs, int delta) {
  const uint64_t tag = gate_.Tag();
  {
    std::lock_guard lock(mutex_);
    for (const SsdSegmentRef& ref : refs) {
      SsdSegment& segment = *segments_[ref.slot];
      HOTROW_CHECK(segment.epoch == ref.epoch);
      segment.snapshots += delta;
      if (segment.snapshots == 0 && segment.state == SsdSegment::State::kRetained) {
        segment.retire_tag = tag;
        segment.state = SsdSegment::State::kRetiring;
      }
    }
    ReapRetired();
  }
  changed_.notify_all();
}

void SsdLog::ReapRetired() {
  const uint64_t oldest = gate_.OldestActive();
  for (const auto& segment : segments_) {
    if (segment == nullptr) continue;
    const bool retired =
        segment->state == SsdSegment::State::kRetiring && segment->retire_tag < oldest;
    if (!retired && segment->state != SsdSegment::State::kHeld) continue;
    segment->state =
        IsFileHeld(*segment->file) ? SsdSegment::State::kHeld : SsdSegment::State::kFree;
  }
}

bool SsdLog::WaitForReaders() {
  constexpr auto kPoll = std::chrono::milliseconds(1);  // a find takes some hundred
  std::unique_lock lock(mutex_);
  ReapRetired();
  const int64_t before = CountRetiring();
  if (before == 0) return BreakHolds();
  while (CountRetiring() == before) {
    changed_.wait_for(lock, kPoll);
    ReapRetired();
  }
  return true;
}

// The store's work goes before that of readers, who find out by checksums and the manifest.
bool SsdLog::BreakHolds() {
  bool any = false;
  for (const auto& segment : segments_) {
    if (segment == nullptr || segment->state != SsdSegment::State::kHeld) continue;
    segment->state = SsdSegment::State::kFree;
    any = true;
  }
  return any;
}

int64_t SsdLog::Available() {
  std::lock_guard lock(mutex_);
  ReapRetired();
  return CountFree() + static_cast<int64_t>(segments_.size()) - num_files_;
}

int64_t SsdLog::AvailableSoon() const {
  std::lock_guard lock(mutex_);
  return CountFree() + CountRetiring() + static_cast<int64_t>(segments_.size()) - num_files_;
}

int64_t SsdLog::files() const {
  std::lock_guard lock(mutex_);
  return num_files_;
}

}  // namespace hotrow::internal
