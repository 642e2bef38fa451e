#ifndef HOTROW_CACHE_ROW_CACHE_H_
#define HOTROW_CACHE_ROW_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/row_key.h"

namespace hotrow {

// What decides who leaves when both buckets of a new row are full. Policies change speed, never
// values.
enum class CachePolicy {
  kLru,  // the row whose last step lies furthest back
  kLfu,  // the row used in the fewest steps, long ago counting less
};

struct RowCacheOptions {
  int64_t row_bytes = 0;     // required; a multiple of 16
  int64_t budget_bytes = 0;  // required; rows, keys, scores, marks and overflow: a hard limit
  CachePolicy policy = CachePolicy::kLru;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

struct RowCacheStats {
  int64_t ways = 0;  // places for rows, overflow not counted
  int64_t overflow_ways = 0;
  int64_t used_ways = 0;         // now, overflow counted
  int64_t used_bytes = 0;        // memory taken, the same from creation on
  int64_t evictions = 0;         // rows dropped for another row
  int64_t dirty_evictions = 0;   // the part of them that was handed out for write-back
  int64_t overflow_inserts = 0;  // rows that found all 64 ways of their buckets pinned
  int64_t no_room = 0;           // keys that FindOrInsert could not place
};

// Where FindOrInsert put a key.
enum class Placement : uint8_t {
  kHit = 0,     // the row has a way already; its bytes are there, or will be: see MarkFilled
  kFilled = 1,  // the row has a way now; the caller must write its bytes and then call MarkFilled
  kNoRoom = 2,  // every way it may use is pinned; not resident
};

// What left to make room for a key. 0: no row, or a clean one.
inline constexpr uint8_t kEvictedDirty = 1;
inline constexpr uint8_t kEvictedMarked = 2;  // see MarkDirtyRows

// RowCache keeps the hot rows of all tables of one row width near the compute. It is a cache in the
// strict sense: a row it drops is either clean or handed to the caller.
//
// Layout:  32-way buckets of 512 bytes of metadata (16 bytes a way): 32 tags, 32 scores, 32
//          states, tables, keys. The row of (bucket, way) lies at slab + (32 * bucket + way) *
//          row_bytes, so slot = 32 * bucket + way and no pointers are stored. A key may live in
//          two buckets of one partition (2,048 buckets or more; a small cache is one
//          partition); it goes to the emptier, and when both are full the lowest score of the
//          unpinned ways among the 64 is evicted, or, where few ways are unpinned, the lowest
//          of the bucket with more of them. If all 64 are pinned it goes to the partition's
//          overflow buckets, which are probed only while they hold anything.
// Threads: all calls but row(), Find and Stats change the cache: one at a time, by the caller.
//          Inside, ctx.pool's threads own whole partitions, so results do not depend on their
//          number. Find and Stats may run beside each other only, row() beside everything.
// Errors:  InvalidArgument (options) and ResourceExhausted (no memory) from Create. After that
//          the calls cannot fail for want of memory: nothing is allocated but scratch space
//          that grows to the largest batch seen (at most 20 bytes a key). Breaking a
//          precondition stops the process.
class RowCache {
 public:
  static absl::StatusOr<std::unique_ptr<RowCache>> Create(const RowCacheOptions& options);
  ~RowCache();
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  // The smallest budget in which `rows` rows, all pinned at once, are sure to find room.
  // `row_bytes` as in the options. "Sure" up to chance below 1e-9: the two choices leave the
  // buckets within a few rows of even, and the budget has 1/8 more ways than rows, plus the
  // overflow.
  static int64_t BudgetForRows(int64_t rows, int64_t row_bytes);

  // What Create makes of a budget: ways, overflow_ways and used_bytes of Stats; ways is 0 when the
  // budget is too small for a cache.
  static RowCacheStats SizeForBudget(int64_t budget_bytes, int64_t row_bytes);

  // Sets rows[i] to the address of the row of keys[i], null when it is not resident or not yet
  // filled. Changes nothing: no recency, no frequency, no pin. Keys may repeat.
  void Find(const ExecContext& ctx, std::span<const RowKey> keys, std::span<std::byte*> rows) const;

  // Makes keys resident and pins each that is placed once more (at most 63 pins a row, so 63 steps
  // in flight). Keys must be distinct. A later batch may name a key that still waits for its bytes:
  // that is a hit, and its caller must wait for the earlier one's MarkFilled before it uses the
  // row.
  //
  // For each i, placement[i] says what happened and slots[i] is its slot (-1 for kNoRoom). When
  // placing keys[i] evicted a dirty or marked row, evicted_keys[i] names it, evicted[i] says which,
  // and its bytes were copied to evicted_rows + i * row_bytes(); otherwise evicted[i] = 0. The
  // caller must write evicted rows back before it reads misses from the tier below, because a key
  // of a later batch may be among them.
  struct InsertResult {
    std::span<int64_t> slots;           // [n]
    std::span<Placement> placement;     // [n]
    std::span<uint8_t> evicted;         // [n]
    std::span<RowKey> evicted_keys;     // [n]
    std::byte* evicted_rows = nullptr;  // [n, row_bytes]
  };
  void FindOrInsert(const ExecContext& ctx, std::span<const RowKey> keys,
                    const InsertResult& result);

  // The bytes of these slots (placed with kFilled) have been written.
  void MarkFilled(std::span<const int64_t> slots);
  // Undoes the placement of slots that were placed with kFilled but will not be filled: they are
  // emptied. Batches that named their keys since have taken their pins off.
  void Abandon(std::span<const int64_t> slots);
  // Takes one pin off each slot; dirty: the rows were updated and must be written back before they
  // go.
  void Unpin(std::span<const int64_t> slots, bool dirty);

  // The rows, pinned ones, differ from the tier below.
  void MarkDirty(std::span<const int64_t> slots);

  // For snapshots: what is dirty now shall be written down while rows go on changing.
  //
  // MarkDirtyRows makes all dirty rows marked instead and returns their number; a pass over two
  // lines of each bucket. Whoever is about to change a marked row must take the mark first and keep
  // the old bytes (TakeMark). No row may be marked before.
  int64_t MarkDirtyRows();
  // Takes the mark off the row and makes it dirty. False when it had none.
  bool TakeMark(int64_t slot, RowKey* key);
  // Takes the marks off up to keys.size() marked rows from slot *cursor on: copies their bytes to
  // `rows`, names them, pins them once more, so that they stay until they were written down, and
  // advances *cursor. Returns how many; it also ends after half a million slots, so that a call
  // takes no more than a millisecond beside the copying. All were taken when *cursor is
  // num_slots(). With this pin a row may have 63, so no more than 62 steps may be in flight.
  int64_t TakeMarked(int64_t* cursor, std::span<RowKey> keys, std::span<int64_t> slots,
                     std::byte* rows);
  // Makes marked rows dirty again.
  void DropMarks();
  int64_t num_slots() const;  // overflow counted

  // Ages the scores: call once per training step, after its FindOrInsert.
  void EndStep(const ExecContext& ctx);

  // Hands out all dirty rows in batches, in slot order; a batch is marked clean when visit returns
  // OK. Ends with the first error. Pins do not matter: a pinned dirty row is handed out too and
  // stays.
  absl::Status ForEachDirty(absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                                           std::span<const std::byte* const> rows)>
                                visit);

  std::byte* row(int64_t slot);
  int64_t row_bytes() const;
  RowCacheStats Stats() const;

 private:
  friend struct RowCacheTestPeer;  // reads metadata (cache/row_cache_impl.h)
  struct Impl;
  explicit RowCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_ROW_CACHE_H_
