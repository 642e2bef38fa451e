#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/evaluation_impl.h"
#include "embedding/ranks/device_row_shuffle_impl.h"
#include "ops/rows/pooled_lookup.h"

namespace hotrow::internal {

Evaluation::Evaluation(const EmbeddingCollectionOptions& options, const StepParts& parts,
                       const ExecContext& ctx)
    : parts_(parts),
      plan_(parts.plan),
      shuffle_(parts.shuffle),
      ctx_(ctx),
      staging_bytes_(options.evaluation_staging_bytes),
      batch_(parts) {}

absl::Status Evaluation::EnsureStaging() {
  if (!staging_.empty()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(upload_, DeviceStream::Create(ctx_.device));
  HOTROW_ASSIGN_OR_RETURN(
      staging_,
      DeviceMemory<std::byte>::Create(staging_bytes_, {ctx_.device, ctx_.stream, HugePages::kTry}));
  return absl::OkStatus();
}

int64_t Evaluation::SliceLookups() const {
  // Each of several ranks may be asked for the rows of all of them.
  const int64_t ranks = shuffle_ == nullptr ? 1 : shuffle_->world_size();
  return staging_bytes_ / plan_.classes.back().row_bytes / ranks;
}

absl::StatusOr<int64_t> Evaluation::AgreeOnSlices(int64_t own) {
  if (shuffle_ == nullptr) return own;
  // All ranks serve each other in every slice, also when their own part has ended.
  std::vector<int64_t> of_ranks(shuffle_->world_size());
  HOTROW_RETURN_IF_ERROR(shuffle_->AllGather({&own, 1}, of_ranks));
  return *std::max_element(of_ranks.begin(), of_ranks.end());
}

absl::Status Evaluation::FindRows(RowReader reader) {
  HostStep& s = batch_;
  if (shuffle_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(shuffle_->ExchangeKeysInTurn(ctx_.OnHost(), s.wanted,
                                                        /*evaluation=*/true, &ids_, &s.shuffled));
  }
  HOTROW_RETURN_IF_ERROR(parts_.tiers->Read(ctx_, s.served_keys(), staging_.data(), &s.places));
  return parts_.rules->Read(ctx_, s.ruled_rows(), reader, &s.ruled);
}

absl::Status Evaluation::PlaceArrays() {
  HostStep& s = batch_;
  arrays_.Clear();
  const size_t offsets = arrays_.Add(s.input.offsets);
  const size_t weights = arrays_.Add(s.input.weights);
  const size_t inverse = arrays_.Add(s.inverse);
  const size_t rows = arrays_.Add(s.ruled.weights());
  const size_t ask_order = arrays_.Add(s.shuffled.ask_order);
  const size_t asked_rows = arrays_.Add(s.shuffled.asked_rows);
  HOTROW_RETURN_IF_ERROR(arrays_.Upload(parts_.tiers->staged(), &upload_));
  s.at = {.offsets = arrays_.At<int64_t>(offsets),
          .weights = s.input.weights.empty() ? nullptr : arrays_.At<float>(weights),
          .inverse = arrays_.At<int32_t>(inverse),
          .value_rows = arrays_.At<const std::byte*>(rows),
          .rows = arrays_.At<std::byte*>(rows)};
  routes_ = {.ask_order = arrays_.At<int32_t>(ask_order),
             .ask_offsets = s.shuffled.ask_offsets,
             .asked_rows = arrays_.At<int32_t>(asked_rows),
             .asked_offsets = s.shuffled.asked_offsets,
             .table_offsets = s.shuffled.served.table_offsets};
  return absl::OkStatus();
}

absl::Status Evaluation::FetchRows(uint32_t step) {
  HostStep& s = batch_;
  if (parts_.device_rows == nullptr) {
    HOTROW_RETURN_IF_ERROR(FetchRowsOnHost(s.ruled.weights(), step));
    s.at.value_rows = s.value_rows.data();
    return absl::OkStatus();
  }
  const auto num_wanted = std::ssize(s.wanted.keys);
  if (device_value_rows_.size() < num_wanted) {
    HOTROW_RETURN_IF_ERROR(
        device_value_rows_.Reserve(num_wanted + num_wanted / 4, {ctx_.device, ctx_.stream}));
  }
  HOTROW_RETURN_IF_ERROR(parts_.device_rows->StartRows(
      ctx_, routes_, s.at.rows, step, /*evaluation=*/true, device_value_rows_.data()));
  s.at.value_rows = device_value_rows_.data();
  return parts_.device_rows->FinishRows(ctx_);
}

absl::Status Evaluation::FetchRowsOnHost(std::span<std::byte* const> served_rows, uint32_t step) {
  HostStep& s = batch_;
  const ExecContext host = ctx_.OnHost();
  HOTROW_RETURN_IF_ERROR(
      shuffle_->StartRows(host, s.shuffled, served_rows, step, /*evaluation=*/true));
  s.value_rows.resize(s.wanted.keys.size());
  return shuffle_->FinishRows(host, s.shuffled, served_rows, s.value_rows);
}

absl::Status Evaluation::RunSlice(const EmbeddingOutput& output, uint32_t step) {
  HostStep& s = batch_;
  // What was enqueued for the slice before may still read its arrays.
  HOTROW_RETURN_IF_ERROR(upload_.RunAfter(ctx_.stream));
  s.FindSegments(&unique_.segments);
  HOTROW_RETURN_IF_ERROR(s.FindUnique(ctx_.OnHost(), &unique_));
  HOTROW_RETURN_IF_ERROR(FindRows(RowReader::kEvaluation));
  lookups_ += s.input.num_lookups();
  unique_keys_ += std::ssize(s.served_keys().keys);
  HOTROW_RETURN_IF_ERROR(PlaceArrays());
  if (shuffle_ != nullptr) HOTROW_RETURN_IF_ERROR(FetchRows(step));
  return s.Pool(ctx_, output);
}

absl::StatusOr<std::vector<int64_t>> Evaluation::CutForStaging(const TakenBatch& batch) const {
  const int64_t slice_lookups = SliceLookups();
  const auto num_features = static_cast<int64_t>(plan_.features.size());
  if (batch.num_lookups() <= slice_lookups) return std::vector<int64_t>{0, batch.batch_size};
  std::vector<int64_t> cuts = {0};
  int64_t lookups = 0;
  for (int64_t b = 0; b < batch.batch_size; ++b) {
    int64_t n = 0;
    for (int64_t f = 0; f < num_features; ++f) {
      const int64_t bag = f * batch.batch_size + b;
      n += batch.offsets[bag + 1] - batch.offsets[bag];
    }
    if (n > slice_lookups) {
      const int64_t ranks = shuffle_ == nullptr ? 1 : shuffle_->world_size();
      return absl::ResourceExhaustedError(absl::StrCat(
          "evaluation_staging_bytes: sample ", b, " alone has ", n, " lookups, which need ",
          n * plan_.classes.back().row_bytes * ranks, " bytes; the budget is ", staging_bytes_));
    }
    if (lookups + n > slice_lookups) {
      cuts.push_back(b);
      lookups = 0;
    }
    lookups += n;
  }
  cuts.push_back(batch.batch_size);
  return cuts;
}

absl::Status Evaluation::Run(const EmbeddingOutput& output, uint32_t step) {
  HOTROW_RETURN_IF_ERROR(EnsureStaging());
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> cuts, CutForStaging(input_));
  const auto own_slices = static_cast<int64_t>(cuts.size()) - 1;
  HOTROW_ASSIGN_OR_RETURN(const int64_t slices, AgreeOnSlices(own_slices));
  if (slices == 1) {
    std::swap(batch_.input, input_);
    const absl::Status status = RunSlice(output, step);
    batch_.input.Clear();
    return status;
  }
  const TakenBatch& batch = input_;
  TakenBatch& slice_of = batch_.input;
  const auto num_features = static_cast<int64_t>(plan_.features.size());
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t begin = slice < own_slices ? cuts[slice] : batch.batch_size;
    const int64_t end = slice < own_slices ? cuts[slice + 1] : batch.batch_size;
    slice_of.batch_size = end - begin;
    slice_of.own_values.clear();
    slice_of.own_weights.clear();
    slice_of.own_offsets.assign(1, 0);
    EmbeddingOutput part = output;
    part.pooled = output.pooled.Rows(begin, end - begin);
    for (int64_t f = 0; f < num_features; ++f) {
      const PlannedFeature& feature = plan_.features[f];
      const std::span<const int64_t> bags = batch.bags(static_cast<size_t>(f));
      if (feature.unpooled_index >= 0) {
        part.unpooled[feature.unpooled_index] = output.unpooled[feature.unpooled_index].Rows(
            bags[begin] - bags[0], bags[end] - bags[begin]);
      }
      const int64_t base = std::ssize(slice_of.own_values);
      const auto append = [&](const auto& from, auto* to) {
        to->insert(to->end(), from.begin() + bags[begin], from.begin() + bags[end]);
      };
      append(batch.values, &slice_of.own_values);
      if (!batch.weights.empty()) append(batch.weights, &slice_of.own_weights);
      for (int64_t b = begin; b < end; ++b) {
        slice_of.own_offsets.push_back(base + bags[b + 1] - bags[begin]);
      }
    }
    slice_of.ReadOwn();
    HOTROW_RETURN_IF_ERROR(RunSlice(part, step));
  }
  return absl::OkStatus();
}

// --- By key

// A row whose last step is 0 is an initial one.
absl::Status Evaluation::FindMarks(std::span<std::byte* const> served_rows) {
  const HostStep& s = batch_;
  const TableKeys& served = s.served_keys();
  served_has_row_.resize(served.keys.size());
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    for (int64_t i = served.table_offsets[t]; i < served.table_offsets[t + 1]; ++i) {
      uint32_t last_step = 0;
      std::memcpy(&last_step, served_rows[i] + plan_.tables[t].layout.step_offset,
                  sizeof(last_step));
      served_has_row_[i] = last_step != 0 ? 1 : 0;
    }
  }
  if (shuffle_ == nullptr) {
    std::swap(has_row_, served_has_row_);
    return absl::OkStatus();
  }
  has_row_.resize(s.wanted.keys.size());
  return shuffle_->ExchangeMarks(s.shuffled, served_has_row_, has_row_);
}

absl::Status Evaluation::CopyToHost(std::vector<std::byte*>* rows) {
  const HostStep& s = batch_;
  rows->assign(s.ruled.weights().begin(), s.ruled.weights().end());
  if (ctx_.device == Device::kCpu) return absl::OkStatus();
  const std::vector<int64_t>& offsets = s.served_keys().table_offsets;
  int64_t bytes = 0;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    bytes += (offsets[t + 1] - offsets[t]) * plan_.tables[t].layout.row_bytes;
  }
  host_bytes_.resize(static_cast<size_t>(bytes));
  std::byte* next = host_bytes_.data();
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    const int64_t row_bytes = plan_.tables[t].layout.row_bytes;
    for (int64_t i = offsets[t]; i < offsets[t + 1]; ++i) {
      std::byte*& row = (*rows)[static_cast<size_t>(i)];
      HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, next, row, row_bytes));
      row = next;
      next += row_bytes;
    }
  }
  return WaitForStream(ctx_);
}

absl::Status Evaluation::ReadSlice(const PlannedTable& table, MatrixView<float> rows,
                                   std::span<bool> found, uint32_t step) {
  HostStep& s = batch_;
  HOTROW_RETURN_IF_ERROR(upload_.RunAfter(ctx_.stream));
  HOTROW_RETURN_IF_ERROR(s.FindUnique(ctx_.OnHost(), &unique_));
  HOTROW_RETURN_IF_ERROR(FindRows(RowReader::kByKey));
  HOTROW_RETURN_IF_ERROR(CopyToHost(&host_rows_));
  std::vector<const std::byte*>& at = s.value_rows;  // of each distinct key, in host memory
  WeightsPrecision precision = table.read_precision;
  if (shuffle_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(FetchRowsOnHost(host_rows_, step));
    precision = WeightsPrecision::kFp32;
  } else {
    at.assign(host_rows_.begin(), host_rows_.end());
  }
  // Other ranks may ask what this one does not.
  if (shuffle_ != nullptr || !found.empty()) {
    // Copies of weights alone have no marks; they are in host memory as the rows are.
    HOTROW_RETURN_IF_ERROR(
        FindMarks(ctx_.device == Device::kCpu ? s.ruled.whole_rows() : host_rows_));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    found[i] = has_row_[static_cast<size_t>(s.inverse[i])] != 0;
  }
  // A lookup with one row in each bag.
  const JaggedFeature feature = {.dim = table.layout.dim,
                                 .pooling = Pooling::kNone,
                                 .data = rows.data,
                                 .stride = std::max<int64_t>(rows.stride, table.layout.dim),
                                 .precision = precision};
  return PooledLookup(ctx_.OnHost(), {.features = {&feature, 1},
                                      .batch_size = rows.rows,
                                      .offsets = s.input.offsets.data(),
                                      .inverse = s.inverse.data(),
                                      .rows = at.data()});
}

absl::Status Evaluation::ReadRows(int32_t table, std::span<const uint64_t> keys,
                                  MatrixView<float> rows, std::span<bool> found, uint32_t step) {
  HOTROW_RETURN_IF_ERROR(EnsureStaging());
  const int64_t slice_keys = SliceLookups();
  if (slice_keys == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "evaluation_staging_bytes: the budget of ", staging_bytes_,
        " bytes has no room for a row of ", plan_.classes.back().row_bytes, " bytes of each rank"));
  }
  const int64_t num_keys = std::ssize(keys);
  HOTROW_ASSIGN_OR_RETURN(const int64_t slices, AgreeOnSlices(CeilDiv(num_keys, slice_keys)));
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t begin = std::min(num_keys, slice * slice_keys);
    const int64_t n = std::min(slice_keys, num_keys - begin);
    const std::span<const uint64_t> part =
        keys.subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
    batch_.input.batch_size = n;
    batch_.input.values = part;
    batch_.input.own_offsets.resize(static_cast<size_t>(n) + 1);
    std::iota(batch_.input.own_offsets.begin(), batch_.input.own_offsets.end(), 0);
    batch_.input.offsets = batch_.input.own_offsets;
    batch_.input.weights = {};
    unique_.segments = {{0, n, table}};
    HOTROW_RETURN_IF_ERROR(ReadSlice(
        plan_.tables[static_cast<size_t>(table)], rows.Rows(begin, n),
        found.empty() ? found : found.subspan(static_cast<size_t>(begin), static_cast<size_t>(n)),
        step));
  }
  return absl::OkStatus();
}

void Evaluation::AddTo(EmbeddingStats* stats) const {
  stats->evaluation_lookups += lookups_;
  stats->evaluation_unique_keys += unique_keys_;
  if (!parts_.tiers->staged()) return;
  stats->transfer_host_bytes += arrays_.host_bytes();
  stats->transfer_device_bytes +=
      arrays_.device_bytes() + staging_.bytes() + device_value_rows_.bytes();
}

}  // namespace hotrow::internal
