#ifndef HOTROW_CACHE_ROW_CACHE_CPU_IMPL_H_
#define HOTROW_CACHE_ROW_CACHE_CPU_IMPL_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "cache/row_cache_impl.h"

namespace hotrow {

struct RowCacheTestPeer;  // reads metadata (tests/cache)

namespace cache {

// A key on its way through a batch: 16 bytes of scratch.
struct Probe {
  uint32_t bucket1;  // within the partition
  uint32_t bucket2;
  uint32_t index;  // position in the batch
  uint32_t tag;
};
static_assert(sizeof(Probe) == 16);

// The container in host memory: a thread owns whole partitions, so there are no locks and the same
// calls give the same bytes on any number of threads.
class CpuRowCache : public RowCache {
 public:
  static absl::StatusOr<std::unique_ptr<CpuRowCache>> Create(const RowCacheOptions& options);

  absl::Status Find(const ExecContext& ctx, std::span<const RowKey> keys,
                    std::span<std::byte*> rows) const override;
  absl::Status FindRows(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* out,
                        int64_t out_stride, std::span<uint8_t> found) const override;
  absl::Status FindOrInsert(const ExecContext& ctx, std::span<const RowKey> keys,
                            const InsertResult& result) override;
  absl::Status PinHits(const ExecContext& ctx, std::span<const RowKey> keys,
                       const InsertResult& result) override;
  absl::Status PlaceMisses(const ExecContext& ctx, std::span<const RowKey> keys,
                           const InsertResult& result) override;
  absl::Status MarkFilled(const ExecContext& ctx, std::span<const int64_t> slots) override;
  absl::Status Abandon(const ExecContext& ctx, std::span<const int64_t> slots) override;
  absl::Status Unpin(const ExecContext& ctx, std::span<const int64_t> slots, bool dirty) override;
  absl::Status MarkDirty(const ExecContext& ctx, std::span<const int64_t> slots) override;
  absl::StatusOr<int64_t> MarkDirtyRows(const ExecContext& ctx) override;
  absl::StatusOr<int64_t> TakeMarks(const ExecContext& ctx, std::span<const int64_t> slots,
                                    std::span<RowKey> keys, std::byte* rows,
                                    int64_t* taken) override;
  absl::StatusOr<int64_t> TakeMarked(const ExecContext& ctx, int64_t* cursor,
                                     std::span<RowKey> keys, std::span<int64_t> slots,
                                     std::byte* rows) override;
  absl::Status DropMarks(const ExecContext& ctx) override;
  absl::Status EndStep(const ExecContext& ctx) override;
  absl::Status ForEachDirty(const ExecContext& ctx,
                            absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                                           std::span<const std::byte* const> rows)>
                                visit) override;
  RowCacheStats Size() const override;
  absl::StatusOr<RowCacheStats> Stats(const ExecContext& ctx) const override;
  absl::Status EnqueueStats(const ExecContext& ctx) override;
  RowCacheStats LastStats() const override;

 private:
  friend struct hotrow::RowCacheTestPeer;
  explicit CpuRowCache(const RowCacheOptions& options) : RowCache(options) {}

  // The state byte of a slot that a caller named.
  uint8_t& State(int64_t slot);

  int64_t PartitionOf(const RowHash& hash) const {
    return hash.partition(static_cast<uint64_t>(geometry_.partitions));
  }
  Probe MakeProbe(const RowHash& hash, const PartitionState& partition, int64_t index) const;
  // The slot of a key, -1 when it is not resident.
  int64_t FindSlot(const PartitionState& partition, const Probe& probe, RowKey key) const;

  void FindChunk(std::span<const RowKey> keys, std::span<std::byte*> rows) const;
  void SortByPartition(const ExecContext& ctx, std::span<const RowKey> keys);
  // Calls visit(partition, its probes) for all partitions that have some, side by side.
  template <typename Visit>
  void ForPartitions(const ExecContext& ctx, const Visit& visit);
  int64_t PinHits(PartitionState& partition, std::span<const RowKey> keys, std::span<Probe> probes,
                  const InsertResult& result);
  void PlaceMisses(PartitionState& partition, std::span<const RowKey> keys,
                   std::span<const Probe> probes, const InsertResult& result);
  int64_t PickSlot(PartitionState& partition, const Probe& probe);
  int64_t PickOverflowSlot(PartitionState& partition);
  void Evict(PartitionState& partition, int64_t slot, int64_t index, const InsertResult& result);
  void SpareRows(Bucket& bucket, int way);

  ScoreRule rule_;
  bool spares_rows_ = false;
  Geometry geometry_;
  HostBuffer<Bucket> buckets_;  // of all partitions, overflow included
  HostBuffer<std::byte> slab_;  // 32 rows a bucket
  HostBuffer<PartitionState> partitions_;
  mutable std::mutex last_stats_mutex_;
  std::optional<RowCacheStats> last_stats_;

  // Scratch of FindOrInsert and PinHits; grows to the largest batch.
  std::vector<Probe> probes_;               // sorted by partition, batch order within one
  std::vector<int64_t> partition_begin_;    // [partitions + 1] into probes_
  std::vector<uint32_t> chunk_partitions_;  // [chunks, partitions] counts, then offsets
};

}  // namespace cache
}  // namespace hotrow

#endif  // HOTROW_CACHE_ROW_CACHE_CPU_IMPL_H_
