#include <algorithm>
#include <vector>

#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/cross_network_impl.h"
#include "ops/products/int8_gemm_impl.h"
#include "ops/vec8_impl.h"

// Cross layers of matrices that score. A chunk of rows goes through all of them on one thread; y
// has x_l until x_{l+1} takes its place.
namespace hotrow::internal {
namespace {

class CrossInt8 : public ForwardEngine {
 public:
  explicit CrossInt8(const CrossShape& shape) : shape_(shape), layers_(shape.layers.size()) {}
  absl::Status Init() {
    const int64_t hidden = shape_.low_rank() ? shape_.rank : shape_.width;
    for (Layer& layer : layers_) {
      HOTROW_RETURN_IF_ERROR(layer.first.Init(shape_.width, hidden));
      if (shape_.low_rank()) HOTROW_RETURN_IF_ERROR(layer.second.Init(hidden, shape_.width));
    }
    return absl::OkStatus();
  }

  absl::Status Forward(const ExecContext& ctx, const DenseForward& args) override;
  int64_t bytes() const override {
    int64_t bytes = products_.bytes();
    for (const Layer& layer : layers_) bytes += layer.first.bytes() + layer.second.bytes();
    return bytes;
  }

 private:
  struct Layer {
    Int8Linear first;   // W, or V
    Int8Linear second;  // U, with a rank
  };

  absl::Status ForwardRows(const DenseForward& args, int64_t begin, int64_t end,
                           ProductScratch* scratch);

  const CrossShape shape_;
  std::vector<Layer> layers_;
  int64_t prepared_number_ = 0;  // of the parameters whose codes these are
  PanelProducts products_;
};

absl::Status CrossInt8::ForwardRows(const DenseForward& args, int64_t begin, int64_t end,
                                    ProductScratch* scratch) {
  HOTROW_ASSIGN_OR_RETURN(float* const floats,
                          ProductScratch::Take(kGemmChunkRows * shape_.stride, &scratch->floats));
  const Matrix t{floats, shape_.stride};  // first V x_l, with a rank
  const ConstMatrix x0(args.x + begin * args.x_stride, args.x_stride);
  const Matrix y{args.y + begin * args.y_stride, args.y_stride};
  const int64_t rows = end - begin;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const CrossLayerShape& shape = shape_.layers[l];
    const ConstMatrix x = l == 0 ? x0 : ConstMatrix(y);
    const float* const bias = args.parameters + shape.bias_offset;
    HOTROW_RETURN_IF_ERROR(
        layers_[l].first.Forward(&products_, x, rows, args.parameters + shape.weight_offset,
                                 shape_.low_rank() ? nullptr : bias, /*relu=*/false, t, scratch));
    if (shape_.low_rank()) {
      HOTROW_RETURN_IF_ERROR(layers_[l].second.Forward(&products_, t, rows,
                                                       args.parameters + shape.u_offset, bias,
                                                       /*relu=*/false, t, scratch));
    }
    for (int64_t r = 0; r < rows; ++r) {
      ForEachVec8(shape_.width, [&](int64_t i, auto lanes) {
        StoreLanes(Vec8::Fma(LoadLanes(t.row(r) + i, lanes), LoadLanes(x0.row(r) + i, lanes),
                             LoadLanes(x.row(r) + i, lanes)),
                   y.row(r) + i, lanes);
      });
    }
  }
  return absl::OkStatus();
}

absl::Status CrossInt8::Forward(const ExecContext& ctx, const DenseForward& args) {
  if (args.batch_size == 0) return absl::OkStatus();
  if (NewParameters(args, &prepared_number_)) {
    for (size_t l = 0; l < layers_.size(); ++l) {
      const CrossLayerShape& shape = shape_.layers[l];
      layers_[l].first.Prepare(ctx.pool, args.parameters + shape.weight_offset);
      if (shape_.low_rank()) {
        layers_[l].second.Prepare(ctx.pool, args.parameters + shape.u_offset);
      }
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

absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossInt8(const CrossShape& shape) {
  auto engine = std::make_unique<CrossInt8>(shape);
  HOTROW_RETURN_IF_ERROR(engine->Init());
  return engine;
}

}  // namespace hotrow::internal
