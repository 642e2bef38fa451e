#ifndef HOTROW_STORE_SSD_SSD_INDEX_IMPL_H_
#define HOTROW_STORE_SSD_SSD_INDEX_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/row_key.h"
#include "store/host/host_memory_impl.h"

// The index of an SsdStore: which row lies where on the device, exactly, in about 10 bytes a row.
namespace hotrow::internal {

// Where a row lies; what the number means is the store's affair.
using SsdLocation = uint64_t;
inline constexpr SsdLocation kNoLocation = ~SsdLocation{0};

struct SsdIndexOptions {
  int64_t num_tables = 1;     // in [1, 65536]; tables are numbered from 0
  int32_t location_bits = 0;  // required, in [1, 48]; locations lie in [0, 2^location_bits)
  // How many rows there may be about; sets the number of partitions, for life. With more the index
  // still works, in larger partitions, each of which is longer under its lock when it grows.
  int64_t max_rows_hint = 0;
  // The seed of the hashes. Drawn at random and kept from whoever chooses the keys, it keeps them
  // from choosing ones that collide. Nothing but the time and memory that calls take depends on it.
  uint64_t seed = 0;
  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// SsdIndex maps {table, key} to a location. The whole identity of a row is kept, so look-ups and
// misses alike never need the device.
//
// Data:    p = Mix64(key ^ seed of the table) is a bijection of 64 bits. Its top bits choose one
//          of P partitions (a power of two, at least 2); the other Q bits are q. A partition has n
//          buckets of 128 bytes, for any n. Each number x of Q bits has its bucket, x / d, and a
//          remainder in it, x % d, where d = ceil(2^Q / n). A row may stand in the bucket of q or
//          in the one of Scramble(q), another bijection. A slot holds what the bucket does not say:
//          remainder, table, which of the two x it is, and location. So a row is moved and a
//          partition rebuilt from slots alone. The more buckets, the shorter the remainder and the
//          more slots in a bucket: between 7 and 16. Where more rows share both buckets than these
//          hold, though the partition is not half full, it is rebuilt with a salt: then a row's
//          numbers are F(q) and Scramble(F(q)), where salt and table choose the bijection F.
// Threads: all methods may run concurrently. Each partition has a reader-writer lock; callbacks run
//          under it (exclusive in Upsert, CompareAndSet and Erase; shared in ForEach and Save), so
//          they should be short and must not call the index. No two partitions are ever locked at
//          once. A Find that races a change sees the old or the new location of each key.
// Size:    a slot has 64 - log2(n P) + location_bits + log2(num_tables) + 1 bits, the logarithms
//          rounded; a bucket has 1008 bits for slots. That is 9.1 bytes a slot up to 72 bits, 9.8
//          up to 77, 10.7 up to 84. A partition of more than 14 000 rows fills 0.92 to 0.98 of
//          them, a smaller one 0.78 to 0.98, the smallest is a page.
// Memory:  asked of the MemoryBudget before it is taken. A partition grows alone, by a sixteenth (a
//          quarter while small), and holds its old and new buckets meanwhile. It never shrinks.
// Errors:  ResourceExhausted (budget; the text is MemoryBudget's) leaves the index as it was.
class SsdIndex {
 public:
  // The budget outlives the index. Errors: InvalidArgument, ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SsdIndex>> Create(const SsdIndexOptions& options,
                                                          MemoryBudget& budget);
  ~SsdIndex();
  SsdIndex(const SsdIndex&) = delete;
  SsdIndex& operator=(const SsdIndex&) = delete;

  // In all methods RowKey::table is the number of a table in [0, num_tables), which the caller has
  // checked. Batches may repeat keys; a batch is not one transaction, each of its keys is.

  // locations[i] becomes the location of keys[i], or kNoLocation. Equal sizes. Takes the keys
  // partition by partition, some thousand at a time; uses 48 KiB of stack and no other memory.
  void Find(std::span<const RowKey> keys, std::span<SsdLocation> locations) const;

  struct UpsertResult {
    absl::Status status;
    // Keys [0, done) are finished; place was called for no other. keys.size() when status is OK.
    int64_t done = 0;
  };
  // For each key in the order of the batch, under the lock of its partition: location =
  // place(i, old), where old is its location or kNoLocation. Room is made before place is called,
  // so nothing can fail after it. place may return kNoLocation to leave things as they were.
  // Errors: ResourceExhausted (budget), before place was called for key `done`.
  using Place = absl::FunctionRef<SsdLocation(size_t i, SsdLocation old)>;
  UpsertResult Upsert(std::span<const RowKey> keys, Place place);

  // Makes room for so many more rows in a partition at once. For who knows how many will come:
  // growing as they come moves each of them some sixteen times. Errors: ResourceExhausted.
  absl::Status Reserve(int64_t partition, int64_t more_rows);

  // For each key in the order of the batch, if it is still at expected[i], under the lock of its
  // partition: location = place(i). place may return kNoLocation to leave it where it is. Returns
  // how many were moved. Never needs memory.
  using PlaceAgain = absl::FunctionRef<SsdLocation(size_t i)>;
  int64_t CompareAndSet(std::span<const RowKey> keys, std::span<const SsdLocation> expected,
                        PlaceAgain place);

  // Removes the keys that are there, in the order of the batch; before it does, calls
  // on_erase(i, its location) under the lock of the partition. Returns how many were removed.
  using OnErase = absl::FunctionRef<void(size_t i, SsdLocation old)>;
  int64_t Erase(std::span<const RowKey> keys, OnErase on_erase);

  // For each key that is still at expected[i] and of which should_erase(i) says so: calls
  // on_erase(i), then removes it; all under the lock of its partition. Returns how many.
  using ShouldErase = absl::FunctionRef<bool(size_t i)>;
  using OnEraseAt = absl::FunctionRef<void(size_t i)>;
  int64_t EraseAt(std::span<const RowKey> keys, std::span<const SsdLocation> expected,
                  ShouldErase should_erase, OnEraseAt on_erase);

  // Calls visit for every row of a partition, in no particular order.
  using Visit = absl::FunctionRef<void(const RowKey& key, SsdLocation location)>;
  void ForEach(int64_t partition, Visit visit) const;

  // The image of a partition as it is now: a SsdIndexImageHeader, then its buckets in one piece,
  // which is empty when there are none. The caller adds checksums. The sink runs under the lock;
  // its error ends Save.
  using Sink = absl::FunctionRef<absl::Status(std::span<const std::byte> bytes)>;
  absl::Status Save(int64_t partition, Sink sink) const;

  // Replaces a partition by the one of an image that an index of equal options, but for the seed,
  // saved. An index without rows takes the image's seed, so no other call may run beside that; one
  // with rows must have the same. The source fills exactly the bytes it is asked for. Everything is
  // checked: geometry, counts, that each row is in its place and there once; so an image that Load
  // takes is a good index, if perhaps not the one that was saved. Errors: DataLoss (what does not
  // fit), ResourceExhausted, those of the source; after any of them the partition is as it was.
  using Source = absl::FunctionRef<absl::Status(std::span<std::byte> bytes)>;
  absl::Status Load(int64_t partition, Source source);

  int64_t partition_of(const RowKey& key) const;
  int64_t num_partitions() const { return int64_t{1} << partition_bits_; }
  int64_t rows() const { return rows_.load(std::memory_order_relaxed); }
  // What the index takes from the budget.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // The most that it takes with so many more rows, while the partitions grow one after the other.
  int64_t BytesMax(int64_t more_rows) const;
  // Slots of all partitions, free or not, and how often one was rebuilt since the index was made.
  int64_t slots() const { return slots_.load(std::memory_order_relaxed); }
  int64_t rebuilds() const { return rebuilds_.load(std::memory_order_relaxed); }
  const SsdIndexOptions& options() const { return options_; }
  uint64_t seed() const { return seed_; }  // that of the options, or of the image that was loaded

 private:
  struct Partition;
  class Buckets;

  SsdIndex(const SsdIndexOptions& options, MemoryBudget& budget);

  Partition& PartitionOf(uint64_t hash) const;
  void PrefetchBuckets(uint64_t hash) const;
  // Makes a free slot for a row in one of its buckets.
  absl::Status MakeRoom(Partition& partition, uint64_t q, uint32_t table);
  absl::Status Rebuild(Partition& partition, int* salts);
  void Replace(Partition& partition, Buckets buckets);
  void CheckLocation(SsdLocation location) const;
  // Calls body(partition, i, q) for each key under the exclusive lock of its partition, until it
  // returns false.
  template <typename Body>
  void ForKeys(std::span<const RowKey> keys, const Body& body);

  const SsdIndexOptions options_;
  MemoryBudget& budget_;
  uint64_t seed_;
  std::atomic<uint64_t> num_salts_{0};  // drawn so far
  const int partition_bits_;            // log2(P)
  const int q_bits_;                    // Q = 64 - log2(P)
  const uint64_t q_mask_;
  std::unique_ptr<Partition[]> partitions_;
  int64_t partitions_bytes_ = 0;  // taken from the budget for the array above
  std::atomic<int64_t> rows_{0};
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> slots_{0};
  std::atomic<int64_t> rebuilds_{0};
};

// What Save writes before the buckets. Little-endian, no padding.
struct SsdIndexImageHeader {
  static constexpr uint32_t kMagic = 0x32584948;  // "HIX2"
  uint32_t magic = kMagic;
  uint32_t partition = 0;
  uint32_t partition_bits = 0;
  uint32_t location_bits = 0;
  uint64_t num_tables = 0;
  uint64_t seed = 0;         // the same for all partitions that have rows
  uint64_t num_buckets = 0;  // 128 bytes each follow
  uint64_t rows = 0;
  uint64_t salt = 0;  // of this partition; 0 where none was needed
};
static_assert(sizeof(SsdIndexImageHeader) == 56);

// ------------------------------------------------------------ The bijections, for the index's
// tests

// The inverse of an odd number modulo 2^64. Newton's iteration: each round doubles the bits that
// are right, and an odd number is its own inverse modulo 8.
constexpr uint64_t InverseOfOdd(uint64_t odd) {
  uint64_t inverse = odd;
  for (int right_bits = 3; right_bits < 64; right_bits *= 2) inverse *= 2 - odd * inverse;
  return inverse;
}

// Mix64 backwards: x ^= x >> 33 is its own inverse, since 2 * 33 >= 64.
constexpr uint64_t Unmix64(uint64_t x) {
  x ^= x >> 33;
  x *= InverseOfOdd(0xc4ceb9fe1a85ec53ULL);
  x ^= x >> 33;
  x *= InverseOfOdd(0xff51afd7ed558ccdULL);
  x ^= x >> 33;
  return x;
}
static_assert(Unmix64(Mix64(0x0123456789abcdefULL)) == 0x0123456789abcdefULL);

// What a key of this table is xored with before it is mixed.
constexpr uint64_t SsdIndexTableSeed(uint64_t seed, uint32_t table) {
  return Mix64(seed + (static_cast<uint64_t>(table) + 1) * 0x9e3779b97f4a7c15ULL);
}

// A permutation of the numbers of `bits` bits, 32 <= bits <= 63: its top bits, which choose the
// second bucket, depend on all bits of q.
class SsdIndexScramble {
 public:
  constexpr explicit SsdIndexScramble(int bits)
      : mask_((uint64_t{1} << bits) - 1), shift_((bits + 1) / 2) {}

  constexpr uint64_t Apply(uint64_t q) const {
    q ^= q >> shift_;
    q = q * kMultiplier & mask_;
    return q ^ q >> shift_;
  }
  constexpr uint64_t Invert(uint64_t x) const {
    x ^= x >> shift_;
    x = x * kInverse & mask_;
    return x ^ x >> shift_;
  }

 private:
  static constexpr uint64_t kMultiplier = 0xd6e8feb86659fd93ULL;
  static constexpr uint64_t kInverse = InverseOfOdd(kMultiplier);
  uint64_t mask_;
  int shift_;  // at least half of bits, so that the xor is its own inverse
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_INDEX_IMPL_H_
