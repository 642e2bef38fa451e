#include "base/device_graph.h"

#include <utility>

#if HOTROW_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#endif

namespace hotrow {

struct DeviceGraph::Impl {
#if HOTROW_HAVE_CUDA
  std::unique_ptr<CUgraphExec_st, Destroy<cudaGraphExecDestroy>> exec;
#endif
};

DeviceGraph::DeviceGraph(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceGraph::DeviceGraph(DeviceGraph&& other) noexcept = default;
DeviceGraph& DeviceGraph::operator=(DeviceGraph&& other) noexcept = default;
DeviceGraph::~DeviceGraph() = default;

#if HOTROW_HAVE_CUDA

absl::StatusOr<DeviceGraph> DeviceGraph::Capture(
    const ExecContext& ctx, absl::FunctionRef<absl::Status(const ExecContext& recording)> enqueue) {
  if (ctx.device == Device::kCpu) return absl::UnimplementedError("DeviceGraph: not on the CPU");
  HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
  ExecContext recording = ctx;
  recording.stream = stream.get();
  // Captures this thread alone: others allocate on the device while they fetch rows.
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  const absl::Status status = enqueue(recording);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &graph);
  const std::unique_ptr<CUgraph_st, Destroy<cudaGraphDestroy>> owner(graph);
  if (!status.ok()) {
    cudaGetLastError();  // a capture that failed leaves one
    return status;
  }
  HOTROW_CUDA_RETURN_IF_ERROR(ended);
  auto impl = std::make_unique<Impl>();
  cudaGraphExec_t exec = nullptr;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGraphInstantiate(&exec, graph, 0));
  impl->exec.reset(exec);
  return DeviceGraph(std::move(impl));
}

absl::Status DeviceGraph::Launch(const ExecContext& ctx) const {
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(impl_->exec.get(), ctx.stream));
  return absl::OkStatus();
}

#else

absl::StatusOr<DeviceGraph> DeviceGraph::Capture(
    const ExecContext&, absl::FunctionRef<absl::Status(const ExecContext&)>) {
  return absl::UnimplementedError(
      "DeviceGraph: this build has no CUDA; configure with -DHOTROW_CUDA=ON");
}
absl::Status DeviceGraph::Launch(const ExecContext&) const {
  return absl::UnimplementedError(
      "DeviceGraph: this build has no CUDA; configure with -DHOTROW_CUDA=ON");
}

#endif

}  // namespace hotrow
