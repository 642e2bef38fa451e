#ifndef HOTROW_TESTS_EMBEDDING_STORE_KINDS_H_
#define HOTROW_TESTS_EMBEDDING_STORE_KINDS_H_

// Suites that run over every kind of store, and under several tiers.

#include <cstdint>
#include <string>
#include <vector>

#include "embedding/embedding_collection.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow::test {

// The kinds of stores in this build.
inline std::vector<StoreKind> StoreKinds() {
  return {
      StoreKind::kMemory,
      StoreKind::kSsd,
#ifdef HOTROW_HAVE_ROCKSDB
      StoreKind::kRocksDb,
#endif
  };
}
inline std::string NameOfStoreKind(const testing::TestParamInfo<StoreKind>& info) {
  return std::string(StoreKindName(info.param));
}

// The tiers above the store.
enum class Above { kNothing, kSmallCache, kLargeCache, kDevice, kDeviceAndHost, kDeviceIndexed };

inline void PutAbove(Above above, EmbeddingCollectionOptions* options) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(*options));
  if (above == Above::kSmallCache) options->cache.bytes = least;
  if (above == Above::kLargeCache) options->cache.bytes = 4 * least;
  if (above < Above::kDevice) return;
  options->cache.device_bytes = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(options->cache.device_bytes,
                              EmbeddingCollection::MinCacheBytes(*options));
  if (above == Above::kDeviceAndHost) options->cache.bytes = int64_t{1} << 20;
  // Room for all rows of one width and some of the other.
  if (above == Above::kDeviceIndexed) options->cache.device_index_bytes = 24 << 10;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_EMBEDDING_STORE_KINDS_H_
