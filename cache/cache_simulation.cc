#include "cache/cache_simulation.h"

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "cache/bucket.h"
#include "cache/row_cache_impl.h"

namespace hotrow {
namespace {

// The least that RowCache takes; in small caches 32 rows are a page, so that budgets, which count
// whole pages, are exact to a bucket. Memory of rows is never touched here.
constexpr int64_t RowBytesFor(int64_t rows) { return rows > 65'536 ? 16 : 128; }
constexpr int64_t kRowsMax = int64_t{1} << 36;

}  // namespace

absl::Status CacheSimulationOptions::Validate() const {
  if (rows < 1 || rows > kRowsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("CacheSimulationOptions.rows must lie in [1, ", kRowsMax, "], is ", rows));
  }
  if (step_lookups < 1 || step_lookups > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CacheSimulationOptions.step_lookups must lie in [1, ", INT32_MAX, "], is ", step_lookups));
  }
  if (prefetch_depth < 0 || prefetch_depth >= cache::kMaxPins) {
    return absl::InvalidArgumentError(
        absl::StrCat("CacheSimulationOptions.prefetch_depth must lie in [0, ", cache::kMaxPins - 1,
                     "], is ", prefetch_depth));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CacheSimulation>> CacheSimulation::Create(
    const CacheSimulationOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  const int64_t row_bytes = RowBytesFor(options.rows);
  const auto geometry = cache::Geometry::ForBuckets(CeilDiv(options.rows, cache::Bucket::kWays));
  HOTROW_ASSIGN_OR_RETURN(auto cache, RowCache::Create({.row_bytes = row_bytes,
                                                        .budget_bytes = geometry.Bytes(row_bytes),
                                                        .policy = options.policy}));
  return std::unique_ptr<CacheSimulation>(new CacheSimulation(options, std::move(cache)));
}

CacheSimulation::CacheSimulation(const CacheSimulationOptions& options,
                                 std::unique_ptr<RowCache> cache)
    : options_(options),
      cache_(std::move(cache)),
      in_flight_(static_cast<size_t>(options.prefetch_depth) + 1) {}

size_t CacheSimulation::HashOfKey::operator()(const RowKey& key) const {
  return absl::HashOf(key.key, key.table);  // seeded: nobody can choose keys that collide
}

void CacheSimulation::Add(RowKey key) {
  const auto [at, is_new] = step_positions_.try_emplace(key, step_keys_.size());
  if (is_new) {
    step_keys_.push_back(key);
    step_counts_.push_back(0);
  }
  ++step_counts_[at->second];
  if (++step_lookups_ == options_.step_lookups) EndStep();
}

void CacheSimulation::EndStep() {
  if (step_keys_.empty()) return;
  const std::vector<RowKey> keys = std::exchange(step_keys_, {});
  const std::vector<int32_t> lookups = std::exchange(step_counts_, {});
  step_positions_.clear();
  step_lookups_ = 0;
  Step(keys, lookups);
}

void CacheSimulation::Step(std::span<const RowKey> keys, std::span<const int32_t> lookups) {
  EndStep();
  HOTROW_CHECK(lookups.empty() || lookups.size() == keys.size());
  const size_t n = keys.size();
  slots_.resize(n);
  placement_.resize(n);
  evicted_.resize(n);
  evicted_keys_.resize(n);
  evicted_rows_.resize(n * static_cast<size_t>(cache_->row_bytes()));
  // The oldest step in flight is done before this one is made resident.
  std::vector<int64_t>& pinned = in_flight_[next_in_flight_];
  next_in_flight_ = (next_in_flight_ + 1) % in_flight_.size();
  // A cache on the CPU gives no errors.
  const ExecContext ctx;
  HOTROW_CHECK(cache_->Unpin(ctx, pinned, /*dirty=*/false).ok());
  pinned.clear();

  const RowCache::InsertResult result = {.slots = slots_,
                                         .placement = placement_,
                                         .evicted = evicted_,
                                         .evicted_keys = evicted_keys_,
                                         .evicted_rows = evicted_rows_.data()};
  HOTROW_CHECK(cache_->FindOrInsert(ctx, keys, result).ok());
  filled_.clear();
  for (size_t i = 0; i < n; ++i) {
    const int64_t weight = lookups.empty() ? 1 : lookups[i];
    counts_.lookups += weight;
    ++counts_.unique_keys;
    switch (placement_[i]) {
      case Placement::kHit:
        counts_.lookup_hits += weight;
        ++counts_.unique_hits;
        pinned.push_back(slots_[i]);
        break;
      case Placement::kFilled:
        filled_.push_back(slots_[i]);
        pinned.push_back(slots_[i]);
        break;
      case Placement::kNoRoom:
        ++counts_.no_room;
        break;
    }
  }
  HOTROW_CHECK(cache_->MarkFilled(ctx, filled_).ok());
  HOTROW_CHECK(cache_->EndStep(ctx).ok());
}

}  // namespace hotrow
