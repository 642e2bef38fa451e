#include "tools/plan/workload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/tiers/tiered_table.h"

namespace hotrow {

double SecondsAt(double amount, double per_second) {
  return amount <= 0      ? 0
         : per_second > 0 ? amount / per_second
                          : std::numeric_limits<double>::infinity();
}

// A measured machine belongs to all ranks that it has.
Workload::Workload(const PlanSpec& plan_spec)
    : spec(plan_spec),
      hardware(spec.hardware.calibrated() && spec.hardware.hbm_bytes == 0
                   ? spec.hardware.SharedBy(std::min(spec.ranks, spec.ranks_per_node))
                   : spec.hardware) {}

absl::StatusOr<Workload> Workload::Of(const PlanSpec& spec) {
  Workload out(spec);
  HOTROW_RETURN_IF_ERROR(out.AddTables());
  out.AddCaches();
  out.AddDenseModel();
  return out;
}

double Workload::DistinctRows(size_t table, double table_lookups) const {
  return footprints[table] != nullptr ? footprints[table]->Rows(table_lookups)
                                      : ExpectedUnique(laws[table], table_lookups);
}

absl::Status Workload::AddTables() {
  const auto batch = static_cast<double>(spec.batch_size);
  for (size_t t = 0; t < spec.tables.size(); ++t) {
    const PlanTable& table = spec.tables[t];
    const double table_rows = RowsOf(table);
    layouts.push_back(table.layout());
    const RowLayout& layout = layouts.back();
    const auto row_weight_bytes = static_cast<double>(layout.state_offset);
    rows += table_rows;
    weight_bytes += table_rows * row_weight_bytes;
    payload_bytes += table_rows * static_cast<double>(layout.payload_bytes);
    row_bytes += table_rows * static_cast<double>(layout.row_bytes);
    footprints.emplace_back();
    laws.emplace_back();
    if (!table.curve.empty()) {
      footprints.back() = std::make_unique<Footprint>(table.curve, table_rows);
    } else if (!table.histogram.empty()) {
      laws.back() = Popularity::FromCounts(table.histogram);
    } else if (!table.curve_file.empty() || !table.trace_file.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          spec.name, ":", table.line, ": the curve or trace of ", table.name, " was not read"));
    } else if (t > 0 && spec.tables[t - 1].histogram.empty() &&
               spec.tables[t - 1].zipf == table.zipf && RowsOf(spec.tables[t - 1]) == table_rows) {
      laws.back() = laws[t - 1];
    } else {
      laws.back() = Popularity::Zipf(table_rows, table.zipf);
    }
    const double rank_lookups = table.step_lookups(batch / ranks());
    const double unique = DistinctRows(t, rank_lookups);
    const double owned = DistinctRows(t, table.step_lookups(batch)) / ranks();
    owned_weight_bytes += owned * row_weight_bytes;
    owned_gradient_bytes += owned * kFloatBytes * table.dim;
    owned_row_bytes += owned * static_cast<double>(layout.row_bytes);
    lookups += rank_lookups;
    lookup_weight_bytes += rank_lookups * row_weight_bytes;
    lookup_gradient_bytes += rank_lookups * kFloatBytes * table.dim;
    unique_keys += unique;
    unique_gradient_bytes += unique * kFloatBytes * table.dim;
    forward_wire_bytes += unique * WireBytes(spec.forward_wire, table.dim);
    backward_wire_bytes += unique * WireBytes(spec.backward_wire, table.dim);
    pooled_dim += static_cast<double>(table.dim) * static_cast<double>(table.features);
    output_dim += table.output_dim();
    const auto same_width = [&](const WidthClass& c) { return c.row_bytes == layout.row_bytes; };
    auto at = std::find_if(classes.begin(), classes.end(), same_width);
    if (at == classes.end()) {
      classes.emplace_back();
      at = classes.end() - 1;
      at->row_bytes = layout.row_bytes;
    }
    at->tables.push_back(t);
    at->rows += table_rows;
  }
  return absl::OkStatus();
}

void Workload::AddCaches() {
  const auto batch = static_cast<double>(spec.batch_size);
  for (WidthClass& width : classes) {
    std::vector<CacheClient> clients;
    for (const size_t t : width.tables) {
      clients.push_back({.law = &laws[t],
                         .step_lookups = spec.tables[t].step_lookups(batch),
                         .footprint = footprints[t].get(),
                         // What a run reports: there is nothing else to be held against it.
                         .parts = spec.run_steps > 0 ? ranks() : 1});
    }
    width.model = std::make_unique<CacheModel>(clients);
    // Room for the rows of all steps in flight, a twentieth over the mean.
    const double step_rows =
        std::min(width.rows, width.model->unique_keys() * steps_in_flight()) / ranks() * 1.05;
    width.min_cache_bytes = static_cast<double>(TieredTable::MinCacheBytes(
        std::max<int64_t>(1, static_cast<int64_t>(step_rows)), width.row_bytes));
    min_cache_bytes += width.min_cache_bytes;
    whole_cache_bytes += static_cast<double>(RowCache::BudgetForRows(
        static_cast<int64_t>(std::ceil(width.rows / ranks())), width.row_bytes));
  }
}

void Workload::AddDenseModel() {
  const PlanModel& model = spec.model;
  const auto map = [&](double count, double rows, double in, double out) {
    const double macs = count * rows * in * out;
    dense_parameters += count * (in + 1) * out;
    dense_macs += macs;
    dense_sample_seconds +=
        SecondsAt(kFlopsPerMac * macs, hardware.LayerFlops(in, out, samples() * rows));
    activations += count * rows * out;
    dense_bytes += hardware.activation_bytes * count * rows * out;
    return out;
  };
  const auto layer = [&](double in, double out) { return map(1, 1, in, out); };
  double bottom = static_cast<double>(model.dense_features);
  for (const int32_t size : model.bottom) bottom = layer(bottom, size);
  double features = 0;
  for (const PlanTable& table : spec.tables) features += static_cast<double>(table.features);
  double top = bottom + pooled_dim;
  if (model.interaction == Interaction::kDot) {
    const double vectors = features + (model.bottom.empty() ? 0 : 1);
    const double dim = pooled_dim / std::max(1.0, features);
    const double macs = vectors * (vectors - 1) / 2 * dim;
    dense_macs += macs;
    top = bottom + vectors * (vectors - 1) / 2;
    if (has_gpu_costs()) {
      // Vectors are read forward and backward, their gradients written; the output both ways.
      dense_bytes += kFloatBytes * (3 * vectors * dim + 2 * top);
    } else {
      dense_sample_seconds += SecondsAt(kFlopsPerMac * macs, hardware.DotFlops(dim, samples()));
    }
    activations += top;
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
  if (model.top_inputs > 0) top = model.top_inputs;
  for (const int32_t size : model.top) top = layer(top, size);
  for (const PlanPart& part : model.parts) {
    if (part.outputs > 0) map(part.count, part.rows, part.inputs, part.outputs);
    dense_parameters += part.count * part.parameters;
    activations += part.count * part.activations;
    dense_bytes += hardware.activation_bytes * part.count * part.activations;
    const double macs = part.count * part.macs;
    dense_macs += macs;
    // Work on single vectors, like the dot interaction of short ones.
    dense_sample_seconds +=
        SecondsAt(kFlopsPerMac * macs, hardware.DotFlops(HardwareProfile::kDotShort, samples()));
  }
}

double Workload::DenseSeconds(double count) const {
  double seconds = dense_sample_seconds * (count + hardware.dense_half_batch);
  if (spec.model.inputs_16_bits && hardware.dense_flops_16 > 0) {
    seconds *= hardware.dense_flops / hardware.dense_flops_16;
  }
  if (has_gpu_costs()) seconds += count * dense_bytes / near_bytes_per_second();
  return count > 0 ? seconds : 0;
}

bool Workload::fuses_lookup() const {
  return has_gpu_costs() && spec.model.interaction == Interaction::kDot &&
         std::all_of(spec.tables.begin(), spec.tables.end(),
                     [](const PlanTable& table) { return table.hotness == 1; });
}

}  // namespace hotrow
