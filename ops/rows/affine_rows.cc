#include "ops/rows/affine_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace hotrow {
namespace {

constexpr int64_t kHeadBytes = 4;
constexpr uint32_t kBf16Step = 1u << 16;  // between neighbours, as integers

int LargestCode(AffineCode code) { return code == AffineCode::kInt8 ? 255 : 15; }

float OfBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The largest bf16 that is not above x; infinite where there is none.
float Bf16Below(float x) {
  const uint32_t cut = std::bit_cast<uint32_t>(x) & ~(kBf16Step - 1);
  const auto nearer = std::bit_cast<float>(cut);  // to zero
  return nearer <= x ? nearer : std::bit_cast<float>(cut + kBf16Step);
}
float Bf16Above(float x) { return -Bf16Below(-x); }

uint16_t UpperHalf(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

}  // namespace

int64_t AffineRowBytes(AffineCode code, int32_t dim) {
  return kHeadBytes + (code == AffineCode::kInt8 ? int64_t{dim} : (int64_t{dim} + 1) / 2);
}

bool EncodeAffineRow(AffineCode code, std::span<const float> weights, std::byte* row) {
  float least = std::numeric_limits<float>::infinity();
  float most = -least;
  for (const float w : weights) {
    if (!std::isfinite(w)) return false;
    least = std::min(least, w);
    most = std::max(most, w);
  }
  if (weights.empty()) least = most = 0;
  const int largest = LargestCode(code);
  const float offset = Bf16Below(least);
  const double exact = (static_cast<double>(most) - offset) / largest;
  auto wide = static_cast<float>(exact);
  if (wide < exact) wide = std::nextafter(wide, std::numeric_limits<float>::infinity());
  const float scale = Bf16Above(wide);
  if (!std::isfinite(offset) || !std::isfinite(scale) || !std::isfinite(scale * largest)) {
    return false;
  }
  const uint16_t head[] = {UpperHalf(scale), UpperHalf(offset)};
  std::memcpy(row, head, sizeof(head));
  std::byte* const codes = row + kHeadBytes;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double place =
        scale > 0 ? (static_cast<double>(weights[i]) - offset) / static_cast<double>(scale) : 0;
    const auto q = static_cast<uint8_t>(std::clamp<int64_t>(std::llround(place), 0, largest));
    if (code == AffineCode::kInt8) {
      codes[i] = std::byte{q};
    } else if (i % 2 == 0) {
      codes[i / 2] = std::byte{q};
    } else {
      codes[i / 2] |= std::byte{static_cast<uint8_t>(q << 4)};
    }
  }
  return true;
}

void DecodeAffineRow(AffineCode code, const std::byte* row, std::span<float> weights) {
  uint16_t head[2];
  std::memcpy(head, row, sizeof(head));
  const float scale = OfBf16(head[0]);
  const float offset = OfBf16(head[1]);
  const auto* const codes = reinterpret_cast<const uint8_t*>(row + kHeadBytes);
  const size_t n = weights.size();
  float* const out = weights.data();
  if (code == AffineCode::kInt8) {
    for (size_t i = 0; i < n; ++i) out[i] = offset + scale * static_cast<float>(codes[i]);
    return;
  }
  for (size_t i = 0; i + 1 < n; i += 2) {
    out[i] = offset + scale * static_cast<float>(codes[i / 2] & 15);
    out[i + 1] = offset + scale * static_cast<float>(codes[i / 2] >> 4);
  }
  if (n % 2 == 1) out[n - 1] = offset + scale * static_cast<float>(codes[n / 2] & 15);
}

}  // namespace hotrow
