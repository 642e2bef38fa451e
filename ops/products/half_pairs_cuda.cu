#include "ops/products/half_pairs_impl.cuh"

#include <algorithm>

#include "base/status_macros.h"

namespace hotrow::internal {
namespace {

// Matrices of one launch; a parameter of a kernel.
struct PackTable {
  static constexpr int kMax = 16;
  PackRowsArgs matrices[kMax];
  int64_t ends[kMax];  // the sum of rows up to and with this one
  int size = 0;
};

// A warp a row.
// Bytes: 6 a number
__global__ void PackRowsKernel(PackTable table) {
  const int64_t rows = table.ends[table.size - 1];
  for (int64_t place = GridGroup(); place < rows; place += GridGroups()) {
    int i = 0;
    while (table.ends[i] <= place) ++i;
    const PackRowsArgs& args = table.matrices[i];
    const int64_t r = place - (i == 0 ? 0 : table.ends[i - 1]);
    const auto at = [&args, r](int64_t c) {
      if (r >= args.rows) return 0.0f;
      if (c < args.columns) return args.from.row(r)[c];
      if (c != OnesColumn(args.columns)) return 0.0f;
      return args.behind == nullptr ? 1.0f : args.behind[r];
    };
    for (int64_t w = GroupLane(); w < args.to.stride; w += kWarpThreads) {
      args.to.row(r)[w] = args.to.Pack(at(2 * w), at(2 * w + 1));
    }
  }
}

// Bytes: once a network
__global__ void OnesPairsKernel(int64_t rows, int64_t column, Pairs to) {
  ForEachWord(rows, to.stride, [=](int64_t r, int64_t w) {
    to.row(r)[w] = to.Pack(2 * w == column ? 1.0f : 0.0f, 2 * w + 1 == column ? 1.0f : 0.0f);
  });
}

// A warp a row; the first one does the padding.
// Bytes: 8 a parameter
__global__ void UnpackGradientKernel(UnpackGradientArgs args) {
  for (int64_t r = GridGroup(); r < args.out; r += GridGroups()) {
    const float* const row = args.from.row(r);
    float* const to = args.weights + r * args.in;
    GroupMove<kWarpThreads>(
        GroupLane(), args.in, [=](int64_t i) { return row[i]; },
        [=](int64_t i, float g) { to[i] = g; });
    if (GroupLane() == 0) args.biases[r] = row[OnesColumn(args.in)];
  }
  if (GridGroup() > 0) return;
  for (int64_t i = args.in * args.out + GroupLane(); i < args.weights_end; i += kWarpThreads) {
    args.weights[i] = 0;
  }
  for (int64_t i = args.out + GroupLane(); i < args.biases_end; i += kWarpThreads) {
    args.biases[i] = 0;
  }
}

}  // namespace

absl::Status PackRowsCuda(CudaStream stream, std::span<const PackRowsArgs> matrices) {
  while (!matrices.empty()) {
    PackTable table;
    table.size = static_cast<int>(std::min<size_t>(matrices.size(), PackTable::kMax));
    int64_t rows = 0;
    for (int i = 0; i < table.size; ++i) {
      table.matrices[i] = matrices[static_cast<size_t>(i)];
      rows += table.matrices[i].rows + table.matrices[i].zero_rows;
      table.ends[i] = rows;
    }
    PackRowsKernel<<<BlocksOfRows(rows), kThreadsPerBlock, 0, stream>>>(table);
    HOTROW_RETURN_IF_ERROR(LastLaunch("PackRows"));
    matrices = matrices.subspan(static_cast<size_t>(table.size));
  }
  return absl::OkStatus();
}

absl::Status OnesPairsCuda(CudaStream stream, int64_t rows, int64_t column, const Pairs& to) {
  OnesPairsKernel<<<BlocksOfRows(rows), kThreadsPerBlock, 0, stream>>>(rows, column, to);
  return LastLaunch("OnesPairs");
}

absl::Status UnpackGradientCuda(CudaStream stream, const UnpackGradientArgs& args) {
  UnpackGradientKernel<<<BlocksOfRows(args.out), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("UnpackGradient");
}

}  // namespace hotrow::internal
