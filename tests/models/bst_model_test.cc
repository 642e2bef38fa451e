#include "models/zoo/bst_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "models/zoo/hstu_model.h"
#include "models/zoo/layers/history_encoder.h"
#include "models/zoo/layers/sequence_blocks.h"
#include "ops/layers/layer_norm.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Vectors = std::vector<std::vector<double>>;

constexpr int32_t kDim = 2;             // of a table
constexpr int32_t kColumns = 2 * kDim;  // of a row of the sequence
constexpr int32_t kDense = 2;
constexpr int32_t kHeads = 2;
constexpr int64_t kLongest = 5;

// Movies and their genres, each with its target: that of movies shares their table, that of genres
// comes pooled. And a feature with its own table.
BstOptions SmallOptions() {
  BstOptions options = {{.num_dense = kDense,
                         .num_sparse = 5,
                         .embedding_dim = kDim,
                         .over_arch_layer_sizes = {5, 1},
                         .seed = 11,
                         .max_batch_size = 8}};
  options.features = {{"watched", "movie", kLongest},
                      {"user", "user", 1},
                      {"movie", "movie", 1},
                      {"watched_genres", "watched_genre", kLongest},
                      {"genre", "genre", 1}};
  options.history = "watched:movie,watched_genres:genre";
  options.num_blocks = 2;
  options.num_heads = kHeads;
  return options;
}

// A batch with rows of its sequences: watched, movie, watched_genres.
struct Batch {
  test::ModelBatch pooled;  // user, genre
  std::vector<std::vector<int64_t>> offsets;
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

// Samples have 0 to 5 rows of a history, the first ones the ends of that, and 0 or 1 of a target.
// Offsets begin anywhere.
Batch RandomBatch(int64_t size, uint64_t seed) {
  Batch batch = {.pooled = test::RandomModelBatch(size, kDense, 2 * kDim, seed)};
  RandomStream random(seed, RandomPurpose::kTest, 7);
  std::vector<int64_t> lengths = {0, kLongest, 1};
  while (std::ssize(lengths) < size) lengths.push_back(static_cast<int64_t>(random.Below(6)));
  for (const int sequence : {0, 1, 2}) {
    std::vector<int64_t> offsets = {static_cast<int64_t>(random.Below(100))};
    for (int64_t b = 0; b < size; ++b) {
      const int64_t length = sequence == 1 ? (b == 2 ? 0 : 1) : lengths[static_cast<size_t>(b)];
      offsets.push_back(offsets.back() + length);
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

// gamma (x - mean) / deviation + beta, of parameters gamma and beta.
std::vector<double> Norm(const std::vector<double>& x, const double* parameters) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (const double value : x) mean += value / n;
  for (const double value : x) variance += (value - mean) * (value - mean) / n;
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(parameters[i] * (x[i] - mean) / std::sqrt(variance + kLayerNormEpsilon) +
                parameters[x.size() + i]);
  }
  return y;
}

// By the text of the paper, in double: what a block makes of the rows of one sequence.
Vectors BlockReference(const TransformerBlock& block, const double* parameters, const Vectors& x) {
  const auto map = [&](const SequenceMap& of, const std::vector<int32_t>& sizes,
                       const std::vector<double>& row) {
    return test::MlpReference(*of.mlp, sizes, parameters + of.offset, row, false);
  };
  const auto add = [](std::vector<double> a, const std::vector<double>& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  };
  Vectors projected;
  for (const std::vector<double>& row : x) {
    projected.push_back(map(block.projections(), {3 * kColumns}, row));
  }
  constexpr size_t kWidth = kColumns / kHeads;
  Vectors out;
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<double> attended(kColumns);
    for (size_t first = 0; first < kColumns; first += kWidth) {
      std::vector<double> weights;
      double sum = 0;
      for (const std::vector<double>& other : projected) {
        double dot = 0;
        for (size_t c = first; c < first + kWidth; ++c) {
          dot += projected[i][c] * other[kColumns + c];
        }
        weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(kWidth))));
        sum += weights.back();
      }
      for (size_t j = 0; j < x.size(); ++j) {
        for (size_t c = first; c < first + kWidth; ++c) {
          attended[c] += weights[j] / sum * projected[j][2 * kColumns + c];
        }
      }
    }
    const std::vector<double> s =
        Norm(add(x[i], map(block.output(), {kColumns}, attended)), parameters + block.first_norm());
    out.push_back(Norm(add(s, map(block.feed_forward(), {4 * kColumns, kColumns}, s)),
                       parameters + block.second_norm()));
  }
  return out;
}

// The same for HSTU.
Vectors BlockReference(const HstuBlock& block, const double* parameters, const Vectors& x) {
  const auto silu = [](double of) { return of / (1 + std::exp(-of)); };
  Vectors activated;  // u, v, q, k
  for (const std::vector<double>& row : x) {
    activated.push_back(test::MlpReference(*block.projections().mlp, {4 * kColumns},
                                           parameters + block.projections().offset,
                                           Norm(row, parameters + block.first_norm()), false));
    for (double& value : activated.back()) value = silu(value);
  }
  constexpr size_t kWidth = kColumns / kHeads;
  Vectors out;
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<double> attended(kColumns);
    for (size_t first = 0; first < kColumns; first += kWidth) {
      for (size_t j = 0; j <= i; ++j) {
        double score = parameters[block.position_bias() + kLongest + static_cast<int64_t>(i - j)];
        for (size_t c = first; c < first + kWidth; ++c) {
          score += activated[i][2 * kColumns + c] * activated[j][3 * kColumns + c];
        }
        for (size_t c = first; c < first + kWidth; ++c) {
          attended[c] += silu(score) / (kLongest + 1) * activated[j][kColumns + c];
        }
      }
    }
    std::vector<double> gated = Norm(attended, parameters + block.second_norm());
    for (size_t c = 0; c < kColumns; ++c) gated[c] *= activated[i][c];
    out.push_back(test::MlpReference(*block.output().mlp, {kColumns},
                                     parameters + block.output().offset, gated, false));
    for (size_t c = 0; c < kColumns; ++c) out.back()[c] += x[i][c];
  }
  return out;
}

Vectors BlockReference(const SequenceBlock& block, const double* parameters, const Vectors& x) {
  const auto* const hstu = dynamic_cast<const HstuBlock*>(&block);
  return hstu != nullptr
             ? BlockReference(*hstu, parameters, x)
             : BlockReference(dynamic_cast<const TransformerBlock&>(block), parameters, x);
}

// BST and HSTU: the same model of other blocks.
using CreateModel = absl::StatusOr<std::unique_ptr<GraphModel>> (*)(const BstOptions& options,
                                                                    const ExecContext& ctx);
class BstModelTest : public testing::TestWithParam<CreateModel> {};
INSTANTIATE_TEST_SUITE_P(Blocks, BstModelTest, testing::Values(BstModel::Create, HstuModel::Create),
                         [](const auto& info) { return info.index == 0 ? "Bst" : "Hstu"; });

double ReferenceLogit(const GraphModel& model, const double* parameters, const float* dense,
                      const double* pooled, const Vectors& watched, const Vectors& genres,
                      const std::vector<double>& movie) {
  const GraphModel::Part part = model.FindPart("sequence");
  const auto& encoder = dynamic_cast<const HistoryEncoder&>(*part.layer);
  const double* const own = parameters + part.offset;
  const double* const user = pooled;
  const double* const genre = pooled + kDim;
  Vectors x;
  for (size_t j = 0; j <= watched.size(); ++j) {
    const bool is_target = j == watched.size();
    std::vector<double> row = is_target ? movie : watched[j];
    if (is_target) {
      row.insert(row.end(), genre, genre + kDim);
    } else {
      row.insert(row.end(), genres[j].begin(), genres[j].end());
    }
    const size_t number = watched.size() - j;
    for (size_t c = 0; c < kColumns; ++c) row[c] += own[number * kColumns + c];
    x.push_back(std::move(row));
  }
  for (size_t l = 0; l < 2; ++l) {
    x = BlockReference(encoder.block(l), own + encoder.block_offset(l), x);
  }
  std::vector<double> all = x.back();
  all.insert(all.end(), user, user + kDim);
  all.insert(all.end(), movie.begin(), movie.end());
  all.insert(all.end(), genre, genre + kDim);
  all.insert(all.end(), dense, dense + kDense);
  return test::MlpReference(model, "mlp", {5, 1}, parameters, all, false)[0];
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

TEST_P(BstModelTest, ForwardAndBackwardMatchTheReference) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, GetParam()(SmallOptions(), {}));
  EXPECT_EQ(model->unpooled_features(), std::vector<int32_t>({0, 2, 3}));
  RandomStream random(5, RandomPurpose::kTest);
  for (float& parameter : model->parameters()) {
    if (parameter == 0) parameter = random.Normal();  // positions and biases, which start at zero
  }
  Batch batch = RandomBatch(6, 1);
  std::vector<float> logits, embedding_gradient;
  HOTROW_ASSERT_OK(Pass({}, *model, batch, &logits, &embedding_gradient));

  std::vector<double> parameters(model->parameters().begin(), model->parameters().end());
  std::vector<double> pooled(batch.pooled.embeddings.begin(), batch.pooled.embeddings.end());
  std::vector<std::vector<double>> rows;
  for (const auto& of : batch.rows) rows.emplace_back(of.begin(), of.end());
  const auto rows_of = [&](size_t s, size_t b) {
    Vectors out;
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
                          pooled.data() + b * 2 * kDim, rows_of(0, b), rows_of(2, b), movie);
  };
  for (size_t b = 0; b < 6; ++b) EXPECT_NEAR(logits[b], logit(b), 2e-5) << b;
  const auto objective = [&] {
    double sum = 0;
    for (size_t b = 0; b < 6; ++b) sum += batch.pooled.logit_gradient[b] * logit(b);
    return sum;
  };
  const auto check = [&](std::vector<double>* at, std::span<const float> gradient,
                         const char* what) {
    ASSERT_EQ(at->size(), gradient.size());
    double largest = 0;
    for (size_t i = 0; i < at->size(); ++i) {
      constexpr double kH = 1e-6;
      const double saved = (*at)[i];
      (*at)[i] = saved + kH;
      const double above = objective();
      (*at)[i] = saved - kH;
      const double expected = (above - objective()) / (2 * kH);
      (*at)[i] = saved;
      largest = std::max(largest, std::abs(expected));
      EXPECT_NEAR(gradient[i], expected, 2e-4 * (1 + std::abs(expected))) << what << " " << i;
    }
    EXPECT_GT(largest, 1e-2) << what << ": nothing was tested";
  };
  check(&parameters, model->gradients(), "parameter");
  check(&pooled, embedding_gradient, "embedding");
  check(&rows[0], batch.gradients[0], "row of the movies");
  check(&rows[1], batch.gradients[1], "row of the target");
  check(&rows[2], batch.gradients[2], "row of the genres");
}

TEST_P(BstModelTest, EqualBitsOnAnyPool) {
  BstOptions options = SmallOptions();
  options.max_batch_size = 200;
  std::vector<std::vector<uint32_t>> bits;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, GetParam()(options, {}));
    Batch batch = RandomBatch(200, 4);
    std::vector<float> logits, embedding_gradient;
    HOTROW_ASSERT_OK(Pass({.pool = &pool}, *model, batch, &logits, &embedding_gradient));
    std::vector<uint32_t> all = test::FloatBits(logits);
    for (const auto& part :
         {test::FloatBits(embedding_gradient), test::FloatBits(model->gradients()),
          test::FloatBits(batch.gradients[0]), test::FloatBits(batch.gradients[2])}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    bits.push_back(std::move(all));
  }
  EXPECT_EQ(bits[0], bits[1]);
}

// As a rank's slice may be.
TEST_P(BstModelTest, AnEmptyBatchHasGradientsOfZero) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, GetParam()(SmallOptions(), {}));
  std::vector<float> logits, embedding_gradient;
  Batch full = RandomBatch(4, 5);
  HOTROW_ASSERT_OK(Pass({}, *model, full, &logits, &embedding_gradient));
  Batch batch = {.pooled = test::RandomModelBatch(0, kDense, 2 * kDim, 1),
                 .offsets = {{17}, {0}, {3}},
                 .rows = {{}, {}, {}},
                 .gradients = {{}, {}, {}}};
  HOTROW_ASSERT_OK(Pass({}, *model, batch, &logits, &embedding_gradient));
  EXPECT_TRUE(std::ranges::all_of(model->gradients(), [](float g) { return g == 0; }));
}

TEST_P(BstModelTest, TheLossFalls) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, GetParam()(SmallOptions(), {}));
  Batch batch = RandomBatch(8, 6);
  const auto label = [&](size_t b) { return b % 3 == 0 ? 1.0f : 0.0f; };
  std::vector<double> losses;
  std::vector<float> logits, embedding_gradient;
  for (int step = 0; step < 500; ++step) {
    const std::vector<CtrModel::Sequence> sequences = batch.Sequences();
    CtrModel::Input input = batch.pooled.Input(/*training=*/true, 1);
    input.sequences = sequences;
    logits.resize(8);
    embedding_gradient.resize(batch.pooled.embeddings.size());
    HOTROW_ASSERT_OK(model->Forward({}, input, logits));
    std::vector<float> gradient(8);
    double loss = 0;
    for (size_t b = 0; b < 8; ++b) {
      const double p = 1 / (1 + std::exp(-logits[b]));
      loss -= std::log(label(b) > 0 ? p : 1 - p) / 8;
      gradient[b] = static_cast<float>((p - label(b)) / 8);
    }
    losses.push_back(loss);
    HOTROW_ASSERT_OK(model->Backward({}, gradient, embedding_gradient.data(), {}));
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      model->parameters()[i] -= 0.2f * model->gradients()[i];
    }
  }
  EXPECT_LT(losses.back(), 0.7 * losses.front());
}

TEST_P(BstModelTest, HistoriesOfOneSampleHaveOneLength) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, GetParam()(SmallOptions(), {}));
  Batch batch = RandomBatch(4, 7);
  batch.offsets[2][1] += 1;  // the genre of sample 1 is sample 0's
  std::vector<float> logits, embedding_gradient;
  EXPECT_THAT(Pass({}, *model, batch, &logits, &embedding_gradient),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sample 0 has 0 values of watched and 1 of watched_genres")));
}

TEST_P(BstModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  const auto error = [](const std::function<void(BstOptions&)>& change,
                        const ExecContext& ctx = {}) {
    BstOptions options = SmallOptions();
    change(options);
    return std::string(GetParam()(options, ctx).status().message());
  };
  EXPECT_THAT(error([](BstOptions& o) { o.history = ""; }), HasSubstr("--history is empty"));
  EXPECT_THAT(error([](BstOptions& o) { o.num_heads = 3; }),
              HasSubstr("--num_heads=3: heads share 4 columns"));
  EXPECT_THAT(error([](BstOptions& o) { o.num_heads = 0; }), HasSubstr("--num_heads=0"));
  EXPECT_THAT(error([](BstOptions& o) { o.num_blocks = 0; }), HasSubstr("--num_blocks"));
  EXPECT_THAT(error([](BstOptions& o) {
                o.max_batch_size = 1 << 20;
                o.features[0].max_hotness = 600'000;
              }),
              AllOf(HasSubstr("--batch_size=1048576"), HasSubstr("\"max_hotness\": 600000")));
  // No part is made for a GPU, so none is needed to hear of it.
  EXPECT_THAT(
      error([](BstOptions&) {}, {.device = Device::kCuda}),
      AllOf(HasSubstr("--device=cuda"), HasSubstr("use --device=cpu"), HasSubstr("sequence")));
}

}  // namespace
}  // namespace hotrow
