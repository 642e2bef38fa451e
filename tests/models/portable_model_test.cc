#include "models/saving/portable_model.h"

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/dense_file.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_tables.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/saved_model.h"
#include "models/saving/saved_model_fit.h"
#include "models/saving/saved_part.h"
#include "models/saving/store_paths.h"
#include "models/saving/training_state.h"
#include "ops/rows/row_layout.h"
#include "store/host/host_store.h"
#include "store/rocks/rocks_store.h"
#include "store/ssd/ssd_store.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;
using test::FaultyEnv;
using test::MemEnv;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kRun[] = "/run/ckpt";
constexpr char kOut[] = "/run/out";
constexpr char kBack[] = "/run/back";
constexpr char kOutManifest[] = "/run/out/manifest.json";

EmbeddingCollectionOptions Options(Env* env) {
  EmbeddingCollectionOptions options;
  TableConfig users;
  users.name = "users";
  users.embedding_dim = 17;
  users.feature_names = {"user"};
  users.optimizer.kind = SparseOptimizerKind::kAdam;
  users.initializer = {InitializerKind::kUniform, 0.1f};
  TableConfig items = users;
  items.name = "items";
  items.embedding_dim = 3;
  items.feature_names = {"item", "history"};
  items.optimizer.kind = SparseOptimizerKind::kRowWiseAdagrad;
  TableConfig unused = items;
  unused.name = "unused";
  unused.feature_names = {"never"};
  options.tables = {users, items, unused};
  options.feature_order = {"user", "item", "history", "never"};
  options.max_batch_size = 8;
  options.store = MemoryStorage{.memory_bytes = int64_t{32} << 20};
  options.evaluation_staging_bytes = 1 << 20;
  options.env = env;
  return options;
}

SavedModel Description() {
  SavedModel model;
  model.model = "dlrm";
  model.shape = {{"over_arch_layer_sizes", "16-1"}, {"pooling", "sum"}};
  model.seed = INT64_MAX;
  model.num_dense = 2;
  model.features = {
      {"user", "users"}, {"item", "items"}, {"history", "items"}, {"never", "unused"}};
  model.tables = {{.name = "users",
                   .dim = 17,
                   .optimizer = "adam",
                   .initializer = Initializer{InitializerKind::kUniform, 0.1f}},
                  {.name = "items", .dim = 3, .optimizer = "rowwise_adagrad"},
                  {.name = "unused", .dim = 3, .optimizer = "rowwise_adagrad"}};
  model.dense_optimizer = "adam";
  TrainingState training;
  training.settings = {{"batch_size", "64"}};
  training.epoch = 1;
  training.samples_in_epoch = 640;
  training.steps = 3;
  training.policy.factor = 0.1;  // no short binary fraction
  training.loss_sum_in_last_epoch = 1.0 / 3;
  training.valid.auc = 0.7654321;
  model.training = std::make_shared<const TrainingState>(training);
  return model;
}

std::vector<float> Dense(uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  std::vector<float> out(21);
  for (float& x : out) x = static_cast<float>(random.Uniform());
  return out;
}

// Trains three steps and takes a checkpoint with tables in memory. Returns the digest.
// Table 0 has the precision that is asked for.
absl::StatusOr<CollectionDigest> MakeCheckpoint(
    Env* env, WeightsPrecision precision = WeightsPrecision::kFp32) {
  EmbeddingCollectionOptions options = Options(env);
  options.tables[0].weights_precision = precision;
  const std::string snapshot_dir = absl::StrCat(kRun, "/tables");
  std::get<MemoryStorage>(options.store).snapshot_dir = snapshot_dir;
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(*env, snapshot_dir));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<EmbeddingCollection> tables,
                          EmbeddingCollection::Create(options, {}));
  RandomStream random(7, RandomPurpose::kTest);
  for (int step = 0; step < 3; ++step) {
    std::vector<uint64_t> values;
    std::vector<int64_t> offsets = {0};
    for (int bag = 0; bag < 4 * 8; ++bag) {
      if (bag < 3 * 8) {
        const uint64_t key = random.Below(20);
        values.push_back(key == 19 ? UINT64_MAX : key);
      }
      offsets.push_back(static_cast<int64_t>(values.size()));
    }
    std::vector<float> pooled(static_cast<size_t>(8 * tables->pooled_dim()));
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep in_flight, tables->Prefetch({8, values, offsets, {}}));
    HOTROW_RETURN_IF_ERROR(in_flight.Lookup(
        {.pooled = {pooled.data(), in_flight.batch_size(), tables->pooled_dim()}}));
    for (float& x : pooled) x = static_cast<float>(random.Uniform()) - 0.5f;
    HOTROW_RETURN_IF_ERROR(std::move(in_flight).Update(
        {.pooled = {pooled.data(), in_flight.batch_size(), tables->pooled_dim()}}));
  }
  SavedModel model = Description();
  model.tables[0].weights_precision = precision;
  model.is_checkpoint = true;
  model.step = 3;
  model.parts = {{.store = "memory", .tables_dir = snapshot_dir, .snapshot = 5}};
  HOTROW_RETURN_IF_ERROR(tables->snapshots().Prepare(5));
  const std::vector<float> parameters = Dense(1);
  const std::vector<float> momentum1 = Dense(2);
  const std::vector<float> momentum2 = Dense(3);
  HOTROW_RETURN_IF_ERROR(
      WriteCheckpoint(*env, kRun, model, {parameters, momentum1, momentum2}).status());
  return tables->Digest();
}

absl::Status Export(Env* env, int64_t shard_bytes = 300) {
  return ExportPortable({.checkpoint = kRun, .dir = kOut, .shard_bytes = shard_bytes, .env = env})
      .status();
}

ImportOptions Import(Env* env, StoreKind store = StoreKind::kMemory) {
  ImportOptions options;
  options.dir = kOut;
  options.checkpoint = kBack;
  options.store = store;
  options.store_bytes = int64_t{16} << 20;
  options.disk_bytes = int64_t{4} << 20;
  options.memory_bytes = 1 << 20;
  options.env = env;
  return options;
}

std::string ReadText(Env& env, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(env, path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? *text : "";
}

// Everything that a checkpoint should bring back, as far as its rows were as `digest` says.
void ExpectSameModel(Env& env, const std::string& checkpoint, const CollectionDigest& digest,
                     StoreKind store) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, checkpoint));
  const SavedModel expected = Description();
  EXPECT_TRUE(saved.is_checkpoint);
  ASSERT_EQ(saved.parts.size(), 1u);
  EXPECT_EQ(saved.parts[0].store, StoreKindName(store));
  EXPECT_EQ(saved.model, expected.model);
  EXPECT_EQ(saved.shape, expected.shape);
  EXPECT_EQ(saved.seed, expected.seed);
  EXPECT_EQ(saved.step, 3);
  EXPECT_EQ(saved.num_dense, expected.num_dense);
  EXPECT_TRUE(saved.features == expected.features);
  EXPECT_EQ(saved.dense_optimizer, expected.dense_optimizer);
  ASSERT_NE(saved.training, nullptr);
  EXPECT_EQ(TrainingStateToJson(*saved.training), TrainingStateToJson(*expected.training));
  HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors dense, ReadSavedDense(env, saved));
  EXPECT_EQ(dense.parameters, Dense(1));
  EXPECT_EQ(dense.momentum1, Dense(2));
  EXPECT_EQ(dense.momentum2, Dense(3));
  ASSERT_EQ(saved.tables.size(), 3u);
  EXPECT_EQ(saved.tables[0].initializer->value, 0.1f);
  EXPECT_FALSE(saved.tables[1].initializer.has_value());
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report,
                              VerifyCheckpoint(env, checkpoint, int64_t{16} << 20));
  EXPECT_THAT(report.damage, testing::IsEmpty());
  ASSERT_EQ(report.tables.size(), 3u);
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_EQ(report.tables[t].rows, digest.tables[t].rows);
    EXPECT_TRUE(report.tables[t].hash == digest.tables[t].hash);
  }
}

TEST(PortableModelTest, ExportAndImportBringEverythingBack) {
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    MemEnv env;
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&env));
    EXPECT_EQ(digest.tables[2].rows, 0);
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const PortableSummary summary,
        ExportPortable({.checkpoint = kRun, .dir = kOut, .shard_bytes = 300, .env = &env}));
    EXPECT_EQ(summary.tables[0].rows, digest.tables[0].rows);
    EXPECT_GT(summary.files, 20);
    HOTROW_ASSERT_OK(ImportPortable(Import(&env, store)));
    ExpectSameModel(env, kBack, digest, store);
    // And once more, out of that store.
    HOTROW_ASSERT_OK(ExportPortable({.checkpoint = kBack, .dir = "/run/again", .env = &env}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const PortableSummary again,
                                VerifyPortable(env, "/run/again", 1 << 20));
    for (size_t t = 0; t < 3; ++t) EXPECT_TRUE(again.tables[t].hash == digest.tables[t].hash);
  }
}

// The tables of the collection that trains, not only rows by themselves.
TEST(PortableModelTest, ACollectionOpensWhatWasImported) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(Export(&env));
  HOTROW_ASSERT_OK(ImportPortable(Import(&env)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kBack));
  EmbeddingCollectionOptions options = Options(&env);
  options.start.from = {{.snapshot = saved.parts[0].snapshot, .dir = saved.parts[0].tables_dir}};
  options.start.steps = saved.step;
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EmbeddingCollection> tables,
                              EmbeddingCollection::Create(options, {}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest opened, tables->Digest());
  EXPECT_TRUE(opened.hash == digest.hash);
  HOTROW_EXPECT_OK(CheckSavedTables(saved, opened));
}

TEST(PortableModelTest, WeightsOf16BitsComeBack) {
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const WeightsPrecision precision : {WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
      const std::string name(WeightsPrecisionName(precision));
      SCOPED_TRACE(name);
      MemEnv env;
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&env, precision));
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const PortableSummary summary,
          ExportPortable({.checkpoint = kRun, .dir = kOut, .shard_bytes = 300, .env = &env}));
      // As many bytes as of fp32: 17 columns of weights and two of state, key, step.
      EXPECT_EQ(summary.bytes, digest.tables[0].rows * (4 * 17 * 3 + 12) +
                                   digest.tables[1].rows * (4 * (3 + 1) + 12));
      const Json json = Json::parse(ReadText(env, kOutManifest));
      EXPECT_EQ(json["requires"], Json::array({"weights_precision"}));
      EXPECT_EQ(json["tables"][0]["weights_precision"], name);
      EXPECT_EQ(json["tables"][0]["arrays"][1]["dtype"], "<f4");
      EXPECT_FALSE(json["tables"][1].contains("weights_precision"));
      HOTROW_ASSERT_OK(ImportPortable(Import(&env, store)));
      ExpectSameModel(env, kBack, digest, store);
      HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kBack));
      EXPECT_EQ(saved.tables[0].weights_precision, precision);
      EXPECT_EQ(saved.tables[1].weights_precision, WeightsPrecision::kFp32);
      // The tables that train take it.
      EmbeddingCollectionOptions options = Options(&env);
      options.tables[0].weights_precision = precision;
      options.start.from = {
          {.snapshot = saved.parts[0].snapshot, .store = store, .dir = saved.parts[0].tables_dir}};
      options.start.steps = saved.step;
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest opened, tables->Digest());
      EXPECT_TRUE(opened.hash == digest.hash);
    }
  }
}

// Another word in the manifest makes rows of another precision, if that is meant.
TEST(PortableModelTest, AnEditedPrecisionConvertsTheWeights) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest,
                              MakeCheckpoint(&env, WeightsPrecision::kBf16));
  HOTROW_ASSERT_OK(Export(&env));
  Json json = Json::parse(ReadText(env, kOutManifest));
  json["tables"][0]["weights_precision"] = "fp8";
  HOTROW_ASSERT_OK(WriteFileAtomically(env, kOutManifest, json.dump()));
  EXPECT_THAT(ImportPortable(Import(&env)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"tables[0].weights_precision\" is"),
                             HasSubstr("fp32, fp16 or bf16"))));
  json["requires"] = Json::array();
  json["tables"][0].erase("weights_precision");
  HOTROW_ASSERT_OK(WriteFileAtomically(env, kOutManifest, json.dump()));
  EXPECT_THAT(ImportPortable(Import(&env)),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("table \"users\""), HasSubstr("--edited"))));
  ImportOptions edited = Import(&env);
  edited.edited = true;
  HOTROW_ASSERT_OK(ImportPortable(edited));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kBack));
  EXPECT_EQ(saved.tables[0].weights_precision, WeightsPrecision::kFp32);
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report,
                              VerifyCheckpoint(env, kBack, int64_t{16} << 20));
  EXPECT_THAT(report.damage, testing::IsEmpty());
  EXPECT_EQ(report.tables[0].rows, digest.tables[0].rows);
  EXPECT_FALSE(report.tables[0].hash == digest.tables[0].hash);
  EXPECT_TRUE(report.tables[1].hash == digest.tables[1].hash);
}

TEST(PortableModelTest, StoresWhereTheyAreAskedFor) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(Export(&env));
  ImportOptions options = Import(&env, StoreKind::kSsd);
  options.store_path = "/disk/store";
  HOTROW_ASSERT_OK(ImportPortable(options));
  ExpectSameModel(env, kBack, digest, StoreKind::kSsd);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kBack));
  EXPECT_EQ(saved.parts[0].tables_dir, "/disk/store");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto left, env.ListDir("/disk"));
  EXPECT_EQ(left.size(), 1u) << testing::PrintToString(left);

  // A place in the checkpoint moves with it.
  options.checkpoint = "/run/inside";
  options.store_path = "/run/inside/rows/here";
  HOTROW_ASSERT_OK(ImportPortable(options));
  HOTROW_ASSERT_OK(env.Rename("/run/inside", "/run/moved"));
  ExpectSameModel(env, "/run/moved", digest, StoreKind::kSsd);

  // Refused, with nothing made.
  options.checkpoint = "/run/third";
  options.store_path = "/disk/store";
  EXPECT_THAT(ImportPortable(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                HasSubstr("/disk/store: is there already")));
  options.store_path = "/run";
  EXPECT_THAT(ImportPortable(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/run: is there already")));
  options.checkpoint = "/new/store/third";
  options.store_path = "/new/store";
  EXPECT_THAT(ImportPortable(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must not lie in")));
  options.checkpoint = "/run/third";
  options.store = StoreKind::kMemory;
  EXPECT_THAT(ImportPortable(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("store_path")));
  for (const char* const path : {"/run/third", "/new/store"}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool exists, env.Exists(path));
    EXPECT_FALSE(exists) << path;
  }
}

// RocksDB has no Env of ours.
TEST(PortableModelTest, RocksDbTakesItToo) {
  if (!ParseStoreKind("rocksdb").ok()) GTEST_SKIP() << "built without RocksDB";
  MemEnv memory;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&memory));
  HOTROW_ASSERT_OK(Export(&memory));
  // The export as real files.
  const std::string dir = test::TempDir();
  const std::function<void(const std::string&)> copy = [&](const std::string& path) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, memory.ListDir(kOut + path));
    HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir + "/out" + path));
    for (const std::string& name : names) {
      const std::string at = absl::StrCat(path, "/", name);
      if (memory.ListDir(kOut + at).ok()) {
        copy(at);
      } else {
        HOTROW_ASSERT_OK(
            WriteFileAtomically(PosixEnv(), dir + "/out" + at, ReadText(memory, kOut + at)));
      }
    }
  };
  copy("");
  for (const bool outside : {false, true}) {
    ImportOptions options = Import(nullptr, StoreKind::kRocksDb);
    options.dir = dir + "/out";
    options.checkpoint = absl::StrCat(dir, "/back", outside);
    options.disk_bytes = int64_t{64} << 20;
    if (outside) options.store_path = dir + "/rocks";
    HOTROW_ASSERT_OK(ImportPortable(options));
    ExpectSameModel(PosixEnv(), options.checkpoint, digest, StoreKind::kRocksDb);
  }
}

TEST(PortableModelTest, ADirectoryThatIsThereIsLeftAlone) {
  MemEnv env;
  HOTROW_ASSERT_OK(MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(env.CreateDirs(kOut));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/run/out/thesis.txt", "years of work"));
  EXPECT_THAT(Export(&env), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     AllOf(HasSubstr("/run/out: is there already and not empty"),
                                           HasSubstr("not there yet"))));
  EXPECT_EQ(ReadText(env, "/run/out/thesis.txt"), "years of work");
  HOTROW_ASSERT_OK(env.Remove("/run/out/thesis.txt"));
  HOTROW_ASSERT_OK(Export(&env));  // an empty directory is fine
  HOTROW_ASSERT_OK(env.CreateDirs("/run/back/x"));
  EXPECT_THAT(ImportPortable(Import(&env)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/run/back: is there")));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/run/file", "x"));
  ImportOptions options = Import(&env);
  options.checkpoint = "/run/file";
  EXPECT_THAT(ImportPortable(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                HasSubstr("/run/file: is no directory")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir("/run"));
  EXPECT_EQ(names.size(), 4u) << testing::PrintToString(names);  // back, ckpt, file, out
}

TEST(PortableModelTest, TheManifestSaysWhatIsWrongWithIt) {
  MemEnv env;
  HOTROW_ASSERT_OK(MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(Export(&env));
  const std::string good = ReadText(env, kOutManifest);
  const Json json = Json::parse(good);
  const auto refused = [&](const std::function<void(Json&)>& change, absl::StatusCode code,
                           const std::string& message) {
    Json changed = json;
    change(changed);
    HOTROW_ASSERT_OK(WriteFileAtomically(env, kOutManifest, changed.dump()));
    EXPECT_THAT(ImportPortable(Import(&env)),
                StatusIs(code, AllOf(HasSubstr(kOut), HasSubstr(message))));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  refused([](Json& j) { j.erase("step"); }, kInvalid, "\"step\" is missing, expected a whole");
  refused([](Json& j) { j["step"] = -1; }, kInvalid, "\"step\" is -1, expected a whole");
  refused([](Json& j) { j["step"] = int64_t{1} << 32; }, kInvalid, "from 0 to 4294967295");
  refused([](Json& j) { j["tables"][1]["dim"] = "3"; }, kInvalid, "\"tables[1].dim\" is");
  refused([](Json& j) { j["tables"][1]["dim"] = 0; }, kInvalid, "from 1 to");
  refused([](Json& j) { j["tables"][1]["dtype"] = "float16"; }, kInvalid, "\"tables[1].dtype\"");
  refused([](Json& j) { j["tables"][1]["name"] = "users"; }, kInvalid, "a unique name");
  refused([](Json& j) { j["tables"][1]["optimizer"] = "adamw"; }, kInvalid,
          "\"tables[1].optimizer\" is");
  refused([](Json& j) { j["tables"][0]["initializer"]["kind"] = "ones"; }, kInvalid,
          "\"tables[0].initializer.kind\" is");
  refused([](Json& j) { j["tables"][0]["arrays"][1].erase("files"); }, kInvalid,
          "\"tables[0].arrays[1].files\" is missing");
  refused([](Json& j) { j["tables"][0]["arrays"][1]["files"][0]["crc32c"] = 7; }, kInvalid,
          "\"tables[0].arrays[1].files[0].crc32c\"");
  refused([](Json& j) { j["tables"][0]["arrays"][2]["name"] = "keys"; }, kInvalid,
          "each array once");
  refused([](Json& j) { j["tables"][0]["arrays"].erase(3); }, kInvalid,
          "table \"users\" has no array \"momentum2\"");
  refused([](Json& j) { j["tables"][0]["hash"] = "12"; }, kInvalid, "32 hexadecimal digits");
  refused([](Json& j) { j["tables"] = Json::array(); }, kInvalid, "one table at least");
  refused([](Json& j) { j["features"][0]["table"] = "nobody"; }, kInvalid, "the name of a table");
  refused([](Json& j) { j["dense"]["file"] = "../dense"; }, kInvalid, "\"dense.file\"");
  refused([](Json& j) { j["dense"]["optimizer"] = "lion"; }, kInvalid, "\"dense.optimizer\"");
  refused([](Json& j) { j["dense"]["parameters"] = 20; }, absl::StatusCode::kDataLoss,
          "dense.safetensors");
  refused([](Json& j) { j["dense"]["optimizer"] = "sgd"; }, kInvalid, "2 arrays of optimizer");
  refused([](Json& j) { j["training"].erase("policy"); }, kInvalid, "training");
  refused([](Json& j) { j["shape"]["pooling"] = 3; }, kInvalid, "\"shape.pooling\"");
  refused([](Json& j) { j["format"] = "parquet"; }, kPrecondition, "\"parquet\"");
  refused([](Json& j) { j["version"] = 2; }, kPrecondition, "has version 2");
  refused([](Json& j) { j["requires"] = {"float16"}; }, kPrecondition, "requires \"float16\"");
  HOTROW_ASSERT_OK(WriteFileAtomically(env, kOutManifest, good.substr(0, good.size() / 2)));
  EXPECT_THAT(ImportPortable(Import(&env)), StatusIs(kInvalid, HasSubstr("is no JSON")));
  HOTROW_ASSERT_OK(env.Remove(kOutManifest));
  EXPECT_THAT(ImportPortable(Import(&env)),
              StatusIs(kPrecondition, HasSubstr("there is no /run/out/manifest.json")));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, kOutManifest, good));
  HOTROW_ASSERT_OK(ImportPortable(Import(&env)));
}

// What an editor may leave out, and what a reader passes over.
TEST(PortableModelTest, OptionalMembersMayGo) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(Export(&env));
  Json json = Json::parse(ReadText(env, kOutManifest));
  json.erase("training");
  json.erase("seed");
  json["note"] = "a member that nobody knows";
  json["dense"].erase("crc32c");
  for (Json& table : json["tables"]) {
    for (const char* const name : {"rows", "hash", "initializer"}) table.erase(name);
    for (Json& array : table["arrays"]) {
      array.erase("shape");
      array.erase("dtype");
      for (Json& file : array["files"]) file.erase("crc32c");
    }
    table["arrays"].push_back({{"name", "frequency"}, {"files", Json::array()}});
  }
  HOTROW_ASSERT_OK(WriteFileAtomically(env, kOutManifest, json.dump()));
  HOTROW_ASSERT_OK(ImportPortable(Import(&env)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kBack));
  EXPECT_EQ(saved.training, nullptr);
  EXPECT_FALSE(saved.seed.has_value());
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(env, kBack, 0));
  EXPECT_TRUE(report.tables[0].hash == digest.tables[0].hash);
  EXPECT_THAT(report.damage, testing::IsEmpty());
}

TEST(PortableModelTest, EditedArraysAreTakenWhenToldSo) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(Export(&env));
  HOTROW_ASSERT_OK_AND_ASSIGN(const PortableModel portable,
                              ReadPortableManifest(env, kOut, /*edited=*/false));
  const std::string path = absl::StrCat(kOut, "/", portable.tables[0].arrays[1].files[0].name);
  std::string text = ReadText(env, path);
  text[130] = static_cast<char>(text[130] ^ 1);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, path, text));
  ImportOptions options = Import(&env);
  EXPECT_THAT(ImportPortable(options),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(path), HasSubstr("--edited"))));
  EXPECT_THAT(VerifyPortable(env, kOut, 1 << 20),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
  options.edited = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(const PortableSummary summary, ImportPortable(options));
  EXPECT_FALSE(summary.tables[0].hash == digest.tables[0].hash);
  EXPECT_TRUE(summary.tables[1].hash == digest.tables[1].hash);
  // The new hash is that of the checkpoint.
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(env, kBack, 0));
  EXPECT_THAT(report.damage, testing::IsEmpty());
}

TEST(PortableModelTest, ADamagedCheckpointIsNotExported) {
  MemEnv env;
  HOTROW_ASSERT_OK(MakeCheckpoint(&env));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport good, VerifyCheckpoint(env, kRun, 0));
  ASSERT_EQ(good.files.size(), 3u);
  EXPECT_THAT(good.damage, testing::IsEmpty());
  EXPECT_THAT(good.checkpoints, testing::ElementsAre("step-000000000003"));
  EXPECT_GT(good.rows, 20);
  for (const CheckpointReport::File& file : good.files) {
    for (int64_t byte = 0; byte < file.bytes; byte += 1 + file.bytes / 61) {
      SCOPED_TRACE(absl::StrCat(file.path, " byte ", byte));
      HOTROW_ASSERT_OK(env.FlipBit(file.path, 8 * byte + 3));
      const absl::Status exported = Export(&env);
      EXPECT_THAT(exported, testing::Not(test::IsOk()));
      EXPECT_THAT(std::string(exported.message()), HasSubstr(file.path));
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir("/run"));
      EXPECT_EQ(names.size(), 1u) << testing::PrintToString(names);
      const absl::StatusOr<CheckpointReport> report = VerifyCheckpoint(env, kRun, 0);
      if (report.ok()) {
        ASSERT_EQ(report->damage.size(), 1u);
        EXPECT_THAT(report->damage[0], HasSubstr(file.path));
      } else {
        // The manifest itself, or a version of the snapshot that seems newer.
        EXPECT_THAT(std::string(report.status().message()), HasSubstr(file.path));
      }
      HOTROW_ASSERT_OK(env.FlipBit(file.path, 8 * byte + 3));
    }
  }
  // A part that was not copied.
  for (size_t i = 1; i < 3; ++i) {
    const std::string text = ReadText(env, good.files[i].path);
    HOTROW_ASSERT_OK(env.Remove(good.files[i].path));
    EXPECT_THAT(Export(&env), testing::Not(test::IsOk()));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(env, kRun, 0));
    EXPECT_THAT(report.damage, testing::ElementsAre(HasSubstr(good.files[i].path)));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport seen, InspectCheckpoint(env, kRun, 0));
    EXPECT_THAT(seen.damage, testing::ElementsAre(HasSubstr(good.files[i].path)));
    HOTROW_ASSERT_OK(WriteFileAtomically(env, good.files[i].path, text));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport seen, InspectCheckpoint(env, kRun, 0));
  EXPECT_EQ(seen.rows, good.rows);
  HOTROW_EXPECT_OK(Export(&env));
}

// --- Faults, kills and power losses --------------------------------------------------------------

// Few files, so that a walk over all calls is short.
constexpr int64_t kLongShards = 1 << 20;

// Runs an action while call k fails, or all from k on (a kill), then perhaps loses power. Under
// `path` there is nothing then, or the whole; if the action said OK the whole; and the next try
// makes it. Returns false when the action makes fewer than k + 1 calls.
bool RunWithFault(int64_t k, bool all_from_k, bool lose_power, bool prepare_export,
                  const std::function<absl::Status(FaultyEnv&)>& action, const std::string& path,
                  const std::function<absl::Status(FaultyEnv&)>& check) {
  SCOPED_TRACE(testing::Message() << "call " << k << (all_from_k ? " and all after it" : "")
                                  << (lose_power ? ", power lost" : ""));
  FaultyEnv env;
  HOTROW_EXPECT_OK(MakeCheckpoint(&env));
  if (prepare_export) {
    HOTROW_EXPECT_OK(Export(&env, kLongShards));
  }
  HOTROW_EXPECT_OK(env.SyncDir("/"));
  HOTROW_EXPECT_OK(env.SyncDir("/run"));
  if (all_from_k) {
    env.FailFrom(env.calls() + k, absl::DataLossError("injected"));
  } else {
    env.FailCall(env.calls() + k, absl::DataLossError("injected"));
  }
  const absl::Status done = action(env);
  if (env.faults() == 0) {  // the fault is still to come
    HOTROW_EXPECT_OK(done);
    return false;
  }
  env.FailFrom(INT64_MAX, absl::OkStatus());
  if (lose_power) env.DropUnsyncedData();
  const absl::StatusOr<bool> exists = env.Exists(path);
  HOTROW_EXPECT_OK(exists);
  if (!exists.ok()) return false;
  if (*exists) {
    HOTROW_EXPECT_OK(check(env));
  } else {
    EXPECT_FALSE(done.ok());
    HOTROW_EXPECT_OK(action(env));
    HOTROW_EXPECT_OK(check(env));
  }
  const auto names = env.ListDir("/run");
  HOTROW_EXPECT_OK(names);
  if (names.ok()) {
    for (const std::string& name : *names) {
      EXPECT_FALSE(absl::StrContains(name, "partial") && *exists && done.ok()) << name;
    }
  }
  return true;
}

void WalkFaults(bool prepare_export, const std::function<absl::Status(FaultyEnv&)>& action,
                const std::string& path, const std::function<absl::Status(FaultyEnv&)>& check,
                int64_t calls_min) {
  // The walks begin at different calls, so that together they meet all.
  const int64_t stride = test::RunsSlowTests() ? 1 : test::ForSanitizer(4, 14);
  int64_t turn = 0;
  for (const bool all_from_k : {false, true}) {
    for (const bool lose_power : {false, true}) {
      int64_t k = turn++;
      while (RunWithFault(k, all_from_k, lose_power, prepare_export, action, path, check) &&
             !testing::Test::HasFailure()) {
        k += stride;
      }
      EXPECT_GT(k, calls_min);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(PortableModelTest, AFaultAtAnyCallOfAnExportLeavesNothingOrTheWhole) {
  WalkFaults(
      false,
      [](FaultyEnv& env) {
        return ExportPortable({.checkpoint = kRun, .dir = kOut, .env = &env}).status();
      },
      kOut, [](FaultyEnv& env) { return VerifyPortable(env, kOut, 1 << 20).status(); }, 100);
}

absl::Status CheckBack(FaultyEnv& env) {
  HOTROW_ASSIGN_OR_RETURN(const CheckpointReport report, VerifyCheckpoint(env, kBack, 16 << 20));
  if (report.damage.empty()) return absl::OkStatus();
  return absl::DataLossError(report.damage[0]);
}

TEST(PortableModelTest, AFaultAtAnyCallOfAnImportLeavesNothingOrTheWhole) {
  WalkFaults(
      true, [](FaultyEnv& env) { return ImportPortable(Import(&env)).status(); }, kBack, CheckBack,
      100);
}

TEST(PortableModelTest, AFaultAtAnyCallOfAnImportIntoAnSsdStore) {
  WalkFaults(
      true, [](FaultyEnv& env) { return ImportPortable(Import(&env, StoreKind::kSsd)).status(); },
      kBack, CheckBack, 150);
}

// The store outside is renamed first: a checkpoint is never there without it. When the next try
// finds the store alone it says so.
TEST(PortableModelTest, AFaultWhileTheStoreIsElsewhereLeavesNoCheckpointWithoutIt) {
  const int64_t stride = test::RunsSlowTests() ? 1 : test::ForSanitizer(4, 14);
  int64_t turn = 0;
  for (const bool all_from_k : {false, true}) {
    for (const bool lose_power : {false, true}) {
      bool more = true;
      for (int64_t k = turn++; more && !HasFailure(); k += stride) {
        SCOPED_TRACE(testing::Message() << "call " << k << ", " << all_from_k << lose_power);
        FaultyEnv env;
        HOTROW_ASSERT_OK(MakeCheckpoint(&env));
        HOTROW_ASSERT_OK(Export(&env, kLongShards));
        HOTROW_ASSERT_OK(env.SyncDir("/"));
        ImportOptions options = Import(&env, StoreKind::kSsd);
        options.store_path = "/disk/store";
        if (all_from_k) {
          env.FailFrom(env.calls() + k, absl::DataLossError("injected"));
        } else {
          env.FailCall(env.calls() + k, absl::DataLossError("injected"));
        }
        const absl::Status done = ImportPortable(options).status();
        more = env.faults() > 0;
        if (!more) {
          HOTROW_EXPECT_OK(done);
          break;
        }
        env.FailFrom(INT64_MAX, absl::OkStatus());
        if (lose_power) env.DropUnsyncedData();
        HOTROW_ASSERT_OK_AND_ASSIGN(const bool exists, env.Exists(kBack));
        if (exists) {
          HOTROW_EXPECT_OK(CheckBack(env));
          continue;
        }
        EXPECT_FALSE(done.ok());
        const absl::Status again = ImportPortable(options).status();
        HOTROW_ASSERT_OK_AND_ASSIGN(const bool store_exists, env.Exists("/disk/store"));
        if (again.ok()) {
          HOTROW_EXPECT_OK(CheckBack(env));
        } else {
          EXPECT_TRUE((all_from_k || lose_power) && store_exists) << again;
          EXPECT_THAT(again, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("/disk/store: is there already")));
        }
      }
    }
  }
}

TEST(PortableModelTest, AFullDiskIsSaidAndLeavesNothing) {
  FaultyEnv env;
  HOTROW_ASSERT_OK(MakeCheckpoint(&env));
  env.SetCapacity(20 << 10);
  EXPECT_THAT(Export(&env), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(kOut)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir("/run"));
  EXPECT_EQ(names.size(), 1u) << testing::PrintToString(names);
  env.SetCapacity(INT64_MAX);
  HOTROW_ASSERT_OK(Export(&env));
  // A store's budget is named by the store.
  ImportOptions options = Import(&env);
  options.store_bytes = 8 << 10;
  EXPECT_THAT(ImportPortable(options),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("budget")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool exists, env.Exists(kBack));
  EXPECT_FALSE(exists);
}

// --- Several ranks -------------------------------------------------------------------------------

constexpr int32_t kRanks = 3;
constexpr char kMany[] = "/run/many";

struct Row {
  RowKey key;
  std::vector<std::byte> bytes;
};

std::vector<Row> RowsOfPart(Env& env, const SavedModel& saved, int32_t rank) {
  std::vector<Row> out;
  const auto reader = OpenSavedPart(env, saved, rank, 0);
  HOTROW_EXPECT_OK(reader);
  if (!reader.ok()) return out;
  HOTROW_EXPECT_OK((*reader)->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    out.push_back({key, {row.begin(), row.end()}});
    return absl::OkStatus();
  }));
  return out;
}

// The checkpoint kRun as kRanks ranks would have written it, into kMany: the second of them has its
// rows on an SSD. is_of_part says which rows a rank gets.
absl::Status MakeManyParts(Env* env,
                           const std::function<bool(int32_t rank, const RowKey&)>& is_of_part) {
  HOTROW_ASSIGN_OR_RETURN(SavedModel model, ReadCheckpoint(*env, kRun));
  HOTROW_ASSIGN_OR_RETURN(const DenseVectors dense, ReadSavedDense(*env, model));
  HOTROW_ASSIGN_OR_RETURN(const auto one, OpenSavedPart(*env, model, 0, 0));
  const std::vector<StoreTable> tables(one->tables().begin(), one->tables().end());
  const std::vector<Row> rows = RowsOfPart(*env, model, 0);
  model.parts.clear();
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const bool on_disk = rank == 1;
    const std::string dir =
        on_disk ? RankDir("/disk/rows", rank, kRanks) : SavedTablesDir(kMany, rank, kRanks);
    HOTROW_RETURN_IF_ERROR(CreateDirsDurably(*env, dir));
    std::unique_ptr<RowStore> store;
    if (on_disk) {
      SsdStoreOptions options;
      options.path = dir;
      options.tables = tables;
      options.memory_budget_bytes = int64_t{8} << 20;
      options.disk_budget_bytes = int64_t{4} << 20;
      options.background = false;
      options.env = env;
      HOTROW_ASSIGN_OR_RETURN(store, SsdStore::Open(options));
    } else {
      HOTROW_ASSIGN_OR_RETURN(store, HostStore::Open({.tables = tables,
                                                      .budget_bytes = int64_t{8} << 20,
                                                      .snapshot_dir = dir,
                                                      .env = env}));
    }
    for (const Row& row : rows) {
      if (!is_of_part(rank, row.key)) continue;
      const std::byte* const bytes = row.bytes.data();
      HOTROW_RETURN_IF_ERROR(store->InsertOrAssign({&row.key, 1}, {&bytes, 1}));
    }
    const auto snapshot = static_cast<SnapshotId>(40 + rank);
    HOTROW_RETURN_IF_ERROR(store->PrepareSnapshot(snapshot));
    HOTROW_RETURN_IF_ERROR(store->CommitSnapshot(snapshot));
    model.parts.push_back(
        {.store = on_disk ? "ssd" : "memory", .tables_dir = dir, .snapshot = snapshot});
  }
  return WriteCheckpoint(*env, kMany, model, dense.arrays()).status();
}

bool IsOwned(int32_t rank, const RowKey& key) { return OwnerRank(key, kRanks) == rank; }

// All rows of an export, by table and key.
std::map<std::pair<uint32_t, uint64_t>, std::vector<std::byte>> RowsOfExport(
    Env& env, const std::string& dir) {
  std::map<std::pair<uint32_t, uint64_t>, std::vector<std::byte>> out;
  const absl::StatusOr<PortableModel> portable = ReadPortableManifest(env, dir, false);
  HOTROW_EXPECT_OK(portable);
  if (!portable.ok()) return out;
  EXPECT_THAT(ReadPortableTables({.dir = dir, .env = &env}, portable->tables,
                                 [&](const PortableRows& batch) {
                                   for (size_t i = 0; i < batch.keys.size(); ++i) {
                                     const RowKey& key = batch.keys[i];
                                     const PortableTable& table = portable->tables[key.table];
                                     const int64_t bytes = table.layout().payload_bytes;
                                     auto& row = out[{key.table, key.key}];
                                     EXPECT_TRUE(row.empty()) << "twice";
                                     row.assign(batch.rows[i], batch.rows[i] + bytes);
                                   }
                                   return absl::OkStatus();
                                 }),
              test::IsOk());
  return out;
}

TEST(PortableModelTest, AnExportOfSeveralRanksEqualsThatOfOne) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(MakeManyParts(&env, IsOwned));
  // So that it means something.
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel many, ReadCheckpoint(env, kMany));
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_GT(RowsOfPart(env, many, rank).size(), 5u);
  }
  HOTROW_ASSERT_OK(Export(&env));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const PortableSummary summary,
      ExportPortable(
          {.checkpoint = kMany, .dir = "/run/out_many", .shard_bytes = 300, .env = &env}));
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_EQ(summary.tables[t].rows, digest.tables[t].rows);
    EXPECT_TRUE(summary.tables[t].hash == digest.tables[t].hash);
  }
  const auto rows = RowsOfExport(env, kOut);
  EXPECT_GT(rows.size(), 20u);
  EXPECT_EQ(RowsOfExport(env, "/run/out_many"), rows);
  EXPECT_EQ(ReadText(env, "/run/out_many/dense.safetensors"),
            ReadText(env, absl::StrCat(kOut, "/dense.safetensors")));
  // An import makes one part of it.
  ImportOptions import = Import(&env);
  import.dir = "/run/out_many";
  HOTROW_ASSERT_OK(ImportPortable(import));
  ExpectSameModel(env, kBack, digest, StoreKind::kMemory);
}

TEST(PortableModelTest, PartsAreCountedEachForItself) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(MakeManyParts(&env, IsOwned));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel many, ReadCheckpoint(env, kMany));
  int64_t all = 0;
  for (const TableDigest& table : digest.tables) all += table.rows;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport seen, InspectCheckpoint(env, kMany, 0));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport verified, VerifyCheckpoint(env, kMany, 0));
  for (const CheckpointReport* const report : {&seen, &verified}) {
    EXPECT_THAT(report->damage, testing::IsEmpty());
    EXPECT_EQ(report->rows, all);
    EXPECT_EQ(report->files.size(), 4u);  // manifest, dense, two snapshots in memory
    ASSERT_EQ(report->part_rows.size(), static_cast<size_t>(kRanks));
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(report->part_rows[static_cast<size_t>(rank)],
                static_cast<int64_t>(RowsOfPart(env, many, rank).size()));
    }
  }
  // A part that is gone is named; the others are still looked at.
  const std::string& gone = seen.files[3].path;
  EXPECT_THAT(gone, HasSubstr("/run/many/tables/rank-00002-of-00003/"));
  HOTROW_ASSERT_OK(env.Remove(gone));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport less, VerifyCheckpoint(env, kMany, 0));
  EXPECT_THAT(less.damage, testing::ElementsAre(HasSubstr(gone)));
  EXPECT_EQ(less.rows, -1);
  EXPECT_EQ(less.part_rows[1], seen.part_rows[1]);
  EXPECT_EQ(less.part_rows[2], -1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport looked, InspectCheckpoint(env, kMany, 0));
  EXPECT_EQ(looked.rows, -1);
  EXPECT_EQ(looked.part_rows[0], seen.part_rows[0]);
  HOTROW_EXPECT_OK(Export(&env));
  EXPECT_THAT(ExportPortable({.checkpoint = kMany, .dir = "/run/no", .env = &env}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank-00002-of-00003")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool left, env.Exists("/run/no"));
  EXPECT_FALSE(left);
}

// In the wrong part, there alone or beside the one in the right part.
TEST(PortableModelTest, ARowInThePartOfAnotherRankIsDamage) {
  for (const bool twice : {false, true}) {
    for (const int32_t wrong : {0, 1}) {
      SCOPED_TRACE(absl::StrCat(twice, wrong));
      MemEnv env;
      HOTROW_ASSERT_OK(MakeCheckpoint(&env));
      const RowKey moved = {.key = UINT64_MAX, .table = 1};
      const int32_t owner = OwnerRank(moved, kRanks);
      if (owner == wrong) continue;
      HOTROW_ASSERT_OK(MakeManyParts(&env, [&](int32_t rank, const RowKey& key) {
        if (!(key == moved)) return IsOwned(rank, key);
        return rank == wrong || (twice && rank == owner);
      }));
      const auto message = AllOf(HasSubstr(absl::StrCat("rank-0000", wrong, "-of-00003")),
                                 HasSubstr("key 18446744073709551615 of table \"items\""),
                                 HasSubstr(absl::StrCat("in the part of rank ", wrong, " of 3")),
                                 HasSubstr(absl::StrCat("belongs to rank ", owner)));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(env, kMany, 0));
      EXPECT_THAT(report.damage, testing::ElementsAre(message));
      EXPECT_THAT(ExportPortable({.checkpoint = kMany, .dir = "/run/no", .env = &env}),
                  StatusIs(absl::StatusCode::kDataLoss, message));
    }
  }
  // All parts in the wrong places: a line for each.
  MemEnv env;
  HOTROW_ASSERT_OK(MakeCheckpoint(&env));
  HOTROW_ASSERT_OK(MakeManyParts(
      &env, [&](int32_t rank, const RowKey& key) { return IsOwned((rank + 1) % kRanks, key); }));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(env, kMany, 0));
  EXPECT_EQ(report.damage.size(), static_cast<size_t>(kRanks));
  for (const std::string& line : report.damage) EXPECT_THAT(line, HasSubstr("more rows"));
}

// Two that write one directory would mix their files; the second is told.
TEST(PortableModelTest, OneWriterForADirectory) {
  const std::string dir = test::TempDir();
  MemEnv memory;
  HOTROW_ASSERT_OK(MakeCheckpoint(&memory));
  const std::string out = dir + "/out";
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(out + ".hotrow-partial"));
  HOTROW_ASSERT_OK(
      WriteFileAtomically(PosixEnv(), out + ".hotrow-partial/left-behind", "of a killed one"));
  // A checkpoint among real files, made by hand of the one in memory.
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, InspectCheckpoint(memory, kRun, 0));
  for (const CheckpointReport::File& file : report.files) {
    const std::string path = dir + file.path;
    HOTROW_ASSERT_OK(PosixEnv().CreateDirs(path.substr(0, path.rfind('/'))));
    HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), path, ReadText(memory, file.path)));
  }
  const ExportOptions options = {.checkpoint = dir + kRun, .dir = out};
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<FileLock> lock,
        PosixEnv().LockFile(out + ".hotrow-partial/hotrow-partial.lock", LockMode::kExclusive));
    EXPECT_THAT(ExportPortable(options),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("out.hotrow-partial")));
  }
  HOTROW_ASSERT_OK(ExportPortable(options));
  HOTROW_ASSERT_OK(VerifyPortable(PosixEnv(), out, 1 << 20));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, PosixEnv().ListDir(out));
  EXPECT_THAT(names, testing::ElementsAre("dense.safetensors", "manifest.json", "tables"));
}

}  // namespace
}  // namespace hotrow
