#include "base/unique_id.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace hotrow {
namespace {

TEST(UniqueIdTest, NoTwoAreEqual) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const UniqueId id = UniqueId::Random();
    EXPECT_TRUE(id.known());
    EXPECT_TRUE(seen.insert(id.ToHex()).second);
  }
  EXPECT_FALSE(UniqueId().known());
}

TEST(UniqueIdTest, TextThereAndBack) {
  const UniqueId id = {.high = 0x0123456789abcdef, .low = 7};
  EXPECT_EQ(id.ToHex(), "0123456789abcdef0000000000000007");
  EXPECT_EQ(UniqueId::FromHex(id.ToHex()), id);
  for (const std::string& text :
       {std::string(), std::string("0123456789abcdef000000000000007"),
        std::string("0123456789abcdef00000000000000070"), std::string(32, 'g'),
        std::string("0123456789ABCDEF0000000000000007"),
        std::string("0x23456789abcdef0000000000000007"), std::string(32, ' ')}) {
    EXPECT_EQ(UniqueId::FromHex(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace hotrow
