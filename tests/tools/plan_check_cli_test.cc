// Plans held against runs of the trainer.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/env.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanCheckCliTest : public ::testing::Test {
 protected:
  // 8 tables of 20,000 rows, 400 steps of 512, each row at most once a sample.
  void Train(const std::vector<std::string>& tiers) {
    std::vector<std::string> all = {
        "--data=synthetic:tables=8,rows=20000,dense=4,samples=204800,valid=512,test=512,zipf=1.05",
        "--embedding_dim=16",
        "--dense_arch_layer_sizes=16-16",
        "--over_arch_layer_sizes=16-1",
        "--batch_size=512",
        "--threads=2",
        "--prefetch_depth=1",
        "--report=" + dir_ + "/run.json"};
    all.insert(all.end(), tiers.begin(), tiers.end());
    const Result result = RunProgram(HOTROW_DLRM_BINARY, all);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  }
  std::string Spec(const std::string& more) {
    std::string text = "batch_size: 512\n" + more + "tables:\n";
    for (int t = 0; t < 8; ++t) {
      text += "- {name: t_cat_" + std::to_string(t) + ", rows: 20000, dim: 16, zipf: 1.05}\n";
    }
    const std::string path = dir_ + "/spec.yaml";
    EXPECT_THAT(WriteFileAtomically(PosixEnv(), path, text), test::IsOk());
    return path;
  }
  // How fast a test's machine is cannot be known here: everything else must be right.
  void ExpectGoodButForSpeed(const std::string& spec, const std::vector<std::string>& judged) {
    const Result text = RunHotrow({"plan", spec, "--check=" + dir_ + "/run.json"});
    const Result result = RunHotrow({"plan", spec, "--check=" + dir_ + "/run.json", "--json"});
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

TEST_F(PlanCheckCliTest, NoCache) {
  Train({"--store_bytes=64MiB"});
  ExpectGoodButForSpeed(Spec("store: memory\ncache_bytes: 0\n"),
                        {"memory.used_bytes", "unique_keys_per_step"});
}

}  // namespace
}  // namespace hotrow
