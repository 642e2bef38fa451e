// Every option of the engine can be set through the C interface.
//
// Each structured binding below names all fields of one struct: when a field joins an engine's
// struct this file does not compile until it says how C reaches it.

#include "capi/options_impl.h"
#include "capi/scorer_options_impl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>

#include "capi/call_impl.h"
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
  out.store_path = "/somewhere";
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

TEST(CapiOptionsTest, ReachAllThatATableHas) {
  const hotrow_optimizer c_optimizer = Optimizer();
  const hotrow_table c_table = Table(&c_optimizer);
  const auto options = TakeOptions(Options(&c_table));
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->tables.size(), 1);
  const auto& [name, embedding_dim, feature_names, pooling, weights_precision, optimizer,
               initializer, max_row_gradient_norm, read_only_features, admission, ttl_steps,
               min_rows, max_rows, score, max_rows_by, serve_rows, num_embeddings, max_hotness] =
      options->tables[0];
  EXPECT_EQ(name, "items");
  EXPECT_EQ(embedding_dim, 12);
  EXPECT_THAT(feature_names, ElementsAre("seen", "bought"));
  EXPECT_EQ(pooling, Pooling::kMean);
  EXPECT_EQ(weights_precision, WeightsPrecision::kBf16);
  EXPECT_EQ(max_row_gradient_norm, 7);
  EXPECT_THAT(read_only_features, ElementsAre("bought"));
  EXPECT_EQ(AdmissionText(admission), "lookups:3:14");
  EXPECT_EQ(ttl_steps, 15);
  EXPECT_EQ(min_rows, 16);
  EXPECT_EQ(max_rows, 18);
  EXPECT_EQ(score, ScoreRule::kSum);
  EXPECT_EQ(max_rows_by, RowOrder::kScore);
  EXPECT_EQ(serve_rows, ServingRows::kInt4);
  EXPECT_EQ(num_embeddings, 1000);
  EXPECT_EQ(max_hotness, 9);

  const auto& [kind, learning_rate, eps, beta1, beta2, weight_decay, weight_decay_mode,
               initial_accumulator, lr_power, l1, l2, ftrl_beta] = optimizer;
  EXPECT_EQ(kind, SparseOptimizerKind::kFtrl);
  EXPECT_EQ(learning_rate, 0.5f);
  EXPECT_EQ(eps, 0.25f);
  EXPECT_EQ(beta1, 0.125f);
  EXPECT_EQ(beta2, 0.75f);
  EXPECT_EQ(weight_decay, 2);
  EXPECT_EQ(weight_decay_mode, WeightDecayMode::kTable);
  EXPECT_EQ(initial_accumulator, 3);
  EXPECT_EQ(lr_power, -0.25f);
  EXPECT_EQ(l1, 4);
  EXPECT_EQ(l2, 5);
  EXPECT_EQ(ftrl_beta, 6);

  const auto& [initializer_kind, value] = initializer;
  EXPECT_EQ(initializer_kind, InitializerKind::kNormal);
  EXPECT_EQ(value, 0.5f);
}

TEST(CapiOptionsTest, ReachAllThatACollectionHas) {
  const hotrow_table c_table = Table(nullptr);
  const auto options = TakeOptions(Options(&c_table));
  ASSERT_TRUE(options.ok()) << options.status();
  // ranks.communicator and start are set by MakeTables (tables_test.c, ranks_test.cc). env and
  // on_update are for tests and tools in C++.
  const auto& [tables, feature_order, seed, max_batch_size, max_gradient_norm, store, cache,
               admission_bytes, row_limit_steps, prefetch_depth, evaluation_staging_bytes, ranks,
               start, env, on_update] = *options;
  EXPECT_EQ(admission_bytes, 43);
  EXPECT_EQ(row_limit_steps, 47);
  EXPECT_EQ(tables.size(), 1);
  EXPECT_THAT(feature_order, ElementsAre("seen", "bought"));
  EXPECT_EQ(seed, 11);
  EXPECT_EQ(max_batch_size, 13);
  EXPECT_EQ(max_gradient_norm, 17);
  EXPECT_EQ(prefetch_depth, 3);
  EXPECT_EQ(evaluation_staging_bytes, 37);
  EXPECT_EQ(env, nullptr);
  EXPECT_FALSE(on_update);

  const auto& [path, memory_bytes, disk_bytes] = std::get<SsdStorage>(store);
  EXPECT_EQ(path, "/somewhere");
  EXPECT_EQ(memory_bytes, 19);
  EXPECT_EQ(disk_bytes, 23);

  const auto& [cache_bytes, device_bytes, device_index_bytes, policy] = cache;
  EXPECT_EQ(cache_bytes, 29);
  EXPECT_EQ(device_bytes, 31);
  EXPECT_EQ(device_index_bytes, 43);
  EXPECT_EQ(policy, CachePolicy::kSieve);

  const auto& [communicator, forward, backward, rounding, feedback_bytes] = ranks;
  EXPECT_EQ(communicator, nullptr);
  EXPECT_EQ(forward, ExchangeType::kFp16);
  EXPECT_EQ(backward, ExchangeType::kInt8);
  EXPECT_EQ(rounding, ExchangeRounding::kStochastic);
  EXPECT_EQ(feedback_bytes, 41);

  // By checkpoint_dir with resume, and by init_from.
  const auto& [from, steps, learning_rates, settled_steps, age_lines, start_over] = start;
  EXPECT_TRUE(age_lines.empty());
  EXPECT_TRUE(from.empty());
  EXPECT_EQ(steps, 0);
  EXPECT_TRUE(learning_rates.empty());
  EXPECT_EQ(settled_steps, 0);
  EXPECT_FALSE(start_over);
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
  in.deadline_ms = 13;
  EXPECT_EQ(TakeScoreDeadline(&in).value(), std::chrono::milliseconds(13));
  const auto options = TakeScorerOptions(&in);
  ASSERT_TRUE(options.ok()) << options.status();
  // budget, create_model, env and stop are for programs in C++.
  const auto& [model, memory_bytes, rows_dir, budget, rows, store_bytes, max_concurrency,
               max_batch_size, precision, create_model, env, stop] = *options;
  EXPECT_EQ(model, "/model");
  EXPECT_EQ(memory_bytes, 3);
  EXPECT_EQ(rows_dir, "/rows");
  EXPECT_EQ(budget, nullptr);
  EXPECT_EQ(rows, ServingRows::kInt4);
  EXPECT_EQ(store_bytes, 5);
  EXPECT_EQ(max_concurrency, 11);
  EXPECT_EQ(max_batch_size, 7);
  EXPECT_EQ(precision, DensePrecision::kBf16);
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
  in.tables = &table;
  in.num_tables = 1;
  const auto options = TakeOptions(in);
  ASSERT_TRUE(options.ok()) << options.status();
  const TableConfig& taken = options->tables[0];
  const TableConfig expected;
  EXPECT_EQ(taken.optimizer, expected.optimizer);
  EXPECT_EQ(taken.initializer.kind, expected.initializer.kind);
  EXPECT_EQ(taken.initializer.value, expected.initializer.value);
  EXPECT_EQ(taken.pooling, expected.pooling);
  EXPECT_EQ(taken.weights_precision, expected.weights_precision);
  const EmbeddingCollectionOptions engine;
  EXPECT_EQ(options->evaluation_staging_bytes, engine.evaluation_staging_bytes);
  EXPECT_EQ(options->cache.policy, engine.cache.policy);
  EXPECT_EQ(options->ranks.forward, engine.ranks.forward);
  EXPECT_EQ(options->ranks.rounding, engine.ranks.rounding);
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
  EXPECT_EQ(InCallersWords("EmbeddingCollectionOptions.cache.bytes is 3"), "cache_bytes is 3");
  EXPECT_EQ(InCallersWords("cache.bytes: one step needs 3"), "cache_bytes: one step needs 3");
  EXPECT_EQ(InCallersWords("raise SsdStoreOptions.disk_budget_bytes"), "raise store_disk_bytes");
  EXPECT_EQ(InCallersWords("EmbeddingCollectionOptions.max_batch_size: x"), "max_batch_size: x");
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
