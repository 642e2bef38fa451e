#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "ops/jagged_impl.h"
#include "ops/prefetch.h"
#include "ops/rows/row_sum_impl.h"
#include "ops/update/gradient_segment_sum.h"
#include "ops/update/gradient_segment_sum_impl.h"

namespace hotrow::internal {
namespace {

// Fills contributions[N] for samples [sample_begin, sample_end) of feature f. With it the sums
// below go from a lookup to its gradient without a search for its bag.
void DescribeBlock(const GradientSegmentSumArgs& args, int64_t f, int64_t sample_begin,
                   int64_t sample_end, GradientContribution* contributions) {
  const JaggedFeature& feature = args.features[f];
  const int64_t* const bags = args.offsets + f * args.batch_size;
  for (int64_t b = sample_begin; b < sample_end; ++b) {
    for (int64_t j = bags[b]; j < bags[b + 1]; ++j) {
      contributions[j] = DescribeLookup(feature, bags, b, j, args.weights);
    }
  }
}

// Sums rows [row_begin, row_end). Contributions and gradients lie scattered, so each is asked for
// ahead of its use, the contribution twice as early, since it says where the gradient is.
void SumBlock(const GradientSegmentSumArgs& args, int64_t row_begin, int64_t row_end,
              const GradientContribution* contributions) {
  const int64_t end = args.row_offsets[row_end];
  const auto prefetch = [&](int64_t k) {
    if (k + kPrefetchRowsAhead < end) {
      __builtin_prefetch(contributions + args.lookup_order[k + kPrefetchRowsAhead]);
    }
    if (k < end) {
      const GradientContribution& ahead = contributions[args.lookup_order[k]];
      PrefetchForRead(ahead.gradient, ahead.dim * static_cast<int64_t>(sizeof(float)));
    }
  };
  for (int64_t k = 0; k < kPrefetchRowsAhead; ++k) prefetch(args.row_offsets[row_begin] + k);
  for (int64_t u = row_begin; u < row_end; ++u) {
    const int64_t begin = args.row_offsets[u];
    HOTROW_DCHECK(begin < args.row_offsets[u + 1]);
    const int32_t dim = contributions[args.lookup_order[begin]].dim;
    SumRows(args.row_offsets[u + 1] - begin, dim, args.gradients[u], [&](int64_t i) {
      prefetch(begin + i + kPrefetchRowsAhead);
      const GradientContribution& c = contributions[args.lookup_order[begin + i]];
      HOTROW_DCHECK(c.dim == dim);
      return ScaledRow{c.gradient, c.scale};
    });
  }
}

}  // namespace

absl::Status GradientSegmentSumCpu(const ExecContext& ctx, const GradientSegmentSumArgs& args) {
  constexpr char kOp[] = "GradientSegmentSum";
  const auto num_features = static_cast<int64_t>(args.features.size());
  const int64_t num_lookups = args.offsets[num_features * args.batch_size];
  if (args.row_offsets[args.num_rows] != num_lookups) {
    return InvalidField(kOp, "row_offsets[num_rows]",
                        absl::StrCat("must be the number of lookups, ", num_lookups),
                        args.row_offsets[args.num_rows]);
  }
  HOTROW_RETURN_IF_ERROR(CheckWorkspace(kOp, args.workspace, args.workspace_bytes,
                                        GradientSegmentSumWorkspaceBytes(num_lookups)));
  HOTROW_RETURN_IF_ERROR(CheckUnpooledData(kOp, args.features, args.batch_size, args.offsets));
  auto* const contributions = reinterpret_cast<GradientContribution*>(args.workspace);
  ForEachSampleBlock(ctx, num_features, args.batch_size,
                     [&](int64_t f, int64_t begin, int64_t end) {
                       DescribeBlock(args, f, begin, end, contributions);
                     });
  constexpr int64_t kRowsPerBlock = 128;  // small, because a hot row can have thousands of lookups
  ParallelFor(ctx.pool, args.num_rows, kRowsPerBlock,
              [&](int64_t begin, int64_t end) { SumBlock(args, begin, end, contributions); });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
