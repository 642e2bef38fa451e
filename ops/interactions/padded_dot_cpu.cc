#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "ops/interactions/padded_dot_impl.h"

// By the loops of DotInteraction, on copies in fp32 whose factors are rounded: a chunk of samples
// at a time. What the kernels are compared with; no model on the CPU has these precisions.
namespace hotrow::internal {
namespace {

constexpr int64_t kChunkSamples = 32;

template <typename Element>
struct Rows {
  using Stored = typename Element::Stored;

  static const Stored* Of(const void* data, int64_t stride, int64_t row) {
    return static_cast<const Stored*>(data) + row * stride;
  }
  static Stored* Of(void* data, int64_t stride, int64_t row) {
    return static_cast<Stored*>(data) + row * stride;
  }
  // Appends n factors.
  static void AddFactors(const Stored* from, int64_t n, std::vector<float>& to) {
    for (int64_t i = 0; i < n; ++i) to.push_back(Element::Factor(from[i]));
  }
  static void Narrow(const float* from, int64_t n, Stored* to) {
    for (int64_t i = 0; i < n; ++i) to[i] = Element::Narrow(from[i]);
  }
};

// The samples [begin, end) in fp32.
template <typename Element>
struct Chunk {
  Chunk(const PaddedDotArgs& args, int64_t begin, int64_t end)
      : args(args),
        begin(begin),
        samples(end - begin),
        sparse_columns(int64_t{args.num_sparse} * args.dim),
        products(PaddedDotProducts(args.num_sparse, args.dim)) {
    for (int64_t b = begin; b < end; ++b) {
      Rows<Element>::AddFactors(Rows<Element>::Of(args.dense, args.dense_stride, b), args.dim,
                                dense);
      if (sparse_columns == 0) continue;
      if (args.sparse_rows != nullptr) {
        for (int64_t s = 0; s < args.num_sparse; ++s) {
          Rows<Element>::AddFactors(
              Rows<Element>::Of(args.sparse_rows[b * args.num_sparse + s], 0, 0), args.dim, sparse);
        }
        continue;
      }
      Rows<Element>::AddFactors(Rows<Element>::Of(args.sparse, args.sparse_stride, b),
                                sparse_columns, sparse);
    }
  }

  DotInteractionArgs Forward(float* output) const {
    return {.batch_size = samples,
            .num_sparse = args.num_sparse,
            .dim = args.dim,
            .dense = dense.data(),
            .dense_stride = args.dim,
            .sparse = sparse.data(),
            .sparse_stride = sparse_columns,
            .output = output,
            .output_stride = products};
  }

  const PaddedDotArgs& args;
  int64_t begin;
  int64_t samples;
  int64_t sparse_columns;
  int64_t products;
  std::vector<float> dense;
  std::vector<float> sparse;
};

template <typename Element>
absl::Status ForwardChunk(const PaddedDotArgs& args, int64_t begin, int64_t end) {
  const Chunk<Element> chunk(args, begin, end);
  std::vector<float> output(static_cast<size_t>(chunk.samples * chunk.products));
  HOTROW_RETURN_IF_ERROR(DotInteractionCpu(nullptr, chunk.Forward(output.data())));
  const int64_t columns = PaddedDotColumns(args.num_sparse, args.dim);
  for (int64_t b = begin; b < end; ++b) {
    auto* const to = Rows<Element>::Of(args.output, args.output_stride, b);
    const float* const from = output.data() + (b - begin) * chunk.products;
    Rows<Element>::Narrow(from, chunk.products, to);
    // As it is: neither rounded as a factor, nor a NaN of other bits.
    std::copy_n(Rows<Element>::Of(args.dense, args.dense_stride, b), args.dim, to);
    std::fill(to + chunk.products, to + columns - 1, Element::Narrow(0));
    to[columns - 1] = Element::Narrow(1);
  }
  return absl::OkStatus();
}

template <typename Element>
absl::Status GradChunk(const PaddedDotGradArgs& args, int64_t begin, int64_t end) {
  const PaddedDotArgs& forward = args.forward;
  const Chunk<Element> chunk(forward, begin, end);
  std::vector<float> output_gradient;
  for (int64_t b = begin; b < end; ++b) {
    const auto* const from = Rows<Element>::Of(args.output_gradient, forward.output_stride, b);
    for (int64_t d = 0; d < forward.dim; ++d) output_gradient.push_back(Element::Widen(from[d]));
    Rows<Element>::AddFactors(from + forward.dim, chunk.products - forward.dim, output_gradient);
  }
  std::vector<float> dense(chunk.dense.size());
  std::vector<float> sparse(chunk.sparse.size());
  HOTROW_RETURN_IF_ERROR(
      DotInteractionGradCpu(nullptr, {.forward = chunk.Forward(nullptr),
                                      .output_gradient = output_gradient.data(),
                                      .dense_gradient = dense.data(),
                                      .dense_gradient_stride = forward.dim,
                                      .sparse_gradient = sparse.data(),
                                      .sparse_gradient_stride = chunk.sparse_columns}));
  for (int64_t b = begin; b < end; ++b) {
    const int64_t at = b - begin;
    Rows<Element>::Narrow(dense.data() + at * forward.dim, forward.dim,
                          Rows<Element>::Of(args.dense_gradient, args.dense_gradient_stride, b));
    if (chunk.sparse_columns == 0) continue;
    Rows<Element>::Narrow(sparse.data() + at * chunk.sparse_columns, chunk.sparse_columns,
                          Rows<Element>::Of(args.sparse_gradient, args.sparse_gradient_stride, b));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PaddedDotCpu(ThreadPool* pool, const PaddedDotArgs& args) {
  return WithDotPrecision(args.precision, [&](auto precision) -> absl::Status {
    using Element = DotElement<decltype(precision)::value>;
    ParallelFor(pool, args.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
      HOTROW_CHECK(ForwardChunk<Element>(args, begin, end).ok());
    });
    return absl::OkStatus();
  });
}

absl::Status PaddedDotGradCpu(ThreadPool* pool, const PaddedDotGradArgs& args) {
  return WithDotPrecision(args.forward.precision, [&](auto precision) -> absl::Status {
    using Element = DotElement<decltype(precision)::value>;
    ParallelFor(pool, args.forward.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
      HOTROW_CHECK(GradChunk<Element>(args, begin, end).ok());
    });
    return absl::OkStatus();
  });
}

}  // namespace hotrow::internal
