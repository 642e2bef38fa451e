// Trains a small click model through the installed headers and libraries alone: two tables, their
// dot products, an MLP. A click is a user whose taste is the item's kind, so neither table can tell
// it without the other. Exits with 0 when the loss went down and fresh pairs are told apart.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "embedding/embedding_collection.h"
#include "ops/interactions/dot_interaction.h"
#include "ops/layers/mlp.h"
#include "ops/training/bce_loss.h"
#include "ops/training/dense_optimizer.h"

namespace {

constexpr int64_t kBatch = 128;
constexpr int32_t kDim = 8;
constexpr int kSteps = 400;
constexpr uint64_t kUsers = 300;
constexpr uint64_t kItems = 100;

#define RETURN_IF_ERROR(expression)           \
  do {                                        \
    const absl::Status status = (expression); \
    if (!status.ok()) return status;          \
  } while (false)

// One sample each of a batch: a user, an item, and whether they match.
struct Batch {
  std::vector<uint64_t> keys;    // [2 * kBatch]: users, then items
  std::vector<int64_t> offsets;  // [2 * kBatch + 1]: one lookup in each bag
  std::vector<float> labels;     // [kBatch]

  hotrow::JaggedBatch view() const { return {kBatch, keys, offsets, {}}; }
};

Batch MakeBatch(uint32_t number) {
  Batch batch;
  batch.keys.resize(2 * kBatch);
  for (int64_t i = 0; i <= 2 * kBatch; ++i) batch.offsets.push_back(i);
  uint64_t state = 0x9E3779B97F4A7C15u * (number + 1);
  for (int64_t b = 0; b < kBatch; ++b) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    const uint64_t user = (state >> 33) % kUsers;
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t item = (state >> 33) % kItems;
    batch.keys[b] = ~user;  // any 64-bit number is a key
    batch.keys[kBatch + b] = item;
    batch.labels.push_back(user % 2 == item % 2 ? 1.0f : 0.0f);
  }
  return batch;
}

absl::Status Train(double* first_loss, double* last_loss, double* accuracy) {
  hotrow::ThreadPool pool(2);
  hotrow::ExecContext ctx;
  ctx.pool = &pool;

  hotrow::TableConfig users;
  users.name = "users";
  users.embedding_dim = kDim;
  users.feature_names = {"user"};
  users.optimizer.learning_rate = 0.1f;
  users.max_hotness = 1;
  hotrow::TableConfig items = users;
  items.name = "items";
  items.feature_names = {"item"};
  hotrow::EmbeddingCollectionOptions options;
  options.tables = {users, items};
  options.max_batch_size = kBatch;
  options.store = hotrow::MemoryStorage{.memory_bytes = int64_t{16} << 20};
  auto cache_bytes = hotrow::EmbeddingCollection::MinCacheBytes(options);
  if (!cache_bytes.ok()) return cache_bytes.status();
  options.cache.bytes = *cache_bytes;
  auto tables = hotrow::EmbeddingCollection::Create(options, ctx);
  if (!tables.ok()) return tables.status();

  // The dense vector is all ones; the MLP sees it and the products of the three vectors.
  const int32_t width = static_cast<int32_t>(hotrow::DotInteractionOutputSize(2, kDim));
  hotrow::MlpOptions mlp_options;
  mlp_options.sizes = {width, 16, 1};
  mlp_options.max_batch_size = kBatch;
  auto mlp = hotrow::Mlp::Create(mlp_options);
  if (!mlp.ok()) return mlp.status();
  std::vector<float> parameters((*mlp)->num_parameters());
  std::vector<float> parameter_gradients(parameters.size());
  (*mlp)->InitParameters(/*seed=*/1, parameters);
  hotrow::DenseOptimizerConfig dense_optimizer;
  dense_optimizer.learning_rate = 0.1f;

  const std::vector<float> ones(kBatch * kDim, 1.0f);
  std::vector<float> dense_gradient(kBatch * kDim);
  std::vector<float> pooled(kBatch * 2 * kDim);
  const hotrow::MatrixView<float> pooled_view(pooled.data(), kBatch, 2 * kDim);
  std::vector<float> pooled_gradient(pooled.size());
  std::vector<float> products(kBatch * width);
  std::vector<float> products_gradient(products.size());
  std::vector<float> logits(kBatch);
  std::vector<float> logits_gradient(kBatch);
  hotrow::DotInteractionArgs interaction;
  interaction.batch_size = kBatch;
  interaction.num_sparse = 2;
  interaction.dim = kDim;
  interaction.dense = ones.data();
  interaction.dense_stride = kDim;
  interaction.sparse = pooled.data();
  interaction.sparse_stride = 2 * kDim;
  interaction.output = products.data();
  interaction.output_stride = width;
  hotrow::DotInteractionGradArgs interaction_grad;
  interaction_grad.forward = interaction;
  interaction_grad.output_gradient = products_gradient.data();
  interaction_grad.dense_gradient = dense_gradient.data();
  interaction_grad.dense_gradient_stride = kDim;
  interaction_grad.sparse_gradient = pooled_gradient.data();
  interaction_grad.sparse_gradient_stride = 2 * kDim;
  hotrow::Mlp::ForwardArgs forward;
  forward.parameters = parameters.data();
  forward.x = products.data();
  forward.x_stride = width;
  forward.batch_size = kBatch;
  forward.y = logits.data();
  forward.y_stride = 1;
  hotrow::Mlp::BackwardArgs backward;
  backward.parameters = parameters.data();
  backward.dy = logits_gradient.data();
  backward.dy_stride = 1;
  backward.dx = products_gradient.data();
  backward.dx_stride = width;
  backward.parameter_gradients = parameter_gradients.data();
  const std::vector<hotrow::DenseTensor> tensors = {{parameters, parameter_gradients, {}, {}}};

  for (uint32_t i = 1; i <= kSteps; ++i) {
    const Batch batch = MakeBatch(i);
    auto step = (*tables)->Prefetch(batch.view());
    if (!step.ok()) return step.status();
    RETURN_IF_ERROR(step->Lookup({.pooled = pooled_view}));
    RETURN_IF_ERROR(hotrow::DotInteraction(ctx, interaction));
    forward.training = true;
    forward.step = i;
    RETURN_IF_ERROR((*mlp)->Forward(ctx, forward));
    hotrow::BceWithLogitsArgs bce;
    bce.logits = logits.data();
    bce.labels = batch.labels.data();
    bce.batch_size = kBatch;
    bce.gradient = logits_gradient.data();
    double loss = 0;
    bce.loss = &loss;
    RETURN_IF_ERROR(hotrow::BceWithLogits(ctx, bce));
    RETURN_IF_ERROR((*mlp)->Backward(ctx, backward));
    RETURN_IF_ERROR(hotrow::DotInteractionGrad(ctx, interaction_grad));
    RETURN_IF_ERROR(
        std::move(*step).Update({.pooled = {pooled_gradient.data(), kBatch, 2 * kDim}}));
    RETURN_IF_ERROR(hotrow::DenseUpdate(ctx, dense_optimizer, tensors, 1, i));
    if (i == 1) *first_loss = loss;
    *last_loss = loss;
  }

  int64_t right = 0;
  constexpr int kTestBatches = 10;
  for (int i = 0; i < kTestBatches; ++i) {
    const Batch batch = MakeBatch(kSteps + 1 + i);
    RETURN_IF_ERROR((*tables)->Evaluate(batch.view(), {.pooled = pooled_view}));
    RETURN_IF_ERROR(hotrow::DotInteraction(ctx, interaction));
    forward.training = false;
    RETURN_IF_ERROR((*mlp)->Forward(ctx, forward));
    for (int64_t b = 0; b < kBatch; ++b) right += (logits[b] > 0) == (batch.labels[b] > 0.5f);
  }
  *accuracy = static_cast<double>(right) / (kTestBatches * kBatch);
  return absl::OkStatus();
}

}  // namespace

int main() {
  double first_loss = 0;
  double last_loss = 0;
  double accuracy = 0;
  const absl::Status status = Train(&first_loss, &last_loss, &accuracy);
  if (!status.ok()) {
    std::fprintf(stderr, "two_tables: %s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("loss %.4f -> %.4f, %.1f %% of fresh pairs told right\n", first_loss, last_loss,
              100 * accuracy);
  return last_loss < 0.5 * first_loss && accuracy > 0.9 ? 0 : 1;
}
