#include "cache/address_index.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/host_pages.h"
#include "base/status_macros.h"
#include "cache/address_index_impl.h"

namespace hotrow {
namespace {

// No machine comes near it. Bucket numbers have 32 bits.
constexpr int64_t kBudgetBytesMax = int64_t{1} << 38;

}  // namespace

namespace cache {

int64_t AddressIndexBytes(int64_t buckets, Device device) {
  const int64_t bytes = buckets * static_cast<int64_t>(sizeof(AddressBucket));
  return device == Device::kCpu ? HostBytesReserved(bytes, HugePages::kTry) + kAddressHeadBytes
                                : bytes + kAddressHeadBytes;
}

int64_t AddressBucketsFor(int64_t budget_bytes, Device device) {
  constexpr auto kBucketBytes = static_cast<int64_t>(sizeof(AddressBucket));
  int64_t buckets = std::max<int64_t>(0, (budget_bytes - kAddressHeadBytes) / kBucketBytes);
  // Pages may take more.
  while (buckets > 0 && AddressIndexBytes(buckets, device) > budget_bytes) {
    const int64_t excess = AddressIndexBytes(buckets, device) - budget_bytes;
    buckets = std::max<int64_t>(0, buckets - std::max<int64_t>(1, excess / kBucketBytes));
  }
  return buckets;
}

#if !HOTROW_HAVE_CUDA
absl::StatusOr<std::unique_ptr<AddressIndex>> CreateCudaAddressIndex(int64_t) {
  return absl::FailedPreconditionError(
      "no usable GPU: this build has no CUDA; configure with -DHOTROW_CUDA=ON");
}
#endif

}  // namespace cache

absl::Status AddressIndexOptions::Validate() const {
  const int64_t least = cache::AddressIndexBytes(1, device);
  if (budget_bytes < least || budget_bytes > kBudgetBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("AddressIndexOptions.budget_bytes must lie in [",
                                                   least, ", ", kBudgetBytesMax, "], got ",
                                                   budget_bytes));
  }
  return absl::OkStatus();
}

int64_t AddressIndex::MinBudgetBytes(Device device) { return cache::AddressIndexBytes(1, device); }

absl::StatusOr<std::unique_ptr<AddressIndex>> AddressIndex::Create(
    const AddressIndexOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  const int64_t buckets = cache::AddressBucketsFor(options.budget_bytes, options.device);
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<AddressIndex> index,
                          options.device == Device::kCpu ? cache::CreateCpuAddressIndex(buckets)
                                                         : cache::CreateCudaAddressIndex(buckets));
  index->used_bytes_ = cache::AddressIndexBytes(buckets, options.device);
  return index;
}

}  // namespace hotrow
