#ifndef HOTROW_TESTS_OPS_JAGGED_PROBLEM_H_
#define HOTROW_TESTS_OPS_JAGGED_PROBLEM_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "ops/jagged.h"

namespace hotrow::test {

// A random batch with what PooledLookup and its gradient need: features of all pooling kinds, odd
// dims, shared tables, empty bags, empty features, with or without weights.
struct JaggedProblem {
  int64_t batch_size = 0;
  std::vector<JaggedFeature> features;  // data is set by BindData
  std::vector<int64_t> offsets;         // [F*B + 1]
  std::vector<float> weights;           // [N] or empty
  std::vector<int32_t> inverse;         // [N]; every row has a lookup
  std::vector<int32_t> row_dims;        // [U]
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<float>> data;  // per feature: what `features[f].data` points to

  int64_t num_lookups() const { return offsets.back(); }
  int64_t num_rows() const { return static_cast<int64_t>(rows.size()); }
  int64_t offset(size_t f, int64_t b) const {
    return offsets[f * static_cast<size_t>(batch_size) + static_cast<size_t>(b)];
  }
  float weight(int64_t j) const { return weights.empty() ? 1.0f : weights[j]; }
  const float* weights_or_null() const { return weights.empty() ? nullptr : weights.data(); }
  // Rows of output that feature f has.
  int64_t output_rows(size_t f) const {
    return features[f].pooling == Pooling::kNone ? offset(f + 1, 0) - offset(f, 0) : batch_size;
  }
  // Where lookup j of bag (f, b) goes to.
  int64_t output_row(size_t f, int64_t b, int64_t j) const {
    return features[f].pooling == Pooling::kNone ? j - offset(f, 0) : b;
  }
  double scale(size_t f, int64_t b, int64_t j) const {
    const double length = static_cast<double>(offset(f, b + 1) - offset(f, b));
    return features[f].pooling == Pooling::kMean ? weight(j) / length : weight(j);
  }
  std::vector<const std::byte*> row_pointers() const {
    std::vector<const std::byte*> pointers;
    for (const std::vector<float>& row : rows) {
      pointers.push_back(reinterpret_cast<const std::byte*>(row.data()));
    }
    return pointers;
  }
  // Calls body(f, b, j) for each lookup in order.
  template <typename Body>
  void ForEachLookup(Body&& body) const {
    for (size_t f = 0; f < features.size(); ++f) {
      for (int64_t b = 0; b < batch_size; ++b) {
        for (int64_t j = offset(f, b); j < offset(f, b + 1); ++j) body(f, b, j);
      }
    }
  }
};

inline constexpr float kUntouched = -777;  // what BindData fills with

// Gives every feature its own memory, with a gap between rows that nobody may touch.
inline void BindData(JaggedProblem& p) {
  p.data.resize(p.features.size());
  for (size_t f = 0; f < p.features.size(); ++f) {
    p.data[f].assign(static_cast<size_t>(p.output_rows(f) * p.features[f].stride), kUntouched);
    p.features[f].data = p.data[f].data();
  }
}

inline JaggedProblem RandomJaggedProblem(uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  const int32_t dims[] = {1, 3, 16, 17, 64};
  const int64_t batch_sizes[] = {0, 1, 5, 64, 300};
  JaggedProblem p;
  p.batch_size = batch_sizes[random.Below(std::size(batch_sizes))];
  const int64_t num_tables = 1 + static_cast<int64_t>(random.Below(4));
  const int64_t num_features = 1 + static_cast<int64_t>(random.Below(6));
  const bool weighted = random.Below(2) == 0;
  std::vector<int32_t> table_dims;
  std::vector<uint64_t> table_rows;  // 1: all lookups of the table hit one row
  for (int64_t t = 0; t < num_tables; ++t) {
    table_dims.push_back(dims[random.Below(std::size(dims))]);
    table_rows.push_back(1 + random.Below(random.Below(2) == 0 ? 1 : 200));
  }
  std::map<std::pair<uint64_t, uint64_t>, int32_t> row_of;
  p.offsets.push_back(0);
  for (int64_t f = 0; f < num_features; ++f) {
    const uint64_t table = random.Below(static_cast<uint64_t>(num_tables));
    const int32_t dim = table_dims[table];
    p.features.push_back({.dim = dim,
                          .pooling = static_cast<Pooling>(random.Below(3)),
                          .stride = dim + static_cast<int64_t>(random.Below(3))});
    const uint64_t hotness_max = random.Below(12);  // 0: the feature is empty
    for (int64_t b = 0; b < p.batch_size; ++b) {
      const uint64_t hotness = random.Below(hotness_max + 1);
      for (uint64_t i = 0; i < hotness; ++i) {
        const auto [it, is_new] = row_of.try_emplace({table, random.Below(table_rows[table])},
                                                     static_cast<int32_t>(p.rows.size()));
        if (is_new) {
          p.row_dims.push_back(dim);
          std::vector<float>& row = p.rows.emplace_back(dim);
          for (float& x : row) x = random.Normal();
        }
        p.inverse.push_back(it->second);
        if (weighted) p.weights.push_back(random.Normal());
      }
      p.offsets.push_back(static_cast<int64_t>(p.inverse.size()));
    }
  }
  BindData(p);
  return p;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_JAGGED_PROBLEM_H_
