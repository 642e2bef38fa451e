#include "store/ssd/ssd_store.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/entropy.h"
#include "base/env.h"
#include "base/math.h"
#include "base/metrics.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_image_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_scan_impl.h"

namespace hotrow {
namespace {

using internal::BudgetedBuffer;
using internal::kNoLocation;
using internal::MemoryBudget;
using internal::SsdChunk;
using internal::SsdFooterEntry;
using internal::SsdGeometry;
using internal::SsdIndex;
using internal::SsdLocation;
using internal::SsdLog;
using internal::SsdManifest;
using internal::SsdPlace;
using internal::SsdRecord;
using internal::SsdRecordKind;
using internal::SsdScanned;
using internal::SsdSegment;
using internal::SsdSegmentRef;
using internal::SsdSnapshot;
using internal::SsdStream;

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = kKiB * kKiB;
constexpr int64_t kBlockBytesMax = 4096;

// Sizes that the store chooses. A segment is a 256th of the disk budget, so that the few that must
// stay free cost little; there are at most 512, so that all files can be open at once.
constexpr int64_t kChunkBytesDefault = kMiB;
constexpr int64_t kSegmentsTarget = 256;
constexpr int64_t kSegmentsMax = 512;
constexpr int64_t kSegmentBytesDefaultMax = 256 * kMiB;
// Open at both ends of the log, reserved for the cleaner, and a little to work with.
constexpr int64_t kSegmentsMin = 8;
constexpr int kChunkBuffers = 6;
constexpr int64_t kSnapshotsPlanned = 2;

// A read that serves several rows is at most this long: on the disks we know 16 KiB take 1.6 times
// as long as 4 KiB (and two reads take twice as long).
constexpr int64_t kMergedReadBytes = 16 * kKiB;
constexpr size_t kFindKeys = 16'384;  // of a batch at once
constexpr int kFindContexts = 2;
constexpr int64_t kFindArenaBytes = 8 * kMiB;

// Numbers below these may be in use once the manifest that says so is durable. A run that ends
// without one leaves records behind whose numbers are never given out again.
constexpr uint64_t kEpochsReserved = uint64_t{1} << 32;
constexpr uint64_t kSequencesReserved = uint64_t{1} << 40;

// A record's checksum covers the epoch of its segment, so a segment file of another store holds no
// valid record if no two stores use one epoch: each begins at a number drawn below the first of
// these. So that copies of one store differ as well once both are used, each opening skips up to
// so many numbers as the second says: 2^21 openings before half of all numbers are used.
constexpr uint64_t kFirstEpochMax = uint64_t{1} << 61;
constexpr uint64_t kEpochsSkippedMax = uint64_t{1} << 40;

uint64_t EpochsToSkip(uint64_t next_epoch) {
  // A store that was opened too often for that skips less, rather than to run out of numbers.
  const uint64_t left = internal::kSsdNumberMax - next_epoch;
  return UniqueId::Random().low % std::min(kEpochsSkippedMax, std::max<uint64_t>(left >> 20, 1));
}

// The cleaner works when no more segments than this can be opened, until there are two more: two
// are reserved for it, one it may have taken, and two are for writers while a round runs.
constexpr int64_t kLowWater = 4;
constexpr int64_t kHighWater = 6;
// Chunks of a segment that the cleaner reads at once: enough to keep the disk busy while it moves
// rows, and few, so that reads of rows are not long behind them.
constexpr int64_t kCleanDepth = 4;
// See Pace.
constexpr auto kPacePoll = std::chrono::milliseconds(20);
// A segment so full gains too little.
constexpr double kCleanUtilisationMax = 0.97;
// Of a segment that a snapshot names: one that is less full is left by its rows before the next
// snapshot, which so holds at most twice what it needs.
constexpr double kPinnedUtilisationMax = 0.5;
// See BoundSnapshot.
constexpr double kSnapshotUtilisationWanted = 0.8;
constexpr double kSnapshotUtilisationMin = 0.5;
constexpr int64_t kSnapshotSlack = 4;   // segments: two open ones, and two filled in part
constexpr int64_t kSnapshotMargin = 6;  // segments that others may use up after ShrinkForSnapshot
constexpr int kVictimsMax = 8;
// A round that gains less of a segment than this part of it is none.
constexpr int64_t kGainMin = 64;
// Before a snapshot so much of the disk budget is made free, if cleaning can.
constexpr int64_t kFreePartForSnapshot = 4;
// Tombstones below this part of the live bytes are not worth rewriting everything.
constexpr int64_t kTombstonesPerLive = 32;
// Of the log: rows may fill this much of what is not reserved; the rest is what cleaning lives on.
constexpr double kFillMax = 0.95;

constexpr int64_t kEntryBytes = sizeof(SsdFooterEntry);

// What a row takes in the log.
int64_t LogBytes(int64_t row_bytes) { return internal::SsdLogBytes(row_bytes); }

absl::Status Named(const absl::Status& status, const std::string& file) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", std::string(status.message())));
}

std::byte* Aligned(std::byte* data) {
  return reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<int64_t>(data), kBlockBytesMax));
}

absl::Status CheckSizes(size_t keys, size_t rows, size_t found) {
  if (keys == rows && keys == found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("SSD store: a batch of ", keys, " keys with ",
                                                 rows, " rows and ", found, " marks"));
}

// Which segments a round of cleaning takes: those where it pays most in the long run, those that
// cost least now, or the oldest one, so that tombstones can go.
enum class CleanOrder {
  kCostBenefit,
  kEmptiest,
  kOldest,
  kPinned,  // those that snapshots name and that are mostly garbage, the emptiest first
  kAny,     // those whose rows fit into fewer segments, snapshots or not, the emptiest first
};

// What one Find needs for its reads.
struct FindContext {
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

// Holds the gate of the log open for one reader.
class ReaderTicket {
 public:
  explicit ReaderTicket(internal::SsdReaderGate& gate) : gate_(gate), ticket_(gate.Enter()) {}
  ~ReaderTicket() { gate_.Exit(ticket_); }
  ReaderTicket(const ReaderTicket&) = delete;
  ReaderTicket& operator=(const ReaderTicket&) = delete;

 private:
  internal::SsdReaderGate& gate_;
  const uint64_t ticket_;
};

}  // namespace

struct SsdStore::Impl {
  explicit Impl(const SsdStoreOptions& options)
      : options(options), budget(options.memory_budget_bytes, "SSD store") {}
  ~Impl();

  // Opening.
  absl::Status Open();
  absl::Status ChooseGeometry();
  int64_t ManifestReserve(int64_t segments) const;
  int64_t SegmentsMax() const;
  absl::Status ReadManifest(bool* exists);
  absl::Status CheckTables() const;
  absl::Status ChooseState();
  absl::Status CheckCounts() const;
  absl::Status AdoptSegments();
  absl::Status CreateIndex(int64_t rows_hint);
  absl::StatusOr<bool> LoadImage();
  std::string ImagePath(uint64_t number) const;
  bool HasRoomForImage() const;
  absl::Status DropImage();
  absl::Status RebuildIndex();
  absl::Status CreateFindContexts();

  // Tables by their index in the manifest.
  uint32_t TableIndex(uint32_t table) const {
    const auto at = table_index.find(table);
    return at == table_index.end() ? std::numeric_limits<uint32_t>::max() : at->second;
  }
  absl::Status ToIndexKeys(std::span<const RowKey> keys, std::vector<RowKey>* out) const;
  SsdGeometry geometry() const { return {segment_bytes, chunk_bytes, row_bytes}; }

  // Reading.
  absl::Status FindSome(FindContext& context, std::span<const RowKey> keys,
                        std::span<std::byte* const> rows, std::span<uint8_t> found);
  void TakePending(FindContext& context, std::span<const std::shared_ptr<SsdChunk>> pending,
                   std::span<std::byte* const> rows, absl::Status* status);
  absl::Status ReadWanted(FindContext& context, std::span<std::byte* const> rows);
  absl::Status Unreadable(uint32_t slot, int64_t offset, const RowKey& index_key) const;

  // Writing.
  absl::Status InsertOrAssign(std::span<const RowKey> keys, std::span<const std::byte* const> rows);
  absl::Status CheckRoom(std::span<const RowKey> index_keys);
  absl::Status WaitForRoom(const absl::Status& why);
  absl::Status Full(int64_t need) const;
  absl::StatusOr<size_t> AppendRows(std::span<const RowKey> index_keys,
                                    std::span<const std::byte* const> rows, absl::Status* no_room);
  absl::StatusOr<size_t> AppendErasures(std::span<const RowKey> index_keys, absl::Status* no_room);
  void Pace();
  void HoldWriters(int change);  // by so many more callers
  void Charge(int64_t bytes);
  void Grant(int64_t bytes);
  absl::StatusOr<bool> MakeFreshRoom(int64_t log_bytes, absl::Status* no_room);
  void AddLive(SsdLocation location, uint32_t table, int sign);

  // Committing. cleaning: clean_mutex is held.
  std::vector<int64_t> TableRows() const { return {table_rows.begin(), table_rows.end()}; }
  SnapshotInfo Describe(const SsdSnapshot& snapshot) const;
  struct Prepare {
    SnapshotId id = 0;  // 0: none
    absl::FunctionRef<void()> captured = Nothing;
  };
  static void Nothing() {}
  template <typename Change>
  absl::Status Commit(const Change& change, const Prepare& prepare, bool cleaning = false);
  // An overload and no default argument, which clang 14 does not take here.
  template <typename Change>
  absl::Status Commit(const Change& change) {
    return Commit(change, Prepare());
  }
  template <typename Change>
  absl::StatusOr<bool> TryCommit(const Change& change, const Prepare& prepare, bool cleaning);
  template <typename Change>
  absl::Status ChangeManifest(const Change& change);
  absl::Status CheckManifestRoom(const SsdManifest& next) const;
  absl::Status WriteManifest(const SsdManifest& next);

  // Cleaning: clean_mutex is held.
  void CleanerLoop();
  absl::StatusOr<bool> CleanRound();
  absl::StatusOr<bool> CleanSome(std::span<const SsdLog::SegmentView> victims);
  // room: segments that what they hold may fill; of those that are reserved one, beside the one
  // that is open.
  std::vector<SsdLog::SegmentView> ChooseVictims(CleanOrder order, double room = 1.0) const;
  int64_t TombstoneBytes() const;
  void CleanForSnapshot();   // clean_mutex is not held
  void ShrinkForSnapshot();  // clean_mutex is not held
  absl::Status CleanSegment(const SsdLog::SegmentView& victim, std::span<const uint32_t> cleaned,
                            absl::Status* damage);
  absl::Status MoveRows(std::span<const RowKey> index_keys, std::span<const SsdLocation> from,
                        std::span<const std::byte* const> rows);
  absl::Status MoveTombstones(std::span<const RowKey> index_keys);
  // Reads the chunks of a segment that lie below `end`, some at once, in any order; visit is told
  // of each, or of why it could not be read. Ends with the first error that visit returns.
  absl::Status ReadChunks(
      uint32_t slot, int64_t end,
      absl::FunctionRef<absl::Status(int64_t at, std::span<const std::byte> chunk,
                                     const absl::Status& read)>
          visit);
  int64_t SnapshotOnlyBytes() const;
  struct SnapshotBounds {
    int64_t wanted;
    int64_t most;
  };
  SnapshotBounds BoundSnapshot() const;
  absl::Status CheckSnapshotSize(int64_t segments) const;
  // Whether rows from outside find no segment to begin, not even once all finds have ended.
  bool LacksFreshSegments() const { return log->AvailableSoon() <= SsdLog::kReservedSegments; }

  const SsdStoreOptions options;
  Env* env = nullptr;
  std::unique_ptr<FileLock> lock;  // before all that has files open, so given back after it
  std::string manifest_path;
  std::vector<StoreTable> tables;  // as the caller gave them
  // While opening: files that belong to no state, to be removed once the manifest says so.
  std::vector<std::string> surplus_files;
  // Of the manifest; they never change after Open.
  int64_t segment_bytes = 0;
  int64_t chunk_bytes = 0;
  std::unordered_map<uint32_t, uint32_t> table_index;
  std::vector<uint32_t> table_numbers;  // by table index
  std::vector<int64_t> row_bytes;       // by table index
  int64_t row_bytes_longest = 0;

  MemoryBudget budget;
  std::unique_ptr<SsdIndex> index;
  std::unique_ptr<SsdLog> log;
  std::atomic<uint64_t> next_sequence{1};
  std::atomic<int64_t> live_log_bytes{0};
  std::vector<std::atomic<int64_t>> table_rows;  // by table index; exact while no batch writes

  // Held while a manifest is made and replaced. Before: clean_mutex. After: the streams' locks.
  mutable std::mutex commit_mutex;
  SsdManifest manifest;  // the durable one; after Open it changes under both this lock and the next
  // For who only looks at the snapshots: commit_mutex is held while the disk syncs, this one is
  // not.
  mutable std::mutex manifest_mutex;
  std::atomic<int64_t> manifest_file_bytes{0};
  std::atomic<bool> has_image{false};  // whether it names an image of the index
  // What the manifest said when the store was opened; see SsdManifest.
  uint64_t life_payload = 0;
  uint64_t life_device = 0;

  // One round of cleaning, or an Iterate, at a time.
  std::mutex clean_mutex;
  BudgetedBuffer<std::byte> clean_memory;
  std::byte* clean_buffer = nullptr;  // [kCleanDepth][chunk_bytes]
  std::unique_ptr<IoQueue> clean_queue;
  bool closed = false;       // by Close: the cleaner leaves the image of the index alone
  uint64_t cycle_until = 0;  // see CleanRound; 0: no cycle
  int64_t tombstones_after_cycle = 0;

  std::mutex cleaner_mutex;  // guards what follows
  std::condition_variable cleaner_changed;
  bool cleaner_wanted = false;
  bool stop = false;
  int64_t rounds = 0;  // that ended
  bool last_round_gained = true;
  bool last_round_full = false;  // when it began
  absl::Status cleaner_status;   // of the last round
  std::thread cleaner;

  // See Pace.
  std::mutex pace_mutex;  // guards what follows; no other lock is taken under it
  std::condition_variable pace_changed;
  bool pacing = false;
  int writers_held = 0;  // by so many PrepareSnapshots
  int64_t pace_credit = 0;

  std::mutex find_mutex;
  std::condition_variable find_changed;
  std::vector<std::unique_ptr<FindContext>> find_contexts;

  Counter finds, hits, rows_written, rows_erased, payload_written, reads, bytes_read, other_written;
  Counter merged_reads, rows_moved, rows_expired, tombstones, stalls, stall_nanos, segments_cleaned;
};

// --- Options -------------------------------------------------------------------------------------

absl::Status SsdStoreOptions::Validate() const {
  const auto bad = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat("SsdStoreOptions.", parts...));
  };
  if (path.empty()) return bad("path: required, is empty");
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
    return bad("memory_budget_bytes: must be at least 1, is ", memory_budget_bytes);
  }
  if (disk_budget_bytes <= 0) {
    return bad("disk_budget_bytes: must be at least 1, is ", disk_budget_bytes);
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

// --- Opening -------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<SsdStore>> SsdStore::Open(const SsdStoreOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>(options);
  HOTROW_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<SsdStore>(new SsdStore(std::move(impl)));
}

SsdStore::SsdStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SsdStore::~SsdStore() = default;

SsdStore::Impl::~Impl() {
  if (cleaner.joinable()) {
    {
      std::lock_guard lock(cleaner_mutex);
      stop = true;
    }
    cleaner_changed.notify_all();
    cleaner.join();
  }
}

absl::Status SsdStore::Impl::Open() {
  env = options.env == nullptr ? &PosixEnv() : options.env;
  manifest_path = absl::StrCat(options.path, "/", std::string(internal::kSsdManifestName));
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(*env, options.path));
  absl::StatusOr<std::unique_ptr<FileLock>> taken = env->LockFile(
      absl::StrCat(options.path, "/", std::string(internal::kSsdLockName)), LockMode::kExclusive);
  if (absl::IsFailedPrecondition(taken.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("SSD store ", options.path,
                     ": is open already, here or in another process; close that one first"));
  }
  HOTROW_RETURN_IF_ERROR(taken.status());
  lock = *std::move(taken);
  bool exists = false;
  HOTROW_RETURN_IF_ERROR(ReadManifest(&exists));
  if (!exists) {
    if (options.open_at != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          options.path, ": there is no snapshot ", options.open_at, ", and no store: the file ",
          std::string(internal::kSsdManifestName), " is missing"));
    }
    manifest.tables = options.tables;
    manifest.next_epoch = 1 + UniqueId::Random().low % kFirstEpochMax;
    HOTROW_RETURN_IF_ERROR(ChooseGeometry());
  } else {
    HOTROW_RETURN_IF_ERROR(CheckTables());
    HOTROW_RETURN_IF_ERROR(ChooseState());
  }
  tables = options.tables;
  segment_bytes = manifest.segment_bytes;
  chunk_bytes = manifest.chunk_bytes;
  life_payload = manifest.payload_bytes_written;
  life_device = manifest.device_bytes_written;
  for (const StoreTable& t : manifest.tables) {
    table_numbers.push_back(t.table);
    table_index.emplace(t.table, static_cast<uint32_t>(row_bytes.size()));
    row_bytes.push_back(t.row_bytes);
    row_bytes_longest = std::max(row_bytes_longest, t.row_bytes);
  }
  table_rows = std::vector<std::atomic<int64_t>>(row_bytes.size());
  if (internal::SsdChunkBytesNeeded(row_bytes_longest) > chunk_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.path, ": chunk_bytes is ", chunk_bytes, ", rows of ", row_bytes_longest,
        " bytes need at least ", internal::SsdChunkBytesNeeded(row_bytes_longest)));
  }

  const int64_t segments_max = SegmentsMax();
  int64_t segments_needed = kSegmentsMin;
  for (const SsdSegmentRef& ref : manifest.segments) {
    segments_needed = std::max<int64_t>(segments_needed, ref.slot + 1);
  }
  for (const SsdSnapshot& snapshot : manifest.snapshots) {
    for (const SsdSegmentRef& ref : snapshot.segments) {
      segments_needed = std::max<int64_t>(segments_needed, ref.slot + 1);
    }
  }
  if (segments_max < segments_needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "SSD store ", options.path, ": the disk budget of ", options.disk_budget_bytes,
        " bytes is too small: this store needs ", segments_needed * segment_bytes,
        " for its segments and ", ManifestReserve(segments_needed), " for its manifest"));
  }
  HOTROW_ASSIGN_OR_RETURN(log, SsdLog::Create({.env = env,
                                               .path = options.path,
                                               .segment_bytes = segment_bytes,
                                               .chunk_bytes = chunk_bytes,
                                               .segments_max = segments_max,
                                               .longest_log_bytes = LogBytes(row_bytes_longest),
                                               .num_buffers = kChunkBuffers,
                                               .background = options.background},
                                              budget));
  HOTROW_ASSIGN_OR_RETURN(clean_memory, BudgetedBuffer<std::byte>::Create(
                                            budget, kCleanDepth * chunk_bytes + kBlockBytesMax));
  clean_buffer = Aligned(clean_memory.data());
  IoQueueOptions clean_io = options.io;
  clean_io.depth = static_cast<int>(kCleanDepth);
  clean_io.threads = static_cast<int>(kCleanDepth);
  HOTROW_ASSIGN_OR_RETURN(clean_queue, env->NewIoQueue(clean_io));
  HOTROW_RETURN_IF_ERROR(AdoptSegments());
  HOTROW_RETURN_IF_ERROR(CreateFindContexts());

  next_sequence = manifest.sequence_limit;
  log->set_next_epoch(manifest.next_epoch + EpochsToSkip(manifest.next_epoch));
  HOTROW_ASSIGN_OR_RETURN(const bool loaded, LoadImage());
  if (!loaded) HOTROW_RETURN_IF_ERROR(RebuildIndex());
  HOTROW_RETURN_IF_ERROR(CheckCounts());
  // From here on numbers below the limits may be in use, and what is open is the latest state. The
  // image stays until something is written, unless it takes room that segments need.
  SsdManifest next = manifest;
  next.next_epoch = log->next_epoch() + kEpochsReserved;
  next.sequence_limit = next_sequence + kSequencesReserved;
  if (!loaded || !HasRoomForImage()) {
    if (next.index_image != 0) surplus_files.push_back(ImagePath(next.index_image));
    next.index_image = 0;
    next.index_image_id = {};
  }
  next.table_rows = TableRows();
  has_image = next.index_image != 0;
  HOTROW_RETURN_IF_ERROR(WriteManifest(next));
  for (const std::string& path : surplus_files) {
    const absl::Status removed = env->Remove(path);
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;  // an image may be missing
  }
  surplus_files.clear();
  // A full disk is no reason not to read.
  const absl::Status has_reserve = log->EnsureFree(SsdLog::kReservedSegments);
  if (!has_reserve.ok() && !absl::IsResourceExhausted(has_reserve)) return has_reserve;
  HOTROW_RETURN_IF_ERROR(log->Sync());  // the names of new files
  if (options.background) {
    HOTROW_ASSIGN_OR_RETURN(cleaner,
                            StartThread("the cleaner of an ssd store", [this] { CleanerLoop(); }));
  }
  return absl::OkStatus();
}

// What a manifest and the one that takes its place need on disk.
static int64_t ManifestPairBytes(int64_t tables, int64_t snapshots, int64_t segment_refs) {
  return 2 * RoundUp(internal::SsdManifestBytes(tables, snapshots, segment_refs), kBlockBytesMax);
}

// The same when the present state and so many snapshots have all segments. More snapshots fit where
// the budget is no multiple of a segment, or states are smaller.
int64_t SsdStore::Impl::ManifestReserve(int64_t segments) const {
  const auto tables = static_cast<int64_t>(manifest.tables.size());
  int64_t refs = segments;
  for (const SsdSnapshot& s : manifest.snapshots) refs += static_cast<int64_t>(s.segments.size());
  return std::max(ManifestPairBytes(tables, kSnapshotsPlanned, (kSnapshotsPlanned + 1) * segments),
                  ManifestPairBytes(tables, static_cast<int64_t>(manifest.snapshots.size()), refs));
}

int64_t SsdStore::Impl::SegmentsMax() const {
  int64_t segments = options.disk_budget_bytes / segment_bytes;
  while (segments > 0 &&
         segments * segment_bytes + ManifestReserve(segments) > options.disk_budget_bytes) {
    --segments;
  }
  return segments;
}

// Whether all manifests to come fit into what the segments leave of the disk budget: the present
// state may come to name all of them.
absl::Status SsdStore::Impl::CheckManifestRoom(const SsdManifest& next) const {
  const int64_t segments_max = log->options().segments_max;
  int64_t refs = segments_max;
  for (const SsdSnapshot& s : next.snapshots) refs += static_cast<int64_t>(s.segments.size());
  const int64_t need = ManifestPairBytes(static_cast<int64_t>(next.tables.size()),
                                         static_cast<int64_t>(next.snapshots.size()), refs);
  const int64_t room = options.disk_budget_bytes - segments_max * segment_bytes;
  if (need <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "SSD store ", options.path, ": the manifest with ", next.snapshots.size(),
      " snapshots may take ", need, " bytes, the disk budget of ", options.disk_budget_bytes,
      " leaves ", room, " for it; drop snapshots or raise the budget"));
}

absl::Status SsdStore::Impl::ReadManifest(bool* exists) {
  HOTROW_ASSIGN_OR_RETURN(*exists, env->Exists(manifest_path));
  if (!*exists) {
    // A new store has a manifest before it has anything else, so one was there. Beginning anew
    // would give out numbers that are in these files already.
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env->ListDir(options.path));
    for (const std::string& name : names) {
      if (!internal::ParseSsdSegmentName(name).has_value()) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(options.path, ": has segments (", name, ") but no ",
                       std::string(internal::kSsdManifestName),
                       ": put that back, or remove the segments to begin an empty store"));
    }
    return absl::OkStatus();
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadWholeFile(*env, manifest_path, internal::kSsdManifestBytesMax));
  absl::StatusOr<internal::DecodedSsdManifest> decoded = internal::DecodeSsdManifest(bytes);
  if (!decoded.ok()) return Named(decoded.status(), manifest_path);
  manifest = std::move(decoded->manifest);
  return absl::OkStatus();
}

absl::Status SsdStore::Impl::ChooseGeometry() {
  int64_t longest = 0;
  for (const StoreTable& t : options.tables) longest = std::max(longest, t.row_bytes);
  int64_t chunk = options.chunk_bytes;
  if (chunk == 0) {
    const auto wanted = static_cast<int64_t>(std::bit_floor(
        static_cast<uint64_t>(std::max<int64_t>(options.memory_budget_bytes / 64, 1))));
    const auto needed =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(8 * LogBytes(longest))));
    chunk = std::max(std::clamp(wanted, internal::kSsdChunkBytesMin, kChunkBytesDefault), needed);
  }
  int64_t segment = options.segment_bytes;
  if (segment == 0) {
    segment = std::min(options.disk_budget_bytes / kSegmentsTarget, kSegmentBytesDefaultMax);
    segment = std::max(segment, options.disk_budget_bytes / kSegmentsMax);
    segment = std::max(segment / chunk, int64_t{1}) * chunk;
  }
  if (segment % chunk != 0 || segment < 2 * internal::kSsdSegmentHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("SsdStoreOptions.segment_bytes: must be a multiple "
                     "of chunk_bytes (",
                     chunk, "), is ", segment));
  }
  manifest.chunk_bytes = chunk;
  manifest.segment_bytes = segment;
  return absl::OkStatus();
}

absl::Status SsdStore::Impl::CheckTables() const {
  const auto find = [](std::span<const StoreTable> list, uint32_t table) -> const StoreTable* {
    const auto at = std::find_if(list.begin(), list.end(),
                                 [&](const StoreTable& t) { return t.table == table; });
    return at == list.end() ? nullptr : &*at;
  };
  for (const StoreTable& t : manifest.tables) {
    const StoreTable* const mine = find(options.tables, t.table);
    if (mine == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(options.path, ": the store has table ",
                                                     t.table, ", which the options leave out"));
    }
    if (mine->row_bytes != t.row_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(options.path, ": table ", t.table,
                                                     " has rows of ", t.row_bytes,
                                                     " bytes, the options say ", mine->row_bytes));
    }
  }
  for (const StoreTable& t : options.tables) {
    if (find(manifest.tables, t.table) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.path, ": the store has no table ", t.table));
    }
  }
  return absl::OkStatus();
}

// In the order of the options, which need not be that of the store.
SnapshotInfo SsdStore::Impl::Describe(const SsdSnapshot& snapshot) const {
  SnapshotInfo info = {.id = snapshot.id,
                       .committed = snapshot.committed,
                       .identity = snapshot.identity,
                       .table_rows = {}};
  if (snapshot.table_rows.empty()) return info;
  for (const StoreTable& t : options.tables) {
    for (size_t i = 0; i < manifest.tables.size(); ++i) {
      if (manifest.tables[i].table == t.table) info.table_rows.push_back(snapshot.table_rows[i]);
    }
  }
  return info;
}

// Makes the snapshot that was asked for the present state.
absl::Status SsdStore::Impl::ChooseState() {
  if (options.open_at == 0) return absl::OkStatus();
  for (SsdSnapshot& snapshot : manifest.snapshots) {
    if (snapshot.id != options.open_at) continue;
    HOTROW_RETURN_IF_ERROR(CheckSnapshotIdentity(absl::StrCat("SSD store ", options.path),
                                                 Describe(snapshot), options.open_at_identity));
    snapshot.committed = true;
    // The image fits when nothing was written after the snapshot.
    const bool same =
        std::equal(manifest.segments.begin(), manifest.segments.end(), snapshot.segments.begin(),
                   snapshot.segments.end(), [](const SsdSegmentRef& a, const SsdSegmentRef& b) {
                     return a.slot == b.slot && a.epoch == b.epoch && a.end_offset == b.end_offset;
                   });
    if (!same) {
      manifest.segments = snapshot.segments;
      manifest.table_rows = snapshot.table_rows;
      manifest.index_image = 0;
      manifest.index_image_id = {};
    }
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(options.path, ": there is no snapshot ", options.open_at));
}

absl::Status SsdStore::Impl::AdoptSegments() {
  std::set<uint32_t> named;
  // Live ones last, so that their state stands.
  for (const SsdSnapshot& snapshot : manifest.snapshots) {
    for (const SsdSegmentRef& ref : snapshot.segments) {
      HOTROW_RETURN_IF_ERROR(log->Adopt(ref.slot, &ref));
      named.insert(ref.slot);
    }
  }
  std::vector<uint32_t> retained(named.begin(), named.end());
  for (const SsdSegmentRef& ref : manifest.segments) {
    HOTROW_RETURN_IF_ERROR(log->Adopt(ref.slot, &ref));
    named.insert(ref.slot);
    std::erase(retained, ref.slot);
  }
  for (const SsdSnapshot& snapshot : manifest.snapshots) {
    log->AddSnapshotRefs(snapshot.segments, 1);
  }
  log->MarkCleaned(retained);
  log->Release(retained);

  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env->ListDir(options.path));
  const int64_t segments_max = log->options().segments_max;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(options.path, "/", name);
    if (const auto slot = internal::ParseSsdSegmentName(name); slot.has_value()) {
      if (named.contains(*slot)) continue;
      if (static_cast<int64_t>(*slot) < segments_max) {
        HOTROW_RETURN_IF_ERROR(log->Adopt(*slot, nullptr));
      } else {
        surplus_files.push_back(path);
      }
    } else if (const auto number = internal::ParseSsdIndexName(name); number.has_value()) {
      if (*number != manifest.index_image) surplus_files.push_back(path);
    }
  }
  return absl::OkStatus();
}

absl::Status SsdStore::Impl::CreateFindContexts() {
  // The longest read, and room for a good number of short ones.
  const int64_t longest =
      RoundUp(kMergedReadBytes + LogBytes(row_bytes_longest) + 2 * kBlockBytesMax, kBlockBytesMax);
  const int64_t arena =
      RoundUp(std::max(std::min(kFindArenaBytes, options.memory_budget_bytes / 16), longest),
              kBlockBytesMax);
  for (int i = 0; i < kFindContexts; ++i) {
    auto context = std::make_unique<FindContext>();
    HOTROW_ASSIGN_OR_RETURN(context->queue, env->NewIoQueue(options.io));
    HOTROW_ASSIGN_OR_RETURN(context->memory,
                            BudgetedBuffer<std::byte>::Create(budget, arena + kBlockBytesMax));
    context->arena = Aligned(context->memory.data());
    context->arena_bytes = arena;
    find_contexts.push_back(std::move(context));
  }
  return absl::OkStatus();
}

absl::Status SsdStore::Impl::CreateIndex(int64_t rows_hint) {
  const int64_t units = log->options().segments_max * (segment_bytes / internal::kSsdUnitBytes);
  HOTROW_ASSIGN_OR_RETURN(
      index,
      SsdIndex::Create(
          {.num_tables = static_cast<int64_t>(row_bytes.size()),
           .location_bits = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(units))),
           .max_rows_hint = rows_hint,
           .seed = EntropyBits()},
          budget));
  return absl::OkStatus();
}

// The most rows that the disk budget has room for.
static int64_t RowsMax(const SsdLog& log, std::span<const int64_t> row_bytes) {
  const int64_t shortest = *std::min_element(row_bytes.begin(), row_bytes.end());
  return log.options().segments_max * log.SegmentCapacity() / LogBytes(shortest) + 1;
}

std::string SsdStore::Impl::ImagePath(uint64_t number) const {
  return absl::StrCat(options.path, "/", internal::SsdIndexName(number));
}

// Beside the segments there are and those that opening may make.
bool SsdStore::Impl::HasRoomForImage() const {
  return (log->files() + SsdLog::kReservedSegments) * segment_bytes +
             internal::SsdIndexImageBytes(*index) + ManifestReserve(log->options().segments_max) <=
         options.disk_budget_bytes;
}

// Before anything is written: the image will not fit what comes, and segments may need its room.
absl::Status SsdStore::Impl::DropImage() {
  if (!has_image.load(std::memory_order_acquire)) return absl::OkStatus();
  std::lock_guard lock(commit_mutex);
  if (manifest.index_image == 0) return absl::OkStatus();
  SsdManifest next = manifest;
  next.index_image = 0;
  next.index_image_id = {};
  const std::string path = ImagePath(manifest.index_image);
  HOTROW_RETURN_IF_ERROR(WriteManifest(next));
  env->Remove(path).IgnoreError();
  has_image = false;
  return absl::OkStatus();
}

absl::StatusOr<bool> SsdStore::Impl::LoadImage() {
  // A manifest of version 2 knows neither whose image it names nor how many rows each table has.
  if (manifest.index_image == 0 || manifest.table_rows.empty()) return false;
  HOTROW_RETURN_IF_ERROR(CreateIndex(RowsMax(*log, row_bytes)));
  const std::string path = ImagePath(manifest.index_image);
  const absl::Status status =
      internal::ReadSsdIndexImage(*env, path, manifest.index_image_id, *index);
  if (!status.ok()) {
    // Without it opening takes longer, that is all. Also when there is too little memory: a damaged
    // image may ask for any amount.
    index.reset();
    return false;
  }
  int64_t live = 0;
  for (const SsdSegmentRef& ref : manifest.segments) live += ref.live_bytes;
  live_log_bytes = live;
  std::copy(manifest.table_rows.begin(), manifest.table_rows.end(), table_rows.begin());
  return true;
}

// Segments that hold other rows than the manifest counted are not those that it was written with.
absl::Status SsdStore::Impl::CheckCounts() const {
  for (size_t t = 0; t < manifest.table_rows.size(); ++t) {
    if (table_rows[t] == manifest.table_rows[t]) continue;
    return absl::DataLossError(
        absl::StrCat(manifest_path, ": table ", table_numbers[t], " has ", manifest.table_rows[t],
                     " rows, its segments hold ", table_rows[t].load(),
                     "; `hotrow verify` lists all damage, an older checkpoint may be whole"));
  }
  return absl::OkStatus();
}

absl::Status SsdStore::Impl::RebuildIndex() {
  HOTROW_RETURN_IF_ERROR(CreateIndex(RowsMax(*log, row_bytes)));
  // What the manifest says is exact beside an image alone.
  for (const SsdSegmentRef& ref : manifest.segments) log->segment(ref.slot).live_bytes = 0;
  const int64_t memory = std::max<int64_t>((budget.budget() - budget.used()) / 2, kMiB / 4);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, env->NewIoQueue(options.io));
  const auto location_of = [&](const internal::SsdNewest& row) {
    const SsdLocation location = log->Location(row.slot, row.offset);
    AddLive(location, row.table_index(), 1);
    return location;
  };
  const absl::StatusOr<int64_t> records = internal::ScanNewestSsdRows(
      geometry(), manifest.segments, [&](uint32_t slot) { return log->segment(slot).file.get(); },
      *queue, budget, memory, index->seed(),
      [&](std::span<const internal::SsdNewest> rows) {
        return internal::AddToSsdIndex(rows, location_of, index.get());
      });
  return records.status();
}

// --- Batches -------------------------------------------------------------------------------------

absl::Status SsdStore::Impl::ToIndexKeys(std::span<const RowKey> keys,
                                         std::vector<RowKey>* out) const {
  out->resize(keys.size());
  uint32_t table = 0;
  uint32_t known = std::numeric_limits<uint32_t>::max();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].table != table || known == std::numeric_limits<uint32_t>::max()) {
      table = keys[i].table;
      known = TableIndex(table);
      if (known == std::numeric_limits<uint32_t>::max()) {
        return absl::InvalidArgumentError(absl::StrCat("SSD store: key ", keys[i].key,
                                                       " is of table ", table,
                                                       ", which the store does not have"));
      }
    }
    (*out)[i] = {keys[i].key, known};
  }
  return absl::OkStatus();
}

void SsdStore::Impl::AddLive(SsdLocation location, uint32_t table, int sign) {
  const int64_t bytes = sign * LogBytes(row_bytes[table]);
  log->segment(log->SlotOf(location)).live_bytes.fetch_add(bytes, std::memory_order_relaxed);
  live_log_bytes.fetch_add(bytes, std::memory_order_relaxed);
  table_rows[table].fetch_add(sign, std::memory_order_relaxed);
}

absl::Status SsdStore::Impl::Unreadable(uint32_t slot, int64_t offset,
                                        const RowKey& index_key) const {
  return absl::DataLossError(
      absl::StrCat(log->SegmentPath(slot), ": offset ", offset, ": the row of key ", index_key.key,
                   " of table ", table_numbers[index_key.table],
                   " is damaged, its checksum does not match; `hotrow verify` lists all damage"));
}

absl::Status SsdStore::Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                            std::span<uint8_t> found) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), found.size()));
  std::unique_ptr<FindContext> context;
  {
    std::unique_lock lock(impl_->find_mutex);
    impl_->find_changed.wait(lock, [&] { return !impl_->find_contexts.empty(); });
    context = std::move(impl_->find_contexts.back());
    impl_->find_contexts.pop_back();
  }
  absl::Status status;
  for (size_t at = 0; at < keys.size() && status.ok(); at += kFindKeys) {
    const size_t n = std::min(kFindKeys, keys.size() - at);
    status =
        impl_->FindSome(*context, keys.subspan(at, n), rows.subspan(at, n), found.subspan(at, n));
  }
  {
    std::lock_guard lock(impl_->find_mutex);
    impl_->find_contexts.push_back(std::move(context));
  }
  impl_->find_changed.notify_one();
  return status;
}

absl::Status SsdStore::Impl::FindSome(FindContext& context, std::span<const RowKey> keys,
                                      std::span<std::byte* const> rows, std::span<uint8_t> found) {
  HOTROW_RETURN_IF_ERROR(ToIndexKeys(keys, &context.keys));
  context.locations.resize(keys.size());
  // What the index names stays readable until the ticket is given back.
  const ReaderTicket ticket(log->gate());
  index->Find(context.keys, context.locations);
  const std::vector<std::shared_ptr<SsdChunk>> pending = log->PendingChunks();

  context.wanted.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    found[i] = context.locations[i] != kNoLocation ? 1 : 0;
    if (found[i] != 0) context.wanted.push_back({context.locations[i], static_cast<uint32_t>(i)});
  }
  finds.Add(static_cast<int64_t>(keys.size()));
  hits.Add(static_cast<int64_t>(context.wanted.size()));
  std::sort(context.wanted.begin(), context.wanted.end());
  absl::Status status;
  TakePending(context, pending, rows, &status);
  HOTROW_RETURN_IF_ERROR(status);
  return ReadWanted(context, rows);
}

// Copies the rows that are in chunks not yet written, and leaves the others in `wanted`.
void SsdStore::Impl::TakePending(FindContext& context,
                                 std::span<const std::shared_ptr<SsdChunk>> pending,
                                 std::span<std::byte* const> rows, absl::Status* status) {
  using Wanted = FindContext::Wanted;
  auto& wanted = context.wanted;
  for (const std::shared_ptr<SsdChunk>& chunk : pending) {
    const SsdLocation begin = log->Location(chunk->slot, chunk->offset);
    const SsdLocation end = begin + static_cast<uint64_t>(chunk_bytes / internal::kSsdUnitBytes);
    const auto first = std::lower_bound(wanted.begin(), wanted.end(), Wanted{begin, 0});
    auto last = first;
    if (first == wanted.end() || first->location >= end) continue;
    {
      std::lock_guard lock(chunk->mutex);
      for (; last != wanted.end() && last->location < end; ++last) {
        const RowKey& key = context.keys[last->i];
        const int64_t offset = log->OffsetOf(last->location);
        const std::span<const std::byte> bytes(chunk->data + (offset - chunk->offset),
                                               chunk->data + chunk_bytes);
        const std::optional<SsdRecord> record = internal::FindSsdRowInUnit(
            bytes, {chunk->epoch, offset}, key.table, key.key, row_bytes[key.table]);
        if (!record.has_value()) {
          *status = Unreadable(chunk->slot, offset, key);
          return;
        }
        std::memcpy(rows[last->i], record->row.data(), record->row.size());
      }
    }
    wanted.erase(first, last);
  }
}

absl::Status SsdStore::Impl::ReadWanted(FindContext& context, std::span<std::byte* const> rows) {
  const auto& wanted = context.wanted;
  const int64_t block = log->block_bytes();
  absl::Status status;
  size_t next = 0;
  while (next < wanted.size() && status.ok()) {
    // As many reads as the arena has room for.
    context.requests.clear();
    context.ranges.clear();
    int64_t used = 0;
    while (next < wanted.size()) {
      const uint32_t slot = log->SlotOf(wanted[next].location);
      const int64_t first_offset = log->OffsetOf(wanted[next].location);
      const int64_t begin = first_offset / block * block;
      // Records do not cross chunks.
      const int64_t chunk_end = (first_offset / chunk_bytes + 1) * chunk_bytes;
      int64_t end = begin;
      size_t last = next;
      for (; last < wanted.size() && log->SlotOf(wanted[last].location) == slot; ++last) {
        const int64_t offset = log->OffsetOf(wanted[last].location);
        if (offset >= chunk_end) break;
        const int64_t record =
            internal::SsdRowRecordBytes(row_bytes[context.keys[wanted[last].i].table]);
        const int64_t record_end = std::min(
            RoundUp(offset + internal::kSsdUnitBytes - internal::kSsdRecordAlignment + record,
                    block),
            chunk_end);
        if (last > next && std::max(end, record_end) - begin > kMergedReadBytes) break;
        end = std::max(end, record_end);
      }
      if (used + (end - begin) > context.arena_bytes) break;
      context.requests.push_back({.file = log->segment(slot).file.get(),
                                  .write = false,
                                  .offset = begin,
                                  .data = context.arena + used,
                                  .bytes = end - begin,
                                  .user_data = context.ranges.size(),
                                  .done = 0,
                                  .status = absl::OkStatus()});
      context.ranges.emplace_back(static_cast<uint32_t>(next), static_cast<uint32_t>(last));
      used += end - begin;
      next = last;
    }
    HOTROW_CHECK(!context.requests.empty());
    reads.Add(static_cast<int64_t>(context.requests.size()));
    bytes_read.Add(used);
    context.queue->Run(context.requests, [&](IoRequest& request) {
      if (!request.status.ok()) {
        const RowKey& key = context.keys[wanted[context.ranges[request.user_data].first].i];
        if (status.ok()) {
          status = Named(request.status, absl::StrCat("the row of key ", key.key, " of table ",
                                                      table_numbers[key.table]));
        }
        return;
      }
      const auto [first, last] = context.ranges[request.user_data];
      merged_reads.Add(last - first - 1);
      for (uint32_t w = first; w < last; ++w) {
        const RowKey& key = context.keys[wanted[w].i];
        const uint32_t slot = log->SlotOf(wanted[w].location);
        const int64_t offset = log->OffsetOf(wanted[w].location);
        const std::span<const std::byte> bytes(request.data + (offset - request.offset),
                                               request.data + request.bytes);
        const std::optional<SsdRecord> record = internal::FindSsdRowInUnit(
            bytes, {log->segment(slot).epoch, offset}, key.table, key.key, row_bytes[key.table]);
        if (!record.has_value()) {
          if (status.ok()) status = Unreadable(slot, offset, key);
          continue;
        }
        std::memcpy(rows[wanted[w].i], record->row.data(), record->row.size());
      }
    });
  }
  return status;
}

// --- Writing -------------------------------------------------------------------------------------

absl::Status SsdStore::Impl::Full(int64_t need) const {
  // Also garbage beside rows that are in use.
  int64_t held = 0;
  for (const SsdLog::SegmentView& s : log->Segments()) {
    if (s.state == SsdSegment::State::kRetained) held += segment_bytes;
    if (s.state == SsdSegment::State::kSealed && s.snapshots > 0) {
      held += std::max<int64_t>(log->SegmentCapacity() - s.live_bytes, 0);
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("SSD store ", options.path, ": the disk budget of ", options.disk_budget_bytes,
                   " bytes is full: rows take ", live_log_bytes.load(), " bytes in the log, ", held,
                   " more are held by snapshots, and ", need,
                   " are needed; raise the budget, drop snapshots or erase rows"));
}

int64_t SsdStore::Impl::SnapshotOnlyBytes() const {
  int64_t bytes = 0;
  for (const SsdLog::SegmentView& segment : log->Segments()) {
    if (segment.state == SsdSegment::State::kRetained) bytes += segment_bytes;
  }
  return bytes;
}

// How many segments a snapshot of the present state should name, and how many it may. With all
// older snapshots gone, its segments beside the rows written all anew must leave what cleaning
// needs: else a caller that drops the older ones to go on, as one with checkpoints does, would find
// the store full for good. Where rows fill so much of the disk that this cannot be, a snapshot
// holds at most twice what it needs.
SsdStore::Impl::SnapshotBounds SsdStore::Impl::BoundSnapshot() const {
  int64_t damaged = 0;
  for (const SsdLog::SegmentView& s : log->Segments()) damaged += s.damaged;
  const int64_t needed =
      CeilDiv(live_log_bytes.load() + TombstoneBytes(), log->SegmentCapacity()) + damaged;
  const int64_t most = log->options().segments_max - needed - kHighWater - 2;
  const auto filled = [&](double utilisation) {
    const double segments = std::ceil(static_cast<double>(needed) / utilisation);
    return static_cast<int64_t>(segments) + kSnapshotSlack;
  };
  return {.wanted = std::max(filled(kSnapshotUtilisationWanted), most - kSnapshotMargin),
          .most = std::max(filled(kSnapshotUtilisationMin), most)};
}

absl::Status SsdStore::Impl::CheckSnapshotSize(int64_t segments) const {
  const int64_t most = BoundSnapshot().most;
  if (segments <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "SSD store ", options.path, ": a snapshot would hold ", segments * segment_bytes,
      " bytes for ", live_log_bytes.load(), " bytes of rows, may hold ", most * segment_bytes,
      ", and there is no room to move them together; drop older snapshots or raise the disk "
      "budget of ",
      options.disk_budget_bytes));
}

// Refuses rows that are new when the log is as full as cleaning can live with.
absl::Status SsdStore::Impl::CheckRoom(std::span<const RowKey> index_keys) {
  int64_t need = 0;
  for (const RowKey& key : index_keys) need += LogBytes(row_bytes[key.table]);
  int64_t retained = 0;
  for (const SsdLog::SegmentView& segment : log->Segments()) {
    if (segment.state == SsdSegment::State::kRetained || segment.damaged) ++retained;
  }
  // Two are open, two reserved, and one is worth of rows that are being moved.
  const int64_t usable = log->options().segments_max - retained - SsdLog::kReservedSegments - 3;
  const auto limit = static_cast<int64_t>(
      kFillMax * static_cast<double>(std::max<int64_t>(usable, 0) * log->SegmentCapacity()));
  if (live_log_bytes + need <= limit) return absl::OkStatus();
  std::vector<SsdLocation> locations(index_keys.size());
  index->Find(index_keys, locations);
  need = 0;
  for (size_t i = 0; i < index_keys.size(); ++i) {
    if (locations[i] == kNoLocation) need += LogBytes(row_bytes[index_keys[i].table]);
  }
  if (need == 0 || live_log_bytes + need <= limit) return absl::OkStatus();
  return Full(need);
}

// Called without locks when no segment is free. Returns OK when it is worth trying again.
absl::Status SsdStore::Impl::WaitForRoom(const absl::Status& why) {
  stalls.Add(1);
  const int64_t begin = NowNanos();
  absl::Status status;
  bool gained = false;
  bool full = false;
  if (!options.background) {
    std::lock_guard lock(clean_mutex);
    full = LacksFreshSegments();
    absl::StatusOr<bool> round = CleanRound();
    status = round.status();
    gained = round.ok() && *round;
  } else {
    std::unique_lock lock(cleaner_mutex);
    // The round that runs may have begun before there was anything to gain.
    const int64_t until = rounds + 2;
    do {
      const int64_t seen = rounds;
      cleaner_wanted = true;
      cleaner_changed.notify_all();
      cleaner_changed.wait(lock, [&] { return rounds != seen || stop; });
    } while (rounds < until && !last_round_gained && !stop);
    status = cleaner_status;
    gained = last_round_gained;
    full = last_round_full;
  }
  stall_nanos.Add(NowNanos() - begin);
  HOTROW_RETURN_IF_ERROR(status);
  if (gained) return absl::OkStatus();
  if (!why.ok()) return why;
  // A round that gains nothing says that the store is full only if there was no room when it began,
  // nor any that finds still held: others may use that up, and leave garbage, before this line.
  if (!full) return absl::OkStatus();
  return Full(segment_bytes);
}

// While the last free segments are in use, writers go at the pace of the cleaner: what a round of
// cleaning gains is granted chunk by chunk, as its rows are moved, and a piece of a batch waits
// until the writers before it are paid for. So many short waits take the place of a long one, at
// the end of which a round gives back whole segments. It is about time alone: whether there is room
// is found out by MakeFreshRoom, after this.
//
// Here writers also wait for a snapshot that finds them too fast.
void SsdStore::Impl::Pace() {
  std::unique_lock lock(pace_mutex);
  const auto must_wait = [&] { return writers_held > 0 || (pacing && pace_credit <= 0); };
  if (!must_wait()) return;
  stalls.Add(1);
  const int64_t begin = NowNanos();
  // Looks again after a while: between two rounds nobody tells.
  while (must_wait()) pace_changed.wait_for(lock, kPacePoll);
  stall_nanos.Add(NowNanos() - begin);
}

void SsdStore::Impl::HoldWriters(int change) {
  {
    std::lock_guard lock(pace_mutex);
    writers_held += change;
  }
  pace_changed.notify_all();
}

void SsdStore::Impl::Charge(int64_t bytes) {
  std::lock_guard lock(pace_mutex);
  if (pacing) pace_credit -= bytes;
}

// What the cleaner has gained. Less of it is granted the fewer segments are left, since only a
// manifest makes gains usable, and what pads and footers take is not counted.
void SsdStore::Impl::Grant(int64_t bytes) {
  const int64_t quarters = std::clamp<int64_t>(log->Available(), 1, kLowWater);
  {
    std::lock_guard lock(pace_mutex);
    if (!pacing) return;
    pace_credit = std::min(pace_credit + bytes * quarters / 4, segment_bytes);
  }
  pace_changed.notify_all();
}

absl::Status SsdStore::Impl::InsertOrAssign(std::span<const RowKey> keys,
                                            std::span<const std::byte* const> rows) {
  std::vector<RowKey> index_keys;
  HOTROW_RETURN_IF_ERROR(ToIndexKeys(keys, &index_keys));
  if (keys.empty()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(DropImage());
  HOTROW_RETURN_IF_ERROR(CheckRoom(index_keys));
  size_t done = 0;
  while (done < keys.size()) {
    Pace();
    absl::Status no_room;
    HOTROW_ASSIGN_OR_RETURN(const size_t appended, AppendRows(std::span(index_keys).subspan(done),
                                                              rows.subspan(done), &no_room));
    int64_t bytes = 0;
    for (size_t i = done; i < done + appended; ++i)
      bytes += LogBytes(row_bytes[index_keys[i].table]);
    Charge(bytes);
    done += appended;
    if (appended == 0) HOTROW_RETURN_IF_ERROR(WaitForRoom(no_room));
  }
  return absl::OkStatus();
}

// Like MakeRoom of the log. False when cleaning may help: no segment is free, or the file system
// has no room for another file, which *no_room then says.
absl::StatusOr<bool> SsdStore::Impl::MakeFreshRoom(int64_t log_bytes, absl::Status* no_room) {
  const absl::StatusOr<bool> has_room = log->MakeRoom(SsdStream::kFresh, log_bytes, next_sequence);
  if (has_room.ok()) return *has_room;
  if (!absl::IsResourceExhausted(has_room.status()) || !log->broken().ok()) {
    return has_room.status();
  }
  *no_room = has_room.status();
  return false;
}

// Appends from the front of the batch what fits into the present chunk, and returns how much that
// was; 0 when no segment is free.
absl::StatusOr<size_t> SsdStore::Impl::AppendRows(std::span<const RowKey> index_keys,
                                                  std::span<const std::byte* const> rows,
                                                  absl::Status* no_room) {
  bool low = false;
  size_t placed = 0;
  absl::Status status;
  {
    std::lock_guard stream_lock(log->stream_mutex(SsdStream::kFresh));
    const int64_t pad_bytes = internal::kSsdUnitBytes + kEntryBytes;
    const int64_t first_bytes = LogBytes(row_bytes[index_keys[0].table]) + pad_bytes;
    HOTROW_ASSIGN_OR_RETURN(const bool has_room, MakeFreshRoom(first_bytes, no_room));
    if (!has_room) return 0;
    SsdChunk& chunk = *log->chunk(SsdStream::kFresh);
    // Without pads, which are rare; a row that finds no room because of one is left to the next
    // call.
    int64_t bytes = pad_bytes;
    size_t count = 0;
    while (count < index_keys.size()) {
      bytes += LogBytes(row_bytes[index_keys[count].table]);
      if (bytes > log->Room(SsdStream::kFresh)) break;
      ++count;
    }
    bool full = false;
    std::lock_guard chunk_lock(chunk.mutex);
    SsdSegment& segment = log->segment(chunk.slot);
    const SsdIndex::UpsertResult result =
        index->Upsert(index_keys.first(count), [&](size_t i, SsdLocation old) -> SsdLocation {
          const uint32_t table = index_keys[i].table;
          const int64_t log_bytes = LogBytes(row_bytes[table]);
          // A unit names a key's row, so it must hold only one.
          const bool pad = old == log->NextLocation(chunk);
          if (full || log->Room(SsdStream::kFresh) < log_bytes + (pad ? pad_bytes : 0)) {
            full = true;
            return kNoLocation;
          }
          if (pad) log->PadToNextUnit(chunk);
          const SsdLocation location = log->NextLocation(chunk);
          const uint64_t sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
          const int64_t record_bytes = internal::EncodeSsdRow(
              log->NextPlace(chunk), table, index_keys[i].key, sequence,
              {rows[i], static_cast<size_t>(row_bytes[table])}, chunk.data + chunk.fill);
          log->Appended(chunk, record_bytes, index_keys[i].key, sequence,
                        internal::SsdKindTable(SsdRecordKind::kRow, table));
          if (old != kNoLocation) AddLive(old, table, -1);
          AddLive(location, table, 1);
          segment.newest_sequence.store(sequence, std::memory_order_relaxed);
          payload_written.Add(row_bytes[table]);
          ++placed;
          return location;
        });
    status = result.status;
    rows_written.Add(static_cast<int64_t>(placed));
    low = chunk.offset == 0;  // a segment was opened not long ago
  }
  if (low && options.background && log->Available() <= kLowWater) {
    std::lock_guard lock(cleaner_mutex);
    cleaner_wanted = true;
    cleaner_changed.notify_all();
  }
  HOTROW_RETURN_IF_ERROR(status);
  return placed;
}

absl::Status SsdStore::InsertOrAssign(std::span<const RowKey> keys,
                                      std::span<const std::byte* const> rows) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), keys.size()));
  return impl_->InsertOrAssign(keys, rows);
}

// Like AppendRows, for tombstones.
absl::StatusOr<size_t> SsdStore::Impl::AppendErasures(std::span<const RowKey> index_keys,
                                                      absl::Status* no_room) {
  std::lock_guard stream_lock(log->stream_mutex(SsdStream::kFresh));
  constexpr int64_t kBytes = internal::kSsdTombstoneBytes + kEntryBytes;
  constexpr int64_t kPadBytes = internal::kSsdUnitBytes + kEntryBytes;
  HOTROW_ASSIGN_OR_RETURN(const bool has_room, MakeFreshRoom(kBytes + kPadBytes, no_room));
  if (!has_room) return 0;
  SsdChunk& chunk = *log->chunk(SsdStream::kFresh);
  const size_t count = std::min(
      index_keys.size(), static_cast<size_t>((log->Room(SsdStream::kFresh) - kPadBytes) / kBytes));
  std::lock_guard chunk_lock(chunk.mutex);
  SsdSegment& segment = log->segment(chunk.slot);
  const SsdLocation begin = log->Location(chunk.slot, chunk.offset);
  const SsdLocation end = begin + static_cast<uint64_t>(chunk_bytes / internal::kSsdUnitBytes);
  SsdLocation last_erased = begin;  // the row in this chunk that was last written
  const int64_t erased = index->Erase(index_keys.first(count), [&](size_t i, SsdLocation old) {
    const uint64_t sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
    const uint32_t table = index_keys[i].table;
    const int64_t bytes = internal::EncodeSsdTombstone(
        log->NextPlace(chunk), table, index_keys[i].key, sequence, chunk.data + chunk.fill);
    log->Appended(chunk, bytes, index_keys[i].key, sequence,
                  internal::SsdKindTable(SsdRecordKind::kTombstone, table));
    AddLive(old, table, -1);
    if (old > last_erased && old < end) last_erased = old;
    segment.newest_sequence.store(sequence, std::memory_order_relaxed);
    segment.tombstone_bytes.fetch_add(kBytes, std::memory_order_relaxed);
    rows_erased.Add(1);
    tombstones.Add(1);
  });
  // If the key comes back now, its row must not start in the unit where the erased one does.
  if (last_erased == log->NextLocation(chunk)) log->PadToNextUnit(chunk);
  Charge(erased * kBytes);
  return count;
}

absl::Status SsdStore::Erase(std::span<const RowKey> keys) {
  std::vector<RowKey> index_keys;
  HOTROW_RETURN_IF_ERROR(impl_->ToIndexKeys(keys, &index_keys));
  if (!keys.empty()) HOTROW_RETURN_IF_ERROR(impl_->DropImage());
  size_t done = 0;
  while (done < keys.size()) {
    impl_->Pace();
    absl::Status no_room;
    HOTROW_ASSIGN_OR_RETURN(const size_t count,
                            impl_->AppendErasures(std::span(index_keys).subspan(done), &no_room));
    done += count;
    if (count == 0) HOTROW_RETURN_IF_ERROR(impl_->WaitForRoom(no_room));
  }
  return absl::OkStatus();
}

// --- Committing ----------------------------------------------------------------------------------

absl::Status SsdStore::Impl::WriteManifest(const SsdManifest& next_state) {
  SsdManifest next = next_state;
  ++next.generation;
  next.payload_bytes_written = life_payload + static_cast<uint64_t>(payload_written.value());
  next.device_bytes_written =
      life_device + static_cast<uint64_t>(log->bytes_written() + other_written.value());
  const std::string bytes = internal::EncodeSsdManifest(next);
  HOTROW_RETURN_IF_ERROR(WriteFileAtomically(*env, manifest_path, bytes));
  other_written.Add(static_cast<int64_t>(bytes.size()));
  manifest_file_bytes = static_cast<int64_t>(bytes.size());
  const std::lock_guard lock(manifest_mutex);
  manifest = std::move(next);
  return absl::OkStatus();
}

// Makes what was written so far durable, together with what `change` does to the manifest. With
// `prepare` the state becomes a snapshot, captured once. commit_mutex is not held.
template <typename Change>
absl::Status SsdStore::Impl::Commit(const Change& change, const Prepare& prepare, bool cleaning) {
  HOTROW_ASSIGN_OR_RETURN(const bool done, TryCommit(change, prepare, cleaning));
  if (done) return absl::OkStatus();
  std::lock_guard clean_lock(clean_mutex);
  return TryCommit(change, prepare, /*cleaning=*/true).status();
}

// False when a round of cleaning is under way that has opened the last free segment: a store that
// is opened in this state could neither clean nor write.
template <typename Change>
absl::StatusOr<bool> SsdStore::Impl::TryCommit(const Change& change, const Prepare& prepare,
                                               bool cleaning) {
  std::lock_guard commit_lock(commit_mutex);
  SsdManifest next = manifest;
  HOTROW_RETURN_IF_ERROR(change(&next));
  std::vector<uint32_t> cleaned;
  uint64_t sequence = 0;
  {
    std::scoped_lock streams(log->stream_mutex(SsdStream::kSurvivors),
                             log->stream_mutex(SsdStream::kFresh));
    if (!cleaning && log->Available() == 0) return false;
    log->Submit(SsdStream::kSurvivors, /*close=*/false);
    log->Submit(SsdStream::kFresh, /*close=*/false);
    cleaned = log->CleanedSegments();
    next.segments = log->LiveSegments();
    next.table_rows = TableRows();
    sequence = next_sequence;
  }
  if (prepare.id != 0) HOTROW_RETURN_IF_ERROR(CheckSnapshotSize(std::ssize(next.segments)));
  // Whatever is appended from here on lies behind the ends of this state.
  prepare.captured();
  HOTROW_RETURN_IF_ERROR(log->WaitWritten());
  HOTROW_RETURN_IF_ERROR(log->Sync());
  next.next_epoch = std::max(next.next_epoch, log->next_epoch() + kEpochsReserved);
  next.sequence_limit = std::max(next.sequence_limit, sequence + kSequencesReserved / 2);
  const uint64_t old_image = next.index_image;
  next.index_image = 0;
  next.index_image_id = {};
  if (prepare.id != 0) {
    next.snapshots.push_back({.id = prepare.id,
                              .committed = false,
                              .sequence = sequence,
                              .segments = next.segments,
                              .identity = UniqueId::Random(),
                              .table_rows = next.table_rows});
    HOTROW_RETURN_IF_ERROR(CheckManifestRoom(next));
  }
  HOTROW_RETURN_IF_ERROR(WriteManifest(next));
  if (prepare.id != 0) log->AddSnapshotRefs(manifest.snapshots.back().segments, 1);
  log->Release(cleaned);
  if (old_image != 0) {
    env->Remove(ImagePath(old_image)).IgnoreError();
    has_image = false;
  }
  return true;
}

// Replaces the durable manifest by one that differs from it in what `change` does, and writes and
// syncs nothing else: the present state stays the one that was committed last. commit_mutex is not
// held.
template <typename Change>
absl::Status SsdStore::Impl::ChangeManifest(const Change& change) {
  std::lock_guard commit_lock(commit_mutex);
  HOTROW_RETURN_IF_ERROR(log->broken());
  SsdManifest next = manifest;
  HOTROW_RETURN_IF_ERROR(change(&next));
  return WriteManifest(next);
}

absl::Status SsdStore::Flush() {
  return impl_->Commit([](SsdManifest*) { return absl::OkStatus(); });
}

void SsdStore::TidyForSnapshot() { impl_->CleanForSnapshot(); }

absl::Status SsdStore::PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) {
  if (snapshot == 0) {
    return absl::FailedPreconditionError("SSD store: a snapshot may have any number but 0");
  }
  const auto prepare = [&](SsdManifest* manifest) -> absl::Status {
    for (const SsdSnapshot& s : manifest->snapshots) {
      if (s.id == snapshot) {
        return absl::FailedPreconditionError(
            absl::StrCat(impl_->options.path, ": there is a snapshot ", snapshot, " already"));
      }
    }
    return absl::OkStatus();
  };
  bool has_captured = false;
  bool holds = false;
  const auto hold_writers = [&](bool hold) {
    if (hold != holds) impl_->HoldWriters(hold ? 1 : -1);
    holds = hold;
  };
  const auto capture = [&] {
    has_captured = true;
    hold_writers(false);
    captured();
  };
  impl_->ShrinkForSnapshot();
  absl::Status status = impl_->Commit(prepare, {.id = snapshot, .captured = capture});
  if (!has_captured && absl::IsResourceExhausted(status)) {
    // Refused for its size: others may have written faster than rows were moved together.
    hold_writers(true);
    impl_->ShrinkForSnapshot();
    status = impl_->Commit(prepare, {.id = snapshot, .captured = capture});
    hold_writers(false);
  }
  return status;
}

absl::Status SsdStore::CommitSnapshot(SnapshotId snapshot) {
  return impl_->ChangeManifest([&](SsdManifest* manifest) -> absl::Status {
    for (SsdSnapshot& s : manifest->snapshots) {
      if (s.id != snapshot) continue;
      s.committed = true;
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(impl_->options.path, ": there is no snapshot ", snapshot, " to commit"));
  });
}

absl::Status SsdStore::DropSnapshot(SnapshotId snapshot) {
  std::vector<SsdSegmentRef> refs;
  HOTROW_RETURN_IF_ERROR(impl_->ChangeManifest([&](SsdManifest* manifest) -> absl::Status {
    for (SsdSnapshot& s : manifest->snapshots) {
      if (s.id != snapshot) continue;
      refs = std::move(s.segments);
      std::erase_if(manifest->snapshots, [&](const SsdSnapshot& x) { return x.id == snapshot; });
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(impl_->options.path, ": there is no snapshot ", snapshot, " to drop"));
  }));
  impl_->log->AddSnapshotRefs(refs, -1);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SnapshotId>> SsdStore::ListSnapshots() {
  std::lock_guard lock(impl_->manifest_mutex);
  std::vector<SnapshotId> ids;
  for (const SsdSnapshot& s : impl_->manifest.snapshots) ids.push_back(s.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::StatusOr<SnapshotInfo> SsdStore::DescribeSnapshot(SnapshotId snapshot) {
  std::lock_guard lock(impl_->manifest_mutex);
  for (const SsdSnapshot& s : impl_->manifest.snapshots) {
    if (s.id == snapshot) return impl_->Describe(s);
  }
  return absl::FailedPreconditionError(
      absl::StrCat(impl_->options.path, ": there is no snapshot ", snapshot));
}

absl::Status SsdStore::Close() {
  Impl& impl = *impl_;
  std::lock_guard clean_lock(impl.clean_mutex);
  for (const SsdStream stream : {SsdStream::kSurvivors, SsdStream::kFresh}) {
    std::lock_guard lock(impl.log->stream_mutex(stream));
    impl.log->Seal(stream);
  }
  HOTROW_RETURN_IF_ERROR(
      impl.Commit([](SsdManifest*) { return absl::OkStatus(); }, {}, /*cleaning=*/true));
  impl.closed = true;
  std::lock_guard commit_lock(impl.commit_mutex);
  // Free segments make room for the image; one that there is no room for is left out.
  const int64_t image_bytes = internal::SsdIndexImageBytes(*impl.index);
  const auto excess = [&] {
    return impl.log->files() * impl.segment_bytes + image_bytes + 2 * impl.manifest_file_bytes -
           impl.options.disk_budget_bytes;
  };
  if (excess() > 0) HOTROW_RETURN_IF_ERROR(impl.log->RemoveFree(excess()));
  if (excess() > 0) return absl::OkStatus();
  const uint64_t number = impl.manifest.generation + 1;
  const std::string path = impl.ImagePath(number);
  const UniqueId id = UniqueId::Random();
  const absl::Status status = internal::WriteSsdIndexImage(*impl.env, path, id, *impl.index);
  if (absl::IsResourceExhausted(status)) {
    impl.env->Remove(path).IgnoreError();
    return absl::OkStatus();
  }
  HOTROW_RETURN_IF_ERROR(status);
  impl.other_written.Add(image_bytes);
  HOTROW_RETURN_IF_ERROR(impl.env->SyncDir(impl.options.path));
  SsdManifest next = impl.manifest;
  next.index_image = number;
  next.index_image_id = id;
  return impl.WriteManifest(next);
}

// --- Cleaning ------------------------------------------------------------------------------------

void SsdStore::Impl::CleanerLoop() {
  std::unique_lock lock(cleaner_mutex);
  for (;;) {
    cleaner_changed.wait(lock, [&] { return stop || cleaner_wanted; });
    if (stop) return;
    cleaner_wanted = false;
    bool again = true;
    while (again && !stop) {
      lock.unlock();
      absl::StatusOr<bool> gained = false;
      bool full = false;
      {
        std::lock_guard clean_lock(clean_mutex);
        full = LacksFreshSegments();
        const bool short_of_room = log->Available() <= kLowWater;
        {
          std::lock_guard pace_lock(pace_mutex);
          if (!short_of_room) pace_credit = 0;
          pacing = short_of_room && !closed;
        }
        if (!closed) gained = CleanRound();
        // Whoever else holds clean_mutex next must not hold writers up. They are not told: most
        // likely the next round is ours.
        std::lock_guard pace_lock(pace_mutex);
        pacing = false;
      }
      const int64_t available = log->Available();
      lock.lock();
      ++rounds;
      cleaner_status = gained.status();
      last_round_gained = gained.ok() && *gained;
      last_round_full = full;
      again = last_round_gained && available < kHighWater;
      if (!again) pace_changed.notify_all();
      cleaner_changed.notify_all();
    }
  }
}

// Cost-benefit (Rosenblum & Ousterhout 1992): what is gained, (1 - u) of a segment, for as long as
// it may last (the age of its youngest row), over what it costs, 1 to read and u to write.
std::vector<SsdLog::SegmentView> SsdStore::Impl::ChooseVictims(CleanOrder order,
                                                               double room) const {
  const double now = static_cast<double>(next_sequence.load());
  const auto capacity = static_cast<double>(log->SegmentCapacity());
  struct Candidate {
    const SsdLog::SegmentView* segment;
    double utilisation;
    double score;
  };
  const std::vector<SsdLog::SegmentView> segments = log->Segments();
  // The lowest number in the present state, and the lowest one in another segment than that.
  const SsdLog::SegmentView* oldest = nullptr;
  uint64_t next_oldest = std::numeric_limits<uint64_t>::max();
  for (const SsdLog::SegmentView& s : segments) {
    if (s.state != SsdSegment::State::kSealed && s.state != SsdSegment::State::kOpen) continue;
    if (oldest == nullptr || s.base_sequence < oldest->base_sequence) {
      if (oldest != nullptr) next_oldest = oldest->base_sequence;
      oldest = &s;
    } else {
      next_oldest = std::min(next_oldest, s.base_sequence);
    }
  }
  std::vector<Candidate> candidates;
  for (const SsdLog::SegmentView& s : segments) {
    if (s.state != SsdSegment::State::kSealed || !s.written || s.damaged ||
        (order != CleanOrder::kAny && (s.snapshots > 0) != (order == CleanOrder::kPinned))) {
      continue;
    }
    // Tombstones move too, unless all that stays is younger.
    const bool last = (&s == oldest ? next_oldest : oldest->base_sequence) >= s.newest_sequence;
    const double u = static_cast<double>(s.live_bytes + (last ? 0 : s.tombstone_bytes)) / capacity;
    const bool too_full = order == CleanOrder::kOldest   ? s.base_sequence >= cycle_until
                          : order == CleanOrder::kPinned ? u > kPinnedUtilisationMax
                                                         : u > kCleanUtilisationMax;
    if (too_full) continue;
    const double age = now - static_cast<double>(s.newest_sequence) + 1;
    const double score = order == CleanOrder::kCostBenefit ? (1 - u) * age / (1 + u)
                         : order == CleanOrder::kOldest    ? -static_cast<double>(s.base_sequence)
                                                           : -u;
    candidates.push_back({&s, u, score});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  // erase, not resize, which g++ 12 warns of.
  if (order == CleanOrder::kOldest && candidates.size() > 1) {
    candidates.erase(candidates.begin() + 1, candidates.end());
  }
  std::vector<SsdLog::SegmentView> victims;
  double moved = 0;
  for (const Candidate& c : candidates) {
    if (victims.size() >= kVictimsMax || (!victims.empty() && moved + c.utilisation > room)) break;
    moved += c.utilisation;
    victims.push_back(*c.segment);
  }
  // The older first, so that its rows no longer hold back the tombstones of the younger.
  std::sort(victims.begin(), victims.end(),
            [](const auto& a, const auto& b) { return a.base_sequence < b.base_sequence; });
  return victims;
}

// What a snapshot names stays as it is, garbage included, and cleaning is lazy: without this a
// store in use would have hardly a segment to write to until the snapshot is dropped.
//
// Segments that a snapshot pins already give nothing back before it is dropped. But where snapshots
// follow each other, each would hand its garbage on to the next, for ever; so rows leave those that
// are mostly garbage as long as there is room to move them to.
void SsdStore::Impl::CleanForSnapshot() {
  const int64_t segments_max = log->options().segments_max;
  for (int64_t round = 0; round < segments_max && log->Available() > kHighWater; ++round) {
    std::lock_guard lock(clean_mutex);
    const std::vector<SsdLog::SegmentView> pinned = ChooseVictims(CleanOrder::kPinned);
    if (pinned.empty() || !CleanSome(pinned).ok()) break;
  }
  const auto wanted = [&] {
    return std::min(CeilDiv(live_log_bytes.load(), log->SegmentCapacity()) + kHighWater,
                    segments_max / kFreePartForSnapshot);
  };
  for (int64_t round = 0; round < segments_max && log->Available() < wanted(); ++round) {
    std::lock_guard lock(clean_mutex);
    const absl::StatusOr<bool> gained = CleanRound();
    if (!gained.ok() || !*gained) return;  // the snapshot itself may be possible all the same
  }
}

// Moves rows together until a snapshot of the present state names no more segments than it should,
// if that can be. Costs nothing where the disk is not short.
void SsdStore::Impl::ShrinkForSnapshot() {
  const auto named = [&] {
    int64_t count = 0;
    for (const SsdLog::SegmentView& s : log->Segments()) {
      count += s.state == SsdSegment::State::kSealed || s.state == SsdSegment::State::kOpen;
    }
    return count;
  };
  const int64_t segments_max = log->options().segments_max;
  for (int64_t round = 0; round < segments_max && named() > BoundSnapshot().wanted; ++round) {
    // Segments are chosen when they are written.
    if (!log->WaitWritten().ok()) return;
    std::lock_guard lock(clean_mutex);
    // Rows that leave what snapshots name give nothing back; those that leave the rest do.
    bool gained = false;
    if (log->Available() <= kHighWater) {
      const absl::StatusOr<bool> cleaned = CleanRound();
      if (!cleaned.ok()) return;
      gained = *cleaned;
    }
    const int64_t room = log->Available() - SsdLog::kReservedSegments;
    if (room <= 0 && gained) continue;
    if (room <= 0) return;
    const std::vector<SsdLog::SegmentView> victims =
        ChooseVictims(CleanOrder::kAny, static_cast<double>(room));
    int64_t freed = std::ssize(victims) * log->SegmentCapacity();
    for (const SsdLog::SegmentView& s : victims) freed -= s.live_bytes + s.tombstone_bytes;
    if (freed < log->SegmentCapacity() || !CleanSome(victims).ok()) return;
  }
}

int64_t SsdStore::Impl::TombstoneBytes() const {
  int64_t bytes = 0;
  for (const SsdLog::SegmentView& s : log->Segments()) {
    if (s.state == SsdSegment::State::kSealed || s.state == SsdSegment::State::kOpen) {
      bytes += s.tombstone_bytes;
    }
  }
  return bytes;
}

// Frees some segments. False: nothing can be gained.
//
// When nothing but tombstones is left to gain, a cycle begins: rounds that take the oldest segment,
// however full, until all are younger than the beginning. By then every tombstone has met the
// moment when nothing older was left. It is worth it when many have come since the last cycle.
absl::StatusOr<bool> SsdStore::Impl::CleanRound() {
  HOTROW_RETURN_IF_ERROR(log->broken());
  for (;;) {
    if (cycle_until == 0 || log->Available() < SsdLog::kReservedSegments) {
      for (const CleanOrder order : {CleanOrder::kCostBenefit, CleanOrder::kEmptiest}) {
        HOTROW_ASSIGN_OR_RETURN(const bool gained, CleanSome(ChooseVictims(order)));
        if (gained) return true;
      }
      const int64_t many = std::max(segment_bytes, live_log_bytes / kTombstonesPerLive);
      tombstones_after_cycle = std::min(tombstones_after_cycle, TombstoneBytes());
      if (cycle_until != 0 || TombstoneBytes() < tombstones_after_cycle + many) break;
      cycle_until = next_sequence;
    }
    const std::vector<SsdLog::SegmentView> oldest = ChooseVictims(CleanOrder::kOldest);
    if (!oldest.empty()) {
      HOTROW_RETURN_IF_ERROR(CleanSome(oldest).status());
      return true;
    }
    cycle_until = 0;
    tombstones_after_cycle = TombstoneBytes();
  }
  // Finds hold on to what was freed before, but not for long.
  return log->WaitForReaders();
}

// Whether more room was freed than used up: full chunks may hold less than the threshold of a
// victim, and each round pads the last of what it wrote.
absl::StatusOr<bool> SsdStore::Impl::CleanSome(std::span<const SsdLog::SegmentView> victims) {
  HOTROW_RETURN_IF_ERROR(DropImage());
  // What rounds before this one freed may still be held by finds, all but what survivors need.
  while (log->Available() < SsdLog::kReservedSegments && log->WaitForReaders()) continue;
  int64_t used = 0;
  {
    std::lock_guard lock(log->stream_mutex(SsdStream::kSurvivors));
    // Keys that a round before this one moved, and failed, must not get a second record in a unit.
    log->Submit(SsdStream::kSurvivors, /*close=*/false);
    used = -log->StreamBytes(SsdStream::kSurvivors);
  }
  std::vector<uint32_t> cleaned;
  for (const SsdLog::SegmentView& victim : victims) {
    // Tombstones of an earlier run are not known before they are read.
    if (!cleaned.empty() && log->Available() == 0) break;
    absl::Status damage;
    HOTROW_RETURN_IF_ERROR(CleanSegment(victim, cleaned, &damage));
    if (damage.ok()) {
      cleaned.push_back(victim.slot);
    } else {
      log->MarkDamaged(victim.slot);  // finds and `hotrow verify` say what is wrong
    }
  }
  // Also segments of an earlier round whose manifest could not be written.
  const auto freed = static_cast<int64_t>(log->CleanedSegments().size() + cleaned.size());
  log->MarkCleaned(cleaned);
  if (freed == 0) return false;
  HOTROW_RETURN_IF_ERROR(
      Commit([](SsdManifest*) { return absl::OkStatus(); }, {}, /*cleaning=*/true));
  segments_cleaned.Add(static_cast<int64_t>(cleaned.size()));
  std::lock_guard lock(log->stream_mutex(SsdStream::kSurvivors));
  used += log->StreamBytes(SsdStream::kSurvivors);
  return freed * segment_bytes - used >= segment_bytes / kGainMin;
}

absl::Status SsdStore::Impl::ReadChunks(
    uint32_t slot, int64_t end,
    absl::FunctionRef<absl::Status(int64_t at, std::span<const std::byte> chunk,
                                   const absl::Status& read)>
        visit) {
  absl::Status status;
  std::vector<IoRequest> requests;
  for (int64_t first = 0; first < end && status.ok(); first += kCleanDepth * chunk_bytes) {
    requests.clear();
    for (int64_t i = 0; i < kCleanDepth && first + i * chunk_bytes < end; ++i) {
      IoRequest request;
      request.file = log->segment(slot).file.get();
      request.offset = first + i * chunk_bytes;
      request.data = clean_buffer + i * chunk_bytes;
      request.bytes = chunk_bytes;
      requests.push_back(std::move(request));
    }
    reads.Add(static_cast<int64_t>(requests.size()));
    bytes_read.Add(static_cast<int64_t>(requests.size()) * chunk_bytes);
    clean_queue->Run(requests, [&](IoRequest& request) {
      if (!status.ok()) return;
      // The file was cut.
      if (absl::IsOutOfRange(request.status)) {
        request.status = absl::DataLossError(std::string(request.status.message()));
      }
      status =
          visit(request.offset, {request.data, static_cast<size_t>(chunk_bytes)}, request.status);
    });
  }
  return status;
}

// Moves what is needed out of the segment. *damage says what could not be read; the segment must
// then stay, and so must tombstones that speak of its rows: those of segments cleaned before do,
// since only they, and not the ones still to come, count as gone.
absl::Status SsdStore::Impl::CleanSegment(const SsdLog::SegmentView& victim,
                                          std::span<const uint32_t> cleaned, absl::Status* damage) {
  // A tombstone is needed while a segment that stays may hold an older row of its key.
  uint64_t oldest = std::numeric_limits<uint64_t>::max();
  for (const SsdLog::SegmentView& s : log->Segments()) {
    if (s.state != SsdSegment::State::kSealed && s.state != SsdSegment::State::kOpen) continue;
    if (s.slot == victim.slot) continue;
    if (std::find(cleaned.begin(), cleaned.end(), s.slot) != cleaned.end()) continue;
    oldest = std::min(oldest, s.base_sequence);
  }
  const SsdSegmentRef ref = {.slot = victim.slot,
                             .epoch = victim.epoch,
                             .base_sequence = victim.base_sequence,
                             .end_offset = victim.end_offset,
                             .live_bytes = 0};
  std::vector<SsdScanned> records;
  std::vector<RowKey> keys;
  std::vector<SsdLocation> expected;
  std::vector<SsdLocation> locations;
  std::vector<const std::byte*> rows;
  std::vector<RowKey> erased;
  const auto clean_chunk = [&](int64_t at, std::span<const std::byte> chunk,
                               const absl::Status& read) -> absl::Status {
    if (absl::IsDataLoss(read)) {
      if (damage->ok()) *damage = read;
      return absl::OkStatus();
    }
    HOTROW_RETURN_IF_ERROR(read);
    records.clear();
    const absl::Status listed = internal::ListSsdChunk(geometry(), ref, at, chunk, &records);
    if (!listed.ok()) {
      if (damage->ok()) *damage = Named(listed, log->SegmentPath(victim.slot));
      return absl::OkStatus();
    }
    keys.clear();
    for (const SsdScanned& record : records) keys.push_back({record.key, record.table_index()});
    locations.resize(keys.size());
    index->Find(keys, locations);
    size_t live = 0;
    expected.clear();
    rows.clear();
    erased.clear();
    for (size_t i = 0; i < records.size(); ++i) {
      const SsdScanned& record = records[i];
      if (record.kind() == SsdRecordKind::kTombstone) {
        if (locations[i] == kNoLocation && oldest < record.sequence) erased.push_back(keys[i]);
        continue;
      }
      if (locations[i] != log->Location(victim.slot, record.offset)) continue;
      const std::optional<SsdRecord> row =
          internal::DecodeSsdRecord(chunk.subspan(static_cast<size_t>(record.offset - at)),
                                    {ref.epoch, record.offset}, row_bytes);
      if (!row.has_value() || row->key != record.key) {
        if (damage->ok()) *damage = Unreadable(victim.slot, record.offset, keys[i]);
        continue;
      }
      keys[live++] = keys[i];
      expected.push_back(locations[i]);
      rows.push_back(row->row.data());
    }
    keys.resize(live);
    HOTROW_RETURN_IF_ERROR(MoveRows(keys, expected, rows));
    HOTROW_RETURN_IF_ERROR(MoveTombstones(erased));
    int64_t gained = std::min(chunk_bytes, ref.end_offset - at);
    for (const RowKey& key : keys) gained -= LogBytes(row_bytes[key.table]);
    gained -= static_cast<int64_t>(erased.size()) * (internal::kSsdTombstoneBytes + kEntryBytes);
    Grant(std::max<int64_t>(gained, 0));
    return absl::OkStatus();
  };
  return ReadChunks(victim.slot, ref.end_offset, clean_chunk);
}

absl::Status SsdStore::Impl::MoveRows(std::span<const RowKey> index_keys,
                                      std::span<const SsdLocation> from,
                                      std::span<const std::byte* const> rows) {
  size_t done = 0;
  while (done < index_keys.size()) {
    std::lock_guard stream_lock(log->stream_mutex(SsdStream::kSurvivors));
    HOTROW_ASSIGN_OR_RETURN(
        const bool has_room,
        log->MakeRoom(SsdStream::kSurvivors, LogBytes(row_bytes[index_keys[done].table]),
                      next_sequence));
    if (!has_room) return Full(segment_bytes);
    SsdChunk& chunk = *log->chunk(SsdStream::kSurvivors);
    int64_t bytes = 0;
    size_t count = 0;
    while (done + count < index_keys.size()) {
      bytes += LogBytes(row_bytes[index_keys[done + count].table]);
      if (bytes > log->Room(SsdStream::kSurvivors)) break;
      ++count;
    }
    std::lock_guard chunk_lock(chunk.mutex);
    SsdSegment& segment = log->segment(chunk.slot);
    const std::span<const RowKey> keys = index_keys.subspan(done, count);
    const size_t first = done;
    int64_t expired = 0;
    if (options.expired) {
      expired = index->EraseAt(
          keys, from.subspan(done, count),
          [&](size_t i) {
            const uint32_t table = keys[i].table;
            return options.expired({keys[i].key, table_numbers[table]},
                                   {rows[first + i], static_cast<size_t>(row_bytes[table])});
          },
          [&](size_t i) {
            const uint32_t table = keys[i].table;
            const uint64_t sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
            const int64_t record_bytes = internal::EncodeSsdTombstone(
                log->NextPlace(chunk), table, keys[i].key, sequence, chunk.data + chunk.fill);
            log->Appended(chunk, record_bytes, keys[i].key, sequence,
                          internal::SsdKindTable(SsdRecordKind::kTombstone, table));
            AddLive(from[first + i], table, -1);
            segment.newest_sequence.store(sequence, std::memory_order_relaxed);
            segment.tombstone_bytes.fetch_add(record_bytes + kEntryBytes,
                                              std::memory_order_relaxed);
            tombstones.Add(1);
          });
      rows_expired.Add(expired);
    }
    const int64_t moved =
        index->CompareAndSet(keys, from.subspan(done, count), [&](size_t i) -> SsdLocation {
          const uint32_t table = keys[i].table;
          const SsdLocation location = log->NextLocation(chunk);
          const uint64_t sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
          const int64_t record_bytes = internal::EncodeSsdRow(
              log->NextPlace(chunk), table, keys[i].key, sequence,
              {rows[first + i], static_cast<size_t>(row_bytes[table])}, chunk.data + chunk.fill);
          log->Appended(chunk, record_bytes, keys[i].key, sequence,
                        internal::SsdKindTable(SsdRecordKind::kRow, table));
          AddLive(from[first + i], table, -1);
          AddLive(location, table, 1);
          segment.newest_sequence.store(sequence, std::memory_order_relaxed);
          return location;
        });
    rows_moved.Add(moved);
    done += count;
  }
  return absl::OkStatus();
}

absl::Status SsdStore::Impl::MoveTombstones(std::span<const RowKey> index_keys) {
  constexpr int64_t kBytes = internal::kSsdTombstoneBytes + kEntryBytes;
  size_t done = 0;
  while (done < index_keys.size()) {
    std::lock_guard stream_lock(log->stream_mutex(SsdStream::kSurvivors));
    HOTROW_ASSIGN_OR_RETURN(const bool has_room,
                            log->MakeRoom(SsdStream::kSurvivors, kBytes, next_sequence));
    if (!has_room) return Full(segment_bytes);
    SsdChunk& chunk = *log->chunk(SsdStream::kSurvivors);
    const size_t count = std::min(index_keys.size() - done,
                                  static_cast<size_t>(log->Room(SsdStream::kSurvivors) / kBytes));
    const std::span<const RowKey> keys = index_keys.subspan(done, count);
    std::lock_guard chunk_lock(chunk.mutex);
    SsdSegment& segment = log->segment(chunk.slot);
    // A key that is there again needs none. Otherwise it gets a number of its own: one that stays
    // below that of any row to come.
    const SsdIndex::UpsertResult result =
        index->Upsert(keys, [&](size_t i, SsdLocation old) -> SsdLocation {
          if (old != kNoLocation) return kNoLocation;
          const uint64_t sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
          const int64_t bytes = internal::EncodeSsdTombstone(
              log->NextPlace(chunk), keys[i].table, keys[i].key, sequence, chunk.data + chunk.fill);
          log->Appended(chunk, bytes, keys[i].key, sequence,
                        internal::SsdKindTable(SsdRecordKind::kTombstone, keys[i].table));
          segment.newest_sequence.store(sequence, std::memory_order_relaxed);
          segment.tombstone_bytes.fetch_add(kBytes, std::memory_order_relaxed);
          tombstones.Add(1);
          return kNoLocation;
        });
    HOTROW_RETURN_IF_ERROR(result.status);
    done += count;
  }
  return absl::OkStatus();
}

absl::Status SsdStore::CleanAll() {
  for (;;) {
    std::lock_guard lock(impl_->clean_mutex);
    HOTROW_ASSIGN_OR_RETURN(const bool gained, impl_->CleanRound());
    if (!gained) return absl::OkStatus();
  }
}

absl::Status SsdStore::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  Impl& impl = *impl_;
  // Rows that the cleaner moves would be missed.
  std::lock_guard clean_lock(impl.clean_mutex);
  const ReaderTicket ticket(impl.log->gate());
  std::vector<SsdSegmentRef> refs;
  {
    std::scoped_lock streams(impl.log->stream_mutex(SsdStream::kSurvivors),
                             impl.log->stream_mutex(SsdStream::kFresh));
    impl.log->Submit(SsdStream::kSurvivors, /*close=*/false);
    impl.log->Submit(SsdStream::kFresh, /*close=*/false);
    refs = impl.log->LiveSegments();
  }
  HOTROW_RETURN_IF_ERROR(impl.log->WaitWritten());
  std::vector<SsdScanned> records;
  std::vector<RowKey> keys;
  std::vector<SsdLocation> locations;
  for (const SsdSegmentRef& ref : refs) {
    const auto visit_chunk = [&](int64_t at, std::span<const std::byte> chunk,
                                 const absl::Status& read) -> absl::Status {
      HOTROW_RETURN_IF_ERROR(read);
      records.clear();
      const absl::Status listed = internal::ListSsdChunk(impl.geometry(), ref, at, chunk, &records);
      if (!listed.ok()) return Named(listed, impl.log->SegmentPath(ref.slot));
      keys.clear();
      for (const SsdScanned& record : records) keys.push_back({record.key, record.table_index()});
      locations.resize(keys.size());
      impl.index->Find(keys, locations);
      for (size_t i = 0; i < records.size(); ++i) {
        const SsdScanned& record = records[i];
        if (record.kind() != SsdRecordKind::kRow ||
            locations[i] != impl.log->Location(ref.slot, record.offset)) {
          continue;
        }
        const std::optional<SsdRecord> row =
            internal::DecodeSsdRecord(chunk.subspan(static_cast<size_t>(record.offset - at)),
                                      {ref.epoch, record.offset}, impl.row_bytes);
        if (!row.has_value()) return impl.Unreadable(ref.slot, record.offset, keys[i]);
        HOTROW_RETURN_IF_ERROR(
            visit({record.key, impl.table_numbers[record.table_index()]}, row->row));
      }
      return absl::OkStatus();
    };
    HOTROW_RETURN_IF_ERROR(impl.ReadChunks(ref.slot, ref.end_offset, visit_chunk));
  }
  return absl::OkStatus();
}

// --- Readings ------------------------------------------------------------------------------------

RowStoreStats SsdStore::Stats() const {
  const Impl& impl = *impl_;
  RowStoreStats out;
  out.rows = impl.index->rows();
  out.budget_bytes = impl.budget.budget();
  out.used_bytes = impl.budget.used();
  out.peak_bytes = impl.budget.peak();
  out.metadata_bytes = impl.index->bytes();
  out.finds = impl.finds.value();
  out.found = impl.hits.value();
  out.rows_written = impl.rows_written.value();
  out.rows_erased = impl.rows_erased.value();
  out.ios = impl.reads.value() + impl.log->ios();
  out.bytes_read = impl.bytes_read.value();
  out.bytes_written = impl.log->bytes_written() + impl.other_written.value();
  out.snapshot_bytes = impl.SnapshotOnlyBytes();
  out.payload_bytes_written = impl.payload_written.value();
  out.disk_budget_bytes = impl.options.disk_budget_bytes;
  out.disk_used_bytes = impl.log->files() * impl.segment_bytes + impl.manifest_file_bytes;
  return out;
}

SsdStoreStats SsdStore::SsdStats() const {
  const Impl& impl = *impl_;
  SsdStoreStats out;
  out.segments_max = impl.log->options().segments_max;
  for (const SsdLog::SegmentView& s : impl.log->Segments()) {
    ++out.segments;
    if (s.state == SsdSegment::State::kFree) ++out.segments_free;
    if (s.damaged) ++out.damaged_segments;
  }
  out.segments_cleaned = impl.segments_cleaned.value();
  out.live_bytes = impl.live_log_bytes;
  out.index_bytes = impl.index->bytes();
  out.tombstones_written = impl.tombstones.value();
  out.rows_moved = impl.rows_moved.value();
  out.rows_expired = impl.rows_expired.value();
  out.merged_reads = impl.merged_reads.value();
  out.write_stalls = impl.stalls.value();
  out.write_stall_nanos = impl.stall_nanos.value();
  {
    std::lock_guard lock(impl_->find_mutex);
    out.io = absl::StrCat(
        impl.find_contexts.empty() ? "busy" : impl.find_contexts.front()->queue->name(), ", ",
        impl.log->direct() ? absl::StrCat("direct, blocks of ", impl.log->block_bytes(), " bytes")
                           : std::string("through the page cache: no direct I/O here"));
  }
  return out;
}

std::span<const StoreTable> SsdStore::tables() const { return impl_->tables; }

int64_t SsdStore::row_bytes(uint32_t table) const {
  const uint32_t i = impl_->TableIndex(table);
  return i < impl_->row_bytes.size() ? impl_->row_bytes[i] : 0;
}

}  // namespace hotrow
