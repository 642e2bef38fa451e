#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace hotrow {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits reversed

using ByteTable = std::array<uint32_t, 256>;

// kTables[k][b] is what byte b does to the CRC when k more bytes follow it ("slicing by 8",
// Kounavis and Berry, 2008), so eight bytes take eight independent look-ups.
constexpr std::array<ByteTable, 8> MakeSlicingTables() {
  std::array<ByteTable, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t crc = tables[k - 1][b];
      tables[k][b] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}
constexpr std::array<ByteTable, 8> kTables = MakeSlicingTables();

// Works on the inverted CRC, as all functions below.
uint32_t ExtendPortable(uint32_t crc, const std::byte* p, size_t left) {
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, sizeof(word));
    word ^= crc;
    crc = kTables[7][word & 0xff] ^ kTables[6][(word >> 8) & 0xff] ^
          kTables[5][(word >> 16) & 0xff] ^ kTables[4][(word >> 24) & 0xff] ^
          kTables[3][(word >> 32) & 0xff] ^ kTables[2][(word >> 40) & 0xff] ^
          kTables[1][(word >> 48) & 0xff] ^ kTables[0][word >> 56];
  }
  for (; left > 0; --left, ++p) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*p)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)

// The instruction has a latency of three cycles and starts every cycle, so three lanes of
// kLaneBytes run side by side and are joined by "what would kLaneBytes zero bytes more do to this
// CRC?". That is linear over the bits of the CRC, so four look-ups answer it.
constexpr size_t kLaneBytes = 512;

constexpr std::array<ByteTable, 4> MakeSkipTables() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < kLaneBytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
    of_bit[bit] = crc;
  }
  std::array<ByteTable, 4> tables{};
  for (size_t k = 0; k < 4; ++k) {
    for (size_t b = 0; b < 256; ++b) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if (((b >> bit) & 1) != 0) tables[k][b] ^= of_bit[8 * k + bit];
      }
    }
  }
  return tables;
}
constexpr std::array<ByteTable, 4> kSkip = MakeSkipTables();

uint64_t SkipLane(uint64_t crc) {
  return kSkip[0][crc & 0xff] ^ kSkip[1][(crc >> 8) & 0xff] ^ kSkip[2][(crc >> 16) & 0xff] ^
         kSkip[3][(crc >> 24) & 0xff];
}

uint64_t LoadWord(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

__attribute__((target("sse4.2"))) uint32_t ExtendHardware(uint32_t start, const std::byte* p,
                                                          size_t left) {
  uint64_t crc = start;
  for (; left >= 3 * kLaneBytes; left -= 3 * kLaneBytes, p += 3 * kLaneBytes) {
    uint64_t crc1 = 0;
    uint64_t crc2 = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      crc = _mm_crc32_u64(crc, LoadWord(p + i));
      crc1 = _mm_crc32_u64(crc1, LoadWord(p + kLaneBytes + i));
      crc2 = _mm_crc32_u64(crc2, LoadWord(p + 2 * kLaneBytes + i));
    }
    crc = SkipLane(SkipLane(crc) ^ crc1) ^ crc2;
  }
  for (; left >= 8; left -= 8, p += 8) crc = _mm_crc32_u64(crc, LoadWord(p));
  auto narrow = static_cast<uint32_t>(crc);
  for (; left > 0; --left, ++p) narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*p));
  return narrow;
}

#endif

}  // namespace

namespace internal {

uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc) {
  return ~ExtendPortable(~crc, bytes.data(), bytes.size());
}

bool Crc32cHasHardware() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace internal

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  if (internal::Crc32cHasHardware()) return ~ExtendHardware(~crc, bytes.data(), bytes.size());
#endif
  return internal::Crc32cPortable(bytes, crc);
}

}  // namespace hotrow
