#ifndef HOTROW_MODELS_TRAIN_RUN_HEADER_IMPL_H_
#define HOTROW_MODELS_TRAIN_RUN_HEADER_IMPL_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/device.h"
#include "embedding/embedding_collection.h"
#include "models/data/data_source.h"
#include "models/train/mllog.h"
#include "models/train/run_start_impl.h"
#include "models/train/trainer_options.h"

namespace hotrow {

// What a run says of itself before its first step.
struct RunHeader {
  const TrainerOptions& options;
  const DataSchema& schema;
  const EmbeddingCollectionOptions& collection;  // with the budgets as they are used
  const RunStart& start;
  std::string_view model;
  int64_t num_parameters = 0;       // dense
  std::string_view residuals_anew;  // why residuals begin at zero; empty: they do not
  int32_t world_size = 1;
  int32_t threads = 1;
  Device device = Device::kCpu;
};

// The text for people: data, model, tables, tiers, where the run begins, ranks. Several lines, the
// last one empty.
std::string FormatRunHeader(const RunHeader& header);

// The settings that MLPerf asks for.
void LogSettings(const TrainerOptions& options, const DataSchema& schema, MlLogger* mllog);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_HEADER_IMPL_H_
