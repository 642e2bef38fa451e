// The rate of each layer of an MLP, forward and backward, on one thread: what bounds a DLRM's step.
//
// What bounds it: the multiply-adds of the processor. `of_peak` is the ratio to the rate of one
// large product of the same precision (a layer of 2048 x 2048, batch 2048, forward), which is timed
// in the same run, just before. Batch 2048; sizes are those of the two shapes of
// bench/dlrm_vs_torch.sh, with both MLPs. int8 has no way back.
//
//   mlp_bench [--benchmark_filter=fp32/dim128] [other flags of Google Benchmark]
//
// The line `.../all/step` is a step of both MLPs: samples a second, and beside it `at_peak`, the
// samples a second of its products alone at the rate of the large one. Times are processor time.
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "benchmark/benchmark.h"
#include "ops/layers/mlp.h"
#include "ops/products/dense_precision.h"

namespace hotrow {
namespace {

constexpr int64_t kBatchSize = 2048;
constexpr int32_t kLargeProduct = 2048;

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// An MLP of `sizes` with everything that its passes read and write.
class Network {
 public:
  Network(const std::vector<int32_t>& sizes, bool relu_on_output, DensePrecision precision)
      : trains_(precision != DensePrecision::kInt8),
        in_stride_((sizes.front() + 15) / 16 * 16),
        out_stride_((sizes.back() + 15) / 16 * 16) {
    for (size_t l = 0; l + 1 < sizes.size(); ++l) {
      multiply_adds_ += static_cast<double>(sizes[l]) * sizes[l + 1] * kBatchSize;
    }
    absl::StatusOr<std::unique_ptr<Mlp>> mlp = Mlp::Create({.sizes = sizes,
                                                            .relu_on_output = relu_on_output,
                                                            .max_batch_size = kBatchSize,
                                                            .precision = precision});
    HOTROW_CHECK(mlp.ok());
    mlp_ = *std::move(mlp);
    parameters_.resize(mlp_->num_parameters());
    gradients_.resize(mlp_->num_parameters());
    mlp_->InitParameters(1, parameters_);
    RandomStream random(1, RandomPurpose::kTest);
    for (auto* numbers : {&x_, &dx_}) numbers->resize(kBatchSize * in_stride_);
    for (auto* numbers : {&y_, &dy_}) numbers->resize(kBatchSize * out_stride_);
    for (auto* numbers : {&x_, &dy_}) {
      for (float& v : *numbers) v = static_cast<float>(random.Next32() >> 8) * 0x1p-24f - 0.5f;
    }
  }

  void Forward() {
    HOTROW_CHECK(mlp_->Forward({}, {.parameters = parameters_.data(),
                                    .x = x_.data(),
                                    .x_stride = in_stride_,
                                    .batch_size = kBatchSize,
                                    .y = y_.data(),
                                    .y_stride = out_stride_,
                                    .training = trains_,
                                    .parameters_number = 1})
                     .ok());
  }
  void BackwardInput() { HOTROW_CHECK(mlp_->BackwardInput({}, Backward()).ok()); }
  void BackwardParameters() { HOTROW_CHECK(mlp_->BackwardParameters({}, Backward()).ok()); }

  double flops() const { return 2 * multiply_adds_; }  // of one pass

 private:
  Mlp::BackwardArgs Backward() {
    return {.parameters = parameters_.data(),
            .dy = dy_.data(),
            .dy_stride = out_stride_,
            .dx = dx_.data(),
            .dx_stride = in_stride_,
            .parameter_gradients = gradients_.data()};
  }

  const bool trains_;
  const int64_t in_stride_;
  const int64_t out_stride_;
  double multiply_adds_ = 0;
  std::unique_ptr<Mlp> mlp_;
  std::vector<float> parameters_, gradients_, x_, dx_, y_, dy_;
};

// FLOP/s of the large product, the median of five.
double PeakRate(DensePrecision precision) {
  Network network({kLargeProduct, kLargeProduct}, false, precision);
  network.Forward();  // memory is touched, code is made
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const double begin = ThreadSeconds();
    network.Forward();
    seconds.push_back(ThreadSeconds() - begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
  return network.flops() / seconds[2];
}

enum class Pass { kForward, kInputGradient, kWeightGradient };

void MeasureLayer(benchmark::State& state, const std::vector<int32_t>& sizes, Pass pass,
                  DensePrecision precision) {
  Network network(sizes, true, precision);
  const double peak = PeakRate(precision);
  network.Forward();
  for (auto unused : state) {
    // Each half of the backward pass wants the one before it, which is not timed.
    if (pass == Pass::kWeightGradient) network.BackwardInput();
    const double begin = ThreadSeconds();
    if (pass == Pass::kForward) network.Forward();
    if (pass == Pass::kInputGradient) network.BackwardInput();
    if (pass == Pass::kWeightGradient) network.BackwardParameters();
    state.SetIterationTime(ThreadSeconds() - begin);
  }
  using benchmark::Counter;
  state.counters["FLOP/s"] = {network.flops(), Counter::kIsIterationInvariantRate,
                              Counter::kIs1000};
  state.counters["of_peak"] = {network.flops() / peak, Counter::kIsIterationInvariantRate};
}

void MeasureStep(benchmark::State& state, const std::vector<int32_t>& bottom,
                 const std::vector<int32_t>& top, DensePrecision precision) {
  Network below(bottom, true, precision);
  Network above(top, false, precision);
  const double peak = PeakRate(precision);
  for (auto unused : state) {
    const double begin = ThreadSeconds();
    below.Forward();
    above.Forward();
    above.BackwardInput();
    above.BackwardParameters();
    below.BackwardInput();
    below.BackwardParameters();
    state.SetIterationTime(ThreadSeconds() - begin);
  }
  using benchmark::Counter;
  const double flops = 3 * (below.flops() + above.flops());
  state.counters["samples/s"] = {static_cast<double>(kBatchSize),
                                 Counter::kIsIterationInvariantRate, Counter::kIs1000};
  state.counters["at_peak"] =
      benchmark::Counter(kBatchSize * peak / flops, Counter::kDefaults, Counter::kIs1000);
}

void RegisterShape(DensePrecision precision, const std::string& shape,
                   const std::vector<int32_t>& bottom, const std::vector<int32_t>& top) {
  const std::string prefix = std::string(DensePrecisionName(precision)) + "/" + shape + "/";
  for (const std::vector<int32_t>* sizes : {&bottom, &top}) {
    for (size_t l = 0; l + 1 < sizes->size(); ++l) {
      const std::vector<int32_t> layer = {(*sizes)[l], (*sizes)[l + 1]};
      const std::string name =
          prefix + std::to_string(layer[0]) + "-" + std::to_string(layer[1]) + "/";
      for (const auto& [pass, word] : {std::pair{Pass::kForward, "forward"},
                                       {Pass::kInputGradient, "input_gradient"},
                                       {Pass::kWeightGradient, "weight_gradient"}}) {
        if (precision == DensePrecision::kInt8 && pass != Pass::kForward) continue;
        benchmark::RegisterBenchmark((name + word).c_str(),
                                     [=, pass = pass](benchmark::State& state) {
                                       MeasureLayer(state, layer, pass, precision);
                                     })
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  if (precision == DensePrecision::kInt8) return;
  benchmark::RegisterBenchmark(
      (prefix + "all/step").c_str(),
      [=](benchmark::State& state) { MeasureStep(state, bottom, top, precision); })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  // 26 vectors and the bottom's output make 351 products beside that output.
  for (const DensePrecision precision :
       {DensePrecision::kFp32, DensePrecision::kBf16, DensePrecision::kInt8}) {
    if (!CheckDensePrecision(precision).ok()) continue;  // a processor without it
    RegisterShape(precision, "dim16", {13, 512, 256, 64, 16}, {367, 512, 256, 1});
    RegisterShape(precision, "dim128", {13, 512, 256, 128}, {479, 1024, 1024, 512, 256, 1});
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  return hotrow::RunMain("mlp_bench", [&] { return hotrow::Main(argc, argv); });
}
