#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/status_macros.h"
#include "models/serving/onnx_rows_impl.h"

namespace hotrow::internal {
namespace {

// Rows that are read at once.
constexpr size_t kKeysAtOnce = 1 << 16;
// Keys index a table if it has a bound and that takes so many rows at most, or at most so many
// times those that there are.
constexpr int64_t kIndexedRows = 1 << 16;
constexpr int64_t kIndexedShare = 2;
// Bytes of a key and its row number in LabelEncoder: up to 10 and 5 bytes, and 1 each for the
// field.
constexpr int64_t kKeyBytes = 17;
constexpr int64_t kPaddingRow = 0;
constexpr int64_t kUnseenRow = 1;

// Whether all keys without a row read the same numbers. Rounding of 16 bits draws for each key.
bool UnseenIsConstant(const ServingTable& table) {
  const InitializerKind kind = table.initializer.kind;
  if (kind == InitializerKind::kZeros || table.initializer.value == 0) return true;
  const bool rounds = table.layout.precision != WeightsPrecision::kFp32 &&
                      table.optimizer.weight_decay_mode == WeightDecayMode::kTable;
  return kind == InitializerKind::kConstant && !rounds;
}

// The features of a table: their bound, which is that of the table, and how many they are.
struct Readers {
  int64_t bound = 0;
  int64_t count = 0;
};
Readers ReadersOf(const ServingModel& model, uint32_t table) {
  Readers out;
  for (const ServingFeature& feature : model.features) {
    if (feature.table == table) out = {feature.num_embeddings, out.count + 1};
  }
  return out;
}

// The rows of keys, one after the other, to `out`.
absl::Status ReadRows(const ServingTables& tables, uint32_t table, std::span<const uint64_t> keys,
                      float* out) {
  const int64_t dim = tables.tables()[table].layout.dim;
  ServingTables::Scratch scratch;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysAtOnce) {
    const std::span<const uint64_t> part =
        keys.subspan(begin, std::min(kKeysAtOnce, keys.size() - begin));
    const int64_t offsets[] = {0, std::ssize(part)};
    HOTROW_RETURN_IF_ERROR(
        tables.Pool({.table = table,
                     .pooling = Pooling::kNone,
                     .batch_size = 1,
                     .keys = part,
                     .offsets = offsets,
                     .output = {out + static_cast<int64_t>(begin) * dim, std::ssize(part), dim}},
                    &scratch));
  }
  return absl::OkStatus();
}

// A key that is not one of `keys`, which ascend.
uint64_t KeyBeside(const std::vector<uint64_t>& keys) {
  uint64_t free = 0;
  for (const uint64_t key : keys) {
    if (key != free) break;
    ++free;
  }
  return free;
}

}  // namespace

std::string AddOnnxMask(OnnxGraph& graph, const std::string& name, const std::string& values,
                        const std::string& length) {
  const std::string size =
      graph.Add("Shape", name + "/size", {values}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  const std::string end = graph.Add("Squeeze", name + "/end", {size});
  const std::string zero = graph.Int(name + "/zero", 0);
  const std::string one = graph.Int(name + "/one", 1);
  const std::string positions = graph.Add("Range", name + "/positions", {zero, end, one});
  return graph.Add("Less", name, {positions, length});
}

absl::StatusOr<OnnxRows> OnnxRows::Add(const ServingModel& model, OnnxUnseenKeys unseen_keys,
                                       OnnxGraph* graph) {
  OnnxRows out;
  int64_t bytes = static_cast<int64_t>(model.parameters.size() * sizeof(float));
  const std::vector<ServingTable>& tables = model.tables->tables();
  for (uint32_t t = 0; t < tables.size(); ++t) {
    const ServingTable& table = tables[t];
    const int64_t rows = model.tables->rows(t);
    const auto [bound, readers] = ReadersOf(model, t);
    Table entry = {.name = table.name, .rows = rows, .unseen_keys = unseen_keys};
    entry.is_indexed = 0 < bound && bound <= std::max(kIndexedRows, kIndexedShare * rows);
    if (entry.is_indexed) {
      entry.rows = bound;
    } else if (unseen_keys == OnnxUnseenKeys::kExact && !UnseenIsConstant(table)) {
      return absl::FailedPreconditionError(absl::StrCat(
          model.saved.dir, ": keys without a row of table \"", table.name,
          "\" begin with numbers that are drawn from the key, which the graph does not do; "
          "use --unseen_keys=zeros, which gives them other scores than evaluation, or leave out "
          "--with_rows"));
    }
    bytes += (entry.rows + 2) * table.layout.dim * static_cast<int64_t>(sizeof(float)) +
             (entry.is_indexed ? 0 : readers * entry.rows * kKeyBytes);
    out.tables_.push_back(std::move(entry));
  }
  if (bytes > kOnnxBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        model.saved.dir, ": with its rows the file would have some ", bytes,
        " bytes; an ONNX file has at most ", kOnnxBytesMax, "; leave out --with_rows"));
  }
  for (uint32_t t = 0; t < tables.size(); ++t) {
    HOTROW_RETURN_IF_ERROR(out.AddTable(model, t, graph));
  }
  return out;
}

absl::Status OnnxRows::AddTable(const ServingModel& model, uint32_t number, OnnxGraph* graph) {
  const ServingTables& tables = *model.tables;
  const Table& table = tables_[number];
  const int64_t dim = tables.tables()[number].layout.dim;
  const bool zeros = table.unseen_keys == OnnxUnseenKeys::kZeros;
  const std::vector<uint64_t> own = tables.KeysOf(number);
  const int64_t first = table.is_indexed ? 1 : 2;  // row of the first key
  HOTROW_ASSIGN_OR_RETURN(HostBuffer<float> rows,
                          HostBuffer<float>::Create((first + table.rows) * dim));
  keys_.emplace_back();
  if (!table.is_indexed) {
    HOTROW_RETURN_IF_ERROR(ReadRows(tables, number, own, rows.data() + first * dim));
    keys_.back().assign(own.begin(), own.end());  // the same bits
    const uint64_t unseen = KeyBeside(own);
    if (!zeros) {
      HOTROW_RETURN_IF_ERROR(
          ReadRows(tables, number, {&unseen, 1}, rows.data() + kUnseenRow * dim));
    }
  } else {
    std::vector<uint64_t> keys(static_cast<size_t>(table.rows));
    std::iota(keys.begin(), keys.end(), uint64_t{0});
    HOTROW_RETURN_IF_ERROR(ReadRows(tables, number, keys, rows.data() + first * dim));
    for (const uint64_t key : keys) {
      if (!zeros || std::binary_search(own.begin(), own.end(), key)) continue;
      std::fill_n(rows.data() + (first + static_cast<int64_t>(key)) * dim, dim, 0.0f);
    }
  }
  rows_.push_back(graph->Floats(absl::StrCat("table.", table.name, "/rows"),
                                {first + table.rows, dim}, std::move(rows)));
  return absl::OkStatus();
}

std::string OnnxRows::Lookup(const ServingFeature& feature, const std::string& ids,
                             const std::string& mask, OnnxGraph* graph) const {
  const Table& table = tables_[feature.table];
  const std::string name = "lookup." + feature.name;
  std::string index;
  if (table.is_indexed) {
    // What is no key of the table lies beyond its rows.
    const std::string one = graph->Int(name + "/one", 1);
    const std::string zero = graph->Int(name + "/zero", 0);
    const std::string beyond = graph->Int(name + "/beyond", table.rows + 1);
    const std::string negative = graph->Add("Less", name + "/negative", {ids, zero});
    const std::string own = graph->Add("Add", name + "/own", {ids, one});
    index = graph->Add("Where", name + "/index", {negative, beyond, own});
  } else if (keys_[feature.table].empty()) {
    // LabelEncoder needs a key.
    const std::string unseen = graph->Int(name + "/unseen", kUnseenRow);
    const std::string nothing = graph->Add("Sub", name + "/nothing", {ids, ids});
    index = graph->Add("Add", name + "/index", {nothing, unseen});
  } else {
    std::vector<int64_t> numbers(keys_[feature.table].size());
    std::iota(numbers.begin(), numbers.end(), kUnseenRow + 1);
    index = graph->Add("LabelEncoder", name + "/index", {ids},
                       {{"keys_int64s", keys_[feature.table]},
                        {"values_int64s", std::move(numbers)},
                        {"default_int64", kUnseenRow}},
                       kOnnxMlDomain);
  }
  const std::string padding = graph->Int(name + "/padding", kPaddingRow);
  const std::string masked = graph->Add("Where", name + "/masked", {mask, index, padding});
  return graph->Add("Gather", name + "/rows", {rows_[feature.table], masked});
}

std::string OnnxRows::Pool(const ServingFeature& feature, const std::string& ids,
                           const std::string& mask, const std::string& length,
                           OnnxGraph* graph) const {
  const std::string name = "embedding." + feature.name;
  const std::string rows = Lookup(feature, ids, mask, graph);
  if (feature.pooling != Pooling::kMean) return graph->ReduceSum(name, rows, 1);
  const std::string sum = graph->ReduceSum(name + "/sum", rows, 1);
  const std::string one = graph->Int(name + "/one", 1);
  const std::string lookups = graph->Add("Max", name + "/lookups", {length, one});
  const std::string divisor = graph->Add("Cast", name + "/divisor", {lookups},
                                         {{"to", static_cast<int64_t>(OnnxType::kFloat)}});
  return graph->Add("Div", name, {sum, divisor});
}

}  // namespace hotrow::internal
