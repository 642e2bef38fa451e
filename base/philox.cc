#include "base/philox.h"

#include <cmath>
#include <numbers>

namespace hotrow {

// In double and rounded once: the float is the same wherever log, sin and cos are good to a few
// units in their 53rd bit, whichever libm or FMA variant computes them.
NormalPair NormalFloats(uint32_t bits0, uint32_t bits1) {
  const double u = (static_cast<double>(bits0) + 1.0) * 0x1p-32;  // (0, 1]: never log(0)
  const double angle = 2.0 * std::numbers::pi * 0x1p-32 * static_cast<double>(bits1);
  const double radius = std::sqrt(-2.0 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

uint32_t RandomStream::Next32() {
  if (position_ == 4) {
    block_ = RandomBlock(seed_, purpose_, stream_, static_cast<uint32_t>(block_index_),
                         static_cast<uint32_t>(block_index_ >> 32));
    ++block_index_;
    position_ = 0;
  }
  return block_.v[position_++];
}

float RandomStream::Normal() {
  const uint32_t bits0 = Next32();
  return NormalFloats(bits0, Next32()).first;
}

}  // namespace hotrow
