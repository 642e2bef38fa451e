// What travels between ranks in one training step, and how long it takes: rows to those who look
// them up, gradients back, for each exchange type.
//
//   mpirun -n 4 build/bin/shuffle_bench
//   build/bin/shuffle_bench --threads=4            ranks that are threads
//
// Batches are those of the synthetic data, keys with a Zipf law. "lookups" is what would travel
// without finding distinct keys first: for each lookup of a row of another rank a key of 8 bytes,
// and its row and gradient in fp32. The others are counted as they are sent, all ranks together.
// Times are of whole steps without a dense half (prefetch, lookup, update), medians of all steps
// but the first fifth; the types take turns, step by step.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/flag_set.h"
#include "base/run_main.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "comm/create_communicator.h"
#include "comm/thread_communicator.h"
#include "embedding/embedding_collection.h"
#include "embedding/ranks/shard_map.h"
#include "models/data/open_data_source.h"
#include "models/data/slice_batch.h"
#include "models/train/batch_reader.h"
#include "models/train/trainer.h"
#include "nlohmann/json.hpp"

namespace hotrow::bench {
namespace {

struct Flags {
  int64_t threads = 0;
  int64_t tables = 8;
  int64_t rows = 100'000;
  int64_t hotness = 4;
  int64_t dim = 64;
  int64_t batch_size = 8192;
  double zipf = 1.05;
  int64_t steps = 40;
  std::string report;
};

struct Case {
  std::string name;
  ExchangeType type = ExchangeType::kFp32;
  ExchangeRounding rounding = ExchangeRounding::kNearest;
  std::unique_ptr<EmbeddingCollection> tables;
  std::vector<double> ms;
  EmbeddingStats stats;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Bytes of a step without unique, for all ranks together.
int64_t BytesOfLookups(const CtrBatch& whole, const EmbeddingCollectionOptions& options,
                       int ranks) {
  // Each feature has its own table, in order.
  const auto features = static_cast<int64_t>(options.tables.size());
  int64_t bytes = 0;
  for (int64_t f = 0; f < features; ++f) {
    const int64_t row_bytes = 8 + 2 * 4 * int64_t{options.tables[f].embedding_dim};
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t first = f * whole.batch_size + SliceBegin(whole.batch_size, rank, ranks);
      const int64_t last = f * whole.batch_size + SliceBegin(whole.batch_size, rank + 1, ranks);
      for (int64_t i = whole.offsets[first]; i < whole.offsets[last]; ++i) {
        const RowKey key = {whole.values[i], static_cast<uint32_t>(f)};
        if (OwnerRank(key, ranks) != rank) bytes += row_bytes;
      }
    }
  }
  return bytes;
}

absl::Status RunRank(const Flags& flags, Communicator& communicator) {
  const int ranks = communicator.world_size();
  const bool first = communicator.rank() == 0;
  ThreadPool pool(1);
  const std::string spec = absl::StrCat(
      "synthetic:tables=", flags.tables, ",rows=", flags.rows, ",hotness=", flags.hotness,
      ",zipf=", flags.zipf, ",samples=", flags.batch_size * flags.steps, ",valid=1,test=1");
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> data, OpenDataSource(spec, 1));
  TrainerOptions trainer;
  trainer.embedding_dim = static_cast<int32_t>(flags.dim);
  trainer.batch_size = flags.batch_size;
  trainer.store_bytes = int64_t{4} << 30;

  const auto make_case = [](const char* name, ExchangeType type, ExchangeRounding rounding) {
    Case made;
    made.name = name;
    made.type = type;
    made.rounding = rounding;
    return made;
  };
  std::vector<Case> cases;
  cases.push_back(make_case("fp32", ExchangeType::kFp32, ExchangeRounding::kNearest));
  cases.push_back(make_case("fp16", ExchangeType::kFp16, ExchangeRounding::kNearest));
  cases.push_back(make_case("bf16", ExchangeType::kBf16, ExchangeRounding::kNearest));
  cases.push_back(make_case("int8", ExchangeType::kInt8, ExchangeRounding::kNearest));
  cases.push_back(make_case("int8 stochastic", ExchangeType::kInt8, ExchangeRounding::kStochastic));
  EmbeddingCollectionOptions options = CollectionOptions(trainer, data->schema());
  options.ranks.communicator = &communicator;
  for (Case& one : cases) {
    options.ranks.forward = options.ranks.backward = one.type;
    options.ranks.rounding = one.rounding;
    HOTROW_ASSIGN_OR_RETURN(one.tables, EmbeddingCollection::Create(options, {.pool = &pool}));
  }

  BatchReader reader(data.get(), {.split = Split::kTrain,
                                  .batch_size = flags.batch_size,
                                  .rank = communicator.rank(),
                                  .world_size = ranks});
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataReader> whole_reader,
                          data->OpenSplit(Split::kTrain, 0, 0));
  CtrBatch whole;
  int64_t lookup_bytes = 0;
  int64_t steps = 0;
  std::vector<float> values;
  for (;;) {
    HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<BatchReader::Item> item, reader.Next());
    if (item == nullptr) break;
    if (item->ends_epoch()) continue;
    if (first) {
      HOTROW_RETURN_IF_ERROR(whole_reader->Next(flags.batch_size, &whole));
      lookup_bytes += BytesOfLookups(whole, options, ranks);
    }
    ++steps;
    for (Case& one : cases) {
      values.resize(static_cast<size_t>(item->batch.batch_size * one.tables->pooled_dim()));
      const MatrixView<float> pooled(values.data(), item->batch.batch_size,
                                     one.tables->pooled_dim());
      HOTROW_RETURN_IF_ERROR(communicator.Barrier());
      const int64_t begin = NowNanos();
      HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, one.tables->Prefetch(item->batch.sparse()));
      HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = pooled}));
      for (float& x : values) x *= 1e-3f;
      HOTROW_RETURN_IF_ERROR(std::move(step).Update({.pooled = pooled}));
      one.ms.push_back(1e-6 * static_cast<double>(NowNanos() - begin));
    }
  }
  for (Case& one : cases) {
    HOTROW_ASSIGN_OR_RETURN(one.stats, one.tables->GlobalStats());
    one.ms.erase(one.ms.begin(), one.ms.begin() + static_cast<int64_t>(one.ms.size()) / 5);
  }
  if (!first) return absl::OkStatus();

  std::printf(
      "%d ranks, batch %d of all ranks together, %d tables x %d rows, %d lookups a bag, dim %d, "
      "Zipf %g\n\n",
      ranks, static_cast<int>(flags.batch_size), static_cast<int>(flags.tables),
      static_cast<int>(flags.rows), static_cast<int>(flags.hotness), static_cast<int>(flags.dim),
      flags.zipf);
  std::printf("%-16s %12s %12s %12s %12s %9s\n", "", "ids KB", "rows KB", "gradients KB",
              "of lookups", "ms/step");
  const auto per_step = [steps](int64_t bytes) {
    return 1e-3 * static_cast<double>(bytes) / static_cast<double>(steps);
  };
  std::printf("%-16s %38.1f %12s\n", "lookups", per_step(lookup_bytes), "1");
  nlohmann::json report = {{"ranks", ranks},
                           {"lookup_bytes_per_step", 1e3 * per_step(lookup_bytes)},
                           {"cases", nlohmann::json::array()}};
  for (const Case& one : cases) {
    const EmbeddingStats& s = one.stats;
    const int64_t all = s.exchange_ids_bytes + s.exchange_forward_bytes + s.exchange_backward_bytes;
    std::printf("%-16s %12.1f %12.1f %12.1f %12.3f %9.2f\n", one.name.c_str(),
                per_step(s.exchange_ids_bytes), per_step(s.exchange_forward_bytes),
                per_step(s.exchange_backward_bytes),
                static_cast<double>(all) / static_cast<double>(lookup_bytes), Median(one.ms));
    report["cases"].push_back(
        {{"name", one.name},
         {"ids_bytes_per_step", 1e3 * per_step(s.exchange_ids_bytes)},
         {"forward_bytes_per_step", 1e3 * per_step(s.exchange_forward_bytes)},
         {"backward_bytes_per_step", 1e3 * per_step(s.exchange_backward_bytes)},
         {"ms_per_step", Median(one.ms)}});
  }
  if (flags.report.empty()) return absl::OkStatus();
  std::ofstream file(flags.report);
  file << report.dump(2) << "\n";
  file.close();
  return file ? absl::OkStatus()
              : absl::FailedPreconditionError(
                    absl::StrCat("--report=", flags.report, ": cannot be written"));
}

absl::Status Run(int argc, char** argv) {
  Flags flags;
  FlagSet set("shuffle_bench");
  set.Group("What");
  set.AddInt("threads", 0, 64, &flags.threads, "ranks that are threads; 0: as mpirun says");
  set.AddInt("tables", 1, 1000, &flags.tables, "one feature each");
  set.AddInt("rows", 1, int64_t{1} << 40, &flags.rows, "of each table");
  set.AddInt("hotness", 1, 1000, &flags.hotness, "lookups in a bag");
  set.AddInt("dim", 1, 4096, &flags.dim, "columns");
  set.AddInt("batch_size", 1, 1 << 24, &flags.batch_size, "samples of all ranks together");
  set.AddReal("zipf", 0, 32, &flags.zipf, "exponent of the popularity of keys");
  set.AddInt("steps", 5, 1'000'000, &flags.steps, "");
  set.AddString("report", "FILE", &flags.report, "a JSON object goes there, from rank 0");
  HOTROW_RETURN_IF_ERROR(set.Parse(argc, argv));
  if (set.help_requested()) {
    std::fputs(set.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (flags.threads > 0) {
    for (const absl::Status& status :
         RunOnThreads(static_cast<int>(flags.threads), {},
                      [&](Communicator& communicator) { return RunRank(flags, communicator); })) {
      HOTROW_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                          CreateCommunicator(CommKind::kAuto, {}));
  HOTROW_RETURN_IF_ERROR(RunRank(flags, *communicator));
  return communicator->Barrier();
}

}  // namespace
}  // namespace hotrow::bench

int main(int argc, char** argv) {
  return hotrow::RunMain("shuffle_bench", [&] {
    const absl::Status status = hotrow::bench::Run(argc, argv);
    if (status.ok()) return 0;
    std::fprintf(stderr, "shuffle_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  });
}
