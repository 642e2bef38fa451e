#ifndef HOTROW_STORE_HOST_HOST_INDEX_IMPL_H_
#define HOTROW_STORE_HOST_HOST_INDEX_IMPL_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/entropy.h"
#include "base/hash.h"
#include "store/host/host_memory_impl.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// The index of a HostStore: from the hash of a key to the ordinal of its row.
//
// A bucket is one cache line of 12 ways. A key has two buckets and goes to the first unless that is
// full; the first counts the keys that had to go to their second one. So a look-up reads one line,
// hit or miss, unless the first bucket has overflowed. When both buckets are full, an entry of
// theirs is moved to its own other bucket; that fills 0.95 of the ways before the index has to
// grow. Measured against 32-way buckets of 160 bytes, whose tags and ordinals lie in different
// lines, a look-up touches half as many lines.
namespace hotrow::internal {

// GCC takes a function that only prefetches for one without effect and may drop its calls (GCC 12
// did, from a lambda). The empty asm is an effect to it, and costs nothing.
inline void PrefetchRead(const void* address) {
  __builtin_prefetch(address, 0, 3);
  asm volatile("");
}
// Loads into the second-level cache: the first has too few miss buffers for rows of many lines
// (gathering 512-byte rows is a fifth faster so).
inline void PrefetchRow(const void* address) {
  __builtin_prefetch(address, 0, 2);
  asm volatile("");
}
inline void PrefetchWrite(const void* address) {
  __builtin_prefetch(address, 1, 3);
  asm volatile("");
}

struct alignas(64) IndexBucket {
  static constexpr int kWays = 12;
  uint8_t tag[kWays];   // 0 marks an empty way
  uint32_t overflowed;  // keys whose first bucket this is and that stand in their second one
  uint32_t ordinal[kWays];

  // Bit i is set when tag[i] == value.
  uint32_t Match(uint8_t value) const {
    constexpr uint32_t kAllWays = (1u << kWays) - 1;
#if defined(__SSE2__)
    // Reads 16 bytes, the 4 of `overflowed` among them, whose bits are masked away.
    const __m128i tags = _mm_load_si128(reinterpret_cast<const __m128i*>(this));
    const __m128i same = _mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(value)));
    return static_cast<uint32_t>(_mm_movemask_epi8(same)) & kAllWays;
#else
    uint32_t mask = 0;
    for (int i = 0; i < kWays; ++i) mask |= static_cast<uint32_t>(tag[i] == value) << i;
    return mask & kAllWays;
#endif
  }
  uint32_t free_ways() const { return Match(0); }
};
static_assert(sizeof(IndexBucket) == 64);

// Buckets are allocated in segments of one size, so that the segments of an index that was rebuilt
// larger serve the next rebuild, of any partition, and all lie on the arena's huge pages.
struct IndexSegment {
  static constexpr int kBuckets = 128;
  IndexBucket bucket[kBuckets];
};

// Threads: all methods may run concurrently.
class IndexSegmentPool {
 public:
  explicit IndexSegmentPool(HostArena& arena) : arena_(arena) {}

  // A segment of empty buckets. Errors: ResourceExhausted.
  absl::StatusOr<IndexSegment*> Take() {
    {
      std::lock_guard lock(mutex_);
      if (free_ != nullptr) {
        IndexSegment* const segment = free_;
        std::memcpy(&free_, segment, sizeof(free_));
        std::memset(static_cast<void*>(segment), 0, sizeof(*segment));
        return segment;
      }
    }
    HOTROW_ASSIGN_OR_RETURN(std::byte* const piece, arena_.Carve(sizeof(IndexSegment)));
    return reinterpret_cast<IndexSegment*>(piece);
  }

  void GiveBack(IndexSegment* segment) {
    std::lock_guard lock(mutex_);
    std::memcpy(static_cast<void*>(segment), &free_, sizeof(free_));  // the list runs through them
    free_ = segment;
  }

 private:
  HostArena& arena_;
  std::mutex mutex_;
  IndexSegment* free_ = nullptr;  // guarded by mutex_
};

// One partition of the index. Not thread safe.
//
// KeyAccess tells it about keys, which stand elsewhere: `RowHash Hash(uint32_t ordinal)` and `void
// Prefetch(uint32_t ordinal)`, called a little before it.
class IndexPartition {
 public:
  struct Entry {
    IndexBucket* bucket = nullptr;  // null: not found
    int way = 0;
    uint32_t ordinal() const { return bucket->ordinal[way]; }
  };

  // Points at `empty`, a segment without entries that all partitions share until their first
  // insert.
  void Init(IndexSegment* const* empty) { segments_ = empty; }

  IndexBucket* bucket1(const RowHash& hash) const {
    return bucket(Salted(hash).bucket1(num_buckets_));
  }
  IndexBucket* bucket2(const RowHash& hash) const {
    return bucket(Salted(hash).bucket2(num_buckets_));
  }

  // The entry whose ordinal is_key says is the key's.
  template <typename IsKey>
  Entry Find(const RowHash& hash, const IsKey& is_key) const {
    IndexBucket* b = bucket1(hash);
    for (int choice = 0;; ++choice) {
      for (uint32_t rest = b->Match(hash.tag()); rest != 0; rest &= rest - 1) {
        const int way = std::countr_zero(rest);
        if (is_key(b->ordinal[way])) return {b, way};
      }
      if (choice == 1 || b->overflowed == 0) return {};
      b = bucket2(hash);
    }
  }

  void Erase(const RowHash& hash, const Entry& entry) {
    entry.bucket->tag[entry.way] = 0;
    if (IndexBucket* const b1 = bucket1(hash); entry.bucket != b1) --b1->overflowed;
  }

  // Adds an entry for a key that has none, growing the index when it must. On ResourceExhausted
  // nothing has changed.
  template <typename KeyAccess>
  absl::Status Insert(MemoryBudget& budget, IndexSegmentPool& pool, const RowHash& hash,
                      uint32_t ordinal, const KeyAccess& keys) {
    int salts = 0;
    while (!Place(hash, ordinal, keys)) HOTROW_RETURN_IF_ERROR(Grow(budget, pool, keys, &salts));
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kSegmentsMax = (int64_t{1} << 32) / IndexSegment::kBuckets;
  // Tries for one key. Each fails with a probability that nobody meets; a limit all the same.
  static constexpr int kSaltsMax = 16;

  // The hash is known to whoever chooses the keys. Where so many share both buckets that the index
  // would grow without end, it gets a salt, and both buckets of a key depend on that.
  RowHash Salted(const RowHash& hash) const {
    if (salt_ == 0) [[likely]]
      return hash;
    return {hash.hi, Mix64(hash.lo ^ Mix64(hash.hi ^ salt_))};
  }

  IndexBucket* bucket(uint32_t b) const {
    return &segments_[b / IndexSegment::kBuckets]->bucket[b % IndexSegment::kBuckets];
  }

  static void Set(IndexBucket* b, uint32_t free_ways, uint8_t tag, uint32_t ordinal) {
    const int way = std::countr_zero(free_ways);
    b->ordinal[way] = ordinal;
    b->tag[way] = tag;
  }

  // False when neither bucket has room or can be given any.
  template <typename KeyAccess>
  bool Place(const RowHash& hash, uint32_t ordinal, const KeyAccess& keys) {
    if (owned_.size() == 0) return false;
    IndexBucket* const b1 = bucket1(hash);
    IndexBucket* const b2 = bucket2(hash);
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (const uint32_t free1 = b1->free_ways(); free1 != 0) {
        Set(b1, free1, hash.tag(), ordinal);
        return true;
      }
      if (const uint32_t free2 = b2->free_ways(); free2 != 0) {
        Set(b2, free2, hash.tag(), ordinal);
        ++b1->overflowed;
        return true;
      }
      if (!MakeRoom(b1, keys) && !MakeRoom(b2, keys)) return false;
    }
    return false;
  }

  // Moves an entry of a full bucket to its other bucket; false when all of those are full too.
  template <typename KeyAccess>
  bool MakeRoom(IndexBucket* b, const KeyAccess& keys) {
    for (const uint32_t ordinal : b->ordinal) keys.Prefetch(ordinal);
    for (int way = 0; way < IndexBucket::kWays; ++way) {
      const RowHash hash = keys.Hash(b->ordinal[way]);
      IndexBucket* const b1 = bucket1(hash);
      const bool is_first = b == b1;
      IndexBucket* const other = is_first ? bucket2(hash) : b1;
      const uint32_t free_ways = other->free_ways();
      if (free_ways == 0) continue;
      Set(other, free_ways, b->tag[way], b->ordinal[way]);
      b->tag[way] = 0;
      b1->overflowed += is_first ? 1 : -1;
      return true;
    }
    return false;
  }

  int64_t CountEntries() const {
    int64_t count = 0;
    for (int64_t s = 0; s < owned_.size(); ++s) {
      for (const IndexBucket& b : owned_[s]->bucket) {
        count += IndexBucket::kWays - std::popcount(b.free_ways());
      }
    }
    return count;
  }

  // Rebuilds the index a quarter larger, or more when the entries do not fit that. One that is not
  // half full has no room because of keys that share both buckets: it gets another salt instead.
  // *salts counts those for one key.
  template <typename KeyAccess>
  absl::Status Grow(MemoryBudget& budget, IndexSegmentPool& pool, const KeyAccess& keys,
                    int* salts) {
    constexpr int64_t kWaysPerSegment = int64_t{IndexSegment::kBuckets} * IndexBucket::kWays;
    const int64_t entries = CountEntries();
    int64_t num_segments = owned_.size();
    uint64_t salt = salt_;
    for (;;) {
      if (entries < num_segments * kWaysPerSegment / 2) {
        if (++*salts > kSaltsMax) {
          return absl::ResourceExhaustedError(absl::StrCat(
              "host store: more keys have the same two buckets of the index than these hold, "
              "under ",
              kSaltsMax, " salts"));
        }
        salt = EntropyBits() | 1;
      } else {
        num_segments += std::max<int64_t>(1, num_segments / 4);
      }
      if (num_segments > kSegmentsMax) {
        return absl::ResourceExhaustedError("host store: an index partition has 2^32 buckets");
      }
      IndexPartition larger;
      larger.salt_ = salt;
      HOTROW_RETURN_IF_ERROR(larger.Allocate(budget, pool, num_segments));
      const bool fits = CopyTo(larger, keys);
      if (fits) std::swap(*this, larger);
      larger.GiveBack(pool);
      if (fits) return absl::OkStatus();
    }
  }

  absl::Status Allocate(MemoryBudget& budget, IndexSegmentPool& pool, int64_t num_segments) {
    HOTROW_ASSIGN_OR_RETURN(owned_, BudgetedBuffer<IndexSegment*>::Create(num_segments, budget));
    for (IndexSegment*& segment : owned_.span()) {
      auto taken = pool.Take();
      if (!taken.ok()) {
        GiveBack(pool);
        return std::move(taken).status();
      }
      segment = *taken;
    }
    segments_ = owned_.data();
    num_buckets_ = static_cast<uint64_t>(num_segments) * IndexSegment::kBuckets;
    return absl::OkStatus();
  }

  void GiveBack(IndexSegmentPool& pool) {
    for (IndexSegment* const segment : owned_.span()) {
      if (segment != nullptr) pool.GiveBack(segment);
    }
    owned_ = {};
    segments_ = nullptr;
  }

  // False when an entry found no place. Buckets are taken in groups, so that the cache misses on
  // their keys overlap.
  template <typename KeyAccess>
  bool CopyTo(IndexPartition& larger, const KeyAccess& keys) const {
    constexpr int kGroup = 4;
    const auto for_entries = [](const IndexBucket* group, const auto& body) {
      for (const IndexBucket* b = group; b != group + kGroup; ++b) {
        for (int way = 0; way < IndexBucket::kWays; ++way) {
          if (b->tag[way] != 0 && !body(b->ordinal[way])) return false;
        }
      }
      return true;
    };
    for (int64_t s = 0; s < owned_.size(); ++s) {
      for (int b = 0; b < IndexSegment::kBuckets; b += kGroup) {
        const IndexBucket* const group = &owned_[s]->bucket[b];
        for_entries(group, [&](uint32_t ordinal) {
          keys.Prefetch(ordinal);
          return true;
        });
        const bool placed = for_entries(group, [&](uint32_t ordinal) {
          return larger.Place(keys.Hash(ordinal), ordinal, keys);
        });
        if (!placed) return false;
      }
    }
    return true;
  }

  IndexSegment* const* segments_ = nullptr;  // owned_.data(), or the shared empty segment
  uint64_t num_buckets_ = IndexSegment::kBuckets;
  uint64_t salt_ = 0;
  BudgetedBuffer<IndexSegment*> owned_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_INDEX_IMPL_H_
