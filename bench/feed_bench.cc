// Feeds a stream that takes as long for a step as a GPU might, from packed data, and prints one
// JSON object: the wall time of a step as a multiple of the stream's, and what each thread took.
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
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/device_stream.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "base/trace.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/taken_batch_impl.h"
#include "models/data/packed_source.h"
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

// Samples whose first `fresh` of each step have ids that nobody has seen.
void WritePack(const Flags& flags, int64_t fresh, const std::string& dir) {
  DataSchema schema;
  schema.num_dense = kDense;
  for (int64_t f = 0; f < kFeatures; ++f) {
    schema.features.push_back({.name = absl::StrCat("f", f), .table = absl::StrCat("t", f)});
  }
  auto writer = PackedWriter::Create(schema, {.dir = dir, .source = "feed_bench"});
  HOTROW_CHECK(writer.ok());
  RandomStream random(1, RandomPurpose::kTest);
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
      batch.values[static_cast<size_t>(i)] =
          sample < fresh ? kKnownRows + static_cast<uint64_t>(step * fresh + sample)
                         : random.Below(kKnownRows);
    }
    HOTROW_CHECK((*writer)->Append(Split::kTrain, batch).ok());
  }
  HOTROW_CHECK((*writer)->Finish({}).ok());
}

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
  for (const int64_t percent : {int64_t{0}, flags.new_percent}) {
    const int64_t fresh = flags.samples * percent / 100;
    const std::string pack = absl::StrCat(dir, "/", percent);
    WritePack(flags, fresh, pack);
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
