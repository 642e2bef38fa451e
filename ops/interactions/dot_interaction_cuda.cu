#include "ops/interactions/dot_interaction_impl.h"
#include "ops/interactions/padded_dot_cuda_impl.h"

// By the kernels of PaddedDot in fp32, which add in the order of the CPU's loops
// (dot_interaction_cpu.cc).
namespace hotrow::internal {
namespace {

PaddedDotArgs PaddedArgs(const DotInteractionArgs& args) {
  return {.precision = DotPrecision::kFp32,
          .batch_size = args.batch_size,
          .num_sparse = args.num_sparse,
          .dim = args.dim,
          .dense = args.dense,
          .dense_stride = args.dense_stride,
          .sparse = args.sparse,
          .sparse_stride = args.sparse_stride,
          .output = args.output,
          .output_stride = args.output_stride};
}

DotColumns ColumnsOf(const DotInteractionArgs& args) {
  return {.first_product = FirstProduct(args),
          .all = DotInteractionOutputSize(args.num_sparse, args.dim, args.copies_dense)};
}

}  // namespace

absl::Status DotInteractionCuda(CudaStream stream, const DotInteractionArgs& args) {
  return DotByPairs(stream, PaddedArgs(args), ColumnsOf(args));
}

absl::Status DotInteractionGradCuda(CudaStream stream, const DotInteractionGradArgs& args) {
  return DotGradByPairs(stream,
                        {.forward = PaddedArgs(args.forward),
                         .output_gradient = args.output_gradient,
                         .dense_gradient = args.dense_gradient,
                         .dense_gradient_stride = args.dense_gradient_stride,
                         .sparse_gradient = args.sparse_gradient,
                         .sparse_gradient_stride = args.sparse_gradient_stride},
                        ColumnsOf(args.forward));
}

}  // namespace hotrow::internal
