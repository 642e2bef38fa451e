#include "models/data/packed_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/format_version.h"
#include "base/math.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/json/json_members_impl.h"
#include "models/json/sealed_json.h"
#include "ops/rows/row_codec.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "hotrow.packed_data";
constexpr FormatVersions kVersions = {.first = 1, .last = 1};
constexpr int64_t kColumnAlignment = 64;
// In `requires`: dense features lie in two bytes each.
constexpr char kFp16Dense[] = "fp16_dense";
// In `requires`: blocks have a column of times.
constexpr char kTime[] = "time";
constexpr int32_t kIdBytesMax = sizeof(uint64_t);
constexpr auto kHalfBytes = static_cast<int64_t>(sizeof(uint16_t));
constexpr float kFp16Max = 65504;

// What a block begins with, then one FeatureHead for each feature.
struct BlockHead {
  uint32_t samples;
  uint32_t features;
};
struct FeatureHead {
  uint32_t lookups;
  uint16_t width;        // bytes of an id
  uint16_t has_lengths;  // 0: each sample has one lookup
};
static_assert(sizeof(BlockHead) == 8 && sizeof(FeatureHead) == 8);

std::string CrcWord(uint32_t crc) { return absl::StrFormat("%08x", crc); }

absl::Status Damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, ": damaged: ", std::string(what), "; pack the data again"));
}

// Numbers of two bytes each as what they stand for.
absl::Status WidenHalves(const std::byte* in, int64_t count, float* out) {
  constexpr int64_t kAtOnce = 1 << 20;  // as rows, which are not as long as columns may be
  for (int64_t at = 0; at < count; at += kAtOnce) {
    const RowRun run = {.end = 1, .dim = static_cast<int32_t>(std::min(kAtOnce, count - at))};
    float* const row = out + at;
    HOTROW_RETURN_IF_ERROR(DecodeRows(ExecContext(), {.type = ExchangeType::kFp16,
                                                      .runs = {&run, 1},
                                                      .in = in + at * kHalfBytes,
                                                      .rows = &row}));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t& PackedManifest::Samples(Split split) {
  return split == Split::kTrain   ? schema.train_samples
         : split == Split::kValid ? schema.valid_samples
                                  : schema.test_samples;
}
int64_t PackedManifest::Samples(Split split) const {
  return const_cast<PackedManifest*>(this)->Samples(split);
}

int64_t PackedManifest::SplitBytes() const {
  int64_t bytes = 0;
  for (const SplitFile& split : splits) {
    bytes += split.index_offset + split.blocks * static_cast<int64_t>(sizeof(PackedBlockPlace));
  }
  return bytes;
}

int64_t PackedManifest::WidenedBytes(int64_t samples) const {
  if (dense_precision == PackedPrecision::kFp32) return 0;
  return samples * schema.num_dense * static_cast<int64_t>(sizeof(float));
}

std::string PackedManifestText(const PackedManifest& manifest) {
  Json json = {{"format", kFormat}, {"version", kVersions.last}, {"requires", Json::array()}};
  if (manifest.dense_precision == PackedPrecision::kFp16) json["requires"].push_back(kFp16Dense);
  if (manifest.has_time) json["requires"].push_back(kTime);
  json["name"] = manifest.schema.name;
  json["labels"] = manifest.schema.labels;
  json["num_dense"] = manifest.schema.num_dense;
  if (!manifest.schema.dense.empty()) json["dense"] = manifest.schema.dense;
  json["features"] = Json::array();
  for (size_t f = 0; f < manifest.schema.features.size(); ++f) {
    const DataFeature& feature = manifest.schema.features[f];
    json["features"].push_back({{"name", feature.name},
                                {"table", feature.table},
                                {"num_embeddings", feature.num_embeddings},
                                {"max_hotness", feature.max_hotness},
                                {"id_bytes", manifest.id_bytes[f]}});
  }
  json["block_samples"] = manifest.block_samples;
  json["weights"] = manifest.has_weights;
  json["true_probability"] = manifest.has_probability;
  json["one_lookup_each"] = manifest.one_each;
  json["table_schema"] = manifest.table_schema;
  json["vocabulary"] = {{"bytes", manifest.vocabulary_bytes},
                        {"crc32c", CrcWord(manifest.vocabulary_crc)}};
  json["source"] = StringsToJson(manifest.source);
  json["splits"] = Json::array();
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const PackedManifest::SplitFile& file = manifest.splits[static_cast<size_t>(split)];
    json["splits"].push_back({{"split", WordOf(kSplitWords, split)},
                              {"file", file.file},
                              {"samples", manifest.Samples(split)},
                              {"blocks", file.blocks},
                              {"index_offset", file.index_offset},
                              {"index_crc32c", CrcWord(file.index_crc)}});
  }
  return SealJson(std::move(json));
}

absl::StatusOr<PackedManifest> ReadPackedManifest(Env& env, const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/", kPackedManifestName);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    HOTROW_ASSIGN_OR_RETURN(const bool is_there, env.Exists(dir));
    const std::string what = absl::StrCat(
        dir, is_there ? ": holds no packed data (pack.json)" : ": no file or directory",
        "; `hotrow pack SOURCE ", dir, "` makes them");
    return is_there ? absl::InvalidArgumentError(what) : absl::NotFoundError(what);
  }
  HOTROW_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  const absl::StatusOr<Json> json = OpenSealedJson(std::move(text));
  if (!json.ok()) return Damaged(path, std::string(json.status().message()));
  std::string wrong;
  JsonMembers top(*json, "", &wrong);
  if (top.String("format") != kFormat) return Damaged(path, "it is no manifest of packed data");
  const int64_t version = top.Count("version");
  const Json& required = top.Array("requires");
  if (!wrong.empty()) return Damaged(path, wrong);
  HOTROW_RETURN_IF_ERROR(CheckFormatVersion(path, "packed data of version",
                                            static_cast<uint64_t>(version), kVersions));
  PackedManifest out;
  for (const Json& feature : required) {
    if (feature != kFp16Dense && feature != kTime) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": requires ", DescribeJson(feature),
                       ", which this build does not know; open it with a newer hotrow"));
    }
    if (feature == kFp16Dense) out.dense_precision = PackedPrecision::kFp16;
    if (feature == kTime) out.has_time = true;
  }
  out.schema.name = top.String("name");
  const auto names = [&](const char* member) {
    std::vector<std::string> read;
    for (const Json& name : top.Array(member)) {
      if (!name.is_string()) {
        top.Wrong(member, name, "names");
        break;
      }
      read.push_back(name.get<std::string>());
    }
    return read;
  };
  out.schema.labels = names("labels");
  if (out.schema.labels.empty()) top.Wrong("labels", Json(), "at least one name");
  out.schema.num_dense = static_cast<int32_t>(top.Count("num_dense", INT32_MAX));
  if (top.Has("dense")) out.schema.dense = names("dense");
  if (!out.schema.dense.empty() && std::ssize(out.schema.dense) != out.schema.num_dense) {
    top.Wrong("dense", out.schema.dense, "num_dense of them");
  }
  const Json& features = top.Array("features");
  for (size_t f = 0; f < features.size(); ++f) {
    JsonMembers feature(features[f], absl::StrCat("features[", f, "]"), &wrong);
    out.schema.features.push_back({.name = feature.String("name"),
                                   .table = feature.String("table"),
                                   .num_embeddings = feature.Count("num_embeddings"),
                                   .max_hotness = feature.Count("max_hotness")});
    // The first packs do not say it.
    out.id_bytes.push_back(feature.Has("id_bytes")
                               ? static_cast<int32_t>(feature.Count("id_bytes", 1, kIdBytesMax))
                               : kIdBytesMax);
  }
  out.block_samples = top.Count("block_samples", 1, kPackedBlockSamplesMax);
  out.has_weights = top.Bool("weights");
  out.has_probability = top.Bool("true_probability");
  out.one_each = top.Bool("one_lookup_each");
  out.table_schema = top.String("table_schema");
  {
    JsonMembers vocabulary(top.Object("vocabulary"), "vocabulary", &wrong);
    out.vocabulary_bytes = vocabulary.Count("bytes");
    out.vocabulary_crc = vocabulary.Crc("crc32c");
  }
  out.source = top.Strings("source");
  const Json& splits = top.Array("splits");
  if (splits.size() != out.splits.size()) top.Wrong("splits", splits, "three of them");
  for (size_t s = 0; wrong.empty() && s < out.splits.size(); ++s) {
    JsonMembers split(splits[s], absl::StrCat("splits[", s, "]"), &wrong);
    out.splits[s] = {.file = split.FileName("file"),
                     .blocks = split.Count("blocks"),
                     .index_offset = split.Count("index_offset"),
                     .index_crc = split.Crc("index_crc32c")};
    int64_t& samples = out.Samples(static_cast<Split>(s));
    samples = split.Count("samples");
    if (wrong.empty() && CeilDiv(samples, out.block_samples) != out.splits[s].blocks) {
      split.Wrong("blocks", splits[s]["blocks"], "what `samples` needs");
    }
  }
  if (!wrong.empty()) return Damaged(path, wrong);
  return out;
}

absl::StatusOr<std::vector<PackedBlockPlace>> ReadPackedIndex(Env& env, const std::string& dir,
                                                              const PackedManifest& manifest,
                                                              Split split) {
  const PackedManifest::SplitFile& of = manifest.splits[static_cast<size_t>(split)];
  const std::string path = absl::StrCat(dir, "/", of.file);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  constexpr auto kPlace = static_cast<int64_t>(sizeof(PackedBlockPlace));
  // Before memory is taken.
  if (of.index_offset > size || of.blocks > (size - of.index_offset) / kPlace) {
    return Damaged(path, absl::StrCat("it has ", size, " bytes and ends before its index"));
  }
  std::vector<PackedBlockPlace> places(static_cast<size_t>(of.blocks));
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(places));
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, of.index_offset, bytes));
  if (Crc32c(bytes) != of.index_crc) {
    return Damaged(path, "the checksum of its index is not that of pack.json");
  }
  for (const PackedBlockPlace& place : places) {
    if (place.offset > static_cast<uint64_t>(of.index_offset) ||
        place.bytes > static_cast<uint64_t>(of.index_offset) - place.offset) {
      return Damaged(path, "its index names bytes that are not there");
    }
  }
  return places;
}

// --- Blocks
// ----------------------------------------------------------------------------------------

PackedBlockBuilder::PackedBlockBuilder(const PackedManifest& manifest)
    : num_dense_(manifest.schema.num_dense),
      num_labels_(static_cast<int64_t>(manifest.schema.labels.size())),
      dense_precision_(manifest.dense_precision),
      has_weights_(manifest.has_weights),
      has_probability_(manifest.has_probability),
      has_time_(manifest.has_time),
      columns_(manifest.schema.features.size()) {
  for (size_t f = 0; f < columns_.size(); ++f) {
    const int64_t most = manifest.schema.features[f].max_hotness;
    if (most > 0) columns_[f].lookups_max = std::min(most, columns_[f].lookups_max);
  }
}

absl::Status PackedBlockBuilder::Append(const CtrBatch& batch, int64_t begin, int64_t end) {
  const auto wrong = [&](int64_t sample, std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("sample ", sample, " of the batch: ", std::string(what)));
  };
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t t = 0; t < num_labels_; ++t) {
      const float label = batch.labels[static_cast<size_t>(i * num_labels_ + t)];
      if (label != 0 && label != 1) {
        return wrong(i, absl::StrCat("label ", label, ", expected 0 or 1"));
      }
      labels_.push_back(label != 0);
    }
  }
  const auto copy = [&](std::span<const float> from, int64_t each, std::vector<float>* to) {
    to->insert(to->end(), from.begin() + begin * each, from.begin() + end * each);
  };
  const auto bad = [](float x) { return !std::isfinite(x); };
  for (int64_t at = begin * num_dense_; at < end * num_dense_; ++at) {
    const float number = batch.dense[static_cast<size_t>(at)];
    const bool too_large =
        dense_precision_ == PackedPrecision::kFp16 && std::abs(number) > kFp16Max;
    if (bad(number) || too_large) {
      return wrong(at / num_dense_,
                   absl::StrCat("dense feature ", at % num_dense_, " is ", number, ", expected ",
                                bad(number) ? "a finite number"
                                            : "one in [-65504, 65504] for fp16; fp32 has more"));
    }
  }
  copy(batch.dense, num_dense_, &dense_);
  if (has_probability_) copy(batch.true_probability, 1, &probability_);
  if (has_time_) {
    times_.insert(times_.end(), batch.times.begin() + begin, batch.times.begin() + end);
  }
  for (size_t f = 0; f < columns_.size(); ++f) {
    Column& column = columns_[f];
    const int64_t* const offsets =
        batch.offsets.data() + static_cast<int64_t>(f) * batch.batch_size;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t length = offsets[i + 1] - offsets[i];
      if (length > column.lookups_max) {
        return wrong(i, absl::StrCat("feature ", f, " has ", length, " lookups, at most ",
                                     column.lookups_max));
      }
      column.one_each = column.one_each && length == 1;
      column.lengths.push_back(static_cast<uint16_t>(length));
    }
    column.values.insert(column.values.end(), batch.values.begin() + offsets[begin],
                         batch.values.begin() + offsets[end]);
    if (has_weights_) {
      for (int64_t i = begin; i < end; ++i) {
        if (std::any_of(batch.weights.begin() + offsets[i], batch.weights.begin() + offsets[i + 1],
                        bad)) {
          return wrong(i, absl::StrCat("a weight of feature ", f, " is not finite"));
        }
      }
      column.weights.insert(column.weights.end(), batch.weights.begin() + offsets[begin],
                            batch.weights.begin() + offsets[end]);
    }
  }
  size_ += end - begin;
  memory_bytes_ = MemoryBytesWith(0, 0);
  return absl::OkStatus();
}

int64_t PackedBlockBuilder::MemoryBytesWith(int64_t samples, int64_t lookups) const {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  for (const Column& column : columns_) lookups += std::ssize(column.values);
  const int64_t sample_bytes = num_labels_ + kFloatBytes * (num_dense_ + has_probability_) +
                               (has_time_ ? static_cast<int64_t>(sizeof(int64_t)) : 0) +
                               static_cast<int64_t>(columns_.size() * sizeof(uint16_t));
  const int64_t lookup_bytes =
      static_cast<int64_t>(sizeof(uint64_t)) + (has_weights_ ? kFloatBytes : 0);
  // Vectors that grew take up to twice what they hold. The bytes of the block are no more, and
  // twice that for the moment in which their room grows; one vector that grows is less.
  return std::max(memory_bytes_, 4 * ((size_ + samples) * sample_bytes + lookups * lookup_bytes));
}

bool PackedBlockBuilder::one_each() const {
  return std::all_of(columns_.begin(), columns_.end(),
                     [](const Column& column) { return column.one_each; });
}

std::span<const std::byte> PackedBlockBuilder::Finish() {
  bytes_.clear();
  bytes_.reserve(static_cast<size_t>(memory_bytes_) / 4 + sizeof(BlockHead) +
                 (columns_.size() + 1) * (sizeof(FeatureHead) + 4 * kColumnAlignment));
  const auto put = [this](const void* data, size_t bytes) {
    const auto* const from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
  };
  const auto align = [this] {
    bytes_.resize(
        static_cast<size_t>(RoundUp(static_cast<int64_t>(bytes_.size()), kColumnAlignment)));
  };
  const auto put_column = [&](const auto& column) {
    align();
    put(column.data(), column.size() * sizeof(column[0]));
  };
  const BlockHead head = {static_cast<uint32_t>(size_), static_cast<uint32_t>(columns_.size())};
  put(&head, sizeof head);
  std::vector<uint16_t> widths;
  for (Column& column : columns_) {
    uint64_t all = 0;
    for (const uint64_t id : column.values) all |= id;
    const auto width = static_cast<uint16_t>(CeilDiv(std::bit_width(all | 1), 8));
    widths.push_back(width);
    column.id_bytes = std::max<int32_t>(column.id_bytes, width);
    const FeatureHead feature = {static_cast<uint32_t>(column.values.size()), width,
                                 static_cast<uint16_t>(!column.one_each)};
    put(&feature, sizeof feature);
  }
  put_column(labels_);
  if (dense_precision_ == PackedPrecision::kFp16) {
    std::vector<uint16_t> halves(dense_.size());
    NarrowWeights(WeightsPrecision::kFp16, dense_, reinterpret_cast<std::byte*>(halves.data()));
    put_column(halves);
  } else {
    put_column(dense_);
  }
  put_column(probability_);
  if (has_time_) put_column(times_);
  for (size_t f = 0; f < columns_.size(); ++f) {
    Column& column = columns_[f];
    if (!column.one_each) put_column(column.lengths);
    align();
    const size_t at = bytes_.size();
    const size_t width = widths[f];
    // A store of eight bytes each, of which the next overwrites what is not the id's.
    bytes_.resize(at + column.values.size() * width + sizeof(uint64_t));
    for (size_t i = 0; i < column.values.size(); ++i) {
      std::memcpy(bytes_.data() + at + i * width, &column.values[i], sizeof(uint64_t));
    }
    bytes_.resize(at + column.values.size() * width);
    put_column(column.weights);
    column.values.clear();
    column.lengths.clear();
    column.weights.clear();
    column.one_each = true;
  }
  align();
  labels_.clear();
  dense_.clear();
  probability_.clear();
  times_.clear();
  size_ = 0;
  return bytes_;
}

absl::Status PackedBlock::Reserve(int64_t bytes) {
  // PackedId reads on behind the last id.
  return buffer_.Reserve(RoundUp(bytes, kColumnAlignment) + kColumnAlignment);
}

absl::Status PackedBlock::Open(const PackedManifest& manifest, int64_t size, int64_t samples) {
  const auto num_features = static_cast<int64_t>(manifest.schema.features.size());
  const auto num_labels = static_cast<int64_t>(manifest.schema.labels.size());
  const std::byte* const bytes = buffer_.data();
  BlockHead head = {};
  const int64_t heads = sizeof(BlockHead) + num_features * sizeof(FeatureHead);
  if (size < heads) return absl::DataLossError("it ends in its head");
  std::memcpy(&head, bytes, sizeof head);
  if (head.samples != samples || head.features != num_features) {
    return absl::DataLossError(absl::StrCat("it has ", head.samples, " samples of ", head.features,
                                            " features, expected ", samples, " of ", num_features));
  }
  int64_t at = heads;
  bool fits = true;
  // The next column of so many bytes. No number of these can overflow: sizes have 32 bits.
  const auto column = [&](int64_t column_bytes) -> const std::byte* {
    at = RoundUp(at, kColumnAlignment);
    fits = fits && column_bytes <= size - at;
    if (!fits) return nullptr;
    const std::byte* const begin = bytes + at;
    at += column_bytes;
    return begin;
  };
  const auto floats = [&](int64_t count) {
    return reinterpret_cast<const float*>(column(count * static_cast<int64_t>(sizeof(float))));
  };
  samples_ = samples;
  labels_ = reinterpret_cast<const uint8_t*>(column(samples * num_labels));
  const int64_t numbers = samples * manifest.schema.num_dense;
  const bool widen = manifest.dense_precision == PackedPrecision::kFp16;
  const std::byte* const dense =
      column(numbers * (widen ? kHalfBytes : static_cast<int64_t>(sizeof(float))));
  probability_ = floats(manifest.has_probability ? samples : 0);
  if (!manifest.has_probability) probability_ = nullptr;
  times_ = nullptr;
  if (manifest.has_time) {
    times_ =
        reinterpret_cast<const int64_t*>(column(samples * static_cast<int64_t>(sizeof(int64_t))));
  }
  if (!fits) return absl::DataLossError("it ends in its labels, dense features or times");
  dense_ = reinterpret_cast<const float*>(dense);
  if (widen) {
    HOTROW_RETURN_IF_ERROR(widened_.Reserve(numbers));
    HOTROW_RETURN_IF_ERROR(WidenHalves(dense, numbers, widened_.data()));
    dense_ = widened_.data();
  }
  memory_bytes_ = buffer_.bytes() + widened_.bytes();
  features_.resize(static_cast<size_t>(num_features));
  for (int64_t f = 0; f < num_features; ++f) {
    FeatureHead of = {};
    std::memcpy(&of, bytes + sizeof head + static_cast<size_t>(f) * sizeof of, sizeof of);
    if (of.width < 1 || of.width > manifest.id_bytes[static_cast<size_t>(f)] ||
        of.has_lengths > 1 || (of.has_lengths == 0 && of.lookups != samples) ||
        (of.has_lengths == 1 && manifest.one_each)) {
      return absl::DataLossError(absl::StrCat("the head of feature ", f, " is wrong"));
    }
    Feature& feature = features_[static_cast<size_t>(f)];
    feature.width = of.width;
    feature.lookups = of.lookups;
    feature.begins.clear();
    const std::byte* const lengths =
        of.has_lengths == 0 ? nullptr : column(samples * static_cast<int64_t>(sizeof(uint16_t)));
    feature.values = column(feature.lookups * feature.width);
    const float* const weights = floats(manifest.has_weights ? feature.lookups : 0);
    feature.weights = manifest.has_weights ? weights : nullptr;
    if (!fits) return absl::DataLossError(absl::StrCat("it ends in feature ", f));
    if (lengths == nullptr) continue;
    feature.begins.resize(static_cast<size_t>(samples) + 1);
    memory_bytes_ += (samples + 1) * static_cast<int64_t>(sizeof(uint32_t));
    uint64_t sum = 0;
    for (int64_t i = 0; i < samples; ++i) {
      feature.begins[static_cast<size_t>(i)] = static_cast<uint32_t>(sum);
      uint16_t length;
      std::memcpy(&length, lengths + i * static_cast<int64_t>(sizeof length), sizeof length);
      sum += length;
    }
    feature.begins.back() = static_cast<uint32_t>(sum);
    if (sum != of.lookups) {
      return absl::DataLossError(absl::StrCat("the lengths of feature ", f, " make ", sum,
                                              " lookups, its head says ", of.lookups));
    }
  }
  return absl::OkStatus();
}

}  // namespace hotrow
