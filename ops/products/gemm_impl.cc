#include "ops/products/gemm_impl.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "ops/validate.h"

namespace hotrow::internal {
namespace {

// A block of a weight gradient: 64 x 512 over a batch of 2048 is 1.2 ms of one core.
constexpr int64_t kBlockOutputs = 64;
constexpr int64_t kBlockInputs = 512;
constexpr int64_t kTransposeTile = 32;
constexpr int64_t kFloatBytes = sizeof(float);

absl::Status DnnlStatus(dnnl_status_t status) {
  switch (status) {
    case dnnl_success:
      return absl::OkStatus();
    case dnnl_out_of_memory:
      return absl::ResourceExhaustedError("oneDNN has no memory for a matrix product");
    default:
      return absl::InternalError(
          absl::StrCat("dnnl_sgemm failed with status ", static_cast<int>(status)));
  }
}

// Writes rows [begin, end) of `from` [rows, columns] as columns of `to`.
void TransposeRows(const ConstMatrix& from, int64_t begin, int64_t end, int64_t columns,
                   const Matrix& to) {
  for (int64_t c0 = 0; c0 < columns; c0 += kTransposeTile) {
    const int64_t c1 = std::min(columns, c0 + kTransposeTile);
    for (int64_t c = c0; c < c1; ++c) {
      for (int64_t r = begin; r < end; ++r) to.row(c)[r] = from.row(r)[c];
    }
  }
}

// The first product of a process makes the code of all; oneDNN 2.6 crashes when there is no memory
// for that. So it happens here, where memory is asked for first.
absl::Status MakeProductCode() {
  constexpr int64_t kCodeBytes = int64_t{16} << 20;  // it takes less than 2 MiB
  static std::atomic<bool> made{false};
  if (made.load()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(HostBuffer<float>::Create(kCodeBytes / kFloatBytes).status());
  constexpr int64_t kSize = 64;  // smaller ones take another way
  const std::vector<float> ones(kSize * kSize, 1.0f);
  std::vector<float> product(kSize * kSize);
  const ProductScope scope;
  HOTROW_RETURN_IF_ERROR(
      DnnlStatus(dnnl_sgemm('N', 'N', kSize, kSize, kSize, 1.0f, ones.data(), kSize, ones.data(),
                            kSize, 0.0f, product.data(), kSize)));
  made.store(true);
  return absl::OkStatus();
}

}  // namespace

ProductScope::ProductScope() : threads_before_(omp_get_max_threads()) {
  omp_set_num_threads(1);
  sigset_t signals;
  sigfillset(&signals);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    sigdelset(&signals, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, &signals_before_);
}

ProductScope::~ProductScope() {
  pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
  omp_set_num_threads(threads_before_);
}

absl::Status Linear::Init(int64_t in_size, int64_t out_size) {
  in = in_size;
  out = out_size;
  out_stride = RoundUp(out, kFloatsPerLine);
  HOTROW_RETURN_IF_ERROR(MakeProductCode());
  HOTROW_ASSIGN_OR_RETURN(transposed, HostBuffer<float>::Create(in * out_stride));
  return absl::OkStatus();
}

void Linear::Transpose(ThreadPool* pool, const float* weights) {
  const ConstMatrix from(weights, in);
  const Matrix to{transposed.data(), out_stride};
  ParallelFor(pool, out, kBlockOutputs,
              [&](int64_t begin, int64_t end) { TransposeRows(from, begin, end, in, to); });
}

absl::Status Linear::Forward(const ConstMatrix& x, const float* weights, bool use_transposed,
                             int64_t begin, int64_t end, const Matrix& y) const {
  return DnnlStatus(dnnl_sgemm('N', use_transposed ? 'N' : 'T', end - begin, out, in, 1.0f,
                               x.row(begin), x.stride, use_transposed ? transposed.data() : weights,
                               use_transposed ? out_stride : in, 0.0f, y.row(begin), y.stride));
}

absl::Status Linear::InputGradient(const ConstMatrix& dy, const float* weights, int64_t begin,
                                   int64_t end, bool add, const Matrix& dx) const {
  return DnnlStatus(dnnl_sgemm('N', 'N', end - begin, in, out, 1.0f, dy.row(begin), dy.stride,
                               weights, in, add ? 1.0f : 0.0f, dx.row(begin), dx.stride));
}

WeightBlocks CutWeights(std::span<const Linear* const> linears) {
  std::vector<WeightShape> shapes;
  for (const Linear* const linear : linears) {
    shapes.push_back({.in = linear->in, .out = linear->out});
  }
  return CutWeights(shapes, kBlockOutputs, kBlockInputs);
}

WeightBlocks CutWeights(std::span<const WeightShape> shapes, int64_t block_outputs,
                        int64_t block_inputs) {
  std::vector<WeightBlock> blocks;
  for (size_t l = 0; l < shapes.size(); ++l) {
    for (int64_t output = 0; output < shapes[l].out; output += block_outputs) {
      for (int64_t input = 0; input < shapes[l].in; input += block_inputs) {
        blocks.push_back({l, output, input});
      }
    }
  }
  const auto cost = [&](const WeightBlock& block) {
    const WeightShape& shape = shapes[block.linear];
    return std::min(block_outputs, shape.out - block.output) *
           std::min(block_inputs, shape.in - block.input);
  };
  std::stable_sort(blocks.begin(), blocks.end(),
                   [&](const WeightBlock& a, const WeightBlock& b) { return cost(a) > cost(b); });
  WeightBlocks result = {.num_linears = shapes.size(), .by_cost = blocks, .by_linear = blocks};
  std::stable_sort(result.by_linear.begin(), result.by_linear.end(),
                   [](const WeightBlock& a, const WeightBlock& b) { return a.linear > b.linear; });
  return result;
}

absl::Status WeightGradient(const Linear& linear, const WeightBlock& block, const ConstMatrix& dy,
                            const ConstMatrix& x, int64_t batch_size, float* dw) {
  return DnnlStatus(dnnl_sgemm('T', 'N', std::min(kBlockOutputs, linear.out - block.output),
                               std::min(kBlockInputs, linear.in - block.input), batch_size, 1.0f,
                               dy.data + block.output, dy.stride, x.data + block.input, x.stride,
                               0.0f, dw + block.output * linear.in + block.input, linear.in));
}

absl::Status RunWeightBlocks(ThreadPool* pool, const WeightBlocks& blocks,
                             absl::FunctionRef<absl::Status(const WeightBlock& block)> run,
                             const std::function<absl::Status(size_t linear)>& ready) {
  FirstError error;
  const auto run_block = [&](const WeightBlock& block) {
    const ProductScope scope;
    absl::Status status = run(block);
    const bool ok = status.ok();
    error.Take(std::move(status));
    return ok;
  };
  const auto num_blocks = static_cast<int64_t>(blocks.by_cost.size());
  if (ready == nullptr) {
    ParallelFor(pool, num_blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) run_block(blocks.by_cost[static_cast<size_t>(i)]);
    });
    return error.ToStatus();
  }

  // How many blocks of each map are still to be done.
  std::vector<std::atomic<int64_t>> open(blocks.num_linears);
  for (const WeightBlock& block : blocks.by_linear) {
    open[block.linear].fetch_add(1, std::memory_order_relaxed);
  }
  const std::thread::id caller = std::this_thread::get_id();
  size_t unreported = blocks.num_linears;  // maps; used by the caller alone
  absl::Status ready_status;
  const auto report = [&] {
    while (unreported > 0 && ready_status.ok() &&
           open[unreported - 1].load(std::memory_order_acquire) == 0) {
      ready_status = ready(--unreported);
    }
  };
  ParallelFor(pool, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (std::this_thread::get_id() == caller) report();
      const WeightBlock& block = blocks.by_linear[static_cast<size_t>(i)];
      // A block that failed keeps its map open for good.
      if (run_block(block)) open[block.linear].fetch_sub(1, std::memory_order_release);
    }
  });
  HOTROW_RETURN_IF_ERROR(error.ToStatus());
  report();
  return ready_status;
}

void DrawNormals(uint64_t seed, uint32_t id, int64_t first_element, float scale,
                 std::span<float> out) {
  const int64_t last_element = first_element + static_cast<int64_t>(out.size());
  for (int64_t group = first_element / 4; group * 4 < last_element; ++group) {
    const PhiloxBlock block =
        RandomBlock(seed, RandomPurpose::kDenseInit, static_cast<uint64_t>(group), id, 0);
    const NormalPair a = NormalFloats(block.v[0], block.v[1]);
    const NormalPair b = NormalFloats(block.v[2], block.v[3]);
    const float normal[4] = {a.first, a.second, b.first, b.second};
    const int64_t begin = std::max(group * 4, first_element);
    const int64_t end = std::min(group * 4 + 4, last_element);
    for (int64_t e = begin; e < end; ++e) {
      out[static_cast<size_t>(e - first_element)] = normal[e - group * 4] * scale;
    }
  }
}

absl::Status CheckMatrix(std::string_view op, std::string_view name, const float* data,
                         int64_t stride, int64_t columns) {
  if (data == nullptr) return NullField(op, name);
  if (stride < columns) {
    return InvalidField(op, absl::StrCat(std::string(name), "_stride"),
                        absl::StrCat("must be >= ", columns), stride);
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
