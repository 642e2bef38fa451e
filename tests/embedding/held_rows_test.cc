#include <cstring>
#include <map>
#include <vector>

#include "base/philox.h"
#include "embedding/held_rows.h"
#include "gtest/gtest.h"
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

}  // namespace
}  // namespace hotrow::internal
