#ifndef HOTROW_MODELS_PROGRAMS_MODEL_PROGRAM_H_
#define HOTROW_MODELS_PROGRAMS_MODEL_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/programs/train_program.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/model_flags.h"

namespace hotrow {

// What sets the program of one model apart: its options, and words for --help. The flags that many
// models share follow from the members of Options.
template <typename Options>
struct ModelProgram {
  std::string name;      // TrainProgram
  std::string summary;   // TrainProgram
  std::string examples;  // TrainProgram
  Options options;       // defaults

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

#endif  // HOTROW_MODELS_PROGRAMS_MODEL_PROGRAM_H_
