#ifndef HOTROW_TOOLS_PLAN_WORKLOAD_H_
#define HOTROW_TOOLS_PLAN_WORKLOAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/rows/row_layout.h"
#include "tools/plan/hardware.h"
#include "tools/plan/plan_spec.h"
#include "tools/plan/popularity.h"

namespace hotrow {

inline constexpr double kFloatBytes = 4;
inline constexpr double kKeyBytes = 8;
// Forward, backward by the input and backward by the weights, each a multiplication and an
// addition.
inline constexpr double kFlopsPerMac = 6;

// amount / per_second: 0 for no amount, infinity for an amount without a rate.
double SecondsAt(double amount, double per_second);

// Tables with one row width share a cache.
struct WidthClass {
  int64_t row_bytes = 0;
  std::vector<size_t> tables;         // positions in the spec
  double rows = 0;                    // of all ranks
  double min_cache_bytes = 0;         // of one rank
  std::unique_ptr<CacheModel> model;  // of all ranks together
};

// The work of one rank that follows from the spec alone, before a store or a cache size is chosen:
// tables, lookups of a step, dense model. Constant once made.
struct Workload {
  // `spec` must outlive it. Errors: InvalidArgument, naming the place in the spec.
  static absl::StatusOr<Workload> Of(const PlanSpec& spec);

  const PlanSpec& spec;
  const HardwareProfile hardware;  // of a rank

  // By table.
  std::vector<Popularity> laws;
  std::vector<std::unique_ptr<Footprint>> footprints;  // null: there is a law
  std::vector<RowLayout> layouts;
  std::vector<WidthClass> classes;

  // Sums over all ranks.
  double rows = 0;
  double weight_bytes = 0;
  double payload_bytes = 0;
  double row_bytes = 0;

  // Cache budgets of one rank: for the steps in flight, and for all rows it owns.
  double min_cache_bytes = 0;
  double whole_cache_bytes = 0;

  // What one step reads and sends, in the rank's part of the batch.
  double lookups = 0;
  double lookup_weight_bytes = 0;
  double lookup_gradient_bytes = 0;  // as floats, which gradients are with any weights
  double unique_keys = 0;
  double unique_gradient_bytes = 0;  // as floats
  double forward_wire_bytes = 0;     // of the distinct rows
  double backward_wire_bytes = 0;
  // The distinct rows of one step that the rank owns and any rank uses.
  double owned_weight_bytes = 0;
  double owned_gradient_bytes = 0;
  double owned_row_bytes = 0;

  // The dense model.
  double pooled_dim = 0;  // of a vector for each feature
  double output_dim = 0;  // the same, but of features that are not pooled all rows
  double dense_parameters = 0;
  double dense_macs = 0;  // a sample, forward
  // Their time, forward and backward at the rates of the layers' widths and the batch, 32-bit
  // inputs.
  double dense_sample_seconds = 0;
  double activations = 0;  // floats a sample
  // What a sample moves in the memory of a GPU beside the products; without measured costs 0.
  double dense_bytes = 0;

  double ranks() const { return spec.ranks; }
  double samples() const { return static_cast<double>(spec.batch_size) / ranks(); }  // of the rank
  double steps_in_flight() const { return 1.0 + spec.prefetch_depth; }
  double RowsOf(const PlanTable& table) const {
    return static_cast<double>(table.rows) + table.rows_per_day * spec.days;
  }
  // Distinct rows of a table among so many of its lookups.
  double DistinctRows(size_t table, double table_lookups) const;
  // Bytes of a step's data, the rank's part of what its node reads.
  double data_bytes() const {
    return static_cast<double>(spec.batch_size) * spec.data_bytes_per_sample / (node_peers() + 1);
  }
  // Forward and backward of so many samples.
  double DenseSeconds(double samples) const;

  // Rows are trained by a GPU in its memory, or by the processors in theirs.
  bool has_gpu() const { return hardware.hbm_bytes > 0; }
  bool has_gpu_costs() const { return has_gpu() && hardware.activation_bytes > 0; }
  // Dot products read rows where the cache has them: one lookup a feature and sample.
  bool fuses_lookup() const;
  std::string near_tier() const { return has_gpu() ? "hbm" : "dram"; }
  double near_bytes_per_second() const {
    return has_gpu() ? hardware.hbm_bytes_per_second : hardware.dram_bytes_per_second;
  }
  double hbm_limit() const { return Limit(spec.hbm_max_bytes, hardware.hbm_bytes); }
  double dram_limit() const { return Limit(spec.dram_max_bytes, hardware.dram_bytes); }
  double ssd_limit() const { return Limit(spec.ssd_max_bytes, hardware.ssd_bytes); }

  // The other ranks, and those of them on the same node.
  double peers() const { return ranks() - 1; }
  double node_peers() const { return std::min<double>(spec.ranks_per_node, ranks()) - 1; }
  // The share of `bytes` sent to ranks of the same node, and over the network; keys are distributed
  // by hash.
  double BytesToNode(double bytes) const { return bytes * node_peers() / ranks(); }
  double BytesToNetwork(double bytes) const { return bytes * (peers() - node_peers()) / ranks(); }

 private:
  explicit Workload(const PlanSpec& plan_spec);
  absl::Status AddTables();
  void AddCaches();
  void AddDenseModel();
  static double Limit(double wanted, double has) {
    return wanted > 0 ? std::min(wanted, has) : has;
  }
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_WORKLOAD_H_
