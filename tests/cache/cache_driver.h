#ifndef HOTROW_TESTS_CACHE_CACHE_DRIVER_H_
#define HOTROW_TESTS_CACHE_CACHE_DRIVER_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "cache/cache_policies.h"
#include "cache/cache_policy.h"
#include "cache/row_cache.h"
#include "cache/row_cache_cpu_impl.h"
#include "cache/row_cache_cuda_impl.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {

// Sees the metadata of a cache on the CPU.
struct RowCacheTestPeer {
  static const cache::CpuRowCache& Cpu(const RowCache& cache) {
    HOTROW_CHECK(cache.device() == Device::kCpu);
    return static_cast<const cache::CpuRowCache&>(cache);
  }
  static const cache::Geometry& Geometry(const RowCache& cache) { return Cpu(cache).geometry_; }
  static std::span<const cache::Bucket> Buckets(const RowCache& cache) {
    return std::as_const(Cpu(cache).buckets_).span();
  }
  static std::span<const cache::PartitionState> Partitions(const RowCache& cache) {
    return std::as_const(Cpu(cache).partitions_).span();
  }
  static std::span<const std::byte> Slab(const RowCache& cache) {
    return std::as_const(Cpu(cache).slab_).span();
  }
};

namespace test {

struct RowKeyHash {
  size_t operator()(const RowKey& key) const { return HashRowKey(key).lo; }
};

inline std::vector<RowKey> KeyRange(uint64_t begin, uint64_t end, uint32_t table = 0) {
  std::vector<RowKey> keys;
  for (uint64_t key = begin; key < end; ++key) keys.push_back({key, table});
  return keys;
}

inline std::vector<CachePolicy> AllPolicies() {
  std::vector<CachePolicy> policies;
  for (const CachePolicyFacts& facts : CachePolicies()) policies.push_back(facts.policy);
  return policies;
}
// The name of a test that is run with each of them.
inline std::string NameOfPolicyParam(const testing::TestParamInfo<CachePolicy>& info) {
  return std::string(CachePolicyName(info.param));
}

// A cache with so many buckets (overflow not counted): exactly, if a row has 128 bytes or more. The
// rows of a bucket then fill a page, so that rounding the budget to pages leaves no room for one
// more.
inline std::unique_ptr<RowCache> CacheOfBuckets(int64_t buckets, CachePolicy policy,
                                                int64_t row_bytes = 128,
                                                Device device = Device::kCpu) {
  const int64_t budget = cache::Geometry::ForBuckets(buckets).Bytes(row_bytes, device);
  auto cache = RowCache::Create(
      {.row_bytes = row_bytes, .budget_bytes = budget, .policy = policy, .device = device});
  HOTROW_CHECK(cache.ok());
  HOTROW_CHECK(row_bytes < 128 || (*cache)->Size().ways == buckets * cache::Bucket::kWays);
  return *std::move(cache);
}

// What one FindOrInsert answered.
struct InsertAnswer {
  std::vector<int64_t> SlotsWith(Placement wanted) const {
    std::vector<int64_t> chosen;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (placement[i] == wanted) chosen.push_back(slots[i]);
    }
    return chosen;
  }
  int64_t Count(Placement wanted) const {
    return std::count(placement.begin(), placement.end(), wanted);
  }
  std::vector<RowKey> keys;
  std::vector<int64_t> slots;
  std::vector<Placement> placement;
  std::vector<uint8_t> evicted;
  std::vector<RowKey> evicted_keys;
  std::vector<std::byte> evicted_rows;
};

// Makes the calls of a cache on any device with vectors of the host: they are carried through
// memory that the device reaches, and each call waits. A call that fails fails the test.
class CacheDriver {
 public:
  explicit CacheDriver(std::unique_ptr<RowCache> cache, ThreadPool* pool = nullptr)
      : cache_(std::move(cache)) {
    auto stream = DeviceStream::Create(cache_->device());
    HOTROW_CHECK(stream.ok());
    stream_ = *std::move(stream);
    ctx_ = stream_.On({.pool = pool});
  }

  RowCache& cache() { return *cache_; }
  const RowCache& cache() const { return *cache_; }
  const ExecContext& ctx() const { return ctx_; }
  int64_t row_bytes() const { return cache_->row_bytes(); }

  InsertAnswer FindOrInsert(std::span<const RowKey> keys) {
    const size_t n = keys.size();
    const RowCache::InsertResult result = {.slots = Room(slots_, n),
                                           .placement = Room(placement_, n),
                                           .evicted = Room(flags_, n),
                                           .evicted_keys = Room(out_keys_, n),
                                           .evicted_rows = Room(rows_, n * RowSize()).data()};
    std::fill(result.slots.begin(), result.slots.end(), -7);
    std::fill(result.evicted.begin(), result.evicted.end(), 77);
    // Every other time in two halves.
    const std::span<const RowKey> carried = Carry(keys_, keys);
    halves_ = !halves_;
    if (halves_) {
      RowCache::InsertResult hits = result;
      hits.evicted_keys = {};
      hits.evicted_rows = nullptr;
      Done(cache_->PinHits(ctx_, carried, hits));
      for (size_t i = 0; i < n; ++i) {
        HOTROW_CHECK(result.slots[i] >= -1);
        HOTROW_CHECK(result.evicted[i] == (result.slots[i] < 0 ? 77 : 0));
      }
      Done(cache_->PlaceMisses(ctx_, carried, result));
    } else {
      Done(cache_->FindOrInsert(ctx_, carried, result));
    }
    return {.keys = {keys.begin(), keys.end()},
            .slots = {result.slots.begin(), result.slots.end()},
            .placement = {result.placement.begin(), result.placement.end()},
            .evicted = {result.evicted.begin(), result.evicted.end()},
            .evicted_keys = {result.evicted_keys.begin(), result.evicted_keys.end()},
            .evicted_rows = {result.evicted_rows, result.evicted_rows + n * RowSize()}};
  }
  void MarkFilled(std::span<const int64_t> slots) {
    Done(cache_->MarkFilled(ctx_, Carry(slots_, slots)));
  }
  void Abandon(std::span<const int64_t> slots) {
    Done(cache_->Abandon(ctx_, Carry(slots_, slots)));
  }
  void Unpin(std::span<const int64_t> slots, bool dirty) {
    Done(cache_->Unpin(ctx_, Carry(slots_, slots), dirty));
  }
  void MarkDirty(std::span<const int64_t> slots) {
    Done(cache_->MarkDirty(ctx_, Carry(slots_, slots)));
  }
  void EndStep() { Done(cache_->EndStep(ctx_)); }
  void DropMarks() { Done(cache_->DropMarks(ctx_)); }

  std::vector<std::byte*> Find(std::span<const RowKey> keys) {
    const auto rows = Room(addresses_, keys.size());
    std::fill(rows.begin(), rows.end(), reinterpret_cast<std::byte*>(8));
    Done(cache_->Find(ctx_, Carry(keys_, keys), rows));
    return {rows.begin(), rows.end()};
  }
  // `out` begins as bytes of 0xee.
  struct FoundRows {
    std::vector<uint8_t> found;
    std::vector<std::byte> out;
  };
  FoundRows FindRows(std::span<const RowKey> keys, int64_t out_stride) {
    const auto found = Room(flags_, keys.size());
    const auto out = Room(rows_, keys.size() * static_cast<size_t>(out_stride));
    std::fill(found.begin(), found.end(), 77);
    std::fill(out.begin(), out.end(), std::byte{0xee});
    Done(cache_->FindRows(ctx_, Carry(keys_, keys), out.data(), out_stride, found));
    return {{found.begin(), found.end()}, {out.begin(), out.end()}};
  }
  bool Resident(RowKey key) { return Find({&key, 1})[0] != nullptr; }

  int64_t MarkDirtyRows() { return Number(cache_->MarkDirtyRows(ctx_)); }
  struct Taken {
    int64_t looked = 0;  // TakeMarks
    std::vector<RowKey> keys;
    std::vector<int64_t> slots;  // TakeMarked
    std::vector<std::byte> rows;
  };
  Taken TakeMarks(std::span<const int64_t> slots, size_t most) {
    const auto keys = Room(out_keys_, most);
    const auto rows = Room(rows_, most * RowSize());
    int64_t n = 0;
    Taken taken;
    taken.looked = Number(cache_->TakeMarks(ctx_, Carry(slots_, slots), keys, rows.data(), &n));
    taken.keys.assign(keys.begin(), keys.begin() + n);
    taken.rows.assign(rows.begin(), rows.begin() + n * row_bytes());
    return taken;
  }
  Taken TakeMarked(int64_t* cursor, size_t most) {
    const auto keys = Room(out_keys_, most);
    const auto slots = Room(slots_, most);
    const auto rows = Room(rows_, most * RowSize());
    const int64_t n = Number(cache_->TakeMarked(ctx_, cursor, keys, slots, rows.data()));
    Taken taken;
    taken.keys.assign(keys.begin(), keys.begin() + n);
    taken.slots.assign(slots.begin(), slots.begin() + n);
    taken.rows.assign(rows.begin(), rows.begin() + n * row_bytes());
    return taken;
  }
  absl::Status ForEachDirty(absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                                           std::span<const std::byte* const> rows)>
                                visit) {
    return cache_->ForEachDirty(ctx_, visit);
  }
  RowCacheStats Stats() {
    const auto stats = cache_->Stats(ctx_);
    HOTROW_EXPECT_OK(stats);
    return stats.ok() ? *stats : RowCacheStats();
  }

  std::vector<std::byte> ReadRow(int64_t slot) { return Read(cache_->row(slot)); }
  // A row at an address that Find gave.
  std::vector<std::byte> Read(const std::byte* row) {
    std::vector<std::byte> bytes(RowSize());
    Done(stream_.Copy(bytes.data(), row, row_bytes()));
    return bytes;
  }
  void WriteRow(int64_t slot, std::span<const std::byte> bytes) {
    Done(stream_.Copy(cache_->row(slot), bytes.data(), static_cast<int64_t>(bytes.size())));
  }

  std::vector<cache::Bucket> Buckets() {
    if (cache_->device() == Device::kCpu) {
      const auto buckets = RowCacheTestPeer::Buckets(*cache_);
      return {buckets.begin(), buckets.end()};
    }
    std::vector<cache::Bucket> buckets(
        static_cast<size_t>(cache_->num_slots() / cache::Bucket::kWays));
    Done(stream_.Copy(buckets.data(), Base() + Layout().buckets,
                      static_cast<int64_t>(buckets.size() * sizeof(cache::Bucket))));
    return buckets;
  }
  std::vector<cache::PartitionState> Partitions() {
    if (cache_->device() == Device::kCpu) {
      const auto partitions = RowCacheTestPeer::Partitions(*cache_);
      return {partitions.begin(), partitions.end()};
    }
    std::vector<cache::PartitionState> partitions(static_cast<size_t>(Geometry().partitions));
    Done(stream_.Copy(partitions.data(), Base() + Layout().partitions,
                      static_cast<int64_t>(partitions.size() * sizeof(cache::PartitionState))));
    return partitions;
  }
  cache::CudaCounters Counters() {
    cache::CudaCounters counters;
    Done(stream_.Copy(&counters, Base() + Layout().counters, sizeof(counters)));
    return counters;
  }

 private:
  size_t RowSize() const { return static_cast<size_t>(row_bytes()); }
  cache::Geometry Geometry() const {
    return cache::Geometry::ForBuckets(cache_->Size().ways / cache::Bucket::kWays);
  }
  cache::CudaLayout Layout() const { return cache::CudaLayout(Geometry(), row_bytes()); }
  std::byte* Base() const { return cache_->row(0) - Layout().rows; }

  template <typename T>
  std::span<T> Room(SharedBuffer<T>& buffer, size_t n) {
    const auto wanted = static_cast<int64_t>(n);
    if (buffer.size() < wanted) {
      HOTROW_CHECK(buffer.Reserve(std::max(wanted, 2 * buffer.size()), {cache_->device()}).ok());
    }
    return buffer.first(wanted);
  }
  template <typename T>
  std::span<const T> Carry(SharedBuffer<T>& buffer, std::span<const T> values) {
    const std::span<T> room = Room(buffer, values.size());
    std::copy(values.begin(), values.end(), room.begin());
    return room;
  }
  void Done(const absl::Status& status) {
    HOTROW_EXPECT_OK(status);
    HOTROW_EXPECT_OK(stream_.Wait());
  }
  int64_t Number(const absl::StatusOr<int64_t>& number) {
    Done(number.status());
    return number.value_or(0);
  }

  std::unique_ptr<RowCache> cache_;
  DeviceStream stream_;
  ExecContext ctx_;
  bool halves_ = false;  // whether the last FindOrInsert was one of two halves
  SharedBuffer<RowKey> keys_;
  SharedBuffer<RowKey> out_keys_;
  SharedBuffer<int64_t> slots_;
  SharedBuffer<Placement> placement_;
  SharedBuffer<uint8_t> flags_;
  SharedBuffer<std::byte*> addresses_;
  SharedBuffer<std::byte> rows_;
};

}  // namespace test
}  // namespace hotrow

#endif  // HOTROW_TESTS_CACHE_CACHE_DRIVER_H_
