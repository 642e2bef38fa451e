#ifndef HOTROW_TESTS_OPS_DENSE_CUDA_TEST_UTIL_H_
#define HOTROW_TESTS_OPS_DENSE_CUDA_TEST_UTIL_H_

#include "base/cuda_handles.h"
#include "base/exec_context.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow::test {

// A stream with a context on it.
class GpuStream {
 public:
  GpuStream() {
    auto stream = CreateStream();
    HOTROW_EXPECT_OK(stream);
    if (stream.ok()) stream_ = *std::move(stream);
  }

  // Waits for copies that were made before, by cudaMemcpy from pageable memory, which may still be
  // on their way: the stream would not wait for them.
  ExecContext ctx() const {
    if (!capturing_) {
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    return {.device = Device::kCuda, .stream = stream_.get()};
  }
  void Wait() const { EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess); }

  // Captures what body enqueues here in a CUDA graph and runs that `times` times. What
  // allocates, waits or uses the default stream fails.
  template <typename Body>
  void RunAsGraph(int times, Body&& body) {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
    capturing_ = true;
    body();
    capturing_ = false;
    ASSERT_EQ(cudaStreamEndCapture(stream_.get(), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&runnable, graph, 0), cudaSuccess);
    for (int i = 0; i < times; ++i) {
      EXPECT_EQ(cudaGraphLaunch(runnable, stream_.get()), cudaSuccess);
    }
    Wait();
    EXPECT_EQ(cudaGraphExecDestroy(runnable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  // Captures what body enqueues, which is left with work on a stream that nobody waits for.
  template <typename Body>
  void FailAsGraph(Body&& body) {
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
    capturing_ = true;
    body();
    capturing_ = false;
    EXPECT_EQ(cudaStreamEndCapture(stream_.get(), &graph), cudaErrorStreamCaptureUnjoined);
    cudaGetLastError();
  }

 private:
  StreamHandle stream_;
  bool capturing_ = false;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_DENSE_CUDA_TEST_UTIL_H_
