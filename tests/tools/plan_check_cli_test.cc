// Plans held against runs of the trainer.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"
#ifdef HOTROW_MPIEXEC
#include "tests/support/mpirun.h"
#endif

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanCheckCliTest : public ::testing::Test {
 protected:
  // 8 tables of 20,000 rows, 400 steps of 512, each row at most once a sample.
  void Train(const std::vector<std::string>& tiers, int ranks = 1) {
    std::vector<std::string> all = {
        HOTROW_DLRM_BINARY,
        "--data=synthetic:tables=8,rows=20000,dense=4,samples=204800,valid=512,test=512,zipf=1.05",
        "--embedding_dim=16",
        "--dense_arch_layer_sizes=16-16",
        "--over_arch_layer_sizes=16-1",
        "--batch_size=512",
        "--threads=2",
        "--prefetch_depth=1",
        "--report=" + dir_ + "/run.json"};
    all.insert(all.end(), tiers.begin(), tiers.end());
    test::Program program = {.arguments = all};
#ifdef HOTROW_MPIEXEC
    if (ranks > 1) program = test::Mpirun(ranks, /*recovery=*/false, all);
#else
    ASSERT_EQ(ranks, 1);
#endif
    const ProgramResult result = RunProgram(program);
    ASSERT_EQ(result.exit_code, 0) << result;
  }
  std::string Spec(const std::string& more) {
    std::string text = "batch_size: 512\n" + more + "tables:\n";
    for (int t = 0; t < 8; ++t) {
      text += "- {name: t_cat_" + std::to_string(t) + ", rows: 20000, dim: 16, zipf: 1.05}\n";
    }
    const std::string path = dir_ + "/spec.yaml";
    HOTROW_EXPECT_OK(WriteFileAtomically(PosixEnv(), path, text));
    return path;
  }
  // How fast a test's machine is cannot be known here: everything else must be right.
  void ExpectGoodButForSpeed(const std::string& spec, const std::vector<std::string>& judged) {
    const ProgramResult text = RunHotrow({"plan", spec, "--check=" + dir_ + "/run.json"});
    const ProgramResult result =
        RunHotrow({"plan", spec, "--check=" + dir_ + "/run.json", "--json"});
    EXPECT_EQ(text.exit_code, result.exit_code);
    const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
    ASSERT_TRUE(json.is_object()) << result.err;
    std::vector<std::string> names;
    for (const nlohmann::json& item : json["items"]) {
      if (item["verdict"].is_null()) continue;
      names.push_back(item["name"]);
      if (item["name"] == "samples_per_second") {
        EXPECT_EQ(result.exit_code, item["verdict"] == "good" ? 0 : 1) << text.out;
      } else {
        EXPECT_EQ(item["verdict"], "good") << text.out;
      }
    }
    for (const std::string& name : judged) EXPECT_THAT(names, testing::Contains(name));
  }

  const std::string dir_ = test::TempDir();
};

TEST_F(PlanCheckCliTest, ACacheOverMemory) {
  Train({"--cache_bytes=4MiB", "--store_bytes=64MiB"});
  ExpectGoodButForSpeed(Spec("store: memory\ncache_bytes: 4MiB\n"),
                        {"cache.used_bytes", "memory.used_bytes", "cache.hit_rate",
                         "cache.unique_hit_rate", "unique_keys_per_step", "samples_per_second"});
  // And a run of another model is not taken for this one.
  const std::string other = Spec("store: memory\ncache_bytes: 8MiB\n");
  ExpectRefused({"plan", other, "--check=" + dir_ + "/run.json"},
                AllOf(HasSubstr("run.json"), HasSubstr("cache_bytes")));
}

TEST_F(PlanCheckCliTest, ACacheOverAnSsd) {
  Train({"--cache_bytes=4MiB", "--store=ssd", "--store_path=" + dir_ + "/store",
         "--store_bytes=32MiB", "--disk_bytes=200MB"});
  ExpectGoodButForSpeed(Spec("store: ssd\ncache_bytes: auto\n"),
                        {"cache.used_bytes", "cache.unique_hit_rate", "cache.hit_rate",
                         "ssd.ios per step", "samples_per_second"});
}

// What the run itself said of it is a plan of the run.
TEST_F(PlanCheckCliTest, TheSpecThatTheTrainerSaved) {
  const std::string spec = dir_ + "/spec.json";
  Train({"--cache_bytes=4MiB", "--store_bytes=64MiB", "--save_spec=" + spec,
         "--record_trace=" + dir_ + "/trace", "--sample_rate=0.2", "--mrc"});
  const ProgramResult planned = RunHotrow({"plan", spec, "--json"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  ExpectGoodButForSpeed(spec, {"cache.used_bytes", "memory.used_bytes", "cache.hit_rate",
                               "cache.unique_hit_rate", "unique_keys_per_step"});

  const ProgramResult info = RunHotrow({"trace", "info", dir_ + "/trace", "--json"});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  const nlohmann::json tables = nlohmann::json::parse(info.out, nullptr, false)["tables"];
  ASSERT_EQ(tables.size(), 8u) << info.out;
  // The same curve from the trace as the trainer has estimated, in the same words.
  const ProgramResult mrc = RunHotrow({"trace", "mrc", dir_ + "/trace", "--json"});
  EXPECT_EQ(mrc.exit_code, 0) << mrc.err;
  const nlohmann::json traced = nlohmann::json::parse(mrc.out, nullptr, false);
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), dir_ + "/run.json");
  HOTROW_ASSERT_OK(text.status());
  const nlohmann::json report = nlohmann::json::parse(*text, nullptr, false)["mrc"];
  EXPECT_EQ(report["accesses"], traced["accesses"]);
  ASSERT_EQ(report["tables"].size(), traced["tables"].size());
  for (const auto& [field, value] : traced["tables"][0].items()) {
    EXPECT_EQ(report["tables"][0].count(field), 1u) << field;
  }
  for (const auto& [field, value] : traced["points"][0].items()) {
    EXPECT_EQ(report["points"][0].count(field), 1u) << field;
  }
  for (const auto& [field, value] : traced.items()) EXPECT_EQ(report.count(field), 1u) << field;
  EXPECT_EQ(report["tables"][3]["name"], traced["tables"][3]["name"]);
  EXPECT_EQ(report["tables"][3]["accesses"], traced["tables"][3]["accesses"]);
}

TEST_F(PlanCheckCliTest, WeightsOf16Bits) {
  const std::string spec = dir_ + "/spec.json";
  Train({"--cache_bytes=2MiB", "--store_bytes=64MiB", "--save_spec=" + spec,
         "--weights_precision=fp16"});
  ExpectGoodButForSpeed(spec, {"cache.used_bytes", "memory.used_bytes", "cache.hit_rate",
                               "cache.unique_hit_rate", "unique_keys_per_step"});
  // 48 bytes of 16 columns instead of 80.
  ExpectRefused(
      {"plan", Spec("store: memory\ncache_bytes: 2MiB\n"), "--check=" + dir_ + "/run.json"},
      HasSubstr("weights_precision of table t_cat_0: the spec has fp32, the report fp16"));
}

TEST_F(PlanCheckCliTest, TwoRanks) {
#ifndef HOTROW_MPIEXEC
  GTEST_SKIP() << "this build has no MPI, or there is no mpirun";
#endif
  Train({"--cache_bytes=2MiB", "--store=ssd", "--store_path=" + dir_ + "/store",
         "--store_bytes=32MiB", "--disk_bytes=200MB", "--exchange_backward=int8"},
        2);
  ExpectGoodButForSpeed(
      Spec("store: ssd\ncache_bytes: 2MiB\nranks: 2\nranks_per_node: 2\n"
           "exchange_backward: int8\n"
           "model: {dense_features: 4, bottom: [16, 16], top: [16, 1], interaction: dot}\n"),
      {"cache.used_bytes", "cache.unique_hit_rate", "cache.hit_rate", "ssd.ios per step",
       "unique_keys_per_step", "exchange.ids_bytes", "exchange.forward_bytes",
       "exchange.backward_bytes", "exchange.dense_bytes"});
  // As one rank would have it, this is another run.
  ExpectRefused({"plan", Spec("store: ssd\ncache_bytes: 2MiB\n"), "--check=" + dir_ + "/run.json"},
                HasSubstr("ranks"));
}

TEST_F(PlanCheckCliTest, NoCache) {
  Train({"--store_bytes=64MiB"});
  ExpectGoodButForSpeed(Spec("store: memory\ncache_bytes: 0\n"),
                        {"memory.used_bytes", "unique_keys_per_step"});
}

}  // namespace
}  // namespace hotrow
