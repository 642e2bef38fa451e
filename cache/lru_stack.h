#ifndef HOTROW_CACHE_LRU_STACK_H_
#define HOTROW_CACHE_LRU_STACK_H_

#include <cstdint>
#include <vector>

namespace hotrow {

// The distinct keys of a stream in the order of their last use: the stack of Mattson et al. 1970
// ("Evaluation techniques for storage hierarchies"). It serves LRU caches of all sizes at once: a
// cache of c rows hits exactly when the distance is below c.
//
// Each key has one bit, at the time slot of its last use. Its distance is the number of later bits,
// counted by a Fenwick tree over blocks of 512 bits and at most eight popcounts in one block. A
// touch takes O(log n). Memory: a 16-byte entry of a hash table that is 40 to 75 % full, and less
// than one byte a key for the bits. When the slots run out, the keys are packed in their order.
//
// Threads: one at a time.
class LruStack {
 public:
  LruStack();

  // Puts a key on top. Returns the number of distinct keys used since its last use (0: it was on
  // top), or -1 for a new key. `hash` identifies the key and must have well-mixed low bits: pass a
  // bijection of the key, as KeySampler::Hash.
  int64_t Touch(uint64_t hash);

  // Forgets the keys whose hash is above the limit.
  void RemoveAbove(uint64_t limit);

  // The hash of rank `rank` in ascending order; rank in [0, size()).
  uint64_t NthHash(int64_t rank) const;

  int64_t size() const { return size_; }
  // Memory held. While the table grows, up to half as much again is held for a moment.
  int64_t MemoryBytes() const;

 private:
  static constexpr int64_t kBlockWords = 8;
  static constexpr int64_t kBlockBits = kBlockWords * 64;
  struct Entry {
    uint64_t hash;
    int64_t slot;  // of the last use; -1: the entry is empty
  };

  Entry& FindEntry(uint64_t hash);
  void GrowTable();
  // Live slots in [0, slot].
  int64_t Rank(int64_t slot) const;
  void AddToTree(int64_t block, int64_t delta);
  // Moves all keys to the slots [0, size()), in order, with at least as many slots behind them.
  void CompactSlots();

  std::vector<Entry> table_;     // open addressing, a power of two
  std::vector<uint64_t> words_;  // one bit a slot
  std::vector<int64_t> tree_;    // Fenwick (1994), 1-based, live bits of blocks
  int64_t size_ = 0;
  int64_t next_slot_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_LRU_STACK_H_
