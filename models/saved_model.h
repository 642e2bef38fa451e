#ifndef HOTROW_MODELS_SAVED_MODEL_H_
#define HOTROW_MODELS_SAVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"

namespace hotrow {

// A trained model in a directory: its tables with their optimizer state, its dense parameters with
// theirs, and the step. docs/formats/saved_model.md has the layout. The manifest is the last file
// written and names the others, so that a kill at any moment leaves the model from before or the
// new one.

// What the manifest says of a model.
struct SavedModel {
  struct Feature {
    std::string name;
    std::string table;
    friend bool operator==(const Feature&, const Feature&) = default;
  };
  struct Table {
    std::string name;
    int32_t dim = 0;
    std::string optimizer;  // SparseOptimizerName
    int64_t rows = 0;
    std::string hash;  // TableDigest::hash
  };

  std::string model;  // CtrModel::name
  // Flags that decide what each dense parameter is, such as layer sizes.
  std::vector<std::pair<std::string, std::string>> shape;
  int64_t step = 0;  // updates so far
  int32_t num_dense = 0;
  std::vector<Feature> features;  // in batch order
  std::vector<Table> tables;      // in the order of their numbers
  std::string dense_optimizer;    // DenseOptimizerName
  int64_t num_parameters = 0;     // dense

  // Where the parts lie; Save fills these.
  std::string store;  // StoreKindName
  SnapshotId snapshot = 0;
  std::string dense_file;
  int64_t dense_bytes = 0;
  uint32_t dense_crc = 0;
};

// Reads and checks the manifest. Errors: FailedPrecondition (no saved model there, or one of a
// newer version), DataLoss (damaged); they name the file and the remedy.
absl::StatusOr<SavedModel> ReadSavedModel(Env& env, const std::string& dir);

// Where the tables' snapshot lies.
std::string SavedTablesDir(const std::string& dir);

// Whether a model of this form may go on from `saved`; `wanted` has no parts. Name, shape, dense
// and sparse features and the tables with their dims and optimizers must agree; the dense optimizer
// need not. Errors: FailedPrecondition, naming what differs and the remedy.
absl::Status CheckSavedModelFits(const SavedModel& saved, const SavedModel& wanted,
                                 const std::string& dir);

// Dense parameters and the state of their optimizer; arrays that it does not keep are empty.
template <typename Float>
struct DenseArrays {
  std::span<Float> parameters;
  std::span<Float> momentum1;
  std::span<Float> momentum2;
};

// Fills the parameters, and those arrays of state that are not empty. Lengths are those of the
// manifest. Errors: DataLoss, naming the file.
absl::Status ReadSavedDense(Env& env, const std::string& dir, const SavedModel& saved,
                            const DenseArrays<float>& dense);

// Compares the tables that were loaded with the manifest. Errors: DataLoss, naming the table.
absl::Status CheckSavedTables(const SavedModel& saved, const CollectionDigest& digest,
                              const std::string& dir);

// Saves models into one directory, each replacing the one before. What a crash left behind is
// removed by the next Save. One writer for a directory at a time; one call at a time.
class SavedModelWriter {
 public:
  // Makes the directory if it is not there. One that holds a model is fine: it stays until the
  // first Save. Errors: FailedPrecondition (not a directory, not to be written, or what is there is
  // damaged or of a newer version), what the file system says.
  static absl::StatusOr<std::unique_ptr<SavedModelWriter>> Open(Env* env, const std::string& dir);

  // The snapshot_dir for the collection that will be saved.
  std::string tables_dir() const { return SavedTablesDir(dir_); }

  // `model` says everything but the parts and the tables' rows and hashes. After OK the model
  // survives power loss. After an error the directory holds the model from before or, where only
  // the last sync failed, perhaps the new one; either is whole, and Save may be called again.
  absl::Status Save(SavedModel model, EmbeddingCollection& tables,
                    const DenseArrays<const float>& dense);

 private:
  SavedModelWriter(Env* env, std::string dir) : env_(*env), dir_(std::move(dir)) {}
  absl::Status Clean(EmbeddingCollection& tables, const SavedModel& keep);
  absl::Status WriteDense(SavedModel* model, const DenseArrays<const float>& dense);

  Env& env_;
  const std::string dir_;
  SnapshotId last_ = 0;  // the highest name that may have been used
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVED_MODEL_H_
