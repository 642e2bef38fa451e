#ifndef HOTROW_TESTS_OPS_CUDA_OP_TEST_CUH_
#define HOTROW_TESTS_OPS_CUDA_OP_TEST_CUH_

#include <cuda_runtime_api.h>

#include <memory>

#include "base/cuda_handles.h"
#include "base/exec_context.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow::test {

// How an op comes to a GPU: enqueued, or captured into a CUDA graph that is launched.
enum class Enqueue { kDirectly, kAsGraph };
constexpr Enqueue kBothWays[] = {Enqueue::kDirectly, Enqueue::kAsGraph};

// Runs op(ctx) on its own stream and waits for it.
template <typename Op>
void RunOnGpu(Enqueue enqueue, Op&& op) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream.get()};
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // what the arguments were filled with is there
  if (enqueue == Enqueue::kDirectly) {
    HOTROW_ASSERT_OK(op(ctx));
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    return;
  }
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const absl::Status status = op(ctx);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  const std::unique_ptr<CUgraph_st, Destroy<cudaGraphDestroy>> graph_owner(graph);
  HOTROW_ASSERT_OK(status);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  const std::unique_ptr<CUgraphExec_st, Destroy<cudaGraphExecDestroy>> exec_owner(exec);
  ASSERT_EQ(cudaGraphLaunch(exec, stream.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_CUDA_OP_TEST_CUH_
