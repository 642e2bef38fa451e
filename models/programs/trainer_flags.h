#ifndef HOTROW_MODELS_PROGRAMS_TRAINER_FLAGS_H_
#define HOTROW_MODELS_PROGRAMS_TRAINER_FLAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flag_set.h"
#include "models/train/learning_rate.h"
#include "models/train/trainer.h"

namespace hotrow {

// The flags that all training programs share, as typed; field names are flag names. Where a value
// says "pick one for me", ResolveTrainerFlags puts the choice in its place.
struct TrainerFlags {
  std::string data = "synthetic";
  int64_t seed = 1;

  int64_t embedding_dim = 16;

  int64_t batch_size = 2048;
  int64_t epochs = 1;
  int64_t limit_train_batches = 0;
  int64_t validation_freq_within_epoch = 0;

  std::string weights_precision = "fp32";
  std::string optimizer = "rowwise_adagrad";
  std::string dense_optimizer = "adagrad";
  double learning_rate = 0.02;
  double dense_learning_rate = 0.01;  // 0: learning_rate
  // The first step of Adagrad has the length of the learning rate however small the gradient, and
  // most rows are seldom seen. A row's gradient is of the size of 1 / batch_size, so this eps damps
  // such steps: a small DLRM ended 0.0097 below the best AUC of the synthetic data with 1e-8 and
  // 0.0053 below it with 1e-3.
  double eps = 1e-3;
  double weight_decay = 0;
  double table_weight_decay = 0;
  double max_gradient_norm = 0;  // 0: any
  LearningRateOptions schedule;
  std::string initializer = "uniform_rows";
  std::string pooling = "sum";

  std::string store = "memory";
  std::string store_path;
  int64_t store_bytes = 0;  // 0: a share of the memory that this process may use, see the help
  int64_t cache_bytes = 0;  // 0: none over memory, a share over a disk; kSmallestCache: min
  int64_t disk_bytes = 0;   // 0: a share of what is free there
  std::string cache_policy = "lru";
  int64_t prefetch_depth = 1;

  std::string comm = "auto";
  double comm_timeout = 30;  // seconds
  std::string exchange_forward = "fp32";
  std::string exchange_backward = "fp32";
  std::string exchange_rounding = "nearest";
  int64_t exchange_feedback = 0;  // bytes

  int64_t threads = 0;  // 0: all
  std::string device = "cpu";
  int64_t device_cache_bytes = 0;
  std::string save_dir;
  std::string init_from;
  std::string checkpoint_dir;
  int64_t checkpoint_every = 1000;
  int64_t keep_checkpoints = 2;
  bool resume = false;
  std::string report;
  std::string trace;
  bool mllog = false;

  std::string save_spec;
  std::string record_trace;
  double sample_rate = 0;  // 0: 0.01
  bool mrc = false;
};

// The table that parses into `flags` and describes them, for the program of that name. What
// add_model_flags adds (null: nothing) stands in the group "Model", behind --embedding_dim.
// Programs that have presets (models/programs/presets.h) get --preset.
FlagSet MakeTrainerFlagSet(std::string_view program,
                           const std::function<void(FlagSet*)>& add_model_flags,
                           TrainerFlags* flags);

// Puts chosen values where the flags leave the choice to us (threads, the budgets of the tiers,
// dense_learning_rate) and checks the words. local_ranks processes of this run share the machine,
// and get equal shares of what is not given. Errors: InvalidArgument, Unimplemented (a device this
// build lacks); one line that names the flag and what it takes.
absl::StatusOr<TrainerOptions> ResolveTrainerFlags(TrainerFlags* flags, int32_t local_ranks = 1);

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
