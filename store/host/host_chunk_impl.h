#ifndef HOTROW_STORE_HOST_HOST_CHUNK_IMPL_H_
#define HOTROW_STORE_HOST_HOST_CHUNK_IMPL_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "store/host/host_store.h"

// How the rows of a HostStore lie: its tables, and chunks of their rows.
namespace hotrow::internal {

// One table as the store sees it.
struct HostTable {
  uint32_t table = 0;
  int64_t slots_max = 0;  // of a chunk
  int64_t row_bytes = 0;
};

// Table numbers are any 32-bit numbers; inside, tables count from 0. Open addressing, at most a
// quarter full, so that a look-up is one probe almost always.
class HostTableMap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit HostTableMap(std::span<const StoreTable> tables)
      : entries_(std::bit_ceil(4 * tables.size())), shift_(32 - std::countr_zero(entries_.size())) {
    for (uint32_t i = 0; i < tables.size(); ++i) {
      size_t at = Home(tables[i].table);
      while (entries_[at].index != kNone) at = (at + 1) & (entries_.size() - 1);
      entries_[at] = {tables[i].table, i};
    }
  }

  // kNone when there is no such table.
  uint32_t Find(uint32_t table) const {
    size_t at = Home(table);
    while (entries_[at].index != kNone && entries_[at].table != table) {
      at = (at + 1) & (entries_.size() - 1);
    }
    return entries_[at].index;
  }

  int64_t bytes() const { return static_cast<int64_t>(entries_.size() * sizeof(Entry)); }

 private:
  struct Entry {
    uint32_t table = 0;
    uint32_t index = kNone;
  };
  // Fibonacci hashing (Knuth, TAOCP vol. 3, 6.4).
  size_t Home(uint32_t table) const { return (table * 0x9e3779b1u) >> shift_; }

  std::vector<Entry> entries_;
  int shift_;
};

// A row with its key, where it lies.
struct HostRow {
  uint64_t key;
  const std::byte* row;
};

// Up to kChunkRows rows of one table. Slot j's row is at rows + j * row_bytes. Before the rows, at
// distances that are the same for any number of slots: kLiveWords words with a bit for each slot
// that holds a row, and before those the keys, slot 0's last.
struct HostChunk {
  static constexpr int64_t kLiveWords = HostStore::kChunkRows / 64;

  std::byte* rows = nullptr;  // 64-byte aligned
  uint32_t table_index = 0;
  uint32_t num_slots = 0;

  uint64_t* live() const { return reinterpret_cast<uint64_t*>(rows) - kLiveWords; }
  uint64_t* key(uint32_t slot) const { return live() - 1 - slot; }
  void SetLive(uint32_t slot) const { live()[slot / 64] |= uint64_t{1} << (slot % 64); }
  void ClearLive(uint32_t slot) const { live()[slot / 64] &= ~(uint64_t{1} << (slot % 64)); }

  int64_t CountLive() const {
    int64_t count = 0;
    for (uint32_t base = 0; base < num_slots; base += 64) count += std::popcount(live()[base / 64]);
    return count;
  }

  // Calls body(slot) for each row until it returns an error.
  template <typename Body>
  absl::Status ForEachLive(const Body& body) const {
    for (uint32_t base = 0; base < num_slots; base += 64) {
      for (uint64_t rest = live()[base / 64]; rest != 0; rest &= rest - 1) {
        HOTROW_RETURN_IF_ERROR(body(base + static_cast<uint32_t>(std::countr_zero(rest))));
      }
    }
    return absl::OkStatus();
  }

  // What stands before the rows, and all of it, with the rows.
  static int64_t HeadBytes(int64_t slots) {
    return RoundUp(8 * (slots + kLiveWords), kBufferAlignment);
  }
  static int64_t Bytes(int64_t row_bytes, int64_t slots) {
    return HeadBytes(slots) + RoundUp(row_bytes * slots, kBufferAlignment);
  }
};
static_assert(sizeof(HostChunk) == 16);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_CHUNK_IMPL_H_
