#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/interactions/outer_product_impl.h"

namespace hotrow::internal {
namespace {

// A sample is a microsecond or less of work.
constexpr int64_t kChunkSamples = 64;

void SumFields(const OuterProductArgs& args, int64_t sample, std::vector<float>* sum) {
  const float* field = args.fields + sample * args.fields_stride;
  std::copy_n(field, args.dim, sum->data());
  for (int32_t f = 1; f < args.num_fields; ++f) {
    field += args.field_stride;
    for (size_t i = 0; i < sum->size(); ++i) (*sum)[i] += field[i];
  }
}

}  // namespace

absl::Status OuterProductCpu(ThreadPool* pool, const OuterProductArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(args.dim));
    for (int64_t b = begin; b < end; ++b) {
      SumFields(args, b, &sum);
      float* y = args.output + b * args.output_stride;
      for (size_t i = 0; i < sum.size(); ++i) {
        for (size_t j = 0; j <= i; ++j) *y++ = sum[i] * sum[j];
      }
    }
  });
  return absl::OkStatus();
}

absl::Status OuterProductGradCpu(ThreadPool* pool, const OuterProductGradArgs& args) {
  const OuterProductArgs& forward = args.forward;
  ParallelFor(pool, forward.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(forward.dim));
    std::vector<float> gradient(sum.size());
    for (int64_t b = begin; b < end; ++b) {
      SumFields(forward, b, &sum);
      std::ranges::fill(gradient, 0.0f);
      const float* dy = args.output_gradient + b * forward.output_stride;
      for (size_t i = 0; i < sum.size(); ++i) {
        for (size_t j = 0; j <= i; ++j, ++dy) {
          gradient[i] += *dy * sum[j];
          gradient[j] += *dy * sum[i];
        }
      }
      for (int32_t f = 0; f < forward.num_fields; ++f) {
        std::ranges::copy(gradient, args.fields_gradient + b * args.fields_gradient_stride +
                                        f * args.field_gradient_stride);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
