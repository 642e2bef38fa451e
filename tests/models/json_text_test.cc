#include "models/json/json_text.h"

#include <nlohmann/json.hpp>
#include <string>

#include "models/json/json_members_impl.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::string Nested(int64_t depth, const std::string& open, const std::string& close) {
  std::string text;
  for (int64_t i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int64_t i = 0; i < depth; ++i) text += close;
  return text;
}

auto IsInvalid(const testing::Matcher<const std::string&>& message) {
  return test::StatusIs(absl::StatusCode::kInvalidArgument, message);
}

TEST(JsonTextTest, ReadsWhatNlohmannReads) {
  const std::string text =
      R"({"b": [1, -2, 3.5, "x\u00e9", null, true, {}, []], "a": {"c": {"b": 1}}, "d": 7})";
  HOTROW_ASSERT_OK_AND_ASSIGN(const Json ordered, ParseJson<Json>(text));
  EXPECT_EQ(ordered, Json::parse(text));
  EXPECT_EQ(ordered.begin().key(), "b");
  HOTROW_ASSERT_OK_AND_ASSIGN(const nlohmann::json sorted, ParseJson<nlohmann::json>(text));
  EXPECT_EQ(sorted, nlohmann::json::parse(text));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Json marked, ParseJson<Json>("\xef\xbb\xbf" + text));
  EXPECT_EQ(marked, ordered);
  EXPECT_EQ(*ParseJson<Json>(" 5 "), Json(5));
}

// 200,000 levels are no more than a file of 400 kB.
TEST(JsonTextTest, DepthIsBounded) {
  HOTROW_EXPECT_OK(ParseJson<Json>(Nested(kJsonDepthMax, "[", "]")));
  HOTROW_EXPECT_OK(ParseJson<Json>(Nested(kJsonDepthMax, "{\"a\":", "}")));
  for (const int64_t depth : {kJsonDepthMax + 1, int64_t{200'000}}) {
    EXPECT_THAT(ParseJson<Json>(Nested(depth, "[", "]")),
                IsInvalid(AllOf(HasSubstr("more than 64 deep"), HasSubstr("[0][0]"))));
    EXPECT_THAT(ParseJson<Json>("{\"tables\": [1, " + Nested(depth, "{\"a\":", "}") + "]}"),
                IsInvalid(HasSubstr("at \"tables[1].a.a.")));
    // Cut off before the end.
    EXPECT_FALSE(ParseJson<Json>(std::string(static_cast<size_t>(depth), '[')).ok());
  }
}

TEST(JsonTextTest, AMemberTwiceIsRefused) {
  EXPECT_THAT(ParseJson<Json>(R"({"a": 1, "b": [{"x": 1}, {"x": 1, "y": 2, "x": 3}]})"),
              IsInvalid(AllOf(HasSubstr("\"b[1].x\""), HasSubstr("twice"))));
  EXPECT_THAT(ParseJson<Json>(R"({"a": 1, "a": 1})"), IsInvalid(HasSubstr("\"a\"")));
}

TEST(JsonTextTest, WhatIsNoJsonIsNamedWithItsPlace) {
  EXPECT_THAT(ParseJson<Json>("{\"a\":\n  1,\n  oops}"), IsInvalid(HasSubstr("line 3, column")));
  for (const std::string text :
       {"", "{", "[1,]", "1 2", "{\"a\" 1}", "nan", "\"\xff\"", "1e999", "[\"a]"}) {
    EXPECT_FALSE(ParseJson<Json>(text).ok()) << text;
  }
}

TEST(JsonMembersTest, NameTheFirstThatIsWrong) {
  const Json json = Json::parse(R"({"n": -1, "s": "x", "big": 18446744073709551615, "real": 1.5,
      "null": null, "list": [], "crc": "+0123456", "path": "../x", "object": {"a": 1}})");
  const auto wrong_of = [&](auto&& get) {
    std::string wrong;
    JsonMembers members(json, "tables[3]", &wrong);
    get(members);
    return wrong;
  };
  using M = JsonMembers;
  EXPECT_EQ(wrong_of([](M& m) { EXPECT_EQ(m.Unsigned("big"), UINT64_MAX); }), "");
  EXPECT_EQ(wrong_of([](M& m) { EXPECT_EQ(m.Number("n"), -1); }), "");
  EXPECT_EQ(wrong_of([](M& m) { EXPECT_TRUE(m.RealOrNan("null") != m.RealOrNan("null")); }), "");
  EXPECT_EQ(wrong_of([](M& m) { EXPECT_EQ(m.Count("n", 1, 9), 1); }),
            "\"tables[3].n\" is -1, expected a whole number from 1 to 9");
  EXPECT_EQ(wrong_of([](M& m) { m.Count("none"); }),
            "\"tables[3].none\" is missing, expected a whole number from 0 to 9223372036854775807");
  const auto is_wrong = [&](auto&& get, const std::string& member) {
    EXPECT_THAT(wrong_of(get), HasSubstr("\"tables[3]." + member + "\" is "));
  };
  is_wrong([](M& m) { m.Count("big"); }, "big");
  is_wrong([](M& m) { m.Number("big"); }, "big");
  is_wrong([](M& m) { m.Count("real"); }, "real");
  is_wrong([](M& m) { m.Count("s"); }, "s");
  is_wrong([](M& m) { m.Real("null"); }, "null");
  is_wrong([](M& m) { m.String("n"); }, "n");
  is_wrong([](M& m) { m.Bool("n"); }, "n");
  is_wrong([](M& m) { m.Array("object"); }, "object");
  is_wrong([](M& m) { m.Object("list"); }, "list");
  is_wrong([](M& m) { m.Strings("object"); }, "object.a");
  is_wrong([](M& m) { m.Crc("crc"); }, "crc");
  is_wrong([](M& m) { m.Hash("s"); }, "s");
  is_wrong([](M& m) { m.FileName("path"); }, "path");
  // The first one stays.
  EXPECT_THAT(wrong_of([](M& m) {
                m.String("n");
                m.String("list");
              }),
              HasSubstr("tables[3].n"));
  std::string wrong;
  JsonMembers number(json["n"], "", &wrong);
  EXPECT_EQ(wrong, "it is -1, expected an object");
}

}  // namespace
}  // namespace hotrow
