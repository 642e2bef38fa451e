#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "ops/half_impl.h"
#include "ops/jagged_impl.h"
#include "ops/prefetch.h"
#include "ops/rows/pooled_lookup.h"
#include "ops/rows/pooled_lookup_impl.h"
#include "ops/rows/row_sum_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

absl::Status CheckPointers(const PooledLookupArgs& args) {
  constexpr char kOp[] = "PooledLookup";
  const auto num_features = static_cast<int64_t>(args.features.size());
  if (args.offsets[num_features * args.batch_size] == 0) return absl::OkStatus();
  if (args.inverse == nullptr) return NullField(kOp, "inverse");
  if (args.rows == nullptr) return NullField(kOp, "rows");
  return CheckUnpooledData(kOp, args.features, args.batch_size, args.offsets);
}

// The lookups of samples [sample_begin, sample_end) of one feature. Rows are asked for a few
// lookups ahead, across the borders of bags: most bags are shorter than the way to DRAM.
template <WeightsPrecision kPrecision>
class BlockLookup {
 public:
  BlockLookup(const PooledLookupArgs& args, int64_t f, int64_t sample_begin, int64_t sample_end)
      : args_(args),
        feature_(args.features[f]),
        feature_begin_(args.offsets[f * args.batch_size]),
        bags_(args.offsets + f * args.batch_size),
        sample_begin_(sample_begin),
        sample_end_(sample_end),
        end_(bags_[sample_end]),
        row_bytes_(feature_.dim * WeightBytes(kPrecision)),
        output_bytes_(feature_.dim * static_cast<int64_t>(sizeof(float))) {
    const int64_t begin = bags_[sample_begin];
    const int64_t warm_end = std::min(begin + kPrefetchRowsAhead, end_);
    for (int64_t j = begin; j < warm_end; ++j) PrefetchLookup(j);
  }

  void Run() {
    if (feature_.pooling == Pooling::kNone) {
      for (int64_t j = bags_[sample_begin_]; j < end_; ++j) {
        Pool(j, j + 1, feature_.data + (j - feature_begin_) * feature_.stride);
      }
      return;
    }
    for (int64_t b = sample_begin_; b < sample_end_; ++b) {
      float* const output = feature_.data + b * feature_.stride;
      // The outputs of all features often share one wide row per sample, so these writes scatter
      // too.
      if (b + kPrefetchRowsAhead < sample_end_) {
        PrefetchForWrite(output + kPrefetchRowsAhead * feature_.stride, output_bytes_);
      }
      const int64_t length = bags_[b + 1] - bags_[b];
      Pool(bags_[b], bags_[b + 1], output);
      if (feature_.pooling == Pooling::kMean && length > 1) {
        const Vec8 divisor = Vec8::Set(static_cast<float>(length));
        ForEachVec8(feature_.dim, [&](int64_t d, auto lanes) {
          StoreLanes(LoadLanes(output + d, lanes) / divisor, output + d, lanes);
        });
      }
    }
  }

 private:
  void PrefetchLookup(int64_t j) const {
    PrefetchForRead(args_.rows[args_.inverse[j]], row_bytes_);
  }

  void Pool(int64_t begin, int64_t end, float* output) const {
    if (begin == end) {
      if (!args_.adds) std::memset(output, 0, static_cast<size_t>(output_bytes_));
      return;
    }
    const auto term = [&](int64_t i) {
      const int64_t j = begin + i;
      if (j + kPrefetchRowsAhead < end_) PrefetchLookup(j + kPrefetchRowsAhead);
      return ScaledRow{args_.rows[args_.inverse[j]],
                       args_.weights == nullptr ? 1.0f : args_.weights[j]};
    };
    SumRows<kPrecision>(end - begin, feature_.dim, output, term, args_.adds);
  }

  const PooledLookupArgs& args_;
  const JaggedFeature& feature_;
  const int64_t feature_begin_;
  const int64_t* const bags_;  // [B + 1] of the feature
  const int64_t sample_begin_;
  const int64_t sample_end_;
  const int64_t end_;        // of the block's lookups
  const int64_t row_bytes_;  // of the weights
  const int64_t output_bytes_;
};

}  // namespace

absl::Status PooledLookupCpu(const ExecContext& ctx, const PooledLookupArgs& args) {
  HOTROW_RETURN_IF_ERROR(CheckPointers(args));
  ForEachSampleBlock(ctx, static_cast<int64_t>(args.features.size()), args.batch_size,
                     [&](int64_t f, int64_t begin, int64_t end) {
                       WithPrecision(args.features[f].precision, [&](auto precision) {
                         BlockLookup<precision()>(args, f, begin, end).Run();
                       });
                     });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
