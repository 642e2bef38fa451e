// Encodes and decodes rows as they travel between ranks, on one thread.
//
// What bounds it: each row is read once where it lies, scattered over more memory than the caches
// hold, and its bytes are written once, or the other way round. `memcpy` is the same bytes in one
// piece: what the machine can do at best; `gather` copies the same scattered rows unchanged.
// bytes/s counts the fp32 side of the rows, N * D * 4, with any type on the wire, so all lines
// compare; `of_memcpy` is its ratio to a memcpy that is timed in the same run, just before.
//
//   row_codec_bench [--benchmark_filter=encode/int8] [other flags of Google Benchmark]
#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "benchmark/benchmark.h"
#include "ops/rows/gather.h"
#include "ops/rows/row_codec.h"

namespace hotrow {
namespace {

constexpr int64_t kTableBytes = int64_t{256} << 20;  // many times a core's share of the last cache
constexpr int64_t kBatchBytes = int64_t{8} << 20;    // of rows

// N rows of D floats in an order that no prefetcher knows.
struct Problem {
  explicit Problem(int32_t dim)
      : num_rows(kBatchBytes / (4 * dim)),
        table(static_cast<size_t>(kTableBytes / 4)),
        wire(static_cast<size_t>(kBatchBytes + 4 * num_rows)),
        run{.begin = 0, .end = num_rows, .dim = dim} {
    RandomStream random(1, RandomPurpose::kTest);
    for (float& x : table) x = static_cast<float>(random.Next32() >> 8) * 0x1p-24f - 0.5f;
    std::vector<int64_t> order(static_cast<size_t>(kTableBytes / (4 * dim)));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = 0; i < num_rows; ++i) {
      const auto others = static_cast<uint64_t>(std::ssize(order) - i);
      std::swap(order[i], order[i + static_cast<int64_t>(random.Below(others))]);
      rows.push_back(table.data() + order[i] * dim);
      keys.push_back(static_cast<uint64_t>(order[i]));
      start.insert(start.end(), rows.back(), rows.back() + dim);
    }
  }
  // Rows that are added to over and over would end up infinite.
  void Restart() {
    for (int64_t i = 0; i < num_rows; ++i) {
      std::copy_n(start.data() + i * run.dim, run.dim, rows[i]);
    }
  }
  int64_t bytes() const { return num_rows * run.dim * 4; }

  int64_t num_rows;
  std::vector<float> table;
  std::vector<std::byte> wire;
  RowRun run;
  std::vector<float*> rows;
  std::vector<uint64_t> keys;
  std::vector<float> start;  // what the rows were, side by side
};

Problem& ProblemOf(int32_t dim) {
  static Problem* problem = nullptr;  // one at a time: they are large
  if (problem == nullptr || problem->run.dim != dim) {
    delete problem;
    problem = new Problem(dim);
  }
  return *problem;
}

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds of one copy of as many bytes, the median of eleven. Processor time, as the counters have
// it: it leaves out what other programs took.
double MemcpySeconds(Problem& p) {
  std::vector<double> seconds;
  for (int i = 0; i < 11; ++i) {
    // From another place each time, so that the source is not in a cache, as the rows are not.
    const float* const from = p.table.data() + i * (kBatchBytes / 4);
    const double begin = ThreadSeconds();
    std::memcpy(p.wire.data(), from, static_cast<size_t>(p.bytes()));
    benchmark::ClobberMemory();
    seconds.push_back(ThreadSeconds() - begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 5, seconds.end());
  return seconds[5];
}

void Encode(Problem& p, ExchangeType type, ExchangeRounding rounding) {
  HOTROW_CHECK(EncodeRows({}, {.type = type,
                               .rounding = rounding,
                               .random = {.seed = 1},
                               .runs = {&p.run, 1},
                               .keys = p.keys.data(),
                               .rows = p.rows.data(),
                               .out = p.wire.data()})
                   .ok());
}

void Decode(Problem& p, ExchangeType type, bool add) {
  HOTROW_CHECK(DecodeRows({}, {.type = type,
                               .runs = {&p.run, 1},
                               .in = p.wire.data(),
                               .rows = p.rows.data(),
                               .add = add})
                   .ok());
}

void Memcpy(Problem& p) {
  static int64_t next = 0;
  next = (next + 1) % (kTableBytes / kBatchBytes);
  std::memcpy(p.wire.data(), p.table.data() + next * (kBatchBytes / 4),
              static_cast<size_t>(p.bytes()));
}

void Gather(Problem& p) {
  HOTROW_CHECK(GatherRows({}, {.rows = reinterpret_cast<const std::byte* const*>(p.rows.data()),
                               .num_rows = p.num_rows,
                               .row_bytes = 4 * p.run.dim,
                               .output = p.wire.data(),
                               .output_stride = 4 * p.run.dim})
                   .ok());
}

using Action = std::function<void(Problem&)>;

void Register(const std::string& name, int32_t dim, const Action& prepare, const Action& run) {
  const auto measure = [=](benchmark::State& state) {
    Problem& p = ProblemOf(dim);
    p.Restart();
    prepare(p);
    const double memcpy_seconds = MemcpySeconds(p);
    for (auto unused : state) {
      run(p);
      benchmark::ClobberMemory();
    }
    using benchmark::Counter;
    state.counters["bytes/s"] = {static_cast<double>(p.bytes()), Counter::kIsIterationInvariantRate,
                                 Counter::kIs1000};
    // Copies by memcpy that fit in a second, for each second of this; printed as "0.9/s".
    state.counters["of_memcpy"] = {memcpy_seconds, Counter::kIsIterationInvariantRate};
  };
  benchmark::RegisterBenchmark((name + "/dim:" + std::to_string(dim)).c_str(), measure)
      ->Unit(benchmark::kMicrosecond);
}

void RegisterAll(int32_t dim) {
  const Action nothing = [](Problem&) {};
  Register("memcpy", dim, nothing, Memcpy);
  Register("gather", dim, nothing, Gather);
  for (const ExchangeType type :
       {ExchangeType::kFp32, ExchangeType::kFp16, ExchangeType::kBf16, ExchangeType::kInt8}) {
    const std::string type_name(ExchangeTypeName(type));
    for (const ExchangeRounding rounding :
         {ExchangeRounding::kNearest, ExchangeRounding::kStochastic}) {
      if (type == ExchangeType::kFp32 && rounding == ExchangeRounding::kStochastic) continue;
      Register("encode/" + type_name + "/" + std::string(ExchangeRoundingName(rounding)), dim,
               nothing, [=](Problem& p) { Encode(p, type, rounding); });
    }
    for (const bool add : {false, true}) {
      Register((add ? "decode_add/" : "decode/") + type_name, dim,
               [=](Problem& p) { Encode(p, type, ExchangeRounding::kNearest); },
               [=](Problem& p) { Decode(p, type, add); });
    }
  }
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const int32_t dim : {64, 128}) RegisterAll(dim);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  return hotrow::RunMain("row_codec_bench", [&] { return hotrow::Main(argc, argv); });
}
