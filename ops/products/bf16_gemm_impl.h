#ifndef HOTROW_OPS_PRODUCTS_BF16_GEMM_IMPL_H_
#define HOTROW_OPS_PRODUCTS_BF16_GEMM_IMPL_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/products/bf16_rows_impl.h"
#include "ops/products/gemm_impl.h"

// What networks of linear maps share where their products are of bf16, with sums in fp32: oneDNN's
// matmul, which runs on AMX where the processor has it, each on the thread that asks for it.
//
// All matrices are dense, and their sizes whole panels (bf16_rows_impl.h): on anything else oneDNN
// 2.6 falls to a path of a third of the speed, and to a reference loop. So maps work on padded
// copies, and what is padded is zero.
namespace hotrow::internal {

// CheckDensePrecision(kBf16), for a processor that has what these say. `processor` and `option` are
// for the error.
absl::Status CheckBf16(bool onednn_supports, bool rows_supported, const std::string& processor,
                       const std::string& option);

// result [rows, columns] = a [rows, inner] b [inner, columns] (+ bias [columns]), b in panels. rows
// is a multiple of 16, inner of kPanelRows, columns of kPanelColumns.
struct ProductShape {
  int64_t rows = 0;
  int64_t inner = 0;
  int64_t columns = 0;
  bool float_result = false;  // else bf16, rounded to the nearest
  bool has_bias = false;

  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

// A product that oneDNN has made code for.
class Bf16Product;

// What one thread works with while a chunk of rows goes through a network.
struct Bf16Scratch {
  Bf16Scratch();
  ~Bf16Scratch();
  Bf16Scratch(const Bf16Scratch&) = delete;
  Bf16Scratch& operator=(const Bf16Scratch&) = delete;

  // Room for so many numbers; pointers of the last call may become invalid.
  static absl::StatusOr<Bf16*> Take(int64_t size, HostBuffer<Bf16>* buffer);
  static absl::StatusOr<float*> Take(int64_t size, HostBuffer<float>* buffer);

  HostBuffer<Bf16> rows[2];
  HostBuffer<float> floats;
  HostBuffer<float> product;    // a block of a weight gradient
  HostBuffer<float> workspace;  // of oneDNN
  struct Stream;
  std::unique_ptr<Stream> stream;  // made by the first product
};

// Products and scratch of one network. Threads: any. Both grow by need and stay.
class Bf16Products {
 public:
  Bf16Products();
  ~Bf16Products();

  // bias is null where the shape has none. Needs a ProductScope. Errors: ResourceExhausted,
  // Internal (what oneDNN says).
  absl::Status Run(const ProductShape& shape, const Bf16* a, const Bf16* b, const float* bias,
                   void* result, Bf16Scratch* scratch);

  // A scratch that no other thread has, until it is given back.
  class Lease {
   public:
    explicit Lease(Bf16Products* products);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Bf16Scratch* get() { return scratch_.get(); }

   private:
    Bf16Products& products_;
    std::unique_ptr<Bf16Scratch> scratch_;
  };

  // All that the scratches have grown to. No lease may be out.
  int64_t bytes() const;

 private:
  absl::StatusOr<const Bf16Product*> Find(const ProductShape& shape);

  mutable std::mutex mutex_;
  std::map<ProductShape, std::unique_ptr<Bf16Product>> products_;
  std::vector<std::unique_ptr<Bf16Scratch>> idle_;
};

// y = x W^T (+ b) for W row-major [out, in], and its gradients. Chunks of rows are kGemmChunkRows
// high, in passes for training always all of them; rows behind the batch are zero in dy, and in x
// those of a network that reads zeros.
// Threads: the calls for different chunks and blocks may run at a time, Prepare alone.
class Bf16Linear {
 public:
  // max_batch_size is that of training.
  absl::Status Init(int64_t in, int64_t out, int64_t max_batch_size);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  int64_t in_padded() const { return in_padded_; }
  int64_t out_padded() const { return out_padded_; }
  int64_t bytes() const;

  // Rounds the weights for the passes over a batch. bias may be null: there is none.
  void Prepare(ThreadPool* pool, const float* weights, const float* bias, int64_t batch_size,
               bool training);

  // y [rows, out_padded] = x [rows, in_padded] W^T (+ b). y is Bf16 or float, as float_result says.
  absl::Status Forward(Bf16Products* products, const Bf16* x, int64_t rows, bool float_result,
                       void* y, Bf16Scratch* scratch) const;
  // dx [kGemmChunkRows, in_padded] = dy [kGemmChunkRows, out_padded] W; dx is Bf16 or float, too.
  absl::Status InputGradient(Bf16Products* products, const Bf16* dy, bool float_result, void* dx,
                             Bf16Scratch* scratch) const;
  // What WeightGradient reads: a chunk of x and of dy, whose first row is `begin`.
  void KeepInput(const Bf16* x, int64_t begin);
  void KeepGradient(const Bf16* dy, int64_t begin);
  // A block of dW [out, in] over the whole batch, as one product.
  absl::Status WeightGradient(Bf16Products* products, const WeightBlock& block, float* dw,
                              Bf16Scratch* scratch) const;

 private:
  int64_t in_ = 0;
  int64_t out_ = 0;
  int64_t in_padded_ = 0;
  int64_t out_padded_ = 0;
  int64_t batch_padded_ = 0;  // of the last Prepare
  bool has_bias_ = false;
  HostBuffer<Bf16> transposed_;  // W^T in panels
  HostBuffer<Bf16> weights_;     // W in panels, for training
  HostBuffer<float> bias_;       // [out_padded]
  HostBuffer<Bf16> inputs_;      // x in panels
  HostBuffer<Bf16> gradients_;   // dy^T, dense
};

// The blocks of weight gradients of such maps.
WeightBlocks CutWeights(std::span<const Bf16Linear* const> linears);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_BF16_GEMM_IMPL_H_
