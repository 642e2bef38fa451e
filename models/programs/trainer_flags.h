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

struct ReaderThreads;

// The fields that the common flags of training programs set. Most flags set the options of the run;
// models/train/trainer_settings.cc lists these.
struct TrainerFlags {
  TrainerFlags();  // with the programs' defaults

  std::string data = "synthetic";
  std::string comm = "auto";
  double comm_timeout = 30;    // seconds
  int64_t threads = 0;         // 0: all
  int64_t reader_threads = 0;  // 0: ChooseReaderThreads does
  std::string report;
  std::string trace;

  // ResolveTrainerFlags replaces a 0 that means "choose for me". The flags do not set shape,
  // settings, and the program's own streams, ranks and signals.
  TrainerOptions options;
};

// The flags of the program of that name, which parse into `flags`. add_model_flags (may be null)
// adds to the group "Model", after --weights_precision. With presets there is --preset.
FlagSet MakeTrainerFlagSet(std::string_view program,
                           const std::function<void(FlagSet*)>& add_model_flags,
                           TrainerFlags* flags, std::vector<FlagPreset> presets = {});

// Chooses values for flags that were left to the program (threads, the budgets of the tiers,
// dense_learning_rate, sample_rate) and checks all flags. local_ranks processes of this run share
// the machine; values that were not given are equal shares. Errors: InvalidArgument, Unimplemented
// (a device that this build lacks); one line that names the flag and its legal values.
absl::Status ResolveTrainerFlags(TrainerFlags* flags, int32_t local_ranks = 1);

// What --reader_threads=0 means, of resolved flags: all threads while the data are opened, since
// nothing else runs then. While a CPU trains, its cores belong to training, and one thread reads
// faster than they train. A device leaves them idle and takes more samples than one thread parses;
// beyond four, putting batches together is what takes longest.
ReaderThreads ChooseReaderThreads(const TrainerFlags& flags);

// The flags that decide the meaning of each dense parameter, with values: TrainerOptions::shape.
// `set` is MakeTrainerFlagSet's, after all flags are resolved.
std::vector<std::pair<std::string, std::string>> ModelShape(const FlagSet& set);

// The flags of data and model that decide the bits of a run: TrainerOptions::settings. `set` as
// above.
std::vector<std::pair<std::string, std::string>> RunSettings(const FlagSet& set);

// Bytes that files in these directories, which may be missing, can take: the free space of each of
// their file systems plus what they take already.
int64_t UsableDiskBytes(const std::vector<std::string>& dirs);

}  // namespace hotrow

#endif  // HOTROW_MODELS_PROGRAMS_TRAINER_FLAGS_H_
