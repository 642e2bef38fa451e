#ifndef HOTROW_STORE_ROCKS_ROCKS_OPTIONS_IMPL_H_
#define HOTROW_STORE_ROCKS_ROCKS_OPTIONS_IMPL_H_

#include <cstdint>

#include "store/rocks/rocks_store.h"

// What follows from the options of a RocksStore alone.
namespace hotrow::internal {

// What a row takes in a memtable besides its bytes: key, sequence, lengths, node of the list.
inline constexpr int64_t kRocksRowOverhead = 48;
// RocksDB's default unit of reading; with O_DIRECT on 512-byte or 4096-byte blocks one read is one
// page.
inline constexpr int64_t kRocksBlockBytes = 4096;
// Blocks that MultiGet looks up at a time; RocksDB itself goes by 32.
inline constexpr int64_t kRocksFindChunkMax = 64;
// The cache of indexes, while a database is only looked at.
inline constexpr int64_t kRocksLookCacheBytes = int64_t{1} << 20;

// How the memory budget is divided.
struct RocksSizes {
  explicit RocksSizes(const RocksStoreOptions& options);

  int64_t uncounted = 0;      // left for what RocksDB does not count
  int64_t cache = 0;          // the rest, memtables included
  int64_t memtables = 0;      // all of them
  int64_t memtable = 0;       // one
  int64_t row_bytes_max = 0;  // of any table
  int64_t find_chunk = 0;     // keys that one MultiGet looks up
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_ROCKS_ROCKS_OPTIONS_IMPL_H_
