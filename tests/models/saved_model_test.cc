#include "models/saving/saved_model.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/philox.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/manifest_json_impl.h"
#include "models/saving/saved_model_fit.h"
#include "models/saving/saved_model_writer.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/store_paths.h"
#include "models/saving/training_state.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::FaultyEnv;
using test::MemEnv;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kDir[] = "/run/model";
constexpr char kManifest[] = "/run/model/manifest.json";
const SavedModelUse kUse = {"--init_from=/d", "train anew without --init_from"};

SavedModel Description() {
  SavedModel model;
  model.model = "dlrm";
  model.shape = {{"over_arch_layer_sizes", "16-1"}, {"pooling", "sum"}};
  model.num_dense = 2;
  model.features = {{"user", "users"}, {"item", "items"}, {"history", "items"}};
  model.tables = {{.name = "users", .dim = 3, .optimizer = "adam"},
                  {.name = "items", .dim = 5, .optimizer = "rowwise_adagrad"}};
  model.dense_optimizer = "adam";
  model.num_parameters = 21;
  model.parts = {{.store = "memory"}};
  return model;
}

EmbeddingCollectionOptions Options(Env* env) {
  EmbeddingCollectionOptions options;
  TableConfig users;
  users.name = "users";
  users.embedding_dim = 3;
  users.feature_names = {"user"};
  users.optimizer.kind = SparseOptimizerKind::kAdam;
  users.initializer = {InitializerKind::kUniform, 0.1f};
  TableConfig items = users;
  items.name = "items";
  items.embedding_dim = 5;
  items.feature_names = {"item", "history"};
  items.optimizer.kind = SparseOptimizerKind::kRowWiseAdagrad;
  options.tables = {users, items};
  options.max_batch_size = 8;
  options.store = MemoryStorage{.memory_bytes = int64_t{32} << 20};
  options.cache.bytes = 0;
  options.evaluation_staging_bytes = 1 << 20;
  options.env = env;
  return options;
}

// A model in training: tables, dense arrays and the writer that saves them.
struct Training {
  std::vector<float> parameters = std::vector<float>(21);
  std::vector<float> momentum1 = std::vector<float>(21);
  std::vector<float> momentum2 = std::vector<float>(21);
  std::unique_ptr<EmbeddingCollection> tables;
  std::unique_ptr<SavedModelWriter> writer;
  std::string snapshot_dir;  // of the tables; empty: the writer's

  // Everything that a saved model should bring back.
  std::string State() const {
    absl::StatusOr<CollectionDigest> digest = tables->Digest();
    HOTROW_EXPECT_OK(digest);
    if (!digest.ok()) return "";
    std::string out = absl::StrCat(digest->hash.ToHex(), " at ", tables->steps());
    for (const std::vector<float>* array : {&parameters, &momentum1, &momentum2}) {
      absl::StrAppend(&out, " ", Crc32c(std::as_bytes(std::span(*array))));
    }
    return out;
  }

  void Step(uint64_t seed) {
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<uint64_t> values;
    std::vector<int64_t> offsets = {0};
    for (int bag = 0; bag < 3 * 8; ++bag) {
      values.push_back(random.Below(12));
      offsets.push_back(static_cast<int64_t>(values.size()));
    }
    std::vector<float> pooled(static_cast<size_t>(8 * tables->pooled_dim()));
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, tables->Prefetch({8, values, offsets, {}}));
    HOTROW_ASSERT_OK(
        step.Lookup({.pooled = {pooled.data(), step.batch_size(), tables->pooled_dim()}}));
    for (float& x : pooled) x = 0.3f * x + static_cast<float>(random.Uniform()) - 0.5f;
    HOTROW_ASSERT_OK(std::move(step).Update(
        {.pooled = {pooled.data(), step.batch_size(), tables->pooled_dim()}}));
    for (std::vector<float>* array : {&parameters, &momentum1, &momentum2}) {
      for (float& x : *array) x += static_cast<float>(random.Uniform());
    }
  }

  absl::Status Save() {
    SavedModel model = Description();
    model.parts[0].tables_dir = snapshot_dir.empty() ? writer->tables_dir() : snapshot_dir;
    return writer->Save(model, *tables, {parameters, momentum1, momentum2});
  }
};

// A new training that will save into kDir.
absl::StatusOr<Training> StartNew(Env* env) {
  Training out;
  HOTROW_ASSIGN_OR_RETURN(out.writer, SavedModelWriter::Open(env, kDir));
  EmbeddingCollectionOptions options = Options(env);
  std::get<MemoryStorage>(options.store).snapshot_dir = out.writer->tables_dir();
  HOTROW_ASSIGN_OR_RETURN(out.tables, EmbeddingCollection::Create(options, {}));
  return out;
}

// What is saved in kDir, loaded as the trainer does. It goes on saving into save_dir, if any.
absl::StatusOr<Training> Load(Env* env, const std::string& save_dir = "") {
  Training out;
  HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadSavedModel(*env, kDir));
  HOTROW_RETURN_IF_ERROR(CheckSavedModelFits(saved, Description(), kUse));
  EmbeddingCollectionOptions options = Options(env);
  options.start.from = {{.snapshot = saved.parts[0].snapshot, .dir = SavedTablesDir(kDir)}};
  options.start.steps = saved.step;
  if (!save_dir.empty()) {
    HOTROW_ASSIGN_OR_RETURN(out.writer, SavedModelWriter::Open(env, save_dir));
    std::get<MemoryStorage>(options.store).snapshot_dir = out.writer->tables_dir();
  }
  HOTROW_ASSIGN_OR_RETURN(out.tables, EmbeddingCollection::Create(options, {}));
  HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, out.tables->Digest());
  HOTROW_RETURN_IF_ERROR(CheckSavedTables(saved, digest));
  HOTROW_RETURN_IF_ERROR(
      ReadSavedDense(*env, saved, {out.parameters, out.momentum1, out.momentum2}));
  return out;
}

std::string ReadText(Env& env, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(env, path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? *text : "";
}

// Puts a text into the manifest's place with the checksum that belongs to it, as another version
// of the program would.
void ForgeManifest(Env& env, std::string text, const std::string& path = kManifest) {
  const std::string member = "\"manifest_crc32c\": \"";
  const size_t at = text.rfind(member) + member.size();
  text.replace(at, 8, "00000000");
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text)));
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x", crc);
  text.replace(at, 8, digits);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, path, text));
}

// Saves one model and returns its state.
std::string SaveOne(Env* env) {
  absl::StatusOr<Training> training = StartNew(env);
  HOTROW_EXPECT_OK(training);
  if (!training.ok()) return "";
  training->Step(1);
  training->Step(2);
  HOTROW_EXPECT_OK(training->Save());
  return training->State();
}

TEST(SavedModelTest, BringsEverythingBack) {
  MemEnv env;
  const std::string state = SaveOne(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const Training loaded, Load(&env));
  EXPECT_EQ(loaded.State(), state);
  EXPECT_EQ(loaded.tables->steps(), 2);
  EXPECT_EQ(loaded.tables->Stats().steps, 0);
}

// Adam's bias correction and the rows' state go on: the same bits as without a stop.
TEST(SavedModelTest, GoingOnGivesTheSameBits) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(Training training, StartNew(&env));
  training.Step(1);
  HOTROW_ASSERT_OK(training.Save());
  training.Step(2);
  training.Step(3);
  HOTROW_ASSERT_OK_AND_ASSIGN(Training loaded, Load(&env, "/elsewhere"));
  loaded.Step(2);
  loaded.Step(3);
  // The dense arrays of this test do not come from the tables; they are compared all the same.
  EXPECT_EQ(loaded.State(), training.State());
  // Saving elsewhere leaves the first model as it is.
  HOTROW_ASSERT_OK(loaded.Save());
  HOTROW_ASSERT_OK_AND_ASSIGN(const Training first, Load(&env));
  EXPECT_EQ(first.tables->steps(), 1);
}

TEST(SavedModelTest, ReplacesItselfAndLeavesNothingBehind) {
  MemEnv env;
  SaveOne(&env);
  // Somebody else's, who chose such names.
  for (const char* const name : {"dense-best.safetensors", "vocabulary-notes", "dense-1"}) {
    HOTROW_ASSERT_OK(WriteFileAtomically(env, absl::StrCat(kDir, "/", name), "mine"));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(Training training, Load(&env, kDir));
  for (uint64_t i = 0; i < 3; ++i) {
    training.Step(10 + i);
    HOTROW_ASSERT_OK(training.Save());
    HOTROW_ASSERT_OK_AND_ASSIGN(const Training loaded, Load(&env));
    EXPECT_EQ(loaded.State(), training.State());
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files, env.ListDir(kDir));
    EXPECT_EQ(files.size(), 3u + 3u) << testing::PrintToString(files);  // dense, manifest, tables
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, env.ListDir(SavedTablesDir(kDir)));
    EXPECT_EQ(tables.size(), 1u) << testing::PrintToString(tables);
  }
}

TEST(SavedModelTest, SurvivesPowerLossOnceSaved) {
  FaultyEnv env;
  std::string state;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(Training training, StartNew(&env));
    training.Step(1);
    HOTROW_ASSERT_OK(training.Save());
    state = training.State();
  }
  env.DropUnsyncedData();
  HOTROW_ASSERT_OK_AND_ASSIGN(const Training loaded, Load(&env));
  EXPECT_EQ(loaded.State(), state);
}

enum class Crash { kNone, kWorst, kCoin };

// Saves a second model while call k fails, or all calls from k on, then loses power or not: what is
// there is the first model or the second, and the second if Save said OK. Then saving works again.
// Returns false when the save makes fewer than k + 1 calls.
bool SaveWithFault(int64_t k, bool all_from_k, Crash crash, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "call " << k << (all_from_k ? " and all after it" : "")
                                  << ", crash " << static_cast<int>(crash) << ", seed " << seed);
  FaultyEnv env;
  std::string first;
  std::string second;
  absl::Status saved;
  {
    absl::StatusOr<Training> training = StartNew(&env);
    HOTROW_EXPECT_OK(training);
    training->Step(1);
    HOTROW_EXPECT_OK(training->Save());
    first = training->State();
    training->Step(2);
    second = training->State();
    if (all_from_k) {
      env.FailFrom(env.calls() + k, absl::DataLossError("injected"));
    } else {
      env.FailCall(env.calls() + k, absl::DataLossError("injected"));
    }
    saved = training->Save();
    if (env.faults() == 0) {  // the fault is still to come
      HOTROW_EXPECT_OK(saved);
      return false;
    }
    if (!saved.ok()) {
      EXPECT_THAT(saved, StatusIs(absl::StatusCode::kDataLoss, "injected"));
    }
    env.FailFrom(INT64_MAX, absl::OkStatus());
    if (crash == Crash::kNone) {
      // The process goes on: what it saved is whole, and the next save works.
      absl::StatusOr<Training> loaded = Load(&env);
      HOTROW_EXPECT_OK(loaded);
      if (!loaded.ok()) return false;
      EXPECT_TRUE(loaded->State() == second || (!saved.ok() && loaded->State() == first));
      training->Step(3);
      HOTROW_EXPECT_OK(training->Save());
      second = training->State();
      saved = absl::OkStatus();
    }
  }
  if (crash == Crash::kWorst || crash == Crash::kNone) env.DropUnsyncedData();
  if (crash == Crash::kCoin) env.LosePower(seed);
  absl::StatusOr<Training> loaded = Load(&env, kDir);
  HOTROW_EXPECT_OK(loaded);
  if (!loaded.ok()) return false;
  EXPECT_TRUE(loaded->State() == second || (!saved.ok() && loaded->State() == first))
      << loaded->State() << "\nis neither " << first << "\nnor " << second;
  // And the next process saves as if nothing had been, leaving nothing behind.
  loaded->Step(4);
  HOTROW_EXPECT_OK(loaded->Save());
  const auto files = env.ListDir(kDir);
  const auto tables = env.ListDir(SavedTablesDir(kDir));
  EXPECT_TRUE(files.ok() && files->size() == 3);  // dense, manifest, tables
  EXPECT_TRUE(tables.ok() && tables->size() == 1);
  env.DropUnsyncedData();
  const absl::StatusOr<Training> third = Load(&env);
  HOTROW_EXPECT_OK(third);
  if (third.ok()) {
    EXPECT_EQ(third->State(), loaded->State());
  }
  return true;
}

TEST(SavedModelTest, AFaultAtAnyCallLeavesTheOldModelOrTheNew) {
  for (const bool all_from_k : {false, true}) {
    for (const Crash crash : {Crash::kNone, Crash::kWorst, Crash::kCoin}) {
      const std::vector<uint64_t> seeds =
          crash == Crash::kCoin ? test::Seeds(4) : std::vector<uint64_t>{0};
      for (const uint64_t seed : seeds) {
        int64_t k = 0;
        while (SaveWithFault(k, all_from_k, crash, seed) && !testing::Test::HasFailure()) ++k;
        EXPECT_GT(k, 20);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// A save that fails in its last sync leaves the manifest in doubt: the next save must not remove
// what the older manifest names before that is settled. Call k of one save fails; the next one is
// cut off at call j by a power loss.
TEST(SavedModelTest, AKilledSaveAfterAFailedOneLeavesAWholeModel) {
  int64_t cut_off = 0;
  bool more_k = true;
  for (int64_t k = 0; more_k; ++k) {
    bool more_j = true;
    for (int64_t j = 0; more_j; ++j) {
      SCOPED_TRACE(testing::Message() << "call " << k << " of one save, " << j << " of the next");
      FaultyEnv env;
      std::vector<std::string> states;
      {
        HOTROW_ASSERT_OK_AND_ASSIGN(Training training, StartNew(&env));
        training.Step(1);
        HOTROW_ASSERT_OK(training.Save());
        states.push_back(training.State());
        training.Step(2);
        states.push_back(training.State());
        env.FailCall(env.calls() + k, absl::DataLossError("injected"));
        const bool failed = !training.Save().ok();
        more_k = env.faults() > 0;
        if (!failed) break;  // nothing failed, or only the removal of old parts
        training.Step(3);
        states.push_back(training.State());
        env.FailFrom(env.calls() + j, absl::DataLossError("injected"));
        const int64_t before = env.faults();
        const bool whole = training.Save().ok();
        more_j = env.faults() > before;
        if (whole) states = {states.back()};
        ++cut_off;
      }
      env.FailFrom(INT64_MAX, absl::OkStatus());
      env.DropUnsyncedData();
      HOTROW_ASSERT_OK_AND_ASSIGN(const Training loaded, Load(&env));
      EXPECT_THAT(states, ::testing::Contains(loaded.State()));
    }
  }
  EXPECT_GT(cut_off, 200);
}

// The first save of a directory: after any fault there is no model or a whole one.
TEST(SavedModelTest, AFaultInTheFirstSaveLeavesNoModelOrTheNew) {
  for (const bool lose_power : {false, true}) {
    for (int64_t k = 0;; ++k) {
      SCOPED_TRACE(testing::Message() << "call " << k << ", power loss " << lose_power);
      FaultyEnv env;
      std::string state;
      bool saved = false;
      env.FailFrom(k, absl::DataLossError("injected"));
      {
        absl::StatusOr<Training> training = StartNew(&env);
        if (training.ok()) {
          training->Step(1);
          state = training->State();
          saved = training->Save().ok();
        }
      }
      const bool faulty = env.faults() > 0;
      env.FailFrom(INT64_MAX, absl::OkStatus());
      if (lose_power) env.DropUnsyncedData();
      const absl::StatusOr<Training> loaded = Load(&env);
      if (loaded.ok()) {
        EXPECT_EQ(loaded->State(), state);
      } else {
        EXPECT_FALSE(saved);
        EXPECT_THAT(loaded, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("there is no /run/model/manifest.json")));
      }
      // The next try works.
      HOTROW_ASSERT_OK_AND_ASSIGN(Training again, StartNew(&env));
      again.Step(1);
      HOTROW_ASSERT_OK(again.Save());
      if (!faulty) break;
    }
  }
}

TEST(SavedModelTest, EveryFlippedBitOfManifestAndDenseFileIsFound) {
  MemEnv env;
  SaveOne(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env, kDir));
  for (const std::string& path :
       {std::string(kManifest), absl::StrCat(kDir, "/", saved.dense_file)}) {
    const auto size = static_cast<int64_t>(ReadText(env, path).size());
    for (int64_t byte = 0; byte < size; ++byte) {
      const int64_t bit = 8 * byte + byte % 8;
      HOTROW_ASSERT_OK(env.FlipBit(path, bit));
      EXPECT_THAT(Load(&env), StatusIs(absl::StatusCode::kDataLoss,
                                       AllOf(HasSubstr(path), HasSubstr("--init_from"))))
          << "byte " << byte;
      HOTROW_ASSERT_OK(env.FlipBit(path, bit));
    }
    HOTROW_EXPECT_OK(Load(&env));
  }
}

TEST(SavedModelTest, AnotherSnapshotUnderTheRightNameIsFound) {
  MemEnv env;
  SaveOne(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env, kDir));
  // A store with the same tables and other rows writes the file that the manifest names.
  HOTROW_ASSERT_OK(env.CreateDirs("/other"));
  Training other;
  EmbeddingCollectionOptions options = Options(&env);
  std::get<MemoryStorage>(options.store).snapshot_dir = "/other";
  HOTROW_ASSERT_OK_AND_ASSIGN(other.tables, EmbeddingCollection::Create(options, {}));
  other.Step(9);
  HOTROW_ASSERT_OK(other.tables->snapshots().Prepare(saved.parts[0].snapshot));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir("/other"));
  ASSERT_EQ(names.size(), 1u);
  const std::string target = absl::StrCat(SavedTablesDir(kDir), "/", names[0]);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, target, ReadText(env, "/other/" + names[0])));
  EXPECT_THAT(Load(&env), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("table \"users\"")));
}

TEST(SavedModelTest, MissingPartsAreNamed) {
  {
    MemEnv env;
    EXPECT_THAT(Load(&env), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     AllOf(HasSubstr(kManifest), HasSubstr("--save_dir"))));
  }
  {
    MemEnv env;
    SaveOne(&env);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env, kDir));
    HOTROW_ASSERT_OK(env.Remove(absl::StrCat(kDir, "/", saved.dense_file)));
    EXPECT_THAT(Load(&env), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(saved.dense_file)));
  }
  {
    MemEnv env;
    SaveOne(&env);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir(SavedTablesDir(kDir)));
    HOTROW_ASSERT_OK(env.Remove(absl::StrCat(SavedTablesDir(kDir), "/", names[0])));
    EXPECT_THAT(Load(&env),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(SavedTablesDir(kDir))));
  }
}

TEST(ManifestVersionTest, ARangeIsRead) {
  constexpr ManifestVersions kVersions = {.oldest = 2, .newest = 4};
  constexpr std::array<std::string_view, 2> kKnown = {"ranks", "store_dir"};
  using Json = nlohmann::ordered_json;
  const auto check = [&](int64_t version, const Json& required) {
    return CheckManifestVersion("saved model: /m/manifest.json", kVersions, version, required,
                                kKnown);
  };
  for (const int64_t version : {2, 3, 4}) {
    EXPECT_THAT(check(version, Json::array()), test::IsOk());
    EXPECT_THAT(check(version, {"store_dir", "ranks"}), test::IsOk());
  }
  const auto refused = [](const std::string& what, const std::string& remedy) {
    return StatusIs(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("saved model: /m/manifest.json ", what,
                     ", which this program does not know (it reads versions 2 to 4); ", remedy));
  };
  EXPECT_THAT(check(1, Json::array()), refused("has version 1", "use the hotrow that wrote it"));
  EXPECT_THAT(check(5, Json::array()), refused("has version 5", "use a newer hotrow"));
  EXPECT_THAT(check(3, {"ranks", "time"}), refused("requires \"time\"", "use a newer hotrow"));
  EXPECT_THAT(check(3, {7}), refused("requires 7", "use a newer hotrow"));
}

TEST(SavedModelTest, NewerVersionsAreToldFromDamage) {
  MemEnv env;
  SaveOne(&env);
  const std::string text = ReadText(env, kManifest);
  const auto forged = [&](const std::string& from, const std::string& to) {
    const std::string changed = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(changed, text);
    ForgeManifest(env, changed);
    return Load(&env);
  };
  EXPECT_THAT(forged("\"version\": 1", "\"version\": 2"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("version 2"), HasSubstr("version 1"), HasSubstr("newer"))));
  EXPECT_THAT(forged("\"version\": 1", "\"version\": 0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("use the hotrow that")));
  EXPECT_THAT(forged("\"version\": 1", "\"version\": \"one\""),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"version\" is \"one\"")));
  EXPECT_THAT(forged("\"requires\": []", "\"requires\": [\"several_stores\"]"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("several_stores")));
  // A member that nothing requires is passed over.
  EXPECT_THAT(forged("\"version\": 1", "\"version\": 1, \"position\": {\"epoch\": 3}"),
              test::IsOk());
  EXPECT_THAT(forged("\"format\": \"hotrow.saved_model\"", "\"format\": \"other\""),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no manifest")));
  EXPECT_THAT(forged("\"step\": 2", "\"step\": \"two\""),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"step\"")));
  EXPECT_THAT(forged("\"file\": \"dense-", "\"file\": \"../dense-"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("dense.file")));
  EXPECT_THAT(forged("\"dir\": \"tables\"", "\"dir\": \"..\""),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("stores")));
}

// The checksum is right; the values are not.
TEST(SavedModelTest, ValuesOutOfRangeAreRefusedWithTheirPlace) {
  MemEnv env;
  SaveOne(&env);
  const auto good = nlohmann::ordered_json::parse(ReadText(env, kManifest), nullptr, false);
  ASSERT_TRUE(good.is_object());
  using Manifest = nlohmann::ordered_json;
  const auto refused = [&](const std::function<void(Manifest&)>& change, const std::string& place,
                           const std::string& expected) {
    Manifest changed = good;
    change(changed);
    ForgeManifest(env, changed.dump(2));
    EXPECT_THAT(ReadSavedModel(env, kDir),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(kManifest), HasSubstr("\"" + place + "\" is "),
                               HasSubstr(expected))));
  };
  const int64_t huge = 4'000'000'000'000'000'000;
  refused([&](Manifest& m) { m["dense"]["parameters"] = huge; }, "dense.parameters", "from 0 to ");
  refused([&](Manifest& m) { m["dense"]["bytes"] = -1; }, "dense.bytes", "from 0 to");
  refused([&](Manifest& m) { m["dense"]["optimizer"] = "x"; }, "dense.optimizer", "adam");
  refused([&](Manifest& m) { m["dense"]["crc32c"] = "-1"; }, "dense.crc32c", "8 hexadecimal");
  for (const Manifest& dim : {Manifest(0), Manifest(-3), Manifest(huge), Manifest(1.5),
                              Manifest("8"), Manifest(nullptr)}) {
    refused([&](Manifest& m) { m["tables"][1]["dim"] = dim; }, "tables[1].dim", "from 1 to");
  }
  refused([&](Manifest& m) { m["tables"][0]["optimizer"] = 5; }, "tables[0].optimizer", "a text");
  refused([&](Manifest& m) { m["tables"][0]["rows"] = -5; }, "tables[0].rows", "from 0 to");
  refused([&](Manifest& m) { m["tables"][0]["hash"] = "abc"; }, "tables[0].hash", "32 hexa");
  refused([&](Manifest& m) { m["tables"][1]["name"] = m["tables"][0]["name"]; }, "tables[1].name",
          "a unique name");
  refused([&](Manifest& m) { m["features"][0]["table"] = "none"; }, "features[0].table",
          "the name of a table");
  refused([&](Manifest& m) { m["stores"][0]["kind"] = "tape"; }, "stores[0].kind", "kind of store");
  refused([&](Manifest& m) { m["step"] = huge; }, "step", "from 0 to 4294967295");
  refused([&](Manifest& m) { m["num_dense"] = huge; }, "num_dense", "from 0 to");
}

TEST(SavedModelTest, JsonThatNestsTooDeepIsDamage) {
  MemEnv env;
  SaveOne(&env);
  const std::string text = ReadText(env, kManifest);
  for (const int64_t depth : {70, 200'000}) {
    const std::string deep(static_cast<size_t>(depth), '[');
    const std::string end(static_cast<size_t>(depth), ']');
    ForgeManifest(
        env, absl::StrReplaceAll(
                 text, {{"\"requires\": []", absl::StrCat("\"requires\": [", deep, end, "]")}}));
    EXPECT_THAT(ReadSavedModel(env, kDir),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(kManifest), HasSubstr("deep at \"requires[0]"))));
  }
  ForgeManifest(env, absl::StrReplaceAll(text, {{"\"step\": 2", "\"step\": 2, \"step\": 3"}}));
  EXPECT_THAT(ReadSavedModel(env, kDir),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"step\" occurs twice")));
}

// Puts a dense file with this header, and zeros behind it, into the model's place.
void ForgeDense(Env& env, const std::string& header) {
  HOTROW_ASSERT_OK_AND_ASSIGN(SavedModel saved, ReadSavedModel(env, kDir));
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size() % 256);
  file[1] = static_cast<char>(header.size() / 256);
  file += header + std::string(3 * 21 * 4, '\0');
  HOTROW_ASSERT_OK(WriteFileAtomically(env, absl::StrCat(kDir, "/", saved.dense_file), file));
  saved.dense_bytes = static_cast<int64_t>(file.size());
  saved.dense_crc = Crc32c(std::as_bytes(std::span(file)));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, kManifest, SavedModelManifest(saved)));
}

TEST(SavedModelTest, HeadersOfDenseFilesAreChecked) {
  MemEnv env;
  SaveOne(&env);
  const auto header = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return absl::StrCat("{\"parameters\": {\"dtype\": ", dtype, ", \"shape\": ", shape,
                        ", \"data_offsets\": ", offsets, "}}");
  };
  const auto read = [&](const std::string& text) {
    ForgeDense(env, text);
    const absl::StatusOr<SavedModel> saved = ReadSavedModel(env, kDir);
    return saved.ok() ? ReadSavedDense(env, *saved).status() : saved.status();
  };
  HOTROW_EXPECT_OK(read(header("\"F32\"", "[21]", "[0, 84]")));
  const auto is_damage = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("dense-"), HasSubstr(what)));
  };
  EXPECT_THAT(read(header("5", "[21]", "[0, 84]")), is_damage("\"parameters.dtype\" is 5"));
  EXPECT_THAT(read(header("\"F64\"", "[21]", "[0, 84]")), is_damage("\"parameters.dtype\""));
  EXPECT_THAT(read(header("\"F32\"", "21", "[0, 84]")), is_damage("\"parameters.shape\""));
  EXPECT_THAT(read(header("\"F32\"", "[22]", "[0, 84]")), is_damage("\"parameters.shape\""));
  for (const std::string offsets :
       {"5", "[]", "[0]", "[-1, 83]", "[0.5, 84.5]", "[\"0\", 84]", "[0, 83]", "[1000, 1084]",
        "[18446744073709551615, 83]", "[0, 84, 3]"}) {
    EXPECT_THAT(read(header("\"F32\"", "[21]", offsets)), is_damage("\"parameters.data_offsets\""))
        << offsets;
  }
  EXPECT_THAT(read("{\"parameters\": 5}"), is_damage("\"parameters\" is"));
  EXPECT_THAT(read("{}"), is_damage("\"parameters\" is missing"));
  EXPECT_THAT(read("[]"), is_damage("no JSON object"));
  EXPECT_THAT(read(std::string(5000, '[')), is_damage("deep"));
}

// Sparse files that take no room, and would take 200 GB of memory.
TEST(SavedModelTest, LargeFilesAreRefusedBeforeTheyAreRead) {
  const std::string dir = test::TempDir() + "/model";
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir));
  SavedModel model = Description();
  model.dir = dir;
  model.parts = {{.store = "memory", .tables_dir = SavedTablesDir(dir), .snapshot = 77}};
  const std::vector<float> parameters(21);
  HOTROW_ASSERT_OK(WriteSavedDense(PosixEnv(), "dense-x", {.parameters = parameters}, &model));
  model.residuals = {{.file = "residuals-00000", .bytes = 5, .crc = 1}};
  for (SavedModel::Table& table : model.tables) {
    table.rows = 0;
    table.hash = std::string(32, '0');
  }
  HOTROW_ASSERT_OK(
      WriteFileAtomically(PosixEnv(), dir + "/manifest.json", SavedModelManifest(model)));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/residuals-00000", "x"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(PosixEnv(), dir));
  HOTROW_ASSERT_OK(ReadSavedDense(PosixEnv(), saved).status());
  for (const std::string name : {"dense-x", "residuals-00000", "manifest.json"}) {
    std::filesystem::resize_file(absl::StrCat(dir, "/", name), uint64_t{200} << 30);
  }
  const auto names = [](const std::string& name) {
    return StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(name), HasSubstr("214748364800")));
  };
  EXPECT_THAT(ReadSavedDense(PosixEnv(), saved).status(), names("dense-x"));
  EXPECT_THAT(ReadSavedResiduals(PosixEnv(), saved, 0), names("residuals-00000"));
  EXPECT_THAT(ReadSavedModel(PosixEnv(), dir), names("manifest.json"));
}

// One job at a time; readers do not ask.
TEST(SavedModelTest, ASecondWriterOfADirectoryIsRefused) {
  const std::string dir = test::TempDir() + "/model";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto writer, SavedModelWriter::Open(&PosixEnv(), dir));
    EXPECT_THAT(SavedModelWriter::Open(&PosixEnv(), dir + "/").status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("--save_dir=" + dir), HasSubstr("another job"),
                               HasSubstr(dir + "/LOCK"))));
  }
  HOTROW_EXPECT_OK(SavedModelWriter::Open(&PosixEnv(), dir).status());
}

// Any manifest with a right checksum gives an error or a model, never a crash.
TEST(SavedModelTest, ManifestsWithWrongMembersAreRefused) {
  MemEnv env;
  SaveOne(&env);
  const nlohmann::ordered_json good =
      nlohmann::ordered_json::parse(ReadText(env, kManifest), nullptr, false);
  ASSERT_TRUE(good.is_object());
  for (const auto& [name, value] : good.items()) {
    if (name == "manifest_crc32c") continue;
    for (const nlohmann::ordered_json& wrong :
         {nlohmann::ordered_json(nullptr), nlohmann::ordered_json(-1),
          nlohmann::ordered_json::array({1}), nlohmann::ordered_json::object({{"x", 1}})}) {
      nlohmann::ordered_json changed = good;
      changed[name] = wrong;
      ForgeManifest(env, changed.dump(2));
      EXPECT_FALSE(Load(&env).ok()) << name << " = " << wrong;
    }
  }
}

// A model of three ranks: one with tables in memory, two on disks.
SavedModel OfThreeRanks() {
  SavedModel model = Description();
  model.dir = "/run/many";
  model.parts = {{.store = "memory",
                  .tables_dir = SavedTablesDir("/run/many", 0, 3),
                  .snapshot = (SnapshotId{1} << 62) + 5},
                 {.store = "ssd", .tables_dir = RankDir("/disk/rows", 1, 3), .snapshot = 7},
                 {.store = "rocksdb", .tables_dir = RankDir("/disk/rows", 2, 3), .snapshot = 7}};
  return model;
}

// What scoring needs comes back as it was; a manifest without it is as it was before there was any.
TEST(SavedModelTest, WhatScoringNeedsIsOptional) {
  MemEnv env;
  SaveOne(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(SavedModel saved, ReadSavedModel(env, kDir));
  EXPECT_FALSE(saved.scoring.has_value());
  EXPECT_EQ(SavedModelManifest(saved), ReadText(env, kManifest));
  saved.scoring = {.labels = {"click", "like"},
                   .features = {{5, 0}, {0, 7}, {INT64_MAX, 1}},
                   .table_schema = R"({"name":"s","columns":[]})",
                   .settings = {{"optimizer", "adam"}, {"table_optimizer.beta1", "0.9"}},
                   .first_step = 3,
                   .learning_rates = {{4, 0.1f}, {9, 1}}};
  ForgeManifest(env, SavedModelManifest(saved));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel back, ReadSavedModel(env, kDir));
  EXPECT_EQ(back.scoring, saved.scoring);
  const std::string text = ReadText(env, kManifest);
  EXPECT_THAT(text, HasSubstr("\"requires\": []"));
  const std::pair<const char*, const char*> kWrong[] = {
      {"\"max_hotness\": 7", "\"max_hotness\": -7"},
      {"\"labels\": [\n      \"click\"", "\"labels\": [\n      1"},
      {"\"first_step\": 3", "\"first_step\": 0.5"},
      {"\"optimizer\": \"adam\",\n      \"table", "\"optimizer\": 1,\n      \"table"},
  };
  for (const auto& [was, is] : kWrong) {
    std::string other = text;
    ASSERT_NE(other.find(was), std::string::npos) << was;
    other.replace(other.find(was), std::string_view(was).size(), is);
    ForgeManifest(env, other);
    EXPECT_THAT(ReadSavedModel(env, kDir),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"scoring.")))
        << is;
  }
  saved.scoring->features.pop_back();
  ForgeManifest(env, SavedModelManifest(saved));
  EXPECT_THAT(ReadSavedModel(env, kDir),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"scoring.features\" is 2")));
}

TEST(SavedModelTest, PartsOfSeveralRanksAreNamedByTheirRanks) {
  MemEnv env;
  const std::vector<float> parameters(21);
  const SavedModel model = OfThreeRanks();
  EXPECT_EQ(model.parts[0].tables_dir, "/run/many/tables/rank-00000-of-00003");
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string dir,
                              WriteCheckpoint(env, "/run/many", model, {.parameters = parameters}));
  const std::string path = absl::StrCat(dir, "/manifest.json");
  const auto json = nlohmann::json::parse(ReadText(env, path), nullptr, false);
  EXPECT_EQ(json["requires"], nlohmann::json::array({"checkpoint", "store_dir", "ranks"}));
  EXPECT_EQ(json["world_size"], 3);
  ASSERT_EQ(json["stores"].size(), 3u);
  EXPECT_EQ(json["stores"][0]["dir"], "../tables/rank-00000-of-00003");
  EXPECT_EQ(json["stores"][2]["dir"], "/disk/rows/rank-00002-of-00003");
  EXPECT_EQ(json["stores"][2]["rank"], 2);
  EXPECT_EQ(json["stores"][2]["tables"], nlohmann::json::array({"users", "items"}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel read, ReadCheckpoint(env, "/run/many"));
  EXPECT_EQ(read.parts, model.parts);
  // What lies in the directory moves with it.
  HOTROW_ASSERT_OK(env.Rename("/run/many", "/run/moved"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel moved, ReadCheckpoint(env, "/run/moved"));
  EXPECT_EQ(moved.parts[0].tables_dir, SavedTablesDir("/run/moved", 0, 3));
  EXPECT_EQ(moved.parts[1], model.parts[1]);
}

TEST(SavedModelTest, WrongPartsAreNamed) {
  MemEnv env;
  const std::vector<float> parameters(21);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const std::string dir,
      WriteCheckpoint(env, "/run/many", OfThreeRanks(), {.parameters = parameters}));
  const std::string path = absl::StrCat(dir, "/manifest.json");
  const auto good = nlohmann::ordered_json::parse(ReadText(env, path), nullptr, false);
  ASSERT_TRUE(good.is_object());
  const auto forged = [&](const std::function<void(nlohmann::ordered_json&)>& change) {
    nlohmann::ordered_json changed = good;
    change(changed);
    ForgeManifest(env, changed.dump(2), path);
    return ReadSavedModel(env, dir).status();
  };
  using Manifest = nlohmann::ordered_json;
  HOTROW_EXPECT_OK(forged([](Manifest&) {}));
  const auto is_wrong = [&](const std::string& member) {
    return StatusIs(
        absl::StatusCode::kDataLoss,
        AllOf(HasSubstr(path), HasSubstr("\"" + member + "\" is "), HasSubstr("expected")));
  };
  for (const Manifest& rank : {Manifest(0), Manifest(2), Manifest(3), Manifest("1"), Manifest()}) {
    EXPECT_THAT(forged([&](Manifest& m) { m["stores"][1]["rank"] = rank; }),
                is_wrong("stores[1].rank"))
        << rank;
  }
  EXPECT_THAT(forged([](Manifest& m) { std::swap(m["stores"][0], m["stores"][2]); }),
              is_wrong("stores[0].rank"));
  EXPECT_THAT(forged([](Manifest& m) { m["stores"][2].erase("kind"); }),
              is_wrong("stores[2].kind"));
  EXPECT_THAT(forged([](Manifest& m) { m["stores"][1]["dir"] = ""; }), is_wrong("stores[1].dir"));
  EXPECT_THAT(forged([](Manifest& m) { m["stores"][1]["snapshot"] = 0; }),
              is_wrong("stores[1].snapshot"));
  EXPECT_THAT(forged([](Manifest& m) { m["stores"][1]["snapshot"] = -1; }),
              is_wrong("stores[1].snapshot"));
  EXPECT_THAT(forged([](Manifest& m) { m["stores"][1] = 5; }), is_wrong("stores[1]"));
  EXPECT_THAT(forged([](Manifest& m) { m["stores"].erase(2); }), is_wrong("world_size"));
  EXPECT_THAT(forged([](Manifest& m) { m["world_size"] = 4; }), is_wrong("world_size"));
  EXPECT_THAT(forged([](Manifest& m) { m.erase("world_size"); }), is_wrong("world_size"));
  EXPECT_THAT(forged([](Manifest& m) { m["stores"] = Manifest::array(); }), is_wrong("stores"));
  // Older readers must have been told.
  EXPECT_THAT(forged([](Manifest& m) { m["requires"].erase(2); }), is_wrong("requires"));
  // Two ranks with the rows of one.
  EXPECT_THAT(forged([](Manifest& m) {
                m["stores"][2]["kind"] = m["stores"][1]["kind"];
                m["stores"][2]["dir"] = m["stores"][1]["dir"];
              }),
              is_wrong("stores[2].snapshot"));
  const auto with_ranks = [&](int64_t ranks) {
    return forged([&](Manifest& m) {
      Manifest stores = Manifest::array();
      for (int64_t r = 0; r < ranks; ++r) {
        stores.push_back(m["stores"][0]);
        stores.back()["rank"] = r;
        stores.back()["snapshot"] = r + 1;
      }
      m["stores"] = std::move(stores);
      m["world_size"] = ranks;
    });
  };
  HOTROW_EXPECT_OK(with_ranks(4096));
  EXPECT_THAT(with_ranks(4097), is_wrong("stores"));
}

// A reader that does not know of them would take their rows for something else.
TEST(SavedModelTest, WeightsOf16BitsAreRequiredToBeUnderstood) {
  MemEnv env;
  SaveOne(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(SavedModel model, ReadSavedModel(env, kDir));
  EXPECT_THAT(SavedModelManifest(model), Not(HasSubstr("weights_precision")));
  model.tables[1].weights_precision = WeightsPrecision::kBf16;
  const std::string text = SavedModelManifest(model);
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  EXPECT_EQ(json["requires"], nlohmann::ordered_json::array({"weights_precision"}));
  EXPECT_FALSE(json["tables"][0].contains("weights_precision"));
  EXPECT_EQ(json["tables"][1]["weights_precision"], "bf16");
  HOTROW_ASSERT_OK(WriteFileAtomically(env, kManifest, text));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel again, ReadSavedModel(env, kDir));
  EXPECT_EQ(again.tables[0].weights_precision, WeightsPrecision::kFp32);
  EXPECT_EQ(again.tables[1].weights_precision, WeightsPrecision::kBf16);
  ForgeManifest(env, absl::StrReplaceAll(text, {{"\"bf16\"", "\"fp8\""}}));
  EXPECT_THAT(ReadSavedModel(env, kDir).status(),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(kManifest), HasSubstr("weights_precision"))));
}

// A reader that does not know of scores would take aged rows for living ones.
TEST(SavedModelTest, ScoresAndTheirLinesAreRequiredToBeUnderstood) {
  MemEnv env;
  SaveOne(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(SavedModel model, ReadSavedModel(env, kDir));
  EXPECT_THAT(SavedModelManifest(model), Not(HasSubstr("score")));
  ASSERT_EQ(model.step, 2);
  const RowLines lines = {.age = 2, .scores = {{1, 50'000}, {2, 49'000}}};
  model.tables[1].score = ScoreRule::kSum;
  model.tables[1].lines = lines;
  const std::string text = SavedModelManifest(model);
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  EXPECT_EQ(json["requires"], nlohmann::ordered_json::array({"age_lines", "scores"}));
  EXPECT_FALSE(json["tables"][0].contains("score"));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, kManifest, text));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel again, ReadSavedModel(env, kDir));
  EXPECT_EQ(again.tables[0].score, ScoreRule::kNone);
  EXPECT_EQ(again.tables[1].score, ScoreRule::kSum);
  EXPECT_EQ(again.tables[1].lines, lines);
  const auto refused = [&](auto&& change) {
    nlohmann::ordered_json changed = json;
    change(&changed["tables"][1]);
    ForgeManifest(env, changed.dump(2));
    return ReadSavedModel(env, kDir).status();
  };
  using Json = nlohmann::ordered_json;
  const auto is_wrong = [](const char* member) {
    return StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(kManifest), HasSubstr(member)));
  };
  EXPECT_THAT(refused([](Json* table) { (*table)["score"] = "best"; }), is_wrong("score"));
  EXPECT_THAT(refused([](Json* table) { table->erase("score"); }), is_wrong("score_lines"));
  for (const Json& wrong :
       {Json(5), Json::array({5}), Json::array({Json::array({1})}),
        Json::array({Json::array({1, -1})}), Json::array({Json::array({model.step + 1, 5})}),
        Json::array({Json::array({1, 5}), Json::array({2, 5})})}) {
    EXPECT_THAT(refused([&](Json* table) { (*table)["score_lines"] = wrong; }),
                is_wrong("score_lines"))
        << wrong;
  }
}

// What one rank writes is what it wrote before there were several.
TEST(SavedModelTest, TheManifestOfOneRankIsAsItWas) {
  SavedModel model = Description();
  model.dir = kDir;
  model.parts = {{.store = "memory", .tables_dir = SavedTablesDir(kDir), .snapshot = 77}};
  const std::string text = SavedModelManifest(model);
  EXPECT_THAT(text, HasSubstr("\"requires\": [],\n"));
  EXPECT_THAT(text, HasSubstr("  \"world_size\": 1,\n"
                              "  \"stores\": [\n"
                              "    {\n"
                              "      \"rank\": 0,\n"
                              "      \"kind\": \"memory\",\n"
                              "      \"dir\": \"tables\",\n"
                              "      \"snapshot\": 77,\n"
                              "      \"tables\": [\n"
                              "        \"users\",\n"
                              "        \"items\"\n"
                              "      ]\n"
                              "    }\n"
                              "  ],\n"
                              "  \"dense\": {"));
}

TEST(SavedModelTest, WhatDoesNotFitIsNamedWithTheRemedy) {
  const auto refusal = [](auto change) {
    SavedModel saved = Description();
    change(&saved);
    const absl::Status status = CheckSavedModelFits(saved, Description(), kUse);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr("--init_from=/d"));
    return std::string(status.message());
  };
  HOTROW_EXPECT_OK(CheckSavedModelFits(Description(), Description(), kUse));
  {
    SavedModel other_optimizer = Description();
    other_optimizer.dense_optimizer = "sgd";
    other_optimizer.parts[0].store = "ssd";  // its rows are copied
    HOTROW_EXPECT_OK(CheckSavedModelFits(other_optimizer, Description(), kUse));
  }
  EXPECT_THAT(refusal([](SavedModel* m) { m->model = "dcn"; }), HasSubstr("use the program dcn"));
  EXPECT_THAT(refusal([](SavedModel* m) { m->features.pop_back(); }),
              AllOf(HasSubstr("feature \"history\""), HasSubstr("new features")));
  EXPECT_THAT(refusal([](SavedModel* m) {
                m->features.push_back({"zip", "zips"});
              }),
              AllOf(HasSubstr("feature \"zip\""), HasSubstr("not in the data")));
  EXPECT_THAT(refusal([](SavedModel* m) { std::swap(m->features[0], m->features[1]); }),
              AllOf(HasSubstr("\"user\""), HasSubstr("\"item\""), HasSubstr("order")));
  EXPECT_THAT(refusal([](SavedModel* m) { m->features[1].table = "goods"; }),
              HasSubstr("feature \"item\" of table \"items\""));
  EXPECT_THAT(refusal([](SavedModel* m) { m->num_dense = 3; }), HasSubstr("3 dense features"));
  EXPECT_THAT(refusal([](SavedModel* m) { std::swap(m->tables[0], m->tables[1]); }),
              HasSubstr("table \"users\""));
  EXPECT_THAT(refusal([](SavedModel* m) { m->tables.pop_back(); }), HasSubstr("table \"items\""));
  EXPECT_THAT(refusal([](SavedModel* m) { m->tables[1].dim = 16; }),
              AllOf(HasSubstr("table \"items\" has 16 columns"), HasSubstr("and 5 here"),
                    HasSubstr("--embedding_dim")));
  EXPECT_THAT(refusal([](SavedModel* m) { m->tables[0].optimizer = "ftrl"; }),
              AllOf(HasSubstr("table \"users\""), HasSubstr("--optimizer=ftrl")));
  EXPECT_THAT(
      refusal([](SavedModel* m) { m->tables[1].weights_precision = WeightsPrecision::kFp16; }),
      AllOf(HasSubstr("table \"items\" has weights of fp16, this is fp32"),
            HasSubstr("use --weights_precision=fp16")));
  EXPECT_THAT(refusal([](SavedModel* m) { m->shape[0].second = "32-1"; }),
              HasSubstr("use --over_arch_layer_sizes=32-1"));
  EXPECT_THAT(refusal([](SavedModel* m) { m->num_parameters = 22; }),
              HasSubstr("22 dense parameters"));
}

TEST(SavedModelTest, ADirectoryThatCannotBeUsedIsRefusedAtOnce) {
  {
    MemEnv env;
    HOTROW_ASSERT_OK(env.CreateDirs("/run"));
    HOTROW_ASSERT_OK(WriteFileAtomically(env, kDir, "a file"));
    EXPECT_THAT(SavedModelWriter::Open(&env, kDir), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                             HasSubstr("--save_dir=/run/model")));
  }
  {
    MemEnv env;
    SaveOne(&env);
    HOTROW_ASSERT_OK(env.FlipBit(kManifest, 100));
    EXPECT_THAT(SavedModelWriter::Open(&env, kDir),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("manifest.json")));
  }
}

// A run whose tables keep their snapshots elsewhere, as one with checkpoints does.
TEST(SavedModelTest, TablesOfAnotherDirectoryAreCopied) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs("/checkpoints/tables"));
  HOTROW_ASSERT_OK_AND_ASSIGN(Training training, StartNew(&env));
  EmbeddingCollectionOptions options = Options(&env);
  std::get<MemoryStorage>(options.store).snapshot_dir = training.snapshot_dir =
      "/checkpoints/tables";
  HOTROW_ASSERT_OK_AND_ASSIGN(training.tables, EmbeddingCollection::Create(options, {}));
  training.Step(1);
  HOTROW_ASSERT_OK(training.tables->snapshots().Prepare(7));
  HOTROW_ASSERT_OK(env.CreateDirs(SavedTablesDir(kDir)));
  HOTROW_ASSERT_OK(
      WriteFileAtomically(env, absl::StrCat(SavedTablesDir(kDir), "/notes.tmp"), "mine"));
  for (uint64_t i = 0; i < 3; ++i) {
    training.Step(10 + i);
    HOTROW_ASSERT_OK(training.Save());
    HOTROW_ASSERT_OK_AND_ASSIGN(const Training loaded, Load(&env));
    EXPECT_EQ(loaded.State(), training.State());
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto copies, env.ListDir(SavedTablesDir(kDir)));
    EXPECT_EQ(copies.size(), 1u + 1u) << testing::PrintToString(copies);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto others, env.ListDir("/checkpoints/tables"));
    EXPECT_EQ(others.size(), 1u) << testing::PrintToString(others);
  }
  EXPECT_THAT(training.tables->snapshots().List(),
              ::testing::ResultOf([](const auto& ids) { return *ids; },
                                  ::testing::ElementsAre(SnapshotId{7})));
}

TEST(SavedModelTest, OwnersOfOneStoreKnowTheirSnapshots) {
  SnapshotNames monday("/models/monday", /*exclusive=*/false);
  SnapshotNames tuesday("/models/tuesday", /*exclusive=*/false);
  const SnapshotId first = monday.Next({});
  EXPECT_TRUE(monday.owns(first));
  EXPECT_FALSE(tuesday.owns(first));
  const SnapshotId other = tuesday.Next({first});
  EXPECT_FALSE(monday.owns(other));
  EXPECT_EQ(monday.Next({first, other}), first + 1);
  EXPECT_EQ(SnapshotNames("/models/./monday/", false).Next({first + 5, other}), first + 6);
  EXPECT_TRUE(SnapshotNames("/models/tuesday", /*exclusive=*/true).owns(first));
}

TEST(SavedModelTest, StateOfTrainingSurvivesItsText) {
  TrainingState state;
  state.settings = {{"data", "synthetic:tables=2"}, {"learning_rate", "0.1"}};
  state.epoch = 3;
  state.samples_in_epoch = 12345678901;
  state.batches_in_epoch = 77;
  state.validation_due = true;
  state.loss_sum_in_last_epoch = 0.1 + 0.2;
  state.recent_loss = std::numeric_limits<double>::quiet_NaN();
  state.policy = {.factor = 0.1, .observed = true, .best_auc = 1.0 / 3, .worse_validations = 2};
  state.valid = {.samples = 5, .auc = 0.7, .logloss = 1e-300, .ne = 3, .calibration = 0.9};
  const std::string text = TrainingStateToJson(state);
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainingState read, TrainingStateFromJson(text));
  EXPECT_EQ(TrainingStateToJson(read), text);
  EXPECT_EQ(read.settings, state.settings);
  EXPECT_EQ(read.samples_in_epoch, state.samples_in_epoch);
  EXPECT_EQ(read.loss_sum_in_last_epoch, state.loss_sum_in_last_epoch);
  EXPECT_EQ(read.policy.best_auc, state.policy.best_auc);
  EXPECT_EQ(read.valid.logloss, 1e-300);
  EXPECT_TRUE(std::isnan(read.recent_loss));
  EXPECT_TRUE(read.validation_due);
  EXPECT_EQ(read.validated_step, -1);
  EXPECT_THAT(TrainingStateFromJson("{}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("settings")));
  EXPECT_THAT(TrainingStateFromJson(absl::StrReplaceAll(text, {{"77", "\"many\""}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch")));
}

// numpy-side tools read the dense file by the safetensors format.
TEST(SavedModelTest, TheDenseFileIsSafetensors) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(Training training, StartNew(&env));
  training.Step(1);
  HOTROW_ASSERT_OK(training.Save());
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env, kDir));
  const std::string text = ReadText(env, absl::StrCat(kDir, "/", saved.dense_file));
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const nlohmann::json header = nlohmann::json::parse(text.substr(8, length), nullptr, false);
  ASSERT_EQ(header.size(), 3u);
  EXPECT_EQ(header["momentum1"]["dtype"], "F32");
  EXPECT_EQ(header["momentum1"]["shape"], nlohmann::json::array({21}));
  EXPECT_EQ(header["momentum1"]["data_offsets"], nlohmann::json::array({84, 168}));
  EXPECT_EQ(std::memcmp(text.data() + 8 + length + 84, training.momentum1.data(), 84), 0);
  EXPECT_EQ(text.size(), 8 + length + 3 * 84);
}

}  // namespace
}  // namespace hotrow
