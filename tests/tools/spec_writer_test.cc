// What trainers write and the planner reads.

#include "models/train/spec_writer.h"

#include <string>

#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/plan/plan_spec.h"

namespace hotrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SpecSource Source() {
  SpecSource source;
  TableConfig users;
  users.name = "users \"of\" a: site";
  users.embedding_dim = 16;
  users.feature_names = {"user", "friend"};
  users.num_embeddings = 1000;
  users.max_hotness = 3;
  TableConfig items = users;
  items.name = "items";
  items.embedding_dim = 64;
  items.feature_names = {"item"};
  items.num_embeddings = 0;
  items.max_hotness = 0;
  items.optimizer.kind = SparseOptimizerKind::kAdam;
  items.weights_precision = WeightsPrecision::kBf16;
  items.pooling = Pooling::kNone;
  source.collection.tables = {users, items};
  source.collection.store = SsdStorage{.disk_bytes = 1 << 30};
  source.collection.cache.bytes = 1 << 20;
  source.collection.prefetch_depth = 2;
  source.batch_size = 512;
  source.rows = {1000, 77};
  source.dense_features = 4;
  source.bottom = {32, 16};
  source.top = {8, 1};
  source.top_inputs = 50;
  source.parts = {{.name = "cin", .count = 2, .rows = 7, .inputs = 9, .outputs = 4, .macs = 63},
                  {.name = "batch_norm", .parameters = 16, .activations = 8}};
  source.interaction = "cross";
  source.cross_layers = 3;
  source.cross_rank = 5;
  source.dense_optimizer = "adam";
  source.precision = DensePrecision::kBf16;
  return source;
}

TEST(SpecWriterTest, ThePlannerReadsWhatIsWritten) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, SpecOf(Source()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const PlanSpec spec, ParsePlanSpec(text, "spec.json"));
  EXPECT_EQ(spec.batch_size, 512);
  EXPECT_EQ(spec.store, StoreKind::kSsd);
  EXPECT_FALSE(spec.store_auto);
  EXPECT_EQ(spec.cache_bytes, 1 << 20);
  EXPECT_EQ(spec.ssd_max_bytes, 1 << 30);
  EXPECT_EQ(spec.prefetch_depth, 2);
  ASSERT_EQ(spec.tables.size(), 2u);
  EXPECT_EQ(spec.tables[0].name, "users \"of\" a: site");
  EXPECT_EQ(spec.tables[0].step_lookups(1), 6);
  EXPECT_EQ(spec.tables[1].rows, 77);
  EXPECT_EQ(spec.tables[1].dim, 64);
  EXPECT_EQ(spec.tables[1].optimizer, SparseOptimizerKind::kAdam);
  EXPECT_EQ(spec.tables[0].weights_precision, WeightsPrecision::kFp32);
  EXPECT_EQ(spec.tables[1].weights_precision, WeightsPrecision::kBf16);
  EXPECT_EQ(spec.tables[0].pooling, Pooling::kSum);
  EXPECT_EQ(spec.tables[1].pooling, Pooling::kNone);
  EXPECT_EQ(spec.model.dense_features, 4);
  EXPECT_THAT(spec.model.bottom, ElementsAre(32, 16));
  EXPECT_THAT(spec.model.top, ElementsAre(8, 1));
  EXPECT_EQ(spec.model.top_inputs, 50);
  ASSERT_EQ(spec.model.parts.size(), 2u);
  EXPECT_EQ(spec.model.parts[0].name, "cin");
  EXPECT_EQ(spec.model.parts[0].count, 2);
  EXPECT_EQ(spec.model.parts[0].rows, 7);
  EXPECT_EQ(spec.model.parts[0].inputs, 9);
  EXPECT_EQ(spec.model.parts[0].outputs, 4);
  EXPECT_EQ(spec.model.parts[0].macs, 63);
  EXPECT_EQ(spec.model.parts[1].rows, 1);
  EXPECT_EQ(spec.model.parts[1].outputs, 0);
  EXPECT_EQ(spec.model.parts[1].parameters, 16);
  EXPECT_EQ(spec.model.parts[1].activations, 8);
  EXPECT_EQ(spec.model.interaction, Interaction::kCross);
  EXPECT_EQ(spec.model.cross_rank, 5);
  EXPECT_EQ(spec.model.dense_optimizer_states, 2);
  EXPECT_TRUE(spec.model.inputs_16_bits);
}

TEST(SpecWriterTest, WhatCannotBePlannedIsNamed) {
  const auto expect = [](void (*change)(SpecSource*), const char* what) {
    SpecSource source = Source();
    change(&source);
    EXPECT_THAT(SpecOf(source).status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  expect([](SpecSource* s) { s->rows.clear(); }, "table items");
  expect([](SpecSource* s) { s->rows.pop_back(); }, "rows: has 1 values for 2 tables");
  expect([](SpecSource* s) { s->zipf = {1}; }, "zipf");
  expect([](SpecSource* s) { s->batch_size = 0; }, "batch_size");
  expect([](SpecSource* s) { s->collection.tables.clear(); }, "tables");
  expect([](SpecSource* s) { s->collection.store = RocksDbStorage{}; }, "rocksdb");
}

}  // namespace
}  // namespace hotrow
