#include "models/delta/delta_rows.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "models/delta/delta_merge_impl.h"
#include "models/delta/delta_row_sorter_impl.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kDir[] = "/delta";
constexpr char kName[] = "rows";

const DeltaFileId kId = {.base = {.high = 7, .low = 9}, .sequence = 3, .part = 1, .num_parts = 2};

std::vector<DeltaTable> Tables() {
  return {{.dim = 5, .optimizer = SparseOptimizerKind::kAdam},
          {.dim = 3,
           .optimizer = SparseOptimizerKind::kRowWiseAdagrad,
           .weights_precision = WeightsPrecision::kBf16},
          {.dim = 4, .optimizer = SparseOptimizerKind::kSgd, .scored = true}};
}

// A row whose numbers are those of a bf16 in any precision, all bytes but padding filled.
std::vector<std::byte> Row(const DeltaTable& table, uint64_t salt) {
  const RowLayout layout = table.layout();
  std::vector<std::byte> out(static_cast<size_t>(layout.row_bytes));
  for (int32_t d = 0; d < layout.dim; ++d) {
    const float x = 0.25f * static_cast<float>((salt + static_cast<uint64_t>(d)) % 31) - 2.0f;
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    const auto half = static_cast<uint16_t>(bits >> 16);
    if (layout.precision == WeightsPrecision::kFp32) {
      std::memcpy(out.data() + 4 * d, &x, sizeof(x));
    } else {
      std::memcpy(out.data() + 2 * d, &half, sizeof(half));
    }
  }
  for (int32_t s = 0; s < layout.state_floats; ++s) {
    const float x = static_cast<float>(salt % 1000) + 0.1f * static_cast<float>(s);
    std::memcpy(out.data() + layout.state_offset + 4 * s, &x, sizeof(x));
  }
  const auto step = static_cast<uint32_t>(salt % 77 + 1);
  std::memcpy(out.data() + layout.step_offset, &step, sizeof(step));
  if (layout.scored()) {
    const float score = 0.1f * static_cast<float>(salt % 91) - 3;
    std::memcpy(out.data() + layout.score_offset, &score, sizeof(score));
  }
  return out;
}

struct Less {
  bool operator()(const RowKey& a, const RowKey& b) const { return ComesBefore(a, b); }
};
// Rows by key; empty: a tombstone.
using Entries = std::map<RowKey, std::vector<std::byte>, Less>;

Entries RandomEntries(uint64_t seed, int64_t n) {
  const std::vector<DeltaTable> tables = Tables();
  RandomStream random(seed, RandomPurpose::kTest);
  Entries out;
  for (int64_t i = 0; i < n; ++i) {
    const auto table = static_cast<uint32_t>(random.Below(3));
    uint64_t key = random.Below(4) == 0 ? UINT64_MAX - random.Below(50) : random.Below(5000);
    const bool erased = random.Below(5) == 0;
    out[{.key = key, .table = table}] =
        erased ? std::vector<std::byte>() : Row(tables[table], random.Below(100'000));
  }
  return out;
}

absl::StatusOr<DeltaPart> Write(Env& env, const Entries& entries, const DeltaForm& form = {},
                                const std::string& name = kName, const DeltaFileId& id = kId) {
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(kDir));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DeltaRowsWriter> writer,
                          DeltaRowsWriter::Create(env, kDir, name, id, form, Tables()));
  for (const auto& [key, row] : entries) {
    HOTROW_RETURN_IF_ERROR(row.empty() ? writer->AddErased(key) : writer->Add(key, row));
  }
  return writer->Finish();
}

absl::StatusOr<Entries> Read(Env& env, const DeltaPart& part, const DeltaForm& form = {},
                             const DeltaFileId& id = kId) {
  Entries out;
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DeltaRowsReader> reader,
                          DeltaRowsReader::Open(env, kDir, part, id, form, Tables()));
  while (!reader->done()) {
    std::vector<std::byte> row;
    if (!reader->erased()) row.assign(reader->row().begin(), reader->row().end());
    out[reader->key()] = std::move(row);
    HOTROW_RETURN_IF_ERROR(reader->Next());
  }
  return out;
}

TEST(DeltaRowsTest, WhatIsWrittenIsRead) {
  for (const int64_t n : {0, 1, 2, 50, 20'000}) {
    SCOPED_TRACE(n);
    MemEnv env;
    const Entries entries = RandomEntries(static_cast<uint64_t>(n), n);
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaPart part, Write(env, entries));
    HOTROW_ASSERT_OK_AND_ASSIGN(const Entries read, Read(env, part));
    EXPECT_TRUE(read == entries);
    std::vector<int64_t> rows(3);
    std::vector<int64_t> erased(3);
    for (const auto& [key, row] : entries) ++(row.empty() ? erased : rows)[key.table];
    EXPECT_EQ(part.rows, rows);
    EXPECT_EQ(part.erased, erased);
  }
}

// The values of Row are whole quarters below 8, which fp16 and bf16 have exactly; int8 does not.
TEST(DeltaRowsTest, OtherFormsKeepWhatTheySay) {
  const Entries entries = RandomEntries(5, 300);
  for (const ExchangeType type :
       {ExchangeType::kFp32, ExchangeType::kFp16, ExchangeType::kBf16, ExchangeType::kInt8}) {
    for (const bool state : {false, true}) {
      SCOPED_TRACE(absl::StrCat(std::string(ExchangeTypeName(type)), state ? " with state" : ""));
      const DeltaForm form = {.precision = type, .state = state};
      MemEnv env;
      HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaPart part, Write(env, entries, form));
      HOTROW_ASSERT_OK_AND_ASSIGN(const Entries read, Read(env, part, form));
      ASSERT_EQ(read.size(), entries.size());
      for (const auto& [key, row] : entries) {
        const std::vector<std::byte>& got = read.at(key);
        ASSERT_EQ(got.empty(), row.empty());
        if (row.empty()) continue;
        const DeltaTable table = Tables()[key.table];
        const RowLayout from = table.layout();
        const RowLayout to = table.layout_read(form);
        ASSERT_EQ(std::ssize(got), to.row_bytes);
        EXPECT_EQ(to.state_floats, state ? from.state_floats : 0);
        if (type == ExchangeType::kInt8) {
          for (int32_t d = 0; d < table.dim && from.precision == WeightsPrecision::kFp32; ++d) {
            float a = 0, b = 0;
            std::memcpy(&a, row.data() + 4 * d, 4);
            std::memcpy(&b, got.data() + 4 * d, 4);
            EXPECT_NEAR(a, b, 8.0f / 127 / 2 + 1e-6f);
          }
        } else {
          EXPECT_EQ(std::memcmp(row.data(), got.data(), static_cast<size_t>(from.state_offset)), 0);
        }
        EXPECT_EQ(std::memcmp(row.data() + from.state_offset, got.data() + to.state_offset,
                              4 * static_cast<size_t>(to.state_floats)),
                  0);
        EXPECT_EQ(std::memcmp(row.data() + from.step_offset, got.data() + to.step_offset, 4), 0);
        if (table.scored) {
          EXPECT_EQ(std::memcmp(row.data() + from.score_offset, got.data() + to.score_offset, 4),
                    0);
        }
      }
    }
  }
}

TEST(DeltaRowsTest, EveryFlippedBitAndEveryLengthIsFound) {
  MemEnv env;
  const Entries entries = RandomEntries(11, 40);
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaPart part, Write(env, entries));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string good,
                              ReadFileToString(env, absl::StrCat(kDir, "/", kName)));
  const std::string path = absl::StrCat(kDir, "/", kName);
  const auto put = [&](const std::string& text) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                                env.Open(path, OpenMode::kTruncate));
    HOTROW_ASSERT_OK(WriteFull(*file, 0, std::as_bytes(std::span(text))));
  };
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    put(bad);
    const absl::Status status = Read(env, part).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path))) << "byte " << at;
  }
  for (const size_t length : {size_t{0}, size_t{15}, size_t{16}, size_t{64}, good.size() - 41,
                              good.size() - 40, good.size() - 1}) {
    put(good.substr(0, length));
    EXPECT_THAT(Read(env, part).status(), StatusIs(absl::StatusCode::kDataLoss,
                                                   AllOf(HasSubstr(path), HasSubstr("cut off"))));
    // A manifest that says so: the file itself must be whole, too.
    DeltaPart shorter = part;
    shorter.bytes = static_cast<int64_t>(length);
    EXPECT_THAT(Read(env, shorter).status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
  }
  put(good + "x");
  EXPECT_THAT(Read(env, part).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
  DeltaPart longer = part;
  ++longer.bytes;
  EXPECT_THAT(Read(env, longer).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bytes follow")));
  put(good);
  HOTROW_EXPECT_OK(Read(env, part));
}

TEST(DeltaRowsTest, FilesOfOtherPlacesAreRefused) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaPart part, Write(env, RandomEntries(3, 20)));
  DeltaFileId id = kId;
  id.sequence = 4;
  EXPECT_THAT(Read(env, part, {}, id).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of delta 3, expected")));
  id = kId;
  id.part = 0;
  EXPECT_THAT(Read(env, part, {}, id).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it is part 1 of 2")));
  id = kId;
  id.base.low = 1;
  EXPECT_THAT(Read(env, part, {}, id).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("of the chain")));
  EXPECT_THAT(Read(env, part, {.state = false}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("in form")));
  DeltaPart other = part;
  other.crc ^= 1;
  EXPECT_THAT(Read(env, other).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another file")));
  other = part;
  ++other.rows[0];
  EXPECT_THAT(Read(env, other).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("numbers of rows")));
}

TEST(DeltaRowsTest, EntriesMustAscend) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs(kDir));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeltaRowsWriter> writer,
                              DeltaRowsWriter::Create(env, kDir, kName, kId, {}, Tables()));
  HOTROW_ASSERT_OK(writer->AddErased({.key = 5, .table = 1}));
  EXPECT_THAT(writer->Add({.key = 5, .table = 1}, Row(Tables()[1], 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must ascend")));
  EXPECT_THAT(writer->AddErased({.key = 9, .table = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must ascend")));
  EXPECT_THAT(writer->AddErased({.key = 9, .table = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("table 3")));
}

// In memory, and with runs in files.
TEST(DeltaRowSorterTest, GivesEntriesInOrderWhateverTheMemory) {
  for (const int64_t memory_bytes : {int64_t{1}, int64_t{3000}, int64_t{1} << 30}) {
    SCOPED_TRACE(memory_bytes);
    MemEnv env;
    HOTROW_ASSERT_OK(env.CreateDirs(kDir));
    const Entries entries = RandomEntries(17, 200);
    std::vector<RowKey> keys;
    for (const auto& [key, row] : entries) keys.push_back(key);
    RandomStream random(1, RandomPurpose::kTest);
    for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random.Below(i)]);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeltaRowsWriter> writer,
                                DeltaRowsWriter::Create(env, kDir, kName, kId, {}, Tables()));
    {
      DeltaRowSorter sorter(env, kDir, Tables(), memory_bytes);
      for (const RowKey& key : keys) {
        const std::vector<std::byte>& row = entries.at(key);
        HOTROW_ASSERT_OK(row.empty() ? sorter.AddErased(key) : sorter.Add(key, row));
      }
      HOTROW_ASSERT_OK(sorter.WriteTo(*writer));
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaPart part, writer->Finish());
    HOTROW_ASSERT_OK_AND_ASSIGN(const Entries read, Read(env, part));
    EXPECT_TRUE(read == entries);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir(kDir));
    EXPECT_THAT(names, testing::ElementsAre(kName));  // no runs are left
  }
}

TEST(DeltaRowSorterTest, AKeyThatComesTwiceIsAnError) {
  for (const int64_t memory_bytes : {int64_t{1}, int64_t{1} << 30}) {
    MemEnv env;
    HOTROW_ASSERT_OK(env.CreateDirs(kDir));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeltaRowsWriter> writer,
                                DeltaRowsWriter::Create(env, kDir, kName, kId, {}, Tables()));
    DeltaRowSorter sorter(env, kDir, Tables(), memory_bytes);
    HOTROW_ASSERT_OK(sorter.AddErased({.key = 5, .table = 1}));
    HOTROW_ASSERT_OK(sorter.AddErased({.key = 4, .table = 1}));
    HOTROW_ASSERT_OK(sorter.AddErased({.key = 5, .table = 1}));
    EXPECT_FALSE(sorter.WriteTo(*writer).ok());
  }
}

TEST(DeltaMergeTest, TheNewestEntryOfEachKeyWins) {
  MemEnv env;
  Entries expected;
  std::vector<DeltaMerge::Source> sources;
  for (int64_t sequence = 1; sequence <= 6; ++sequence) {
    DeltaFileId id = kId;
    id.sequence = sequence;
    const Entries entries = RandomEntries(static_cast<uint64_t>(100 + sequence), 500);
    for (const auto& [key, row] : entries) expected[key] = row;
    const std::string name = absl::StrCat("rows-", sequence);
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaPart part, Write(env, entries, {}, name, id));
    HOTROW_ASSERT_OK_AND_ASSIGN(std::unique_ptr<DeltaRowsReader> reader,
                                DeltaRowsReader::Open(env, kDir, part, id, {}, Tables()));
    // The order of sources means nothing.
    sources.insert(sources.begin() + sequence / 2,
                   {.reader = std::move(reader), .sequence = sequence});
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(DeltaMerge merge, DeltaMerge::Create(std::move(sources)));
  Entries merged;
  while (!merge.done()) {
    EXPECT_FALSE(merged.contains(merge.key()));
    std::vector<std::byte> row;
    if (!merge.erased()) row.assign(merge.row().begin(), merge.row().end());
    merged[merge.key()] = std::move(row);
    HOTROW_ASSERT_OK(merge.Next());
  }
  EXPECT_TRUE(merged == expected);
}

// Also where a newer delta has the key as well.
TEST(DeltaMergeTest, AKeyInTwoPartsOfADeltaIsDamage) {
  for (const bool newer : {false, true}) {
    MemEnv env;
    const Entries one = {{{.key = 8, .table = 0}, {}}, {{.key = 9, .table = 0}, {}}};
    const Entries two = {{{.key = 9, .table = 0}, {}}};
    std::vector<DeltaMerge::Source> sources;
    for (int32_t part = 0; part < (newer ? 3 : 2); ++part) {
      DeltaFileId id = kId;
      id.part = part;
      const std::string name = absl::StrCat("rows-", part);
      HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaPart written,
                                  Write(env, part == 0 ? one : two, {}, name, id));
      HOTROW_ASSERT_OK_AND_ASSIGN(std::unique_ptr<DeltaRowsReader> reader,
                                  DeltaRowsReader::Open(env, kDir, written, id, {}, Tables()));
      sources.push_back({.reader = std::move(reader), .sequence = part == 2 ? 4 : 3});
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(DeltaMerge merge, DeltaMerge::Create(std::move(sources)));
    absl::Status status;
    while (status.ok() && !merge.done()) status = merge.Next();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                 AllOf(HasSubstr("key 9"), HasSubstr("/delta/rows-0"),
                                       HasSubstr("/delta/rows-1"))));
  }
}

}  // namespace
}  // namespace hotrow
