#include "embedding/ranks/gradient_residuals_impl.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/host_pages.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "ops/keys/partition.h"

namespace hotrow::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr int64_t kGrain = 1024;
// Sets are looked through in so many parts, each by one thread.
constexpr int64_t kParts = 64;
// How many keys ahead of its use a set is asked for: the use takes some 10 ns, a miss 100.
constexpr size_t kAhead = 12;
constexpr int64_t kSaveSets = 2048;  // that are copied in one piece

constexpr std::array<char, 8> kMagic = {'H', 'R', 'R', 'E', 'S', 'I', 'D', '1'};
struct FileHeader {
  std::array<char, 8> magic = kMagic;
  uint64_t num_widths = 0;
};
struct FileWidth {
  uint64_t dim = 0;
  uint64_t num_sets = 0;
  uint64_t rows = 0;
};

int64_t FloatBytes(int64_t rows, int32_t dim) {
  return rows * dim * static_cast<int64_t>(sizeof(float));
}

// What a width of so many sets takes from the system.
int64_t ReservedBytes(int64_t sets, int64_t set_rows, int64_t slot_bytes, int32_t dim) {
  return HostBytesReserved(sets * set_rows * slot_bytes, HugePages::kTry) +
         HostBytesReserved(FloatBytes(sets * set_rows, dim), HugePages::kTry);
}

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(absl::StrCat("residuals of gradients: ", what));
}

}  // namespace

int64_t GradientResiduals::MinBytes(std::span<const Table> tables) {
  std::map<int32_t, bool> dims;
  for (const Table& table : tables) dims[table.dim] = true;
  int64_t bytes = 0;
  for (const auto& [dim, is_there] : dims) bytes += ReservedBytes(1, kWays, sizeof(Slot), dim);
  return bytes;
}

absl::StatusOr<std::unique_ptr<GradientResiduals>> GradientResiduals::Create(
    std::span<const Table> tables, int64_t budget_bytes) {
  const int64_t min_bytes = MinBytes(tables);
  if (budget_bytes < min_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("residuals of gradients: the budget is ",
                                                   budget_bytes, " bytes, the least is ",
                                                   min_bytes));
  }
  std::unique_ptr<GradientResiduals> out(new GradientResiduals());
  std::map<int32_t, int64_t> tables_of_dim;
  for (const Table& table : tables) ++tables_of_dim[table.dim];
  double total_weight = 0;
  for (const auto& [dim, count] : tables_of_dim) {
    total_weight += static_cast<double>(count) * (sizeof(Slot) + sizeof(float) * dim);
  }
  for (const auto& [dim, count] : tables_of_dim) {
    const double weight = static_cast<double>(count) * (sizeof(Slot) + sizeof(float) * dim);
    const int64_t least = ReservedBytes(1, kWays, sizeof(Slot), dim);
    const int64_t share =
        least +
        static_cast<int64_t>(weight / total_weight * static_cast<double>(budget_bytes - min_bytes));
    Width width;
    width.dim = dim;
    width.first_set = out->num_sets_;
    const int64_t set_bytes = kWays * (static_cast<int64_t>(sizeof(Slot)) + FloatBytes(1, dim));
    width.num_sets = std::max<int64_t>(share / set_bytes, 1);
    // Rounding up to pages takes some of it. A hash has 32 bits to choose a set by.
    while (width.num_sets > 1 && ReservedBytes(width.num_sets, kWays, sizeof(Slot), dim) > share) {
      const int64_t over = ReservedBytes(width.num_sets, kWays, sizeof(Slot), dim) - share;
      width.num_sets = std::max<int64_t>(width.num_sets - CeilDiv(over, set_bytes), 1);
    }
    width.num_sets = std::min<int64_t>(width.num_sets, UINT32_MAX);
    HOTROW_ASSIGN_OR_RETURN(
        width.rows, HostBuffer<float>::Create(width.num_sets * kWays * dim, HugePages::kTry));
    out->bytes_ += HostBytesReserved(width.rows.bytes(), HugePages::kTry);
    out->num_sets_ += width.num_sets;
    out->widths_.push_back(std::move(width));
  }
  for (const Table& table : tables) {
    if (std::ssize(out->width_of_) <= table.table) out->width_of_.resize(table.table + 1, -1);
    const auto width = std::find_if(out->widths_.begin(), out->widths_.end(),
                                    [&](const Width& w) { return w.dim == table.dim; });
    out->width_of_[table.table] = static_cast<int32_t>(width - out->widths_.begin());
  }
  HOTROW_ASSIGN_OR_RETURN(out->slots_,
                          HostBuffer<Slot>::Create(out->num_sets_ * kWays, HugePages::kTry));
  out->bytes_ += HostBytesReserved(out->slots_.bytes(), HugePages::kTry);
  return out;
}

// --- Looking for residuals

float* GradientResiduals::Known(int64_t set, uint64_t key, uint32_t table, uint32_t step) {
  Slot* const slots = slots_.data() + set * kWays;
  for (int64_t way = 0; way < kWays && slots[way].step != 0; ++way) {
    if (slots[way].key != key || slots[way].table != table) continue;
    slots[way].step = step;
    return RowOf(WidthOf(table), set, way);
  }
  return nullptr;
}

float* GradientResiduals::Take(int64_t set, uint64_t key, uint32_t table, uint32_t step,
                               ResidualCounts* counts) {
  Slot* const slots = slots_.data() + set * kWays;
  // An empty one has step 0.
  Slot* const oldest = std::min_element(
      slots, slots + kWays, [](const Slot& a, const Slot& b) { return a.step < b.step; });
  if (oldest->step == step) {
    ++counts->refused;
    return nullptr;
  }
  if (oldest->step != 0) ++counts->replaced;
  *oldest = {.key = key, .table = table, .step = step};
  Width& width = WidthOf(table);
  float* const row = RowOf(width, set, oldest - slots);
  std::fill_n(row, width.dim, 0.0f);
  return row;
}

absl::Status GradientResiduals::Find(const ExecContext& ctx, std::span<const RowRun> runs,
                                     const uint64_t* keys, uint32_t step, float** rows) {
  const int64_t n = runs.empty() ? 0 : runs.back().end;
  places_.resize(n);
  parts_.resize(n);
  order_.resize(n);
  part_offsets_.resize(kParts + 1);
  ParallelFor(ctx.pool, n, kGrain, [&](int64_t begin, int64_t end) {
    auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                                [](int64_t i, const RowRun& r) { return i < r.end; });
    for (int64_t i = begin; i < end; ++i) {
      while (run->end <= i) ++run;
      const Width& width = WidthOf(run->table);
      const int64_t set = width.first_set + HashRowKey(keys[i], run->table).bucket1(width.num_sets);
      places_[i] = {.set = set, .run = static_cast<int32_t>(run - runs.begin())};
      parts_[i] = static_cast<int32_t>(static_cast<unsigned __int128>(set) * kParts / num_sets_);
    }
  });
  // The keys of a set one after the other as they came, different sets at once.
  HOTROW_RETURN_IF_ERROR(Partition(ctx, {.part = parts_.data(),
                                         .num_items = n,
                                         .num_parts = kParts,
                                         .offsets = part_offsets_.data(),
                                         .order = order_.data()}));
  std::array<ResidualCounts, kParts> counts;
  ParallelFor(ctx.pool, kParts, 1, [&](int64_t part, int64_t) {
    const std::span<const int32_t> items = std::span(order_).subspan(
        part_offsets_[part], part_offsets_[part + 1] - part_offsets_[part]);
    ResidualCounts& count = counts[part];
    // First those that are there, so that no new one drives them out.
    for (size_t j = 0; j < items.size(); ++j) {
      if (j + kAhead < items.size()) {
        __builtin_prefetch(slots_.data() + places_[items[j + kAhead]].set * kWays, /*rw=*/1);
      }
      const Place& place = places_[items[j]];
      rows[items[j]] = Known(place.set, keys[items[j]], runs[place.run].table, step);
      if (rows[items[j]] != nullptr) ++count.hits;
    }
    count.keys = std::ssize(items);
    for (const int32_t i : items) {
      const Place& place = places_[i];
      if (rows[i] != nullptr) continue;
      rows[i] = Take(place.set, keys[i], runs[place.run].table, step, &count);
    }
  });
  for (const ResidualCounts& part : counts) {
    counts_.keys += part.keys;
    counts_.hits += part.hits;
    counts_.replaced += part.replaced;
    counts_.refused += part.refused;
  }
  return absl::OkStatus();
}

void GradientResiduals::Erase(uint32_t table, std::span<const uint64_t> keys) {
  Width& width = WidthOf(table);
  for (const uint64_t key : keys) {
    const int64_t set = width.first_set + HashRowKey(key, table).bucket1(width.num_sets);
    Slot* const slots = slots_.data() + set * kWays;
    const int64_t used = UsedWays(set);
    for (int64_t way = 0; way < used; ++way) {
      if (slots[way].key != key || slots[way].table != table) continue;
      // The last one takes its place: the empty ones are the last of their set.
      if (way != used - 1) {
        slots[way] = slots[used - 1];
        std::copy_n(RowOf(width, set, used - 1), width.dim, RowOf(width, set, way));
      }
      slots[used - 1] = Slot();
      break;
    }
  }
}

// --- Saving and loading. The bytes: FileHeader, a FileWidth for each width, then for each width
// its slots in use, in the order of sets and ways, and their rows.

int64_t GradientResiduals::UsedWays(int64_t set) const {
  const Slot* const slots = slots_.data() + set * kWays;
  int64_t used = 0;
  while (used < kWays && slots[used].step != 0) ++used;
  return used;
}

absl::StatusOr<HostBuffer<std::byte>> GradientResiduals::Save(const ExecContext& ctx) const {
  // A piece is some sets of one width.
  struct Piece {
    const Width* width = nullptr;
    int64_t first_set = 0;
    int64_t last_set = 0;
    int64_t rows = 0;
    int64_t slots_at = 0;  // in the bytes
    int64_t floats_at = 0;
  };
  std::vector<Piece> pieces;
  for (const Width& width : widths_) {
    const int64_t end = width.first_set + width.num_sets;
    for (int64_t set = width.first_set; set < end; set += kSaveSets) {
      pieces.push_back(
          {.width = &width, .first_set = set, .last_set = std::min(set + kSaveSets, end)});
    }
  }
  const auto num_pieces = static_cast<int64_t>(pieces.size());
  ParallelFor(ctx.pool, num_pieces, 1, [&](int64_t p, int64_t) {
    Piece& piece = pieces[p];
    for (int64_t set = piece.first_set; set < piece.last_set; ++set) piece.rows += UsedWays(set);
  });
  std::vector<FileWidth> file_widths;
  for (const Width& width : widths_) {
    file_widths.push_back({.dim = static_cast<uint64_t>(width.dim),
                           .num_sets = static_cast<uint64_t>(width.num_sets)});
  }
  const auto width_of = [&](const Piece& piece) -> FileWidth& {
    return file_widths[piece.width - widths_.data()];
  };
  for (const Piece& piece : pieces) width_of(piece).rows += static_cast<uint64_t>(piece.rows);
  const FileHeader header = {.num_widths = widths_.size()};
  const auto directory_bytes = static_cast<int64_t>(file_widths.size() * sizeof(FileWidth));
  int64_t at = static_cast<int64_t>(sizeof(header)) + directory_bytes;
  for (size_t first = 0; first < pieces.size();) {
    const Width* const width = pieces[first].width;
    size_t last = first;
    for (; last < pieces.size() && pieces[last].width == width; ++last) {
      pieces[last].slots_at = at;
      at += pieces[last].rows * static_cast<int64_t>(sizeof(Slot));
    }
    for (; first < last; ++first) {
      pieces[first].floats_at = at;
      at += FloatBytes(pieces[first].rows, width->dim);
    }
  }
  HOTROW_ASSIGN_OR_RETURN(HostBuffer<std::byte> out,
                          HostBuffer<std::byte>::Create(at, HugePages::kTry));
  std::memcpy(out.data(), &header, sizeof(header));
  std::memcpy(out.data() + sizeof(header), file_widths.data(),
              static_cast<size_t>(directory_bytes));
  ParallelFor(ctx.pool, num_pieces, 1, [&](int64_t p, int64_t) {
    const Piece& piece = pieces[p];
    const Width& width = *piece.width;
    std::byte* slots = out.data() + piece.slots_at;
    std::byte* floats = out.data() + piece.floats_at;
    for (int64_t set = piece.first_set; set < piece.last_set; ++set) {
      const int64_t used = UsedWays(set);
      if (used == 0) continue;
      const auto slot_bytes = static_cast<size_t>(used) * sizeof(Slot);
      const auto float_bytes = static_cast<size_t>(FloatBytes(used, width.dim));
      std::memcpy(slots, slots_.data() + set * kWays, slot_bytes);
      std::memcpy(floats, width.rows.data() + (set - width.first_set) * kWays * width.dim,
                  float_bytes);
      slots += slot_bytes;
      floats += float_bytes;
    }
  });
  return out;
}

void GradientResiduals::Clear() { std::fill(slots_.begin(), slots_.end(), Slot()); }

absl::Status GradientResiduals::LoadWidth(Width* width, int64_t rows, uint32_t last_step,
                                          const std::byte* slots, const std::byte* floats) {
  int64_t set_before = -1;
  for (int64_t i = 0; i < rows; ++i) {
    Slot slot;
    std::memcpy(&slot, slots + i * static_cast<int64_t>(sizeof(Slot)), sizeof(Slot));
    const bool known = slot.table < width_of_.size() && width_of_[slot.table] >= 0 &&
                       &WidthOf(slot.table) == width;
    if (!known || slot.step == 0 || slot.step > last_step) {
      return Damaged(absl::StrCat("row ", i, " of ", width->dim, " columns is of table ",
                                  slot.table, " and step ", slot.step));
    }
    const int64_t set =
        width->first_set + HashRowKey(slot.key, slot.table).bucket1(width->num_sets);
    Slot* const to = slots_.data() + set * kWays;
    const int64_t way = UsedWays(set);
    const bool again = std::any_of(to, to + way, [&](const Slot& other) {
      return other.key == slot.key && other.table == slot.table;
    });
    if (set < set_before || way == kWays || again) {
      return Damaged(absl::StrCat("row ", i, " of ", width->dim, " columns, key ", slot.key,
                                  ", is not at its place"));
    }
    set_before = set;
    to[way] = slot;
    std::memcpy(RowOf(*width, set, way), floats + FloatBytes(i, width->dim),
                static_cast<size_t>(FloatBytes(1, width->dim)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GradientResiduals::Load(std::span<const std::byte> bytes, uint32_t last_step) {
  Clear();
  const auto size = static_cast<int64_t>(bytes.size());
  FileHeader header;
  if (bytes.size() < sizeof(header)) return Damaged("too short for a header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return Damaged("they do not begin as residuals do");
  if (header.num_widths > (bytes.size() - sizeof(header)) / sizeof(FileWidth)) {
    return Damaged("too short for their widths");
  }
  if (header.num_widths != widths_.size()) return false;
  std::vector<FileWidth> file_widths(widths_.size());
  std::memcpy(file_widths.data(), bytes.data() + sizeof(header),
              file_widths.size() * sizeof(FileWidth));
  auto at = static_cast<int64_t>(sizeof(header) + file_widths.size() * sizeof(FileWidth));
  int64_t expected = at;
  for (size_t w = 0; w < widths_.size(); ++w) {
    const Width& width = widths_[w];
    if (file_widths[w].dim != static_cast<uint64_t>(width.dim) ||
        file_widths[w].num_sets != static_cast<uint64_t>(width.num_sets)) {
      return false;
    }
    if (file_widths[w].rows > static_cast<uint64_t>(width.num_sets * kWays)) {
      return Damaged(absl::StrCat("more rows of ", width.dim, " columns than there is room for"));
    }
    const auto rows = static_cast<int64_t>(file_widths[w].rows);
    expected += rows * static_cast<int64_t>(sizeof(Slot)) + FloatBytes(rows, width.dim);
  }
  if (size != expected) {
    return Damaged(absl::StrCat("they have ", size, " bytes and should have ", expected));
  }
  for (size_t w = 0; w < widths_.size(); ++w) {
    const auto rows = static_cast<int64_t>(file_widths[w].rows);
    const std::byte* const slots = bytes.data() + at;
    const std::byte* const floats = slots + rows * static_cast<int64_t>(sizeof(Slot));
    const absl::Status loaded = LoadWidth(&widths_[w], rows, last_step, slots, floats);
    if (!loaded.ok()) {
      Clear();
      return loaded;
    }
    at = floats + FloatBytes(rows, widths_[w].dim) - bytes.data();
  }
  return true;
}

}  // namespace hotrow::internal
