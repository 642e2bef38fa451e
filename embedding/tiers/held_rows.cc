#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/entropy.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "embedding/tiers/held_rows_impl.h"

namespace hotrow::internal {

absl::StatusOr<HeldRows> HeldRows::Create(int64_t capacity, int64_t row_bytes) {
  HOTROW_CHECK(capacity > 0 && capacity < (int64_t{1} << 31));
  HeldRows held;
  held.row_bytes_ = row_bytes;
  held.salt_ = EntropyBits();
  HOTROW_ASSIGN_OR_RETURN(held.keys_, HostBuffer<RowKey>::Create(capacity));
  HOTROW_ASSIGN_OR_RETURN(held.rows_, HostBuffer<std::byte>::Create(capacity * row_bytes));
  // Between half and a quarter full at most: 8 to 16 bytes a row.
  HOTROW_ASSIGN_OR_RETURN(held.places_, HostBuffer<uint32_t>::Create(static_cast<int64_t>(
                                            std::bit_ceil(static_cast<uint64_t>(2 * capacity)))));
  return held;
}

int64_t HeldRows::HomeOf(const RowKey& key) const {
  const RowHash hash = HashRowKey(key);
  const uint64_t home = Mix64(hash.lo ^ Mix64(hash.hi ^ salt_));
  return static_cast<int64_t>(home & static_cast<uint64_t>(places_.size() - 1));
}

int64_t HeldRows::PlaceOf(const RowKey& key) const {
  int64_t place = HomeOf(key);
  while (places_[place] != 0 && !(keys_[places_[place] - 1] == key)) {
    place = (place + 1) & (places_.size() - 1);
  }
  return place;
}

void HeldRows::Add(const RowKey& key, const std::byte* row) {
  HOTROW_CHECK(size_ < capacity());
  const int64_t place = PlaceOf(key);
  HOTROW_CHECK(places_[place] == 0);
  keys_[size_] = key;
  std::memcpy(rows_.data() + size_ * row_bytes_, row, static_cast<size_t>(row_bytes_));
  places_[place] = static_cast<uint32_t>(++size_);
}

const std::byte* HeldRows::Find(const RowKey& key) const {
  if (size_ == 0) return nullptr;
  const uint32_t position = places_[PlaceOf(key)];
  return position == 0 ? nullptr : row(position - 1);
}

void HeldRows::Remove(const RowKey& key) {
  int64_t hole = PlaceOf(key);
  HOTROW_CHECK(places_[hole] != 0);
  const int64_t position = places_[hole] - 1;
  // The index first: entries behind the hole move up, unless that would take them before their
  // home.
  const int64_t mask = places_.size() - 1;
  for (int64_t next = (hole + 1) & mask; places_[next] != 0; next = (next + 1) & mask) {
    const int64_t home = HomeOf(keys_[places_[next] - 1]);
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    places_[hole] = places_[next];
    hole = next;
  }
  places_[hole] = 0;
  // The last row takes the place of the removed one.
  const int64_t last = --size_;
  if (position == last) return;
  const int64_t place = PlaceOf(keys_[last]);
  HOTROW_CHECK(places_[place] == static_cast<uint32_t>(last + 1));
  places_[place] = static_cast<uint32_t>(position + 1);
  keys_[position] = keys_[last];
  std::memcpy(rows_.data() + position * row_bytes_, rows_.data() + last * row_bytes_,
              static_cast<size_t>(row_bytes_));
}

void HeldRows::Clear() {
  if (size_ == 0) return;
  size_ = 0;
  std::memset(places_.data(), 0, static_cast<size_t>(places_.bytes()));
}

}  // namespace hotrow::internal
