#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/launch_impl.cuh"
#include "ops/rows/row_codec.h"
#include "ops/rows/row_codec_convert_impl.h"
#include "ops/rows/row_codec_impl.h"

namespace hotrow::internal {
namespace {

// Columns that a thread takes at a time: what one Philox block has words for.
constexpr int kPieceColumns = 4;

// Four columns, of which the first `size` are in the row.
struct Floats {
  float v[kPieceColumns] = {0, 0, 0, 0};
};

template <ExchangeType kType>
constexpr int kColumnBytes = kType == ExchangeType::kFp32   ? 4
                             : kType == ExchangeType::kInt8 ? 1
                                                            : 2;

// The bytes of four columns, the first one's lowest.
template <ExchangeType kType>
struct Piece {
  static constexpr int kWords = kPieceColumns * kColumnBytes<kType> / 4;
  uint32_t words[kWords] = {};

  // `bits` has zeros above the column's bytes.
  __device__ void Set(int column, uint32_t bits) {
    const int byte = column * kColumnBytes<kType>;
    words[byte / 4] |= bits << (8 * (byte % 4));
  }
  // Bits above the column's bytes are any.
  __device__ uint32_t Get(int column) const {
    const int byte = column * kColumnBytes<kType>;
    return words[byte / 4] >> (8 * (byte % 4));
  }
};

__device__ bool IsAligned(const void* address, int bytes) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

__device__ Floats LoadFloats(const float* from, int size) {
  Floats floats;
  if (size == kPieceColumns && IsAligned(from, sizeof(float4))) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    floats = {{v.x, v.y, v.z, v.w}};
    return floats;
  }
#pragma unroll
  for (int i = 0; i < kPieceColumns; ++i) {
    if (i < size) floats.v[i] = from[i];
  }
  return floats;
}

__device__ void StoreFloats(float* to, const Floats& floats, int size) {
  if (size == kPieceColumns && IsAligned(to, sizeof(float4))) {
    *reinterpret_cast<float4*>(to) =
        make_float4(floats.v[0], floats.v[1], floats.v[2], floats.v[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPieceColumns; ++i) {
    if (i < size) to[i] = floats.v[i];
  }
}

template <ExchangeType kType>
__device__ Piece<kType> LoadPiece(const std::byte* from, int size) {
  Piece<kType> piece;
  if (size == kPieceColumns && IsAligned(from, sizeof(piece))) {
    if constexpr (sizeof(piece) == 16) {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      piece.words[0] = v.x;
      piece.words[1] = v.y;
      piece.words[2] = v.z;
      piece.words[3] = v.w;
    } else if constexpr (sizeof(piece) == 8) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      piece.words[0] = v.x;
      piece.words[1] = v.y;
    } else {
      piece.words[0] = *reinterpret_cast<const uint32_t*>(from);
    }
    return piece;
  }
  constexpr int kBytes = kColumnBytes<kType>;
#pragma unroll
  for (int i = 0; i < kPieceColumns; ++i) {
    if (i >= size) continue;
    const std::byte* const column = from + i * kBytes;
    uint32_t bits = 0;
    if (kBytes == 4 && IsAligned(column, 4)) {
      bits = *reinterpret_cast<const uint32_t*>(column);
    } else if (kBytes == 2 && IsAligned(column, 2)) {
      bits = *reinterpret_cast<const uint16_t*>(column);
    } else {
#pragma unroll
      for (int b = 0; b < kBytes; ++b) {
        bits |= static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(column)[b]) << (8 * b);
      }
    }
    piece.Set(i, bits);
  }
  return piece;
}

template <ExchangeType kType>
__device__ void StorePiece(std::byte* to, const Piece<kType>& piece, int size) {
  if (size == kPieceColumns && IsAligned(to, sizeof(piece))) {
    if constexpr (sizeof(piece) == 16) {
      *reinterpret_cast<uint4*>(to) =
          make_uint4(piece.words[0], piece.words[1], piece.words[2], piece.words[3]);
    } else if constexpr (sizeof(piece) == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(piece.words[0], piece.words[1]);
    } else {
      *reinterpret_cast<uint32_t*>(to) = piece.words[0];
    }
    return;
  }
  constexpr int kBytes = kColumnBytes<kType>;
#pragma unroll
  for (int i = 0; i < kPieceColumns; ++i) {
    if (i >= size) continue;
    std::byte* const column = to + i * kBytes;
    const uint32_t bits = piece.Get(i);
    if (kBytes == 4 && IsAligned(column, 4)) {
      *reinterpret_cast<uint32_t*>(column) = bits;
    } else if (kBytes == 2 && IsAligned(column, 2)) {
      *reinterpret_cast<uint16_t*>(column) = static_cast<uint16_t>(bits);
    } else {
#pragma unroll
      for (int b = 0; b < kBytes; ++b) {
        reinterpret_cast<uint8_t*>(column)[b] = static_cast<uint8_t>(bits >> (8 * b));
      }
    }
  }
}

template <ExchangeType kType>
__device__ float DecodeColumn(uint32_t bits, float scale) {
  if constexpr (kType == ExchangeType::kFp32) {
    return __uint_as_float(bits);
  } else if constexpr (kType == ExchangeType::kFp16) {
    return FromFp16(static_cast<uint16_t>(bits));
  } else if constexpr (kType == ExchangeType::kBf16) {
    return FromBf16(static_cast<uint16_t>(bits));
  } else {
    return ProductWithNan(static_cast<float>(static_cast<int8_t>(bits & 0xff)), scale);
  }
}

template <ExchangeType kType, bool kStochastic>
__device__ uint32_t EncodeColumn(float x, float scale, uint32_t word) {
  if constexpr (kType == ExchangeType::kFp32) {
    return __float_as_uint(x);
  } else if constexpr (kType == ExchangeType::kFp16) {
    return ToFp16<kStochastic>(x, word);
  } else if constexpr (kType == ExchangeType::kBf16) {
    return ToBf16<kStochastic>(x, word);
  } else {
    // A row of zeros, or one that is not finite.
    if (!(scale > 0)) return 0;
    return static_cast<uint8_t>(ToInt8<kStochastic>(x, scale, word));
  }
}

// The largest of the values of the group's lanes, to all of them, which all call.
template <int kLanes>
__device__ uint32_t GroupMax(uint32_t value) {
  const unsigned group = (threadIdx.x % kWarpThreads) / kLanes;
  const unsigned lanes = (kAllLanes >> (kWarpThreads - kLanes)) << (group * kLanes);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(lanes, value, distance, kLanes);
    value = value > other ? value : other;
  }
  return value;
}

__device__ int PieceSize(int32_t dim, int32_t column) {
  return dim - column < kPieceColumns ? dim - column : kPieceColumns;
}

struct EncodeTask {
  const uint64_t* keys;
  const float* const* rows;
  std::byte* out;
  float* const* residuals;  // may be null
  uint64_t seed;
};

// Encodes one row by kLanes threads. A thread takes the same columns in both loops, so what it
// wrote to the residual in the first it finds there in the second.
template <ExchangeType kType, bool kStochastic, int kLanes>
__device__ void EncodeRow(const float* x, float* residual, int32_t dim, uint64_t seed, uint64_t key,
                          uint32_t table, std::byte* out) {
  const int lane = GroupLane<kLanes>();
  const auto load = [x, residual](int32_t column, int size) {
    Floats floats = LoadFloats(x + column, size);
    if (residual != nullptr) {
      const Floats kept = LoadFloats(residual + column, size);
#pragma unroll
      for (int i = 0; i < kPieceColumns; ++i) floats.v[i] = SumWithNan(floats.v[i], kept.v[i]);
    }
    return floats;
  };
  float scale = 0;
  if constexpr (kType == ExchangeType::kInt8) {
    uint32_t largest = 0;
    for (int32_t column = kPieceColumns * lane; column < dim; column += kPieceColumns * kLanes) {
      const int size = PieceSize(dim, column);
      const Floats floats = load(column, size);
      if (residual != nullptr) StoreFloats(residual + column, floats, size);
#pragma unroll
      for (int i = 0; i < kPieceColumns; ++i) {
        const uint32_t magnitude = __float_as_uint(floats.v[i]) & ~kSignMask;
        largest = largest > magnitude ? largest : magnitude;
      }
    }
    scale = Int8Scale(GroupMax<kLanes>(largest));
    if (lane == 0) {
      Piece<ExchangeType::kFp32> piece;
      piece.Set(0, __float_as_uint(scale));
      StorePiece(out, piece, 1);
    }
  }
  for (int32_t column = kPieceColumns * lane; column < dim; column += kPieceColumns * kLanes) {
    const int size = PieceSize(dim, column);
    const bool is_summed = kType == ExchangeType::kInt8 && residual != nullptr;
    const Floats floats = is_summed ? LoadFloats(residual + column, size) : load(column, size);
    PhiloxBlock words = {};
    if constexpr (kStochastic) {
      words = RandomBlock(seed, RandomPurpose::kRounding, key, table,
                          static_cast<uint32_t>(column / kPieceColumns));
    }
    Piece<kType> piece;
    Floats lost;
#pragma unroll
    for (int i = 0; i < kPieceColumns; ++i) {
      const uint32_t bits = EncodeColumn<kType, kStochastic>(floats.v[i], scale, words.v[i]);
      piece.Set(i, bits);
      lost.v[i] = FiniteOrZero(floats.v[i] - DecodeColumn<kType>(bits, scale));
    }
    StorePiece(out + ColumnOffset<kType>(column), piece, size);
    if (residual != nullptr) StoreFloats(residual + column, lost, size);
  }
}

template <ExchangeType kType, bool kStochastic, int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock)
    EncodeKernel(const __grid_constant__ RunChunk runs, EncodeTask task) {
  const int64_t end = runs.v[runs.size - 1].end;
  for (int64_t i = runs.v[0].begin + GridGroup<kLanes>(); i < end; i += GridGroups<kLanes>()) {
    const RowRun& run = runs.v[FindRange(runs, i)];
    EncodeRow<kType, kStochastic, kLanes>(
        task.rows[i], task.residuals == nullptr ? nullptr : task.residuals[i], run.dim, task.seed,
        kStochastic ? task.keys[i] : 0, run.table,
        task.out + run.byte_offset + (i - run.begin) * ColumnOffset<kType>(run.dim));
  }
}

struct DecodeTask {
  const std::byte* in;
  float* const* rows;
};

template <ExchangeType kType, bool kAdd, int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock)
    DecodeKernel(const __grid_constant__ RunChunk runs, DecodeTask task) {
  const int lane = GroupLane<kLanes>();
  const int64_t end = runs.v[runs.size - 1].end;
  for (int64_t i = runs.v[0].begin + GridGroup<kLanes>(); i < end; i += GridGroups<kLanes>()) {
    const RowRun& run = runs.v[FindRange(runs, i)];
    const std::byte* const in =
        task.in + run.byte_offset + (i - run.begin) * ColumnOffset<kType>(run.dim);
    float* const row = task.rows[i];
    float scale = 0;
    if constexpr (kType == ExchangeType::kInt8) {
      scale = __uint_as_float(LoadPiece<ExchangeType::kFp32>(in, 1).Get(0));
    }
    for (int32_t column = kPieceColumns * lane; column < run.dim;
         column += kPieceColumns * kLanes) {
      const int size = PieceSize(run.dim, column);
      const Piece<kType> piece = LoadPiece<kType>(in + ColumnOffset<kType>(column), size);
      Floats floats;
      if constexpr (kAdd) floats = LoadFloats(row + column, size);
#pragma unroll
      for (int k = 0; k < kPieceColumns; ++k) {
        const float y = DecodeColumn<kType>(piece.Get(k), scale);
        floats.v[k] = kAdd ? SumWithNan(floats.v[k], y) : y;
      }
      StoreFloats(row + column, floats, size);
    }
  }
}

// One group of threads a sum: a rank's contribution after the other's. Bound by reads of the rows,
// which lie wherever their messages do.
template <ExchangeType kType, int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock)
    SumKernel(const __grid_constant__ RunChunk runs, const int64_t* offsets, const int32_t* order,
              const std::byte* const* rows, int64_t plain_begin, int64_t plain_end,
              float* const* sums) {
  const int lane = GroupLane<kLanes>();
  const int64_t last = runs.v[runs.size - 1].end;
  for (int64_t s = runs.v[0].begin + GridGroup<kLanes>(); s < last; s += GridGroups<kLanes>()) {
    const int32_t dim = runs.v[FindRange(runs, s)].dim;
    const int64_t begin = offsets[s];
    const int64_t end = offsets[s + 1];
    float* const to = sums[s];
    for (int32_t column = kPieceColumns * lane; column < dim; column += kPieceColumns * kLanes) {
      const int size = PieceSize(dim, column);
      Floats sum;
      for (int64_t k = begin; k < end; ++k) {
        const int32_t i = order[k];
        const std::byte* const row = rows[i];
        Floats y;
        if (i >= plain_begin && i < plain_end) {
          y = LoadFloats(reinterpret_cast<const float*>(row) + column, size);
        } else {
          float scale = 0;
          if constexpr (kType == ExchangeType::kInt8) {
            scale = __uint_as_float(LoadPiece<ExchangeType::kFp32>(row, 1).Get(0));
          }
          const Piece<kType> piece = LoadPiece<kType>(row + ColumnOffset<kType>(column), size);
#pragma unroll
          for (int c = 0; c < kPieceColumns; ++c) {
            y.v[c] = DecodeColumn<kType>(piece.Get(c), scale);
          }
        }
#pragma unroll
        for (int c = 0; c < kPieceColumns; ++c) sum.v[c] = SumWithNan(sum.v[c], y.v[c]);
      }
      StoreFloats(to + column, sum, size);
    }
  }
}

// Calls launch(chunk, rows in it) for all runs that are not empty.
template <typename Launch>
absl::Status ForEachRunChunk(std::span<const RowRun> runs, Launch&& launch) {
  return ForEachChunk<RunChunk>(runs, [&](const RunChunk& chunk, int64_t) -> absl::Status {
    const int64_t num_rows = chunk.v[chunk.size - 1].end - chunk.v[0].begin;
    return num_rows == 0 ? absl::OkStatus() : launch(chunk, num_rows);
  });
}

// Calls fn with what is known at run time as constants: the type, and how many threads take a row.
template <typename Fn>
absl::Status WithType(ExchangeType type, const RunChunk& chunk, Fn&& fn) {
  const auto with_lanes = [&](auto type_constant) {
    return CodecThreadsPerRow(chunk) == kCodecThreadsNarrow
               ? fn(type_constant, std::integral_constant<int, kCodecThreadsNarrow>())
               : fn(type_constant, std::integral_constant<int, kCodecThreadsWide>());
  };
  switch (type) {
    case ExchangeType::kFp32:
      return with_lanes(std::integral_constant<ExchangeType, ExchangeType::kFp32>());
    case ExchangeType::kFp16:
      return with_lanes(std::integral_constant<ExchangeType, ExchangeType::kFp16>());
    case ExchangeType::kBf16:
      return with_lanes(std::integral_constant<ExchangeType, ExchangeType::kBf16>());
    case ExchangeType::kInt8:
      return with_lanes(std::integral_constant<ExchangeType, ExchangeType::kInt8>());
  }
  return absl::InvalidArgumentError("row codec: type is none of those there are");
}

}  // namespace

absl::Status EncodeRowsCuda(const EncodeRowsArgs& args, CudaStream stream) {
  const bool is_random =
      args.rounding == ExchangeRounding::kStochastic && args.type != ExchangeType::kFp32;
  const EncodeTask task = {args.keys, args.rows, args.out, args.residual,
                           is_random ? ExchangeSeed(args.random) : 0};
  return ForEachRunChunk(args.runs, [&](const RunChunk& chunk, int64_t num_rows) {
    return WithType(args.type, chunk, [&](auto type, auto lanes) {
      constexpr ExchangeType kType = type();
      constexpr int kLanes = lanes();
      const unsigned blocks = GridBlocks(num_rows, kThreadsPerBlock / kLanes);
      if (is_random) {
        // Nothing is rounded to fp32.
        EncodeKernel<kType, kType != ExchangeType::kFp32, kLanes>
            <<<blocks, kThreadsPerBlock, 0, stream>>>(chunk, task);
      } else {
        EncodeKernel<kType, false, kLanes><<<blocks, kThreadsPerBlock, 0, stream>>>(chunk, task);
      }
      return LastLaunch("EncodeRows");
    });
  });
}

absl::Status DecodeRowsCuda(const DecodeRowsArgs& args, CudaStream stream) {
  const DecodeTask task = {args.in, args.rows};
  return ForEachRunChunk(args.runs, [&](const RunChunk& chunk, int64_t num_rows) {
    return WithType(args.type, chunk, [&](auto type, auto lanes) {
      constexpr ExchangeType kType = type();
      constexpr int kLanes = lanes();
      const unsigned blocks = GridBlocks(num_rows, kThreadsPerBlock / kLanes);
      if (args.add) {
        DecodeKernel<kType, true, kLanes><<<blocks, kThreadsPerBlock, 0, stream>>>(chunk, task);
      } else {
        DecodeKernel<kType, false, kLanes><<<blocks, kThreadsPerBlock, 0, stream>>>(chunk, task);
      }
      return LastLaunch("DecodeRows");
    });
  });
}

absl::Status SumEncodedRowsCuda(const SumEncodedRowsArgs& args, CudaStream stream) {
  return ForEachRunChunk(args.runs, [&](const RunChunk& chunk, int64_t num_rows) {
    return WithType(args.type, chunk, [&](auto type, auto lanes) {
      constexpr int kLanes = lanes();
      SumKernel<type(), kLanes>
          <<<GridBlocks(num_rows, kThreadsPerBlock / kLanes), kThreadsPerBlock, 0, stream>>>(
              chunk, args.offsets, args.order, args.rows, args.plain_begin, args.plain_end,
              args.sums);
      return LastLaunch("SumEncodedRows");
    });
  });
}

}  // namespace hotrow::internal
