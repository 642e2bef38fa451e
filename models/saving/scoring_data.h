#ifndef HOTROW_MODELS_SAVING_SCORING_DATA_H_
#define HOTROW_MODELS_SAVING_SCORING_DATA_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/update/sparse_optimizer_config.h"

namespace hotrow {

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

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SCORING_DATA_H_
