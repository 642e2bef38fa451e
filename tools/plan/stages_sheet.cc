#include "tools/plan/stages.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hotrow {
namespace {

// Assumed of what has no measured costs. What a step moves in memory for each lookup beside its
// row: key, unique numbers, and the passes of a radix sort over them (four passes read and write 12
// bytes).
constexpr double kSortBytesPerLookup = 120;
// One find reads two lines of tags, keys and a line of marks.
constexpr double kProbeBytes = 192;

void Finish(const Workload& workload, StepTime* out) {
  // Ahead of a step runs what prefetches; without a GPU both want the same cores, so only waiting
  // for a disk or a network is hidden.
  double ahead = 0;
  double compute = 0;
  for (PlanStage& stage : out->stages) {
    const bool waits = stage.bound_by.rfind("ssd", 0) == 0 || stage.bound_by == "network";
    stage.overlapped = stage.overlapped && (workload.has_gpu() || waits);
    (stage.overlapped ? ahead : compute) += stage.seconds;
  }
  out->seconds = std::max(ahead, compute);
  double longest = -1;
  for (const PlanStage& stage : out->stages) {
    if (stage.overlapped != (ahead > compute) || stage.seconds <= longest) continue;
    longest = stage.seconds;
    out->bottleneck = absl::StrCat(stage.name, " (", stage.bound_by, ")");
  }
}

}  // namespace

StepTime StepTimeFromSheet(const Workload& workload, const TierChoice& tiers,
                           const Traffic& traffic) {
  const PlanSpec& spec = workload.spec;
  const HardwareProfile& hardware = workload.hardware;
  StepTime out;
  const double near = workload.near_bytes_per_second();
  const std::string near_name = workload.near_tier();
  const double samples = workload.samples();
  struct Bound {
    double seconds;
    std::string name;
  };
  const auto add = [&](const char* name, std::vector<Bound> bounds, bool ahead) {
    const Bound& worst =
        *std::max_element(bounds.begin(), bounds.end(),
                          [](const Bound& a, const Bound& b) { return a.seconds < b.seconds; });
    if (worst.seconds <= 0) return;
    out.stages.push_back({name, worst.seconds, worst.name, ahead && spec.prefetch_depth > 0});
  };
  // What a rank sends to other nodes goes over the network, the rest inside.
  const double others = workload.peers();
  const double node = workload.node_peers();
  const auto exchange = [&](double bytes) -> std::vector<Bound> {
    if (others <= 0) return {{0, ""}};
    return {
        {SecondsAt(workload.BytesToNode(bytes), hardware.gpu_link_bytes_per_second),
         "links of the node"},
        {SecondsAt(workload.BytesToNetwork(bytes), hardware.network_bytes_per_second), "network"}};
  };
  const double cpu_keys = workload.has_gpu() ? 0 : hardware.cpu_seconds_per_key;
  // What a GPU was measured to take, or else what moves in memory.
  const EngineCosts& engine = hardware.engine;
  const bool measured = workload.has_gpu_costs();
  const auto in_memory = [&](double seconds, double bytes) -> Bound {
    return {measured ? seconds : bytes / near, near_name};
  };
  add("sort ids and find the distinct ones",
      {{measured ? 0 : workload.lookups * kSortBytesPerLookup / near, near_name},
       {workload.lookups * (measured ? engine.unique_seconds_per_lookup : cpu_keys), "cpu"}},
      true);
  add("exchange ids", exchange(workload.unique_keys * kKeyBytes), true);

  // Rows that are not in the cache come from the store; as many changed ones go back.
  if (tiers.has_cache()) {
    const double cpu_seconds = traffic.misses * hardware.cpu_seconds_per_key;
    std::vector<Bound> reads = {
        {SecondsAt(traffic.link_bytes_down, hardware.host_link_bytes_per_second), "host link"},
        {measured ? engine.miss.Of(traffic.misses, traffic.miss_bytes) : cpu_seconds, "cpu"},
        {SecondsAt(2 * traffic.miss_bytes, hardware.dram_bytes_per_second), "dram"}};
    std::vector<Bound> writes = {
        {SecondsAt(traffic.link_bytes_up, hardware.host_link_bytes_per_second), "host link"},
        {measured ? engine.evict.Of(traffic.evicted, traffic.evicted_bytes) : cpu_seconds, "cpu"},
        {SecondsAt(2 * traffic.evicted_bytes, hardware.dram_bytes_per_second), "dram"}};
    if (FactsOf(tiers.store).on_disk) {
      reads.push_back(
          {SecondsAt(traffic.ssd_ios_read, hardware.ssd_read_ios_per_second), "ssd reads"});
      reads.push_back({SecondsAt(traffic.ssd_bytes_read, hardware.ssd_read_bytes_per_second),
                       "ssd read bytes"});
      writes.push_back({SecondsAt(traffic.ssd_bytes_written, hardware.ssd_write_bytes_per_second),
                        "ssd written bytes"});
    }
    add("read misses", std::move(reads), true);
    add("write evicted rows", std::move(writes), true);
  }

  add("find and gather rows",
      {in_memory(engine.hit.Of(traffic.unique_keys, workload.owned_row_bytes),
                 traffic.unique_keys * kProbeBytes + 2 * workload.owned_weight_bytes),
       {traffic.unique_keys * cpu_keys, "cpu"}},
      measured);
  add("exchange rows", exchange(workload.forward_wire_bytes), false);
  const double pooled_bytes = samples * workload.output_dim * kFloatBytes;
  const bool fused = workload.fuses_lookup();
  add("pool",
      {in_memory(engine.pool.Of(workload.lookups, fused ? 0 : workload.lookup_weight_bytes) +
                     (fused ? 0 : pooled_bytes / near),
                 workload.lookup_weight_bytes + pooled_bytes),
       {workload.lookups * cpu_keys, "cpu"}},
      false);
  // Backward is twice forward: by the input and by the weights.
  add("dense layers",
      {{workload.DenseSeconds(samples), "flops"},
       {3 * workload.activations * samples * kFloatBytes / near, near_name}},
      false);
  add("sum gradients",
      {in_memory(engine.sum.Of(workload.lookups, workload.lookup_gradient_bytes),
                 2 * (workload.lookup_gradient_bytes + pooled_bytes)),
       {workload.lookups * cpu_keys, "cpu"}},
      false);
  add("exchange gradients", exchange(workload.backward_wire_bytes), false);
  add("update rows",
      {in_memory(engine.update.Of(traffic.unique_keys, workload.owned_row_bytes),
                 2 * workload.owned_row_bytes + workload.owned_gradient_bytes),
       {traffic.unique_keys * cpu_keys, "cpu"}},
      false);
  if (spec.ranks > 1) {
    // Within each node first; what crosses the network is then shared by the ranks of a node.
    const double nodes = std::ceil(workload.ranks() / (node + 1));
    const double parameters = workload.dense_parameters * kFloatBytes;
    const double inside = 2 * node / (node + 1) * parameters;
    const double outside = 2 * (nodes - 1) / nodes * parameters / (node + 1);
    add("all-reduce dense gradients",
        {{SecondsAt(inside, hardware.gpu_link_bytes_per_second), "links of the node"},
         {SecondsAt(outside, hardware.network_bytes_per_second), "network"}},
        false);
    // Ids, rows and gradients go from all to all; an all-reduce goes up and down a tree.
    double wait = 4 * hardware.link_seconds;
    if (nodes > 1) {
      wait += 3 * (hardware.network_seconds + (others - node) * hardware.network_message_seconds) +
              2 * std::ceil(std::log2(nodes)) * hardware.network_seconds;
    }
    add("wait for the others", {{wait, "latency"}}, false);
  }
  const double states = spec.model.dense_optimizer_states;
  add("update dense parameters",
      {{workload.dense_parameters * kFloatBytes * (3 + 2 * states) / near, near_name}}, false);
  add("start the work of a step", {{hardware.step_seconds, "latency"}}, false);
  // Each rank reads all of a batch and keeps its part.
  add("read and draw the data",
      {{static_cast<double>(spec.batch_size) * spec.data_seconds_per_sample, "cpu"}}, true);
  add("read the data from the disk",
      {{SecondsAt(workload.data_bytes(), hardware.ssd_read_bytes_per_second), "ssd read bytes"}},
      true);
  Finish(workload, &out);
  return out;
}

}  // namespace hotrow
