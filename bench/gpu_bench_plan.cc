#include "bench/gpu_bench_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "models/data/permutation.h"
#include "models/data/zipf.h"

namespace hotrow::bench {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

// Whose results a part is compared with.
const std::map<absl::string_view, std::vector<absl::string_view>>& LimitsOfParts() {
  static const std::map<absl::string_view, std::vector<absl::string_view>> limits = {
      {"gather", {"copy"}},
      {"host_gather", {"bus"}},
      {"staging", {"bus", "host_gather"}},
      {"find", {"copy", "gather"}},
      {"insert", {"copy", "gather"}},
      {"unique", {"copy"}},
      {"partition", {"copy"}},
      {"lookup", {"copy"}},
      {"gradient_sum", {"copy"}},
      {"update", {"copy"}},
      {"tiers", {"bus"}},
      {"step", {"copy"}},
  };
  return limits;
}

// The numbers of a list, in ascending order without repetitions.
absl::StatusOr<std::set<double>> NumbersOf(absl::string_view flag, absl::string_view list,
                                           double min, double max) {
  std::set<double> numbers;
  for (const absl::string_view text : absl::StrSplit(list, ',')) {
    double number = 0;
    if (!absl::SimpleAtod(text, &number) || !(number >= min && number <= max)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", list, ": \"", text,
                                                     "\" is no number from ", min, " to ", max));
    }
    numbers.insert(number);
  }
  return numbers;
}

int64_t RoundDown(int64_t n, int64_t multiple) { return n / multiple * multiple; }

}  // namespace

std::vector<std::string> GpuBenchParts() {
  return {"device", "copy",         "gather", "bus",    "host_gather", "staging", "gemm",
          "plans",  "dense",        "find",   "insert", "load",        "unique",  "partition",
          "lookup", "gradient_sum", "update", "tiers",  "step"};
}

absl::StatusOr<std::vector<std::string>> PartsToRun(const GpuBenchFlags& flags) {
  const std::vector<std::string> all = GpuBenchParts();
  if (flags.only.empty()) return all;
  std::set<absl::string_view> wanted = {"device"};
  for (const absl::string_view name : absl::StrSplit(flags.only, ',')) {
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--only=", flags.only, ": ", name,
                                                     " is none of ", absl::StrJoin(all, ", ")));
    }
    wanted.insert(name);
    const auto limits = LimitsOfParts().find(name);
    if (limits != LimitsOfParts().end()) {
      wanted.insert(limits->second.begin(), limits->second.end());
    }
  }
  std::vector<std::string> parts;
  for (const std::string& name : all) {
    if (wanted.contains(name)) parts.push_back(name);
  }
  return parts;
}

absl::StatusOr<GpuBenchPoints> PointsToMeasure(const GpuBenchFlags& flags) {
  GpuBenchPoints points;
  HOTROW_ASSIGN_OR_RETURN(const auto dims, NumbersOf("dims", flags.dims, 4, kWidestDim));
  for (const double dim : dims) {
    points.dims.push_back(static_cast<int>(dim));
    if (points.dims.back() != dim || !std::has_single_bit(static_cast<unsigned>(dim))) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dims=", flags.dims, ": ", dim, " is no power of two"));
    }
  }
  for (const auto& [flag, list, min, into] :
       {std::tuple{"loads", &flags.loads, 0.01, &points.loads},
        std::tuple{"hits", &flags.hits, 0.0, &points.hits},
        std::tuple{"shares", &flags.shares, 0.01, &points.shares}}) {
    HOTROW_ASSIGN_OR_RETURN(const auto numbers, NumbersOf(flag, *list, min, 1));
    into->assign(numbers.begin(), numbers.end());
  }
  return points;
}

absl::StatusOr<GpuBenchSizes> SizesFor(const GpuBenchFlags& flags, int64_t device_bytes,
                                       int64_t host_available_bytes) {
  if (device_bytes < kLeastDeviceBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.device_bytes != 0 ? "--device_bytes=" : "free device memory: ", device_bytes,
        ": takes ", kLeastDeviceBytes, " bytes at least"));
  }
  GpuBenchSizes sizes;
  // A half for the table or cache, a quarter for outputs and keys, the rest for what comes beside.
  sizes.table_bytes =
      RoundDown(std::min(flags.quick ? 2 * kGiB : 16 * kGiB, device_bytes / 2), kMiB);
  sizes.copy_bytes = RoundDown(std::min(flags.quick ? kGiB : 4 * kGiB, device_bytes / 4), kMiB);
  sizes.bus_bytes = RoundDown(std::min(flags.quick ? 256 * kMiB : kGiB, device_bytes / 4), kMiB);
  sizes.host_bytes =
      flags.host_bytes != 0
          ? flags.host_bytes
          : std::max(kMiB, std::min(flags.quick ? kGiB : 8 * kGiB, host_available_bytes / 3));
  sizes.host_bytes = RoundDown(sizes.host_bytes, kMiB);
  if (sizes.host_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host_bytes=", flags.host_bytes, ": takes 1 MiB at least"));
  }
  // A batch of the widest rows, twice (found or evicted rows and those of a check), within an
  // eighth.
  const int64_t widest = 4 * kWidestDim;
  sizes.batch = std::min(int64_t{1} << 20, RoundDown(device_bytes / 8 / (2 * widest), 1024));
  // The ops hold rows, gradients and outputs of the batch alone: for a lookup of the widest rows
  // with two states a column some 3 KiB.
  constexpr int64_t kBytesOfLookup = 4096;
  sizes.samples = std::min(kLookupSamples, device_bytes / (kLookupTables * kBytesOfLookup));
  sizes.rows_per_table = flags.quick ? 1'000'000 : 10'000'000;
  sizes.repeats = flags.repeats != 0 ? flags.repeats : (flags.quick ? 11 : 51);
  sizes.warmup = flags.quick ? 2 : 5;
  sizes.cache_bytes = sizes.table_bytes;
  sizes.gemm_rows = {1, 127, 65'536};
  // The largest network keeps some 100 KB of a sample.
  for (const int64_t batch : {2'048, 16'384, 65'536}) {
    if (batch * 128 * 1024 <= device_bytes / 2) sizes.dense_batches.push_back(batch);
  }
  sizes.matrix_side = device_bytes >= 2 * kGiB ? 8192 : 2048;
  if (flags.toy) {
    sizes.table_bytes = kMiB / 2;
    sizes.copy_bytes = sizes.bus_bytes = kMiB / 4;
    if (flags.host_bytes == 0) sizes.host_bytes = kMiB;
    // An emulated GPU takes half a millisecond to insert a key.
    sizes.cache_bytes = kMiB / 8;
    sizes.batch = 64;
    sizes.samples = 100;
    sizes.rows_per_table = 1000;
    if (flags.repeats == 0) sizes.repeats = 2;
    sizes.warmup = 1;
    sizes.gemm_rows = {1};
    sizes.dense_batches = {3};
    sizes.matrix_side = 16;
  }
  return sizes;
}

int64_t GatherRowsOfLaunch(int64_t row_bytes, int64_t table_rows, int64_t l2_bytes,
                           int64_t output_bytes) {
  constexpr int64_t kLeastRows = int64_t{1} << 20;
  const int64_t wanted = std::max(kLeastRows, 8 * l2_bytes / row_bytes);
  return std::max<int64_t>(1, std::min({wanted, table_rows, output_bytes / row_bytes}));
}

int64_t Share(int64_t n, double fraction) {
  return std::llround(static_cast<double>(n) * fraction);
}

int64_t GatherBytes(int64_t rows, int64_t row_bytes) { return rows * (4 + 2 * row_bytes); }

int64_t UniqueBytes(int64_t lookups, int64_t unique) {
  return lookups * (8 + 4) + unique * (8 + 4);  // values, inverse; keys, counts
}

int64_t PartitionBytes(int64_t lookups, int64_t unique) {
  return lookups * (4 + 4) + (unique + 1) * 8;  // parts, order; offsets
}

int64_t PooledLookupBytes(int64_t lookups, int64_t unique, int64_t dim, int64_t bags) {
  // inverse; offsets; pointers and rows, each once however often it is looked up; output
  return lookups * 4 + (bags + 1) * 8 + unique * (8 + 4 * dim) + bags * 4 * dim;
}

int64_t GradientSegmentSumBytes(int64_t lookups, int64_t unique, int64_t dim) {
  // order and the gradient of each lookup's bag; row offsets, pointers and sums
  return lookups * (4 + 4 * dim) + unique * (8 + 8 + 4 * dim);
}

int64_t SparseUpdateBytes(int64_t unique, int64_t dim, int64_t row_bytes) {
  return unique * (2 * 8 + 4 * dim + 2 * row_bytes);  // pointers, gradient, row read and written
}

int64_t FusedUpdateBytes(int64_t lookups, int64_t unique, int64_t dim, int64_t row_bytes) {
  // order, inverse and the gradient of each lookup's bag; row offsets, pointers, rows both ways
  return lookups * (4 + 4 + 4 * dim) + unique * (8 + 8 + 2 * row_bytes);
}

Times TimesOf(std::vector<double> seconds) {
  HOTROW_CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());
  const size_t n = seconds.size();
  return {(seconds[(n - 1) / 2] + seconds[n / 2]) / 2, seconds.front(), seconds.back()};
}

std::string FigureLine(const Figure& figure) {
  std::string line =
      absl::StrFormat("  %-44s %9.3f G %-8s %10.4f ms", figure.name, figure.rate() * 1e-9,
                      absl::StrCat(figure.unit, "/s"), figure.times.median * 1e3);
  if (!figure.limit_name.empty()) {
    absl::StrAppendFormat(&line, "  %5.1f %% of %s", figure.percent(), figure.limit_name);
  }
  return line;
}

nlohmann::ordered_json FigureJson(const Figure& figure) {
  nlohmann::ordered_json json;
  json["part"] = figure.part;
  json["name"] = figure.name;
  if (figure.more.is_object()) json.update(figure.more);
  json["median_seconds"] = figure.times.median;
  json["min_seconds"] = figure.times.min;
  json["max_seconds"] = figure.times.max;
  json["amount"] = figure.amount;
  json["unit"] = figure.unit;
  json["per_second"] = figure.rate();
  if (!figure.limit_name.empty()) {
    json["limit"] = figure.limit_name;
    json["limit_per_second"] = figure.limit;
    json["percent_of_limit"] = figure.percent();
  }
  return json;
}

std::vector<uint64_t> LookupIds(int64_t tables, int64_t samples, int64_t rows_per_table,
                                double exponent, uint64_t seed) {
  const ZipfSampler sampler(static_cast<uint64_t>(rows_per_table), exponent);
  std::vector<uint64_t> ids;
  ids.reserve(static_cast<size_t>(tables * samples));
  for (int64_t t = 0; t < tables; ++t) {
    const Permutation scatter(static_cast<uint64_t>(rows_per_table), seed, 1,
                              static_cast<uint32_t>(t));
    for (int64_t i = 0; i < samples; ++i) {
      const auto block = [&](uint32_t n) {
        return RandomBlock(seed, RandomPurpose::kTest, static_cast<uint64_t>(i), n,
                           static_cast<uint32_t>(t));
      };
      ids.push_back(scatter(sampler.Rank(block(0), block)));
    }
  }
  return ids;
}

}  // namespace hotrow::bench
