#ifndef HOTROW_MODELS_SAVING_SAVED_MODEL_H_
#define HOTROW_MODELS_SAVING_SAVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"
#include "models/train/learning_rate.h"
#include "models/train/metrics.h"
#include "ops/row_init.h"

namespace hotrow {

class Communicator;

// A trained model in a directory: its tables with their optimizer state, its dense parameters with
// theirs, and the step. docs/formats/saved_model.md has the layout. The manifest is the last file
// written and names the others, so that a kill at any moment leaves the model from before or the
// new one. A checkpoint (models/saving/checkpoint.h) is a saved model that also knows where its
// training stands; both have one manifest.

// Where a training run stands between two of its steps, so that it goes on from there with the bits
// of a run that was never interrupted.
struct TrainingState {
  // What the run's bits depend on, as flag names and values.
  std::vector<std::pair<std::string, std::string>> settings;
  // What decided the kernels of its matrix products (ops/processor_kind.h), of several ranks each
  // kind once; empty: not known. On another kind the run goes on with other bits.
  std::string processor;

  // The batch to come: its epoch, and what was trained on of that epoch.
  int64_t epoch = 0;
  int64_t samples_in_epoch = 0;
  int64_t batches_in_epoch = 0;
  // A validation that was due and not finished; it comes before the batch.
  bool validation_due = false;
  int64_t validated_step = -1;  // the step after which validation ran last

  int64_t first_step = 0;  // updates that the model had seen when the run began (--init_from)
  int64_t steps = 0;       // of the run: SavedModel::step is first_step more
  int64_t samples = 0;
  int64_t epochs_done = 0;
  int64_t last_epoch = -1;  // of the last step; and since that epoch began:
  int64_t steps_in_last_epoch = 0;
  int64_t samples_in_last_epoch = 0;
  double loss_sum_in_last_epoch = 0;
  double recent_loss = 0;  // decaying mean

  ValidationPolicy::State policy;
  bool stopped_early = false;
  int64_t best_epoch = 0;
  int64_t best_step = 0;
  CtrMetrics valid;
  CtrMetrics test;
  double best_auc = 0;
};

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
    WeightsPrecision weights_precision = WeightsPrecision::kFp32;
    std::optional<Initializer> initializer;  // of rows that join; none: not known
    // What was counted when the model was saved; a checkpoint does not read its rows.
    int64_t rows = -1;  // -1: not known
    std::string hash;   // TableDigest::hash; empty: not known
  };

  // The rows of one rank (embedding/ranks/shard_map.h): a snapshot of a store of its own.
  struct Part {
    std::string store;       // StoreKindName
    std::string tables_dir;  // of the store or its snapshots: an absolute path, or one from here
    SnapshotId snapshot = 0;
    // Of this snapshot (SnapshotInfo): what opens it compares them. Unknown and empty in manifests
    // of older versions.
    UniqueId identity;
    std::vector<int64_t> table_rows;  // by table

    // Whether both name one place, whatever lies there.
    bool SamePlace(const Part& other) const {
      return store == other.store && tables_dir == other.tables_dir && snapshot == other.snapshot;
    }
    friend bool operator==(const Part&, const Part&) = default;
  };

  // What a rank's gradients had lost and is still to be added (EmbeddingCollection::SaveResiduals).
  struct Residuals {
    std::string file;  // a name in `dir`
    int64_t bytes = 0;
    uint32_t crc = 0;
  };

  std::string model;  // CtrModel::name
  // Flags that decide what each dense parameter is, such as layer sizes.
  std::vector<std::pair<std::string, std::string>> shape;
  std::optional<uint64_t> seed;  // of the rows' first values; none: not known
  int64_t step = 0;              // updates so far
  int32_t num_dense = 0;
  std::vector<Feature> features;  // in batch order
  std::vector<Table> tables;      // in the order of their numbers
  std::string dense_optimizer;    // DenseOptimizerName
  int64_t num_parameters = 0;     // dense

  // Where it lies. Readers fill these; writers fill what they say they do.
  std::string dir;          // of the manifest
  std::vector<Part> parts;  // by rank: one store each, kMaxRanks at most
  std::string dense_file;   // a name in `dir`
  int64_t dense_bytes = 0;
  uint32_t dense_crc = 0;

  // In checkpoints; one that was imported may have none.
  bool is_checkpoint = false;
  std::optional<TrainingState> training;
  std::vector<Residuals> residuals;  // by rank, of all of them; empty: none were kept
};

// Reads and checks the manifest in `dir`. Errors: FailedPrecondition (no saved model there, or one
// of a newer version), DataLoss (damaged); they name the file and the remedy. See ReadCheckpoint
// for paths that users give.
absl::StatusOr<SavedModel> ReadSavedModel(Env& env, const std::string& dir);

// Where a rank keeps what all ranks keep below `path`: path/rank-00002-of-00004; of a single rank
// it is path itself.
std::string RankDir(const std::string& path, int32_t rank, int32_t world_size);

// Where a rank's snapshot lies that --save_dir=dir writes with --store=memory: RankDir of
// dir/tables. With checkpoints the same.
std::string SavedTablesDir(const std::string& dir, int32_t rank = 0, int32_t world_size = 1);

// What somebody wants to do with a saved model, for the words of errors.
struct SavedModelUse {
  std::string flag;        // what names the model: "--init_from=/models/monday"
  std::string train_anew;  // how to do without it: "train anew without --init_from"
};

// Whether a model of this form may go on from `saved`; `wanted` has no parts. Name, shape, dense
// and sparse features and the tables with their dims and optimizers must agree; the dense optimizer
// and the stores' kinds and number need not. Errors: FailedPrecondition, naming what differs and
// the remedy.
absl::Status CheckSavedModelFits(const SavedModel& saved, const SavedModel& wanted,
                                 const SavedModelUse& use);

// Dense parameters and the state of their optimizer; arrays that it does not keep are empty.
template <typename Float>
struct DenseArrays {
  std::span<Float> parameters;
  std::span<Float> momentum1;
  std::span<Float> momentum2;
};

// Fills the parameters, and those arrays of state that are not empty. Lengths are those of the
// manifest. Errors: DataLoss, naming the file.
absl::Status ReadSavedDense(Env& env, const SavedModel& saved, const DenseArrays<float>& dense);

struct DenseVectors {
  std::vector<float> parameters;
  std::vector<float> momentum1;
  std::vector<float> momentum2;

  DenseArrays<const float> arrays() const { return {parameters, momentum1, momentum2}; }
};
// All arrays that the file has.
absl::StatusOr<DenseVectors> ReadSavedDense(Env& env, const SavedModel& saved);

// The bytes of a rank's residuals, of which there are some. Errors: DataLoss, naming the file.
absl::StatusOr<std::string> ReadSavedResiduals(Env& env, const SavedModel& saved, int32_t rank);

// Compares the tables that were loaded, those of all ranks together, with what the manifest knows
// of them. Errors: DataLoss, naming the table.
absl::Status CheckSavedTables(const SavedModel& saved, const CollectionDigest& digest);

// Writes the dense file `name` into model->dir, syncs it, and fills the members dense_* of the
// model. The directory is not synced.
absl::Status WriteSavedDense(Env& env, const std::string& name,
                             const DenseArrays<const float>& dense, SavedModel* model);

// The manifest of the model, whose members are all filled in: what is to be written as
// manifest.json into model.dir.
std::string SavedModelManifest(const SavedModel& model);

// Names of snapshots of one owner, a saved model's or checkpoints' directory: several may keep
// snapshots in one store, and each removes its own only. The upper half of the name is a hash of
// the owner's path, the lower half counts.
class SnapshotNames {
 public:
  // `exclusive`: all snapshots in the store are this owner's, whatever their names.
  SnapshotNames(const std::string& owner, bool exclusive);
  bool owns(SnapshotId id) const;
  // A name that is above all that `existing` has of this owner and that this returned before.
  SnapshotId Next(const std::vector<SnapshotId>& existing);

 private:
  SnapshotId base_;
  bool exclusive_;
  SnapshotId last_;
};

// TrainingState as a JSON object and back, for those who keep it elsewhere (portable exports). The
// error names the member that is missing or wrong: InvalidArgument.
std::string TrainingStateToJson(const TrainingState& state);
absl::StatusOr<TrainingState> TrainingStateFromJson(std::string_view json);

// Saves models into one directory, each replacing the one before. What a crash left behind is
// removed by the next Save. One writer for a directory at a time; one call at a time.
//
// Tables of an ssd or rocksdb store stay where they are: the model is a snapshot in the store, and
// the manifest names its directory. Those of a memory store are a file in tables_dir().
//
// Ranks:  each has a writer of its own for one directory that all of them see. Each prepares and
//         commits the snapshot of its own store; rank 0 writes everything else.
class SavedModelWriter {
 public:
  // Makes the directory if it is not there. One that holds a model is fine: it stays until the
  // first Save. Rank 0 holds the lock dir/LOCK as long as the writer lives. Not collective.
  // communicator: of the ranks that save together, not owned; null: alone. Errors:
  // FailedPrecondition (not a directory, not to be written, in use by another job, or what is there
  // is damaged or of a newer version), what the file system says.
  static absl::StatusOr<std::unique_ptr<SavedModelWriter>> Open(
      Env* env, const std::string& dir, Communicator* communicator = nullptr);
  ~SavedModelWriter();
  SavedModelWriter(const SavedModelWriter&) = delete;
  SavedModelWriter& operator=(const SavedModelWriter&) = delete;

  // Of this rank.
  std::string tables_dir() const;

  // `model` says everything but the other parts and the tables' rows and hashes. Its one part is
  // this rank's: store and tables_dir of the collection, where it keeps its snapshots. The snapshot
  // of a memory store whose snapshot_dir is not tables_dir() is copied there. Rows and hashes that
  // `model` does not say are those of tables.Digest(); either way they are those of all ranks
  // together. After OK the model survives power loss. After an error the directory holds the model
  // from before or, where only the last sync failed, perhaps the new one; either is whole, and Save
  // may be called again.
  // Collective: all ranks return the same. What one rank met, all of them say, with its number.
  absl::Status Save(SavedModel model, EmbeddingCollection& tables,
                    const DenseArrays<const float>& dense);

 private:
  struct Impl;
  explicit SavedModelWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_MODEL_H_
