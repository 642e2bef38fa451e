#include "base/machine_limits.h"

#include <filesystem>
#include <fstream>

#include "tests/support/test_util.h"

namespace hotrow {
namespace {

class MachineLimitsTest : public testing::Test {
 protected:
  void Put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(dir_ + "/" + name).parent_path());
    std::ofstream(dir_ + "/" + name) << text << "\n";
  }

  const std::string dir_ = test::TempDir();
  const ControlGroups groups_ = {.root = dir_ + "/root", .self = dir_ + "/self"};
};

TEST_F(MachineLimitsTest, WithoutGroupsItIsTheMachine) {
  EXPECT_GT(UsableMemoryBytes(groups_), int64_t{1} << 26);
  EXPECT_GE(UsableProcessors(groups_), 1);
}

TEST_F(MachineLimitsTest, OfVersion2TheLowestLimitOnTheWayUpCounts) {
  Put("self", "0::/a/b");
  Put("root/a/b/memory.max", "max");
  Put("root/a/memory.max", "33554432");
  Put("root/memory.max", "67108864");
  Put("root/a/b/cpu.max", "max 100000");
  Put("root/cpu.max", "100000 100000");
  EXPECT_EQ(UsableMemoryBytes(groups_), 33554432);
  EXPECT_EQ(UsableProcessors(groups_), 1);
}

TEST_F(MachineLimitsTest, OfVersion1EachControllerHasItsOwnPath) {
  Put("self", "9:memory:/slurm/job_77/step\n4:cpu,cpuacct:/slurm/job_77\n1:name=systemd:/x");
  Put("root/memory/memory.limit_in_bytes", "9223372036854771712");
  Put("root/memory/slurm/job_77/memory.limit_in_bytes", "33554432");
  Put("root/memory/slurm/job_77/step/memory.limit_in_bytes", "9223372036854771712");
  Put("root/cpu/slurm/cpu.cfs_quota_us", "-1");
  Put("root/cpu/slurm/job_77/cpu.cfs_quota_us", "50000");
  Put("root/cpu/slurm/job_77/cpu.cfs_period_us", "100000");
  EXPECT_EQ(UsableMemoryBytes(groups_), 33554432);
  EXPECT_EQ(UsableProcessors(groups_), 1);
}

TEST_F(MachineLimitsTest, InAContainerThePathIsTheHosts) {
  Put("self", "9:memory:/docker/0123\n0::/docker/0123");
  Put("root/memory/memory.limit_in_bytes", "33554432");
  EXPECT_EQ(UsableMemoryBytes(groups_), 33554432);
}

}  // namespace
}  // namespace hotrow
