#include "models/programs/trainer_flags.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/env.h"
#include "base/machine_limits.h"
#include "base/path_list.h"
#include "base/status_macros.h"
#include "models/data/file_source.h"
#include "models/data/sample_feed.h"
#include "models/train/trainer_settings.h"
#include "store/store_facts.h"

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
constexpr char kDataGroup[] = "Data";
constexpr char kModelGroup[] = "Model";

constexpr int64_t kOpeningThreadsMax = 16;  // one thread cuts records for about as many
constexpr int64_t kReadingThreadsMax = 4;

// Before anything is read or made: whether there is such a device, and what it needs.
absl::Status CheckDevice(const TrainerOptions& o) {
  if (const auto usable = DeviceStream::Create(o.device); !usable.ok()) {
    return absl::Status(usable.status().code(),
                        absl::StrCat("--device=", std::string(DeviceName(o.device)), ": ",
                                     usable.status().message(), "; or use --device=cpu"));
  }
  if (o.device != Device::kCpu && o.device_cache_bytes == 0) {
    return absl::InvalidArgumentError(
        "--device=cuda needs --device_cache_bytes=BYTES, the device memory that rows may take; min "
        "is the rows of one step");
  }
  if (o.device_cache_bytes != 0 && o.cache_bytes == kSmallestCache) {
    return absl::InvalidArgumentError(
        "--cache_bytes=min is for rows that are trained in that cache; with --device_cache_bytes "
        "say --device_cache_bytes=min, and give --cache_bytes in bytes, or leave it out");
  }
  return absl::OkStatus();
}

}  // namespace

TrainerFlags::TrainerFlags() {
  options.seed = 1;
  options.embedding_dim = 16;
  options.batch_size = 2048;
  options.table_optimizer.learning_rate = 0.02f;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdagrad;
  options.dense_optimizer.learning_rate = 0.01f;
  // The first step of Adagrad has the length of the learning rate however small the gradient, and
  // most rows are seldom seen. A row's gradient is of the size of 1 / batch_size, so this eps damps
  // such steps: a small DLRM ended 0.0097 below the best AUC of the synthetic data with 1e-8 and
  // 0.0053 below it with 1e-3.
  options.table_optimizer.eps = 1e-3f;
  options.prefetch_depth = 1;
  options.checkpoint_every = 1000;
  options.sample_rate = 0;  // not given
}

FlagSet MakeTrainerFlagSet(std::string_view program,
                           const std::function<void(FlagSet*)>& add_model_flags, TrainerFlags* f,
                           std::vector<FlagPreset> presets) {
  FlagSet set(program);
  // Adds the program's own flags that stand before this row in the help.
  const auto add_own_before = [&](std::string_view row) {
    if (row == "seed") {
      set.Group(kDataGroup);
      set.AddString("data", "KIND[:KEY=VALUE,...]", &f->data, "what to train on, see below");
    } else if (row == "embedding_dim") {
      if (!presets.empty()) set.AddPresets(std::move(presets));
    } else if (row == "pooling") {
      if (add_model_flags != nullptr) add_model_flags(&set);
    } else if (row == "exchange_forward") {
      set.Group("Ranks");
      set.AddString(
          "comm", "WORD", &f->comm,
          "launcher of the ranks: mpi (mpirun -n N in front of this command), single (this "
          "process alone) or auto (detected). Each rank trains a slice of every batch and "
          "keeps its share of the rows; budgets of tiers and --threads are those of a rank. "
          "For a fixed number of ranks a run repeats bit for bit");
      set.AddReal("comm_timeout", 1e-3, 86400, &f->comm_timeout,
                  "seconds without an answer of a rank after which the run fails");
    } else if (row == "device") {
      set.Group("Running");
      set.AddInt("threads", 0, kMaxThreads, &f->threads, "threads of tables and MLPs; 0: all");
      set.AddInt(
          "reader_threads", 0, kMaxReaderThreads, &f->reader_threads,
          "threads that parse text data; no result depends on them. 1: none but the one "
          "that reads batches ahead. 0: one while a CPU trains, up to 4 beside a device, and "
          "all --threads (16 at most) while the data are opened");
    } else if (row == "mllog") {
      set.AddString("report", "FILE", &f->report, "write the results of the run as JSON");
      set.AddString("trace", "FILE", &f->trace,
                    "write when each stage ran, for ui.perfetto.dev or chrome://tracing");
    }
  };
  for (const TrainerSetting& row : TrainerSettings()) {
    if (!row.is_flag()) continue;
    add_own_before(row.name);
    set.Group(row.group);
    set.Add(row.flag_name(), row.bind(f->options), row.Help());
    if (row.help_default != nullptr) set.DescribeDefault(row.help_default);
  }
  return set;
}

ReaderThreads ChooseReaderThreads(const TrainerFlags& f) {
  if (f.reader_threads > 0) {
    const auto given = static_cast<int32_t>(f.reader_threads);
    return {.opening = given, .reading = given};
  }
  const auto opening = std::clamp<int64_t>(f.threads, 1, kOpeningThreadsMax);
  const auto beside_device = std::clamp<int64_t>(f.threads / 2, 1, kReadingThreadsMax);
  return {.opening = static_cast<int32_t>(opening),
          .reading = f.options.device == Device::kCpu ? 1 : static_cast<int32_t>(beside_device)};
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

int64_t UsableDiskBytes(const std::vector<std::string>& dirs) {
  namespace fs = std::filesystem;
  int64_t bytes = 0;
  std::set<dev_t> seen;
  for (const std::string& dir : dirs) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(dir, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code entry_error;
      const auto size = it->is_regular_file(entry_error) ? it->file_size(entry_error) : 0;
      if (!entry_error) bytes += static_cast<int64_t>(size);
    }
    fs::path at = fs::absolute(dir, error).lexically_normal();
    while (!fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
    struct stat there;
    if (::stat(at.c_str(), &there) == 0 && !seen.insert(there.st_dev).second) continue;
    const absl::StatusOr<int64_t> free = PosixEnv().FreeBytes(at.string());
    if (free.ok()) bytes += *free;
  }
  return bytes;
}

namespace {

// Where the flags leave budgets of the tiers to us.
absl::Status ResolveTiers(int32_t local_ranks, TrainerOptions* o) {
  const auto share = [local_ranks](double part, int64_t whole) {
    return std::max<int64_t>(static_cast<int64_t>(part * static_cast<double>(whole) / local_ranks),
                             1);
  };
  if (!FactsOf(o->store).on_disk) {
    for (const auto& [flag, given] :
         {std::pair<const char*, bool>{"store_path", !o->store_path.empty()},
          {"disk_bytes", o->disk_bytes != 0}}) {
      if (!given) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " is for tables on a disk; add --store=ssd, or leave it out"));
    }
    if (o->store_bytes == 0) {
      o->store_bytes =
          std::max<int64_t>(share(kStoreShareOfMemory, UsableMemoryBytes()) -
                                std::max<int64_t>(o->cache_bytes, 0) - o->exchange_feedback_bytes,
                            1);
    }
    return absl::OkStatus();
  }
  if (o->store_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store=", std::string(StoreKindName(o->store)),
                     " needs --store_path=DIR, the directory that the rows are to live in"));
  }
  if (o->store_bytes == 0) o->store_bytes = share(kDiskStoreShareOfMemory, UsableMemoryBytes());
  if (o->cache_bytes == 0 && o->device_cache_bytes == 0) {
    o->cache_bytes = share(kCacheShareOfMemory, UsableMemoryBytes());
  }
  if (o->disk_bytes == 0) {
    // A list that makes no sense is refused below.
    const absl::StatusOr<std::vector<std::string>> dirs = SplitPathList(o->store_path);
    if (dirs.ok()) o->disk_bytes = share(kStoreShareOfDisk, UsableDiskBytes(*dirs));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ResolveTrainerFlags(TrainerFlags* f, int32_t local_ranks) {
  TrainerOptions& o = f->options;
  if (f->threads == 0) {
    f->threads = std::clamp<int64_t>(UsableProcessors() / local_ranks, 1, kMaxThreads);
  }
  if (o.dense_optimizer.learning_rate == 0) {
    o.dense_optimizer.learning_rate = o.table_optimizer.learning_rate;
  }
  o.dense_optimizer.eps = o.table_optimizer.eps;
  if (o.sample_rate != 0 && o.record_trace.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sample_rate=", o.sample_rate,
                     " is of an access trace; add --record_trace=FILE, or leave it out"));
  }
  if (o.sample_rate == 0 && !o.record_trace.empty()) o.sample_rate = TrainerOptions().sample_rate;
  if (o.mrc && f->report.empty()) {
    return absl::InvalidArgumentError(
        "--mrc puts its curves into the report; add --report=FILE, or leave it out");
  }
  HOTROW_RETURN_IF_ERROR(ResolveTiers(local_ranks, &o));
  HOTROW_RETURN_IF_ERROR(CheckDevice(o));
  HOTROW_RETURN_IF_ERROR(o.Validate());
  return CheckDensePrecision(o.precision, o.device, "--precision=");
}

}  // namespace hotrow
