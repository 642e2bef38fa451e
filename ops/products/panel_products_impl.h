#ifndef HOTROW_OPS_PRODUCTS_PANEL_PRODUCTS_IMPL_H_
#define HOTROW_OPS_PRODUCTS_PANEL_PRODUCTS_IMPL_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/status_macros.h"
#include "ops/products/bf16_rows_impl.h"

// Products of matrices of fewer bits than a float, by oneDNN's matmul, which runs on AMX where the
// processor has it, each on the thread that asks for it.
//
// All matrices are dense, and their sizes whole panels (bf16_rows_impl.h): on anything else oneDNN
// 2.6 falls to a path of a third of the speed, and to a reference loop. So maps work on padded
// copies, and what is padded is zero.
namespace hotrow::internal {

// Whether the oneDNN of this build is one that they are written for.
bool PanelProductsKnown();

// result [rows, columns] = a [rows, inner] b [inner, columns] (+ bias [columns]), b in panels. rows
// is a multiple of 16, inner of kPanelRows, columns of kPanelColumns.
struct ProductShape {
  int64_t rows = 0;
  int64_t inner = 0;
  int64_t columns = 0;
  bool float_result = false;  // else bf16, rounded to the nearest
  bool has_bias = false;
  // Not bf16: a of uint8_t, b of int8_t in the panels of int8_gemm_impl.h, sums of int32_t, which
  // must hold them, no bias; any rows, inner a multiple of kPanelColumns.
  bool int8 = false;

  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

// A product that oneDNN has made code for.
class PanelProduct;

// What one thread works with while a chunk of rows goes through a network.
struct ProductScratch {
  ProductScratch();
  ~ProductScratch();
  ProductScratch(const ProductScratch&) = delete;
  ProductScratch& operator=(const ProductScratch&) = delete;

  // Room for so many numbers; pointers of the last call may become invalid.
  template <typename T>
  static absl::StatusOr<T*> Take(int64_t size, HostBuffer<T>* buffer) {
    HOTROW_RETURN_IF_ERROR(buffer->Reserve(size));
    return buffer->data();
  }

  HostBuffer<Bf16> rows[2];
  HostBuffer<uint8_t> codes;  // of int8: rows in 8 bits, and sums of their products
  HostBuffer<int32_t> sums;
  HostBuffer<float> floats;
  HostBuffer<float> product;    // a block of a weight gradient
  HostBuffer<float> workspace;  // of oneDNN
  struct Stream;
  std::unique_ptr<Stream> stream;  // made by the first product
};

// Products and scratch of one network. Threads: any. Both grow by need and stay.
class PanelProducts {
 public:
  PanelProducts();
  ~PanelProducts();

  // bias is null where the shape has none. Needs a ProductScope. Errors: ResourceExhausted,
  // Internal (what oneDNN says).
  absl::Status Run(const ProductShape& shape, const void* a, const void* b, const float* bias,
                   void* result, ProductScratch* scratch);

  // A scratch that no other thread has, until it is given back.
  class Lease {
   public:
    explicit Lease(PanelProducts* products);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ProductScratch* get() { return scratch_.get(); }

   private:
    PanelProducts& products_;
    std::unique_ptr<ProductScratch> scratch_;
  };

  // All that the scratches have grown to. No lease may be out.
  int64_t bytes() const;

 private:
  absl::StatusOr<const PanelProduct*> Find(const ProductShape& shape);

  mutable std::mutex mutex_;
  std::map<ProductShape, std::unique_ptr<PanelProduct>> products_;
  std::vector<std::unique_ptr<ProductScratch>> idle_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_PANEL_PRODUCTS_IMPL_H_
