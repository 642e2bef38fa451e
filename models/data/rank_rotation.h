#ifndef HOTROW_MODELS_DATA_RANK_ROTATION_H_
#define HOTROW_MODELS_DATA_RANK_ROTATION_H_

#include <cstdint>

#include "base/hash.h"
#include "base/macros.h"

namespace hotrow {

// A keyed bijection of popularity ranks [0, size): other rows, looked up as often. The ranks
// [2^k - 1, 2^(k+1) - 1), cut at size, are rotated among themselves by a number that is a function
// of the key and k. So under a Zipf distribution no rank becomes more than 2^exponent times as
// popular as it was, and what is hot stays hot from key to key, as it does in click logs.
//
// A plain value: may be passed to kernels. Threads: immutable.
class RankRotation {
 public:
  // Leaves each rank where it is.
  RankRotation() = default;
  // size in [1, 2^kGroups).
  HOTROW_HOST_DEVICE RankRotation(uint64_t size, uint64_t key) : size_(size) {
    for (uint32_t group = 0; group < kGroups && Begin(group) < size; ++group) {
      shift_[group] = Mix64(key + group) % Length(group);
    }
  }

  // rank in [0, size).
  HOTROW_HOST_DEVICE uint64_t operator()(uint64_t rank) const {
    const uint32_t group = GroupOf(rank);
    const uint64_t length = Length(group);
    const uint64_t place = rank - Begin(group) + shift_[group];  // both parts are below length
    return Begin(group) + (place < length ? place : place - length);
  }

 private:
  static constexpr uint32_t kGroups = 48;

  // The first rank of a group; one less than its length.
  HOTROW_HOST_DEVICE static constexpr uint64_t Begin(uint32_t group) {
    return (uint64_t{1} << group) - 1;
  }
  // The length of a group, which is cut where size is.
  HOTROW_HOST_DEVICE uint64_t Length(uint32_t group) const {
    const uint64_t left = size_ - Begin(group);
    return left < Begin(group) + 1 ? left : Begin(group) + 1;
  }
  HOTROW_HOST_DEVICE static uint32_t GroupOf(uint64_t rank) {
#ifdef __CUDA_ARCH__
    return 63 - static_cast<uint32_t>(__clzll(static_cast<long long>(rank + 1)));
#else
    return 63 - static_cast<uint32_t>(__builtin_clzll(rank + 1));
#endif
  }

  uint64_t size_ = UINT64_MAX;
  uint64_t shift_[kGroups] = {};
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_RANK_ROTATION_H_
