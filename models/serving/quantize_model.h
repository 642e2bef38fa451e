#ifndef HOTROW_MODELS_SERVING_QUANTIZE_MODEL_H_
#define HOTROW_MODELS_SERVING_QUANTIZE_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/serving/serving_rows.h"
#include "models/data/data_source.h"
#include "models/data/metrics.h"
#include "models/saving/coded_model.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

struct QuantizeOptions {
  std::string model;  // as ScorerOptions::model
  std::string dir;    // made; must not be there, or be empty
  // How narrow rows become; as they were trained only with `dense`. Where a wider form takes no
  // more bytes, as fp16 of 4 columns does beside int8, it is that.
  ServingRows rows = ServingRows::kInt8;
  // Of the products of the dense part, when what is written is scored; none: as it was trained.
  std::optional<DensePrecision> dense;
  // What says how good the model is, of the features that it was trained on; null: nothing does,
  // and all tables become as narrow as `rows`.
  DataSource* data = nullptr;
  Split split = Split::kValid;
  int64_t batch_size = 1024;  // of evaluations
  // Tables are kept wider where the AUC of `data` would lose more; none: however much it is.
  std::optional<double> max_auc_loss;
  int64_t shard_bytes = int64_t{1} << 30;     // of an array in one file, at most
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers while rows are written
  int64_t store_bytes = 0;                    // of the index of an ssd store; 0: no limit
  int64_t lost_rows = 10;                     // that are reported
  Env* env = nullptr;                         // of all files, but RocksDB's; not owned

  absl::Status Validate() const;  // names the field
};

struct QuantizeReport {
  struct Table {
    std::string name;
    ServingRows rows = ServingRows::kAsTrained;
    int64_t num_rows = 0;
    int64_t weight_bytes = 0;        // of all rows, as they were trained
    int64_t bytes = 0;               // as they are now
    std::optional<double> auc_loss;  // of this table alone, where it was measured
  };
  // What the products of QuantizeOptions::dense change, with the rows as they were trained.
  struct Dense {
    CtrMetrics metrics;
    double largest_difference = 0;  // of a logit from that of products as they were trained
    double mean_difference = 0;
    bool kept = true;  // false: they lose more than max_auc_loss, and stay as they were trained
  };
  std::vector<Table> tables;
  std::optional<CtrMetrics> before, after;  // on the data, where there are some
  std::optional<Dense> dense;               // where it was asked for and there are data
  int64_t evaluations = 0;
  CodedModelSummary written;
};

// Writes a model whose rows are narrower, to be scored with (WriteCodedModel), and says what that
// costs. What Scorer makes of it has the bits of `after`.
//
// The rule: products that alone lose too much AUC stay as they were trained. When with the others
// all tables narrow lose too much, each is measured alone. Then they are
// narrowed one after the other, the one with the least loss for each byte that is saved first. One
// with which the AUC of the whole has lost more than the bound is tried at the next wider form, and
// in the end left as it was trained. A model of several tasks has the mean of their AUC.
//
// Reads the model once for each evaluation, at most 2 + T + T * forms, and once to write it.
// Memory: the rows of all tables as they were trained, with their index
// (ScorerOptions::memory_bytes).
//
// Errors: those of Scorer::Open, CheckDensePrecision and WriteCodedModel; InvalidArgument (data of
//         other features, or a split without samples); FailedPrecondition.
absl::StatusOr<QuantizeReport> QuantizeModel(const QuantizeOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SERVING_QUANTIZE_MODEL_H_
