#ifndef HOTROW_BASE_CRC32C_H_
#define HOTROW_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace hotrow {

// CRC-32C (Castagnoli, RFC 3720 appendix B.4). Extend(Extend(0, a), b) is the CRC of a followed by
// b, and the CRC of "123456789" is 0xe3069283. Uses the processor's instruction where it has one
// (checked at run time); the portable path gives the same numbers.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

namespace internal {
uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc);
bool Crc32cHasHardware();
}  // namespace internal

}  // namespace hotrow

#endif  // HOTROW_BASE_CRC32C_H_
