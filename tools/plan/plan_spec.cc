#include "tools/plan/plan_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/enum_words.h"
#include "base/flag_set.h"
#include "base/flag_text.h"
#include "base/status_macros.h"
#include "models/json/json_text.h"
#include "tools/plan/spec_text.h"

namespace hotrow {
namespace {

constexpr double kRowsMax = 1e15;
constexpr int64_t kTablesMax = 1'000'000;
constexpr double kZipfMax = 8;

// Reads the fields of one map, each once, and refuses those that nobody asked for.
class Fields {
 public:
  // `path` names the map in messages: "tables[3]."; empty at the top.
  Fields(const SpecNode& map, std::string path, std::string name)
      : map_(map), path_(std::move(path)), name_(std::move(name)) {}

  absl::Status Error(const SpecNode& node, const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ":", node.line, ":", node.column + 1, ": ", what));
  }
  absl::Status CheckIsMap() const {
    if (map_.kind == SpecNode::Kind::kMap) return absl::OkStatus();
    return Error(map_, absl::StrCat(path_.empty() ? "the spec" : path_.substr(0, path_.size() - 1),
                                    ": must be a map of fields"));
  }

  // Null when it is absent or null.
  const SpecNode* Take(const char* field) {
    known_.push_back(field);
    const SpecNode* node = map_.Find(field);
    return node == nullptr || node->kind == SpecNode::Kind::kNull ? nullptr : node;
  }
  absl::Status Missing(const char* field, const char* what) const {
    return Error(map_, absl::StrCat(path_, field, " is missing; ", what));
  }
  absl::Status Bad(const SpecNode& node, const char* field, const std::string& legal) const {
    return Error(node, absl::StrCat(path_, field, ": must be ", legal, ", is ",
                                    node.kind == SpecNode::Kind::kScalar
                                        ? absl::StrCat("\"", node.text, "\"")
                                        : std::string("a list or a map")));
  }

  absl::Status Number(const char* field, double least, double most, double* out) {
    const SpecNode* node = Take(field);
    if (node == nullptr) return absl::OkStatus();
    double value = 0;
    if (!ParseNumber(*node, &value) || !(value >= least && value <= most)) {
      return Bad(*node, field, absl::StrCat("a number in [", least, ", ", most, "]"));
    }
    *out = value;
    return absl::OkStatus();
  }
  template <typename Int>
  absl::Status Integer(const char* field, double least, double most, Int* out) {
    const SpecNode* node = Take(field);
    if (node == nullptr) return absl::OkStatus();
    double value = 0;
    if (!ParseNumber(*node, &value) || !(value >= least && value <= most) ||
        value != std::floor(value)) {
      return Bad(*node, field,
                 absl::StrCat("a whole number in [", static_cast<int64_t>(least), ", ",
                              static_cast<int64_t>(most), "]"));
    }
    *out = static_cast<Int>(value);
    return absl::OkStatus();
  }
  absl::Status Bytes(const char* field, double* out) {
    const SpecNode* node = Take(field);
    if (node == nullptr) return absl::OkStatus();
    if (node->kind == SpecNode::Kind::kScalar) {
      const absl::StatusOr<int64_t> bytes = ParseBytes(node->text);
      if (bytes.ok() && *bytes >= 0) {
        *out = static_cast<double>(*bytes);
        return absl::OkStatus();
      }
    }
    return Bad(*node, field, "a byte count such as 12GB or 512MiB");
  }
  absl::Status Text(const char* field, std::string* out) {
    const SpecNode* node = Take(field);
    if (node == nullptr) return absl::OkStatus();
    if (node->kind != SpecNode::Kind::kScalar) return Bad(*node, field, "a word");
    *out = node->text;
    return absl::OkStatus();
  }
  template <typename Enum>
  absl::Status Choice(const char* field, const std::vector<EnumWord<Enum>>& choices, Enum* out) {
    const SpecNode* node = Take(field);
    if (node == nullptr) return absl::OkStatus();
    std::string names;
    for (const auto& [name, value] : choices) {
      if (node->kind == SpecNode::Kind::kScalar && node->text == name) {
        *out = value;
        return absl::OkStatus();
      }
      absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(name));
    }
    return Bad(*node, field, absl::StrCat("one of ", names));
  }
  absl::Status Sizes(const char* field, std::vector<int32_t>* out) {
    const SpecNode* node = Take(field);
    if (node == nullptr) return absl::OkStatus();
    const std::string legal = "a list of layer sizes such as [512, 256]";
    if (node->kind != SpecNode::Kind::kList) return Bad(*node, field, legal);
    out->clear();
    for (const SpecNode& item : node->items) {
      double value = 0;
      if (!ParseNumber(item, &value) || value < 1 || value > 1e6 || value != std::floor(value)) {
        return Bad(item, field, legal);
      }
      out->push_back(static_cast<int32_t>(value));
    }
    return absl::OkStatus();
  }

  // After all fields were taken.
  absl::Status Finish() const {
    for (const auto& [field, node] : map_.fields) {
      if (std::find(known_.begin(), known_.end(), field) != known_.end()) continue;
      std::string names;
      for (const std::string& known : known_) {
        absl::StrAppend(&names, names.empty() ? "" : ", ", known);
      }
      return Error(node,
                   absl::StrCat(path_, field, ": there is no such field; there are: ", names));
    }
    return absl::OkStatus();
  }

  static bool ParseNumber(const SpecNode& node, double* out) {
    if (node.kind != SpecNode::Kind::kScalar || node.quoted) return false;
    std::string text = node.text;
    // YAML 1.1 and people write 40_000_000.
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
    return error == std::errc() && end == text.data() + text.size() && std::isfinite(*out);
  }

 private:
  const SpecNode& map_;
  const std::string path_;
  const std::string name_;
  std::vector<std::string> known_;
};

constexpr char kDtype[] = "dtype";
constexpr char kWeightsPrecision[] = "weights_precision";
constexpr EnumWord<WeightsPrecision> kWeightsPrecisions[] = {{"fp32", WeightsPrecision::kFp32},
                                                             {"fp16", WeightsPrecision::kFp16},
                                                             {"bf16", WeightsPrecision::kBf16}};

absl::Status ReadWeightsPrecision(Fields& fields, const char* field, WeightsPrecision* out) {
  return fields.Choice(field, AllWords(kWeightsPrecisions), out);
}

absl::Status ReadHistogram(Fields& fields, PlanTable* table) {
  const SpecNode* node = fields.Take("histogram");
  if (node == nullptr) return absl::OkStatus();
  const std::string legal =
      "a list of [ROWS, LOOKUPS OF EACH], both above 0, with rows that sum up to the table's at "
      "most";
  if (node->kind != SpecNode::Kind::kList || node->items.empty()) {
    return fields.Bad(*node, "histogram", legal);
  }
  double rows = 0;
  for (const SpecNode& item : node->items) {
    Popularity::Group group;
    if (item.kind != SpecNode::Kind::kList || item.items.size() != 2 ||
        !Fields::ParseNumber(item.items[0], &group.rows) ||
        !Fields::ParseNumber(item.items[1], &group.probability) || !(group.rows > 0) ||
        !(group.probability > 0)) {
      return fields.Bad(item, "histogram", legal);
    }
    rows += group.rows;
    table->histogram.push_back(group);
  }
  if (rows > static_cast<double>(table->rows) * (1 + 1e-9)) {
    return fields.Error(*node, absl::StrCat("histogram: its rows sum up to ", rows,
                                            ", the table has ", table->rows));
  }
  return absl::OkStatus();
}

absl::Status ReadTable(const SpecNode& node, const std::string& path, const std::string& name,
                       PlanSpec* spec) {
  Fields fields(node, path, name);
  HOTROW_RETURN_IF_ERROR(fields.CheckIsMap());
  PlanTable table;
  table.line = node.line;
  table.column = node.column;
  table.rows = -1;
  int64_t count = 1;
  std::string optimizer;
  HOTROW_RETURN_IF_ERROR(fields.Text("name", &table.name));
  HOTROW_RETURN_IF_ERROR(fields.Integer("rows", 1, kRowsMax, &table.rows));
  HOTROW_RETURN_IF_ERROR(fields.Number("rows_per_day", 0, kRowsMax, &table.rows_per_day));
  HOTROW_RETURN_IF_ERROR(fields.Integer("dim", 1, 65'536, &table.dim));
  HOTROW_RETURN_IF_ERROR(fields.Integer("count", 1, static_cast<double>(kTablesMax), &count));
  HOTROW_RETURN_IF_ERROR(fields.Number("hotness", 1e-6, 1e6, &table.hotness));
  HOTROW_RETURN_IF_ERROR(fields.Integer("features", 1, 1e6, &table.features));
  HOTROW_RETURN_IF_ERROR(fields.Choice<ScoreRule>("score",
                                                  {{"none", ScoreRule::kNone},
                                                   {"max", ScoreRule::kMax},
                                                   {"sum", ScoreRule::kSum},
                                                   {"last", ScoreRule::kLast}},
                                                  &table.score));
  HOTROW_RETURN_IF_ERROR(fields.Choice<RowOrder>(
      "max_rows_by", {{"age", RowOrder::kAge}, {"score", RowOrder::kScore}}, &table.max_rows_by));
  if (table.max_rows_by == RowOrder::kScore && table.score == ScoreRule::kNone) {
    return fields.Error(*node.Find("max_rows_by"),
                        absl::StrCat(path,
                                     "max_rows_by: is score, but the table keeps none; "
                                     "give score: max, sum or last"));
  }
  HOTROW_RETURN_IF_ERROR(fields.Text("optimizer", &optimizer));
  table.weights_precision = spec->model.weights_precision;
  // The older name of it.
  HOTROW_RETURN_IF_ERROR(ReadWeightsPrecision(fields, kDtype, &table.weights_precision));
  HOTROW_RETURN_IF_ERROR(ReadWeightsPrecision(fields, kWeightsPrecision, &table.weights_precision));
  if (node.Find(kDtype) != nullptr && node.Find(kWeightsPrecision) != nullptr) {
    return fields.Error(*node.Find(kDtype), absl::StrCat(path, kDtype, " and ", kWeightsPrecision,
                                                         " are the same; give one of them"));
  }
  HOTROW_RETURN_IF_ERROR(fields.Choice("pooling", AllWords(kPoolingWords), &table.pooling));
  if (table.rows < 0) return fields.Missing("rows", "how many rows the table has");
  if (table.dim == 0) return fields.Missing("dim", "how many floats a row's weights are");
  if (table.name.empty()) table.name = absl::StrCat("table", spec->tables.size());
  if (!optimizer.empty()) {
    const absl::StatusOr<SparseOptimizerKind> kind = ParseSparseOptimizer(optimizer);
    if (!kind.ok()) {
      return fields.Error(*node.Find("optimizer"),
                          absl::StrCat(path, "optimizer: ", std::string(kind.status().message())));
    }
    table.optimizer = *kind;
  }
  const int laws = (node.Find("zipf") != nullptr) + (node.Find("histogram") != nullptr) +
                   (node.Find("curve") != nullptr) + (node.Find("trace") != nullptr);
  if (laws > 1) {
    return fields.Error(node,
                        absl::StrCat(path, "zipf, histogram, curve and trace: give one of them"));
  }
  HOTROW_RETURN_IF_ERROR(fields.Number("zipf", 0, kZipfMax, &table.zipf));
  HOTROW_RETURN_IF_ERROR(ReadHistogram(fields, &table));
  HOTROW_RETURN_IF_ERROR(fields.Text("curve", &table.curve_file));
  HOTROW_RETURN_IF_ERROR(fields.Text("trace", &table.trace_file));
  HOTROW_RETURN_IF_ERROR(fields.Finish());
  if (std::ssize(spec->tables) + count > kTablesMax) {
    return fields.Error(node, absl::StrCat("more than ", kTablesMax, " tables"));
  }
  const std::string base = table.name;
  for (int64_t i = 0; i < count; ++i) {
    if (count > 1) table.name = absl::StrCat(base, "_", i);
    spec->tables.push_back(table);
  }
  return absl::OkStatus();
}

absl::Status ReadPart(const SpecNode& node, const std::string& path, const std::string& name,
                      PlanModel* model) {
  Fields fields(node, path, name);
  HOTROW_RETURN_IF_ERROR(fields.CheckIsMap());
  PlanPart part;
  HOTROW_RETURN_IF_ERROR(fields.Text("name", &part.name));
  HOTROW_RETURN_IF_ERROR(fields.Integer("count", 1, 1e6, &part.count));
  HOTROW_RETURN_IF_ERROR(fields.Number("rows", 0, 1e6, &part.rows));
  HOTROW_RETURN_IF_ERROR(fields.Integer("inputs", 1, 1e9, &part.inputs));
  HOTROW_RETURN_IF_ERROR(fields.Integer("outputs", 1, 1e6, &part.outputs));
  HOTROW_RETURN_IF_ERROR(fields.Integer("parameters", 0, 1e12, &part.parameters));
  HOTROW_RETURN_IF_ERROR(fields.Number("macs", 0, 1e12, &part.macs));
  HOTROW_RETURN_IF_ERROR(fields.Number("activations", 0, 1e12, &part.activations));
  if ((part.inputs > 0) != (part.outputs > 0)) {
    return fields.Error(
        node, absl::StrCat(path, "inputs and ", path, "outputs: give both of them or neither"));
  }
  model->parts.push_back(std::move(part));
  return fields.Finish();
}

absl::Status ReadModel(const SpecNode* node, const std::string& name, PlanModel* model) {
  if (node == nullptr) return absl::OkStatus();
  Fields fields(*node, "model.", name);
  HOTROW_RETURN_IF_ERROR(fields.CheckIsMap());
  HOTROW_RETURN_IF_ERROR(fields.Integer("dense_features", 0, 1e6, &model->dense_features));
  HOTROW_RETURN_IF_ERROR(fields.Sizes("bottom", &model->bottom));
  HOTROW_RETURN_IF_ERROR(fields.Sizes("top", &model->top));
  HOTROW_RETURN_IF_ERROR(fields.Integer("top_inputs", 0, 1e9, &model->top_inputs));
  HOTROW_RETURN_IF_ERROR(fields.Choice<Interaction>("interaction",
                                                    {{"concat", Interaction::kConcat},
                                                     {"dot", Interaction::kDot},
                                                     {"cross", Interaction::kCross}},
                                                    &model->interaction));
  HOTROW_RETURN_IF_ERROR(fields.Integer("cross_layers", 0, 64, &model->cross_layers));
  HOTROW_RETURN_IF_ERROR(fields.Integer("cross_rank", 0, 1e6, &model->cross_rank));
  if (const SpecNode* const parts = fields.Take("parts")) {
    if (parts->kind != SpecNode::Kind::kList) {
      return fields.Bad(*parts, "parts", "a list of parts such as {name: fm, macs: 220}");
    }
    for (size_t i = 0; i < parts->items.size(); ++i) {
      HOTROW_RETURN_IF_ERROR(
          ReadPart(parts->items[i], absl::StrCat("model.parts[", i, "]."), name, model));
    }
  }
  HOTROW_RETURN_IF_ERROR(fields.Choice<int32_t>(
      "dense_optimizer", {{"sgd", 0}, {"momentum", 1}, {"adagrad", 1}, {"adam", 2}},
      &model->dense_optimizer_states));
  int32_t averages = 0;
  HOTROW_RETURN_IF_ERROR(
      fields.Choice<int32_t>("dense_average", {{"false", 0}, {"true", 1}}, &averages));
  model->dense_optimizer_states += averages;
  int precision = 0;
  HOTROW_RETURN_IF_ERROR(fields.Choice<int>(
      "precision", {{"fp32", 0}, {"tf32", 0}, {"fp16", 1}, {"bf16", 1}}, &precision));
  model->inputs_16_bits = precision == 1;
  HOTROW_RETURN_IF_ERROR(
      ReadWeightsPrecision(fields, kWeightsPrecision, &model->weights_precision));
  return fields.Finish();
}

absl::Status ReadHardware(const SpecNode* node, const std::string& name,
                          const HardwareSource& source, HardwareProfile* out) {
  const auto names = [](std::span<const HardwareProfile> profiles) {
    std::string text;
    for (const HardwareProfile& profile : profiles) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", profile.name);
    }
    return text;
  };
  *out = *FindAccelerator("cpu");
  std::string disk = "nvme-read";
  std::string base = "cpu";
  // A measured profile has its own disk.
  bool has_disk = false;
  const auto take_base = [&](const Fields& fields, const SpecNode& at) -> absl::Status {
    if (const HardwareProfile* profile = FindAccelerator(base); profile != nullptr) {
      *out = *profile;
      return absl::OkStatus();
    }
    if (source.read != nullptr && base.find_first_of("./") != std::string::npos) {
      absl::StatusOr<HardwareProfile> profile = source.read(base);
      if (!profile.ok()) {
        return fields.Error(at,
                            absl::StrCat("hardware: ", std::string(profile.status().message())));
      }
      *out = *std::move(profile);
      has_disk = out->ssd_bytes > 0;
      return absl::OkStatus();
    }
    return fields.Error(at, absl::StrCat("hardware: there is no profile \"", base,
                                         "\"; there are: ", names(Accelerators()),
                                         ", and files that hotrow calibrate wrote"));
  };
  const auto take_disk = [&](const Fields& fields, const SpecNode& at) -> absl::Status {
    const HardwareProfile* profile = FindDisk(disk);
    if (profile == nullptr) {
      return fields.Error(at, absl::StrCat("hardware.disk: there is no class \"", disk,
                                           "\"; there are: ", names(Disks())));
    }
    out->ssd_bytes = profile->ssd_bytes;
    out->ssd_read_ios_per_second = profile->ssd_read_ios_per_second;
    out->ssd_read_bytes_per_second = profile->ssd_read_bytes_per_second;
    out->ssd_write_bytes_per_second = profile->ssd_write_bytes_per_second;
    out->ssd_endurance_bytes = profile->ssd_endurance_bytes;
    return absl::OkStatus();
  };
  const SpecNode nothing;
  if (node == nullptr) return take_disk(Fields(nothing, "", name), nothing);
  Fields fields(*node, "hardware.", name);
  if (node->kind == SpecNode::Kind::kScalar) {
    base = node->text;
    HOTROW_RETURN_IF_ERROR(take_base(fields, *node));
    return has_disk ? absl::OkStatus() : take_disk(fields, *node);
  }
  HOTROW_RETURN_IF_ERROR(fields.CheckIsMap());
  HOTROW_RETURN_IF_ERROR(fields.Text("profile", &base));
  HOTROW_RETURN_IF_ERROR(take_base(fields, *node));
  HOTROW_RETURN_IF_ERROR(fields.Text("disk", &disk));
  if (!has_disk || node->Find("disk") != nullptr) {
    HOTROW_RETURN_IF_ERROR(take_disk(fields, *node));
  }
  HOTROW_RETURN_IF_ERROR(fields.Bytes("hbm", &out->hbm_bytes));
  HOTROW_RETURN_IF_ERROR(fields.Bytes("dram", &out->dram_bytes));
  HOTROW_RETURN_IF_ERROR(fields.Bytes("ssd", &out->ssd_bytes));
  constexpr double kRateMax = 1e18;
  struct Rate {
    const char* field;
    double* out;
  };
  const double base_hbm_rate = out->hbm_bytes_per_second;
  const double base_flops = out->dense_flops;
  const double base_flops_16 = out->dense_flops_16;
  for (const Rate& rate :
       {Rate{"hbm_bytes_per_second", &out->hbm_bytes_per_second},
        Rate{"dense_flops", &out->dense_flops}, Rate{"dense_flops_16", &out->dense_flops_16},
        Rate{"host_link_bytes_per_second", &out->host_link_bytes_per_second},
        Rate{"gpu_link_bytes_per_second", &out->gpu_link_bytes_per_second},
        Rate{"dram_bytes_per_second", &out->dram_bytes_per_second},
        Rate{"ssd_read_ios_per_second", &out->ssd_read_ios_per_second},
        Rate{"ssd_read_bytes_per_second", &out->ssd_read_bytes_per_second},
        Rate{"ssd_write_bytes_per_second", &out->ssd_write_bytes_per_second},
        Rate{"ssd_endurance_bytes", &out->ssd_endurance_bytes},
        Rate{"network_bytes_per_second", &out->network_bytes_per_second}}) {
    HOTROW_RETURN_IF_ERROR(fields.Number(rate.field, 1, kRateMax, rate.out));
  }
  if (out->hbm_bytes_per_second != base_hbm_rate && base_hbm_rate > 0) {
    out->engine.ScaleKernels(base_hbm_rate / out->hbm_bytes_per_second);
  }
  if (out->dense_flops != base_flops) {
    if (out->dense_flops_16 == base_flops_16) out->dense_flops_16 *= out->dense_flops / base_flops;
    // A figure given here counts for layers of any width.
    out->dense_flops_narrow = out->dense_flops_middle = out->dense_flops_wide = 0;
    out->dot_flops_short = out->dot_flops_long = 0;
  }
  HOTROW_RETURN_IF_ERROR(fields.Number("cpu_seconds_per_key", 1e-12, 1, &out->cpu_seconds_per_key));
  for (const Rate& latency :
       {Rate{"step_seconds", &out->step_seconds}, Rate{"link_seconds", &out->link_seconds},
        Rate{"network_seconds", &out->network_seconds},
        Rate{"network_message_seconds", &out->network_message_seconds}}) {
    HOTROW_RETURN_IF_ERROR(fields.Number(latency.field, 0, 1, latency.out));
  }
  HOTROW_RETURN_IF_ERROR(fields.Number("dense_half_batch", 0, 1e9, &out->dense_half_batch));
  HOTROW_RETURN_IF_ERROR(fields.Number("price_per_rank_hour", 0, 1e9, &out->price_per_rank_hour));
  // After the figures of a disk, which are those of one drive.
  int drives = 1;
  HOTROW_RETURN_IF_ERROR(fields.Integer("drives", 1, kDrivesMax, &drives));
  out->MultiplyDisk(drives);
  return fields.Finish();
}

}  // namespace

double WireBytes(WireType type, int32_t dim) {
  switch (type) {
    case WireType::kFp32:
      return 4.0 * dim;
    case WireType::kFp16:
    case WireType::kBf16:
      return 2.0 * dim;
    case WireType::kInt8:
      return dim + 4.0;  // one fp32 scale a row
  }
  return 0;
}

std::vector<StoreKind> PlannedStores() {
  std::vector<StoreKind> kinds = StoreKinds();
  std::erase_if(kinds, [](StoreKind kind) { return !FactsOf(kind).planned; });
  return kinds;
}

StoreKind PlannedStore(bool on_disk) {
  const std::vector<StoreKind> kinds = PlannedStores();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [on_disk](StoreKind kind) {
    return FactsOf(kind).on_disk == on_disk;
  });
  HOTROW_CHECK(found != kinds.end());
  return *found;
}

absl::StatusOr<PlanSpec> ParsePlanSpec(std::string_view text, std::string_view name_view,
                                       const HardwareSource& source) {
  const std::string name(name_view);
  HOTROW_ASSIGN_OR_RETURN(const SpecNode root, ParseSpecText(text, name));
  Fields fields(root, "", name);
  HOTROW_RETURN_IF_ERROR(fields.CheckIsMap());
  PlanSpec spec;
  spec.name = name;

  const SpecNode* tables = fields.Take("tables");
  if (tables == nullptr) return fields.Missing("tables", "a list of tables");
  if (tables->kind != SpecNode::Kind::kList || tables->items.empty()) {
    return fields.Bad(*tables, "tables", "a list of at least one table");
  }
  // Before the tables, for which it has a default.
  HOTROW_RETURN_IF_ERROR(ReadModel(fields.Take("model"), name, &spec.model));
  for (size_t i = 0; i < tables->items.size(); ++i) {
    HOTROW_RETURN_IF_ERROR(
        ReadTable(tables->items[i], absl::StrCat("tables[", i, "]."), name, &spec));
  }
  std::set<std::string> names;
  for (const PlanTable& table : spec.tables) {
    if (names.insert(table.name).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ":", table.line, ":", table.column + 1,
                                                   ": the table name \"", table.name,
                                                   "\" occurs twice; names must differ"));
  }

  HOTROW_RETURN_IF_ERROR(ReadHardware(fields.Take("hardware"), name, source, &spec.hardware));
  if (source.instead.has_value()) {
    // What it does not say of a disk and of prices is still the spec's.
    const HardwareProfile said = spec.hardware;
    spec.hardware = *source.instead;
    if (spec.hardware.price_per_rank_hour == 0) {
      spec.hardware.price_per_rank_hour = said.price_per_rank_hour;
    }
    if (spec.hardware.ssd_bytes == 0) {
      spec.hardware.ssd_bytes = said.ssd_bytes;
      spec.hardware.ssd_read_ios_per_second = said.ssd_read_ios_per_second;
      spec.hardware.ssd_read_bytes_per_second = said.ssd_read_bytes_per_second;
      spec.hardware.ssd_write_bytes_per_second = said.ssd_write_bytes_per_second;
      spec.hardware.ssd_endurance_bytes = said.ssd_endurance_bytes;
    }
  }
  HOTROW_RETURN_IF_ERROR(fields.Integer("batch_size", 1, 1e9, &spec.batch_size));
  if (spec.batch_size == 0)
    return fields.Missing("batch_size", "samples of one step, of all ranks");
  HOTROW_RETURN_IF_ERROR(fields.Integer("ranks", 1, 65'536, &spec.ranks));
  spec.ranks_per_node = std::min(spec.ranks, spec.hardware.ranks_per_node);
  HOTROW_RETURN_IF_ERROR(fields.Integer("ranks_per_node", 1, 65'536, &spec.ranks_per_node));
  const std::vector<EnumWord<WireType>> wires = {{"fp32", WireType::kFp32},
                                                 {"fp16", WireType::kFp16},
                                                 {"bf16", WireType::kBf16},
                                                 {"int8", WireType::kInt8}};
  HOTROW_RETURN_IF_ERROR(fields.Choice("exchange_forward", wires, &spec.forward_wire));
  HOTROW_RETURN_IF_ERROR(fields.Choice("exchange_backward", wires, &spec.backward_wire));
  HOTROW_RETURN_IF_ERROR(fields.Integer("prefetch_depth", 0, 32, &spec.prefetch_depth));
  std::vector<EnumWord<std::optional<StoreKind>>> stores = {{"auto", std::nullopt}};
  for (const StoreKind kind : PlannedStores()) stores.push_back({StoreKindName(kind), kind});
  std::optional<StoreKind> store;
  HOTROW_RETURN_IF_ERROR(fields.Choice("store", stores, &store));
  spec.store_auto = !store.has_value();
  spec.store = store.value_or(PlannedStore(/*on_disk=*/false));
  for (const auto& [field, budget] : {std::pair{"cache_bytes", &spec.cache_bytes},
                                      {"host_cache_bytes", &spec.host_cache_bytes}}) {
    if (const SpecNode* node = root.Find(field); node != nullptr && node->text == "auto") {
      fields.Take(field);
      continue;
    }
    auto bytes = static_cast<double>(PlanSpec::kAuto);
    HOTROW_RETURN_IF_ERROR(fields.Bytes(field, &bytes));
    *budget = static_cast<int64_t>(bytes);
  }
  HOTROW_RETURN_IF_ERROR(
      fields.Number("checkpoint_interval_steps", 0, 1e15, &spec.checkpoint_interval_steps));
  HOTROW_RETURN_IF_ERROR(fields.Integer("retained_snapshots", 0, 1000, &spec.retained_snapshots));
  HOTROW_RETURN_IF_ERROR(fields.Bytes("max_hbm", &spec.hbm_max_bytes));
  HOTROW_RETURN_IF_ERROR(fields.Bytes("admission_bytes", &spec.admission_bytes));
  HOTROW_RETURN_IF_ERROR(fields.Number("ttl_steps", 0, 1e15, &spec.ttl_steps));
  HOTROW_RETURN_IF_ERROR(
      fields.Number("delta_interval_steps", 0, 1e15, &spec.delta_interval_steps));
  HOTROW_RETURN_IF_ERROR(fields.Choice("delta_rows", wires, &spec.delta_rows));
  int weights_only = 0;
  HOTROW_RETURN_IF_ERROR(
      fields.Choice<int>("delta_weights_only", {{"false", 0}, {"true", 1}}, &weights_only));
  spec.delta_weights_only = weights_only == 1;
  HOTROW_RETURN_IF_ERROR(fields.Bytes("max_dram", &spec.dram_max_bytes));
  HOTROW_RETURN_IF_ERROR(fields.Bytes("max_ssd", &spec.ssd_max_bytes));
  HOTROW_RETURN_IF_ERROR(fields.Number("days", 0, 36'500, &spec.days));
  HOTROW_RETURN_IF_ERROR(
      fields.Number("target_samples_per_second", 0, 1e15, &spec.target_samples_per_second));
  HOTROW_RETURN_IF_ERROR(
      fields.Number("data_seconds_per_sample", 0, 1, &spec.data_seconds_per_sample));
  HOTROW_RETURN_IF_ERROR(
      fields.Number("data_bytes_per_sample", 0, 1e9, &spec.data_bytes_per_sample));
  HOTROW_RETURN_IF_ERROR(fields.Finish());
  return spec;
}

absl::StatusOr<std::vector<CurvePoint>> ParseCurve(std::string_view json, std::string_view name) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": ", std::string(what),
                     "; a curve is what `hotrow trace mrc --json` prints"));
  };
  const absl::StatusOr<nlohmann::json> parsed = ParseJson<nlohmann::json>(json);
  if (!parsed.ok()) return bad(std::string(parsed.status().message()));
  const nlohmann::json& root = *parsed;
  if (!root.is_object() || !root.contains("points") || !root["points"].is_array()) {
    return bad("is no JSON object with points");
  }
  std::vector<CurvePoint> curve;
  for (const nlohmann::json& point : root["points"]) {
    if (!point.is_object() || !point.contains("size") || !point.contains("hit_rate") ||
        !point["size"].is_number() || !point["hit_rate"].is_number()) {
      return bad("a point has no size or no hit_rate");
    }
    const CurvePoint at = {point["size"].get<double>(), point["hit_rate"].get<double>()};
    if (!(at.rows > 0) || !(at.hit_rate >= 0 && at.hit_rate <= 1)) {
      return bad("a size is not above 0, or a hit_rate not in [0, 1]");
    }
    curve.push_back(at);
  }
  if (curve.empty()) return bad("has no points");
  std::sort(curve.begin(), curve.end(),
            [](const CurvePoint& a, const CurvePoint& b) { return a.rows < b.rows; });
  return curve;
}

}  // namespace hotrow
