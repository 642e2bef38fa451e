#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/flag_set.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "bench/store_bench.h"
#include "cache/cache_policies.h"

namespace hotrow::bench {
namespace {

// Update runs end when this many times all rows have been rewritten.
constexpr int64_t kRewrites = 3;

absl::Status Invalid(absl::string_view text) { return absl::InvalidArgumentError(text); }

absl::Status CheckWord(absl::string_view flag, const std::string& value,
                       const std::vector<std::string>& legal) {
  if (std::find(legal.begin(), legal.end(), value) != legal.end()) return absl::OkStatus();
  return Invalid(
      absl::StrCat("--", flag, "=", value, ": takes one of ", absl::StrJoin(legal, ", ")));
}

}  // namespace

void AddFlags(StoreBenchFlags& flags, FlagSet& set) {
  set.Group("What");
  set.AddString("store", "KIND", &flags.store, "memory, ssd, rocksdb, or raw: the device itself");
  set.AddString(
      "path", "DIR", &flags.path,
      "where the data lies; what is in it is removed first, and afterwards unless --keep");
  set.AddString("more_paths", "DIR,...", &flags.more_paths,
                "ssd: further directories, one a drive; store_bench_data in each is removed");
  set.AddInt("rows", 1, int64_t{1} << 32, &flags.rows, "rows of the table");
  set.AddInt("row_bytes", 16, int64_t{1} << 20, &flags.row_bytes, "a multiple of 16");
  set.Group("Budgets");
  set.AddBytes("ram_bytes", &flags.ram_bytes, "memory of store and cache together");
  set.AddBytes("store_bytes", &flags.store_bytes,
               "the store's part of it; 0: ssd 9 bytes a row and its buffers, rocksdb a quarter, "
               "memory what all rows need; everything when there is no cache");
  set.AddString(
      "row_cache", "BYTES", &flags.row_cache,
      "of the RowCache in front; auto: what the store leaves of --ram_bytes, but none for "
      "memory and for --mix=update; 0: none");
  set.AddBytes("disk_bytes", &flags.disk_bytes,
               "disk budget; 0: no limit, ssd 1.5 times the rows and 64 MiB");
  set.Group("Work");
  set.AddInt("batch", 1, int64_t{1} << 24, &flags.batch, "keys of a batch, all different");
  set.AddInt(
      "batches", 1, int64_t{1} << 31, &flags.batches,
      "batches that are measured; update: at most, it ends when 3 times the rows are written");
  set.AddInt("warmup_batches", 0, int64_t{1} << 31, &flags.warmup_batches, "batches before those");
  set.AddString("pattern", "P", &flags.pattern, "uniform, or zipf:EXPONENT, over scattered keys");
  set.AddString(
      "mix", "M", &flags.mix,
      "read; read_write: each row of a batch is read, then written; update: written only");
  set.AddInt("read_batches", 0, int64_t{1} << 20, &flags.read_batches,
             "update: uniform batches that are read before, and again right after");
  set.AddInt("seed", 0, INT64_MAX, &flags.seed, "of the keys drawn");
  set.Group("How");
  set.AddInt("threads", 1, 256, &flags.threads, "of the cache, and RocksDB's background jobs");
  set.AddInt("rocks_threads", 1, 256, &flags.rocks_threads,
             "reads of RocksDB side by side (it reads block by block)");
  std::vector<std::string_view> policies;
  for (const CachePolicyFacts& facts : CachePolicies()) policies.push_back(facts.name);
  set.Add("cache_policy", WordFlag("P", &flags.cache_policy, ParseCachePolicy, CachePolicyName),
          OneOf(policies));
  set.AddInt(
      "staging_rows", 1, int64_t{1} << 24, &flags.staging_rows,
      "keys that go to the cache at a time: room for as many evicted rows is part of the RAM");
  set.AddString("io", "KIND", &flags.io, "of ssd and raw: auto, uring, threads");
  set.AddSwitch("kill", &flags.kill,
                "also measures opening after a child that wrote was killed (ssd, rocksdb)");
  set.AddSwitch("keep", &flags.keep, "leaves the data in --path");
  set.AddString("report", "FILE", &flags.report, "the JSON object goes there, too");
  set.AddString("kill_child", "", &flags.kill_child, "the part of the child that --kill kills");
}

absl::Status Resolve(StoreBenchFlags& flags) {
  HOTROW_RETURN_IF_ERROR(CheckWord("store", flags.store, {"memory", "ssd", "rocksdb", "raw"}));
  HOTROW_RETURN_IF_ERROR(CheckWord("mix", flags.mix, {"read", "read_write", "update"}));
  HOTROW_RETURN_IF_ERROR(CheckWord("io", flags.io, {"auto", "uring", "threads"}));
  if (flags.row_bytes % 16 != 0) {
    return Invalid(absl::StrCat("--row_bytes=", flags.row_bytes, ": takes a multiple of 16"));
  }
  if (flags.store != "memory" && flags.path.empty()) {
    return Invalid(absl::StrCat("--path: --store=", flags.store, " needs a directory"));
  }
  if (flags.batch > flags.rows && flags.store != "raw") {
    return Invalid(absl::StrCat("--batch=", flags.batch,
                                ": its keys are all different, so it must "
                                "be at most --rows=",
                                flags.rows));
  }
  absl::string_view pattern = flags.pattern;
  if (absl::ConsumePrefix(&pattern, "zipf:")) {
    if (!absl::SimpleAtod(pattern, &flags.zipf_exponent) || !(flags.zipf_exponent > 0) ||
        flags.zipf_exponent > 4) {
      return Invalid(absl::StrCat("--pattern=", flags.pattern, ": the exponent lies in (0, 4]"));
    }
  } else if (flags.pattern != "uniform") {
    return Invalid(absl::StrCat("--pattern=", flags.pattern, ": takes uniform or zipf:EXPONENT"));
  }
  if (flags.mix == "update") {
    flags.batches = std::min(flags.batches, CeilDiv(kRewrites * flags.rows, flags.batch));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::bench
