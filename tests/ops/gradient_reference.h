#ifndef HOTROW_TESTS_OPS_GRADIENT_REFERENCE_H_
#define HOTROW_TESTS_OPS_GRADIENT_REFERENCE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "ops/jagged.h"
#include "ops/keys/partition.h"
#include "tests/ops/jagged_problem.h"
#include "tests/support/test_util.h"

namespace hotrow::test {

// The lookups of each row, in order.
struct Order {
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> lookup_order;
};

inline Order OrderOf(const JaggedProblem& p) {
  Order order;
  order.row_offsets.resize(p.rows.size() + 1);
  order.lookup_order.resize(p.inverse.size());
  HOTROW_EXPECT_OK(Partition({}, {.part = p.inverse.data(),
                                  .num_items = p.num_lookups(),
                                  .num_parts = p.num_rows(),
                                  .offsets = order.row_offsets.data(),
                                  .order = order.lookup_order.data()}));
  return order;
}

// What ops/update/gradient_segment_sum.h promises of a device, in floats: the lookups of a row in
// order; from 512 on in runs of 256, the last one with what is left, then the sums of the runs in
// order.
inline std::vector<std::vector<float>> GradientsOfDevice(const JaggedProblem& p,
                                                         const Order& order) {
  struct Term {
    const float* gradient;
    float scale;
  };
  std::vector<Term> terms(p.inverse.size());
  p.ForEachLookup([&](size_t f, int64_t b, int64_t j) {
    const JaggedFeature& feature = p.features[f];
    const auto length = static_cast<float>(p.offset(f, b + 1) - p.offset(f, b));
    terms[j] = {feature.data + p.output_row(f, b, j) * feature.stride,
                feature.pooling == Pooling::kMean ? p.weight(j) / length : p.weight(j)};
  });
  std::vector<std::vector<float>> sums;
  for (size_t u = 0; u < p.rows.size(); ++u) {
    const int64_t begin = order.row_offsets[u];
    const int64_t end = order.row_offsets[u + 1];
    const int64_t runs = end - begin < 512 ? 1 : (end - begin) / 256;
    std::vector<float> sum(static_cast<size_t>(p.row_dims[u]));
    for (size_t d = 0; d < sum.size(); ++d) {
      for (int64_t r = 0; r < runs; ++r) {
        const int64_t run_begin = begin + r * 256;
        const int64_t run_end = r + 1 == runs ? end : run_begin + 256;
        float run_sum = 0;
        for (int64_t k = run_begin; k < run_end; ++k) {
          const Term& term = terms[order.lookup_order[k]];
          const float y = term.scale * term.gradient[d];
          run_sum = k == run_begin ? y : run_sum + y;
        }
        sum[d] = r == 0 ? run_sum : sum[d] + run_sum;
      }
    }
    sums.push_back(std::move(sum));
  }
  return sums;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_GRADIENT_REFERENCE_H_
