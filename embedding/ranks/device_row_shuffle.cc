#include "embedding/ranks/device_row_shuffle_impl.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "ops/keys/owner_parts.h"
#include "ops/keys/partition.h"
#include "ops/rows/pooled_lookup.h"

namespace hotrow::internal {
namespace {

constexpr uint32_t kRowsDirection = 0;  // of StochasticKey::direction
constexpr uint32_t kGradientsDirection = 1;

// Addresses as words, for PickWords and PutWords.
const uint64_t* Words(const std::byte* const* addresses) {
  return reinterpret_cast<const uint64_t*>(addresses);
}
uint64_t* Words(const std::byte** addresses) { return reinterpret_cast<uint64_t*>(addresses); }

}  // namespace

DeviceRowShuffle::DeviceRowShuffle(const RowShuffleOptions& options,
                                   std::unique_ptr<DeviceChannel> channel, DeviceStream stream)
    : options_(options),
      widens_(std::any_of(options.tables.begin(), options.tables.end(),
                          [](const RowShuffleOptions::Table& table) {
                            return table.precision != WeightsPrecision::kFp32;
                          })),
      channel_(std::move(channel)),
      stream_(std::move(stream)) {}

DeviceRowShuffle::~DeviceRowShuffle() { stream_.Wait().IgnoreError(); }

absl::StatusOr<std::unique_ptr<DeviceRowShuffle>> DeviceRowShuffle::Create(
    const RowShuffleOptions& options, Communicator& host, Device device) {
  HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(device, /*is_urgent=*/true));
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DeviceChannel> channel,
                          DeviceChannel::Create(host, device));
  return std::unique_ptr<DeviceRowShuffle>(
      new DeviceRowShuffle(options, std::move(channel), std::move(stream)));
}

// --- Messages

DeviceRowShuffle::Layout DeviceRowShuffle::LayOut(std::span<const int64_t> offsets,
                                                  ExchangeType type) const {
  const auto num_tables = static_cast<int64_t>(options_.tables.size());
  Layout out;
  int64_t row = 0;
  for (int64_t p = 0; p < world_size(); ++p) {
    out.offsets.push_back(out.total_bytes);
    for (int64_t t = 0; p != rank() && t < num_tables; ++t) {
      const int64_t first = offsets[p * num_tables + t];
      const int64_t rows = offsets[p * num_tables + t + 1] - first;
      if (rows == 0) continue;
      const RowShuffleOptions::Table& table = options_.tables[t];
      out.runs.push_back({.begin = row,
                          .end = row + rows,
                          .dim = table.dim,
                          .table = table.table,
                          .byte_offset = out.total_bytes});
      out.first.push_back(first);
      row += rows;
      out.total_bytes += rows * ExchangeRowBytes(type, table.dim);
      out.floats += rows * table.dim;
    }
    out.bytes.push_back(out.total_bytes - out.offsets.back());
  }
  out.own_begin = offsets[rank() * num_tables];
  out.own_end = offsets[(rank() + 1) * num_tables];
  out.end = offsets.back();
  return out;
}

std::vector<ByteRows> DeviceRowShuffle::RowsIn(const Layout& layout, ExchangeType type,
                                               const std::byte* data) const {
  std::vector<ByteRows> rows;
  for (size_t i = 0; i < layout.runs.size(); ++i) {
    const RowRun& run = layout.runs[i];
    const int64_t row_bytes = ExchangeRowBytes(type, run.dim);
    rows.push_back({.begin = layout.first[i],
                    .end = layout.first[i] + run.end - run.begin,
                    .first = data,
                    .row_bytes = row_bytes});
    data += (run.end - run.begin) * row_bytes;
  }
  return rows;
}

template <typename T>
absl::Status DeviceRowShuffle::Grow(int64_t size, DeviceMemory<T>* memory) {
  if (memory->size() >= size) return absl::OkStatus();
  // What this gives back goes behind what is enqueued on stream_, which all users of it are. On the
  // CPU nothing uses it: the exchange before ended with a wait, and this one takes memory first.
  HOTROW_RETURN_IF_ERROR(memory->Reserve(size + size / 4, {stream_.device(), stream_.get()}));
  device_bytes_.store(out_.bytes() + in_.bytes() + decoded_.bytes() + widened_.bytes() +
                          widen_offsets_.bytes() + widen_lookups_.bytes() + wide_rows_.bytes() +
                          out_rows_.bytes() + out_keys_.bytes() + in_rows_.bytes() +
                          sum_offsets_.bytes() + sum_order_.bytes() + workspace_.bytes(),
                      std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status DeviceRowShuffle::Send(const ExecContext& ctx, const Layout& out, const Layout& in,
                                    ExchangeType type, const int32_t* order,
                                    const std::byte* const* rows, const uint64_t* keys,
                                    const StochasticKey& random) {
  const int64_t num_rows = out.end - (out.own_end - out.own_begin);
  HOTROW_RETURN_IF_ERROR(Grow(out.total_bytes, &out_));
  HOTROW_RETURN_IF_ERROR(Grow(in.total_bytes, &in_));
  HOTROW_RETURN_IF_ERROR(Grow(num_rows, &out_rows_));
  HOTROW_RETURN_IF_ERROR(Grow(num_rows, &out_keys_));
  const bool with_keys =
      options_.rounding == ExchangeRounding::kStochastic && type != ExchangeType::kFp32;
  // Those before this rank's own, and those behind.
  struct Part {
    int64_t first = 0;
    int64_t size = 0;
    int64_t to = 0;
  };
  const Part parts[] = {{0, out.own_begin, 0}, {out.own_end, out.end - out.own_end, out.own_begin}};
  for (const Part& part : parts) {
    const PickWordsArgs pick = {.from = Words(rows),
                                .positions = order + part.first,
                                .num_words = part.size,
                                .to = Words(out_rows_.data()) + part.to};
    const PickWordsArgs pick_keys = {.from = keys,
                                     .positions = order + part.first,
                                     .num_words = with_keys ? part.size : 0,
                                     .to = out_keys_.data() + part.to};
    HOTROW_RETURN_IF_ERROR(
        stream_.Run(ctx, [pick, pick_keys](const ExecContext& here) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(PickWords(here, pick));
          return PickWords(here, pick_keys);
        }));
  }
  const EncodeRowsArgs encode = {.type = type,
                                 .rounding = options_.rounding,
                                 .random = random,
                                 .runs = {},
                                 .keys = out_keys_.data(),
                                 .rows = reinterpret_cast<const float* const*>(out_rows_.data()),
                                 .out = out_.data()};
  HOTROW_RETURN_IF_ERROR(stream_.Run(ctx, [encode, runs = out.runs](const ExecContext& here) {
    EncodeRowsArgs args = encode;
    args.runs = runs;
    return EncodeRows(here, args);
  }));
  return channel_->AllToAllV({.send = out_.data(),
                              .send_bytes = out.bytes,
                              .send_offsets = out.offsets,
                              .recv = in_.data(),
                              .recv_bytes = in.bytes,
                              .recv_offsets = in.offsets},
                             stream_);
}

absl::Status DeviceRowShuffle::Finish(const ExecContext& ctx) {
  busy_ = false;
  HOTROW_RETURN_IF_ERROR(stream_.RunBefore(ctx));
  return channel_->status();
}

// --- Rows

absl::Status DeviceRowShuffle::Widen(const ExecContext& ctx,
                                     std::span<const int64_t> served_offsets,
                                     std::byte* const* served_rows, const std::byte* const** rows) {
  *rows = served_rows;
  if (!widens_) return absl::OkStatus();
  int64_t floats = 0;
  int64_t most_rows = 0;
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    if (options_.tables[t].precision == WeightsPrecision::kFp32) continue;
    const int64_t n = served_offsets[t + 1] - served_offsets[t];
    floats += n * options_.tables[t].dim;
    most_rows = std::max(most_rows, n);
  }
  HOTROW_RETURN_IF_ERROR(Grow(floats, &widened_));
  HOTROW_RETURN_IF_ERROR(Grow(served_offsets.back(), &wide_rows_));
  if (widen_lookups_.size() < most_rows) {
    HOTROW_RETURN_IF_ERROR(Grow(most_rows + 1, &widen_offsets_));
    HOTROW_RETURN_IF_ERROR(Grow(most_rows, &widen_lookups_));
    std::vector<int64_t> offsets(static_cast<size_t>(widen_offsets_.size()));
    std::vector<int32_t> lookups(static_cast<size_t>(widen_lookups_.size()));
    std::iota(offsets.begin(), offsets.end(), int64_t{0});
    std::iota(lookups.begin(), lookups.end(), 0);
    HOTROW_RETURN_IF_ERROR(
        stream_.Copy(widen_offsets_.data(), offsets.data(), 8 * std::ssize(offsets)));
    HOTROW_RETURN_IF_ERROR(
        stream_.Copy(widen_lookups_.data(), lookups.data(), 4 * std::ssize(lookups)));
    HOTROW_RETURN_IF_ERROR(stream_.Wait());  // before the vectors go
  }
  std::vector<ByteRows> wide;
  float* next = widened_.data();
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    const RowShuffleOptions::Table& table = options_.tables[t];
    const int64_t first = served_offsets[t];
    const int64_t n = served_offsets[t + 1] - first;
    if (n == 0) continue;
    if (table.precision == WeightsPrecision::kFp32) {
      HOTROW_RETURN_IF_ERROR(
          stream_.Copy(wide_rows_.data() + first, served_rows + first, n * int64_t{8}));
      continue;
    }
    wide.push_back({.begin = first,
                    .end = first + n,
                    .first = reinterpret_cast<const std::byte*>(next),
                    .row_bytes = 4 * int64_t{table.dim}});
    // A lookup with one row in each bag.
    const JaggedFeature feature = {
        .dim = table.dim, .data = next, .stride = table.dim, .precision = table.precision};
    next += n * table.dim;
    const PooledLookupArgs lookup = {.features = {},
                                     .batch_size = n,
                                     .offsets = widen_offsets_.data(),
                                     .inverse = widen_lookups_.data(),
                                     .rows = served_rows + first};
    HOTROW_RETURN_IF_ERROR(stream_.Run(ctx, [lookup, feature](const ExecContext& here) {
      PooledLookupArgs args = lookup;
      args.features = {&feature, 1};
      return PooledLookup(here, args);
    }));
  }
  *rows = wide_rows_.data();
  return stream_.Run(ctx, [wide, to = wide_rows_.data()](const ExecContext& here) {
    return AddressByteRows(here, {.runs = wide, .rows = to});
  });
}

absl::Status DeviceRowShuffle::StartRows(const ExecContext& ctx, const DeviceRoutes& keys,
                                         std::byte* const* served_rows, uint32_t step,
                                         bool evaluation, const std::byte** wanted_rows) {
  HOTROW_RETURN_IF_ERROR(channel_->status());
  busy_ = true;
  HOTROW_RETURN_IF_ERROR(stream_.RunAfter(ctx.stream));
  const ExchangeType type = evaluation ? ExchangeType::kFp32 : options_.forward;
  const Layout out = LayOut(keys.asked_offsets, type);
  const Layout in = LayOut(keys.ask_offsets, type);
  const bool decodes = type != ExchangeType::kFp32;
  if (decodes) HOTROW_RETURN_IF_ERROR(Grow(in.floats, &decoded_));
  HOTROW_RETURN_IF_ERROR(Grow(in.end, &in_rows_));
  HOTROW_RETURN_IF_ERROR(Grow(in.end, &out_rows_));  // of the message that comes, too
  const std::byte* const* rows = nullptr;
  HOTROW_RETURN_IF_ERROR(Widen(ctx, keys.table_offsets, served_rows, &rows));
  HOTROW_RETURN_IF_ERROR(
      Send(ctx, out, in, type, keys.asked_rows, rows, keys.served,
           {options_.seed, step, kRowsDirection, static_cast<uint32_t>(rank())}));
  (evaluation ? bytes_.evaluation : bytes_.rows) += out.total_bytes;

  // Addresses of floats by position, then by wanted key.
  const std::byte* const floats =
      decodes ? reinterpret_cast<const std::byte*>(decoded_.data()) : in_.data();
  // What this rank asked of itself it was asked for in the same order.
  const PickWordsArgs own = {.from = Words(rows),
                             .positions = keys.asked_rows + out.own_begin,
                             .num_words = in.own_end - in.own_begin,
                             .to = Words(in_rows_.data()) + in.own_begin};
  const PutWordsArgs wanted = {.from = Words(static_cast<const std::byte* const*>(in_rows_.data())),
                               .positions = keys.ask_order,
                               .num_words = in.end,
                               .to = Words(wanted_rows)};
  HOTROW_RETURN_IF_ERROR(
      stream_.Run(ctx,
                  [own, wanted, runs = RowsIn(in, ExchangeType::kFp32, floats),
                   to = in_rows_.data()](const ExecContext& here) -> absl::Status {
                    HOTROW_RETURN_IF_ERROR(AddressByteRows(here, {.runs = runs, .rows = to}));
                    HOTROW_RETURN_IF_ERROR(PickWords(here, own));
                    return PutWords(here, wanted);
                  }));
  if (!decodes) return absl::OkStatus();
  // By row of the message, which has no place for this rank's own.
  std::vector<ByteRows> places = RowsIn(in, ExchangeType::kFp32, floats);
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].begin = in.runs[i].begin;
    places[i].end = in.runs[i].end;
  }
  return stream_.Run(
      ctx,
      [places = std::move(places), runs = in.runs, type, from = in_.data(),
       to = out_rows_.data()](const ExecContext& here) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(AddressByteRows(here, {.runs = places, .rows = to}));
        return DecodeRows(
            here, {.type = type,
                   .runs = runs,
                   .in = from,
                   .rows = reinterpret_cast<float* const*>(const_cast<std::byte* const*>(to))});
      });
}

// --- Gradients

absl::Status DeviceRowShuffle::StartGradients(const ExecContext& ctx, const DeviceKeys& wanted,
                                              const DeviceRoutes& keys, float* const* gradients,
                                              uint32_t step, float* const* sums) {
  HOTROW_RETURN_IF_ERROR(channel_->status());
  busy_ = true;
  HOTROW_RETURN_IF_ERROR(stream_.RunAfter(ctx.stream));
  const ExchangeType type = options_.backward;
  const Layout out = LayOut(keys.ask_offsets, type);
  const Layout in = LayOut(keys.asked_offsets, type);
  const auto* const rows = reinterpret_cast<const std::byte* const*>(gradients);
  HOTROW_RETURN_IF_ERROR(
      Send(ctx, out, in, type, keys.ask_order, rows, wanted.values(),
           {options_.seed, step, kGradientsDirection, static_cast<uint32_t>(rank())}));
  bytes_.gradients += out.total_bytes;

  // By position where each contribution lies; by served row which they are, in the order of ranks,
  // since the order of positions is that, and Partition is stable.
  const std::span<const int64_t> served_offsets = keys.table_offsets;
  const int64_t num_served = served_offsets.back();
  const int64_t workspace_bytes = PartitionWorkspaceBytes(stream_.device(), in.end, num_served);
  HOTROW_RETURN_IF_ERROR(Grow(in.end, &in_rows_));
  HOTROW_RETURN_IF_ERROR(Grow(num_served + 1, &sum_offsets_));
  HOTROW_RETURN_IF_ERROR(Grow(in.end, &sum_order_));
  HOTROW_RETURN_IF_ERROR(Grow(workspace_bytes, &workspace_));
  const PartitionArgs by_row = {.part = keys.asked_rows,
                                .num_items = in.end,
                                .num_parts = num_served,
                                .offsets = sum_offsets_.data(),
                                .order = sum_order_.data(),
                                .workspace = workspace_.data(),
                                .workspace_bytes = workspace_.bytes()};
  const PickWordsArgs own = {.from = Words(rows),
                             .positions = keys.ask_order + out.own_begin,
                             .num_words = out.own_end - out.own_begin,
                             .to = Words(in_rows_.data()) + in.own_begin};
  std::vector<RowRun> sum_runs;
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    sum_runs.push_back(
        {.begin = served_offsets[t], .end = served_offsets[t + 1], .dim = options_.tables[t].dim});
  }
  const SumEncodedRowsArgs sum = {.type = type,
                                  .runs = {},
                                  .offsets = sum_offsets_.data(),
                                  .order = sum_order_.data(),
                                  .rows = in_rows_.data(),
                                  .plain_begin = in.own_begin,
                                  .plain_end = in.own_end,
                                  .sums = sums};
  return stream_.Run(
      ctx,
      [by_row, own, sum, sum_runs = std::move(sum_runs), runs = RowsIn(in, type, in_.data()),
       to = in_rows_.data()](const ExecContext& here) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(Partition(here, by_row));
        HOTROW_RETURN_IF_ERROR(AddressByteRows(here, {.runs = runs, .rows = to}));
        HOTROW_RETURN_IF_ERROR(PickWords(here, own));
        SumEncodedRowsArgs args = sum;
        args.runs = sum_runs;
        return SumEncodedRows(here, args);
      });
}

}  // namespace hotrow::internal
