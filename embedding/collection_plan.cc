#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "cache/address_index.h"
#include "comm/communicator.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/serving/row_coding.h"
#include "embedding/storage_fields.h"
#include "embedding/tiers/tiered_table.h"

namespace hotrow {
namespace {

// How many of n distinct rows a rank has to keep or serve at most. Rows fall on ranks by their
// hash, so the number is near n / N with a standard deviation below sqrt(n / N); six of them are
// passed once in 10^9 times. A step that is beyond it may still find no room: its Lookup says so.
int64_t ShareOfRank(int64_t n, int32_t world_size) {
  if (world_size == 1) return n;
  const double mean = static_cast<double>(n) / world_size;
  return std::min(n, static_cast<int64_t>(std::ceil(mean + 6 * std::sqrt(mean) + 8)));
}

bool IsReadOnly(const TableConfig& table, const std::string& feature) {
  const std::vector<std::string>& names = table.read_only_features;
  return std::find(names.begin(), names.end(), feature) != names.end();
}

}  // namespace

namespace internal {

int32_t WorldSize(const EmbeddingCollectionOptions& options) {
  return options.ranks.communicator == nullptr ? 1 : options.ranks.communicator->world_size();
}

CachePlace PlaceOfCaches(const EmbeddingCollectionOptions& options, Device device) {
  return {device, device != Device::kCpu || options.cache.device_bytes > 0};
}

int64_t CacheBudget(const EmbeddingCollectionOptions& options, CachePlace place) {
  return place.staged ? options.cache.device_bytes : options.cache.bytes;
}

std::string CacheBudgetName(const EmbeddingCollectionOptions& options, CachePlace place) {
  return options.NameOf(place.staged ? "cache.device_bytes" : "cache.bytes");
}

Plan MakePlan(const EmbeddingCollectionOptions& options, CachePlace place) {
  Plan plan;
  for (size_t i = 0; i < options.tables.size(); ++i) {
    const TableConfig& config = options.tables[i];
    PlannedTable table;
    table.config = static_cast<int32_t>(i);
    table.layout = RowLayout::For(config.embedding_dim, config.optimizer.kind,
                                  config.weights_precision, config.score != ScoreRule::kNone);
    table.score = config.score;
    table.serve_rows = ServingForm(config.serve_rows, table.layout);
    table.read_precision = table.serve_rows == ServingRows::kAsTrained ? config.weights_precision
                                                                       : WeightsPrecision::kFp32;
    plan.scores = plan.scores || config.score != ScoreRule::kNone;
    plan.rounds = plan.rounds || config.weights_precision != WeightsPrecision::kFp32;
    table.num_features = static_cast<int64_t>(config.feature_names.size());
    table.frozen = std::all_of(config.feature_names.begin(), config.feature_names.end(),
                               [&](const std::string& name) { return IsReadOnly(config, name); });
    if (config.max_hotness > 0) {
      table.max_unique = options.max_batch_size * config.max_hotness * table.num_features;
      if (config.num_embeddings > 0)
        table.max_unique = std::min(table.max_unique, config.num_embeddings);
      table.max_unique = ShareOfRank(table.max_unique, WorldSize(options));
    }
    plan.tables.push_back(table);
  }
  std::stable_sort(plan.tables.begin(), plan.tables.end(),
                   [](const PlannedTable& a, const PlannedTable& b) {
                     return a.layout.row_bytes < b.layout.row_bytes;
                   });

  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlannedTable& table = plan.tables[t];
    if (plan.classes.empty() || plan.classes.back().row_bytes != table.layout.row_bytes) {
      WidthClass width;
      width.first_table = static_cast<int32_t>(t);
      width.row_bytes = table.layout.row_bytes;
      plan.classes.push_back(width);
    }
    plan.classes.back().last_table = static_cast<int32_t>(t) + 1;
  }
  for (WidthClass& width : plan.classes) {
    bool known = true;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      width.max_unique += plan.tables[t].max_unique;
      known = known && plan.tables[t].max_unique > 0;
    }
    if (!known) width.max_unique = 0;
    plan.min_cache_bytes +=
        TieredTable::MinCacheBytes(std::max<int64_t>(width.max_unique, 1), width.row_bytes, place);
  }

  std::vector<int32_t> position_of(options.tables.size());
  for (size_t t = 0; t < plan.tables.size(); ++t)
    position_of[plan.tables[t].config] = static_cast<int32_t>(t);
  std::map<std::string, PlannedFeature> by_name;
  std::vector<std::string> order = options.feature_order;
  for (size_t i = 0; i < options.tables.size(); ++i) {
    const TableConfig& config = options.tables[i];
    for (const std::string& name : config.feature_names) {
      PlannedFeature feature;
      feature.name = name;
      feature.table = position_of[i];
      feature.dim = config.embedding_dim;
      feature.pooling = config.pooling;
      feature.num_embeddings = config.num_embeddings;
      feature.read_only = IsReadOnly(config, name);
      plan.read_only = plan.read_only || feature.read_only;
      by_name[name] = feature;
      if (options.feature_order.empty()) order.push_back(name);
    }
  }
  for (const std::string& name : order) {
    PlannedFeature feature = by_name[name];
    if (feature.pooling == Pooling::kNone) {
      feature.unpooled_index = plan.num_unpooled++;
    } else {
      feature.pooled_offset = plan.pooled_dim;
      plan.pooled_dim += feature.dim;
    }
    plan.features.push_back(std::move(feature));
  }
  return plan;
}

std::vector<GradientResiduals::Table> ResidualTables(const EmbeddingCollectionOptions& options) {
  std::vector<GradientResiduals::Table> tables;
  for (const TableConfig& table : options.tables) {
    tables.push_back({static_cast<uint32_t>(tables.size()), table.embedding_dim});
  }
  return tables;
}

absl::Status CheckDevice(const EmbeddingCollectionOptions& options, const ExecContext& ctx) {
  const bool staged = PlaceOfCaches(options, ctx.device).staged;
  for (const TableConfig& table : options.tables) {
    if (table.read_only_features.empty()) continue;
    const auto error = [&table](const char* what) {
      return absl::UnimplementedError(absl::StrCat("table \"", table.name, "\": ", what));
    };
    if (staged) {
      return error("read_only_features work without a device cache only so far");
    }
    const std::set<std::string> names(table.read_only_features.begin(),
                                      table.read_only_features.end());
    if (WorldSize(options) > 1 && names.size() < table.feature_names.size()) {
      return error("with several ranks read_only_features must be all of its features so far");
    }
  }
  if (!staged) return absl::OkStatus();
  // Says in one line when there is no GPU.
  HOTROW_RETURN_IF_ERROR(DeviceStream::Create(ctx.device).status());
  if (ctx.device != Device::kCpu && ctx.stream == nullptr) {
    return absl::InvalidArgumentError(
        "EmbeddingCollection on a GPU: ctx.stream is null; it needs a stream of the caller's");
  }
  if (options.cache.device_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.NameOf("cache.device_bytes"),
                     " is 0: on a GPU rows are trained in its memory, and this is the budget of "
                     "that"));
  }
  if (WorldSize(options) > 1 && options.ranks.feedback_bytes > 0) {
    return absl::UnimplementedError(absl::StrCat(
        options.NameOf("ranks.feedback_bytes"), " is ", options.ranks.feedback_bytes,
        ": what gradients lose on their way is kept in host memory, out of reach of a device cache "
        "so far; set it to 0, or ",
        options.NameOf("cache.device_bytes"), " 0 on the CPU"));
  }
  return absl::OkStatus();
}

enum class Weight { kRows, kBytesOfRows };

// Shares `bytes` among the width classes in proportion to what they could hold.
static std::vector<int64_t> Share(const EmbeddingCollectionOptions& options, const Plan& plan,
                                  int64_t bytes, Weight weight = Weight::kBytesOfRows) {
  // A table of unknown size is taken to want some hundred batches' worth of rows.
  constexpr int64_t kAssumedBatches = 100;
  double total_weight = 0;
  std::vector<double> weights;
  for (const WidthClass& width : plan.classes) {
    double rows = 0;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      const TableConfig& config = options.tables[plan.tables[t].config];
      rows += config.num_embeddings > 0
                  ? static_cast<double>(config.num_embeddings)
                  : static_cast<double>(kAssumedBatches * options.max_batch_size) *
                        static_cast<double>(config.feature_names.size());
    }
    weights.push_back(weight == Weight::kRows ? rows : rows * static_cast<double>(width.row_bytes));
    total_weight += weights.back();
  }
  std::vector<int64_t> shares;
  for (const double part : weights) {
    // The nearest double of a number of bytes may be larger than it, and than any int64.
    const double share = static_cast<double>(bytes) * (part / total_weight);
    shares.push_back(share < static_cast<double>(bytes) ? static_cast<int64_t>(share) : bytes);
  }
  return shares;
}

int64_t RowsOfRank(const EmbeddingCollectionOptions& options, int32_t config) {
  return ShareOfRank(options.tables[config].num_embeddings, WorldSize(options));
}

void SplitCacheBytes(const EmbeddingCollectionOptions& options, CachePlace place, Plan* plan) {
  int64_t rest = CacheBudget(options, place);
  for (WidthClass& width : plan->classes) {
    width.cache_bytes =
        TieredTable::MinCacheBytes(std::max<int64_t>(width.max_unique, 1), width.row_bytes, place);
    rest -= width.cache_bytes;
  }
  const std::vector<int64_t> shares = Share(options, *plan, rest);
  for (size_t c = 0; c < plan->classes.size(); ++c) {
    WidthClass& width = plan->classes[c];
    width.cache_bytes += shares[c];
    // No more than all rows of the class, where that is known: empty ways would only be aged and
    // paged in.
    int64_t all_rows = 0;
    bool known = true;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      const int64_t rows = RowsOfRank(options, plan->tables[t].config);
      all_rows += rows;
      known = known && rows > 0;
    }
    if (known) {
      width.cache_bytes =
          std::min(width.cache_bytes, TieredTable::MinCacheBytes(all_rows, width.row_bytes, place));
    }
  }
}

absl::Status SplitIndexBytes(const EmbeddingCollectionOptions& options, Device device, Plan* plan) {
  // A third of the ways, where all rows of a class are known: no key is left out for want of room.
  constexpr int64_t kRowBytesMax = 64;
  const int64_t budget = options.cache.device_index_bytes;
  if (budget == 0) return absl::OkStatus();
  const int64_t least = AddressIndex::MinBudgetBytes(device);
  const int64_t rest = budget - least * std::ssize(plan->classes);
  if (rest < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options.NameOf("cache.device_index_bytes"), ": ", budget, " bytes for rows of ",
        plan->classes.size(), " widths; the least is ", budget - rest,
        ", and 32 a row find nearly all; raise it, or set "
        "it to 0 for none"));
  }
  const std::vector<int64_t> shares = Share(options, *plan, rest, Weight::kRows);
  for (size_t c = 0; c < shares.size(); ++c) {
    WidthClass& width = plan->classes[c];
    width.index_bytes = least + shares[c];
    int64_t rows = 0;
    bool known = true;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      const int64_t of_table = RowsOfRank(options, plan->tables[t].config);
      rows += of_table;
      known = known && of_table > 0;
    }
    if (known && rows < width.index_bytes / kRowBytesMax) {
      width.index_bytes = std::min(width.index_bytes, least + rows * kRowBytesMax);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CachedStoreWidth>> SplitHostCacheBytes(
    const EmbeddingCollectionOptions& options, const Plan& plan) {
  std::vector<CachedStoreWidth> widths;
  int64_t rest = options.cache.bytes;
  for (const WidthClass& width : plan.classes) {
    widths.push_back({width.row_bytes, CachedStore::MinCacheBytes(width.row_bytes)});
    rest -= widths.back().cache_bytes;
  }
  if (rest < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options.NameOf("cache.bytes"), ": the host cache between the device's and a disk has ",
        options.cache.bytes, " bytes, the least is ", options.cache.bytes - rest,
        "; raise it, or set it to 0 for none"));
  }
  const std::vector<int64_t> shares = Share(options, plan, rest);
  for (size_t c = 0; c < widths.size(); ++c) widths[c].cache_bytes += shares[c];
  return widths;
}

}  // namespace internal
}  // namespace hotrow
