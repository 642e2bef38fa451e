#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/entropy.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/serving/copy_cache_impl.h"

namespace hotrow::internal {
namespace {

constexpr uint64_t kShardsMax = 64;
// Fewer rows in a shard would make what is evicted a matter of chance.
constexpr int64_t kSlotsMin = 16;
constexpr int64_t kSlotsMax = std::numeric_limits<uint32_t>::max() / 4;
constexpr int64_t kWordBytes = 8;
constexpr int64_t kPageBytes = 4096;

}  // namespace

CopyCache::CopyCache(int64_t row_bytes, BudgetShare* share)
    : row_bytes_(row_bytes),
      stride_(RoundUp(row_bytes, kWordBytes)),
      salt_(EntropyBits()),
      share_(share) {}

CopyCache::~CopyCache() {
  if (!memory_.empty()) share_->Return(&memory_);
}

// At most two thirds of the places are taken.
int64_t CopyCache::IndexSize(int64_t slots) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(slots + slots / 2 + 1)));
}

int64_t CopyCache::ShardBytes(int64_t stride, int64_t slots) {
  return RoundUp(slots * (stride + static_cast<int64_t>(sizeof(Slot))) +
                     IndexSize(slots) * static_cast<int64_t>(sizeof(uint32_t)),
                 kBufferAlignment);
}

absl::StatusOr<std::unique_ptr<CopyCache>> CopyCache::Create(int64_t row_bytes, int64_t bytes,
                                                             int64_t rows_max, BudgetShare* share) {
  std::unique_ptr<CopyCache> out(new CopyCache(row_bytes, share));
  bytes = std::max<int64_t>(bytes / kPageBytes * kPageBytes, 0);
  for (uint64_t shards = kShardsMax; shards > 0; shards /= 2) {
    const auto per_shard = static_cast<int64_t>(bytes / static_cast<int64_t>(shards));
    // Shards get different numbers of keys; a quarter more holds all of a small table.
    const int64_t wanted = CeilDiv(rows_max, static_cast<int64_t>(shards)) * 5 / 4 + kSlotsMin;
    int64_t slots = 0;
    // The index grows in powers of two, so the number is found by halving.
    const auto largest = std::bit_floor(static_cast<uint64_t>(std::min(wanted, kSlotsMax)));
    for (auto step = static_cast<int64_t>(largest); step > 0; step /= 2) {
      if (slots + step <= std::min(wanted, kSlotsMax) &&
          ShardBytes(out->stride_, slots + step) <= per_shard) {
        slots += step;
      }
    }
    if (slots < kSlotsMin && !(shards == 1 && slots > 0)) continue;
    const int64_t shard_bytes = ShardBytes(out->stride_, slots);
    HOTROW_RETURN_IF_ERROR(share->Take(shard_bytes * static_cast<int64_t>(shards),
                                       "the cache of rows on a disk", &out->memory_));
    out->shards_ = std::make_unique<Shard[]>(shards);
    for (uint64_t s = 0; s < shards; ++s) {
      out->shards_[s].memory = out->memory_.data() + static_cast<int64_t>(s) * shard_bytes;
    }
    out->num_shards_ = shards;
    out->slots_ = slots;
    out->mask_ = static_cast<uint64_t>(IndexSize(slots)) - 1;
    break;
  }
  return out;
}

uint64_t CopyCache::HashOf(const RowKey& key) const {
  // 2^64 / golden ratio, as in base/hash.h: it spreads neighbouring numbers of tables.
  return Mix64(key.key ^ salt_ ^ (uint64_t{key.table} + 1) * 0x9e3779b97f4a7c15ULL);
}

int64_t CopyCache::PlaceOf(const Shard& shard, const RowKey& key, uint64_t hash) const {
  const uint32_t* const index = IndexOf(shard);
  const Slot* const slots = SlotsOf(shard);
  uint64_t place = static_cast<uint32_t>(hash) & mask_;
  while (index[place] != 0) {
    const Slot& slot = slots[index[place] - 1];
    if (slot.key == key.key && slot.table == key.table) break;
    place = (place + 1) & mask_;
  }
  return static_cast<int64_t>(place);
}

bool CopyCache::Find(const RowKey& key, std::byte* row) {
  if (num_shards_ == 0) return false;
  const uint64_t hash = HashOf(key);
  Shard& shard = ShardOf(hash);
  const std::lock_guard lock(shard.mutex);
  const uint32_t number = IndexOf(shard)[PlaceOf(shard, key, hash)];
  if (number == 0) return false;
  Slot& slot = SlotsOf(shard)[number - 1];
  if (slot.state <= kUsesMax) ++slot.state;
  std::memcpy(row, RowOf(shard, number - 1), static_cast<size_t>(row_bytes_));
  return true;
}

// Takes a slot's key out of the index, and moves those behind it forward that would no longer be
// found.
void CopyCache::Unlink(const Shard& shard, int64_t slot) {
  uint32_t* const index = IndexOf(shard);
  const Slot* const slots = SlotsOf(shard);
  const RowKey key = {.key = slots[slot].key, .table = slots[slot].table};
  auto hole = static_cast<uint64_t>(PlaceOf(shard, key, HashOf(key)));
  for (uint64_t place = (hole + 1) & mask_; index[place] != 0; place = (place + 1) & mask_) {
    const Slot& other = slots[index[place] - 1];
    const uint64_t home =
        static_cast<uint32_t>(HashOf({.key = other.key, .table = other.table})) & mask_;
    // It may stand at the hole if that lies between its home and where it stands.
    if (((place - home) & mask_) >= ((place - hole) & mask_)) {
      index[hole] = index[place];
      hole = place;
    }
  }
  index[hole] = 0;
}

void CopyCache::Insert(const RowKey& key, const std::byte* row) {
  if (num_shards_ == 0) return;
  const uint64_t hash = HashOf(key);
  Shard& shard = ShardOf(hash);
  const std::lock_guard lock(shard.mutex);
  if (IndexOf(shard)[PlaceOf(shard, key, hash)] != 0) return;  // another reader was first
  Slot* const slots = SlotsOf(shard);
  while (slots[shard.hand].state > 1) {
    --slots[shard.hand].state;
    shard.hand = shard.hand + 1 == slots_ ? 0 : shard.hand + 1;
  }
  const int64_t slot = shard.hand;
  shard.hand = slot + 1 == slots_ ? 0 : slot + 1;
  if (slots[slot].state != 0) Unlink(shard, slot);
  slots[slot] = {.key = key.key, .table = key.table, .state = 1};
  IndexOf(shard)[PlaceOf(shard, key, hash)] = static_cast<uint32_t>(slot + 1);
  std::memcpy(RowOf(shard, slot), row, static_cast<size_t>(row_bytes_));
}

void CopyCache::Replace(const RowKey& key, const std::byte* row) {
  if (num_shards_ == 0) return;
  const uint64_t hash = HashOf(key);
  Shard& shard = ShardOf(hash);
  const std::lock_guard lock(shard.mutex);
  const uint32_t number = IndexOf(shard)[PlaceOf(shard, key, hash)];
  if (number != 0) std::memcpy(RowOf(shard, number - 1), row, static_cast<size_t>(row_bytes_));
}

void CopyCache::ForgetIf(absl::FunctionRef<bool(const RowKey& key)> call) {
  for (uint64_t s = 0; s < num_shards_; ++s) {
    Shard& shard = shards_[s];
    const std::lock_guard lock(shard.mutex);
    Slot* const slots = SlotsOf(shard);
    for (int64_t slot = 0; slot < slots_; ++slot) {
      if (slots[slot].state == 0 || !call({.key = slots[slot].key, .table = slots[slot].table})) {
        continue;
      }
      Unlink(shard, slot);
      slots[slot].state = 0;
    }
  }
}

void CopyCache::ForEach(int64_t number, int64_t begin, int64_t end,
                        absl::FunctionRef<void(const RowKey& key, uint32_t uses)> call) {
  Shard& shard = shards_[static_cast<size_t>(number)];
  const std::lock_guard lock(shard.mutex);
  const Slot* const slots = SlotsOf(shard);
  for (int64_t i = begin; i < std::min(end, slots_); ++i) {
    if (slots[i].state == 0) continue;
    call({.key = slots[i].key, .table = slots[i].table}, slots[i].state - 1);
  }
}

}  // namespace hotrow::internal
