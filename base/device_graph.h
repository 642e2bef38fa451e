#ifndef HOTROW_BASE_DEVICE_GRAPH_H_
#define HOTROW_BASE_DEVICE_GRAPH_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"

namespace hotrow {

// Work of a stream that is recorded once and launched as one from then on: a CUDA graph. Launches
// of single kernels cost the host some microseconds each, which small batches wait for.
//
// Threads: one call at a time. Errors: those of CUDA; Unimplemented on the CPU.
class DeviceGraph {
 public:
  // Records what `enqueue` enqueues on the stream of the context that it gets, without running it:
  // `ctx` with another stream, since other threads may use that of `ctx` meanwhile. It may neither
  // allocate on the device nor wait for it. What it enqueues on other streams stands between events
  // that these wait for and events that the stream waits for. What it reads from host memory, and
  // the addresses that it uses, stay as they are in every launch. An error of `enqueue` is that of
  // Capture.
  static absl::StatusOr<DeviceGraph> Capture(
      const ExecContext& ctx,
      absl::FunctionRef<absl::Status(const ExecContext& recording)> enqueue);
  DeviceGraph(DeviceGraph&& other) noexcept;
  DeviceGraph& operator=(DeviceGraph&& other) noexcept;
  ~DeviceGraph();

  absl::Status Launch(const ExecContext& ctx) const;

 private:
  struct Impl;
  explicit DeviceGraph(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_DEVICE_GRAPH_H_
