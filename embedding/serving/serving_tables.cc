#include "embedding/serving/serving_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/unique_id.h"
#include "embedding/serving/budget_share_impl.h"
#include "embedding/serving/disk_rows_impl.h"
#include "embedding/serving/row_coding.h"
#include "embedding/serving/serving_tables_impl.h"
#include "ops/rows/pooled_lookup.h"

namespace hotrow {
using internal::BudgetShare;
using internal::CodeOf;
using internal::DiskRows;
using internal::IsAffine;
using internal::Narrow;
using internal::ReadPrecision;
using internal::RecordTable;
using internal::RowKeeper;
using internal::RowSorter;
using internal::ShapeOf;
using internal::Widen;

namespace {

// Bytes of a Scratch: a part of a call is then long enough that what it costs besides its rows is
// nothing beside them. Rows on a disk want more, for a full queue; all Scratches have a part of the
// budget.
constexpr int64_t kScratchBytes = int64_t{1} << 20;
constexpr int64_t kDiskScratchBytesMax = int64_t{8} << 20;
constexpr int64_t kDiskScratchShare = 16;
constexpr int64_t kScratchLookupsMin = 16;
// Bytes of a lookup in a Scratch beside rows: pointers, numbers, a key; on a disk a Reader's, too.
constexpr int64_t kLookupBytes = 48;
constexpr int64_t kDiskLookupBytes = 96;

struct ScratchSize {
  int64_t lookups = 0;
  int64_t bytes = 0;
};
ScratchSize SizeOfScratch(const ServingTablesOptions& options) {
  const bool on_disk = !options.rows_dir.empty();
  int64_t row_bytes = 0;  // of a lookup: its row, its first value, what these are widened to
  for (const ServingTable& table : options.tables) {
    const int64_t floats = table.layout.dim * static_cast<int64_t>(sizeof(float));
    row_bytes = std::max(row_bytes, table.layout.row_bytes + floats + (on_disk ? floats : 0));
  }
  const int64_t lookup_bytes = row_bytes + kLookupBytes + (on_disk ? kDiskLookupBytes : 0);
  const int64_t limit = options.budget != nullptr ? options.budget->bytes() : options.memory_bytes;
  const int64_t room =
      on_disk ? std::min(limit / kDiskScratchShare / options.readers, kDiskScratchBytesMax)
              : kScratchBytes;
  const int64_t lookups = std::max(room / lookup_bytes, kScratchLookupsMin);
  return {.lookups = lookups, .bytes = lookups * lookup_bytes};
}

}  // namespace

absl::Status ServingTablesOptions::Validate() const {
  if (tables.empty()) return absl::InvalidArgumentError("ServingTablesOptions.tables is empty");
  if (budget == nullptr && memory_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ServingTablesOptions.memory_bytes must be at least 1, is ", memory_bytes));
  }
  if (!expected_rows.empty() && expected_rows.size() != tables.size()) {
    return absl::InvalidArgumentError(absl::StrCat("ServingTablesOptions.expected_rows has ",
                                                   expected_rows.size(), " numbers for ",
                                                   tables.size(), " tables"));
  }
  if (readers < 1 || reader_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("ServingTablesOptions.readers must be at least 1 and reader_bytes at least 0, "
                     "are ",
                     readers, " and ", reader_bytes));
  }
  for (const ServingTable& table : tables) {
    HOTROW_RETURN_IF_ERROR(table.optimizer.Validate());
    HOTROW_RETURN_IF_ERROR(table.initializer.Validate());
  }
  return absl::OkStatus();
}

int64_t ServingTables::ScratchBytes(const ServingTablesOptions& options) {
  return SizeOfScratch(options).bytes;
}

ServingTables::ServingTables(const ServingTablesOptions& options)
    : options_(options),
      share_(std::make_unique<BudgetShare>(
          options.budget != nullptr ? options.budget
                                    : std::make_shared<ServingBudget>(options.memory_bytes))) {}
ServingTables::~ServingTables() = default;

int64_t ServingTables::bytes() const { return share_->bytes(); }
int64_t ServingTables::readers_bytes() const { return options_.readers * options_.reader_bytes; }
const ServingBudget& ServingTables::budget() const { return share_->budget(); }

absl::Status ServingTables::Init() {
  lookups_max_ = SizeOfScratch(options_).lookups;
  // Before the first row, so that no call can be refused later.
  if (options_.reader_bytes > 0) {
    HOTROW_RETURN_IF_ERROR(share_->Take(
        readers_bytes(), absl::StrCat("room for ", options_.readers, " calls at once")));
  }
  const bool in_memory = options_.rows_dir.empty();
  int64_t need = 0;
  for (size_t t = 0; in_memory && t < options_.expected_rows.size(); ++t) {
    need += RecordTable::BytesFor(options_.expected_rows[t],
                                  ShapeOf(options_.tables[t], options_.keeps_steps));
  }
  const ServingBudget& budget = share_->budget();
  if (need > budget.bytes() - budget.used()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory_bytes: the rows of this model need ", need,
        " bytes with their index; the budget is ", budget.bytes(),
        budget.used() > 0 ? absl::StrCat(", of which ", budget.used(), " are taken") : "",
        share_->bytes() > 0 ? absl::StrCat(", ", share_->bytes(), " of them for ", options_.readers,
                                           " calls at once")
                            : ""));
  }
  for (const ServingTable& table : options_.tables) {
    const int64_t expected =
        options_.expected_rows.empty() ? 0 : options_.expected_rows[rows_.size()];
    rows_.push_back(std::unique_ptr<Table>(
        new Table{.rows = RecordTable({.table = table.name,
                                       .shape = ShapeOf(table, options_.keeps_steps),
                                       .expected_rows = expected,
                                       .share = share_.get()}),
                  .history = nullptr}));
    if (table.optimizer.weight_decay_mode != WeightDecayMode::kTable) continue;
    // Tables of one optimizer have one history.
    for (size_t t = 0; t + 1 < rows_.size(); ++t) {
      if (options_.tables[t].optimizer == table.optimizer) {
        rows_.back()->history = rows_[t]->history;
      }
    }
    if (rows_.back()->history != nullptr) continue;
    auto history =
        std::make_shared<StepHistory>(table.optimizer, static_cast<uint32_t>(options_.first_step));
    for (const LearningRateRun& run : options_.learning_rates) {
      while (history->steps() < run.last_step) history->Append(run.factor);
    }
    rows_.back()->history = std::move(history);
  }
  HOTROW_ASSIGN_OR_RETURN(keeper_, RowKeeper::Create(*this));
  return in_memory ? absl::OkStatus() : OpenDisk();
}

void ServingTables::MakeView() {
  view_ = std::make_unique<View>();
  for (const std::unique_ptr<Table>& table : rows_) view_->tables.push_back({table->rows.view()});
  if (disk_ != nullptr) view_->disk = disk_->current();
}

absl::Status ServingTables::CheckTable(const RowKey& key) const {
  if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) {
    return absl::CancelledError("reading the model was stopped");
  }
  if (key.table < options_.tables.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a row of table ", key.table, "; there are ", options_.tables.size()));
}

int64_t ServingTables::rows(uint32_t table) const {
  return disk_ != nullptr ? disk_->current()->rows[table] : rows_[table]->rows.rows();
}

std::vector<uint64_t> ServingTables::KeysOf(uint32_t table) const {
  HOTROW_CHECK(disk_ == nullptr);
  std::vector<uint64_t> keys = rows_[table]->rows.Keys();
  std::sort(keys.begin(), keys.end());
  return keys;
}

absl::Status ServingTables::CatchUpRows(uint32_t table, std::span<const uint64_t> keys,
                                        std::span<std::byte* const> rows) const {
  const ServingTable& spec = options_.tables[table];
  if (rows_[table]->history == nullptr) return absl::OkStatus();
  return CatchUp({}, {.config = spec.optimizer,
                      .layout = &spec.layout,
                      .history = rows_[table]->history.get(),
                      .num_rows = std::ssize(keys),
                      .rows = rows.data(),
                      .seed = options_.seed,
                      .table = table,
                      .keys = keys.data()});
}

absl::Status ServingTables::FirstValues(uint32_t table, std::span<const uint64_t> keys,
                                        std::span<std::byte* const> rows) const {
  const ServingTable& spec = options_.tables[table];
  HOTROW_RETURN_IF_ERROR(InitRows({}, {.initializer = spec.initializer,
                                       .layout = &spec.layout,
                                       .initial_accumulator = spec.optimizer.initial_accumulator,
                                       .optimizer = spec.optimizer.kind,
                                       .seed = options_.seed,
                                       .table = table,
                                       .num_rows = std::ssize(keys),
                                       .keys = keys.data(),
                                       .rows = rows.data()}));
  return CatchUpRows(table, keys, rows);
}

// The first values of scratch->missing, as lookups of the table read them, one behind the other.
absl::Status ServingTables::ReadFirstValues(uint32_t table, Scratch* scratch) const {
  const ServingTable& spec = options_.tables[table];
  const RowLayout& layout = spec.layout;
  const auto missing = std::ssize(scratch->missing);
  const int64_t row_bytes = layout.row_bytes;
  HOTROW_RETURN_IF_ERROR(scratch->first_values.Reserve(missing * row_bytes));  // <= lookups_max_
  scratch->missing_rows.clear();
  for (int64_t m = 0; m < missing; ++m) {
    scratch->missing_rows.push_back(scratch->first_values.data() + m * layout.row_bytes);
  }
  HOTROW_RETURN_IF_ERROR(FirstValues(table, scratch->missing, scratch->missing_rows));
  const WeightsPrecision precision = ReadPrecision(spec);
  if (precision == layout.precision) return absl::OkStatus();
  const int64_t bytes = RoundUp(layout.dim * WeightBytes(precision), 16);
  HOTROW_RETURN_IF_ERROR(scratch->narrowed.Reserve(missing * bytes));  // <= lookups_max_
  HOTROW_RETURN_IF_ERROR(scratch->floats.Reserve(layout.dim));
  for (int64_t m = 0; m < missing; ++m) {
    std::byte*& row = scratch->missing_rows[static_cast<size_t>(m)];
    std::byte* const out = scratch->narrowed.data() + m * bytes;
    HOTROW_RETURN_IF_ERROR(Widen(layout, row, scratch->floats.data()));
    HOTROW_RETURN_IF_ERROR(Narrow(layout.dim, precision, scratch->floats.data(), out));
    row = out;
  }
  return absl::OkStatus();
}

namespace internal {

struct DiskReader {
  ~DiskReader() { rows->GiveBack(std::move(reader)); }
  DiskRows* rows;
  std::unique_ptr<DiskRows::Reader> reader;
};

}  // namespace internal

absl::Status ServingTables::Pool(const View& view, const ServingLookup& lookup,
                                 Scratch* scratch) const {
  return Pool(view, std::span(&lookup, 1), scratch);
}

absl::Status ServingTables::Pool(const View& view, std::span<const ServingLookup> lookups,
                                 Scratch* scratch) const {
  if (disk_ != nullptr) HOTROW_RETURN_IF_ERROR(Prepare(scratch));
  scratch->parts.clear();
  int64_t left = lookups_max_;
  for (const ServingLookup& lookup : lookups) {
    HOTROW_CHECK(lookup.table < rows_.size());
    for (int64_t bag = 0, key = 0; bag < lookup.batch_size;) {
      if (left == 0) {
        HOTROW_RETURN_IF_ERROR(PoolParts(view, scratch));
        left = lookups_max_;
      }
      scratch->parts.push_back(TakePart(lookup, left, &bag, &key));
      left -= std::ssize(scratch->parts.back().lookup.keys);
    }
  }
  return PoolParts(view, scratch);
}

ServingTables::Scratch::Part ServingTables::TakePart(const ServingLookup& lookup, int64_t most,
                                                     int64_t* bag, int64_t* key) {
  Scratch::Part part = {.lookup = lookup};
  ServingLookup& out = part.lookup;
  const bool is_pooled = lookup.pooling != Pooling::kNone;
  const std::span<const int64_t> offsets = lookup.offsets;
  const auto end_of = [&](int64_t b) { return offsets[static_cast<size_t>(b)] - offsets[0]; };
  const int64_t first_bag = *bag;
  const int64_t first_key = *key;
  // Whole bags that fit.
  if (is_pooled && first_key == end_of(first_bag)) {
    const auto behind = std::upper_bound(offsets.begin() + first_bag + 1, offsets.end(),
                                         offsets[0] + first_key + most);
    *bag = behind - offsets.begin() - 1;
    *key = end_of(*bag);
  }
  int64_t output_row = first_bag;
  if (*bag > first_bag) {
    out.batch_size = *bag - first_bag;
    out.offsets =
        offsets.subspan(static_cast<size_t>(first_bag), static_cast<size_t>(out.batch_size) + 1);
  } else {  // keys of one bag, or rows that are not pooled
    const int64_t end = is_pooled ? end_of(first_bag + 1) : std::ssize(lookup.keys);
    *key = std::min(first_key + most, end);
    if (*key == end) *bag = is_pooled ? first_bag + 1 : lookup.batch_size;
    out.batch_size = 1;
    part.is_cut = true;
    part.cut_offsets[1] = *key - first_key;
    if (is_pooled) {
      part.adds = first_key > end_of(first_bag);
      if (lookup.pooling == Pooling::kMean && *key == end) part.mean_over = end - end_of(first_bag);
      out.pooling = Pooling::kSum;
    } else {
      output_row = first_key;
    }
  }
  const auto begin = static_cast<size_t>(first_key);
  const auto keys = static_cast<size_t>(*key - first_key);
  out.keys = lookup.keys.subspan(begin, keys);
  out.output = lookup.output.Rows(output_row, is_pooled ? out.batch_size : std::ssize(out.keys));
  if (!lookup.weights.empty()) out.weights = lookup.weights.subspan(begin, keys);
  return part;
}

absl::Status ServingTables::PoolParts(const View& view, Scratch* scratch) const {
  if (disk_ != nullptr) {
    DiskRows::Reader& reader = *scratch->disk->reader;
    reader.Clear();
    scratch->numbers.clear();
    for (const Scratch::Part& part : scratch->parts) {
      for (const uint64_t key : part.lookup.keys) {
        scratch->numbers.push_back(reader.Want({.key = key, .table = part.lookup.table}));
      }
    }
    HOTROW_RETURN_IF_ERROR(disk_->Fetch(*view.disk, &reader));
  }
  size_t next = 0;
  for (Scratch::Part& part : scratch->parts) {
    if (part.is_cut) part.lookup.offsets = part.cut_offsets;
    const ServingLookup& lookup = part.lookup;
    scratch->rows.resize(lookup.keys.size());
    if (disk_ != nullptr) {
      for (const std::byte*& row : scratch->rows) {
        row = scratch->disk->reader->Row(scratch->numbers[next++]);
      }
    } else {
      const View::Table& table = view.tables[lookup.table];
      rows_[lookup.table]->rows.Find(table.rows, lookup.keys, scratch->rows);
      if (table.changes != nullptr) table.changes->Override(lookup.keys, scratch->rows);
    }
    HOTROW_RETURN_IF_ERROR(PoolRows(part, scratch));
  }
  scratch->parts.clear();
  return absl::OkStatus();
}

// Pools scratch->rows, where null is a key without a row.
absl::Status ServingTables::PoolRows(const Scratch::Part& part, Scratch* scratch) const {
  const ServingLookup& lookup = part.lookup;
  const ServingTable& spec = options_.tables[lookup.table];
  const int32_t dim = spec.layout.dim;
  const size_t n = lookup.keys.size();
  scratch->missing.clear();
  for (size_t i = 0; i < n; ++i) {
    if (scratch->rows[i] == nullptr) scratch->missing.push_back(lookup.keys[i]);
  }
  if (IsAffine(spec.rows)) {
    const auto keys = std::ssize(lookup.keys);
    HOTROW_RETURN_IF_ERROR(scratch->decoded.Reserve(keys * dim));  // <= lookups_max_
    float* next = scratch->decoded.data();
    for (const std::byte*& row : scratch->rows) {
      if (row == nullptr) continue;
      DecodeAffineRow(CodeOf(spec.rows), row, {next, static_cast<size_t>(dim)});
      row = reinterpret_cast<const std::byte*>(next);
      next += dim;
    }
  }
  if (!scratch->missing.empty()) {
    HOTROW_RETURN_IF_ERROR(ReadFirstValues(lookup.table, scratch));
    size_t next = 0;
    for (const std::byte*& row : scratch->rows) {
      if (row == nullptr) row = scratch->missing_rows[next++];
    }
  }
  // Each lookup has its own row: rows that are looked up twice are read twice, in the order in
  // which the trainer reads them.
  const size_t had = scratch->inverse.size();
  if (had < n) {
    scratch->inverse.resize(n);
    std::iota(scratch->inverse.begin() + static_cast<std::ptrdiff_t>(had), scratch->inverse.end(),
              static_cast<int32_t>(had));
  }
  const int64_t* offsets = lookup.offsets.data();
  if (offsets[0] != 0) {
    scratch->offsets.resize(lookup.offsets.size());
    for (size_t b = 0; b < lookup.offsets.size(); ++b) {
      scratch->offsets[b] = offsets[b] - offsets[0];
    }
    offsets = scratch->offsets.data();
  }
  const JaggedFeature feature = {.dim = dim,
                                 .pooling = lookup.pooling,
                                 .data = lookup.output.data,
                                 .stride = std::max<int64_t>(lookup.output.stride, dim),
                                 .precision = ReadPrecision(spec)};
  HOTROW_RETURN_IF_ERROR(
      PooledLookup({}, {.features = {&feature, 1},
                        .batch_size = lookup.batch_size,
                        .offsets = offsets,
                        .weights = lookup.weights.empty() ? nullptr : lookup.weights.data(),
                        .inverse = scratch->inverse.data(),
                        .rows = scratch->rows.data(),
                        .adds = part.adds}));
  for (int32_t d = 0; part.mean_over > 0 && d < dim; ++d) {
    lookup.output.data[d] /= static_cast<float>(part.mean_over);
  }
  return absl::OkStatus();
}

// --- Rows on a disk

ServingTables::Scratch::Scratch() = default;
ServingTables::Scratch::~Scratch() = default;

// What decides the bits of the files' rows: what they are made of, and all that RowKeeper makes of
// it. Numbers of floats are their bits.
Hash128 ServingTables::RowsId(const std::string& rows_source) const {
  constexpr uint64_t kKey = 0x7365727665;  // "serve"
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  std::string text = absl::StrCat("version ", internal::kRowFileVersions.last, " source ",
                                  rows_source.size(), " ", rows_source, " ");
  if (rows_source.empty()) text += UniqueId::Random().ToHex();
  // What steps and rates do to rows that may change is a matter of their source, and of an older
  // one not to differ, but where a table decays as a whole.
  const bool decays = std::ranges::any_of(
      rows_, [](const std::unique_ptr<Table>& table) { return table->history != nullptr; });
  const bool in_source = options_.keeps_steps && !decays;
  absl::StrAppend(&text, " steps ", in_source ? 0 : options_.first_step, " ",
                  in_source ? false : options_.rows_missed_steps, " seed ", options_.seed);
  for (const LearningRateRun& run : options_.learning_rates) {
    if (!in_source) absl::StrAppend(&text, " ", run.last_step, ":", bits(run.factor));
  }
  if (options_.keeps_steps) text += " kept";
  for (const ServingTable& table : options_.tables) {
    const SparseOptimizerConfig& o = table.optimizer;
    absl::StrAppend(&text, "\n", table.name.size(), " ", table.name, " ",
                    static_cast<int>(table.rows), " ", table.layout.dim, " ",
                    static_cast<int>(table.layout.precision), " ", table.layout.row_bytes);
    absl::StrAppend(&text, " ", static_cast<int>(o.kind), " ",
                    static_cast<int>(o.weight_decay_mode));
    for (const float x : {o.learning_rate, o.eps, o.beta1, o.beta2, o.weight_decay,
                          o.initial_accumulator, o.lr_power, o.l1, o.l2, o.ftrl_beta}) {
      absl::StrAppend(&text, " ", bits(x));
    }
  }
  return HashBytes(kKey, text.size(), std::as_bytes(std::span(text)));
}

absl::Status ServingTables::OpenDisk() {
  DiskRows::Options disk = {.env = options_.env != nullptr ? options_.env : &PosixEnv(),
                            .dir = options_.rows_dir,
                            .ids = {RowsId(options_.rows_source)},
                            .keeps_steps = options_.keeps_steps,
                            .limit_bytes = share_->budget().bytes(),
                            .readers = options_.readers,
                            .keys_max = lookups_max_,
                            .merge_bytes_per_second = options_.merge_bytes_per_second,
                            .stop = options_.stop,
                            .share = share_.get()};
  // Half of a shared budget, so that there is room for the tables that take their place.
  if (options_.budget != nullptr) disk.limit_bytes /= 2;
  for (const std::string& source : options_.older_sources) disk.ids.push_back(RowsId(source));
  for (const ServingTable& table : options_.tables) {
    disk.tables.push_back(table.name);
    disk.row_bytes.push_back(ServingRowBytes(table.rows, table.layout));
  }
  HOTROW_ASSIGN_OR_RETURN(disk_, DiskRows::Create(disk));
  return absl::OkStatus();
}

absl::Status ServingTables::Prepare(Scratch* scratch) const {
  if (disk_ == nullptr || scratch->disk != nullptr) return absl::OkStatus();
  std::unique_ptr<DiskRows::Reader> reader = disk_->TakeReader();
  if (reader == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ServingTablesOptions.readers is ", options_.readers,
                     ", and all of them read rows on a disk already"));
  }
  scratch->disk.reset(new internal::DiskReader{disk_.get(), std::move(reader)});
  return absl::OkStatus();
}

absl::Status ServingTables::LockRows() {
  return disk_ != nullptr && options_.keeps_steps ? disk_->LockChanges() : absl::OkStatus();
}

void ServingTables::UnlockRows() {
  if (disk_ != nullptr) disk_->UnlockChanges();
}

absl::Status ServingTables::MergeRows() {
  HOTROW_RETURN_IF_ERROR(LockRows());
  return disk_ != nullptr ? disk_->Merge() : absl::OkStatus();
}

ServingReadStats ServingTables::read_stats() const {
  return disk_ != nullptr ? disk_->stats() : ServingReadStats{};
}

absl::Status ServingTables::SaveHotKeys() const {
  return disk_ != nullptr ? disk_->SaveHotKeys() : absl::OkStatus();
}

std::vector<std::string> ServingTables::notes() const {
  return disk_ != nullptr ? disk_->notes() : std::vector<std::string>();
}

// --- Builder

ServingTables::Builder::~Builder() = default;

absl::StatusOr<std::unique_ptr<ServingTables::Builder>> ServingTables::Builder::Create(
    const ServingTablesOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Builder> builder(new Builder());
  builder->tables_.reset(new ServingTables(options));
  HOTROW_RETURN_IF_ERROR(builder->tables_->Init());
  return builder;
}

bool ServingTables::Builder::has_rows() const {
  return tables_->disk_ != nullptr && tables_->disk_->complete();
}

size_t ServingTables::Builder::rows_found() const {
  return tables_->disk_ != nullptr ? tables_->disk_->found() : 0;
}

absl::Status ServingTables::Builder::Add(const RowKey& key, std::span<const std::byte> row) {
  HOTROW_ASSIGN_OR_RETURN(const RowKeeper::Kept kept, tables_->keeper_->Keep(key, row));
  if (tables_->disk_ != nullptr) {
    return tables_->disk_->Put(RowSorter::Kind::kAdd, key, kept.last_step, kept.row);
  }
  return tables_->rows_[key.table]->rows.Add(key.key, kept.last_step, kept.row);
}

absl::Status ServingTables::Builder::AddKept(const RowKey& key, std::span<const std::byte> kept) {
  HOTROW_RETURN_IF_ERROR(tables_->CheckTable(key));
  const ServingTable& table = tables_->options_.tables[key.table];
  const int64_t expected = ServingRowBytes(table.rows, table.layout);
  if (std::ssize(kept) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("table \"", table.name, "\": ", kept.size(),
                                                   " bytes of a row, expected ", expected));
  }
  if (tables_->disk_ != nullptr) {
    return tables_->disk_->Put(RowSorter::Kind::kAdd, key, /*last_step=*/0, kept.data());
  }
  return tables_->rows_[key.table]->rows.Add(key.key, /*last_step=*/0, kept.data());
}

absl::Status ServingTables::Builder::Set(const RowKey& key, std::span<const std::byte> row) {
  if (tables_->disk_ != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(const RowKeeper::Kept kept, tables_->keeper_->Keep(key, row));
    return tables_->disk_->Put(RowSorter::Kind::kSet, key, kept.last_step, kept.row);
  }
  HOTROW_RETURN_IF_ERROR(Freeze());
  return tables_->Set(key, row);
}

absl::Status ServingTables::Builder::Erase(const RowKey& key) {
  if (tables_->disk_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(tables_->CheckTable(key));
    return tables_->disk_->Put(RowSorter::Kind::kErase, key, /*last_step=*/0, nullptr);
  }
  HOTROW_RETURN_IF_ERROR(Freeze());
  return tables_->Erase(key);
}

absl::Status ServingTables::Builder::Freeze() {
  if (frozen_) return absl::OkStatus();
  frozen_ = true;
  for (const std::unique_ptr<Table>& table : tables_->rows_) {
    HOTROW_RETURN_IF_ERROR(table->rows.Freeze());
  }
  tables_->MakeView();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ServingTables>> ServingTables::Builder::Finish() {
  if (tables_->disk_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(tables_->disk_->Finish());
    tables_->MakeView();  // of no rows: nothing but the disk has any
  } else {
    HOTROW_RETURN_IF_ERROR(Freeze());
  }
  return std::move(tables_);
}

}  // namespace hotrow
