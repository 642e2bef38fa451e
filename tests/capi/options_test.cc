// Every option of the engine can be set through the C interface: each row of its table of options,
// and each member of a scorer's options, which the structured binding below names.

#include "capi/options_impl.h"
#include "capi/scorer_options_impl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "capi/call_impl.h"
#include "embedding/option_table.h"
#include "embedding/options.h"

namespace hotrow::capi {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

hotrow_optimizer Optimizer() {
  hotrow_optimizer out;
  hotrow_optimizer_default(&out, sizeof(out));
  out.kind = "ftrl";
  out.learning_rate = 0.5f;
  out.eps = 0.25f;
  out.beta1 = 0.125f;
  out.beta2 = 0.75f;
  out.weight_decay = 2;
  out.initial_accumulator = 3;
  out.lr_power = -0.25f;
  out.l1 = 4;
  out.l2 = 5;
  out.ftrl_beta = 6;
  out.weight_decay_mode = "table";
  return out;
}

const char* const kFeatures[] = {"seen", "bought"};

hotrow_table Table(const hotrow_optimizer* optimizer) {
  hotrow_table out;
  hotrow_table_default(&out, sizeof(out));
  out.name = "items";
  out.embedding_dim = 12;
  out.feature_names = kFeatures;
  out.num_features = 2;
  out.pooling = "mean";
  out.weights_precision = "bf16";
  out.optimizer = optimizer;
  out.initializer = "normal";
  out.initializer_value = 0.5f;
  out.max_row_gradient_norm = 7;
  out.num_embeddings = 1000;
  out.max_hotness = 9;
  out.read_only_features = kFeatures + 1;
  out.num_read_only_features = 1;
  out.admission = "lookups:3:14";
  out.ttl_steps = 15;
  out.min_rows = 16;
  out.max_rows = 18;
  out.score = "sum";
  out.max_rows_by = "score";
  out.serve_rows = "int4";
  return out;
}

hotrow_collection_options Options(const hotrow_table* table) {
  hotrow_collection_options out;
  hotrow_collection_options_default(&out, sizeof(out));
  out.tables = table;
  out.num_tables = 1;
  out.feature_order = kFeatures;
  out.num_feature_order = 2;
  out.seed = 11;
  out.max_batch_size = 13;
  out.max_gradient_norm = 17;
  out.store = "ssd";
  out.store_path = "/somewhere,/else,,where";
  out.store_memory_bytes = 19;
  out.store_disk_bytes = 23;
  out.cache_bytes = 29;
  out.cache_device_bytes = 31;
  out.cache_device_index_bytes = 43;
  out.cache_policy = "sieve";
  out.prefetch_depth = 3;
  out.evaluation_staging_bytes = 37;
  out.exchange_forward = "fp16";
  out.exchange_backward = "int8";
  out.exchange_rounding = "stochastic";
  out.exchange_feedback_bytes = 41;
  out.admission_bytes = 43;
  out.row_limit_steps = 47;
  return out;
}

template <typename T>
std::string TextsOf(T options) {
  std::string out;
  for (const OptionRow<T>& row : OptionRows<T>()) {
    absl::StrAppend(&out, row.name, " ", FlagText(row.bind(options).get()), "\n");
  }
  return out;
}

TEST(CapiOptionsTest, ReachAllThatATableHas) {
  const hotrow_optimizer c_optimizer = Optimizer();
  const hotrow_table c_table = Table(&c_optimizer);
  const auto options = TakeOptions(Options(&c_table));
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->tables.size(), 1);
  const TableConfig& table = options->tables[0];
  EXPECT_EQ(table.name, "items");
  EXPECT_THAT(table.feature_names, ElementsAre("seen", "bought"));
  EXPECT_THAT(table.read_only_features, ElementsAre("bought"));
  EXPECT_EQ(TextsOf(table), R"(embedding_dim 12
weights_precision bf16
pooling mean
num_embeddings 1000
max_hotness 9
optimizer.kind ftrl
optimizer.learning_rate 0.5
optimizer.eps 0.25
optimizer.beta1 0.125
optimizer.beta2 0.75
optimizer.weight_decay 2
optimizer.weight_decay_mode table
optimizer.initial_accumulator 3
optimizer.lr_power -0.25
optimizer.l1 4
optimizer.l2 5
optimizer.ftrl_beta 6
initializer.kind normal
initializer.value 0.5
max_row_gradient_norm 7
admission lookups:3:14
ttl_steps 15
min_rows 16
max_rows 18
max_rows_by score
score sum
serve_rows int4
)");
}

TEST(CapiOptionsTest, ReachAllThatACollectionHas) {
  const hotrow_table c_table = Table(nullptr);
  const auto options = TakeOptions(Options(&c_table));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->feature_order, ElementsAre("seen", "bought"));
  const auto& [path, more_paths, memory_bytes, disk_bytes] = std::get<SsdStorage>(options->store);
  EXPECT_EQ(path, "/somewhere");
  EXPECT_THAT(more_paths, ElementsAre("/else,where"));
  EXPECT_EQ(memory_bytes, 19);
  EXPECT_EQ(disk_bytes, 23);
  // What a collection starts from, and its communicator, come with MakeTables (tables_test.c,
  // ranks_test.cc).
  EXPECT_EQ(TextsOf(*options), R"(seed 11
max_batch_size 13
max_gradient_norm 17
cache.bytes 29
cache.device_bytes 31
cache.device_index_bytes 43
cache.policy sieve
admission_bytes 43
row_limit_steps 47
prefetch_depth 3
evaluation_staging_bytes 37
ranks.forward fp16
ranks.backward int8
ranks.rounding stochastic
ranks.feedback_bytes 41
start.steps 0
start.settled_steps 0
)");
  EXPECT_EQ(options->NameOf("cache.device_bytes"), "cache_device_bytes");
  EXPECT_EQ(options->NameOf("ranks.feedback_bytes"), "exchange_feedback_bytes");
  EXPECT_EQ(options->NameOf("store.memory_bytes"), "store_memory_bytes");
  EXPECT_EQ(options->NameInTable("initializer.kind"), "initializer");
}

TEST(CapiOptionsTest, ReachAllThatAScorerHas) {
  hotrow_scorer_options in;
  hotrow_scorer_options_default(&in, sizeof(in));
  in.model = "/model";
  in.rows = "int4";
  in.precision = "bf16";
  in.memory_bytes = 3;
  in.store_memory_bytes = 5;
  in.max_batch_size = 7;
  in.max_concurrency = 11;
  in.rows_dir = "/rows";
  in.onnxruntime = "/runtime";
  in.deadline_ms = 13;
  EXPECT_EQ(TakeScoreDeadline(&in).value(), std::chrono::milliseconds(13));
  const auto options = TakeScorerOptions(&in);
  ASSERT_TRUE(options.ok()) << options.status();
  // budget, create_model, env and stop are for programs in C++.
  const auto& [model, memory_bytes, rows_dir, budget, rows, store_bytes, max_concurrency,
               max_batch_size, precision, onnxruntime, create_model, env, stop] = *options;
  EXPECT_EQ(model, "/model");
  EXPECT_EQ(memory_bytes, 3);
  EXPECT_EQ(rows_dir, "/rows");
  EXPECT_EQ(budget, nullptr);
  EXPECT_EQ(rows, ServingRows::kInt4);
  EXPECT_EQ(store_bytes, 5);
  EXPECT_EQ(max_concurrency, 11);
  EXPECT_EQ(max_batch_size, 7);
  EXPECT_EQ(precision, DensePrecision::kBf16);
  EXPECT_EQ(onnxruntime, "/runtime");
  EXPECT_FALSE(create_model);
  EXPECT_EQ(env, nullptr);
  EXPECT_EQ(stop, nullptr);

  hotrow_scorer_options_default(&in, sizeof(in));
  in.model = "/model";
  const auto defaults = TakeScorerOptions(&in);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  const ScorerOptions engine;
  EXPECT_EQ(defaults->memory_bytes, engine.memory_bytes);
  EXPECT_EQ(defaults->rows_dir, engine.rows_dir);
  EXPECT_EQ(defaults->rows, engine.rows);
  EXPECT_EQ(defaults->store_bytes, engine.store_bytes);
  EXPECT_EQ(defaults->max_concurrency, engine.max_concurrency);
  EXPECT_EQ(defaults->max_batch_size, engine.max_batch_size);
  EXPECT_EQ(defaults->precision, engine.precision);
}

TEST(CapiOptionsTest, DefaultsAreThoseOfTheEngine) {
  hotrow_optimizer optimizer;
  hotrow_optimizer_default(&optimizer, sizeof(optimizer));
  hotrow_table table;
  hotrow_table_default(&table, sizeof(table));
  table.name = "items";
  table.embedding_dim = 1;
  table.optimizer = &optimizer;
  hotrow_collection_options in;
  hotrow_collection_options_default(&in, sizeof(in));
  in.max_batch_size = 1;
  in.tables = &table;
  in.num_tables = 1;
  const auto options = TakeOptions(in);
  ASSERT_TRUE(options.ok()) << options.status();
  TableConfig expected;
  expected.embedding_dim = 1;
  EXPECT_EQ(TextsOf(options->tables[0]), TextsOf(expected));
  EmbeddingCollectionOptions engine;
  engine.max_batch_size = 1;
  EXPECT_EQ(TextsOf(*options), TextsOf(engine));
}

// Casts of what does not fit would make other options of them.
TEST(CapiOptionsTest, NumbersThatDoNotFitAreRefused) {
  hotrow_table table = Table(nullptr);
  hotrow_collection_options in = Options(&table);
  in.seed = UINT64_MAX;
  EXPECT_EQ(TakeOptions(in)->seed, UINT64_MAX);
  in.prefetch_depth = (int64_t{1} << 32) + 3;
  EXPECT_EQ(TakeOptions(in).status().message(),
            "prefetch_depth=4294967299: takes a whole number from 0 to 32");
  table.embedding_dim = (int64_t{1} << 32) + 3;
  EXPECT_EQ(TakeOptions(in).status().message(),
            "tables[0]: embedding_dim=4294967299: takes a whole number from 1 to 2147483647");
  table.embedding_dim = 3;
  table.max_row_gradient_norm = std::nanf("");
  EXPECT_THAT(TakeOptions(in).status().message(), HasSubstr("max_row_gradient_norm=nan: takes a"));
}

// A program that was built with the first header has smaller tables, in an array, too.
TEST(CapiOptionsTest, TakeTablesOfTheFirstHeader) {
  constexpr size_t kSize = kFirstSize<hotrow_table>;
  static_assert(kSize < sizeof(hotrow_table));
  alignas(hotrow_table) unsigned char bytes[2 * kSize];
  for (int i = 0; i < 2; ++i) {
    hotrow_table table = Table(nullptr);
    table.struct_size = kSize;
    table.name = i == 0 ? "items" : "shops";
    std::memcpy(bytes + i * kSize, &table, kSize);
  }
  hotrow_collection_options in = Options(reinterpret_cast<const hotrow_table*>(bytes));
  in.num_tables = 2;
  const auto options = TakeOptions(in);
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->tables.size(), 2);
  EXPECT_EQ(options->tables[1].name, "shops");
  EXPECT_EQ(options->tables[1].max_hotness, 9);
  EXPECT_TRUE(options->tables[1].read_only_features.empty());
}

TEST(CapiOptionsTest, MessagesHaveTheNamesOfCallers) {
  EXPECT_EQ(InCallersWords("ScorerOptions.max_batch_size: x"), "options.max_batch_size: x");
  EXPECT_EQ(InCallersWords("--checkpoint_dir=/x: busy"), "checkpoint_dir=/x: busy");
  EXPECT_EQ(InCallersWords("use --embedding_dim, --data: y"), "use embedding_dim, spec: y");
  // Others stay: a longer flag, a dash that is not of it, paths, and names of the caller's.
  for (const char* const own :
       {"--data_dir x--data /a--resume", "--", "", "/data/cache.bytes: full", "cache.bytes/x: full",
        "/a/ScorerOptions.rows: no such file", "the feature \"cache.bytes\" is there twice"}) {
    EXPECT_EQ(InCallersWords(own), own);
  }
}

}  // namespace
}  // namespace hotrow::capi
