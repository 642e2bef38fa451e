#include "tests/tools/plan_fuzz_targets.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tools/plan/hardware.h"
#include "tools/plan/plan.h"
#include "tools/plan/plan_spec.h"
#include "tools/plan/spec_text.h"

namespace hotrow::fuzz {
namespace {

// Plans of more tables, or for more cache sizes, take long and show nothing new.
constexpr size_t kMaxTables = 8;

void ExpectPlaced(const absl::Status& status) {
  HOTROW_CHECK(status.message().substr(0, 5) == "input");
}

}  // namespace

void PlanText(const uint8_t* data, size_t size) {
  if (size < 1) return;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      const auto curve = ParseCurve(text, "input");
      if (!curve.ok()) ExpectPlaced(curve.status());
      return;
    }
    case 1: {
      const auto hardware = ParseHardwareProfile(text, "input");
      if (!hardware.ok()) ExpectPlaced(hardware.status());
      return;
    }
    default: {
      const auto node = ParseSpecText(text, "input");
      const auto spec = ParsePlanSpec(text, "input");
      if (!spec.ok()) {
        ExpectPlaced(spec.status());
        return;
      }
      HOTROW_CHECK(node.ok());
      if (spec->tables.size() > kMaxTables) return;
      const auto plan = MakePlan(*spec);
      if (!plan.ok()) {
        HOTROW_CHECK(!plan.status().message().empty());
        return;
      }
      for (const PlanTier& tier : plan->tiers) HOTROW_CHECK(!std::isnan(tier.bytes));
    }
  }
}

std::vector<std::string> PlanTextCorpus() {
  const std::string yaml = R"(# a comment
batch_size: 65536
ranks: 8
ranks_per_node: 4
hardware: {profile: a100-80, dram: 512GB}
prefetch_depth: 1
store: ssd
cache_bytes: auto
exchange_forward: fp16
exchange_backward: int8
model:
  dense_features: 13
  bottom: [512, 256, 128]
  top: [1024, 1]
  interaction: cross
  cross_layers: 3
  cross_rank: 512
  top_inputs: 3456
  parts:
    - {name: batch_norm, count: 2, parameters: 2048, macs: 4096, activations: 1024}
    - {name: cin, rows: 128, inputs: 676, outputs: 64}
  dense_optimizer: adagrad
  precision: fp16
checkpoint: {interval_steps: 1000, retained: 2}
tables:
  - {name: "a", rows: 39884406, dim: 128, hotness: 3, optimizer: sgd, zipf: 1.05}
  - name: b
    rows: 1e3
    dim: 64
    optimizer: adam
    histogram: [[10, 100], [20, 3]]
)";
  const std::string json = R"({"batch_size": 64, "hardware": "cpu", "store": "memory",
    "tables": [{"name": "t\u00e9", "rows": 100, "dim": 8, "optimizer": "ftrl", "zipf": 0}]})";
  const std::string hardware = HardwareProfileText(*FindAccelerator("cpu"));
  const std::string curve = R"({"points": [{"size": 10, "hit_rate": 0.5},
    {"size": 100, "hit_rate": 0.75}]})";
  std::vector<std::string> out = {"",
                                  "\2",
                                  "\2{",
                                  "\2a: [",
                                  "\2" + std::string(20'000, '['),
                                  "\2" + std::string(5'000, '-'),
                                  "\2- - - a\n  b: 'c",
                                  "\2\t"};
  for (const char kind : {'\0', '\1', '\2'}) {
    for (const std::string& text : {yaml, json, hardware, curve}) {
      out.push_back(std::string(1, kind) + text);
    }
  }
  return out;
}

}  // namespace hotrow::fuzz
