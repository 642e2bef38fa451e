#ifndef HOTROW_OPS_KEYS_DISTINCT_KEYS_IMPL_H_
#define HOTROW_OPS_KEYS_DISTINCT_KEYS_IMPL_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/hash.h"
#include "ops/keys/unique_cpu_impl.h"

namespace hotrow::internal {

// Distinct keys in order, to be looked up: open addressing with linear probing. A slot holds 1 +
// the number of an entry, 0 is empty: every 64-bit key is legal, so no key can mark one. The memory
// is the caller's.
class KeySlots {
 public:
  static constexpr int64_t kGroup = 64;  // keys whose cache misses overlap

  // How many probes (slots that are looked at beyond a key's first one) n keys may take. At half
  // full a key takes 1.5 on average when it is not there and 0.5 when it is (Knuth, vol. 3, 6.4);
  // only keys that were chosen to collide take more than this.
  static constexpr int64_t ProbesMax(int64_t n) { return 8 * n + 1024; }

  // mask: one less than the number of slots. There is at least one entry.
  KeySlots(const UniqueEntry* entries, const int32_t* slots, uint32_t mask)
      : entries_(entries), slots_(slots), mask_(mask) {}

  static uint64_t Hash(uint64_t key) { return Mix64(key); }
  // The position of a key's first slot; the upper 32 bits of the hash are free for another use.
  static uint32_t Position(uint64_t hash, uint32_t mask) {
    return static_cast<uint32_t>(hash) & mask;
  }

  // found[i] becomes the number of the entry of keys[i], or -1. n <= kGroup. False, and no result:
  // *probes_left passes below 0.
  bool Find(const uint64_t* keys, const uint64_t* hashes, int64_t n, int32_t* found,
            int64_t* probes_left) const {
    uint32_t positions[kGroup];
    for (int64_t i = 0; i < n; ++i) {
      positions[i] = Position(hashes[i], mask_);
      __builtin_prefetch(slots_ + positions[i]);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int32_t slot = slots_[positions[i]];
      __builtin_prefetch(entries_ + (slot - (slot != 0)));
    }
    for (int64_t i = 0; i < n; ++i) {
      for (uint32_t position = positions[i];; position = (position + 1) & mask_) {
        const int32_t slot = slots_[position];
        if (slot == 0 || entries_[slot - 1].key == keys[i]) {
          found[i] = slot - 1;
          break;
        }
        if (--*probes_left < 0) return false;
      }
    }
    return true;
  }

 private:
  const UniqueEntry* entries_;
  const int32_t* slots_;
  uint32_t mask_;
};

// Tells of most keys that are not there that they are not (Bloom 1970, with one bit a key): what is
// asked by another core is a small part of what KeySlots would read.
class KeyFilter {
 public:
  static constexpr int64_t kBitsPerKey = 8;  // at least, and less than twice as many

  // Room for num_keys keys: num_keys / 2 words.
  KeyFilter(uint32_t* words, int64_t num_keys)
      : words_(words),
        mask_(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(kBitsPerKey * num_keys, 32))) -
              1) {}

  void Clear() { std::memset(words_, 0, (mask_ + 1) / 8); }
  void Add(uint64_t hash) { words_[Bit(hash) / 32] |= uint32_t{1} << (Bit(hash) % 32); }
  void Prefetch(uint64_t hash) const { __builtin_prefetch(words_ + Bit(hash) / 32); }
  bool MayHave(uint64_t hash) const {
    return (words_[Bit(hash) / 32] >> (Bit(hash) % 32) & 1) != 0;
  }

 private:
  uint64_t Bit(uint64_t hash) const { return hash >> 32 & mask_; }

  uint32_t* words_;
  uint64_t mask_;
};

// Finds the distinct keys of values that are added one after the other. At most half of the slots
// are taken; if they `grow`, they begin few, so that few of them are touched where most values come
// again and again.
//
// Keys may have been chosen to collide: who passes KeySlots::ProbesMax sorts instead
// (FindDistinct).
class DistinctKeys {
 public:
  // The distinct keys of up to num_values values. Room: as FindDistinct.
  DistinctKeys(int64_t num_values, UniqueEntry* entries, int32_t* slots, bool grow)
      : slots_(slots),
        entries_(entries),
        slots_max_(std::bit_ceil(static_cast<uint64_t>(2 * num_values))),
        probes_left_(KeySlots::ProbesMax(num_values)) {
    ClearSlots(grow ? std::min(kSlotsMin, slots_max_) : slots_max_);
  }

  // Adds the values and writes the number of each one's key. False: the keys collide too often;
  // what was added so far is of no use.
  bool Add(const uint64_t* values, int64_t n, int32_t* inverse) {
    for (int64_t begin = 0; begin < n; begin += kGroup) {
      const int64_t size = std::min(kGroup, n - begin);
      if (2 * (size_ + size) > int64_t{mask_} + 1) Grow(/*faster=*/4 * size_ > 3 * added_);
      AddGroup(values + begin, size, inverse + begin);
      added_ += size;
      if (probes_left_ < 0) return false;
    }
    return true;
  }

  int32_t size() const { return size_; }
  uint32_t mask() const { return mask_; }  // of KeySlots

 private:
  static constexpr int64_t kGroup = KeySlots::kGroup;
  static constexpr uint64_t kSlotsMin = uint64_t{1} << 16;  // a small part of a second cache
  static constexpr uint64_t kGrowth = 4;

  void ClearSlots(uint64_t num_slots) {
    mask_ = static_cast<uint32_t>(num_slots - 1);  // num_values < 2^31, so num_slots <= 2^32
    std::memset(slots_, 0, num_slots * sizeof(int32_t));
  }

  // Does nothing when there are as many slots as will ever be needed. `faster`: most values are
  // new, so that they will be, soon.
  void Grow(bool faster) {
    const uint64_t num_slots = uint64_t{mask_} + 1;
    if (num_slots == slots_max_) return;
    ClearSlots(faster ? slots_max_ : std::min(kGrowth * num_slots, slots_max_));
    uint32_t positions[kGroup];
    for (int64_t begin = 0; begin < size_ && probes_left_ >= 0; begin += kGroup) {
      const int64_t size = std::min(kGroup, size_ - begin);
      for (int64_t i = 0; i < size; ++i) {
        positions[i] = KeySlots::Position(KeySlots::Hash(entries_[begin + i].key), mask_);
        __builtin_prefetch(slots_ + positions[i], 1);
      }
      for (int64_t i = 0; i < size; ++i) {
        uint32_t position = positions[i];
        while (slots_[position] != 0 && --probes_left_ >= 0) position = (position + 1) & mask_;
        slots_[position] = static_cast<int32_t>(begin + i + 1);
      }
    }
  }

  // Three passes, so that the misses overlap: find the slots, find the entries, compare.
  void AddGroup(const uint64_t* values, int64_t n, int32_t* inverse) {
    // Entries have the type of members, which the compiler would read again after each.
    int32_t* const slots = slots_;
    UniqueEntry* const entries = entries_;
    const uint32_t mask = mask_;
    int64_t probes_left = probes_left_;
    int32_t num_keys = size_;
    uint32_t positions[kGroup];
    for (int64_t i = 0; i < n; ++i) {
      positions[i] = KeySlots::Position(KeySlots::Hash(values[i]), mask);
      __builtin_prefetch(slots + positions[i], 1);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int32_t slot = slots[positions[i]];
      __builtin_prefetch(entries + (slot - (slot != 0)), 1);
    }
    const auto find_or_add = [&](uint64_t key, uint32_t position) -> int32_t {
      for (;; position = (position + 1) & mask) {
        const int32_t slot = slots[position];
        if (slot == 0) {
          entries[num_keys] = {key, 1, 0};
          slots[position] = num_keys + 1;
          return num_keys++;
        }
        if (entries[slot - 1].key == key) {
          ++entries[slot - 1].count;
          return slot - 1;
        }
        if (--probes_left < 0) return 0;
      }
    };
    for (int64_t i = 0; i < n; ++i) inverse[i] = find_or_add(values[i], positions[i]);
    probes_left_ = probes_left;
    size_ = num_keys;
  }

  int32_t* const slots_;
  UniqueEntry* const entries_;
  const uint64_t slots_max_;
  uint32_t mask_ = 0;
  int64_t probes_left_;
  int32_t size_ = 0;
  int64_t added_ = 0;  // values
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_DISTINCT_KEYS_IMPL_H_
