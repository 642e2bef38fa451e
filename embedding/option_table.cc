#include "embedding/option_table.h"

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/enum_words.h"
#include "cache/cache_policy.h"
#include "embedding/storage_fields.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

using O = EmbeddingCollectionOptions;
using T = TableConfig;

constexpr OptionRole kAlike = OptionRole::kAlike;
constexpr OptionRole kInPresence = OptionRole::kAlikeInPresence;
constexpr OptionRole kOwn = OptionRole::kOwn;

constexpr EnumWord<InitializerKind> kInitializerWords[] = {{"zeros", InitializerKind::kZeros},
                                                           {"constant", InitializerKind::kConstant},
                                                           {"uniform", InitializerKind::kUniform},
                                                           {"normal", InitializerKind::kNormal}};

template <std::signed_integral T>
FlagField Bind(T* f, int64_t min = 0, int64_t max = std::numeric_limits<T>::max()) {
  return IntFlag(f, min, max);
}
// As a signed number of its bits.
FlagField Bind(uint64_t* f) { return Bind(reinterpret_cast<int64_t*>(f), INT64_MIN); }
FlagField Bind(float* f, double min = 0, double max = 3.4e38) { return RealFlag(f, min, max); }
FlagField Bind(Admission* f) { return WordFlag("RULE", f, ParseAdmission, AdmissionText); }
FlagField Bind(CachePolicy* f) { return WordFlag("WORD", f, ParseCachePolicy, CachePolicyName); }
FlagField Bind(ExchangeType* f) { return WordFlag("WORD", f, ParseExchangeType, ExchangeTypeName); }
FlagField Bind(ExchangeRounding* f) {
  return WordFlag("WORD", f, ParseExchangeRounding, ExchangeRoundingName);
}
FlagField Bind(InitializerKind* f) { return WordFlag("WORD", f, AllWords(kInitializerWords)); }
FlagField Bind(Pooling* f) { return WordFlag("WORD", f, AllWords(kPoolingWords)); }
FlagField Bind(RowOrder* f) { return WordFlag("WORD", f, ParseRowOrder, RowOrderName); }
FlagField Bind(ScoreRule* f) { return WordFlag("WORD", f, ParseScoreRule, ScoreRuleName); }
FlagField Bind(ServingRows* f) { return WordFlag("WORD", f, AllWords(kServingRowsWords)); }
FlagField Bind(SparseOptimizerKind* f) {
  return WordFlag("WORD", f, ParseSparseOptimizer, SparseOptimizerName);
}
FlagField Bind(WeightDecayMode* f) { return WordFlag("WORD", f, AllWords(kWeightDecayModeWords)); }
FlagField Bind(WeightsPrecision* f) {
  return WordFlag("WORD", f, ParseWeightsPrecision, WeightsPrecisionName);
}

#define HOTROW_OPTION(role, path, ...)                                            \
  {                                                                               \
    role, #path, [](auto& o) { return Bind(&o.path __VA_OPT__(, ) __VA_ARGS__); } \
  }

const OptionRow<O> kCollectionRows[] = {
    HOTROW_OPTION(kAlike, seed),
    HOTROW_OPTION(kAlike, max_batch_size, 1, INT32_MAX),
    HOTROW_OPTION(kAlike, max_gradient_norm),
    // Which tiers there are, not how large: GlobalStats adds up tier by tier.
    HOTROW_OPTION(kInPresence, cache.bytes),
    HOTROW_OPTION(kInPresence, cache.device_bytes),
    HOTROW_OPTION(kOwn, cache.device_index_bytes),
    HOTROW_OPTION(kOwn, cache.policy),
    HOTROW_OPTION(kOwn, admission_bytes),
    HOTROW_OPTION(kAlike, row_limit_steps, 1, 1 << 20),
    HOTROW_OPTION(kOwn, prefetch_depth, 0, 32),
    HOTROW_OPTION(kAlike, evaluation_staging_bytes, 1),
    HOTROW_OPTION(kAlike, ranks.forward),
    HOTROW_OPTION(kAlike, ranks.backward),
    HOTROW_OPTION(kAlike, ranks.rounding),
    HOTROW_OPTION(kAlike, ranks.feedback_bytes),
    HOTROW_OPTION(kAlike, start.steps, 0, UINT32_MAX),
    HOTROW_OPTION(kAlike, start.settled_steps, 0, UINT32_MAX),
};

const OptionRow<T> kTableRows[] = {
    HOTROW_OPTION(kAlike, embedding_dim, 1),
    HOTROW_OPTION(kAlike, weights_precision),
    HOTROW_OPTION(kAlike, pooling),
    HOTROW_OPTION(kAlike, num_embeddings),
    HOTROW_OPTION(kAlike, max_hotness),
    HOTROW_OPTION(kAlike, optimizer.kind),
    HOTROW_OPTION(kAlike, optimizer.learning_rate),
    HOTROW_OPTION(kAlike, optimizer.eps),
    HOTROW_OPTION(kAlike, optimizer.beta1, 0, 1),
    HOTROW_OPTION(kAlike, optimizer.beta2, 0, 1),
    HOTROW_OPTION(kAlike, optimizer.weight_decay),
    HOTROW_OPTION(kAlike, optimizer.weight_decay_mode),
    HOTROW_OPTION(kAlike, optimizer.initial_accumulator),
    HOTROW_OPTION(kAlike, optimizer.lr_power, -3.4e38, 0),
    HOTROW_OPTION(kAlike, optimizer.l1),
    HOTROW_OPTION(kAlike, optimizer.l2),
    HOTROW_OPTION(kAlike, optimizer.ftrl_beta),
    HOTROW_OPTION(kAlike, initializer.kind),
    HOTROW_OPTION(kAlike, initializer.value, -3.4e38),
    HOTROW_OPTION(kAlike, max_row_gradient_norm),
    HOTROW_OPTION(kAlike, admission),
    HOTROW_OPTION(kAlike, ttl_steps, 0, UINT32_MAX),
    HOTROW_OPTION(kAlike, min_rows),
    HOTROW_OPTION(kAlike, max_rows),
    HOTROW_OPTION(kAlike, max_rows_by),
    HOTROW_OPTION(kAlike, score),
    HOTROW_OPTION(kAlike, serve_rows),
};

// Names all members of these structs: one that joins them does not compile until it is named here,
// and needs a row above where it is a number or a word.
[[maybe_unused]] void EveryMemberHasARow(const O& o, const T& t) {
  [[maybe_unused]] const auto& [tables, feature_order, seed, batch, norm, store, cache, admission,
                                limit, depth, staging, ranks, start, env, on_update, name] = o;
  [[maybe_unused]] const auto& [bytes, device_bytes, index_bytes, policy] = o.cache;
  [[maybe_unused]] const auto& [communicator, forward, backward, rounding, feedback] = o.ranks;
  [[maybe_unused]] const auto& [from, steps, rates, settled, lines, over] = o.start;
  [[maybe_unused]] const auto& [table, dim, features, pooling, precision, optimizer, initializer,
                                row_norm, read_only, admits, ttl, min_rows, max_rows, score, by,
                                serve, num_embeddings, hotness] = t;
  [[maybe_unused]] const auto& [kind, lr, eps, beta1, beta2, decay, mode, accumulator, power, l1,
                                l2, beta] = t.optimizer;
}

template <typename Options>
std::string Text(const OptionRow<Options>& row, const Options& options) {
  // The field that `bind` gives could also be written; here it is only read.
  return FlagText(row.bind(const_cast<Options&>(options)).get());  // NOLINT
}

}  // namespace

template <>
std::span<const OptionRow<O>> OptionRows() {
  return kCollectionRows;
}
template <>
std::span<const OptionRow<T>> OptionRows() {
  return kTableRows;
}

NamedValues ComparedOptions(const EmbeddingCollectionOptions& options) {
  NamedValues out;
  const auto add = [&](std::string_view path, auto&& value) {
    out.emplace_back(options.NameOf(path), absl::StrCat(value));
  };
  for (size_t t = 0; t < options.tables.size(); ++t) {
    const TableConfig& table = options.tables[t];
    std::string text =
        absl::StrCat(table.name, " (features ", absl::StrJoin(table.feature_names, " "),
                     ", read only ", absl::StrJoin(table.read_only_features, " "));
    for (const OptionRow<T>& row : kTableRows) {
      if (row.role != kOwn) absl::StrAppend(&text, ", ", row.name, " ", Text(row, table));
    }
    add(absl::StrCat("tables[", t, "]"), text + ")");
  }
  add("tables.size()", options.tables.size());
  add("feature_order", absl::StrJoin(options.feature_order, " "));
  add("store", std::string(StoreKindName(FieldsOf(options.store).kind)));
  for (const OptionRow<O>& row : kCollectionRows) {
    const std::string text = Text(row, options);
    if (row.role == kAlike) add(row.name, text);
    if (row.role == kInPresence) add(row.name, text == "0" ? "0" : "not 0");
  }
  add("start.from",
      absl::StrJoin(options.start.from, " ", [](std::string* text, const SnapshotSource& source) {
        absl::StrAppend(text, source.snapshot);
      }));
  add("start.learning_rates.size()", options.start.learning_rates.size());
  add("start.age_lines",
      absl::StrJoin(options.start.age_lines, " ", [](std::string* text, const RowLines& lines) {
        absl::StrAppend(text, lines.age);
        for (const ScoreLine& line : lines.scores) {
          absl::StrAppend(text, ",", line.step, ":", line.range);
        }
      }));
  return out;
}

}  // namespace hotrow
