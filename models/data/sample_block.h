#ifndef HOTROW_MODELS_DATA_SAMPLE_BLOCK_H_
#define HOTROW_MODELS_DATA_SAMPLE_BLOCK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/data/ctr_batch.h"

namespace hotrow {

// One sample as a reader makes it. Dimensions: T labels, I dense features, F categorical ones.
struct Sample {
  float label = 0;                 // 0 or 1
  std::vector<float> more_labels;  // [T - 1], of further tasks
  std::vector<float> dense;        // [I]
  std::vector<uint64_t> values;    // the bags of all features one after the other
  std::vector<uint16_t> lengths;   // [F], their sum is values.size()
  std::optional<int64_t> time;     // seconds since 1970, where the data have times

  static constexpr int64_t kMaxHotness = UINT16_MAX;
};

// Samples in memory, packed: 1 byte a label, 4 a dense feature, 8 a lookup, 8 a time; as long as
// every bag holds one value, no lengths are kept.
//
// Threads: const methods may run concurrently.
class SampleBlock {
 public:
  SampleBlock(int32_t num_dense, int32_t num_features, int32_t num_labels = 1)
      : num_dense_(num_dense), num_features_(num_features), num_labels_(num_labels) {}

  int64_t size() const { return size_; }
  int64_t bytes() const;
  void Append(const Sample& sample);
  // The samples [begin, end) of another block, as if each were appended.
  void Append(const SampleBlock& from, int64_t begin, int64_t end);
  void Clear();  // keeps the memory
  void ShrinkToFit();

  int32_t num_dense() const { return num_dense_; }
  int32_t num_features() const { return num_features_; }
  int32_t num_labels() const { return num_labels_; }
  float label(int64_t i) const { return *labels(i); }  // the first one
  const uint8_t* labels(int64_t i) const { return labels_.data() + i * num_labels_; }
  const float* dense(int64_t i) const { return dense_.data() + i * num_dense_; }
  // The values of all features of sample i, feature after feature.
  const uint64_t* values(int64_t i) const {
    return values_.data() + (starts_.empty() ? i * num_features_ : starts_[static_cast<size_t>(i)]);
  }
  // Null where the samples have no time: all of them have one, or none.
  const int64_t* time(int64_t i) const { return times_.empty() ? nullptr : times_.data() + i; }
  // [F]; null where every bag of the block holds one value.
  const uint16_t* lengths(int64_t i) const {
    return starts_.empty() ? nullptr : lengths_.data() + i * num_features_;
  }

 private:
  void StartLengths();

  int32_t num_dense_;
  int32_t num_features_;
  int32_t num_labels_;
  int64_t size_ = 0;
  std::vector<uint8_t> labels_;   // [size, T]
  std::vector<float> dense_;      // [size, I]
  std::vector<uint64_t> values_;  // sample-major
  std::vector<int64_t> times_;    // [size], or empty
  // Empty until the first sample that does not have one value a bag.
  std::vector<uint16_t> lengths_;  // [size, F]
  std::vector<int64_t> starts_;    // [size], of the sample in values_
};

struct SampleRef {
  const SampleBlock* block;
  int64_t index;
};

// Copies the samples into a batch, in this order. All blocks have the same I, F and T.
void GatherSamples(std::span<const SampleRef> samples, int32_t num_dense, int32_t num_features,
                   CtrBatch* batch, int32_t num_labels = 1);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_SAMPLE_BLOCK_H_
