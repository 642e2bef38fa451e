#ifndef HOTROW_MODELS_SERVING_ONNX_ROWS_IMPL_H_
#define HOTROW_MODELS_SERVING_ONNX_ROWS_IMPL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/onnx/onnx_graph.h"
#include "models/serving/export_onnx.h"
#include "models/serving/serving_model_impl.h"
#include "models/zoo/layers/layer.h"

namespace hotrow::internal {

// A mask [B, L] of the positions on axis 1 of `values` [B, L, ...] that lie below `length` [B, 1].
std::string AddOnnxMask(OnnxGraph& graph, const std::string& name, const std::string& values,
                        const std::string& length);

// The tables of a model as constants of a graph, and lookups in them.
//
// A table is "table.NAME/rows" [N, D]. Row 0 is zeros, which padding reads. Then come, where keys
// index it, key 0, 1, and so on up to num_embeddings - 1, and any other key is an error of the
// operation; otherwise the row of keys without one, and those of all keys, in their order, which
// LabelEncoder finds.
class OnnxRows {
 public:
  struct Table {
    std::string name;
    int64_t rows = 0;  // in the file
    bool is_indexed = false;
    OnnxUnseenKeys unseen_keys = OnnxUnseenKeys::kExact;
  };

  // Adds the tables. Errors: FailedPrecondition (keys without a row are random; names the remedy),
  // ResourceExhausted (the tables do not fit into a file, or memory).
  static absl::StatusOr<OnnxRows> Add(const ServingModel& model, OnnxUnseenKeys unseen_keys,
                                      OnnxGraph* graph);

  // ids [B, L] of a feature and the mask of those that there are, to rows [B, L, D]; zeros where
  // the mask is false.
  std::string Lookup(const ServingFeature& feature, const std::string& ids, const std::string& mask,
                     OnnxGraph* graph) const;
  // The same, pooled as the feature is: [B, D]. length: [B, 1].
  std::string Pool(const ServingFeature& feature, const std::string& ids, const std::string& mask,
                   const std::string& length, OnnxGraph* graph) const;

  const std::vector<Table>& tables() const { return tables_; }

 private:
  absl::Status AddTable(const ServingModel& model, uint32_t number, OnnxGraph* graph);

  std::vector<Table> tables_;
  std::vector<std::string> rows_;           // the constant of each table
  std::vector<std::vector<int64_t>> keys_;  // of tables that are not indexed
};

}  // namespace hotrow::internal

#endif  // HOTROW_MODELS_SERVING_ONNX_ROWS_IMPL_H_
