#include "base/hash.h"

#include <bit>
#include <cstring>

namespace hotrow {
namespace {

// The constants of MurmurHash3_x64_128 (Appleby, public domain).
constexpr uint64_t kC1 = 0x87c37b91114253d5ULL;
constexpr uint64_t kC2 = 0x4cf5ad432745937fULL;
constexpr int64_t kBlockBytes = 16;

// What a word is turned into before it enters its lane: bijections.
uint64_t ScrambleFirst(uint64_t k) { return std::rotl(k * kC1, 31) * kC2; }
uint64_t ScrambleSecond(uint64_t k) { return std::rotl(k * kC2, 33) * kC1; }

void AppendHex(uint64_t value, std::string& out) {
  for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[(value >> shift) & 15];
}

}  // namespace

std::string Hash128::ToHex() const {
  std::string hex;
  hex.reserve(32);
  AppendHex(hi, hex);
  AppendHex(lo, hex);
  return hex;
}

// MurmurHash3_x64_128 with a 128-bit seed: lane 1 starts as key0, lane 2 as key1. (The original
// starts both as one 32-bit seed, so equal keys below 2^32 give its numbers.)
//
//   for each block of two little-endian words (a, b):
//     h1 ^= ScrambleFirst(a);   h1 = rotl(h1, 27) + h2;  h1 = 5 * h1 + 0x52dce729
//     h2 ^= ScrambleSecond(b);  h2 = rotl(h2, 31) + h1;  h2 = 5 * h2 + 0x38495ab5
//   a last block of 1 to 15 bytes is padded with zeros and enters by the two ^= alone
//   both lanes ^= length;  h1 += h2;  h2 += h1;  both = Mix64(both);  h1 += h2;  h2 += h1
//
// Every step is a bijection of the state and of the words, so for one length and key pair two texts
// that differ in one block only never collide, and neither do two key pairs over one text.
Hash128 HashBytes(uint64_t key0, uint64_t key1, std::span<const std::byte> bytes) {
  uint64_t h1 = key0;
  uint64_t h2 = key1;
  const std::byte* p = bytes.data();
  auto left = static_cast<int64_t>(bytes.size());
  uint64_t block[2];
  for (; left >= kBlockBytes; left -= kBlockBytes, p += kBlockBytes) {
    std::memcpy(block, p, sizeof(block));
    h1 ^= ScrambleFirst(block[0]);
    h1 = std::rotl(h1, 27) + h2;
    h1 = 5 * h1 + 0x52dce729;
    h2 ^= ScrambleSecond(block[1]);
    h2 = std::rotl(h2, 31) + h1;
    h2 = 5 * h2 + 0x38495ab5;
  }
  if (left > 0) {
    block[0] = 0;
    block[1] = 0;
    std::memcpy(block, p, static_cast<size_t>(left));
    h1 ^= ScrambleFirst(block[0]);  // a zero word scrambles to zero and leaves its lane alone
    h2 ^= ScrambleSecond(block[1]);
  }
  h1 ^= bytes.size();
  h2 ^= bytes.size();
  h1 += h2;
  h2 += h1;
  h1 = Mix64(h1);
  h2 = Mix64(h2);
  h1 += h2;
  h2 += h1;
  return {h1, h2};
}

}  // namespace hotrow
