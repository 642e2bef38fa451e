// A training step of a DLRM of MLPerf's sizes on the GPU, stage by stage and as a whole, each
// beside what the memory and the products of the same GPU would allow. In bf16, as the trainer runs
// it: rows are fp32 and lie in the cache, the dot products read them there in TF32.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device_graph.h"
#include "base/device_memory.h"
#include "base/status_macros.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_bench_kernels.h"
#include "bench/gpu_bench_lookups.cuh"
#include "ops/interactions/padded_dot.h"
#include "ops/jagged.h"
#include "ops/keys/key_rows.h"
#include "ops/layers/mlp.h"
#include "ops/rows/row_init.h"
#include "ops/rows/row_layout.h"
#include "ops/training/bce_loss.h"
#include "ops/training/dense_optimizer.h"
#include "ops/update/fused_sparse_update.h"

namespace hotrow::bench {
namespace {

constexpr DensePrecision kPrecision = DensePrecision::kBf16;
constexpr SparseOptimizerKind kOptimizer = SparseOptimizerKind::kRowWiseAdagrad;

// Shares of what the limits allow, which docs/gpu_dense.md aims for.
constexpr double kShareOfCopy = 0.85;
constexpr double kShareOfProduct = 0.65;

struct StepShape {
  int64_t batch = 0;
  int32_t tables = 26;
  int32_t dim = 128;
  std::vector<int32_t> bottom;  // layers of the MLP below the dot products, and above
  std::vector<int32_t> top;

  static StepShape Of(int64_t batch, bool toy) {
    StepShape shape = {.batch = batch};
    if (toy) {
      shape.tables = 3;
      shape.dim = 16;
    }
    const int32_t wide = toy ? 32 : 1024;
    shape.bottom = {13, wide / 2, wide / 4, shape.dim};
    shape.top = {static_cast<int32_t>(PaddedDotColumns(shape.tables, shape.dim)),
                 wide,
                 wide,
                 wide / 2,
                 wide / 4,
                 1};
    return shape;
  }
  double Flop(const std::vector<int32_t>& sizes) const {
    double macs = 0;
    for (size_t l = 0; l + 1 < sizes.size(); ++l) macs += double{1} * sizes[l] * sizes[l + 1];
    return 2 * macs * static_cast<double>(batch);
  }
};

// An MLP with its parameters and what goes in and out.
struct Network {
  static absl::StatusOr<Network> Create(GpuBench& bench, const std::vector<int32_t>& sizes,
                                        bool relu_on_output, int64_t batch) {
    Network n;
    HOTROW_ASSIGN_OR_RETURN(n.mlp, Mlp::Create({.sizes = sizes,
                                                .relu_on_output = relu_on_output,
                                                .max_batch_size = batch,
                                                .precision = kPrecision},
                                               bench.Gpu()));
    n.in = sizes.front();
    n.out = sizes.back();
    std::vector<float> host(static_cast<size_t>(n.mlp->num_parameters()));
    n.mlp->InitParameters(/*seed=*/1, host);
    HOTROW_ASSIGN_OR_RETURN(n.parameters, ToDevice(bench, host));
    for (auto& [array, size] : {std::pair(&n.gradients, n.mlp->num_parameters()),
                                std::pair(&n.momentum, n.mlp->num_parameters()),
                                std::pair(&n.x, batch * n.in), std::pair(&n.y, batch * n.out),
                                std::pair(&n.dx, batch * n.in), std::pair(&n.dy, batch * n.out)}) {
      HOTROW_ASSIGN_OR_RETURN(*array, DeviceBuffer<float>::Create(size, bench.stream()));
      HOTROW_RETURN_IF_ERROR(FillSmallFloats(bench.stream(), array->data(), size, 7));
    }
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
        n.momentum.data(), 0, static_cast<size_t>(n.momentum.bytes()), bench.stream()));
    n.batch = batch;
    return n;
  }
  absl::Status Forward(const ExecContext& ctx) {
    return mlp->Forward(ctx, {.parameters = parameters.data(),
                              .x = x.data(),
                              .x_stride = in,
                              .batch_size = batch,
                              .y = y.data(),
                              .y_stride = out,
                              .training = true});
  }
  Mlp::BackwardArgs BackwardArgs(bool needs_dx) {
    return {.parameters = parameters.data(),
            .dy = dy.data(),
            .dy_stride = out,
            .dx = needs_dx ? dx.data() : nullptr,
            .dx_stride = needs_dx ? in : 0,
            .parameter_gradients = gradients.data()};
  }
  DenseTensor Tensor() {
    const auto n = static_cast<size_t>(mlp->num_parameters());
    return {.parameters = {parameters.data(), n},
            .gradients = {gradients.data(), n},
            .momentum1 = {momentum.data(), n}};
  }

  std::unique_ptr<Mlp> mlp;
  int64_t in = 0;
  int64_t out = 0;
  int64_t batch = 0;
  DeviceBuffer<float> parameters, gradients, momentum, x, y, dx, dy;
};

// The step. Gradients of weights are enqueued with the backward pass of their network and waited
// for at the end, as the trainer does.
class Step {
 public:
  static absl::StatusOr<std::unique_ptr<Step>> Create(GpuBench& bench, const StepShape& shape) {
    std::unique_ptr<Step> step(new Step(bench, shape));
    HOTROW_RETURN_IF_ERROR(step->Allocate());
    return step;
  }

  struct Stage {
    std::string name;
    std::string unit;  // "flop" or "bytes"
    double amount = 0;
    std::function<absl::Status(const ExecContext&)> run;
  };
  // In order. The first, keys, is beside the step of the batch before.
  std::vector<Stage> Stages() {
    const auto samples = static_cast<double>(shape_.batch);
    const double rows = samples * shape_.tables;            // looked up
    const double row_bytes = 4.0 * shape_.dim;              // of a vector
    const double dense_bytes = samples * 4.0 * shape_.dim;  // the vector of the bottom MLP
    const double products = samples * 4.0 * static_cast<double>(top_.in);
    const auto parameters =
        static_cast<double>(bottom_.mlp->num_parameters() + top_.mlp->num_parameters());
    const int64_t n = lookups_->n;
    const int64_t unique = lookups_->unique_count;
    return {
        {"keys", "bytes", static_cast<double>(UniqueBytes(n, unique) + PartitionBytes(n, unique)),
         [this](const ExecContext&) -> absl::Status {
           HOTROW_RETURN_IF_ERROR(lookups_->RunUnique());
           return lookups_->RunPartition();
         }},
        {"addresses", "bytes", rows * (4 + 8 + 8),
         [this](const ExecContext& ctx) { return AddressLookups(ctx, addressing_); }},
        {"bottom forward", "flop", shape_.Flop(shape_.bottom),
         [this](const ExecContext& ctx) { return bottom_.Forward(ctx); }},
        {"dot forward", "bytes", rows * row_bytes + dense_bytes + products,
         [this](const ExecContext& ctx) { return PaddedDot(ctx, dot_); }},
        {"top forward", "flop", shape_.Flop(shape_.top),
         [this](const ExecContext& ctx) { return top_.Forward(ctx); }},
        {"loss", "bytes", samples * 12,
         [this](const ExecContext& ctx) { return BceWithLogits(ctx, loss_); }},
        {"top backward", "flop", 2 * shape_.Flop(shape_.top),
         [this](const ExecContext& ctx) {
           return top_.mlp->BackwardInput(ctx, top_.BackwardArgs(true));
         }},
        {"dot backward", "bytes", 2 * (rows * row_bytes + dense_bytes) + products,
         [this](const ExecContext& ctx) { return PaddedDotGrad(ctx, dot_gradient_); }},
        {"bottom backward", "flop", 2 * shape_.Flop(shape_.bottom),
         [this](const ExecContext& ctx) {
           return bottom_.mlp->BackwardInput(ctx, bottom_.BackwardArgs(false));
         }},
        {"rows", "bytes",
         static_cast<double>(FusedUpdateBytes(n, unique, shape_.dim, layout_.row_bytes)),
         [this](const ExecContext& ctx) { return FusedSparseUpdate(ctx, update_); }},
        // Adagrad: parameter, gradient and sum of squares read, the first and the last written.
        {"dense", "bytes", parameters * 20,
         [this](const ExecContext& ctx) -> absl::Status {
           HOTROW_RETURN_IF_ERROR(top_.mlp->BackwardParameters(ctx, top_.BackwardArgs(true)));
           HOTROW_RETURN_IF_ERROR(
               bottom_.mlp->BackwardParameters(ctx, bottom_.BackwardArgs(false)));
           const DenseTensor tensors[] = {bottom_.Tensor(), top_.Tensor()};
           return DenseUpdate(ctx, {.kind = DenseOptimizerKind::kAdagrad}, tensors,
                              /*learning_rate_factor=*/1, /*step=*/1);
         }},
    };
  }

 private:
  Step(GpuBench& bench, const StepShape& shape)
      : bench_(bench), shape_(shape), layout_(RowLayout::For(shape.dim, kOptimizer)) {}

  absl::Status Allocate() {
    const CudaStream stream = bench_.stream();
    HOTROW_ASSIGN_OR_RETURN(bottom_, Network::Create(bench_, shape_.bottom, true, shape_.batch));
    HOTROW_ASSIGN_OR_RETURN(top_, Network::Create(bench_, shape_.top, false, shape_.batch));
    HOTROW_ASSIGN_OR_RETURN(lookups_, Lookups::Create(bench_, shape_.tables, shape_.batch));
    const int64_t unique = lookups_->unique_count;
    HOTROW_ASSIGN_OR_RETURN(rows_, ScatteredRows::Create(bench_, unique, layout_.row_bytes));
    HOTROW_RETURN_IF_ERROR(InitRows(bench_.Gpu(), {.layout = &layout_,
                                                   .optimizer = kOptimizer,
                                                   .num_rows = unique,
                                                   .keys = lookups_->unique.data(),
                                                   .rows = rows_.pointers.data()}));
    HOTROW_ASSIGN_OR_RETURN(offsets_, BagOffsets(bench_, *lookups_));
    HOTROW_ASSIGN_OR_RETURN(addresses_, DeviceBuffer<const float*>::Create(lookups_->n, stream));
    addressing_ = {.rows = rows_.pointers.data(),
                   .inverse = lookups_->inverse.data(),
                   .num_features = shape_.tables,
                   .batch_size = shape_.batch,
                   .lookups = addresses_.data()};
    // The dot products read and write where the networks do.
    dot_ = {.precision = DotPrecision::kTf32,
            .batch_size = shape_.batch,
            .num_sparse = shape_.tables,
            .dim = shape_.dim,
            .dense = bottom_.y.data(),
            .dense_stride = bottom_.out,
            .sparse_rows = reinterpret_cast<const void* const*>(addresses_.data()),
            .output = top_.x.data(),
            .output_stride = top_.in};
    const int64_t width = int64_t{shape_.tables} * shape_.dim;
    HOTROW_ASSIGN_OR_RETURN(embedding_gradient_,
                            DeviceBuffer<float>::Create(shape_.batch * width, stream));
    dot_gradient_ = {.forward = dot_,
                     .output_gradient = top_.dx.data(),
                     .dense_gradient = bottom_.dy.data(),
                     .dense_gradient_stride = bottom_.out,
                     .sparse_gradient = embedding_gradient_.data(),
                     .sparse_gradient_stride = width};
    std::vector<float> labels(static_cast<size_t>(shape_.batch));
    for (size_t b = 0; b < labels.size(); ++b) labels[b] = b % 3 == 0 ? 1.0f : 0.0f;
    HOTROW_ASSIGN_OR_RETURN(labels_, ToDevice(bench_, labels));
    HOTROW_ASSIGN_OR_RETURN(loss_value_, DeviceBuffer<double>::Create(1, stream));
    const int64_t loss_bytes = BceWithLogitsWorkspaceBytes(Device::kCuda, shape_.batch);
    HOTROW_ASSIGN_OR_RETURN(loss_workspace_, DeviceBuffer<std::byte>::Create(loss_bytes, stream));
    loss_ = {.logits = top_.y.data(),
             .labels = labels_.data(),
             .batch_size = shape_.batch,
             .gradient = top_.dy.data(),
             .loss = loss_value_.data(),
             .workspace = loss_workspace_.data(),
             .workspace_bytes = loss_bytes};
    for (int32_t t = 0; t < shape_.tables; ++t) {
      features_.push_back({.dim = shape_.dim,
                           .pooling = Pooling::kSum,
                           .data = embedding_gradient_.data() + int64_t{t} * shape_.dim,
                           .stride = width});
    }
    table_ = {.config = {.kind = kOptimizer},
              .layout = &layout_,
              .row_end = unique,
              .num_lookups = lookups_->n};
    HOTROW_ASSIGN_OR_RETURN(
        update_workspace_,
        DeviceBuffer<std::byte>::Create(
            FusedSparseUpdateWorkspaceBytes(shape_.tables, lookups_->n, shape_.dim), stream));
    update_ = {.features = features_,
               .batch_size = shape_.batch,
               .offsets = offsets_.data(),
               .inverse = lookups_->inverse.data(),
               .row_offsets = lookups_->row_offsets.data(),
               .lookup_order = lookups_->order.data(),
               .num_rows = unique,
               .num_lookups = lookups_->n,
               .tables = {&table_, 1},
               .rows = rows_.pointers.data(),
               .step = 1,
               .workspace = update_workspace_.data(),
               .workspace_bytes = update_workspace_.size()};
    return bench_.Wait();
  }

  GpuBench& bench_;
  const StepShape shape_;
  const RowLayout layout_;
  std::unique_ptr<Lookups> lookups_;
  ScatteredRows rows_;
  DeviceBuffer<int64_t> offsets_;
  DeviceBuffer<const float*> addresses_;
  DeviceBuffer<float> embedding_gradient_, labels_;
  DeviceBuffer<double> loss_value_;
  DeviceBuffer<std::byte> loss_workspace_, update_workspace_;
  std::vector<JaggedFeature> features_;
  FusedTable table_;
  Network bottom_, top_;
  AddressLookupsArgs addressing_;
  PaddedDotArgs dot_;
  PaddedDotGradArgs dot_gradient_;
  BceWithLogitsArgs loss_;
  FusedSparseUpdateArgs update_;
};

absl::Status MeasureStepAt(GpuBench& bench, const StepShape& shape) {
  HOTROW_ASSIGN_OR_RETURN(const auto step, Step::Create(bench, shape));
  const std::vector<Step::Stage> stages = step->Stages();
  const auto run_all = [&](const ExecContext& ctx) -> absl::Status {
    for (size_t s = 1; s < stages.size(); ++s) HOTROW_RETURN_IF_ERROR(stages[s].run(ctx));
    return absl::OkStatus();
  };
  // Chooses algorithms and loads kernels.
  HOTROW_RETURN_IF_ERROR(run_all(bench.Gpu()));
  double sum = 0;
  double budget = 0;
  const std::string of_batch = absl::StrCat(" batch ", shape.batch);
  const auto describe = [&](const std::string& name) {
    return nlohmann::ordered_json{{"stage", name}, {"batch", shape.batch}};
  };
  for (size_t s = 0; s < stages.size(); ++s) {
    const Step::Stage& stage = stages[s];
    // What stands before it gives it its inputs, and what follows ends the step.
    HOTROW_ASSIGN_OR_RETURN(
        const Times times,
        bench.Measure([&](int64_t) { return stage.run(bench.Gpu()); },
                      [&](int64_t) -> absl::Status {
                        for (size_t before = 1; before < s; ++before) {
                          HOTROW_RETURN_IF_ERROR(stages[before].run(bench.Gpu()));
                        }
                        return absl::OkStatus();
                      }));
    const bool is_flop = stage.unit == "flop";
    const std::string limit = is_flop ? ProductLimit(kPrecision) : "copy";
    nlohmann::ordered_json more = describe(stage.name);
    if (bench.limit(limit) > 0) {
      const double share = is_flop ? kShareOfProduct : kShareOfCopy;
      const double seconds = stage.amount / (share * bench.limit(limit));
      more["budget_ms"] = 1e3 * seconds;
      if (s > 0) budget += seconds;
    }
    if (s > 0) sum += times.median;
    bench.Add({"step", absl::StrCat("step: ", stage.name, of_batch), times, stage.amount,
               stage.unit, limit, bench.limit(limit), std::move(more)});
  }
  const auto add_whole = [&](const std::string& name, const Times& times) {
    nlohmann::ordered_json more = describe(name);
    more["budget_ms"] = 1e3 * budget;
    more["stages_ms"] = 1e3 * sum;
    bench.Add({"step", absl::StrCat("step: ", name, of_batch), times,
               static_cast<double>(shape.batch), "samples", "", 0, std::move(more)});
  };
  HOTROW_ASSIGN_OR_RETURN(const Times whole,
                          bench.Measure([&](int64_t) { return run_all(bench.Gpu()); }));
  add_whole("whole", whole);
  HOTROW_ASSIGN_OR_RETURN(const DeviceGraph graph, DeviceGraph::Capture(bench.Gpu(), run_all));
  HOTROW_ASSIGN_OR_RETURN(const Times launched,
                          bench.Measure([&](int64_t) { return graph.Launch(bench.Gpu()); }));
  add_whole("as a graph", launched);
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureStep(GpuBench& bench) {
  if (bench.limit(ProductLimit(kPrecision)) == 0) {
    HOTROW_RETURN_IF_ERROR(MeasureProductRate(bench, kPrecision));
  }
  for (const int64_t batch : bench.sizes().dense_batches) {
    HOTROW_RETURN_IF_ERROR(MeasureStepAt(bench, StepShape::Of(batch, bench.flags().toy)));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::bench
