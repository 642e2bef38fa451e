// Scores one user with candidates, over and over, with all rows in memory and with rows on a disk
// behind a cache, and prints one JSON object.
//
// What bounds it: the dense part, which both have (`memory`), and the reads of rows that the cache
// does not have. `device` is how many blocks of 4 KiB the disk gives at random places of the same
// files, with as many threads and queues; `share_of_device` is the scorer's reads beside that. The
// three take turns; medians of the turns. So does `saving`, which is `disk` while another thread
// calls SaveHotKeys without a pause.
//
//   serving_disk_bench --model=DIR --rows_dir=DIR [--memory_bytes=BYTES] [--threads=2]
//                      [--candidates=500] [--user_features=13] [--keys=50000] [--zipf=1.05]
//                      [--seconds=3] [--turns=3]
//
// Each feature of a user or candidate has one key, drawn below --keys by a Zipf law. Times are
// those of single requests.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/flag_set.h"
#include "base/io_queue.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "base/status_macros.h"
#include "embedding/serving/serving_tables.h"
#include "models/data/zipf.h"
#include "models/serving/scorer.h"

namespace hotrow {
namespace {

constexpr int64_t kBlockBytes = 4096;
constexpr size_t kBlocksAtOnce = 128;

struct Flags {
  std::string model, rows_dir;
  int64_t memory_bytes = int64_t{32} << 20;
  int32_t threads = 2;
  int64_t candidates = 500;
  int64_t user_features = 13;
  int64_t keys = 50'000;
  double zipf = 1.05;
  double seconds = 3;
  int64_t turns = 3;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double At(std::vector<double>* values, double share) {
  if (values->empty()) return 0;
  std::sort(values->begin(), values->end());
  return (*values)[std::min(values->size() - 1,
                            static_cast<size_t>(static_cast<double>(values->size()) * share))];
}

// Runs `work(thread)` on all threads until the time is over; returns the seconds it took.
template <typename Work>
double RunThreads(const Flags& flags, const Work& work) {
  std::atomic<bool> stop = false;
  const double begin = Now();
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < flags.threads; ++t) {
    threads.emplace_back([&, t] { work(t, stop); });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(flags.seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return Now() - begin;
}

// A turn of scoring.
struct Turn {
  double qps = 0;
  double tp50_ms = 0, tp99_ms = 0;
  ServingReadStats reads;
  double seconds = 0;
};

class Clients {
 public:
  Clients(const Flags& flags, const Scorer& scorer)
      : flags_(flags),
        features_(std::ssize(scorer.feature_names())),
        zipf_(static_cast<uint64_t>(flags.keys), flags.zipf) {
    for (int32_t f = 0; f < flags.user_features; ++f) user_features_.push_back(f);
  }

  absl::StatusOr<Turn> Run(const Scorer& scorer, uint64_t seed) {
    std::vector<std::vector<double>> times(static_cast<size_t>(flags_.threads));
    std::vector<absl::Status> statuses(times.size());
    const ServingReadStats before = scorer.read_stats();
    const double seconds = RunThreads(flags_, [&](int32_t t, const std::atomic<bool>& stop) {
      const auto at = static_cast<size_t>(t);
      RandomStream random(seed * 1000 + at, RandomPurpose::kTest);
      const auto user = static_cast<size_t>(flags_.user_features);
      const auto n = static_cast<size_t>(flags_.candidates);
      std::vector<uint64_t> user_keys(user), keys((static_cast<size_t>(features_) - user) * n);
      std::vector<int64_t> user_offsets(user + 1), offsets(keys.size() + 1);
      for (size_t i = 0; i < user_offsets.size(); ++i) user_offsets[i] = static_cast<int64_t>(i);
      for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
      const std::vector<float> dense(n * static_cast<size_t>(scorer.num_dense()), 0.5f);
      std::vector<float> logits(n * static_cast<size_t>(scorer.num_tasks()));
      while (!stop && statuses[at].ok()) {
        for (uint64_t& key : user_keys) key = Draw(&random);
        for (uint64_t& key : keys) key = Draw(&random);
        const double begin = Now();
        statuses[at] = scorer.ScoreCandidates({.num_candidates = flags_.candidates,
                                               .user_features = user_features_,
                                               .user = {1, user_keys, user_offsets, {}},
                                               .candidates = {flags_.candidates, keys, offsets, {}},
                                               .candidate_dense = dense},
                                              logits);
        times[at].push_back(1000 * (Now() - begin));
      }
    });
    for (const absl::Status& status : statuses) HOTROW_RETURN_IF_ERROR(status);
    Turn out = {.reads = scorer.read_stats(), .seconds = seconds};
    out.reads.hits -= before.hits;
    out.reads.misses -= before.misses;
    out.reads.absent -= before.absent;
    out.reads.reads -= before.reads;
    std::vector<double> all;
    for (const std::vector<double>& own : times) all.insert(all.end(), own.begin(), own.end());
    out.qps = static_cast<double>(all.size()) / seconds;
    out.tp50_ms = At(&all, 0.5);
    out.tp99_ms = At(&all, 0.99);
    return out;
  }

 private:
  uint64_t Draw(RandomStream* random) const {
    const auto block = [random] {
      return PhiloxBlock{{random->Next32(), random->Next32(), random->Next32(), random->Next32()}};
    };
    return zipf_.Rank(block(), [&](uint32_t) { return block(); });
  }

  const Flags& flags_;
  const int64_t features_;
  const ZipfSampler zipf_;
  std::vector<int32_t> user_features_;
};

// Blocks a second that the disk gives at random places of the files of rows.
absl::StatusOr<double> MeasureDevice(const Flags& flags) {
  Env& env = PosixEnv();
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(flags.rows_dir));
  std::vector<std::unique_ptr<File>> files;
  std::vector<int64_t> blocks;
  for (const std::string& name : names) {
    if (!name.ends_with(".rows")) continue;
    HOTROW_ASSIGN_OR_RETURN(
        files.emplace_back(),
        env.OpenDirect(absl::StrCat(flags.rows_dir, "/", name), OpenMode::kRead));
    HOTROW_ASSIGN_OR_RETURN(const int64_t size, files.back()->Size());
    blocks.push_back(size / kBlockBytes);
  }
  std::vector<int64_t> counts(static_cast<size_t>(flags.threads));
  std::vector<absl::Status> statuses(counts.size());
  const double seconds = RunThreads(flags, [&](int32_t t, const std::atomic<bool>& stop) {
    const auto at = static_cast<size_t>(t);
    statuses[at] = [&]() -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, env.NewIoQueue({}));
      HOTROW_ASSIGN_OR_RETURN(
          HostBuffer<std::byte> memory,
          HostBuffer<std::byte>::Create(static_cast<int64_t>(kBlocksAtOnce) * kBlockBytes));
      RandomStream random(at, RandomPurpose::kTest);
      std::vector<IoRequest> requests(kBlocksAtOnce);
      absl::Status status;
      while (!stop && status.ok()) {
        for (size_t r = 0; r < requests.size(); ++r) {
          const auto f = static_cast<size_t>(random.Uniform() * static_cast<double>(files.size()));
          const auto block =
              static_cast<int64_t>(random.Uniform() * static_cast<double>(blocks[f]));
          requests[r] = {.file = files[f].get(),
                         .offset = block * kBlockBytes,
                         .data = memory.data() + static_cast<int64_t>(r) * kBlockBytes,
                         .bytes = kBlockBytes};
        }
        queue->Run(requests, [&](IoRequest& request) { status.Update(request.status); });
        counts[at] += std::ssize(requests);
      }
      return status;
    }();
  });
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  for (const absl::Status& status : statuses) HOTROW_RETURN_IF_ERROR(status);
  return static_cast<double>(sum) / seconds;
}

absl::Status Run(const Flags& flags) {
  ScorerOptions options = {.model = flags.model, .max_concurrency = flags.threads};
  HOTROW_ASSIGN_OR_RETURN(const auto memory, Scorer::Open(options));
  options.memory_bytes = flags.memory_bytes;
  options.rows_dir = flags.rows_dir;
  double begin = Now();
  HOTROW_ASSIGN_OR_RETURN(const auto disk, Scorer::Open(options));
  const double open_seconds = Now() - begin;
  Clients clients(flags, *memory);
  HOTROW_RETURN_IF_ERROR(clients.Run(*disk, 0).status());  // fills the cache
  std::vector<Turn> of_memory, of_disk, of_saving;
  std::vector<double> save_ms;
  std::vector<double> device;
  for (int64_t turn = 0; turn < flags.turns; ++turn) {
    const auto seed = static_cast<uint64_t>(turn) + 1;
    HOTROW_ASSIGN_OR_RETURN(of_memory.emplace_back(), clients.Run(*memory, seed));
    HOTROW_ASSIGN_OR_RETURN(of_disk.emplace_back(), clients.Run(*disk, seed));
    std::atomic<bool> stop = false;
    absl::Status saved;
    std::thread saver([&] {
      while (!stop && saved.ok()) {
        const double start = Now();
        saved = disk->SaveHotKeys();
        save_ms.push_back(1000 * (Now() - start));
      }
    });
    absl::StatusOr<Turn> saving = clients.Run(*disk, seed);
    stop = true;
    saver.join();
    HOTROW_RETURN_IF_ERROR(saved);
    HOTROW_ASSIGN_OR_RETURN(of_saving.emplace_back(), std::move(saving));
    HOTROW_ASSIGN_OR_RETURN(device.emplace_back(), MeasureDevice(flags));
  }
  const auto median = [](const std::vector<Turn>& turns, const auto& of) {
    std::vector<double> values;
    for (const Turn& turn : turns) values.push_back(of(turn));
    return At(&values, 0.5);
  };
  const auto qps = [](const Turn& turn) { return turn.qps; };
  const auto tp50 = [](const Turn& turn) { return turn.tp50_ms; };
  const auto tp99 = [](const Turn& turn) { return turn.tp99_ms; };
  const auto reads = [](const Turn& turn) {
    return static_cast<double>(turn.reads.reads) / turn.seconds;
  };
  const auto hit_rate = [](const Turn& turn) {
    return static_cast<double>(turn.reads.hits) /
           static_cast<double>(std::max<int64_t>(turn.reads.hits + turn.reads.misses, 1));
  };
  const double device_reads = At(&device, 0.5);
  absl::PrintF(
      "{\"rows\": %d, \"table_bytes\": %d, \"cache_rows\": %d, \"open_seconds\": %.2f,\n"
      " \"memory\": {\"qps\": %.1f, \"tp50_ms\": %.2f, \"tp99_ms\": %.2f},\n"
      " \"disk\": {\"qps\": %.1f, \"tp50_ms\": %.2f, \"tp99_ms\": %.2f, \"reads_per_s\": %.0f, "
      "\"hit_rate\": %.4f},\n"
      " \"saving\": {\"qps\": %.1f, \"tp50_ms\": %.2f, \"tp99_ms\": %.2f, \"saves\": %d, "
      "\"save_tp50_ms\": %.1f},\n"
      " \"device_reads_per_s\": %.0f, \"share_of_device\": %.3f}\n",
      disk->rows(), disk->table_bytes(), disk->read_stats().cache_rows, open_seconds,
      median(of_memory, qps), median(of_memory, tp50), median(of_memory, tp99),
      median(of_disk, qps), median(of_disk, tp50), median(of_disk, tp99), median(of_disk, reads),
      median(of_disk, hit_rate), median(of_saving, qps), median(of_saving, tp50),
      median(of_saving, tp99), std::ssize(save_ms), At(&save_ms, 0.5), device_reads,
      median(of_disk, reads) / device_reads);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("serving_disk_bench");
  set.AddString("model", "DIR", &flags.model, "a DLRM or another model with one key a feature");
  set.AddString("rows_dir", "DIR", &flags.rows_dir, "for its rows");
  set.AddBytes("memory_bytes", &flags.memory_bytes, "of index, buffers and cache");
  set.Add("threads", IntFlag(&flags.threads, 1, 1024), "clients, each a call at a time");
  set.AddInt("candidates", 1, 1 << 20, &flags.candidates, "of a request");
  set.AddInt("user_features", 0, 1 << 20, &flags.user_features, "features of the user");
  set.AddInt("keys", 1, int64_t{1} << 40, &flags.keys, "keys are drawn below this");
  set.AddReal("zipf", 0, 10, &flags.zipf, "exponent of their law");
  set.AddReal("seconds", 0.01, 3600, &flags.seconds, "of a turn");
  set.AddInt("turns", 1, 1000, &flags.turns, "of each kind");
  absl::Status status = set.Parse(argc, argv);
  if (status.ok() && set.help_requested()) {
    absl::PrintF("%s", set.Help());
    return 0;
  }
  if (status.ok()) status = Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "serving_disk_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  return hotrow::RunMain("serving_disk_bench", [&] { return hotrow::Main(argc, argv); });
}
