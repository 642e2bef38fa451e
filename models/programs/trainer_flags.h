#ifndef HOTROW_MODELS_PROGRAMS_TRAINER_FLAGS_H_
#define HOTROW_MODELS_PROGRAMS_TRAINER_FLAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/flag_set.h"
#include "models/train/trainer_options.h"

namespace hotrow {

// The fields that the flags of a training program set, but for those of its model. Most flags set
// the options of the run; models/train/trainer_settings.cc lists these.
struct TrainerFlags {
  TrainerFlags();  // with the programs' defaults

  std::string data = "synthetic";
  std::string comm = "auto";
  double comm_timeout = 30;  // seconds
  int64_t threads = 0;       // 0: all
  std::string report;
  std::string trace;

  // ResolveTrainerFlags replaces a 0 that says "pick one for me". Not set: shape, settings, and
  // what the program itself owns, which are streams, ranks and signals.
  TrainerOptions options;
};

// The table that parses into `flags` and describes them, for the program of that name. What
// add_model_flags adds (null: nothing) stands in the group "Model", behind --weights_precision.
// Programs that have presets (models/programs/presets.h) get --preset.
FlagSet MakeTrainerFlagSet(std::string_view program,
                           const std::function<void(FlagSet*)>& add_model_flags,
                           TrainerFlags* flags);

// Puts chosen values where the flags leave the choice to us (threads, the budgets of the tiers,
// dense_learning_rate, sample_rate) and checks all of them. local_ranks processes of this run share
// the machine, and get equal shares of what is not given. Errors: InvalidArgument, Unimplemented (a
// device this build lacks); one line that names the flag and what it takes.
absl::Status ResolveTrainerFlags(TrainerFlags* flags, int32_t local_ranks = 1);

// The flags that decide what each dense parameter is, with their values: TrainerOptions::shape.
// `set` is MakeTrainerFlagSet's, after all flags are resolved.
std::vector<std::pair<std::string, std::string>> ModelShape(const FlagSet& set);

// The flags of data and model that the bits of a run depend on: TrainerOptions::settings. `set` as
// above.
std::vector<std::pair<std::string, std::string>> RunSettings(const FlagSet& set);

// Bytes of memory that this process may use: the machine's, or less where control groups say so.
int64_t UsableMemoryBytes();

// Bytes that files in this directory, which need not exist, may take: what is free on its file
// system, and what they take already.
int64_t UsableDiskBytes(const std::string& dir);

}  // namespace hotrow

#endif  // HOTROW_MODELS_PROGRAMS_TRAINER_FLAGS_H_
