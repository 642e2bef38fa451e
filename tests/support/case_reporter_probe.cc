// Cases that go wrong, each in its own way, for case_reporter_test. No ctest entry runs this.

#include <climits>
#include <cstdlib>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

TEST(ProbeTest, Passes) {}
TEST(ProbeTest, Fails) { EXPECT_TRUE(TempDir().empty()); }
TEST(ProbeTest, Skips) { GTEST_SKIP(); }
TEST(ProbeSlowTest, Passes) {}

TEST(ProbeTest, Crashes) {
  volatile int* volatile nowhere = nullptr;
  *nowhere = 1;
}

TEST(ProbeTest, Aborts) { std::abort(); }

TEST(ProbeTest, Leaks) {
  // Overwritten, so that nothing on the stack or in a register points to it.
  int* volatile leaked = new int[1000];
  leaked[0] = 1;
  leaked = nullptr;
}

TEST(ProbeTest, WritesBehindAnArray) {
  const auto array = std::make_unique<int[]>(4);
  int* const volatile begin = array.get();
  begin[4] = 1;
}

TEST(ProbeTest, OverflowsAnInt) {
  volatile int most = INT_MAX;
  const int more = most + 1;
  EXPECT_NE(more, 0);
}

TEST(ProbeTest, Races) {
  int shared = 0;
  int* volatile both = &shared;
  const auto add = [&both] {
    for (int i = 0; i < 1000; ++i) *both = *both + 1;
  };
  std::thread one(add);
  std::thread two(add);
  one.join();
  two.join();
  EXPECT_GT(shared, 0);
}

TEST(ProbeTest, Last) {}

}  // namespace
}  // namespace hotrow::test
