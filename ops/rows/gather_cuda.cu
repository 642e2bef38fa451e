#include <cstdint>

#include "ops/launch_impl.cuh"
#include "ops/rows/gather.h"
#include "ops/rows/gather_impl.h"

namespace hotrow::internal {
namespace {

// How many rows a group of threads has under way at a time: pointers first, then the rows.
constexpr int kRowsInFlight = 4;
constexpr int64_t kAccessBytes = sizeof(uint4);

// Rows that lie side by side, at data + i * stride.
template <typename Byte>
struct PackedRows {
  Byte* data;
  int64_t stride;
  __device__ Byte* operator()(int64_t i) const { return data + i * stride; }
};

// Rows that lie anywhere.
template <typename Byte>
struct ScatteredRows {
  Byte* const* rows;
  __device__ Byte* operator()(int64_t i) const { return rows[i]; }
};

__device__ bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kAccessBytes == 0;
}

// Copies a row of any length and alignment. Not inlined: it stood twelve times in each kernel and
// made up most of this file's machine code.
template <int kLanes>
__device__ __noinline__ void CopyAnyRow(int lane, std::byte* to, const std::byte* from,
                                        int64_t bytes) {
  GroupCopy<kLanes>(lane, to, from, bytes);
}

// Copies from(i) to to(i) for i in [0, num_rows), kLanes threads a row; a null `from` gives zeros,
// a null `to` is left out.
template <int kLanes, typename From, typename To>
__global__ void __launch_bounds__(kThreadsPerBlock)
    CopyRowsKernel(From from, To to, int64_t num_rows, int64_t row_bytes) {
  const int lane = GroupLane<kLanes>();
  const int64_t num_groups = GridGroups<kLanes>();
  const bool is_short = row_bytes % kAccessBytes == 0 && row_bytes <= kLanes * kAccessBytes;
  for (int64_t i = GridGroup<kLanes>(); i < num_rows; i += kRowsInFlight * num_groups) {
    const std::byte* in[kRowsInFlight];
    std::byte* out[kRowsInFlight];
    bool is_fast = is_short;
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      const int64_t row = i + k * num_groups;
      in[k] = row < num_rows ? from(row) : nullptr;
      out[k] = row < num_rows ? to(row) : nullptr;
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      is_fast = is_fast && IsAligned(in[k]) && IsAligned(out[k]);
    }
    if (!is_fast) {
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k) {
        if (out[k] != nullptr) CopyAnyRow<kLanes>(lane, out[k], in[k], row_bytes);
      }
      continue;
    }
    // One access of each thread is a row, so all rows can be under way together.
    if (lane * kAccessBytes >= row_bytes) continue;
    uint4 words[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      words[k] = in[k] != nullptr && out[k] != nullptr ? reinterpret_cast<const uint4*>(in[k])[lane]
                                                       : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (out[k] != nullptr) reinterpret_cast<uint4*>(out[k])[lane] = words[k];
    }
  }
}

template <int kLanes, typename From, typename To>
absl::Status LaunchCopy(const char* op, From from, To to, int64_t num_rows, int64_t row_bytes,
                        CudaStream stream) {
  constexpr int64_t kRowsPerBlock = int64_t{kThreadsPerBlock} / kLanes * kRowsInFlight;
  CopyRowsKernel<kLanes><<<GridBlocks(num_rows, kRowsPerBlock), kThreadsPerBlock, 0, stream>>>(
      from, to, num_rows, row_bytes);
  return LastLaunch(op);
}

template <typename From, typename To>
absl::Status CopyRows(const char* op, From from, To to, int64_t num_rows, int64_t row_bytes,
                      CudaStream stream) {
  if (num_rows == 0) return absl::OkStatus();
  switch (CopyThreadsPerRow(row_bytes)) {
    case 1:
      return LaunchCopy<1>(op, from, to, num_rows, row_bytes, stream);
    case 2:
      return LaunchCopy<2>(op, from, to, num_rows, row_bytes, stream);
    case 4:
      return LaunchCopy<4>(op, from, to, num_rows, row_bytes, stream);
    case 8:
      return LaunchCopy<8>(op, from, to, num_rows, row_bytes, stream);
    case 16:
      return LaunchCopy<16>(op, from, to, num_rows, row_bytes, stream);
    default:
      return LaunchCopy<32>(op, from, to, num_rows, row_bytes, stream);
  }
}

}  // namespace

absl::Status GatherRowsCuda(const GatherRowsArgs& args, CudaStream stream) {
  return CopyRows("GatherRows", ScatteredRows<const std::byte>{args.rows},
                  PackedRows<std::byte>{args.output, args.output_stride}, args.num_rows,
                  args.row_bytes, stream);
}

absl::Status ScatterRowsCuda(const ScatterRowsArgs& args, CudaStream stream) {
  return CopyRows("ScatterRows", PackedRows<const std::byte>{args.input, args.input_stride},
                  ScatteredRows<std::byte>{args.rows}, args.num_rows, args.row_bytes, stream);
}

}  // namespace hotrow::internal
