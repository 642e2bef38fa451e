#ifndef HOTROW_TESTS_EMBEDDING_RANK_TRAINING_H_
#define HOTROW_TESTS_EMBEDDING_RANK_TRAINING_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "comm/thread_communicator.h"
#include "embedding/embedding_collection.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"

// Whole runs of several ranks, which are threads of this process, on either device.

namespace hotrow::test {

// Samples [begin, end) of a batch: what one rank gets of that of all ranks together.
inline Batch Slice(const Batch& whole, int64_t num_features, int64_t begin, int64_t end) {
  Batch out;
  out.batch_size = end - begin;
  for (int64_t f = 0; f < num_features; ++f) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t bag = f * whole.batch_size + b;
      for (int64_t i = whole.offsets[bag]; i < whole.offsets[bag + 1]; ++i) {
        out.values.push_back(whole.values[i]);
        if (!whole.weights.empty()) out.weights.push_back(whole.weights[i]);
      }
      out.offsets.push_back(static_cast<int64_t>(out.values.size()));
    }
  }
  return out;
}

struct RankRun {
  int steps = 8;
  int64_t batch_size = 48;  // of all ranks together
  int max_hotness = 3;
  uint64_t rows = 400;
  uint64_t read_rows = 0;  // that an Outcome has the values of; 0: all
  int first_step = 0;
  int threads = 1;
  bool begin_early = false;  // BeginLookup and BeginUpdate
  int evaluate_every = 0;
};

// Depends on the sample's place in the whole batch, not on the rank.
inline void Gradient(const std::vector<float>& output, int64_t first_sample, int64_t width,
                     int step, std::vector<float>* gradient) {
  gradient->resize(output.size());
  for (size_t i = 0; i < output.size(); ++i) {
    const int64_t place = first_sample * width + static_cast<int64_t>(i);
    (*gradient)[i] =
        0.1f * output[i] + 0.01f * static_cast<float>((place * 7 + step * 13) % 11) - 0.05f;
  }
}

// Outputs and gradients of one rank where its tables' device has them, on its caller's stream.
class RankFloats {
 public:
  explicit RankFloats(const DeviceStream& stream) : stream_(stream) {}

  // Room for `rows` of pooled output.
  absl::StatusOr<EmbeddingOutput> Output(const EmbeddingCollection& tables, int64_t rows) {
    const int64_t floats = rows * tables.pooled_dim();
    HOTROW_RETURN_IF_ERROR(memory_.Reserve(floats + 1, {stream_.device(), stream_.get()}));
    host_.assign(static_cast<size_t>(floats), -1.0f);
    HOTROW_RETURN_IF_ERROR(stream_.Copy(memory_.data(), host_.data(), floats * 4));
    return EmbeddingOutput{.pooled = RowsOf(tables, rows, memory_)};
  }
  // What is there now.
  absl::StatusOr<std::vector<float>> Read() {
    HOTROW_RETURN_IF_ERROR(stream_.Copy(host_.data(), memory_.data(), std::ssize(host_) * 4));
    HOTROW_RETURN_IF_ERROR(stream_.Wait());
    return host_;
  }
  // Puts a gradient there instead.
  absl::StatusOr<EmbeddingGradient> Put(const EmbeddingCollection& tables, int64_t rows,
                                        const std::vector<float>& gradient) {
    host_ = gradient;
    HOTROW_RETURN_IF_ERROR(stream_.Copy(memory_.data(), host_.data(), std::ssize(host_) * 4));
    return EmbeddingGradient{.pooled = RowsOf(tables, rows, memory_)};
  }

 private:
  const DeviceStream& stream_;
  DeviceMemory<float> memory_;
  std::vector<float> host_;
};

inline absl::Status TrainSteps(EmbeddingCollection& tables, int depth, int rank, int world_size,
                               const RankRun& run, const DeviceStream& stream = {}) {
  const int64_t features = tables.num_features();
  const auto slice_of = [&](int64_t whole) {
    return std::pair(whole * rank / world_size, whole * (rank + 1) / world_size);
  };
  std::deque<std::pair<EmbeddingStep, int64_t>> ahead;
  int next = run.first_step;
  const int last = run.first_step + run.steps;
  RankFloats floats(stream);
  RankFloats other_floats(stream);
  std::vector<float> gradient;
  for (int i = run.first_step; i < last; ++i) {
    for (; next < last && std::ssize(ahead) <= depth; ++next) {
      const Batch whole = RandomBatch(static_cast<uint64_t>(next) + 100, static_cast<int>(features),
                                      run.batch_size, run.max_hotness, run.rows, next % 2 == 1);
      const auto [begin, end] = slice_of(run.batch_size);
      HOTROW_ASSIGN_OR_RETURN(
          EmbeddingStep step,
          PrefetchStep(tables, Slice(whole, features, begin, end), next / 2, stream.device()));
      ahead.emplace_back(std::move(step), begin);
    }
    auto [step, first_sample] = std::move(ahead.front());
    ahead.pop_front();
    if (run.begin_early) HOTROW_RETURN_IF_ERROR(step.BeginLookup());
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingOutput pooled, floats.Output(tables, step.batch_size()));
    HOTROW_RETURN_IF_ERROR(step.Lookup(pooled));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<float> output, floats.Read());
    if (run.evaluate_every > 0 && i % run.evaluate_every == 0) {
      const Batch other = RandomBatch(static_cast<uint64_t>(i * world_size + rank) + 999,
                                      static_cast<int>(features), run.batch_size, run.max_hotness,
                                      run.rows * 2, false);
      HOTROW_ASSIGN_OR_RETURN(const EmbeddingOutput values,
                              other_floats.Output(tables, other.batch_size));
      HOTROW_RETURN_IF_ERROR(tables.Evaluate(other.view(), values));
    }
    Gradient(output, first_sample, tables.pooled_dim(), i, &gradient);
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingGradient given,
                            floats.Put(tables, step.batch_size(), gradient));
    if (run.begin_early) HOTROW_RETURN_IF_ERROR(step.BeginUpdate(given));
    HOTROW_RETURN_IF_ERROR(std::move(step).Update(given));
  }
  return stream.Wait();
}

// All rows of all tables, asked for by rank 0.
inline absl::StatusOr<std::vector<float>> ReadAll(EmbeddingCollection& tables, int rank,
                                                  uint64_t rows, const DeviceStream& stream = {}) {
  const int64_t features = tables.num_features();
  RankFloats floats(stream);
  std::vector<float> out;
  // In batches of 40 keys for each feature.
  for (uint64_t first = 0; first < rows; first += 40) {
    Batch batch;
    const uint64_t n = rank == 0 ? std::min<uint64_t>(40, rows - first) : 0;
    batch.batch_size = static_cast<int64_t>(n);
    for (int64_t f = 0; f < features; ++f) {
      for (uint64_t i = 0; i < n; ++i) {
        batch.values.push_back(first + i);
        batch.offsets.push_back(static_cast<int64_t>(batch.values.size()));
      }
    }
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingOutput pooled, floats.Output(tables, batch.batch_size));
    HOTROW_RETURN_IF_ERROR(tables.Evaluate(batch.view(), pooled));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<float> values, floats.Read());
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

using OptionsOfRank = std::function<EmbeddingCollectionOptions(int rank)>;
using RankBody = std::function<absl::Status(EmbeddingCollection&, int rank)>;
// stream: of the caller, for what TrainSteps and ReadAll take.
using DeviceRankBody =
    std::function<absl::Status(EmbeddingCollection&, int rank, const DeviceStream& stream)>;
// RunOnThreads, or what else starts ranks.
using StartRanks = std::function<std::vector<absl::Status>(
    int world_size, const CommunicatorOptions& options,
    const std::function<absl::Status(Communicator&)>& rank_main)>;

// Where ranks run. What is enqueued on the caller's stream of a CPU runs at once, also where the
// tables' own streams lag.
struct RankPlace {
  Device device = Device::kCpu;
  StartRanks start = RunOnThreads;
};

inline std::vector<absl::Status> OnRanksAt(const RankPlace& place, int world_size, int threads,
                                           const OptionsOfRank& options_of,
                                           const DeviceRankBody& body,
                                           double timeout_seconds = 60) {
  return place.start(world_size, {.timeout_seconds = timeout_seconds},
                     [&](Communicator& communicator) -> absl::Status {
                       EmbeddingCollectionOptions options = options_of(communicator.rank());
                       options.ranks.communicator = &communicator;
                       ThreadPool pool(threads);
                       DeviceStream stream;
                       if (place.device != Device::kCpu) {
                         HOTROW_ASSIGN_OR_RETURN(stream, DeviceStream::Create(place.device));
                       }
                       HOTROW_ASSIGN_OR_RETURN(
                           std::unique_ptr<EmbeddingCollection> tables,
                           EmbeddingCollection::Create(options, stream.On({.pool = &pool})));
                       return body(*tables, communicator.rank(), stream);
                     });
}

inline std::vector<absl::Status> OnRanks(int world_size, int threads,
                                         const OptionsOfRank& options_of, const RankBody& body,
                                         double timeout_seconds = 60) {
  return OnRanksAt(
      {}, world_size, threads, options_of,
      [&](EmbeddingCollection& tables, int rank, const DeviceStream&) {
        return body(tables, rank);
      },
      timeout_seconds);
}

inline void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
}

struct Outcome {
  CollectionDigest digest;
  EmbeddingStats stats;
  std::vector<float> values;  // of all rows, as evaluation sees them
};

inline Outcome TrainOnRanksAt(const RankPlace& place, int world_size,
                              const OptionsOfRank& options_of, const RankRun& run) {
  Outcome outcome;
  ExpectAllOk(OnRanksAt(
      place, world_size, run.threads, options_of,
      [&](EmbeddingCollection& tables, int rank, const DeviceStream& stream) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(
            TrainSteps(tables, options_of(rank).prefetch_depth, rank, world_size, run, stream));
        HOTROW_ASSIGN_OR_RETURN(const EmbeddingStats stats, tables.GlobalStats());
        HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
        HOTROW_ASSIGN_OR_RETURN(
            std::vector<float> values,
            ReadAll(tables, rank, run.read_rows > 0 ? run.read_rows : run.rows, stream));
        if (rank == 0) outcome = {digest, stats, std::move(values)};
        return absl::OkStatus();
      }));
  return outcome;
}

inline Outcome TrainOnRanks(int world_size, const OptionsOfRank& options_of, const RankRun& run) {
  return TrainOnRanksAt({}, world_size, options_of, run);
}

// Three tables of two widths, four features.
inline EmbeddingCollectionOptions TwoWidths(SparseOptimizerKind kind = SparseOptimizerKind::kSgd) {
  EmbeddingCollectionOptions options =
      Options({Table("wide", 24, {"f0", "f1"}, kind), Table("narrow", 3, {"f2"}, kind),
               Table("also wide", 24, {"f3"}, kind)});
  for (TableConfig& table : options.tables) table.max_hotness = 3;
  return options;
}

// Two of the tables in 16 bits, with rows as wide as each other.
inline EmbeddingCollectionOptions InHalves(EmbeddingCollectionOptions options) {
  options.tables[0].weights_precision = WeightsPrecision::kFp16;
  options.tables[2].weights_precision = WeightsPrecision::kBf16;
  return options;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_EMBEDDING_RANK_TRAINING_H_
