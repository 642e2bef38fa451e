#include "absl/strings/str_cat.h"
#include "models/data/shuffle_impl.h"

namespace hotrow {
namespace {

constexpr int64_t kMaxEpoch = int64_t{1} << 31;
// Tells these shuffles from what else random numbers of RandomPurpose::kData are for.
constexpr uint32_t kShuffle = 1 << 16;
constexpr uint32_t kShuffleBlocks = kShuffle + 1;

uint64_t Counter(int64_t epoch, int64_t window) {
  return static_cast<uint64_t>(epoch) << 32 | static_cast<uint64_t>(window);
}

}  // namespace

Permutation WindowOrder(int64_t size, uint64_t seed, int64_t epoch, int64_t window) {
  return Permutation(static_cast<uint64_t>(size), seed, Counter(epoch, window), kShuffle);
}

Permutation BlockOrder(int64_t blocks, uint64_t seed, int64_t epoch) {
  return Permutation(static_cast<uint64_t>(blocks), seed, Counter(epoch, 0), kShuffleBlocks);
}

absl::Status CheckBatchSize(int64_t max_batch_size) {
  if (max_batch_size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("DataReader::Next: max_batch_size is ", max_batch_size, ", at least 1"));
}

absl::Status BeyondEnd(const DataSchema& schema, int64_t first_sample, int64_t size) {
  return absl::OutOfRangeError(absl::StrCat(schema.name, ": first sample is ", first_sample,
                                            ", the split has ", size, " samples"));
}

absl::Status CheckStart(const DataSchema& schema, int64_t epoch, int64_t first_sample,
                        int64_t size) {
  if (epoch < 0 || epoch >= kMaxEpoch) {
    return absl::InvalidArgumentError(
        absl::StrCat(schema.name, ": epoch is ", epoch, ", expected one in [0, 2^31)"));
  }
  if (first_sample < 0) {
    return absl::OutOfRangeError(
        absl::StrCat(schema.name, ": first sample is ", first_sample, ", at least 0"));
  }
  if (size >= 0 && first_sample > size) return BeyondEnd(schema, first_sample, size);
  return absl::OkStatus();
}

}  // namespace hotrow
