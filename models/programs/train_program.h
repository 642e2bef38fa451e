#ifndef HOTROW_MODELS_PROGRAMS_TRAIN_PROGRAM_H_
#define HOTROW_MODELS_PROGRAMS_TRAIN_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/flag_set.h"
#include "models/data/data_schema.h"
#include "models/zoo/ctr_model.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/model_flags.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

// The flags of all programs that models are made from, resolved.
struct ModelSettings {
  int32_t embedding_dim = 0;
  int64_t batch_size = 0;
  uint64_t seed = 0;
  DensePrecision precision = DensePrecision::kFp32;
};

// The parts of a training program that differ: its name, its texts for --help, and its model with
// its flags. The flags write into the model's options, which the functions here capture and which
// must outlive RunTrainProgram.
struct TrainProgram {
  std::string name;                 // of the program, as in `dlrm --help`
  std::string summary;              // opens --help: what it trains; lines of at most 100 columns
  std::string examples;             // of command lines, indented as --help prints them
  std::vector<FlagPreset> presets;  // for --preset; without any there is no such flag

  // Adds the model's flags to the group "Model", after --embedding_dim.
  std::function<void(FlagSet* set)> add_model_flags;
  // Sets the model's flags that were left to the program, so that the report shows the values used.
  // Called once, after the common flags are resolved; may be null.
  std::function<void(const ModelSettings& settings)> resolve_model_flags;
  // Columns of each table for these flags; null: --embedding_dim.
  std::function<int64_t(const ModelSettings& settings)> table_columns;
  // Makes the model for this data, on ctx's device. Errors name the flag and the remedy.
  std::function<absl::StatusOr<std::unique_ptr<CtrModel>>(
      const ModelSettings& settings, const DataSchema& schema, const ExecContext& ctx)>
      make_model;
};

// Completes the options of a model, set by its flags, from the common flags and the data.
template <typename Options>
Options CompleteModelOptions(Options options, const ModelSettings& settings,
                             const DataSchema& schema) {
  options.num_dense = schema.num_dense;
  options.num_sparse = static_cast<int32_t>(schema.features.size());
  options.embedding_dim = settings.embedding_dim;
  options.seed = settings.seed;
  options.max_batch_size = settings.batch_size;
  options.precision = settings.precision;
  if constexpr (requires { options.features; }) {
    for (const DataFeature& feature : schema.features) {
      options.features.push_back({feature.name, feature.table, feature.max_hotness});
    }
  }
  if constexpr (requires { options.num_tasks; }) {
    options.num_tasks = static_cast<int32_t>(schema.labels.size());
  }
  return options;
}

// The main() of a training program: parses the flags, trains, prints and writes the report. The
// first signal (SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2 or SIGXCPU) ends training after
// the current step, a SIGINT or SIGTERM after it ends the process.
// Returns the exit status: 0, 1 after a failure, 2 for wrong usage; either of these with one line
// on stderr. Call it once in a process, before any thread is started.
int RunTrainProgram(const TrainProgram& program, int argc, const char* const* argv);

// What sets the program of one model apart: its options, and words for --help. The flags that many
// models share follow from the members of Options.
template <typename Options>
struct ModelProgram {
  std::string name, summary, examples;  // TrainProgram
  Options options;                      // defaults

  // Flags of this model alone; they stand before the shared ones. Null: there are none.
  std::function<void(Options* options, FlagSet* set)> add_flags;
  // Help of --dense_arch_layer_sizes and what to call its default, where Options has it.
  std::string dense_arch_help;
  std::string dense_arch_default;
  std::string over_arch_help =
      "layer outputs of the MLP over embeddings and dense features; the last one is 1";
  // TrainProgram::resolve_model_flags; may be null.
  std::function<void(Options* options, const ModelSettings& settings)> resolve;
  std::vector<FlagPreset> presets;  // TrainProgram
  std::function<absl::StatusOr<std::unique_ptr<GraphModel>>(const Options& options,
                                                            const ExecContext& ctx)>
      create;
};

// The main() of a model's program, see RunTrainProgram.
template <typename Options>
int RunModelProgram(ModelProgram<Options> program, int argc, const char* const* argv) {
  Options& options = program.options;
  TrainProgram train = {.name = program.name,
                        .summary = program.summary,
                        .examples = program.examples,
                        .presets = program.presets};
  train.add_model_flags = [&](FlagSet* set) {
    if (program.add_flags) program.add_flags(&options, set);
    AddSharedModelFlags(&options,
                        {.dense_arch = program.dense_arch_help,
                         .dense_arch_default = program.dense_arch_default,
                         .over_arch = program.over_arch_help},
                        set);
  };
  if (program.resolve) {
    train.resolve_model_flags = [&](const ModelSettings& settings) {
      program.resolve(&options, settings);
    };
  }
  if constexpr (requires { Options::TableColumns(int64_t{1}); }) {
    train.table_columns = [](const ModelSettings& settings) {
      return Options::TableColumns(settings.embedding_dim);
    };
  }
  train.make_model = [&](const ModelSettings& settings, const DataSchema& schema,
                         const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    return program.create(CompleteModelOptions(options, settings, schema), ctx);
  };
  return RunTrainProgram(train, argc, argv);
}

}  // namespace hotrow

#endif  // HOTROW_MODELS_PROGRAMS_TRAIN_PROGRAM_H_
