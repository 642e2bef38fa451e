#include "models/zoo/din_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "models/zoo/layers/sequence_layers.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kDim = 3;
constexpr int32_t kDense = 2;

// A history, its target, which shares its table, and a feature with its own.
DinOptions SmallOptions() {
  DinOptions options = {{.num_dense = kDense,
                         .num_sparse = 3,
                         .embedding_dim = kDim,
                         .over_arch_layer_sizes = {5, 1},
                         .seed = 11,
                         .max_batch_size = 8}};
  options.features = {{"watched", "movie", 5}, {"user", "user", 1}, {"movie", "movie", 1}};
  options.history = "watched:movie";
  options.attention_layer_sizes = {4};
  return options;
}

// A batch with rows of its histories.
struct Batch {
  test::ModelBatch pooled;
  std::vector<std::vector<int64_t>> offsets;  // of each sequence
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<float>> gradients;

  std::vector<CtrModel::Sequence> Sequences() {
    std::vector<CtrModel::Sequence> out;
    for (size_t s = 0; s < rows.size(); ++s) {
      out.push_back(
          {.rows = rows[s].data(), .offsets = offsets[s].data(), .gradient = gradients[s].data()});
    }
    return out;
  }
};

// Samples have 0 to 5 rows of a history, and mostly one of a target. Offsets begin anywhere.
Batch RandomBatch(int64_t size, uint64_t seed) {
  Batch batch = {.pooled = test::RandomModelBatch(size, kDense, kDim, seed)};
  RandomStream random(seed, RandomPurpose::kTest, 7);
  for (const int64_t longest : {int64_t{5}, int64_t{1}}) {
    std::vector<int64_t> offsets = {static_cast<int64_t>(random.Below(100))};
    for (int64_t b = 0; b < size; ++b) {
      const auto length =
          static_cast<int64_t>(random.Below(static_cast<uint64_t>(2 * longest + 1)));
      offsets.push_back(offsets.back() + std::min(length, longest));
    }
    std::vector<float>& rows = batch.rows.emplace_back();
    for (int64_t i = 0; i < (offsets.back() - offsets.front()) * kDim; ++i) {
      rows.push_back(random.Normal());
    }
    batch.gradients.emplace_back(rows.size(), std::nanf(""));
    batch.offsets.push_back(std::move(offsets));
  }
  return batch;
}

// By the text of the paper, in double.
double ReferenceLogit(const GraphModel& model, const double* parameters, const float* dense,
                      const double* user, const std::vector<std::vector<double>>& watched,
                      const std::vector<double>& movie) {
  const GraphModel::Part part = model.FindPart("attention0");
  const auto& attention = dynamic_cast<const TargetAttentionLayer&>(*part.layer);
  std::vector<double> interest(kDim);
  for (const std::vector<double>& h : watched) {
    std::vector<double> pair = h;
    pair.insert(pair.end(), movie.begin(), movie.end());
    for (size_t i = 0; i < kDim; ++i) pair.push_back(h[i] - movie[i]);
    for (size_t i = 0; i < kDim; ++i) pair.push_back(h[i] * movie[i]);
    const double relevance =
        test::MlpReference(attention.mlp(), {4, 1}, parameters + part.offset, pair, false)[0];
    for (size_t i = 0; i < kDim; ++i) interest[i] += relevance * h[i];
  }
  std::vector<double> x = interest;
  x.insert(x.end(), user, user + kDim);
  x.insert(x.end(), movie.begin(), movie.end());
  x.insert(x.end(), dense, dense + kDense);
  return test::MlpReference(model, "mlp", {5, 1}, parameters, x, false)[0];
}

absl::Status Pass(const ExecContext& ctx, GraphModel& model, Batch& batch,
                  std::vector<float>* logits, std::vector<float>* embedding_gradient) {
  const std::vector<CtrModel::Sequence> sequences = batch.Sequences();
  CtrModel::Input input = batch.pooled.Input(/*training=*/true, 1);
  input.sequences = sequences;
  logits->resize(static_cast<size_t>(batch.pooled.size));
  embedding_gradient->resize(batch.pooled.embeddings.size());
  HOTROW_RETURN_IF_ERROR(model.Forward(ctx, input, *logits));
  std::vector<float> logit_gradient = batch.pooled.logit_gradient;
  return model.Backward(ctx, logit_gradient, embedding_gradient->data(), {});
}

TEST(DinModelTest, ForwardAndBackwardMatchTheReference) {
  for (const uint64_t seed : {1, 2, 3}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, DinModel::Create(SmallOptions()));
    EXPECT_EQ(model->unpooled_features(), std::vector<int32_t>({0, 2}));
    Batch batch = RandomBatch(8, seed);
    std::vector<float> logits, embedding_gradient;
    HOTROW_ASSERT_OK(Pass({}, *model, batch, &logits, &embedding_gradient));

    std::vector<double> parameters(model->parameters().begin(), model->parameters().end());
    std::vector<double> user(batch.pooled.embeddings.begin(), batch.pooled.embeddings.end());
    std::vector<std::vector<double>> rows;
    for (const auto& of : batch.rows) rows.emplace_back(of.begin(), of.end());
    const auto rows_of = [&](size_t s, size_t b) {
      std::vector<std::vector<double>> out;
      for (int64_t j = batch.offsets[s][b]; j < batch.offsets[s][b + 1]; ++j) {
        const auto at = rows[s].begin() + (j - batch.offsets[s][0]) * kDim;
        out.emplace_back(at, at + kDim);
      }
      return out;
    };
    const auto logit = [&](size_t b) {
      std::vector<double> movie(kDim);
      for (const auto& row : rows_of(1, b)) movie = row;
      return ReferenceLogit(*model, parameters.data(), batch.pooled.dense.data() + b * kDense,
                            user.data() + b * kDim, rows_of(0, b), movie);
    };
    for (size_t b = 0; b < 8; ++b) EXPECT_NEAR(logits[b], logit(b), 1e-5) << b;
    const auto objective = [&] {
      double sum = 0;
      for (size_t b = 0; b < 8; ++b) sum += batch.pooled.logit_gradient[b] * logit(b);
      return sum;
    };
    const auto check = [&](std::vector<double>* at, std::span<const float> gradient,
                           const char* what) {
      ASSERT_EQ(at->size(), gradient.size());
      for (size_t i = 0; i < at->size(); ++i) {
        constexpr double kH = 1e-6;
        const double saved = (*at)[i];
        (*at)[i] = saved + kH;
        const double above = objective();
        (*at)[i] = saved - kH;
        const double expected = (above - objective()) / (2 * kH);
        (*at)[i] = saved;
        EXPECT_NEAR(gradient[i], expected, 1e-4 * (1 + std::abs(expected))) << what << " " << i;
      }
    };
    check(&parameters, model->gradients(), "parameter");
    check(&user, embedding_gradient, "embedding");
    check(&rows[0], batch.gradients[0], "row of the history");
    check(&rows[1], batch.gradients[1], "row of the target");
  }
}

TEST(DinModelTest, EqualBitsOnAnyPool) {
  DinOptions options = SmallOptions();
  options.max_batch_size = 300;
  std::vector<std::vector<uint32_t>> bits;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, DinModel::Create(options));
    Batch batch = RandomBatch(300, 4);
    std::vector<float> logits, embedding_gradient;
    HOTROW_ASSERT_OK(Pass({.pool = &pool}, *model, batch, &logits, &embedding_gradient));
    std::vector<uint32_t> all = test::FloatBits(logits);
    for (const auto& part :
         {test::FloatBits(embedding_gradient), test::FloatBits(model->gradients()),
          test::FloatBits(batch.gradients[0])}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    bits.push_back(std::move(all));
  }
  EXPECT_EQ(bits[0], bits[1]);
}

TEST(DinModelTest, ALayerOfTheAttentionThatIsNotFiniteIsNamed) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, DinModel::Create(SmallOptions()));
  const GraphModel::Part part = model->FindPart("attention0");
  const Mlp& mlp = dynamic_cast<const TargetAttentionLayer&>(*part.layer).mlp();
  Batch batch = RandomBatch(4, 5);
  const std::vector<CtrModel::Sequence> sequences = batch.Sequences();
  CtrModel::Input input = batch.pooled.Input(/*training=*/true, 1);
  input.sequences = sequences;
  std::vector<float> logits(4);
  for (const int32_t layer : {1, 0}) {
    model->parameters()[static_cast<size_t>(part.offset + mlp.weight_offset(layer))] =
        std::nanf("");
    HOTROW_ASSERT_OK(model->Forward({}, input, logits));
    EXPECT_EQ(model->NonFiniteAt({}, {}), "attention0/" + std::to_string(layer));
    EXPECT_EQ(model->NonFiniteAt({}, model->parameters()), "attention0/1");
  }
}

TEST(DinModelTest, HistoriesMayBeEmpty) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, DinModel::Create(SmallOptions()));
  Batch batch = RandomBatch(4, 5);
  for (size_t s = 0; s < 2; ++s) {
    batch.offsets[s].assign(5, 17);
    batch.rows[s].clear();
    batch.gradients[s].clear();
  }
  std::vector<float> logits, embedding_gradient;
  HOTROW_ASSERT_OK(Pass({}, *model, batch, &logits, &embedding_gradient));
  for (const float logit : logits) EXPECT_TRUE(std::isfinite(logit));
}

TEST(DinModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  const auto error = [](const std::function<void(DinOptions&)>& change) {
    DinOptions options = SmallOptions();
    change(options);
    return std::string(DinModel::Create(options).status().message());
  };
  EXPECT_THAT(error([](DinOptions& o) { o.history = ""; }), HasSubstr("--history is empty"));
  EXPECT_THAT(error([](DinOptions& o) { o.history = "watched"; }), HasSubstr("HISTORY:TARGET"));
  EXPECT_THAT(error([](DinOptions& o) { o.history = "seen:movie"; }),
              AllOf(HasSubstr("\"seen\""), HasSubstr("watched, user, movie")));
  EXPECT_THAT(error([](DinOptions& o) { o.history = "movie:movie"; }), HasSubstr("own target"));
  EXPECT_THAT(error([](DinOptions& o) { o.features[0].max_hotness = 0; }),
              HasSubstr("\"max_hotness\""));
  EXPECT_THAT(error([](DinOptions& o) {
                o.max_batch_size = 1 << 20;
                o.features[0].max_hotness = 60'000;
              }),
              AllOf(HasSubstr("--batch_size=1048576"), HasSubstr("\"max_hotness\": 60000")));
  EXPECT_THAT(error([](DinOptions& o) { o.attention_layer_sizes = {0}; }),
              HasSubstr("--attention_layer_sizes"));
}

TEST(DinModelTest, SequencesMustBeThere) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, DinModel::Create(SmallOptions()));
  const test::ModelBatch batch = test::RandomModelBatch(2, kDense, kDim, 1);
  std::vector<float> logits(2);
  EXPECT_THAT(model->Forward({}, batch.Input(true, 1), logits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 sequences, expected 2")));
}

}  // namespace
}  // namespace hotrow
