#ifndef HOTROW_MODELS_SERVING_SERVING_MODEL_IMPL_H_
#define HOTROW_MODELS_SERVING_SERVING_MODEL_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "embedding/serving/serving_tables.h"
#include "models/data/row_parser.h"
#include "models/data/table_schema.h"
#include "models/data/vocabulary.h"
#include "models/delta/delta_chain.h"
#include "models/saving/saved_model.h"
#include "models/serving/onnx_dense_impl.h"
#include "models/serving/scorer.h"
#include "models/zoo/model_kinds.h"
#include "ops/jagged.h"
#include "ops/products/dense_precision.h"

namespace hotrow::internal {

// A feature and where its vector goes.
struct ServingFeature {
  std::string name;
  uint32_t table = 0;
  int32_t dim = 0;
  Pooling pooling = Pooling::kSum;
  int64_t pooled_offset = 0;    // of the columns of a sample's pooled embeddings
  int32_t unpooled_index = -1;  // position in CtrModel::unpooled_features
  int64_t num_embeddings = 0;   // 0: any key
  int64_t max_hotness = 0;      // of a sample, where it is not pooled; 0: any
  // Keys that count as one unknown key are all but these; null: there are none such. Of
  // ServingModel::vocabulary.
  const KeptKeys* kept = nullptr;
};

// A model as it was read: what all sessions share. All but the rows stays as it is.
struct ServingModel {
  SavedModel saved;
  ModelRecipe recipe;
  DensePrecision trained_precision = DensePrecision::kFp32;  // of the trainer's evaluation
  ServingRows trained_rows = ServingRows::kAsTrained;        // as which it reads rows
  std::vector<std::string> labels;
  std::vector<float> parameters;          // of the dense part; empty once versions have them
  std::shared_ptr<const OnnxDense> onnx;  // instead of them; null: it is of models/zoo
  std::unique_ptr<ServingTables> tables;  // null: not read
  std::vector<ServingFeature> features;   // in batch order
  std::vector<std::string> feature_names;
  int64_t pooled_dim = 0;
  int32_t num_unpooled = 0;
  std::optional<TableSchema> schema;
  std::vector<std::string> line_columns;
  Vocabulary vocabulary;
  std::optional<RowParser> parser;  // of the schema, to be copied
  std::vector<std::string> notes;
  // The model's chain, without its deltas, and the link that was read; none: it is of no chain.
  std::optional<DeltaChain> chain;
  ChainLink link;

  int64_t rows() const;  // while no update runs
};

// Reads all of it, the rows only if asked to. table_rows: how each table is kept, instead of
// options.rows; empty: none. Errors: those of Scorer::Open.
absl::StatusOr<std::unique_ptr<ServingModel>> ReadServingModel(
    const ScorerOptions& options, bool with_rows = true,
    std::span<const ServingRows> table_rows = {});

// How much deltas that follow each other change together, by table.
std::vector<ServingTables::Update::Size> SizesOf(std::span<const DeltaManifest> deltas);
// ServingTablesOptions::rows_source of what a chain leads to up to a link of this digest.
std::string RowsSourceOf(const Hash128& link);

// Why a delta behind the model's link cannot go into its tables, so that the model has to be opened
// again; empty: it can.
std::string WhyOpenedAnew(const ServingModel& model, const DeltaManifest& delta);

// A dense part with the model's parameters.
absl::StatusOr<std::unique_ptr<CtrModel>> NewDensePart(const ScorerOptions& options,
                                                       const ServingModel& model);

}  // namespace hotrow::internal

#endif  // HOTROW_MODELS_SERVING_SERVING_MODEL_IMPL_H_
