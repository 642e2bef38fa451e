#ifndef HOTROW_TESTS_OPS_JAGGED_PROBLEM_CUDA_H_
#define HOTROW_TESTS_OPS_JAGGED_PROBLEM_CUDA_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "tests/ops/jagged_problem.h"
#include "tests/support/device_array.cuh"

namespace hotrow::test {

// Vectors of floats side by side in device memory, and where each begins: on a multiple of 16 bytes
// when `aligned`, else four bytes behind one.
class DeviceRows {
 public:
  DeviceRows(const std::vector<std::vector<float>>& rows, bool aligned) {
    int64_t next = aligned ? 0 : 1;
    std::vector<int64_t> begins;
    for (const std::vector<float>& row : rows) {
      begins.push_back(next);
      sizes_.push_back(std::ssize(row));
      next += (std::ssize(row) + 1 + 3) / 4 * 4;  // at least one float between two rows
    }
    std::vector<float> floats(static_cast<size_t>(next), kUntouched);
    for (size_t u = 0; u < rows.size(); ++u) {
      std::copy(rows[u].begin(), rows[u].end(), floats.begin() + begins[u]);
    }
    floats_ = std::make_unique<DeviceArray<float>>(floats);
    begins_ = std::move(begins);
    std::vector<float*> pointers;
    for (const int64_t begin : begins_) pointers.push_back(floats_->data() + begin);
    pointers_ = std::make_unique<DeviceArray<float*>>(pointers);
  }

  float* const* pointers() { return pointers_->data(); }
  const std::byte* const* byte_pointers() {
    return reinterpret_cast<const std::byte* const*>(pointers_->data());
  }
  // Also looks at the float behind each row, which nobody may touch.
  std::vector<std::vector<float>> ToHost() const {
    const std::vector<float> floats = floats_->ToHost();
    std::vector<std::vector<float>> rows;
    for (size_t u = 0; u < begins_.size(); ++u) {
      const auto begin = floats.begin() + begins_[u];
      rows.emplace_back(begin, begin + sizes_[u]);
      EXPECT_EQ(begin[sizes_[u]], kUntouched) << "behind row " << u;
    }
    return rows;
  }

 private:
  std::vector<int64_t> begins_;
  std::vector<int64_t> sizes_;
  std::unique_ptr<DeviceArray<float>> floats_;
  std::unique_ptr<DeviceArray<float*>> pointers_;
};

// A problem in device memory.
struct DeviceProblem {
  DeviceProblem(const JaggedProblem& p, bool aligned)
      : offsets(p.offsets),
        weights(p.weights),
        inverse(p.inverse),
        rows(p.rows, aligned),
        data(p.data, aligned),
        features(p.features) {
    const std::vector<float*> pointers = DataPointers();
    for (size_t f = 0; f < features.size(); ++f) features[f].data = pointers[f];
    weights_or_null = p.weights.empty() ? nullptr : weights.data();
  }

  DeviceArray<int64_t> offsets;
  DeviceArray<float> weights;
  DeviceArray<int32_t> inverse;
  DeviceRows rows;
  DeviceRows data;  // one "row" for each feature
  std::vector<JaggedFeature> features;
  const float* weights_or_null;

 private:
  std::vector<float*> DataPointers() {
    std::vector<float*> pointers(features.size());
    if (pointers.empty()) return pointers;
    EXPECT_EQ(cudaMemcpy(pointers.data(), data.pointers(), pointers.size() * sizeof(float*),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return pointers;
  }
};

// A problem with the features that are given (dim, pooling and stride), whose bag (f, b) has
// length(f, b) lookups. Features of equal dim share a table of `table_rows` rows; a third of all
// lookups go to its first one. Data is drawn at random.
inline JaggedProblem BuildJaggedProblem(uint64_t seed, int64_t batch_size,
                                        const std::vector<JaggedFeature>& features,
                                        uint64_t table_rows, bool weighted,
                                        const std::function<int64_t(size_t f, int64_t b)>& length) {
  RandomStream random(seed, RandomPurpose::kTest, /*stream=*/3);
  JaggedProblem p;
  p.batch_size = batch_size;
  p.features = features;
  p.offsets.push_back(0);
  std::map<std::pair<int32_t, uint64_t>, int32_t> row_of;
  for (size_t f = 0; f < features.size(); ++f) {
    const int32_t dim = features[f].dim;
    for (int64_t b = 0; b < batch_size; ++b) {
      for (int64_t i = length(f, b); i > 0; --i) {
        const uint64_t id = random.Below(3) == 0 ? 0 : random.Below(table_rows);
        const auto [it, is_new] =
            row_of.try_emplace({dim, id}, static_cast<int32_t>(p.rows.size()));
        if (is_new) {
          p.row_dims.push_back(dim);
          std::vector<float>& row = p.rows.emplace_back(dim);
          for (float& x : row) x = random.Below(16) == 0 ? -0.0f : random.Normal();
        }
        p.inverse.push_back(it->second);
        if (weighted) p.weights.push_back(random.Normal());
      }
      p.offsets.push_back(std::ssize(p.inverse));
    }
  }
  BindData(p);
  return p;
}

inline void FillDataAtRandom(JaggedProblem& p, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest, /*stream=*/1);
  for (std::vector<float>& data : p.data) {
    for (float& x : data) x = random.Normal();
  }
}

// Features of every width that kernels treat on its own, with every pooling, with and without a gap
// behind each output row, each width twice.
inline std::vector<JaggedFeature> FeaturesOfAllWidths() {
  std::vector<JaggedFeature> features;
  for (int twice = 0; twice < 2; ++twice) {
    for (const int32_t dim : {1, 3, 7, 16, 64, 100, 128, 1000}) {
      for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kNone}) {
        features.push_back({.dim = dim, .pooling = pooling, .stride = dim + 5 * twice});
      }
    }
  }
  return features;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_JAGGED_PROBLEM_CUDA_H_
