#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/serving/serving_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::FaultyEnv;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr char kDir[] = "/rows";

// Tables of rows in all forms, one without rows and one whose rows are longer than a block.
struct Form {
  const char* name;
  ServingRows rows;
  int32_t dim;
  uint64_t keys;
};
constexpr Form kForms[] = {
    {"floats", ServingRows::kAsTrained, 5, 700}, {"halves", ServingRows::kFp16, 16, 400},
    {"bfloats", ServingRows::kBf16, 3, 300},     {"bytes", ServingRows::kInt8, 16, 900},
    {"nibbles", ServingRows::kInt4, 8, 500},     {"none", ServingRows::kAsTrained, 4, 0},
    {"long", ServingRows::kAsTrained, 1100, 12}};
constexpr uint32_t kTables = std::size(kForms);

ServingTablesOptions Options(int64_t memory_bytes, Env* env = nullptr) {
  ServingTablesOptions out = {.seed = 5, .memory_bytes = memory_bytes};
  for (const Form& form : kForms) {
    out.tables.push_back({.name = form.name,
                          .rows = form.rows,
                          .layout = RowLayout::For(form.dim, SparseOptimizerKind::kRowWiseAdagrad),
                          .initializer = {InitializerKind::kNormal, 0.5f}});
  }
  if (env == nullptr) return out;
  out.rows_dir = kDir;
  out.rows_source = "model";
  out.env = env;
  return out;
}

// Keys of both ends of the range.
uint64_t KeyAt(uint64_t i) { return i % 2 == 0 ? i / 2 : UINT64_MAX - i / 2; }

std::vector<std::byte> RowOf(uint32_t table, uint64_t key, uint64_t salt = 0) {
  const RowLayout layout = RowLayout::For(kForms[table].dim, SparseOptimizerKind::kRowWiseAdagrad);
  std::vector<std::byte> row(static_cast<size_t>(layout.row_bytes));
  RandomStream random(key ^ salt << 32 ^ table, RandomPurpose::kTest);
  for (int32_t d = 0; d < layout.dim; ++d) {
    const auto weight = static_cast<float>(random.Uniform() - 0.5);
    std::memcpy(row.data() + 4 * d, &weight, sizeof(weight));
  }
  return row;
}

absl::StatusOr<std::unique_ptr<ServingTables>> Build(const ServingTablesOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const auto builder, ServingTables::Builder::Create(options));
  if (builder->has_rows()) return builder->Finish();
  for (uint32_t t = 0; t < kTables; ++t) {
    for (uint64_t i = 0; i < kForms[t].keys; ++i) {
      const uint64_t key = KeyAt(i);
      HOTROW_RETURN_IF_ERROR(builder->Add({key, t}, RowOf(t, key)));
    }
  }
  return builder->Finish();
}

// The keys of a call for each table: some have a row, some do not, some come twice.
std::vector<std::vector<uint64_t>> Call(uint64_t seed, int64_t keys) {
  RandomStream random(seed, RandomPurpose::kTest);
  std::vector<std::vector<uint64_t>> out(kTables);
  for (uint32_t t = 0; t < kTables; ++t) {
    for (int64_t i = 0; i < keys; ++i) {
      const double u = random.Uniform();
      out[t].push_back(KeyAt(static_cast<uint64_t>(u * u * 1.3 * (kForms[t].keys + 20.0))));
    }
  }
  return out;
}

absl::StatusOr<std::vector<float>> PoolCall(const ServingTables& tables,
                                            const std::vector<std::vector<uint64_t>>& keys,
                                            ServingTables::Scratch* scratch) {
  int64_t floats = 0;
  for (uint32_t t = 0; t < kTables; ++t) floats += std::ssize(keys[t]) * kForms[t].dim;
  std::vector<float> out(static_cast<size_t>(floats), -7.0f);
  std::vector<int64_t> offsets(keys[0].size() + 1);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
  std::vector<ServingLookup> lookups;
  float* next = out.data();
  for (uint32_t t = 0; t < kTables; ++t) {
    lookups.push_back({.table = t,
                       .batch_size = std::ssize(keys[t]),
                       .keys = keys[t],
                       .offsets = offsets,
                       .output = {next, std::ssize(keys[t]), kForms[t].dim}});
    next += std::ssize(keys[t]) * kForms[t].dim;
  }
  HOTROW_RETURN_IF_ERROR(tables.Pool(tables.view(), lookups, scratch));
  return out;
}

void ExpectSame(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << i;
  }
}

// What memory gives, of some calls.
const std::vector<std::vector<float>>& Expected() {
  static const auto* const out = [] {
    auto* const made = new std::vector<std::vector<float>>();
    const auto tables = Build(Options(64 * kMiB));
    HOTROW_EXPECT_OK(tables);
    ServingTables::Scratch scratch;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      auto pooled = PoolCall(**tables, Call(seed, 60), &scratch);
      HOTROW_EXPECT_OK(pooled);
      made->push_back(*std::move(pooled));
    }
    return made;
  }();
  return *out;
}

void ExpectRows(const ServingTables& tables) {
  for (uint32_t t = 0; t < kTables; ++t) {
    EXPECT_EQ(tables.rows(t), static_cast<int64_t>(kForms[t].keys));
  }
  ServingTables::Scratch scratch;
  for (uint64_t seed = 0; seed < Expected().size(); ++seed) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> found,
                                PoolCall(tables, Call(seed, 60), &scratch));
    ExpectSame(found, Expected()[seed]);
  }
}

std::vector<std::string> FilesOf(FaultyEnv& env) {
  auto names = env.ListDir(kDir);
  HOTROW_EXPECT_OK(names);
  std::erase_if(*names, [](const std::string& name) { return !name.ends_with(".rows"); });
  for (std::string& name : *names) name = absl::StrCat(kDir, "/", name);
  return *names;
}

// The least memory in which the rows can be read; all of it is index and buffers then.
int64_t Without(FaultyEnv& env) {
  int64_t bytes = 0;
  for (int64_t step = 8 * kMiB; step >= 4 * kKiB; step /= 2) {
    if (!Build(Options(bytes + step, &env)).ok()) bytes += step;
  }
  return bytes + 4 * kKiB;
}

TEST(ServingDiskTest, RowsHaveTheBitsOfMemoryWhateverTheCache) {
  FaultyEnv env;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(Options(16 * kMiB, &env)));
    ExpectRows(*tables);
    const ServingReadStats first = tables->read_stats();
    EXPECT_GT(first.misses, 0);
    EXPECT_GT(first.absent, 0);
    EXPECT_GT(first.hits, 0);
    EXPECT_LE(first.reads, first.misses);
    EXPECT_GE(first.read_bytes, first.reads * 4096);
    // The cache has room for all.
    EXPECT_GE(first.cache_rows, 2812);
    ExpectRows(*tables);
    const ServingReadStats second = tables->read_stats();
    EXPECT_GT(second.hits, first.hits);
    // But for keys that the filter takes for ones with a row.
    EXPECT_LT(second.misses - first.misses, second.hits / 20);
  }
  const int64_t least = Without(env);
  for (const int64_t more : {int64_t{0}, 8 * kKiB, 64 * kKiB}) {
    SCOPED_TRACE(more);
    const ServingTablesOptions options = Options(least + more, &env);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options));
    ExpectRows(*tables);
    ExpectRows(*tables);
    EXPECT_LE(tables->bytes(), options.memory_bytes);
    EXPECT_LT(tables->read_stats().cache_rows, 2000);
    if (more == 0) {
      EXPECT_EQ(tables->read_stats().hits, 0);
    }
  }
}

// Rows that do not fit into the memory for sorting, and later ones in the place of earlier ones.
TEST(ServingDiskTest, RowsAreSortedInPartsAndTheLastOfAKeyCounts) {
  FaultyEnv env;
  ServingTablesOptions options = Options(700 * kKiB, &env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
  ASSERT_FALSE(builder->has_rows());
  for (uint64_t i = 0; i < 20'000; ++i) {
    HOTROW_ASSERT_OK(builder->Add({KeyAt(i), 0}, RowOf(0, KeyAt(i))));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool spilled, env.Exists("/rows/sort.tmp"));
  EXPECT_TRUE(spilled);
  for (uint64_t i = 0; i < 2000; ++i) {
    const uint64_t key = KeyAt(i);
    if (i % 2 == 0) {
      HOTROW_ASSERT_OK(builder->Set({key, 0}, RowOf(0, key, 1)));
    }
    if (i % 3 == 0) {
      HOTROW_ASSERT_OK(builder->Erase({key, 0}));
    }
    if (i % 12 == 0) {
      HOTROW_ASSERT_OK(builder->Set({key, 0}, RowOf(0, key, 2)));
    }
  }
  HOTROW_ASSERT_OK(builder->Set({KeyAt(20'001), 0}, RowOf(0, KeyAt(20'001))));
  HOTROW_ASSERT_OK(builder->Erase({KeyAt(20'002), 0}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, builder->Finish());
  EXPECT_EQ(tables->rows(0), 20'001 - 667 + 167);
  EXPECT_LE(tables->bytes(), options.memory_bytes);
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool left, env.Exists("/rows/sort.tmp"));
  EXPECT_FALSE(left);
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 20'003; ++i) keys.push_back(KeyAt(i));
  std::vector<int64_t> offsets(keys.size() + 1);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
  std::vector<float> out(5 * keys.size());
  ServingTables::Scratch scratch;
  HOTROW_ASSERT_OK(tables->Pool({.table = 0,
                                 .batch_size = std::ssize(keys),
                                 .keys = keys,
                                 .offsets = offsets,
                                 .output = {out.data(), std::ssize(keys), 5}},
                                &scratch));
  int64_t wrong = 0;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    const bool set = i < 2000;
    const bool has_row = (i < 20'000 || i == 20'001) && !(set && i % 3 == 0 && i % 12 != 0);
    const uint64_t salt = set && i % 12 == 0 ? 2 : set && i % 2 == 0 ? 1 : 0;
    const std::vector<std::byte> row = RowOf(0, keys[i], salt);
    wrong += (std::memcmp(row.data(), out.data() + 5 * i, 20) == 0) == has_row ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0);

  // Twice the same key, with the first in a part that was written.
  options.rows_source = "another";
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto twice, ServingTables::Builder::Create(options));
  for (uint64_t i = 0; i < 20'000; ++i) {
    HOTROW_ASSERT_OK(twice->Add({i, 0}, RowOf(0, 1)));
  }
  HOTROW_ASSERT_OK(twice->Add({7, 0}, RowOf(0, 1)));
  EXPECT_THAT(twice->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("table \"floats\" has two rows of key 7")));
}

TEST(ServingDiskTest, FilesAreReadAgainWhereTheRowsAreTheSame) {
  FaultyEnv env;
  const ServingTablesOptions options = Options(4 * kMiB, &env);
  HOTROW_ASSERT_OK(Build(options));
  const std::vector<std::string> files = FilesOf(env);
  ASSERT_EQ(files.size(), kTables);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto same, ServingTables::Builder::Create(options));
  EXPECT_TRUE(same->has_rows());
  const auto is_other = [&](const char* what, const auto& change) {
    SCOPED_TRACE(what);
    ServingTablesOptions changed = options;
    change(&changed);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(changed));
    EXPECT_FALSE(builder->has_rows());
  };
  is_other("source", [](auto* o) { o->rows_source = "other"; });
  is_other("unknown source", [](auto* o) { o->rows_source = ""; });
  is_other("form", [](auto* o) { o->tables[1].rows = ServingRows::kBf16; });
  is_other("first step", [](auto* o) { o->first_step = 1; });
  is_other("missed steps", [](auto* o) { o->rows_missed_steps = true; });
  is_other("rates", [](auto* o) { o->learning_rates = {{1, 0.5f}}; });
  is_other("decay", [](auto* o) { o->tables[3].optimizer.weight_decay = 0.1f; });
  is_other("seed", [](auto* o) { o->seed = 6; });

  // What is there stays until other files have taken its place; who reads it goes on.
  EXPECT_EQ(FilesOf(env), files);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reading, same->Finish());
  ServingTablesOptions next = options;
  next.rows_source = "next";
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(next));
  EXPECT_EQ(FilesOf(env).size(), kTables);
  EXPECT_NE(FilesOf(env), files);
  ExpectRows(*tables);
  ExpectRows(*reading);
}

TEST(ServingDiskTest, AFlippedBitIsFoundAndNamed) {
  FaultyEnv env;
  HOTROW_ASSERT_OK(Build(Options(4 * kMiB, &env)));
  const std::vector<std::string> files = FilesOf(env);
  const std::string& path = files[3];
  const auto is_named =
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(path), HasSubstr("remove the file")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t size, file->Size());
  const int64_t step = test::RunsSlowTests() ? 13 : test::ForSanitizer(577, 2003);
  int64_t opened = 0;
  for (int64_t byte = 0; byte < size; byte += byte < 88 ? 1 : step) {
    if (byte >= 88 && byte < 4096) byte = 4096;  // zeros that nobody reads
    SCOPED_TRACE(byte);
    const int64_t bit = 8 * byte + byte % 8;
    HOTROW_ASSERT_OK(env.FlipBit(path, bit));
    const auto tables = Build(Options(4 * kMiB, &env));
    if (tables.ok()) {
      ++opened;
      // All rows of the table, so that its blocks are read.
      std::vector<std::vector<uint64_t>> keys(kTables);
      for (uint64_t i = 0; i < kForms[3].keys; ++i) {
        for (auto& own : keys) own.push_back(KeyAt(i));
      }
      ServingTables::Scratch scratch;
      EXPECT_THAT(
          PoolCall(**tables, keys, &scratch),
          StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(path), HasSubstr("block"),
                                                      HasSubstr("checksum does not match"))));
      // Other tables, and other blocks, are read on.
      for (auto& own : keys) own.resize(1);
      keys[3][0] = UINT64_MAX / 3;
      HOTROW_EXPECT_OK(PoolCall(**tables, keys, &scratch));
    } else {
      EXPECT_THAT(tables, is_named);
    }
    HOTROW_ASSERT_OK(env.FlipBit(path, bit));
  }
  EXPECT_GT(opened, 10);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto good, Build(Options(4 * kMiB, &env)));
  ExpectRows(*good);
}

TEST(ServingDiskTest, AFileThatIsCutOrOfOtherRowsIsRefused) {
  FaultyEnv env;
  HOTROW_ASSERT_OK(Build(Options(4 * kMiB, &env)));
  const std::string path = FilesOf(env)[0];
  const auto refused = [&](const char* what) {
    return StatusIs(absl::StatusCode::kDataLoss,
                    AllOf(HasSubstr(path), HasSubstr(what), HasSubstr("remove the file")));
  };
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto open, Build(Options(4 * kMiB, &env)));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env.Open(path, OpenMode::kReadWrite));
    HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t size, file->Size());
    HOTROW_ASSERT_OK(file->Truncate(size - 1));
    EXPECT_THAT(Build(Options(4 * kMiB, &env)), refused("its header says"));
    HOTROW_ASSERT_OK(file->Truncate(6000));
    EXPECT_THAT(Build(Options(4 * kMiB, &env)), refused("has 6000 bytes"));
    ServingTables::Scratch scratch;
    EXPECT_THAT(PoolCall(*open, Call(1, 60), &scratch), refused("ends in block"));
    HOTROW_ASSERT_OK(file->Truncate(10));
    EXPECT_THAT(Build(Options(4 * kMiB, &env)), refused("fewer than its header"));
  }
  // The same table of other rows, under the name of these.
  FaultyEnv other;
  ServingTablesOptions options = Options(4 * kMiB, &other);
  options.rows_source = "other";
  HOTROW_ASSERT_OK(Build(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(other, FilesOf(other)[0]));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, path, bytes));
  EXPECT_THAT(Build(Options(4 * kMiB, &env)), refused("has table 0 of"));

  // The remedy.
  HOTROW_ASSERT_OK(env.Remove(path));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(Options(4 * kMiB, &env)));
  ExpectRows(*tables);
}

// Every call fails once, and the disk is full at any moment: there is an error, or the rows are
// right; and what is left does not harm the next try.
TEST(ServingDiskTest, WritingIsWholeOrAnError) {
  const absl::Status injected = absl::DataLossError("injected");
  for (int64_t k = 0;; k += test::ForSanitizer(1, 5)) {
    SCOPED_TRACE(k);
    FaultyEnv env;
    env.FailCall(k, injected);
    const absl::Status failed = Build(Options(4 * kMiB, &env)).status();
    if (env.faults() == 0) break;
    // Notes of hot keys and files to be removed may fail without harm.
    if (!failed.ok()) {
      EXPECT_THAT(failed, StatusIs(absl::StatusCode::kDataLoss, "injected"));
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(Options(4 * kMiB, &env)));
    if (k % 8 == 0) ExpectRows(*tables);
    for (uint32_t t = 0; t < kTables; ++t) {
      ASSERT_EQ(tables->rows(t), static_cast<int64_t>(kForms[t].keys));
    }
  }
  FaultyEnv full;
  // What a process that was killed has left.
  HOTROW_ASSERT_OK(full.CreateDirs(kDir));
  const std::string half = absl::StrCat(kDir, "/", std::string(32, 'a'), "-00000.rows.tmp");
  for (const std::string& name : {std::string("/rows/sort.tmp"), half}) {
    HOTROW_ASSERT_OK(WriteFileAtomically(full, name, "half"));
  }
  full.SetCapacity(100 * kKiB);
  EXPECT_THAT(Build(Options(4 * kMiB, &full)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(".rows.tmp"), HasSubstr("rows_dir /rows needs room"))));
  full.SetCapacity(20 * kKiB);  // while rows are sorted
  EXPECT_THAT(Build(Options(200 * kKiB, &full)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("sort.tmp"), HasSubstr("rows_dir /rows needs room"))));
  full.SetCapacity(64 * kMiB);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(Options(4 * kMiB, &full)));
  ExpectRows(*tables);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> left, full.ListDir(kDir));
  EXPECT_EQ(left.size(), kTables);
}

TEST(ServingDiskTest, APlaceThatIsNoneAndMemoryThatIsShortAreNamed) {
  const std::string dir = test::TempDir();
  ServingTablesOptions options = Options(4 * kMiB, &PosixEnv());
  options.rows_dir = dir + "/file/rows";
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/file", "x"));
  EXPECT_THAT(ServingTables::Builder::Create(options).status().message(), HasSubstr(dir));
  options.rows_dir = dir + "/rows";
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto first, ServingTables::Builder::Create(options));
  EXPECT_THAT(ServingTables::Builder::Create(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/rows/rows.lock"), HasSubstr("another directory"))));
  FaultyEnv env;
  EXPECT_THAT(Build(Options(20 * kKiB, &env)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("memory_bytes"), HasSubstr("the budget is 20480"))));
}

// The real file system, with a cache that all threads change.
TEST(ServingDiskTest, ManyThreadsReadTheSameBits) {
  constexpr int kThreads = 4;
  ServingTablesOptions options = Options(300 * kKiB, &PosixEnv());
  options.rows_dir = test::TempDir();
  options.readers = kThreads;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options));
  EXPECT_LE(tables->bytes(), options.memory_bytes);
  EXPECT_LT(tables->read_stats().cache_rows, 2000);
  EXPECT_GT(tables->read_stats().cache_rows, 100);
  {
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        ServingTables::Scratch scratch;
        if (!tables->Prepare(&scratch).ok()) ++wrong;
        for (uint64_t call = 0; call < 40; ++call) {
          const uint64_t seed = (call + static_cast<uint64_t>(i)) % Expected().size();
          const auto found = PoolCall(*tables, Call(seed, 60), &scratch);
          if (!found.ok() || std::memcmp(found->data(), Expected()[seed].data(),
                                         4 * Expected()[seed].size()) != 0) {
            ++wrong;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
  std::vector<ServingTables::Scratch> scratches(kThreads + 1);
  for (int i = 0; i < kThreads; ++i) HOTROW_EXPECT_OK(tables->Prepare(&scratches[i]));
  EXPECT_THAT(tables->Prepare(&scratches[kThreads]),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("readers is 4")));
}

TEST(ServingDiskTest, HotKeysAreReadBeforeTheTablesAreOpen) {
  FaultyEnv env;
  ServingTables::Scratch scratch;
  const auto call = Call(3, 60);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(Options(4 * kMiB, &env)));
    ServingTables::Scratch own;
    HOTROW_ASSERT_OK(PoolCall(*tables, call, &own));
    HOTROW_ASSERT_OK(tables->SaveHotKeys());
  }
  // Other rows of these tables, too: a newer model of the same.
  for (const char* source : {"model", "next"}) {
    ServingTablesOptions options = Options(4 * kMiB, &env);
    options.rows_source = source;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options));
    EXPECT_THAT(tables->notes(), IsEmpty());
    const ServingReadStats warm = tables->read_stats();
    EXPECT_GT(warm.misses, 100);
    ServingTables::Scratch own;
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> found, PoolCall(*tables, call, &own));
    ExpectSame(found, Expected()[3]);
    const ServingReadStats after = tables->read_stats();
    EXPECT_GT(after.hits, 100);
    EXPECT_LT(after.misses - warm.misses, 20);  // keys that the filter was wrong about
  }
  const auto begins_cold = [&](const ServingTablesOptions& options, const char* why) {
    SCOPED_TRACE(why);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options));
    EXPECT_THAT(tables->notes(), ElementsAre(AllOf(HasSubstr("/rows/hot_keys"), HasSubstr(why))));
    EXPECT_EQ(tables->read_stats().reads, 0);
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(env, "/rows/hot_keys"));
  for (const size_t byte : {size_t{3}, size_t{20}, size_t{45}, bytes.size() / 2}) {
    HOTROW_ASSERT_OK(env.FlipBit("/rows/hot_keys", static_cast<int64_t>(8 * byte)));
    begins_cold(Options(4 * kMiB, &env), "is damaged");
    HOTROW_ASSERT_OK(env.FlipBit("/rows/hot_keys", static_cast<int64_t>(8 * byte)));
  }
  for (const size_t cut : {size_t{0}, size_t{40}, bytes.size() - 1}) {
    HOTROW_ASSERT_OK(WriteFileAtomically(env, "/rows/hot_keys", bytes.substr(0, cut)));
    begins_cold(Options(4 * kMiB, &env), "is damaged");
  }
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/rows/hot_keys", bytes));
  ServingTablesOptions renamed = Options(4 * kMiB, &env);
  renamed.tables[2].name = "renamed";
  begins_cold(renamed, "other tables");
}

// Calls that are larger than the buffers of a reader, which are a part of a small budget.
TEST(ServingDiskTest, LargeCallsAreReadPartByPart) {
  FaultyEnv env;
  const ServingTablesOptions options = Options(2 * kMiB, &env);
  ASSERT_LT(ServingTables::ScratchBytes(options), 300 * kKiB);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto memory, Build(Options(64 * kMiB)));
  ServingTables::Scratch own, other;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto found, PoolCall(*tables, Call(7, 900), &own));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto expected, PoolCall(*memory, Call(7, 900), &other));
  ExpectSame(found, expected);
}

// Each write is of 64 KiB at most, and a cache with room for fewer keys takes the most used.
TEST(ServingDiskTest, HotKeysAreWrittenInPartsWithTheirCounts) {
  FaultyEnv env;
  ServingTablesOptions options = Options(8 * kMiB, &env);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options));
    ServingTables::Scratch own;
    for (int i = 0; i < 4; ++i) HOTROW_ASSERT_OK(PoolCall(*tables, Call(3, 10), &own));
    HOTROW_ASSERT_OK(PoolCall(*tables, Call(4, 600), &own));
    HOTROW_ASSERT_OK(tables->SaveHotKeys());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(env, "/rows/hot_keys"));
  std::map<uint32_t, int> by_uses;
  for (size_t at = 48; at + 16 <= bytes.size(); at += 16) {
    uint32_t uses = 0;
    std::memcpy(&uses, bytes.data() + at + 12, sizeof(uses));
    ++by_uses[uses];
  }
  EXPECT_GT(by_uses[0], 100);
  EXPECT_GT(by_uses[3], 10);
  options.memory_bytes = Without(env) + 64 * kKiB;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto small, Build(options));
  const int64_t room = small->read_stats().cache_rows;
  ASSERT_LT(room, static_cast<int64_t>(bytes.size() / 16));
  EXPECT_LE(small->read_stats().misses, room);
  EXPECT_GT(small->read_stats().misses, 0);
}

}  // namespace
}  // namespace hotrow
