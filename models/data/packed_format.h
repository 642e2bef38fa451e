#ifndef HOTROW_MODELS_DATA_PACKED_FORMAT_H_
#define HOTROW_MODELS_DATA_PACKED_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/enum_words.h"
#include "base/env.h"
#include "models/data/ctr_batch.h"
#include "models/data/data_source.h"
#include "models/data/sample_block.h"

// Packed data: samples as columns in blocks, so that a batch is copied and not parsed.
// docs/formats/packed_data.md has the bytes.
namespace hotrow {

inline constexpr char kPackedManifestName[] = "pack.json";
inline constexpr char kPackedVocabularyName[] = "vocabulary";
inline constexpr int64_t kPackedAlignment = 4096;  // of blocks and indexes in their files
inline constexpr int64_t kPackedBlockSamplesMax = 1 << 20;

// How dense features lie in blocks; readers give fp32.
enum class PackedPrecision { kFp32, kFp16 };
inline constexpr EnumWord<PackedPrecision> kPackedPrecisionWords[] = {
    {"fp32", PackedPrecision::kFp32},
    {"fp16", PackedPrecision::kFp16},
};

// One block in its file.
struct PackedBlockPlace {
  uint64_t offset = 0;
  uint32_t bytes = 0;  // without what fills it up to the alignment
  uint32_t crc = 0;    // CRC-32C of these bytes
};
static_assert(sizeof(PackedBlockPlace) == 16);

// What pack.json says.
struct PackedManifest {
  struct SplitFile {
    std::string file;  // in the directory
    int64_t blocks = 0;
    int64_t index_offset = 0;
    uint32_t index_crc = 0;  // of the blocks' places, which hold the checksums of all else
  };

  DataSchema schema;
  int64_t block_samples = 0;  // of each block but the last of a split
  PackedPrecision dense_precision = PackedPrecision::kFp32;
  bool has_weights = false;
  bool has_probability = false;
  bool has_time = false;
  bool one_each = false;          // each sample has one lookup of each feature
  std::vector<int32_t> id_bytes;  // [features], of the largest id in any block
  std::string table_schema;       // its text, or empty
  int64_t vocabulary_bytes = 0;   // 0: there is none
  uint32_t vocabulary_crc = 0;
  std::vector<std::pair<std::string, std::string>> source;  // what it was made of, in words
  std::array<SplitFile, 3> splits;                          // by Split

  int64_t& Samples(Split split);
  int64_t Samples(Split split) const;
  int64_t SplitBytes() const;  // of the files of all splits
  // Memory that a block of so many samples takes beside its bytes.
  int64_t WidenedBytes(int64_t samples) const;
};

std::string PackedManifestText(const PackedManifest& manifest);
// Errors: NotFound or InvalidArgument (`dir` holds no packed data), DataLoss, FailedPrecondition
// (another version); all name the file.
absl::StatusOr<PackedManifest> ReadPackedManifest(Env& env, const std::string& dir);
// The places of a split's blocks, in order. Errors: DataLoss, naming the file.
absl::StatusOr<std::vector<PackedBlockPlace>> ReadPackedIndex(Env& env, const std::string& dir,
                                                              const PackedManifest& manifest,
                                                              Split split);

// Makes blocks of batches. Dimensions as in CtrBatch.
//
// Threads: one at a time.
class PackedBlockBuilder {
 public:
  PackedBlockBuilder(const PackedManifest& manifest);

  int64_t size() const { return size_; }  // samples
  // Memory that it may take, at most, with so many samples and lookups more than it has. A builder
  // keeps the memory of its blocks.
  int64_t MemoryBytesWith(int64_t samples, int64_t lookups) const;
  // The samples [begin, end) of a batch. Errors: InvalidArgument, which names the sample and what
  // of it a pack cannot hold (a label other than 0 and 1, a number that fp16 cannot, a bag of more
  // than 65,535 lookups, or than the schema says).
  absl::Status Append(const CtrBatch& batch, int64_t begin, int64_t end);
  // Whether each sample has one lookup of each feature.
  bool one_each() const;
  // Of the largest id of a feature, in all blocks so far.
  int32_t id_bytes(int64_t f) const { return columns_[static_cast<size_t>(f)].id_bytes; }
  // The bytes of the block, which are valid until the next call; the builder is empty then.
  std::span<const std::byte> Finish();

 private:
  struct Column {
    std::vector<uint64_t> values;
    std::vector<uint16_t> lengths;  // [size]
    std::vector<float> weights;
    bool one_each = true;  // all lengths are 1
    int32_t id_bytes = 1;
    int64_t lookups_max = Sample::kMaxHotness;
  };

  const int64_t num_dense_;
  const int64_t num_labels_;
  const PackedPrecision dense_precision_;
  const bool has_weights_;
  const bool has_probability_;
  const bool has_time_;
  int64_t size_ = 0;
  int64_t memory_bytes_ = 0;  // MemoryBytesWith(0, 0), the most so far
  std::vector<uint8_t> labels_;
  std::vector<float> dense_;
  std::vector<float> probability_;
  std::vector<int64_t> times_;
  std::vector<Column> columns_;
  std::vector<std::byte> bytes_;
};

// A block in memory.
//
// Threads: const methods may run concurrently.
class PackedBlock {
 public:
  struct Feature {
    const std::byte* values = nullptr;  // [lookups], `width` bytes each
    int32_t width = 0;                  // 1 to 8
    int64_t lookups = 0;
    const float* weights = nullptr;  // [lookups], or null
    // [samples + 1]: lookups of the samples before; empty where each sample has one.
    std::vector<uint32_t> begins;

    // Where the lookups of sample i begin; of i = samples, where all end.
    int64_t BeginOf(int64_t i) const { return begins.empty() ? i : begins[static_cast<size_t>(i)]; }
  };

  // Room for a block of that many bytes; those may be read in up to Buffer().size().
  absl::Status Reserve(int64_t bytes);
  std::byte* bytes() { return buffer_.data(); }
  // Looks at what was read into bytes(): `size` of them, of `samples` samples. Errors: DataLoss, a
  // sentence that does not name the place.
  absl::Status Open(const PackedManifest& manifest, int64_t size, int64_t samples);

  int64_t samples() const { return samples_; }
  int64_t memory_bytes() const { return memory_bytes_; }
  const uint8_t* labels() const { return labels_; }          // [samples, T]
  const float* dense() const { return dense_; }              // [samples, I]
  const float* probability() const { return probability_; }  // [samples], or null
  const int64_t* times() const { return times_; }            // [samples], or null
  const Feature& feature(int64_t f) const { return features_[static_cast<size_t>(f)]; }

 private:
  HostBuffer<std::byte> buffer_;
  HostBuffer<float> widened_;  // the dense features, where their bytes are no fp32
  int64_t samples_ = 0;
  int64_t memory_bytes_ = 0;
  const uint8_t* labels_ = nullptr;
  const float* dense_ = nullptr;
  const float* probability_ = nullptr;
  const int64_t* times_ = nullptr;
  std::vector<Feature> features_;
};

// The id at `i` of an array of `width` bytes each; seven bytes behind the array may be read.
inline uint64_t PackedId(const std::byte* values, int32_t width, int64_t i) {
  uint64_t id;
  __builtin_memcpy(&id, values + i * width, sizeof id);
  return id & (~uint64_t{0} >> (64 - 8 * width));
}

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_PACKED_FORMAT_H_
