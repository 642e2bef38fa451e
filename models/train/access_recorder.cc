#include "models/train/access_recorder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/env.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// Sizes of the caches that the curves tell of, as shares of the distinct keys.
constexpr std::array<double, 10> kFractions = {0.001, 0.002, 0.005, 0.01, 0.02,
                                               0.05,  0.1,   0.2,   0.5,  1};

// What adds up over ranks.
struct PointSums {
  double size = 0;
  double hits = 0;
  double squared_error = 0;  // of the hits
};
struct CurveSums {
  double accesses = 0;
  double distinct = 0;
  double sampled_keys = 0;
  double memory_bytes = 0;
  std::array<PointSums, kFractions.size()> points;
};
static_assert(sizeof(CurveSums) == (4 + 3 * kFractions.size()) * sizeof(double));

CurveSums SumsOf(const SampledLruCurve& curve) {
  CurveSums sums;
  sums.accesses = static_cast<double>(curve.accesses());
  sums.distinct = curve.distinct();
  sums.sampled_keys = static_cast<double>(curve.sampled_keys());
  sums.memory_bytes = static_cast<double>(curve.MemoryBytes());
  if (sums.distinct == 0) return sums;
  for (size_t i = 0; i < kFractions.size(); ++i) {
    const double size = std::max(1.0, std::round(kFractions[i] * sums.distinct));
    const double error = sums.accesses * curve.HitRateError(size);
    sums.points[i] = {size, sums.accesses * curve.HitRate(size), error * error};
  }
  return sums;
}

MissRatioCurve CurveOf(const CurveSums& sums, std::string name) {
  MissRatioCurve curve;
  curve.name = std::move(name);
  curve.accesses = static_cast<int64_t>(sums.accesses);
  curve.distinct = sums.distinct;
  curve.sample_rate =
      sums.distinct > 0 ? sums.sampled_keys / sums.distinct : AccessRecorder::kCurveSampleRate;
  curve.memory_bytes = static_cast<int64_t>(sums.memory_bytes);
  for (const PointSums& point : sums.points) {
    const auto size = static_cast<int64_t>(point.size);
    const int64_t before = curve.points.empty() ? 0 : curve.points.back().size;
    if (size == before) continue;  // small tables: the same number of rows
    curve.points.push_back({.size = size,
                            .fraction = point.size / sums.distinct,
                            .hit_rate = std::clamp(point.hits / sums.accesses, 0.0, 1.0),
                            .error = std::sqrt(point.squared_error) / sums.accesses});
  }
  return curve;
}

}  // namespace

std::string AccessTracePath(const std::string& file, int32_t rank, int32_t world_size,
                            int64_t resumed_step) {
  return absl::StrCat(file, world_size > 1 ? absl::StrCat(".rank", rank) : std::string(),
                      resumed_step >= 0 ? absl::StrCat(".step", resumed_step) : std::string());
}

AccessRecorder::AccessRecorder(const AccessRecorderOptions& options) : options_(options) {
  if (!options.curves) return;
  const SampledLruCurveOptions curve = {
      .sample_rate = kCurveSampleRate, .keys_max = kCurveKeysMax, .seed = options.seed};
  curves_.assign(options.tables.size() + 1, SampledLruCurve(curve));
  for (size_t table = 0; table < options.tables.size(); ++table) {
    samplers_.emplace_back(options.seed, static_cast<uint32_t>(table));
  }
  limit_ = KeySampler::LimitOfRate(kCurveSampleRate);
}

absl::Status AccessRecorder::TraceStatus(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("--record_trace=", options_.trace_path, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<AccessRecorder>> AccessRecorder::Open(
    const AccessRecorderOptions& options) {
  std::unique_ptr<AccessRecorder> recorder(new AccessRecorder(options));
  if (options.trace_path.empty()) return recorder;
  AccessTraceOptions trace = {.path = options.trace_path,
                              .sample_rate = options.trace_sample_rate,
                              .seed = options.seed,
                              .env = options.env};
  for (size_t table = 0; table < options.tables.size(); ++table) {
    trace.tables.push_back({static_cast<uint32_t>(table), options.tables[table]});
  }
  absl::StatusOr<std::unique_ptr<AccessTraceWriter>> writer = AccessTraceWriter::Open(trace);
  if (!writer.ok()) return recorder->TraceStatus(writer.status());
  recorder->trace_ = *std::move(writer);
  return recorder;
}

void AccessRecorder::Add(uint32_t table, std::span<const RowKey> keys,
                         std::span<const int32_t> lookups) {
  HOTROW_DCHECK(table < options_.tables.size());
  if (!curves_.empty()) {
    // The curves' limits only fall, so what this one leaves out they leave out, too.
    const KeySampler sampler = samplers_[table];
    SampledLruCurve& own = curves_[table];
    SampledLruCurve& all = curves_.back();
    int64_t unsampled = 0;
    for (const RowKey& key : keys) {
      const uint64_t hash = sampler.Hash(key.key);
      if (hash > limit_) {
        ++unsampled;
        continue;
      }
      own.AddHash(hash);
      all.AddHash(hash);
    }
    own.AddUnsampled(unsampled);
    all.AddUnsampled(unsampled);
  }
  if (trace_ == nullptr || !status_.ok()) return;
  keys_.clear();
  for (const RowKey& key : keys) keys_.push_back(key.key);
  status_ = TraceStatus(trace_->Add(table, keys_, lookups));
}

absl::Status AccessRecorder::EndStep(int64_t step, int64_t samples) {
  if (trace_ == nullptr) return absl::OkStatus();
  if (status_.ok()) {
    status_ =
        TraceStatus(trace_->EndStep(static_cast<uint64_t>(step), static_cast<uint32_t>(samples)));
  }
  // What is in the file so far is a trace that can be read.
  if (!status_.ok()) trace_.reset();
  return status_;
}

absl::Status AccessRecorder::Close() {
  if (trace_ == nullptr) return status_;
  const absl::Status closed = TraceStatus(trace_->Close());
  if (status_.ok()) status_ = closed;
  trace_.reset();
  return status_;
}

absl::StatusOr<std::optional<MissRatioCurves>> AccessRecorder::Curves(
    const SumOverRanks& sum) const {
  std::optional<MissRatioCurves> out;
  if (curves_.empty()) return out;
  std::vector<CurveSums> sums;
  for (const SampledLruCurve& curve : curves_) sums.push_back(SumsOf(curve));
  if (sum != nullptr) {
    HOTROW_RETURN_IF_ERROR(sum({reinterpret_cast<double*>(sums.data()),
                                sums.size() * sizeof(CurveSums) / sizeof(double)}));
  }
  out.emplace();
  for (size_t table = 0; table < options_.tables.size(); ++table) {
    out->tables.push_back(CurveOf(sums[table], options_.tables[table]));
  }
  out->all = CurveOf(sums.back(), "");
  return out;
}

}  // namespace hotrow
