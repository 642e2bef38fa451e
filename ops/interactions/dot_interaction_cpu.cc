#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/interactions/dot_interaction_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

// A sample is a few microseconds of work; this many make starting a loop cheap, and still leave
// enough chunks for the threads of a large machine.
constexpr int64_t kChunkSamples = 32;

// Calls body<count>() for a count in [1, kMax], so that the body's loops over it can be unrolled.
template <int kMax, typename Body>
void WithConstant(int64_t count, const Body& body) {
  if constexpr (kMax > 1) {
    if (count < kMax) return WithConstant<kMax - 1>(count, body);
  }
  body.template operator()<kMax>();
}

// Asks for data that the next sample will read: the kernels walk down the columns of a sample, and
// no hardware prefetcher follows that.
void PrefetchRow(const float* data, int64_t count) {
  constexpr int64_t kFloatsPerLine = 16;
  for (int64_t i = 0; i < count; i += kFloatsPerLine) __builtin_prefetch(data + i, 0, 2);
}

// --- forward ---

// Lane k is the dot product of a and the k-th of kCount vectors that lie end to end in b; the other
// lanes are zero. Each product is summed in eight lanes over the columns and then across lanes, all
// of them at once: one transposing sum costs 9 shuffles where 8 separate horizontal sums would cost
// 24. The order depends on dim alone. Dim is int64_t, or a constant for the common sizes: short
// vectors would spend as much time on addresses as on products.
template <int kCount, typename Dim>
Vec8 DotEach(const float* a, const float* b, Dim dim) {
  Vec8 sums[8] = {Vec8::Zero(), Vec8::Zero(), Vec8::Zero(), Vec8::Zero(),
                  Vec8::Zero(), Vec8::Zero(), Vec8::Zero(), Vec8::Zero()};
  ForEachVec8(dim, [&](int64_t d, auto lanes) {
    const Vec8 x = LoadLanes(a + d, lanes);
#pragma GCC unroll 8
    for (int k = 0; k < kCount; ++k) {
      sums[k] = Vec8::Fma(x, LoadLanes(b + k * dim + d, lanes), sums[k]);
    }
  });
  return Vec8::SumEach(sums);
}

// The dot products of a with `count` vectors that lie end to end in b, into output.
template <typename Dim>
void DotAll(const float* a, const float* b, int64_t count, Dim dim, float* output) {
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) DotEach<8>(a, b + k * dim, dim).Store(output + k);
  if (k == count) return;
  WithConstant<7>(count - k, [&]<int kCount>() {
    DotEach<kCount>(a, b + k * dim, dim).StoreFirst(output + k, kCount);
  });
}

// The products of one sample. dense_products is scratch for S floats.
template <typename Dim>
void InteractSample(const float* dense, const float* sparse, int64_t num_sparse, Dim dim,
                    float* dense_products, float* products) {
  // The dense vector lies apart from the others, so its products, the first column of the triangle,
  // are made together.
  DotAll(dense, sparse, num_sparse, dim, dense_products);
  float* row = products;
  for (int64_t i = 0; i < num_sparse; ++i) {
    row[0] = dense_products[i];
    DotAll(sparse + i * dim, sparse, i, dim, row + 1);
    row += i + 1;
  }
}

template <typename Dim>
void InteractChunk(const DotInteractionArgs& args, int64_t begin, int64_t end, Dim dim) {
  std::vector<float> dense_products(static_cast<size_t>(args.num_sparse));
  for (int64_t b = begin; b < end; ++b) {
    const float* const sparse =
        args.num_sparse == 0 ? nullptr : args.sparse + b * args.sparse_stride;
    if (b + 1 < end && args.num_sparse > 0) {
      PrefetchRow(sparse + args.sparse_stride, args.num_sparse * dim);
    }
    const float* const dense = args.dense + b * args.dense_stride;
    float* const output = args.output + b * args.output_stride;
    if (args.copies_dense) std::copy_n(dense, dim, output);
    InteractSample(dense, sparse, args.num_sparse, dim, dense_products.data(),
                   output + FirstProduct(args));
  }
}

// --- backward ---

// A block of gradient vectors: with six rows and two registers of columns it takes 12 of AVX2's 16
// registers for sums, and a product costs 8 loads for 12 multiply-adds.
constexpr int kBlockRows = 6;

// What is known of one sample: x_j = vectors[j], where the gradient of x_i goes, and
// d(loss)/d(x_i . x_j), i > j, in the order of the outputs.
struct SampleGradient {
  int64_t num_vectors;
  int64_t dim;
  const float* const* vectors;
  float* const* gradients;
  const float* pairs;

  const float* PairsOf(int64_t i) const { return pairs + i * (i - 1) / 2; }  // with j = 0 .. i - 1
};

// The pairs within rows first .. first + kRows, as a symmetric matrix with zero diagonal.
template <int kRows>
void ExpandDiagonal(const SampleGradient& s, int64_t first, float (&diagonal)[kRows][kRows]) {
  for (int i = 0; i < kRows; ++i) {
    diagonal[i][i] = 0;
    for (int j = 0; j < i; ++j) {
      diagonal[i][j] = diagonal[j][i] = s.PairsOf(first + i)[first + j];
    }
  }
}

// gradient_i = start_i + sum over j of pair(i, j) x_j for the rows first .. first + kRows and the
// columns d .. d + 8 kWidth; j rises. start belongs to the first row; null means zeros.
template <int kRows, int kWidth, typename Lanes>
void GradientBlock(const SampleGradient& s, int64_t first, const float (&diagonal)[kRows][kRows],
                   const float* start, int64_t d, Lanes lanes) {
  Vec8 sums[kRows][kWidth];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int w = 0; w < kWidth; ++w) sums[r][w] = Vec8::Zero();
  }
  if (start != nullptr) {
#pragma GCC unroll 2
    for (int w = 0; w < kWidth; ++w) sums[0][w] = LoadLanes(start + d + 8 * w, lanes);
  }
  const auto add = [&](int64_t j, auto&& pair) {
    Vec8 x[kWidth];
#pragma GCC unroll 2
    for (int w = 0; w < kWidth; ++w) x[w] = LoadLanes(s.vectors[j] + d + 8 * w, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec8 factor = Vec8::Set(pair(r));
#pragma GCC unroll 2
      for (int w = 0; w < kWidth; ++w) sums[r][w] = Vec8::Fma(factor, x[w], sums[r][w]);
    }
  };
  // Left of the diagonal block a pair stands in row first + r of the triangle, below it in row j.
  const float* rows[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) rows[r] = s.PairsOf(first + r);
  for (int64_t j = 0; j < first; ++j) add(j, [&](int r) { return rows[r][j]; });
#pragma GCC unroll 8
  for (int j = 0; j < kRows; ++j) add(first + j, [&](int r) { return diagonal[j][r]; });
  const float* below = s.PairsOf(first + kRows) + first;
  for (int64_t j = first + kRows; j < s.num_vectors; ++j) {
    add(j, [&](int r) { return below[r]; });
    below += j;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int w = 0; w < kWidth; ++w) {
      StoreLanes(sums[r][w], s.gradients[first + r] + d + 8 * w, lanes);
    }
  }
}

template <int kRows>
void GradientRows(const SampleGradient& s, int64_t first, const float* start) {
  float diagonal[kRows][kRows];
  ExpandDiagonal(s, first, diagonal);
  constexpr std::integral_constant<int64_t, 8> kAll;
  int64_t d = 0;
  for (; d + 16 <= s.dim; d += 16) GradientBlock<kRows, 2>(s, first, diagonal, start, d, kAll);
  for (; d + 8 <= s.dim; d += 8) GradientBlock<kRows, 1>(s, first, diagonal, start, d, kAll);
  if (d < s.dim) GradientBlock<kRows, 1>(s, first, diagonal, start, d, s.dim - d);
}

class GradientWorker {
 public:
  explicit GradientWorker(const DotInteractionGradArgs& args)
      : args_(args),
        num_vectors_(int64_t{args.forward.num_sparse} + 1),
        vectors_(static_cast<size_t>(num_vectors_)),
        gradients_(static_cast<size_t>(num_vectors_)) {}

  void RunSample(int64_t sample) {
    const DotInteractionArgs& forward = args_.forward;
    const int64_t dim = forward.dim;
    const float* const output_gradient = args_.output_gradient + sample * forward.output_stride;
    vectors_[0] = forward.dense + sample * forward.dense_stride;
    gradients_[0] = args_.dense_gradient + sample * args_.dense_gradient_stride;
    if (num_vectors_ > 1) {  // else the sparse pointers may be null
      const float* const sparse = forward.sparse + sample * forward.sparse_stride;
      float* const sparse_gradient = args_.sparse_gradient + sample * args_.sparse_gradient_stride;
      if (sample + 1 < forward.batch_size) {
        PrefetchRow(sparse + forward.sparse_stride, (num_vectors_ - 1) * dim);
      }
      for (int64_t i = 1; i < num_vectors_; ++i) {
        vectors_[static_cast<size_t>(i)] = sparse + (i - 1) * dim;
        gradients_[static_cast<size_t>(i)] = sparse_gradient + (i - 1) * dim;
      }
    }
    const SampleGradient s = {.num_vectors = num_vectors_,
                              .dim = dim,
                              .vectors = vectors_.data(),
                              .gradients = gradients_.data(),
                              .pairs = output_gradient + FirstProduct(forward)};
    // Where the first outputs are the dense vector itself, its gradient starts from theirs.
    const float* start = forward.copies_dense ? output_gradient : nullptr;
    for (int64_t i = 0; i < num_vectors_; i += kBlockRows) {
      WithConstant<kBlockRows>(std::min<int64_t>(kBlockRows, num_vectors_ - i),
                               [&]<int kRows>() { GradientRows<kRows>(s, i, start); });
      start = nullptr;
    }
  }

 private:
  const DotInteractionGradArgs& args_;
  const int64_t num_vectors_;
  std::vector<const float*> vectors_;  // [F]
  std::vector<float*> gradients_;      // [F]
};

}  // namespace

absl::Status DotInteractionCpu(ThreadPool* pool, const DotInteractionArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    switch (args.dim) {
      case 16:
        return InteractChunk(args, begin, end, std::integral_constant<int64_t, 16>());
      case 32:
        return InteractChunk(args, begin, end, std::integral_constant<int64_t, 32>());
      case 64:
        return InteractChunk(args, begin, end, std::integral_constant<int64_t, 64>());
      case 128:
        return InteractChunk(args, begin, end, std::integral_constant<int64_t, 128>());
      default:
        return InteractChunk(args, begin, end, int64_t{args.dim});
    }
  });
  return absl::OkStatus();
}

absl::Status DotInteractionGradCpu(ThreadPool* pool, const DotInteractionGradArgs& args) {
  ParallelFor(pool, args.forward.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    GradientWorker worker(args);
    for (int64_t sample = begin; sample < end; ++sample) worker.RunSample(sample);
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
