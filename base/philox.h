#ifndef HOTROW_BASE_PHILOX_H_
#define HOTROW_BASE_PHILOX_H_

#include <array>
#include <cstdint>

#include "base/macros.h"

namespace hotrow {

// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11): a pure
// function from a 128-bit counter and a 64-bit key to 128 random bits. It has no state, so a number
// depends only on its purpose (seed, table, key, column, step ...), never on the order in which
// rows are made or on the rank that makes them. Tested against the known-answer vectors of
// Random123.
struct PhiloxBlock {
  uint32_t v[4];
};

HOTROW_HOST_DEVICE constexpr PhiloxBlock Philox4x32(const PhiloxBlock& counter, uint64_t key) {
  uint32_t c0 = counter.v[0];
  uint32_t c1 = counter.v[1];
  uint32_t c2 = counter.v[2];
  uint32_t c3 = counter.v[3];
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;  // golden ratio
    k1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return {{c0, c1, c2, c3}};
}

// The purpose of a random number: the top four bits of the last counter word, so that two uses of
// one seed never share a block.
enum class RandomPurpose : uint32_t {
  kRowInit = 1,    // counter: key (2 words), table, column / 4
  kDenseInit = 2,  // counter: element / 4 (2 words), parameter, 0
  kDropout = 3,    // counter: element / 4 (2 words), step, layer
  kRounding = 4,   // stochastic rounding
  kData = 5,       // generators and shuffles
  kTest = 6,
  kAdmission = 7,  // counter: key (2 words), step, lookup / 4
};

// The block for (seed, purpose, a, b, c). c < 2^28; a is 64 bits, b 32.
HOTROW_HOST_DEVICE constexpr PhiloxBlock RandomBlock(uint64_t seed, RandomPurpose purpose,
                                                     uint64_t a, uint32_t b, uint32_t c) {
  return Philox4x32({{static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), b,
                      (static_cast<uint32_t>(purpose) << 28) | (c & 0x0fffffffu)}},
                    seed);
}

// [0, 1) in steps of 2^-24: every value is a float exactly.
HOTROW_HOST_DEVICE constexpr float UniformFloat(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}
// [0, 1) in steps of 2^-53, from two words.
HOTROW_HOST_DEVICE constexpr double UniformDouble(uint32_t high, uint32_t low) {
  return static_cast<double>(((static_cast<uint64_t>(high) << 32) | low) >> 11) * 0x1p-53;
}

// Two independent standard normal numbers from two words (Box & Muller 1958).
struct NormalPair {
  float first;
  float second;
};
NormalPair NormalFloats(uint32_t bits0, uint32_t bits1);

// A sequential source for tests and generators: walks the counter of one (seed, purpose, stream).
// Not thread safe; copyable, and a copy continues with the same numbers.
class RandomStream {
 public:
  RandomStream(uint64_t seed, RandomPurpose purpose, uint64_t stream = 0)
      : seed_(seed), purpose_(purpose), stream_(stream) {}
  uint32_t Next32();
  uint64_t Next64() {
    const uint64_t high = Next32();
    return (high << 32) | Next32();
  }
  // Uniform in [0, n), n > 0, by multiplication; the bias is below n / 2^64.
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next64()) * n) >> 64);
  }
  double Uniform() {
    const uint32_t high = Next32();
    return UniformDouble(high, Next32());
  }
  float Normal();

 private:
  uint64_t seed_;
  RandomPurpose purpose_;
  uint64_t stream_;
  uint64_t block_index_ = 0;  // 60 bits are used: 32 as counter word, 28 in the last word
  int position_ = 4;          // next word of block_; 4 means it is used up
  PhiloxBlock block_ = {{0, 0, 0, 0}};
};

}  // namespace hotrow

#endif  // HOTROW_BASE_PHILOX_H_
