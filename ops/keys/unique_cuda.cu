#include <cstdint>
#include <cuda/atomic>
#include <numeric>
#include <span>
#include <vector>

#include "base/cuda_status.h"
#include "base/entropy.h"
#include "base/status_macros.h"
#include "ops/keys/scan_impl.cuh"
#include "ops/keys/unique.h"
#include "ops/keys/unique_impl.h"
#include "ops/launch_impl.cuh"

// A value's first appearance is what every array hangs on:
//
// 1. Each table gets a range of places, one per value, table by table, and a hash table of two
//    slots per place. All of it follows from the segments, so the host knows it.
// 2. Each value puts its position into the slot of its key; the least position of a key wins.
// 3. A value is a first appearance if it won. Running sums over the firsts in the order of places
//    number them: table by table, in order of appearance. Each first writes its key down and its
//    number into the slot.
// 4. From there every value learns it.
namespace hotrow::internal {
namespace {

constexpr char kOp[] = "Unique";
// A slot that no value has come to; any 64-bit key is legal, so keys mark none. From step 3 on
// slots hold numbers, which are told from positions by their sign.
constexpr int32_t kEmpty = -1;
__device__ inline int32_t SlotOfNumber(int32_t number) { return kEmpty - 1 - number; }
__device__ inline int32_t NumberOfSlot(int32_t slot) { return kEmpty - 1 - slot; }

using Slot = cuda::atomic_ref<int32_t, cuda::thread_scope_device>;

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
    // Now `other` is a position, of this key or of another. Most values of a hot key find an
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
    InsertKernel(const __grid_constant__ SegmentChunk chunk, const uint64_t* values, uint64_t salt,
                 int32_t* slots, int32_t* order, int32_t* inverse) {
  const int64_t end = chunk.v[chunk.size - 1].end;
  for (int64_t i = chunk.v[0].begin + GridThread(); i < end; i += GridThreads()) {
    const PlacedSegment& segment = chunk.v[FindRange(chunk, i)];
    const int64_t first_slot = UniqueCudaLayout::kSlotsPerValue * segment.table_begin;
    const uint32_t slot = Insert(values, static_cast<int32_t>(i), salt, slots + first_slot,
                                 UniqueCudaLayout::kSlotsPerValue * segment.table_places);
    inverse[i] = static_cast<int32_t>(static_cast<uint32_t>(first_slot + slot));
    order[segment.place + (i - segment.begin)] = static_cast<int32_t>(i);
  }
}

// ranks[place] = how many firsts lie before it: at a first, its number.
__global__ void __launch_bounds__(kThreadsPerBlock)
    NumberFirstsKernel(int64_t num_values, const uint64_t* values, const int32_t* order,
                       const int32_t* inverse, int32_t* slots, int32_t* ranks, uint64_t* unique,
                       int32_t* counts, uint64_t* words) {
  __shared__ ScanBlock::Shared shared;
  ScanBlock scan(words, shared);
  const int64_t first_place = scan.first_item();
  int32_t value[kScanRounds];
  uint32_t slot[kScanRounds];
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    const int64_t place = first_place + round * kWarpThreads;
    value[round] = place < num_values ? order[place] : 0;
  }
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    slot[round] = static_cast<uint32_t>(inverse[value[round]]);
  }
  unsigned firsts[kScanRounds];
  int of_warp = 0;
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    const int64_t place = first_place + round * kWarpThreads;
    // Others may write a number there meanwhile: then it was not this one.
    const int32_t won = Slot(slots[slot[round]]).load(cuda::std::memory_order_relaxed);
    firsts[round] = __ballot_sync(kAllLanes, place < num_values && won == value[round]);
    of_warp += __popc(firsts[round]);
  }
  auto before = static_cast<int32_t>(scan.Before(static_cast<uint64_t>(of_warp)));
  const unsigned lanes_before = (1u << GroupLane()) - 1;
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    const int64_t place = first_place + round * kWarpThreads;
    const int32_t rank = before + __popc(firsts[round] & lanes_before);
    before += __popc(firsts[round]);
    if (place < num_values) ranks[place] = rank;
    if (place == num_values - 1) ranks[num_values] = before;
    if ((firsts[round] >> GroupLane() & 1) == 0) continue;
    unique[rank] = values[value[round]];
    counts[rank] = 0;
    Slot(slots[slot[round]]).store(SlotOfNumber(rank), cuda::std::memory_order_relaxed);
  }
}

// table_offsets are those of the chunk.
__global__ void TableOffsetsKernel(const __grid_constant__ TableBeginChunk begins,
                                   const int32_t* ranks, int64_t* table_offsets) {
  for (int t = static_cast<int>(threadIdx.x); t < begins.size; t += static_cast<int>(blockDim.x)) {
    table_offsets[t] = ranks[begins.v[t]];
  }
}

// The values of a warp are often of a few keys where a table has few: these are counted by one
// addition, until a key comes that only one of them has.
__global__ void __launch_bounds__(kThreadsPerBlock)
    FinishKernel(int64_t num_values, const int32_t* slots, int32_t* inverse, int32_t* counts) {
  const int lane = GroupLane();
  for (int64_t begin = kWarpThreads * GridGroup(); begin < num_values; begin += GridThreads()) {
    const int64_t i = begin + lane;
    int32_t number = -1;
    if (i < num_values) {
      number = NumberOfSlot(slots[static_cast<uint32_t>(inverse[i])]);
      inverse[i] = number;
    }
    unsigned left = __ballot_sync(kAllLanes, i < num_values);
    unsigned same = 0;
    do {
      const int leader = __ffs(static_cast<int>(left)) - 1;
      same = __ballot_sync(kAllLanes, number == __shfl_sync(kAllLanes, number, leader));
      if (lane == leader) atomicAdd(counts + number, __popc(same));
      left &= ~same;
    } while (left != 0 && __popc(same) > 1);
    if ((left >> lane & 1) != 0) atomicAdd(counts + number, 1);
  }
}

}  // namespace

absl::Status UniqueCuda(const UniqueArgs& args, CudaStream stream) {
  const int64_t n = args.num_values;
  if (n == 0) {
    HOTROW_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(args.table_offsets, 0,
                        (static_cast<size_t>(args.num_tables) + 1) * sizeof(int64_t), stream));
    return absl::OkStatus();
  }
  // Numbers go by order of appearance, so nothing that is returned depends on it.
  static const uint64_t salt = EntropyBits();
  const auto layout = UniqueCudaLayout::For(n);
  const auto at = [&args](int64_t offset) {
    return reinterpret_cast<int32_t*>(args.workspace + offset);
  };
  int32_t* const slots = at(layout.slots);
  int32_t* const order = at(layout.order);
  int32_t* const ranks = at(layout.ranks);
  static_assert(kEmpty == -1, "all bytes 0xff, as the words");
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(slots, 0xff, static_cast<size_t>(layout.order), stream));

  std::vector<int32_t> begins(static_cast<size_t>(args.num_tables) + 1);
  for (const LookupSegment& segment : args.segments) {
    begins[static_cast<size_t>(segment.table) + 1] +=
        static_cast<int32_t>(segment.end - segment.begin);
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<PlacedSegment> segments;
  segments.reserve(args.segments.size());
  for (std::vector<int32_t> next = begins; const LookupSegment& segment : args.segments) {
    const auto table = static_cast<size_t>(segment.table);
    segments.push_back({.begin = segment.begin,
                        .end = segment.end,
                        .place = next[table],
                        .table_begin = begins[table],
                        .table_places = begins[table + 1] - begins[table]});
    next[table] += static_cast<int32_t>(segment.end - segment.begin);
  }
  HOTROW_RETURN_IF_ERROR(ForEachChunk<SegmentChunk>(
      std::span<const PlacedSegment>(segments),
      [&](const SegmentChunk& chunk, int64_t) -> absl::Status {
        const int64_t size = chunk.v[chunk.size - 1].end - chunk.v[0].begin;
        if (size == 0) return absl::OkStatus();
        InsertKernel<<<GridBlocks(size, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
            chunk, args.values, salt, slots, order, args.inverse);
        return LastLaunch(kOp);
      }));
  NumberFirstsKernel<<<static_cast<unsigned>(ScanTiles(n)), kThreadsPerBlock, 0, stream>>>(
      n, args.values, order, args.inverse, slots, ranks, args.unique, args.counts,
      reinterpret_cast<uint64_t*>(args.workspace + layout.words));
  HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  HOTROW_RETURN_IF_ERROR(ForEachChunk<TableBeginChunk>(
      std::span<const int32_t>(begins),
      [&](const TableBeginChunk& chunk, int64_t first) -> absl::Status {
        TableOffsetsKernel<<<1, kThreadsPerBlock, 0, stream>>>(chunk, ranks,
                                                               args.table_offsets + first);
        return LastLaunch(kOp);
      }));
  FinishKernel<<<GridBlocks(n, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
      n, slots, args.inverse, args.counts);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
