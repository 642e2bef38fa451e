#include <algorithm>
#include <vector>

#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/mlp_impl.h"
#include "ops/products/int8_gemm_impl.h"

// The work is cut as in mlp_cpu.cc: a chunk of rows goes through all layers on one thread. What
// lies between two layers is fp32 and stays in a core's cache.
namespace hotrow::internal {
namespace {

class MlpInt8 : public ForwardEngine {
 public:
  explicit MlpInt8(const MlpShape& shape) : shape_(shape), linears_(shape.layers.size()) {}
  absl::Status Init() {
    for (size_t l = 0; l < linears_.size(); ++l) {
      const MlpLayer& layer = shape_.layers[l];
      HOTROW_RETURN_IF_ERROR(linears_[l].Init(layer.in, layer.out));
      if (!layer.last) widest_ = std::max(widest_, layer.out_stride);
    }
    return absl::OkStatus();
  }

  absl::Status Forward(const ExecContext& ctx, const DenseForward& args) override;
  int64_t bytes() const override {
    int64_t bytes = products_.bytes();
    for (const Int8Linear& linear : linears_) bytes += linear.bytes();
    return bytes;
  }

 private:
  absl::Status ForwardRows(const DenseForward& args, int64_t begin, int64_t end,
                           ProductScratch* scratch);

  const MlpShape shape_;
  std::vector<Int8Linear> linears_;  // of each layer
  int64_t widest_ = 0;               // row stride of what lies between two layers
  int64_t prepared_number_ = 0;      // of the parameters whose codes these are
  PanelProducts products_;
};

absl::Status MlpInt8::ForwardRows(const DenseForward& args, int64_t begin, int64_t end,
                                  ProductScratch* scratch) {
  HOTROW_ASSIGN_OR_RETURN(float* const floats,
                          ProductScratch::Take(kGemmChunkRows * widest_, &scratch->floats));
  ConstMatrix x(args.x + begin * args.x_stride, args.x_stride);
  for (size_t l = 0; l < linears_.size(); ++l) {
    const MlpLayer& layer = shape_.layers[l];
    const Matrix y = layer.last ? Matrix{args.y + begin * args.y_stride, args.y_stride}
                                : Matrix{floats, widest_};
    HOTROW_RETURN_IF_ERROR(
        linears_[l].Forward(&products_, x, end - begin, args.parameters + layer.weight_offset,
                            args.parameters + layer.bias_offset, layer.relu, y, scratch));
    x = y;
  }
  return absl::OkStatus();
}

absl::Status MlpInt8::Forward(const ExecContext& ctx, const DenseForward& args) {
  if (args.batch_size == 0) return absl::OkStatus();
  if (NewParameters(args, &prepared_number_)) {
    for (size_t l = 0; l < linears_.size(); ++l) {
      linears_[l].Prepare(ctx.pool, args.parameters + shape_.layers[l].weight_offset);
    }
  }
  FirstError error;
  ParallelFor(ctx.pool, args.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
    const ProductScope scope;
    PanelProducts::Lease scratch(&products_);
    error.Take(ForwardRows(args, begin, end, scratch.get()));
  });
  return error.ToStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpInt8(const MlpShape& shape) {
  auto engine = std::make_unique<MlpInt8>(shape);
  HOTROW_RETURN_IF_ERROR(engine->Init());
  return engine;
}

}  // namespace hotrow::internal
