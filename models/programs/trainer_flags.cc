#include "models/programs/trainer_flags.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "models/programs/presets.h"

namespace hotrow {
namespace {

// Rows in memory: all but what the batch, the activations and the process need.
constexpr double kStoreShareOfMemory = 0.8;
// Over a disk the cache is what speed comes from. An ssd store's index takes 10 bytes a row: at 272
// bytes a row a tenth of the memory indexes rows for three times the memory, buffers included.
constexpr double kCacheShareOfMemory = 0.5;
constexpr double kDiskStoreShareOfMemory = 0.1;
// Full file systems are slow, and others write to them too.
constexpr double kStoreShareOfDisk = 0.8;
constexpr int64_t kMaxThreads = 1024;
constexpr double kSampleRateMin = 1e-9;
constexpr char kDataGroup[] = "Data";
constexpr char kModelGroup[] = "Model";

absl::Status WordError(const char* flag, const std::string& value, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", what));
}

// The number a control group file holds; "max" and missing files give no limit.
int64_t ReadLimit(const std::string& path, int64_t no_limit) {
  std::ifstream file(path);
  int64_t limit = 0;
  return file >> limit && limit > 0 ? limit : no_limit;
}

// The group of this process below the root of the hierarchy: "/" or "/user.slice/...". Version 2
// lists it as "0::<path>".
std::string ControlGroupPath() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.substr(0, 3) == "0::") return line.substr(3);
  }
  return "/";
}

// "uniform_rows", "zeros", "uniform:0.01", "normal:0.01", "constant:0.5".
absl::StatusOr<std::optional<Initializer>> ParseInitializer(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string word = text.substr(0, colon);
  const bool has_value = colon < text.size();
  if (!has_value && word == "uniform_rows") return std::optional<Initializer>();
  Initializer out = {InitializerKind::kZeros, 0};
  if (!has_value && word == "zeros") return std::optional<Initializer>(out);
  const bool known = word == "uniform" || word == "normal" || word == "constant";
  if (!known || !has_value || !absl::SimpleAtof(text.substr(colon + 1), &out.value)) {
    return WordError("initializer", text,
                     "takes uniform_rows, zeros, uniform:X, normal:X or constant:X, as in "
                     "uniform:0.01");
  }
  out.kind = word == "uniform"  ? InitializerKind::kUniform
             : word == "normal" ? InitializerKind::kNormal
                                : InitializerKind::kConstant;
  if (const absl::Status status = out.Validate(); !status.ok()) {
    return WordError("initializer", text, std::string(status.message()));
  }
  return std::optional<Initializer>(out);
}

absl::StatusOr<CachePolicy> ParseCachePolicy(const std::string& text) {
  if (text == "lru") return CachePolicy::kLru;
  if (text == "lfu") return CachePolicy::kLfu;
  return WordError("cache_policy", text, "takes lru or lfu");
}

absl::StatusOr<Pooling> ParsePooling(const std::string& text) {
  if (text == "sum") return Pooling::kSum;
  if (text == "mean") return Pooling::kMean;
  return WordError("pooling", text, "takes sum or mean");
}

// Where a word is unknown the callee lists the known ones; the flag's name is ours to add.
template <typename T>
absl::StatusOr<T> WithFlag(const char* flag, const std::string& value, absl::StatusOr<T> parsed) {
  if (parsed.ok()) return parsed;
  return WordError(flag, value, std::string(parsed.status().message()));
}

absl::StatusOr<Device> ParseDevice(const std::string& device) {
  for (const Device known : {Device::kCpu, Device::kCuda}) {
    if (device == DeviceName(known)) return known;
  }
  return WordError("device", device, "takes cpu or cuda");
}

// Before anything is read or made: whether there is such a device, and what it needs.
absl::Status CheckDevice(const TrainerFlags& f, Device device, StoreKind store) {
  if (const auto usable = DeviceStream::Create(device); !usable.ok()) {
    return absl::Status(usable.status().code(),
                        absl::StrCat("--device=", f.device, ": ", usable.status().message(),
                                     "; or use --device=cpu"));
  }
  if (device != Device::kCpu && f.device_cache_bytes == 0) {
    return absl::InvalidArgumentError(
        "--device=cuda needs --device_cache_bytes=BYTES, the device memory that rows may take; min "
        "is the rows of one step");
  }
  if (f.device_cache_bytes != 0 && f.cache_bytes != 0 && store == StoreKind::kMemory) {
    return absl::InvalidArgumentError(
        "--cache_bytes is memory between the device and a disk; with --store=memory leave it out");
  }
  if (f.device_cache_bytes != 0 && f.cache_bytes == kSmallestCache) {
    return absl::InvalidArgumentError(
        "--cache_bytes=min is for rows that are trained in that cache; with --device_cache_bytes "
        "say --device_cache_bytes=min, and give --cache_bytes in bytes, or leave it out");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t UsableMemoryBytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  // A limit on any group above ours holds for us too.
  for (std::string path = ControlGroupPath();; path.resize(path.rfind('/'))) {
    bytes = std::min(bytes, ReadLimit(absl::StrCat("/sys/fs/cgroup", path, "/memory.max"), bytes));
    if (path.find('/') == std::string::npos) break;
  }
  return std::min(bytes, ReadLimit("/sys/fs/cgroup/memory/memory.limit_in_bytes", bytes));
}

FlagSet MakeTrainerFlagSet(std::string_view program,
                           const std::function<void(FlagSet*)>& add_model_flags, TrainerFlags* f) {
  constexpr int64_t kMany = int64_t{1} << 40;
  FlagSet set(program);

  set.Group(kDataGroup);
  set.AddString("data", "KIND[:KEY=VALUE,...]", &f->data, "what to train on, see below");
  set.AddInt("seed", 0, INT64_MAX, &f->seed,
             "of generated data, first parameters and dropout: the same seed gives the same bits");
  if (std::vector<FlagPreset> presets = PresetsOf(program); !presets.empty()) {
    set.AddPresets(std::move(presets));
  }

  set.Group(kModelGroup);
  set.AddInt("embedding_dim", 1, 1 << 16, &f->embedding_dim, "numbers in each embedding vector");
  set.AddString("weights_precision", "WORD", &f->weights_precision,
                "as what the rows keep these: fp32, or fp16 or bf16 in half the bytes, rounded at "
                "random with a mean that is exact; sums, gradients and optimizers are fp32");
  if (add_model_flags != nullptr) add_model_flags(&set);
  set.AddString("pooling", "WORD", &f->pooling,
                "how the rows of one bag become one vector: sum or mean");
  set.AddString("initializer", "WORD", &f->initializer,
                "first values of rows: uniform_rows (uniform in +-1/sqrt(rows of the table)), "
                "zeros, uniform:X (+-X), normal:X (standard deviation X) or constant:X");

  set.Group("Training");
  set.AddInt("batch_size", 1, 1 << 24, &f->batch_size, "samples per step");
  set.AddInt("epochs", 1, 1 << 20, &f->epochs, "passes over the training data");
  set.AddInt("limit_train_batches", 0, kMany, &f->limit_train_batches,
             "steps per epoch at most; 0: all data");
  set.AddInt("validation_freq_within_epoch", 0, kMany, &f->validation_freq_within_epoch,
             "validate every so many steps; 0: at the end of each epoch");
  set.AddString("optimizer", "WORD", &f->optimizer,
                "of the tables: sgd, momentum, adagrad, rowwise_adagrad, adam, "
                "partial_rowwise_adam or ftrl");
  set.AddString("dense_optimizer", "WORD", &f->dense_optimizer,
                "of the dense parameters: sgd, adagrad or adam");
  set.AddReal("learning_rate", 0, 1e30, &f->learning_rate, "of the tables");
  set.AddReal("dense_learning_rate", 0, 1e30, &f->dense_learning_rate,
              "of the dense parameters; 0: the same as --learning_rate");
  set.AddReal("eps", 0, 1, &f->eps,
              "added to the denominators of Adagrad and Adam: damps the steps of seldom seen rows");
  set.AddReal("weight_decay", 0, 1e6, &f->weight_decay,
              "L2 of the dense parameters: this times the weight is added to its gradient");
  set.AddReal("table_weight_decay", 0, 1e6, &f->table_weight_decay,
              "the same for the tables: in each step the rows that its batch touches decay, others "
              "do not");
  set.AddReal("max_gradient_norm", 0, 1e30, &f->max_gradient_norm,
              "scales the gradient of all dense parameters down to this Euclidean norm where it is "
              "longer; 0: never");

  set.Group("Schedule");
  LearningRateOptions* const schedule = &f->schedule;
  set.AddInt("lr_warmup_steps", 0, kMany, &schedule->lr_warmup_steps,
             "all learning rates rise linearly over the first so many steps");
  set.AddInt("lr_decay_start", 0, kMany, &schedule->lr_decay_start,
             "step at which they begin to fall");
  set.AddInt("lr_decay_steps", 0, kMany, &schedule->lr_decay_steps,
             "how long they fall, with the square of the steps left; 0: never");
  set.AddReal("lr_plateau_factor", 0, 1, &schedule->lr_plateau_factor,
              "what they are multiplied by when validation no longer improves");
  set.AddInt("lr_plateau_patience", 0, kMany, &schedule->lr_plateau_patience,
             "validations without a better AUC before that; 0: never");
  set.AddInt("early_stop_patience", 0, kMany, &schedule->early_stop_patience,
             "validations without a better AUC before training ends; test metrics and saved model "
             "are then those of the best validation; 0: never");

  set.Group("Tiers");
  set.AddString("store", "KIND", &f->store,
                "where rows live below the cache: memory; ssd (a log on a disk, with an index in "
                "memory); rocksdb. Results have the same bits wherever they live");
  set.AddString("store_path", "DIR", &f->store_path,
                "directory of an ssd or rocksdb store, made if missing, for this run alone");
  set.AddBytes("store_bytes", &f->store_bytes,
               "budget of the store's memory, a hard limit. memory: all rows; 0: 80 % of the "
               "memory this process may use, less the cache and --exchange_feedback. ssd: index "
               "(10 bytes a row) and buffers; rocksdb: its block cache and write buffers; 0: 10 %, "
               "most of the memory being of more use to the cache",
               FlagSet::kNoMinWord, FlagSet::kMemoryBytesMax);
  set.AddBytes(
      "cache_bytes", &f->cache_bytes,
      "budget of the row cache over the store, a hard limit; bytes, or with a unit: 64MiB, "
      "1.5G; 0: over memory no cache, rows are trained in the store; over ssd and rocksdb 50 % of "
      "the memory, since every row that misses costs a read; min: the rows of one step. Results "
      "have the same bits whatever it is",
      kSmallestCache, FlagSet::kMemoryBytesMax);
  set.AddBytes(
      "device_cache_bytes", &f->device_cache_bytes,
      "with --device=cuda: budget of device memory for rows, a hard limit; min: the rows of "
      "one step. --cache_bytes is then host memory between the device and a disk, "
      "0: none. With --device=cpu: the tiers of a GPU in host memory, to try them out; "
      "0: not",
      kSmallestCache, FlagSet::kMemoryBytesMax);
  set.AddBytes("disk_bytes", &f->disk_bytes,
               "budget of an ssd or rocksdb store's files, snapshots included, a hard limit; twice "
               "the rows and more lets the log be cleaned cheaply; 0: 80 % of what is free there");
  set.AddString("cache_policy", "WORD", &f->cache_policy,
                "who leaves a full cache: lru (longest unused) or lfu (least often used)");
  set.AddInt("prefetch_depth", 0, 32, &f->prefetch_depth,
             "steps whose rows are brought into the cache before their turn; moves no bit either");

  set.Group("Ranks");
  set.AddString(
      "comm", "WORD", &f->comm,
      "how ranks find each other: mpi (mpirun -n N in front of this command), single (this "
      "process alone), auto: whatever it was started with. Each rank trains a slice of "
      "every batch and keeps its share of the rows; budgets of tiers and --threads are "
      "those of a rank. For a fixed number of ranks a run repeats bit for bit");
  set.AddReal("comm_timeout", 1e-3, 86400, &f->comm_timeout,
              "seconds after which a rank that does not answer is given up, and the run with it");
  set.AddString(
      "exchange_forward", "WORD", &f->exchange_forward,
      "how rows travel between ranks in training: fp32, fp16, bf16 or int8 (one scale for "
      "each row)");
  set.AddString("exchange_backward", "WORD", &f->exchange_backward,
                "how their gradients travel: the same words");
  set.AddString("exchange_rounding", "WORD", &f->exchange_rounding,
                "to fewer bits: nearest, or stochastic (unbiased, and still the same in each run)");
  set.AddBytes("exchange_feedback", &f->exchange_feedback,
               "keep what a gradient loses on its way (--exchange_backward fp16, bf16 or int8), "
               "and add it to the next of the same row: memory of each rank for that, as in 64MB, "
               "beside the budgets of the tiers; a checkpoint holds it, and takes as much again "
               "while it is written; 0: what is lost is lost",
               FlagSet::kNoMinWord, FlagSet::kMemoryBytesMax);

  set.Group("Checkpoints");
  set.AddString("checkpoint_dir", "DIR", &f->checkpoint_dir,
                "keep checkpoints of the whole run there, to go on from after a kill or a power "
                "loss with the same bits; SIGINT and SIGTERM take one more and end the run. With "
                "--store=memory the rows are written there, otherwise they stay in the store");
  set.AddInt("checkpoint_every", 0, kMany, &f->checkpoint_every,
             "steps between two of them; training goes on while they are written; 0: at the end "
             "and on signals only");
  set.AddInt("keep_checkpoints", 1, 1 << 20, &f->keep_checkpoints,
             "how many stay; fewer where they would not let an ssd store keep its disk budget");
  set.AddSwitch("resume", &f->resume,
                "go on from the newest checkpoint of --checkpoint_dir, or start if there is none: "
                "one command line for a supervisor to run again and again. Threads, tiers and how "
                "often checkpoints are taken may change meanwhile, and --epochs may grow");

  set.Group("Running");
  set.AddInt("threads", 0, kMaxThreads, &f->threads, "of tables and MLPs; 0: all");
  set.AddString("device", "WORD", &f->device,
                "where tables and model compute: cpu; cuda (one GPU, the first that "
                "CUDA_VISIBLE_DEVICES names; dlrm only so far)");
  set.AddString("save_dir", "DIR", &f->save_dir,
                "save the trained model into this directory: tables, dense parameters, optimizer "
                "state; a model that is there stays until the new one is whole");
  set.AddString(
      "init_from", "DIR", &f->init_from,
      "start from the model that --save_dir has saved there, or from a checkpoint; ids that "
      "it does not have join");
  set.AddString("report", "FILE", &f->report, "write what happened as JSON");
  set.AddString("trace", "FILE", &f->trace,
                "write when each stage ran, for ui.perfetto.dev or chrome://tracing");
  set.AddSwitch("mllog", &f->mllog, "print MLPerf's :::MLLOG lines among the others");

  set.Group("Planning");
  set.AddString("save_spec", "FILE", &f->save_spec,
                "write this run as `hotrow plan` takes it: tables, tiers, ranks, dense model");
  set.AddString(
      "record_trace", "FILE", &f->record_trace,
      "write which keys the steps of training use, for `hotrow trace`; several ranks write "
      "FILE.rank0 and so on, each the keys that it keeps, and a resumed run FILE.step<n>");
  set.AddReal(
      "sample_rate", kSampleRateMin, 1, &f->sample_rate,
      "share of the keys that --record_trace looks at, each of them always or never; 1: all");
  set.DescribeDefault("0.01");
  set.AddSwitch(
      "mrc", &f->mrc,
      "estimate while training what caches of other sizes would hit, for each table; into "
      "the --report");
  return set;
}

std::vector<std::pair<std::string, std::string>> ModelShape(const FlagSet& set) {
  std::vector<std::pair<std::string, std::string>> shape = set.TextsOfGroup(kModelGroup);
  // What may change from one day's training to the next. The tables tell of their columns
  // and precision.
  std::erase_if(shape, [](const auto& flag) {
    return flag.first == "embedding_dim" || flag.first == "weights_precision" ||
           flag.first == "dropout" || flag.first == "initializer";
  });
  return shape;
}

std::vector<std::pair<std::string, std::string>> RunSettings(const FlagSet& set) {
  std::vector<std::pair<std::string, std::string>> settings = set.TextsOfGroup(kDataGroup);
  // A preset is what its flags say.
  std::erase_if(settings, [](const auto& flag) { return flag.first == "preset"; });
  for (auto& flag : set.TextsOfGroup(kModelGroup)) settings.push_back(std::move(flag));
  return settings;
}

int64_t UsableDiskBytes(const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator it(dir, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code entry_error;
    const auto size = it->is_regular_file(entry_error) ? it->file_size(entry_error) : 0;
    if (!entry_error) bytes += static_cast<int64_t>(size);
  }
  fs::path at = fs::absolute(dir, error).lexically_normal();
  while (!fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
  const absl::StatusOr<int64_t> free = PosixEnv().FreeBytes(at.string());
  return free.ok() ? bytes + *free : bytes;
}

namespace {

// Where the flags leave budgets of the tiers to us.
absl::Status ResolveTiers(StoreKind store, int32_t local_ranks, TrainerFlags* f) {
  const auto share = [local_ranks](double part, int64_t whole) {
    return std::max<int64_t>(static_cast<int64_t>(part * static_cast<double>(whole) / local_ranks),
                             1);
  };
  if (store == StoreKind::kMemory) {
    for (const auto& [flag, given] :
         {std::pair<const char*, bool>{"store_path", !f->store_path.empty()},
          {"disk_bytes", f->disk_bytes != 0}}) {
      if (!given) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " is for tables on a disk; add --store=ssd, or leave it out"));
    }
    if (f->store_bytes == 0) {
      f->store_bytes =
          std::max<int64_t>(share(kStoreShareOfMemory, UsableMemoryBytes()) -
                                std::max<int64_t>(f->cache_bytes, 0) - f->exchange_feedback,
                            1);
    }
    return absl::OkStatus();
  }
  if (f->store_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store=", f->store,
                     " needs --store_path=DIR, the directory that the rows are to live in"));
  }
  if (f->store_bytes == 0) f->store_bytes = share(kDiskStoreShareOfMemory, UsableMemoryBytes());
  if (f->cache_bytes == 0 && f->device_cache_bytes == 0) {
    f->cache_bytes = share(kCacheShareOfMemory, UsableMemoryBytes());
  }
  if (f->disk_bytes == 0) f->disk_bytes = share(kStoreShareOfDisk, UsableDiskBytes(f->store_path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainerOptions> ResolveTrainerFlags(TrainerFlags* f, int32_t local_ranks) {
  HOTROW_ASSIGN_OR_RETURN(const Device device, ParseDevice(f->device));
  if (f->threads == 0) {
    f->threads =
        std::clamp<int64_t>(std::thread::hardware_concurrency() / local_ranks, 1, kMaxThreads);
  }
  if (f->dense_learning_rate == 0) f->dense_learning_rate = f->learning_rate;
  if (f->sample_rate != 0 && f->record_trace.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sample_rate=", f->sample_rate,
                     " is of an access trace; add --record_trace=FILE, or leave it out"));
  }
  if (f->mrc && f->report.empty()) {
    return absl::InvalidArgumentError(
        "--mrc puts its curves into the report; add --report=FILE, or leave it out");
  }
  HOTROW_ASSIGN_OR_RETURN(const StoreKind store,
                          WithFlag("store", f->store, ParseStoreKind(f->store)));
  HOTROW_RETURN_IF_ERROR(ResolveTiers(store, local_ranks, f));

  TrainerOptions out;
  out.batch_size = f->batch_size;
  out.epochs = f->epochs;
  out.limit_train_batches = f->limit_train_batches;
  out.validation_freq_within_epoch = f->validation_freq_within_epoch;
  out.embedding_dim = static_cast<int32_t>(f->embedding_dim);
  HOTROW_ASSIGN_OR_RETURN(out.weights_precision,
                          WithFlag("weights_precision", f->weights_precision,
                                   ParseWeightsPrecision(f->weights_precision)));
  HOTROW_ASSIGN_OR_RETURN(out.pooling, ParsePooling(f->pooling));
  HOTROW_ASSIGN_OR_RETURN(out.initializer, ParseInitializer(f->initializer));
  HOTROW_ASSIGN_OR_RETURN(out.table_optimizer.kind,
                          WithFlag("optimizer", f->optimizer, ParseSparseOptimizer(f->optimizer)));
  HOTROW_ASSIGN_OR_RETURN(
      out.dense_optimizer.kind,
      WithFlag("dense_optimizer", f->dense_optimizer, ParseDenseOptimizer(f->dense_optimizer)));
  out.table_optimizer.learning_rate = static_cast<float>(f->learning_rate);
  out.dense_optimizer.learning_rate = static_cast<float>(f->dense_learning_rate);
  out.table_optimizer.eps = out.dense_optimizer.eps = static_cast<float>(f->eps);
  out.table_optimizer.weight_decay = static_cast<float>(f->table_weight_decay);
  out.dense_optimizer.weight_decay = static_cast<float>(f->weight_decay);
  out.max_gradient_norm = f->max_gradient_norm;
  out.schedule = f->schedule;
  out.save_dir = f->save_dir;
  out.init_from = f->init_from;
  out.checkpoint_dir = f->checkpoint_dir;
  out.checkpoint_every = f->checkpoint_every;
  out.keep_checkpoints = f->keep_checkpoints;
  out.resume = f->resume;
  out.mllog = f->mllog;
  out.save_spec = f->save_spec;
  out.record_trace = f->record_trace;
  if (!f->record_trace.empty()) {
    if (f->sample_rate == 0) f->sample_rate = out.sample_rate;
    out.sample_rate = f->sample_rate;
  }
  out.mrc = f->mrc;
  out.seed = static_cast<uint64_t>(f->seed);
  out.store = store;
  out.store_path = f->store_path;
  out.disk_bytes = f->disk_bytes;
  out.store_bytes = f->store_bytes;
  out.cache_bytes = f->cache_bytes;
  out.device = device;
  out.device_cache_bytes = f->device_cache_bytes;
  HOTROW_RETURN_IF_ERROR(CheckDevice(*f, device, store));
  HOTROW_ASSIGN_OR_RETURN(out.cache_policy, ParseCachePolicy(f->cache_policy));
  out.prefetch_depth = static_cast<int32_t>(f->prefetch_depth);
  HOTROW_ASSIGN_OR_RETURN(out.exchange_forward, WithFlag("exchange_forward", f->exchange_forward,
                                                         ParseExchangeType(f->exchange_forward)));
  HOTROW_ASSIGN_OR_RETURN(out.exchange_backward, WithFlag("exchange_backward", f->exchange_backward,
                                                          ParseExchangeType(f->exchange_backward)));
  HOTROW_ASSIGN_OR_RETURN(out.exchange_rounding,
                          WithFlag("exchange_rounding", f->exchange_rounding,
                                   ParseExchangeRounding(f->exchange_rounding)));
  out.exchange_feedback_bytes = f->exchange_feedback;
  HOTROW_RETURN_IF_ERROR(out.Validate());
  return out;
}

}  // namespace hotrow
