// The forms in which callers of an EmbeddingCollection give and take things.
#include <algorithm>
#include <array>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "embedding/embedding_collection.h"
#include "embedding/storage_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::FillGradient;
using ::hotrow::test::Options;
using ::hotrow::test::RandomBatch;
using ::hotrow::test::RowsOf;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

EmbeddingCollectionOptions ThreeFeatures() {
  return Options({Table("a", 8, {"f0", "f2"}), Table("b", 5, {"f1"})});
}

std::unique_ptr<EmbeddingCollection> Make(const EmbeddingCollectionOptions& options) {
  auto tables = EmbeddingCollection::Create(options, {});
  HOTROW_EXPECT_OK(tables);
  return tables.ok() ? *std::move(tables) : nullptr;
}

absl::Status TrainStep(EmbeddingCollection& tables, const Batch& batch, uint64_t number) {
  std::vector<float> output(static_cast<size_t>(batch.batch_size * tables.pooled_dim()));
  HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
  HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = RowsOf(tables, batch.batch_size, output)}));
  std::vector<float> gradient;
  FillGradient(output, number, &gradient);
  return std::move(step).Update({.pooled = RowsOf(tables, batch.batch_size, gradient)});
}

// --- Batches

// The arrays of a batch in all widths.
struct Arrays {
  explicit Arrays(const Batch& from)
      : u64(from.values),
        i64(from.values.begin(), from.values.end()),
        i32(from.values.begin(), from.values.end()),
        offsets32(from.offsets.begin(), from.offsets.end()) {
    for (size_t i = 0; i + 1 < from.offsets.size(); ++i) {
      lengths64.push_back(from.offsets[i + 1] - from.offsets[i]);
      lengths32.push_back(static_cast<int32_t>(lengths64.back()));
    }
  }
  std::array<IdSpan, 3> ids() const { return {IdSpan(u64), IdSpan(i64), IdSpan(i32)}; }

  std::vector<uint64_t> u64;
  std::vector<int64_t> i64;
  std::vector<int32_t> i32;
  std::vector<int32_t> offsets32;
  std::vector<int64_t> lengths64;
  std::vector<int32_t> lengths32;
};

template <typename AnyBatch>
std::vector<float> Values(EmbeddingCollection& tables, const AnyBatch& batch) {
  std::vector<float> seen(static_cast<size_t>(batch.batch_size * tables.pooled_dim()), -1);
  std::vector<float> output = seen;
  HOTROW_EXPECT_OK(tables.Evaluate(batch, {.pooled = RowsOf(tables, batch.batch_size, seen)}));
  auto step = tables.Prefetch(batch);
  HOTROW_EXPECT_OK(step);
  if (!step.ok()) return {};
  HOTROW_EXPECT_OK(step->Lookup({.pooled = RowsOf(tables, batch.batch_size, output)}));
  EXPECT_EQ(seen, output);
  return output;
}

TEST(BatchFormsTest, EveryWidthOfIdsAndBagsGivesTheSameBits) {
  const auto tables = Make(ThreeFeatures());
  const Batch batch = RandomBatch(1, 3, 20, 4, 1000, true);
  HOTROW_ASSERT_OK(TrainStep(*tables, batch, 1));
  const std::vector<float> want = Values(*tables, batch.view());
  const Arrays arrays(batch);
  for (const IdSpan& ids : arrays.ids()) {
    SCOPED_TRACE(ids.index());
    const JaggedBatch base = {.batch_size = 20, .values = ids, .weights = batch.weights};
    for (const BagSpan& offsets : {BagSpan(batch.offsets), BagSpan(arrays.offsets32)}) {
      JaggedBatch form = base;
      form.offsets = offsets;
      HOTROW_EXPECT_OK(form.Validate(tables->feature_names()));
      EXPECT_EQ(Values(*tables, form), want);
    }
    for (const BagSpan& lengths : {BagSpan(arrays.lengths64), BagSpan(arrays.lengths32)}) {
      JaggedBatch form = base;
      form.lengths = lengths;
      HOTROW_EXPECT_OK(form.Validate(tables->feature_names()));
      EXPECT_EQ(Values(*tables, form), want);
    }
  }
}

TEST(BatchFormsTest, FeaturesApartInAnyOrderGiveTheSameBits) {
  const auto tables = Make(ThreeFeatures());
  const Batch batch = RandomBatch(2, 3, 16, 4, 1000, true);
  HOTROW_ASSERT_OK(TrainStep(*tables, batch, 1));
  const std::vector<float> want = Values(*tables, batch.view());
  const Arrays arrays(batch);
  std::vector<FeatureBags> features;
  std::array<std::vector<int64_t>, 3> offsets;
  for (size_t f = 0; f < 3; ++f) {
    const auto begin = static_cast<size_t>(batch.offsets[f * 16]);
    const size_t n = static_cast<size_t>(batch.offsets[(f + 1) * 16]) - begin;
    for (size_t b = 0; b <= 16; ++b) {
      offsets[f].push_back(batch.offsets[f * 16 + b] - batch.offsets[f * 16]);
    }
    FeatureBags bags;
    bags.weights = std::span(batch.weights).subspan(begin, n);
    if (f == 0) bags.values = std::span(arrays.u64).subspan(begin, n);
    if (f == 1) bags.values = std::span(arrays.i32).subspan(begin, n);
    if (f == 2) bags.values = std::span(arrays.i64).subspan(begin, n);
    if (f == 1) {
      bags.lengths = std::span(arrays.lengths32).subspan(16, 16);
    } else {
      bags.offsets = offsets[f];
    }
    features.push_back(bags);
  }
  const FeatureBatch apart = {.batch_size = 16, .features = features};
  EXPECT_EQ(Values(*tables, apart), want);
  const std::vector<std::string> names = tables->feature_names();
  HOTROW_EXPECT_OK(apart.Validate(names));
  std::swap(features[0], features[2]);
  HOTROW_ASSERT_OK_AND_ASSIGN(const FeatureOrder order, tables->OrderOf(std::vector<std::string>{
                                                            names[2], names[1], names[0]}));
  EXPECT_EQ(Values(*tables, FeatureBatch{.batch_size = 16, .features = features, .order = &order}),
            want);
  // Without the weights of one feature these are 1.
  features[0].weights = {};
  Batch unweighted = batch;
  for (int64_t j = batch.offsets[32]; j < batch.offsets[48]; ++j) unweighted.weights[j] = 1;
  EXPECT_EQ(Values(*tables, FeatureBatch{.batch_size = 16, .features = features, .order = &order}),
            Values(*tables, unweighted.view()));
}

TEST(BatchFormsTest, WrongFeaturesAreNamed) {
  const auto tables = Make(ThreeFeatures());
  using Names = std::vector<std::string>;
  EXPECT_THAT(tables->OrderOf(Names{"f0", "f1", "g"}),
              StatusIs(kInvalid, HasSubstr("no table has a feature \"g\"")));
  EXPECT_THAT(tables->OrderOf(Names{"f0", "f1", "f0"}),
              StatusIs(kInvalid, HasSubstr("\"f0\" occurs twice")));
  EXPECT_THAT(tables->OrderOf(Names{"f0", "f1"}),
              StatusIs(kInvalid, HasSubstr("\"f2\" is missing")));
  const std::vector<uint64_t> ids = {1, 2};
  const std::vector<int32_t> lengths = {1, 1};
  std::vector<FeatureBags> features(2, {.values = ids, .lengths = lengths});
  EXPECT_THAT(tables->Prefetch(FeatureBatch{.batch_size = 2, .features = features}).status(),
              StatusIs(kInvalid, HasSubstr("expected all 3 of the collection, got 2")));
  const std::vector<std::string> names = tables->feature_names();
  EXPECT_THAT((FeatureBatch{.batch_size = 2, .features = features}).Validate(names),
              StatusIs(kInvalid, HasSubstr("expected all 3, got 2")));
  const std::vector<int32_t> short_lengths = {1};
  features.push_back({.values = ids, .lengths = short_lengths});
  const FeatureBatch malformed = {.batch_size = 2, .features = features};
  EXPECT_THAT(malformed.Validate(names),
              StatusIs(kInvalid, AllOf(HasSubstr("feature \"f1\": lengths"),
                                       HasSubstr("2 samples = 2 entries, got 1"))));
  EXPECT_EQ(tables->Prefetch(malformed).status(), malformed.Validate(names));
  EXPECT_THAT((FeatureBatch{.batch_size = -1, .features = features}).Validate(names),
              StatusIs(kInvalid, HasSubstr("batch_size must lie in")));
  // An order that was made from no names is that of the collection.
  const FeatureOrder none;
  features[2] = features[0];
  HOTROW_EXPECT_OK(
      tables->Prefetch(FeatureBatch{.batch_size = 2, .features = features, .order = &none}));
}

// An int32 would be another key by its value than by its 32 bits, so it is none.
TEST(BatchFormsTest, NegativeIdsAreKeysOfTheir64BitsOrRefused) {
  const auto tables = Make(Options({Table("a", 4, {"f0"})}));
  const std::vector<uint64_t> u64 = {UINT64_MAX, UINT64_MAX - 6};
  const std::vector<int64_t> i64 = {-1, -7};
  const std::vector<int32_t> i32 = {-1, -7};
  const std::vector<int32_t> lengths = {1, 1};
  const std::vector<float> want =
      Values(*tables, JaggedBatch{.batch_size = 2, .values = u64, .lengths = lengths});
  EXPECT_EQ(Values(*tables, JaggedBatch{.batch_size = 2, .values = i64, .lengths = lengths}), want);
  const JaggedBatch narrow = {.batch_size = 2, .values = i32, .lengths = lengths};
  const auto refused = StatusIs(kInvalid, AllOf(HasSubstr("values[0] is -1: ids of 32 bits"),
                                                HasSubstr("as uint64, 4294967295")));
  EXPECT_THAT(tables->Prefetch(narrow).status(), refused);
  EXPECT_THAT(narrow.Validate(tables->feature_names()), refused);
  const std::vector<FeatureBags> apart = {{.values = i32, .lengths = lengths}};
  EXPECT_THAT(tables->Prefetch(FeatureBatch{.batch_size = 2, .features = apart}).status(),
              StatusIs(kInvalid, HasSubstr("feature \"f0\": values[0] is -1")));

  EmbeddingCollectionOptions bounded = Options({Table("a", 4, {"user"})});
  bounded.tables[0].num_embeddings = 10;
  const auto small = Make(bounded);
  EXPECT_THAT(
      small->Prefetch(JaggedBatch{.batch_size = 2, .values = i64, .lengths = lengths}).status(),
      StatusIs(kInvalid, AllOf(HasSubstr("\"user\", sample 0: key -1 "), HasSubstr("[0, 10)"))));
}

TEST(BatchFormsTest, MalformedLengthsAreNamed) {
  const auto tables = Make(Options({Table("a", 4, {"user", "item"})}));
  const std::vector<uint64_t> ids = {1, 2, 3};
  const std::vector<int64_t> offsets = {0, 1, 2, 3, 3};
  const auto error = [&](std::vector<int32_t> lengths, bool both = false) {
    JaggedBatch batch = {.batch_size = 2, .values = ids, .lengths = lengths};
    if (both) batch.offsets = offsets;
    const absl::Status status = tables->Prefetch(batch).status();
    EXPECT_EQ(status, batch.Validate(tables->feature_names()));
    return status;
  };
  HOTROW_EXPECT_OK(error({1, 1, 1, 0}));
  EXPECT_THAT(error({1, 1, 1}), StatusIs(kInvalid, HasSubstr("2 features x 2 samples = 4")));
  EXPECT_THAT(error({1, 1, -1, 2}),
              StatusIs(kInvalid, AllOf(HasSubstr("\"item\", sample 0"), HasSubstr("is -1"))));
  EXPECT_THAT(error({1, 1, 1, 1}), StatusIs(kInvalid, HasSubstr("\"item\", sample 1")));
  EXPECT_THAT(error({1, 1, 0, 0}), StatusIs(kInvalid, HasSubstr("number of values, 3, is 2")));
  EXPECT_THAT(error({1, 1, 1, 0}, true), StatusIs(kInvalid, HasSubstr("both given")));
}

// --- Views and steps

TEST(ViewsTest, StridedViewsGiveTheSameBits) {
  EmbeddingCollectionOptions options = ThreeFeatures();
  options.tables[1].pooling = Pooling::kNone;
  const auto plain = Make(options);
  const auto strided = Make(options);
  const int64_t width = plain->pooled_dim();
  for (uint64_t i = 0; i < 4; ++i) {
    const Batch batch = RandomBatch(i, 3, 10, 3, 50, false);
    const int64_t rows = batch.offsets.back() - batch.offsets[20];
    // Rows of pooled values and unpooled ones, with room behind each that nobody touches.
    std::vector<float> a(static_cast<size_t>(10 * width));
    std::vector<float> a_rows(static_cast<size_t>(rows * 5));
    std::vector<float> b(static_cast<size_t>(10 * (width + 3)), 77);
    std::vector<float> b_rows(static_cast<size_t>(rows * 9), 77);
    const MatrixView<float> pooled(b.data(), 10, width, width + 3);
    const MatrixView<float> unpooled(b_rows.data(), rows, 5, 9);
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, plain->Prefetch(batch.view()));
    HOTROW_ASSERT_OK(
        step.Lookup({.pooled = {a.data(), 10, width}, .unpooled = {{a_rows.data(), rows, 5}}}));
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep other, strided->Prefetch(batch.view()));
    HOTROW_ASSERT_OK(other.Lookup({.pooled = pooled, .unpooled = {unpooled}}));
    for (int64_t r = 0; r < 10; ++r) {
      for (int64_t c = 0; c < width; ++c) ASSERT_EQ(a[r * width + c], pooled(r, c));
      EXPECT_EQ(b[r * (width + 3) + width], 77);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < 5; ++c) ASSERT_EQ(a_rows[r * 5 + c], unpooled(r, c));
      EXPECT_EQ(b_rows[r * 9 + 5], 77);
    }
    HOTROW_ASSERT_OK(std::move(step).Update(
        {.pooled = {a.data(), 10, width}, .unpooled = {{a_rows.data(), rows, 5}}}));
    HOTROW_ASSERT_OK(std::move(other).Update({.pooled = pooled, .unpooled = {unpooled}}));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest a, plain->Digest());
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest b, strided->Digest());
  EXPECT_EQ(a.hash, b.hash);
}

TEST(ViewsTest, ColumnsOfAFeature) {
  EmbeddingCollectionOptions options = ThreeFeatures();
  options.tables.push_back(Table("c", 4, {"history"}));
  options.tables.back().pooling = Pooling::kNone;
  options.feature_order = {"f1", "history", "f2", "f0"};
  const auto tables = Make(options);
  const std::vector<uint64_t> ids = {10, 11, 30, 20, 21, 0, 1};
  const std::vector<int32_t> lengths = {1, 1, 1, 0, 1, 1, 1, 1};
  std::vector<float> floats(static_cast<size_t>(2 * 21));
  std::vector<float> row(4);
  const MatrixView<float> pooled(floats.data(), 2, 21);
  HOTROW_ASSERT_OK(tables->Evaluate(JaggedBatch{.batch_size = 2, .values = ids, .lengths = lengths},
                                    {.pooled = pooled, .unpooled = {{row.data(), 1, 4}}}));
  const auto expect = [&](std::string_view feature, std::string_view table, int64_t dim,
                          std::vector<uint64_t> keys) {
    SCOPED_TRACE(feature);
    HOTROW_ASSERT_OK_AND_ASSIGN(const ColumnRange range, tables->ColumnsOf(feature));
    const MatrixView<float> columns = pooled.Columns(range);
    ASSERT_EQ(columns.cols, dim);
    ASSERT_EQ(columns.rows, 2);
    std::vector<float> rows(static_cast<size_t>(2 * dim));
    HOTROW_ASSERT_OK(tables->ReadRows(table, keys, {rows.data(), 2, dim}));
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t c = 0; c < dim; ++c) EXPECT_EQ(columns(b, c), rows[b * dim + c]);
    }
  };
  expect("f0", "a", 8, {0, 1});
  expect("f1", "b", 5, {10, 11});
  expect("f2", "a", 8, {20, 21});
  EXPECT_THAT(tables->ColumnsOf("history"), StatusIs(kInvalid, HasSubstr("unpooled[0]")));
  EXPECT_THAT(tables->ColumnsOf("f3"), StatusIs(kInvalid, HasSubstr("no table has a feature")));
}

TEST(ViewsTest, OtherShapesAreRefusedAndTheStepGoesOn) {
  EmbeddingCollectionOptions options = ThreeFeatures();
  options.tables[1].pooling = Pooling::kNone;
  const auto tables = Make(options);
  const int64_t width = tables->pooled_dim();
  Batch batch = RandomBatch(3, 3, 6, 3, 50, false);
  const int64_t rows = batch.offsets.back() - batch.offsets[12];
  std::vector<float> floats(static_cast<size_t>(7 * width));
  std::vector<float> others(static_cast<size_t>((rows + 1) * 5));
  const MatrixView<float> pooled(floats.data(), 6, width);
  const MatrixView<float> unpooled(others.data(), rows, 5);
  HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, tables->Prefetch(batch.view()));
  const auto refused = [&](const EmbeddingOutput& output, const std::string& what) {
    EXPECT_THAT(step.Lookup(output), StatusIs(kInvalid, HasSubstr(what)));
    EXPECT_THAT(tables->Evaluate(batch.view(), output), StatusIs(kInvalid, HasSubstr(what)));
  };
  refused({.pooled = {floats.data(), 7, width}, .unpooled = {unpooled}},
          absl::StrCat("EmbeddingOutput.pooled: expected [6, ", width, "], got [7, ", width, "]"));
  refused({.pooled = {floats.data(), 6, width - 1}, .unpooled = {unpooled}}, "expected [6, ");
  refused({.pooled = {floats.data(), 6, width, width - 1}, .unpooled = {unpooled}}, "a stride of");
  refused({.pooled = {nullptr, 6, width}, .unpooled = {unpooled}}, "pooled is null");
  refused({.pooled = pooled}, "expected one view for each of the 1 unpooled features, got 0");
  refused({.pooled = pooled, .unpooled = {{others.data(), rows + 1, 5}}}, "feature \"f1\"");
  HOTROW_ASSERT_OK(step.Lookup({.pooled = pooled, .unpooled = {unpooled}}));
  EXPECT_THAT(step.BeginUpdate({.pooled = {floats.data(), 5, width}, .unpooled = {unpooled}}),
              StatusIs(kInvalid, HasSubstr("EmbeddingGradient.pooled: expected [6, ")));
  HOTROW_EXPECT_OK(std::move(step).Update({.pooled = pooled, .unpooled = {unpooled}}));
}

TEST(StepsTest, AStepThatWasMovedFromRefusesAllCalls) {
  const auto tables = Make(ThreeFeatures());
  const Batch batch = RandomBatch(1, 3, 4, 2, 50, false);
  std::vector<float> floats(static_cast<size_t>(4 * tables->pooled_dim()));
  const MatrixView<float> pooled = RowsOf(*tables, 4, floats);
  HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep first, tables->Prefetch(batch.view()));
  EmbeddingStep second = std::move(first);
  const auto refuses = [&](EmbeddingStep& step) {
    const auto no_step = StatusIs(kPrecondition, HasSubstr("no step"));
    EXPECT_EQ(step.batch_size(), 0);
    EXPECT_EQ(step.num_lookups(), 0);
    EXPECT_EQ(step.num_unique_keys(), 0);
    EXPECT_THAT(step.BeginLookup(), no_step);
    EXPECT_THAT(step.Lookup({.pooled = pooled}), no_step);
    EXPECT_THAT(step.BeginUpdate({.pooled = pooled}), no_step);
    EXPECT_THAT(std::move(step).Update({.pooled = pooled}), no_step);
  };
  refuses(first);  // NOLINT: that is what is tested
  EXPECT_EQ(second.batch_size(), 4);
  HOTROW_ASSERT_OK(second.Lookup({.pooled = pooled}));
  HOTROW_ASSERT_OK(std::move(second).Update({.pooled = pooled}));
  refuses(second);  // NOLINT
  EXPECT_EQ(tables->steps(), 1);
  // Assigning to a step cancels it.
  HOTROW_ASSERT_OK_AND_ASSIGN(first, tables->Prefetch(batch.view()));
  first = EmbeddingStep();
  HOTROW_ASSERT_OK_AND_ASSIGN(first, tables->Prefetch(batch.view()));
  // An Update that is refused ends its step as well.
  EXPECT_THAT(std::move(first).Update({.pooled = pooled}),
              StatusIs(kPrecondition, HasSubstr("looked up")));
  refuses(first);  // NOLINT
  HOTROW_EXPECT_OK(tables->Close());
}

TEST(StepsTest, TheOwnerOfABatchIsLetGoWhenItsStepHasEnded) {
  const Batch batch = RandomBatch(1, 3, 4, 2, 50, /*weighted=*/true);
  for (const int32_t depth : {0, 2}) {
    EmbeddingCollectionOptions options = ThreeFeatures();
    options.prefetch_depth = depth;
    options.tables[0].num_embeddings = 50;
    const auto tables = Make(options);
    std::vector<float> floats(static_cast<size_t>(4 * tables->pooled_dim()));
    const MatrixView<float> pooled = RowsOf(*tables, 4, floats);
    std::weak_ptr<int> seen;
    const auto owner = [&seen] {
      auto made = std::make_shared<int>(1);
      seen = made;
      return made;
    };
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, tables->Prefetch(batch.view(), owner()));
    HOTROW_ASSERT_OK(step.Lookup({.pooled = pooled}));
    EXPECT_FALSE(seen.expired());
    HOTROW_ASSERT_OK(std::move(step).Update({.pooled = pooled}));
    EXPECT_TRUE(seen.expired()) << "updated";
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStep left,
                                  tables->Prefetch(batch.view(), owner()));
      EXPECT_FALSE(seen.expired());
    }
    EXPECT_TRUE(seen.expired()) << "cancelled";
    Batch bad = batch;
    bad.values[0] = 77;
    EXPECT_THAT(tables->Prefetch(bad.view(), owner()).status(),
                StatusIs(kInvalid, HasSubstr("key 77")));
    EXPECT_TRUE(seen.expired()) << "refused";
    const std::vector<int32_t> ids(batch.values.begin(), batch.values.end());
    const std::vector<int32_t> offsets(batch.offsets.begin(), batch.offsets.end());
    HOTROW_ASSERT_OK(tables->Prefetch(JaggedBatch{.batch_size = 4,
                                                  .values = std::span<const int32_t>(ids),
                                                  .offsets = std::span<const int32_t>(offsets)},
                                      owner()));
    EXPECT_TRUE(seen.expired()) << "of which nothing stayed";
  }
}

TEST(StepsTest, ALateBatchIsWaitedForByTheLookupOfItsStepAlone) {
  EmbeddingCollectionOptions options = ThreeFeatures();
  options.prefetch_depth = 1;
  const auto tables = Make(options);
  const Batch batch = RandomBatch(1, 3, 4, 2, 50, /*weighted=*/true);
  std::vector<float> floats(static_cast<size_t>(4 * tables->pooled_dim()));
  const MatrixView<float> pooled = RowsOf(*tables, 4, floats);
  const std::vector<float> values = Values(*tables, batch.view());
  auto late = std::make_shared<Batch>(batch);
  std::fill(late->values.begin(), late->values.end(), 0);
  std::promise<void> written;
  HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep before, tables->Prefetch(batch.view()));
  HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, tables->Prefetch(late->view(), late, [&written] {
    written.get_future().wait();
    return absl::OkStatus();
  }));
  HOTROW_ASSERT_OK(before.Lookup({.pooled = pooled}));
  std::fill(floats.begin(), floats.end(), 0.0f);
  HOTROW_ASSERT_OK(std::move(before).Update({.pooled = pooled}));  // moves nothing
  EXPECT_GT(tables->Stats().steps, 0);
  late->values = batch.values;
  written.set_value();
  EXPECT_THAT(step.Lookup({.pooled = {floats.data(), 3, tables->pooled_dim()}}),
              StatusIs(kInvalid, HasSubstr("expected [4, ")));
  HOTROW_ASSERT_OK(step.Lookup({.pooled = pooled}));
  EXPECT_EQ(floats, values);
  EXPECT_GT(late.use_count(), 1);
  HOTROW_ASSERT_OK(std::move(step).Update({.pooled = pooled}));
  EXPECT_EQ(late.use_count(), 1);
}

TEST(StepsTest, WhatIsWrongWithALateBatchIsAnErrorOfItsStep) {
  for (const int32_t depth : {0, 1}) {
    EmbeddingCollectionOptions options = ThreeFeatures();
    options.prefetch_depth = depth;
    options.tables[0].num_embeddings = 50;
    const auto tables = Make(options);
    auto batch = std::make_shared<Batch>(RandomBatch(1, 3, 4, 2, 50, /*weighted=*/false));
    std::vector<float> floats(static_cast<size_t>(4 * tables->pooled_dim()));
    const auto error_of = [&](absl::Status written) {
      auto step = tables->Prefetch(batch->view(), batch, [=] { return written; });
      EXPECT_EQ(step.ok(), depth > 0 || (written.ok() && batch->values[0] < 50));
      return step.ok() ? step->Lookup({.pooled = RowsOf(*tables, 4, floats)}) : step.status();
    };
    batch->values[0] = 77;
    EXPECT_THAT(error_of(absl::OkStatus()), StatusIs(kInvalid, HasSubstr("key 77")));
    batch->values[0] = 7;
    EXPECT_THAT(error_of(absl::UnavailableError("the device is gone")),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
    HOTROW_EXPECT_OK(error_of(absl::OkStatus()));
    EXPECT_EQ(batch.use_count(), 1);
  }
}

// --- Rows by key

struct Place {
  int64_t cache_bytes = 0;
  int64_t device_bytes = 0;
  WeightsPrecision precision = WeightsPrecision::kFp32;
};

class ReadRowsTest : public testing::TestWithParam<Place> {
 protected:
  static EmbeddingCollectionOptions TrainedOptions() {
    EmbeddingCollectionOptions options = Options({Table("a", 8, {"f0"}), Table("b", 5, {"f1"})});
    for (TableConfig& table : options.tables) table.weights_precision = GetParam().precision;
    options.cache.bytes = GetParam().cache_bytes;
    options.cache.device_bytes = GetParam().device_bytes;
    options.evaluation_staging_bytes = 1000;  // some tens of rows
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, ReadRowsTest,
    testing::Values(Place{}, Place{.cache_bytes = 100'000}, Place{.device_bytes = 16 << 20},
                    Place{.cache_bytes = 100'000, .precision = WeightsPrecision::kBf16}));

TEST_P(ReadRowsTest, ReadsWhatEvaluationReadsAndLeavesNoTrace) {
  const auto tables = Make(TrainedOptions());
  for (uint64_t i = 0; i < 4; ++i) {
    HOTROW_ASSERT_OK(TrainStep(*tables, RandomBatch(i, 2, 30, 3, 300, false), i));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest before, tables->Digest());
  const EmbeddingStats stats = tables->Stats();
  std::map<uint64_t, std::vector<float>> there;
  HOTROW_ASSERT_OK(tables->ForEachRow("b", [&](uint64_t key, std::span<const float> weights) {
    EXPECT_TRUE(there.try_emplace(key, weights.begin(), weights.end()).second);
    return absl::OkStatus();
  }));
  EXPECT_EQ(std::ssize(there), before.tables[1].rows);

  // Twice the keys that there may be, some of them twice.
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < 600; ++key) keys.push_back(key % 550);
  std::vector<float> rows(keys.size() * 7, 77);
  const MatrixView<float> view(rows.data(), 600, 5, 7);
  const auto found = std::make_unique<bool[]>(keys.size());
  HOTROW_ASSERT_OK(tables->ReadRows("b", keys, view, {found.get(), keys.size()}));
  for (int64_t i = 0; i < 600; ++i) {
    const uint64_t key = keys[static_cast<size_t>(i)];
    const std::vector<uint64_t> id = {key};
    const std::vector<int32_t> lengths = {0, 1};
    std::vector<float> seen(13);
    HOTROW_ASSERT_OK(
        tables->Evaluate(JaggedBatch{.batch_size = 1, .values = id, .lengths = lengths},
                         {.pooled = {seen.data(), 1, 13}}));
    const std::span<float> row = view.Row(i);
    ASSERT_EQ(std::vector<float>(row.begin(), row.end()),
              std::vector<float>(seen.begin() + 8, seen.end()))
        << key;
    ASSERT_EQ(found[static_cast<size_t>(i)], there.contains(key)) << key;
    if (there.contains(key)) {
      ASSERT_EQ(std::vector<float>(row.begin(), row.end()), there[key]);
    }
    ASSERT_EQ(rows[static_cast<size_t>(i * 7 + 5)], 77);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest after, tables->Digest());
  EXPECT_EQ(after.hash, before.hash);
  EXPECT_EQ(tables->Stats().initialised_rows, stats.initialised_rows);
  EXPECT_EQ(tables->Stats().tiers[0].evictions, stats.tiers[0].evictions);
  // Looking without asking what is there.
  std::vector<float> again(rows.size(), 77);
  HOTROW_ASSERT_OK(tables->ReadRows("b", keys, {again.data(), 600, 5, 7}));
  EXPECT_EQ(again, rows);
}

TEST(ReadRowsErrorsTest, AreNamed) {
  const auto tables = Make(ThreeFeatures());
  HOTROW_ASSERT_OK(TrainStep(*tables, RandomBatch(1, 3, 8, 3, 50, false), 1));
  const std::vector<uint64_t> keys = {1, 2};
  std::vector<float> rows(16);
  EXPECT_THAT(tables->ReadRows("c", keys, {rows.data(), 2, 8}),
              StatusIs(kInvalid, HasSubstr("no table \"c\"")));
  EXPECT_THAT(tables->ReadRows("a", keys, {rows.data(), 2, 7}),
              StatusIs(kInvalid, HasSubstr("ReadRows: rows: expected [2, 8], got [2, 7]")));
  bool found[1];
  EXPECT_THAT(tables->ReadRows("a", keys, {rows.data(), 2, 8}, found),
              StatusIs(kInvalid, HasSubstr("found: expected none or 2, got 1")));
  HOTROW_EXPECT_OK(tables->ReadRows("a", {}, {}));
  int64_t seen = 0;
  EXPECT_THAT(tables->ForEachRow("a",
                                 [&](uint64_t, std::span<const float>) {
                                   ++seen;
                                   return absl::CancelledError("enough");
                                 }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
  EXPECT_EQ(seen, 1);
  EmbeddingCollectionOptions tight = ThreeFeatures();
  tight.evaluation_staging_bytes = 8;
  EXPECT_THAT(
      Make(tight)->ReadRows("a", keys, {rows.data(), 2, 8}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("evaluation_staging_bytes")));
}

// --- Facets and storage

TEST(FacetsTest, OneCollectionHasOneOfEach) {
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = ThreeFeatures();
  std::get<MemoryStorage>(options.store).snapshot_dir = dir;
  const auto tables = Make(options);
  EmbeddingSnapshots& snapshots = tables->snapshots();
  EXPECT_EQ(&snapshots, &tables->snapshots());
  HOTROW_ASSERT_OK(TrainStep(*tables, RandomBatch(1, 3, 8, 3, 50, false), 1));
  HOTROW_ASSERT_OK(snapshots.Prepare(3));
  HOTROW_ASSERT_OK(snapshots.Commit(3));
  EXPECT_THAT(*snapshots.List(), ElementsAre(3));
  HOTROW_ASSERT_OK(snapshots.Describe(3));
  HOTROW_ASSERT_OK(snapshots.Drop(3));
  EXPECT_THAT(*snapshots.List(), ElementsAre());
  EXPECT_FALSE(tables->residuals().kept());
  EXPECT_THAT(tables->residuals().Save(), StatusIs(kPrecondition, HasSubstr("keeps none")));
  EXPECT_THAT(tables->residuals().Load({}), StatusIs(kPrecondition, HasSubstr("keeps none")));
}

TEST(StorageTest, FieldsAreThoseOfTheKind) {
  for (const StoreKind kind : {StoreKind::kMemory, StoreKind::kSsd, StoreKind::kRocksDb}) {
    const Storage storage =
        MakeStorage({.kind = kind, .dir = "d", .memory_bytes = 5, .disk_bytes = 7});
    const StorageFields fields = FieldsOf(storage);
    EXPECT_EQ(fields.kind, kind);
    EXPECT_EQ(fields.dir, "d");
    EXPECT_EQ(fields.memory_bytes, 5);
    EXPECT_EQ(fields.disk_bytes, kind == StoreKind::kMemory ? 0 : 7);
  }
  EXPECT_EQ(std::get<MemoryStorage>(MakeStorage({.dir = "d"})).snapshot_dir, "d");
  EXPECT_EQ(std::get<SsdStorage>(MakeStorage({.kind = StoreKind::kSsd, .dir = "d"})).path, "d");
}

}  // namespace
}  // namespace hotrow
