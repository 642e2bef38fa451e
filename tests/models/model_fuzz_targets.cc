#include "tests/models/model_fuzz_targets.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/read_file.h"
#include "models/data/packed_batches_impl.h"
#include "models/data/packed_format.h"
#include "models/data/shuffle_impl.h"
#include "models/data/vocabulary.h"
#include "models/delta/delta_manifest.h"
#include "models/delta/delta_rows.h"
#include "models/delta/delta_rows_impl.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"
#include "models/saving/store_paths.h"
#include "models/saving/training_state.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/models/file_builders.h"
#include "tests/support/mem_env.h"

namespace hotrow::fuzz {
namespace {

// What a block of packed data has: 1: one lookup of each of its 3 features, 2: weights, 4: the
// probability of samples, 8: dense features of fp16.
PackedManifest PackedShape(uint8_t bits) {
  PackedManifest out;
  out.schema.num_dense = 2;
  out.schema.features.resize(3);
  out.id_bytes.assign(3, 8);
  out.block_samples = 256;
  out.one_each = (bits & 1) != 0;
  out.has_weights = (bits & 2) != 0;
  out.has_probability = (bits & 4) != 0;
  if ((bits & 8) != 0) out.dense_precision = PackedPrecision::kFp16;
  return out;
}

constexpr char kDir[] = "/model";
constexpr std::string_view kCrcMember = "\"manifest_crc32c\": \"";
constexpr size_t kCrcDigits = 8;
constexpr int64_t kMemoryBytes = 1 << 20;

uint32_t CrcOf(std::string_view text) { return Crc32c(std::as_bytes(std::span(text))); }

void Write(Env& env, const std::string& name, std::string_view text) {
  const std::string path = absl::StrCat(kDir, "/", name);
  HOTROW_CHECK(env.CreateDirs(path.substr(0, path.rfind('/'))).ok());
  HOTROW_CHECK(WriteFileAtomically(env, path, text).ok());
}

void ExpectNamed(const absl::Status& status) { HOTROW_CHECK(!status.message().empty()); }

// Makes the checksum of a manifest right, and puts one at its end where there is none.
void FixManifest(std::string* text) {
  size_t at = text->rfind(kCrcMember);
  if (at == std::string::npos || text->size() < at + kCrcMember.size() + kCrcDigits) {
    const size_t end = text->rfind('}');
    if (end == std::string::npos) return;
    text->resize(end);
    absl::StrAppend(text, ", ", std::string(kCrcMember), std::string(kCrcDigits, '0'), "\"}");
    at = text->rfind(kCrcMember);
  }
  at += kCrcMember.size();
  text->replace(at, kCrcDigits, std::string(kCrcDigits, '0'));
  text->replace(at, kCrcDigits, absl::StrFormat("%08x", CrcOf(*text)));
}

// The bytes of a header and what follows it.
std::string Tensors(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return absl::StrCat(out, std::string(header), std::string(data));
}

// Makes the size and both checksums of a vocabulary right, docs/formats/vocabulary.md.
void FixVocabulary(std::string* bytes) {
  constexpr size_t kBeforeHeadCrc = 12;
  constexpr size_t kHead = 24;
  if (bytes->size() < kHead + sizeof(uint32_t)) return;
  const auto put = [&](size_t at, auto value) {
    std::memcpy(bytes->data() + at, &value, sizeof(value));
  };
  const auto crc_before = [&](size_t at) { return CrcOf(std::string_view(*bytes).substr(0, at)); };
  put(kBeforeHeadCrc, crc_before(kBeforeHeadCrc));
  put(kBeforeHeadCrc + sizeof(uint32_t), static_cast<uint64_t>(bytes->size()));
  put(bytes->size() - sizeof(uint32_t), crc_before(bytes->size() - sizeof(uint32_t)));
}

// Makes the checksums of a file of rows right, as far as it can be followed.
void FixDeltaRows(std::string* bytes) {
  const std::string_view view = *bytes;
  const auto fix = [&]<typename T>(size_t at, T whole) {
    whole.crc = CrcOf(view.substr(at, offsetof(T, crc)));
    std::memcpy(bytes->data() + at, &whole, sizeof(T));
  };
  const auto load = [&]<typename T>(size_t at, T* out) {
    if (bytes->size() < at + sizeof(T)) return false;
    std::memcpy(out, bytes->data() + at, sizeof(T));
    return true;
  };
  internal::DeltaPrefix prefix;
  internal::DeltaHeader header;
  size_t at = sizeof(prefix) + sizeof(header);
  if (!load(0, &prefix) || !load(sizeof(prefix), &header)) return;
  const size_t list = std::min<size_t>(header.num_tables, 9) * sizeof(internal::DeltaTableEntry);
  header.tables_crc = CrcOf(view.substr(at, list));
  std::memcpy(bytes->data() + sizeof(prefix), &header, sizeof(header));
  fix(0, prefix);
  fix(sizeof(prefix), header);
  std::string heads;
  internal::DeltaBlock block;
  for (at += list; load(at, &block); at += sizeof(block) + block.body_bytes) {
    if (std::memcmp(block.magic, internal::kDeltaBlockMagic, sizeof(block.magic)) != 0) break;
    if (block.body_bytes > bytes->size()) return;
    const size_t body = std::min(bytes->size(), at + sizeof(block));
    block.body_crc = CrcOf(view.substr(body, block.body_bytes));
    std::memcpy(bytes->data() + at, &block, sizeof(block));
    fix(at, block);
    heads.append(view.substr(at, sizeof(block)));
  }
  internal::DeltaFooter footer;
  if (!load(at, &footer)) return;
  footer.blocks_crc = CrcOf(heads);
  std::memcpy(bytes->data() + at, &footer, sizeof(footer));
  fix(at, footer);
}

constexpr DeltaFileId kDeltaId = {.base = {.high = 1, .low = 2}, .sequence = 3};
constexpr DeltaForm kDeltaForm = {.precision = ExchangeType::kInt8, .state = true};
std::vector<DeltaTable> DeltaTables() {
  return {{.dim = 3, .optimizer = SparseOptimizerKind::kAdam},
          {.dim = 2, .optimizer = SparseOptimizerKind::kSgd, .scored = true}};
}

SavedModel ModelOf(int ranks, bool is_checkpoint) {
  SavedModel model;
  model.model = "dlrm";
  model.shape = {{"embedding_dim", "8"}, {"dense_arch_layer_sizes", "16-8"}};
  model.seed = 7;
  model.step = 41;
  model.num_dense = 2;
  model.features = {{"a", "t"}, {"b", "t"}, {"c", "u"}};
  model.tables = {{.name = "t", .dim = 8, .optimizer = "adam"},
                  {.name = "u",
                   .dim = 4,
                   .optimizer = "rowwise_adagrad",
                   .weights_precision = WeightsPrecision::kBf16,
                   .initializer = Initializer{.kind = InitializerKind::kUniform, .value = 0.5f}}};
  if (!is_checkpoint) {
    for (SavedModel::Table& table : model.tables) {
      table.rows = 3;
      table.hash = "0123456789abcdef0123456789abcdef";
    }
  }
  model.dense_optimizer = "adam";
  model.num_parameters = 2;
  model.dir = kDir;
  for (int r = 0; r < ranks; ++r) {
    model.parts.push_back({.store = ranks == 3 ? "ssd" : "memory",
                           .tables_dir = SavedTablesDir(kDir, r, ranks),
                           .snapshot = static_cast<SnapshotId>(0x1234567800000001) + r});
  }
  model.dense_file = "dense.safetensors";
  model.dense_bytes = 100;
  model.dense_crc = 0xabcdef01;
  model.is_checkpoint = is_checkpoint;
  if (is_checkpoint) {
    TrainingState state;
    state.settings = {{"seed", "7"}, {"learning_rate", "0.02"}};
    state.epoch = 1;
    state.samples_in_epoch = 640;
    state.steps = 41;
    state.recent_loss = 0.5;
    model.training = std::make_shared<const TrainingState>(state);
  }
  if (ranks == 2) model.residuals = {{"residuals-00000", 32, 1}, {"residuals-00001", 32, 2}};
  return model;
}

}  // namespace

void SavedManifest(const uint8_t* data, size_t size) {
  if (size < 1) return;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) FixManifest(&text);
  test::MemEnv env;
  Write(env, "manifest.json", text);
  const auto model = ReadSavedModel(env, kDir);
  if (!model.ok()) {
    ExpectNamed(model.status());
    return;
  }
  // What was understood can be written, and is the same then.
  const std::string written = SavedModelManifest(*model);
  Write(env, "manifest.json", written);
  const auto again = ReadSavedModel(env, kDir);
  HOTROW_CHECK(again.ok());
  HOTROW_CHECK(SavedModelManifest(*again) == written);

  // A few floats as a dense file, and nothing else of it is there.
  Write(env, "manifest.json", text);
  if (model->dense_file != "manifest.json") Write(env, model->dense_file, Tensors("{}  ", "data"));
  const auto dense = ReadSavedDense(env, *model);
  if (!dense.ok()) ExpectNamed(dense.status());
  for (size_t rank = 0; rank < model->residuals.size(); ++rank) {
    HOTROW_CHECK(!ReadSavedResiduals(env, *model, static_cast<int32_t>(rank)).ok());
  }
  // Stores on disks are not those of this Env.
  const bool in_memory = std::all_of(model->parts.begin(), model->parts.end(),
                                     [](const auto& part) { return part.store == "memory"; });
  if (!in_memory) return;
  const auto inspected = InspectCheckpoint(env, kDir, kMemoryBytes);
  if (!inspected.ok()) ExpectNamed(inspected.status());
  const auto verified = VerifyCheckpoint(env, kDir, kMemoryBytes);
  HOTROW_CHECK(!verified.ok() || !verified->damage.empty());
}

void DenseFile(const uint8_t* data, size_t size) {
  if (size < 10) return;
  // How many parameters the manifest says there are. It lets no more pass than the file has room
  // for (SavedManifest).
  uint64_t number = 0;
  std::memcpy(&number, data + 1, sizeof(number));
  const uint64_t most = (size - 9) / sizeof(float);
  const auto parameters = static_cast<int64_t>(number % (most + 1));
  std::string text(reinterpret_cast<const char*>(data) + 9, size - 9);
  // Its length is right, and it ends at the first zero.
  if (data[0] / 2 % 2 == 1) {
    const size_t end = std::min(text.find('\0'), text.size());
    text = Tensors(text.substr(0, end), text.substr(end));
  }
  test::MemEnv env;
  Write(env, "dense.safetensors", text);
  SavedModel saved = ModelOf(1, false);
  saved.num_parameters = parameters;
  saved.dense_bytes = static_cast<int64_t>(text.size());
  saved.dense_crc = CrcOf(text);
  const auto arrays = ReadSavedDense(env, saved);
  if (!arrays.ok()) {
    ExpectNamed(arrays.status());
    return;
  }
  HOTROW_CHECK(static_cast<int64_t>(arrays->parameters.size()) == parameters);
  std::vector<float> found(arrays->parameters.size());
  HOTROW_CHECK(ReadSavedDense(env, saved, {.parameters = found}).ok());
  HOTROW_CHECK(found.empty() || std::memcmp(found.data(), arrays->parameters.data(),
                                            found.size() * sizeof(float)) == 0);
}

void PortableManifest(const uint8_t* data, size_t size) {
  if (size < 1) return;
  test::MemEnv env;
  Write(env, "manifest.json", {reinterpret_cast<const char*>(data) + 1, size - 1});
  Write(env, "keys.npy",
        test::NpyWithHeader(test::NpyDictionary("<u8", "(2,)"),
                            std::string(1, '\1') + std::string(15, '\0')));
  Write(env, "weights.npy",
        test::NpyWithHeader(test::NpyDictionary("<f4", "(2, 4)"), std::string(32, '\0')));
  Write(env, "dense.safetensors",
        Tensors(R"({"parameters":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                std::string(8, '\0')));
  const auto portable = ReadPortableManifest(env, kDir, /*edited=*/data[0] % 2 == 1);
  if (!portable.ok()) {
    ExpectNamed(portable.status());
    return;
  }
  for (const PortableTable& table : portable->tables) HOTROW_CHECK(table.dim > 0);
  const auto verified = VerifyPortable(env, kDir, kMemoryBytes);
  if (!verified.ok()) ExpectNamed(verified.status());
}

void DeltaFiles(const uint8_t* data, size_t size) {
  if (size < 1) return;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int which = data[0] / 2 % 3;
  if (data[0] % 2 == 1) which == 2 ? FixDeltaRows(&bytes) : FixManifest(&bytes);
  test::MemEnv env;
  if (which == 0) {
    Write(env, kChainManifestName, bytes);
    const auto chain = ReadChainManifest(env, kDir);
    if (!chain.ok()) return ExpectNamed(chain.status());
    Write(env, kChainManifestName, ChainManifestText(*chain));
    HOTROW_CHECK(ReadChainManifest(env, kDir).ok());
    return;
  }
  if (which == 1) {
    Write(env, "manifest.json", bytes);
    auto delta = ReadDeltaManifest(env, kDir);
    if (!delta.ok()) return ExpectNamed(delta.status());
    const auto tables = DeltaTablesOf(delta->model);
    if (!tables.ok()) ExpectNamed(tables.status());
    const std::string written = SealDeltaManifest(&*delta);
    Write(env, "manifest.json", written);
    auto again = ReadDeltaManifest(env, kDir);
    HOTROW_CHECK(again.ok() && SealDeltaManifest(&*again) == written);
    return;
  }
  Write(env, "rows", bytes);
  const std::vector<DeltaTable> tables = DeltaTables();
  DeltaPart part = {.file = "rows", .bytes = std::ssize(bytes), .crc = CrcOf(bytes)};
  part.rows = {2, 1};
  part.erased = {1, 2};
  auto reader = DeltaRowsReader::Open(env, kDir, part, kDeltaId, kDeltaForm, tables);
  if (!reader.ok()) return ExpectNamed(reader.status());
  std::optional<RowKey> before;
  while (!(*reader)->done()) {
    const RowKey key = (*reader)->key();
    HOTROW_CHECK(key.table < tables.size() && (!before || ComesBefore(*before, key)));
    before = key;
    if (!(*reader)->erased()) {
      HOTROW_CHECK(std::ssize((*reader)->row()) ==
                   tables[key.table].layout_read(kDeltaForm).row_bytes);
    }
    const absl::Status next = (*reader)->Next();
    if (!next.ok()) return ExpectNamed(next);
  }
}

void VocabularyFile(const uint8_t* data, size_t size) {
  if (size < 1) return;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) FixVocabulary(&bytes);
  const auto vocabulary = Vocabulary::Decode(bytes, "input");
  if (!vocabulary.ok()) {
    ExpectNamed(vocabulary.status());
    return;
  }
  HOTROW_CHECK(vocabulary->Encode() == bytes);
  for (const KeptKeys& kept : vocabulary->tables()) {
    HOTROW_CHECK(vocabulary->Find(kept.table()) == &kept);
    for (const uint64_t key : kept.keys()) HOTROW_CHECK(kept.Contains(key));
  }
}

void PackedBlock(const uint8_t* data, size_t size) {
  if (size < 2) return;
  const PackedManifest manifest = PackedShape(data[0]);
  const int64_t samples = data[1];
  const auto bytes = static_cast<int64_t>(size) - 2;
  const auto block = std::make_shared<hotrow::PackedBlock>();
  HOTROW_CHECK(block->Reserve(bytes).ok());
  std::copy_n(reinterpret_cast<const std::byte*>(data) + 2, bytes, block->bytes());
  if (!block->Open(manifest, bytes, samples).ok()) return;
  CtrBatch batch;
  const PackedSelection all = {{block.get()}, {{0, 0, static_cast<uint32_t>(samples)}}};
  MakeBatchOfColumns(manifest, all, nullptr, samples, &batch);
  HOTROW_CHECK(batch.batch_size == samples);
  HOTROW_CHECK(std::is_sorted(batch.offsets.begin(), batch.offsets.end()));
  HOTROW_CHECK(batch.offsets.back() == std::ssize(batch.values));
  if (!manifest.one_each || manifest.has_weights || samples == 0) return;
  PackedRows rows(manifest);
  HOTROW_CHECK(rows.Reset(samples).ok());
  rows.Add(*block, 0);
  CtrBatch same;
  MakeRoomForRows(manifest, samples, nullptr, &same);
  rows.Gather(WindowOrder(samples, 1, 0, 0), 0, samples, nullptr, 0, &same);
  HOTROW_CHECK(std::is_permutation(batch.values.begin(), batch.values.begin() + samples,
                                   same.values.begin(), same.values.begin() + samples));
}

std::vector<std::string> SavedManifestCorpus() {
  std::vector<std::string> out = {"", "\1{}", "\1{", "\1[]", "\1null}"};
  for (const int ranks : {1, 2, 3}) {
    for (const bool is_checkpoint : {false, true}) {
      const std::string text = SavedModelManifest(ModelOf(ranks, is_checkpoint));
      for (const char fix : {'\0', '\1'}) out.push_back(std::string(1, fix) + text);
    }
  }
  return out;
}

std::vector<std::string> DenseFileCorpus() {
  const std::string header = R"({"parameters":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("momentum1":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})";
  const std::string floats(16, '\0');
  const std::string two = std::string("\2") + std::string(7, '\0');
  return {"",
          std::string(1, '\0') + two + Tensors(header, floats),
          std::string(1, '\2') + two + header + floats,
          std::string(1, '\3') + std::string(8, '\xff') + header + floats,
          std::string(1, '\2') + two + R"({"parameters":{"dtype":5,"shape":[2]}})",
          std::string(1, '\2') + two + R"({"parameters":[[[[]]]]})",
          std::string(1, '\0') + two + std::string(16, '\xff')};
}

std::vector<std::string> PortableManifestCorpus() {
  const std::string text = R"({"format": "hotrow.portable_model", "version": 1, "requires": [],
    "model": "dlrm", "shape": {"embedding_dim": "4"}, "seed": 1, "step": 41, "num_dense": 2,
    "features": [{"name": "a", "table": "t"}],
    "tables": [{"name": "t", "dim": 4, "optimizer": "sgd", "dtype": "float32", "rows": 2,
      "initializer": {"kind": "uniform", "value": 0.5}, "arrays": [
      {"name": "keys", "dtype": "<u8", "shape": [2], "files": [{"file": "keys.npy"}]},
      {"name": "weights", "dtype": "<f4", "shape": [2, 4], "files": [{"file": "weights.npy",
       "crc32c": "00000000"}]}]}],
    "dense": {"file": "dense.safetensors", "parameters": 2, "optimizer": "sgd"}})";
  return {"", std::string(1, '\0') + text, std::string(1, '\1') + text, std::string(1, '\0') + "{}",
          std::string(1, '\0') + R"({"format": "hotrow.portable_model", "version": 2})"};
}

std::vector<std::string> PackedBlockCorpus() {
  std::vector<std::string> out = {"", std::string(2, '\0'), std::string(100, '\0')};
  for (const uint8_t shape : {0, 1, 2, 5, 7, 9}) {
    constexpr int64_t kSamples = 9;
    const PackedManifest manifest = PackedShape(shape);
    CtrBatch batch = {.batch_size = kSamples, .offsets = {0}};
    for (int64_t i = 0; i < 3 * kSamples; ++i) {
      const int64_t lookups = manifest.one_each ? 1 : i % 4;
      batch.values.resize(batch.values.size() + static_cast<size_t>(lookups), uint64_t{1} << i);
      batch.offsets.push_back(std::ssize(batch.values));
    }
    batch.labels.resize(kSamples, 1);
    batch.dense.resize(2 * kSamples, 0.5f);
    if (manifest.has_weights) batch.weights.resize(batch.values.size(), 2);
    if (manifest.has_probability) batch.true_probability.resize(kSamples, 0.25f);
    PackedBlockBuilder builder(manifest);
    HOTROW_CHECK(builder.Append(batch, 0, kSamples).ok());
    const auto block = builder.Finish();
    out.push_back(std::string{static_cast<char>(shape), static_cast<char>(kSamples)} +
                  std::string(reinterpret_cast<const char*>(block.data()), block.size()));
  }
  return out;
}

std::vector<std::string> DeltaFilesCorpus() {
  ChainManifest chain = {.base_id = kDeltaId.base, .form = kDeltaForm};
  chain.base_dir = BaseDirName(2);
  chain.base_step = 40;
  chain.base_sequence = 2;
  chain.base_source = {{.high = 5, .low = 6}};
  DeltaManifest delta = {.base_id = kDeltaId.base, .form = kDeltaForm, .sequence = 3};
  delta.parent_step = 40;
  delta.source = {{.high = 7, .low = 8}};
  delta.model = ModelOf(1, false);
  delta.model.parts.clear();
  delta.parts = {
      {.file = DeltaPartName(0, 1), .bytes = 9, .crc = 1, .rows = {2, 1}, .erased = {1, 2}}};
  test::MemEnv env;
  HOTROW_CHECK(env.CreateDirs(kDir).ok());
  const std::vector<DeltaTable> tables = DeltaTables();
  auto writer = DeltaRowsWriter::Create(env, kDir, "rows", kDeltaId, kDeltaForm, tables);
  HOTROW_CHECK(writer.ok());
  for (uint32_t t = 0; t < tables.size(); ++t) {
    const std::vector<std::byte> row(static_cast<size_t>(tables[t].layout().row_bytes));
    for (uint64_t key = 5; key < 8; ++key) {
      HOTROW_CHECK(
          ((key + t) % 2 == 1 ? (*writer)->Add({key, t}, row) : (*writer)->AddErased({key, t}))
              .ok());
    }
  }
  HOTROW_CHECK((*writer)->Finish().ok());
  const std::string rows = ReadWholeFile(env, absl::StrCat(kDir, "/rows"), 1 << 30).value();
  std::vector<std::string> out = {""};
  int which = 0;
  for (const std::string& text : {ChainManifestText(chain), SealDeltaManifest(&delta), rows}) {
    for (const int fix : {0, 1}) {
      out.push_back(std::string(1, static_cast<char>(2 * which + fix)) + text);
    }
    ++which;
  }
  return out;
}

std::vector<std::string> VocabularyFileCorpus() {
  std::vector<std::string> out = {"", std::string(1, '\1'), std::string(40, '\1')};
  std::vector<KeptKeys> tables;
  for (const size_t num_tables : {0, 1, 3}) {
    while (tables.size() < num_tables) {
      std::vector<uint64_t> keys;
      for (uint64_t i = 0; i < 5 * tables.size(); ++i) keys.push_back(i * i << (7 * i));
      tables.emplace_back(std::string(tables.size(), 't'), 2, /*unknown_key=*/12345, keys);
    }
    for (const char fix : {'\0', '\1'}) {
      out.push_back(std::string(1, fix) + Vocabulary(tables).Encode());
    }
  }
  return out;
}

}  // namespace hotrow::fuzz
