#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <memory>
#include <vector>

#include "ops/training/dense_optimizer.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

using Arrays = std::vector<std::vector<float>>;

struct HostModel {
  HostModel(const std::vector<int64_t>& lengths, DenseOptimizerKind kind) {
    RandomStream random(7, RandomPurpose::kTest);
    for (const int64_t n : lengths) {
      parameters.push_back(test::RandomFloats(random, n));
      gradients.push_back(test::RandomFloats(random, n));
      const auto size = static_cast<size_t>(n);
      momentum1.emplace_back(DenseStateArrays(kind) >= 1 ? size : 0, 0.0f);
      momentum2.emplace_back(DenseStateArrays(kind) >= 2 ? size : 0, 0.0f);
      averages.push_back(parameters.back());
    }
  }
  Arrays parameters, gradients, momentum1, momentum2, averages;
};

// The same arrays in device memory.
class GpuArrays {
 public:
  explicit GpuArrays(const Arrays& host) {
    for (const std::vector<float>& array : host) {
      arrays_.push_back(std::make_unique<test::DeviceArray<float>>(array));
    }
  }
  std::span<float> operator[](size_t i) { return {arrays_[i]->data(), arrays_[i]->size()}; }
  void ExpectBits(const Arrays& want) const {
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(test::Bits(arrays_[i]->ToHost()), test::Bits(want[i])) << "tensor " << i;
    }
  }

 private:
  std::vector<std::unique_ptr<test::DeviceArray<float>>> arrays_;
};

TEST(DenseOptimizerCudaTest, EveryKindMovesParametersAndStateAsTheCpuDoes) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr int64_t kLong = test::ForGpu(1'000'003, 100'003);
  const test::GpuStream stream;
  std::vector<int64_t> many;
  for (int64_t i = 0; i < 80; ++i) many.push_back(i % 7);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{}, {0}, {1}, {kLong}, {5, 0, kLong / 10, 1}, many}) {
    for (const DenseOptimizerKind kind :
         {DenseOptimizerKind::kSgd, DenseOptimizerKind::kAdagrad, DenseOptimizerKind::kAdam}) {
      SCOPED_TRACE(testing::Message()
                   << lengths.size() << " tensors, " << std::string(DenseOptimizerName(kind)));
      HostModel host(lengths, kind);
      GpuArrays parameters(host.parameters), gradients(host.gradients), momentum1(host.momentum1),
          momentum2(host.momentum2), averages(host.averages);
      std::vector<DenseTensor> on_cpu, on_gpu;
      for (size_t i = 0; i < lengths.size(); ++i) {
        on_cpu.push_back({host.parameters[i], host.gradients[i], host.momentum1[i],
                          host.momentum2[i], host.averages[i]});
        on_gpu.push_back({parameters[i], gradients[i], momentum1[i], momentum2[i], averages[i]});
      }
      const DenseOptimizerConfig config = {.kind = kind,
                                           .learning_rate = 0.05f,
                                           .eps = 1e-4f,
                                           .weight_decay = 0.01f,
                                           .average_decay = 0.9f};
      const float scale = 0.3f;
      test::DeviceArray<float> scale_there(std::vector<float>{scale});
      test::DeviceArray<uint32_t> skips_there(std::vector<uint32_t>{0, 1});
      for (uint32_t step = 1; step <= 3; ++step) {
        const bool scaled = step == 2;
        // Before each one, one that is left out.
        HOTROW_ASSERT_OK(
            DenseUpdate(stream.ctx(), config, on_gpu, 0.9f, step, nullptr, skips_there.data() + 1));
        HOTROW_ASSERT_OK(DenseUpdate({}, config, on_cpu, 0.9f, step, scaled ? &scale : nullptr));
        HOTROW_ASSERT_OK(DenseUpdate(stream.ctx(), config, on_gpu, 0.9f, step,
                                     scaled ? scale_there.data() : nullptr,
                                     step == 3 ? nullptr : skips_there.data()));
      }
      parameters.ExpectBits(host.parameters);
      momentum1.ExpectBits(host.momentum1);
      momentum2.ExpectBits(host.momentum2);
      averages.ExpectBits(host.averages);
    }
  }
}

}  // namespace
}  // namespace hotrow
