#ifndef HOTROW_TOOLS_PLAN_PLAN_SPEC_H_
#define HOTROW_TOOLS_PLAN_PLAN_SPEC_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "embedding/table_policies.h"
#include "ops/pooling.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer.h"
#include "store/store_facts.h"
#include "tools/plan/hardware.h"
#include "tools/plan/popularity.h"

namespace hotrow {

struct PlanTable {
  std::string name;
  int64_t rows = 0;
  double rows_per_day = 0;  // growth
  int32_t dim = 0;
  SparseOptimizerKind optimizer = SparseOptimizerKind::kRowWiseAdagrad;
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
  ScoreRule score = ScoreRule::kNone;     // rows keep one
  RowOrder max_rows_by = RowOrder::kAge;  // by score: rows are counted by it
  double hotness = 1;                     // lookups a feature and sample, on average
  int64_t features = 1;
  Pooling pooling = Pooling::kSum;  // kNone: lookups stay rows, as those of a sequence
  // Popularity of the rows: one of these.
  double zipf = 1.05;
  std::vector<Popularity::Group> histogram;  // rows, lookups of each
  std::string curve_file;                    // the caller reads one of these into `curve`
  std::string trace_file;
  std::vector<CurvePoint> curve;  // by growing rows
  int line = 0;                   // of the spec
  int column = 0;

  RowLayout layout() const {
    return RowLayout::For(dim, optimizer, weights_precision, score != ScoreRule::kNone);
  }
  double step_lookups(double batch_size) const {
    return batch_size * hotness * static_cast<double>(features);
  }
  // Numbers of a sample that its lookups put out.
  double output_dim() const {
    return dim * static_cast<double>(features) * (pooling == Pooling::kNone ? hotness : 1);
  }
};

enum class Interaction { kConcat, kDot, kCross };
enum class WireType { kFp32, kFp16, kBf16, kInt8 };
double WireBytes(WireType type, int32_t dim);  // of one row on the wire

// What a dense model has beside its MLPs and its interaction, `count` times over.
struct PlanPart {
  std::string name;
  double count = 1;
  // A linear map with a bias, of so many vectors of each sample; none where outputs is 0.
  double rows = 1;
  double inputs = 0;
  double outputs = 0;
  // Parameters beside the map's; multiply-adds forward and numbers written of a sample.
  double parameters = 0;
  double macs = 0;
  double activations = 0;
};

struct PlanModel {
  int64_t dense_features = 0;
  std::vector<int32_t> bottom;  // layer sizes, without the input
  std::vector<int32_t> top;     // without the input
  int32_t top_inputs = 0;       // 0: what the interaction makes, or all vectors
  Interaction interaction = Interaction::kConcat;
  int32_t cross_layers = 0;
  int32_t cross_rank = 0;  // 0: full
  std::vector<PlanPart> parts;
  // Floats beside each parameter: SGD 0, Adagrad 1, Adam 2; a running average is one more.
  int32_t dense_optimizer_states = 0;
  bool inputs_16_bits = false;  // of the dense layers' products: fp16 or bf16
  // The precision of tables that do not give one.
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
};

// The kinds of store that are planned (StoreFacts::planned): one in memory, and one on a disk, a
// log that a cleaner keeps within its budget, with an index in memory.
std::vector<StoreKind> PlannedStores();
StoreKind PlannedStore(bool on_disk);

struct PlanSpec {
  std::string name;  // of the file, for messages
  std::vector<PlanTable> tables;
  PlanModel model;
  int64_t batch_size = 0;  // global
  int32_t ranks = 1;
  int32_t ranks_per_node = 1;
  WireType forward_wire = WireType::kFp32;
  WireType backward_wire = WireType::kFp32;
  int32_t prefetch_depth = 0;
  StoreKind store{};       // read without store_auto
  bool store_auto = true;  // that in memory if it fits, that on a disk if not
  // Budgets of one rank. cache_bytes: 0 none, kAuto: chosen.
  static constexpr int64_t kAuto = -1;
  int64_t cache_bytes = kAuto;
  // Host memory for rows that a GPU evicts, over a store on a disk. kAuto: what is free of it.
  int64_t host_cache_bytes = kAuto;
  double admission_bytes = 0;  // of counters of keys without rows (docs/row_life.md)
  double ttl_steps = 0;        // after which a row ages; 0: never
  // Deltas (docs/deltas.md).
  double delta_interval_steps = 0;  // 0: none
  WireType delta_rows = WireType::kFp32;
  bool delta_weights_only = false;
  // Snapshots.
  double checkpoint_interval_steps = 0;  // 0: none
  int32_t retained_snapshots = 1;
  // Limits of one rank; 0: what the hardware has.
  double hbm_max_bytes = 0;
  double dram_max_bytes = 0;
  double ssd_max_bytes = 0;
  double days = 0;  // of growth to plan for
  double target_samples_per_second = 0;
  double data_seconds_per_sample = 0;  // processor time of reading and drawing batches
  double data_bytes_per_sample = 0;    // read from the node's disk, once for all its ranks
  // Steps of a run that begins without rows and with an empty cache; not in the file. 0: the steady
  // state.
  double run_steps = 0;
  double run_disk_bytes = 0;   // the disk budget of its SSD store; 0: as planned
  double run_store_bytes = 0;  // the memory budget of its SSD store; 0: plenty
  HardwareProfile hardware;
};

// Hardware that has no built-in name.
struct HardwareSource {
  // Reads a file that a spec names as its hardware. Without it, files are no hardware.
  std::function<absl::StatusOr<HardwareProfile>(const std::string& file)> read;
  // Replaces the spec's hardware.
  std::optional<HardwareProfile> instead;
};

// Reads a spec (JSON or YAML, docs/planner.md lists the fields). `name` is the place in errors.
// Errors: InvalidArgument, one line: "NAME:LINE:COLUMN: FIELD: fault, legal values".
absl::StatusOr<PlanSpec> ParsePlanSpec(std::string_view text, std::string_view name,
                                       const HardwareSource& source = {});

// Reads a table's curve from the output of `hotrow trace mrc --json`. Errors: InvalidArgument.
absl::StatusOr<std::vector<CurvePoint>> ParseCurve(std::string_view json, std::string_view name);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_PLAN_SPEC_H_
