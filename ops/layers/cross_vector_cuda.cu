#include <cstdint>
#include <memory>

#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/layers/cross_network_impl.h"
#include "ops/products/gemm_impl.h"

// All layers of kVector at once. Each adds a multiple of x_0 and a bias, so with the sums of the
// biases before layer l, B_l = b_0 + ... + b_{l-1}, and a number c_l for each sample,
//   x_l = c_l x_0 + B_l,  c_0 = 1,  c_{l+1} = c_l + s_l,  s_l = x_l . w_l = c_l p_l + q_l,
//   p_l = x_0 . w_l,  q_l = B_l . w_l
// One pass over x_0 finds p, a second one, which the caches have, writes x_L. On the way back, with
// d_l = d(loss)/d(s_l) and e = dy . x_0:
//   d_l = e + sum over k > l of d_k p_k
//   dx = c_L dy + sum of d_l c_l w_l
//   dw_l = sum over the batch of d_l c_l x_0  +  B_l D_l,  D_l = sum over the batch of d_l
//   db_l = sum over the batch of dy  +  sum over k > l of w_k D_k
// which follows from the recursions of the papers by putting them into each other. No x_l is kept,
// and nothing but x_0, y, dy and dx is as large as the batch times the width.
namespace hotrow::internal {
namespace {

constexpr char kName[] = "CrossNetwork";

// Layers of a pass over a row, or over the rows of a chunk: what a thread keeps in registers.
constexpr int kLayersAtOnce = 4;
// Rows that one thread sums in one column. Chunks are summed by kGroups threads a column.
constexpr int64_t kChunkRows = 128;
constexpr int kChunkColumns = 128;
constexpr int kGroups = 8;
constexpr int kColumns = 32;

// What the kernels know of a network and a batch.
struct Net {
  int64_t width = 0;
  int64_t layers = 0;
  int64_t stride = 0;  // of a vector among the parameters
  const float* parameters = nullptr;
  ConstMatrix x0 = {nullptr, 0};
  int64_t rows = 0;
  float* bias_sums = nullptr;  // B [L + 1, stride]
  float* constants = nullptr;  // q [L]
  float* products = nullptr;   // p [B, L], then d
  float* factors = nullptr;    // c [B, L + 1], of which all but the last become d c

  __device__ const float* weights(int64_t l) const { return parameters + 2 * l * stride; }
  __device__ const float* bias(int64_t l) const { return weights(l) + stride; }
};

// B and q: a block a layer, and one more for B_L.
// Bytes: 12 L W, of all samples together
__global__ void BiasSumsKernel(Net net) {
  __shared__ float partial[kThreadsPerBlock / kWarpThreads];
  for (int64_t l = blockIdx.x; l <= net.layers; l += gridDim.x) {
    float* const sums = net.bias_sums + l * net.stride;
    float product = 0;
    for (int64_t i = threadIdx.x; i < net.width; i += blockDim.x) {
      float sum = 0;
      for (int64_t k = 0; k < l; ++k) sum += net.bias(k)[i];
      sums[i] = sum;
      if (l < net.layers) product += sum * net.weights(l)[i];
    }
    product = WarpSum(product);
    if (GroupLane() == 0) partial[threadIdx.x / kWarpThreads] = product;
    __syncthreads();
    if (threadIdx.x == 0 && l < net.layers) {
      for (int warp = 1; warp < kThreadsPerBlock / kWarpThreads; ++warp) product += partial[warp];
      net.constants[l] = product;
    }
    __syncthreads();  // partial is free again
  }
}

// A warp a row.
// Bytes: 8 W a sample, of all layers: x_0 read, y written
__global__ void CrossVectorKernel(Net net, Matrix y, bool keeps) {
  for (int64_t r = GridGroup(); r < net.rows; r += GridGroups()) {
    const float* const x0 = net.x0.row(r);
    float* const products = net.products + r * net.layers;
    float* const factors = net.factors + r * (net.layers + 1);
    float factor = 1;
    for (int64_t first = 0; first < net.layers; first += kLayersAtOnce) {
      const int n = static_cast<int>(min(int64_t{kLayersAtOnce}, net.layers - first));
      float sums[kLayersAtOnce] = {};
#pragma unroll 4
      for (int64_t i = GroupLane(); i < net.width; i += kWarpThreads) {
        const float x = x0[i];
#pragma unroll
        for (int k = 0; k < kLayersAtOnce; ++k) {
          if (k < n) sums[k] += x * net.weights(first + k)[i];
        }
      }
#pragma unroll
      for (int k = 0; k < kLayersAtOnce; ++k) {
        if (k >= n) continue;
        const float product = WarpSum(sums[k]);
        if (keeps && GroupLane() == 0) {
          products[first + k] = product;
          factors[first + k] = factor;
        }
        factor += factor * product + net.constants[first + k];
      }
    }
    if (keeps && GroupLane() == 0) factors[net.layers] = factor;
    const float* const sums = net.bias_sums + net.layers * net.stride;
    GroupMove<kWarpThreads>(
        GroupLane(), net.width, [=](int64_t i) { return factor * x0[i] + sums[i]; },
        [=](int64_t i, float value) { y.row(r)[i] = value; });
  }
}

// d, d c and dx, unless that is null. A warp a row, a lane a layer.
// Bytes: 12 W a sample, of all layers: x_0, dy read, dx written
__global__ void CrossVectorGradKernel(Net net, ConstMatrix dy, Matrix dx) {
  for (int64_t r = GridGroup(); r < net.rows; r += GridGroups()) {
    const float* const x0 = net.x0.row(r);
    const float* const g = dy.row(r);
    float* const products = net.products + r * net.layers;
    float* const factors = net.factors + r * (net.layers + 1);
    float sum = 0;
#pragma unroll 4
    for (int64_t i = GroupLane(); i < net.width; i += kWarpThreads) sum += g[i] * x0[i];
    float next = WarpSum(sum);  // d of the layer before
    for (int64_t first = (net.layers - 1) / kWarpThreads * kWarpThreads; first >= 0;
         first -= kWarpThreads) {
      const int64_t l = first + GroupLane();
      const float product = l < net.layers ? products[l] : 0.0f;
      float d = 0;
      for (auto k = static_cast<int>(min(int64_t{kWarpThreads}, net.layers - first)); k-- > 0;) {
        const float p = __shfl_sync(kAllLanes, product, k);
        if (k == GroupLane()) d = next;
        next += next * p;
      }
      if (l < net.layers) {
        products[l] = d;
        factors[l] *= d;
      }
    }
    __syncwarp();  // what other lanes have written is there
    if (dx.data == nullptr) continue;
    const float last = factors[net.layers];
    GroupMove<kWarpThreads>(
        GroupLane(), net.width,
        [=](int64_t i) {
          float value = last * g[i];
          for (int64_t l = 0; l < net.layers; ++l) value += factors[l] * net.weights(l)[i];
          return value;
        },
        [=](int64_t i, float value) { dx.row(r)[i] = value; });
  }
}

// Sums over the rows of each chunk: of d_l c_l x_0, then of dy [chunks, L + 1, stride]; and of d_l
// [chunks, L]. A block takes kChunkColumns columns of a chunk, or as many layers.
// Bytes: 8 W a sample, of all layers: x_0, dy
__global__ void CrossVectorSumsKernel(Net net, ConstMatrix dy, float* sums, float* sums_of_d) {
  const int64_t column_tiles = CeilDiv(net.width, kChunkColumns);
  const int64_t tiles = column_tiles + CeilDiv(net.layers, kChunkColumns);
  const int64_t blocks = CeilDiv(net.rows, kChunkRows) * tiles;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t chunk = block / tiles;
    const int64_t tile = block % tiles;
    const int64_t begin = chunk * kChunkRows;
    const int64_t end = min(begin + kChunkRows, net.rows);
    if (tile >= column_tiles) {
      const int64_t l = (tile - column_tiles) * kChunkColumns + threadIdx.x;
      if (l >= net.layers) continue;
      float sum = 0;
      for (int64_t r = begin; r < end; ++r) sum += net.products[r * net.layers + l];
      sums_of_d[chunk * net.layers + l] = sum;
      continue;
    }
    const int64_t i = tile * kChunkColumns + threadIdx.x;
    if (i >= net.width) continue;
    float* const to = sums + chunk * (net.layers + 1) * net.stride + i;
    for (int64_t first = 0; first < net.layers; first += kLayersAtOnce) {
      const int n = static_cast<int>(min(int64_t{kLayersAtOnce}, net.layers - first));
      float of_layer[kLayersAtOnce] = {};
#pragma unroll 8
      for (int64_t r = begin; r < end; ++r) {
        const float x = net.x0.row(r)[i];
        const float* const factors = net.factors + r * (net.layers + 1) + first;
#pragma unroll
        for (int k = 0; k < kLayersAtOnce; ++k) {
          if (k < n) of_layer[k] += factors[k] * x;
        }
      }
#pragma unroll
      for (int k = 0; k < kLayersAtOnce; ++k) {
        if (k < n) to[(first + k) * net.stride] = of_layer[k];
      }
    }
    float of_gradient = 0;
#pragma unroll 8
    for (int64_t r = begin; r < end; ++r) of_gradient += dy.row(r)[i];
    to[net.layers * net.stride] = of_gradient;
  }
}

// D [L] from the sums of the chunks: a warp a layer.
// Bytes: 4 L for each chunk of samples
__global__ void SumsOfDKernel(const float* sums_of_d, int64_t chunks, int64_t layers, float* d) {
  for (int64_t l = GridGroup(); l < layers; l += GridGroups()) {
    float sum = 0;
    for (int64_t chunk = GroupLane(); chunk < chunks; chunk += kWarpThreads) {
      sum += sums_of_d[chunk * layers + l];
    }
    sum = WarpSum(sum);
    if (GroupLane() == 0) d[l] = sum;
  }
}

// The gradients of all parameters, padding included. A block takes kColumns columns; thread (i, g)
// sums the chunks g, g + kGroups ...
// Bytes: 4 (L + 1) W for each chunk of samples
__global__ void CrossVectorParametersKernel(Net net, const float* sums, int64_t chunks,
                                            const float* d, float* gradients) {
  __shared__ float partial[kGroups][kColumns];
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int group = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t tiles = CeilDiv(net.stride, kColumns);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t i = tile * kColumns + column;
    float of_bias = 0;
    // First those of dy, which are behind those of the layers.
    for (int64_t l = net.layers; l >= 0; --l) {
      float sum = 0;
      if (i < net.width) {
        for (int64_t chunk = group; chunk < chunks; chunk += kGroups) {
          sum += sums[(chunk * (net.layers + 1) + l) * net.stride + i];
        }
      }
      partial[group][column] = sum;
      __syncthreads();
      if (group == 0 && i < net.stride) {
        for (int g = 1; g < kGroups; ++g) sum += partial[g][column];
        if (l == net.layers) {
          of_bias = sum;
        } else {
          const bool there = i < net.width;
          float* const to = gradients + 2 * l * net.stride + i;
          to[0] = there ? sum + net.bias_sums[l * net.stride + i] * d[l] : 0.0f;
          to[net.stride] = of_bias;
          if (there) of_bias += net.weights(l)[i] * d[l];
        }
      }
      __syncthreads();  // partial is free again
    }
  }
}

class CrossVectorCuda : public DenseEngine {
 public:
  explicit CrossVectorCuda(const CrossShape& shape) : shape_(shape) {}
  absl::Status Init(CudaStream stream);

  absl::Status Forward(const ExecContext& ctx, const DenseForward& args) override;
  absl::Status BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                             const DenseBackward& args) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                  const DenseBackward& args) override;
  int64_t bytes() const override;
  // c_{l+1}: the outputs are not kept.
  NumbersView Output(size_t l) const override {
    return {.data = factors_.data() + l + 1, .columns = 1, .stride = num_layers() + 1};
  }

 private:
  int64_t num_layers() const { return static_cast<int64_t>(shape_.layers.size()); }
  Net NetOf(const DenseForward& args, const float* parameters);
  static unsigned BlocksOfRows(int64_t rows) {
    return GridBlocks(rows, kThreadsPerBlock / kWarpThreads);
  }

  const CrossShape shape_;
  // As in Net.
  DeviceBuffer<float> bias_sums_, constants_, products_, factors_;
  DeviceBuffer<float> sums_;       // [chunks, L + 1, stride]
  DeviceBuffer<float> sums_of_d_;  // [chunks, L]
  DeviceBuffer<float> d_;          // D [L]
};

absl::Status CrossVectorCuda::Init(CudaStream stream) {
  const int64_t layers = num_layers();
  const int64_t rows = shape_.max_batch_size;
  const int64_t chunks = CeilDiv(rows, kChunkRows);
  const auto take = [stream](int64_t floats, DeviceBuffer<float>* buffer) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(*buffer, DeviceBuffer<float>::Create(floats, stream));
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(take((layers + 1) * shape_.stride, &bias_sums_));
  HOTROW_RETURN_IF_ERROR(take(layers, &constants_));
  HOTROW_RETURN_IF_ERROR(take(rows * layers, &products_));
  HOTROW_RETURN_IF_ERROR(take(rows * (layers + 1), &factors_));
  HOTROW_RETURN_IF_ERROR(take(chunks * (layers + 1) * shape_.stride, &sums_));
  HOTROW_RETURN_IF_ERROR(take(chunks * layers, &sums_of_d_));
  return take(layers, &d_);
}

Net CrossVectorCuda::NetOf(const DenseForward& args, const float* parameters) {
  return {.width = shape_.width,
          .layers = num_layers(),
          .stride = shape_.stride,
          .parameters = parameters,
          .x0 = {args.x, args.x_stride},
          .rows = args.batch_size,
          .bias_sums = bias_sums_.data(),
          .constants = constants_.data(),
          .products = products_.data(),
          .factors = factors_.data()};
}

absl::Status CrossVectorCuda::Forward(const ExecContext& ctx, const DenseForward& args) {
  if (args.batch_size == 0) return absl::OkStatus();
  const Net net = NetOf(args, args.parameters);
  BiasSumsKernel<<<GridBlocks(net.layers + 1, 1), kThreadsPerBlock, 0, ctx.stream>>>(net);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  CrossVectorKernel<<<BlocksOfRows(net.rows), kThreadsPerBlock, 0, ctx.stream>>>(
      net, Matrix{args.y, args.y_stride}, args.training);
  return LastLaunch(kName);
}

absl::Status CrossVectorCuda::BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                            const DenseBackward& args) {
  if (forward.batch_size == 0) return absl::OkStatus();
  const Net net = NetOf(forward, args.parameters);
  const ConstMatrix dy(args.dy, args.dy_stride);
  CrossVectorGradKernel<<<BlocksOfRows(net.rows), kThreadsPerBlock, 0, ctx.stream>>>(
      net, dy, Matrix{args.dx, args.dx_stride});
  HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  const int64_t tiles = CeilDiv(net.width, kChunkColumns) + CeilDiv(net.layers, kChunkColumns);
  const int64_t chunks = CeilDiv(net.rows, kChunkRows);
  CrossVectorSumsKernel<<<GridBlocks(chunks * tiles, 1), kChunkColumns, 0, ctx.stream>>>(
      net, dy, sums_.data(), sums_of_d_.data());
  return LastLaunch(kName);
}

absl::Status CrossVectorCuda::BackwardParameters(const ExecContext& ctx,
                                                 const DenseForward& forward,
                                                 const DenseBackward& args) {
  const Net net = NetOf(forward, args.parameters);
  const int64_t chunks = CeilDiv(net.rows, kChunkRows);
  SumsOfDKernel<<<BlocksOfRows(net.layers), kThreadsPerBlock, 0, ctx.stream>>>(
      sums_of_d_.data(), chunks, net.layers, d_.data());
  HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  CrossVectorParametersKernel<<<GridBlocks(net.stride, kColumns), kColumns * kGroups, 0,
                                ctx.stream>>>(net, sums_.data(), chunks, d_.data(),
                                              args.parameter_gradients);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  for (size_t l = shape_.layers.size(); l-- > 0;) {
    HOTROW_RETURN_IF_ERROR(LayerReady(shape_.layers[l], args));
  }
  return absl::OkStatus();
}

int64_t CrossVectorCuda::bytes() const {
  int64_t bytes = 0;
  for (const DeviceBuffer<float>* buffer :
       {&bias_sums_, &constants_, &products_, &factors_, &sums_, &sums_of_d_, &d_}) {
    bytes += buffer->bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossVectorCuda(const CrossShape& shape,
                                                                CudaStream stream) {
  auto engine = std::make_unique<CrossVectorCuda>(shape);
  HOTROW_RETURN_IF_ERROR(engine->Init(stream));
  return engine;
}

}  // namespace hotrow::internal
