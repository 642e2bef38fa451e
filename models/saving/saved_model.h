#ifndef HOTROW_MODELS_SAVING_SAVED_MODEL_H_
#define HOTROW_MODELS_SAVING_SAVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/row_lines.h"
#include "base/unique_id.h"
#include "embedding/table_policies.h"
#include "ops/rows/initializer.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer_config.h"
#include "store/snapshot.h"

namespace hotrow {

struct TrainingState;

// What scoring needs of a model that neither rows nor parameters show: what its data mean, and how
// the run that trained it evaluates. Member `scoring` of manifests (docs/formats/saved_model.md).
struct ScoringData {
  // The bounds of a feature, as DataFeature has them.
  struct Bounds {
    int64_t num_embeddings = 0;
    int64_t max_hotness = 0;
    friend bool operator==(const Bounds&, const Bounds&) = default;
  };

  std::vector<std::string> labels;  // one for each task
  std::vector<Bounds> features;     // those of SavedModel::features, in their order
  std::string table_schema;         // TableSchemaText; empty: the data are no delimited text

  // Those of the trainer's settings (models/train/trainer_settings.h) that are of the tables'
  // optimizer, and the precision of products, as texts.
  std::vector<std::pair<std::string, std::string>> settings;
  // Where tables decay as a whole, in a saved model, whose rows have made up for all steps: the
  // steps that keys without a row make up for, from `first_step` on. A checkpoint has them in its
  // TrainingState.
  int64_t first_step = 0;
  std::vector<LearningRateRun> learning_rates;

  friend bool operator==(const ScoringData&, const ScoringData&) = default;
};

// A trained model in a directory: tables and dense parameters, both with their optimizer state, and
// the step. docs/formats/saved_model.md has the layout. The manifest is written last and names the
// other files, so a kill at any moment leaves either the old model or the new one. A checkpoint
// (models/saving/checkpoint.h) is a saved model that also records where its training stands; both
// have the same manifest (models/saving/manifest.h).
//
// SavedModel is what the manifest says.
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
    ScoreRule score = ScoreRule::kNone;
    RowLines lines;  // EmbeddingCollection::age_lines: which rows have aged
    // Rows as counted when the model was saved, and their hash, without the aged ones. Taking a
    // checkpoint reads no rows, so it has neither.
    int64_t rows = -1;  // -1: not known
    std::string hash;   // TableDigest::hash; empty: not known
  };

  // The rows of one rank (embedding/ranks/shard_map.h): a snapshot of its store.
  struct Part {
    std::string store;       // StoreKindName
    std::string tables_dir;  // of the store or its snapshots: an absolute path, or one from here
    SnapshotId snapshot = 0;
    // What this snapshot is (SnapshotInfo): what opens it compares them. Unknown and empty in
    // manifests of older versions.
    UniqueId identity;
    std::vector<int64_t> table_rows;  // in the store's order: narrow rows first

    // Whether both name one place; what lies there may differ.
    bool SamePlace(const Part& other) const {
      return store == other.store && tables_dir == other.tables_dir && snapshot == other.snapshot;
    }
    friend bool operator==(const Part&, const Part&) = default;
  };

  // A rank's residuals: what its gradients lost to rounding and the next ones add back
  // (EmbeddingCollection::SaveResiduals).
  struct Residuals {
    std::string file;  // a name in `dir`
    int64_t bytes = 0;
    uint32_t crc = 0;
  };

  // A rank's counters of lookups (EmbeddingCollection::counters), in a file, too.
  using Counters = Residuals;

  // Which values of the data have their own rows, where rare ones are merged
  // (models/data/vocabulary.h).
  struct VocabularyFile {
    std::string file;  // a name in `dir`
    int64_t bytes = 0;
    uint32_t crc = 0;
  };

  // Bytes that mean something to the writer alone (models/saving/blob_files.h).
  struct Blob {
    std::string name;
    std::string file;  // a name in `dir`
    int64_t bytes = 0;
    uint32_t crc = 0;
  };
  using BlobBytes = std::vector<std::pair<std::string, std::string>>;  // names, bytes

  std::string model;  // CtrModel::name
  // The flags that give each dense parameter its meaning, such as layer sizes.
  std::vector<std::pair<std::string, std::string>> shape;
  std::optional<uint64_t> seed;  // of the rows' first values; none: not known
  int64_t step = 0;              // updates so far
  int32_t num_dense = 0;
  std::vector<Feature> features;  // in batch order
  std::vector<Table> tables;      // in the order of their numbers
  std::string dense_optimizer;    // DenseOptimizerName
  int64_t num_parameters = 0;     // dense
  bool dense_average = false;     // the dense file has their running average, which scoring reads
  // None: of an older version, or of a writer that does not know it.
  std::optional<ScoringData> scoring;

  // Where the model lies. Reading fills all of these; writers document which ones they fill.
  std::string dir;          // of the manifest
  std::vector<Part> parts;  // by rank: one store each, kMaxRanks at most
  std::string dense_file;   // a name in `dir`
  int64_t dense_bytes = 0;
  uint32_t dense_crc = 0;

  std::optional<VocabularyFile> vocabulary;  // none: all values have
  // Vocabulary::Encode, for writers; null: there is none. Reading leaves it null
  // (ReadSavedVocabulary).
  std::shared_ptr<const std::string> vocabulary_bytes;

  std::vector<Blob> blobs;  // in checkpoints
  // For writers; null: there are none. Reading leaves it null (ReadSavedBlob).
  std::shared_ptr<const BlobBytes> blob_bytes;

  // In checkpoints; one that was imported may have none.
  bool is_checkpoint = false;
  std::shared_ptr<const TrainingState> training;  // models/saving/training_state.h
  std::vector<Residuals> residuals;               // by rank, of all of them; empty: none were kept
  std::vector<Counters> counters;                 // the same
};

// Dense parameters, their optimizer state, and their running average. Arrays that are not kept are
// empty.
template <typename Float>
struct DenseArrays {
  std::span<Float> parameters;
  std::span<Float> momentum1;
  std::span<Float> momentum2;
  std::span<Float> average;

  // What evaluation and scoring compute with.
  std::span<Float> scoring() const { return average.empty() ? parameters : average; }
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_MODEL_H_
