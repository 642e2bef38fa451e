#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/entropy.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/rows/lookup_counters_impl.h"

namespace hotrow::internal {
namespace {

// The saved form: this, then the counters. Little-endian, no padding.
struct CountersHeader {
  char magic[8] = {'H', 'R', 'C', 'O', 'U', 'N', 'T', '1'};
  uint64_t step = 0;
  uint64_t counters = 0;
};
static_assert(sizeof(CountersHeader) == 24);
// key (64 bits), table, count, step (32 bits each)
constexpr size_t kSavedBytes = 20;

constexpr int64_t kFirstSlots = 16;
// In Counter::table while the table grows: the counter has its place. There are fewer tables.
constexpr uint32_t kPlaced = uint32_t{1} << 31;

}  // namespace

absl::StatusOr<LookupCounters> LookupCounters::Create(int64_t budget_bytes, std::string option) {
  HOTROW_CHECK(budget_bytes >= kMinBytes);
  LookupCounters out;
  out.budget_bytes_ = budget_bytes;
  out.option_ = std::move(option);
  out.salt_ = EntropyBits();
  const int64_t slots = budget_bytes / kBytesPerSlot;
  HOTROW_ASSIGN_OR_RETURN(out.slots_, HostBuffer<Counter>::Create(slots, HugePages::kTry));
  out.used_ = std::min(slots, kFirstSlots);
  return out;
}

LookupCounters::Slot LookupCounters::HomeOf(const RowKey& key) const {
  const RowHash hash = HashRowKey(key);
  const uint64_t mixed = Mix64(hash.lo ^ Mix64(hash.hi ^ salt_));
  return static_cast<int64_t>(
      (static_cast<unsigned __int128>(mixed) * static_cast<uint64_t>(used_)) >> 64);
}

LookupCounters::Slot LookupCounters::SlotOf(const RowKey& key, Slot slot) const {
  while (slots_[slot].count != 0 && slots_[slot].key() != key) slot = After(slot);
  return slot;
}

LookupCounters::Found LookupCounters::Find(const RowKey& key, Slot from, uint32_t oldest) const {
  if (slots() == 0) return {};
  const Slot slot = SlotOf(key, from);
  const Counter& counter = slots_[slot];
  if (counter.count == 0) return {.slot = slot};
  return {.has_slot = true, .count = counter.step >= oldest ? counter.count : 0, .slot = slot};
}

LookupCounters::Slot LookupCounters::PrefetchHome(const RowKey& key) const {
  const Slot home = HomeOf(key);
  __builtin_prefetch(slots_.data() + home);
  return home;
}

absl::Status LookupCounters::CheckRoom(int64_t keys) const {
  if (size_ + keys <= capacity()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      option_, ": the budget of ", budget_bytes_, " bytes has room for the counters of ",
      capacity(), " keys; ", size_, " are being counted, and ", keys, " more come, which need ",
      CeilDiv((size_ + keys) * 8, int64_t{7}) * kBytesPerSlot + kMinBytes,
      " bytes; raise it, or count for fewer steps (admission \"lookups:N:STEPS\")"));
}

void LookupCounters::Set(const RowKey& key, Slot from, uint32_t count, uint32_t step) {
  HOTROW_DCHECK(count > 0 && step > 0);
  Slot at = SlotOf(key, from);
  if (slots_[at].count == 0 && size_ >= used_ / 8 * 7) {
    HOTROW_CHECK(size_ < capacity());
    Grow(std::min(2 * used_, slots()));
    at = SlotOf(key, HomeOf(key));
  }
  Counter& slot = slots_[at];
  if (slot.count == 0) {
    HOTROW_CHECK(size_ < capacity());
    ++size_;
    slot.key_low = static_cast<uint32_t>(key.key);
    slot.key_high = static_cast<uint32_t>(key.key >> 32);
    slot.table = key.table;
  }
  slot.count = count;
  slot.step = step;
}

void LookupCounters::MakeRoom(int64_t keys) {
  // At most half full: searches are short.
  int64_t wanted = used_;
  while (wanted < slots() && size_ + keys > wanted / 2) wanted = std::min(2 * wanted, slots());
  if (wanted > used_) Grow(wanted);
}

// Each counter goes to the first slot from its new home on whose counter has no place yet, and that
// one is next. Slots whose counters have their places stay taken, so searches find them.
void LookupCounters::Grow(int64_t slots) {
  const int64_t before = std::exchange(used_, slots);
  for (Slot i = 0; i < before; ++i) {
    if ((slots_[i].table & kPlaced) != 0) continue;
    Counter carried = std::exchange(slots_[i], Counter());
    while (carried.count != 0) {
      Slot to = HomeOf(carried.key());
      while ((slots_[to].table & kPlaced) != 0) to = After(to);
      carried.table |= kPlaced;
      std::swap(carried, slots_[to]);
    }
  }
  for (Slot i = 0; i < used_; ++i) slots_[i].table &= ~kPlaced;
}

void LookupCounters::Erase(const RowKey& key) {
  if (size_ == 0) return;
  const Slot slot = SlotOf(key, HomeOf(key));
  if (slots_[slot].count != 0) EraseAt(slot);
}

// Counters behind the hole move up, unless that would take them before their home.
void LookupCounters::EraseAt(Slot hole) {
  const int64_t n = used_;
  const auto distance = [n](int64_t from, int64_t to) {
    return to >= from ? to - from : to - from + n;
  };
  for (int64_t next = After(hole); slots_[next].count != 0; next = After(next)) {
    if (distance(HomeOf(slots_[next].key()), next) < distance(hole, next)) continue;
    slots_[hole] = slots_[next];
    hole = next;
  }
  slots_[hole].count = 0;
  --size_;
}

void LookupCounters::Sweep(int64_t slots_to_see,
                           absl::FunctionRef<bool(uint32_t table, uint32_t step)> forgotten) {
  for (int64_t i = 0; i < std::min(slots_to_see, used_) && size_ > 0; ++i) {
    // Another may move into the hole.
    const Counter& slot = slots_[cursor_];
    while (slot.count != 0 && forgotten(slot.table, slot.step)) EraseAt(cursor_);
    cursor_ = After(cursor_);
  }
}

absl::StatusOr<HostBuffer<std::byte>> LookupCounters::Save(uint32_t step) const {
  const CountersHeader header = {.step = step, .counters = static_cast<uint64_t>(size_)};
  HOTROW_ASSIGN_OR_RETURN(
      HostBuffer<std::byte> out,
      HostBuffer<std::byte>::Create(
          static_cast<int64_t>(sizeof(header) + static_cast<size_t>(size_) * kSavedBytes),
          HugePages::kTry));
  std::byte* to = out.data();
  const auto put = [&to](const auto& value) {
    std::memcpy(to, &value, sizeof(value));
    to += sizeof(value);
  };
  put(header);
  for (int64_t i = 0; i < used_; ++i) {
    const Counter& slot = slots_[i];
    if (slot.count == 0) continue;
    put(slot.key().key);
    put(slot.table);
    put(slot.count);
    put(slot.step);
  }
  return out;
}

absl::Status LookupCounters::Load(std::span<const std::byte> bytes, uint32_t step,
                                  absl::FunctionRef<bool(const RowKey& key)> keep) {
  const auto damaged = [](const auto&... what) {
    return absl::DataLossError(absl::StrCat("counters of lookups: ", what...));
  };
  const CountersHeader expected;
  CountersHeader header;
  if (bytes.size() < sizeof(header)) return damaged("only ", bytes.size(), " bytes");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0) {
    return damaged("they do not begin with HRCOUNT1");
  }
  if (header.step != step) {
    return damaged("they are of step ", header.step, ", not of ", step);
  }
  bytes = bytes.subspan(sizeof(header));
  if (bytes.size() % kSavedBytes != 0 || bytes.size() / kSavedBytes != header.counters) {
    return damaged(bytes.size(), " bytes are not ", header.counters, " counters");
  }
  const auto get = [&bytes](auto* value) {
    std::memcpy(value, bytes.data(), sizeof(*value));
    bytes = bytes.subspan(sizeof(*value));
  };
  while (!bytes.empty()) {
    RowKey key;
    uint32_t count = 0;
    uint32_t last_step = 0;
    get(&key.key);
    get(&key.table);
    get(&count);
    get(&last_step);
    if (count == 0 || last_step == 0 || last_step > step) {
      return damaged("key ", key.key, " of table ", key.table, " has count ", count, " of step ",
                     last_step);
    }
    if (!keep(key)) continue;
    if (Find(key, 0).has_slot)
      return damaged("key ", key.key, " of table ", key.table, " is there twice");
    HOTROW_RETURN_IF_ERROR(CheckRoom(1));
    Set(key, count, last_step);
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
