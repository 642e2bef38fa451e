#include <atomic>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "cache/address_index_impl.h"

namespace hotrow::cache {
namespace {

// Keys that a thread looks up at a time.
constexpr int64_t kFindGrain = 2048;

// The plain reference: what changes it is done by the caller alone, key by key.
class CpuAddressIndex : public AddressIndex {
 public:
  explicit CpuAddressIndex(HostBuffer<AddressBucket> buckets) : buckets_(std::move(buckets)) {}

  absl::Status Find(const ExecContext& ctx, std::span<const RowKey> keys,
                    std::span<const int64_t> slots, std::span<std::byte*> rows) const override {
    HOTROW_CHECK(rows.size() == keys.size() && (slots.empty() || slots.size() == keys.size()));
    ParallelFor(ctx.pool, std::ssize(keys), kFindGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (!slots.empty() && slots[i] >= 0) continue;
        const Place place = PlaceOf(keys[i]);
        rows[i] = place.bucket == nullptr ? nullptr : AddressOf(place.bucket->word[place.way]);
      }
    });
    return absl::OkStatus();
  }

  absl::Status InsertOrAssign(const ExecContext& /*ctx*/, std::span<const RowKey> keys,
                              std::span<std::byte* const> rows) override {
    HOTROW_CHECK(rows.size() == keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      if (rows[i] == nullptr) continue;
      if (!FitsWord(rows[i]) || !Put(keys[i], rows[i])) ++counters_.no_room;
    }
    return absl::OkStatus();
  }

  absl::Status Erase(const ExecContext& /*ctx*/, std::span<const RowKey> keys) override {
    for (const RowKey& key : keys) {
      const Place place = PlaceOf(key);
      if (place.bucket == nullptr) continue;
      place.bucket->word[place.way] = kEmptyWord;
      AddressBucket& first = buckets_[AddressHomeOf(key, buckets_.size()).bucket1];
      if (place.bucket != &first) --first.overflowed;
      --counters_.entries;
    }
    return absl::OkStatus();
  }

  absl::Status Clear(const ExecContext& /*ctx*/) override {
    for (AddressBucket& bucket : buckets_) bucket = {};
    counters_.entries = 0;
    return absl::OkStatus();
  }

  absl::Status EnqueueStats(const ExecContext& /*ctx*/) override {
    entries_.store(counters_.entries, std::memory_order_relaxed);
    no_room_.store(counters_.no_room, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  AddressIndexStats LastStats() const override {
    return {.ways = buckets_.size() * AddressBucket::kWays,
            .used_bytes = used_bytes(),
            .entries = entries_.load(std::memory_order_relaxed),
            .no_room = no_room_.load(std::memory_order_relaxed)};
  }

 private:
  struct Place {
    AddressBucket* bucket = nullptr;  // null: not there
    int way = 0;
  };

  Place PlaceOf(const RowKey& key) const {
    const AddressHome home = AddressHomeOf(key, buckets_.size());
    for (const int64_t b : {home.bucket1, home.bucket2}) {
      auto& bucket = const_cast<AddressBucket&>(buckets_[b]);
      for (int way = 0; way < AddressBucket::kWays; ++way) {
        if (MayBe(bucket.word[way], home.tag) && bucket.key[way] == key.key &&
            bucket.table[way] == key.table) {
          return {&bucket, way};
        }
      }
      if (bucket.overflowed == 0) break;
    }
    return {};
  }

  bool Put(const RowKey& key, const std::byte* row) {
    const AddressHome home = AddressHomeOf(key, buckets_.size());
    if (const Place place = PlaceOf(key); place.bucket != nullptr) {
      place.bucket->word[place.way] = WordOf(home.tag, row);
      return true;
    }
    for (const int64_t b : {home.bucket1, home.bucket2}) {
      AddressBucket& bucket = buckets_[b];
      for (int way = 0; way < AddressBucket::kWays; ++way) {
        if (bucket.word[way] != kEmptyWord) continue;
        bucket.word[way] = WordOf(home.tag, row);
        bucket.key[way] = key.key;
        bucket.table[way] = key.table;
        if (b != home.bucket1) ++buckets_[home.bucket1].overflowed;
        ++counters_.entries;
        return true;
      }
    }
    return false;
  }

  HostBuffer<AddressBucket> buckets_;
  AddressCounters counters_;
  std::atomic<int64_t> entries_{0};  // of EnqueueStats
  std::atomic<int64_t> no_room_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<AddressIndex>> CreateCpuAddressIndex(int64_t buckets) {
  HOTROW_ASSIGN_OR_RETURN(HostBuffer<AddressBucket> memory,
                          HostBuffer<AddressBucket>::Create(buckets, HugePages::kTry));
  return std::make_unique<CpuAddressIndex>(std::move(memory));
}

}  // namespace hotrow::cache
