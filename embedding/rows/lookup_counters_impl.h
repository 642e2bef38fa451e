#ifndef HOTROW_EMBEDDING_ROWS_LOOKUP_COUNTERS_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_LOOKUP_COUNTERS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/row_key.h"

namespace hotrow::internal {

// Exact counters of keys within a budget: a count and the step of its last change for each {table,
// key}.
//
// Data:    one table with open addressing and linear probing, at most 7/8 full. All memory is taken
//          in Create; the table begins in a small part of it and grows into the rest as counters
//          come, so that few of them lie close together. Where a counter lies depends on a salt,
//          and nothing that callers see does.
// Threads: one at a time.
class LookupCounters {
 public:
  // Memory of a slot, beside a few hundred bytes.
  static constexpr int64_t kBytesPerSlot = 20;
  static constexpr int64_t kMinBytes = 8 * kBytesPerSlot;

  // As many slots as fit, 8 at least. option: what errors call the budget. ResourceExhausted when
  // the system has no memory.
  static absl::StatusOr<LookupCounters> Create(int64_t budget_bytes,
                                               std::string option = "admission_bytes");
  LookupCounters() = default;  // no room

  // Where the search for a key begins: its home, or any slot that a search has come to since the
  // last counter went and the last MakeRoom. Bringing its memory nearer pays, since a search mostly
  // looks at memory that no cache has: a loop over keys asks for homes some keys ahead.
  using Slot = int64_t;
  Slot PrefetchHome(const RowKey& key) const;

  struct Found {
    bool has_slot = false;
    uint32_t count = 0;  // 0, too, where it was last changed before step `oldest`
    Slot slot = 0;       // of the key, or the empty one where it belongs
  };
  Found Find(const RowKey& key, Slot from, uint32_t oldest) const;
  Found Find(const RowKey& key, uint32_t oldest) const { return Find(key, HomeOf(key), oldest); }
  // Lets the table grow, within the memory, so that it stays quick with so many keys more. They may
  // find no room all the same, see CheckRoom; without this call Set lets it grow.
  void MakeRoom(int64_t keys);
  // OK if so many keys more find room. ResourceExhausted, which names budget, need and remedy.
  absl::Status CheckRoom(int64_t keys) const;
  // There is room, or the key has a slot. count, step > 0.
  void Set(const RowKey& key, Slot from, uint32_t count, uint32_t step);
  void Set(const RowKey& key, uint32_t count, uint32_t step) { Set(key, HomeOf(key), count, step); }
  void Erase(const RowKey& key);  // if it is there
  // Looks at so many slots, on from where the last call ended, and drops the counters of which
  // `forgotten` says so.
  void Sweep(int64_t slots, absl::FunctionRef<bool(uint32_t table, uint32_t step)> forgotten);

  int64_t size() const { return size_; }
  int64_t capacity() const { return slots() / 8 * 7; }
  int64_t slots() const { return slots_.size(); }
  int64_t slots_used() const { return used_; }  // the table's size
  int64_t bytes() const { return slots() * kBytesPerSlot; }

  // docs/formats/saved_model.md. step: the last one that has changed anything.
  absl::StatusOr<HostBuffer<std::byte>> Save(uint32_t step) const;
  // Adds those that `keep` says. On an error some may have been added. step: that of Save.
  absl::Status Load(std::span<const std::byte> bytes, uint32_t step,
                    absl::FunctionRef<bool(const RowKey& key)> keep);

 private:
  // A counter in one record, so that a look at a slot is mostly one cache line.
  struct Counter {
    uint32_t key_low;
    uint32_t key_high;
    uint32_t table;
    uint32_t count;  // 0: the slot is empty
    uint32_t step;

    RowKey key() const { return {uint64_t{key_high} << 32 | key_low, table}; }
  };
  static_assert(sizeof(Counter) == kBytesPerSlot);

  Slot HomeOf(const RowKey& key) const;
  // The slot of the key, or the empty one where it belongs.
  Slot SlotOf(const RowKey& key, Slot from) const;
  void EraseAt(Slot slot);
  Slot After(Slot slot) const { return slot + 1 == used_ ? 0 : slot + 1; }
  void Grow(int64_t slots);

  uint64_t salt_ = 0;  // of the hash, so that nobody can choose keys that collide
  int64_t size_ = 0;
  int64_t used_ = 0;  // slots of the table: the first ones of slots_
  int64_t budget_bytes_ = 0;
  std::string option_;
  int64_t cursor_ = 0;  // of Sweep
  HostBuffer<Counter> slots_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_LOOKUP_COUNTERS_IMPL_H_
