// Trains with dlrm, then exports, edits, imports, inspects and verifies as an operator does.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "base/read_file.h"
#include "gtest/gtest.h"
#include "models/data/npy.h"
#include "ops/products/dense_precision.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

void ExpectGood(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err, "");
}

void ExpectFails(int exit_code, const std::vector<std::string>& arguments,
                 const testing::Matcher<const std::string&>& message) {
  test::ExpectOneLineError(RunHotrow(arguments), exit_code, AllOf(StartsWith("hotrow"), message));
}

nlohmann::json Json(const std::vector<std::string>& arguments) {
  const ProgramResult result = RunHotrow(arguments);
  ExpectGood(result);
  return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

// A small DLRM with row-wise Adagrad: three tables of dim 8.
void Train(const std::vector<std::string>& more) {
  std::vector<std::string> all = {
      HOTROW_DLRM_BINARY,
      "--data=synthetic:tables=3,rows=200,dense=2,samples=3000,valid=300,test=500",
      "--embedding_dim=8",
      "--dense_arch_layer_sizes=16-8",
      "--over_arch_layer_sizes=16-1",
      "--batch_size=64",
      "--threads=1",
      "--store_bytes=64MiB"};
  all.insert(all.end(), more.begin(), more.end());
  const ProgramResult result = RunProgram({.arguments = all});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

void FlipByte(const std::string& path, int64_t offset) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                              PosixEnv().Open(path, OpenMode::kReadWrite));
  std::byte byte;
  HOTROW_ASSERT_OK(ReadFull(*file, offset, std::span(&byte, 1)));
  byte ^= std::byte{0x20};
  HOTROW_ASSERT_OK(WriteFull(*file, offset, std::span(&byte, 1)));
}

TEST(HotrowModelsCliTest, ARunWritesItsChain) {
  const std::string dir = test::TempDir();
  Train({"--checkpoint_dir=" + dir + "/run", "--checkpoint_every=10",
         "--delta_dir=" + dir + "/chain", "--delta_every=20", "--delta_rows=fp32"});
  ExpectGood(RunHotrow({"verify", dir + "/chain"}));
  ExpectGood(RunHotrow({"apply", dir + "/chain", dir + "/applied"}));
  ExpectGood(RunHotrow({"export", dir + "/run", dir + "/full"}));
  EXPECT_EQ(Json({"inspect", dir + "/applied", "--json"})["tables"],
            Json({"inspect", dir + "/full", "--json"})["tables"]);
}

// The keys of one table, by `hotrow export --table`.
std::vector<uint64_t> KeysOf(const std::string& model, const std::string& table,
                             const std::string& dir) {
  ExpectGood(RunHotrow({"export", "--table=" + table, model, dir}));
  const absl::StatusOr<std::string> text =
      ReadWholeFile(PosixEnv(), dir + "/keys.npy", int64_t{1} << 20);
  HOTROW_EXPECT_OK(text);
  if (!text.ok()) return {};
  std::vector<uint64_t> out((text->size() - kNpyHeaderBytes) / sizeof(uint64_t));
  std::memcpy(out.data(), text->data() + kNpyHeaderBytes, out.size() * sizeof(uint64_t));
  return out;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(HotrowModelsCliTest, KeysAreAbsentOrNamed) {
  for (const std::string store : {"memory", "ssd"}) {
    const std::string dir = test::TempDir() + "/" + store;
    std::filesystem::create_directories(dir);
    std::vector<std::string> flags = {"--store=" + store, "--checkpoint_dir=" + dir + "/run",
                                      "--checkpoint_every=20", "--keep_checkpoints=3",
                                      "--save_dir=" + dir + "/model"};
    if (store == "ssd") flags.push_back("--store_path=" + dir + "/tables," + dir + "/more");
    Train(flags);
    const std::string name = Json({"inspect", dir + "/model", "--json"})["tables"][1]["name"];
    const std::vector<uint64_t> keys = KeysOf(dir + "/model", name, dir + "/out");
    ASSERT_GT(keys.size(), 2u);
    const std::string list = dir + "/keys.txt";
    WriteText(list, absl::StrCat("# gone\n\n", name, ",18446744073709551614\r\n", name,
                                 "\t18446744073709551615\n", name, ", 18446744073709551615"));
    for (const std::string& path : {dir + "/run", dir + "/model"}) {
      const ProgramResult gone = RunHotrow({"verify", "--absent=" + list, path});
      ExpectGood(gone);
      EXPECT_THAT(gone.out, AllOf(HasSubstr(": 2 keys, "), HasSubstr(": absent\n")));
    }
    WriteText(list, absl::StrCat(name, ",18446744073709551614\n", name, ",", keys.back(), "\n"));
    const ProgramResult there = RunHotrow({"verify", "--absent=" + list, dir + "/run"});
    EXPECT_EQ(there.exit_code, 1) << there.err;
    EXPECT_THAT(there.out, AllOf(HasSubstr(absl::StrCat("/step-000000000047: table \"", name,
                                                        "\" has key ", keys.back(), "\n")),
                                 HasSubstr(" places: 1 of the keys found\n")));
    // A copy without them has all else.
    const std::vector<std::string> erase = {"erase", "--keys=" + list, "--store=" + store,
                                            dir + "/run", dir + "/cleaned"};
    const ProgramResult erased = RunHotrow(erase);
    ExpectGood(erased);
    EXPECT_THAT(erased.out, HasSubstr("\n1 of 2 keys had rows, which are left out\n"));
    ExpectGood(RunHotrow({"verify", "--absent=" + list, dir + "/cleaned"}));
    EXPECT_EQ(KeysOf(dir + "/cleaned", name, dir + "/out2"),
              std::vector<uint64_t>(keys.begin(), keys.end() - 1));
    EXPECT_FALSE(std::filesystem::exists(dir + "/cleaned.erasing"));
    ExpectFails(2, erase, HasSubstr("/cleaned"));
    std::filesystem::create_directory(dir + "/no.erasing");  // as after a kill
    ExpectFails(2, {"erase", "--keys=" + list, dir + "/run", dir + "/no"},
                HasSubstr("/no.erasing: an erasure that was ended has left it; remove it"));
    std::filesystem::remove(dir + "/no.erasing");
    WriteText(list, "weather,5\n");
    ExpectFails(2, {"erase", "--keys=" + list, dir + "/run", dir + "/no"},
                AllOf(HasSubstr("no table \"weather\""), HasSubstr(name)));
  }
}

// What aged and is not dropped yet is told apart: the rest is what an export has.
TEST(HotrowModelsCliTest, AgedRowsAreNotAbsentUntilTheyAreDropped) {
  const std::string dir = test::TempDir();
  Train({"--ttl_steps=3", "--save_dir=" + dir + "/model"});
  const std::string name = Json({"inspect", dir + "/model", "--json"})["tables"][0]["name"];
  const std::vector<uint64_t> exported = KeysOf(dir + "/model", name, dir + "/out");
  std::string text;
  for (int key = 0; key < 1000; ++key) absl::StrAppend(&text, name, ",", key, "\n");
  WriteText(dir + "/keys.txt", text);
  const ProgramResult result =
      RunHotrow({"verify", "--absent=" + dir + "/keys.txt", "--json", dir + "/model"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  const auto json = nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  std::vector<uint64_t> live;
  int aged = 0;
  for (const nlohmann::json& found : json["found"]) {
    if (found["aged"]) {
      ++aged;
    } else {
      live.push_back(found["key"]);
    }
  }
  EXPECT_EQ(live, exported);
  EXPECT_GT(aged, 0);
  EXPECT_EQ(json["keys_found"], std::ssize(live) + aged);
}

TEST(HotrowModelsCliTest, AChainHasWhatItsBaseOrADeltaHas) {
  const std::string dir = test::TempDir();
  Train({"--checkpoint_dir=" + dir + "/run", "--checkpoint_every=10",
         "--delta_dir=" + dir + "/chain", "--delta_every=10", "--delta_rows=fp32",
         "--keep_deltas=9"});
  const std::string name = Json({"inspect", dir + "/run", "--json"})["tables"][0]["name"];
  ExpectGood(RunHotrow({"apply", dir + "/chain", dir + "/applied"}));
  const std::vector<uint64_t> keys = KeysOf(dir + "/applied", name, dir + "/out");
  std::string text;
  for (const uint64_t key : keys) absl::StrAppend(&text, name, ",", key, "\n");
  WriteText(dir + "/keys.txt", text);
  for (const std::string path : {"chain", "applied"}) {
    const ProgramResult found =
        RunHotrow({"verify", "--absent=" + dir + "/keys.txt", "--json", dir + "/" + path});
    EXPECT_EQ(found.exit_code, 1) << found.err;
    const auto json = nlohmann::json::parse(found.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(json["keys_found"], keys.size()) << path;
    if (path == "applied") {
      EXPECT_EQ(json["found"].size(), keys.size());
    } else {
      // Rows of many steps are in the base and in a delta.
      EXPECT_GT(json["places"].size(), 1u);
      EXPECT_GT(json["found"].size(), keys.size());
    }
  }
  WriteText(dir + "/keys.txt", name + ",18446744073709551615\n");
  ExpectGood(RunHotrow({"verify", "--absent=" + dir + "/keys.txt", dir + "/chain"}));
}

TEST(HotrowModelsCliTest, ListsOfKeysThatAreWrong) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model"});
  const std::string name = Json({"inspect", dir + "/model", "--json"})["tables"][0]["name"];
  const std::string list = dir + "/keys.txt";
  const auto fails = [&](const std::string& text, const std::string& path,
                         const testing::Matcher<const std::string&>& message) {
    WriteText(list, text);
    ExpectFails(2, {"verify", "--absent=" + list, path}, message);
  };
  const std::string model = dir + "/model";
  fails("", model, HasSubstr("names no key"));
  fails(name + ",1\n" + name + "\n", model, AllOf(HasSubstr(list + ":2"), HasSubstr(name)));
  fails(name + ",-1\n", model, HasSubstr(list + ":1"));
  fails(name + ",18446744073709551616\n", model, HasSubstr(list + ":1"));
  fails(",5\n", model, HasSubstr(list + ":1"));
  fails("nobody,5\n", model, AllOf(HasSubstr("nobody"), HasSubstr(name)));
  fails(name + ",1\n", dir, HasSubstr("give one of these"));
  ExpectFails(2, {"verify", "--absent=" + dir + "/none", model}, HasSubstr("/none"));
}

TEST(HotrowModelsCliTest, OneTableAlone) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model"});
  const std::string name = Json({"inspect", dir + "/model", "--json"})["tables"][0]["name"];
  const nlohmann::json out =
      Json({"export", "--table=" + name, "--max_rows=9", "--by=age", "--format=safetensors",
            "--state", "--json", dir + "/model", dir + "/out"});
  EXPECT_EQ(out["rows"], 9);
  EXPECT_GT(out["rows_found"], 9);
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool there, PosixEnv().Exists(dir + "/out/table.safetensors"));
  EXPECT_TRUE(there);
  ExpectFails(2, {"export", "--table=nobody", dir + "/model", dir + "/no"}, HasSubstr(name));
  ExpectFails(2, {"export", "--max_rows=9", dir + "/model", dir + "/no"}, HasSubstr("--table"));
  ExpectFails(2, {"export", "--table=" + name, "--by=luck", dir + "/model", dir + "/no"},
              HasSubstr("--by=luck"));
  ExpectFails(2, {"export", "--table=" + name, "--format=csv", dir + "/model", dir + "/no"},
              HasSubstr("--format=csv"));
  ExpectFails(2, {"export", "--table=" + name, "--since=x", dir + "/model", dir + "/no"},
              HasSubstr("--table is not for deltas"));
}

TEST(HotrowModelsCliTest, AModelAsOnnx) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model"});
  const std::string model = dir + "/model";
  const nlohmann::json dense =
      Json({"export", "--format=onnx", "--json", model, dir + "/dense.onnx"});
  EXPECT_EQ(dense["model"], "dlrm");
  EXPECT_EQ(dense["step"], 47);
  EXPECT_EQ(dense["inputs"][0], "dense");
  EXPECT_EQ(dense["outputs"], nlohmann::json({"logits", "probabilities"}));
  EXPECT_EQ(dense["rows"], 0);
  const ProgramResult whole = RunHotrow(
      {"export", "--format=onnx", "--with_rows", "--unseen_keys=zeros", model, dir + "/all.onnx"});
  ExpectGood(whole);
  EXPECT_THAT(whole.out, AllOf(HasSubstr("inputs:  dense, ids."), HasSubstr(" rows, ")));
  ExpectFails(2, {"export", "--format=onnx", model, dir + "/all.onnx"},
              HasSubstr("is there already"));
  ExpectFails(2, {"export", "--format=onnx", "--table=t", model, dir + "/no"},
              HasSubstr("--format=onnx is of a whole model"));
  ExpectFails(2, {"export", "--with_rows", model, dir + "/no"}, HasSubstr("--format=onnx"));
  ExpectFails(2, {"export", "--format=onnx", "--unseen_keys=ones", model, dir + "/no"},
              HasSubstr("--unseen_keys=ones"));
}

TEST(HotrowModelsCliTest, ASavedModelThereAndBack) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model", "--report=" + dir + "/report.json"});
  const nlohmann::json seen = Json({"inspect", dir + "/model", "--json"});
  EXPECT_EQ(seen["kind"], "saved_model");
  EXPECT_EQ(seen["model"], "dlrm");
  EXPECT_EQ(seen["step"], 47);
  EXPECT_EQ(seen["tables"].size(), 3u);
  EXPECT_EQ(seen["damage_count"], 0);
  const ProgramResult text = RunHotrow({"inspect", dir + "/model"});
  ExpectGood(text);
  EXPECT_THAT(text.out, AllOf(HasSubstr("a saved model"), HasSubstr("rowwise_adagrad"),
                              HasSubstr("manifest.json"), HasSubstr("store          memory")));

  const ProgramResult exported =
      RunHotrow({"export", dir + "/model", dir + "/out", "--shard_bytes=4KiB"});
  ExpectGood(exported);
  EXPECT_THAT(exported.out, AllOf(HasSubstr("3 tables"), HasSubstr("step 47")));
  ExpectGood(RunHotrow({"verify", dir + "/out"}));
  const nlohmann::json portable = Json({"inspect", dir + "/out", "--json"});
  EXPECT_EQ(portable["kind"], "portable_model");
  EXPECT_EQ(portable["tables"], seen["tables"]);
  EXPECT_THAT(RunHotrow({"inspect", dir + "/out"}).out, HasSubstr("in the portable form"));

  for (const std::string store : {"memory", "ssd"}) {
    const std::string back = absl::StrCat(dir, "/back-", store);
    const nlohmann::json imported =
        Json({"import", dir + "/out", back, "--store=" + store, "--json"});
    EXPECT_EQ(imported["tables"], seen["tables"]);
    const nlohmann::json again = Json({"inspect", back, "--json"});
    EXPECT_EQ(again["kind"], "checkpoint");
    ASSERT_EQ(again["stores"].size(), 1u);
    EXPECT_EQ(again["stores"][0]["kind"], store);
    EXPECT_EQ(again["stores"][0]["rank"], 0);
    EXPECT_EQ(again["checkpoints"], nlohmann::json::array({"step-000000000047"}));
    const ProgramResult verified = RunHotrow({"verify", back});
    ExpectGood(verified);
    EXPECT_THAT(verified.out, HasSubstr(": good"));
    EXPECT_EQ(std::count(verified.out.begin(), verified.out.end(), '\n'), 1) << verified.out;
    const nlohmann::json counted = Json({"verify", back, "--json"});
    EXPECT_EQ(counted["tables"], seen["tables"]);
    // The one checkpoint by its own name, exported again.
    ExpectGood(
        RunHotrow({"export", back + "/step-000000000047", absl::StrCat(dir, "/out-", store)}));
    EXPECT_EQ(Json({"inspect", absl::StrCat(dir, "/out-", store), "--json"})["tables"],
              seen["tables"]);
  }
}

// A score for each line, by the flags that trained the model and the schema that it kept. The
// columns may stand in another order, and those of the label may lack.
TEST(HotrowModelsCliTest, LinesAreScoredByTheModelsOwnSchema) {
  const std::string dir = test::TempDir();
  std::string log = "click,user,price,words\n";
  std::string unlabelled = "words,price,user,comment\n";
  for (int i = 0; i < 400; ++i) {
    const std::string words = absl::StrCat("w", i % 7, " w", i % 11);
    absl::StrAppend(&log, i % 3 == 0 ? 1 : 0, ",", i % 50, ",", i % 90, ".5,", words, "\n");
    if (i < 40) absl::StrAppend(&unlabelled, words, ",", i % 90, ".5,", i % 50, ",new\n");
  }
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/log.csv", log));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/new.csv", unlabelled));
  const std::string schema = R"json({
    "name": "shop", "quotes": false, "files": ["log.csv"],
    "split": {"modulo": 10, "valid": [8], "test": [9]},
    "columns": [
      {"name": "click", "role": "label"},
      {"name": "price", "role": "dense", "transform": "log1p"},
      {"name": "user", "role": "categorical", "key": "integer"},
      {"name": "words", "role": "categorical", "separator": " ", "max_hotness": 4}
    ]})json";
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/schema.json", schema));
  const ProgramResult trained =
      RunProgram({.arguments = {HOTROW_DLRM_BINARY, "--data=table:" + dir + "/schema.json",
                                "--embedding_dim=6", "--dense_arch_layer_sizes=8-6",
                                "--over_arch_layer_sizes=8-1", "--batch_size=32", "--threads=1",
                                "--store_bytes=64MiB", "--save_dir=" + dir + "/model"}});
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  // What it was trained on is not needed.
  std::filesystem::remove(dir + "/schema.json");
  const ProgramResult all = RunHotrow({"score", dir + "/model", dir + "/log.csv"});
  ExpectGood(all);
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'), 400);
  const ProgramResult first = RunHotrow({"score", dir + "/model", dir + "/new.csv"});
  ExpectGood(first);
  ASSERT_EQ(std::count(first.out.begin(), first.out.end(), '\n'), 40);
  // The same samples in a shorter batch: the same numbers but for the last digits.
  const auto numbers = [](const std::string& text) {
    std::vector<double> out;
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      double& number = out.emplace_back();
      EXPECT_TRUE(absl::SimpleAtod(line, &number)) << line;
    }
    return out;
  };
  const std::vector<double> scores = numbers(all.out);
  const std::vector<double> again = numbers(first.out);
  for (size_t i = 0; i < again.size(); ++i) EXPECT_NEAR(again[i], scores[i], 1e-6) << i;
  const ProgramResult logits =
      RunHotrow({"score", dir + "/model", dir + "/new.csv", "--score=logit", "--rows=int8"});
  ExpectGood(logits);
  const std::vector<double> coded = numbers(logits.out);
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_NEAR(1 / (1 + std::exp(-coded[i])), scores[i], 0.01) << i;
  }
  // The same codes, written: by the rule that is measured on the data.
  std::filesystem::remove_all(dir + "/coded");
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/schema.json", schema));
  const ProgramResult quantized =
      RunHotrow({"quantize", dir + "/model", dir + "/coded", "--data=table:" + dir + "/schema.json",
                 "--max_auc_loss=1", "--show_rows=3"});
  ExpectGood(quantized);
  EXPECT_THAT(quantized.out, AllOf(HasSubstr("int8"), HasSubstr("2 evaluations"),
                                   HasSubstr("rows that lose most")));
  const ProgramResult coded_logits =
      RunHotrow({"score", dir + "/coded", dir + "/new.csv", "--score=logit"});
  ExpectGood(coded_logits);
  EXPECT_EQ(coded_logits.out, logits.out);
  const ProgramResult inspected = RunHotrow({"inspect", dir + "/coded"});
  ExpectGood(inspected);
  EXPECT_THAT(inspected.out, HasSubstr("int8"));
  EXPECT_EQ(Json({"inspect", dir + "/coded", "--json"})["tables"][0]["row_bytes"], 10);
  EXPECT_EQ(Json({"verify", dir + "/coded", "--json"})["tables"][0]["codes"], "int8");
  // Products of the dense part, which print what they change.
  if (CheckDensePrecision(DensePrecision::kInt8).ok()) {
    const ProgramResult dense =
        RunHotrow({"quantize", dir + "/model", dir + "/dense", "--rows=as_trained", "--dense=int8",
                   "--data=table:" + dir + "/schema.json", "--max_auc_loss=1"});
    ExpectGood(dense);
    EXPECT_THAT(dense.out, AllOf(HasSubstr("dense part in int8 alone: AUC"), HasSubstr("differ"),
                                 HasSubstr("2 evaluations")));
    const ProgramResult asked =
        RunHotrow({"score", dir + "/model", dir + "/new.csv", "--precision=int8"});
    ExpectGood(asked);
    EXPECT_EQ(RunHotrow({"score", dir + "/dense", dir + "/new.csv"}).out, asked.out);
  }
  for (const char* flag : {"--dense=fp8", "--dense=tf32"}) {
    ExpectFails(2, {"quantize", dir + "/model", dir + "/dense2", flag}, HasSubstr(flag));
  }
  ExpectFails(2, {"score", dir + "/model", dir + "/new.csv", "--precision=fp8"}, HasSubstr("fp8"));
  ExpectFails(2, {"import", dir + "/coded", dir + "/back"},
              HasSubstr("give the model that it was made of"));
  ExpectFails(2, {"quantize", dir + "/model", dir + "/coded2", "--rows=as_trained"},
              HasSubstr("rows"));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/log.csv",
                                       absl::StrReplaceAll(log, {{"\n1,", "\n0,"}})));
  ExpectFails(2,
              {"quantize", dir + "/model", dir + "/coded2", "--data=table:" + dir + "/schema.json"},
              AllOf(HasSubstr(": --max_auc_loss cannot"), HasSubstr("choose another split")));
  ExpectFails(2, {"score", dir + "/model", dir + "/none.csv"}, HasSubstr("none.csv"));
  ExpectFails(2, {"score", dir, dir + "/log.csv"}, HasSubstr("there is no"));
  Train({"--save_dir=" + dir + "/synthetic"});
  ExpectFails(2, {"score", dir + "/synthetic", dir + "/log.csv"},
              HasSubstr("its data were no delimited text"));
}

// Going on from an import gives the bits of going on from the model itself.
TEST(HotrowModelsCliTest, TrainingGoesOnFromAnImport) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model"});
  ExpectGood(RunHotrow({"export", dir + "/model", dir + "/out"}));
  ExpectGood(RunHotrow({"import", dir + "/out", dir + "/back"}));
  const auto go_on = [&](const std::string& from, const std::string& report) {
    Train({"--init_from=" + from, "--limit_train_batches=20", "--report=" + report});
    const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), report);
    HOTROW_EXPECT_OK(text);
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    return std::make_pair(json["tables_hash"], json["dense_hash"]);
  };
  const auto expected = go_on(dir + "/model", dir + "/1.json");
  EXPECT_TRUE(expected.first.is_string() && expected.second.is_string());
  EXPECT_EQ(go_on(dir + "/back", dir + "/2.json"), expected);
}

// A checkpoint of the midst of a run, exported and imported: resuming ends with the bits of the
// run.
TEST(HotrowModelsCliTest, TrainingResumesFromAnImportedCheckpoint) {
  const std::string dir = test::TempDir();
  const auto hashes = [&](const std::string& report) {
    const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), report);
    HOTROW_EXPECT_OK(text);
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    return std::make_pair(json["tables_hash"], json["dense_hash"]);
  };
  Train({"--checkpoint_dir=" + dir + "/run", "--checkpoint_every=20", "--keep_checkpoints=10",
         "--report=" + dir + "/1.json"});
  const auto expected = hashes(dir + "/1.json");
  const nlohmann::json seen = Json({"inspect", dir + "/run", "--json"});
  EXPECT_EQ(seen["kind"], "checkpoint");
  EXPECT_EQ(seen["step"], 47);
  EXPECT_GE(seen["checkpoints"].size(), 2u);  // step 40 comes late when 20 is not written yet
  EXPECT_GT(seen["rows"], 100);
  ExpectGood(RunHotrow({"verify", dir + "/run"}));
  ExpectGood(RunHotrow({"export", dir + "/run/step-000000000020", dir + "/out"}));
  EXPECT_EQ(Json({"inspect", dir + "/out", "--json"})["position"]["samples"], 20 * 64);

  ExpectGood(RunHotrow({"import", dir + "/out", dir + "/back"}));
  Train({"--checkpoint_dir=" + dir + "/back", "--resume", "--report=" + dir + "/2.json"});
  EXPECT_EQ(hashes(dir + "/2.json"), expected);
  EXPECT_EQ(Json({"inspect", dir + "/back", "--json"})["step"], 47);

  ExpectGood(RunHotrow({"import", dir + "/out", dir + "/ssd", "--store=ssd"}));
  Train({"--checkpoint_dir=" + dir + "/ssd", "--resume", "--store=ssd",
         "--store_path=" + dir + "/ssd/store", "--disk_bytes=2GiB", "--cache_bytes=min",
         "--report=" + dir + "/3.json"});
  EXPECT_EQ(hashes(dir + "/3.json"), expected);
  ExpectGood(RunHotrow({"verify", dir + "/ssd"}));
}

TEST(HotrowModelsCliTest, DamageIsNamedAndSetsTheStatus) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model"});
  ExpectGood(RunHotrow({"export", dir + "/model", dir + "/out"}));
  ExpectGood(RunHotrow({"import", dir + "/out", dir + "/back", "--store=ssd"}));
  const nlohmann::json files = Json({"inspect", dir + "/model", "--json"})["files"];
  ASSERT_EQ(files.size(), 3u);
  for (size_t i = 1; i < 3; ++i) {
    const std::string path = files[i]["file"];
    FlipByte(path, 3000);
    const ProgramResult result = RunHotrow({"verify", dir + "/model"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out, AllOf(HasSubstr(path), HasSubstr("1 damaged")));
    ExpectFails(1, {"export", dir + "/model", dir + "/no"}, HasSubstr(path));
    FlipByte(path, 3000);
  }
  ExpectGood(RunHotrow({"verify", dir + "/model"}));
  FlipByte(dir + "/model/manifest.json", 100);
  ExpectFails(1, {"inspect", dir + "/model"}, HasSubstr("manifest.json"));

  // A record of the store: named with its table and key.
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, PosixEnv().ListDir(dir + "/back/store"));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(dir, "/back/store/", name);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(PosixEnv(), path));
    if (text.substr(0, 8) == "HOTROWSG") FlipByte(path, 4096 + 60);
  }
  const ProgramResult bad = RunHotrow({"verify", dir + "/back"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.out, AllOf(HasSubstr(dir + "/back/store/segment-"), HasSubstr("of table"),
                             HasSubstr("damaged")));
  ExpectFails(1, {"export", dir + "/back", dir + "/no"}, HasSubstr("/back/store/"));

  // The portable form.
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, PosixEnv().ListDir(dir + "/out/tables"));
  ASSERT_EQ(tables.size(), 3u);
  const std::string weights =
      absl::StrCat(dir, "/out/tables/", tables[1], "/weights-00000-of-00001.npy");
  FlipByte(weights, 200);
  ExpectFails(1, {"verify", dir + "/out"}, HasSubstr(weights));
  ExpectFails(1, {"import", dir + "/out", dir + "/no"}, HasSubstr(weights));
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool exists, PosixEnv().Exists(dir + "/no"));
  EXPECT_FALSE(exists);
  ExpectGood(RunHotrow({"import", dir + "/out", dir + "/yes", "--edited"}));
}

// Killed after 1, 2, 3 ... ms, until an export and an import have come through: what is there under
// the name is whole.
// Each checkpoint of a directory has its verdict, and one that is damaged decides the status.
TEST(HotrowModelsCliTest, AllCheckpointsOfADirectoryAreVerified) {
  const std::string dir = test::TempDir();
  const std::string run = dir + "/run";
  Train({"--checkpoint_dir=" + run, "--checkpoint_every=20", "--keep_checkpoints=3"});
  const ProgramResult good = RunHotrow({"verify", run});
  ExpectGood(good);
  // There is one of step 20, mostly one of step 40, and the last: one that falls due while another
  // is written comes later.
  const int64_t checkpoints = std::count(good.out.begin(), good.out.end(), '\n');
  EXPECT_GE(checkpoints, 2) << good.out;
  EXPECT_THAT(good.out, AllOf(HasSubstr("step-000000000020: "), HasSubstr("step 47: good\n")));
  const nlohmann::json json = Json({"verify", run, "--json"});
  EXPECT_EQ(std::ssize(json["checkpoints"]), checkpoints);
  EXPECT_EQ(json["damaged_checkpoints"], nlohmann::json::array());
  EXPECT_EQ(json["step"], 47);

  const std::string manifest = run + "/step-000000000020/manifest.json";
  FlipByte(manifest, 700);
  const ProgramResult bad = RunHotrow({"verify", run});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_EQ(bad.err, "");
  EXPECT_THAT(bad.out, AllOf(HasSubstr(manifest), HasSubstr("step-000000000020: 1 damaged\n"),
                             HasSubstr("step 47: good\n")));
  const std::vector<std::string> verdicts = absl::StrSplit(bad.out, ": good\n");
  EXPECT_EQ(std::ssize(verdicts) - 1, checkpoints - 1);
  const auto damaged = nlohmann::json::parse(RunHotrow({"verify", run, "--json"}).out, nullptr,
                                             /*allow_exceptions=*/false);
  EXPECT_EQ(damaged["damaged_checkpoints"], nlohmann::json::array({"step-000000000020"}));
  EXPECT_EQ(damaged["damage_count"], 1);
  EXPECT_EQ(damaged["step"], 47);
  // Resuming needs the newest alone.
  Train({"--checkpoint_dir=" + run, "--resume", "--epochs=2"});
}

TEST(HotrowModelsCliTest, FilesThatNoReaderSurvivesAreRefused) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model"});
  ExpectGood(RunHotrow({"export", dir + "/model", dir + "/out"}));
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string text,
                              ReadFileToString(PosixEnv(), dir + "/out/manifest.json"));
  text.insert(text.find('{') + 1,
              absl::StrCat("\"zzz\": ", std::string(200'000, '['), std::string(200'000, ']'), ","));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/out/manifest.json", text));
  for (const std::string verb : {"verify", "inspect"}) {
    ExpectFails(2, {verb, dir + "/out"}, AllOf(HasSubstr("manifest.json"), HasSubstr("deep")));
  }
  for (const std::string name : {"model", "out"}) {
    const std::string manifest = absl::StrCat(dir, "/", name, "/manifest.json");
    std::filesystem::resize_file(manifest, uint64_t{200} << 30);
    for (const std::string verb : {"verify", "inspect"}) {
      ExpectFails(1, {verb, absl::StrCat(dir, "/", name)},
                  AllOf(HasSubstr(manifest), HasSubstr("214748364800")));
    }
  }
}

TEST(HotrowModelsCliTest, AKillLeavesNothingOrTheWhole) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model"});
  const auto kill_until_done = [&](const std::vector<std::string>& command,
                                   const std::string& target) {
    int kills = 0;
    for (int ms = 1; ms < 1000; ms += 1 + ms / 4) {
      std::vector<std::string> all = {"timeout", "-s", "KILL", absl::StrCat(0.001 * ms),
                                      HOTROW_BINARY};
      all.insert(all.end(), command.begin(), command.end());
      const ProgramResult result = RunProgram({.arguments = all});
      HOTROW_ASSERT_OK_AND_ASSIGN(const bool exists, PosixEnv().Exists(target));
      if (exists) ExpectGood(RunHotrow({"verify", target}));
      if (exists) break;
      EXPECT_NE(result.exit_code, 0);
      ++kills;
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool exists, PosixEnv().Exists(target));
    if (!exists) ExpectGood(RunHotrow(command));
    EXPECT_GT(kills, 0);
  };
  kill_until_done({"export", dir + "/model", dir + "/out", "--shard_bytes=500"}, dir + "/out");
  kill_until_done({"import", dir + "/out", dir + "/back", "--store=ssd"}, dir + "/back");
  ExpectGood(RunHotrow({"verify", dir + "/back"}));
}

TEST(HotrowModelsCliTest, AChainOfDeltasIsTheExportOfItsNewestCheckpoint) {
  for (const auto& [store, ages] :
       std::initializer_list<std::pair<std::string, bool>>{{"ssd", false}, {"memory", true}}) {
    SCOPED_TRACE(absl::StrCat(store, ages ? ", rows age" : ""));
    const std::string dir = test::TempDir();
    std::vector<std::string> flags = {"--checkpoint_dir=" + dir + "/run", "--checkpoint_every=15",
                                      "--keep_checkpoints=10"};
    if (ages) flags.push_back("--ttl_steps=10");
    if (store == "ssd") {
      flags.insert(flags.end(), {"--store=ssd", "--store_path=" + dir + "/rows",
                                 "--disk_bytes=2GiB", "--cache_bytes=min"});
    }
    Train(flags);
    const nlohmann::json names = Json({"inspect", dir + "/run", "--json"})["checkpoints"];
    ASSERT_GE(names.size(), 2u);
    std::vector<std::string> checkpoints;
    for (const auto& name : names) checkpoints.push_back(dir + "/run/" + name.get<std::string>());
    const std::string chain = dir + "/chain";
    for (size_t i = 0; i + 1 < checkpoints.size(); ++i) {
      const nlohmann::json delta =
          Json({"export", "--since=" + checkpoints[i], checkpoints[i + 1], chain, "--json"});
      EXPECT_EQ(delta["sequence"], i + 1);
      EXPECT_EQ(delta["made_chain"], i == 0);
      EXPECT_GT(delta["rows"], 0);
      EXPECT_EQ(delta["precision"], "fp32");
    }
    ExpectFails(2, {"export", "--since=" + checkpoints[0], checkpoints[1], chain},
                HasSubstr("newest link"));
    ExpectFails(2, {"export", checkpoints[1], chain + "2", "--weights_only"}, HasSubstr("--since"));
    ExpectGood(RunHotrow({"export", checkpoints.back(), dir + "/full"}));
    const ProgramResult applied = RunHotrow({"apply", chain, dir + "/applied"});
    ExpectGood(applied);
    EXPECT_THAT(applied.out, AllOf(HasSubstr("3 tables"), HasSubstr("step 47")));
    ExpectGood(RunHotrow({"verify", dir + "/applied"}));
    const nlohmann::json full = Json({"inspect", dir + "/full", "--json"});
    EXPECT_EQ(Json({"inspect", dir + "/applied", "--json"})["tables"], full["tables"]);

    const nlohmann::json seen = Json({"inspect", chain, "--json"});
    EXPECT_EQ(seen["kind"], "delta_chain");
    EXPECT_EQ(seen["sequence"], checkpoints.size() - 1);
    EXPECT_EQ(Json({"verify", chain, "--json"}), seen);
    const nlohmann::json compacted = Json({"compact", chain, "--keep=1", "--json"});
    EXPECT_EQ(compacted["made_base"], true);
    EXPECT_EQ(compacted["step"], 47);
    ExpectGood(RunHotrow({"apply", chain, dir + "/again"}));
    EXPECT_EQ(Json({"inspect", dir + "/again", "--json"})["tables"], full["tables"]);

    FlipByte(chain + "/chain.json", 50);
    ExpectFails(1, {"apply", chain, dir + "/no"}, HasSubstr(chain + "/chain.json"));
    EXPECT_FALSE(std::filesystem::exists(dir + "/no"));
  }
}

// Whoever reads the chain meanwhile never sees half a delta.
TEST(HotrowModelsCliTest, AKilledWriterOfADeltaLeavesAWholeChain) {
  const std::string dir = test::TempDir();
  Train({"--checkpoint_dir=" + dir + "/run", "--checkpoint_every=20", "--keep_checkpoints=10"});
  const nlohmann::json names = Json({"inspect", dir + "/run", "--json"})["checkpoints"];
  ASSERT_GE(names.size(), 2u);
  const std::string first = dir + "/run/" + names.front().get<std::string>();
  const std::string last = dir + "/run/" + names.back().get<std::string>();
  const std::string chain = dir + "/chain";
  bool done = false;
  for (int ms = 1; ms < 2000 && !done; ms += 1 + ms / 4) {
    const ProgramResult result =
        RunProgram({.arguments = {"timeout", "-s", "KILL", absl::StrCat(0.001 * ms), HOTROW_BINARY,
                                  "export", "--since=" + first, last, chain}});
    done = result.exit_code == 0;
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool exists, PosixEnv().Exists(chain));
    if (exists) ExpectGood(RunHotrow({"apply", chain, absl::StrCat(dir, "/applied-", ms)}));
    // A kill may come after the delta has its name.
    done = done || std::filesystem::exists(chain + "/delta-00000001");
  }
  EXPECT_TRUE(done);
}

TEST(HotrowModelsCliTest, WrongUsageIsOneLineAndStatusTwo) {
  const std::string dir = test::TempDir();
  ExpectRefused({"export", dir + "/none"}, HasSubstr("DIR is missing"));
  ExpectRefused({"export", dir + "/none", dir + "/out"}, HasSubstr(dir + "/none"));
  ExpectRefused({"export", "a", "b", "c"}, HasSubstr("unexpected argument \"c\""));
  ExpectRefused({"import", dir + "/none"}, HasSubstr("CHECKPOINT is missing"));
  ExpectRefused({"import", dir + "/none", dir + "/back"},
                HasSubstr(absl::StrCat("there is no ", dir, "/none/manifest.json")));
  ExpectRefused({"import", "a", "b", "--store=tape"},
                AllOf(HasSubstr("--store=tape"), HasSubstr("memory")));
  ExpectRefused({"export", "a", "b", "--shard_bytes=lots"}, HasSubstr("--shard_bytes=lots"));
  Train({"--save_dir=" + dir + "/model"});
  ExpectRefused({"import", dir + "/model", dir + "/back"},
                AllOf(HasSubstr("hotrow.saved_model"), HasSubstr("hotrow export has written")));
  ExpectRefused({"export", dir + "/model", dir + "/model"}, HasSubstr("is there already"));
  ExpectRefused({"import", dir + "/model", dir + "/model"}, HasSubstr("hotrow export"));
  for (const std::string command : {"apply", "compact", "export", "import"}) {
    const ProgramResult help = RunHotrow({command, "--help"});
    ExpectGood(help);
    EXPECT_THAT(help.out, AllOf(HasSubstr("Usage: hotrow " + command), HasSubstr("--json")));
    for (const absl::string_view line : absl::StrSplit(help.out, '\n')) {
      EXPECT_LE(line.size(), 100u);
    }
  }
}

// --- numpy ---------------------------------------------------------------------------------------

// A python3 that has numpy; empty: there is none.
std::string PythonWithNumpy() {
  for (const std::string python : {"python3", "/usr/bin/python3"}) {
    if (RunProgram({.arguments = {python, "-c", "import numpy"}}).exit_code == 0) return python;
  }
  return "";
}

// Functions that the scripts share. The hash is that of base/hash.h, computed from the arrays
// alone.
constexpr char kPrelude[] = R"(
import json, os, sys
import numpy as np

MASK = (1 << 64) - 1

def rotl(x, n): return ((x << n) | (x >> (64 - n))) & MASK

def mix64(x):
    x ^= x >> 33
    x = x * 0xff51afd7ed558ccd & MASK
    x ^= x >> 33
    x = x * 0xc4ceb9fe1a85ec53 & MASK
    return x ^ x >> 33

def hash_bytes(key0, key1, data):
    h1, h2 = key0, key1
    padded = data + b'\0' * (-len(data) % 16)
    for at in range(0, len(padded), 16):
        whole = at + 16 <= len(data)
        a = int.from_bytes(padded[at:at + 8], 'little')
        b = int.from_bytes(padded[at + 8:at + 16], 'little')
        a = rotl(a * 0x87c37b91114253d5 & MASK, 31) * 0x4cf5ad432745937f & MASK
        b = rotl(b * 0x4cf5ad432745937f & MASK, 33) * 0x87c37b91114253d5 & MASK
        if whole:
            h1 = (5 * ((rotl(h1 ^ a, 27) + h2) & MASK) + 0x52dce729) & MASK
            h2 = (5 * ((rotl(h2 ^ b, 31) + h1) & MASK) + 0x38495ab5) & MASK
        else:
            h1 ^= a
            h2 ^= b
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    h1, h2 = mix64(h1), mix64(h2)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    return h1 << 64 | h2

def load(directory):
    manifest = json.load(open(os.path.join(directory, 'manifest.json')))
    tables = []
    for entry in manifest['tables']:
        arrays = {}
        for array in entry['arrays']:
            parts = [np.load(os.path.join(directory, f['file'])) for f in array['files']]
            arrays[array['name']] = np.concatenate(parts)
            assert list(arrays[array['name']].shape) == array['shape'], array
            assert arrays[array['name']].dtype.str == array['dtype'], array
        tables.append(arrays)
    return manifest, tables
)";

constexpr char kCheckScript[] = R"(
# A row's weights as they lie in it; the array must have them without loss.
def in_row(weights, precision):
    if precision == 'fp16':
        bytes = weights.astype('<f2').tobytes()
        assert (weights.astype('<f2').astype('<f4') == weights).all()
    elif precision == 'bf16':
        bytes = (weights.view('<u4') >> 16).astype('<u2').tobytes()
        assert (weights.view('<u4') & 0xffff == 0).all()
    else:
        assert precision == 'fp32'
        bytes = weights.tobytes()
    return bytes + b'\0' * (-len(bytes) % 4)

manifest, tables = load(sys.argv[1])
for number, (entry, arrays) in enumerate(zip(manifest['tables'], tables)):
    total = 0
    for i, key in enumerate(arrays['keys']):
        weights = in_row(arrays['weights'][i], entry.get('weights_precision', 'fp32'))
        payload = weights + arrays['momentum1'][i].tobytes()
        total += hash_bytes(int(key), number, payload)
    assert '%032x' % (total & (1 << 128) - 1) == entry['hash'], (number, entry['hash'])
    assert len(np.unique(arrays['keys'])) == entry['rows']
    assert arrays['last_step'].min() >= 1 and arrays['last_step'].max() <= manifest['step']
with open(os.path.join(sys.argv[1], manifest['dense']['file']), 'rb') as f:
    size = int.from_bytes(f.read(8), 'little')
    header = json.loads(f.read(size))
    data = f.read()
begin, end = header['parameters']['data_offsets']
dense = np.frombuffer(data[begin:end], '<f4')
assert dense.size == manifest['dense']['parameters'] and np.isfinite(dense).all()
print('rows', sum(len(t['keys']) for t in tables))
)";

// Table 1 becomes constant, with an accumulator so large that steps are nothing, and gets a row
// that the data never asks for. Each array is one file now, of numpy's own header.
constexpr char kEditScript[] = R"(
manifest, tables = load(sys.argv[1])
arrays = tables[1]
arrays['keys'] = np.append(arrays['keys'].astype(np.int64), np.int64(-1))
arrays['weights'] = np.full((len(arrays['keys']), 8), 0.5, np.float32)
arrays['weights'][-1] = np.arange(8)
arrays['momentum1'] = np.full(len(arrays['keys']), 1e30, np.float32)
arrays['last_step'] = np.append(arrays['last_step'], np.uint32(1))
for array in manifest['tables'][1]['arrays']:
    name = 'edited-%s.npy' % array['name']
    np.save(os.path.join(sys.argv[1], name), arrays[array['name']])
    array['files'] = [{'file': name}]
json.dump(manifest, open(os.path.join(sys.argv[1], 'manifest.json'), 'w'))
)";

// What training on from it has left: sys.argv[2] is the step that it began at.
constexpr char kAfterScript[] = R"(
manifest, tables = load(sys.argv[1])
arrays = tables[1]
last = arrays['keys'] == np.uint64(MASK)
assert last.sum() == 1
assert (arrays['weights'][last][0] == np.arange(8)).all()
# Rows that joined in this run have another beginning, and an accumulator of their own.
old = (arrays['momentum1'] >= 1e29) & ~last
assert old.sum() > 50, old.sum()
assert (arrays['weights'][old] == 0.5).all()
assert (arrays['last_step'][old] > int(sys.argv[2])).any()
assert (tables[0]['weights'] != 0.5).all()
print('good')
)";

class NumpyTest : public testing::Test {
 protected:
  void SetUp() override {
    python_ = PythonWithNumpy();
    if (python_.empty()) GTEST_SKIP() << "there is no python3 with numpy";
  }
  ProgramResult Python(const char* script, const std::vector<std::string>& arguments) {
    const std::string path = test::TempDir() + "/script.py";
    HOTROW_EXPECT_OK(WriteFileAtomically(PosixEnv(), path, absl::StrCat(kPrelude, script)));
    std::vector<std::string> all = {python_, path};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return RunProgram({.arguments = all});
  }
  std::string python_;
};

TEST_F(NumpyTest, ReadsWhatWeWroteAndComputesTheSameHashes) {
  for (const std::string precision : {"fp32", "fp16", "bf16"}) {
    const std::string dir = test::TempDir() + "/" + precision;
    Train({"--save_dir=" + dir + "/model", "--weights_precision=" + precision});
    ExpectGood(RunHotrow({"export", dir + "/model", dir + "/out", "--shard_bytes=1000"}));
    const ProgramResult result = Python(kCheckScript, {dir + "/out"});
    ExpectGood(result);
    int64_t rows = 0;
    const nlohmann::json verified = Json({"verify", dir + "/model", "--json"});
    for (const nlohmann::json& table : verified["tables"]) {
      rows += table["rows"].get<int64_t>();
      EXPECT_EQ(table["weights_precision"], precision);
    }
    EXPECT_EQ(result.out, absl::StrCat("rows ", rows, "\n"));
    EXPECT_THAT(RunHotrow({"inspect", dir + "/model"}).out, HasSubstr(precision));
  }
}

TEST_F(NumpyTest, WeTrainOnFromWhatNumpyWrote) {
  const std::string dir = test::TempDir();
  Train({"--save_dir=" + dir + "/model"});
  ExpectGood(RunHotrow({"export", dir + "/model", dir + "/out", "--shard_bytes=1000"}));
  ExpectGood(Python(kEditScript, {dir + "/out"}));
  ExpectRefused({"import", dir + "/out", dir + "/back"},
                AllOf(HasSubstr("the manifest says"), HasSubstr("--edited")));
  ExpectGood(RunHotrow({"import", dir + "/out", dir + "/back", "--edited"}));
  Train(
      {"--init_from=" + dir + "/back", "--limit_train_batches=30", "--save_dir=" + dir + "/next"});
  ExpectGood(RunHotrow({"export", dir + "/next", dir + "/after"}));
  const ProgramResult result = Python(kAfterScript, {dir + "/after", "47"});
  ExpectGood(result);
  EXPECT_EQ(result.out, "good\n");
  EXPECT_THAT(RunHotrow({"inspect", dir + "/next"}).out, HasSubstr("77"));
}

}  // namespace
}  // namespace hotrow
