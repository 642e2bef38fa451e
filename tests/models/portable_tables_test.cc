#include "models/saving/portable_tables.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/philox.h"
#include "models/data/npy.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/portable_tables_writer.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer.h"
#include "store/host/host_store.h"
#include "tests/models/file_builders.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::Npy;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kDir[] = "/run/out";
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

struct KeyLess {
  bool operator()(const RowKey& a, const RowKey& b) const {
    return a.table != b.table ? a.table < b.table : a.key < b.key;
  }
};
using Rows = std::map<RowKey, std::string, KeyLess>;

RowLayout LayoutOf(const PortableTable& table) { return table.layout(); }

// A row of random bits, NaNs and all; padding is zero. Rows of 16 bits have quiet NaNs only: no
// conversion makes others.
std::string RandomRow(const RowLayout& layout, RandomStream& random) {
  std::string row(static_cast<size_t>(layout.row_bytes), '\0');
  for (int64_t i = 0; i < layout.step_offset + (layout.scored() ? 8 : 4); ++i)
    row[i] = static_cast<char>(random.Below(256));
  if (layout.precision == WeightsPrecision::kFp32) return row;
  const bool is_fp16 = layout.precision == WeightsPrecision::kFp16;
  const int infinity = is_fp16 ? 0x7c00 : 0x7f80;
  const int quiet = is_fp16 ? 0x0200 : 0x0040;
  for (int64_t i = 0; i < layout.dim; ++i) {
    uint16_t weight;
    std::memcpy(&weight, row.data() + 2 * i, 2);
    if ((weight & 0x7fff) > infinity) weight |= quiet;
    std::memcpy(row.data() + 2 * i, &weight, 2);
  }
  for (int64_t i = int64_t{2} * layout.dim; i < layout.state_offset; ++i) row[i] = '\0';
  return row;
}

Rows RandomRows(const std::vector<PortableTable>& tables, const std::vector<int64_t>& rows,
                uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  Rows out;
  for (uint32_t t = 0; t < tables.size(); ++t) {
    for (int64_t i = 0; i < rows[t]; ++i) {
      const uint64_t key = i == 0 ? 0 : i == 1 ? UINT64_MAX : random.Below(UINT64_MAX);
      out[{key, t}] = RandomRow(LayoutOf(tables[t]), random);
    }
  }
  return out;
}

// Writes the rows in an order in which the tables alternate.
absl::StatusOr<std::vector<PortableTable>> Write(const PortableTablesOptions& options,
                                                 int64_t shard_bytes,
                                                 const std::vector<PortableTable>& tables,
                                                 const Rows& rows) {
  std::vector<RowKey> order;
  for (const auto& [key, row] : rows) order.push_back(key);
  std::sort(order.begin(), order.end(),
            [](const RowKey& a, const RowKey& b) { return HashRowKey(a).lo < HashRowKey(b).lo; });
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PortableTablesWriter> writer,
                          PortableTablesWriter::Create(options, shard_bytes, tables));
  for (const RowKey& key : order) {
    HOTROW_RETURN_IF_ERROR(writer->Add(key, std::as_bytes(std::span(rows.at(key)))));
  }
  return writer->Finish();
}

std::unique_ptr<HostStore> StoreFor(const std::vector<PortableTable>& tables) {
  std::vector<StoreTable> store_tables;
  for (uint32_t t = 0; t < tables.size(); ++t) {
    store_tables.push_back({t, LayoutOf(tables[t]).row_bytes});
  }
  auto store = HostStore::Open({.tables = store_tables, .budget_bytes = int64_t{64} << 20});
  HOTROW_EXPECT_OK(store);
  return store.ok() ? *std::move(store) : nullptr;
}

Rows RowsOf(RowStore& store) {
  Rows out;
  HOTROW_EXPECT_OK(store.Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    out[key] = std::string(reinterpret_cast<const char*>(row.data()), row.size());
    return absl::OkStatus();
  }));
  return out;
}

std::string ReadText(Env& env, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(env, path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? *text : "";
}

std::vector<SparseOptimizerKind> AllOptimizers() {
  std::vector<SparseOptimizerKind> all;
  for (const SparseOptimizerFacts& facts : SparseOptimizers()) all.push_back(facts.kind);
  return all;
}

// Every byte of a row but its padding has its place in an array.
TEST(PortableTablesTest, ArraysCoverTheRow) {
  for (const SparseOptimizerKind kind : AllOptimizers()) {
    for (const int32_t dim : {1, 2, 17}) {
      for (const bool scored : {false, true}) {
        int64_t bytes = 0;
        for (const PortableArray& array : PortableArraysOf(dim, kind, scored)) {
          if (array.name == "keys") continue;
          bytes += 4 * std::max<int64_t>(array.columns, 1);
        }
        EXPECT_EQ(bytes, RowLayout::For(dim, kind).payload_bytes + (scored ? 8 : 4));
      }
    }
  }
  const std::vector<PortableArray> arrays =
      PortableArraysOf(17, SparseOptimizerKind::kPartialRowWiseAdam);
  ASSERT_EQ(arrays.size(), 5u);
  EXPECT_EQ(arrays[0].dtype, "<u8");
  EXPECT_EQ(arrays[1].name, "weights");
  EXPECT_EQ(arrays[1].columns, 17);
  EXPECT_EQ(arrays[2].columns, 17);
  EXPECT_EQ(arrays[3].name, "momentum2");
  EXPECT_EQ(arrays[3].columns, 0);
  EXPECT_EQ(arrays[4].dtype, "<u4");
}

TEST(PortableTablesTest, RoundTripIsBitForBit) {
  for (const uint64_t seed : test::Seeds(2)) {
    for (const int32_t dim : {1, 17, 64}) {
      MemEnv env;
      HOTROW_ASSERT_OK(env.CreateDirs(kDir));
      std::vector<PortableTable> tables;
      std::vector<int64_t> sizes;
      for (const SparseOptimizerKind kind : AllOptimizers()) {
        PortableTable table;
        table.name = std::string(SparseOptimizerName(kind));
        table.dim = dim;
        table.optimizer = kind;
        tables.push_back(table);
        sizes.push_back(kind == SparseOptimizerKind::kAdam ? 0 : 100 + dim);
        for (const auto precision : {WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
          table.name = absl::StrCat(std::string(SparseOptimizerName(kind)), "_",
                                    std::string(WeightsPrecisionName(precision)));
          table.weights_precision = precision;
          table.scored = precision == WeightsPrecision::kBf16;
          tables.push_back(table);
          sizes.push_back(100 + dim);
        }
      }
      const Rows rows = RandomRows(tables, sizes, seed);
      const PortableTablesOptions options = {kDir, 64 << 10, &env};
      // Files of 1,000 bytes: from 3 rows of weights to all 250 of a narrow table.
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<PortableTable> written,
                                  Write(options, 1000, tables, rows));
      const std::unique_ptr<HostStore> store = StoreFor(tables);
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<PortableDigest> digests,
                                  LoadPortableTables(options, written, *store));
      EXPECT_TRUE(RowsOf(*store) == rows);
      for (size_t t = 0; t < tables.size(); ++t) {
        EXPECT_EQ(written[t].rows, sizes[t]);
        EXPECT_EQ(digests[t].rows, sizes[t]);
        EXPECT_TRUE(digests[t].hash == *written[t].hash);
        for (const PortableArray& array : written[t].arrays) {
          if (sizes[t] == 0) {
            EXPECT_EQ(array.files.size(), 1u);
          }
          for (const PortableFile& file : array.files) {
            const std::string text = ReadText(env, absl::StrCat(kDir, "/", file.name));
            EXPECT_EQ(*file.crc, Crc32c(std::as_bytes(std::span(text)))) << file.name;
            EXPECT_LE(text.size(), 1000u + kNpyHeaderBytes);
          }
        }
      }
    }
  }
}

// The numbers themselves, so that a common mistake of both directions is seen.
TEST(PortableTablesTest, WeightsOf16BitsAreFloatsInFiles) {
  struct Case {
    WeightsPrecision precision;
    uint16_t bits[3];
    float values[3];
    float near[3];  // written by somebody else, rounded on their way in
    uint16_t near_bits[3];
  };
  const Case cases[] = {{WeightsPrecision::kFp16,
                         {0x3c00, 0xbe00, 0x0001},
                         {1, -1.5f, 0x1p-24f},
                         {1.0004f, 1e6f, -1e-9f},
                         {0x3c00, 0x7bff, 0x8000}},
                        {WeightsPrecision::kBf16,
                         {0x3f80, 0xbfc0, 0x0001},
                         {1, -1.5f, 0x1p-133f},
                         {1.003f, 3.4e38f, -1e-9f},
                         {0x3f80, 0x7f7f, 0xb089}}};
  for (const Case& c : cases) {
    MemEnv env;
    HOTROW_ASSERT_OK(env.CreateDirs(kDir));
    const std::vector<PortableTable> tables = {{.name = "t",
                                                .dim = 3,
                                                .optimizer = SparseOptimizerKind::kSgd,
                                                .weights_precision = c.precision}};
    const RowLayout layout = LayoutOf(tables[0]);
    std::string row(static_cast<size_t>(layout.row_bytes), '\0');
    std::memcpy(row.data(), c.bits, sizeof(c.bits));
    const PortableTablesOptions options = {kDir, 1 << 20, &env};
    HOTROW_ASSERT_OK_AND_ASSIGN(auto written,
                                Write(options, 1 << 20, tables, {{RowKey{5, 0}, row}}));
    const PortableArray& weights = written[0].arrays[1];
    EXPECT_EQ(weights.dtype, "<f4");
    EXPECT_EQ(weights.columns, 3);
    const std::string path = absl::StrCat(kDir, "/", weights.files[0].name);
    std::string text = ReadText(env, path);
    ASSERT_EQ(text.size(), kNpyHeaderBytes + sizeof(c.values));
    EXPECT_EQ(text.substr(kNpyHeaderBytes),
              std::string(reinterpret_cast<const char*>(c.values), sizeof(c.values)));
    text.replace(kNpyHeaderBytes, sizeof(c.near), reinterpret_cast<const char*>(c.near),
                 sizeof(c.near));
    HOTROW_ASSERT_OK(WriteFileAtomically(env, path, text));
    written[0].hash.reset();
    written[0].arrays[1].files[0].crc.reset();
    const std::unique_ptr<HostStore> store = StoreFor(tables);
    HOTROW_ASSERT_OK(LoadPortableTables(options, written, *store));
    std::memcpy(row.data(), c.near_bits, sizeof(c.near_bits));
    EXPECT_TRUE(RowsOf(*store) == (Rows{{RowKey{5, 0}, row}}));
  }
}

// The hash is the one that EmbeddingCollection::Digest has.
TEST(PortableTablesTest, HashIsTheSumOverKeyTableAndPayload) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs(kDir));
  const std::vector<PortableTable> tables = {{.name = "a", .dim = 3}, {.name = "b", .dim = 5}};
  const Rows rows = RandomRows(tables, {7, 9}, 3);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto written,
                              Write({kDir, 1 << 20, &env}, 1 << 20, tables, rows));
  Hash128 expected[2];
  for (const auto& [key, row] : rows) {
    const auto bytes = std::as_bytes(std::span(row));
    expected[key.table] +=
        HashBytes(key.key, key.table,
                  bytes.first(static_cast<size_t>(LayoutOf(tables[key.table]).payload_bytes)));
  }
  EXPECT_TRUE(*written[0].hash == expected[0]);
  EXPECT_TRUE(*written[1].hash == expected[1]);
}

TEST(PortableTablesTest, NamesSayTableArrayAndShard) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs(kDir));
  const std::vector<PortableTable> tables = {
      {.name = "user/../id \xc3\xa4", .dim = 2, .optimizer = SparseOptimizerKind::kSgd}};
  const Rows rows = RandomRows(tables, {5}, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto written, Write({kDir, 1 << 20, &env}, 16, tables, rows));
  ASSERT_EQ(written[0].arrays[1].files.size(), 3u);  // two rows of 8 bytes each
  EXPECT_EQ(written[0].arrays[1].files[1].name,
            "tables/0000-user_.._id___/weights-00001-of-00003.npy");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir("/run/out/tables/0000-user_.._id___"));
  EXPECT_EQ(names.size(), 9u) << testing::PrintToString(names);
  const std::string last =
      ReadText(env, absl::StrCat(kDir, "/", written[0].arrays[1].files[2].name));
  HOTROW_ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(last));
  EXPECT_EQ(header.dtype, "<f4");
  EXPECT_THAT(header.shape, ElementsAre(1, 2));
}

// More tables than files may be open at once, rows of all of them in turn.
TEST(PortableTablesTest, ManyTablesShareFewOpenFiles) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs(kDir));
  std::vector<PortableTable> tables;
  for (int t = 0; t < 120; ++t) {
    tables.push_back({.name = absl::StrCat("t", t), .dim = 2});
  }
  const Rows rows = RandomRows(tables, std::vector<int64_t>(tables.size(), 9), 5);
  // Room for two rows of each.
  const PortableTablesOptions options = {kDir, 120 * 2 * 24, &env};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto written, Write(options, 1 << 20, tables, rows));
  const std::unique_ptr<HostStore> store = StoreFor(tables);
  HOTROW_ASSERT_OK(LoadPortableTables(options, written, *store));
  EXPECT_TRUE(RowsOf(*store) == rows);
}

TEST(PortableTablesTest, MemoryThatHoldsNoRowIsRefused) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs(kDir));
  const std::vector<PortableTable> tables = {{.name = "wide", .dim = 1000}};
  EXPECT_THAT(PortableTablesWriter::Create({kDir, 1000, &env}, 1 << 20, tables),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("1000 bytes"), HasSubstr("\"wide\""))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto written, Write({kDir, 1 << 20, &env}, 1 << 20, tables,
                                                        RandomRows(tables, {3}, 1)));
  const std::unique_ptr<HostStore> store = StoreFor(tables);
  EXPECT_THAT(LoadPortableTables({kDir, 1000, &env}, written, *store),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("\"wide\"")));
}

// --- What others have written --------------------------------------------------------------------

// One table of dim 2 with row-wise Adagrad: 4 rows, made by hand.
class HandMadeTest : public testing::Test {
 protected:
  HandMadeTest() {
    Put("keys.npy", Npy<uint64_t>("<u8", "(4,)", {7, 0, UINT64_MAX, 3}));
    Put("weights.npy", Npy<float>("<f4", "(4, 2)", {1, 2, 3, 4, 5, 6, 7, 8}));
    Put("momentum1.npy", Npy<float>("<f4", "(4,)", {0.1f, 0.2f, 0.3f, 0.4f}));
    Put("last_step.npy", Npy<uint32_t>("<u4", "(4,)", {11, 12, 13, 14}));
    table_.name = "users";
    table_.dim = 2;
    table_.optimizer = SparseOptimizerKind::kRowWiseAdagrad;
    for (const char* const name : {"keys", "weights", "momentum1", "last_step"}) {
      table_.arrays.push_back({.name = name, .files = {{absl::StrCat(name, ".npy"), {}}}});
    }
  }
  void Put(const std::string& name, const std::string& text) {
    HOTROW_ASSERT_OK(env_.CreateDirs(kDir));
    HOTROW_ASSERT_OK(WriteFileAtomically(env_, absl::StrCat(kDir, "/", name), text));
  }
  absl::StatusOr<Rows> Load() {
    const std::unique_ptr<HostStore> store = StoreFor({table_});
    HOTROW_RETURN_IF_ERROR(LoadPortableTables({kDir, 1 << 20, &env_}, {table_}, *store).status());
    return RowsOf(*store);
  }

  MemEnv env_;
  PortableTable table_;
};

TEST_F(HandMadeTest, RowsAreWhatTheArraysSay) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const Rows rows, Load());
  ASSERT_EQ(rows.size(), 4u);
  const std::string& row = rows.at({UINT64_MAX, 0});
  float floats[3];
  uint32_t step = 0;
  std::memcpy(floats, row.data(), sizeof(floats));
  std::memcpy(&step, row.data() + 12, sizeof(step));
  EXPECT_THAT(floats, ElementsAre(5, 6, 0.3f));
  EXPECT_EQ(step, 13u);
}

TEST_F(HandMadeTest, OtherCutsVersionsAndSignsGiveTheSameRows) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const Rows expected, Load());
  // Keys as int64; weights in three files, one of them empty, one of version 2.0.
  Put("keys.npy", Npy<int64_t>("<i8", "(4,)", {7, 0, -1, 3}));
  Put("w0.npy", Npy<float>("<f4", "(1, 2)", {1, 2}));
  Put("w1.npy", Npy<float>("<f4", "(0, 2)", {}));
  const std::string dictionary = test::NpyDictionary("<f4", "(3, 2)") + "\n";
  const std::vector<float> rest = {3, 4, 5, 6, 7, 8};
  Put("w2.npy",
      absl::StrCat("\x93NUMPY", std::string("\2\0", 2), test::Little(dictionary.size(), 4),
                   dictionary, std::string(reinterpret_cast<const char*>(rest.data()), 24)));
  table_.arrays[1].files = {{"w0.npy", {}}, {"w1.npy", {}}, {"w2.npy", {}}};
  HOTROW_ASSERT_OK_AND_ASSIGN(const Rows rows, Load());
  EXPECT_TRUE(rows == expected);
}

TEST_F(HandMadeTest, EachMismatchIsNamed) {
  const auto refused = [&](absl::StatusCode code, const auto& message) {
    EXPECT_THAT(Load(), StatusIs(code, message));
    // Nothing but headers is needed to see it.
    EXPECT_THAT(CheckPortableTables({kDir, 1 << 20, &env_}, {table_}), StatusIs(code, message));
  };
  const std::string good = ReadText(env_, "/run/out/weights.npy");
  Put("weights.npy", Npy<double>("<f8", "(4, 2)", std::vector<double>(8)));
  refused(kInvalid,
          AllOf(HasSubstr("/run/out/weights.npy: dtype is <f8, expected <f4"),
                HasSubstr("table \"users\", array weights"), HasSubstr("a.astype('<f4')")));
  Put("weights.npy", Npy<float>("<f4", "(4, 3)", std::vector<float>(12)));
  refused(kInvalid, HasSubstr("/run/out/weights.npy: shape is (4, 3), expected (rows, 2)"));
  Put("weights.npy", Npy<float>("<f4", "(8,)", std::vector<float>(8)));
  refused(kInvalid, HasSubstr("shape is (8,), expected (rows, 2)"));
  Put("weights.npy", Npy<float>("<f4", "(3, 2)", std::vector<float>(6)));
  refused(kInvalid, HasSubstr("array weights (/run/out/weights.npy) has 3 rows, expected 4"));
  Put("weights.npy", good.substr(0, good.size() - 1));
  refused(kDataLoss, AllOf(HasSubstr("/run/out/weights.npy: has "), HasSubstr("(4, 2)")));
  Put("weights.npy", good + "x");
  refused(kDataLoss, HasSubstr("/run/out/weights.npy: has "));
  Put("weights.npy", "no array");
  refused(kInvalid, HasSubstr("/run/out/weights.npy: npy header"));
  Put("weights.npy",
      test::NpyWithHeader("{'descr': '<f4', 'fortran_order': True, 'shape': (4, 2), }",
                          std::string(32, 'x')));
  refused(kInvalid, AllOf(HasSubstr("/run/out/weights.npy"), HasSubstr("Fortran order")));
  HOTROW_ASSERT_OK(env_.Remove("/run/out/weights.npy"));
  refused(kDataLoss, HasSubstr("/run/out/weights.npy: there is no such file"));
  Put("weights.npy", good);

  table_.rows = 5;
  refused(kInvalid, AllOf(HasSubstr("/run/out/keys.npy on have 4 rows, the manifest says 5"),
                          HasSubstr("--edited")));
  table_.rows = 4;
  table_.optimizer = SparseOptimizerKind::kPartialRowWiseAdam;
  refused(kInvalid, HasSubstr("/run/out/momentum1.npy: shape is (4,), expected (rows, 2)"));
  table_.optimizer = SparseOptimizerKind::kRowWiseAdagrad;
  table_.arrays[3].files.clear();
  refused(kInvalid, HasSubstr("has no array \"last_step\", expected one of <u4"));
  table_.arrays[3].files = {{"last_step.npy", {}}};
  for (const char* const name : {"", "/etc/passwd", "../x.npy", "a/../../x.npy", "a//b", "a/"}) {
    table_.arrays[0].files = {{name, {}}};
    refused(kInvalid, HasSubstr("must be a path below /run/out"));
  }
  table_.arrays[0].files = {{"keys.npy", {}}};
  HOTROW_EXPECT_OK(Load());
}

TEST_F(HandMadeTest, AKeyThatOccursTwiceIsNamed) {
  Put("keys.npy", Npy<uint64_t>("<u8", "(4,)", {7, 0, 7, 3}));
  EXPECT_THAT(Load(), StatusIs(kInvalid, AllOf(HasSubstr("/run/out/keys.npy, row 2: key 7"),
                                               HasSubstr("\"users\""))));
  // Across files and batches: memory for one row at a time.
  Put("k1.npy", Npy<uint64_t>("<u8", "(3,)", {7, 0, 5}));
  Put("k2.npy", Npy<uint64_t>("<u8", "(1,)", {0}));
  table_.arrays[0].files = {{"k1.npy", {}}, {"k2.npy", {}}};
  const std::unique_ptr<HostStore> store = StoreFor({table_});
  EXPECT_THAT(LoadPortableTables({kDir, 120, &env_}, {table_}, *store),
              StatusIs(kInvalid, HasSubstr("/run/out/k2.npy, row 0: key 0")));
}

TEST_F(HandMadeTest, ChecksumsAndHashesAreComparedWhereTheyAreKnown) {
  const std::string text = ReadText(env_, "/run/out/weights.npy");
  table_.arrays[1].files[0].crc = Crc32c(std::as_bytes(std::span(text)));
  HOTROW_EXPECT_OK(Load());
  *table_.arrays[1].files[0].crc ^= 1;
  EXPECT_THAT(Load(), StatusIs(kDataLoss, AllOf(HasSubstr("/run/out/weights.npy: its checksum is"),
                                                HasSubstr("--edited"))));
  table_.arrays[1].files[0].crc.reset();
  const std::unique_ptr<HostStore> store = StoreFor({table_});
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto digests,
                              LoadPortableTables({kDir, 1 << 20, &env_}, {table_}, *store));
  table_.hash = digests[0].hash;
  HOTROW_EXPECT_OK(Load());
  table_.hash->lo ^= 1;
  EXPECT_THAT(Load(), StatusIs(kDataLoss, AllOf(HasSubstr("table \"users\" has 4 rows of hash"),
                                                HasSubstr("--edited"))));
}

// A damaged key may look like a key that occurs twice: it is told as damage.
TEST_F(HandMadeTest, EveryFlippedBitIsNamedWithItsFile) {
  for (PortableArray& array : table_.arrays) {
    const std::string text = ReadText(env_, absl::StrCat(kDir, "/", array.files[0].name));
    array.files[0].crc = Crc32c(std::as_bytes(std::span(text)));
  }
  for (const PortableArray& array : table_.arrays) {
    const std::string path = absl::StrCat(kDir, "/", array.files[0].name);
    const auto size = static_cast<int64_t>(ReadText(env_, path).size());
    for (int64_t byte = 0; byte < size; ++byte) {
      const int64_t bit = 8 * byte + (byte * 5) % 8;
      HOTROW_ASSERT_OK(env_.FlipBit(path, bit));
      const absl::StatusOr<Rows> rows = Load();
      EXPECT_THAT(rows, testing::Not(test::IsOk())) << path << " byte " << byte;
      EXPECT_THAT(rows, StatusIs(rows.status().code(),
                                 AllOf(HasSubstr(path), testing::Not(HasSubstr("second")))))
          << "byte " << byte;
      HOTROW_ASSERT_OK(env_.FlipBit(path, bit));
    }
  }
  HOTROW_EXPECT_OK(Load());
}

// Row counts and sizes beyond 32 bits. The files are holes, and only their headers are read.
TEST(PortableTablesTest, MoreRowsThan32BitsAreCounted) {
  const std::string dir = test::TempDir();
  constexpr int64_t kRows = (int64_t{1} << 32) + 5;
  PortableTable table = {
      .name = "big", .dim = 3, .optimizer = SparseOptimizerKind::kRowWiseAdagrad};
  for (PortableArray& array : PortableArraysOf(table.dim, table.optimizer)) {
    std::vector<int64_t> shape = {kRows};
    if (array.columns > 0) shape.push_back(array.columns);
    const int64_t width = (array.dtype == "<u8" ? 8 : 4) * std::max<int64_t>(array.columns, 1);
    const std::string name = array.name + ".npy";
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                                PosixEnv().Open(dir + "/" + name, OpenMode::kTruncate));
    const std::string header = NpyHeaderText(array.dtype, shape);
    HOTROW_ASSERT_OK(WriteFull(*file, 0, std::as_bytes(std::span(header))));
    if (const absl::Status status = file->Truncate(kNpyHeaderBytes + kRows * width); !status.ok()) {
      GTEST_SKIP() << "no files of this size here: " << status.message();
    }
    array.files = {{name, {}}};
    table.arrays.push_back(std::move(array));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto rows, CheckPortableTables({.dir = dir}, {table}));
  EXPECT_THAT(rows, ElementsAre(kRows));
}

TEST(NpyHeaderTextTest, IsOfOneLengthAndReadsBack) {
  const std::vector<std::vector<int64_t>> shapes = {
      {0}, {7}, {0, 5}, {3, 64}, {INT64_MAX / 8}, {(int64_t{1} << 40) + 1, 1 << 20}};
  for (const std::vector<int64_t>& shape : shapes) {
    const std::string text = NpyHeaderText("<f4", shape);
    EXPECT_EQ(text.size(), static_cast<size_t>(kNpyHeaderBytes));
    HOTROW_ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(text));
    EXPECT_EQ(header.shape, shape);
    EXPECT_EQ(header.dtype, "<f4");
    EXPECT_EQ(header.header_bytes, kNpyHeaderBytes);
  }
}

}  // namespace
}  // namespace hotrow
