#include <numeric>
#include <vector>

#include "base/math.h"
#include "ops/training/gradient_norm_impl.h"

namespace hotrow::internal {

// Each chunk in the order of its elements, then the chunks in theirs: the same bits for any pool.
absl::Status GradientNormCpu(ThreadPool* pool, const GradientNormArgs& args) {
  const auto n = static_cast<int64_t>(args.gradients.size());
  std::vector<double> sums(static_cast<size_t>(CeilDiv(n, kNormChunk)));
  ParallelFor(pool, n, kNormChunk, [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      const auto x = static_cast<double>(args.gradients[static_cast<size_t>(i)]);
      sum += x * x;
    }
    sums[static_cast<size_t>(begin / kNormChunk)] = sum;
  });
  FinishGradientNorm(std::accumulate(sums.begin(), sums.end(), 0.0), args.norm_max, args.norm,
                     args.scale);
  return absl::OkStatus();
}

}  // namespace hotrow::internal
