#include "models/train/run_header_impl.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RunHeaderTest : public ::testing::Test {
 protected:
  RunHeaderTest() {
    options_.batch_size = 2048;
    options_.embedding_dim = 16;
    options_.dense_optimizer.kind = DenseOptimizerKind::kAdagrad;
    options_.store_bytes = 3 << 20;
    options_.prefetch_depth = 2;
    schema_.name = "toy data";
    schema_.train_samples = 1'000'000;
    schema_.valid_samples = 5000;
    schema_.num_dense = 3;
    schema_.features = {{.name = "user", .table = "users", .num_embeddings = 1000},
                        {.name = "item", .table = "items", .num_embeddings = 500}};
    collection_ = CollectionOptions(options_, schema_);
  }
  std::string Text(int32_t world_size = 1, std::string_view residuals_anew = "") {
    return FormatRunHeader({.options = options_,
                            .schema = schema_,
                            .collection = collection_,
                            .start = start_,
                            .model = "DLRM",
                            .num_parameters = 12345,
                            .residuals_anew = residuals_anew,
                            .world_size = world_size,
                            .threads = 4});
  }

  TrainerOptions options_;
  DataSchema schema_;
  EmbeddingCollectionOptions collection_;
  RunStart start_;
};

TEST_F(RunHeaderTest, SaysWhatIsTrainedWhere) {
  EXPECT_EQ(Text(),
            "DLRM on toy data\n"
            "  data     1,000,000 train, 5,000 validation, 0 test samples; 2 features, 3 dense\n"
            "  model    12,345 dense parameters, adagrad\n"
            "  tables   2 of 16 columns, rowwise_adagrad: 80 bytes a row, up to 1,500 rows "
            "(117.2 KiB)\n"
            "  tiers    memory of up to 3.0 MiB\n"
            "  run      batch 2,048, prefetch 2, 4 threads on the cpu\n\n");
}

TEST_F(RunHeaderTest, NamesTheTiersWithTheBudgetsAsTheyAreUsed) {
  options_.store = StoreKind::kSsd;
  options_.store_path = "/rows";
  options_.disk_bytes = int64_t{1} << 30;
  options_.cache_bytes = kSmallestCache;
  options_.weights_precision = WeightsPrecision::kFp16;
  schema_.features[0].num_embeddings = 0;
  collection_ = CollectionOptions(options_, schema_);
  collection_.cache.bytes = 1 << 20;
  collection_.cache.device_bytes = 1 << 19;
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("  tiers    device cache of 512.0 KiB over cache of 1.0 MiB over ssd "
                              "in /rows of up to 1.0 GiB, with 3.0 MiB of memory\n"));
  EXPECT_THAT(text, HasSubstr(" columns in fp16, "));
  EXPECT_THAT(text, Not(HasSubstr("up to 1,500 rows"))) << "any key is legal";
}

TEST_F(RunHeaderTest, SaysWhereTheRunBegins) {
  options_.checkpoint_dir = "/run";
  options_.checkpoint_every = 1000;
  options_.resume = true;
  EXPECT_THAT(Text(), HasSubstr("  saving   checkpoints in /run, every 1,000 steps and at the end, "
                                "keeping 2\n"
                                "           none is there to go on from: from the beginning\n"));
  start_.saved.emplace();
  start_.saved->dir = "/run/step-000000002000";
  start_.saved->step = 2000;
  start_.saved->dense_optimizer = "adam";
  start_.saved->tables = {{.name = "users", .rows = 900}, {.name = "items", .rows = 400}};
  start_.resumed = true;
  const std::string text = Text();
  EXPECT_THAT(text,
              HasSubstr("  from     /run/step-000000002000: step 2,000, 1,300 rows\n"
                        "           the state of adagrad starts from zero: the saved model has "
                        "that of adam\n"));
  EXPECT_THAT(text, Not(HasSubstr("none is there")));
}

TEST_F(RunHeaderTest, SaysWhatTheRanksShare) {
  options_.exchange_backward = ExchangeType::kInt8;
  EXPECT_THAT(Text(), Not(HasSubstr("ranks")));
  EXPECT_THAT(Text(2), HasSubstr("  ranks    2 share each batch and the tables; rows travel as "
                                 "fp32, gradients as int8\n"
                                 "  run      batch 2,048, prefetch 2, 4 threads on the cpu for "
                                 "each rank\n"));
  options_.exchange_feedback_bytes = 1 << 20;
  EXPECT_THAT(Text(2), HasSubstr("is kept for the next, in 1.0 MiB\n"));
  EXPECT_THAT(Text(2, "the checkpoint has none"),
              HasSubstr("in 1.0 MiB, from zero on: the checkpoint has none\n"));
}

}  // namespace
}  // namespace hotrow
