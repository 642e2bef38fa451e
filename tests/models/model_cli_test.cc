// Runs all models but dlrm as a user does; what all training programs share is tested by way of
// dlrm.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "gtest/gtest.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kBst[] = HOTROW_BST_BINARY;
constexpr char kDeepFm[] = HOTROW_DEEPFM_BINARY;
constexpr char kDcn[] = HOTROW_DCN_BINARY;
constexpr char kDin[] = HOTROW_DIN_BINARY;
constexpr char kDlrm[] = HOTROW_DLRM_BINARY;
constexpr char kMmoe[] = HOTROW_MMOE_BINARY;
constexpr char kPnn[] = HOTROW_PNN_BINARY;
constexpr char kWideDeep[] = HOTROW_WIDE_DEEP_BINARY;
constexpr char kXDeepFm[] = HOTROW_XDEEPFM_BINARY;

ProgramResult RunModel(const std::string& binary, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), binary);
  return test::RunProgram({.arguments = std::move(arguments)});
}

// A model small enough to train in a moment, on one thread.
std::vector<std::string> Small(const std::vector<std::string>& more, int num_dense = 2) {
  std::vector<std::string> all = {
      "--data=synthetic:tables=3,rows=200,samples=3000,valid=300,"
      "test=500,dense=" +
          std::to_string(num_dense),
      "--embedding_dim=8",
      "--over_arch_layer_sizes=16-1",
      "--batch_size=64",
      "--learning_rate=0.05",
      "--threads=1",
      "--store_bytes=64MiB"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// What the report of a run says.
nlohmann::json Train(const std::string& binary, std::vector<std::string> arguments) {
  const std::string path = test::TempDir() + "/report.json";
  arguments.push_back("--report=" + path);
  const ProgramResult result = RunModel(binary, arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("test AUC"));
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)
                   : nlohmann::json();
}

// Exactly one line on stderr, exit status 2, and nothing trained.
void ExpectRefused(const std::string& binary, const std::vector<std::string>& arguments,
                   const ::testing::Matcher<const std::string&>& message) {
  test::ExpectOneLineError(RunModel(binary, Small(arguments)), 2, message);
}

TEST(ModelCliTest, DeepFmLearnsWithAndWithoutDenseFeatures) {
  for (const int num_dense : {0, 2}) {
    const nlohmann::json report = Train(kDeepFm, Small({"--cache_bytes=min"}, num_dense));
    EXPECT_EQ(report["model"], "deepfm");
    EXPECT_EQ(report["flags"]["embedding_dim"], 8);
    EXPECT_GT(report["test"]["auc"], 0.6) << num_dense;
  }
}

TEST(ModelCliTest, EveryKindOfDcnLearns) {
  // Every value of every flag of it; all pairs are models_dense_test's.
  for (const std::vector<std::string>& kind : std::vector<std::vector<std::string>>{
           {"--dcn_version=1", "--dcn_structure=parallel"},
           {"--dcn_low_rank_dim=4", "--dcn_num_experts=2", "--dcn_num_layers=2"},
           {"--dense_arch_layer_sizes=16-8", "--dropout=0.1"}}) {
    const nlohmann::json report = Train(kDcn, Small(kind));
    EXPECT_EQ(report["model"], "dcn");
    EXPECT_GT(report["test"]["auc"], 0.6) << testing::PrintToString(kind);
  }
  EXPECT_GT(Train(kDcn, Small({}, /*num_dense=*/0))["test"]["auc"], 0.6);
}

// That they learn without dense features, or with them, is models_dense_test's.
TEST(ModelCliTest, OtherModelsLearn) {
  struct Case {
    const char* binary;
    const char* name;
    int num_dense;
    std::vector<std::string> flags;
  };
  for (const auto& [binary, name, num_dense, flags] :
       {Case{kXDeepFm, "xdeepfm", 2, {"--cin_layer_sizes=6-5"}},
        Case{kWideDeep, "wide_deep", 0, {"--batch_norm"}},
        Case{kMmoe, "mmoe", 2, {"--num_experts=3", "--expert_layer_sizes=8"}},
        Case{kDin, "din", 0, {"--history=cat_0:cat_1"}},
        Case{kBst, "bst", 2, {"--history=cat_0:cat_1", "--num_heads=4"}},
        Case{kPnn, "pnn", 2, {"--pnn_products=both", "--cache_bytes=min"}},
        Case{kDlrm, "dlrm", 0, {"--interaction=cat", "--dense_arch_layer_sizes=8-5"}}}) {
    std::vector<std::string> arguments = Small(flags, num_dense);
    arguments.push_back("--epochs=2");
    const nlohmann::json report = Train(binary, arguments);
    EXPECT_EQ(report["model"], name);
    EXPECT_GT(report["test"]["auc"], 0.65) << testing::PrintToString(flags);
  }
}

// The dense models in the planner's words; that it reads them hotrow_models_cli_test says.
TEST(ModelCliTest, SavedSpecsHaveTheDenseModel) {
  const auto model = [](const char* binary, std::vector<std::string> arguments) {
    const std::string path = test::TempDir() + "/spec.json";
    arguments.push_back("--save_spec=" + path);
    arguments.push_back("--limit_train_batches=1");
    Train(binary, Small(arguments));
    const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), path);
    HOTROW_EXPECT_OK(text);
    const nlohmann::json spec =
        text.ok() ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)
                  : nlohmann::json();
    const bool has_wide_column = binary == kDeepFm || binary == kXDeepFm;
    EXPECT_EQ(spec["tables"][0]["dim"], has_wide_column ? 9 : 8);
    return spec["model"];
  };
  const nlohmann::json deepfm = model(kDeepFm, {});
  EXPECT_EQ(deepfm["interaction"], "concat");
  EXPECT_EQ(deepfm["top"], nlohmann::json({16, 1}));
  EXPECT_EQ(deepfm["top_inputs"], 3 * 8 + 2);
  EXPECT_EQ(deepfm["parts"],
            nlohmann::json::parse(R"([{"name": "fm", "macs": 54, "activations": 1}])"));
  EXPECT_EQ(deepfm.count("bottom"), 0u);
  EXPECT_EQ(deepfm["dense_features"], 2);
  const nlohmann::json dcn = model(kDcn, {"--dense_arch_layer_sizes=12-8", "--dcn_low_rank_dim=4",
                                          "--dcn_num_layers=2", "--dense_optimizer=adam"});
  EXPECT_EQ(dcn["interaction"], "cross");
  EXPECT_EQ(dcn["bottom"], nlohmann::json({12, 8}));
  EXPECT_EQ(dcn["cross_layers"], 2);
  EXPECT_EQ(dcn["cross_rank"], 4);
  EXPECT_EQ(dcn["dense_optimizer"], "adam");
  EXPECT_EQ(model(kDcn, {"--dcn_version=1"})["cross_rank"], 1);
  const nlohmann::json mixed =
      model(kDcn, {"--dcn_low_rank_dim=4", "--dcn_num_experts=2", "--dcn_num_layers=1"});
  EXPECT_EQ(mixed["interaction"], "concat");
  EXPECT_EQ(mixed["top"], nlohmann::json({8}));
  EXPECT_EQ(mixed["parts"], nlohmann::json::parse(R"([
              {"name": "mlp", "inputs": 26, "outputs": 2},
              {"name": "gated_map", "count": 2, "inputs": 4, "outputs": 4, "macs": 4,
               "activations": 4},
              {"name": "mlp", "inputs": 8, "outputs": 26},
              {"name": "crossing", "macs": 26, "activations": 26},
              {"name": "mlp", "inputs": 26, "outputs": 16},
              {"name": "mlp", "inputs": 16, "outputs": 1}])"));
  const nlohmann::json pnn = model(kPnn, {"--batch_norm"});
  EXPECT_EQ(pnn["interaction"], "dot");
  EXPECT_EQ(pnn["top_inputs"], 3 * 8 + 2 + 3);
  EXPECT_EQ(pnn["parts"],
            nlohmann::json::parse(
                R"([{"name": "batch_norm", "parameters": 32, "macs": 64, "activations": 16}])"));
  EXPECT_EQ(model(kXDeepFm, {"--cin_layer_sizes=6-5"})["parts"], nlohmann::json::parse(R"([
              {"name": "cin", "rows": 8, "inputs": 9, "outputs": 6, "macs": 72, "activations": 72},
              {"name": "cin", "rows": 8, "inputs": 18, "outputs": 5, "macs": 144,
               "activations": 144}])"));
  const nlohmann::json mmoe = model(kMmoe, {"--num_experts=3", "--expert_layer_sizes=8"});
  EXPECT_EQ(mmoe["top"], nlohmann::json({8}));
  EXPECT_EQ(mmoe["top_inputs"], 3 * 8 + 2);
  EXPECT_EQ(mmoe["parts"], nlohmann::json::parse(R"([
              {"name": "mlp", "count": 2, "inputs": 26, "outputs": 8},
              {"name": "mlp", "inputs": 26, "outputs": 3},
              {"name": "mixture", "macs": 24, "activations": 8},
              {"name": "mlp", "inputs": 8, "outputs": 16},
              {"name": "mlp", "inputs": 16, "outputs": 1}])"));
}

// Models see rows, not where they lie: a model that pools (dlrm_cli_test has another), and the one
// that reads them one by one.
TEST(ModelCliTest, ACacheMovesNoBit) {
  for (const char* const binary : {kDeepFm, kDin}) {
    const auto small = [binary](std::vector<std::string> flags) {
      if (binary == kDin) flags.push_back("--history=cat_0:cat_1");
      return Small(flags);
    };
    const nlohmann::json without = Train(binary, small({}));
    const nlohmann::json with = Train(binary, small({"--cache_bytes=min", "--threads=2"}));
    EXPECT_EQ(with["tables_hash"], without["tables_hash"]);
    EXPECT_EQ(with["dense_hash"], without["dense_hash"]);
  }
}

// Saving writes all rows again, while checkpoints fill the disk.
TEST(ModelCliTest, ModelsOfTablesThatDecayAreSavedOnAFullDisk) {
  const auto flags = [](const std::string& disk, const std::string& dir) {
    return std::vector<std::string>{
        "--data=synthetic:tables=2,rows=8000,zipf=0.2,samples=24000,"
        "valid=0,test=64",
        "--embedding_dim=64",
        "--over_arch_layer_sizes=8-1",
        "--batch_size=1000",
        "--threads=1",
        "--prefetch_depth=0",
        "--cache_bytes=2MiB",
        "--optimizer=sgd",
        "--table_weight_decay=1e-5",
        "--table_weight_decay_mode=table",
        "--store=ssd",
        "--store_path=" + dir + "/rows",
        "--disk_bytes=" + disk,
        "--checkpoint_dir=" + dir + "/checkpoints",
        "--checkpoint_every=12",
        "--save_dir=" + dir + "/model"};
  };
  const nlohmann::json roomy = Train(kDeepFm, flags("64MiB", test::TempDir()));
  const nlohmann::json full = Train(kDeepFm, flags("17MiB", test::TempDir()));
  EXPECT_EQ(full["tables_hash"], roomy["tables_hash"]);
  EXPECT_EQ(full["dense_hash"], roomy["dense_hash"]);
}

// The presets of a program as its --help lists them: "--preset=frappe" and the like.
std::vector<std::string> PresetsOf(const std::string& binary) {
  std::istringstream help(RunModel(binary, {"--help"}).out);
  std::vector<std::string> out;
  bool presets = false;
  for (std::string line; std::getline(help, line);) {
    presets = line == "Presets" || (presets && !line.empty());
    if (presets && line.starts_with("  --preset=")) out.push_back(line.substr(2));
  }
  return out;
}

TEST(ModelCliTest, EveryPresetTrains) {
  for (const char* const binary : {kDlrm, kDeepFm, kDcn, kWideDeep, kXDeepFm, kPnn, kMmoe}) {
    const std::vector<std::string> presets = PresetsOf(binary);
    EXPECT_FALSE(presets.empty()) << binary;
    for (const std::string& preset : presets) {
      const nlohmann::json report =
          Train(binary, Small({preset, "--epochs=1", "--limit_train_batches=1"}));
      EXPECT_EQ(report["flags"]["optimizer"], "adam") << binary << " " << preset;
    }
  }
}

TEST(ModelCliTest, HelpNamesTheProgramAndItsFlags) {
  const ProgramResult deepfm = RunModel(kDeepFm, {"--help"});
  EXPECT_EQ(deepfm.exit_code, 0);
  for (const char* const text : {"Usage: deepfm", "--over_arch_layer_sizes=", "--dropout=",
                                 "--cache_bytes=", "Exit status"}) {
    EXPECT_THAT(deepfm.out, HasSubstr(text));
  }
  const ProgramResult dcn = RunModel(kDcn, {"--help"});
  EXPECT_EQ(dcn.exit_code, 0);
  for (const char* const text :
       {"Usage: dcn", "--dcn_version=", "--dcn_num_layers=", "--dcn_low_rank_dim=",
        "--dcn_num_experts=", "--dcn_structure=", "stacked", "parallel",
        "--dense_arch_layer_sizes=", "Exit status"}) {
    EXPECT_THAT(dcn.out, HasSubstr(text));
  }
}

TEST(ModelCliTest, BadValuesAreRefusedByName) {
  ExpectRefused(kDeepFm, {"--over_arch_layer_sizes=16"},
                AllOf(HasSubstr("deepfm: "), HasSubstr("--over_arch_layer_sizes=16-1")));
  ExpectRefused(kDeepFm, {"--dropout=1"}, HasSubstr("--dropout=1"));
  ExpectRefused(kDeepFm, {"--dcn_version=1"}, HasSubstr("--dcn_version"));  // a flag of dcn
  ExpectRefused(kDcn, {"--dcn_version=3"}, HasSubstr("--dcn_version=3"));
  ExpectRefused(kDcn, {"--dcn_structure=both"},
                HasSubstr("--dcn_structure=both: takes stacked or parallel"));
  ExpectRefused(kDcn, {"--dcn_version=1", "--dcn_low_rank_dim=2"},
                AllOf(HasSubstr("--dcn_low_rank_dim=2"), HasSubstr("--dcn_version=2")));
  ExpectRefused(kDcn, {"--dcn_low_rank_dim=27"},
                AllOf(HasSubstr("--dcn_low_rank_dim=27"), HasSubstr("at most 26")));
  ExpectRefused(kXDeepFm, {"--cin_layer_sizes=4-0"}, HasSubstr("--cin_layer_sizes=4-0"));
  ExpectRefused(kPnn, {"--pnn_products=all"}, HasSubstr("--pnn_products=all: takes inner, outer"));
  ExpectRefused(kDlrm, {"--interaction=cross"}, HasSubstr("--interaction=cross: takes dot or cat"));
}

}  // namespace
}  // namespace hotrow
