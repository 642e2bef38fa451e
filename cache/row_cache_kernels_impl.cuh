#ifndef HOTROW_CACHE_ROW_CACHE_KERNELS_IMPL_CUH_
#define HOTROW_CACHE_ROW_CACHE_KERNELS_IMPL_CUH_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cuda/atomic>

#include "base/warp.cuh"
#include "cache/cache_policy_impl.h"
#include "cache/row_cache_cuda_impl.h"
#include "cache/row_cache_impl.h"

// The kernels of the container in device memory, which row_cache_cuda.cu alone includes: it owns
// the memory and says which kernels make up a call. All in one translation unit, since they share
// device functions for locks, probes and eviction, which the compiler inlines only there.
// cache/README.md says how they divide the work.

// HOTROW_CHECK on a GPU: prints the condition and its place and ends the kernel; whoever waits for
// the stream gets cudaErrorAssert. Not assert(), which release builds leave out.
#define HOTROW_DEVICE_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : __assert_fail(#condition, __FILE__, __LINE__, "RowCache"))

namespace hotrow::cache {
namespace {

constexpr uint32_t kAllLanes = CudaWarp::kAllLanes;
constexpr int kWays = Bucket::kWays;

// What kernels get of a cache.
struct CacheView {
  std::byte* rows;
  Bucket* buckets;
  uint32_t* locks;  // one a bucket; that of a partition's first overflow bucket is for all of them
  PartitionState* partitions;
  CudaCounters* counters;
  PartitionMap map;
  int64_t row_bytes;
  int64_t num_slots;
  CachePolicy policy;
  ScoreRule rule;
  bool spares_rows;
};

__device__ __forceinline__ int64_t WarpIndex() {
  return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarpThreads;
}
__device__ __forceinline__ int64_t NumWarps() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x / kWarpThreads;
}
__device__ __forceinline__ int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t NumThreads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

// Two's complement, so that a negative number is subtracted.
__device__ __forceinline__ void AtomicAdd(int64_t* sum, int64_t number) {
  static_assert(sizeof(unsigned long long) == sizeof(int64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(number));
}
__device__ __forceinline__ void AtomicAdd(uint64_t* sum, int64_t number) {
  AtomicAdd(reinterpret_cast<int64_t*>(sum), number);
}

__device__ __forceinline__ uint8_t& StateOf(const CacheView& cache, int64_t slot) {
  HOTROW_DEVICE_CHECK(slot >= 0 && slot < cache.num_slots);
  return cache.buckets[slot / kWays].state[slot % kWays];
}

constexpr int kWordsPerBucket = Bucket::kWays / static_cast<int>(sizeof(uint32_t));

__device__ __forceinline__ uint32_t* WordsOf(uint8_t* bytes) {
  return reinterpret_cast<uint32_t*>(bytes);  // parts of a Bucket, 32-byte aligned
}

// ---- Finding

// The slot of a key, -1 when it is not resident. One thread.
__device__ int64_t FindSlot(const CacheView& cache, const Home& home, uint64_t key,
                            uint32_t table) {
  int way = FindWay<CudaThread>(cache.buckets[home.bucket1], home.tag, key, table);
  if (way >= 0) return home.bucket1 * kWays + way;
  way = FindWay<CudaThread>(cache.buckets[home.bucket2], home.tag, key, table);
  if (way >= 0) return home.bucket2 * kWays + way;
  const PartitionState& partition = cache.partitions[home.partition];
  const int64_t overflow = partition.first_bucket + partition.buckets;
  const int32_t span = partition.overflow_span;
  for (int32_t b = 0; b < span; ++b) {
    way = FindWay<CudaThread>(cache.buckets[overflow + b], home.tag, key, table);
    if (way >= 0) return (overflow + b) * kWays + way;
  }
  return -1;
}

// The same, -1 also when its bytes are not there yet. `filling`: there are such rows; when there
// are none, the line with the state is not read.
__device__ __forceinline__ int64_t FindFilledSlot(const CacheView& cache, const RowKey& key,
                                                  bool filling) {
  const int64_t slot = FindSlot(cache, HomeOf(cache.map, key.key, key.table), key.key, key.table);
  if (slot < 0 || !filling) return slot;
  return (cache.buckets[slot / kWays].state[slot % kWays] & kFilling) != 0 ? -1 : slot;
}

// Rows that a warp has on their way at a time.
constexpr int kRowsInFlight = 4;

// Copies the row of slot i of each lane i < count, unless it is -1, to `out` + i * out_stride. The
// whole warp, 16 bytes a lane and access.
__device__ __forceinline__ void CopyRows(const CacheView& cache, int64_t slot, int count,
                                         std::byte* out, int64_t out_stride) {
  const int lane = CudaWarp::Lane();
  const int64_t chunks = cache.row_bytes / static_cast<int64_t>(sizeof(uint4));
  const int lanes_per_row = LanesPerRow(chunks);
  const int rows_per_pass = kWarpThreads / lanes_per_row;
  const int row_in_pass = lane / lanes_per_row;
  const int first_chunk = lane % lanes_per_row;
  for (int base = 0; base < count; base += rows_per_pass * kRowsInFlight) {
    int64_t from[kRowsInFlight];
#pragma unroll
    for (int u = 0; u < kRowsInFlight; ++u) {
      const int row = base + u * rows_per_pass + row_in_pass;
      const int64_t theirs = __shfl_sync(kAllLanes, slot, row % kWarpThreads);
      from[u] = row < count ? theirs : -1;
    }
    // No votes below: lanes may leave this loop at different turns.
    for (int64_t chunk = first_chunk; chunk < chunks; chunk += lanes_per_row) {
      uint4 piece[kRowsInFlight];
#pragma unroll
      for (int u = 0; u < kRowsInFlight; ++u) {
        if (from[u] < 0) continue;
        piece[u] = reinterpret_cast<const uint4*>(cache.rows + from[u] * cache.row_bytes)[chunk];
      }
#pragma unroll
      for (int u = 0; u < kRowsInFlight; ++u) {
        if (from[u] < 0) continue;
        const int64_t row = base + u * rows_per_pass + row_in_pass;
        reinterpret_cast<uint4*>(out + row * out_stride)[chunk] = piece[u];
      }
    }
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    FindKernel(const CacheView cache, const RowKey* keys, int64_t n, std::byte** rows) {
  const bool filling = cache.counters->filling != 0;
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    const int64_t slot = FindFilledSlot(cache, keys[i], filling);
    rows[i] = slot < 0 ? nullptr : cache.rows + slot * cache.row_bytes;
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    FindRowsKernel(const CacheView cache, const RowKey* keys, int64_t n, const WarpRuns runs,
                   std::byte* out, int64_t out_stride, uint8_t* found) {
  const int lane = CudaWarp::Lane();
  const bool filling = cache.counters->filling != 0;
  for (int64_t run = WarpIndex(); run < runs.runs; run += NumWarps()) {
    const int64_t begin = run * runs.keys_per_run;
    const int64_t left = n - begin;
    const int count = left < runs.keys_per_run ? static_cast<int>(left) : runs.keys_per_run;
    int64_t slot = -1;
    if (lane < count) {
      slot = FindFilledSlot(cache, keys[begin + lane], filling);
      found[begin + lane] = slot < 0 ? 0 : 1;
    }
    __syncwarp();
    CopyRows(cache, slot, count, out + begin * out_stride, out_stride);
  }
}

// ---- FindOrInsert: hits

// What the kernels of FindOrInsert write.
struct InsertView {
  int64_t* slots;
  Placement* placement;
  uint8_t* evicted;
  RowKey* evicted_keys;
  std::byte* evicted_rows;
};

// Lanes of `active` whose partition is that of this lane; all of `active` call together.
__device__ __forceinline__ uint32_t SamePartition(uint32_t active, int64_t partition) {
  return __match_any_sync(active, static_cast<unsigned long long>(partition));
}

// Pins the hits, so that no miss can evict one, and leaves slots[i] = -1 for the misses. A thread a
// key: keys are distinct, so each way that is changed has one writer.
__global__ void __launch_bounds__(kBlockThreads)
    PinHitsKernel(const CacheView cache, const RowKey* keys, int64_t n, const InsertView result) {
  const int lane = CudaWarp::Lane();
  for (int64_t begin = WarpIndex() * kWarpThreads; begin < n; begin += NumWarps() * kWarpThreads) {
    const int64_t i = begin + lane;
    const uint32_t active = __ballot_sync(kAllLanes, i < n);
    if (i < n) {
      const RowKey key = keys[i];
      const Home home = HomeOf(cache.map, key.key, key.table);
      const int64_t slot = FindSlot(cache, home, key.key, key.table);
      result.slots[i] = slot;
      if (slot >= 0) {
        Bucket& bucket = cache.buckets[slot / kWays];
        const int way = static_cast<int>(slot % kWays);
        HOTROW_DEVICE_CHECK((bucket.state[way] & kPinMask) < kMaxPins);
        TouchAndPin<CudaThread>(bucket, way, cache.rule);
        result.placement[i] = Placement::kHit;
        result.evicted[i] = 0;
      }
      const uint32_t same = SamePartition(active, home.partition);
      if (lane == CudaWarp::FirstLane(same)) {
        AtomicAdd(&cache.partitions[home.partition].touched_since_ageing,
                  CudaWarp::CountLanes(same));
      }
    }
    __syncwarp();
  }
}

// ---- FindOrInsert: misses

using DeviceLock = cuda::atomic_ref<uint32_t, cuda::thread_scope_device>;

__device__ __forceinline__ bool TryAcquire(uint32_t* lock) {
  uint32_t is_free = 0;
  return DeviceLock(*lock).compare_exchange_strong(is_free, 1, cuda::memory_order_acquire,
                                                   cuda::memory_order_relaxed);
}

// One lane takes the lock for its warp. Whoever holds it is running and waits for nothing but locks
// of higher buckets, so it will give it back: warps that spin lose time, never their turn for good.
// The barrier passes on to the other lanes what the acquiring lane has seen.
__device__ __forceinline__ void Acquire(uint32_t* lock) {
  if (CudaWarp::Lane() == 0) {
    for (unsigned pause_ns = 32; !TryAcquire(lock);
         pause_ns = pause_ns < 512 ? 2 * pause_ns : 512) {
      __nanosleep(pause_ns);
    }
  }
  __syncwarp();
}

// The locks of two buckets, lower < upper. Two lanes try both at once, which is what happens nearly
// always; when one is taken, the other is given back and both are waited for in order.
__device__ __forceinline__ void AcquirePair(uint32_t* lower, uint32_t* upper) {
  const int lane = CudaWarp::Lane();
  uint32_t* const mine = lane == 0 ? lower : upper;
  const bool got = lane < 2 && TryAcquire(mine);
  const uint32_t both = __ballot_sync(kAllLanes, got);
  if (both == 3) {
    __syncwarp();
    return;
  }
  if (got) DeviceLock(*mine).store(0, cuda::memory_order_release);
  __syncwarp();
  Acquire(lower);
  Acquire(upper);
}

// What all lanes have stored comes before the release. `second` may be `first`.
__device__ __forceinline__ void Release(uint32_t* first, uint32_t* second) {
  __syncwarp();
  if (CudaWarp::Lane() == 0) {
    cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device);
    DeviceLock(*first).store(0, cuda::memory_order_relaxed);
    if (second != first) DeviceLock(*second).store(0, cuda::memory_order_relaxed);
  }
  __syncwarp();
}

// Asks for the line of an address ahead of time.
__device__ __forceinline__ void PrefetchL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// What became of a miss; equal in all lanes.
struct Placed {
  int64_t slot = -1;
  RowKey evicted_key;
  uint8_t evicted = 0;    // kEvictedDirty, kEvictedMarked
  bool replaced = false;  // there was a row
  bool overflow = false;
};

// Moves the scores of the rows that stay in a bucket whose lock the warp holds; `victim` is the
// score of the row that leaves. A lane a word.
__device__ __forceinline__ void SpareRows(CachePolicy policy, Bucket& bucket, uint8_t victim) {
  const int lane = CudaWarp::Lane();
  if (lane < kWordsPerBucket) {
    uint32_t& scores = WordsOf(bucket.score)[lane];
    WithPolicy(policy,
               [&](auto formula) { scores = decltype(formula)::SpareFour(scores, victim); });
  }
  __syncwarp();
}

// Puts the key into a way whose bucket's lock the warp holds, and notes whom it replaces. The row
// itself stays where it is: the new one's bytes come after this kernel, so the old ones are copied
// when the lock is free again.
__device__ __forceinline__ void PlaceAt(const CacheView& cache, int64_t bucket_index, int way,
                                        uint8_t tag, const RowKey& key, Placed* placed) {
  Bucket& bucket = cache.buckets[bucket_index];
  placed->slot = bucket_index * kWays + way;
  placed->replaced = bucket.tag[way] != 0;
  const uint8_t score = bucket.score[way];
  if (placed->replaced) {
    const bool marked = bucket.mark[way] != 0;
    const bool dirty = (bucket.state[way] & kDirty) != 0;
    placed->evicted = marked ? kEvictedMarked : dirty ? kEvictedDirty : 0;
    if (placed->evicted != 0) placed->evicted_key = {bucket.key[way], bucket.table[way]};
  }
  __syncwarp();  // all lanes have read what one lane now overwrites
  if (placed->replaced && cache.spares_rows) SpareRows(cache.policy, bucket, score);
  Place<CudaWarp>(bucket, way, tag, key.key, key.table, cache.rule);
}

// The same choice as on the CPU: the first empty way, else the lowest score.
__device__ Placed PlaceInOverflow(const CacheView& cache, int64_t partition_index, uint8_t tag,
                                  const RowKey& key) {
  Placed placed;
  PartitionState& partition = cache.partitions[partition_index];
  const int64_t begin = partition.first_bucket + partition.buckets;
  const int32_t count = partition.overflow_buckets;
  Acquire(&cache.locks[begin]);
  int64_t at = -1;
  int at_way = -1;
  for (int32_t b = 0; b < count && at < 0; ++b) {
    const uint32_t free = FreeMask<CudaWarp>(cache.buckets[begin + b]);
    if (free == 0) continue;
    at = begin + b;
    at_way = CudaWarp::FirstLane(free);
    CudaWarp::Once([&] {
      if (partition.overflow_span < b + 1) partition.overflow_span = b + 1;
      ++partition.overflow_used;
    });
  }
  if (at < 0) {
    int lowest_score = 256;
    for (int32_t b = 0; b < count; ++b) {
      const Bucket& bucket = cache.buckets[begin + b];
      const WayScore victim = CudaWarp::MinByte(bucket.score, UnpinnedMask<CudaWarp>(bucket));
      if (victim.way < 0 || victim.score >= lowest_score) continue;
      lowest_score = victim.score;
      at = begin + b;
      at_way = victim.way;
    }
  }
  if (at >= 0) {
    placed.overflow = true;
    PlaceAt(cache, at, at_way, tag, key, &placed);
  }
  Release(&cache.locks[begin], &cache.locks[begin]);
  return placed;
}

// Gives a way to a key that is not resident. The whole warp.
__device__ __forceinline__ Placed PlaceMiss(const CacheView& cache, const Home& home,
                                            const RowKey& key) {
  const int64_t lower = home.bucket1 < home.bucket2 ? home.bucket1 : home.bucket2;
  const int64_t upper = home.bucket1 < home.bucket2 ? home.bucket2 : home.bucket1;
  if (lower == upper) {
    Acquire(&cache.locks[lower]);
  } else {
    AcquirePair(&cache.locks[lower], &cache.locks[upper]);
  }
  const Bucket& first = cache.buckets[home.bucket1];
  const Bucket& second = cache.buckets[home.bucket2];
  PairWay at = PickFree<CudaWarp>(first, second);
  if (at.way < 0) at = PickVictim<CudaWarp>(first, second);
  Placed placed;
  if (at.way >= 0) {
    PlaceAt(cache, at.bucket == 0 ? home.bucket1 : home.bucket2, at.way, home.tag, key, &placed);
  }
  Release(&cache.locks[lower], &cache.locks[upper]);
  // What is pinned stays pinned while this kernel runs, so the pair has no room later either.
  if (at.way < 0) placed = PlaceInOverflow(cache, home.partition, home.tag, key);
  return placed;
}

// Adds up what became of the misses of a warp; lane's own in `placed`.
__device__ __forceinline__ void CountPlaced(const CacheView& cache, uint32_t misses,
                                            int64_t partition_index, const Placed& placed) {
  const uint32_t has_slot = __ballot_sync(misses, placed.slot >= 0);
  const uint32_t replaced = __ballot_sync(misses, placed.replaced);
  const uint32_t dirty = __ballot_sync(misses, placed.evicted != 0);
  const uint32_t overflow = __ballot_sync(misses, placed.overflow);
  const uint32_t same = SamePartition(misses, partition_index);
  if (CudaWarp::Lane() != CudaWarp::FirstLane(same)) return;
  PartitionState& partition = cache.partitions[partition_index];
  const auto add = [same](int64_t* sum, uint32_t lanes) {
    const int count = CudaWarp::CountLanes(lanes & same);
    if (count > 0) AtomicAdd(sum, count);
  };
  add(&partition.placed_since_ageing, has_slot);
  add(&partition.used_ways, has_slot & ~replaced);
  add(&partition.evictions, replaced);
  add(&partition.dirty_evictions, dirty);
  add(&partition.overflow_inserts, overflow);
  add(&partition.no_room, ~has_slot);
}

// Places the keys that PinHitsKernel left. A warp takes a run of keys; its lanes look at a key each
// for what can be done at once, and together at one miss after the other.
//
// Four blocks a processor: placing waits for memory most of the time, so warps count for more than
// registers.
__global__ void __launch_bounds__(kBlockThreads, 4)
    PlaceMissesKernel(const CacheView cache, const RowKey* keys, int64_t n, const WarpRuns runs,
                      const InsertView result) {
  const int lane = CudaWarp::Lane();
  for (int64_t run = WarpIndex(); run < runs.runs; run += NumWarps()) {
    const int64_t begin = run * runs.keys_per_run;
    const int64_t left = n - begin;
    const int count = left < runs.keys_per_run ? static_cast<int>(left) : runs.keys_per_run;
    const int64_t i = begin + lane;
    const bool missed = lane < count && result.slots[i] < 0;
    const uint32_t misses = __ballot_sync(kAllLanes, missed);
    if (misses == 0) continue;
    RowKey key;
    Home home = {};
    if (missed) {
      key = keys[i];
      home = HomeOf(cache.map, key.key, key.table);
      // Misses are placed one after the other; what they wait for comes meanwhile.
      for (const int64_t bucket : {home.bucket1, home.bucket2}) {
        PrefetchL2(&cache.locks[bucket]);
        PrefetchL2(cache.buckets[bucket].tag);
        PrefetchL2(cache.buckets[bucket].state);
      }
    }
    Placed mine;
    for (uint32_t rest = misses; rest != 0; rest &= rest - 1) {
      const int from = CudaWarp::FirstLane(rest);
      const RowKey their_key = {__shfl_sync(kAllLanes, key.key, from),
                                __shfl_sync(kAllLanes, key.table, from)};
      const Home their_home = {
          __shfl_sync(kAllLanes, home.partition, from), __shfl_sync(kAllLanes, home.bucket1, from),
          __shfl_sync(kAllLanes, home.bucket2, from),
          static_cast<uint8_t>(__shfl_sync(kAllLanes, static_cast<int>(home.tag), from))};
      const Placed placed = PlaceMiss(cache, their_home, their_key);
      if (lane == from) mine = placed;
    }
    if (missed) {
      result.slots[i] = mine.slot;
      result.placement[i] = mine.slot < 0 ? Placement::kNoRoom : Placement::kFilled;
      result.evicted[i] = mine.evicted;
      if (mine.evicted != 0) result.evicted_keys[i] = mine.evicted_key;
      CountPlaced(cache, misses, home.partition, mine);
    }
    __syncwarp();
    const int filled = CudaWarp::CountLanes(__ballot_sync(kAllLanes, missed && mine.slot >= 0));
    if (lane == 0 && filled > 0) AtomicAdd(&cache.counters->filling, filled);
    const bool copy = missed && mine.evicted != 0;
    if (__any_sync(kAllLanes, copy)) {
      HOTROW_DEVICE_CHECK(result.evicted_rows != nullptr);
      CopyRows(cache, copy ? mine.slot : -1, count, result.evicted_rows + begin * cache.row_bytes,
               cache.row_bytes);
    }
  }
}

// ---- Slots that a caller names: a thread each, so each state has one writer

__global__ void __launch_bounds__(kBlockThreads)
    MarkFilledKernel(const CacheView cache, const int64_t* slots, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    uint8_t& state = StateOf(cache, slots[i]);
    HOTROW_DEVICE_CHECK((state & kFilling) != 0);
    state = static_cast<uint8_t>(state & ~kFilling);
  }
  if (ThreadIndex() == 0) AtomicAdd(&cache.counters->filling, -n);
}

__global__ void __launch_bounds__(kBlockThreads)
    AbandonKernel(const CacheView cache, const int64_t* slots, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    const int64_t slot = slots[i];
    HOTROW_DEVICE_CHECK(StateOf(cache, slot) == (kFilling | 1));
    const int64_t bucket = slot / kWays;
    Clear<CudaThread>(cache.buckets[bucket], static_cast<int>(slot % kWays));
    PartitionState& partition = cache.partitions[cache.map.PartitionOfBucket(bucket)];
    AtomicAdd(&partition.used_ways, -1);
    if (bucket >= partition.first_bucket + partition.buckets) {
      // Only this kernel runs, and it only takes away, so one thread sees the last one go.
      if (atomicSub(&partition.overflow_used, 1) == 1) partition.overflow_span = 0;
    }
  }
  if (ThreadIndex() == 0) AtomicAdd(&cache.counters->filling, -n);
}

__global__ void __launch_bounds__(kBlockThreads)
    UnpinKernel(const CacheView cache, const int64_t* slots, int64_t n, bool dirty) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    uint8_t& state = StateOf(cache, slots[i]);
    HOTROW_DEVICE_CHECK((state & kPinMask) != 0);
    // The pin of the batch that placed it stays until it is filled, and then nothing is dirty.
    HOTROW_DEVICE_CHECK((state & kFilling) == 0 || (!dirty && (state & kPinMask) > 1));
    state = static_cast<uint8_t>((state - 1) | (dirty ? kDirty : 0));
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    MarkDirtyKernel(const CacheView cache, const int64_t* slots, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    uint8_t& state = StateOf(cache, slots[i]);
    HOTROW_DEVICE_CHECK((state & kPinMask) != 0);
    state = static_cast<uint8_t>(state | kDirty);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    ClearDirtyKernel(const CacheView cache, const int64_t* slots, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    uint8_t& state = StateOf(cache, slots[i]);
    state = static_cast<uint8_t>(state & ~kDirty);
  }
}

// ---- All buckets

static_assert(kDirty == 0x80 && kMarked == 1, "the two kernels below shift one into the other");
// Dirty rows become marked; four ways a thread.
__global__ void __launch_bounds__(kBlockThreads)
    MarkDirtyRowsKernel(const CacheView cache, int64_t words) {
  int64_t marked = 0;
  for (int64_t i = ThreadIndex(); i < words; i += NumThreads()) {
    Bucket& bucket = cache.buckets[i / kWordsPerBucket];
    uint32_t& state = WordsOf(bucket.state)[i % kWordsPerBucket];
    uint32_t& mark = WordsOf(bucket.mark)[i % kWordsPerBucket];
    HOTROW_DEVICE_CHECK(mark == 0);
    const uint32_t dirty = state & 0x80808080u;
    if (dirty == 0) continue;
    mark = dirty >> 7;
    state ^= dirty;
    marked += __popc(dirty);
  }
  __syncwarp();
#pragma unroll
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    marked += __shfl_xor_sync(kAllLanes, marked, step);
  }
  if (CudaWarp::Lane() == 0 && marked > 0) AtomicAdd(&cache.counters->result, marked);
}

__global__ void __launch_bounds__(kBlockThreads)
    DropMarksKernel(const CacheView cache, int64_t words) {
  for (int64_t i = ThreadIndex(); i < words; i += NumThreads()) {
    Bucket& bucket = cache.buckets[i / kWordsPerBucket];
    uint32_t& mark = WordsOf(bucket.mark)[i % kWordsPerBucket];
    if (mark == 0) continue;
    WordsOf(bucket.state)[i % kWordsPerBucket] |= mark << 7;
    mark = 0;
  }
}

// A block a partition, so that one block decides whether it ages and starts its counters anew.
template <typename Policy>
__global__ void __launch_bounds__(kBlockThreads)
    AgeKernel(const CacheView cache, int64_t partitions) {
  __shared__ bool due;
  for (int64_t p = blockIdx.x; p < partitions; p += gridDim.x) {
    PartitionState& partition = cache.partitions[p];
    if (threadIdx.x == 0) due = AgeingDue<Policy>(partition);
    __syncthreads();
    if (due) {
      const int64_t words =
          int64_t{partition.buckets + partition.overflow_buckets} * kWordsPerBucket;
      for (int64_t i = threadIdx.x; i < words; i += blockDim.x) {
        Bucket& bucket = cache.buckets[partition.first_bucket + i / kWordsPerBucket];
        uint32_t& scores = WordsOf(bucket.score)[i % kWordsPerBucket];
        const uint32_t old = scores;
        if (old == 0) continue;
        scores = Policy::AgeFour(old);
      }
    }
    __syncthreads();  // all have read `due`
    if (due && threadIdx.x == 0) {
      partition.touched_since_ageing = 0;
      partition.placed_since_ageing = 0;
    }
    __syncthreads();  // before the next turn writes it
  }
}

// Sums the counters of all partitions. One block; `sum` lies in page-locked host memory.
__global__ void __launch_bounds__(kBlockThreads)
    SumCountersKernel(const CacheView cache, int64_t partitions, PartitionState* sum) {
  __shared__ int64_t sums[5];
  if (threadIdx.x < 5) sums[threadIdx.x] = 0;
  __syncthreads();
  int64_t mine[5] = {};
  for (int64_t p = threadIdx.x; p < partitions; p += blockDim.x) {
    const PartitionState& partition = cache.partitions[p];
    mine[0] += partition.used_ways;
    mine[1] += partition.evictions;
    mine[2] += partition.dirty_evictions;
    mine[3] += partition.overflow_inserts;
    mine[4] += partition.no_room;
  }
  for (int k = 0; k < 5; ++k) AtomicAdd(&sums[k], mine[k]);
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum->used_ways = sums[0];
  sum->evictions = sums[1];
  sum->dirty_evictions = sums[2];
  sum->overflow_inserts = sums[3];
  sum->no_room = sums[4];
}

// ---- Scans whose answer the host looks at: masks of a bit a slot, then the chosen ones

enum class Wanted { kDirty, kMarked };

// Bit w of masks[b] says whether way w of bucket first + b is what is wanted. A warp a bucket.
__global__ void __launch_bounds__(kBlockThreads)
    ScanBucketsKernel(const CacheView cache, Wanted wanted, int64_t first, int64_t count,
                      uint32_t* masks) {
  const int lane = CudaWarp::Lane();
  for (int64_t b = WarpIndex(); b < count; b += NumWarps()) {
    const Bucket& bucket = cache.buckets[first + b];
    const bool has = wanted == Wanted::kDirty ? (bucket.state[lane] & kDirty) != 0
                                              : bucket.mark[lane] == kMarked;
    const uint32_t mask = __ballot_sync(kAllLanes, has);
    if (lane == 0) masks[b] = mask;
  }
}

// The same for marks of slots that are listed; bit l of masks[w] is slots[32 * w + l].
__global__ void __launch_bounds__(kBlockThreads)
    ScanSlotsKernel(const CacheView cache, const int64_t* slots, int64_t n, uint32_t* masks) {
  const int lane = CudaWarp::Lane();
  for (int64_t w = WarpIndex(); w * kWarpThreads < n; w += NumWarps()) {
    const int64_t i = w * kWarpThreads + lane;
    bool has = false;
    if (i < n) {
      const int64_t slot = slots[i];
      HOTROW_DEVICE_CHECK(slot >= 0 && slot < cache.num_slots);
      has = cache.buckets[slot / kWays].mark[slot % kWays] == kMarked;
    }
    const uint32_t mask = __ballot_sync(kAllLanes, has);
    if (lane == 0) masks[w] = mask;
  }
}

enum class Taking {
  kLeave,      // only look
  kMakeDirty,  // take the mark off, the row is dirty again
  kPin,        // take the mark off and pin it
};

// Copies keys and rows of chosen slots: list[i], or slots[list[i]] when there are `slots`.
__global__ void __launch_bounds__(kBlockThreads)
    TakeKernel(const CacheView cache, Taking taking, const int64_t* list, int64_t n,
               const WarpRuns runs, const int64_t* slots, RowKey* keys, int64_t* taken_slots,
               std::byte* rows) {
  const int lane = CudaWarp::Lane();
  for (int64_t run = WarpIndex(); run < runs.runs; run += NumWarps()) {
    const int64_t begin = run * runs.keys_per_run;
    const int64_t left = n - begin;
    const int count = left < runs.keys_per_run ? static_cast<int>(left) : runs.keys_per_run;
    int64_t slot = -1;
    if (lane < count) {
      slot = list[begin + lane];
      if (slots != nullptr) slot = slots[slot];
      Bucket& bucket = cache.buckets[slot / kWays];
      const int way = static_cast<int>(slot % kWays);
      keys[begin + lane] = {bucket.key[way], bucket.table[way]};
      if (taken_slots != nullptr) taken_slots[begin + lane] = slot;
      if (taking == Taking::kMakeDirty) {
        bucket.mark[way] = 0;
        bucket.state[way] = static_cast<uint8_t>(bucket.state[way] | kDirty);
      } else if (taking == Taking::kPin) {
        HOTROW_DEVICE_CHECK((bucket.state[way] & kPinMask) < kMaxPins);
        bucket.mark[way] = 0;
        bucket.state[way] = static_cast<uint8_t>(bucket.state[way] + 1);
      }
    }
    __syncwarp();
    CopyRows(cache, slot, count, rows + begin * cache.row_bytes, cache.row_bytes);
  }
}

}  // namespace
}  // namespace hotrow::cache

#endif  // HOTROW_CACHE_ROW_CACHE_KERNELS_IMPL_CUH_
