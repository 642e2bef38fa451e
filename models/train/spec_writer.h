#ifndef HOTROW_MODELS_TRAIN_SPEC_WRITER_H_
#define HOTROW_MODELS_TRAIN_SPEC_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"
#include "models/data/data_source.h"
#include "models/train/trainer_options.h"
#include "models/zoo/ctr_model.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

// A training run for `hotrow plan` (docs/planner.md).
struct SpecSource {
  EmbeddingCollectionOptions collection;  // tables, tiers, prefetch_depth
  int64_t batch_size = 0;                 // of all ranks; required
  int32_t ranks = 1;
  // One entry a table, in order; empty: not known. Rows that it may have (default: num_embeddings),
  // mean lookups of a feature in a sample (default: max_hotness, or 1), Zipf exponent of its ids
  // (default: the planner's).
  std::vector<int64_t> rows;
  std::vector<double> hotness;
  std::vector<double> zipf;
  // The dense model, with the words of the planner.
  int64_t dense_features = 0;
  std::vector<int32_t> bottom;         // layer outputs
  std::vector<int32_t> top;            // layer outputs
  int32_t top_inputs = 0;              // of its first layer; 0: the planner's
  std::string interaction = "concat";  // concat, dot, cross
  int32_t cross_layers = 0;
  int32_t cross_rank = 0;  // 0: full
  std::vector<DenseLayers::Part> parts;
  std::string dense_optimizer;  // sgd, momentum, adagrad, adam; empty: not given
  bool dense_average = false;   // a running average of the dense parameters is kept
  DensePrecision precision = DensePrecision::kFp32;  // of products
  int64_t checkpoint_interval_steps = 0;
  double data_bytes_per_sample = 0;  // DataSchema::sample_bytes
  std::string hardware;              // a profile or a file of hotrow calibrate; empty: not given
};

// The spec as JSON, which `hotrow plan` reads. Errors: InvalidArgument, which names the table or
// field (a table with an unknown number of rows; lists of another length than the tables; a store
// that the planner does not know).
absl::StatusOr<std::string> SpecOf(const SpecSource& source);

// The spec of a run with this model and these tables. Budgets must be resolved.
SpecSource SpecSourceOf(const TrainerOptions& options, const EmbeddingCollectionOptions& tables,
                        const DataSchema& schema, const DenseLayers& layers, int32_t ranks);

// Writes SpecOf(source) to a file. Errors: those above and of the file system, which name
// --save_spec.
absl::Status SaveSpec(const SpecSource& source, Env& env, const std::string& path);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_SPEC_WRITER_H_
