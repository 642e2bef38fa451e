#include "tools/serve/infer_request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMinusOne = std::numeric_limits<uint64_t>::max();

absl::StatusOr<InferRequest> Parse(std::string_view body,
                                   std::optional<int64_t> json_bytes = std::nullopt) {
  return ParseInferRequest(body, json_bytes);
}

// A request with one tensor of these members.
std::string One(std::string_view members) {
  return absl::StrCat("{\"inputs\":[{\"name\":\"x\",", std::string(members), "}]}");
}

void ExpectRefused(const std::string& body, const std::vector<std::string>& words) {
  SCOPED_TRACE(body.substr(0, 200));
  const auto request = Parse(body);
  ASSERT_FALSE(request.ok());
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(request.status().message());
  EXPECT_LT(message.size(), 500u);
  for (const std::string& word : words) EXPECT_THAT(message, HasSubstr(word));
}

TEST(InferRequestTest, ReadsAllOfARequest) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const InferRequest request, Parse(R"json({
    "id": "r-1", "parameters": {"timeout": 2500, "binary_data_output": true, "priority": 3},
    "inputs": [
      {"name": "a", "shape": [2, 2], "datatype": "INT64", "data": [[1, -1], [0, 9223372036854775807]]},
      {"name": "b", "shape": [2, 1], "datatype": "UINT64", "data": [18446744073709551615, 0]},
      {"name": "c", "shape": [2], "datatype": "INT32", "parameters": {}, "data": [-2147483648, 7]},
      {"name": "d", "shape": [1, 2], "datatype": "FP32", "data": [[0.5, -3e38]]},
      {"name": "e", "shape": [2], "datatype": "BYTES", "data": ["", "\u00fc,x"]}
    ],
    "outputs": [{"name": "scores"}, {"name": "logits", "parameters": {"binary_data": false}}]
  })json"));
  EXPECT_EQ(request.id, "r-1");
  EXPECT_EQ(request.timeout_us, 2500);
  ASSERT_EQ(request.inputs.size(), 5u);
  EXPECT_THAT(request.inputs[0].integers,
              ElementsAre(1u, kMinusOne, 0u, uint64_t{std::numeric_limits<int64_t>::max()}));
  EXPECT_THAT(request.inputs[1].integers, ElementsAre(kMinusOne, 0u));
  EXPECT_THAT(request.inputs[2].integers, ElementsAre(kMinusOne - 2147483647u, 7u));
  EXPECT_THAT(request.inputs[3].floats, ElementsAre(0.5f, -3e38f));
  EXPECT_THAT(request.inputs[4].texts, ElementsAre("", "\u00fc,x"));
  EXPECT_THAT(request.inputs[3].shape, ElementsAre(1, 2));
  ASSERT_EQ(request.outputs.size(), 2u);
  EXPECT_TRUE(request.outputs[0].binary);
  EXPECT_FALSE(request.outputs[1].binary);
}

TEST(InferRequestTest, BinaryTensorsFollowTheJson) {
  std::string binary;
  const auto put = [&](const auto value) {
    binary.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  put(int32_t{-1});
  put(int32_t{5});
  put(0.1f);
  put(uint32_t{3});
  binary += std::string("a\0b", 3);
  put(uint32_t{0});
  const std::string json = R"({"inputs":[
    {"name":"i","shape":[2,1],"datatype":"INT32","parameters":{"binary_data_size":8}},
    {"name":"j","shape":[1],"datatype":"INT64","data":[4]},
    {"name":"f","shape":[1,1],"datatype":"FP32","parameters":{"binary_data_size":4}},
    {"name":"t","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":11}}]})";
  HOTROW_ASSERT_OK_AND_ASSIGN(const InferRequest request, Parse(json + binary, std::ssize(json)));
  EXPECT_THAT(request.inputs[0].integers, ElementsAre(kMinusOne, 5u));
  EXPECT_THAT(request.inputs[1].integers, ElementsAre(4u));
  EXPECT_THAT(request.inputs[2].floats, ElementsAre(0.1f));
  EXPECT_THAT(request.inputs[3].texts, ElementsAre(std::string("a\0b", 3), ""));
  // Cut off anywhere, or with bytes that belong to nothing, it is refused.
  for (size_t size = 0; size < (json + binary).size(); ++size) {
    EXPECT_FALSE(Parse((json + binary).substr(0, size), std::ssize(json)).ok()) << size;
  }
  EXPECT_THAT(Parse(json + binary + "x", std::ssize(json)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 bytes behind the JSON")));
  EXPECT_THAT(
      Parse(json, std::ssize(json) + 1),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Inference-Header-Content-Length")));
  EXPECT_THAT(Parse(json, -1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
}

TEST(InferRequestTest, BinaryFloatsThatAreNotFiniteAreNamed) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const float values[] = {1, 2, 3, value};
    const std::string json =
        One(R"("shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16})");
    EXPECT_THAT(
        Parse(json + std::string(reinterpret_cast<const char*>(values), 16), std::ssize(json)),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("tensor \"x\", position [1,1]"),
                       HasSubstr(std::isnan(value) ? "nan" : "-inf"))));
  }
}

TEST(InferRequestTest, TextsThatLieAboutTheirLengthAreNamed) {
  const std::string json =
      One(R"("shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":9})");
  EXPECT_THAT(Parse(json + std::string("\1\0\0\0a\xff\xff\xff\xff", 9), std::ssize(json)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("position [1]"), HasSubstr("4294967295 bytes"))));
  EXPECT_THAT(Parse(json + std::string("\5\0\0\0abcde", 9), std::ssize(json)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("position [1]"), HasSubstr("0 bytes left"))));
  EXPECT_THAT(Parse(json + std::string("\0\0\0\0\0\0\0\0x", 9), std::ssize(json)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 bytes behind the last")));
  // More of them than there are lengths: refused before there is room for them.
  const std::string many = One(
      R"("shape":[1152921504606846976],"datatype":"BYTES","parameters":{"binary_data_size":9})");
  EXPECT_THAT(Parse(many + std::string(9, '\0'), std::ssize(many)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensor \"x\""), HasSubstr("9 binary bytes"),
                             HasSubstr("1152921504606846976 texts"))));
}

// Every finite number of 16 bits, as its exponent and its fraction say, and none that is not
// finite.
TEST(InferRequestTest, HalvesAreTheirNumbers) {
  std::string halves;
  std::vector<float> numbers;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const int exponent = (bits >> 10) & 31;
    if (exponent == 31) continue;
    halves += static_cast<char>(bits & 255);
    halves += static_cast<char>(bits >> 8);
    const double fraction = (bits & 1023) / 1024.0 + (exponent > 0 ? 1 : 0);
    const double number = fraction * std::exp2(std::max(exponent, 1) - 15);
    numbers.push_back(static_cast<float>(bits < 1 << 15 ? number : -number));
  }
  const auto head = [](size_t bytes) {
    return One(absl::StrCat("\"shape\":[", bytes / 2, "],\"datatype\":\"FP16\",",
                            "\"parameters\":{\"binary_data_size\":", bytes, "}"));
  };
  const std::string json = head(halves.size());
  HOTROW_ASSERT_OK_AND_ASSIGN(const InferRequest request, Parse(json + halves, std::ssize(json)));
  test::ExpectSameBits(request.inputs[0].floats, numbers);

  const std::string two = head(2);
  for (const char* const bits : {"\x7c", "\xfc", "\x7e"}) {  // infinite, and no number
    EXPECT_THAT(Parse(two + std::string(1, '\0') + bits, std::ssize(two)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("tensor \"x\", position [0]"), HasSubstr("FP16"))));
  }
  const std::string three =
      One(R"("shape":[1],"datatype":"FP16","parameters":{"binary_data_size":3})");
  EXPECT_THAT(Parse(three + "abc", std::ssize(three)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 elements of 2 bytes")));
}

// As numpy rounds them: to the nearest, ties to even, subnormals too.
TEST(InferRequestTest, NumbersOfJsonBecomeTheNearestHalves) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const InferRequest request,
      Parse(One(R"("datatype":"FP16","shape":[8],)"
                R"("data":[0.1, 2049, 2051, -65519.9, 1e-9, 4e-8, 8.9407e-8, 0])")));
  EXPECT_THAT(request.inputs[0].floats,
              ElementsAre(0x1.998p-4f, 2048.f, 2052.f, -65504.f, 0.f, 0x1p-24f, 0x1p-23f, 0.f));
}

TEST(InferRequestTest, WhatIsWrongIsNamed) {
  ExpectRefused("", {"JSON"});
  ExpectRefused("{", {"JSON"});
  ExpectRefused("[]", {"an array of 0", "an object"});
  ExpectRefused("{}", {"\"inputs\" is missing"});
  ExpectRefused(R"({"inputs":{}})", {"\"inputs\" is an object"});
  ExpectRefused(R"({"inputs":[1]})", {"inputs[0]: 1, expected an object"});
  ExpectRefused(R"({"inputs":[],"input":[]})", {"unknown member \"input\""});
  ExpectRefused(R"({"inputs":[],"inputs":[]})", {"\"inputs\" occurs twice"});
  ExpectRefused(R"({"id":5,"inputs":[]})", {"\"id\" is 5"});
  ExpectRefused(R"({"parameters":[],"inputs":[]})", {"\"parameters\" is an array of 0"});
  ExpectRefused(R"({"parameters":{"timeout":-1},"inputs":[]})", {"\"timeout\" is -1"});
  ExpectRefused(R"({"parameters":{"timeout":1e99},"inputs":[]})", {"\"timeout\" is 1e+99"});
  ExpectRefused(R"({"inputs":[{}]})", {"inputs[0]: \"name\" is missing"});
  ExpectRefused(One(R"("shape":[1],"data":[1])"), {"tensor \"x\": \"datatype\" is missing"});
  ExpectRefused(One(R"("datatype":"BF16","shape":[1],"data":[1])"), {"\"BF16\"", "INT64"});
  ExpectRefused(One(R"("datatype":"INT64","data":[1])"), {"tensor \"x\": \"shape\" is missing"});
  ExpectRefused(One(R"("datatype":"INT64","shape":[],"data":[1])"), {"\"shape\""});
  ExpectRefused(One(R"("datatype":"INT64","shape":[1,1,1,1,1,1,1,1,1],"data":[1])"), {"1 to 8"});
  ExpectRefused(One(R"("datatype":"INT64","shape":[-1],"data":[])"), {"shape[0] is -1"});
  ExpectRefused(One(R"("datatype":"INT64","shape":[1.5],"data":[])"), {"shape[0] is 1.5"});
  ExpectRefused(One(R"("datatype":"INT64","shape":[9223372036854775808],"data":[])"), {"shape[0]"});
  ExpectRefused(One(R"("datatype":"INT64","shape":[1])"), {"neither"});
  ExpectRefused(One(R"("datatype":"INT64","shape":[1],"data":7)"), {"\"data\" is 7"});
  ExpectRefused(One(R"("datatype":"INT64","shape":[2],"data":[7])"), {"1 elements, expected 2"});
  ExpectRefused(
      One(R"("datatype":"INT64","shape":[1],"data":[7],"parameters":{"binary_data_size":0})"),
      {"both"});
  ExpectRefused(One(R"("datatype":"INT64","shape":[1],"parameters":{"shared_memory_region":"r"})"),
                {"shared_memory_region"});
  ExpectRefused(R"({"inputs":[{"name":"x","datatype":"INT64","shape":[0],"data":[]},
                              {"name":"x","datatype":"INT64","shape":[0],"data":[]}]})",
                {"tensor \"x\": it is there twice"});
  ExpectRefused(R"({"inputs":[],"outputs":[{"name":"s"},{"name":"s"}]})", {"outputs[1]", "twice"});
  ExpectRefused(R"({"inputs":[],"outputs":[{"name":"s","parameters":{"classification":2}}]})",
                {"classification"});
}

TEST(InferRequestTest, ElementsThatDoNotFitAreNamedWithTheirPosition) {
  const auto of = [](const char* type, const char* element) {
    return One(
        absl::StrCat("\"datatype\":\"", type, "\",\"shape\":[2,2],\"data\":[1,1,1,", element, "]"));
  };
  const std::string place = "tensor \"x\", position [1,1]: ";
  ExpectRefused(of("INT64", "9223372036854775808"), {place + "9223372036854775808"});
  ExpectRefused(of("INT64", "1.0"), {place + "1.0"});
  ExpectRefused(of("INT64", "null"), {place + "null"});
  ExpectRefused(of("INT64", "[1]"), {place + "an array of 1"});
  ExpectRefused(of("FP64", "1"), {"FP64", "send its numbers as FP32"});
  ExpectRefused(of("UINT32", "1"), {"UINT32", "send its numbers as INT64"});
  ExpectRefused(of("INT32", "2147483648"), {place + "2147483648", "INT32"});
  ExpectRefused(of("INT32", "-2147483649"), {place + "-2147483649"});
  ExpectRefused(of("UINT64", "-1"), {place + "-1", "UINT64"});
  ExpectRefused(of("FP32", "1e39"), {place + "1e+39", "FP32"});
  ExpectRefused(of("FP16", "65520"), {place + "65520", "FP16"});
  ExpectRefused(of("FP16", "-1e300"), {place + "-1e+300", "FP16"});
  ExpectRefused(of("FP32", "\"1\""), {place + "\"1\""});
  ExpectRefused(of("FP32", "true"), {place + "true"});
  ExpectRefused(of("FP32", "NaN"), {"JSON"});
  ExpectRefused(of("FP32", "-Infinity"), {"JSON"});
  ExpectRefused(of("FP32", "1e400"), {"JSON", "1e400"});
  ExpectRefused(of("BYTES", "1"), {"tensor \"x\", position [0,0]: 1"});
}

TEST(InferRequestTest, NestedDataFollowsTheShape) {
  const auto parse = [](const char* shape, const char* data) {
    return Parse(One(absl::StrCat("\"datatype\":\"INT64\",\"shape\":", shape, ",\"data\":", data)));
  };
  HOTROW_EXPECT_OK(parse("[2,1,2]", "[[[1,2]],[[3,4]]]"));
  HOTROW_EXPECT_OK(parse("[2,1,2]", "[1,2,3,4]"));
  HOTROW_EXPECT_OK(parse("[2,0]", "[[],[]]"));
  HOTROW_EXPECT_OK(parse("[2,0]", "[]"));
  EXPECT_FALSE(parse("[2,2]", "[[1,2],[3]]").ok());
  EXPECT_FALSE(parse("[2,2]", "[[1,2],3]").ok());
  EXPECT_FALSE(parse("[2,2]", "[[1,2]]").ok());
  EXPECT_FALSE(parse("[2,2]", "[[1,2],[3,[4]]]").ok());
  EXPECT_FALSE(parse("[4]", "[[1,2],[3,4]]").ok());
  EXPECT_FALSE(parse("[2,2]", "[[[1,2],[3,4]]]").ok());
}

// Sizes whose product overflows, to 0 and to a small number, and empty ones of great sizes.
TEST(InferRequestTest, ProductsOfShapesDoNotOverflow) {
  for (const char* const shape :
       {"[4294967296,4294967296]", "[4294967296,4294967297]",
        "[9223372036854775807,9223372036854775807]", "[3,6148914691236517206]"}) {
    ExpectRefused(One(absl::StrCat("\"datatype\":\"INT64\",\"shape\":", shape, ",\"data\":[]")),
                  {"2^63 - 1 elements"});
    ExpectRefused(One(absl::StrCat("\"datatype\":\"FP32\",\"shape\":", shape,
                                   ",\"parameters\":{\"binary_data_size\":0}")),
                  {"2^63 - 1 elements"});
  }
  ExpectRefused(
      One(R"("datatype":"INT64","shape":[2305843009213693953],"parameters":{"binary_data_size":0})"),
      {"0 binary bytes"});
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const InferRequest request,
      Parse(One(R"("datatype":"INT64","shape":[9223372036854775807,0],"data":[])")));
  EXPECT_THAT(request.inputs[0].integers, IsEmpty());
}

TEST(InferRequestTest, DepthIsLimited) {
  ExpectRefused(One(absl::StrCat("\"datatype\":\"INT64\",\"shape\":[1],\"data\":",
                                 std::string(100'000, '['))),
                {"nested more than 64 deep"});
  std::string objects;
  for (int i = 0; i < 10'000; ++i) objects += "{\"a\":";
  ExpectRefused(objects, {"nested more than 64 deep"});
}

TEST(InferRequestTest, MessagesStayShort) {
  ExpectRefused(One(absl::StrCat("\"shape\":[1],\"datatype\":\"", std::string(100'000, 'x'), "\"")),
                {"datatype"});
  ExpectRefused(std::string(100'000, '9') + "e", {"JSON"});
  ExpectRefused("\"" + std::string(100'000, 'x'), {"JSON"});
  ExpectRefused(absl::StrCat("{\"", std::string(100'000, 'x'), "\":1}"), {"unknown member"});
  ExpectRefused(absl::StrCat("{\"id\":\"", std::string(2000, 'x'), "\",\"inputs\":[]}"),
                {"2000 bytes"});
}

TEST(InferRequestTest, PositionsAreOfTheShape) {
  EXPECT_EQ(PositionText(0, {3}), "[0]");
  EXPECT_EQ(PositionText(5, {2, 3}), "[1,2]");
  EXPECT_EQ(PositionText(7, {2, 2, 3}), "[1,0,1]");
  EXPECT_EQ(PositionText(0, {0, 3}), "[0,0]");
}

}  // namespace
}  // namespace hotrow
