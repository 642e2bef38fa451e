#ifndef HOTROW_BASE_HASH_H_
#define HOTROW_BASE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/hash128.h"
#include "base/macros.h"
#include "base/math.h"
#include "base/row_key.h"

namespace hotrow {

// The finaliser of MurmurHash3 (Appleby): a bijection of 64 bits in which every input bit flips
// every output bit with probability close to one half.
HOTROW_HOST_DEVICE constexpr uint64_t Mix64(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x;
}

// The hash of a {table, key}: 128 bits, cut into fields that share no bit, so that the choice of
// one says nothing about the others (were shard and bucket cut from the same bits, a rank would use
// 1/N of its buckets). The layout is part of the checkpoint format, since the shard of a key is
// fixed for life.
//
//   hi: [63:56] tag   [55:44] virtual shard   [43:12] partition   [7:0] more of the cache's tags
//   lo: [63:32] first bucket   [31:0] second bucket
struct RowHash {
  uint64_t hi = 0;
  uint64_t lo = 0;

  static constexpr int kNumShards = 4096;  // virtual shards of a table

  HOTROW_HOST_DEVICE constexpr uint32_t shard() const { return (hi >> 44) & 0xfff; }
  // The partition, in [0, n). A table with one partition always gives 0.
  HOTROW_HOST_DEVICE constexpr uint32_t partition(uint64_t n) const {
    return FastRange32(static_cast<uint32_t>(hi >> 12), n);
  }
  // The buckets, in [0, n); the two differ whenever n > 1.
  HOTROW_HOST_DEVICE constexpr uint32_t bucket1(uint64_t n) const {
    return FastRange32(static_cast<uint32_t>(lo >> 32), n);
  }
  HOTROW_HOST_DEVICE constexpr uint32_t bucket2(uint64_t n) const {
    if (n < 2) return 0;
    const uint64_t step = 1 + FastRange32(static_cast<uint32_t>(lo), n - 1);  // in [1, n)
    const uint64_t b = bucket1(n) + step;
    return static_cast<uint32_t>(b >= n ? b - n : b);
  }
  // The tag, in [1, 255]: 0 marks an empty way.
  HOTROW_HOST_DEVICE constexpr uint8_t tag() const {
    const auto t = static_cast<uint8_t>(hi >> 56);
    return t == 0 ? 1 : t;
  }
};

HOTROW_HOST_DEVICE constexpr RowHash HashRowKey(uint64_t key, uint32_t table) {
  // 2^64 / golden ratio spreads neighbouring table numbers; the second constant tells the halves
  // apart.
  const uint64_t seed = (static_cast<uint64_t>(table) + 1) * 0x9e3779b97f4a7c15ULL;
  const uint64_t x = Mix64(key ^ seed);
  return {Mix64(x + seed), Mix64(x ^ 0xd6e8feb86659fd93ULL)};
}
HOTROW_HOST_DEVICE constexpr RowHash HashRowKey(const RowKey& k) {
  return HashRowKey(k.key, k.table);
}

// Keyed hash of a byte string, 128 bits: what `tables_hash` sums over {table, key, weights and
// state}. Not cryptographic. The same bytes give the same hash on every little-endian machine.
Hash128 HashBytes(uint64_t key0, uint64_t key1, std::span<const std::byte> bytes);

}  // namespace hotrow

#endif  // HOTROW_BASE_HASH_H_
