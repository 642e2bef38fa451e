#include "models/saving/packed_writer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "models/data/packed_format.h"
#include "models/data/table_schema_text.h"
#include "models/data/vocabulary.h"
#include "models/saving/partial_dir_impl.h"

namespace hotrow {
namespace {

constexpr Split kSplits[] = {Split::kTrain, Split::kValid, Split::kTest};
// Samples that are asked of a source at a time: fewer than blocks have, so that those take what
// memory there is.
constexpr int64_t kBatchSamples = 1024;

class Writer : public PackedWriter {
 public:
  Writer(const DataSchema& schema, const PackOptions& options, std::unique_ptr<PartialDir> dir)
      : options_(options), env_(*options.env), dir_(std::move(dir)) {
    manifest_.schema = schema;
    manifest_.block_samples = options.block_samples;
    manifest_.dense_precision = options.dense_precision;
    manifest_.one_each = true;  // as far as it is known
    manifest_.id_bytes.assign(schema.features.size(), 1);
  }

  absl::Status Begin() {
    for (const Split split : kSplits) HOTROW_RETURN_IF_ERROR(Begin(split));
    return absl::OkStatus();
  }

  absl::Status Append(Split split, const CtrBatch& batch) override {
    const bool has_weights = !batch.weights.empty();
    const bool has_probability = !batch.true_probability.empty();
    const bool has_time = !batch.times.empty();
    if (done_ == 0) {
      manifest_.has_weights = has_weights;
      manifest_.has_probability = has_probability;
      manifest_.has_time = has_time;
      for (Part& part : parts_) part.builder = std::make_unique<PackedBlockBuilder>(manifest_);
    }
    if (batch.batch_size == 0) return absl::OkStatus();
    if ((!batch.values.empty() && manifest_.has_weights != has_weights) ||
        manifest_.has_probability != has_probability || manifest_.has_time != has_time) {
      return absl::InvalidArgumentError(absl::StrCat(
          options_.source,
          ": only some samples have weights, probabilities or times; expected all or none"));
    }
    Part& part = parts_[static_cast<size_t>(split)];
    int64_t& samples = manifest_.Samples(split);
    for (int64_t begin = 0; begin < batch.batch_size;) {
      const int64_t count =
          std::min(batch.batch_size - begin, options_.block_samples - part.builder->size());
      HOTROW_RETURN_IF_ERROR(CheckMemory(part, batch, begin, begin + count));
      if (const absl::Status status = part.builder->Append(batch, begin, begin + count);
          !status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(options_.source, ", split ", std::string(WordOf(kSplitWords, split)),
                         ", from sample ", samples, " on: ", std::string(status.message())));
      }
      begin += count;
      if (part.builder->size() == options_.block_samples) {
        HOTROW_RETURN_IF_ERROR(FinishBlock(&part));
      }
    }
    samples += batch.batch_size;
    done_ += batch.batch_size;
    if (options_.on_progress) options_.on_progress(done_);
    return absl::OkStatus();
  }

  absl::StatusOr<PackedManifest> Finish(const Origin& origin) override {
    if (manifest_.schema.train_samples == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.source, ": no sample goes to the training split"));
    }
    manifest_.source = origin.source;
    manifest_.source.insert(manifest_.source.begin(), {"data", options_.source});
    if (origin.table_schema != nullptr) {
      manifest_.table_schema = TableSchemaText(*origin.table_schema);
    }
    for (const Split split : kSplits) HOTROW_RETURN_IF_ERROR(End(split));
    HOTROW_RETURN_IF_ERROR(WriteVocabulary(origin.vocabulary));
    HOTROW_RETURN_IF_ERROR(WriteText(kPackedManifestName, PackedManifestText(manifest_)));
    HOTROW_RETURN_IF_ERROR(dir_->Commit());
    return manifest_;
  }

 private:
  // What is written of a split.
  struct Part {
    std::unique_ptr<File> file;
    std::unique_ptr<PackedBlockBuilder> builder;
    int64_t offset = 0;  // of the next block
    std::vector<PackedBlockPlace> places;
  };

  // Whether samples [begin, end) of the batch may come to the others.
  absl::Status CheckMemory(const Part& part, const CtrBatch& batch, int64_t begin,
                           int64_t end) const {
    int64_t lookups = 0;
    for (size_t f = 0; f < manifest_.schema.features.size(); ++f) {
      const int64_t* const offsets =
          batch.offsets.data() + static_cast<int64_t>(f) * batch.batch_size;
      lookups += offsets[end] - offsets[begin];
    }
    int64_t bytes = BatchBytes(batch);
    int64_t samples = end - begin;
    for (const Part& one : parts_) {
      const bool grows = &one == &part;
      bytes += one.builder->MemoryBytesWith(grows ? samples : 0, grows ? lookups : 0);
    }
    if (bytes <= options_.memory_bytes) return absl::OkStatus();
    for (const Part& one : parts_) samples += one.builder->size();
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.source, ": blocks of ", options_.block_samples, " samples take more than the ",
        options_.memory_bytes, " bytes of memory that there are for them: ", bytes, " with ",
        samples, " samples; give more --memory_bytes, or fewer --block_samples"));
  }

  // Twice, since its maker has the samples, too.
  static int64_t BatchBytes(const CtrBatch& batch) {
    const size_t floats = batch.labels.size() + batch.dense.size() + batch.weights.size() +
                          batch.true_probability.size();
    return 2 *
           static_cast<int64_t>(floats * sizeof(float) +
                                (batch.values.size() + batch.offsets.size() + batch.times.size()) *
                                    sizeof(int64_t));
  }

  std::string Path(const std::string& name) const { return absl::StrCat(dir_->path(), "/", name); }

  absl::Status WriteText(const char* name, const std::string& text) {
    return WriteFileAtomically(env_, Path(name), text);
  }

  absl::Status WriteVocabulary(const Vocabulary* vocabulary) {
    if (vocabulary == nullptr || vocabulary->empty()) return absl::OkStatus();
    const std::string bytes = vocabulary->Encode();
    manifest_.vocabulary_bytes = static_cast<int64_t>(bytes.size());
    manifest_.vocabulary_crc = Crc32c(std::as_bytes(std::span(bytes)));
    return WriteText(kPackedVocabularyName, bytes);
  }

  absl::Status Begin(Split split) {
    Part& part = parts_[static_cast<size_t>(split)];
    manifest_.Samples(split) = 0;
    PackedManifest::SplitFile& out = manifest_.splits[static_cast<size_t>(split)];
    out.file = absl::StrCat(std::string(WordOf(kSplitWords, split)), ".pack");
    HOTROW_ASSIGN_OR_RETURN(part.file, env_.Open(Path(out.file), OpenMode::kTruncate));
    return absl::OkStatus();
  }

  absl::Status End(Split split) {
    Part& part = parts_[static_cast<size_t>(split)];
    if (part.builder != nullptr && part.builder->size() > 0) {
      HOTROW_RETURN_IF_ERROR(FinishBlock(&part));
    }
    PackedManifest::SplitFile& out = manifest_.splits[static_cast<size_t>(split)];
    out.blocks = static_cast<int64_t>(part.places.size());
    out.index_offset = part.offset;
    const std::span<const std::byte> index = std::as_bytes(std::span(part.places));
    out.index_crc = Crc32c(index);
    HOTROW_RETURN_IF_ERROR(WriteFull(*part.file, part.offset, index));
    HOTROW_RETURN_IF_ERROR(part.file->Sync());
    return part.file->Close();
  }

  absl::Status FinishBlock(Part* part) {
    manifest_.one_each = manifest_.one_each && part->builder->one_each();
    const std::span<const std::byte> block = part->builder->Finish();
    for (size_t f = 0; f < manifest_.id_bytes.size(); ++f) {
      manifest_.id_bytes[f] =
          std::max(manifest_.id_bytes[f], part->builder->id_bytes(static_cast<int64_t>(f)));
    }
    if (block.size() > UINT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.source, ": a block of ", options_.block_samples, " samples takes ",
                       block.size(), " bytes, at most 2^32 - 1; give fewer --block_samples"));
    }
    part->places.push_back({.offset = static_cast<uint64_t>(part->offset),
                            .bytes = static_cast<uint32_t>(block.size()),
                            .crc = Crc32c(block)});
    HOTROW_RETURN_IF_ERROR(WriteFull(*part->file, part->offset, block));
    part->offset = RoundUp(part->offset + static_cast<int64_t>(block.size()), kPackedAlignment);
    return absl::OkStatus();
  }

  const PackOptions options_;
  Env& env_;
  const std::unique_ptr<PartialDir> dir_;
  PackedManifest manifest_;
  std::array<Part, 3> parts_;  // by Split
  int64_t done_ = 0;           // samples of all splits
};

}  // namespace

absl::StatusOr<std::unique_ptr<PackedWriter>> PackedWriter::Create(const DataSchema& schema,
                                                                   const PackOptions& options) {
  if (options.block_samples < 1 || options.block_samples > kPackedBlockSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat("PackOptions.block_samples is ",
                                                   options.block_samples, ", expected one in [1, ",
                                                   kPackedBlockSamplesMax, "]"));
  }
  Env& env = *options.env;
  // The name beside which it is written, so without a slash at its end.
  std::string name = std::filesystem::path(options.dir).lexically_normal().string();
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  if (name.empty() || name == "." || name.find(',') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "packed data: the directory's name is \"", options.dir, "\", expected one ",
        name.find(',') != std::string::npos ? "without a comma, which separates those of --data"
                                            : "that does not exist, or is empty"));
  }
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, name));
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<PartialDir> dir, PartialDir::Create(env, name));
  auto writer = std::make_unique<Writer>(schema, options, std::move(dir));
  HOTROW_RETURN_IF_ERROR(writer->Begin());
  return writer;
}

absl::StatusOr<PackedManifest> PackData(DataSource& data, const PackOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(auto identity, data.Identity());
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PackedWriter> writer,
                          PackedWriter::Create(data.schema(), options));
  HOTROW_RETURN_IF_ERROR(data.ReadAll(
      std::min(options.block_samples, kBatchSamples),
      [&](Split split, const CtrBatch& batch) { return writer->Append(split, batch); }));
  HOTROW_ASSIGN_OR_RETURN(const auto identity_now, data.Identity());
  if (identity_now != identity) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.source, ": changed while it was read; pack it when nobody writes it"));
  }
  return writer->Finish({.source = std::move(identity),
                         .table_schema = data.table_schema(),
                         .vocabulary = data.vocabulary()});
}

}  // namespace hotrow
