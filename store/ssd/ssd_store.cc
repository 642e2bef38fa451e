#include "store/ssd/ssd_store.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_appender_impl.h"
#include "store/ssd/ssd_chunk_reader_impl.h"
#include "store/ssd/ssd_cleaner_impl.h"
#include "store/ssd/ssd_commits_impl.h"
#include "store/ssd/ssd_dirs_impl.h"
#include "store/ssd/ssd_expiry_impl.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_live_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_opening_impl.h"
#include "store/ssd/ssd_pacer_impl.h"
#include "store/ssd/ssd_reader_impl.h"
#include "store/ssd/ssd_room_impl.h"
#include "store/ssd/ssd_scan_impl.h"
#include "store/ssd/ssd_tables_impl.h"

// The store's calls, put together from its parts. store/README.md says which part does what, and in
// which order locks are taken.
namespace hotrow {
namespace {

using internal::MemoryBudget;
using internal::SsdAppended;
using internal::SsdAppender;
using internal::SsdChunkReader;
using internal::SsdCleaner;
using internal::SsdCommits;
using internal::SsdDirs;
using internal::SsdFindContexts;
using internal::SsdGeometry;
using internal::SsdIndex;
using internal::SsdLive;
using internal::SsdLocation;
using internal::SsdLog;
using internal::SsdManifest;
using internal::SsdPacer;
using internal::SsdReader;
using internal::SsdReaderTicket;
using internal::SsdRecord;
using internal::SsdRecordKind;
using internal::SsdRoom;
using internal::SsdScanned;
using internal::SsdSegment;
using internal::SsdSegmentRef;
using internal::SsdStream;
using internal::SsdTables;

constexpr int kChunkBuffers = 6;

absl::Status CheckSizes(size_t keys, size_t rows, size_t found) {
  if (keys == rows && keys == found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("SSD store: a batch of ", keys, " keys with ",
                                                 rows, " rows and ", found, " marks"));
}

SsdDirs DirsOf(const SsdStoreOptions& options) {
  std::vector<std::string> paths = {options.path};
  paths.insert(paths.end(), options.more_paths.begin(), options.more_paths.end());
  return SsdDirs(std::move(paths));
}

}  // namespace

struct SsdStore::Impl {
  explicit Impl(const SsdStoreOptions& options)
      : options(options),
        dirs(DirsOf(options)),
        budget(options.memory_budget_bytes, "SSD store", this->options.memory_option.c_str()) {}

  absl::Status Open();
  absl::Status TakeLock(const std::string& directory);
  // Finds the directories to be those of the manifest, which gets the new ones.
  absl::Status TakeDirs(SsdManifest* manifest);
  absl::Status CreateLog(const SsdManifest& manifest);

  // Writes a batch of some keys piece by piece, at the pace of the cleaner. append(done) appends
  // what follows the first `done` keys of the batch.
  absl::Status Write(size_t num_keys, absl::FunctionRef<SsdAppended(size_t done)> append);
  SsdRoom::Changes ChangesOf(std::span<const RowsToCome> to_come) const;
  absl::Status CheckChanges(const SsdRoom::Changes& changes) const;
  // Runs what changes the store. What it throws ends it anywhere, so nothing more is written.
  template <typename Work>
  auto Changing(const Work& work) {
    return Caught("", work, [this](const absl::Status& thrown) { log->Break(thrown); });
  }
  // Makes a commit, with the cleaner paused where it must be.
  absl::Status Commit(
      absl::FunctionRef<absl::StatusOr<bool>(SsdCommits::Cleaning cleaning)> commit);

  const SsdStoreOptions options;
  Env& env = options.env == nullptr ? PosixEnv() : *options.env;
  const SsdDirs dirs;
  // One for each directory. Before all that has files open, so given back after it.
  std::vector<std::unique_ptr<FileLock>> locks;
  MemoryBudget budget;
  // Each uses those before it.
  std::unique_ptr<SsdTables> tables;
  std::unique_ptr<SsdLog> log;
  std::unique_ptr<SsdChunkReader> chunks;
  std::unique_ptr<SsdLive> live;
  std::unique_ptr<SsdIndex> index;
  std::unique_ptr<SsdReader> reader;
  std::unique_ptr<internal::SsdExpiry> expiry;
  std::unique_ptr<SsdAppender> appender;
  std::unique_ptr<SsdRoom> room;
  std::unique_ptr<SsdCommits> commits;
  std::unique_ptr<SsdPacer> pacer;
  std::unique_ptr<SsdCleaner> cleaner;
};

// --- Options -------------------------------------------------------------------------------------

absl::Status SsdStoreOptions::Validate() const {
  const auto bad = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat("SsdStoreOptions.", parts...));
  };
  if (path.empty()) return bad("path: required, is empty");
  if (more_paths.size() >= internal::kSsdDirectoriesMax) {
    return bad("more_paths: at most ", internal::kSsdDirectoriesMax - 1, ", are ",
               more_paths.size());
  }
  for (const std::string& more : more_paths) {
    // The home has a list of them, one a line.
    if (more.empty() || more.find('\n') != std::string::npos) {
      return bad("more_paths: \"", more, "\" is empty or has a line break");
    }
  }
  if (tables.empty()) return bad("tables: required, is empty");
  if (static_cast<int64_t>(tables.size()) > internal::kSsdStoreTablesMax) {
    return bad("tables: at most ", internal::kSsdStoreTablesMax, ", are ", tables.size());
  }
  std::set<uint32_t> seen;
  for (const StoreTable& t : tables) {
    if (t.row_bytes <= 0 || t.row_bytes > SsdStore::kRowBytesMax) {
      return bad("tables: table ", t.table, ": row_bytes must lie in [1, ", SsdStore::kRowBytesMax,
                 "], is ", t.row_bytes);
    }
    if (!seen.insert(t.table).second) return bad("tables: table ", t.table, " is there twice");
  }
  if (memory_budget_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(memory_option, ": must be at least 1, is ", memory_budget_bytes));
  }
  if (disk_budget_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(disk_option, ": must be at least 1, is ", disk_budget_bytes));
  }
  if (chunk_bytes != 0 &&
      (chunk_bytes < internal::kSsdChunkBytesMin || chunk_bytes > internal::kSsdChunkBytesMax ||
       !std::has_single_bit(static_cast<uint64_t>(chunk_bytes)))) {
    return bad("chunk_bytes: must be a power of two in [", internal::kSsdChunkBytesMin, ", ",
               internal::kSsdChunkBytesMax, "], is ", chunk_bytes);
  }
  if (segment_bytes < 0 || segment_bytes > internal::kSsdLogBytesMax) {
    return bad("segment_bytes: must lie in [0, ", internal::kSsdLogBytesMax, "], is ",
               segment_bytes);
  }
  return io.Validate();
}

// --- Opening and closing -------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<SsdStore>> SsdStore::Open(const SsdStoreOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>(options);
  HOTROW_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<SsdStore>(new SsdStore(std::move(impl)));
}

SsdStore::SsdStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SsdStore::~SsdStore() = default;

absl::Status SsdStore::Impl::TakeLock(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<FileLock>> taken = env.LockFile(
      absl::StrCat(directory, "/", std::string(internal::kSsdLockName)), LockMode::kExclusive);
  if (absl::IsFailedPrecondition(taken.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("SSD store ", directory,
                     ": is open already, here or in another process; close that one first"));
  }
  HOTROW_RETURN_IF_ERROR(taken.status());
  locks.push_back(*std::move(taken));
  return absl::OkStatus();
}

absl::Status SsdStore::Impl::TakeDirs(SsdManifest* manifest) {
  HOTROW_ASSIGN_OR_RETURN(manifest->directories, internal::CheckSsdDirs(env, dirs, *manifest));
  for (uint32_t i = 1; i < dirs.count(); ++i) {
    HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, dirs.path(i)));
    HOTROW_RETURN_IF_ERROR(TakeLock(dirs.path(i)));
  }
  return internal::MarkSsdDirs(env, dirs, manifest->directories);
}

absl::Status SsdStore::Impl::CreateLog(const SsdManifest& manifest) {
  const int64_t longest = tables->row_bytes_longest();
  if (internal::SsdChunkBytesNeeded(longest) > manifest.chunk_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.path, ": chunk_bytes is ", manifest.chunk_bytes, ", rows of ", longest,
                     " bytes need at least ", internal::SsdChunkBytesNeeded(longest)));
  }
  HOTROW_ASSIGN_OR_RETURN(const int64_t segments_max, internal::SsdSegmentsMax(options, manifest));
  HOTROW_ASSIGN_OR_RETURN(log, SsdLog::Create({.env = &env,
                                               .dirs = dirs,
                                               .segment_bytes = manifest.segment_bytes,
                                               .chunk_bytes = manifest.chunk_bytes,
                                               .segments_max = segments_max,
                                               .longest_log_bytes = internal::SsdLogBytes(longest),
                                               .num_buffers = kChunkBuffers,
                                               .background = options.background},
                                              budget));
  return absl::OkStatus();
}

absl::Status SsdStore::Impl::Open() {
  HOTROW_RETURN_IF_ERROR(internal::CheckSsdHome(env, options.path));
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, options.path));
  HOTROW_RETURN_IF_ERROR(TakeLock(options.path));
  HOTROW_ASSIGN_OR_RETURN(SsdManifest manifest, internal::ChooseSsdState(env, options));
  HOTROW_RETURN_IF_ERROR(TakeDirs(&manifest));
  tables = std::make_unique<SsdTables>(options.tables, manifest.tables);
  HOTROW_RETURN_IF_ERROR(CreateLog(manifest));
  HOTROW_ASSIGN_OR_RETURN(chunks, SsdChunkReader::Create(env, options.io, *log, budget));
  std::vector<std::string> surplus_files;
  HOTROW_RETURN_IF_ERROR(internal::AdoptSsdSegments(env, manifest, *log, &surplus_files));
  // Before the index, which takes what is left of the budget.
  HOTROW_ASSIGN_OR_RETURN(
      std::unique_ptr<SsdFindContexts> find_contexts,
      SsdFindContexts::Create(env, options.io, dirs.count(), options.background, *tables, budget));
  log->set_next_epoch(internal::FirstSsdEpoch(manifest));
  live = std::make_unique<SsdLive>(*tables, *log);
  HOTROW_ASSIGN_OR_RETURN(
      internal::OpenedSsdIndex opened,
      internal::OpenSsdIndex(env, options, manifest, *tables, *log, *live, budget));
  index = std::move(opened.index);
  reader = std::make_unique<SsdReader>(*tables, *log, *index, std::move(find_contexts));
  expiry = std::make_unique<internal::SsdExpiry>(*tables, options.expired);
  appender =
      std::make_unique<SsdAppender>(*tables, *log, *index, *live, *expiry, manifest.sequence_limit);
  room = std::make_unique<SsdRoom>(options, *tables, *log, *live);
  commits = std::make_unique<SsdCommits>(env, options, *tables, *log, *live, *appender, *room,
                                         std::move(manifest));
  HOTROW_RETURN_IF_ERROR(commits->Begin(*index, opened.from_image, std::move(surplus_files)));
  // A full disk is no reason not to read.
  const absl::Status has_reserve = log->EnsureFree(SsdLog::kReservedSegments);
  if (!has_reserve.ok() && !absl::IsResourceExhausted(has_reserve)) return has_reserve;
  HOTROW_RETURN_IF_ERROR(log->Sync());  // the names of new files
  pacer = std::make_unique<SsdPacer>(log->options().segment_bytes);
  cleaner = std::make_unique<SsdCleaner>(SsdCleaner::Parts{.tables = *tables,
                                                           .log = *log,
                                                           .index = *index,
                                                           .live = *live,
                                                           .appender = *appender,
                                                           .room = *room,
                                                           .commits = *commits,
                                                           .pacer = *pacer,
                                                           .chunks = *chunks});
  return options.background ? cleaner->Start() : absl::OkStatus();
}

absl::Status SsdStore::Close() {
  Impl& impl = *impl_;
  return impl.Changing([&]() -> absl::Status {
    const std::unique_lock pause = impl.cleaner->Pause();
    for (const SsdStream stream : {SsdStream::kSurvivors, SsdStream::kFresh}) {
      std::lock_guard lock(impl.log->stream_mutex(stream));
      impl.log->Seal(stream);
    }
    HOTROW_RETURN_IF_ERROR(impl.commits->Commit(SsdCommits::Cleaning::kPaused).status());
    impl.cleaner->Retire();  // and leaves the image of the index alone
    return impl.commits->WriteImage(*impl.index);
  });
}

// --- Batches -------------------------------------------------------------------------------------

absl::Status SsdStore::Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                            std::span<uint8_t> found) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), found.size()));
  return impl_->reader->Find(keys, rows, found);
}

absl::Status SsdStore::Impl::Write(size_t num_keys,
                                   absl::FunctionRef<SsdAppended(size_t done)> append) {
  return Changing([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(commits->DropImage());
    size_t done = 0;
    while (done < num_keys) {
      pacer->Wait();
      const SsdAppended piece = append(done);
      if (piece.first_chunk) cleaner->WakeIfShort();
      HOTROW_RETURN_IF_ERROR(piece.status);
      pacer->Charge(piece.log_bytes);
      done += piece.keys;
      if (piece.keys == 0) HOTROW_RETURN_IF_ERROR(cleaner->WaitForRoom(piece.no_room));
    }
    return absl::OkStatus();
  });
}

absl::Status SsdStore::InsertOrAssign(std::span<const RowKey> keys,
                                      std::span<const std::byte* const> rows) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), keys.size()));
  std::vector<RowKey> index_keys;
  HOTROW_RETURN_IF_ERROR(impl_->tables->ToIndexKeys(keys, &index_keys));
  if (keys.empty()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(impl_->room->CheckRows(*impl_->index, index_keys));
  return impl_->Write(keys.size(), [&](size_t done) {
    return impl_->appender->AppendRows(std::span(index_keys).subspan(done), rows.subspan(done));
  });
}

absl::Status SsdStore::Erase(std::span<const RowKey> keys) {
  std::vector<RowKey> index_keys;
  HOTROW_RETURN_IF_ERROR(impl_->tables->ToIndexKeys(keys, &index_keys));
  if (keys.empty()) return absl::OkStatus();
  return impl_->Write(keys.size(), [&](size_t done) {
    return impl_->appender->AppendErasures(std::span(index_keys).subspan(done));
  });
}

absl::Status SsdStore::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  SsdLog& log = *impl_->log;
  const SsdTables& tables = *impl_->tables;
  const SsdGeometry geometry = {log.options().segment_bytes, log.options().chunk_bytes,
                                tables.row_bytes()};
  // Rows that the cleaner moves would be missed.
  const std::unique_lock pause = impl_->cleaner->Pause();
  const SsdReaderTicket ticket(log.gate());
  std::vector<SsdSegmentRef> refs;
  HOTROW_RETURN_IF_ERROR(impl_->Changing([&]() -> absl::Status {
    std::scoped_lock streams(log.stream_mutex(SsdStream::kSurvivors),
                             log.stream_mutex(SsdStream::kFresh));
    log.Submit(SsdStream::kSurvivors, /*close=*/false);
    log.Submit(SsdStream::kFresh, /*close=*/false);
    refs = log.LiveSegments();
    return absl::OkStatus();
  }));
  HOTROW_RETURN_IF_ERROR(log.WaitWritten());
  std::vector<SsdScanned> records;
  std::vector<RowKey> keys;
  std::vector<SsdLocation> locations;
  for (const SsdSegmentRef& ref : refs) {
    const auto visit_chunk = [&](int64_t at, std::span<const std::byte> chunk,
                                 const absl::Status& read) -> absl::Status {
      HOTROW_RETURN_IF_ERROR(read);
      records.clear();
      const absl::Status listed = internal::ListSsdChunk(geometry, ref, at, chunk, &records);
      if (!listed.ok()) {
        return absl::Status(listed.code(), absl::StrCat(log.SegmentPath(ref.slot), ": ",
                                                        std::string(listed.message())));
      }
      keys.clear();
      for (const SsdScanned& record : records) keys.push_back({record.key, record.table_index()});
      locations.resize(keys.size());
      impl_->index->Find(keys, locations);
      for (size_t i = 0; i < records.size(); ++i) {
        const SsdScanned& record = records[i];
        if (record.kind() != SsdRecordKind::kRow ||
            locations[i] != log.Location(ref.slot, record.offset)) {
          continue;
        }
        const std::optional<SsdRecord> row =
            internal::DecodeSsdRecord(chunk.subspan(static_cast<size_t>(record.offset - at)),
                                      {ref.epoch, record.offset}, tables.row_bytes());
        if (!row.has_value()) {
          return tables.Unreadable(log.SegmentPath(ref.slot), record.offset, keys[i]);
        }
        HOTROW_RETURN_IF_ERROR(visit(tables.ToStoreKey(keys[i]), row->row));
      }
      return absl::OkStatus();
    };
    HOTROW_RETURN_IF_ERROR(impl_->chunks->Read(ref.slot, ref.end_offset, visit_chunk));
  }
  return absl::OkStatus();
}

SsdRoom::Changes SsdStore::Impl::ChangesOf(std::span<const RowsToCome> to_come) const {
  SsdRoom::Changes changes;
  for (const RowsToCome& some : to_come) {
    const int64_t log_bytes = internal::SsdLogBytes(some.row_bytes);
    changes.log_bytes += some.changed * log_bytes;
    changes.new_log_bytes += std::max(some.rows, some.unwritten) * log_bytes;
  }
  return changes;
}

// First as if all snapshots were to stay; where that leaves no room, those before the newest may
// go.
absl::Status SsdStore::Impl::CheckChanges(const SsdRoom::Changes& changes) const {
  if (room->CheckChanges(changes, nullptr).ok()) return absl::OkStatus();
  const std::vector<SsdSegmentRef> newest = commits->NewestSnapshot();
  return room->CheckChanges(changes, &newest);
}

bool SsdStore::IsTight(std::span<const RowsToCome> to_come, bool in_snapshot) {
  const SsdRoom::Changes changes = impl_->ChangesOf(to_come);
  return in_snapshot ? impl_->room->LacksRoomAfterSnapshot(changes)
                     : !impl_->CheckChanges(changes).ok();
}

absl::Status SsdStore::CheckRoom(std::span<const RowsToCome> to_come) {
  const Impl& impl = *impl_;
  HOTROW_RETURN_IF_ERROR(impl.CheckChanges(impl.ChangesOf(to_come)));
  int64_t rows = 0;
  int64_t log_bytes = 0;
  for (const RowsToCome& some : to_come) {
    rows += some.rows;
    log_bytes += some.rows * internal::SsdLogBytes(some.row_bytes);
  }
  if (rows == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(impl.room->CheckNew(log_bytes));
  const int64_t more = impl.index->BytesMax(rows) - impl.index->bytes();
  if (impl.budget.used() + more <= impl.budget.budget()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("SSD store ", impl.options.path, ": the memory budget of ", impl.budget.budget(),
                   " bytes is too small: ", impl.budget.used(),
                   " bytes are in use, and the index may need ", more, " more with ", rows,
                   " new rows, those that the cache has yet to write included; raise ",
                   impl.options.memory_option, ", or erase rows"));
}

absl::Status SsdStore::CleanAll() {
  return impl_->Changing([&] { return impl_->cleaner->CleanAll(); });
}

void SsdStore::SetAgeLines(std::span<const RowAgeLine> lines) { impl_->expiry->SetLines(lines); }

absl::StatusOr<int64_t> SsdStore::DropAged(int64_t rows) {
  return impl_->Changing([&] { return impl_->cleaner->DropExpired(rows); });
}

// --- States and snapshots ------------------------------------------------------------------------

absl::Status SsdStore::Impl::Commit(
    absl::FunctionRef<absl::StatusOr<bool>(SsdCommits::Cleaning cleaning)> commit) {
  return Changing([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const bool done, commit(SsdCommits::Cleaning::kMayRun));
    if (done) return absl::OkStatus();
    const std::unique_lock pause = cleaner->Pause();
    return commit(SsdCommits::Cleaning::kPaused).status();
  });
}

absl::Status SsdStore::Flush() {
  return impl_->Commit(
      [&](SsdCommits::Cleaning cleaning) { return impl_->commits->Commit(cleaning); });
}

void SsdStore::TidyForSnapshot() {
  impl_
      ->Changing([&]() -> absl::Status {
        impl_->cleaner->TidyForSnapshot();
        return absl::OkStatus();
      })
      .IgnoreError();  // the snapshot says it
}

absl::Status SsdStore::PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) {
  if (snapshot == 0) {
    return absl::FailedPreconditionError("SSD store: a snapshot may have any number but 0");
  }
  bool has_captured = false;
  std::optional<SsdPacer::Hold> hold;
  const auto capture = [&] {
    has_captured = true;
    hold.reset();
    captured();
  };
  const auto prepare = [&](SsdCommits::Cleaning cleaning) {
    return impl_->commits->PrepareSnapshot(cleaning, snapshot, capture);
  };
  return impl_->Changing([&]() -> absl::Status {
    impl_->cleaner->ShrinkForSnapshot();
    const absl::Status status = impl_->Commit(prepare);
    if (has_captured || !absl::IsResourceExhausted(status)) return status;
    // Refused for its size: others may have written faster than rows were moved together.
    hold.emplace(*impl_->pacer);
    impl_->cleaner->ShrinkForSnapshot();
    return impl_->Commit(prepare);
  });
}

absl::Status SsdStore::CommitSnapshot(SnapshotId snapshot) {
  return impl_->Changing([&] { return impl_->commits->CommitSnapshot(snapshot); });
}

absl::Status SsdStore::DropSnapshot(SnapshotId snapshot) {
  return impl_->Changing([&] { return impl_->commits->DropSnapshot(snapshot); });
}

absl::StatusOr<std::vector<SnapshotId>> SsdStore::ListSnapshots() {
  return impl_->commits->ListSnapshots();
}

absl::StatusOr<SnapshotInfo> SsdStore::DescribeSnapshot(SnapshotId snapshot) {
  return impl_->commits->DescribeSnapshot(snapshot);
}

// --- Readings ------------------------------------------------------------------------------------

RowStoreStats SsdStore::Stats() const {
  const Impl& impl = *impl_;
  const SsdReader::Counts& reads = impl.reader->counts();
  const SsdAppender::Counts& writes = impl.appender->counts();
  RowStoreStats out;
  out.rows = impl.index->rows();
  out.budget_bytes = impl.budget.budget();
  out.used_bytes = impl.budget.used();
  out.peak_bytes = impl.budget.peak();
  out.metadata_bytes = impl.index->bytes();
  out.finds = reads.finds.value();
  out.found = reads.hits.value();
  out.rows_written = writes.rows_written.value();
  out.rows_erased = writes.rows_erased.value();
  out.ios = reads.reads.value() + impl.chunks->reads() + impl.log->ios();
  out.bytes_read = reads.bytes_read.value() + impl.chunks->bytes_read();
  out.bytes_written = impl.log->bytes_written() + impl.commits->bytes_written();
  out.snapshot_bytes = impl.room->SnapshotOnlyBytes();
  out.payload_bytes_written = writes.payload_bytes.value();
  out.disk_budget_bytes = impl.options.disk_budget_bytes;
  out.disk_used_bytes =
      impl.log->files() * impl.log->options().segment_bytes + impl.commits->manifest_file_bytes();
  return out;
}

SsdStoreStats SsdStore::SsdStats() const {
  const Impl& impl = *impl_;
  const SsdAppender::Counts& writes = impl.appender->counts();
  SsdStoreStats out;
  out.segments_max = impl.log->options().segments_max;
  for (const SsdLog::SegmentView& s : impl.log->Segments()) {
    ++out.segments;
    if (s.state == SsdSegment::State::kFree) ++out.segments_free;
    if (s.damaged) ++out.damaged_segments;
  }
  out.segments_cleaned = impl.cleaner->segments_cleaned();
  out.live_bytes = impl.live->log_bytes();
  out.index_bytes = impl.index->bytes();
  out.tombstones_written = writes.tombstones.value();
  out.rows_moved = writes.rows_moved.value();
  out.rows_expired = writes.rows_expired.value();
  out.merged_reads = impl.reader->counts().merged_reads.value();
  out.write_stalls = impl.pacer->stalls();
  out.io = absl::StrCat(impl.reader->queue_name(), ", ",
                        impl.log->direct()
                            ? absl::StrCat("direct, blocks of ", impl.log->block_bytes(), " bytes")
                            : std::string("through the page cache: no direct I/O here"));
  return out;
}

std::span<const StoreTable> SsdStore::tables() const { return impl_->tables->asked(); }

int64_t SsdStore::row_bytes(uint32_t table) const {
  const std::optional<uint32_t> index = impl_->tables->IndexOf(table);
  return index.has_value() ? impl_->tables->row_bytes(*index) : 0;
}

}  // namespace hotrow
