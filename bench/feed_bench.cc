// What lies between a file of packed data and the rows of its samples. Prints JSON objects.
//
// First stage by stage, each on this thread alone: nanoseconds of processor a sample, where the row
// cache of a CPU has all rows, for keys drawn alike (zipf 0) and with a long tail. The stages of
// one order of samples add up to its sum: in order of the file `copy` makes a batch of columns,
// shuffled `to_rows` and `gather` do. Of Prefetch, `unique` finds the distinct keys and the lookups
// of each, `place` finds their rows in the cache and pins them, and `take` is the rest. Bound by
// memory: a sample is some 130 bytes of the file, and 420 of the batch.
//
// Then it feeds a stream that takes as long for a step as a GPU might: the wall time of a step as a
// multiple of the stream's, and what each thread took.
//
// What bounds it: the stream, as long as each thread of the host is done with a step in less. The
// stream stands for a GPU that has all rows but those of new ids, and finds them: it sleeps. What
// the host does is real: a thread reads blocks, another makes batches of them, and the caller takes
// them where they lie, as Prefetch does, `depth` steps ahead. New ids, where there are some, go
// through a collection whose device is emulated in host memory, which places them and makes their
// rows; what a GPU would do of that is done by threads called "a lagging stream".
//
//   feed_bench [--samples=65536] [--steps=40] [--step_us=4000] [--new_percent=2]
//
// 26 ids of tables with num_embeddings, 13 dense features and a label a sample; the pack is written
// to TMPDIR and read from the page cache.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/device_stream.h"
#include "base/env.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "base/trace.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/taken_batch_impl.h"
#include "models/data/packed_batches_impl.h"
#include "models/data/packed_format.h"
#include "models/data/packed_source.h"
#include "models/data/permutation.h"
#include "models/data/zipf.h"
#include "models/saving/packed_writer.h"
#include "models/train/batch_reader.h"
#include "tests/support/lagging_streams.h"

namespace hotrow {
namespace {

constexpr int64_t kFeatures = 26;
constexpr int32_t kDense = 13;
constexpr uint64_t kKnownRows = 50'000;  // of each table; new ids lie behind them
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kWarmup = 4;  // steps
constexpr int64_t kBehind = 8;  // that are read and do not run, so that readers work to the end

struct Flags {
  int64_t samples = 65'536;
  int64_t steps = 40;
  int64_t step_us = 4'000;
  int64_t new_percent = 2;
};

bool ParseFlags(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const auto number = [&](absl::string_view name, int64_t* value) {
      return absl::ConsumePrefix(&arg, name) && absl::SimpleAtoi(arg, value);
    };
    if (!number("--samples=", &flags->samples) && !number("--steps=", &flags->steps) &&
        !number("--step_us=", &flags->step_us) && !number("--new_percent=", &flags->new_percent)) {
      return false;
    }
  }
  return flags->samples > 0 && flags->steps > 0 && flags->step_us >= 0 && flags->new_percent >= 0 &&
         flags->new_percent <= 100;
}

EmbeddingCollectionOptions TablesOf(int64_t max_batch_size, int32_t depth) {
  EmbeddingCollectionOptions options;
  for (int64_t f = 0; f < kFeatures; ++f) {
    TableConfig table;
    table.name = absl::StrCat("t", f);
    table.embedding_dim = 16;
    table.feature_names = {absl::StrCat("f", f)};
    table.num_embeddings = 1 << 30;
    options.tables.push_back(std::move(table));
  }
  options.max_batch_size = max_batch_size;
  options.prefetch_depth = depth;
  options.store = MemoryStorage{.memory_bytes = 512 * kMiB};
  options.cache.device_bytes = 512 * kMiB;
  options.cache.device_index_bytes = 64 * kMiB;
  return options;
}

// Samples whose first `fresh` of each step have ids that nobody has seen; those of others have a
// Zipf law.
void WritePack(const Flags& flags, int64_t fresh, double zipf, const std::string& dir) {
  DataSchema schema;
  schema.num_dense = kDense;
  for (int64_t f = 0; f < kFeatures; ++f) {
    schema.features.push_back({.name = absl::StrCat("f", f), .table = absl::StrCat("t", f)});
  }
  auto writer = PackedWriter::Create(schema, {.dir = dir, .source = "feed_bench"});
  HOTROW_CHECK(writer.ok());
  const ZipfSampler known(kKnownRows, zipf);
  const int64_t n = flags.samples;
  CtrBatch batch = {.batch_size = n};
  batch.dense.resize(static_cast<size_t>(n * kDense), 0.5f);
  batch.labels.resize(static_cast<size_t>(n), 1);
  batch.offsets.resize(static_cast<size_t>(kFeatures * n + 1));
  std::iota(batch.offsets.begin(), batch.offsets.end(), int64_t{0});
  batch.values.resize(static_cast<size_t>(kFeatures * n));
  for (int64_t step = 0; step < kWarmup + flags.steps + kBehind; ++step) {
    for (int64_t i = 0; i < kFeatures * n; ++i) {
      const int64_t sample = i % n;
      const auto bits = [&](uint32_t again) {
        return RandomBlock(1, RandomPurpose::kTest, static_cast<uint64_t>(i),
                           static_cast<uint32_t>(step), again);
      };
      batch.values[static_cast<size_t>(i)] =
          sample < fresh ? kKnownRows + static_cast<uint64_t>(step * fresh + sample)
                         : known.Rank(bits(0), bits);
    }
    HOTROW_CHECK((*writer)->Append(Split::kTrain, batch).ok());
  }
  HOTROW_CHECK((*writer)->Finish({}).ok());
}

// --- Stage by stage

int64_t ThreadNanos() {
  timespec now;
  HOTROW_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

class StageTimes {
 public:
  template <typename Work>
  void Run(const char* stage, const Work& work) {
    const int64_t begin = ThreadNanos();
    work();
    Add(stage, static_cast<double>(ThreadNanos() - begin));
  }
  void Add(const char* stage, double ns) { ns_[stage] += ns; }
  double Sum(std::initializer_list<const char*> stages) const {
    double sum = 0;
    for (const char* const stage : stages) sum += ns_.at(stage);
    return sum;
  }
  void Clear() { ns_.clear(); }
  const std::map<std::string, double>& all() const { return ns_; }

 private:
  std::map<std::string, double> ns_;
};

// Tables whose known rows all find room in the cache, and what Prefetch of a batch takes of them.
class CachedTables {
 public:
  explicit CachedTables(int64_t max_batch_size) {
    EmbeddingCollectionOptions options = TablesOf(max_batch_size, /*depth=*/0);
    options.cache = {.bytes = 512 * kMiB};
    auto tables = EmbeddingCollection::Create(options, {.trace = &trace_});
    HOTROW_CHECK(tables.ok());
    tables_ = *std::move(tables);
    std::vector<uint64_t> keys(kKnownRows);
    std::iota(keys.begin(), keys.end(), uint64_t{0});
    const std::vector<float> rows(kKnownRows * 16, 0.5f);
    for (int64_t f = 0; f < kFeatures; ++f) {
      HOTROW_CHECK(
          tables_->WriteRows(absl::StrCat("t", f), keys, {rows.data(), kKnownRows, 16}).ok());
    }
  }

  void Prefetch(const std::shared_ptr<const CtrBatch>& batch, StageTimes* times) {
    const double unique = SpanNanos("unique");
    const double place = SpanNanos("place") + SpanNanos("fill");
    const int64_t begin_ns = NowNanos();
    const int64_t begin = ThreadNanos();
    const auto step = tables_->Prefetch(batch->sparse(), batch);
    const auto took = static_cast<double>(ThreadNanos() - begin);
    const double share = took / static_cast<double>(NowNanos() - begin_ns);  // of the clock
    HOTROW_CHECK(step.ok());
    const double unique_ns = share * (SpanNanos("unique") - unique);
    const double place_ns = share * (SpanNanos("place") + SpanNanos("fill") - place);
    times->Add("unique", unique_ns);
    times->Add("place", place_ns);
    times->Add("take", took - unique_ns - place_ns);
  }

  // Of the row cache so far.
  TierStats Counts() const { return tables_->Stats().tiers.front(); }

 private:
  double SpanNanos(std::string_view name) const {
    for (const TraceRecorder::StageTotal& stage : trace_.StageTotals()) {
      if (stage.name == name) return 1e6 * stage.ms;
    }
    return 0;
  }

  TraceRecorder trace_{/*keep_events=*/false};
  std::unique_ptr<EmbeddingCollection> tables_;
};

// Prints one object.
void PrintStages(const Flags& flags, double zipf, const std::string& dir) {
  constexpr size_t kBlocks = 8;  // of a batch
  WritePack(flags, 0, zipf, dir);
  Env& env = PosixEnv();
  const auto manifest = ReadPackedManifest(env, dir);
  HOTROW_CHECK(manifest.ok());
  const auto places = ReadPackedIndex(env, dir, *manifest, Split::kTrain);
  HOTROW_CHECK(places.ok());
  const auto file = env.Open(absl::StrCat(dir, "/", manifest->splits[0].file), OpenMode::kRead);
  HOTROW_CHECK(file.ok());
  const int64_t samples = manifest->schema.train_samples;
  const int64_t batch_size = static_cast<int64_t>(kBlocks) * manifest->block_samples;
  const auto batch = std::make_shared<CtrBatch>();
  std::vector<PackedBlock> blocks(kBlocks);
  PackedSelection selection;
  PackedRows rows(*manifest);
  HOTROW_CHECK(rows.Reset(samples).ok());
  CachedTables tables(batch_size);
  StageTimes times;
  TierStats before;
  for (int pass = 0; pass < 2; ++pass) {  // the first one brings all rows into the cache
    before = tables.Counts();
    times.Clear();
    for (int64_t at = 0; at < samples;) {
      const int64_t n = std::min(batch_size, samples - at);
      selection.Clear();
      for (int64_t done = 0; done < n; at += manifest->block_samples) {
        const PackedBlockPlace& place =
            (*places)[static_cast<size_t>(at / manifest->block_samples)];
        PackedBlock& block = blocks[selection.blocks.size()];
        const int64_t size = std::min(manifest->block_samples, n - done);
        HOTROW_CHECK(block.Reserve(place.bytes).ok());
        const std::span<std::byte> bytes(block.bytes(), place.bytes);
        times.Run("read", [&] {
          HOTROW_CHECK(ReadFull(**file, static_cast<int64_t>(place.offset), bytes).ok());
        });
        times.Run("checksum", [&] { HOTROW_CHECK(Crc32c(bytes) == place.crc); });
        times.Run("decode", [&] { HOTROW_CHECK(block.Open(*manifest, place.bytes, size).ok()); });
        times.Run("to_rows", [&] { rows.Add(block, at); });
        selection.runs.push_back(
            {static_cast<uint32_t>(selection.blocks.size()), 0, static_cast<uint32_t>(size)});
        selection.blocks.push_back(&block);
        done += size;
      }
      times.Run("copy", [&] { MakeBatchOfColumns(*manifest, selection, nullptr, n, batch.get()); });
      tables.Prefetch(batch, &times);
    }
  }
  const TierStats after = tables.Counts();
  const Permutation order(static_cast<uint64_t>(samples), 1, 0, 0);
  for (int64_t at = 0; at < samples; at += batch_size) {
    const int64_t n = std::min(batch_size, samples - at);
    times.Run("gather", [&] {
      MakeRoomForRows(*manifest, n, nullptr, batch.get());
      rows.Gather(order, at, n, nullptr, 0, batch.get());
    });
  }
  std::printf("{\"zipf\": %g, \"hit_rate\": %.4f", zipf,
              static_cast<double>(after.unique_hits - before.unique_hits) /
                  static_cast<double>(after.unique_keys - before.unique_keys));
  const auto print = [&](const std::string& name, double ns) {
    std::printf(", \"%s_ns\": %.1f", name.c_str(), ns / static_cast<double>(samples));
  };
  for (const auto& [name, ns] : times.all()) print(name, ns);
  const double common = times.Sum({"read", "checksum", "decode", "take", "unique", "place"});
  print("sum_in_order", common + times.Sum({"copy"}));
  print("sum_shuffled", common + times.Sum({"to_rows", "gather"}));
  std::printf("}");
}

// --- Beside a stream

// Milliseconds that threads ran so far, by their names.
std::map<std::string, double> ThreadMilliseconds() {
  std::map<std::string, double> out;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    int64_t ns = 0;
    std::ifstream(task.path() / "schedstat") >> ns;
    out[name] += 1e-6 * static_cast<double>(ns);
  }
  return out;
}

// A step on its way.
struct Ahead {
  std::shared_ptr<BatchReader::Item> item;
  std::unique_ptr<internal::TakenBatch> taken;
  EmbeddingStep fresh;  // of its new ids
};

// The new ids of a batch, for the collection.
struct NewIds {
  std::vector<uint64_t> values;
  std::vector<int64_t> offsets;
};

class Feed {
 public:
  Feed(const Flags& flags, DataSource* data, int64_t fresh, int32_t depth)
      : flags_(flags),
        fresh_(fresh),
        depth_(depth),
        plan_(internal::MakePlan(TablesOf(flags.samples, depth), {})),
        reader_(data, {.batch_size = flags.samples, .read_ahead = 2}),
        rows_(static_cast<size_t>(kFeatures * fresh)) {
    auto stream = DeviceStream::Create(Device::kCpu);
    HOTROW_CHECK(stream.ok());
    stream_ = *std::move(stream);
    if (fresh == 0) return;
    auto tables = EmbeddingCollection::Create(TablesOf(fresh, depth), ExecContext());
    HOTROW_CHECK(tables.ok());
    tables_ = *std::move(tables);
  }

  // Prints one member of the object.
  void Run() {
    std::map<std::string, double> before;
    int64_t begin_ns = 0;
    DeviceEvent last;  // the end of the step before
    for (int64_t step = 0; step < kWarmup + flags_.steps; ++step) {
      while (!ended_ && std::ssize(ahead_) <= depth_) Take();
      HOTROW_CHECK(!ahead_.empty());
      Ahead now = std::move(ahead_.front());
      ahead_.pop_front();
      if (fresh_ > 0) HOTROW_CHECK(now.fresh.LookupRows(rows_.data()).ok());
      HOTROW_CHECK(last.Wait().ok());  // one step is enqueued while one runs
      HOTROW_CHECK(last.Record(stream_).ok());
      HOTROW_CHECK(stream_
                       .Run(ExecContext(),
                            [this, item = now.item](const ExecContext&) {
                              busy_until_ =
                                  std::max(busy_until_, std::chrono::steady_clock::now()) +
                                  std::chrono::microseconds(flags_.step_us);
                              std::this_thread::sleep_until(busy_until_);
                              return absl::OkStatus();
                            })
                       .ok());
      spare_.push_back(std::move(now.taken));
      spare_.back()->Clear();
      if (step + 1 == kWarmup) {
        HOTROW_CHECK(stream_.Wait().ok());
        before = ThreadMilliseconds();
        begin_ns = NowNanos();
      }
    }
    HOTROW_CHECK(stream_.Wait().ok());
    const double wall_ms = 1e-6 * static_cast<double>(NowNanos() - begin_ns);
    const auto steps = static_cast<double>(flags_.steps);
    std::printf("{\"depth\": %d, \"new_ids\": %lld, \"wall_ms\": %.3f, \"ratio\": %.3f", depth_,
                static_cast<long long>(fresh_ * kFeatures), wall_ms / steps,
                1e3 * wall_ms / steps / static_cast<double>(std::max<int64_t>(flags_.step_us, 1)));
    for (const auto& [name, ms] : ThreadMilliseconds()) {
      std::printf(", \"%s_ms\": %.3f", name.c_str(), (ms - before[name]) / steps);
    }
    std::printf("}");
  }

 private:
  // What Prefetch does on its caller's thread.
  void Take() {
    auto item = reader_.Next();
    HOTROW_CHECK(item.ok());
    if (*item == nullptr || (*item)->ends_epoch()) {
      ended_ = true;
      return;
    }
    Ahead next;
    next.item = *std::move(item);
    if (spare_.empty()) spare_.push_back(std::make_unique<internal::TakenBatch>());
    next.taken = std::move(spare_.back());
    spare_.pop_back();
    const JaggedBatch batch = next.item->batch.sparse();
    HOTROW_CHECK(internal::TakeBatch(plan_, flags_.samples, nullptr, batch,
                                     internal::TakeArrays::kInPlace, next.taken.get())
                     .ok());
    HOTROW_CHECK(next.taken->in_place());
    next.taken->owner = next.item;
    if (fresh_ > 0) {
      const auto ids = std::make_shared<NewIds>();
      for (int64_t f = 0; f < kFeatures; ++f) {
        const auto first = next.taken->values.begin() + f * flags_.samples;
        ids->values.insert(ids->values.end(), first, first + fresh_);
      }
      ids->offsets.resize(ids->values.size() + 1);
      std::iota(ids->offsets.begin(), ids->offsets.end(), int64_t{0});
      auto step = tables_->Prefetch(JaggedBatch{.batch_size = fresh_,
                                                .values = std::span<const uint64_t>(ids->values),
                                                .offsets = std::span<const int64_t>(ids->offsets)},
                                    ids);
      HOTROW_CHECK(step.ok());
      next.fresh = *std::move(step);
    }
    ahead_.push_back(std::move(next));
  }

  const Flags& flags_;
  const int64_t fresh_;  // samples of a step whose ids are new
  const int32_t depth_;
  const internal::Plan plan_;
  // It sleeps as long as the device would work, one step after the other.
  const test::LaggingStreams lagging_{std::chrono::microseconds(0)};
  DeviceStream stream_;
  std::chrono::steady_clock::time_point busy_until_;  // of the stream
  std::unique_ptr<EmbeddingCollection> tables_;
  BatchReader reader_;
  std::vector<const float*> rows_;
  std::deque<Ahead> ahead_;
  std::vector<std::unique_ptr<internal::TakenBatch>> spare_;
  bool ended_ = false;
};

int Main(int argc, char** argv) {
  Flags flags;
  if (!ParseFlags(argc, argv, &flags)) {
    std::fputs(
        "usage: feed_bench [--samples=65536] [--steps=40] [--step_us=4000] [--new_percent=2]\n",
        stderr);
    return 1;
  }
  const char* const tmp = std::getenv("TMPDIR");
  std::string dir = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/feed_bench.XXXXXX");
  HOTROW_CHECK(mkdtemp(dir.data()) != nullptr);
  std::printf("[");
  for (const double zipf : {0.0, 1.05}) {
    const std::string pack = absl::StrCat(dir, "/stages");
    PrintStages(flags, zipf, pack);
    std::printf(",\n ");
    std::fflush(stdout);
    std::filesystem::remove_all(pack);
  }
  for (const int64_t percent : {int64_t{0}, flags.new_percent}) {
    const int64_t fresh = flags.samples * percent / 100;
    const std::string pack = absl::StrCat(dir, "/", percent);
    WritePack(flags, fresh, /*zipf=*/0, pack);
    for (const int32_t depth : {1, 2}) {
      auto data = OpenPackedSource({pack}, {.in_order = true});
      HOTROW_CHECK(data.ok());
      if (percent > 0 || depth > 1) std::printf(",\n ");
      Feed(flags, data->get(), fresh, depth).Run();
      std::fflush(stdout);
    }
    std::filesystem::remove_all(pack);
    if (flags.new_percent == 0) break;
  }
  std::printf("]\n");
  std::filesystem::remove_all(dir);
  return 0;
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  return hotrow::RunMain("feed_bench", [&] { return hotrow::Main(argc, argv); });
}
