#ifndef HOTROW_STORE_SSD_SSD_STRUCT_IMPL_H_
#define HOTROW_STORE_SSD_SSD_STRUCT_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/crc32c.h"

// Structs of the files of an SsdStore in bytes that need not be aligned.
namespace hotrow::internal {

template <typename Struct>
Struct LoadStruct(const std::byte* bytes) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  Struct out;
  std::memcpy(&out, bytes, sizeof(Struct));
  return out;
}

template <typename Struct>
void StoreStruct(const Struct& value, std::byte* out) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  std::memcpy(out, &value, sizeof(Struct));
}

// CRC of a struct whose last member is the CRC.
template <typename Struct>
uint32_t StructCrc(const Struct& value) {
  return Crc32c(std::as_bytes(std::span<const Struct>(&value, 1)).first(offsetof(Struct, crc)));
}

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_STRUCT_IMPL_H_
