#ifndef HOTROW_CACHE_ADDRESS_INDEX_IMPL_H_
#define HOTROW_CACHE_ADDRESS_INDEX_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/macros.h"
#include "base/row_key.h"
#include "cache/address_index.h"

// What an AddressIndex is on both devices.
namespace hotrow::cache {

// Two cache lines of a CPU; on a GPU one, since its memory begins at a multiple of 256 bytes.
struct alignas(64) AddressBucket {
  static constexpr int kWays = 6;

  uint64_t word[kWays];  // see below
  uint64_t key[kWays];
  uint32_t table[kWays];
  uint32_t overflowed;  // keys whose first bucket this is and that lie in their second one
  uint32_t unused;
};
static_assert(sizeof(AddressBucket) == 128);

// The word of a way: empty, taken by a thread that has not written the rest of it yet, or 16 bits
// of the hash over an address of 48 bits, of which the lowest is above kTakenWord.
inline constexpr uint64_t kEmptyWord = 0;
inline constexpr uint64_t kTakenWord = 1;
inline constexpr int kAddressBits = 48;
inline constexpr uint64_t kAddressMask = (uint64_t{1} << kAddressBits) - 1;

// Whether a word can hold it.
HOTROW_HOST_DEVICE inline bool FitsWord(const std::byte* row) {
  const auto address = reinterpret_cast<uintptr_t>(row);
  return address > kTakenWord && address <= kAddressMask;
}
HOTROW_HOST_DEVICE inline uint64_t WordOf(uint64_t tag, const std::byte* row) {
  return tag << kAddressBits | reinterpret_cast<uintptr_t>(row);
}
HOTROW_HOST_DEVICE inline std::byte* AddressOf(uint64_t word) {
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(word & kAddressMask));
}
// Whether a way with this word may be that of a key with this tag.
HOTROW_HOST_DEVICE inline bool MayBe(uint64_t word, uint64_t tag) {
  return word > kTakenWord && word >> kAddressBits == tag;
}

// Where a key may lie. With a single bucket both are that bucket.
struct AddressHome {
  int64_t bucket1;
  int64_t bucket2;
  uint64_t tag;  // 16 bits
};
HOTROW_HOST_DEVICE inline AddressHome AddressHomeOf(const RowKey& key, int64_t buckets) {
  const RowHash hash = HashRowKey(key);
  const auto n = static_cast<uint64_t>(buckets);
  return {hash.bucket1(n), hash.bucket2(n), (hash.hi >> 56) << 8 | (hash.hi & 0xff)};
}

struct AddressCounters {
  int64_t entries = 0;
  int64_t no_room = 0;
};
// Bytes beside the buckets.
inline constexpr int64_t kAddressHeadBytes = 256;

// The most buckets that a budget holds, and what these take of it.
int64_t AddressBucketsFor(int64_t budget_bytes, Device device);
int64_t AddressIndexBytes(int64_t buckets, Device device);

absl::StatusOr<std::unique_ptr<AddressIndex>> CreateCpuAddressIndex(int64_t buckets);
absl::StatusOr<std::unique_ptr<AddressIndex>> CreateCudaAddressIndex(int64_t buckets);

}  // namespace hotrow::cache

#endif  // HOTROW_CACHE_ADDRESS_INDEX_IMPL_H_
