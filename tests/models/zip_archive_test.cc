#include "models/data/zip_archive.h"

#include "tests/models/file_builders.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using test::Zip;
using ::testing::HasSubstr;

absl::StatusOr<ZipArchive> OpenBytes(std::string_view bytes) {
  MemEnv env;
  WriteFileOrDie(env, "/a.npz", bytes);
  auto file = env.Open("/a.npz", OpenMode::kRead);
  if (!file.ok()) return file.status();
  return ZipArchive::Open(std::shared_ptr<File>(*std::move(file)));
}

absl::StatusOr<std::string> ReadMember(const ZipArchive& archive, std::string_view name) {
  const ZipMember* member = archive.Find(name);
  if (member == nullptr) return absl::NotFoundError("no member");
  auto stream = archive.OpenMember(*member);
  if (!stream.ok()) return stream.status();
  // In parts: the size that a damaged directory gives is no size to allocate.
  std::string bytes;
  std::string part(60'000, '\0');
  while (true) {
    auto got = (*stream)->Read(std::as_writable_bytes(std::span(part)));
    if (!got.ok()) return got.status();
    if (*got == 0) return bytes;
    bytes.append(part, 0, static_cast<size_t>(*got));
  }
}

std::string Pattern(size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>(i * i >> 3);
  return text;
}

TEST(ZipArchiveTest, StoredAndDeflatedMembersComeBack) {
  const std::string large = Pattern(1'000'000);
  for (const bool zip64 : {false, true}) {
    for (const std::string comment : {"", "PK a comment"}) {
      std::string bytes =
          Zip({{"0.npy", large}, {"1.npy", large, true}, {"empty", ""}, {"void", "", true}}, zip64);
      if (!comment.empty()) {
        bytes.replace(bytes.size() - 2, 2, test::Little(comment.size(), 2) + comment);
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const ZipArchive archive, OpenBytes(bytes));
      ASSERT_EQ(archive.members().size(), 4u);
      EXPECT_TRUE(*ReadMember(archive, "0.npy") == large);
      EXPECT_TRUE(*ReadMember(archive, "1.npy") == large);
      EXPECT_EQ(*ReadMember(archive, "empty"), "");
      EXPECT_EQ(*ReadMember(archive, "void"), "");
      EXPECT_EQ(archive.Find("2.npy"), nullptr);
    }
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const ZipArchive none, OpenBytes(Zip({})));
  EXPECT_TRUE(none.members().empty());
}

TEST(ZipArchiveTest, SkippingGoesOnInTheMiddle) {
  const std::string large = Pattern(300'000);
  HOTROW_ASSERT_OK_AND_ASSIGN(const ZipArchive archive,
                              OpenBytes(Zip({{"s", large}, {"d", large, true}})));
  for (const ZipMember& member : archive.members()) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto stream, archive.OpenMember(member));
    HOTROW_ASSERT_OK(stream->Skip(250'000));
    std::string rest(50'001, '\0');
    EXPECT_EQ(*ReadUpTo(*stream, std::as_writable_bytes(std::span(rest))), 50'000);
    EXPECT_TRUE(rest.substr(0, 50'000) == large.substr(250'000));
    EXPECT_THAT(stream->Skip(1), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr(member.name)));
  }
}

TEST(ZipArchiveTest, NoZipFileIsInvalid) {
  for (const std::string& bytes : {std::string(), std::string("label,user"),
                                   std::string(100'000, 'x'), Zip({{"a", "abc"}}).substr(0, 60)}) {
    EXPECT_THAT(OpenBytes(bytes), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("/a.npz: no zip file, or a truncated one")));
  }
}

// Each flipped bit is either found or in a field that says nothing about the bytes: never are wrong
// bytes returned.
TEST(ZipArchiveTest, NoFlippedBitGivesWrongBytes) {
  const std::string text = Pattern(100);
  for (const bool zip64 : {false, true}) {
    const std::string good = Zip({{"a", text}, {"b", text, true}}, zip64);
    int found = 0;
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::string bytes = good;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      const auto archive = OpenBytes(bytes);
      if (!archive.ok()) {
        ++found;
        continue;
      }
      for (const char* name : {"a", "b"}) {
        const auto read = ReadMember(*archive, name);
        if (read.ok()) {
          EXPECT_EQ(*read, text) << "bit " << bit;
        } else {
          ++found;
        }
      }
    }
    EXPECT_GT(found, 1000);
  }
}

TEST(ZipArchiveTest, ErrorsNameTheMember) {
  const std::string good = Zip({{"first", "abc"}, {"second", "defghi"}});
  std::string damaged = good;
  damaged[good.find("defghi")] = 'D';
  HOTROW_ASSERT_OK_AND_ASSIGN(ZipArchive archive, OpenBytes(damaged));
  EXPECT_EQ(*ReadMember(archive, "first"), "abc");
  EXPECT_THAT(ReadMember(archive, "second"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("/a.npz(second): the zip member does not match its checksum")));

  std::string method = good;
  method[good.find("PK\1\2") + 10] = 12;
  EXPECT_THAT(OpenBytes(method),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("member \"first\" is packed by method 12, expected stored")));
  EXPECT_THAT(OpenBytes(Zip({{"same", "1"}, {"same", "2"}})),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("two members have the name")));
}

}  // namespace
}  // namespace hotrow
