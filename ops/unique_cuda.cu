#include <cstdint>
#include <cuda/atomic>

#include "base/cuda_status.h"
#include "base/entropy.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/scan_impl.cuh"
#include "ops/unique.h"
#include "ops/unique_impl.h"

// A value's first appearance is what every array hangs on:
//
// 1. Each table gets a range of places, one per value, table by table (kept in table_offsets until
//    the end), and a hash table of two slots per place. All of it follows from the segments.
// 2. Each value puts its position into the slot of its key; the least position of a key wins.
// 3. A value is a first appearance if it won. Running sums over the firsts in the order of places
//    number them: table by table, in order of appearance.
// 4. Each first writes its key and its number into the slot; from there every value learns it.
namespace hotrow::internal {
namespace {

constexpr char kOp[] = "Unique";
constexpr int32_t kEmpty =
    -1;  // a slot no value has come to; any 64-bit key is legal, so keys mark none

using Slot = cuda::atomic_ref<int32_t, cuda::thread_scope_device>;

// table_offsets[t] += the values that go to t. One block of SegmentChunk::kCapacity threads.
__global__ void CountValuesKernel(const __grid_constant__ SegmentChunk chunk,
                                  int64_t* table_offsets) {
  const int s = static_cast<int>(threadIdx.x);
  if (s >= chunk.size) return;
  const LookupSegment& segment = chunk.v[s];
  static_assert(sizeof(unsigned long long) == sizeof(int64_t));
  if (segment.begin < segment.end) {
    atomicAdd(reinterpret_cast<unsigned long long*>(table_offsets + segment.table),
              static_cast<unsigned long long>(segment.end - segment.begin));
  }
}

// chunk_places[s] = the place of the first value of segment s. taken[start] is how many places of
// the range that begins at start the earlier chunks have used. One block, as above.
__global__ void PlaceSegmentsKernel(const __grid_constant__ SegmentChunk chunk,
                                    const int64_t* table_offsets, int32_t* taken,
                                    int32_t* chunk_places) {
  const int s = static_cast<int>(threadIdx.x);
  // Of the segments of this one's table: the values before it, and whether values come after it.
  int64_t start = 0;
  int64_t used = 0;
  int64_t size = 0;
  bool is_last = false;
  if (s < chunk.size) {
    const LookupSegment& segment = chunk.v[s];
    size = segment.end - segment.begin;
    if (size > 0) {
      start = table_offsets[segment.table];
      used = taken[start];
      is_last = true;
      for (int other = 0; other < chunk.size; ++other) {
        const LookupSegment& o = chunk.v[other];
        if (o.table != segment.table) continue;
        if (other < s) used += o.end - o.begin;
        if (other > s && o.begin < o.end) is_last = false;
      }
      chunk_places[s] = static_cast<int32_t>(start + used);
    }
  }
  __syncthreads();  // all have read `taken`
  if (is_last) taken[start] = static_cast<int32_t>(used + size);
}

// Puts position i into the slot of its key and returns which one that is, within the table's slots.
// A slot that has been taken keeps its key for good, and has some position of it.
__device__ uint32_t Insert(const uint64_t* values, int32_t i, uint64_t salt, int32_t* slots,
                           int64_t num_slots) {
  const uint64_t key = values[i];
  int64_t s = FirstSlot(key, salt, num_slots);
  for (;;) {
    Slot slot(slots[s]);
    int32_t other = slot.load(cuda::std::memory_order_relaxed);
    if (other == kEmpty &&
        slot.compare_exchange_strong(other, i, cuda::std::memory_order_relaxed)) {
      return static_cast<uint32_t>(s);
    }
    // Now `other` is a position, of this key or of another. Of a hot key most values find an
    // earlier position here, and have only read.
    if (values[other] == key) {
      if (other > i) slot.fetch_min(i, cuda::std::memory_order_relaxed);
      return static_cast<uint32_t>(s);
    }
    if (++s == num_slots) s = 0;
  }
}

// `inverse` gets the number of each value's slot among all slots, as an uint32.
__global__ void __launch_bounds__(kThreadsPerBlock)
    InsertKernel(const __grid_constant__ SegmentChunk chunk, const int32_t* chunk_places,
                 const uint64_t* values, uint64_t salt, const int64_t* table_offsets,
                 int32_t* slots, int32_t* places, int32_t* inverse) {
  const int64_t end = chunk.v[chunk.size - 1].end;
  for (int64_t i = chunk.v[0].begin + GridThread(); i < end; i += GridThreads()) {
    const int32_t s = FindRange(chunk, i);
    const LookupSegment& segment = chunk.v[s];
    const int64_t start = table_offsets[segment.table];
    const int64_t size = table_offsets[segment.table + 1] - start;
    const int64_t first_slot = UniqueCudaLayout::kSlotsPerValue * start;
    const uint32_t slot = Insert(values, static_cast<int32_t>(i), salt, slots + first_slot,
                                 UniqueCudaLayout::kSlotsPerValue * size);
    inverse[i] = static_cast<int32_t>(static_cast<uint32_t>(first_slot + slot));
    places[i] = chunk_places[s] + static_cast<int32_t>(i - segment.begin);
  }
}

// ranks[place] = 1 for first appearances, else 0; a last 0 makes room for the sum of all.
__global__ void __launch_bounds__(kThreadsPerBlock)
    MarkFirstsKernel(int64_t num_values, const int32_t* slots, const int32_t* places,
                     const int32_t* inverse, int32_t* ranks) {
  const int64_t thread = GridThread();
  if (thread == 0) ranks[num_values] = 0;
  for (int64_t i = thread; i < num_values; i += GridThreads()) {
    ranks[places[i]] = slots[static_cast<uint32_t>(inverse[i])] == i ? 1 : 0;
  }
}

// Now ranks[place] is how many firsts lie before it: at a first, its number.
__global__ void __launch_bounds__(kThreadsPerBlock)
    EmitFirstsKernel(int64_t num_values, const uint64_t* values, const int32_t* places,
                     const int32_t* ranks, const int32_t* inverse, int32_t* slots, uint64_t* unique,
                     int32_t* counts) {
  for (int64_t i = GridThread(); i < num_values; i += GridThreads()) {
    const int64_t place = places[i];
    const int32_t rank = ranks[place];
    if (ranks[place + 1] == rank) continue;
    unique[rank] = values[i];
    counts[rank] = 0;
    slots[static_cast<uint32_t>(inverse[i])] = rank;
  }
}

__global__ void __launch_bounds__(kThreadsPerBlock)
    FinishKernel(int64_t num_values, int32_t num_tables, const int32_t* slots, const int32_t* ranks,
                 int32_t* inverse, int32_t* counts, int64_t* table_offsets) {
  // Table t's range begins at place table_offsets[t]; so many firsts lie before it.
  for (int64_t t = GridThread(); t <= num_tables; t += GridThreads()) {
    table_offsets[t] = ranks[table_offsets[t]];
  }
  // Warps stay together, so that the values of one key in a warp are counted by one addition.
  const int lane = GroupLane();
  for (int64_t begin = kWarpThreads * GridGroup(); begin < num_values; begin += GridThreads()) {
    const int64_t i = begin + lane;
    const unsigned lanes = __ballot_sync(kAllLanes, i < num_values);
    if (i < num_values) {
      const int32_t rank = slots[static_cast<uint32_t>(inverse[i])];
      inverse[i] = rank;
      const unsigned same = __match_any_sync(lanes, rank);
      if (lane == __ffs(static_cast<int>(same)) - 1) atomicAdd(counts + rank, __popc(same));
    }
    __syncwarp();
  }
}

}  // namespace

absl::Status UniqueCuda(const UniqueArgs& args, CudaStream stream) {
  const int64_t n = args.num_values;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
      args.table_offsets, 0, (static_cast<size_t>(args.num_tables) + 1) * sizeof(int64_t), stream));
  if (n == 0) return absl::OkStatus();
  // Numbers go by order of appearance, so nothing that is returned depends on it.
  static const uint64_t salt = EntropyBits();
  const auto layout = UniqueCudaLayout::For(n);
  const auto at = [&args](int64_t offset) {
    return reinterpret_cast<int32_t*>(args.workspace + offset);
  };
  int32_t* const slots = at(layout.slots);
  int32_t* const places = at(layout.places);
  int32_t* const ranks = at(layout.ranks);
  int32_t* const taken = ranks;  // [N], before there are ranks
  int32_t* const chunk_places = at(layout.chunk_places);
  static_assert(kEmpty == -1, "all bytes 0xff");
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
      slots, 0xff, static_cast<size_t>(UniqueCudaLayout::kSlotsPerValue * n) * sizeof(int32_t),
      stream));
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(taken, 0, static_cast<size_t>(n) * sizeof(int32_t), stream));

  const auto has_values = [](const SegmentChunk& chunk) {
    return chunk.v[0].begin < chunk.v[chunk.size - 1].end;
  };
  HOTROW_RETURN_IF_ERROR(ForEachChunk<SegmentChunk>(
      args.segments, [&](const SegmentChunk& chunk, int64_t) -> absl::Status {
        if (!has_values(chunk)) return absl::OkStatus();
        CountValuesKernel<<<1, SegmentChunk::kCapacity, 0, stream>>>(chunk, args.table_offsets);
        return LastLaunch(kOp);
      }));
  HOTROW_RETURN_IF_ERROR(ScanSmall(kOp, args.table_offsets, int64_t{args.num_tables} + 1, stream));
  HOTROW_RETURN_IF_ERROR(ForEachChunk<SegmentChunk>(
      args.segments, [&](const SegmentChunk& chunk, int64_t) -> absl::Status {
        if (!has_values(chunk)) return absl::OkStatus();
        PlaceSegmentsKernel<<<1, SegmentChunk::kCapacity, 0, stream>>>(chunk, args.table_offsets,
                                                                       taken, chunk_places);
        HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
        const int64_t size = chunk.v[chunk.size - 1].end - chunk.v[0].begin;
        InsertKernel<<<GridBlocks(size, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
            chunk, chunk_places, args.values, salt, args.table_offsets, slots, places,
            args.inverse);
        return LastLaunch(kOp);
      }));

  const unsigned blocks = GridBlocks(n, kThreadsPerBlock);
  MarkFirstsKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(n, slots, places, args.inverse, ranks);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  HOTROW_RETURN_IF_ERROR(Scan(kOp, ranks, n + 1, at(layout.scan), stream));
  EmitFirstsKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(
      n, args.values, places, ranks, args.inverse, slots, args.unique, args.counts);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  FinishKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(
      n, args.num_tables, slots, ranks, args.inverse, args.counts, args.table_offsets);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
