#include <nlohmann/json.hpp>
#include <string>

#include "capi/tables_impl.h"
#include "embedding/stats.h"
#include "embedding/stats_fields.h"
#include "ops/jagged.h"

namespace hotrow::capi {
namespace {

using Json = nlohmann::ordered_json;

// Paths need not be UTF-8.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

const TableConfig& TableOf(const EmbeddingCollectionOptions& options, const std::string& feature) {
  for (const TableConfig& table : options.tables) {
    for (const std::string& name : table.feature_names) {
      if (name == feature) return table;
    }
  }
  return options.tables.front();  // a collection has no feature without a table
}

template <typename Struct>
void AddCounts(const Struct& counts, std::span<const StatsField<Struct>> fields, Json* out) {
  for (const StatsField<Struct>& field : fields) (*out)[field.name] = counts.*field.count;
}

}  // namespace

std::string Describe(const Tables& tables) {
  Json features = Json::array();
  int64_t column = 0;
  int64_t unpooled = 0;
  for (const std::string& name : tables.collection->feature_names()) {
    const TableConfig& table = TableOf(tables.options, name);
    const bool pooled = table.pooling != Pooling::kNone;
    features.push_back({{"name", name},
                        {"table", table.name},
                        {"dim", table.embedding_dim},
                        {"pooling", std::string(WordOf(kPoolingWords, table.pooling))},
                        {"column", pooled ? column : unpooled}});
    pooled ? column += table.embedding_dim : ++unpooled;
  }
  return Dump({{"features", std::move(features)},
               {"pooled_dim", tables.collection->pooled_dim()},
               {"start", tables.start_dir},
               {"step", tables.options.start.steps}});
}

std::string StatsText(const EmbeddingStats& stats) {
  Json out = Json::object();
  AddCounts(stats, EmbeddingStatsFields(), &out);
  Json tiers = Json::array();
  for (const TierStats& tier : stats.tiers) {
    Json entry = {{"name", tier.name}};
    AddCounts(tier, TierStatsFields(), &entry);
    entry["write_amplification"] = tier.write_amplification;
    tiers.push_back(std::move(entry));
  }
  out["tiers"] = std::move(tiers);
  Json tables = Json::array();
  for (const TableStats& table : stats.tables) {
    Json entry = {{"name", table.name}};
    AddCounts(table, TableStatsFields(), &entry);
    tables.push_back(std::move(entry));
  }
  out["tables"] = std::move(tables);
  return Dump(out);
}

std::string DigestText(const CollectionDigest& digest) {
  Json tables = Json::array();
  for (const TableDigest& table : digest.tables) {
    tables.push_back({{"name", table.name},
                      {"rows", table.rows},
                      {"dim", table.dim},
                      {"row_bytes", table.row_bytes},
                      {"hash", table.hash.ToHex()}});
  }
  return Dump({{"hash", digest.hash.ToHex()}, {"tables", std::move(tables)}});
}

uint64_t DigestTextBytesMax(const Tables& tables) {
  CollectionDigest longest;
  for (const TableConfig& table : tables.options.tables) {
    longest.tables.push_back(
        {.name = table.name, .rows = INT64_MAX, .dim = INT32_MAX, .row_bytes = INT64_MAX});
  }
  return DigestText(longest).size() + 1;
}

}  // namespace hotrow::capi
