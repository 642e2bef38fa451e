#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/enum_words.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "cache/cache_policy.h"
#include "capi/call_impl.h"
#include "capi/options_impl.h"
#include "capi/views_impl.h"
#include "embedding/storage_fields.h"
#include "ops/jagged.h"
#include "ops/rows/row_codec.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer.h"
#include "store/store_facts.h"

namespace hotrow::capi {
namespace {

constexpr EnumWord<InitializerKind> kInitializerWords[] = {{"zeros", InitializerKind::kZeros},
                                                           {"constant", InitializerKind::kConstant},
                                                           {"uniform", InitializerKind::kUniform},
                                                           {"normal", InitializerKind::kNormal}};

// Numbers that an older caller cannot know are those of the C++ options.
hotrow_optimizer DefaultOptimizer() {
  const SparseOptimizerConfig config;
  hotrow_optimizer out = {};
  out.struct_size = sizeof(out);
  out.learning_rate = config.learning_rate;
  out.eps = config.eps;
  out.beta1 = config.beta1;
  out.beta2 = config.beta2;
  out.weight_decay = config.weight_decay;
  out.initial_accumulator = config.initial_accumulator;
  out.lr_power = config.lr_power;
  out.l1 = config.l1;
  out.l2 = config.l2;
  out.ftrl_beta = config.ftrl_beta;
  return out;
}

hotrow_table DefaultTable() {
  hotrow_table out = {};
  out.struct_size = sizeof(out);
  out.initializer_value = Initializer().value;
  return out;
}

hotrow_collection_options DefaultOptions() {
  hotrow_collection_options out = {};
  out.struct_size = sizeof(out);
  out.evaluation_staging_bytes = EmbeddingCollectionOptions().evaluation_staging_bytes;
  out.checkpoint_keep = 2;
  out.row_limit_steps = EmbeddingCollectionOptions().row_limit_steps;
  return out;
}

absl::Status TakeOptimizer(const hotrow_optimizer* in, SparseOptimizerConfig* out) {
  if (in == nullptr) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const hotrow_optimizer optimizer,
                          TakeStruct(in, DefaultOptimizer(), "optimizer"));
  HOTROW_RETURN_IF_ERROR(
      TakeParsed(ParseSparseOptimizer, optimizer.kind, "optimizer.kind", &out->kind));
  out->learning_rate = optimizer.learning_rate;
  out->eps = optimizer.eps;
  out->beta1 = optimizer.beta1;
  out->beta2 = optimizer.beta2;
  out->weight_decay = optimizer.weight_decay;
  out->initial_accumulator = optimizer.initial_accumulator;
  out->lr_power = optimizer.lr_power;
  out->l1 = optimizer.l1;
  out->l2 = optimizer.l2;
  out->ftrl_beta = optimizer.ftrl_beta;
  return TakeWord(kWeightDecayModeWords, optimizer.weight_decay_mode, "optimizer.weight_decay_mode",
                  &out->weight_decay_mode);
}

absl::StatusOr<TableConfig> TakeTable(const hotrow_table& table) {
  TableConfig out;
  HOTROW_RETURN_IF_ERROR(NotNull(table.name, "name"));
  out.name = table.name;
  if (table.embedding_dim < 1 || table.embedding_dim > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("embedding_dim: is ", table.embedding_dim, ", must lie in [1, 2^31)"));
  }
  out.embedding_dim = static_cast<int32_t>(table.embedding_dim);
  HOTROW_RETURN_IF_ERROR(
      TakeTexts(table.feature_names, table.num_features, "feature_names", &out.feature_names));
  HOTROW_RETURN_IF_ERROR(TakeWord(kPoolingWords, table.pooling, "pooling", &out.pooling));
  HOTROW_RETURN_IF_ERROR(TakeParsed(ParseWeightsPrecision, table.weights_precision,
                                    "weights_precision", &out.weights_precision));
  HOTROW_RETURN_IF_ERROR(TakeOptimizer(table.optimizer, &out.optimizer));
  HOTROW_RETURN_IF_ERROR(
      TakeWord(kInitializerWords, table.initializer, "initializer", &out.initializer.kind));
  out.initializer.value = table.initializer_value;
  out.max_row_gradient_norm = table.max_row_gradient_norm;
  HOTROW_RETURN_IF_ERROR(TakeTexts(table.read_only_features, table.num_read_only_features,
                                   "read_only_features", &out.read_only_features));
  HOTROW_RETURN_IF_ERROR(TakeParsed(ParseAdmission, table.admission, "admission", &out.admission));
  out.ttl_steps = table.ttl_steps;
  out.min_rows = table.min_rows;
  out.max_rows = table.max_rows;
  HOTROW_RETURN_IF_ERROR(TakeParsed(ParseScoreRule, table.score, "score", &out.score));
  HOTROW_RETURN_IF_ERROR(
      TakeParsed(ParseRowOrder, table.max_rows_by, "max_rows_by", &out.max_rows_by));
  HOTROW_RETURN_IF_ERROR(
      TakeWord(kServingRowsWords, table.serve_rows, "serve_rows", &out.serve_rows));
  out.num_embeddings = table.num_embeddings;
  out.max_hotness = table.max_hotness;
  return out;
}

absl::Status TakeTables(const hotrow_collection_options& options, std::vector<TableConfig>* out) {
  HOTROW_RETURN_IF_ERROR(NotNull(options.tables, "tables"));
  HOTROW_RETURN_IF_ERROR(CheckCount(options.num_tables, "num_tables", kListMax));
  const uint64_t struct_size = options.tables->struct_size;
  for (int64_t i = 0; i < options.num_tables; ++i) {
    const auto* const bytes =
        reinterpret_cast<const unsigned char*>(options.tables) + struct_size * i;  // <= 2^32
    const std::string place = absl::StrCat("tables[", i, "]");
    HOTROW_ASSIGN_OR_RETURN(const hotrow_table table,
                            TakeStruct<hotrow_table>(static_cast<const void*>(bytes), struct_size,
                                                     DefaultTable(), place));
    absl::StatusOr<TableConfig> config = TakeTable(table);
    HOTROW_RETURN_IF_ERROR(At(place, config.status()));
    out->push_back(*std::move(config));
  }
  return absl::OkStatus();
}

absl::Status TakeStore(const hotrow_collection_options& options, Storage* out) {
  StorageFields fields = {.dir = std::string(TextOf(options.store_path)),
                          .memory_bytes = options.store_memory_bytes,
                          .disk_bytes = options.store_disk_bytes};
  HOTROW_RETURN_IF_ERROR(TakeParsed(ParseStoreKind, options.store, "store", &fields.kind));
  if (!FactsOf(fields.kind).on_disk && fields.disk_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("store_disk_bytes: is ", fields.disk_bytes,
                     ", but the store is in memory; leave it 0, or choose the store \"ssd\""));
  }
  *out = MakeStorage(fields);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EmbeddingCollectionOptions> TakeOptions(const hotrow_collection_options& in) {
  HOTROW_ASSIGN_OR_RETURN(const hotrow_collection_options options,
                          TakeStruct(&in, DefaultOptions(), "options"));
  EmbeddingCollectionOptions out;
  HOTROW_RETURN_IF_ERROR(TakeTables(options, &out.tables));
  HOTROW_RETURN_IF_ERROR(TakeTexts(options.feature_order, options.num_feature_order,
                                   "feature_order", &out.feature_order));
  out.seed = options.seed;
  out.max_batch_size = options.max_batch_size;
  out.max_gradient_norm = options.max_gradient_norm;
  HOTROW_RETURN_IF_ERROR(TakeStore(options, &out.store));
  out.cache.bytes = options.cache_bytes;
  out.cache.device_bytes = options.cache_device_bytes;
  out.cache.device_index_bytes = options.cache_device_index_bytes;
  HOTROW_RETURN_IF_ERROR(
      TakeParsed(ParseCachePolicy, options.cache_policy, "cache_policy", &out.cache.policy));
  if (options.prefetch_depth < 0 || options.prefetch_depth > 32) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefetch_depth: is ", options.prefetch_depth, ", must lie in [0, 32]"));
  }
  out.prefetch_depth = static_cast<int32_t>(options.prefetch_depth);
  out.evaluation_staging_bytes = options.evaluation_staging_bytes;
  HOTROW_RETURN_IF_ERROR(TakeParsed(ParseExchangeType, options.exchange_forward, "exchange_forward",
                                    &out.ranks.forward));
  HOTROW_RETURN_IF_ERROR(TakeParsed(ParseExchangeType, options.exchange_backward,
                                    "exchange_backward", &out.ranks.backward));
  HOTROW_RETURN_IF_ERROR(TakeParsed(ParseExchangeRounding, options.exchange_rounding,
                                    "exchange_rounding", &out.ranks.rounding));
  out.ranks.feedback_bytes = options.exchange_feedback_bytes;
  out.admission_bytes = options.admission_bytes;
  out.row_limit_steps = options.row_limit_steps;
  return out;
}

}  // namespace hotrow::capi

extern "C" {

void hotrow_optimizer_default(hotrow_optimizer* optimizer, uint64_t struct_size) {
  hotrow::capi::WriteDefault(hotrow::capi::DefaultOptimizer(), optimizer, struct_size);
}

void hotrow_table_default(hotrow_table* table, uint64_t struct_size) {
  hotrow::capi::WriteDefault(hotrow::capi::DefaultTable(), table, struct_size);
}

void hotrow_collection_options_default(hotrow_collection_options* options, uint64_t struct_size) {
  hotrow::capi::WriteDefault(hotrow::capi::DefaultOptions(), options, struct_size);
}

}  // extern "C"
