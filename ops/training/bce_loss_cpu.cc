#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "ops/training/bce_loss_impl.h"

namespace hotrow::internal {
namespace {

struct Chunk {
  double loss = 0;         // sum over the chunk, in sample order
  int64_t bad_label = -1;  // first sample whose label lies outside [0, 1]
};

Chunk SumChunk(const BceWithLogitsArgs& args, int64_t begin, int64_t end) {
  const double mean_over = BceMeanOver(args);
  Chunk chunk;
  for (int64_t i = begin; i < end; ++i) {
    const double y = args.labels[i * args.stride];
    if (!BceLabelIsGood(y) && chunk.bad_label < 0) chunk.bad_label = i;
    const BceTerm term = BceTermOf(args.logits[i * args.stride], y);
    chunk.loss += term.loss;
    if (args.gradient != nullptr) {
      args.gradient[i * args.stride] =
          static_cast<float>(args.weight * ((term.sigmoid - y) / mean_over));
    }
  }
  return chunk;
}

}  // namespace

absl::Status BceWithLogitsCpu(ThreadPool* pool, const BceWithLogitsArgs& args) {
  *args.loss = 0;
  if (args.batch_size == 0) return absl::OkStatus();
  std::vector<Chunk> chunks(static_cast<size_t>(CeilDiv(args.batch_size, kBceChunkSamples)));
  ParallelFor(pool, args.batch_size, kBceChunkSamples, [&](int64_t begin, int64_t end) {
    chunks[static_cast<size_t>(begin / kBceChunkSamples)] = SumChunk(args, begin, end);
  });
  double sum = 0;
  for (const Chunk& chunk : chunks) {
    if (chunk.bad_label >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("BceWithLogitsArgs: labels[", chunk.bad_label,
                                                     "] must be in [0, 1], got ",
                                                     args.labels[chunk.bad_label * args.stride]));
    }
    sum += chunk.loss;
  }
  *args.loss = sum / static_cast<double>(args.batch_size);
  return absl::OkStatus();
}

}  // namespace hotrow::internal
