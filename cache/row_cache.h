#ifndef HOTROW_CACHE_ROW_CACHE_H_
#define HOTROW_CACHE_ROW_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/device.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "cache/cache_policy.h"

namespace hotrow {

struct RowCacheOptions {
  int64_t row_bytes = 0;     // required; a multiple of 16
  int64_t budget_bytes = 0;  // required; rows, keys, scores, marks and overflow: a hard limit
  CachePolicy policy = CachePolicy::kLru;
  Device device = Device::kCpu;  // where rows and metadata lie

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

struct RowCacheStats {
  int64_t ways = 0;  // places for rows, overflow not counted
  int64_t overflow_ways = 0;
  int64_t used_ways = 0;         // now, overflow counted
  int64_t used_bytes = 0;        // of the budget, the same from creation on
  int64_t host_bytes = 0;        // CUDA: page-locked host memory beside the budget
  int64_t evictions = 0;         // rows dropped for another row
  int64_t dirty_evictions = 0;   // of them, handed out for write-back
  int64_t overflow_inserts = 0;  // rows that found all 64 ways of their buckets pinned
  int64_t no_room = 0;           // keys that FindOrInsert could not place
};

// Where FindOrInsert put a key.
enum class Placement : uint8_t {
  kHit = 0,     // the row had a way; its bytes are there, or will be: see MarkFilled
  kFilled = 1,  // the row got a way; the caller must write its bytes and then call MarkFilled
  kNoRoom = 2,  // not resident: every way it may use is pinned
};

// The row that was evicted for a key. 0: none, or a clean one.
inline constexpr uint8_t kEvictedDirty = 1;
inline constexpr uint8_t kEvictedMarked = 2;  // see MarkDirtyRows

// RowCache keeps the hot rows of all tables of one row width near the compute. It loses nothing: a
// row that it evicts is either clean or handed to the caller.
//
// Layout:  32-way buckets of 512 bytes of metadata (16 bytes a way): 32 tags, 32 states, 32
//          scores, 32 keys with their tables. The row of (bucket, way) lies at slab + (32 * bucket
//          + way) * row_bytes, so slot = 32 * bucket + way and no pointers are stored. A key may
//          live in two buckets of one partition (2,048 buckets or more; a small cache is one).
//          It goes to the first while that is roomy, then to the emptier. If both are full, the
//          unpinned way with the lowest score of the 64 is evicted; if few ways are unpinned,
//          the lowest of the bucket with more of them. If all 64 are pinned, the key goes to the
//          partition's overflow buckets, which are probed only while they hold anything.
// Devices: with Device::kCpu everything lies in host memory and every call is done when it returns;
//          no call fails. With Device::kCuda rows and metadata lie in the memory of the device that
//          was current at Create. Then every span and pointer must be memory that the GPU
//          reaches: device memory, or page-locked host memory (PinnedBuffer, HostRegistration).
//          Calls are enqueued on ctx.stream; wait for it before reading their results. Find,
//          FindRows, FindOrInsert, PinHits, PlaceMisses, MarkFilled, Abandon, Unpin, MarkDirty,
//          DropMarks and EndStep allocate nothing, do not wait, and can be captured in a CUDA
//          graph (with fixed sizes and pointers). MarkDirtyRows, TakeMarks, TakeMarked,
//          ForEachDirty and Stats wait for the stream. There the placement of a row depends on
//          timing (which way, which victim, which key gets the last room), its value never; a batch
//          of hits gives the same answers as on the CPU.
// Memory:  budget_bytes covers rows, metadata and counters. On CUDA it is one allocation of device
//          memory, which the driver may round up by less than 2 MiB; in addition the cache has
//          Size().host_bytes of page-locked host memory, about 4 MiB and no less than a row,
//          through which ForEachDirty hands out rows. Batches of any size need no scratch there.
//          On the CPU scratch grows to the largest batch seen (at most 20 bytes a key).
// Threads: all calls but row(), Find, FindRows, Size and Stats change the cache: one at a time, and
//          on one stream at a time (a new stream first waits for an event of the one before). The
//          caller sees to both. Threads of ctx.pool own whole partitions, so results on the CPU do
//          not depend on their number. Find, FindRows and Stats may run concurrently with each
//          other only, row() and Size with everything.
// Errors:  InvalidArgument (options), ResourceExhausted (no memory) and FailedPrecondition (no
//          usable GPU) from Create. Later calls return OK on the CPU. On CUDA they return errors of
//          launches and copies; part of the call may then have happened. A broken precondition
//          stops the process; on CUDA it stops the kernel, with a message that names the place,
//          and all later work on that device.
class RowCache {
 public:
  static absl::StatusOr<std::unique_ptr<RowCache>> Create(const RowCacheOptions& options);
  virtual ~RowCache() = default;
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  // The smallest budget in which `rows` rows, all pinned at once, find room. `row_bytes` and
  // `device` as in the options. The chance of failure is below 1e-9: two choices of bucket keep the
  // buckets within a few rows of even, and the budget has 1/8 more ways than rows, plus the
  // overflow.
  static int64_t BudgetForRows(int64_t rows, int64_t row_bytes, Device device = Device::kCpu);

  // The ways, overflow_ways, used_bytes and host_bytes that Create would give a cache of this
  // budget; ways is 0 when the budget is too small.
  static RowCacheStats SizeForBudget(int64_t budget_bytes, int64_t row_bytes,
                                     Device device = Device::kCpu);

  // Sets rows[i] to the address of the row of keys[i], null when it is not resident or not yet
  // filled. Changes nothing: no recency, no frequency, no pin. Keys may repeat.
  virtual absl::Status Find(const ExecContext& ctx, std::span<const RowKey> keys,
                            std::span<std::byte*> rows) const = 0;

  // Find and a copy in one pass: copies the row of keys[i] to out + i * out_stride and sets
  // found[i] to 1; where Find gives null, found[i] = 0 and `out` is left alone. `out` is 16-byte
  // aligned, out_stride a multiple of 16 and no less than row_bytes().
  virtual absl::Status FindRows(const ExecContext& ctx, std::span<const RowKey> keys,
                                std::byte* out, int64_t out_stride,
                                std::span<uint8_t> found) const = 0;

  // Makes keys resident and pins each that is placed once more (at most 63 pins a row, so 63 steps
  // in flight). Keys must be distinct. A later batch may name a key that still waits for its bytes:
  // that is a hit, and its caller must wait for the earlier one's MarkFilled before it uses the
  // row.
  //
  // For each i, placement[i] is the outcome and slots[i] the slot (-1 for kNoRoom). If placing
  // keys[i] evicted a dirty or marked row, evicted[i] is not 0, evicted_keys[i] is its key, and
  // evicted_rows + i * row_bytes(), 16-byte aligned, has its bytes. The caller must write evicted
  // rows back before it reads misses from the tier below, because a later batch may ask for one of
  // them.
  struct InsertResult {
    std::span<int64_t> slots;           // [n]
    std::span<Placement> placement;     // [n]
    std::span<uint8_t> evicted;         // [n]
    std::span<RowKey> evicted_keys;     // [n]
    std::byte* evicted_rows = nullptr;  // [n, row_bytes]
  };
  virtual absl::Status FindOrInsert(const ExecContext& ctx, std::span<const RowKey> keys,
                                    const InsertResult& result) = 0;

  // FindOrInsert in two halves, for who wants to know the misses of a large batch before he makes
  // room for the rows that they evict. PinHits pins the keys that are resident and sets their
  // slots, placement and evicted; the others get slots[i] = -1 and nothing else; evicted_keys and
  // evicted_rows may be empty.
  virtual absl::Status PinHits(const ExecContext& ctx, std::span<const RowKey> keys,
                               const InsertResult& result) = 0;
  // Gives those whose slots[i] is negative a way, and sets what FindOrInsert sets for them. They
  // missed in a PinHits since which no other call has inserted them. Any part of its misses, in
  // any order.
  virtual absl::Status PlaceMisses(const ExecContext& ctx, std::span<const RowKey> keys,
                                   const InsertResult& result) = 0;

  // In all calls that take slots, those of one call are distinct.

  // The bytes of these slots (placed with kFilled) have been written.
  virtual absl::Status MarkFilled(const ExecContext& ctx, std::span<const int64_t> slots) = 0;
  // Empties slots that were placed with kFilled but will not be filled. Later batches that hit
  // their keys must have taken their pins off.
  virtual absl::Status Abandon(const ExecContext& ctx, std::span<const int64_t> slots) = 0;
  // Takes one pin off each slot. dirty: the rows were updated and must be written back before they
  // leave.
  virtual absl::Status Unpin(const ExecContext& ctx, std::span<const int64_t> slots,
                             bool dirty) = 0;

  // Marks pinned rows, whose bytes are there, as different from the tier below.
  virtual absl::Status MarkDirty(const ExecContext& ctx, std::span<const int64_t> slots) = 0;

  // For snapshots, which write down the rows that are dirty now while rows go on changing.
  //
  // Turns all dirty rows into marked ones and returns their number; a pass over one line of each
  // bucket. Before changing a marked row the caller must take the mark and keep the old bytes
  // (TakeMarks). No row may be marked before the call.
  virtual absl::StatusOr<int64_t> MarkDirtyRows(const ExecContext& ctx) = 0;
  // Goes through `slots` in order and turns marked rows into dirty ones; keys[k] and
  // rows + k * row_bytes() get their keys and bytes. Stops when `keys` is full. *taken is the
  // number of marks taken; returns the number of slots done. `taken` is host memory, `rows` 16-byte
  // aligned.
  virtual absl::StatusOr<int64_t> TakeMarks(const ExecContext& ctx, std::span<const int64_t> slots,
                                            std::span<RowKey> keys, std::byte* rows,
                                            int64_t* taken) = 0;
  // Takes the marks off up to keys.size() marked rows from slot *cursor on. Sets their keys, slots
  // and bytes, pins them once more, so that they stay until they are written down, and advances
  // *cursor, which is host memory. Returns their number. It also ends after half a million slots,
  // so that a call takes at most a millisecond besides copying. All are taken when *cursor is
  // num_slots(). This pin counts towards the 63 of a row, so at most 62 steps may be in flight.
  // `rows` is 16-byte aligned.
  virtual absl::StatusOr<int64_t> TakeMarked(const ExecContext& ctx, int64_t* cursor,
                                             std::span<RowKey> keys, std::span<int64_t> slots,
                                             std::byte* rows) = 0;
  // Makes marked rows dirty again.
  virtual absl::Status DropMarks(const ExecContext& ctx) = 0;
  int64_t num_slots() const { return num_slots_; }  // overflow counted

  // Ages the scores: call once per training step, after its FindOrInsert.
  virtual absl::Status EndStep(const ExecContext& ctx) = 0;

  // Hands out all dirty rows, pinned ones too, in batches in slot order. A batch becomes clean when
  // visit returns OK. Ends with the first error. On every device `visit` gets host memory, valid
  // until it returns.
  virtual absl::Status ForEachDirty(
      const ExecContext& ctx,
      absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                     std::span<const std::byte* const> rows)>
          visit) = 0;

  // Where the row of a slot lies: an address of the cache's device.
  std::byte* row(int64_t slot) const {
    HOTROW_DCHECK(slot >= 0 && slot < num_slots_);
    return rows_ + slot * options_.row_bytes;
  }
  int64_t row_bytes() const { return options_.row_bytes; }
  Device device() const { return options_.device; }
  // The parts of Stats that never change: ways, overflow_ways, used_bytes, host_bytes.
  virtual RowCacheStats Size() const = 0;
  // On CUDA, the state that ctx.stream has reached. On another stream than that of the changes, the
  // state of some moment.
  virtual absl::StatusOr<RowCacheStats> Stats(const ExecContext& ctx) const = 0;
  // The same without a wait: LastStats returns what the last EnqueueStats that is done has read, on
  // any thread. While a GPU is at work on the next, single counts may be of the next already.
  virtual absl::Status EnqueueStats(const ExecContext& ctx) = 0;
  virtual RowCacheStats LastStats() const = 0;

 protected:
  explicit RowCache(const RowCacheOptions& options) : options_(options) {}

  RowCacheOptions options_;
  std::byte* rows_ = nullptr;  // of num_slots_ rows; set once, by the subclass
  int64_t num_slots_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_ROW_CACHE_H_
