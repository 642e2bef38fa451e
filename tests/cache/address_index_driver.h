#ifndef HOTROW_TESTS_CACHE_ADDRESS_INDEX_DRIVER_H_
#define HOTROW_TESTS_CACHE_ADDRESS_INDEX_DRIVER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "cache/address_index.h"
#include "cache/address_index_impl.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_driver.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

// What an AddressIndex must do on every device.
namespace hotrow::test {

// An address that nobody reads.
inline std::byte* Address(uint64_t number) {
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(16 * (number + 1)));
}

inline std::byte* const kUntouched = Address(1 << 20);

// Makes the calls of an index of so many buckets with vectors of the host; each call waits.
class AddressIndexDriver {
 public:
  AddressIndexDriver(int64_t buckets, Device device) {
    // Not by a budget, which is rounded to pages.
    auto index = device == Device::kCpu ? cache::CreateCpuAddressIndex(buckets)
                                        : cache::CreateCudaAddressIndex(buckets);
    HOTROW_CHECK(index.ok());
    index_ = *std::move(index);
    auto stream = DeviceStream::Create(device);
    HOTROW_CHECK(stream.ok());
    stream_ = *std::move(stream);
    ctx_ = stream_.On({.pool = &pool_});
  }

  std::vector<std::byte*> Find(std::span<const RowKey> keys, std::span<const int64_t> slots = {}) {
    const auto n = std::ssize(keys);
    Reserve(n);
    std::copy(keys.begin(), keys.end(), keys_.data());
    std::copy(slots.begin(), slots.end(), slots_.data());
    std::fill_n(rows_.data(), n, kUntouched);
    EXPECT_OK(index_->Find(ctx_, keys_.first(n),
                           slots.empty() ? std::span<const int64_t>() : slots_.first(n),
                           rows_.first(n)));
    EXPECT_OK(stream_.Wait());
    return {rows_.data(), rows_.data() + n};
  }
  void InsertOrAssign(std::span<const RowKey> keys, std::span<std::byte* const> rows) {
    const auto n = std::ssize(keys);
    Reserve(n);
    std::copy(keys.begin(), keys.end(), keys_.data());
    std::copy(rows.begin(), rows.end(), rows_.data());
    EXPECT_OK(index_->InsertOrAssign(ctx_, keys_.first(n), rows_.first(n)));
    EXPECT_OK(stream_.Wait());
  }
  void Erase(std::span<const RowKey> keys) {
    const auto n = std::ssize(keys);
    Reserve(n);
    std::copy(keys.begin(), keys.end(), keys_.data());
    EXPECT_OK(index_->Erase(ctx_, keys_.first(n)));
    EXPECT_OK(stream_.Wait());
  }
  void Clear() {
    EXPECT_OK(index_->Clear(ctx_));
    EXPECT_OK(stream_.Wait());
  }
  AddressIndexStats Stats() {
    EXPECT_OK(index_->EnqueueStats(ctx_));
    EXPECT_OK(stream_.Wait());
    return index_->LastStats();
  }

 private:
  static void EXPECT_OK(const absl::Status& status) { HOTROW_EXPECT_OK(status); }
  void Reserve(int64_t n) {
    const Device device = stream_.device();
    EXPECT_OK(keys_.Reserve(n, {device}));
    EXPECT_OK(slots_.Reserve(n, {device}));
    EXPECT_OK(rows_.Reserve(n, {device}));
  }

  ThreadPool pool_{2};
  DeviceStream stream_;
  ExecContext ctx_;
  std::unique_ptr<AddressIndex> index_;
  SharedBuffer<RowKey> keys_;
  SharedBuffer<int64_t> slots_;
  SharedBuffer<std::byte*> rows_;
};

// An index beside a map. What was left out is seen right after the call, and stays out; all else
// is there with its last address.
class AddressIndexRun {
 public:
  AddressIndexRun(int64_t buckets, Device device) : index_(buckets, device) {}

  // Keys are distinct.
  void InsertOrAssign(const std::vector<RowKey>& keys, std::vector<std::byte*> rows) {
    const AddressIndexStats before = index_.Stats();
    index_.InsertOrAssign(keys, rows);
    const std::vector<std::byte*> got = index_.Find(keys);
    int64_t left_out = 0;
    int64_t more = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto there = model_.find(keys[i]);
      if (rows[i] == nullptr) {
        ASSERT_EQ(got[i], there == model_.end() ? nullptr : there->second);
        continue;
      }
      if (got[i] == nullptr) {
        ASSERT_TRUE(there == model_.end()) << "a key that is there needs no room";
        ++left_out;
        continue;
      }
      ASSERT_EQ(got[i], rows[i]);
      more += there == model_.end() ? 1 : 0;
      model_[keys[i]] = rows[i];
    }
    const AddressIndexStats after = index_.Stats();
    ASSERT_EQ(after.no_room - before.no_room, left_out);
    ASSERT_EQ(after.entries - before.entries, more);
    ASSERT_EQ(after.entries, std::ssize(model_));
  }
  void Erase(const std::vector<RowKey>& keys) {
    index_.Erase(keys);
    for (const RowKey& key : keys) model_.erase(key);
    ASSERT_EQ(index_.Stats().entries, std::ssize(model_));
  }
  void Clear() {
    index_.Clear();
    model_.clear();
    ASSERT_EQ(index_.Stats().entries, 0);
  }
  void ExpectFinds(const std::vector<RowKey>& keys) {
    const std::vector<std::byte*> got = index_.Find(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto there = model_.find(keys[i]);
      ASSERT_EQ(got[i], there == model_.end() ? nullptr : there->second) << keys[i].key;
    }
  }
  AddressIndexDriver& index() { return index_; }
  int64_t size() const { return std::ssize(model_); }

 private:
  AddressIndexDriver index_;
  std::unordered_map<RowKey, std::byte*, RowKeyHash> model_;
};

// Keys of an index of one bucket that it cannot tell apart by their tag.
inline std::vector<RowKey> KeysOfOneTag(size_t n) {
  std::vector<RowKey> keys;
  const uint64_t tag = cache::AddressHomeOf({7, 3}, 1).tag;
  for (uint64_t key = 0; keys.size() < n; ++key) {
    if (cache::AddressHomeOf({key, 3}, 1).tag == tag) keys.push_back({key, 3});
  }
  return keys;
}

// Pairs that differ in their table alone, of an index of one bucket that cannot tell them apart by
// their tag.
inline std::vector<RowKey> KeysOfOneTagInTwoTables(size_t n) {
  std::vector<RowKey> keys;
  for (uint64_t key = 0; keys.size() < n; ++key) {
    std::map<uint64_t, uint32_t> table_of;  // by tag
    for (uint32_t table = 0; table < 1000; ++table) {
      const auto [other, is_new] =
          table_of.emplace(cache::AddressHomeOf({key, table}, 1).tag, table);
      if (is_new) continue;
      keys.push_back({key, other->second});
      keys.push_back({key, table});
      break;
    }
  }
  return keys;
}

// Some of the universe in another order.
inline std::vector<RowKey> DrawDistinct(const std::vector<RowKey>& universe, size_t n,
                                        RandomStream* random) {
  std::vector<RowKey> keys = universe;
  n = std::min(n, keys.size());
  for (size_t i = 0; i < n; ++i) std::swap(keys[i], keys[i + random->Below(keys.size() - i)]);
  keys.resize(n);
  return keys;
}

inline void RunAddressIndex(int64_t buckets, Device device, int operations, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  std::vector<RowKey> universe;
  // About as many keys as ways, the first and the last of all keys among them.
  for (int64_t i = 0; i < buckets * 7; ++i) {
    const auto table = static_cast<uint32_t>(i % 3 == 2 ? UINT32_MAX : i % 3);
    const auto key = static_cast<uint64_t>(i / 3);
    universe.push_back({i % 2 == 0 ? key : UINT64_MAX - key, table});
  }
  AddressIndexRun run(buckets, device);
  uint64_t next_address = 0;
  for (int operation = 0; operation < operations; ++operation) {
    SCOPED_TRACE(operation);
    const std::vector<RowKey> keys =
        DrawDistinct(universe, 1 + random.Below(universe.size()), &random);
    const uint64_t kind = random.Below(20);
    if (kind < 10) {
      std::vector<std::byte*> rows;
      for (size_t i = 0; i < keys.size(); ++i) {
        rows.push_back(random.Below(8) == 0 ? nullptr : Address(next_address++));
      }
      ASSERT_NO_FATAL_FAILURE(run.InsertOrAssign(keys, rows));
    } else if (kind < 19) {
      ASSERT_NO_FATAL_FAILURE(run.Erase(keys));
    } else {
      ASSERT_NO_FATAL_FAILURE(run.Clear());
    }
    ASSERT_NO_FATAL_FAILURE(run.ExpectFinds(universe));
  }
}

// Keys that want the same few ways, of one launch: each way gets one key, and none stays empty.
inline void RunFullAddressIndex(int64_t buckets, int64_t num_keys, Device device) {
  AddressIndexRun run(buckets, device);
  std::vector<RowKey> keys;
  std::vector<std::byte*> rows;
  for (int64_t i = 0; i < num_keys; ++i) {
    keys.push_back({static_cast<uint64_t>(i), 0});
    rows.push_back(Address(static_cast<uint64_t>(i)));
  }
  const int64_t ways = run.index().Stats().ways;
  ASSERT_EQ(ways, 6 * buckets);
  ASSERT_NO_FATAL_FAILURE(run.InsertOrAssign(keys, rows));
  ASSERT_EQ(run.size(), ways) << num_keys << " keys leave no way empty";
  ASSERT_NO_FATAL_FAILURE(run.ExpectFinds(keys));
  // Those that were left out find room where others leave.
  ASSERT_NO_FATAL_FAILURE(run.Erase({keys.begin(), keys.begin() + num_keys / 2}));
  ASSERT_NO_FATAL_FAILURE(run.ExpectFinds(keys));
  ASSERT_NO_FATAL_FAILURE(run.InsertOrAssign(keys, rows));
  ASSERT_EQ(run.size(), ways);
  ASSERT_NO_FATAL_FAILURE(run.Erase(keys));
  ASSERT_EQ(run.size(), 0);
  ASSERT_NO_FATAL_FAILURE(run.ExpectFinds(keys));
}

// A bucket whose keys have one tag: they leave and come back side by side, into ways that still
// hold what was there before.
inline void RunOneTag(const std::vector<RowKey>& keys, Device device, int rounds, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  AddressIndexRun run(1, device);
  uint64_t next_address = 0;
  const auto insert = [&](const std::vector<RowKey>& some) {
    std::vector<std::byte*> rows;
    for (size_t i = 0; i < some.size(); ++i) rows.push_back(Address(next_address++));
    run.InsertOrAssign(some, rows);
  };
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(insert(DrawDistinct(keys, 6, &random)));
    ASSERT_NO_FATAL_FAILURE(run.ExpectFinds(keys));
    ASSERT_NO_FATAL_FAILURE(run.Erase(DrawDistinct(keys, 1 + random.Below(8), &random)));
    ASSERT_NO_FATAL_FAILURE(run.ExpectFinds(keys));
  }
}

// Exactly as many keys as a bucket has ways, over and over: who loses a way finds another.
inline void RunOneBucket(Device device, int rounds) {
  AddressIndexRun run(1, device);
  const std::vector<RowKey> keys = KeyRange(0, 6);
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::byte*> rows;
    for (uint64_t i = 0; i < 6; ++i) rows.push_back(Address(6 * static_cast<uint64_t>(round) + i));
    ASSERT_NO_FATAL_FAILURE(run.InsertOrAssign(keys, rows));
    ASSERT_EQ(run.size(), 6);
    ASSERT_NO_FATAL_FAILURE(run.Erase(keys));
  }
}

inline void RunAddressIndexOddities(Device device) {
  AddressIndexRun run(4, device);
  AddressIndexDriver& index = run.index();
  EXPECT_TRUE(index.Find({}).empty());
  index.InsertOrAssign({}, {});
  index.Erase({});
  // Equal keys of two tables are two rows; keys of a search may repeat; keys with a slot are not
  // looked up.
  const std::vector<RowKey> keys = {{0, 0}, {0, 1}, {UINT64_MAX, UINT32_MAX}, {UINT64_MAX, 0}};
  std::byte* const last = reinterpret_cast<std::byte*>((uint64_t{1} << 48) - 1);
  ASSERT_NO_FATAL_FAILURE(run.InsertOrAssign(keys, {Address(1), Address(2), last, nullptr}));
  EXPECT_EQ(index.Find({{{0, 1}, {0, 0}, {0, 1}, {UINT64_MAX, UINT32_MAX}, {UINT64_MAX, 0}}}),
            (std::vector<std::byte*>{Address(2), Address(1), Address(2), last, nullptr}));
  EXPECT_EQ(index.Find(keys, {{-1, 0, 5, -1}}),
            (std::vector<std::byte*>{Address(1), kUntouched, kUntouched, nullptr}));
  // No word holds such an address; the key is left out.
  const std::vector<RowKey> far = {{9, 0}};
  ASSERT_NO_FATAL_FAILURE(run.InsertOrAssign(
      far, {reinterpret_cast<std::byte*>(static_cast<uintptr_t>(uint64_t{1} << 48))}));
  EXPECT_EQ(run.size(), 3);
  run.ExpectFinds(keys);
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_CACHE_ADDRESS_INDEX_DRIVER_H_
