#include "cache/access_trace.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/env.h"
#include "base/format_version.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace hotrow {
namespace {

// docs/formats/trace.md. All numbers are little-endian, as is every machine that we build for.
static_assert(std::endian::native == std::endian::little);

constexpr FormatVersions kVersions = {.first = 1, .last = 1};
constexpr uint32_t kStepBlock = 0x50455453;  // "STEP"
constexpr uint32_t kEndBlock = 0x2e444e45;   // "END."
constexpr int64_t kHeaderBytesMax = int64_t{1} << 30;
constexpr size_t kNameBytesMax = 64 << 10;
// The writer's buffer: blocks go to the file together.
constexpr size_t kBufferBytes = 1 << 20;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;  // tables and checksum counted
  uint64_t sample_limit;
  uint64_t seed;
  uint32_t tables;
  uint32_t reserved;
  // For each table: number u32, length of the name u32, the name. Then the CRC-32C of all that.
};
static_assert(sizeof(FileHeader) == 40);

struct BlockHeader {
  uint32_t kind;
  uint32_t payload_bytes;
  uint64_t step;
  uint32_t samples;
  uint32_t tables;  // runs in the payload
  uint32_t reserved;
  uint32_t crc;  // CRC-32C of the 28 bytes before and of the payload
};
static_assert(sizeof(BlockHeader) == 32 && offsetof(BlockHeader, crc) == 28);

// One table in a step block, followed by keys u64[sampled] and counts u32[sampled].
struct RunHeader {
  uint32_t table;
  uint32_t sampled;
  uint64_t lookups;
  uint64_t unique_keys;
};
static_assert(sizeof(RunHeader) == 24);

struct EndPayload {
  uint64_t steps;
};

template <typename T>
void Append(std::vector<std::byte>* out, const T* values, size_t n) {
  const size_t before = out->size();
  out->resize(before + n * sizeof(T));
  if (n > 0) std::memcpy(out->data() + before, values, n * sizeof(T));
}

std::span<const std::byte> BytesOf(const BlockHeader& header) {
  return {reinterpret_cast<const std::byte*>(&header), offsetof(BlockHeader, crc)};
}

}  // namespace

absl::Status AccessTraceOptions::Validate() const {
  if (path.empty()) return absl::InvalidArgumentError("AccessTraceOptions.path is empty");
  if (tables.empty()) {
    return absl::InvalidArgumentError("AccessTraceOptions.tables: at least one table");
  }
  if (!(sample_rate > 0 && sample_rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("AccessTraceOptions.sample_rate must lie in (0, 1], is ", sample_rate));
  }
  std::set<uint32_t> numbers;
  for (const AccessTraceTable& table : tables) {
    if (!numbers.insert(table.table).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("AccessTraceOptions.tables: table ", table.table, " occurs twice"));
    }
    if (table.name.size() > kNameBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("AccessTraceOptions.tables: the name of table ", table.table, " has ",
                       table.name.size(), " bytes, at most ", kNameBytesMax, " are possible"));
    }
  }
  return absl::OkStatus();
}

struct AccessTraceWriter::Impl {
  std::unique_ptr<File> file;
  uint64_t limit = 0;
  uint64_t seed = 0;
  std::vector<uint32_t> tables;   // sorted
  std::vector<std::byte> buffer;  // whole blocks, not in the file yet
  int64_t file_bytes = 0;
  absl::Status status;  // the first error
  // The step that is being written.
  std::vector<std::byte> payload;
  uint32_t runs = 0;
  uint64_t steps = 0;
  std::vector<uint64_t> keys;
  std::vector<uint32_t> counts;

  absl::Status AppendBlock(BlockHeader header) {
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.tables = runs;
    header.reserved = 0;
    header.crc = Crc32c(payload, Crc32c(BytesOf(header)));
    Append(&buffer, &header, 1);
    buffer.insert(buffer.end(), payload.begin(), payload.end());
    payload.clear();
    runs = 0;
    return buffer.size() < kBufferBytes ? absl::OkStatus() : WriteBuffer();
  }
  absl::Status WriteBuffer() {
    status = WriteFull(*file, file_bytes, buffer);
    if (!status.ok()) return status;
    file_bytes += std::ssize(buffer);
    buffer.clear();
    return absl::OkStatus();
  }
};

AccessTraceWriter::AccessTraceWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AccessTraceWriter::~AccessTraceWriter() {
  // What was recorded so far is worth keeping; nobody is left to hear of an error.
  if (impl_->file != nullptr && impl_->status.ok()) {
    Caught("", [this] { return impl_->WriteBuffer(); }).IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<AccessTraceWriter>> AccessTraceWriter::Open(
    const AccessTraceOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>();
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  HOTROW_ASSIGN_OR_RETURN(impl->file, env.Open(options.path, OpenMode::kTruncate));
  impl->limit = KeySampler::LimitOfRate(options.sample_rate);
  impl->seed = options.seed;

  FileHeader header = {};
  std::memcpy(header.magic, AccessTraceReader::kMagic, sizeof(header.magic));
  header.version = kVersions.last;
  header.sample_limit = impl->limit;
  header.seed = options.seed;
  header.tables = static_cast<uint32_t>(options.tables.size());
  size_t header_bytes = sizeof(header) + sizeof(uint32_t);
  for (const AccessTraceTable& table : options.tables) header_bytes += 8 + table.name.size();
  if (static_cast<int64_t>(header_bytes) > kHeaderBytesMax) {
    return absl::InvalidArgumentError("AccessTraceOptions.tables: the names are too long together");
  }
  header.header_bytes = static_cast<uint32_t>(header_bytes);
  Append(&impl->buffer, &header, 1);
  for (const AccessTraceTable& table : options.tables) {
    const uint32_t words[2] = {table.table, static_cast<uint32_t>(table.name.size())};
    Append(&impl->buffer, words, 2);
    Append(&impl->buffer, table.name.data(), table.name.size());
    impl->tables.push_back(table.table);
  }
  const uint32_t crc = Crc32c(impl->buffer);
  Append(&impl->buffer, &crc, 1);
  std::sort(impl->tables.begin(), impl->tables.end());
  // A path that cannot be written is noticed now and not after an hour.
  HOTROW_RETURN_IF_ERROR(impl->WriteBuffer());
  return std::unique_ptr<AccessTraceWriter>(new AccessTraceWriter(std::move(impl)));
}

absl::Status AccessTraceWriter::Add(uint32_t table, std::span<const uint64_t> keys,
                                    std::span<const int32_t> lookups) {
  Impl& impl = *impl_;
  HOTROW_RETURN_IF_ERROR(impl.status);
  HOTROW_CHECK(impl.file != nullptr);
  HOTROW_CHECK(std::binary_search(impl.tables.begin(), impl.tables.end(), table));
  HOTROW_CHECK(lookups.empty() || lookups.size() == keys.size());
  const KeySampler sampler(impl.seed, table);
  impl.keys.clear();
  impl.counts.clear();
  RunHeader run = {.table = table, .sampled = 0, .lookups = 0, .unique_keys = keys.size()};
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint32_t count = lookups.empty() ? 1 : static_cast<uint32_t>(lookups[i]);
    run.lookups += count;
    if (!sampler.IsSampled(keys[i], impl.limit)) continue;
    impl.keys.push_back(keys[i]);
    impl.counts.push_back(count);
  }
  run.sampled = static_cast<uint32_t>(impl.keys.size());
  const size_t need = sizeof(run) + impl.keys.size() * 12;
  if (impl.payload.size() + need > UINT32_MAX) {
    impl.status = absl::ResourceExhaustedError(
        absl::StrCat(impl.file->path(), ": a step of more than 4 GiB; lower the sample rate"));
    return impl.status;
  }
  Append(&impl.payload, &run, 1);
  Append(&impl.payload, impl.keys.data(), impl.keys.size());
  Append(&impl.payload, impl.counts.data(), impl.counts.size());
  ++impl.runs;
  return absl::OkStatus();
}

absl::Status AccessTraceWriter::EndStep(uint64_t step, uint32_t samples) {
  HOTROW_RETURN_IF_ERROR(impl_->status);
  HOTROW_CHECK(impl_->file != nullptr);
  ++impl_->steps;
  return impl_->AppendBlock({.kind = kStepBlock, .step = step, .samples = samples});
}

absl::Status AccessTraceWriter::Close() {
  Impl& impl = *impl_;
  HOTROW_RETURN_IF_ERROR(impl.status);
  HOTROW_CHECK(impl.file != nullptr);
  impl.payload.clear();  // of a step that was not ended
  impl.runs = 0;
  const EndPayload end = {.steps = impl.steps};
  Append(&impl.payload, &end, 1);
  HOTROW_RETURN_IF_ERROR(impl.AppendBlock({.kind = kEndBlock}));
  HOTROW_RETURN_IF_ERROR(impl.WriteBuffer());
  impl.status = impl.file->Sync();
  if (impl.status.ok()) impl.status = impl.file->Close();
  impl.file = nullptr;
  return impl.status;
}

int64_t AccessTraceWriter::bytes_written() const {
  return impl_->file_bytes + std::ssize(impl_->buffer);
}

AccessTraceReader::AccessTraceReader() = default;
AccessTraceReader::~AccessTraceReader() = default;

absl::Status AccessTraceReader::Damage(int64_t offset, const std::string& what) const {
  return absl::DataLossError(absl::StrCat(path_, ": offset ", offset, ": ", what));
}

absl::StatusOr<std::unique_ptr<AccessTraceReader>> AccessTraceReader::Open(
    Env& env, const std::string& path) {
  std::unique_ptr<AccessTraceReader> reader(new AccessTraceReader());
  reader->path_ = path;
  HOTROW_ASSIGN_OR_RETURN(reader->file_, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(reader->size_, reader->file_->Size());
  HOTROW_RETURN_IF_ERROR(reader->ReadHeader());
  return reader;
}

absl::Status AccessTraceReader::ReadHeader() {
  FileHeader header = {};
  if (size_ >= static_cast<int64_t>(sizeof(header))) {
    HOTROW_RETURN_IF_ERROR(
        ReadFull(*file_, 0, {reinterpret_cast<std::byte*>(&header), sizeof(header)}));
  }
  if (std::memcmp(header.magic, kMagic, sizeof(header.magic)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": is no access trace of hotrow: it does not begin with ", kMagic));
  }
  HOTROW_RETURN_IF_ERROR(
      CheckFormatVersion(path_, "access trace of format version", header.version, kVersions));
  const int64_t header_bytes = header.header_bytes;
  if (header_bytes < static_cast<int64_t>(sizeof(header) + sizeof(uint32_t)) ||
      header_bytes > kHeaderBytesMax || header_bytes > size_) {
    return Damage(12, absl::StrCat("a header of ", header_bytes, " bytes in a file of ", size_));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(header_bytes));
  HOTROW_RETURN_IF_ERROR(ReadFull(*file_, 0, bytes));
  const size_t end = bytes.size() - sizeof(uint32_t);
  uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + end, sizeof(crc));
  if (crc != Crc32c(std::span(bytes).first(end))) {
    return Damage(0, "the checksum of the header is wrong");
  }
  sample_limit_ = header.sample_limit;
  seed_ = header.seed;
  size_t at = sizeof(header);
  for (uint32_t t = 0; t < header.tables; ++t) {
    uint32_t words[2];
    if (end - at < sizeof(words)) return Damage(static_cast<int64_t>(at), "the header ends early");
    std::memcpy(words, bytes.data() + at, sizeof(words));
    at += sizeof(words);
    if (end - at < words[1]) return Damage(static_cast<int64_t>(at), "the header ends early");
    tables_.push_back(
        {words[0], std::string(reinterpret_cast<const char*>(bytes.data() + at), words[1])});
    at += words[1];
  }
  offset_ = header_bytes;
  return absl::OkStatus();
}

absl::StatusOr<bool> AccessTraceReader::Next(AccessTraceStep* step) {
  if (ended_) return false;
  // What a killed writer left: a block that the file ends in. The writer puts whole blocks into the
  // file, in order, so it is the last one.
  const int64_t left = size_ - offset_;
  BlockHeader header = {};
  if (left < static_cast<int64_t>(sizeof(header))) {
    ended_ = true;
    return false;
  }
  HOTROW_RETURN_IF_ERROR(
      ReadFull(*file_, offset_, {reinterpret_cast<std::byte*>(&header), sizeof(header)}));
  if (header.kind != kStepBlock && header.kind != kEndBlock) {
    return Damage(offset_, "no block begins here");
  }
  if (static_cast<int64_t>(header.payload_bytes) > left - static_cast<int64_t>(sizeof(header))) {
    ended_ = true;
    return false;
  }
  payload_.resize(header.payload_bytes);
  const int64_t payload_offset = offset_ + static_cast<int64_t>(sizeof(header));
  HOTROW_RETURN_IF_ERROR(ReadFull(*file_, payload_offset, payload_));
  if (header.crc != Crc32c(payload_, Crc32c(BytesOf(header)))) {
    return Damage(offset_, "the checksum of this block is wrong");
  }
  if (header.kind == kEndBlock) {
    EndPayload end = {};
    if (payload_.size() != sizeof(end)) return Damage(payload_offset, "the end block is too short");
    std::memcpy(&end, payload_.data(), sizeof(end));
    if (end.steps != static_cast<uint64_t>(steps_)) {
      return Damage(payload_offset, absl::StrCat("there should be ", end.steps,
                                                 " steps before this end, there are ", steps_));
    }
    ended_ = true;
    complete_ = true;
    return false;
  }
  step->step = header.step;
  step->samples = header.samples;
  if (header.tables > payload_.size() / sizeof(RunHeader)) {
    return Damage(offset_, absl::StrCat(header.tables, " tables in ", payload_.size(), " bytes"));
  }
  step->tables.resize(header.tables);
  size_t at = 0;
  for (AccessTraceStep::Table& table : step->tables) {
    RunHeader run = {};
    const int64_t run_offset = payload_offset + static_cast<int64_t>(at);
    if (payload_.size() - at < sizeof(run)) return Damage(run_offset, "the block ends early");
    std::memcpy(&run, payload_.data() + at, sizeof(run));
    at += sizeof(run);
    const size_t n = run.sampled;
    if (payload_.size() - at < n * 12) return Damage(run_offset, "the block ends early");
    table.table = run.table;
    table.lookups = static_cast<int64_t>(run.lookups);
    table.unique_keys = static_cast<int64_t>(run.unique_keys);
    table.keys.resize(n);
    table.counts.resize(n);
    if (n > 0) {
      std::memcpy(table.keys.data(), payload_.data() + at, n * 8);
      std::memcpy(table.counts.data(), payload_.data() + at + n * 8, n * 4);
    }
    at += n * 12;
  }
  if (at != payload_.size()) {
    return Damage(payload_offset + static_cast<int64_t>(at), "bytes behind the last table");
  }
  offset_ = payload_offset + header.payload_bytes;
  ++steps_;
  return true;
}

}  // namespace hotrow
