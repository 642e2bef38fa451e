#include "tools/plan/spec_text.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

// Back to text, in one way of writing, so that trees can be compared.
std::string Show(const SpecNode& node) {
  switch (node.kind) {
    case SpecNode::Kind::kNull:
      return "null";
    case SpecNode::Kind::kScalar:
      return node.quoted ? absl::StrCat("'", node.text, "'") : node.text;
    case SpecNode::Kind::kList: {
      std::string out = "[";
      for (const SpecNode& item : node.items) {
        absl::StrAppend(&out, out.size() > 1 ? "," : "", Show(item));
      }
      return out + "]";
    }
    case SpecNode::Kind::kMap: {
      std::string out = "{";
      for (const auto& [key, value] : node.fields) {
        absl::StrAppend(&out, out.size() > 1 ? "," : "", key, ":", Show(value));
      }
      return out + "}";
    }
  }
  return "";
}

std::string Parsed(std::string_view text) {
  const auto node = ParseSpecText(text, "spec");
  HOTROW_EXPECT_OK(node) << text;
  return node.ok() ? Show(*node) : "";
}

TEST(SpecTextTest, ReadsBlocks) {
  EXPECT_EQ(Parsed("a: 1\nb: two words # a note\nc:\n  d: 3\n  e: [1, 2]\n"),
            "{a:1,b:two words,c:{d:3,e:[1,2]}}");
  EXPECT_EQ(Parsed("---\nlist:\n- 1\n- x: 2\n  y: 3\n-\n  z: 4\nafter: 5\n"),
            "{list:[1,{x:2,y:3},{z:4}],after:5}");
  EXPECT_EQ(Parsed("list:\n  - - 1\n    - 2\n  - 3\n"), "{list:[[1,2],3]}");
  EXPECT_EQ(Parsed("a:\nb: ~\nc: null\n"), "{a:null,b:null,c:null}");
  EXPECT_EQ(Parsed("a: x:y\r\nb: 'it''s'\r\n"), "{a:x:y,b:'it's'}");
  EXPECT_EQ(Parsed("# nothing\n"), "null");
  EXPECT_EQ(Parsed("\xef\xbb\xbf---\na: 1\n"), "{a:1}");  // with a byte order mark
}

TEST(SpecTextTest, ReadsJson) {
  EXPECT_EQ(Parsed(R"({"a": [1, 2.5e3, true], "b": {"c": "d\n\u00e9"}, "e": null})"),
            "{a:[1,2.5e3,true],b:{c:'d\n\xc3\xa9'},e:null}");
  EXPECT_EQ(Parsed("{\n\t\"a\"\n\t:\n\t1,\n}\n"), "{a:1}");
  EXPECT_EQ(Parsed("{\"a\":1,\"b\":[]}"), "{a:1,b:[]}");
}

TEST(SpecTextTest, KnowsWhereThingsStand) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const SpecNode node, ParseSpecText("a:\n  - b: 7\n", "spec"));
  const SpecNode& seven = *node.Find("a")->items[0].Find("b");
  EXPECT_EQ(seven.line, 2);
  EXPECT_EQ(seven.column, 7);
}

void ExpectError(std::string_view text, const std::string& place, const std::string& what) {
  EXPECT_THAT(ParseSpecText(text, "spec").status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument,
                             testing::AllOf(testing::StartsWith(absl::StrCat("spec:", place, ": ")),
                                            HasSubstr(what))))
      << text;
}

TEST(SpecTextTest, NamesThePlaceOfErrors) {
  ExpectError("a: 1\n b: 2\n", "2:2", "indented deeper");
  ExpectError("a: 1\na: 2\n", "2:1", "occurs twice");
  ExpectError("a: 1\nb\n", "2:1", "needs a colon");
  ExpectError("a:\n\tb: 1\n", "2:1", "tab");
  ExpectError("a: [1, 2\n", "1:4", "never closed");
  ExpectError("a: {b 1}\n", "1:8", "colon");
  ExpectError("a: \"x\n", "1:4", "does not end");
  ExpectError("a: &x 1\n", "1:4", "anchors");
  ExpectError("a: |\n  x\n", "1:4", "block scalars");
  ExpectError("a: !t 1\n", "1:4", "tags");
  ExpectError("a: 1\n---\nb: 2\n", "2:1", "colon");
  ExpectError("{\"a\": 1} x\n", "1:10", "behind the end");
  ExpectError("a: [1] 2\n", "1:8", "behind the end");
  ExpectError("a: \"\\q\"\n", "1:7", "escape");
  ExpectError(std::string(200, '['), "1:66", "nested too deeply");
}

// With any bytes there is a tree or an error, and it ends.
TEST(SpecTextTest, AnyTextIsReadOrRefused) {
  for (const uint64_t seed : test::Seeds(300)) {
    RandomStream random(seed, RandomPurpose::kTest);
    constexpr std::string_view kPieces[] = {"a", ":",    " ",  "\n", "- ", "{",  "}", "[",
                                            "]", ",",    "'",  "\"", "#",  "\t", "1", "~",
                                            "-", "\r\n", "\\", "|",  ": ", "  ", "\0"};
    std::string text;
    for (int i = 0; i < 40; ++i) text += kPieces[random.Below(std::size(kPieces))];
    const auto node = ParseSpecText(text, "spec");
    EXPECT_TRUE(node.ok() || absl::IsInvalidArgument(node.status()));
  }
}

}  // namespace
}  // namespace hotrow
