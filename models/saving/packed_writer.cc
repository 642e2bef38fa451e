#include "models/saving/packed_writer.h"

#include <algorithm>
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

class PackWriter {
 public:
  PackWriter(DataSource& data, const PackOptions& options, std::string dir)
      : data_(data), options_(options), env_(*options.env), dir_(std::move(dir)) {}

  absl::Status Write() {
    manifest_.schema = data_.schema();
    manifest_.block_samples = options_.block_samples;
    manifest_.one_each = true;  // as far as it is known
    HOTROW_ASSIGN_OR_RETURN(const auto identity, data_.Identity());
    manifest_.source = identity;
    manifest_.source.insert(manifest_.source.begin(), {"data", options_.source});
    if (const TableSchema* const schema = data_.table_schema(); schema != nullptr) {
      manifest_.table_schema = TableSchemaText(*schema);
    }
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      HOTROW_RETURN_IF_ERROR(WriteSplit(split));
    }
    HOTROW_RETURN_IF_ERROR(WriteVocabulary());
    HOTROW_ASSIGN_OR_RETURN(const auto identity_now, data_.Identity());
    if (identity_now != identity) {
      return absl::FailedPreconditionError(absl::StrCat(
          options_.source, ": changed while it was read; pack it when nobody writes it"));
    }
    return WriteText(kPackedManifestName, PackedManifestText(manifest_));
  }
  const PackedManifest& manifest() const { return manifest_; }

 private:
  absl::Status WriteText(const char* name, const std::string& text) {
    return WriteFileAtomically(env_, absl::StrCat(dir_, "/", name), text);
  }

  absl::Status WriteVocabulary() {
    const Vocabulary* const vocabulary = data_.vocabulary();
    if (vocabulary == nullptr || vocabulary->empty()) return absl::OkStatus();
    const std::string bytes = vocabulary->Encode();
    manifest_.vocabulary_bytes = static_cast<int64_t>(bytes.size());
    manifest_.vocabulary_crc = Crc32c(std::as_bytes(std::span(bytes)));
    return WriteText(kPackedVocabularyName, bytes);
  }

  absl::Status WriteSplit(Split split) {
    PackedManifest::SplitFile& out = manifest_.splits[static_cast<size_t>(split)];
    out.file = absl::StrCat(NameOfSplit(split), ".pack");
    HOTROW_ASSIGN_OR_RETURN(file_,
                            env_.Open(absl::StrCat(dir_, "/", out.file), OpenMode::kTruncate));
    offset_ = 0;
    places_.clear();
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataReader> reader,
                            data_.OpenSplit(split, /*epoch=*/0, /*first_sample=*/0));
    int64_t& samples = manifest_.Samples(split);
    samples = 0;
    while (true) {
      HOTROW_RETURN_IF_ERROR(reader->Next(options_.block_samples, &batch_));
      if (batch_.batch_size == 0) break;
      HOTROW_RETURN_IF_ERROR(Append(split, samples));
      samples += batch_.batch_size;
      done_ += batch_.batch_size;
      if (options_.on_progress) options_.on_progress(done_);
    }
    if (builder_ != nullptr && builder_->size() > 0) HOTROW_RETURN_IF_ERROR(FinishBlock());
    out.blocks = static_cast<int64_t>(places_.size());
    out.index_offset = offset_;
    const std::span<const std::byte> index = std::as_bytes(std::span(places_));
    out.index_crc = Crc32c(index);
    HOTROW_RETURN_IF_ERROR(WriteFull(*file_, offset_, index));
    HOTROW_RETURN_IF_ERROR(file_->Sync());
    return file_->Close();
  }

  // `before`: samples of the split that came before.
  absl::Status Append(Split split, int64_t before) {
    const bool has_weights = !batch_.weights.empty();
    const bool has_probability = !batch_.true_probability.empty();
    if (builder_ == nullptr) {
      manifest_.has_weights = has_weights;
      manifest_.has_probability = has_probability;
      builder_ = std::make_unique<PackedBlockBuilder>(manifest_);
    }
    if (manifest_.has_weights != has_weights || manifest_.has_probability != has_probability) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.source,
                       ": only some samples have weights, or probabilities; expected all or "
                       "none"));
    }
    for (int64_t begin = 0; begin < batch_.batch_size;) {
      const int64_t count =
          std::min(batch_.batch_size - begin, options_.block_samples - builder_->size());
      if (const absl::Status status = builder_->Append(batch_, begin, begin + count);
          !status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(options_.source, ", split ",
                                                       NameOfSplit(split), ", from sample ", before,
                                                       " on: ", std::string(status.message())));
      }
      begin += count;
      if (builder_->size() == options_.block_samples) HOTROW_RETURN_IF_ERROR(FinishBlock());
    }
    return absl::OkStatus();
  }

  absl::Status FinishBlock() {
    manifest_.one_each = manifest_.one_each && builder_->one_each();
    const std::span<const std::byte> block = builder_->Finish();
    if (block.size() > UINT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.source, ": a block of ", options_.block_samples, " samples takes ",
                       block.size(), " bytes, at most 2^32 - 1; give fewer --block_samples"));
    }
    places_.push_back({.offset = static_cast<uint64_t>(offset_),
                       .bytes = static_cast<uint32_t>(block.size()),
                       .crc = Crc32c(block)});
    HOTROW_RETURN_IF_ERROR(WriteFull(*file_, offset_, block));
    offset_ = RoundUp(offset_ + static_cast<int64_t>(block.size()), kPackedAlignment);
    return absl::OkStatus();
  }

  DataSource& data_;
  const PackOptions& options_;
  Env& env_;
  const std::string dir_;
  PackedManifest manifest_;
  std::unique_ptr<PackedBlockBuilder> builder_;
  std::unique_ptr<File> file_;
  int64_t offset_ = 0;  // of the next block
  std::vector<PackedBlockPlace> places_;
  CtrBatch batch_;
  int64_t done_ = 0;  // samples of all splits
};

}  // namespace

absl::StatusOr<PackedManifest> PackData(DataSource& data, const PackOptions& options) {
  if (options.block_samples < 1 || options.block_samples > kPackedBlockSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat("PackOptions.block_samples is ",
                                                   options.block_samples, ", expected one in [1, ",
                                                   kPackedBlockSamplesMax, "]"));
  }
  Env& env = *options.env;
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, options.dir));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> dir,
                          PartialDir::Create(env, options.dir));
  PackWriter writer(data, options, dir->path());
  HOTROW_RETURN_IF_ERROR(writer.Write());
  HOTROW_RETURN_IF_ERROR(dir->Commit());
  return writer.manifest();
}

}  // namespace hotrow
