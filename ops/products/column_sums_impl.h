#ifndef HOTROW_OPS_PRODUCTS_COLUMN_SUMS_IMPL_H_
#define HOTROW_OPS_PRODUCTS_COLUMN_SUMS_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/products/gemm_impl.h"

// How a GPU sums the columns of a gradient [B, columns] over the batch: a kernel that has the
// numbers anyway sums each chunk of rows, and SumChunksCuda the chunks. The order follows from B
// alone, so sums repeat bit for bit.
namespace hotrow::internal {

// Rows that one thread sums in one column, row after row.
inline constexpr int64_t kSumChunkRows = 32;
// Columns of a block of the kernel that does so, a thread each.
inline constexpr int kSumChunkColumns = 128;

// Threads of a column in SumChunksCuda. Thread g takes the chunks g, g + kSumGroups ... in order;
// their sums are added in the order of g.
inline constexpr int kSumGroups = 8;
inline constexpr int kSumColumns = 32;  // of a block

// Floats that the sums of the chunks take.
constexpr int64_t ChunkSumsSize(int64_t batch_size, int64_t stride) {
  return (batch_size + kSumChunkRows - 1) / kSumChunkRows * stride;
}

struct SumChunksArgs {
  ConstMatrix sums = {nullptr, 0};  // [chunks, columns]
  int64_t chunks = 0;
  int64_t columns = 0;
  int64_t padded_columns = 0;  // >= columns; what lies between becomes zero
  float* result = nullptr;     // [padded_columns]
  // More numbers that become zero, fewer than a cache line has.
  float* zeros = nullptr;
  int64_t num_zeros = 0;
};
absl::Status SumChunksCuda(CudaStream stream, const SumChunksArgs& args);

// numbers[0, count) = 0.
absl::Status ZeroFloatsCuda(CudaStream stream, float* numbers, int64_t count);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_COLUMN_SUMS_IMPL_H_
