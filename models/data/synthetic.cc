#include "models/data/synthetic.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "models/data/permutation.h"
#include "models/data/rank_rotation.h"
#include "models/data/zipf.h"

namespace hotrow {
namespace {

// The planted model; see the header. The shares are chosen so that a DLRM learns nearly all of it
// from a million samples: dense features and hot ids carry most of the signal.
constexpr double kClickRate = 0.25;
constexpr double kLogitDeviation = 1.4;
constexpr double kMaxScale = 4;
constexpr double kDenseVariance = 0.75;
constexpr double kIdVariance = 1.0;
constexpr double kPairVariance = 0.25;
constexpr double kFadeRank = 10;
constexpr int64_t kMaxPairs = 2;
constexpr int kLatentDim = 2;  // two words of a block are left for it
constexpr int64_t kCalibrationSamples = 4096;

// Samples that are generated together: their scratch stays in the L1 cache.
constexpr int64_t kChunk = 128;

// What a Philox block is for: the low bits of its last counter word. 0 is left to RandomStream.
enum RandomUse : uint32_t {
  kOrder = 1,    // a: epoch
  kScramble,     // a: table
  kLookup,       // a: sample, b: feature and place in the bag
  kHotness,      // a: sample, b: feature
  kDenseValue,   // a: sample, b: pair of dense features
  kLabel,        // a: sample
  kEffect,       // a: place, b: table
  kDenseWeight,  // a: dense feature
  kRotation,     // a: pass over resident samples, b: table
};
constexpr uint32_t kUseBits = 4;

PhiloxBlock DataBlock(uint64_t seed, RandomUse use, uint64_t a, uint32_t b, uint32_t retry = 0) {
  return RandomBlock(seed, RandomPurpose::kData, a, b, use | retry << kUseBits);
}

// The split is the top of the sample number, so that the splits share no sample. Calibration
// samples come from a fourth one.
constexpr uint64_t kCalibrationSplit = 3;
constexpr int kSplitShift = 62;
constexpr uint64_t SampleBase(uint64_t split) { return split << kSplitShift; }

// Mean 0, variance 1, nearly normal, without log and cos: the sum of four uniform 16-bit numbers
// (Irwin & Hall). Each has variance (2^32 - 1) / 12.
float Bell(uint32_t bits0, uint32_t bits1) {
  const auto sum =
      static_cast<int32_t>((bits0 & 0xffff) + (bits0 >> 16) + (bits1 & 0xffff) + (bits1 >> 16));
  constexpr float kScale = 1.7320508f / 65536;  // sqrt(12 / 4) / 2^16
  return static_cast<float>(sum - 131070) * kScale;
}

int64_t DefaultHeldOut(int64_t samples) {
  return std::max<int64_t>(20'000, std::min<int64_t>(100'000, samples / 10));
}

// ---- The planted model

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class Generator {
 public:
  explicit Generator(const SyntheticOptions& options);

  uint32_t TableOf(int64_t feature) const {
    return static_cast<uint32_t>(feature < options_.tables ? feature : 0);
  }

  // Scratch of one caller; reused from batch to batch.
  struct Scratch {
    std::vector<uint64_t> ranks;   // the lookups of one feature in one chunk
    std::vector<uint64_t> places;  // of these where popularity drifts
    std::vector<float> latent;     // [2 * pairs, kChunk, kLatentDim]
    std::vector<float> raw;        // [B]
  };

  enum class Values { kIds, kRanks };

  // Fills the batch with the samples of these numbers (with the split on top). kRanks: IdsOf has
  // yet to make ids of what is looked up.
  void Generate(std::span<const uint64_t> samples, CtrBatch* batch, Scratch* scratch,
                Values what = Values::kIds) const;
  // The ranks of one feature, rotated, as ids.
  void IdsOf(int64_t feature, const RankRotation& rotation, std::span<const uint64_t> ranks,
             uint64_t* ids) const;
  // The rotations of the tables, in one pass over resident samples.
  std::vector<RankRotation> RotationsOf(uint64_t pass) const;
  const SyntheticOptions& options() const { return options_; }

 private:
  // Everything but labels and probabilities; scratch->raw gets what bias and scale are applied to.
  void GenerateInputs(std::span<const uint64_t> samples, CtrBatch* batch, Scratch* scratch,
                      Values what) const;
  void FillOffsets(std::span<const uint64_t> samples, CtrBatch* batch) const;
  void FillDense(std::span<const uint64_t> samples, float* dense, float* raw) const;
  void FillRanks(std::span<const uint64_t> samples, int64_t feature, const int64_t* offsets,
                 std::vector<uint64_t>* ranks) const;
  uint64_t DriftOf(uint64_t sample) const;
  int64_t TimeOf(uint64_t sample) const;
  void FillPlaces(std::span<const uint64_t> samples, const int64_t* offsets,
                  const std::vector<uint64_t>& ranks, std::vector<uint64_t>* places) const;
  void AddIdEffects(int64_t feature, int64_t num_samples, const int64_t* offsets,
                    const uint64_t* ranks, const uint64_t* places, float* latent, float* raw) const;
  void AddPairEffects(int64_t num_samples, const float* latent, float* raw) const;
  void Calibrate();

  const SyntheticOptions options_;
  int64_t pairs_;
  float id_scale_;
  float latent_scale_;
  float pair_scale_;
  ZipfSampler zipf_;                    // all tables have the same size
  std::vector<Permutation> scrambles_;  // place to id, one a table
  std::vector<float> dense_weights_;
  double bias_ = 0;
  double scale_ = 1;
};

Generator::Generator(const SyntheticOptions& options)
    : options_(options),
      pairs_(std::min(kMaxPairs, options.features() / 2)),
      zipf_(static_cast<uint64_t>(options.rows), options.zipf) {
  const double mean_hotness = static_cast<double>(options.hotness_min + options.hotness_max) / 2;
  id_scale_ = static_cast<float>(
      std::sqrt(kIdVariance / (static_cast<double>(options.features()) * mean_hotness)));
  // kLatentDim components uniform in [-1/2, 1/2): E|u|^2 = kLatentDim / 12 before scaling.
  latent_scale_ = static_cast<float>(std::sqrt(12.0 / (kLatentDim * mean_hotness)));
  // u and u' are independent, so E (u . u')^2 = E|u|^2 E|u'|^2 / kLatentDim.
  pair_scale_ = static_cast<float>(
      pairs_ == 0 ? 0 : std::sqrt(kPairVariance * kLatentDim / static_cast<double>(pairs_)));
  for (int64_t table = 0; table < options.tables; ++table) {
    scrambles_.emplace_back(static_cast<uint64_t>(options.rows), options.seed,
                            static_cast<uint64_t>(table), kScramble);
  }
  double norm = 0;
  for (int64_t i = 0; i < options.dense; ++i) {
    const PhiloxBlock block = DataBlock(options.seed, kDenseWeight, static_cast<uint64_t>(i), 0);
    dense_weights_.push_back(Bell(block.v[0], block.v[1]));
    norm += static_cast<double>(dense_weights_.back()) * dense_weights_.back();
  }
  for (float& w : dense_weights_) {
    w = static_cast<float>(w * std::sqrt(kDenseVariance / norm));
  }
  Calibrate();
}

void Generator::Calibrate() {
  // A lookup costs some 20 ns; very wide samples are calibrated on fewer.
  const int64_t lookups = options_.features() * options_.hotness_max;
  const int64_t n = std::clamp<int64_t>((int64_t{1} << 24) / lookups, 256, kCalibrationSamples);
  CtrBatch batch;
  Scratch scratch;
  std::vector<float> raw;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    std::vector<uint64_t> samples(static_cast<size_t>(std::min(kChunk, n - begin)));
    std::iota(samples.begin(), samples.end(),
              SampleBase(kCalibrationSplit) + static_cast<uint64_t>(begin));
    GenerateInputs(samples, &batch, &scratch, Values::kRanks);
    raw.insert(raw.end(), scratch.raw.begin(), scratch.raw.end());
  }
  const double mean = std::accumulate(raw.begin(), raw.end(), 0.0) / static_cast<double>(n);
  double variance = 0;
  for (const float r : raw) variance += (r - mean) * (r - mean) / static_cast<double>(n);
  scale_ = std::min(kMaxScale, kLogitDeviation / std::max(std::sqrt(variance), 1e-6));
  // The mean probability grows with the bias: bisection, to the last bit that matters.
  double low = -scale_ * mean - 20;
  double high = -scale_ * mean + 20;
  for (int i = 0; i < 48; ++i) {
    bias_ = (low + high) / 2;
    double sum = 0;
    for (const float r : raw) sum += Sigmoid(bias_ + scale_ * r);
    (sum < kClickRate * static_cast<double>(n) ? low : high) = bias_;
  }
}

void Generator::Generate(std::span<const uint64_t> samples, CtrBatch* batch, Scratch* scratch,
                         Values what) const {
  GenerateInputs(samples, batch, scratch, what);
  batch->num_labels = 1;
  batch->labels.resize(samples.size());
  batch->true_probability.resize(samples.size());
  batch->times.clear();
  for (size_t i = 0; options_.seconds > 0 && i < samples.size(); ++i) {
    batch->times.push_back(TimeOf(samples[i]));
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    const double p = Sigmoid(bias_ + scale_ * scratch->raw[i]);
    const PhiloxBlock block = DataBlock(options_.seed, kLabel, samples[i], 0);
    batch->true_probability[i] = static_cast<float>(p);
    batch->labels[i] = UniformDouble(block.v[0], block.v[1]) < p ? 1.0f : 0.0f;
  }
}

std::vector<RankRotation> Generator::RotationsOf(uint64_t pass) const {
  std::vector<RankRotation> rotations(static_cast<size_t>(options_.tables));
  if (pass == 0) return rotations;
  for (size_t table = 0; table < rotations.size(); ++table) {
    const PhiloxBlock block =
        DataBlock(options_.seed, kRotation, pass, static_cast<uint32_t>(table));
    rotations[table] = RankRotation(static_cast<uint64_t>(options_.rows),
                                    static_cast<uint64_t>(block.v[0]) << 32 | block.v[1]);
  }
  return rotations;
}

void Generator::IdsOf(int64_t feature, const RankRotation& rotation,
                      std::span<const uint64_t> ranks, uint64_t* ids) const {
  const Permutation& scramble = scrambles_[TableOf(feature)];
  for (const uint64_t rank : ranks) *ids++ = scramble(rotation(rank));
}

void Generator::GenerateInputs(std::span<const uint64_t> samples, CtrBatch* batch, Scratch* scratch,
                               Values what) const {
  const auto batch_size = static_cast<int64_t>(samples.size());
  batch->batch_size = batch_size;
  batch->dense.resize(static_cast<size_t>(batch_size * options_.dense));
  FillOffsets(samples, batch);
  batch->values.resize(static_cast<size_t>(batch->offsets.back()));
  batch->weights.clear();
  scratch->raw.resize(samples.size());
  scratch->latent.resize(static_cast<size_t>(2 * pairs_ * kChunk * kLatentDim));
  for (int64_t begin = 0; begin < batch_size; begin += kChunk) {
    const int64_t n = std::min(kChunk, batch_size - begin);
    const auto chunk = samples.subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
    float* raw = scratch->raw.data() + begin;
    FillDense(chunk, batch->dense.data() + begin * options_.dense, raw);
    for (int64_t feature = 0; feature < options_.features(); ++feature) {
      const int64_t* offsets = batch->offsets.data() + feature * batch_size + begin;
      FillRanks(chunk, feature, offsets, &scratch->ranks);
      const std::vector<uint64_t>* places = &scratch->ranks;
      if (options_.drift > 0) {
        FillPlaces(chunk, offsets, scratch->ranks, &scratch->places);
        places = &scratch->places;
      }
      uint64_t* const values = batch->values.data() + offsets[0];
      if (what == Values::kRanks) {
        std::copy(scratch->ranks.begin(), scratch->ranks.end(), values);
      } else {
        const Permutation& scramble = scrambles_[TableOf(feature)];
        for (size_t i = 0; i < places->size(); ++i) values[i] = scramble((*places)[i]);
      }
      float* latent =
          feature < 2 * pairs_ ? scratch->latent.data() + feature * kChunk * kLatentDim : nullptr;
      AddIdEffects(feature, n, offsets, scratch->ranks.data(), places->data(), latent, raw);
    }
    AddPairEffects(n, scratch->latent.data(), raw);
  }
}

void Generator::FillOffsets(std::span<const uint64_t> samples, CtrBatch* batch) const {
  const int64_t bags = options_.features() * static_cast<int64_t>(samples.size());
  batch->offsets.resize(static_cast<size_t>(bags + 1));
  int64_t* offsets = batch->offsets.data();
  if (options_.hotness_min == options_.hotness_max) {
    for (int64_t i = 0; i <= bags; ++i) offsets[i] = i * options_.hotness_max;
    return;
  }
  const auto choices = static_cast<uint64_t>(options_.hotness_max - options_.hotness_min + 1);
  int64_t sum = 0;
  offsets[0] = 0;
  for (int64_t feature = 0; feature < options_.features(); ++feature) {
    for (const uint64_t sample : samples) {
      const PhiloxBlock block =
          DataBlock(options_.seed, kHotness, sample, static_cast<uint32_t>(feature));
      sum += options_.hotness_min + FastRange32(block.v[0], choices);
      *++offsets = sum;
    }
  }
}

// dense [n, I]; raw [n] is overwritten.
void Generator::FillDense(std::span<const uint64_t> samples, float* dense, float* raw) const {
  for (const uint64_t sample : samples) {
    float sum = 0;
    for (int64_t i = 0; i < options_.dense; i += 2) {
      const PhiloxBlock block =
          DataBlock(options_.seed, kDenseValue, sample, static_cast<uint32_t>(i / 2));
      dense[i] = Bell(block.v[0], block.v[1]);
      sum += dense_weights_[static_cast<size_t>(i)] * dense[i];
      if (i + 1 < options_.dense) {
        dense[i + 1] = Bell(block.v[2], block.v[3]);
        sum += dense_weights_[static_cast<size_t>(i + 1)] * dense[i + 1];
      }
    }
    *raw++ = sum;
    dense += options_.dense;
  }
}

// offsets [n + 1] are those of this feature's bags; *ranks begin at offsets[0].
void Generator::FillRanks(std::span<const uint64_t> samples, int64_t feature,
                          const int64_t* offsets, std::vector<uint64_t>* ranks) const {
  const auto num_lookups = static_cast<size_t>(offsets[samples.size()] - offsets[0]);
  ranks->resize(num_lookups);
  uint64_t* rank = ranks->data();
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto hotness = static_cast<uint32_t>(offsets[i + 1] - offsets[i]);
    for (uint32_t place = 0; place < hotness; ++place) {
      const uint32_t b = static_cast<uint32_t>(feature) << 16 | place;
      *rank++ = zipf_.Rank(DataBlock(options_.seed, kLookup, samples[i], b), [&](uint32_t retry) {
        return DataBlock(options_.seed, kLookup, samples[i], b, retry);
      });
    }
  }
}

// How many ids of each table were new before this sample.
uint64_t Generator::DriftOf(uint64_t sample) const {
  const uint64_t number = sample & ((uint64_t{1} << kSplitShift) - 1);
  switch (sample >> kSplitShift) {
    case static_cast<uint64_t>(Split::kTrain):
      return static_cast<uint64_t>(
          static_cast<double>(number) *
          (static_cast<double>(options_.drift) / static_cast<double>(options_.samples)));
    case kCalibrationSplit:
      return 0;
    default:
      return static_cast<uint64_t>(options_.drift);
  }
}

int64_t Generator::TimeOf(uint64_t sample) const {
  if (sample >> kSplitShift != static_cast<uint64_t>(Split::kTrain)) return options_.seconds;
  return static_cast<int64_t>(
      static_cast<double>(sample) *
      (static_cast<double>(options_.seconds) / static_cast<double>(options_.samples)));
}

// A new id takes rank 0, and moves every other one down. It is the one that had the last rank.
void Generator::FillPlaces(std::span<const uint64_t> samples, const int64_t* offsets,
                           const std::vector<uint64_t>& ranks,
                           std::vector<uint64_t>* places) const {
  const auto rows = static_cast<uint64_t>(options_.rows);
  places->resize(ranks.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    const uint64_t drift = DriftOf(samples[i]) % rows;
    for (int64_t j = offsets[i] - offsets[0]; j < offsets[i + 1] - offsets[0]; ++j) {
      const uint64_t rank = ranks[static_cast<size_t>(j)];
      (*places)[static_cast<size_t>(j)] = rank >= drift ? rank - drift : rank + rows - drift;
    }
  }
}

// Adds the feature's part of raw [n]; latent [n, kLatentDim] gets u(bag), unless it is null.
void Generator::AddIdEffects(int64_t feature, int64_t num_samples, const int64_t* offsets,
                             const uint64_t* ranks, const uint64_t* places, float* latent,
                             float* raw) const {
  const uint32_t table = TableOf(feature);
  for (int64_t i = 0; i < num_samples; ++i) {
    float effect = 0;
    float bag[kLatentDim] = {};
    for (int64_t j = offsets[i]; j < offsets[i + 1]; ++j) {
      const uint64_t rank = *ranks++;
      const PhiloxBlock block = DataBlock(options_.seed, kEffect, *places++, table);
      const float fade = 1 / (1 + static_cast<float>(rank) * static_cast<float>(1 / kFadeRank));
      effect += fade * Bell(block.v[0], block.v[1]);
      for (int d = 0; d < kLatentDim; ++d) {
        bag[d] += fade * fade * latent_scale_ * (UniformFloat(block.v[2 + d]) - 0.5f);
      }
    }
    raw[i] += id_scale_ * effect;
    if (latent != nullptr) latent = std::copy_n(bag, kLatentDim, latent);
  }
}

void Generator::AddPairEffects(int64_t num_samples, const float* latent, float* raw) const {
  for (int64_t pair = 0; pair < pairs_; ++pair) {
    const float* u = latent + 2 * pair * kChunk * kLatentDim;
    const float* v = u + kChunk * kLatentDim;
    for (int64_t i = 0; i < num_samples; ++i) {
      float dot = 0;
      for (int64_t d = 0; d < kLatentDim; ++d) dot += u[i * kLatentDim + d] * v[i * kLatentDim + d];
      raw[i] += pair_scale_ * dot;
    }
  }
}

// ---- The source

absl::Status CheckBatchSize(int64_t max_batch_size) {
  if (max_batch_size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("DataReader::Next: max_batch_size is ", max_batch_size, ", at least 1"));
}

class SyntheticReader : public DataReader {
 public:
  // order: from position to sample number; null for the identity.
  SyntheticReader(const Generator& generator, uint64_t sample_base, int64_t size,
                  std::unique_ptr<Permutation> order, int64_t position)
      : generator_(generator),
        sample_base_(sample_base),
        size_(size),
        order_(std::move(order)),
        position_(position) {}

  absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
    HOTROW_RETURN_IF_ERROR(CheckBatchSize(max_batch_size));
    const int64_t n = std::min(max_batch_size, size_ - position_);
    samples_.resize(static_cast<size_t>(n));
    for (uint64_t& sample : samples_) {
      const auto position = static_cast<uint64_t>(position_++);
      sample = sample_base_ + (order_ == nullptr ? position : (*order_)(position));
    }
    generator_.Generate(samples_, batch, &scratch_);
    return absl::OkStatus();
  }
  int64_t position() const override { return position_; }

 private:
  const Generator& generator_;
  uint64_t sample_base_;
  int64_t size_;
  std::unique_ptr<Permutation> order_;
  int64_t position_;
  std::vector<uint64_t> samples_;
  Generator::Scratch scratch_;
};

// The training samples of SyntheticOptions::resident, drawn once and read without end.
//
// Threads: immutable.
class ResidentSamples {
 public:
  // Other ids for one pass.
  struct Rotations {
    std::optional<uint64_t> pass;
    std::vector<RankRotation> of_table;
  };

  explicit ResidentSamples(const Generator& generator)
      : generator_(generator), size_(static_cast<uint64_t>(generator.options().resident)) {
    std::vector<uint64_t> samples(size_);
    std::iota(samples.begin(), samples.end(), SampleBase(static_cast<uint64_t>(Split::kTrain)));
    Generator::Scratch scratch;
    generator.Generate(samples, &drawn_, &scratch, Generator::Values::kRanks);
  }

  // Fills the batch with n samples from number `first` on, counted through all passes. rotations is
  // scratch of one caller.
  void Fill(uint64_t first, int64_t n, CtrBatch* batch, Rotations* rotations) const {
    FillOffsets(first, n, batch);
    batch->values.resize(static_cast<size_t>(batch->offsets.back()));
    batch->weights.clear();
    batch->num_labels = 1;
    batch->batch_size = n;
    batch->labels.resize(static_cast<size_t>(n));
    batch->true_probability.resize(static_cast<size_t>(n));
    batch->dense.resize(static_cast<size_t>(n * generator_.options().dense));
    ForEachRun(first, n, [&](uint64_t pass, int64_t from, int64_t to, int64_t size) {
      if (rotations->pass != pass) *rotations = {pass, generator_.RotationsOf(pass)};
      CopyRun(from, to, size, rotations->of_table, batch);
    });
  }

 private:
  // Calls run(pass, from, to, size) for samples [from, from + size) of those drawn, which become
  // samples [to, to + size) of a batch.
  template <typename Function>
  void ForEachRun(uint64_t first, int64_t n, Function run) const {
    for (int64_t to = 0; to < n;) {
      const uint64_t number = first + static_cast<uint64_t>(to);
      const auto from = static_cast<int64_t>(number % size_);
      const int64_t size = std::min(n - to, static_cast<int64_t>(size_) - from);
      run(number / size_, from, to, size);
      to += size;
    }
  }

  const int64_t* OffsetsOf(int64_t feature, int64_t sample) const {
    return drawn_.offsets.data() + feature * static_cast<int64_t>(size_) + sample;
  }

  void FillOffsets(uint64_t first, int64_t n, CtrBatch* batch) const {
    const int64_t features = generator_.options().features();
    batch->offsets.resize(static_cast<size_t>(features * n + 1));
    int64_t* out = batch->offsets.data();
    *out = 0;
    for (int64_t feature = 0; feature < features; ++feature) {
      ForEachRun(first, n, [&](uint64_t, int64_t from, int64_t, int64_t size) {
        const int64_t* const offsets = OffsetsOf(feature, from);
        const int64_t shift = *out - offsets[0];
        for (int64_t i = 1; i <= size; ++i) *++out = offsets[i] + shift;
      });
    }
  }

  void CopyRun(int64_t from, int64_t to, int64_t size, const std::vector<RankRotation>& rotations,
               CtrBatch* batch) const {
    const int64_t dense = generator_.options().dense;
    std::copy_n(drawn_.labels.data() + from, size, batch->labels.data() + to);
    std::copy_n(drawn_.true_probability.data() + from, size, batch->true_probability.data() + to);
    std::copy_n(drawn_.dense.data() + from * dense, size * dense, batch->dense.data() + to * dense);
    for (int64_t feature = 0; feature < generator_.options().features(); ++feature) {
      const int64_t* const offsets = OffsetsOf(feature, from);
      const std::span<const uint64_t> ranks(drawn_.values.data() + offsets[0],
                                            drawn_.values.data() + offsets[size]);
      generator_.IdsOf(feature, rotations[generator_.TableOf(feature)], ranks,
                       batch->values.data() +
                           batch->offsets[static_cast<size_t>(feature * batch->batch_size + to)]);
    }
  }

  const Generator& generator_;
  const uint64_t size_;
  CtrBatch drawn_;  // its values are ranks
};

class ResidentReader : public DataReader {
 public:
  // first: number of the first sample of the epoch, through all passes.
  ResidentReader(const ResidentSamples& samples, uint64_t first, int64_t size, int64_t position)
      : samples_(samples), first_(first), size_(size), position_(position) {}

  absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
    HOTROW_RETURN_IF_ERROR(CheckBatchSize(max_batch_size));
    const int64_t n = std::min(max_batch_size, size_ - position_);
    samples_.Fill(first_ + static_cast<uint64_t>(position_), n, batch, &rotations_);
    position_ += n;
    return absl::OkStatus();
  }
  int64_t position() const override { return position_; }

 private:
  const ResidentSamples& samples_;
  const uint64_t first_;
  const int64_t size_;
  int64_t position_;
  ResidentSamples::Rotations rotations_;
};

class SyntheticSource : public DataSource {
 public:
  explicit SyntheticSource(const SyntheticOptions& options)
      : identity_(absl::StrCat(
            "tables=", options.tables, ",rows=", options.rows, ",zipf=", options.zipf,
            ",hotness=", options.hotness_min, "-", options.hotness_max, ",dense=", options.dense,
            ",shared=", options.shared, ",seed=", options.seed,
            options.resident > 0 ? absl::StrCat(",resident=", options.resident) : "",
            options.drift > 0 ? absl::StrCat(",drift=", options.drift) : "",
            options.seconds > 0 ? absl::StrCat(",seconds=", options.seconds) : "",
            options.drift > 0 || options.seconds > 0 ? absl::StrCat(",samples=", options.samples)
                                                     : "")),
        seed_(options.seed),
        in_order_(options.drift > 0 || options.seconds > 0),
        generator_(options) {
    schema_.name = "synthetic";
    schema_.num_dense = static_cast<int32_t>(options.dense);
    for (int64_t f = 0; f < options.features(); ++f) {
      schema_.features.push_back({.name = absl::StrCat("cat_", f),
                                  .table = absl::StrCat("t_cat_", f < options.tables ? f : 0),
                                  .num_embeddings = options.rows,
                                  .max_hotness = options.hotness_max});
    }
    schema_.train_samples = options.samples;
    schema_.valid_samples = options.valid;
    schema_.test_samples = options.test;
  }

  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override {
    return std::vector<std::pair<std::string, std::string>>{{"generated", identity_}};
  }

  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    const int64_t size = split == Split::kTrain   ? schema_.train_samples
                         : split == Split::kValid ? schema_.valid_samples
                                                  : schema_.test_samples;
    if (epoch < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("synthetic data: epoch is ", epoch, ", at least 0"));
    }
    if (first_sample < 0 || first_sample > size) {
      return absl::OutOfRangeError(absl::StrCat("synthetic data: first sample is ", first_sample,
                                                ", the split has ", size, " samples"));
    }
    if (split == Split::kTrain && generator_.options().resident > 0) {
      std::call_once(drawn_once_,
                     [&] { resident_ = std::make_unique<ResidentSamples>(generator_); });
      return std::make_unique<ResidentReader>(
          *resident_, static_cast<uint64_t>(epoch) * static_cast<uint64_t>(size), size,
          first_sample);
    }
    uint64_t base = SampleBase(static_cast<uint64_t>(split));
    std::unique_ptr<Permutation> order;
    if (split == Split::kTrain && in_order_) {
      base += static_cast<uint64_t>(epoch) * static_cast<uint64_t>(size);
    } else if (split == Split::kTrain) {
      order = std::make_unique<Permutation>(static_cast<uint64_t>(size), seed_,
                                            static_cast<uint64_t>(epoch), kOrder);
    }
    return std::make_unique<SyntheticReader>(generator_, base, size, std::move(order),
                                             first_sample);
  }

 private:
  DataSchema schema_;
  const std::string identity_;
  uint64_t seed_;
  const bool in_order_;  // training samples come in the order of their numbers
  Generator generator_;
  std::once_flag drawn_once_;
  std::unique_ptr<ResidentSamples> resident_;  // once a reader of training data was opened
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> OpenSynthetic(const SyntheticOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  SyntheticOptions complete = options;
  if (complete.valid < 0) complete.valid = DefaultHeldOut(complete.samples);
  if (complete.test < 0) complete.test = DefaultHeldOut(complete.samples);
  return std::make_unique<SyntheticSource>(complete);
}

}  // namespace hotrow
