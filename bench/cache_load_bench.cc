// Measures RowCache: how full it gets before the first forced eviction, the time of a probe, and
// the hit rates of its policies on Zipf keys. Prints one JSON object.
//
//   cache_load_bench [--ways=4194304] [--threads=1] [--row_bytes=16] [--seed=1] [--policy=lru]
//                    [--zipf_batches=2100]
//
// What bounds a probe: the two dependent DRAM accesses (tags, then key) of about 90 ns each,
// overlapped over the keys in flight; the loop itself is about 40 instructions.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/exec_context.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "cache/cache_policies.h"
#include "cache/cache_policy.h"
#include "cache/row_cache.h"

namespace hotrow {
namespace {

struct Flags {
  int64_t ways = 4'194'304;  // 131,072 buckets
  int64_t threads = 1;
  int64_t row_bytes = 16;
  int64_t seed = 1;
  int64_t zipf_batches = 2100;             // the first 6 of 7 warm the caches up
  CachePolicy policy = CachePolicy::kLru;  // of the cache whose calls are timed
};

constexpr int64_t kBatchKeys = 16'384;

// One caller's buffers for FindOrInsert.
struct Batch {
  explicit Batch(int64_t row_bytes) : evicted_rows(static_cast<size_t>(kBatchKeys * row_bytes)) {}

  // Finds or inserts, fills nothing but marks it filled, and takes the pins off again. Returns the
  // hits.
  int64_t Step(RowCache& cache, const ExecContext& ctx, std::span<const RowKey> keys) {
    const size_t n = keys.size();
    const RowCache::InsertResult result = {.slots = std::span(slots).first(n),
                                           .placement = std::span(placement).first(n),
                                           .evicted = std::span(evicted).first(n),
                                           .evicted_keys = std::span(evicted_keys).first(n),
                                           .evicted_rows = evicted_rows.data()};
    HOTROW_CHECK(cache.FindOrInsert(ctx, keys, result).ok());
    filled.clear();
    for (size_t i = 0; i < n; ++i) {
      HOTROW_CHECK(placement[i] != Placement::kNoRoom);
      if (placement[i] == Placement::kFilled) filled.push_back(slots[i]);
    }
    HOTROW_CHECK(cache.MarkFilled(ctx, filled).ok());
    return static_cast<int64_t>(n) - std::ssize(filled);
  }
  void Release(RowCache& cache, const ExecContext& ctx, int64_t n) {
    const auto pinned = std::span(slots).first(static_cast<size_t>(n));
    HOTROW_CHECK(cache.Unpin(ctx, pinned, /*dirty=*/true).ok());
  }

  std::vector<int64_t> slots = std::vector<int64_t>(kBatchKeys);
  std::vector<Placement> placement = std::vector<Placement>(kBatchKeys);
  std::vector<uint8_t> evicted = std::vector<uint8_t>(kBatchKeys);
  std::vector<RowKey> evicted_keys = std::vector<RowKey>(kBatchKeys);
  std::vector<std::byte> evicted_rows;
  std::vector<int64_t> filled;
};

std::unique_ptr<RowCache> CacheOfBudget(int64_t budget_bytes, int64_t row_bytes,
                                        CachePolicy policy) {
  auto cache =
      RowCache::Create({.row_bytes = row_bytes, .budget_bytes = budget_bytes, .policy = policy});
  if (!cache.ok()) {
    std::fprintf(stderr, "%s\n", cache.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(cache);
}

// Distinct keys: Mix64 is a bijection.
RowKey DistinctKey(int64_t seed, int64_t i) {
  return {Mix64((static_cast<uint64_t>(seed) << 40) + static_cast<uint64_t>(i)), 0};
}

// Inserts distinct keys and takes their pins off at once, so that nothing but full buckets causes
// an eviction. Returns the load at the first one; the cache is filled to that load.
double LoadAtFirstEviction(RowCache& cache, const ExecContext& ctx, const Flags& flags) {
  Batch batch(flags.row_bytes);
  std::vector<RowKey> keys(kBatchKeys);
  const int64_t ways = cache.Size().ways;
  // The last stretch goes in small steps, so that the load is exact to 64 keys.
  for (int64_t inserted = 0;;) {
    const int64_t n = inserted < ways * 85 / 100 ? std::min(kBatchKeys, ways / 100 + 1) : 64;
    for (int64_t i = 0; i < n; ++i)
      keys[static_cast<size_t>(i)] = DistinctKey(flags.seed, inserted + i);
    batch.Step(cache, ctx, std::span(keys).first(static_cast<size_t>(n)));
    batch.Release(cache, ctx, n);
    inserted += n;
    if (cache.Stats(ctx)->evictions > 0)
      return static_cast<double>(inserted - n) / static_cast<double>(ways);
  }
}

// Time per key of the median batch: other work on the machine disturbs single batches.
double MedianNsPerKey(std::vector<int64_t>& batch_ns) {
  const auto middle = batch_ns.begin() + std::ssize(batch_ns) / 2;
  std::nth_element(batch_ns.begin(), middle, batch_ns.end());
  return static_cast<double>(*middle) / kBatchKeys;
}

struct Timings {
  double find_hit_ns = 0;
  double find_miss_ns = 0;
  double insert_hit60_ns = 0;
  double insert_hit100_ns = 0;
  // FindOrInsert and the ageing in EndStep: mean processor time of a key.
  double step_hit60_cpu_ns = 0;
  double step_hit100_cpu_ns = 0;
};

int64_t ProcessorNanos() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Times probes in a cache of which keys [0, resident) were inserted last.
Timings TimeProbes(RowCache& cache, const ExecContext& ctx, const Flags& flags, int64_t resident) {
  constexpr int64_t kBatches = 100;
  RandomStream random(static_cast<uint64_t>(flags.seed), RandomPurpose::kTest);
  Batch batch(flags.row_bytes);
  std::vector<RowKey> keys(kBatchKeys);
  std::vector<std::byte*> rows(kBatchKeys);
  Timings timings;

  for (const bool hit : {true, false}) {
    std::vector<int64_t> batch_ns;
    for (int64_t b = 0; b < kBatches; ++b) {
      for (RowKey& key : keys) {
        const auto i = static_cast<int64_t>(random.Below(static_cast<uint64_t>(resident)));
        key = DistinctKey(hit ? flags.seed : flags.seed + 1, i);
      }
      const int64_t begin = NowNanos();
      HOTROW_CHECK(cache.Find(ctx, keys, rows).ok());
      batch_ns.push_back(NowNanos() - begin);
    }
    (hit ? timings.find_hit_ns : timings.find_miss_ns) = MedianNsPerKey(batch_ns);
  }

  // Hits walk through the resident keys with a stride that visits each once; misses are keys never
  // seen.
  int64_t next_hit = 0;
  int64_t next_new = 0;
  constexpr int64_t kStride = 1'000'003;  // a prime
  for (const double hit_rate : {1.0, 0.6}) {
    std::vector<int64_t> batch_ns;
    int64_t cpu_ns = 0;
    for (int64_t b = 0; b < kBatches; ++b) {
      for (int64_t i = 0; i < kBatchKeys; ++i) {
        const bool hit = static_cast<double>(i % 10) < hit_rate * 10;
        keys[static_cast<size_t>(i)] =
            hit ? DistinctKey(flags.seed, next_hit++ * kStride % resident)
                : DistinctKey(flags.seed + 2, next_new++);
      }
      const int64_t begin = NowNanos();
      const RowCache::InsertResult result = {.slots = batch.slots,
                                             .placement = batch.placement,
                                             .evicted = batch.evicted,
                                             .evicted_keys = batch.evicted_keys,
                                             .evicted_rows = batch.evicted_rows.data()};
      cpu_ns -= ProcessorNanos();
      HOTROW_CHECK(cache.FindOrInsert(ctx, keys, result).ok());
      cpu_ns += ProcessorNanos();
      batch_ns.push_back(NowNanos() - begin);
      batch.filled.clear();
      for (size_t i = 0; i < keys.size(); ++i) {
        if (batch.placement[i] == Placement::kFilled) batch.filled.push_back(batch.slots[i]);
      }
      HOTROW_CHECK(cache.MarkFilled(ctx, batch.filled).ok());
      batch.Release(cache, ctx, kBatchKeys);
      cpu_ns -= ProcessorNanos();
      HOTROW_CHECK(cache.EndStep(ctx).ok());
      cpu_ns += ProcessorNanos();
    }
    (hit_rate == 1.0 ? timings.step_hit100_cpu_ns : timings.step_hit60_cpu_ns) =
        static_cast<double>(cpu_ns) / static_cast<double>(kBatches * kBatchKeys);
    (hit_rate == 1.0 ? timings.insert_hit100_ns : timings.insert_hit60_ns) =
        MedianNsPerKey(batch_ns);
  }
  return timings;
}

struct ZipfResult {
  double unique_hit_rate = 0;
  double hottest_unique_hit_rate = 0;  // had the cache kept the hottest keys
};

// Batches of kBatchKeys distinct Zipf keys, as a training step makes them distinct. What cannot be
// beaten is keeping the hottest keys, known from the start.
ZipfResult ZipfHitRate(CachePolicy policy, const ExecContext& ctx, const Flags& flags) {
  constexpr int64_t kKeys = 4'000'000;
  constexpr int64_t kCapacityRows = 450'000;
  constexpr double kAlpha = 1.05;
  const int64_t warm_batches = flags.zipf_batches * 6 / 7;
  std::vector<double> cumulative(kKeys);
  double sum = 0;
  for (int64_t k = 0; k < kKeys; ++k) {
    sum += std::pow(static_cast<double>(k + 1), -kAlpha);
    cumulative[static_cast<size_t>(k)] = sum;
  }
  const int64_t budget = RowCache::BudgetForRows(kCapacityRows * 8 / 9, flags.row_bytes);
  const auto cache = CacheOfBudget(budget, flags.row_bytes, policy);
  Batch batch(flags.row_bytes);
  RandomStream random(static_cast<uint64_t>(flags.seed), RandomPurpose::kTest, 7);
  std::vector<RowKey> keys;
  std::unordered_set<uint64_t> seen;
  int64_t probes = 0;
  int64_t hits = 0;
  int64_t hottest_hits = 0;
  for (int64_t b = 0; b < flags.zipf_batches; ++b) {
    keys.clear();
    seen.clear();
    while (std::ssize(keys) < kBatchKeys) {
      const auto at =
          std::lower_bound(cumulative.begin(), cumulative.end(), random.Uniform() * sum);
      const auto rank = std::min<int64_t>(at - cumulative.begin(), kKeys - 1);
      if (seen.insert(static_cast<uint64_t>(rank)).second)
        keys.push_back({static_cast<uint64_t>(rank), 0});
    }
    const int64_t step_hits = batch.Step(*cache, ctx, keys);
    batch.Release(*cache, ctx, std::ssize(keys));
    HOTROW_CHECK(cache->EndStep(ctx).ok());
    if (b < warm_batches) continue;
    probes += std::ssize(keys);
    hits += step_hits;
    hottest_hits += std::count_if(keys.begin(), keys.end(), [](const RowKey& k) {
      return k.key < static_cast<uint64_t>(kCapacityRows);
    });
  }
  return {static_cast<double>(hits) / static_cast<double>(probes),
          static_cast<double>(hottest_hits) / static_cast<double>(probes)};
}

bool ParseFlag(std::string_view arg, std::string_view name, int64_t* value) {
  if (!arg.starts_with(name)) return false;
  *value = std::atoll(std::string(arg.substr(name.size())).c_str());
  return *value > 0;
}

bool ParsePolicy(std::string_view arg, CachePolicy* policy) {
  constexpr std::string_view kFlag = "--policy=";
  if (!arg.starts_with(kFlag)) return false;
  const absl::StatusOr<CachePolicy> parsed = ParseCachePolicy(arg.substr(kFlag.size()));
  if (parsed.ok()) *policy = *parsed;
  return parsed.ok();
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (!ParseFlag(arg, "--ways=", &flags.ways) && !ParseFlag(arg, "--threads=", &flags.threads) &&
        !ParseFlag(arg, "--row_bytes=", &flags.row_bytes) &&
        !ParseFlag(arg, "--seed=", &flags.seed) &&
        !ParseFlag(arg, "--zipf_batches=", &flags.zipf_batches) &&
        !ParsePolicy(arg, &flags.policy)) {
      std::fprintf(
          stderr,
          "%s: unknown flag or value; the flags are --ways= --threads= --row_bytes= --seed= "
          "--zipf_batches= --policy=\n",
          argv[i]);
      return 2;
    }
  }
  ThreadPool pool(static_cast<int>(flags.threads));
  const ExecContext ctx{.pool = &pool};
  const auto cache = CacheOfBudget(RowCache::BudgetForRows(flags.ways * 8 / 9, flags.row_bytes),
                                   flags.row_bytes, flags.policy);
  const double load = LoadAtFirstEviction(*cache, ctx, flags);
  const RowCacheStats stats = cache->Size();
  const int64_t all_ways = stats.ways + stats.overflow_ways;
  const double metadata_bytes = static_cast<double>(stats.used_bytes - all_ways * flags.row_bytes) /
                                static_cast<double>(stats.ways);
  const auto resident = static_cast<int64_t>(load * static_cast<double>(stats.ways));
  const Timings timings = TimeProbes(*cache, ctx, flags, resident);
  std::string hit_rates;
  double hottest = 0;
  for (const CachePolicyFacts& facts : CachePolicies()) {
    const ZipfResult zipf = ZipfHitRate(facts.policy, ctx, flags);
    absl::StrAppendFormat(&hit_rates, "\"%s\": %.4f, ", std::string(facts.name),
                          zipf.unique_hit_rate);
    hottest = zipf.hottest_unique_hit_rate;
  }
  std::printf(
      "{\"ways\": %lld, \"overflow_ways\": %lld, \"row_bytes\": %lld, \"threads\": %lld,\n"
      " \"load_at_first_eviction\": %.4f, \"metadata_bytes_per_way\": %.3f,\n"
      " \"find_hit_ns\": %.1f, \"find_miss_ns\": %.1f,\n"
      " \"find_or_insert_ns\": {\"hit_rate_1.0\": %.1f, \"hit_rate_0.6\": %.1f},\n"
      " \"find_or_insert_and_age_cpu_ns\": {\"hit_rate_1.0\": %.1f, \"hit_rate_0.6\": %.1f},\n"
      " \"zipf_1.05_unique_hit_rate\": {%s\"keeping_the_hottest\": %.4f}}\n",
      static_cast<long long>(stats.ways), static_cast<long long>(stats.overflow_ways),
      static_cast<long long>(flags.row_bytes), static_cast<long long>(flags.threads), load,
      metadata_bytes, timings.find_hit_ns, timings.find_miss_ns, timings.insert_hit100_ns,
      timings.insert_hit60_ns, timings.step_hit100_cpu_ns, timings.step_hit60_cpu_ns,
      hit_rates.c_str(), hottest);
  return 0;
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  return hotrow::RunMain("cache_load_bench", [&] { return hotrow::Main(argc, argv); });
}
