#ifndef HOTROW_MODELS_DATA_PERMUTATION_H_
#define HOTROW_MODELS_DATA_PERMUTATION_H_

#include <bit>
#include <cstdint>

#include "base/check.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/philox.h"

namespace hotrow {

// A pseudo-random permutation of [0, size) that stores nothing: the image of any number costs O(1).
// A generalised Feistel network (Black & Rogaway, "Ciphers with arbitrary finite domains", 2002):
// x = left * 2^right_bits + right, and each round adds a keyed hash of one half to the other, which
// can be undone with any hash. left * 2^right_bits reaches less than 2^right_bits beyond
// size; the few images that fall there are permuted again until they do not.
//
// A pure function of (size, seed, a, c), where (a, c) are the counter words of RandomBlock that
// give the round keys. Threads: immutable.
class Permutation {
 public:
  // size in [1, 2^62].
  Permutation(uint64_t size, uint64_t seed, uint64_t a, uint32_t c) : size_(size) {
    HOTROW_CHECK(size >= 1);
    HOTROW_CHECK(size <= uint64_t{1} << 62);
    right_bits_ = (std::bit_width(size) - 1) / 2;
    left_size_ = ((size - 1) >> right_bits_) + 1;
    for (uint32_t round = 0; round < kDoubleRounds; ++round) {
      const PhiloxBlock block = RandomBlock(seed, RandomPurpose::kData, a, round, c);
      left_key_[round] = static_cast<uint64_t>(block.v[0]) << 32 | block.v[1];
      right_key_[round] = static_cast<uint64_t>(block.v[2]) << 32 | block.v[3];
    }
  }

  uint64_t size() const { return size_; }

  // x in [0, size).
  uint64_t operator()(uint64_t x) const {
    HOTROW_DCHECK(x < size_);
    const uint64_t mask = (uint64_t{1} << right_bits_) - 1;
    do {
      uint64_t left = x >> right_bits_;
      uint64_t right = x & mask;
      for (int round = 0; round < kDoubleRounds; ++round) {
        left += FastRange32(Hash(right ^ left_key_[round]), left_size_);
        if (left >= left_size_) left -= left_size_;
        right = (right + Hash(left ^ right_key_[round])) & mask;
      }
      x = left << right_bits_ | right;
    } while (x >= size_);
    return x;
  }

 private:
  // Four rounds make a good cipher of a good round function (Luby & Rackoff 1988); six leave room
  // for ours, which is only a fast one, and for small domains.
  static constexpr int kDoubleRounds = 3;

  static uint32_t Hash(uint64_t x) { return static_cast<uint32_t>(Mix64(x) >> 32); }

  uint64_t size_;
  uint64_t left_size_;  // at most 2^32
  int right_bits_;      // at most 31
  uint64_t left_key_[kDoubleRounds];
  uint64_t right_key_[kDoubleRounds];
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_PERMUTATION_H_
