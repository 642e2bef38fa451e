#include "tools/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "embedding/tiers/tiered_table.h"
#include "models/train/report.h"
#include "ops/row_layout.h"
#include "tools/plan/tier_bytes.h"

namespace hotrow {
namespace {

constexpr double kGB = 1e9;
constexpr double kFloatBytes = 4;
constexpr double kKeyBytes = 8;
constexpr double kBlockBytes = 4096;
constexpr double kFillMost = 0.99;  // of a log that still has room to clean in
constexpr double kSecondsPerYear = 365.25 * 86'400;
// What a step moves in memory for each lookup beside its row: key, unique numbers, and the passes
// of a radix sort over them (four passes read and write 12 bytes).
constexpr double kSortBytesPerLookup = 120;
// One find reads two lines of tags, keys and a line of marks.
constexpr double kProbeBytes = 192;
// auto: of splits whose rates are this near each other, the smaller cache is the better plan.
constexpr double kRateSlack = 0.01;
constexpr double kSearchStepBytes = 1 << 20;
// The rest of a disk is for snapshots and for whatever else lies there.
constexpr double kDiskShareOfStore = 0.7;

// Forward, backward by the input and backward by the weights, each a multiplication and an
// addition.
constexpr double kFlopsPerMac = 6;

// Seconds of an amount; endless where there is no such rate.
double Rate(double amount, double per_second) {
  return amount <= 0      ? 0
         : per_second > 0 ? amount / per_second
                          : std::numeric_limits<double>::infinity();
}

std::string Bytes(double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }

// What follows from the tables alone. Tables with one row width share a cache.
struct WidthClass {
  int64_t row_bytes = 0;
  std::vector<size_t> tables;         // positions in the spec
  double rows = 0;                    // of all ranks
  double min_cache_bytes = 0;         // of one rank
  std::unique_ptr<CacheModel> model;  // of all ranks together
};

struct Traffic {
  double unique_keys = 0;
  double misses = 0;
  double miss_bytes = 0;
  double evicted = 0;  // as many as come in, but in a run that begins with an empty cache
  double evicted_bytes = 0;
  double new_rows = 0;
  double new_bytes = 0;
  double ssd_reads = 0;
  double ssd_read_bytes = 0;
  double ssd_record_bytes = 0;
  double lookup_hits = 0;
  double bound_hits = 0;
};

class Planner {
 public:
  // A measured machine belongs to all ranks that it has.
  explicit Planner(const PlanSpec& spec)
      : spec_(spec),
        hardware_(spec.hardware.calibrated() && spec.hardware.hbm_bytes == 0
                      ? spec.hardware.SharedBy(std::min(spec.ranks, spec.ranks_per_node))
                      : spec.hardware) {}

  absl::Status Init();
  // The plan with these stores and this cache budget of a rank.
  Plan With(StoreKind store, double cache_bytes) const;
  Plan Choose(bool advise) const;
  std::vector<PlanCurvePoint> Curve(const Plan& plan) const;

 private:
  double RowsOf(const PlanTable& table) const {
    return static_cast<double>(table.rows) + table.rows_per_day * spec_.days;
  }
  double Limit(double wanted, double has) const { return wanted > 0 ? std::min(wanted, has) : has; }
  bool has_gpu() const { return hardware_.hbm_bytes > 0; }
  std::string near_tier() const { return has_gpu() ? "hbm" : "dram"; }
  double near_bytes_per_second() const {
    return has_gpu() ? hardware_.hbm_bytes_per_second : hardware_.dram_bytes_per_second;
  }
  double ranks() const { return spec_.ranks; }

  std::vector<double> SplitCache(double cache_bytes) const;
  void AddDense(Plan* plan) const;
  void AddStore(Plan* plan) const;
  double LogBytes(const Plan& plan) const;
  double ReadsOfClass(const WidthClass& width, double all_ways, double written_bytes,
                      double log_bytes) const;
  void CountExchange(Plan* plan) const;
  void AddStages(const Traffic& traffic, Plan* plan) const;
  void AddCalibratedStages(const Traffic& traffic, Plan* plan) const;
  void FinishStages(Plan* plan) const;
  double DenseSeconds(double samples) const;
  void AddCheckpoint(Plan* plan) const;
  void Judge(Plan* plan) const;
  Plan ChooseCache(StoreKind store) const;
  void AddRemedies(Plan* plan) const;
  void AddMarginals(Plan* plan) const;

  const PlanSpec& spec_;
  const HardwareProfile hardware_;  // of a rank
  std::vector<Popularity> laws_;
  std::vector<std::unique_ptr<Footprint>> footprints_;
  std::vector<RowLayout> layouts_;
  std::vector<WidthClass> classes_;
  double min_cache_bytes_ = 0;
  double local_unique_ = 0;            // distinct keys of one rank's part of a batch
  double local_unique_bytes_[2] = {};  // on the wire, forward and backward
  // As floats, which gradients are whatever weights are.
  double local_unique_gradient_bytes_ = 0;
  double local_lookup_gradient_bytes_ = 0;
  double local_lookups_ = 0;
  double local_lookup_bytes_ = 0;   // weights of all rows looked up
  double unique_weight_bytes_ = 0;  // of the distinct rows that a rank owns and a step uses
  double unique_gradient_bytes_ = 0;
  double unique_row_bytes_ = 0;
  double pooled_dim_ = 0;
  double dense_parameters_ = 0;
  double dense_macs_ = 0;  // a sample, forward
  // Of them, forward and backward at the rates of the layers' widths and the batch, 32-bit inputs.
  double dense_sample_seconds_ = 0;
  double activations_ = 0;  // floats a sample
};

absl::Status Planner::Init() {
  const auto batch = static_cast<double>(spec_.batch_size);
  laws_.reserve(spec_.tables.size());
  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    const PlanTable& table = spec_.tables[t];
    const double rows = RowsOf(table);
    layouts_.push_back(table.layout());
    const auto weight_bytes = static_cast<double>(layouts_.back().state_offset);
    footprints_.emplace_back();
    laws_.emplace_back();
    if (!table.curve.empty()) {
      footprints_.back() = std::make_unique<Footprint>(table.curve, rows);
    } else if (!table.histogram.empty()) {
      laws_.back() = Popularity::FromCounts(table.histogram);
    } else if (!table.curve_file.empty() || !table.trace_file.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          spec_.name, ":", table.line, ": the curve or trace of ", table.name, " was not read"));
    } else if (t > 0 && spec_.tables[t - 1].histogram.empty() &&
               spec_.tables[t - 1].zipf == table.zipf && RowsOf(spec_.tables[t - 1]) == rows) {
      laws_.back() = laws_[t - 1];
    } else {
      laws_.back() = Popularity::Zipf(rows, table.zipf);
    }
    const double lookups = table.step_lookups(batch / ranks());
    const double unique = footprints_.back() != nullptr ? footprints_.back()->Rows(lookups)
                                                        : ExpectedUnique(laws_.back(), lookups);
    const double all_lookups = table.step_lookups(batch);
    const double owned =
        (footprints_.back() != nullptr ? footprints_.back()->Rows(all_lookups)
                                       : ExpectedUnique(laws_.back(), all_lookups)) /
        ranks();
    unique_weight_bytes_ += owned * weight_bytes;
    unique_gradient_bytes_ += owned * kFloatBytes * table.dim;
    unique_row_bytes_ += owned * static_cast<double>(layouts_.back().row_bytes);
    local_lookups_ += lookups;
    local_lookup_bytes_ += lookups * weight_bytes;
    local_lookup_gradient_bytes_ += lookups * kFloatBytes * table.dim;
    local_unique_ += unique;
    local_unique_gradient_bytes_ += unique * kFloatBytes * table.dim;
    local_unique_bytes_[0] += unique * WireBytes(spec_.forward_wire, table.dim);
    local_unique_bytes_[1] += unique * WireBytes(spec_.backward_wire, table.dim);
    pooled_dim_ += static_cast<double>(table.dim) * static_cast<double>(table.features);
    const auto same_width = [&](const WidthClass& c) {
      return c.row_bytes == layouts_.back().row_bytes;
    };
    auto at = std::find_if(classes_.begin(), classes_.end(), same_width);
    if (at == classes_.end()) {
      classes_.emplace_back();
      at = classes_.end() - 1;
      at->row_bytes = layouts_.back().row_bytes;
    }
    at->tables.push_back(t);
    at->rows += rows;
  }
  for (WidthClass& width : classes_) {
    std::vector<CacheClient> clients;
    for (const size_t t : width.tables) {
      clients.push_back({.law = &laws_[t],
                         .step_lookups = spec_.tables[t].step_lookups(batch),
                         .footprint = footprints_[t].get(),
                         // What a run reports: there is nothing else to be held against it.
                         .parts = spec_.run_steps > 0 ? ranks() : 1});
    }
    width.model = std::make_unique<CacheModel>(clients);
    // Room for the rows of all steps in flight, a twentieth over the mean.
    const double steps = 1.0 + spec_.prefetch_depth;
    const double rows = std::min(width.rows, width.model->unique_keys() * steps) / ranks() * 1.05;
    width.min_cache_bytes = static_cast<double>(TieredTable::MinCacheBytes(
        std::max<int64_t>(1, static_cast<int64_t>(rows)), width.row_bytes));
    min_cache_bytes_ += width.min_cache_bytes;
  }

  // The dense model: parameters, multiply-adds and activations of a sample.
  const PlanModel& model = spec_.model;
  const auto layer = [&](double in, double out) {
    dense_parameters_ += (in + 1) * out;
    dense_macs_ += in * out;
    dense_sample_seconds_ +=
        Rate(kFlopsPerMac * in * out, hardware_.LayerFlops(in, out, batch / ranks()));
    activations_ += out;
    return out;
  };
  double bottom = static_cast<double>(model.dense_features);
  for (const int32_t size : model.bottom) bottom = layer(bottom, size);
  double features = 0;
  for (const PlanTable& table : spec_.tables) features += static_cast<double>(table.features);
  double top = bottom + pooled_dim_;
  if (model.interaction == Interaction::kDot) {
    const double vectors = features + (model.bottom.empty() ? 0 : 1);
    const double dim = pooled_dim_ / std::max(1.0, features);
    const double macs = vectors * (vectors - 1) / 2 * dim;
    dense_macs_ += macs;
    dense_sample_seconds_ += Rate(kFlopsPerMac * macs, hardware_.DotFlops(dim, batch / ranks()));
    top = bottom + vectors * (vectors - 1) / 2;
    activations_ += top;
  } else if (model.interaction == Interaction::kCross) {
    for (int32_t i = 0; i < model.cross_layers; ++i) {
      if (model.cross_rank > 0) {
        layer(top, model.cross_rank);
        layer(model.cross_rank, top);
      } else {
        layer(top, top);
      }
    }
  }
  for (const int32_t size : model.top) top = layer(top, size);
  return absl::OkStatus();
}

// As embedding/collection_plan.cc: what one step needs first, the rest by the bytes of the classes.
std::vector<double> Planner::SplitCache(double cache_bytes) const {
  double weights = 0;
  for (const WidthClass& width : classes_) {
    weights += width.rows * static_cast<double>(width.row_bytes);
  }
  const double rest = cache_bytes - min_cache_bytes_;
  std::vector<double> parts;
  for (const WidthClass& width : classes_) {
    const double weight = width.rows * static_cast<double>(width.row_bytes) / weights;
    parts.push_back(rest >= 0 ? width.min_cache_bytes + rest * weight : cache_bytes * weight);
  }
  return parts;
}

void Planner::AddDense(Plan* plan) const {
  const std::string tier = near_tier();
  const auto add = [&](const char* name, double bytes) {
    if (bytes > 0) plan->items.push_back({tier, name, bytes});
  };
  const double samples = static_cast<double>(spec_.batch_size) / ranks();
  const double steps = 1.0 + spec_.prefetch_depth;
  add("batch ids of the steps in flight", local_lookups_ * kKeyBytes * 2 * steps);
  add("pooled rows and their gradients", samples * pooled_dim_ * kFloatBytes * 2);
  if (spec_.ranks > 1) {
    add("exchange buffers", local_unique_ * kKeyBytes * 2 * steps +
                                2 * (local_unique_bytes_[0] + local_unique_bytes_[1]));
  }
  add("activations", samples * activations_ * kFloatBytes * 2);
  add("dense parameters and gradients", dense_parameters_ * kFloatBytes * 2);
  add("dense optimizer state",
      dense_parameters_ * kFloatBytes * spec_.model.dense_optimizer_states);
}

void Planner::AddStore(Plan* plan) const {
  std::vector<TierRows> tables;
  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    tables.push_back({RowsOf(spec_.tables[t]) / ranks(), layouts_[t].row_bytes});
  }
  const double weights = plan->weight_bytes / ranks();
  const double state = (plan->payload_bytes - plan->weight_bytes) / ranks();
  const double padding = (plan->row_bytes - plan->payload_bytes) / ranks();
  if (plan->store == StoreKind::kMemory) {
    const HostStoreBytes size = SizeOfHostStore(tables, 0);
    plan->items.push_back({"dram", "weights", weights});
    if (state > 0) plan->items.push_back({"dram", "optimizer state", state});
    plan->items.push_back({"dram", "last step and padding", padding});
    plan->items.push_back({"dram", "keys", size.key_bytes});
    plan->items.push_back({"dram", "index", size.index_bytes});
    plan->items.push_back({"dram", "free slots and extents", size.slack_bytes});
    return;
  }
  SsdStoreBytes size =
      SizeOfSsdStore(tables, kDiskShareOfStore * Limit(spec_.ssd_max_bytes, hardware_.ssd_bytes));
  if (spec_.run_disk_bytes > 0) size.disk_bytes = std::max(spec_.run_disk_bytes, size.live_bytes);
  // A cleaner that empties segments filled to u writes 1 / (1 - u) bytes for each new one
  // (Rosenblum, Ousterhout, "The design and implementation of a log-structured file system", TOCS
  // 1992); the mean fill of the log stands for that of the segments it picks, which are emptier.
  const double fill = std::min(size.live_bytes / size.disk_bytes, kFillMost);
  plan->write_amplification = 1 / (1 - fill);
  plan->items.push_back({"dram", "index of the SSD store", size.index_bytes});
  plan->items.push_back({"dram", "buffers of the SSD store", size.buffer_bytes});
  plan->items.push_back({"ssd", "weights", weights});
  if (state > 0) plan->items.push_back({"ssd", "optimizer state", state});
  plan->items.push_back({"ssd", "last step and padding", padding});
  plan->items.push_back(
      {"ssd", "record headers and footers", size.live_bytes - weights - state - padding});
  plan->items.push_back({"ssd", "room for cleaning", size.disk_bytes - size.live_bytes});
}

// What a rank sends to others: of keys that are dealt out by hash, 1/R are its own.
void Planner::CountExchange(Plan* plan) const {
  plan->dense_parameters = dense_parameters_;
  if (spec_.ranks == 1) return;
  constexpr double kCountBytes = 4;  // how many keys of a table follow
  const double others = ranks() - 1;
  const double node = std::min<double>(spec_.ranks_per_node, ranks()) - 1;
  const double all[] = {
      local_unique_ * kKeyBytes + static_cast<double>(spec_.tables.size()) * kCountBytes * ranks(),
      local_unique_bytes_[0], local_unique_bytes_[1]};
  plan->exchange_ids_bytes = all[0] * others / ranks();
  plan->exchange_forward_bytes = all[1] * others / ranks();
  plan->exchange_backward_bytes = all[2] * others / ranks();
  const double sum = all[0] + all[1] + all[2];
  plan->exchange_bytes = sum * others / ranks();
  plan->exchange_bytes_node = sum * node / ranks();
  plan->exchange_bytes_network = sum * (others - node) / ranks();
  // Within each node first; what crosses the network is then shared by the ranks of a node.
  const double nodes = std::ceil(ranks() / (node + 1));
  plan->allreduce_bytes = (2 * node / (node + 1) + 2 * (nodes - 1) / nodes / (node + 1)) *
                          dense_parameters_ * kFloatBytes;
}

void Planner::AddStages(const Traffic& traffic, Plan* plan) const {
  const double near = near_bytes_per_second();
  const std::string near_name = near_tier();
  const double samples = static_cast<double>(spec_.batch_size) / ranks();
  struct Bound {
    double seconds;
    std::string name;
  };
  const auto add = [&](const char* name, std::vector<Bound> bounds, bool ahead) {
    const Bound& worst =
        *std::max_element(bounds.begin(), bounds.end(),
                          [](const Bound& a, const Bound& b) { return a.seconds < b.seconds; });
    if (worst.seconds <= 0) return;
    plan->stages.push_back({name, worst.seconds, worst.name, ahead && spec_.prefetch_depth > 0});
  };
  // Of what a rank sends, the share to other nodes goes over the network, the rest inside.
  const double others = ranks() - 1;
  const double node = std::min<double>(spec_.ranks_per_node, ranks()) - 1;
  const auto exchange = [&](double bytes) -> std::vector<Bound> {
    if (others <= 0) return {{0, ""}};
    const double inside = bytes * node / ranks();
    const double outside = bytes * (others - node) / ranks();
    return {{Rate(inside, hardware_.gpu_link_bytes_per_second), "links of the node"},
            {Rate(outside, hardware_.network_bytes_per_second), "network"}};
  };
  CountExchange(plan);
  if (!has_gpu() && hardware_.calibrated()) {
    AddCalibratedStages(traffic, plan);
    return;
  }
  const double cpu_keys = has_gpu() ? 0 : hardware_.cpu_seconds_per_key;
  add("sort ids and find the distinct ones",
      {{local_lookups_ * kSortBytesPerLookup / near, near_name},
       {local_lookups_ * cpu_keys, "cpu"}},
      true);
  add("exchange ids", exchange(local_unique_ * kKeyBytes), true);

  // Rows that are not in the cache come from the store; as many changed ones go back.
  const double store_keys = traffic.misses;
  double cpu_seconds = store_keys * hardware_.cpu_seconds_per_key * (has_gpu() ? 1 : 0);
  if (plan->cache_bytes > 0) {
    if (has_gpu()) {
      plan->link_bytes_down = traffic.miss_bytes;
      plan->link_bytes_up = traffic.evicted_bytes;
    }
    if (!has_gpu()) cpu_seconds = store_keys * hardware_.cpu_seconds_per_key;
    std::vector<Bound> reads = {
        {Rate(plan->link_bytes_down, hardware_.host_link_bytes_per_second), "host link"},
        {cpu_seconds, "cpu"},
        {Rate(2 * traffic.miss_bytes, hardware_.dram_bytes_per_second), "dram"}};
    std::vector<Bound> writes = {
        {Rate(plan->link_bytes_up, hardware_.host_link_bytes_per_second), "host link"},
        {cpu_seconds, "cpu"},
        {Rate(2 * traffic.evicted_bytes, hardware_.dram_bytes_per_second), "dram"}};
    if (plan->store == StoreKind::kSsd) {
      reads.push_back({Rate(plan->ssd_ios_read, hardware_.ssd_read_ios_per_second), "ssd reads"});
      reads.push_back(
          {Rate(plan->ssd_bytes_read, hardware_.ssd_read_bytes_per_second), "ssd read bytes"});
      writes.push_back({Rate(plan->ssd_bytes_written, hardware_.ssd_write_bytes_per_second),
                        "ssd written bytes"});
    }
    add("read misses", std::move(reads), true);
    add("write evicted rows", std::move(writes), true);
  }

  add("find and gather rows",
      {{(traffic.unique_keys * kProbeBytes + 2 * unique_weight_bytes_) / near, near_name},
       {traffic.unique_keys * cpu_keys, "cpu"}},
      false);
  add("exchange rows", exchange(local_unique_bytes_[0]), false);
  const double pool_bytes = local_lookup_bytes_ + samples * pooled_dim_ * kFloatBytes;
  const double sum_bytes = local_lookup_gradient_bytes_ + samples * pooled_dim_ * kFloatBytes;
  add("pool", {{pool_bytes / near, near_name}, {local_lookups_ * cpu_keys, "cpu"}}, false);
  // Backward is twice forward: by the input and by the weights.
  add("dense layers",
      {{DenseSeconds(samples), "flops"},
       {3 * activations_ * samples * kFloatBytes / near, near_name}},
      false);
  add("sum gradients", {{2 * sum_bytes / near, near_name}, {local_lookups_ * cpu_keys, "cpu"}},
      false);
  add("exchange gradients", exchange(local_unique_bytes_[1]), false);
  add("update rows",
      {{(2 * unique_row_bytes_ + unique_gradient_bytes_) / near, near_name},
       {traffic.unique_keys * cpu_keys, "cpu"}},
      false);
  if (spec_.ranks > 1) {
    // Within each node first; what crosses the network is then shared by the ranks of a node.
    const double nodes = std::ceil(ranks() / (node + 1));
    const double parameters = dense_parameters_ * kFloatBytes;
    const double inside = 2 * node / (node + 1) * parameters;
    const double outside = 2 * (nodes - 1) / nodes * parameters / (node + 1);
    add("all-reduce dense gradients",
        {{Rate(inside, hardware_.gpu_link_bytes_per_second), "links of the node"},
         {Rate(outside, hardware_.network_bytes_per_second), "network"}},
        false);
    // Ids, rows and gradients go from all to all; an all-reduce goes up and down a tree.
    double wait = 4 * hardware_.link_seconds;
    if (nodes > 1) {
      wait +=
          3 * (hardware_.network_seconds + (others - node) * hardware_.network_message_seconds) +
          2 * std::ceil(std::log2(nodes)) * hardware_.network_seconds;
    }
    add("wait for the others", {{wait, "latency"}}, false);
  }
  const double states = spec_.model.dense_optimizer_states;
  add("update dense parameters",
      {{dense_parameters_ * kFloatBytes * (3 + 2 * states) / near, near_name}}, false);
  add("start the work of a step", {{hardware_.step_seconds, "latency"}}, false);
  // Each rank reads all of a batch and keeps its part.
  add("read and draw the data",
      {{static_cast<double>(spec_.batch_size) * spec_.data_seconds_per_sample, "cpu"}}, true);
  FinishStages(plan);
}

double Planner::DenseSeconds(double samples) const {
  double seconds = dense_sample_seconds_ * (samples + hardware_.dense_half_batch);
  if (spec_.model.inputs_16_bits && hardware_.dense_flops_16 > 0) {
    seconds *= hardware_.dense_flops / hardware_.dense_flops_16;
  }
  return samples > 0 ? seconds : 0;
}

// Where the table engine's costs were measured.
//
// A step is several chains of work that run beside each other on their own threads: the step
// itself; with prefetching, finding and placing the rows of a later step, and reading what is
// missing; reading the data, where a rank has two threads or more; the disk. A step takes as long
// as the longest chain, or as all their work takes the processors that the rank has. Chains that
// share processors hold each other up, by what was measured; the longest with that counts.
void Planner::AddCalibratedStages(const Traffic& traffic, Plan* plan) const {
  // embedding/embedding_collection.cc: with fewer threads than this, what runs ahead has one.
  constexpr double kThreadsForPipeline = 4;
  // A row that travels between ranks of a machine is packed, and copied into shared memory and out
  // of it.
  constexpr double kCopies = 3;
  enum Chain { kStep, kPlace, kRead, kData, kDisk, kChains };
  const EngineCosts& engine = hardware_.engine;
  const double samples = static_cast<double>(spec_.batch_size) / ranks();
  const bool ahead = spec_.prefetch_depth > 0;
  const double machine_threads = std::max(1, hardware_.threads);
  const double threads = machine_threads / std::min(spec_.ranks_per_node, spec_.ranks);
  double chains[kChains] = {};
  // Of each chain, and of all: seconds that all processors of the rank work for it.
  double work_of[kChains] = {};
  double processors = 0;
  std::vector<Chain> chain_of;  // of each stage

  const auto chain_for = [&](Chain chain) {
    return !ahead && (chain == kPlace || chain == kRead) ? kStep : chain;
  };
  const auto add = [&](const char* name, double seconds, const char* bound_by, Chain chain) {
    if (seconds <= 0) return;
    chain = chain_for(chain);
    chains[chain] += seconds;
    plan->stages.push_back({name, seconds, bound_by, chain != kStep});
    chain_of.push_back(chain);
  };
  // Work that takes `seconds` with all threads of the machine, of which the share `busy` works.
  const auto work = [&](const char* name, double seconds, double busy, Chain chain) {
    const double processor_seconds =
        seconds * std::clamp(busy * machine_threads, 1.0, machine_threads);
    work_of[chain_for(chain)] += processor_seconds / threads;
    double used = std::clamp(busy * machine_threads, 1.0, std::max(1.0, threads));
    const bool apart = chain == kData || (ahead && (chain == kPlace || chain == kRead));
    if (apart && (chain == kData || threads < kThreadsForPipeline)) used = 1;
    // Fewer processors than ranks: those share them.
    add(name, processor_seconds / std::min(used, threads), "cpu", chain);
  };
  // Work at a rate of the rank's share.
  const auto move = [&](const char* name, double seconds, const char* bound_by, Chain chain) {
    work_of[chain_for(chain)] += seconds;
    add(name, seconds, bound_by, chain);
  };

  // Each rank reads all of a batch and keeps its part; with one thread, in between.
  work("read and draw the data",
       static_cast<double>(spec_.batch_size) * spec_.data_seconds_per_sample, 1 / machine_threads,
       threads >= 2 ? kData : kStep);
  const double others = ranks() - 1;
  const double node = std::min<double>(spec_.ranks_per_node, ranks()) - 1;
  const auto exchange = [&](const char* name, double bytes, Chain chain) {
    if (others <= 0) return;
    move(name, kCopies * Rate(bytes * node / ranks(), hardware_.gpu_link_bytes_per_second), "dram",
         chain);
    add(name, Rate(bytes * (others - node) / ranks(), hardware_.network_bytes_per_second),
        "network", chain);
  };
  double find = local_lookups_ * engine.unique_seconds_per_lookup;
  // What all ranks ask of this one is made distinct once more.
  if (others > 0) find += local_unique_ * engine.unique_seconds_per_lookup;
  work("sort ids and find the distinct ones", find, engine.unique_busy, kPlace);
  exchange("exchange ids", local_unique_ * kKeyBytes, kPlace);
  if (plan->cache_bytes > 0) {
    work(
        "find rows in the cache",
        engine.hit.Of(traffic.unique_keys - traffic.misses, unique_row_bytes_ - traffic.miss_bytes),
        engine.hit_busy, kPlace);
    work("make new rows", engine.new_row.Of(traffic.new_rows, traffic.new_bytes), engine.miss_busy,
         kRead);
    const double evict = engine.evict.Of(traffic.evicted, traffic.evicted_bytes);
    const double miss = engine.miss.Of(traffic.misses, traffic.miss_bytes);
    if (plan->store == StoreKind::kSsd) {
      work("write evicted rows", evict, engine.miss_busy, kPlace);
      // What a disk costs the processor beyond that: of a row that is there to be read, and of one
      // that is written; in the measurement they were as many.
      const double both = engine.ssd_miss.Of(traffic.misses, traffic.miss_bytes) -
                          engine.miss.Of(traffic.misses, traffic.miss_bytes) -
                          engine.evict.Of(traffic.misses, traffic.miss_bytes);
      const double rows = std::min(
          1.0, (traffic.ssd_reads + traffic.evicted) / std::max(1e-30, 2 * traffic.misses));
      double reads = Rate(plan->ssd_ios_read, hardware_.ssd_read_ios_per_second);
      // Longer reads than the 4 KiB of the measurement are merged ones, few: reads count.
      if (plan->ssd_bytes_read > plan->ssd_ios_read * kBlockBytes) {
        reads = std::max(reads, Rate(plan->ssd_bytes_read, hardware_.ssd_read_bytes_per_second));
      }
      const double read_row_bytes =
          traffic.miss_bytes * traffic.ssd_reads / std::max(1e-30, traffic.misses);
      const double before = chains[ahead ? kRead : kStep];
      work("read misses", miss + std::max(0.0, both) * rows, engine.ssd_miss_busy, kRead);
      // One thread asks for rows, deals with them, and waits as it was measured to. Where that was
      // not, rows are dealt with while others come: only the longer of the two counts.
      const double dealt = chains[ahead ? kRead : kStep] - before;
      const double waited = engine.ssd_wait_measured()
                                ? reads + engine.ssd_wait.Of(traffic.ssd_reads, read_row_bytes)
                                : std::max(0.0, reads - dealt);
      add("wait for reads of the disk", waited, "ssd reads", kRead);
      add("reads of the disk", reads, "ssd reads", kDisk);
      add("writes of the disk", Rate(plan->ssd_bytes_written, hardware_.ssd_write_bytes_per_second),
          "ssd written bytes", kDisk);
    } else {
      work("write evicted rows", evict, engine.miss_busy, kPlace);
      work("read misses", miss, engine.miss_busy, kRead);
    }
  } else {
    work("find rows in the store", engine.in_place.Of(traffic.unique_keys, unique_row_bytes_), 1,
         kStep);
    work("make new rows", engine.new_in_place.Of(traffic.new_rows, traffic.new_bytes), 1, kStep);
  }
  exchange("exchange rows", local_unique_bytes_[0], kStep);
  work("pool", engine.pool.Of(local_lookups_, local_lookup_bytes_), 1, kStep);
  move("dense layers", DenseSeconds(samples), "flops", kStep);
  work("sum gradients", engine.sum.Of(local_lookups_, local_lookup_gradient_bytes_), 1, kStep);
  exchange("exchange gradients", local_unique_bytes_[1], kStep);
  if (others > 0) {
    work("add gradients of the ranks", engine.sum.Of(local_unique_, local_unique_gradient_bytes_),
         1, kStep);
  }
  work("update rows", engine.update.Of(traffic.unique_keys, unique_row_bytes_), 1, kStep);
  // Of N ranks each sends 2 (N - 1) / N of the gradients.
  exchange("all-reduce dense gradients", 2 * dense_parameters_ * kFloatBytes, kStep);
  const double states = spec_.model.dense_optimizer_states;
  move("update dense parameters",
       Rate(dense_parameters_ * kFloatBytes * (3 + 2 * states), hardware_.dram_bytes_per_second),
       "dram", kStep);

  // Rows of a step are read while those of the next are placed, if two may be in flight.
  const bool at_once = spec_.prefetch_depth >= 2;
  if (!at_once) {
    chains[kPlace] += chains[kRead];
    work_of[kPlace] += work_of[kRead];
    chains[kRead] = work_of[kRead] = 0;
    std::replace(chain_of.begin(), chain_of.end(), kRead, kPlace);
  }
  constexpr const char* kNames[kChains] = {"the step", "placing rows ahead", "reading rows ahead",
                                           "reading the data", "the disk"};
  for (const double seconds : work_of) processors += seconds;
  // The disk itself takes no processor, and what reads from memory in one thread has as many of
  // them as it can use.
  const bool reads_disk = plan->cache_bytes > 0 && plan->store == StoreKind::kSsd;
  double beside[kChains] = {};
  beside[kStep] = engine.step_beside;
  if (reads_disk && ahead) beside[at_once ? kRead : kPlace] = engine.disk_beside;
  for (int c = 0; c < kChains; ++c) {
    const bool both = c == kPlace && !at_once;
    if (chains[c] <= 0) continue;
    const double held_up = beside[c] * (processors - work_of[c]);
    plan->chains.push_back(
        {both ? "placing and reading rows ahead" : kNames[c], chains[c], held_up});
    chains[c] += held_up;
  }
  plan->chains.push_back({"all work on the processors", processors});
  const auto longest = static_cast<Chain>(std::max_element(chains, chains + kChains) - chains);
  plan->step_seconds = std::max(chains[longest], processors);
  double most = -1;
  for (size_t i = 0; i < plan->stages.size(); ++i) {
    const PlanStage& stage = plan->stages[i];
    const bool counts = chains[longest] >= processors ? chain_of[i] == longest
                                                      : stage.bound_by.rfind("ssd", 0) != 0;
    if (!counts || stage.seconds <= most) continue;
    most = stage.seconds;
    plan->bottleneck = absl::StrCat(stage.name, " (", stage.bound_by, ")");
  }
  plan->samples_per_second =
      plan->step_seconds > 0 ? static_cast<double>(spec_.batch_size) / plan->step_seconds : 0;
}

void Planner::FinishStages(Plan* plan) const {
  // Ahead of a step runs what prefetches; without a GPU both want the same cores, so only waiting
  // for a disk or a network is hidden.
  double ahead = 0;
  double compute = 0;
  for (PlanStage& stage : plan->stages) {
    const bool waits = stage.bound_by.rfind("ssd", 0) == 0 || stage.bound_by == "network";
    stage.overlapped = stage.overlapped && (has_gpu() || waits);
    (stage.overlapped ? ahead : compute) += stage.seconds;
  }
  plan->step_seconds = std::max(ahead, compute);
  double longest = -1;
  for (const PlanStage& stage : plan->stages) {
    if (stage.overlapped != (ahead > compute) || stage.seconds <= longest) continue;
    longest = stage.seconds;
    plan->bottleneck = absl::StrCat(stage.name, " (", stage.bound_by, ")");
  }
  plan->samples_per_second =
      plan->step_seconds > 0 ? static_cast<double>(spec_.batch_size) / plan->step_seconds : 0;
}

void Planner::AddCheckpoint(Plan* plan) const {
  const double dense = dense_parameters_ * kFloatBytes * (1 + spec_.model.dense_optimizer_states);
  plan->checkpoint_bytes = (plan->row_bytes + plan->rows * kKeyBytes) + dense;
  plan->checkpoint_seconds =
      hardware_.ssd_write_bytes_per_second > 0
          ? plan->checkpoint_bytes / ranks() / hardware_.ssd_write_bytes_per_second
          : 0;
  double written = plan->ssd_bytes_written / std::max(1e-30, plan->step_seconds);
  if (spec_.checkpoint_interval_steps > 0) {
    const double interval = spec_.checkpoint_interval_steps * plan->step_seconds;
    if (plan->store == StoreKind::kMemory) {
      plan->items.push_back({"ssd", "retained snapshots",
                             (spec_.retained_snapshots + 1.0) * plan->checkpoint_bytes / ranks()});
      written += plan->checkpoint_bytes / ranks() / interval;
    } else {
      // Rows that change between two snapshots exist once more for each that is retained, at most
      // twice that with the garbage beside them.
      double changed = 0;
      for (size_t t = 0; t < spec_.tables.size(); ++t) {
        const double lookups = spec_.tables[t].step_lookups(static_cast<double>(spec_.batch_size)) *
                               spec_.checkpoint_interval_steps;
        const double rows = footprints_[t] != nullptr ? footprints_[t]->Rows(lookups)
                                                      : ExpectedUnique(laws_[t], lookups);
        changed += rows * static_cast<double>(SsdBytesPerRow(layouts_[t].row_bytes));
      }
      plan->items.push_back(
          {"ssd", "retained snapshots", 2 * spec_.retained_snapshots * changed / ranks()});
    }
  }
  if (written > 0 && hardware_.ssd_endurance_bytes > 0) {
    plan->ssd_life_years = hardware_.ssd_endurance_bytes / written / kSecondsPerYear;
  }
  if (hardware_.price_per_rank_hour > 0 && plan->samples_per_second > 0) {
    plan->price_per_billion_samples =
        hardware_.price_per_rank_hour * ranks() / 3600 / plan->samples_per_second * 1e9;
  }
}

void Planner::Judge(Plan* plan) const {
  struct Tier {
    const char* name;
    double limit;
  };
  for (const Tier& tier : {Tier{"hbm", Limit(spec_.hbm_max_bytes, hardware_.hbm_bytes)},
                           Tier{"dram", Limit(spec_.dram_max_bytes, hardware_.dram_bytes)},
                           Tier{"ssd", Limit(spec_.ssd_max_bytes, hardware_.ssd_bytes)}}) {
    double bytes = 0;
    for (const PlanItem& item : plan->items) bytes += item.tier == tier.name ? item.bytes : 0;
    if (bytes == 0 && tier.limit == 0) continue;
    plan->tiers.push_back({tier.name, bytes, tier.limit});
    if (bytes > tier.limit) {
      plan->fits = false;
      plan->over.push_back(absl::StrCat(tier.name, ": needs ", Bytes(bytes), ", has ",
                                        Bytes(tier.limit), ", over by ",
                                        Bytes(bytes - tier.limit)));
    }
  }
  if (plan->cache_bytes > 0 && plan->cache_bytes < min_cache_bytes_) {
    plan->fits = false;
    plan->over.push_back(absl::StrCat("cache: ", Bytes(plan->cache_bytes),
                                      " do not hold the rows of the steps in flight; about ",
                                      Bytes(min_cache_bytes_), " do"));
  }
  if (spec_.target_samples_per_second > 0 &&
      plan->samples_per_second < spec_.target_samples_per_second) {
    plan->fits = false;
    plan->over.push_back(absl::StrCat("speed: ", FormatAmount(plan->samples_per_second),
                                      " samples/s, the target is ",
                                      FormatAmount(spec_.target_samples_per_second)));
  }
}

Plan Planner::With(StoreKind store, double cache_bytes) const {
  Plan plan;
  plan.store = store;
  plan.cache_bytes = cache_bytes;
  plan.lookups = local_lookups_;
  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    const double rows = RowsOf(spec_.tables[t]);
    plan.rows += rows;
    plan.weight_bytes += rows * static_cast<double>(layouts_[t].state_offset);
    plan.payload_bytes += rows * static_cast<double>(layouts_[t].payload_bytes);
    plan.row_bytes += rows * static_cast<double>(layouts_[t].row_bytes);
  }
  for (const WidthClass& width : classes_) {
    plan.whole_cache_bytes += static_cast<double>(RowCache::BudgetForRows(
        static_cast<int64_t>(std::ceil(width.rows / ranks())), width.row_bytes));
  }

  Traffic traffic;
  double metadata = 0;
  double overflow = 0;
  double buffers = 0;
  double held = 0;
  const std::vector<double> parts = SplitCache(cache_bytes);
  double lookups = 0;
  for (size_t c = 0; c < classes_.size(); ++c) {
    const WidthClass& width = classes_[c];
    const double unique = width.model->unique_keys() / ranks();
    const double class_lookups = width.model->lookups();
    lookups += class_lookups;
    traffic.unique_keys += unique;
    if (cache_bytes <= 0) {
      if (spec_.run_steps > 0) {
        const double fresh =
            std::min(unique, width.model->RowsAfter(spec_.run_steps) / ranks() / spec_.run_steps);
        traffic.new_rows += fresh;
        traffic.new_bytes += fresh * static_cast<double>(width.row_bytes);
      }
      traffic.lookup_hits += class_lookups;
      traffic.bound_hits += unique;
      continue;
    }
    const CacheBytes size = SizeOfCache(static_cast<int64_t>(parts[c]), width.row_bytes);
    const double all_ways = static_cast<double>(size.ways) * ranks();
    const CacheHitRates lru = spec_.run_steps > 0
                                  ? width.model->LruFromEmpty(all_ways, spec_.run_steps)
                                  : width.model->Lru(all_ways);
    const CacheHitRates bound = width.model->Hottest(all_ways);
    if (spec_.run_steps > 0) {
      plan.store_shares.resize(spec_.tables.size());
      for (size_t i = 0; i < width.tables.size(); ++i) {
        plan.store_shares[width.tables[i]] =
            width.model->LeftShareOfClient(i, all_ways, spec_.run_steps);
      }
    }
    const double misses = unique * (1 - lru.unique_keys);
    traffic.misses += misses;
    // Of a run's misses some find nothing in the store, and the rows that are in the cache at its
    // end have not left it.
    double fresh = 0;
    double stay = 0;
    if (spec_.run_steps > 0) {
      fresh = std::min(misses, width.model->RowsAfter(spec_.run_steps) / ranks() / spec_.run_steps);
      stay = std::min<double>(fresh, static_cast<double>(size.ways) / spec_.run_steps);
    }
    const double evicted = misses - stay;
    const auto row_bytes = static_cast<double>(width.row_bytes);
    traffic.miss_bytes += misses * row_bytes;
    traffic.new_rows += fresh;
    traffic.new_bytes += fresh * row_bytes;
    traffic.evicted += evicted;
    traffic.evicted_bytes += evicted * row_bytes;
    traffic.ssd_reads += misses - fresh;
    traffic.ssd_read_bytes += (misses - fresh) * SsdReadBytesPerRow(width.row_bytes);
    traffic.ssd_record_bytes += evicted * static_cast<double>(SsdBytesPerRow(width.row_bytes));
    traffic.lookup_hits += class_lookups * lru.lookups;
    traffic.bound_hits += unique * bound.unique_keys;
    plan.cache_rows += static_cast<double>(size.ways);
    held += static_cast<double>(size.rows_bytes);
    metadata += static_cast<double>(size.metadata_bytes);
    overflow += static_cast<double>(size.overflow_bytes);
    buffers += static_cast<double>(size.buffer_bytes);
  }
  plan.unique_keys = traffic.unique_keys;
  plan.miss_rows = traffic.misses;
  plan.new_rows = traffic.new_rows;
  if (lookups > 0) plan.hit_rate = traffic.lookup_hits / lookups;
  if (traffic.unique_keys > 0) {
    plan.unique_hit_rate = 1 - traffic.misses / traffic.unique_keys;
    plan.hit_rate_bound = traffic.bound_hits / traffic.unique_keys;
  }
  if (cache_bytes > 0) {
    const std::string tier = near_tier();
    plan.items.push_back({tier, "cache: rows", held});
    plan.items.push_back({tier, "cache: keys and marks", metadata});
    plan.items.push_back({tier, "cache: overflow", overflow});
    plan.items.push_back({tier, "cache: staging and snapshot buffers", buffers});
  }
  AddStore(&plan);
  AddDense(&plan);
  if (plan.store == StoreKind::kSsd && cache_bytes > 0 && traffic.ssd_reads > 0) {
    const double log_bytes = LogBytes(plan);
    for (size_t c = 0; c < classes_.size(); ++c) {
      const CacheBytes size = SizeOfCache(static_cast<int64_t>(parts[c]), classes_[c].row_bytes);
      plan.ssd_ios_read += ReadsOfClass(classes_[c], static_cast<double>(size.ways) * ranks(),
                                        traffic.ssd_record_bytes, log_bytes);
    }
    plan.ssd_bytes_read = traffic.ssd_read_bytes;
    // The cleaner has nothing to do before the log is full.
    double cleaned = 1;
    if (spec_.run_steps > 0) {
      cleaned = std::max(0.0, 1 - log_bytes / (traffic.ssd_record_bytes * spec_.run_steps));
    }
    plan.write_amplification = 1 + cleaned * (plan.write_amplification - 1);
    plan.ssd_bytes_written = traffic.ssd_record_bytes * plan.write_amplification;
  }
  AddStages(traffic, &plan);
  AddCheckpoint(&plan);
  Judge(&plan);
  return plan;
}

// What the log may grow to before it is cleaned.
double Planner::LogBytes(const Plan& plan) const {
  double bytes = 0;
  for (const PlanItem& item : plan.items) {
    if (item.tier == "ssd" && item.name != "retained snapshots") bytes += item.bytes;
  }
  return bytes;
}

// A row that misses was evicted when the cache's time since its last use was over, and lies as far
// back in the log as has been written since. Rows that come back soon lie near its end, close to
// each other, and are read together more often than if they lay anywhere.
double Planner::ReadsOfClass(const WidthClass& width, double all_ways, double written_bytes,
                             double log_bytes) const {
  // A chunk that is being filled is read in memory; it is half full on average.
  const double unwritten_bytes = SsdChunkBytes(spec_.run_store_bytes) / 2;
  constexpr double kWidth = 0.05;
  const auto record = static_cast<double>(SsdBytesPerRow(width.row_bytes));
  const double stay = width.model->StayOf(all_ways);
  const double horizon = std::max(1.0, log_bytes / written_bytes);
  // Steps since the eviction, from here; of a run, those that it has.
  const double most = spec_.run_steps > 0 ? spec_.run_steps - stay : horizon;
  double reads = 0;
  for (double since = unwritten_bytes / written_bytes; since < std::min(most, horizon);) {
    const double steps = std::min(std::min(most, horizon) - since, std::max(0.25, since * kWidth));
    const double rows = (width.model->KeysUsedWithin(stay + since + steps) -
                         width.model->KeysUsedWithin(stay + since)) /
                        ranks();
    // So many of a run's steps have others so far back.
    const double share =
        spec_.run_steps > 0 ? std::max(0.0, 1 - (stay + since + steps / 2) / spec_.run_steps) : 1;
    reads += share * SsdReads(rows, record, steps * written_bytes);
    since += steps;
  }
  if (spec_.run_steps > 0 && most <= horizon) return reads;
  // The cleaner has moved the others, wherever.
  const double known =
      spec_.run_steps > 0 ? width.model->KeysUsedWithin(stay + most) : width.model->unique_keys();
  const double others =
      std::max(0.0, known - width.model->KeysUsedWithin(stay + horizon)) / ranks();
  const double share =
      spec_.run_steps > 0 ? std::max(0.0, 1 - (stay + (most + horizon) / 2) / spec_.run_steps) : 1;
  return reads + share * SsdReads(others, record, log_bytes);
}

// The rate grows with the cache, so the least cache that gives a rate is found by bisection.
Plan Planner::ChooseCache(StoreKind store) const {
  if (!has_gpu() && store == StoreKind::kMemory) {
    Plan plan = With(store, 0);
    plan.cache_choice = "none: rows are trained where the memory store keeps them";
    return plan;
  }
  const double limit = has_gpu() ? Limit(spec_.hbm_max_bytes, hardware_.hbm_bytes)
                                 : Limit(spec_.dram_max_bytes, hardware_.dram_bytes);
  const Plan least = With(store, min_cache_bytes_);
  const double others = least.TierBytes(near_tier()) - min_cache_bytes_;
  // Beyond a cache of all rows nothing is gained; its buffers take at most 9/64.
  const double most =
      std::min(limit - others, least.whole_cache_bytes * 64 / 55 + min_cache_bytes_);
  if (most <= min_cache_bytes_) {
    Plan plan = least;
    plan.cache_choice = "the least that holds the steps in flight";
    return plan;
  }
  const double best = With(store, most).samples_per_second;
  const bool reaches_target =
      spec_.target_samples_per_second > 0 && best >= spec_.target_samples_per_second;
  const double wanted = reaches_target ? spec_.target_samples_per_second : best * (1 - kRateSlack);
  double enough = std::floor((most - min_cache_bytes_) / kSearchStepBytes);
  double too_small = -1;
  const auto budget = [&](double steps) { return min_cache_bytes_ + steps * kSearchStepBytes; };
  while (enough - too_small > 1) {
    const double middle = std::floor((too_small + enough) / 2);
    (With(store, budget(middle)).samples_per_second >= wanted ? enough : too_small) = middle;
  }
  Plan plan = With(store, budget(enough));
  plan.cache_choice = reaches_target ? "the least that reaches the target"
                                     : absl::StrFormat(
                                           "the least within %g %% of the fastest that fits (%s "
                                           "samples/s)",
                                           100 * kRateSlack, FormatAmount(best));
  return plan;
}

Plan Planner::Choose(bool advise) const {
  const auto with_store = [&](StoreKind store) {
    if (spec_.cache_bytes == PlanSpec::kAuto) return ChooseCache(store);
    Plan plan = With(store, static_cast<double>(spec_.cache_bytes));
    plan.cache_choice = "as the spec says";
    return plan;
  };
  Plan plan = with_store(spec_.store_auto ? StoreKind::kMemory : spec_.store);
  if (spec_.store_auto && !plan.fits && spec_.cache_bytes != 0 && hardware_.ssd_bytes > 0) {
    Plan on_disk = with_store(StoreKind::kSsd);
    if (on_disk.fits) plan = std::move(on_disk);
  }
  if (!advise) return plan;
  AddRemedies(&plan);
  if (plan.fits) AddMarginals(&plan);
  return plan;
}

std::vector<PlanCurvePoint> Planner::Curve(const Plan& plan) const {
  constexpr int kPoints = 64;
  std::vector<PlanCurvePoint> points;
  // A cache of all rows, its buffers included.
  const double most = std::max(plan.whole_cache_bytes * 64 / 55, min_cache_bytes_ * 1.01);
  for (int i = 0; i <= kPoints; ++i) {
    const double bytes =
        std::round(min_cache_bytes_ * std::pow(most / min_cache_bytes_, i / double{kPoints}));
    const Plan other = With(plan.store, bytes);
    points.push_back({bytes, other.cache_rows, other.hit_rate, other.unique_hit_rate,
                      other.hit_rate_bound, other.samples_per_second});
  }
  return points;
}

void Planner::AddRemedies(Plan* plan) const {
  if (plan->fits) return;
  // Each remedy is planned, and named when it helps.
  const auto try_spec = [&](const std::string& what, const std::function<void(PlanSpec*)>& change) {
    PlanSpec changed = spec_;
    change(&changed);
    Planner planner(changed);
    if (!planner.Init().ok()) return false;
    const bool fixed = changed.cache_bytes != PlanSpec::kAuto;
    const StoreKind store = changed.store_auto ? plan->store : changed.store;
    const Plan result = fixed ? planner.With(store, static_cast<double>(changed.cache_bytes))
                              : planner.ChooseCache(store);
    std::string effect;
    for (const PlanTier& tier : result.tiers) {
      const double before = plan->TierBytes(tier.name);
      if (std::abs(tier.bytes - before) < 0.01 * before) continue;
      absl::StrAppend(&effect, effect.empty() ? "" : ", ", tier.name, " ", Bytes(tier.bytes),
                      " instead of ", Bytes(before));
    }
    if (effect.empty()) {
      effect = absl::StrCat(FormatAmount(result.samples_per_second), " samples/s instead of ",
                            FormatAmount(plan->samples_per_second));
    }
    if (result.fits || result.over.size() < plan->over.size() ||
        (result.over.size() == plan->over.size() &&
         result.samples_per_second > plan->samples_per_second * 1.05)) {
      plan->remedies.push_back(
          absl::StrCat(what, ": ", effect, result.fits ? "; then it fits" : "; not enough alone"));
    }
    return result.fits;
  };
  if (plan->store == StoreKind::kMemory && hardware_.ssd_bytes > 0) {
    try_spec("keep the rows on the SSD (store: ssd)", [](PlanSpec* spec) {
      spec->store = StoreKind::kSsd;
      spec->store_auto = false;
      if (spec->cache_bytes == 0) spec->cache_bytes = PlanSpec::kAuto;
    });
  }
  if (spec_.cache_bytes > 0) {
    try_spec("let the cache be chosen (cache_bytes: auto)",
             [](PlanSpec* spec) { spec->cache_bytes = PlanSpec::kAuto; });
  }
  // What is over by a factor of f needs f times the ranks at least.
  double factor = 2;
  for (const PlanTier& tier : plan->tiers) {
    if (tier.limit_bytes > 0) factor = std::max(factor, tier.bytes / tier.limit_bytes);
  }
  if (plan->samples_per_second > 0) {
    factor = std::max(factor, spec_.target_samples_per_second / plan->samples_per_second);
  }
  constexpr double kRanksMax = 65'536;
  double ranks = spec_.ranks * std::exp2(std::ceil(std::log2(factor)));
  for (int attempt = 0; attempt < 3 && ranks <= kRanksMax; ++attempt, ranks *= 2) {
    const auto n = static_cast<int32_t>(ranks);
    if (try_spec(absl::StrCat("use ", n, " ranks"), [&](PlanSpec* spec) {
          spec->ranks = n;
          spec->ranks_per_node = std::min(n, spec->hardware.ranks_per_node);
        })) {
      break;
    }
    // Only the number that fits is worth reading.
    if (!plan->remedies.empty() && plan->remedies.back().rfind("use ", 0) == 0 &&
        plan->remedies.back().find(" ranks: ") != std::string::npos) {
      plan->remedies.pop_back();
    }
  }
  const bool has_state = std::any_of(
      spec_.tables.begin(), spec_.tables.end(),
      [](const PlanTable& table) { return SparseStateFloats(table.optimizer, table.dim) > 1; });
  if (has_state) {
    try_spec("use row-wise Adagrad, one number of state a row (optimizer: rowwise_adagrad)",
             [](PlanSpec* spec) {
               for (PlanTable& table : spec->tables) {
                 table.optimizer = SparseOptimizerKind::kRowWiseAdagrad;
               }
             });
  }
  if (std::any_of(spec_.tables.begin(), spec_.tables.end(), [](const PlanTable& table) {
        return table.weights_precision == WeightsPrecision::kFp32;
      })) {
    try_spec("keep weights in 16 bits (weights_precision: fp16)", [](PlanSpec* spec) {
      for (PlanTable& table : spec->tables) {
        if (table.weights_precision != WeightsPrecision::kFp32) continue;
        table.weights_precision = WeightsPrecision::kFp16;
      }
    });
  }
  if (std::any_of(spec_.tables.begin(), spec_.tables.end(),
                  [](const PlanTable& table) { return table.dim > 1; })) {
    try_spec("halve the dims", [](PlanSpec* spec) {
      for (PlanTable& table : spec->tables) table.dim = (table.dim + 1) / 2;
    });
  }
  if (spec_.batch_size > 1) {
    try_spec("halve the batch",
             [](PlanSpec* spec) { spec->batch_size = (spec->batch_size + 1) / 2; });
  }
}

void Planner::AddMarginals(Plan* plan) const {
  if (plan->cache_bytes > 0) {
    const Plan more = With(plan->store, plan->cache_bytes + kGB);
    plan->marginals.push_back({near_tier(), "one GB more of cache",
                               more.samples_per_second - plan->samples_per_second,
                               more.unique_hit_rate - plan->unique_hit_rate});
  }
  if (plan->store == StoreKind::kSsd) {
    // A GB more of disk lowers the fill u of the log, and with it what the cleaner moves.
    double disk = 0;
    double live = 0;
    for (const PlanItem& item : plan->items) {
      if (item.tier != "ssd" || item.name == "retained snapshots") continue;
      disk += item.bytes;
      if (item.name != "room for cleaning") live += item.bytes;
    }
    if (disk > 0) {
      const double amplification = 1 / (1 - live / (disk + kGB));
      // Writing less is writing faster where that is what a step waits for.
      double seconds = 0;
      for (const PlanStage& stage : plan->stages) {
        if (stage.bound_by == "ssd written bytes") seconds += stage.seconds;
      }
      const double saved = seconds * (1 - amplification / plan->write_amplification);
      const bool waits = plan->bottleneck.find("ssd") != std::string::npos;
      const double rate = waits
                              ? static_cast<double>(spec_.batch_size) / (plan->step_seconds - saved)
                              : plan->samples_per_second;
      plan->marginals.push_back(
          {"ssd", "one GB more to clean in", rate - plan->samples_per_second, 0});
    }
  }
}

}  // namespace

double Plan::TierBytes(const std::string& tier) const {
  double bytes = 0;
  for (const PlanItem& item : items) bytes += item.tier == tier ? item.bytes : 0;
  return bytes;
}

std::map<std::string, double> Plan::Values() const {
  return {{"hbm_bytes", TierBytes("hbm")},
          {"dram_bytes", TierBytes("dram")},
          {"ssd_bytes", TierBytes("ssd")},
          {"fits", fits ? 1 : 0},
          {"rows", rows},
          {"weight_bytes", weight_bytes},
          {"payload_bytes", payload_bytes},
          {"row_bytes", row_bytes},
          {"whole_cache_bytes", whole_cache_bytes},
          {"cache_bytes", cache_bytes},
          {"cache_rows", cache_rows},
          {"lookups", lookups},
          {"unique_keys", unique_keys},
          {"hit_rate", hit_rate},
          {"unique_hit_rate", unique_hit_rate},
          {"hit_rate_bound", hit_rate_bound},
          {"miss_rows", miss_rows},
          {"new_rows", new_rows},
          {"link_bytes_down", link_bytes_down},
          {"link_bytes_up", link_bytes_up},
          {"ssd_ios_read", ssd_ios_read},
          {"ssd_bytes_read", ssd_bytes_read},
          {"ssd_bytes_written", ssd_bytes_written},
          {"write_amplification", write_amplification},
          {"exchange_bytes", exchange_bytes},
          {"exchange_bytes_node", exchange_bytes_node},
          {"exchange_bytes_network", exchange_bytes_network},
          {"exchange_ids_bytes", exchange_ids_bytes},
          {"exchange_forward_bytes", exchange_forward_bytes},
          {"exchange_backward_bytes", exchange_backward_bytes},
          {"allreduce_bytes", allreduce_bytes},
          {"step_seconds", step_seconds},
          {"samples_per_second", samples_per_second},
          {"checkpoint_bytes", checkpoint_bytes},
          {"checkpoint_seconds", checkpoint_seconds},
          {"ssd_life_years", ssd_life_years},
          {"price_per_billion_samples", price_per_billion_samples}};
}

absl::StatusOr<Plan> MakePlan(const PlanSpec& spec, bool advise) {
  if (spec.store == StoreKind::kSsd && !spec.store_auto && spec.cache_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        spec.name,
        ": cache_bytes is 0 with store: ssd; rows of an SSD are trained in a cache, give "
        "its bytes or auto"));
  }
  if (spec.hardware.hbm_bytes > 0 && spec.cache_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, ": cache_bytes is 0 with hardware ", spec.hardware.name,
                     "; a GPU trains rows in its cache, give its bytes or auto"));
  }
  Planner planner(spec);
  HOTROW_RETURN_IF_ERROR(planner.Init());
  return planner.Choose(advise);
}

absl::StatusOr<std::vector<PlanCurvePoint>> PlanCurve(const PlanSpec& spec, const Plan& plan) {
  Planner planner(spec);
  HOTROW_RETURN_IF_ERROR(planner.Init());
  return planner.Curve(plan);
}

}  // namespace hotrow
