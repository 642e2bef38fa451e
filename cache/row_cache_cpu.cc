#include "cache/row_cache_cpu_impl.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/warp.h"

namespace hotrow::cache {
namespace {

constexpr int64_t kWays = Bucket::kWays;

// Keys of one task of Find and of the sorting passes.
constexpr int64_t kFindGrain = 1024;
constexpr int64_t kSortGrainMin = 4096;
// Rows that FindRows looks up before it copies them.
constexpr int64_t kCopyStretch = 256;

// Each of the two loads that depend on one another is asked for this many keys ahead: at 10 ns a
// key it covers the 80 to 100 ns of a DRAM access.
constexpr int64_t kAhead = 10;

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

// Stage two: the record and the state of the way that will be looked at, if a tag matches.
void PrefetchCandidate(const Bucket* first_bucket, const Probe& probe) {
  for (const uint32_t b : {probe.bucket1, probe.bucket2}) {
    const Bucket& bucket = first_bucket[b];
    const uint32_t candidates = HostWarp::MatchTag(bucket.tag, static_cast<uint16_t>(probe.tag));
    if (candidates == 0) continue;
    const int way = HostWarp::FirstLane(candidates);
    // One record of eight lies in two lines.
    __builtin_prefetch(&bucket.record[way].key_low);
    __builtin_prefetch(&bucket.record[way].table);
    __builtin_prefetch(bucket.state);
    return;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowCache>> CreateCpuRowCache(const RowCacheOptions& options) {
  return CpuRowCache::Create(options);
}

absl::StatusOr<std::unique_ptr<CpuRowCache>> CpuRowCache::Create(const RowCacheOptions& options) {
  std::unique_ptr<CpuRowCache> cache(new CpuRowCache(options));
  cache->rule_ = ScoresOf(options.policy);
  cache->spares_rows_ = SparesRows(options.policy);
  cache->geometry_ = Geometry::ForBudget(options.budget_bytes, options.row_bytes);
  const Geometry& geometry = cache->geometry_;
  const int64_t total = geometry.TotalBuckets();

  HOTROW_ASSIGN_OR_RETURN(cache->buckets_, HostBuffer<Bucket>::Create(total, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(cache->slab_, HostBuffer<std::byte>::Create(
                                            total * kWays * options.row_bytes, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(cache->partitions_,
                          HostBuffer<PartitionState>::Create(geometry.partitions, HugePages::kTry));
  cache->rows_ = cache->slab_.data();
  cache->num_slots_ = total * kWays;

  int64_t next_bucket = 0;
  for (int64_t p = 0; p < geometry.partitions; ++p) {
    cache->partitions_[p] = EmptyPartition(geometry, p, next_bucket);
    next_bucket += cache->partitions_[p].buckets + cache->partitions_[p].overflow_buckets;
  }
  HOTROW_CHECK(next_bucket == total);
  return cache;
}

uint8_t& CpuRowCache::State(int64_t slot) {
  HOTROW_CHECK(slot >= 0 && slot < buckets_.size() * kWays);
  return buckets_[slot / kWays].state[slot % kWays];
}

Probe CpuRowCache::MakeProbe(const RowHash& hash, const PartitionState& partition,
                             int64_t index) const {
  const auto n = static_cast<uint64_t>(partition.buckets);
  return {hash.bucket1(n), hash.bucket2(n), static_cast<uint32_t>(index), TagOf(hash)};
}

int64_t CpuRowCache::FindSlot(const PartitionState& partition, const Probe& probe,
                              RowKey key) const {
  const auto tag = static_cast<uint16_t>(probe.tag);
  for (const uint32_t b : {probe.bucket1, probe.bucket2}) {
    const int64_t bucket = partition.first_bucket + b;
    const int way = FindWay<HostWarp>(buckets_[bucket], tag, key.key, key.table);
    if (way >= 0) return bucket * kWays + way;
  }
  const int64_t overflow_begin = partition.first_bucket + partition.buckets;
  for (int64_t bucket = overflow_begin; bucket < overflow_begin + partition.overflow_span;
       ++bucket) {
    const int way = FindWay<HostWarp>(buckets_[bucket], tag, key.key, key.table);
    if (way >= 0) return bucket * kWays + way;
  }
  return -1;
}

absl::Status CpuRowCache::Find(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::span<std::byte*> rows) const {
  HOTROW_CHECK(rows.size() == keys.size());
  ParallelFor(ctx.pool, std::ssize(keys), kFindGrain, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<size_t>(begin);
    const auto count = static_cast<size_t>(end - begin);
    FindChunk(keys.subspan(first, count), rows.subspan(first, count));
  });
  return absl::OkStatus();
}

absl::Status CpuRowCache::FindRows(const ExecContext& ctx, std::span<const RowKey> keys,
                                   std::byte* out, int64_t out_stride,
                                   std::span<uint8_t> found) const {
  CheckFindRows(keys, out, out_stride, found, row_bytes());
  ParallelFor(ctx.pool, std::ssize(keys), kFindGrain, [&](int64_t begin, int64_t end) {
    // A stretch at a time, so that the addresses stay in the L1 cache.
    std::byte* rows[kCopyStretch];
    for (int64_t at = begin; at < end; at += kCopyStretch) {
      const int64_t count = std::min(kCopyStretch, end - at);
      FindChunk(keys.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
                std::span(rows).first(static_cast<size_t>(count)));
      for (int64_t i = 0; i < count; ++i) {
        found[static_cast<size_t>(at + i)] = rows[i] != nullptr ? 1 : 0;
        if (rows[i] == nullptr) continue;
        std::memcpy(out + (at + i) * out_stride, rows[i], static_cast<size_t>(row_bytes()));
      }
    }
  });
  return absl::OkStatus();
}

void CpuRowCache::FindChunk(std::span<const RowKey> keys, std::span<std::byte*> rows) const {
  struct InFlight {
    const PartitionState* partition;
    Probe probe;
  };
  constexpr size_t kRing = 32;
  static_assert(2 * kAhead < static_cast<int64_t>(kRing));
  InFlight ring[kRing];
  Pipeline(
      0, std::ssize(keys),
      [&](int64_t i) {
        const RowHash hash = HashRowKey(keys[static_cast<size_t>(i)]);
        const PartitionState& partition = partitions_[PartitionOf(hash)];
        InFlight& at = ring[static_cast<size_t>(i) % kRing];
        at = {&partition, MakeProbe(hash, partition, i)};
        PrefetchTags(buckets_.data() + partition.first_bucket, at.probe);
      },
      [&](int64_t i) {
        const InFlight& at = ring[static_cast<size_t>(i) % kRing];
        PrefetchCandidate(buckets_.data() + at.partition->first_bucket, at.probe);
      },
      [&](int64_t i) {
        const InFlight& at = ring[static_cast<size_t>(i) % kRing];
        const int64_t slot = FindSlot(*at.partition, at.probe, keys[static_cast<size_t>(i)]);
        const bool filled = slot >= 0 && !IsFilling(buckets_[slot / kWays].state[slot % kWays]);
        rows[static_cast<size_t>(i)] = filled ? row(slot) : nullptr;
      });
}

// A stable counting sort. Chunks count their keys per partition, a prefix sum turns counts into
// places, and chunks scatter. Keys are hashed twice, which is cheaper than storing the partition of
// each.
void CpuRowCache::SortByPartition(const ExecContext& ctx, std::span<const RowKey> keys) {
  const int64_t n = std::ssize(keys);
  const int64_t num_partitions = geometry_.partitions;
  HOTROW_CHECK(n < (int64_t{1} << 32));  // Probe::index
  // No more counters than keys.
  const int64_t chunk_keys = std::max(kSortGrainMin, num_partitions);
  const int64_t chunks = CeilDiv(n, chunk_keys);
  if (std::ssize(probes_) < n) probes_.resize(static_cast<size_t>(n));
  partition_begin_.resize(static_cast<size_t>(num_partitions) + 1);
  chunk_partitions_.assign(static_cast<size_t>(chunks * num_partitions), 0);

  if (num_partitions > 1) {
    ParallelFor(ctx.pool, n, chunk_keys, [&](int64_t begin, int64_t end) {
      uint32_t* const counts = chunk_partitions_.data() + begin / chunk_keys * num_partitions;
      for (int64_t i = begin; i < end; ++i) {
        ++counts[PartitionOf(HashRowKey(keys[static_cast<size_t>(i)]))];
      }
    });
  } else {
    for (int64_t c = 0; c < chunks; ++c) {
      chunk_partitions_[static_cast<size_t>(c)] =
          static_cast<uint32_t>(std::min(chunk_keys, n - c * chunk_keys));
    }
  }

  int64_t sum = 0;
  for (int64_t p = 0; p < num_partitions; ++p) {
    partition_begin_[static_cast<size_t>(p)] = sum;
    for (int64_t c = 0; c < chunks; ++c) {
      uint32_t& count = chunk_partitions_[static_cast<size_t>(c * num_partitions + p)];
      sum += std::exchange(count, static_cast<uint32_t>(sum));
    }
  }
  partition_begin_[static_cast<size_t>(num_partitions)] = sum;
  HOTROW_CHECK(sum == n);

  ParallelFor(ctx.pool, n, chunk_keys, [&](int64_t begin, int64_t end) {
    uint32_t* const next = chunk_partitions_.data() + begin / chunk_keys * num_partitions;
    for (int64_t i = begin; i < end; ++i) {
      const RowHash hash = HashRowKey(keys[static_cast<size_t>(i)]);
      const int64_t p = PartitionOf(hash);
      probes_[next[p]++] = MakeProbe(hash, partitions_[p], i);
    }
  });
}

template <typename Visit>
void CpuRowCache::ForPartitions(const ExecContext& ctx, const Visit& visit) {
  // Partitions share nothing, so any thread may take any of them; a few hundred tasks are fine
  // enough.
  const int64_t grain = CeilDiv(geometry_.partitions, 512);
  ParallelFor(ctx.pool, geometry_.partitions, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = partition_begin_[static_cast<size_t>(p)];
      const int64_t count = partition_begin_[static_cast<size_t>(p) + 1] - first;
      if (count == 0) continue;
      visit(partitions_[p],
            std::span(probes_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
    }
  });
}

absl::Status CpuRowCache::FindOrInsert(const ExecContext& ctx, std::span<const RowKey> keys,
                                       const InsertResult& result) {
  CheckInsertResult(keys, result);
  if (keys.empty()) return absl::OkStatus();
  SortByPartition(ctx, keys);
  ForPartitions(ctx, [&](PartitionState& partition, std::span<Probe> probes) {
    // All hits are pinned before the first miss is placed: otherwise a miss could evict a row that
    // a later key of the same batch asks for.
    const int64_t misses = PinHits(partition, keys, probes, result);
    PlaceMisses(partition, keys, probes.first(static_cast<size_t>(misses)), result);
  });
  return absl::OkStatus();
}

absl::Status CpuRowCache::PinHits(const ExecContext& ctx, std::span<const RowKey> keys,
                                  const InsertResult& result) {
  CheckPinResult(keys, result);
  if (keys.empty()) return absl::OkStatus();
  SortByPartition(ctx, keys);
  ForPartitions(ctx, [&](PartitionState& partition, std::span<Probe> probes) {
    const int64_t misses = PinHits(partition, keys, probes, result);
    for (int64_t i = 0; i < misses; ++i) {
      result.slots[probes[static_cast<size_t>(i)].index] = -1;
    }
  });
  return absl::OkStatus();
}

// For tables that behave on the CPU as on a GPU: one key after the other.
absl::Status CpuRowCache::PlaceMisses(const ExecContext&, std::span<const RowKey> keys,
                                      const InsertResult& result) {
  CheckInsertResult(keys, result);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (result.slots[i] >= 0) continue;
    const RowHash hash = HashRowKey(keys[i]);
    PartitionState& partition = partitions_[PartitionOf(hash)];
    const Probe probe = MakeProbe(hash, partition, static_cast<int64_t>(i));
    HOTROW_CHECK(FindSlot(partition, probe, keys[i]) < 0);
    PlaceMisses(partition, keys, {&probe, 1}, result);
  }
  return absl::OkStatus();
}

// Moves the misses to the front of `probes`, in order, and returns their number.
int64_t CpuRowCache::PinHits(PartitionState& partition, std::span<const RowKey> keys,
                             std::span<Probe> partition_probes, const InsertResult& result) {
  const Bucket* const first_bucket = buckets_.data() + partition.first_bucket;
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
        Bucket& bucket = buckets_[slot / kWays];
        HOTROW_CHECK(PinsOf(bucket.state[slot % kWays]) < kMaxPins);
        TouchAndPin<HostWarp>(bucket, static_cast<int>(slot % kWays), rule_);
        result.slots[index] = slot;
        result.placement[index] = Placement::kHit;
        result.evicted[index] = 0;
      });
  partition.touched_since_ageing += count;
  return misses;
}

void CpuRowCache::PlaceMisses(PartitionState& partition, std::span<const RowKey> keys,
                              std::span<const Probe> partition_probes, const InsertResult& result) {
  const Bucket* const first_bucket = buckets_.data() + partition.first_bucket;
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
        Bucket& bucket = buckets_[slot / kWays];
        const int way = static_cast<int>(slot % kWays);
        if (bucket.state[way] != kEmpty) {
          Evict(partition, slot, static_cast<int64_t>(index), result);
          if (spares_rows_) SpareRows(bucket, way);
        }
        Place<HostWarp>(bucket, way, static_cast<uint16_t>(probe.tag), key.key, key.table, rule_);
        result.placement[index] = Placement::kFilled;
        ++partition.used_ways;
        ++partition.placed_since_ageing;
      });
}

// The slot that a missing key gets: an empty one, or one whose row must leave first; -1 when all
// are pinned.
int64_t CpuRowCache::PickSlot(PartitionState& partition, const Probe& probe) {
  const int64_t pair[2] = {partition.first_bucket + probe.bucket1,
                           partition.first_bucket + probe.bucket2};
  PairWay at = PickFree<HostWarp>(buckets_[pair[0]], buckets_[pair[1]]);
  if (at.way < 0) at = PickVictim<HostWarp>(buckets_[pair[0]], buckets_[pair[1]]);
  if (at.way >= 0) return pair[at.bucket] * kWays + at.way;
  return PickOverflowSlot(partition);
}

int64_t CpuRowCache::PickOverflowSlot(PartitionState& partition) {
  const int64_t begin = partition.first_bucket + partition.buckets;
  int64_t slot = -1;
  // The first empty way, so that rows gather in the first buckets and probes stay short.
  for (int32_t b = 0; b < partition.overflow_buckets && slot < 0; ++b) {
    const uint32_t free = FreeMask<HostWarp>(buckets_[begin + b]);
    if (free == 0) continue;
    slot = (begin + b) * kWays + HostWarp::FirstLane(free);
    partition.overflow_span = std::max(partition.overflow_span, b + 1);
    ++partition.overflow_used;
  }
  if (slot < 0) {
    int lowest_score = 256;
    for (int32_t b = 0; b < partition.overflow_buckets; ++b) {
      const Bucket& bucket = buckets_[begin + b];
      const WayScore victim = HostWarp::MinByte(bucket.score, UnpinnedMask<HostWarp>(bucket));
      if (victim.way < 0 || victim.score >= lowest_score) continue;
      lowest_score = victim.score;
      slot = (begin + b) * kWays + victim.way;
    }
  }
  if (slot >= 0) ++partition.overflow_inserts;
  return slot;
}

void CpuRowCache::Evict(PartitionState& partition, int64_t slot, int64_t index,
                        const InsertResult& result) {
  const Bucket& bucket = buckets_[slot / kWays];
  const int64_t way = slot % kWays;
  --partition.used_ways;
  ++partition.evictions;
  const uint8_t kind = KindOf(bucket.state[way]);
  if (kind == kClean) return;
  ++partition.dirty_evictions;
  result.evicted[static_cast<size_t>(index)] = kind == kMarked ? kEvictedMarked : kEvictedDirty;
  result.evicted_keys[static_cast<size_t>(index)] = bucket.record[way].key();
  HOTROW_CHECK(result.evicted_rows != nullptr);
  std::memcpy(result.evicted_rows + index * options_.row_bytes, row(slot),
              static_cast<size_t>(options_.row_bytes));
}

// Moves the scores of the rows that stay in the bucket where this one leaves.
void CpuRowCache::SpareRows(Bucket& bucket, int way) {
  const uint8_t victim = bucket.score[way];
  WithPolicy(options_.policy, [&bucket, victim]<typename Policy>(Policy) {
    ForWords(bucket.score, [victim](uint32_t scores) { return Policy::SpareFour(scores, victim); });
  });
}

absl::Status CpuRowCache::MarkFilled(const ExecContext&, std::span<const int64_t> slots) {
  for (const int64_t slot : slots) {
    uint8_t& state = State(slot);
    HOTROW_CHECK(IsFilling(state));
    state |= kClean;
  }
  return absl::OkStatus();
}

absl::Status CpuRowCache::Abandon(const ExecContext&, std::span<const int64_t> slots) {
  for (const int64_t slot : slots) {
    HOTROW_CHECK(State(slot) == kPlaced);
    const int64_t bucket = slot / kWays;
    Clear<HostWarp>(buckets_[bucket], static_cast<int>(slot % kWays));
    PartitionState& partition = *std::prev(
        std::upper_bound(partitions_.begin(), partitions_.end(), bucket,
                         [](int64_t b, const PartitionState& p) { return b < p.first_bucket; }));
    --partition.used_ways;
    if (bucket >= partition.first_bucket + partition.buckets) {
      if (--partition.overflow_used == 0) partition.overflow_span = 0;
    }
  }
  return absl::OkStatus();
}

absl::Status CpuRowCache::Unpin(const ExecContext&, std::span<const int64_t> slots, bool dirty) {
  const uint8_t change = dirty ? kDiffersBit : 0;
  for (const int64_t slot : slots) {
    uint8_t& state = State(slot);
    HOTROW_CHECK(PinsOf(state) != 0);
    // The pin of the batch that placed it stays until it is filled, and then nothing is dirty.
    HOTROW_CHECK(!IsFilling(state) || (!dirty && PinsOf(state) > 1));
    state = static_cast<uint8_t>((state - 1) | change);
  }
  return absl::OkStatus();
}

absl::Status CpuRowCache::MarkDirty(const ExecContext&, std::span<const int64_t> slots) {
  for (const int64_t slot : slots) {
    uint8_t& state = State(slot);
    HOTROW_CHECK(PinsOf(state) != 0 && !IsFilling(state));
    state |= kDiffersBit;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CpuRowCache::MarkDirtyRows(const ExecContext&) {
  int64_t marked = 0;
  for (Bucket& bucket : buckets_) {
    HOTROW_CHECK(HostWarp::MatchByte(bucket.state, kMarked, kKindMask) == 0);
    marked += HostWarp::CountLanes(HostWarp::MatchByte(bucket.state, kDirty, kKindMask));
    ForWords(bucket.state, ToMarked);
  }
  return marked;
}

absl::StatusOr<int64_t> CpuRowCache::TakeMarks(const ExecContext&, std::span<const int64_t> slots,
                                               std::span<RowKey> keys, std::byte* rows,
                                               int64_t* taken) {
  *taken = 0;
  size_t looked = 0;
  for (; looked < slots.size() && *taken < std::ssize(keys); ++looked) {
    const int64_t slot = slots[looked];
    uint8_t& state = State(slot);
    if (KindOf(state) != kMarked) continue;
    state |= kUnmarkedBit;
    keys[static_cast<size_t>(*taken)] = buckets_[slot / kWays].record[slot % kWays].key();
    std::memcpy(rows + *taken * row_bytes(), row(slot), static_cast<size_t>(row_bytes()));
    ++*taken;
  }
  return static_cast<int64_t>(looked);
}

absl::StatusOr<int64_t> CpuRowCache::TakeMarked(const ExecContext&, int64_t* cursor,
                                                std::span<RowKey> keys, std::span<int64_t> slots,
                                                std::byte* rows) {
  HOTROW_CHECK(slots.size() == keys.size() && *cursor >= 0);
  const int64_t end = std::min(num_slots_, *cursor + kMarkedScanSlots);
  int64_t taken = 0;
  int64_t slot = *cursor;
  while (slot < end && taken < std::ssize(keys)) {
    Bucket& bucket = buckets_[slot / kWays];
    const uint32_t lanes =
        HostWarp::MatchByte(bucket.state, kMarked, kKindMask) & (~uint32_t{0} << (slot % kWays));
    if (lanes == 0) {
      slot = (slot / kWays + 1) * kWays;
      continue;
    }
    const int way = HostWarp::FirstLane(lanes);
    slot = slot / kWays * kWays + way;
    const int pins = PinsOf(bucket.state[way]);
    HOTROW_CHECK(pins < kMaxPins);
    bucket.state[way] = static_cast<uint8_t>(kClean | (pins + 1));
    keys[static_cast<size_t>(taken)] = bucket.record[way].key();
    slots[static_cast<size_t>(taken)] = slot;
    std::memcpy(rows + taken * options_.row_bytes, row(slot),
                static_cast<size_t>(options_.row_bytes));
    ++taken;
    ++slot;
  }
  *cursor = slot;
  return taken;
}

absl::Status CpuRowCache::DropMarks(const ExecContext&) {
  for (Bucket& bucket : buckets_) {
    ForWords(bucket.state, ToDirty);
  }
  return absl::OkStatus();
}

absl::Status CpuRowCache::EndStep(const ExecContext& ctx) {
  WithPolicy(options_.policy, [&]<typename Policy>(Policy) {
    ParallelFor(ctx.pool, geometry_.partitions, 1, [&](int64_t p, int64_t) {
      PartitionState& partition = partitions_[p];
      if (!AgeingDue<Policy>(partition)) return;
      partition.touched_since_ageing = 0;
      partition.placed_since_ageing = 0;
      const int64_t count = partition.buckets + partition.overflow_buckets;
      for (Bucket& bucket : buckets_.span().subspan(static_cast<size_t>(partition.first_bucket),
                                                    static_cast<size_t>(count))) {
        ForWords(bucket.score, Policy::AgeFour);
      }
    });
  });
  return absl::OkStatus();
}

absl::Status CpuRowCache::ForEachDirty(
    const ExecContext&, absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                                       std::span<const std::byte* const> rows)>
                            visit) {
  std::vector<RowKey> keys;
  std::vector<const std::byte*> rows;
  std::vector<int64_t> slots;
  const auto flush = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(visit(keys, rows));
    for (const int64_t slot : slots) {
      uint8_t& state = State(slot);
      state = static_cast<uint8_t>(state & ~kDiffersBit);
    }
    keys.clear();
    rows.clear();
    slots.clear();
    return absl::OkStatus();
  };
  for (int64_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    for (int64_t way = 0; way < kWays; ++way) {
      if (KindOf(bucket.state[way]) != kDirty) continue;
      keys.push_back(bucket.record[way].key());
      rows.push_back(row(b * kWays + way));
      slots.push_back(b * kWays + way);
      if (std::ssize(slots) == kDirtyBatchRows) HOTROW_RETURN_IF_ERROR(flush());
    }
  }
  return slots.empty() ? absl::OkStatus() : flush();
}

RowCacheStats CpuRowCache::Size() const { return SizeOf(geometry_, row_bytes(), Device::kCpu); }

absl::StatusOr<RowCacheStats> CpuRowCache::Stats(const ExecContext&) const {
  RowCacheStats stats = Size();
  for (const PartitionState& partition : partitions_) AddCounts(partition, &stats);
  return stats;
}

absl::Status CpuRowCache::EnqueueStats(const ExecContext& ctx) {
  HOTROW_ASSIGN_OR_RETURN(const RowCacheStats stats, Stats(ctx));
  const std::lock_guard<std::mutex> lock(last_stats_mutex_);
  last_stats_ = stats;
  return absl::OkStatus();
}

RowCacheStats CpuRowCache::LastStats() const {
  const std::lock_guard<std::mutex> lock(last_stats_mutex_);
  return last_stats_.value_or(Size());
}

}  // namespace hotrow::cache
