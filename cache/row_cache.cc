#include "cache/row_cache.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/warp.h"
#include "cache/row_cache_impl.h"

namespace hotrow {
namespace {

using cache::Bucket;
using cache::Geometry;
using cache::PartitionState;
using cache::Probe;

constexpr int64_t kWays = Bucket::kWays;

// Limits that keep sums of bytes far from 2^63. No machine comes near them.
constexpr int64_t kRowBytesMultiple = 16;
constexpr int64_t kRowBytesMax = int64_t{1} << 30;
constexpr int64_t kBudgetBytesMax = int64_t{1} << 50;

// LRU: scores fall by one each time 1/32 of the ways has been placed anew, so a byte tells the last
// 8 turnovers of a large cache apart, while in a small one every step counts.
constexpr int64_t kLruAgeingsPerTurnover = 32;
// LFU: a touch adds 4 and an eighth is taken off all scores each time there were 4 touches a way: a
// count that halves over about 20 touches a way, in steps of a quarter. Small steps keep rows of
// nearly equal use apart: on Zipf 1.05 this hits 1 to 2 points more often than counting by one and
// halving, which sends most rows to 0 or 1 at once (cache/README.md has the figures). 255 is 64
// touches, so a row that was hot long ago is forgotten in a bounded time.
constexpr int64_t kLfuTouchesPerWay = 4;
constexpr uint8_t kLfuTouchScore = 4;

// Keys of one task of Find and of the sorting passes.
constexpr int64_t kFindGrain = 1024;
constexpr int64_t kSortGrainMin = 4096;

// What TakeMarked looks at in one call: 16,384 buckets, at some 30 ns each when nothing is marked.
constexpr int64_t kMarkedScanSlots = int64_t{1} << 19;

// Batches handed out by ForEachDirty.
constexpr int64_t kDirtyBatchRows = 4096;

// Each of the two loads that depend on one another is asked for this many keys ahead: at 10 ns a
// key it covers the 80 to 100 ns of a DRAM access.
constexpr int64_t kAhead = 10;

int64_t ReservedBytes(int64_t bytes) { return HostBytesReserved(bytes, HugePages::kTry); }

int64_t BucketBytes(int64_t row_bytes) {
  return static_cast<int64_t>(sizeof(Bucket)) + kWays * row_bytes;
}

cache::ScoreRule RuleOf(CachePolicy policy) {
  if (policy == CachePolicy::kLfu) return {.placed = kLfuTouchScore, .touch_add = kLfuTouchScore};
  return {.placed = 255, .touch_add = 255};
}

// Runs three stages over [begin, end), each kAhead items behind the one before: the first two
// prefetch what the next one reads.
template <typename First, typename Second, typename Third>
void Pipeline(int64_t begin, int64_t end, First&& first, Second&& second, Third&& third) {
  for (int64_t i = begin; i < end + 2 * kAhead; ++i) {
    if (i < end) first(i);
    if (i - kAhead >= begin && i - kAhead < end) second(i - kAhead);
    if (i - 2 * kAhead >= begin) third(i - 2 * kAhead);
  }
}

// Stage one of a probe: the lines with the tags of both buckets.
void PrefetchTags(const Bucket* first_bucket, const Probe& probe) {
  __builtin_prefetch(first_bucket[probe.bucket1].tag);
  __builtin_prefetch(first_bucket[probe.bucket2].tag);
}

// Stage two: the lines of the way that will be looked at, if a tag matches.
void PrefetchCandidate(const Bucket* first_bucket, const Probe& probe) {
  for (const uint32_t b : {probe.bucket1, probe.bucket2}) {
    const Bucket& bucket = first_bucket[b];
    const uint32_t candidates = HostWarp::MatchByte(bucket.tag, static_cast<uint8_t>(probe.tag));
    if (candidates == 0) continue;
    const int way = HostWarp::FirstLane(candidates);
    __builtin_prefetch(&bucket.key[way]);
    __builtin_prefetch(&bucket.table[way]);
    __builtin_prefetch(bucket.state);
    return;
  }
}

}  // namespace

namespace cache {

int64_t Geometry::Bytes(int64_t row_bytes) const {
  const int64_t total = TotalBuckets();
  return ReservedBytes(total * static_cast<int64_t>(sizeof(Bucket))) +
         ReservedBytes(total * kWays * row_bytes) +
         ReservedBytes(partitions * static_cast<int64_t>(sizeof(PartitionState)));
}

Geometry Geometry::ForBudget(int64_t budget_bytes, int64_t row_bytes) {
  int64_t fits = 0;
  int64_t too_many = budget_bytes / BucketBytes(row_bytes) + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (ForBuckets(middle).Bytes(row_bytes) <= budget_bytes ? fits : too_many) = middle;
  }
  return ForBuckets(fits);
}

}  // namespace cache

absl::Status RowCacheOptions::Validate() const {
  if (row_bytes <= 0 || row_bytes > kRowBytesMax || row_bytes % kRowBytesMultiple != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("RowCacheOptions.row_bytes must be a multiple of ", kRowBytesMultiple, " in [",
                     kRowBytesMultiple, ", ", kRowBytesMax, "], got ", row_bytes));
  }
  const int64_t least = Geometry::ForBuckets(1).Bytes(row_bytes);
  if (budget_bytes < least || budget_bytes > kBudgetBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("RowCacheOptions.budget_bytes must lie in [", least, ", ", kBudgetBytesMax,
                     "] with row_bytes = ", row_bytes, ", got ", budget_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowCache>> RowCache::Create(const RowCacheOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->rule = RuleOf(options.policy);
  impl->geometry = Geometry::ForBudget(options.budget_bytes, options.row_bytes);
  const Geometry& geometry = impl->geometry;
  const int64_t total = geometry.TotalBuckets();

  HOTROW_ASSIGN_OR_RETURN(impl->buckets, HostBuffer<Bucket>::Create(total, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(impl->slab, HostBuffer<std::byte>::Create(
                                          total * kWays * options.row_bytes, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(impl->partitions,
                          HostBuffer<PartitionState>::Create(geometry.partitions, HugePages::kTry));

  int64_t next_bucket = 0;
  for (int64_t p = 0; p < geometry.partitions; ++p) {
    PartitionState& partition = impl->partitions[p];
    const int64_t partition_buckets = geometry.PartitionBuckets(p);
    partition.first_bucket = next_bucket;
    partition.buckets = static_cast<int32_t>(partition_buckets);
    partition.overflow_buckets = static_cast<int32_t>(Geometry::OverflowBuckets(partition_buckets));
    next_bucket += partition.buckets + partition.overflow_buckets;
  }
  HOTROW_CHECK(next_bucket == total);
  return std::unique_ptr<RowCache>(new RowCache(std::move(impl)));
}

RowCache::RowCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RowCache::~RowCache() = default;

int64_t RowCache::BudgetForRows(int64_t rows, int64_t row_bytes) {
  const int64_t ways = CeilDiv(rows * 9, 8);
  return Geometry::ForBuckets(std::max<int64_t>(1, CeilDiv(ways, kWays))).Bytes(row_bytes);
}

RowCacheStats RowCache::SizeForBudget(int64_t budget_bytes, int64_t row_bytes) {
  RowCacheStats size;
  if (budget_bytes < Geometry::ForBuckets(1).Bytes(row_bytes)) return size;
  const Geometry geometry = Geometry::ForBudget(budget_bytes, row_bytes);
  size.ways = geometry.buckets * kWays;
  size.overflow_ways = geometry.TotalOverflowBuckets() * kWays;
  size.used_bytes = geometry.Bytes(row_bytes);
  return size;
}

uint8_t& RowCache::Impl::State(int64_t slot) {
  HOTROW_CHECK(slot >= 0 && slot < buckets.size() * kWays);
  return buckets[slot / kWays].state[slot % kWays];
}

Probe RowCache::Impl::MakeProbe(const RowHash& hash, const PartitionState& partition,
                                int64_t index) const {
  const auto n = static_cast<uint64_t>(partition.buckets);
  return {hash.bucket1(n), hash.bucket2(n), static_cast<uint32_t>(index), hash.tag()};
}

int64_t RowCache::Impl::FindSlot(const PartitionState& partition, const Probe& probe,
                                 RowKey key) const {
  const auto tag = static_cast<uint8_t>(probe.tag);
  for (const uint32_t b : {probe.bucket1, probe.bucket2}) {
    const int64_t bucket = partition.first_bucket + b;
    const int way = cache::FindWay<HostWarp>(buckets[bucket], tag, key.key, key.table);
    if (way >= 0) return bucket * kWays + way;
  }
  const int64_t overflow_begin = partition.first_bucket + partition.buckets;
  for (int64_t bucket = overflow_begin; bucket < overflow_begin + partition.overflow_span;
       ++bucket) {
    const int way = cache::FindWay<HostWarp>(buckets[bucket], tag, key.key, key.table);
    if (way >= 0) return bucket * kWays + way;
  }
  return -1;
}

void RowCache::Find(const ExecContext& ctx, std::span<const RowKey> keys,
                    std::span<std::byte*> rows) const {
  HOTROW_CHECK(rows.size() == keys.size());
  ParallelFor(ctx.pool, std::ssize(keys), kFindGrain,
              [&](int64_t begin, int64_t end) { impl_->FindChunk(keys, rows, begin, end); });
}

void RowCache::Impl::FindChunk(std::span<const RowKey> keys, std::span<std::byte*> rows,
                               int64_t begin, int64_t end) const {
  struct InFlight {
    const PartitionState* partition;
    Probe probe;
  };
  constexpr size_t kRing = 32;
  static_assert(2 * kAhead < static_cast<int64_t>(kRing));
  InFlight ring[kRing];
  Pipeline(
      begin, end,
      [&](int64_t i) {
        const RowHash hash = HashRowKey(keys[static_cast<size_t>(i)]);
        const PartitionState& partition = partitions[PartitionOf(hash)];
        InFlight& at = ring[static_cast<size_t>(i) % kRing];
        at = {&partition, MakeProbe(hash, partition, i)};
        PrefetchTags(buckets.data() + partition.first_bucket, at.probe);
      },
      [&](int64_t i) {
        const InFlight& at = ring[static_cast<size_t>(i) % kRing];
        PrefetchCandidate(buckets.data() + at.partition->first_bucket, at.probe);
      },
      [&](int64_t i) {
        const InFlight& at = ring[static_cast<size_t>(i) % kRing];
        const int64_t slot = FindSlot(*at.partition, at.probe, keys[static_cast<size_t>(i)]);
        const bool filled =
            slot >= 0 && (buckets[slot / kWays].state[slot % kWays] & cache::kFilling) == 0;
        rows[static_cast<size_t>(i)] = filled ? const_cast<std::byte*>(Row(slot)) : nullptr;
      });
}

// A stable counting sort. Chunks count their keys per partition, a prefix sum turns counts into
// places, and chunks scatter. Keys are hashed twice, which is cheaper than storing the partition of
// each.
void RowCache::Impl::SortByPartition(const ExecContext& ctx, std::span<const RowKey> keys) {
  const int64_t n = std::ssize(keys);
  const int64_t num_partitions = geometry.partitions;
  HOTROW_CHECK(n < (int64_t{1} << 32));  // Probe::index
  // No more counters than keys.
  const int64_t chunk_keys = std::max(kSortGrainMin, num_partitions);
  const int64_t chunks = CeilDiv(n, chunk_keys);
  if (std::ssize(probes) < n) probes.resize(static_cast<size_t>(n));
  partition_begin.resize(static_cast<size_t>(num_partitions) + 1);
  chunk_partitions.assign(static_cast<size_t>(chunks * num_partitions), 0);

  if (num_partitions > 1) {
    ParallelFor(ctx.pool, n, chunk_keys, [&](int64_t begin, int64_t end) {
      uint32_t* const counts = chunk_partitions.data() + begin / chunk_keys * num_partitions;
      for (int64_t i = begin; i < end; ++i) {
        ++counts[PartitionOf(HashRowKey(keys[static_cast<size_t>(i)]))];
      }
    });
  } else {
    for (int64_t c = 0; c < chunks; ++c) {
      chunk_partitions[static_cast<size_t>(c)] =
          static_cast<uint32_t>(std::min(chunk_keys, n - c * chunk_keys));
    }
  }

  int64_t sum = 0;
  for (int64_t p = 0; p < num_partitions; ++p) {
    partition_begin[static_cast<size_t>(p)] = sum;
    for (int64_t c = 0; c < chunks; ++c) {
      uint32_t& count = chunk_partitions[static_cast<size_t>(c * num_partitions + p)];
      sum += std::exchange(count, static_cast<uint32_t>(sum));
    }
  }
  partition_begin[static_cast<size_t>(num_partitions)] = sum;
  HOTROW_CHECK(sum == n);

  ParallelFor(ctx.pool, n, chunk_keys, [&](int64_t begin, int64_t end) {
    uint32_t* const next = chunk_partitions.data() + begin / chunk_keys * num_partitions;
    for (int64_t i = begin; i < end; ++i) {
      const RowHash hash = HashRowKey(keys[static_cast<size_t>(i)]);
      const int64_t p = PartitionOf(hash);
      probes[next[p]++] = MakeProbe(hash, partitions[p], i);
    }
  });
}

void RowCache::FindOrInsert(const ExecContext& ctx, std::span<const RowKey> keys,
                            const InsertResult& result) {
  HOTROW_CHECK(result.slots.size() == keys.size() && result.placement.size() == keys.size());
  HOTROW_CHECK(result.evicted.size() == keys.size() && result.evicted_keys.size() == keys.size());
  if (keys.empty()) return;
  Impl& impl = *impl_;
  impl.SortByPartition(ctx, keys);
  // Partitions share nothing, so any thread may take any of them; a few hundred tasks are fine
  // enough.
  const int64_t grain = CeilDiv(impl.geometry.partitions, 512);
  ParallelFor(ctx.pool, impl.geometry.partitions, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = impl.partition_begin[static_cast<size_t>(p)];
      const int64_t count = impl.partition_begin[static_cast<size_t>(p) + 1] - first;
      if (count == 0) continue;
      const auto probes =
          std::span(impl.probes).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
      // All hits are pinned before the first miss is placed: otherwise a miss could evict a row
      // that a later key of the same batch asks for.
      const int64_t misses = impl.PinHits(impl.partitions[p], keys, probes, result);
      impl.PlaceMisses(impl.partitions[p], keys, probes.first(static_cast<size_t>(misses)), result);
    }
  });
}

// Moves the misses to the front of `probes`, in order, and returns their number.
int64_t RowCache::Impl::PinHits(PartitionState& partition, std::span<const RowKey> keys,
                                std::span<Probe> partition_probes, const InsertResult& result) {
  const Bucket* const first_bucket = buckets.data() + partition.first_bucket;
  Probe* const probe = partition_probes.data();
  const int64_t count = std::ssize(partition_probes);
  int64_t misses = 0;
  Pipeline(
      0, count, [&](int64_t i) { PrefetchTags(first_bucket, probe[i]); },
      [&](int64_t i) { PrefetchCandidate(first_bucket, probe[i]); },
      [&](int64_t i) {
        const size_t index = probe[i].index;
        const int64_t slot = FindSlot(partition, probe[i], keys[index]);
        if (slot < 0) {
          probe[misses++] = probe[i];
          return;
        }
        Bucket& bucket = buckets[slot / kWays];
        const uint8_t state = bucket.state[slot % kWays];
        HOTROW_CHECK((state & cache::kPinMask) < cache::kMaxPins);
        cache::TouchAndPin<HostWarp>(bucket, static_cast<int>(slot % kWays), rule);
        result.slots[index] = slot;
        result.placement[index] = Placement::kHit;
        result.evicted[index] = 0;
      });
  partition.touched_since_ageing += count;
  return misses;
}

void RowCache::Impl::PlaceMisses(PartitionState& partition, std::span<const RowKey> keys,
                                 std::span<const Probe> partition_probes,
                                 const InsertResult& result) {
  const Bucket* const first_bucket = buckets.data() + partition.first_bucket;
  const Probe* const probes_begin = partition_probes.data();
  Pipeline(
      0, std::ssize(partition_probes),
      [&](int64_t i) {
        PrefetchTags(first_bucket, probes_begin[i]);
        __builtin_prefetch(first_bucket[probes_begin[i].bucket1].state);
        __builtin_prefetch(first_bucket[probes_begin[i].bucket2].state);
      },
      [](int64_t) {},
      [&](int64_t i) {
        const Probe& probe = probes_begin[i];
        const size_t index = probe.index;
        const RowKey key = keys[index];
        HOTROW_DCHECK(FindSlot(partition, probe, key) < 0);  // the keys of a batch are distinct
        result.evicted[index] = 0;
        const int64_t slot = PickSlot(partition, probe);
        result.slots[index] = slot;
        if (slot < 0) {
          result.placement[index] = Placement::kNoRoom;
          ++partition.no_room;
          return;
        }
        Bucket& bucket = buckets[slot / kWays];
        const int way = static_cast<int>(slot % kWays);
        if (bucket.tag[way] != 0) Evict(partition, slot, static_cast<int64_t>(index), result);
        cache::Place<HostWarp>(bucket, way, static_cast<uint8_t>(probe.tag), key.key, key.table,
                               rule);
        result.placement[index] = Placement::kFilled;
        ++partition.used_ways;
        ++partition.placed_since_ageing;
      });
}

// The slot that a missing key gets: an empty one, or one whose row must leave first; -1 when all
// are pinned.
int64_t RowCache::Impl::PickSlot(PartitionState& partition, const Probe& probe) {
  const int64_t pair[2] = {partition.first_bucket + probe.bucket1,
                           partition.first_bucket + probe.bucket2};
  cache::PairWay at = cache::PickFree<HostWarp>(buckets[pair[0]], buckets[pair[1]]);
  if (at.way < 0) at = cache::PickVictim<HostWarp>(buckets[pair[0]], buckets[pair[1]]);
  if (at.way >= 0) return pair[at.bucket] * kWays + at.way;
  return PickOverflowSlot(partition);
}

int64_t RowCache::Impl::PickOverflowSlot(PartitionState& partition) {
  const int64_t begin = partition.first_bucket + partition.buckets;
  int64_t slot = -1;
  // The first empty way, so that rows gather in the first buckets and probes stay short.
  for (int32_t b = 0; b < partition.overflow_buckets && slot < 0; ++b) {
    const uint32_t free = cache::FreeMask<HostWarp>(buckets[begin + b]);
    if (free == 0) continue;
    slot = (begin + b) * kWays + HostWarp::FirstLane(free);
    partition.overflow_span = std::max(partition.overflow_span, b + 1);
    ++partition.overflow_used;
  }
  if (slot < 0) {
    int lowest_score = 256;
    for (int32_t b = 0; b < partition.overflow_buckets; ++b) {
      const Bucket& bucket = buckets[begin + b];
      const WayScore victim =
          HostWarp::MinByte(bucket.score, cache::UnpinnedMask<HostWarp>(bucket));
      if (victim.way < 0 || victim.score >= lowest_score) continue;
      lowest_score = victim.score;
      slot = (begin + b) * kWays + victim.way;
    }
  }
  if (slot >= 0) ++partition.overflow_inserts;
  return slot;
}

void RowCache::Impl::Evict(PartitionState& partition, int64_t slot, int64_t index,
                           const InsertResult& result) {
  const Bucket& bucket = buckets[slot / kWays];
  const int64_t way = slot % kWays;
  --partition.used_ways;
  ++partition.evictions;
  const bool marked = bucket.mark[way] != 0;
  if ((bucket.state[way] & cache::kDirty) == 0 && !marked) return;
  ++partition.dirty_evictions;
  result.evicted[static_cast<size_t>(index)] = marked ? kEvictedMarked : kEvictedDirty;
  result.evicted_keys[static_cast<size_t>(index)] = {bucket.key[way], bucket.table[way]};
  HOTROW_CHECK(result.evicted_rows != nullptr);
  std::memcpy(result.evicted_rows + index * options.row_bytes, Row(slot),
              static_cast<size_t>(options.row_bytes));
}

void RowCache::MarkFilled(std::span<const int64_t> slots) {
  for (const int64_t slot : slots) {
    uint8_t& state = impl_->State(slot);
    HOTROW_CHECK((state & cache::kFilling) != 0);
    state = static_cast<uint8_t>(state & ~cache::kFilling);
  }
}

void RowCache::Abandon(std::span<const int64_t> slots) {
  HostBuffer<PartitionState>& partitions = impl_->partitions;
  for (const int64_t slot : slots) {
    HOTROW_CHECK(impl_->State(slot) == (cache::kFilling | 1));
    const int64_t bucket = slot / kWays;
    cache::Clear<HostWarp>(impl_->buckets[bucket], static_cast<int>(slot % kWays));
    PartitionState& partition = *std::prev(
        std::upper_bound(partitions.begin(), partitions.end(), bucket,
                         [](int64_t b, const PartitionState& p) { return b < p.first_bucket; }));
    --partition.used_ways;
    if (bucket >= partition.first_bucket + partition.buckets) {
      if (--partition.overflow_used == 0) partition.overflow_span = 0;
    }
  }
}

void RowCache::Unpin(std::span<const int64_t> slots, bool dirty) {
  const uint8_t mark = dirty ? cache::kDirty : 0;
  for (const int64_t slot : slots) {
    uint8_t& state = impl_->State(slot);
    HOTROW_CHECK((state & cache::kPinMask) != 0);
    // The pin of the batch that placed it stays until it is filled, and then nothing is dirty.
    HOTROW_CHECK((state & cache::kFilling) == 0 || (!dirty && (state & cache::kPinMask) > 1));
    state = static_cast<uint8_t>((state - 1) | mark);
  }
}

void RowCache::MarkDirty(std::span<const int64_t> slots) {
  for (const int64_t slot : slots) {
    uint8_t& state = impl_->State(slot);
    HOTROW_CHECK((state & cache::kPinMask) != 0);
    state |= cache::kDirty;
  }
}

int64_t RowCache::MarkDirtyRows() {
  int64_t marked = 0;
  for (Bucket& bucket : impl_->buckets) {
    // Loops over 32 bytes become a vector instruction or two.
    uint8_t count = 0;
    uint8_t had = 0;
    for (int way = 0; way < kWays; ++way) {
      had |= bucket.mark[way];
      bucket.mark[way] = static_cast<uint8_t>(bucket.state[way] >> 7);
      bucket.state[way] &= static_cast<uint8_t>(~cache::kDirty);
      count = static_cast<uint8_t>(count + bucket.mark[way]);
    }
    HOTROW_CHECK(had == 0);
    marked += count;
  }
  return marked;
}

bool RowCache::TakeMark(int64_t slot, RowKey* key) {
  uint8_t& state = impl_->State(slot);
  uint8_t& mark = impl_->Mark(slot);
  if (mark == 0) return false;
  mark = 0;
  state |= cache::kDirty;
  const Bucket& bucket = impl_->buckets[slot / kWays];
  *key = {bucket.key[slot % kWays], bucket.table[slot % kWays]};
  return true;
}

int64_t RowCache::TakeMarked(int64_t* cursor, std::span<RowKey> keys, std::span<int64_t> slots,
                             std::byte* rows) {
  HOTROW_CHECK(slots.size() == keys.size() && *cursor >= 0);
  const int64_t end = std::min(num_slots(), *cursor + kMarkedScanSlots);
  int64_t taken = 0;
  int64_t slot = *cursor;
  while (slot < end && taken < std::ssize(keys)) {
    Bucket& bucket = impl_->buckets[slot / kWays];
    const uint32_t lanes =
        HostWarp::MatchByte(bucket.mark, cache::kMarked) & (~uint32_t{0} << (slot % kWays));
    if (lanes == 0) {
      slot = (slot / kWays + 1) * kWays;
      continue;
    }
    const int way = HostWarp::FirstLane(lanes);
    slot = slot / kWays * kWays + way;
    HOTROW_CHECK((bucket.state[way] & cache::kPinMask) < cache::kMaxPins);
    bucket.mark[way] = 0;
    ++bucket.state[way];
    keys[static_cast<size_t>(taken)] = {bucket.key[way], bucket.table[way]};
    slots[static_cast<size_t>(taken)] = slot;
    std::memcpy(rows + taken * impl_->options.row_bytes, impl_->Row(slot),
                static_cast<size_t>(impl_->options.row_bytes));
    ++taken;
    ++slot;
  }
  *cursor = slot;
  return taken;
}

void RowCache::DropMarks() {
  for (Bucket& bucket : impl_->buckets) {
    for (int way = 0; way < kWays; ++way) {
      bucket.state[way] |= static_cast<uint8_t>(bucket.mark[way] << 7);
      bucket.mark[way] = 0;
    }
  }
}

int64_t RowCache::num_slots() const { return impl_->buckets.size() * kWays; }

void RowCache::EndStep(const ExecContext& ctx) {
  Impl& impl = *impl_;
  const bool lfu = impl.options.policy == CachePolicy::kLfu;
  ParallelFor(ctx.pool, impl.geometry.partitions, 1, [&](int64_t p, int64_t) {
    PartitionState& partition = impl.partitions[p];
    const int64_t ways = partition.buckets * kWays;
    const bool due = lfu ? partition.touched_since_ageing >= kLfuTouchesPerWay * ways
                         : partition.placed_since_ageing >= ways / kLruAgeingsPerTurnover;
    if (!due) return;
    partition.touched_since_ageing = 0;
    partition.placed_since_ageing = 0;
    const int64_t count = partition.buckets + partition.overflow_buckets;
    for (Bucket& bucket : impl.buckets.span().subspan(static_cast<size_t>(partition.first_bucket),
                                                      static_cast<size_t>(count))) {
      lfu ? cache::AgeByDecay(bucket) : cache::AgeByOne(bucket);
    }
  });
}

absl::Status RowCache::ForEachDirty(
    absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                   std::span<const std::byte* const> rows)>
        visit) {
  std::vector<RowKey> keys;
  std::vector<const std::byte*> rows;
  std::vector<int64_t> slots;
  const auto flush = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(visit(keys, rows));
    for (const int64_t slot : slots) {
      uint8_t& state = impl_->State(slot);
      state = static_cast<uint8_t>(state & ~cache::kDirty);
    }
    keys.clear();
    rows.clear();
    slots.clear();
    return absl::OkStatus();
  };
  for (int64_t b = 0; b < impl_->buckets.size(); ++b) {
    const Bucket& bucket = impl_->buckets[b];
    for (int64_t way = 0; way < kWays; ++way) {
      if ((bucket.state[way] & cache::kDirty) == 0) continue;
      keys.push_back({bucket.key[way], bucket.table[way]});
      rows.push_back(impl_->Row(b * kWays + way));
      slots.push_back(b * kWays + way);
      if (std::ssize(slots) == kDirtyBatchRows) HOTROW_RETURN_IF_ERROR(flush());
    }
  }
  return slots.empty() ? absl::OkStatus() : flush();
}

std::byte* RowCache::row(int64_t slot) {
  HOTROW_DCHECK(slot >= 0 && slot < impl_->buckets.size() * kWays);
  return impl_->Row(slot);
}

int64_t RowCache::row_bytes() const { return impl_->options.row_bytes; }

RowCacheStats RowCache::Stats() const {
  RowCacheStats stats;
  stats.ways = impl_->geometry.buckets * kWays;
  stats.overflow_ways = impl_->geometry.TotalOverflowBuckets() * kWays;
  stats.used_bytes = impl_->geometry.Bytes(impl_->options.row_bytes);
  for (const PartitionState& partition : impl_->partitions) {
    stats.used_ways += partition.used_ways;
    stats.evictions += partition.evictions;
    stats.dirty_evictions += partition.dirty_evictions;
    stats.overflow_inserts += partition.overflow_inserts;
    stats.no_room += partition.no_room;
  }
  return stats;
}

}  // namespace hotrow
