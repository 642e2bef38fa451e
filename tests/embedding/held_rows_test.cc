#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <vector>

#include "base/philox.h"
#include "embedding/tiers/held_rows_impl.h"
#include "gtest/gtest.h"
#include "tests/support/colliding_keys.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kRowBytes = 32;

std::vector<std::byte> RowOf(uint64_t number) {
  std::vector<std::byte> row(kRowBytes);
  for (int64_t i = 0; i < kRowBytes; i += 8) std::memcpy(row.data() + i, &number, 8);
  return row;
}

TEST(HeldRowsTest, AgreesWithAMap) {
  for (const uint64_t seed : test::Seeds(10)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto capacity = static_cast<int64_t>(1 + random.Below(100));
    HOTROW_ASSERT_OK_AND_ASSIGN(HeldRows held, HeldRows::Create(capacity, kRowBytes));
    EXPECT_EQ(held.capacity(), capacity);
    std::map<std::pair<uint32_t, uint64_t>, uint64_t> model;
    for (uint64_t i = 0; i < 5000; ++i) {
      // Equal keys in several tables, so that a key alone finds nothing.
      const RowKey key = {random.Below(60), static_cast<uint32_t>(random.Below(3))};
      const auto at = model.find({key.table, key.key});
      const std::byte* const row = held.Find(key);
      ASSERT_EQ(row != nullptr, at != model.end());
      if (row != nullptr) {
        ASSERT_EQ(std::memcmp(row, RowOf(at->second).data(), kRowBytes), 0);
        if (random.Below(2) == 0) {
          held.Remove(key);
          model.erase(at);
        }
      } else if (std::ssize(model) < capacity) {
        held.Add(key, RowOf(i).data());
        model[{key.table, key.key}] = i;
      }
      if (random.Below(500) == 0) {
        held.Clear();
        model.clear();
      }
      ASSERT_EQ(held.size(), std::ssize(model));
    }
    std::map<std::pair<uint32_t, uint64_t>, uint64_t> listed;
    for (int64_t i = 0; i < held.size(); ++i) {
      uint64_t number;
      std::memcpy(&number, held.row(i), 8);
      listed[{held.key(i).table, held.key(i).key}] = number;
    }
    EXPECT_EQ(listed, model);
  }
}

TEST(HeldRowsTest, KeysChosenToCollideCostLittleMoreThanOthers) {
  constexpr uint64_t kKeys = 1 << 16;
  std::vector<RowKey> ordinary;
  std::vector<RowKey> colliding;
  for (uint64_t i = 0; i < kKeys; ++i) {
    ordinary.push_back({i, 0});
    colliding.push_back(test::KeyWithHashLo((i + 1) << 32 | 12345, 0));
  }
  const auto seconds = [](const std::vector<RowKey>& keys) {
    const std::clock_t begin = std::clock();
    auto held = HeldRows::Create(kKeys, kRowBytes);
    HOTROW_EXPECT_OK(held);
    const std::vector<std::byte> row = RowOf(1);
    for (const RowKey& key : keys) held->Add(key, row.data());
    for (const RowKey& key : keys) EXPECT_NE(held->Find(key), nullptr);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  // Thousands of times as long without a salt.
  EXPECT_LT(seconds(colliding), 50 * std::max(seconds(ordinary), 1e-3));
}

}  // namespace
}  // namespace hotrow::internal
