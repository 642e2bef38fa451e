#include "base/reader_slots.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hotrow {
namespace {

TEST(ReaderSlotsTest, SlotsAreTakenOnce) {
  ReaderSlots slots(3);
  const int32_t a = slots.Take();
  const int32_t b = slots.Take();
  const int32_t c = slots.Take();
  EXPECT_EQ((1 << a) + (1 << b) + (1 << c), 7);
  std::atomic<bool> taken = false;
  std::thread other([&] {
    slots.GiveBack(slots.Take());
    taken = true;
  });
  EXPECT_FALSE(taken);
  slots.GiveBack(b);
  other.join();
  EXPECT_EQ(slots.Take(), b);
}

// A writer waits for those who read when it comes, and for nobody else.
TEST(ReaderSlotsTest, AWriterWaitsForThoseBeforeIt) {
  ReaderSlots slots(2);
  const int32_t before = slots.Take();
  std::atomic<bool> waited = false;
  std::thread writer([&] {
    slots.AwaitReaders();
    waited = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(waited);
  const int32_t behind = slots.Take();
  slots.GiveBack(before);
  // Taken again at once: the writer does not wait for that.
  const int32_t again = slots.Take();
  writer.join();
  EXPECT_TRUE(waited);
  slots.GiveBack(behind);
  slots.GiveBack(again);
}

// What a reader has loaded is not freed before it gives its slot back.
TEST(ReaderSlotsTest, NothingGoesThatIsRead) {
  ReaderSlots slots(3);
  auto owner = std::make_unique<std::vector<int>>(50, 0);
  std::atomic<const std::vector<int>*> current = owner.get();
  std::atomic<bool> done = false;
  std::vector<std::thread> readers;
  for (int r = 0; r < 4; ++r) {
    readers.emplace_back([&] {
      while (!done) {
        const int32_t slot = slots.Take();
        const std::vector<int>& read = *current.load();
        for (const int x : read) ASSERT_EQ(x, read[0]);
        slots.GiveBack(slot);
      }
    });
  }
  for (int i = 1; i < 300; ++i) {
    auto next = std::make_unique<std::vector<int>>(50, i);
    current.store(next.get());
    slots.AwaitReaders();
    std::fill(owner->begin(), owner->end(), -1);
    (*owner)[7] = -2;
    owner = std::move(next);
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace hotrow
