#ifndef HOTROW_TESTS_CACHE_ROW_CACHE_MODEL_H_
#define HOTROW_TESTS_CACHE_ROW_CACHE_MODEL_H_

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "cache/cache_policies.h"
#include "tests/cache/cache_driver.h"
#include "tests/support/gpu_test.h"

// Random operations on a cache of any device, against a model of what must hold.

namespace hotrow::test {

inline constexpr int64_t kWays = cache::Bucket::kWays;

struct Shape {
  int64_t buckets;
  int64_t keys_max;   // of a batch
  uint64_t universe;  // how many distinct keys there are
  int operations;
  int64_t row_bytes;
};

struct ModelRow {
  uint64_t version = 0;  // what the row's bytes are made of
  int64_t slot = -1;
  int pins = 0;
  bool dirty = false;
};

// Runs one random sequence and checks every answer against what the caller may rely on: nothing
// about scores, everything about contents, pins, dirty rows and room.
class RandomRun {
 public:
  RandomRun(const Shape& shape, CachePolicy policy, uint64_t seed, ThreadPool* pool,
            Device device = Device::kCpu)
      : shape_(shape),
        cache_(CacheOfBuckets(shape.buckets, policy, shape.row_bytes, device), pool),
        in_order_(device == Device::kCpu),
        random_(seed, RandomPurpose::kTest),
        row_bytes_(shape.row_bytes),
        partitions_(cache_.Partitions()) {}

  void Run() {
    for (int i = 0; i < shape_.operations && !testing::Test::HasFatalFailure(); ++i) {
      const uint64_t dice = random_.Below(100);
      if (dice < 45) {
        Insert();
      } else if (dice < 80) {
        ReleaseOldestStep();
      } else if (dice < 90) {
        FindSome();
      } else if (dice < 92) {
        WriteBack();
      } else {
        cache_.EndStep();
      }
    }
    CheckAll();
  }

  CacheDriver& cache() { return cache_; }
  // Every answer the cache gave, in order.
  const std::string& transcript() const { return transcript_; }

 private:
  void FillPattern(RowKey key, uint64_t version, std::span<std::byte> row) const {
    uint64_t x = key.key * 0x9e3779b97f4a7c15ULL + key.table * 31 + version;
    for (std::byte& byte : row) {
      x = x * 6364136223846793005ULL + 1442695040888963407ULL;
      byte = static_cast<std::byte>(x >> 56);
    }
  }
  bool HasPattern(RowKey key, uint64_t version, const std::byte* row) const {
    std::vector<std::byte> want(static_cast<size_t>(row_bytes_));
    FillPattern(key, version, want);
    return std::memcmp(want.data(), row, want.size()) == 0;
  }
  void WriteRow(RowKey key, uint64_t version, int64_t slot) {
    std::vector<std::byte> row(static_cast<size_t>(row_bytes_));
    FillPattern(key, version, row);
    cache_.WriteRow(slot, row);
  }

  RowKey RandomKey() {
    // Skewed, so that hits are common; the ends of the key space and two tables on purpose.
    const uint64_t r = std::min(random_.Below(shape_.universe), random_.Below(shape_.universe));
    return {r % 2 == 0 ? r / 2 : ~uint64_t{0} - r / 2, static_cast<uint32_t>(random_.Below(2))};
  }

  // The slots a key may use, in the order main bucket 1, main bucket 2, overflow.
  struct Home {
    std::vector<int64_t> buckets;
    std::vector<int64_t> overflow_buckets;
  };
  Home HomeOf(RowKey key) const {
    const RowHash hash = HashRowKey(key);
    const cache::PartitionState& p = partitions_[hash.partition(partitions_.size())];
    const auto n = static_cast<uint64_t>(p.buckets);
    Home home;
    home.buckets = {p.first_bucket + hash.bucket1(n), p.first_bucket + hash.bucket2(n)};
    for (int64_t b = 0; b < p.overflow_buckets; ++b)
      home.overflow_buckets.push_back(p.first_bucket + p.buckets + b);
    return home;
  }
  bool AllPinned(std::span<const int64_t> buckets) const {
    for (const int64_t b : buckets) {
      for (int64_t slot = b * kWays; slot < (b + 1) * kWays; ++slot) {
        const auto at = slots_.find(slot);
        if (at == slots_.end() || rows_.at(at->second).pins == 0) return false;
      }
    }
    return true;
  }
  bool AnyFree(std::span<const int64_t> buckets) const {
    for (const int64_t b : buckets) {
      for (int64_t slot = b * kWays; slot < (b + 1) * kWays; ++slot) {
        if (!slots_.contains(slot)) return true;
      }
    }
    return false;
  }

  void Insert() {
    // A row may be pinned by 63 steps at most.
    if (steps_.size() >= 8) ReleaseOldestStep();
    std::vector<RowKey> keys;
    const uint64_t n = random_.Below(8) == 0
                           ? random_.Below(2)
                           : random_.Below(static_cast<uint64_t>(shape_.keys_max));
    std::unordered_set<RowKey, RowKeyHash> seen;
    while (keys.size() < n && seen.size() < shape_.universe) {
      const RowKey key = RandomKey();
      if (seen.insert(key).second) keys.push_back(key);
    }
    const InsertAnswer batch = cache_.FindOrInsert(keys);
    Record(batch);

    for (size_t i = 0; i < keys.size(); ++i) {
      const auto at = rows_.find(keys[i]);
      if (at == rows_.end()) continue;
      ASSERT_EQ(batch.placement[i], Placement::kHit);
      ASSERT_EQ(batch.slots[i], at->second.slot);
      ASSERT_EQ(batch.evicted[i], 0);
      ++at->second.pins;
    }
    // The misses, in the order in which a cache on the CPU placed those of one partition.
    std::vector<uint8_t> evicts(keys.size(), 0);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (batch.placement[i] == Placement::kHit) {
        ASSERT_TRUE(rows_.contains(keys[i]));
        continue;
      }
      evicts[i] = batch.slots[i] >= 0 && slots_.contains(batch.slots[i]) ? 1 : 0;
      ASSERT_NO_FATAL_FAILURE(CheckMiss(batch, i));
    }
    for (size_t i = 0; i < keys.size() && !in_order_; ++i) {
      ASSERT_NO_FATAL_FAILURE(CheckRoom(batch, i, HomeOf(keys[i]), evicts[i] != 0));
    }

    // Most steps fill their rows; some give up a part.
    std::vector<int64_t> filled;
    std::vector<int64_t> abandoned;
    std::vector<RowKey> step;
    const bool give_up = random_.Below(10) == 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (batch.placement[i] == Placement::kNoRoom) continue;
      if (batch.placement[i] == Placement::kFilled) {
        if (give_up && random_.Below(2) == 0) {
          abandoned.push_back(batch.slots[i]);
          slots_.erase(batch.slots[i]);
          rows_.erase(keys[i]);
          continue;
        }
        WriteRow(keys[i], rows_[keys[i]].version, batch.slots[i]);
        filled.push_back(batch.slots[i]);
      }
      step.push_back(keys[i]);
    }
    cache_.MarkFilled(filled);
    cache_.Abandon(abandoned);
    steps_.push_back(std::move(step));
    const RowCacheStats stats = cache_.Stats();
    ASSERT_EQ(stats.used_ways, std::ssize(rows_));
    ASSERT_EQ(stats.no_room, no_room_);
    ASSERT_EQ(stats.overflow_inserts, overflow_inserts_);
    ASSERT_EQ(stats.evictions, evictions_);
    ASSERT_EQ(stats.dirty_evictions, dirty_evictions_);
  }

  // A miss got a slot where it may lie, and whoever had it was let go as it should be.
  void CheckMiss(const InsertAnswer& batch, size_t i) {
    const Home home = HomeOf(batch.keys[i]);
    if (in_order_) {
      const int64_t slot = batch.slots[i];
      ASSERT_NO_FATAL_FAILURE(CheckRoom(batch, i, home, slot >= 0 && slots_.contains(slot)));
    }
    if (batch.placement[i] == Placement::kNoRoom) {
      ++no_room_;
      ASSERT_EQ(batch.slots[i], -1);
      ASSERT_EQ(batch.evicted[i], 0);
      return;
    }
    ASSERT_EQ(batch.placement[i], Placement::kFilled);
    const int64_t slot = batch.slots[i];
    const bool in_overflow = std::ranges::count(home.overflow_buckets, slot / kWays) == 1;
    if (in_overflow) {
      ++overflow_inserts_;
    } else {
      ASSERT_GE(std::ranges::count(home.buckets, slot / kWays), 1);
    }
    const auto old = slots_.find(slot);
    if (old == slots_.end()) {
      ASSERT_EQ(batch.evicted[i], 0);
    } else {
      const RowKey victim = old->second;
      const ModelRow& row = rows_.at(victim);
      ASSERT_EQ(row.pins, 0);
      ASSERT_EQ(batch.evicted[i], row.dirty ? 1 : 0);
      ++evictions_;
      if (row.dirty) {
        ++dirty_evictions_;
        ASSERT_EQ(batch.evicted_keys[i], victim);
        ASSERT_TRUE(HasPattern(victim, row.version,
                               batch.evicted_rows.data() + static_cast<int64_t>(i) * row_bytes_));
        store_[victim] = row.version;
      }
      rows_.erase(victim);
    }
    slots_[slot] = batch.keys[i];
    const auto stored = store_.find(batch.keys[i]);
    rows_[batch.keys[i]] = {
        .version = stored == store_.end() ? 0 : stored->second, .slot = slot, .pins = 1};
  }

  // What must be true of the room in the cache when a miss was placed. It stays true while others
  // are placed, since no pin comes off and no way becomes free meanwhile: so it holds at the moment
  // of placing, which is known where keys are placed in order, and after the batch everywhere.
  void CheckRoom(const InsertAnswer& batch, size_t i, const Home& home, bool evicts) {
    if (batch.placement[i] == Placement::kHit) return;
    if (batch.placement[i] == Placement::kNoRoom) {
      ASSERT_TRUE(AllPinned(home.buckets) && AllPinned(home.overflow_buckets));
      return;
    }
    const bool in_overflow = std::ranges::count(home.overflow_buckets, batch.slots[i] / kWays) == 1;
    if (in_overflow) {
      ASSERT_TRUE(AllPinned(home.buckets));
    }
    if (evicts) {
      ASSERT_FALSE(AnyFree(in_overflow ? home.overflow_buckets : home.buckets));
    }
  }

  void ReleaseOldestStep() {
    if (steps_.empty()) return;
    const bool dirty = random_.Below(3) != 0;
    bool dirty_at_unpin = dirty;
    std::vector<int64_t> slots;
    for (const RowKey& key : steps_.front()) {
      ModelRow& row = rows_.at(key);
      if (dirty) {
        WriteRow(key, ++row.version, row.slot);
        row.dirty = true;
      }
      ASSERT_GT(row.pins, 0);
      --row.pins;
      slots.push_back(row.slot);
    }
    if (dirty && random_.Below(4) == 0) {
      cache_.MarkDirty(slots);  // the long way round
      dirty_at_unpin = false;
    }
    cache_.Unpin(slots, dirty_at_unpin);
    steps_.pop_front();
  }

  void FindSome() {
    std::vector<RowKey> keys(random_.Below(200));
    for (RowKey& key : keys) key = RandomKey();
    const std::vector<std::byte*> rows = cache_.Find(keys);
    const int64_t stride = row_bytes_ + 16 * static_cast<int64_t>(random_.Below(3));
    const CacheDriver::FoundRows copies = cache_.FindRows(keys, stride);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto at = rows_.find(keys[i]);
      ASSERT_EQ(rows[i] != nullptr, at != rows_.end());
      ASSERT_EQ(copies.found[i], at != rows_.end() ? 1 : 0);
      const std::byte* const copy = copies.out.data() + static_cast<int64_t>(i) * stride;
      const int64_t copied = rows[i] == nullptr ? 0 : row_bytes_;
      ASSERT_TRUE(std::all_of(copy + copied, copy + stride,
                              [](std::byte byte) { return byte == std::byte{0xee}; }));
      if (rows[i] == nullptr) continue;
      ASSERT_EQ(rows[i], cache_.cache().row(at->second.slot));
      ASSERT_TRUE(HasPattern(keys[i], at->second.version, copy));
    }
  }

  void WriteBack() {
    int64_t handed_out = 0;
    HOTROW_ASSERT_OK(cache_.ForEachDirty([&](auto keys, auto rows) {
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto at = rows_.find(keys[i]);
        EXPECT_TRUE(at != rows_.end() && at->second.dirty);
        EXPECT_TRUE(HasPattern(keys[i], at->second.version, rows[i]));
        at->second.dirty = false;
        store_[keys[i]] = at->second.version;
      }
      handed_out += std::ssize(keys);
      return absl::OkStatus();
    }));
    for (const auto& [key, row] : rows_)
      ASSERT_FALSE(row.dirty) << "a dirty row was not handed out";
    transcript_ += absl::StrCat("dirty ", handed_out, "\n");
  }

  // At the end: all resident rows have their bytes, and after all pins are gone nothing is pinned.
  void CheckAll() {
    while (!steps_.empty() && !testing::Test::HasFatalFailure()) ReleaseOldestStep();
    for (const auto& [key, row] : rows_) {
      ASSERT_TRUE(HasPattern(key, row.version, cache_.ReadRow(row.slot).data()));
    }
    int64_t used = 0;
    for (const cache::Bucket& bucket : cache_.Buckets()) {
      for (int64_t way = 0; way < kWays; ++way) {
        ASSERT_EQ(cache::PinsOf(bucket.state[way]), 0);
        ASSERT_EQ(bucket.state[way] == cache::kEmpty, bucket.tag[way] == 0);
        used += bucket.tag[way] != 0 ? 1 : 0;
      }
    }
    ASSERT_EQ(used, std::ssize(rows_));
    WriteBack();
  }

  void Record(const InsertAnswer& batch) {
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      transcript_ += absl::StrCat(batch.slots[i], " ", static_cast<int>(batch.placement[i]), " ",
                                  static_cast<int>(batch.evicted[i]), " ");
      if (batch.evicted[i] != 0) transcript_ += absl::StrCat(batch.evicted_keys[i].key, " ");
    }
    transcript_ += "\n";
  }

  Shape shape_;
  CacheDriver cache_;
  bool in_order_;  // keys of a batch are placed one after the other
  RandomStream random_;
  int64_t row_bytes_ = 0;
  std::vector<cache::PartitionState> partitions_;  // as they were at first: where buckets lie
  std::unordered_map<RowKey, ModelRow, RowKeyHash> rows_;   // resident
  std::unordered_map<int64_t, RowKey> slots_;               // who is where
  std::unordered_map<RowKey, uint64_t, RowKeyHash> store_;  // versions below; absent means 0
  std::deque<std::vector<RowKey>> steps_;  // in flight: the keys that each has pinned
  std::string transcript_;
  int64_t no_room_ = 0;
  int64_t overflow_inserts_ = 0;
  int64_t evictions_ = 0;
  int64_t dirty_evictions_ = 0;
};

// Random runs on caches of so many buckets.
inline void RunTiny(CachePolicy policy, int64_t buckets, Device device = Device::kCpu) {
  const int on_cpu = RunsSlowTests() ? 12 : buckets > 10 ? 2 : ForSanitizer(6, 3);
  const int seeds = device == Device::kCpu ? on_cpu : ForGpu(12, 1);
  for (const uint64_t seed : Seeds(seeds)) {
    SCOPED_TRACE(testing::Message() << "buckets=" << buckets << " HOTROW_TEST_SEED=" << seed);
    const Shape shape = {.buckets = buckets,
                         .keys_max = 40 * buckets,
                         .universe = static_cast<uint64_t>(150 * buckets),
                         .operations = device == Device::kCpu ? (buckets > 10 ? 60 : 200)
                                       : buckets > 10         ? ForGpu(60, 25)
                                                              : ForGpu(200, 100),
                         .row_bytes = static_cast<int64_t>(128 + 16 * (seed % 4))};
    RandomRun run(shape, policy, seed, nullptr, device);
    run.Run();
    if (testing::Test::HasFatalFailure()) return;
    // The sequence reached what it is meant to test.
    EXPECT_GT(run.cache().Stats().evictions, 0);
    if (buckets <= 5) {
      EXPECT_GT(run.cache().Stats().overflow_inserts, 0);
    }
  }
}

// Random steps, each with marks taken by updates, by TakeMarked and by evictions: together they
// give every row that was dirty when the marks were made, once, with the bytes of that moment.
inline void RunMarks(uint64_t seed, Device device = Device::kCpu) {
  RandomStream random(seed, RandomPurpose::kTest);
  const auto buckets = static_cast<int64_t>(1 + random.Below(6));
  const CachePolicy policy = AllPolicies()[random.Below(CachePolicies().size())];
  CacheDriver cache(CacheOfBuckets(buckets, policy, 128, device));
  const auto number_of = [](const std::byte* row) {
    uint64_t number;
    std::memcpy(&number, row, sizeof(number));
    return number;
  };
  const auto set_row = [&cache](int64_t slot, uint64_t number) {
    cache.WriteRow(slot, std::as_bytes(std::span(&number, 1)));
  };
  std::unordered_map<RowKey, uint64_t, RowKeyHash> below;    // the tier below, all older rows
  std::unordered_map<RowKey, uint64_t, RowKeyHash> present;  // what each row is now
  std::unordered_map<RowKey, uint64_t, RowKeyHash> wanted;   // of the snapshot
  std::unordered_map<RowKey, uint64_t, RowKeyHash> got;
  uint64_t version = 0;
  const auto hand_out = [&](const RowKey& key, const std::byte* row) {
    ASSERT_TRUE(got.emplace(key, number_of(row)).second) << "handed out twice";
    below[key] = number_of(row);
  };
  const auto step = [&] {
    std::vector<RowKey> keys;
    std::unordered_set<RowKey, RowKeyHash> distinct;
    for (int i = 0; i < 12; ++i) {
      const RowKey key = {random.Below(300), static_cast<uint32_t>(random.Below(2))};
      if (distinct.insert(key).second) keys.push_back(key);
    }
    const InsertAnswer batch = cache.FindOrInsert(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::byte* const row =
          batch.evicted_rows.data() + i * static_cast<size_t>(cache.row_bytes());
      if (batch.evicted[i] == kEvictedMarked) hand_out(batch.evicted_keys[i], row);
      if (batch.evicted[i] == kEvictedDirty) {
        std::memcpy(&below[batch.evicted_keys[i]], row, sizeof(uint64_t));
      }
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_NE(batch.placement[i], Placement::kNoRoom);
      if (batch.placement[i] == Placement::kFilled) set_row(batch.slots[i], below[keys[i]]);
    }
    cache.MarkFilled(batch.SlotsWith(Placement::kFilled));
    const bool update = random.Below(4) != 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t number = number_of(cache.ReadRow(batch.slots[i]).data());
      ASSERT_EQ(number, present[keys[i]]) << "a row was lost";
    }
    // In bites of any size.
    for (std::span<const int64_t> left = batch.slots; update && !left.empty();) {
      const size_t most = 1 + random.Below(8);
      const CacheDriver::Taken taken = cache.TakeMarks(left, most);
      ASSERT_GT(taken.looked, 0);
      ASSERT_LE(taken.keys.size(), most);
      if (taken.keys.size() < most) {
        ASSERT_EQ(taken.looked, std::ssize(left));
      }
      size_t position = keys.size() - left.size();
      for (size_t k = 0; k < taken.keys.size(); ++k) {
        while (position < keys.size() && !(keys[position] == taken.keys[k])) ++position;
        ASSERT_LT(position, keys.size()) << "not a key of these slots, or not in their order";
        ASSERT_NO_FATAL_FAILURE(hand_out(
            taken.keys[k], taken.rows.data() + k * static_cast<size_t>(cache.row_bytes())));
      }
      left = left.subspan(static_cast<size_t>(taken.looked));
    }
    for (size_t i = 0; update && i < keys.size(); ++i) {
      present[keys[i]] = ++version;
      set_row(batch.slots[i], version);
    }
    cache.Unpin(batch.slots, update);
    cache.EndStep();
  };
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 10; ++i) ASSERT_NO_FATAL_FAILURE(step());
    wanted.clear();
    got.clear();
    for (const auto& [key, number] : present) {
      if (number != below[key]) wanted[key] = number;
    }
    ASSERT_EQ(cache.MarkDirtyRows(), std::ssize(wanted));
    HOTROW_ASSERT_OK(cache.ForEachDirty(
        [](auto, auto) { return absl::InternalError("a marked row is not dirty"); }));
    const bool drop = random.Below(4) == 0;
    for (int64_t cursor = 0; cursor < cache.cache().num_slots();) {
      if (random.Below(2) == 0) {
        ASSERT_NO_FATAL_FAILURE(step());
      }
      const size_t most = 1 + random.Below(20);
      const CacheDriver::Taken taken = cache.TakeMarked(&cursor, most);
      ASSERT_LE(taken.keys.size(), most);
      for (size_t k = 0; k < taken.keys.size(); ++k) {
        ASSERT_NO_FATAL_FAILURE(hand_out(
            taken.keys[k], taken.rows.data() + k * static_cast<size_t>(cache.row_bytes())));
      }
      cache.Unpin(taken.slots, /*dirty=*/false);
      if (drop && random.Below(4) == 0) break;
    }
    if (drop) {
      // What is left is dirty again: nothing is lost, as the next rounds see.
      cache.DropMarks();
    } else {
      ASSERT_EQ(got, wanted);
    }
  }
}

// Steps of random keys on a small SIEVE cache, against the policy in plain words, row by row: who
// is evicted, and what that does to the rows that stay. On a GPU a batch has one key, since the
// order within a batch is open there.
class SieveRun {
 public:
  SieveRun(uint64_t seed, Device device)
      : random_(seed, RandomPurpose::kTest),
        buckets_(static_cast<int64_t>(1 + random_.Below(4))),
        keys_max_(device == Device::kCpu ? 1 + random_.Below(4) : 1),
        cache_(CacheOfBuckets(buckets_, CachePolicy::kSieve, 128, device)),
        rows_(static_cast<size_t>(buckets_ * kWays)) {}

  void Run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) Step();
  }
  int64_t evictions() const { return evictions_; }
  int64_t spared() const { return spared_; }
  int64_t rounds() const { return rounds_; }

 private:
  struct Row {
    bool used = false;
    RowKey key;
    int age = 0;  // ageings since it came, 63 at most
    bool touched = false;
    bool spared = false;
    int pins = 0;
  };

  Row& At(int64_t bucket, int64_t way) { return rows_[static_cast<size_t>(bucket * kWays + way)]; }

  void Step() {
    std::vector<RowKey> keys;
    const uint64_t n = 1 + random_.Below(keys_max_);
    while (keys.size() < n) {
      // Half of the keys are hot ones; the others come once in a while.
      const uint64_t universe = static_cast<uint64_t>(buckets_) * (random_.Below(2) == 0 ? 20 : 90);
      const RowKey key = {random_.Below(universe), 0};
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
    const InsertAnswer batch = cache_.FindOrInsert(keys);
    for (size_t i = 0; i < n; ++i) {
      if (batch.placement[i] != Placement::kHit) continue;
      Row& row = rows_[static_cast<size_t>(batch.slots[i])];
      ASSERT_TRUE(row.used && row.key == keys[i]);
      row.touched = true;
      ++row.pins;
    }
    for (size_t i = 0; i < n; ++i) {
      if (batch.placement[i] == Placement::kHit) continue;
      ASSERT_EQ(batch.placement[i], Placement::kFilled);
      ASSERT_NO_FATAL_FAILURE(CheckMiss(keys[i], batch.slots[i]));
      rows_[static_cast<size_t>(batch.slots[i])] = {.used = true, .key = keys[i], .pins = 1};
      ++placed_;
    }
    cache_.MarkFilled(batch.SlotsWith(Placement::kFilled));
    in_flight_.push_back(batch.slots);
    // Up to three steps hold their rows: too few for room to matter more than scores.
    while (in_flight_.size() > random_.Below(4)) {
      cache_.Unpin(in_flight_.front(), random_.Below(2) == 0);
      for (const int64_t slot : in_flight_.front()) --rows_[static_cast<size_t>(slot)].pins;
      in_flight_.pop_front();
    }
    cache_.EndStep();
    if (placed_ >= buckets_ * kWays / 32) {
      placed_ = 0;
      for (Row& row : rows_) row.age = std::min(row.age + 1, 63);
    }
  }

  // A row's place in the queue of the hand: untouched rows before it, oldest first, then those
  // behind it, then touched ones in the same order.
  static std::tuple<bool, bool, int> Turn(const Row& row) {
    return {row.touched, row.spared, -row.age};
  }

  void CheckMiss(RowKey key, int64_t slot) {
    const RowHash hash = HashRowKey(key);
    const auto n = static_cast<uint64_t>(buckets_);
    const std::vector<int64_t> pair = {hash.bucket1(n), hash.bucket2(n)};
    const int64_t bucket = slot / kWays;
    ASSERT_TRUE(bucket == pair[0] || bucket == pair[1]);
    const Row victim = rows_[static_cast<size_t>(slot)];
    if (!victim.used) return;
    ++evictions_;
    ASSERT_EQ(victim.pins, 0);
    for (const int64_t b : pair) {
      for (int64_t way = 0; way < kWays; ++way) {
        const Row& other = At(b, way);
        ASSERT_TRUE(other.used) << "a way was empty";
        if (other.pins == 0) {
          ASSERT_LE(Turn(victim), Turn(other));
        }
      }
    }
    // The hand went on in the victim's bucket.
    rounds_ += victim.spared ? 1 : 0;
    for (int64_t way = 0; way < kWays; ++way) {
      Row& row = At(bucket, way);
      const bool met = row.age >= victim.age;
      if (victim.touched) row.touched = false;  // it went all the way round
      if (victim.spared && !row.spared) {
        row.touched = false;  // the rest of the last round
        continue;
      }
      if (row.spared != victim.spared) continue;
      row.spared = row.touched && met;  // of this round
      if (row.spared) {
        row.touched = false;
        ++spared_;
      }
    }
  }

  RandomStream random_;
  int64_t buckets_;
  uint64_t keys_max_;
  CacheDriver cache_;
  std::vector<Row> rows_;  // by slot
  std::deque<std::vector<int64_t>> in_flight_;
  int64_t placed_ = 0;
  int64_t evictions_ = 0;
  int64_t spared_ = 0;
  int64_t rounds_ = 0;
};

inline void RunSieve(Device device) {
  for (const uint64_t seed : Seeds(device == Device::kCpu ? 20 : ForGpu(6, 2))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    SieveRun run(seed, device);
    run.Run(device == Device::kCpu ? 3000 : ForGpu(2000, 400));
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_GT(run.evictions(), 50);
    EXPECT_GT(run.spared(), 10);
    // A hand needs longer for a round than the short runs on a GPU are.
    if (device == Device::kCpu) {
      EXPECT_GT(run.rounds(), 0);
    }
  }
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_CACHE_ROW_CACHE_MODEL_H_
