#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/flag_set.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/options_impl.h"
#include "capi/views_impl.h"
#include "embedding/option_table.h"
#include "embedding/storage_fields.h"
#include "store/store_facts.h"

namespace hotrow::capi {
namespace {

// What hotrow.h calls an option, by its row in embedding/option_table.cc.
std::string NameOfOption(std::string_view path) {
  if (path == "ranks.communicator") return "communicator";
  if (path == "initializer.kind") return "initializer";
  constexpr std::pair<std::string_view, const char*> kBegins[] = {{"cache.", "cache_"},
                                                                  {"ranks.", "exchange_"},
                                                                  {"store.", "store_"},
                                                                  {"initializer.", "initializer_"}};
  for (const auto& [ours, callers] : kBegins) {
    if (path.substr(0, ours.size()) != ours) continue;
    return absl::StrCat(callers, std::string(path.substr(ours.size())));
  }
  return std::string(path);
}

template <typename Options>
FlagField Bind(std::string_view name, Options* options) {
  for (const OptionRow<Options>& row : OptionRows<Options>()) {
    if (NameOfOption(row.name) == name) return row.bind(*options);
  }
  HOTROW_CHECK(false);
  return {};
}

// Calls visit("cache_bytes", o.cache_bytes) and so on; names: "o.cache_bytes, o.seed".
template <typename Visit, typename... Fields>
void ForEach(std::string_view names, const Visit& visit, Fields&... fields) {
  const auto next = [&names] {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(name.size() + 2, names.size()));
    return std::string(name.substr(name.find('.') + 1));
  };
  (visit(next(), fields), ...);
}
#define HOTROW_FOR_EACH(visit, ...) ForEach(#__VA_ARGS__, visit, __VA_ARGS__)

// The numbers and words of each struct, each of which sets the option of its name.
template <typename Visit>
void EachField(hotrow_optimizer& o, const Visit& visit) {
  HOTROW_FOR_EACH(visit, o.kind, o.learning_rate, o.eps, o.beta1, o.beta2, o.weight_decay,
                  o.initial_accumulator, o.lr_power, o.l1, o.l2, o.ftrl_beta, o.weight_decay_mode);
}
template <typename Visit>
void EachField(hotrow_table& t, const Visit& visit) {
  HOTROW_FOR_EACH(visit, t.embedding_dim, t.pooling, t.weights_precision, t.initializer,
                  t.initializer_value, t.max_row_gradient_norm, t.num_embeddings, t.max_hotness,
                  t.admission, t.ttl_steps, t.min_rows, t.max_rows, t.score, t.max_rows_by,
                  t.serve_rows);
}
template <typename Visit>
void EachField(hotrow_collection_options& o, const Visit& visit) {
  HOTROW_FOR_EACH(visit, o.seed, o.max_batch_size, o.max_gradient_norm, o.cache_bytes,
                  o.cache_device_bytes, o.cache_device_index_bytes, o.cache_policy,
                  o.prefetch_depth, o.evaluation_staging_bytes, o.exchange_forward,
                  o.exchange_backward, o.exchange_rounding, o.exchange_feedback_bytes,
                  o.admission_bytes, o.row_limit_steps);
}

// Numbers that an older caller cannot know are those of the C++ options; words are NULL.
template <typename C, typename Options>
C DefaultOf(Options options, const char* place = "") {
  C out = {};
  out.struct_size = sizeof(out);
  EachField(out, [&]<typename T>(const std::string& field, T& number) {
    const FlagValue value = Bind(place + field, &options).get();
    if constexpr (std::is_same_v<T, float>) number = static_cast<float>(std::get<double>(value));
    if constexpr (std::is_same_v<T, int64_t>) number = std::get<int64_t>(value);
  });
  return out;
}

hotrow_optimizer DefaultOptimizer() {
  return DefaultOf<hotrow_optimizer>(TableConfig(), "optimizer.");
}
hotrow_table DefaultTable() { return DefaultOf<hotrow_table>(TableConfig()); }
hotrow_collection_options DefaultOptions() {
  auto out = DefaultOf<hotrow_collection_options>(EmbeddingCollectionOptions());
  out.checkpoint_keep = 2;
  return out;
}

// Sets what is not NULL. Every number passes through its text: what does not fit is refused there.
template <typename C, typename Options>
absl::Status TakeFields(C in, Options* out, const char* place = "") {
  absl::Status status;
  EachField(in, [&]<typename T>(const std::string& field, T& value) {
    const std::string name = place + field;
    const auto set = [&](std::string_view text) {
      if (status.ok()) status = Bind(name, out).SetAs(name, text);
    };
    if constexpr (std::is_same_v<T, const char*>) {
      if (value != nullptr) set(value);
    } else if constexpr (std::is_same_v<T, float>) {
      set(FlagText(RealFlag(&value, 0, 0).get()));
    } else {
      set(absl::StrCat(static_cast<int64_t>(value)));  // of a seed its bits
    }
  });
  return status;
}

absl::StatusOr<TableConfig> TakeTable(const hotrow_table& table) {
  TableConfig out;
  HOTROW_RETURN_IF_ERROR(NotNull(table.name, "name"));
  out.name = table.name;
  HOTROW_RETURN_IF_ERROR(
      TakeTexts(table.feature_names, table.num_features, "feature_names", &out.feature_names));
  HOTROW_RETURN_IF_ERROR(TakeTexts(table.read_only_features, table.num_read_only_features,
                                   "read_only_features", &out.read_only_features));
  HOTROW_RETURN_IF_ERROR(TakeFields(table, &out));
  if (table.optimizer == nullptr) return out;
  HOTROW_ASSIGN_OR_RETURN(const hotrow_optimizer optimizer,
                          TakeStruct(table.optimizer, DefaultOptimizer(), "optimizer"));
  HOTROW_RETURN_IF_ERROR(TakeFields(optimizer, &out, "optimizer."));
  return out;
}

absl::Status TakeTables(const hotrow_collection_options& options, std::vector<TableConfig>* out) {
  HOTROW_RETURN_IF_ERROR(NotNull(options.tables, "tables"));
  HOTROW_RETURN_IF_ERROR(CheckCount(options.num_tables, "num_tables", kListMax));
  const uint64_t struct_size = options.tables->struct_size;
  const hotrow_table defaults = DefaultTable();
  for (int64_t i = 0; i < options.num_tables; ++i) {
    const auto* const bytes =
        reinterpret_cast<const unsigned char*>(options.tables) + struct_size * i;  // <= 2^32
    const std::string place = absl::StrCat("tables[", i, "]");
    HOTROW_ASSIGN_OR_RETURN(
        const hotrow_table table,
        TakeStruct<hotrow_table>(static_cast<const void*>(bytes), struct_size, defaults, place));
    absl::StatusOr<TableConfig> config = TakeTable(table);
    HOTROW_RETURN_IF_ERROR(At(place, config.status()));
    out->push_back(*std::move(config));
  }
  return absl::OkStatus();
}

absl::Status TakeStore(const hotrow_collection_options& options, Storage* out) {
  StorageFields fields = {.memory_bytes = options.store_memory_bytes,
                          .disk_bytes = options.store_disk_bytes};
  HOTROW_RETURN_IF_ERROR(TakeParsed(ParseStoreKind, options.store, "store", &fields.kind));
  if (const absl::Status set = SetDirs(TextOf(options.store_path), &fields); !set.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("store_path: ", std::string(set.message())));
  }
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
  HOTROW_RETURN_IF_ERROR(TakeStore(options, &out.store));
  HOTROW_RETURN_IF_ERROR(TakeFields(options, &out));
  out.name_option = NameOfOption;
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
