#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/math.h"
#include "ops/layers/self_attention_impl.h"
#include "ops/layers/target_attention_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

// Keys that a query meets at once: as many scores as a Vec8 has lanes.
constexpr int64_t kTileKeys = 8;
// Samples and positions that a thread takes at once where each row is read or written once.
constexpr int64_t kCopyChunkSamples = 16;
// Columns that are summed over the batch at once.
constexpr int64_t kColumnsAtOnce = 16;

// function(sample) for samples of some rows each.
template <typename Function>
void ForEachSample(ThreadPool* pool, int64_t batch_size, const Function& function) {
  ParallelFor(pool, batch_size, kCopyChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) function(b);
  });
}

// The dot products of a with rows 0 to count - 1, count <= 8, of a stride; zeros behind them.
// Products are fused into the sums of lanes (Vec8::Fma), which are added as Vec8::SumEach does.
Vec8 DotsWithRows(const float* a, const float* rows, int64_t stride, int64_t count, int64_t dim) {
  Vec8 sums[kTileKeys];
  for (Vec8& sum : sums) sum = Vec8::Zero();
  const auto add = [&](auto keys) {
    ForEachVec8(dim, [&](int64_t i, auto lanes) {
      const Vec8 x = LoadLanes(a + i, lanes);
      for (int64_t t = 0; t < keys; ++t) {
        sums[t] = Vec8::Fma(x, LoadLanes(rows + t * stride + i, lanes), sums[t]);
      }
    });
  };
  // A whole tile keeps its sums in registers.
  if (count == kTileKeys) {
    add(std::integral_constant<int64_t, kTileKeys>());
  } else {
    add(count);
  }
  return Vec8::SumEach(sums);
}

// y += sum over t < count of weights[t] times row t, in this order.
void AddRows(const float* weights, const float* rows, int64_t stride, int64_t count, int64_t dim,
             float* y) {
  ForEachVec8(dim, [&](int64_t i, auto lanes) {
    Vec8 sum = LoadLanes(y + i, lanes);
    for (int64_t t = 0; t < count; ++t) {
      sum = Vec8::Fma(Vec8::Set(weights[t]), LoadLanes(rows + t * stride + i, lanes), sum);
    }
    StoreLanes(sum, y + i, lanes);
  });
}

// Row t < count += weights[t] x.
void AddToRows(const float* weights, const float* x, int64_t count, int64_t dim, float* rows,
               int64_t stride) {
  for (int64_t t = 0; t < count; ++t) AddRows(&weights[t], x, 0, 1, dim, rows + t * stride);
}

float SigmoidOf(float x) { return 1 / (1 + std::exp(-x)); }

// One head of one sample: rows [begin, end) of all, columns from `column` on.
struct Head {
  const SelfAttentionArgs& args;
  int64_t begin;
  int64_t end;
  int64_t head;

  int64_t column() const { return head * args.head_dim; }
  const float* query(int64_t i) const { return args.queries + i * args.row_stride + column(); }
  const float* key(int64_t j) const { return args.keys + j * args.row_stride + column(); }
  const float* value(int64_t j) const { return args.values + j * args.row_stride + column(); }
  float* output(int64_t i) const { return args.output + i * args.output_stride + column(); }
  float& normalizer(int64_t i) const { return args.normalizers[i * args.num_heads + head]; }
  int64_t end_of_keys(int64_t i) const { return args.causal ? i + 1 : end; }
  // Where the bias of a query and a key lies.
  int64_t bias_of(int64_t i, int64_t j) const {
    const int64_t furthest = args.num_positions - 1;
    return furthest + std::clamp(i - j, -furthest, furthest);
  }

  // s_ij of the keys j to j + count - 1.
  void Scores(int64_t i, int64_t j, int64_t count, float* scores) const {
    DotsWithRows(query(i), key(j), args.row_stride, count, args.head_dim).Store(scores);
    for (int64_t t = 0; t < count; ++t) {
      scores[t] *= args.scale;
      if (args.position_bias != nullptr) scores[t] += args.position_bias[bias_of(i, j + t)];
    }
  }
};

// Sums weights and weighted values relative to the largest score so far, tile by tile, and brings
// them to the next larger one, as in Milakov & Gimelshein 2018, arXiv 1805.02867.
void SoftmaxRow(const Head& of, int64_t i) {
  const int64_t dim = of.args.head_dim;
  float* const y = of.output(i);
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0;
  for (int64_t j = of.begin; j < of.end_of_keys(i); j += kTileKeys) {
    const int64_t count = std::min(kTileKeys, of.end_of_keys(i) - j);
    float weights[kTileKeys];
    of.Scores(i, j, count, weights);
    float top = largest;
    for (int64_t t = 0; t < count; ++t) top = std::max(top, weights[t]);
    if (top > largest) {
      const float shrink = std::exp(largest - top);
      sum *= shrink;
      for (int64_t c = 0; c < dim; ++c) y[c] *= shrink;
      largest = top;
    }
    for (int64_t t = 0; t < count; ++t) {
      weights[t] = std::exp(weights[t] - largest);
      sum += weights[t];
    }
    AddRows(weights, of.value(j), of.args.row_stride, count, dim, y);
  }
  for (int64_t c = 0; c < dim; ++c) y[c] /= sum;
  if (of.args.normalizers != nullptr) of.normalizer(i) = largest + std::log(sum);
}

void SiluRow(const Head& of, int64_t i) {
  for (int64_t j = of.begin; j < of.end_of_keys(i); j += kTileKeys) {
    const int64_t count = std::min(kTileKeys, of.end_of_keys(i) - j);
    float weights[kTileKeys];
    of.Scores(i, j, count, weights);
    for (int64_t t = 0; t < count; ++t) {
      weights[t] = weights[t] * SigmoidOf(weights[t]) / of.args.length_bound;
    }
    AddRows(weights, of.value(j), of.args.row_stride, count, of.args.head_dim, of.output(i));
  }
}

// Query i's share of all gradients of a head. With g_j = dy_i . v_j the gradient of a score is
//   softmax:  a_ij (g_j - dy_i . y_i)
//   silu:     g_j silu'(s_ij) / length_bound, silu'(s) = sigmoid(s) (1 + s (1 - sigmoid(s)))
// bias_sums: [2 P - 1], added to; null: no bias.
void QueryGrad(const Head& of, const SelfAttentionGradArgs& args, int64_t i, double* bias_sums) {
  const int64_t dim = of.args.head_dim;
  const bool softmax = of.args.kind == AttentionKind::kSoftmax;
  const float* const dy = args.output_gradient + i * args.output_gradient_stride + of.column();
  const auto place = [&](float* gradient, int64_t row) {
    return gradient + row * args.gradient_stride + of.column();
  };
  float agreed = 0;  // dy_i . y_i
  if (softmax) {
    float dots[kTileKeys];
    DotsWithRows(dy, of.output(i), 0, 1, dim).Store(dots);
    agreed = dots[0];
  }
  for (int64_t j = of.begin; j < of.end_of_keys(i); j += kTileKeys) {
    const int64_t count = std::min(kTileKeys, of.end_of_keys(i) - j);
    float weights[kTileKeys];
    float slopes[kTileKeys];  // gradients of scores
    of.Scores(i, j, count, weights);
    DotsWithRows(dy, of.value(j), of.args.row_stride, count, dim).Store(slopes);
    for (int64_t t = 0; t < count; ++t) {
      const float score = weights[t];
      if (softmax) {
        weights[t] = std::exp(score - of.normalizer(i));
        slopes[t] = weights[t] * (slopes[t] - agreed);
      } else {
        const float sigmoid = SigmoidOf(score);
        weights[t] = score * sigmoid / of.args.length_bound;
        slopes[t] *= sigmoid * (1 + score * (1 - sigmoid)) / of.args.length_bound;
      }
      if (bias_sums != nullptr) bias_sums[of.bias_of(i, j + t)] += slopes[t];
      slopes[t] *= of.args.scale;
    }
    AddRows(slopes, of.key(j), of.args.row_stride, count, dim, place(args.query_gradient, i));
    AddToRows(slopes, of.query(i), count, dim, place(args.key_gradient, j), args.gradient_stride);
    AddToRows(weights, dy, count, dim, place(args.value_gradient, j), args.gradient_stride);
  }
}

}  // namespace

absl::Status AppendTargetCpu(ThreadPool* pool, const AppendTargetArgs& args) {
  const int64_t d = args.rows.dim;
  const auto write = [&](int64_t row, const float* from, int64_t number) {
    float* const to = args.output + row * args.output_stride;
    const float* const position =
        args.positions + std::min(number, args.num_positions - 1) * args.position_stride;
    for (int64_t c = 0; c < d; ++c) to[c] = from[c] + position[c];
  };
  ForEachSample(pool, args.rows.batch_size, [&](int64_t b) {
    const RowRange range = RowsOf(args.rows, b);
    for (int64_t j = range.begin; j < range.end; ++j) {
      write(j + b, args.rows.rows + (j - range.shift) * d, range.end - j);
    }
    write(range.end + b, args.target + b * args.target_stride, 0);
  });
  return absl::OkStatus();
}

absl::Status AppendTargetGradCpu(ThreadPool* pool, const AppendTargetGradArgs& args) {
  const int64_t d = args.rows.dim;
  const auto gradient = [&](int64_t row) {
    return args.output_gradient + row * args.output_gradient_stride;
  };
  ForEachSample(pool, args.rows.batch_size, [&](int64_t b) {
    const RowRange range = RowsOf(args.rows, b);
    for (int64_t j = range.begin; j < range.end; ++j) {
      const float* const from = gradient(j + b);
      for (int64_t c = 0; c < d; ++c) args.row_gradient[j * d + c] += from[c];
    }
    if (args.target_gradient == nullptr) return;
    std::copy_n(gradient(range.end + b), d, args.target_gradient + b * args.target_gradient_stride);
  });
  // A number's row of most samples is one; the last number may have many of them.
  const int64_t last = args.num_positions - 1;
  ParallelFor(pool, args.num_positions, 1, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      for (int64_t first = 0; first < d; first += kColumnsAtOnce) {
        const int64_t columns = std::min(kColumnsAtOnce, d - first);
        double sums[kColumnsAtOnce] = {};
        for (int64_t b = 0; b < args.rows.batch_size; ++b) {
          const RowRange range = RowsOf(args.rows, b);
          const int64_t nearest = range.end - number;  // where the row of this number lies
          const int64_t furthest = number == last ? range.begin : nearest;
          for (int64_t j = std::max(furthest, range.begin); j <= nearest; ++j) {
            const float* const from = gradient(j + b) + first;
            for (int64_t c = 0; c < columns; ++c) sums[c] += from[c];
          }
        }
        float* const to = args.position_gradient + number * args.position_gradient_stride + first;
        for (int64_t c = 0; c < columns; ++c) to[c] = static_cast<float>(sums[c]);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status LastRowCpu(ThreadPool* pool, const LastRowArgs& args) {
  const int64_t d = args.rows.dim;
  ForEachSample(pool, args.rows.batch_size, [&](int64_t b) {
    const RowRange range = RowsOf(args.rows, b);
    float* const to = args.output + b * args.output_stride;
    if (range.begin == range.end) {
      std::fill_n(to, d, 0.0f);
    } else {
      std::copy_n(args.rows.rows + (range.end - 1) * d, d, to);
    }
  });
  return absl::OkStatus();
}

absl::Status LastRowGradCpu(ThreadPool* pool, const LastRowGradArgs& args) {
  const int64_t d = args.rows.dim;
  ForEachSample(pool, args.rows.batch_size, [&](int64_t b) {
    const RowRange range = RowsOf(args.rows, b);
    if (range.begin == range.end) return;
    float* const last = args.row_gradient + (range.end - 1) * d;
    std::fill(args.row_gradient + range.begin * d, last, 0.0f);
    std::copy_n(args.output_gradient + b * args.output_gradient_stride, d, last);
  });
  return absl::OkStatus();
}

absl::Status SelfAttentionCpu(ThreadPool* pool, const SelfAttentionArgs& args) {
  const int64_t columns = int64_t{args.num_heads} * args.head_dim;
  ParallelFor(pool, args.batch_size, kSelfAttentionChunkSamples, [&](int64_t first, int64_t last) {
    const int64_t begin = args.offsets[first] - args.offsets[0];
    const int64_t end = args.offsets[last] - args.offsets[0];
    for (int64_t i = begin; i < end; ++i) {
      std::fill_n(args.output + i * args.output_stride, columns, 0.0f);
    }
    for (int64_t b = first; b < last; ++b) {
      for (int64_t h = 0; h < args.num_heads; ++h) {
        const Head head = {args, args.offsets[b] - args.offsets[0],
                           args.offsets[b + 1] - args.offsets[0], h};
        for (int64_t i = head.begin; i < head.end; ++i) {
          if (args.kind == AttentionKind::kSoftmax) {
            SoftmaxRow(head, i);
          } else {
            SiluRow(head, i);
          }
        }
      }
    }
  });
  return absl::OkStatus();
}

absl::Status SelfAttentionGradCpu(ThreadPool* pool, const SelfAttentionGradArgs& args) {
  const SelfAttentionArgs& forward = args.forward;
  const int64_t columns = int64_t{forward.num_heads} * forward.head_dim;
  const bool has_bias = forward.position_bias != nullptr;
  const int64_t num_biases = has_bias ? 2 * forward.num_positions - 1 : 0;
  auto* const chunk_sums = reinterpret_cast<double*>(args.workspace);
  const auto offset = [&](int64_t b) { return forward.offsets[b] - forward.offsets[0]; };
  ParallelFor(
      pool, forward.batch_size, kSelfAttentionChunkSamples, [&](int64_t first, int64_t last) {
        double* bias_sums = nullptr;
        if (has_bias) {
          bias_sums = chunk_sums + first / kSelfAttentionChunkSamples * num_biases;
          std::fill_n(bias_sums, num_biases, 0.0);
        }
        for (int64_t i = offset(first); i < offset(last); ++i) {
          for (float* gradient : {args.query_gradient, args.key_gradient, args.value_gradient}) {
            std::fill_n(gradient + i * args.gradient_stride, columns, 0.0f);
          }
        }
        for (int64_t b = first; b < last; ++b) {
          for (int64_t h = 0; h < forward.num_heads; ++h) {
            const Head head = {forward, offset(b), offset(b + 1), h};
            for (int64_t i = head.begin; i < head.end; ++i) QueryGrad(head, args, i, bias_sums);
          }
        }
      });
  const int64_t chunks = CeilDiv(forward.batch_size, kSelfAttentionChunkSamples);
  for (int64_t i = 0; i < num_biases; ++i) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += chunk_sums[chunk * num_biases + i];
    args.position_bias_gradient[i] = static_cast<float>(sum);
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
