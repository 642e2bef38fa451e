#ifndef HOTROW_EMBEDDING_SERVING_COPY_CACHE_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_COPY_CACHE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/row_key.h"
#include "embedding/serving/budget_share_impl.h"

namespace hotrow::internal {

// CopyCache holds rows of one width that lie on a disk as well. It copies rows in and out, so no
// reader holds one, and a shard's lock is held for a copy.
//
// Policy:  CLOCK with a count of up to 3 for each row: a row that is found counts up; the hand
//          counts rows down and takes the place of the first that stands at 0. A new row begins at
//          0, so one that is read once does not drive out those that are read again and again.
// Shards:  up to 64, each with a lock, by the key's hash, which is salted.
// Threads: all methods, any number.
// Budget:  all of it, taken in Create, but for the locks, 64 bytes a shard.
class CopyCache {
 public:
  // As many rows as fit into `bytes`, rows_max at most; there may be none.
  static absl::StatusOr<std::unique_ptr<CopyCache>> Create(int64_t row_bytes, int64_t bytes,
                                                           int64_t rows_max, BudgetShare* share);
  ~CopyCache();

  // Copies the row of a key to `row`; false: it is not here.
  bool Find(const RowKey& key, std::byte* row);
  // A row that does not differ from what is here of its key.
  void Insert(const RowKey& key, const std::byte* row);
  // Gives a key that is here another row, and forgets those keys that `call` is true of, while
  // nobody finds or inserts any of them.
  void Replace(const RowKey& key, const std::byte* row);
  void ForgetIf(absl::FunctionRef<bool(const RowKey& key)> call);

  int64_t capacity_rows() const { return static_cast<int64_t>(num_shards_) * slots_; }
  int64_t num_shards() const { return static_cast<int64_t>(num_shards_); }
  int64_t slots() const { return slots_; }  // of a shard
  // Calls for the keys of a shard's rows in slots [begin, end), with their counts. Readers of the
  // shard wait meanwhile, so a caller takes a thousand slots at a time.
  static constexpr uint32_t kUsesMax = 3;
  void ForEach(int64_t shard, int64_t begin, int64_t end,
               absl::FunctionRef<void(const RowKey& key, uint32_t uses)> call);

 private:
  struct Slot {
    uint64_t key;
    uint32_t table;
    uint32_t state;  // 0: free; otherwise 1 and its count
  };
  struct alignas(64) Shard {
    std::mutex mutex;
    int64_t hand = 0;
    std::byte* memory = nullptr;  // rows, then slots, then the index
  };

  CopyCache(int64_t row_bytes, BudgetShare* share);
  static int64_t IndexSize(int64_t slots);
  static int64_t ShardBytes(int64_t stride, int64_t slots);
  uint64_t HashOf(const RowKey& key) const;
  Shard& ShardOf(uint64_t hash) { return shards_[hash >> 32 & (num_shards_ - 1)]; }
  std::byte* RowOf(const Shard& shard, int64_t slot) const { return shard.memory + slot * stride_; }
  Slot* SlotsOf(const Shard& shard) const {
    return reinterpret_cast<Slot*>(shard.memory + slots_ * stride_);
  }
  // The index, of 1 + a slot's number; 0: free. Open addressing; the lower half of the hash says
  // where.
  uint32_t* IndexOf(const Shard& shard) const {
    return reinterpret_cast<uint32_t*>(SlotsOf(shard) + slots_);
  }
  // The place of a key in the index, or the free place where it would stand.
  int64_t PlaceOf(const Shard& shard, const RowKey& key, uint64_t hash) const;
  void Unlink(const Shard& shard, int64_t slot);

  const int64_t row_bytes_;
  const int64_t stride_;
  const uint64_t salt_;
  BudgetShare* const share_;
  uint64_t num_shards_ = 0;  // a power of two, or none
  int64_t slots_ = 0;        // of a shard
  uint64_t mask_ = 0;        // of its index
  HostBuffer<std::byte> memory_;
  std::unique_ptr<Shard[]> shards_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_COPY_CACHE_IMPL_H_
