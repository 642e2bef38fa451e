#include "cache/row_cache.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/host_pages.h"
#include "base/status_macros.h"
#include "cache/row_cache_cuda_impl.h"
#include "cache/row_cache_impl.h"

namespace hotrow {
namespace {

using cache::Bucket;
using cache::Geometry;
using cache::PartitionState;

constexpr int64_t kWays = Bucket::kWays;

// Limits that keep sums of bytes far from 2^63. No machine comes near them.
constexpr int64_t kRowBytesMultiple = 16;
constexpr int64_t kRowBytesMax = int64_t{1} << 30;
constexpr int64_t kBudgetBytesMax = int64_t{1} << 50;

int64_t ReservedBytes(int64_t bytes) { return HostBytesReserved(bytes, HugePages::kTry); }

int64_t BucketBytes(int64_t row_bytes) {
  return static_cast<int64_t>(sizeof(Bucket)) + kWays * row_bytes;
}

}  // namespace

namespace cache {

int64_t Geometry::Bytes(int64_t row_bytes, Device device) const {
  if (device == Device::kCuda) return CudaLayout(*this, row_bytes).bytes;
  const int64_t total = TotalBuckets();
  return ReservedBytes(total * static_cast<int64_t>(sizeof(Bucket))) +
         ReservedBytes(total * kWays * row_bytes) +
         ReservedBytes(partitions * static_cast<int64_t>(sizeof(PartitionState)));
}

Geometry Geometry::ForBudget(int64_t budget_bytes, int64_t row_bytes, Device device) {
  int64_t fits = 0;
  int64_t too_many = budget_bytes / BucketBytes(row_bytes) + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (ForBuckets(middle).Bytes(row_bytes, device) <= budget_bytes ? fits : too_many) = middle;
  }
  return ForBuckets(fits);
}

PartitionState EmptyPartition(const Geometry& geometry, int64_t p, int64_t first_bucket) {
  const int64_t buckets = geometry.PartitionBuckets(p);
  PartitionState partition;
  partition.first_bucket = first_bucket;
  partition.buckets = static_cast<int32_t>(buckets);
  partition.overflow_buckets = static_cast<int32_t>(Geometry::OverflowBuckets(buckets));
  return partition;
}

RowCacheStats SizeOf(const Geometry& geometry, int64_t row_bytes, Device device) {
  RowCacheStats size;
  size.ways = geometry.buckets * kWays;
  size.overflow_ways = geometry.TotalOverflowBuckets() * kWays;
  size.used_bytes = geometry.Bytes(row_bytes, device);
  size.host_bytes = device == Device::kCuda ? CudaStaging(row_bytes).bytes : 0;
  return size;
}

#if !HOTROW_HAVE_CUDA
absl::StatusOr<std::unique_ptr<RowCache>> CreateCudaRowCache(const RowCacheOptions&) {
  return absl::FailedPreconditionError(
      "no usable GPU: this build has no CUDA; configure with -DHOTROW_CUDA=ON");
}
#endif

}  // namespace cache

absl::Status RowCacheOptions::Validate() const {
  if (row_bytes <= 0 || row_bytes > kRowBytesMax || row_bytes % kRowBytesMultiple != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("RowCacheOptions.row_bytes must be a multiple of ", kRowBytesMultiple, " in [",
                     kRowBytesMultiple, ", ", kRowBytesMax, "], got ", row_bytes));
  }
  const int64_t least = Geometry::ForBuckets(1).Bytes(row_bytes, device);
  if (budget_bytes < least || budget_bytes > kBudgetBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("RowCacheOptions.budget_bytes must lie in [", least, ", ", kBudgetBytesMax,
                     "] with row_bytes = ", row_bytes, ", got ", budget_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowCache>> RowCache::Create(const RowCacheOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  return options.device == Device::kCpu ? cache::CreateCpuRowCache(options)
                                        : cache::CreateCudaRowCache(options);
}

int64_t RowCache::BudgetForRows(int64_t rows, int64_t row_bytes, Device device) {
  const int64_t ways = CeilDiv(rows * 9, 8);
  return Geometry::ForBuckets(std::max<int64_t>(1, CeilDiv(ways, kWays))).Bytes(row_bytes, device);
}

RowCacheStats RowCache::SizeForBudget(int64_t budget_bytes, int64_t row_bytes, Device device) {
  RowCacheStats size;
  if (budget_bytes < Geometry::ForBuckets(1).Bytes(row_bytes, device)) return size;
  return cache::SizeOf(Geometry::ForBudget(budget_bytes, row_bytes, device), row_bytes, device);
}

}  // namespace hotrow
