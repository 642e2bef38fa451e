// Runs deepfm on delimited text as a new user does: with the schemas of the documentation, and with
// rare values merged from one run to the next.

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/env.h"
#include "base/philox.h"
#include "gtest/gtest.h"
#include "models/data/open_data_source.h"
#include "models/data/vocabulary.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/packed_writer.h"
#include "models/saving/portable_model.h"
#include "models/saving/vocabulary_file.h"
#include "tests/models/file_builders.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::ProgramResult;
using test::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::HasSubstr;

Env& env() { return PosixEnv(); }

// The schema of this name on the page of schemas.
std::string DocumentedSchema(std::string_view name) {
  const auto page = ReadFileToString(env(), HOTROW_SOURCE_DIR "/docs/formats/table_schema.md");
  HOTROW_CHECK(page.ok());
  const size_t at = page->find(absl::StrCat("```json\n{\n  \"name\": \"", std::string(name), "\""));
  HOTROW_CHECK(at != std::string::npos);
  const size_t begin = at + 8;
  return page->substr(begin, page->find("```", begin) - begin);
}

ProgramResult RunDeepFm(const std::string& schema, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {HOTROW_DEEPFM_BINARY, absl::StrCat("--data=table:", schema),
                                        "--embedding_dim=8",  "--over_arch_layer_sizes=16-1",
                                        "--batch_size=64",    "--learning_rate=0.05",
                                        "--threads=1",        "--store_bytes=64MiB"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return test::RunProgram({.arguments = std::move(arguments)});
}

// What the report of a run says.
nlohmann::json Train(const std::string& schema, std::vector<std::string> more = {}) {
  const std::string path = test::TempDir() + "/report.json";
  more.push_back("--report=" + path);
  const ProgramResult result = RunDeepFm(schema, more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const absl::StatusOr<std::string> text = ReadFileToString(env(), path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)
                   : nlohmann::json();
}

// Clicks depend on the site and on the hour. Sites are drawn with a long tail.
std::string AvazuLines(uint64_t seed, int lines) {
  std::string text =
      "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
      "app_category,device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,"
      "C18,C19,C20,C21\n";
  RandomStream random(seed, RandomPurpose::kTest);
  for (int i = 0; i < lines; ++i) {
    const uint64_t site = random.Below(1 + random.Below(200));
    const uint64_t hour = random.Below(24);
    const bool click = random.Below(100) < 10 + 40 * (site % 2) + 40 * (hour % 2);
    absl::StrAppendFormat(&text,
                          "%d,%d,141021%02d,1005,%d,%08x,f3845767,28905ebd,ecad2386,7801e8d9,"
                          "07d7df22,a99f214a,%08x,44956a24,1,2,15706,320,50,1722,0,35,-1,79\r\n",
                          1000 + i, click, hour, random.Below(2), 0xfe8cc448u ^ site,
                          random.Below(1u << 20));
  }
  return text;
}

TEST(SchemaCliTest, AvazuAsTheDocumentationHasIt) {
  const std::string dir = test::TempDir();
  WriteFileOrDie(env(), dir + "/train_1.csv", AvazuLines(1, 2000));
  WriteFileOrDie(env(), dir + "/train_2.csv", AvazuLines(2, 2000));
  WriteFileOrDie(env(), dir + "/avazu.json", DocumentedSchema("avazu"));
  const nlohmann::json report = Train(dir + "/avazu.json", {"--epochs=3"});
  EXPECT_EQ(report["samples"], 3 * 3200);
  EXPECT_GT(report["test"]["auc"], 0.7);
  EXPECT_EQ(report["test"].count("best_auc"), 0u);
  for (const nlohmann::json& table : report["tables"]) {
    if (table["name"] == "device_ip") {
      EXPECT_EQ(table["rows"], 1);  // all are rare
    }
    if (table["name"] == "hour_of_day") {
      EXPECT_EQ(table["rows"], 24);
    }
    if (table["name"] == "weekday") {
      EXPECT_EQ(table["rows"], 1);
    }
    if (table["name"] == "site_id") {
      EXPECT_GT(table["rows"], 50);
      EXPECT_LT(table["rows"], 200);
    }
  }
}

TEST(SchemaCliTest, MovieLensAsItIsPublished) {
  const std::string dir = test::TempDir();
  RandomStream random(3, RandomPurpose::kTest);
  std::string text;
  int kept = 0;
  for (int i = 0; i < 4000; ++i) {
    const uint64_t user = 1 + random.Below(100);
    const uint64_t movie = 1 + random.Below(100);
    const bool like = random.Below(100) < 10 + 40 * (user % 2) + 40 * (movie % 2);
    const uint64_t rating = random.Below(10) == 0 ? 3 : (like ? 4 : 1) + random.Below(2);
    kept += rating != 3;
    absl::StrAppend(&text, user, "::", movie, "::", rating, "::", 978300760 + 3600 * i, "\n");
  }
  WriteFileOrDie(env(), dir + "/ratings.dat", text);
  WriteFileOrDie(env(), dir + "/ml.json", DocumentedSchema("ml-1m"));
  const nlohmann::json report = Train(dir + "/ml.json", {"--epochs=3"});
  const int rest = kept % 10;
  EXPECT_EQ(report["samples"], 3 * (kept / 10 * 8 + std::min(rest, 8)));
  EXPECT_GT(report["test"]["auc"], 0.7);
}

// Packs the text that a schema names, in small blocks; returns what --data calls it.
std::string Pack(const std::string& schema) {
  const std::string spec = absl::StrCat("table:", schema);
  const auto text = OpenDataSource(spec, 1, {.shuffle_bytes = 0});
  HOTROW_CHECK(text.ok());
  const std::string dir = schema + ".packed";
  HOTROW_CHECK(PackData(**text, {.dir = dir, .block_samples = 32, .source = spec}).ok());
  return absl::StrCat("--data=packed:", dir);
}

// Three quarters of the log are of a time in which users of one kind click more often, the last
// one of a time in which those of the other kind do. Read in its order, the last thing to be learnt
// is what most of the test lines contradict.
TEST(SchemaCliTest, APackShuffledInGroupsTeachesAsMuchAsATextOfShuffledLines) {
  const std::string dir = test::TempDir();
  RandomStream random(4, RandomPurpose::kTest);
  const auto line = [&](bool late) {
    const uint64_t user = random.Below(2);
    const uint64_t item = random.Below(2);
    const uint64_t percent = 10 + 40 * (late ? 1 - user : user) + 40 * item;
    return absl::StrCat(random.Below(100) < percent ? 1 : 0, ",", user, ",", item, "\n");
  };
  constexpr size_t kLines = 3200;
  std::vector<std::string> log;
  for (size_t i = 0; i < kLines; ++i) log.push_back(line(4 * i >= 3 * kLines));
  std::string test_lines;
  for (int i = 0; i < 800; ++i) test_lines += line(i % 4 == 3);
  WriteFileOrDie(env(), dir + "/test.csv", test_lines);
  WriteFileOrDie(env(), dir + "/log.csv", absl::StrJoin(log, ""));
  for (size_t i = kLines - 1; i > 0; --i) std::swap(log[i], log[random.Below(i + 1)]);
  WriteFileOrDie(env(), dir + "/shuffled.csv", absl::StrJoin(log, ""));
  const auto schema = [&](const std::string& name, const char* train, const char* more) {
    WriteFileOrDie(env(), dir + name,
                   absl::StrCat(R"({"name": "likes", "header": ["like", "user", "item"],
        "files": {"train": [")",
                                train, R"("], "valid": ["test.csv"], "test": ["test.csv"]},
        "columns": [{"name": "like", "role": "label"},
                    {"name": "user", "role": "categorical", "key": "integer"})",
                                more, "]}"));
    return dir + name;
  };
  const char* const item = R"(, {"name": "item", "role": "categorical", "key": "integer"})";
  const std::string both = schema("/both.json", "log.csv", item);
  const std::string pack = Pack(both);
  const auto auc = [](const std::string& of, std::vector<std::string> more) {
    for (const char* const flag : {"--epochs=3", "--optimizer=sgd", "--learning_rate=1"}) {
      more.emplace_back(flag);
    }
    return Train(of, more)["test"]["auc"].get<double>();
  };
  const std::string in_order = "--shuffle_bytes=0";
  const double text = auc(schema("/shuffled.json", "shuffled.csv", item),
                          {in_order, "--save_dir=" + dir + "/model"});
  EXPECT_GT(text, 0.7);
  // 100 blocks, of which 8 are mixed at a time.
  EXPECT_NEAR(auc(both, {pack, "--shuffle_bytes=8KiB"}), text, 0.01);
  EXPECT_LT(auc(both, {pack, in_order}), text - 0.05);  // so the order matters here

  const std::string fewer = Pack(schema("/fewer.json", "log.csv", ""));
  test::ExpectOneLineError(RunDeepFm(both, {fewer, "--init_from=" + dir + "/model"}), 1,
                           AllOf(HasSubstr("--init_from="), HasSubstr("feature \"item\"")));
}

TEST(SchemaCliTest, SeveralLabelsAreRefusedByAModelOfOne) {
  const std::string dir = test::TempDir();
  WriteFileOrDie(env(), dir + "/log.csv", "click,buy,x\n1,0,7\n0,0,8\n");
  WriteFileOrDie(env(), dir + "/s.json", R"({"name": "shop", "files": {"train": ["log.csv"]},
      "columns": [{"name": "click", "role": "label"}, {"name": "buy", "role": "label"},
                  {"name": "x", "role": "categorical"}]})");
  test::ExpectOneLineError(RunDeepFm(dir + "/s.json"), 2,
                           AllOf(HasSubstr("shop has 2 labels (click, buy), this model learns one"),
                                 HasSubstr("leave one column with \"role\": \"label\"")));
}

constexpr const char* kMerging = R"({"name": "s", "files": {"train": ["%s"], "test": ["%s"]},
    "columns": [{"name": "click", "role": "label"},
                {"name": "site_id", "role": "categorical", "key": "hex", "min_count": %d},
                {"name": "hour", "role": "categorical", "part": "hour",
                 "time_format": "%%y%%m%%d%%H"}]})";

std::vector<uint64_t> KeptSites(const std::string& path) {
  const absl::StatusOr<SavedModel> saved = ReadCheckpoint(env(), path);
  HOTROW_EXPECT_OK(saved);
  if (!saved.ok()) return {};
  const absl::StatusOr<Vocabulary> vocabulary = ReadSavedVocabulary(env(), *saved);
  HOTROW_EXPECT_OK(vocabulary);
  if (!vocabulary.ok() || vocabulary->Find("site_id") == nullptr) return {};
  return vocabulary->Find("site_id")->keys();
}

// Which values are rare is part of the model, wherever it goes.
TEST(SchemaCliTest, MergedValuesTravelWithTheModel) {
  const std::string dir = test::TempDir();
  WriteFileOrDie(env(), dir + "/day_1.csv", AvazuLines(1, 2000));
  WriteFileOrDie(env(), dir + "/day_2.csv", AvazuLines(2, 1000));
  const std::string first = dir + "/first.json";
  WriteFileOrDie(env(), first, absl::StrFormat(kMerging, "day_1.csv", "day_2.csv", 20));

  // A run that is cut in two ends as one that is not, although the second part counts nothing.
  const nlohmann::json whole = Train(first, {"--epochs=2", "--save_dir=" + dir + "/model"});
  const std::string checkpoints = "--checkpoint_dir=" + dir + "/checkpoints";
  Train(first, {"--epochs=1", checkpoints});
  const nlohmann::json resumed = Train(first, {"--epochs=2", checkpoints, "--resume"});
  EXPECT_EQ(resumed["tables_hash"], whole["tables_hash"]);
  EXPECT_EQ(resumed["dense_hash"], whole["dense_hash"]);
  EXPECT_EQ(resumed["test"], whole["test"]);
  const std::vector<uint64_t> kept = KeptSites(dir + "/model");
  EXPECT_GT(kept.size(), 10u);
  EXPECT_LT(kept.size(), 150u);
  EXPECT_EQ(KeptSites(dir + "/checkpoints"), kept);
  for (const char* place : {"/model", "/checkpoints"}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report,
                                VerifyCheckpoint(env(), dir + place, int64_t{1} << 30));
    EXPECT_TRUE(report.damage.empty()) << testing::PrintToString(report.damage);
  }

  // An export and an import keep them.
  HOTROW_ASSERT_OK(ExportPortable({.checkpoint = dir + "/model", .dir = dir + "/arrays"}));
  HOTROW_ASSERT_OK(VerifyPortable(env(), dir + "/arrays", int64_t{64} << 20));
  HOTROW_ASSERT_OK(ImportPortable(
      {.dir = dir + "/arrays", .checkpoint = dir + "/imported", .store_bytes = int64_t{64} << 20}));
  EXPECT_EQ(KeptSites(dir + "/imported"), kept);

  // The next day's frequent values join those of the model; saving again leaves one file.
  const std::string second = dir + "/second.json";
  WriteFileOrDie(env(), second, absl::StrFormat(kMerging, "day_2.csv", "day_1.csv", 20));
  Train(second, {"--init_from=" + dir + "/imported", "--save_dir=" + dir + "/next"});
  Train(second, {"--init_from=" + dir + "/imported", "--save_dir=" + dir + "/next"});
  Train(second, {"--save_dir=" + dir + "/alone"});
  const std::vector<uint64_t> alone = KeptSites(dir + "/alone");
  std::vector<uint64_t> both;
  std::set_union(kept.begin(), kept.end(), alone.begin(), alone.end(), std::back_inserter(both));
  EXPECT_LT(alone.size(), kept.size());
  EXPECT_EQ(KeptSites(dir + "/next"), both);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto files, env().ListDir(dir + "/next"));
  EXPECT_EQ(std::count_if(files.begin(), files.end(),
                          [](const std::string& name) { return name.starts_with("vocabulary"); }),
            1);

  // A schema that merges nothing does not fit the model.
  std::string plain = absl::StrFormat(kMerging, "day_1.csv", "day_2.csv", 20);
  plain.replace(plain.find(", \"min_count\": 20"), 17, "");
  WriteFileOrDie(env(), dir + "/plain.json", plain);
  test::ExpectOneLineError(RunDeepFm(dir + "/plain.json", {"--init_from=" + dir + "/model"}), 1,
                           AllOf(HasSubstr("--init_from="), HasSubstr("\"site_id\" merges rare")));
  Train(dir + "/plain.json", {"--save_dir=" + dir + "/plain"});
  test::ExpectOneLineError(
      RunDeepFm(first, {"--init_from=" + dir + "/plain"}), 1,
      HasSubstr("rare values are merged (min_count) here, and not there; use the schema"));
  WriteFileOrDie(env(), first, absl::StrFormat(kMerging, "day_1.csv", "day_2.csv", 30));
  test::ExpectOneLineError(
      RunDeepFm(first, {"--epochs=3", checkpoints, "--resume"}), 1,
      AllOf(HasSubstr("--resume from"), HasSubstr("are not those of the model; use the schema")));

  // Damage is found.
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env(), dir + "/model"));
  const std::string file = absl::StrCat(dir, "/model/", saved.vocabulary->file);
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(env(), file));
  bytes[bytes.size() / 2] ^= 1;
  WriteFileOrDie(env(), file, bytes);
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report,
                              VerifyCheckpoint(env(), dir + "/model", int64_t{1} << 30));
  ASSERT_EQ(report.damage.size(), 1u);
  EXPECT_THAT(report.damage[0], HasSubstr(file));
  test::ExpectOneLineError(RunDeepFm(first, {"--init_from=" + dir + "/model"}), 1, HasSubstr(file));
}

}  // namespace
}  // namespace hotrow
