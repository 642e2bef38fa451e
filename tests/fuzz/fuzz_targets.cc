#include "tests/fuzz/fuzz_targets.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/exposition_reader.h"
#include "base/status_macros.h"
#include "models/data/byte_stream.h"
#include "models/data/npy.h"
#include "models/data/sample_block.h"
#include "models/data/table_reader.h"
#include "models/data/table_schema.h"
#include "models/data/table_source.h"
#include "models/data/zip_archive.h"
#include "tools/top_screen.h"

namespace hotrow::fuzz {
namespace {

// Decompressed bytes looked at; an input of a few bytes can stand for gigabytes.
constexpr int64_t kMaxInflatedBytes = 1 << 22;

std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A file that is a view of bytes.
class BytesFile : public File {
 public:
  explicit BytesFile(std::string_view bytes) : bytes_(bytes) {}
  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
    HOTROW_CHECK(offset >= 0);
    const auto size = static_cast<int64_t>(bytes_.size());
    if (offset >= size) return 0;
    const int64_t n = std::min(size - offset, static_cast<int64_t>(bytes.size()));
    if (n > 0) std::memcpy(bytes.data(), bytes_.data() + offset, static_cast<size_t>(n));
    return n;
  }
  absl::StatusOr<int64_t> WriteAt(int64_t, std::span<const std::byte>) override {
    return absl::PermissionDeniedError("read only");
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Size() override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status Truncate(int64_t) override { return absl::PermissionDeniedError("read only"); }
  absl::Status Close() override { return absl::OkStatus(); }
  const std::string& path() const override { return path_; }

 private:
  std::string_view bytes_;
  std::string path_ = "input";
};

void ReadToEnd(ByteStream& stream) {
  std::vector<std::byte> block(10'007);
  for (int64_t bytes = 0; bytes < kMaxInflatedBytes;) {
    const auto got = stream.Read(block);
    if (!got.ok() || *got == 0) return;
    HOTROW_CHECK(*got <= static_cast<int64_t>(block.size()));
    bytes += *got;
  }
}

constexpr const char* kEverything = R"({
  "files": {"train": ["input"]}, "trim": true, "quotes": true,
  "columns": [
    {"name": "y", "role": "label", "values": {"1": 1, "0": 0, "": "drop"}},
    {"name": "a", "role": "dense", "transform": "log1p"},
    {"name": "b", "role": "dense"},
    {"name": "a_range", "column": "a", "role": "categorical", "key": "bucket",
     "boundaries": [-1, 0, 10]},
    {"name": "c", "role": "categorical", "key": "integer", "num_embeddings": 100, "missing": 0},
    {"name": "d", "role": "categorical", "separator": "|", "max_hotness": 3, "modulo": 10},
    {"name": "e", "role": "categorical", "key": "integer", "separator": " "}
  ]})";

hotrow::TableSchema SchemaFor(uint8_t choice) {
  switch (choice % 3) {
    case 0:
      return CriteoSchema({"input"});
    case 1:
      return CensusSchema({"input"});
    default: {
      auto schema = ParseTableSchema(kEverything, "schema");
      HOTROW_CHECK(schema.ok());
      return *std::move(schema);
    }
  }
}

void CheckSample(const DataSchema& schema, const Sample& sample) {
  HOTROW_CHECK(sample.label == 0 || sample.label == 1);
  HOTROW_CHECK(static_cast<int32_t>(sample.dense.size()) == schema.num_dense);
  HOTROW_CHECK(sample.lengths.size() == schema.features.size());
  for (const float x : sample.dense) HOTROW_CHECK(std::isfinite(x));
  size_t at = 0;
  for (size_t f = 0; f < sample.lengths.size(); ++f) {
    const DataFeature& feature = schema.features[f];
    if (feature.max_hotness > 0) HOTROW_CHECK(sample.lengths[f] <= feature.max_hotness);
    for (int j = 0; j < sample.lengths[f]; ++j, ++at) {
      HOTROW_CHECK(at < sample.values.size());
      if (feature.num_embeddings == 0) continue;
      HOTROW_CHECK(sample.values[at] < static_cast<uint64_t>(feature.num_embeddings));
    }
  }
  HOTROW_CHECK(at == sample.values.size());
}

}  // namespace

void Table(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const hotrow::TableSchema schema = SchemaFor(data[0]);
  const DataSchema data_schema = DataSchemaOf(schema);
  const std::string_view text = Text(data + 1, size - 1);
  TableReader reader(&schema, schema.files[0], [&](const std::string&) {
    return absl::StatusOr<std::unique_ptr<ByteStream>>(NewMemoryStream(text));
  });
  SampleBlock block(data_schema.num_dense, static_cast<int32_t>(data_schema.features.size()));
  Sample sample;
  while (true) {
    const auto found = reader.Next(&sample);
    if (!found.ok() || !*found) break;
    CheckSample(data_schema, sample);
    block.Append(sample);
  }
  std::vector<SampleRef> refs;
  for (int64_t i = 0; i < block.size(); ++i) refs.push_back({&block, i});
  CtrBatch batch;
  GatherSamples(refs, block.num_dense(), block.num_features(), &batch);
  HOTROW_CHECK(batch.offsets.back() == static_cast<int64_t>(batch.values.size()));
}

void Gzip(const uint8_t* data, size_t size) {
  for (const Compression kind : {Compression::kGzip, Compression::kRaw}) {
    ReadToEnd(*NewInflateStream(NewMemoryStream(Text(data, size)), kind, "input"));
  }
}

void NpyHeader(const uint8_t* data, size_t size) {
  const std::string_view bytes = Text(data, size);
  const auto parsed = ParseNpyHeader(bytes);
  const auto stream = NewMemoryStream(bytes);
  const auto read = ReadNpyHeader(*stream, "input");
  HOTROW_CHECK(parsed.ok() == read.ok());
  if (!parsed.ok()) return;
  HOTROW_CHECK(parsed->shape == read->shape);
  HOTROW_CHECK(parsed->header_bytes <= static_cast<int64_t>(size));
  HOTROW_CHECK(parsed->data_bytes >= 0);
  HOTROW_CHECK(parsed->row_bytes() >= 0);
  HOTROW_CHECK(!parsed->ShapeText().empty());
}

void ZipArchive(const uint8_t* data, size_t size) {
  const auto archive = hotrow::ZipArchive::Open(std::make_shared<BytesFile>(Text(data, size)));
  if (!archive.ok()) return;
  // A few members are as good as a thousand.
  for (size_t i = 0; i < std::min<size_t>(archive->members().size(), 4); ++i) {
    for (const bool skip : {false, true}) {
      auto stream = archive->OpenMember(archive->members()[i]);
      if (!stream.ok()) continue;
      const int64_t bytes = archive->members()[i].bytes;
      if (skip && (bytes > kMaxInflatedBytes || !(*stream)->Skip(bytes / 2).ok())) continue;
      ReadToEnd(**stream);
    }
  }
}

void TableSchema(const uint8_t* data, size_t size) {
  const auto schema = ParseTableSchema(Text(data, size), "dir/input");
  if (!schema.ok()) {
    HOTROW_CHECK(!schema.status().message().empty());
    return;
  }
  const DataSchema data_schema = DataSchemaOf(*schema);
  HOTROW_CHECK(data_schema.num_dense + data_schema.features.size() > 0);
}

void MetricsText(const uint8_t* data, size_t size) {
  const absl::StatusOr<MetricFamilies> families = ParseExposition(Text(data, size));
  if (!families.ok()) return;
  for (const char c : TopScreen({}, *families, TopStateOf(*families).unix_seconds, 20)) {
    HOTROW_CHECK(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  }
}

}  // namespace hotrow::fuzz
