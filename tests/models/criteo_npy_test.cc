#include "models/data/criteo_npy.h"

#include <cmath>

#include "tests/models/file_builders.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::Npy;
using test::StatusIs;
using test::WriteFileOrDie;
using test::Zip;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Row i of day d: dense[c] = i + c / 100, key of feature f = 1000000 d + 100 i + f.
struct DayOptions {
  bool wide = false;         // int64 keys
  bool flat_labels = false;  // shape (N,)
};

template <typename T>
std::vector<T> Keys(int64_t day, int64_t rows) {
  std::vector<T> keys;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t f = 0; f < 26; ++f) keys.push_back(static_cast<T>(1'000'000 * day + 100 * i + f));
  }
  return keys;
}

void WriteDay(Env& env, int64_t day, int64_t rows, DayOptions options = {}) {
  std::vector<int32_t> labels;
  std::vector<float> dense;
  for (int64_t i = 0; i < rows; ++i) {
    labels.push_back(static_cast<int32_t>(i % 2));
    for (int64_t c = 0; c < 13; ++c) {
      dense.push_back(static_cast<float>(i) + static_cast<float>(c) / 100);
    }
  }
  const std::string prefix = absl::StrCat("/c/day_", day);
  const std::string n = absl::StrCat("(", rows);
  WriteFileOrDie(env, prefix + "_labels.npy",
                 Npy("<i4", n + (options.flat_labels ? ",)" : ", 1)"), labels));
  WriteFileOrDie(env, prefix + "_dense.npy", Npy("<f4", n + ", 13)", dense));
  WriteFileOrDie(env, prefix + "_sparse.npy",
                 options.wide ? Npy("<i8", n + ", 26)", Keys<int64_t>(day, rows))
                              : Npy("<i4", n + ", 26)", Keys<int32_t>(day, rows)));
}

// Feature f of row i of day d holds 1 + f % 3 keys, the j-th being 1000000 d + 1000 i + 10 f + j.
void WriteMultiHot(Env& env, int64_t day, int64_t rows, bool deflated, int64_t extra_rows = 0) {
  std::vector<test::ZipFile> members;
  for (int64_t f = 0; f < 26; ++f) {
    const int64_t hotness = 1 + f % 3;
    const int64_t n = rows + (f == 7 ? extra_rows : 0);
    std::vector<int32_t> keys;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < hotness; ++j) {
        keys.push_back(static_cast<int32_t>(1'000'000 * day + 1000 * i + 10 * f + j));
      }
    }
    members.push_back({absl::StrCat(f, ".npy"),
                       Npy("<i4", absl::StrCat("(", n, ", ", hotness, ")"), keys), deflated});
  }
  WriteFileOrDie(env, absl::StrCat("/c/day_", day, "_sparse_multi_hot.npz"), Zip(members, true));
}

struct Row {
  int64_t day;
  int64_t row;
  friend bool operator==(const Row&, const Row&) = default;
  friend auto operator<=>(const Row&, const Row&) = default;
};

// The rows in the order in which they come; checks all their columns.
std::vector<Row> ReadRows(DataSource& source, Split split, int64_t first_sample, bool multi_hot,
                          int64_t batch_size = 16) {
  std::vector<Row> rows;
  auto reader = source.OpenSplit(split, 0, first_sample);
  HOTROW_CHECK(reader.ok());
  CtrBatch batch;
  while (true) {
    HOTROW_EXPECT_OK((*reader)->Next(batch_size, &batch));
    if (batch.batch_size == 0) return rows;
    for (int64_t b = 0; b < batch.batch_size; ++b) {
      const auto first = static_cast<int64_t>(batch.values[b]);
      const int64_t per_row = multi_hot ? 1000 : 100;
      const Row row = {first / 1'000'000, first % 1'000'000 / per_row};
      rows.push_back(row);
      EXPECT_EQ(batch.labels[b], row.row % 2);
      for (int c = 0; c < 13; ++c) {
        EXPECT_FLOAT_EQ(batch.dense[13 * b + c], static_cast<float>(row.row + 0.01 * c));
      }
      for (int64_t f = 0; f < 26; ++f) {
        const int64_t begin = batch.offsets[f * batch.batch_size + b];
        const int64_t end = batch.offsets[f * batch.batch_size + b + 1];
        EXPECT_EQ(end - begin, multi_hot ? 1 + f % 3 : 1);
        for (int64_t j = 0; j < end - begin; ++j) {
          EXPECT_EQ(static_cast<int64_t>(batch.values[begin + j]),
                    first + (multi_hot ? 10 * f + j : f));
        }
      }
    }
  }
}

std::vector<Row> Rows(int64_t day, int64_t begin, int64_t end) {
  std::vector<Row> rows;
  for (int64_t i = begin; i < end; ++i) rows.push_back({day, i});
  return rows;
}

class CriteoNpyTest : public testing::TestWithParam<bool> {  // P: in memory
 protected:
  static FileSourceOptions Options() {
    return {.seed = 1, .memory_bytes = GetParam() ? int64_t{1} << 28 : 0, .window_samples = 20};
  }
  MemEnv env_;
};
INSTANTIATE_TEST_SUITE_P(MemoryAndStream, CriteoNpyTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Memory" : "Stream"; });

TEST_P(CriteoNpyTest, LastDayIsHalvedAndTheOthersTrain) {
  WriteDay(env_, 0, 50);
  WriteDay(env_, 1, 7, {.wide = true});
  WriteDay(env_, 2, 0);
  WriteDay(env_, 10, 33, {.flat_labels = true});
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenCriteoNpy("/c", Options(), env_));
  EXPECT_EQ(source->schema().train_samples, 57);
  EXPECT_EQ(source->schema().valid_samples, 16);
  EXPECT_EQ(source->schema().test_samples, 17);
  EXPECT_EQ(source->schema().num_dense, 13);
  ASSERT_EQ(source->schema().features.size(), 26u);
  EXPECT_EQ(source->schema().features[25].name, "C26");
  EXPECT_EQ(source->schema().features[25].max_hotness, 1);

  std::vector<Row> train = ReadRows(*source, Split::kTrain, 0, false);
  for (const int64_t first : {3, 20, 45, 56, 57}) {
    EXPECT_EQ(ReadRows(*source, Split::kTrain, first, false),
              std::vector<Row>(train.begin() + first, train.end()));
  }
  EXPECT_NE(train[0], (Row{0, 0}));
  std::sort(train.begin(), train.end());
  std::vector<Row> expected = Rows(0, 0, 50);
  for (const Row& row : Rows(1, 0, 7)) expected.push_back(row);
  EXPECT_EQ(train, expected);
  EXPECT_EQ(ReadRows(*source, Split::kValid, 0, false), Rows(10, 0, 16));
  EXPECT_EQ(ReadRows(*source, Split::kTest, 0, false), Rows(10, 16, 33));
  EXPECT_EQ(ReadRows(*source, Split::kTest, 5, false, 1), Rows(10, 21, 33));
  EXPECT_THAT(source->OpenSplit(Split::kTest, 0, 18),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("17 samples")));
}

TEST_P(CriteoNpyTest, MultiHotReplacesTheSingleKeys) {
  for (const bool deflated : {false, true}) {
    for (const int64_t day : {0, 1}) {
      WriteDay(env_, day, 41);
      WriteMultiHot(env_, day, 41, deflated);
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenCriteoNpy("/c", Options(), env_));
    EXPECT_EQ(source->schema().features[2].max_hotness, 3);
    std::vector<Row> train = ReadRows(*source, Split::kTrain, 0, true);
    std::sort(train.begin(), train.end());
    EXPECT_EQ(train, Rows(0, 0, 41));
    EXPECT_EQ(ReadRows(*source, Split::kValid, 0, true), Rows(1, 0, 20));
    EXPECT_EQ(ReadRows(*source, Split::kTest, 0, true), Rows(1, 20, 41));
  }
}

TEST(CriteoNpyErrorTest, SignsOfInt32KeysDoNotSpread) {
  MemEnv env;
  for (const int64_t day : {0, 1}) WriteDay(env, day, 2);
  std::vector<int32_t> keys(52, -1);
  WriteFileOrDie(env, "/c/day_0_sparse.npy", Npy("<i4", "(2, 26)", keys));
  std::vector<int64_t> wide(52, -1);
  WriteFileOrDie(env, "/c/day_1_sparse.npy", Npy("<i8", "(2, 26)", wide));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenCriteoNpy("/c", {}, env));
  CtrBatch batch;
  HOTROW_ASSERT_OK((*source->OpenSplit(Split::kTrain, 0, 0))->Next(2, &batch));
  EXPECT_EQ(batch.values[0], 0xffffffffu);
  HOTROW_ASSERT_OK((*source->OpenSplit(Split::kTest, 0, 0))->Next(2, &batch));
  EXPECT_EQ(batch.values[0], ~uint64_t{0});
}

TEST(CriteoNpyErrorTest, ErrorsNameTheFile) {
  struct Case {
    const char* file;
    std::string bytes;  // instead of what is there
    absl::StatusCode code;
    const char* message;
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto data_loss = absl::StatusCode::kDataLoss;
  const std::vector<float> dense(39, 1.f);
  std::vector<float> infinite = dense;
  infinite[14] = INFINITY;
  const std::string good_dense = Npy("<f4", "(3, 13)", dense);
  const Case cases[] = {
      {"/c/day_0_labels.npy", "", invalid, "the file is empty"},
      {"/c/day_0_labels.npy", "label\n1\n", invalid, "starts with \"label\\x0a\""},
      {"/c/day_0_labels.npy", Npy("<i4", "(4, 1)", std::vector<int32_t>(4)), invalid,
       "has 3 rows, /c/day_0_labels.npy has 4"},
      {"/c/day_0_labels.npy", Npy("<i8", "(3, 1)", std::vector<int64_t>(3)), invalid,
       "/c/day_0_labels.npy: dtype is <i8, expected <i4"},
      {"/c/day_0_labels.npy", Npy("<i4", "(3, 2)", std::vector<int32_t>(6)), invalid,
       "shape is (3, 2), expected (N, 1)"},
      {"/c/day_0_labels.npy", Npy("<i4", "(3, 1)", std::vector<int32_t>{0, 1, 2}), invalid,
       "/c/day_0_labels.npy: row 2: found 2, expected 0 or 1"},
      {"/c/day_0_dense.npy", Npy("<f8", "(3, 13)", std::vector<double>(39)), invalid,
       "/c/day_0_dense.npy: dtype is <f8, expected <f4"},
      {"/c/day_0_dense.npy", Npy("<f4", "(3, 12)", std::vector<float>(36)), invalid,
       "shape is (3, 12), expected (N, 13)"},
      {"/c/day_0_dense.npy", Npy("<f4", "(3, 13)", infinite), invalid,
       "/c/day_0_dense.npy: row 1: column 1 is not a finite number"},
      {"/c/day_0_dense.npy", good_dense.substr(0, good_dense.size() - 1), data_loss,
       "/c/day_0_dense.npy: has 155 bytes of data, shape (3, 13) of <f4 needs 156"},
      {"/c/day_0_dense.npy", good_dense + "x", data_loss, "has 157 bytes of data"},
      {"/c/day_0_dense.npy", good_dense.substr(0, 40), invalid, "npy header: ends early"},
      {"/c/day_0_sparse.npy", Npy("<f4", "(3, 26)", std::vector<float>(78)), invalid,
       "dtype is <f4, expected <i4 or <i8"},
      {"/c/day_0_sparse.npy", Npy("<i4", "(78,)", std::vector<int32_t>(78)), invalid,
       "shape is (78,), expected (N, 26)"},
      {"/c/day_0_sparse.npy", Npy("<i4", "(2, 26)", std::vector<int32_t>(52)), invalid,
       "/c/day_0_sparse.npy: has 2 rows, /c/day_0_labels.npy has 3"},
  };
  for (const Case& c : cases) {
    MemEnv env;
    WriteDay(env, 0, 3);
    WriteDay(env, 1, 3);
    WriteFileOrDie(env, c.file, c.bytes);
    EXPECT_THAT(OpenCriteoNpy("/c", {}, env),
                StatusIs(c.code, AllOf(HasSubstr("/c/day_0_"), HasSubstr(c.message))));
  }
}

TEST(CriteoNpyErrorTest, MissingFilesAndDays) {
  MemEnv env;
  WriteFileOrDie(env, "/c/readme", "");
  EXPECT_THAT(OpenCriteoNpy("/c", {}, env),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("for 0 days, expected two or more")));
  WriteDay(env, 0, 3);
  EXPECT_THAT(OpenCriteoNpy("/c", {}, env),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("for 1 days, expected two or more")));
  WriteDay(env, 1, 3);
  HOTROW_EXPECT_OK(OpenCriteoNpy("/c", {}, env));
  HOTROW_ASSERT_OK(env.Remove("/c/day_1_dense.npy"));
  EXPECT_THAT(OpenCriteoNpy("/c", {}, env),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/c/day_1_dense.npy")));
  EXPECT_THAT(OpenCriteoNpy("/nowhere", {}, env),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere")));
}

TEST(CriteoNpyErrorTest, MultiHotOfOtherShapeOrDamaged) {
  MemEnv env;
  for (const int64_t day : {0, 1}) {
    WriteDay(env, day, 5);
    WriteMultiHot(env, day, 5, false);
  }
  HOTROW_EXPECT_OK(OpenCriteoNpy("/c", {}, env));
  WriteMultiHot(env, 1, 5, false, /*extra_rows=*/1);
  EXPECT_THAT(OpenCriteoNpy("/c", {}, env),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("/c/day_1_sparse_multi_hot.npz(7.npy): has 6 rows")));
  WriteFileOrDie(env, "/c/day_1_sparse_multi_hot.npz", Zip({{"0.npy", "x"}}));
  EXPECT_THAT(OpenCriteoNpy("/c", {}, env),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("(0.npy): npy header")));
  HOTROW_ASSERT_OK(env.Remove("/c/day_1_sparse_multi_hot.npz"));
  EXPECT_THAT(OpenCriteoNpy("/c", {}, env),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("day_1_sparse_multi_hot.npz")));
  // A flipped bit in the data of a member, which begins at byte 55 + 128.
  for (const int64_t day : {0, 1}) {
    for (const bool deflated : {false, true}) {
      WriteMultiHot(env, 0, 5, false);
      WriteMultiHot(env, 1, 5, false);
      WriteMultiHot(env, day, 5, deflated);
      const std::string path = absl::StrCat("/c/day_", day, "_sparse_multi_hot.npz");
      HOTROW_ASSERT_OK(env.FlipBit(path, 8 * (deflated ? 70 : 200)));
      const auto source = OpenCriteoNpy("/c", {}, env);
      // The halves of the last day are read apart, so that of stored members no checksum is
      // checked.
      if (day == 1 && !deflated) {
        HOTROW_EXPECT_OK(source);
      } else {
        EXPECT_FALSE(source.ok());
        EXPECT_THAT(source.status().ToString(), HasSubstr(path));
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
