#ifndef HOTROW_STORE_SSD_SSD_LOG_IMPL_H_
#define HOTROW_STORE_SSD_SSD_LOG_IMPL_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/held_directory.h"
#include "base/io_queue.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_dirs_impl.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_reader_gate_impl.h"

// The log of an SsdStore: segment files, and how records get into them.
namespace hotrow::internal {

// Two ends at which the log grows. Rows that the cleaner moves have lived long already; apart from
// fresh ones they make segments that stay full.
enum class SsdStream { kFresh, kSurvivors };
inline constexpr int kSsdStreams = 2;

class SsdLog;

// A chunk on its way to the disk, or whose end is still being filled.
struct SsdChunk {
  explicit SsdChunk(SsdLog* log) : log(log) {}
  ~SsdChunk();  // gives the buffer back
  SsdChunk(const SsdChunk&) = delete;
  SsdChunk& operator=(const SsdChunk&) = delete;

  SsdLog* const log;
  uint32_t slot = 0;
  uint64_t epoch = 0;
  int64_t offset = 0;         // in the segment
  std::byte* data = nullptr;  // [chunk_bytes]
  // Held by the appender while it adds records and by whoever reads them.
  std::mutex mutex;

  // The appender's, under the stream's lock.
  int64_t fill = 0;       // records end here, from the start of the chunk
  int64_t submitted = 0;  // handed to the writer
  int64_t num_entries = 0;
  uint64_t base_sequence = 0;

  // What the log's lock guards.
  int writes = 0;  // handed over and not done
  bool closed = false;
};

struct SsdSegment {
  enum class State {
    kFree,      // to be written to
    kOpen,      // a stream appends here
    kSealed,    // full, or left by an earlier run
    kCleaned,   // all its rows are elsewhere; the manifest may still name it
    kRetained,  // snapshots name it, the present state does not
    kRetiring,  // unnamed; finds that began before may still read it
    kHeld,      // a reader of a dropped snapshot may still read it (base/file_hold.h)
  };
  SsdSegment(uint32_t slot, uint32_t directory) : slot(slot), directory(directory) {}

  const uint32_t slot;
  const uint32_t directory;  // where its file lies
  std::unique_ptr<File> file;
  // Set when a life of the segment begins, before any location in it is known to anyone.
  uint64_t epoch = 0;
  uint64_t base_sequence = 0;
  // Log bytes (records and their footer entries) of rows that the index names.
  std::atomic<int64_t> live_bytes{0};
  // The same of tombstones that were written to this life by this run, needed or not.
  std::atomic<int64_t> tombstone_bytes{0};
  std::atomic<uint64_t> newest_sequence{0};

  // What the log's lock guards.
  State state = State::kFree;
  int64_t end_offset = 0;  // records that were handed to the writer end here
  int32_t snapshots = 0;   // that name this life
  int chunks_pending = 0;
  bool dirty = false;    // written to since the last sync
  bool damaged = false;  // has records that cannot be read; is left alone
  uint64_t retire_tag = 0;
};

struct SsdLogOptions {
  Env* env = nullptr;
  SsdDirs dirs;
  int64_t segment_bytes = 0;
  int64_t chunk_bytes = 0;
  int64_t segments_max = 0;
  int64_t longest_log_bytes = 0;  // of a row, with its footer entry
  int num_buffers = 6;
  bool background = true;
};

// Threads: a stream belongs to whoever holds its lock (stream_mutex); everything else may be called
//          concurrently. Lock order: survivors' stream, fresh stream, chunk, log.
class SsdLog {
 public:
  static absl::StatusOr<std::unique_ptr<SsdLog>> Create(const SsdLogOptions& options,
                                                        MemoryBudget& budget);
  // Writes that were handed over are finished; nothing is synced.
  ~SsdLog();

  // --- Appending: the stream's lock is held ------------------------------------------------------

  std::mutex& stream_mutex(SsdStream stream) { return streams_[Index(stream)].mutex; }

  // Sees to it that the stream has a chunk with room for at least log_bytes (records with their
  // footer entries), which fit into an empty chunk. May wait for a buffer. False: there is no free
  // segment, and the caller may have one cleaned. Errors: what the disk says.
  absl::StatusOr<bool> MakeRoom(SsdStream stream, int64_t log_bytes, uint64_t next_sequence);
  // The chunk that MakeRoom provided; lock its mutex to append.
  SsdChunk* chunk(SsdStream stream) { return streams_[Index(stream)].chunk.get(); }
  // Bytes for records and their entries that are left in it.
  int64_t Room(SsdStream stream) const;
  // Bytes of segments that the stream has used up since the log was made; only grows.
  int64_t StreamBytes(SsdStream stream) const;
  // Where the next record goes.
  SsdPlace NextPlace(const SsdChunk& chunk) const {
    return {chunk.epoch, chunk.offset + chunk.fill};
  }
  uint64_t NextLocation(const SsdChunk& chunk) const {
    return Location(chunk.slot, chunk.offset + chunk.fill);
  }
  // Takes in a record that was encoded at data + fill.
  void Appended(SsdChunk& chunk, int64_t bytes, uint64_t key, uint64_t sequence,
                uint32_t kind_table);
  // Pads so that the next record starts in another unit; it must fit, entry included.
  void PadToNextUnit(SsdChunk& chunk);

  // Hands everything appended so far to the writer. close: also ends the chunk, with its footer.
  void Submit(SsdStream stream, bool close);
  // Ends the open segment of the stream, and its chunk.
  void Seal(SsdStream stream);

  // --- Writing -----------------------------------------------------------------------------------

  // A moment: which writes were submitted, and how many had failed.
  struct WriteMark {
    uint64_t end = 0;
    uint64_t failures = 0;
  };
  // Has writes that failed tried once more, whoever submitted them.
  WriteMark RetryAndMark();
  // Waits until each write that was submitted before the mark is on its file, or has failed since.
  // OK: all of them are on their files. Otherwise the error of a write that failed; its chunk stays
  // where finds look until it succeeds.
  absl::Status WaitWritten(const WriteMark& mark);
  absl::Status WaitWritten() { return WaitWritten(RetryAndMark()); }
  // Makes durable what is written, and the names of new files.
  absl::Status Sync();
  // Nothing is written from now on, and no state is committed: a sync has failed, or a call that
  // changes the store has thrown this, anywhere. Finds go on. Any thread.
  void Break(const absl::Status& why);
  // Why that is so, or OK.
  absl::Status broken() const;

  // --- Reading -----------------------------------------------------------------------------------

  // Chunks whose bytes may not be on the disk yet, in the order of their locations. What a location
  // taken from the index before this call names is in one of them or on the disk.
  std::vector<std::shared_ptr<SsdChunk>> PendingChunks() const;
  SsdReaderGate& gate() { return gate_; }

  uint64_t Location(uint32_t slot, int64_t offset) const {
    return static_cast<uint64_t>(slot) * units_per_segment_ +
           static_cast<uint64_t>(offset / kSsdUnitBytes);
  }
  uint32_t SlotOf(uint64_t location) const {
    return static_cast<uint32_t>(location / units_per_segment_);
  }
  int64_t OffsetOf(uint64_t location) const {
    return static_cast<int64_t>(location % units_per_segment_) * kSsdUnitBytes;
  }
  // A segment that exists.
  SsdSegment& segment(uint32_t slot) { return *segments_[slot]; }
  std::string SegmentPath(uint32_t slot) const {
    return options_.dirs.SegmentPath(segments_[slot]->directory, slot);
  }

  // --- Segments ----------------------------------------------------------------------------------

  // While opening: takes over a segment of the manifest, or a file that no one names (epoch 0).
  // Errors: DataLoss, naming the file, where that is missing or ends before the segment's records.
  absl::Status Adopt(uint32_t slot, uint32_t directory, const SsdSegmentRef* ref);
  // Creates free segments until `count` exist.
  absl::Status EnsureFree(int64_t count);
  // Removes files of free segments until that many bytes are given back, or none is left.
  absl::Status RemoveFree(int64_t bytes);
  void set_next_epoch(uint64_t epoch) { next_epoch_ = epoch; }
  uint64_t next_epoch() const { return next_epoch_; }

  // The present state: open and sealed segments that have records. Both streams' locks are held,
  // and Submit was called on both. A segment may become kCleaned meanwhile, so whoever wants
  // CleanedSegments too asks for them first.
  std::vector<SsdSegmentRef> LiveSegments() const;
  // The same without those conditions: for choosing what to clean, and for statistics.
  struct SegmentView {
    uint32_t slot;
    uint64_t epoch;
    uint64_t base_sequence;
    uint64_t newest_sequence;
    int64_t end_offset;
    int64_t live_bytes;
    int64_t tombstone_bytes;
    SsdSegment::State state;
    int32_t snapshots;
    bool written;  // wholly on the disk
    bool damaged;
  };
  std::vector<SegmentView> Segments() const;
  // Segments that stay as they are, those of `snapshot` and damaged ones, and the log bytes of the
  // present state's others. snapshot: by slot; null: those of all snapshots.
  struct HeldView {
    int64_t segments = 0;
    int64_t loose_bytes = 0;      // of rows and tombstones in others
    int64_t tombstone_bytes = 0;  // in all
  };
  HeldView Held(const std::vector<bool>* snapshot) const;
  // All at once: a tombstone may have been left behind because of what another one of them held.
  void MarkCleaned(std::span<const uint32_t> slots);
  void MarkDamaged(uint32_t slot);
  // A manifest without these kCleaned segments is durable: they may be written over, once finds and
  // snapshots are done with them.
  void Release(std::span<const uint32_t> slots);
  void AddSnapshotRefs(std::span<const SsdSegmentRef> refs, int delta);
  std::vector<uint32_t> CleanedSegments() const;

  // Waits until finds let go of a segment that they keep from being free; without one, takes those
  // that readers of dropped snapshots hold. False: there is none.
  bool WaitForReaders();
  // Segments that could be opened now: free ones and those that may still be created.
  int64_t Available();
  // The same with those that were freed while finds still read them.
  int64_t AvailableSoon() const;
  int64_t files() const;
  // Before files of the store are made, replaced or removed by their paths.
  absl::Status CheckInPlace() const;
  // What Fresh leaves to the cleaner.
  static constexpr int64_t kReservedSegments = 2;
  // Log bytes that a segment holds, with rows of any widths.
  int64_t SegmentCapacity() const;
  int64_t ChunkCapacity() const { return options_.chunk_bytes - SsdFooterBytes(0); }

  // Bytes and I/Os of writes that succeeded.
  int64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }
  int64_t ios() const { return ios_.load(std::memory_order_relaxed); }
  const SsdLogOptions& options() const { return options_; }
  bool direct() const { return direct_; }
  int64_t block_bytes() const { return block_bytes_; }

 private:
  friend struct SsdChunk;
  struct Stream {
    std::mutex mutex;
    SsdSegment* segment = nullptr;
    uint32_t next_directory = 0;  // of the segment after that
    int64_t next_chunk = 0;       // offset in the segment
    int64_t segments = 0;         // opened so far
    std::shared_ptr<SsdChunk> chunk;
  };
  struct Write {
    std::shared_ptr<SsdChunk> chunk;
    int64_t from = 0;  // in the chunk
    int64_t to = 0;
    uint64_t number = 0;  // in the order in which writes are handed over; kept when it is retried
  };

  explicit SsdLog(const SsdLogOptions& options);
  static int Index(SsdStream stream) { return static_cast<int>(stream); }
  absl::StatusOr<bool> OpenSegment(SsdStream stream, uint64_t next_sequence);
  // In that directory; where its file system is full, in another.
  absl::Status CreateSegment(uint32_t slot, uint32_t directory);
  absl::Status CreateSegmentIn(uint32_t slot, uint32_t directory);
  absl::Status RemoveSegment(uint32_t slot);
  absl::Status OpenFile(uint32_t slot, OpenMode mode);
  void HandOver(SsdStream stream, int64_t to, bool close);
  // Whether there is one among the writes numbered below `end`; under mutex_.
  bool AnyToBeTried(const WriteMark& mark) const;
  bool AnyUnwritten(const WriteMark& mark) const;
  void RunWrites(std::span<Write> writes);
  absl::Status RetryFailed();
  void WriterLoop();
  void ReturnBuffer(std::byte* data);
  void ReapRetired();  // mutex_ is held, also below
  bool BreakHolds();
  SsdSegment* FirstFree(uint32_t directory) const;  // null: there is none
  // A free segment elsewhere that gives way to one in this directory; null: none is to.
  absl::StatusOr<SsdSegment*> FreeToMove(uint32_t directory) const;
  int64_t CountFree() const;
  int64_t CountRetiring() const;

  const SsdLogOptions options_;
  std::deque<HeldDirectory> directories_;
  uint64_t units_per_segment_ = 0;
  // How the files are written to; written with each. The largest blocks of all.
  std::atomic<bool> direct_{false};
  std::atomic<int64_t> block_bytes_{kSsdUnitBytes};
  std::array<Stream, kSsdStreams> streams_;
  SsdReaderGate gate_;
  BudgetedBuffer<std::byte> buffer_memory_;
  std::mutex queue_mutex_;  // without a writer, several threads may have something to write
  std::mutex sync_mutex_;   // before mutex_
  std::unique_ptr<IoQueue> queue_;
  std::atomic<uint64_t> next_epoch_{1};

  mutable std::mutex mutex_;  // the log's lock; guards what follows
  std::condition_variable changed_;
  // Index is the slot; the vector never grows, so that finds may use it.
  std::vector<std::unique_ptr<SsdSegment>> segments_;
  int64_t num_files_ = 0;
  std::vector<std::byte*> free_buffers_;
  std::map<uint64_t, std::shared_ptr<SsdChunk>> pending_;  // by location
  std::deque<Write> writes_;
  std::vector<Write> failed_;
  absl::Status write_error_;  // of the last write that failed
  uint64_t next_write_ = 1;   // number of the next one
  // Writes that are not on their files: in writes_, in failed_ or on their way, by number, with the
  // number of their last failure, 0 for none.
  std::map<uint64_t, uint64_t> unwritten_;
  uint64_t failures_ = 0;
  std::vector<bool> directories_dirty_;
  bool stop_ = false;
  absl::Status broken_;

  std::atomic<int64_t> bytes_written_{0};
  std::atomic<int64_t> ios_{0};
  std::thread writer_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_LOG_IMPL_H_
