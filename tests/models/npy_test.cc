#include "models/data/npy.h"

#include "tests/models/file_builders.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::Little;
using test::NpyDictionary;
using test::NpyWithHeader;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(NpyHeaderTest, ReadsWhatNumpyWrites) {
  const std::string bytes = NpyWithHeader(NpyDictionary("<f4", "(3, 13)"), "data");
  HOTROW_ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(bytes));
  EXPECT_EQ(header.dtype, "<f4");
  EXPECT_EQ(header.item_bytes, 4);
  EXPECT_THAT(header.shape, ElementsAre(3, 13));
  EXPECT_EQ(header.header_bytes, static_cast<int64_t>(bytes.size()) - 4);
  EXPECT_EQ(header.data_bytes, 3 * 13 * 4);
  EXPECT_EQ(header.row_bytes(), 52);
  EXPECT_EQ(header.ShapeText(), "(3, 13)");
}

TEST(NpyHeaderTest, ShapesAndOtherOrders) {
  const auto shape = [](const char* text) {
    return ParseNpyHeader(NpyWithHeader(NpyDictionary("<i8", text), ""));
  };
  EXPECT_THAT(shape("()")->shape, IsEmpty());
  EXPECT_EQ(shape("()")->data_bytes, 8);
  EXPECT_THAT(shape("(7,)")->shape, ElementsAre(7));
  EXPECT_EQ(shape("(7,)")->ShapeText(), "(7,)");
  EXPECT_EQ(shape("(0, 5)")->data_bytes, 0);
  EXPECT_EQ(shape("(178274637, 26)")->data_bytes, int64_t{178274637} * 26 * 8);
  for (const char* bad :
       {"(7)", "(,)", "(7,,)", "(7 8)", "(-7,)", "(7", "7", "(7.0,)", "[7]",
        "(99999999999999999999,)", "(4611686018427387904, 8)", "(0, 4611686018427387904, 8)"}) {
    EXPECT_THAT(shape(bad), StatusIs(kInvalid, HasSubstr("npy header"))) << bad;
  }
  HOTROW_EXPECT_OK(
      ParseNpyHeader(NpyWithHeader("{'shape':(2,),\"descr\":\"<i4\",'fortran_order':False}", "")));
}

TEST(NpyHeaderTest, Versions2And3HaveALongLength) {
  for (const char version : {'\2', '\3'}) {
    const std::string dictionary = NpyDictionary("<i4", "(2, 1)");
    const std::string bytes =
        absl::StrCat("\x93NUMPY", std::string(1, version), std::string(1, '\0'),
                     Little(dictionary.size(), 4), dictionary);
    HOTROW_ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(bytes));
    EXPECT_EQ(header.header_bytes, static_cast<int64_t>(bytes.size()));
    const std::string with_data = bytes + "datadata";
    const auto stream = NewMemoryStream(with_data);
    HOTROW_ASSERT_OK(ReadNpyHeader(*stream, "x.npy"));
    std::byte rest[100];
    EXPECT_EQ(*ReadUpTo(*stream, rest), 8);
  }
}

TEST(NpyHeaderTest, ErrorsSayWhatIsWrong) {
  struct Case {
    std::string bytes;
    const char* message;
  };
  const std::string good = NpyWithHeader(NpyDictionary("<f4", "(3,)"), "");
  std::string version = good;
  version[6] = 4;
  std::string minor = good;
  minor[7] = 1;
  const Case cases[] = {
      {"label,user,item", "starts with \"label,\", expected"},
      {version, "version 4.0, expected 1.0, 2.0 or 3.0"},
      {minor, "version 1.1"},
      {NpyWithHeader(NpyDictionary(">f4", "(3,)"), ""), ">f4 is big-endian"},
      {NpyWithHeader(NpyDictionary("|f4", "(3,)"), ""), "no byte order"},
      {NpyWithHeader(NpyDictionary("<c8", "(3,)"), ""), "dtype is \"<c8\""},
      {NpyWithHeader(NpyDictionary("<f16", "(3,)"), ""), "dtype is \"<f16\""},
      {NpyWithHeader("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (3,)}", ""),
       "dtype is \"[("},
      {NpyWithHeader("{'descr': '<i4', 'fortran_order': True, 'shape': (3,)}", ""),
       "Fortran order"},
      {NpyWithHeader("{'descr': '<i4', 'fortran_order': 0, 'shape': (3,)}", ""), "cannot read"},
      {NpyWithHeader("{'descr': '<i4', 'shape': (3,)}", ""), "expected the keys descr"},
      {NpyWithHeader("{'descr': '<i4', 'descr': '<i4', 'shape': (3,)}", ""), "key descr twice"},
      {NpyWithHeader("{'descr': '<i4', 'order': 'C'}", ""), "unknown key \"order\""},
      {NpyWithHeader("{'descr': '<i4' 'shape': (3,)}", ""), "cannot read \"'shape'"},
      {NpyWithHeader(NpyDictionary("<f4", "(3,)") + "x", ""), "cannot read \"x"},
      {NpyWithHeader("", ""), "cannot read"},
      {absl::StrCat("\x93NUMPY", std::string("\x02\x00", 2), Little(1 << 30, 4)),
       "is 1073741824 bytes long"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ParseNpyHeader(c.bytes), StatusIs(kInvalid, HasSubstr(c.message)));
    const auto stream = NewMemoryStream(c.bytes);
    EXPECT_THAT(ReadNpyHeader(*stream, "/d/x.npy"), StatusIs(kInvalid, HasSubstr("/d/x.npy: ")));
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(ParseNpyHeader(good.substr(0, size)),
                StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("ends early")));
    const std::string part = good.substr(0, size);
    const auto stream = NewMemoryStream(part);
    EXPECT_THAT(ReadNpyHeader(*stream, "x"), StatusIs(kInvalid, HasSubstr("ends early")));
  }
}

}  // namespace
}  // namespace hotrow
