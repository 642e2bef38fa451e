#include "models/data/sample_block.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace hotrow {

int64_t SampleBlock::bytes() const {
  return static_cast<int64_t>(
      labels_.size() * sizeof(labels_[0]) + dense_.size() * sizeof(dense_[0]) +
      values_.size() * sizeof(values_[0]) + lengths_.size() * sizeof(lengths_[0]) +
      starts_.size() * sizeof(starts_[0]) + times_.size() * sizeof(times_[0]));
}

void SampleBlock::StartLengths() {
  lengths_.assign(static_cast<size_t>(size_ * num_features_), 1);
  starts_.resize(static_cast<size_t>(size_));
  for (size_t i = 0; i < starts_.size(); ++i) {
    starts_[i] = static_cast<int64_t>(i) * num_features_;
  }
}

void SampleBlock::Append(const Sample& sample) {
  HOTROW_DCHECK(static_cast<int32_t>(sample.dense.size()) == num_dense_);
  HOTROW_DCHECK(static_cast<int32_t>(sample.lengths.size()) == num_features_);
  HOTROW_DCHECK(static_cast<int32_t>(sample.more_labels.size()) + 1 == num_labels_);
  const bool single = std::all_of(sample.lengths.begin(), sample.lengths.end(),
                                  [](uint16_t length) { return length == 1; });
  if (!single || !starts_.empty()) {
    if (starts_.empty()) StartLengths();
    starts_.push_back(static_cast<int64_t>(values_.size()));
    lengths_.insert(lengths_.end(), sample.lengths.begin(), sample.lengths.end());
  }
  labels_.push_back(sample.label > 0 ? 1 : 0);
  for (const float label : sample.more_labels) labels_.push_back(label > 0 ? 1 : 0);
  dense_.insert(dense_.end(), sample.dense.begin(), sample.dense.end());
  values_.insert(values_.end(), sample.values.begin(), sample.values.end());
  if (sample.time.has_value()) times_.push_back(*sample.time);
  ++size_;
}

void SampleBlock::Append(const SampleBlock& from, int64_t begin, int64_t end) {
  HOTROW_DCHECK(from.num_dense_ == num_dense_);
  HOTROW_DCHECK(from.num_features_ == num_features_);
  HOTROW_DCHECK(from.num_labels_ == num_labels_);
  HOTROW_DCHECK(0 <= begin && begin <= end && end <= from.size_);
  if (begin == end) return;
  const int64_t n = end - begin;
  const uint64_t* const first = from.values(begin);
  const uint64_t* const last =
      end < from.size_ ? from.values(end) : from.values_.data() + from.values_.size();
  const uint16_t* const lengths = from.lengths(begin);
  const bool single =
      lengths == nullptr || std::all_of(lengths, lengths + n * num_features_,
                                        [](uint16_t length) { return length == 1; });
  if (!single || !starts_.empty()) {
    if (starts_.empty()) StartLengths();
    for (int64_t i = begin; i < end; ++i) {
      starts_.push_back(static_cast<int64_t>(values_.size()) + (from.values(i) - first));
    }
    if (lengths == nullptr) {
      lengths_.resize(lengths_.size() + static_cast<size_t>(n * num_features_), 1);
    } else {
      lengths_.insert(lengths_.end(), lengths, lengths + n * num_features_);
    }
  }
  labels_.insert(labels_.end(), from.labels(begin), from.labels(begin) + n * num_labels_);
  dense_.insert(dense_.end(), from.dense(begin), from.dense(begin) + n * num_dense_);
  values_.insert(values_.end(), first, last);
  if (const int64_t* const times = from.time(begin)) times_.insert(times_.end(), times, times + n);
  size_ += n;
}

void SampleBlock::Clear() {
  size_ = 0;
  labels_.clear();
  dense_.clear();
  values_.clear();
  times_.clear();
  lengths_.clear();
  starts_.clear();
}

void SampleBlock::ShrinkToFit() {
  labels_.shrink_to_fit();
  dense_.shrink_to_fit();
  values_.shrink_to_fit();
  times_.shrink_to_fit();
  lengths_.shrink_to_fit();
  starts_.shrink_to_fit();
}

namespace {

// Samples that are copied together: their rows of a feature-major array share cache lines, and
// their own rows fit in the L1 cache. Feature by feature over a whole batch would read every sample
// F times; sample by sample would write F cache lines that are a power of two apart.
constexpr int64_t kTile = 16;

// Sets offsets[f*B + b + 1] to the length of the bag, then sums them up; returns N.
int64_t FillOffsets(std::span<const SampleRef> samples, int64_t num_features,
                    SharedVector<int64_t>* offsets) {
  const auto batch_size = static_cast<int64_t>(samples.size());
  offsets->resize(static_cast<size_t>(num_features * batch_size + 1));
  const bool single = std::all_of(samples.begin(), samples.end(), [](const SampleRef& sample) {
    return sample.block->lengths(sample.index) == nullptr;
  });
  if (single) {
    std::iota(offsets->begin(), offsets->end(), 0);
    return offsets->back();
  }
  (*offsets)[0] = 0;
  for (int64_t begin = 0; begin < batch_size; begin += kTile) {
    const int64_t end = std::min(begin + kTile, batch_size);
    const uint16_t* lengths[kTile];
    for (int64_t b = begin; b < end; ++b) {
      const SampleRef sample = samples[static_cast<size_t>(b)];
      lengths[b - begin] = sample.block->lengths(sample.index);
    }
    for (int64_t f = 0; f < num_features; ++f) {
      int64_t* const out = offsets->data() + f * batch_size + 1;
      for (int64_t b = begin; b < end; ++b) {
        const uint16_t* const of_sample = lengths[b - begin];
        out[b] = of_sample == nullptr ? 1 : of_sample[f];
      }
    }
  }
  for (size_t i = 1; i < offsets->size(); ++i) (*offsets)[i] += (*offsets)[i - 1];
  return offsets->back();
}

// Asks for the memory of samples that are copied soon: shuffled, they lie anywhere.
void Prefetch(std::span<const SampleRef> samples, int32_t num_dense, int32_t num_features) {
  constexpr int64_t kLineBytes = 64;
  for (const SampleRef& sample : samples) {
    const auto* values = reinterpret_cast<const char*>(sample.block->values(sample.index));
    for (int64_t at = 0; at < 8 * num_features; at += kLineBytes) __builtin_prefetch(values + at);
    const auto* dense = reinterpret_cast<const char*>(sample.block->dense(sample.index));
    for (int64_t at = 0; at < 4 * num_dense; at += kLineBytes) __builtin_prefetch(dense + at);
  }
}

}  // namespace

void GatherSamples(std::span<const SampleRef> samples, int32_t num_dense, int32_t num_features,
                   CtrBatch* batch, int32_t num_labels) {
  const auto batch_size = static_cast<int64_t>(samples.size());
  batch->batch_size = batch_size;
  batch->weights.clear();
  batch->true_probability.clear();
  batch->num_labels = num_labels;
  batch->times.clear();
  for (const SampleRef& sample : samples) {
    const int64_t* const time = sample.block->time(sample.index);
    if (time == nullptr) break;
    batch->times.push_back(*time);
  }
  batch->labels.resize(samples.size() * static_cast<size_t>(num_labels));
  batch->dense.resize(samples.size() * static_cast<size_t>(num_dense));
  const int64_t lookups = FillOffsets(samples, num_features, &batch->offsets);
  batch->values.resize(static_cast<size_t>(lookups));
  uint64_t* const values = batch->values.data();
  const int64_t* const offsets = batch->offsets.data();
  for (int64_t begin = 0; begin < batch_size; begin += kTile) {
    const int64_t end = std::min(begin + kTile, batch_size);
    const int64_t next_end = std::min(end + kTile, batch_size);
    Prefetch(samples.subspan(static_cast<size_t>(end), static_cast<size_t>(next_end - end)),
             num_dense, num_features);
    const uint64_t* from[kTile];
    for (int64_t b = begin; b < end; ++b) {
      const SampleRef sample = samples[static_cast<size_t>(b)];
      if (num_labels == 1) {
        batch->labels[static_cast<size_t>(b)] = sample.block->label(sample.index);
      } else {
        const uint8_t* const labels = sample.block->labels(sample.index);
        std::copy_n(labels, num_labels, batch->labels.data() + b * num_labels);
      }
      if (num_dense > 0) {
        std::memcpy(batch->dense.data() + b * num_dense, sample.block->dense(sample.index),
                    static_cast<size_t>(num_dense) * sizeof(float));
      }
      from[b - begin] = sample.block->values(sample.index);
    }
    for (int64_t f = 0; f < num_features; ++f) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t bag_end = offsets[f * batch_size + b + 1];
        for (int64_t at = offsets[f * batch_size + b]; at < bag_end; ++at) {
          values[at] = *from[b - begin]++;
        }
      }
    }
  }
}

}  // namespace hotrow
