// The cache on the device: find, find in place, insert and evict, and how full it gets.

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device_memory.h"
#include "base/status_macros.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_bench_kernels.h"
#include "cache/row_cache.h"

namespace hotrow::bench {
namespace {

constexpr int64_t kBytesOfFloat = 4;
// Batches take turns, so that the rows of one have left the L2 when it comes again.
constexpr int64_t kBatchSets = 8;

template <typename T>
std::span<T> First(DeviceBuffer<T>& buffer, int64_t n) {
  return {buffer.data(), static_cast<size_t>(n)};
}
template <typename T>
std::span<const T> ConstFirst(const DeviceBuffer<T>& buffer, int64_t n) {
  return {buffer.data(), static_cast<size_t>(n)};
}

// A cache of one width, filled to some load, with keys that are known to be in it.
class LoadedCache {
 public:
  static absl::StatusOr<std::unique_ptr<LoadedCache>> Create(GpuBench& bench, int dim) {
    std::unique_ptr<LoadedCache> loaded(new LoadedCache(bench, dim));
    HOTROW_RETURN_IF_ERROR(loaded->Allocate());
    return loaded;
  }

  // Inserts new keys until `load` of the ways is taken; for 1.0, twice as many keys as there are
  // ways. All rows are dirty. Then looks for keys that are resident, for the batches.
  absl::Status Fill(double load) {
    const int64_t wanted = load < 1 ? Share(ways(), load) : 2 * ways();
    while (inserted_ < wanted) {
      HOTROW_RETURN_IF_ERROR(InsertNew(std::min(batch(), wanted - inserted_), /*dirty=*/true));
    }
    return FindResidents();
  }
  // Inserts n <= batch() keys that were never there, and takes their pins off.
  absl::Status InsertNew(int64_t n, bool dirty);

  // Makes a batch of this hit rate from resident keys of set `set`, and keys that were never there
  // after all that were. Keys and result lie in the members below.
  absl::Status MakeKeysOfBatch(int64_t set, int64_t hits) {
    const int64_t offset = set % num_sets_ * batch_size_;
    return MakeBatch(bench_.stream(), pool_.data() + offset, batch_size_, hits,
                     absent_place_ + offset, keys_.data());
  }
  absl::Status Insert() {
    return cache_->FindOrInsert(bench_.Gpu(), ConstFirst(keys_, batch_size_), Result(batch_size_));
  }
  // Looks at what Insert did with the batch. With `keep` the new rows stay, dirty; otherwise their
  // places are emptied again.
  absl::Status AfterInsert(bool keep);

  RowCache& cache() { return *cache_; }
  int64_t ways() const { return cache_->Size().ways; }
  int64_t batch() const { return bench_.sizes().batch; }
  int64_t batch_size() const { return batch_size_; }  // of the batches of resident keys
  // Counts of the keys that Insert got, since the last ClearCounts.
  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }
  void ClearCounts() { hits_ = misses_ = 0; }

  DeviceBuffer<RowKey> keys_;
  DeviceBuffer<std::byte*> rows_;
  DeviceBuffer<std::byte> out_;  // [batch, row_bytes]: found rows, or evicted ones
  DeviceBuffer<uint8_t> found_;
  PinnedBuffer<int64_t> counts_;  // [2]

 private:
  LoadedCache(GpuBench& bench, int dim) : bench_(bench), row_bytes_(kBytesOfFloat * dim) {}
  absl::Status Allocate();
  absl::Status FindResidents();
  RowCache::InsertResult Result(int64_t n) {
    return {.slots = First(slots_, n),
            .placement = First(placement_, n),
            .evicted = First(evicted_, n),
            .evicted_keys = First(evicted_keys_, n),
            .evicted_rows = out_.data()};
  }

  GpuBench& bench_;
  int64_t row_bytes_;
  std::unique_ptr<RowCache> cache_;
  int64_t inserted_ = 0;      // keys of places [0, inserted_) were there at some time
  int64_t absent_place_ = 0;  // from here on none was
  int64_t batch_size_ = 0;
  int64_t num_sets_ = 0;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  DeviceBuffer<RowKey> pool_;  // [num_sets, batch_size] resident keys
  DeviceBuffer<int64_t> slots_;
  DeviceBuffer<Placement> placement_;
  DeviceBuffer<uint8_t> evicted_;
  DeviceBuffer<RowKey> evicted_keys_;
  DeviceBuffer<int64_t> hit_slots_;
  DeviceBuffer<int64_t> new_slots_;
};

absl::Status LoadedCache::Allocate() {
  const CudaStream stream = bench_.stream();
  HOTROW_ASSIGN_OR_RETURN(cache_, RowCache::Create({.row_bytes = row_bytes_,
                                                    .budget_bytes = bench_.sizes().cache_bytes,
                                                    .device = Device::kCuda}));
  HOTROW_RETURN_IF_ERROR(FillWords(stream, cache_->row(0), cache_->num_slots() * row_bytes_,
                                   static_cast<uint64_t>(bench_.flags().seed)));
  const int64_t n = batch();
  HOTROW_ASSIGN_OR_RETURN(keys_, DeviceBuffer<RowKey>::Create(n, stream));
  HOTROW_ASSIGN_OR_RETURN(rows_, DeviceBuffer<std::byte*>::Create(n, stream));
  HOTROW_ASSIGN_OR_RETURN(out_, DeviceBuffer<std::byte>::Create(n * row_bytes_, stream));
  HOTROW_ASSIGN_OR_RETURN(found_, DeviceBuffer<uint8_t>::Create(n, stream));
  HOTROW_ASSIGN_OR_RETURN(counts_, PinnedBuffer<int64_t>::Create(2));
  HOTROW_ASSIGN_OR_RETURN(pool_, DeviceBuffer<RowKey>::Create(kBatchSets * n, stream));
  HOTROW_ASSIGN_OR_RETURN(slots_, DeviceBuffer<int64_t>::Create(n, stream));
  HOTROW_ASSIGN_OR_RETURN(placement_, DeviceBuffer<Placement>::Create(n, stream));
  HOTROW_ASSIGN_OR_RETURN(evicted_, DeviceBuffer<uint8_t>::Create(n, stream));
  HOTROW_ASSIGN_OR_RETURN(evicted_keys_, DeviceBuffer<RowKey>::Create(n, stream));
  HOTROW_ASSIGN_OR_RETURN(hit_slots_, DeviceBuffer<int64_t>::Create(n, stream));
  HOTROW_ASSIGN_OR_RETURN(new_slots_, DeviceBuffer<int64_t>::Create(n, stream));
  return bench_.Wait();
}

absl::Status LoadedCache::InsertNew(int64_t n, bool dirty) {
  const ExecContext ctx = bench_.Gpu();
  HOTROW_RETURN_IF_ERROR(MakeKeys(bench_.stream(), inserted_, n, keys_.data()));
  HOTROW_RETURN_IF_ERROR(cache_->FindOrInsert(ctx, ConstFirst(keys_, n), Result(n)));
  // Nothing else is pinned, so every key has its place.
  HOTROW_RETURN_IF_ERROR(cache_->MarkFilled(ctx, ConstFirst(slots_, n)));
  HOTROW_RETURN_IF_ERROR(cache_->Unpin(ctx, ConstFirst(slots_, n), dirty));
  HOTROW_RETURN_IF_ERROR(cache_->EndStep(ctx));
  inserted_ += n;
  absent_place_ = inserted_;
  return absl::OkStatus();
}

absl::Status LoadedCache::FindResidents() {
  const ExecContext ctx = bench_.Gpu();
  // The newest keys, as many as there are ways, in a scattered order.
  const int64_t size = std::min(inserted_, ways());
  int64_t stride = std::max<int64_t>(1, Share(size, 0.6180339887));
  while (std::gcd(stride, size) != 1) ++stride;
  const int64_t capacity = std::min(kBatchSets * batch(), size);
  counts_[0] = 0;
  for (int64_t first = 0; first < size && counts_[0] < capacity; first += batch()) {
    const int64_t n = std::min(batch(), size - first);
    HOTROW_RETURN_IF_ERROR(
        MakeScatteredKeys(bench_.stream(), inserted_ - size, size, stride, first, n, keys_.data()));
    HOTROW_RETURN_IF_ERROR(cache_->Find(ctx, ConstFirst(keys_, n), First(rows_, n)));
    HOTROW_RETURN_IF_ERROR(SelectResident(bench_.stream(), keys_.data(), rows_.data(), n,
                                          pool_.data(), capacity, counts_.data()));
    HOTROW_RETURN_IF_ERROR(bench_.Wait());
  }
  const int64_t residents = std::min(counts_[0], capacity);
  batch_size_ = std::min(batch(), residents);
  if (batch_size_ == 0) return absl::InternalError("no key that was inserted is resident");
  num_sets_ = residents / batch_size_;
  return absl::OkStatus();
}

absl::Status LoadedCache::AfterInsert(bool keep) {
  const ExecContext ctx = bench_.Gpu();
  const int64_t n = batch_size_;
  counts_[0] = counts_[1] = 0;
  HOTROW_RETURN_IF_ERROR(SelectSlots(bench_.stream(), slots_.data(), placement_.data(), n,
                                     Placement::kHit, hit_slots_.data(), counts_.data()));
  HOTROW_RETURN_IF_ERROR(SelectSlots(bench_.stream(), slots_.data(), placement_.data(), n,
                                     Placement::kFilled, new_slots_.data(), counts_.data() + 1));
  HOTROW_RETURN_IF_ERROR(bench_.Wait());
  const int64_t hits = counts_[0];
  const int64_t misses = counts_[1];
  if (hits + misses != n) {
    return absl::InternalError(absl::StrCat(n - hits - misses, " of ", n,
                                            " keys found no room, though nothing is pinned"));
  }
  hits_ += hits;
  misses_ += misses;
  HOTROW_RETURN_IF_ERROR(cache_->Unpin(ctx, ConstFirst(hit_slots_, hits), /*dirty=*/false));
  if (!keep) return cache_->Abandon(ctx, ConstFirst(new_slots_, misses));
  HOTROW_RETURN_IF_ERROR(cache_->MarkFilled(ctx, ConstFirst(new_slots_, misses)));
  HOTROW_RETURN_IF_ERROR(cache_->Unpin(ctx, ConstFirst(new_slots_, misses), /*dirty=*/true));
  absent_place_ += kBatchSets * n;  // beyond those of any set
  return cache_->EndStep(ctx);
}

// Keys a second of which the sectors can be read.
double ProbeLimit(const GpuBench& bench) {
  return bench.limit(GatherLimit(kSectorDim)) / kSectorsPerFind;
}

nlohmann::ordered_json Describe(int dim, double load, double hit_rate, const RowCacheStats& stats) {
  return {{"dim", dim},
          {"load", load},
          {"hit_rate", hit_rate},
          {"ways", stats.ways},
          {"used_share", static_cast<double>(stats.used_ways) / static_cast<double>(stats.ways)}};
}

absl::Status FindAt(GpuBench& bench, LoadedCache& loaded, int dim, double load) {
  const ExecContext ctx = bench.Gpu();
  HOTROW_ASSIGN_OR_RETURN(const RowCacheStats stats, loaded.cache().Stats(ctx));
  const int64_t n = loaded.batch_size();
  const int64_t row_bytes = kBytesOfFloat * dim;
  for (const double hit_rate : bench.points().hits) {
    const int64_t hits = Share(n, hit_rate);
    const auto make = [&](int64_t r) { return loaded.MakeKeysOfBatch(r, hits); };
    HOTROW_ASSIGN_OR_RETURN(const Times copied, bench.Measure(
                                                    [&](int64_t) {
                                                      return loaded.cache().FindRows(
                                                          ctx, ConstFirst(loaded.keys_, n),
                                                          loaded.out_.data(), row_bytes,
                                                          First(loaded.found_, n));
                                                    },
                                                    make));
    HOTROW_ASSIGN_OR_RETURN(const Times in_place, bench.Measure(
                                                      [&](int64_t) {
                                                        return loaded.cache().Find(
                                                            ctx, ConstFirst(loaded.keys_, n),
                                                            First(loaded.rows_, n));
                                                      },
                                                      make));
    // Both once more, with the same keys.
    HOTROW_RETURN_IF_ERROR(loaded.cache().FindRows(
        ctx, ConstFirst(loaded.keys_, n), loaded.out_.data(), row_bytes, First(loaded.found_, n)));
    loaded.counts_[0] = loaded.counts_[1] = 0;
    HOTROW_RETURN_IF_ERROR(CountFound(bench.stream(), loaded.rows_.data(), loaded.found_.data(),
                                      loaded.out_.data(), row_bytes, n, loaded.counts_.data()));
    HOTROW_RETURN_IF_ERROR(bench.Wait());
    if (loaded.counts_[0] != hits || loaded.counts_[1] != 0) {
      return absl::DataLossError(absl::StrCat("found ", loaded.counts_[0], " of ", hits,
                                              " resident keys; ", loaded.counts_[1],
                                              " words of their rows are wrong"));
    }
    const std::string where = absl::StrFormat("dim %d load %.2f hits %.1f", dim, load, hit_rate);
    nlohmann::ordered_json more = Describe(dim, load, hit_rate, stats);
    const double rows = hits == 0 ? ProbeLimit(bench)
                                  : bench.limit(GatherLimit(dim)) * static_cast<double>(n) /
                                        static_cast<double>(hits);
    bench.Add({"find", absl::StrCat("find ", where), copied, static_cast<double>(n), "keys",
               hits == 0 ? "probe" : "gather", rows, more});
    bench.Add({"find", absl::StrCat("find in place ", where), in_place, static_cast<double>(n),
               "keys", "probe", ProbeLimit(bench), more});
  }
  return absl::OkStatus();
}

absl::Status InsertAt(GpuBench& bench, LoadedCache& loaded, int dim, double load) {
  const ExecContext ctx = bench.Gpu();
  const int64_t n = loaded.batch_size();
  const bool full = load >= 1;
  // Hits alone first: a full cache loses some of the batches' keys to what misses bring in.
  for (auto rate = bench.points().hits.rbegin(); rate != bench.points().hits.rend(); ++rate) {
    const double hit_rate = *rate;
    const int64_t hits = Share(n, hit_rate);
    HOTROW_ASSIGN_OR_RETURN(const RowCacheStats before, loaded.cache().Stats(ctx));
    loaded.ClearCounts();
    HOTROW_ASSIGN_OR_RETURN(const Times times,
                            bench.Measure([&](int64_t) { return loaded.Insert(); },
                                          [&](int64_t r) -> absl::Status {
                                            if (r > 0)
                                              HOTROW_RETURN_IF_ERROR(loaded.AfterInsert(full));
                                            return loaded.MakeKeysOfBatch(r, hits);
                                          }));
    HOTROW_RETURN_IF_ERROR(loaded.AfterInsert(full));
    HOTROW_ASSIGN_OR_RETURN(const RowCacheStats after, loaded.cache().Stats(ctx));
    const auto seen = static_cast<double>(loaded.hits() + loaded.misses());
    const double evicted_share =
        static_cast<double>(after.dirty_evictions - before.dirty_evictions) / seen;
    nlohmann::ordered_json more = Describe(dim, load, hit_rate, before);
    more["measured_hit_rate"] = static_cast<double>(loaded.hits()) / seen;
    more["evicted_dirty_share"] = evicted_share;
    // The slower of the two bounds.
    const double probe = ProbeLimit(bench);
    const double rows =
        evicted_share > 0 ? bench.limit(GatherLimit(dim)) / evicted_share : 2 * probe;
    bench.Add({"insert", absl::StrFormat("insert dim %d load %.2f hits %.1f", dim, load, hit_rate),
               times, static_cast<double>(n), "keys",
               rows < probe ? "gather of evicted rows" : "probe", std::min(rows, probe),
               std::move(more)});
  }
  return absl::OkStatus();
}

absl::Status ForEachLoad(GpuBench& bench,
                         absl::Status (*measure)(GpuBench&, LoadedCache&, int, double)) {
  for (const int dim : bench.points().dims) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedCache> loaded,
                            LoadedCache::Create(bench, dim));
    for (const double load : bench.points().loads) {
      HOTROW_RETURN_IF_ERROR(loaded->Fill(load));
      HOTROW_RETURN_IF_ERROR(measure(bench, *loaded, dim, load));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureFind(GpuBench& bench) { return ForEachLoad(bench, FindAt); }

absl::Status MeasureInsert(GpuBench& bench) { return ForEachLoad(bench, InsertAt); }

absl::Status MeasureLoad(GpuBench& bench) {
  constexpr int kDim = 32;
  const ExecContext ctx = bench.Gpu();
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedCache> loaded,
                          LoadedCache::Create(bench, kDim));
  // Steps of a thousandth of the ways, which is how exact the result is.
  const int64_t step = std::clamp<int64_t>(loaded->ways() / 1000, 1, loaded->batch());
  RowCacheStats last = loaded->cache().Size();
  int64_t inserted = 0;
  while (true) {
    HOTROW_RETURN_IF_ERROR(loaded->InsertNew(step, /*dirty=*/false));
    HOTROW_ASSIGN_OR_RETURN(const RowCacheStats now, loaded->cache().Stats(ctx));
    if (now.evictions > 0) break;
    inserted += step;
    if (inserted > 2 * now.ways) {
      return absl::InternalError(
          absl::StrCat(inserted, " keys went into ", now.ways, " ways, and none was evicted"));
    }
    last = now;
  }
  const double load = static_cast<double>(last.used_ways) / static_cast<double>(last.ways);
  bench.AddNote({{"part", "load"},
                 {"name", "load factor before the first forced eviction"},
                 {"load", load},
                 {"ways", last.ways},
                 {"step", static_cast<double>(step) / static_cast<double>(last.ways)}},
                absl::StrFormat("  load factor before the first forced eviction: %.3f of %d ways",
                                load, last.ways));
  return absl::OkStatus();
}

}  // namespace hotrow::bench
