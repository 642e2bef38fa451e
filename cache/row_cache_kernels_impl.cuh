#ifndef HOTROW_CACHE_ROW_CACHE_KERNELS_IMPL_CUH_
#define HOTROW_CACHE_ROW_CACHE_KERNELS_IMPL_CUH_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cuda/atomic>
#include <type_traits>

#include "base/hopper.cuh"
#include "base/warp.cuh"
#include "cache/cache_policy_impl.h"
#include "cache/row_cache_cuda_impl.h"
#include "cache/row_cache_impl.h"

// The kernels of the container in device memory, which row_cache_cuda.cu alone includes: it owns
// the memory and says which kernels make up a call. All in one translation unit, since they share
// device functions for probes and eviction, which the compiler inlines only there.
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
  PartitionState* partitions;
  CudaCounters* counters;
  PartitionMap map;
  int64_t row_bytes;
  int64_t num_slots;
  CachePolicy policy;
  ScoreRule rule;
  bool spares_rows;
  bool ages_by_touches;
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

// The slot of a key in the overflow of its partition, -1 when it is not there. One thread.
__device__ __forceinline__ int64_t FindInOverflow(const CacheView& cache, const Home& home,
                                                  const RowKey& key) {
  const PartitionState& partition = cache.partitions[home.partition];
  const int64_t overflow = partition.first_bucket + partition.buckets;
  const int32_t span = partition.overflow_span;
  for (int32_t b = 0; b < span; ++b) {
    const int way = FindWay<CudaThread>(cache.buckets[overflow + b], home.tag, key.key, key.table);
    if (way >= 0) return (overflow + b) * kWays + way;
  }
  return -1;
}

// The ways of a bucket that have this tag, for each lane that names a bucket, kNoBucket gives none.
// The whole warp: four neighbouring lanes read the 64 bytes of one lane's tags together, in one
// access, then those of the next of the four, so a warp asks the L2 once for each bucket.
constexpr int64_t kNoBucket = -1;
template <typename Loads>
__device__ __forceinline__ uint32_t MatchTags(const CacheView& cache, int64_t bucket,
                                              uint16_t tag) {
  constexpr int kTogether = 4;
  const int lane = CudaWarp::Lane();
  const int part = lane % kTogether;
  uint4 tags[kTogether];
  uint32_t wanted[kTogether];
#pragma unroll
  for (int t = 0; t < kTogether; ++t) {
    const int64_t theirs = __shfl_sync(kAllLanes, bucket, lane - part + t);
    wanted[t] = __shfl_sync(kAllLanes, uint32_t{tag} * 0x00010001u, lane - part + t);
    tags[t] = {};
    if (theirs == kNoBucket) continue;
    tags[t] = Loads::Load(reinterpret_cast<const uint4*>(cache.buckets[theirs].tag) + part);
  }
  // Byte t: the eight ways of this part in the bucket of the t-th of the four. No tag is 0.
  uint32_t mine = 0;
#pragma unroll
  for (int t = 0; t < kTogether; ++t) {
    const uint32_t equal =  // bit 2 w: the low tag of word w; bit 2 w + 1: the high one
        (__vcmpeq2(tags[t].x, wanted[t]) & 0x00020001u) |
        (__vcmpeq2(tags[t].y, wanted[t]) & 0x00080004u) |
        (__vcmpeq2(tags[t].z, wanted[t]) & 0x00200010u) |
        (__vcmpeq2(tags[t].w, wanted[t]) & 0x00800040u);
    mine |= ((equal | equal >> 16) & 0xff) << (8 * t);
  }
  // Each of the four gets its own byte of all parts: a transposition of four by four bytes.
  const uint32_t even = __shfl_xor_sync(kAllLanes, mine, 1);
  mine = part % 2 == 0 ? __byte_perm(mine, even, 0x6240) : __byte_perm(even, mine, 0x7351);
  const uint32_t upper = __shfl_xor_sync(kAllLanes, mine, 2);
  return part < 2 ? __byte_perm(mine, upper, 0x5410) : __byte_perm(upper, mine, 0x7632);
}

// The slot of the key of each lane, -1 when it is not resident. The whole warp; lanes that are not
// `active` have no key.
template <typename Loads = PlainLoads>
__device__ __forceinline__ int64_t FindSlot(const CacheView& cache, const Home& home,
                                            const RowKey& key, bool active) {
  int64_t bucket = active ? home.bucket1 : kNoBucket;
  uint32_t candidates = MatchTags<Loads>(cache, bucket, home.tag);
  const bool elsewhere = active && candidates == 0;
  if (__any_sync(kAllLanes, elsewhere)) {
    const uint32_t others = MatchTags<Loads>(cache, elsewhere ? home.bucket2 : kNoBucket, home.tag);
    if (elsewhere) {
      candidates = others;
      bucket = home.bucket2;
    }
  }
  const auto is_key = [&](int way) {
    return cache.buckets[bucket].record[way].Is(key.key, key.table);
  };
  // The records of all lanes are on their way at a time.
  uint32_t hits = CudaThread::Ballot(candidates, is_key);
  if (hits == 0 && candidates != 0 && bucket == home.bucket1) {
    // Another key with this tag, in one bucket of two thousand.
    bucket = home.bucket2;
    hits = CudaThread::Ballot(CudaThread::MatchTag(cache.buckets[bucket].tag, home.tag), is_key);
  }
  if (hits != 0) return bucket * kWays + CudaWarp::FirstLane(hits);
  return active ? FindInOverflow(cache, home, key) : -1;
}

// The same, -1 also when its bytes are not there yet. `filling`: there are such rows; when there
// are none, the state is not read.
__device__ __forceinline__ int64_t FindFilledSlot(const CacheView& cache, const RowKey* key,
                                                  bool filling, bool active) {
  RowKey mine;
  if (active) mine = *key;
  const int64_t slot = FindSlot(cache, HomeOf(cache.map, mine.key, mine.table), mine, active);
  if (slot < 0 || !filling) return slot;
  return IsFilling(cache.buckets[slot / kWays].state[slot % kWays]) ? -1 : slot;
}

// Pieces of rows that a lane has on their way at a time, where it does nothing else, and where it
// has other things to remember.
constexpr int kPiecesInFlight = 4;
constexpr int kEvictedPiecesInFlight = 2;
// Evicted rows are the first to leave the L2 again, where the buckets of misses wait for their way.
constexpr bool kEvictedRowsLeaveFirst = true;

// Copies the row of the slot of each lane below `count`, unless it is -1, to out + position *
// out_stride. The whole warp, 16 bytes a lane and access.
template <int kInFlight = kPiecesInFlight, bool kLeaveFirst = false>
__device__ __forceinline__ void CopyRows(const CacheView& cache, int64_t slot, int position,
                                         int count, std::byte* out, int64_t out_stride) {
  const int lane = CudaWarp::Lane();
  const int64_t chunks = cache.row_bytes / static_cast<int64_t>(sizeof(uint4));
  const int lanes_per_row = LanesPerRow(chunks);
  const int rows_per_pass = kWarpThreads / lanes_per_row;
  const int row_in_pass = lane / lanes_per_row;
  const int first_chunk = lane % lanes_per_row;
  for (int base = 0; base < count; base += rows_per_pass * kInFlight) {
    int64_t from[kInFlight];
    int to[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = base + u * rows_per_pass + row_in_pass;
      const int64_t theirs = __shfl_sync(kAllLanes, slot, row % kWarpThreads);
      to[u] = __shfl_sync(kAllLanes, position, row % kWarpThreads);
      from[u] = row < count ? theirs : -1;
    }
    // No votes below: lanes may leave this loop at different turns.
    for (int64_t chunk = first_chunk; chunk < chunks; chunk += lanes_per_row) {
      uint4 piece[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (from[u] < 0) continue;
        const auto* const row =
            reinterpret_cast<const uint4*>(cache.rows + from[u] * cache.row_bytes);
        piece[u] = kLeaveFirst ? __ldcs(row + chunk) : row[chunk];
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (from[u] < 0) continue;
        auto* const row = reinterpret_cast<uint4*>(out + to[u] * out_stride);
        if constexpr (kLeaveFirst) {
          __stcs(row + chunk, piece[u]);
        } else {
          row[chunk] = piece[u];
        }
      }
    }
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    FindKernel(const CacheView cache, const RowKey* keys, int64_t n, std::byte** rows) {
  const bool filling = cache.counters->filling != 0;
  const int lane = CudaWarp::Lane();
  for (int64_t begin = WarpIndex() * kWarpThreads; begin < n; begin += NumWarps() * kWarpThreads) {
    const int64_t i = begin + lane;
    const int64_t slot = FindFilledSlot(cache, keys + i, filling, i < n);
    if (i < n) rows[i] = slot < 0 ? nullptr : cache.rows + slot * cache.row_bytes;
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    FindRowsKernel(const CacheView cache, const RowKey* keys, int64_t n, const WarpRuns runs,
                   std::byte* out, int64_t out_stride, uint8_t* found) {
  const int lane = CudaWarp::Lane();
  const bool filling = cache.counters->filling != 0;
  const int64_t stride = NumWarps() * runs.keys_per_run;
  for (int64_t begin = WarpIndex() * runs.keys_per_run; begin < n; begin += stride) {
    const int64_t left = n - begin;
    const int count = left < runs.keys_per_run ? static_cast<int>(left) : runs.keys_per_run;
    const bool active = lane < count;
    const int64_t slot = FindFilledSlot(cache, keys + begin + lane, filling, active);
    if (active) found[begin + lane] = slot < 0 ? 0 : 1;
    __syncwarp();
    CopyRows(cache, slot, lane, count, out + begin * out_stride, out_stride);
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

// Whether the L2 fetches states and scores, which a hit changes, together with the tags.
constexpr bool kPinsFetchWholeLine = false;
using PinLoads = std::conditional_t<kPinsFetchWholeLine, LineLoads, PlainLoads>;

// Pins the hits, so that no miss can evict one, and leaves slots[i] = -1 for the misses. A thread a
// key: keys are distinct, so each way that is changed has one writer.
__global__ void __launch_bounds__(kBlockThreads)
    PinHitsKernel(const CacheView cache, const RowKey* keys, int64_t n, const InsertView result) {
  const int lane = CudaWarp::Lane();
  for (int64_t begin = WarpIndex() * kWarpThreads; begin < n; begin += NumWarps() * kWarpThreads) {
    const int64_t i = begin + lane;
    const uint32_t active = __ballot_sync(kAllLanes, i < n);
    RowKey key;
    if (i < n) key = keys[i];
    const Home home = HomeOf(cache.map, key.key, key.table);
    const int64_t slot = FindSlot<PinLoads>(cache, home, key, i < n);
    if (i < n) {
      result.slots[i] = slot;
      if (slot >= 0) {
        Bucket& bucket = cache.buckets[slot / kWays];
        const int way = static_cast<int>(slot % kWays);
        HOTROW_DEVICE_CHECK(PinsOf(bucket.state[way]) < kMaxPins);
        TouchAndPin<CudaThread>(bucket, way, cache.rule);
        result.placement[i] = Placement::kHit;
        result.evicted[i] = 0;
      }
      if (cache.ages_by_touches) {
        const uint32_t same = SamePartition(active, home.partition);
        if (lane == CudaWarp::FirstLane(same)) {
          AtomicAdd(&cache.partitions[home.partition].touched_since_ageing,
                    CudaWarp::CountLanes(same));
        }
      }
    }
    __syncwarp();
  }
}

// ---- FindOrInsert: misses
//
// Two lanes a miss, each looks at one of its buckets, and no locks. Keys are distinct and hits are
// pinned, so the only thing that two misses may both want is a way. Its state decides: an empty or
// unpinned way becomes one that waits for its bytes, once while the kernel runs and never back.
// Whoever changes it, by one compare-and-swap of the word that it shares with three others, owns
// the way and nobody else touches the rest of it; the loser looks again. Someone gets on whenever
// somebody must look again, and ways run out at last, so no miss waits for another.
//
// What a miss sees of ways that others take meanwhile may be old. It picks none that it cannot
// have: each way that it takes was as it saw it. Nor does it overlook one: what it sees as taken,
// is taken.

// How a miss looks at its buckets first. Tags, states and scores of a bucket are one line of 128
// bytes; true: the L2 fetches all of it at once, since the tag is written too.
constexpr bool kFetchWholeLine = true;
using FirstLook = BasicCudaThread<std::conditional_t<kFetchWholeLine, LineLoads, PlainLoads>>;

// What choosing a way reads of a bucket.
struct Ways {
  CudaWords state;
  CudaWords score;
};
template <typename Thread>
__device__ __forceinline__ Ways WaysOf(const Bucket& bucket) {
  return {Thread::Load(bucket.state), Thread::Load(bucket.score)};
}

constexpr int kMissLanes = 2;
constexpr int kWarpMisses = kWarpThreads / kMissLanes;  // that a warp places at a time

// The lanes of this lane's miss, out of a mask of the warp's lanes.
__device__ __forceinline__ uint32_t OfMiss(uint32_t lanes) {
  return (lanes >> (CudaWarp::Lane() / kMissLanes * kMissLanes)) & ((1u << kMissLanes) - 1);
}

using DeviceWord = cuda::atomic_ref<uint32_t, cuda::thread_scope_device>;

// Takes a way for a new row, pinned and waiting for its bytes, and says what its state was. False
// when another thread has taken it. `now`: the word of its state, as it was seen.
__device__ __forceinline__ bool TakeWay(Bucket& bucket, int way, uint32_t now, uint8_t* was) {
  const DeviceWord word(WordsOf(bucket.state)[way / 4]);
  const int shift = way % 4 * 8;
  for (;;) {
    *was = static_cast<uint8_t>(now >> shift);
    if (PinsOf(*was) != 0) return false;
    const uint32_t taken = (now & ~(uint32_t{0xff} << shift)) | uint32_t{kPlaced} << shift;
    // When it fails, `now` is what it found: often a neighbour has changed.
    if (word.compare_exchange_strong(now, taken, cuda::memory_order_relaxed)) return true;
  }
}

// The way that a miss has taken.
struct TakenWay {
  int64_t slot = -1;  // -1: none, all are pinned
  uint8_t was = kEmpty;
  bool overflow = false;
};

// Moves the scores of the rows that stay in a bucket; `victim` is the score of the row that leaves.
// Others may do so at the same time, or write the score of a row that they place.
__device__ __forceinline__ void SpareRows(CachePolicy policy, Bucket& bucket, uint8_t victim) {
  WithPolicy(policy, [&](auto formula) {
    for (int w = 0; w < kWordsPerBucket; ++w) {
      const DeviceWord scores(WordsOf(bucket.score)[w]);
      uint32_t old = scores.load(cuda::memory_order_relaxed);
      for (;;) {
        const uint32_t moved = decltype(formula)::SpareFour(old, victim);
        if (moved == old) break;
        if (scores.compare_exchange_strong(old, moved, cuda::memory_order_relaxed)) break;
      }
    }
  });
}

// The same choice as on the CPU: the first empty way, else the lowest score.
__device__ __forceinline__ TakenWay TakeInOverflow(const CacheView& cache,
                                                   int64_t partition_index) {
  PartitionState& partition = cache.partitions[partition_index];
  const int64_t begin = partition.first_bucket + partition.buckets;
  const int32_t count = partition.overflow_buckets;
  for (;;) {
    int32_t at = -1;
    int way = -1;
    for (int32_t b = 0; b < count && at < 0; ++b) {
      const uint32_t free = FreeMask<RacingCudaThread>(cache.buckets[begin + b]);
      if (free == 0) continue;
      at = b;
      way = CudaWarp::FirstLane(free);
    }
    if (at < 0) {
      int lowest_score = 256;
      for (int32_t b = 0; b < count; ++b) {
        const Bucket& bucket = cache.buckets[begin + b];
        const WayScore victim =
            RacingCudaThread::MinByte(bucket.score, UnpinnedMask<RacingCudaThread>(bucket));
        if (victim.way < 0 || victim.score >= lowest_score) continue;
        lowest_score = victim.score;
        at = b;
        way = victim.way;
      }
    }
    if (at < 0) return {};  // what is pinned stays pinned while this kernel runs
    uint8_t was;
    Bucket& bucket = cache.buckets[begin + at];
    const uint32_t now =
        DeviceWord(WordsOf(bucket.state)[way / 4]).load(cuda::memory_order_relaxed);
    if (!TakeWay(bucket, way, now, &was)) continue;
    if (was == kEmpty) {
      atomicMax(&partition.overflow_span, at + 1);
      atomicAdd(&partition.overflow_used, 1);
    }
    return {(begin + at) * kWays + way, was, true};
  }
}

// A way for a key that is not resident: the lane of its bucket gets it, or the first lane if it
// lies in the overflow. The whole warp; `open`: this lane has a miss.
__device__ __forceinline__ TakenWay TakeFor(const CacheView& cache, const Home& home, bool open) {
  const int mine = CudaWarp::Lane() % kMissLanes;
  const int64_t index = mine == 0 ? home.bucket1 : home.bucket2;
  Bucket& bucket = cache.buckets[index];
  Ways ways = WaysOf<FirstLook>(bucket);
  TakenWay taken;
  for (;;) {
    const uint32_t free = CudaThread::MatchByte(ways.state, kEmpty);
    const uint32_t unpinned = CudaThread::MatchByte(ways.state, 0, kPinMask);
    const WayScore victim = CudaThread::MinByte(ways.score, unpinned);
    const int offer =
        CudaWarp::CountLanes(free) << 16 | CudaWarp::CountLanes(unpinned) << 8 | victim.score;
    const int other = __shfl_xor_sync(kAllLanes, offer, 1);
    const int first = mine == 0 ? offer : other;
    const int second = mine == 0 ? other : offer;
    int way = CudaWarp::FirstLane(free);
    int chosen = BucketWithRoom(first >> 16, second >> 16);
    if (chosen < 0) {
      way = victim.way;
      chosen = BucketOfVictim(first >> 8 & 0xff, second >> 8 & 0xff, first & 0xff, second & 0xff);
    }
    if (open && chosen == mine) {
      uint8_t was;
      if (TakeWay(bucket, way, ways.state.At(way / 4), &was)) {
        taken = {index * kWays + way, was, false};
      }
    } else if (open && chosen < 0 && mine == 0) {
      taken = TakeInOverflow(cache, home.partition);
    }
    const uint32_t done = __ballot_sync(kAllLanes, chosen < 0 || taken.slot >= 0);
    open = open && OfMiss(done) == 0;
    if (!__any_sync(kAllLanes, open)) return taken;
    ways = WaysOf<RacingCudaThread>(bucket);
  }
}

// Adds up what became of the misses of a warp; `dirty`: this lane's row must be written back. What
// a partition ages by is counted there. The other counters matter only as sums over all partitions,
// so they go to that of the first lane.
__device__ __forceinline__ void CountPlaced(const CacheView& cache, int misses,
                                            int64_t partition_index, const TakenWay& taken,
                                            bool dirty) {
  const uint32_t placed = __ballot_sync(kAllLanes, taken.slot >= 0);
  const int places = CudaWarp::CountLanes(placed);
  const int replaced = CudaWarp::CountLanes(__ballot_sync(kAllLanes, taken.was != kEmpty));
  const int evicted_dirty = CudaWarp::CountLanes(__ballot_sync(kAllLanes, dirty));
  const int overflow = CudaWarp::CountLanes(__ballot_sync(kAllLanes, taken.overflow));
  PartitionState& partition = cache.partitions[partition_index];
  if (!cache.ages_by_touches && taken.slot >= 0) {
    const uint32_t same = SamePartition(placed, partition_index);
    if (CudaWarp::Lane() == CudaWarp::FirstLane(same)) {
      AtomicAdd(&partition.placed_since_ageing, CudaWarp::CountLanes(same));
    }
  }
  if (CudaWarp::Lane() != 0) return;
  const auto add = [](auto* sum, int count) {
    if (count > 0) AtomicAdd(sum, count);
  };
  add(&partition.used_ways, places - replaced);
  add(&partition.evictions, replaced);
  add(&partition.dirty_evictions, evicted_dirty);
  add(&partition.overflow_inserts, overflow);
  add(&partition.no_room, misses - places);
  add(&cache.counters->filling, places);
}

// Places the keys that PinHitsKernel left. A warp takes a run of keys, gathers the misses among
// them, and places as many of them at a time as it has lanes.
//
// Four blocks a processor: placing waits for memory most of the time, so warps count for more than
// registers.
__global__ void __launch_bounds__(kBlockThreads, 4)
    PlaceMissesKernel(const CacheView cache, const RowKey* keys, int64_t n, const WarpRuns runs,
                      const InsertView result) {
  static_assert(kMaxRunKeys <= 256);
  __shared__ uint8_t gathered[kBlockWarps][kMaxRunKeys];  // places of misses in the run
  const int lane = CudaWarp::Lane();
  uint8_t* const misses = gathered[threadIdx.x / kWarpThreads];
  const int64_t stride = NumWarps() * runs.keys_per_run;
  for (int64_t begin = WarpIndex() * runs.keys_per_run; begin < n; begin += stride) {
    const int64_t left = n - begin;
    const int count = left < runs.keys_per_run ? static_cast<int>(left) : runs.keys_per_run;
    int num_misses = 0;
    bool missed[kMaxRunKeys / kWarpThreads];
#pragma unroll
    for (int k = 0; k < kMaxRunKeys / kWarpThreads; ++k) {
      const int at = k * kWarpThreads + lane;
      missed[k] = at < count && result.slots[begin + at] < 0;
    }
#pragma unroll
    for (int k = 0; k < kMaxRunKeys / kWarpThreads; ++k) {
      const uint32_t votes = __ballot_sync(kAllLanes, missed[k]);
      const uint32_t before = votes & ((uint32_t{1} << lane) - 1);
      if (missed[k]) {
        misses[num_misses + CudaWarp::CountLanes(before)] =
            static_cast<uint8_t>(k * kWarpThreads + lane);
      }
      num_misses += CudaWarp::CountLanes(votes);
    }
    __syncwarp();  // all see the places
    for (int first = 0; first < num_misses; first += kWarpMisses) {
      const int rest = num_misses - first;
      const int rows = rest < kWarpMisses ? rest : kWarpMisses;
      const bool has_miss = lane / kMissLanes < rows;
      const int position = misses[has_miss ? first + lane / kMissLanes : first];
      const int64_t i = begin + position;
      const RowKey key = keys[i];
      const Home home = HomeOf(cache.map, key.key, key.table);
      const TakenWay taken = TakeFor(cache, home, has_miss);
      const uint8_t kind = KindOf(taken.was);
      const uint8_t evicted = kind == kMarked  ? kEvictedMarked
                              : kind == kDirty ? kEvictedDirty
                                               : uint8_t{0};
      Bucket& bucket = cache.buckets[taken.slot / kWays];
      const int way = static_cast<int>(taken.slot % kWays);
      if (evicted != 0) gpu::PrefetchToL2(&bucket.record[way]);  // comes together with the row
      CountPlaced(cache, rows, home.partition, taken, evicted != 0);
      const uint32_t leaving = __ballot_sync(kAllLanes, evicted != 0);
      if (leaving != 0) {
        HOTROW_DEVICE_CHECK(result.evicted_rows != nullptr);
        // The lane of each row: that of its miss which has the way.
        const uint32_t of_row = leaving >> (lane * kMissLanes % kWarpThreads) & 3;
        const int64_t slot = __shfl_sync(kAllLanes, taken.slot, lane * kMissLanes + (of_row >> 1));
        const int to = __shfl_sync(kAllLanes, position, lane * kMissLanes);
        CopyRows<kEvictedPiecesInFlight, kEvictedRowsLeaveFirst>(
            cache, of_row != 0 ? slot : -1, to, rows, result.evicted_rows + begin * cache.row_bytes,
            cache.row_bytes);
      }
      if (taken.slot >= 0) {
        if (evicted != 0) result.evicted_keys[i] = bucket.record[way].key();
        if (cache.spares_rows && taken.was != kEmpty) {
          SpareRows(cache.policy, bucket, bucket.score[way]);
        }
        // The row itself stays until the new one's bytes come, which is after this kernel.
        const RowKey again = keys[i];  // rather than registers while rows are copied
        SetRow(bucket, way, home.tag, again.key, again.table, cache.rule);
      }
      const uint32_t placed = __ballot_sync(kAllLanes, taken.slot >= 0);
      if (taken.slot >= 0 || (has_miss && OfMiss(placed) == 0 && lane % kMissLanes == 0)) {
        result.slots[i] = taken.slot;
        result.placement[i] = taken.slot < 0 ? Placement::kNoRoom : Placement::kFilled;
        result.evicted[i] = evicted;
      }
      __syncwarp();
    }
    __syncwarp();  // before the next run's places
  }
}

// ---- Slots that a caller names: a thread each, so each state has one writer

__global__ void __launch_bounds__(kBlockThreads)
    MarkFilledKernel(const CacheView cache, const int64_t* slots, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    uint8_t& state = StateOf(cache, slots[i]);
    HOTROW_DEVICE_CHECK(IsFilling(state));
    state = static_cast<uint8_t>(state | kClean);
  }
  if (ThreadIndex() == 0) AtomicAdd(&cache.counters->filling, -n);
}

__global__ void __launch_bounds__(kBlockThreads)
    AbandonKernel(const CacheView cache, const int64_t* slots, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    const int64_t slot = slots[i];
    HOTROW_DEVICE_CHECK(StateOf(cache, slot) == kPlaced);
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
    HOTROW_DEVICE_CHECK(PinsOf(state) != 0);
    // The pin of the batch that placed it stays until it is filled, and then nothing is dirty.
    HOTROW_DEVICE_CHECK(!IsFilling(state) || (!dirty && PinsOf(state) > 1));
    state = static_cast<uint8_t>((state - 1) | (dirty ? kDiffersBit : 0));
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    MarkDirtyKernel(const CacheView cache, const int64_t* slots, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    uint8_t& state = StateOf(cache, slots[i]);
    HOTROW_DEVICE_CHECK(PinsOf(state) != 0 && !IsFilling(state));
    state = static_cast<uint8_t>(state | kDiffersBit);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    ClearDirtyKernel(const CacheView cache, const int64_t* slots, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    uint8_t& state = StateOf(cache, slots[i]);
    state = static_cast<uint8_t>(state & ~kDiffersBit);
  }
}

// ---- All buckets

// Dirty rows become marked; four ways a thread.
__global__ void __launch_bounds__(kBlockThreads)
    MarkDirtyRowsKernel(const CacheView cache, int64_t words) {
  int64_t marked = 0;
  for (int64_t i = ThreadIndex(); i < words; i += NumThreads()) {
    uint32_t& states = WordsOf(cache.buckets[i / kWordsPerBucket].state)[i % kWordsPerBucket];
    HOTROW_DEVICE_CHECK(MarkedOf(states) == 0);
    const uint32_t differ = DirtyOrMarkedOf(states);
    if (differ == 0) continue;
    states = ToMarked(states);
    marked += __popc(differ);
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
    uint32_t& states = WordsOf(cache.buckets[i / kWordsPerBucket].state)[i % kWordsPerBucket];
    if (MarkedOf(states) != 0) states = ToDirty(states);
  }
}

// A block a partition, so that one block decides whether it ages and sets its counters to zero.
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

// Bit w of masks[b] says whether way w of bucket first + b has a row of this kind. A warp a bucket.
__global__ void __launch_bounds__(kBlockThreads)
    ScanBucketsKernel(const CacheView cache, uint8_t kind, int64_t first, int64_t count,
                      uint32_t* masks) {
  const int lane = CudaWarp::Lane();
  for (int64_t b = WarpIndex(); b < count; b += NumWarps()) {
    const bool has = KindOf(cache.buckets[first + b].state[lane]) == kind;
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
      has = KindOf(StateOf(cache, slots[i])) == kMarked;
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
      keys[begin + lane] = bucket.record[way].key();
      if (taken_slots != nullptr) taken_slots[begin + lane] = slot;
      if (taking == Taking::kMakeDirty) {
        bucket.state[way] = static_cast<uint8_t>(bucket.state[way] | kUnmarkedBit);
      } else if (taking == Taking::kPin) {
        HOTROW_DEVICE_CHECK(PinsOf(bucket.state[way]) < kMaxPins);
        const int pins = PinsOf(bucket.state[way]) + 1;
        bucket.state[way] = static_cast<uint8_t>(kClean | pins);
      }
    }
    __syncwarp();
    CopyRows(cache, slot, lane, count, rows + begin * cache.row_bytes, cache.row_bytes);
  }
}

}  // namespace
}  // namespace hotrow::cache

#endif  // HOTROW_CACHE_ROW_CACHE_KERNELS_IMPL_CUH_
