#ifndef HOTROW_OPS_PRODUCTS_GEMM_IMPL_H_
#define HOTROW_OPS_PRODUCTS_GEMM_IMPL_H_

#include <csignal>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/macros.h"
#include "base/thread_pool.h"

// What networks of linear maps (Mlp, CrossNetwork) share on the CPU: matrix products by oneDNN,
// each on the thread that asks for it, and how work is cut into pieces that depend on shapes alone.
namespace hotrow::internal {

inline constexpr int64_t kFloatsPerLine = kBufferAlignment / static_cast<int64_t>(sizeof(float));

// Rows of a batch that go through a network on one thread. 128 rows of 512 floats are 256 KiB.
// Products over fewer rows lose speed (64: 1 %), over more rows leave threads without work at the
// end of a batch.
inline constexpr int64_t kGemmChunkRows = 128;
// Transposing W (one pass over memory) pays from about this many rows on.
inline constexpr int64_t kTransposeMinRows = 64;

struct Matrix {
  float* data = nullptr;
  int64_t stride = 0;
  HOTROW_HOST_DEVICE float* row(int64_t r) const { return data + r * stride; }
};

struct ConstMatrix {
  HOTROW_HOST_DEVICE ConstMatrix(const float* d, int64_t s) : data(d), stride(s) {}
  HOTROW_HOST_DEVICE ConstMatrix(const Matrix& m)  // NOLINT: a view of a view
      : data(m.data), stride(m.stride) {}
  const float* data;
  int64_t stride;
  HOTROW_HOST_DEVICE const float* row(int64_t r) const { return data + r * stride; }
};

// While one is alive, this thread may start products: they run on this thread alone, and no signal
// handler interrupts them. Two system calls, so one stands around a chunk of work, not around each
// product.
//
// Threads: oneDNN takes as many as OpenMP would give to the caller; that number is a property of
//          each thread.
// Signals: dnnl_sgemm of oneDNN 2.6 (Debian 12) keeps data below its stack pointer, further than
//          the 128 bytes that the ABI protects. A handler on the same stack destroys it (seen as
//          crashes), so the signals of a host program wait until the chunk is done. Those that an
//          instruction itself causes (SIGSEGV ...) stay open: blocked, they would kill the process
//          without its handler having a say.
class ProductScope {
 public:
  ProductScope();
  ~ProductScope();
  ProductScope(const ProductScope&) = delete;
  ProductScope& operator=(const ProductScope&) = delete;

 private:
  int threads_before_;
  sigset_t signals_before_;
};

// Keeps the first of the errors of a parallel loop.
class FirstError {
 public:
  void Take(absl::Status status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    status_.Update(std::move(status));  // if none was kept before
  }
  absl::Status ToStatus() const { return status_; }  // after the loop

 private:
  std::mutex mutex_;
  absl::Status status_;
};

// y = x W^T for W row-major [out, in], and its gradients: a shape, and room for W^T. The products
// need a ProductScope on the calling thread. Errors: ResourceExhausted (oneDNN has no memory),
// Internal.
struct Linear {
  int64_t in = 0;
  int64_t out = 0;
  int64_t out_stride = 0;        // out, rounded up to whole cache lines
  HostBuffer<float> transposed;  // W^T [in, out], row stride out_stride

  absl::Status Init(int64_t in_size, int64_t out_size);
  void Transpose(ThreadPool* pool, const float* weights);

  // Rows [begin, end) of y. With use_transposed W^T is read instead of `weights`.
  absl::Status Forward(const ConstMatrix& x, const float* weights, bool use_transposed,
                       int64_t begin, int64_t end, const Matrix& y) const;
  // Rows [begin, end) of dx = dy W, or of dx += dy W.
  absl::Status InputGradient(const ConstMatrix& dy, const float* weights, int64_t begin,
                             int64_t end, bool add, const Matrix& dx) const;
};

// A block of dW = dy^T x, summed over the whole batch by one product. The blocks of all weights of
// a network are run as one parallel loop.
struct WeightBlock {
  size_t linear;   // whose weights, as numbered in CutWeights
  int64_t output;  // first row of dW
  int64_t input;   // first column of dW
};

// The blocks of all the maps of a network, in two orders.
struct WeightBlocks {
  size_t num_linears = 0;
  std::vector<WeightBlock> by_cost;    // the most expensive first, so that threads end together
  std::vector<WeightBlock> by_linear;  // the last map first; of each map the most expensive first
};
WeightBlocks CutWeights(std::span<const Linear* const> linears);
// The same with blocks of a given size.
struct WeightShape {
  int64_t in;
  int64_t out;
};
WeightBlocks CutWeights(std::span<const WeightShape> shapes, int64_t block_outputs,
                        int64_t block_inputs);

// dw is the whole gradient [out, in] of `linear`.
absl::Status WeightGradient(const Linear& linear, const WeightBlock& block, const ConstMatrix& dy,
                            const ConstMatrix& x, int64_t batch_size, float* dw);

// Runs all blocks as one parallel loop. ready(l), where it is given, is called for every map, the
// last one first, once the blocks of that map and of those behind it are done; on the calling
// thread, which looks for maps to report between two of its blocks, so no thread waits for a
// report. After an error, of run or of ready, no report follows; the first one is returned.
absl::Status RunWeightBlocks(ThreadPool* pool, const WeightBlocks& blocks,
                             absl::FunctionRef<absl::Status(const WeightBlock& block)> run,
                             const std::function<absl::Status(size_t linear)>& ready);

// Draws out[i] = scale * z_i, where z_i is normal number e % 4 of RandomBlock(seed, kDenseInit,
// e / 4, id, 0) with e = first_element + i.
void DrawNormals(uint64_t seed, uint32_t id, int64_t first_element, float scale,
                 std::span<float> out);

// "Mlp: x_stride must be >= 13, got 5": what an argument [rows, columns] must be.
absl::Status CheckMatrix(std::string_view op, std::string_view name, const float* data,
                         int64_t stride, int64_t columns);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_GEMM_IMPL_H_
