#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/status_macros.h"
#include "base/warp.h"
#include "cache/row_cache_cuda_impl.h"
#include "cache/row_cache_impl.h"
#include "cache/row_cache_kernels_impl.cuh"

namespace hotrow::cache {
namespace {

absl::Status Launched(const char* call) {
  return CudaToStatus(cudaGetLastError(), absl::StrCat("RowCache::", call, ": kernel launch"));
}

absl::Status WaitFor(const ExecContext& ctx, const char* call) {
  return CudaToStatus(cudaStreamSynchronize(ctx.stream), absl::StrCat("RowCache::", call));
}

void CheckContext(const ExecContext& ctx) {
  HOTROW_CHECK(ctx.device == Device::kCuda && ctx.stream != nullptr);
}

InsertView ViewOf(const RowCache::InsertResult& result) {
  return {result.slots.data(), result.placement.data(), result.evicted.data(),
          result.evicted_keys.data(), result.evicted_rows};
}

// Calls visit(position of a set bit) in order, until it says false.
template <typename Visit>
void ForEachBit(const uint32_t* masks, int64_t words, Visit&& visit) {
  for (int64_t w = 0; w < words; ++w) {
    for (uint32_t rest = masks[w]; rest != 0; rest &= rest - 1) {
      if (!visit(w * 32 + HostWarp::FirstLane(rest))) return;
    }
  }
}

// The container in device memory. Any thread of the GPU may work on any bucket.
class CudaRowCache : public RowCache {
 public:
  static absl::StatusOr<std::unique_ptr<CudaRowCache>> Create(const RowCacheOptions& options);

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
  CudaRowCache(const RowCacheOptions& options, const Geometry& geometry)
      : RowCache(options), geometry_(geometry), staging_(options.row_bytes) {}

  int64_t Words() const { return geometry_.TotalBuckets() * kWordsPerBucket; }
  template <typename Kernel, typename... More>
  absl::Status ForSlots(const ExecContext& ctx, const char* call, Kernel* kernel,
                        std::span<const int64_t> slots, More... more);
  // Copies what list_[0, n) names, and waits until that is done and list_ is free again.
  absl::Status Take(const ExecContext& ctx, const char* call, Taking taking, int64_t n,
                    const int64_t* slots, RowKey* keys, int64_t* taken_slots, std::byte* rows);

  Geometry geometry_;
  CudaStaging staging_;
  CacheView view_ = {};
  int64_t gpu_warps_ = 0;                            // that run at a time
  std::unique_ptr<void, Destroy<cudaFree>> memory_;  // laid out as CudaLayout says

  // Page-locked, of the calls that wait.
  PinnedBuffer<uint32_t> masks_;
  PinnedBuffer<int64_t> list_;
  PinnedBuffer<RowKey> dirty_keys_;
  PinnedBuffer<std::byte> dirty_rows_;
  mutable std::mutex stats_mutex_;  // Stats may run beside itself
  mutable PinnedBuffer<PartitionState> stats_;
  PinnedBuffer<PartitionState> last_stats_;  // of EnqueueStats
};

absl::StatusOr<std::unique_ptr<CudaRowCache>> CudaRowCache::Create(const RowCacheOptions& options) {
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  const Geometry geometry =
      Geometry::ForBudget(options.budget_bytes, options.row_bytes, Device::kCuda);
  const CudaLayout layout(geometry, options.row_bytes);
  std::unique_ptr<CudaRowCache> cache(new CudaRowCache(options, geometry));
  const CudaStaging& staging = cache->staging_;
  HOTROW_ASSIGN_OR_RETURN(cache->masks_, PinnedBuffer<uint32_t>::Create(staging.mask_words));
  HOTROW_ASSIGN_OR_RETURN(cache->list_, PinnedBuffer<int64_t>::Create(staging.list));
  HOTROW_ASSIGN_OR_RETURN(cache->dirty_keys_, PinnedBuffer<RowKey>::Create(staging.rows));
  HOTROW_ASSIGN_OR_RETURN(cache->dirty_rows_,
                          PinnedBuffer<std::byte>::Create(staging.rows * options.row_bytes));
  HOTROW_ASSIGN_OR_RETURN(cache->stats_, PinnedBuffer<PartitionState>::Create(1));
  HOTROW_ASSIGN_OR_RETURN(cache->last_stats_, PinnedBuffer<PartitionState>::Create(1));
  cache->last_stats_[0] = PartitionState();

  int device = 0;
  int processors = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  cache->gpu_warps_ = int64_t{processors} * kProcessorWarps;

  // One separate allocation, not from the pool of stream-ordered memory, which takes more from
  // the device than it is asked for.
  void* memory = nullptr;
  HOTROW_RETURN_IF_ERROR(
      CudaToStatus(cudaMalloc(&memory, static_cast<size_t>(layout.bytes)),
                   absl::StrCat("RowCacheOptions.budget_bytes = ", options.budget_bytes,
                                ": cudaMalloc of ", layout.bytes, " bytes")));
  cache->memory_.reset(memory);
  auto* const base = static_cast<std::byte*>(memory);
  cache->rows_ = base + layout.rows;
  cache->num_slots_ = geometry.TotalBuckets() * kWays;
  cache->view_ = {.rows = cache->rows_,
                  .buckets = reinterpret_cast<Bucket*>(base + layout.buckets),
                  .partitions = reinterpret_cast<PartitionState*>(base + layout.partitions),
                  .counters = reinterpret_cast<CudaCounters*>(base + layout.counters),
                  .map = PartitionMap(geometry),
                  .row_bytes = options.row_bytes,
                  .num_slots = cache->num_slots_,
                  .policy = options.policy,
                  .rule = ScoresOf(options.policy),
                  .spares_rows = SparesRows(options.policy),
                  .ages_by_touches = AgesByTouches(options.policy)};

  std::vector<PartitionState> partitions;
  for (int64_t p = 0; p < geometry.partitions; ++p) {
    partitions.push_back(EmptyPartition(geometry, p, cache->view_.map.FirstBucket(p)));
  }
  HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
  // Metadata lies behind the rows; rows begin with what the memory held.
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
      base + layout.buckets, 0, static_cast<size_t>(layout.bytes - layout.buckets), stream.get()));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(cache->view_.partitions, partitions.data(),
                                              partitions.size() * sizeof(PartitionState),
                                              cudaMemcpyHostToDevice, stream.get()));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream.get()));
  return cache;
}

absl::Status CudaRowCache::Find(const ExecContext& ctx, std::span<const RowKey> keys,
                                std::span<std::byte*> rows) const {
  CheckContext(ctx);
  HOTROW_CHECK(rows.size() == keys.size());
  if (keys.empty()) return absl::OkStatus();
  const int64_t n = std::ssize(keys);
  FindKernel<<<BlocksFor(n), kBlockThreads, 0, ctx.stream>>>(view_, keys.data(), n, rows.data());
  return Launched("Find");
}

absl::Status CudaRowCache::FindRows(const ExecContext& ctx, std::span<const RowKey> keys,
                                    std::byte* out, int64_t out_stride,
                                    std::span<uint8_t> found) const {
  CheckContext(ctx);
  CheckFindRows(keys, out, out_stride, found, row_bytes());
  if (keys.empty()) return absl::OkStatus();
  const int64_t n = std::ssize(keys);
  const WarpRuns runs = RunsFor(n, gpu_warps_);
  FindRowsKernel<<<runs.blocks, kBlockThreads, 0, ctx.stream>>>(view_, keys.data(), n, runs, out,
                                                                out_stride, found.data());
  return Launched("FindRows");
}

absl::Status CudaRowCache::FindOrInsert(const ExecContext& ctx, std::span<const RowKey> keys,
                                        const InsertResult& result) {
  // All hits are pinned before the first miss is placed: otherwise a miss could evict a row that
  // another key of the same batch asks for.
  HOTROW_RETURN_IF_ERROR(PinHits(ctx, keys, result));
  return PlaceMisses(ctx, keys, result);
}

absl::Status CudaRowCache::PinHits(const ExecContext& ctx, std::span<const RowKey> keys,
                                   const InsertResult& result) {
  CheckContext(ctx);
  CheckPinResult(keys, result);
  if (keys.empty()) return absl::OkStatus();
  const int64_t n = std::ssize(keys);
  PinHitsKernel<<<BlocksFor(n), kBlockThreads, 0, ctx.stream>>>(view_, keys.data(), n,
                                                                ViewOf(result));
  return Launched("PinHits");
}

absl::Status CudaRowCache::PlaceMisses(const ExecContext& ctx, std::span<const RowKey> keys,
                                       const InsertResult& result) {
  CheckContext(ctx);
  CheckInsertResult(keys, result);
  if (keys.empty()) return absl::OkStatus();
  const int64_t n = std::ssize(keys);
  const WarpRuns runs = RunsFor(n, gpu_warps_, kMaxRunKeys);
  PlaceMissesKernel<<<runs.blocks, kBlockThreads, 0, ctx.stream>>>(view_, keys.data(), n, runs,
                                                                   ViewOf(result));
  return Launched("PlaceMisses");
}

// Launches a kernel that takes the cache, slots, their number and `more`.
template <typename Kernel, typename... More>
absl::Status CudaRowCache::ForSlots(const ExecContext& ctx, const char* call, Kernel* kernel,
                                    std::span<const int64_t> slots, More... more) {
  CheckContext(ctx);
  if (slots.empty()) return absl::OkStatus();
  const int64_t n = std::ssize(slots);
  kernel<<<BlocksFor(n), kBlockThreads, 0, ctx.stream>>>(view_, slots.data(), n, more...);
  return Launched(call);
}

absl::Status CudaRowCache::MarkFilled(const ExecContext& ctx, std::span<const int64_t> slots) {
  return ForSlots(ctx, "MarkFilled", MarkFilledKernel, slots);
}

absl::Status CudaRowCache::Abandon(const ExecContext& ctx, std::span<const int64_t> slots) {
  return ForSlots(ctx, "Abandon", AbandonKernel, slots);
}

absl::Status CudaRowCache::Unpin(const ExecContext& ctx, std::span<const int64_t> slots,
                                 bool dirty) {
  return ForSlots(ctx, "Unpin", UnpinKernel, slots, dirty);
}

absl::Status CudaRowCache::MarkDirty(const ExecContext& ctx, std::span<const int64_t> slots) {
  return ForSlots(ctx, "MarkDirty", MarkDirtyKernel, slots);
}

absl::StatusOr<int64_t> CudaRowCache::MarkDirtyRows(const ExecContext& ctx) {
  CheckContext(ctx);
  uint64_t* const result = &view_.counters->result;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(result, 0, sizeof(*result), ctx.stream));
  MarkDirtyRowsKernel<<<ScanBlocksFor(Words(), gpu_warps_), kBlockThreads, 0, ctx.stream>>>(
      view_, Words());
  HOTROW_RETURN_IF_ERROR(Launched("MarkDirtyRows"));
  static_assert(sizeof(*result) == sizeof(list_[0]));
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(list_.data(), result, sizeof(*result), cudaMemcpyDeviceToHost, ctx.stream));
  HOTROW_RETURN_IF_ERROR(WaitFor(ctx, "MarkDirtyRows"));
  return list_[0];
}

absl::Status CudaRowCache::Take(const ExecContext& ctx, const char* call, Taking taking, int64_t n,
                                const int64_t* slots, RowKey* keys, int64_t* taken_slots,
                                std::byte* rows) {
  if (n == 0) return absl::OkStatus();
  const WarpRuns runs = RunsFor(n, gpu_warps_);
  TakeKernel<<<runs.blocks, kBlockThreads, 0, ctx.stream>>>(view_, taking, list_.data(), n, runs,
                                                            slots, keys, taken_slots, rows);
  HOTROW_RETURN_IF_ERROR(Launched(call));
  return WaitFor(ctx, call);
}

absl::StatusOr<int64_t> CudaRowCache::TakeMarks(const ExecContext& ctx,
                                                std::span<const int64_t> slots,
                                                std::span<RowKey> keys, std::byte* rows,
                                                int64_t* taken) {
  CheckContext(ctx);
  *taken = 0;
  const int64_t n = std::ssize(slots);
  const int64_t most = std::ssize(keys);
  int64_t looked = 0;
  while (looked < n && *taken < most) {
    const int64_t window = std::min(n - looked, staging_.mask_words * 32);
    const int64_t words = CeilDiv(window, 32);
    ScanSlotsKernel<<<BlocksFor(words * 32), kBlockThreads, 0, ctx.stream>>>(
        view_, slots.data() + looked, window, masks_.data());
    HOTROW_RETURN_IF_ERROR(Launched("TakeMarks"));
    HOTROW_RETURN_IF_ERROR(WaitFor(ctx, "TakeMarks"));
    // As many as one launch takes. When there are more, the window begins again behind the last.
    const int64_t room = std::min(most - *taken, staging_.list);
    int64_t chosen = 0;
    ForEachBit(masks_.data(), words, [&](int64_t position) {
      list_[chosen++] = position;
      return chosen < room;
    });
    HOTROW_RETURN_IF_ERROR(Take(ctx, "TakeMarks", Taking::kMakeDirty, chosen, slots.data() + looked,
                                keys.data() + *taken, nullptr, rows + *taken * row_bytes()));
    looked += chosen == room ? list_[chosen - 1] + 1 : window;
    *taken += chosen;
  }
  return looked;
}

absl::StatusOr<int64_t> CudaRowCache::TakeMarked(const ExecContext& ctx, int64_t* cursor,
                                                 std::span<RowKey> keys, std::span<int64_t> slots,
                                                 std::byte* rows) {
  CheckContext(ctx);
  HOTROW_CHECK(slots.size() == keys.size() && *cursor >= 0);
  const int64_t most = std::ssize(keys);
  const int64_t end = std::min(num_slots_, *cursor + kMarkedScanSlots);
  int64_t taken = 0;
  while (*cursor < end && taken < most) {
    // Whole buckets, of which the first may begin before the cursor and the last end behind `end`.
    const int64_t first = *cursor / kWays;
    const int64_t count = std::min(CeilDiv(end, kWays) - first, staging_.mask_words);
    const int64_t window_end = std::min(end, (first + count) * kWays);
    ScanBucketsKernel<<<BlocksFor(count * kWarpThreads), kBlockThreads, 0, ctx.stream>>>(
        view_, kMarked, first, count, masks_.data());
    HOTROW_RETURN_IF_ERROR(Launched("TakeMarked"));
    HOTROW_RETURN_IF_ERROR(WaitFor(ctx, "TakeMarked"));
    const int64_t room = std::min(most - taken, staging_.list);
    int64_t chosen = 0;
    ForEachBit(masks_.data(), count, [&](int64_t position) {
      const int64_t slot = first * kWays + position;
      if (slot < *cursor) return true;
      if (slot >= window_end) return false;
      list_[chosen++] = slot;
      return chosen < room;
    });
    HOTROW_RETURN_IF_ERROR(Take(ctx, "TakeMarked", Taking::kPin, chosen, nullptr,
                                keys.data() + taken, slots.data() + taken,
                                rows + taken * row_bytes()));
    *cursor = chosen == room ? list_[chosen - 1] + 1 : window_end;
    taken += chosen;
  }
  return taken;
}

absl::Status CudaRowCache::DropMarks(const ExecContext& ctx) {
  CheckContext(ctx);
  DropMarksKernel<<<ScanBlocksFor(Words(), gpu_warps_), kBlockThreads, 0, ctx.stream>>>(view_,
                                                                                        Words());
  return Launched("DropMarks");
}

absl::Status CudaRowCache::EndStep(const ExecContext& ctx) {
  CheckContext(ctx);
  const int blocks = static_cast<int>(std::min(geometry_.partitions, kMaxBlocks));
  WithPolicy(options_.policy, [&](auto formula) {
    AgeKernel<decltype(formula)>
        <<<blocks, kBlockThreads, 0, ctx.stream>>>(view_, geometry_.partitions);
  });
  return Launched("EndStep");
}

absl::Status CudaRowCache::ForEachDirty(
    const ExecContext& ctx, absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                                           std::span<const std::byte* const> rows)>
                                visit) {
  CheckContext(ctx);
  std::vector<const std::byte*> rows;
  for (int64_t i = 0; i < staging_.rows; ++i) {
    rows.push_back(dirty_rows_.data() + i * row_bytes());
  }
  const int64_t most = std::min(staging_.rows, staging_.list);
  const auto hand_out = [&](int64_t n) -> absl::Status {
    if (n == 0) return absl::OkStatus();
    HOTROW_RETURN_IF_ERROR(Take(ctx, "ForEachDirty", Taking::kLeave, n, nullptr, dirty_keys_.data(),
                                nullptr, dirty_rows_.data()));
    const auto count = static_cast<size_t>(n);
    HOTROW_RETURN_IF_ERROR(visit(dirty_keys_.span().first(count), std::span(rows).first(count)));
    ClearDirtyKernel<<<BlocksFor(n), kBlockThreads, 0, ctx.stream>>>(view_, list_.data(), n);
    HOTROW_RETURN_IF_ERROR(Launched("ForEachDirty"));
    return WaitFor(ctx, "ForEachDirty");  // then list_ may change
  };
  // list_ fills over the windows, so that batches are full where dirty rows are few.
  int64_t n = 0;
  const int64_t total = geometry_.TotalBuckets();
  for (int64_t first = 0; first < total; first += staging_.mask_words) {
    const int64_t count = std::min(total - first, staging_.mask_words);
    ScanBucketsKernel<<<BlocksFor(count * kWarpThreads), kBlockThreads, 0, ctx.stream>>>(
        view_, kDirty, first, count, masks_.data());
    HOTROW_RETURN_IF_ERROR(Launched("ForEachDirty"));
    HOTROW_RETURN_IF_ERROR(WaitFor(ctx, "ForEachDirty"));
    absl::Status status;
    ForEachBit(masks_.data(), count, [&](int64_t position) {
      list_[n++] = first * kWays + position;
      if (n < most) return true;
      status.Update(hand_out(n));
      n = 0;
      return status.ok();
    });
    HOTROW_RETURN_IF_ERROR(status);
  }
  return hand_out(n);
}

RowCacheStats CudaRowCache::Size() const { return SizeOf(geometry_, row_bytes(), Device::kCuda); }

absl::StatusOr<RowCacheStats> CudaRowCache::Stats(const ExecContext& ctx) const {
  CheckContext(ctx);
  RowCacheStats stats = Size();
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  SumCountersKernel<<<1, kBlockThreads, 0, ctx.stream>>>(view_, geometry_.partitions,
                                                         stats_.data());
  HOTROW_RETURN_IF_ERROR(Launched("Stats"));
  HOTROW_RETURN_IF_ERROR(WaitFor(ctx, "Stats"));
  AddCounts(stats_[0], &stats);
  return stats;
}

absl::Status CudaRowCache::EnqueueStats(const ExecContext& ctx) {
  CheckContext(ctx);
  SumCountersKernel<<<1, kBlockThreads, 0, ctx.stream>>>(view_, geometry_.partitions,
                                                         last_stats_.data());
  return Launched("EnqueueStats");
}

RowCacheStats CudaRowCache::LastStats() const {
  RowCacheStats stats = Size();
  // The kernel may be writing it.
  PartitionState counts;
  std::memcpy(&counts, last_stats_.data(), sizeof(counts));
  AddCounts(counts, &stats);
  return stats;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowCache>> CreateCudaRowCache(const RowCacheOptions& options) {
  return CudaRowCache::Create(options);
}

}  // namespace hotrow::cache
